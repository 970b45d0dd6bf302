//! Kernels that an architecture, a toolkit or a scheme lacks.

use super::{Launch, Rule};
use crate::backends::{self, Op};
use crate::finding::{Finding, Fix, Kind, Outcome, Phase};
use crate::model::AttentionKind;
use crate::question::Engine;
use crate::version::Range;
use serde_json::Value;

const SGL: Option<Engine> = Some(Engine::Sglang);
const VLLM: Option<Engine> = Some(Engine::Vllm);

pub(super) const RULES: &[Rule] = &[
    Rule { name: "backend_has_kernels", engine: None, range: Range::ALL, source: "", check: backend },
    Rule {
        name: "quantization_supports_architecture",
        engine: None,
        range: Range::ALL,
        source: "get_min_capability of the quantization methods (0.5.9, 0.16.0); releases at which a minimum changed are assumed from release notes",
        check: minimum,
    },
    Rule {
        name: "attention_sinks_need_a_backend",
        engine: VLLM,
        range: Range::between("0.10.0", "0.10.2"),
        source: "vllm/v1/attention/backends/flash_attn.py: sinks are supported in FlashAttention 3 only; the first and last release are assumed from reports",
        check: sinks,
    },
    Rule {
        name: "fused_all_reduce_has_kernels",
        engine: SGL,
        range: Range::between("0.5.5", "20260104"),
        source: "sglang model adjustments before pull request 16283; flashinfer/jit/comm.py: majors 9 and 10",
        check: fused_all_reduce,
    },
    Rule {
        name: "fused_all_reduce_is_skipped",
        engine: SGL,
        range: Range::since("20260104"),
        source: "sglang/srt/layers/communicator.py apply_flashinfer_allreduce_fusion (pull request 16283); flashinfer/jit/comm.py",
        check: fused_all_reduce_skipped,
    },
    Rule {
        name: "symmetric_memory_table_has_architecture",
        engine: SGL,
        range: Range::until("20260520"),
        source: "sglang/srt/distributed/device_communicators/torch_symm_mem.py: a table keyed by major 9 and 10; pull request 24548",
        check: symmetric_memory,
    },
    Rule {
        name: "sparse_attention_has_kernels",
        engine: SGL,
        range: Range::until("20260628"),
        source: "DeepGEMM's paged MQA logits are built for SM90 and SM100; pull request 29580 adds SM120",
        check: sparse_indexer,
    },
    Rule {
        name: "sparse_attention_has_kernels",
        engine: None,
        range: Range::ALL,
        source: "DeepGEMM and FlashMLA are built for SM90 and SM100; DeepSeek sparse attention needs both",
        check: sparse_old,
    },
    Rule {
        name: "draft_trees_need_a_backend",
        engine: SGL,
        range: Range::between("0.4.5", "0.4.6"),
        source: "sglang/srt/layers/attention/flashattention_backend.py (0.4.5): topk must be 1 for FlashAttentionBackend; 0.4.6 takes trees",
        check: draft_trees,
    },
    Rule {
        name: "mxfp8_experts_have_kernels",
        engine: SGL,
        range: Range::ALL,
        source: "report of 0.5.13 with MiniMax-M3-MXFP8 on SM120 (AssertionError: expected sm90 or sm100); sglang/srt/arg_groups/choices.py (0.5.23) names cutlass, deep_gemm and TensorRT-LLM runners, all of SM90 and SM100; that other releases are the same is assumed",
        check: mxfp8,
    },
    Rule {
        name: "trtllm_sparse_attention_has_kernels",
        engine: SGL,
        range: Range::ALL,
        source: "TensorRT-LLM's generated FMHA kernels are built for SM100 and SM103",
        check: trtllm_sparse,
    },
    Rule {
        name: "fp4_indexer_has_kernels",
        engine: VLLM,
        range: Range::ALL,
        source: "vllm attention config: use_fp4_indexer_cache needs SM10x",
        check: fp4_indexer,
    },
    Rule {
        name: "nvfp4_grouped_gemm_fits_shared_memory",
        engine: VLLM,
        range: Range::until("0.22.0"),
        source: "CUTLASS grouped GEMM: stages are counted for 227 KiB of shared memory, SM120 has 99 KiB (101376 B) a block; the last release is assumed",
        check: nvfp4_shared_memory,
    },
    Rule {
        name: "nvfp4_gemm_has_kernels",
        engine: VLLM,
        range: Range::until("0.10.1"),
        source: "reports of 0.9.2 on SM120: the FP4 product is not compiled for it; that 0.10.1 is the first with kernels of SM120 is assumed from release notes",
        check: nvfp4_dense,
    },
    Rule {
        name: "sparse_attention_is_not_compiled",
        engine: SGL,
        range: Range::between("0.5.3", "0.5.9"),
        source: "two reports, of V3.2-Exp on 0.5.3 and of V3.2 on 0.5.6: capture fails with --enable-torch-compile and not without; the release that ended it is assumed",
        check: compiled_sparse,
    },
    Rule {
        name: "nvfp4_gemm_initializes_on_sm121",
        engine: VLLM,
        range: Range::until("0.17.0"),
        source: "reports: FP4 CUTLASS kernels do not initialize on SM121; ptxas 12.8 does not know sm_121a; the last release is assumed",
        check: nvfp4_sm121,
    },
    Rule {
        name: "moe_backend_supports_scheme",
        engine: VLLM,
        range: Range::since("0.18.0"),
        source: "vllm fused_moe oracle: a backend lists the weight and activation schemes it takes; the first release is assumed",
        check: scheme,
    },
    Rule {
        name: "runner_supports_router_weight_on_input",
        engine: SGL,
        range: Range::ALL,
        source: "sglang flashinfer_cutlass runner: apply_router_weight_on_input is asserted to be off",
        check: router_weight,
    },
    Rule {
        name: "release_is_built_for_architecture",
        engine: VLLM,
        range: Range::until("0.9.0"),
        source: "vLLM's wheels before 0.9.0 are built with CUDA 12.4, whose compiler ends at SM90",
        check: wheel,
    },
    Rule {
        name: "release_is_built_for_architecture",
        engine: SGL,
        range: Range::until("0.4.6"),
        source: "PyTorch 2.5 and sgl-kernel wheels before 0.4.6 are built with CUDA 12.4, whose compiler ends at SM90",
        check: wheel,
    },
];

