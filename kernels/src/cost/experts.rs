//! Routed experts on one rank: weights of the experts hit, work of the pairs computed.

use super::local::{Local, LocalTensor, product, total};
use super::{CostFacts, CostShape};
use crate::routing::{RoutingLoad, RoutingQuery};
use moetwin_models::graph::SplitError;
use moetwin_models::{Axis, Dim, Op, Placement, TensorId};

/// Facts of [`Op::Experts`].
pub(super) fn experts(local: &Local<'_>, routing: &dyn RoutingLoad) -> Result<CostFacts, SplitError> {
    let (x, down) = (local.input(0), local.input(4));
    let &[local_experts, hidden, intermediate] = down.sizes() else { return Ok(CostFacts::default()) };
    let question = Question::of(local, local.node.inputs[1], x.rows())?;
    let load = question.ask(local, routing);
    let element = x.tensor.dtype.bytes();
    // Gate and up, down, and their biases: of the experts hit.
    let expert_bytes = total(local.inputs()[3..].iter().map(LocalTensor::item_bytes));
    // The kernels between them: gate and up, activation, down, weighted sum. Elements a pair.
    let activations = |per_pair: u64| product(&[load.pairs, per_pair, element]);
    let choices = [local.input(1).bytes(), local.input(2).bytes()];
    Ok(CostFacts {
        flops: product(&[2 * 3, load.pairs, hidden, intermediate]),
        weight_bytes: product(&[load.distinct, expert_bytes]),
        read_bytes: total([activations(2 * hidden + 3 * intermediate)].into_iter().chain(choices)),
        write_bytes: total([activations(hidden + 3 * intermediate), local.written()]),
        shape: CostShape::Experts {
            tokens: if question.exchanged { load.rows } else { x.rows() },
            hidden,
            intermediate,
            topk: question.topk,
            experts: question.slots(local),
            local_experts: u32::try_from(local_experts).unwrap_or(u32::MAX),
            distinct: load.distinct,
            pairs: load.pairs,
        },
        ..CostFacts::default()
    })
}

/// What a rank must know of the routing of a layer, gathered from the graph around a tensor of chosen ids.
pub(super) struct Question {
    /// Tokens that choose, over all ranks whose choices can reach this one.
    pub(super) tokens: u64,
    topk: u32,
    experts: u32,
    groups: u32,
    topk_groups: u32,
    /// Whether the ids came through a dispatch.
    exchanged: bool,
}

impl Question {
    /// Follows `ids` back to the router; `rows` are the token rows of the op that uses them.
    pub(super) fn of(local: &Local<'_>, ids: TensorId, rows: u64) -> Result<Self, SplitError> {
        let graph = local.graph;
        let mut q = Self { tokens: rows, topk: 0, experts: 0, groups: 1, topk_groups: 1, exchanged: false };
        let mut ids = ids;
        loop {
            let Some(producer) = graph.tensors[ids].producer else { return Ok(q) };
            let node = &graph.nodes[producer];
            match &node.op {
                Op::Route { router, topk } => {
                    (q.topk, q.groups, q.topk_groups) = (*topk, router.groups, router.topk_groups);
                    q.experts = match graph.tensors[node.inputs[0]].shape.get(1) {
                        Some(Dim::Fixed(n) | Dim::Experts(n)) => u32::try_from(*n).unwrap_or(u32::MAX),
                        _ => 0,
                    };
                    return Ok(q);
                }
                Op::Dispatch => {
                    q.exchanged = true;
                    q.tokens = group_rows(local, node.inputs[0])?;
                    ids = node.inputs[1];
                }
                // Gathered, cut or placed choices are still the router's.
                _ => match node.inputs.first() {
                    Some(first) => ids = *first,
                    None => return Ok(q),
                },
            }
        }
    }
    /// Physical expert slots.
    fn slots(&self, local: &Local<'_>) -> u32 {
        local.graph.deployment.placement.as_ref().map_or(self.experts, |p| p.physical_to_logical.len() as u32)
    }
    pub(super) fn query<'a>(&self, local: &Local<'a>) -> RoutingQuery<'a> {
        let deployment = &local.graph.deployment;
        RoutingQuery {
            layer: local.node.layer.unwrap_or(0),
            tokens: self.tokens,
            topk: self.topk,
            experts: self.experts,
            groups: self.groups,
            topk_groups: self.topk_groups,
            parts: deployment.axis_size(Axis::Ep),
            placement: deployment.placement.as_ref(),
        }
    }
    fn ask(&self, local: &Local<'_>, routing: &dyn RoutingLoad) -> crate::routing::Load {
        routing.load(&self.query(local), local.graph.deployment.axis_index(Axis::Ep, local.rank))
    }
}

/// Rows of a tensor over all ranks of the expert-parallel group, rows that several of them hold counted once.
pub(super) fn group_rows(local: &Local<'_>, tensor: TensorId) -> Result<u64, SplitError> {
    let graph = local.graph;
    let group = graph.deployment.group(Axis::Ep, local.rank);
    let cut = graph.tensors[tensor].layout.entries().iter().any(|(_, p)| *p == Placement::Shard(0));
    if !cut {
        return Ok(graph.local_sizes(tensor, local.rank)?.first().copied().unwrap_or(0));
    }
    let mut ranges = group.into_iter().map(|r| graph.local_shape(tensor, r).map(|s| s.first().cloned())).collect::<Result<Vec<_>, _>>()?;
    ranges.sort_by_key(|r| r.as_ref().map_or(0, |r| r.start));
    ranges.dedup();
    Ok(ranges.into_iter().flatten().map(|r| r.end - r.start).sum())
}
