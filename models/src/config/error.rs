//! What is wrong with a configuration, where, and what would be right.

use std::fmt;
use thiserror::Error;

/// A configuration that cannot be read: every fault that was found, in the order of the checks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConfigError {
    /// The file or model that was read.
    pub name: String,
    /// At least one fault.
    pub faults: Vec<Fault>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file it is in: the name given to the reader, or `hf_quant_config.json`.
    pub file: String,
    /// JSON path of the field (`text_config.num_experts_per_tok`, `layer_types[3]`); empty for the whole file.
    pub path: String,
    /// Where the field's key stands; of a missing field, the object that lacks it. `None` for the whole file.
    pub position: Option<Position>,
    /// What is wrong.
    pub problem: String,
    /// What would be right.
    pub accepted: String,
}

/// A place in a text, both counted from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if let Some(Position { line, column }) = self.position {
            write!(f, "{line}:{column}:")?;
        }
        if !self.path.is_empty() {
            write!(f, " {}:", self.path)?;
        }
        write!(f, " {}", self.problem)?;
        if !self.accepted.is_empty() {
            write!(f, " (accepted: {})", self.accepted)?;
        }
        Ok(())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.faults.len();
        write!(f, "{}: {n} fault{} in the model configuration", self.name, if n == 1 { "" } else { "s" })?;
        for fault in &self.faults {
            write!(f, "\n  {fault}")?;
        }
        Ok(())
    }
}