fn unsupported(phase: Phase, name: &str, message: String) -> Finding {
    Finding::fails(phase, Kind::UnsupportedArch, name, message)
}

/// Published packages of a release; whoever builds one himself chooses the architectures.
fn wheel(launch: &Launch<'_>) -> Vec<Finding> {
    let version = &launch.settings.version;
    let own = ["build", "image", "nightly", "main", "fork", "custom", "source", "dev"].iter().any(|word| version.says(word));
    if version.release.is_none() || own || launch.sm() < 100 {
        return Vec::new();
    }
    let message = format!(
        "the packages of {} {} hold no kernels for SM{}: the first one launched ends in \"no kernel image is available for execution on the device\"",
        launch.settings.engine.title(),
        version.text,
        launch.sm()
    );
    let newer = if launch.settings.engine == Engine::Vllm { "0.9.0" } else { "0.4.10" };
    vec![unsupported(Phase::Init, "release_is_built_for_architecture", message).fix(Fix::version(newer, "built with CUDA 12.8"))]
}

fn backend(launch: &Launch<'_>) -> Vec<Finding> {
    let engine = launch.settings.engine;
    let ops = [
        (Op::Moe, launch.settings.moe_backend.as_str(), if engine == Engine::Sglang { "--moe-runner-backend" } else { "--moe-backend" }),
        (Op::Attention, launch.settings.attention_backend.as_str(), "--attention-backend"),
    ];
    let mut out = Vec::new();
    for (op, name, flag) in ops {
        if op == Op::Moe && !launch.model.moe {
            continue;
        }
        let rows = backends::kernel(engine, op, name).filter(|k| k.range.contains(&launch.settings.version));
        let missing = rows.filter(|k| k.scheme.is_empty() || launch.expert_scheme(&[k.scheme])).find(|k| !k.has(launch.sm()));
        let Some(kernel) = missing else { continue };
        let by = launch.settings.writes.iter().rev().find(|w| w.field == if op == Op::Moe { "moe_backend" } else { "attention_backend" });
        let chosen = if launch.settings.has(flag) {
            format!("{flag} {name}")
        } else {
            format!("the backend {name}, chosen by default ({}),", by.map_or("no flag asks for it", |w| w.by.as_str()))
        };
        let message =
            format!("{chosen} has kernels for {} only, and this is SM{}: {}", kernel.architectures(), launch.sm(), kernel.otherwise);
        let mut finding = unsupported(kernel.phase, "backend_has_kernels", message).source(kernel.source).argument(flag);
        if let Some((first, _)) = kernel.sms.first() {
            finding = finding.number("required_sm", f64::from(*first));
        }
        if launch.settings.has(flag) {
            finding = finding.fix(Fix::remove(flag));
        }
        // Dense attention backends do not run sparse attention.
        if op == Op::Attention && indexer(launch) {
            let newer = engine == Engine::Vllm && launch.sm() / 10 == 12 && !launch.settings.version.at_least("0.24.0");
            out.push(if newer { finding.fix(Fix::version("0.24.0", "sparse attention has kernels for SM12x")) } else { finding });
            continue;
        }
        let instead = if kernel.instead == "auto" && !launch.settings.has(flag) { "marlin" } else { kernel.instead };
        out.push(finding.fix(Fix::set(flag, instead)));
    }
    out
}

