//! vLLM's configuration, in its order (`EngineArgs.create_engine_config`, then `VllmConfig.__post_init__`).

use super::{Draft, Step};
use crate::backends;
use crate::finding::{Finding, Fix, Kind, Phase};
use crate::settings::{Speculative, Write};
use crate::version::Range;
use serde_json::Value;

const ARGS: &str = "vllm/engine/arg_utils.py, vllm/config (0.16.0)";

pub(super) const STEPS: &[Step] = &[
    Step { name: "parallel sizes", range: Range::ALL, source: ARGS, run: sizes },
    Step { name: "plain values", range: Range::ALL, source: ARGS, run: plain },
    Step {
        name: "all-to-all backend",
        range: Range::ALL,
        source: "vllm/config/parallel.py; vllm/distributed/device_communicators",
        run: a2a,
    },
    Step { name: "quantization", range: Range::ALL, source: "vllm/config/model.py _verify_quantization", run: quantization },
    Step { name: "speculative decoding", range: Range::ALL, source: "vllm/config/speculative.py", run: speculative },
    Step {
        name: "batched tokens and sequences",
        range: Range::ALL,
        source: "vllm/engine/arg_utils.py _set_default_max_num_seqs_and_batched_tokens_args",
        run: batch_defaults,
    },
    Step { name: "backends", range: Range::ALL, source: "vllm/platforms/cuda.py; vllm/model_executor/layers/fused_moe", run: choose },
    Step { name: "CUDA graphs", range: Range::ALL, source: "vllm/config/compilation.py", run: graphs },
    Step { name: "checks of combinations", range: Range::ALL, source: "vllm/config/parallel.py, vllm/config/vllm.py", run: check },
];

fn conflict(invariant: &str, message: impl Into<String>) -> Finding {
    Finding::fails(Phase::Parse, Kind::FlagConflict, invariant, message)
}

fn sizes(d: &mut Draft<'_>) {
    d.settings.tp = d.ranks("--tensor-parallel-size").unwrap_or(1);
    d.settings.pp = d.count("--pipeline-parallel-size").unwrap_or(1);
    d.settings.dp = d.count("--data-parallel-size").unwrap_or(1);
    d.settings.dcp = d.count("--decode-context-parallel-size").unwrap_or(1);
    d.settings.nodes = d.count("--nnodes").unwrap_or(1).max(d.hardware.nodes).max(1);
    // Every engine of a data-parallel group is one tensor-parallel group; without EP experts are split by width over all of them.
    let all = d.settings.tp * d.settings.dp;
    let ep = d.on("--enable-expert-parallel");
    d.settings.ep = if ep { all } else { 1 };
    d.settings.moe_tp = if ep { 1 } else { all };
    d.settings.dense_tp = d.settings.tp;
}

fn plain(d: &mut Draft<'_>) {
    d.settings.eplb = d.on("--enable-eplb");
    let eplb = d.json("--eplb-config");
    let redundant = eplb.as_ref().and_then(|v| v.get("num_redundant_experts")).and_then(Value::as_u64);
    d.settings.redundant_experts = redundant.and_then(|n| u32::try_from(n).ok()).or(d.count("--num-redundant-experts")).unwrap_or(0);
    d.settings.dtype = d.word("--dtype").unwrap_or("auto").to_owned();
    d.settings.kv_dtype = d.word("--kv-cache-dtype").unwrap_or("auto").to_owned();
    d.settings.fraction_given = d.number("--gpu-memory-utilization");
    d.settings.max_model_len = d.length("--max-model-len");
    d.settings.kv_cache_memory_bytes = d.length("--kv-cache-memory-bytes");
    d.settings.cpu_offload_gib = d.number("--cpu-offload-gb").unwrap_or(0.0);
    d.settings.page_size = d.count("--block-size").unwrap_or(16);
    d.settings.custom_all_reduce = !d.on("--disable-custom-all-reduce");
    let no_images =
        d.json("--limit-mm-per-prompt").is_some_and(|v| v.as_object().is_some_and(|o| o.values().all(|n| n == 0) && !o.is_empty()));
    d.settings.language_only = d.on("--language-model-only") || no_images;
    d.settings.without_videos = limit_of(d, "video") == Some(0);
    d.settings.disaggregation = d.json("--kv-transfer-config").and_then(|v| v.get("kv_role").and_then(Value::as_str).map(str::to_owned));
}

