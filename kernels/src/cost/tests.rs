//! Facts of real models, against figures computed from their configurations elsewhere.

use super::*;
use crate::routing::{Distribution, SampledRouting};
use moetwin_models::build::BuildOptions;
use moetwin_models::op::LinearRole;
use moetwin_models::plan::plan;
use moetwin_models::{AllToAll, Deployment, Phase, Step, zoo};

fn graph(model: &str, step: &Step, deployment: &Deployment) -> Graph {
    let spec = zoo::spec(model).expect("a built-in model");
    plan(&spec, step, deployment, &BuildOptions::default()).expect("the deployment holds the model")
}

fn decode(batch: u32) -> Step {
    Step::uniform(Phase::Decode, batch, 4096)
}

fn tp8() -> Deployment {
    Deployment { tp: 8, ..Deployment::default() }
}

fn all_facts(graph: &Graph, rank: u32) -> Vec<(NodeId, CostFacts)> {
    let routing = SampledRouting::new(Distribution::Uniform, 1);
    graph.nodes.ids().map(|n| (n, facts(graph, n, RankId(rank), &routing).expect("the graph is cut"))).collect()
}

/// Facts of the first node of layer 1 that `pick` accepts.
fn first(graph: &Graph, pick: impl Fn(&Op) -> bool) -> CostFacts {
    let routing = SampledRouting::new(Distribution::Uniform, 1);
    let node = graph.nodes.iter().find(|(_, n)| n.layer == Some(1) && pick(&n.op)).expect("layer 1 has such a node").0;
    facts(graph, node, RankId(0), &routing).expect("the graph is cut")
}

fn linear(graph: &Graph, wanted: LinearRole) -> CostFacts {
    first(graph, |op| matches!(op, Op::Linear { role } if *role == wanted))
}

/// Megabytes a rank of Kimi-K2.5 under TP8 reads in one MoE layer, by projection.
#[test]
fn kimi_layer_reads_the_megabytes_of_its_configuration() {
    let g = graph("kimi-k2.5", &decode(1), &tp8());
    let mb = |bytes: u64| (bytes as f64 / 1e5).round() / 10.0;
    assert_eq!(mb(linear(&g, LinearRole::QaKva).weight_bytes), 30.3);
    assert_eq!(mb(linear(&g, LinearRole::Qb).weight_bytes), 4.7);
    assert_eq!(mb(linear(&g, LinearRole::O).weight_bytes), 14.7);
    assert_eq!(mb(linear(&g, LinearRole::Router).weight_bytes), 5.5);
    let shared = linear(&g, LinearRole::SharedGateUp).weight_bytes + linear(&g, LinearRole::SharedDown).weight_bytes;
    assert_eq!(mb(shared), 11.0);
    let absorb = first(&g, |op| matches!(op, Op::MlaAbsorbQuery { .. }));
    let expand = first(&g, |op| matches!(op, Op::MlaExpandValue { .. }));
    assert_eq!(mb(absorb.weight_bytes + expand.weight_bytes), 2.1);
    assert_eq!(absorb.shape, CostShape::Gemm { m: 1, n: 8 * 512, k: 128 });
    assert_eq!(expand.shape, CostShape::Gemm { m: 1, n: 8 * 128, k: 512 });
    // 4097 rows of 576 bf16 numbers, once for all heads, and 8 queries.
    let core = first(&g, |op| matches!(op, Op::MlaDecode { .. }));
    assert_eq!(core.read_bytes, 4097 * 1152 + 8 * 1152);
    assert_eq!(core.flops, 2 * 4097 * 8 * (576 + 512));
    assert_eq!(core.shape, CostShape::Attention { heads: 8, batch: 1, tokens: 1, kv_rows: 4097 });
    // An expert is 24.77 MB with its scales, a rank holds an eighth of each of the eight that are hit.
    let experts = first(&g, |op| matches!(op, Op::Experts { .. }));
    assert_eq!(mb(experts.weight_bytes), 24.8);
    assert_eq!(experts.flops, 2 * 3 * 8 * 7168 * 256);
    assert!(matches!(
        experts.shape,
        CostShape::Experts { tokens: 1, hidden: 7168, intermediate: 256, topk: 8, experts: 384, local_experts: 384, distinct: 8, pairs: 8 }
    ));
}

/// 6.32 GB a token at batch 1 and 75.8 GB at 64 (284 distinct experts a layer), computed elsewhere for 61 layers at 4096 tokens.
#[test]
fn kimi_step_reads_the_gigabytes_of_its_configuration() {
    for (batch, gigabytes) in [(1, 6.32), (64, 75.8)] {
        let g = graph("kimi-k2.5", &decode(batch), &tp8());
        let total: u64 = all_facts(&g, 0)
            .iter()
            .map(|(n, f)| f.weight_bytes + if g.nodes[*n].op.class() == moetwin_models::OpClass::AttentionCore { f.read_bytes } else { 0 })
            .sum();
        let got = total as f64 / 1e9;
        assert!((got / gigabytes - 1.0).abs() < 0.015, "batch {batch}: {got:.2} GB, expected {gigabytes}");
    }
}

#[test]
fn kimi_sends_122_messages_of_14_kib_a_token() {
    for tokens in [1u32, 3] {
        let step = if tokens == 1 { decode(1) } else { Step::uniform(Phase::Verify(tokens), 1, 4096) };
        let g = graph("kimi-k2.5", &step, &tp8());
        let layers: Vec<CostFacts> = all_facts(&g, 3)
            .into_iter()
            .filter(|(n, _)| matches!(g.nodes[*n].op, Op::AllReduce { .. }) && g.nodes[*n].layer.is_some())
            .map(|(_, f)| f)
            .collect();
        assert_eq!(layers.len(), 122);
        assert!(layers.iter().all(|f| f.message_bytes == 14336 * u64::from(tokens) && f.kernels == 1), "{layers:?}");
    }
}

