//! A machine as described: GPUs, what connects them, and what the host charges for a launch. Every figure says where it comes from.

mod builtin;
mod check;
mod figures;
mod file;
mod gpu;
mod table;

pub use builtin::{find, list, names};
pub use check::check;
pub(crate) use figures::NCCL_CALL;
pub use figures::{
    CollectiveFigures, CpuFamily, KernelFigures, LaunchCosts, NcclFacts, NvlsFigures, PointToPointFigures, RingFigures, SharedMemory,
};
pub use file::{FileError, from_json};
pub use gpu::{FlopRate, Format, GpuModel};
pub use table::{GPU_TABLE, gpu_models, gpu_named};

use crate::cost::OwnKernels;
use crate::time::Duration;
use moetwin_models::{IdVec, define_id};
use serde::{Deserialize, Serialize};
use std::fmt;

define_id!(
    /// A part of the machine that links end at: a GPU, a switch, a root complex, a socket, host memory.
    VertexId,
    "v"
);
define_id!(
    /// A link between two parts.
    LinkId,
    "l"
);

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Read off a measurement of this machine or of one of the same kind.
    Measured,
    /// Stated by the vendor or the standard.
    Spec,
    /// Carried over from a like machine, or a round figure; the source says why.
    Assumed,
}

impl Origin {
    /// Lower-case name, as in machine files.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::Spec => "spec",
            Origin::Assumed => "assumed",
        }
    }
}

/// A value with its provenance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure<T> {
    /// The value.
    pub value: T,
    /// How it is known.
    pub origin: Origin,
    /// Who says so.
    pub source: String,
}

impl<T> Figure<T> {
    /// A measured figure.
    pub fn measured(value: T, source: impl Into<String>) -> Self {
        Self { value, origin: Origin::Measured, source: source.into() }
    }
    /// A vendor's or standard's figure.
    pub fn spec(value: T, source: impl Into<String>) -> Self {
        Self { value, origin: Origin::Spec, source: source.into() }
    }
    /// An assumed figure.
    pub fn assumed(value: T, source: impl Into<String>) -> Self {
        Self { value, origin: Origin::Assumed, source: source.into() }
    }
}

/// What a vertex is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum VertexKind {
    /// A GPU.
    Gpu {
        /// The driver's index.
        ordinal: u32,
    },
    /// A PCIe switch, or one virtual switch of a partitioned chip.
    PcieSwitch {
        /// Physical chip; virtual switches of one chip share it.
        chip: u32,
        /// Whether access control sends traffic between its ports up to the root.
        acs: bool,
    },
    /// A PCIe root complex (a root port and what is behind it).
    RootComplex,
    /// A CPU socket: its I/O die and memory fabric.
    Socket {
        /// NUMA nodes the socket is split into (NPS on AMD, SNC on Intel).
        numa_nodes: u32,
    },
    /// The memory of a socket.
    HostMemory,
    /// The NVSwitch fabric, as one non-blocking switch.
    NvSwitch,
}

/// A part of the machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vertex {
    /// Name, unique in the machine: `gpu0`, `switch1`, `socket0`.
    pub name: String,
    /// What it is.
    pub part: VertexKind,
}

/// What a link is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LinkKind {
    /// PCI Express.
    Pcie {
        /// Generation, 1 to 7.
        #[serde(rename = "gen")]
        generation: u8,
        /// Lanes, 1 to 32.
        lanes: u8,
    },
    /// Inside a switch chip, between its virtual switches.
    SwitchFabric,
    /// Inside a socket: between a root complex and the socket's fabric.
    SocketFabric,
    /// Between sockets of AMD.
    Xgmi,
    /// Between sockets of Intel.
    Upi,
    /// NVLink, all lanes between two ends together.
    NvLink {
        /// Lanes.
        lanes: u8,
    },
    /// NVLink-C2C between a Grace CPU and its GPU.
    C2c,
    /// A socket's memory channels.
    Memory,
}

