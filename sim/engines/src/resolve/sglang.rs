//! SGLang's argument post-processing, in its order (`ServerArgs.__post_init__`, then `check_server_args`).

use super::{Draft, Step};
use crate::backends;
use crate::finding::{Finding, Fix, Kind, Phase};
use crate::model::AttentionKind;
use crate::settings::Speculative;
use crate::version::Range;

const ARGS: &str = "sglang/srt/server_args.py (0.5.9)";

pub(super) const STEPS: &[Step] = &[
    Step { name: "parallel sizes as given", range: Range::ALL, source: ARGS, run: sizes },
    Step {
        name: "retired MoE switches",
        range: Range::until("0.5.2"),
        source: "sglang/srt/server_args.py (0.5.0): deprecated switches; that they went with 0.5.2 is assumed",
        run: retired,
    },
    Step { name: "plain values", range: Range::ALL, source: ARGS, run: plain },
    Step { name: "_handle_gpu_memory_settings: chunk and graph defaults", range: Range::ALL, source: ARGS, run: memory_defaults },
    Step { name: "_handle_model_specific_adjustments: quantization", range: Range::ALL, source: ARGS, run: quantization },
    Step { name: "_handle_model_specific_adjustments: backends", range: Range::ALL, source: ARGS, run: model_backends },
    Step { name: "_handle_data_parallelism", range: Range::ALL, source: ARGS, run: data_parallelism },
    Step {
        name: "_handle_moe_kernel_config",
        range: Range::since("0.5.2"),
        source: "sglang/srt/server_args.py 2236 (0.5.9); that it came with 0.5.2 is assumed",
        run: moe_kernel,
    },
    Step { name: "_handle_a2a_moe", range: Range::ALL, source: ARGS, run: a2a },
    Step {
        name: "_handle_a2a_moe: flashinfer needs full attention DP",
        range: Range::since("0.5.20"),
        source: "sglang/srt/arg_groups/moe_hook.py (0.5.23); not in 0.5.10, and 0.5.20 is assumed to be the first",
        run: flashinfer_needs_dp,
    },
    Step { name: "_handle_eplb_and_dispatch", range: Range::ALL, source: ARGS, run: eplb },
    Step { name: "_handle_speculative_decoding", range: Range::ALL, source: ARGS, run: speculative },
    Step { name: "graph batch sizes", range: Range::ALL, source: ARGS, run: graph_sizes },
    Step { name: "derived sizes", range: Range::ALL, source: "sglang/srt/distributed/parallel_state.py", run: derived },
    Step { name: "check_server_args", range: Range::ALL, source: "sglang/srt/server_args.py check_server_args", run: check },
];

fn conflict(invariant: &str, message: impl Into<String>) -> Finding {
    Finding::fails(Phase::Parse, Kind::FlagConflict, invariant, message)
}

fn sizes(d: &mut Draft<'_>) {
    d.settings.tp = d.ranks("--tp-size").unwrap_or(1);
    d.settings.pp = d.count("--pp-size").unwrap_or(1);
    d.settings.dp = d.count("--dp-size").unwrap_or(1);
    d.settings.ep = d.count("--ep-size").unwrap_or(1);
    d.settings.dcp = d.count("--dcp-size").unwrap_or(1);
    d.settings.nodes = d.count("--nnodes").unwrap_or(1);
    d.settings.dp_attention = d.on("--enable-dp-attention");
    // From 0.5.22 on attention data parallelism has a size of its own, and `--dp-size N --enable-dp-attention` is the older way to say it.
    if let Some(groups) = d.count("--attn-dp-size") {
        d.settings.dp = groups;
        d.settings.dp_attention = true;
    }
}

