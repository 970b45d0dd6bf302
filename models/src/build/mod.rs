//! Builds the unsharded graph of one forward pass from a [`ModelSpec`] and a [`Step`].
//!
//! Within a layer every block's result is a *delta*; the residual stream is the `sum` output of the fused norms
//! ([`Op::AddRmsNorm`]) between blocks. Only the first norm of the model is a plain [`Op::RmsNorm`], of the embedding.

mod attention;
mod builder;
mod check;
mod ffn;

use crate::graph::Graph;
use crate::op::{LinearRole, Op};
use crate::spec::{Attention, Ffn, ModelSpec};
use crate::step::{LogitsRows, Step};
use crate::weight::WeightRole;
use crate::{DType, Dim};
use builder::{Builder, Projection};

/// Choices of [`forward`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildOptions {
    /// Name the values that a comparison with a reference needs as outputs too: `hidden.0` (embedding), `hidden.i` (residual
    /// stream after layer `i - 1`), the last `hidden.N` (after the final norm), `router.L.experts` and `router.L.weights`.
    /// Without it only `logits` and `next_ids` are named.
    pub dump: bool,
    /// Latent attention in absorbed form in every phase: under decode context parallelism no rank holds the cache rows that the expanded form reads.
    pub absorbed: bool,
}

/// Why a spec and a step have no graph; every contradiction is listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no graph can be built: {}", .faults.join("; "))]
pub struct BuildError {
    /// One sentence each.
    pub faults: Vec<String>,
}

/// The graph of one forward pass on one rank: every layout replicated, no collectives, one stage.
///
/// Attention runs in expanded form for [`crate::Phase::Prefill`] and absorbed for the other phases (always absorbed: sparse attention, and where the options say so).
/// Errors list every contradiction of `spec` and `step`.
pub fn forward(spec: &ModelSpec, step: &Step, options: &BuildOptions) -> Result<Graph, BuildError> {
    let faults = check::faults(spec, step);
    if !faults.is_empty() {
        return Err(BuildError { faults });
    }
    let mut b = Builder::new(spec, step, options);
    fuse_inputs(&mut b);
    for (layer, spec) in (0u16..).zip(&spec.layers) {
        b.enter_layer(layer);
        let x = b.stream_norm("input_norm", WeightRole::InputNorm);
        let attended = match &spec.attention {
            Attention::Mla(mla) => attention::mla(&mut b, mla, x),
            Attention::Gqa(gqa) => attention::gqa(&mut b, gqa, x),
            Attention::Linear(linear) => attention::linear(&mut b, linear, x),
        };
        b.set_delta(attended);
        let x = b.stream_norm("post_attention_norm", WeightRole::PostAttentionNorm);
        let fed = match &spec.ffn {
            Ffn::Dense(dense) => ffn::dense(&mut b, dense, x),
            Ffn::Moe(moe) => ffn::moe(&mut b, moe, x),
        };
        b.set_delta(fed);
    }
    b.leave_layers();
    head(&mut b);
    Ok(b.finish())
}

/// A draft model's projection of its inputs (the token's embedding, hidden states of the target) to the hidden size. The target's states come
/// from another graph; for the cost each input stands for itself as one matrix of the projection times the embedding.
fn fuse_inputs(b: &mut Builder<'_>) {
    if b.spec.fused_inputs == 0 {
        return;
    }
    let x = b.stream();
    let mut fused = None;
    for input in 0..b.spec.fused_inputs {
        let hidden = b.hidden();
        let part = b.project(
            x,
            Projection {
                role: LinearRole::QaKva,
                name: &format!("fuse.{input}"),
                weight: WeightRole::Other(u8::try_from(input).unwrap_or(u8::MAX)),
                bias: None,
                rows: hidden.clone(),
                cols: hidden.clone(),
                format: b.spec.plain_format(),
            },
        );
        fused = Some(match fused {
            None => part,
            Some(sum) => b.one(Op::Add, vec![sum, part], &format!("fused.{input}"), vec![Dim::Tokens, hidden], b.spec.dtype),
        });
    }
    if let Some(fused) = fused {
        b.set_stream(fused);
    }
}

/// Final norm, rows that are sampled from, logits, greedy choice.
fn head(b: &mut Builder<'_>) {
    let mut x = b.stream_norm("final_norm", WeightRole::FinalNorm);
    b.dump(format!("hidden.{}", b.spec.layers.len()), x);
    let hidden = b.hidden();
    let mut rows = Dim::Tokens;
    // Where every sequence has one new token, the last row of each sequence is every row.
    if b.step().logits == LogitsRows::Last && b.step().sequences.iter().any(|s| s.new != 1) {
        rows = Dim::LogitsRows;
        x = b.one(Op::SelectRows, vec![x], "selected", vec![rows.clone(), hidden.clone()], b.spec.dtype);
    }
    let table = match b.embedding_table() {
        Some(table) => table,
        None => b.weight("lm_head.weight", WeightRole::LmHead, vec![Dim::Vocab(b.spec.vocab), hidden], b.spec.embedding_format),
    };
    let logits_shape = vec![rows.clone(), Dim::Vocab(b.spec.vocab)];
    let logits = b.one(Op::Linear { role: LinearRole::LmHead }, vec![x, table], "logits", logits_shape, b.spec.dtype);
    let next = b.one(Op::Argmax, vec![logits], "next_ids", vec![rows], DType::I32);
    b.output("logits", logits);
    b.output("next_ids", next);
}
