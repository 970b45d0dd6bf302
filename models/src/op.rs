//! The closed set of operations. One op is one command on a rank; each variant's doc is its exact meaning, which
//! the CPU reference implements and every other executor is compared with.
//!
//! Notation: `x[A, B]` is a tensor; `T` new tokens, `H` hidden, `R` rows. Weights are `[out, in]`.

use crate::deployment::Axis;
use crate::spec::{Activation, RopeSpec, RouterSpec, is_false};
use serde::{Deserialize, Serialize};

/// An operation of the graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// `(ids[T], table[V, H]) -> x[T, H]`. A rank that holds a slice of the vocabulary writes zeros for ids outside it (result partial).
    Embed,
    /// `(x[T, H], w[H]) -> y[T, H]`, `y = x / sqrt(mean(x^2) + eps) * w`.
    RmsNorm {
        /// Added to the mean square.
        eps: f64,
    },
    /// `(delta[T, H], residual[T, H], w[H]) -> (y[T, H], sum[T, H])`: `sum = delta + residual`, `y = rmsnorm(sum)`.
    AddRmsNorm {
        /// Added to the mean square.
        eps: f64,
    },
    /// `(a, b) -> a + b`, equal shapes; both operands may be partial over the same axis.
    Add,
    /// `(x[T, K], w[N, K][, bias[N]]) -> y[T, N] = x w^T + bias`. Where `K` is cut the result is partial and
    /// only the first rank of the axis adds the bias.
    Linear {
        /// What it computes, for cost tables and reports.
        role: LinearRole,
    },
    /// `(gate_up[T, gate | up]) -> h[T, I]`.
    GatedActivation {
        /// Which activation.
        activation: Activation,
    },
    /// `(y[T, H], score[T, 1]) -> y * sigmoid(score)`, or element by element with `score[T, H]`. `y` may be partial, `score` not.
    SigmoidScale,
    /// `(qkv[T, q | k | v], q_norm[q], k_norm[k]) -> qkv`: RMSNorm of the whole q part and of the whole k part of a row, v passes
    /// through (OLMoE). The mean square spans all heads, so a rank needs every head's columns. With `clip`, every element of the result,
    /// v included, is then clamped to `-clip..=clip`.
    QkNorm {
        /// Added to the mean square.
        eps: f64,
        /// Largest size of an element.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clip: Option<f64>,
    },
    /// Grouped-query attention, before the scores: `(qkv[T, q | k | v], positions[T], cache[KvRows, k | v][, q_norm, k_norm]) -> (q[T, q], cache)`.
    /// Optional per-head RMSNorm on q and k, rotation of q and k, append of k and v to the cache.
    QkvPrepare {
        /// Dimensions of a head.
        head_dim: u32,
        /// Rotary embedding.
        rope: Option<RopeSpec>,
        /// Epsilon of the per-head norms, `None` without norms.
        qk_norm_eps: Option<f64>,
    },
    /// `(q[T, heads], cache[KvRows, k | v][, sinks[heads]]) -> o[T, heads * head_dim]`, causal within each sequence.
    /// With `split_context` a rank attends to the cache rows that it holds and also returns the logarithm of each head's sum of exponentials:
    /// `-> (o[T, heads * head_dim, dcp], lse[T, heads, dcp])`, both cut over dcp in their last dimension. Only the first rank of dcp counts the sinks.
    GqaAttention {
        /// Dimensions of a head.
        head_dim: u32,
        /// Multiplier of the scores.
        scale: f64,
        /// Only this many latest tokens (the token itself included).
        window: Option<u32>,
        /// Whether the cache rows are cut over the ranks of decode context parallelism.
        #[serde(default, skip_serializing_if = "is_false")]
        split_context: bool,
    },
    /// MLA: `(qkv_a[T, q_lora | kv_lora | rope], q_norm[q_lora], kv_norm[kv_lora]) -> (q_a[T, q_lora], latent[T, kv_lora | rope])`;
    /// without query compression `(kv_a[T, kv_lora | rope], kv_norm) -> (latent)`. The rope part passes through.
    MlaNorm {
        /// Epsilon of both norms.
        eps: f64,
        /// Rank of the query compression.
        q_lora: Option<u32>,
        /// Rank of the key-value compression.
        kv_lora: u32,
    },
    /// MLA: `(q[T, heads * (nope | rope)], latent[T, kv_lora | rope], positions[T], cache[KvRows, kv_lora | rope]) -> (q, cache)`:
    /// rotates the rope part of every query head and of the latent, appends the latent to the cache.
    /// An interleaved input comes out as halves (evens, then odds), for q and k alike.
    MlaRope {
        /// Dimensions of a query head without position.
        nope: u32,
        /// Rotary embedding.
        rope: RopeSpec,
    },
    /// MLA, absorbed: `(q[T, heads * (nope | rope)], kv_b[heads * (nope | v), kv_lora]) -> q_latent[T, heads * (kv_lora | rope)]`:
    /// per head `q_nope W_UK`, the rope part passes through.
    MlaAbsorbQuery {
        /// Dimensions of a query head without position.
        nope: u32,
        /// Dimensions of a query head with position.
        rope_dim: u32,
        /// Dimensions of a value head.
        v_dim: u32,
    },
    /// MLA, absorbed: `(q_latent[T, heads * (kv_lora | rope)], cache[KvRows, kv_lora | rope][, selection[T, k]]) -> o_latent[T, heads * kv_lora]`,
    /// causal within each sequence. With a selection ([`Op::SparseIndex`]) only the selected rows are read; cost only.
    /// With `split_context` as in [`Op::GqaAttention`]: `-> (o_latent[T, heads * kv_lora, dcp], lse[T, heads, dcp])`.
    MlaDecode {
        /// Rank of the key-value compression.
        kv_lora: u32,
        /// Multiplier of the scores.
        scale: f64,
        /// Tokens that sparse attention reads at most.
        sparse_topk: Option<u32>,
        /// Whether the cache rows are cut over the ranks of decode context parallelism.
        #[serde(default, skip_serializing_if = "is_false")]
        split_context: bool,
    },
    /// `(o[T, heads * w, dcp], lse[T, heads, dcp]) -> o[T, heads * w]`: what a rank's own cache rows contribute, `o exp(lse_own - log sum exp(lse))`
    /// over the ranks of dcp, so that the sum over those ranks is attention over the whole context. A head without any row contributes zeros.
    MergeContext,
    /// MLA, absorbed: `(o_latent[T, heads * kv_lora], kv_b[heads * (nope | v), kv_lora]) -> o[T, heads * v]`: per head `W_UV o_latent`.
    MlaExpandValue {
        /// Dimensions of a query head without position.
        nope: u32,
        /// Dimensions of a value head.
        v_dim: u32,
    },
    /// MLA, expanded: `(cache[KvRows, kv_lora | rope], kv_b[heads * (nope | v), kv_lora]) -> kv[KvRows, heads * (nope | v)]`.
    MlaExpandKv,
    /// MLA, expanded: `(q[T, heads * (nope | rope)], kv[KvRows, heads * (nope | v)], cache[KvRows, kv_lora | rope]) -> o[T, heads * v]`, causal.
    MlaPrefill {
        /// Dimensions of a query head without position.
        nope: u32,
        /// Dimensions of a value head.
        v_dim: u32,
        /// Multiplier of the scores.
        scale: f64,
    },
    /// `(logits[T, E][, correction_bias[E]]) -> (ids[T, k], weights[T, k])`. Highest biased score first, ties to the lowest id.
    Route {
        /// The rule.
        router: RouterSpec,
        /// Experts a token goes to.
        topk: u32,
    },
    /// `(ids[T, k]) -> slots[T, k]`: physical slot of each chosen expert under the deployment's placement; an expert with several slots
    /// uses number `token index % slots`. Only present where the deployment has a placement; later ops then speak of slots.
    PlaceExperts,
    /// `(x[T, H], ids[T, k], weights[T, k], gate_up[E, gate | up, H], down[E, H, I][, gate_up_bias, down_bias]) -> y[T, H]`:
    /// the weighted sum over the token's experts that this rank holds (partial over ep and moe_tp where they cut).
    /// A down bias is added by the first rank of moe_tp only. An id of -1 is no expert.
    Experts {
        /// Which activation.
        activation: Activation,
    },
    /// `(x[T, H], ids[T, k], weights[T, k]) -> (x[Received, H], ids[Received, k], weights[Received, k])` over ep: each row goes once to every rank that
    /// holds one of its experts, into the slot (source rank, row); slots not sent to have ids -1.
    Dispatch,
    /// `(y[Received, H]) -> y[T, H]` over ep: the rows come back and are summed in rank order.
    Combine,
    /// `(x[T, H]) -> x[LogitsRows, H]`: the rows that reach the head.
    SelectRows,
    /// `(logits[LogitsRows, V]) -> ids[LogitsRows]`, ties to the lowest id.
    Argmax,
    /// Linear attention (gated delta net) with its convolution and state update; cost only:
    /// `(qkvz[T, q | k | v | z], ba[T, b | a], conv[q | k | v, width]) -> o[T, value_heads * value_dim]`. The state
    /// (`value_heads x key_dim x value_dim` and the last inputs of the convolution, for each sequence) is not a tensor of the graph.
    LinearAttention {
        /// Key heads.
        key_heads: u32,
        /// Value heads.
        value_heads: u32,
        /// Dimensions of a key head.
        key_dim: u32,
        /// Dimensions of a value head.
        value_dim: u32,
        /// Width of the causal convolution.
        conv_width: u32,
    },
    /// Scores of the lightning indexer of sparse attention, `(x[T, H], cache[KvRows, ..]) -> selection[T, topk]`; cost only.
    SparseIndex {
        /// Tokens selected.
        topk: u32,
    },
    /// `(x partial over axis) -> x replicated`, summed in rank order.
    AllReduce {
        /// Ranks that take part.
        axis: Axis,
    },
    /// An all-reduce and the norm behind it as one command: `(delta[T, H] partial over axis, residual[T, H], w[H]) -> (y[T, H], sum[T, H])`.
    /// What [`Op::AllReduce`] and then [`Op::AddRmsNorm`] compute, bit for bit. No plan has it: [`crate::fuse`] makes it of the two.
    AllReduceAddRmsNorm {
        /// Ranks that take part.
        axis: Axis,
        /// Added to the mean square.
        eps: f64,
    },
    /// `(x cut along dim) -> x whole`.
    AllGather {
        /// Ranks that take part.
        axis: Axis,
        /// The dimension that becomes whole.
        dim: u8,
    },
    /// `(x partial over axis) -> x cut along dim`, summed in rank order.
    ReduceScatter {
        /// Ranks that take part.
        axis: Axis,
        /// The dimension that is cut.
        dim: u8,
    },
    /// `(x replicated over axis) -> x cut along dim`; no communication.
    Slice {
        /// Ranks over which the result is cut.
        axis: Axis,
        /// The dimension that is cut.
        dim: u8,
    },
    /// `(x) -> x` on the same position of a later pipeline stage.
    SendRecv {
        /// Stage that sends.
        from: u16,
        /// Stage that receives.
        to: u16,
    },
}

