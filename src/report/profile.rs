//! A planned step beside one that another engine's profile holds.

use super::sim_text::calls;
use crate::table::{Table, count, wrap};
use moetwin::sim::profile::{Beside, Profile, StepProfile, shortened};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// What was found, and of what.
pub(crate) struct ProfileAnswer {
    /// The file's name.
    pub(crate) file: String,
    /// What it holds, in a sentence.
    pub(crate) said: String,
    /// The same for a program.
    pub(crate) measured: Value,
    /// Both sides.
    pub(crate) beside: Beside,
    /// What was predicted, in words: model, machine, split, step.
    pub(crate) predicted: String,
    /// What of that nobody said and the profile does not tell.
    pub(crate) assumed: Vec<Assumed>,
    /// What a reader must know first.
    pub(crate) warnings: Vec<String>,
}

/// A default that holds for want of a flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Assumed {
    /// What it is of.
    pub(crate) what: &'static str,
    /// The default.
    pub(crate) value: String,
    /// The flag that says otherwise.
    pub(crate) flag: &'static str,
}

/// What a profile holds, in a sentence.
pub(crate) fn said(profile: &Profile, s: &StepProfile) -> String {
    let gpus = if profile.gpus.is_empty() { String::new() } else { format!(" ({})", profile.gpus.join(", ")) };
    let plural = |n: usize, word: &str| if n == 1 { format!("one {word}") } else { format!("{} {word}s", count(n as u64)) };
    let mut text = format!(
        "{}: {} of {} kernels on {}{gpus}",
        profile.source.name(),
        plural(s.steps, "step"),
        count(s.kernels.round() as u64),
        plural(s.devices, "GPU")
    );
    if s.steps_left_out > 0 {
        let _ = write!(text, "; {} of other lengths left out", plural(s.steps_left_out, "step"));
    }
    text
}

/// The same for a program.
pub(crate) fn held(profile: &Profile, s: &StepProfile) -> Value {
    json!({
        "source": profile.source.name(), "gpus": profile.gpus, "devices": s.devices, "steps": s.steps, "steps_left_out": s.steps_left_out,
        "kernels": s.kernels,
    })
}

/// For a person.
pub(crate) fn text(a: &ProfileAnswer) -> String {
    let mut out = format!("Measured   {}\n           {}\nPredicted  {}\n", wrap(&a.file, 11), wrap(&a.said, 11), wrap(&a.predicted, 11));
    if !a.assumed.is_empty() {
        let all: Vec<String> = a.assumed.iter().map(|n| format!("{} {} ({})", n.what, n.value, n.flag)).collect();
        let text = format!("{}: no flag said so. Where your engine ran otherwise, what follows compares different things", all.join(", "));
        let _ = writeln!(out, "Assumed    {}", wrap(&text, 11));
    }
    out.push('\n');
    let step = &a.beside.step;
    let mut table = Table::new(["ms", "measured", "predicted", "difference"], &[]);
    let mut line = |name: &str, measured: Option<f64>, predicted: f64| {
        let of = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
        table.row([
            name.to_owned(),
            of(measured),
            format!("{predicted:.3}"),
            measured.map_or_else(|| "-".to_owned(), |m| format!("{:+.3}", m - predicted)),
        ]);
    };
    line("step", step.measured_ms, step.predicted_ms);
    line("kernels run", step.measured_busy_ms, step.predicted_busy_ms);
    let idle = |whole: f64, busy: f64| (whole - busy).max(0.0);
    let measured_idle = step.measured_ms.zip(step.measured_busy_ms).map(|(whole, busy)| idle(whole, busy));
    line("nothing runs", measured_idle, idle(step.predicted_ms, step.predicted_busy_ms));
    out.push_str(&table.render());
    out.push_str("\nWhich part is slow (kernels of all streams added up, mean over steps and GPUs)\n");
    let mut table = Table::new(["class", "measured ms", "predicted ms", "difference", "kernels", "predicted", "most of it"], &[6]);
    for r in &a.beside.rows {
        let most = r.kernels.first().map_or_else(String::new, |k| shortened(&k.name));
        table.row([
            r.class.replace('_', " "),
            format!("{:.3}", r.measured_us / 1e3),
            format!("{:.3}", r.predicted_us / 1e3),
            format!("{:+.3}", r.difference_us / 1e3),
            calls((r.measured_calls * 10.0).round() / 10.0),
            calls((r.predicted_calls * 10.0).round() / 10.0),
            most,
        ]);
    }
    out.push_str(&table.render());
    for (title, items) in [("What the differences say", &a.beside.findings), ("Warnings", &a.warnings)] {
        if !items.is_empty() {
            let _ = writeln!(out, "\n{title}");
            items.iter().for_each(|i| {
                let _ = writeln!(out, "  - {}", wrap(i, 4));
            });
        }
    }
    out
}

/// For a program.
pub(crate) fn json(a: &ProfileAnswer) -> Value {
    json!({
        "schema": 1,
        "file": a.file,
        "measured": a.measured,
        "predicted": a.predicted,
        "assumed": a.assumed,
        "step": a.beside.step,
        "rows": a.beside.rows,
        "worst": a.beside.worst,
        "findings": a.beside.findings,
        "warnings": a.warnings,
    })
}
