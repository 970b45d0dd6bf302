//! `moetwin compare`, on traces that the simulator wrote and a test declared measured.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use support::{line, moetwin, scratch};

const DEPLOYMENT: &str = "--machine 8x-h200-sxm --model qwen3-30b-a3b --tp 2 --batch 4 --context 512 --allreduce nccl";

/// A trace of the simulator in a folder.
fn simulated(folder: &Path) -> PathBuf {
    let file = folder.join("predicted.json");
    let run = line(&format!("sim {DEPLOYMENT} --trace {} --json", file.display()));
    assert_eq!(run.code, 0, "{}", run.err);
    file
}

/// The same as if GPUs had taken so many times as long for the ops of a name.
fn measured(predicted: &Path, op: &str, factor: f64, conditions: Value) -> PathBuf {
    let mut trace: Value = serde_json::from_str(&fs::read_to_string(predicted).unwrap()).unwrap();
    trace["otherData"]["origin"] = json!("measured");
    trace["otherData"]["captured"] = json!(true);
    trace["otherData"]["conditions"] = conditions;
    for event in trace["traceEvents"].as_array_mut().unwrap() {
        if event["name"] == op && event["ph"] == "X" {
            event["dur"] = json!(event["dur"].as_f64().unwrap() * factor);
        }
    }
    let file = predicted.with_file_name(format!("measured-{op}-{factor}.json"));
    fs::write(&file, trace.to_string()).unwrap();
    file
}

fn conditions() -> Value {
    json!({
        "model": "qwen3-30b-a3b", "tp": 2, "pp": 1, "dp_attention": 1, "ep": 1, "dcp": 1, "replicas": 1, "a2a": "none",
        "sequences": [[512, 1], [512, 1], [512, 1], [512, 1]], "gpu": "NVIDIA H200"
    })
}

