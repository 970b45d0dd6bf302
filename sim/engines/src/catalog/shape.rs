//! The parameters of a model by what shards them.

use super::quantize::{covers_attention, format_of};
use crate::model::Model;
use moetwin_models::ModelSpec;
use moetwin_models::dtype::WeightFormat;
use moetwin_models::spec::{Attention, DenseSpec, Ffn, GqaSpec, LinearAttentionSpec, MlaSpec, MoeSpec};

/// Figures of the catalog that only ledgers need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// Attention parameters of a layer, in 10^6: sharded by heads, replicated. `None`: heads and widths give them.
    pub attention_m: Option<(f64, f64)>,
    /// The same of a linear-attention layer, all sharded.
    pub linear_m: Option<f64>,
    /// Value heads of linear attention (their dimensions are 128).
    pub linear_value_heads: Option<u64>,
    /// The head is the embedding table.
    pub tied: bool,
    /// Towers beside the decoder, GiB in 16 bit.
    pub vision_gib: f64,
    /// A lookup table that may stay on the host, GiB.
    pub table_gib: f64,
    /// Storage of the routed experts where it differs from the rest's.
    pub experts_method: Option<String>,
    /// Layers whose cache is compressed 4 and 128 times (DeepSeek V4).
    pub compressed: Option<(u64, u64)>,
    /// Dimensions of an indexer's key per token in attention layers.
    pub indexer_dim: Option<u64>,
    /// Heads of the indexer's queries.
    pub indexer_heads: Option<u64>,
    /// KV heads and head dimensions of the layers that see everything, where windowed layers have others.
    pub full_heads: Option<(u64, u64)>,
    /// Width at which routed experts work where it is not the hidden size (a projection in front, shared by all experts).
    pub expert_hidden: Option<u64>,
    /// Experts are two matrices with an activation between, no gate beside the first.
    pub ungated: bool,
    /// Every layer has a dense MLP beside its experts.
    pub dense_beside_experts: bool,
    /// Attention parameters of a layer, in 10^6, that engines hold in 16 bit where the GPU lacks a kernel for their 8-bit form.
    pub widened_m: f64,
    /// Layers and width of the vision tower as SGLang reads them off its configuration.
    pub vision: Option<(u64, u64)>,
    /// The vision tower's attention keeps whole score matrices (no fused kernel for its mask).
    pub eager_vision: bool,
}

/// Parameters and their bytes as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    /// Parameters.
    pub params: f64,
    /// Bytes, scales included.
    pub bytes: f64,
}

impl Amount {
    /// Stored matrices `[rows, cols]`.
    fn of(format: WeightFormat, shapes: &[(u64, u64)]) -> Self {
        let mut out = Self::default();
        for &(rows, cols) in shapes {
            out.params += rows as f64 * cols as f64;
            out.bytes += format.matrix_bytes(rows, cols) as f64;
        }
        out
    }
    /// Parameters in a format, where only their number is known.
    fn count(format: WeightFormat, params: f64) -> Self {
        let (rows, cols) = (1024, 1024);
        Self { params, bytes: params * format.matrix_bytes(rows, cols) as f64 / (rows * cols) as f64 }
    }
    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { params: self.params + other.params, bytes: self.bytes + other.bytes }
    }
    /// A multiple.
    #[must_use]
    pub fn times(self, n: f64) -> Self {
        Self { params: self.params * n, bytes: self.bytes * n }
    }
}

/// One decoder layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerParts {
    /// Attention cut by query heads.
    pub attention: Amount,
    /// Key and value projections, cut by at most the KV heads.
    pub kv: Amount,
    /// Attention on every rank.
    pub attention_replicated: Amount,
    /// Copies of latent up-projections that engines make for absorbed decode, cut by heads.
    pub absorbed: Amount,
    /// All routed experts.
    pub experts: Amount,
    /// Shared experts.
    pub shared: Amount,
    /// Dense MLP.
    pub dense: Amount,
    /// Router, norms: on every rank.
    pub replicated: Amount,
}

