//! What was measured of a step, beside what is predicted of it.
//!
//! Every kind of trace has a reader that turns it into [`Interval`]s; one function joins two lists of them. Intervals of our own traces name
//! the command that they are of, the same for every executor.

mod compare;
mod own;
mod write;

#[cfg(test)]
mod tests;

pub use compare::{ClassRow, CommandRow, Comparison, OpRow, StepRow, compare, is_exchange};
pub use write::{MeasuredCommand, MeasuredRank, measured_trace};

use moetwin_models::OpClass;
use serde_json::Value;

/// Longest trace read: a step of eight ranks is a hundredth of it.
const MOST_BYTES: usize = 512 << 20;

/// Where the times of a trace come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// GPUs.
    Measured,
    /// The simulator.
    Simulated,
}

/// A kernel, the kernels of one command, or a rank's part of an exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Whose.
    pub rank: u32,
    /// Its stream.
    pub stream: u32,
    /// What it is called.
    pub name: String,
    /// What kind of work it is, where that is known.
    pub class: Option<OpClass>,
    /// The command, as [`moetwin_runtime::CommandId`] prints it, where that is known.
    pub command: Option<String>,
    /// The tensor that it writes, where that is known.
    pub result: Option<String>,
    /// Forward pass, from 0.
    pub step: u32,
    /// When it began, picoseconds.
    pub start_ps: u64,
    /// How long it took, picoseconds.
    pub duration_ps: u64,
    /// The part of it that was waiting for other ranks, picoseconds, where that is known.
    pub arrival_ps: Option<u64>,
    /// Of a prediction: what it takes with nothing beside it, picoseconds.
    pub alone_ps: Option<u64>,
    /// Of a prediction: the part that is bytes over the memory rate, picoseconds.
    pub memory_ps: Option<u64>,
    /// Of a prediction: where it comes from.
    pub from: Option<String>,
}

/// A trace as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Where its times come from.
    pub origin: Origin,
    /// A whole step, picoseconds.
    pub step_ps: u64,
    /// Whether that step was a replay of a captured graph.
    pub captured: bool,
    /// The same step launched command by command, picoseconds, where that was measured.
    pub eager_ps: Option<u64>,
    /// What its commands add up to, picoseconds, where that was measured.
    pub commands_ps: Option<u64>,
    /// The same step captured on one stream, picoseconds, where that was measured.
    pub one_stream_ps: Option<u64>,
    /// Forward passes in it.
    pub steps: u32,
    /// What it is of, as whoever wrote it said; null where nobody did.
    pub conditions: Value,
    /// Everything that ran on streams.
    pub intervals: Vec<Interval>,
}

/// Why a trace cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// It is longer than anything real.
    #[error("{0} bytes; at most {MOST_BYTES} are read")]
    TooLong(usize),
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// It is JSON, and of no known kind.
    #[error("of no known kind; accepted: {}", READERS.map(|r| r.what).join(", "))]
    Unknown,
    /// It is of a known kind, and something in it is wrong.
    #[error("{place}: {what}")]
    Wrong {
        /// Where.
        place: String,
        /// What.
        what: String,
    },
}

/// A kind of trace.
struct Reader {
    /// What it reads, in words.
    what: &'static str,
    /// Whether a JSON text is of this kind.
    accepts: fn(&Value) -> bool,
    /// Reads it.
    read: fn(&Value) -> Result<Trace, TraceError>,
}

/// Every kind of trace that is read.
const READERS: [Reader; 1] =
    [Reader { what: "a trace of moetwin (run --backend cuda --trace, or sim --trace)", accepts: own::accepts, read: own::read }];

/// Reads a trace of any known kind.
///
/// # Errors
/// If it is of none, or something in it is wrong: what, and where.
pub fn read(text: &str) -> Result<Trace, TraceError> {
    if text.len() > MOST_BYTES {
        return Err(TraceError::TooLong(text.len()));
    }
    let json: Value = serde_json::from_str(text).map_err(|e| TraceError::Json(e.to_string()))?;
    let reader = READERS.iter().find(|r| (r.accepts)(&json)).ok_or(TraceError::Unknown)?;
    (reader.read)(&json)
}
