//! The text of `moetwin collective`: the layout of nccl-tests, and one size in words.

use crate::commands::collective::{Answer, Row};
use crate::table::{Table, count, wrap};
use moetwin::sim::collective::{Candidate, CollectiveOp, CollectiveRequest, Library, NcclGraph, Prediction};
use moetwin::sim::machine::Machine;
use std::fmt::Write as _;

/// Bytes of nccl-tests' default element, a float.
const ELEMENT_BYTES: u64 = 4;

/// The table, then the explanation, each where it was asked for.
pub(crate) fn text(answer: &Answer) -> String {
    let mut out = String::new();
    if !answer.rows.is_empty() {
        table(&mut out, answer);
    }
    if let Some(row) = &answer.explained {
        if !out.is_empty() {
            out.push('\n');
        }
        explain(&mut out, &answer.machine, row);
    }
    out
}

fn table(out: &mut String, answer: &Answer) {
    let Some(first) = answer.rows.first() else { return };
    let (machine, request) = (&answer.machine, &first.request);
    let skewed = !request.arrivals.is_empty();
    let _ = writeln!(out, "# {}", heading(machine, request));
    let ring: Vec<String> = request.ranks.iter().enumerate().map(|(rank, gpu)| format!("{rank} on GPU {gpu}")).collect();
    let _ = writeln!(out, "# ranks: {}", ring.join(", "));
    for assumption in &machine.assumptions {
        let _ = writeln!(out, "# assumed: {assumption}");
    }
    let more = if skewed { "      skew  transfer" } else { "" };
    let more_units = if skewed { "      (us)      (us)" } else { "" };
    let _ = writeln!(out, "#\n#       size         count      type   redop    root     time   algbw   busbw{more}  chosen");
    let _ = writeln!(out, "#        (B)    (elements)                               (us)  (GB/s)  (GB/s){more_units}");
    for row in &answer.rows {
        line(out, row, skewed);
    }
    let mean = answer.rows.iter().map(|row| row.prediction.busbw_bytes_per_s() / 1e9).sum::<f64>() / answer.rows.len() as f64;
    let _ = writeln!(out, "# Avg bus bandwidth    : {mean:.4}");
}

fn line(out: &mut String, row: &Row, skewed: bool) {
    let (request, p) = (&row.request, &row.prediction);
    let reduces = matches!(request.op, CollectiveOp::AllReduce | CollectiveOp::ReduceScatter);
    let (redop, root) = (if reduces { "sum" } else { "none" }, if request.op == CollectiveOp::Broadcast { "0" } else { "-1" });
    let us = p.duration.as_us();
    let time = if us < 99_999.0 { format!("{us:.2}") } else { format!("{us:.0}") };
    let bytes = request.bytes;
    let elements = bytes / ELEMENT_BYTES;
    let (alg, bus) = (p.algbw_bytes_per_s() / 1e9, p.busbw_bytes_per_s() / 1e9);
    let _ = write!(out, "{bytes:12}  {elements:12}  {:>8}  {redop:>6}  {root:>6}  {time:>7}  {alg:6.2}  {bus:6.2}", "float");
    if skewed {
        let _ = write!(out, "  {:8.2}  {:8.2}", p.arrival_skew.as_us(), p.transfer.as_us());
    }
    let _ = writeln!(out, "  {} {}", p.algorithm, p.protocol);
}

/// Op, ranks, machine, library and launch in one line.
fn heading(machine: &Machine, request: &CollectiveRequest) -> String {
    let peers = if machine.peer_access.value { "on" } else { "off" };
    format!(
        "{} of {} GPUs of {}, library {}, launch {}, NCCL graph {}, peer access {peers}",
        request.op,
        request.ranks.len(),
        machine.name,
        request.library,
        request.launch,
        request.nccl_graph
    )
}

fn explain(out: &mut String, machine: &Machine, row: &Row) {
    let (request, p) = (&row.request, &row.prediction);
    let _ = writeln!(out, "{} bytes: {}", count(request.bytes), heading(machine, request));
    let _ = writeln!(
        out,
        "  takes {:.2} us (algbw {:.2} GB/s, busbw {:.2} GB/s)",
        p.duration.as_us(),
        p.algbw_bytes_per_s() / 1e9,
        p.busbw_bytes_per_s() / 1e9
    );
    if !request.arrivals.is_empty() {
        let _ =
            writeln!(out, "  of which {:.2} us pass before the last rank arrives: no link is to blame for them", p.arrival_skew.as_us());
    }
    let _ = writeln!(out, "\nChosen: {} {}\n  {}", p.algorithm, p.protocol, wrap(&format!("{}.", p.choice), 2));
    candidates(out, p);
    if request.library == Library::Nccl || !p.candidates.is_empty() {
        let _ = writeln!(out, "\nNCCL's rings\n  {}", wrap(&rings(&p.graph, request), 2));
    }
    out.push_str("\nWhere the time goes\n");
    let mut table = Table::new(["us", "share", "what"], &[2]);
    let whole = p.duration.as_us().max(f64::MIN_POSITIVE);
    for step in &p.explanation {
        let us = step.duration.as_us();
        table.row([format!("{us:.2}"), format!("{:.0} %", us / whole * 100.0), step.what.clone()]);
    }
    out.push_str(&table.render());
    if let Some(bound) = p.explanation.first() {
        let _ = writeln!(out, "  {}", wrap(&format!("It is bound by {}.", bound.what), 2));
    }
    out.push_str("\nFigures used\n");
    for (name, origin, source) in &p.provenance {
        let _ = writeln!(out, "  {}", wrap(&format!("{name}  ({}: {source})", origin.name()), 4));
    }
}

/// The terms of the cost model: latency + bytes / bandwidth.
fn candidates(out: &mut String, prediction: &Prediction) {
    if prediction.candidates.is_empty() {
        return;
    }
    out.push_str("  its cost model: latency + bytes / bandwidth\n");
    let mut table = Table::new(["algorithm", "protocol", "latency us", "GB/s", "expects us", ""], &[1, 5]);
    let chosen = |one: &Candidate| one.algorithm == prediction.algorithm && one.protocol == prediction.protocol;
    let figure = |value: f64| if value.is_finite() { format!("{value:.1}") } else { "not rated".to_owned() };
    for one in &prediction.candidates {
        table.row([
            one.algorithm.name().to_owned(),
            one.protocol.name().to_owned(),
            figure(one.latency_us),
            figure(one.bandwidth_gb_per_s),
            figure(one.time_us),
            if chosen(one) { "chosen" } else { "" }.to_owned(),
        ]);
    }
    out.push_str(&table.render());
}

fn rings(graph: &NcclGraph, request: &CollectiveRequest) -> String {
    let order = |ring: &[usize]| {
        let gpus: Vec<String> = ring.iter().filter_map(|&position| request.ranks.get(position)).map(ToString::to_string).collect();
        gpus.join(" ")
    };
    let shown: Vec<String> = graph.rings.iter().take(2).map(|ring| order(ring)).collect();
    let more = if graph.rings.len() > 2 { format!(" and {} more", graph.rings.len() - 2) } else { String::new() };
    let fallback = if graph.fallback { ", the fallback where none reaches the lowest search speed" } else { "" };
    format!(
        "GPUs {}{more}; {} channels of {:.1} GB/s expected{fallback}; the farthest hop is {}.",
        shown.join(" | "),
        graph.channels,
        graph.channel_gb_per_s,
        graph.class
    )
}
