//! Routed experts: tokens grouped by expert, one pair of matrix products each, summed per token in the router's order.

use super::LocalContext;
use super::array::Array;
use super::elementwise::activate_row;
use super::error::ReferenceError;
use super::linear::add_bias;
use super::matmul::{for_rows, multiply};
use super::operands::{Ids, Matrix, Operands, Stack, view_mut};
use super::real::Real;
use moetwin_models::spec::Activation;
use rayon::prelude::*;

/// Token rows handled at once: bounds the expert outputs held to this many rows times the experts of a token.
const TOKEN_ROWS: usize = 256;

/// The experts held here.
struct LocalExperts<'a, T> {
    first: usize,
    gate_up: Stack<'a, T>,
    down: Stack<'a, T>,
    gate_up_bias: Option<Matrix<'a, T>>,
    /// Only where this rank adds it.
    down_bias: Option<Matrix<'a, T>>,
    activation: Activation,
}

/// Where the result of a token-expert pair is: local expert and row among its tokens. `None`: not held here.
type PairPlace = Option<(usize, usize)>;

/// `(x[T, H], ids[T, k], weights[T, k], gate_up[E, gate | up, H], down[E, H, I][, gate_up_bias, down_bias]) -> y[T, H]`.
pub(super) fn experts<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    activation: Activation,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    if operands.len() != 7 {
        operands.expect(5, 5)?;
    }
    let x = operands.matrix(0, "x")?;
    let ids = operands.ids(1, "ids")?;
    let weights = operands.matrix_of(2, "weights", ids.rows, ids.cols)?;
    let down = operands.stack(4, "down")?;
    let gate_up = operands.stack_of(3, "gate_up", [down.count, 2 * down.cols, x.cols])?;
    if down.rows != x.cols {
        return Err(operands.mismatch(4, "down", format!("[_, {}, _]", x.cols)));
    }
    if ids.rows != x.rows {
        return Err(operands.mismatch(1, "ids", format!("[{}, _]", x.rows)));
    }
    if let Some(i) = ids.data.iter().position(|id| *id < -1) {
        return Err(operands.value("ids", i / ids.cols, format!("expert {} is neither an id nor -1 for none", ids.data[i])));
    }
    let biases = operands.len() == 7;
    let gate_up_bias = if biases { Some(operands.matrix_of(5, "gate_up_bias", gate_up.count, gate_up.rows)?) } else { None };
    let down_bias = if biases { Some(operands.matrix_of(6, "down_bias", down.count, down.rows)?) } else { None };
    let down_bias = down_bias.filter(|_| context.adds_bias);
    let [y] = operands.results(outputs)?;
    let y = operands.result(y, "y", x.rows, x.cols)?;
    if x.cols == 0 {
        return Ok(());
    }
    let local = LocalExperts { first: context.expert_start, gate_up, down, gate_up_bias, down_bias, activation };
    for (block, y) in y.chunks_mut(TOKEN_ROWS * x.cols).enumerate() {
        local.block(x, ids, weights, block * TOKEN_ROWS, y);
    }
    Ok(())
}

impl<T: Real> LocalExperts<'_, T> {
    /// Writes the rows of `y`, which begin at token `first`.
    fn block(&self, x: Matrix<'_, T>, ids: Ids<'_>, weights: Matrix<'_, T>, first: usize, y: &mut [T]) {
        let rows = y.len() / x.cols;
        let mut tokens_of: Vec<Vec<usize>> = vec![Vec::new(); self.down.count];
        let mut places: Vec<PairPlace> = Vec::with_capacity(rows * ids.cols);
        for token in first..first + rows {
            places.extend(ids.row(token).iter().map(|id| {
                let local = usize::try_from(*id).ok()?.checked_sub(self.first).filter(|e| *e < self.down.count)?;
                tokens_of[local].push(token);
                Some((local, tokens_of[local].len() - 1))
            }));
        }
        let results: Vec<Vec<T>> = tokens_of.par_iter().enumerate().map(|(expert, tokens)| self.one(expert, x, tokens)).collect();
        for_rows(y, x.cols, |row, y| {
            y.fill(T::ZERO);
            let places = &places[row * ids.cols..(row + 1) * ids.cols];
            for (place, weight) in places.iter().zip(weights.row(first + row)) {
                if let Some((expert, at)) = *place {
                    let result = &results[expert][at * x.cols..(at + 1) * x.cols];
                    y.iter_mut().zip(result).for_each(|(y, r)| *y += *r * *weight);
                }
            }
        });
    }
    /// `down(activation(gate_up(x)))` of the given tokens, one row each.
    fn one(&self, expert: usize, x: Matrix<'_, T>, tokens: &[usize]) -> Vec<T> {
        if tokens.is_empty() {
            return Vec::new();
        }
        let gathered: Vec<T> = tokens.iter().flat_map(|t| x.row(*t)).copied().collect();
        let gathered = Matrix { rows: tokens.len(), cols: x.cols, data: &gathered };
        let gate_up = self.project(gathered, self.gate_up.matrix(expert), self.gate_up_bias.map(|b| b.row(expert)));
        let intermediate = self.down.cols;
        let mut hidden = vec![T::ZERO; tokens.len() * intermediate];
        for_rows(&mut hidden, intermediate, |row, out| {
            activate_row(self.activation, &gate_up[row * 2 * intermediate..(row + 1) * 2 * intermediate], out);
        });
        let hidden = Matrix { rows: tokens.len(), cols: intermediate, data: &hidden };
        self.project(hidden, self.down.matrix(expert), self.down_bias.map(|b| b.row(expert)))
    }
    fn project(&self, x: Matrix<'_, T>, weight: Matrix<'_, T>, bias: Option<&[T]>) -> Vec<T> {
        let mut y = vec![T::ZERO; x.rows * weight.rows];
        multiply(x.view(), weight.view().reversed_axes(), view_mut(&mut y, x.rows, weight.rows), false);
        if let Some(bias) = bias {
            add_bias(&mut y, bias);
        }
        y
    }
}
