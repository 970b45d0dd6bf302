//! Rings: their order, and their expansion into steps.

use super::builder::Builder;
use super::plan::{Flow, Label, Plan};
use super::{CollectiveOp, Protocol};
use crate::machine::{LinkKind, Machine, VertexKind};
use crate::network::{Network, RouteError, TransferId};
use crate::time::{Duration, Time};
use std::collections::BTreeMap;

/// Bytes of one chunk of a Simple channel: half of its 4 MiB buffer (`NCCL_STEPS / 2` steps).
const SIMPLE_CHUNK_BYTES: u64 = 2 << 20;

/// Loops that are simulated one by one.
const MOST_LOOPS: u64 = 256;

/// Ring orders as positions in `ranks`.
///
/// Where NVLinks join GPUs directly but not all pairs, rings that use each lane once are searched; otherwise one ring visits GPUs
/// sorted by socket, root and switch, so that it crosses every uplink once each way.
///
/// # Errors
/// If ranks are not connected.
pub(super) fn orders(network: &Network<'_>, ranks: &[usize]) -> Result<Vec<Vec<usize>>, RouteError> {
    let machine = network.machine();
    if ranks.len() > 2
        && machine.peer_access.value
        && let Some(lanes) = direct_lanes(machine, ranks)
    {
        let rings = lane_rings(lanes, ranks.len());
        if !rings.is_empty() {
            return Ok(rings);
        }
    }
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    let mut keys = Vec::new();
    for &rank in ranks {
        keys.push(network.place(rank)?);
    }
    order.sort_by(|&a, &b| keys[a].cmp(&keys[b]).then(a.cmp(&b)));
    Ok(vec![order])
}

/// NVLink lanes between pairs of ranks, if they are joined directly (no NVSwitch) and every rank has some.
fn direct_lanes(machine: &Machine, ranks: &[usize]) -> Option<BTreeMap<(usize, usize), u32>> {
    let position: BTreeMap<_, _> =
        ranks.iter().enumerate().filter_map(|(at, &rank)| machine.gpus.get(rank).map(|slot| (slot.vertex, at))).collect();
    let mut lanes = BTreeMap::new();
    for (_, link) in machine.links.iter() {
        let LinkKind::NvLink { lanes: count } = link.kind else { continue };
        if matches!(machine.vertices[link.a].part, VertexKind::NvSwitch) || matches!(machine.vertices[link.b].part, VertexKind::NvSwitch) {
            return None;
        }
        if let (Some(&a), Some(&b)) = (position.get(&link.a), position.get(&link.b)) {
            *lanes.entry((a, b)).or_default() += u32::from(count);
            *lanes.entry((b, a)).or_default() += u32::from(count);
        }
    }
    let joined = (0..ranks.len()).all(|at| lanes.keys().filter(|pair| pair.0 == at).count() >= 2);
    joined.then_some(lanes)
}

/// As many rings over all ranks as lanes allow, each lane used by one ring and its reverse. A bounded search: first found, first kept.
fn lane_rings(mut lanes: BTreeMap<(usize, usize), u32>, ranks: usize) -> Vec<Vec<usize>> {
    let mut search = LaneSearch { ranks, budget: 200_000, best: Vec::new() };
    // No rank can be in more rings than half of its lanes.
    let most =
        (0..ranks).map(|at| lanes.iter().filter(|(pair, _)| pair.0 == at).map(|(_, count)| *count).sum::<u32>() / 2).min().unwrap_or(0);
    search.add(&mut lanes, &mut Vec::new(), most as usize);
    let mut rings = Vec::new();
    for path in search.best {
        let mut reverse = path.clone();
        reverse[1..].reverse();
        rings.push(path);
        rings.push(reverse);
    }
    rings
}

struct LaneSearch {
    ranks: usize,
    budget: u32,
    best: Vec<Vec<usize>>,
}

impl LaneSearch {
    /// Adds rings to those found until there are `most`; true once there are.
    fn add(&mut self, lanes: &mut BTreeMap<(usize, usize), u32>, found: &mut Vec<Vec<usize>>, most: usize) -> bool {
        if found.len() > self.best.len() {
            self.best.clone_from(found);
        }
        self.best.len() >= most || self.extend(lanes, found, &mut vec![0], most)
    }

    fn extend(
        &mut self,
        lanes: &mut BTreeMap<(usize, usize), u32>,
        found: &mut Vec<Vec<usize>>,
        path: &mut Vec<usize>,
        most: usize,
    ) -> bool {
        let free = |lanes: &BTreeMap<(usize, usize), u32>, a: usize, b: usize| lanes.get(&(a, b)).is_some_and(|count| *count > 0);
        let last = path[path.len() - 1];
        if path.len() == self.ranks {
            if !free(lanes, last, path[0]) {
                return false;
            }
            occupy(lanes, path, true);
            found.push(path.clone());
            let done = self.add(lanes, found, most);
            found.pop();
            occupy(lanes, path, false);
            return done;
        }
        for next in 0..self.ranks {
            if self.budget == 0 {
                return false;
            }
            if free(lanes, last, next) && !path.contains(&next) {
                self.budget -= 1;
                path.push(next);
                let done = self.extend(lanes, found, path, most);
                path.pop();
                if done {
                    return true;
                }
            }
        }
        false
    }
}

