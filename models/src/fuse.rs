//! All-reduces and the norms behind them as one node: a pass from a sharded graph to one that computes the same in fewer commands.
//!
//! An all-reduce is fused where nothing but one [`Op::AddRmsNorm`] on its stage reads the sum, as its delta. The new node takes the norm's place:
//! every operand of both exists by then.

use crate::graph::{Graph, Node, SplitError, Tensor, TensorKind};
use crate::ids::{IdVec, NodeId, RankId, TensorId};
use crate::op::Op;

/// A sum over ranks that a norm follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormedSum {
    /// Ranks that take part.
    pub members: u32,
    /// The most rows that a rank has of it.
    pub rows: u64,
    /// Elements of a row.
    pub width: u64,
}

/// The graph with every sum that `takes` accepts fused into its norm.
///
/// # Errors
/// Where the deployment cannot cut a sum.
pub fn sums_into_norms(graph: &Graph, takes: impl Fn(NormedSum) -> bool) -> Result<Graph, SplitError> {
    let mut fused: Vec<Option<NodeId>> = vec![None; graph.nodes.len()];
    let readers = readers(graph);
    for (id, node) in graph.nodes.iter() {
        let Some(norm) = norm_of(graph, node, &readers) else { continue };
        if takes(sum_of(graph, node)?) {
            fused[norm.0 as usize] = Some(id);
        }
    }
    Ok(if fused.iter().any(Option::is_some) { without(graph, &fused) } else { graph.clone() })
}

/// How often each tensor is read, named results included, and by which node last.
fn readers(graph: &Graph) -> Vec<(u32, Option<NodeId>)> {
    let mut readers = vec![(0, None); graph.tensors.len()];
    for (id, node) in graph.nodes.iter() {
        for t in &node.inputs {
            let (count, last) = &mut readers[t.0 as usize];
            (*count, *last) = (*count + 1, Some(id));
        }
    }
    for (_, t) in &graph.outputs {
        readers[t.0 as usize].0 += 1;
    }
    readers
}

/// The norm that alone reads an all-reduce's sum.
fn norm_of(graph: &Graph, node: &Node, readers: &[(u32, Option<NodeId>)]) -> Option<NodeId> {
    let (Op::AllReduce { .. }, [sum]) = (&node.op, node.outputs.as_slice()) else { return None };
    let (1, Some(reader)) = readers[sum.0 as usize] else { return None };
    let norm = &graph.nodes[reader];
    let normed = matches!(norm.op, Op::AddRmsNorm { .. }) && norm.inputs.first() == Some(sum) && norm.stage == node.stage;
    normed.then_some(reader)
}

fn sum_of(graph: &Graph, node: &Node) -> Result<NormedSum, SplitError> {
    let Op::AllReduce { axis } = node.op else { return Ok(NormedSum { members: 1, rows: 0, width: 0 }) };
    let d = &graph.deployment;
    let mut sum = NormedSum { members: d.axis_size(axis), rows: 0, width: graph.local_size(node.outputs[0], 1, RankId(0))? };
    for rank in (0..d.ranks()).map(RankId).filter(|rank| d.stage(*rank) == u32::from(node.stage)) {
        sum.rows = sum.rows.max(graph.local_size(node.outputs[0], 0, rank)?);
    }
    Ok(sum)
}

/// The graph with the all-reduce `fused[norm]` in each norm that has one.
fn without(graph: &Graph, fused: &[Option<NodeId>]) -> Graph {
    let gone: Vec<NodeId> = {
        let mut all: Vec<NodeId> = fused.iter().flatten().copied().collect();
        all.sort_unstable();
        all
    };
    let node_id = |n: NodeId| NodeId(n.0 - gone.partition_point(|g| *g < n) as u32);
    let mut lost: Vec<TensorId> = gone.iter().map(|n| graph.nodes[*n].outputs[0]).collect();
    lost.sort_unstable();
    let tensor_id = |t: TensorId| TensorId(t.0 - lost.partition_point(|l| *l < t) as u32);
    let tensor = |t: &Tensor| {
        let mut t = Tensor { producer: t.producer.map(node_id), ..t.clone() };
        if let TensorKind::CacheUpdate { of } = &mut t.kind {
            *of = tensor_id(*of);
        }
        t
    };
    let node = |id: NodeId, n: &Node| {
        let mut n = n.clone();
        if let (Some(sum), Op::AddRmsNorm { eps }) = (fused[id.0 as usize].map(|s| &graph.nodes[s]), &n.op)
            && let Op::AllReduce { axis } = sum.op
        {
            (n.op, n.layer) = (Op::AllReduceAddRmsNorm { axis, eps: *eps }, sum.layer);
            n.inputs[0] = sum.inputs[0];
        }
        n.inputs.iter_mut().chain(&mut n.outputs).for_each(|t| *t = tensor_id(*t));
        n
    };
    let tensors: IdVec<TensorId, Tensor> =
        graph.tensors.iter().filter(|(id, _)| lost.binary_search(id).is_err()).map(|(_, t)| tensor(t)).collect();
    Graph {
        tensors,
        nodes: graph.nodes.iter().filter(|(id, _)| gone.binary_search(id).is_err()).map(|(id, n)| node(id, n)).collect(),
        outputs: graph.outputs.iter().map(|(name, t)| (name.clone(), tensor_id(*t))).collect(),
        step: graph.step.clone(),
        deployment: graph.deployment.clone(),
    }
}
