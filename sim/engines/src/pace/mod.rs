//! How fast a launch decodes, roughly: bytes read, all-reduces, and the floor of small kernels. Rooflines with measured anchors; the simulator is
//! where a step is really computed, this is for a first answer beside a verdict.
//!
//! A step of `c` sequences reads the weights that every token needs, the experts that at least one of them chose, and pays two all-reduces and a
//! kernel floor a layer. Speculation multiplies tokens by what is accepted and reads more experts.

mod reduce;

pub use reduce::{AllReduce, all_reduce_us};

use crate::catalog::Parts;
use crate::finding::Numbers;
use crate::hardware::Hardware;
use crate::memory::GIB;
use crate::memory::weights::Cut;
use crate::model::{AttentionKind, Model};
use crate::question::Engine;
use crate::settings::Settings;

/// Share of the vendor's memory rate that weight reads of a decode step reach: 0.84 to 0.9 on GDDR7 and HBM, less before SM89.
fn read_share(sm: u32) -> f64 {
    if sm < 89 { 0.68 } else { 0.85 }
}

/// Chance that a drafted token is accepted: GLM's and DeepSeek's own draft layers 0.5 to 0.67, EAGLE heads 0.35 to 0.45 (measured on 8x RTX PRO 6000).
fn acceptance(settings: &Settings) -> f64 {
    match &settings.speculative {
        Some(s) if s.draft_model.is_some() => 0.42,
        _ => 0.6,
    }
}

/// What a step is made of, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Weights.
    pub weights_ms: f64,
    /// All-reduces and their kin.
    pub reduce_ms: f64,
    /// Small kernels and gaps.
    pub floor_ms: f64,
    /// Draft steps and host transfers.
    pub other_ms: f64,
    /// Tokens that the step yields, all sequences together.
    pub tokens: f64,
}

impl Step {
    /// The whole step.
    pub fn ms(&self) -> f64 {
        self.weights_ms + self.reduce_ms + self.floor_ms + self.other_ms
    }
    /// Tokens a second.
    pub fn rate(&self) -> f64 {
        self.tokens / self.ms() * 1e3
    }
}

/// Bytes that a rank reads.
#[derive(Clone, Copy, Debug)]
struct Reads {
    /// Whatever the tokens.
    always: f64,
    /// All routed experts.
    experts: f64,
    routed: f64,
    topk: f64,
}

impl Reads {
    /// Experts that `tokens` tokens touch, of all; independent uniform choices.
    fn touched(&self, tokens: f64) -> f64 {
        1.0 - libm::pow(1.0 - (self.topk / self.routed).min(1.0), tokens)
    }
}

/// The figures of `check --json` that are about pace. Empty where model or GPU are not known well enough.
pub fn numbers(settings: &Settings, model: &Model, hardware: &Hardware) -> Numbers {
    let mut out = Numbers::new();
    let Some(layers) = model.layers else { return out };
    let reduces = if settings.tp > 1 { 2.0 * layers as f64 } else { 0.0 };
    out.insert("allreduce_count_per_step".into(), reduces);
    let Some(one) = step(settings, model, hardware, 1.0, None) else { return out };
    out.insert("step_ms".into(), one.ms());
    // Of a step without drafts, as profiles show it.
    let plain = Settings { speculative: None, ..settings.clone() };
    let plain = step(&plain, model, hardware, 1.0, None).unwrap_or(one);
    out.insert("comm_share".into(), plain.reduce_ms / plain.ms());
    for (name, sequences) in [("decode_tok_s_c1", 1.0), ("decode_tok_s_c8", 8.0), ("decode_tok_s_c32", 32.0), ("decode_tok_s_c64", 64.0)] {
        if let Some(step) = step(settings, model, hardware, sequences, None) {
            out.insert(name.into(), step.rate());
        }
    }
    ratios(settings, model, hardware, &mut out);
    out
}

