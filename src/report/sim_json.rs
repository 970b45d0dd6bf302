//! The JSON of `moetwin sim`.

use super::gib;
use crate::digest::digest;
use crate::error::Failure;
use crate::prediction::Prediction;
use moetwin::kernels::routing::Distribution;
use moetwin::models::{Deployment, ModelSpec, Step};
use moetwin::runtime::ledger::{MemoryPhase, OutOfMemory};
use moetwin::sim::breakdown::{Bounds, ExchangeRow, ProvenanceShares, Row, Uncertainty, Waiting};
use serde::Serialize;

/// Version of the object.
const SCHEMA: u32 = 1;

/// The whole object. Field order is part of no promise, names and units are.
#[derive(Serialize)]
pub(crate) struct SimJson<'a> {
    pub(super) schema: u32,
    pub(super) seed: u64,
    pub(super) digest: String,
    pub(super) model: &'a str,
    pub(super) machine: &'a str,
    pub(super) deployment: DeploymentJson<'a>,
    pub(super) starts: bool,
    pub(super) fits: bool,
    pub(super) step_ms: Option<f64>,
    pub(super) tokens_per_s: Option<f64>,
    pub(super) batch_served: usize,
    pub(super) speculation: Option<SpeculationJson<'a>>,
    pub(super) breakdown: &'a [Row],
    pub(super) bound_by: Option<&'a str>,
    pub(super) bounds: Option<&'a Bounds>,
    pub(super) waiting: Option<&'a Waiting>,
    pub(super) exchanges: &'a [ExchangeRow],
    pub(super) provenance: ProvenanceShares,
    pub(super) uncertainty: Option<&'a Uncertainty>,
    pub(super) memory: MemoryJson,
    pub(super) init: InitJson<'a>,
    pub(super) assumptions: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// The deployment with everything that decides how it runs.
#[derive(Serialize)]
pub(super) struct DeploymentJson<'a> {
    #[serde(flatten)]
    pub(super) split: &'a Deployment,
    pub(super) ranks: u32,
    pub(super) phase: String,
    pub(super) batch: usize,
    pub(super) context: u32,
    pub(super) graphs: bool,
    pub(super) p2p: bool,
    pub(super) allreduce: &'static str,
    pub(super) nccl_graph: &'static str,
    pub(super) routing: String,
    pub(super) engine: &'static str,
}

/// Drafting; the breakdown beside it is that of the verification.
#[derive(Serialize)]
pub(super) struct SpeculationJson<'a> {
    pub(super) kind: &'a str,
    pub(super) drafted: u32,
    pub(super) acceptance: &'a [f64],
    pub(super) acceptance_source: &'a str,
    pub(super) tokens_per_step: f64,
    pub(super) verify_ms: f64,
    pub(super) verify_captured_ms: f64,
    pub(super) verify_eager_ms: f64,
    pub(super) draft_ms: f64,
    pub(super) break_even_tokens: f64,
    pub(super) plain_step_ms: f64,
    pub(super) plain_tokens_per_s: f64,
    pub(super) plain_captured_tokens_per_s: f64,
    pub(super) wins: bool,
}

#[derive(Serialize)]
pub(super) struct MemoryJson {
    pub(super) capacity_gib: f64,
    pub(super) out_of_memory: Option<OutOfMemoryJson>,
    pub(super) per_rank: Vec<RankJson>,
}

#[derive(Serialize)]
pub(super) struct OutOfMemoryJson {
    pub(super) rank: u32,
    pub(super) phase: MemoryPhase,
    pub(super) line: &'static str,
    pub(super) need_gib: f64,
    pub(super) free_gib: f64,
    pub(super) message: String,
}

#[derive(Serialize)]
pub(super) struct RankJson {
    pub(super) rank: u32,
    pub(super) phase: MemoryPhase,
    pub(super) total_gib: f64,
    pub(super) lines: Vec<LineJson>,
}

#[derive(Serialize)]
pub(super) struct LineJson {
    pub(super) name: &'static str,
    pub(super) gib: f64,
}

#[derive(Serialize)]
pub(super) struct InitJson<'a> {
    pub(super) states: u64,
    pub(super) story: Option<&'a str>,
}

/// Everything that decides the answer; its digest names the question.
#[derive(Serialize)]
struct Inputs<'a> {
    version: &'static str,
    model: &'a ModelSpec,
    machine: String,
    deployment: &'a DeploymentJson<'a>,
    step: &'a Step,
    histogram: Option<&'a moetwin::kernels::routing::RoutingHistogram>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernels: Option<&'a str>,
    speculation: Option<(&'a str, u32, &'a [f64])>,
    /// Nothing where sums stay apart from norms, as they always did.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    sums_fused: bool,
    seed: u64,
}

