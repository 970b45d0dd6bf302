//! A node's operands and results as one rank holds them.

use super::CostFacts;
use moetwin_models::graph::SplitError;
use moetwin_models::{Graph, Node, NodeId, RankId, Sequence, Tensor, TensorId, TensorKind, WeightFormat};

/// Dimensions of the widest tensor of a graph (stacked expert weights).
const MOST_DIMS: usize = 3;

/// A tensor on one rank.
#[derive(Clone, Debug)]
pub(super) struct LocalTensor<'a> {
    pub(super) tensor: &'a Tensor,
    /// Sizes, 1 beyond the last dimension. An array, since facts are asked for every node of every rank.
    sizes: [u64; MOST_DIMS],
}

/// A product, or the largest number where it is larger: steps may be of any length.
pub(super) fn product(factors: &[u64]) -> u64 {
    // A zero among the factors is known before any of them could saturate.
    if factors.contains(&0) { 0 } else { factors.iter().fold(1, |p, f| p.saturating_mul(*f)) }
}

/// A sum, or the largest number where it is larger.
pub(super) fn total(terms: impl IntoIterator<Item = u64>) -> u64 {
    terms.into_iter().fold(0, u64::saturating_add)
}

/// A node on one rank.
pub(super) struct Local<'a> {
    pub(super) graph: &'a Graph,
    pub(super) node: &'a Node,
    pub(super) rank: RankId,
    inputs: Vec<LocalTensor<'a>>,
    outputs: Vec<LocalTensor<'a>>,
}

impl LocalTensor<'_> {
    /// Size of every dimension.
    pub(super) fn sizes(&self) -> &[u64] {
        &self.sizes[..self.tensor.shape.len().min(MOST_DIMS)]
    }
    /// Size of the first dimension.
    pub(super) fn rows(&self) -> u64 {
        self.sizes[0]
    }
    /// Size of the second dimension, 1 where there is none.
    pub(super) fn cols(&self) -> u64 {
        self.sizes[1]
    }
    pub(super) fn elements(&self) -> u64 {
        product(&self.sizes)
    }
    /// Bytes of one row of an activation or cache.
    pub(super) fn row_bytes(&self) -> u64 {
        product(&[product(&self.sizes[1..]), self.tensor.dtype.bytes()])
    }
    pub(super) fn format(&self) -> Option<WeightFormat> {
        match self.tensor.kind {
            TensorKind::Weight(w) => Some(w.format),
            _ => None,
        }
    }
    /// Bytes of a `[rows, cols]` piece of a weight.
    pub(super) fn weight_bytes(&self, rows: u64, cols: u64) -> u64 {
        self.format().map_or(0, |f| f.matrix_bytes(rows, cols))
    }
    /// Bytes of one matrix of a stack of weights `[n, rows, cols]`, or of one row of `[n, cols]`.
    pub(super) fn item_bytes(&self) -> u64 {
        match self.sizes() {
            [_, rows, cols] => self.weight_bytes(*rows, *cols),
            [_, cols] => self.weight_bytes(1, *cols),
            _ => 0,
        }
    }
    pub(super) fn bytes(&self) -> u64 {
        match (self.format(), self.sizes()) {
            (Some(format), [outer @ .., rows, cols]) => outer.iter().product::<u64>() * format.matrix_bytes(*rows, *cols),
            (Some(format), [n]) => format.matrix_bytes(1, *n),
            _ => product(&[self.elements(), self.tensor.dtype.bytes()]),
        }
    }
    fn is_cache(&self) -> bool {
        matches!(self.tensor.kind, TensorKind::Cache { .. } | TensorKind::CacheUpdate { .. })
    }
}

impl<'a> Local<'a> {
    pub(super) fn new(graph: &'a Graph, node: NodeId, rank: RankId) -> Result<Self, SplitError> {
        let node = &graph.nodes[node];
        let local = |ids: &[TensorId]| -> Result<Vec<LocalTensor<'a>>, SplitError> {
            ids.iter()
                .map(|&t| {
                    let mut sizes = [1; MOST_DIMS];
                    for (dim, size) in sizes.iter_mut().enumerate() {
                        *size = graph.local_size(t, dim, rank)?;
                    }
                    Ok(LocalTensor { tensor: &graph.tensors[t], sizes })
                })
                .collect()
        };
        Ok(Self { graph, node, rank, inputs: local(&node.inputs)?, outputs: local(&node.outputs)? })
    }
    /// Operand `index`, which the verified graph has.
    pub(super) fn input(&self, index: usize) -> &LocalTensor<'a> {
        &self.inputs[index]
    }
    pub(super) fn inputs(&self) -> &[LocalTensor<'a>] {
        &self.inputs
    }
    /// Result `index`, which the verified graph has.
    pub(super) fn output(&self, index: usize) -> &LocalTensor<'a> {
        &self.outputs[index]
    }
    pub(super) fn input_elements(&self, index: usize) -> u64 {
        self.input(index).elements()
    }
    /// Elements of all results but caches.
    pub(super) fn output_elements(&self) -> u64 {
        total(self.outputs.iter().filter(|t| !t.is_cache()).map(LocalTensor::elements))
    }
    /// Bytes of all results but caches.
    pub(super) fn written(&self) -> u64 {
        total(self.outputs.iter().filter(|t| !t.is_cache()).map(LocalTensor::bytes))
    }
    /// Every weight and activation operand read once, every result written once; caches are left to the op.
    pub(super) fn streamed(&self) -> CostFacts {
        let bytes = |weights: bool| -> u64 {
            total(self.inputs.iter().filter(|t| t.format().is_some() == weights && !t.is_cache()).map(LocalTensor::bytes))
        };
        CostFacts { weight_bytes: bytes(true), read_bytes: bytes(false), write_bytes: self.written(), ..CostFacts::default() }
    }
    /// Sequences whose cache this rank holds, those without new tokens left out.
    pub(super) fn sequences(&self) -> impl Iterator<Item = Sequence> + '_ {
        let range = self.graph.deployment.attention_sequences(&self.graph.step, self.rank);
        self.graph.step.sequences[range].iter().copied().filter(|s| s.new > 0)
    }
}
