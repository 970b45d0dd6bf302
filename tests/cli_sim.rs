//! `moetwin sim` and `moetwin graph` as scripts see them.

mod support;

use serde_json::Value;
use std::fs;
use support::{Run, line, moetwin, scratch};

fn number(value: &Value, path: &str) -> f64 {
    path.split('.').fold(value, |v, key| &v[key]).as_f64().unwrap_or_else(|| panic!("{path} is no number"))
}

fn tokens_per_s(words: &str) -> f64 {
    let run = line(&format!("sim --json {words}"));
    assert_eq!(run.code, 0, "{words}: {}", run.err);
    number(&run.json(), "tokens_per_s")
}

#[test]
fn the_default_is_the_origin_story() {
    let run = line("sim --json");
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let json = run.json();
    assert_eq!((json["model"].as_str(), json["machine"].as_str()), (Some("moonshotai/Kimi-K2.5"), Some("8x-rtx-pro-6000-server")));
    assert_eq!((json["starts"].as_bool(), json["fits"].as_bool(), json["deployment"]["tp"].as_u64()), (Some(true), Some(true), Some(8)));
    // 89.5 tok/s were measured on such a box; nothing here is fitted to it.
    let rate = number(&json, "tokens_per_s");
    assert!((89.5 * 0.75..89.5 * 1.25).contains(&rate), "{rate} tok/s");
    let step = number(&json, "step_ms");
    assert!((rate * step / 1000.0 - 1.0).abs() < 1e-9, "one token a step");
}

#[test]
fn the_documented_fields_are_there_and_add_up() {
    let json = line("sim --json").json();
    for key in [
        "schema",
        "seed",
        "digest",
        "model",
        "machine",
        "deployment",
        "starts",
        "fits",
        "step_ms",
        "tokens_per_s",
        "breakdown",
        "memory",
        "provenance",
        "warnings",
    ] {
        assert!(!json[key].is_null(), "{key}");
    }
    assert_eq!(json["digest"].as_str().unwrap().len(), 32);
    let rows = json["breakdown"].as_array().unwrap();
    let sum = |key: &str| rows.iter().map(|r| r[key].as_f64().unwrap()).sum::<f64>();
    assert!((sum("share") - 1.0).abs() < 1e-6 && (sum("ms") - number(&json, "step_ms")).abs() < 1e-6);
    assert!(rows.iter().all(|r| r["class"].is_string() && r["calls"].is_number()));
    let shares: f64 = ["measured", "interpolated", "modelled"].iter().map(|k| number(&json, &format!("provenance.{k}"))).sum();
    assert!((shares - 1.0).abs() < 1e-6);
    let per_rank = json["memory"]["per_rank"].as_array().unwrap();
    assert_eq!(per_rank.len(), 8 * 3);
    for entry in per_rank {
        let lines: f64 = entry["lines"].as_array().unwrap().iter().map(|l| l["gib"].as_f64().unwrap()).sum();
        assert!((lines - entry["total_gib"].as_f64().unwrap()).abs() < 1e-9);
        assert!(entry["total_gib"].as_f64().unwrap() <= number(&json, "memory.capacity_gib"));
    }
    assert!(json["warnings"][0].as_str().unwrap().contains("vision tower"));
}

#[test]
fn people_and_scripts_are_told_the_same() {
    let json = line("sim --json --batch 4").json();
    let text = line("sim --batch 4").out;
    // Long sentences are wrapped for people.
    let words = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown = |value: String| assert!(words(&text).contains(&words(&value)), "no {value:?} in\n{text}");
    shown(format!("{:.1} tok/s, {:.2} ms a step", number(&json, "tokens_per_s"), number(&json, "step_ms")));
    for row in json["breakdown"].as_array().unwrap() {
        let class = row["class"].as_str().unwrap().replace('_', " ");
        let line = text.lines().find(|l| l.trim_start().starts_with(&format!("{class}  "))).unwrap_or_else(|| panic!("no line of {class}"));
        assert!(line.contains(&format!("{:.3}", row["ms"].as_f64().unwrap())), "{line}");
    }
    let fullest = json["memory"]["per_rank"].as_array().unwrap().iter().map(|e| e["total_gib"].as_f64().unwrap()).fold(0.0, f64::max);
    shown(format!("{fullest:.2}"));
    shown("Starts  yes".into());
    shown("Fits    yes".into());
    shown(json["warnings"][0].as_str().unwrap().into());
    for assumption in json["assumptions"].as_array().unwrap() {
        shown(assumption.as_str().unwrap().chars().take(40).collect());
    }
}