impl LayerParts {
    /// What the checkpoint holds of it.
    pub fn total(&self) -> Amount {
        [self.attention, self.kv, self.attention_replicated, self.experts, self.shared, self.dense, self.replicated]
            .into_iter()
            .fold(Amount::default(), Amount::plus)
    }
}

/// A model's parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// Decoder layers; empty where only the total is known.
    pub layers: Vec<LayerParts>,
    /// Draft layers of the checkpoint, loaded only with speculation.
    pub mtp: Vec<LayerParts>,
    /// Embedding table.
    pub embedding: Amount,
    /// Head; nothing where it is the table.
    pub head: Amount,
    /// Towers.
    pub vision: Amount,
    /// Lookup table that may stay on the host.
    pub table: Amount,
    /// Everything, where only the total is known.
    pub lump: Amount,
    /// Whether the shape is known rather than spread evenly.
    pub exact: bool,
}

impl Parts {
    /// The parts of a model; `None` where not even its size is known.
    pub fn of(model: &Model) -> Option<Self> {
        if let Some(spec) = &model.spec {
            return Some(of_spec(spec, model));
        }
        of_figures(model).or_else(|| {
            let params = model.total_params_b? * 1e9;
            let lump = Amount::count(format_of(&model.weights), params);
            Some(Self { lump, ..Self::default() })
        })
    }
    /// The checkpoint without draft layers and host tables.
    pub fn total(&self) -> Amount {
        let layers = self.layers.iter().map(LayerParts::total).fold(Amount::default(), Amount::plus);
        [self.embedding, self.head, self.vision, self.lump].into_iter().fold(layers, Amount::plus)
    }
}

fn of_spec(spec: &ModelSpec, model: &Model) -> Parts {
    let plain = spec.plain_format();
    let hidden = spec.hidden;
    let mut layers: Vec<LayerParts> = spec.layers.iter().map(|l| layer(hidden, plain, &l.attention, &l.ffn)).collect();
    for (part, of) in layers.iter_mut().zip(&spec.layers) {
        if let Attention::Mla(attention) = &of.attention {
            part.attention_replicated = part.attention_replicated.plus(indexer(model, hidden, attention));
        }
    }
    let table = Amount::of(spec.embedding_format, &[(spec.vocab, hidden)]);
    let outside: u64 = spec.outside_graph.iter().map(|m| m.bytes_per_rank).sum();
    let mut vision = Amount { params: outside as f64 / 2.0, bytes: outside as f64 };
    if outside == 0 && model.shape.vision_gib > 0.0 {
        vision = tower(model.shape.vision_gib);
    }
    Parts {
        mtp: draft_layers(model, layers.last().copied(), hidden, plain),
        layers,
        embedding: table,
        head: if spec.tied_embeddings { Amount::default() } else { table },
        vision,
        exact: true,
        ..Parts::default()
    }
}

fn tower(gib: f64) -> Amount {
    let bytes = gib * GIB;
    Amount { params: bytes / 2.0, bytes }
}

const GIB: f64 = 1073741824.0;

/// A draft layer is the last decoder layer and a projection from two hidden vectors to one.
fn draft_layers(model: &Model, last: Option<LayerParts>, hidden: u64, plain: WeightFormat) -> Vec<LayerParts> {
    let Some(last) = last else { return Vec::new() };
    let join = Amount::of(plain, &[(hidden, 2 * hidden)]);
    let one = LayerParts { replicated: last.replicated.plus(join), ..last };
    vec![one; usize::try_from(model.mtp_layers.unwrap_or(0).min(8)).unwrap_or(0)]
}

