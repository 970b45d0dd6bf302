//! Projections.

use super::LocalContext;
use super::array::Array;
use super::error::ReferenceError;
use super::matmul::{for_rows, multiply};
use super::operands::{Operands, view_mut};
use super::real::Real;

/// `(x[T, K], w[N, K][, bias[N]]) -> y[T, N] = x w^T + bias`; the bias only where this rank adds it.
pub(super) fn linear<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(2, 3)?;
    let x = operands.matrix(0, "x")?;
    let weight = operands.matrix_with_cols(1, "weight", x.cols)?;
    let bias = if operands.len() == 3 { Some(operands.vector_of(2, "bias", weight.rows)?) } else { None };
    let [y] = operands.results(outputs)?;
    let y = operands.result(y, "y", x.rows, weight.rows)?;
    multiply(x.view(), weight.view().reversed_axes(), view_mut(y, x.rows, weight.rows), false);
    if let Some(bias) = bias.filter(|_| context.adds_bias) {
        add_bias(y, bias);
    }
    Ok(())
}

/// Adds `bias` to every row.
pub(super) fn add_bias<T: Real>(rows: &mut [T], bias: &[T]) {
    for_rows(rows, bias.len(), |_, row| {
        for (y, b) in row.iter_mut().zip(bias) {
            *y += *b;
        }
    });
}
