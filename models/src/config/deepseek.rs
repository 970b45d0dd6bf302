//! DeepSeek-V2, V3, V3.2, Kimi-K2 and GLM with sparse attention: multi-head latent attention, experts after some dense layers.

use super::common::{Body, Context, FfnNames, MLP_NAMES, MoeShape};
use super::fields::{MAX_HEADS, MAX_LAYERS, MAX_WIDTH};
use super::router::{self, GroupDefaults};
use crate::dtype::WeightFormat;
use crate::spec::{Activation, Attention, LayerSpec, MlaSpec, OutsideModule, RouterSpec};
use crate::summary::matrix_bytes;

/// Epsilon of the norms on the compressed query and key-value: transformers builds them with the default of its norm class,
/// whatever `rms_norm_eps` says.
const LATENT_NORM_EPS: f64 = 1e-6;
const ATTENTION: &str = "self_attn";
/// Group defaults of `DeepseekV3Config`, which Kimi-K2 shares.
const V3_GROUPS: GroupDefaults = GroupDefaults { groups: 8, topk_groups: 4, scale: 2.5 };

pub(super) fn read_v2(ctx: &Context<'_>) -> Option<Body> {
    let experts = ctx.experts(&["n_routed_experts", "num_experts"], &["num_experts_per_tok"]);
    let router = router::deepseek_v2(ctx, experts);
    // Only this family's class reads it.
    let bias = ctx.text.bool_or(&["mlp_bias"], false)?;
    let body = read_with(ctx, experts, router, &FfnNames { bias, ..MLP_NAMES }, 0, None)?;
    Some(body.into())
}

pub(super) fn read_v3(ctx: &Context<'_>) -> Option<Body> {
    let experts = ctx.experts(&["n_routed_experts", "num_local_experts"], &["num_experts_per_tok"]);
    let router = router::deepseek_v3(ctx, experts, &V3_GROUPS);
    let layers = read_with(ctx, experts, router, &MLP_NAMES, 3, None)?;
    speculation_layers(ctx);
    Some(layers.into())
}

/// DeepSeek-V3.2: V3 with sparse attention behind a lightning indexer.
pub(super) fn read_v32(ctx: &Context<'_>) -> Option<Body> {
    read_sparse(ctx, &V3_GROUPS, IndexDefaults { heads: 64, head_dim: 128, topk: 2048 })
}

/// GLM-5: the same, with other defaults (`GlmMoeDsaConfig`).
pub(super) fn read_glm_dsa(ctx: &Context<'_>) -> Option<Body> {
    let groups = GroupDefaults { groups: 1, topk_groups: 1, scale: 2.5 };
    read_sparse(ctx, &groups, IndexDefaults { heads: 32, head_dim: 128, topk: 2048 })
}

/// Layers that only speculation loads.
pub(super) fn mtp_layers(ctx: &Context<'_>) -> u32 {
    let keys = &["num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules"];
    // At most MAX_LAYERS, which fits.
    ctx.text.maybe_u64(keys, 0..=MAX_LAYERS).flatten().map_or(0, |n| n as u32)
}

/// Warns about layers that only speculation loads.
pub(super) fn speculation_layers(ctx: &Context<'_>) {
    let n = mtp_layers(ctx);
    if n > 0 {
        let s = if n == 1 { "" } else { "s" };
        ctx.sink.warn(format!("{n} multi-token-prediction layer{s} left out: only speculative decoding loads them"));
    }
}

struct IndexDefaults {
    heads: u64,
    head_dim: u64,
    topk: u64,
}

fn read_sparse(ctx: &Context<'_>, groups: &GroupDefaults, index: IndexDefaults) -> Option<Body> {
    let text = ctx.text;
    let experts = ctx.experts(&["n_routed_experts", "num_local_experts", "num_experts"], &["num_experts_per_tok"]);
    let router = router::deepseek_v3(ctx, experts, groups);
    let heads = text.u64_assumed(&["index_n_heads"], 1..=MAX_HEADS, index.heads);
    let head_dim = text.u64_assumed(&["index_head_dim"], 1..=MAX_HEADS, index.head_dim);
    let topk = text.u64_assumed(&["index_topk"], 1..=MAX_WIDTH, index.topk).map(|k| k as u32);
    let layers = read_with(ctx, experts, router, &MLP_NAMES, 3, topk)?;
    speculation_layers(ctx);
    let base = ctx.base.as_ref()?;
    let q_lora = text.u64(&["q_lora_rank"], 1..=MAX_WIDTH)?;
    let (heads, head_dim, plain) = (heads?, head_dim?, WeightFormat::plain(base.dtype));
    // wq_b, wk, weights_proj and the norm of the keys (transformers 5.17, DeepseekV32Indexer).
    let shapes = [(heads * head_dim, q_lora), (head_dim, base.hidden), (heads, base.hidden), (2, head_dim)];
    ctx.sink.warn(format!(
        "the lightning indexer's weights are counted as replicated and its scores costed roughly; its cache of {head_dim} numbers a token and layer is left out"
    ));
    let bytes = matrix_bytes(plain, &shapes) * base.layers as u64;
    Some(Body { layers, outside: vec![OutsideModule { name: "lightning indexer".into(), bytes_per_rank: bytes }] })
}

