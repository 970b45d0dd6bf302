//! What is known of a model: its configuration where it is at hand, else a table's facts, else what the question gives.

use moetwin_models::ModelSpec;
use std::collections::BTreeMap;

/// How attention keeps its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionKind {
    /// Keys and values per KV head.
    #[default]
    Gqa,
    /// One latent per token, replicated on every tensor-parallel rank.
    Mla,
    /// Latent, with an indexer that selects tokens (DeepSeek sparse attention).
    SparseMla,
    /// Some layers are linear attention with a state of fixed size; the rest keep keys and values.
    HybridLinear,
}

/// How weights are stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightScheme {
    /// `bf16`, `fp8`, `nvfp4`, `mxfp4`, `int4`, `awq`, `gptq`, `int8`, `w4afp8`.
    pub method: String,
    /// Name of the method as the checkpoint gives it to the engine: `fp8`, `compressed-tensors`, `modelopt_fp4`, `mxfp4`, `awq`, `gptq`.
    pub checkpoint_method: Option<String>,
    /// Weights that share a scale, rows and columns, where scales are two-dimensional.
    pub block: Option<(u64, u64)>,
    /// Weights that share a scale along the input dimension.
    pub group: Option<u64>,
    /// Only routed experts are quantized; attention, shared experts and head are not.
    pub experts_only: bool,
    /// Activations stay in 16 bit (W4A16) although the format has kernels with quantized ones.
    pub weight_only: bool,
}

/// A model as rules and ledgers see it. A figure is `None` where nobody knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// Name for people.
    pub name: String,
    /// Outermost class in `architectures`.
    pub class: Option<String>,
    /// The whole configuration, where it is built in. Every figure below agrees with it.
    pub spec: Option<ModelSpec>,
    /// Kind of attention.
    pub attention: AttentionKind,
    /// Wrapped in a multimodal class.
    pub multimodal: bool,
    /// Whether it has routed experts.
    pub moe: bool,
    /// Attention sinks (gpt-oss).
    pub sinks: bool,
    /// Router weights multiply the experts' input (Llama 4).
    pub router_weight_on_input: bool,
    /// Decoder layers.
    pub layers: Option<u64>,
    /// Hidden size.
    pub hidden: Option<u64>,
    /// Query heads.
    pub heads: Option<u64>,
    /// Key-value heads.
    pub kv_heads: Option<u64>,
    /// Dimensions of a head.
    pub head_dim: Option<u64>,
    /// Rank of the latent.
    pub kv_lora: Option<u64>,
    /// Rotary dimensions beside the latent.
    pub rope_dim: Option<u64>,
    /// Vocabulary.
    pub vocab: Option<u64>,
    /// Routed experts.
    pub experts: Option<u64>,
    /// Experts a token goes to.
    pub topk: Option<u64>,
    /// Shared experts (counted in widths of a routed one).
    pub shared_experts: Option<u64>,
    /// Width of a routed expert.
    pub moe_intermediate: Option<u64>,
    /// Width of the dense layers.
    pub dense_intermediate: Option<u64>,
    /// Leading dense layers.
    pub dense_layers: Option<u64>,
    /// Columns of the small projections of linear attention (one per value head), where there are any.
    pub linear_heads: Option<u64>,
    /// Layers that keep keys and values of every token; all unless some are linear.
    pub full_attention_layers: Option<u64>,
    /// Window of sliding-window layers.
    pub sliding_window: Option<u64>,
    /// Sliding-window layers.
    pub sliding_layers: Option<u64>,
    /// Longest position.
    pub max_positions: Option<u64>,
    /// Multi-token-prediction layers in the checkpoint.
    pub mtp_layers: Option<u64>,
    /// Parameters, in 10^9.
    pub total_params_b: Option<f64>,
    /// Parameters a token multiplies with, in 10^9.
    pub active_params_b: Option<f64>,
    /// Size of the checkpoint, GiB.
    pub checkpoint_gib: Option<f64>,
    /// Bytes of cache per token and layer with an fp8 cache, where the layout is not one of the usual ones.
    pub kv_bytes_per_token_layer_fp8: Option<u64>,
    /// How weights are stored.
    pub weights: WeightScheme,
    /// The checkpoint is known to be stored without quantization and without a configuration of one.
    pub unquantized: bool,
    /// What ledgers need beyond the figures above, from the catalog.
    pub shape: crate::catalog::Shape,
    /// Every figure of the question, also those without a field here.
    pub given: BTreeMap<String, f64>,
    /// Where the figures come from, for people.
    pub source: String,
    /// What was assumed.
    pub assumptions: Vec<String>,
}
