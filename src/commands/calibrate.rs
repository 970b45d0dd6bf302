//! `moetwin calibrate`.

use super::compare::machine_with;
use super::run::{cut, gpus_at_hand};
use crate::args::DEFAULT_MACHINE;
use crate::calibration::{self, Points, kernel_rows, with_exchanges, with_floors};
use crate::doctor::machine::date;
use crate::error::{Failure, InputError, Outcome};
use crate::measurement::Conditions;
use crate::output::{self, NewFile};
use crate::report::{calibrate as report, kernels};
use crate::resolve;
use clap::Args;
use moetwin::cuda::exec::calibrate::{Exchanges, exchanges, floors};
use moetwin::cuda::exec::{CudaExecutor, DriverHost};
use moetwin::models::{Deployment, RankId};
use moetwin::sim::calibrate::{CalibrateError, Fit, LeftOut, Table, fit, leave_one_out, residuals, shipped_left_out, table_errors};
use moetwin::sim::cost::{OwnKernels, family_errors};
use moetwin::sim::exec::gpu_rates;
use moetwin::sim::import::nccl_tests::Measurement;
use moetwin::sim::import::tables::{self, KEYS, Told};
use moetwin::sim::machine::Machine;
use moetwin::sim::topology::gpu_by_words;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Arguments of `moetwin calibrate`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin calibrate --machine 8x-l40s --from sim/data/nccl-tests/manifest.json
  moetwin calibrate --report
  moetwin calibrate --machine 4x-gb200 --from sim/data/nccl-tests/manifest.json --report --json
  moetwin calibrate --machine 8x-h100-sxm --from sim/data/nccl-tests/aic-h100-sxm-allreduce.txt
  moetwin calibrate --from sim/data/nccl-tests/manifest.json --out my.json
  moetwin calibrate --model kimi-k2.5 qwen3-30b-a3b --out my.json

Without --from and --report the GPUs here are measured: launches, copies, all-reduces of 8 KB to 128 MB over all GPUs, in a graph and not, with
peer access and without, with one rank late; and every kernel of the first layers of --model at each of --batches and --contexts, on rank 0 of each
of --splits. The machine file that is written says when, on what GPU and with which versions, and `sim` and `compare` price with it. --machine gives
the wires and whatever is not measured; by default the built-in machine with such GPUs.

A log is the output of nccl-tests, or a table of the same times. What it does not say of itself is told behind its name: \
op, library, launch, ranks, column, p2p, algorithm, protocol, nccl-graph. A file named *.json is a manifest: a list of \
{file, machine, op, library, launch, ranks, column, args}, of which the entries of --machine are read.
Exit code 1 means that no fit can be defended; nothing is written then.")]
pub(crate) struct CalibrateArgs {
    /// Machine whose wires are kept and whose figures are fitted: a name from `moetwin machine list`, or a machine file
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// Logs of collectives on that machine, or a manifest of such logs; without them the GPUs here are measured
    #[arg(long, value_name = "FILE[,KEY=VALUE..]", num_args = 1..)]
    from: Vec<String>,
    /// On GPUs: models whose shapes are measured
    #[arg(long, value_name = "NAME|FILE", num_args = 1.., default_values = ["kimi-k2.5"])]
    model: Vec<String>,
    /// On GPUs: first layers of each model
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    layers: u32,
    /// On GPUs: tensor-parallel splits; rank 0 of each runs alone
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', default_values_t = [1, 2, 8])]
    splits: Vec<u32>,
    /// On GPUs: sequences of the steps that are measured
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 12, 20, 32, 48, 60, 96])]
    batches: Vec<u32>,
    /// On GPUs: tokens in the cache of each sequence
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', default_values_t = [64, 512, 2048])]
    contexts: Vec<u32>,
    /// On GPUs: seconds after which no further step is begun
    #[arg(long, value_name = "S", default_value_t = 75, value_parser = clap::value_parser!(u64).range(1..=3600))]
    budget: u64,
    /// On GPUs: choose launches by measurement, for `run --machine` to take
    #[arg(long)]
    tune: bool,
    /// On GPUs: seed of weights and tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Measure all-reduces of these sizes only, and print them
    #[arg(long, value_delimiter = ',', hide = true)]
    exchanges: Vec<u64>,
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
    if !args.exchanges.is_empty() {
        return exchanges_only(&args.exchanges);
    }
    if args.from.is_empty() && !args.report {
        return on_gpus(args);
    }
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
    let before = resolve::machine("--machine", args.machine.as_deref().unwrap_or(DEFAULT_MACHINE))?;
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

/// Sizes of all-reduces that are measured.
const SIZES: [u64; 8] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20];
/// The same through the host, where large ones take longest.
const HOST_SIZES: [u64; 6] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 32 << 20];
/// How late one rank comes, microseconds.
const LATE_US: [u64; 3] = [0, 20, 100];
/// Longest wait for anything on GPUs.
const DEADLINE: Duration = Duration::from_secs(60);

fn device(e: impl std::fmt::Display) -> Failure {
    Failure::Running(e.to_string())
}

fn all_reduces(ranks: u32, sizes: &[u64]) -> Result<Exchanges, Failure> {
    let ordinals = (0..ranks).map(|r| (RankId(r), r as usize)).collect();
    let host = DriverHost::open(ordinals, ranks).map_err(device)?;
    exchanges(&host, ranks, sizes, &LATE_US.map(Duration::from_micros), DEADLINE).map_err(device)
}

