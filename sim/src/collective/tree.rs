//! Tree all-reduce. Within one node NCCL's tree is a chain: up it goes reducing, down it comes broadcasting, in chunks that follow
//! each other.

use super::Protocol;
use super::builder::Builder;
use super::plan::{Flow, Label, Plan};
use crate::network::{RouteError, TransferId};
use crate::time::{Duration, Time};

/// Chunks that a chain keeps in flight at most; a chunk is no smaller than [`LEAST_CHUNK_BYTES`].
const CHUNKS: u64 = 64;
const LEAST_CHUNK_BYTES: u64 = 64 << 10;

/// Expands an all-reduce over the chain of the graph's first ring.
///
/// # Errors
/// If ranks are not connected.
pub(super) fn expand(builder: &Builder<'_>, protocol: Protocol) -> Result<Plan, RouteError> {
    let n = builder.ranks();
    let mut plan = Plan::new(n);
    let Some(order) = builder.graph.rings.first() else { return Ok(plan) };
    let channels = builder.graph.communicator_channels();
    let bytes = builder.request.bytes;
    let chunk_bytes = (LEAST_CHUNK_BYTES * u64::from(channels)).max(bytes.div_ceil(CHUNKS)).min(bytes.max(1));
    let chunks = bytes.div_ceil(chunk_bytes).max(1);
    let mut up = Vec::new();
    let mut down = Vec::new();
    for i in 1..n {
        up.push(builder.nccl_route(&mut plan, order[i - 1], order[i])?);
        down.push(builder.nccl_route(&mut plan, order[i], order[i - 1])?);
    }
    let Some(&worst) = up.iter().max_by_key(|&&route| {
        let route = &plan.routes[route as usize];
        (route.access, route.class)
    }) else {
        return Ok(plan);
    };
    let figures = builder.figures(&plan.routes[worst as usize]);
    let cost = builder.step(figures, protocol, chunk_bytes, bytes, channels);
    let mut chain = Chain {
        builder,
        order,
        overhead: cost.overhead,
        flow: cost.flow,
        payload_bytes: chunk_bytes,
        last: vec![[None; 2]; n],
        plan: &mut plan,
    };
    for chunk in 0..chunks {
        if chunk + 1 == chunks {
            // What is left comes last.
            chain.payload_bytes = bytes - chunk_bytes * (chunks - 1);
            chain.flow = builder.step(figures, protocol, chain.payload_bytes, bytes, channels).flow;
        }
        let mut received: Option<(TransferId, Duration)> = None;
        for (i, &route) in up.iter().enumerate() {
            received = Some(chain.hop(route, i, i + 1, 0, received));
        }
        for (i, &route) in down.iter().enumerate().rev() {
            received = Some(chain.hop(route, i + 1, i, 1, received));
        }
    }
    Ok(plan)
}

struct Chain<'a> {
    builder: &'a Builder<'a>,
    order: &'a [usize],
    overhead: Duration,
    flow: Flow,
    payload_bytes: u64,
    /// By place in the chain: the last transfer sent up and down.
    last: Vec<[Option<TransferId>; 2]>,
    plan: &'a mut Plan,
}

impl Chain<'_> {
    /// One hop of one chunk; returns the transfer and what the receiver adds before it passes the chunk on.
    fn hop(&mut self, route: u32, from: usize, to: usize, way: usize, received: Option<(TransferId, Duration)>) -> (TransferId, Duration) {
        let mut after: Vec<(TransferId, Duration)> = received.into_iter().collect();
        after.extend(self.last[from][way].map(|id| (id, Duration::ZERO)));
        let rank = self.order[from];
        let earliest = if self.last[from] == [None; 2] { self.builder.begin[rank] } else { Time::ZERO };
        let label = Label { from: rank, to: self.order[to], payload_bytes: self.payload_bytes, step: way as u32 };
        let id = self.plan.push(route, label, self.flow, earliest, after);
        self.last[from][way] = Some(id);
        let delay = self.overhead + self.plan.latency(route);
        self.plan.ends[self.order[to]].push((id, delay));
        (id, delay)
    }
}
