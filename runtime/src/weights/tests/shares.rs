//! A rank's share equals the same part of the whole, from checkpoints and made-up weights alike.

use super::{FIXTURES, fixture, fixture_spec};
use crate::weights::*;
use moetwin_kernels::reference::{Array, Data};
use moetwin_models::{
    AllToAll, BuildOptions, Deployment, Dim, ExpertPlacement, Graph, ModelSpec, Phase, RankId, Step, TensorId, TensorKind, plan,
};

fn reals(array: &Array<f32>) -> &[f32] {
    match &array.data {
        Data::Real(values) => values,
        Data::Int(_) => panic!("weights are reals"),
    }
}

/// Naive twin of [`held_indices`]: asks of every index whether the rank holds it.
fn held_naively(graph: &Graph, tensor: TensorId, rank: RankId) -> Vec<Vec<usize>> {
    let (t, d) = (&graph.tensors[tensor], &graph.deployment);
    let held = |(i, dim): (usize, &Dim)| -> Vec<usize> {
        let (part, parts) = match t.layout.shard_axis(i as u8) {
            Some(axis) => (d.axis_index(axis, rank) as usize, d.axis_size(axis) as usize),
            None => (0, 1),
        };
        match dim {
            Dim::Fixed(n) => (0..*n as usize).filter(|x| x / (*n as usize / parts) == part).collect(),
            Dim::Vocab(n) => (0..*n as usize).filter(|x| x / (*n as usize).div_ceil(parts) == part).collect(),
            Dim::Experts(n) => {
                let logical = d.placement.as_ref().map_or((0..*n as u32).collect(), |p| p.physical_to_logical.clone());
                let slots = logical.len() / parts;
                logical.iter().enumerate().filter(|(slot, _)| slot / slots == part).map(|(_, l)| *l as usize).collect()
            }
            Dim::Packed(segments) => {
                let mut indices = Vec::new();
                let mut first = 0;
                for s in segments {
                    let (units, width) = (s.units as usize, s.width as usize);
                    let owns = |unit: usize| if units >= parts { unit / (units / parts) == part } else { unit == part / (parts / units) };
                    indices.extend((0..units * width).filter(|x| owns(x / width)).map(|x| first + x));
                    first += units * width;
                }
                indices
            }
            other => panic!("{other:?} in a weight"),
        }
    };
    t.shape.iter().enumerate().map(held).collect()
}

/// Elements of a row-major array at every combination of indices.
fn pick(whole: &Array<f32>, indices: &[Vec<usize>]) -> Vec<f32> {
    let mut offsets = vec![0];
    for (size, indices) in whole.sizes.iter().zip(indices) {
        offsets = offsets.iter().flat_map(|o| indices.iter().map(move |i| o * size + i)).collect();
    }
    offsets.into_iter().map(|o| reals(whole)[o]).collect()
}

fn weights(graph: &Graph) -> impl Iterator<Item = (TensorId, &str)> {
    graph.tensors.iter().filter(|(_, t)| matches!(t.kind, TensorKind::Weight(_))).map(|(id, t)| (id, t.name.as_str()))
}

/// Every rank's share of every weight of the plan is the naively taken part of the whole.
fn check_shares(source: &dyn WeightSource, spec: &ModelSpec, deployment: &Deployment) {
    let step = Step::uniform(Phase::Decode, 4, 3);
    let whole_graph = plan(spec, &step, &Deployment::single(), &BuildOptions::default()).unwrap();
    let graph = plan(spec, &step, deployment, &BuildOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", spec.name));
    let mut compared = 0;
    for (id, name) in weights(&graph) {
        // A pipeline's last stage has a copy of a tied embedding table under the head's name.
        let in_whole = if spec.tied_embeddings && name == "lm_head.weight" { "embed.weight" } else { name };
        let (whole_id, _) = weights(&whole_graph).find(|(_, n)| *n == in_whole).unwrap_or_else(|| panic!("{name} is in both graphs"));
        let whole = source.load(&whole_graph, whole_id, RankId(0)).unwrap();
        for rank in (0..deployment.ranks()).map(RankId) {
            let share = source.load(&graph, id, rank).unwrap_or_else(|e| panic!("{name} of {rank}: {e}"));
            let sizes: Vec<u64> = share.sizes.iter().map(|s| *s as u64).collect();
            assert_eq!(sizes, graph.local_sizes(id, rank).unwrap(), "{name} of {rank}");
            assert!(reals(&share) == pick(&whole, &held_naively(&graph, id, rank)), "{name} of {rank} under {deployment:?}");
            compared += reals(&share).len();
        }
    }
    assert!(compared > 1000);
}

fn deployments(experts: u32) -> Vec<Deployment> {
    // A permutation (5 divides no fixture's number of experts) with two redundant slots.
    let physical_to_logical = (0..experts + 2).map(|slot| (slot * 5 + 1) % experts).collect();
    let base = Deployment::default();
    vec![
        Deployment { tp: 2, ..base.clone() },
        Deployment { tp: 4, ep: 2, ..base.clone() },
        Deployment { tp: 2, ep: 2, dp_attention: 2, a2a: AllToAll::Nccl, ..base.clone() },
        Deployment { tp: 2, ep: 2, pp: 2, placement: Some(ExpertPlacement { physical_to_logical }), ..base },
    ]
}

fn experts_of(spec: &ModelSpec) -> u32 {
    let of = |l: &moetwin_models::spec::LayerSpec| match &l.ffn {
        moetwin_models::spec::Ffn::Moe(moe) => Some(moe.experts),
        moetwin_models::spec::Ffn::Dense(_) => None,
    };
    spec.layers.iter().find_map(of).expect("a model of experts")
}

/// Checks every deployment that the fixture can be cut for (heads, layers and scale groups set limits), which must be most of them.
fn check_deployments(source: &dyn WeightSource, spec: &ModelSpec) {
    let step = Step::uniform(Phase::Decode, 4, 3);
    let fits = |d: &Deployment| plan(spec, &step, d, &BuildOptions::default()).is_ok();
    let fitting: Vec<Deployment> = deployments(experts_of(spec)).into_iter().filter(fits).collect();
    assert!(fitting.len() >= 3, "{}: {} deployments", spec.name, fitting.len());
    for deployment in fitting {
        check_shares(source, spec, &deployment);
    }
}

#[test]
fn shares_of_every_fixture_are_parts_of_the_whole() {
    for &name in FIXTURES {
        let spec = fixture_spec(name);
        let source = CheckpointWeights::open(&fixture(name), &spec, Layers::All).unwrap();
        check_deployments(&source, &spec);
    }
}

#[test]
fn shares_of_made_up_weights_are_parts_of_the_whole() {
    for &name in FIXTURES {
        let spec = fixture_spec(name);
        check_deployments(&SyntheticWeights::new(&spec, 7), &spec);
    }
}
