//! What work a kernel is: first from its name, then, since a dense product is called the same wherever it stands, from what runs before and
//! after it on its stream.
//!
//! Names are those that vLLM, SGLang, FlashInfer, FlashAttention, FlashMLA, DeepGEMM, DeepEP, TensorRT-LLM, cuBLAS, CUTLASS, Triton, PyTorch and
//! NCCL give their kernels, as their sources and public profiles have them. To add one, add a line to [`PATTERNS`]: the first that fits counts.

use super::{Content, Profile};
use moetwin_models::OpClass;
use std::collections::BTreeMap;

/// What a kernel is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// A class of ours.
    Class(OpClass),
    /// Copies and fills.
    Copy,
    /// Nothing that is known.
    Other,
}

impl Group {
    /// Name as in JSON; classes as in breakdowns.
    pub fn name(self) -> &'static str {
        match self {
            Group::Class(class) => class.name(),
            Group::Copy => "copy",
            Group::Other => "other",
        }
    }
}

/// What a name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    /// The class is certain.
    Is(OpClass),
    /// A dense product, of whatever.
    Product,
    /// The activation between the products of an MLP.
    Activation,
    /// A conversion or sum that belongs to nothing in particular; passed over when looking around.
    Small,
    /// A norm: it stands between the parts of a layer.
    Norm,
    /// The end of a product that is split along its sum.
    Reduction,
    /// Copies and fills.
    Copy,
    /// Softmax, sorting and the like after the logits.
    Sampling,
    /// Unknown.
    Unknown,
}

use OpClass::{AllReduce, AllToAll, AttentionCore, Embedding, Experts, GatherScatter, Router, SendRecv};

