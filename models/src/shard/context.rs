//! Attention over a cache whose rows are dealt out over the ranks of decode context parallelism.

use super::fault::ShardFault;
use super::pass::Pass;
use crate::deployment::{Axis, Deployment};
use crate::dim::{Dim, Placement, Segment};
use crate::dtype::DType;
use crate::graph::{Graph, NewTensor, Node, TensorKind};
use crate::op::Op;

/// Why the caches of a graph cannot be dealt out over the deployment's `dcp` ranks, one fault a reason.
pub(super) fn faults(graph: &Graph, d: &Deployment) -> Vec<ShardFault> {
    if d.dcp == 1 {
        return Vec::new();
    }
    let group = d.tp / d.dp_attention;
    if !group.is_multiple_of(d.dcp) {
        let legal = super::fault::divisors(group);
        return vec![ShardFault::NotADivisor { what: "dcp", value: d.dcp, of: "tp / dp-attention", whole: group, legal }];
    }
    let mut faults: Vec<ShardFault> = Vec::new();
    let mut add = |fault: ShardFault| {
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    };
    for (_, node) in graph.nodes.iter() {
        match &node.op {
            Op::SparseIndex { .. } => add(ShardFault::ContextForm { what: "sparse attention, whose indexer reads every cache row" }),
            Op::MlaPrefill { .. } => add(ShardFault::ContextForm { what: "expanded latent attention, which reads every cache row" }),
            _ => {}
        }
    }
    for (_, tensor) in graph.tensors.iter().filter(|(_, t)| matches!(t.kind, TensorKind::Cache { .. })) {
        let heads = tensor.shape.get(1).and_then(kv_heads);
        if let Some(heads) = heads.filter(|h| !shares_rows(*h, group, d.dcp)) {
            let legal = super::fault::divisors(group).into_iter().filter(|dcp| shares_rows(heads, group, *dcp)).collect();
            add(ShardFault::ContextHeads { dcp: d.dcp, heads, group, legal });
        }
    }
    faults
}

/// Key-value heads of a cache row, where it has any that ranks share.
fn kv_heads(row: &Dim) -> Option<u32> {
    match row {
        Dim::Packed(segments) => segments.iter().find(|s| s.replicable).map(|s| s.units),
        _ => None,
    }
}

/// Whether each run of `dcp` ranks of a group holds the same heads.
fn shares_rows(heads: u32, group: u32, dcp: u32) -> bool {
    dcp == 1 || u64::from(group).is_multiple_of(u64::from(heads) * u64::from(dcp))
}

/// Whether a cache row cut over `parts` ranks is the same on each run of `dcp` of them.
pub(crate) fn row_is_shared(row: &Dim, parts: u32, dcp: u32) -> bool {
    match row {
        Dim::Packed(segments) => segments.iter().all(|s| s.replicable && shares_rows(s.units, parts, dcp)),
        _ => false,
    }
}

impl Pass<'_> {
    /// A query gathered over dcp, attention to the rank's own rows, and the sum over dcp scattered back to the rank's heads.
    pub(super) fn split_attention(&mut self, node: &Node, stage: u16) {
        let Some(context) = self.axes.context.clone() else { return };
        let dcp = Dim::Fixed(u64::from(self.new.deployment.dcp));
        let (rows, gathered) = (self.axes.head_rows(), context.gathered);
        let part = gathered.clone().with(Axis::Dcp, Placement::Shard(2));
        let latent = matches!(node.op, Op::MlaDecode { .. });
        let cache = self.axes.cache(if latent { &self.axes.local } else { &rows });
        let op = match node.op.clone() {
            Op::MlaDecode { kv_lora, scale, sparse_topk, .. } => Op::MlaDecode { kv_lora, scale, sparse_topk, split_context: true },
            Op::GqaAttention { head_dim, scale, window, .. } => Op::GqaAttention { head_dim, scale, window, split_context: true },
            other => other,
        };
        let add = |pass: &mut Self, op: Op, inputs, results| pass.new.add_node(op, node.layer, stage, inputs, results);

        let q = self.want(node.inputs[0], &rows);
        let whole_q = self.like(q, "gathered_dcp", gathered.clone());
        let mut operands = add(self, Op::AllGather { axis: Axis::Dcp, dim: 1 }, vec![q], vec![whole_q]);
        operands.push(self.want(node.inputs[1], &cache));
        for &weight in &node.inputs[2..] {
            operands.push(self.want(weight, &context.weight));
        }
        let old = &self.old.tensors[node.outputs[0]];
        let named = |suffix: &str, shape, dtype, layout| NewTensor {
            layout,
            ..NewTensor::activation(format!("{}{suffix}", old.name), shape, dtype)
        };
        let with_parts = |dim: &Dim| vec![old.shape[0].clone(), dim.clone(), dcp.clone()];
        let lse_shape = with_parts(&one_each(&old.shape[1]));
        let own = named(".part", with_parts(&old.shape[1]), old.dtype, part.clone());
        let lse = named(".lse", lse_shape.clone(), DType::F32, part.clone());
        let all_lse = named(".lse_gathered_dcp", lse_shape, DType::F32, gathered.clone());
        let weighed = named(".weighed", old.shape.clone(), old.dtype, gathered.with(Axis::Dcp, Placement::Partial));
        let result = named("", old.shape.clone(), old.dtype, rows);

        let parts = add(self, op, operands, vec![own, lse]);
        let lse = add(self, Op::AllGather { axis: Axis::Dcp, dim: 2 }, vec![parts[1]], vec![all_lse]);
        let summand = add(self, Op::MergeContext, vec![parts[0], lse[0]], vec![weighed]);
        let out = add(self, Op::ReduceScatter { axis: Axis::Dcp, dim: 1 }, summand, vec![result]);
        self.record(node, &out);
    }
}

/// One element for each unit of a packed dimension: a number a head.
fn one_each(dim: &Dim) -> Dim {
    match dim {
        Dim::Packed(segments) => Dim::Packed(segments.iter().map(|s| Segment { width: 1, ..*s }).collect()),
        other => other.clone(),
    }
}