#[test]
fn the_same_question_has_the_same_bytes_as_answer() {
    let folder = scratch("same");
    let ask = |name: &str| -> (Run, Vec<u8>) {
        let trace = folder.join(name);
        let run = moetwin(&["sim", "--batch", "2", "--routing", "zipf:1.1", "--seed", "7", "--json", "--trace", trace.to_str().unwrap()]);
        (run, fs::read(trace).unwrap())
    };
    let ((first, first_trace), (second, second_trace)) = (ask("a"), ask("b"));
    assert_eq!(first.out, second.out);
    assert_eq!(first_trace, second_trace);
    let trace: Value = serde_json::from_slice(&first_trace).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 1000);
    let other = line("sim --batch 2 --routing zipf:1.1 --seed 8 --json").json();
    assert_ne!(other["digest"], first.json()["digest"], "the seed is part of the question");
    assert_eq!(other["seed"], 8);
}

#[test]
fn what_costs_time_costs_time() {
    let base = tokens_per_s("");
    assert!(tokens_per_s("--graphs off") < base);
    assert!(tokens_per_s("--p2p off") < base);
    assert!(tokens_per_s("--context 65536") < base);
    assert!(tokens_per_s("--dp-attention 8") < base, "at batch 1 each rank reads all attention weights");
    assert!(tokens_per_s("--batch 8") > 2.0 * base);
    assert!(tokens_per_s("--machine 8x-h200-sxm") > base);
}

#[test]
fn two_shots_save_bytes_and_cost_a_barrier() {
    let rate = |batch: u32, shots: &str| {
        tokens_per_s(&format!("--machine 8x-h200-sxm --tp 8 --phase decode --batch {batch} --context 128 --allreduce {shots}"))
    };
    assert!(rate(1, "one-shot") > rate(1, "two-shot"), "a token: the barrier costs more than the bytes");
    assert!(rate(64, "two-shot") > rate(64, "one-shot"), "64 tokens: 900 KB are read by every rank from every other one");
}

#[test]
fn what_does_not_fit_is_a_no_with_the_line_and_the_bytes() {
    let run = line("sim --json --batch 64 --context 65536");
    assert_eq!(run.code, 1, "{}", run.err);
    let json = run.json();
    assert_eq!(json["fits"], false);
    let oom = &json["memory"]["out_of_memory"];
    assert_eq!((oom["line"].as_str(), oom["phase"].as_str()), (Some("KV pool"), Some("kv_alloc")));
    assert!(number(oom, "need_gib") > number(oom, "free_gib"));
    let served = json["batch_served"].as_u64().unwrap();
    assert!((1..64).contains(&served), "{served} of 64 sequences fit");
    let at = |batch: u64| line(&format!("sim --json --context 65536 --batch {batch}"));
    assert_eq!((at(served).code, at(served + 1).code), (0, 1), "it is the largest that fits");
    assert_eq!(at(served).json()["step_ms"], json["step_ms"]);
    let text = line("sim --batch 64 --context 65536");
    assert_eq!(text.code, 1);
    assert!(text.out.contains("Fits    NO") && text.out.contains("KV pool"), "{}", text.out);
    // Weights alone: nothing can be served, and nothing is invented.
    let run = line("sim --json --tp 2");
    let json = run.json();
    assert_eq!((run.code, json["step_ms"].is_null(), json["tokens_per_s"].is_null()), (1, true, true));
    assert_eq!(json["memory"]["out_of_memory"]["phase"], "load");
}

/// Without a flag that splits it, a model takes as many of the machine's GPUs as it can be cut over.
#[test]
fn the_default_split_is_one_that_the_model_allows() {
    let split = |model: &str| {
        let run = line(&format!("sim --json --machine 8x-h200-sxm --model {model}"));
        assert_eq!(run.code, 0, "{model}: {}", run.err);
        let json = run.json();
        let said = json["warnings"].as_array().unwrap().iter().any(|w| w.as_str().unwrap().contains("no split was asked for"));
        (json["deployment"]["tp"].as_u64().unwrap(), json["deployment"]["ep"].as_u64().unwrap(), said)
    };
    // 8 heads; 4 heads; 768 columns an expert in blocks of 128 that share a scale, which eight ranks share padded.
    assert_eq!(split("tests/fixtures/tiny-qwen3-moe"), (8, 1, false));
    assert_eq!(split("tests/fixtures/tiny-deepseek-v3"), (4, 1, true));
    assert_eq!(split("qwen3-30b-a3b-fp8"), (8, 1, false));
    // What was asked for is not replaced.
    line("sim --model tests/fixtures/tiny-deepseek-v3 --machine 8x-h200-sxm --tp 8").refused(&["--tp", "legal tp: 1, 2, 4"]);
}