/// Lowest architecture of a quantization method: (engine, method, versions, capability).
const MINIMUM: &[(Engine, &str, Range, u32)] = &[
    (Engine::Sglang, "modelopt_fp4", Range::until("0.5.10"), 100),
    (Engine::Sglang, "nvfp4", Range::until("0.5.10"), 100),
    (Engine::Sglang, "modelopt_fp8", Range::ALL, 89),
    (Engine::Sglang, "w8a8_fp8", Range::ALL, 89),
    (Engine::Sglang, "fp8", Range::ALL, 80),
    (Engine::Sglang, "w4afp8", Range::ALL, 90),
    (Engine::Sglang, "awq_marlin", Range::ALL, 80),
    (Engine::Sglang, "gptq_marlin", Range::ALL, 80),
    (Engine::Sglang, "w8a8_int8", Range::ALL, 75),
    (Engine::Sglang, "awq", Range::ALL, 75),
    (Engine::Vllm, "modelopt_fp4", Range::until("0.10.0"), 100),
    (Engine::Vllm, "nvfp4", Range::until("0.9.2"), 100),
    (Engine::Vllm, "mxfp4", Range::until("0.10.1"), 90),
    (Engine::Vllm, "mxfp4", Range::since("0.10.1"), 80),
    (Engine::Vllm, "modelopt", Range::ALL, 89),
    (Engine::Vllm, "fp8", Range::ALL, 75),
    (Engine::Vllm, "awq", Range::ALL, 75),
    (Engine::Vllm, "awq_marlin", Range::ALL, 75),
    (Engine::Vllm, "gptq_marlin", Range::ALL, 75),
];

fn minimum(launch: &Launch<'_>) -> Vec<Finding> {
    let (engine, sm) = (launch.settings.engine, launch.sm());
    if sm == 0 {
        return Vec::new();
    }
    let mut out = Vec::new();
    let fork = ["fork", "custom"].iter().any(|w| launch.settings.version.says(w));
    let row = MINIMUM
        .iter()
        .find(|(e, method, range, low)| *e == engine && launch.scheme(&[method]) && range.contains(&launch.settings.version) && sm < *low);
    if let Some((_, method, _, low)) = row.filter(|_| !fork) {
        let message = format!("quantization {method} needs SM{low} or later in this version, and this is SM{sm}");
        out.push(
            unsupported(Phase::Load, "quantization_supports_architecture", message)
                .number("required_sm", f64::from(*low))
                .fix(Fix::words("a checkpoint in another format")),
        );
    }
    let plain_bf16 = launch.settings.dtype == "bfloat16" || (launch.settings.dtype == "auto" && launch.scheme(&["bf16"]));
    if sm < 80 && plain_bf16 && launch.settings.dtype == "bfloat16" && !fork {
        let message = format!("bfloat16 needs SM80 or later, and this is SM{sm}");
        out.push(
            unsupported(Phase::Load, "quantization_supports_architecture", message).argument("--dtype").fix(Fix::set("--dtype", "float16")),
        );
    }
    out
}

