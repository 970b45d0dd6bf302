//! What a kernel that the host launches takes longer on the device than as a node of a captured graph, from steps that were measured both ways.

use crate::measurement::{chosen, median_of};
use moetwin::cuda::exec::RankTimes;
use moetwin::kernels::routing::{Distribution, RecordedRouting, SampledRouting};
use moetwin::models::RankId;
use moetwin::runtime::Program;
use moetwin::sim::cost::OwnKernels;
use moetwin::sim::exec::{SimOptions, simulate};
use moetwin::sim::machine::Machine;
use std::collections::BTreeMap;

/// A step that the host launched command by command, as measured on its slowest rank.
#[derive(Debug)]
pub(crate) struct Eager {
    program: Program,
    rank: RankId,
    routing: BTreeMap<u16, Vec<i32>>,
    took_ps: u64,
}

impl Eager {
    /// Of a step whose experts were those that its routers chose; nothing where the host did not launch it.
    pub(super) fn of(program: &Program, times: &[RankTimes]) -> Option<Self> {
        let slowest = times.iter().max_by_key(|t| median_of(&t.eager_ps))?;
        let took_ps = median_of(&slowest.eager_ps)?;
        Some(Self { program: program.clone(), rank: RankId(slowest.rank), routing: chosen(program, times), took_ps })
    }
    /// By how much longer it took than its kernels as nodes of a graph and the host's launches say, a kernel, picoseconds.
    fn missed_ps(&self, machine: &Machine, seed: u64) -> Option<i64> {
        let routing = RecordedRouting::new(self.routing.clone(), SampledRouting::new(Distribution::Uniform, seed));
        let trace = simulate(&self.program, machine, &routing, &SimOptions { graphs: false, ..SimOptions::default() }).ok()?;
        let kernels: u64 = trace.costs[self.rank].iter().map(|cost| u64::from(cost.kernels)).sum();
        Some((self.took_ps as i64 - trace.total.as_ps() as i64) / i64::try_from(kernels).ok().filter(|n| *n > 0)?)
    }
}

/// The median over steps, picoseconds a kernel; nothing where no step was launched by the host.
pub(crate) fn eager_gap(machine: &Machine, own: &OwnKernels, steps: &[Eager], seed: u64) -> Option<u64> {
    let mut machine = machine.clone();
    machine.kernels = Some(OwnKernels { eager_gap_ps: None, ..own.clone() });
    let mut missed: Vec<i64> = steps.iter().filter_map(|s| s.missed_ps(&machine, seed)).collect();
    missed.sort_unstable();
    missed.get(missed.len() / 2).map(|ps| u64::try_from(*ps).unwrap_or(0))
}
