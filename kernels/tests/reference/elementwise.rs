use crate::harness::*;
use moetwin_kernels::reference::{Array, CacheSlot, LocalContext, Turn};
use moetwin_models::spec::Activation;
use moetwin_models::{LogitsRows, Op, Sequence};
use proptest::prelude::*;

const SWIGLU: Activation = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };

fn plain() -> LocalContext<'static> {
    LocalContext::default()
}

#[test]
fn rms_norm_of_three_and_four() {
    // mean square 12.5, so 3 / sqrt(12.5) and 4 / sqrt(12.5) * 2; a second row with eps alone under the root.
    let x = real(&[2, 2], &[3.0, 4.0, 0.0, 0.0]);
    let w = real(&[2], &[1.0, 2.0]);
    let expected = real(&[2, 2], &[0.848_528_137_423_857, 2.262_741_699_796_952, 0.0, 0.0]);
    let close_to_zero_eps = Op::RmsNorm { eps: 1e-30 };
    check(&close_to_zero_eps, &plain(), &[x, w], &[Result64::Real(vec![2, 2])], &[expected]);
    // eps counts: sqrt(1 + 3) = 2.
    let halves = real(&[1, 3], &[0.5, -0.5, 0.5]);
    let (ones, w) = (real(&[1, 3], &[1.0, -1.0, 1.0]), real(&[3], &[1.0; 3]));
    check(&Op::RmsNorm { eps: 3.0 }, &plain(), &[ones, w], &[Result64::Real(vec![1, 3])], &[halves]);
}

#[test]
fn activations_by_hand() {
    // silu(1) = 0.7310585786300049, silu(-2) = -0.2384058440442351.
    let gate_up = real(&[1, 4], &[1.0, -2.0, 2.0, 3.0]);
    let silu = real(&[1, 2], &[1.462_117_157_260_009_8, -0.715_217_532_132_705_3]);
    check(&Op::GatedActivation { activation: Activation::Silu }, &plain(), &[gate_up], &[Result64::Real(vec![1, 2])], &[silu]);
    // Clamped: gate 10 -> 7, up 10 -> 7 and -10 -> -7; gate -10 stays. sigmoid(11.914) and sigmoid(-17.02) to 16 digits.
    let gate_up = real(&[1, 6], &[10.0, 10.0, -10.0, 10.0, -10.0, 0.5]);
    let (high, low) = (1.0 / (1.0 + (-11.914f64).exp()), 1.0 / (1.0 + 17.02f64.exp()));
    let clamped = real(&[1, 3], &[8.0 * 7.0 * high, -6.0 * 7.0 * high, 1.5 * -10.0 * low]);
    check(&Op::GatedActivation { activation: SWIGLU }, &plain(), &[gate_up], &[Result64::Real(vec![1, 3])], &[clamped]);
}

#[test]
fn full_width_norms_by_hand_and_clipped() {
    // q = (3, 4): mean square 12.5, so q / sqrt(12.5 + 0) = (0.848.., 1.131..); k = (2, 2): (1, 1). Weights double q and keep k.
    let qkv = real(&[1, 6], &[3.0, 4.0, 2.0, 2.0, -5.0, 0.25]);
    let (q_norm, k_norm) = (real(&[2], &[2.0, 2.0]), real(&[2], &[1.0, 1.0]));
    let root = 12.5f64.sqrt();
    let plain_values = [6.0 / root, 8.0 / root, 1.0, 1.0, -5.0, 0.25];
    let clipped = plain_values.map(|v: f64| v.clamp(-1.75, 1.75));
    for (clip, expected) in [(None, plain_values), (Some(1.75), clipped)] {
        let inputs = [qkv.clone(), q_norm.clone(), k_norm.clone()];
        check(&Op::QkNorm { eps: 0.0, clip }, &plain(), &inputs, &[Result64::Real(vec![1, 6])], &[real(&[1, 6], &expected)]);
    }
    // By hand: 6 / sqrt(12.5) = 1.697 stays, 8 / sqrt(12.5) = 2.263 and -5 do not.
    assert_eq!((clipped[1], clipped[4], clipped[5]), (1.75, -1.75, 0.25));
    assert!((clipped[0] - 1.697_056_274_8).abs() < 1e-9);
}

