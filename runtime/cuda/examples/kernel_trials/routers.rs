//! Random cases of routers: the choice by itself, and with its logits in one kernel.

use super::build::{Build, Case, Numbers};
use super::cases::router;
use moetwin_kernels::reference::Array;
use moetwin_models::spec::{GroupScore, RouterSpec, Scoring};
use moetwin_models::{DType, Dim, Op, WeightFormat, WeightRole};

pub(crate) fn route(n: &mut Numbers) -> Case {
    let experts = n.pick(&[4u64, 8, 16, 60, 128, 384, 520]);
    // Most routers have no groups, and those have a kernel of their own.
    let groups = n.pick(&[1u32, 1, 1, 2, 4]);
    let k = n.pick(&[1u64, 2, 4]);
    let rows = n.pick(&[1u64, 5, 33]);
    let mut b = Build::rows(rows);
    let kind = n.below(3);
    let values = (0..rows * experts).map(|_| match kind {
        // Few distinct values: ties everywhere.
        0 => f64::from(n.below(3) as u32) - 1.0,
        1 if n.below(7) == 0 => n.pick(&[f64::INFINITY, f64::NEG_INFINITY]),
        _ => 4.0 * n.real(),
    });
    let values: Vec<f64> = values.collect();
    // An infinite logit has no softmax.
    let infinite = values.iter().any(|v| v.is_infinite());
    let scoring = if infinite { Scoring::Sigmoid } else { n.pick(&[Scoring::Sigmoid, Scoring::Softmax, Scoring::SoftmaxTopk]) };
    b.logits_operand(experts, values);
    let correction = scoring == Scoring::Sigmoid && n.below(2) == 0;
    if correction {
        let bias = Array::real(&[experts as usize], n.reals(experts as usize, 0.5));
        b.weight(WeightRole::CorrectionBias, WeightFormat::F32, vec![Dim::Fixed(experts)], bias);
    }
    let groups = if scoring == Scoring::SoftmaxTopk { 1 } else { groups };
    let router = RouterSpec {
        scoring,
        correction_bias: correction,
        groups,
        topk_groups: groups.div_ceil(2),
        group_score: n.pick(&[GroupScore::TopTwoSum, GroupScore::Max]),
        normalize: n.below(2) == 0,
        normalize_eps: 1e-20,
        scale: n.pick(&[1.0, 2.5]),
        logits_bias: false,
    };
    let dims = vec![Dim::Tokens, Dim::Fixed(k)];
    b.finish(Op::Route { router, topk: k as u32 }, vec![(dims.clone(), DType::I32, None), (dims, DType::F32, None)])
}

/// Logits and choice by one kernel. Operands are small multiples of a power of two, so that sums are exact in any order: what is a tie is one
/// everywhere, and goes to the lower expert.
pub(crate) fn whole_router(n: &mut Numbers) -> Case {
    let (rows, experts, hidden) = (1 + n.below(8), n.pick(&[4u64, 8, 60, 64, 128, 160, 256]), n.pick(&[64u64, 72, 1024, 2048]));
    let k = n.pick(&[1u64, 4, 8]).min(experts);
    let kinds = n.pick(&[2u64, 5]);
    let mut small = |len: u64| -> Vec<f64> { (0..len).map(|_| (n.below(kinds) as f64 - (kinds / 2) as f64) / 8.0).collect() };
    let (x, w, bias) = (small(rows * hidden), small(experts * hidden), small(experts));
    let biased = n.below(2) == 0;
    let scoring = n.pick(&[Scoring::Sigmoid, Scoring::Softmax, Scoring::SoftmaxTopk]);
    let mut b = Build::rows(rows);
    let x = Array::real(&[rows as usize, hidden as usize], x);
    let w = Array::real(&[experts as usize, hidden as usize], w);
    b.carried_logits(x, w, biased.then(|| Array::real(&[experts as usize], bias)));
    let correction = scoring == Scoring::Sigmoid && n.below(2) == 0;
    if correction {
        let values = (0..experts).map(|_| n.below(3) as f64 / 4.0).collect();
        b.weight(WeightRole::CorrectionBias, WeightFormat::F32, vec![Dim::Fixed(experts)], Array::real(&[experts as usize], values));
    }
    let normalize = n.below(2) == 0;
    let router =
        RouterSpec { scoring, correction_bias: correction, normalize, normalize_eps: 1e-20, scale: n.pick(&[1.0, 2.5]), ..router() };
    let dims = vec![Dim::Tokens, Dim::Fixed(k)];
    b.finish(Op::Route { router, topk: k as u32 }, vec![(dims.clone(), DType::I32, None), (dims, DType::F32, None)])
}