fn sinks(launch: &Launch<'_>) -> Vec<Finding> {
    let backend = launch.settings.attention_backend.to_uppercase();
    if !launch.model.sinks || launch.sm() / 10 == 9 || launch.sm() / 10 == 10 || launch.sm() == 0 || backend.contains("TRITON") {
        return Vec::new();
    }
    let message = format!(
        "attention sinks need FlashAttention 3 (SM90) on the default backend {backend}, and SM{} gets FlashAttention 2: select the Triton attention backend",
        launch.sm()
    );
    vec![unsupported(Phase::Load, "attention_sinks_need_a_backend", message).fix(Fix::env("VLLM_ATTENTION_BACKEND", "TRITON_ATTN_VLLM_V1"))]
}

/// Classes for which SGLang switches the fused all-reduce on by itself.
const FUSES: &[&str] = &["DeepseekV3", "GptOss", "Glm4Moe", "Qwen3Moe", "KimiK25"];

fn fuses(launch: &Launch<'_>) -> bool {
    let auto = launch.class_is(FUSES) || (launch.model.class.is_none() && launch.model.moe);
    let alone = launch.settings.nodes <= 1 && launch.settings.a2a == "none" && launch.settings.tp > 1 && !launch.settings.dp_attention;
    let off = launch.on("--enforce-disable-flashinfer-allreduce-fusion");
    alone && !off && (auto || launch.on("--enable-flashinfer-allreduce-fusion"))
}

fn fused_all_reduce(launch: &Launch<'_>) -> Vec<Finding> {
    // The predicate was "Blackwell", which SM120 satisfies; the module is built for majors 9 and 10.
    let default_on = launch.class_is(FUSES) && matches!(launch.sm() / 10, 10..=12);
    let asked = launch.on("--enable-flashinfer-allreduce-fusion");
    if !fuses(launch) || !(default_on || asked) || matches!(launch.sm() / 10, 9 | 10) || launch.sm() == 0 {
        return Vec::new();
    }
    let who = if asked {
        "--enable-flashinfer-allreduce-fusion asks for it"
    } else {
        "it is an implicit default: no flag in the command asks for it, and the GPU counts as Blackwell"
    };
    let message =
        format!("graph capture compiles FlashInfer's fused all-reduce for majors [9, 10] only, and SM{} is neither ({who})", launch.sm());
    let phase = if launch.settings.graphs.enabled { Phase::GraphCapture } else { Phase::Warmup };
    let finding = unsupported(phase, "fused_all_reduce_has_kernels", message).because("flashinfer_majors == [9, 10]");
    let finding = if asked {
        finding.argument("--enable-flashinfer-allreduce-fusion").fix(Fix::remove("--enable-flashinfer-allreduce-fusion"))
    } else {
        finding
    };
    vec![
        finding
            .fix(Fix::switch("--enforce-disable-flashinfer-allreduce-fusion"))
            .fix(Fix::version("0.5.8", "with pull request 16283 it is on by default on SM90 and SM100 only")),
    ]
}

fn fused_all_reduce_skipped(launch: &Launch<'_>) -> Vec<Finding> {
    let asked = launch.on("--enable-flashinfer-allreduce-fusion");
    if !asked || matches!(launch.sm() / 10, 9 | 10) || launch.sm() == 0 {
        return Vec::new();
    }
    let message = format!(
        "--enable-flashinfer-allreduce-fusion has no effect on SM{}: SGLang's predicate (SM90 or SM100) skips it silently; behind it FlashInfer's own \
         build list (majors 9 and 10) would refuse with a RuntimeError",
        launch.sm()
    );
    vec![
        unsupported(Phase::GraphCapture, "fused_all_reduce_is_skipped", message)
            .outcome(Outcome::Note)
            .argument("--enable-flashinfer-allreduce-fusion"),
    ]
}

