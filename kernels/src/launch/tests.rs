//! Every launch of every model that runs stays within what SM120 allows, and tables agree with the sources.

use super::{Arg, HOPPER_SHARED_BYTES, SHARED_LIMIT_BYTES, SOURCES, Tuning, carried_by, carrier_of, launches, launches_with};
use moetwin_models::op::LinearRole;
use moetwin_models::{BuildOptions, Deployment, Graph, NodeId, Op, Phase, RankId, Step, plan, zoo};

/// Names of the kernels that a source defines, macros expanded by hand where a kernel's name is pasted together.
fn defined(kernel: &str, text: &str) -> bool {
    if let Some(name) = kernel.strip_prefix("experts_gate_up_").or_else(|| kernel.strip_prefix("experts_down_"))
        && let Some((format, tokens)) = name.split_once('_')
    {
        if let Some(tokens) = tokens.strip_prefix("staged_") {
            return text.contains(&format!("_STAGED({format}, {tokens},"));
        }
        let single = if tokens.starts_with("single") { "SINGLE" } else { "" };
        return text.contains(&format!("{single}({format}, {tokens},"));
    }
    if let Some(held) = kernel.strip_prefix("route_").filter(|h| h.parse::<u32>().is_ok()) {
        return text.contains(&format!("ROUTE_ROWS({held})"));
    }
    if let Some((pairs, form)) = kernel.strip_prefix("attend_").map(|p| p.split_once('_').unwrap_or((p, "")))
        && pairs.parse::<u32>().is_ok()
    {
        let made = form.is_empty() || text.contains(&format!("attend_##PAIRS##_{form},"));
        return made && text.contains(&format!("ATTEND({pairs})"));
    }
    if let Some(held) = kernel.strip_prefix("route_").filter(|held| held.parse::<u32>().is_ok()) {
        return text.contains(&format!("ROUTE_ROWS({held})"));
    }
    text.contains(&format!(" {kernel}(")) || text.contains(&format!("({kernel},"))
}

#[test]
fn launches_of_every_model_are_within_limits_and_name_kernels_that_exist() {
    for model in ["kimi-k2.5", "deepseek-v3", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b", "glm-4.5-air"] {
        let Ok(spec) = zoo::spec(model) else { continue };
        for (tp, batch, phase) in
            [(1, 1, Phase::Decode), (1, 16, Phase::Decode), (8, 64, Phase::Decode), (1, 1, Phase::Prefill), (8, 3, Phase::Prefill)]
        {
            let deployment = Deployment { tp, ..Deployment::single() };
            let Ok(graph) = plan(&spec, &Step::uniform(phase, batch, 500), &deployment, &BuildOptions::default()) else { continue };
            for id in (0..graph.nodes.len() as u32).map(NodeId) {
                let op = &graph.nodes[id].op;
                if op.is_communication() || matches!(op, Op::Slice { .. }) {
                    continue;
                }
                for (hopper, limit) in [(false, SHARED_LIMIT_BYTES), (true, HOPPER_SHARED_BYTES)] {
                    let tuning = Tuning::default().on_hopper(hopper);
                    let plan =
                        launches_with(&graph, id, RankId(0), &tuning).unwrap_or_else(|e| panic!("{model} tp {tp} batch {batch}: {e}"));
                    assert_eq!(plan.launches.is_empty(), carrier_of(&graph, id, RankId(0)).is_some());
                    let carried = carried_by(&graph, id, RankId(0)).map_or(0, |n| graph.nodes[n].inputs.len());
                    for launch in plan.launches {
                        for arg in &launch.args {
                            assert!(!matches!(arg, Arg::Input(i) if *i >= graph.nodes[id].inputs.len() + carried), "{}", launch.kernel);
                        }
                        assert!(launch.shared_bytes <= limit, "{}: {} bytes", launch.kernel, launch.shared_bytes);
                        assert!(hopper || !launch.kernel.contains("hopper"), "{}", launch.kernel);
                        let source = SOURCES.iter().find(|s| s.name == launch.source).expect("a source of the list");
                        assert!(defined(launch.kernel, source.text), "{} in {}", launch.kernel, launch.source);
                    }
                }
            }
        }
    }
}

