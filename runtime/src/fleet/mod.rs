//! Ranks that start, serve and end together, in an order that the type system and the invariants both guard.
//!
//! ```text
//! Fleet<Closed> -open-> Fleet<Opened> -load-> Fleet<Loaded> -connect-> Fleet<Connected> -capture-> Fleet<Captured> -replay-> Fleet<Captured>
//!        any of them -close-> Fleet<Closed>;        any failure -> Fleet<Failed> -close-> Fleet<Closed>
//! ```
//! A pass can be launched on a `Fleet<Captured>` only, and each move consumes the fleet, so that a wrong order does not compile.

mod core;
mod crew;
mod recording;
#[cfg(test)]
mod tests;
mod threads;
#[cfg(doctest)]
pub mod wrong_orders;

pub use crew::{Crew, Order, Report};
pub use recording::{Fault, Log, Recording, Script};
pub use threads::{AbortSignal, RankDriver, Threads};

use crate::init::{Bucket, CheckedPlan, FleetState, InitPhase, StepId};
use crate::rank_machine::{Cause, LaunchMode, Limits};
use core::Core;
use moetwin_models::RankId;
use std::marker::PhantomData;
use std::sync::Arc;

/// Nothing is open.
#[derive(Debug)]
pub enum Closed {}
/// Devices are open, ranks know each other.
#[derive(Debug)]
pub enum Opened {}
/// Weights are loaded.
#[derive(Debug)]
pub enum Loaded {}
/// Communicators, arenas, pools and buffers exist.
#[derive(Debug)]
pub enum Connected {}
/// Passes have run and, where graphs are on, are captured.
#[derive(Debug)]
pub enum Captured {}
/// A rank has failed; all have stopped.
#[derive(Debug)]
pub enum Failed {}

/// Ranks in a state `S`, carried out by a crew.
#[must_use]
pub struct Fleet<S, C> {
    core: Core<C>,
    state: PhantomData<S>,
}

/// A failed move: the first cause, and the fleet, which can only be closed.
#[derive(thiserror::Error)]
#[error("{cause}")]
pub struct Failure<C> {
    /// What went wrong first.
    pub cause: Box<Cause>,
    /// What is left.
    pub fleet: Box<Fleet<Failed, C>>,
}

impl<C> std::fmt::Debug for Failure<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failure").field("cause", &self.cause).finish_non_exhaustive()
    }
}

/// What is left after a failed fleet was closed.
pub struct CleanUp<C> {
    /// It can start again, unless ranks were abandoned.
    pub fleet: Fleet<Closed, C>,
    /// What went wrong in the clean-up itself.
    pub problems: Vec<Cause>,
    /// Ranks on which something never returned; what they hold is not freed.
    pub abandoned: Vec<RankId>,
}

/// A plan whose phases are out of order cannot be run phase by phase.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {}, step {} `{name}`: phase {phase} comes after phase {later} on the same thread; a fleet runs phase by phase", .rank.0, .step.0)]
pub struct PhaseOrder {
    /// The rank.
    pub rank: RankId,
    /// The step that comes too late.
    pub step: StepId,
    /// Its name.
    pub name: String,
    /// Its phase.
    pub phase: InitPhase,
    /// The phase before it.
    pub later: InitPhase,
}

impl<S, C: Crew> Fleet<S, C> {
    fn becomes<T>(self) -> Fleet<T, C> {
        Fleet { core: self.core, state: PhantomData }
    }
    fn moved<T>(mut self, how: impl FnOnce(&mut Core<C>) -> Result<(), Cause>) -> Result<Fleet<T, C>, Failure<C>> {
        match how(&mut self.core) {
            Ok(()) => Ok(self.becomes()),
            Err(cause) => Err(Failure { cause: Box::new(cause), fleet: Box::new(self.becomes()) }),
        }
    }
    /// The plan.
    pub fn plan(&self) -> &Arc<CheckedPlan> {
        &self.core.plan
    }
    /// How far every rank is.
    pub fn state(&self) -> &FleetState {
        self.core.state()
    }
    /// Who carries out orders.
    pub fn crew(&self) -> &C {
        &self.core.crew
    }
    /// Who carries out orders.
    pub fn crew_mut(&mut self) -> &mut C {
        &mut self.core.crew
    }
    /// Gives the crew back.
    pub fn into_crew(self) -> C {
        self.core.crew
    }
}