fn layer(hidden: u64, plain: WeightFormat, attention: &Attention, ffn: &Ffn) -> LayerParts {
    let mut out = match attention {
        Attention::Mla(spec) => mla(hidden, plain, spec),
        Attention::Gqa(spec) => gqa(hidden, spec),
        Attention::Linear(spec) => linear(hidden, spec),
    };
    out.replicated = out.replicated.plus(Amount::of(plain, &[(2, hidden)]));
    match ffn {
        Ffn::Dense(DenseSpec { intermediate, format, .. }) => out.dense = mlp(*format, hidden, *intermediate),
        Ffn::Moe(spec) => moe(hidden, plain, spec, &mut out),
    }
    out
}

fn mlp(format: WeightFormat, hidden: u64, width: u64) -> Amount {
    Amount::of(format, &[(2 * width, hidden), (hidden, width)])
}

/// An MLP without a gate.
fn two_layers(format: WeightFormat, hidden: u64, width: u64) -> Amount {
    Amount::of(format, &[(width, hidden), (hidden, width)])
}

fn moe(hidden: u64, plain: WeightFormat, spec: &MoeSpec, out: &mut LayerParts) {
    out.experts = mlp(spec.format, hidden, spec.intermediate).times(f64::from(spec.experts));
    if spec.expert_bias {
        out.experts = out.experts.plus(Amount::of(plain, &[(u64::from(spec.experts), 2 * spec.intermediate + hidden)]));
    }
    out.replicated = out.replicated.plus(Amount::of(plain, &[(u64::from(spec.experts), hidden)]));
    if let Some(shared) = &spec.shared {
        out.shared = mlp(shared.format, hidden, shared.intermediate);
    }
}

fn mla(hidden: u64, plain: WeightFormat, spec: &MlaSpec) -> LayerParts {
    let heads = u64::from(spec.heads);
    let (nope, rope, v, lora) = (u64::from(spec.nope), u64::from(spec.rope_dim), u64::from(spec.v_dim), u64::from(spec.kv_lora));
    let query = heads * (nope + rope);
    let up = (heads * (nope + v), lora);
    let mut sharded = vec![up, (hidden, heads * v)];
    let mut replicated = vec![(lora + rope, hidden)];
    match spec.q_lora.map(u64::from) {
        Some(q_lora) => {
            sharded.push((query, q_lora));
            replicated.push((q_lora, hidden));
        }
        None => sharded.push((query, hidden)),
    }
    LayerParts {
        attention: Amount::of(spec.format, &sharded),
        attention_replicated: Amount::of(spec.format, &replicated),
        absorbed: Amount::of(plain, &[up]),
        ..LayerParts::default()
    }
}

/// The indexer of sparse attention: queries from the query's latent, one key, a weight a head. Every rank holds it whole (`ReplicatedLinear` in both
/// engines): 1.4 of the 55.67 GiB a rank of GLM-5.1 at TP8.
fn indexer(model: &Model, hidden: u64, spec: &MlaSpec) -> Amount {
    let (Some(heads), Some(dim), Some(_)) = (model.shape.indexer_heads, model.shape.indexer_dim, spec.sparse_topk) else {
        return Amount::default();
    };
    let latent = spec.q_lora.map_or(hidden, u64::from);
    Amount::of(spec.format, &[(heads * dim, latent), (dim, hidden), (heads, hidden)])
}

fn gqa(hidden: u64, spec: &GqaSpec) -> LayerParts {
    let (heads, kv, dim) = (u64::from(spec.heads), u64::from(spec.kv_heads), u64::from(spec.head_dim));
    let gate = if spec.output_gate { 2 } else { 1 };
    LayerParts {
        attention: Amount::of(spec.format, &[(gate * heads * dim, hidden), (hidden, heads * dim)]),
        kv: Amount::of(spec.format, &[(2 * kv * dim, hidden)]),
        ..LayerParts::default()
    }
}

fn linear(hidden: u64, spec: &LinearAttentionSpec) -> LayerParts {
    let (key, value) = (u64::from(spec.key_heads) * u64::from(spec.key_dim), u64::from(spec.value_heads) * u64::from(spec.value_dim));
    let rows = 2 * key + 2 * value + 2 * u64::from(spec.value_heads);
    LayerParts { attention: Amount::of(spec.format, &[(rows, hidden), (hidden, value)]), ..LayerParts::default() }
}

