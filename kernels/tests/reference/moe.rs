use crate::harness::*;
use moetwin_kernels::reference::{Array, LocalContext};
use moetwin_models::Op;
use moetwin_models::spec::{Activation, GroupScore, RouterSpec, Scoring};
use proptest::prelude::*;

fn router(scoring: Scoring) -> RouterSpec {
    RouterSpec {
        scoring,
        correction_bias: false,
        groups: 1,
        topk_groups: 1,
        group_score: GroupScore::TopTwoSum,
        normalize: false,
        normalize_eps: 0.0,
        scale: 1.0,
        logits_bias: false,
    }
}

fn check_route(router: &RouterSpec, inputs: &[Array<f64>], topk: usize, chosen: &[i32], weights: &[f64]) {
    let sizes = vec![inputs[0].sizes[0], topk];
    let op = Op::Route { router: router.clone(), topk: topk as u32 };
    let expected = [ids(&sizes, chosen), real(&sizes, weights)];
    check(&op, &LocalContext::default(), inputs, &[Result64::Int(sizes.clone()), Result64::Real(sizes)], &expected);
}

/// Logits whose sigmoids are 1/2, 2/3, 3/4, 1/5.
fn sigmoid_logits() -> Array<f64> {
    real(&[1, 4], &[0.0, 2f64.ln(), 3f64.ln(), -(4f64.ln())])
}

#[test]
fn sigmoid_scores_with_a_bias_that_only_chooses() {
    // DeepSeek-V3: the bias lifts expert 3 to the top (0.2 + 0.9), its weight stays 0.2. Normalized over 0.2 + 0.75, scaled by 2.5.
    let r = RouterSpec { correction_bias: true, normalize: true, normalize_eps: 1e-20, scale: 2.5, ..router(Scoring::Sigmoid) };
    let bias = real(&[4], &[0.0, 0.0, 0.0, 0.9]);
    check_route(&r, &[sigmoid_logits(), bias], 2, &[3, 2], &[2.5 * 0.2 / 0.95, 2.5 * 0.75 / 0.95]);
    let plain = router(Scoring::Sigmoid);
    check_route(&plain, &[sigmoid_logits()], 3, &[2, 1, 0], &[0.75, 2.0 / 3.0, 0.5]);
    let eps = RouterSpec { normalize: true, normalize_eps: 0.25, ..plain };
    check_route(&eps, &[sigmoid_logits()], 1, &[2], &[0.75]);
}

#[test]
fn softmax_over_all_or_over_the_chosen() {
    // Exponentials 1, 2, 3 and 4.
    let logits = real(&[1, 4], &[0.0, 2f64.ln(), 3f64.ln(), 4f64.ln()]);
    check_route(&router(Scoring::Softmax), std::slice::from_ref(&logits), 2, &[3, 2], &[0.4, 0.3]);
    let normalized = RouterSpec { normalize: true, ..router(Scoring::Softmax) };
    check_route(&normalized, std::slice::from_ref(&logits), 2, &[3, 2], &[4.0 / 7.0, 3.0 / 7.0]);
    check_route(&router(Scoring::SoftmaxTopk), &[logits], 3, &[3, 2, 1], &[4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0]);
}

#[test]
fn groups_are_chosen_by_their_two_best_or_by_their_best() {
    // Group sums of two: 1.3 (0.9 + 0.4) and 1.5 (0.8 + 0.7). The best single score is in the first group.
    let inverse = |p: f64| (p / (1.0 - p)).ln();
    let logits = real(&[1, 6], &[0.9, 0.4, 0.1, 0.8, 0.7, 0.2].map(inverse));
    let two = RouterSpec { groups: 2, topk_groups: 1, ..router(Scoring::Sigmoid) };
    check_route(&two, std::slice::from_ref(&logits), 2, &[3, 4], &[0.8, 0.7]);
    let max = RouterSpec { group_score: GroupScore::Max, ..two };
    check_route(&max, &[logits], 2, &[0, 1], &[0.9, 0.4]);
}

