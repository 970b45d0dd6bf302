//! Random models on random deployments compute what one rank computes: prefill and two decode steps, every named result, in f64 and f32.
//!
//! Seeds are fixed unless `PROPTEST_RNG_SEED` says otherwise, and `PROPTEST_CASES` raises the number of cases. A failure prints the smallest
//! case that fails, its deployment as flags, and the command that runs it again.

// By path, since the library of cases depends on crates above this one.
#[allow(unreachable_pub, dead_code)]
#[path = "../../tests/cases/src/deployments.rs"]
mod deployments;
#[allow(unreachable_pub, dead_code)]
#[path = "../../tests/cases/src/models.rs"]
mod models;
#[path = "sharded/ties.rs"]
mod ties;

use deployments::{any_deployment, any_step, is_legal};
use models::{Family, any_model, any_model_of};
use moetwin_kernels::reference::{Array, Data, Real};
use moetwin_models::spec::Ffn;
use moetwin_models::{BuildOptions, Deployment, ModelSpec, Op, Phase, RankId, Step, plan};
use moetwin_runtime::lower::{LowerOptions, lower, lower_each};
use moetwin_runtime::reference::{NamedValue, Order, ReferenceExecutor};
use moetwin_runtime::session::{Session, SessionOptions};
use moetwin_runtime::verify::verify;
use moetwin_runtime::weights::SyntheticWeights;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Largest difference allowed, relative to the largest element: sums over ranks are taken in another order.
const TOLERANCE: f64 = 1e-9;
/// The same in f32, whose rounding is 2^-24.
const TOLERANCE_F32: f64 = 1e-5;
/// Share of tokens that may be set aside because their router scores were closer than rounding: random scores of at most 16 experts are
/// closer than 1e-6 once in some thousand tokens, and what follows a token in its sequence goes with it.
const MOST_SET_ASIDE: f64 = 0.02;
/// Tokens of KV a sequence.
const CAPACITY: u32 = 16;
/// Steps after the prefill.
const DECODED: i32 = 2;

type Results<T> = Vec<Vec<NamedValue<T>>>;

/// What is run.
struct Case<'a> {
    model: &'a ModelSpec,
    prompts: &'a [Vec<i32>],
    seed: u64,
}

/// Prefill, then decode of fixed tokens twice.
fn run<T: Real + From<f32>>(model: &ModelSpec, deployment: &Deployment, prompts: &[Vec<i32>], seed: u64) -> Result<Results<T>, String> {
    run_lowered(model, deployment, LowerOptions::default(), prompts, seed)
}

fn run_lowered<T: Real + From<f32>>(
    model: &ModelSpec,
    deployment: &Deployment,
    lower: LowerOptions,
    prompts: &[Vec<i32>],
    seed: u64,
) -> Result<Results<T>, String> {
    let weights = SyntheticWeights::new(model, seed);
    let order = if deployment.ranks() == 1 { Order::Launch } else { Order::Seeded(seed) };
    let executor = ReferenceExecutor::<T>::new(deployment.ranks(), CAPACITY, order);
    let options = SessionOptions { deployment: deployment.clone(), lower, dump: true };
    let mut session = Session::new(model, &weights, executor, options, CAPACITY);
    let mut results = vec![session.prefill(prompts).map_err(|e| e.to_string())?.values];
    for step in 0..DECODED {
        let tokens = decoded(prompts, step);
        results.push(session.decode(&tokens).map_err(|e| e.to_string())?.values);
    }
    Ok(results)
}

/// The tokens that follow the prompts: the prompts' own where they are of one token.
fn decoded(prompts: &[Vec<i32>], step: i32) -> Vec<i32> {
    let one = prompts[0][0];
    let same = is_skewed(prompts);
    (0..prompts.len() as i32).map(|i| if same { one } else { (7 * i + 3 + step) % 100 }).collect()
}

