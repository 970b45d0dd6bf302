//! The report of requests: JSON for scripts, text for people.

use super::gib;
use crate::digest::digest;
use crate::error::Failure;
use crate::requests::Answer;
use crate::table::{Table, count, wrap};
use moetwin::models::Deployment;
use moetwin::sim::serving::{Percentiles, Policy, Summary};
use serde::Serialize;
use std::fmt::Write as _;

/// Version of the object.
const SCHEMA: u32 = 1;

/// The whole object.
#[derive(Serialize)]
pub(crate) struct RequestsJson<'a> {
    schema: u32,
    seed: u64,
    digest: String,
    model: &'a str,
    machine: &'a str,
    deployment: &'a Deployment,
    engine: &'static str,
    starts: bool,
    fits: bool,
    kv: KvJson,
    policy: Option<&'a Policy>,
    steps_simulated: usize,
    loads: Vec<LoadJson<'a>>,
    assumptions: Vec<String>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct KvJson {
    tokens: u64,
    gib_per_rank: f64,
    other_gib_per_rank: f64,
    capacity_gib: f64,
}

#[derive(Serialize)]
struct LoadJson<'a> {
    load: &'a str,
    requests: usize,
    #[serde(flatten)]
    summary: &'a Summary,
    good_requests_per_s: Option<f64>,
}

/// Renders an answer for scripts.
pub(crate) fn json(a: &Answer) -> Result<RequestsJson<'_>, Failure> {
    let s = &a.scenario;
    let names: Vec<(&str, usize)> = a.loads.iter().map(|l| (l.name.as_str(), l.requests)).collect();
    let o = &s.options;
    let how = (s.engine.name(), o.graphs, s.peer_access(), s.allreduce, o.backends.nccl_graph.name(), s.routing_text());
    let speculation = s.speculation.as_ref().map(|plan| (plan.kind, plan.drafted, plan.acceptance.per_position()));
    let kernels = s.kernel_folder.as_ref().map(|folder| folder.digest.as_str());
    let inputs = (env!("CARGO_PKG_VERSION"), &s.model.spec, s.machine.to_json(), &s.deployment, &a.policy, &names, s.seed);
    let inputs = (inputs, how, speculation, kernels);
    let digest = digest(&inputs).map_err(|e| Failure::Running(format!("could not digest the inputs: {e}")))?;
    let loads =
        a.loads.iter().map(|l| LoadJson { load: &l.name, requests: l.requests, summary: &l.summary, good_requests_per_s: l.good_per_s });
    Ok(RequestsJson {
        schema: SCHEMA,
        seed: s.seed,
        digest,
        model: &s.model.spec.name,
        machine: &s.machine.name,
        deployment: &s.deployment,
        engine: s.engine.name(),
        starts: a.capacity.story.is_none(),
        fits: a.capacity.kv_tokens > 0,
        kv: KvJson {
            tokens: a.capacity.kv_tokens,
            gib_per_rank: gib(a.capacity.kv_bytes_per_rank),
            other_gib_per_rank: gib(a.capacity.other_bytes_per_rank),
            capacity_gib: gib(a.capacity.capacity_bytes),
        },
        policy: a.policy.as_ref(),
        steps_simulated: a.simulated,
        loads: loads.collect(),
        assumptions: assumptions(a),
        warnings: &s.model.spec.warnings,
    })
}

fn assumptions(a: &Answer) -> Vec<String> {
    let d = &a.scenario.deployment;
    let mut all = vec![
        format!("times of steps lie between {} that were simulated (moetwin sim says what each is made of)", a.simulated),
        "all memory that nothing else needs is KV pool, filled token by token; no prefix is shared between requests".to_owned(),
        "the server itself takes no time: tokenizing, HTTP and the scheduler are not counted".to_owned(),
    ];
    if d.pp > 1 {
        all.push("pipeline stages work one after the other within a step, and no two steps overlap".to_owned());
    }
    if d.replicas > 1 {
        all.push("replicas share one queue and step together".to_owned());
    }
    if a.scenario.speculation.is_some() {
        all.push("every decode step gives a request the expected number of accepted tokens".to_owned());
    }
    all
}

