//! What a machine says about time that is not a link rate: launches, and the protocols of collectives.

use super::{Figure, PathClass};
use crate::time::Duration;
use serde::{Deserialize, Serialize};

/// What a launch costs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchCosts {
    /// Host time of one eager kernel launch; a host thread issues one after the other.
    #[serde(rename = "eager_kernel_ps")]
    pub eager_kernel: Figure<Duration>,
    /// Device time between two dependent nodes of a captured graph: no node takes less.
    #[serde(rename = "graph_node_ps")]
    pub graph_node: Figure<Duration>,
    /// Host time of one launch of a whole captured graph.
    #[serde(rename = "graph_launch_ps")]
    pub graph_launch: Figure<Duration>,
    /// Host time of one eager all-reduce by an engine's own kernel (Python, dispatch, copy into the shared buffer, launch), whatever its size.
    #[serde(rename = "eager_collective_ps")]
    pub eager_collective: Figure<Duration>,
    /// The same by NCCL.
    #[serde(rename = "eager_nccl_ps")]
    pub eager_nccl: Figure<Duration>,
    /// Host time of one call of NCCL from a loop without a framework, where it was measured; a machine whose loops say nothing of it has the
    /// time of a launch there.
    #[serde(rename = "nccl_call_ps", default, skip_serializing_if = "Option::is_none")]
    pub nccl_call: Option<Figure<Duration>>,
    /// What a loop of so few launches of NCCL that its start is not hidden adds to each.
    #[serde(rename = "loop_nccl_ps", default = "no_extra")]
    pub loop_nccl: Figure<Duration>,
    /// What replaying a captured graph that holds one NCCL collective and nothing else takes beyond the collective. A decode step's graph
    /// pays it at most once.
    #[serde(rename = "graph_nccl_ps", default = "no_extra")]
    pub graph_nccl: Figure<Duration>,
}

/// Host time of a call of NCCL without a framework where no machine's loops say: `moetwin calibrate` on two H200 (2026-11-30, NCCL 2.28.3),
/// all-reduces of 8 KiB.
pub(crate) const NCCL_CALL: Duration = Duration::from_ps(12_213_000);

/// Of machines whose logs were taken in long loops and inside longer graphs, and of files written before there was the figure.
fn no_extra() -> Figure<Duration> {
    Figure::assumed(Duration::ZERO, "not measured apart from the collective")
}

/// CPU families that NCCL knows a socket interconnect rate for (`graph/topo.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuFamily {
    /// Any AMD.
    Amd,
    /// Intel before Skylake, or unknown.
    IntelOther,
    /// Intel Skylake to Ice Lake.
    IntelSkylake,
    /// Intel Sapphire Rapids.
    IntelSapphireRapids,
    /// Intel Emerald Rapids and later.
    IntelEmeraldRapids,
    /// ARM servers, Grace included.
    Arm,
}

impl CpuFamily {
    /// Every family.
    pub const ALL: [CpuFamily; 6] = [
        CpuFamily::Amd,
        CpuFamily::IntelOther,
        CpuFamily::IntelSkylake,
        CpuFamily::IntelSapphireRapids,
        CpuFamily::IntelEmeraldRapids,
        CpuFamily::Arm,
    ];

    /// Name, as in machine files.
    pub fn name(self) -> &'static str {
        match self {
            CpuFamily::Amd => "amd",
            CpuFamily::IntelOther => "intel-other",
            CpuFamily::IntelSkylake => "intel-skylake",
            CpuFamily::IntelSapphireRapids => "intel-sapphire-rapids",
            CpuFamily::IntelEmeraldRapids => "intel-emerald-rapids",
            CpuFamily::Arm => "arm",
        }
    }

    /// The rate NCCL assumes between two sockets, bytes per second.
    pub fn nccl_socket_bytes_per_s(self) -> u64 {
        let gigabytes = match self {
            CpuFamily::Amd => 16,
            CpuFamily::IntelOther | CpuFamily::Arm => 6,
            CpuFamily::IntelSkylake => 10,
            CpuFamily::IntelSapphireRapids => 22,
            CpuFamily::IntelEmeraldRapids => 40,
        };
        gigabytes * 1_000_000_000
    }
}

/// Whose socket's memory holds the buffers through which GPUs without peer access exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedMemory {
    /// The socket of the GPU that receives.
    Receiver,
    /// The machine's first socket.
    FirstSocket,
}

/// What NCCL sees and is told on this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NcclFacts {
    /// CPU family, which sets the socket interconnect rate that NCCL assumes.
    pub cpu: Figure<CpuFamily>,
    /// The farthest path over which NCCL uses peer access (`NCCL_P2P_LEVEL`); by default PXB.
    pub p2p_level: Figure<PathClass>,
    /// Where the shared buffers of one process that drives all GPUs lie (a loop of nccl-tests); those of a process a GPU lie at the receiver's.
    pub one_process_memory: Figure<SharedMemory>,
}

