//! Shapes and element types, recomputed from the operands.

use super::{Check, Rule, View};
use crate::DType;
use crate::dim::{Dim, Segment};
use crate::graph::{Tensor, TensorKind};
use crate::op::{LinearRole, Op};
use crate::text::shape_text;

/// Shapes of the results, or what is wrong with the operands.
type Shapes = Result<Vec<Vec<Dim>>, String>;

impl Check<'_> {
    pub(super) fn shapes(&mut self) {
        let graph = self.graph;
        for (id, tensor) in graph.tensors.iter() {
            if tensor.shape.is_empty() || tensor.shape.len() > 3 {
                self.tensor_fault(Rule::Shape, id, "tensors have one to three dimensions");
            }
            if matches!(tensor.kind, TensorKind::Cache { .. }) && tensor.dtype != graph.deployment.kv_dtype {
                let kv = graph.deployment.kv_dtype.name();
                self.tensor_fault(Rule::ElementType, id, format!("caches of this deployment are {kv}"));
            }
        }
        for (id, node) in graph.nodes.iter() {
            let view = View { graph, node };
            match shapes(view) {
                Err(message) => self.node_fault(Rule::Shape, id, message),
                Ok(wanted) => {
                    for (i, shape) in wanted.iter().enumerate() {
                        if view.output(i).is_some_and(|t| t.shape != *shape) {
                            self.node_fault(Rule::Shape, id, format!("result {i} must be {}", shape_text(shape)));
                        }
                    }
                }
            }
            for message in element_types(view) {
                self.node_fault(Rule::ElementType, id, message);
            }
        }
    }
}

fn is_rows(dim: &Dim) -> bool {
    matches!(dim, Dim::Tokens | Dim::LogitsRows | Dim::Received)
}

/// Operand `i` as a matrix of activations.
fn rows(v: View<'_>, i: usize) -> Result<(&Dim, &Dim), String> {
    match v.input(i).map(|t| t.shape.as_slice()) {
        Some([r, c]) if is_rows(r) => Ok((r, c)),
        _ => Err(format!("operand {i} must be rows of activations")),
    }
}

/// Operand `i` as a weight matrix `[out, in]`.
fn matrix(v: View<'_>, i: usize) -> Result<(&Dim, &Dim), String> {
    match v.input(i).map(|t| t.shape.as_slice()) {
        Some([n, k]) if !is_rows(n) => Ok((n, k)),
        _ => Err(format!("operand {i} must be a matrix")),
    }
}

/// Operand `i` as a cache; its row.
fn cache(v: View<'_>, i: usize) -> Result<&Dim, String> {
    match v.input(i).map(|t| t.shape.as_slice()) {
        Some([Dim::KvRows, row]) => Ok(row),
        _ => Err(format!("operand {i} must be rows of a cache")),
    }
}

fn dim_text(dim: &Dim) -> String {
    shape_text(std::slice::from_ref(dim))
}

fn equal(what: &str, a: &Dim, b: &Dim) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what} differ: {} and {}", dim_text(a), dim_text(b))) }
}

fn shaped(v: View<'_>, i: usize, wanted: &[Dim]) -> Result<(), String> {
    match v.input(i) {
        Some(t) if t.shape != wanted => Err(format!("operand {i} must be {}", shape_text(wanted))),
        _ => Ok(()),
    }
}

/// A packed dimension as its segments.
fn segments(dim: &Dim) -> &[Segment] {
    if let Dim::Packed(s) = dim { s } else { &[] }
}

/// Heads of a dimension that is `heads * width`.
fn heads(what: &str, dim: &Dim, width: u64) -> Result<u32, String> {
    match segments(dim) {
        [s] if u64::from(s.width) == width && !s.replicable => Ok(s.units),
        _ => Err(format!("{what} must be heads of {width}, not {}", dim_text(dim))),
    }
}

fn packed(units: u32, width: u64) -> Result<Dim, String> {
    let width = u32::try_from(width).map_err(|_| format!("a head of {width} is too wide"))?;
    Ok(Dim::Packed(vec![Segment::new(units, width)]))
}

fn wide(a: u32, b: u32) -> u64 {
    u64::from(a) + u64::from(b)
}

/// The positions of `rows`, when `rows` are tokens.
fn positions(v: View<'_>, i: usize, rows: &Dim) -> Result<(), String> {
    shaped(v, i, std::slice::from_ref(rows))
}

