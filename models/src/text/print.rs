//! Printing.

use super::{VERSION, header, value};
use crate::dim::{Dim, Segment};
use crate::graph::{Graph, Node, Tensor, TensorKind};
use crate::ids::{NodeId, TensorId};
use crate::op::Op;
use crate::weight::WeightRole;
use std::fmt::Write;

/// The whole graph as text.
pub fn print(graph: &Graph) -> String {
    let mut text = format!("moetwin graph {VERSION}\n");
    header::print(&mut text, &graph.step, &graph.deployment);
    text.push('\n');
    let mut printed = 0;
    for (id, tensor) in graph.tensors.iter() {
        match tensor.producer {
            None => text.push_str(&tensor_line(graph, id)),
            // A node's line stands where its first result does; nodes stay in order even where results do not.
            Some(node) if node.0 >= printed => {
                let first = printed;
                printed = node.0.saturating_add(1).min(u32::try_from(graph.nodes.len()).unwrap_or(u32::MAX));
                let lines: Vec<String> = (first..printed).map(|n| node_line(graph, NodeId(n))).collect();
                text.push_str(&lines.join("\n"));
            }
            Some(_) => continue,
        }
        text.push('\n');
    }
    for n in printed..u32::try_from(graph.nodes.len()).unwrap_or(u32::MAX) {
        text.push_str(&node_line(graph, NodeId(n)));
        text.push('\n');
    }
    for (name, tensor) in &graph.outputs {
        let _ = writeln!(text, "output {} = {tensor}", value::word(name));
    }
    text
}

/// The line of a tensor that no node computes; of a result, its part of its node's line.
pub fn tensor_line(graph: &Graph, id: TensorId) -> String {
    let Some(t) = graph.tensors.get(id) else { return format!("{id} is not a tensor of this graph") };
    let result = result(id, t);
    match &t.kind {
        TensorKind::Activation | TensorKind::CacheUpdate { .. } => result,
        TensorKind::TokenIds => format!("{result} = token_ids"),
        TensorKind::Positions => format!("{result} = positions"),
        TensorKind::Cache { layer } => format!("{result} = cache(L{layer})"),
        TensorKind::Weight(w) => {
            let layer = w.layer.map_or(String::new(), |l| format!("L{l}, "));
            format!("{result} = weight({}, {layer}{})", role_name(w.role), w.format.name())
        }
    }
}

/// The line of a node.
pub fn node_line(graph: &Graph, id: NodeId) -> String {
    let Some(node) = graph.nodes.get(id) else { return format!("{id} is not a node of this graph") };
    let layer = node.layer.map_or(String::new(), |l| format!(" L{l}"));
    let results = node.outputs.iter().map(|&t| match graph.tensors.get(t) {
        Some(tensor) => result(t, tensor),
        None => format!("{t} (not a tensor of this graph)"),
    });
    let results = results.collect::<Vec<_>>().join(", ");
    format!("{id}{layer} s{}: {results} = {}({})", node.stage, op_text(&node.op), operands(node))
}

fn operands(node: &Node) -> String {
    node.inputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// `t40 layers.3.attn.o: [tokens, 7168] bf16 partial@tp`.
fn result(id: TensorId, t: &Tensor) -> String {
    let mut text = format!("{id} {}: {} {}", value::word(&t.name), shape_text(&t.shape), t.dtype.name());
    if !t.layout.entries().is_empty() {
        let _ = write!(text, " {}", t.layout);
    }
    if let TensorKind::CacheUpdate { of } = t.kind {
        let _ = write!(text, " update({of})");
    }
    text
}

/// `[tokens, 7168]`.
pub(crate) fn shape_text(shape: &[Dim]) -> String {
    let mut text = String::from("[");
    for (i, dim) in shape.iter().enumerate() {
        text.push_str(if i > 0 { ", " } else { "" });
        print_dim(&mut text, dim);
    }
    text.push(']');
    text
}

fn print_dim(text: &mut String, dim: &Dim) {
    let _ = match dim {
        Dim::Tokens => write!(text, "tokens"),
        Dim::LogitsRows => write!(text, "logits_rows"),
        Dim::KvRows => write!(text, "kv_rows"),
        Dim::Received => write!(text, "received"),
        Dim::Fixed(n) => write!(text, "{n}"),
        Dim::Vocab(n) => write!(text, "vocab({n})"),
        Dim::Experts(n) => write!(text, "experts({n})"),
        Dim::Packed(segments) if segments.is_empty() => write!(text, "packed()"),
        Dim::Packed(segments) => {
            for (i, Segment { units, width, replicable }) in segments.iter().enumerate() {
                text.push_str(if i > 0 { "|" } else { "" });
                let _ = write!(text, "{units}x{width}{}", if *replicable { "~" } else { "" });
            }
            Ok(())
        }
    };
}

/// `linear.o`, `rms_norm`, `all_reduce@tp`: an op without its parameters, but for the ranks of a collective.
pub fn op_name(op: &Op) -> String {
    let value = op_value(op);
    match op {
        Op::AllReduce { axis }
        | Op::AllReduceAddRmsNorm { axis, .. }
        | Op::AllGather { axis, .. }
        | Op::ReduceScatter { axis, .. }
        | Op::Slice { axis, .. } => {
            format!("{}@{}", named(op, &value), axis.name())
        }
        _ => named(op, &value),
    }
}

fn op_value(op: &Op) -> serde_json::Value {
    // An op is a struct of numbers, words and booleans: it always has a value.
    serde_json::to_value(op).unwrap_or_default()
}

fn named(op: &Op, value: &serde_json::Value) -> String {
    let field = |key: &str| value.get(key).and_then(|v| v.as_str()).unwrap_or("?");
    match op {
        Op::Linear { .. } => format!("{}.{}", field("op"), field("role")),
        _ => field("op").to_owned(),
    }
}

/// `linear.o`, `rms_norm{eps=1e-5}`.
fn op_text(op: &Op) -> String {
    let value = op_value(op);
    let mut text = named(op, &value);
    if matches!(op, Op::Linear { .. }) {
        return text;
    }
    let params: Vec<_> = value.as_object().into_iter().flatten().filter(|(k, _)| *k != "op").collect();
    if !params.is_empty() {
        value::print_object(&mut text, params);
    }
    text
}

fn role_name(role: WeightRole) -> String {
    if let WeightRole::Other(index) = role {
        return format!("other{index}");
    }
    match serde_json::to_value(role) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "?".into(),
    }
}
