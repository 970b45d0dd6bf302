//! Ranks that run together: moves what one rank's machine says to the others and to the crew, and asserts the invariants before each step.

use super::crew::{Crew, Order, Report};
use crate::init::{Breach, Bucket, CheckedPlan, FleetState, InitPhase, StepId};
use crate::rank_machine::{Action, Cause, Input, Launch, LaunchMode, Limits, Place, Problem, RankMachine, Stage};
use moetwin_models::{IdVec, RankId};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) struct Core<C> {
    pub(super) plan: Arc<CheckedPlan>,
    pub(super) crew: C,
    pub(super) limits: Limits,
    state: FleetState,
    machines: IdVec<RankId, RankMachine>,
    actions: VecDeque<(RankId, Action)>,
    cause: Option<Cause>,
    launches: u64,
}

impl<C: Crew> Core<C> {
    pub(super) fn new(plan: Arc<CheckedPlan>, crew: C, limits: Limits) -> Self {
        let machines = plan.ranks().map(|rank| RankMachine::new(plan.clone(), rank, limits)).collect();
        let state = FleetState::new(plan.clone());
        Self { plan, crew, limits, state, machines, actions: VecDeque::new(), cause: None, launches: 0 }
    }
    /// The same fleet before its first step.
    pub(super) fn renewed(mut self) -> Self {
        self.crew.renew();
        Self::new(self.plan, self.crew, self.limits)
    }
    pub(super) fn machines(&self) -> &IdVec<RankId, RankMachine> {
        &self.machines
    }
    pub(super) fn state(&self) -> &FleetState {
        &self.state
    }

    pub(super) fn advance(&mut self, phase: InitPhase) -> Result<(), Cause> {
        self.tell_all(&Input::Advance(phase));
        self.run_until(|machine| matches!(machine.stage(), Stage::Idle(Some(reached)) if reached >= phase))
    }

    pub(super) fn launch(&mut self, bucket: Bucket, mode: LaunchMode) -> Result<(), Cause> {
        let launch = Launch { sequence: self.launches, bucket, mode };
        self.launches += 1;
        self.tell_all(&Input::Launch(launch));
        self.run_until(|machine| matches!(machine.stage(), Stage::Idle(_)))
    }

    /// Stops ranks that have not failed.
    pub(super) fn cancel(&mut self) {
        let cause = Cause { rank: RankId(0), place: Place::Idle, problem: Problem::Cancelled };
        self.tell_all(&Input::PeerFailed(cause.clone()));
        self.cause.get_or_insert(cause);
        self.pump(|machine| machine.stage() == Stage::Failed);
    }

    pub(super) fn clean_up(&mut self) {
        self.tell_all(&Input::CleanUp);
        // Every machine ends by its own limits, so this does; a failure during it is kept by the machine.
        self.pump(|machine| machine.stage() == Stage::CleanedUp);
    }

    /// Runs until every rank is where `there` says, or a rank has failed and with it all have ended.
    fn run_until(&mut self, there: impl Fn(&RankMachine) -> bool) -> Result<(), Cause> {
        self.pump(there);
        if self.cause.is_some() {
            self.pump(|machine| machine.stage() == Stage::Failed);
        }
        self.cause.clone().map_or(Ok(()), Err)
    }

    /// Runs until every rank is where `there` says, or a failure is known for the first time.
    fn pump(&mut self, there: impl Fn(&RankMachine) -> bool) {
        let known = self.cause.is_some();
        loop {
            while let Some((rank, action)) = self.actions.pop_front() {
                self.act(rank, action);
            }
            if self.machines.iter().all(|(_, machine)| there(machine)) || self.cause.is_some() != known {
                return;
            }
            if let Some((rank, step)) = self.stand_still() {
                let problem = Problem::Hang(self.who_waits());
                self.tell(rank, Input::Failed { step, problem });
                continue;
            }
            let until = self.machines.iter().filter_map(|(_, machine)| machine.next_deadline()).min();
            match self.crew.wait(until) {
                Some((rank, report)) => self.tell(rank, input(report)),
                None if until.is_none() => return self.give_up(),
                None => self.tell_all(&Input::Tick),
            }
        }
    }

    /// No report can come and no deadline is set, yet the ranks are not where they should be: the crew has lost them.
    fn give_up(&mut self) {
        self.tell_all(&Input::Lost("the crew has nothing more to report".to_owned()));
        while let Some((rank, action)) = self.actions.pop_front() {
            self.act(rank, action);
        }
    }

