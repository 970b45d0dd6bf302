//! Whole graphs of two-layer models as text, for readers. `MOETWIN_BLESS=1 cargo test -p moetwin-models golden` rewrites the files.

use moetwin_models::{
    AllToAll, BuildOptions, Deployment, ExpertPlacement, ModelSpec, Phase, Sequence, Step, config, fuse, plan, render, text,
};
use std::path::PathBuf;

fn fixture(name: &str) -> ModelSpec {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../tests/fixtures", name, "config.json"].iter().collect();
    let mut spec = config::read(&std::fs::read_to_string(&path).unwrap(), name).unwrap_or_else(|e| panic!("{e}"));
    spec.layers.truncate(2);
    spec
}

fn check(file: &str, actual: &str) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/golden", file].iter().collect();
    if std::env::var_os("MOETWIN_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = expected.lines().zip(actual.lines()).position(|(e, a)| e != a);
    let line = differs.unwrap_or(expected.lines().count().min(actual.lines().count()));
    assert!(
        expected == actual,
        "{} differs from line {} on:\n  is      {}\n  was     {}",
        path.display(),
        line + 1,
        actual.lines().nth(line).unwrap_or("(the end)"),
        expected.lines().nth(line).unwrap_or("(the end)"),
    );
}

fn planned(model: &str, step: &Step, deployment: &Deployment) -> moetwin_models::Graph {
    plan(&fixture(model), step, deployment, &BuildOptions { dump: true, ..BuildOptions::default() }).unwrap_or_else(|e| panic!("{e}"))
}

fn decode() -> Step {
    Step::uniform(Phase::Decode, 3, 20)
}

fn ragged_prefill() -> Step {
    Step { sequences: vec![Sequence { past: 0, new: 5 }, Sequence { past: 4, new: 2 }], ..Step::uniform(Phase::Prefill, 0, 0) }
}

#[test]
fn one_rank_decode() {
    check("deepseek.txt", &text::print(&planned("tiny-deepseek-v3", &decode(), &Deployment::single())));
}

#[test]
fn one_rank_prefill() {
    check("deepseek-prefill.txt", &text::print(&planned("tiny-deepseek-v3", &ragged_prefill(), &Deployment::single())));
}

/// The decoder inside a wrapper is the decoder alone.
#[test]
fn nested_decoder() {
    check("tiny-kimi-k25-nested.txt", &text::print(&planned("tiny-kimi-k25-nested", &decode(), &Deployment::single())));
}

/// Biases of dense and shared experts' projections, groups of experts, queries without compression.
#[test]
fn biases_everywhere() {
    check("tiny-deepseek-v2-biased.txt", &text::print(&planned("tiny-deepseek-v2-biased", &decode(), &Deployment::single())));
}

/// Clipped queries, keys and values.
#[test]
fn clipped_projections() {
    check("tiny-olmoe-clip.txt", &text::print(&planned("tiny-olmoe-clip", &decode(), &Deployment::single())));
}

#[test]
fn tensor_parallel() {
    let d = Deployment { tp: 2, ..Deployment::single() };
    check("deepseek-tp2.txt", &text::print(&planned("tiny-deepseek-v3", &decode(), &d)));
}

#[test]
fn tensor_parallel_with_fused_sums() {
    let d = Deployment { tp: 2, ..Deployment::single() };
    let graph = fuse::sums_into_norms(&planned("tiny-deepseek-v3", &decode(), &d), |_| true).unwrap();
    check("deepseek-tp2-fused.txt", &text::print(&graph));
}

#[test]
fn all_to_all_with_placement() {
    let placement = Some(ExpertPlacement { physical_to_logical: (0..16).chain([3, 5]).collect() });
    let d = Deployment { tp: 2, ep: 2, a2a: AllToAll::Nccl, placement, ..Deployment::single() };
    check("deepseek-ep2-a2a.txt", &text::print(&planned("tiny-deepseek-v3", &decode(), &d)));
}

#[test]
fn data_parallel_attention_in_stages() {
    let d = Deployment { tp: 4, pp: 2, dp_attention: 2, ..Deployment::single() };
    check("deepseek-tp4-dp2-pp2.txt", &text::print(&planned("tiny-deepseek-v3", &ragged_prefill(), &d)));
}

#[test]
fn one_graph_of_every_family() {
    let families = [
        "tiny-deepseek-v2",
        "tiny-kimi-k2-int4",
        "tiny-qwen2-moe",
        "tiny-qwen3-moe",
        "tiny-mixtral",
        "tiny-olmoe",
        "tiny-glm4-moe",
        "tiny-gpt-oss",
    ];
    for family in families {
        check(&format!("{family}.txt"), &text::print(&planned(family, &decode(), &Deployment::single())));
    }
}

#[test]
fn a_context_dealt_out() {
    let d = Deployment { tp: 4, dcp: 2, ..Deployment::single() };
    check("deepseek-tp4-dcp2.txt", &text::print(&planned("tiny-deepseek-v3", &decode(), &d)));
    let d = Deployment { tp: 4, dcp: 2, ..Deployment::single() };
    check("gpt-oss-tp4-dcp2.txt", &text::print(&planned("tiny-gpt-oss", &decode(), &d)));
}

#[test]
fn as_dot() {
    let graph = planned("tiny-deepseek-v3", &decode(), &Deployment { tp: 2, ..Deployment::single() });
    check("deepseek-tp2.dot", &render::dot(&graph, render::Layers::All));
}
