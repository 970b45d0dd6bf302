//! Which backend each op gets on this architecture and version where nothing is said, and which architectures each backend has kernels for.

mod support;

pub use support::{KERNELS, Kernel, Op, kernel};

use crate::hardware::Hardware;
use crate::model::{AttentionKind, Model};
use crate::question::Engine;
use crate::settings::Settings;
use crate::version::Range;

/// Whether the routed experts are stored in one of these schemes, or quantized to it on the way.
pub fn moe_scheme(model: &Model, settings: &Settings, names: &[&str]) -> bool {
    match &model.shape.experts_method {
        Some(method) => names.contains(&method.as_str()),
        None => names.contains(&model.weights.method.as_str()) || settings.quantization.as_deref().is_some_and(|q| names.contains(&q)),
    }
}

/// A backend and why it is the one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name in the engine's word.
    pub name: &'static str,
    /// Why.
    pub why: &'static str,
}

/// What a choice may depend on.
pub struct Facts<'a> {
    /// The model.
    pub model: &'a Model,
    /// The launch, resolved up to here.
    pub settings: &'a Settings,
    /// Compute capability times ten.
    pub sm: u32,
    /// The machine.
    pub hardware: &'a Hardware,
}

impl Facts<'_> {
    fn mla(&self) -> bool {
        matches!(self.model.attention, AttentionKind::Mla | AttentionKind::SparseMla)
    }
    fn sparse(&self) -> bool {
        self.model.attention == AttentionKind::SparseMla
    }
    fn class_is(&self, names: &[&str]) -> bool {
        self.model.class.as_deref().is_some_and(|class| names.iter().any(|n| class.starts_with(n)))
    }
    fn scheme(&self, names: &[&str]) -> bool {
        moe_scheme(self.model, self.settings, names)
    }
    fn major(&self) -> u32 {
        self.sm / 10
    }
}

