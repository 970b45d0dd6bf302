//! Sizes that ranks share must divide.

use super::{Launch, Rule};
use crate::finding::{Finding, Fix, Kind, Outcome, Phase};
use crate::model::AttentionKind;
use crate::question::Engine;
use crate::version::Range;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "heads_divisible_by_tp",
        engine: None,
        range: Range::ALL,
        source: "vllm/config/model.py verify_with_parallel_config; sglang attention layers (assert total_num_heads % attn_tp_size == 0)",
        check: heads,
    },
    Rule {
        name: "kv_heads_divisible_by_tp",
        engine: None,
        range: Range::ALL,
        source: "QKVParallelLinear: KV heads are split or replicated whole",
        check: kv_heads,
    },
    Rule {
        name: "vocabulary_divisible_by_tp",
        engine: None,
        range: Range::ALL,
        source: "VocabParallelEmbedding: the vocabulary, padded to 64, is split",
        check: vocabulary,
    },
    Rule {
        name: "expert_width_divisible_by_block",
        engine: None,
        range: Range::ALL,
        source: "fp8.py Fp8MoEMethod.create_weights",
        check: expert_blocks,
    },
    Rule {
        name: "expert_width_divisible_by_group",
        engine: None,
        range: Range::ALL,
        source: "moe_wna16 kernel: size_k must divide by BLOCK_SIZE_K",
        check: expert_groups,
    },
    Rule {
        name: "dense_width_divisible_by_block",
        engine: None,
        range: Range::ALL,
        source: "fp8.py Fp8LinearMethod.create_weights",
        check: dense_blocks,
    },
    Rule {
        name: "shared_width_divisible_by_block",
        engine: Some(Engine::Vllm),
        range: Range::ALL,
        source: "vllm fp8_utils.py validate_fp8_block_shape (0.16.0, 0.33.0): the shared experts' MLP is split over all tensor-parallel ranks; report of DeepSeek-V4-Pro at 16",
        check: shared_blocks,
    },
    Rule {
        name: "linear_attention_divisible_by_block",
        engine: Some(Engine::Sglang),
        range: Range::until("0.5.9"),
        source: "sglang qwen3_next/qwen3_5: the gated-delta projections got the checkpoint's quantization although it leaves them out",
        check: linear_attention,
    },
    Rule { name: "experts_divisible_by_ep", engine: None, range: Range::ALL, source: "FusedMoE, EPLB: experts per rank", check: experts },
    Rule {
        name: "moe_width_divisible_by_moe_tp",
        engine: None,
        range: Range::ALL,
        source: "FusedMoE: intermediate_size % moe_tp_size == 0",
        check: expert_width,
    },
    Rule { name: "enough_gpus", engine: None, range: Range::ALL, source: "the executor: one GPU a rank", check: gpus },
];

fn fault(phase: Phase, name: &str, message: String) -> Finding {
    Finding::fails(phase, Kind::Divisibility, name, message)
}

/// The largest smaller sizes that are legal in `fits`, as fixes.
fn legal_tps(launch: &Launch<'_>, finding: Finding, fits: impl Fn(u64) -> bool) -> Finding {
    let legal = launch.smaller_tps().into_iter().filter(|tp| fits(u64::from(*tp))).take(4);
    legal.fold(finding, |f, tp| f.fix(Fix::set(launch.tp_flag(), tp)))
}

/// The phase in which vLLM and SGLang look at heads.
fn heads_phase(engine: Engine) -> Phase {
    if engine == Engine::Vllm { Phase::Parse } else { Phase::Load }
}

fn heads(launch: &Launch<'_>) -> Vec<Finding> {
    let tp = u64::from(launch.settings.attention_tp());
    let Some(heads) = launch.model.heads.filter(|h| h % tp != 0) else { return Vec::new() };
    let legal: Vec<String> = (1..=heads).filter(|n| heads % n == 0).take(12).map(|n| n.to_string()).collect();
    let message = format!(
        "{heads} attention heads are not divisible by tensor-parallel size {tp}: {heads} % {tp} = {}; legal by heads: {}",
        heads % tp,
        legal.join(", ")
    );
    let finding = fault(heads_phase(launch.settings.engine), "heads_divisible_by_tp", message).argument(launch.tp_flag());
    vec![legal_tps(launch, finding, |n| heads.is_multiple_of(n))]
}