/// Takes or gives back one lane of every hop, both ways: a ring and its reverse use the two directions of the same lanes.
fn occupy(lanes: &mut BTreeMap<(usize, usize), u32>, path: &[usize], take: bool) {
    for (i, &at) in path.iter().enumerate() {
        let next = path[(i + 1) % path.len()];
        for pair in [(at, next), (next, at)] {
            if let Some(count) = lanes.get_mut(&pair) {
                *count = if take { count.saturating_sub(1) } else { *count + 1 };
            }
        }
    }
}

/// Expands an op over the graph's rings.
///
/// # Errors
/// If ranks are not connected.
pub(super) fn expand(builder: &Builder<'_>, protocol: Protocol) -> Result<Plan, RouteError> {
    let n = builder.ranks();
    let mut plan = Plan::new(n);
    let rings = builder.graph.rings.len() as u64;
    let share = builder.request.bytes.div_ceil(rings);
    let channels = (u64::from(builder.graph.communicator_channels()) / rings).max(1) as u32;
    for order in &builder.graph.rings {
        let mut order = order.clone();
        // A broadcast starts at its root, the first rank.
        let root = order.iter().position(|&rank| rank == 0).unwrap_or(0);
        order.rotate_left(root);
        one_ring(builder, protocol, &order, share, channels, &mut plan)?;
    }
    Ok(plan)
}

/// One ring's part of an op: `bytes` of it over `channels` channels.
fn one_ring(
    builder: &Builder<'_>,
    protocol: Protocol,
    order: &[usize],
    bytes: u64,
    channels: u32,
    plan: &mut Plan,
) -> Result<(), RouteError> {
    let n = order.len();
    let mut routes = Vec::with_capacity(n);
    for (i, &from) in order.iter().enumerate() {
        routes.push(builder.nccl_route(plan, from, order[(i + 1) % n])?);
    }
    let broadcast = builder.request.op == CollectiveOp::Broadcast;
    let steps = match builder.request.op {
        CollectiveOp::AllReduce => 2 * (n - 1),
        _ => n - 1,
    };
    let pieces = pieces(protocol, broadcast, bytes, n as u64, u64::from(channels));
    let worst = routes.iter().max_by_key(|&&route| {
        let route = &plan.routes[route as usize];
        (route.access, route.class)
    });
    let Some(&worst) = worst else { return Ok(()) };
    let figures = builder.figures(&plan.routes[worst as usize]);
    let cost = builder.step(figures, protocol, pieces.step_bytes, bytes, channels);
    // The local end of a ring takes a share of what a step's transfer takes when all ranks send.
    let pattern: Vec<_> = routes.iter().map(|&route| (&plan.routes[route as usize], cost.flow.cap)).collect();
    let finish: Vec<Duration> = builder
        .network
        .rates(&pattern)
        .into_iter()
        .map(|rate| Duration::of_bytes(cost.flow.wire_bytes, rate).scaled(cost.finish_permille, 1000))
        .collect();
    let mut ring = Ring {
        order,
        routes: &routes,
        finish: &finish,
        overhead: cost.overhead.scaled(pieces.overhead.0, pieces.overhead.1),
        steps,
        slices: cost.slices,
        by_line: cost.by_line,
        broadcast,
        last_sent: vec![None; n],
        last_received: vec![None; n],
    };
    for piece in 0..pieces.loops {
        let step_bytes = if piece + 1 == pieces.loops { pieces.last_bytes } else { pieces.step_bytes };
        let cost = builder.step(figures, protocol, step_bytes, bytes, channels);
        let flow = Flow { wire_bytes: cost.flow.wire_bytes.div_ceil(u64::from(cost.slices)), cap: cost.flow.cap };
        ring.push_loop(builder, flow, step_bytes, plan);
    }
    ring.push_ends(plan);
    Ok(())
}

/// How an op's bytes are cut into loops over the ring.
struct Pieces {
    loops: u64,
    /// Bytes of a step of every loop but the last.
    step_bytes: u64,
    /// Bytes of a step of the last loop.
    last_bytes: u64,
    /// What a step's overhead is multiplied by, as a fraction: a loop that stands for several has the overhead of all of them, one that
    /// is a part of a full one a part.
    overhead: (u64, u64),
}

