//! Ids, producers, order, names, operand counts and kinds, cache chains, sizes.

use super::{Check, Entity, Rule};
use crate::WeightFormat;
use crate::dim::Dim;
use crate::graph::{Tensor, TensorKind};
use crate::ids::TensorId;
use crate::op::Op;
use crate::shard::deployment_faults;
use std::collections::HashSet;

/// Most bytes of a tensor; four such still add up without overflow.
const MOST_BYTES: u128 = 1 << 60;

/// What an operand must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Value,
    TokenIds,
    Positions,
    Weight,
    Cache,
}

impl Kind {
    fn accepts(self, kind: &TensorKind) -> bool {
        match kind {
            TensorKind::Activation => self == Kind::Value,
            TensorKind::TokenIds => self == Kind::TokenIds,
            TensorKind::Positions => self == Kind::Positions,
            TensorKind::Weight(_) => self == Kind::Weight,
            TensorKind::Cache { .. } | TensorKind::CacheUpdate { .. } => self == Kind::Cache,
        }
    }
    fn name(self) -> &'static str {
        match self {
            Kind::Value => "a computed value",
            Kind::TokenIds => "the token ids",
            Kind::Positions => "the positions",
            Kind::Weight => "a weight",
            Kind::Cache => "a cache",
        }
    }
}

/// Kinds of operands, how many of them there may be, how many results.
struct Signature {
    operands: &'static [Kind],
    counts: &'static [usize],
    results: usize,
}

fn signature(op: &Op) -> Signature {
    use Kind::{Cache as C, Positions as P, TokenIds as I, Value as V, Weight as W};
    let (operands, counts, results): (&'static [Kind], &'static [usize], usize) = match op {
        Op::Embed => (&[I, W], &[2], 1),
        Op::RmsNorm { .. } => (&[V, W], &[2], 1),
        Op::AddRmsNorm { .. } | Op::AllReduceAddRmsNorm { .. } => (&[V, V, W], &[3], 2),
        Op::Add | Op::SigmoidScale | Op::MergeContext => (&[V, V], &[2], 1),
        Op::Linear { .. } => (&[V, W, W], &[2, 3], 1),
        Op::QkNorm { .. } => (&[V, W, W], &[3], 1),
        Op::QkvPrepare { qk_norm_eps: None, .. } => (&[V, P, C], &[3], 2),
        Op::QkvPrepare { .. } => (&[V, P, C, W, W], &[5], 2),
        Op::GqaAttention { split_context, .. } => (&[V, C, W], &[2, 3], if *split_context { 2 } else { 1 }),
        Op::MlaNorm { q_lora: Some(_), .. } => (&[V, W, W], &[3], 2),
        Op::MlaNorm { .. } | Op::MlaAbsorbQuery { .. } | Op::MlaExpandValue { .. } => (&[V, W], &[2], 1),
        Op::MlaRope { .. } => (&[V, V, P, C], &[4], 2),
        Op::MlaDecode { sparse_topk: None, split_context, .. } => (&[V, C], &[2], if *split_context { 2 } else { 1 }),
        Op::SparseIndex { .. } => (&[V, C], &[2], 1),
        Op::MlaDecode { .. } => (&[V, C, V], &[3], 1),
        Op::MlaExpandKv => (&[C, W], &[2], 1),
        Op::MlaPrefill { .. } => (&[V, V, C], &[3], 1),
        Op::Route { router, .. } if router.correction_bias => (&[V, W], &[2], 2),
        Op::Route { .. } => (&[V], &[1], 2),
        Op::Experts { .. } => (&[V, V, V, W, W, W, W], &[5, 7], 1),
        Op::Dispatch => (&[V, V, V], &[3], 3),
        Op::LinearAttention { .. } => (&[V, V, W], &[3], 1),
        Op::GatedActivation { .. } | Op::PlaceExperts | Op::Combine | Op::SelectRows | Op::Argmax => (&[V], &[1], 1),
        Op::AllReduce { .. } | Op::AllGather { .. } | Op::ReduceScatter { .. } | Op::Slice { .. } | Op::SendRecv { .. } => (&[V], &[1], 1),
    };
    Signature { operands, counts, results }
}

/// The result that is an updated cache, and the operand it updates.
fn cache_result(op: &Op) -> Option<(usize, usize)> {
    match op {
        Op::QkvPrepare { .. } => Some((1, 2)),
        Op::MlaRope { .. } => Some((1, 3)),
        _ => None,
    }
}

