//! For each rule a graph that only it rejects.

use crate::edit::{find, without};
use moetwin_models::op::LinearRole;
use moetwin_models::verify::Rule;
use moetwin_models::{
    AllToAll, Axis, BuildOptions, DType, Deployment, Dim, ExpertPlacement, Graph, Layout, ModelSpec, NodeId, Op, Phase, Step, TensorId,
    TensorKind, fuse, plan, shard, text, verify, zoo,
};

fn model() -> ModelSpec {
    let mut spec = zoo::spec("kimi-k2.5").unwrap();
    spec.layers.truncate(3);
    spec
}

fn planned(deployment: &Deployment) -> Graph {
    plan(&model(), &Step::uniform(Phase::Decode, 4, 100), deployment, &BuildOptions::default()).unwrap()
}

fn tp(n: u32) -> Deployment {
    Deployment { tp: n, ..Deployment::single() }
}

fn linear(graph: &Graph, role: LinearRole) -> NodeId {
    find(graph, |n| n.op == Op::Linear { role })
}

/// The graph is rejected, and by nothing but `rule`.
#[track_caller]
fn only(rule: Rule, graph: &Graph) {
    let faults = verify(graph).expect_err("the mutated graph is accepted");
    for fault in &faults {
        assert_eq!(fault.rule, rule, "{fault}");
        assert!(!fault.message.is_empty() && !fault.to_string().is_empty());
    }
}

#[test]
fn what_is_mutated_was_right() {
    for d in [tp(1), tp(2), Deployment { pp: 3, ..tp(2) }, Deployment { dp_attention: 2, ep: 4, a2a: AllToAll::Nccl, ..tp(4) }] {
        planned(&d);
    }
}

#[test]
fn deployment() {
    let mut g = planned(&tp(4));
    g.deployment.ep = 3;
    only(Rule::Deployment, &g);
    g.deployment.ep = 0;
    only(Rule::Deployment, &g);
}

#[test]
fn ids() {
    let mut g = planned(&tp(2));
    let n = linear(&g, LinearRole::O);
    g.nodes[n].inputs[0] = TensorId(1 << 20);
    only(Rule::Ids, &g);
    let mut g = planned(&tp(2));
    g.outputs[0].1 = TensorId(1 << 20);
    only(Rule::Ids, &g);
}

#[test]
fn producer() {
    let mut g = planned(&tp(2));
    let t = g.nodes[linear(&g, LinearRole::O)].outputs[0];
    g.tensors[t].producer = None;
    only(Rule::Producer, &g);
}

#[test]
fn order() {
    let mut g = planned(&tp(2));
    let (a, b) = (linear(&g, LinearRole::DenseGateUp), find(&g, |n| matches!(n.op, Op::GatedActivation { .. })));
    (g.nodes[a], g.nodes[b]) = (g.nodes[b].clone(), g.nodes[a].clone());
    for n in [a, b] {
        for t in g.nodes[n].outputs.clone() {
            g.tensors[t].producer = Some(n);
        }
    }
    only(Rule::Order, &g);
}

#[test]
fn names() {
    let mut g = planned(&tp(2));
    g.tensors[TensorId(3)].name = g.tensors[TensorId(5)].name.clone();
    only(Rule::Names, &g);
}

#[test]
fn operands() {
    let mut g = planned(&tp(2));
    let n = find(&g, |n| matches!(n.op, Op::RmsNorm { .. }));
    g.nodes[n].inputs.pop();
    only(Rule::Operands, &g);
    let mut g = planned(&tp(2));
    let n = find(&g, |n| matches!(n.op, Op::MlaRope { .. }));
    g.nodes[n].inputs.swap(2, 3);
    only(Rule::Operands, &g);
}

#[test]
fn cache() {
    let mut g = planned(&tp(2));
    let n = find(&g, |n| matches!(n.op, Op::MlaDecode { .. }));
    let TensorKind::CacheUpdate { of } = g.tensors[g.nodes[n].inputs[1]].kind else { panic!("decode reads the updated cache") };
    g.nodes[n].inputs[1] = of;
    only(Rule::Cache, &g);
}