#[test]
fn sigmoid_scale_by_row_or_by_element() {
    let y = real(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let third = 1.0f64 / 3.0;
    let by_row = real(&[2, 1], &[0.0, 2.0f64.ln()]);
    let expected = real(&[2, 2], &[0.5, 1.0, 2.0, 8.0 * third]);
    check(&Op::SigmoidScale, &plain(), &[y.clone(), by_row], &[Result64::Real(vec![2, 2])], &[expected]);
    let by_element = real(&[2, 2], &[0.0, 2.0f64.ln(), -(2.0f64.ln()), 0.0]);
    let expected = real(&[2, 2], &[0.5, 4.0 * third, 1.0, 2.0]);
    check(&Op::SigmoidScale, &plain(), &[y, by_element], &[Result64::Real(vec![2, 2])], &[expected]);
}

#[test]
fn argmax_takes_the_lowest_of_equals_and_nothing_of_a_row_that_is_not_finite() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let logits = real(&[5, 3], &[1.0, 3.0, 3.0, nan, -9.0, nan, 2.0, inf, 1.0, 2.0, -inf, 1.0, -1.0, -1.0, -2.0]);
    check(&Op::Argmax, &plain(), &[logits], &[Result64::Int(vec![5])], &[ids(&[5], &[1, -1, -1, -1, 0])]);
}

