//! An executor as the crew of a fleet: what the fleet orders, rank by rank, an executor does for real.

use crate::executor::{Executor, ProgramKey};
use crate::fleet::{Crew, Order, Report};
use crate::init::{CheckedPlan, Fact, InitPhase, StepId, Worker};
use crate::program::Program;
use crate::rank_machine::{DriverError, Launch};
use crate::reference::{ExecuteError, NamedValue, StepInputs};
use crate::weights::WeightSource;
use moetwin_models::RankId;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The crew of one executor, which holds all ranks. Orders are carried out as they come; reports queue up.
pub(crate) struct ExecutorCrew<'a, E: Executor> {
    executor: E,
    weights: &'a dyn WeightSource,
    plan: Arc<CheckedPlan>,
    /// The program that start-up prepares, until its memory phase.
    starting: Option<Program>,
    started: Option<ProgramKey>,
    /// The next pass, and what became of the last one.
    staged: Option<(ProgramKey, StepInputs)>,
    values: Vec<NamedValue<E::Number>>,
    failure: Option<ExecuteError>,
    arrived: BTreeSet<RankId>,
    reports: VecDeque<(RankId, Report)>,
    epoch: Instant,
}

impl<'a, E: Executor> ExecutorCrew<'a, E> {
    /// A crew that will start up with `program`, by a plan made for it.
    pub(crate) fn new(executor: E, weights: &'a dyn WeightSource, plan: Arc<CheckedPlan>, program: Program) -> Self {
        Self {
            executor,
            weights,
            plan,
            starting: Some(program),
            started: None,
            staged: None,
            values: Vec::new(),
            failure: None,
            arrived: BTreeSet::new(),
            reports: VecDeque::new(),
            epoch: Instant::now(),
        }
    }
    /// The program that start-up prepared.
    pub(crate) fn started(&self) -> Option<ProgramKey> {
        self.started
    }
    /// Prepares a further program whose weights are loaded already or come with it.
    pub(crate) fn prepare(&mut self, program: Program) -> Result<ProgramKey, ExecuteError> {
        for rank in program.ranks.ids() {
            self.executor.load(&program, rank, self.weights)?;
        }
        self.executor.prepare(program)
    }
    /// The executor itself.
    pub(crate) fn executor_mut(&mut self) -> &mut E {
        &mut self.executor
    }
    /// Sets what the next pass runs.
    pub(crate) fn stage(&mut self, key: ProgramKey, inputs: StepInputs) {
        self.staged = Some((key, inputs));
    }
    /// The results of the last pass.
    pub(crate) fn take_values(&mut self) -> Vec<NamedValue<E::Number>> {
        std::mem::take(&mut self.values)
    }
    /// What the executor said when it failed, in full.
    pub(crate) fn take_failure(&mut self) -> Option<ExecuteError> {
        self.failure.take()
    }

    fn perform(&mut self, rank: RankId, step: StepId) -> Result<(), ExecuteError> {
        let brings = |fact: &Fact| self.plan.live(rank, step).is_some_and(|live| live.writes.contains(fact));
        if brings(&Fact::Weights(Worker::Target))
            && let Some(program) = &self.starting
        {
            self.executor.load(program, rank, self.weights)?;
        }
        // The executor makes communicators, arenas and pools of all ranks together, when the fleet lets the first rank begin.
        if self.plan.step(rank, step).phase > InitPhase::Load
            && let Some(program) = self.starting.take()
        {
            self.started = Some(self.executor.prepare(program)?);
        }
        Ok(())
    }

    fn launch(&mut self, rank: RankId, launch: Launch) {
        self.arrived.insert(rank);
        if self.arrived.len() < self.plan.ranks().count() {
            return;
        }
        self.arrived.clear();
        let outcome = match self.staged.take() {
            Some((key, inputs)) => self.executor.run(key, &inputs),
            None => Err(ExecuteError::Inputs("a pass was launched without inputs".into())),
        };
        let report = match outcome {
            Ok(values) => {
                self.values = values;
                Report::Launched { sequence: launch.sequence }
            }
            Err(e) => {
                let error = DriverError::new(e.to_string());
                self.failure = Some(e);
                Report::LaunchFailed { sequence: launch.sequence, error }
            }
        };
        self.reports.extend(self.plan.ranks().map(|rank| (rank, report.clone())));
    }
}

impl<E: Executor> Crew for ExecutorCrew<'_, E> {
    fn now(&mut self) -> Duration {
        self.epoch.elapsed()
    }
    fn order(&mut self, rank: RankId, order: Order) {
        match order {
            Order::Perform(step) => {
                let report = match self.perform(rank, step) {
                    Ok(()) => Report::Done { step, unwritten: Vec::new() },
                    Err(e) => {
                        let error = DriverError::new(e.to_string());
                        self.failure = Some(e);
                        Report::Failed { step, error }
                    }
                };
                self.reports.push_back((rank, report));
            }
            Order::Launch(launch) => self.launch(rank, launch),
        }
    }
    // An order has ended, or its executor's own deadline has ended it, before `order` returns: nothing is left to stop.
    fn abort(&mut self, _: RankId) {}
    fn abandon(&mut self, _: RankId) {}
    fn renew(&mut self) {}
    fn wait(&mut self, _: Option<Duration>) -> Option<(RankId, Report)> {
        self.reports.pop_front()
    }
}