impl LinkKind {
    /// Short name for reports.
    pub fn name(self) -> String {
        match self {
            LinkKind::Pcie { generation, lanes } => format!("PCIe {generation}.0 x{lanes}"),
            LinkKind::SwitchFabric => "switch fabric".into(),
            LinkKind::SocketFabric => "socket fabric".into(),
            LinkKind::Xgmi => "xGMI".into(),
            LinkKind::Upi => "UPI".into(),
            LinkKind::NvLink { lanes } => format!("NVLink x{lanes}"),
            LinkKind::C2c => "C2C".into(),
            LinkKind::Memory => "memory".into(),
        }
    }
}

/// What one direction of a link carries.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Data sent by writes (posted), bytes per second.
    pub write_bytes_per_s: Figure<u64>,
    /// Data sent as answers to reads, bytes per second.
    pub read_bytes_per_s: Figure<u64>,
}

impl Rate {
    /// The same for reads and writes.
    pub fn even(rate: Figure<u64>) -> Self {
        Self { write_bytes_per_s: rate.clone(), read_bytes_per_s: rate }
    }
}

/// A link between two vertices, full duplex.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// One end.
    pub a: VertexId,
    /// The other end.
    pub b: VertexId,
    /// What it is made of.
    pub kind: LinkKind,
    /// Rate from `a` to `b`.
    pub forward: Rate,
    /// Rate from `b` to `a`.
    pub backward: Rate,
    /// Time a packet takes across it, one way.
    pub latency: Figure<Duration>,
}

/// A known defect of the hardware that the wire rates do not show.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Defect {
    /// Posted writes from one (virtual) switch to two or more root complexes at once collapse to a small total; reads do not.
    PostedWriteCollapse {
        /// The switch.
        switch: VertexId,
        /// What all such writes get together, bytes per second.
        bytes_per_s: Figure<u64>,
    },
}

/// How two GPUs are connected, nearest first; the words of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PathClass {
    /// Through NVLink.
    Nvl,
    /// Through one PCIe switch.
    Pix,
    /// Through several PCIe switches, not through a root complex.
    Pxb,
    /// Through one root complex.
    Phb,
    /// Between root complexes of one NUMA node.
    Node,
    /// Between NUMA nodes or sockets.
    Sys,
}

impl PathClass {
    /// Every class, nearest first.
    pub const ALL: [PathClass; 6] = [PathClass::Nvl, PathClass::Pix, PathClass::Pxb, PathClass::Phb, PathClass::Node, PathClass::Sys];

    /// Upper-case name.
    pub fn name(self) -> &'static str {
        match self {
            PathClass::Nvl => "NVL",
            PathClass::Pix => "PIX",
            PathClass::Pxb => "PXB",
            PathClass::Phb => "PHB",
            PathClass::Node => "NODE",
            PathClass::Sys => "SYS",
        }
    }
}

impl fmt::Display for PathClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A GPU in its slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Index into [`Machine::models`].
    pub model: usize,
    /// Its vertex.
    pub vertex: VertexId,
    /// NUMA node the driver reports.
    pub numa: u32,
}

/// A described machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Name, for example `8x-rtx-pro-6000-server`.
    pub name: String,
    /// One sentence for people.
    pub summary: String,
    /// GPU models present.
    pub models: Vec<GpuModel>,
    /// GPUs by ordinal.
    pub gpus: Vec<Slot>,
    /// Parts that links end at.
    pub vertices: IdVec<VertexId, Vertex>,
    /// Links.
    pub links: IdVec<LinkId, Link>,
    /// Known defects.
    pub defects: Vec<Defect>,
    /// Whether GPUs may read and write each other's memory; otherwise copies bounce through host memory.
    pub peer_access: Figure<bool>,
    /// What the host charges for launches.
    pub launch: LaunchCosts,
    /// What collectives are computed from.
    pub collectives: CollectiveFigures,
    /// What was assumed about the machine as a whole.
    pub assumptions: Vec<String>,
    /// Times of our own kernels on its GPUs, where they were measured.
    pub kernels: Option<OwnKernels>,
}

