//! Random cases of every kernel family: odd sizes, empty experts, ties, all tokens to one expert.

use super::build::{Build, Case, Numbers};
use super::routers;
use moetwin_kernels::reference::Array;
use moetwin_models::op::LinearRole;
use moetwin_models::spec::{Activation, GroupScore, RopeScaling, RopeSpec, RouterSpec, Scoring};
use moetwin_models::{DType, Dim, Op, TensorKind, WeightFormat, WeightRole};

const BF16: WeightFormat = WeightFormat::Bf16;
const INT4: WeightFormat = WeightFormat::Int4Group { group: 32 };
const FP8: WeightFormat = WeightFormat::Fp8Block { rows: 128, cols: 128 };

/// A family: its name, how a random case of it is drawn, and a change of the sources that its cases must notice.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) draw: fn(&mut Numbers) -> Case,
    pub(crate) wrong: (&'static str, &'static str),
    pub(crate) by: By,
}

/// Which kernels carry a family out, where there is a choice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Those that a run would take.
    Choice,
    /// Those of every architecture.
    Portable,
    /// Those of Hopper, and none where that is not at hand.
    Hopper,
    /// A warp a tile of weights.
    OneWarp,
}

pub(crate) const FAMILIES: &[Family] = &[
    Family {
        name: "linear bf16",
        draw: linear_bf16,
        by: By::Choice,
        wrong: ("else ((bf16*)y)[at] = to_bf16(v);", "else ((bf16*)y)[at] = to_bf16(1.05f * v);"),
    },
    Family {
        name: "linear bf16 split over a cluster",
        draw: linear_split,
        by: By::Choice,
        wrong: ("for (int r = 1; r < CLUSTER; ++r)", "for (int r = 2; r < CLUSTER; ++r)"),
    },
    Family {
        name: "linear bf16, many rows",
        draw: linear_tile,
        by: By::Choice,
        wrong: ("mma(acc[4 * i + 2 * j + 1], a[i], b[j][2], b[j][3]);", "mma(acc[4 * i + 2 * j + 1], a[i], b[j][3], b[j][2]);"),
    },
    Family {
        name: "linear bf16, for a library",
        draw: linear_offered,
        by: By::Choice,
        wrong: ("mma(acc[4 * i + 2 * j + 1], a[i], b[j][2], b[j][3]);", "mma(acc[4 * i + 2 * j + 1], a[i], b[j][3], b[j][2]);"),
    },
    Family { name: "linear int4", draw: linear_int4, by: By::Choice, wrong: ("0xc308c308u", "0xc307c307u") },
    Family { name: "linear fp8", draw: linear_fp8, by: By::Choice, wrong: ("& 0x07f007f0u", "& 0x07e007e0u") },
    Family {
        name: "router logits",
        draw: router_logits,
        by: By::Portable,
        wrong: ("if (s.f32_out) ((float*)y)[at] = v;", "if (s.f32_out) ((float*)y)[at] = v * 1.01f;"),
    },
    Family {
        name: "experts bf16",
        draw: |n| experts(n, BF16),
        by: By::Choice,
        wrong: ("activate(acc[n][c] + gate_bias, acc[n][2 + c] + up_bias", "activate(acc[n][2 + c] + gate_bias, acc[n][c] + up_bias"),
    },
    Family {
        name: "experts int4",
        draw: |n| experts(n, INT4),
        by: By::Choice,
        wrong: ("+ tile) * ((cols + 127) / 128) * INT4_TILE_BYTES", "+ tile) * ((cols + 126) / 128) * INT4_TILE_BYTES + 16"),
    },
    Family {
        name: "experts fp8",
        draw: |n| experts(n, FP8),
        by: By::Choice,
        wrong: ("const float* high = FUSED ? low +", "const float* high = FUSED ? low + 0 *"),
    },
    Family {
        name: "expert lists",
        draw: |n| experts(n, BF16),
        by: By::Choice,
        wrong: ("units = (count + unit - 1) / unit", "units = count / unit"),
    },
    Family {
        name: "one token's experts",
        draw: experts_single,
        by: By::Choice,
        wrong: ("total[0][2] += partial[p * WARP + lane].z", "total[0][2] += partial[lane].z"),
    },
    Family { name: "route", draw: routers::route, by: By::Choice, wrong: ("ids[rank] = named[i];", "ids[rank] = named[i] ^ 1;") },
    Family {
        name: "whole router",
        draw: routers::whole_router,
        by: By::Choice,
        wrong: ("cluster_store(&logits[expert], token,", "cluster_store(&logits[expert], token ^ (experts > 8),"),
    },
    Family {
        name: "norms and sums",
        draw: elementwise,
        by: By::Choice,
        wrong: ("v[j] = f32(to_bf16(row[j] * scale)) * w[j];", "v[j] = f32(to_bf16(row[j] * scale));"),
    },
    Family {
        name: "argmax",
        draw: argmax,
        by: By::Choice,
        wrong: ("if (v[j] > value) { value = v[j]; index = i + j; }", "if (v[j] > value) { value = v[j]; index = i; }"),
    },
    Family { name: "qkv prepare", draw: qkv_prepare, by: By::Choice, wrong: ("(b * c + a * s) * factor", "(b * c - a * s) * factor") },
    Family {
        name: "gqa attention",
        draw: gqa_attention,
        by: By::Choice,
        wrong: ("last = s.past + t - s.row_start + 1", "last = s.past + t - s.row_start + 0"),
    },
    Family { name: "mla norm and rope", draw: mla_front, by: By::Choice, wrong: ("(a * c - b * s) * factor", "(a * c + b * s) * factor") },
    Family {
        name: "mla absorb and expand",
        draw: mla_heads,
        by: By::Portable,
        wrong: ("for (int p = 0; p < WARPS; ++p) sum += sums", "for (int p = 1; p < WARPS; ++p) sum += sums"),
    },
    Family { name: "mla decode", draw: mla_decode, by: By::Choice, wrong: ("seen.sum * old + sum", "seen.sum + sum") },
    Family {
        name: "mla decode, many heads",
        draw: mla_wide,
        by: By::Portable,
        wrong: ("u32 valued = keys + 2 *", "u32 valued = keys + 16 + 2 *"),
    },
    Family {
        name: "merging splits",
        draw: long_attention,
        by: By::Choice,
        wrong: ("v.x += part.x * factor,", "v.x += part.x * 0.5f * factor,"),
    },
    Family {
        name: "merging splits in clusters",
        draw: short_attention,
        by: By::Choice,
        wrong: ("v.x += part[r].x * factor,", "v.x += part[r].x * 0.5f * factor,"),
    },
    Family {
        name: "mla prefill",
        draw: mla_prefill,
        by: By::Choice,
        wrong: ("row -= s.sequences[i].past + s.sequences[i].rows, ++i", "row -= s.sequences[i].rows, ++i"),
    },
    Family {
        name: "router logits on Hopper",
        draw: |n| router_logits_of(n, &[17, 31, 33, 64]),
        by: By::Hopper,
        wrong: ("further(b, k * 32)", "further(b, k * 16)"),
    },
    Family {
        name: "mla absorb and expand on Hopper",
        draw: |n| mla_heads_of(n, &[9, 17, 40, 64, 70]),
        by: By::Hopper,
        wrong: ("TURNED ? 16 * ROW_BYTES : 32", "TURNED ? 8 * ROW_BYTES : 32"),
    },
    Family {
        name: "mla decode on Hopper",
        draw: |n| mla_wide_of(n, &[8, 9, 30, 140], &[8, 40, 64, 100]),
        by: By::Hopper,
        wrong: ("sum[h] * old[h] + more[h]", "sum[h] + more[h]"),
    },
    Family {
        name: "mla decode in clusters",
        draw: |n| mla_wide_of(n, &[45, 66], &[20, 64]),
        by: By::Hopper,
        wrong: ("factor[h][r] /= sum;", "factor[h][r] *= 0.5f;"),
    },
    Family {
        name: "experts int4, a warp a tile",
        draw: |n| experts(n, INT4),
        by: By::OneWarp,
        wrong: ("make_float4(sum[0], sum[1], sum[0], sum[1])", "make_float4(sum[0], sum[1], sum[1], sum[0])"),
    },
    Family {
        name: "experts bf16, a warp a tile",
        draw: |n| experts(n, BF16),
        by: By::OneWarp,
        wrong: ("w.low[p].w, w.high[p].w, v.z, v.w", "w.low[p].w, w.high[p].w, v.w, v.z"),
    },
];

