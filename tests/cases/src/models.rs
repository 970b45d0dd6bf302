//! Random small models of every executable family.

use moetwin_models::spec::{
    Activation, Attention, DenseSpec, Ffn, GqaSpec, GroupScore, LayerSpec, MlaSpec, MoeSpec, QkNorm, RopeScaling, RopeSpec, RouterSpec,
    Scoring, SharedExpertSpec,
};
use moetwin_models::{DType, ModelSpec, WeightFormat};
use proptest::prelude::*;
use proptest::sample::select;

/// The families that the reference executes, as graphs tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Latent attention, sigmoid or softmax router with groups, shared expert (DeepSeek, Kimi).
    Deepseek,
    /// Biased qkv, gated shared expert.
    Qwen2Moe,
    /// Per-head norms on q and k.
    Qwen3Moe,
    /// Plain grouped-query attention, softmax of the chosen.
    Mixtral,
    /// Norms over the whole q and k.
    Olmoe,
    /// Partial rotation, biased qkv, sigmoid router, shared expert, dense first layers.
    Glm4Moe,
    /// Sinks, windows, biases everywhere, clamped activation.
    GptOss,
}

impl Family {
    /// Every family.
    pub const ALL: [Family; 7] =
        [Family::Deepseek, Family::Qwen2Moe, Family::Qwen3Moe, Family::Mixtral, Family::Olmoe, Family::Glm4Moe, Family::GptOss];
    fn model_type(self) -> &'static str {
        match self {
            Family::Deepseek => "deepseek_v3",
            Family::Qwen2Moe => "qwen2_moe",
            Family::Qwen3Moe => "qwen3_moe",
            Family::Mixtral => "mixtral",
            Family::Olmoe => "olmoe",
            Family::Glm4Moe => "glm4_moe",
            Family::GptOss => "gpt_oss",
        }
    }
}

/// The free choices of a random model; everything else follows from them and the family.
#[derive(Clone, Copy, Debug)]
struct Choices {
    family: Family,
    layers: usize,
    dense_layers: usize,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    q_lora: bool,
    experts: u32,
    topk: u32,
    groups: u32,
    intermediate: u64,
    format: WeightFormat,
    normalize: bool,
    variant: bool,
    tied: bool,
}

/// A random small model of a random executable family: dimensions of tens, one to four layers, f32. Most can be shared by 2 and by 4 ranks.
pub fn any_model() -> impl Strategy<Value = ModelSpec> {
    select(&Family::ALL[..]).prop_flat_map(any_model_of)
}

/// A random small model of a family.
pub fn any_model_of(family: Family) -> impl Strategy<Value = ModelSpec> {
    let sizes = (1usize..=4, 0usize..=2, select(vec![4u32, 8]), select(vec![1u32, 2, 4]), select(vec![8u32, 16]));
    let experts = (select(vec![4u32, 8, 12, 16]), 1u32..=4, select(vec![1u32, 2, 4]), select(vec![32u64, 64, 128]));
    let formats = select(vec![
        WeightFormat::F32,
        WeightFormat::Bf16,
        WeightFormat::Int4Group { group: 32 },
        WeightFormat::Int4Group { group: 8 },
        WeightFormat::Fp8Block { rows: 16, cols: 16 },
    ]);
    (sizes, experts, formats, any::<[bool; 4]>()).prop_map(move |(sizes, experts, format, flags)| {
        let ((layers, dense_layers, heads, kv_heads, head_dim), (experts, topk, groups, intermediate)) = (sizes, experts);
        let [q_lora, normalize, variant, tied] = flags;
        let choices = Choices {
            family,
            layers,
            dense_layers,
            heads,
            kv_heads,
            head_dim,
            q_lora,
            experts,
            topk,
            groups,
            intermediate,
            format,
            normalize,
            variant,
            tied,
        };
        model(&choices)
    })
}

