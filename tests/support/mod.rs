//! Running the built binary.
#![allow(dead_code, reason = "each test file uses its part")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What a run of the binary gave.
pub(crate) struct Run {
    /// Exit code.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

/// The binary, in the project's folder, with a terminal-independent environment.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moetwin"));
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command
}

/// Runs the binary.
pub(crate) fn moetwin(arguments: &[&str]) -> Run {
    finished(command(arguments).output().unwrap(), arguments)
}

/// Runs the binary with the words of a line.
pub(crate) fn line(words: &str) -> Run {
    moetwin(&words.split_whitespace().collect::<Vec<_>>())
}

/// What a finished process gave.
pub(crate) fn finished(output: Output, arguments: &[&str]) -> Run {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap_or_else(|| panic!("{arguments:?} ended by a signal"));
    let run = Run { code, out: text(output.stdout), err: text(output.stderr) };
    assert!(!run.err.contains("panicked"), "{arguments:?}: {}", run.err);
    run
}

impl Run {
    /// The JSON object on standard output.
    pub(crate) fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.out, self.err));
        assert_eq!(value["schema"], 1);
        value
    }
    /// Asserts bad input: exit 2, nothing on standard output, every word in the message.
    pub(crate) fn refused(&self, words: &[&str]) -> &Self {
        assert_eq!((self.code, self.out.as_str()), (2, ""), "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in: {}", self.err);
        }
        self
    }
}

/// An empty folder of this test's own.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Names of what is in a folder.
pub(crate) fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
