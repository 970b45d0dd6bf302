//! How far every rank of a fleet has come. The plain form: what the real fleet keeps, and the oracle of the explorer's compact one.

use super::check::CheckedPlan;
use super::fact::{Bucket, Fact, StepId};
use super::invariant::{Breach, Event, RankView, broken};
use crate::program::GroupId;
use moetwin_models::{IdVec, RankId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// State of a fleet between two steps.
#[derive(Clone, Debug)]
pub struct FleetState {
    plan: Arc<CheckedPlan>,
    ranks: IdVec<RankId, RankState>,
}

/// State of one rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankState {
    rank: RankId,
    facts: BTreeSet<Fact>,
    captures: Vec<Bucket>,
    syncs: BTreeMap<GroupId, Vec<StepId>>,
    started: BTreeSet<StepId>,
    ended: BTreeSet<StepId>,
}

impl RankView for RankState {
    fn rank(&self) -> RankId {
        self.rank
    }
    fn holds(&self, fact: &Fact) -> bool {
        self.facts.contains(fact)
    }
    fn captures(&self) -> &[Bucket] {
        &self.captures
    }
    fn syncs(&self, group: GroupId) -> &[StepId] {
        self.syncs.get(&group).map_or(&[], Vec::as_slice)
    }
}

impl RankState {
    /// Everything true of the rank, in order.
    pub fn facts(&self) -> impl Iterator<Item = &Fact> {
        self.facts.iter()
    }
    /// Whether a step has begun.
    pub fn has_started(&self, step: StepId) -> bool {
        self.started.contains(&step)
    }
}

impl FleetState {
    /// Nothing has begun.
    pub fn new(plan: Arc<CheckedPlan>) -> Self {
        let blank = |rank| RankState {
            rank,
            facts: BTreeSet::new(),
            captures: Vec::new(),
            syncs: BTreeMap::new(),
            started: BTreeSet::new(),
            ended: BTreeSet::new(),
        };
        let ranks = plan.ranks().map(blank).collect();
        Self { plan, ranks }
    }
    /// The plan.
    pub fn plan(&self) -> &Arc<CheckedPlan> {
        &self.plan
    }
    /// One rank.
    pub fn rank(&self, rank: RankId) -> &RankState {
        &self.ranks[rank]
    }
    /// The ranks' states in order; equal slices are equal states.
    pub fn ranks(&self) -> &[RankState] {
        self.ranks.as_slice()
    }
    /// Whether a step exists, has not begun, and everything it comes after has ended.
    pub fn can_start(&self, rank: RankId, step: StepId) -> bool {
        let Some(live) = self.plan.live(rank, step) else { return false };
        let state = &self.ranks[rank];
        let previous = live.position.checked_sub(1).map(|before| self.plan.rank(rank).threads[live.thread][before]);
        !state.started.contains(&step) && live.after.iter().copied().chain(previous).all(|before| state.ended.contains(&before))
    }
    /// The invariants that beginning the step now would break, in the order of [`INVARIANTS`](super::INVARIANTS).
    pub fn breaches(&self, rank: RankId, step: StepId) -> Vec<Breach> {
        let Some(live) = self.plan.live(rank, step) else { return Vec::new() };
        let own = &self.ranks[rank];
        broken(&Event::of_step(rank, live), &self.plan, own, self.peers(rank))
    }
    /// The invariants that launching a bucket's graph on the rank now would break.
    pub fn launch_breaches(&self, rank: RankId, bucket: Bucket) -> Vec<Breach> {
        let reads = [Fact::Captured(bucket)];
        broken(&Event::launch(rank, &reads), &self.plan, &self.ranks[rank], self.peers(rank))
    }
    fn peers(&self, rank: RankId) -> impl Iterator<Item = &dyn RankView> {
        self.ranks.iter().filter(move |(peer, _)| *peer != rank).map(|(_, state)| state as &dyn RankView)
    }
    /// Records that a step began.
    pub fn start(&mut self, rank: RankId, step: StepId) {
        let Some(live) = self.plan.live(rank, step) else { return };
        let state = &mut self.ranks[rank];
        state.started.insert(step);
        if let Some((group, _)) = live.sync {
            state.syncs.entry(group).or_default().push(step);
        }
        for bucket in live.writes.iter().filter_map(Fact::bucket) {
            if !state.captures.contains(&bucket) {
                state.captures.push(bucket);
            }
        }
    }
    /// Whether a step that began may end: it waits for nobody, or all members have begun theirs.
    pub fn may_end(&self, rank: RankId, step: StepId) -> bool {
        let Some(live) = self.plan.live(rank, step) else { return false };
        let arrived = |(member, partner): (RankId, Option<StepId>)| partner.is_some_and(|p| self.ranks[member].started.contains(&p));
        self.ranks[rank].started.contains(&step) && live.sync.is_none_or(|(group, ordinal)| self.plan.partners(group, ordinal).all(arrived))
    }
    /// Records that a step ended. `unwritten` are items that it should have brought about and did not.
    pub fn end(&mut self, rank: RankId, step: StepId, unwritten: &[Fact]) {
        let Some(live) = self.plan.live(rank, step) else { return };
        let state = &mut self.ranks[rank];
        state.ended.insert(step);
        state.facts.extend(live.writes.iter().filter(|fact| !unwritten.contains(fact)).cloned());
    }
    /// Begins a step and ends every step that can end thereby: how plans behave when each step takes no time.
    pub fn advance(&mut self, rank: RankId, step: StepId) {
        self.start(rank, step);
        let Some(live) = self.plan.live(rank, step) else { return };
        if !self.may_end(rank, step) {
            return;
        }
        let ended: Vec<(RankId, StepId)> = match live.sync {
            None => vec![(rank, step)],
            Some((group, ordinal)) => self.plan.partners(group, ordinal).filter_map(|(member, partner)| Some((member, partner?))).collect(),
        };
        for (member, partner) in ended {
            self.end(member, partner, &[]);
        }
    }
    /// Whether every step that exists has ended.
    pub fn is_complete(&self) -> bool {
        self.ranks.iter().all(|(rank, state)| self.plan.rank(rank).steps.iter().flatten().all(|live| state.ended.contains(&live.id)))
    }
}