/// Parts of a name in lower case, in their order in it, and what they say.
const PATTERNS: &[(&[&str], Tag)] = &[
    // Exchanges: NCCL; the engines' own kernels; FlashInfer's and TensorRT-LLM's fusions with the norm that follows.
    (&["nccl", "allreduce"], Tag::Is(AllReduce)),
    (&["nccl", "allgather"], Tag::Is(GatherScatter)),
    (&["nccl", "reducescatter"], Tag::Is(GatherScatter)),
    (&["nccl", "broadcast"], Tag::Is(GatherScatter)),
    (&["nccl", "sendrecv"], Tag::Is(SendRecv)),
    (&["nccl", "alltoall"], Tag::Is(AllToAll)),
    (&["cross_device_reduce"], Tag::Is(AllReduce)),
    (&["allreduce"], Tag::Is(AllReduce)),
    (&["all_reduce"], Tag::Is(AllReduce)),
    (&["quickreduce"], Tag::Is(AllReduce)),
    (&["lamport"], Tag::Is(AllReduce)),
    (&["all_gather"], Tag::Is(GatherScatter)),
    (&["allgather"], Tag::Is(GatherScatter)),
    (&["reduce_scatter"], Tag::Is(GatherScatter)),
    (&["reducescatter"], Tag::Is(GatherScatter)),
    (&["userbuffers"], Tag::Is(AllReduce)),
    (&["deep_ep"], Tag::Is(AllToAll)),
    (&["internode::"], Tag::Is(AllToAll)),
    (&["intranode::"], Tag::Is(AllToAll)),
    (&["low_latency", "dispatch"], Tag::Is(AllToAll)),
    (&["low_latency", "combine"], Tag::Is(AllToAll)),
    (&["moea2a"], Tag::Is(AllToAll)),
    (&["alltoall"], Tag::Is(AllToAll)),
    (&["all_to_all"], Tag::Is(AllToAll)),
    (&["pplx", "dispatch"], Tag::Is(AllToAll)),
    (&["pplx", "combine"], Tag::Is(AllToAll)),
    // Routing.
    (&["moe_fused_gate"], Tag::Is(Router)),
    (&["topk_softmax"], Tag::Is(Router)),
    (&["topk_sigmoid"], Tag::Is(Router)),
    (&["topkgating"], Tag::Is(Router)),
    (&["grouped_topk"], Tag::Is(Router)),
    (&["biased_topk"], Tag::Is(Router)),
    (&["hash_topk"], Tag::Is(Router)),
    (&["moesoftmax"], Tag::Is(Router)),
    (&["moetopk"], Tag::Is(Router)),
    (&["routing", "::"], Tag::Is(Router)),
    (&["routingindices"], Tag::Is(Router)),
    (&["routingmain"], Tag::Is(Router)),
    (&["topkgatingsoftmax"], Tag::Is(Router)),
    (&["expertprefixsum"], Tag::Is(Router)),
    (&["buildexpertmaps"], Tag::Is(Router)),
    (&["router_gemm"], Tag::Is(Router)),
    (&["gatertopk"], Tag::Is(Router)),
    (&["moe_align_block_size"], Tag::Is(Router)),
    (&["count_and_sort_expert"], Tag::Is(Router)),
    (&["computeexpert"], Tag::Is(Router)),
    (&["expert_location"], Tag::Is(Router)),
    // Experts.
    (&["fused_moe"], Tag::Is(Experts)),
    (&["marlin_moe"], Tag::Is(Experts)),
    (&["moe_wna16"], Tag::Is(Experts)),
    (&["moe", "marlin"], Tag::Is(Experts)),
    (&["matmul_ogs"], Tag::Is(Experts)),
    (&["moe", "gemm"], Tag::Is(Experts)),
    (&["grouped", "gemm"], Tag::Is(Experts)),
    (&["groupedgemm"], Tag::Is(Experts)),
    (&["group_gemm"], Tag::Is(Experts)),
    (&["groupproblemshape"], Tag::Is(Experts)),
    (&["gemmuniversalmode::kgrouped"], Tag::Is(Experts)),
    (&["m_grouped"], Tag::Is(Experts)),
    (&["masked_m"], Tag::Is(Experts)),
    // DeepGEMM's products over groups of rows: contiguous, masked, over K; 0 is a dense one, 4 a batched one.
    (&["gemm", "gemmtype)1"], Tag::Is(Experts)),
    (&["gemm", "gemmtype)2"], Tag::Is(Experts)),
    (&["gemm", "gemmtype)3"], Tag::Is(Experts)),
    // TensorRT-LLM's generated kernels: bmm_OUT_ABAB_ACCUMULATOR_... are the batched products of experts, gemm_... the dense ones.
    (&["bmm_", "_fp32_"], Tag::Is(Experts)),
    (&["computestrides"], Tag::Is(Experts)),
    (&["moe_sum"], Tag::Is(Experts)),
    (&["moe_permute"], Tag::Is(Experts)),
    (&["moe_unpermute"], Tag::Is(Experts)),
    (&["permute_tokens"], Tag::Is(Experts)),
    (&["expandinputrows"], Tag::Is(Experts)),
    (&["finalizemoe"], Tag::Is(Experts)),
    (&["finalizekernel"], Tag::Is(Experts)),
    (&["doactivationkernel"], Tag::Is(Experts)),
    (&["ep_scatter"], Tag::Is(Experts)),
    (&["ep_gather"], Tag::Is(Experts)),
    (&["silu_and_mul_masked"], Tag::Is(Experts)),
    (&["moe::"], Tag::Is(Experts)),
    // Attention: scores, caches, positions, norms of heads.
    (&["flash_fwd"], Tag::Is(AttentionCore)),
    (&["flashattn"], Tag::Is(AttentionCore)),
    (&["flash_attn"], Tag::Is(AttentionCore)),
    (&["flash::"], Tag::Is(AttentionCore)),
    (&["flashmla"], Tag::Is(AttentionCore)),
    (&["flash_mla"], Tag::Is(AttentionCore)),
    (&["mla_metadata"], Tag::Is(AttentionCore)),
    (&["fmha"], Tag::Is(AttentionCore)),
    (&["batchdecode"], Tag::Is(AttentionCore)),
    (&["batchprefill"], Tag::Is(AttentionCore)),
    (&["batchmla"], Tag::Is(AttentionCore)),
    (&["mergestate"], Tag::Is(AttentionCore)),
    (&["merge_attn_states"], Tag::Is(AttentionCore)),
    (&["merge_state"], Tag::Is(AttentionCore)),
    (&["unified_attention"], Tag::Is(AttentionCore)),
    (&["reduce_segments"], Tag::Is(AttentionCore)),
    (&["paged_attention"], Tag::Is(AttentionCore)),
    (&["grouped_kernel_stage1"], Tag::Is(AttentionCore)),
    (&["_fwd_kernel"], Tag::Is(AttentionCore)),
    (&["_fwd_grouped"], Tag::Is(AttentionCore)),
    (&["decode_att"], Tag::Is(AttentionCore)),
    (&["cutlass", "mla"], Tag::Is(AttentionCore)),
    (&["xqa"], Tag::Is(AttentionCore)),
    (&["kernel_mha"], Tag::Is(AttentionCore)),
    (&["reshape_and_cache"], Tag::Is(AttentionCore)),
    (&["concat_and_cache"], Tag::Is(AttentionCore)),
    (&["set_mla_kv"], Tag::Is(AttentionCore)),
    (&["kv_buffer"], Tag::Is(AttentionCore)),
    (&["store_kvcache"], Tag::Is(AttentionCore)),
    (&["store_cache"], Tag::Is(AttentionCore)),
    (&["concat_mla"], Tag::Is(AttentionCore)),
    (&["rotary"], Tag::Is(AttentionCore)),
    (&["rope"], Tag::Is(AttentionCore)),
    (&["qknorm"], Tag::Is(AttentionCore)),
    (&["qk_norm"], Tag::Is(AttentionCore)),
    (&["qk_rmsnorm"], Tag::Is(AttentionCore)),
    (&["mqa_logits"], Tag::Is(AttentionCore)),
    (&["topk_transform"], Tag::Is(AttentionCore)),
    // Linear attention.
    (&["gated_delta"], Tag::Is(AttentionCore)),
    (&["causal_conv1d"], Tag::Is(AttentionCore)),
    (&["fused_gdn"], Tag::Is(AttentionCore)),
    (&["indexer"], Tag::Is(AttentionCore)),
    (&["attention"], Tag::Is(AttentionCore)),
    // The ends of the model.
    (&["masked_vocab"], Tag::Is(Embedding)),
    (&["vocab_parallel_embedding"], Tag::Is(Embedding)),
    (&["embedding"], Tag::Is(Embedding)),
    (&["indexselect"], Tag::Is(Embedding)),
    (&["argmax"], Tag::Sampling),
    (&["gumbel"], Tag::Sampling),
    (&["sampling"], Tag::Sampling),
    (&["_sample"], Tag::Sampling),
    (&["top_k_renorm"], Tag::Sampling),
    (&["topktopp"], Tag::Sampling),
    (&["temperature"], Tag::Sampling),
    (&["multinomial"], Tag::Sampling),
    (&["softmax"], Tag::Sampling),
    // Torch's top-k stands in the router where no engine's kernel does; the logits have their own above.
    (&["gathertopk"], Tag::Is(Router)),
    (&["bitonicsort"], Tag::Is(Router)),
    (&["radixsort"], Tag::Sampling),
    // MLPs.
    (&["act_and_mul"], Tag::Activation),
    (&["silu"], Tag::Activation),
    (&["swiglu"], Tag::Activation),
    (&["gelu"], Tag::Activation),
    (&["activation"], Tag::Activation),
    // Products.
    (&["splitkreduce"], Tag::Reduction),
    (&["splitk_reduce"], Tag::Reduction),
    (&["reduce_1block"], Tag::Reduction),
    (&["quant"], Tag::Small),
    (&["cvt_fp16_to_fp4"], Tag::Small),
    // Products that torch's compiler wrote.
    (&["triton_tem_", "_mm_"], Tag::Product),
    (&["nvjet"], Tag::Product),
    (&["gemm"], Tag::Product),
    (&["gemv"], Tag::Product),
    (&["gemvx"], Tag::Product),
    (&["marlin"], Tag::Product),
    (&["machete"], Tag::Product),
    (&["xmma"], Tag::Product),
    (&["cublas"], Tag::Product),
    (&["matmul"], Tag::Product),
    (&["_w8a8_"], Tag::Product),
    (&["wvsplitk"], Tag::Product),
    (&["cutlass::device_kernel"], Tag::Product),
    (&["cutlass"], Tag::Product),
    (&["bmm_"], Tag::Product),
    // Small ones.
    (&["memcpy"], Tag::Copy),
    (&["memset"], Tag::Copy),
    (&["norm"], Tag::Norm),
    (&["triton_", "rsqrt"], Tag::Norm),
    (&["triton_"], Tag::Small),
    (&["elementwise"], Tag::Small),
    (&["at::native"], Tag::Small),
    (&["cat"], Tag::Small),
    (&["copy"], Tag::Small),
    (&["fill"], Tag::Small),
];

