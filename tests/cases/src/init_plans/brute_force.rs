//! The naive twin of the explorer: every interleaving, breadth first, no reduction.

use super::Cause;
use moetwin_models::RankId;
use moetwin_runtime::init::{Check, CheckedPlan, Event, Fault, FleetState, INVARIANTS, RankState, StepId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What trying every interleaving finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BruteForce {
    /// Reachable states.
    pub states: usize,
    /// Every cause of failure, with the number of steps that begin in its shortest story, the failing one included.
    pub causes: BTreeMap<Cause, usize>,
}

impl BruteForce {
    /// The number of steps in the shortest story.
    pub fn shortest(&self) -> Option<usize> {
        self.causes.values().copied().min()
    }
}

/// Tries every interleaving; `None` if there are more than `max_states` states.
pub fn brute_force(plan: &Arc<CheckedPlan>, max_states: usize) -> Option<BruteForce> {
    let mut seen: BTreeSet<Vec<RankState>> = BTreeSet::new();
    let mut causes: BTreeMap<Cause, usize> = BTreeMap::new();
    let mut level = vec![FleetState::new(plan.clone())];
    let mut depth = 0;
    while !level.is_empty() {
        let mut next = Vec::new();
        for state in level {
            let startable = startable(plan, &state);
            if startable.is_empty() && !state.is_complete() {
                causes.entry(("hang", None)).or_insert(depth);
            }
            for (rank, step) in startable {
                for (name, fault) in faults(&state, rank, step) {
                    let missing = if let Fault::Missing(fact) = fault { Some(fact) } else { None };
                    causes.entry((name, missing)).or_insert(depth + 1);
                }
                let mut after = state.clone();
                after.advance(rank, step);
                if seen.insert(after.ranks().to_vec()) {
                    next.push(after);
                }
                if seen.len() > max_states {
                    return None;
                }
            }
        }
        level = next;
        depth += 1;
    }
    Some(BruteForce { states: seen.len() + 1, causes })
}

fn startable(plan: &CheckedPlan, state: &FleetState) -> Vec<(RankId, StepId)> {
    let of = |rank: RankId| plan.rank(rank).steps.iter().flatten().map(move |live| (rank, live.id));
    plan.ranks().flat_map(of).filter(|(rank, step)| state.can_start(*rank, *step)).collect()
}

/// What every invariant says of a step that begins, with every peer in turn.
fn faults(state: &FleetState, rank: RankId, step: StepId) -> Vec<(&'static str, Fault)> {
    let Some(live) = state.plan().live(rank, step) else { return Vec::new() };
    let (event, own) = (Event::of_step(rank, live), state.rank(rank));
    let mut out = Vec::new();
    for invariant in INVARIANTS {
        match invariant.check {
            Check::Own(check) => out.extend(check(&event, own).map(|fault| (invariant.name, fault))),
            Check::Pair { check, .. } => {
                let peers = state.ranks().iter().filter(|peer| !std::ptr::eq(*peer, own));
                out.extend(peers.filter_map(|peer| check(&event, state.plan(), own, peer)).map(|fault| (invariant.name, fault)));
            }
        }
    }
    out
}
