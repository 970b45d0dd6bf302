//! Which weight a graph tensor is, in the model's own terms. Loaders map it to checkpoint names, the ledger to a line.

use crate::dtype::WeightFormat;
use serde::{Deserialize, Serialize};

/// What a weight is for. Fused weights (qkv, gate and up, q_a with kv_a, all experts of a layer) are one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightRole {
    /// `[vocab, hidden]`.
    Embedding,
    /// `[vocab, hidden]`; the embedding table itself where tied.
    LmHead,
    /// `[hidden]`.
    FinalNorm,
    /// `[hidden]`, before attention.
    InputNorm,
    /// `[hidden]`, before the feed-forward block.
    PostAttentionNorm,
    /// `[q | k | v, hidden]`.
    Qkv,
    /// `[q | k | v]`.
    QkvBias,
    /// `[head_dim]`, or `[q]` where the norm spans the projection.
    QNorm,
    /// `[head_dim]`, or `[k]` where the norm spans the projection.
    KNorm,
    /// `[heads]`.
    Sinks,
    /// MLA: `[q_lora | kv_lora | rope, hidden]`.
    QaKva,
    /// MLA without query compression: `[heads * (nope + rope), hidden]`.
    QDirect,
    /// MLA without query compression: `[kv_lora | rope, hidden]`.
    Kva,
    /// MLA: bias of [`WeightRole::QaKva`] or [`WeightRole::Kva`].
    QaKvaBias,
    /// MLA: `[q_lora]`.
    QaNorm,
    /// MLA: `[kv_lora]`.
    KvaNorm,
    /// MLA: `[heads * (nope + rope), q_lora]`.
    Qb,
    /// MLA: `[heads * (nope + v), kv_lora]`.
    KvB,
    /// `[hidden, heads * v]`.
    O,
    /// `[hidden]`.
    OBias,
    /// `[gate | up, hidden]` of a dense MLP.
    DenseGateUp,
    /// `[hidden, intermediate]` of a dense MLP.
    DenseDown,
    /// Bias of [`WeightRole::DenseGateUp`], `[gate | up]`.
    DenseGateUpBias,
    /// Bias of [`WeightRole::DenseDown`], `[hidden]`.
    DenseDownBias,
    /// `[experts, hidden]`.
    Router,
    /// `[experts]`, added to router logits.
    RouterBias,
    /// `[experts]`, added to scores for the choice only.
    CorrectionBias,
    /// `[experts, gate | up, hidden]`.
    ExpertsGateUp,
    /// `[experts, gate | up]`.
    ExpertsGateUpBias,
    /// `[experts, hidden, intermediate]`.
    ExpertsDown,
    /// `[experts, hidden]`.
    ExpertsDownBias,
    /// `[gate | up, hidden]` of the shared expert.
    SharedGateUp,
    /// `[hidden, intermediate]` of the shared expert.
    SharedDown,
    /// Bias of [`WeightRole::SharedGateUp`], `[gate | up]`.
    SharedGateUpBias,
    /// Bias of [`WeightRole::SharedDown`], `[hidden]`.
    SharedDownBias,
    /// `[1, hidden]`, the score that gates the shared expert.
    SharedGate,
    /// A projection of a cost-only block; `index` tells them apart.
    Other(u8),
}

/// A weight of a graph: role, layer and storage format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WeightRef {
    /// What it is for.
    pub role: WeightRole,
    /// Decoder layer, `None` for embedding, final norm and head.
    pub layer: Option<u16>,
    /// How it is stored.
    pub format: WeightFormat,
}