/// Renders a prediction.
pub(crate) fn json(p: &Prediction) -> Result<SimJson<'_>, Failure> {
    let s = &p.scenario;
    let deployment = deployment(p);
    let histogram = if let Distribution::Histogram(h) = &s.routing { Some(h) } else { None };
    let inputs = Inputs {
        version: env!("CARGO_PKG_VERSION"),
        model: &s.model.spec,
        machine: s.machine.to_json(),
        deployment: &deployment,
        step: &s.step,
        histogram,
        kernels: s.kernel_folder.as_ref().map(|folder| folder.digest.as_str()),
        speculation: s.speculation.as_ref().map(|plan| (plan.kind, plan.drafted, plan.acceptance.per_position())),
        sums_fused: s.fuses_sums(),
        seed: s.seed,
    };
    let digest = digest(&inputs).map_err(|e| Failure::Running(format!("could not digest the inputs: {e}")))?;
    let breakdown = p.served.as_ref().map(|served| &served.breakdown);
    Ok(SimJson {
        schema: SCHEMA,
        seed: s.seed,
        digest,
        model: &s.model.spec.name,
        machine: &s.machine.name,
        deployment,
        starts: p.start.story.is_none(),
        fits: p.out_of_memory.is_none(),
        step_ms: p.served.as_ref().map(|served| served.step_ms(s)),
        tokens_per_s: p.served.as_ref().map(|served| served.tokens_per_s(s)),
        speculation: speculation(p),
        batch_served: p.served.as_ref().map_or(0, |served| served.batch),
        breakdown: breakdown.map_or(&[], |b| &b.rows),
        bound_by: breakdown.map(|b| b.bound_by.as_str()),
        bounds: breakdown.map(|b| &b.bounds),
        waiting: breakdown.map(|b| &b.waiting),
        exchanges: breakdown.map_or(&[], |b| &b.exchanges),
        provenance: breakdown.map(|b| b.provenance).unwrap_or_default(),
        uncertainty: breakdown.map(|b| &b.uncertainty),
        memory: memory(p),
        init: InitJson { states: p.start.states, story: p.start.story.as_deref() },
        assumptions: p.assumptions(),
        warnings: p.warnings(),
    })
}

fn deployment(p: &Prediction) -> DeploymentJson<'_> {
    let s = &p.scenario;
    DeploymentJson {
        split: &s.deployment,
        ranks: s.deployment.ranks(),
        phase: s.phase_text(),
        batch: s.step.sequences.len(),
        context: s.context,
        graphs: s.options.graphs,
        p2p: s.peer_access(),
        allreduce: s.allreduce,
        nccl_graph: s.options.backends.nccl_graph.name(),
        routing: s.routing_text(),
        engine: s.engine.name(),
    }
}

fn speculation(p: &Prediction) -> Option<SpeculationJson<'_>> {
    let plan = p.scenario.speculation.as_ref()?;
    let s = p.served.as_ref()?.speculated.as_ref()?;
    Some(SpeculationJson {
        kind: plan.kind,
        drafted: plan.drafted,
        acceptance: plan.acceptance.per_position(),
        acceptance_source: &plan.acceptance_source,
        tokens_per_step: plan.acceptance.tokens_per_step(),
        verify_ms: s.times.verify_ms,
        verify_captured_ms: s.captured_verify_ms,
        verify_eager_ms: s.eager_verify_ms,
        draft_ms: s.times.draft_ms(plan.drafted),
        break_even_tokens: s.times.break_even_tokens(plan.drafted, s.plain_step_ms),
        plain_step_ms: s.plain_step_ms,
        plain_tokens_per_s: s.plain_tokens_per_s(),
        plain_captured_tokens_per_s: s.plain_captured_tokens_per_s(),
        wins: s.wins(plan),
    })
}

fn memory(p: &Prediction) -> MemoryJson {
    let mut per_rank = Vec::new();
    for rank in &p.ledger.ranks {
        for phase in MemoryPhase::ALL {
            per_rank.push(RankJson {
                rank: rank.rank.0,
                phase,
                total_gib: gib(rank.phase_bytes(phase)),
                lines: rank.held(phase).map(|l| LineJson { name: l.name, gib: gib(l.bytes) }).collect(),
            });
        }
    }
    let out_of_memory = |e: &OutOfMemory| OutOfMemoryJson {
        rank: e.rank.0,
        phase: e.phase,
        line: e.line,
        need_gib: gib(e.need_bytes),
        free_gib: gib(e.free_bytes),
        message: e.to_string(),
    };
    MemoryJson { capacity_gib: gib(p.capacity_bytes), out_of_memory: p.out_of_memory.as_ref().map(out_of_memory), per_rank }
}
