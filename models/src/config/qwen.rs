//! Qwen2-MoE, Qwen3-MoE, and the hybrids Qwen3-Next and Qwen3.5 with linear attention in most layers.

use super::common::{Body, Context, FfnNames, MLP_NAMES, MoeShape};
use super::deepseek::speculation_layers;
use super::fields::{MAX_HEADS, MAX_INTERMEDIATE, MAX_LAYERS};
use super::gqa::plain_experts;
use super::rope::RopeDefaults;
use super::{router, vision};
use crate::dtype::WeightFormat;
use crate::spec::{Attention, GqaSpec, LayerSpec, LinearAttentionSpec, QkNorm};

/// Window of the classes where the file says only that there is one.
const DEFAULT_WINDOW: u32 = 4096;
const NAMES: FfnNames = FfnNames { shared: "shared_expert", ..MLP_NAMES };

pub(super) fn read_qwen2(ctx: &Context<'_>) -> Option<Body> {
    let text = ctx.text;
    let attention = ctx.plain_gqa(None, false, &ctx.rope_defaults());
    let bias = text.bool_or(&["qkv_bias"], true);
    let windows = qwen2_windows(ctx);
    let shape = experts(ctx, &["num_experts"], false, true);
    let sparse = ctx.sparse_by_step();
    let dense = ctx.dense_intermediate(sparse.as_deref());
    let (bias, windows, attention) = (bias?, windows?, attention?);
    let attention = GqaSpec { qkv_bias: bias, ..attention };
    layers(ctx, sparse, dense, shape, |i| ctx.gqa(i, &GqaSpec { window: windows[i], ..attention.clone() }))
}

/// The window of each layer: `layer_types`, or every other one of the first `max_window_layers`, where windows are in use at all.
fn qwen2_windows(ctx: &Context<'_>) -> Option<Vec<Option<u32>>> {
    let text = ctx.text;
    let used = text.bool_or(&["use_sliding_window"], false)?;
    let window = if used { ctx.window()?.unwrap_or(DEFAULT_WINDOW) } else { 0 };
    let last = text.u64_or(&["max_window_layers"], 0..=MAX_LAYERS, 28)?;
    let default = |i: usize| if used && i.is_multiple_of(2) && (i as u64) < last { "sliding_attention" } else { "full_attention" };
    let types = ctx.layer_types(&["full_attention", "sliding_attention"], default)?;
    if !used && let Some(i) = types.iter().position(|t| *t == "sliding_attention") {
        text.element_fault("layer_types", i, "is \"sliding_attention\", but use_sliding_window is false", "full_attention");
        return None;
    }
    Some(types.iter().map(|t| (*t == "sliding_attention").then_some(window)).collect())
}

pub(super) fn read_qwen3(ctx: &Context<'_>) -> Option<Body> {
    let text = ctx.text;
    let attention = ctx.plain_gqa(None, false, &ctx.rope_defaults());
    let bias = text.bool_or(&["attention_bias"], false);
    let used = text.bool_or(&["use_sliding_window"], false)?;
    // With windows in use an absent size is the class's, but an explicit null is none.
    let window = match (used, text.mentions("sliding_window")) {
        (false, _) => None,
        (true, false) => Some(ctx.text.assume("sliding_window", DEFAULT_WINDOW)),
        (true, true) => ctx.window()?,
    };
    let shape = experts(ctx, &["num_experts", "num_local_experts"], false, false);
    let sparse = ctx.sparse_by_step();
    let dense = ctx.dense_intermediate(sparse.as_deref());
    let (bias, attention) = (bias?, attention?);
    let attention = GqaSpec { qkv_bias: bias, o_bias: bias, qk_norm: QkNorm::PerHead, window, ..attention };
    layers(ctx, sparse, dense, shape, |i| ctx.gqa(i, &attention))
}

pub(super) fn read_next(ctx: &Context<'_>) -> Option<Body> {
    hybrid(ctx, &["in_proj_qkvz", "out_proj"])
}

pub(super) fn read_qwen3_5(ctx: &Context<'_>) -> Option<Body> {
    hybrid(ctx, &["in_proj_qkv", "in_proj_z", "out_proj"])
}

/// Qwen3.5 with its vision tower.
pub(super) fn read_qwen3_5_wrapper(ctx: &Context<'_>) -> Option<Body> {
    let body = read_qwen3_5(ctx);
    let outside = vision::qwen(ctx);
    Some(Body { outside: outside?, ..body? })
}

