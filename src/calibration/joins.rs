//! What streams that wait for each other cost in a captured step, from steps that were measured on their streams and on one.

use crate::measurement::{chosen, median_of};
use moetwin::cuda::exec::RankTimes;
use moetwin::kernels::routing::{Distribution, RecordedRouting, SampledRouting};
use moetwin::models::RankId;
use moetwin::runtime::{Program, StreamId};
use moetwin::sim::cost::{OwnJoins, OwnKernels};
use moetwin::sim::exec::{SimOptions, SpanKind, Track, simulate};
use moetwin::sim::machine::Machine;
use std::collections::BTreeMap;

/// A step with a stream beside the first, as measured on its slowest rank.
#[derive(Debug)]
pub(crate) struct Forked {
    program: Program,
    rank: RankId,
    routing: BTreeMap<u16, Vec<i32>>,
    /// Commands of the first stream that wait for another.
    joins: u64,
    saved_ps: i64,
    nccl: bool,
}

impl Forked {
    /// Of a step whose experts were those that its routers chose; nothing where nothing runs beside the first stream, or it was not captured.
    pub(super) fn of(program: &Program, times: &[RankTimes], nccl: bool) -> Option<Self> {
        let slowest = times.iter().max_by_key(|t| median_of(&t.captured_ps))?;
        let rank = RankId(slowest.rank);
        let joins = program.ranks.get(rank)?.commands.iter().filter(|c| c.stream == StreamId(0) && !c.waits.is_empty()).count() as u64;
        let saved_ps = median_of(&slowest.one_stream_ps)? as i64 - median_of(&slowest.captured_ps)? as i64;
        let routing = chosen(program, times);
        (joins > 0).then(|| Self { program: program.clone(), rank, routing, joins, saved_ps, nccl })
    }
    /// By how much less is saved than is predicted, a join, picoseconds.
    fn missed_ps(&self, machine: &Machine, seed: u64) -> Option<i64> {
        let routing = RecordedRouting::new(self.routing.clone(), SampledRouting::new(Distribution::Uniform, seed));
        let trace = simulate(&self.program, machine, &routing, &SimOptions::default()).ok()?;
        let own = |s: &&moetwin::sim::exec::Span| s.rank == self.rank && matches!(s.track, Track::Stream(_));
        let alone = trace.spans.as_slice().iter().filter(own).map(|s| match (s.kind, s.index) {
            (SpanKind::Compute, Some(index)) => trace.costs[s.rank].get(index as usize).map_or(0, |c| c.duration_ps),
            _ => s.duration().as_ps(),
        });
        let saved = alone.sum::<u64>() as i64 - trace.total.as_ps() as i64;
        Some((saved - self.saved_ps) / i64::try_from(self.joins).ok()?)
    }
}

/// What a join costs with these kernels on this machine; nothing where no step has any.
pub(crate) fn joins(machine: &Machine, own: &OwnKernels, steps: &[Forked], seed: u64) -> Option<OwnJoins> {
    let mut machine = machine.clone();
    machine.kernels = Some(OwnKernels { joins: None, ..own.clone() });
    let median = |nccl: bool| {
        let mut missed: Vec<i64> = steps.iter().filter(|s| s.nccl == nccl).filter_map(|s| s.missed_ps(&machine, seed)).collect();
        missed.sort_unstable();
        missed.get(missed.len() / 2).map(|ps| u64::try_from(*ps).unwrap_or(0))
    };
    let (kernels, nccl) = (median(false), median(true));
    (kernels.is_some() || nccl.is_some()).then(|| OwnJoins { kernels_ps: kernels.unwrap_or(0), nccl_ps: nccl })
}
