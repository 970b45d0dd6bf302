//! Graphs as pictures: Graphviz's DOT.

use crate::graph::{Graph, Node};
use crate::ids::{NodeId, TensorId};
use crate::text::{op_name, shape_text};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Which layers are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// Every layer.
    All,
    /// One layer of each kind (those whose ops are not the same as an earlier layer's), and what is outside layers.
    Representative,
}

/// The graph in DOT: a box a node, a cluster a layer, collectives filled, edges labelled with shape and layout.
pub fn dot(graph: &Graph, layers: Layers) -> String {
    let drawn = drawn(graph, layers);
    let mut text = String::from(
        "digraph moetwin {\n  rankdir=TB;\n  node [shape=box, fontname=\"monospace\", fontsize=10];\n  edge [fontname=\"monospace\", fontsize=8];\n",
    );
    let mut clusters: BTreeMap<Option<u16>, Vec<NodeId>> = BTreeMap::new();
    for (id, node) in graph.nodes.iter().filter(|(id, _)| drawn[id.0 as usize]) {
        clusters.entry(node.layer).or_default().push(id);
    }
    for (layer, nodes) in &clusters {
        let indent = if layer.is_some() { "    " } else { "  " };
        if let Some(layer) = layer {
            let _ = writeln!(text, "  subgraph cluster_{layer} {{\n    label={};", quoted(&cluster_label(graph, *layer, layers)));
        }
        for &id in nodes {
            let _ = writeln!(text, "{indent}{id} [{}];", attributes(graph, id));
        }
        if layer.is_some() {
            text.push_str("  }\n");
        }
    }
    for (id, node) in graph.nodes.iter().filter(|(id, _)| drawn[id.0 as usize]) {
        for &input in &node.inputs {
            if let Some(from) = visible_producer(graph, &drawn, input) {
                let t = &graph.tensors[input];
                let label = quoted(&format!("{} {}", shape_text(&t.shape), t.layout));
                let cut = if graph.tensors[input].producer == Some(from) { "" } else { ", style=dashed" };
                let _ = writeln!(text, "  {from} -> {id} [label={label}{cut}];");
            }
        }
    }
    text.push_str("}\n");
    text
}

/// The ops of a layer, collectives included: layers with the same ones look the same.
fn kind(graph: &Graph, layer: u16) -> Vec<String> {
    graph.nodes.iter().filter(|(_, n)| n.layer == Some(layer)).map(|(_, n)| op_name(&n.op)).collect()
}

/// Whether each node is drawn.
fn drawn(graph: &Graph, layers: Layers) -> Vec<bool> {
    let mut kinds: Vec<Vec<String>> = Vec::new();
    let mut shown: BTreeMap<u16, bool> = BTreeMap::new();
    let draw = |node: &Node| match (node.layer, layers) {
        (None, _) | (_, Layers::All) => true,
        (Some(layer), Layers::Representative) => *shown.entry(layer).or_insert_with(|| {
            let kind = kind(graph, layer);
            let new = !kinds.contains(&kind);
            kinds.extend(new.then_some(kind));
            new
        }),
    };
    graph.nodes.iter().map(|(_, n)| n).map(draw).collect()
}

/// The nearest drawn node that a value comes from; layers that are not drawn are crossed along first operands.
fn visible_producer(graph: &Graph, drawn: &[bool], mut tensor: TensorId) -> Option<NodeId> {
    // Each step goes to an earlier node, so this ends; the bound is for graphs that are not verified.
    for _ in 0..graph.nodes.len() {
        let producer = graph.tensors.get(tensor)?.producer?;
        if *drawn.get(producer.0 as usize)? {
            return Some(producer);
        }
        tensor = *graph.nodes.get(producer)?.inputs.first()?;
    }
    None
}

fn cluster_label(graph: &Graph, layer: u16, layers: Layers) -> String {
    let name = format!("layer {layer}");
    if layers == Layers::All {
        return name;
    }
    let mut all: Vec<u16> = graph.nodes.iter().filter_map(|(_, n)| n.layer).collect();
    all.dedup();
    let this = kind(graph, layer);
    match all.iter().filter(|l| kind(graph, **l) == this).count() {
        1 => name,
        n => format!("{name}, one of {n} alike"),
    }
}

fn attributes(graph: &Graph, id: NodeId) -> String {
    let node = &graph.nodes[id];
    let result = node.outputs.first().and_then(|t| graph.tensors.get(*t)).map_or("", |t| t.name.as_str());
    let mut label = format!("{id} {}\n{result}", op_name(&node.op));
    if graph.deployment.pp > 1 {
        let _ = write!(label, "\nstage {}", node.stage);
    }
    let fill = if node.op.is_communication() { ", style=filled, fillcolor=\"#f4b183\"" } else { "" };
    format!("label={}{fill}", quoted(&label))
}

/// A DOT string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