/// What a [`Op::Linear`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinearRole {
    /// Fused q, k, v.
    Qkv,
    /// MLA's compressing projections.
    QaKva,
    /// MLA's query expansion, or direct query projection.
    Qb,
    /// Attention output.
    O,
    /// Router logits.
    Router,
    /// Gate and up of a dense MLP.
    DenseGateUp,
    /// Down of a dense MLP.
    DenseDown,
    /// Gate and up of the shared expert.
    SharedGateUp,
    /// Down of the shared expert.
    SharedDown,
    /// Score of the shared expert.
    SharedGate,
    /// Logits.
    LmHead,
    /// A projection of a cost-only block.
    Other,
}

/// Class of an op in breakdowns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OpClass {
    /// Token embedding.
    Embedding,
    /// Norms, residual sums and activations outside attention.
    Elementwise,
    /// Projections of attention.
    AttentionProjection,
    /// Scores, softmax, values, cache.
    AttentionCore,
    /// Router projection and choice.
    Router,
    /// Routed experts.
    Experts,
    /// Shared expert.
    SharedExpert,
    /// Dense MLP layers.
    DenseMlp,
    /// Logits and sampling.
    Head,
    /// All-reduce, with the norm that is fused into it.
    AllReduce,
    /// All-gather and reduce-scatter.
    GatherScatter,
    /// Expert dispatch and combine.
    AllToAll,
    /// Pipeline sends.
    SendRecv,
}

