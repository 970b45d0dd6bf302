//! Steps, and deployments that can hold a model.

use moetwin_models::build::{BuildOptions, forward};
use moetwin_models::spec::Ffn;
use moetwin_models::{AllToAll, DType, Deployment, ExpertPlacement, LogitsRows, ModelSpec, Phase, Sequence, Step, shard};
use proptest::prelude::*;
use proptest::sample::select;

/// A random step: up to six ragged sequences (none at all is one, too), any phase, either choice of logits.
pub fn any_step() -> impl Strategy<Value = Step> {
    let sequence = (0u32..12, 1u32..7);
    (select(vec![Phase::Prefill, Phase::Decode, Phase::Verify(3)]), proptest::collection::vec(sequence, 0..=6), any::<bool>()).prop_map(
        |(phase, sequences, all)| {
            let new = |n| match phase {
                Phase::Prefill => n,
                Phase::Decode => 1,
                Phase::Verify(k) => k,
            };
            let sequences = sequences.into_iter().map(|(past, n)| Sequence { past, new: new(n) }).collect();
            Step { phase, sequences, logits: if all { LogitsRows::All } else { LogitsRows::Last } }
        },
    )
}

/// A random deployment of up to 16 ranks that can hold `model`; one rank where none of the tries can.
pub fn any_deployment(model: &ModelSpec) -> impl Strategy<Value = Deployment> + use<> {
    let model = model.clone();
    let tries = proptest::collection::vec(any_sizes(), 1..=12);
    (tries, any::<u64>()).prop_map(move |(tries, seed)| {
        let holds = |d: &Deployment| d.ranks() <= 16 && is_legal(&model, d);
        let found = tries.into_iter().map(|d| with_placement(d, &model, seed)).find(holds);
        found.unwrap_or_default()
    })
}

/// Whether the shard pass accepts the deployment.
pub fn is_legal(model: &ModelSpec, deployment: &Deployment) -> bool {
    let step = Step::uniform(Phase::Decode, 2, 4);
    forward(model, &step, &BuildOptions::default()).is_ok_and(|g| shard(&g, deployment).is_ok())
}

/// A model, a step, and a deployment that can hold the model.
pub fn any_case() -> impl Strategy<Value = (ModelSpec, Step, Deployment)> {
    super::models::any_model().prop_flat_map(|model| (any_deployment(&model), Just(model), any_step()).prop_map(|(d, m, s)| (m, s, d)))
}

fn any_sizes() -> impl Strategy<Value = Deployment> {
    let a2a = select(vec![AllToAll::None, AllToAll::None, AllToAll::Nccl, AllToAll::Flashinfer, AllToAll::Deepep]);
    let kv = select(vec![DType::Bf16, DType::F32, DType::Fp8]);
    // Divisors of tp by construction; what the model cannot be cut into is left for the pass to refuse.
    let sizes = (select(vec![1u32, 2, 2, 3, 4, 4, 8]), 1u32..=3, any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1u32..=2);
    (sizes, any::<prop::sample::Index>(), a2a, kv, any::<bool>()).prop_map(|((tp, pp, dp, ep, replicas), dcp, a2a, kv_dtype, placed)| {
        let divisors: Vec<u32> = (1..=tp).filter(|d| tp.is_multiple_of(*d)).collect();
        let ep = if a2a == AllToAll::None { *ep.get(&divisors) } else { tp };
        let dp_attention = *dp.get(&divisors);
        let shared: Vec<u32> = (1..=tp / dp_attention).filter(|d| (tp / dp_attention).is_multiple_of(*d)).collect();
        Deployment {
            tp,
            pp,
            dp_attention,
            ep,
            dcp: *dcp.get(&shared),
            replicas,
            a2a,
            kv_dtype,
            placement: placed.then(|| ExpertPlacement::contiguous(0)),
        }
    })
}

/// Fills a wanted placement: a seeded permutation of the experts and as many copies as make the slots divide evenly.
fn with_placement(mut d: Deployment, model: &ModelSpec, seed: u64) -> Deployment {
    let experts = model.layers.iter().find_map(|l| match &l.ffn {
        Ffn::Moe(m) => Some(m.experts),
        Ffn::Dense(_) => None,
    });
    let (Some(_), Some(experts)) = (&d.placement, experts) else {
        d.placement = None;
        return d;
    };
    // A step coprime to the number of experts permutes them.
    let step = (1..=experts).filter(|s| gcd(*s, experts) == 1).nth(seed as usize % 2).unwrap_or(1);
    let start = (seed % u64::from(experts)) as u32;
    let slots = (experts + 1).next_multiple_of(d.ep);
    d.placement = Some(ExpertPlacement { physical_to_logical: (0..slots).map(|i| (start + i * step) % experts).collect() });
    d
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