impl Machine {
    /// Number of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.gpus.len()
    }
    /// The model of a GPU, by ordinal; `None` beyond the last.
    pub fn gpu(&self, ordinal: usize) -> Option<&GpuModel> {
        self.gpus.get(ordinal).and_then(|slot| self.models.get(slot.model))
    }
    /// The same machine with peer access allowed or forbidden, as the `--p2p` flag asks.
    pub fn with_peer_access(mut self, on: bool) -> Self {
        if self.peer_access.value != on {
            self.peer_access = Figure::assumed(on, "asked for");
        }
        self
    }
    /// The same machine with device memory of another rate, for what-if questions.
    pub fn with_memory_rates_scaled(mut self, numerator: u64, denominator: u64) -> Self {
        for gpu in &mut self.models {
            scale_rate(&mut gpu.memory_bytes_per_s, numerator, denominator);
            if let Some(reached) = &mut gpu.memory_reached_bytes_per_s {
                scale_rate(reached, numerator, denominator);
            }
        }
        self
    }
    /// The same machine with tensor cores of another rate, for what-if questions.
    pub fn with_flop_rates_scaled(mut self, numerator: u64, denominator: u64) -> Self {
        for rate in self.models.iter_mut().flat_map(|gpu| &mut gpu.flops) {
            scale_rate(&mut rate.peak_per_s, numerator, denominator);
            if let Some(reached) = &mut rate.reached_per_s {
                scale_rate(reached, numerator, denominator);
            }
        }
        self
    }
    /// The same machine with launches of another cost, for what-if questions.
    pub fn with_launch_costs_scaled(mut self, numerator: u64, denominator: u64) -> Self {
        let launch = &mut self.launch;
        for cost in [
            &mut launch.eager_kernel,
            &mut launch.graph_node,
            &mut launch.graph_launch,
            &mut launch.eager_collective,
            &mut launch.eager_nccl,
        ]
        .into_iter()
        .chain(&mut launch.nccl_call)
        {
            cost.value = cost.value.scaled(numerator, denominator.max(1));
        }
        self
    }
    /// The same machine with other latencies of links and of the steps of collectives, for what-if questions.
    pub fn with_exchange_latency_scaled(mut self, numerator: u64, denominator: u64) -> Self {
        let scale = |figure: &mut Figure<Duration>| figure.value = figure.value.scaled(numerator, denominator.max(1));
        self.links.iter_mut().for_each(|(_, link)| scale(&mut link.latency));
        let figures = &mut self.collectives;
        scale(&mut figures.kernel);
        for ring in [&mut figures.nvlink, &mut figures.pcie, &mut figures.host] {
            for step in [&mut ring.ll_step, &mut ring.ll128_step, &mut ring.simple_step, &mut ring.simple_spread] {
                scale(step);
            }
        }
        if let Some(nvls) = &mut figures.nvls {
            [&mut nvls.latency, &mut nvls.symmetric_latency].into_iter().for_each(scale);
        }
        let (point, custom) = (&mut figures.point_to_point, &mut figures.custom);
        [&mut point.ll_latency, &mut point.simple_latency, &mut point.per_peer].into_iter().for_each(scale);
        [&mut custom.barrier, &mut custom.push_barrier, &mut custom.per_rank, &mut custom.phase].into_iter().for_each(scale);
        self
    }
    /// The same machine with every link rate (and the rates of collectives that are stated apart from links) multiplied, for what-if questions.
    pub fn with_link_rates_scaled(mut self, numerator: u64, denominator: u64) -> Self {
        let scale = |rate: &mut Figure<u64>| scale_rate(rate, numerator, denominator);
        for (_, link) in self.links.iter_mut() {
            for rate in [&mut link.forward, &mut link.backward] {
                scale(&mut rate.write_bytes_per_s);
                scale(&mut rate.read_bytes_per_s);
            }
        }
        let figures = &mut self.collectives;
        for ring in [&mut figures.nvlink, &mut figures.pcie, &mut figures.host] {
            scale(&mut ring.simple_bytes_per_s);
        }
        scale(&mut figures.point_to_point.peer_bytes_per_s);
        if let Some(nvls) = &mut figures.nvls {
            for rate in [&mut nvls.small_bytes_per_s, &mut nvls.bytes_per_s, &mut nvls.symmetric_bytes_per_s] {
                scale(rate);
            }
        }
        self
    }
}

fn scale_rate(rate: &mut Figure<u64>, numerator: u64, denominator: u64) {
    let scaled = u128::from(rate.value) * u128::from(numerator) / u128::from(denominator.max(1));
    rate.value = u64::try_from(scaled).unwrap_or(u64::MAX).max(1);
}
