//! What `moetwin calibrate` says, as text and as JSON.

use crate::commands::calibrate::Answer;
use crate::table::{Table, count, wrap};
use moetwin::cuda::exec::calibrate::Floors;
use moetwin::sim::calibrate::{Residual, table_errors};
use moetwin::sim::cost::{OwnError, OwnExchange};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Version of the object.
const SCHEMA: u32 = 1;
/// Rows that are shown of those that fit worst.
const WORST: usize = 8;

/// The whole object. Field order is part of no promise, names are.
#[derive(Serialize)]
pub(crate) struct CalibrateJson<'a> {
    schema: u32,
    machine: &'a str,
    /// Whether the fit can be defended.
    fits: bool,
    message: Option<String>,
    figures: Vec<FigureJson<'a>>,
    tables: Vec<TableJson<'a>>,
    residuals: Vec<ResidualJson<'a>>,
}

#[derive(Serialize)]
struct FigureJson<'a> {
    name: &'a str,
    factor: f64,
}

#[derive(Serialize)]
struct TableJson<'a> {
    name: &'a str,
    rows: usize,
    mean_error_before: f64,
    mean_error: Option<f64>,
    max_error: Option<f64>,
    /// Mean of signed errors.
    bias: Option<f64>,
    /// By a fit to the other tables from figures of nobody's machine.
    left_out_error: Option<f64>,
    /// The same of rows that are not eager.
    left_out_error_without_eager: Option<f64>,
}

#[derive(Serialize)]
struct ResidualJson<'a> {
    table: &'a str,
    ranks: usize,
    launch: &'a str,
    bytes: u64,
    measured_us: f64,
    predicted_us: f64,
    error: f64,
    algorithm: &'a str,
    protocol: &'a str,
}

fn rows(answer: &Answer) -> &[Residual] {
    answer.fit.as_ref().map_or(&[], |fit| fit.residuals.as_slice())
}

fn name(answer: &Answer, table: usize) -> &str {
    answer.tables.get(table).map_or("", |table| table.name.as_str())
}

/// The object of an answer.
pub(crate) fn json(answer: &Answer) -> CalibrateJson<'_> {
    let residuals = rows(answer);
    let errors = table_errors(residuals, answer.tables.len());
    let fits = answer.fit.is_ok();
    let tables = answer.tables.iter().enumerate().map(|(index, table)| {
        let own: Vec<f64> = residuals.iter().filter(|row| row.table == index).map(Residual::error).collect();
        let left_out = answer.left_out.as_ref().map(|tables| tables[index]);
        TableJson {
            name: &table.name,
            rows: table.rows.len(),
            mean_error_before: answer.errors_before[index],
            mean_error: fits.then(|| errors[index]),
            max_error: fits.then(|| own.iter().map(|error| error.abs()).fold(0.0, f64::max)),
            bias: fits.then(|| own.iter().sum::<f64>() / own.len().max(1) as f64),
            left_out_error: left_out.map(|left_out| left_out.error),
            left_out_error_without_eager: left_out.and_then(|left_out| left_out.without_eager),
        }
    });
    let moved = answer.fit.as_ref().map_or(&[][..], |fit| fit.moved.as_slice());
    CalibrateJson {
        schema: SCHEMA,
        machine: &answer.before.name,
        fits,
        message: answer.fit.as_ref().err().map(ToString::to_string),
        figures: moved.iter().map(|&(name, factor)| FigureJson { name, factor }).collect(),
        tables: tables.collect(),
        residuals: residuals
            .iter()
            .map(|row| ResidualJson {
                table: name(answer, row.table),
                ranks: row.ranks,
                launch: row.launch.name(),
                bytes: row.bytes,
                measured_us: row.measured.as_us(),
                predicted_us: row.predicted.as_us(),
                error: row.error(),
                algorithm: row.algorithm.name(),
                protocol: row.protocol.name(),
            })
            .collect(),
    }
}

/// The text of an answer.
pub(crate) fn text(answer: &Answer) -> String {
    let mut out = String::new();
    match &answer.fit {
        Ok(fit) => {
            let _ = writeln!(
                out,
                "{} fitted to {} rows of {} tables",
                answer.before.name,
                count(fit.residuals.len() as u64),
                answer.tables.len()
            );
            figures(&mut out, &fit.moved);
        }
        Err(error) => {
            let _ = writeln!(out, "{}: no fit\n  {}", answer.before.name, wrap(&format!("{error}."), 2));
        }
    }
    tables(&mut out, answer);
    worst(&mut out, answer);
    if answer.left_out.is_some() {
        let note = "Left out: each table predicted by a fit to the others, which begins at round figures that no table of this machine has touched. Not eager: of those rows that are not; how long the host of a box takes is in no table but its own.";
        let _ = writeln!(out, "\n{}", wrap(note, 0));
    }
    out
}