/// What another way of reducing would do.
fn ratios(settings: &Settings, model: &Model, hardware: &Hardware, out: &mut Numbers) {
    let with = |sequences, way| step(settings, model, hardware, sequences, Some(way)).map(|s| s.rate());
    if reduce::one_shot_possible(settings, hardware) && settings.speculative.is_none() {
        // At larger batches both ways are within each other's spread between boards, so no ratio is stated there.
        if let (Some(one_shot), Some(nccl)) = (with(1.0, AllReduce::OneShot), with(1.0, AllReduce::Nccl)) {
            out.insert("ratio_to_nccl_c1".into(), one_shot / nccl);
        }
    }
    if reduce::peer_access_matters(settings, hardware)
        && let (Some(direct), Some(host)) = (with(1.0, AllReduce::Nccl), with(1.0, AllReduce::Host))
    {
        out.insert("ratio_p2p_to_no_p2p".into(), direct / host);
    }
}

/// A decode step of `sequences` sequences at short context; `way` instead of the launch's own all-reduce.
pub fn step(settings: &Settings, model: &Model, hardware: &Hardware, sequences: f64, way: Option<AllReduce>) -> Option<Step> {
    let parts = Parts::of(model)?;
    let layers = model.layers? as f64;
    let bandwidth = hardware.memory_gb_s? * 1e9;
    let sm = hardware.sm.unwrap_or(90);
    let reads = reads(settings, model, &parts)?;
    let drafts = settings.speculative.as_ref().map_or(0.0, |s| f64::from(s.draft_tokens.min(16)));
    let accepted = (0..=settings.speculative.as_ref().map_or(0, |s| s.draft_tokens.min(16)))
        .map(|i| libm::pow(acceptance(settings), f64::from(i)))
        .sum::<f64>();
    let tokens = sequences * (1.0 + drafts);
    let rate = bandwidth * read_share(sm);
    let pipeline = f64::from(settings.pp.max(1));
    // Stages run one after another.
    let bytes = (reads.always + reads.experts * reads.touched(tokens) * expert_slowness(settings, model, sm, tokens)) * pipeline;
    let way = way.unwrap_or_else(|| reduce::of(settings, hardware));
    let payload = tokens * model.hidden.unwrap_or(4096) as f64 * 2.0;
    let one = reduce::all_reduce_us(settings, hardware, way, payload);
    let per_layer = if settings.tp > 1 { 2.0 } else { 0.0 } + if settings.dcp > 1 { 2.0 } else { 0.0 };
    // A stage hands over through the host: 49 tok/s of Qwen3.5-397B at TP2 PP2 leave 1.6 ms a stage.
    let hop = if settings.tp > 1 { 1.6 } else { 0.4 };
    let floor = floor_us(settings, model, sm, layers) / 1e3 + if settings.pp > 1 { hop * pipeline } else { 0.0 };
    // SGLang does not overlap scheduling with speculation unless told to: 24.6 ms a step of DeepSeek-V3 on 8x H200, of which 13 can be counted.
    let gap = if drafts > 0.0 && settings.engine == Engine::Sglang && !settings.env_on("SGLANG_ENABLE_SPEC_V2") { 10.0 } else { 0.0 };
    let draft_ms = gap + drafts * (0.25 + 2.0 * one / 1e3 + reads.always / layers / rate * 1e3);
    let offloaded = settings.cpu_offload_gib * GIB / if sm >= 100 { 50e9 } else { 25e9 } * 1e3;
    let slow_cache = if slow_fp8_cache(settings, model, sm) { 5.0 } else { 1.0 };
    Some(Step {
        weights_ms: bytes / rate * 1e3 * slow_cache,
        reduce_ms: per_layer * layers * one / 1e3 * slow_cache.min(1.0),
        floor_ms: floor * slow_cache,
        other_ms: draft_ms + if hardware.unified { 0.0 } else { offloaded },
        tokens: sequences * accepted,
    })
}

/// An FP8 cache of latent attention on SM12x with an 8-bit-unaware path: 16 tok/s for 90 (Kimi-K2.5, 8x RTX PRO 6000, SGLang).
fn slow_fp8_cache(settings: &Settings, model: &Model, sm: u32) -> bool {
    settings.engine == Engine::Sglang
        && sm / 10 == 12
        && model.attention == AttentionKind::Mla
        && crate::memory::cache::is_fp8(&settings.kv_dtype)
        && matches!(settings.attention_backend.as_str(), "flashinfer" | "triton")
}

