//! Figures of launches and protocols that the built-in machines share, by generation and transport.

use super::parts::{GB, Sourced, ns};
use crate::machine::{
    CollectiveFigures, CpuFamily, Figure, KernelFigures, LaunchCosts, NcclFacts, NvlsFigures, Origin, PathClass, PointToPointFigures,
    RingFigures, SharedMemory,
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
    /// What the loops of the machine's logs add to each launch.
    pub(super) loops: u64,
    /// Groups that are not of the machine's own tables.
    pub(super) lent: Lent,
}

/// Which groups of figures a machine has from elsewhere, and where the ways through host memory are from if that can be said.
#[derive(Default)]
pub(super) struct Lent {
    pub(super) nvlink: bool,
    pub(super) pcie: bool,
    pub(super) host: bool,
    pub(super) nvls: bool,
    pub(super) message: bool,
    pub(super) custom: bool,
    pub(super) launch: bool,
    pub(super) host_from: Option<Sourced>,
}

/// The source of what no table of the machine speaks of.
const OF_LIKE_MACHINES: Sourced = Sourced { origin: Origin::Assumed, source: "of like machines: no table of this one speaks of it" };

/// What a fit to a machine's tables gave; what its tables do not speak of stays as it is for like machines.
pub(super) struct Fitted {
    pub(super) kernel: u64,
    /// What the loops of the machine's logs add to each launch.
    pub(super) loops: u64,
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
        self.loops = fit.loops;
        let host_from = self.lent.host_from.take();
        self.lent = Lent {
            nvlink: fit.nvlink.is_none(),
            pcie: fit.pcie.is_none(),
            host: fit.host.is_none(),
            nvls: fit.nvls.is_none(),
            message: fit.message.is_none(),
            custom: fit.custom.is_none(),
            launch: fit.launch.is_none(),
            host_from,
        };
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
        let lent = |is_lent: bool| if is_lent { &OF_LIKE_MACHINES } else { from };
        let launch = launch(self.launch, self.loops, lent(self.lent.launch), from);
        let multicast = lent(self.lent.nvls);
        let nvls = self.nvls.map(|[latency, small, large, fill, symmetric, symmetric_rate]| NvlsFigures {
            latency: multicast.figure(ns(latency)),
            small_bytes_per_s: multicast.figure(small * GB),
            bytes_per_s: multicast.figure(large * GB),
            fill: multicast.figure(ns(fill)),
            symmetric_latency: multicast.figure(ns(symmetric)),
            symmetric_bytes_per_s: multicast.figure(symmetric_rate * GB),
        });
        let [ll_latency, simple_latency, per_peer, peer, link_permille] = self.message;
        let message = lent(self.lent.message);
        let point_to_point = PointToPointFigures {
            ll_latency: message.figure(ns(ll_latency)),
            simple_latency: message.figure(ns(simple_latency)),
            per_peer: message.figure(ns(per_peer)),
            peer_bytes_per_s: message.figure(peer * GB),
            link_permille: message.figure(link_permille),
        };
        let [barrier, per_rank, custom_permille, phase] = self.custom;
        let [own, push] = self.barriers;
        let custom = lent(self.lent.custom);
        let barrier = own.unwrap_or_else(|| custom.figure(ns(barrier)));
        let push_barrier = push.unwrap_or_else(|| barrier.clone());
        let figures = CollectiveFigures {
            nccl: NcclFacts { cpu: self.cpu, p2p_level: self.p2p_level, one_process_memory: self.one_process },
            kernel: from.figure(ns(self.kernel)),
            nvlink: self.nvlink.with(lent(self.lent.nvlink)),
            pcie: self.pcie.with(lent(self.lent.pcie)),
            host: self.host.with(self.lent.host_from.as_ref().unwrap_or(lent(self.lent.host))),
            nvls,
            point_to_point,
            custom: KernelFigures {
                barrier,
                push_barrier,
                per_rank: custom.figure(ns(per_rank)),
                link_permille: custom.figure(custom_permille),
                phase: custom.figure(ns(phase)),
            },
        };
        (launch, figures)
    }
}

/// Launch costs in nanoseconds: of a kernel, of an engine's all-reduce, of one by NCCL. The node floor is 1.2 us on two H200 and 1.3 us
/// in published megakernel work; no other GPU's is published.
fn launch([kernel, own, nccl]: [u64; 3], loops: u64, hosts: &Sourced, from: &Sourced) -> LaunchCosts {
    LaunchCosts {
        eager_kernel: Figure::assumed(ns(kernel), "a CUDA launch from a busy host thread"),
        graph_node: Figure::measured(ns(1200), "1.2 us a kernel node in a captured graph, two H200"),
        graph_launch: Figure::assumed(ns(8000), "one cudaGraphLaunch of a step's graph"),
        eager_collective: hosts.figure(ns(own)),
        eager_nccl: hosts.figure(ns(nccl)),
        nccl_call: None,
        loop_nccl: match loops {
            0 => Figure::assumed(ns(0), "loops of many launches"),
            more => Figure { value: ns(more), origin: from.origin, source: format!("loops of five launches; {}", from.source) },
        },
        graph_nccl: Figure::assumed(ns(0), "not measured apart from the collective"),
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

/// Barriers of a machine whose tables show a kernel that pushes: one that meets its peers before and after it reads takes 2.7 us longer, as
/// vLLM's on A100 and B200 beside SGLang's on H200.
pub(super) fn pulls_and_pushes(pulls: Duration, pushes: Duration, tables: &'static str) -> [Option<Figure<Duration>>; 2] {
    let longer = Figure::assumed(pulls, "SGLang's pushing kernel, longer by the 2.7 us that vLLM's reading one takes on NVLink");
    [Some(longer), Some(Figure::measured(pushes, tables))]
}
