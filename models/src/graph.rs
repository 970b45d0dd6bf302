//! The dataflow graph of one forward pass, in single static assignment: every tensor has one producer.
//!
//! The same type holds the unsharded graph (every layout replicated, one rank) and the sharded one (layouts say how each tensor is
//! spread, collectives are nodes). A sharded graph is one program for all ranks of a stage.

use crate::deployment::{Axis, Deployment};
use crate::dim::{Dim, Layout, Placement, Segment};
use crate::dtype::DType;
use crate::ids::{IdVec, NodeId, RankId, TensorId};
use crate::op::Op;
use crate::step::{LogitsRows, Step, chunk};
use crate::weight::WeightRef;
use serde::Serialize;
use std::ops::Range;

/// What a tensor is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorKind {
    /// Computed by a node.
    Activation,
    /// Token ids of the step, `i32[T]`.
    TokenIds,
    /// Position of each new token in its sequence, `i32[T]`.
    Positions,
    /// A weight.
    Weight(WeightRef),
    /// KV cache of a layer before this step; a node that appends to it returns the same storage.
    Cache {
        /// The layer.
        layer: u16,
    },
    /// The cache after an append: a new value in the storage of `of`.
    CacheUpdate {
        /// The tensor whose storage it shares.
        of: TensorId,
    },
}

/// A tensor: global shape, element type, layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tensor {
    /// Name, unique in the graph, for people and traces (`layers.3.attn.q`).
    pub name: String,
    /// What it is.
    pub kind: TensorKind,
    /// Global shape.
    pub shape: Vec<Dim>,
    /// Element type (of the dequantized value, for weights).
    pub dtype: DType,
    /// How it is spread over the ranks of its stage.
    pub layout: Layout,
    /// The node that computes it.
    pub producer: Option<NodeId>,
}

/// One operation applied to tensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// Operands, in the order of the op's doc.
    pub inputs: Vec<TensorId>,
    /// Results, in the order of the op's doc.
    pub outputs: Vec<TensorId>,
    /// Decoder layer, for people and breakdowns.
    pub layer: Option<u16>,
    /// Pipeline stage ([`Op::SendRecv`]: the receiving one).
    pub stage: u16,
}

/// A graph of one forward pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Graph {
    /// What the pass computes.
    pub step: Step,
    /// How it is spread.
    pub deployment: Deployment,
    /// All tensors, in creation order.
    pub tensors: IdVec<TensorId, Tensor>,
    /// All nodes, in creation order, which is a topological order.
    pub nodes: IdVec<NodeId, Node>,
    /// Named results: `logits`, `next_ids`, `hidden.N`, `router.L.experts`, `router.L.weights`.
    pub outputs: Vec<(String, TensorId)>,
}

