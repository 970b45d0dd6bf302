//! The graph under construction: names, the residual stream, weights.

use super::BuildOptions;
use crate::graph::{Graph, NewTensor, TensorKind};
use crate::ids::TensorId;
use crate::op::{LinearRole, Op};
use crate::spec::ModelSpec;
use crate::step::Step;
use crate::weight::{WeightRef, WeightRole};
use crate::{DType, Deployment, Dim, WeightFormat};

/// Builds one graph, layer after layer.
pub(super) struct Builder<'a> {
    pub(super) spec: &'a ModelSpec,
    graph: Graph,
    layer: Option<u16>,
    /// Sum of everything added to the stream so far, but for `delta`.
    residual: TensorId,
    /// Result of the last block, not yet added.
    delta: Option<TensorId>,
    positions: Option<TensorId>,
    table: TensorId,
    options: BuildOptions,
}

/// A projection to be added: its op, its weight and where its result goes.
pub(super) struct Projection<'a> {
    /// What it computes.
    pub(super) role: LinearRole,
    /// Name of the result within the layer; the weight is `name.weight`.
    pub(super) name: &'a str,
    /// The weight.
    pub(super) weight: WeightRole,
    /// The bias, if there is one.
    pub(super) bias: Option<WeightRole>,
    /// Output dimension.
    pub(super) rows: Dim,
    /// Contracted dimension.
    pub(super) cols: Dim,
    /// Storage of the weight.
    pub(super) format: WeightFormat,
}

