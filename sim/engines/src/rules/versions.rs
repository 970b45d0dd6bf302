//! What a version has not learned yet, and what a checkpoint and the arguments say differently.

use super::{Launch, Rule};
use crate::finding::{Finding, Fix, Kind, Outcome, Phase};
use crate::question::Engine;
use crate::version::Range;

const VLLM: Option<Engine> = Some(Engine::Vllm);

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "model_class_is_known",
        engine: None,
        range: Range::ALL,
        source: "model classes in the published packages of SGLang 0.4.1 to 0.5.23 and vLLM 0.6.6 to 0.33.0; where a patch release may have brought one, the minor release before it is assumed",
        check: class,
    },
    Rule {
        name: "build_has_architecture",
        engine: None,
        range: Range::ALL,
        source: "CUDA architectures of the published wheels and images; the first and last release are assumed from release notes",
        check: build,
    },
    Rule {
        name: "quantization_agrees_with_checkpoint",
        engine: None,
        range: Range::ALL,
        source: "_verify_quantization: the argument must name the checkpoint's method or one that converts it",
        check: quantization,
    },
    Rule {
        name: "cache_type_fits_checkpoint",
        engine: VLLM,
        range: Range::ALL,
        source: "vllm/attention/layer.py: fp8_e5m2 caches are not supported with FP8 checkpoints",
        check: e5m2,
    },
    Rule {
        name: "fp4_cache_supports_architecture",
        engine: VLLM,
        range: Range::since("0.21.0"),
        source: "vLLM issue 43562: trtllm-gen FP4 attention exists for SM100 and SM103; pull request 43669 refuses others at start, its release is assumed (0.23.0)",
        check: fp4_cache,
    },
    Rule {
        name: "layer_partition_has_a_number_a_stage",
        engine: VLLM,
        range: Range::ALL,
        source: "vllm/distributed/utils.py get_pp_indices: VLLM_PP_LAYER_PARTITION",
        check: partition,
    },
];

/// First release that knows a model class: (first letters of the class, SGLang, vLLM); empty: it runs through another way (transformers' own code).
const CLASSES: &[(&str, &str, &str)] = &[
    ("DeepseekV4", "0.5.11", "0.20.0"),
    ("KimiK3", "0.5.17", "0.27.0"),
    ("KimiK25", "0.5.9", "0.15.0"),
    ("GlmMoeDsa", "0.5.9", "0.16.0"),
    ("Qwen3_5", "0.5.8", "0.16.0"),
    ("Qwen4Exp", "0.5.20", "0.29.0"),
    ("DeepseekV32", "0.5.3", "0.11.0"),
    ("MiniMaxM3", "0.5.16", "0.24.0"),
    ("MiniMaxM2", "0.5.4", "0.11.1"),
    ("MiMoV2", "0.5.7", "0.14.0"),
    ("Step3p5", "0.5.9", "0.16.0"),
    ("Step3VL", "0.4.10", "0.10.1"),
    ("Gemma4", "0.5.11", "0.19.0"),
    ("MistralLarge3", "0.5.6", "0.12.0"),
    ("LongcatFlash", "0.5.2", "0.11.0"),
    ("BailingMoeV2", "0.5.3", "0.11.0"),
    ("Ernie4_5_Moe", "0.5.1", "0.9.2"),
    ("Afmoe", "0.5.8", "0.11.1"),
    ("NemotronH", "0.5.3", "0.9.1"),
    ("Qwen3OmniMoe", "0.5.4", "0.11.1"),
    ("Qwen3Next", "0.5.2", "0.10.2"),
    ("Qwen3VLMoe", "0.5.3", "0.11.0"),
    ("GptOss", "0.5.0", "0.10.0"),
    ("Glm4MoeLite", "0.5.8", "0.15.0"),
    ("Glm4vMoe", "0.5.1", "0.10.1"),
    ("Glm4Moe", "0.4.9", "0.10.0"),
    ("HunYuanMoEV1", "0.4.9", "0.9.2"),
    ("Dots1", "", "0.9.2"),
    ("Qwen3Moe", "0.4.6", "0.8.4"),
    ("Llama4", "0.4.5", "0.8.3"),
    ("DeepseekV3", "0.4.1", "0.6.6"),
];