impl Graph {
    /// A graph without nodes.
    pub fn new(step: Step, deployment: Deployment) -> Self {
        Self { step, deployment, tensors: IdVec::new(), nodes: IdVec::new(), outputs: Vec::new() }
    }
    /// Adds a tensor that no node computes (input, weight, cache).
    pub fn add_source(&mut self, name: impl Into<String>, kind: TensorKind, shape: Vec<Dim>, dtype: DType) -> TensorId {
        self.tensors.push(Tensor { name: name.into(), kind, shape, dtype, layout: Layout::replicated(), producer: None })
    }
    /// Adds a node and its result tensors (name, shape, element type, layout).
    pub fn add_node(&mut self, op: Op, layer: Option<u16>, stage: u16, inputs: Vec<TensorId>, results: Vec<NewTensor>) -> Vec<TensorId> {
        let node = self.nodes.push(Node { op, inputs, outputs: Vec::new(), layer, stage });
        let outputs: Vec<TensorId> = results
            .into_iter()
            .map(|r| {
                self.tensors.push(Tensor {
                    name: r.name,
                    kind: r.kind,
                    shape: r.shape,
                    dtype: r.dtype,
                    layout: r.layout,
                    producer: Some(node),
                })
            })
            .collect();
        self.nodes[node].outputs.clone_from(&outputs);
        outputs
    }
    /// The named result.
    pub fn output(&self, name: &str) -> Option<TensorId> {
        self.outputs.iter().find(|(n, _)| n == name).map(|(_, t)| *t)
    }
    /// The tensor whose storage `tensor` lives in (caches are updated in place).
    pub fn storage(&self, mut tensor: TensorId) -> TensorId {
        while let TensorKind::CacheUpdate { of } = self.tensors[tensor].kind {
            tensor = of;
        }
        tensor
    }
    /// The index range that `rank` holds of every dimension of a tensor (in units of rows or elements; packed
    /// dimensions give the local element count from 0, since their slices are not contiguous: see [`crate::Segment::part`]).
    ///
    /// Errors name the tensor and the dimension that cannot be cut.
    pub fn local_shape(&self, tensor: TensorId, rank: RankId) -> Result<Vec<Range<u64>>, SplitError> {
        let t = &self.tensors[tensor];
        t.shape.iter().enumerate().map(|(i, dim)| self.local_dim(t, i as u8, dim, rank)).collect()
    }
    /// The number of elements along every dimension that `rank` holds of a tensor.
    pub fn local_sizes(&self, tensor: TensorId, rank: RankId) -> Result<Vec<u64>, SplitError> {
        (0..self.tensors[tensor].shape.len()).map(|dim| self.local_size(tensor, dim, rank)).collect()
    }
    /// The number of elements along dimension `dim` that `rank` holds of a tensor, 1 beyond its last dimension.
    pub fn local_size(&self, tensor: TensorId, dim: usize, rank: RankId) -> Result<u64, SplitError> {
        let t = &self.tensors[tensor];
        t.shape.get(dim).map_or(Ok(1), |d| self.local_dim(t, dim as u8, d, rank).map(|r| r.end - r.start))
    }
    /// Bytes that `rank` holds of a tensor, weights in their storage format with scales.
    ///
    /// Rows of fused weights are counted segment by segment, since checkpoints and scale blocks keep q, k and v, or gate and up, apart.
    pub fn local_bytes(&self, tensor: TensorId, rank: RankId) -> Result<u64, SplitError> {
        let sizes = self.local_sizes(tensor, rank)?;
        let t = &self.tensors[tensor];
        let TensorKind::Weight(w) = &t.kind else { return Ok(sizes.iter().product::<u64>() * t.dtype.bytes()) };
        let [outer @ .., _, cols] = sizes.as_slice() else { return Ok(w.format.matrix_bytes(1, sizes.iter().product())) };
        let rows = self.local_segments(t, outer.len(), rank);
        let rows = if rows.is_empty() { vec![sizes[outer.len()]] } else { rows };
        Ok(outer.iter().product::<u64>() * rows.iter().map(|r| w.format.matrix_bytes(*r, *cols)).sum::<u64>())
    }
    /// Local elements of each segment of a packed dimension, nothing for other dimensions. Only called once the split is known to be exact.
    fn local_segments(&self, t: &Tensor, index: usize, rank: RankId) -> Vec<u64> {
        let Dim::Packed(segments) = &t.shape[index] else { return Vec::new() };
        let d = &self.deployment;
        let (part, parts) = t.layout.shard_axis(index as u8).map_or((0, 1), |a| (d.axis_index(a, rank), d.axis_size(a)));
        let local = |s: &Segment| s.part(part, parts).map_or(0, |units| u64::from(units.end - units.start) * u64::from(s.width));
        segments.iter().map(local).collect()
    }
    /// How many collectives and sends a forward pass issues, over all stages.
    pub fn collective_counts(&self) -> CollectiveCounts {
        let mut counts = CollectiveCounts::default();
        for (_, node) in self.nodes.iter() {
            match node.op {
                Op::AllReduce { .. } => counts.all_reduce += 1,
                Op::AllGather { .. } => counts.all_gather += 1,
                Op::ReduceScatter { .. } => counts.reduce_scatter += 1,
                Op::Dispatch => counts.dispatch += 1,
                Op::Combine => counts.combine += 1,
                Op::SendRecv { .. } => counts.send_recv += 1,
                _ => {}
            }
        }
        counts
    }
    fn local_dim(&self, t: &Tensor, index: u8, dim: &Dim, rank: RankId) -> Result<Range<u64>, SplitError> {
        let d = &self.deployment;
        let fail = |size: u64, axis: Axis| SplitError { tensor: t.name.clone(), dim: index, size, axis, parts: d.axis_size(axis) };
        let axes = t.layout.entries().iter().filter(|(_, p)| *p == Placement::Shard(index)).map(|(a, _)| *a);
        let axis = axes.clone().next();
        let (part, parts) = axis.map_or((0, 1), |a| (d.axis_index(a, rank), d.axis_size(a)));
        match dim {
            Dim::Tokens | Dim::LogitsRows | Dim::KvRows => Ok(self.local_rows(dim, axes, rank)),
            Dim::Received => Ok(0..self.received_slots(rank) * u64::from(d.axis_size(Axis::Ep))),
            Dim::Fixed(n) if parts == 1 => Ok(0..*n),
            Dim::Fixed(n) if n.is_multiple_of(u64::from(parts)) => {
                let size = n / u64::from(parts);
                Ok(size * u64::from(part)..size * u64::from(part + 1))
            }
            Dim::Fixed(n) => Err(fail(*n, axis.expect("parts > 1"))),
            Dim::Vocab(n) => Ok(chunk(*n, part, parts)),
            Dim::Experts(n) => {
                let slots = d.placement.as_ref().map_or(*n, |p| p.physical_to_logical.len() as u64);
                if !slots.is_multiple_of(u64::from(parts)) {
                    return Err(fail(slots, axis.expect("parts > 1")));
                }
                let size = slots / u64::from(parts);
                Ok(size * u64::from(part)..size * u64::from(part + 1))
            }
            Dim::Packed(segments) => {
                let mut local = 0;
                for s in segments {
                    let units = s.part(part, parts).ok_or_else(|| fail(u64::from(s.units), axis.expect("parts > 1")))?;
                    local += u64::from(units.end - units.start) * u64::from(s.width);
                }
                Ok(0..local)
            }
        }
    }
    /// Rows in replica-wide numbering: whole sequences over attn_dp, equal chunks of what is left over any other axis.
    fn local_rows(&self, dim: &Dim, mut axes: impl Iterator<Item = Axis> + Clone, rank: RankId) -> Range<u64> {
        let d = &self.deployment;
        let replica = d.replica_sequences(&self.step, rank);
        let by_sequence = axes.clone().any(|a| a == Axis::AttnDp);
        let sequences = if by_sequence { d.attention_sequences(&self.step, rank) } else { replica.clone() };
        // Asked for every tensor of every rank, so nothing is copied here: the sums are those of [`Step`].
        let rows_of = |r: Range<usize>| -> u64 {
            let part = &self.step.sequences[r];
            match (dim, self.step.logits) {
                (Dim::KvRows, _) => part.iter().map(|s| u64::from(s.past) + u64::from(s.new)).sum(),
                (Dim::LogitsRows, LogitsRows::Last) => part.len() as u64,
                _ => part.iter().map(|s| u64::from(s.new)).sum(),
            }
        };
        let start = rows_of(replica.start..sequences.start);
        let rows = rows_of(sequences);
        match axes.find(|a| *a != Axis::AttnDp) {
            None => start..start + rows,
            // Dealt out row by row, so no range of replica-wide numbers: counted from 0.
            Some(Axis::Dcp) => 0..self.context_rows(by_sequence, rank),
            Some(a) => {
                let c = chunk(rows, d.axis_index(a, rank), d.axis_size(a));
                start + c.start..start + c.end
            }
        }
    }
    /// Cache rows that `rank` holds under decode context parallelism, of its own sequences or of its replica's.
    fn context_rows(&self, by_sequence: bool, rank: RankId) -> u64 {
        let d = &self.deployment;
        let held = if by_sequence { d.attention_sequences(&self.step, rank) } else { d.replica_sequences(&self.step, rank) };
        self.step.sequences[held].iter().map(|s| d.context_rows(u64::from(s.past) + u64::from(s.new), rank)).sum()
    }
    /// Slots each source rank has in a dispatch buffer: the most rows any rank of the group may send.
    pub fn received_slots(&self, rank: RankId) -> u64 {
        let d = &self.deployment;
        let axes: &[Axis] = if d.dp_attention > 1 { &[Axis::AttnDp, Axis::AttnTp] } else { &[Axis::Tp] };
        let rows = |r: RankId| {
            let r = self.local_rows(&Dim::Tokens, axes.iter().copied(), r);
            r.end - r.start
        };
        d.group(Axis::Ep, rank).into_iter().map(rows).max().unwrap_or(0)
    }
}

