//! Attention over a context that is dealt out, by hand.

use crate::harness::{Result64, run_on};
use moetwin_kernels::reference::{Array, CacheSlot, LocalContext, Turn};
use moetwin_models::{Op, Sequence};

/// One head of one dimension; keys 1, 2, 3 (the last one's token is new), so scores are the keys times the query.
fn part(index: usize) -> (f64, f64) {
    let turn = Turn { index, of: 2 };
    let rows: Vec<f64> = [1.0, 2.0, 3.0].into_iter().enumerate().filter(|(i, _)| i % 2 == index).map(|(_, k)| k).collect();
    let cache: Vec<f64> = rows.iter().flat_map(|k| [*k, 10.0 * k]).collect();
    let sequences = [CacheSlot { sequence: Sequence { past: 2, new: 1 }, cache_start: 0, turn }];
    let context = LocalContext { sequences: &sequences, turn, ..LocalContext::default() };
    let op = Op::GqaAttention { head_dim: 1, scale: 1.0, window: None, split_context: true };
    let inputs = [Array::real(&[1, 1], vec![1.0]), Array::real(&[rows.len(), 2], cache)];
    let out = run_on::<f64>(1, &op, &context, &inputs, &[Result64::Real(vec![1, 1, 1]), Result64::Real(vec![1, 1, 1])]).unwrap();
    (out[0].as_real().unwrap()[0], out[1].as_real().unwrap()[0])
}

#[test]
fn each_rank_attends_to_its_own_rows_and_says_how_much_they_weigh() {
    let e = f64::exp;
    let (own, lse) = part(0);
    assert!((own - (10.0 * e(1.0) + 30.0 * e(3.0)) / (e(1.0) + e(3.0))).abs() < 1e-12);
    assert!((lse - (e(1.0) + e(3.0)).ln()).abs() < 1e-12);
    assert_eq!(part(1), (20.0, 2.0));
}

#[test]
fn shares_add_up_to_attention_over_the_whole_context() {
    let e = f64::exp;
    let parts = [part(0), part(1)];
    let lse: Vec<f64> = parts.iter().map(|p| p.1).collect();
    let sum: f64 = (0..2)
        .map(|index| {
            let context = LocalContext { turn: Turn { index, of: 2 }, ..LocalContext::default() };
            let inputs = [Array::real(&[1, 1, 1], vec![parts[index].0]), Array::real(&[1, 1, 2], lse.clone())];
            run_on::<f64>(1, &Op::MergeContext, &context, &inputs, &[Result64::Real(vec![1, 1])]).unwrap()[0].as_real().unwrap()[0]
        })
        .sum();
    let whole = (10.0 * e(1.0) + 20.0 * e(2.0) + 30.0 * e(3.0)) / (e(1.0) + e(2.0) + e(3.0));
    assert!((sum - whole).abs() < 1e-12, "{sum} {whole}");
}

#[test]
fn a_rank_without_rows_contributes_nothing() {
    let turn = Turn { index: 1, of: 2 };
    let sequences = [CacheSlot { sequence: Sequence { past: 0, new: 1 }, cache_start: 0, turn }];
    let context = LocalContext { sequences: &sequences, turn, ..LocalContext::default() };
    let op = Op::MlaDecode { kv_lora: 1, scale: 1.0, sparse_topk: None, split_context: true };
    let inputs = [Array::real(&[1, 2], vec![1.0, 1.0]), Array::real(&[0, 2], vec![])];
    let out = run_on::<f64>(1, &op, &context, &inputs, &[Result64::Real(vec![1, 1, 1]), Result64::Real(vec![1, 1, 1])]).unwrap();
    assert_eq!((out[0].as_real().unwrap()[0], out[1].as_real().unwrap()[0]), (0.0, f64::NEG_INFINITY));
    let inputs = [out[0].clone(), Array::real(&[1, 1, 2], vec![0.5, f64::NEG_INFINITY])];
    let merged = run_on::<f64>(1, &Op::MergeContext, &context, &inputs, &[Result64::Real(vec![1, 1])]).unwrap();
    assert_eq!(merged[0].as_real().unwrap()[0], 0.0);
}
