//! Graphs as text, one line a node, and back.
//!
//! ```text
//! moetwin graph 1
//! step decode last 4096+1*8                       sequences as past+new, *count for equal neighbours
//! deployment tp=2 pp=1 dp_attention=1 ep=1 dcp=1 replicas=1 a2a=none kv=bf16
//! placement 0..16 3 5                             only where the deployment has one
//!
//! t0 ids: [tokens] i32 = token_ids
//! t1 embed.weight: [vocab(160), 64] bf16 shard0@tp = weight(embedding, bf16)
//! n0 s0: t2 embed: [tokens, 64] bf16 partial@tp = embed(t0, t1)
//! n1 L0 s0: t5 layers.0.attn.q: [tokens, 4x32] bf16 shard1@tp = linear.qb(t3, t4)
//! output logits = t40
//! ```
//!
//! A packed dimension is its segments, `units x width`, joined by `|`; `~` marks units that ranks may share. A replicated layout is not
//! written. `#` starts a comment. [`print()`] of a [`parse()`]d [`print()`] gives the same text.

mod cursor;
mod header;
mod parse;
mod print;
mod value;

pub use parse::{ParseError, parse};
pub(crate) use print::shape_text;
pub use print::{node_line, op_name, print, tensor_line};

/// Version of the form; the first line names it.
const VERSION: u32 = 1;

/// Most sequences of a step and slots of a placement: far above what is served, and it bounds what a few characters can ask for.
const MOST_ENTRIES: usize = 1 << 18;