#[test]
fn embedding_writes_zeros_outside_its_slice() {
    let table = real(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let context = LocalContext { vocab_start: 10, ..plain() };
    let expected = real(&[4, 2], &[3.0, 4.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
    check(&Op::Embed, &context, &[ids(&[4], &[11, 12, 10, 9]), table], &[Result64::Real(vec![4, 2])], &[expected]);
}

#[test]
fn selected_rows_are_the_last_of_each_sequence_or_all() {
    let x = real(&[4, 1], &[0.0, 1.0, 2.0, 3.0]);
    let slot = |past, new, cache_start| CacheSlot { sequence: Sequence { past, new }, cache_start, turn: Turn::WHOLE };
    let sequences = [slot(0, 3, 0), slot(5, 1, 3)];
    let context = LocalContext { sequences: &sequences, logits: LogitsRows::Last, ..plain() };
    check(&Op::SelectRows, &context, std::slice::from_ref(&x), &[Result64::Real(vec![2, 1])], &[real(&[2, 1], &[2.0, 3.0])]);
    let context = LocalContext { logits: LogitsRows::All, ..context };
    check(&Op::SelectRows, &context, std::slice::from_ref(&x), &[Result64::Real(vec![4, 1])], std::slice::from_ref(&x));
}

fn norm_oracle(x: &Array<f64>, w: &Array<f64>, eps: f64, first: usize) -> Vec<f64> {
    let width = w.sizes[0];
    let w = w.as_real().unwrap();
    let mut out = Vec::new();
    for r in 0..x.sizes[0] {
        let mut square = 0.0;
        for c in (0..width).rev() {
            square += at(x, r, first + c).powi(2);
        }
        out.extend((0..width).map(|c| w[c] * at(x, r, first + c) / (square / width as f64 + eps).sqrt()));
    }
    out
}

proptest! {
    #[test]
    fn norms_and_sums_agree_with_the_oracle(seed: u64, rows in 0usize..40, cols in 1usize..70, eps in 1e-6f64..1e-2) {
        let mut n = Numbers::new(seed);
        let (a, b, w) = (n.array(&[rows, cols]), n.array(&[rows, cols]), n.array(&[cols]));
        let results = [Result64::Real(vec![rows, cols]), Result64::Real(vec![rows, cols])];
        let sum: Vec<f64> = a.as_real().unwrap().iter().zip(b.as_real().unwrap()).map(|(a, b)| b + a).collect();
        let sum = real(&[rows, cols], &sum);
        check(&Op::Add, &plain(), &[a.clone(), b.clone()], &results[..1], std::slice::from_ref(&sum));
        let normed = real(&[rows, cols], &norm_oracle(&sum, &w, eps, 0));
        check(&Op::RmsNorm { eps }, &plain(), &[sum.clone(), w.clone()], &results[..1], std::slice::from_ref(&normed));
        check(&Op::AddRmsNorm { eps }, &plain(), &[a, b, w], &results, &[normed, sum]);
    }

    #[test]
    fn full_width_norms_leave_the_values_alone(
        seed: u64, rows in 0usize..9, q in 1usize..9, k in 1usize..9, v in 0usize..9, clip in prop::option::of(0.1f64..2.0),
    ) {
        let mut n = Numbers::new(seed);
        let (qkv, q_norm, k_norm) = (n.array(&[rows, q + k + v]), n.array(&[q]), n.array(&[k]));
        let (normed_q, normed_k) = (norm_oracle(&qkv, &q_norm, 1e-5, 0), norm_oracle(&qkv, &k_norm, 1e-5, q));
        let expected: Vec<f64> = (0..rows)
            .flat_map(|r| {
                let (qkv, normed_q, normed_k) = (&qkv, &normed_q, &normed_k);
                (0..q + k + v).map(move |c| match c {
                    c if c < q => normed_q[r * q + c],
                    c if c < q + k => normed_k[r * k + c - q],
                    c => at(qkv, r, c),
                })
            })
            .collect();
        let expected: Vec<f64> = expected.into_iter().map(|x| clip.map_or(x, |c| x.clamp(-c, c))).collect();
        let expected = real(&[rows, q + k + v], &expected);
        check(&Op::QkNorm { eps: 1e-5, clip }, &plain(), &[qkv, q_norm, k_norm], &[Result64::Real(vec![rows, q + k + v])], &[expected]);
    }

    #[test]
    fn activations_agree_with_the_oracle(seed: u64, rows in 0usize..40, cols in 0usize..40, clamped: bool) {
        let mut n = Numbers::new(seed);
        let gate_up = real(&[rows, 2 * cols], &(0..rows * 2 * cols).map(|_| 12.0 * n.real()).collect::<Vec<_>>());
        let expected: Vec<f64> = (0..rows * cols)
            .map(|i| {
                let (g, u) = (at(&gate_up, i / cols, i % cols), at(&gate_up, i / cols, cols + i % cols));
                // x * sigmoid(a x) = x * (1 + tanh(a x / 2)) / 2
                let gate = |g: f64, a: f64| g * (1.0 + (a * g / 2.0).tanh()) / 2.0;
                if clamped { (u.clamp(-7.0, 7.0) + 1.0) * gate(g.min(7.0), 1.702) } else { gate(g, 1.0) * u }
            })
            .collect();
        let activation = if clamped { SWIGLU } else { Activation::Silu };
        let expected = real(&[rows, cols], &expected);
        check(&Op::GatedActivation { activation }, &plain(), &[gate_up], &[Result64::Real(vec![rows, cols])], &[expected]);
    }

    #[test]
    fn embedding_slices_add_up_to_the_whole(seed: u64, tokens in 0usize..9, vocab in 1usize..30, cut in 0usize..30, hidden in 1usize..5) {
        let cut = cut.min(vocab);
        let mut n = Numbers::new(seed);
        let table = n.array(&[vocab, hidden]);
        let list: Vec<i32> = (0..tokens).map(|_| n.below(vocab) as i32).collect();
        let token_ids = ids(&[tokens], &list);
        let expected: Vec<f64> = list.iter().flat_map(|id| (0..hidden).map(|c| at(&table, *id as usize, c)).collect::<Vec<_>>()).collect();
        let results = [Result64::Real(vec![tokens, hidden])];
        check(&Op::Embed, &plain(), &[token_ids.clone(), table.clone()], &results, &[real(&[tokens, hidden], &expected)]);
        let slice = |from: usize, to: usize| real(&[to - from, hidden], &table.as_real().unwrap()[from * hidden..to * hidden]);
        let part = |from: usize, to: usize| {
            let context = LocalContext { vocab_start: from, ..plain() };
            compute(&Op::Embed, &context, &[token_ids.clone(), slice(from, to)], &results).remove(0)
        };
        let (low, high) = (part(0, cut), part(cut, vocab));
        check(&Op::Add, &plain(), &[low, high], &results, &[real(&[tokens, hidden], &expected)]);
    }
}
