//! NCCL's view of a machine: the ring it finds, and the algorithm and protocol its published cost model picks (2.30, `graph/search.cc`,
//! `graph/tuning.cc`, `graph/topo.h`). The model decides; how long the choice then takes is simulated.

use super::{Algorithm, CollectiveOp, Protocol};
use crate::machine::{CpuFamily, LinkId, LinkKind, Machine, PathClass, SharedMemory};
use crate::network::{Access, Network, Route, RouteError};
use moetwin_models::ids::Id;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whether NCCL works with the link rates it assumes or with those the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphMode {
    /// What it detects: a constant per CPU family between sockets.
    #[default]
    Detected,
    /// A graph file that states the real links.
    Tuned,
}

impl GraphMode {
    /// Every mode.
    pub const ALL: [GraphMode; 2] = [GraphMode::Detected, GraphMode::Tuned];

    /// Name as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            GraphMode::Detected => "detected",
            GraphMode::Tuned => "tuned",
        }
    }
}

/// The rings NCCL builds for a set of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct NcclGraph {
    /// Ring orders (positions in the rank list); channels are spread over them evenly.
    pub rings: Vec<Vec<usize>>,
    /// Channels of the graph.
    pub channels: u32,
    /// Rate NCCL expects of one, in units of 10^9 bytes per second.
    pub channel_gb_per_s: f64,
    /// The farthest hop of the ring.
    pub class: PathClass,
    /// No ring reached the lowest search speed: one channel at 0.1 GB/s.
    pub fallback: bool,
    /// Rate NCCL expects of NVLink multicast, in units of 10^9 bytes per second; none without an NVSwitch between all ranks. Peer access
    /// does not matter to it.
    pub multicast_gb_per_s: Option<f64>,
}

impl NcclGraph {
    /// Channels of a communicator: two per graph channel.
    pub fn communicator_channels(&self) -> u32 {
        self.channels * 2
    }
    /// Whether NCCL treats the ring as NVLink.
    pub fn nvlink(&self) -> bool {
        self.class == PathClass::Nvl
    }
}

/// Compute capability of the lowest GPU among ranks, 80 for 8.0.
fn lowest_sm(machine: &Machine, ranks: &[usize]) -> u32 {
    ranks.iter().filter_map(|&rank| machine.gpu(rank)).map(|gpu| gpu.sm()).min().unwrap_or(0)
}

/// Ring speeds tried in turn. Older GPUs: the list of `search.cc` with the rate of a Gen4 x16 port among them.
fn speeds(sm: u32) -> &'static [f64] {
    match sm {
        100.. => &[90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0],
        90..100 => &[60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0],
        _ => &[40.0, 30.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0],
    }
}

/// What NCCL takes a link for, GB/s; `None` where it sees no limit.
fn nominal(machine: &Machine, link: LinkId, sm: u32, mode: GraphMode) -> Option<f64> {
    let link = &machine.links[link];
    Some(match link.kind {
        LinkKind::Pcie { generation, lanes } => {
            let per_16: f64 = match generation {
                ..=1 => 3.0,
                2 => 6.0,
                3 => 12.0,
                4 => 24.0,
                5 => 48.0,
                _ => 96.0,
            };
            per_16 * f64::from(lanes) / 16.0
        }
        LinkKind::NvLink { lanes } => {
            let lane: f64 = match sm {
                100.. => 40.1,
                90..100 => 20.6,
                86 => 12.0,
                70..90 => 20.0,
                _ => 18.0,
            };
            lane * f64::from(lanes)
        }
        LinkKind::Xgmi | LinkKind::Upi => match mode {
            GraphMode::Detected => machine.collectives.nccl.cpu.value.nccl_socket_bytes_per_s() as f64 / 1e9,
            GraphMode::Tuned => link.forward.write_bytes_per_s.value.min(link.backward.write_bytes_per_s.value) as f64 / 1e9,
        },
        LinkKind::C2c | LinkKind::SwitchFabric | LinkKind::SocketFabric | LinkKind::Memory => return None,
    })
}

/// How NCCL moves data between two ranks: by peer access where it is allowed and near enough, else through host memory.
///
/// # Errors
/// If the two are not connected at all.
pub(super) fn hop(network: &Network<'_>, a: usize, b: usize, memory: SharedMemory) -> Result<Route, RouteError> {
    let access = match memory {
        _ if by_peers(network, a, b)? => Access::Write,
        SharedMemory::Receiver => Access::Bounce,
        SharedMemory::FirstSocket => Access::BounceFirst,
    };
    network.route(a, b, access)
}

/// Whether NCCL uses peer access between two ranks.
fn by_peers(network: &Network<'_>, a: usize, b: usize) -> Result<bool, RouteError> {
    let machine = network.machine();
    let class = network.class(a, b)?;
    let near = class <= machine.collectives.nccl.p2p_level.value || class == PathClass::Nvl;
    Ok(machine.peer_access.value && near)
}

