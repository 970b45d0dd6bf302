//! The same launch in several releases: what one takes another refuses, and the other way round.

use moetwin_engines::question::Question;
use moetwin_engines::verdict::{self, Answer};
use moetwin_engines::{Engine, HardwareText, Version};
use std::collections::BTreeMap;

/// A machine: GPU and how many.
type Machine = (&'static str, u32);

const H100: Machine = ("H100 80GB", 8);
const H200: Machine = ("H200", 8);
const PRO_6000: Machine = ("NVIDIA RTX PRO 6000 Blackwell (SM120)", 8);

fn ask(engine: Engine, version: &str, machine: Machine, command: &str) -> Answer {
    let question = Question {
        engine,
        version: Version::parse(engine, version),
        model: String::new(),
        hardware: HardwareText { gpu: machine.0.to_owned(), count: Some(machine.1), ..HardwareText::default() },
        command: command.to_owned(),
        folder: None,
        env: BTreeMap::new(),
        model_facts: BTreeMap::new(),
        assumptions: Vec::new(),
    };
    verdict::check(&question).expect("a command")
}

/// The invariant that a launch breaks first, empty where it breaks none.
fn broken(engine: Engine, version: &str, machine: Machine, command: &str) -> String {
    ask(engine, version, machine, command).invariant
}

const QWEN: &str = "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 2";

#[test]
fn names_of_flags_have_releases() {
    let with = |version: &str, more: &str| broken(Engine::Sglang, version, H100, &format!("{QWEN} {more}"));
    for (version, more, invariant) in [
        ("0.5.19", "--cuda-graph-max-bs 8", ""),
        ("0.5.20", "--cuda-graph-max-bs 8", "flag_exists_in_version"),
        ("0.5.20", "--cuda-graph-max-bs-decode 8", ""),
        // A build between releases may have either.
        ("main 2026-10-20", "--cuda-graph-max-bs 8", ""),
        ("0.5.3", "--pp 2", ""),
        ("0.5.9", "--pp 2", "flag_exists_in_version"),
        ("0.5.9", "--pp-size 2", ""),
        ("0.5.9", "--enable-ep-moe", "flag_exists_in_version"),
        ("0.5.2", "--enable-ep-moe", ""),
        ("0.5.14", "--nsa-decode-backend fa3", ""),
        ("0.5.21", "--nsa-decode-backend fa3", "flag_exists_in_version"),
    ] {
        assert_eq!(with(version, more), invariant, "{version} {more}");
    }
    let refused = ask(Engine::Sglang, "0.5.23", H100, &format!("{QWEN} --cuda-graph-max-bs 8"));
    assert!(refused.fixes.iter().any(|f| f.text == "--cuda-graph-max-bs-decode 8" && f.verified), "{:?}", refused.fixes);
    let vllm = |version: &str| broken(Engine::Vllm, version, H100, "vllm serve Qwen/Qwen3-30B-A3B --disable-log-requests");
    assert_eq!((vllm("0.16.0").as_str(), vllm("0.18.0").as_str()), ("", "flag_exists_in_version"));
}

#[test]
fn a_published_release_refuses_what_is_not_in_its_table() {
    for (version, flag, invariant) in [
        ("0.5.9", "--gpu-memory-utilization 0.9", "flag_is_known"),
        ("0.5.9", "--enable-one-shot-of-our-own", "flag_is_known"),
        ("fork of 0.5.9", "--enable-one-shot-of-our-own", ""),
        ("", "--enable-one-shot-of-our-own", ""),
        ("0.5.9", "--prefill-round-robin-balance", ""),
        ("0.5.23", "--speculative-dflash-block-size 8", ""),
    ] {
        assert_eq!(broken(Engine::Sglang, version, H100, &format!("{QWEN} {flag}")), invariant, "{version} {flag}");
    }
    let answer = ask(Engine::Sglang, "0.5.9", H100, &format!("{QWEN} --gpu-memory-utilization 0.85"));
    assert!(answer.fixes.iter().any(|f| f.text == "--mem-fraction-static 0.85"), "{:?}", answer.fixes);
}

/// Three releases hold the cache of all stages against the memory of one.
#[test]
fn stages_of_a_pipeline_are_counted_together_in_some_releases() {
    let command = "vllm serve zai-org/GLM-4.5-FP8 --pipeline-parallel-size 8 --max-model-len 131072";
    let of = |version: &str| ask(Engine::Vllm, version, H100, command);
    for (version, starts) in [("0.12.0", true), ("0.14.0", false), ("0.16.0", false), ("0.17.0", true)] {
        let answer = of(version);
        assert_eq!(answer.invariant.is_empty(), starts, "{version}: {}", answer.message);
    }
    assert!(of("0.15.0").message.contains("in all stages together"), "{}", of("0.15.0").message);
}

#[test]
fn backends_ask_for_what_they_need() {
    let mega = "vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8 --kv-cache-dtype fp8 --max-model-len 65536 --moe-backend deep_gemm_mega_moe";
    let b200: Machine = ("B200", 8);
    assert_eq!(broken(Engine::Vllm, "0.30.0", b200, mega), "mega_moe_needs_expert_parallelism");
    assert_eq!(broken(Engine::Vllm, "0.30.0", b200, &format!("{mega} --enable-expert-parallel")), "");
    let trees = "python -m sglang.launch_server --model-path Qwen/QwQ-32B --tp 2 --attention-backend fa3 --speculative-algorithm EAGLE \
                 --speculative-draft-model-path d --speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 8";
    assert_eq!(broken(Engine::Sglang, "0.4.5", H100, trees), "draft_trees_need_a_backend");
    assert_ne!(broken(Engine::Sglang, "0.4.7", H100, trees), "draft_trees_need_a_backend");
    // Another attention backend leaves the indexer of sparse attention out.
    let sparse = "python -m sglang.launch_server --model-path x/GLM-5-NVFP4 --tp 8 --quantization modelopt_fp4 --mem-fraction-static 0.9";
    assert_eq!(broken(Engine::Sglang, "main 2026-03-20", PRO_6000, sparse), "sparse_attention_has_kernels");
    assert_eq!(broken(Engine::Sglang, "main 2026-03-20", PRO_6000, &format!("{sparse} --attention-backend flashinfer")), "");
    let compiled = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3.2 --tp 8 --enable-torch-compile";
    assert_eq!(broken(Engine::Sglang, "0.5.6", H200, compiled), "sparse_attention_is_not_compiled");
    assert_eq!(broken(Engine::Sglang, "0.5.10", H200, compiled), "");
    let fp4 = "vllm serve nvidia/Llama-3.3-70B-Instruct-NVFP4 --max-model-len 8192";
    assert_eq!(broken(Engine::Vllm, "0.9.2", PRO_6000, fp4), "nvfp4_gemm_has_kernels");
    assert_eq!(broken(Engine::Vllm, "0.12.0", PRO_6000, fp4), "");
    let mxfp8 = "sglang serve --model-path MiniMaxAI/MiniMax-M3-MXFP8 --tp 8";
    assert_eq!(broken(Engine::Sglang, "0.5.20", PRO_6000, mxfp8), "mxfp8_experts_have_kernels");
    assert_eq!(broken(Engine::Sglang, "0.5.20", H200, mxfp8), "");
}

/// Newer names of what older ones say.
#[test]
fn newer_flags_mean_what_older_ones_did() {
    let with = |more: &str| {
        let command = format!("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 {more}");
        ask(Engine::Sglang, "0.5.23", H200, &command)
    };
    let (older, newer) = (with("--dp-size 8 --enable-dp-attention"), with("--attn-dp-size 8"));
    assert_eq!((older.numbers.get("kv_tokens"), older.invariant.as_str()), (newer.numbers.get("kv_tokens"), newer.invariant.as_str()));
    assert_ne!(newer.numbers.get("kv_tokens"), with("").numbers.get("kv_tokens"));
    assert_eq!(with("--attn-dp-size 3").invariant, "tp_divisible_by_attention_dp");
}

#[test]
fn shared_experts_are_cut_by_every_rank() {
    let command = |tp: u32| {
        format!(
            "vllm serve deepseek-ai/DeepSeek-V4-Pro -tp {tp} --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --enable-expert-parallel --kv-cache-dtype fp8"
        )
    };
    let wide = ask(Engine::Vllm, "0.22.0", ("H200", 16), &command(16));
    assert_eq!(wide.invariant, "shared_width_divisible_by_block", "{}", wide.message);
    assert!(wide.message.contains("192"), "{}", wide.message);
    assert_eq!(
        broken(Engine::Vllm, "0.22.0", H200, "vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8 --enable-expert-parallel --max-model-len 65536"),
        ""
    );
}

/// Hooks are those of the class in the release: balancing needs one that gpt-oss lacks for long, EAGLE-3 one that Kimi-K2.5 got late.
#[test]
fn hooks_of_classes_are_those_of_the_release() {
    let eplb = |model: &str| format!("vllm serve {model} -tp 4 --enable-expert-parallel --enable-eplb");
    assert!(!broken(Engine::Vllm, "0.16.0", H100, &eplb("openai/gpt-oss-120b")).is_empty());
    assert_eq!(broken(Engine::Vllm, "0.16.0", H100, &eplb("Qwen/Qwen3-30B-A3B")), "");
    let eagle3 = "vllm serve moonshotai/Kimi-K2.5 -tp 8 --max-model-len 65536 --speculative-config {\"method\":\"eagle3\",\"model\":\"d/eagle3\",\"num_speculative_tokens\":3}";
    assert!(!broken(Engine::Vllm, "0.17.0", H200, eagle3).is_empty());
    assert_eq!(broken(Engine::Vllm, "0.18.0", H200, eagle3), "");
}

/// A checkpoint of which experts were taken out is as large as its name says.
#[test]
fn pruned_checkpoints_are_smaller() {
    let command = |model: &str| format!("sglang serve --model-path {model} --tp 1 --mem-fraction-static 0.95 --kv-cache-dtype bf16");
    let one: Machine = ("NVIDIA RTX PRO 6000 Blackwell (SM120)", 1);
    assert_eq!(broken(Engine::Sglang, "0.5.9", one, &command("x/MiniMax-M2.5-REAP-139B-A10B-NVFP4")), "");
    assert_eq!(broken(Engine::Sglang, "0.5.9", one, &command("x/MiniMax-M2.5-NVFP4")), "weights_fit");
}

/// Scales of whole tensors have no blocks that an expert's width must fill.
#[test]
fn scales_of_whole_tensors_divide_anything() {
    let of = |model: &str| broken(Engine::Vllm, "0.19.0", H100, &format!("vllm serve {model} -tp 4 --max-model-len 32768"));
    assert_eq!(of("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8"), "");
    assert_eq!(of("stepfun-ai/Step-3.5-Flash-FP8"), "expert_width_divisible_by_block");
}

#[test]
fn a_context_longer_than_the_models_needs_leave() {
    let with = |version: &str, before: &str, more: &str| broken(Engine::Sglang, version, H100, &format!("{before} {QWEN} {more}"));
    let invariant = "max_model_len_within_positions";
    for (version, before, more, expected) in [
        ("0.5.23", "", "--context-length 40960", ""),
        ("0.5.23", "", "--context-length 40961", invariant),
        ("0.5.23", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1", "--context-length 40961", ""),
        // What overrides the configuration may bring more positions.
        ("0.5.23", "", "--context-length 131072 --json-model-override-args '{\"max_position_embeddings\": 131072}'", ""),
        // This release warns.
        ("0.4.8", "", "--context-length 40961", ""),
    ] {
        assert_eq!(with(version, before, more), expected, "{version} {before} {more}");
    }
}
