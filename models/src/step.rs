//! What one forward pass is asked to compute: which sequences, how many new tokens each, on how much context.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Kind of forward pass; it picks absorbed or expanded MLA and names the batch in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// New prompt tokens; attention in expanded form.
    Prefill,
    /// One new token a sequence.
    Decode,
    /// `n` drafted tokens a sequence are checked at once.
    Verify(u32),
}

/// One sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sequence {
    /// Tokens already in the KV cache.
    pub past: u32,
    /// Tokens computed by this step.
    pub new: u32,
}

/// Which rows reach the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogitsRows {
    /// The last new token of each sequence.
    Last,
    /// Every new token (verification, and comparison with a reference).
    All,
}

/// The shape of one forward pass. Sequences are listed in batch order; token rows are sequence after sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Kind of pass.
    pub phase: Phase,
    /// The batch.
    pub sequences: Vec<Sequence>,
    /// Rows that reach the head.
    pub logits: LogitsRows,
}

impl Step {
    /// `batch` equal sequences with `context` tokens of history: decode computes 1 new token each, verify `n`,
    /// prefill computes `context` new tokens on an empty cache.
    pub fn uniform(phase: Phase, batch: u32, context: u32) -> Self {
        let (past, new, logits) = match phase {
            Phase::Decode => (context, 1, LogitsRows::Last),
            Phase::Verify(n) => (context, n, LogitsRows::All),
            Phase::Prefill => (0, context, LogitsRows::Last),
        };
        Self { phase, sequences: vec![Sequence { past, new }; batch as usize], logits }
    }
    /// New tokens of the whole batch.
    pub fn tokens(&self) -> u64 {
        self.sequences.iter().map(|s| u64::from(s.new)).sum()
    }
    /// Rows of the KV cache after this step, summed over the batch.
    pub fn kv_rows(&self) -> u64 {
        self.sequences.iter().map(|s| u64::from(s.past) + u64::from(s.new)).sum()
    }
    /// Rows that reach the head.
    pub fn logits_rows(&self) -> u64 {
        match self.logits {
            LogitsRows::Last => self.sequences.len() as u64,
            LogitsRows::All => self.tokens(),
        }
    }
    /// The sequences of part `index` of `parts` (data-parallel attention, replicas): contiguous, the first parts one longer.
    pub fn partition(&self, index: u32, parts: u32) -> Range<usize> {
        let (n, parts, index) = (self.sequences.len(), parts as usize, index as usize);
        let (base, extra) = (n / parts, n % parts);
        let start = index * base + index.min(extra);
        start..start + base + usize::from(index < extra)
    }
    /// The step restricted to a range of sequences.
    pub fn slice(&self, sequences: Range<usize>) -> Self {
        Self { phase: self.phase, sequences: self.sequences[sequences].to_vec(), logits: self.logits }
    }
}

/// Rows of part `index` when `rows` are cut in `parts` equal chunks (the last ones may be short or empty):
/// what a reduce-scatter padded to a multiple of the group size leaves on each rank.
pub fn chunk(rows: u64, index: u32, parts: u32) -> Range<u64> {
    let size = rows.div_ceil(u64::from(parts));
    let start = (size * u64::from(index)).min(rows);
    start..(start + size).min(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_and_chunks_cover_everything_once() {
        for n in 0..9u32 {
            let step = Step::uniform(Phase::Decode, n, 5);
            for parts in 1..6 {
                let mut next = 0;
                let mut row = 0;
                for i in 0..parts {
                    let r = step.partition(i, parts);
                    assert_eq!(r.start, next);
                    next = r.end;
                    let c = chunk(u64::from(n), i, parts);
                    assert_eq!(c.start, row);
                    row = c.end;
                }
                assert_eq!((next, row), (n as usize, u64::from(n)));
            }
        }
    }
}
