//! The CPU reference of every op: plain, fixed-order arithmetic, generic over `f32` and `f64`.
//!
//! [`run`] computes one op on one rank's data; [`collective`] holds the arithmetic of the ops that exchange data.
//! Results depend on operands only: never on the number of threads, nor on which other rows share a batch.

mod array;
mod attention;
pub mod collective;
mod context;
mod elementwise;
mod error;
mod experts;
mod gqa;
mod linear;
mod matmul;
mod mla;
mod operands;
mod real;
mod rotary;
mod route;
mod rows;

pub use array::{Array, Data};
pub use error::ReferenceError;
pub use real::Real;

use moetwin_models::{LogitsRows, Op, Sequence};
use operands::Operands;

/// What a rank knows beside the operands.
#[derive(Clone, Copy, Debug)]
pub struct LocalContext<'a> {
    /// The sequences whose rows the operands hold, in row order. Ops that work row by row ignore them.
    pub sequences: &'a [CacheSlot],
    /// Which rows reach the head.
    pub logits: LogitsRows,
    /// First id of the vocabulary slice held here.
    pub vocab_start: usize,
    /// Whether this rank adds the bias of a projection: always where the contracted dimension is whole, else the first rank only.
    pub adds_bias: bool,
    /// This rank's turn in a context that is dealt out.
    pub turn: Turn,
    /// First expert slot held here (ids in [`Op::Experts`] are global).
    pub expert_start: usize,
    /// Replica-wide index of the first token row held here.
    pub first_token: usize,
    /// Slots of each logical expert ([`Op::PlaceExperts`]); empty where the deployment has no placement.
    pub expert_slots: &'a [Vec<u32>],
}

impl Default for LocalContext<'_> {
    /// One rank that holds everything.
    fn default() -> Self {
        Self {
            sequences: &[],
            logits: LogitsRows::All,
            vocab_start: 0,
            adds_bias: true,
            turn: Turn::WHOLE,
            expert_start: 0,
            first_token: 0,
            expert_slots: &[],
        }
    }
}

/// One sequence's rows in a step and its place in the cache.
///
/// Its new tokens are `sequence.new` consecutive token rows, after those of the sequences before it. Its cache rows are
/// `cache_start ..`: the first `sequence.past` hold earlier tokens, the next `sequence.new` are written by this step. Where the
/// context is dealt out, only the tokens of this rank's turn have a row, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSlot {
    /// Past and new tokens.
    pub sequence: Sequence,
    /// First cache row.
    pub cache_start: usize,
    /// Which tokens of the context have a row here.
    pub turn: Turn,
}

/// A rank's turn when the rows of a context are dealt out over `of` ranks: token `p` lies on rank `p % of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Position of the rank.
    pub index: usize,
    /// Ranks.
    pub of: usize,
}

impl Turn {
    /// Every row is here.
    pub const WHOLE: Turn = Turn { index: 0, of: 1 };
    /// Rows here among the first `tokens` of a context.
    pub fn rows(self, tokens: usize) -> usize {
        tokens.saturating_sub(self.index).div_ceil(self.of.max(1))
    }
    /// Whether a token's row is here.
    pub fn holds(self, token: usize) -> bool {
        token % self.of.max(1) == self.index
    }
}

impl CacheSlot {
    fn past(&self) -> usize {
        self.sequence.past as usize
    }
    fn new_tokens(&self) -> usize {
        self.sequence.new as usize
    }
    /// Cache rows held here after this step.
    fn kv_rows(&self) -> usize {
        self.turn.rows(self.past() + self.new_tokens())
    }
}

/// An operand that an op updates in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// Index of the operand.
    pub operand: usize,
    /// Index of the result that lives in its storage.
    pub result: usize,
}

