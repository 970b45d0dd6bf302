//! What the KV cache of a token costs a rank, and what a request of some length needs.

use crate::model::{AttentionKind, Model};
use crate::question::Engine;
use crate::settings::Settings;

/// Costs of a cache on one rank, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Per token of layers that keep every token.
    pub per_token: f64,
    /// Per token of layers that keep a window of them.
    pub windowed: f64,
    /// Tokens that those keep: the window, and a prefill chunk on top in vLLM.
    pub window: f64,
    /// Per sequence: states of linear attention.
    pub per_sequence: f64,
}

impl Cost {
    /// Bytes of one request of `tokens` tokens.
    pub fn request(&self, tokens: f64) -> f64 {
        self.per_token * tokens + self.windowed * tokens.min(self.window) + self.per_sequence
    }
    /// The longest request that fits `bytes`.
    pub fn longest(&self, bytes: f64) -> f64 {
        let rest = bytes - self.per_sequence;
        if rest <= 0.0 {
            return 0.0;
        }
        let both = self.per_token + self.windowed;
        if both <= 0.0 {
            return f64::INFINITY;
        }
        let inside = rest / both;
        if inside <= self.window || self.per_token <= 0.0 { inside } else { (rest - self.windowed * self.window) / self.per_token }
    }
    /// Whether some layers do not keep every token.
    pub fn hybrid(&self) -> bool {
        self.windowed > 0.0 || self.per_sequence > 0.0
    }
}

/// Whether the cache has 8-bit elements.
pub fn is_fp8(kv_dtype: &str) -> bool {
    kv_dtype.starts_with("fp8") || kv_dtype == "int8"
}

/// Bytes of an element; four bits have an 8-bit scale for every 16.
fn element_bytes(kv_dtype: &str) -> f64 {
    match kv_dtype {
        fp8 if is_fp8(fp8) => 1.0,
        fp4 if fp4.contains("fp4") => 0.5 + 1.0 / 16.0,
        _ => 2.0,
    }
}

/// The cost on the rank that holds most layers; `None` where the model's shape is not known.
pub fn cost(settings: &Settings, model: &Model) -> Option<Cost> {
    let layers = model.layers?;
    let bytes = element_bytes(&settings.kv_dtype);
    let stage = super::weights::stages(usize::try_from(layers.min(4096)).ok()?, settings.pp, settings.env("VLLM_PP_LAYER_PARTITION"));
    let share = stage.iter().copied().max()? as f64 / layers.max(1) as f64;
    let mut cost = if let Some((c4, c128)) = model.shape.compressed {
        compressed(layers as f64, c4 as f64, c128 as f64)
    } else {
        match model.attention {
            AttentionKind::Mla => Cost { per_token: layers as f64 * latent(model)? * bytes, ..Cost::default() },
            AttentionKind::SparseMla => Cost { per_token: layers as f64 * sparse(model, bytes)?, ..Cost::default() },
            AttentionKind::Gqa | AttentionKind::HybridLinear => heads(settings, model, bytes)?,
        }
    };
    let draft = settings.speculative.as_ref().is_some_and(|s| s.draft_model.is_none());
    if draft && settings.engine == Engine::Vllm && model.mtp_layers.unwrap_or(0) > 0 {
        // vLLM's pool holds the draft layer's cache too.
        let full = model.full_attention_layers.unwrap_or(layers).max(1) as f64;
        cost.per_token *= (full + model.mtp_layers.unwrap_or(0) as f64) / full;
    }
    let chunk = settings.max_batched_tokens.unwrap_or(8192) as f64;
    cost.window = match settings.engine {
        // A windowed layer keeps the window and what one step may add (SlidingWindowSpec.max_memory_usage_bytes).
        Engine::Vllm => model.sliding_window.unwrap_or(128) as f64 - 1.0 + chunk,
        Engine::Sglang => model.sliding_window.unwrap_or(128) as f64,
    };
    if settings.engine == Engine::Vllm {
        // A state for the certain token and one for each drafted (MambaSpec: num_speculative_blocks).
        cost.per_sequence *= 1.0 + settings.speculative.as_ref().map_or(0.0, |s| f64::from(s.draft_tokens.min(64)));
    }
    let dcp = if matches!(model.attention, AttentionKind::Mla | AttentionKind::SparseMla) { f64::from(settings.dcp.max(1)) } else { 1.0 };
    Some(Cost {
        per_token: cost.per_token * share / dcp,
        windowed: cost.windowed * share,
        per_sequence: cost.per_sequence * share / f64::from(settings.attention_tp().max(1)),
        ..cost
    })
}

