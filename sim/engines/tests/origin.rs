//! The origin story of the project, found and not scripted: Kimi-K2.5 (INT4 experts) on 8x RTX PRO 6000 over PCIe, SGLang of early 2026.
//! Each test changes one thing of the launch and asks what becomes of it.

use moetwin_engines::verdict::{Answer, Starts, check};
use moetwin_engines::{Engine, HardwareText, Kind, Phase, Question, Version};
use std::collections::BTreeMap;

const EP: &str = "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --ep 8 --trust-remote-code \
                  --moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass --cuda-graph-max-bs 128";
const TP: &str = "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code --mem-fraction-static 0.92";

struct Machine {
    gpu: &'static str,
    memory_gib: f64,
    links: &'static str,
}

const STORY: Machine = Machine { gpu: "NVIDIA RTX PRO 6000 Blackwell (SM120)", memory_gib: 95.6, links: "PCIe, no NVLink" };
const B200: Machine = Machine { gpu: "B200 (SM100)", memory_gib: 178.4, links: "NVLink/NVSwitch" };

fn ask(version: &str, machine: &Machine, command: &str, env: &[(&str, &str)]) -> Answer {
    let question = Question {
        engine: Engine::Sglang,
        version: Version::parse(Engine::Sglang, version),
        model: "moonshotai/Kimi-K2.5 (INT4)".to_owned(),
        hardware: HardwareText {
            gpu: machine.gpu.to_owned(),
            count: Some(8),
            memory_gib: Some(machine.memory_gib),
            interconnect: machine.links.to_owned(),
            ..HardwareText::default()
        },
        command: command.to_owned(),
        folder: None,
        env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        model_facts: BTreeMap::new(),
        assumptions: Vec::new(),
    };
    check(&question).expect("the command can be read")
}

fn next(answer: &Answer) -> Vec<&str> {
    answer.next.iter().map(|n| n.invariant.as_str()).collect()
}

fn at(fraction: &str) -> String {
    format!("{EP} --mem-fraction-static {fraction}")
}

#[test]
fn at_the_default_fraction_the_kv_pool_cannot_be_sized() {
    let answer = ask("0.5.9", &STORY, EP, &[]);
    assert_eq!((answer.starts, answer.kind, answer.phase), (Starts::No, Kind::Oom, Phase::KvAlloc), "{}", answer.message);
    // What stands behind it is told in order.
    assert_eq!(next(&answer)[0], "expert_metadata_before_dispatch");
    // Row 8: expert parallelism moves no routed bytes; the all-to-all backend does.
    let grown = answer.numbers["ep_minus_tp_gb_per_gpu"];
    assert!((5.0..6.0).contains(&grown), "{grown}");
}

#[test]
fn at_a_higher_fraction_capture_reads_metadata_that_was_stored_as_nothing() {
    let answer = ask("0.5.9", &STORY, &at("0.92"), &[]);
    assert_eq!((answer.starts, answer.kind, answer.phase), (Starts::No, Kind::MissingInit, Phase::GraphCapture));
    assert_eq!(answer.invariant, "expert_metadata_before_dispatch");
    for words in [
        "expert_location_metadata",
        "ran and stored nothing",
        "KimiK25ForConditionalGeneration lacks the hook `get_model_config_for_expert_location`",
    ] {
        assert!(answer.message.contains(words), "{words} in {}", answer.message);
    }
    // Why the suspected causes are not it.
    let story = answer.story.join("\n");
    for words in ["no race", "not the draft worker's gate", "not a missing --enable-eplb"] {
        assert!(story.contains(words), "{words} in {story}");
    }
    // Three more stand behind it.
    assert_eq!(next(&answer), ["dispatcher_quant_config_before_use", "rows_of_router_logits_before_use", "local_expert_ids_before_use"]);
    assert!(answer.states > 0);
    assert!(
        answer.fixes.iter().any(|f| f.text == "remove --moe-a2a-backend" && f.verified && f.then == Some(Starts::Yes)),
        "{:?}",
        answer.fixes
    );
}

