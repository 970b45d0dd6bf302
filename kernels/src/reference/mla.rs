//! Multi-head latent attention, absorbed (decode) and expanded (prefill).

use super::array::Array;
use super::attention::{Queries, attend, attended, take_rows};
use super::elementwise::norm_row;
use super::error::ReferenceError;
use super::matmul::{for_rows, multiply, tiles};
use super::operands::{Matrix, Operands, view_mut};
use super::real::Real;
use super::rotary::Rotation;
use super::rows::{check_cache, check_tokens};
use super::{CacheSlot, LocalContext};
use moetwin_models::spec::RopeSpec;
use ndarray::{ArrayView2, ArrayViewMut2, s};

/// `(qkv_a[T, q_lora | kv_lora | rope], q_norm, kv_norm) -> (q_a, latent)`, or `(kv_a[T, kv_lora | rope], kv_norm) -> (latent)`.
pub(super) fn norm<T: Real>(
    operands: Operands<'_, T>,
    eps: f64,
    q_lora: Option<u32>,
    kv_lora: usize,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    let q_lora = q_lora.map(|q| q as usize);
    let norms = if q_lora.is_some() { 2 } else { 1 };
    operands.expect(1 + norms, 1 + norms)?;
    let a = operands.matrix(0, "compressed")?;
    let latent_start = q_lora.unwrap_or(0);
    let Some(latent_cols) = a.cols.checked_sub(latent_start).filter(|c| *c >= kv_lora) else {
        return Err(operands.mismatch(0, "compressed", format!("at least {} columns", latent_start + kv_lora)));
    };
    let kv_norm = operands.vector_of(norms, "kv_norm", kv_lora)?;
    let eps = T::from_f64(eps);
    let latent = match q_lora {
        None => &mut operands.results::<1>(outputs)?[0],
        Some(q_lora) => {
            let q_norm = operands.vector_of(1, "q_norm", q_lora)?;
            let [q_a, latent] = operands.results(outputs)?;
            let q_a = operands.result(q_a, "q_a", a.rows, q_lora)?;
            for_rows(q_a, q_lora, |row, out| norm_row(&a.row(row)[..q_lora], q_norm, eps, out));
            latent
        }
    };
    let latent = operands.result(latent, "latent", a.rows, latent_cols)?;
    for_rows(latent, latent_cols, |row, out| {
        let row = &a.row(row)[latent_start..];
        norm_row(&row[..kv_lora], kv_norm, eps, &mut out[..kv_lora]);
        out[kv_lora..].copy_from_slice(&row[kv_lora..]);
    });
    Ok(())
}

/// `(q[T, heads * (nope | rope)], latent[T, kv_lora | rope], positions[T], cache) -> (q, cache)`.
pub(super) fn rope<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    nope: usize,
    spec: &RopeSpec,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(4, 4)?;
    let q = operands.matrix(0, "q")?;
    let latent = operands.matrix(1, "latent")?;
    let positions = operands.positions(2, q.rows)?;
    operands.expect_vacated(3, "cache")?;
    let rotation = Rotation::new(spec, positions);
    let head = nope + rotation.dim();
    if head == 0 || !q.cols.is_multiple_of(head) {
        return Err(operands.mismatch(0, "q", format!("whole heads of {nope} | {}", rotation.dim())));
    }
    if latent.rows != q.rows || latent.cols < rotation.dim() {
        return Err(operands.mismatch(1, "latent", format!("[{}, kv_lora | {}]", q.rows, rotation.dim())));
    }
    check_tokens(&operands, context.sequences, q.rows, "q")?;
    let [q_out, cache] = operands.results(outputs)?;
    let q_out = operands.result(q_out, "q", q.rows, q.cols)?;
    let cache_rows = cache.sizes.first().copied().unwrap_or(0);
    let cache = operands.result(cache, "cache", cache_rows, latent.cols)?;
    check_cache(&operands, context.sequences, cache_rows)?;
    for_rows(q_out, q.cols, |token, out| {
        for (from, to) in q.row(token).chunks_exact(head).zip(out.chunks_exact_mut(head)) {
            to[..nope].copy_from_slice(&from[..nope]);
            rotation.rotate(token, &from[nope..], &mut to[nope..]);
        }
    });
    let kv_lora = latent.cols - rotation.dim();
    for (token, row) in appended_rows(context.sequences).enumerate() {
        let Some(row) = row else { continue };
        let out = &mut cache[row * latent.cols..(row + 1) * latent.cols];
        let from = latent.row(token);
        out[..kv_lora].copy_from_slice(&from[..kv_lora]);
        rotation.rotate(token, &from[kv_lora..], &mut out[kv_lora..]);
    }
    Ok(())
}

