//! Small cases whose results follow with pen and paper, for ops that the other files compare with an oracle only.

use crate::harness::*;
use moetwin_kernels::reference::collective::{combine, reduce_scatter, slice};
use moetwin_kernels::reference::{Array, CacheSlot, LocalContext, Turn};
use moetwin_models::spec::{RopeScaling, RopeSpec};
use moetwin_models::{DType, Op, Sequence};

fn plain() -> LocalContext<'static> {
    LocalContext::default()
}

fn slot(past: u32, new: u32) -> [CacheSlot; 1] {
    [CacheSlot { sequence: Sequence { past, new }, cache_start: 0, turn: Turn::WHOLE }]
}

fn context(sequences: &[CacheSlot]) -> LocalContext<'_> {
    LocalContext { sequences, ..LocalContext::default() }
}

/// Two heads: keys are 1 and 5 times the first latent and 2 and 6 times the second, values 3 and 7, 4 and 8 times.
fn kv_b() -> Array<f64> {
    real(&[4, 2], &[1., 2., 3., 4., 5., 6., 7., 8.])
}

#[test]
fn sums_and_the_norm_behind_one() {
    let (delta, residual, weight) = (real(&[1, 2], &[3., 0.]), real(&[1, 2], &[0., 4.]), real(&[2], &[2., 1.]));
    let sum = real(&[1, 2], &[3., 4.]);
    let results = [Result64::Real(vec![1, 2]), Result64::Real(vec![1, 2])];
    check(&Op::Add, &plain(), &[delta.clone(), residual.clone()], &results[..1], std::slice::from_ref(&sum));
    // The mean square of 3 and 4 is 12.5.
    let root = 12.5f64.sqrt();
    let normed = real(&[1, 2], &[6. / root, 4. / root]);
    check(&Op::AddRmsNorm { eps: 0.0 }, &plain(), &[delta, residual, weight], &results, &[normed, sum]);
}

#[test]
fn latent_norms_leave_the_rotary_part_alone() {
    let root = 12.5f64.sqrt();
    let (q_norm, kv_norm) = (real(&[2], &[1., 2.]), real(&[1], &[3.]));
    let op = |q_lora| Op::MlaNorm { eps: 0.0, q_lora, kv_lora: 1 };
    let latent = real(&[1, 3], &[-3., 7., 8.]);
    let both = real(&[1, 5], &[3., 4., -5., 7., 8.]);
    let results = [Result64::Real(vec![1, 2]), Result64::Real(vec![1, 3])];
    let expected = [real(&[1, 2], &[3. / root, 8. / root]), latent.clone()];
    check(&op(Some(2)), &plain(), &[both, q_norm, kv_norm.clone()], &results, &expected);
    check(&op(None), &plain(), &[real(&[1, 3], &[-5., 7., 8.]), kv_norm], &results[1..], &[latent]);
}

#[test]
fn latent_rotation_turns_the_rotary_part_of_queries_and_cache() {
    // One pair of angle 2 at position 2; the query's pair is (1, 0), the latent's (0, 1).
    let rope = RopeSpec { dim: 2, theta: 100.0, scaling: RopeScaling::None, interleaved: true };
    let cache = real(&[3, 3], &[0.5; 9]);
    let (cos, sin) = (2f64.cos(), 2f64.sin());
    let inputs = [real(&[1, 3], &[9., 1., 0.]), real(&[1, 3], &[5., 0., 1.]), ids(&[1], &[2]), Array::default()];
    let mut rows = vec![0.5; 6];
    rows.extend([5., -sin, cos]);
    let results = [Result64::Real(vec![1, 3]), Result64::InPlace(cache)];
    let expected = [real(&[1, 3], &[9., cos, sin]), real(&[3, 3], &rows)];
    check(&Op::MlaRope { nope: 1, rope }, &context(&slot(2, 1)), &inputs, &results, &expected);
}