/// `NAME.hf_quant_config.json` belongs to `NAME.json` as `hf_quant_config.json` belongs to `config.json`.
#[test]
fn a_quantization_file_is_found_beside_its_configuration() {
    let folder = scratch("quantization");
    let config = fs::read_to_string("tests/fixtures/tiny-qwen3-moe/config.json").unwrap();
    let path = folder.join("small.json");
    fs::write(&path, config).unwrap();
    let nvfp4 = || {
        let run = moetwin(&["sim", "--json", "--model", path.to_str().unwrap(), "--tp", "1"]);
        assert_eq!(run.code, 0, "{}", run.err);
        run.json()["warnings"].to_string().contains("nvfp4")
    };
    assert!(!nvfp4());
    let text = r#"{"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}"#;
    fs::write(folder.join("small.hf_quant_config.json"), text).unwrap();
    assert!(nvfp4());
}

#[test]
fn a_machine_can_be_taken_apart_and_put_together() {
    let folder = scratch("machine");
    let file = folder.join("mine.json");
    fs::write(&file, line("machine show 8x-rtx-pro-6000-server --json").out).unwrap();
    let built_in = line("sim --json").json();
    let from_file = moetwin(&["sim", "--json", "--machine", file.to_str().unwrap()]).json();
    assert_eq!(built_in, from_file);
}

#[test]
fn one_shot_sums_take_norms_with_them_in_the_graph_and_in_the_step() {
    let graph = |words: &str| line(&format!("graph --model qwen3-30b-a3b --tp 2 {words}"));
    let fused = |words: &str| graph(words).out.matches("= all_reduce_add_rms_norm{").count();
    assert_eq!((fused("--allreduce one-shot"), fused(""), fused("--allreduce one-shot --fuse-allreduce off")), (96, 0, 0));
    // Engines by default do not, and a prompt's sums are too large.
    assert_eq!((fused("--allreduce one-shot --engine sglang"), fused("--allreduce one-shot --phase prefill --context 4096")), (0, 0));
    assert!(
        !graph("--allreduce one-shot").err.contains("--allreduce decides how")
            && graph("--allreduce nccl").err.contains("--allreduce decides")
    );
    let where_ = "--machine 8x-h200-sxm --model qwen3-30b-a3b --tp 2 --allreduce one-shot";
    let step = |words: &str| line(&format!("sim {where_} {words} --json")).json()["step_ms"].as_f64().unwrap();
    assert!(step("") < step("--fuse-allreduce off"), "{} {}", step(""), step("--fuse-allreduce off"));
    let text = line(&format!("sim {where_}")).out;
    assert!(text.contains("norm fused"), "{text}");
}

#[test]
fn graphs_come_in_three_forms() {
    const SMALL: &str = "--model tests/fixtures/tiny-deepseek-v3 --tp 2";
    let text = line(&format!("graph {SMALL}"));
    assert!(text.out.starts_with("moetwin graph 1\n"), "{}", text.out);
    assert!(moetwin::models::text::parse(&text.out).is_ok());
    assert!(text.out.contains("all_reduce"));
    let dot = line(&format!("graph {SMALL} --format dot"));
    assert!(dot.out.starts_with("digraph") && dot.out.trim_end().ends_with('}'));
    let all = line(&format!("graph {SMALL} --format dot --layers all"));
    assert!(all.out.len() > dot.out.len());
    let json = line(&format!("graph {SMALL} --json")).json();
    assert_eq!(json["graph"]["nodes"].as_array().unwrap().len(), moetwin::models::text::parse(&text.out).unwrap().nodes.len());
    line(&format!("graph {SMALL} --json --format dot")).refused(&["--format 'dot'", "json"]);
    line(&format!("graph {SMALL} --layers kinds")).refused(&["--layers 'kinds'"]);
    let noted = line(&format!("graph {SMALL} --graphs off"));
    assert_eq!((noted.code, noted.out == text.out), (0, true));
    assert!(noted.err.contains("--graphs"), "{}", noted.err);
}

#[test]
fn models_and_machines_are_listed_and_shown() {
    let models = line("model list --json").json();
    let kimi = models["models"].as_array().unwrap().iter().find(|m| m["name"] == "kimi-k2.5").unwrap();
    assert_eq!(kimi["kv_bytes_per_token_bf16"], 70_272);
    assert!((kimi["weight_bytes"].as_f64().unwrap() / 1e9 - 594.2).abs() < 0.1);
    let shown = line("model show kimi-k2.5").out;
    assert!(shown.contains("70,272 B") && shown.contains("594.2 GB") && shown.contains("384 experts"), "{shown}");
    assert_eq!(line("model show moonshotai/Kimi-K2.5 --json").json()["model"]["layers"].as_array().unwrap().len(), 61);
    let machines = line("machine list --json").json();
    for machine in machines["machines"].as_array().unwrap() {
        let name = machine["name"].as_str().unwrap();
        assert!(line("machine list").out.contains(name));
        let shown = line(&format!("machine show {name}"));
        assert_eq!(shown.code, 0);
        assert!(shown.out.contains("Paths between GPUs"));
    }
    assert!(line("machine show 8x-rtx-pro-6000-server").out.contains("1597.0 GB/s"));
}
