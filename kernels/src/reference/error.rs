//! Why an op cannot be computed.

/// An op that was handed something it cannot compute. Nothing has been written to the results when a shape is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Wrong number of operands or results.
    #[error("{op}: {got} {what}, expected {expected}")]
    Arity {
        /// The op.
        op: &'static str,
        /// `operands` or `results`.
        what: &'static str,
        /// How many were given.
        got: usize,
        /// How many there must be.
        expected: String,
    },
    /// An operand or result of the wrong shape or element kind.
    #[error("{op}: {operand} is {got}, expected {expected}")]
    Operand {
        /// The op.
        op: &'static str,
        /// The operand or result.
        operand: &'static str,
        /// What was given.
        got: String,
        /// What it must be.
        expected: String,
    },
    /// A value that breaks the op's contract.
    #[error("{op}: {operand} row {row}: {problem}")]
    Value {
        /// The op.
        op: &'static str,
        /// The operand.
        operand: &'static str,
        /// The row (or sequence) that holds it.
        row: usize,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// An op or option that exists for cost only.
    #[error("{op}: {why}")]
    Unsupported {
        /// The op.
        op: &'static str,
        /// What is not computed.
        why: String,
    },
}
