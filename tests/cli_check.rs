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

/// The characters of the shown command under which carets stand.
fn marked(out: &str, starts_with: &str) -> String {
    let lines: Vec<&str> = out.lines().collect();
    let at = lines.iter().position(|l| l.trim_start().starts_with(starts_with)).expect("the command is shown");
    let marks = lines[at + 1..].iter().find(|l| l.contains('^')).expect("an argument is marked");
    lines[at].chars().zip(marks.chars()).filter(|(_, m)| *m == '^').map(|(c, _)| c).collect()
}

#[test]
fn an_argument_that_the_parser_refuses_is_a_verdict_with_the_parsers_words() {
    let serve = ["check", "--gpu", "H200", "--gpus", "8", "--", "python", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B"];
    for (given, under, words) in [
        (vec!["--tp"], "--tp", "expected one argument"),
        (vec!["--tp", "eight"], "--tp eight", "invalid int value: 'eight'"),
        (vec!["--quantization", "fp9"], "--quantization fp9", "invalid choice: 'fp9'"),
        (vec!["--trust-remote-code", "yes"], "yes", "unrecognized arguments: yes"),
    ] {
        let output = moetwin(&[&serve[..], &given].concat());
        let out = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{given:?}: {}", text(&output.stderr));
        assert_eq!(marked(&out, "python"), under, "{out}");
        assert!(out.contains(words), "{words} in\n{out}");
    }
}

#[test]
fn an_image_tag_sets_the_version_and_the_cuda_that_its_kernels_are_built_for() {
    let launch = "docker run --gpus all -e SGLANG_X=1 --ipc=host lmsysorg/sglang:v0.5.9-cu130 python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B";
    let output = moetwin(&["check", "--gpu", "B300", "--gpus", "8", "--json", "--", launch]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(value["version"].as_str(), Some("0.5.9"), "{value:#}");
    let builds = value["cuda"].as_array().expect("a list");
    let of = |cuda: &str| builds.iter().find(|b| b["cuda"] == cuda).expect("both builds are compared");
    assert_eq!((of("13.0")["given"].as_bool(), of("12.8")["given"].as_bool()), (Some(true), Some(false)), "{value:#}");
    assert_ne!(of("13.0")["says"], of("12.8")["says"], "SM103 differs between them");
}

#[test]
fn a_compose_file_is_read_as_it_is_pasted() {
    let compose = "services:\n  vllm:\n    image: vllm/vllm-openai:v0.11.0\n    environment:\n      - VLLM_USE_V1=1\n    command: >\n      --model Qwen/Qwen3-8B\n      --tensor-parallel-size 3\n";
    let output = moetwin(&["check", "--gpu", "H200", "--gpus", "8", "--json", "--", compose]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(output.status.code(), Some(1), "{value:#}");
    assert!(value["message"].to_string().contains("divisible"), "{value:#}");
}

#[test]
fn text_and_json_say_the_same() {
    for launch in [LAUNCH, &["vllm", "serve", "deepseek-ai/DeepSeek-V3", "-tp", "8"], &["vllm", "serve", "Qwen/Qwen3-8B", "--tp"]] {
        let shown = moetwin(&[BOX, &["--"], launch].concat());
        let json = moetwin(&[BOX, &["--json", "--"], launch].concat());
        assert_eq!(shown.status.code(), json.status.code());
        let (out, value) = (text(&shown.stdout), serde_json::from_slice::<serde_json::Value>(&json.stdout).expect("one object"));
        let flat = out.split_whitespace().collect::<Vec<_>>().join(" ");
        let message = value["message"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(&message), "{message} in\n{out}");
        for fix in value["fixes"].as_array().into_iter().flatten() {
            let words = fix["change"].as_str().or(fix["text"].as_str()).unwrap_or_default();
            assert!(flat.contains(words), "{words} in\n{out}");
        }
    }
}

#[test]
fn words_that_say_nothing_are_refused_as_flags() {
    for (flag, value, accepted) in [
        ("--gpu", "nonexist", "H200"),
        ("--gpu", "H2OO", "nearest: H200"),
        ("--engine-version", "foo", "2026-03"),
        ("--engine-version", "", "2026-03"),
        ("--cuda", "foo", "13.0"),
        ("--driver", "bar", "580"),
        ("--interconnect", "qux", "NVLink"),
    ] {
        let output = moetwin(&["check", flag, value, "--gpus", "8", "--", "vllm", "serve", "Qwen/Qwen3-235B-A22B-FP8"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flag} {value}: {}", text(&output.stdout));
        assert!(output.stdout.is_empty() && error.contains(flag) && error.contains(value) && error.contains(accepted), "{error}");
    }
    let sm = moetwin(&["check", "--gpu", "SM120", "--gpus", "1", "--", "vllm", "serve", "Qwen/Qwen3-8B"]);
    assert!(sm.status.code() != Some(2) && text(&sm.stdout).contains("'SM120' is in no table"), "{}", text(&sm.stdout));
}

/// The answer to a question in a file.
fn from_file(name: &str, question: &serde_json::Value) -> (Option<i32>, String, String) {
    let path = std::env::temp_dir().join(format!("moetwin-cli-check-{}-{name}.json", std::process::id()));
    std::fs::write(&path, question.to_string()).expect("the file is written");
    let output = moetwin(&["check", "--from", path.to_str().expect("a path"), "--json"]);
    std::fs::remove_file(&path).expect("it is there");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_file_that_contradicts_itself_is_refused_or_says_so() {
    let (code, _, error) = from_file("engines", &serde_json::json!({"command": "vllm serve x", "framework": "sglang"}));
    assert!(code == Some(2) && error.contains("is sglang") && error.contains("starts vLLM"), "{error}");
    let odd = serde_json::json!({
        "command": "vllm serve Qwen/Qwen3-8B", "model": "deepseek-ai/DeepSeek-R1", "framework_version": "foo", "colour": "red",
        "hardware": {"gpu": "nonexist", "count": 8, "cuda": "foo", "driver": "bar", "interconnect": "qux", "memory_gb": 80},
    });
    let (code, out, error) = from_file("odd", &odd);
    assert_eq!(code, Some(0), "{out}{error}");
    let value: serde_json::Value = serde_json::from_str(&out).expect("one object");
    let assumed = value["assumptions"].to_string();
    for words in [
        "'nonexist' is in no table",
        "CUDA 'foo'",
        "driver 'bar'",
        "'qux'",
        "memory_gb",
        "`colour`",
        "DeepSeek-R1",
        "foo: names no release",
    ] {
        assert!(assumed.contains(words), "{words} in {assumed}");
    }
    assert!(!assumed.contains("none is given"), "{assumed}");
}

#[test]
fn what_no_build_takes_does_not_start_and_what_a_build_may_take_is_a_warning() {
    let serve = ["check", "--gpu", "H200", "--gpus", "8", "--", "vllm", "serve", "Qwen/Qwen3-30B-A3B", "-tp", "4"];
    for (given, words) in [
        (["--quantization", "nonsense"], "nonsense"),
        (["--max-model-len", "-5"], "greater than or equal to -1"),
        (["--cpu-offload-gb", "-1"], "greater than or equal to 0"),
    ] {
        let output = moetwin(&[&serve[..], &given].concat());
        let out = text(&output.stdout);
        assert!(output.status.code() == Some(1) && out.contains("at parse") && out.contains(words), "{given:?}\n{out}");
    }
    for (given, code) in [(["--max-model-len", "-1"], 0), (["--quantization", "fp8_per_channel_dynamic"], 0), (["--unknown-flag", "3"], 0)]
    {
        let output = moetwin(&[&serve[..], &given].concat());
        let out = text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{given:?}\n{out}");
        if given[0] == "--unknown-flag" {
            let flat = out.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains("WARNING: only if this build accepts --unknown-flag"), "{out}");
            assert!(flat.contains("unrecognized arguments: --unknown-flag"), "{out}");
        }
    }
    let bare = moetwin(&["check", "--gpu", "H200", "--gpus", "8", "--", "python", "-m", "sglang.launch_server", "--tp", "3"]);
    assert!(bare.status.code() == Some(1) && text(&bare.stdout).contains("arguments are required: --model-path"));
}

#[test]
fn a_models_folder_is_read_and_an_open_quote_is_named() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-olmoe");
    let ask = |ranks: &str| moetwin(&["check", "--gpu", "H200", "--gpus", "8", "--", "vllm", "serve", folder, "-tp", ranks]);
    let three = ask("3");
    assert_eq!(three.status.code(), Some(1), "{}", text(&three.stdout));
    assert!(text(&three.stdout).contains("4 attention heads are not divisible by tensor-parallel size 3"), "{}", text(&three.stdout));
    let two = ask("2");
    assert_eq!(two.status.code(), Some(0), "{}", text(&two.stdout));
    let open = moetwin(&["check", "--gpu", "H200", "--", "vllm serve \"Qwen/Qwen3-30B-A3B -tp 4"]);
    assert!(open.status.code() == Some(2) && text(&open.stderr).contains("quote \" at byte 11"), "{}", text(&open.stderr));
    let dark = moetwin(&["check", "--gpu", "H200", "--gpus", "8", "--", "vllm", "serve", "nosuch/model", "-tp", "8"]);
    let first = text(&dark.stdout).lines().next().unwrap_or_default().to_owned();
    assert!(first.ends_with("starts, as far as is known"), "{first}");
}
