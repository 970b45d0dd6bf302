//! Which architectures each backend has kernels for.

use crate::finding::Phase;
use crate::question::Engine;
use crate::version::Range;

/// What a backend computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Attention.
    Attention,
    /// Routed experts.
    Moe,
}

/// A backend's kernels.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The engine.
    pub engine: Engine,
    /// What it computes.
    pub op: Op,
    /// The backend in the engine's word, lower case.
    pub name: &'static str,
    /// Versions for which the row holds.
    pub range: Range,
    /// Architectures, first and last of each span, compute capability times ten.
    pub sms: &'static [(u32, u32)],
    /// Only for weights of this scheme; empty means any.
    pub scheme: &'static str,
    /// Where it shows that there is no kernel.
    pub phase: Phase,
    /// What then happens, for people.
    pub otherwise: &'static str,
    /// A backend that has kernels everywhere, or nearly.
    pub instead: &'static str,
    /// Where it was read.
    pub source: &'static str,
}

const SM90: &[(u32, u32)] = &[(90, 90)];
const SM100: &[(u32, u32)] = &[(100, 103)];
const SM90_100: &[(u32, u32)] = &[(90, 103)];
const SM120: &[(u32, u32)] = &[(120, 121)];

const fn row(engine: Engine, op: Op, name: &'static str, sms: &'static [(u32, u32)], phase: Phase, otherwise: &'static str) -> Kernel {
    let instead = match (engine, op) {
        (Engine::Sglang, Op::Attention) => "triton",
        (Engine::Vllm, Op::Attention) => "TRITON_MLA",
        (_, Op::Moe) => "auto",
    };
    Kernel {
        engine,
        op,
        name,
        range: Range::ALL,
        sms,
        scheme: "",
        phase,
        otherwise,
        instead,
        source: "kernel build lists of the engine and of FlashInfer",
    }
}

/// A row of some releases only; which ones is known from reports on either side.
const fn ranged(kernel: Kernel, range: Range) -> Kernel {
    Kernel {
        range,
        source: "kernel build lists of the engine and of FlashInfer; the last release is assumed from reports on either side",
        ..kernel
    }
}
const fn of_scheme(kernel: Kernel, scheme: &'static str) -> Kernel {
    Kernel { scheme, ..kernel }
}
const fn instead(kernel: Kernel, instead: &'static str) -> Kernel {
    Kernel { instead, ..kernel }
}

use Engine::{Sglang as S, Vllm as V};
use Op::{Attention as A, Moe as M};

