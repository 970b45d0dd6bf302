//! The shard pass: from the graph of one rank to the graph that every rank of a deployment runs.
//!
//! It gives every weight, cache and activation a layout, inserts exactly the collectives those layouts need, and assigns pipeline stages.
//!
//! | deployment | rule |
//! | --- | --- |
//! | tensor parallel | The vocabulary, heads and intermediate columns are cut; compressing MLA projections, norms and routers are replicated. Row-parallel results are partial and all-reduced before the residual sum. |
//! | experts over `ep` | Without an all-to-all every rank sees every token, and the sum of its experts' results (with the shared expert's, cut over all ranks) is one all-reduce. |
//! | all-to-all | From the first MoE layer on, the residual stream is cut by tokens: reduce-scatter after attention, router and shared expert (replicated) on own rows, dispatch, experts, combine; the normed rows are gathered before the next attention. |
//! | data-parallel attention | Tokens and caches are cut by sequences, the embedding is replicated; MLPs and experts without all-to-all work on gathered rows, whose sum is reduce-scattered (one rank a group) or all-reduced and sliced. The head gathers rows, then logits. |
//! | decode context parallel | Cache rows are dealt out over `dcp` ranks that would hold the same ones. A query is gathered over them, each rank attends to its own rows, and the results, weighted by their sums of exponentials, are reduce-scattered back to heads. |
//! | pipeline | Stage `s` has contiguous layers, the first `layers % pp` stages one more; embedding first, head last. The residual sum is the only value sent. |
//! | placement | Chosen experts become slots ([`Op::PlaceExperts`](crate::Op::PlaceExperts)) before they are used. |
//! | replicas | Nothing: they never talk. |

mod context;
mod convert;
mod fault;
mod pass;
mod split;
mod stages;

pub(crate) use context::row_is_shared;
pub(crate) use fault::deployment_faults;
pub use fault::{Reason, ShardError, ShardFault, SplitFault};
pub(crate) use split::faults as split_faults;
pub use stages::stage_layers;

use crate::deployment::{Axis, Deployment};
use crate::dim::{Layout, Placement};
use crate::graph::Graph;
use crate::verify::verify;

/// Spreads an unsharded graph (from [`crate::build::forward`]) over a deployment.
///
/// Errors list every dimension that the deployment cannot cut and every contradiction in the deployment.
pub fn shard(graph: &Graph, deployment: &Deployment) -> Result<Graph, ShardError> {
    let mut faults = unsharded_faults(graph);
    if faults.is_empty() {
        faults = deployment_faults(graph, deployment);
    }
    if !faults.is_empty() {
        return Err(ShardError { faults });
    }
    pass::Pass::new(graph, deployment).run()
}

/// Why a graph is not one that verifies on one rank.
fn unsharded_faults(graph: &Graph) -> Vec<ShardFault> {
    let mut faults: Vec<ShardFault> = verify(graph).err().into_iter().flatten().map(|f| ShardFault::Graph(f.to_string())).collect();
    let single = Deployment { kv_dtype: graph.deployment.kv_dtype, ..Deployment::single() };
    if faults.is_empty() && (graph.deployment != single || graph.nodes.iter().any(|(_, n)| n.op.is_communication())) {
        faults.push(ShardFault::Graph("it is spread over ranks already".into()));
    }
    faults
}

/// The layouts that recur in a deployment.
#[derive(Clone, Debug)]
pub(crate) struct Axes {
    /// Ranks that share attention heads: [`Axis::Tp`], or [`Axis::AttnTp`] under data-parallel attention; `None` when it is one rank.
    pub(crate) heads: Option<Axis>,
    /// Token rows that an attention group works on: whole, or cut by sequences.
    pub(crate) local: Layout,
    /// Token rows cut over all ranks of the stage.
    pub(crate) scattered: Layout,
    /// Whether experts are reached through an all-to-all.
    pub(crate) all_to_all: bool,
    /// Decode context parallelism: heads of a query gathered over [`Axis::Dcp`] are cut over [`Axis::HeadTp`], where that has ranks.
    pub(crate) context: Option<ContextAxes>,
}

/// Layouts under decode context parallelism.
#[derive(Clone, Debug)]
pub(crate) struct ContextAxes {
    /// An activation whose dimension 1 is cut by the heads of a whole dcp group.
    pub(crate) gathered: Layout,
    /// A weight cut by the same heads.
    pub(crate) weight: Layout,
}

impl Axes {
    pub(crate) fn of(d: &Deployment) -> Self {
        let axis = if d.dp_attention > 1 { Axis::AttnTp } else { Axis::Tp };
        let heads = (d.axis_size(axis) > 1).then_some(axis);
        let local = if d.dp_attention > 1 { Layout::shard(Axis::AttnDp, 0) } else { Layout::replicated() };
        let scattered = heads.map_or(local.clone(), |a| local.clone().with(a, Placement::Shard(0)));
        let heads_of = |layout: Layout, dim: u8| match d.axis_size(Axis::HeadTp) {
            1 => layout,
            _ => layout.with(Axis::HeadTp, Placement::Shard(dim)),
        };
        let context = (d.dcp > 1).then(|| ContextAxes { gathered: heads_of(local.clone(), 1), weight: heads_of(Layout::replicated(), 0) });
        Self { heads, local, scattered, all_to_all: d.a2a != crate::AllToAll::None && d.ep > 1, context }
    }
    /// A weight whose dimension `dim` is cut by heads.
    pub(crate) fn head_weight(&self, dim: u8) -> Layout {
        self.heads.map_or(Layout::replicated(), |a| Layout::shard(a, dim))
    }
    /// An activation of an attention group whose dimension 1 is cut by heads.
    pub(crate) fn head_rows(&self) -> Layout {
        self.heads.map_or(self.local.clone(), |a| self.local.clone().with(a, Placement::Shard(1)))
    }
    /// A cache whose rows lie like those of `tokens`, dealt out over dcp.
    pub(crate) fn cache(&self, tokens: &Layout) -> Layout {
        match self.context {
            Some(_) => tokens.clone().with(Axis::Dcp, Placement::Shard(0)),
            None => tokens.clone(),
        }
    }
    /// An activation of an attention group that is still to be summed over its heads.
    pub(crate) fn head_partial(&self) -> Layout {
        self.heads.map_or(self.local.clone(), |a| self.local.clone().with(a, Placement::Partial))
    }
}
