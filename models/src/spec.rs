//! What a model is: the facts of a `config.json` that decide its graph, its weights and its cost.

use crate::dtype::{DType, WeightFormat};
use serde::{Deserialize, Serialize};

/// A model, read from its configuration. Every family reduces to this.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelSpec {
    /// Name for reports: a hub id or a folder name.
    pub name: String,
    /// `model_type` of the text decoder.
    pub model_type: String,
    /// Outermost class in `architectures`; engines look hooks up on it, not on what it wraps.
    pub architecture: String,
    /// Hidden size.
    pub hidden: u64,
    /// Vocabulary size.
    pub vocab: u64,
    /// Whether the head is the embedding table.
    pub tied_embeddings: bool,
    /// Epsilon of the layer norms and the final norm.
    pub norm_eps: f64,
    /// Longest position the configuration allows.
    pub max_positions: u64,
    /// Element type of activations and of unquantized weights.
    pub dtype: DType,
    /// Format of the embedding table and of the head.
    pub embedding_format: WeightFormat,
    /// The decoder layers in order.
    pub layers: Vec<LayerSpec>,
    /// What precedes `model.` in checkpoint tensor names (`language_model.` for multimodal wrappers).
    pub tensor_prefix: String,
    /// Modules that take memory but are not part of the graph.
    pub outside_graph: Vec<OutsideModule>,
    /// What the graph leaves out, for people.
    pub warnings: Vec<String>,
    /// Whether the reference can execute this model (some families are modelled for cost only).
    pub executable: bool,
    /// Multi-token-prediction layers of the checkpoint, which only speculative decoding loads.
    pub mtp_layers: u32,
    /// Hidden-size inputs that a draft model fuses before its first layer; 0 for models that read token ids alone.
    pub fused_inputs: u32,
}

/// A module that the ledger counts and the graph leaves out (vision tower, multi-token-prediction layer).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutsideModule {
    /// Name for the ledger.
    pub name: String,
    /// Bytes of weights on each rank (such modules are replicated).
    pub bytes_per_rank: u64,
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerSpec {
    /// The attention (or token mixer) block.
    pub attention: Attention,
    /// The feed-forward block.
    pub ffn: Ffn,
}

/// Token mixer of a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Attention {
    /// Multi-head latent attention.
    Mla(MlaSpec),
    /// Grouped-query attention.
    Gqa(GqaSpec),
    /// Gated linear attention; cost only.
    Linear(LinearAttentionSpec),
}

/// Multi-head latent attention (DeepSeek-V2 and later, Kimi).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MlaSpec {
    /// Query heads.
    pub heads: u32,
    /// Rank of the query compression, `None` where queries are projected directly.
    pub q_lora: Option<u32>,
    /// Rank of the key-value compression.
    pub kv_lora: u32,
    /// Dimensions of a head without position.
    pub nope: u32,
    /// Dimensions of a head with rotary position.
    pub rope_dim: u32,
    /// Dimensions of a value head.
    pub v_dim: u32,
    /// Rotary embedding of the `rope_dim` part.
    pub rope: RopeSpec,
    /// Multiplier of the scores before softmax, YaRN's correction included.
    pub softmax_scale: f64,
    /// Epsilon of the norms on the compressed query and key-value.
    pub latent_norm_eps: f64,
    /// Whether the projections carry biases (q_a, kv_a, o).
    pub bias: bool,
    /// Format of the projection weights.
    pub format: WeightFormat,
    /// Tokens that the lightning indexer of sparse attention selects; cost only.
    pub sparse_topk: Option<u32>,
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GqaSpec {
    /// Query heads.
    pub heads: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// Dimensions of a head.
    pub head_dim: u32,
    /// Rotary embedding, `None` for layers without position.
    pub rope: Option<RopeSpec>,
    /// Multiplier of the scores before softmax.
    pub softmax_scale: f64,
    /// Bias on the q, k and v projections.
    pub qkv_bias: bool,
    /// Bias on the output projection.
    pub o_bias: bool,
    /// RMSNorm on queries and keys before the rotation.
    pub qk_norm: QkNorm,
    /// Queries, keys and values are clamped to at most this in size, after [`QkNorm::Full`] and before the rotation (OLMoE's `clip_qkv`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// Only this many latest tokens are attended to.
    pub window: Option<u32>,
    /// A learned score per head that takes part in the softmax and carries no value.
    pub sinks: bool,
    /// The output is multiplied by the sigmoid of a gate projected with the queries; cost only.
    pub output_gate: bool,
    /// Format of the projection weights.
    pub format: WeightFormat,
}

/// RMSNorm on queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum QkNorm {
    /// None.
    None,
    /// Over each head, weights shared by the heads.
    PerHead,
    /// Over the whole projection (OLMoE).
    Full,
}

