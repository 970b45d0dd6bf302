//! Attention blocks: multi-head latent, grouped-query, and gated linear attention.

use super::builder::{Builder, Projection};
use crate::graph::NewTensor;
use crate::ids::TensorId;
use crate::op::{LinearRole, Op};
use crate::spec::{GqaSpec, LinearAttentionSpec, MlaSpec, QkNorm};
use crate::step::Phase;
use crate::weight::WeightRole;
use crate::{DType, Dim, Segment, WeightFormat};

/// One unit that no split cuts, for the parts of compressed projections.
fn whole(width: u32) -> Segment {
    Segment::new(1, width)
}

/// `[heads * width]`, cut by heads.
fn heads(count: u32, width: u32) -> Dim {
    Dim::Packed(vec![Segment::new(count, width)])
}

/// The projection back to the hidden size, whose contracted dimension is cut by heads.
fn output_projection(b: &mut Builder<'_>, o: TensorId, cols: Dim, bias: bool, format: WeightFormat) -> TensorId {
    let rows = b.hidden();
    let bias = bias.then_some(WeightRole::OBias);
    b.project(o, Projection { role: LinearRole::O, name: "attn.o", weight: WeightRole::O, bias, rows, cols, format })
}

/// Multi-head latent attention of `x[T, H]`.
pub(super) fn mla(b: &mut Builder<'_>, s: &MlaSpec, x: TensorId) -> TensorId {
    let (q, latent) = mla_projections(b, s, x);
    let cache_row = Dim::Packed(vec![whole(s.kv_lora), whole(s.rope_dim)]);
    let positions = b.positions();
    let cache = b.cache(cache_row);
    let results = vec![b.activation("attn.q_rotated", b.shape(q).to_vec()), b.updated_cache(cache)];
    let out = b.node(Op::MlaRope { nope: s.nope, rope: s.rope.clone() }, vec![q, latent, positions, cache], results);
    let (q, cache) = (out[0], out[1]);
    let kv_b_shape = vec![heads(s.heads, s.nope + s.v_dim), Dim::Fixed(u64::from(s.kv_lora))];
    let kv_b = b.weight("attn.kv_b.weight", WeightRole::KvB, kv_b_shape, s.format);
    let o = if b.step().phase == Phase::Prefill && s.sparse_topk.is_none() && !b.absorbed() {
        mla_expanded(b, s, q, cache, kv_b)
    } else {
        mla_absorbed(b, s, x, q, cache, kv_b)
    };
    output_projection(b, o, heads(s.heads, s.v_dim), s.bias, s.format)
}

/// `(q[T, heads * (nope | rope)], latent[T, kv_lora | rope])`.
fn mla_projections(b: &mut Builder<'_>, s: &MlaSpec, x: TensorId) -> (TensorId, TensorId) {
    let latent_dim = Dim::Packed(vec![whole(s.kv_lora), whole(s.rope_dim)]);
    let q_dim = heads(s.heads, s.nope + s.rope_dim);
    let bias = s.bias.then_some(WeightRole::QaKvaBias);
    let norm = Op::MlaNorm { eps: s.latent_norm_eps, q_lora: s.q_lora, kv_lora: s.kv_lora };
    let kv_lora = Dim::Fixed(u64::from(s.kv_lora));
    let hidden = b.hidden();
    let Some(q_lora) = s.q_lora else {
        let direct = Projection {
            role: LinearRole::Qb,
            name: "attn.q",
            weight: WeightRole::QDirect,
            bias: None,
            rows: q_dim,
            cols: hidden.clone(),
            format: s.format,
        };
        let q = b.project(x, direct);
        let compress = Projection {
            role: LinearRole::QaKva,
            name: "attn.kv_a",
            weight: WeightRole::Kva,
            bias,
            rows: latent_dim.clone(),
            cols: hidden,
            format: s.format,
        };
        let kv_a = b.project(x, compress);
        let kv_norm = b.vector("attn.kv_a_norm.weight", WeightRole::KvaNorm, kv_lora);
        let result = b.activation("attn.latent", vec![Dim::Tokens, latent_dim]);
        return (q, b.node(norm, vec![kv_a, kv_norm], vec![result])[0]);
    };
    let compress = Projection {
        role: LinearRole::QaKva,
        name: "attn.qkv_a",
        weight: WeightRole::QaKva,
        bias,
        rows: Dim::Packed(vec![whole(q_lora), whole(s.kv_lora), whole(s.rope_dim)]),
        cols: hidden,
        format: s.format,
    };
    let qkv_a = b.project(x, compress);
    let q_a_dim = Dim::Fixed(u64::from(q_lora));
    let q_norm = b.vector("attn.q_a_norm.weight", WeightRole::QaNorm, q_a_dim.clone());
    let kv_norm = b.vector("attn.kv_a_norm.weight", WeightRole::KvaNorm, kv_lora);
    let results =
        vec![b.activation("attn.q_a", vec![Dim::Tokens, q_a_dim.clone()]), b.activation("attn.latent", vec![Dim::Tokens, latent_dim])];
    let out = b.node(norm, vec![qkv_a, q_norm, kv_norm], results);
    let expand = Projection {
        role: LinearRole::Qb,
        name: "attn.q",
        weight: WeightRole::Qb,
        bias: None,
        rows: q_dim,
        cols: q_a_dim,
        format: s.format,
    };
    (b.project(out[0], expand), out[1])
}

