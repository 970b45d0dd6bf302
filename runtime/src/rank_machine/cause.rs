//! Why a rank failed.

use crate::init::{Bucket, InitPhase, StepId};
use crate::program::CommandId;
use moetwin_models::RankId;
use std::time::Duration;

/// The first thing that went wrong: which rank, what it was doing, and the problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {}, {place}: {problem}", .rank.0)]
pub struct Cause {
    /// The rank that failed first.
    pub rank: RankId,
    /// What it was doing.
    pub place: Place,
    /// What went wrong.
    pub problem: Problem,
}

/// What a rank was doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A step of its start-up or end.
    Step {
        /// The step.
        step: StepId,
        /// Its name.
        name: String,
        /// Its phase.
        phase: InitPhase,
    },
    /// A forward pass.
    Launch {
        /// The fleet's number for it, from 0.
        sequence: u64,
        /// The batch size.
        bucket: Bucket,
    },
    /// Nothing: it waited for the fleet.
    Idle,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Step { name, phase, .. } => write!(f, "phase {phase}, `{name}`"),
            Place::Launch { sequence, bucket } => write!(f, "phase serve, pass {sequence} of {bucket}"),
            Place::Idle => write!(f, "between steps"),
        }
    }
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The driver reported an error.
    Driver(DriverError),
    /// Beginning would have broken an invariant.
    Invariant {
        /// Its name.
        name: &'static str,
        /// What goes wrong where it is broken.
        why: &'static str,
        /// What would have broken it.
        breach: String,
    },
    /// It took longer than it may.
    Deadline {
        /// How long it may take.
        limit: Duration,
    },
    /// Peers did not come to a synchronising step in time.
    PeersAbsent {
        /// How long it may take them.
        limit: Duration,
    },
    /// Every rank waits for another.
    Hang(String),
    /// Whoever carries out the rank's steps is gone.
    Lost(String),
    /// The start-up was given up on purpose.
    Cancelled,
    /// It was asked for something that its state forbids.
    Refused(String),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::Driver(error) => write!(f, "{error}"),
            Problem::Invariant { name, why, breach } => write!(f, "{name}: {breach} ({why})"),
            Problem::Deadline { limit } => write!(f, "not done within {limit:?}"),
            Problem::PeersAbsent { limit } => write!(f, "its peers did not come within {limit:?}"),
            Problem::Hang(who) => write!(f, "every rank waits for another: {who}"),
            Problem::Lost(what) => write!(f, "the rank is gone: {what}"),
            Problem::Cancelled => f.write_str("the start-up was given up"),
            Problem::Refused(why) => write!(f, "refused: {why}"),
        }
    }
}

/// An error of whoever carries out steps and passes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct DriverError {
    /// The command of the pass that failed, where it is known.
    pub command: Option<CommandId>,
    /// What went wrong, in the driver's words.
    pub message: String,
}

impl DriverError {
    /// An error that belongs to no command.
    pub fn new(message: impl Into<String>) -> Self {
        Self { command: None, message: message.into() }
    }
    /// An error of a command.
    pub fn at(command: CommandId, message: impl Into<String>) -> Self {
        Self { command: Some(command), message: message.into() }
    }
}

impl std::fmt::Display for DriverError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.command {
            Some(command) => write!(f, "command {command}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}
