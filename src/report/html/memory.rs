//! Bytes by rank and phase: bars against the capacity, and the ledger.

use super::super::sim_json::{RankJson, SimJson};
use super::super::sim_text::phase_name;
use super::markup::{Column, Table, esc, legend};
use crate::prediction::{Prediction, alike};
use moetwin::models::RankId;
use moetwin::runtime::ledger::MemoryPhase;
use std::fmt::Write as _;

/// What lines are drawn as, in the order of the bars.
const PARTS: [(&str, &str); 5] = [
    ("m-context", "context and communicators"),
    ("m-weights", "weights"),
    ("m-staging", "load staging"),
    ("m-cache", "KV cache"),
    ("m-step", "activations, workspaces and graphs"),
];

/// The part that a line of the ledger is drawn in.
fn part(line: &str) -> usize {
    let holds = |words: &[&str]| words.iter().any(|w| line.contains(w));
    if holds(&["staging"]) {
        2
    } else if holds(&["KV"]) {
        3
    } else if holds(&["context", "communicator"]) {
        0
    } else if holds(&["weights", "copies", "modules"]) {
        1
    } else {
        4
    }
}

/// Ranks as people name them: `ranks 0-7`.
fn ranks(group: &[RankId]) -> String {
    match group {
        [one] => format!("rank {}", one.0),
        [first, .., last] if (last.0 - first.0) as usize + 1 == group.len() => format!("ranks {}-{}", first.0, last.0),
        _ => format!("ranks {}", group.iter().map(|r| r.0.to_string()).collect::<Vec<_>>().join(", ")),
    }
}

/// Picture and tables.
pub(super) fn section(p: &Prediction, json: &SimJson<'_>) -> String {
    let groups = alike(&p.ledger);
    let of = |rank: RankId, phase: MemoryPhase| json.memory.per_rank.iter().find(|r| r.rank == rank.0 && r.phase == phase);
    let mut rows: Vec<(String, Vec<(MemoryPhase, &RankJson)>)> = Vec::new();
    for group in &groups {
        let phases = MemoryPhase::ALL.into_iter().filter_map(|phase| Some((phase, of(*group.first()?, phase)?))).collect();
        rows.push((ranks(group), phases));
    }
    let mut out = match &json.memory.out_of_memory {
        Some(e) => format!("<p class=\"bad\">{}</p>\n", esc(&e.message)),
        None => "<p>What each rank holds in each phase of the start-up; ranks that hold the same are drawn once.</p>\n".to_owned(),
    };
    out.push_str(&picture(json.memory.capacity_gib, &rows));
    out.push_str(&legend(PARTS));
    for (name, phases) in &rows {
        out.push_str(&ledger(name, phases, rows.len() > 1));
    }
    out
}

fn picture(capacity: f64, rows: &[(String, Vec<(MemoryPhase, &RankJson)>)]) -> String {
    // In percent of the width, so that it fits a phone: names, bars up to the capacity, totals.
    const LEFT: f64 = 17.0;
    const RIGHT: f64 = 82.0;
    const BAR: f64 = 16.0;
    let most = rows.iter().flat_map(|r| &r.1).map(|(_, r)| r.total_gib).fold(capacity, f64::max);
    let x = |gib: f64| LEFT + gib / most.max(1e-9) * (RIGHT - LEFT);
    let per_group = 3.0 * (BAR + 5.0) + 26.0;
    let height = rows.len() as f64 * per_group + 24.0;
    let fullest = rows.iter().flat_map(|r| &r.1).map(|(_, r)| r.total_gib).fold(0.0, f64::max);
    let mut svg = format!(
        "<figure><svg class=\"wide\" height=\"{height}\" role=\"img\" \
         aria-label=\"Memory by rank and phase: at most {fullest:.2} of {capacity:.2} GiB; the tables below hold every line\">"
    );
    let mut y = 20.0;
    for (name, phases) in rows {
        let _ = write!(svg, "<text x=\"0\" y=\"{:.1}\">{}</text>", y + 11.0, esc(name));
        y += 20.0;
        for (phase, rank) in phases {
            let _ = write!(
                svg,
                "<text class=\"m\" x=\"{:.1}%\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 1.5,
                y + 12.0,
                phase_name(*phase)
            );
            let mut sums = [0.0; PARTS.len()];
            rank.lines.iter().for_each(|l| sums[part(l.name)] += l.gib);
            let mut at = 0.0;
            for ((colour, what), gib) in PARTS.into_iter().zip(sums).filter(|(_, gib)| *gib > 0.0) {
                let _ = write!(
                    svg,
                    "<rect x=\"{:.2}%\" width=\"{:.2}%\" y=\"{y:.1}\" height=\"{BAR}\" fill=\"var(--{colour})\"><title>{what}: {gib:.2} GiB</title></rect>",
                    x(at),
                    x(at + gib) - x(at)
                );
                at += gib;
            }
            let over = if rank.total_gib > capacity { " class=\"bad\" style=\"fill:var(--bad)\"" } else { "" };
            let _ = write!(
                svg,
                "<text{over} x=\"{:.1}%\" y=\"{:.1}\">{:.2}</text>",
                x(rank.total_gib.max(capacity)) + 1.0,
                y + 12.0,
                rank.total_gib
            );
            y += BAR + 5.0;
        }
        y += 6.0;
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{0:.1}%\" x2=\"{0:.1}%\" y1=\"16\" y2=\"{1:.1}\" stroke=\"var(--bad)\" stroke-width=\"2\" stroke-dasharray=\"5 3\"/>\
         <text x=\"{0:.1}%\" y=\"11\" text-anchor=\"middle\">capacity {capacity:.2} GiB</text></svg></figure>",
        x(capacity),
        height - 6.0
    );
    svg
}

/// Every line of one group of ranks; folded away where there are several.
fn ledger(name: &str, phases: &[(MemoryPhase, &RankJson)], several: bool) -> String {
    let columns: Vec<(&str, Column)> =
        std::iter::once(("line", Column::Words)).chain(phases.iter().map(|(phase, _)| (phase_name(*phase), Column::Number))).collect();
    let mut table = Table::new(&format!("GiB of {name}, by phase"), &columns);
    let mut lines: Vec<&str> = Vec::new();
    for line in phases.iter().flat_map(|(_, rank)| &rank.lines) {
        if !lines.contains(&line.name) {
            lines.push(line.name);
        }
    }
    for line in lines {
        let mut cells = vec![esc(line)];
        for (_, rank) in phases {
            let held: Vec<f64> = rank.lines.iter().filter(|l| l.name == line).map(|l| l.gib).collect();
            cells.push(if held.is_empty() { String::new() } else { format!("{:.2}", held.iter().sum::<f64>()) });
        }
        table.row(&cells);
    }
    let mut total = vec!["total".to_owned()];
    total.extend(phases.iter().map(|(_, rank)| format!("{:.2}", rank.total_gib)));
    table.sum(&total);
    if several { format!("<details><summary>Every line of {name}</summary>{}</details>\n", table.html()) } else { table.html() }
}