fn symmetric_memory(launch: &Launch<'_>) -> Vec<Finding> {
    if !launch.on("--enable-torch-symm-mem") || launch.settings.tp < 2 || launch.sm() < 110 {
        return Vec::new();
    }
    let message = format!(
        "--enable-torch-symm-mem looks the architecture up in a table of majors 9 and 10, and {} is not in it: KeyError while the groups are created, before any weight is read",
        launch.sm() / 10
    );
    let finding = unsupported(Phase::Init, "symmetric_memory_table_has_architecture", message).argument("--enable-torch-symm-mem");
    vec![finding.fix(Fix::remove("--enable-torch-symm-mem")).because("vLLM and later SGLang disable it with a warning instead")]
}

/// Whether attention selects tokens with an indexer that needs DeepGEMM's kernels.
fn indexer(launch: &Launch<'_>) -> bool {
    launch.model.attention == AttentionKind::SparseMla && !launch.class_is(&["DeepseekV4"])
}

fn sparse_indexer(launch: &Launch<'_>) -> Vec<Finding> {
    if !indexer(launch) || launch.sm() < 110 || trtllm_asked(launch) || dense_backend_asked(launch) {
        return Vec::new();
    }
    let message = format!(
        "the indexer of sparse attention calls DeepGEMM's paged MQA logits, which are built for SM90 and SM100 only: weights and KV pool are set up, then the first pass \
         fails on SM{}",
        launch.sm()
    );
    let finding = unsupported(Phase::Warmup, "sparse_attention_has_kernels", message);
    vec![finding.fix(Fix::version("20260628", "pull request 29580 brings kernels for SM120"))]
}

/// SGLang takes another attention backend than its sparse one where it is asked for: such a one gives the indexer no metadata, which is then left out,
/// and attention is over all tokens (`AttentionBackend.get_indexer_metadata`).
fn dense_backend_asked(launch: &Launch<'_>) -> bool {
    let asked = launch.settings.has("--attention-backend") || launch.settings.has("--decode-attention-backend");
    launch.settings.engine == Engine::Sglang && asked && !matches!(launch.settings.attention_backend.as_str(), "nsa" | "dsa")
}

fn draft_trees(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(topk) = launch.settings.speculative.as_ref().map(|s| s.topk).filter(|k| *k > 1) else { return Vec::new() };
    if launch.settings.attention_backend != "fa3" {
        return Vec::new();
    }
    let message =
        format!("attention backend fa3 verifies chains of drafts only in this version, and --speculative-eagle-topk {topk} asks for trees");
    let finding =
        Finding::fails(Phase::Init, Kind::FlagConflict, "draft_trees_need_a_backend", message).argument("--speculative-eagle-topk");
    vec![finding.fix(Fix::set("--speculative-eagle-topk", 1)).fix(Fix::set("--attention-backend", "triton"))]
}

fn mxfp8(launch: &Launch<'_>) -> Vec<Finding> {
    let sm = launch.sm();
    if !launch.model.moe || !launch.expert_scheme(&["mxfp8"]) || sm == 0 || (90..=103).contains(&sm) {
        return Vec::new();
    }
    let message = format!("the MXFP8 expert kernels of SGLang are built for SM90 and SM100, and this is SM{sm}");
    let finding = unsupported(Phase::Load, "mxfp8_experts_have_kernels", message).number("required_sm", 90.0);
    vec![finding.fix(Fix::words("a checkpoint in another format"))]
}

fn sparse_old(launch: &Launch<'_>) -> Vec<Finding> {
    if !indexer(launch) || launch.sm() == 0 || launch.sm() >= 90 || dense_backend_asked(launch) {
        return Vec::new();
    }
    let message =
        format!("DeepSeek sparse attention needs DeepGEMM and FlashMLA, which are built for SM90 and SM100, and this is SM{}", launch.sm());
    let phase = if launch.settings.engine == Engine::Vllm { Phase::Init } else { Phase::Warmup };
    vec![unsupported(phase, "sparse_attention_has_kernels", message).number("required_sm", 90.0).fix(Fix::words("a GPU of SM90 or SM100"))]
}

