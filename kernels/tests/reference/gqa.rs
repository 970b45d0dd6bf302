use crate::harness::*;
use moetwin_kernels::reference::{Array, CacheSlot, LocalContext, Turn};
use moetwin_models::spec::{RopeScaling, RopeSpec};
use moetwin_models::{Op, Sequence};
use proptest::prelude::*;

fn rope(dim: u32, interleaved: bool) -> RopeSpec {
    RopeSpec { dim, theta: 100.0, scaling: RopeScaling::None, interleaved }
}

/// Rotates pairs as complex numbers and lays them out as halves.
pub(crate) fn rotate_oracle(head: &[f64], position: usize, spec: &RopeSpec) -> Vec<f64> {
    let half = spec.dim as usize / 2;
    let mut out = head.to_vec();
    for i in 0..half {
        let (re, im) = if spec.interleaved { (head[2 * i], head[2 * i + 1]) } else { (head[i], head[half + i]) };
        let angle = position as f64 * spec.theta.powf(-(i as f64) / half as f64);
        (out[i], out[half + i]) = (re * angle.cos() - im * angle.sin(), re * angle.sin() + im * angle.cos());
    }
    out
}

fn slot(past: u32, new: u32, cache_start: usize) -> CacheSlot {
    CacheSlot { sequence: Sequence { past, new }, cache_start, turn: Turn::WHOLE }
}

#[test]
fn rotation_of_unit_vectors_by_hand() {
    // Position 3, theta 100, dim 4: angles 3 and 3 / 10. q = e0 (first of its pair), k = e1 (in halves: first of the second pair).
    let qkv = real(&[1, 12], &[1., 0., 0., 0., 0., 1., 0., 0., 5., 6., 7., 8.]);
    let sequences = [slot(3, 1, 0)];
    let context = LocalContext { sequences: &sequences, ..LocalContext::default() };
    let op = |interleaved| Op::QkvPrepare { head_dim: 4, rope: Some(rope(4, interleaved)), qk_norm_eps: None };
    let cache = real(&[4, 8], &[0.25; 32]);
    let results = [Result64::Real(vec![1, 4]), Result64::InPlace(cache.clone())];
    let with_row = |row: [f64; 8]| {
        let mut rows = vec![0.25; 24];
        rows.extend(row);
        real(&[4, 8], &rows)
    };
    let (c3, s3, c03, s03) = (3f64.cos(), 3f64.sin(), 0.3f64.cos(), 0.3f64.sin());
    let inputs = [qkv, ids(&[1], &[3]), Array::default()];
    let halves = [real(&[1, 4], &[c3, 0., s3, 0.]), with_row([0., c03, 0., s03, 5., 6., 7., 8.])];
    check(&op(false), &context, &inputs, &results, &halves);
    // Interleaved, e1 is the second of the first pair: it turns to (-sin 3, cos 3), written to places 0 and 2.
    let pairs = [real(&[1, 4], &[c3, 0., s3, 0.]), with_row([-s3, 0., c3, 0., 5., 6., 7., 8.])];
    check(&op(true), &context, &inputs, &results, &pairs);
}

#[test]
fn equal_keys_average_the_values_and_a_sink_takes_its_share() {
    // Two heads on one kv head; q = 0, so every visible key weighs the same.
    let q = real(&[2, 4], &[0.0; 8]);
    let cache = real(&[3, 4], &[9., 9., 1., 10., 9., 9., 2., 20., 9., 9., 6., 60.]);
    let sequences = [slot(1, 2, 0)];
    let context = LocalContext { sequences: &sequences, ..LocalContext::default() };
    let op = |window| Op::GqaAttention { head_dim: 2, scale: 0.5, window, split_context: false };
    let results = [Result64::Real(vec![2, 4])];
    let plain = real(&[2, 4], &[1.5, 15., 1.5, 15., 3., 30., 3., 30.]);
    check(&op(None), &context, &[q.clone(), cache.clone()], &results, &[plain]);
    let two_latest = real(&[2, 4], &[1.5, 15., 1.5, 15., 4., 40., 4., 40.]);
    check(&op(Some(2)), &context, &[q.clone(), cache.clone()], &results, &[two_latest]);
    // A sink of score 0 is one more key without value; one of score ln 2 counts as two.
    let sinks = real(&[2], &[0.0, 2f64.ln()]);
    let shared = real(&[2, 4], &[1., 10., 0.75, 7.5, 2.25, 22.5, 1.8, 18.]);
    check(&op(None), &context, &[q, cache, sinks], &results, &[shared]);
}

#[test]
fn what_comes_later_changes_no_bit_of_what_came_before() {
    let mut n = Numbers::new(3);
    let sequences = [slot(0, 100, 0)];
    let context = LocalContext { sequences: &sequences, ..LocalContext::default() };
    let op = Op::GqaAttention { head_dim: 8, scale: 0.3, window: None, split_context: false };
    let (q, cache) = (n.array(&[100, 16]), n.array(&[100, 16]));
    let mut other = cache.as_real().unwrap().to_vec();
    other[70 * 16..].iter_mut().for_each(|v| *v += 1.0);
    let results = [Result64::Real(vec![100, 16])];
    let a = run_on::<f32>(4, &op, &context, &[q.clone(), cache], &results).unwrap();
    let b = run_on::<f32>(4, &op, &context, &[q, real(&[100, 16], &other)], &results).unwrap();
    let (a, b) = (a[0].as_real().unwrap(), b[0].as_real().unwrap());
    assert_eq!(a[..70 * 16], b[..70 * 16]);
    assert!(a[70 * 16..].iter().zip(&b[70 * 16..]).all(|(a, b)| a != b));
}

