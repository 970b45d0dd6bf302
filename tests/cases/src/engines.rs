//! Launch commands, case files and start-up logs.

use crate::check_reason;
use moetwin_engines::{Engine, Version, case, command, log, verdict};

/// Any text is a command, or no command for a stated reason; what is read stays within the text and the answer is the same twice.
pub fn check_launch_command(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for engine in [Engine::Sglang, Engine::Vllm] {
        match command::parse(text, &Version::newest(engine)) {
            Err(error) => check_reason(&error.to_string()),
            Ok(read) => {
                for given in &read.given {
                    assert!(text.get(given.span.clone()).is_some(), "{} stands outside of the text", given.written);
                }
                assert_eq!(command::parse(text, &Version::newest(engine)).as_ref(), Ok(&read));
            }
        }
    }
}

/// Any text is a case, or none for a stated reason; a case has an answer, which is the same twice and says what was decided.
pub fn check_launch_case(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let question = match case::read(text) {
        Err(error) => return check_reason(&error.to_string()),
        Ok(question) => question,
    };
    match verdict::check(&question) {
        Err(error) => check_reason(&error.to_string()),
        Ok(answer) => {
            assert!(!answer.message.trim().is_empty());
            assert!(answer.numbers.values().all(|n| !n.is_nan()), "{:?}", answer.numbers);
            let again = verdict::check(&question).expect("it had an answer");
            assert_eq!(
                (again.starts, again.phase, &again.message, &again.numbers),
                (answer.starts, answer.phase, &answer.message, &answer.numbers)
            );
        }
    }
}

/// Any text is a log, if one that says nothing.
pub fn check_launch_log(data: &[u8]) {
    let read = log::read(&String::from_utf8_lossy(data));
    check_reason(&read.ending());
}