/// Costs of a ring or tree step over one kind of transport.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingFigures {
    /// LL: one step of a small message beyond the path's latency (poll, reduce, store).
    #[serde(rename = "ll_step_ps")]
    pub ll_step: Figure<Duration>,
    /// LL: one pass of a channel's 512 threads over 4 KiB of data.
    #[serde(rename = "ll_pass_ps")]
    pub ll_pass: Figure<Duration>,
    /// LL: bytes on the wire for a thousand bytes of data: 2000, for half of a line is flags, or less where a cache on the way takes them.
    pub ll_wire_permille: Figure<u64>,
    /// LL128: one step beyond the path's latency.
    #[serde(rename = "ll128_step_ps")]
    pub ll128_step: Figure<Duration>,
    /// LL128: bytes per second of one channel.
    pub ll128_channel_bytes_per_s: Figure<u64>,
    /// Simple: one step beyond the path's latency (flag, fence, thread barrier).
    #[serde(rename = "simple_step_ps")]
    pub simple_step: Figure<Duration>,
    /// Simple: extra per doubling of the channels in use, whose fences contend.
    #[serde(rename = "simple_spread_ps")]
    pub simple_spread: Figure<Duration>,
    /// Simple: bytes per second that the threads of all channels of one GPU move, if links would let them.
    pub simple_bytes_per_s: Figure<u64>,
    /// Simple: slices a chunk is cut into; the next step starts when the first has arrived.
    pub simple_slices: Figure<u32>,
    /// The local copy or reduction that ends a ring, in thousandths of a step's transfer time.
    pub finish_permille: Figure<u64>,
}

/// Costs of the NVLink multicast (NVLS) algorithm, for 8 ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvlsFigures {
    /// Latency of one all-reduce beyond the kernel.
    #[serde(rename = "latency_ps")]
    pub latency: Figure<Duration>,
    /// Bytes per second of the all-reduced buffer in small chunks.
    pub small_bytes_per_s: Figure<u64>,
    /// The same in large chunks.
    pub bytes_per_s: Figure<u64>,
    /// Extra latency of large chunks: the fill of their pipeline.
    #[serde(rename = "fill_ps")]
    pub fill: Figure<Duration>,
    /// Latency of one all-reduce on registered (symmetric) memory, which needs no copies and no rendezvous with a proxy.
    #[serde(rename = "symmetric_latency_ps")]
    pub symmetric_latency: Figure<Duration>,
    /// Bytes per second of the all-reduced buffer on symmetric memory.
    pub symmetric_bytes_per_s: Figure<u64>,
}

/// Costs of grouped sends and receives (all-to-all, send-recv).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PointToPointFigures {
    /// LL: latency beyond the path's.
    #[serde(rename = "ll_latency_ps")]
    pub ll_latency: Figure<Duration>,
    /// Simple: latency beyond the path's.
    #[serde(rename = "simple_latency_ps")]
    pub simple_latency: Figure<Duration>,
    /// Extra latency per peer.
    #[serde(rename = "per_peer_ps")]
    pub per_peer: Figure<Duration>,
    /// Bytes per second towards one peer.
    pub peer_bytes_per_s: Figure<u64>,
    /// Share of a link that grouped sends reach, in thousandths.
    pub link_permille: Figure<u64>,
}

/// Costs of the engines' own all-reduce kernels (peer reads and writes, no NCCL).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelFigures {
    /// Start and end of the kernel and its barrier among two ranks through peer flags, beyond the path's latency.
    #[serde(rename = "barrier_ps")]
    pub barrier: Figure<Duration>,
    /// The same of the kernels that push flags with the data instead of meeting at a barrier first (SGLang's since 0.5.14, TensorRT-LLM's).
    #[serde(rename = "push_barrier_ps")]
    pub push_barrier: Figure<Duration>,
    /// Extra per further rank.
    #[serde(rename = "per_rank_ps")]
    pub per_rank: Figure<Duration>,
    /// Share of a link that the kernel's peer accesses reach, in thousandths.
    pub link_permille: Figure<u64>,
    /// Extra time of a second phase (two-shot).
    #[serde(rename = "phase_ps")]
    pub phase: Figure<Duration>,
}

/// What collectives are computed from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveFigures {
    /// What NCCL sees and is told.
    pub nccl: NcclFacts,
    /// Start and end of a NCCL kernel, whatever it does.
    #[serde(rename = "kernel_ps")]
    pub kernel: Figure<Duration>,
    /// Rings over NVLink.
    pub nvlink: RingFigures,
    /// Rings over PCIe peer access.
    pub pcie: RingFigures,
    /// Rings through shared host memory.
    pub host: RingFigures,
    /// NVLink multicast, where the fabric has it.
    pub nvls: Option<NvlsFigures>,
    /// Grouped sends and receives.
    pub point_to_point: PointToPointFigures,
    /// The engines' kernels.
    pub custom: KernelFigures,
}
