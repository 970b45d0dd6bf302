use crate::harness::*;
use moetwin_kernels::reference::{Array, LocalContext};
use moetwin_models::Op;
use moetwin_models::op::LinearRole;
use proptest::prelude::*;

const LINEAR: Op = Op::Linear { role: LinearRole::Other };

#[test]
fn two_by_two_by_hand() {
    let x = real(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let w = real(&[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, -1.0]);
    let bias = real(&[3], &[10.0, 20.0, 30.0]);
    let results = [Result64::Real(vec![2, 3])];
    let without = real(&[2, 3], &[1.0, 2.0, -1.0, 3.0, 4.0, -1.0]);
    let with = real(&[2, 3], &[11.0, 22.0, 29.0, 13.0, 24.0, 29.0]);
    check(&LINEAR, &LocalContext::default(), &[x.clone(), w.clone()], &results, std::slice::from_ref(&without));
    check(&LINEAR, &LocalContext::default(), &[x.clone(), w.clone(), bias.clone()], &results, &[with]);
    let later_rank = LocalContext { adds_bias: false, ..LocalContext::default() };
    check(&LINEAR, &later_rank, &[x, w, bias], &results, &[without]);
}

fn oracle(x: &Array<f64>, w: &Array<f64>, bias: &[f64]) -> Array<f64> {
    let (t, k) = (x.sizes[0], x.sizes[1]);
    let mut out = Vec::new();
    for r in 0..t {
        for (c, bias) in bias.iter().enumerate() {
            out.push((0..k).rev().map(|i| at(x, r, i) * at(w, c, i)).sum::<f64>() + bias);
        }
    }
    real(&[t, bias.len()], &out)
}

fn columns(m: &Array<f64>, from: usize, to: usize) -> Array<f64> {
    let rows = m.sizes[0];
    let data: Vec<f64> = (0..rows).flat_map(|r| (from..to).map(move |c| (r, c))).map(|(r, c)| at(m, r, c)).collect();
    real(&[rows, to - from], &data)
}

#[test]
fn a_product_large_enough_for_many_tiles() {
    let mut n = Numbers::new(7);
    let (x, w, bias) = (n.array(&[130, 70]), n.array(&[523, 70]), n.array(&[523]));
    let expected = oracle(&x, &w, bias.as_real().unwrap());
    check(&LINEAR, &LocalContext::default(), &[x, w, bias], &[Result64::Real(vec![130, 523])], &[expected]);
}

#[test]
fn a_row_does_not_depend_on_the_batch_it_is_in() {
    let mut n = Numbers::new(8);
    let (x, w) = (n.array(&[150, 600]), n.array(&[300, 600]));
    let whole = compute(&LINEAR, &LocalContext::default(), &[x.clone(), w.clone()], &[Result64::Real(vec![150, 300])]).remove(0);
    for row in [0, 1, 63, 64, 149] {
        let alone = real(&[1, 600], &x.as_real().unwrap()[row * 600..(row + 1) * 600]);
        let alone = run_on::<f32>(1, &LINEAR, &LocalContext::default(), &[alone, w.clone()], &[Result64::Real(vec![1, 300])]).unwrap();
        let batched =
            run_on::<f32>(1, &LINEAR, &LocalContext::default(), &[x.clone(), w.clone()], &[Result64::Real(vec![150, 300])]).unwrap();
        assert_eq!(alone[0].as_real().unwrap(), &batched[0].as_real().unwrap()[row * 300..(row + 1) * 300]);
    }
    assert_eq!(whole.sizes, [150, 300]);
}

proptest! {
    #[test]
    fn linear_agrees_with_the_oracle_and_with_its_shards(
        seed: u64, rows in 0usize..20, k in 0usize..80, n_out in 0usize..30, cut in any::<prop::sample::Index>(),
    ) {
        let mut n = Numbers::new(seed);
        let (x, w, bias) = (n.array(&[rows, k]), n.array(&[n_out, k]), n.array(&[n_out]));
        let expected = oracle(&x, &w, bias.as_real().unwrap());
        let results = [Result64::Real(vec![rows, n_out])];
        check(&LINEAR, &LocalContext::default(), &[x.clone(), w.clone(), bias.clone()], &results, std::slice::from_ref(&expected));
        let cut = cut.index(k + 1);
        let part = |from, to, adds_bias| {
            let context = LocalContext { adds_bias, ..LocalContext::default() };
            compute(&LINEAR, &context, &[columns(&x, from, to), columns(&w, from, to), bias.clone()], &results).remove(0)
        };
        let (first, second) = (part(0, cut, true), part(cut, k, false));
        check(&Op::Add, &LocalContext::default(), &[first, second], &results, &[expected]);
    }
}
