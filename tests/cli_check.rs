//! `moetwin check` as people and scripts call it.

use std::process::{Command, Output};
use std::time::Instant;

fn moetwin(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_moetwin")).args(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const LAUNCH: &[&str] =
    &["python", "-m", "sglang.launch_server", "--model-path", "moonshotai/Kimi-K2.5", "--tp", "8", "--moe-dense-tp-size", "2"];
const BOX: &[&str] = &["check", "--gpu", "RTX PRO 6000 Blackwell", "--gpus", "8", "--interconnect", "PCIe", "--engine-version", "0.5.9"];

#[test]
fn the_offending_argument_is_underlined() {
    let output = moetwin(&[BOX, &["--"], LAUNCH].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let lines: Vec<&str> = out.lines().collect();
    let at = lines.iter().position(|l| l.contains("--moe-dense-tp-size 2")).expect("the command is shown");
    let marks = lines[lines.len().min(at + 1)..].iter().find(|l| l.contains('^')).expect("an argument is marked");
    let command = lines.iter().find(|l| l.trim_start().starts_with("python")).expect("the command");
    let marked: String = command.chars().zip(marks.chars()).filter(|(_, m)| *m == '^').map(|(c, _)| c).collect();
    assert_eq!(marked, "--moe-dense-tp-size 2");
}

#[test]
fn json_has_the_fields_that_scripts_rely_on_also_when_the_answer_is_no() {
    let output = moetwin(&[BOX, &["--json", "--"], LAUNCH].concat());
    assert_eq!(output.status.code(), Some(1));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    for field in ["schema", "starts", "phase", "kind", "invariant", "message", "story", "next", "numbers", "fixes"] {
        assert!(value.get(field).is_some(), "{field}");
    }
    assert_eq!(
        (value["starts"].as_bool(), value["phase"].as_str(), value["kind"].as_str()),
        (Some(false), Some("parse"), Some("flag_conflict"))
    );
}

#[test]
fn a_launch_that_starts_exits_with_zero_and_says_what_it_assumed() {
    let output = moetwin(&["check", "--gpu", "H200", "--gpus", "8", "--", "vllm", "serve", "deepseek-ai/DeepSeek-V3", "-tp", "8"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let out = text(&output.stdout);
    assert!(out.contains("Assumed") && out.contains("the newest version known"), "{out}");
}

#[test]
fn bad_input_names_what_is_accepted() {
    for (arguments, words) in [
        (vec!["check"], "a launch command"),
        (vec!["check", "--", "ls", "-l"], "vllm serve"),
        (vec!["check", "--from", "/nonexistent/case.json"], "--from"),
        (vec!["check", "--env", "X", "--", "vllm", "serve", "m"], "NAME=VALUE"),
    ] {
        let output = moetwin(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
}

#[test]
fn an_answer_takes_milliseconds() {
    let arguments = [BOX, &["--json", "--"], LAUNCH].concat();
    moetwin(&arguments);
    let begin = Instant::now();
    moetwin(&arguments);
    // 50 ms in release on an idle machine; tests run unoptimised beside each other.
    assert!(begin.elapsed().as_millis() < 2_000, "{:?}", begin.elapsed());
}
