//! Comparison row by row in single precision. A token whose router scores are closer than rounding may choose other experts; it is set
//! aside with what follows it in its sequence, and everything else must agree.

use super::{CAPACITY, Case, Results, TOLERANCE_F32, decoded};
use moetwin_kernels::reference::{Array, Data, LocalContext, run};
use moetwin_models::{BuildOptions, Deployment, LogitsRows, Op, Phase, RankId, Sequence, Step, TensorKind, plan};
use moetwin_runtime::Executor;
use moetwin_runtime::lower::{LowerOptions, lower};
use moetwin_runtime::reference::{NamedValue, Order, ReferenceExecutor, StepInputs};
use moetwin_runtime::weights::{SyntheticWeights, load_weight};

/// Trials of noise on router scores. A tie of two experts turns over in half of them.
const TRIALS: usize = 64;

/// Tokens set aside, or the first difference that is no tie.
pub(crate) fn compare(case: &Case<'_>, one: &Results<f32>, many: &Results<f32>) -> Result<usize, String> {
    // Of each sequence, the first position that is set aside.
    let mut aside: Vec<Option<usize>> = vec![None; case.prompts.len()];
    for (step, (a, b)) in one.iter().zip(many).enumerate() {
        if a.len() != b.len() {
            return Err(format!("step {step}: {} results, not {}", b.len(), a.len()));
        }
        let mut pairs: Vec<_> = a.iter().zip(b).collect();
        pairs.sort_by_key(|(x, _)| order(&x.name));
        let places = places(case, step);
        for (x, y) in pairs {
            compare_value(case, step, &places, (x, y), &mut aside)?;
        }
    }
    let lengths = case.prompts.iter().map(|p| p.len() + one.len() - 1);
    Ok(lengths.zip(aside).map(|(length, from)| from.map_or(0, |from| length - from)).sum())
}

/// In the order of computation: the state before a layer, the layer's choice and its weights, then what comes out.
fn order(name: &str) -> (usize, usize) {
    let parts: Vec<&str> = name.split('.').collect();
    let layer = parts.get(1).and_then(|n| n.parse().ok());
    match (parts[0], layer, parts.last()) {
        ("hidden", Some(n), _) => (n, 0),
        ("router", Some(n), Some(&"experts")) => (n, 1),
        ("router", Some(n), _) => (n, 2),
        ("logits", ..) => (usize::MAX, 0),
        _ => (usize::MAX, 1),
    }
}

/// Sequence and position of each row of a step.
fn places(case: &Case<'_>, step: usize) -> Vec<(usize, usize)> {
    let of = |(i, p): (usize, &Vec<i32>)| {
        let positions = if step == 0 { 0..p.len() } else { p.len() + step - 1..p.len() + step };
        positions.map(move |position| (i, position)).collect::<Vec<_>>()
    };
    case.prompts.iter().enumerate().flat_map(of).collect()
}

fn compare_value(
    case: &Case<'_>,
    step: usize,
    places: &[(usize, usize)],
    (x, y): (&NamedValue<f32>, &NamedValue<f32>),
    aside: &mut [Option<usize>],
) -> Result<(), String> {
    if x.name != y.name || x.value.sizes != y.value.sizes {
        return Err(format!("step {step}: {} {:?} is not {} {:?}", y.name, y.value.sizes, x.name, x.value.sizes));
    }
    for (row, &(sequence, position)) in places.iter().enumerate() {
        if aside[sequence].is_some_and(|from| position >= from) {
            continue;
        }
        let difference = row_difference(&x.value, &y.value, row, places.len());
        if difference <= TOLERANCE_F32 {
            continue;
        }
        let layer = x.name.strip_prefix("router.").and_then(|n| n.strip_suffix(".experts")).and_then(|n| n.parse().ok());
        if !layer.is_some_and(|layer| is_tie(case, step, layer, row, TOLERANCE_F32)) {
            return Err(format!("step {step}: {} of sequence {sequence} at position {position} differs by {difference:.1e}", x.name));
        }
        aside[sequence] = Some(position);
    }
    Ok(())
}

/// Largest difference in a row, relative to the largest element of all rows; infinite where ids differ or a number is none.
fn row_difference(a: &Array<f32>, b: &Array<f32>, row: usize, rows: usize) -> f64 {
    match (&a.data, &b.data) {
        (Data::Int(a), Data::Int(b)) => {
            let width = a.len() / rows;
            if a[row * width..][..width] == b[row * width..][..width] { 0.0 } else { f64::INFINITY }
        }
        (Data::Real(a), Data::Real(b)) => {
            let width = a.len() / rows;
            let largest = a.iter().fold(1e-30f32, |m, x| m.max(x.abs()));
            let pairs = a[row * width..][..width].iter().zip(&b[row * width..][..width]);
            let differences = pairs.map(|(x, y)| if x.is_finite() && y.is_finite() { f64::from((x - y).abs()) } else { f64::INFINITY });
            differences.fold(0.0, f64::max) / f64::from(largest)
        }
        _ => f64::INFINITY,
    }
}

