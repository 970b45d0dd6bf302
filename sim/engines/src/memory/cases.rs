//! Launches whose memory was logged or argued in public threads, as tests of the ledger.

use super::{Answer, answer};
use crate::catalog::resolve;
use crate::finding::Phase;
use crate::hardware::read;
use crate::question::{Engine, HardwareText};
use crate::settings::{Graphs, Settings, Speculative};
use crate::version::Version;
use std::collections::BTreeMap;

/// A launch and what is known of it.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) engine: Engine,
    pub(super) version: &'static str,
    pub(super) model: &'static str,
    pub(super) gpu: &'static str,
    pub(super) count: u32,
    pub(super) memory_gib: f64,
    pub(super) links: &'static str,
    pub(super) change: fn(&mut Settings),
    pub(super) facts: &'static [(&'static str, f64)],
    /// Number, what was logged, tolerance.
    pub(super) logged: &'static [(&'static str, f64, f64)],
    pub(super) fails_at: Option<Phase>,
}

/// A launch with the engine's defaults for a large card, all GPUs in one tensor-parallel group.
pub(crate) fn settings(engine: Engine, version: &str, gpus: u32) -> Settings {
    let vllm = engine == Engine::Vllm;
    let max_batch = if vllm { 512 } else { super::sglang::defaults(Some(97_887.0), gpus).graph_max_batch };
    Settings {
        engine,
        version: Version::parse(engine, version),
        tp: gpus,
        pp: 1,
        dp: 1,
        dp_attention: false,
        ep: 1,
        moe_tp: gpus,
        dense_tp: gpus,
        dcp: 1,
        nodes: 1,
        a2a: "none".into(),
        a2a_active: false,
        deepep_mode: "auto".into(),
        eplb: false,
        redundant_experts: 0,
        attention_backend: String::new(),
        moe_backend: "auto".into(),
        quantization: None,
        online_quantization: false,
        dtype: "auto".into(),
        kv_dtype: "auto".into(),
        page_size: if vllm { 16 } else { 1 },
        fraction_given: None,
        max_model_len: None,
        max_num_seqs: if vllm { 1024 } else { 2048 },
        max_num_seqs_given: false,
        max_batched_tokens: Some(8192),
        max_prefill_tokens: 16_384,
        max_total_tokens: None,
        kv_cache_memory_bytes: None,
        cpu_offload_gib: 0.0,
        graphs: Graphs { enabled: true, piecewise: vllm, buckets: (1..=if vllm { 51 } else { 52 }).collect(), max_batch },
        speculative: None,
        disaggregation: None,
        custom_all_reduce: true,
        shared_experts_fusion: false,
        language_only: false,
        without_videos: false,
        flags: BTreeMap::new(),
        env: BTreeMap::new(),
        writes: Vec::new(),
        assumptions: Vec::new(),
    }
}

impl Case {
    pub(super) fn answer(&self) -> Answer {
        let facts = self.facts.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
        let model = resolve(self.model, "", &facts, None);
        let text = HardwareText {
            gpu: self.gpu.into(),
            count: Some(self.count),
            memory_gib: Some(self.memory_gib),
            interconnect: self.links.into(),
            ..HardwareText::default()
        };
        let mut settings = settings(self.engine, self.version, self.count);
        (self.change)(&mut settings);
        answer(&settings, &model, &read(&text))
    }
}

fn mtp(tokens: u32) -> Option<Speculative> {
    Some(Speculative { method: "mtp".into(), steps: tokens, topk: 1, draft_tokens: tokens, draft_model: None })
}

fn glm(s: &mut Settings) {
    s.fraction_given = Some(0.865);
    s.kv_dtype = "fp8".into();
    s.max_model_len = Some(202_752);
    s.max_num_seqs = 64;
    s.graphs.buckets = (1..=35).collect();
    s.moe_backend = "b12x".into();
}

const PRO: &str = "NVIDIA RTX PRO 6000 Blackwell (SM120)";
const GLM: &[(&str, f64)] = &[("layers", 78.0), ("bytes_per_token_layer_fp8", 788.0), ("experts", 256.0)];

