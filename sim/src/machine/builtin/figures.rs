//! Figures of launches and protocols that the built-in machines share, by generation and transport.

use super::parts::{GB, Sourced, ns};
use crate::machine::{
    CollectiveFigures, CpuFamily, Figure, KernelFigures, LaunchCosts, NcclFacts, NvlsFigures, PathClass, PointToPointFigures, RingFigures,
    SharedMemory,
};
use crate::time::Duration;

/// The figures of a ring, in nanoseconds and 10^9 bytes per second.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    pub(super) ll_step: u64,
    pub(super) ll_pass: u64,
    pub(super) ll_wire: u64,
    pub(super) ll128_step: u64,
    pub(super) ll128_channel: u64,
    pub(super) simple_step: u64,
    pub(super) spread: u64,
    pub(super) simple_rate: u64,
    pub(super) slices: u64,
    pub(super) finish_permille: u64,
}

impl Ring {
    /// LL step, pass and wire thousandths; LL128 step and channel rate; Simple step, spread, rate and slices; finish thousandths.
    pub(super) const fn new(ll: [u64; 3], ll128: [u64; 2], simple: [u64; 4], finish_permille: u64) -> Self {
        let [ll_step, ll_pass, ll_wire] = ll;
        let [ll128_step, ll128_channel] = ll128;
        let [simple_step, spread, simple_rate, slices] = simple;
        Self { ll_step, ll_pass, ll_wire, ll128_step, ll128_channel, simple_step, spread, simple_rate, slices, finish_permille }
    }
    pub(super) fn with(&self, from: &Sourced) -> RingFigures {
        RingFigures {
            ll_step: from.figure(ns(self.ll_step)),
            ll_pass: from.figure(ns(self.ll_pass)),
            ll_wire_permille: from.figure(self.ll_wire),
            ll128_step: from.figure(ns(self.ll128_step)),
            ll128_channel_bytes_per_s: from.figure(self.ll128_channel * GB),
            simple_step: from.figure(ns(self.simple_step)),
            simple_spread: from.figure(ns(self.spread)),
            simple_bytes_per_s: from.figure(self.simple_rate * GB),
            simple_slices: from.figure(u32::try_from(self.slices).unwrap_or(1)),
            finish_permille: from.figure(self.finish_permille),
        }
    }
}

/// Everything a machine's collectives are computed from, with one source for the group that was fitted together.
pub(super) struct Collectives {
    pub(super) from: Sourced,
    /// Host time of a kernel, of an engine's all-reduce, of one by NCCL.
    pub(super) launch: [u64; 3],
    pub(super) cpu: Figure<CpuFamily>,
    pub(super) p2p_level: Figure<PathClass>,
    pub(super) one_process: Figure<SharedMemory>,
    pub(super) kernel: u64,
    pub(super) nvlink: Ring,
    pub(super) pcie: Ring,
    pub(super) host: Ring,
    /// Latency, small and large rate, fill, latency and rate on symmetric memory.
    pub(super) nvls: Option<[u64; 6]>,
    /// LL and Simple latency, extra per peer, rate to a peer, thousandths of a link.
    pub(super) message: [u64; 5],
    /// Barrier of two, extra per rank, thousandths of a link, extra of a second phase.
    pub(super) custom: [u64; 4],
    /// The barrier, where it is not of the group's source; that of kernels that push, where it is another.
    pub(super) barriers: [Option<Figure<Duration>>; 2],
}

/// What a fit to a machine's tables gave; what its tables do not speak of stays as it is for like machines.
pub(super) struct Fitted {
    pub(super) kernel: u64,
    pub(super) nvlink: Option<Ring>,
    pub(super) pcie: Option<Ring>,
    pub(super) host: Option<Ring>,
    pub(super) nvls: Option<[u64; 6]>,
    pub(super) message: Option<[u64; 5]>,
    pub(super) custom: Option<[u64; 4]>,
    pub(super) launch: Option<[u64; 3]>,
}