#[test]
fn experts_of_other_groups_stay_out_even_when_all_biased_scores_are_negative() {
    // transformers 4.57 filled 0 and so chose expert 0 or 1 here; 5.x fills -inf.
    let r = RouterSpec { correction_bias: true, groups: 2, topk_groups: 1, ..router(Scoring::Sigmoid) };
    let bias = real(&[4], &[-4.0, -4.0, -2.0, -2.5]);
    check_route(&r, &[real(&[1, 4], &[0.0; 4]), bias], 2, &[2, 3], &[0.5, 0.5]);
}

#[test]
fn equal_scores_go_to_the_lowest_ids_and_nan_goes_last() {
    let r = router(Scoring::Sigmoid);
    check_route(&r, &[real(&[1, 5], &[0.0; 5])], 3, &[0, 1, 2], &[0.5; 3]);
    let nan = f64::NAN;
    let op = Op::Route { router: r, topk: 3 };
    let results = [Result64::Int(vec![1, 3]), Result64::Real(vec![1, 3])];
    let out = run_on::<f64>(1, &op, &LocalContext::default(), &[real(&[1, 4], &[nan, 0.0, nan, 1.0])], &results).unwrap();
    assert_eq!(out[0].as_int().unwrap(), [3, 1, 0]);
    assert!(out[1].as_real().unwrap()[2].is_nan());
    let grouped = Op::Route { router: RouterSpec { groups: 2, topk_groups: 1, ..router(Scoring::Sigmoid) }, topk: 2 };
    let results = [Result64::Int(vec![1, 2]), Result64::Real(vec![1, 2])];
    let out = run_on::<f64>(1, &grouped, &LocalContext::default(), &[real(&[1, 4], &[0.0; 4])], &results).unwrap();
    assert_eq!(out[0].as_int().unwrap(), [0, 1], "equal groups: the lowest");
}

/// Takes the best expert again and again; a group takes part while fewer than `topk_groups` groups beat it.
fn route_oracle(r: &RouterSpec, logits: &[f64], bias: &[f64], topk: usize) -> (Vec<i32>, Vec<f64>) {
    let total: f64 = logits.iter().map(|l| l.exp()).sum();
    let score = |e: usize| match r.scoring {
        Scoring::Sigmoid => (1.0 + (logits[e] / 2.0).tanh()) / 2.0,
        Scoring::Softmax => logits[e].exp() / total,
        Scoring::SoftmaxTopk => logits[e],
    };
    let biased = |e: usize| score(e) + bias[e];
    let size = logits.len() / r.groups as usize;
    let group_score = |g: usize| {
        let mut s: Vec<f64> = (g * size..(g + 1) * size).map(biased).collect();
        s.sort_by(|a, b| b.total_cmp(a));
        if r.group_score == GroupScore::Max || size == 1 { s[0] } else { s[0] + s[1] }
    };
    let better = |a: f64, ia: usize, b: f64, ib: usize| a > b || (a == b && ia < ib);
    let kept = |g: usize| {
        let beaten_by = (0..r.groups as usize).filter(|&o| o != g && better(group_score(o), o, group_score(g), g)).count();
        beaten_by < r.topk_groups as usize
    };
    let value = |e: usize| if kept(e / size) { biased(e) } else { f64::NEG_INFINITY };
    let mut chosen: Vec<usize> = Vec::new();
    for _ in 0..topk {
        let left = (0..logits.len()).filter(|e| !chosen.contains(e));
        let best = left.reduce(|a, b| if better(value(b), b, value(a), a) { b } else { a }).unwrap();
        chosen.push(best);
    }
    let mut w: Vec<f64> = chosen.iter().map(|&e| score(e)).collect();
    if r.scoring == Scoring::SoftmaxTopk {
        let sum: f64 = w.iter().map(|l| l.exp()).sum();
        w.iter_mut().for_each(|l| *l = l.exp() / sum);
    }
    let divisor = if r.normalize { w.iter().sum::<f64>() + r.normalize_eps } else { 1.0 };
    (chosen.iter().map(|e| *e as i32).collect(), w.iter().map(|x| x / divisor * r.scale).collect())
}