fn kv_heads(launch: &Launch<'_>) -> Vec<Finding> {
    let tp = u64::from(launch.settings.attention_tp());
    if matches!(launch.model.attention, AttentionKind::Mla | AttentionKind::SparseMla) || launch.class_is(&["DeepseekV4"]) {
        return Vec::new();
    }
    let Some(kv) = launch.model.kv_heads.filter(|kv| *kv > 0 && kv % tp != 0 && tp % kv != 0) else { return Vec::new() };
    let message =
        format!("{kv} KV heads are neither divisible by tensor-parallel size {tp} nor a divisor of it: {kv} % {tp} = {}", kv % tp);
    let finding = fault(Phase::Load, "kv_heads_divisible_by_tp", message).argument(launch.tp_flag());
    vec![legal_tps(launch, finding, |n| kv.is_multiple_of(n) || n.is_multiple_of(kv))]
}

fn vocabulary(launch: &Launch<'_>) -> Vec<Finding> {
    let tp = u64::from(launch.settings.tp);
    let Some(vocab) = launch.model.vocab else { return Vec::new() };
    let padded = vocab.div_ceil(64) * 64;
    if padded % tp == 0 {
        return Vec::new();
    }
    let message = format!(
        "the vocabulary of {vocab} (padded to {padded}) is not divisible by tensor-parallel size {tp}: {padded} % {tp} = {}",
        padded % tp
    );
    let finding = fault(Phase::Load, "vocabulary_divisible_by_tp", message).argument(launch.tp_flag());
    let finding = finding.because("expert parallelism does not cure it: the embedding stays tensor parallel");
    vec![legal_tps(launch, finding, |n| padded % n == 0)]
}

fn with_expert_parallelism(launch: &Launch<'_>, finding: Finding) -> Finding {
    if !launch.model.moe || launch.settings.ep > 1 {
        return finding;
    }
    match launch.settings.engine {
        Engine::Sglang => finding.fix(Fix::set("--ep-size", launch.settings.tp)),
        Engine::Vllm => finding.fix(Fix::switch("--enable-expert-parallel")),
    }
}

/// The all-to-all flag without expert parallelism is inert, and people expect it to switch that on.
fn inert_a2a(launch: &Launch<'_>) -> Option<String> {
    let given = launch.settings.has("--all2all-backend") && launch.settings.ep <= 1;
    given.then(|| "--all2all-backend has no effect without --enable-expert-parallel: experts are still split by width".to_owned())
}

fn expert_blocks(launch: &Launch<'_>) -> Vec<Finding> {
    let (Some((block, _)), Some(width)) = (launch.model.weights.block, launch.model.moe_intermediate) else { return Vec::new() };
    let moe_tp = u64::from(launch.settings.moe_tp);
    if block < 2 || !launch.expert_scheme(&["fp8"]) || width % moe_tp != 0 || (width / moe_tp).is_multiple_of(block) {
        return Vec::new();
    }
    let shard = width / moe_tp;
    let mut message = format!(
        "an expert's width of {width} over {moe_tp} ranks is {width}/{moe_tp} = {shard}, which is not a multiple of the quantization block of {block}"
    );
    if let Some(inert) = inert_a2a(launch) {
        message = format!("{inert}; {message}");
    }
    let finding = fault(Phase::Load, "expert_width_divisible_by_block", message).argument(launch.tp_flag());
    let finding = with_expert_parallelism(launch, finding).number("shard", shard as f64).number("block_n", block as f64);
    vec![legal_tps(launch, finding, |n| width % n == 0 && (width / n).is_multiple_of(block))]
}

