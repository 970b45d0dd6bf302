//! The verifier: what must hold of every graph, whoever made it. It recomputes shapes and layouts on its own, from per-op rules that
//! share nothing with the shard pass, and reports every fault with the entity and its printed line.

mod layout;
mod place;
mod rule;
mod shape;
mod structure;

pub use rule::Rule;

use crate::graph::{Graph, Node, Tensor};
use crate::ids::{NodeId, TensorId};
use crate::text::{node_line, tensor_line};
use std::fmt;

/// What a fault is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entity {
    /// The graph as a whole: its step or its deployment.
    Graph,
    /// A tensor.
    Tensor(TensorId),
    /// A node.
    Node(NodeId),
    /// A named output.
    Output(String),
}

/// A rule that a graph breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rule.
    pub rule: Rule,
    /// Where.
    pub entity: Entity,
    /// The entity as graph text; empty for the whole graph.
    pub line: String,
    /// What is wrong there, and what would be right.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule.name(), self.message)?;
        if self.line.is_empty() { Ok(()) } else { write!(f, "\n  {}", self.line) }
    }
}

/// Checks every [`Rule`]. Errors list every fault, in the order of nodes and tensors within a rule.
///
/// Rules build on each other: where ids or operand counts are wrong, shapes are not looked at; where the deployment is not one,
/// layouts are not.
pub fn verify(graph: &Graph) -> Result<(), Vec<Fault>> {
    let mut check = Check { graph, faults: Vec::new() };
    check.deployment();
    check.ids();
    if check.faults.is_empty() {
        check.producers();
        check.names();
        check.operands();
        check.caches();
        check.sizes();
    }
    if check.faults.is_empty() {
        check.shapes();
        check.well_formed_layouts();
        check.splits();
        check.layouts();
        check.stages();
        check.placement();
        check.outputs();
    }
    if check.faults.is_empty() { Ok(()) } else { Err(check.faults) }
}

/// Faults found so far.
struct Check<'a> {
    graph: &'a Graph,
    faults: Vec<Fault>,
}

impl<'a> Check<'a> {
    fn add(&mut self, rule: Rule, entity: Entity, message: impl Into<String>) {
        let line = match &entity {
            Entity::Graph => String::new(),
            Entity::Tensor(t) => match self.graph.tensors.get(*t).and_then(|t| t.producer) {
                Some(node) => node_line(self.graph, node),
                None => tensor_line(self.graph, *t),
            },
            Entity::Node(n) => node_line(self.graph, *n),
            Entity::Output(name) => format!("output {name}"),
        };
        self.faults.push(Fault { rule, entity, line, message: message.into() });
    }
    fn node_fault(&mut self, rule: Rule, node: NodeId, message: impl Into<String>) {
        self.add(rule, Entity::Node(node), message);
    }
    fn tensor_fault(&mut self, rule: Rule, tensor: TensorId, message: impl Into<String>) {
        self.add(rule, Entity::Tensor(tensor), message);
    }
}

/// A node with its tensors; only made once ids are in range.
#[derive(Clone, Copy)]
struct View<'a> {
    graph: &'a Graph,
    node: &'a Node,
}

impl<'a> View<'a> {
    fn input(&self, i: usize) -> Option<&'a Tensor> {
        self.node.inputs.get(i).map(|t| &self.graph.tensors[*t])
    }
    fn inputs(&self) -> impl Iterator<Item = &'a Tensor> + '_ {
        self.node.inputs.iter().map(|t| &self.graph.tensors[*t])
    }
    fn output(&self, i: usize) -> Option<&'a Tensor> {
        self.node.outputs.get(i).map(|t| &self.graph.tensors[*t])
    }
}
