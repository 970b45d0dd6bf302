//! The search: for every step that can begin, the states that an invariant could tell apart.

use super::causal::{Causal, Clock, join};
use super::story::{End, Hang, Story, Verdict, Waiting};
use super::view::{ClockView, RankTable, is_waiting};
use moetwin_models::{IdVec, RankId};
use moetwin_runtime::init::{Breach, Check, CheckedPlan, Event, Fact, Fault, INVARIANTS, RankView, StepId, broken};
use std::collections::{BTreeMap, BTreeSet};

/// States that [`explore`] visits unless told otherwise.
pub const DEFAULT_MAX_STATES: u64 = 1_000_000;

/// Why a plan could not be searched to the end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExploreError {
    /// More states than allowed.
    #[error("the init plan has more than {limit} states to visit: fewer ranks, steps or host threads, or a higher limit, are needed")]
    TooManyStates {
        /// The limit.
        limit: u64,
    },
    /// Too many steps on too many threads.
    #[error("the init plan is too large to search: (steps of all ranks) x (threads of all ranks) is {cells}, at most {limit} is accepted")]
    TooLarge {
        /// Steps times threads.
        cells: usize,
        /// The limit.
        limit: usize,
    },
}

/// Searches a plan and returns the shortest story to a broken invariant, else to a hang, else none.
///
/// # Errors
/// If more than `max_states` states would have to be visited, or the plan is too large to order.
pub fn explore(plan: &CheckedPlan, max_states: u64) -> Result<Verdict, ExploreError> {
    let causal = Causal::new(plan)?;
    let tables = plan.ranks().map(|rank| RankTable::new(plan, rank)).collect();
    let mut search =
        Search { plan, causal: &causal, tables, like: likes(plan), max_states, visited: BTreeSet::new(), found: BTreeMap::new() };
    for ranks in search.like.clone() {
        search.rank(ranks[0])?;
    }
    let states = search.visited.len() as u64;
    let mut ends: Vec<(usize, usize, Story)> = search.found.into_values().collect();
    ends.sort_by_key(|(length, number, _)| (*length, *number));
    let hang = find_hang(plan, &causal);
    let mut stories = ends.into_iter().map(|(_, _, story)| story).chain(hang);
    let story = stories.next();
    Ok(Verdict { states, story, next: stories.collect() })
}

/// Ranks that can be exchanged for one another: their steps are equal, groups included. Each list is in rank order.
fn likes(plan: &CheckedPlan) -> Vec<Vec<RankId>> {
    let mut out: Vec<Vec<RankId>> = Vec::new();
    for (rank, steps) in plan.plan().ranks.iter() {
        match out.iter_mut().find(|like| plan.plan().ranks[like[0]] == *steps) {
            Some(like) => like.push(rank),
            None => out.push(vec![rank]),
        }
    }
    out
}

/// Breaches that one cause explains: the invariant, and the item where one is missing.
type Cause = (&'static str, Option<Fact>);

struct Search<'a> {
    plan: &'a CheckedPlan,
    causal: &'a Causal,
    tables: IdVec<RankId, RankTable>,
    like: Vec<Vec<RankId>>,
    max_states: u64,
    visited: BTreeSet<Clock>,
    /// The shortest story of each cause, with its length and a number that settles ties.
    found: BTreeMap<Cause, (usize, usize, Story)>,
}