/// Whether the version is a plain release: images and forks carry what their number does not say.
fn plain_release(launch: &Launch<'_>) -> bool {
    let v = &launch.settings.version;
    v.release.is_some() && !["image", "fork", "custom", "build", "patched", "dev", "main", "nightly", "pre"].iter().any(|w| v.says(w))
}

fn class(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(class) = launch.model.class.as_deref().filter(|_| plain_release(launch)) else { return Vec::new() };
    let Some((_, sglang, vllm)) = CLASSES.iter().find(|(prefix, ..)| class.starts_with(prefix)) else { return Vec::new() };
    let since = if launch.settings.engine == Engine::Sglang { sglang } else { vllm };
    if since.is_empty() || launch.settings.version.at_least(since) {
        return Vec::new();
    }
    let title = launch.settings.engine.title();
    let message = format!("{title} {} does not know the model class {class}: it came with {since}", launch.settings.version.text);
    vec![
        Finding::fails(Phase::Parse, Kind::FlagConflict, "model_class_is_known", message)
            .fix(Fix::version(since, "the first that knows the class")),
    ]
}

/// Architectures and the first release whose published builds have kernels for them.
const BUILDS: &[(Engine, u32, &str)] = &[
    (Engine::Vllm, 100, "0.8.5"),
    (Engine::Vllm, 120, "0.9.0"),
    (Engine::Vllm, 103, "0.10.2"),
    (Engine::Vllm, 121, "0.10.2"),
    (Engine::Sglang, 100, "0.4.6"),
    (Engine::Sglang, 120, "0.4.8"),
    (Engine::Sglang, 103, "0.5.3"),
    (Engine::Sglang, 121, "0.5.3"),
];

/// The first release whose published builds lack kernels for architectures below one: (engine, architecture, release). PyTorch 2.8's builds for CUDA 12.8
/// and later leave Volta out; SGLang's kernels begin at SM75.
const DROPPED: &[(Engine, u32, &str)] = &[(Engine::Vllm, 75, "0.10.2"), (Engine::Sglang, 75, "0.4.0")];

fn dropped(launch: &Launch<'_>) -> Option<Finding> {
    let holds = |(engine, below, since): &&(Engine, u32, &str)| {
        *engine == launch.settings.engine && (1..*below).contains(&launch.sm()) && launch.settings.version.at_least(since)
    };
    let (engine, below, since) = DROPPED.iter().find(holds).filter(|_| plain_release(launch))?;
    let message = format!(
        "the published builds of {} since {since} have no kernels for SM{} (no kernel image is available): they begin at SM{below}",
        engine.title(),
        launch.sm()
    );
    let finding = Finding::fails(Phase::Load, Kind::UnsupportedArch, "build_has_architecture", message);
    Some(finding.fix(Fix::words("a build of your own, or a fork, for this architecture")))
}

fn build(launch: &Launch<'_>) -> Vec<Finding> {
    if let Some(finding) = dropped(launch) {
        return vec![finding];
    }
    let row = BUILDS.iter().find(|(engine, sm, _)| *engine == launch.settings.engine && *sm == launch.sm());
    let Some((.., since)) = row.filter(|(.., since)| plain_release(launch) && !launch.settings.version.at_least(since)) else {
        return Vec::new();
    };
    let message = format!(
        "the published build of {} {} has no kernels for SM{} (no kernel image is available): {since} is the first that has",
        launch.settings.engine.title(),
        launch.settings.version.text,
        launch.sm()
    );
    vec![
        Finding::fails(Phase::Load, Kind::UnsupportedArch, "build_has_architecture", message)
            .fix(Fix::version(since, "its build has kernels for this GPU")),
    ]
}

/// Methods of a checkpoint and those that an argument may name for it.
const CONVERTS: &[(&str, &[&str])] = &[
    ("fp8", &["fp8", "w4afp8", "deepspeedfp", "humming", "mxfp8"]),
    ("awq", &["awq", "awq_marlin", "moe_wna16", "marlin", "cpu_awq", "humming"]),
    ("gptq", &["gptq", "gptq_marlin", "gptq_bitblas", "moe_wna16", "marlin", "humming"]),
    ("mxfp4", &["mxfp4", "quark", "humming"]),
    ("modelopt_fp4", &["modelopt", "modelopt_fp4", "modelopt_mixed", "petit_nvfp4", "quark_mxfp4", "humming"]),
];