/// Every backend whose kernels do not exist everywhere.
pub const KERNELS: &[Kernel] = &[
    row(V, M, "deep_gemm_mega_moe", SM100, Phase::Load, "the layer refuses it: DeepGEMM's MegaMoE is built for data-centre Blackwell"),
    row(V, M, "flashinfer_trtllm", SM100, Phase::Load, "TensorRT-LLM's MoE kernels are built for SM100 and SM103"),
    row(V, M, "flashinfer_cutedsl", SM100, Phase::Load, "the CuTe DSL kernels are built for SM100 and SM103"),
    row(V, M, "deep_gemm", SM90_100, Phase::Load, "DeepGEMM is built for SM90 and SM100"),
    row(V, M, "flashinfer_b12x", SM120, Phase::Load, "the b12x kernels are built for SM120 and SM121"),
    row(V, M, "b12x", SM120, Phase::Load, "the b12x kernels are built for SM120 and SM121"),
    row(V, M, "flashinfer_cutlass", &[(90, 121)], Phase::Load, "FlashInfer's CUTLASS MoE is built for SM90 and later"),
    instead(
        of_scheme(row(V, M, "flashinfer_cutlass", &[(100, 121)], Phase::Load, "NVFP4 tensor cores exist from SM100 on"), "nvfp4"),
        "marlin",
    ),
    instead(of_scheme(row(V, M, "cutlass", &[(100, 121)], Phase::Load, "NVFP4 tensor cores exist from SM100 on"), "nvfp4"), "marlin"),
    row(V, M, "marlin", &[(75, 200)], Phase::Load, "Marlin needs SM75 or later"),
    instead(
        of_scheme(
            row(
                V,
                M,
                "triton",
                &[(89, 200)],
                Phase::Warmup,
                "Triton cannot compile e4m3 (fp8e4nv) below SM89; it shows in the profile run, which looks like a memory step",
            ),
            "fp8",
        ),
        "marlin",
    ),
    row(V, A, "flashmla", SM90_100, Phase::Init, "FlashMLA has no kernels for this architecture"),
    row(V, A, "flashmla_sparse", SM90_100, Phase::Init, "sparse FlashMLA has no kernels for this architecture"),
    row(V, A, "cutlass_mla", SM100, Phase::Init, "CUTLASS MLA is built for SM100"),
    row(V, A, "flashinfer_mla", SM100, Phase::Init, "FlashInfer's MLA kernels are built for SM100"),
    row(V, A, "flashinfer_mla_sparse", SM100, Phase::Init, "FlashInfer's sparse MLA kernels are built for SM100"),
    row(V, A, "flash_attn_mla", SM90, Phase::Init, "FlashAttention 3 with MLA is built for SM90"),
    row(V, A, "b12x_mla_sparse", SM120, Phase::Init, "the b12x kernels are built for SM120 and SM121"),
    row(S, M, "flashinfer_trtllm", SM100, Phase::Warmup, "TensorRT-LLM's MoE kernels are built for SM100 and SM103"),
    row(S, M, "flashinfer_trtllm_routed", SM100, Phase::Warmup, "TensorRT-LLM's MoE kernels are built for SM100 and SM103"),
    row(S, M, "flashinfer_mxfp4", SM100, Phase::Load, "FlashInfer's MXFP4 MoE is built for SM100 and SM103"),
    row(S, M, "flashinfer_cutedsl", SM100, Phase::Load, "the CuTe DSL kernels are built for SM100 and SM103"),
    row(S, M, "megamoe", SM100, Phase::Load, "DeepGEMM's MegaMoE is built for data-centre Blackwell"),
    row(S, M, "flashinfer_megamoe", SM100, Phase::Load, "MegaMoE is built for data-centre Blackwell"),
    row(S, M, "deep_gemm", SM90_100, Phase::GraphCapture, "DeepGEMM is built for SM90 and SM100"),
    row(S, M, "hpc_ops", SM90, Phase::Load, "HPC-Ops is built for SM90"),
    row(S, M, "marlin", &[(80, 200)], Phase::Load, "Marlin needs SM80 or later"),
    ranged(
        row(
            S,
            M,
            "triton_kernel",
            SM90_100,
            Phase::GraphCapture,
            "the MXFP4 Triton kernel uses TMA tile gather and scatter, which ptxas refuses for this target (.tile::gather4 is SM90 and SM100 only)",
        ),
        Range::until("0.5.6"),
    ),
    ranged(
        of_scheme(row(S, M, "triton", &[(89, 200)], Phase::GraphCapture, "Triton cannot compile e4m3 (fp8e4nv) below SM89"), "fp8"),
        Range::until("0.5.12"),
    ),
    row(S, A, "flashmla", SM90_100, Phase::GraphCapture, "FlashMLA has no kernels for this architecture, and the launch does not check"),
    row(S, A, "cutlass_mla", SM100, Phase::GraphCapture, "CUTLASS MLA is built for SM100, and the launch does not check"),
    row(S, A, "cutedsl_mla", SM100, Phase::GraphCapture, "the CuTe DSL kernels are built for SM100"),
    row(S, A, "tokenspeed_mla", SM100, Phase::GraphCapture, "its kernels are built for SM100"),
    row(S, A, "fa4", SM90_100, Phase::GraphCapture, "FlashAttention 4 is built for SM90 and SM100"),
];

/// Rows of a backend.
pub fn kernel(engine: Engine, op: Op, name: &str) -> impl Iterator<Item = &'static Kernel> {
    let name = name.to_lowercase();
    KERNELS.iter().filter(move |k| k.engine == engine && k.op == op && k.name == name)
}

impl Kernel {
    /// Whether an architecture has kernels; an unknown one is taken to.
    pub fn has(&self, sm: u32) -> bool {
        sm == 0 || self.sms.iter().any(|(first, last)| (*first..=*last).contains(&sm))
    }
    /// Architectures in words: `SM90 to SM103`.
    pub fn architectures(&self) -> String {
        let one = |&(first, last): &(u32, u32)| match (first, last) {
            (a, b) if a == b => format!("SM{a}"),
            (a, 200) => format!("SM{a} or later"),
            (a, b) => format!("SM{a} to SM{b}"),
        };
        self.sms.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}