fn trtllm_asked(launch: &Launch<'_>) -> bool {
    ["--nsa-prefill-backend", "--nsa-decode-backend"].iter().any(|f| launch.settings.flag(f).is_some_and(|v| v.contains("trtllm")))
}

fn trtllm_sparse(launch: &Launch<'_>) -> Vec<Finding> {
    if !trtllm_asked(launch) || launch.sm() == 0 || launch.sm() / 10 == 10 {
        return Vec::new();
    }
    let message = format!(
        "TensorRT-LLM's sparse attention kernels (TllmGenFmhaRunner) are built for SM100 and SM103 only, and this is SM{}: leave the DSA backends at their default",
        launch.sm()
    );
    let mut finding = unsupported(Phase::Warmup, "trtllm_sparse_attention_has_kernels", message);
    let given: Vec<&str> = launch
        .command
        .given
        .iter()
        .filter(|g| g.value.as_deref().is_some_and(|v| v.contains("trtllm")))
        .map(|g| g.written.as_str())
        .collect();
    for flag in &given {
        finding = finding.argument(*flag);
    }
    let fix = given
        .iter()
        .skip(1)
        .fold(Fix::remove(given.first().copied().unwrap_or("--dsa-decode-backend")), |fix, flag| fix.and(Fix::remove(flag)));
    vec![finding.fix(fix)]
}

fn nvfp4_dense(launch: &Launch<'_>) -> Vec<Finding> {
    if launch.sm() / 10 != 12 || !launch.scheme(&["nvfp4", "modelopt_fp4"]) {
        return Vec::new();
    }
    let message = format!(
        "the NVFP4 products of this version are compiled for SM100, and this is SM{}: the profile run ends at the first",
        launch.sm()
    );
    vec![unsupported(Phase::Warmup, "nvfp4_gemm_has_kernels", message).fix(Fix::version("0.12.0", "it has kernels for SM120"))]
}

fn compiled_sparse(launch: &Launch<'_>) -> Vec<Finding> {
    if !launch.on("--enable-torch-compile") || !indexer(launch) || dense_backend_asked(launch) || !launch.settings.graphs.enabled {
        return Vec::new();
    }
    let message = "--enable-torch-compile compiles the decode step before it is captured, and sparse attention cannot be compiled in this version: capture fails";
    let finding = Finding::fails(Phase::GraphCapture, Kind::FlagConflict, "sparse_attention_is_not_compiled", message)
        .argument("--enable-torch-compile");
    vec![finding.fix(Fix::remove("--enable-torch-compile"))]
}

fn fp4_indexer(launch: &Launch<'_>) -> Vec<Finding> {
    let config: Option<Value> = launch.settings.flag("--attention-config").and_then(|t| serde_json::from_str(t).ok());
    let on = config.as_ref().and_then(|v| v.get("use_fp4_indexer_cache")).and_then(Value::as_bool) == Some(true);
    if !on || launch.sm() == 0 || launch.sm() / 10 == 10 {
        return Vec::new();
    }
    let message = format!(
        "--attention_config.use_fp4_indexer_cache is for data-centre Blackwell (SM10x) only; on SM{} the worker refuses it",
        launch.sm()
    );
    vec![
        unsupported(Phase::Load, "fp4_indexer_has_kernels", message)
            .argument("--attention-config")
            .fix(Fix { text: "drop use_fp4_indexer_cache".to_owned(), ..Fix::remove("--attention-config") }),
    ]
}

/// Whether experts in NVFP4 go through CUTLASS tensor-core kernels.
fn nvfp4_cutlass(launch: &Launch<'_>) -> bool {
    launch.model.moe && launch.scheme(&["nvfp4"]) && !launch.model.weights.weight_only && launch.settings.moe_backend.contains("cutlass")
}