/// Gated linear attention (gated delta net); cost only.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinearAttentionSpec {
    /// Key heads.
    pub key_heads: u32,
    /// Value heads.
    pub value_heads: u32,
    /// Dimensions of a key head.
    pub key_dim: u32,
    /// Dimensions of a value head.
    pub value_dim: u32,
    /// Width of the causal convolution.
    pub conv_width: u32,
    /// Format of the projection weights.
    pub format: WeightFormat,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeSpec {
    /// Rotated dimensions (the first ones of a head).
    pub dim: u32,
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// Long-context scaling.
    pub scaling: RopeScaling,
    /// Pairs are (0,1),(2,3).. rather than (0,d/2),(1,d/2+1)...
    pub interleaved: bool,
}

/// Long-context scaling of rotary frequencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// None.
    None,
    /// Frequencies divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// YaRN.
    Yarn {
        /// Context extension factor.
        factor: f64,
        /// Context of the original training.
        original_positions: f64,
        /// Rotations above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which a frequency is interpolated.
        beta_slow: f64,
        /// Multiplier of cos and sin.
        attention_factor: f64,
        /// Whether the correction range is rounded to whole dimensions.
        truncate: bool,
    },
    /// Llama 3.
    Llama3 {
        /// Context extension factor.
        factor: f64,
        /// Context of the original training.
        original_positions: f64,
        /// Wavelengths above `original / low` are scaled.
        low_freq_factor: f64,
        /// Wavelengths below `original / high` are kept.
        high_freq_factor: f64,
    },
}

/// Feed-forward block of a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Ffn {
    /// One gated MLP.
    Dense(DenseSpec),
    /// Mixture of experts.
    Moe(MoeSpec),
}

/// A gated MLP.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DenseSpec {
    /// Intermediate size.
    pub intermediate: u64,
    /// Activation.
    pub activation: Activation,
    /// Whether the projections carry biases (`mlp_bias` of DeepSeek-V2).
    #[serde(skip_serializing_if = "is_false")]
    pub bias: bool,
    /// Format of the weights.
    pub format: WeightFormat,
}

/// For parameters that are seldom there: what is written of a model without them reads as if they did not exist.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
pub(crate) fn is_false(b: &bool) -> bool {
    !b
}

/// Gated activations: gate and up in, their product out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `silu(gate) * up`.
    Silu,
    /// gpt-oss: gate clamped to at most `limit`, up to `[-limit, limit]`, `(up + 1) * gate * sigmoid(alpha * gate)`.
    ClampedSwiglu {
        /// Steepness of the sigmoid.
        alpha: f64,
        /// Clamp.
        limit: f64,
    },
}

/// A mixture-of-experts block.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MoeSpec {
    /// Routed experts.
    pub experts: u32,
    /// Experts a token goes to.
    pub topk: u32,
    /// Intermediate size of an expert.
    pub intermediate: u64,
    /// How scores become ids and weights.
    pub router: RouterSpec,
    /// Activation.
    pub activation: Activation,
    /// Biases on the expert projections (gpt-oss).
    pub expert_bias: bool,
    /// Format of the routed experts' weights.
    pub format: WeightFormat,
    /// The expert every token goes to.
    pub shared: Option<SharedExpertSpec>,
}

/// A shared expert beside the routed ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedExpertSpec {
    /// Intermediate size.
    pub intermediate: u64,
    /// Its output is multiplied by the sigmoid of a learned score (Qwen2-MoE).
    pub gated: bool,
    /// Whether the projections carry biases (`mlp_bias` of DeepSeek-V2).
    #[serde(skip_serializing_if = "is_false")]
    pub bias: bool,
    /// Format of the weights.
    pub format: WeightFormat,
}

/// How router logits become expert ids and weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouterSpec {
    /// Scores from logits.
    pub scoring: Scoring,
    /// A learned bias takes part in the choice, not in the weights.
    pub correction_bias: bool,
    /// Experts are cut in this many contiguous groups.
    pub groups: u32,
    /// Only the best groups take part.
    pub topk_groups: u32,
    /// Group score: the sum of its two best biased scores (V3) or its best score (V2).
    pub group_score: GroupScore,
    /// Weights divided by their sum.
    pub normalize: bool,
    /// Added to that sum.
    pub normalize_eps: f64,
    /// Weights multiplied by this after normalization.
    pub scale: f64,
    /// The router projection has a bias (gpt-oss).
    pub logits_bias: bool,
}

/// Scores from router logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// Sigmoid of each logit.
    Sigmoid,
    /// Softmax over all experts.
    Softmax,
    /// Softmax over the chosen experts' logits only (gpt-oss).
    SoftmaxTopk,
}

/// Score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupScore {
    /// Best score in the group.
    Max,
    /// Sum of the two best scores in the group.
    TopTwoSum,
}
