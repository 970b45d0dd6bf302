//! `moetwin sim --requests` as scripts see it.

mod support;

use serde_json::Value;
use std::fs;
use support::{line, moetwin, scratch};

fn loads(words: &str) -> (Value, Vec<Value>) {
    let run = line(&format!("sim --json {words}"));
    assert!(run.code <= 1, "{words}: {}", run.err);
    let json = run.json();
    let loads = json["loads"].as_array().unwrap().clone();
    (json, loads)
}

fn figure(load: &Value, path: &str) -> f64 {
    path.split('.').fold(load, |v, key| &v[key]).as_f64().unwrap_or_else(|| panic!("{path} is no number: {load}"))
}

#[test]
fn one_user_sees_the_step_that_sim_predicts() {
    let (_, loads) = loads("--requests closed:1 --request-count 3 --prompt-tokens 1000 --output-tokens 49");
    let tpot = figure(&loads[0], "tpot_ms.p50");
    let step = line("sim --json --context 1024").json()["step_ms"].as_f64().unwrap();
    assert!((tpot / step - 1.0).abs() < 0.02, "{tpot} ms a token, a step is {step}");
    let prefill = line("sim --json --phase prefill --context 1000").json()["step_ms"].as_f64().unwrap();
    let ttft = figure(&loads[0], "ttft_ms.p50");
    assert!((ttft / prefill - 1.0).abs() < 0.05, "{ttft} ms to the first token, the prompt takes {prefill}");
    let seconds = 3.0 * (ttft + 48.0 * tpot) / 1e3;
    assert!((figure(&loads[0], "duration_s") / seconds - 1.0).abs() < 1e-6);
}

#[test]
fn more_users_get_more_tokens_and_wait_longer() {
    let (json, loads) = loads("--requests closed:1,4,16 --request-count 48 --output-tokens 64");
    for pair in loads.windows(2) {
        assert!(figure(&pair[0], "output_tokens_per_s") < figure(&pair[1], "output_tokens_per_s"));
        assert!(figure(&pair[0], "tpot_ms.p50") < figure(&pair[1], "tpot_ms.p50"));
    }
    assert!(json["starts"] == true && json["fits"] == true);
    let kv = &json["kv"];
    assert!(figure(kv, "gib_per_rank") + figure(kv, "other_gib_per_rank") <= figure(kv, "capacity_gib") + 1e-9);
    assert!(figure(kv, "tokens") > 16.0 * 1088.0);
}

#[test]
fn a_step_of_its_own_delays_the_others_more_than_a_part_of_theirs() {
    let words = "--requests open:2 --request-count 64 --prompt-tokens 4096 --output-tokens 128 --batching";
    let tpot = |kind: &str| figure(&loads(&format!("{words} {kind}")).1[0], "tpot_ms.p50");
    assert!(tpot("prompts-first") > tpot("mixed"));
    let by_default = loads(&words.replace(" --batching", " --engine vllm")).0["policy"]["batching"].clone();
    assert_eq!(by_default, "mixed");
}