/// Prompts of a single token: each attends to equal values, so that all choose the same experts and the others get nothing.
fn is_skewed(prompts: &[Vec<i32>]) -> bool {
    prompts.iter().flatten().all(|t| *t == prompts[0][0])
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

/// One to five prompts of one to seven tokens, now and then all of one token.
fn any_prompts() -> impl Strategy<Value = Vec<Vec<i32>>> {
    let ragged = proptest::collection::vec(proptest::collection::vec(0i32..100, 1..=7), 1..=5);
    (ragged, prop_oneof![3 => Just(false), 1 => Just(true)]).prop_map(|(mut prompts, skewed)| {
        let one = prompts[0][0];
        prompts.iter_mut().flatten().for_each(|t| *t = if skewed { one } else { *t });
        prompts
    })
}

/// A runner whose cases are the same on every run, and the command that repeats them.
fn runner(cases: u32, test: &str) -> (TestRunner, String) {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(0x7368_6172);
    }
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    let (seed, cases) = (config.rng_seed, config.cases);
    let replay = format!("PROPTEST_RNG_SEED={seed} PROPTEST_CASES={cases} cargo test -p moetwin-runtime --test sharded {test}");
    (TestRunner::new(config), replay)
}

/// A deployment as one would type it.
fn flags(d: &Deployment) -> String {
    let sizes = [("tp", d.tp), ("pp", d.pp), ("dp-attention", d.dp_attention), ("ep", d.ep), ("dcp", d.dcp), ("replicas", d.replicas)];
    let mut words: Vec<String> = sizes.iter().filter(|(_, n)| *n > 1).map(|(name, n)| format!("--{name} {n}")).collect();
    words.push(format!("--a2a {:?} --kv-dtype {}", d.a2a, d.kv_dtype.name()).to_lowercase());
    if let Some(p) = &d.placement {
        words.push(format!("experts placed {:?}", p.physical_to_logical));
    }
    words.join(" ")
}

/// Every kind of case that must have been tried.
const KINDS: [&str; 13] = [
    "tp",
    "pp",
    "ep",
    "dp attention",
    "dcp",
    "replicas",
    "all to all",
    "tp, pp, ep and dp attention",
    "ragged",
    "redundant experts",
    "skewed routing",
    "a rank without tokens",
    "dense layers",
];

/// What a case is an example of.
fn kinds(model: &ModelSpec, d: &Deployment, prompts: &[Vec<i32>]) -> Vec<&'static str> {
    let experts = model.layers.iter().find_map(|l| match &l.ffn {
        Ffn::Moe(m) => Some(m.experts),
        Ffn::Dense(_) => None,
    });
    let step = Step::uniform(Phase::Decode, prompts.len() as u32, 1);
    let idle = (0..d.ranks()).any(|r| d.attention_sequences(&step, RankId(r)).is_empty());
    let redundant = d.placement.as_ref().is_some_and(|p| Some(p.physical_to_logical.len() as u32) > experts);
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let all = [
        ("tp", d.tp > 1),
        ("pp", d.pp > 1),
        ("ep", d.ep > 1),
        ("dp attention", d.dp_attention > 1),
        ("dcp", d.dcp > 1),
        ("replicas", d.replicas > 1),
        ("all to all", d.a2a != moetwin_models::AllToAll::None),
        ("tp, pp, ep and dp attention", d.tp > 1 && d.pp > 1 && d.ep > 1 && d.dp_attention > 1),
        ("ragged", d.ranks() > 1 && prompts.iter().any(|p| p.len() != prompts[0].len())),
        ("redundant experts", d.ep > 1 && redundant),
        ("skewed routing", d.ep > 1 && tokens >= 4 && is_skewed(prompts)),
        ("a rank without tokens", idle),
        ("dense layers", d.tp > 1 && model.layers.iter().any(|l| matches!(l.ffn, Ffn::Dense(_)))),
    ];
    all.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect()
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

