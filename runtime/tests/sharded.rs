//! Random models on random deployments compute what one rank computes: prefill and two decode steps, every named result, in f64 and f32.
//!
//! A failure prints the smallest case that fails. To run a case again: proptest writes its seed to `sharded.proptest-regressions` beside this
//! file and tries it first from then on, `cargo test -p moetwin-runtime --test sharded`.

// By path, since the library of cases depends on crates above this one.
#[allow(unreachable_pub, dead_code)]
#[path = "../../tests/cases/src/deployments.rs"]
mod deployments;
#[allow(unreachable_pub, dead_code)]
#[path = "../../tests/cases/src/models.rs"]
mod models;

use deployments::{any_deployment, any_step, is_legal};
use models::{Family, any_model, any_model_of};
use moetwin_kernels::reference::{Array, Data, Real};
use moetwin_models::{BuildOptions, Deployment, ModelSpec, plan};
use moetwin_runtime::lower::{LowerOptions, lower, lower_each};
use moetwin_runtime::reference::{NamedValue, Order, ReferenceExecutor};
use moetwin_runtime::session::{Session, SessionOptions};
use moetwin_runtime::weights::SyntheticWeights;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Largest difference allowed, relative to the largest element: sums over ranks are taken in another order.
const TOLERANCE: f64 = 1e-9;
/// The same in f32, whose rounding is 2^-24.
const TOLERANCE_F32: f64 = 1e-5;
/// Steps that may differ because a token's router scores were closer than rounding: random scores of at most 16 experts are closer than
/// 1e-6 once in some thousand tokens.
const MOST_FLIPPED: f64 = 0.02;
/// Tokens of KV a sequence.
const CAPACITY: u32 = 16;

type Results<T> = Vec<Vec<NamedValue<T>>>;

/// Prefill, then decode of fixed tokens twice.
fn run<T: Real + From<f32>>(model: &ModelSpec, deployment: &Deployment, prompts: &[Vec<i32>], seed: u64) -> Result<Results<T>, String> {
    let weights = SyntheticWeights::new(model, seed);
    let order = if deployment.ranks() == 1 { Order::Launch } else { Order::Seeded(seed) };
    let executor = ReferenceExecutor::<T>::new(deployment.ranks(), CAPACITY, order);
    let options = SessionOptions { deployment: deployment.clone(), lower: LowerOptions::default(), dump: true };
    let mut session = Session::new(model, &weights, executor, options, CAPACITY);
    let mut results = vec![session.prefill(prompts).map_err(|e| e.to_string())?.values];
    for step in 0..2 {
        let tokens: Vec<i32> = (0..prompts.len() as i32).map(|i| (7 * i + 3 + step) % 100).collect();
        results.push(session.decode(&tokens).map_err(|e| e.to_string())?.values);
    }
    Ok(results)
}

/// The first result that differs by more than `tolerance`, if one does: its step, its name and by how much.
fn difference<T: Real>(one: &Results<T>, many: &Results<T>, tolerance: f64) -> Option<(usize, String)> {
    for (step, (a, b)) in one.iter().zip(many).enumerate() {
        if a.len() != b.len() {
            return Some((step, format!("{} results, not {}", b.len(), a.len())));
        }
        for (x, y) in a.iter().zip(b) {
            if x.name != y.name || x.value.sizes != y.value.sizes || distance(&x.value, &y.value) > tolerance {
                return Some((step, format!("step {step}: {} differs by {:.1e}", x.name, distance(&x.value, &y.value))));
            }
        }
    }
    None
}

/// Whether the first result of a step that differs is a choice of experts: what comes before it agrees, so the scores were a tie but
/// for rounding.
fn is_router_tie<T: Real>(one: &[NamedValue<T>], many: &[NamedValue<T>]) -> bool {
    let order = |name: &str| {
        // In the order of computation: the state before a layer, then the layer's choice.
        let layer = name.split('.').nth(1).and_then(|n| n.parse::<usize>().ok());
        match (name.split('.').next(), layer) {
            (Some("hidden"), Some(n)) => (n, 0),
            (Some("router"), Some(n)) => (n, 1),
            _ => (usize::MAX, 0),
        }
    };
    let differing = one.iter().zip(many).filter(|(x, y)| distance(&x.value, &y.value) > TOLERANCE_F32).map(|(x, _)| x.name.as_str());
    differing.min_by_key(|name| order(name)).is_some_and(|first| first.starts_with("router."))
}