fn shapes(v: View<'_>) -> Shapes {
    let same = |i: usize| -> Shapes { Ok(vec![v.input(i).map_or(Vec::new(), |t| t.shape.clone())]) };
    match &v.node.op {
        Op::Embed => {
            shaped(v, 0, &[Dim::Tokens])?;
            match matrix(v, 1)? {
                (Dim::Vocab(_), h) => Ok(vec![vec![Dim::Tokens, h.clone()]]),
                _ => Err("operand 1 must be a table over the vocabulary".into()),
            }
        }
        Op::RmsNorm { .. } => {
            let (_, h) = rows(v, 0)?;
            shaped(v, 1, std::slice::from_ref(h))?;
            same(0)
        }
        Op::AddRmsNorm { .. } | Op::AllReduceAddRmsNorm { .. } => {
            let (r, h) = rows(v, 0)?;
            let shape = vec![r.clone(), h.clone()];
            shaped(v, 1, &shape)?;
            shaped(v, 2, std::slice::from_ref(h))?;
            Ok(vec![shape.clone(), shape])
        }
        Op::Add => {
            let (r, c) = rows(v, 0)?;
            shaped(v, 1, &[r.clone(), c.clone()])?;
            same(0)
        }
        Op::Linear { .. } => {
            let ((r, k), (n, wk)) = (rows(v, 0)?, matrix(v, 1)?);
            equal("contracted dimensions", k, wk)?;
            shaped(v, 2, std::slice::from_ref(n))?;
            Ok(vec![vec![r.clone(), n.clone()]])
        }
        Op::GatedActivation { .. } => match rows(v, 0)? {
            (r, Dim::Packed(s)) if s.len() == 2 && s[0] == s[1] => Ok(vec![vec![r.clone(), Dim::Packed(vec![s[0]])]]),
            _ => Err("operand 0 must be a gate and an equal up part".into()),
        },
        Op::SigmoidScale => {
            let (r, c) = rows(v, 0)?;
            match rows(v, 1)? {
                (r1, c1) if r1 == r && (c1 == c || *c1 == Dim::Fixed(1)) => same(0),
                _ => Err("operand 1 must be a score a row, or an element".into()),
            }
        }
        Op::Route { topk, .. } => {
            let (r, e) = rows(v, 0)?;
            shaped(v, 1, std::slice::from_ref(e))?;
            let chosen = vec![r.clone(), Dim::Fixed(u64::from(*topk))];
            Ok(vec![chosen.clone(), chosen])
        }
        Op::PlaceExperts => rows(v, 0).and_then(|_| same(0)),
        Op::Experts { .. } => experts(v),
        Op::Dispatch => {
            let ((r, h), (_, k)) = (rows(v, 0)?, rows(v, 1)?);
            shaped(v, 0, &[Dim::Tokens, h.clone()])?;
            let chosen = [r.clone(), k.clone()];
            shaped(v, 1, &chosen)?;
            shaped(v, 2, &chosen)?;
            let chosen = vec![Dim::Received, k.clone()];
            Ok(vec![vec![Dim::Received, h.clone()], chosen.clone(), chosen])
        }
        Op::Combine => match rows(v, 0)? {
            (Dim::Received, h) => Ok(vec![vec![Dim::Tokens, h.clone()]]),
            _ => Err("operand 0 must be received rows".into()),
        },
        Op::SelectRows => match rows(v, 0)? {
            (Dim::Tokens, h) => Ok(vec![vec![Dim::LogitsRows, h.clone()]]),
            _ => Err("operand 0 must be rows of tokens".into()),
        },
        Op::Argmax => match rows(v, 0)? {
            (r, Dim::Vocab(_)) => Ok(vec![vec![r.clone()]]),
            _ => Err("operand 0 must be logits over the vocabulary".into()),
        },
        Op::AllReduce { .. } | Op::SendRecv { .. } => rows_or_kv(v).and_then(|()| same(0)),
        Op::AllGather { dim, .. } | Op::ReduceScatter { dim, .. } | Op::Slice { dim, .. } => match v.input(0) {
            Some(t) if usize::from(*dim) < t.shape.len() => same(0),
            _ => Err(format!("operand 0 has no dimension {dim}")),
        },
        Op::QkNorm { .. } | Op::QkvPrepare { .. } | Op::GqaAttention { .. } | Op::LinearAttention { .. } => grouped(v),
        _ => latent(v),
    }
}