pub(super) const LOGGED: &[Case] = &[
    Case {
        name: "GLM-5.1 NVFP4, vLLM, TP8",
        engine: Engine::Vllm,
        version: "custom build 2026-05-14 (upstream main)",
        model: "GLM-5.1-NVFP4-MTP",
        gpu: PRO,
        count: 8,
        memory_gib: 95.59,
        links: "PCIe Gen5, no NVLink",
        change: glm,
        facts: GLM,
        logged: &[("weights_gib_per_gpu", 55.67, 0.03), ("kv_gib_per_gpu", 19.55, 0.06), ("kv_tokens", 341_504.0, 0.06)],
        fails_at: None,
    },
    Case {
        name: "GLM-5.1 NVFP4, vLLM, TP8, three draft tokens",
        change: |s| {
            glm(s);
            s.speculative = mtp(3);
        },
        logged: &[("weights_gib_per_gpu", 56.62, 0.03), ("kv_tokens", 319_232.0, 0.08)],
        ..GLM_TP8
    },
    Case {
        name: "GLM-5.1 NVFP4, vLLM, TP8, context parallel 8",
        change: |s| {
            glm(s);
            s.dcp = 8;
        },
        logged: &[("kv_tokens", 2_720_768.0, 0.06)],
        ..GLM_TP8
    },
    Case {
        name: "GLM-5.1 NVFP4, vLLM, TP8, context parallel 8 and a draft at 0.82",
        change: |s| {
            glm(s);
            s.dcp = 8;
            s.fraction_given = Some(0.82);
            s.speculative = mtp(3);
        },
        logged: &[("kv_tokens", 1_952_256.0, 0.08)],
        ..GLM_TP8
    },
    Case {
        name: "MiniMax-M2.5 FP8, vLLM, TP4",
        engine: Engine::Vllm,
        version: "2026-02/03",
        model: "MiniMaxAI/MiniMax-M2.5",
        gpu: PRO,
        count: 4,
        memory_gib: 95.6,
        links: "PCIe Gen5, P2P",
        change: |s| s.max_model_len = Some(196_608),
        facts: &[],
        logged: &[("weights_gib_per_gpu", 53.75, 0.03), ("kv_bytes_per_token_per_gpu", 63_488.0, 0.0), ("kv_tokens", 399_424.0, 0.12)],
        fails_at: None,
    },
    Case {
        name: "Kimi-K2.5, vLLM, TP8, fp8 cache",
        engine: Engine::Vllm,
        version: "2026-02/03",
        model: "moonshotai/Kimi-K2.5",
        gpu: PRO,
        count: 8,
        memory_gib: 95.6,
        links: "PCIe Gen5, P2P",
        change: |s| {
            s.fraction_given = Some(0.93);
            s.kv_dtype = "fp8".into();
        },
        facts: &[],
        logged: &[("kv_tokens", 449_600.0, 0.15), ("kv_bytes_per_token_per_gpu", 35_136.0, 0.0)],
        fails_at: None,
    },
    Case {
        name: "Kimi-K2.5, vLLM, TP4",
        engine: Engine::Vllm,
        version: "2026-03 nightly",
        model: "moonshotai/Kimi-K2.5",
        gpu: PRO,
        count: 4,
        memory_gib: 95.6,
        links: "PCIe Gen5, no NVLink",
        change: |s| s.fraction_given = Some(0.95),
        facts: &[],
        logged: &[],
        fails_at: Some(Phase::Load),
    },
    Case {
        name: "DeepSeek-R1 FP8, SGLang, TP8",
        engine: Engine::Sglang,
        version: "2026",
        model: "deepseek-ai/DeepSeek-R1",
        gpu: "H200",
        count: 8,
        memory_gib: 139.8,
        links: "NVLink/NVSwitch",
        change: |s| {
            s.fraction_given = Some(0.82);
            s.max_batched_tokens = Some(32_768);
        },
        facts: &[],
        logged: &[("kv_tokens", 509_000.0, 0.05), ("kv_bytes_per_token_per_gpu", 70_272.0, 0.0)],
        fails_at: None,
    },
    Case {
        name: "DeepSeek-V4-Pro, SGLang, TP8 at 0.88",
        engine: Engine::Sglang,
        version: "deepseek-v4-hopper image (2026-07)",
        model: "deepseek-ai/DeepSeek-V4-Pro",
        gpu: "H200",
        count: 8,
        memory_gib: 140.4,
        links: "NVLink/NVSwitch",
        change: |s| s.fraction_given = Some(0.88),
        facts: &[],
        logged: &[("minimum_mem_fraction", 0.9113, 0.006), ("weights_gib_per_gpu", 125.65, 0.02)],
        fails_at: Some(Phase::KvAlloc),
    },
    Case {
        name: "DeepSeek-V4-Pro, SGLang, TP8 at 0.88 with its draft layer",
        engine: Engine::Sglang,
        version: "deepseek-v4-hopper image (2026-07)",
        model: "deepseek-ai/DeepSeek-V4-Pro",
        gpu: "H200",
        count: 8,
        memory_gib: 140.4,
        links: "NVLink/NVSwitch",
        change: |s| {
            s.fraction_given = Some(0.88);
            s.speculative = Some(Speculative { method: "EAGLE".into(), steps: 3, topk: 1, draft_tokens: 3, draft_model: None });
        },
        facts: &[],
        logged: &[("minimum_mem_fraction", 0.9335, 0.006)],
        fails_at: Some(Phase::KvAlloc),
    },
    Case {
        name: "Qwen3-Coder-480B FP8, vLLM, eight data-parallel engines",
        engine: Engine::Vllm,
        version: "0.10.1.dev101",
        model: "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
        gpu: "H20 (141 GB class)",
        count: 8,
        memory_gib: 139.8,
        links: "NVLink",
        change: |s| {
            s.tp = 1;
            s.dp = 8;
            s.ep = 8;
            s.moe_tp = 1;
            s.dense_tp = 1;
        },
        facts: &[],
        logged: &[("required_kv_gib", 62.0, 0.01), ("suggested_max_model_len", 205_728.0, 0.1)],
        fails_at: Some(Phase::KvAlloc),
    },
    Case {
        name: "gpt-oss-120b, vLLM, one H100",
        engine: Engine::Vllm,
        version: "0.11.0",
        model: "openai/gpt-oss-120b",
        gpu: "H100 80GB HBM3",
        count: 1,
        memory_gib: 79.6,
        links: "single GPU",
        change: |s| {
            s.fraction_given = Some(0.95);
            s.max_batched_tokens = Some(1024);
        },
        facts: &[("layers", 36.0), ("sliding_window", 128.0), ("sliding_layers", 18.0)],
        logged: &[("kv_gib_per_gpu", 2.25, 0.75), ("weights_gib_per_gpu", 66.0, 0.03)],
        fails_at: Some(Phase::KvAlloc),
    },
    Case {
        name: "gpt-oss-120b, vLLM 0.11.2, one H100, 85K context",
        engine: Engine::Vllm,
        version: "0.11.2",
        model: "openai/gpt-oss-120b",
        gpu: "H100 80GB",
        count: 1,
        memory_gib: 79.2,
        links: "single GPU",
        change: |s| {
            s.fraction_given = Some(0.97);
            s.max_num_seqs = 100;
            s.max_model_len = Some(87_040);
        },
        facts: &[],
        logged: &[("required_kv_gib", 3.0, 0.16)],
        fails_at: None,
    },
    Case {
        name: "gpt-oss-20b, vLLM, RTX 3090",
        engine: Engine::Vllm,
        version: "gptoss image (0.10.1 pre)",
        model: "openai/gpt-oss-20b",
        gpu: "RTX 3090 24GB (SM86)",
        count: 1,
        memory_gib: 23.6,
        links: "single GPU",
        change: |s| {
            s.max_batched_tokens = Some(2048);
            s.max_num_seqs = 256;
        },
        facts: &[],
        logged: &[("weights_gib_per_gpu", 12.88, 0.03)],
        fails_at: None,
    },
    Case {
        name: "DeepSeek-V3 in 16 bits, quantized online, SGLang",
        engine: Engine::Sglang,
        version: "0.4.1 (2025-01)",
        model: "<deepseek-v3-bf16>",
        gpu: "H200",
        count: 8,
        memory_gib: 139.72,
        links: "NVLink/NVSwitch",
        change: |s| s.quantization = Some("fp8".into()),
        facts: &[],
        logged: &[("peak_load_gib_per_gpu", 156.0, 0.03), ("final_weights_gib", 80.0, 0.04)],
        fails_at: Some(Phase::Load),
    },
    Case {
        name: "DeepSeek-V3 FP8, SGLang, attention data parallelism on 96 GB",
        engine: Engine::Sglang,
        version: "2025-03",
        model: "deepseek-ai/DeepSeek-V3",
        gpu: "H20 96GB",
        count: 8,
        memory_gib: 95.0,
        links: "NVLink",
        change: |s| {
            s.dp = 8;
            s.dp_attention = true;
            s.ep = 8;
            s.moe_tp = 1;
            s.a2a = "deepep".into();
            s.a2a_active = true;
            s.fraction_given = Some(0.8);
        },
        facts: &[],
        logged: &[],
        fails_at: Some(Phase::Load),
    },
    Case {
        name: "Qwen3.8-Flash-Next NVFP4, vLLM, GB10",
        engine: Engine::Vllm,
        version: "0.1.dev20073+g8e685d198",
        model: "nvidia/Qwen3.8-Flash-Next-NVFP4",
        gpu: "GB10 DGX Spark (SM121)",
        count: 1,
        memory_gib: 121.69,
        links: "single GPU, unified memory",
        change: |s| {
            s.fraction_given = Some(0.786);
            s.kv_dtype = "fp8".into();
            s.max_num_seqs = 4;
            s.max_model_len = Some(262_144);
            s.graphs.piecewise = false;
            s.graphs.buckets = vec![1, 2, 4, 8, 16, 24, 32];
            s.speculative = mtp(3);
            s.env.insert("VLLM_PLE_CPU_OFFLOAD".into(), "1".into());
        },
        facts: &[("checkpoint_gib", 123.62), ("weights_without_table_gib", 75.94)],
        logged: &[("weights_gib_per_gpu", 75.94, 0.01), ("budget_gib_per_gpu", 95.65, 0.001), ("kv_tokens", 804_247.0, 0.15)],
        fails_at: None,
    },
    Case {
        name: "gpt-oss-120b, vLLM nightly, GB10",
        engine: Engine::Vllm,
        version: "0.22.x nightly aarch64 (2026-06)",
        model: "openai/gpt-oss-120b",
        gpu: "GB10 (DGX Spark, SM121)",
        count: 1,
        memory_gib: 119.7,
        links: "unified memory",
        change: |s| s.fraction_given = Some(0.7),
        facts: &[],
        logged: &[],
        fails_at: Some(Phase::Load),
    },
    Case {
        name: "gpt-oss-120b, vLLM built with native kernels, GB10",
        engine: Engine::Vllm,
        version: "2026 (build with CUTLASS for 12.1a)",
        model: "openai/gpt-oss-120b",
        gpu: "GB10 DGX Spark (SM121)",
        count: 1,
        memory_gib: 121.7,
        links: "single GPU, unified memory",
        change: |s| s.fraction_given = Some(0.7),
        facts: &[],
        logged: &[("weights_gb_per_gpu", 61.0, 0.08)],
        fails_at: None,
    },
    Case {
        name: "gemma-4 26B, vLLM, GB10",
        engine: Engine::Vllm,
        version: "2026-06",
        model: "google/gemma-4-26B-A4B-it",
        gpu: "GB10 (DGX Spark, SM121)",
        count: 1,
        memory_gib: 119.0,
        links: "unified memory",
        change: |s| s.fraction_given = Some(0.7),
        facts: &[],
        logged: &[("weights_gib_per_gpu", 48.0, 0.03)],
        fails_at: Some(Phase::Warmup),
    },
    Case {
        name: "gemma-4 26B, vLLM, a discrete card",
        engine: Engine::Vllm,
        version: "2026-06",
        model: "google/gemma-4-26B-A4B-it",
        gpu: PRO,
        count: 1,
        memory_gib: 95.6,
        links: "single GPU",
        change: |s| s.fraction_given = Some(0.7),
        facts: &[],
        logged: &[],
        fails_at: None,
    },
    Case {
        name: "Qwen3.6-35B NVFP4, vLLM, two 16 GB cards in a pipeline",
        engine: Engine::Vllm,
        version: "0.25.1 (FlashInfer 0.6.1x)",
        model: "<Qwen3.6-35B-A3B-NVFP4>",
        gpu: "RTX 5070 Ti 16GB (SM120)",
        count: 2,
        memory_gib: 15.5,
        links: "PCIe",
        change: |s| {
            s.tp = 1;
            s.pp = 2;
            s.moe_tp = 1;
            s.dense_tp = 1;
            s.max_num_seqs = 256;
            s.max_model_len = Some(180_224);
            s.fraction_given = Some(0.92);
            s.moe_backend = "marlin".into();
        },
        facts: &[],
        logged: &[],
        fails_at: None,
    },
    Case {
        name: "DeepSeek-V4-Flash, vLLM, two RTX PRO 6000",
        engine: Engine::Vllm,
        version: "0.28.0",
        model: "deepseek-ai/DeepSeek-V4-Flash",
        gpu: PRO,
        count: 2,
        memory_gib: 95.6,
        links: "PCIe, topo NODE",
        change: |s| {
            s.kv_dtype = "fp8".into();
            s.max_model_len = Some(65_536);
        },
        facts: &[],
        logged: &[("weights_gib_per_gpu", 74.08, 0.03)],
        fails_at: None,
    },
    Case {
        name: "Kimi-K2.5, SGLang 0.5.9, FlashInfer all-to-all at the default fraction",
        engine: Engine::Sglang,
        version: "0.5.9",
        model: "moonshotai/Kimi-K2.5",
        gpu: PRO,
        count: 8,
        memory_gib: 95.6,
        links: "PCIe, no NVLink",
        change: |s| {
            s.ep = 8;
            s.moe_tp = 1;
            s.a2a = "flashinfer".into();
            s.a2a_active = true;
            s.graphs.max_batch = 128;
        },
        facts: &[],
        logged: &[("ep_minus_tp_gb_per_gpu", 5.43, 0.01), ("free_after_load_gib", 16.3, 0.03), ("mem_fraction_static", 0.7787, 0.0005)],
        fails_at: Some(Phase::KvAlloc),
    },
    Case {
        name: "Kimi-K2.5, SGLang 0.5.9, tensor parallelism",
        engine: Engine::Sglang,
        version: "0.5.9",
        model: "moonshotai/Kimi-K2.5",
        gpu: PRO,
        count: 8,
        memory_gib: 95.6,
        links: "PCIe, no NVLink",
        change: |_| {},
        facts: &[],
        logged: &[("free_after_load_gib", 21.7, 0.03), ("mem_fraction_static", 0.7715, 0.0005)],
        fails_at: None,
    },
];

const GLM_TP8: Case = Case {
    name: "",
    engine: Engine::Vllm,
    version: "custom build 2026-05-14 (upstream main)",
    model: "GLM-5.1-NVFP4-MTP",
    gpu: PRO,
    count: 8,
    memory_gib: 95.59,
    links: "PCIe Gen5, no NVLink",
    change: glm,
    facts: GLM,
    logged: &[],
    fails_at: None,
};