impl Check<'_> {
    pub(super) fn deployment(&mut self) {
        for fault in deployment_faults(self.graph, &self.graph.deployment) {
            self.add(Rule::Deployment, Entity::Graph, fault.to_string());
        }
    }

    pub(super) fn ids(&mut self) {
        let graph = self.graph;
        let exists = |t: &TensorId| graph.tensors.get(*t).is_some();
        for (id, node) in graph.nodes.iter() {
            for t in node.inputs.iter().chain(&node.outputs).filter(|t| !exists(t)) {
                self.node_fault(Rule::Ids, id, format!("there is no {t}"));
            }
        }
        for (id, tensor) in graph.tensors.iter() {
            if let Some(n) = tensor.producer.filter(|n| graph.nodes.get(*n).is_none()) {
                self.tensor_fault(Rule::Ids, id, format!("its producer {n} does not exist"));
            }
            if let TensorKind::CacheUpdate { of } = tensor.kind
                && of.0 >= id.0
            {
                self.tensor_fault(Rule::Ids, id, format!("it updates {of}, which does not come before it"));
            }
        }
        for (name, t) in graph.outputs.iter().filter(|(_, t)| !exists(t)) {
            self.add(Rule::Ids, Entity::Output(name.clone()), format!("there is no {t}"));
        }
    }

    pub(super) fn producers(&mut self) {
        let graph = self.graph;
        let mut written = vec![false; graph.tensors.len()];
        for (id, node) in graph.nodes.iter() {
            for &t in &node.outputs {
                if graph.tensors[t].producer != Some(id) || std::mem::replace(&mut written[t.0 as usize], true) {
                    self.node_fault(Rule::Producer, id, format!("{t} is a result of this node, but not of it alone"));
                }
            }
            for &t in &node.inputs {
                if graph.tensors[t].producer.is_some_and(|p| p >= id) {
                    self.node_fault(Rule::Order, id, format!("{t} is computed by this node or a later one"));
                }
            }
        }
        for (id, tensor) in graph.tensors.iter() {
            let computed = matches!(tensor.kind, TensorKind::Activation | TensorKind::CacheUpdate { .. });
            if tensor.producer.is_some() != computed || (computed && !written[id.0 as usize]) {
                self.tensor_fault(Rule::Producer, id, "computed tensors have a node that lists them as a result, sources have none");
            }
        }
    }

    pub(super) fn names(&mut self) {
        let graph = self.graph;
        let mut seen = HashSet::with_capacity(graph.tensors.len());
        for (id, tensor) in graph.tensors.iter() {
            if !seen.insert(tensor.name.as_str()) {
                self.tensor_fault(Rule::Names, id, format!("{} is the name of an earlier tensor", tensor.name));
            }
        }
        seen.clear();
        for (name, _) in &graph.outputs {
            if !seen.insert(name) {
                self.add(Rule::Names, Entity::Output(name.clone()), "another output has this name");
            }
        }
    }

    pub(super) fn operands(&mut self) {
        let graph = self.graph;
        for (id, node) in graph.nodes.iter() {
            let s = signature(&node.op);
            if !s.counts.contains(&node.inputs.len()) {
                let counts: Vec<String> = s.counts.iter().map(ToString::to_string).collect();
                self.node_fault(Rule::Operands, id, format!("it has {} operands, not {}", node.inputs.len(), counts.join(" or ")));
            }
            for (i, (&t, kind)) in node.inputs.iter().zip(s.operands).enumerate() {
                if !kind.accepts(&graph.tensors[t].kind) {
                    self.node_fault(Rule::Operands, id, format!("operand {i} ({t}) must be {}", kind.name()));
                }
            }
            if node.outputs.len() != s.results {
                self.node_fault(Rule::Operands, id, format!("it has {} results, not {}", node.outputs.len(), s.results));
            }
            for (i, &t) in node.outputs.iter().enumerate() {
                let updates = cache_result(&node.op).filter(|(result, _)| *result == i).and_then(|(_, operand)| node.inputs.get(operand));
                let wanted = updates.map_or(TensorKind::Activation, |of| TensorKind::CacheUpdate { of: *of });
                if graph.tensors[t].kind != wanted {
                    self.node_fault(Rule::Operands, id, format!("result {i} ({t}) must be {wanted:?}"));
                }
            }
        }
    }

    /// Each storage has one chain of values, and only the newest is read.
    pub(super) fn caches(&mut self) {
        let graph = self.graph;
        let mut newest: Vec<TensorId> = graph.tensors.ids().collect();
        for (id, node) in graph.nodes.iter() {
            for &t in &node.inputs {
                let storage = graph.storage(t);
                if newest[storage.0 as usize] != t && matches!(graph.tensors[storage].kind, TensorKind::Cache { .. }) {
                    let now = newest[storage.0 as usize];
                    self.node_fault(Rule::Cache, id, format!("{t} is read, but its storage holds {now} by then"));
                }
            }
            for &t in &node.outputs {
                newest[graph.storage(t).0 as usize] = t;
            }
        }
    }

    pub(super) fn sizes(&mut self) {
        let graph = self.graph;
        // Rows that an all-to-all may bring: every rank's.
        let (tokens, kv_rows) = (u128::from(graph.step.tokens()), u128::from(graph.step.kv_rows()));
        let received = tokens.max(1) * u128::from(graph.deployment.ep);
        let size = |dim: &Dim| match dim {
            Dim::Tokens | Dim::LogitsRows => tokens.max(graph.step.sequences.len() as u128),
            Dim::KvRows => kv_rows,
            Dim::Received => received,
            Dim::Fixed(n) | Dim::Vocab(n) => u128::from(*n),
            Dim::Experts(n) => u128::from(*n).max(graph.deployment.placement.as_ref().map_or(0, |p| p.physical_to_logical.len() as u128)),
            Dim::Packed(segments) => segments.iter().map(|s| u128::from(s.elements())).sum(),
        };
        let bytes = |t: &Tensor| t.shape.iter().try_fold(8u128, |n, dim| n.checked_mul(size(dim).max(1)).filter(|n| *n <= MOST_BYTES));
        for (id, tensor) in graph.tensors.iter() {
            if bytes(tensor).is_none() {
                self.tensor_fault(Rule::Size, id, format!("it has more than {MOST_BYTES} bytes"));
            }
            if let TensorKind::Weight(w) = tensor.kind
                && matches!(
                    w.format,
                    WeightFormat::Int4Group { group: 0 } | WeightFormat::Fp8Block { rows: 0, .. } | WeightFormat::Fp8Block { cols: 0, .. }
                )
            {
                self.tensor_fault(Rule::Size, id, "a scale block has no elements");
            }
        }
        if let Some((i, _)) = graph.step.sequences.iter().enumerate().find(|(_, s)| s.new == 0) {
            self.add(Rule::Size, Entity::Graph, format!("sequence {i} has no new token"));
        }
    }
}