fn rows_or_kv(v: View<'_>) -> Result<(), String> {
    match v.input(0).and_then(|t| t.shape.first()) {
        Some(_) => Ok(()),
        None => Err("operand 0 has no dimension".into()),
    }
}

fn experts(v: View<'_>) -> Shapes {
    let ((r, h), (_, k)) = (rows(v, 0)?, rows(v, 1)?);
    let chosen = [r.clone(), k.clone()];
    shaped(v, 1, &chosen)?;
    shaped(v, 2, &chosen)?;
    let (e, gate_up) = match v.input(3).map(|t| t.shape.as_slice()) {
        Some([e @ Dim::Experts(_), gate_up, wh]) if wh == h => (e, gate_up),
        _ => return Err(format!("operand 3 must be the gate and up parts of experts over {}", dim_text(h))),
    };
    let inner = match segments(gate_up) {
        [gate, up] if gate == up => Dim::Packed(vec![*gate]),
        _ => return Err("operand 3 must have a gate and an equal up part".into()),
    };
    shaped(v, 4, &[e.clone(), h.clone(), inner])?;
    shaped(v, 5, &[e.clone(), gate_up.clone()])?;
    shaped(v, 6, &[e.clone(), h.clone()])?;
    Ok(vec![vec![r.clone(), h.clone()]])
}

/// Ops of grouped-query and linear attention.
fn grouped(v: View<'_>) -> Shapes {
    match &v.node.op {
        Op::QkNorm { .. } => {
            let (r, qkv) = rows(v, 0)?;
            let [q, k, _] = segments(qkv) else { return Err("operand 0 must be q, k and v".into()) };
            shaped(v, 1, &[Dim::Packed(vec![*q])])?;
            shaped(v, 2, &[Dim::Packed(vec![*k])])?;
            Ok(vec![vec![r.clone(), qkv.clone()]])
        }
        Op::QkvPrepare { head_dim, .. } => {
            let (r, qkv) = rows(v, 0)?;
            let [q, k, val] = segments(qkv) else { return Err("operand 0 must be q, k and v".into()) };
            if [q, k, val].iter().any(|s| s.width != *head_dim) || k.units == 0 || !q.units.is_multiple_of(k.units) {
                return Err(format!("q, k and v must be heads of {head_dim}, q a multiple of k"));
            }
            positions(v, 1, r)?;
            let row = Dim::Packed(vec![*k, *val]);
            equal("cache rows", cache(v, 2)?, &row)?;
            for norm in [3, 4] {
                shaped(v, norm, &[Dim::Fixed(u64::from(*head_dim))])?;
            }
            Ok(vec![vec![r.clone(), Dim::Packed(vec![*q])], vec![Dim::KvRows, row]])
        }
        Op::GqaAttention { head_dim, .. } => {
            let (r, q) = rows(v, 0)?;
            let count = heads("q", q, u64::from(*head_dim))?;
            match segments(cache(v, 1)?) {
                [k, val] if k == val && k.width == *head_dim && k.units > 0 && count.is_multiple_of(k.units) => {}
                _ => return Err(format!("the cache must hold keys and values of {head_dim}, whose heads divide {count}")),
            }
            shaped(v, 2, &[packed(count, 1)?])?;
            attended(v, r, q.clone(), count)
        }
        Op::LinearAttention { key_heads, value_heads, key_dim, value_dim, conv_width } => {
            let (r, qkvz) = rows(v, 0)?;
            let (k, val) = (Segment::new(*key_heads, *key_dim), Segment::new(*value_heads, *value_dim));
            equal("projections", qkvz, &Dim::Packed(vec![k, k, val, val]))?;
            let per_head = Segment::new(*value_heads, 1);
            shaped(v, 1, &[r.clone(), Dim::Packed(vec![per_head, per_head])])?;
            shaped(v, 2, &[Dim::Packed(vec![k, k, val]), Dim::Fixed(u64::from(*conv_width))])?;
            Ok(vec![vec![r.clone(), Dim::Packed(vec![val])]])
        }
        _ => Ok(Vec::new()),
    }
}

