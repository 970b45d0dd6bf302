//! Reading what people have of a machine and of their users: tool output, logs and request traces.

pub mod nccl_tests;
pub mod requests;
pub mod tables;

/// A text that could not be read: where, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ImportError {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong, and what would have been accepted.
    pub message: String,
}

impl ImportError {
    pub(crate) fn new(line: usize, column: usize, message: impl Into<String>) -> Self {
        Self { line, column, message: message.into() }
    }
}

/// Longest text read.
pub const MOST_BYTES: usize = 16 << 20;

pub(crate) fn bounded(text: &str) -> Result<(), ImportError> {
    if text.len() > MOST_BYTES {
        return Err(ImportError::new(1, 1, format!("{} bytes; at most {MOST_BYTES} are read", text.len())));
    }
    Ok(())
}