/// Every head's keys and values from the whole cache, then attention in head space.
fn mla_expanded(b: &mut Builder<'_>, s: &MlaSpec, q: TensorId, cache: TensorId, kv_b: TensorId) -> TensorId {
    let dtype = b.spec.dtype;
    let kv_shape = vec![Dim::KvRows, heads(s.heads, s.nope + s.v_dim)];
    let kv = b.one(Op::MlaExpandKv, vec![cache, kv_b], "attn.kv", kv_shape, dtype);
    let attend = Op::MlaPrefill { nope: s.nope, v_dim: s.v_dim, scale: s.softmax_scale };
    b.one(attend, vec![q, kv, cache], "attn.values", vec![Dim::Tokens, heads(s.heads, s.v_dim)], dtype)
}

/// Attention in latent space; `x` feeds the indexer of sparse attention.
fn mla_absorbed(b: &mut Builder<'_>, s: &MlaSpec, x: TensorId, q: TensorId, cache: TensorId, kv_b: TensorId) -> TensorId {
    let dtype = b.spec.dtype;
    let absorb = Op::MlaAbsorbQuery { nope: s.nope, rope_dim: s.rope_dim, v_dim: s.v_dim };
    let q_shape = vec![Dim::Tokens, heads(s.heads, s.kv_lora + s.rope_dim)];
    let q_latent = b.one(absorb, vec![q, kv_b], "attn.q_latent", q_shape, dtype);
    let mut operands = vec![q_latent, cache];
    if let Some(topk) = s.sparse_topk {
        let shape = vec![Dim::Tokens, Dim::Fixed(u64::from(topk))];
        operands.push(b.one(Op::SparseIndex { topk }, vec![x, cache], "attn.selection", shape, DType::I32));
    }
    let attend = Op::MlaDecode { kv_lora: s.kv_lora, scale: s.softmax_scale, sparse_topk: s.sparse_topk, split_context: false };
    let o_latent = b.one(attend, operands, "attn.o_latent", vec![Dim::Tokens, heads(s.heads, s.kv_lora)], dtype);
    let expand = Op::MlaExpandValue { nope: s.nope, v_dim: s.v_dim };
    b.one(expand, vec![o_latent, kv_b], "attn.values", vec![Dim::Tokens, heads(s.heads, s.v_dim)], dtype)
}