/// Softmax through log-sum-exp, one output element at a time.
pub(crate) fn attention_oracle(scores: &[f64], values: &[f64], sink: Option<f64>) -> f64 {
    let all = || scores.iter().copied().chain(sink);
    let top = all().fold(f64::MIN, f64::max);
    let log_sum = all().map(|s| (s - top).exp()).sum::<f64>().ln() + top;
    scores.iter().zip(values).map(|(s, v)| (s - log_sum).exp() * v).sum()
}

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    sequences: Vec<CacheSlot>,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    window: Option<u32>,
    sinks: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    (any::<u64>(), sequences(), 1usize..4, 1usize..4, 1usize..9, prop::option::of(1u32..6), any::<bool>()).prop_map(
        |(seed, sequences, kv_heads, group, head_dim, window, sinks)| Case { seed, sequences, kv_heads, group, head_dim, window, sinks },
    )
}

proptest! {
    #[test]
    fn attention_agrees_with_the_oracle(case in cases()) {
        let Case { seed, sequences, kv_heads, group, head_dim, window, sinks } = case;
        let mut n = Numbers::new(seed);
        let (heads, tokens, rows) = (kv_heads * group, tokens(&sequences), cache_rows(&sequences));
        let (q, cache, sink) = (n.array(&[tokens.len(), heads * head_dim]), n.array(&[rows, 2 * kv_heads * head_dim]), n.array(&[heads]));
        let mut expected = Vec::new();
        for (t, token) in tokens.iter().enumerate() {
            let first = window.map_or(0, |w| (token.position + 1).saturating_sub(w as usize));
            let seen: Vec<usize> = (first..=token.position).map(|p| token.cache_start + p).collect();
            for head in 0..heads {
                let k = |d: usize| head / group * head_dim + d;
                let scores: Vec<f64> = seen
                    .iter()
                    .map(|r| 0.7 * (0..head_dim).map(|d| at(&q, t, head * head_dim + d) * at(&cache, *r, k(d))).sum::<f64>())
                    .collect();
                for d in 0..head_dim {
                    let values: Vec<f64> = seen.iter().map(|r| at(&cache, *r, kv_heads * head_dim + k(d))).collect();
                    expected.push(attention_oracle(&scores, &values, sinks.then(|| sink.as_real().unwrap()[head])));
                }
            }
        }
        let context = LocalContext { sequences: &sequences, ..LocalContext::default() };
        let op = Op::GqaAttention { head_dim: head_dim as u32, scale: 0.7, window, split_context: false };
        let sizes = [tokens.len(), heads * head_dim];
        let mut inputs = vec![q, cache];
        inputs.extend(sinks.then_some(sink));
        check(&op, &context, &inputs, &[Result64::Real(sizes.to_vec())], &[real(&sizes, &expected)]);
    }

    #[test]
    fn preparation_agrees_with_the_oracle(
        (seed, sequences, q_heads, kv_heads) in (any::<u64>(), sequences(), 1usize..4, 1usize..3),
        (half, rest, interleaved, rotates, eps) in (0u32..4, 0usize..4, any::<bool>(), any::<bool>(), prop::option::of(1e-6f64..1e-2)),
    ) {
        let head_dim = 2 * half as usize + rest + 1;
        let spec = rope(2 * half, interleaved);
        let mut n = Numbers::new(seed);
        let (tokens, rows) = (tokens(&sequences), cache_rows(&sequences));
        let (q_width, kv_width) = (q_heads * head_dim, kv_heads * head_dim);
        let qkv = n.array(&[tokens.len(), q_width + 2 * kv_width]);
        let (before, norms) = (n.array(&[rows, 2 * kv_width]), [n.array(&[head_dim]), n.array(&[head_dim])]);
        let transform = |t: usize, first: usize, norm: &Array<f64>| -> Vec<f64> {
            let head: Vec<f64> = (0..head_dim).map(|d| at(&qkv, t, first + d)).collect();
            let normed = match eps {
                None => head,
                Some(eps) => {
                    let rms = (head.iter().map(|x| x * x).sum::<f64>() / head_dim as f64 + eps).sqrt();
                    head.iter().zip(norm.as_real().unwrap()).map(|(x, w)| x / rms * w).collect()
                }
            };
            if rotates { rotate_oracle(&normed, tokens[t].position, &spec) } else { normed }
        };
        let mut q = Vec::new();
        let mut cache = before.as_real().unwrap().to_vec();
        for (t, token) in tokens.iter().enumerate() {
            q.extend((0..q_heads).flat_map(|h| transform(t, h * head_dim, &norms[0])));
            let mut row: Vec<f64> = (0..kv_heads).flat_map(|h| transform(t, q_width + h * head_dim, &norms[1])).collect();
            row.extend((0..kv_width).map(|c| at(&qkv, t, q_width + kv_width + c)));
            let first = (token.cache_start + token.position) * 2 * kv_width;
            cache[first..first + 2 * kv_width].copy_from_slice(&row);
        }
        let context = LocalContext { sequences: &sequences, ..LocalContext::default() };
        let op = Op::QkvPrepare { head_dim: head_dim as u32, rope: rotates.then(|| spec.clone()), qk_norm_eps: eps };
        let mut inputs = vec![qkv.clone(), positions(&sequences), Array::default()];
        if eps.is_some() {
            inputs.extend(norms.clone());
        }
        let results = [Result64::Real(vec![tokens.len(), q_width]), Result64::InPlace(before.clone())];
        check(&op, &context, &inputs, &results, &[real(&[tokens.len(), q_width], &q), real(&[rows, 2 * kv_width], &cache)]);
    }
}
