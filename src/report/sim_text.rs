//! The report of `moetwin sim` for a person.

use super::gib;
use crate::prediction::{Prediction, Served, alike};
use crate::speculation::{Speculated, SpeculationPlan};
use crate::table::{Table, bar, bytes, count, wrap};
use moetwin::models::RankId;
use moetwin::runtime::ledger::{MemoryPhase, RankLedger};
use moetwin::sim::breakdown::{Bounds, ProvenanceShares};
use std::fmt::Write as _;

/// Cells of a full bar.
const BAR: usize = 24;

/// Renders a prediction.
pub(crate) fn text(p: &Prediction) -> String {
    let mut out = heading(p);
    out.push_str(&verdict(p));
    if let Some(served) = &p.served {
        if let (Some(speculated), Some(plan)) = (&served.speculated, &p.scenario.speculation) {
            out.push_str(&speculation(speculated, plan));
        }
        out.push_str(&breakdown(served));
        out.push_str(&bounds(served));
        out.push_str(&exchanges(served));
    }
    out.push_str(&memory(p));
    if let Some(served) = &p.served {
        let shares = served.breakdown.provenance;
        let _ = write!(
            out,
            "\nWhere the times come from (share of the step)\n  measured {}, interpolated between measurements {}, modelled from rates and floors {}\n",
            percent(shares.measured),
            percent(shares.interpolated),
            percent(shares.modelled)
        );
    }
    list(&mut out, "Assumed", &p.assumptions());
    list(&mut out, "Warnings", &p.warnings());
    out
}

fn list(out: &mut String, title: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}");
    for item in items {
        let _ = writeln!(out, "  - {}", wrap(item, 4));
    }
}

fn heading(p: &Prediction) -> String {
    let s = &p.scenario;
    let d = &s.deployment;
    let mut split = vec![format!("tp {}", d.tp)];
    for (name, n) in [("pp", d.pp), ("dp-attention", d.dp_attention), ("ep", d.ep), ("dcp", d.dcp), ("replicas", d.replicas)] {
        if n > 1 {
            split.push(format!("{name} {n}"));
        }
    }
    let on = |b: bool| if b { "on" } else { "off" };
    let step = format!("{}, batch {}, context {}", s.phase_text(), s.step.sequences.len(), count(u64::from(s.context)));
    let how = format!(
        "graphs {}, peer access {}, all-reduce {}, a2a {}, KV {}, routing {}",
        on(s.options.graphs),
        on(s.peer_access()),
        s.allreduce,
        s.a2a_text(),
        d.kv_dtype.name(),
        s.routing_text()
    );
    format!("{} on {}\n  {}\n  {step}\n  {how}; seed {}\n\n", s.model.spec.name, s.machine.name, split.join(", "), s.seed)
}

fn verdict(p: &Prediction) -> String {
    let mut out = String::new();
    let ranks = p.ledger.ranks.len();
    match &p.start.story {
        None => {
            let _ = writeln!(
                out,
                "Starts  yes: no order of {ranks} ranks' start-up steps breaks an invariant ({} states)",
                count(p.start.states)
            );
        }
        Some(story) => {
            let _ = writeln!(out, "Starts  NO: {}", story.trim_end());
        }
    }
    let capacity = bytes(p.capacity_bytes);
    match (&p.out_of_memory, p.fullest()) {
        (Some(e), _) => {
            let (need, free) = (bytes(e.need_bytes), bytes(e.free_bytes));
            let phase = phase_name(e.phase);
            let _ = writeln!(
                out,
                "Fits    NO: rank {} runs out at {phase}: {} needs {need}, and {free} of {capacity} are left",
                e.rank.0, e.line
            );
        }
        (None, Some(rank)) => {
            let peak = rank.peak_bytes();
            let _ =
                writeln!(out, "Fits    yes: {} of {capacity} on the fullest rank, {} spare", bytes(peak), bytes(p.capacity_bytes - peak));
        }
        (None, None) => {}
    }
    match &p.served {
        Some(served) => {
            let asked = p.scenario.step.sequences.len();
            let queued =
                if served.batch < asked { format!(" with the {} of {asked} sequences that fit", served.batch) } else { String::new() };
            let (speed, step) = (served.tokens_per_s(&p.scenario), served.step_ms(&p.scenario));
            let _ = writeln!(out, "Speed   {speed:.1} tok/s, {step:.2} ms a step{queued}");
            if served.speculated.is_none() {
                let u = &served.breakdown.uncertainty;
                let _ = writeln!(out, "        {:.2} to {:.2} ms with the errors of its parts (eight in ten)", u.low_ms, u.high_ms);
            }
        }
        None => {
            let _ = writeln!(out, "Speed   none: not even one sequence fits");
        }
    }
    out
}

