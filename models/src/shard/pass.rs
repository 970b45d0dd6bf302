//! The walk over the unsharded graph.

use super::convert::{communications, conversions};
use super::fault::{ShardError, ShardFault, SplitFault};
use super::stages::stage_of;
use super::{Axes, split};
use crate::deployment::{Axis, Deployment};
use crate::dim::{Dim, Layout, Placement};
use crate::graph::{Graph, NewTensor, Node, TensorKind};
use crate::ids::TensorId;
use crate::op::{LinearRole, Op};
use crate::weight::{WeightRef, WeightRole};

/// A graph being spread. Each old tensor has *versions* in the new graph: the value as its node leaves it, and what conversions made of it.
pub(super) struct Pass<'a> {
    pub(super) old: &'a Graph,
    pub(super) new: Graph,
    pub(super) axes: Axes,
    versions: Vec<Vec<TensorId>>,
    /// Whether a router consumes the old tensor.
    routed: Vec<bool>,
    /// Layout of the residual stream from here on.
    stream: Layout,
    layers: u16,
    faults: Vec<SplitFault>,
}

impl<'a> Pass<'a> {
    pub(super) fn new(old: &'a Graph, deployment: &Deployment) -> Self {
        let mut routed = vec![false; old.tensors.len()];
        for (_, node) in old.nodes.iter() {
            if node.op == (Op::Linear { role: LinearRole::Router }) {
                routed[node.inputs[0].0 as usize] = true;
            }
        }
        let axes = Axes::of(deployment);
        let stream = axes.local.clone();
        let layers = old.nodes.iter().filter_map(|(_, n)| n.layer).max().map_or(0, |l| l.saturating_add(1));
        let new = Graph::new(old.step.clone(), deployment.clone());
        Self { old, new, axes, versions: vec![Vec::new(); old.tensors.len()], routed, stream, layers, faults: Vec::new() }
    }

    pub(super) fn run(mut self) -> Result<Graph, ShardError> {
        let mut inside = false;
        for (_, node) in self.old.nodes.iter() {
            inside |= node.layer.is_some();
            let stage = self.stage(node, inside);
            self.place(node, stage);
        }
        for (name, tensor) in &self.old.outputs {
            let whole = self.whole(*tensor);
            let result = self.want(*tensor, &whole);
            self.new.outputs.push((name.clone(), result));
        }
        if self.faults.is_empty() {
            Ok(self.new)
        } else {
            Err(ShardError { faults: self.faults.into_iter().map(ShardFault::Split).collect() })
        }
    }

    /// Nodes outside layers belong to the first stage before the layers and to the last one after them.
    fn stage(&self, node: &Node, inside: bool) -> u16 {
        let stages = u16::try_from(self.new.deployment.pp).unwrap_or(u16::MAX);
        match node.layer {
            Some(layer) => stage_of(layer, self.layers, stages),
            None if inside => stages - 1,
            None => 0,
        }
    }

    /// The layout of a named result: that of the first version with whole rows, a value and not a summand.
    fn whole(&self, tensor: TensorId) -> Layout {
        let versions = &self.versions[tensor.0 as usize];
        let whole = |l: &Layout| l.entries().iter().all(|(_, p)| *p == Placement::Shard(0));
        match versions.iter().map(|v| &self.new.tensors[*v].layout).find(|l| whole(l)) {
            Some(layout) => layout.clone(),
            None => self.stream.clone(),
        }
    }

    /// Places one old node, with what its operands need before it.
    fn place(&mut self, node: &Node, stage: u16) {
        match &node.op {
            Op::AddRmsNorm { eps } => self.stream_norm(node, *eps, stage),
            Op::RmsNorm { .. } => {
                self.enter_stream(node);
                let stream = self.stream.clone();
                self.put(node, stage, &[stream.clone(), Layout::replicated()], vec![stream]);
            }
            Op::Linear { role } => self.linear(node, *role, stage),
            Op::Experts { .. } => self.experts(node, stage),
            Op::MlaDecode { .. } | Op::GqaAttention { .. } if self.axes.context.is_some() => self.split_attention(node, stage),
            Op::SigmoidScale | Op::Add | Op::GatedActivation { .. } | Op::Route { .. } | Op::PlaceExperts => self.follow(node, stage),
            _ => match self.rule(&node.op) {
                Some((inputs, outputs)) => self.put(node, stage, &inputs, outputs),
                // Collectives and other nodes of an already sharded graph are not expected here; the verifier rejects what results.
                None => self.follow(node, stage),
            },
        }
    }