/// Results of attention: of the whole context, or of a rank's rows of it with the sum of exponentials of each head.
fn attended(v: View<'_>, rows: &Dim, o: Dim, heads: u32) -> Shapes {
    if !matches!(v.node.op, Op::GqaAttention { split_context: true, .. } | Op::MlaDecode { split_context: true, .. }) {
        return Ok(vec![vec![rows.clone(), o]]);
    }
    let parts = Dim::Fixed(u64::from(v.graph.deployment.dcp));
    Ok(vec![vec![rows.clone(), o, parts.clone()], vec![rows.clone(), packed(heads, 1)?, parts]])
}

/// What the ranks of a decode-context group found, to be added up.
fn merged(v: View<'_>) -> Shapes {
    let parts = Dim::Fixed(u64::from(v.graph.deployment.dcp));
    match (v.input(0).map(|t| t.shape.as_slice()), v.input(1).map(|t| t.shape.as_slice())) {
        (Some([r, o, p]), Some([lr, heads, lp])) if *p == parts && *lp == parts && r == lr && is_rows(r) => {
            match (segments(o), segments(heads)) {
                ([o_heads], [lse]) if o_heads.units == lse.units && lse.width == 1 => Ok(vec![vec![r.clone(), o.clone()]]),
                _ => Err("operand 1 must be a number for each head of operand 0".into()),
            }
        }
        _ => Err(format!("operands must be rows with {} parts, one a rank of dcp", dim_text(&parts))),
    }
}

/// Ops of multi-head latent attention.
fn latent(v: View<'_>) -> Shapes {
    match &v.node.op {
        Op::MlaNorm { q_lora, kv_lora, .. } => {
            let (r, compressed) = rows(v, 0)?;
            let parts = segments(compressed);
            let tail = &parts[usize::from(q_lora.is_some()).min(parts.len())..];
            if parts.iter().map(|s| s.width).zip(q_lora.iter().chain([kv_lora])).any(|(a, b)| a != *b) || tail.len() != 2 {
                return Err("operand 0 must be the compressed query (if any), the compressed key-value, and the rope part".into());
            }
            let latent = vec![r.clone(), Dim::Packed(tail.to_vec())];
            let kv = Dim::Fixed(u64::from(*kv_lora));
            let Some(q_lora) = q_lora else {
                shaped(v, 1, &[kv])?;
                return Ok(vec![latent]);
            };
            let q = Dim::Fixed(u64::from(*q_lora));
            shaped(v, 1, std::slice::from_ref(&q))?;
            shaped(v, 2, &[kv])?;
            Ok(vec![vec![r.clone(), q], latent])
        }
        Op::MlaRope { nope, rope } => {
            let ((r, q), (lr, latent)) = (rows(v, 0)?, rows(v, 1)?);
            heads("q", q, wide(*nope, rope.dim))?;
            equal("rows", r, lr)?;
            positions(v, 2, r)?;
            equal("cache rows", cache(v, 3)?, latent)?;
            Ok(vec![vec![r.clone(), q.clone()], vec![Dim::KvRows, latent.clone()]])
        }
        Op::MlaAbsorbQuery { nope, rope_dim, v_dim } => {
            let ((r, q), (n, k)) = (rows(v, 0)?, matrix(v, 1)?);
            let count = heads("q", q, wide(*nope, *rope_dim))?;
            equal("heads", n, &packed(count, wide(*nope, *v_dim))?)?;
            let Dim::Fixed(kv_lora) = k else { return Err("operand 1 must contract over kv_lora".into()) };
            Ok(vec![vec![r.clone(), packed(count, kv_lora.saturating_add(u64::from(*rope_dim)))?]])
        }
        Op::MlaDecode { kv_lora, sparse_topk, .. } => {
            let ((r, q), row) = (rows(v, 0)?, cache(v, 1)?);
            let [c, rope] = segments(row) else { return Err("a cache row must be kv_lora and rope".into()) };
            if c.elements() != u64::from(*kv_lora) {
                return Err(format!("the cache must hold a compressed key-value of {kv_lora}"));
            }
            let count = heads("q", q, c.elements().saturating_add(rope.elements()))?;
            if let Some(topk) = sparse_topk {
                shaped(v, 2, &[r.clone(), Dim::Fixed(u64::from(*topk))])?;
            }
            attended(v, r, packed(count, u64::from(*kv_lora))?, count)
        }
        Op::MergeContext => merged(v),
        Op::MlaExpandValue { nope, v_dim } => {
            let ((r, o), (n, k)) = (rows(v, 0)?, matrix(v, 1)?);
            let Dim::Fixed(kv_lora) = k else { return Err("operand 1 must contract over kv_lora".into()) };
            let count = heads("o", o, *kv_lora)?;
            equal("heads", n, &packed(count, wide(*nope, *v_dim))?)?;
            Ok(vec![vec![r.clone(), packed(count, u64::from(*v_dim))?]])
        }
        Op::MlaExpandKv => {
            let (row, (n, k)) = (cache(v, 0)?, matrix(v, 1)?);
            match (segments(row), k) {
                ([c, _], Dim::Fixed(kv_lora)) if c.elements() == *kv_lora => Ok(vec![vec![Dim::KvRows, n.clone()]]),
                _ => Err("operand 1 must contract over the compressed key-value".into()),
            }
        }
        Op::MlaPrefill { nope, v_dim, .. } => {
            let ((r, q), row) = (rows(v, 0)?, cache(v, 2)?);
            let [_, rope] = segments(row) else { return Err("a cache row must be kv_lora and rope".into()) };
            let count = heads("q", q, rope.elements().saturating_add(u64::from(*nope)))?;
            shaped(v, 1, &[Dim::KvRows, packed(count, wide(*nope, *v_dim))?])?;
            Ok(vec![vec![r.clone(), packed(count, u64::from(*v_dim))?]])
        }
        Op::SparseIndex { topk } => {
            let (r, _) = rows(v, 0)?;
            cache(v, 1)?;
            Ok(vec![vec![r.clone(), Dim::Fixed(u64::from(*topk))]])
        }
        _ => Ok(Vec::new()),
    }
}