/// The cache row of each new token, in token order; `None` for tokens whose row is on another rank.
pub(super) fn appended_rows(sequences: &[CacheSlot]) -> impl Iterator<Item = Option<usize>> + '_ {
    sequences.iter().flat_map(|s| {
        let tokens = s.past()..s.past() + s.new_tokens();
        tokens.map(|t| s.turn.holds(t).then(|| s.cache_start + s.turn.rows(t)))
    })
}

/// Heads of `kv_b[heads * (nope | v), kv_lora]`.
fn heads_of<T: Real>(operands: &Operands<'_, T>, kv_b: Matrix<'_, T>, nope: usize, v_dim: usize) -> Result<usize, ReferenceError> {
    let head = nope + v_dim;
    if head > 0 && kv_b.rows.is_multiple_of(head) {
        return Ok(kv_b.rows / head);
    }
    Err(operands.mismatch(1, "kv_b", format!("whole heads of {nope} | {v_dim} rows")))
}

/// `(q[T, heads * (nope | rope)], kv_b) -> q_latent[T, heads * (kv_lora | rope)]`.
pub(super) fn absorb_query<T: Real>(
    operands: Operands<'_, T>,
    nope: usize,
    rope_dim: usize,
    v_dim: usize,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(2, 2)?;
    let kv_b = operands.matrix(1, "kv_b")?;
    let heads = heads_of(&operands, kv_b, nope, v_dim)?;
    let q = operands.matrix_with_cols(0, "q", heads * (nope + rope_dim))?;
    let width = kv_b.cols + rope_dim;
    let [out] = operands.results(outputs)?;
    let out = operands.result(out, "q_latent", q.rows, heads * width)?;
    let (q, kv_b) = (q.view(), kv_b.view());
    for (head, mut out) in tiles(view_mut(out, q.nrows(), heads * width), 1, width).into_iter().enumerate().take(heads) {
        let first = head * (nope + rope_dim);
        let w_uk = kv_b.slice(s![head * (nope + v_dim)..head * (nope + v_dim) + nope, ..]);
        multiply(q.slice(s![.., first..first + nope]), w_uk, out.slice_mut(s![.., ..width - rope_dim]), false);
        out.slice_mut(s![.., width - rope_dim..]).assign(&q.slice(s![.., first + nope..first + nope + rope_dim]));
    }
    Ok(())
}

