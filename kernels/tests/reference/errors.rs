//! Everything that can be handed over wrongly is refused with the op, the operand and what would be right.

use crate::harness::*;
use moetwin_kernels::reference::{Array, CacheSlot, LocalContext, Turn, run};
use moetwin_models::op::LinearRole;
use moetwin_models::spec::{Activation, GroupScore, RopeScaling, RopeSpec, RouterSpec, Scoring};
use moetwin_models::{Axis, DType, LogitsRows, Op, Sequence};
use proptest::prelude::*;

fn error(op: &Op, context: &LocalContext<'_>, inputs: &[Array<f64>], outputs: &[Array<f64>]) -> String {
    let inputs: Vec<&Array<f64>> = inputs.iter().collect();
    let mut outputs = outputs.to_vec();
    run(op, context, &inputs, &mut outputs).expect_err("the operands are illegal").to_string()
}

fn zeros(sizes: &[usize]) -> Array<f64> {
    real(sizes, &vec![0.0; sizes.iter().product()])
}

#[test]
fn the_message_names_op_operand_and_what_would_be_right() {
    let context = LocalContext::default();
    let linear = Op::Linear { role: LinearRole::O };
    let cases = [
        (error(&linear, &context, &[zeros(&[2, 3])], &[]), "linear: 1 operands, expected 2 to 3"),
        (error(&linear, &context, &[zeros(&[2, 3]), zeros(&[4, 2])], &[]), "linear: weight is real numbers [4, 2], expected [_, 3]"),
        (
            error(&linear, &context, &[zeros(&[2, 3]), zeros(&[4, 3])], &[zeros(&[2, 5])]),
            "linear: y is real numbers [2, 5], expected real numbers [2, 4]",
        ),
        (error(&linear, &context, &[zeros(&[2, 3]), zeros(&[4, 3])], &[]), "linear: 0 results, expected 1"),
        (
            error(&Op::Argmax, &context, &[ids(&[2, 3], &[0; 6])], &[]),
            "argmax: logits is ids [2, 3], expected real numbers of 2 dimensions",
        ),
        (
            error(&Op::Embed, &context, &[ids(&[2], &[1, i32::MIN]), zeros(&[4, 3])], &[zeros(&[2, 3])]),
            "embed: ids row 1: token id -2147483648 is negative",
        ),
        (
            error(&Op::AllReduceAddRmsNorm { axis: Axis::Tp, eps: 0.0 }, &context, &[], &[]),
            "all_reduce_add_rms_norm: moves data between layouts, see the collective module",
        ),
        (error(&Op::AllReduce { axis: Axis::Tp }, &context, &[], &[]), "all_reduce: moves data between layouts, see the collective module"),
        (
            error(&Op::SparseIndex { topk: 4 }, &context, &[], &[]),
            "sparse_index: modelled for cost only, the reference has no arithmetic for it",
        ),
        (
            error(&Op::PlaceExperts, &context, &[ids(&[1, 1], &[3])], &[ids(&[1, 1], &[0])]),
            "place_experts: ids row 0: expert 3 has no slot, 0 experts are placed",
        ),
    ];
    for (got, expected) in cases {
        assert_eq!(got, expected);
    }
}

#[test]
fn caches_too_short_and_steps_that_do_not_match_are_refused() {
    let sequences = [CacheSlot { sequence: Sequence { past: 3, new: 1 }, cache_start: 2, turn: Turn::WHOLE }];
    let context = LocalContext { sequences: &sequences, ..LocalContext::default() };
    let gqa = Op::GqaAttention { head_dim: 2, scale: 1.0, window: None, split_context: false };
    let got = error(&gqa, &context, &[zeros(&[1, 2]), zeros(&[5, 4])], &[zeros(&[1, 2])]);
    assert_eq!(got, "gqa_attention: cache row 0: rows 2.. + 4 leave the cache, which has 5");
    let got = error(&gqa, &context, &[zeros(&[2, 2]), zeros(&[6, 4])], &[zeros(&[2, 2])]);
    assert_eq!(got, "gqa_attention: q row 2: 2 rows, the step's sequences have 1 new tokens");
    let far = [CacheSlot { cache_start: usize::MAX, ..sequences[0] }];
    let got = error(&gqa, &LocalContext { sequences: &far, ..context }, &[zeros(&[1, 2]), zeros(&[6, 4])], &[zeros(&[1, 2])]);
    assert!(got.contains("leave the cache"), "{got}");
    let empty = [CacheSlot { sequence: Sequence { past: 3, new: 0 }, cache_start: 0, turn: Turn::WHOLE }];
    let context = LocalContext { sequences: &empty, logits: LogitsRows::Last, ..LocalContext::default() };
    let got = error(&Op::SelectRows, &context, &[zeros(&[0, 2])], &[zeros(&[1, 2])]);
    assert_eq!(got, "select_rows: x row 0: the sequence has no new token, so it has no last one");
}

#[test]
fn a_cache_updated_in_place_is_handed_over_as_the_result_only() {
    let sequences = [CacheSlot { sequence: Sequence { past: 0, new: 1 }, cache_start: 0, turn: Turn::WHOLE }];
    let context = LocalContext { sequences: &sequences, ..LocalContext::default() };
    let op = Op::QkvPrepare { head_dim: 2, rope: None, qk_norm_eps: None };
    let got = error(&op, &context, &[zeros(&[1, 6]), ids(&[1], &[0]), zeros(&[1, 4])], &[zeros(&[1, 2]), zeros(&[1, 4])]);
    assert_eq!(got, "qkv_prepare: cache is real numbers [1, 4], expected vacated: it is updated in place and handed over as the result");
}