impl Search<'_> {
    fn rank(&mut self, rank: RankId) -> Result<(), ExploreError> {
        // One other rank of each kind is enough; of the rank's own kind, a second one.
        let peers: Vec<RankId> = self.like.iter().filter_map(|like| like.iter().copied().find(|peer| *peer != rank)).collect();
        for thread in self.causal.threads_of(rank) {
            for position in 0..self.causal.threads[thread].len() {
                let node = &self.causal.threads[thread][position];
                let Some(before) = &node.before else { break };
                let (step, base) = (node.step, before.clone());
                let begins = Begins { rank, step, thread, position };
                self.states(&begins, None, base.clone())?;
                if self.takes_two(rank, step) {
                    for &peer in &peers {
                        self.states(&begins, Some(peer), base.clone())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn takes_two(&self, rank: RankId, step: StepId) -> bool {
        let Some(live) = self.plan.live(rank, step) else { return false };
        let event = Event::of_step(rank, live);
        INVARIANTS.iter().any(|invariant| matches!(invariant.check, Check::Pair { concerns, .. } if concerns(&event)))
    }

    /// Visits, for a step that begins, the smallest state of every combination of how far its rank's other threads and the peer's threads have come.
    fn states(&mut self, begins: &Begins, peer: Option<RankId>, base: Clock) -> Result<(), ExploreError> {
        let own = self.causal.threads_of(begins.rank).filter(|thread| *thread != begins.thread);
        let threads: Vec<usize> = own.chain(peer.into_iter().flat_map(|peer| self.causal.threads_of(peer))).collect();
        let mut seen = BTreeSet::from([base.clone()]);
        let mut frontier = vec![base];
        while let Some(state) = frontier.pop() {
            self.visit(begins, peer, &state)?;
            for &thread in &threads {
                for further in self.further(&state, thread).into_iter().flatten() {
                    if further[begins.thread] as usize <= begins.position && seen.insert(further.clone()) {
                        if seen.len() as u64 > self.max_states {
                            return Err(ExploreError::TooManyStates { limit: self.max_states });
                        }
                        frontier.push(further);
                    }
                }
            }
        }
        Ok(())
    }

    /// The smallest states in which a thread has come further than in `state`: its waiting step has ended, or its next step has started.
    fn further(&self, state: &[u16], thread: usize) -> [Option<Clock>; 2] {
        let nodes = &self.causal.threads[thread];
        let joined = |clock: &Clock| {
            let mut out: Clock = state.into();
            join(&mut out, clock);
            out
        };
        let started = state[thread] as usize;
        let waiting = is_waiting(self.plan, self.causal, state, thread);
        let ended = nodes.get(started.wrapping_sub(1)).filter(|_| waiting).and_then(|node| node.through.as_ref()).map(joined);
        let next = nodes.get(started).and_then(|node| node.before.as_ref()).map(|before| {
            let mut out = joined(before);
            out[thread] = out[thread].max(started as u16 + 1);
            out
        });
        [ended, next]
    }

    fn visit(&mut self, begins: &Begins, peer: Option<RankId>, state: &Clock) -> Result<(), ExploreError> {
        self.visited.insert(state.clone());
        if self.visited.len() as u64 > self.max_states {
            return Err(ExploreError::TooManyStates { limit: self.max_states });
        }
        let Some(live) = self.plan.live(begins.rank, begins.step) else { return Ok(()) };
        let view = |rank: RankId| ClockView::new(self.plan, self.causal, &self.tables[rank], state);
        let (own, other) = (view(begins.rank), peer.map(view));
        let breaches = broken(&Event::of_step(begins.rank, live), self.plan, &own, other.iter().map(|view| view as &dyn RankView));
        let length = state.iter().map(|&started| usize::from(started)).sum::<usize>() + 1;
        for breach in breaches {
            self.keep(length, state, breach);
        }
        Ok(())
    }

    fn keep(&mut self, length: usize, state: &[u16], breach: Breach) {
        let missing = if let Fault::Missing(fact) = &breach.fault { Some(fact.clone()) } else { None };
        let cause = (breach.invariant.name, missing);
        if self.found.get(&cause).is_some_and(|(shortest, _, _)| *shortest <= length) {
            return;
        }
        let mut moves = self.causal.linearise(state);
        moves.extend(breach.step.map(|step| (breach.rank, step)));
        let number = self.found.len();
        self.found.insert(cause, (length, number, Story { moves, end: End::Breach(breach) }));
    }
}

/// A step that begins.
struct Begins {
    rank: RankId,
    step: StepId,
    thread: usize,
    position: usize,
}

/// Where the fleet stands still before every step has ended, if it does.
fn find_hang(plan: &CheckedPlan, causal: &Causal) -> Option<Story> {
    let state = causal.furthest();
    let mut waiting = Vec::new();
    for (thread, nodes) in causal.threads.iter().enumerate() {
        let Some(node) = (state[thread] as usize).checked_sub(1).map(|last| &nodes[last]) else { continue };
        let Some((group, ordinal)) = plan.live(node.rank, node.step).and_then(|live| live.sync) else { continue };
        if !is_waiting(plan, causal, &state, thread) {
            continue;
        }
        let absent = |(member, step): (RankId, Option<StepId>)| {
            let begun = step.and_then(|step| plan.live(member, step)).is_some_and(|live| {
                let (thread, position) = causal.place(member, live);
                state[thread] as usize > position
            });
            (!begun).then_some((member, step))
        };
        let absent = plan.partners(group, ordinal).filter_map(absent).collect();
        waiting.push(Waiting { rank: node.rank, step: node.step, group, absent });
    }
    (!waiting.is_empty()).then(|| Story { moves: causal.linearise(&state), end: End::Hang(Hang { waiting }) })
}
