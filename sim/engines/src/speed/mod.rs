//! A decode step by rule of thumb: weights read at a share of the memory rate, all-reduces by size and link, a floor for each layer's kernels.
//!
//! It is a roofline with constants fitted to a dozen published serving runs (Kimi-K2.5, GLM-5.1, Qwen3.5-397B, gpt-oss-120b on RTX PRO 6000,
//! H200 and GB10); on those it is within 30 %. A figure is stated where the launch is of their kind, else an interval.

use crate::catalog::Parts;
use crate::finding::Numbers;
use crate::hardware::Interconnect;
use crate::model::AttentionKind;
use crate::rules::{Launch, uses_custom_all_reduce};

/// Share of the memory rate that decode kernels reach: small matrices, quantized ones dequantized on the way.
const MEMORY_SHARE: f64 = 0.65;
/// Kernels of a captured layer, microseconds: about fifteen, a few microseconds each.
const LAYER_US: f64 = 60.0;
/// The same where each kernel is launched by the host.
const EAGER_LAYER_US: f64 = 400.0;
/// What an indexer adds to a layer of sparse attention.
const INDEXER_US: f64 = 30.0;
/// What compressors and hyper-connections add to a layer of DeepSeek-V4: on 8x A800, 11.5 ms of a step besides all-reduces, over 43 layers.
const HYPER_US: f64 = 150.0;

/// A decode step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Weights and cache, milliseconds.
    pub memory_ms: f64,
    /// Collectives.
    pub collectives_ms: f64,
    /// Kernel floors.
    pub kernels_ms: f64,
    /// All-reduces in it.
    pub all_reduces: f64,
}

impl Step {
    /// All of it.
    pub fn total_ms(&self) -> f64 {
        self.memory_ms + self.collectives_ms + self.kernels_ms
    }
    /// Share of waiting for other ranks.
    pub fn communication_share(&self) -> f64 {
        self.collectives_ms / self.total_ms()
    }
}

/// The step of `batch` sequences with `tokens` each; `None` where model or memory rate are not known.
pub fn step(launch: &Launch<'_>, batch: f64, tokens: f64) -> Option<Step> {
    let (s, model) = (launch.settings, launch.model);
    let rate = launch.hardware.memory_gb_s? * 1e9;
    let parts = Parts::of(model).filter(|p| !p.layers.is_empty())?;
    let hidden = model.hidden? as f64;
    let (tp, attention_tp) = (f64::from(s.tp), f64::from(s.attention_tp()));
    let spread = f64::from(s.ep.max(1)) * f64::from(s.moe_tp.max(1));
    let sequences = batch * tokens;
    let touched = match (model.experts, model.topk) {
        (Some(e), Some(k)) if e > 0 => 1.0 - libm::pow(1.0 - k as f64 / e as f64, sequences),
        _ => 1.0,
    };
    let mut bytes = parts.head.bytes / tp;
    for layer in &parts.layers {
        let attention = (layer.attention.bytes + layer.kv.bytes) / attention_tp + layer.attention_replicated.bytes;
        let width = (layer.shared.bytes + layer.dense.bytes) / f64::from(s.dense_tp.max(1));
        bytes += attention + width + layer.replicated.bytes + layer.experts.bytes * touched / spread;
    }
    // Shared memory of CPU and GPU is read in long bursts at a better share.
    let share = if launch.hardware.unified { 0.85 } else { MEMORY_SHARE };
    let layers = parts.layers.len() as f64;
    let all_reduces = if s.tp > 1 { 2.0 * layers } else { 0.0 };
    let context = if s.dcp > 1 { 2.0 * layers } else { 0.0 };
    let payload = sequences * hidden * 2.0;
    let one_us = all_reduce_us(launch, payload);
    let indexer = match model.attention {
        _ if launch.class_is(&["DeepseekV4"]) => HYPER_US,
        AttentionKind::SparseMla => INDEXER_US,
        _ => 0.0,
    };
    let layer_us = if s.graphs.enabled { LAYER_US } else { EAGER_LAYER_US } + indexer;
    Some(Step {
        memory_ms: bytes / (rate * share) * 1e3 + s.cpu_offload_gib * 1.074e9 / 25e9 * 1e3,
        // The collectives of context parallelism carry queries and partial outputs, about half of a hidden state.
        collectives_ms: (all_reduces * one_us + context * one_us * 0.75) / 1e3,
        kernels_ms: layers * layer_us / 1e3,
        all_reduces,
    })
}