/// The way NCCL's search takes between two ranks, and its class: without peer access every way leads through a CPU.
fn seen(network: &Network<'_>, a: usize, b: usize) -> Result<(Route, PathClass), RouteError> {
    if by_peers(network, a, b)? {
        let route = network.route(a, b, Access::Write)?;
        let class = route.class;
        return Ok((route, class));
    }
    Ok((network.route(a, b, Access::Bounce)?, network.pcie_class(a, b)?.max(PathClass::Phb)))
}

/// The rings NCCL builds.
///
/// # Errors
/// If ranks are not connected.
pub fn nccl_graph(network: &Network<'_>, ranks: &[usize], mode: GraphMode) -> Result<NcclGraph, RouteError> {
    let machine = network.machine();
    let sm = lowest_sm(machine, ranks);
    let rings = super::ring::orders(network, ranks)?;
    let mut class = PathClass::Nvl;
    // How often one round of every ring crosses each directed link.
    let mut crossings: BTreeMap<u32, u32> = BTreeMap::new();
    for order in &rings {
        for (i, &position) in order.iter().enumerate() {
            let (a, b) = (ranks[position], ranks[order[(i + 1) % order.len()]]);
            if a == b {
                continue;
            }
            let (route, nearness) = seen(network, a, b)?;
            class = class.max(nearness);
            for (link, _) in route.hops {
                *crossings.entry(link).or_default() += 1;
            }
        }
    }
    let intel = !matches!(machine.collectives.nccl.cpu.value, CpuFamily::Amd | CpuFamily::Arm);
    // Peer traffic through an Intel root complex is taken to need 6/5 of its rate.
    let overhead = if intel && matches!(class, PathClass::Phb | PathClass::Node) { 1.2 } else { 1.0 };
    let total = crossings
        .iter()
        .filter_map(|(&link, &count)| {
            let rate = nominal(machine, LinkId::from_index(link as usize / 2), sm, mode)?;
            Some(rate * rings.len() as f64 / f64::from(count) / overhead)
        })
        .fold(f64::INFINITY, f64::min);
    // NUMA nodes of one socket are CPUs to NCCL, at the rate of its family.
    let total = if mode == GraphMode::Detected && class == PathClass::Sys {
        total.min(machine.collectives.nccl.cpu.value.nccl_socket_bytes_per_s() as f64 / 1e9)
    } else {
        total
    };
    let found = search(total, speeds(sm), sm);
    let (channels, channel_gb_per_s, fallback) = match found {
        Some((channels, speed)) => (channels, speed, false),
        None => (1, 0.1, true),
    };
    let class = if fallback { PathClass::Sys } else { class };
    Ok(NcclGraph { rings, channels, channel_gb_per_s, class, fallback, multicast_gb_per_s: multicast(network, ranks, sm)? })
}

/// What the search finds for multicast: every rank's NVLinks at once.
fn multicast(network: &Network<'_>, ranks: &[usize], sm: u32) -> Result<Option<f64>, RouteError> {
    let machine = network.machine();
    let mut total = f64::INFINITY;
    for (i, &a) in ranks.iter().enumerate() {
        let b = ranks[(i + 1) % ranks.len()];
        if machine.collectives.nvls.is_none() || a == b || network.class(a, b)? != PathClass::Nvl {
            return Ok(None);
        }
        for (link, _) in network.route(a, b, Access::Write)?.hops {
            let rate = nominal(machine, LinkId::from_index(link as usize / 2), sm, GraphMode::Detected);
            total = rate.map_or(total, |rate| total.min(rate));
        }
    }
    Ok(search(total, speeds(sm), sm).map(|(channels, speed)| f64::from(channels) * speed))
}

/// Channels and their speed that fill `total` best; `None` if not even one at the lowest speed fits.
fn search(total: f64, speeds: &[f64], sm: u32) -> Option<(u32, f64)> {
    const MOST: u32 = 16;
    let mut best: Option<(u32, f64)> = None;
    for &speed in speeds {
        // The search goes on to lower speeds, down to about half of the best found.
        if best.is_some_and(|(_, found)| speed / found <= 0.49) {
            break;
        }
        let channels = if total.is_finite() { ((total / speed) as u32).min(MOST) } else { MOST };
        if channels > 0 && best.is_none_or(|(most, found)| f64::from(channels) * speed > f64::from(most) * found) {
            best = Some((channels, speed));
        }
    }
    let (channels, speed) = best?;
    // Duplicated channels at half the rate each (`ncclTopoDupChannels`).
    let duplicate = speed >= 25.0 && !(sm > 80 && speed < 50.0 && channels > 4) && channels * 2 <= MOST;
    Some(if duplicate { (channels * 2, speed / 2.0) } else { (channels, speed) })
}