fn expert_groups(launch: &Launch<'_>) -> Vec<Finding> {
    let (Some(group), Some(width)) = (launch.model.weights.group, launch.model.moe_intermediate) else { return Vec::new() };
    let moe_tp = u64::from(launch.settings.moe_tp);
    if group < 2 || !launch.expert_scheme(&["awq", "gptq", "int4"]) || width % moe_tp != 0 || (width / moe_tp).is_multiple_of(group) {
        return Vec::new();
    }
    let shard = width / moe_tp;
    // The kernel that checks serves small batches only. Captured decode batches are small; without graphs the first is a request's.
    let (phase, outcome) = match (launch.settings.engine, launch.settings.graphs.enabled) {
        (Engine::Vllm, true) => (Phase::Init, Outcome::Fails),
        (Engine::Vllm, false) => (Phase::Serve, Outcome::ServeFails),
        (Engine::Sglang, _) => (Phase::Load, Outcome::Fails),
    };
    let when = if outcome == Outcome::ServeFails {
        "; start-up finishes, for only the kernel of small batches checks it, and without graphs the first request is the first small batch"
    } else {
        ""
    };
    let message = format!(
        "an expert's width of {width} over {moe_tp} ranks is {width}/{moe_tp} = {shard}, which is not a multiple of the quantization group of {group}{when}"
    );
    let finding = fault(phase, "expert_width_divisible_by_group", message).outcome(outcome).argument(launch.tp_flag());
    let finding = with_expert_parallelism(launch, finding).number("shard", shard as f64).number("group", group as f64);
    vec![legal_tps(launch, finding, |n| width % n == 0 && (width / n).is_multiple_of(group))]
}

fn dense_blocks(launch: &Launch<'_>) -> Vec<Finding> {
    let Some((block, _)) = launch.model.weights.block.filter(|_| launch.scheme(&["fp8"])) else { return Vec::new() };
    let dense_tp = u64::from(launch.settings.dense_tp);
    let mut out = Vec::new();
    let dense = launch.model.dense_intermediate.filter(|_| !launch.model.moe || launch.model.dense_layers.is_some_and(|n| n > 0));
    if let Some(width) = dense.filter(|w| w % dense_tp != 0 || !(w / dense_tp).is_multiple_of(block)) {
        let layers = launch.model.dense_layers.map_or_else(String::new, |n| format!("{n} "));
        let message = format!(
            "the {layers}dense MLP layers are still split over {dense_tp} ranks: {width}/{dense_tp} = {}, which is not a multiple of the quantization block of {block}",
            width / dense_tp
        );
        let mut finding = fault(Phase::Load, "dense_width_divisible_by_block", message).argument(launch.tp_flag());
        if launch.settings.engine == Engine::Sglang && launch.settings.dp_attention {
            finding = finding.fix(Fix::set("--moe-dense-tp-size", 1));
        }
        out.push(legal_tps(launch, finding, |n| width % n == 0 && (width / n).is_multiple_of(block)));
    }
    out
}

/// Shared experts are an MLP of the rest's storage, split over the tensor-parallel ranks whatever happens to the routed ones.
fn shared_blocks(launch: &Launch<'_>) -> Vec<Finding> {
    let m = launch.model;
    let (Some((block, _)), Some(shared), Some(width)) = (m.weights.block, m.shared_experts, m.moe_intermediate) else { return Vec::new() };
    let (tp, width) = (u64::from(launch.settings.tp), shared * width);
    let latent = matches!(m.attention, AttentionKind::Mla | AttentionKind::SparseMla);
    // Sequence-parallel MoE keeps them whole.
    let whole = launch.settings.a2a_active && launch.settings.ep > 1;
    if !latent
        || whole
        || m.weights.method != "fp8"
        || block < 2
        || width == 0
        || tp == 1
        || (width % tp == 0 && (width / tp).is_multiple_of(block))
    {
        return Vec::new();
    }
    let message = format!(
        "the shared expert's width of {width} over {tp} ranks is {:.0}, which is not a multiple of the quantization block of {block}: expert parallelism does not cure it",
        width as f64 / tp as f64
    );
    let finding = fault(Phase::Load, "shared_width_divisible_by_block", message).argument(launch.tp_flag());
    vec![legal_tps(launch, finding, |n| width % n == 0 && (width / n).is_multiple_of(block))]
}

fn linear_attention(launch: &Launch<'_>) -> Vec<Finding> {
    let (Some((block, _)), Some(heads)) = (launch.model.weights.block, launch.model.linear_heads) else { return Vec::new() };
    let tp = u64::from(launch.settings.attention_tp());
    if !launch.scheme(&["fp8"]) || heads % tp != 0 || (heads / tp).is_multiple_of(block) {
        return Vec::new();
    }
    let message = format!(
        "a gated-delta projection of the linear-attention layers has {heads}/{tp} = {} columns on a rank and is handed to the block-FP8 method (block {block}) in this version, \
         although the checkpoint stores it unquantized",
        heads / tp
    );
    let finding = fault(Phase::Load, "linear_attention_divisible_by_block", message);
    vec![
        finding
            .fix(Fix::version("0.5.9", "a newer SGLang leaves those modules out of quantization"))
            .number("output_partition", (heads / tp) as f64),
    ]
}

