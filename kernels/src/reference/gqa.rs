//! Grouped-query attention.

use super::LocalContext;
use super::array::Array;
use super::attention::{Queries, attend, attended, take_rows};
use super::elementwise::norm_row;
use super::error::ReferenceError;
use super::matmul::{for_rows, tiles};
use super::mla::appended_rows;
use super::operands::{Operands, view_mut};
use super::real::Real;
use super::rotary::Rotation;
use super::rows::{check_cache, check_tokens};
use moetwin_models::spec::RopeSpec;
use ndarray::{Axis, s};

/// Norm and rotation of one row of heads.
struct HeadTransform<'a, T> {
    head_dim: usize,
    norm: Option<(&'a [T], T)>,
    rotation: Option<&'a Rotation<T>>,
}

impl<T: Real> HeadTransform<'_, T> {
    fn apply(&self, token: usize, from: &[T], to: &mut [T]) {
        match self.norm {
            None => to.copy_from_slice(from),
            Some((weight, eps)) => {
                for (from, to) in from.chunks_exact(self.head_dim).zip(to.chunks_exact_mut(self.head_dim)) {
                    norm_row(from, weight, eps, to);
                }
            }
        }
        if let Some(rotation) = self.rotation {
            let mut unrotated = vec![T::ZERO; rotation.dim()];
            for head in to.chunks_exact_mut(self.head_dim) {
                unrotated.copy_from_slice(&head[..rotation.dim()]);
                rotation.rotate(token, &unrotated, head);
            }
        }
    }
}

/// `(qkv[T, q | k | v], positions[T], cache[KvRows, k | v][, q_norm, k_norm]) -> (q[T, q], cache)`.
pub(super) fn prepare<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    head_dim: usize,
    rope: Option<&RopeSpec>,
    qk_norm_eps: Option<f64>,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    let count = if qk_norm_eps.is_some() { 5 } else { 3 };
    operands.expect(count, count)?;
    let qkv = operands.matrix(0, "qkv")?;
    let positions = operands.positions(1, qkv.rows)?;
    operands.expect_vacated(2, "cache")?;
    check_tokens(&operands, context.sequences, qkv.rows, "qkv")?;
    let [q, cache] = operands.results(outputs)?;
    let &[cache_rows, kv_width] = cache.sizes.as_slice() else {
        return Err(operands.wrong("cache", cache, "[KvRows, k | v]"));
    };
    let k_width = kv_width / 2;
    let whole_heads = |width: usize| head_dim > 0 && width.is_multiple_of(head_dim);
    let Some(q_width) = qkv.cols.checked_sub(kv_width).filter(|q| whole_heads(*q) && whole_heads(k_width) && kv_width % 2 == 0) else {
        return Err(operands.mismatch(0, "qkv", format!("whole heads of {head_dim} for q, and k | v as wide as the cache's {kv_width}")));
    };
    let norm = |index: usize, operand: &'static str| match qk_norm_eps {
        None => Ok(None),
        Some(eps) => Ok(Some((operands.vector_of(index, operand, head_dim)?, T::from_f64(eps)))),
    };
    let (q_norm, k_norm) = (norm(3, "q_norm")?, norm(4, "k_norm")?);
    let rotation = rope.map(|spec| Rotation::new(spec, positions));
    if let Some(r) = rotation.as_ref().filter(|r| r.dim() > head_dim) {
        return Err(operands.mismatch(0, "qkv", format!("heads of at least the {} rotated dimensions", r.dim())));
    }
    let q = operands.result(q, "q", qkv.rows, q_width)?;
    let cache = operands.result(cache, "cache", cache_rows, kv_width)?;
    check_cache(&operands, context.sequences, cache_rows)?;
    let transform = HeadTransform { head_dim, norm: q_norm, rotation: rotation.as_ref() };
    for_rows(q, q_width, |token, out| transform.apply(token, &qkv.row(token)[..q_width], out));
    let transform = HeadTransform { norm: k_norm, ..transform };
    for (token, row) in appended_rows(context.sequences).enumerate() {
        let Some(row) = row else { continue };
        let (k, v) = cache[row * kv_width..(row + 1) * kv_width].split_at_mut(k_width);
        let kv = &qkv.row(token)[q_width..];
        transform.apply(token, &kv[..k_width], k);
        v.copy_from_slice(&kv[k_width..]);
    }
    Ok(())
}

/// `(q[T, heads], cache[KvRows, k | v][, sinks[heads]]) -> o[T, heads * head_dim]`.
pub(super) fn attention<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    head_dim: usize,
    scale: f64,
    window: Option<u32>,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(2, 3)?;
    let q = operands.matrix(0, "q")?;
    let cache = operands.matrix(1, "cache")?;
    if head_dim == 0 || !q.cols.is_multiple_of(head_dim) {
        return Err(operands.mismatch(0, "q", format!("whole heads of {head_dim} columns")));
    }
    let heads = q.cols / head_dim;
    let kv_heads = cache.cols / (2 * head_dim);
    if cache.cols != 2 * kv_heads * head_dim || (kv_heads == 0) != (heads == 0) || !heads.is_multiple_of(kv_heads.max(1)) {
        return Err(operands.mismatch(1, "cache", format!("k | v of whole heads of {head_dim}, a divisor of the {heads} query heads")));
    }
    let sinks = if operands.len() == 3 { Some(operands.vector_of(2, "sinks", heads)?) } else { None };
    check_tokens(&operands, context.sequences, q.rows, "q")?;
    check_cache(&operands, context.sequences, cache.rows)?;
    let (out, mut lse) = attended(&operands, outputs, "o", q.rows, q.cols, heads)?;
    let (q, cache) = (q.view(), cache.view());
    let mut rest = view_mut(out, q.nrows(), q.ncols());
    let mut token = 0;
    let mut work = Vec::with_capacity(context.sequences.len() * heads);
    for s in context.sequences {
        let (out, tail) = rest.split_at(Axis(0), s.new_tokens());
        rest = tail;
        let mut sums = take_rows(&mut lse, s.new_tokens()).map(|l| tiles(l, 1, 1).into_iter());
        let q = q.slice_move(s![token..token + s.new_tokens(), ..]);
        let kv = cache.slice_move(s![s.cache_start..s.cache_start + s.kv_rows(), ..]);
        for (head, out) in tiles(out, 1, head_dim).into_iter().enumerate().take(heads) {
            let k = head / (heads / kv_heads) * head_dim;
            let v = k + kv_heads * head_dim;
            work.push(Queries {
                scores: vec![(q.slice_move(s![.., head * head_dim..(head + 1) * head_dim]), kv.slice_move(s![.., k..k + head_dim]))],
                values: kv.slice_move(s![.., v..v + head_dim]),
                out,
                lse: sums.as_mut().and_then(Iterator::next),
                rows_per_token: 1,
                past: s.past(),
                turn: s.turn,
                window,
                // The ranks that share a context count the sink once.
                sink: sinks.filter(|_| s.turn.index == 0).map(|s| s[head]),
                scale: T::from_f64(scale),
            });
        }
        token += s.new_tokens();
    }
    attend(work);
    Ok(())
}
