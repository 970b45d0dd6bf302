//! Sums over ranks with the norms behind them as one node.

use crate::edit::find;
use moetwin_models::{AllToAll, Axis, BuildOptions, Deployment, Graph, Op, Phase, Step, fuse, fuse::NormedSum, plan, verify, zoo};
use std::cell::RefCell;

fn planned(batch: u32, deployment: &Deployment, dump: bool) -> Graph {
    let mut spec = zoo::spec("kimi-k2.5").unwrap();
    spec.layers.truncate(3);
    plan(&spec, &Step::uniform(Phase::Decode, batch, 100), deployment, &BuildOptions { dump, ..BuildOptions::default() }).unwrap()
}

fn tp(n: u32) -> Deployment {
    Deployment { tp: n, ..Deployment::single() }
}

fn count(graph: &Graph, is: impl Fn(&Op) -> bool) -> usize {
    graph.nodes.iter().filter(|(_, n)| is(&n.op)).count()
}

fn normed(graph: &Graph) -> usize {
    count(graph, |op| matches!(op, Op::AllReduceAddRmsNorm { .. }))
}

#[test]
fn two_sums_a_layer_are_fused_and_the_embedding_s_is_not() {
    let graph = planned(4, &tp(8), false);
    let asked = RefCell::new(Vec::new());
    let fused = fuse::sums_into_norms(&graph, |sum| {
        asked.borrow_mut().push(sum);
        true
    })
    .unwrap();
    assert_eq!(asked.into_inner(), [NormedSum { members: 8, rows: 4, width: 7168 }; 6]);
    verify(&fused).unwrap();
    assert_eq!((normed(&fused), fused.nodes.len() + 6), (6, graph.nodes.len()));
    // The embedding's sum is normed without a residual, and is the residual afterwards.
    assert_eq!(count(&fused, |op| matches!(op, Op::AllReduce { .. })), 1);
    assert_eq!(count(&fused, |op| matches!(op, Op::AddRmsNorm { .. })), 0);
    // Each is of the layer whose sum it is: the last norm is of no layer.
    let layers: Vec<_> = fused.nodes.iter().filter(|(_, n)| n.op.is_communication() && n.layer.is_some()).map(|(_, n)| n.layer).collect();
    assert_eq!(layers, [Some(0), Some(0), Some(1), Some(1), Some(2), Some(2)]);
    // The eps is that of the norm.
    let eps = |g: &Graph| {
        let ops = g.nodes.iter().filter_map(|(_, n)| match n.op {
            Op::AddRmsNorm { eps } | Op::AllReduceAddRmsNorm { eps, .. } => Some(eps),
            _ => None,
        });
        ops.collect::<Vec<_>>()
    };
    assert_eq!(eps(&graph), eps(&fused));
}

#[test]
fn what_is_not_to_be_fused_stays_as_it_is() {
    let graph = planned(4, &tp(8), false);
    assert!(fuse::sums_into_norms(&graph, |_| false).unwrap() == graph);
    // One rank sums nothing; behind an all-to-all sums are scattered, and pipeline stages add before they send.
    assert_eq!(normed(&fuse::sums_into_norms(&planned(4, &tp(1), false), |_| true).unwrap()), 0);
    let scattered = Deployment { ep: 4, a2a: AllToAll::Nccl, ..tp(4) };
    assert!(normed(&fuse::sums_into_norms(&planned(4, &scattered, false), |_| true).unwrap()) <= 2);
    let staged = Deployment { pp: 3, ..tp(2) };
    let fused = fuse::sums_into_norms(&planned(4, &staged, false), |_| true).unwrap();
    verify(&fused).unwrap();
    assert_eq!(normed(&fused), 6 - 2, "a sum before each of two boundaries is added there");
}

#[test]
fn a_sum_that_somebody_else_reads_is_not_fused() {
    let mut graph = planned(4, &tp(2), false);
    let sum = graph.nodes[find(&graph, |n| matches!(n.op, Op::AllReduce { .. }) && n.layer == Some(1))].outputs[0];
    graph.outputs.push(("kept".to_owned(), sum));
    let fused = fuse::sums_into_norms(&graph, |_| true).unwrap();
    assert_eq!(normed(&fused), 5);
    verify(&fused).unwrap();
    assert!(fused.output("kept").is_some_and(|t| fused.tensors[t].name == graph.tensors[sum].name));
}

#[test]
fn rows_are_those_of_the_rank_that_has_most() {
    // Three sequences over two groups of two ranks: two rows in the first.
    let d = Deployment { dp_attention: 2, ..tp(4) };
    let asked = RefCell::new(Vec::new());
    let fused = fuse::sums_into_norms(&planned(3, &d, false), |sum| {
        asked.borrow_mut().push(sum);
        true
    })
    .unwrap();
    verify(&fused).unwrap();
    assert!(asked.into_inner().contains(&NormedSum { members: 2, rows: 2, width: 7168 }));
    assert!(fused.nodes.iter().any(|(_, n)| matches!(n.op, Op::AllReduceAddRmsNorm { axis: Axis::AttnTp, .. })));
}
