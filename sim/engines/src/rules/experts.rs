//! Expert parallelism and its all-to-all backends.

use super::{Launch, Rule};
use crate::finding::{Finding, Fix, Kind, Outcome, Phase};
use crate::hardware::Interconnect;
use crate::question::Engine;
use crate::version::{Range, Version};

const SGL: Option<Engine> = Some(Engine::Sglang);
const VLLM: Option<Engine> = Some(Engine::Vllm);

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "deepep_needs_nvlink",
        engine: None,
        range: Range::ALL,
        source: "DeepEP dd758ca README: intranode kernels need NVLink, low latency needs IBGDA",
        check: deepep_links,
    },
    Rule {
        name: "deepep_has_kernels",
        engine: None,
        range: Range::ALL,
        source: "DeepEP dd758ca setup: SM90, or SM100 with SM90 PTX",
        check: deepep_architecture,
    },
    Rule {
        name: "deepep_low_latency_hidden_size",
        engine: None,
        range: Range::ALL,
        source: "DeepEP csrc/kernels/launch.cuh SWITCH_HIDDEN; pull request 329",
        check: hidden_size,
    },
    Rule {
        name: "low_latency_dispatch_bound",
        engine: SGL,
        range: Range::ALL,
        source: "DeepEP deep_ep.cpp: x.size(0) <= num_max_dispatch_tokens_per_rank; sglang's default is 128",
        check: dispatch_bound,
    },
    Rule {
        name: "captured_batch_within_dispatch_bound",
        engine: SGL,
        range: Range::ALL,
        source: "DeepEP deep_ep.cpp: x.size(0) <= num_max_dispatch_tokens_per_rank; sglang's default is 128",
        check: captured_bound,
    },
    Rule {
        name: "eplb_ranks_cover_nodes",
        engine: SGL,
        range: Range::until("0.4.10"),
        source: "sglang/srt/managers/eplb_algorithms: num_gpus % num_nodes == 0; pull request 8381",
        check: eplb_nodes,
    },
    Rule {
        name: "runner_understands_dispatch",
        engine: SGL,
        range: Range::until("20251028"),
        source: "sglang pull request 12231: flashinfer_trtllm bypasses top-k, DeepEP needs its output",
        check: bypassed_topk,
    },
    Rule {
        name: "shared_expert_fusion_widths",
        engine: SGL,
        range: Range::between("20260501", "20260628"),
        source: "sglang pull request 29580, baseline section",
        check: shared_fusion,
    },
    Rule {
        name: "eplb_supports_quantization",
        engine: VLLM,
        range: Range::ALL,
        source: "vllm FusedMoE: quant_method.supports_eplb; the WNA16 Marlin methods do not (0.16.0, pull request 40752 open)",
        check: eplb_quantization,
    },
    Rule {
        name: "mega_moe_needs_expert_parallelism",
        engine: VLLM,
        range: Range::ALL,
        source: "vllm/models/deepseek_v4/nvidia/model.py (0.24.0 to 0.33.0): MegaMoE currently requires expert parallel; earlier releases are assumed to do so",
        check: mega_moe,
    },
    Rule {
        name: "all_to_all_flag_is_used",
        engine: VLLM,
        range: Range::ALL,
        source: "vllm/model_executor/layers/fused_moe/config.py: use_all2all_kernels = dp_size > 1 and use_ep",
        check: unused_a2a,
    },
    Rule {
        name: "all_to_all_tokens_fit_graph",
        engine: SGL,
        range: Range::ALL,
        source: "sglang cuda_graph_runner: gathered buffers need tokens in multiples of attention ranks",
        check: padded_decode,
    },
    Rule {
        name: "collectives_per_forward",
        engine: SGL,
        range: Range::ALL,
        source: "sglang/srt/layers/communicator.py ScatterMode (0.5.9)",
        check: more_collectives,
    },
];

fn uses_deepep(launch: &Launch<'_>) -> bool {
    launch.settings.a2a_active && launch.settings.a2a.starts_with("deepep")
}

