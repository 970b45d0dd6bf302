//! What a box with GPUs can do, checked by value: every pair's copies, a peer kernel's stores and loads, all of them in a captured graph, and
//! NCCL. Each check runs in a process of its own that can be killed, so that what hangs is reported and not suffered.

mod checks;
mod lab;
mod nccl_check;
mod parent;
pub mod topology;

pub use checks::run_check;
pub use parent::{Examination, Limits, examine};

use crate::probe::Probe;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use topology::PciPlace;

/// The kernels of the checks, compiled like the others.
pub const SOURCE: moetwin_kernels::launch::Source = moetwin_kernels::launch::Source { name: "check.cu", text: include_str!("check.cu") };

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Which libraries and GPUs there are.
    Describe,
    /// A GPU's memory, launches and graphs.
    Single,
    /// A copy from one GPU to another.
    Copy,
    /// A kernel that writes another GPU's memory.
    Store,
    /// A kernel that reads another GPU's memory.
    Load,
    /// Copy and stores to another GPU in a captured graph.
    Graph,
    /// Two GPUs that answer each other through flags.
    Flags,
    /// NCCL: sums, eager and in a captured graph.
    Nccl,
}

impl Check {
    /// Every check, in the order they are made.
    pub const ALL: [Check; 8] =
        [Check::Describe, Check::Single, Check::Copy, Check::Store, Check::Load, Check::Graph, Check::Flags, Check::Nccl];
    /// Name.
    pub fn name(self) -> &'static str {
        match self {
            Check::Describe => "describe",
            Check::Single => "single",
            Check::Copy => "copy",
            Check::Store => "store",
            Check::Load => "load",
            Check::Graph => "graph",
            Check::Flags => "flags",
            Check::Nccl => "nccl",
        }
    }
}

impl FromStr for Check {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Check::ALL.into_iter().find(|c| c.name() == text).ok_or_else(|| format!("accepted: {}", Check::ALL.map(Check::name).join(", ")))
    }
}

/// GPUs that one part of a check is about: one, an ordered pair, or a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Item(pub Vec<usize>);

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("-"))
    }
}

impl FromStr for Item {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let list: Result<Vec<usize>, _> = text.split('-').map(str::parse).collect();
        list.map(Item).map_err(|_| format!("{text}: GPUs are numbers, as in 0-1"))
    }
}

/// What a part of a check found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every value was right.
    Right,
    /// It cannot be done here, which is no fault: why.
    Unsupported(String),
    /// It was done, and values were wrong: which.
    Wrong(String),
    /// It failed: how.
    Failed(String),
    /// It did not end in time, and its process was killed.
    Hung,
    /// There was no time left for it.
    NotChecked,
}

/// What was measured on the way. Absent where it was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Bytes per second of large transfers (copies, kernels: one way; NCCL: bus bandwidth of an all-reduce; one GPU: read plus written).
    pub bytes_per_s: Option<f64>,
    /// Seconds of the smallest transfer (flags: one way).
    pub latency_s: Option<f64>,
    /// Host seconds of an eager kernel launch.
    pub eager_launch_s: Option<f64>,
    /// Device seconds between two dependent nodes of a captured graph.
    pub graph_node_s: Option<f64>,
    /// Host seconds of the launch of a captured graph.
    pub graph_launch_s: Option<f64>,
}

/// A line of a check's process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// A part begins.
    Begin(Item),
    /// A part has ended.
    End(Finding),
    /// The description of the box.
    Described(Box<Description>),
}

/// A part of a check, ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The check.
    pub check: Check,
    /// The GPUs.
    pub item: Item,
    /// What was found.
    pub outcome: Outcome,
    /// What was measured.
    pub measured: Measured,
}

impl Finding {
    /// Whether the user should know of it as a fault.
    pub fn is_fault(&self) -> bool {
        matches!(self.outcome, Outcome::Wrong(_) | Outcome::Failed(_) | Outcome::Hung)
    }
}

/// A box, described.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Libraries and GPUs.
    pub probe: Probe,
    /// By GPU.
    pub gpus: Vec<GpuDetail>,
}

/// A GPU in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuDetail {
    /// Where it sits.
    pub pci: PciPlace,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Shared memory of a multiprocessor.
    pub shared_bytes: u64,
    /// Highest clock, MHz.
    pub clock_mhz: u32,
    /// Memory rate by clock and width, bytes per second.
    pub memory_bytes_per_s: u64,
    /// By peer: whether the driver offers peer access.
    pub peer_access: Vec<bool>,
    /// By peer: whether atomics reach it, as over NVLink.
    pub native_atomics: Vec<bool>,
}