/// Index of the tuner's per-generation tables: Volta, Ampere, Hopper, Blackwell.
fn generation(sm: u32) -> usize {
    match sm {
        100.. => 3,
        90..100 => 2,
        80..90 => 1,
        _ => 0,
    }
}

/// What NCCL's cost model expects of one algorithm and protocol: a latency, and the bytes over a bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Protocol.
    pub protocol: Protocol,
    /// The part that does not depend on the size, microseconds.
    pub latency_us: f64,
    /// What the size is divided by, 10^9 bytes per second.
    pub bandwidth_gb_per_s: f64,
    /// Both parts together, microseconds.
    pub time_us: f64,
}

impl Candidate {
    /// A choice that the model does not rate.
    pub(super) fn unknown(algorithm: Algorithm, protocol: Protocol) -> Self {
        Self { algorithm, protocol, latency_us: f64::INFINITY, bandwidth_gb_per_s: 0.0, time_us: f64::INFINITY }
    }
}

/// What the model expects of every choice that is open for an op, microseconds, fastest first (ties: the model's order).
///
/// All-reduce has ring, tree and, where the fabric can, NVLS; the others have the ring only. LL128 needs NVLink throughout.
pub fn nccl_times(machine: &Machine, graph: &NcclGraph, ranks: &[usize], op: CollectiveOp, bytes: u64) -> Vec<Candidate> {
    let n = ranks.len() as f64;
    let sm = lowest_sm(machine, ranks);
    let generation = generation(sm);
    let bus = f64::from(graph.channels) * graph.channel_gb_per_s;
    let channels = f64::from(graph.channels);
    let mut out = Vec::new();
    let ll_cap = [39.0, 87.7, 141.0, 282.0][generation];
    let ring_ll128_cap = [20.0, 20.0, 36.7, 40.0][generation] * channels;
    let tree_cap = [26.5, 24.0, 38.7, 70.0][generation] * channels;
    let steps = match op {
        CollectiveOp::AllReduce => 2.0 * (n - 1.0),
        _ => n - 1.0,
    };
    let nvlink = graph.nvlink();
    let hardware = |nvl: f64, pci: f64| if nvlink { nvl } else { pci };
    let mut add = |algorithm: Algorithm, protocol: Protocol, latency_us: f64, bandwidth_gb_per_s: f64| {
        let time_us = latency_us + bytes as f64 / (1000.0 * bandwidth_gb_per_s);
        out.push(Candidate { algorithm, protocol, latency_us, bandwidth_gb_per_s, time_us });
    };
    let ring = n / steps.max(1.0);
    add(Algorithm::Ring, Protocol::Ll, 6.6 + steps * hardware(0.6, 1.0), (bus * 0.5).min(ll_cap) * ring);
    if nvlink && sm >= 70 {
        add(Algorithm::Ring, Protocol::Ll128, 14.0 + steps * hardware(1.9, 2.5), (bus * 0.92).min(ring_ll128_cap) * ring);
    }
    add(Algorithm::Ring, Protocol::Simple, 8.4 + steps * hardware(3.4, 5.7), bus * ring);
    if op == CollectiveOp::AllReduce && n > 1.0 {
        let tree_bus = (bus * 0.92).min(tree_cap);
        let size_class = if bytes / 64 == 0 { 0 } else { (bytes / 64).ilog2() as usize };
        let tree = |protocol: usize| TREE_CORRECTION[protocol][size_class.min(TREE_CORRECTION[protocol].len() - 1)] * 0.5;
        add(Algorithm::Tree, Protocol::Ll, 6.8 + steps * hardware(0.6, 1.0), tree_bus / 3.8 * tree(0));
        if nvlink && sm >= 70 {
            add(Algorithm::Tree, Protocol::Ll128, 14.0 + steps * hardware(1.25, 1.9), tree_bus * 7.0 / 9.0 * tree(1));
        }
        add(Algorithm::Tree, Protocol::Simple, 8.4 + steps * 4.0, tree_bus * tree(2));
        // Tables of four ranks on an NVSwitch follow the ring at every size, those of eight do not.
        if let Some(multicast) = graph.multicast_gb_per_s.filter(|_| n > 4.0) {
            let efficiency = if sm >= 100 { 0.74 } else { 0.85 };
            add(Algorithm::Nvls, Protocol::Simple, 25.0, multicast * efficiency * (n - 1.0) / n);
        }
    }
    out.sort_by(|a, b| a.time_us.total_cmp(&b.time_us));
    out
}

/// The tree's bandwidth correction by `floor(log2(bytes / 64))` for LL, LL128 and Simple (`tuning.cc`).
const TREE_CORRECTION: [[f64; 23]; 3] = [
    [1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0],
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0],
    [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9],
];
