//! `moetwin collective` and `moetwin calibrate` as people and scripts meet them.

mod support;

use serde_json::Value;
use std::fs;
use support::{command, line, moetwin, scratch};

#[test]
fn the_table_has_the_layout_of_nccl_tests_and_moetwin_reads_it_back() {
    let run = line("collective --ranks 4 --sizes 8K,64K,1M --launch loop");
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let rows: Vec<Vec<&str>> = run.out.lines().filter(|l| !l.starts_with('#')).map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{}", run.out);
    for (row, bytes) in rows.iter().zip(["8192", "65536", "1048576"]) {
        assert_eq!((row[0], row[2], row[3], row[4]), (bytes, "float", "sum", "-1"));
    }
    // A prediction is a log: a fit to it has nothing to move.
    let folder = scratch("collective-log");
    let log = folder.join("log.txt");
    fs::write(&log, &run.out).unwrap();
    let from = format!("{},op=all_reduce,ranks=4", log.display());
    let fit = moetwin(&["calibrate", "--from", &from, "--json"]).json();
    assert_eq!((fit["fits"].as_bool(), fit["figures"].as_array().map(Vec::len)), (Some(true), Some(0)), "{fit}");
}

#[test]
fn the_json_has_what_scripts_rely_on() {
    let json = line("collective --json --op all_gather --ranks 8 --sizes 16384,16777216").json();
    assert_eq!((json["machine"].as_str(), json["op"].as_str()), (Some("8x-rtx-pro-6000-server"), Some("all_gather")));
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let figure = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
        assert_eq!(row["ranks"], 8);
        let algbw = figure("bytes") / figure("time_us") / 1e3;
        assert!((figure("algbw_gbs") / algbw - 1.0).abs() < 1e-9);
        assert!((figure("busbw_gbs") / algbw - 7.0 / 8.0).abs() < 1e-9);
        assert_eq!((row["algorithm"].as_str(), row["protocol"].is_string()), (Some("ring"), true));
    }
    // The same question has the same answer, byte for byte.
    assert_eq!(line("collective --json --explain 64K").out, line("collective --json --explain 64K").out);
}

#[test]
fn an_explanation_says_what_was_chosen_why_and_what_bounds_it() {
    let run = line("collective --machine 8x-rtx-pro-6000-dual-turin --explain 32K");
    for words in
        ["Chosen: ring simple", "0.1 GB/s", "latency + bytes / bandwidth", "It is bound by", "14 steps", "Figures used", "measured"]
    {
        assert!(run.out.contains(words), "no {words:?} in {}", run.out);
    }
    let json = line("collective --explain 1M --json").json();
    let steps = json["explain"]["steps"].as_array().unwrap();
    let sum: f64 = steps.iter().map(|step| step["us"].as_f64().unwrap()).sum();
    let whole = json["explain"]["row"]["time_us"].as_f64().unwrap();
    assert!((sum - whole).abs() < 1e-3 * whole, "{steps:?} of {whole}");
    assert!(json["explain"]["candidates"].as_array().is_some_and(|list| list.len() >= 4));
}

#[test]
fn skew_is_reported_apart() {
    let skewed = line("collective --json --ranks 4 --sizes 43008 --skew 0,0,0,170").json();
    let together = line("collective --json --ranks 4 --sizes 43008").json();
    let figure = |json: &Value, key: &str| json["rows"][0][key].as_f64().unwrap();
    assert_eq!(figure(&skewed, "arrival_skew_us"), 170.0);
    assert!((figure(&skewed, "transfer_us") + 170.0 - figure(&skewed, "time_us")).abs() < 1e-6);
    assert!(figure(&skewed, "transfer_us") <= figure(&together, "time_us") + 1e-6);
    assert!(line("collective --ranks 4 --sizes 43008 --skew 0,0,0,170").out.contains("skew"));
}