/// Communication nodes of a graph, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CollectiveCounts {
    /// All-reduces.
    pub all_reduce: u64,
    /// All-gathers.
    pub all_gather: u64,
    /// Reduce-scatters.
    pub reduce_scatter: u64,
    /// Expert dispatches.
    pub dispatch: u64,
    /// Expert combines.
    pub combine: u64,
    /// Pipeline sends.
    pub send_recv: u64,
}

impl CollectiveCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.all_reduce + self.all_gather + self.reduce_scatter + self.dispatch + self.combine + self.send_recv
    }
}

/// A result tensor to be created with its node.
#[derive(Clone, Debug)]
pub struct NewTensor {
    /// Name.
    pub name: String,
    /// What it is ([`TensorKind::Activation`] or [`TensorKind::CacheUpdate`]).
    pub kind: TensorKind,
    /// Global shape.
    pub shape: Vec<Dim>,
    /// Element type.
    pub dtype: DType,
    /// Layout.
    pub layout: Layout,
}

impl NewTensor {
    /// A replicated activation.
    pub fn activation(name: impl Into<String>, shape: Vec<Dim>, dtype: DType) -> Self {
        Self { name: name.into(), kind: TensorKind::Activation, shape, dtype, layout: Layout::replicated() }
    }
}

/// A dimension that a deployment cannot cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tensor}: dimension {dim} has {size} units, which {} ranks of axis {} cannot share equally", .parts, .axis.name())]
pub struct SplitError {
    /// The tensor.
    pub tensor: String,
    /// The dimension.
    pub dim: u8,
    /// Units to share.
    pub size: u64,
    /// Axis that cuts.
    pub axis: Axis,
    /// Ranks on it.
    pub parts: u32,
}