fn reads(settings: &Settings, model: &Model, parts: &Parts) -> Option<Reads> {
    let cut = Cut::of(settings, model);
    let pipeline = f64::from(settings.pp.max(1));
    let (routed, topk) = (model.experts.unwrap_or(1).max(1) as f64, model.topk.unwrap_or(1) as f64);
    if parts.layers.is_empty() {
        // Only totals are known: what is active is read.
        let share = model.active_params_b? / model.total_params_b?;
        let all = parts.lump.bytes / (f64::from(settings.tp.max(1)) * pipeline);
        return Some(Reads { always: 0.4 * share * all, experts: all, routed, topk: 0.6 * share * routed });
    }
    let kv_heads = model.kv_heads.unwrap_or(1);
    let held = crate::memory::weights::held(parts, &cut, kv_heads);
    let bytes = |name: &str| held.iter().map(|h| h.line_gib(name)).sum::<f64>() * GIB / pipeline;
    let everything = held.iter().map(crate::memory::weights::Held::gib).sum::<f64>() * GIB / pipeline;
    let experts = bytes(crate::memory::weights::EXPERTS);
    // Tables are looked up, towers and copies of projections are not read.
    let table = parts.embedding.bytes / cut.embedding_tp / pipeline;
    let tied = if model.shape.tied { table } else { 0.0 };
    let unread = table - tied + bytes("weights: vision tower") + bytes("weights: lookup table") + bytes("weights: absorbed copies of kv_b");
    Some(Reads { always: everything - experts - unread, experts, routed, topk })
}

/// How much longer than its bytes an expert layer takes. On SM12x CUTLASS's NVFP4 kernels reach less than a third of the memory rate at one token
/// (25.6 ms a step where Marlin takes 20.4: Qwen3.5-397B, TP2 PP2) and half of it at 32; Marlin and the SM12x fused kernel nearly all of it.
fn expert_slowness(settings: &Settings, model: &Model, sm: u32, tokens: f64) -> f64 {
    if model.weights.method != "nvfp4" || sm / 10 != 12 {
        return 1.0;
    }
    match settings.moe_backend.as_str() {
        backend if backend.contains("marlin") || backend.contains("b12x") => 1.2,
        _ => 1.5 + 2.0 / (1.0 + tokens / 8.0),
    }
}

/// Small kernels and gaps, us a step. 61 layers of Kimi-K2.5 leave 4 ms unexplained on 8 GPUs (65 us a layer); linear attention has more kernels,
/// sparse attention an indexer, DeepSeek V4 four residual streams. Without tensor parallelism less than half. Clocks below 2 GHz stretch it.
fn floor_us(settings: &Settings, model: &Model, sm: u32, layers: f64) -> f64 {
    let linear = match model.attention {
        AttentionKind::HybridLinear => layers - model.full_attention_layers.unwrap_or(0) as f64,
        _ => 0.0,
    };
    let kind = match model.attention {
        AttentionKind::SparseMla if model.shape.compressed.is_some() => 1.8,
        AttentionKind::SparseMla => 1.3,
        _ => 1.0,
    };
    // Published steps at four streams leave 110 us a layer on H200 (DeepSeek-V3, MiniMax-M2.5, gpt-oss-120b, on one GPU as well) and 75 on B200.
    let (base, alone) = match sm {
        90 => (110.0, 1.0),
        100..=110 => (75.0, 0.8),
        0..=88 => (65.0 * 1.8, 0.45),
        _ => (65.0, 0.45),
    };
    let alone = if settings.tp > 1 { 1.0 } else { alone };
    let engine = if settings.engine == Engine::Sglang { 1.1 } else { 1.0 };
    let eager = if settings.graphs.enabled { 1.0 } else { 4.0 };
    ((layers - linear) + 1.7 * linear) * base * kind * alone * engine * eager
}

#[cfg(test)]
mod tests;
