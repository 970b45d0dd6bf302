//! Made-up weights: scale, grid, independence, and that a seed keeps its weights.

use super::fixture_spec;
use crate::weights::*;
use moetwin_kernels::reference::Data;
use moetwin_models::spec::{Attention, Ffn};
use moetwin_models::{BuildOptions, Deployment, Graph, ModelSpec, Phase, RankId, Step, TensorId, TensorKind, WeightFormat, plan, zoo};
use std::collections::{BTreeMap, BTreeSet};

fn graph(spec: &ModelSpec) -> Graph {
    plan(spec, &Step::uniform(Phase::Decode, 1, 0), &Deployment::single(), &BuildOptions::default()).unwrap()
}

fn load(graph: &Graph, spec: &ModelSpec, seed: u64, tensor: TensorId) -> Vec<f32> {
    match SyntheticWeights::new(spec, seed).load(graph, tensor, RankId(0)).unwrap().data {
        Data::Real(values) => values,
        Data::Int(_) => panic!("weights are reals"),
    }
}

fn named(spec: &ModelSpec, seed: u64, name: &str) -> Vec<f32> {
    let graph = graph(spec);
    let (id, _) = graph.tensors.iter().find(|(_, t)| t.name == name).unwrap_or_else(|| panic!("no {name}"));
    load(&graph, spec, seed, id)
}

/// Mean and standard deviation.
fn moments(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    (mean, (values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n).sqrt())
}

/// A fixture with all its matrices in one format.
fn in_format(format: WeightFormat) -> ModelSpec {
    let mut spec = fixture_spec("tiny-qwen3-moe");
    for layer in &mut spec.layers {
        let (Attention::Gqa(attention), Ffn::Moe(moe)) = (&mut layer.attention, &mut layer.ffn) else { panic!("qwen3_moe") };
        attention.format = format;
        moe.format = format;
    }
    spec
}

#[test]
fn matrices_keep_the_scale_of_what_they_multiply() {
    // A power of two is at most a factor of sqrt(2) from the scale that would give the deviation exactly.
    let grids = [
        (WeightFormat::Bf16, 1.05),
        (WeightFormat::Fp8Block { rows: 128, cols: 128 }, 1.05),
        (WeightFormat::Int4Group { group: 32 }, 1.45),
        (WeightFormat::Mxfp4, 1.45),
        (WeightFormat::Nvfp4, 1.45),
    ];
    for (format, factor) in grids {
        let (mean, deviation) = moments(&named(&in_format(format), 3, "layers.1.moe.experts.gate_up.weight"));
        let ratio = deviation * 64f64.sqrt();
        assert!(ratio < factor && ratio > 1.0 / factor, "{format:?}: {ratio}");
        assert!(mean.abs() < 0.01 * deviation, "{format:?}: mean {mean}");
    }
    let spec = fixture_spec("tiny-glm4-moe");
    let (mean, deviation) = moments(&named(&spec, 3, "layers.1.input_norm.weight"));
    assert!((mean - 1.0).abs() < 0.05 && deviation < 0.15, "{mean} {deviation}");
}

#[test]
fn values_lie_on_the_grid_of_their_format() {
    let distinct = |format| {
        let values = named(&in_format(format), 3, "layers.0.moe.experts.down.weight");
        values.iter().map(|v| (v + 0.0).to_bits()).collect::<BTreeSet<u32>>()
    };
    let bf16 = |bits: &BTreeSet<u32>| bits.iter().all(|b| b & 0xffff == 0);
    let int4 = distinct(WeightFormat::Int4Group { group: 32 });
    assert!(int4.len() == 15 && bf16(&int4), "{}", int4.len());
    let fp4 = distinct(WeightFormat::Mxfp4);
    assert!(fp4.len() == 15 && bf16(&fp4), "{}", fp4.len());
    assert!(distinct(WeightFormat::Fp8Block { rows: 128, cols: 128 }).len() <= 253);
    assert!(bf16(&distinct(WeightFormat::Bf16)));
}

#[test]
fn every_weight_layer_expert_and_seed_has_its_own_values() {
    let spec = fixture_spec("tiny-mixtral");
    let graph = graph(&spec);
    // Weights differ in scale and mean; what tells them apart is where 64 values in a row rise and fall.
    let mut seen: BTreeMap<Vec<bool>, String> = BTreeMap::new();
    for seed in [1, 2] {
        for (id, t) in graph.tensors.iter().filter(|(_, t)| matches!(t.kind, TensorKind::Weight(_))) {
            let values = load(&graph, &spec, seed, id);
            let experts = if t.name.contains("experts") { 8 } else { 1 };
            for (e, part) in values.chunks(values.len() / experts).enumerate() {
                let rises = part[..64].windows(2).map(|pair| pair[0] < pair[1]).collect();
                let this = format!("expert {e} of {} under seed {seed}", t.name);
                assert_eq!(seen.insert(rises, this.clone()), None, "{this} has the values of another weight");
            }
        }
    }
    assert!(seen.len() > 100);
}

/// A program's results must stay the same for a seed: these are the values of the first release.
#[test]
fn a_seed_keeps_its_weights() {
    let spec = fixture_spec("tiny-kimi-k2-int4");
    let first = |name: &str| named(&spec, 42, name)[..4].to_vec();
    assert_eq!(first("embed.weight"), [-1.1484375, 1.46875, 0.104003906, -0.119140625]);
    assert_eq!(first("layers.1.moe.experts.down.weight"), [-0.125, 0.03125, 0.15625, 0.0625]);
}

#[test]
fn tied_embeddings_are_one_matrix_with_the_scale_of_a_head() {
    let tied = ModelSpec { tied_embeddings: true, ..fixture_spec("tiny-mixtral") };
    let head = named(&fixture_spec("tiny-mixtral"), 5, "lm_head.weight");
    assert_eq!(named(&tied, 5, "embed.weight"), head);
}

/// Every known model has weights: those that fit a test, of its first layers.
#[test]
fn every_known_model_has_made_up_weights() {
    for model in zoo::list() {
        let spec = first_layers(&zoo::spec(model.name).unwrap(), 4);
        let graph = graph(&spec);
        let mut loaded = 0;
        for (id, _) in graph.tensors.iter().filter(|(_, t)| matches!(t.kind, TensorKind::Weight(_))) {
            if graph.local_sizes(id, RankId(0)).unwrap().iter().product::<u64>() < 1 << 16 {
                assert!(load(&graph, &spec, 1, id).iter().all(|v| v.is_finite()));
                loaded += 1;
            }
        }
        assert!(loaded > 4, "{}: {loaded}", model.name);
    }
}