    /// The first rank that waits, if all that is left is waiting.
    fn stand_still(&self) -> Option<(RankId, StepId)> {
        let busy = |machine: &RankMachine| machine.is_busy() || matches!(machine.stage(), Stage::Aborting { .. });
        if self.machines.iter().any(|(_, machine)| busy(machine)) {
            return None;
        }
        self.machines.iter().find_map(|(rank, machine)| Some((rank, machine.waiting()?)))
    }

    fn who_waits(&self) -> String {
        let one = |(rank, machine): (RankId, &RankMachine)| {
            let step = self.plan.step(rank, machine.waiting()?);
            let group = step.sync.map_or_else(String::new, |group| format!(" for {}", self.plan.plan().group_name(group)));
            Some(format!("rank {} in `{}`{group}", rank.0, step.name))
        };
        self.machines.iter().filter_map(one).collect::<Vec<_>>().join(", ")
    }

    fn tell(&mut self, rank: RankId, input: Input) {
        let now = self.crew.now();
        if let Input::Done { step, unwritten } = &input {
            self.state.end(rank, *step, unwritten);
        }
        let actions = self.machines[rank].handle(now, input);
        self.actions.extend(actions.into_iter().map(|action| (rank, action)));
    }
    fn tell_all(&mut self, input: &Input) {
        for rank in self.plan.ranks() {
            self.tell(rank, input.clone());
        }
    }

    fn act(&mut self, rank: RankId, action: Action) {
        match action {
            Action::Arrive { step, .. } => self.arrive(rank, step),
            Action::Perform(step) => self.perform(rank, step),
            Action::Launch(launch) => {
                let breaches = if launch.mode == LaunchMode::Replay { self.state.launch_breaches(rank, launch.bucket) } else { Vec::new() };
                match breaches.first() {
                    Some(breach) => {
                        let problem = self.invariant(breach);
                        self.tell(rank, Input::LaunchFailed { sequence: launch.sequence, problem });
                    }
                    None => self.crew.order(rank, Order::Launch(launch)),
                }
            }
            Action::AbortGroups => self.crew.abort(rank),
            Action::Report(cause) => {
                self.cause.get_or_insert(cause.clone());
                for other in self.plan.ranks().filter(|other| *other != rank) {
                    self.tell(other, Input::PeerFailed(cause.clone()));
                }
            }
            Action::Abandon => self.crew.abandon(rank),
            Action::Reached(_) | Action::Finished(_) | Action::Ended | Action::CleanedUp => {}
        }
    }

    /// Asserts the invariants; whether the step may begin.
    fn may_begin(&mut self, rank: RankId, step: StepId) -> bool {
        let breaches = self.state.breaches(rank, step);
        let Some(breach) = breaches.first() else {
            self.state.start(rank, step);
            return true;
        };
        let problem = self.invariant(breach);
        self.tell(rank, Input::Failed { step, problem });
        false
    }

    fn invariant(&self, breach: &Breach) -> Problem {
        Problem::Invariant { name: breach.invariant.name, why: breach.invariant.why, breach: breach.in_words(&self.plan) }
    }

    fn arrive(&mut self, rank: RankId, step: StepId) {
        if !self.may_begin(rank, step) || !self.state.may_end(rank, step) {
            return;
        }
        let Some((group, ordinal)) = self.plan.live(rank, step).and_then(|live| live.sync) else { return };
        let together: Vec<_> = self.plan.partners(group, ordinal).filter_map(|(member, step)| Some((member, step?))).collect();
        for (member, step) in together {
            self.tell(member, Input::Released(step));
        }
    }

    fn perform(&mut self, rank: RankId, step: StepId) {
        // A clean-up ends what there is, whatever the order; a synchronising step was asserted when the rank arrived.
        let asserted =
            self.machines[rank].stage() == Stage::CleaningUp || self.plan.live(rank, step).is_some_and(|live| live.sync.is_some());
        if asserted || self.may_begin(rank, step) {
            self.crew.order(rank, Order::Perform(step));
        }
    }
}

fn input(report: Report) -> Input {
    match report {
        Report::Done { step, unwritten } => Input::Done { step, unwritten },
        Report::Failed { step, error } => Input::Failed { step, problem: Problem::Driver(error) },
        Report::Launched { sequence } => Input::Launched { sequence },
        Report::LaunchFailed { sequence, error } => Input::LaunchFailed { sequence, problem: Problem::Driver(error) },
        Report::Lost { message } => Input::Lost(message),
    }
}
