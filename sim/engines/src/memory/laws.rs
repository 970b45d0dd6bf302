//! What must hold for any launch.

use super::answer;
use super::cache::Cost;
use super::cases::settings;
use crate::catalog::resolve;
use crate::hardware::read;
use crate::question::{Engine, HardwareText};
use crate::settings::Settings;
use proptest::prelude::*;
use std::collections::BTreeMap;

const MODELS: &[&str] = &[
    "moonshotai/Kimi-K2.5",
    "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3.6-35B-A3B",
    "openai/gpt-oss-120b",
    "zai-org/GLM-4.6-FP8",
    "deepseek-ai/DeepSeek-V4-Flash",
    "meta-llama/Llama-3.3-70B-Instruct",
    "someone/Unknown-100B-A8B-AWQ",
];
const GPUS: &[&str] = &["H200", "RTX PRO 6000 Blackwell", "RTX 4090 24GB", "B200", "A100-SXM4-80GB", "DGX Spark GB10"];

fn launch() -> impl Strategy<Value = (Settings, &'static str, &'static str)> {
    let engine = prop_oneof![Just(Engine::Sglang), Just(Engine::Vllm)];
    let version = prop_oneof![Just("0.5.9"), Just("0.11.0"), Just("2026-08"), Just("")];
    (engine, version, 0u32..4, 0.5f64..0.99, 512u64..65_536, 1u32..2048, proptest::sample::select(MODELS), proptest::sample::select(GPUS))
        .prop_map(|(engine, version, power, fraction, chunk, sequences, model, gpu)| {
            let mut out = settings(engine, version, 1 << power);
            out.fraction_given = Some(fraction);
            out.max_batched_tokens = Some(chunk);
            out.max_num_seqs = sequences;
            (out, model, gpu)
        })
}

fn numbers(settings: &Settings, model: &str, gpu: &str) -> crate::finding::Numbers {
    let text = HardwareText { gpu: gpu.into(), count: Some(settings.world()), ..HardwareText::default() };
    answer(settings, &resolve(model, "", &BTreeMap::new(), None), &read(&text)).numbers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Twice the ranks never hold more weights each, and every figure is finite.
    #[test]
    fn more_ranks_never_hold_more((settings, model, gpu) in launch()) {
        let few = numbers(&settings, model, gpu);
        let mut wider = settings.clone();
        wider.tp *= 2;
        wider.moe_tp *= 2;
        wider.dense_tp *= 2;
        let many = numbers(&wider, model, gpu);
        prop_assert!(few.values().chain(many.values()).all(|v| v.is_finite()));
        prop_assert!(many["weights_gib_per_gpu"] <= few["weights_gib_per_gpu"] * (1.0 + 1e-9));
    }

    /// A larger fraction never leaves a smaller pool; SGLang has one exactly above the smallest fraction.
    #[test]
    fn pools_grow_with_the_fraction((settings, model, gpu) in launch(), more in 0.0f64..0.3) {
        let pool = |s: &Settings| numbers(s, model, gpu).get("kv_gib_per_gpu").copied().unwrap_or(0.0);
        let mut larger = settings.clone();
        larger.fraction_given = settings.fraction_given.map(|f| (f + more).min(1.0));
        prop_assert!(pool(&larger) >= pool(&settings) - 1e-9);
        if settings.engine == Engine::Sglang {
            let least = numbers(&settings, model, gpu)["minimum_mem_fraction"];
            prop_assert_eq!(pool(&settings) > 0.0, settings.fraction_given.is_some_and(|f| f > least));
        }
    }

    /// A request of the longest length fits, one of a page more does not, and need grows with length.
    #[test]
    fn the_longest_request_is_the_longest(per_token in 1.0f64..1e6, windowed in 0.0f64..1e6, window in 1.0f64..1e5, state in 0.0f64..1e8, pool in 0.0f64..1e12) {
        let cost = Cost { per_token, windowed, window, per_sequence: state };
        let longest = cost.longest(pool);
        if pool > state {
            prop_assert!(cost.request(longest) <= pool * (1.0 + 1e-9) + 1.0);
            prop_assert!(cost.request(longest + 16.0) > pool * (1.0 - 1e-9));
        } else {
            prop_assert_eq!(longest, 0.0);
        }
        prop_assert!(cost.request(longest * 2.0 + 1.0) >= cost.request(longest));
    }
}