fn speculation(s: &Speculated, plan: &SpeculationPlan) -> String {
    let tokens = plan.acceptance.tokens_per_step();
    let mut table = Table::new(["part", "ms", "what"], &[2]);
    let how = format!(
        "target on {} tokens a sequence; captured {:.2}, eager (from Python) {:.2}",
        plan.drafted + 1,
        s.captured_verify_ms,
        s.eager_verify_ms
    );
    table.row(["verify".to_owned(), format!("{:.3}", s.times.verify_ms), how]);
    let passes = format!("{} passes of the draft", plan.drafted);
    table.row(["draft".to_owned(), format!("{:.3}", s.times.draft_ms(plan.drafted)), passes]);
    let chances: Vec<String> = plan.acceptance.per_position().iter().map(|p| format!("{p:.2}")).collect();
    let verdict = if s.wins(plan) { "wins" } else { "LOSES" };
    let (with, without) = (s.tokens_per_s(plan), s.plain_tokens_per_s());
    let mut out = format!("\nSpeculation {}:{}\n{}", plan.kind, plan.drafted, table.render());
    let even = s.times.break_even_tokens(plan.drafted, s.plain_step_ms);
    let _ = writeln!(
        out,
        "  {}",
        wrap(
            &format!(
                "Drafting {verdict}: {tokens:.2} tokens a step (acceptance {}) give {with:.1} tok/s, without drafting {without:.1}; \
                 it breaks even at {even:.2} tokens a step.",
                chances.join(", ")
            ),
            2
        )
    );
    let beaten = s.plain_captured_tokens_per_s();
    for (name, verify_ms) in [("captured", s.captured_verify_ms), ("eager", s.eager_verify_ms)] {
        let rate = s.batch as f64 * tokens / s.step_ms_with(plan, verify_ms) * 1e3;
        let wins = if rate > beaten { "wins over" } else { "LOSES to" };
        let _ = writeln!(out, "  With the verification {name}: {rate:.1} tok/s, which {wins} {beaten:.1} without drafting, captured.");
    }
    out
}

fn breakdown(served: &Served) -> String {
    let b = &served.breakdown;
    let mut table = Table::new(["class", "ms", "error", "share", "calls", "hidden ms", "mostly", ""], &[6, 7]);
    for row in &b.rows {
        let hidden = if row.hidden_ms >= 0.0005 { format!("{:.3}", row.hidden_ms) } else { String::new() };
        table.row([
            row.class.replace('_', " "),
            format!("{:.3}", row.ms),
            format!("{:.3}", row.error_ms),
            percent(row.share),
            calls(row.calls),
            hidden,
            mostly(&row.provenance).to_owned(),
            bar(row.share, BAR),
        ]);
    }
    format!("\nWhere the step goes (the chain of commands that decides its end; hidden: beside that chain)\n{}", table.render())
}

/// What most of a time is: measured, interpolated or modelled.
pub(super) fn mostly(p: &ProvenanceShares) -> &'static str {
    if p.measured >= p.interpolated && p.measured >= p.modelled && p.measured > 0.0 {
        "measured"
    } else if p.interpolated >= p.modelled && p.interpolated > 0.0 {
        "interpolated"
    } else if p.modelled > 0.0 {
        "modelled"
    } else {
        ""
    }
}