/// Items of a kind that a prompt may hold: `{"video": 0}`, or `video=0` of releases before 0.9.
fn limit_of(d: &Draft<'_>, kind: &str) -> Option<u64> {
    let text = d.word("--limit-mm-per-prompt")?;
    match d.json("--limit-mm-per-prompt") {
        Some(value) => value.get(kind).and_then(Value::as_u64),
        None => text.split([',', ' ']).find_map(|pair| pair.split_once('=').filter(|(name, _)| *name == kind)?.1.parse().ok()),
    }
}

fn a2a(d: &mut Draft<'_>) {
    let default = if d.settings.version.at_least("0.11.1") { "allgather_reducescatter" } else { "naive" };
    let given = d.word("--all2all-backend").or(d.settings.env("VLLM_ALL2ALL_BACKEND"));
    d.settings.a2a = given.unwrap_or(default).to_owned();
    d.settings.a2a_active = d.settings.ep > 1 && d.settings.dp > 1;
    if d.settings.has("--all2all-backend") && !d.settings.a2a_active {
        let why = if d.settings.ep > 1 { "data parallelism is 1" } else { "--enable-expert-parallel is not given" };
        d.settings.wrote("a2a", "none", format!("the all-to-all backend is used with expert and data parallelism only, and {why}"));
    }
}

fn quantization(d: &mut Draft<'_>) {
    let checkpoint = d.model.weights.checkpoint_method.clone();
    let given = d.word("--quantization").map(str::to_owned);
    d.settings.online_quantization =
        checkpoint.is_none() && given.as_deref().is_some_and(|g| matches!(g, "fp8" | "experts_int8" | "rtn" | "mxfp8" | "torchao"));
    d.settings.quantization = given.or(checkpoint);
}

fn speculative(d: &mut Draft<'_>) {
    let config = d.json("--speculative-config");
    let text = |key: &str| config.as_ref().and_then(|v| v.get(key)).and_then(Value::as_str).map(str::to_owned);
    let number = |key: &str| config.as_ref().and_then(|v| v.get(key)).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let method = text("method").or(d.word("--spec-method").map(str::to_owned));
    let model = text("model").or(d.word("--spec-model").map(str::to_owned));
    if config.is_none() && method.is_none() && model.is_none() {
        return;
    }
    let method = method.unwrap_or_else(|| if model.is_some() { "draft_model" } else { "mtp" }.to_owned());
    let tokens =
        number("num_speculative_tokens").or(d.count("--spec-tokens")).unwrap_or(d.model.mtp_layers.map_or(1, |n| n.clamp(1, 8) as u32));
    d.settings.speculative = Some(Speculative { method, steps: tokens, topk: 1, draft_tokens: tokens, draft_model: model });
}

fn batch_defaults(d: &mut Draft<'_>) {
    let large = d.hardware.memory_gib.is_some_and(|g| g >= 70.0) && !d.hardware.gpu.to_lowercase().contains("a100");
    let v1 = d.settings.version.at_least("0.8.0");
    let (tokens, seqs) = match (v1, large) {
        (true, true) => (8192, 1024),
        (true, false) => (2048, 256),
        (false, _) => (2048, 256),
    };
    // 0.8 had 256 sequences on every card; 0.9.2 has 1024 on an H100 (8.11 GiB of cache for Qwen3-235B at TP4, which 256 would not explain).
    let seqs = if d.settings.version.at_least("0.9.0") { seqs } else { 256 };
    d.settings.max_num_seqs_given = d.count("--max-num-seqs").is_some();
    d.settings.max_num_seqs = d.count("--max-num-seqs").unwrap_or(seqs);
    d.settings.max_batched_tokens = Some(d.length("--max-num-batched-tokens").unwrap_or(tokens));
}