/// An implicit default: the first row whose version and condition hold is taken.
#[derive(Clone, Copy)]
pub struct Default {
    /// The engine.
    pub engine: Engine,
    /// What it is a backend of.
    pub op: Op,
    /// Versions.
    pub range: Range,
    /// When.
    pub when: fn(&Facts<'_>) -> bool,
    /// The backend.
    pub name: &'static str,
    /// Why, for people.
    pub why: &'static str,
    /// Where it was read.
    pub source: &'static str,
}

const SGL_ARGS: &str = "sglang/srt/server_args.py _handle_model_specific_adjustments, _handle_attention_backend_compatibility (0.5.9)";
/// Rows of some releases only: what they say was read in 0.5.9 and 0.16.0, when they began or ended is from release notes.
const SGL_RANGED: &str = "sglang/srt/server_args.py (0.5.9); the first and last release are assumed from release notes and reports";
const VLLM_CUDA: &str = "vllm/platforms/cuda.py (0.16.0)";
const VLLM_MOE: &str = "vllm/model_executor/layers/fused_moe/oracle (0.16.0)";
const VLLM_RANGED: &str =
    "vllm/platforms/cuda.py and fused_moe/oracle (0.16.0); the first and last release are assumed from release notes and reports";

const fn always(range: Range) -> bool {
    range.since.is_empty() && range.until.is_empty()
}

const fn sgl(op: Op, range: Range, when: fn(&Facts<'_>) -> bool, name: &'static str, why: &'static str) -> Default {
    let source = if always(range) { SGL_ARGS } else { SGL_RANGED };
    Default { engine: Engine::Sglang, op, range, when, name, why, source }
}
const fn vllm(op: Op, range: Range, when: fn(&Facts<'_>) -> bool, name: &'static str, why: &'static str) -> Default {
    let source = match (always(range), op) {
        (false, _) => VLLM_RANGED,
        (true, Op::Moe) => VLLM_MOE,
        (true, Op::Attention) => VLLM_CUDA,
    };
    Default { engine: Engine::Vllm, op, range, when, name, why, source }
}

/// Every implicit default.
pub const DEFAULTS: &[Default] = &[
    sgl(Op::Attention, Range::ALL, |f| f.class_is(&["DeepseekV4"]), "dsv4", "DeepSeek-V4 has an attention of its own"),
    sgl(Op::Attention, Range::since("0.5.4"), |f| f.sparse(), "nsa", "sparse attention has one backend"),
    sgl(Op::Attention, Range::ALL, |f| f.model.sinks && f.major() == 10, "trtllm_mha", "attention sinks on SM100"),
    sgl(Op::Attention, Range::ALL, |f| f.model.sinks && f.major() == 9, "fa3", "attention sinks on SM90"),
    sgl(Op::Attention, Range::ALL, |f| f.model.sinks, "triton", "attention sinks elsewhere"),
    sgl(Op::Attention, Range::ALL, |f| f.mla() && f.major() == 9, "fa3", "latent attention on SM90"),
    sgl(
        Op::Attention,
        Range::since("0.5.2"),
        |f| f.mla() && f.major() == 10 && f.class_is(&["DeepseekV3", "KimiK25", "DeepseekV2"]),
        "trtllm_mla",
        "latent attention on SM100",
    ),
    sgl(Op::Attention, Range::ALL, |f| f.mla() && f.major() == 10, "flashinfer", "latent attention on SM100"),
    sgl(Op::Attention, Range::ALL, |f| f.mla(), "triton", "latent attention without kernels of SM90 or SM100"),
    sgl(Op::Attention, Range::ALL, |f| f.major() == 9 && topk(f) == 1, "fa3", "SM90"),
    sgl(Op::Attention, Range::since("0.5.9"), |f| f.major() == 10 && topk(f) == 1, "trtllm_mha", "SM100"),
    sgl(Op::Attention, Range::ALL, |_| true, "flashinfer", "the general default"),
    sgl(Op::Moe, Range::ALL, |f| f.model.sinks && f.scheme(&["mxfp4"]) && f.major() == 10, "flashinfer_mxfp4", "MXFP4 on SM100"),
    sgl(
        Op::Moe,
        Range::until("0.5.6"),
        |f| f.model.sinks && f.scheme(&["mxfp4"]) && matches!(f.major(), 9 | 11 | 12),
        "triton_kernel",
        "MXFP4 where the GPU counts as Hopper or Blackwell",
    ),
    sgl(Op::Moe, Range::ALL, |f| f.scheme(&["mxfp4"]) && f.major() == 9, "triton_kernel", "MXFP4 on SM90"),
    sgl(Op::Moe, Range::ALL, |f| f.scheme(&["mxfp4"]), "marlin", "MXFP4 as weights only"),
    sgl(
        Op::Moe,
        Range::between("20251020", "20251028"),
        |f| f.major() == 10 && f.class_is(&["DeepseekV3"]) && !f.scheme(&["int4", "awq", "gptq"]),
        "flashinfer_trtllm",
        "DeepSeek on SM100, whatever the all-to-all backend",
    ),
    sgl(
        Op::Moe,
        Range::since("0.5.3"),
        |f| {
            let models = f.class_is(&["DeepseekV3", "KimiK25", "Qwen3Moe", "Glm4Moe", "Qwen3Next", "Qwen3_5"]);
            f.major() == 10 && models && f.settings.a2a == "none" && f.scheme(&["nvfp4", "fp8", "modelopt_fp4"])
        },
        "flashinfer_trtllm",
        "SM100 without an all-to-all backend",
    ),
    sgl(Op::Moe, Range::since("0.5.2"), |f| f.scheme(&["nvfp4"]) && f.sm >= 100, "flashinfer_cutlass", "NVFP4 on Blackwell"),
    sgl(Op::Moe, Range::ALL, |f| f.scheme(&["int4", "awq", "gptq"]), "marlin", "INT4 weights with 16-bit activations"),
    sgl(
        Op::Moe,
        Range::ALL,
        |f| f.settings.a2a == "deepep" && f.scheme(&["fp8"]) && matches!(f.major(), 9 | 10),
        "deep_gemm",
        "FP8 behind DeepEP",
    ),
    sgl(Op::Moe, Range::ALL, |_| true, "triton", "the general default"),
    vllm(Op::Attention, Range::ALL, |f| f.class_is(&["DeepseekV4"]), "DSV4", "DeepSeek-V4 has an attention of its own"),
    vllm(Op::Attention, Range::since("0.24.0"), |f| f.sparse() && f.major() == 12, "B12X_MLA_SPARSE", "sparse attention on SM12x"),
    vllm(Op::Attention, Range::ALL, |f| f.sparse(), "FLASHMLA_SPARSE", "sparse attention"),
    vllm(Op::Attention, Range::since("0.12.0"), |f| f.mla() && f.major() == 10, "FLASHINFER_MLA", "latent attention on SM100"),
    vllm(Op::Attention, Range::ALL, |f| f.mla() && f.major() == 10, "CUTLASS_MLA", "latent attention on SM100"),
    vllm(Op::Attention, Range::since("0.11.0"), |f| f.mla() && f.major() == 9, "FLASH_ATTN_MLA", "latent attention on SM90"),
    vllm(Op::Attention, Range::ALL, |f| f.mla() && f.major() == 9, "FLASHMLA", "latent attention on SM90"),
    vllm(Op::Attention, Range::ALL, |f| f.mla(), "TRITON_MLA", "latent attention without kernels of SM90 or SM100"),
    vllm(
        Op::Attention,
        Range::since("0.10.2"),
        |f| f.model.sinks && f.major() != 9 && f.major() != 10,
        "TRITON_ATTN",
        "attention sinks without FlashAttention 3",
    ),
    vllm(Op::Attention, Range::since("0.10.1"), |f| f.model.sinks && f.major() == 10, "FLASHINFER", "attention sinks on SM100"),
    vllm(Op::Attention, Range::since("0.11.1"), |f| f.major() == 10, "FLASHINFER", "SM100"),
    vllm(
        Op::Attention,
        Range::since("0.11.0"),
        |f| f.settings.kv_dtype.starts_with("fp8") && f.sm != 90,
        "FLASHINFER",
        "an FP8 cache without FlashAttention 3",
    ),
    vllm(Op::Attention, Range::ALL, |f| f.sm < 80 && f.sm > 0, "TRITON_ATTN", "below SM80"),
    vllm(Op::Attention, Range::ALL, |_| true, "FLASH_ATTN", "the general default"),
    vllm(Op::Moe, Range::ALL, |f| f.scheme(&["mxfp4"]) && f.major() == 10, "flashinfer_trtllm", "MXFP4 on SM100"),
    vllm(Op::Moe, Range::since("0.11.1"), |f| f.scheme(&["mxfp4"]) && f.major() == 9, "triton", "MXFP4 on SM90"),
    vllm(Op::Moe, Range::ALL, |f| f.scheme(&["mxfp4"]), "marlin", "MXFP4 as weights only"),
    vllm(
        Op::Moe,
        Range::ALL,
        |f| f.scheme(&["nvfp4"]) && f.model.weights.weight_only,
        "marlin",
        "the checkpoint's scheme is W4A16, which the other backends do not list",
    ),
    vllm(Op::Moe, Range::ALL, |f| f.scheme(&["nvfp4"]) && f.sm < 100, "marlin", "NVFP4 as weights only below SM100"),
    vllm(
        Op::Moe,
        Range::ALL,
        |f| f.scheme(&["nvfp4"]) && f.settings.env_on("VLLM_USE_FLASHINFER_MOE_FP4"),
        "flashinfer_cutlass",
        "VLLM_USE_FLASHINFER_MOE_FP4",
    ),
    vllm(Op::Moe, Range::since("0.14.0"), |f| f.scheme(&["nvfp4"]) && f.major() == 10, "flashinfer_trtllm", "NVFP4 on SM100"),
    vllm(Op::Moe, Range::since("0.14.0"), |f| f.scheme(&["nvfp4"]), "flashinfer_cutlass", "NVFP4 on Blackwell"),
    vllm(Op::Moe, Range::ALL, |f| f.scheme(&["nvfp4"]), "cutlass", "NVFP4 on Blackwell"),
    vllm(Op::Moe, Range::ALL, |f| f.scheme(&["int4", "awq", "gptq"]) && f.sm >= 75, "marlin", "INT4 weights with 16-bit activations"),
    vllm(
        Op::Moe,
        Range::between("20260701", "20261001"),
        |f| f.scheme(&["fp8"]) && f.sm < 89,
        "triton",
        "block-FP8, chosen without asking for the architecture",
    ),
    vllm(Op::Moe, Range::ALL, |f| f.scheme(&["fp8"]) && (1..89).contains(&f.sm), "marlin", "FP8 as weights only below SM89"),
    vllm(Op::Moe, Range::ALL, |f| f.scheme(&["fp8"]) && matches!(f.major(), 9 | 10), "deep_gemm", "block-FP8 with DeepGEMM"),
    vllm(Op::Moe, Range::ALL, |_| true, "triton", "the general default"),
];

fn topk(f: &Facts<'_>) -> u32 {
    f.settings.flag("--speculative-eagle-topk").and_then(|t| t.parse().ok()).unwrap_or(1)
}

fn choose(engine: Engine, op: Op, model: &Model, settings: &Settings, hardware: &Hardware) -> Choice {
    let facts = Facts { model, settings, sm: hardware.sm.unwrap_or(0), hardware };
    let row = DEFAULTS.iter().find(|d| d.engine == engine && d.op == op && d.range.contains(&settings.version) && (d.when)(&facts));
    row.map_or(Choice { name: "auto", why: "no row of the table applies" }, |d| Choice { name: d.name, why: d.why })
}

/// SGLang's attention backend where none is given.
pub fn sglang_attention(model: &Model, settings: &Settings, hardware: &Hardware) -> Choice {
    choose(Engine::Sglang, Op::Attention, model, settings, hardware)
}
/// SGLang's MoE runner where none is given.
pub fn sglang_moe(model: &Model, settings: &Settings, hardware: &Hardware) -> Choice {
    choose(Engine::Sglang, Op::Moe, model, settings, hardware)
}
/// vLLM's attention backend where none is given.
pub fn vllm_attention(model: &Model, settings: &Settings, hardware: &Hardware) -> Choice {
    choose(Engine::Vllm, Op::Attention, model, settings, hardware)
}
/// vLLM's MoE backend where none is given.
pub fn vllm_moe(model: &Model, settings: &Settings, hardware: &Hardware) -> Choice {
    choose(Engine::Vllm, Op::Moe, model, settings, hardware)
}

/// Why SGLang refuses an attention backend at launch on an architecture; `None` if it passes the check (its kernels may still be missing).
pub fn sglang_attention_refused(backend: &str, mla: bool, sm: u32) -> Option<&'static str> {
    if sm == 0 {
        return None;
    }
    let major = sm / 10;
    match backend {
        "trtllm_mla" if !matches!(major, 10..=12) => Some("TensorRT-LLM's latent attention needs Blackwell"),
        "trtllm_mha" if major != 10 => Some("TensorRT-LLM's attention kernels are built for SM100 and SM103 only"),
        "fa3" if major != 9 && (major != 8 || mla) => Some("FlashAttention 3 needs SM90 (SM80 to SM89 without latent attention)"),
        "hpc_ops" if major != 9 => Some("HPC-Ops needs SM90"),
        _ => None,
    }
}