#[test]
fn traces_are_read_and_what_no_pool_holds_is_refused() {
    let dir = scratch("requests-trace");
    let path = dir.join("trace.csv");
    fs::write(&path, "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00.0,500,10\n2026-01-01 00:00:30.5,100,5\n").unwrap();
    let run = moetwin(&["sim", "--json", "--requests", path.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}", run.err);
    let json = run.json();
    assert_eq!((json["loads"][0]["served"].as_u64(), json["loads"][0]["requests"].as_u64()), (Some(2), Some(2)));
    assert!(figure(&json["loads"][0], "idle_share") > 0.9);
    // With room for the activations of long steps, DeepSeek-V3 in FP8 leaves eight cards of 96 GiB a pool of fewer tokens than it has positions.
    let words = "--requests closed:1 --request-count 2 --model deepseek-v3 --tp 8 --step-tokens 65536 --output-tokens 8";
    let (json, _) = loads(&format!("{words} --prompt-tokens 100"));
    let pool = figure(&json["kv"], "tokens") as u64;
    assert!((1000..160_000).contains(&pool), "{pool}");
    let asked = |tokens: u64| line(&format!("sim {words} --prompt-tokens {tokens}"));
    let (fits, too_long) = (asked(pool - 8), asked(pool));
    assert_eq!((fits.code, fits.out.contains("were refused")), (0, false), "{}", fits.out);
    assert_eq!((too_long.code, too_long.out.contains("were refused")), (1, true), "{}", too_long.out);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let words = "sim --json --requests open:1 --request-count 32 --prompt-tokens 64-512 --output-tokens 8-32";
    let first = line(words);
    assert_eq!((first.code, &first.out), (0, &line(words).out));
    assert_ne!(first.out, line(&format!("{words} --seed 1")).out);
}

#[test]
fn text_and_json_agree() {
    let words = "--requests closed:2 --request-count 8 --output-tokens 16 --slo-ttft-ms 100000 --slo-tpot-ms 1000";
    let (json, loads) = loads(words);
    let text = line(&format!("sim {words}"));
    assert_eq!((text.code, text.err.as_str()), (0, ""));
    for key in ["output_tokens_per_s", "total_tokens_per_s"] {
        assert!(text.out.contains(&format!("{:.1}", figure(&loads[0], key))), "{key}\n{}", text.out);
    }
    assert_eq!(figure(&loads[0], "good_requests_per_s"), figure(&loads[0], "requests_per_s"));
    assert!(text.out.contains(&format!("{:.2} GiB a GPU", figure(&json["kv"], "gib_per_rank"))));
}

#[test]
fn what_cannot_be_is_refused_with_what_would_be_right() {
    let dir = scratch("requests-wrong");
    let path = dir.join("trace.csv");
    fs::write(&path, "arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,-5,5\n").unwrap();
    let file = path.to_str().unwrap();
    for (args, part) in [
        (vec!["--requests", file], "3, column 3"),
        (vec!["--requests", "nowhere.csv"], "closed:USERS"),
        (vec!["--requests", "open:0"], "open:2.5"),
        (vec!["--requests", "closed:1", "--batch", "4"], "--max-running"),
        (vec!["--max-running", "4"], "--requests"),
        (vec!["--slo-tpot-ms", "4"], "--requests"),
        (vec!["--requests", "open:0.00001"], "more than a month"),
        (vec!["--requests", "closed:1", "--context", "4"], "--prompt-tokens"),
        (vec!["--requests", "closed:1", "--phase", "prefill"], "trace"),
        (vec!["--requests", "closed:1", "--prompt-tokens", "9-5"], "smaller to the larger"),
        (vec!["--requests", "closed:1", "--prompt-tokens", "16000000"], "allows"),
        (vec!["--requests", "closed:1", "--slo-tpot-ms", "0"], "accepted: milliseconds above 0"),
        (vec!["--requests", "closed:1", "--trace", "x.json"], "one step"),
        (vec!["--requests", "closed:1", "--report", "x.html"], "one step"),
    ] {
        let run = moetwin(&[&["sim"], &args[..]].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{args:?}");
        assert!(run.err.contains(part), "{args:?}: {}", run.err);
    }
}

#[test]
fn where_nothing_fits_the_answer_is_no() {
    let run = line("sim --json --requests closed:1 --model gpt-oss-120b --machine 2x-rtx-4090");
    assert_eq!((run.code, run.json()["fits"].as_bool()), (1, Some(false)));
    assert!(line("sim --requests closed:1 --model gpt-oss-120b --machine 2x-rtx-4090").out.contains("It does not fit"));
}

#[test]
fn the_pool_holds_what_its_tokens_take() {
    for words in ["", "--machine 8x-h200-sxm --model qwen3-30b-a3b --tp 1 --replicas 8"] {
        let (json, _) = loads(&format!("--requests closed:1 --request-count 1 --max-running 16 {words}"));
        let kv = &json["kv"];
        // What a token takes of the fullest rank, from two steps of sixteen sequences.
        let pool = |context: u32| -> f64 {
            let sim = line(&format!("sim --json --batch 16 --context {context} {words}")).json();
            let ranks = sim["memory"]["per_rank"].as_array().unwrap().clone();
            let lines = ranks.iter().flat_map(|r| r["lines"].as_array().unwrap()).filter(|l| l["name"] == "KV pool");
            lines.map(|l| l["gib"].as_f64().unwrap()).fold(0.0, f64::max)
        };
        let a_token = (pool(4096) - pool(1024)) / (16.0 * 3072.0);
        let (holds, told) = (figure(kv, "tokens") * a_token, figure(kv, "gib_per_rank"));
        assert!((holds / told - 1.0).abs() < 1e-3, "{words}: its tokens take {holds} GiB of {told}");
    }
}

/// Prompts that an engine does not capture wait for the host, kernel by kernel.
#[test]
fn prompts_that_are_not_captured_are_launched_by_the_framework() {
    let ttft = |words: &str| {
        let load = "--model qwen3-30b-a3b --machine 8x-h200-sxm --tp 2 --requests closed:1 --request-count 1 --output-tokens 8";
        loads(&format!("{load} {words}")).1[0]["ttft_ms"]["mean"].as_f64().unwrap()
    };
    let sglang = |version: &str, tokens| ttft(&format!("--engine sglang --engine-version {version} --prompt-tokens {tokens}"));
    assert!(sglang("0.5.9", 256) > sglang("0.5.10", 256) * 1.2);
    let vllm = |tokens| ttft(&format!("--engine vllm --prompt-tokens {tokens}"));
    assert!(vllm(1024) > vllm(512) * 1.2);
    // The first length beyond, not only that of the next simulated point.
    assert!(vllm(520) > vllm(512) * 1.2);
    // What is asked for holds.
    let asked = |graphs: &str| ttft(&format!("--engine sglang --engine-version 0.5.9 --prompt-tokens 256 --graphs {graphs}"));
    assert!(asked("off") == sglang("0.5.9", 256) && asked("on") == sglang("0.5.10", 256));
    // One step says the same.
    let step = |words: &str| {
        line(&format!("sim --json --engine sglang --phase prefill --context 256 {words}")).json()["deployment"]["graphs"].clone()
    };
    assert_eq!((step("--engine-version 0.5.9"), step("--engine-version 0.5.10")), (false.into(), true.into()));
}
