//! Causal softmax attention of one sequence, the core of every attention op.

use super::Turn;
use super::array::Array;
use super::error::ReferenceError;
use super::matmul::multiply;
use super::operands::{Operands, view_mut};
use super::real::Real;
use ndarray::{ArrayView2, ArrayViewMut2, Axis, s};
use rayon::prelude::*;

/// Query rows handled at once: bounds the scores held to this many times the context.
const QUERY_ROWS: usize = 64;

/// Query rows that see the same keys and values.
pub(super) struct Queries<'a, T> {
    /// Pairs of queries `[rows, d]` and keys `[kv_rows, d]` whose products add up to the scores.
    pub(super) scores: Vec<(ArrayView2<'a, T>, ArrayView2<'a, T>)>,
    /// `[kv_rows, v]`.
    pub(super) values: ArrayView2<'a, T>,
    /// `[rows, v]`.
    pub(super) out: ArrayViewMut2<'a, T>,
    /// `[rows, 1]`: the logarithm of the sum of exponentials that a row's weights were divided by, if it is asked for.
    pub(super) lse: Option<ArrayViewMut2<'a, T>>,
    /// Consecutive rows that belong to one token (heads that share keys and values).
    pub(super) rows_per_token: usize,
    /// Tokens of the context before the first one.
    pub(super) past: usize,
    /// Which tokens of the context the keys are of.
    pub(super) turn: Turn,
    /// Only this many latest keys, the token's own included.
    pub(super) window: Option<u32>,
    /// Takes part in the softmax and carries no value.
    pub(super) sink: Option<T>,
    /// Multiplier of the scores.
    pub(super) scale: T,
}

/// Results of an attention op: the values, and the sums of exponentials where they are a second result. With that second result
/// both have a last dimension of one: this rank's part.
pub(super) fn attended<'b, T: Real>(
    operands: &Operands<'_, T>,
    outputs: &'b mut [Array<T>],
    name: &'static str,
    rows: usize,
    cols: usize,
    heads: usize,
) -> Result<(&'b mut [T], Option<ArrayViewMut2<'b, T>>), ReferenceError> {
    if outputs.len() < 2 {
        let [out] = operands.results(outputs)?;
        return Ok((operands.result(out, name, rows, cols)?, None));
    }
    let [out, lse] = operands.results(outputs)?;
    let out = operands.result_sized(out, name, &[rows, cols, 1])?;
    let lse = operands.result_sized(lse, "lse", &[rows, heads, 1])?;
    Ok((out, Some(view_mut(lse, rows, heads))))
}

/// Takes the first `rows` rows off a matrix that may not be there.
pub(super) fn take_rows<'a, T>(rest: &mut Option<ArrayViewMut2<'a, T>>, rows: usize) -> Option<ArrayViewMut2<'a, T>> {
    let (head, tail) = rest.take()?.split_at(Axis(0), rows);
    *rest = Some(tail);
    Some(head)
}

/// One block of query rows.
struct Block<'a, T> {
    queries: Queries<'a, T>,
    /// Index of the first row among the rows of the sequence.
    first_row: usize,
}

/// Computes every block of every set of queries.
pub(super) fn attend<T: Real>(work: Vec<Queries<'_, T>>) {
    let blocks: Vec<Block<'_, T>> = work.into_iter().flat_map(blocks).collect();
    blocks.into_par_iter().for_each(attend_block);
}

fn blocks<T: Real>(whole: Queries<'_, T>) -> Vec<Block<'_, T>> {
    let rows = whole.out.nrows();
    let mut rest = whole.out;
    let mut sums = whole.lse;
    let mut out = Vec::with_capacity(rows.div_ceil(QUERY_ROWS));
    for first_row in (0..rows).step_by(QUERY_ROWS) {
        let size = QUERY_ROWS.min(rows - first_row);
        let (head, tail) = rest.split_at(Axis(0), size);
        rest = tail;
        let scores = whole.scores.iter().map(|(q, k)| (q.slice_move(s![first_row..first_row + size, ..]), *k)).collect();
        let lse = take_rows(&mut sums, size);
        out.push(Block { queries: Queries { scores, out: head, lse, ..whole }, first_row });
    }
    out
}

fn attend_block<T: Real>(block: Block<'_, T>) {
    let Block { mut queries, first_row } = block;
    let rows = queries.out.nrows();
    let Queries { past, rows_per_token, window, turn, .. } = queries;
    let visible = |row: usize| {
        let end = past + (first_row + row) / rows_per_token + 1;
        let start = window.map_or(0, |w| end.saturating_sub(w as usize));
        turn.rows(start)..turn.rows(end)
    };
    // Rows see ever later keys, so the first row begins and the last one ends what the block touches.
    let (start, end) = (visible(0).start, visible(rows - 1).end);
    let mut scores = ndarray::Array2::<T>::zeros((rows, end - start));
    for (i, (q, k)) in queries.scores.iter().enumerate() {
        multiply(q.view(), k.slice(s![start..end, ..]).reversed_axes(), scores.view_mut(), i > 0);
    }
    for (row, mut scores) in scores.outer_iter_mut().enumerate() {
        let visible = visible(row);
        let scores = scores.as_slice_mut().expect("rows of a fresh matrix are contiguous");
        scores[..visible.start - start].fill(T::ZERO);
        scores[visible.end - start..].fill(T::ZERO);
        let lse = softmax(&mut scores[visible.start - start..visible.end - start], queries.scale, queries.sink);
        if let Some(sums) = &mut queries.lse {
            sums[[row, 0]] = lse;
        }
    }
    if start == end {
        queries.out.fill(T::ZERO);
        return;
    }
    multiply(scores.view(), queries.values.slice(s![start..end, ..]), queries.out, false);
}

/// `scores = softmax(scale * scores)`, with the sink in the sum; the logarithm of the sum, which is minus infinity where there is nothing.
fn softmax<T: Real>(scores: &mut [T], scale: T, sink: Option<T>) -> T {
    let mut largest = sink.unwrap_or(T::NEG_INFINITY);
    for s in scores.iter_mut() {
        *s *= scale;
        largest = largest.at_least(*s);
    }
    let mut sum = sink.map_or(T::ZERO, |s| (s - largest).exp());
    for s in scores.iter_mut() {
        *s = (*s - largest).exp();
        sum += *s;
    }
    for s in scores.iter_mut() {
        *s /= sum;
    }
    if sum == T::ZERO { T::NEG_INFINITY } else { largest + sum.ln() }
}
