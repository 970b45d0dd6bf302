//! Attention: cache rows read, scores computed, projections folded into it.

use super::local::{Local, product, total};
use super::{CostFacts, CostShape};
use moetwin_models::{Axis, Op, Sequence};

/// Width of a lightning-indexer key and heads of its queries: `index_head_dim` and `index_n_heads` of DeepSeek-V3.2's config.json.
const INDEX_HEAD_DIM: u64 = 128;
const INDEX_HEADS: u64 = 64;
/// Width of the latent query that the indexer's queries are made from: `q_lora_rank` of DeepSeek-V3.2.
const INDEX_QUERY_RANK: u64 = 1536;
/// Bytes of a weight of the indexer's projections, which checkpoints leave unquantized.
const INDEX_WEIGHT_BYTES: u64 = 2;
/// An indexer key is stored in FP8 with one f32 scale.
const INDEX_KEY_BYTES: u64 = INDEX_HEAD_DIM + 4;
/// Bytes of an element of the recurrent state, which engines keep in f32.
const STATE_ELEMENT_BYTES: u64 = 4;

/// Which rows of its sequence a token attends to.
#[derive(Clone, Copy)]
enum Reach {
    All,
    /// The latest ones.
    Window(u64),
    /// Any, at most this many.
    Selected(u64),
}

impl Reach {
    /// Cache rows of this rank that a sequence's new tokens read, each counted once.
    fn rows(self, s: Sequence, turn: Turn) -> u64 {
        let (new, all) = (u64::from(s.new), u64::from(s.past) + u64::from(s.new));
        match self {
            Reach::All => turn.rows(all),
            Reach::Window(w) => turn.rows(all) - turn.rows(all.saturating_sub(w.max(1).saturating_add(new - 1))),
            Reach::Selected(k) => all.min(k.saturating_mul(new)),
        }
    }
    /// Pairs of a token and a row of this rank that are scored: for the token at position `p`, `p + 1` rows, or as many as it reaches.
    fn pairs(self, s: Sequence, turn: Turn) -> u64 {
        if turn.of > 1 {
            let window = if let Reach::Window(w) = self { w.max(1) } else { u64::MAX };
            let (before, last) = (u64::from(s.past), u64::from(s.past) + u64::from(s.new));
            let rows = |tokens: u64| turn.sum_of_rows(tokens);
            let all = rows(last) - rows(before);
            let hidden = rows(last.saturating_sub(window)) - rows(before.saturating_sub(window));
            return u64::try_from(all - hidden).unwrap_or(u64::MAX);
        }
        let (first, new) = (u64::from(s.past) + 1, u64::from(s.new));
        let limit = match self {
            Reach::All => u64::MAX,
            Reach::Window(n) | Reach::Selected(n) => n,
        };
        // Tokens that still see fewer rows than the limit, then those at the limit.
        let growing = if first <= limit { (limit - first).saturating_add(1).min(new) } else { 0 };
        let (growing, rest, first) = (u128::from(growing), u128::from(new - growing), u128::from(first));
        let sum = growing * first + growing * growing.saturating_sub(1) / 2 + rest * u128::from(limit);
        u64::try_from(sum).unwrap_or(u64::MAX)
    }
}

/// A rank's turn where contexts are dealt out row by row.
#[derive(Clone, Copy)]
struct Turn {
    index: u64,
    of: u64,
}

impl Turn {
    fn of(local: &Local<'_>) -> Self {
        let d = &local.graph.deployment;
        let dealt = matches!(local.node.op, Op::GqaAttention { split_context: true, .. } | Op::MlaDecode { split_context: true, .. });
        match dealt {
            true => Self { index: u64::from(d.axis_index(Axis::Dcp, local.rank)), of: u64::from(d.dcp) },
            false => Self { index: 0, of: 1 },
        }
    }
    /// Rows among the first `tokens`.
    fn rows(self, tokens: u64) -> u64 {
        tokens.saturating_sub(self.index).div_ceil(self.of)
    }
    /// `rows(1) + rows(2) + .. + rows(tokens)`.
    fn sum_of_rows(self, tokens: u64) -> u128 {
        let counted = u128::from(tokens.saturating_sub(self.index));
        let (full, rest) = (counted / u128::from(self.of), counted % u128::from(self.of));
        u128::from(self.of) * full * (full + 1) / 2 + rest * (full + 1)
    }
}

/// Totals over the sequences of a rank.
struct Totals {
    batch: u64,
    tokens: u64,
    rows: u64,
    pairs: u64,
}