#[test]
fn what_takes_longer_than_predicted_stands_first() {
    let folder = scratch("compare-worst");
    let predicted = simulated(&folder);
    let slower = measured(&predicted, "experts", 2.0, conditions());
    let (predicted, slower) = (predicted.to_str().unwrap(), slower.to_str().unwrap());
    let run = moetwin(&["compare", "--measured", slower, "--predicted", predicted, "--json"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let json = run.json();
    let rows = json["rows"].as_array().unwrap();
    let (first, last) = (&rows[0], &rows[rows.len() - 1]);
    assert_eq!((first["op"].as_str(), first["class"].as_str()), (Some("experts"), Some("experts")));
    let us = |row: &Value, key: &str| row[key].as_f64().unwrap();
    assert!((us(first, "measured_us") / us(first, "predicted_us") - 2.0).abs() < 1e-3);
    assert!((us(last, "measured_us") - us(last, "predicted_us")).abs() < 1e-6);
    assert_eq!(json["worst"][0], first["command"]);
    assert_eq!((json["unmatched"]["predicted"].as_u64(), json["unmatched"]["measured"].as_u64()), (Some(0), Some(0)));
    assert!(json["findings"].to_string().contains("bandwidth-bound"), "{}", json["findings"]);
    // The text says the same.
    let text = moetwin(&["compare", "--measured", slower, "--predicted", predicted]);
    assert!(text.out.contains("experts") && text.out.contains("-50 %") && text.out.contains("bandwidth-bound"), "{}", text.out);
}

#[test]
fn the_same_step_is_predicted_again_from_what_the_trace_says() {
    let folder = scratch("compare-again");
    let file = measured(&simulated(&folder), "nothing", 1.0, conditions());
    // Nothing was changed, so that every command is met exactly where the same machine is asked.
    let json = moetwin(&["compare", "--measured", file.to_str().unwrap(), "--routing", "uniform", "--json"]).json();
    assert_eq!(json["against"], "8x-h200-sxm");
    let row = |r: &Value| (r["predicted_us"].as_f64().unwrap() - r["measured_us"].as_f64().unwrap()).abs() < 1e-6;
    assert!(json["rows"].as_array().unwrap().iter().all(row));
    assert!(json["step"]["error"].as_f64().unwrap().abs() < 1e-6);
    // A slower link is seen in the collectives alone.
    let through_host = moetwin(&["compare", "--measured", file.to_str().unwrap(), "--routing", "uniform", "--p2p", "off", "--json"]).json();
    let off: Vec<&Value> = through_host["rows"].as_array().unwrap().iter().filter(|r| !row(r)).collect();
    assert!(!off.is_empty() && off.iter().all(|r| r["op"] == "all_reduce" || r["op"] == "all_gather"), "{off:?}");
    // The experts that tokens were seen to choose decide what is predicted: here all choose the same eight.
    let mut seen = conditions();
    let layers = (0..48).map(|l| (l.to_string(), json!((0..4).flat_map(|_| 0..8).collect::<Vec<i32>>())));
    seen["chosen"] = Value::Object(layers.collect());
    let file = measured(&simulated(&folder), "nothing", 1.0, seen);
    let json = moetwin(&["compare", "--measured", file.to_str().unwrap(), "--json"]).json();
    assert_eq!(json["distinct_experts"], 8.0);
    let experts = json["classes"].as_array().unwrap().iter().find(|c| c["class"] == "experts").unwrap();
    assert!(experts["predicted_us"].as_f64() < experts["measured_us"].as_f64(), "{experts}");
}

#[test]
fn one_rank_alone_gives_the_step_of_all() {
    let folder = scratch("compare-slice");
    let mut alone = conditions();
    alone["only_rank"] = json!(0);
    let file = measured(&simulated(&folder), "nothing", 1.0, alone);
    let json = moetwin(&["compare", "--measured", file.to_str().unwrap(), "--json"]).json();
    let deployments = json["slice"]["deployments"].as_array().unwrap();
    assert_eq!(deployments.len(), 3);
    let of = |i: usize, key: &str| deployments[i][key].as_f64().unwrap();
    for i in 0..3 {
        assert!((of(i, "compute_ms") + of(i, "collectives_ms") - of(i, "step_ms")).abs() < 1e-9);
    }
    // Through the host the same compute waits longer for its collectives; a slower memory scales the compute.
    assert!(
        of(1, "collectives_ms") > of(0, "collectives_ms") && (of(1, "compute_ms") - of(0, "compute_ms")).abs() < 0.05 * of(0, "compute_ms")
    );
    assert!(of(2, "compute_ms") > of(0, "compute_ms"));
}

#[test]
fn wrong_traces_are_refused() {
    let folder = scratch("compare-wrong");
    let predicted = simulated(&folder);
    let name = predicted.to_str().unwrap();
    line("compare").refused(&["--measured"]);
    moetwin(&["compare", "--measured", "no-such-file.json"]).refused(&["--measured", "is not a file that exists"]);
    moetwin(&["compare", "--measured", name]).refused(&["holds a prediction", "moetwin run --backend cuda --trace"]);
    moetwin(&["compare", "--measured", "Cargo.toml"]).refused(&["not JSON"]);
    let other = measured(&predicted, "nothing", 1.0, Value::Null);
    moetwin(&["compare", "--measured", other.to_str().unwrap()]).refused(&["does not say what it is of"]);
    let mut unknown = conditions();
    unknown["gpu"] = json!("Radeon");
    let other = measured(&predicted, "nothing", 1.0, unknown);
    moetwin(&["compare", "--measured", other.to_str().unwrap()]).refused(&[
        "--machine",
        "no built-in machine has GPUs like",
        "8x-h200-sxm",
    ]);
    let mut small = conditions();
    small["model"] = json!("no-such-model");
    let other = measured(&predicted, "nothing", 1.0, small);
    moetwin(&["compare", "--measured", other.to_str().unwrap()]).refused(&["no-such-model"]);
    // A trace of nothing that the prediction has.
    let mut empty: Value = serde_json::from_str(&fs::read_to_string(&predicted).unwrap()).unwrap();
    empty["otherData"]["origin"] = json!("measured");
    empty["traceEvents"] = json!([]);
    let file = folder.join("empty.json");
    fs::write(&file, empty.to_string()).unwrap();
    moetwin(&["compare", "--measured", file.to_str().unwrap(), "--predicted", name]).refused(&["different programs"]);
}

#[test]
fn what_needs_gpus_says_so() {
    line("run --trace x.json").refused(&["--trace", "--backend cuda"]);
    line("run --only-rank 0").refused(&["--only-rank", "--backend cuda --synthetic"]);
    line("run --no-prompt").refused(&["--no-prompt", "--backend cuda --synthetic"]);
    line("run --backend cuda --synthetic --no-prompt --dump x").refused(&["--no-prompt", "--dump"]);
    line("run --collective-delay 5").refused(&["--collective-delay", "--only-rank"]);
    line("run --backend cuda --synthetic --tp 2 --only-rank 2").refused(&["--only-rank", "0 to 1"]);
    line("run --backend cuda --synthetic --tp 2 --only-rank 0 --collective-delay -1").refused(&["--collective-delay", "0 to 1000000"]);
}

/// What `run --trace` writes goes into the report beside the prediction, from the file to the page.
#[test]
fn a_trace_of_ours_is_shown_beside_the_prediction() {
    let folder = scratch("compare-report");
    let file = measured(&simulated(&folder), "experts", 2.0, conditions());
    let page = folder.join("report.html");
    let run = line(&format!("sim {DEPLOYMENT} --report {} --measured {}", page.display(), file.display()));
    assert_eq!(run.code, 0, "{}", run.err);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("Predicted beside measured"), "no section of what was measured");
    // A report over the very trace is refused before anything is lost.
    let clash = moetwin(&["sim", "--report", file.to_str().unwrap(), "--measured", file.to_str().unwrap()]);
    clash.refused(&["--report", "names the file that --measured reads"]);
    line("sim --trace x.out --report ./x.out").refused(&["--report", "names the file that --trace writes"]);
    assert!(std::fs::read_to_string(&file).unwrap().contains("traceEvents"));
}