impl Collectives {
    /// With the figures of a fit.
    pub(super) fn fitted(mut self, fit: &Fitted) -> Self {
        self.kernel = fit.kernel;
        self.nvlink = fit.nvlink.unwrap_or(self.nvlink);
        self.pcie = fit.pcie.unwrap_or(self.pcie);
        self.host = fit.host.unwrap_or(self.host);
        self.nvls = fit.nvls.or(self.nvls);
        self.message = fit.message.unwrap_or(self.message);
        self.custom = fit.custom.unwrap_or(self.custom);
        self.launch = fit.launch.unwrap_or(self.launch);
        self
    }
    pub(super) fn build(self) -> (LaunchCosts, CollectiveFigures) {
        let from = &self.from;
        let launch = launch(self.launch, from);
        let nvls = self.nvls.map(|[latency, small, large, fill, symmetric, symmetric_rate]| NvlsFigures {
            latency: from.figure(ns(latency)),
            small_bytes_per_s: from.figure(small * GB),
            bytes_per_s: from.figure(large * GB),
            fill: from.figure(ns(fill)),
            symmetric_latency: from.figure(ns(symmetric)),
            symmetric_bytes_per_s: from.figure(symmetric_rate * GB),
        });
        let [ll_latency, simple_latency, per_peer, peer, link_permille] = self.message;
        let point_to_point = PointToPointFigures {
            ll_latency: from.figure(ns(ll_latency)),
            simple_latency: from.figure(ns(simple_latency)),
            per_peer: from.figure(ns(per_peer)),
            peer_bytes_per_s: from.figure(peer * GB),
            link_permille: from.figure(link_permille),
        };
        let [barrier, per_rank, custom_permille, phase] = self.custom;
        let [own, push] = self.barriers;
        let barrier = own.unwrap_or_else(|| from.figure(ns(barrier)));
        let push_barrier = push.unwrap_or_else(|| barrier.clone());
        let figures = CollectiveFigures {
            nccl: NcclFacts { cpu: self.cpu, p2p_level: self.p2p_level, one_process_memory: self.one_process },
            kernel: from.figure(ns(self.kernel)),
            nvlink: self.nvlink.with(from),
            pcie: self.pcie.with(from),
            host: self.host.with(from),
            nvls,
            point_to_point,
            custom: KernelFigures {
                barrier,
                push_barrier,
                per_rank: from.figure(ns(per_rank)),
                link_permille: from.figure(custom_permille),
                phase: from.figure(ns(phase)),
            },
        };
        (launch, figures)
    }
}

/// Launch costs in nanoseconds: of a kernel, of an engine's all-reduce, of one by NCCL. The node floor is 1.2 us on two H200 and 1.3 us
/// in published megakernel work; no other GPU's is published.
fn launch([kernel, own, nccl]: [u64; 3], from: &Sourced) -> LaunchCosts {
    LaunchCosts {
        eager_kernel: Figure::assumed(ns(kernel), "a CUDA launch from a busy host thread"),
        graph_node: Figure::measured(ns(1200), "1.2 us a kernel node in a captured graph, two H200"),
        graph_launch: Figure::assumed(ns(8000), "one cudaGraphLaunch of a step's graph"),
        eager_collective: from.figure(ns(own)),
        eager_nccl: from.figure(ns(nccl)),
    }
}

/// NCCL's own default for peer access.
pub(super) fn default_level() -> Figure<PathClass> {
    Figure::spec(PathClass::Pxb, "NCCL 2.30 graph/paths.cc: peer access up to PXB unless NCCL_P2P_LEVEL says otherwise")
}

/// A process's buffers lie where its threads first touch them.
pub(super) fn at_receiver() -> Figure<SharedMemory> {
    Figure::assumed(SharedMemory::Receiver, "a buffer is first touched by the thread of its GPU")
}
