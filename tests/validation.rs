//! Predictions are not made from what they are compared with.

mod support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::scratch;

/// Rust sources below a folder, as text.
fn sources(folder: &Path, out: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn no_source_of_the_program_names_the_measured_rows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    for folder in ["src", "models/src", "kernels/src", "runtime/src", "runtime/cuda/src", "sim/src", "sim/engines/src"] {
        sources(&root.join(folder), &mut all);
    }
    assert!(all.len() > 200, "{}", all.len());
    for (path, text) in all {
        assert!(!text.contains("measured-inference"), "{path}");
    }
}

#[test]
fn answers_are_the_same_where_the_measured_rows_are_not() {
    let without = scratch("without-rows");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(root.join("tests/data/measured-inference.csv").is_file() && !without.join("tests").exists());
    for words in [
        "",
        "--batch 64 --context 16384 --dcp 8 --kv-dtype fp8 --allreduce one-shot --engine vllm",
        "--machine 8x-h200-sxm --model deepseek-v3 --batch 16 --engine sglang",
        "--machine 8x-b200-sxm --model gpt-oss-120b --tp 4 --batch 8",
    ] {
        let ask = |folder: &Path| -> Value {
            let run = Command::new(env!("CARGO_BIN_EXE_moetwin"))
                .args(["sim", "--json"])
                .args(words.split_whitespace())
                .current_dir(folder)
                .output()
                .unwrap();
            serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{words}: {e}: {}", String::from_utf8_lossy(&run.stderr)))
        };
        let (here, there) = (ask(root), ask(&without));
        assert_eq!(here["digest"], there["digest"], "{words}");
        assert_eq!(here, there, "{words}");
    }
}