fn tag(name: &str) -> Tag {
    let name = name.to_ascii_lowercase();
    let fits = |parts: &[&str]| {
        let mut rest = name.as_str();
        parts.iter().all(|part| {
            let found = rest.find(part);
            if let Some(at) = found {
                rest = &rest[at + part.len()..];
            }
            found.is_some()
        })
    };
    PATTERNS.iter().find(|(parts, _)| fits(parts)).map_or(Tag::Unknown, |(_, tag)| *tag)
}

/// What every kernel of a profile is, in the order of its kernels, or of its sums.
pub fn groups(profile: &Profile) -> Vec<Group> {
    let tags: Vec<Tag> = profile.names.iter().map(|n| tag(n)).collect();
    let tag_of = |name: u32| tags.get(name as usize).copied().unwrap_or(Tag::Unknown);
    match &profile.content {
        // Without an order nothing runs before anything.
        Content::Sums(sums) => sums.iter().map(|s| alone(tag_of(s.name))).collect(),
        Content::Timed(kernels) => {
            let mut out = vec![Group::Other; kernels.len()];
            let all: Vec<Tag> = kernels.iter().map(|k| tag_of(k.name)).collect();
            // A shared expert may run on a stream of its own: whether a layer has experts, the whole GPU says.
            let mut experts = Vec::with_capacity(kernels.len());
            let mut streams: BTreeMap<(u32, u64), Vec<usize>> = BTreeMap::new();
            for (i, k) in kernels.iter().enumerate() {
                streams.entry((k.device, k.stream)).or_default().push(i);
            }
            let mut from = 0;
            while from < kernels.len() {
                let to = from + kernels[from..].partition_point(|k| k.device == kernels[from].device);
                experts.extend(in_expert_layers(&all[from..to]));
                from = to;
            }
            for own in streams.values() {
                let sequence: Vec<(Tag, bool)> = own.iter().map(|i| (all[*i], experts[*i])).collect();
                for (group, i) in around(&sequence).into_iter().zip(own) {
                    out[*i] = group;
                }
            }
            out
        }
    }
}