pub(super) fn calls(n: f64) -> String {
    if n.fract() == 0.0 { format!("{n:.0}") } else { format!("{n:.1}") }
}

fn bounds(served: &Served) -> String {
    let b: &Bounds = &served.breakdown.bounds;
    let mut table = Table::new(["of the step", "share", ""], &[2]);
    for (name, share) in [
        ("memory rate", b.memory),
        ("arithmetic", b.compute),
        ("kernel latency", b.kernel_latency),
        ("link rate", b.link),
        ("exchange latency", b.exchange_latency),
        ("launches", b.launch),
    ] {
        if share > 0.0 {
            table.row([name.to_owned(), percent(share), bar(share, BAR)]);
        }
    }
    format!("\nWhat bounds it\n  {}\n\n{}", wrap(&served.breakdown.bound_by, 2), table.render())
}

fn exchanges(served: &Served) -> String {
    if served.breakdown.exchanges.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["exchange", "message", "count", "transfer", "arrival skew", "how"], &[5]);
    for e in &served.breakdown.exchanges {
        table.row([
            e.class.replace('_', " "),
            bytes(e.message_bytes),
            calls(e.count),
            format!("{:.1} us", e.transfer_us),
            format!("{:.1} us", e.skew_us),
            e.how.clone(),
        ]);
    }
    format!("\nExchanges between ranks\n{}", table.render())
}

fn memory(p: &Prediction) -> String {
    let Some(rank) = p.fullest() else { return String::new() };
    let groups = alike(&p.ledger);
    let whose = match groups.iter().find(|g| g.contains(&rank.rank)) {
        Some(g) if g.len() == p.ledger.ranks.len() => format!("every rank; capacity {:.2}", gib(p.capacity_bytes)),
        Some(g) => format!("{}, the fullest; capacity {:.2}", rank_names(g), gib(p.capacity_bytes)),
        None => String::new(),
    };
    let mut header = vec!["line".to_owned()];
    header.extend(MemoryPhase::ALL.map(|phase| phase_name(phase).to_owned()));
    let mut table = Table::new(header, &[]);
    for line in &rank.lines {
        let mut row = vec![line.name.to_owned()];
        row.extend(MemoryPhase::ALL.map(|phase| if rank.held(phase).any(|l| l == line) { two(line.bytes) } else { String::new() }));
        table.row(row);
    }
    let mut total = vec!["total".to_owned()];
    total.extend(MemoryPhase::ALL.map(|phase| two(rank.phase_bytes(phase))));
    table.row(total);
    let mut out = format!("\nMemory by start-up phase, GiB ({whose})\n{}", table.render());
    for g in groups.iter().filter(|g| !g.contains(&rank.rank)) {
        let peak = p.ledger.ranks.iter().find(|r| g.contains(&r.rank)).map_or(0, RankLedger::peak_bytes);
        let _ = writeln!(out, "  {}: {} at most", rank_names(g), bytes(peak));
    }
    out
}

fn two(n: u64) -> String {
    format!("{:.2}", gib(n))
}

fn rank_names(ranks: &[RankId]) -> String {
    let names: Vec<String> = ranks.iter().map(|r| r.0.to_string()).collect();
    if ranks.len() == 1 { format!("rank {}", names[0]) } else { format!("ranks {}", names.join(", ")) }
}

pub(super) fn phase_name(phase: MemoryPhase) -> &'static str {
    match phase {
        MemoryPhase::Load => "load",
        MemoryPhase::KvAlloc => "kv alloc",
        MemoryPhase::GraphCapture => "capture",
    }
}

pub(super) fn percent(share: f64) -> String {
    let value = share * 100.0;
    if value > 0.0 && value < 0.95 { format!("{value:.1} %") } else { format!("{value:.0} %") }
}