    /// Layouts of ops whose operands always lie the same way in a deployment.
    fn rule(&self, op: &Op) -> Option<(Vec<Layout>, Vec<Layout>)> {
        let a = &self.axes;
        let (local, rep, rows) = (a.local.clone(), Layout::replicated(), a.head_rows());
        Some(match op {
            Op::Embed if self.new.deployment.dp_attention == 1 && self.new.deployment.tp > 1 => {
                (vec![local, Layout::shard(Axis::Tp, 0)], vec![Layout::partial(Axis::Tp)])
            }
            Op::Embed => (vec![local.clone(), rep], vec![local]),
            Op::QkNorm { .. } => (vec![local.clone(), rep.clone(), rep], vec![local]),
            Op::QkvPrepare { .. } => (vec![rows.clone(), local, a.cache(&rows), rep.clone(), rep], vec![rows.clone(), a.cache(&rows)]),
            Op::GqaAttention { .. } => (vec![rows.clone(), rows.clone(), a.head_weight(0)], vec![rows]),
            Op::MlaNorm { .. } => (vec![local.clone(), rep.clone(), rep], vec![local.clone(), local]),
            Op::MlaRope { .. } => (vec![rows.clone(), local.clone(), local.clone(), a.cache(&local)], vec![rows, a.cache(&local)]),
            Op::MlaAbsorbQuery { .. } | Op::MlaExpandValue { .. } => (vec![rows.clone(), a.head_weight(0)], vec![rows]),
            Op::MlaDecode { .. } => (vec![rows.clone(), local.clone(), local], vec![rows]),
            Op::MlaExpandKv => (vec![local, a.head_weight(0)], vec![rows]),
            Op::MlaPrefill { .. } => (vec![rows.clone(), rows.clone(), local], vec![rows]),
            Op::SparseIndex { .. } => (vec![local.clone(), local.clone()], vec![local]),
            Op::LinearAttention { .. } => (vec![rows.clone(), rows.clone(), a.head_weight(0)], vec![rows]),
            Op::SelectRows => (vec![local.clone()], vec![local]),
            Op::Argmax => (vec![rep.clone()], vec![rep]),
            _ => return None,
        })
    }

    fn linear(&mut self, node: &Node, role: LinearRole, stage: u16) {
        let (rep, all) = (Layout::replicated(), self.new.deployment.tp > 1);
        let tp = |placement: Placement| if all { Layout::default().with(Axis::Tp, placement) } else { Layout::replicated() };
        let tokens = if self.axes.all_to_all { self.axes.scattered.clone() } else { rep.clone() };
        let (local, rows, heads) = (self.axes.local.clone(), self.axes.head_rows(), self.axes.head_weight(0));
        let column = |x: Layout, w: Layout, y: Layout| (vec![x, w.clone(), w], y);
        let (inputs, output) = match role {
            LinearRole::QaKva => (vec![local.clone(), rep.clone(), rep], local),
            LinearRole::Qkv | LinearRole::Qb | LinearRole::Other => column(local, heads, rows),
            LinearRole::O => (vec![rows, self.axes.head_weight(1), rep], self.axes.head_partial()),
            LinearRole::Router => (vec![tokens.clone(), rep.clone(), rep], tokens),
            LinearRole::SharedGateUp | LinearRole::SharedDown | LinearRole::SharedGate if self.axes.all_to_all => {
                (vec![tokens.clone(), rep.clone(), rep], tokens)
            }
            LinearRole::SharedGate => (vec![rep.clone(), rep.clone(), rep.clone()], rep),
            LinearRole::DenseGateUp | LinearRole::SharedGateUp | LinearRole::LmHead => {
                column(rep, tp(Placement::Shard(0)), tp(Placement::Shard(1)))
            }
            LinearRole::DenseDown | LinearRole::SharedDown => {
                (vec![tp(Placement::Shard(1)), tp(Placement::Shard(1)), rep], tp(Placement::Partial))
            }
        };
        if role == LinearRole::LmHead {
            self.untie(node);
        }
        self.put(node, stage, &inputs, vec![output]);
    }