fn choose(d: &mut Draft<'_>) {
    let attention = d.json("--attention-config").and_then(|v| v.get("backend").and_then(Value::as_str).map(str::to_owned));
    // The variable was removed in 0.14; before, it was the only way.
    let from_env = d.settings.env("VLLM_ATTENTION_BACKEND").filter(|_| !d.settings.version.at_least("0.14.0")).map(str::to_owned);
    let given = d.word("--attention-backend").map(str::to_owned).or(attention).or(from_env);
    d.settings.attention_backend = given.unwrap_or_else(|| {
        let choice = backends::vllm_attention(d.model, &d.settings, d.hardware);
        d.settings.writes.push(Write { field: "attention_backend", value: choice.name.to_owned(), by: choice.why.to_owned() });
        choice.name.to_owned()
    });
    let given = d.word("--moe-backend").filter(|b| *b != "auto").map(str::to_owned);
    d.settings.moe_backend = given.unwrap_or_else(|| {
        let choice = backends::vllm_moe(d.model, &d.settings, d.hardware);
        if d.model.moe {
            d.settings.writes.push(Write { field: "moe_backend", value: choice.name.to_owned(), by: choice.why.to_owned() });
        }
        choice.name.to_owned()
    });
    if !d.settings.has("--block-size") {
        let name = d.settings.attention_backend.to_uppercase();
        let page = if name.contains("CUTLASS_MLA") {
            128
        } else if name.contains("FLASHMLA") || name.contains("MLA_SPARSE") {
            64
        } else {
            16
        };
        d.settings.page_size = page;
    }
}

fn graphs(d: &mut Draft<'_>) {
    let config = d.json("--compilation-config");
    let field = |key: &str| config.as_ref().and_then(|v| v.get(key));
    let mode = field("cudagraph_mode").and_then(Value::as_str).unwrap_or_default().to_uppercase();
    let level = config.as_ref().and_then(Value::as_u64).or(field("level").and_then(Value::as_u64));
    let hybrid = d.settings.version.at_least("0.11.0");
    d.settings.graphs.enabled = !d.on("--enforce-eager") && mode != "NONE" && level != Some(0);
    let default = if hybrid { "FULL_AND_PIECEWISE" } else { "PIECEWISE" };
    let mode = if mode.is_empty() { default.to_owned() } else { mode };
    d.settings.graphs.piecewise = d.settings.graphs.enabled && mode.contains("PIECEWISE") && d.settings.version.at_least("0.8.0");
    // All-to-all kernels that cannot be captured switch graphs off.
    if d.settings.a2a_active && d.settings.a2a == "deepep_high_throughput" && d.settings.graphs.enabled {
        d.settings.graphs.enabled = false;
        d.settings.graphs.piecewise = false;
        d.settings.wrote("cudagraph_mode", "NONE", "deepep_high_throughput with data parallelism cannot be captured");
    }
    if !d.settings.graphs.enabled {
        return;
    }
    let spec = d.settings.speculative.as_ref().map_or(0, |s| s.draft_tokens);
    let tokens = d.settings.max_batched_tokens.unwrap_or(2048).min(u64::from(u32::MAX)) as u32;
    let default_max = (d.settings.max_num_seqs.saturating_mul(1 + spec).saturating_mul(2)).min(512).min(tokens);
    let given_max =
        d.count("--max-cudagraph-capture-size").or(field("max_cudagraph_capture_size").and_then(Value::as_u64).map(|n| n as u32));
    let max = given_max.unwrap_or(if d.settings.version.at_least("0.11.1") { default_max } else { 512.min(tokens) });
    let list = field("cudagraph_capture_sizes")
        .and_then(Value::as_array)
        .map(|a| a.iter().filter_map(Value::as_u64).map(|n| n as u32).collect::<Vec<_>>());
    let flag_list = d.word("--cudagraph-capture-sizes").map(|t| t.split([' ', ',']).filter_map(|n| n.parse().ok()).collect::<Vec<u32>>());
    let sparse = d.settings.version.at_least("0.11.1");
    let mut sizes: Vec<u32> = list.or(flag_list).unwrap_or_else(|| {
        let above = if sparse { (256..=512).step_by(16).collect::<Vec<u32>>() } else { (256..=512).step_by(8).collect() };
        [1, 2, 4].into_iter().chain((8..256).step_by(8)).chain(above).filter(|n| *n <= max).collect()
    });
    sizes.retain(|n| *n <= tokens);
    sizes.sort_unstable();
    sizes.dedup();
    d.settings.graphs.max_batch = max;
    d.settings.graphs.buckets = sizes;
}

