//! `moetwin sweep`: every deployment, ranked.

mod support;

use std::fs;
use support::{line, moetwin, scratch};

const SMALL: &str = "sweep --machine 2x-rtx-4090 --model shakespeare-moe-int4 --context 64 --batches 1,4";

#[test]
fn rows_are_ranked_and_rejections_have_reasons() {
    let json = line(&format!("{SMALL} --json")).json();
    let rows = json["rows"].as_array().unwrap();
    let figure = |row: &serde_json::Value, name: &str| row[name].as_f64().unwrap();
    assert!(rows.len() > 4 && json["points"].as_u64().unwrap() as usize == rows.len() + json["rejected"].as_array().unwrap().len());
    assert!(rows.windows(2).all(|w| figure(&w[0], "token_ms") <= figure(&w[1], "token_ms")));
    assert!(json["rejected"].as_array().unwrap().iter().all(|r| !r["reason"].as_str().unwrap().is_empty()));
    // The first is on the front, and moetwin sim says the same of it.
    assert_eq!(rows[0]["pareto"], true);
    let sim =
        line(&format!("sim --machine 2x-rtx-4090 --model shakespeare-moe-int4 --context 64 {} --json", rows[0]["flags"].as_str().unwrap()));
    assert!((figure(&sim.json(), "step_ms") - figure(&rows[0], "step_ms")).abs() < 1e-6);
    let throughput = line(&format!("{SMALL} --objective throughput --json")).json();
    let rows = throughput["rows"].as_array().unwrap();
    assert!(rows.windows(2).all(|w| figure(&w[0], "tokens_per_s") >= figure(&w[1], "tokens_per_s")));
}

#[test]
fn a_sweep_goes_on_where_it_was_stopped() {
    let file = scratch("sweep").join("rows.jsonl");
    let path = file.to_str().unwrap();
    let words: Vec<&str> = SMALL.split(' ').chain(["--json", "--resume", path]).collect();
    let first = moetwin(&words);
    assert_eq!(first.code, 0, "{}", first.err);
    let whole = fs::read_to_string(&file).unwrap();
    // Stopped in the middle of a line.
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert!(moetwin(&words).out == first.out, "the answer differs");
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), whole.lines().count());
    // Rows of another question are not mixed in.
    let other: Vec<&str> = words.iter().copied().chain(["--kv-dtype", "fp8"]).collect();
    moetwin(&other).refused(&["--resume", "another question"]);
}

#[test]
fn launch_commands_are_what_check_accepts() {
    let json = line("sweep --machine 8x-h200-sxm --model qwen3-30b-a3b --tp 4 --replicas 1 --pp 2 --dcp 1 --batch 8 --json").json();
    let commands = json["rows"].as_array().unwrap().iter().flat_map(|r| [r["sglang"].as_str(), r["vllm"].as_str()]).flatten();
    let mut seen = 0;
    for command in commands {
        let words: Vec<&str> = ["check", "--json", "--"].into_iter().chain(command.split(' ')).collect();
        let check = moetwin(&words);
        let answer = check.json();
        assert_ne!(answer["phase"], "parse", "{command}: {}", answer["message"]);
        seen += 1;
    }
    assert!(seen > 2);
}

#[test]
fn an_objective_that_nothing_meets_is_a_no() {
    assert_eq!(line(&format!("{SMALL} --slo-ms 0.0001")).code, 1);
    line(&format!("{SMALL} --slo-ms -1")).refused(&["--slo-ms '-1'"]);
}