/// A loop moves one chunk a rank and channel. Loops of a reduction are equal, so that times are continuous in size; a broadcast passes
/// full chunks on and what is left last.
fn pieces(protocol: Protocol, broadcast: bool, bytes: u64, ranks: u64, channels: u64) -> Pieces {
    if protocol != Protocol::Simple {
        // Passed on by line: one loop.
        let step_bytes = if broadcast { bytes } else { bytes.div_ceil(ranks) };
        return Pieces { loops: 1, step_bytes, last_bytes: step_bytes, overhead: (1, 1) };
    }
    if broadcast {
        let most = SIMPLE_CHUNK_BYTES / 4 * channels;
        let step_bytes = bytes.div_ceil(4).min(most).max(bytes.div_ceil(MOST_LOOPS)).max(1);
        let loops = bytes.div_ceil(step_bytes).max(1);
        return Pieces { loops, step_bytes, last_bytes: bytes - step_bytes * (loops - 1), overhead: (1, 1) };
    }
    let full = ranks * channels * SIMPLE_CHUNK_BYTES;
    let loops = bytes.div_ceil(full).clamp(1, MOST_LOOPS);
    let step_bytes = bytes.div_ceil(ranks * loops);
    Pieces { loops, step_bytes, last_bytes: step_bytes, overhead: (bytes.max(full), full * loops) }
}

struct Ring<'a> {
    order: &'a [usize],
    routes: &'a [u32],
    finish: &'a [Duration],
    overhead: Duration,
    steps: usize,
    slices: u32,
    by_line: bool,
    broadcast: bool,
    /// By place in the ring.
    last_sent: Vec<Option<TransferId>>,
    last_received: Vec<Option<TransferId>>,
}

/// Transfers of a step by sender, one a slice.
type Step = Vec<Vec<TransferId>>;

impl Ring<'_> {
    /// Pushes the steps and slices of one loop.
    fn push_loop(&mut self, builder: &Builder<'_>, flow: Flow, step_bytes: u64, plan: &mut Plan) {
        let n = self.order.len();
        let (mut older, mut previous): (Step, Step) = (vec![Vec::new(); n], vec![Vec::new(); n]);
        for step in 0..self.steps {
            let mut current: Step = vec![Vec::new(); n];
            // In a broadcast only the rank that holds the data sends.
            for at in (0..n).filter(|&at| !self.broadcast || at == step) {
                for slice in 0..self.slices as usize {
                    let (after, after_start) = self.waits(at, slice, &older, &previous, plan);
                    let label = Label {
                        from: self.order[at],
                        to: self.order[(at + 1) % n],
                        payload_bytes: step_bytes.div_ceil(u64::from(self.slices)),
                        step: step as u32,
                    };
                    let earliest = if self.last_sent[at].is_none() { builder.begin[self.order[at]] } else { Time::ZERO };
                    let id = plan.push(self.routes[at], label, flow, earliest, after);
                    plan.transfers[id as usize].after_start = after_start;
                    self.last_sent[at] = Some(id);
                    current[at].push(id);
                }
            }
            for at in 0..n {
                if let Some(&id) = current[(at + n - 1) % n].last() {
                    self.last_received[at] = Some(id);
                }
            }
            older = std::mem::replace(&mut previous, current);
        }
    }

    /// What a slice waits for: that the rank has sent its previous one and received the same slice of the previous step. Passed on by
    /// line, the first line is enough, and a step later all of them must have come. The first step of a loop needs the local end of the
    /// loop before.
    fn waits(&self, at: usize, slice: usize, older: &Step, previous: &Step, plan: &Plan) -> (Waits, Waits) {
        let before = (at + self.order.len() - 1) % self.order.len();
        let delay = self.overhead + plan.latency(self.routes[before]);
        let mut after: Waits = self.last_sent[at].iter().map(|&sent| (sent, Duration::ZERO)).collect();
        let mut after_start = Waits::new();
        match previous[before].get(slice) {
            Some(&received) if self.by_line => {
                after_start.push((received, delay));
                after.extend(older[before].get(slice).map(|&id| (id, delay)));
            }
            Some(&received) => after.push((received, delay)),
            None if self.broadcast => {}
            None => after.extend(self.last_received[at].map(|received| (received, delay + self.finish[at]))),
        }
        (after, after_start)
    }

    fn push_ends(&self, plan: &mut Plan) {
        let n = self.order.len();
        for at in 0..n {
            let mut delay = self.finish[at];
            // What was passed on by line is whole no sooner than at those it came through.
            let hops = if self.by_line && self.broadcast { at } else { 1 };
            for hop in 0..hops {
                let to = (at + n - hop) % n;
                delay += self.overhead + plan.latency(self.routes[(to + n - 1) % n]);
                if let Some(received) = self.last_received[to] {
                    plan.ends[self.order[at]].push((received, delay));
                }
            }
            if let Some(sent) = self.last_sent[at] {
                plan.ends[self.order[at]].push((sent, Duration::ZERO));
            }
        }
    }
}

type Waits = Vec<(TransferId, Duration)>;
