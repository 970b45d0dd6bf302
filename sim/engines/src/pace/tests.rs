//! Measured launches, each within the spread that such figures have between boards.

use super::numbers;
use crate::catalog::resolve;
use crate::hardware::read;
use crate::memory::cases::settings;
use crate::question::{Engine, HardwareText};
use crate::settings::{Settings, Speculative};
use std::collections::BTreeMap;

const PRO: &str = "NVIDIA RTX PRO 6000 Blackwell (SM120)";

fn mtp(tokens: u32) -> Option<Speculative> {
    Some(Speculative { method: "mtp".into(), steps: tokens, topk: 1, draft_tokens: tokens, draft_model: None })
}

struct Measured {
    name: &'static str,
    engine: Engine,
    model: &'static str,
    gpu: &'static str,
    count: u32,
    links: &'static str,
    change: fn(&mut Settings),
    figures: &'static [(&'static str, f64, f64)],
}

const MEASURED: &[Measured] = &[
    Measured {
        name: "Qwen3.5-397B NVFP4, TP4",
        engine: Engine::Vllm,
        model: "nvidia/Qwen3.5-397B-A17B-NVFP4",
        gpu: PRO,
        count: 4,
        links: "PCIe Gen5 x16",
        change: |_| {},
        figures: &[("decode_tok_s_c1", 64.35, 107.25), ("decode_tok_s_c32", 424.2, 787.8)],
    },
    Measured {
        name: "Qwen3.5-397B NVFP4, TP4, two draft tokens",
        engine: Engine::Vllm,
        model: "nvidia/Qwen3.5-397B-A17B-NVFP4",
        gpu: PRO,
        count: 4,
        links: "PCIe Gen5 x16",
        change: |s| s.speculative = mtp(2),
        figures: &[("decode_tok_s_c1", 97.5, 162.5), ("decode_tok_s_c32", 645.4, 1198.6)],
    },
    Measured {
        name: "Qwen3.5-397B NVFP4, SGLang, TP4, NCCL",
        engine: Engine::Sglang,
        model: "Qwen3.5-397B-A17B-NVFP4",
        gpu: PRO,
        count: 4,
        links: "PCIe Gen5 x16 switch, P2P working",
        change: |s| s.custom_all_reduce = false,
        figures: &[("decode_tok_s_c1", 50.475, 84.125), ("ratio_to_nccl_c1", 1.05, 1.2), ("comm_share", 0.1, 0.5)],
    },
    Measured {
        name: "Kimi-K2.5, TP8",
        engine: Engine::Vllm,
        model: "moonshotai/Kimi-K2.5",
        gpu: PRO,
        count: 8,
        links: "PCIe Gen5, P2P",
        change: |_| {},
        figures: &[("decode_tok_s_c1", 70.0, 100.0), ("allreduce_count_per_step", 122.0, 122.0)],
    },
    Measured {
        name: "Kimi-K2.5, TP8, context parallel 8",
        engine: Engine::Vllm,
        model: "moonshotai/Kimi-K2.5",
        gpu: PRO,
        count: 8,
        links: "PCIe Gen5, P2P working",
        change: |s| s.dcp = 8,
        figures: &[("decode_tok_s_c1", 48.75, 81.25), ("ratio_p2p_to_no_p2p", 1.3, 1.7)],
    },
    Measured {
        name: "Kimi-K2.5, TP8, context parallel 8, no peer access",
        engine: Engine::Vllm,
        model: "moonshotai/Kimi-K2.5",
        gpu: PRO,
        count: 8,
        links: "PCIe Gen5, P2P off",
        change: |s| {
            s.dcp = 8;
            s.env.insert("NCCL_P2P_DISABLE".into(), "1".into());
        },
        figures: &[("decode_tok_s_c1", 33.0, 55.0)],
    },
    Measured {
        name: "GLM-5.1 NVFP4, TP8",
        engine: Engine::Vllm,
        model: "GLM-5.1-NVFP4-MTP",
        gpu: PRO,
        count: 8,
        links: "PCIe Gen5",
        change: |s| s.moe_backend = "b12x".into(),
        figures: &[("decode_tok_s_c1", 41.3, 76.7)],
    },
    Measured {
        name: "GLM-5.1 NVFP4, TP8, three draft tokens",
        engine: Engine::Vllm,
        model: "GLM-5.1-NVFP4-MTP",
        gpu: PRO,
        count: 8,
        links: "PCIe Gen5",
        change: |s| {
            s.moe_backend = "b12x".into();
            s.speculative = mtp(3);
        },
        figures: &[("decode_tok_s_c1", 66.92, 124.28)],
    },
    Measured {
        name: "GLM-5.1 NVFP4, TP8, context parallel 8",
        engine: Engine::Vllm,
        model: "GLM-5.1-NVFP4-MTP",
        gpu: PRO,
        count: 8,
        links: "PCIe Gen5",
        change: |s| {
            s.moe_backend = "b12x".into();
            s.dcp = 8;
        },
        figures: &[("decode_tok_s_c1", 34.79, 64.61)],
    },
    Measured {
        name: "GLM-5.1 NVFP4, TP8, context parallel 8, three draft tokens",
        engine: Engine::Vllm,
        model: "GLM-5.1-NVFP4-MTP",
        gpu: PRO,
        count: 8,
        links: "PCIe Gen5",
        change: |s| {
            s.moe_backend = "b12x".into();
            s.dcp = 8;
            s.speculative = mtp(3);
        },
        figures: &[("decode_tok_s_c1", 46.2, 85.8)],
    },
    Measured {
        name: "gpt-oss-120b, GB10",
        engine: Engine::Vllm,
        model: "openai/gpt-oss-120b",
        gpu: "GB10 DGX Spark (SM121)",
        count: 1,
        links: "single GPU, unified memory",
        change: |_| {},
        figures: &[("decode_tok_s_c1", 40.0, 85.0)],
    },
    Measured {
        name: "DeepSeek-V4-Flash, two GB10, two draft tokens",
        engine: Engine::Vllm,
        model: "deepseek-ai/DeepSeek-V4-Flash",
        gpu: "GB10 DGX Spark (SM121)",
        count: 2,
        links: "two hosts, 200G RoCE, unified memory",
        change: |s| s.speculative = mtp(2),
        figures: &[("decode_tok_s_c1", 25.09, 52.11)],
    },
    Measured {
        name: "Qwen3.8-Flash-Next FP8, four GA100 in a pipeline",
        engine: Engine::Vllm,
        model: "Qwen/Qwen3.8-Flash-Next-FP8",
        gpu: "CMP 170HX 64GB (GA100, SM80)",
        count: 4,
        links: "PCIe Gen2 x4, no NVLink",
        change: |s| {
            s.tp = 1;
            s.pp = 4;
            s.moe_tp = 1;
            s.dense_tp = 1;
        },
        figures: &[("decode_tok_s_c1", 40.0, 85.0)],
    },
    Measured {
        name: "Qwen3.5-397B NVFP4, TP2 PP2, CUTLASS experts",
        engine: Engine::Vllm,
        model: "nvidia/Qwen3.5-397B-A17B-NVFP4",
        gpu: PRO,
        count: 4,
        links: "PCIe",
        change: |s| {
            s.tp = 2;
            s.pp = 2;
            s.moe_tp = 2;
            s.dense_tp = 2;
            s.moe_backend = "flashinfer_cutlass".into();
        },
        figures: &[("decode_tok_s_c1", 30.0, 55.0)],
    },
    Measured {
        name: "Qwen3.6-35B NVFP4, two 16 GB cards in a pipeline",
        engine: Engine::Vllm,
        model: "<Qwen3.6-35B-A3B-NVFP4>",
        gpu: "RTX 5070 Ti 16GB (SM120)",
        count: 2,
        links: "PCIe",
        change: |s| {
            s.tp = 1;
            s.pp = 2;
            s.moe_tp = 1;
            s.dense_tp = 1;
            s.moe_backend = "marlin".into();
        },
        figures: &[("decode_tok_s_c1", 117.39, 243.81)],
    },
    Measured {
        name: "DeepSeek-V3, 8x H200: 10.3 ms a token at four streams",
        engine: Engine::Vllm,
        model: "deepseek-ai/DeepSeek-V3",
        gpu: "H200",
        count: 8,
        links: "NVLink/NVSwitch",
        change: |_| {},
        figures: &[("decode_tok_s_c1", 85.0, 130.0)],
    },
    Measured {
        name: "gpt-oss-120b, H200: 6.3 to 6.9 ms a token at four streams",
        engine: Engine::Vllm,
        model: "openai/gpt-oss-120b",
        gpu: "H200",
        count: 1,
        links: "single GPU",
        change: |_| {},
        figures: &[("decode_tok_s_c1", 140.0, 260.0)],
    },
    Measured {
        name: "GLM-4.6 FP8, 16 GB offloaded",
        engine: Engine::Vllm,
        model: "zai-org/GLM-4.6-FP8",
        gpu: "H100 80GB",
        count: 8,
        links: "NVLink/NVSwitch",
        change: |s| s.cpu_offload_gib = 16.0,
        figures: &[("decode_tok_s_c1", 0.5, 8.0)],
    },
    Measured {
        name: "DeepSeek-V4-Flash, two islands of A800",
        engine: Engine::Vllm,
        model: "deepseek-ai/DeepSeek-V4-Flash-0731",
        gpu: "A800 (SM80)",
        count: 8,
        links: "PCIe, two islands of four (PIX) bridged by the CPU interconnect",
        change: |_| {},
        figures: &[("comm_share", 0.5, 0.8)],
    },
];

#[test]
fn measured_rates_are_met() {
    let mut wrong = Vec::new();
    for case in MEASURED {
        let model = resolve(case.model, "", &BTreeMap::new(), None);
        let text =
            HardwareText { gpu: case.gpu.into(), count: Some(case.count), interconnect: case.links.into(), ..HardwareText::default() };
        let hardware = read(&text);
        let mut launch = settings(case.engine, "2026-03", case.count);
        (case.change)(&mut launch);
        let got = numbers(&launch, &model, &hardware);
        for &(name, low, high) in case.figures {
            let value = got.get(name).copied().unwrap_or(f64::NAN);
            if value.is_nan() || value < low || value > high {
                wrong.push(format!(
                    "{}: {name} {value:.3} not in {low}..{high}\n   {:?}",
                    case.name,
                    super::step(&launch, &model, &hardware, 1.0, None)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}
