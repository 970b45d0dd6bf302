//! What an op must move and compute, counted from its local shapes: no machine, no time.

use moetwin_models::{Graph, NodeId, OpClass, RankId};

/// The countable facts of one command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostFacts {
    /// Multiply-adds count two.
    pub flops: u64,
    /// Weight bytes read, distinct (experts: those hit).
    pub weight_bytes: u64,
    /// Activation and cache bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes of the communicated tensor as one rank holds it before a reduce or after a gather (nccl-tests' size), 0 for compute.
    pub message_bytes: u64,
    /// Kernels that engines launch for it.
    pub kernels: u32,
    /// The shape that cost tables are keyed by.
    pub shape: CostShape,
}

/// Table key of an op.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum CostShape {
    /// Nothing but bytes.
    #[default]
    Bytes,
    /// Dense `[m, k] x [n, k]^T`.
    Gemm {
        /// Rows.
        m: u64,
        /// Weight rows.
        n: u64,
        /// Contracted dimension.
        k: u64,
    },
    /// Routed experts on one rank.
    Experts {
        /// Token rows.
        tokens: u64,
        /// Hidden size.
        hidden: u64,
        /// Local intermediate size.
        intermediate: u64,
        /// Experts a token goes to.
        topk: u32,
        /// Experts of the layer.
        experts: u32,
        /// Experts held here.
        local_experts: u32,
        /// Distinct local experts hit.
        distinct: u64,
        /// Token-expert pairs computed here.
        pairs: u64,
    },
    /// Decode attention over a cache.
    Attention {
        /// Query heads held here.
        heads: u64,
        /// Sequences.
        batch: u64,
        /// New tokens.
        tokens: u64,
        /// Cache rows read.
        kv_rows: u64,
    },
}

/// How tokens choose experts, for costs: expected distinct experts and pairs on a rank.
pub trait RoutingLoad {
    /// `(distinct experts, token-expert pairs)` on EP rank `index` of `parts` when `tokens` tokens choose `topk` of `experts`.
    fn load(&self, layer: u16, tokens: u64, topk: u32, experts: u32, index: u32, parts: u32) -> (u64, u64);
}

/// Facts of the command that carries out `node` on `rank`.
pub fn facts(graph: &Graph, node: NodeId, rank: RankId, routing: &dyn RoutingLoad) -> CostFacts {
    let _ = (graph, node, rank, routing, OpClass::Head);
    CostFacts::default()
}