#[test]
fn few_splits_of_a_token_merge_in_their_kernel() {
    for (model, context, expected) in [
        ("qwen3-30b-a3b", 40, &["attend_1"][..]),
        ("qwen3-30b-a3b", 100, &["attend_1_pair"]),
        ("qwen3-30b-a3b", 200, &["attend_1_cluster"]),
        ("qwen3-30b-a3b", 4000, &["attend_1", "attend_combine"]),
        ("kimi-k2.5", 150, &["attend_4_cluster"]),
    ] {
        let spec = zoo::spec(model).unwrap();
        let graph = plan(&spec, &Step::uniform(Phase::Decode, 1, context), &Deployment::single(), &BuildOptions::default()).unwrap();
        let attends = |id: &NodeId| matches!(graph.nodes[*id].op, Op::GqaAttention { .. } | Op::MlaDecode { .. });
        let id = (0..graph.nodes.len() as u32).map(NodeId).find(attends).unwrap();
        let list = launches(&graph, id, RankId(0)).unwrap().launches;
        assert_eq!(list.iter().map(|l| l.kernel).collect::<Vec<_>>(), expected, "{model} at {context}");
    }
}

/// Kernels of the routers' logits and choices of a model's first layers.
fn routers(model: &str, batch: usize) -> (Graph, Vec<(NodeId, Vec<&'static str>)>) {
    let mut spec = zoo::spec(model).unwrap();
    spec.layers.truncate(3);
    let step = Step::uniform(Phase::Decode, batch as u32, 100);
    let graph = plan(&spec, &step, &Deployment::single(), &BuildOptions::default()).unwrap();
    let ids = (0..graph.nodes.len() as u32).map(NodeId);
    let of = |id: &NodeId| matches!(graph.nodes[*id].op, Op::Linear { role: LinearRole::Router } | Op::Route { .. });
    let kernels = |id: NodeId| launches(&graph, id, RankId(0)).unwrap().launches.iter().map(|l| l.kernel).collect();
    let list = ids.filter(of).map(|id| (id, kernels(id))).collect();
    (graph, list)
}

#[test]
fn a_small_router_of_few_tokens_is_one_kernel() {
    for batch in [1, 8] {
        let (graph, list) = routers("qwen3-30b-a3b", batch);
        assert_eq!(list.len(), 6);
        for pair in list.chunks(2) {
            assert_eq!((&pair[0].1[..], &pair[1].1[..]), (&[][..], &["router"][..]), "batch {batch}");
            assert_eq!(carried_by(&graph, pair[1].0, RankId(0)), Some(pair[0].0));
            assert_eq!(carrier_of(&graph, pair[0].0, RankId(0)), Some(pair[1].0));
        }
    }
    // More tokens than a tile, and weights that one cluster would read too slowly.
    for (model, batch) in [("qwen3-30b-a3b", 9), ("kimi-k2.5", 1)] {
        let (_, list) = routers(model, batch);
        for pair in list.chunks(2) {
            assert_eq!((pair[0].1.len(), &pair[1].1[..]), (1, &["route_ranked"][..]), "{model}, batch {batch}");
        }
    }
}

#[test]
fn logits_that_others_read_and_rows_that_may_be_gone_keep_the_router_in_two() {
    let (graph, list) = routers("qwen3-30b-a3b", 1);
    let (logits, choice) = (list[0].0, list[1].0);
    // Named as a result.
    let mut named = graph.clone();
    named.outputs.push(("logits".into(), graph.nodes[logits].outputs[0]));
    assert_eq!(carried_by(&named, choice, RankId(0)), None);
    assert_eq!(carrier_of(&named, logits, RankId(0)), None);
    // Nobody reads the token rows behind the choice.
    let mut last = graph.clone();
    let x = graph.nodes[logits].inputs[0];
    let other = graph.nodes[NodeId(0)].outputs[0];
    for id in (choice.0 + 1..last.nodes.len() as u32).map(NodeId) {
        last.nodes[id].inputs.iter_mut().filter(|t| **t == x).for_each(|t| *t = other);
    }
    assert_eq!(carried_by(&last, choice, RankId(0)), None);
}
