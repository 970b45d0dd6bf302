//! What loading holds beyond the weights themselves.

use super::GIB;
use super::weights::{Cut, EXPERTS, Held};
use crate::catalog::{Amount, Parts};
use crate::hardware::Hardware;
use crate::model::Model;
use crate::question::Engine;
use crate::settings::Settings;

/// Growth of weights from file to GPU, as factors of lines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Growth {
    /// Of the routed experts.
    pub(super) experts: f64,
    /// Of sharded attention.
    pub(super) attention: f64,
}

/// How backends lay weights out: padding, wider scales, projections without an 8-bit kernel.
pub(super) fn growth(settings: &Settings, model: &Model, hardware: &Hardware) -> Growth {
    let mut growth = Growth { experts: 1.0, attention: 1.0 };
    let fp4_cores = hardware.sm.is_some_and(|sm| sm >= 100);
    if model.weights.checkpoint_method.as_deref() == Some("mxfp4") && settings.engine == Engine::Vllm && !native_fp4(settings, hardware) {
        growth.experts = padded(model, settings);
    }
    if model.shape.compressed.is_some() && settings.engine == Engine::Sglang && !fp4_cores {
        // Marlin keeps group scales in 16 bit (0.5625 B a weight, 0.53125 in the file).
        growth.experts = 0.5625 / 0.53125;
        if let Some((sharded, _)) = model.shape.attention_m {
            growth.attention = (sharded + model.shape.widened_m) / sharded;
        }
    }
    growth
}

/// Since 0.10.1 vLLM rounds the hidden size of an MXFP4 expert up to 256 and, for Marlin, its width to 128: 65.97 GiB of gpt-oss-120b for 61 in the
/// file, and 64.38 with the Triton kernels, which take widths in steps of 64.
fn padded(model: &Model, settings: &Settings) -> f64 {
    if !settings.version.at_least("0.10.1") || settings.version.says("pre") {
        return 1.0;
    }
    let (Some(hidden), Some(width)) = (model.hidden, model.moe_intermediate) else { return 1.0 };
    let shard = width as f64 / f64::from(settings.moe_tp.max(1));
    let step = if settings.moe_backend.starts_with("triton") { 64.0 } else { 128.0 };
    let rows = libm::ceil(shard / step) * step;
    hidden.next_multiple_of(256) as f64 * rows / (hidden as f64 * shard)
}

/// Whether FP4 weights keep their file layout: SM100 kernels, or a build that names its SM12x ones.
pub(super) fn native_fp4(settings: &Settings, hardware: &Hardware) -> bool {
    let said = settings.version.text.to_lowercase();
    matches!(hardware.sm, Some(100 | 103)) || said.contains("cutlass") || said.contains("12.1a") || settings.moe_backend.contains("cutlass")
}

/// GiB at the worst moment of loading, and why.
pub(super) fn load_peak(
    settings: &Settings,
    model: &Model,
    hardware: &Hardware,
    parts: &Parts,
    cut: &Cut,
    held: &Held,
) -> (f64, Option<String>) {
    let gib = held.gib();
    if quantizes_online(settings, model) {
        // Everything that will be 8-bit is there in 16 bits first; vLLM quantizes layer by layer only since 0.14.
        let layerwise = settings.engine == Engine::Vllm && settings.version.at_least("0.14.0");
        let wide = held.total().params * 2.0 / GIB;
        if !layerwise {
            return (wide, Some(format!("{wide:.1} GiB of 16-bit weights are loaded before they are quantized")));
        }
    }
    let marlin = !native_fp4(settings, hardware);
    if settings.engine == Engine::Vllm && marlin && hardware.unified && model.weights.checkpoint_method.as_deref() == Some("mxfp4") {
        let experts = parts.layers.iter().fold(Amount::default(), |sum, l| sum.plus(l.experts)).bytes / cut.expert_ranks / GIB;
        let peak = gib + experts;
        return (
            peak,
            Some(format!("repacking for Marlin holds {experts:.1} GiB of experts twice, and on unified memory the host pays for it")),
        );
    }
    let largest = parts.layers.iter().map(|l| l.experts.bytes / cut.expert_ranks).fold(0.0, f64::max) / GIB;
    (gib + largest, None)
}

/// Whether 16-bit weights are quantized while they are loaded.
pub(super) fn quantizes_online(settings: &Settings, model: &Model) -> bool {
    settings.online_quantization || settings.quantization.as_deref() == Some("fp8") && model.weights.method == "bf16"
}

/// Applies growth to a rank's lines.
#[must_use]
pub(super) fn grown(held: Held, growth: Growth) -> Held {
    let lines = held.lines.into_iter().map(|(name, amount)| {
        let factor = match name {
            EXPERTS => growth.experts,
            super::weights::ATTENTION => growth.attention,
            _ => 1.0,
        };
        (name, Amount { bytes: amount.bytes * factor, ..amount })
    });
    Held { lines: lines.collect() }
}

/// Bytes of an all-to-all backend's buffers on each rank.
pub(super) fn all_to_all_gib(settings: &Settings, model: &Model) -> f64 {
    if !settings.a2a_active {
        return 0.0;
    }
    let (hidden, topk, experts) =
        (model.hidden.unwrap_or(7168) as f64, model.topk.unwrap_or(8) as f64, model.experts.unwrap_or(256) as f64);
    let ep = f64::from(settings.ep.max(1));
    if settings.a2a.starts_with("flashinfer") {
        // moe_a2a_get_workspace_size_per_rank as SGLang 0.5.9 calls it; rows travel as NVFP4 unless the flag is off or EAGLE is on.
        let per_rank =
            settings.env("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK").and_then(|v| v.parse::<f64>().ok()).unwrap_or(1024.0);
        let eagle = settings.speculative.as_ref().is_some_and(|s| s.method.to_uppercase().starts_with("EAGLE"));
        let narrow = !settings.env_off("SGLANG_MOE_NVFP4_DISPATCH") && !eagle;
        let dispatch = if narrow { hidden / 2.0 + hidden / 16.0 + 8.0 * topk } else { 2.0 * hidden + 8.0 * topk };
        return ep * (per_rank * ep) * (dispatch + 2.0 * hidden) / GIB;
    }
    if settings.a2a.starts_with("deepep") || settings.a2a.starts_with("mooncake") {
        if settings.deepep_mode == "normal" || settings.a2a.ends_with("high_throughput") {
            return 1.0;
        }
        // Low latency: send and receive buffers, twice, of 128 rows an expert (Buffer.get_low_latency_rdma_size_hint).
        return 4.0 * experts * 128.0 * (2.0 * hidden + 16.0) / GIB;
    }
    0.0
}
