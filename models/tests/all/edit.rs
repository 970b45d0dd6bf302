//! Edits of graphs that make them wrong in one way.

use moetwin_models::{Graph, IdVec, Node, NodeId, Tensor, TensorId, TensorKind};

/// The graph without a node: what it computed is replaced by its operands, result by result.
pub(crate) fn without(graph: &Graph, gone: NodeId) -> Graph {
    let node = &graph.nodes[gone];
    let mut tensors: IdVec<TensorId, Tensor> = IdVec::new();
    let mut renamed: Vec<Option<TensorId>> = Vec::new();
    for (id, t) in graph.tensors.iter() {
        let result = node.outputs.iter().position(|o| *o == id);
        renamed.push(match result {
            Some(i) => renamed[node.inputs[i].0 as usize],
            None => Some(tensors.push(t.clone())),
        });
    }
    let rename = |t: &TensorId| renamed[t.0 as usize].unwrap();
    let node_id = |n: NodeId| if n > gone { NodeId(n.0 - 1) } else { n };
    for id in tensors.ids() {
        let t = &mut tensors[id];
        t.producer = t.producer.map(node_id);
        if let TensorKind::CacheUpdate { of } = &mut t.kind {
            *of = rename(of);
        }
    }
    let keep =
        |n: &Node| Node { inputs: n.inputs.iter().map(rename).collect(), outputs: n.outputs.iter().map(rename).collect(), ..n.clone() };
    Graph {
        tensors,
        nodes: graph.nodes.iter().filter(|(id, _)| *id != gone).map(|(_, n)| keep(n)).collect(),
        outputs: graph.outputs.iter().map(|(name, t)| (name.clone(), rename(t))).collect(),
        ..graph.clone()
    }
}

/// The first node that `is` picks.
pub(crate) fn find(graph: &Graph, is: impl Fn(&Node) -> bool) -> NodeId {
    graph.nodes.iter().find(|(_, n)| is(n)).map(|(id, _)| id).expect("the graph has such a node")
}
