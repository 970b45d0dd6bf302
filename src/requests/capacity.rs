//! How many tokens the KV pool can hold beside everything else.

use super::{decode_step, with_step};
use crate::error::Failure;
use crate::prediction::Prepared;
use crate::scenario::Scenario;
use moetwin::models::{Phase, Sequence, Step};
use moetwin::runtime::ledger::MemoryPhase;

/// Room for requests.
pub(crate) struct Capacity {
    /// Tokens of all requests together.
    pub(crate) kv_tokens: u64,
    /// Bytes that the fullest rank has for them.
    pub(crate) kv_bytes_per_rank: u64,
    /// Bytes that the fullest rank holds beside them.
    pub(crate) other_bytes_per_rank: u64,
    /// Memory of the smallest GPU in use.
    pub(crate) capacity_bytes: u64,
    /// How it does not start, if it does not.
    pub(crate) story: Option<String>,
}

/// Tokens of history by which the pool's growth is read off the ledger: long enough for every layer's window to be full.
const PROBE_TOKENS: u32 = 4096;

impl Capacity {
    /// Reads it off the ledgers of three steps: the largest decode without history and with it, and the largest prefill.
    pub(crate) fn of(scenario: &Scenario, max_running: u32, budget_tokens: u32) -> Result<Self, Failure> {
        let d = &scenario.deployment;
        // As many sequences on every rank, so that what a token costs is the same on each.
        let parts = d.dp_attention * d.replicas;
        let batch = max_running.div_ceil(parts) * parts;
        let prepared = |step: Step, context: u32| Prepared::of(&with_step(scenario, step, context));
        let empty = prepared(decode_step(scenario, batch, 0), 0)?;
        let positions = u32::try_from(scenario.model.spec.max_positions).unwrap_or(u32::MAX);
        let probe = PROBE_TOKENS.min(positions.saturating_sub(64));
        let full = prepared(decode_step(scenario, batch, probe), probe)?;
        // The longest prompt a sequence may have, as often as the budget holds it.
        let longest = budget_tokens.min(positions);
        let sequences = vec![Sequence { past: 0, new: longest }; (budget_tokens / longest).max(1) as usize];
        let prefill = prepared(Step { sequences, ..Step::uniform(Phase::Prefill, 1, longest) }, longest)?;
        let capacity_bytes = empty.capacity_bytes();
        let tokens_added = u64::from(batch) * u64::from(probe);
        let mut least =
            Self { kv_tokens: u64::MAX, kv_bytes_per_rank: 0, other_bytes_per_rank: 0, capacity_bytes, story: empty.start.story.clone() };
        for (rank, own) in empty.program.ranks.iter() {
            let ledger = |p: &Prepared| -> (u64, u64) {
                let all = &p.ledger.ranks[rank.0 as usize];
                let kv: u64 = all.lines.iter().filter(|l| l.phase == MemoryPhase::KvAlloc).map(|l| l.bytes).sum();
                (kv, all.peak_bytes() - kv)
            };
            let ((kv_empty, other), (kv_full, other_full)) = (ledger(&empty), ledger(&full));
            // Whichever step needs most room for its activations.
            let other = other.max(other_full) + prefill.program.ranks[rank].arena_bytes.saturating_sub(own.arena_bytes);
            let free = capacity_bytes.saturating_sub(other);
            // Tokens of all sequences that fill this rank's share.
            let share = |grown: u64| u64::try_from(u128::from(free) * u128::from(tokens_added) / u128::from(grown)).unwrap_or(u64::MAX);
            let grown = kv_full.saturating_sub(kv_empty);
            let tokens = if grown == 0 { u64::MAX } else { share(grown) };
            if tokens < least.kv_tokens {
                least = Self { kv_tokens: tokens, kv_bytes_per_rank: free, other_bytes_per_rank: other, ..least };
            }
        }
        if least.story.is_some() {
            least.kv_tokens = 0;
        }
        Ok(least)
    }
}