const SILU: Op = Op::Experts { activation: Activation::Silu };

#[test]
fn two_experts_by_hand() {
    // H = I = 1: expert e computes down_e * silu(gate_e x) * up_e x. Expert 0 doubles, expert 1 negates.
    let x = real(&[2, 1], &[1.0, -2.0]);
    let gate_up = real(&[2, 2, 1], &[1.0, 1.0, 1.0, 1.0]);
    let down = real(&[2, 1, 1], &[2.0, -1.0]);
    let choice = ids(&[2, 2], &[1, 0, -1, 0]);
    let weights = real(&[2, 2], &[0.25, 0.75, 9.0, 0.5]);
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let first = silu(1.0) * (0.75 * 2.0 - 0.25);
    let second = 0.5 * 2.0 * silu(-2.0) * -2.0;
    let inputs = [x, choice, weights, gate_up, down];
    check(&SILU, &LocalContext::default(), &inputs, &[Result64::Real(vec![2, 1])], &[real(&[2, 1], &[first, second])]);
}

#[test]
fn all_tokens_to_one_expert_and_more_tokens_than_a_block() {
    let mut n = Numbers::new(11);
    let (tokens, hidden, intermediate, experts) = (600, 5, 3, 4);
    let x = n.array(&[tokens, hidden]);
    let (gate_up, down) = (n.array(&[experts, 2 * intermediate, hidden]), n.array(&[experts, hidden, intermediate]));
    let weights = n.array(&[tokens, 1]);
    let case = |choice: Vec<i32>| {
        let inputs = vec![x.clone(), ids(&[tokens, 1], &choice), weights.clone(), gate_up.clone(), down.clone()];
        let expected = experts_oracle(&inputs, 0, Activation::Silu, None, true);
        check(&SILU, &LocalContext::default(), &inputs, &[Result64::Real(vec![tokens, hidden])], &[expected]);
    };
    case(vec![2; tokens]);
    case((0..tokens).map(|_| n.below(experts) as i32).collect());
    case(vec![-1; tokens]);
}

/// One token and one expert at a time, element by element; the token's experts are added from the last to the first.
fn experts_oracle(
    inputs: &[Array<f64>],
    first: usize,
    activation: Activation,
    biases: Option<(&Array<f64>, &Array<f64>)>,
    adds_bias: bool,
) -> Array<f64> {
    let (x, ids, weights) = (&inputs[0], inputs[1].as_int().unwrap(), &inputs[2]);
    let (gate_up, down) = (inputs[3].as_real().unwrap(), inputs[4].as_real().unwrap());
    let (experts, hidden, inter) = (inputs[4].sizes[0], inputs[4].sizes[1], inputs[4].sizes[2]);
    let k = inputs[1].sizes[1];
    let mut out = vec![0.0; x.sizes[0] * hidden];
    for t in 0..x.sizes[0] {
        for j in (0..k).rev() {
            let Some(e) = usize::try_from(ids[t * k + j]).ok().and_then(|id| id.checked_sub(first)).filter(|e| *e < experts) else {
                continue;
            };
            let project = |row: usize| {
                let bias = biases.map_or(0.0, |(b, _)| at(b, e, row));
                (0..hidden).map(|c| gate_up[(e * 2 * inter + row) * hidden + c] * at(x, t, c)).sum::<f64>() + bias
            };
            let act = |i: usize| {
                let (g, u) = (project(i), project(inter + i));
                match activation {
                    Activation::Silu => g * u / (1.0 + (-g).exp()),
                    Activation::ClampedSwiglu { alpha, limit } => {
                        let g = g.min(limit);
                        (u.clamp(-limit, limit) + 1.0) * g / (1.0 + (-alpha * g).exp())
                    }
                }
            };
            for h in 0..hidden {
                let bias = biases.filter(|_| adds_bias).map_or(0.0, |(_, b)| at(b, e, h));
                let y = (0..inter).map(|i| down[(e * hidden + h) * inter + i] * act(i)).sum::<f64>() + bias;
                out[t * hidden + h] += y * at(weights, t, j);
            }
        }
    }
    real(&[x.sizes[0], hidden], &out)
}

