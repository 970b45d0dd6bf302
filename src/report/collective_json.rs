//! The JSON of `moetwin collective`.

use crate::commands::collective::{Answer, Row};
use moetwin::sim::Duration;
use moetwin::sim::collective::{Candidate, Prediction};
use serde::Serialize;

/// Version of the object.
const SCHEMA: u32 = 1;

/// The whole object. Field order is part of no promise, names and units are.
#[derive(Serialize)]
pub(crate) struct CollectiveJson<'a> {
    schema: u32,
    machine: &'a str,
    op: &'a str,
    library: &'a str,
    launch: &'a str,
    nccl_graph: &'a str,
    peer_access: bool,
    rows: Vec<RowJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    explain: Option<ExplainJson<'a>>,
}

#[derive(Serialize)]
struct RowJson<'a> {
    ranks: usize,
    bytes: u64,
    time_us: f64,
    algbw_gbs: f64,
    busbw_gbs: f64,
    algorithm: &'a str,
    protocol: &'a str,
    channels: u32,
    /// From the first rank's arrival to the last one's.
    arrival_skew_us: f64,
    /// The rest of the time.
    transfer_us: f64,
}

#[derive(Serialize)]
struct ExplainJson<'a> {
    row: RowJson<'a>,
    choice: &'a str,
    candidates: Vec<CandidateJson<'a>>,
    steps: Vec<StepJson<'a>>,
    figures: Vec<FigureJson<'a>>,
}

/// What NCCL's cost model expects; null where it has no figure.
#[derive(Serialize)]
struct CandidateJson<'a> {
    algorithm: &'a str,
    protocol: &'a str,
    latency_us: Option<f64>,
    bandwidth_gbs: Option<f64>,
    expected_us: Option<f64>,
}

#[derive(Serialize)]
struct StepJson<'a> {
    what: &'a str,
    us: f64,
}

#[derive(Serialize)]
struct FigureJson<'a> {
    name: &'a str,
    origin: &'a str,
    source: &'a str,
}

/// The object of an answer.
pub(crate) fn json(answer: &Answer) -> CollectiveJson<'_> {
    let one = answer.rows.first().or(answer.explained.as_ref());
    CollectiveJson {
        schema: SCHEMA,
        machine: &answer.machine.name,
        op: one.map_or("", |row| row.request.op.name()),
        library: one.map_or("", |row| row.request.library.name()),
        launch: one.map_or("", |row| row.request.launch.name()),
        nccl_graph: one.map_or("", |row| row.request.nccl_graph.name()),
        peer_access: answer.machine.peer_access.value,
        rows: answer.rows.iter().map(row_json).collect(),
        explain: answer.explained.as_ref().map(|row| explain(row, &row.prediction)),
    }
}

fn row_json(row: &Row) -> RowJson<'_> {
    let p = &row.prediction;
    RowJson {
        ranks: row.request.ranks.len(),
        bytes: row.request.bytes,
        time_us: Duration::as_us(p.duration),
        algbw_gbs: p.algbw_bytes_per_s() / 1e9,
        busbw_gbs: p.busbw_bytes_per_s() / 1e9,
        algorithm: p.algorithm.name(),
        protocol: p.protocol.name(),
        channels: p.channels,
        arrival_skew_us: p.arrival_skew.as_us(),
        transfer_us: p.transfer.as_us(),
    }
}

fn explain<'a>(row: &'a Row, prediction: &'a Prediction) -> ExplainJson<'a> {
    let finite = |value: f64| Some(value).filter(|value| value.is_finite() && *value > 0.0);
    let candidate = |one: &'a Candidate| CandidateJson {
        algorithm: one.algorithm.name(),
        protocol: one.protocol.name(),
        latency_us: finite(one.latency_us),
        bandwidth_gbs: finite(one.bandwidth_gb_per_s),
        expected_us: finite(one.time_us),
    };
    ExplainJson {
        row: row_json(row),
        choice: &prediction.choice,
        candidates: prediction.candidates.iter().map(candidate).collect(),
        steps: prediction.explanation.iter().map(|step| StepJson { what: &step.what, us: step.duration.as_us() }).collect(),
        figures: prediction.provenance.iter().map(|(name, origin, source)| FigureJson { name, origin: origin.name(), source }).collect(),
    }
}