    /// A head that shares the embedding table gets its own copy where the two lie on different stages or in different layouts.
    fn untie(&mut self, node: &Node) {
        let d = &self.new.deployment;
        let table = node.inputs[1];
        let TensorKind::Weight(w) = self.old.tensors[table].kind else { return };
        if w.role != WeightRole::Embedding || (d.pp == 1 && d.dp_attention == 1) {
            return;
        }
        let layout = if d.tp > 1 { Layout::shard(Axis::Tp, 0) } else { Layout::replicated() };
        let t = &self.old.tensors[table];
        let kind = TensorKind::Weight(WeightRef { role: WeightRole::LmHead, ..w });
        let copy = self.new.add_source("lm_head.weight", kind, t.shape.clone(), t.dtype);
        self.new.tensors[copy].layout = layout;
        self.versions[table.0 as usize] = vec![copy];
    }

    /// Routed experts: on all tokens with one sum over the ranks, or through an all-to-all.
    fn experts(&mut self, node: &Node, stage: u16) {
        let all_to_all = self.axes.all_to_all;
        let tokens = if all_to_all { self.axes.scattered.clone() } else { Layout::replicated() };
        let mut inputs = vec![self.want(node.inputs[0], &tokens), self.want(node.inputs[1], &tokens), self.want(node.inputs[2], &tokens)];
        let weights = self.expert_weight_layouts();
        for (&old, layout) in node.inputs[3..].iter().zip(&weights) {
            inputs.push(self.want(old, layout));
        }
        if self.new.deployment.placement.is_some() {
            let slots = self.like(inputs[1], "slots", tokens.clone());
            inputs[1] = self.new.add_node(Op::PlaceExperts, node.layer, stage, vec![inputs[1]], vec![slots])[0];
        }
        let result = &self.old.tensors[node.outputs[0]];
        let mut result = NewTensor::activation(result.name.clone(), result.shape.clone(), result.dtype);
        if !all_to_all {
            if self.new.deployment.tp > 1 {
                result.layout = Layout::partial(Axis::Tp);
            }
            let out = self.new.add_node(node.op.clone(), node.layer, stage, inputs, vec![result]);
            self.versions[node.outputs[0].0 as usize].push(out[0]);
            return;
        }
        let received = Layout::shard(Axis::Ep, 0);
        let arrive = |pass: &Self, t: TensorId| {
            let mut r = pass.like(t, "received", received.clone());
            r.shape[0] = Dim::Received;
            r
        };
        let results = vec![arrive(self, inputs[0]), arrive(self, inputs[1]), arrive(self, inputs[2])];
        let sent = self.new.add_node(Op::Dispatch, node.layer, stage, inputs[..3].to_vec(), results);
        inputs.splice(..3, sent);
        let mut there = NewTensor { name: format!("{}.received", result.name), layout: received, ..result.clone() };
        there.shape[0] = Dim::Received;
        let computed = self.new.add_node(node.op.clone(), node.layer, stage, inputs, vec![there]);
        result.layout = tokens;
        let out = self.new.add_node(Op::Combine, node.layer, stage, computed, vec![result]);
        self.versions[node.outputs[0].0 as usize].push(out[0]);
    }

    /// Layouts of gate_up, down and their biases.
    fn expert_weight_layouts(&self) -> [Layout; 4] {
        let d = &self.new.deployment;
        let by_expert = if d.ep > 1 { Layout::shard(Axis::Ep, 0) } else { Layout::replicated() };
        let cut = |dim: u8| match d.axis_size(Axis::MoeTp) {
            1 => by_expert.clone(),
            _ => by_expert.clone().with(Axis::MoeTp, Placement::Shard(dim)),
        };
        [cut(1), cut(2), cut(1), by_expert.clone()]
    }

