//! Going on: steps of the plan, and passes.

use super::{Action, Launch, LaunchMode, Place, Problem, RankMachine, Running, Stage};
use crate::init::{Fact, InitPhase, LiveStep, StepId};
use std::time::Duration;

impl RankMachine {
    pub(super) fn advance(&mut self, now: Duration, phase: InitPhase, actions: &mut Vec<Action>) {
        match self.stage {
            Stage::Idle(reached) if reached.is_none_or(|reached| reached < phase) => {
                self.stage = Stage::Advancing(phase);
                self.start_what_can(now, actions);
            }
            Stage::Idle(_) | Stage::Advancing(_) | Stage::Launching(_) => {
                self.refuse(now, Place::Idle, format!("it cannot go on to phase {phase} from {:?}", self.stage), actions);
            }
            // The abort that goes on answers in its own time.
            Stage::Aborting { .. } | Stage::Failed | Stage::CleaningUp | Stage::CleanedUp => {}
        }
    }

    /// Starts every step that may start, then sees whether the phase is over.
    fn start_what_can(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Stage::Advancing(target) = self.stage else { return };
        let plan = self.plan.clone();
        let startable = |live: &LiveStep| {
            let previous = live.position.checked_sub(1).map(|before| plan.rank(self.rank).threads[live.thread][before]);
            plan.step(self.rank, live.id).phase <= target
                && !self.ended.contains(&live.id)
                && !self.running.contains_key(&live.id)
                && live.after.iter().copied().chain(previous).all(|before| self.ended.contains(&before))
        };
        let start: Vec<&LiveStep> = plan.rank(self.rank).steps.iter().flatten().filter(|live| startable(live)).collect();
        for live in start {
            let limit = if live.sync.is_some() { self.limits.wait } else { self.limits.of_phase(plan.step(self.rank, live.id).phase) };
            self.running.insert(live.id, Running { waiting: live.sync.is_some(), since: now, limit });
            actions.push(match live.sync {
                Some((group, _)) => Action::Arrive { step: live.id, group },
                None => Action::Perform(live.id),
            });
        }
        if self.running.is_empty() {
            self.stage = Stage::Idle(Some(target));
            actions.push(Action::Reached(target));
        }
    }

    pub(super) fn released(&mut self, now: Duration, step: StepId, actions: &mut Vec<Action>) {
        // A release that crosses an abort on its way is late, not wrong.
        if !matches!(self.stage, Stage::Advancing(_)) {
            return;
        }
        match self.running.get_mut(&step) {
            Some(running) if running.waiting => {
                let limit = self.limits.of_phase(self.plan.step(self.rank, step).phase);
                *running = Running { waiting: false, since: now, limit };
                actions.push(Action::Perform(step));
            }
            _ => self.refuse(now, Place::Idle, format!("it does not wait in step {step}"), actions),
        }
    }

    pub(super) fn done(&mut self, now: Duration, step: StepId, unwritten: &[Fact], actions: &mut Vec<Action>) {
        if self.stage == Stage::CleaningUp {
            return self.cleaned(now, step, None, actions);
        }
        match self.running.get(&step) {
            Some(running) if !running.waiting => {
                self.running.remove(&step);
                self.record(step, unwritten);
                self.start_what_can(now, actions);
                self.see_whether_ended(actions);
            }
            _ if matches!(self.stage, Stage::Failed | Stage::CleanedUp) => {}
            _ => self.refuse(now, Place::Idle, format!("step {step} ended, which does not run"), actions),
        }
    }

    pub(super) fn record(&mut self, step: StepId, unwritten: &[Fact]) {
        self.ended.insert(step);
        if let Some(live) = self.plan.live(self.rank, step) {
            self.facts.extend(live.writes.iter().filter(|fact| !unwritten.contains(fact)).cloned());
        }
    }

