//! Matrix products in fixed tiles, so that the number of threads never changes a bit.

use super::real::Real;
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, Axis, s};
use rayon::prelude::*;

/// Rows and columns of a tile of the result. Sizes are fixed: a tile is computed the same way whoever computes it.
const TILE_ROWS: usize = 64;
const TILE_COLS: usize = 256;
/// Multiply-adds below which a product is not worth sharing among threads.
const PARALLEL_WORK: usize = 1 << 18;
/// Elements below which a loop over rows is not worth sharing among threads.
const PARALLEL_ELEMENTS: usize = 1 << 13;

/// `out = a b`, or `out += a b`.
///
/// Panics where shapes do not match; callers have checked them.
pub(super) fn multiply<T: Real>(a: ArrayView2<'_, T>, b: ArrayView2<'_, T>, mut out: ArrayViewMut2<'_, T>, accumulate: bool) {
    let beta = if accumulate { T::ONE } else { T::ZERO };
    if a.nrows() * a.ncols() * b.ncols() < PARALLEL_WORK {
        general_mat_mul(T::ONE, &a, &b, beta, &mut out);
        return;
    }
    let rows = tiles(out, 0, TILE_ROWS).into_iter().enumerate();
    let tiles: Vec<_> = rows.flat_map(|(i, row)| tiles(row, 1, TILE_COLS).into_iter().enumerate().map(move |(j, t)| (i, j, t))).collect();
    tiles.into_par_iter().for_each(|(i, j, mut tile)| {
        let (row, col) = (i * TILE_ROWS, j * TILE_COLS);
        let a = a.slice(s![row..row + tile.nrows(), ..]);
        let b = b.slice(s![.., col..col + tile.ncols()]);
        general_mat_mul(T::ONE, &a, &b, beta, &mut tile);
    });
}

/// Cuts a matrix along an axis into views of `size` rows or columns, the last one shorter.
pub(super) fn tiles<T>(mut whole: ArrayViewMut2<'_, T>, axis: usize, size: usize) -> Vec<ArrayViewMut2<'_, T>> {
    let mut out = Vec::with_capacity(whole.len_of(Axis(axis)).div_ceil(size.max(1)));
    while size > 0 && whole.len_of(Axis(axis)) > size {
        let (first, rest) = whole.split_at(Axis(axis), size);
        out.push(first);
        whole = rest;
    }
    out.push(whole);
    out
}

/// Calls `f(row index, row)` for every row of `data`, in parallel where that pays.
pub(super) fn for_rows<T: Send>(data: &mut [T], cols: usize, f: impl Fn(usize, &mut [T]) + Sync + Send) {
    if cols == 0 {
        return;
    }
    if data.len() < PARALLEL_ELEMENTS {
        data.chunks_exact_mut(cols).enumerate().for_each(|(i, row)| f(i, row));
    } else {
        let rows_per_task = (PARALLEL_ELEMENTS / 4 / cols).max(1);
        data.par_chunks_exact_mut(cols).enumerate().with_min_len(rows_per_task).for_each(|(i, row)| f(i, row));
    }
}
