//! What users notice: percentiles of waiting, and the rate of the whole.

use super::{Outcome, Served};
use crate::time::Duration;
use serde::Serialize;

/// A quantity over requests, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Mean.
    pub mean: f64,
    /// Half of the requests are at or below this.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// Ninety-nine of a hundred.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Percentiles {
    /// Of durations in any order; `None` of none. A percentile is a value that occurred (nearest rank), not one between two.
    pub fn of(mut values: Vec<Duration>) -> Option<Self> {
        values.sort_unstable();
        let n = values.len();
        let last = *values.last()?;
        let rank = |hundredths: usize| values[(n * hundredths).div_ceil(100).max(1) - 1].as_ms();
        let sum: u128 = values.iter().map(|v| u128::from(v.as_ps())).sum();
        Some(Self { mean: sum as f64 / n as f64 / 1e9, p50: rank(50), p90: rank(90), p99: rank(99), max: last.as_ms() })
    }
}

/// The figures of an outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Requests that were answered.
    pub served: usize,
    /// Requests that the KV pool could never hold.
    pub refused: usize,
    /// How often a request lost its cache and was computed anew.
    pub preemptions: u64,
    /// From the first arrival to the last token, seconds.
    pub duration_s: f64,
    /// Share of that time without work.
    pub idle_share: f64,
    /// Answered tokens a second.
    pub output_tokens_per_s: f64,
    /// Tokens of prompts and answers a second.
    pub total_tokens_per_s: f64,
    /// Requests a second.
    pub requests_per_s: f64,
    /// From arrival to the first token.
    pub ttft_ms: Option<Percentiles>,
    /// Between tokens behind the first, a request's mean.
    pub tpot_ms: Option<Percentiles>,
    /// From arrival to the last token.
    pub latency_ms: Option<Percentiles>,
    /// From arrival to the first step.
    pub queued_ms: Option<Percentiles>,
    /// Steps.
    pub steps: u64,
    /// Of those, steps that computed prompts.
    pub prompt_steps: u64,
    /// Requests in a step, mean.
    pub running_mean: f64,
    /// Requests in a step, most.
    pub running_most: u32,
    /// Requests that waited, most.
    pub waiting_most: usize,
    /// Tokens in the KV pool, most.
    pub kv_most_tokens: u64,
}

impl Summary {
    /// Sums up.
    pub fn of(outcome: &Outcome) -> Self {
        let served = &outcome.served;
        let first = served.iter().map(|s| s.arrival).min();
        let duration = first.map_or(Duration::from_ps(0), |first| outcome.end.since(first));
        let seconds = duration.as_seconds();
        let rate = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let output: u64 = served.iter().map(|s| u64::from(s.output)).sum();
        let prompt: u64 = served.iter().map(|s| u64::from(s.prompt)).sum();
        let all = |f: &dyn Fn(&Served) -> Option<Duration>| Percentiles::of(served.iter().filter_map(f).collect());
        Self {
            served: served.len(),
            refused: outcome.refused.len(),
            preemptions: outcome.preemptions,
            duration_s: seconds,
            // Idle time before the first arrival is no part of the duration.
            idle_share: first.map_or(0.0, |first| {
                let idle = outcome.idle.as_ps().saturating_sub(first.as_ps());
                if duration.as_ps() > 0 { idle as f64 / duration.as_ps() as f64 } else { 0.0 }
            }),
            output_tokens_per_s: rate(output),
            total_tokens_per_s: rate(output + prompt),
            requests_per_s: rate(served.len() as u64),
            ttft_ms: all(&|s| Some(s.ttft())),
            tpot_ms: all(&Served::tpot),
            latency_ms: all(&|s| Some(s.latency())),
            queued_ms: all(&|s| Some(s.started.since(s.arrival))),
            steps: outcome.steps,
            prompt_steps: outcome.prompt_steps,
            running_mean: if outcome.steps > 0 { outcome.running_sum as f64 / outcome.steps as f64 } else { 0.0 },
            running_most: outcome.running_most,
            waiting_most: outcome.waiting_most,
            kv_most_tokens: outcome.kv_most_tokens,
        }
    }
}