/// `(q_latent[T, heads * (kv_lora | rope)], cache[KvRows, kv_lora | rope]) -> o_latent[T, heads * kv_lora]`.
pub(super) fn decode<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    kv_lora: usize,
    scale: f64,
    sparse_topk: Option<u32>,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(2, 2)?;
    let cache = operands.matrix(1, "cache")?;
    let q = operands.matrix(0, "q_latent")?;
    if cache.cols < kv_lora.max(1) {
        return Err(operands.mismatch(1, "cache", format!("[_, {kv_lora} | rope]")));
    }
    if !q.cols.is_multiple_of(cache.cols) {
        return Err(operands.mismatch(0, "q_latent", format!("whole heads of {} columns", cache.cols)));
    }
    // With no more rows than the selection holds, sparse attention is dense.
    if let Some(long) = context.sequences.iter().find(|s| sparse_topk.is_some_and(|k| s.kv_rows() > k as usize)) {
        let why = format!("selection among {} cache rows needs the indexer, which is modelled for cost only", long.kv_rows());
        return Err(ReferenceError::Unsupported { op: operands.op, why });
    }
    let heads = q.cols / cache.cols;
    check_tokens(&operands, context.sequences, q.rows, "q_latent")?;
    check_cache(&operands, context.sequences, cache.rows)?;
    let (out, mut lse) = attended(&operands, outputs, "o_latent", q.rows, heads * kv_lora, heads)?;
    // Every head sees the same keys, so the heads of a token are rows of one matrix.
    let q = Matrix { rows: q.rows * heads, cols: cache.cols, data: q.data };
    let (q, cache) = (q.view(), cache.view());
    let mut rest = view_mut(out, q.nrows(), kv_lora);
    let mut row = 0;
    let mut work = Vec::with_capacity(context.sequences.len());
    for s in context.sequences {
        let rows = s.new_tokens() * heads;
        let (out, tail) = rest.split_at(ndarray::Axis(0), rows);
        rest = tail;
        let keys: ArrayView2<'_, T> = cache.slice_move(s![s.cache_start..s.cache_start + s.kv_rows(), ..]);
        work.push(Queries {
            scores: vec![(q.slice_move(s![row..row + rows, ..]), keys)],
            values: keys.slice_move(s![.., ..kv_lora]),
            out,
            lse: take_rows(&mut lse, s.new_tokens()).map(|l| one_column(l, rows)),
            rows_per_token: heads,
            past: s.past(),
            turn: s.turn,
            window: None,
            sink: None,
            scale: T::from_f64(scale),
        });
        row += rows;
    }
    attend(work);
    Ok(())
}

/// A contiguous matrix as one column.
fn one_column<T>(matrix: ArrayViewMut2<'_, T>, rows: usize) -> ArrayViewMut2<'_, T> {
    matrix.into_shape_with_order((rows, 1)).expect("whole rows of a fresh matrix are contiguous")
}

/// `(o_latent[T, heads * kv_lora], kv_b) -> o[T, heads * v]`.
pub(super) fn expand_value<T: Real>(
    operands: Operands<'_, T>,
    nope: usize,
    v_dim: usize,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(2, 2)?;
    let kv_b = operands.matrix(1, "kv_b")?;
    let heads = heads_of(&operands, kv_b, nope, v_dim)?;
    let latent = operands.matrix_with_cols(0, "o_latent", heads * kv_b.cols)?;
    let [out] = operands.results(outputs)?;
    let out = operands.result(out, "o", latent.rows, heads * v_dim)?;
    let (latent, kv_b) = (latent.view(), kv_b.view());
    for (head, out) in tiles(view_mut(out, latent.nrows(), heads * v_dim), 1, v_dim).into_iter().enumerate().take(heads) {
        let w_uv = kv_b.slice(s![head * (nope + v_dim) + nope..(head + 1) * (nope + v_dim), ..]);
        multiply(latent.slice(s![.., head * kv_b.ncols()..(head + 1) * kv_b.ncols()]), w_uv.reversed_axes(), out, false);
    }
    Ok(())
}

/// `(cache[KvRows, kv_lora | rope], kv_b[heads * (nope | v), kv_lora]) -> kv[rows, heads * (nope | v)]`: the rows of all sequences packed
/// one sequence after the other, each from its first cache row on.
pub(super) fn expand_kv<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(2, 2)?;
    let cache = operands.matrix(0, "cache")?;
    let kv_b = operands.matrix(1, "kv_b")?;
    if cache.cols < kv_b.cols {
        return Err(operands.mismatch(0, "cache", format!("[_, {} | rope]", kv_b.cols)));
    }
    check_cache(&operands, context.sequences, cache.rows)?;
    let rows: usize = context.sequences.iter().map(CacheSlot::kv_rows).sum();
    let [kv] = operands.results(outputs)?;
    let kv = operands.result(kv, "kv", rows, kv_b.rows)?;
    let mut rest = view_mut(kv, rows, kv_b.rows);
    for s in context.sequences {
        let (out, tail) = rest.split_at(ndarray::Axis(0), s.kv_rows());
        rest = tail;
        let latent = cache.view().slice_move(s![s.cache_start..s.cache_start + s.kv_rows(), ..kv_b.cols]);
        multiply(latent, kv_b.view().reversed_axes(), out, false);
    }
    Ok(())
}

