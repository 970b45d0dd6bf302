//! What must have started before what: a vector clock for every step of every rank.

use super::search::ExploreError;
use moetwin_models::{IdVec, RankId};
use moetwin_runtime::init::{CheckedPlan, LiveStep, StepId};
use std::ops::Range;

/// Cells of all clocks together; 4 bytes each or less.
const MAX_CLOCK_CELLS: usize = 1 << 26;

/// For every host thread of the fleet, how many of its steps have started.
pub(super) type Clock = Box<[u16]>;

/// One step on the way of a thread.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) rank: RankId,
    pub(super) step: StepId,
    /// What has started, at the least, when it can start; itself not included. `None` if it never can.
    pub(super) before: Option<Clock>,
    /// What has started, at the least, when it has ended; itself included. `None` if it never does.
    pub(super) through: Option<Clock>,
}

/// The causal order of a plan.
pub(super) struct Causal {
    /// Threads of each rank among all threads of the fleet.
    threads_of: IdVec<RankId, Range<usize>>,
    /// Steps of each thread in order.
    pub(super) threads: Vec<Vec<Node>>,
}

/// Componentwise maximum.
pub(super) fn join(into: &mut [u16], other: &[u16]) {
    for (a, b) in into.iter_mut().zip(other) {
        *a = (*a).max(*b);
    }
}

impl Causal {
    pub(super) fn new(plan: &CheckedPlan) -> Result<Self, ExploreError> {
        let mut threads_of = IdVec::new();
        let mut threads = Vec::new();
        for rank in plan.ranks() {
            let first = threads.len();
            for steps in &plan.rank(rank).threads {
                threads.push(steps.iter().map(|&step| Node { rank, step, before: None, through: None }).collect::<Vec<_>>());
            }
            threads_of.push(first..threads.len());
        }
        let cells = threads.iter().map(Vec::len).sum::<usize>().saturating_mul(threads.len());
        if cells > MAX_CLOCK_CELLS {
            return Err(ExploreError::TooLarge { cells, limit: MAX_CLOCK_CELLS });
        }
        let mut causal = Self { threads_of, threads };
        causal.run(plan);
        Ok(causal)
    }

    /// The threads of a rank.
    pub(super) fn threads_of(&self, rank: RankId) -> Range<usize> {
        self.threads_of[rank].clone()
    }
    /// The thread and the position of a step.
    pub(super) fn place(&self, rank: RankId, live: &LiveStep) -> (usize, usize) {
        (self.threads_of[rank].start + live.thread, live.position)
    }
    fn node(&self, plan: &CheckedPlan, rank: RankId, step: StepId) -> Option<&Node> {
        let (thread, position) = self.place(rank, plan.live(rank, step)?);
        Some(&self.threads[thread][position])
    }
    /// Nothing has started.
    pub(super) fn origin(&self) -> Clock {
        vec![0; self.threads.len()].into()
    }

    /// Lets every thread go as far as it can, until none can go on.
    fn run(&mut self, plan: &CheckedPlan) {
        let mut next = vec![0usize; self.threads.len()];
        loop {
            let mut moved = false;
            for (thread, next) in next.iter_mut().enumerate() {
                while *next < self.threads[thread].len() && self.start(plan, thread, *next) {
                    *next += 1;
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Starts a step if everything it comes after has ended, and ends what can end thereby.
    fn start(&mut self, plan: &CheckedPlan, thread: usize, position: usize) -> bool {
        let Node { rank, step, .. } = self.threads[thread][position];
        let Some(live) = plan.live(rank, step) else { return false };
        let mut before = self.origin();
        let previous = position.checked_sub(1).map(|p| &self.threads[thread][p]);
        for node in live.after.iter().filter_map(|after| self.node(plan, rank, *after)).chain(previous) {
            let Some(through) = &node.through else { return false };
            join(&mut before, through);
        }
        self.threads[thread][position].before = Some(before);
        self.end(plan, rank, live);
        true
    }

    fn end(&mut self, plan: &CheckedPlan, rank: RankId, live: &LiveStep) {
        let together: Option<Vec<(usize, usize)>> = match live.sync {
            None => Some(vec![self.place(rank, live)]),
            Some((group, ordinal)) => {
                plan.partners(group, ordinal).map(|(member, step)| Some(self.place(member, plan.live(member, step?)?))).collect()
            }
        };
        let Some(together) = together else { return };
        let mut through = self.origin();
        for &(thread, position) in &together {
            let Some(before) = &self.threads[thread][position].before else { return };
            join(&mut through, before);
            through[thread] = through[thread].max(position as u16 + 1);
        }
        for (thread, position) in together {
            self.threads[thread][position].through = Some(through.clone());
        }
    }

    /// How far every thread can go at all.
    pub(super) fn furthest(&self) -> Clock {
        self.threads.iter().map(|nodes| nodes.iter().take_while(|node| node.before.is_some()).count() as u16).collect()
    }

    /// The started steps of a state in an order in which they can have started: rank after rank, each as far as it can go.
    pub(super) fn linearise(&self, state: &[u16]) -> Vec<(RankId, StepId)> {
        let mut done = self.origin();
        let mut out = Vec::new();
        loop {
            let before = out.len();
            for (thread, nodes) in self.threads.iter().enumerate() {
                while done[thread] < state[thread] {
                    let node = &nodes[done[thread] as usize];
                    if !node.before.as_ref().is_some_and(|needs| needs.iter().zip(&done).all(|(needed, have)| needed <= have)) {
                        break;
                    }
                    out.push((node.rank, node.step));
                    done[thread] += 1;
                }
            }
            if out.len() == before {
                return out;
            }
        }
    }
}
