//! What one rank does next. No clocks, threads or devices: inputs say what happened and when, actions say what to do.
//!
//! Every executor obeys it, in real and in virtual time. The abort rule is here: a rank that fails, or hears that another failed,
//! aborts its groups, lets what is running return (it does, or it is abandoned when the limit is over), and from then on can only be cleaned up.

mod abort;
mod cause;
mod limits;
mod steps;
#[cfg(test)]
mod tests;

pub use cause::{Cause, DriverError, Place, Problem};
pub use limits::Limits;

use crate::init::{Bucket, CheckedPlan, Fact, InitPhase, StepId};
use crate::program::GroupId;
use moetwin_models::RankId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A forward pass that all ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Launch {
    /// Counts the fleet's passes from 0; the same on every rank.
    pub sequence: u64,
    /// The batch size.
    pub bucket: Bucket,
    /// From the captured graph, or command by command.
    pub mode: LaunchMode,
}

/// How a forward pass is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaunchMode {
    /// The captured graph of the bucket.
    Replay,
    /// Command by command.
    Eager,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Run every step up to and including this phase.
    Advance(InitPhase),
    /// All members have arrived at the step.
    Released(StepId),
    /// A step has ended.
    Done {
        /// The step.
        step: StepId,
        /// Items that it should have brought about and did not.
        unwritten: Vec<Fact>,
    },
    /// A step has failed, or must not begin.
    Failed {
        /// The step.
        step: StepId,
        /// Why.
        problem: Problem,
    },
    /// All ranks do this pass now.
    Launch(Launch),
    /// The pass is done.
    Launched {
        /// Its number.
        sequence: u64,
    },
    /// The pass has failed, or must not begin.
    LaunchFailed {
        /// Its number.
        sequence: u64,
        /// Why.
        problem: Problem,
    },
    /// Another rank has failed.
    PeerFailed(Cause),
    /// Whoever carries out this rank's steps is gone.
    Lost(String),
    /// Clean up after a failure.
    CleanUp,
    /// Nothing but time has passed.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell the group's other members that this rank has come to the step; answer [`Input::Released`] when all have.
    Arrive {
        /// The step.
        step: StepId,
        /// The group.
        group: GroupId,
    },
    /// Carry out a step; answer [`Input::Done`] or [`Input::Failed`].
    Perform(StepId),
    /// Carry out a pass; answer [`Input::Launched`] or [`Input::LaunchFailed`].
    Launch(Launch),
    /// Abort this rank's communicators, so that whatever runs on it returns.
    AbortGroups,
    /// This rank has failed by itself: tell every other rank.
    Report(Cause),
    /// What runs on the rank did not return after an abort; nothing more will be asked of it.
    Abandon,
    /// Every step up to and including the phase has ended.
    Reached(InitPhase),
    /// The pass with this number is done.
    Finished(u64),
    /// The rank has failed and nothing runs on it any more.
    Ended,
    /// The clean-up is over.
    CleanedUp,
}

/// How far a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Steps up to the phase are done; it waits for the fleet. `None` before the first.
    Idle(Option<InitPhase>),
    /// It runs steps up to the phase.
    Advancing(InitPhase),
    /// It does a pass.
    Launching(Launch),
    /// It has aborted and waits, until the given time, for what runs to return.
    Aborting {
        /// Latest time.
        until: Duration,
    },
    /// It failed; nothing runs.
    Failed,
    /// It is being cleaned up.
    CleaningUp,
    /// It was cleaned up.
    CleanedUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Running {
    /// Whether it waits for members of its group (else it is being carried out).
    waiting: bool,
    since: Duration,
    limit: Duration,
}

/// One rank.
#[derive(Clone, Debug)]
pub struct RankMachine {
    plan: Arc<CheckedPlan>,
    rank: RankId,
    limits: Limits,
    stage: Stage,
    running: BTreeMap<StepId, Running>,
    launched_at: Duration,
    ended: BTreeSet<StepId>,
    failed: BTreeSet<StepId>,
    facts: BTreeSet<Fact>,
    next_sequence: u64,
    cause: Option<Cause>,
    /// Whether a pass that began before the abort has not returned yet.
    pass_is_out: bool,
    abandoned: bool,
    clean_up: Vec<StepId>,
    clean_up_problems: Vec<Cause>,
}

impl RankMachine {
    /// A rank that has done nothing. `rank` must be one of the plan's.
    pub fn new(plan: Arc<CheckedPlan>, rank: RankId, limits: Limits) -> Self {
        Self {
            plan,
            rank,
            limits,
            stage: Stage::Idle(None),
            running: BTreeMap::new(),
            launched_at: Duration::ZERO,
            ended: BTreeSet::new(),
            failed: BTreeSet::new(),
            facts: BTreeSet::new(),
            next_sequence: 0,
            cause: None,
            pass_is_out: false,
            abandoned: false,
            clean_up: Vec::new(),
            clean_up_problems: Vec::new(),
        }
    }
    /// How far it is.
    pub fn stage(&self) -> Stage {
        self.stage
    }
    /// The first cause of failure that it knows.
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }
    /// What went wrong in the clean-up, which goes on nevertheless.
    pub fn clean_up_problems(&self) -> &[Cause] {
        &self.clean_up_problems
    }
    /// Whether something did not return and was given up; what it held is not freed.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned
    }
    /// The step that waits for members of its group, if one does.
    pub fn waiting(&self) -> Option<StepId> {
        self.running.iter().find(|(_, running)| running.waiting).map(|(step, _)| *step)
    }
    /// Whether something is being carried out for the rank.
    pub fn is_busy(&self) -> bool {
        matches!(self.stage, Stage::Launching(_)) || self.running.values().any(|running| !running.waiting)
    }
    /// When it wants an [`Input::Tick`] at the latest.
    pub fn next_deadline(&self) -> Option<Duration> {
        match self.stage {
            Stage::Aborting { until } => Some(until),
            Stage::Launching(_) => Some(self.launched_at + self.limits.launch),
            _ => self.running.values().map(|running| running.since + running.limit).min(),
        }
    }

    /// Takes what happened at time `now` (any fixed origin, never going back) and returns what to do, in order.
    pub fn handle(&mut self, now: Duration, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Advance(phase) => self.advance(now, phase, &mut actions),
            Input::Released(step) => self.released(now, step, &mut actions),
            Input::Done { step, unwritten } => self.done(now, step, &unwritten, &mut actions),
            Input::Failed { step, problem } => self.step_failed(now, step, problem, &mut actions),
            Input::Launch(launch) => self.launch(now, launch, &mut actions),
            Input::Launched { sequence } => self.launch_ended(now, sequence, None, &mut actions),
            Input::LaunchFailed { sequence, problem } => self.launch_ended(now, sequence, Some(problem), &mut actions),
            Input::PeerFailed(cause) => self.fail(now, cause, &mut actions),
            Input::Lost(what) => self.lost(now, what, &mut actions),
            Input::CleanUp => self.start_clean_up(now, &mut actions),
            Input::Tick => {}
        }
        self.check_deadlines(now, &mut actions);
        actions
    }

    fn place(&self, step: StepId) -> Place {
        let given = self.plan.step(self.rank, step);
        Place::Step { step, name: given.name.clone(), phase: given.phase }
    }
    fn own(&self, place: Place, problem: Problem) -> Cause {
        Cause { rank: self.rank, place, problem }
    }
    fn refuse(&mut self, now: Duration, place: Place, why: String, actions: &mut Vec<Action>) {
        let cause = self.own(place, Problem::Refused(why));
        self.fail(now, cause, actions);
    }
}
