//! `moetwin compare --trace`: profiles of other engines.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use support::{line, moetwin, scratch};

const FLAGS: &str = "--machine 8x-h200-sxm --model deepseek-v3 --batch 16 --context 2048";

/// A kernel as an engine would call it, from the class and op of our trace.
fn engine_name(class: &str, op: &str) -> &'static str {
    match (class, op) {
        ("embedding", _) => "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16>",
        ("elementwise", "rms_norm" | "add_rms_norm") => "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>",
        ("elementwise", "gated_activation") => "void vllm::act_and_mul_kernel<c10::BFloat16, vllm::silu_kernel>",
        ("elementwise", _) => "void at::native::vectorized_elementwise_kernel<4>",
        ("attention_core", _) => "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla>",
        ("router", "route") => "void vllm::moe::topkGating<8, 256, 4, 16, 32, int, float>",
        ("experts", _) => "fused_moe_kernel",
        ("head", "argmax") => "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>",
        ("head", "select_rows") => "void at::native::index_elementwise_kernel<128, 4>",
        ("all_reduce", _) => "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>",
        ("gather_scatter", _) => "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        _ => "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
    }
}

/// What torch's profiler would have written of an engine that takes exactly what is predicted, `times` a class as long.
fn profile(folder: &Path, name: &str, steps: usize, times: &dyn Fn(&str) -> f64) -> PathBuf {
    let ours = folder.join("ours.json");
    let mut words = vec!["sim", "--trace", ours.to_str().unwrap()];
    words.extend(FLAGS.split(' '));
    assert_eq!(moetwin(&words).code, 0);
    let trace: Value = serde_json::from_str(&fs::read_to_string(&ours).unwrap()).unwrap();
    let total = trace["otherData"]["total_us"].as_f64().unwrap();
    let mut events = Vec::new();
    for step in 0..steps {
        for e in trace["traceEvents"].as_array().unwrap() {
            let class = e["cat"].as_str().unwrap_or_default();
            if e["ph"] != "X" || e["tid"] == 0 || class == "wait" {
                continue;
            }
            let kernel = engine_name(class, e["name"].as_str().unwrap());
            let (ts, dur) = (e["ts"].as_f64().unwrap() + step as f64 * total, e["dur"].as_f64().unwrap() * times(class));
            events.push(json!({"ph": "X", "cat": "kernel", "name": kernel, "pid": e["pid"], "tid": e["tid"], "ts": ts, "dur": dur,
                "args": {"device": e["pid"], "stream": e["tid"], "context": 1, "correlation": 1}}));
        }
    }
    let file = folder.join(name);
    fs::write(
        &file,
        json!({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": events}).to_string(),
    )
    .unwrap();
    file
}

fn compare(file: &Path, more: &str) -> Value {
    let run = line(&format!("compare --trace {} {FLAGS} --json {more}", file.display()));
    assert_eq!(run.code, 0, "{}", run.err);
    run.json()
}

#[test]
fn an_engine_that_takes_what_is_predicted_is_found_to() {
    let folder = scratch("profile-same");
    let found = compare(&profile(&folder, "same.json", 4, &|_| 1.0), "");
    assert_eq!((found["measured"]["devices"].as_u64(), found["measured"]["gpus"][0].as_str()), (Some(8), Some("NVIDIA H200")));
    let step = &found["step"];
    let error = step["error"].as_f64().unwrap();
    assert!(error.abs() < 0.01, "{step}");
    let whole = 1e3 * step["predicted_ms"].as_f64().unwrap();
    for row in found["rows"].as_array().unwrap() {
        let off = row["difference_us"].as_f64().unwrap();
        assert!(off.abs() < 0.02 * whole, "{row}");
    }
    assert_eq!(found["worst"], json!([]));
}

#[test]
fn the_class_that_is_slow_is_named_first() {
    let folder = scratch("profile-slow");
    for slow in ["experts", "all_reduce", "attention_core"] {
        let found = compare(&profile(&folder, "slow.json", 3, &|class| if class == slow { 3.0 } else { 1.0 }), "");
        assert_eq!(found["worst"][0], slow, "{found}");
        assert!(found["findings"].as_array().unwrap().iter().any(|f| f.as_str().unwrap().starts_with(&slow.replace('_', " "))), "{found}");
    }
    let text = line(&format!("compare --trace {} {FLAGS}", folder.join("slow.json").display())).out;
    for words in ["Which part is slow", "attention core", "3 steps", "8 GPUs (NVIDIA H200)", "flash_fwd_splitkv_mla_kernel"] {
        assert!(text.contains(words) || words == "3 steps", "no {words}:\n{text}");
    }
}

#[test]
fn what_no_flag_said_of_a_profile_is_said() {
    let folder = scratch("profile-assumed");
    let file = profile(&folder, "same.json", 2, &|_| 1.0);
    let assumed = |flags: &str| {
        let run = line(&format!("compare --trace {} {flags}", file.display()));
        let json = line(&format!("compare --trace {} {flags} --json", file.display()));
        assert_eq!((run.code, json.code), (0, 0), "{}{}", run.err, json.err);
        let all = json.json()["assumed"].as_array().unwrap().clone();
        let words: Vec<String> = all.iter().map(|a| format!("{} {}", a["what"].as_str().unwrap(), a["value"].as_str().unwrap())).collect();
        let text = run.out.split("Which part").next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text.contains("Assumed"), !words.is_empty(), "{text}");
        words.iter().for_each(|w| assert!(text.contains(w), "{w}: {text}"));
        words
    };
    let none = assumed("");
    for words in ["model ", "machine 8x-h200-sxm", "split tp 8", "engine native", "batch 1", "context 1024"] {
        assert!(none.iter().any(|w| w.starts_with(words)), "{words}: {none:?}");
    }
    assert_eq!(assumed(&format!("{FLAGS} --ep 8 --engine vllm")), [""; 0]);
}

#[test]
fn one_step_alone_needs_to_be_told_and_wrong_files_are_named() {
    let folder = scratch("profile-wrong");
    let one = profile(&folder, "one.json", 1, &|_| 1.0);
    let words = format!("compare --trace {} {FLAGS}", one.display());
    line(&words).refused(&["--trace", "no step is found that repeats", "--steps N"]);
    assert!((compare(&one, "--steps 1")["step"]["error"].as_f64().unwrap()).abs() < 0.01);
    let text = fs::read(&one).unwrap();
    let cut = folder.join("cut.json");
    fs::write(&cut, &text[..text.len() / 2]).unwrap();
    line(&format!("compare --trace {}", cut.display())).refused(&["--trace", "ends too early", "line 1"]);
    line("compare --trace no-such-file.json").refused(&["--trace", "No such file"]);
    line("compare --trace README.md").refused(&["--trace", "header of nsys", "accepted: a trace of torch's profiler"]);
    line(&format!("compare --trace {} --spec eagle3:2", one.display())).refused(&["--spec", "--phase verify:N"]);
    // The right profile, and flags of another machine.
    let found = line(
        &format!("compare --trace {} --json --model deepseek-v3 --machine 8x-b200-sxm", one.display())
            .replace("--json", "--json --steps 1"),
    )
    .json();
    assert!(found["warnings"][0].as_str().unwrap().contains("has no such GPU"), "{found}");
}

#[test]
fn a_report_shows_both_sides() {
    let folder = scratch("profile-report");
    let file = profile(&folder, "slow.json", 3, &|class| if class == "experts" { 2.0 } else { 1.0 });
    let page = folder.join("report.html");
    let run = line(&format!("sim {FLAGS} --report {} --measured {}", page.display(), file.display()));
    assert_eq!(run.code, 0, "{}", run.err);
    let html = fs::read_to_string(&page).unwrap();
    for words in ["Predicted beside measured", "fused_moe_kernel", "steps of", "--measured"] {
        assert!(html.contains(words), "{words}");
    }
    line(&format!("sim {FLAGS} --measured {}", file.display())).refused(&["--report"]);
    line(&format!("sim --report {} --measured README.md", page.display())).refused(&["--measured", "header of nsys"]);
}

#[test]
fn the_example_of_the_help_runs() {
    let help = line("compare --help").out;
    let example = help.lines().map(str::trim).find(|l| l.contains("vllm.json.gz")).expect("an example");
    let found = line(&format!("{} --json", example.trim_start_matches("moetwin "))).json();
    assert_eq!((found["measured"]["devices"].as_u64(), found["measured"]["steps"].as_u64()), (Some(2), Some(6)));
    // The file was written with 180 us between its steps.
    let step = &found["step"];
    let idle = step["measured_ms"].as_f64().unwrap() - step["measured_busy_ms"].as_f64().unwrap();
    assert!((0.18..0.8).contains(&idle), "{step}");
    let rows = found["rows"].as_array().unwrap();
    assert!(rows.iter().all(|r| r["class"] != "other"), "{found}");
    // Every kernel of it has its class: 32 layers of two products of attention each, and one head with its choice.
    let calls = |class: &str| rows.iter().find(|r| r["class"] == class).map(|r| r["measured_calls"].as_f64().unwrap());
    assert_eq!(
        [calls("attention_projection"), calls("head"), calls("router"), calls("experts")],
        [64.0, 2.0, 96.0, 128.0].map(Some),
        "{found}"
    );
}