/// Experts with an optional gated shared one.
fn experts(ctx: &Context<'_>, count: &[&str], normalize: bool, shared: bool) -> Option<MoeShape> {
    let experts = ctx.experts(count, &["num_experts_per_tok"]);
    let intermediate = ctx.intermediate("moe_intermediate_size");
    let normalize = ctx.text.bool_assumed(&["norm_topk_prob"], normalize);
    let shared_size = if shared { ctx.text.u64(&["shared_expert_intermediate_size"], 0..=MAX_INTERMEDIATE)? } else { 0 };
    let shape = plain_experts(experts, intermediate, normalize.map(router::softmax))?;
    Some(MoeShape { shared: (shared_size > 0).then_some((shared_size, true)), ..shape })
}

fn layers(
    ctx: &Context<'_>,
    sparse: Option<Vec<bool>>,
    dense: Option<u64>,
    shape: Option<MoeShape>,
    attention: impl Fn(usize) -> Option<Attention>,
) -> Option<Body> {
    let (sparse, dense, shape) = (sparse?, dense?, shape?);
    let layer = |(i, &sparse): (usize, &bool)| {
        let ffn = ctx.ffn(i, &NAMES, sparse.then_some(&shape), dense)?;
        Some(LayerSpec { attention: attention(i)?, ffn })
    };
    let layers: Option<Vec<_>> = sparse.iter().enumerate().map(layer).collect();
    Some(layers?.into())
}

/// `projections` are those of linear attention that a scheme may quantize; the small ones of beta and decay never are.
fn hybrid(ctx: &Context<'_>, projections: &[&str]) -> Option<Body> {
    let text = ctx.text;
    let rope = RopeDefaults { partial: 0.25, partial_allowed: true, ..ctx.rope_defaults() };
    let attention = ctx.plain_gqa(Some(256), false, &rope);
    let bias = text.bool_or(&["attention_bias"], false);
    let gate = text.bool_or(&["attn_output_gate"], true);
    let linear = linear(ctx);
    let interval = text.u64_or(&["full_attention_interval"], 1..=MAX_LAYERS, 4)?;
    let default = |i: usize| if (i as u64 + 1).is_multiple_of(interval) { "full_attention" } else { "linear_attention" };
    let types = ctx.layer_types(&["linear_attention", "full_attention"], default);
    let shape = experts(ctx, &["num_experts"], true, true);
    let sparse = ctx.sparse_by_step();
    let dense = ctx.dense_intermediate(sparse.as_deref());
    speculation_layers(ctx);
    ctx.sink.warn("the state of linear attention is no tensor of the graph: the ledger counts it, and its steps are costed with reading and writing it");
    let (attention, bias, output_gate, linear, types) = (attention?, bias?, gate?, linear?, types?);
    let full = GqaSpec { qkv_bias: bias, o_bias: bias, qk_norm: QkNorm::PerHead, output_gate, ..attention };
    let inputs = [ctx.base.as_ref()?.hidden, u64::from(linear.value_heads) * u64::from(linear.value_dim)];
    layers(ctx, sparse, dense, shape, |i| {
        if types[i] == "full_attention" {
            return ctx.gqa(i, &full);
        }
        let format = ctx.attention_format(i, "linear_attn", projections, &inputs)?;
        Some(Attention::Linear(LinearAttentionSpec { format, ..linear.clone() }))
    })
}

fn linear(ctx: &Context<'_>) -> Option<LinearAttentionSpec> {
    let number = |key: &str, default: u64| ctx.text.u64_or(&[key], 1..=MAX_HEADS, default).map(|n| n as u32);
    let key_heads = number("linear_num_key_heads", 16);
    let value_heads = number("linear_num_value_heads", 32);
    let (key_dim, value_dim) = (number("linear_key_head_dim", 128), number("linear_value_head_dim", 128));
    let conv_width = number("linear_conv_kernel_dim", 4);
    let (key_heads, value_heads) = (key_heads?, value_heads?);
    if !value_heads.is_multiple_of(key_heads) {
        let problem = format!("is {value_heads}, not a multiple of the {key_heads} key heads");
        ctx.text.fault("linear_num_value_heads", problem, format!("a multiple of {key_heads}"));
        return None;
    }
    Some(LinearAttentionSpec {
        key_heads,
        value_heads,
        key_dim: key_dim?,
        value_dim: value_dim?,
        conv_width: conv_width?,
        format: WeightFormat::Bf16,
    })
}
