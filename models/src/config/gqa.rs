//! Blocks of grouped-query attention, and the families that are little more: Mixtral, OLMoE, Phi, Granite, MiniMax, GLM.

use super::common::{Body, Context, FfnNames, Heads, MLP_NAMES, MoeShape, SPARSE_NAMES};
use super::deepseek::speculation_layers;
use super::fields::{MAX_HEADS, MAX_POSITIONS};
use super::rope::RopeDefaults;
use super::router::{self, GroupDefaults};
use crate::dtype::WeightFormat;
use crate::spec::{Activation, Attention, Ffn, GqaSpec, LayerSpec, QkNorm, RopeSpec, RouterSpec};

/// The block's name and its projections, below `model.layers.N.`.
pub(super) const ATTENTION: &str = "self_attn";
/// Least `clip_qkv`; 0 would leave nothing of queries, keys and values.
const LEAST_CLIP: f64 = 1e-6;
const PROJECTIONS: &[&str] = &["q_proj", "k_proj", "v_proj", "o_proj"];

impl Heads {
    /// A block with these heads and nothing special.
    pub(super) fn spec(&self, rope: Option<RopeSpec>) -> GqaSpec {
        GqaSpec {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            rope,
            softmax_scale: 1.0 / f64::from(self.head_dim).sqrt(),
            qkv_bias: false,
            o_bias: false,
            qk_norm: QkNorm::None,
            clip: None,
            window: None,
            sinks: false,
            output_gate: false,
            format: WeightFormat::Bf16,
        }
    }
}

impl Context<'_> {
    /// The block of one layer in that layer's format.
    pub(super) fn gqa(&self, layer: usize, spec: &GqaSpec) -> Option<Attention> {
        let inputs = [self.base.as_ref()?.hidden, u64::from(spec.heads) * u64::from(spec.head_dim)];
        let format = self.attention_format(layer, ATTENTION, PROJECTIONS, &inputs)?;
        Some(Attention::Gqa(GqaSpec { format, ..spec.clone() }))
    }

    /// Heads and rotary embedding of a family whose layers are alike.
    pub(super) fn plain_gqa(&self, head_dim: Option<u32>, kv_optional: bool, rope: &RopeDefaults) -> Option<GqaSpec> {
        let heads = self.heads(head_dim, kv_optional)?;
        let rope = self.rope(heads.head_dim, "full_attention", rope)?;
        Some(heads.spec(Some(rope.spec)))
    }

    /// `sliding_window`, where `null` and absence are no window.
    pub(super) fn window(&self) -> Option<Option<u32>> {
        Some(self.text.maybe_u64(&["sliding_window"], 1..=MAX_POSITIONS)?.map(|w| w as u32))
    }

    /// A model whose layers all have the same attention and the same experts.
    fn uniform(&self, attention: Option<GqaSpec>, names: &FfnNames, shape: Option<MoeShape>) -> Option<Body> {
        let (attention, shape) = (attention?, shape?);
        let layer = |i| {
            let ffn = Ffn::Moe(self.moe(i, names, &shape)?);
            Some(LayerSpec { attention: self.gqa(i, &attention)?, ffn })
        };
        let layers: Option<Vec<_>> = (0..self.base.as_ref()?.layers).map(layer).collect();
        Some(layers?.into())
    }
}

/// Experts without a shared one or biases.
pub(super) fn plain_experts(experts: Option<(u32, u32)>, intermediate: Option<u64>, router: Option<RouterSpec>) -> Option<MoeShape> {
    let ((experts, topk), intermediate, router) = (experts?, intermediate?, router?);
    Some(MoeShape { experts, topk, intermediate, router, activation: Activation::Silu, expert_bias: false, shared: None })
}

pub(super) fn read_mixtral(ctx: &Context<'_>) -> Option<Body> {
    let attention = ctx.plain_gqa(None, false, &ctx.rope_defaults());
    let window = ctx.window();
    let experts = ctx.experts(&["num_local_experts", "num_experts"], &["num_experts_per_tok"]);
    let shape = plain_experts(experts, ctx.intermediate("intermediate_size"), Some(router::softmax(true)));
    let window = window?;
    ctx.uniform(attention.map(|a| GqaSpec { window, ..a }), &SPARSE_NAMES, shape)
}

pub(super) fn read_olmoe(ctx: &Context<'_>) -> Option<Body> {
    let text = ctx.text;
    let attention = ctx.plain_gqa(None, true, &ctx.rope_defaults());
    let bias = text.bool_or(&["attention_bias"], false);
    let experts = ctx.experts(&["num_experts", "num_local_experts"], &["num_experts_per_tok"]);
    let normalize = text.bool_assumed(&["norm_topk_prob"], false);
    let shape = plain_experts(experts, ctx.intermediate("intermediate_size"), normalize.map(router::softmax));
    let clip = text.maybe_f64(&["clip_qkv"], LEAST_CLIP..=1e6);
    let (bias, clip) = (bias?, clip?);
    ctx.uniform(attention.map(|a| GqaSpec { qkv_bias: bias, o_bias: bias, qk_norm: QkNorm::Full, clip, ..a }), &MLP_NAMES, shape)
}

