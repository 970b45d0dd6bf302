//! Kernels that run beside each other on one GPU.
//!
//! The rule: a kernel asks for the share of memory rate (and of arithmetic rate) that it would use alone, its memory (compute) part over
//! its duration. While the shares of the running kernels add up to more than one, all of them slow down by that sum; otherwise none does.
//! Two kernels that wait on latency overlap freely, two that stream weights take as long as one after the other.

use crate::cost::OpCost;
use crate::time::{Duration, Time};

/// Full rate: shares are in millionths.
const FULL: u64 = 1_000_000;

/// A running kernel.
#[derive(Clone, Copy, Debug)]
struct Running {
    slot: usize,
    /// Time left if it were alone, picoseconds.
    left_ps: u64,
    memory: u64,
    compute: u64,
}

/// A GPU and what runs on it now.
#[derive(Clone, Debug, Default)]
pub(super) struct Gpu {
    running: Vec<Running>,
    since: Time,
    /// By slot: counts re-schedulings, so that an outdated completion is recognised.
    generations: Vec<u32>,
}

/// When the kernel of a slot will be done, unless something changes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) slot: usize,
    pub(super) generation: u32,
    pub(super) at: Time,
}

impl Gpu {
    /// Starts a kernel in a free slot and returns the completions that follow from it: its own, and new ones of those it slows down.
    pub(super) fn start(&mut self, slot: usize, cost: &OpCost, duration: Duration, now: Time) -> Vec<Completion> {
        let before = self.slowdown();
        self.advance(now);
        let share =
            |part_ps: u64| (u128::from(part_ps.min(cost.duration_ps)) * u128::from(FULL) / u128::from(duration.as_ps().max(1))) as u64;
        if self.generations.len() <= slot {
            self.generations.resize(slot + 1, 0);
        }
        let kernel = Running { slot, left_ps: duration.as_ps(), memory: share(cost.memory_ps), compute: share(cost.compute_ps) };
        self.running.push(kernel);
        self.reschedule(before, Some(slot))
    }
    /// Whether a completion still holds.
    pub(super) fn is_current(&self, slot: usize, generation: u32) -> bool {
        self.generations.get(slot) == Some(&generation) && self.running.iter().any(|r| r.slot == slot)
    }
    /// Ends the kernel of a slot and returns new completions of those it had slowed down.
    pub(super) fn finish(&mut self, slot: usize, now: Time) -> Vec<Completion> {
        let before = self.slowdown();
        self.advance(now);
        self.running.retain(|r| r.slot != slot);
        self.reschedule(before, None)
    }
    /// By how much everything runs slower than alone, in millionths; at least [`FULL`].
    fn slowdown(&self) -> u64 {
        let sum = |of: fn(&Running) -> u64| self.running.iter().map(of).sum::<u64>();
        FULL.max(sum(|r| r.memory)).max(sum(|r| r.compute))
    }
    fn advance(&mut self, now: Time) {
        let slowdown = self.slowdown();
        let elapsed = now.since(self.since);
        for r in &mut self.running {
            r.left_ps = r.left_ps.saturating_sub(elapsed.scaled(FULL, slowdown).as_ps());
        }
        self.since = now;
    }
    /// New completions of everything if the slowdown changed, else only of `fresh`.
    fn reschedule(&mut self, before: u64, fresh: Option<usize>) -> Vec<Completion> {
        let slowdown = self.slowdown();
        let mut out = Vec::new();
        for r in &self.running {
            if slowdown != before || Some(r.slot) == fresh {
                self.generations[r.slot] = self.generations[r.slot].wrapping_add(1);
                let left = u128::from(r.left_ps) * u128::from(slowdown);
                let span = u64::try_from(left.div_ceil(u128::from(FULL))).unwrap_or(u64::MAX);
                out.push(Completion { slot: r.slot, generation: self.generations[r.slot], at: self.since + Duration::from_ps(span) });
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Bound, Provenance};

    fn kernel(duration_ps: u64, memory_ps: u64) -> OpCost {
        let provenance = Provenance::Modelled;
        OpCost { duration_ps, memory_ps, compute_ps: 0, kernels: 1, provenance, bound: Bound::Memory, error_permille: 0 }
    }

    fn start(gpu: &mut Gpu, slot: usize, cost: OpCost, now: u64) -> Vec<(usize, u64)> {
        let done = gpu.start(slot, &cost, Duration::from_ps(cost.duration_ps), Time::from_ps(now));
        done.into_iter().map(|c| (c.slot, c.at.as_ps())).collect()
    }

    #[test]
    fn latency_overlaps_and_streaming_does_not() {
        let mut gpu = Gpu::default();
        assert_eq!(start(&mut gpu, 0, kernel(1000, 400), 0), [(0, 1000)]);
        // 0.4 + 0.5: both fit.
        assert_eq!(start(&mut gpu, 1, kernel(600, 300), 100), [(1, 700)]);
        let mut gpu = Gpu::default();
        assert_eq!(start(&mut gpu, 0, kernel(1000, 1000), 0), [(0, 1000)]);
        // Two that use the whole memory run at half speed: 900 left of the first take 1800.
        assert_eq!(start(&mut gpu, 1, kernel(500, 500), 100), [(0, 1900), (1, 1100)]);
        // When the second ends, 400 of the first are left.
        let done = gpu.finish(1, Time::from_ps(1100));
        assert_eq!((done[0].slot, done[0].at.as_ps(), done.len()), (0, 1500, 1));
        assert!(!gpu.is_current(0, 1) && gpu.is_current(0, done[0].generation));
    }
}
