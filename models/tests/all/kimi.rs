//! Kimi-K2.5's published arithmetic.

use moetwin_models::{AllToAll, BuildOptions, Deployment, Graph, Op, Phase, Step, plan, zoo};

fn planned(deployment: Deployment) -> Graph {
    plan(&zoo::spec("kimi-k2.5").unwrap(), &Step::uniform(Phase::Decode, 1, 4096), &deployment, &BuildOptions::default()).unwrap()
}

fn count(g: &Graph, f: impl Fn(&Op) -> bool) -> usize {
    g.nodes.iter().filter(|(_, n)| f(&n.op)).count()
}

#[test]
fn tensor_parallel_sums_twice_a_layer() {
    for ep in [1, 2, 8] {
        let g = planned(Deployment { tp: 8, ep, ..Deployment::single() });
        assert_eq!(count(&g, |o| matches!(o, Op::AllReduce { .. })), 122 + 1);
        assert_eq!(count(&g, |o| matches!(o, Op::AllGather { .. })), 1);
        assert_eq!(count(&g, Op::is_communication), 124);
    }
}

#[test]
fn an_all_to_all_makes_four_collectives_a_moe_layer() {
    let g = planned(Deployment { tp: 8, ep: 8, a2a: AllToAll::Flashinfer, ..Deployment::single() });
    assert_eq!(count(&g, |o| matches!(o, Op::AllReduce { .. })), 2 + 1);
    assert_eq!(count(&g, |o| matches!(o, Op::Dispatch)), 60);
    assert_eq!(count(&g, Op::is_communication), 242 + 2);
}
