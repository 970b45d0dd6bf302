//! Grouped sends and receives: all-to-all, all-to-all-v, send-recv.

use super::builder::{Builder, LL_PASS_BYTES, rate, wire};
use super::plan::{Flow, Label, Plan};
use super::{CollectiveOp, CollectiveRequest, Protocol};
use crate::machine::{LinkKind, PathClass};
use crate::network::{Route, RouteError};
use crate::time::Duration;

/// Messages of at most this many bytes go by LL (`NCCL_P2P_LL_THRESHOLD`).
pub(super) const LL_THRESHOLD_BYTES: u64 = 16 << 10;

/// Bytes from one rank to another.
fn message_bytes(request: &CollectiveRequest, from: usize, to: usize) -> u64 {
    let n = request.ranks.len();
    match request.op {
        CollectiveOp::SendRecv => request.bytes,
        _ if request.matrix.is_empty() => request.bytes / n as u64,
        _ => request.matrix[from * n + to],
    }
}

/// The protocol NCCL uses for the largest message.
pub(super) fn protocol(request: &CollectiveRequest) -> Protocol {
    let n = request.ranks.len();
    let largest = (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(from, to)| from != to);
    let largest = largest.map(|(from, to)| message_bytes(request, from, to)).max().unwrap_or(0);
    if largest <= LL_THRESHOLD_BYTES { Protocol::Ll } else { Protocol::Simple }
}

/// Expands into one transfer for every pair that has something to say.
///
/// # Errors
/// If ranks are not connected.
pub(super) fn expand(builder: &Builder<'_>, protocol: Protocol) -> Result<Plan, RouteError> {
    let n = builder.ranks();
    let mut plan = Plan::new(n);
    let figures = &builder.machine().collectives.point_to_point;
    let mut pairs = Vec::new();
    for from in 0..n {
        // Nearest first, as NCCL rotates its rounds.
        for round in 1..n {
            let to = (from + round) % n;
            let wanted = builder.request.op != CollectiveOp::SendRecv || round == 1;
            let bytes = message_bytes(builder.request, from, to);
            if wanted && bytes > 0 {
                let route = builder.nccl_route(&mut plan, from, to)?;
                pairs.push((from, to, bytes, route));
            }
        }
    }
    // NVLinks between two GPUs: what is shared is what the sender moves over all of its lanes.
    let direct = |route: &Route| route.class == PathClass::Nvl && route.hops.len() == 1;
    for route in plan.routes.iter_mut().filter(|route| !direct(route)) {
        for hop in &mut route.hops {
            hop.1 = share(hop.1, figures.link_permille.value);
        }
    }
    let peers = |rank: usize, pairs: &[(usize, usize, u64, u32)]| pairs.iter().filter(|pair| pair.0 == rank).count().max(1) as u64;
    let busiest = (0..n).map(|rank| peers(rank, &pairs)).max().unwrap_or(1);
    let extra = figures.per_peer.value * (busiest - 1);
    for &(from, to, bytes, route) in &pairs {
        let ring = builder.figures(&plan.routes[route as usize]);
        let (flow, overhead) = match protocol {
            Protocol::Ll | Protocol::Ll128 => {
                // Half of the communicator's channels send; a rank's peers share them.
                let channels = u64::from(builder.graph.channels.max(1));
                let wire_bytes = wire(bytes, ring.ll_wire_permille.value);
                let cap = rate(2 * channels * LL_PASS_BYTES, ring.ll_pass.value) / peers(from, &pairs);
                (Flow { wire_bytes, cap: cap.max(1) }, figures.ll_latency.value)
            }
            Protocol::Simple | Protocol::Peer => {
                (Flow { wire_bytes: bytes, cap: figures.peer_bytes_per_s.value }, figures.simple_latency.value)
            }
        };
        let flow = if direct(&plan.routes[route as usize]) {
            let all_lanes = share(nvlink_rate(builder, from), figures.link_permille.value);
            Flow { cap: flow.cap.min((all_lanes / peers(from, &pairs)).max(1)), ..flow }
        } else {
            flow
        };
        let label = Label { from, to, payload_bytes: bytes, step: 0 };
        let begin = builder.begin[from].max(builder.begin[to]);
        let id = plan.push(route, label, flow, begin, Vec::new());
        let delay = overhead + extra + plan.latency(route);
        plan.ends[to].push((id, delay));
        plan.ends[from].push((id, Duration::ZERO));
    }
    Ok(plan)
}

/// Bytes per second of all of a rank's NVLinks, one way.
fn nvlink_rate(builder: &Builder<'_>, rank: usize) -> u64 {
    let machine = builder.machine();
    let Some(slot) = machine.gpus.get(builder.ordinal(rank)) else { return 0 };
    let own = machine.links.iter().map(|(_, link)| link).filter(|link| matches!(link.kind, LinkKind::NvLink { .. }));
    own.filter(|link| link.a == slot.vertex || link.b == slot.vertex).map(|link| link.forward.write_bytes_per_s.value).sum()
}

/// A share of a rate in thousandths.
pub(super) fn share(rate: u64, permille: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(permille) / 1000).unwrap_or(u64::MAX).max(1)
}
