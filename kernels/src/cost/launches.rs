//! How many kernels engines launch for an op: what an eager launch path pays for, and what a captured graph has nodes for.
//!
//! | op | kernels |
//! | --- | --- |
//! | linear | the product, its bias in the epilogue; block-scaled FP8 and NVFP4 quantize the activations first |
//! | grouped-query preparation | rotation (q and k in one), cache write, one norm each for q and k |
//! | MLA norm, rotation | one norm for q, one for kv; rotation, cache write |
//! | decode attention | split over the context, then the combining kernel; prefill needs no combining |
//! | expanded MLA | keys of both parts are put together first |
//! | routed experts | token alignment, gate and up, activation, down, weighted sum (Marlin and Triton paths alike) |
//! | linear attention | convolution, gated delta rule, gated norm |
//! | sparse index | three projections, norm and rotation of queries and key, a Hadamard rotation and a quantization of each, cache write, scores, top-k |
//! | merging a dealt-out context | one; the gathers and the sum around it are exchanges of their own |
//! | all-reduce with a norm | one where it is fused, two where the sum is a library's: whoever carries it out knows, and one is counted |
//! | all others | one |
//!
//! The sparse index as SGLang's indexer for DeepSeek-V3.2 and GLM-5 runs it, whose kernels public profiles name one by one
//! (`fast_hadamard_transform_kernel`, `fused_store_indexer_cache`, `fp8_paged_mqa_logits`, `topk_transform_decode_kernel`).
//! Routed experts and MLA as in SGLang's `fused_marlin_moe` and `forward_absorb_prepare` (read in 2026); the others follow from what
//! the modules call. Fusions that exist on some GPUs only are left out, so a tuned engine launches fewer.

use super::local::Local;
use moetwin_models::{Op, Phase, WeightFormat};

pub(super) fn kernels(local: &Local<'_>) -> u32 {
    let prefill = local.graph.step.phase == Phase::Prefill;
    match &local.node.op {
        Op::Linear { .. } => match local.input(1).format() {
            Some(WeightFormat::Fp8Block { .. } | WeightFormat::Nvfp4) => 2,
            _ => 1,
        },
        Op::QkvPrepare { rope, qk_norm_eps, .. } => 1 + u32::from(rope.is_some()) + if qk_norm_eps.is_some() { 2 } else { 0 },
        Op::MlaNorm { q_lora, .. } => 1 + u32::from(q_lora.is_some()),
        Op::QkNorm { .. } | Op::MlaRope { .. } | Op::MlaPrefill { .. } => 2,
        Op::SparseIndex { .. } => 12,
        Op::GqaAttention { .. } | Op::MlaDecode { .. } => {
            if prefill {
                1
            } else {
                2
            }
        }
        Op::Experts { .. } => 5,
        Op::LinearAttention { .. } => 3,
        // A view of rows.
        Op::Slice { dim: 0, .. } => 0,
        _ => 1,
    }
}