#[test]
fn without_graphs_it_shows_at_the_warm_up_request() {
    let answer = ask("0.5.9", &STORY, &format!("{} --disable-cuda-graph", at("0.92")), &[]);
    assert_eq!((answer.phase, answer.invariant.as_str()), (Phase::Warmup, "expert_metadata_before_dispatch"));
}

#[test]
fn eplb_fails_earlier_on_the_same_metadata() {
    let answer = ask("0.5.9", &STORY, &format!("{} --enable-eplb", at("0.92")), &[]);
    assert_eq!((answer.phase, answer.invariant.as_str()), (Phase::Init, "expert_metadata_before_dispatch"));
    assert!(answer.message.contains("ExpertDistributionRecorder"), "{}", answer.message);
}

#[test]
fn on_sm100_an_early_rewrite_meets_a_later_check() {
    let answer = ask("0.5.9", &B200, &at("0.92"), &[]);
    assert_eq!((answer.phase, answer.kind), (Phase::Parse, Kind::FlagConflict));
    assert_eq!(answer.invariant, "moe_runner_supports_quantization");
    assert!(answer.message.contains("compressed-tensors"), "{}", answer.message);
}

#[test]
fn the_next_release_fails_at_the_next_invariant() {
    let answer = ask("0.5.10", &STORY, &at("0.92"), &[]);
    assert_eq!((answer.phase, answer.invariant.as_str()), (Phase::GraphCapture, "dispatcher_quant_config_before_use"));
    assert_eq!(next(&answer), ["rows_of_router_logits_before_use", "local_expert_ids_before_use"]);
}

#[test]
fn a_late_release_refuses_the_arguments() {
    let answer = ask("0.5.23", &STORY, &at("0.92"), &[]);
    assert_eq!((answer.phase, answer.kind), (Phase::Parse, Kind::FlagConflict));
    // Two flags begin with --cuda-graph-max-bs there, so the parser is the first to refuse.
    assert_eq!(answer.invariant, "flag_exists_in_version");
    assert!(answer.message.contains("--cuda-graph-max-bs-decode"), "{}", answer.message);
    assert!(next(&answer).contains(&"flashinfer_a2a_needs_attention_dp"), "{:?}", next(&answer));
    let renamed = at("0.92").replace("--cuda-graph-max-bs ", "--cuda-graph-max-bs-decode ");
    let answer = ask("0.5.23", &STORY, &renamed, &[]);
    assert_eq!((answer.phase, answer.kind), (Phase::Parse, Kind::FlagConflict));
    assert_eq!(answer.invariant, "flashinfer_a2a_needs_attention_dp");
}

#[test]
fn expert_parallelism_without_all_to_all_starts_and_so_does_tensor_parallelism() {
    for command in [TP.to_owned(), format!("{TP} --ep 8"), format!("{TP} --ep 8 --moe-a2a-backend none")] {
        let answer = ask("0.5.9", &STORY, &command, &[]);
        assert_eq!(answer.starts, Starts::Yes, "{command}: {}", answer.message);
    }
}

/// Row 1: fewer captured batch sizes move the default fraction, and with it the KV pool by about ten thousand tokens.
#[test]
fn fewer_graphs_leave_a_larger_pool() {
    let numbers = |flags: &str| {
        let command = format!("python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code {flags}");
        ask("0.5.9", &STORY, &command, &[]).numbers
    };
    let (default, fewer) = (numbers(""), numbers("--cuda-graph-max-bs 128"));
    for (numbers, fraction) in [(&default, 0.7715), (&fewer, 0.7787)] {
        assert!((numbers["mem_fraction_static"] - fraction).abs() < 0.0005, "{}", numbers["mem_fraction_static"]);
    }
    let grown_bytes = (fewer["budget_gib_per_gpu"] - default["budget_gib_per_gpu"]) * f64::from(1u32 << 30);
    let tokens = grown_bytes / default["kv_bytes_per_token_per_gpu"];
    assert!((9_000.0..12_000.0).contains(&tokens), "{tokens}");
}

