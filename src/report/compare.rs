//! The report of `moetwin compare`.

use crate::commands::compare::{Answer, Following, SliceAnswer};
use crate::table::{Table, wrap};
use moetwin::models::OpClass;
use moetwin::sim::measured::{ClassRow, CommandRow, OpRow, StepRow, is_exchange};
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Serialize)]
struct CompareJson<'a> {
    schema: u32,
    model: Option<&'a str>,
    against: &'a str,
    distinct_experts: Option<f64>,
    step: &'a StepRow,
    classes: &'a [ClassRow],
    ops: &'a [OpRow],
    rows: &'a [CommandRow],
    worst: &'a [String],
    findings: &'a [String],
    unmatched: Unmatched,
    slice: Option<SliceJson<'a>>,
}

#[derive(Serialize)]
struct Unmatched {
    predicted: u64,
    measured: u64,
}

#[derive(Serialize)]
struct SliceJson<'a> {
    compute_ms: f64,
    stand_in_ms: f64,
    deployments: Vec<FollowingJson<'a>>,
}

#[derive(Serialize)]
struct FollowingJson<'a> {
    machine: &'a str,
    compute_ms: f64,
    collectives_ms: f64,
    step_ms: f64,
    predicted_step_ms: f64,
}

fn following(f: &Following) -> FollowingJson<'_> {
    FollowingJson {
        machine: &f.machine,
        compute_ms: f.compute_ms,
        collectives_ms: f.collectives_ms,
        step_ms: f.compute_ms + f.collectives_ms,
        predicted_step_ms: f.predicted_ms,
    }
}

/// The answer as JSON.
pub(crate) fn json(answer: &Answer) -> impl Serialize + '_ {
    let c = &answer.comparison;
    let slice = |s: &'_ SliceAnswer| (s.compute_ms, s.stand_in_ms);
    CompareJson {
        schema: 1,
        model: answer.conditions.as_ref().map(|c| c.model.as_str()),
        against: &answer.against,
        distinct_experts: answer.conditions.as_ref().and_then(|c| c.distinct_experts()),
        step: &c.step,
        classes: &c.classes,
        ops: &c.ops,
        rows: &c.rows,
        worst: &c.worst,
        findings: &c.findings,
        unmatched: Unmatched { predicted: c.unmatched.0, measured: c.unmatched.1 },
        slice: answer.slice.as_ref().map(|s| SliceJson {
            compute_ms: slice(s).0,
            stand_in_ms: slice(s).1,
            deployments: s.deployments.iter().map(following).collect(),
        }),
    }
}

/// Signed distance from measured to predicted.
fn error(predicted: f64, measured: f64) -> String {
    if measured > 0.0 { format!("{:+.0} %", 100.0 * (predicted / measured - 1.0)) } else { "-".to_owned() }
}

/// The answer for a person.
pub(crate) fn text(answer: &Answer) -> String {
    let c = &answer.comparison;
    let mut out = heading(answer);
    let s = &c.step;
    let _ = writeln!(
        out,
        "Step    {:.3} ms predicted, {:.3} measured ({}); its commands add up to {:.3} and {:.3} and are {:.0} % off in the median, equal \
         ones of all layers together {:.0} %\n",
        s.predicted_ms,
        s.measured_ms,
        error(s.predicted_ms, s.measured_ms),
        s.predicted_commands_ms,
        s.commands_ms,
        100.0 * s.median_error,
        100.0 * s.median_error_of_ops
    );
    let mut table =
        Table::new(["class", "calls", "predicted us", "measured us", "error", "median of commands", "share", "waiting us"], &[]);
    for r in &c.classes {
        let waiting = if r.waiting_us.1 > 0.0 || r.waiting_us.0 > 0.0 { format!("{:.1}", r.waiting_us.1) } else { String::new() };
        table.row([
            r.class.to_owned(),
            format!("{:.0}", r.calls),
            format!("{:.1}", r.predicted_us),
            format!("{:.1}", r.measured_us),
            error(r.predicted_us, r.measured_us),
            format!("{:.0} %", 100.0 * r.median_error),
            format!("{:.1} %", 100.0 * r.share),
            waiting,
        ]);
    }
    out.push_str(&table.render());
    out.push_str(&exchanges(&c.classes));
    if answer.rows > 0 {
        let mut table = Table::new(["op", "writes", "commands", "predicted us", "measured us", "error"], &[0, 1]);
        for o in c.ops.iter().take(answer.rows) {
            table.row([
                o.op.clone(),
                o.result.clone(),
                o.commands.to_string(),
                format!("{:.1}", o.predicted_us),
                format!("{:.1}", o.measured_us),
                error(o.predicted_us, o.measured_us),
            ]);
        }
        let _ = write!(out, "\nEqual commands of all layers, longest first\n{}", table.render());
    }
    if answer.rows > 0 {
        let mut table =
            Table::new(["command", "op", "writes", "predicted us", "measured us", "error", "share", "predicted from"], &[1, 2, 7]);
        for r in c.rows.iter().take(answer.rows) {
            table.row([
                r.command.clone(),
                r.op.clone(),
                r.result.clone(),
                format!("{:.1}", r.predicted_us),
                format!("{:.1}", r.measured_us),
                error(r.predicted_us, r.measured_us),
                format!("{:.1} %", 100.0 * r.share),
                r.from.clone(),
            ]);
        }
        let _ = write!(out, "\nCommands, worst first\n{}", table.render());
    }
    if let Some(slice) = &answer.slice {
        out.push_str(&deployments(slice));
    }
    if !c.findings.is_empty() {
        out.push_str("\nWhat the differences say\n");
        c.findings.iter().for_each(|f| {
            let _ = writeln!(out, "  - {}", wrap(f, 4));
        });
    }
    out
}