/// Renders an answer for people.
pub(crate) fn text(a: &Answer) -> String {
    let s = &a.scenario;
    let d = &s.deployment;
    let mut out = format!("{} on {}\n  {} ranks: tp {}", s.model.spec.name, s.machine.name, d.ranks(), d.tp);
    for (name, n) in [("pp", d.pp), ("dp-attention", d.dp_attention), ("ep", d.ep), ("dcp", d.dcp), ("replicas", d.replicas)] {
        if n > 1 {
            let _ = write!(out, ", {name} {n}");
        }
    }
    out.push_str("\n\n");
    if let Some(story) = &a.capacity.story {
        let _ = writeln!(out, "It does not start: {story}");
        return out;
    }
    let c = &a.capacity;
    let (kv, other, capacity) = (gib(c.kv_bytes_per_rank), gib(c.other_bytes_per_rank), gib(c.capacity_bytes));
    let Some(policy) = &a.policy else {
        let _ = writeln!(out, "It does not fit: {other:.1} of {capacity:.1} GiB a GPU are needed before the first token is cached");
        return out;
    };
    let _ =
        writeln!(out, "KV pool: {} tokens in {kv:.2} GiB a GPU; {other:.1} of {capacity:.1} GiB hold everything else", count(c.kv_tokens));
    let how = match policy.batching {
        moetwin::sim::serving::Batching::PromptsFirst => "prompts first, in steps of their own",
        moetwin::sim::serving::Batching::Mixed => "decoding in every step, prompts fill it up",
    };
    let _ = writeln!(out, "At most {} requests at once, {} new tokens a step; {how}\n", policy.max_running, policy.budget_tokens);
    out.push_str(&rates(a));
    out.push_str("\nMilliseconds, half of the requests / nine of ten / ninety-nine of a hundred\n");
    out.push_str(&waits(a));
    for load in a.loads.iter().filter(|l| l.summary.refused > 0) {
        let _ = writeln!(out, "\n{}: {} requests are longer than the KV pool and were refused", load.name, load.summary.refused);
    }
    for (title, items) in [("Assumed", assumptions(a)), ("Warnings", s.model.spec.warnings.clone())] {
        if !items.is_empty() {
            let _ = writeln!(out, "\n{title}");
        }
        for item in items {
            let _ = writeln!(out, "  - {}", wrap(&item, 4));
        }
    }
    out
}

fn rates(a: &Answer) -> String {
    let good = a.loads.iter().any(|l| l.good_per_s.is_some());
    let mut heading = vec!["load", "requests", "seconds", "idle", "out tok/s", "all tok/s", "requests/s"];
    heading.extend(good.then_some("good/s"));
    heading.extend(["at once", "KV used", "preempted"]);
    let mut table = Table::new(heading, &[]);
    for l in &a.loads {
        let s = &l.summary;
        let mut cells = vec![
            l.name.clone(),
            s.served.to_string(),
            format!("{:.1}", s.duration_s),
            format!("{:.0} %", s.idle_share * 100.0),
            format!("{:.1}", s.output_tokens_per_s),
            format!("{:.1}", s.total_tokens_per_s),
            format!("{:.2}", s.requests_per_s),
        ];
        if good {
            cells.push(l.good_per_s.map_or_else(String::new, |g| format!("{g:.2}")));
        }
        let used = s.kv_most_tokens as f64 / a.capacity.kv_tokens as f64 * 100.0;
        cells.extend([format!("{:.1} (most {})", s.running_mean, s.running_most), format!("{used:.0} %"), s.preemptions.to_string()]);
        table.row(cells);
    }
    table.render()
}

fn waits(a: &Answer) -> String {
    let mut table = Table::new(["load", "first token (TTFT)", "each further token (TPOT)", "whole answer", "queued"], &[]);
    let cell = |p: &Option<Percentiles>| {
        let digits = |v: f64| if v < 100.0 { format!("{v:.1}") } else { format!("{v:.0}") };
        p.as_ref().map_or_else(|| "-".to_owned(), |p| format!("{} / {} / {}", digits(p.p50), digits(p.p90), digits(p.p99)))
    };
    for l in &a.loads {
        let s = &l.summary;
        table.row([l.name.clone(), cell(&s.ttft_ms), cell(&s.tpot_ms), cell(&s.latency_ms), cell(&s.queued_ms)]);
    }
    table.render()
}