/// From figures alone: layers, hidden size and vocabulary must be known.
fn of_figures(model: &Model) -> Option<Parts> {
    let (layers, hidden, vocab) = (model.layers.filter(|l| *l <= 4096)?, model.hidden?, model.vocab?);
    let shape = &model.shape;
    let plain = WeightFormat::Bf16;
    let rest = if model.weights.experts_only { plain } else { format_of(&model.weights) };
    let attention_format = if covers_attention(&model.weights) { format_of(&model.weights) } else { plain };
    let experts_format = match &shape.experts_method {
        Some(method) => format_of(&super::quantize::scheme(method, true)),
        None => format_of(&model.weights),
    };
    let dense_layers = model.dense_layers.unwrap_or(if model.experts.is_some() { 0 } else { layers });
    let full = model.full_attention_layers;
    let mut out = Parts { exact: true, ..Parts::default() };
    for i in 0..layers {
        // Hybrids repeat: the last layer of each period sees everything.
        let is_linear = shape.linear_m.is_some() && full.is_some_and(|f| f > 0 && (i + 1) % (layers / f).max(1) != 0);
        let mut part = LayerParts { replicated: Amount::of(plain, &[(2, hidden)]), ..LayerParts::default() };
        attention_of_figures(model, attention_format, is_linear, i, &mut part)?;
        if let (Some(experts), true) = (model.experts, i >= dense_layers) {
            let width = model.moe_intermediate?;
            let one = |format, hidden| if shape.ungated { two_layers(format, hidden, width) } else { mlp(format, hidden, width) };
            part.experts = one(experts_format, shape.expert_hidden.unwrap_or(hidden)).times(experts as f64);
            part.shared = one(rest, hidden).times(model.shared_experts.unwrap_or(0) as f64);
            part.replicated = part.replicated.plus(Amount::of(plain, &[(experts, hidden)]));
            if let Some(inner) = shape.expert_hidden {
                part.replicated = part.replicated.plus(Amount::of(plain, &[(inner, hidden), (hidden, inner)]));
            }
        }
        if i < dense_layers || shape.dense_beside_experts {
            part.dense = mlp(rest, hidden, model.dense_intermediate?);
        }
        out.layers.push(part);
    }
    out.embedding = Amount::of(plain, &[(vocab, hidden)]);
    out.head = if shape.tied { Amount::default() } else { out.embedding };
    out.vision = tower(shape.vision_gib);
    out.table = tower(shape.table_gib);
    out.mtp = draft_layers(model, out.layers.last().copied(), hidden, attention_format);
    Some(out)
}

fn attention_of_figures(model: &Model, format: WeightFormat, is_linear: bool, index: u64, out: &mut LayerParts) -> Option<()> {
    if let (true, Some(millions)) = (is_linear, model.shape.linear_m) {
        out.attention = Amount::count(format, millions * 1e6);
        return Some(());
    }
    if let Some((sharded, replicated)) = model.shape.attention_m {
        out.attention = Amount::count(format, sharded * 1e6);
        out.attention_replicated = Amount::count(format, replicated * 1e6);
        return Some(());
    }
    let (hidden, heads) = (model.hidden?, model.heads?);
    let (mut kv, mut dim) = (model.kv_heads?, model.head_dim?);
    let windowed = model.sliding_layers.zip(model.full_attention_layers);
    if let (Some((kv_full, dim_full)), Some((_, full))) = (model.shape.full_heads, windowed)
        && full > 0
        && (index + 1).is_multiple_of((model.layers? / full).max(1))
    {
        (kv, dim) = (kv_full, dim_full);
    }
    out.attention = Amount::of(format, &[(heads * dim, hidden), (hidden, heads * dim)]);
    out.kv = Amount::of(format, &[(2 * kv * dim, hidden)]);
    Some(())
}