impl<'a> Builder<'a> {
    /// Starts with the embedding.
    pub(super) fn new(spec: &'a ModelSpec, step: &Step, options: &BuildOptions) -> Self {
        let mut graph = Graph::new(step.clone(), Deployment::single());
        let ids = graph.add_source("ids", TensorKind::TokenIds, vec![Dim::Tokens], DType::I32);
        let reference = WeightRef { role: WeightRole::Embedding, layer: None, format: spec.embedding_format };
        let shape = vec![Dim::Vocab(spec.vocab), Dim::Fixed(spec.hidden)];
        let table = graph.add_source("embed.weight", TensorKind::Weight(reference), shape, spec.dtype);
        let embedded = NewTensor::activation("embed", vec![Dim::Tokens, Dim::Fixed(spec.hidden)], spec.dtype);
        let residual = graph.add_node(Op::Embed, None, 0, vec![ids, table], vec![embedded])[0];
        let mut b = Self { spec, graph, layer: None, residual, delta: None, positions: None, table, options: *options };
        b.dump("hidden.0".into(), residual);
        b
    }
    pub(super) fn finish(self) -> Graph {
        self.graph
    }
    /// Whether latent attention is absorbed whatever the phase.
    pub(super) fn absorbed(&self) -> bool {
        self.options.absorbed
    }
    pub(super) fn step(&self) -> &Step {
        &self.graph.step
    }
    pub(super) fn hidden(&self) -> Dim {
        Dim::Fixed(self.spec.hidden)
    }
    pub(super) fn kv_dtype(&self) -> DType {
        self.graph.deployment.kv_dtype
    }
    /// The embedding table where the head shares it.
    pub(super) fn embedding_table(&self) -> Option<TensorId> {
        self.spec.tied_embeddings.then_some(self.table)
    }
    pub(super) fn shape(&self, tensor: TensorId) -> &[Dim] {
        &self.graph.tensors[tensor].shape
    }
    pub(super) fn enter_layer(&mut self, layer: u16) {
        self.layer = Some(layer);
    }
    pub(super) fn leave_layers(&mut self) {
        self.layer = None;
    }
    pub(super) fn layer(&self) -> u16 {
        self.layer.expect("blocks are built inside a layer")
    }
    /// The residual stream before the first block.
    pub(super) fn stream(&self) -> TensorId {
        self.residual
    }
    /// Replaces the residual stream before the first block.
    pub(super) fn set_stream(&mut self, tensor: TensorId) {
        self.residual = tensor;
    }
    pub(super) fn set_delta(&mut self, delta: TensorId) {
        self.delta = Some(delta);
    }
    /// Names an output.
    pub(super) fn output(&mut self, name: impl Into<String>, tensor: TensorId) {
        self.graph.outputs.push((name.into(), tensor));
    }
    /// Names an output that only comparisons need.
    pub(super) fn dump(&mut self, name: String, tensor: TensorId) {
        if self.options.dump {
            self.output(name, tensor);
        }
    }
    /// `layers.3.` before a name inside a layer.
    fn scoped(&self, name: &str) -> String {
        match self.layer {
            Some(layer) => format!("layers.{layer}.{name}"),
            None => name.to_owned(),
        }
    }
    pub(super) fn weight(&mut self, name: &str, role: WeightRole, shape: Vec<Dim>, format: WeightFormat) -> TensorId {
        let dtype = if format == WeightFormat::F32 { DType::F32 } else { self.spec.dtype };
        let kind = TensorKind::Weight(WeightRef { role, layer: self.layer, format });
        self.graph.add_source(self.scoped(name), kind, shape, dtype)
    }
    pub(super) fn positions(&mut self) -> TensorId {
        if let Some(p) = self.positions {
            return p;
        }
        let p = self.graph.add_source("positions", TensorKind::Positions, vec![Dim::Tokens], DType::I32);
        self.positions = Some(p);
        p
    }
    /// The KV cache of this layer with the given row.
    pub(super) fn cache(&mut self, row: Dim) -> TensorId {
        let kind = TensorKind::Cache { layer: self.layer() };
        let dtype = self.kv_dtype();
        self.graph.add_source(self.scoped("cache"), kind, vec![Dim::KvRows, row], dtype)
    }
    /// The value of `cache` after an append, to be a result of the appending node.
    pub(super) fn updated_cache(&self, cache: TensorId) -> NewTensor {
        NewTensor {
            kind: TensorKind::CacheUpdate { of: cache },
            ..NewTensor::activation(self.scoped("cache.new"), self.shape(cache).to_vec(), self.kv_dtype())
        }
    }
    /// An activation of the model's element type, named within the layer.
    pub(super) fn activation(&self, name: &str, shape: Vec<Dim>) -> NewTensor {
        NewTensor::activation(self.scoped(name), shape, self.spec.dtype)
    }
    pub(super) fn node(&mut self, op: Op, inputs: Vec<TensorId>, results: Vec<NewTensor>) -> Vec<TensorId> {
        self.graph.add_node(op, self.layer, 0, inputs, results)
    }
    /// A node with one result.
    pub(super) fn one(&mut self, op: Op, inputs: Vec<TensorId>, name: &str, shape: Vec<Dim>, dtype: DType) -> TensorId {
        let result = NewTensor { dtype, ..self.activation(name, shape) };
        self.node(op, inputs, vec![result])[0]
    }
    /// `x` times a weight, plus a bias.
    pub(super) fn project(&mut self, x: TensorId, p: Projection<'_>) -> TensorId {
        let dtype = self.spec.dtype;
        self.project_to(x, p, dtype)
    }
    /// [`Self::project`] with a result of another element type.
    pub(super) fn project_to(&mut self, x: TensorId, p: Projection<'_>, dtype: DType) -> TensorId {
        let weight = self.weight(&format!("{}.weight", p.name), p.weight, vec![p.rows.clone(), p.cols], p.format);
        let mut inputs = vec![x, weight];
        if let Some(role) = p.bias {
            let format = self.spec.plain_format();
            inputs.push(self.weight(&format!("{}.bias", p.name), role, vec![p.rows.clone()], format));
        }
        let shape = vec![self.shape(x)[0].clone(), p.rows];
        self.one(Op::Linear { role: p.role }, inputs, p.name, shape, dtype)
    }
    /// A weight vector that quantization leaves alone.
    pub(super) fn vector(&mut self, name: &str, role: WeightRole, dim: Dim) -> TensorId {
        let format = self.spec.plain_format();
        self.weight(name, role, vec![dim], format)
    }
    /// Adds the pending delta to the residual stream and norms the sum.
    pub(super) fn stream_norm(&mut self, name: &str, role: WeightRole) -> TensorId {
        let hidden = self.hidden();
        let w = self.vector(&format!("{name}.weight"), role, hidden);
        let eps = self.spec.norm_eps;
        let shape = self.shape(self.residual).to_vec();
        let Some(delta) = self.delta.take() else {
            return self.one(Op::RmsNorm { eps }, vec![self.residual, w], name, shape, self.spec.dtype);
        };
        let results = vec![self.activation(name, shape.clone()), self.activation(&format!("{name}.sum"), shape)];
        let out = self.node(Op::AddRmsNorm { eps }, vec![delta, self.residual, w], results);
        self.residual = out[1];
        if role == WeightRole::InputNorm {
            self.dump(format!("hidden.{}", self.layer()), out[1]);
        }
        out[0]
    }
}
