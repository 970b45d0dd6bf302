//! Properties of random models on random deployments.

use crate::deployments::{any_case, any_deployment, any_step};
use crate::edit::without;
use crate::models::any_model;
use moetwin_models::build::{BuildOptions, forward};
use moetwin_models::{Deployment, NodeId, Op, RankId, TensorKind, fuse, plan, shard, text, verify, zoo};
use proptest::prelude::*;

const DUMP: BuildOptions = BuildOptions { dump: true, absorbed: false };

fn shown(faults: &[moetwin_models::verify::Fault]) -> String {
    faults.iter().take(5).map(|f| format!("{f}\n")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_verifies_and_reads_back((model, step, deployment) in any_case()) {
        let graph = plan(&model, &step, &deployment, &DUMP).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let printed = text::print(&graph);
        let back = text::parse(&printed).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(text::print(&back), printed);
        prop_assert!(back == graph);
    }

    #[test]
    fn on_one_rank_the_pass_changes_nothing(model in any_model(), step in any_step()) {
        let graph = forward(&model, &step, &DUMP).unwrap();
        if let Err(faults) = verify(&graph) {
            return Err(TestCaseError::fail(shown(&faults)));
        }
        prop_assert!(shard(&graph, &Deployment::single()).unwrap() == graph);
    }

    #[test]
    fn no_communication_is_superfluous((model, step, deployment) in any_case(), pick: prop::sample::Index) {
        let graph = plan(&model, &step, &deployment, &DUMP).unwrap();
        let needed: Vec<NodeId> = graph
            .nodes
            .iter()
            .filter(|(_, n)| n.op.is_communication() || matches!(n.op, Op::Slice { .. } | Op::PlaceExperts))
            .map(|(id, _)| id)
            .collect();
        if !needed.is_empty() {
            let dropped = *pick.get(&needed);
            let line = text::node_line(&graph, dropped);
            prop_assert!(verify(&without(&graph, dropped)).is_err(), "accepted without {}", line);
        }
    }

    /// A fused graph verifies, reads back, has as many sums, and nothing left of those that were to be fused.
    #[test]
    fn fused_sums_verify_and_read_back((model, step, deployment) in any_case(), most in 0u64..12) {
        let graph = plan(&model, &step, &deployment, &BuildOptions::default()).unwrap();
        let fused = fuse::sums_into_norms(&graph, |sum| sum.rows <= most).unwrap();
        if let Err(faults) = verify(&fused) {
            return Err(TestCaseError::fail(shown(&faults)));
        }
        prop_assert!(text::parse(&text::print(&fused)).unwrap() == fused);
        prop_assert_eq!(fused.collective_counts(), graph.collective_counts());
        let normed = |g: &moetwin_models::Graph| g.nodes.iter().filter(|(_, n)| matches!(n.op, Op::AllReduceAddRmsNorm { .. })).count();
        prop_assert_eq!(graph.nodes.len() - fused.nodes.len(), normed(&fused));
        // What is fused already is left alone.
        prop_assert!(fuse::sums_into_norms(&fused, |sum| sum.rows <= most).unwrap() == fused);
        let all = fuse::sums_into_norms(&graph, |_| true).unwrap();
        prop_assert!(normed(&fused) <= normed(&all));
        for (_, n) in fused.nodes.iter().filter(|(_, n)| matches!(n.op, Op::AllReduceAddRmsNorm { .. })) {
            for rank in (0..deployment.ranks()).map(RankId).filter(|r| deployment.stage(*r) == u32::from(n.stage)) {
                prop_assert!(fused.local_size(n.outputs[0], 0, rank).unwrap() <= most);
            }
        }
    }

    /// Every byte of the model is on some rank, and no rank of a replica holds less than its share.
    #[test]
    fn ranks_hold_the_whole_model(model in any_model(), step in any_step()) {
        let whole = forward(&model, &step, &DUMP).unwrap();
        let bytes = |t| whole.local_bytes(t, RankId(0)).unwrap();
        let stored: u64 = whole.tensors.iter().filter(|(_, t)| matches!(t.kind, TensorKind::Weight(_))).map(|(id, _)| bytes(id)).sum();
        prop_assert_eq!(stored, model.weight_bytes());
    }

    #[test]
    fn local_sizes_of_a_cut_add_up((model, step, deployment) in any_case()) {
        let graph = plan(&model, &step, &deployment, &DUMP).unwrap();
        for (id, tensor) in graph.tensors.iter() {
            let [(axis, moetwin_models::Placement::Shard(dim))] = tensor.layout.entries() else { continue };
            // Shared key-value heads and received rows are on several ranks on purpose.
            let shared = match &tensor.shape[usize::from(*dim)] {
                moetwin_models::Dim::Packed(s) => s.iter().any(|s| s.replicable),
                moetwin_models::Dim::Received => true,
                _ => false,
            };
            if shared {
                continue;
            }
            let local = |r| graph.local_sizes(id, r).unwrap()[usize::from(*dim)];
            let total: u64 = deployment.group(*axis, RankId(0)).into_iter().map(local).sum();
            let mut flat = graph.clone();
            flat.tensors[id].layout = moetwin_models::Layout::replicated();
            prop_assert_eq!(total, flat.local_sizes(id, RankId(0)).unwrap()[usize::from(*dim)], "{}", tensor.name);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_with_a_place(text in "(moetwin graph 1\n)?[ -~\n]{0,200}") {
        if let Err(e) = text::parse(&text) {
            prop_assert!(!e.message.is_empty() && e.line >= 1 && e.column >= 1);
        }
    }

    /// A damaged graph text gives an error or a graph that verifies or does not; nothing panics.
    #[test]
    fn damaged_texts_do_no_harm(
        (model, step, deployment) in any_case(),
        line: prop::sample::Index,
        at: prop::sample::Index,
        put in "[ -~]{0,3}",
        cut in 0usize..4,
        target in any_model().prop_flat_map(|m| any_deployment(&m)),
    ) {
        let graph = plan(&model, &step, &deployment, &DUMP).unwrap();
        let mut lines: Vec<String> = text::print(&graph).lines().map(str::to_owned).collect();
        let line = line.index(lines.len());
        let at = at.index(lines[line].len() + 1);
        let end = (at + cut).min(lines[line].len());
        lines[line].replace_range(at..end, &put);
        if let Ok(damaged) = text::parse(&lines.join("\n")) {
            let _ = verify(&damaged);
            let _ = shard(&damaged, &target);
            prop_assert!(text::parse(&text::print(&damaged)).is_ok());
        }
    }
}

/// The random cases reach every kind of deployment; otherwise the properties above say little.
#[test]
fn random_cases_are_varied() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = [0; 7];
    for _ in 0..300 {
        let (_, _, d) = any_case().new_tree(&mut runner).unwrap().current();
        let kinds = [
            d.tp > 1,
            d.pp > 1,
            d.dp_attention > 1,
            d.ep > 1,
            d.a2a != moetwin_models::AllToAll::None && d.ep > 1,
            d.placement.is_some(),
            d.dp_attention > 1 && d.dp_attention < d.tp,
        ];
        seen.iter_mut().zip(kinds).for_each(|(n, k)| *n += u32::from(k));
    }
    assert!(seen.iter().all(|n| *n >= 15), "{seen:?}");
}

#[test]
fn every_published_model_has_a_graph_of_its_weight() {
    for model in zoo::list() {
        let Ok(spec) = zoo::spec(model.name) else { continue };
        let step = moetwin_models::Step::uniform(moetwin_models::Phase::Decode, 2, 100);
        let graph = plan(&spec, &step, &Deployment::single(), &DUMP).unwrap_or_else(|e| panic!("{}: {e}", spec.name));
        let bytes = |t| graph.local_bytes(t, RankId(0)).unwrap();
        let stored: u64 = graph.tensors.iter().filter(|(_, t)| matches!(t.kind, TensorKind::Weight(_))).map(|(id, _)| bytes(id)).sum();
        assert_eq!(stored, spec.weight_bytes(), "{}", spec.name);
    }
}