#[test]
fn size() {
    let mut g = planned(&tp(2));
    g.step.sequences[1].new = 0;
    only(Rule::Size, &g);
    let mut g = planned(&tp(2));
    let t = g.nodes[linear(&g, LinearRole::O)].inputs[1];
    g.tensors[t].shape[0] = Dim::Fixed(1 << 62);
    only(Rule::Size, &g);
}

#[test]
fn shape() {
    let mut g = planned(&tp(2));
    let t = g.nodes[linear(&g, LinearRole::Router)].inputs[1];
    g.tensors[t].shape[1] = Dim::Fixed(7169);
    only(Rule::Shape, &g);
}

#[test]
fn element_type() {
    let mut g = planned(&tp(2));
    let t = g.nodes[linear(&g, LinearRole::Router)].outputs[0];
    g.tensors[t].dtype = DType::Bf16;
    only(Rule::ElementType, &g);
}

#[test]
fn axes() {
    let mut g = planned(&tp(2));
    let dims = vec![Dim::Fixed(4)];
    let weight = g.tensors[g.nodes[linear(&g, LinearRole::Router)].inputs[1]].kind.clone();
    for (i, layout) in [Layout::partial(Axis::Tp), Layout::shard(Axis::Tp, 1), Layout::shard(Axis::Ep, 0)].into_iter().enumerate() {
        let t = g.add_source(format!("unused.{i}"), weight.clone(), dims.clone(), DType::Bf16);
        g.tensors[t].layout = layout;
    }
    only(Rule::Axes, &g);
    assert_eq!(verify(&g).unwrap_err().len(), 3);
}

#[test]
fn split() {
    // Sixty-four heads over three ranks.
    let mut g = planned(&tp(2));
    g.deployment.tp = 3;
    only(Rule::Split, &g);
}

#[test]
fn layout() {
    let mut g = planned(&tp(2));
    let n = find(&g, |n| matches!(n.op, Op::MlaNorm { .. }));
    let q = g.nodes[n].outputs[0];
    g.tensors[q].layout = Layout::shard(Axis::Tp, 0);
    only(Rule::Layout, &g);
    // The gathers go from the inner cut to the outer one.
    let d = Deployment { dp_attention: 2, ep: 4, a2a: AllToAll::Nccl, ..tp(4) };
    let mut g = planned(&d);
    let last = g.nodes.iter().rfind(|(_, n)| matches!(n.op, Op::AllGather { axis: Axis::AttnTp, .. })).unwrap().0;
    g.nodes[last].op = Op::AllGather { axis: Axis::AttnDp, dim: 0 };
    only(Rule::Layout, &g);
}

#[test]
fn a_fused_sum_needs_whole_rows_of_a_summand_and_a_residual_beside_it() {
    let fused = |d: &Deployment| fuse::sums_into_norms(&planned(d), |_| true).unwrap();
    let is = |n: &moetwin_models::Node| matches!(n.op, Op::AllReduceAddRmsNorm { .. });
    verify(&fused(&tp(2))).unwrap();
    // Summed already.
    let mut g = fused(&tp(2));
    let n = find(&g, is);
    g.nodes[n].inputs[0] = g.nodes[n].inputs[1];
    only(Rule::Layout, &g);
    // A residual, and a result, that are summands themselves.
    let mut g = fused(&tp(2));
    let (a, b) = (g.nodes[find(&g, is)].inputs[0], find(&g, is));
    g.nodes[b].inputs[1] = a;
    only(Rule::Layout, &g);
    // Results laid out otherwise.
    let d = Deployment { dp_attention: 2, ..tp(4) };
    let mut g = fused(&d);
    let n = find(&g, is);
    let y = g.nodes[n].outputs[0];
    assert_eq!(g.tensors[y].layout, Layout::shard(Axis::AttnDp, 0));
    g.tensors[y].layout = Layout::replicated();
    assert!(verify(&g).unwrap_err().iter().any(|f| f.rule == Rule::Layout));
    // A norm of columns.
    let mut g = fused(&tp(2));
    let n = find(&g, is);
    let delta = g.nodes[n].inputs[0];
    g.tensors[delta].layout = Layout::shard(Axis::Tp, 1);
    assert!(verify(&g).unwrap_err().iter().any(|f| f.to_string().contains("nothing to sum over tp")));
}