/// Grouped-query attention of `x[T, H]`.
pub(super) fn gqa(b: &mut Builder<'_>, s: &GqaSpec, x: TensorId) -> TensorId {
    let dtype = b.spec.dtype;
    let hidden = b.hidden();
    let (q_part, kv_part) = (Segment::new(s.heads, s.head_dim), Segment::replicable(s.kv_heads, s.head_dim));
    let q_dim = Dim::Packed(vec![q_part]);
    let fused = Projection {
        role: LinearRole::Qkv,
        name: "attn.qkv",
        weight: WeightRole::Qkv,
        bias: s.qkv_bias.then_some(WeightRole::QkvBias),
        rows: Dim::Packed(vec![q_part, kv_part, kv_part]),
        cols: hidden.clone(),
        format: s.format,
    };
    let mut qkv = b.project(x, fused);
    let eps = b.spec.norm_eps;
    if s.qk_norm == QkNorm::Full {
        let mut operands = vec![qkv];
        operands.push(b.vector("attn.q_norm.weight", WeightRole::QNorm, q_dim.clone()));
        operands.push(b.vector("attn.k_norm.weight", WeightRole::KNorm, Dim::Packed(vec![kv_part])));
        qkv = b.one(Op::QkNorm { eps, clip: s.clip }, operands, "attn.qkv_normed", b.shape(qkv).to_vec(), dtype);
    }
    let mut operands = vec![qkv, b.positions()];
    let cache = b.cache(Dim::Packed(vec![kv_part, kv_part]));
    operands.push(cache);
    let per_head = s.qk_norm == QkNorm::PerHead;
    if per_head {
        let head_dim = Dim::Fixed(u64::from(s.head_dim));
        operands.push(b.vector("attn.q_norm.weight", WeightRole::QNorm, head_dim.clone()));
        operands.push(b.vector("attn.k_norm.weight", WeightRole::KNorm, head_dim));
    }
    let results = vec![b.activation("attn.q", vec![Dim::Tokens, q_dim.clone()]), b.updated_cache(cache)];
    let prepare = Op::QkvPrepare { head_dim: s.head_dim, rope: s.rope.clone(), qk_norm_eps: per_head.then_some(eps) };
    let mut operands = b.node(prepare, operands, results);
    if s.sinks {
        operands.push(b.vector("attn.sinks.weight", WeightRole::Sinks, heads(s.heads, 1)));
    }
    let attend = Op::GqaAttention { head_dim: s.head_dim, scale: s.softmax_scale, window: s.window, split_context: false };
    let mut o = b.one(attend, operands, "attn.values", vec![Dim::Tokens, q_dim.clone()], dtype);
    if s.output_gate {
        let gate = Projection {
            role: LinearRole::Other,
            name: "attn.gate",
            weight: WeightRole::Other(0),
            bias: None,
            rows: q_dim.clone(),
            cols: hidden,
            format: s.format,
        };
        let gate = b.project(x, gate);
        o = b.one(Op::SigmoidScale, vec![o, gate], "attn.gated", vec![Dim::Tokens, q_dim.clone()], dtype);
    }
    output_projection(b, o, q_dim, s.o_bias, s.format)
}

/// Gated linear attention of `x[T, H]`; cost only.
pub(super) fn linear(b: &mut Builder<'_>, s: &LinearAttentionSpec, x: TensorId) -> TensorId {
    let dtype = b.spec.dtype;
    let hidden = b.hidden();
    let plain = b.spec.plain_format();
    let (k, v) = (Segment::new(s.key_heads, s.key_dim), Segment::new(s.value_heads, s.value_dim));
    let per_head = Segment::new(s.value_heads, 1);
    let mut project = |name, index, parts: Vec<Segment>, format| {
        let p = Projection {
            role: LinearRole::Other,
            name,
            weight: WeightRole::Other(index),
            bias: None,
            rows: Dim::Packed(parts),
            cols: hidden.clone(),
            format,
        };
        b.project(x, p)
    };
    let qkvz = project("attn.qkvz", 0, vec![k, k, v, v], s.format);
    // A few rows a head: checkpoints leave them unquantized.
    let ba = project("attn.ba", 1, vec![per_head, per_head], plain);
    let conv_shape = vec![Dim::Packed(vec![k, k, v]), Dim::Fixed(u64::from(s.conv_width))];
    let conv = b.weight("attn.conv.weight", WeightRole::Other(2), conv_shape, plain);
    let op = Op::LinearAttention {
        key_heads: s.key_heads,
        value_heads: s.value_heads,
        key_dim: s.key_dim,
        value_dim: s.value_dim,
        conv_width: s.conv_width,
    };
    let result = NewTensor { dtype, ..b.activation("attn.values", vec![Dim::Tokens, Dim::Packed(vec![v])]) };
    let o = b.node(op, vec![qkvz, ba, conv], vec![result])[0];
    output_projection(b, o, Dim::Packed(vec![v]), false, s.format)
}