#[test]
fn sharded_equals_whole() {
    let (mut runner, replay) = runner(120, "sharded_equals_whole");
    let cases = any_model().prop_flat_map(|m| (any_deployment(&m), Just(m), any_prompts(), any::<u64>()));
    let met: RefCell<BTreeMap<&str, u32>> = RefCell::default();
    let result = runner.run(&cases, |(deployment, model, prompts, seed)| {
        for kind in kinds(&model, &deployment, &prompts) {
            *met.borrow_mut().entry(kind).or_default() += 1;
        }
        let failed = |what: String| TestCaseError::fail(format!("{} on {}: {what}", model.name, flags(&deployment)));
        let one = run::<f64>(&model, &Deployment::single(), &prompts, seed).map_err(failed)?;
        let many = run(&model, &deployment, &prompts, seed).map_err(failed)?;
        difference(&one, &many, TOLERANCE).map_or(Ok(()), |(_, difference)| Err(failed(difference)))
    });
    if let Err(error) = result {
        panic!("{error}\nreplay: {replay}");
    }
    // Agreement on cases of a few kinds would say little about the others.
    let met = met.borrow();
    let seldom: Vec<&str> = KINDS.into_iter().filter(|kind| met.get(kind).is_none_or(|n| *n < 3)).collect();
    assert!(seldom.is_empty(), "too few cases of {seldom:?}: {met:?}\nreplay: {replay}");
}

/// Sums that are fused with norms are the same bits as those that are not.
#[test]
fn fused_sums_change_no_bit() {
    let fusing = LowerOptions { fuse_sums: true, ..LowerOptions::default() };
    let (mut runner, replay) = runner(120, "fused_sums_change_no_bit");
    let cases = any_model().prop_flat_map(|m| (any_deployment(&m), Just(m), any_prompts(), any::<u64>()));
    let fused = RefCell::new(0);
    let result = runner.run(&cases, |(deployment, model, prompts, seed)| {
        let failed = |what: String| TestCaseError::fail(format!("{} on {}: {what}", model.name, flags(&deployment)));
        let step = Step::uniform(Phase::Decode, prompts.len() as u32, 3);
        let graph = plan(&model, &step, &deployment, &BuildOptions::default()).map_err(|e| failed(e.to_string()))?;
        let program = lower(graph, fusing).map_err(|e| failed(e.to_string()))?;
        verify(&program).map_err(|faults| failed(faults[0].to_string()))?;
        *fused.borrow_mut() += u32::from(program.graph.nodes.iter().any(|(_, n)| matches!(n.op, Op::AllReduceAddRmsNorm { .. })));
        let apart = run::<f32>(&model, &deployment, &prompts, seed).map_err(failed)?;
        let together = run_lowered::<f32>(&model, &deployment, fusing, &prompts, seed).map_err(failed)?;
        difference(&apart, &together, 0.0).map_or(Ok(()), |(_, difference)| Err(failed(difference)))
    });
    if let Err(error) = result {
        panic!("{error}\nreplay: {replay}");
    }
    assert!(*fused.borrow() >= 10, "only {} cases had sums to fuse\nreplay: {replay}", fused.borrow());
}

/// Cases from a seed of its own, so that what is counted over all of them is the same on every run.
fn cases<S: Strategy>(strategy: &S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("no case is rejected").current()).collect()
}

#[test]
fn in_single_precision_only_router_ties_differ() {
    let strategy = any_model().prop_flat_map(|m| (any_deployment(&m), Just(m), any_prompts(), any::<u64>()));
    let (mut tokens, mut aside) = (0usize, 0usize);
    for (deployment, model, prompts, seed) in cases(&strategy, 100) {
        let one = run::<f32>(&model, &Deployment::single(), &prompts, seed).unwrap();
        let many = run::<f32>(&model, &deployment, &prompts, seed).unwrap();
        let case = Case { model: &model, prompts: &prompts, seed };
        let counted = ties::compare(&case, &one, &many).unwrap_or_else(|e| panic!("{e}\n{} on {}", model.name, flags(&deployment)));
        tokens += prompts.iter().map(|p| p.len() + DECODED as usize).sum::<usize>();
        aside += counted;
    }
    let most = MOST_SET_ASIDE * tokens as f64;
    assert!(
        aside as f64 <= most,
        "{aside} of {tokens} tokens were set aside: their router scores, or those of a token they attend to, were a tie"
    );
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