fn retired(d: &mut Draft<'_>) {
    if d.on("--enable-deepep-moe") {
        d.settings.a2a = "deepep".to_owned();
        d.settings.wrote("a2a", "deepep", "--enable-deepep-moe is the older name of --moe-a2a-backend deepep");
    }
    if d.on("--enable-ep-moe") {
        d.settings.ep = d.settings.tp;
        d.settings.wrote("ep", d.settings.tp, "--enable-ep-moe sets ep_size to tp_size");
    }
}

/// `configs/model_config.py`, `_derive_context_length`: a longer context than the model's raises unless a variable allows it. Releases before did so, or
/// only warned (0.4.8), as the variable's default was; between 0.4.8 and 0.5.23 it is not known here when that changed.
fn positions(d: &mut Draft<'_>) {
    let (Some(len), Some(most)) = (d.settings.max_model_len, d.model.max_positions) else { return };
    let allowed = d.settings.env_on("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
        || d.settings.has("--json-model-override-args")
        || !d.settings.version.at_least("0.5.23");
    // A table's figure is no ground for a refusal; the configuration's is.
    if len > most && !allowed && d.model.spec.is_some() && !d.model.source.starts_with("taken as") {
        let message = format!("--context-length {len} is above the model's {most} positions");
        let finding = conflict("max_model_len_within_positions", message).argument("--context-length");
        d.findings.push(finding.fix(Fix::set("--context-length", most)).fix(Fix::env("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")));
    }
}

fn plain(d: &mut Draft<'_>) {
    if let Some(backend) = d.word("--moe-a2a-backend") {
        d.settings.a2a = backend.to_owned();
    }
    d.settings.deepep_mode = d.word("--deepep-mode").unwrap_or("auto").to_owned();
    d.settings.eplb = d.on("--enable-eplb");
    d.settings.redundant_experts = d.count("--ep-num-redundant-experts").unwrap_or(0);
    d.settings.dtype = d.word("--dtype").unwrap_or("auto").to_owned();
    d.settings.kv_dtype = d.word("--kv-cache-dtype").unwrap_or("auto").to_owned();
    d.settings.fraction_given = d.number("--mem-fraction-static");
    d.settings.max_model_len = d.length("--context-length");
    positions(d);
    d.settings.max_total_tokens = d.length("--max-total-tokens");
    d.settings.max_prefill_tokens = d.length("--max-prefill-tokens").unwrap_or(16384);
    d.settings.cpu_offload_gib = d.number("--cpu-offload-gb").unwrap_or(0.0);
    d.settings.page_size = d.count("--page-size").unwrap_or(1);
    d.settings.max_num_seqs_given = d.count("--max-running-requests").is_some();
    d.settings.max_num_seqs = d.count("--max-running-requests").unwrap_or(2048);
    d.settings.disaggregation = d.word("--disaggregation-mode").filter(|m| *m != "null").map(str::to_owned);
    d.settings.custom_all_reduce = !d.on("--disable-custom-all-reduce");
    d.settings.shared_experts_fusion = !d.on("--disable-shared-experts-fusion");
    d.settings.language_only = d.on("--language-only") || d.on("--language-model-only");
    let disabled = d.word("--cuda-graph-backend-decode") == Some("disabled");
    d.settings.graphs.enabled = !d.on("--disable-cuda-graph") && !d.on("--disable-decode-cuda-graph") && !disabled;
    d.settings.graphs.piecewise = d.on("--enable-piecewise-cuda-graph");
}

/// Defaults by GPU memory: (below MiB, chunk of a prefill, largest captured batch with tp < 4 and with tp >= 4).
const BY_MEMORY: &[(f64, u64, u32, u32)] = &[
    (20.0, 2048, 8, 8),
    (35.0, 2048, 24, 80),
    (60.0, 4096, 32, 160),
    (90.0, 8192, 256, 512),
    (160.0, 8192, 256, 512),
    (f64::INFINITY, 16384, 512, 512),
];

fn memory_defaults(d: &mut Draft<'_>) {
    let (chunk, few, many) = match d.hardware.memory_gib {
        // The reported memory of a card is a little below its name; the limits are in Ki of MiB.
        Some(gib) => BY_MEMORY.iter().find(|(below, ..)| gib < *below).map_or((4096, 160, 160), |(_, c, f, m)| (*c, *f, *m)),
        None => (4096, 160, 160),
    };
    let chunk = match d.number("--chunked-prefill-size") {
        Some(n) if n <= 0.0 => None,
        Some(n) => Some(n as u64),
        None => Some(chunk),
    };
    d.settings.max_batched_tokens = chunk;
    let default = if d.settings.tp < 4 { few } else { many };
    let old = !d.settings.version.at_least("0.5.4");
    let default = if old && d.hardware.memory_gib.is_some_and(|g| g >= 35.0) { 160 } else { default };
    d.settings.graphs.max_batch = d.count("--cuda-graph-max-bs").unwrap_or(default);
}

fn quantization(d: &mut Draft<'_>) {
    let from_checkpoint = d.model.weights.checkpoint_method.clone();
    match d.word("--quantization").map(str::to_owned) {
        Some(given) => {
            d.settings.online_quantization =
                from_checkpoint.is_none() && matches!(given.as_str(), "fp8" | "mxfp8" | "w8a8_fp8" | "mxfp4" | "nvfp4_online");
            d.settings.quantization = Some(given);
        }
        None => {
            // The field of the arguments is written from the checkpoint on SM100 only; elsewhere the loader reads the checkpoint itself.
            // The effect on the weights is the same, the effect on the checks that follow is not.
            let early = d.sm() / 10 == 10 && d.class_is(&["Deepseek", "KimiK25", "Qwen3Moe", "Glm4Moe", "GlmMoeDsa", "GptOss"]);
            if let (true, Some(method)) = (early, from_checkpoint) {
                d.settings.wrote("quantization", &method, "the SM100 branch of the model adjustments reads it from the checkpoint");
                d.settings.quantization = Some(method);
            }
        }
    }
}

fn model_backends(d: &mut Draft<'_>) {
    let given = d.word("--moe-runner-backend").map(str::to_owned);
    d.settings.moe_backend = given.filter(|b| b != "auto").unwrap_or_else(|| {
        let choice = backends::sglang_moe(d.model, &d.settings, d.hardware);
        if d.model.moe {
            d.settings.writes.push(crate::settings::Write {
                field: "moe_backend",
                value: choice.name.to_owned(),
                by: choice.why.to_owned(),
            });
        }
        choice.name.to_owned()
    });
    let given = d.word("--attention-backend").or(d.word("--decode-attention-backend")).map(str::to_owned);
    d.settings.attention_backend = given.unwrap_or_else(|| {
        let choice = backends::sglang_attention(d.model, &d.settings, d.hardware);
        d.settings.writes.push(crate::settings::Write {
            field: "attention_backend",
            value: choice.name.to_owned(),
            by: choice.why.to_owned(),
        });
        choice.name.to_owned()
    });
    let page = match d.settings.attention_backend.as_str() {
        "flashmla" => Some(64),
        "cutlass_mla" => Some(128),
        "trtllm_mla" | "trtllm_mha" | "nsa" | "dsa" => Some(64),
        _ => None,
    };
    if let Some(page) = page.filter(|p| !d.settings.page_size.is_multiple_of(*p)) {
        d.settings.page_size = page;
        d.settings.wrote("page_size", page, format!("attention backend {}", d.settings.attention_backend));
    }
}

fn data_parallelism(d: &mut Draft<'_>) {
    if d.settings.dp == 1 && d.settings.dp_attention {
        d.settings.dp_attention = false;
        d.settings.wrote("dp_attention", "off", "--dp-size is 1");
    }
    if d.settings.dp_attention {
        let (tp, dp) = (d.settings.tp, d.settings.dp);
        if tp % dp != 0 {
            let message = format!("--enable-dp-attention needs --tp-size to be a multiple of --dp-size, and {tp} is no multiple of {dp}");
            let fixes = (1..=tp).rev().filter(|n| tp.is_multiple_of(*n) && *n <= dp).take(2);
            let finding = Finding::fails(Phase::Parse, Kind::Divisibility, "tp_divisible_by_attention_dp", message).argument("--dp-size");
            d.findings.push(fixes.fold(finding, |f, n| f.fix(Fix::set("--dp-size", n))));
        }
        if let Some(chunk) = d.settings.max_batched_tokens {
            d.settings.max_batched_tokens = Some((chunk / u64::from(dp)).max(1));
            d.settings.wrote("chunked_prefill_size", chunk / u64::from(dp), "attention data parallelism divides the chunk by dp");
        }
    }
}

fn moe_kernel(d: &mut Draft<'_>) {
    let (runner, quantization) = (d.settings.moe_backend.clone(), d.settings.quantization.clone());
    let given = d.word("--moe-runner-backend").is_some_and(|b| b != "auto");
    if !given {
        return;
    }
    let accepted: &[&str] = match runner.as_str() {
        "flashinfer_cutlass" => &["modelopt_fp4", "modelopt_fp8"],
        "flashinfer_trtllm" => &["modelopt_fp4", "fp8", "modelopt_fp8", "compressed-tensors", "mxfp8", "modelopt_mixed"],
        _ => &[],
    };
    if let Some(method) = quantization.as_deref().filter(|m| !accepted.is_empty() && !accepted.contains(m)) {
        let from = d.settings.writes.iter().rev().find(|w| w.field == "quantization").map(|w| w.by.clone());
        let message = format!(
            "--moe-runner-backend {runner} accepts quantization {} or none, and it is {method}{}",
            accepted.join(", "),
            from.map_or_else(String::new, |by| format!(" ({by}, before this check)")),
        );
        let finding = conflict("moe_runner_supports_quantization", message).argument("--moe-runner-backend");
        d.findings.push(finding.fix(Fix::set("--moe-runner-backend", "auto")).fix(Fix::remove("--moe-runner-backend")));
    }
    let (ep, tp) = (d.settings.ep, d.settings.tp);
    if runner == "flashinfer_cutlass" && ep != 1 && ep != tp {
        let message =
            format!("--moe-runner-backend flashinfer_cutlass needs --ep-size 1 or {tp} (the tensor-parallel size), and it is {ep}");
        let finding = conflict("flashinfer_cutlass_ep_is_one_or_tp", message).argument("--ep-size");
        d.findings.push(finding.fix(Fix::set("--ep-size", tp)).fix(Fix::set("--ep-size", 1)));
    }
    if runner == "cutlass" && ep != 1 && quantization.as_deref().is_some_and(|m| m.contains("fp8")) {
        let finding =
            conflict("cutlass_fp8_runner_without_ep", format!("--moe-runner-backend cutlass with FP8 needs --ep-size 1, and it is {ep}"));
        d.findings.push(finding.argument("--ep-size").fix(Fix::set("--ep-size", 1)));
    }
}

/// Backends that make every tensor-parallel rank an expert-parallel one.
const EP_IS_TP: &[&str] = &["deepep", "deepep_v2", "mooncake", "mori", "nixl", "ascend_fuseep", "flashinfer", "megamoe"];

fn a2a(d: &mut Draft<'_>) {
    let backend = d.settings.a2a.clone();
    let tp = d.settings.tp;
    if EP_IS_TP.contains(&backend.as_str()) && d.settings.ep != tp {
        d.settings.ep = tp;
        d.settings.wrote("ep", tp, format!("all-to-all backend {backend} sets ep_size to tp_size; --ep-size is ignored with a warning"));
    }
    d.settings.a2a_active = backend != "none";
    if backend == "mori" {
        d.settings.deepep_mode = "normal".to_owned();
        d.settings.wrote("deepep_mode", "normal", "mori has no other mode");
    }
    if matches!(backend.as_str(), "deepep" | "mori") && d.settings.deepep_mode == "normal" && d.settings.graphs.enabled {
        d.settings.graphs.enabled = false;
        d.settings.wrote("disable_cuda_graph", "on", "deepep mode normal cannot be captured");
    }
    if backend == "flashinfer" {
        if d.settings.moe_backend != "flashinfer_cutlass" && !d.settings.version.at_least("0.5.20") {
            let message =
                format!("--moe-a2a-backend flashinfer needs --moe-runner-backend flashinfer_cutlass, and it is {}", d.settings.moe_backend);
            let finding = conflict("flashinfer_a2a_needs_cutlass_runner", message).argument("--moe-a2a-backend");
            d.findings.push(finding.fix(Fix::set("--moe-runner-backend", "flashinfer_cutlass")).fix(Fix::remove("--moe-a2a-backend")));
        }
        if d.settings.shared_experts_fusion {
            d.settings.shared_experts_fusion = false;
            d.settings.wrote("disable_shared_experts_fusion", "on", "all-to-all backend flashinfer");
        }
        if d.settings.env("SGLANG_MOE_NVFP4_DISPATCH").is_none() {
            d.settings.env.insert("SGLANG_MOE_NVFP4_DISPATCH".to_owned(), "1".to_owned());
            d.settings.wrote("SGLANG_MOE_NVFP4_DISPATCH", 1, "all-to-all backend flashinfer");
        }
    }
    if d.on("--enable-two-batch-overlap") && backend == "none" {
        let message = "--enable-two-batch-overlap needs an all-to-all backend, and --moe-a2a-backend is none";
        let finding = conflict("two_batch_overlap_needs_a2a", message).argument("--enable-two-batch-overlap");
        d.findings.push(finding.fix(Fix::remove("--enable-two-batch-overlap")).fix(Fix::set("--moe-a2a-backend", "deepep")));
    }
}

fn flashinfer_needs_dp(d: &mut Draft<'_>) {
    if d.settings.a2a != "flashinfer" {
        return;
    }
    if !d.settings.dp_attention || d.settings.dp != d.settings.tp {
        let tp = d.settings.tp;
        let message = format!(
            "--moe-a2a-backend flashinfer needs data-parallel attention over all ranks (--enable-dp-attention --dp-size {tp}), and attention is {}",
            if d.settings.dp_attention { format!("data parallel over {}", d.settings.dp) } else { "tensor parallel".to_owned() },
        );
        let finding = conflict("flashinfer_a2a_needs_attention_dp", message).argument("--moe-a2a-backend");
        let finding = finding.fix(Fix::switch("--enable-dp-attention").and(Fix::set("--dp-size", tp)));
        d.findings.push(finding.fix(Fix::remove("--moe-a2a-backend")));
    }
}

fn eplb(d: &mut Draft<'_>) {
    if !d.settings.eplb {
        return;
    }
    if d.settings.version.at_least("0.4.10") && d.settings.ep <= 1 {
        let message = "--enable-eplb needs expert parallelism, and ep_size is 1";
        let finding = conflict("eplb_needs_expert_parallelism", message).argument("--enable-eplb");
        let finding = finding.fix(Fix::set("--ep-size", d.settings.tp)).fix(Fix::set("--moe-a2a-backend", "deepep"));
        d.findings.push(finding.fix(Fix::remove("--enable-eplb")));
    }
}

fn speculative(d: &mut Draft<'_>) {
    let Some(method) = d.word("--speculative-algorithm").map(str::to_owned) else {
        // `<MTP flags>` stands for them.
        if d.command.placeholders.iter().any(|p| p.to_lowercase().contains("mtp")) {
            d.settings.speculative =
                Some(Speculative { method: "EAGLE".to_owned(), steps: 3, topk: 1, draft_tokens: 3, draft_model: None });
            d.settings.assumptions.push("the placeholder for MTP flags is taken as EAGLE with 3 steps".to_owned());
        }
        return;
    };
    let (steps, topk, draft) =
        (d.count("--speculative-num-steps"), d.count("--speculative-eagle-topk"), d.count("--speculative-num-draft-tokens"));
    let llama = d.class_is(&["Llama", "Grok"]);
    let (steps, topk, mut draft_tokens) = match (steps, topk, draft) {
        (None, None, None) if llama => (5, 4, 8),
        (None, None, None) => (3, 1, 4),
        (steps, topk, draft) => (steps.unwrap_or(3), topk.unwrap_or(1), draft.unwrap_or(4)),
    };
    let eagle = matches!(method.as_str(), "EAGLE" | "EAGLE3" | "NEXTN" | "STANDALONE");
    if eagle && steps_missing(d) {
        let message = "--speculative-eagle-topk and --speculative-num-draft-tokens need --speculative-num-steps";
        let finding = conflict("draft_sizes_go_together", message).argument("--speculative-eagle-topk");
        d.findings.push(finding.fix(Fix::set("--speculative-num-steps", 3)));
    }
    if eagle && topk == 1 && draft_tokens != steps + 1 {
        draft_tokens = steps + 1;
        d.settings.wrote("speculative_num_draft_tokens", draft_tokens, "topk 1 verifies num_steps + 1 tokens");
    }
    let draft_model = d.word("--speculative-draft-model-path").map(str::to_owned);
    let own_layers = d.class_is(&[
        "Deepseek",
        "Glm4Moe",
        "GlmMoeDsa",
        "Bailing",
        "MiMo",
        "Qwen3Next",
        "Qwen3_5",
        "LongcatFlash",
        "Ernie",
        "Exaone",
        "Step3",
    ]) || d.model.mtp_layers.is_some_and(|n| n > 0)
        || d.model.class.is_none();
    if eagle && method != "STANDALONE" && draft_model.is_none() && !own_layers {
        let class = d.model.class.clone().unwrap_or_default();
        let message =
            format!("--speculative-algorithm {method} needs --speculative-draft-model-path: {class} has no draft layers of its own");
        let finding = conflict("draft_model_is_given", message).argument("--speculative-algorithm");
        d.findings.push(finding.fix(Fix::remove("--speculative-algorithm")));
    }
    forbidden(d, &method, topk);
    if !d.settings.max_num_seqs_given && method != "NGRAM" {
        d.settings.max_num_seqs = 48;
        d.settings.wrote("max_running_requests", 48, "speculative decoding");
    }
    d.settings.speculative = Some(Speculative { method, steps, topk, draft_tokens: draft_tokens.saturating_sub(1), draft_model });
}

fn steps_missing(d: &Draft<'_>) -> bool {
    !d.settings.has("--speculative-num-steps")
        && (d.settings.has("--speculative-eagle-topk") || d.settings.has("--speculative-num-draft-tokens"))
}

fn forbidden(d: &mut Draft<'_>, method: &str, topk: u32) {
    let mut refuse = |invariant: &str, message: String, flag: &str| {
        d.findings.push(conflict(invariant, message).argument(flag).fix(Fix::remove(flag)).fix(Fix::remove("--speculative-algorithm")));
    };
    if d.settings.pp > 1 {
        refuse(
            "speculation_without_pipeline",
            format!("--speculative-algorithm {method} does not work with --pp-size {}", d.settings.pp),
            "--pp-size",
        );
    }
    if matches!(method, "STANDALONE" | "NGRAM") && d.settings.dp_attention {
        refuse(
            "standalone_draft_without_attention_dp",
            format!("--speculative-algorithm {method} does not work with --enable-dp-attention"),
            "--enable-dp-attention",
        );
    }
    if d.settings.attention_backend == "trtllm_mha" && topk > 1 && d.settings.has("--attention-backend") {
        refuse(
            "trtllm_mha_needs_topk_one",
            format!("--attention-backend trtllm_mha drafts with --speculative-eagle-topk 1 only, and it is {topk}"),
            "--speculative-eagle-topk",
        );
    }
    let paged = topk > 1 && d.settings.page_size > 1 && !matches!(d.settings.attention_backend.as_str(), "flashinfer" | "fa3");
    if paged {
        let (page, backend) = (d.settings.page_size, d.settings.attention_backend.clone());
        refuse(
            "tree_drafts_need_page_one",
            format!(
                "--speculative-eagle-topk {topk} with pages of {page} tokens works on flashinfer and fa3 only, and the attention backend is {backend}"
            ),
            "--speculative-eagle-topk",
        );
    }
}

fn graph_sizes(d: &mut Draft<'_>) {
    if !d.settings.graphs.enabled {
        return;
    }
    let max = d.settings.graphs.max_batch;
    let all: Vec<u32> = match d.word("--cuda-graph-bs") {
        Some(list) => list.split([' ', ',']).filter_map(|n| n.parse().ok()).collect(),
        None if d.settings.speculative.is_some() => (1..9)
            .chain((10..33).step_by(2))
            .chain((40..65).step_by(4))
            .chain((72..257).step_by(8))
            .chain((272..=max.max(272)).step_by(16))
            .collect(),
        None => [1, 2, 4, 8, 12]
            .into_iter()
            .chain((16..257).step_by(8))
            .chain((272..512).step_by(16))
            .chain((512..=max.max(512)).step_by(32))
            .collect(),
    };
    // An all-to-all backend without attention DP gathers over the attention ranks: the tokens of a graph must divide among them.
    let gathered = d.settings.a2a_active && !d.settings.dp_attention;
    let tokens = d.settings.speculative.as_ref().map_or(1, |s| s.draft_tokens + 1);
    let multiple = if gathered { d.settings.attention_tp() } else { 1 } * if d.on("--enable-two-batch-overlap") { 2 } else { 1 };
    let requests = if d.settings.max_num_seqs_given || d.settings.speculative.is_some() { d.settings.max_num_seqs } else { u32::MAX };
    let fits = |bs: &u32| *bs <= max && *bs <= requests && (bs * tokens).is_multiple_of(multiple);
    d.settings.graphs.buckets = all.into_iter().filter(fits).collect();
    if d.settings.graphs.buckets.is_empty() {
        let message = format!(
            "no batch size is left to capture: at most {}, and {tokens} tokens a sequence must fill a multiple of {multiple} ranks",
            max.min(requests)
        );
        let finding = Finding::fails(Phase::GraphCapture, Kind::FlagConflict, "a_batch_size_is_captured", message);
        d.findings.push(finding.fix(Fix::set("--cuda-graph-max-bs", multiple.max(1))).fix(Fix::switch("--disable-cuda-graph")));
    }
}

fn derived(d: &mut Draft<'_>) {
    let moe_dp = d.count("--moe-dp-size").unwrap_or(1);
    // Integer division, unchecked: what does not divide is caught by the layers, or not at all.
    d.settings.moe_tp = (d.settings.tp / d.settings.ep.max(1) / moe_dp).max(1);
    let dense = d.number("--moe-dense-tp-size").map(|n| n as u32);
    d.settings.dense_tp = dense.unwrap_or(d.settings.tp).max(1);
    if d.settings.dp_attention && d.settings.version.at_least("0.5.12") && dense.is_none() && d.on("--enable-dense-mlp-attn-tp") {
        d.settings.dense_tp = d.settings.attention_tp();
    }
}

fn check(d: &mut Draft<'_>) {
    let (tp, pp, nodes, ep) = (d.settings.tp, d.settings.pp, d.settings.nodes, d.settings.ep);
    if !(tp * pp).is_multiple_of(nodes.max(1)) {
        let message = format!("tp x pp = {} ranks do not divide among --nnodes {nodes}", tp * pp);
        d.findings.push(Finding::fails(Phase::Parse, Kind::Divisibility, "ranks_divide_among_nodes", message).argument("--nnodes"));
    }
    if let Some(n) = d.number("--moe-dense-tp-size").filter(|n| *n != 1.0) {
        let message = format!("--moe-dense-tp-size supports only 1 or unset, and it is {n}");
        let finding = conflict("moe_dense_tp_size_is_one_or_unset", message).argument("--moe-dense-tp-size");
        d.findings.push(finding.fix(Fix::set("--moe-dense-tp-size", 1)).fix(Fix::remove("--moe-dense-tp-size")));
    }
    let moe_dp = d.count("--moe-dp-size").unwrap_or(1);
    if moe_dp > 1 && (tp % moe_dp != 0 || (ep > 1 && ep * moe_dp != tp)) {
        let message = format!("--moe-dp-size {moe_dp}: ep x moe_dp must be tp, and {ep} x {moe_dp} is not {tp}");
        d.findings.push(Finding::fails(Phase::Parse, Kind::Divisibility, "ep_times_moe_dp_is_tp", message).argument("--moe-dp-size"));
    }
    let cp = d.count("--attn-cp-size").unwrap_or(1);
    if cp > 1 && (tp % cp != 0 || tp % (d.settings.dp * cp) != 0 || pp != 1) {
        let message =
            format!("--attn-cp-size {cp} needs tp to be a multiple of dp x cp and no pipeline; tp is {tp}, dp {}, pp {pp}", d.settings.dp);
        d.findings
            .push(Finding::fails(Phase::Parse, Kind::Divisibility, "tp_divisible_by_context_parallel", message).argument("--attn-cp-size"));
    }
    if pp > 1 && d.on("--enable-mixed-chunk") {
        let finding = conflict("mixed_chunk_without_pipeline", format!("--enable-mixed-chunk does not work with --pp-size {pp}"));
        d.findings.push(finding.argument("--enable-mixed-chunk").fix(Fix::remove("--enable-mixed-chunk")));
    }
    let lora = d.on("--enable-lora") || d.settings.has("--lora-paths");
    if let Some(s) = d.settings.speculative.as_ref().filter(|s| lora && s.method != "NGRAM") {
        let finding =
            conflict("lora_without_speculation", format!("LoRA works with speculative decoding by NGRAM only, and it is {}", s.method));
        d.findings.push(finding.argument("--speculative-algorithm").fix(Fix::remove("--speculative-algorithm")));
    }
    if d.settings.a2a == "mori" && d.settings.max_batched_tokens.is_some_and(|c| c > 4096) {
        let finding = conflict("mori_chunk_limit", "--moe-a2a-backend mori takes --chunked-prefill-size up to 4096");
        d.findings.push(finding.argument("--chunked-prefill-size").fix(Fix::set("--chunked-prefill-size", 4096)));
    }
    backend_checks(d);
}

/// `_handle_attention_backend_compatibility`: what is refused at launch, and not only by a missing kernel.
fn backend_checks(d: &mut Draft<'_>) {
    if d.model.class.is_none() && d.hardware.sm.is_none() {
        return;
    }
    let mla = matches!(d.model.attention, AttentionKind::Mla | AttentionKind::SparseMla);
    for flag in ["--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"] {
        let Some(backend) = d.word(flag).map(str::to_owned) else { continue };
        if let Some(why) = backends::sglang_attention_refused(&backend, mla, d.sm()) {
            let choice = backends::sglang_attention(d.model, &d.settings, d.hardware);
            let message = format!("{flag} {backend} is refused on SM{}: {why}", d.sm());
            let finding = Finding::fails(Phase::Parse, Kind::UnsupportedArch, "attention_backend_supports_architecture", message);
            let finding = finding.argument(flag).because(format!("without the flag it would be {}", choice.name));
            d.findings.push(finding.fix(Fix::remove(flag)).fix(Fix::set(flag, choice.name)));
        }
    }
}