#[test]
fn positions_nobody_has_written_are_refused() {
    let sequences = [CacheSlot { sequence: Sequence { past: 0, new: 1 }, cache_start: 0, turn: Turn::WHOLE }];
    let context = LocalContext { sequences: &sequences, ..LocalContext::default() };
    let op = Op::QkvPrepare { head_dim: 2, rope: Some(rope()), qk_norm_eps: None };
    let got = error(&op, &context, &[zeros(&[1, 6]), ids(&[1], &[i32::MIN]), Array::default()], &[zeros(&[1, 2]), zeros(&[1, 4])]);
    assert_eq!(got, "qkv_prepare: positions row 0: position -2147483648 is negative");
    let op = Op::MlaRope { nope: 0, rope: rope() };
    let inputs = [zeros(&[1, 2]), zeros(&[1, 3]), ids(&[1], &[-1]), Array::default()];
    assert_eq!(error(&op, &context, &inputs, &[zeros(&[1, 2]), zeros(&[1, 3])]), "mla_rope: positions row 0: position -1 is negative");
}

fn rope() -> RopeSpec {
    RopeSpec { dim: 2, theta: 10.0, scaling: RopeScaling::None, interleaved: true }
}

fn every_op() -> Vec<Op> {
    let router = RouterSpec {
        scoring: Scoring::Sigmoid,
        correction_bias: true,
        groups: 2,
        topk_groups: 1,
        group_score: GroupScore::TopTwoSum,
        normalize: true,
        normalize_eps: 0.0,
        scale: 1.0,
        logits_bias: false,
    };
    vec![
        Op::Embed,
        Op::RmsNorm { eps: 0.0 },
        Op::AddRmsNorm { eps: 0.0 },
        Op::Add,
        Op::Linear { role: LinearRole::Other },
        Op::GatedActivation { activation: Activation::Silu },
        Op::SigmoidScale,
        Op::QkNorm { eps: 0.0, clip: None },
        Op::QkvPrepare { head_dim: 2, rope: Some(rope()), qk_norm_eps: Some(0.0) },
        Op::QkvPrepare { head_dim: 0, rope: None, qk_norm_eps: None },
        Op::GqaAttention { head_dim: 2, scale: 1.0, window: Some(0), split_context: false },
        Op::GqaAttention { head_dim: 0, scale: 1.0, window: None, split_context: false },
        Op::MlaNorm { eps: 0.0, q_lora: Some(1), kv_lora: 2 },
        Op::MlaNorm { eps: 0.0, q_lora: None, kv_lora: 2 },
        Op::MlaRope { nope: 1, rope: rope() },
        Op::MlaAbsorbQuery { nope: 1, rope_dim: 2, v_dim: 1 },
        Op::MlaAbsorbQuery { nope: 0, rope_dim: 0, v_dim: 0 },
        Op::MlaDecode { kv_lora: 2, scale: 1.0, sparse_topk: Some(1), split_context: false },
        Op::MlaDecode { kv_lora: 0, scale: 1.0, sparse_topk: None, split_context: false },
        Op::MlaExpandValue { nope: 1, v_dim: 1 },
        Op::MlaExpandKv,
        Op::MlaPrefill { nope: 1, v_dim: 1, scale: 1.0 },
        Op::MlaPrefill { nope: 0, v_dim: 0, scale: 1.0 },
        Op::Route { router: router.clone(), topk: 2 },
        Op::Route { router: RouterSpec { groups: 0, topk_groups: 0, ..router }, topk: 0 },
        Op::PlaceExperts,
        Op::Experts { activation: Activation::Silu },
        Op::SelectRows,
        Op::Argmax,
        Op::Dispatch,
        Op::Combine,
    ]
}

fn array() -> impl Strategy<Value = Array<f64>> {
    let sizes = prop::collection::vec(0usize..5, 0..4);
    (sizes, any::<bool>(), -2i32..4, -1isize..2).prop_map(|(sizes, real_kind, id, extra)| {
        let len = (sizes.iter().product::<usize>() as isize + extra.min(0) * isize::from(id == 3)).max(0) as usize;
        if real_kind { Array::real(&sizes, vec![0.5; len]) } else { Array::int(&sizes, vec![id; len]) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn nothing_handed_over_makes_an_op_panic(
        op in prop::sample::select(every_op()),
        inputs in prop::collection::vec(prop_oneof![array(), Just(Array::default())], 0..8),
        outputs in prop::collection::vec(array(), 0..4),
        sequences in sequences(),
        last: bool,
    ) {
        let slots = [vec![0], vec![]];
        let logits = if last { LogitsRows::Last } else { LogitsRows::All };
        let context = LocalContext { sequences: &sequences, logits, expert_slots: &slots, ..LocalContext::default() };
        let inputs: Vec<&Array<f64>> = inputs.iter().collect();
        let mut outputs = outputs;
        if run(&op, &context, &inputs, &mut outputs).is_ok() {
            for output in &outputs {
                prop_assert_eq!(output.data.len(), output.sizes.iter().product::<usize>());
            }
        }
    }
}

#[test]
fn poison_is_nan_or_the_least_id() {
    let mut a = Array::<f32>::poisoned(&[2, 2], DType::Bf16);
    assert!(a.as_real().unwrap().iter().all(|v| v.is_nan()));
    a.data = moetwin_kernels::reference::Data::Real(vec![0.0; 4]);
    a.poison();
    assert!(a.as_real().unwrap().iter().all(|v| v.is_nan()));
    assert_eq!(Array::<f32>::poisoned(&[1], DType::I32).as_int(), Some(&[i32::MIN][..]));
}