impl<C: Crew> Fleet<Closed, C> {
    /// A fleet before its first step.
    ///
    /// # Errors
    /// If, on some host thread, a step follows one of a later phase.
    pub fn new(plan: Arc<CheckedPlan>, crew: C, limits: Limits) -> Result<Self, PhaseOrder> {
        for rank in plan.ranks() {
            for thread in &plan.rank(rank).threads {
                let steps = thread.iter().map(|step| plan.step(rank, *step));
                for (before, step) in steps.clone().zip(steps.skip(1)) {
                    if step.phase < before.phase {
                        return Err(PhaseOrder { rank, step: step.id, name: step.name.clone(), phase: step.phase, later: before.phase });
                    }
                }
            }
        }
        Ok(Self { core: Core::new(plan, crew, limits), state: PhantomData })
    }
    /// Opens devices and makes ranks known to each other.
    ///
    /// # Errors
    /// The first cause, if any rank fails; so do all moves.
    pub fn open(self) -> Result<Fleet<Opened, C>, Failure<C>> {
        self.moved(|core| core.advance(InitPhase::Open))
    }
}

impl<C: Crew> Fleet<Opened, C> {
    /// Loads weights and what belongs to them.
    ///
    /// # Errors
    /// The first cause, if any rank fails.
    pub fn load(self) -> Result<Fleet<Loaded, C>, Failure<C>> {
        self.moved(|core| core.advance(InitPhase::Load))
    }
}

impl<C: Crew> Fleet<Loaded, C> {
    /// Creates communicators and reserves memory.
    ///
    /// # Errors
    /// The first cause, if any rank fails.
    pub fn connect(self) -> Result<Fleet<Connected, C>, Failure<C>> {
        self.moved(|core| core.advance(InitPhase::Allocate))
    }
}

impl<C: Crew> Fleet<Connected, C> {
    /// Warms up, captures every bucket, waits for all ranks, and does the first pass.
    ///
    /// # Errors
    /// The first cause, if any rank fails.
    pub fn capture(self) -> Result<Fleet<Captured, C>, Failure<C>> {
        self.moved(|core| core.advance(InitPhase::Serve))
    }
}

impl<C: Crew> Fleet<Captured, C> {
    /// Launches the captured graph of a bucket on every rank and waits for all.
    ///
    /// # Errors
    /// The first cause, if any rank fails or the bucket is not captured.
    pub fn replay(self, bucket: Bucket) -> Result<Self, Failure<C>> {
        self.moved(|core| core.launch(bucket, LaunchMode::Replay))
    }
    /// Runs the pass of a bucket command by command on every rank and waits for all.
    ///
    /// # Errors
    /// The first cause, if any rank fails.
    pub fn run_eagerly(self, bucket: Bucket) -> Result<Self, Failure<C>> {
        self.moved(|core| core.launch(bucket, LaunchMode::Eager))
    }
    /// Destroys graphs, communicators and contexts, in that order.
    ///
    /// # Errors
    /// The first cause, if any rank fails.
    pub fn close(self) -> Result<Fleet<Closed, C>, Failure<C>> {
        self.moved(|core| core.advance(InitPhase::Close)).map(|fleet: Fleet<Closed, C>| fleet.renewed())
    }
}

impl<C: Crew> Fleet<Closed, C> {
    fn renewed(self) -> Self {
        Self { core: self.core.renewed(), state: PhantomData }
    }
}

/// States of a start-up that has begun and is not finished.
pub trait Unfinished {}
impl Unfinished for Opened {}
impl Unfinished for Loaded {}
impl Unfinished for Connected {}

impl<S: Unfinished, C: Crew> Fleet<S, C> {
    /// Gives the start-up up: ends what there is on every rank, without waiting for peers.
    pub fn close(mut self) -> CleanUp<C> {
        self.core.cancel();
        self.becomes::<Failed>().close()
    }
}

impl<C: Crew> Fleet<Failed, C> {
    /// Ends what is left on every rank, without waiting for peers. Bounded like everything else; what does not return is abandoned.
    pub fn close(mut self) -> CleanUp<C> {
        self.core.clean_up();
        let machines = self.core.machines();
        let problems = machines.iter().flat_map(|(_, machine)| machine.clean_up_problems().iter().cloned()).collect();
        let abandoned = machines.iter().filter(|(_, machine)| machine.is_abandoned()).map(|(rank, _)| rank).collect();
        CleanUp { fleet: self.becomes::<Closed>().renewed(), problems, abandoned }
    }
}
