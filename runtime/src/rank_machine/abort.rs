//! Failing, and cleaning up after it.

use super::{Action, Cause, Place, Problem, RankMachine, Running, Stage};
use crate::init::{Fact, InitPhase, LiveStep, StepId};
use std::time::Duration;

impl RankMachine {
    /// The abort rule. The first cause stays; a later one changes nothing.
    pub(super) fn fail(&mut self, now: Duration, cause: Cause, actions: &mut Vec<Action>) {
        if self.cause.is_some() || matches!(self.stage, Stage::CleaningUp | Stage::CleanedUp) {
            return;
        }
        self.pass_is_out = matches!(self.stage, Stage::Launching(_));
        // What only waits for peers ends with the abort; what runs must return first.
        self.running.retain(|_, running| !running.waiting);
        self.stage = Stage::Aborting { until: now + self.limits.abort };
        actions.push(Action::AbortGroups);
        if cause.rank == self.rank {
            actions.push(Action::Report(cause.clone()));
        }
        self.cause = Some(cause);
        self.see_whether_ended(actions);
    }

    pub(super) fn see_whether_ended(&mut self, actions: &mut Vec<Action>) {
        if matches!(self.stage, Stage::Aborting { .. }) && self.running.is_empty() && !self.pass_is_out {
            self.stage = Stage::Failed;
            actions.push(Action::Ended);
        }
    }

    pub(super) fn abandon(&mut self, actions: &mut Vec<Action>) {
        self.running.clear();
        self.pass_is_out = false;
        self.abandoned = true;
        actions.push(Action::Abandon);
        self.see_whether_ended(actions);
    }

    /// Nobody is left to carry anything out: what ran has ended, in whatever way.
    pub(super) fn lost(&mut self, now: Duration, what: String, actions: &mut Vec<Action>) {
        let step = self.running.iter().find(|(_, running)| !running.waiting).map(|(step, _)| *step);
        let place = match (self.stage, step) {
            (Stage::Launching(launch), _) => Place::Launch { sequence: launch.sequence, bucket: launch.bucket },
            (_, Some(step)) => self.place(step),
            (_, None) => Place::Idle,
        };
        self.abandoned = true;
        if self.stage == Stage::CleaningUp {
            if let Some(step) = step {
                self.give_up_clean_up(step, Problem::Lost(what), actions);
            }
            return;
        }
        self.running.retain(|_, running| running.waiting);
        let cause = self.own(place, Problem::Lost(what));
        self.fail(now, cause, actions);
        self.pass_is_out = false;
        self.see_whether_ended(actions);
    }

    pub(super) fn start_clean_up(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match self.stage {
            Stage::Failed => {
                self.stage = Stage::CleaningUp;
                let steps = self.plan.rank(self.rank).steps.iter().flatten();
                let ends = |live: &&LiveStep| {
                    let close = self.plan.step(self.rank, live.id).phase == InitPhase::Close;
                    // A failed step freed what it left behind and is not repeated.
                    let open = !self.ended.contains(&live.id) && !self.failed.contains(&live.id);
                    close && open && live.writes.iter().any(|fact| self.has_what_it_ends(fact))
                };
                self.clean_up = if self.abandoned { Vec::new() } else { steps.filter(ends).map(|live| live.id).rev().collect() };
                self.next_clean_up(now, actions);
            }
            Stage::Idle(_) | Stage::Advancing(_) | Stage::Launching(_) => {
                self.refuse(now, Place::Idle, "only a failed rank is cleaned up; others close".to_owned(), actions);
            }
            Stage::Aborting { .. } | Stage::CleaningUp | Stage::CleanedUp => {}
        }
    }

    /// Whether the rank has what an ending item is the end of.
    fn has_what_it_ends(&self, end: &Fact) -> bool {
        match end {
            Fact::GraphsDestroyed => self.facts.iter().any(|fact| fact.bucket().is_some()),
            Fact::CommunicatorDestroyed(group) => self.facts.contains(&Fact::Communicator(*group)),
            Fact::ContextClosed => self.facts.contains(&Fact::Context),
            _ => false,
        }
    }

    /// Groups are aborted by now, so no step of a clean-up waits for anybody.
    fn next_clean_up(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match self.clean_up.pop() {
            Some(step) => {
                self.running.insert(step, Running { waiting: false, since: now, limit: self.limits.abort });
                actions.push(Action::Perform(step));
            }
            None => {
                self.stage = Stage::CleanedUp;
                actions.push(Action::CleanedUp);
            }
        }
    }

    pub(super) fn cleaned(&mut self, now: Duration, step: StepId, problem: Option<Problem>, actions: &mut Vec<Action>) {
        if self.running.remove(&step).is_none() {
            return;
        }
        match problem {
            Some(problem) => self.clean_up_problems.push(self.own(self.place(step), problem)),
            None => self.record(step, &[]),
        }
        self.next_clean_up(now, actions);
    }

    pub(super) fn give_up_clean_up(&mut self, step: StepId, problem: Problem, actions: &mut Vec<Action>) {
        self.clean_up_problems.push(self.own(self.place(step), problem));
        self.running.clear();
        self.clean_up.clear();
        self.abandoned = true;
        self.stage = Stage::CleanedUp;
        actions.extend([Action::Abandon, Action::CleanedUp]);
    }
}