    pub(super) fn step_failed(&mut self, now: Duration, step: StepId, problem: Problem, actions: &mut Vec<Action>) {
        if self.stage == Stage::CleaningUp {
            return self.cleaned(now, step, Some(problem), actions);
        }
        if self.running.remove(&step).is_none() {
            return;
        }
        self.failed.insert(step);
        let cause = self.own(self.place(step), problem);
        self.fail(now, cause, actions);
        self.see_whether_ended(actions);
    }

    pub(super) fn launch(&mut self, now: Duration, launch: Launch, actions: &mut Vec<Action>) {
        let place = Place::Launch { sequence: launch.sequence, bucket: launch.bucket };
        let ready = self.facts.contains(&Fact::Ready);
        let possible = match launch.mode {
            LaunchMode::Replay => self.facts.contains(&Fact::Captured(launch.bucket)),
            LaunchMode::Eager => self.facts.contains(&Fact::WarmedUp(launch.bucket.worker)),
        };
        match self.stage {
            Stage::Idle(Some(reached)) if reached < InitPhase::Close && ready && possible && launch.sequence == self.next_sequence => {
                self.stage = Stage::Launching(launch);
                self.launched_at = now;
                self.next_sequence += 1;
                actions.push(Action::Launch(launch));
            }
            Stage::Idle(_) if !ready => self.refuse(now, place, "start-up is not finished on every rank".to_owned(), actions),
            Stage::Idle(_) if !possible => {
                let what = if launch.mode == LaunchMode::Replay { "not captured" } else { "not warmed up" };
                self.refuse(now, place, format!("{} is {what}", launch.bucket), actions);
            }
            Stage::Idle(_) if launch.sequence != self.next_sequence => {
                self.refuse(now, place, format!("this rank's next pass is {}", self.next_sequence), actions);
            }
            Stage::Idle(_) | Stage::Advancing(_) | Stage::Launching(_) => {
                self.refuse(now, place, format!("it cannot launch from {:?}", self.stage), actions);
            }
            Stage::Aborting { .. } | Stage::Failed | Stage::CleaningUp | Stage::CleanedUp => {}
        }
    }

    pub(super) fn launch_ended(&mut self, now: Duration, sequence: u64, problem: Option<Problem>, actions: &mut Vec<Action>) {
        let launching = match self.stage {
            Stage::Launching(launch) if launch.sequence == sequence => Some(launch),
            _ => None,
        };
        match (launching, problem) {
            (Some(_), None) => {
                self.stage = Stage::Idle(Some(InitPhase::Serve));
                actions.push(Action::Finished(sequence));
            }
            (Some(launch), Some(problem)) => {
                self.stage = Stage::Idle(Some(InitPhase::Serve));
                let cause = self.own(Place::Launch { sequence, bucket: launch.bucket }, problem);
                self.fail(now, cause, actions);
            }
            // After an abort the pass returns, one way or the other.
            (None, _) => {
                self.pass_is_out = false;
                self.see_whether_ended(actions);
            }
        }
    }

    pub(super) fn check_deadlines(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match self.stage {
            Stage::Aborting { until } if now >= until => self.abandon(actions),
            Stage::Launching(launch) if now >= self.launched_at + self.limits.launch => {
                let place = Place::Launch { sequence: launch.sequence, bucket: launch.bucket };
                let cause = self.own(place, Problem::Deadline { limit: self.limits.launch });
                self.fail(now, cause, actions);
            }
            Stage::Advancing(_) | Stage::CleaningUp => {
                let late = self.running.iter().find(|(_, running)| now >= running.since + running.limit);
                let Some((&step, &Running { waiting, limit, .. })) = late else { return };
                let problem = if waiting { Problem::PeersAbsent { limit } } else { Problem::Deadline { limit } };
                if self.stage == Stage::CleaningUp {
                    self.give_up_clean_up(step, problem, actions);
                } else {
                    let cause = self.own(self.place(step), problem);
                    self.fail(now, cause, actions);
                }
            }
            _ => {}
        }
    }
}
