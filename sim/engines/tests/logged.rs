//! Launches whose start-up logs are public: whole commands through the whole check, against what the engine printed.

use moetwin_engines::verdict::{Answer, check};
use moetwin_engines::{Engine, HardwareText, Phase, Question, Version, command};
use std::collections::BTreeMap;

struct Logged {
    gpu: &'static str,
    count: u32,
    links: &'static str,
    version: &'static str,
    command: &'static str,
    /// Number, what was logged, share by which it may differ.
    figures: &'static [(&'static str, f64, f64)],
    fails_at: Option<Phase>,
    source: &'static str,
}

const LOGGED: &[Logged] = &[
    Logged {
        gpu: "H100 80GB",
        count: 4,
        links: "NVLink",
        version: "0.4.9",
        command: "python3 -m sglang.launch_server --model Qwen/Qwen3-235B-A22B-FP8 --tp 4 --trust-remote-code --mem-fraction-static 0.93",
        figures: &[("kv_tokens", 367_404.0, 0.01), ("kv_gib_per_gpu", 16.46, 0.01)],
        fails_at: None,
        source: "https://github.com/vllm-project/vllm/issues/21348",
    },
    Logged {
        gpu: "H100 80GB",
        count: 8,
        links: "NVLink",
        version: "0.8.5",
        command: "vllm serve Qwen/Qwen3-235B-A22B --tensor-parallel-size 8",
        figures: &[("weights_gib_per_gpu", 54.9206, 0.005)],
        fails_at: None,
        source: "https://github.com/vllm-project/vllm/issues/18446",
    },
    Logged {
        gpu: "A10",
        count: 4,
        links: "PCIe",
        version: "0.8.5",
        command: "vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 4 --max-model-len 1024 --max-num-seqs 1",
        figures: &[("weights_gib_per_gpu", 14.2474, 0.005)],
        fails_at: None,
        source: "https://github.com/vllm-project/vllm/issues/17469",
    },
    Logged {
        gpu: "H100 80GB",
        count: 1,
        links: "single GPU",
        version: "0.10.1",
        command: "vllm serve openai/gpt-oss-120b",
        figures: &[("weights_gib_per_gpu", 65.9651, 0.005)],
        // "Available KV cache memory: -2.14 GiB".
        fails_at: Some(Phase::KvAlloc),
        source: "https://github.com/vllm-project/vllm/issues/23278",
    },
    Logged {
        gpu: "H100 80GB",
        count: 1,
        links: "single GPU",
        version: "0.14.1",
        command: "vllm serve openai/gpt-oss-120b --max-model-len 5120 --max_num_seqs 1 --gpu-memory-utilization 0.95",
        figures: &[("weights_gib_per_gpu", 64.38, 0.01)],
        fails_at: None,
        source: "https://github.com/vllm-project/vllm/issues/33155",
    },
    Logged {
        gpu: "RTX 5090",
        count: 1,
        links: "single GPU",
        version: "0.24.0",
        command: "vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --max-model-len 131072 --kv-cache-dtype fp8 --max-num-seqs 1 --max-num-batched-tokens 8192 \
                  --quantization modelopt --limit-mm-per-prompt {\"image\":2,\"audio\":0}",
        figures: &[("kv_gib_per_gpu", 5.98, 0.08), ("kv_tokens", 567_978.0, 0.03)],
        fails_at: None,
        source: "https://github.com/noonghunna/club-3090/issues/612",
    },
    Logged {
        gpu: "RTX 4090",
        count: 1,
        links: "single GPU",
        version: "0.22.0",
        command: "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.9764 --max-model-len 16384",
        figures: &[("kv_tokens", 46_368.0, 0.04), ("graph_estimate_gib", 0.52, 0.15)],
        fails_at: None,
        source: "https://github.com/LMCache/LMCache/issues/3430",
    },
    Logged {
        gpu: "H100 80GB",
        count: 1,
        links: "single GPU",
        version: "0.29.0",
        command: "vllm serve meta-llama/Meta-Llama-3-8B --gpu-memory-utilization 0.92",
        figures: &[("kv_gib_per_gpu", 56.21, 0.03)],
        fails_at: None,
        source: "a start-up log of 2026-10: 14.96 GiB of weights, a peak of 1.44, graphs of 0.23",
    },
    Logged {
        gpu: "DGX Spark GB10",
        count: 2,
        links: "two hosts, 200G RoCE, unified memory",
        version: "0.28.0",
        command: "vllm serve cyankiwi/MiniMax-M2.7-AWQ --tensor-parallel-size 2 --gpu-memory-utilization 0.8 --max-model-len 196608",
        figures: &[("required_kv_gib", 23.25, 0.001), ("graph_estimate_gib", 5.1, 0.05)],
        fails_at: None,
        source: "https://github.com/eugr/spark-vllm-docker/issues/396",
    },
];

fn answer(case: &Logged) -> Answer {
    let engine = command::engine_of(case.command).unwrap_or(Engine::Vllm);
    let question = Question {
        engine,
        version: Version::parse(engine, case.version),
        model: String::new(),
        hardware: HardwareText {
            gpu: case.gpu.to_owned(),
            count: Some(case.count),
            interconnect: case.links.to_owned(),
            ..HardwareText::default()
        },
        command: case.command.to_owned(),
        folder: None,
        env: BTreeMap::new(),
        model_facts: BTreeMap::new(),
        assumptions: Vec::new(),
    };
    check(&question).expect("the command can be read")
}

#[test]
fn public_logs_are_reproduced() {
    let mut wrong = Vec::new();
    for case in LOGGED {
        let answer = answer(case);
        for &(name, logged, share) in case.figures {
            let got = answer.numbers.get(name).copied().unwrap_or(f64::NAN);
            if got.is_nan() || (got / logged - 1.0).abs() > share {
                wrong.push(format!("{}: {name} {got:.4} of {logged} ({})", case.command, case.source));
            }
        }
        let phase = Some(answer.phase).filter(|_| !answer.invariant.is_empty());
        if phase != case.fails_at {
            wrong.push(format!("{}: {phase:?}, not {:?}: {}", case.command, case.fails_at, answer.message));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
