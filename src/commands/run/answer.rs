//! What `moetwin run` answers.

use super::Backend;
use crate::generation::{Generated, Job};
use crate::measurement::{ClassJson, Measured};
use crate::output;
use moetwin::models::ModelSpec;
use serde::Serialize;

/// The answer in JSON.
#[derive(Serialize)]
pub(super) struct RunJson<'a> {
    schema: u32,
    seed: u64,
    backend: &'static str,
    model: &'a str,
    ranks: u32,
    collectives: u64,
    step_ms: Option<StepMs>,
    tokens_per_s: Option<f64>,
    breakdown: Vec<ClassJson>,
    tokens: &'a [Vec<u32>],
}

/// Times of decode passes.
#[derive(Serialize)]
struct StepMs {
    median: f64,
    p99: f64,
}

/// The answer in JSON.
pub(super) fn json<'a>(
    spec: &'a ModelSpec,
    job: &Job<'_>,
    generated: &'a Generated,
    backend: Backend,
    measured: Option<&Measured>,
) -> RunJson<'a> {
    RunJson {
        schema: 1,
        seed: job.order_seed,
        backend: backend.name(),
        model: &spec.name,
        ranks: job.deployment.ranks(),
        collectives: generated.collectives,
        step_ms: generated.step_quantiles_ms().map(|(median, p99)| StepMs { median, p99 }),
        tokens_per_s: generated.tokens_per_s(),
        // Only a measured pass is timed by class of op.
        breakdown: measured.map_or_else(Vec::new, Measured::by_class),
        tokens: &generated.tokens,
    }
}

/// The answer as text; tokens that were printed as they came are left out.
pub(super) fn report(spec: &ModelSpec, job: &Job<'_>, generated: &Generated, streamed: bool, backend: Backend) -> String {
    let mut out = String::new();
    if !streamed {
        for (i, tokens) in generated.tokens.iter().enumerate() {
            let ids: Vec<String> = tokens.iter().map(ToString::to_string).collect();
            out.push_str(&format!("sequence {i}: {}\n", ids.join(" ")));
        }
    }
    let ranks = job.deployment.ranks();
    let speed = match (generated.step_quantiles_ms(), generated.tokens_per_s()) {
        (Some((median, p99)), Some(rate)) => format!("{rate:.1} tok/s, {median:.2} ms a step (99 % under {p99:.2})"),
        _ => "one pass, nothing to time".to_owned(),
    };
    output::note(&format!(
        "{} on {}, {ranks} rank{}, {} exchanges a pass: {speed}; seed {}",
        spec.name,
        backend.words(),
        if ranks == 1 { "" } else { "s" },
        generated.collectives,
        job.order_seed
    ));
    out
}
