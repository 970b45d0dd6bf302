//! Laws over realistic commands: spelling and order do not matter, sound launches are not flagged, planted faults are found.

use moetwin_engines::question::Question;
use moetwin_engines::verdict::{self, Answer, Starts};
use moetwin_engines::{Engine, HardwareText, Version};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Launches that people run: engine, GPU, how many, command.
const SOUND: &[(Engine, &str, u32, &str)] = &[
    (Engine::Sglang, "H200", 8, "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --trust-remote-code"),
    (Engine::Sglang, "H100 80GB", 4, "python3 -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B-FP8 --tp 4"),
    (Engine::Sglang, "H100 80GB", 8, "sglang serve --model-path zai-org/GLM-4.5-FP8 --tp-size 8"),
    (Engine::Sglang, "B200", 1, "python -m sglang.launch_server --model openai/gpt-oss-120b"),
    (Engine::Sglang, "A100 80GB", 2, "python -m sglang.launch_server --model-path mistralai/Mixtral-8x7B-Instruct-v0.1 --tp 2"),
    (Engine::Vllm, "H200", 8, "vllm serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size 8"),
    (Engine::Vllm, "H200", 8, "vllm serve moonshotai/Kimi-K2-Thinking -tp 8 --trust-remote-code"),
    (Engine::Vllm, "H100 80GB", 2, "vllm serve openai/gpt-oss-120b -tp 2"),
    (Engine::Vllm, "H100 80GB", 8, "vllm serve MiniMaxAI/MiniMax-M2 --tensor-parallel-size 8 --enable-expert-parallel"),
    (Engine::Vllm, "RTX PRO 6000 Blackwell", 2, "vllm serve zai-org/GLM-4.5-Air-FP8 -tp 2 --max-model-len 65536"),
    (Engine::Vllm, "A100 80GB", 4, "python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-30B-A3B -tp 4"),
];

/// Flags that change nothing of the start.
const HARMLESS: &[&[&str]] = &[
    &[
        "--host 0.0.0.0",
        "--port 30000",
        "--served-model-name m",
        "--log-level info",
        "--random-seed 7",
        "--enable-metrics",
        "--watchdog-timeout 600",
    ],
    &["--host 0.0.0.0", "--port 8000", "--served-model-name a b", "--seed 7", "--disable-uvicorn-access-log", "--api-key k"],
];

/// A fault as an argument, and the rule that it breaks.
const PLANTED: &[&[(&str, &str)]] = &[
    &[
        ("--context-length", "flag_has_its_value"),
        ("--chunked-prefill-size abc", "value_is_a_number"),
        ("--quantization fp9", "value_is_a_choice"),
        ("--schedule-polcy lpm", "flag_is_known"),
        ("--trust-remote-code yes", "every_word_has_a_flag"),
        ("--skip-tokenizer-init=1", "switch_takes_no_value"),
        ("--max-running-requests 0", "count_is_at_least_one"),
        ("--mem-fraction-static 0.01", "kv_pool_is_positive"),
        ("--mem-fraction-static 1.2", "fraction_leaves_room_for_graphs"),
        ("--moe-dense-tp-size 2", "moe_dense_tp_size_is_one_or_unset"),
        ("--attention-backend FLASH_ATTN", "value_is_a_choice"),
        ("--nnodes 2", "hosts_have_a_meeting_point"),
    ],
    &[
        ("--max-model-len", "flag_has_its_value"),
        ("--max-num-seqs many", "value_is_a_number"),
        ("--kv-cache-dtype fp9", "value_is_a_choice"),
        ("--gpu-memory-utilisation 0.9", "flag_is_known"),
        ("--trust-remote-code yes", "every_word_has_a_flag"),
        ("--enforce-eager=true", "switch_takes_no_value"),
        ("--max-num-seqs 0", "count_is_at_least_one"),
        ("--max-model-len 0", "count_is_at_least_one"),
        ("--speculative-config {bad", "value_is_json"),
        ("--gpu-memory-utilization 1.5", "fraction_is_a_share"),
        ("--gpu-memory-utilization 0.02", "kv_cache_holds_one_request"),
        ("--max-num-batched-tokens 16 --max-num-seqs 64", "batched_tokens_cover_sequences"),
        ("--attention-backend fa3", "value_is_a_choice"),
        ("--pipeline-parallel-size 16", "enough_gpus"),
    ],
];