/// Of exchanges, moving data and waiting for the last rank apart.
fn exchanges(classes: &[ClassRow]) -> String {
    let of: Vec<&ClassRow> = classes.iter().filter(|r| OpClass::ALL.into_iter().any(|c| c.name() == r.class && is_exchange(c))).collect();
    if of.is_empty() {
        return String::new();
    }
    let mut table = Table::new(
        [
            "exchange",
            "calls",
            "predicted us",
            "transfer us",
            "transfer us a call",
            "error",
            "predicted wait us",
            "wait us",
            "wait us a call",
        ],
        &[],
    );
    for r in of {
        let a_call = |us: f64| format!("{:.2}", us / r.calls.max(f64::MIN_POSITIVE));
        table.row([
            r.class.to_owned(),
            format!("{:.0}", r.calls),
            format!("{:.1}", r.predicted_us),
            format!("{:.1}", r.measured_us),
            a_call(r.measured_us),
            error(r.predicted_us, r.measured_us),
            format!("{:.1}", r.waiting_us.0),
            format!("{:.1}", r.waiting_us.1),
            a_call(r.waiting_us.1),
        ]);
    }
    format!("\nExchanges, of a rank: moving data, and waiting for the last rank to come\n{}", table.render())
}

fn heading(answer: &Answer) -> String {
    let Some(c) = &answer.conditions else { return format!("Measured beside {}\n\n", answer.against) };
    let layers = c.layers.map(|n| format!(", first {n} layers")).unwrap_or_default();
    let alone = c.only_rank.map(|r| format!(", rank {r} alone")).unwrap_or_default();
    let past = c.sequences.iter().map(|s| s.0).max().unwrap_or(0);
    let distinct = c.distinct_experts().map(|d| format!(", {d:.1} distinct experts a layer")).unwrap_or_default();
    format!(
        "{}{layers} on {}, predicted for {}\n  tp {}, pp {}, ep {}, dp-attention {}{alone}; {} batch {}, context {past}{distinct}\n  driver {}, NVRTC {}, NCCL {}; seed {}\n\n",
        c.model,
        c.gpu,
        answer.against,
        c.tp,
        c.pp,
        c.ep,
        c.dp_attention,
        if c.prefill { "prefill" } else { "decode" },
        c.sequences.len(),
        c.driver,
        c.nvrtc,
        c.nccl,
        c.seed
    )
}

fn deployments(slice: &SliceAnswer) -> String {
    let mut table = Table::new(["deployment", "compute ms", "collectives ms", "step ms", "predicted whole ms"], &[]);
    for f in &slice.deployments {
        table.row([
            f.machine.clone(),
            format!("{:.3}", f.compute_ms),
            format!("{:.3}", f.collectives_ms),
            format!("{:.3}", f.compute_ms + f.collectives_ms),
            format!("{:.3}", f.predicted_ms),
        ]);
    }
    format!(
        "\nThe whole deployment that follows: {:.3} ms of compute measured on one rank ({:.3} ms of stand-ins taken off), collectives predicted; \
         on other GPUs compute is scaled by what is predicted there and here\n{}",
        slice.compute_ms,
        slice.stand_in_ms,
        table.render()
    )
}