/// What a process started without peer access answers.
fn exchanges_only(sizes: &[u64]) -> Result<Outcome, Failure> {
    let ranks = u32::try_from(gpus_at_hand(2, None)?.len()).unwrap_or(2);
    output::answer_json(&all_reduces(ranks, sizes)?)?;
    Ok(Outcome::Yes)
}

/// Measures the GPUs here and writes the machine file.
fn on_gpus(args: &CalibrateArgs) -> Result<Outcome, Failure> {
    let begin = Instant::now();
    let file = args.out.as_deref().map(|path| NewFile::plan("--out", path)).transpose()?;
    let (splits, batches) = (calibration::numbers("--splits", &args.splits, 64)?, calibration::numbers("--batches", &args.batches, 4096)?);
    let contexts = calibration::numbers("--contexts", &args.contexts, 1 << 20)?;
    let mut specs = Vec::new();
    for name in &args.model {
        let spec = resolve::model("--model", name)?.spec;
        let layers = args.layers.min(u32::try_from(spec.layers.len()).unwrap_or(u32::MAX));
        specs.push((name, cut(spec, Some(layers))?));
    }
    let found = gpus_at_hand(1, None)?.len();
    let conditions = Conditions::here(&Deployment::default());
    let wires = match &args.machine {
        Some(name) => name.clone(),
        None => machine_with(&conditions.gpu)?,
    };
    let day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_secs()) / 86_400;
    let source = format!(
        "moetwin calibrate {}, {}, {}, driver {}, NVRTC {}, NCCL {}",
        conditions.version,
        date(day),
        conditions.gpu,
        conditions.driver,
        conditions.nvrtc,
        conditions.nccl
    );
    let mut machine = resolve::machine("--machine", &wires)?;
    let host = DriverHost::open([(RankId(0), 0)].into(), 1).map_err(device)?;
    let floor = floors(&host, RankId(0), DEADLINE).map_err(device)?;
    drop(host);
    machine = with_floors(machine, &floor, &conditions.gpu, &source);
    calibration::progress(begin, "floors of launches, rate of copies");
    let mut said = Vec::new();
    if found > 1 {
        let direct = all_reduces(u32::try_from(found).unwrap_or(2), &SIZES)?;
        calibration::progress(begin, "all-reduces");
        let mut all = calibration::tables(&direct, machine.peer_access.value, &source);
        match calibration::exchanges_through_host(&HOST_SIZES) {
            Ok(host) => all.extend(calibration::tables(&host, false, &source)),
            Err(Failure::Running(why)) => said.push(why),
            Err(e) => return Err(e),
        }
        calibration::progress(begin, "all-reduces without peer access");
        said.extend(calibration::skew_words(&direct));
        let (fitted, words) = with_exchanges(machine, &all);
        machine = fitted;
        said.push(words);
        said.extend(all.iter().flat_map(table_words));
    }
    let until = begin + Duration::from_secs(args.budget);
    let points = Points { splits, batches, contexts, seed: args.seed, until, tune: args.tune, least_ps: floor.graph_node_ps };
    let (mut rows, mut choices) = (Vec::new(), Vec::new());
    for (name, spec) in &specs {
        let open = |ranks, capacity| CudaExecutor::open_alone(RankId(0), ranks, calibration::options(capacity));
        let found = kernel_rows(spec, &points, &open)?;
        calibration::progress(begin, &format!("{} kernels of {name}", found.rows.len()));
        if found.left > 0 {
            said.push(format!("{} steps of {name} were left out: --budget {} is over", found.left, args.budget));
        }
        rows.extend(found.rows);
        choices.extend(found.choices);
    }
    said.extend(choices.iter().map(|c| {
        format!("{} {} {} x {} at {} rows: {} warps a tile are faster than the constants'", c.op, c.storage, c.n, c.k, c.rows, c.parts)
    }));
    let own = OwnKernels { choices, ..OwnKernels::new(source.clone(), rows) };
    let gpu = machine.models.iter().find(|m| Some(m.name.as_str()) == gpu_by_words(&conditions.gpu)).or(machine.models.first());
    let errors = gpu.map(|gpu| own.left_out(&gpu_rates(gpu))).unwrap_or_default();
    let measured = report::Measured { source: &source, floors: &floor, rows: own.rows.len(), errors: &errors, said: &said };
    if args.json {
        output::answer_json(&report::measured_json(&measured))?;
    } else {
        output::answer(&report::measured_text(&measured))?;
    }
    machine.name = format!("{}-calibrated", machine.name.trim_end_matches("-calibrated"));
    machine.kernels = Some(own);
    if let Some(file) = file {
        file.commit(machine.to_json().as_bytes())?;
    }
    Ok(Outcome::Yes)
}

/// A table's rows, in words.
fn table_words(table: &Table) -> Option<String> {
    let row = |m: &Measurement| format!("{} KiB {:.1}", m.bytes >> 10, m.time.as_us());
    let rows: Vec<String> = table.rows.iter().map(row).collect();
    let what = table.name.rsplit(": ").next().unwrap_or("");
    Some(format!("{what}, {} ranks, us: {}", table.ranks, rows.join(", ")))
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
