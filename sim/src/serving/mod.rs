//! Continuous batching at step level: which requests share a step, and when each gets its tokens.
//!
//! An engine serves in steps. Before each one it decides who is in it: every running request adds a token, and prompts that wait are
//! computed as memory and a token budget allow. How long a step takes is asked of [`StepTimes`]; everything else follows from the
//! decisions here, which are those that SGLang and vLLM document. Memory is counted in tokens of the KV pool.

mod arrivals;
mod run;
mod summary;
#[cfg(test)]
mod tests;

pub use arrivals::{Lengths, made_up};
pub use run::{ServingError, Unservable, serve};
pub use summary::{Percentiles, Summary};

use crate::time::{Duration, Time};
use serde::Serialize;

/// A request as its user sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it comes.
    pub arrival: Time,
    /// Tokens of its prompt, at least 1.
    pub prompt: u32,
    /// Tokens it is answered with, at least 1.
    pub output: u32,
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// At their own arrival, whoever else is there.
    Open,
    /// So many at once: the next one comes when one is answered, whatever its arrival says.
    Closed {
        /// Users who each wait for their answer before they ask again.
        users: u32,
    },
}

/// Who is in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Batching {
    /// A step computes prompts or decodes, and prompts that wait go first (SGLang without `--enable-mixed-chunk`).
    PromptsFirst,
    /// Every running request decodes in every step, and prompts fill what is left of the budget (vLLM's V1 scheduler).
    Mixed,
}

/// What an engine allows itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Requests that run at once at most.
    pub max_running: u32,
    /// Tokens that the KV pool holds.
    pub kv_tokens: u64,
    /// New tokens of a step at most: SGLang's `--chunked-prefill-size`, vLLM's `--max-num-batched-tokens`.
    pub budget_tokens: u32,
    /// Who is in a step.
    pub batching: Batching,
    /// Tokens that a decode step gives a request, in thousandths: 1000, or more where drafted tokens are accepted.
    pub millitokens_per_step: u32,
}

/// What a step computes, as far as its time depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepShape {
    /// Requests that decode.
    pub decoding: u32,
    /// Tokens in their caches, summed.
    pub cached_tokens: u64,
    /// Prompts of which a part is computed.
    pub prompts: u32,
    /// Tokens of those parts.
    pub prompt_tokens: u32,
    /// Pairs of a new prompt token and a token that it attends to.
    pub prompt_pairs: u64,
}

impl StepShape {
    /// Adds the computation of `new` prompt tokens behind `past` that are in the cache.
    pub fn add_prompt(&mut self, past: u32, new: u32) {
        let (past, new) = (u64::from(past), u64::from(new));
        self.prompts += 1;
        self.prompt_tokens += new as u32;
        self.prompt_pairs += new * past + new * (new + 1) / 2;
    }
}

/// How long steps take.
pub trait StepTimes {
    /// Why a time cannot be had.
    type Error;
    /// Time from one step's start to the next one's.
    fn time(&mut self, shape: &StepShape) -> Result<Duration, Self::Error>;
}

/// How a request fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// When it came.
    pub arrival: Time,
    /// When its first step began.
    pub started: Time,
    /// When its first token was there.
    pub first_token: Time,
    /// When its last token was there.
    pub finished: Time,
    /// Tokens it was answered with.
    pub output: u32,
    /// Tokens of its prompt.
    pub prompt: u32,
}

impl Served {
    /// Time to the first token.
    pub fn ttft(&self) -> Duration {
        self.first_token.since(self.arrival)
    }
    /// Time of each token behind the first; none of an answer of one token.
    pub fn tpot(&self) -> Option<Duration> {
        let rest = u64::from(self.output.checked_sub(1)?);
        (rest > 0).then(|| Duration::from_ps(self.finished.since(self.first_token).as_ps() / rest))
    }
    /// Time from its arrival to its last token.
    pub fn latency(&self) -> Duration {
        self.finished.since(self.arrival)
    }
}

/// What happened to all requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Those that were answered, in the order in which they were.
    pub served: Vec<Served>,
    /// Those that no empty pool could hold, by their place in the list.
    pub refused: Vec<usize>,
    /// How often a running request lost its cache to let others finish, and was computed anew.
    pub preemptions: u64,
    /// Steps.
    pub steps: u64,
    /// Steps that computed prompts.
    pub prompt_steps: u64,
    /// Time in which there was nothing to do.
    pub idle: Duration,
    /// Requests that ran, summed over steps.
    pub running_sum: u64,
    /// Requests that ran at once at most.
    pub running_most: u32,
    /// Requests that waited at once at most.
    pub waiting_most: usize,
    /// Tokens in the KV pool at most.
    pub kv_most_tokens: u64,
    /// When the last token was there.
    pub end: Time,
}
