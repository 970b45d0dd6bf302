//! A weight that is not finite: the run ends with the rank and the command that met it first, whatever the order of commands.

use moetwin_kernels::reference::{Array, Data};
use moetwin_models::{Deployment, Graph, RankId, TensorId, TensorKind, WeightRole, config};
use moetwin_runtime::LowerOptions;
use moetwin_runtime::reference::{ExecuteError, Order, ReferenceExecutor};
use moetwin_runtime::session::{Session, SessionError, SessionOptions};
use moetwin_runtime::weights::{LoadError, SyntheticWeights, WeightSource};

/// Made-up weights, but for the first element of one weight on one rank.
struct Spoiled {
    whole: SyntheticWeights,
    role: WeightRole,
    layer: u16,
    rank: RankId,
    value: f32,
}

impl WeightSource for Spoiled {
    fn load(&self, graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Array<f32>, LoadError> {
        let mut array = self.whole.load(graph, tensor, rank)?;
        let this = matches!(graph.tensors[tensor].kind, TensorKind::Weight(w) if w.role == self.role && w.layer == Some(self.layer));
        if let Data::Real(values) = &mut array.data
            && this
            && rank == self.rank
        {
            values[0] = self.value;
        }
        Ok(array)
    }
}

fn fails(deployment: &Deployment, order: Order, role: WeightRole, rank: u32, value: f32) -> ExecuteError {
    fails_lowered(deployment, LowerOptions::default(), order, role, rank, value)
}

fn fails_lowered(deployment: &Deployment, lower: LowerOptions, order: Order, role: WeightRole, rank: u32, value: f32) -> ExecuteError {
    let text = include_str!("../../tests/fixtures/tiny-mixtral/config.json");
    let spec = config::read(text, "tiny").unwrap();
    let weights = Spoiled { whole: SyntheticWeights::new(&spec, 7), role, layer: 1, rank: RankId(rank), value };
    let executor = ReferenceExecutor::<f32>::new(deployment.ranks(), 16, order);
    let options = SessionOptions { deployment: deployment.clone(), lower, dump: false };
    let mut session = Session::new(&spec, &weights, executor, options, 16).greedy();
    match session.prefill(&[vec![5, 9, 80], vec![3]]) {
        Err(SessionError::Execute(e)) => e,
        other => panic!("{deployment:?} {role:?}: {:?}", other.map(|o| o.values.len())),
    }
}

#[test]
fn a_norm_that_is_fused_with_a_sum_is_named_for_its_weight_and_for_no_summand() {
    let (d, lower) = (Deployment { tp: 2, ..Deployment::default() }, LowerOptions { fuse_sums: true, ..LowerOptions::default() });
    for order in [Order::Launch, Order::Seeded(1)] {
        for (role, name) in [(WeightRole::PostAttentionNorm, "layers.1"), (WeightRole::O, "layers.1.attn.o")] {
            let error = fails_lowered(&d, lower, order, role, 1, f32::NAN);
            let ExecuteError::NotFinite { rank, command, .. } = &error else { panic!("{role:?}: {error}") };
            assert!(*rank == RankId(1) && command.contains(name) && command.contains("norm") == (role != WeightRole::O), "{error}");
        }
    }
}

#[test]
fn the_first_value_that_is_not_finite_names_rank_and_command() {
    let d = Deployment::default();
    let split = Deployment { tp: 2, ..d.clone() };
    let cases = [
        (&d, WeightRole::O, 0, f32::NAN, "layers.1.attn.o"),
        (&split, WeightRole::O, 1, f32::NAN, "layers.1.attn.o"),
        (&split, WeightRole::Qkv, 0, f32::INFINITY, "layers.1.attn.qkv"),
        (&split, WeightRole::Router, 1, f32::NEG_INFINITY, "layers.1.moe.router"),
        (&Deployment { tp: 2, pp: 2, ..d.clone() }, WeightRole::PostAttentionNorm, 1, f32::NAN, "layers.1"),
        (&Deployment { tp: 2, dp_attention: 2, ..d.clone() }, WeightRole::O, 1, f32::NAN, "layers.1.attn.o"),
    ];
    for (deployment, role, rank, value, name) in cases {
        for order in [Order::Launch, Order::Seeded(1), Order::Seeded(2)] {
            let error = fails(deployment, order, role, rank, value);
            let ExecuteError::NotFinite { rank: named, command, found } = &error else { panic!("{role:?}: {error}") };
            assert_eq!(named.0, rank, "{error}");
            assert!(command.contains(name) && found.tensor.contains(name) && !found.value.is_finite(), "{error}");
        }
    }
}
