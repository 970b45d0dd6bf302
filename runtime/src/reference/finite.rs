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

/// A result of a command.
pub(super) struct NamedResult<'t, 'v, T> {
    /// Which of the node's results.
    pub(super) index: usize,
    /// Its tensor's name.
    pub(super) tensor: &'t str,
    pub(super) value: &'v Array<T>,
}

impl<T: Real> NamedResult<'_, '_, T> {
    fn not_finite(&self, empty_allowed: bool) -> Option<NotFinite> {
        let (flat, value) = first(self.value, empty_allowed)?;
        Some(NotFinite { tensor: self.tensor.to_owned(), index: indices(&self.value.sizes, flat), value })
    }
}

/// Errors where a result of `node` on `rank` is not finite; `command` prints the command.
///
/// # Errors
/// [`ExecuteError::NotFinite`] with the first such value.
pub(super) fn check<T: Real>(
    node: &Node,
    rank: RankId,
    command: impl Fn() -> String,
    results: &[NamedResult<'_, '_, T>],
) -> Result<(), ExecuteError> {
    let found = results.iter().find_map(|r| r.not_finite(may_be_empty(&node.op, r.index)));
    found.map_or(Ok(()), |found| Err(ExecuteError::NotFinite { rank, command: command(), found }))
}

/// The same of an exchange's results: a sum may leave the range of numbers, while what merely passes on is another command's.
pub(super) fn check_exchanged<T: Real>(
    rank: RankId,
    command: impl Fn() -> String,
    operands_finite: bool,
    results: &[NamedResult<'_, '_, T>],
) -> Result<(), ExecuteError> {
    let found = if operands_finite { results.iter().find_map(|r| r.not_finite(false)) } else { None };
    found.map_or(Ok(()), |found| Err(ExecuteError::NotFinite { rank, command: command(), found }))
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

    #[test]
    fn an_exchange_is_blamed_for_sums_and_not_for_what_it_passes_on() {
        let sum = Array::real(&[1, 2], vec![1.0f32, f32::INFINITY]);
        let results = [NamedResult { index: 0, tensor: "x.sum", value: &sum }];
        let check = |operands_finite| check_exchanged(RankId(3), || "n7/r3".into(), operands_finite, &results);
        assert!(check(false).is_ok());
        let error = check(true).unwrap_err().to_string();
        assert!(error.starts_with("rank 3, n7/r3: ") && error.contains("x.sum[0, 1] is inf"), "{error}");
    }
}