fn check(d: &mut Draft<'_>) {
    let (tp, dp, ep) = (d.settings.tp, d.settings.dp, d.settings.ep);
    if d.settings.eplb && ep <= 1 {
        let why = if d.on("--enable-expert-parallel") { "there is one rank only" } else { "--enable-expert-parallel is not given" };
        let finding =
            conflict("eplb_needs_expert_parallelism", format!("--enable-eplb needs expert parallelism over more than one rank, and {why}"));
        d.findings.push(finding.argument("--enable-eplb").fix(Fix::switch("--enable-expert-parallel")).fix(Fix::remove("--enable-eplb")));
    }
    if d.settings.redundant_experts > 0 && !d.settings.eplb {
        let n = d.settings.redundant_experts;
        let finding = conflict("redundant_experts_need_eplb", format!("{n} redundant experts need --enable-eplb"));
        d.findings.push(finding.fix(Fix::switch("--enable-eplb")));
    }
    if d.settings.dcp > 1 && !tp.is_multiple_of(d.settings.dcp) {
        let message = format!("--decode-context-parallel-size {} must divide --tensor-parallel-size {tp}", d.settings.dcp);
        d.findings.push(
            Finding::fails(Phase::Parse, Kind::Divisibility, "tp_divisible_by_context_parallel", message)
                .argument("--decode-context-parallel-size"),
        );
    }
    if d.on("--enable-dbo") && !(d.settings.a2a_active && d.settings.a2a.starts_with("deepep")) {
        let message = format!(
            "--enable-dbo (micro-batching) works with the DeepEP all-to-all backends under data parallelism only, and it is {} with dp {dp}",
            d.settings.a2a
        );
        d.findings.push(conflict("micro_batching_needs_deepep", message).argument("--enable-dbo").fix(Fix::remove("--enable-dbo")));
    }
    let (seqs, tokens) = (u64::from(d.settings.max_num_seqs), d.settings.max_batched_tokens.unwrap_or(0));
    if d.settings.has("--max-num-batched-tokens") && d.settings.max_num_seqs_given && tokens < seqs {
        let message = format!("--max-num-batched-tokens {tokens} is below --max-num-seqs {seqs}: every running sequence needs a token");
        let finding = conflict("batched_tokens_cover_sequences", message).argument("--max-num-batched-tokens");
        d.findings.push(finding.fix(Fix::set("--max-num-batched-tokens", seqs)).fix(Fix::set("--max-num-seqs", tokens)));
    }
    if let Some(f) = d.settings.fraction_given.filter(|f| !(*f > 0.0 && *f <= 1.0)) {
        let finding = conflict("fraction_is_a_share", format!("--gpu-memory-utilization is a share above 0 and up to 1, and it is {f}"));
        d.findings.push(finding.argument("--gpu-memory-utilization").fix(Fix::set("--gpu-memory-utilization", 0.9)));
    }
    if let (Some(len), Some(most)) = (d.settings.max_model_len, d.model.max_positions) {
        let allowed =
            d.settings.env_on("VLLM_ALLOW_LONG_MAX_MODEL_LEN") || d.settings.has("--hf-overrides") || d.settings.has("--rope-scaling");
        // A table's figure is no ground for a refusal; the configuration's is.
        if len > most && !allowed && d.model.spec.is_some() && !d.model.source.starts_with("taken as") {
            let message = format!("--max-model-len {len} is above the model's {most} positions");
            let finding = conflict("max_model_len_within_positions", message).argument("--max-model-len");
            d.findings.push(finding.fix(Fix::set("--max-model-len", most)).fix(Fix::env("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")));
        }
    }
}