fn nvfp4_shared_memory(launch: &Launch<'_>) -> Vec<Finding> {
    let family = launch.settings.version.says("120f") || launch.hardware.cuda.is_some_and(|c| c >= (13, 0));
    if !nvfp4_cutlass(launch) || launch.sm() != 120 || family || launch.hardware.cuda.is_none() {
        return Vec::new();
    }
    let cuda = launch.hardware.cuda.map_or_else(String::new, |(a, b)| format!(" {a}.{b}"));
    let message = format!(
        "the NVFP4 grouped GEMM of CUTLASS is not usable on SM120 with CUDA{cuda}: its stages are counted for the 227 KiB of shared memory a block has on SM100, \
         and SM120 has 99 KiB (101376 bytes); use Marlin"
    );
    let finding = unsupported(Phase::Warmup, "nvfp4_grouped_gemm_fits_shared_memory", message).argument("--moe-backend");
    let finding = finding.number("smem_limit_bytes", 101_376.0).fix(Fix::set("--moe-backend", "marlin"));
    vec![finding.fix(Fix::words("CUDA 13.0 with the family target compute_120f"))]
}

fn nvfp4_sm121(launch: &Launch<'_>) -> Vec<Finding> {
    let marlin = launch.settings.env("VLLM_NVFP4_GEMM_BACKEND").is_some_and(|b| b.contains("marlin"));
    if !launch.scheme(&["nvfp4"]) || launch.sm() != 121 || marlin || launch.settings.moe_backend == "marlin" {
        return Vec::new();
    }
    let message = "the FP4 CUTLASS GEMM of this release does not initialize on SM121, whatever the parallel layout; the bundled ptxas 12.8 cannot target sm_121a at all".to_owned();
    let finding = unsupported(Phase::Warmup, "nvfp4_gemm_initializes_on_sm121", message);
    vec![finding.fix(Fix::env("VLLM_NVFP4_GEMM_BACKEND", "marlin")).fix(Fix::words("a newer image with CUDA 13's ptxas"))]
}

fn scheme(launch: &Launch<'_>) -> Vec<Finding> {
    let backend = launch.settings.moe_backend.as_str();
    let takes_w4a4_only = ["flashinfer_cutlass", "flashinfer_trtllm", "flashinfer_cutedsl", "cutlass"].contains(&backend);
    if !launch.scheme(&["nvfp4"]) || !launch.model.weights.weight_only || !takes_w4a4_only || !launch.settings.has("--moe-backend") {
        return Vec::new();
    }
    let message = format!(
        "--moe-backend {backend} takes NVFP4 weights with NVFP4 activations (W4A4) only, and the checkpoint's scheme is W4A16: it is the quantization scheme, not the card"
    );
    let finding = unsupported(Phase::Init, "moe_backend_supports_scheme", message).argument("--moe-backend");
    vec![finding.fix(Fix::set("--moe-backend", "marlin")).fix(Fix::remove("--moe-backend"))]
}

fn router_weight(launch: &Launch<'_>) -> Vec<Finding> {
    let backend = launch.settings.moe_backend.as_str();
    if !launch.model.router_weight_on_input || !(backend.starts_with("flashinfer") || backend == "marlin" && launch.scheme(&["nvfp4"])) {
        return Vec::new();
    }
    if backend == "marlin" {
        let message = "the Marlin runner scales an expert's output, and this model's router weights multiply its input: it starts and answers wrongly".to_owned();
        let finding = unsupported(Phase::Serve, "runner_supports_router_weight_on_input", message).outcome(Outcome::ServeFails);
        return vec![
            finding
                .argument("--moe-runner-backend")
                .fix(Fix::words("a newer SGLang whose CUTLASS runner takes router weights on the input")),
        ];
    }
    let message = format!(
        "the MoE runner {backend} (chosen for {} on SM{}) refuses router weights on the experts' input, which this model has; the weight-only runner is no safe way out, it would \
         start and scale the output instead",
        launch.model.weights.method,
        launch.sm()
    );
    vec![
        unsupported(Phase::Warmup, "runner_supports_router_weight_on_input", message)
            .fix(Fix::words("a newer SGLang whose CUTLASS runner takes router weights on the input")),
    ]
}
