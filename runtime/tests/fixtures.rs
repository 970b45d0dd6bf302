//! The reference executor against the Hugging Face reference's outputs, whole and sharded, in seeded legal orders of commands.

use moetwin_kernels::reference::{Array, Data};
use moetwin_models::{AllToAll, Deployment, config};
use moetwin_runtime::reference::{Order, ReferenceExecutor};
use moetwin_runtime::session::{Session, SessionOptions};
use moetwin_runtime::weights::{Checkpoint, CheckpointWeights, Layers};
use std::path::PathBuf;

/// Relative error allowed over a whole tensor (f32 arithmetic in another order).
const TOLERANCE: f64 = 1e-4;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn expected(name: &str) -> Checkpoint {
    let bytes = std::fs::read(folder(name).join("expected.safetensors")).unwrap();
    Checkpoint::from_bytes("expected.safetensors", bytes).unwrap()
}

fn numbers(checkpoint: &Checkpoint, name: &str) -> (Vec<u64>, Vec<f64>) {
    let t = checkpoint.get(name).unwrap_or_else(|| panic!("{name} is not in expected.safetensors"));
    let bytes = t.bytes;
    let values = match format!("{:?}", t.dtype).to_uppercase().as_str() {
        "F32" => bytes.chunks_exact(4).map(|c| f64::from(f32::from_le_bytes(c.try_into().unwrap()))).collect(),
        "I32" => bytes.chunks_exact(4).map(|c| f64::from(i32::from_le_bytes(c.try_into().unwrap()))).collect(),
        "I64" => bytes.chunks_exact(8).map(|c| i64::from_le_bytes(c.try_into().unwrap()) as f64).collect(),
        other => panic!("{name} is {other}"),
    };
    (t.shape.to_vec(), values)
}