fn figures(out: &mut String, moved: &[(&'static str, f64)]) {
    if moved.is_empty() {
        out.push_str("  No figure had to be moved.\n");
        return;
    }
    let mut table = Table::new(["figure", "times"], &[]);
    for (name, factor) in moved {
        table.row([(*name).to_owned(), format!("{factor:.3}")]);
    }
    let _ = writeln!(out, "\nFigures that moved; what the tables do not speak of stays as it was\n{}", table.render());
}

fn tables(out: &mut String, answer: &Answer) {
    let residuals = rows(answer);
    let errors = table_errors(residuals, answer.tables.len());
    let percent = |value: f64| format!("{:.1} %", value * 100.0);
    let mut header = vec!["table", "rows", "before", "fitted", "worst row", "bias"];
    if answer.left_out.is_some() {
        header.extend(["left out", "not eager"]);
    }
    let mut table = Table::new(header, &[]);
    for (index, one) in answer.tables.iter().enumerate() {
        let own: Vec<f64> = residuals.iter().filter(|row| row.table == index).map(Residual::error).collect();
        let worst = own.iter().map(|error| error.abs()).fold(0.0, f64::max);
        let bias = own.iter().sum::<f64>() / own.len().max(1) as f64;
        let fitted = |text: String| if answer.fit.is_ok() { text } else { "-".to_owned() };
        let mut cells = vec![one.name.clone(), one.rows.len().to_string(), percent(answer.errors_before[index])];
        cells.extend([fitted(percent(errors[index])), fitted(percent(worst)), fitted(format!("{:+.1} %", bias * 100.0))]);
        if let Some(left_out) = answer.left_out.as_ref().map(|tables| tables[index]) {
            cells.extend([percent(left_out.error), left_out.without_eager.map_or_else(|| "-".to_owned(), percent)]);
        }
        table.row(cells);
    }
    let _ = write!(out, "Mean error of each table, of rows from 8 KiB to 128 MiB\n{}", table.render());
}

fn worst(out: &mut String, answer: &Answer) {
    let mut residuals: Vec<&Residual> = rows(answer).iter().collect();
    residuals.sort_by(|a, b| b.error().abs().total_cmp(&a.error().abs()));
    if residuals.is_empty() {
        return;
    }
    let mut table = Table::new(["row", "ranks", "bytes", "measured us", "predicted us", "error", "as"], &[6]);
    for row in residuals.iter().take(WORST) {
        table.row([
            name(answer, row.table).to_owned(),
            row.ranks.to_string(),
            row.bytes.to_string(),
            format!("{:.2}", row.measured.as_us()),
            format!("{:.2}", row.predicted.as_us()),
            format!("{:+.0} %", row.error() * 100.0),
            format!("{} {} {}", row.launch, row.algorithm, row.protocol),
        ]);
    }
    let _ = write!(out, "\nRows that fit worst\n{}", table.render());
}

/// What was measured on GPUs.
pub(crate) struct Measured<'a> {
    /// When, on what and with which versions.
    pub(crate) source: &'a str,
    /// Floors and rates.
    pub(crate) floors: &'a Floors,
    /// Rows of kernels.
    pub(crate) rows: usize,
    /// Exchanges of steps.
    pub(crate) exchanges: &'a [OwnExchange],
    /// How well rows are predicted by others.
    pub(crate) errors: &'a [OwnError],
    /// What else is to be said.
    pub(crate) said: &'a [String],
}

/// What was measured, as JSON.
pub(crate) fn measured_json(m: &Measured<'_>) -> Value {
    json!({"schema": 1, "source": m.source, "floors": m.floors, "kernel_rows": m.rows, "exchanges": m.exchanges, "left_out": m.errors, "notes": m.said})
}

/// What was measured, for a person.
pub(crate) fn measured_text(m: &Measured<'_>) -> String {
    let us = |ps: u64| ps as f64 / 1e6;
    let mut out = format!(
        "{}\n\nCopies {:.2} TB/s; a node of a captured graph {:.2} us, a launch {:.2} us of the host, of a graph {:.1} us\n",
        m.source,
        m.floors.copy_bytes_per_s / 1e12,
        us(m.floors.graph_node_ps),
        us(m.floors.eager_kernel_ps),
        us(m.floors.graph_launch_ps)
    );
    let mut table = Table::new(["op", "rows", "median", "p90"], &[]);
    for e in m.errors {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        table.row([e.op.clone(), e.rows.to_string(), percent(e.median), percent(e.p90)]);
    }
    out.push_str(&format!("\n{} rows of kernels; what the others say of one that is left out is off by\n{}", m.rows, table.render()));
    if !m.exchanges.is_empty() {
        let mut table = Table::new(["exchange", "library", "ranks", "peer access", "bytes", "us"], &[1]);
        for e in m.exchanges {
            let access = if e.peer_access { "on" } else { "off" };
            let us = format!("{:.2}", us(e.time_ps));
            table.row([
                format!("{}{}", e.op.name(), if e.normed { " with its norm" } else { "" }),
                e.library.name().to_owned(),
                e.ranks.to_string(),
                access.to_owned(),
                e.bytes.to_string(),
                us,
            ]);
        }
        out.push_str(&format!("\nExchanges as steps make them, once the last rank has come\n{}", table.render()));
    }
    for line in m.said {
        out.push_str(&format!("  - {line}\n"));
    }
    out
}
