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

/// Asserts that a command starts on a machine.
fn starts(machine: &str, command: &str) {
    let check = moetwin(&["check", "--machine", machine, "--json", "--", command]);
    assert_eq!(check.code, 0, "on {machine}: {command}: {}{}", check.out, check.err);
}

#[test]
fn launch_commands_are_what_check_accepts() {
    // Machine, further words; tight and ample memory, NVLink and not, every way of splitting.
    let sweeps = [
        ("8x-rtx-pro-6000-server", "--model kimi-k2.5 --tp 8 --dcp 1 --batches 1,64"),
        ("8x-rtx-pro-6000-server", "--model kimi-k2.5 --tp 8 --dp-attention 1 --batch 8 --objective throughput --slo-ms 40"),
        ("8x-rtx-pro-6000-server", "--model kimi-k2.5 --tp 8 --dp-attention 1 --dcp 1 --batch 4 --context 60000 --kv-dtype fp8"),
        ("8x-h200-sxm", "--model deepseek-v3 --tp 8 --dcp 1 --batch 64 --allreduce nccl --objective throughput"),
        ("8x-h200-sxm", "--model qwen3-30b-a3b --tp 4 --pp 2 --dcp 1 --batch 8 --graphs off"),
        ("2x-rtx-4090", "--model gpt-oss-20b --batch 16 --p2p off"),
        // A folder, and the configuration in one: engines take the folder, and the check reads what is in it.
        ("2x-rtx-4090", "--model tests/fixtures/tiny-qwen2-moe --batch 4 --context 16"),
        ("2x-rtx-4090", "--model tests/fixtures/tiny-glm4-moe/config.json --batch 4 --context 16"),
    ];
    for (machine, words) in sweeps {
        let json = line(&format!("sweep --machine {machine} {words} --json")).json();
        let mut commands = std::collections::BTreeSet::new();
        for row in json["rows"].as_array().unwrap() {
            for engine in ["sglang", "vllm"] {
                let (command, note) = (row[engine].as_str(), row[format!("{engine}_note")].as_str());
                assert!(command.is_some() || note.is_some_and(|n| !n.is_empty()), "{engine} has neither command nor reason: {row}");
                commands.extend(command.map(str::to_owned));
            }
        }
        assert!(!commands.is_empty(), "{machine} {words}: {json}");
        commands.iter().for_each(|command| starts(machine, command));
    }
}

#[test]
fn launches_carry_tuned_rings_and_the_engines_version() {
    let words = "sweep --machine 8x-h200-sxm --model qwen3-30b-a3b --tp 8 --ep 1 --dp-attention 1 --dcp 1 --batch 8";
    let json = line(&format!("{words} --nccl-graph tuned --engine vllm --engine-version 0.11.0 --json")).json();
    let row = &json["rows"][0];
    for engine in ["sglang", "vllm"] {
        let (command, note) = (row[engine].as_str().unwrap(), row[format!("{engine}_note")].as_str().unwrap());
        assert!(command.starts_with("NCCL_GRAPH_FILE=nccl-graph.xml "), "{command}");
        assert!(note.contains("nccl-graph.xml is a graph file of yours"), "{note}");
        assert_eq!(note.contains("vLLM 0.11.0"), engine == "vllm", "{note}");
        starts("8x-h200-sxm", command);
    }
    // Without them nothing of it is said.
    let plain = line(&format!("{words} --json")).json();
    assert!(!plain["rows"][0].to_string().contains("NCCL_GRAPH_FILE") && plain["rows"][0]["vllm_note"].is_null(), "{}", plain["rows"][0]);
}

#[test]
fn a_report_shows_the_commands_of_a_row_or_why_there_are_none() {
    let machine = "8x-rtx-pro-6000-server";
    let words = format!("sweep --machine {machine} --model kimi-k2.5 --tp 8 --dp-attention 1 --dcp 1 --batch 1");
    let report = line(&words).out;
    // The first has a peer all-reduce over PCIe, which no engine has on eight GPUs, and experts that vLLM cannot place.
    assert!(report.contains("--allreduce one-shot") && report.contains("The first as SGLang takes it\n"), "{report}");
    let flat = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("its own is NCCL's, which takes ") && flat.contains("The first as vLLM takes it: no command"), "{report}");
    for n in 1..=3 {
        let report = line(&format!("{words} --row {n}")).out;
        let commands: Vec<&str> =
            report.lines().map(str::trim).filter(|l| l.starts_with("python -m") || l.starts_with("vllm serve")).collect();
        assert!(!commands.is_empty(), "{report}");
        commands.iter().for_each(|command| starts(machine, command));
    }
    line(&format!("{words} --row 1000")).refused(&["--row '1000'", "accepted: 1 to "]);
}

#[test]
fn what_is_varied_is_said_once() {
    line(&format!("{SMALL} --batch 4")).refused(&["--batch", "--batches"]);
    line(&format!("{SMALL} --limit 0")).refused(&["--limit"]);
    line(&format!("{SMALL} --row 0")).refused(&["--row"]);
    let once = line(&format!("{SMALL} --json"));
    let twice = line(&format!("{SMALL},4,1 --json"));
    assert!(once.out == twice.out, "a batch that is named twice is tried twice");
}

#[test]
fn an_objective_that_nothing_meets_is_a_no() {
    assert_eq!(line(&format!("{SMALL} --slo-ms 0.0001")).code, 1);
    line(&format!("{SMALL} --slo-ms -1")).refused(&["'-1'", "--slo-ms", "accepted: milliseconds above 0"]);
}