#[test]
fn experts_of_a_rank_with_ep_are_whole_and_fewer() {
    let ep8 = Deployment { ep: 8, ..tp8() };
    let g = graph("kimi-k2.5", &decode(64), &ep8);
    let routing = SampledRouting::new(Distribution::Uniform, 1);
    let node = g.nodes.iter().find(|(_, n)| matches!(n.op, Op::Experts { .. })).unwrap().0;
    let of = |rank| facts(&g, node, RankId(rank), &routing).unwrap();
    let mut total = 0;
    for rank in 0..8 {
        let f = of(rank);
        let CostShape::Experts { distinct, pairs, local_experts, intermediate, .. } = f.shape else { panic!("{f:?}") };
        assert_eq!((local_experts, intermediate), (48, 2048));
        assert_eq!(f.weight_bytes, distinct * (7168 * 2048 * 3 / 2 + 7168 * 2048 * 3 / 32 * 2));
        total += pairs;
    }
    assert_eq!(total, 64 * 8);
}

#[test]
fn one_sided_exchanges_send_what_is_wanted_and_nccl_sends_every_slot() {
    let deployment = |a2a| Deployment { ep: 8, dp_attention: 8, a2a, ..tp8() };
    let row = 7168 * 2 + 8 * 4 + 8 * 4;
    let dispatch = |a2a| first(&graph("kimi-k2.5", &decode(64), &deployment(a2a)), |op| *op == Op::Dispatch).message_bytes;
    let combine = |a2a| first(&graph("kimi-k2.5", &decode(64), &deployment(a2a)), |op| *op == Op::Combine).message_bytes;
    // Eight tokens a rank, eight slots for each of eight ranks.
    assert_eq!(dispatch(AllToAll::Nccl), 8 * 8 * row);
    assert_eq!(combine(AllToAll::Nccl), 8 * 8 * 7168 * 2);
    // Eight experts among 8 ranks of 48 touch 8 (1 - C(336, 8) / C(384, 8)) = 5.29 ranks.
    let rows = |bytes: u64, row: u64| bytes as f64 / row as f64 / 8.0;
    assert!((rows(dispatch(AllToAll::Deepep), row) - 5.29).abs() < 0.3, "{}", rows(dispatch(AllToAll::Deepep), row));
    assert!((rows(combine(AllToAll::Flashinfer), 7168 * 2) - 5.29).abs() < 0.3);
}

#[test]
fn prefill_expands_keys_and_counts_the_causal_triangle() {
    let g = graph("kimi-k2.5", &Step::uniform(Phase::Prefill, 2, 100), &tp8());
    let expand = first(&g, |op| *op == Op::MlaExpandKv);
    assert_eq!(expand.shape, CostShape::Gemm { m: 200, n: 8 * 256, k: 512 });
    assert_eq!(expand.read_bytes, 200 * 512 * 2);
    let core = first(&g, |op| matches!(op, Op::MlaPrefill { .. }));
    assert_eq!(core.flops, 2 * (2 * 100 * 101 / 2) * 8 * (192 + 128));
    assert_eq!(core.shape, CostShape::Attention { heads: 8, batch: 2, tokens: 200, kv_rows: 200 });
    let head = g.nodes.iter().find(|(_, n)| matches!(n.op, Op::Linear { role: LinearRole::LmHead })).unwrap().0;
    let head = facts(&g, head, RankId(0), &SampledRouting::new(Distribution::Uniform, 1)).unwrap();
    assert_eq!(head.shape, CostShape::Gemm { m: 2, n: 163_840 / 8, k: 7168 });
}

#[test]
fn a_rank_without_tokens_launches_no_compute_but_takes_part_in_collectives() {
    let d = Deployment { dp_attention: 8, ep: 8, a2a: AllToAll::Deepep, ..tp8() };
    let g = graph("kimi-k2.5", &decode(1), &d);
    for (n, f) in all_facts(&g, 7) {
        match &g.nodes[n].op {
            op if op.is_communication() => assert_eq!(f.kernels, 1),
            Op::Linear { role: LinearRole::Qb } => assert_eq!(f, CostFacts { shape: f.shape.clone(), ..CostFacts::default() }),
            _ => {}
        }
    }
}

#[test]
fn steps_beyond_all_measure_saturate() {
    let endless = moetwin_models::Sequence { past: 1 << 30, new: (1 << 30) - 1 };
    for phase in [Phase::Prefill, Phase::Decode] {
        let step = Step { phase, sequences: vec![endless; 3], logits: moetwin_models::LogitsRows::All };
        let g = graph("kimi-k2.5", &step, &tp8());
        let facts = all_facts(&g, 0);
        assert!(facts.iter().any(|(_, f)| f.flops == u64::MAX));
    }
}

/// Every built-in model, in both phases: no overflow, no fact of a node that moves nothing, and halves that add up.
#[test]
fn every_built_in_model_has_facts() {
    for model in zoo::list() {
        for step in [decode(3), Step::uniform(Phase::Prefill, 2, 300)] {
            let g = graph(model.name, &step, &Deployment::single());
            for (n, f) in all_facts(&g, 0) {
                let op = &g.nodes[n].op;
                assert!(f.kernels > 0, "{}: {op:?}", model.name);
                assert!(f.write_bytes > 0 && f.read_bytes + f.weight_bytes > 0, "{}: {op:?} {f:?}", model.name);
                assert_eq!(f.message_bytes, 0, "{}: {op:?}", model.name);
            }
        }
    }
}
