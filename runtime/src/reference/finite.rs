//! The first value that is not finite: named where it arises, since everything behind it is not finite either and tells nothing.

use super::executor::ExecuteError;
use moetwin_kernels::reference::{Array, Data, Real};
use moetwin_models::{Node, Op, RankId};

/// A value that is not finite and where it lies.
#[derive(Clone, Debug, PartialEq)]
pub struct NotFinite {
    /// The tensor.
    pub tensor: String,
    /// Its indices in what the rank holds of it.
    pub index: Vec<usize>,
    /// NaN or an infinity.
    pub value: f64,
}

impl std::fmt::Display for NotFinite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?} is {}", self.tensor, self.index, self.value)
    }
}

/// Whether a result may hold minus infinity: the logarithm of an empty sum, where a rank holds no row that a token attends to.
fn may_be_empty(op: &Op, result: usize) -> bool {
    let split = matches!(op, Op::GqaAttention { split_context: true, .. } | Op::MlaDecode { split_context: true, .. });
    split && result == 1
}

/// The first element of a result that is not finite, as a flat index.
fn first<T: Real>(value: &Array<T>, empty_allowed: bool) -> Option<(usize, f64)> {
    let Data::Real(values) = &value.data else { return None };
    let wrong = |x: f64| !(x.is_finite() || empty_allowed && x == f64::NEG_INFINITY);
    values.iter().map(|v| v.to_f64()).enumerate().find(|(_, x)| wrong(*x))
}

/// Indices of a flat index in an array of these sizes.
fn indices(sizes: &[usize], flat: usize) -> Vec<usize> {
    let mut rest = flat;
    let mut all = vec![0; sizes.len()];
    for (index, &size) in all.iter_mut().zip(sizes).rev() {
        (*index, rest) = (rest % size, rest / size);
    }
    all
}

/// Errors where a result of `node` on `rank` is not finite. `name` gives a result's tensor.
///
/// # Errors
/// [`ExecuteError::NotFinite`] with the first such value.
pub(super) fn check<T: Real>(
    node: &Node,
    rank: RankId,
    command: impl Fn() -> String,
    results: &[(&str, &Array<T>)],
) -> Result<(), ExecuteError> {
    for (i, (tensor, value)) in results.iter().enumerate() {
        if let Some((flat, number)) = first(value, may_be_empty(&node.op, i)) {
            let found = NotFinite { tensor: (*tensor).to_owned(), index: indices(&value.sizes, flat), value: number };
            return Err(ExecuteError::NotFinite { rank, command: command(), found });
        }
    }
    Ok(())
}

/// The same of an exchange's results: a sum may leave the range of numbers, what merely passes on is another command's.
pub(super) fn check_exchanged<T: Real>(
    rank: RankId,
    command: impl Fn() -> String,
    operands_finite: bool,
    results: &[(&str, &Array<T>)],
) -> Result<(), ExecuteError> {
    let found = if operands_finite { results.iter().find_map(|(name, value)| first(value, false).map(|f| (name, value, f))) } else { None };
    match found {
        Some((tensor, value, (flat, number))) => {
            let found = NotFinite { tensor: (*tensor).to_owned(), index: indices(&value.sizes, flat), value: number };
            Err(ExecuteError::NotFinite { rank, command: command(), found })
        }
        None => Ok(()),
    }
}

/// Whether every real element is finite.
pub(super) fn is_finite<T: Real>(value: &Array<T>) -> bool {
    first(value, false).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_count_the_last_dimension_fastest() {
        assert_eq!(indices(&[2, 3, 4], 23), [1, 2, 3]);
        assert_eq!(indices(&[2, 3], 4), [1, 1]);
        assert_eq!(indices(&[5], 3), [3]);
    }

    #[test]
    fn only_the_sums_of_split_attention_may_be_empty() {
        let op = |split_context| Op::GqaAttention { head_dim: 8, scale: 1.0, window: None, split_context };
        assert!(may_be_empty(&op(true), 1) && !may_be_empty(&op(true), 0) && !may_be_empty(&op(false), 1));
        let values = Array::real(&[3], vec![1.0f32, f32::NEG_INFINITY, f32::INFINITY]);
        assert_eq!(first(&values, true), Some((2, f64::INFINITY)));
        assert_eq!(first(&values, false), Some((1, f64::NEG_INFINITY)));
        assert!(is_finite(&Array::<f32>::int(&[1], vec![-1])));
    }
}