    /// A norm on the residual stream: both operands in the stream's layout, merged before a stage boundary.
    fn stream_norm(&mut self, node: &Node, eps: f64, stage: u16) {
        self.enter_stream(node);
        let stream = self.stream.clone();
        let delta = self.want(node.inputs[0], &stream);
        let residual = self.want(node.inputs[1], &stream);
        let from = self.stage_of_tensor(delta).or(self.stage_of_tensor(residual)).unwrap_or(stage);
        let weight = self.want(node.inputs[2], &Layout::replicated());
        if from == stage {
            let results = self.results(node, vec![stream.clone(), stream]);
            let out = self.new.add_node(node.op.clone(), node.layer, stage, vec![delta, residual, weight], results);
            self.record(node, &out);
            return;
        }
        // Summing first halves what is sent.
        let before = self.new.tensors[delta].producer.and_then(|n| self.new.nodes[n].layer);
        let mut results = self.results(node, vec![stream.clone(), stream]);
        let sum = results.pop().expect("an AddRmsNorm has two results");
        let here = NewTensor { name: format!("{}.sent", sum.name), ..sum.clone() };
        let here = self.new.add_node(Op::Add, before, from, vec![delta, residual], vec![here]);
        let there = self.new.add_node(Op::SendRecv { from, to: stage }, node.layer, stage, here, vec![sum]);
        let normed = self.new.add_node(Op::RmsNorm { eps }, node.layer, stage, vec![there[0], weight], results);
        self.record(node, &[normed[0], there[0]]);
    }

    /// From the first norm that feeds a router with an all-to-all behind it, the stream stays cut by tokens.
    fn enter_stream(&mut self, node: &Node) {
        if self.axes.all_to_all && self.routed[node.outputs[0].0 as usize] {
            self.stream = self.axes.scattered.clone();
        }
    }

    /// An op that works in whatever layout its first operand has; the others follow it.
    fn follow(&mut self, node: &Node, stage: u16) {
        let first = self.natural(node.inputs[0]);
        let layout = self.new.tensors[first].layout.clone();
        let inputs: Vec<Layout> = node.inputs.iter().map(|t| self.following(&node.op, *t, &layout)).collect();
        let outputs = vec![layout; node.outputs.len()];
        self.put(node, stage, &inputs, outputs);
    }

    /// Layout of an operand of an op that follows its first operand.
    fn following(&mut self, op: &Op, operand: TensorId, first: &Layout) -> Layout {
        let t = &self.old.tensors[operand];
        match op {
            // A weight vector, or a score a row: whole along what the first operand cuts in columns or leaves to be summed.
            Op::Route { .. } if matches!(t.kind, TensorKind::Weight(_)) => Layout::replicated(),
            Op::SigmoidScale if t.shape.get(1) == Some(&Dim::Fixed(1)) => {
                let rows = first.entries().iter().filter(|(_, p)| *p == Placement::Shard(0));
                rows.fold(Layout::replicated(), |l, (a, p)| l.with(*a, *p))
            }
            _ => first.clone(),
        }
    }

    /// Adds the node with its operands in the given layouts.
    fn put(&mut self, node: &Node, stage: u16, inputs: &[Layout], outputs: Vec<Layout>) {
        let mut operands = Vec::with_capacity(node.inputs.len());
        for (&old, layout) in node.inputs.iter().zip(inputs) {
            let t = self.want(old, layout);
            operands.push(self.bring(t, stage, node.layer));
        }
        let mut results = self.results(node, outputs);
        for (result, &old) in results.iter_mut().zip(&node.outputs) {
            if let TensorKind::CacheUpdate { of } = self.old.tensors[old].kind {
                result.kind = TensorKind::CacheUpdate { of: self.natural(of) };
                result.dtype = self.new.deployment.kv_dtype;
            }
        }
        let out = self.new.add_node(node.op.clone(), node.layer, stage, operands, results);
        self.record(node, &out);
    }