fn read_with(
    ctx: &Context<'_>,
    experts: Option<(u32, u32)>,
    router: Option<RouterSpec>,
    names: &FfnNames,
    first_dense: u64,
    sparse_topk: Option<u32>,
) -> Option<Vec<LayerSpec>> {
    let text = ctx.text;
    let mla = read_mla(ctx, sparse_topk);
    let expert = ctx.intermediate("moe_intermediate_size");
    let shared = text.maybe_u64(&["n_shared_experts"], 0..=1024);
    let sparse = if text.has("mlp_layer_types") { sparse_by_name(ctx) } else { ctx.sparse_after(first_dense) };
    let dense = ctx.dense_intermediate(sparse.as_deref());
    let (mla, dense, expert, sparse, router) = (mla?, dense?, expert?, sparse?, router?);
    let (experts, topk) = experts?;
    let shared = shared?.filter(|&n| n > 0).map(|n| (n * expert, false));
    let shape = MoeShape { experts, topk, intermediate: expert, router, activation: Activation::Silu, expert_bias: false, shared };
    let projections: &[&str] = match mla.q_lora {
        Some(_) => &["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
        None => &["q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
    };
    let mut inputs = vec![ctx.base.as_ref()?.hidden, u64::from(mla.kv_lora), u64::from(mla.heads) * u64::from(mla.v_dim)];
    inputs.extend(mla.q_lora.map(u64::from));
    let layer = |(i, &sparse): (usize, &bool)| {
        let format = ctx.attention_format(i, ATTENTION, projections, &inputs)?;
        let ffn = ctx.ffn(i, names, sparse.then_some(&shape), dense)?;
        Some(LayerSpec { attention: Attention::Mla(MlaSpec { format, ..mla.clone() }), ffn })
    };
    sparse.iter().enumerate().map(layer).collect()
}

/// `mlp_layer_types`, one of `dense` and `sparse` for each layer.
fn sparse_by_name(ctx: &Context<'_>) -> Option<Vec<bool>> {
    let layers = ctx.base.as_ref()?.layers;
    let given = ctx.text.maybe_strings("mlp_layer_types")??;
    if given.len() != layers {
        let problem = format!("has {} entries for {layers} layers", given.len());
        ctx.text.fault("mlp_layer_types", problem, format!("a list of {layers}"));
        return None;
    }
    if let Some(i) = given.iter().position(|w| !["dense", "sparse"].contains(w)) {
        ctx.text.element_fault("mlp_layer_types", i, format!("is {:?}", given[i]), "dense, sparse");
        return None;
    }
    Some(given.iter().map(|w| *w == "sparse").collect())
}

fn read_mla(ctx: &Context<'_>, sparse_topk: Option<u32>) -> Option<MlaSpec> {
    let text = ctx.text;
    let heads = text.u32(&["num_attention_heads"], 1..=MAX_HEADS);
    let kv_heads = text.maybe_u64(&["num_key_value_heads"], 1..=MAX_HEADS);
    let q_lora = text.maybe_u64(&["q_lora_rank"], 1..=MAX_WIDTH);
    let kv_lora = text.u32(&["kv_lora_rank"], 1..=MAX_WIDTH);
    let nope = text.u32(&["qk_nope_head_dim"], 1..=MAX_HEADS);
    let rope_dim = text.u32(&["qk_rope_head_dim"], 2..=MAX_HEADS);
    let v_dim = text.u32(&["v_head_dim"], 1..=MAX_HEADS);
    let whole = text.maybe_u64(&["qk_head_dim"], 1..=2 * MAX_HEADS);
    let bias = text.bool_or(&["attention_bias"], false);
    let interleaved = text.bool_or(&["rope_interleave"], true);
    let rope = match (rope_dim, interleaved) {
        (Some(dim), Some(interleaved)) => {
            ctx.rope(dim, "full_attention", &super::rope::RopeDefaults { interleaved, ..ctx.rope_defaults() })
        }
        _ => None,
    };
    if !text.mentions("q_lora_rank") {
        // The classes' default rank is rarely the right one; null says that queries are not compressed.
        text.fault("q_lora_rank", "is missing", "a whole number, or null for queries without compression");
        return None;
    }
    let (heads, nope, rope_dim) = (heads?, nope?, rope_dim?);
    if let Some(kv) = kv_heads?
        && kv != u64::from(heads)
    {
        let problem = format!("is {kv}, but latent attention has one key and value for each of the {heads} heads");
        text.fault("num_key_value_heads", problem, heads.to_string());
        return None;
    }
    if let Some(given) = whole?
        && given != u64::from(nope + rope_dim)
    {
        let problem = format!("is {given}, but qk_nope_head_dim and qk_rope_head_dim add up to {}", nope + rope_dim);
        text.fault("qk_head_dim", problem, (nope + rope_dim).to_string());
        return None;
    }
    let rope = rope?;
    Some(MlaSpec {
        heads,
        q_lora: q_lora?.map(|r| r as u32),
        kv_lora: kv_lora?,
        nope,
        rope_dim,
        v_dim: v_dim?,
        softmax_scale: rope.score_factor / f64::from(nope + rope_dim).sqrt(),
        rope: rope.spec,
        latent_norm_eps: LATENT_NORM_EPS,
        bias: bias?,
        format: ctx.plain(),
        sparse_topk,
    })
}