fn model(c: &Choices) -> ModelSpec {
    let dense_allowed = matches!(c.family, Family::Deepseek | Family::Glm4Moe | Family::Qwen3Moe);
    let dense = |i: usize| dense_allowed && i < c.dense_layers.min(c.layers.saturating_sub(1));
    let layer = |i: usize| LayerSpec {
        attention: attention(c, i),
        ffn: if dense(i) {
            Ffn::Dense(DenseSpec {
                intermediate: 2 * c.intermediate,
                activation: Activation::Silu,
                bias: c.family == Family::Deepseek && c.variant,
                format: WeightFormat::F32,
            })
        } else {
            Ffn::Moe(moe(c))
        },
    };
    ModelSpec {
        name: format!("random-{}", c.family.model_type()),
        model_type: c.family.model_type().into(),
        architecture: "RandomForCausalLM".into(),
        hidden: 64,
        vocab: if c.variant { 160 } else { 101 },
        tied_embeddings: c.tied,
        norm_eps: 1e-6,
        max_positions: 4096,
        dtype: DType::F32,
        embedding_format: WeightFormat::F32,
        layers: (0..c.layers).map(layer).collect(),
        tensor_prefix: String::new(),
        outside_graph: Vec::new(),
        warnings: Vec::new(),
        executable: true,
        mtp_layers: 0,
        fused_inputs: 0,
    }
}

fn attention(c: &Choices, layer: usize) -> Attention {
    let rope = |dim, scaling, interleaved| RopeSpec { dim, theta: 10_000.0, scaling, interleaved };
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_positions: 64.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.1,
        truncate: c.variant,
    };
    if c.family == Family::Deepseek {
        return Attention::Mla(MlaSpec {
            heads: c.heads,
            q_lora: c.q_lora.then_some(32),
            kv_lora: 32,
            nope: c.head_dim,
            rope_dim: 8,
            v_dim: 16,
            rope: rope(8, if c.variant { yarn } else { RopeScaling::None }, true),
            softmax_scale: 0.2,
            latent_norm_eps: 1e-6,
            bias: c.variant,
            format: WeightFormat::F32,
            sparse_topk: None,
        });
    }
    let gpt_oss = c.family == Family::GptOss;
    Attention::Gqa(GqaSpec {
        heads: c.heads,
        kv_heads: c.kv_heads,
        head_dim: c.head_dim,
        rope: Some(rope(
            if c.family == Family::Glm4Moe { c.head_dim / 2 } else { c.head_dim },
            if gpt_oss { yarn } else { RopeScaling::None },
            false,
        )),
        softmax_scale: 1.0 / f64::from(c.head_dim).sqrt(),
        qkv_bias: gpt_oss || c.family == Family::Qwen2Moe || (c.family == Family::Glm4Moe && c.variant),
        o_bias: gpt_oss,
        qk_norm: match c.family {
            Family::Qwen3Moe => QkNorm::PerHead,
            Family::Glm4Moe if c.variant => QkNorm::PerHead,
            Family::Olmoe => QkNorm::Full,
            _ => QkNorm::None,
        },
        clip: (c.family == Family::Olmoe && c.variant).then_some(1.0),
        window: (gpt_oss && layer.is_multiple_of(2)).then_some(4),
        sinks: gpt_oss,
        output_gate: false,
        format: WeightFormat::F32,
    })
}

fn moe(c: &Choices) -> MoeSpec {
    let grouped = matches!(c.family, Family::Deepseek | Family::Glm4Moe) && c.experts / c.groups >= c.topk.max(2);
    let sigmoid = c.family == Family::Glm4Moe || (c.family == Family::Deepseek && c.variant);
    let gpt_oss = c.family == Family::GptOss;
    let shared = match c.family {
        Family::Deepseek | Family::Glm4Moe | Family::Qwen2Moe => Some(SharedExpertSpec {
            intermediate: c.intermediate,
            gated: c.family == Family::Qwen2Moe,
            bias: c.family == Family::Deepseek && c.variant,
            format: WeightFormat::F32,
        }),
        _ => None,
    };
    MoeSpec {
        experts: c.experts,
        topk: c.topk.min(c.experts),
        intermediate: c.intermediate,
        router: RouterSpec {
            scoring: if gpt_oss {
                Scoring::SoftmaxTopk
            } else if sigmoid {
                Scoring::Sigmoid
            } else {
                Scoring::Softmax
            },
            correction_bias: sigmoid,
            groups: if grouped { c.groups } else { 1 },
            topk_groups: if grouped { c.groups.div_ceil(2) } else { 1 },
            group_score: if sigmoid { GroupScore::TopTwoSum } else { GroupScore::Max },
            normalize: c.normalize || c.family == Family::Mixtral,
            normalize_eps: if sigmoid { 1e-20 } else { 0.0 },
            scale: if sigmoid { 2.5 } else { 1.0 },
            logits_bias: gpt_oss,
        },
        activation: if gpt_oss { Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 } } else { Activation::Silu },
        expert_bias: gpt_oss,
        format: c.format,
        shared,
    }
}
