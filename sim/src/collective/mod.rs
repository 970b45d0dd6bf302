//! What a collective takes on a machine: expanded into transfers over the topology by algorithm and protocol.

mod builder;
mod choose;
mod custom;
mod explain;
mod library;
mod nccl;
mod plan;
mod point;
mod predict;
mod ring;
mod trace;
mod tree;

pub use explain::BoundStep;
pub use library::Library;
pub use nccl::{Candidate, GraphMode, NcclGraph, nccl_graph, nccl_times};
pub use predict::{CollectiveError, Collectives, Prediction, RankTiming, TransferSpan, predict};
pub use trace::chrome_trace;

use crate::time::Duration;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What is communicated. Sizes are those of nccl-tests' size column: all-reduce and broadcast the buffer of one rank, all-gather the
/// gathered result, reduce-scatter the input, all-to-all all that one rank sends, itself included, send-recv what one rank sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveOp {
    /// Sum over ranks, known to all.
    AllReduce,
    /// Concatenation over ranks, known to all.
    AllGather,
    /// Sum over ranks, one part each.
    ReduceScatter,
    /// One part from each to each.
    #[serde(rename = "alltoall")]
    AllToAll,
    /// The first rank's buffer to all.
    Broadcast,
    /// Each rank to the next.
    #[serde(rename = "sendrecv")]
    SendRecv,
}

impl CollectiveOp {
    /// Every op.
    pub const ALL: [CollectiveOp; 6] = [
        CollectiveOp::AllReduce,
        CollectiveOp::AllGather,
        CollectiveOp::ReduceScatter,
        CollectiveOp::AllToAll,
        CollectiveOp::Broadcast,
        CollectiveOp::SendRecv,
    ];

    /// Name as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveOp::AllReduce => "all_reduce",
            CollectiveOp::AllGather => "all_gather",
            CollectiveOp::ReduceScatter => "reduce_scatter",
            CollectiveOp::AllToAll => "alltoall",
            CollectiveOp::Broadcast => "broadcast",
            CollectiveOp::SendRecv => "sendrecv",
        }
    }
    /// Bus bandwidth over algorithm bandwidth for `ranks` ranks, as a fraction, as nccl-tests defines it.
    pub fn bus_factor(self, ranks: usize) -> (u64, u64) {
        let n = ranks as u64;
        match self {
            CollectiveOp::AllReduce => (2 * n.saturating_sub(1), n.max(1)),
            CollectiveOp::AllGather | CollectiveOp::ReduceScatter | CollectiveOp::AllToAll => (n.saturating_sub(1), n.max(1)),
            CollectiveOp::Broadcast | CollectiveOp::SendRecv => (1, 1),
        }
    }
}

/// How ranks exchange data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Each rank to the next, round and round.
    Ring,
    /// Reduce along a tree, then broadcast back; a chain within one node.
    Tree,
    /// NVLink multicast and in-switch reduction.
    Nvls,
    /// Every rank reads every other's buffer and sums.
    OneShot,
    /// Every rank reduces its part, then all gather the parts.
    TwoShot,
    /// Grouped sends and receives between all pairs.
    Direct,
    /// All-reduce inside each PCIe switch, across them, and back.
    Hierarchical,
    /// NVLink multicast on registered memory that every rank has at the same place (`ncclCommWindowRegister`).
    Symmetric,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 8] = [
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::Nvls,
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::Direct,
        Algorithm::Hierarchical,
        Algorithm::Symmetric,
    ];

    /// Name as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            Algorithm::Nvls => "nvls",
            Algorithm::OneShot => "one-shot",
            Algorithm::TwoShot => "two-shot",
            Algorithm::Direct => "direct",
            Algorithm::Hierarchical => "hierarchical",
            Algorithm::Symmetric => "symmetric",
        }
    }
}

/// How data is flagged as arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Eight bytes of data and eight of flag: twice the bytes, least latency.
    Ll,
    /// 120 bytes of data and 8 of flag; needs NVLink's ordering.
    Ll128,
    /// Plain data, one flag and fence a chunk.
    Simple,
    /// Peer loads and stores of an engine's kernel between barriers.
    Peer,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Protocol; 4] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple, Protocol::Peer];

    /// Name as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Ll => "ll",
            Protocol::Ll128 => "ll128",
            Protocol::Simple => "simple",
            Protocol::Peer => "peer",
        }
    }
}

/// How the collective is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Launch {
    /// One of many nodes of a captured graph, as in a decode step.
    Node,
    /// A captured graph that holds nothing else, replayed back to back, as engines' benchmarks time it.
    Graph,
    /// One launch by a host thread, which the time includes.
    Eager,
    /// Back-to-back launches of one stream, mean (nccl-tests).
    Loop,
}

impl Launch {
    /// Every mode.
    pub const ALL: [Launch; 4] = [Launch::Node, Launch::Graph, Launch::Eager, Launch::Loop];

    /// Name as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Launch::Node => "node",
            Launch::Graph => "graph",
            Launch::Eager => "eager",
            Launch::Loop => "loop",
        }
    }
}

macro_rules! by_name {
    ($type:ident, $what:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
        impl FromStr for $type {
            type Err = String;
            /// Reads a name; the error names those accepted.
            fn from_str(text: &str) -> Result<Self, String> {
                $type::ALL.into_iter().find(|value| value.name() == text).ok_or_else(|| {
                    let names: Vec<&str> = $type::ALL.iter().map(|value| value.name()).collect();
                    format!(concat!("unknown ", $what, " `{}`; accepted: {}"), text, names.join(", "))
                })
            }
        }
    };
}
by_name!(CollectiveOp, "op");
by_name!(Algorithm, "algorithm");
by_name!(Protocol, "protocol");
by_name!(Launch, "launch mode");
by_name!(Library, "library");
by_name!(GraphMode, "NCCL graph mode");

/// A collective to predict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CollectiveRequest {
    /// What is communicated.
    pub op: CollectiveOp,
    /// GPUs by ordinal, in rank order; at least one, each at most once.
    pub ranks: Vec<usize>,
    /// Size as nccl-tests counts it (see [`CollectiveOp`]).
    pub bytes: u64,
    /// Whose implementation.
    pub library: Library,
    /// How it is launched.
    pub launch: Launch,
    /// Forced algorithm.
    pub algorithm: Option<Algorithm>,
    /// Forced protocol.
    pub protocol: Option<Protocol>,
    /// Whether NCCL sees the links as it detects them or as they are.
    pub nccl_graph: GraphMode,
    /// When each rank arrives, relative to any common instant; empty means together.
    pub arrivals: Vec<Duration>,
    /// All-to-all-v: bytes from rank `i` to rank `j` at `i * ranks + j`; empty means equal parts of `bytes`.
    pub matrix: Vec<u64>,
}

impl CollectiveRequest {
    /// A collective of the first `ranks` GPUs, a node of a captured graph, by NCCL, all ranks together.
    pub fn new(op: CollectiveOp, ranks: usize, bytes: u64) -> Self {
        Self {
            op,
            ranks: (0..ranks).collect(),
            bytes,
            library: Library::Nccl,
            launch: Launch::Node,
            algorithm: None,
            protocol: None,
            nccl_graph: GraphMode::Detected,
            arrivals: Vec::new(),
            matrix: Vec::new(),
        }
    }
}
