//! gpt-oss: attention sinks, a window in every other layer, biases, and clamped gated experts.

use super::common::{Body, Context, MLP_NAMES, MoeShape};
use super::gqa::plain_experts;
use super::rope::RopeDefaults;
use super::router;
use crate::rope::yarn_mscale;
use crate::spec::{Activation, Attention, Ffn, GqaSpec, LayerSpec, RopeScaling};

/// Steepness of the gate's sigmoid (transformers 5.17, `GptOssExperts`); files of 5.24 may name it `swiglu_alpha`.
const ALPHA: f64 = 1.702;
/// Clamp of gate and up there; newer files name it `swiglu_limit`.
const LIMIT: f64 = 7.0;
/// Window of `GptOssConfig`.
const DEFAULT_WINDOW: u32 = 128;
/// Context extension of `GptOssConfig`, where the file has no rotary parameters.
const DEFAULT_FACTOR: f64 = 32.0;

pub(super) fn read(ctx: &Context<'_>) -> Option<Body> {
    let text = ctx.text;
    let heads = ctx.heads(Some(64), false);
    let absent = RopeScaling::Yarn {
        factor: DEFAULT_FACTOR,
        original_positions: 4096.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: yarn_mscale(DEFAULT_FACTOR, 1.0),
        truncate: false,
    };
    let rope = RopeDefaults { absent, ..ctx.rope_defaults() };
    let bias = text.bool_or(&["attention_bias"], true);
    let window = ctx.window().map(|w| w.unwrap_or(DEFAULT_WINDOW));
    let default = |i: usize| if i.is_multiple_of(2) { "sliding_attention" } else { "full_attention" };
    let types = ctx.layer_types(&["sliding_attention", "full_attention"], default);
    let experts = ctx.experts(&["num_local_experts", "num_experts"], &["num_experts_per_tok", "experts_per_token"]);
    let alpha = text.f64_or(&["swiglu_alpha"], 0.0..=1e6, ALPHA);
    let limit = text.f64_or(&["swiglu_limit"], 0.0..=1e6, LIMIT);
    let shape = plain_experts(experts, ctx.intermediate("intermediate_size"), Some(router::softmax_topk(true)));
    let (heads, bias, window, types) = (heads?, bias?, window?, types?);
    let (alpha, limit, shape) = (alpha?, limit?, shape?);
    let shape = MoeShape { activation: Activation::ClampedSwiglu { alpha, limit }, expert_bias: true, ..shape };
    let attention = |layer_type: &str| -> Option<GqaSpec> {
        let rope = ctx.rope(heads.head_dim, layer_type, &rope)?;
        let window = (layer_type == "sliding_attention").then_some(window);
        Some(GqaSpec { qkv_bias: bias, o_bias: bias, window, sinks: true, ..heads.spec(Some(rope.spec)) })
    };
    let layer = |(i, layer_type): (usize, &&'static str)| -> Option<LayerSpec> {
        let attention: Attention = ctx.gqa(i, &attention(layer_type)?)?;
        Some(LayerSpec { attention, ffn: Ffn::Moe(ctx.moe(i, &MLP_NAMES, &shape)?) })
    };
    let layers: Option<Vec<_>> = types.iter().enumerate().map(layer).collect();
    Some(layers?.into())
}
