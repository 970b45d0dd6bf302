//! Parts of an attention whose context is dealt out over ranks.

use super::LocalContext;
use super::array::Array;
use super::error::ReferenceError;
use super::matmul::for_rows;
use super::operands::Operands;
use super::real::Real;

/// `(o[T, heads * w, 1], lse[T, heads, dcp]) -> o[T, heads * w]`: this rank's values times its share of each head's sum of exponentials.
pub(super) fn merge<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(2, 2)?;
    let own = operands.stack(0, "o")?;
    let lse = operands.stack(1, "lse")?;
    if own.cols != 1 {
        return Err(operands.mismatch(0, "o", "one part, this rank's own"));
    }
    let (tokens, width, heads, parts) = (own.count, own.rows, lse.rows, lse.cols);
    if lse.count != tokens || (heads == 0) != (width == 0) || !width.is_multiple_of(heads.max(1)) || context.turn.index >= parts {
        return Err(operands.mismatch(1, "lse", format!("[{tokens}, a divisor of {width}, more than {} parts]", context.turn.index)));
    }
    let [out] = operands.results(outputs)?;
    let out = operands.result(out, "o", tokens, width)?;
    let head_width = width / heads.max(1);
    for_rows(out, width, |token, out| {
        let (own, lse) = (own.matrix(token), lse.matrix(token));
        for head in 0..heads {
            let share = share(lse.row(head), context.turn.index);
            let columns = head * head_width..(head + 1) * head_width;
            for (to, from) in out[columns.clone()].iter_mut().zip(&own.data[columns]) {
                *to = *from * share;
            }
        }
    });
    Ok(())
}

/// `exp(lse[own]) / sum(exp(lse))`; zero where no part has anything.
fn share<T: Real>(lse: &[T], own: usize) -> T {
    let largest = lse.iter().fold(T::NEG_INFINITY, |m, l| m.at_least(*l));
    if largest == T::NEG_INFINITY {
        return T::ZERO;
    }
    let sum: T = lse.iter().map(|l| (*l - largest).exp()).sum();
    (lse[own] - largest).exp() / sum
}
