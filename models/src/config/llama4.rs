//! Llama 4: experts in every layer or every other one, chunked attention with rotary embedding, and layers without position between.

use super::common::{Body, Context, FfnNames, MLP_NAMES, MoeShape};
use super::fields::{MAX_LAYERS, MAX_POSITIONS};
use super::gqa::plain_experts;
use super::{router, vision};
use crate::spec::{GqaSpec, LayerSpec};

const NAMES: FfnNames = FfnNames { block: "feed_forward", shared: "shared_expert", ..MLP_NAMES };

/// The decoder with its vision tower.
pub(super) fn read_wrapper(ctx: &Context<'_>) -> Option<Body> {
    let body = read(ctx);
    let outside = vision::llama4(ctx);
    Some(Body { outside: outside?, ..body? })
}

pub(super) fn read(ctx: &Context<'_>) -> Option<Body> {
    let text = ctx.text;
    let heads = ctx.heads(Some(128), false);
    let rope = heads.and_then(|h| ctx.rope(h.head_dim, "chunked_attention", &ctx.rope_defaults()));
    let bias = text.bool_or(&["attention_bias"], false);
    let chunk = text.u64_or(&["attention_chunk_size"], 1..=MAX_POSITIONS, 8192);
    let rotated = rotated_layers(ctx);
    let sparse = sparse_layers(ctx);
    let experts = ctx.experts(&["num_local_experts", "num_experts"], &["num_experts_per_tok"]);
    let intermediate = ctx.intermediate("intermediate_size");
    let dense = match &sparse {
        Some(layers) if layers.contains(&false) => ctx.intermediate("intermediate_size_mlp"),
        _ => Some(1),
    };
    ctx.sink.warn(
        "chunked attention is costed as a sliding window of one chunk; temperature tuning and the norm of queries and keys are left out",
    );
    let shape = plain_experts(experts, intermediate, Some(router::sigmoid(false)))?;
    // The shared expert has the routed experts' size (transformers 5.17, `Llama4TextMoe`).
    let shape = MoeShape { shared: Some((shape.intermediate, false)), ..shape };
    let (heads, rope, bias, chunk, dense) = (heads?, rope?, bias?, chunk?, dense?);
    let (rotated, sparse) = (rotated?, sparse?);
    let layer = |i: usize| {
        let (rope, window) = if rotated[i] { (Some(rope.spec.clone()), Some(chunk as u32)) } else { (None, None) };
        let attention = GqaSpec { qkv_bias: bias, o_bias: bias, window, ..heads.spec(rope) };
        let ffn = ctx.ffn(i, &NAMES, sparse[i].then_some(&shape), dense)?;
        Some(LayerSpec { attention: ctx.gqa(i, &attention)?, ffn })
    };
    let layers: Option<Vec<_>> = (0..sparse.len()).map(layer).collect();
    Some(layers?.into())
}

/// `no_rope_layers` holds a 1 for each layer with rotary embedding; without it every fourth layer has none.
fn rotated_layers(ctx: &Context<'_>) -> Option<Vec<bool>> {
    let layers = ctx.base.as_ref()?.layers;
    let interval = ctx.text.u64_or(&["no_rope_layer_interval"], 1..=MAX_LAYERS, 4)?;
    match ctx.text.maybe_numbers("no_rope_layers", 0..=1)?.filter(|l| !l.is_empty()) {
        Some(given) if given.len() == layers => Some(given.iter().map(|&r| r == 1).collect()),
        Some(given) => {
            let problem = format!("has {} entries for {layers} layers", given.len());
            ctx.text.fault("no_rope_layers", problem, format!("a list of {layers}"));
            None
        }
        None => Some((1..=layers as u64).map(|i| !i.is_multiple_of(interval)).collect()),
    }
}

/// `moe_layers`, or every `interleave_moe_layer_step`th layer.
fn sparse_layers(ctx: &Context<'_>) -> Option<Vec<bool>> {
    let layers = ctx.base.as_ref()?.layers;
    let step = ctx.text.u64_or(&["interleave_moe_layer_step"], 1..=MAX_LAYERS, 1)?;
    let Some(given) = ctx.text.maybe_numbers("moe_layers", 0..=layers as u64 - 1)? else {
        return Some((1..=layers as u64).map(|i| i.is_multiple_of(step)).collect());
    };
    let mut sparse = vec![false; layers];
    given.iter().for_each(|&i| sparse[i as usize] = true);
    Some(sparse)
}