/// Whether noise on a token's router logits, as they are in double precision, changes its choice; `noise` is relative to the largest
/// logit, or to 1 where that is larger.
fn is_tie(case: &Case<'_>, step: usize, layer: u16, row: usize, noise: f64) -> bool {
    let (op, logits, bias) = router_operands(case, step, layer, row);
    let Op::Route { topk, .. } = op else { unreachable!("a route was looked for") };
    let bound = noise * logits.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    let choice = |noise: &dyn Fn(usize) -> f64| {
        let noisy = logits.iter().enumerate().map(|(e, x)| x + noise(e)).collect();
        let logits = Array::real(&[1, logits.len()], noisy);
        let operands: Vec<&Array<f64>> = std::iter::once(&logits).chain(&bias).collect();
        let mut outputs =
            [Array::int(&[1, topk as usize], vec![0; topk as usize]), Array::real(&[1, topk as usize], vec![0.0; topk as usize])];
        run(&op, &LocalContext::default(), &operands, &mut outputs).unwrap();
        outputs[0].as_int().unwrap().to_vec()
    };
    let chosen = choice(&|_| 0.0);
    (1..=TRIALS).any(|trial| {
        // Signs without pattern: the high bits of a product with an odd number (Knuth's multiplicative hash).
        let sign = |e: usize| if ((trial * 64 + e) as u32).wrapping_mul(2_654_435_761) >> 31 == 0 { bound } else { -bound };
        choice(&sign) != chosen
    })
}

/// A layer's routing op, and its operands for one token, in double precision.
fn router_operands(case: &Case<'_>, step: usize, layer: u16, row: usize) -> (Op, Vec<f64>, Option<Array<f64>>) {
    let weights = SyntheticWeights::new(case.model, case.seed);
    let mut executor = ReferenceExecutor::<f64>::new(1, CAPACITY, Order::Launch);
    for past_step in 0..=step {
        let (phase, logits) = if past_step == 0 { (Phase::Prefill, LogitsRows::All) } else { (Phase::Decode, LogitsRows::Last) };
        let sequence = |p: &Vec<i32>| match past_step {
            0 => Sequence { past: 0, new: p.len() as u32 },
            n => Sequence { past: (p.len() + n - 1) as u32, new: 1 },
        };
        let sequences: Vec<Sequence> = case.prompts.iter().map(sequence).collect();
        let token_ids = if past_step == 0 { case.prompts.concat() } else { decoded(case.prompts, past_step as i32 - 1) };
        let shape = Step { phase, sequences: sequences.clone(), logits };
        let mut graph = plan(case.model, &shape, &Deployment::single(), &BuildOptions::default()).unwrap();
        let is_route = |n: &moetwin_models::Node| n.layer == Some(layer) && matches!(n.op, Op::Route { .. });
        let route = graph.nodes.iter().find(|(_, n)| is_route(n)).map(|(_, n)| n.clone()).unwrap();
        graph.outputs.push(("router logits".into(), route.inputs[0]));
        let program = lower(graph, LowerOptions::default()).unwrap();
        let bias = route.inputs.get(1).filter(|_| past_step == step).map(|&t| {
            assert!(matches!(program.graph.tensors[t].kind, TensorKind::Weight(_)));
            load_weight::<f64>(&weights, &program.graph, t, RankId(0)).unwrap()
        });
        executor.load(&program, RankId(0), &weights).unwrap();
        let key = executor.prepare(program).unwrap();
        let values = executor.run(key, &StepInputs { token_ids, sequences }).unwrap();
        if past_step == step {
            let logits = &values.iter().find(|v| v.name == "router logits").unwrap().value;
            let width = logits.sizes[1];
            return (route.op, logits.as_real().unwrap()[row * width..][..width].to_vec(), bias);
        }
    }
    unreachable!("the last step returns")
}

#[test]
fn noise_tells_ties_from_choices() {
    let text = include_str!("../../../tests/fixtures/tiny-mixtral/config.json");
    let model = &moetwin_models::config::read(text, "tiny").unwrap();
    let case = Case { model, prompts: &[vec![5, 9, 80, 3], vec![7, 7]], seed: 3 };
    for (step, rows) in [(0, 6), (2, 2)] {
        for row in 0..rows {
            assert!(is_tie(&case, step, 1, row, 10.0), "step {step}, row {row}: noise ten times the logits turns nothing over");
            assert!(!is_tie(&case, step, 1, row, 1e-12), "step {step}, row {row}");
        }
    }
}