/// A kernel of which only the name is known.
fn alone(tag: Tag) -> Group {
    match tag {
        Tag::Is(class) => Group::Class(class),
        Tag::Copy => Group::Copy,
        Tag::Small | Tag::Norm => Group::Class(OpClass::Elementwise),
        Tag::Sampling => Group::Class(OpClass::Head),
        Tag::Activation | Tag::Product | Tag::Reduction | Tag::Unknown => Group::Other,
    }
}

/// Landmarks on one side of a place: the nearest kernel that says where in a layer it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Landmark {
    #[default]
    None,
    Attention,
    Routing,
    Experts,
    Activation,
    Sampling,
    Exchange,
    Norm,
}

fn landmark(tag: Tag) -> Option<Landmark> {
    Some(match tag {
        Tag::Is(AttentionCore) => Landmark::Attention,
        Tag::Is(Router) => Landmark::Routing,
        Tag::Is(Experts) => Landmark::Experts,
        // A gather stands anywhere: between logits and their choice, around split attention.
        Tag::Is(AllReduce | AllToAll | SendRecv) => Landmark::Exchange,
        Tag::Activation => Landmark::Activation,
        Tag::Sampling => Landmark::Sampling,
        Tag::Norm => Landmark::Norm,
        _ => return None,
    })
}

/// Whether each place is in a layer with experts: routing or experts stand between the attention before it and the one behind it.
fn in_expert_layers(tags: &[Tag]) -> Vec<bool> {
    let mut out = vec![false; tags.len()];
    let mut sweep = |order: &mut dyn Iterator<Item = usize>| {
        let mut experts = false;
        for i in order {
            out[i] |= experts;
            match tags[i] {
                Tag::Is(AttentionCore) => experts = false,
                Tag::Is(Router | Experts) => experts = true,
                _ => {}
            }
        }
    };
    sweep(&mut (0..tags.len()));
    sweep(&mut (0..tags.len()).rev());
    out
}