fn greedy(name: &str) -> Vec<Vec<i32>> {
    let text = std::fs::read_to_string(folder(name).join("expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(json["greedy"].clone()).unwrap()
}

fn values<T: Copy + Into<f64>>(a: &Array<T>) -> Vec<f64> {
    match &a.data {
        Data::Real(v) => v.iter().map(|&x| x.into()).collect(),
        Data::Int(v) => v.iter().map(|&x| f64::from(x)).collect(),
    }
}

fn relative(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (mut error, mut norm) = (0.0, 0.0);
    for (g, w) in got.iter().zip(want) {
        error += (g - w) * (g - w);
        norm += w * w;
    }
    (error / norm.max(1e-30)).sqrt()
}

fn check(name: &str, deployment: Deployment, order: Order) {
    let text = std::fs::read_to_string(folder(name).join("config.json")).unwrap();
    let spec = config::read(&text, name).unwrap();
    let weights = CheckpointWeights::open(&folder(name), &spec, Layers::All).unwrap();
    let expected = expected(name);
    let (shape, ids) = numbers(&expected, "input_ids");
    let prompts: Vec<Vec<i32>> = ids.chunks(shape[1] as usize).map(|c| c.iter().map(|&x| x as i32).collect()).collect();
    let want_greedy = greedy(name);
    let new = want_greedy[0].len();
    let capacity = (shape[1] as usize + new) as u32;
    let executor = ReferenceExecutor::<f32>::new(deployment.ranks(), capacity, order);
    let mut session =
        Session::new(&spec, &weights, executor, SessionOptions { deployment, lower: Default::default(), dump: true }, capacity);
    let out = session.prefill(&prompts).unwrap();
    for v in &out.values {
        if v.name == "next_ids" {
            continue;
        }
        let (want_shape, want) = numbers(&expected, &v.name);
        let got = values(&v.value);
        if v.name.ends_with(".experts") {
            let k = *want_shape.last().unwrap() as usize;
            for (g, w) in got.chunks(k).zip(want.chunks(k)) {
                let sorted = |s: &[f64]| {
                    let mut s: Vec<i64> = s.iter().map(|x| *x as i64).collect();
                    s.sort_unstable();
                    s
                };
                assert_eq!(sorted(g), sorted(w), "{name} {}", v.name);
            }
        } else if !v.name.ends_with(".weights") {
            let e = relative(&got, &want);
            assert!(e < TOLERANCE, "{name} {}: relative error {e:.2e}", v.name);
        }
    }
    let rows: Vec<u32> = prompts.iter().map(|p| p.len() as u32).collect();
    let mut next = pick(&out.last_logits(&rows));
    let mut tokens: Vec<Vec<i32>> = next.iter().map(|&t| vec![t]).collect();
    while tokens[0].len() < new {
        let out = session.decode(&next).unwrap();
        next = pick(&out.last_logits(&vec![1; prompts.len()]));
        tokens.iter_mut().zip(&next).for_each(|(list, &t)| list.push(t));
    }
    assert_eq!(tokens, want_greedy, "{name}: greedy tokens through the KV cache");
}

fn pick(logits: &[Vec<f32>]) -> Vec<i32> {
    logits.iter().map(|row| (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as i32).collect()
}

fn deployments() -> Vec<Deployment> {
    let d = Deployment::default();
    vec![
        d.clone(),
        Deployment { tp: 2, ..d.clone() },
        Deployment { tp: 2, ep: 2, ..d.clone() },
        Deployment { tp: 2, pp: 2, ..d.clone() },
        Deployment { tp: 2, dp_attention: 2, ..d.clone() },
        Deployment { tp: 2, ep: 2, a2a: AllToAll::Nccl, ..d.clone() },
        Deployment { tp: 2, ep: 2, dp_attention: 2, a2a: AllToAll::Nccl, ..d.clone() },
        Deployment { replicas: 2, ..d },
    ]
}

fn check_all(name: &str) {
    for (i, d) in deployments().into_iter().enumerate() {
        check(name, d, if i == 0 { Order::Launch } else { Order::Seeded(i as u64) });
    }
}

#[test]
fn deepseek_v3() {
    check_all("tiny-deepseek-v3");
}

#[test]
fn deepseek_v3_yarn() {
    check_all("tiny-deepseek-v3-yarn");
}

#[test]
fn deepseek_v3_with_everything_else_chosen_otherwise() {
    check_all("tiny-deepseek-v3-variant");
}

#[test]
fn kimi_k25_nested_in_its_wrapper() {
    check_all("tiny-kimi-k25-nested");
}

#[test]
fn kimi_k2_int4() {
    check_all("tiny-kimi-k2-int4");
}

#[test]
fn mini_kimi_int4() {
    check_all("mini-kimi-int4");
}

/// Clipped queries, keys and values, grouped heads, biases, tied embeddings, dynamic scaling.
#[test]
fn olmoe_that_clips() {
    check_all("tiny-olmoe-clip");
}

/// Biases in attention, dense MLPs and shared experts, queries without compression, groups chosen by their best expert, a `null` factor.
#[test]
fn deepseek_v2_with_biases() {
    check_all("tiny-deepseek-v2-biased");
    check("tiny-deepseek-v2-biased", Deployment { tp: 2, dcp: 2, ..Deployment::default() }, Order::Seeded(9));
}

/// A window in every layer, heads that are no share of the hidden size, linear scaling, f16 in two shards.
#[test]
fn mixtral_with_a_window() {
    check_all("tiny-mixtral-window");
}

/// Dense layers by step and by list, windows in some layers, Llama 3's scaling, tied embeddings.
#[test]
fn qwen2_with_dense_layers_between() {
    check_all("tiny-qwen2-steps");
}

/// FP8 in blocks of 16 x 16, a dense layer between, biases, a window.
#[test]
fn qwen3_in_fp8() {
    check_all("tiny-qwen3-fp8");
}

/// MXFP4 experts, a whole context in the first layer and a window in the second.
#[test]
fn gpt_oss_in_mxfp4() {
    check_all("tiny-gpt-oss-mxfp4");
}

/// INT4 experts in groups of 16 with f32 scales, a quarter of each head rotated, no norms of queries and keys, groups of experts.
#[test]
fn glm4_in_int4() {
    check_all("tiny-glm4-int4");
}
