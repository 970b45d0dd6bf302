//! `moetwin calibrate`.

use crate::args::DEFAULT_MACHINE;
use crate::error::{Failure, InputError, Outcome};
use crate::output::{self, NewFile};
use crate::report::{calibrate as report, kernels};
use crate::resolve;
use clap::Args;
use moetwin::sim::calibrate::{CalibrateError, Fit, LeftOut, Table, fit, leave_one_out, residuals, shipped_left_out, table_errors};
use moetwin::sim::cost::family_errors;
use moetwin::sim::import::tables::{self, KEYS, Told};
use moetwin::sim::machine::Machine;
use std::path::{Path, PathBuf};

/// Arguments of `moetwin calibrate`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin calibrate --machine 8x-l40s --from sim/data/nccl-tests/manifest.json
  moetwin calibrate --report
  moetwin calibrate --machine 4x-gb200 --from sim/data/nccl-tests/manifest.json --report --json
  moetwin calibrate --machine 8x-h100-sxm --from sim/data/nccl-tests/aic-h100-sxm-allreduce.txt
  moetwin calibrate --from sim/data/nccl-tests/manifest.json --out my.json

A log is the output of nccl-tests, or a table of the same times. What it does not say of itself is told behind its name: \
op, library, launch, ranks, column, p2p, algorithm, protocol, nccl-graph. A file named *.json is a manifest: a list of \
{file, machine, op, library, launch, ranks, column, args}, of which the entries of --machine are read.
Exit code 1 means that no fit can be defended; nothing is written then.")]
pub(crate) struct CalibrateArgs {
    /// Machine whose wires are kept and whose figures are fitted: a name from `moetwin machine list`, or a machine file
    #[arg(long, value_name = "NAME|FILE", default_value = DEFAULT_MACHINE)]
    machine: String,
    /// Logs of collectives on that machine, or a manifest of such logs
    #[arg(long, value_name = "FILE[,KEY=VALUE..]", required_unless_present = "report", num_args = 1..)]
    from: Vec<String>,
    /// Write the fitted machine here
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Say how well each table is predicted by a fit to the others; without --from, how well the shipped tables, of kernels and of
    /// collectives, predict what is left out of them
    #[arg(long)]
    report: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// What was found.
pub(crate) struct Answer {
    /// The machine before the fit.
    pub(crate) before: Machine,
    /// The tables.
    pub(crate) tables: Vec<Table>,
    /// Mean error of each table before the fit.
    pub(crate) errors_before: Vec<f64>,
    /// The fit, or why there is none.
    pub(crate) fit: Result<Fit, CalibrateError>,
    /// Mean error of each table under a fit to the others.
    pub(crate) left_out: Option<Vec<LeftOut>>,
}

/// Fits and prints.
pub(crate) fn run(args: &CalibrateArgs) -> Result<Outcome, Failure> {
    if args.from.is_empty() {
        let errors = family_errors();
        if args.json {
            output::answer_json(&kernels::json(&errors, &shipped_left_out()))?;
        } else {
            output::answer(&kernels::text(&errors, &shipped_left_out()))?;
        }
        return Ok(Outcome::Yes);
    }
    let file = args.out.as_deref().map(|path| NewFile::plan("--out", path)).transpose()?;
    let before = resolve::machine("--machine", &args.machine)?;
    let tables = read_tables(args, &before)?;
    if args.report && tables.len() < 2 {
        return Err(InputError::new("--report", CalibrateError::OneTable.to_string()).into());
    }
    let refused = |error: CalibrateError| Failure::from(InputError::new("--from", error.to_string()));
    let errors_before = table_errors(&residuals(&before, &tables).map_err(refused)?, tables.len());
    let fit = match fit(&before, &tables) {
        Err(error @ (CalibrateError::NoRows | CalibrateError::OneTable | CalibrateError::Predict { .. })) => return Err(refused(error)),
        fit => fit,
    };
    let left_out = if args.report { Some(leave_one_out(&before, &tables).map_err(refused)?) } else { None };
    let answer = Answer { before, tables, errors_before, fit, left_out };
    if args.json {
        output::answer_json(&report::json(&answer))?;
    } else {
        output::answer(&report::text(&answer))?;
    }
    match (&answer.fit, file) {
        (Ok(fit), Some(file)) => file.commit(fit.machine.to_json().as_bytes())?,
        (Err(_), Some(_)) => output::note("note: --out: no fit can be defended, so nothing is written"),
        (_, None) => {}
    }
    Ok(if answer.fit.is_ok() { Outcome::Yes } else { Outcome::No })
}

fn read_tables(args: &CalibrateArgs, machine: &Machine) -> Result<Vec<Table>, Failure> {
    let mut out = Vec::new();
    for word in &args.from {
        let (name, told) = told(word)?;
        let path = Path::new(name);
        let wrong = |message: String| Failure::from(InputError::new("--from", format!("{name}: {message}")).value(word.as_str()));
        if !path.is_file() {
            let error = InputError::new("--from", "is not a file that exists").value(word.as_str());
            return Err(error.accepted(["a log of nccl-tests", "a manifest (*.json)"]).into());
        }
        let text = resolve::read_text("--from", word, path)?;
        if path.extension().is_none_or(|extension| extension != "json") {
            out.push(tables::table(name, &text, &told, machine.gpu_count()).map_err(|e| wrong(e.to_string()))?);
            continue;
        }
        let entries = tables::manifest(&text).map_err(|e| wrong(e.to_string()))?;
        let mine: Vec<_> = entries.iter().filter(|entry| entry.machine == machine.name).collect();
        if mine.is_empty() {
            let mut names: Vec<&str> = entries.iter().map(|entry| entry.machine.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            return Err(wrong(format!("no entry is of {}; it has {}", machine.name, names.join(", "))));
        }
        for entry in mine {
            let log = path.with_file_name(&entry.file);
            let text = resolve::read_text("--from", word, &log)?;
            let title = [entry.file.as_str(), entry.told.column.as_deref().unwrap_or("")].join(" ");
            let read = tables::table(title.trim_end(), &text, &entry.told, machine.gpu_count());
            out.push(read.map_err(|e| wrong(format!("{}: {e}", entry.file)))?);
        }
    }
    Ok(out)
}

/// A file's name and what it has to be told.
fn told(word: &str) -> Result<(&str, Told), Failure> {
    let mut parts = word.split(',');
    let name = parts.next().unwrap_or("");
    let mut told = Told::default();
    for part in parts {
        let wrong =
            |message: String| Failure::from(InputError::new("--from", message).value(word).accepted(KEYS.map(|key| format!("{key}=.."))));
        let (key, value) = part.split_once('=').ok_or_else(|| wrong(format!("`{part}` is not KEY=VALUE")))?;
        told.set(key, value).map_err(wrong)?;
    }
    Ok((name, told))
}
