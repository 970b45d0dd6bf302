//! Random models on random deployments compute what one rank computes: prefill and two decode steps, every named result, in f64.

// By path, since the library of cases depends on crates above this one.
#[allow(unreachable_pub, dead_code)]
#[path = "../../tests/cases/src/deployments.rs"]
mod deployments;
#[allow(unreachable_pub, dead_code)]
#[path = "../../tests/cases/src/models.rs"]
mod models;

use deployments::any_deployment;
use models::any_model;
use moetwin_kernels::reference::{Array, Data};
use moetwin_models::{Deployment, ModelSpec};
use moetwin_runtime::lower::LowerOptions;
use moetwin_runtime::reference::{NamedValue, Order, ReferenceExecutor};
use moetwin_runtime::session::{Session, SessionOptions};
use moetwin_runtime::weights::SyntheticWeights;
use proptest::prelude::*;

/// Largest difference allowed, relative to the largest element: sums over ranks are taken in another order.
const TOLERANCE: f64 = 1e-9;
/// Tokens of KV a sequence.
const CAPACITY: u32 = 16;

type Results = Vec<Vec<NamedValue<f64>>>;

/// Prefill, then decode of fixed tokens twice.
fn run(model: &ModelSpec, deployment: &Deployment, prompts: &[Vec<i32>], seed: u64) -> Result<Results, String> {
    let weights = SyntheticWeights::new(model, seed);
    let order = if deployment.ranks() == 1 { Order::Launch } else { Order::Seeded(seed) };
    let executor = ReferenceExecutor::<f64>::new(deployment.ranks(), CAPACITY, order);
    let options = SessionOptions { deployment: deployment.clone(), lower: LowerOptions::default(), dump: true };
    let mut session = Session::new(model, &weights, executor, options, CAPACITY);
    let mut results = vec![session.prefill(prompts).map_err(|e| e.to_string())?.values];
    for step in 0..2 {
        let tokens: Vec<i32> = (0..prompts.len() as i32).map(|i| (7 * i + 3 + step) % 100).collect();
        results.push(session.decode(&tokens).map_err(|e| e.to_string())?.values);
    }
    Ok(results)
}

/// The first result that differs, if one does.
fn difference(one: &Results, many: &Results) -> Option<String> {
    for (step, (a, b)) in one.iter().zip(many).enumerate() {
        if a.len() != b.len() {
            return Some(format!("step {step}: {} results, not {}", b.len(), a.len()));
        }
        for (x, y) in a.iter().zip(b) {
            if x.name != y.name || x.value.sizes != y.value.sizes || distance(&x.value, &y.value) > TOLERANCE {
                return Some(format!("step {step}: {} differs by {:.1e}", x.name, distance(&x.value, &y.value)));
            }
        }
    }
    None
}

fn distance(a: &Array<f64>, b: &Array<f64>) -> f64 {
    match (&a.data, &b.data) {
        (Data::Int(a), Data::Int(b)) if a == b => 0.0,
        // Poison is not a number and equals nothing.
        (Data::Real(a), Data::Real(b)) if a.len() == b.len() && a.iter().chain(b).all(|x| x.is_finite()) => {
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
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn sharded_equals_whole(
        (deployment, model) in any_model().prop_flat_map(|m| (any_deployment(&m), Just(m))),
        prompts in any_prompts(),
        seed: u64,
    ) {
        let one = run(&model, &Deployment::single(), &prompts, seed).map_err(TestCaseError::fail)?;
        let many = run(&model, &deployment, &prompts, seed).map_err(TestCaseError::fail)?;
        if let Some(difference) = difference(&one, &many) {
            return Err(TestCaseError::fail(difference));
        }
    }
}