impl OpClass {
    /// Every class.
    pub const ALL: [OpClass; 13] = [
        OpClass::Embedding,
        OpClass::Elementwise,
        OpClass::AttentionProjection,
        OpClass::AttentionCore,
        OpClass::Router,
        OpClass::Experts,
        OpClass::SharedExpert,
        OpClass::DenseMlp,
        OpClass::Head,
        OpClass::AllReduce,
        OpClass::GatherScatter,
        OpClass::AllToAll,
        OpClass::SendRecv,
    ];

    /// Lower-case name as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            OpClass::Embedding => "embedding",
            OpClass::Elementwise => "elementwise",
            OpClass::AttentionProjection => "attention_projection",
            OpClass::AttentionCore => "attention_core",
            OpClass::Router => "router",
            OpClass::Experts => "experts",
            OpClass::SharedExpert => "shared_expert",
            OpClass::DenseMlp => "dense_mlp",
            OpClass::Head => "head",
            OpClass::AllReduce => "all_reduce",
            OpClass::GatherScatter => "gather_scatter",
            OpClass::AllToAll => "all_to_all",
            OpClass::SendRecv => "send_recv",
        }
    }
}

impl Op {
    /// Whether ranks exchange data.
    pub fn is_communication(&self) -> bool {
        matches!(
            self,
            Op::Dispatch
                | Op::Combine
                | Op::AllReduce { .. }
                | Op::AllReduceAddRmsNorm { .. }
                | Op::AllGather { .. }
                | Op::ReduceScatter { .. }
                | Op::SendRecv { .. }
        )
    }
    /// Name as in JSON: what kernels of this op are called in traces.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::AddRmsNorm { .. } => "add_rms_norm",
            Op::Add => "add",
            Op::Linear { .. } => "linear",
            Op::GatedActivation { .. } => "gated_activation",
            Op::SigmoidScale => "sigmoid_scale",
            Op::QkNorm { .. } => "qk_norm",
            Op::QkvPrepare { .. } => "qkv_prepare",
            Op::GqaAttention { .. } => "gqa_attention",
            Op::MlaNorm { .. } => "mla_norm",
            Op::MlaRope { .. } => "mla_rope",
            Op::MlaAbsorbQuery { .. } => "mla_absorb_query",
            Op::MlaDecode { .. } => "mla_decode",
            Op::MergeContext => "merge_context",
            Op::MlaExpandValue { .. } => "mla_expand_value",
            Op::MlaExpandKv => "mla_expand_kv",
            Op::MlaPrefill { .. } => "mla_prefill",
            Op::Route { .. } => "route",
            Op::PlaceExperts => "place_experts",
            Op::Experts { .. } => "experts",
            Op::Dispatch => "dispatch",
            Op::Combine => "combine",
            Op::SelectRows => "select_rows",
            Op::Argmax => "argmax",
            Op::LinearAttention { .. } => "linear_attention",
            Op::SparseIndex { .. } => "sparse_index",
            Op::AllReduce { .. } => "all_reduce",
            Op::AllReduceAddRmsNorm { .. } => "all_reduce_add_rms_norm",
            Op::AllGather { .. } => "all_gather",
            Op::ReduceScatter { .. } => "reduce_scatter",
            Op::Slice { .. } => "slice",
            Op::SendRecv { .. } => "send_recv",
        }
    }
    /// Class in breakdowns.
    pub fn class(&self) -> OpClass {
        match self {
            Op::Embed => OpClass::Embedding,
            Op::RmsNorm { .. } | Op::AddRmsNorm { .. } | Op::Add | Op::Slice { .. } => OpClass::Elementwise,
            Op::GatedActivation { .. } | Op::SigmoidScale => OpClass::Elementwise,
            Op::Linear { role } => match role {
                LinearRole::Qkv | LinearRole::QaKva | LinearRole::Qb | LinearRole::O | LinearRole::Other => OpClass::AttentionProjection,
                LinearRole::Router => OpClass::Router,
                LinearRole::DenseGateUp | LinearRole::DenseDown => OpClass::DenseMlp,
                LinearRole::SharedGateUp | LinearRole::SharedDown | LinearRole::SharedGate => OpClass::SharedExpert,
                LinearRole::LmHead => OpClass::Head,
            },
            Op::MlaAbsorbQuery { .. } | Op::MlaExpandValue { .. } | Op::MlaExpandKv => OpClass::AttentionProjection,
            Op::QkNorm { .. }
            | Op::QkvPrepare { .. }
            | Op::GqaAttention { .. }
            | Op::MlaNorm { .. }
            | Op::MlaRope { .. }
            | Op::MlaDecode { .. }
            | Op::MlaPrefill { .. }
            | Op::MergeContext
            | Op::LinearAttention { .. }
            | Op::SparseIndex { .. } => OpClass::AttentionCore,
            Op::Route { .. } | Op::PlaceExperts => OpClass::Router,
            Op::Experts { .. } => OpClass::Experts,
            Op::Dispatch | Op::Combine => OpClass::AllToAll,
            Op::SelectRows | Op::Argmax => OpClass::Head,
            Op::AllReduce { .. } | Op::AllReduceAddRmsNorm { .. } => OpClass::AllReduce,
            Op::AllGather { .. } | Op::ReduceScatter { .. } => OpClass::GatherScatter,
            Op::SendRecv { .. } => OpClass::SendRecv,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_json() {
        let fused = Op::AllReduceAddRmsNorm { axis: Axis::Tp, eps: 0.0 };
        let ops = [
            Op::Embed,
            Op::MlaExpandKv,
            Op::RmsNorm { eps: 0.0 },
            Op::AllReduce { axis: Axis::Tp },
            fused,
            Op::SendRecv { from: 0, to: 1 },
        ];
        for op in ops {
            assert_eq!(serde_json::to_value(&op).unwrap()["op"], op.name());
        }
    }
}