fn distance<T: Real>(a: &Array<T>, b: &Array<T>) -> f64 {
    match (&a.data, &b.data) {
        (Data::Int(a), Data::Int(b)) if a == b => 0.0,
        (Data::Real(a), Data::Real(b)) if a.len() == b.len() => {
            let (a, b): (Vec<f64>, Vec<f64>) = (a.iter().map(|x| x.to_f64()).collect(), b.iter().map(|x| x.to_f64()).collect());
            // Poison is not a number and equals nothing.
            if !a.iter().chain(&b).all(|x| x.is_finite()) {
                return f64::INFINITY;
            }
            let largest = a.iter().fold(1e-30f64, |m, x| m.max(x.abs()));
            a.iter().zip(b).fold(0.0, |m: f64, (x, y)| m.max((x - y).abs())) / largest
        }
        _ => f64::INFINITY,
    }
}

fn any_prompts() -> impl Strategy<Value = Vec<Vec<i32>>> {
    proptest::collection::vec(proptest::collection::vec(0i32..100, 1..=7), 1..=5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn like_ranks_get_the_program_that_each_would_get_alone(
        (deployment, model, step) in any_model().prop_flat_map(|m| (any_deployment(&m), Just(m), any_step())),
    ) {
        // Steps that a random deployment cannot plan are the shard pass's to refuse.
        if let Ok(graph) = plan(&model, &step, &deployment, &BuildOptions::default()) {
            let fast = lower(graph.clone(), LowerOptions::default()).unwrap();
            let each = lower_each(graph, LowerOptions::default()).unwrap();
            for (rank, program) in each.ranks.iter() {
                prop_assert_eq!(format!("{program:?}"), format!("{:?}", fast.ranks[rank]), "rank {:?} of {:?}", rank, deployment);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn sharded_equals_whole(
        (deployment, model) in any_model().prop_flat_map(|m| (any_deployment(&m), Just(m))),
        prompts in any_prompts(),
        seed: u64,
    ) {
        let one = run::<f64>(&model, &Deployment::single(), &prompts, seed).map_err(TestCaseError::fail)?;
        let many = run(&model, &deployment, &prompts, seed).map_err(TestCaseError::fail)?;
        if let Some((_, difference)) = difference(&one, &many, TOLERANCE) {
            return Err(TestCaseError::fail(difference));
        }
    }
}

/// Cases from a seed of its own, so that what is counted over all of them is the same on every run.
fn cases<S: Strategy>(strategy: &S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("no case is rejected").current()).collect()
}

#[test]
fn in_single_precision_only_router_ties_differ() {
    let strategy = any_model().prop_flat_map(|m| (any_deployment(&m), Just(m), any_prompts(), any::<u64>()));
    let (mut steps, mut flipped) = (0usize, 0usize);
    for (deployment, model, prompts, seed) in cases(&strategy, 60) {
        let one = run::<f32>(&model, &Deployment::single(), &prompts, seed).unwrap();
        let many = run::<f32>(&model, &deployment, &prompts, seed).unwrap();
        steps += one.len();
        if let Some((step, difference)) = difference(&one, &many, TOLERANCE_F32) {
            assert!(is_router_tie(&one[step], &many[step]), "{difference}\n{}\n{deployment:?}", model.name);
            // Later steps build on its cache.
            flipped += one.len() - step;
        }
    }
    assert!(flipped as f64 <= MOST_FLIPPED * steps as f64, "{flipped} of {steps} steps");
}

#[test]
fn a_context_dealt_out_over_ranks_is_attended_whole() {
    for family in Family::ALL {
        let strategy = (any_model_of(family), any_prompts(), any::<u64>());
        let mut tried = 0;
        for (model, prompts, seed) in cases(&strategy, 24) {
            let one = run::<f64>(&model, &Deployment::single(), &prompts, seed).unwrap();
            for (tp, dp_attention, dcp) in [(2, 1, 2), (4, 1, 2), (4, 2, 2), (4, 1, 4), (8, 1, 4), (8, 2, 2)] {
                let deployment = Deployment { tp, dp_attention, dcp, ..Deployment::default() };
                if !is_legal(&model, &deployment) {
                    continue;
                }
                tried += 1;
                let many = run(&model, &deployment, &prompts, seed).unwrap();
                assert_eq!(difference(&one, &many, TOLERANCE), None, "{} {deployment:?} {prompts:?} {seed}", model.name);
            }
        }
        assert!(tried >= 4, "{family:?}: only {tried} deployments deal the context out");
    }
}