/// What stands on one side of a place.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    /// The nearest landmark.
    landmark: Landmark,
    /// Whether another product stands between.
    product: bool,
}

/// For every place what stands before it and behind it.
fn surroundings(tags: &[(Tag, bool)]) -> Vec<(Side, Side)> {
    let mut out = vec![(Side::default(), Side::default()); tags.len()];
    let (mut last, mut product) = (Landmark::None, false);
    for (place, (tag, _)) in out.iter_mut().zip(tags) {
        place.0 = Side { landmark: last, product };
        if let Some(found) = landmark(*tag) {
            (last, product) = (found, false);
        }
        product |= *tag == Tag::Product;
    }
    let (mut next, mut product) = (Landmark::None, false);
    for (place, (tag, _)) in out.iter_mut().zip(tags).rev() {
        place.1 = Side { landmark: next, product };
        if let Some(found) = landmark(*tag) {
            (next, product) = (found, false);
        }
        product |= *tag == Tag::Product;
    }
    out
}

/// What the kernels of one stream are, from their order.
fn around(tags: &[(Tag, bool)]) -> Vec<Group> {
    let near = surroundings(tags);
    let mut out: Vec<Group> = Vec::with_capacity(tags.len());
    let mut product = Group::Other;
    for ((tag, experts), (before, behind)) in tags.iter().zip(near) {
        let mlp = if *experts { OpClass::SharedExpert } else { OpClass::DenseMlp };
        let group = match tag {
            Tag::Product => Group::Class(match (before.landmark, behind.landmark) {
                // The first product behind an activation is the one down.
                (Landmark::Activation, _) if !before.product => mlp,
                // A shared expert's first product has the activation next; what stands before that product is the router's.
                (_, Landmark::Activation) if *experts && behind.product => Router,
                (_, Landmark::Activation) => mlp,
                (_, Landmark::Routing) => Router,
                (_, Landmark::Sampling) => OpClass::Head,
                _ => OpClass::AttentionProjection,
            }),
            Tag::Reduction => product,
            Tag::Activation if [before.landmark, behind.landmark] == [Landmark::Experts; 2] => Group::Class(Experts),
            Tag::Activation => Group::Class(OpClass::Elementwise),
            other => alone(*other),
        };
        if *tag == Tag::Product {
            product = group;
        }
        out.push(group);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str) -> Tag {
        tag(name)
    }

    const CORE: Tag = Tag::Is(AttentionCore);

    #[test]
    fn names_of_real_kernels_are_known() {
        for (name, expected) in [
            (
                "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, int, int)",
                Tag::Is(AllReduce),
            ),
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Tag::Is(AllReduce)),
            ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Tag::Is(GatherScatter)),
            ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>", Tag::Is(AllReduce)),
            ("void deep_ep::internode_ll::dispatch<true, 7168>(...)", Tag::Is(AllToAll)),
            ("fused_moe_kernel", Tag::Is(Experts)),
            ("void marlin_moe_wna16::Marlin<__nv_bfloat16, ...>", Tag::Is(Experts)),
            ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu", Tag::Is(Experts)),
            ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<...>", Tag::Product),
            ("void vllm::moe::topkGating<8, 384, 4, 16, 32, int, float>(...)", Tag::Is(Router)),
            ("void vllm::moe::count_and_sort_expert_tokens_kernel<int>(...)", Tag::Is(Router)),
            ("void moe_fused_gate_kernel<float, float, 32>(...)", Tag::Is(Router)),
            ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...> > >", Tag::Is(AttentionCore)),
            ("void flash_fwd_splitkv_mla_kernel<...>", Tag::Is(AttentionCore)),
            ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<...>", Tag::Is(AttentionCore)),
            ("kernel_unified_attention_2d", Tag::Is(AttentionCore)),
            ("void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, ...>", Tag::Is(AttentionCore)),
            ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, ...)", Tag::Is(AttentionCore)),
            ("void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, ...)", Tag::Norm),
            ("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel, true>(...)", Tag::Activation),
            ("nvjet_tst_64x24_64x16_4x1_v_bz_splitK_TNT", Tag::Product),
            ("void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16, ...>", Tag::Reduction),
            ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", Tag::Product),
            ("void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, ...>", Tag::Is(Embedding)),
            ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, ...>", Tag::Sampling),
            ("void vllm::scaled_fp8_quant_kernel<c10::BFloat16>(...)", Tag::Small),
            ("[CUDA memcpy Device-to-Device]", Tag::Copy),
            ("Memset (Device)", Tag::Copy),
            ("something_else", Tag::Unknown),
            // What public profiles of DeepSeek, Kimi, GLM, Qwen3 and gpt-oss on Hopper, B200 and SM120 name: SGLang, vLLM, TensorRT-LLM.
            (
                "fmhaSm100fKernel_QkvBfloat16OBfloat16HQk576HV512HVPerCta256PagedKvDenseP64MultiCtasKvVarSeqQ16Kv128StaticSwapsAbForGen",
                CORE,
            ),
            ("void flashinfer::mla::BatchMLAPagedAttentionKernel<flashinfer::mla::KernelTraits<true, 2u, ...> >", CORE),
            ("void flash::flash_fwd_splitkv_mla_combine_kernel<...>", CORE),
            ("_fwd_grouped_kernel_stage1", CORE),
            ("_fwd_kernel_stage2", CORE),
            ("void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, ...> > >", CORE),
            ("void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized<...> >", CORE),
            ("set_mla_kv_buffer_kernel", CORE),
            ("applyMLARopeAndAssignQKVKernelGeneration", CORE),
            ("void flashinfer::RopeQuantizeKernel<true, 1u, ...>", CORE),
            ("_fp8_paged_mqa_logits_kernel", CORE),
            ("void topk_transform_decode_kernel(...)", CORE),
            ("fused_recurrent_gated_delta_rule_fwd_kernel", CORE),
            ("_causal_conv1d_update_kernel", CORE),
            (
                "bmm_E2m1_E2m1E2m1_Fp32_bA16_bB16_bC16_t128x8x512u2_s5_et128x8_m128x8x64_cga1x1x1_16dp256b_TN_transOut_schPd2x1x2x3_swiGlu",
                Tag::Is(Experts),
            ),
            (
                "bmm_Bfloat16_E4m3E4m3_Fp32_t128x16x128_s6_et64x16_m64x16x32_cga1x1x1_16dp256b_TN_transOut_noShflA_dsFp8_schPd2x1x2x3_rM1_tmaOpt",
                Tag::Is(Experts),
            ),
            ("gemm_Bfloat16_E4m3E4m3_Fp32_t128x16x128_s6_et64x16_m64x16x32_cga1x1x1_16dp256b_TN_transOut", Tag::Product),
            (
                "void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0, 32u, 32u, 0u, 768u, 6144u, 128u, true, (deep_gemm::GemmType)2, false, cutlass::float_e4m3_t, ...>",
                Tag::Is(Experts),
            ),
            ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 2112u, 7168u, 1u, 128u, 128u, (deep_gemm::GemmType)0>", Tag::Product),
            (
                "void marlin_moe_wna16::Marlin<1125899906909960l, 562949953487106l, 1125899906909960l, 2814749767106568l, 128, 4, 8, 4, false, 4, 2, false>",
                Tag::Is(Experts),
            ),
            (
                "void moe_sum_reduce_warp_per_token_vec_kernel<8>(c10::BFloat16 const*, c10::BFloat16*, long, long, long, float)",
                Tag::Is(Experts),
            ),
            (
                "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t, true> >",
                Tag::Is(Experts),
            ),
            ("void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<__nv_bfloat16, __nv_fp4_e2m1, ...>", Tag::Is(Experts)),
            ("void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16, __nv_bfloat16, ...>", Tag::Is(Experts)),
            ("computeStridesTmaWarpSpecializedKernel", Tag::Is(Experts)),
            ("void moe::dev::routing::routingDeepSeek::routingMainKernel<...>", Tag::Is(Router)),
            ("routingMainKernel", Tag::Is(Router)),
            ("void moe::dev::routing::routingCustom::routingIndicesClusterKernel<...>", Tag::Is(Router)),
            ("void tensorrt_llm::kernels::cutlass_kernels::blockExpertPrefixSumKernel<512>", Tag::Is(Router)),
            ("fusedBuildExpertMapsSortFirstTokenKernel", Tag::Is(Router)),
            ("void dsv3_router_gemm_kernel<__nv_bfloat16, float, 128, 8, 1, 384, 7168>", Tag::Is(Router)),
            ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", Tag::Is(Router)),
            ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<...>", Tag::Is(AllReduce)),
            ("void sglang::cross_device_reduce_2stage<__nv_bfloat16, 8>(...)", Tag::Is(AllReduce)),
            ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)", Tag::Is(AllReduce)),
            ("userbuffers_fp16_sum_inplace_gpu_mc_rmsnorm", Tag::Is(AllReduce)),
            ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Tag::Is(GatherScatter)),
            ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>", Tag::Is(AllToAll)),
            ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<...>", Tag::Is(AllToAll)),
            ("nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT", Tag::Product),
            ("nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN", Tag::Product),
            ("_w8a8_triton_block_scaled_mm", Tag::Product),
            ("triton_tem_fused_mm_t_0", Tag::Product),
            ("void marlin::Marlin<1125899906909960l, 128, 4, 8, 4, false, 4, 8, false>", Tag::Product),
            ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, ...> >", Tag::Product),
            ("_ZN7cutlass13device_kernelI...DeviceGemmFp4GemmSm100...", Tag::Product),
            ("void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu<float> >", Tag::Activation),
            ("void silu_mul_quant_varlen_kernel<...>", Tag::Activation),
            ("_per_token_group_quant_8bit", Tag::Small),
            ("cvt_fp16_to_fp4_sf_major", Tag::Small),
            ("void tensorrt_llm::kernels::quantize_with_block_size<...>", Tag::Small),
            ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", Tag::Norm),
            ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", Tag::Norm),
        ] {
            assert_eq!(class(name), expected, "{name}");
        }
    }

    /// A layer as engines run it, with the tags that its names have.
    fn layer(experts: bool, parallel: bool) -> (Vec<Tag>, Vec<OpClass>) {
        use OpClass::*;
        let mut out = vec![
            (Tag::Norm, Elementwise),
            (Tag::Product, AttentionProjection),
            (Tag::Reduction, AttentionProjection),
            (Tag::Is(AttentionCore), AttentionCore),
            (Tag::Is(AttentionCore), AttentionCore),
            (Tag::Product, AttentionProjection),
        ];
        // One GPU alone sums nothing up.
        if parallel {
            out.push((Tag::Is(AllReduce), AllReduce));
        }
        out.push((Tag::Norm, Elementwise));
        if experts {
            out.extend([
                (Tag::Product, SharedExpert),
                (Tag::Activation, Elementwise),
                (Tag::Product, SharedExpert),
                (Tag::Product, Router),
                (Tag::Is(Router), Router),
                (Tag::Is(Experts), Experts),
                (Tag::Activation, Experts),
                (Tag::Is(Experts), Experts),
            ]);
        } else {
            out.extend([(Tag::Product, DenseMlp), (Tag::Activation, Elementwise), (Tag::Product, DenseMlp)]);
        }
        if parallel {
            out.push((Tag::Is(AllReduce), AllReduce));
        }
        out.into_iter().unzip()
    }

    #[test]
    fn products_are_told_apart_by_what_is_around_them() {
        use OpClass::{Embedding, Head};
        for parallel in [true, false] {
            let mut tags = vec![Tag::Is(Embedding)];
            let mut expected = vec![Embedding];
            for experts in [false, true, true] {
                let (t, e) = layer(experts, parallel);
                tags.extend(t);
                expected.extend(e);
            }
            tags.extend([Tag::Norm, Tag::Product, Tag::Is(GatherScatter), Tag::Sampling]);
            expected.extend([OpClass::Elementwise, Head, GatherScatter, Head]);
            let flagged: Vec<(Tag, bool)> = tags.iter().copied().zip(in_expert_layers(&tags)).collect();
            let found: Vec<&str> = around(&flagged).into_iter().map(Group::name).collect();
            let expected: Vec<&str> = expected.into_iter().map(OpClass::name).collect();
            assert_eq!(found, expected, "parallel {parallel}");
        }
    }
}