    pub(super) fn record(&mut self, node: &Node, out: &[TensorId]) {
        for (&old, &new) in node.outputs.iter().zip(out) {
            self.versions[old.0 as usize].push(new);
        }
    }

    fn results(&self, node: &Node, layouts: Vec<Layout>) -> Vec<NewTensor> {
        let new = |(&t, layout)| {
            let t = &self.old.tensors[t];
            NewTensor { name: t.name.clone(), kind: t.kind.clone(), shape: t.shape.clone(), dtype: t.dtype, layout }
        };
        node.outputs.iter().zip(layouts).map(new).collect()
    }

    /// A tensor like `t` under a longer name.
    pub(super) fn like(&self, t: TensorId, suffix: &str, layout: Layout) -> NewTensor {
        let t = &self.new.tensors[t];
        NewTensor { layout, ..NewTensor::activation(format!("{}.{suffix}", t.name), t.shape.clone(), t.dtype) }
    }

    fn stage_of_tensor(&self, t: TensorId) -> Option<u16> {
        self.new.tensors[t].producer.map(|n| self.new.nodes[n].stage)
    }

    /// The value as its node left it (sources: replicated unless they already have a layout).
    fn natural(&mut self, old: TensorId) -> TensorId {
        match self.versions[old.0 as usize].first() {
            Some(&t) => t,
            None => self.source(old, &Layout::replicated()),
        }
    }

    /// Adds a source and checks that the ranks can share it.
    fn source(&mut self, old: TensorId, layout: &Layout) -> TensorId {
        let t = &self.old.tensors[old];
        let dtype = if matches!(t.kind, TensorKind::Cache { .. }) { self.new.deployment.kv_dtype } else { t.dtype };
        let id = self.new.add_source(t.name.clone(), t.kind.clone(), t.shape.clone(), dtype);
        self.new.tensors[id].layout = layout.clone();
        for fault in split::faults(&self.new.deployment, &self.new.tensors[id]) {
            match self.faults.iter_mut().find(|f| f.same_as(&fault)) {
                Some(known) => known.tensors.extend(fault.tensors),
                None => self.faults.push(fault),
            }
        }
        self.versions[old.0 as usize].push(id);
        id
    }

    /// The version of an old tensor in a layout, made with the fewest communications from those there are.
    pub(super) fn want(&mut self, old: TensorId, layout: &Layout) -> TensorId {
        if self.versions[old.0 as usize].is_empty() {
            return self.source(old, layout);
        }
        let d = &self.new.deployment;
        let (start, steps) = self.versions[old.0 as usize]
            .iter()
            .map(|&v| (v, conversions(d, &self.new.tensors[v].layout, layout)))
            .min_by_key(|(_, steps)| (communications(steps), steps.len()))
            .expect("at least one version");
        let producer = self.new.tensors[start].producer.map(|n| (self.new.nodes[n].layer, self.new.nodes[n].stage));
        let (layer, stage) = producer.unwrap_or((None, 0));
        let mut now = start;
        for (op, layout) in steps {
            let suffix = match op {
                Op::AllReduce { .. } => "all_reduced".into(),
                Op::AllGather { axis, .. } => format!("gathered_{}", axis.name()),
                Op::ReduceScatter { .. } => "reduce_scattered".into(),
                Op::Slice { axis, .. } => format!("sliced_{}", axis.name()),
                _ => "converted".into(),
            };
            let result = self.like(now, &suffix, layout);
            now = self.new.add_node(op, layer, stage, vec![now], vec![result])[0];
            self.versions[old.0 as usize].push(now);
        }
        now
    }

    /// The same tensor on `stage`, sent there if it is elsewhere.
    fn bring(&mut self, t: TensorId, stage: u16, layer: Option<u16>) -> TensorId {
        match self.stage_of_tensor(t) {
            Some(from) if from != stage => {
                let result = self.like(t, &format!("stage_{stage}"), self.new.tensors[t].layout.clone());
                self.new.add_node(Op::SendRecv { from, to: stage }, layer, stage, vec![t], vec![result])[0]
            }
            _ => t,
        }
    }
}