/// Element types that are not what the op makes.
fn element_types(v: View<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut must = |what: &str, i: usize, t: Option<&Tensor>, ok: &dyn Fn(DType) -> bool, wanted: &str| {
        if let Some(t) = t.filter(|t| !ok(t.dtype)) {
            faults.push(format!("{what} {i} is {}, it must be {wanted}", t.dtype.name()));
        }
    };
    let real = |t: DType| matches!(t, DType::Bf16 | DType::F16 | DType::F32);
    let id = |t: DType| t == DType::I32;
    // Ids and weights of chosen experts travel with the rows.
    let (id_operands, id_results): (&[usize], &[usize]) = match &v.node.op {
        Op::Embed => (&[0], &[]),
        Op::Route { .. } => (&[], &[0]),
        Op::PlaceExperts => (&[0], &[0]),
        Op::Experts { .. } => (&[1], &[]),
        Op::Dispatch => (&[1], &[1]),
        Op::Argmax | Op::SparseIndex { .. } => (&[], &[0]),
        Op::QkvPrepare { .. } => (&[1], &[]),
        Op::MlaRope { .. } | Op::MlaDecode { .. } => (&[2], &[]),
        _ => (&[], &[]),
    };
    match &v.node.op {
        // These carry whatever they are given.
        Op::AllReduce { .. } | Op::AllGather { .. } | Op::ReduceScatter { .. } | Op::Slice { .. } | Op::SendRecv { .. } => {
            let given = v.input(0).map(|t| t.dtype);
            must("result", 0, v.output(0), &|t| Some(t) == given, "that of operand 0");
            return faults;
        }
        Op::Linear { role: LinearRole::Router } => must("result", 0, v.output(0), &|t| t == DType::F32, "f32"),
        Op::Route { .. } => must("result", 1, v.output(1), &|t| t == DType::F32, "f32"),
        Op::GqaAttention { split_context: true, .. } | Op::MlaDecode { split_context: true, .. } => {
            must("result", 1, v.output(1), &|t| t == DType::F32, "f32");
        }
        _ => {}
    }
    for (i, t) in v.inputs().enumerate() {
        match (&t.kind, id_operands.contains(&i)) {
            (TensorKind::Cache { .. } | TensorKind::CacheUpdate { .. }, _) => {}
            (_, true) => must("operand", i, Some(t), &id, "i32"),
            (_, false) => must("operand", i, Some(t), &real, "a real number"),
        }
    }
    for i in 0..v.node.outputs.len() {
        let t = v.output(i);
        match t.map(|t| &t.kind) {
            Some(TensorKind::CacheUpdate { of }) => {
                let stored = v.graph.tensors[*of].dtype;
                must("result", i, t, &|t| t == stored, "that of its storage");
            }
            _ if id_results.contains(&i) => must("result", i, t, &id, "i32"),
            _ => must("result", i, t, &real, "a real number"),
        }
    }
    faults
}
