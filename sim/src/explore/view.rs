//! One rank as invariants see it, read off a state's clock.

use super::causal::Causal;
use moetwin_models::RankId;
use moetwin_runtime::GroupId;
use moetwin_runtime::init::{Bucket, CheckedPlan, Fact, RankView, StepId};
use std::collections::BTreeMap;

/// What of a rank's steps its views need, found once.
pub(super) struct RankTable {
    rank: RankId,
    /// Where each item is written: thread of the rank, and the first position on it.
    writers: BTreeMap<Fact, Vec<(usize, usize)>>,
    capture_thread: usize,
    /// Buckets in capture order, and the position at which the capture of each begins.
    captures: Vec<Bucket>,
    capture_positions: Vec<usize>,
}

impl RankTable {
    pub(super) fn new(plan: &CheckedPlan, rank: RankId) -> Self {
        let mut out = Self { rank, writers: BTreeMap::new(), capture_thread: 0, captures: Vec::new(), capture_positions: Vec::new() };
        for live in plan.rank(rank).steps.iter().flatten() {
            for fact in &live.writes {
                let places = out.writers.entry(fact.clone()).or_default();
                if places.iter().all(|(thread, _)| *thread != live.thread) {
                    places.push((live.thread, live.position));
                }
                if let Some(bucket) = fact.bucket().filter(|bucket| !out.captures.contains(bucket)) {
                    out.capture_thread = live.thread;
                    out.captures.push(bucket);
                    out.capture_positions.push(live.position);
                }
            }
        }
        out
    }
}

/// One rank in one state.
pub(super) struct ClockView<'a> {
    plan: &'a CheckedPlan,
    table: &'a RankTable,
    /// Steps started on each of the rank's threads.
    started: &'a [u16],
    /// Steps ended on each of the rank's threads.
    ended: Vec<u16>,
}

impl<'a> ClockView<'a> {
    pub(super) fn new(plan: &'a CheckedPlan, causal: &Causal, table: &'a RankTable, state: &'a [u16]) -> Self {
        let threads = causal.threads_of(table.rank);
        let ended = threads.clone().map(|thread| state[thread] - u16::from(is_waiting(plan, causal, state, thread))).collect();
        Self { plan, table, started: &state[threads], ended }
    }
}

/// Whether the last step that started on a thread still waits for a partner.
pub(super) fn is_waiting(plan: &CheckedPlan, causal: &Causal, state: &[u16], thread: usize) -> bool {
    let Some(node) = (state[thread] as usize).checked_sub(1).and_then(|last| causal.threads[thread].get(last)) else { return false };
    let Some((group, ordinal)) = plan.live(node.rank, node.step).and_then(|live| live.sync) else { return false };
    plan.partners(group, ordinal).any(|(member, step)| match step.and_then(|step| plan.live(member, step)) {
        None => true,
        Some(live) => {
            let (thread, position) = causal.place(member, live);
            (state[thread] as usize) <= position
        }
    })
}

impl RankView for ClockView<'_> {
    fn rank(&self) -> RankId {
        self.table.rank
    }
    fn holds(&self, fact: &Fact) -> bool {
        self.table.writers.get(fact).is_some_and(|places| places.iter().any(|&(thread, position)| position < self.ended[thread] as usize))
    }
    fn captures(&self) -> &[Bucket] {
        let started = self.started.get(self.table.capture_thread).copied().unwrap_or(0) as usize;
        &self.table.captures[..self.table.capture_positions.partition_point(|&position| position < started)]
    }
    fn syncs(&self, group: GroupId) -> &[StepId] {
        let rank = self.plan.rank(self.table.rank);
        let Some(steps) = rank.syncs.get(&group) else { return &[] };
        let has_started =
            |step: &StepId| rank.steps[step.0 as usize].as_ref().is_some_and(|live| live.position < self.started[live.thread] as usize);
        &steps[..steps.partition_point(has_started)]
    }
}
