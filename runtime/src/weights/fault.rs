//! What can be wrong with a checkpoint, and the one error that lists all of it.

use super::stored::StoredType;
use std::fmt;

/// Faults that [`CheckpointError`] prints before it only counts them; all are in [`CheckpointError::faults`].
const PRINTED_FAULTS: usize = 200;
/// Characters of a fault that are printed; names come from the file and may be as long as it.
const PRINTED_CHARS: usize = 1000;

/// One thing that is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A file that cannot be opened or read.
    #[error("{file}: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why, from the operating system.
        reason: String,
    },
    /// A file whose header or index is not what the format says.
    #[error("{file}: {reason}")]
    Malformed {
        /// The file.
        file: String,
        /// What was found and what would be right.
        reason: String,
    },
    /// The file ends before its header or its tensors do.
    #[error("{file}: truncated: {needed_bytes} bytes are declared and {found_bytes} are there")]
    Truncated {
        /// The file.
        file: String,
        /// Bytes that the file needs.
        needed_bytes: u64,
        /// Bytes that it has.
        found_bytes: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("{file}: {bytes} bytes {place} belong to no tensor")]
    Unclaimed {
        /// The file.
        file: String,
        /// Where they are.
        place: String,
        /// How many.
        bytes: u64,
    },
    /// A tensor that claims bytes of another.
    #[error("{file}: {tensor} overlaps {other}")]
    Overlapping {
        /// The file.
        file: String,
        /// The tensor that starts later.
        tensor: String,
        /// The tensor that starts first.
        other: String,
    },
    /// A tensor whose entry contradicts itself or names an unknown element type.
    #[error("{file}: {tensor}: {reason}")]
    BadEntry {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What was found and what would be right.
        reason: String,
    },
    /// A tensor that is there twice.
    #[error("{tensor}: duplicate, in {first} and in {second}")]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// Where it was first.
        first: String,
        /// Where it was again.
        second: String,
    },
    /// A tensor of which the index and the shards disagree.
    #[error("{tensor}: {reason}")]
    Index {
        /// The tensor.
        tensor: String,
        /// How they disagree.
        reason: String,
    },
    /// A tensor that the model needs and no file has.
    #[error("{tensor}: missing, expected {} with {}{hint}", shape_text(.shape), types_text(.types))]
    Missing {
        /// The tensor.
        tensor: String,
        /// Shape that the model gives it.
        shape: Vec<u64>,
        /// Element types that would do.
        types: &'static [StoredType],
        /// What is there instead, empty where nothing is.
        hint: String,
    },
    /// A tensor that the model has no use for.
    #[error("{tensor}: extra, {found} {}: the model has no use for it", shape_text(.shape))]
    Extra {
        /// The tensor.
        tensor: String,
        /// Its element type.
        found: StoredType,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A tensor of the wrong shape.
    #[error("{tensor}: shape {}, expected {}", shape_text(.found), shape_text(.expected))]
    Misshapen {
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<u64>,
        /// Shape that the model gives it.
        expected: Vec<u64>,
    },
    /// A tensor of an element type that its role cannot have.
    #[error("{tensor}: element type {found}, expected {}", types_text(.expected))]
    WrongType {
        /// The tensor.
        tensor: String,
        /// Its element type.
        found: StoredType,
        /// Element types that would do.
        expected: &'static [StoredType],
    },
    /// A tensor whose contents contradict the tensors beside it.
    #[error("{tensor}: {reason}")]
    Contradicts {
        /// The tensor.
        tensor: String,
        /// What it says and what would be right.
        reason: String,
    },
    /// A model without a graph: what its weights are is unknown.
    #[error("{model}: {reason}")]
    Model {
        /// The model.
        model: String,
        /// Why it has none.
        reason: String,
    },
    /// A weight of a block that is modelled for cost only, or in a format that only costs are known of.
    #[error("{weight} has no loader: blocks that are modelled for cost only have none, nor has {format} here")]
    NoLoader {
        /// Role and layer.
        weight: String,
        /// Storage format.
        format: String,
    },
}

/// Everything that is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointError {
    /// The folder or file.
    pub place: String,
    /// The faults: those of files first, in shard order, then those of tensors by name.
    pub faults: Vec<Fault>,
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |fault: &Fault| {
            let mut text = fault.to_string();
            if let Some((end, _)) = text.char_indices().nth(PRINTED_CHARS) {
                text.truncate(end);
                text.push_str("...");
            }
            text
        };
        match self.faults.as_slice() {
            [one] => return write!(f, "{}: {}", self.place, line(one)),
            many => write!(f, "{}: {} faults in the checkpoint", self.place, many.len())?,
        }
        for fault in self.faults.iter().take(PRINTED_FAULTS) {
            write!(f, "\n  {}", line(fault))?;
        }
        match self.faults.len().checked_sub(PRINTED_FAULTS) {
            Some(more) if more > 0 => write!(f, "\n  and {more} more"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for CheckpointError {}

pub(crate) fn shape_text(shape: &[u64]) -> String {
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

fn types_text(types: &[StoredType]) -> String {
    let names: Vec<&str> = types.iter().map(|t| t.name()).collect();
    match names.as_slice() {
        [one] => (*one).to_string(),
        many => format!("one of {}", many.join(", ")),
    }
}
