//! Where things are: exact splits, pipeline stages, expert slots.

use super::{Check, Rule, View};
use crate::dim::Dim;
use crate::graph::TensorKind;
use crate::ids::{NodeId, TensorId};
use crate::op::Op;
use crate::shard::split_faults;
use crate::text::shape_text;

/// Whether ids are experts or slots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ids {
    Experts,
    Slots,
}

impl Check<'_> {
    pub(super) fn splits(&mut self) {
        let graph = self.graph;
        for (id, tensor) in graph.tensors.iter() {
            for fault in split_faults(&graph.deployment, tensor) {
                self.tensor_fault(Rule::Split, id, fault.to_string());
            }
        }
    }

    pub(super) fn stages(&mut self) {
        let graph = self.graph;
        let stages = graph.deployment.pp;
        let mut home: Vec<Option<u16>> = vec![None; graph.tensors.len()];
        for (id, node) in graph.nodes.iter() {
            if u32::from(node.stage) >= stages {
                self.node_fault(Rule::Stage, id, format!("there is no stage {}, the last is {}", node.stage, stages - 1));
            }
            let mut reads = node.stage;
            if let Op::SendRecv { from, to } = node.op {
                reads = from;
                if to != node.stage || from >= to {
                    self.node_fault(Rule::Stage, id, "a send goes to a later stage, which the node is on");
                }
            }
            for &t in &node.inputs {
                let tensor = &graph.tensors[t];
                let on = match (tensor.producer, &tensor.kind) {
                    (Some(n), _) => Some(graph.nodes[n].stage),
                    // Weights and caches are held by the stage that uses them first; ids and positions are given to every stage.
                    (None, TensorKind::Weight(_) | TensorKind::Cache { .. }) => Some(*home[t.0 as usize].get_or_insert(reads)),
                    (None, _) => None,
                };
                if let Some(on) = on.filter(|on| *on != reads) {
                    self.node_fault(Rule::Stage, id, format!("{t} is on stage {on}, but read on stage {reads}"));
                }
            }
        }
    }

    pub(super) fn placement(&mut self) {
        let graph = self.graph;
        let wanted = if graph.deployment.placement.is_some() { Ids::Slots } else { Ids::Experts };
        // What each tensor's ids mean, where it holds any.
        let mut means: Vec<Option<Ids>> = vec![None; graph.tensors.len()];
        for (id, node) in graph.nodes.iter() {
            let meaning = |t: Option<&TensorId>| t.and_then(|t| means[t.0 as usize]);
            let first = meaning(node.inputs.first());
            match node.op {
                Op::Route { .. } => means[node.outputs[0].0 as usize] = Some(Ids::Experts),
                Op::PlaceExperts if first == Some(Ids::Experts) && wanted == Ids::Slots => {
                    means[node.outputs[0].0 as usize] = Some(Ids::Slots);
                }
                Op::PlaceExperts => {
                    self.node_fault(Rule::Placement, id, "it places chosen experts, and only where the deployment has a placement")
                }
                Op::Dispatch => means[node.outputs[1].0 as usize] = meaning(node.inputs.get(1)),
                Op::AllGather { .. } | Op::Slice { .. } | Op::SendRecv { .. } => means[node.outputs[0].0 as usize] = first,
                Op::Experts { .. } if meaning(node.inputs.get(1)) != Some(wanted) => {
                    let what = if wanted == Ids::Slots { "slots from place_experts" } else { "experts from route" };
                    self.node_fault(Rule::Placement, id, format!("operand 1 must hold {what}"));
                }
                _ => {}
            }
            let view = View { graph, node };
            if let (Op::Experts { .. }, Some(logits)) = (&node.op, view.input(3).and_then(|t| t.shape.first())) {
                self.experts_match_router(id, view, logits);
            }
        }
    }

    /// The router scores as many experts as there are weights for.
    fn experts_match_router(&mut self, id: NodeId, v: View<'_>, experts: &Dim) {
        let Dim::Experts(held) = experts else { return };
        let mut ids = v.node.inputs[1];
        // Ids come from a route node through nodes that only move them; every step goes to an earlier node.
        while let Some(node) = v.graph.tensors[ids].producer.map(|n| &v.graph.nodes[n]) {
            match node.op {
                Op::Route { .. } => {
                    let scored = &v.graph.tensors[node.inputs[0]].shape;
                    if scored.get(1) != Some(&Dim::Fixed(*held)) {
                        let message = format!("{held} experts have weights, but the router scores {}", shape_text(scored));
                        self.node_fault(Rule::Placement, id, message);
                    }
                    return;
                }
                Op::Dispatch => ids = node.inputs[1],
                _ => match node.inputs.first() {
                    Some(&t) => ids = t,
                    None => return,
                },
            }
        }
    }
}