pub(super) fn read_phimoe(ctx: &Context<'_>) -> Option<Body> {
    let text = ctx.text;
    let attention = ctx.plain_gqa(None, false, &ctx.rope_defaults());
    let window = ctx.window();
    let bias = text.bool_or(&["attention_bias"], false);
    let experts = ctx.experts(&["num_local_experts", "num_experts"], &["num_experts_per_tok"]);
    let shape = plain_experts(experts, ctx.intermediate("intermediate_size"), Some(router::softmax(false)));
    ctx.sink.warn("layer norms are modelled as RMSNorms, sparse-mixer routing as a softmax; the bias of the head is left out");
    let (bias, window) = (bias?, window?);
    ctx.uniform(attention.map(|a| GqaSpec { qkv_bias: bias, o_bias: bias, window, ..a }), &SPARSE_NAMES, shape)
}

pub(super) fn read_granite(ctx: &Context<'_>) -> Option<Body> {
    let text = ctx.text;
    let attention = ctx.plain_gqa(None, true, &ctx.rope_defaults());
    let bias = text.bool_or(&["attention_bias"], false);
    let softmax_scale = text.f64_or(&["attention_multiplier"], 0.0..=1e6, 1.0);
    let experts = ctx.experts(&["num_local_experts", "num_experts"], &["num_experts_per_tok"]);
    let shape = plain_experts(experts, ctx.intermediate("intermediate_size"), Some(router::softmax_topk(false)));
    ctx.sink.warn("the multipliers of embeddings, residuals and logits are left out: they cost nothing");
    let (bias, softmax_scale) = (bias?, softmax_scale?);
    ctx.uniform(attention.map(|a| GqaSpec { qkv_bias: bias, o_bias: bias, softmax_scale, ..a }), &SPARSE_NAMES, shape)
}

pub(super) fn read_minimax(ctx: &Context<'_>) -> Option<Body> {
    let text = ctx.text;
    let heads = ctx.heads(Some(128), false);
    // The model's own files give the rotated dimensions, transformers their share.
    let rotated = text.maybe_u64(&["rotary_dim"], 2..=MAX_HEADS);
    let partial = match (&heads, rotated) {
        (Some(h), Some(Some(r))) => r as f64 / f64::from(h.head_dim),
        _ => 1.0,
    };
    if partial > 1.0 {
        text.fault("rotary_dim", "is larger than head_dim", "at most head_dim");
        return None;
    }
    let rope =
        heads.and_then(|h| ctx.rope(h.head_dim, "full_attention", &RopeDefaults { partial, partial_allowed: true, ..ctx.rope_defaults() }));
    let norm = text.bool_or(&["use_qk_norm"], true);
    let bias = text.bool_or(&["use_routing_bias"], true);
    let scoring = text.maybe_choice(&["scoring_func"], &["sigmoid"]);
    let shared = text.maybe_u64(&["shared_intermediate_size"], 0..=0);
    let kinds = text.maybe_numbers("attn_type_list", 1..=1);
    let experts = ctx.experts(&["num_local_experts", "num_experts"], &["num_experts_per_tok"]);
    let intermediate = ctx.intermediate("intermediate_size");
    speculation_layers(ctx);
    rotated?;
    scoring?;
    shared?;
    kinds?;
    let router = RouterSpec { correction_bias: bias?, normalize_eps: 0.0, ..router::sigmoid(true) };
    let qk_norm = if norm? { QkNorm::Full } else { QkNorm::None };
    let attention = GqaSpec { qk_norm, ..heads?.spec(Some(rope?.spec)) };
    ctx.uniform(Some(attention), &SPARSE_NAMES, plain_experts(experts, intermediate, Some(router)))
}

pub(super) fn read_glm4(ctx: &Context<'_>) -> Option<Body> {
    let text = ctx.text;
    let attention = ctx.plain_gqa(None, false, &RopeDefaults { partial: 0.5, partial_allowed: true, ..ctx.rope_defaults() });
    let bias = text.bool_or(&["attention_bias"], false);
    let norm = text.bool_or(&["use_qk_norm"], false);
    let experts = ctx.experts(&["n_routed_experts", "num_local_experts"], &["num_experts_per_tok"]);
    let router = router::deepseek_v3(ctx, experts, &GroupDefaults { groups: 1, topk_groups: 1, scale: 1.0 });
    let intermediate = ctx.intermediate("moe_intermediate_size");
    let shared = text.u64_or(&["n_shared_experts"], 0..=1024, 1);
    let sparse = ctx.sparse_after(1);
    let dense = ctx.dense_intermediate(sparse.as_deref());
    speculation_layers(ctx);
    let shape = plain_experts(experts, intermediate, router);
    let (bias, norm, shared, sparse, dense, attention, shape) = (bias?, norm?, shared?, sparse?, dense?, attention?, shape?);
    let qk_norm = if norm { QkNorm::PerHead } else { QkNorm::None };
    let attention = GqaSpec { qkv_bias: bias, qk_norm, ..attention };
    let shared = (shared > 0).then_some((shared * shape.intermediate, false));
    let shape = MoeShape { shared, ..shape };
    let layer = |(i, &sparse): (usize, &bool)| {
        let ffn = ctx.ffn(i, &MLP_NAMES, sparse.then_some(&shape), dense)?;
        Some(LayerSpec { attention: ctx.gqa(i, &attention)?, ffn })
    };
    let layers: Option<Vec<_>> = sparse.iter().enumerate().map(layer).collect();
    Some(layers?.into())
}
