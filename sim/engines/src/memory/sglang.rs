//! SGLang's share of memory: defaults by card, `mem_fraction_static`, the pool.

use crate::version::Version;

/// Defaults that depend on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// `chunked_prefill_size`.
    pub chunked_prefill: u64,
    /// `cuda_graph_max_bs`.
    pub graph_max_batch: u32,
}

/// The defaults for a card of `gpu_mib` (0.5.9, `_handle_gpu_memory_settings`).
pub fn defaults(gpu_mib: Option<f64>, tp: u32) -> Defaults {
    const KI: f64 = 1024.0;
    let small = tp < 4;
    let (chunked_prefill, graph_max_batch) = match gpu_mib {
        None => (4096, 160),
        Some(m) if m < 20.0 * KI => (2048, 8),
        Some(m) if m < 35.0 * KI => (2048, if small { 24 } else { 80 }),
        Some(m) if m < 60.0 * KI => (4096, if small { 32 } else { 160 }),
        Some(m) if m < 160.0 * KI => (8192, if small { 256 } else { 512 }),
        Some(_) => (16384, 512),
    };
    Defaults { chunked_prefill, graph_max_batch }
}

/// What the default fraction is computed from.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserve {
    /// Memory of the card, MiB, where known.
    pub gpu_mib: Option<f64>,
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Attention data parallelism, 1 without.
    pub dp: u32,
    /// Tokens of a prefill chunk, or the longest prefill where chunking is off.
    pub chunk: u64,
    /// Largest captured batch.
    pub graph_max_batch: u32,
    /// `EAGLE`, `STANDALONE`, ...
    pub speculative: Option<String>,
    /// Layers and width of the vision tower of a multimodal class.
    pub vision: Option<(u64, u64)>,
    /// DeepEP dispatch.
    pub deepep: bool,
    /// Latent attention.
    pub mla: bool,
}

/// The default of `--mem-fraction-static`, and what it is made of, for people.
///
/// Read in 0.5.9 (`_handle_gpu_memory_settings`, `adjust_mem_fraction_for_vlm`), 0.5.23 (`arg_groups/memory_hook.py`); releases before
/// 0.4.10 had a table by tensor-parallel size.
pub fn default_fraction(reserve: &Reserve, version: &Version) -> (f64, String) {
    if !version.at_least("0.4.10") {
        let fraction = match reserve.tp {
            16.. => 0.79,
            8..=15 => 0.81,
            4..=7 => 0.85,
            2..=3 => 0.87,
            _ => 0.88,
        };
        return (fraction, format!("{fraction} by the table for {} tensor-parallel ranks", reserve.tp));
    }
    let newest = version.at_least("0.5.23");
    let Some(gpu_mib) = reserve.gpu_mib else {
        return if newest { (0.95, "0.95, the memory is not known".into()) } else { (0.88, "0.88, the memory is not known".into()) };
    };
    let mib = reserved_mib(reserve, gpu_mib, newest);
    let fraction = libm::round((gpu_mib - mib) / gpu_mib * 1000.0) / 1000.0;
    match vision_factor(reserve) {
        Some(factor) => (
            fraction * factor,
            format!("({gpu_mib:.0} - {mib:.0}) / {gpu_mib:.0} MiB = {fraction:.3}, times {factor:.4} for the vision tower"),
        ),
        None => (fraction, format!("({gpu_mib:.0} - {mib:.0}) / {gpu_mib:.0} MiB = {fraction:.3}")),
    }
}

fn reserved_mib(reserve: &Reserve, gpu_mib: f64, newest: bool) -> f64 {
    let batch = f64::from(reserve.graph_max_batch);
    let mut mib = 512.0 + 1.5 * reserve.chunk.max(2048) as f64 + 2.0 * batch + 1024.0 * f64::from(reserve.tp * reserve.pp) / 8.0;
    if reserve.dp > 1 {
        mib += 3.0 * batch * f64::from(reserve.dp);
        if reserve.graph_max_batch > 300 {
            mib += 1.5 * batch * f64::from(reserve.dp);
        }
    }
    if newest && reserve.mla {
        mib += 1536.0;
    }
    if newest && reserve.deepep {
        mib += 2048.0 + 1024.0;
    }
    if gpu_mib > 60.0 * 1024.0 {
        mib = mib.max(10_240.0);
    }
    mib + match reserve.speculative.as_deref().map(str::to_uppercase).as_deref() {
        Some("STANDALONE") => 6144.0,
        Some("EAGLE" | "EAGLE3" | "NEXTN") => 2048.0,
        _ => 0.0,
    }
}

fn vision_factor(reserve: &Reserve) -> Option<f64> {
    let (layers, width) = reserve.vision?;
    let complexity = layers as f64 * (width * width) as f64 / (24.0 * 1024.0 * 1024.0);
    Some(0.95 * (1.0 - 0.1 * (complexity - 1.0)).clamp(0.8, 1.05))
}

/// The pool: what is free after loading less what the fraction keeps aside of what was free before. GiB; negative where it does not start.
pub fn pool_gib(free_before: f64, free_after: f64, fraction: f64) -> f64 {
    free_after - free_before * (1.0 - fraction)
}

/// The smallest fraction that leaves a pool.
pub fn minimum_fraction(free_before: f64, free_after: f64) -> f64 {
    1.0 - free_after / free_before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Engine;

    fn kimi(graph_max_batch: u32, speculative: Option<&str>) -> f64 {
        let reserve = Reserve {
            gpu_mib: Some(97_887.0),
            tp: 8,
            pp: 1,
            dp: 1,
            chunk: 8192,
            graph_max_batch,
            speculative: speculative.map(str::to_owned),
            vision: Some((27, 1152)),
            deepep: false,
            mla: true,
        };
        default_fraction(&reserve, &Version::parse(Engine::Sglang, "0.5.9")).0
    }

    /// RTX PRO 6000, tp 8, Kimi-K2.5: the four values that the formula of 0.5.9 gives.
    #[test]
    fn default_fractions_of_the_origin_story() {
        for (batch, spec, want) in [(512, None, 0.7715), (128, None, 0.7787), (512, Some("EAGLE3"), 0.7524), (128, Some("EAGLE3"), 0.7596)]
        {
            let got = kimi(batch, spec);
            assert!((got - want).abs() < 6e-5, "{batch} {spec:?}: {got}");
        }
    }

    #[test]
    fn pools_of_the_origin_story() {
        assert!((pool_gib(94.0, 21.7, 0.7715) - 0.22).abs() < 0.01);
        assert!((pool_gib(94.0, 21.7, 0.7787) - 0.90).abs() < 0.01);
        assert!((pool_gib(94.0, 16.3, 0.7715) + 5.2).abs() < 0.05);
        assert!((pool_gib(94.0, 16.3, 0.92) - 8.8).abs() < 0.05);
        assert!((minimum_fraction(94.0, 16.3) - 0.827).abs() < 0.001);
        // Two logged refusals: 12.25 of 137.9 GiB left, and 3.07 less with a draft.
        assert!((minimum_fraction(138.0, 12.25) - 0.9113).abs() < 0.0005);
        assert!((minimum_fraction(138.0, 12.25 - 3.07) - 0.9335).abs() < 0.0005);
    }

    #[test]
    fn defaults_by_card() {
        assert_eq!(defaults(Some(97_887.0), 8), Defaults { chunked_prefill: 8192, graph_max_batch: 512 });
        assert_eq!(defaults(Some(24_000.0), 2), Defaults { chunked_prefill: 2048, graph_max_batch: 24 });
        assert_eq!(defaults(None, 8).graph_max_batch, 160);
    }
}
