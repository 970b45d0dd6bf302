//! Models: published ones by hand, and random small ones of every executable family.

use moetwin_models::spec::{
    Activation, Attention, DenseSpec, Ffn, GroupScore, LayerSpec, MlaSpec, MoeSpec, RopeScaling, RopeSpec, RouterSpec, Scoring,
    SharedExpertSpec,
};
use moetwin_models::{DType, ModelSpec, WeightFormat};

/// Kimi-K2.5's text decoder (numbers of its published `config.json`), without what lies outside the graph.
pub fn kimi_k2_5() -> ModelSpec {
    let mla = MlaSpec {
        heads: 64,
        q_lora: Some(1536),
        kv_lora: 512,
        nope: 128,
        rope_dim: 64,
        v_dim: 128,
        rope: RopeSpec {
            dim: 64,
            theta: 50_000.0,
            scaling: RopeScaling::Yarn {
                factor: 64.0,
                original_positions: 4096.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                attention_factor: 1.0,
                truncate: true,
            },
            interleaved: true,
        },
        softmax_scale: 0.144_679_6,
        latent_norm_eps: 1e-6,
        bias: false,
        format: WeightFormat::Bf16,
        sparse_topk: None,
    };
    let dense = DenseSpec { intermediate: 18_432, activation: Activation::Silu, format: WeightFormat::Bf16 };
    let moe = MoeSpec {
        experts: 384,
        topk: 8,
        intermediate: 2048,
        router: RouterSpec {
            scoring: Scoring::Sigmoid,
            correction_bias: true,
            groups: 1,
            topk_groups: 1,
            group_score: GroupScore::TopTwoSum,
            normalize: true,
            normalize_eps: 1e-20,
            scale: 2.827,
            logits_bias: false,
        },
        activation: Activation::Silu,
        expert_bias: false,
        format: WeightFormat::Int4Group { group: 32 },
        shared: Some(SharedExpertSpec { intermediate: 2048, gated: false, format: WeightFormat::Bf16 }),
    };
    let layer = |i| LayerSpec {
        attention: Attention::Mla(mla.clone()),
        ffn: if i == 0 { Ffn::Dense(dense.clone()) } else { Ffn::Moe(moe.clone()) },
    };
    ModelSpec {
        name: "moonshotai/Kimi-K2.5".into(),
        model_type: "kimi_k25".into(),
        architecture: "KimiK25ForConditionalGeneration".into(),
        hidden: 7168,
        vocab: 163_840,
        tied_embeddings: false,
        norm_eps: 1e-5,
        max_positions: 262_144,
        dtype: DType::Bf16,
        embedding_format: WeightFormat::Bf16,
        layers: (0..61).map(layer).collect(),
        tensor_prefix: "language_model.".into(),
        outside_graph: Vec::new(),
        warnings: Vec::new(),
        executable: true,
    }
}