#[test]
fn partial() {
    let g = planned(&tp(2));
    for n in g.nodes.ids().filter(|n| matches!(g.nodes[*n].op, Op::AllReduce { .. })) {
        only(Rule::Partial, &without(&g, n));
    }
    let mut g = planned(&tp(2));
    let o = g.nodes[linear(&g, LinearRole::O)].outputs[0];
    g.outputs.push(("summand".into(), o));
    only(Rule::Partial, &g);
}

#[test]
fn stage() {
    let g = planned(&Deployment { pp: 3, ..tp(2) });
    let sends: Vec<NodeId> = g.nodes.ids().filter(|n| matches!(g.nodes[*n].op, Op::SendRecv { .. })).collect();
    assert_eq!(sends.len(), 2, "the residual sum crosses each boundary alone");
    for n in sends {
        only(Rule::Stage, &without(&g, n));
    }
}

#[test]
fn placement() {
    let placement = Some(ExpertPlacement { physical_to_logical: (0..384).rev().collect() });
    for d in [Deployment { ep: 2, ..tp(2) }, Deployment { ep: 2, a2a: AllToAll::Deepep, ..tp(2) }] {
        let g = planned(&Deployment { placement: placement.clone(), ..d });
        let places: Vec<NodeId> = g.nodes.ids().filter(|n| g.nodes[*n].op == Op::PlaceExperts).collect();
        assert_eq!(places.len(), 2);
        only(Rule::Placement, &without(&g, places[0]));
    }
}

/// Nothing that the pass inserts can be left out.
#[test]
fn every_inserted_node_is_needed() {
    let base = tp(4);
    let deployments = [
        tp(2),
        Deployment { ep: 2, ..base.clone() },
        Deployment { ep: 4, a2a: AllToAll::Nccl, ..base.clone() },
        Deployment { dp_attention: 2, ..base.clone() },
        Deployment { dp_attention: 4, ep: 4, ..base.clone() },
        Deployment { dp_attention: 4, ep: 4, a2a: AllToAll::Flashinfer, ..base.clone() },
        Deployment { dp_attention: 2, ep: 4, a2a: AllToAll::Flashinfer, ..base.clone() },
        Deployment { pp: 3, dp_attention: 2, ep: 4, a2a: AllToAll::Deepep, ..base },
    ];
    for d in deployments {
        let g = planned(&d);
        for (id, node) in g.nodes.iter().filter(|(_, n)| n.op.is_communication() || matches!(n.op, Op::Slice { .. })) {
            let rejected = verify(&without(&g, id)).is_err();
            assert!(rejected, "{d:?}: accepted without\n{}", text::node_line(&g, id));
            assert!(!node.outputs.is_empty());
        }
    }
}

#[test]
fn a_shard_of_a_shard_is_refused() {
    let error = shard(&planned(&tp(2)), &tp(2)).unwrap_err().to_string();
    assert!(error.contains("spread over ranks already"), "{error}");
}

/// Every rule has a name, a reason, and a test here.
#[test]
fn rules_are_told_apart() {
    let this = include_str!("rules.rs");
    for rule in Rule::ALL {
        assert!(this.contains(&format!("only(Rule::{rule:?},")), "{rule:?} is never the only rule broken");
        assert!(rule.why().len() > 20 && !rule.name().is_empty());
    }
    let mut names = Rule::ALL.map(Rule::name);
    names.sort_unstable();
    assert!(names.windows(2).all(|w| w[0] != w[1]));
}