fn latent(model: &Model) -> Option<f64> {
    Some((model.kv_lora? + model.rope_dim.unwrap_or(64)) as f64)
}

/// Latent and indexer key. An 8-bit latent has a layout of its own: 512 B, 4 scales of 4 B, 64 rotary values in 16 bit = 656 B; the indexer's key
/// is 8-bit with a 4-byte scale in either case (vLLM `fp8_ds_mla`, SGLang NSA).
fn sparse(model: &Model, bytes: f64) -> Option<f64> {
    let indexer = model.shape.indexer_dim.unwrap_or(128) as f64 + 4.0;
    if bytes < 2.0 {
        return Some(match model.kv_bytes_per_token_layer_fp8 {
            Some(given) => given as f64,
            None => 656.0 + indexer,
        });
    }
    Some(latent(model)? * 2.0 + indexer)
}

/// Keys and values per KV head; a head is never cut, so ranks beyond the heads repeat them.
fn heads(settings: &Settings, model: &Model, bytes: f64) -> Option<Cost> {
    let (layers, kv, dim) = (model.layers?, model.kv_heads?, model.head_dim?);
    let ranks = u64::from(settings.attention_tp().max(1));
    let (windowed, full) = match (model.sliding_layers, model.full_attention_layers) {
        (Some(windowed), full) => (windowed, full.unwrap_or(layers.saturating_sub(windowed))),
        (None, Some(full)) => (0, full),
        (None, None) => (0, layers),
    };
    let (full_kv, full_dim) = model.shape.full_heads.unwrap_or((kv, dim));
    let per = |kv: u64, dim: u64| 2.0 * kv.div_ceil(ranks).max(1) as f64 * dim as f64 * bytes;
    let indexer = model.shape.indexer_dim.map_or(0.0, |d| d as f64 + 4.0);
    let linear = if model.attention == AttentionKind::HybridLinear { layers.saturating_sub(full + windowed) as f64 } else { 0.0 };
    Some(Cost {
        per_token: full as f64 * (per(full_kv, full_dim) + indexer),
        windowed: windowed as f64 * per(kv, dim),
        per_sequence: linear * linear_state(model),
        window: 0.0,
    })
}

/// State of a linear-attention layer: 128 x 128 values of 4 B a head, and three columns of the convolution.
fn linear_state(model: &Model) -> f64 {
    let heads = model.shape.linear_value_heads.or(model.linear_heads).unwrap_or(32) as f64;
    heads * 128.0 * 128.0 * 4.0 + 3.0 * 2.0 * (heads * 128.0 + 2.0 * 16.0 * 128.0)
}

/// DeepSeek V4. A cached row is 584 B, an indexer row 132 B. Layers that compress by 4 keep a row every 4 tokens and an indexer row, those that
/// compress by 128 one every 128; all keep a window of raw rows, and their compressors keep 32-bit states of the tokens that a step adds
/// (2 x 2 x 512 values and 2 x 2 x 128 of the indexer, or 2 x 512). Pages are padded to one size: 1.36 times the rows, from two lengths
/// that one published start reports (6.66 GiB for 30,000 tokens, 5.44 for 13,528).
fn compressed(layers: f64, c4: f64, c128: f64) -> Cost {
    const PADDING: f64 = 1.36;
    let plain = (layers - c4 - c128).max(0.0);
    Cost {
        per_token: c4 * (584.0 + 132.0) / 4.0 + c128 * 584.0 / 128.0,
        windowed: PADDING * (c4 * (584.0 + 8192.0 + 2048.0) + c128 * (584.0 + 4096.0) + plain * 584.0),
        ..Cost::default()
    }
}
