//! Kimi-K2.5's arithmetic: collectives a step, bytes a rank.

use moetwin_models::graph::CollectiveCounts;
use moetwin_models::{AllToAll, BuildOptions, DType, Deployment, Graph, Op, Phase, RankId, Step, TensorKind, WeightRole, plan, zoo};

fn planned_with(step: &Step, deployment: &Deployment) -> Graph {
    plan(&zoo::spec("kimi-k2.5").unwrap(), step, deployment, &BuildOptions::default()).unwrap()
}

fn planned(deployment: &Deployment) -> Graph {
    planned_with(&Step::uniform(Phase::Decode, 1, 4096), deployment)
}

fn tp8() -> Deployment {
    Deployment { tp: 8, ..Deployment::single() }
}

/// GiB of the weights of these roles on rank 0.
fn gib(graph: &Graph, roles: &[WeightRole]) -> f64 {
    let held = graph.tensors.iter().filter(|(_, t)| matches!(t.kind, TensorKind::Weight(w) if roles.contains(&w.role)));
    let bytes: u64 = held.map(|(id, _)| graph.local_bytes(id, RankId(0)).unwrap()).sum();
    bytes as f64 / f64::from(1 << 30)
}

#[track_caller]
fn about(value: f64, expected: f64, digit: f64) {
    assert!((value - expected).abs() <= digit / 2.0, "{value} is not {expected}");
}

#[test]
fn tensor_parallel_sums_twice_a_layer() {
    for ep in [1, 2, 8] {
        let counts = planned(&Deployment { ep, ..tp8() }).collective_counts();
        assert_eq!(counts, CollectiveCounts { all_reduce: 2 * 61 + 1, all_gather: 1, ..CollectiveCounts::default() });
    }
}

#[test]
fn a_sum_is_fourteen_kib_a_token() {
    for (step, bytes) in [(Step::uniform(Phase::Decode, 1, 4096), 14 << 10), (Step::uniform(Phase::Verify(3), 1, 4096), 42 << 10)] {
        let g = planned_with(&step, &tp8());
        for (_, node) in g.nodes.iter().filter(|(_, n)| matches!(n.op, Op::AllReduce { .. })) {
            assert_eq!(g.local_bytes(node.outputs[0], RankId(3)).unwrap(), bytes);
        }
    }
}

#[test]
fn an_all_to_all_makes_four_collectives_a_moe_layer() {
    let counts = planned(&Deployment { ep: 8, a2a: AllToAll::Flashinfer, ..tp8() }).collective_counts();
    let (embedding_and_dense, logits) = (1 + 2, 1);
    let expected = CollectiveCounts {
        all_reduce: embedding_and_dense,
        reduce_scatter: 60,
        dispatch: 60,
        combine: 60,
        all_gather: 60 + logits,
        send_recv: 0,
    };
    assert_eq!(counts, expected);
    assert_eq!(counts.total(), 242 + 2);
}

#[test]
fn data_parallel_attention_needs_only_the_all_to_all() {
    let d = Deployment { dp_attention: 8, ep: 8, a2a: AllToAll::Nccl, ..tp8() };
    let counts = planned_with(&Step::uniform(Phase::Decode, 8, 4096), &d).collective_counts();
    // The dense layer and the head gather rows; the dense layer scatters its sum.
    let expected = CollectiveCounts { all_gather: 1 + 1 + 1, reduce_scatter: 1, dispatch: 60, combine: 60, ..CollectiveCounts::default() };
    assert_eq!(counts, expected);
}

#[test]
fn pipeline_stages_send_the_residual_sum() {
    let counts = planned(&Deployment { pp: 4, ..tp8() }).collective_counts();
    assert_eq!((counts.send_recv, counts.all_reduce), (3, 123));
}

#[test]
fn a_rank_of_eight_holds_its_share() {
    use WeightRole::{
        DenseDown, DenseGateUp, Embedding, ExpertsDown, ExpertsGateUp, KvB, LmHead, O, QaKva, Qb, Router, SharedDown, SharedGateUp,
    };
    let (tp, ep) = (planned(&tp8()), planned(&Deployment { ep: 8, ..tp8() }));
    let a2a = planned(&Deployment { ep: 8, a2a: AllToAll::Flashinfer, ..tp8() });
    for g in [&tp, &ep, &a2a] {
        about(gib(g, &[ExpertsGateUp, ExpertsDown]), 66.45, 0.01);
        about(gib(g, &[QaKva]), 1.72, 0.01);
        about(gib(g, &[Qb, KvB, O]), 1.22, 0.01);
        about(gib(g, &[DenseGateUp, DenseDown]), 0.09, 0.01);
        about(gib(g, &[Router]), 0.31, 0.01);
        about(gib(g, &[Embedding, LmHead]), 0.55, 0.01);
    }
    about(gib(&tp, &[SharedGateUp, SharedDown]), 0.615, 0.001);
    about(gib(&ep, &[SharedGateUp, SharedDown]), 0.615, 0.001);
    // An all-to-all leaves tokens on one rank each, so every rank needs the whole shared expert.
    about(gib(&a2a, &[SharedGateUp, SharedDown]) - gib(&tp, &[SharedGateUp, SharedDown]), 4.307, 0.001);
    let attention = |g: &Graph| gib(g, &[QaKva, Qb, KvB, O]);
    assert_eq!(attention(&tp), attention(&a2a));
    let dp = planned(&Deployment { dp_attention: 8, ..tp8() });
    about(attention(&dp) - 1.72, 8.0 * 1.22, 0.05);
}

#[test]
fn the_cache_takes_70_272_bytes_a_token() {
    for (kv_dtype, per_token) in [(DType::Bf16, 70_272), (DType::Fp8, 70_272 / 2)] {
        let g = planned(&Deployment { kv_dtype, ..tp8() });
        let caches = g.tensors.iter().filter(|(_, t)| matches!(t.kind, TensorKind::Cache { .. }));
        let bytes: u64 = caches.map(|(id, _)| g.local_bytes(id, RankId(5)).unwrap()).sum();
        assert_eq!(bytes, 4097 * per_token);
    }
}