fn a2a_flag(launch: &Launch<'_>) -> &'static str {
    match launch.settings.engine {
        Engine::Sglang => "--moe-a2a-backend",
        Engine::Vllm => "--all2all-backend",
    }
}

/// Other all-to-all backends, as fixes.
fn other_backend(launch: &Launch<'_>, finding: Finding) -> Finding {
    let given =
        launch.command.given.iter().find(|g| matches!(g.name.as_str(), "--moe-a2a-backend" | "--all2all-backend" | "--enable-deepep-moe"));
    let finding = match given {
        Some(g) => finding.argument(&g.written).fix(Fix::remove(&g.written)),
        None => finding,
    };
    match launch.settings.engine {
        Engine::Vllm if launch.settings.env("VLLM_ALL2ALL_BACKEND").is_some() => {
            finding.fix(Fix::env("VLLM_ALL2ALL_BACKEND", "allgather_reducescatter"))
        }
        Engine::Vllm => finding.fix(Fix::set("--all2all-backend", "allgather_reducescatter")),
        Engine::Sglang => finding,
    }
}

fn deepep_links(launch: &Launch<'_>) -> Vec<Finding> {
    let pcie = launch.hardware.interconnect == Interconnect::Pcie;
    if !uses_deepep(launch) || launch.settings.a2a == "deepep_v2" || !pcie || launch.ranks_per_host() < 2 {
        return Vec::new();
    }
    let message = "DeepEP is unusable on a PCIe-only host: its normal mode needs NVLink between the GPUs, its low-latency mode a NIC with working IBGDA".to_owned();
    vec![other_backend(launch, Finding::fails(Phase::Init, Kind::P2p, "deepep_needs_nvlink", message))]
}

fn deepep_architecture(launch: &Launch<'_>) -> Vec<Finding> {
    let sm = launch.sm();
    if !uses_deepep(launch) || sm == 0 || (90..=103).contains(&sm) {
        return Vec::new();
    }
    let message = format!("DeepEP is built for SM90 (and SM100 through its PTX), and this is SM{sm}");
    vec![other_backend(
        launch,
        Finding::fails(Phase::Init, Kind::UnsupportedArch, "deepep_has_kernels", message).number("required_sm", 90.0),
    )]
}

/// Hidden sizes that the low-latency kernels are compiled for, and the day from which they are.
const HIDDEN: &[(u64, u32)] =
    &[(2560, 0), (4096, 0), (5120, 0), (7168, 0), (2048, 20250715), (6144, 20250815), (8192, 20250815), (3072, 20251001)];

fn compiled(hidden: u64, version: &Version) -> bool {
    HIDDEN.iter().any(|(size, since)| *size == hidden && version.since_day(*since))
}

fn hidden_size(launch: &Launch<'_>) -> Vec<Finding> {
    let low_latency = match launch.settings.engine {
        // `auto` decodes in low-latency mode.
        Engine::Sglang => launch.settings.a2a == "deepep" && launch.settings.deepep_mode != "normal",
        Engine::Vllm => launch.settings.a2a_active && launch.settings.a2a == "deepep_low_latency",
    };
    let Some(hidden) = launch.model.hidden.filter(|h| low_latency && !compiled(*h, &launch.settings.version)) else { return Vec::new() };
    let list: Vec<String> =
        HIDDEN.iter().filter(|(size, _)| compiled(*size, &launch.settings.version)).map(|(size, _)| size.to_string()).collect();
    let message = format!(
        "hidden size {hidden} is unsupported by DeepEP's low-latency kernels of this version, which are compiled for {} (high-throughput mode is not limited that way)",
        list.join(", ")
    );
    let phase = if launch.settings.engine == Engine::Sglang && launch.settings.graphs.enabled { Phase::GraphCapture } else { Phase::Init };
    let finding = Finding::fails(phase, Kind::Divisibility, "deepep_low_latency_hidden_size", message).number("hidden", hidden as f64);
    let finding = match launch.settings.engine {
        Engine::Vllm if launch.settings.env("VLLM_ALL2ALL_BACKEND").is_some() => {
            finding.fix(Fix::env("VLLM_ALL2ALL_BACKEND", "deepep_high_throughput"))
        }
        Engine::Vllm => finding.fix(Fix::set("--all2all-backend", "deepep_high_throughput")),
        Engine::Sglang => finding.fix(Fix::set("--deepep-mode", "normal")),
    };
    vec![other_backend(launch, finding).fix(Fix::words("a newer DeepEP that is compiled for this size"))]
}

fn dispatch_bound(launch: &Launch<'_>) -> Vec<Finding> {
    let s = launch.settings;
    if !matches!(s.a2a.as_str(), "deepep" | "mooncake") || s.deepep_mode != "low_latency" || s.disaggregation.as_deref() == Some("decode") {
        return Vec::new();
    }
    let limit: u64 = s.env("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK").and_then(|v| v.parse().ok()).unwrap_or(128);
    let chunk = s.max_batched_tokens.unwrap_or(s.max_prefill_tokens);
    if chunk <= limit {
        return Vec::new();
    }
    let message = format!(
        "--deepep-mode low_latency on a server that also prefills: a prefill chunk of up to {chunk} tokens per rank goes through low-latency dispatch, which takes {limit}; \
         any prompt above that fails"
    );
    let finding = Finding::fails(Phase::Serve, Kind::FlagConflict, "low_latency_dispatch_bound", message).outcome(Outcome::ServeFails);
    let finding =
        finding.argument("--deepep-mode").number("max_dispatch_tokens", limit as f64).number("chunked_prefill_tokens", chunk as f64);
    vec![finding.fix(Fix::set("--deepep-mode", "auto")).fix(Fix::set("--disaggregation-mode", "decode"))]
}

fn captured_bound(launch: &Launch<'_>) -> Vec<Finding> {
    let s = launch.settings;
    let given = s.has("--cuda-graph-max-bs") || s.has("--cuda-graph-bs");
    if s.a2a != "deepep" || s.deepep_mode == "normal" || !s.graphs.enabled || !given {
        return Vec::new();
    }
    let limit: u32 = s.env("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK").and_then(|v| v.parse().ok()).unwrap_or(128);
    let tokens = s.speculative.as_ref().map_or(1, |d| d.draft_tokens + 1);
    let Some(largest) = s.graphs.buckets.last().map(|b| b * tokens).filter(|n| *n > limit) else { return Vec::new() };
    let message = format!(
        "the largest captured batch has {largest} tokens per rank, and low-latency dispatch takes {limit} (SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK)"
    );
    let finding = Finding::fails(Phase::GraphCapture, Kind::FlagConflict, "captured_batch_within_dispatch_bound", message)
        .argument("--cuda-graph-max-bs");
    vec![
        finding
            .fix(Fix::set("--cuda-graph-max-bs", limit / tokens))
            .fix(Fix::env("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", &largest.to_string())),
    ]
}

fn eplb_nodes(launch: &Launch<'_>) -> Vec<Finding> {
    let (ep, nodes) = (launch.settings.ep, launch.settings.nodes);
    if !launch.settings.eplb || ep % nodes.max(1) == 0 {
        return Vec::new();
    }
    let message = format!(
        "--enable-eplb without expert parallelism: ep_size is {ep}, smaller than the {nodes} nodes among which the balancer divides it (num_gpus % num_nodes == 0 fails)"
    );
    let finding = Finding::fails(Phase::Init, Kind::MissingInit, "eplb_ranks_cover_nodes", message).argument("--enable-eplb");
    vec![finding.fix(Fix::switch("--enable-deepep-moe")).fix(Fix::set("--ep-size", launch.settings.tp)).fix(Fix::remove("--enable-eplb"))]
}

fn bypassed_topk(launch: &Launch<'_>) -> Vec<Finding> {
    let s = launch.settings;
    if !matches!(s.a2a.as_str(), "deepep" | "mooncake") || s.moe_backend != "flashinfer_trtllm" {
        return Vec::new();
    }
    let implicit = !s.has("--moe-runner-backend");
    let who = if implicit { "the implicit default runner flashinfer_trtllm" } else { "--moe-runner-backend flashinfer_trtllm" };
    let message = format!("{who} bypasses top-k, and the {} all-to-all backend needs its ids and weights: the two are incompatible", s.a2a);
    let finding =
        Finding::fails(Phase::GraphCapture, Kind::FlagConflict, "runner_understands_dispatch", message).argument("--moe-a2a-backend");
    vec![finding.fix(Fix::set("--moe-runner-backend", "deep_gemm"))]
}

fn shared_fusion(launch: &Launch<'_>) -> Vec<Finding> {
    let s = launch.settings;
    if !s.shared_experts_fusion || !launch.scheme(&["nvfp4"]) || !launch.class_is(&["GlmMoeDsa"]) || s.ep > 1 {
        return Vec::new();
    }
    let (packed, plain) = launch.model.hidden.map_or((0, 0), |h| (h / 2, h));
    let message = format!(
        "shape mismatch {packed} vs {plain} in the shared-expert fusion loader: the NVFP4 checkpoint stores the shared expert in another format than the routed ones, into which this \
         version fuses it by default"
    );
    let finding = Finding::fails(Phase::Load, Kind::FlagConflict, "shared_expert_fusion_widths", message);
    vec![finding.fix(Fix::switch("--disable-shared-experts-fusion"))]
}

fn eplb_quantization(launch: &Launch<'_>) -> Vec<Finding> {
    if !launch.settings.eplb || launch.settings.ep <= 1 || !launch.scheme(&["int4", "awq", "gptq"]) {
        return Vec::new();
    }
    let message =
        format!("--enable-eplb: the weight-only INT4 method ({}) does not support it (NotImplementedError)", launch.model.weights.method);
    let finding = Finding::fails(Phase::Load, Kind::FlagConflict, "eplb_supports_quantization", message).argument("--enable-eplb");
    vec![finding.fix(Fix::remove("--enable-eplb"))]
}

fn mega_moe(launch: &Launch<'_>) -> Vec<Finding> {
    let s = launch.settings;
    if s.moe_backend != "deep_gemm_mega_moe" || launch.on("--enable-expert-parallel") {
        return Vec::new();
    }
    let message = "--moe-backend deep_gemm_mega_moe dispatches, computes and combines in one kernel over expert-parallel ranks, and --enable-expert-parallel is not given".to_owned();
    let finding = Finding::fails(Phase::Load, Kind::FlagConflict, "mega_moe_needs_expert_parallelism", message).argument("--moe-backend");
    vec![finding.fix(Fix::switch("--enable-expert-parallel")).fix(Fix::remove("--moe-backend"))]
}

fn unused_a2a(launch: &Launch<'_>) -> Vec<Finding> {
    let s = launch.settings;
    if !s.has("--all2all-backend") || s.a2a_active {
        return Vec::new();
    }
    let why = if s.ep > 1 {
        "data parallelism is 1: experts are local and results are all-reduced"
    } else {
        "--enable-expert-parallel is not given: experts are split by width"
    };
    let message = format!("--all2all-backend has no effect: {why}");
    let finding = Finding::fails(Phase::Parse, Kind::FlagConflict, "all_to_all_flag_is_used", message);
    vec![finding.outcome(Outcome::Note).argument(a2a_flag(launch))]
}

fn padded_decode(launch: &Launch<'_>) -> Vec<Finding> {
    let s = launch.settings;
    let Some(smallest) = s.graphs.buckets.first().copied().filter(|b| s.a2a_active && !s.dp_attention && *b > 1 && s.graphs.enabled) else {
        return Vec::new();
    };
    let message = format!(
        "a decode step of one stream is padded to {smallest} tokens: with all-to-all backend {} and no attention data parallelism the tokens of a graph must fill all {} ranks",
        s.a2a,
        s.attention_tp()
    );
    vec![
        Finding::fails(Phase::Serve, Kind::Perf, "all_to_all_tokens_fit_graph", message)
            .outcome(Outcome::Note)
            .number("padded_tokens", f64::from(smallest)),
    ]
}

fn more_collectives(launch: &Launch<'_>) -> Vec<Finding> {
    let (s, m) = (launch.settings, launch.model);
    let Some(layers) = m.layers.filter(|_| m.moe && s.tp > 1) else { return Vec::new() };
    let dense = m.dense_layers.unwrap_or(0).min(layers);
    let plain = 2 * layers;
    if !s.a2a_active || s.dp_attention {
        return Vec::new();
    }
    let with = 4 * (layers - dense) + 2 * dense;
    let message = format!(
        "all-to-all backend {} replaces the {plain} all-reduces of a forward pass by {with} smaller collectives: reduce-scatter, dispatch, combine and all-gather in each MoE layer",
        s.a2a
    );
    vec![
        Finding::fails(Phase::Serve, Kind::Perf, "collectives_per_forward", message)
            .outcome(Outcome::Note)
            .number("collectives_per_forward", with as f64),
    ]
}