#[test]
fn queries_and_values_go_through_their_halves_of_the_projection() {
    let absorb = Op::MlaAbsorbQuery { nope: 1, rope_dim: 1, v_dim: 1 };
    let q = real(&[1, 4], &[10., 11., 20., 21.]);
    let absorbed = real(&[1, 6], &[10., 20., 11., 100., 120., 21.]);
    check(&absorb, &plain(), &[q, kv_b()], &[Result64::Real(vec![1, 6])], &[absorbed]);
    let expand = Op::MlaExpandValue { nope: 1, v_dim: 1 };
    let latent = real(&[1, 4], &[1., 1., 2., 0.]);
    check(&expand, &plain(), &[latent, kv_b()], &[Result64::Real(vec![1, 2])], &[real(&[1, 2], &[3. + 4., 2. * 7.])]);
    // The cache's latents are the unit vectors, so that each row shows a column of the projection; the rotary part takes no part.
    let cache = real(&[2, 3], &[1., 0., 9., 0., 1., 9.]);
    let kv = real(&[2, 4], &[1., 3., 5., 7., 2., 4., 6., 8.]);
    check(&Op::MlaExpandKv, &context(&slot(0, 2)), &[cache, kv_b()], &[Result64::Real(vec![2, 4])], &[kv]);
}

#[test]
fn attention_in_both_forms_weighs_by_powers() {
    // Scores of ln 3 and 2 ln 3 weigh 3 and 9.
    let decode = Op::MlaDecode { kv_lora: 1, scale: 1.0, sparse_topk: None, split_context: false };
    let inputs = [real(&[1, 2], &[3f64.ln(), 0.]), real(&[2, 2], &[1., 0., 2., 0.])];
    let expected = real(&[1, 1], &[(3. + 9. * 2.) / 12.]);
    check(&decode, &context(&slot(1, 1)), &inputs, &[Result64::Real(vec![1, 1])], &[expected]);
    // The first token sees its own value; the second scores ln 2, and 2 ln 2 with another ln 2 from the rotary part: weights 2 and 8.
    let ln2 = 2f64.ln();
    let prefill = Op::MlaPrefill { nope: 1, v_dim: 1, scale: 1.0 };
    let inputs = [real(&[2, 2], &[0., 1., ln2, 1.]), real(&[2, 2], &[1., 10., 2., 40.]), real(&[2, 2], &[0., 0., 0., ln2])];
    let expected = real(&[2, 1], &[10., (2. * 10. + 8. * 40.) / 10.]);
    check(&prefill, &context(&slot(0, 2)), &inputs, &[Result64::Real(vec![2, 1])], &[expected]);
}

#[test]
fn parts_of_sums_parts_of_wholes_and_rows_that_come_back() {
    let blank = |rows| Array::<f64>::poisoned(&[rows, 1], DType::F32);
    let parts = [real(&[4, 1], &[1., 2., 3., 4.]), real(&[4, 1], &[10., 20., 30., 40.])];
    let parts: Vec<&Array<f64>> = parts.iter().collect();
    let mut half = blank(2);
    reduce_scatter(&parts, 0, &[2..4, 0..0], &mut half).unwrap();
    assert_eq!(half, real(&[2, 1], &[33., 44.]));
    slice(parts[0], 0, &[0..1, 3..4], &mut half).unwrap();
    assert_eq!(half, real(&[2, 1], &[1., 4.]));
    // Two ranks with one row each: both have worked on the first one's, the second alone on its own.
    let worked = [real(&[2, 1], &[5., 0.]), real(&[2, 1], &[1., 7.])];
    let worked: Vec<&Array<f64>> = worked.iter().collect();
    for (receiver, sum) in [(0, 6.), (1, 7.)] {
        let mut row = blank(1);
        combine(&worked, receiver, &mut row).unwrap();
        assert_eq!(row, real(&[1, 1], &[sum]));
    }
}