/// The operand that `op` updates in place: the cache of the ops that append to it.
pub fn in_place(op: &Op) -> Option<InPlace> {
    match op {
        Op::QkvPrepare { .. } => Some(InPlace { operand: 2, result: 1 }),
        Op::MlaRope { .. } => Some(InPlace { operand: 3, result: 1 }),
        _ => None,
    }
}

/// Runs one op.
///
/// `outputs` have their final sizes; every element is written, whatever it held before. Where [`in_place`] names an operand, its
/// array is handed over as the result and a vacated one ([`Array::default`]) stands for the operand; only the new rows are written.
///
/// Errors on wrong counts, shapes and element kinds, on ids and cache rows out of range, and on ops that are not local arithmetic.
pub fn run<T: Real>(op: &Op, context: &LocalContext<'_>, inputs: &[&Array<T>], outputs: &mut [Array<T>]) -> Result<(), ReferenceError> {
    let name = op.name();
    let operands = Operands::new(name, inputs);
    match op {
        Op::Embed => rows::embed(operands, context, outputs),
        Op::SelectRows => rows::select(operands, context, outputs),
        Op::Argmax => rows::argmax(operands, outputs),
        Op::RmsNorm { eps } => elementwise::rms_norm(operands, *eps, outputs),
        Op::AddRmsNorm { eps } => elementwise::add_rms_norm(operands, *eps, outputs),
        Op::Add => elementwise::add(operands, outputs),
        Op::GatedActivation { activation } => elementwise::gated_activation(operands, *activation, outputs),
        Op::SigmoidScale => elementwise::sigmoid_scale(operands, outputs),
        Op::QkNorm { eps, clip } => elementwise::qk_norm(operands, *eps, *clip, outputs),
        Op::Linear { .. } => linear::linear(operands, context, outputs),
        Op::QkvPrepare { head_dim, rope, qk_norm_eps } => {
            gqa::prepare(operands, context, *head_dim as usize, rope.as_ref(), *qk_norm_eps, outputs)
        }
        Op::GqaAttention { head_dim, scale, window, split_context: _ } => {
            gqa::attention(operands, context, *head_dim as usize, *scale, *window, outputs)
        }
        Op::MlaNorm { eps, q_lora, kv_lora } => mla::norm(operands, *eps, *q_lora, *kv_lora as usize, outputs),
        Op::MlaRope { nope, rope } => mla::rope(operands, context, *nope as usize, rope, outputs),
        Op::MlaAbsorbQuery { nope, rope_dim, v_dim } => {
            mla::absorb_query(operands, *nope as usize, *rope_dim as usize, *v_dim as usize, outputs)
        }
        Op::MergeContext => context::merge(operands, context, outputs),
        Op::MlaDecode { kv_lora, scale, sparse_topk, split_context: _ } => {
            mla::decode(operands, context, *kv_lora as usize, *scale, *sparse_topk, outputs)
        }
        Op::MlaExpandValue { nope, v_dim } => mla::expand_value(operands, *nope as usize, *v_dim as usize, outputs),
        Op::MlaExpandKv => mla::expand_kv(operands, context, outputs),
        Op::MlaPrefill { nope, v_dim, scale } => mla::prefill(operands, context, *nope as usize, *v_dim as usize, *scale, outputs),
        Op::Route { router, topk } => route::route(operands, router, *topk as usize, outputs),
        Op::PlaceExperts => route::place(operands, context, outputs),
        Op::Experts { activation } => experts::experts(operands, context, *activation, outputs),
        Op::LinearAttention { .. } | Op::SparseIndex { .. } => {
            Err(ReferenceError::Unsupported { op: name, why: "modelled for cost only, the reference has no arithmetic for it".into() })
        }
        Op::AllReduce { .. }
        | Op::AllReduceAddRmsNorm { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::Slice { .. }
        | Op::SendRecv { .. }
        | Op::Dispatch
        | Op::Combine => Err(ReferenceError::Unsupported { op: name, why: "moves data between layouts, see the collective module".into() }),
    }
}