#[test]
fn replicated_experts_take_turns_by_token() {
    let slots = vec![vec![0, 3], vec![1], vec![2, 4, 5]];
    let context = LocalContext { expert_slots: &slots, first_token: 1, ..LocalContext::default() };
    let choice = ids(&[3, 2], &[0, 2, 0, 2, -1, 1]);
    check(&Op::PlaceExperts, &context, &[choice], &[Result64::Int(vec![3, 2])], &[ids(&[3, 2], &[3, 4, 0, 5, -1, 1])]);
}

proptest! {
    #[test]
    fn routes_agree_with_the_oracle(
        (seed, rows, groups, size) in (any::<u64>(), 0usize..6, 1usize..5, 1usize..6),
        (scoring, max) in (0usize..3, any::<bool>()),
        (biased, normalize, coarse) in (any::<bool>(), any::<bool>(), any::<bool>()),
        (kept, k) in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let (experts, topk_groups) = (groups * size, kept.index(groups) + 1);
        let topk = k.index(topk_groups * size + 1);
        let r = RouterSpec {
            correction_bias: biased,
            groups: groups as u32,
            topk_groups: topk_groups as u32,
            group_score: if max { GroupScore::Max } else { GroupScore::TopTwoSum },
            normalize,
            normalize_eps: 1e-20,
            scale: 2.827,
            ..router([Scoring::Sigmoid, Scoring::Softmax, Scoring::SoftmaxTopk][scoring])
        };
        let mut n = Numbers::new(seed);
        // Coarse logits repeat, so ties are common. Biases are multiples of 1/8: a tie in f32 is one in f64.
        let mut logits = |len: usize| -> Vec<f64> { (0..len).map(|_| if coarse { (4.0 * n.real()).round() / 2.0 } else { n.real() }).collect() };
        let (logits, bias) = (logits(rows * experts), logits(experts).iter().map(|b| (b * 8.0).round() / 8.0).collect::<Vec<f64>>());
        let bias = if biased { bias } else { vec![0.0; experts] };
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let (c, w) = route_oracle(&r, &logits[row * experts..(row + 1) * experts], &bias, topk);
            chosen.extend(c);
            weights.extend(w);
        }
        let mut inputs = vec![real(&[rows, experts], &logits)];
        inputs.extend(biased.then(|| real(&[experts], &bias)));
        let sizes = vec![rows, topk];
        let op = Op::Route { router: r, topk: topk as u32 };
        let results = [Result64::Int(sizes.clone()), Result64::Real(sizes.clone())];
        // Exact ties between sums of rounded scores can fall either way in another formulation, so ids are compared through the scores.
        let out = run_on::<f64>(4, &op, &LocalContext::default(), &inputs, &results).unwrap();
        assert_close(&out[1], &real(&sizes, &weights), 1e-12);
        if !coarse {
            prop_assert_eq!(out[0].as_int().unwrap(), &chosen);
        }
        for row in out[0].as_int().unwrap().chunks(topk.max(1)) {
            let mut distinct = row.to_vec();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), row.len());
        }
    }

    #[test]
    fn experts_agree_with_the_oracle_and_with_their_shards(
        (seed, tokens, hidden, inter) in (any::<u64>(), 0usize..9, 1usize..7, 0usize..6),
        (experts, k) in (1usize..7, 0usize..4),
        (clamped, with_bias) in (any::<bool>(), any::<bool>()),
        (by_expert, by_column) in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let mut n = Numbers::new(seed);
        let x = n.array(&[tokens, hidden]);
        let choice: Vec<i32> = (0..tokens * k).map(|_| n.below(experts + 1) as i32 - 1).collect();
        let (gate_up, down) = (n.array(&[experts, 2 * inter, hidden]), n.array(&[experts, hidden, inter]));
        let (gate_up_bias, down_bias) = (n.array(&[experts, 2 * inter]), n.array(&[experts, hidden]));
        let activation = if clamped { Activation::ClampedSwiglu { alpha: 1.702, limit: 0.5 } } else { Activation::Silu };
        let op = Op::Experts { activation };
        let mut inputs = vec![x, ids(&[tokens, k], &choice), n.array(&[tokens, k]), gate_up, down];
        let biases = with_bias.then_some((&gate_up_bias, &down_bias));
        let expected = experts_oracle(&inputs, 0, activation, biases, true);
        if with_bias {
            inputs.extend([gate_up_bias.clone(), down_bias.clone()]);
        }
        let results = [Result64::Real(vec![tokens, hidden])];
        check(&op, &LocalContext::default(), &inputs, &results, std::slice::from_ref(&expected));

        // Expert parallel: each rank holds a run of experts. Tensor parallel: each rank holds some columns, the first adds the down bias.
        let run = |from: usize, to: usize, columns: std::ops::Range<usize>| {
            let mut local = inputs.clone();
            local[3] = take(&inputs[3], from..to, &[columns.clone(), columns.start + inter..columns.end + inter]);
            local[4] = take_columns(&inputs[4], from..to, columns.clone());
            if with_bias {
                let as_stack = |b: &Array<f64>| Array::real(&[b.sizes[0], b.sizes[1], 1], b.as_real().unwrap().to_vec());
                let flat = |s: Array<f64>| Array::real(&s.sizes[..2], s.as_real().unwrap().to_vec());
                local[5] = flat(take(&as_stack(&gate_up_bias), from..to, &[columns.clone(), columns.start + inter..columns.end + inter]));
                local[6] = flat(take(&as_stack(&down_bias), from..to, &[0..hidden, 0..0]));
            }
            let context = LocalContext { expert_start: from, adds_bias: columns.start == 0, ..LocalContext::default() };
            compute(&op, &context, &local, &results).remove(0)
        };
        let cut = by_expert.index(experts + 1);
        let ep = vec![run(0, cut, 0..inter), run(cut, experts, 0..inter)];
        check(&Op::Add, &LocalContext::default(), &ep, &results, std::slice::from_ref(&expected));
        if inter > 0 {
            let cut = by_column.index(inter) + 1;
            let second = if cut < inter { run(0, experts, cut..inter) } else { real(&[tokens, hidden], &vec![0.0; tokens * hidden]) };
            check(&Op::Add, &LocalContext::default(), &[run(0, experts, 0..cut), second], &results, &[expected]);
        }
    }
}

/// Rows `ranges` of matrices `items` of a stack.
fn take(stack: &Array<f64>, items: std::ops::Range<usize>, ranges: &[std::ops::Range<usize>; 2]) -> Array<f64> {
    let (rows, cols) = (stack.sizes[1], stack.sizes[2]);
    let data = stack.as_real().unwrap();
    let mut out = Vec::new();
    for e in items.clone() {
        for r in ranges.iter().cloned().flatten() {
            out.extend(&data[(e * rows + r) * cols..(e * rows + r + 1) * cols]);
        }
    }
    Array::real(&[items.len(), ranges[0].len() + ranges[1].len(), cols], out)
}

fn take_columns(stack: &Array<f64>, items: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> Array<f64> {
    let (rows, cols) = (stack.sizes[1], stack.sizes[2]);
    let data = stack.as_real().unwrap();
    let mut out = Vec::new();
    for e in items.clone() {
        for r in 0..rows {
            out.extend(&data[(e * rows + r) * cols + columns.start..(e * rows + r) * cols + columns.end]);
        }
    }
    Array::real(&[items.len(), rows, columns.len()], out)
}