fn totals(local: &Local<'_>, reach: Reach) -> Totals {
    let turn = Turn::of(local);
    local.sequences().fold(Totals { batch: 0, tokens: 0, rows: 0, pairs: 0 }, |t, s| Totals {
        batch: t.batch + 1,
        tokens: t.tokens + u64::from(s.new),
        rows: t.rows.saturating_add(reach.rows(s, turn)),
        pairs: t.pairs.saturating_add(reach.pairs(s, turn)),
    })
}

/// Scores, softmax and values. A cache row is read once, however many heads and tokens attend to it.
pub(super) fn core(local: &Local<'_>) -> CostFacts {
    let q = local.input(0);
    let (reach, heads, key_dim, value_dim) = match &local.node.op {
        Op::GqaAttention { head_dim, window, .. } => {
            let dim = u64::from(*head_dim);
            (window.map_or(Reach::All, |w| Reach::Window(u64::from(w))), q.cols() / dim.max(1), dim, dim)
        }
        Op::MlaDecode { kv_lora, sparse_topk, .. } => {
            let width = local.input(1).cols();
            let reach = sparse_topk.map_or(Reach::All, |k| Reach::Selected(u64::from(k)));
            (reach, q.cols() / width.max(1), width, u64::from(*kv_lora))
        }
        Op::MlaPrefill { v_dim, .. } => {
            let value_dim = u64::from(*v_dim);
            let heads = local.output(0).cols() / value_dim.max(1);
            (Reach::All, heads, q.cols() / heads.max(1), value_dim)
        }
        _ => return CostFacts::default(),
    };
    let t = totals(local, reach);
    let per_row = match &local.node.op {
        // Expanded keys and values, and the rotated part of the cache.
        Op::MlaPrefill { nope, .. } => {
            let rope = key_dim.saturating_sub(u64::from(*nope));
            local.input(1).row_bytes() + rope * local.input(2).tensor.dtype.bytes()
        }
        _ => local.input(1).row_bytes(),
    };
    CostFacts {
        flops: product(&[2, t.pairs, heads, key_dim + value_dim]),
        weight_bytes: local.streamed().weight_bytes,
        read_bytes: total([q.bytes(), product(&[t.rows, per_row])]),
        write_bytes: local.written(),
        shape: CostShape::Attention { heads, batch: t.batch, tokens: t.tokens, kv_rows: t.rows },
        ..CostFacts::default()
    }
}

/// Norm and rotation before the scores, and the new rows of the cache.
pub(super) fn append(local: &Local<'_>) -> CostFacts {
    let streamed = local.streamed();
    let tokens = local.input(0).rows();
    let cache_bytes = product(&[tokens, local.output(1).row_bytes()]);
    // Two multiplications and an addition for each rotated element.
    CostFacts { flops: product(&[3, local.input_elements(0)]), write_bytes: total([streamed.write_bytes, cache_bytes]), ..streamed }
}

/// The halves of `kv_b` in absorbed form (one product a head), or all of it over the cache in expanded form.
pub(super) fn absorb(local: &Local<'_>) -> CostFacts {
    let weight = local.input(1);
    let (rows, kv_lora) = (weight.rows(), weight.cols());
    let read = local.streamed();
    let (m, n, k, used_rows) = match &local.node.op {
        Op::MlaAbsorbQuery { nope, v_dim, .. } => {
            let (nope, head) = (u64::from(*nope), u64::from(nope + v_dim).max(1));
            (local.output(0).rows(), rows / head * kv_lora, nope, rows / head * nope)
        }
        Op::MlaExpandValue { nope, v_dim } => {
            let (v, head) = (u64::from(*v_dim), u64::from(nope + v_dim).max(1));
            (local.output(0).rows(), rows / head * v, kv_lora, rows / head * v)
        }
        _ => (local.output(0).rows(), rows, kv_lora, rows),
    };
    // The cache is no streamed operand: the expanded form reads the compressed part of its rows.
    let cached = if local.node.op == Op::MlaExpandKv { local.input(0).tensor.dtype.bytes() } else { 0 };
    let cache_bytes = product(&[m, kv_lora, cached]);
    CostFacts {
        flops: product(&[2, m, n, k]),
        weight_bytes: weight.weight_bytes(used_rows, kv_lora),
        read_bytes: total([read.read_bytes, cache_bytes]),
        shape: CostShape::Gemm { m, n, k },
        ..read
    }
}