fn question(sound: usize, command: String) -> Question {
    let (engine, gpu, count, _) = SOUND[sound];
    Question {
        engine,
        version: Version::newest(engine),
        model: String::new(),
        hardware: HardwareText { gpu: gpu.to_owned(), count: Some(count), ..HardwareText::default() },
        command,
        folder: None,
        env: BTreeMap::new(),
        model_facts: BTreeMap::new(),
        assumptions: Vec::new(),
    }
}

fn ask(sound: usize, command: String) -> Answer {
    verdict::check(&question(sound, command)).expect("a command")
}

/// One of the sound launches with harmless flags behind it.
fn launch() -> impl Strategy<Value = (usize, Vec<&'static str>)> {
    (0..SOUND.len()).prop_flat_map(|at| {
        let harmless = HARMLESS[usize::from(SOUND[at].0 == Engine::Vllm)].to_vec();
        let most = harmless.len();
        (Just(at), prop::sample::subsequence(harmless, 0..=most).prop_shuffle())
    })
}

/// What a table of faults calls a finding, first or behind the first.
fn names(answer: &Answer) -> Vec<&str> {
    std::iter::once(answer.invariant.as_str()).chain(answer.next.iter().map(|n| n.invariant.as_str())).collect()
}

#[test]
fn a_launch_without_a_model_is_refused_where_the_engine_has_no_default() {
    assert_eq!(ask(0, "python -m sglang.launch_server --tp 8".to_owned()).invariant, "model_is_given");
    assert!(ask(0, "python -m sglang.launch_server --tp 8 <more>".to_owned()).invariant.is_empty());
    let file = ask(5, "vllm serve --config serve.yaml".to_owned());
    assert!(file.invariant.is_empty() && file.notes.iter().any(|n| n.contains("--config")), "{:?}", file.notes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn sound_launches_are_not_flagged((at, harmless) in launch(), glued in any::<bool>(), underscores in any::<bool>(), lines in any::<bool>()) {
        let spelled = |flag: &str| {
            let (name, value) = flag.split_once(' ').unwrap_or((flag, ""));
            let name = if underscores { format!("--{}", name.trim_start_matches("--").replace('-', "_")) } else { name.to_owned() };
            let between = if value.is_empty() { "" } else if glued && !value.contains(' ') { "=" } else { " " };
            format!("{name}{between}{value}")
        };
        let joint = if lines { " \\\n    " } else { " " };
        let words: Vec<String> = std::iter::once(SOUND[at].3.to_owned()).chain(harmless.iter().map(|f| spelled(f))).collect();
        let plain = ask(at, SOUND[at].3.to_owned());
        let answer = ask(at, words.join(joint));
        prop_assert!(answer.starts == Starts::Yes && answer.invariant.is_empty(), "{}: {}", words.join(joint), answer.message);
        prop_assert_eq!(&answer.numbers, &plain.numbers);
    }

    #[test]
    fn a_planted_fault_is_found_and_its_checked_fixes_remove_it((at, harmless) in launch(), which in 0usize..64, docker in any::<bool>()) {
        let faults = PLANTED[usize::from(SOUND[at].0 == Engine::Vllm)];
        let (fault, invariant) = faults[which % faults.len()];
        let prefix = if docker { "docker run --gpus all --shm-size 32g -e HF_TOKEN=x image:latest " } else { "HF_TOKEN=x " };
        let command = format!("{prefix}{} {} {fault}", SOUND[at].3, harmless.join(" "));
        let answer = ask(at, command.clone());
        prop_assert!(answer.starts != Starts::Yes, "{command}");
        prop_assert!(names(&answer).contains(&invariant), "{command}: {:?} for {invariant}", names(&answer));
        for fix in answer.fixes.iter().filter(|f| f.verified) {
            let again = verdict::check_with(&question(at, command.clone()), &fix.changes).expect("a command");
            prop_assert!((&again.invariant, &again.arguments) != (&answer.invariant, &answer.arguments), "{command} after {}: {}", fix.text, again.message);
            prop_assert_eq!(Some(again.starts), fix.then);
        }
    }
}

/// A question of vLLM on so many H200s.
fn vllm(gpus: Option<u32>, command: &str) -> Question {
    let hardware = HardwareText { gpu: "H200".to_owned(), count: gpus, ..HardwareText::default() };
    Question { hardware, ..question(10, command.to_owned()) }
}

#[test]
fn a_container_has_the_gpus_that_it_is_given() {
    let run = |gpus: &str, rest: &str| format!("docker run --gpus {gpus} {rest} vllm/vllm-openai:v0.10.0 --model Qwen/Qwen3-30B-A3B -tp 4");
    for (machine, command) in [
        (None, run("2", "")),
        (Some(8), run("2", "")),
        (Some(8), run("'\"device=0,1\"'", "")),
        (Some(8), run("2", "-e CUDA_VISIBLE_DEVICES=0,1,2,3")),
        (Some(8), run("all", "-e CUDA_VISIBLE_DEVICES=0,1")),
        (Some(8), run("all", "-e NVIDIA_VISIBLE_DEVICES=0,1").replace("--gpus all", "--runtime nvidia")),
    ] {
        let answer = verdict::check(&vllm(machine, &command)).unwrap();
        assert_eq!(answer.invariant, "enough_gpus", "{command}");
        assert!(answer.message.contains("needs 4 GPUs and 2 are there"), "{}", answer.message);
    }
    for (machine, command) in [
        (Some(8), run("4", "")),
        (Some(8), run("all", "")),
        (Some(8), run("all", "-e CUDA_VISIBLE_DEVICES=$LIST")),
        (Some(8), format!("CUDA_VISIBLE_DEVICES=$(seq -s, 0 3) {}", run("all", ""))),
    ] {
        assert_eq!(verdict::check(&vllm(machine, &command)).unwrap().starts, Starts::Yes, "{command}");
    }
}

#[test]
fn a_context_of_nothing_holds_no_request() {
    for (engine, start) in [
        (Engine::Sglang, "sglang serve --model-path Qwen/Qwen3-30B-A3B --tp 4 --context-length"),
        (Engine::Vllm, "vllm serve Qwen/Qwen3-30B-A3B -tp 4 --max-model-len"),
    ] {
        let ask = |length: &str| {
            let question = Question { engine, version: Version::newest(engine), ..vllm(Some(8), &format!("{start} {length}")) };
            verdict::check(&question).unwrap()
        };
        let none = ask("0");
        assert_eq!(none.starts, Starts::No, "{}", none.message);
        assert!(none.fixes.iter().any(|fix| fix.verified && fix.then == Some(Starts::Yes)), "{:?}", none.fixes);
        assert_eq!(ask("4096").starts, Starts::Yes);
    }
    let sglang = vllm(Some(8), "sglang serve --model-path Qwen/Qwen3-30B-A3B --tp 4 --context-length -1");
    let answer = verdict::check(&Question { engine: Engine::Sglang, version: Version::newest(Engine::Sglang), ..sglang }).unwrap();
    assert_eq!((answer.starts, answer.invariant.as_str()), (Starts::No, "context_holds_a_request"), "{}", answer.message);
}

#[test]
fn visible_gpus_are_those_of_each_host() {
    let run = |ranks: u32| {
        let command = format!(
            "docker run --gpus 2 lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp {ranks} --nnodes 2 --node-rank 0 --dist-init-addr a:1"
        );
        verdict::check(&Question { engine: Engine::Sglang, version: Version::newest(Engine::Sglang), ..vllm(Some(8), &command) }).unwrap()
    };
    assert_eq!(run(4).starts, Starts::Yes);
    let eight = run(8);
    assert!(eight.message.contains("needs 8 GPUs and 4 are there"), "{}", eight.message);
}

#[test]
fn what_counts_the_gpus_is_put_in_and_loops_are_not_one_launch() {
    let counted = vllm(Some(4), "vllm serve Qwen/Qwen3-30B-A3B -tp $(nvidia-smi -L | wc -l)");
    let answer = verdict::check(&counted).unwrap();
    assert_eq!((answer.starts, answer.settings.tp), (Starts::Yes, 4));
    assert!(answer.assumptions.iter().any(|a| a.contains("nvidia-smi -L | wc -l")), "{:?}", answer.assumptions);
    let three = Question { hardware: HardwareText { count: Some(3), ..counted.hardware.clone() }, ..counted };
    assert_eq!(verdict::check(&three).unwrap().invariant, "heads_divisible_by_tp");
    let error = verdict::check(&vllm(Some(8), "for tp in 1 2 4; do vllm serve Qwen/Qwen3-30B-A3B -tp $tp; done")).unwrap_err().to_string();
    assert!(error.contains("one is answered at a time") && error.contains("$tp"), "{error}");
    let again = verdict::check(&vllm(Some(8), "while true; do vllm serve Qwen/Qwen3-30B-A3B -tp 4; done")).unwrap();
    assert_eq!((again.starts, again.settings.tp), (Starts::Yes, 4), "{}", again.message);
    assert_eq!(verdict::check(&vllm(Some(8), "vllm serve Qwen/Qwen3-30B-A3B -tp 4; echo done")).unwrap().starts, Starts::Yes);
}

#[test]
fn a_start_that_nothing_is_known_of_says_what_was_not_checked() {
    let dark = verdict::check(&vllm(Some(8), "vllm serve nosuch/model -tp 3")).unwrap();
    assert!(dark.starts == Starts::Yes && dark.in_the_dark(), "{}", dark.message);
    assert!(
        dark.message.contains("nothing is known of nosuch/model, so neither heads, experts nor memory were checked"),
        "{}",
        dark.message
    );
    let sized = verdict::check(&vllm(Some(8), "vllm serve nosuch/model-7b -tp 2")).unwrap();
    assert!(sized.message.contains("only its size is known of nosuch/model-7b, so neither heads nor experts"), "{}", sized.message);
    let known = verdict::check(&vllm(Some(8), "vllm serve Qwen/Qwen3-30B-A3B -tp 4")).unwrap();
    assert!(!known.in_the_dark() && known.message.starts_with("starts: no rule"), "{}", known.message);
}

#[test]
fn a_method_of_quantized_checkpoints_needs_one() {
    for (method, refused) in [("awq", true), ("gptq_marlin", true), ("fp8", false)] {
        let answer = verdict::check(&vllm(Some(4), &format!("vllm serve Qwen/Qwen3-30B-A3B -tp 4 --quantization {method}"))).unwrap();
        assert_eq!(answer.invariant == "quantization_has_its_configuration", refused, "{method}: {}", answer.message);
        assert!(!refused || answer.fixes.iter().any(|f| f.verified), "{:?}", answer.fixes);
    }
    // A copy under another name may hold anything.
    for model in ["Qwen/Qwen3-30B-A3B-AWQ", "/models/Qwen3-30B-A3B", "someone/Qwen3-30B-A3B"] {
        let answer = verdict::check(&vllm(Some(4), &format!("vllm serve {model} -tp 4 --quantization awq"))).unwrap();
        assert_ne!(answer.invariant, "quantization_has_its_configuration", "{model}");
    }
}
