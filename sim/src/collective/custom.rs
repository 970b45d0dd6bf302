//! The engines' own all-reduce kernels, NVLS, and the two-level form: barriers and phases in which every rank reads or is written.

use super::builder::Builder;
use super::plan::{Flow, Label, Plan};
use super::point::share;
use super::{Algorithm, Library};
use crate::machine::PathClass;
use crate::network::{Access, RouteError, TransferId};
use crate::time::{Duration, Time};

/// One phase: who sends how many bytes to whom, once all of the phase before has ended everywhere.
type Phase = Vec<(usize, usize, u64)>;

/// Expands one-shot, two-shot or hierarchical all-reduce.
///
/// # Errors
/// If ranks are not connected.
pub(super) fn expand(builder: &Builder<'_>, algorithm: Algorithm) -> Result<Plan, RouteError> {
    let n = builder.ranks();
    let bytes = builder.request.bytes;
    let pairs = |bytes: u64| -> Phase { (0..n).flat_map(|to| (1..n).map(move |round| ((to + round) % n, to, bytes))).collect() };
    let phases = match algorithm {
        Algorithm::TwoShot => vec![pairs(bytes.div_ceil(n as u64)), pairs(bytes.div_ceil(n as u64))],
        Algorithm::Hierarchical => hierarchy(builder)?,
        _ => vec![pairs(bytes)],
    };
    // TensorRT-LLM pushes into its peers' buffers; the others read their peers' input.
    let access = if builder.request.library == Library::Trtllm { Access::Write } else { Access::Read };
    expand_phases(builder, access, &phases)
}

/// Islands below one switch reduce among themselves, then each rank with its counterparts in the other islands.
fn hierarchy(builder: &Builder<'_>) -> Result<Vec<Phase>, RouteError> {
    let n = builder.ranks();
    let bytes = builder.request.bytes;
    let mut islands: Vec<Vec<usize>> = Vec::new();
    for rank in 0..n {
        let mut found = None;
        for (index, island) in islands.iter().enumerate() {
            let class = builder.network.class(builder.ordinal(island[0]), builder.ordinal(rank))?;
            if class <= PathClass::Pxb {
                found = Some(index);
                break;
            }
        }
        match found {
            Some(index) => islands[index].push(rank),
            None => islands.push(vec![rank]),
        }
    }
    let inside = islands.iter().flat_map(|island| {
        island.iter().flat_map(move |&to| island.iter().filter(move |&&from| from != to).map(move |&from| (from, to, bytes)))
    });
    let inside: Phase = inside.collect();
    let mut across = Vec::new();
    for (index, island) in islands.iter().enumerate() {
        for (place, &to) in island.iter().enumerate() {
            for (other, from) in islands.iter().enumerate() {
                if other != index {
                    across.push((from[place % from.len()], to, bytes));
                }
            }
        }
    }
    Ok([inside, across].into_iter().filter(|phase| !phase.is_empty()).collect())
}

fn expand_phases(builder: &Builder<'_>, access: Access, phases: &[Phase]) -> Result<Plan, RouteError> {
    let n = builder.ranks();
    let figures = &builder.machine().collectives.custom;
    let mut plan = Plan::new(n);
    let mut barrier = builder.barrier().value + figures.per_rank.value * (n as u64).saturating_sub(2);
    let mut farthest = Duration::ZERO;
    for &(from, to, _) in phases.iter().flatten() {
        let route = plan.route(from, to, || -> Result<_, RouteError> {
            let mut route = builder.network.route(builder.ordinal(from), builder.ordinal(to), access)?;
            for hop in &mut route.hops {
                hop.1 = share(hop.1, figures.link_permille.value);
            }
            Ok(route)
        })?;
        farthest = farthest.max(plan.latency(route));
    }
    barrier += farthest;
    // No rank reads before all have arrived.
    let begin = builder.begin.iter().copied().max().unwrap_or(Time::ZERO) + barrier;
    let mut before: Vec<TransferId> = Vec::new();
    for (index, phase) in phases.iter().enumerate() {
        let last = index + 1 == phases.len();
        let mut current = Vec::new();
        for &(from, to, bytes) in phase {
            let route = plan.route(from, to, || builder.network.route(builder.ordinal(from), builder.ordinal(to), access))?;
            let after = before.iter().map(|&id| (id, farthest + figures.phase.value)).collect();
            let label = Label { from, to, payload_bytes: bytes, step: index as u32 };
            let id = plan.push(route, label, Flow { wire_bytes: bytes, cap: u64::MAX }, begin, after);
            if last {
                let latency = plan.latency(route);
                plan.ends[to].push((id, latency));
            }
            current.push(id);
        }
        before = current;
    }
    Ok(plan)
}

/// Expands an all-reduce by NVLink multicast: the switch reads every rank's buffer, and each rank multicasts its part of the sum.
///
/// # Errors
/// If ranks are not connected, or the machine has no multicast figures (then `None`).
pub(super) fn expand_multicast(builder: &Builder<'_>, algorithm: Algorithm) -> Result<Option<Plan>, RouteError> {
    let Some(figures) = &builder.machine().collectives.nvls else { return Ok(None) };
    let n = builder.ranks();
    let bytes = builder.request.bytes;
    let mut plan = Plan::new(n);
    let begin = builder.begin.iter().copied().max().unwrap_or(Time::ZERO);
    let (cap, latency) = if algorithm == Algorithm::Symmetric {
        (figures.symmetric_bytes_per_s.value, figures.symmetric_latency.value)
    } else {
        // Up to the size where large chunks pay for the fill of their pipeline, small ones are used.
        let small = Duration::of_bytes(bytes, figures.small_bytes_per_s.value);
        let large = Duration::of_bytes(bytes, figures.bytes_per_s.value) + figures.fill.value;
        if small <= large {
            (figures.small_bytes_per_s.value, figures.latency.value)
        } else {
            (figures.bytes_per_s.value, figures.latency.value + figures.fill.value)
        }
    };
    // A rank's link carries its whole buffer to the switch and its part of the sum.
    let wire_bytes = bytes.saturating_add(bytes / n as u64);
    let cap = share(cap, 1000 + 1000 / n as u64);
    for from in 0..n {
        let to = (from + 1) % n;
        // Multicast goes by NVLink whether or not peers may be accessed.
        let route = plan.route(from, to, || builder.network.route(builder.ordinal(from), builder.ordinal(to), Access::Write))?;
        let label = Label { from, to, payload_bytes: bytes, step: 0 };
        let id = plan.push(route, label, Flow { wire_bytes, cap }, begin, Vec::new());
        for end in &mut plan.ends {
            end.push((id, latency));
        }
    }
    Ok(Some(plan))
}
