//! How long things may take.

use crate::init::{CheckedPlan, InitPhase};
use std::time::Duration;

/// Bounds of every wait of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One step of the load phase.
    pub load: Duration,
    /// One step of any other phase.
    pub step: Duration,
    /// One forward pass.
    pub launch: Duration,
    /// From a rank's arrival at a synchronising step to that of the last member. It should exceed what the members may take until
    /// then, or the rank that waits is named instead of the one that is slow; [`Limits::for_plan`] sees to that.
    pub wait: Duration,
    /// From an abort until whatever was running has returned.
    pub abort: Duration,
}

impl Limits {
    /// Limits whose `wait` is as long as the longest rank may take for all its steps.
    pub fn for_plan(plan: &CheckedPlan, load: Duration, step: Duration, launch: Duration, abort: Duration) -> Self {
        let mut limits = Self { load, step, launch, wait: step, abort };
        let whole = |rank| plan.rank(rank).steps.iter().flatten().map(|live| limits.of_phase(plan.step(rank, live.id).phase)).sum();
        let longest: Duration = plan.ranks().map(whole).max().unwrap_or_default();
        limits.wait = longest + step;
        limits
    }
    /// What one step of a phase may take.
    pub fn of_phase(&self, phase: InitPhase) -> Duration {
        if phase == InitPhase::Load { self.load } else { self.step }
    }
}
