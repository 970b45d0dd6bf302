//! Which measured kernel a graph node is, and of what shape.

use super::attention::Geometry;
use super::rates::Element;
use super::table::Family;
use super::{AttentionShape, ExpertsShape, GemmShape};
use moetwin_kernels::cost::{CostFacts, CostShape};
use moetwin_models::{Graph, Node, Op, Phase, RankId, TensorKind, WeightFormat};

/// A question to a cost table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Query {
    /// A dense GEMM.
    Gemm(GemmShape, Element),
    /// A rank's routed experts.
    Experts(ExpertsShape, Element),
    /// MLA over the cache; the element type is the cache's.
    MlaDecode(AttentionShape, CacheType),
    /// MLA over the prompt.
    MlaPrefill(AttentionShape, CacheType),
    /// Grouped-query attention over the cache.
    GqaDecode(AttentionShape, GqaShape, CacheType),
}

/// Geometry of grouped-query attention on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GqaShape {
    /// Key-value heads held here.
    pub kv_heads: u64,
    /// Dimensions of a head.
    pub head_dim: u64,
    /// Latest tokens that are read, 0 for all.
    pub window: u64,
}

/// Element type of a KV cache, as tables tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheType {
    /// Two bytes.
    Bf16,
    /// One byte.
    Fp8,
}

impl CacheType {
    /// The word tables use.
    pub fn table_word(self) -> &'static str {
        match self {
            CacheType::Bf16 => "bfloat16",
            CacheType::Fp8 => "fp8",
        }
    }
    /// Bytes of an element.
    pub(super) fn bytes(self) -> f64 {
        match self {
            CacheType::Bf16 => 2.0,
            CacheType::Fp8 => 1.0,
        }
    }
}

impl GqaShape {
    pub(super) fn geometry(self) -> Geometry {
        Geometry::gqa(self.kv_heads, self.head_dim, self.window)
    }
}

impl Query {
    /// The table family that answers.
    pub fn family(&self) -> Family {
        match self {
            Query::Gemm(..) => Family::Gemm,
            Query::Experts(..) => Family::Moe,
            Query::MlaDecode(..) => Family::MlaDecode,
            Query::MlaPrefill(..) => Family::MlaPrefill,
            Query::GqaDecode(..) => Family::GqaDecode,
        }
    }
    /// The word by which tables know the weights' or the cache's element type.
    pub fn element_word(&self) -> &'static str {
        match self {
            Query::Gemm(_, element) | Query::Experts(_, element) => element.table_word(),
            Query::MlaDecode(_, cache) | Query::MlaPrefill(_, cache) | Query::GqaDecode(.., cache) => cache.table_word(),
        }
    }
    /// The same question of a cache in bf16; `None` where this one's cache is, or none is read.
    pub(super) fn over_bf16(&self) -> Option<Self> {
        match *self {
            Query::MlaDecode(shape, CacheType::Fp8) => Some(Query::MlaDecode(shape, CacheType::Bf16)),
            Query::MlaPrefill(shape, CacheType::Fp8) => Some(Query::MlaPrefill(shape, CacheType::Bf16)),
            Query::GqaDecode(shape, gqa, CacheType::Fp8) => Some(Query::GqaDecode(shape, gqa, CacheType::Bf16)),
            _ => None,
        }
    }
    /// The question that a node's cost asks, `None` where no table family measures such kernels.
    pub fn of(graph: &Graph, node: &Node, rank: RankId, facts: &CostFacts) -> Option<Self> {
        match (&node.op, &facts.shape) {
            (Op::Linear { .. }, &CostShape::Gemm { m, n, k }) => {
                let element = element(weight_format(graph, node)?);
                (m > 0 && n > 0 && k > 0).then_some(Query::Gemm(GemmShape { m, n, k }, element))
            }
            (Op::Experts { .. }, &CostShape::Experts { hidden, intermediate, local_experts, distinct, pairs, .. }) => {
                let shape = ExpertsShape { hidden, intermediate, local_experts: u64::from(local_experts), distinct, pairs };
                let real = hidden > 0 && intermediate > 0 && local_experts > 0;
                real.then_some(Query::Experts(shape, element(weight_format(graph, node)?)))
            }
            (Op::MlaDecode { .. }, &CostShape::Attention { heads, batch, tokens, kv_rows }) => {
                let shape = AttentionShape { heads, batch, tokens, kv_rows };
                (tokens > 0 && heads > 0).then_some(Query::MlaDecode(shape, cache_dtype(graph, node)))
            }
            (Op::MlaPrefill { .. }, &CostShape::Attention { heads, batch, tokens, kv_rows }) => {
                let shape = AttentionShape { heads, batch, tokens, kv_rows };
                (tokens > 0 && heads > 0).then_some(Query::MlaPrefill(shape, cache_dtype(graph, node)))
            }
            (&Op::GqaAttention { head_dim, window, .. }, &CostShape::Attention { heads, batch, tokens, kv_rows }) => {
                let shape = AttentionShape { heads, batch, tokens, kv_rows };
                let decode = graph.step.phase != Phase::Prefill;
                let gqa = gqa_shape(graph, node, rank, u64::from(head_dim), window.map_or(0, u64::from))?;
                (decode && tokens > 0 && heads > 0).then_some(Query::GqaDecode(shape, gqa, cache_dtype(graph, node)))
            }
            _ => None,
        }
    }
}

fn gqa_shape(graph: &Graph, node: &Node, rank: RankId, head_dim: u64, window: u64) -> Option<GqaShape> {
    let cache = *node.inputs.get(1)?;
    let width = *graph.local_sizes(cache, rank).ok()?.get(1)?;
    let kv_heads = width.checked_div(2 * head_dim)?;
    (kv_heads > 0).then_some(GqaShape { kv_heads, head_dim, window })
}

pub(super) fn weight_format(graph: &Graph, node: &Node) -> Option<WeightFormat> {
    node.inputs.iter().find_map(|t| match graph.tensors.get(*t)?.kind {
        TensorKind::Weight(weight) => Some(weight.format),
        _ => None,
    })
}

fn cache_dtype(graph: &Graph, node: &Node) -> CacheType {
    let is_cache = |kind: &TensorKind| matches!(kind, TensorKind::Cache { .. } | TensorKind::CacheUpdate { .. });
    let cache = node.inputs.iter().filter_map(|t| graph.tensors.get(*t)).find(|t| is_cache(&t.kind));
    let dtype = cache.map_or(graph.deployment.kv_dtype, |t| t.dtype);
    if dtype.bytes() == 1 { CacheType::Fp8 } else { CacheType::Bf16 }
}

fn element(format: WeightFormat) -> Element {
    match format {
        WeightFormat::Bf16 | WeightFormat::F16 | WeightFormat::F32 => Element::Bf16,
        WeightFormat::Fp8Block { .. } => Element::Fp8Block,
        WeightFormat::Int4Group { .. } => Element::Int4,
        WeightFormat::Nvfp4 => Element::Nvfp4,
        WeightFormat::Mxfp4 => Element::Mxfp4,
    }
}
