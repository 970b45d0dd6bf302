//! Who carries out what the ranks are told.

use crate::init::{Fact, StepId};
use crate::rank_machine::{DriverError, Launch};
use moetwin_models::RankId;
use std::time::Duration;

/// Something to carry out on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// A step of the plan. Steps with a `sync` are ordered on all members at about the same time.
    Perform(StepId),
    /// A forward pass, ordered on all ranks at about the same time.
    Launch(Launch),
}

/// What became of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The step has ended; `unwritten` lists items that it should have brought about and did not.
    Done {
        /// The step.
        step: StepId,
        /// Usually empty.
        unwritten: Vec<Fact>,
    },
    /// The step has failed.
    Failed {
        /// The step.
        step: StepId,
        /// Why.
        error: DriverError,
    },
    /// The pass has ended.
    Launched {
        /// Its number.
        sequence: u64,
    },
    /// The pass has failed.
    LaunchFailed {
        /// Its number.
        sequence: u64,
        /// Why.
        error: DriverError,
    },
    /// Nothing can be carried out on the rank any more.
    Lost {
        /// What is known of it.
        message: String,
    },
}

/// Whoever carries out orders: threads that own devices, processes, a simulated machine. The fleet decides, the crew does.
pub trait Crew {
    /// Time since some fixed moment, real or virtual; never goes back.
    fn now(&mut self) -> Duration;
    /// Begins an order on a rank. A rank has one order at a time for each host thread of its plan.
    fn order(&mut self, rank: RankId, order: Order);
    /// Makes what runs on the rank return soon, its communicators aborted. It must not block.
    fn abort(&mut self, rank: RankId);
    /// Nothing more will be asked of the rank: what it was told did not return.
    fn abandon(&mut self, rank: RankId);
    /// A new start-up begins: aborts of the one before are over.
    fn renew(&mut self);
    /// The next report; `None` once `until` is reached without one. With `until` of `None` it waits for a report, and returns `None` only
    /// if none can come any more.
    fn wait(&mut self, until: Option<Duration>) -> Option<(RankId, Report)>;
}