/// Row 4: two gates stand before the fused all-reduce; the first skips it silently.
#[test]
fn the_fused_all_reduce_is_skipped_silently() {
    let answer = ask("0.5.9", &STORY, &format!("{TP} --enable-flashinfer-allreduce-fusion"), &[]);
    assert_eq!(answer.starts, Starts::Yes, "{}", answer.message);
    let note = answer.notes.iter().find(|n| n.contains("--enable-flashinfer-allreduce-fusion")).expect("a note");
    assert!(note.contains("skips it silently") && note.contains("majors 9 and 10"), "{note}");
}

/// Row 5: custom all-reduce is off for more than two GPUs without NVLink, in two places.
#[test]
fn custom_all_reduce_is_off_without_nvlink() {
    let answer = ask("0.5.9", &STORY, TP, &[]);
    let note = answer.notes.iter().find(|n| n.contains("custom all-reduce is disabled")).expect("a note");
    assert!(note.contains("two edits"), "{note}");
}

/// Row 6: a bare NCCL_ALGO=Tree leaves the other collectives without an algorithm.
#[test]
fn tree_for_everything_fails_at_the_first_all_gather() {
    let answer = ask("0.5.9", &STORY, TP, &[("NCCL_ALGO", "Tree")]);
    assert_eq!((answer.starts, answer.phase), (Starts::No, Phase::GraphCapture));
    assert_eq!(answer.invariant, "nccl_algorithm_covers_collectives");
    assert!(answer.fixes.iter().any(|f| f.text == "NCCL_ALGO=allreduce:tree" && f.verified));
    assert_eq!(ask("0.5.9", &STORY, TP, &[("NCCL_ALGO", "allreduce:tree")]).starts, Starts::Yes);
}

/// Row 7: symmetric memory looks SM120 up in a table that lacks it, until a later release.
#[test]
fn symmetric_memory_has_no_entry_for_sm120() {
    let command = format!("{TP} --enable-torch-symm-mem");
    let answer = ask("0.5.9", &STORY, &command, &[]);
    assert_eq!((answer.phase, answer.kind), (Phase::Init, Kind::UnsupportedArch));
    assert_eq!(ask("0.5.23", &STORY, &command, &[]).starts, Starts::Yes);
    assert_eq!(ask("0.5.9", &B200, &command, &[]).starts, Starts::Yes);
}

/// Row 10: the all-to-all backend raises the number of collectives, and pads a decode step of one stream.
#[test]
fn all_to_all_raises_the_number_of_collectives() {
    let answer = ask("0.5.9", &STORY, &at("0.92"), &[]);
    assert_eq!(answer.numbers["collectives_per_forward"], 242.0);
    assert_eq!(answer.numbers["allreduce_count_per_step"], 122.0);
    assert_eq!(answer.numbers["padded_tokens"], 8.0);
}

/// Row 11: no code reads the flag.
#[test]
fn continuous_decode_steps_have_no_reader() {
    let answer = ask("0.5.9", &STORY, &format!("{TP} --num-continuous-decode-steps 4"), &[]);
    assert_eq!(answer.starts, Starts::Yes);
    assert!(answer.notes.iter().any(|n| n.contains("--num-continuous-decode-steps") && n.contains("no code")), "{:?}", answer.notes);
}

/// Row 12: what an architecture gets differs by version, not by toolkit alone.
#[test]
fn backends_follow_architecture_and_version() {
    let sm120 = ask("0.5.9", &STORY, TP, &[]);
    assert_eq!((sm120.settings.attention_backend.as_str(), sm120.settings.moe_backend.as_str()), ("triton", "marlin"));
    let sm100 = ask("0.5.9", &B200, TP, &[]);
    assert_eq!(sm100.settings.attention_backend, "trtllm_mla");
}

/// EAGLE-3 on the wrapper class: its hooks came a release later.
#[test]
fn eagle3_needs_hooks_that_the_wrapper_lacks() {
    let command = format!("{TP} --speculative-algorithm EAGLE3 --speculative-draft-model-path x/draft");
    let answer = ask("0.5.9", &STORY, &command, &[]);
    assert_eq!((answer.starts, answer.phase), (Starts::No, Phase::GraphCapture), "{}", answer.message);
    assert!(answer.message.contains("set_eagle3_layers_to_capture"), "{}", answer.message);
    assert_ne!(ask("0.5.10", &STORY, &command, &[]).invariant, answer.invariant);
}