fn quantization(launch: &Launch<'_>) -> Vec<Finding> {
    let (Some(given), Some(checkpoint)) = (launch.settings.flag("--quantization"), launch.model.weights.checkpoint_method.as_deref())
    else {
        return Vec::new();
    };
    let Some((_, accepted)) = CONVERTS.iter().find(|(method, _)| *method == checkpoint) else { return Vec::new() };
    // Only a method that some checkpoint is stored in contradicts; loaders and exporters have further names.
    let contradicts = CONVERTS.iter().any(|(_, all)| all[..2.min(all.len())].contains(&given)) && !accepted.contains(&given);
    if !contradicts || given.starts_with('<') {
        return Vec::new();
    }
    let message = format!(
        "--quantization {given} does not match the checkpoint, which is stored as {checkpoint} (accepted: {})",
        accepted.join(", ")
    );
    let finding =
        Finding::fails(Phase::Parse, Kind::FlagConflict, "quantization_agrees_with_checkpoint", message).argument("--quantization");
    vec![finding.fix(Fix::remove("--quantization")).fix(Fix::set("--quantization", checkpoint))]
}

fn e5m2(launch: &Launch<'_>) -> Vec<Finding> {
    let fp8 = launch.settings.quantization.as_deref() == Some("fp8") && !launch.settings.online_quantization;
    if launch.settings.kv_dtype != "fp8_e5m2" || !fp8 {
        return Vec::new();
    }
    let message = "--kv-cache-dtype fp8_e5m2 is not supported with an FP8 checkpoint: its scales are for e4m3".to_owned();
    let finding = Finding::fails(Phase::Load, Kind::FlagConflict, "cache_type_fits_checkpoint", message).argument("--kv-cache-dtype");
    vec![finding.fix(Fix::set("--kv-cache-dtype", "fp8_e4m3")).fix(Fix::remove("--kv-cache-dtype"))]
}

fn fp4_cache(launch: &Launch<'_>) -> Vec<Finding> {
    let sm = launch.sm();
    if launch.settings.kv_dtype != "nvfp4" || sm == 0 || matches!(sm, 100 | 103) {
        return Vec::new();
    }
    let refused = launch.settings.version.at_least("0.23.0") || sm < 100;
    let when = if refused { "refused at start" } else { "accepted, and the engine dies of the first request" };
    let message = format!("--kv-cache-dtype nvfp4 has attention kernels for SM100 and SM103 only; on SM{sm} it is {when}");
    let phase = if refused { Phase::Init } else { Phase::Serve };
    let finding = Finding::fails(phase, Kind::UnsupportedArch, "fp4_cache_supports_architecture", message)
        .outcome(if refused { Outcome::Fails } else { Outcome::ServeFails })
        .argument("--kv-cache-dtype");
    vec![finding.fix(Fix::set("--kv-cache-dtype", "fp8")).fix(Fix::remove("--kv-cache-dtype"))]
}

fn partition(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(text) = launch.settings.env("VLLM_PP_LAYER_PARTITION") else { return Vec::new() };
    let numbers: Vec<u64> = text.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let (stages, sum) = (numbers.len() as u64, numbers.iter().fold(0u64, |a, b| a.saturating_add(*b)));
    let layers = launch.model.layers.filter(|_| launch.model.spec.is_some() && !launch.model.source.starts_with("taken as"));
    let wrong_stages = stages != u64::from(launch.settings.pp);
    if !wrong_stages && layers.is_none_or(|l| l == sum) {
        return Vec::new();
    }
    let message = if wrong_stages {
        format!("VLLM_PP_LAYER_PARTITION={text} names {stages} stages, and --pipeline-parallel-size is {}", launch.settings.pp)
    } else {
        format!("VLLM_PP_LAYER_PARTITION={text} adds up to {sum} layers, and the model has {}", layers.unwrap_or(0))
    };
    let finding = Finding::fails(Phase::Load, Kind::FlagConflict, "layer_partition_has_a_number_a_stage", message);
    vec![finding.outcome(Outcome::Fails).fix(Fix::unset("VLLM_PP_LAYER_PARTITION"))]
}