pub(crate) fn router() -> RouterSpec {
    RouterSpec {
        scoring: Scoring::Sigmoid,
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

fn matrix(n: &mut Numbers, rows: usize, cols: usize, scale: f64) -> Array<f64> {
    Array::real(&[rows, cols], n.reals(rows * cols, scale))
}

fn linear(n: &mut Numbers, format: WeightFormat, rows: u64, out: u64, k: u64, role: (LinearRole, WeightRole)) -> Case {
    let mut b = Build::rows(rows);
    let x = matrix(n, rows as usize, k as usize, 1.0);
    b.real(vec![Dim::Tokens, Dim::Fixed(k)], x);
    b.drawn(n, role.1, format, vec![Dim::Fixed(out), Dim::Fixed(k)], 1.0 / (k as f64).sqrt());
    if n.below(2) == 0 {
        let bias = Array::real(&[out as usize], n.reals(out as usize, 0.5));
        b.weight(WeightRole::OBias, BF16, vec![Dim::Fixed(out)], bias);
    }
    let dtype = if role.0 == LinearRole::Router { DType::F32 } else { DType::Bf16 };
    b.finish(Op::Linear { role: role.0 }, vec![(vec![Dim::Tokens, Dim::Fixed(out)], dtype, None)])
}

const O: (LinearRole, WeightRole) = (LinearRole::O, WeightRole::O);
const ROWS: &[u64] = &[1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100];

fn linear_bf16(n: &mut Numbers) -> Case {
    let (rows, out, k) = (n.pick(ROWS), 1 + n.below(700), n.pick(&[8, 24, 32, 40, 96, 192, 520, 1536, 2048, 37, 130]));
    linear(n, BF16, rows, out, k, O)
}
fn linear_split(n: &mut Numbers) -> Case {
    let (rows, out) = (n.pick(&[1, 3, 9, 20, 32]), 1 + n.below(300));
    let k = n.pick(&[2048, 3080, 4096, 7168]);
    linear(n, BF16, rows, out, k, O)
}
fn linear_tile(n: &mut Numbers) -> Case {
    let (rows, out) = (n.pick(&[17, 31, 64, 65, 200]), 1 + n.below(500));
    let k = n.pick(&[8, 40, 64, 200, 520, 1024, 2056]);
    linear(n, BF16, rows, out, k, O)
}
/// Enough rows that a matrix library may take them.
fn linear_offered(n: &mut Numbers) -> Case {
    let (rows, out) = (n.pick(&[256, 257, 300, 511]), 8 * (1 + n.below(60)));
    let k = n.pick(&[8, 40, 64, 520, 1024]);
    linear(n, BF16, rows, out, k, O)
}
fn linear_int4(n: &mut Numbers) -> Case {
    let (rows, out, k) = (n.pick(ROWS), 1 + n.below(400), n.pick(&[32, 64, 128, 160, 416, 1024, 2048]));
    linear(n, INT4, rows, out, k, O)
}
fn linear_fp8(n: &mut Numbers) -> Case {
    let (rows, out, k) = (n.pick(ROWS), 1 + n.below(400), n.pick(&[64, 128, 192, 200, 512, 2048]));
    linear(n, FP8, rows, out, k, O)
}
fn router_logits(n: &mut Numbers) -> Case {
    router_logits_of(n, ROWS)
}
fn router_logits_of(n: &mut Numbers, rows: &[u64]) -> Case {
    let (rows, out, k) = (n.pick(rows), n.pick(&[8, 60, 128, 384]), n.pick(&[64, 100, 2048, 7168]));
    let format = n.pick(&[BF16, WeightFormat::F32]);
    linear(n, format, rows, out, k, (LinearRole::Router, WeightRole::Router))
}

/// Ids of `rows` tokens: random, all the same, with many ties, or with absent ones.
fn choices(n: &mut Numbers, rows: u64, k: u64, experts: u64) -> Vec<i32> {
    let kind = n.below(4);
    let mut ids = Vec::new();
    for _ in 0..rows {
        let first = n.below(experts);
        for j in 0..k {
            let spread = if kind == 1 { j } else { (first + j * (1 + experts / (k + 1))) % experts };
            ids.push(if kind == 2 && n.below(4) == 0 { -1 } else { spread as i32 });
        }
    }
    ids
}

fn experts_of(n: &mut Numbers, format: WeightFormat, rows: u64) -> Case {
    let experts = n.pick(&[4u64, 8, 13, 40]);
    let k = n.pick(&[1, 2, 4, 8]).min(experts);
    let (hidden, inter) = match format {
        WeightFormat::Bf16 => (n.pick(&[16u64, 64, 104, 256, 130]), n.pick(&[8u64, 24, 64, 96, 36])),
        WeightFormat::Int4Group { .. } => (n.pick(&[32u64, 64, 160, 512, 1024]), n.pick(&[32u64, 64, 96, 256])),
        _ => (n.pick(&[128u64, 192, 256, 512]), n.pick(&[128u64, 256, 64])),
    };
    let mut b = Build::rows(rows);
    let x = matrix(n, rows as usize, hidden as usize, 1.0);
    b.real(vec![Dim::Tokens, Dim::Fixed(hidden)], x);
    let ids = choices(n, rows, k, experts);
    let weights = (0..rows * k).map(|_| 0.5 + n.real() / 2.0).collect();
    b.routed(k, experts, ids, weights);
    let e = Dim::Experts(experts);
    b.drawn(n, WeightRole::ExpertsGateUp, format, vec![e.clone(), Dim::gate_up(inter), Dim::Fixed(hidden)], 1.7 / (hidden as f64).sqrt());
    b.drawn(n, WeightRole::ExpertsDown, format, vec![e.clone(), Dim::Fixed(hidden), Dim::packed(inter, 1)], 1.7 / (inter as f64).sqrt());
    let biased = n.below(3) == 0;
    if biased {
        let up = Array::real(&[experts as usize, 2 * inter as usize], n.reals((experts * 2 * inter) as usize, 0.3));
        let down = Array::real(&[experts as usize, hidden as usize], n.reals((experts * hidden) as usize, 0.3));
        b.weight(WeightRole::ExpertsGateUpBias, BF16, vec![e.clone(), Dim::gate_up(inter)], up);
        b.weight(WeightRole::ExpertsDownBias, BF16, vec![e, Dim::Fixed(hidden)], down);
    }
    let activation = if biased { Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 } } else { Activation::Silu };
    b.finish(Op::Experts { activation }, vec![(vec![Dim::Tokens, Dim::Fixed(hidden)], DType::Bf16, None)])
}

fn experts(n: &mut Numbers, format: WeightFormat) -> Case {
    let rows = n.pick(&[2, 3, 8, 9, 30, 64, 150]);
    experts_of(n, format, rows)
}
fn experts_single(n: &mut Numbers) -> Case {
    let format = n.pick(&[BF16, INT4, FP8]);
    experts_of(n, format, 1)
}

fn elementwise(n: &mut Numbers) -> Case {
    let (rows, width) = (n.pick(&[1u64, 3, 40]), n.pick(&[16u64, 64, 192, 2048, 2880, 7168, 8200, 37]));
    let mut b = Build::rows(rows);
    let dims = vec![Dim::Tokens, Dim::Fixed(width)];
    let row = |n: &mut Numbers, cols: u64| matrix(n, rows as usize, cols as usize, 2.0);
    let weight = |b: &mut Build, n: &mut Numbers| {
        let values = n.reals(width as usize, 1.0);
        b.weight(WeightRole::InputNorm, BF16, vec![Dim::Fixed(width)], Array::real(&[width as usize], values));
    };
    let x = row(n, width);
    match n.below(5) {
        0 => {
            b.real(dims.clone(), x);
            weight(&mut b, n);
            b.finish(Op::RmsNorm { eps: 1e-5 }, vec![(dims, DType::Bf16, None)])
        }
        1 => {
            b.real(dims.clone(), x);
            let residual = row(n, width);
            b.real(dims.clone(), residual);
            weight(&mut b, n);
            b.finish(Op::AddRmsNorm { eps: 1e-5 }, vec![(dims.clone(), DType::Bf16, None), (dims, DType::Bf16, None)])
        }
        2 => {
            b.real(dims.clone(), x);
            let other = row(n, width);
            b.real(dims.clone(), other);
            b.finish(Op::Add, vec![(dims, DType::Bf16, None)])
        }
        3 => {
            let both = row(n, 2 * width);
            b.real(vec![Dim::Tokens, Dim::gate_up(width)], both);
            b.finish(
                Op::GatedActivation { activation: Activation::Silu },
                vec![(vec![Dim::Tokens, Dim::packed(width, 1)], DType::Bf16, None)],
            )
        }
        _ => {
            b.real(dims.clone(), x);
            let score = row(n, 1);
            b.real(vec![Dim::Tokens, Dim::Fixed(1)], score);
            b.finish(Op::SigmoidScale, vec![(dims, DType::Bf16, None)])
        }
    }
}

fn argmax(n: &mut Numbers) -> Case {
    let (rows, width) = (n.pick(&[1u64, 4]), n.pick(&[8u64, 160, 1024, 5000, 32_000, 37]));
    let mut b = Build::rows(rows);
    // Few distinct values: the first of equals wins.
    let kinds = n.pick(&[3, 1 << 20]);
    let mut values: Vec<f64> = (0..rows * width).map(|_| n.below(kinds) as f64 / 64.0).collect();
    // A row with a value that is no finite number has no choice.
    if n.below(3) == 0 {
        let at = n.below(rows * width) as usize;
        values[at] = n.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    }
    b.real(vec![Dim::LogitsRows, Dim::Vocab(width)], Array::real(&[rows as usize, width as usize], values));
    b.finish(Op::Argmax, vec![(vec![Dim::LogitsRows], DType::I32, None)])
}

fn rope(n: &mut Numbers, dim: u32) -> RopeSpec {
    RopeSpec { dim, theta: 10_000.0, scaling: RopeScaling::None, interleaved: n.below(2) == 0 }
}

/// Sequences with and without history; some prompts longer than one token.
fn sequences(n: &mut Numbers, longest: u64) -> Vec<(u32, u32)> {
    // Enough of them that none is split, and a block walks several tiles.
    if n.below(4) == 0 {
        return (0..270).map(|_| (n.below(longest) as u32, 1)).collect();
    }
    (0..1 + n.below(4)).map(|_| (n.below(longest) as u32, 1 + n.pick(&[0, 0, 0, 3]))).collect()
}

fn positions(b: &mut Build, sequences: &[(u32, u32)]) {
    let list: Vec<i32> = sequences.iter().flat_map(|&(past, new)| (past as i32)..(past + new) as i32).collect();
    b.source(TensorKind::Positions, vec![Dim::Tokens], DType::I32, Array::int(&[list.len()], list));
}

fn cache(b: &mut Build, n: &mut Numbers, width: u64) -> moetwin_models::TensorId {
    let rows = b.cache_rows();
    let values = n.reals(rows * width as usize, 1.0);
    b.source(
        TensorKind::Cache { layer: 0 },
        vec![Dim::KvRows, Dim::Fixed(width)],
        DType::Bf16,
        Array::real(&[rows, width as usize], values),
    )
}

fn qkv_prepare(n: &mut Numbers) -> Case {
    let list = sequences(n, 300);
    let mut b = Build::new(&list);
    let (heads, kv, d) = (n.pick(&[4u64, 8]), n.pick(&[1u64, 2, 4]), n.pick(&[16u64, 64, 128]));
    let tokens = b.tokens();
    let width = (heads + 2 * kv) * d;
    let x = matrix(n, tokens, width as usize, 1.0);
    b.real(vec![Dim::Tokens, Dim::Fixed(width)], x);
    positions(&mut b, &list);
    let pool = cache(&mut b, n, 2 * kv * d);
    let normed = n.below(2) == 0;
    if normed {
        for role in [WeightRole::QNorm, WeightRole::KNorm] {
            let values = n.reals(d as usize, 1.0);
            b.weight(role, BF16, vec![Dim::Fixed(d)], Array::real(&[d as usize], values));
        }
    }
    let rope = rope(n, d as u32);
    let op = Op::QkvPrepare { head_dim: d as u32, rope: Some(rope), qk_norm_eps: normed.then_some(1e-6) };
    let q = vec![Dim::Tokens, Dim::Fixed(heads * d)];
    b.finish(op, vec![(q, DType::Bf16, None), (vec![Dim::KvRows, Dim::Fixed(2 * kv * d)], DType::Bf16, Some(pool))])
}

fn gqa(n: &mut Numbers, list: &[(u32, u32)]) -> Case {
    let mut b = Build::new(list);
    let (kv, group, d) = (n.pick(&[1u64, 2, 4]), n.pick(&[1u64, 2, 5, 8, 20]), n.pick(&[16u64, 64, 128, 8, 256]));
    let (tokens, heads) = (b.tokens(), kv * group);
    let q = matrix(n, tokens, (heads * d) as usize, 2.0);
    b.real(vec![Dim::Tokens, Dim::Fixed(heads * d)], q);
    cache(&mut b, n, 2 * kv * d);
    if n.below(3) == 0 {
        let values = n.reals(heads as usize, 2.0);
        b.weight(WeightRole::Sinks, BF16, vec![Dim::Fixed(heads)], Array::real(&[heads as usize], values));
    }
    let window = n.pick(&[None, None, Some(5), Some(70)]);
    let op = Op::GqaAttention { head_dim: d as u32, scale: 1.0 / (d as f64).sqrt(), window, split_context: false };
    b.finish(op, vec![(vec![Dim::Tokens, Dim::Fixed(heads * d)], DType::Bf16, None)])
}

fn gqa_attention(n: &mut Numbers) -> Case {
    let list = sequences(n, 150);
    gqa(n, &list)
}

fn mla_front(n: &mut Numbers) -> Case {
    let list = sequences(n, 200);
    let mut b = Build::new(&list);
    let tokens = b.tokens();
    let (heads, nope, dim, q, kv) =
        (n.pick(&[1u64, 4]), n.pick(&[16u64, 128]), n.pick(&[16u64, 64]), n.pick(&[32u64, 1536]), n.pick(&[32u64, 512]));
    let vector = |b: &mut Build, n: &mut Numbers, role, width: u64| {
        let values = n.reals(width as usize, 1.0);
        b.weight(role, BF16, vec![Dim::Fixed(width)], Array::real(&[width as usize], values));
    };
    let latent = vec![Dim::Tokens, Dim::Fixed(kv + dim)];
    if n.below(2) == 0 {
        let compressed = n.below(2) == 0;
        let width = if compressed { q + kv + dim } else { kv + dim };
        let x = matrix(n, tokens, width as usize, 1.0);
        b.real(vec![Dim::Tokens, Dim::Fixed(width)], x);
        let mut results = vec![(latent, DType::Bf16, None)];
        if compressed {
            vector(&mut b, n, WeightRole::QaNorm, q);
            results.insert(0, (vec![Dim::Tokens, Dim::Fixed(q)], DType::Bf16, None));
        }
        vector(&mut b, n, WeightRole::KvaNorm, kv);
        return b.finish(Op::MlaNorm { eps: 1e-6, q_lora: compressed.then_some(q as u32), kv_lora: kv as u32 }, results);
    }
    let width = heads * (nope + dim);
    let x = matrix(n, tokens, width as usize, 1.0);
    b.real(vec![Dim::Tokens, Dim::Fixed(width)], x);
    let l = matrix(n, tokens, (kv + dim) as usize, 1.0);
    b.real(latent, l);
    positions(&mut b, &list);
    let pool = cache(&mut b, n, kv + dim);
    let rope = rope(n, dim as u32);
    let results =
        vec![(vec![Dim::Tokens, Dim::Fixed(width)], DType::Bf16, None), (vec![Dim::KvRows, Dim::Fixed(kv + dim)], DType::Bf16, Some(pool))];
    b.finish(Op::MlaRope { nope: nope as u32, rope }, results)
}

fn mla_heads(n: &mut Numbers) -> Case {
    mla_heads_of(n, &[1, 2, 5, 9, 40])
}
fn mla_heads_of(n: &mut Numbers, rows: &[u64]) -> Case {
    let rows = n.pick(rows);
    let mut b = Build::rows(rows);
    let (heads, nope, dim, v, kv) = (n.pick(&[1u64, 3, 8]), n.pick(&[16u64, 128]), 64u64, n.pick(&[16u64, 128]), n.pick(&[32u64, 64, 512]));
    let absorb = n.below(2) == 0;
    let width = if absorb { heads * (nope + dim) } else { heads * kv };
    let x = matrix(n, rows as usize, width as usize, 1.0);
    b.real(vec![Dim::Tokens, Dim::Fixed(width)], x);
    let kv_b = matrix(n, (heads * (nope + v)) as usize, kv as usize, 0.1);
    b.weight(WeightRole::KvB, BF16, vec![Dim::Fixed(heads * (nope + v)), Dim::Fixed(kv)], kv_b);
    if absorb {
        let op = Op::MlaAbsorbQuery { nope: nope as u32, rope_dim: dim as u32, v_dim: v as u32 };
        b.finish(op, vec![(vec![Dim::Tokens, Dim::Fixed(heads * (kv + dim))], DType::Bf16, None)])
    } else {
        let op = Op::MlaExpandValue { nope: nope as u32, v_dim: v as u32 };
        b.finish(op, vec![(vec![Dim::Tokens, Dim::Fixed(heads * v)], DType::Bf16, None)])
    }
}

fn mla(n: &mut Numbers, list: &[(u32, u32)]) -> Case {
    let mut b = Build::new(list);
    let (heads, kv, dim) = (n.pick(&[1u64, 4, 16, 20, 64]), n.pick(&[32u64, 64, 128, 512, 24]), n.pick(&[16u64, 64]));
    let tokens = b.tokens();
    let q = matrix(n, tokens, (heads * (kv + dim)) as usize, 1.0);
    b.real(vec![Dim::Tokens, Dim::Fixed(heads * (kv + dim))], q);
    cache(&mut b, n, kv + dim);
    let op = Op::MlaDecode { kv_lora: kv as u32, scale: 2.0 / (kv as f64).sqrt(), sparse_topk: None, split_context: false };
    b.finish(op, vec![(vec![Dim::Tokens, Dim::Fixed(heads * kv)], DType::Bf16, None)])
}

fn mla_decode(n: &mut Numbers) -> Case {
    let list = sequences(n, 200);
    mla(n, &list)
}

/// Kimi's and DeepSeek's widths, many heads and enough tokens for the kernel that shares rows among them.
fn mla_wide(n: &mut Numbers) -> Case {
    mla_wide_of(n, &[8, 9, 30, 140], &[40, 64, 100])
}
fn mla_wide_of(n: &mut Numbers, counts: &[u64], heads: &[u64]) -> Case {
    let count = n.pick(counts);
    let mut list: Vec<(u32, u32)> = (0..count).map(|_| (n.below(150) as u32, 1)).collect();
    list[0].0 = 600;
    let mut b = Build::new(&list);
    let heads = n.pick(heads);
    let q = matrix(n, list.len(), (heads * 576) as usize, 1.0);
    b.real(vec![Dim::Tokens, Dim::Fixed(heads * 576)], q);
    cache(&mut b, n, 576);
    let op = Op::MlaDecode { kv_lora: 512, scale: 0.09, sparse_topk: None, split_context: false };
    b.finish(op, vec![(vec![Dim::Tokens, Dim::Fixed(heads * 512)], DType::Bf16, None)])
}

/// Long enough for several splits.
fn long_attention(n: &mut Numbers) -> Case {
    let list = [(300 + n.below(700) as u32, 1), (n.below(90) as u32, 1)];
    if n.below(2) == 0 { mla(n, &list) } else { gqa(n, &list) }
}

/// Few splits: the blocks of a cluster.
fn short_attention(n: &mut Numbers) -> Case {
    let list = [(70 + n.below(180) as u32, 1), (n.below(90) as u32, 1)];
    if n.below(2) == 0 { mla(n, &list) } else { gqa(n, &list) }
}

fn mla_prefill(n: &mut Numbers) -> Case {
    let list: Vec<(u32, u32)> = (0..1 + n.below(3)).map(|_| (n.pick(&[0, 0, 7]), 1 + n.below(20) as u32)).collect();
    let mut b = Build::new(&list);
    let (heads, nope, dim, v, kv) =
        (n.pick(&[1u64, 3]), n.pick(&[16u64, 128]), n.pick(&[16u64, 64]), n.pick(&[16u64, 128]), n.pick(&[32u64, 512]));
    let (tokens, rows) = (b.tokens(), b.graph.step.kv_rows() as usize);
    let per_head = heads * (nope + v);
    if n.below(2) == 0 {
        cache(&mut b, n, kv + dim);
        let kv_b = matrix(n, per_head as usize, kv as usize, 0.1);
        b.weight(WeightRole::KvB, BF16, vec![Dim::Fixed(per_head), Dim::Fixed(kv)], kv_b);
        return b.finish(Op::MlaExpandKv, vec![(vec![Dim::KvRows, Dim::Fixed(per_head)], DType::Bf16, None)]);
    }
    let q = matrix(n, tokens, (heads * (nope + dim)) as usize, 1.0);
    b.real(vec![Dim::Tokens, Dim::Fixed(heads * (nope + dim))], q);
    let expanded = matrix(n, rows, per_head as usize, 1.0);
    b.real(vec![Dim::KvRows, Dim::Fixed(per_head)], expanded);
    cache(&mut b, n, kv + dim);
    let op = Op::MlaPrefill { nope: nope as u32, v_dim: v as u32, scale: 0.2 };
    b.finish(op, vec![(vec![Dim::Tokens, Dim::Fixed(heads * v)], DType::Bf16, None)])
}