/// Microseconds of an all-reduce of `bytes` by the launch's ranks.
///
/// Measured on public boards: 16 KiB among 4 behind a switch 14.7 us by NCCL and 7.7 us one-shot; 14 KiB among 8 over PCIe 24 us; 292 us over two
/// islands; 1.1 ms through the host among 16.
pub fn all_reduce_us(launch: &Launch<'_>, bytes: f64) -> f64 {
    let s = launch.settings;
    if s.tp < 2 {
        return 0.0;
    }
    let ranks = f64::from(s.tp);
    let across = s.nodes > 1 && launch.ranks_per_host() < s.tp;
    let two = ["two_islands", "islands_of_four", "bridged_by_the_cpu"].iter().any(|w| launch.described(w));
    if launch.described("through_the_host") && ranks > 8.0 {
        return 1100.0;
    }
    if two && s.tp > 4 {
        return 290.0;
    }
    let (latency, gb_s) = match launch.hardware.interconnect {
        _ if across => (60.0, 20.0),
        Interconnect::Nvlink => (6.0 + ranks * 0.4, 300.0),
        _ if uses_custom_all_reduce(launch) => (6.0, 25.0),
        _ if launch.settings.env_on("NCCL_P2P_DISABLE") => (40.0 + ranks * 4.0, 10.0),
        _ => (6.0 + ranks * 2.2, 20.0),
    };
    latency + 2.0 * bytes * (ranks - 1.0) / ranks / (gb_s * 1e3)
}

/// Share of drafted tokens that are accepted, each after those before it: published acceptance lengths range from 1.8 to 2.8.
const ACCEPTED: f64 = 0.6;

/// Figures of the launch's decode step.
pub fn numbers(launch: &Launch<'_>) -> Numbers {
    let mut out = Numbers::new();
    let drafted = launch.settings.speculative.as_ref().map_or(0, |s| s.draft_tokens);
    let Some(one) = step(launch, 1.0, f64::from(drafted + 1)) else { return out };
    if one.all_reduces > 0.0 {
        out.insert("allreduce_count_per_step".to_owned(), one.all_reduces);
        out.insert("comm_share".to_owned(), one.communication_share());
    }
    let draft_ms = f64::from(drafted) * one.total_ms() / launch.model.layers.unwrap_or(60).max(1) as f64 * 1.5;
    let accepted: f64 = (0..=drafted).map(|i| libm::pow(ACCEPTED, f64::from(i))).sum();
    let ms = one.total_ms() + draft_ms;
    let rate = accepted / ms * 1e3;
    let plain = drafted == 0 && launch.settings.pp == 1 && launch.settings.nodes <= 1 && launch.model.spec.is_some();
    if plain {
        out.insert("step_ms".to_owned(), ms);
        out.insert("decode_tok_s_c1".to_owned(), rate);
    } else {
        out.insert("decode_tok_s_c1_at_least".to_owned(), rate * 0.5);
        out.insert("decode_tok_s_c1_at_most".to_owned(), rate * 1.6);
    }
    if plain {
        for (name, batch) in [("decode_tok_s_c8", 8.0), ("decode_tok_s_c32", 32.0)] {
            if let Some(s) = step(launch, batch, 1.0).filter(|_| f64::from(launch.settings.max_num_seqs) >= batch) {
                out.insert(format!("{name}_at_most"), batch / s.total_ms() * 1e3);
            }
        }
    }
    out
}