/// Bytes that linear attention keeps of a sequence on one rank: a matrix for each value head, and the last inputs of the convolution. 0 for
/// other ops.
pub(super) fn state_bytes(local: &Local<'_>) -> u64 {
    let Op::LinearAttention { key_dim, value_dim, conv_width, .. } = &local.node.op else { return 0 };
    let (key_dim, value_dim) = (u64::from(*key_dim), u64::from(*value_dim));
    let heads = local.output(0).cols() / value_dim.max(1);
    let state = product(&[heads, key_dim, value_dim, STATE_ELEMENT_BYTES]);
    let inputs = product(&[local.input(2).rows(), u64::from(*conv_width).saturating_sub(1), local.input(0).tensor.dtype.bytes()]);
    total([state, inputs])
}

/// Linear attention and the sparse indexer.
pub(super) fn other(local: &Local<'_>) -> CostFacts {
    let streamed = local.streamed();
    let t = totals(local, Reach::All);
    match &local.node.op {
        Op::LinearAttention { key_dim, value_dim, conv_width, .. } => {
            let (key_dim, value_dim) = (u64::from(*key_dim), u64::from(*value_dim));
            let heads = local.output(0).cols() / value_dim.max(1);
            let conv_channels = local.input(2).rows();
            let states = product(&[t.batch, state_bytes(local)]);
            // Gated delta rule: decay, the key's old value, the update and the query's read, each one multiply-add of the state.
            let flops = product(&[t.tokens, 4 * 2 * heads * key_dim * value_dim + 2 * conv_channels * u64::from(*conv_width)]);
            let (read_bytes, write_bytes) = (total([streamed.read_bytes, states]), total([streamed.write_bytes, states]));
            CostFacts { flops, read_bytes, write_bytes, ..streamed }
        }
        // Queries from the latent query, one key and a weight a head from the hidden state: read whole by every rank.
        _ => {
            let projections = INDEX_QUERY_RANK * INDEX_HEADS * INDEX_HEAD_DIM + local.input(0).cols() * (INDEX_HEAD_DIM + INDEX_HEADS);
            CostFacts {
                flops: total([product(&[2, t.pairs, INDEX_HEADS, INDEX_HEAD_DIM]), product(&[2, t.tokens, projections])]),
                weight_bytes: product(&[projections, INDEX_WEIGHT_BYTES]),
                read_bytes: total([streamed.read_bytes, product(&[t.rows, INDEX_KEY_BYTES])]),
                ..streamed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_pairs_equal_a_count_one_by_one() {
        for past in 0..7u32 {
            for new in 1..6u32 {
                for limit in 1..9u64 {
                    let s = Sequence { past, new };
                    let seen = |reach: Reach, p: u64| match reach {
                        Reach::All => (0..=p).collect::<Vec<u64>>(),
                        Reach::Window(w) => ((p + 1).saturating_sub(w)..=p).collect(),
                        // Every token picks other rows than the ones before it, as far as there are any.
                        Reach::Selected(k) => (0..=p).rev().take(k as usize).collect(),
                    };
                    let whole = Turn { index: 0, of: 1 };
                    for (index, of) in [(0, 1), (0, 2), (1, 2), (2, 3)] {
                        let turn = Turn { index, of };
                        for reach in [Reach::All, Reach::Window(limit)] {
                            let own = |p: u64| seen(reach, p).into_iter().filter(|r| r % of == index).collect::<Vec<u64>>();
                            let mut rows: Vec<u64> = (past..past + new).flat_map(|p| own(u64::from(p))).collect();
                            assert_eq!(reach.pairs(s, turn), rows.len() as u64, "{past} + {new}, {limit}, {index} of {of}");
                            rows.sort_unstable();
                            rows.dedup();
                            assert_eq!(reach.rows(s, turn), rows.len() as u64, "{past} + {new}, {limit}, {index} of {of}");
                        }
                    }
                    for reach in [Reach::All, Reach::Window(limit), Reach::Selected(limit)] {
                        let per_token: Vec<Vec<u64>> = (past..past + new).map(|p| seen(reach, u64::from(p))).collect();
                        assert_eq!(reach.pairs(s, whole), per_token.iter().map(|r| r.len() as u64).sum::<u64>(), "{past} + {new}, {limit}");
                        let mut rows: Vec<u64> = per_token.concat();
                        rows.sort_unstable();
                        rows.dedup();
                        match reach {
                            Reach::Selected(_) => assert!(reach.rows(s, whole) >= rows.len() as u64),
                            _ => assert_eq!(reach.rows(s, whole), rows.len() as u64),
                        }
                    }
                }
            }
        }
    }
}
