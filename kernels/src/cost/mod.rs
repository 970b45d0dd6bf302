//! What an op must move and compute on one rank, counted from its local shapes: no machine, no time.

mod attention;
mod exchange;
mod experts;
mod launches;
mod local;

#[cfg(test)]
mod tests;

pub use crate::routing::{RoutingLoad, RoutingQuery};

use local::{Local, product};
use moetwin_models::graph::SplitError;
use moetwin_models::spec::Activation;
use moetwin_models::{Graph, NodeId, Op, RankId};

/// The countable facts of one command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostFacts {
    /// Multiply-adds count two.
    pub flops: u64,
    /// Weight bytes read, in their storage format with scales; distinct (experts: those hit).
    pub weight_bytes: u64,
    /// Activation and cache bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Size of the communicated message, 0 for compute. As nccl-tests counts it: an all-reduce's tensor, what a rank holds after an
    /// all-gather or before a reduce-scatter, what a pipeline send carries; dispatch and combine: see [`facts`].
    pub message_bytes: u64,
    /// Kernels that engines launch for it (see the table in the source of `launches`); 0 where there is nothing to do.
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
        /// Token rows: those this rank sees, or receives at least one expert's work for.
        tokens: u64,
        /// Hidden size.
        hidden: u64,
        /// Local intermediate size.
        intermediate: u64,
        /// Experts a token goes to.
        topk: u32,
        /// Experts of the layer (physical slots where the deployment has a placement).
        experts: u32,
        /// Experts held here.
        local_experts: u32,
        /// Distinct local experts hit.
        distinct: u64,
        /// Token-expert pairs computed here.
        pairs: u64,
    },
    /// Attention over a cache.
    Attention {
        /// Query heads held here.
        heads: u64,
        /// Sequences with new tokens.
        batch: u64,
        /// New tokens.
        tokens: u64,
        /// Cache rows read.
        kv_rows: u64,
    },
}

/// Facts of the command that carries out `node` on `rank`. Both must belong to `graph`.
///
/// Message of a dispatch or combine: the bytes of the rows that the rank hands to the exchange (a combine: gets back), its own share
/// included. Over NCCL every rank sends every other a full set of slots, since a captured all-to-all cannot depend on counts;
/// one-sided backends move only rows that are wanted.
///
/// Errors where the deployment cannot cut an operand.
pub fn facts(graph: &Graph, node: NodeId, rank: RankId, routing: &dyn RoutingLoad) -> Result<CostFacts, SplitError> {
    let local = Local::new(graph, node, rank)?;
    let mut facts = match &local.node.op {
        Op::Embed => embed(&local),
        Op::Linear { .. } => linear(&local),
        Op::MlaAbsorbQuery { .. } | Op::MlaExpandValue { .. } | Op::MlaExpandKv => attention::absorb(&local),
        Op::QkvPrepare { .. } | Op::MlaRope { .. } => attention::append(&local),
        Op::GqaAttention { .. } | Op::MlaDecode { .. } | Op::MlaPrefill { .. } => attention::core(&local),
        Op::LinearAttention { .. } | Op::SparseIndex { .. } => attention::other(&local),
        Op::Experts { .. } => experts::experts(&local, routing)?,
        Op::Dispatch | Op::Combine => exchange::all_to_all(&local, routing)?,
        Op::AllReduce { .. } | Op::AllGather { .. } | Op::ReduceScatter { .. } | Op::SendRecv { .. } => exchange::message(&local),
        Op::AllReduceAddRmsNorm { .. } => exchange::normed_message(&local),
        Op::Slice { dim, .. } => slice(&local, *dim),
        Op::SelectRows => CostFacts { read_bytes: local.written(), write_bytes: local.written(), ..CostFacts::default() },
        Op::RmsNorm { .. }
        | Op::AddRmsNorm { .. }
        | Op::Add
        | Op::GatedActivation { .. }
        | Op::SigmoidScale
        | Op::QkNorm { .. }
        | Op::MlaNorm { .. }
        | Op::MergeContext
        | Op::Route { .. }
        | Op::PlaceExperts
        | Op::Argmax => elementwise(&local),
    };
    if local.node.op.is_communication() || local.output_elements() > 0 {
        facts.kernels = launches::kernels(&local);
    } else {
        // A rank without rows launches nothing and reads nothing.
        facts = CostFacts { shape: facts.shape, ..CostFacts::default() };
    }
    Ok(facts)
}

/// Bytes that a node keeps of each sequence on `rank` from step to step and that no tensor of the graph holds: the state of linear attention.
/// 0 for every other op. Both must belong to `graph`.
///
/// # Errors
/// Where the deployment cannot cut an operand.
pub fn state_bytes(graph: &Graph, node: NodeId, rank: RankId) -> Result<u64, SplitError> {
    Ok(attention::state_bytes(&Local::new(graph, node, rank)?))
}

/// Every operand read once, every result written once.
fn elementwise(local: &Local<'_>) -> CostFacts {
    // Operations an element of the first operand; what they are hardly matters beside the bytes.
    let per_element = match local.node.op {
        Op::Add => 1,
        Op::GatedActivation { activation: Activation::Silu } => 3,
        Op::GatedActivation { activation: Activation::ClampedSwiglu { .. } } => 5,
        Op::RmsNorm { .. } | Op::MlaNorm { .. } | Op::QkNorm { .. } => 4,
        Op::AddRmsNorm { .. } | Op::AllReduceAddRmsNorm { .. } => 5,
        _ => 1,
    };
    CostFacts { flops: product(&[per_element, local.input_elements(0)]), ..local.streamed() }
}

fn embed(local: &Local<'_>) -> CostFacts {
    // One table row a token: the table itself is never read whole.
    let rows = local.output(0).rows();
    let table = local.input(1);
    CostFacts { weight_bytes: product(&[rows, table.weight_bytes(1, table.cols())]), ..local.streamed() }
}

fn linear(local: &Local<'_>) -> CostFacts {
    let (m, n, k) = (local.output(0).rows(), local.output(0).cols(), local.input(0).cols());
    CostFacts { flops: product(&[2, m, n, k]), shape: CostShape::Gemm { m, n, k }, ..local.streamed() }
}

/// Whole rows are a view of what is there already; columns have to be copied.
fn slice(local: &Local<'_>, dim: u8) -> CostFacts {
    let bytes = if dim == 0 { 0 } else { local.written() };
    CostFacts { read_bytes: bytes, write_bytes: bytes, ..CostFacts::default() }
}