/// `(q[T, heads * (nope | rope)], kv[rows, heads * (nope | v)], cache[KvRows, kv_lora | rope]) -> o[T, heads * v]`, `kv` packed as
/// [`expand_kv`] writes it.
pub(super) fn prefill<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    nope: usize,
    v_dim: usize,
    scale: f64,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(3, 3)?;
    let q = operands.matrix(0, "q")?;
    let kv = operands.matrix(1, "kv")?;
    let cache = operands.matrix(2, "cache")?;
    if nope + v_dim == 0 || !kv.cols.is_multiple_of(nope + v_dim) {
        return Err(operands.mismatch(1, "kv", format!("whole heads of {nope} | {v_dim} columns")));
    }
    let heads = kv.cols / (nope + v_dim);
    let rope_dim = q.cols.checked_div(heads).map_or(Some(0), |head| head.checked_sub(nope));
    let Some(rope_dim) = rope_dim.filter(|r| q.cols == heads * (nope + r) && *r <= cache.cols) else {
        return Err(operands.mismatch(0, "q", format!("{heads} heads of {nope} | rope, rope at most the cache's width {}", cache.cols)));
    };
    let rows: usize = context.sequences.iter().map(CacheSlot::kv_rows).sum();
    operands.matrix_of(1, "kv", rows, kv.cols)?;
    check_tokens(&operands, context.sequences, q.rows, "q")?;
    check_cache(&operands, context.sequences, cache.rows)?;
    let [out] = operands.results(outputs)?;
    let out = operands.result(out, "o", q.rows, heads * v_dim)?;
    let (q, kv, cache) = (q.view(), kv.view(), cache.view());
    let mut rest = view_mut(out, q.nrows(), heads * v_dim);
    let (mut token, mut row) = (0, 0);
    let mut work = Vec::with_capacity(context.sequences.len() * heads);
    for s in context.sequences {
        let (out, tail) = rest.split_at(ndarray::Axis(0), s.new_tokens());
        rest = tail;
        let (tokens, rows) = (token..token + s.new_tokens(), row..row + s.kv_rows());
        let q = q.slice_move(s![tokens.clone(), ..]);
        let kv = kv.slice_move(s![rows.clone(), ..]);
        let key_rope = cache.slice_move(s![s.cache_start..s.cache_start + s.kv_rows(), cache.ncols() - rope_dim..]);
        for (head, out) in tiles(out, 1, v_dim).into_iter().enumerate().take(heads) {
            let (q_first, kv_first) = (head * (nope + rope_dim), head * (nope + v_dim));
            work.push(Queries {
                scores: vec![
                    (q.slice_move(s![.., q_first..q_first + nope]), kv.slice_move(s![.., kv_first..kv_first + nope])),
                    (q.slice_move(s![.., q_first + nope..q_first + nope + rope_dim]), key_rope),
                ],
                values: kv.slice_move(s![.., kv_first + nope..kv_first + nope + v_dim]),
                out,
                lse: None,
                rows_per_token: 1,
                past: s.past(),
                turn: s.turn,
                window: None,
                sink: None,
                scale: T::from_f64(scale),
            });
        }
        (token, row) = (tokens.end, rows.end);
    }
    attend(work);
    Ok(())
}