fn experts(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(experts) = launch.model.experts else { return Vec::new() };
    let ep = u64::from(launch.settings.ep);
    let redundant = u64::from(launch.settings.redundant_experts);
    let physical = experts + redundant;
    // vLLM before 0.17 gave the last rank fewer experts unless EPLB was on.
    let uneven = launch.settings.engine == Engine::Vllm && !launch.settings.eplb && !launch.settings.version.at_least("0.17.0");
    if ep <= 1 || uneven || physical % ep == 0 {
        return Vec::new();
    }
    let missing = ep - physical % ep;
    let message = format!(
        "{physical} experts are not divisible by expert-parallel size {ep}: {physical} % {ep} = {}; the smallest padding is {} redundant experts, and needs EPLB",
        physical % ep,
        redundant + missing
    );
    let finding = fault(Phase::Init, "experts_divisible_by_ep", message).number("experts", experts as f64).number("ep", ep as f64);
    let padding = redundant + missing;
    let finding = match launch.settings.engine {
        Engine::Vllm => {
            finding.fix(Fix::switch("--enable-eplb").and(Fix::set("--eplb-config", format!("{{\"num_redundant_experts\":{padding}}}"))))
        }
        Engine::Sglang => finding.fix(Fix::switch("--enable-eplb").and(Fix::set("--ep-num-redundant-experts", padding))),
    };
    let flag = if launch.settings.dp > 1 && launch.settings.engine == Engine::Vllm { "--data-parallel-size" } else { launch.tp_flag() };
    let legal = (1..ep).rev().filter(|n| experts % n == 0).take(2);
    vec![legal.fold(finding, |f, n| f.fix(Fix::set(flag, n)))]
}

fn expert_width(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(width) = launch.model.moe_intermediate else { return Vec::new() };
    let (tp, ep, moe_tp) = (launch.settings.tp, launch.settings.ep.max(1), u64::from(launch.settings.moe_tp));
    let mut out = Vec::new();
    if launch.settings.engine == Engine::Sglang && tp % ep != 0 {
        let message = format!("--ep-size {ep} does not divide --tp-size {tp}");
        let finding = fault(Phase::Load, "ep_divides_tp", message).argument("--ep-size");
        out.push((1..ep).rev().filter(|n| tp % n == 0).take(2).fold(finding, |f, n| f.fix(Fix::set("--ep-size", n))));
    } else if width % moe_tp != 0 {
        let message = format!("an expert's width of {width} is not divisible among {moe_tp} ranks");
        let finding =
            with_expert_parallelism(launch, fault(Phase::Load, "moe_width_divisible_by_moe_tp", message).argument(launch.tp_flag()));
        out.push(legal_tps(launch, finding, |n| width % n == 0));
    }
    out
}

fn gpus(launch: &Launch<'_>) -> Vec<Finding> {
    let hosts = launch.settings.nodes.max(1);
    let container = launch.command.gpus;
    // A list of devices outranks the description of the machine; a container never has more than it is given. Both are of one host.
    let visible = launch.listed_gpus().into_iter().chain(container).min();
    // A description may count the GPUs of one host.
    let described = launch.hardware.count.map(|n| n.saturating_mul(if launch.settings.engine == Engine::Sglang { hosts } else { 1 }));
    let Some(count) = visible.map(|n| n.saturating_mul(hosts)).or(described) else { return Vec::new() };
    let world = launch.settings.world();
    // One instance of several that share a description need not use all of it; more than all of it is a fault.
    if world <= count {
        return Vec::new();
    }
    let given = container.filter(|n| visible == Some(*n)).map(|n| format!("the container is given {n} GPUs, whatever the machine has"));
    let message = format!("the launch needs {world} GPUs and {count} are there");
    let finding = Finding::fails(Phase::Init, Kind::FlagConflict, "enough_gpus", message).argument(launch.tp_flag());
    let finding = given.into_iter().fold(finding, Finding::because);
    vec![legal_tps(launch, finding, |n| n <= u64::from(count))]
}