#[test]
fn a_trace_shows_every_transfer() {
    let folder = scratch("collective-trace");
    let path = folder.join("trace.json");
    let run = moetwin(&["collective", "--ranks", "4", "--sizes", "64K", "--trace", path.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}", run.err);
    let trace: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    // A ring of four: 6 steps of 4 transfers.
    assert_eq!(events.iter().filter(|event| event["cat"] == "transfer").count(), 24);
}

#[test]
fn bad_input_is_marked_and_what_is_accepted_named() {
    line("collective --op all_reduced").refused(&["'all_reduced'", "all_reduce", "alltoall"]);
    line("collective --ranks 9").refused(&["--ranks '9'", "1 to 8", "^"]);
    line("collective --ranks 0").refused(&["--ranks"]);
    line("collective --sizes 0").refused(&["'0'", "64K"]);
    line("collective --sizes 12X").refused(&["'12X'", "64K"]);
    line("collective --sizes 99999999999999999999").refused(&["--sizes"]);
    line("collective --library mpi").refused(&["'mpi'", "nccl, vllm, sglang, trtllm, one-shot"]);
    line("collective --launch later").refused(&["'later'", "graph, eager, loop"]);
    line("collective --protocol ll256").refused(&["'ll256'", "ll128"]);
    line("collective --nccl-graph best").refused(&["'best'", "detected, tuned"]);
    line("collective --machine nowhere").refused(&["--machine 'nowhere'", "8x-h200-sxm"]);
    line("collective --ranks 4 --skew 1,2").refused(&["--skew", "2 arrivals for 4 ranks"]);
    line("collective --skew -1").refused(&["--skew"]);
    line("collective --p2p off --algorithm one-shot").refused(&["--algorithm 'one-shot'", "peer access", "ring"]);
    line("collective --algorithm nvls").refused(&["--algorithm 'nvls'", "ring ll"]);
    line("collective --op alltoall --algorithm ring").refused(&["direct"]);
    line("collective --op alltoall --protocol ll128").refused(&["--protocol 'll128'", "ll, simple"]);
    // What NCCL_ALGO=Tree does to the logits' gather.
    line("collective --op all_gather --algorithm tree").refused(&[
        "no algorithm/protocol available",
        "NCCL_ALGO=allreduce:tree",
        "ring ll",
    ]);
    line("collective --trace no/such/folder/x.json").refused(&["--trace"]);
}

#[test]
fn calibrate_refuses_what_it_cannot_read_and_what_it_cannot_defend() {
    let folder = scratch("calibrate");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    // Without logs it measures the GPUs at hand; with no driver it says what is missing.
    let bare = command(&["calibrate"]).env("MOETWIN_CUDA_DRIVER", "/no/such/driver").output().unwrap();
    assert_eq!(bare.status.code(), Some(3), "{}", String::from_utf8_lossy(&bare.stderr));
    assert!(String::from_utf8_lossy(&bare.stderr).contains("CUDA"));
    line("calibrate --from no/such/log.txt").refused(&["--from 'no/such/log.txt'", "nccl-tests"]);
    let empty = write("empty.txt", "nothing here\n");
    moetwin(&["calibrate", "--from", &empty]).refused(&["no row of times"]);
    let silent = write("silent.txt", " 2 65536 128 30.83 0.01 0.01\n");
    moetwin(&["calibrate", "--from", &silent]).refused(&["op=all_reduce|"]);
    moetwin(&["calibrate", "--from", &format!("{silent},oops=1")]).refused(&["`oops`", "nccl-graph"]);
    moetwin(&["calibrate", "--from", &format!("{silent},op=all_reduce"), "--report"]).refused(&["--report", "at least two"]);
    let damaged = write("damaged.txt", " 2 65536 128 fast 0.01 0.01\n");
    moetwin(&["calibrate", "--from", &format!("{damaged},op=all_reduce")]).refused(&["line 1, column 14", "`fast`"]);
    let manifest = write("manifest.json", "[{\"file\": \"a.txt\", \"machine\": \"8x-other\", \"op\": \"all_reduce\"}]");
    moetwin(&["calibrate", "--from", &manifest]).refused(&["8x-other"]);
    // Times that no figures explain: large messages are free, small ones are not.
    let absurd = write("absurd.txt", " 8 8192 1 900.0 0 0\n 8 65536 1 2.0 0 0\n 8 1048576 1 700.0 0 0\n 8 67108864 1 3.0 0 0\n");
    let out = folder.join("machine.json");
    let run = moetwin(&["calibrate", "--from", &format!("{absurd},op=all_reduce"), "--json", "--out", out.to_str().unwrap()]);
    assert_eq!((run.code, run.json()["fits"].as_bool()), (1, Some(false)), "{}", run.err);
    assert!(!out.exists() && run.err.contains("nothing is written"));
}

#[test]
fn what_calibrate_would_not_obey_it_refuses() {
    line("calibrate --report --machine nonexist").refused(&["--machine 'nonexist'", "8x-l40s"]);
    line("calibrate --report --machine 2x-rtx-4090").refused(&["--machine '2x-rtx-4090'", "no shipped table"]);
    line("calibrate --report --out x.json").refused(&["--out", "--from"]);
    // What says what is measured on GPUs says nothing where none is.
    let log = "sim/data/nccl-tests/aic-gb200-reducescatter.txt";
    for flag in ["--model kimi-k2.5", "--layers 3", "--splits 1,2", "--batches 1", "--contexts 64", "--budget 9", "--tune", "--seed 1"] {
        let name = flag.split(' ').next().unwrap();
        line(&format!("calibrate --report {flag}")).refused(&[name, "no --report"]);
        line(&format!("calibrate --from {log} {flag}")).refused(&[name, "no --from"]);
    }
    line("calibrate --splits 1,ep1").refused(&["--splits", "ep1", "ep2 to ep64"]);
    line("calibrate --splits 65").refused(&["--splits", "65", "1 to 64"]);
    // Of one machine, what is known of it and of its GPUs.
    let all = line("calibrate --report --json").json();
    let one = line("calibrate --report --machine 8x-l40s --json").json();
    let machines = |json: &serde_json::Value| {
        let tables = json["collectives"].as_array().unwrap();
        tables.iter().map(|t| t["machine"].as_str().unwrap().to_owned()).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(machines(&all).len() > 5);
    assert_eq!(machines(&one).into_iter().collect::<Vec<_>>(), ["8x-l40s"]);
}

#[test]
fn a_fitted_machine_is_a_machine_file_that_says_where_its_figures_come_from() {
    let folder = scratch("calibrated");
    let out = folder.join("gb200.json");
    let from = "sim/data/nccl-tests/aic-gb200-reducescatter.txt";
    let words = ["calibrate", "--machine", "4x-gb200", "--from", from, "--out", out.to_str().unwrap()];
    let run = moetwin(&words);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.out.contains("fitted to 30 rows of 1 tables") && run.out.contains("Rows that fit worst"), "{}", run.out);
    let file = fs::read_to_string(&out).unwrap();
    assert!(!run.out.contains("collectives.kernel_ps") || file.contains(&format!("fitted to {from}")), "{file}");
    let again = moetwin(&["collective", "--machine", out.to_str().unwrap(), "--sizes", "1M", "--json"]);
    assert_eq!(again.code, 0, "{}", again.err);
}

#[test]
fn an_all_to_all_of_experts_raises_the_number_of_collectives() {
    let calls = |words: &str| {
        let json = line(&format!("sim --json {words}")).json();
        let classes = json["breakdown"].as_array().unwrap().clone();
        let exchanges =
            classes.iter().filter(|row| ["all_reduce", "all_to_all", "gather_scatter"].contains(&row["class"].as_str().unwrap()));
        exchanges.map(|row| row["calls"].as_f64().unwrap()).sum::<f64>()
    };
    let (tp, a2a) = (calls("--tp 8"), calls("--tp 8 --ep 8 --a2a flashinfer"));
    // Two all-reduces a layer, one for the embedding, the gather of the logits; then dispatch, combine, scatter and gather a layer of experts.
    assert!((122.0..=125.0).contains(&tp), "{tp}");
    assert!((240.0..=246.0).contains(&a2a), "{a2a}");
}
