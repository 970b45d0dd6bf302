//! What every expansion needs to know, and the cost of one ring step by protocol.

use super::nccl::{NcclGraph, hop};
use super::plan::{Flow, Plan};
use super::{CollectiveRequest, Launch, Library, Protocol};
use crate::machine::{Figure, Machine, PathClass, RingFigures, SharedMemory};
use crate::network::{Access, Network, Route, RouteError};
use crate::time::{Duration, Time};

/// Data that one pass of an LL channel's 512 threads moves, 8 bytes each.
pub(super) const LL_PASS_BYTES: u64 = 4096;
/// Message size per Simple channel below which NCCL opens fewer: 512 threads times 64 bytes.
const SIMPLE_CHANNEL_BYTES: f64 = 32768.0;
/// Data bytes of a 128-byte LL128 line.
const LL128_DATA: u64 = 120;

/// The context of one expansion.
pub(super) struct Builder<'a> {
    pub(super) network: &'a Network<'a>,
    pub(super) request: &'a CollectiveRequest,
    pub(super) graph: &'a NcclGraph,
    /// When each rank's kernel may send its first byte.
    pub(super) begin: Vec<Time>,
}

/// One step of a ring or tree: when the next may follow, and what it puts on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepCost {
    /// From the last byte (or slice) leaving to the receiver's next step, without the path's latency.
    pub(super) overhead: Duration,
    pub(super) flow: Flow,
    /// Equal pieces the step's data is cut into, each followed by the next step on its own.
    pub(super) slices: u32,
    /// Whether a receiver passes each line on as it comes, instead of whole slices.
    pub(super) by_line: bool,
    /// The local work after the last receive, in thousandths of a step's transfer.
    pub(super) finish_permille: u64,
}

impl Builder<'_> {
    pub(super) fn machine(&self) -> &Machine {
        self.network.machine()
    }
    pub(super) fn ranks(&self) -> usize {
        self.request.ranks.len()
    }
    pub(super) fn ordinal(&self, rank: usize) -> usize {
        self.request.ranks[rank]
    }

    /// NCCL's route between two ranks of the request.
    pub(super) fn nccl_route(&self, plan: &mut Plan, from: usize, to: usize) -> Result<u32, RouteError> {
        // A loop of nccl-tests is one process that drives all GPUs.
        let memory = match self.request.launch {
            Launch::Loop => self.machine().collectives.nccl.one_process_memory.value,
            Launch::Node | Launch::Graph | Launch::Eager => SharedMemory::Receiver,
        };
        plan.route(from, to, || hop(self.network, self.ordinal(from), self.ordinal(to), memory))
    }

    /// The figures for a ring whose slowest hop is this route.
    pub(super) fn figures(&self, route: &Route) -> &RingFigures {
        let figures = &self.machine().collectives;
        match (route.class, route.access) {
            (_, Access::Bounce | Access::BounceFirst) => &figures.host,
            (PathClass::Nvl, _) => &figures.nvlink,
            _ => &figures.pcie,
        }
    }

    /// The barrier of the library's own kernel.
    pub(super) fn barrier(&self) -> &Figure<Duration> {
        let custom = &self.machine().collectives.custom;
        match self.request.library {
            Library::Sglang | Library::Trtllm => &custom.push_barrier,
            Library::Nccl | Library::Vllm | Library::OneShot | Library::TwoShot => &custom.barrier,
        }
    }

    /// The cost of passing on `bytes` over `channels` channels.
    ///
    /// `message_bytes` is the whole collective's size, by which NCCL opens Simple channels.
    pub(super) fn step(&self, figures: &RingFigures, protocol: Protocol, bytes: u64, message_bytes: u64, channels: u32) -> StepCost {
        let channels = u64::from(channels.max(1));
        match protocol {
            Protocol::Ll => {
                // Lines carry their own flags and are passed on as they come: a step takes the longest of its latency, its bytes on the
                // wire, and the passes of the channels' threads.
                let wire_bytes = wire(bytes, figures.ll_wire_permille.value);
                let passes = figures.ll_pass.value.scaled(bytes, channels * LL_PASS_BYTES);
                StepCost {
                    overhead: figures.ll_step.value,
                    flow: Flow { wire_bytes, cap: rate(wire_bytes, passes) },
                    slices: 1,
                    by_line: true,
                    finish_permille: figures.finish_permille.value,
                }
            }
            Protocol::Ll128 => {
                let cap = figures.ll128_channel_bytes_per_s.value.saturating_mul(channels);
                let wire_bytes = bytes.div_ceil(LL128_DATA) * 128;
                StepCost {
                    overhead: figures.ll128_step.value,
                    flow: Flow { wire_bytes, cap },
                    slices: 1,
                    by_line: true,
                    finish_permille: figures.finish_permille.value,
                }
            }
            Protocol::Simple | Protocol::Peer => {
                let open = (message_bytes as f64 / SIMPLE_CHANNEL_BYTES).clamp(1.0, channels as f64);
                let spread = Duration::from_seconds(figures.simple_spread.value.as_seconds() * libm::log2(open));
                StepCost {
                    overhead: figures.simple_step.value + spread,
                    flow: Flow { wire_bytes: bytes, cap: figures.simple_bytes_per_s.value },
                    slices: figures.simple_slices.value.max(1),
                    by_line: false,
                    finish_permille: figures.finish_permille.value,
                }
            }
        }
    }
}

/// Bytes on the wire of `bytes` of data.
pub(super) fn wire(bytes: u64, permille: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(permille) / 1000).unwrap_or(u64::MAX)
}

/// `bytes` every `time`, in bytes per second.
pub(super) fn rate(bytes: u64, time: Duration) -> u64 {
    if time == Duration::ZERO {
        return u64::MAX;
    }
    let rate = u128::from(bytes) * 1_000_000_000_000 / u128::from(time.as_ps());
    u64::try_from(rate).unwrap_or(u64::MAX).max(1)
}
