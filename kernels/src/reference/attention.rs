//! Causal softmax attention of one sequence, the core of every attention op.

use super::matmul::multiply;
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
    /// Consecutive rows that belong to one token (heads that share keys and values).
    pub(super) rows_per_token: usize,
    /// Cache rows before the first token's own.
    pub(super) past: usize,
    /// Only this many latest keys, the token's own included.
    pub(super) window: Option<u32>,
    /// Takes part in the softmax and carries no value.
    pub(super) sink: Option<T>,
    /// Multiplier of the scores.
    pub(super) scale: T,
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
    let mut out = Vec::with_capacity(rows.div_ceil(QUERY_ROWS));
    for first_row in (0..rows).step_by(QUERY_ROWS) {
        let size = QUERY_ROWS.min(rows - first_row);
        let (head, tail) = rest.split_at(Axis(0), size);
        rest = tail;
        let scores = whole.scores.iter().map(|(q, k)| (q.slice_move(s![first_row..first_row + size, ..]), *k)).collect();
        out.push(Block { queries: Queries { scores, out: head, ..whole }, first_row });
    }
    out
}

fn attend_block<T: Real>(block: Block<'_, T>) {
    let Block { queries, first_row } = block;
    let rows = queries.out.nrows();
    let visible = |row: usize| {
        let end = queries.past + (first_row + row) / queries.rows_per_token + 1;
        let start = queries.window.map_or(0, |w| end.saturating_sub(w as usize));
        start..end
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
        softmax(&mut scores[visible.start - start..visible.end - start], queries.scale, queries.sink);
    }
    multiply(scores.view(), queries.values.slice(s![start..end, ..]), queries.out, false);
}

/// `scores = softmax(scale * scores)`, with the sink in the sum.
fn softmax<T: Real>(scores: &mut [T], scale: T, sink: Option<T>) {
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
}
