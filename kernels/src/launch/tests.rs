//! Every launch of every model that runs stays within what SM120 allows, and tables agree with the sources.

use super::{HOPPER_SHARED_BYTES, SHARED_LIMIT_BYTES, SOURCES, Tuning, launches_with};
use moetwin_models::{BuildOptions, Deployment, NodeId, Op, Phase, RankId, Step, plan, zoo};

/// Names of the kernels that a source defines, macros expanded by hand where a kernel's name is pasted together.
fn defined(kernel: &str, text: &str) -> bool {
    if let Some(name) = kernel.strip_prefix("experts_gate_up_").or_else(|| kernel.strip_prefix("experts_down_"))
        && let Some((format, tokens)) = name.split_once('_')
    {
        if let Some(tokens) = tokens.strip_prefix("staged_") {
            return text.contains(&format!("_STAGED({format}, {tokens},"));
        }
        let made = if tokens == "single" { format!("SINGLE({format},") } else { format!("({format}, {tokens},") };
        return text.contains(&made);
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
                    assert!(!plan.launches.is_empty());
                    for launch in plan.launches {
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
