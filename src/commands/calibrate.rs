//! `moetwin calibrate`.

use super::compare::machine_with;
use super::run::{cut, gpus_at_hand};
use crate::args::DEFAULT_MACHINE;
use crate::calibration::{
    self, Eager, Forked, Points, Split, ThroughHost, Ways, default_splits, exchange_rows, kernel_rows, with_exchanges, with_floors,
};
use crate::doctor::machine::date;
use crate::error::{Failure, InputError, Outcome};
use crate::measurement::Conditions;
use crate::output::{self, NewFile};
use crate::report::{calibrate as report, kernels};
use crate::resolve;
use crate::values::{each_once, whole};
use clap::Args;
use moetwin::cuda::exec::calibrate::{Exchanges, exchanges, floors};
use moetwin::cuda::exec::{CudaExecutor, CudaOptions, DriverHost};
use moetwin::kernels::launch::Choice;
use moetwin::models::{Deployment, ModelSpec, RankId};
use moetwin::sim::calibrate::{CalibrateError, Fit, LeftOut, Table, fit, leave_one_out, residuals, shipped_left_out, table_errors};
use moetwin::sim::cost::{OwnExchange, OwnKernels, OwnRow, family_errors, medians};
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
peer access and without, with one rank late; the exchanges that steps of --model make over all GPUs; and every kernel of its first layers at every
batch and context, on rank 0 of every split. The machine file that is written says when, on what GPU and with which versions, and `sim` and `compare` price with it. --machine gives
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
    /// On GPUs: models whose shapes are measured [default: kimi-k2.5]
    #[arg(long, value_name = "NAME|FILE", num_args = 1..)]
    model: Vec<String>,
    /// On GPUs: first layers of each model [default: 3]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=64))]
    layers: Option<u32>,
    /// On GPUs: splits whose kernels are measured, N for tensor parallelism and epN for whole experts; rank 0 of each runs alone [default: 1,2,8,ep2]
    #[arg(long, value_name = "N|epN,..", value_delimiter = ',')]
    splits: Vec<Split>,
    /// On GPUs: sequences of the steps that are measured [default: 1,2,4,8,12,20,32,48,60,96]
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = whole::<u32>(1..=4096))]
    batches: Vec<u32>,
    /// On GPUs: tokens in the cache of each sequence [default: 64,192,512,2048]
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = whole::<u32>(1..=1 << 20))]
    contexts: Vec<u32>,
    /// On GPUs: seconds after which no further step is begun [default: 120]
    #[arg(long, value_name = "S", value_parser = whole::<u64>(1..=3600))]
    budget: Option<u64>,
    /// On GPUs: choose launches by measurement, for `run --machine` to take
    #[arg(long)]
    tune: bool,
    /// On GPUs: seed of weights and tokens [default: 0]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
    /// Measure all-reduces of these sizes only, and print them
    #[arg(long, value_delimiter = ',', value_parser = whole::<u64>(1..=1 << 40), hide = true)]
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
        return exchanges_only(args);
    }
    if args.from.is_empty() && !args.report {
        return on_gpus(args);
    }
    refuse_what_is_of_gpus(args)?;
    if args.from.is_empty() {
        return shipped(args);
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

/// A flag that only speaks of what is measured on GPUs is wrong where nothing is.
fn refuse_what_is_of_gpus(args: &CalibrateArgs) -> Result<(), Failure> {
    let given = [
        ("--model", !args.model.is_empty()),
        ("--layers", args.layers.is_some()),
        ("--splits", !args.splits.is_empty()),
        ("--batches", !args.batches.is_empty()),
        ("--contexts", !args.contexts.is_empty()),
        ("--budget", args.budget.is_some()),
        ("--tune", args.tune),
        ("--seed", args.seed.is_some()),
    ];
    let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) else { return Ok(()) };
    let mode = if args.report { "--report" } else { "--from" };
    let error = InputError::new(flag, format!("says what is measured on GPUs, and with {mode} nothing is"));
    Err(error.accepted([format!("no {flag}"), format!("no {mode}")]).into())
}

/// How well the shipped tables predict what is left out of them: all of them, or a machine's.
fn shipped(args: &CalibrateArgs) -> Result<Outcome, Failure> {
    if args.out.is_some() {
        let error = InputError::new("--out", "--report without --from fits no machine, so there is none to write");
        return Err(error.accepted(["--from FILE", "no --out"]).into());
    }
    let (mut errors, mut collectives) = (family_errors(), shipped_left_out());
    if let Some(name) = &args.machine {
        let machine = resolve::machine("--machine", name)?;
        let known: Vec<String> = machine.models.iter().map(|m| m.name.clone()).collect();
        errors.retain(|e| known.iter().any(|gpu| gpu == e.gpu));
        collectives.retain(|c| c.machine == machine.name);
        if errors.is_empty() && collectives.is_empty() {
            let error = InputError::new("--machine", "no shipped table is of it or of its GPUs").value(name.as_str());
            let mut names: Vec<String> = shipped_left_out().into_iter().map(|c| c.machine).collect();
            names.dedup();
            return Err(error.accepted(names).into());
        }
    }
    if args.json {
        output::answer_json(&kernels::json(&errors, &collectives))?;
    } else {
        output::answer(&kernels::text(&errors, &collectives))?;
    }
    Ok(Outcome::Yes)
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
fn exchanges_only(args: &CalibrateArgs) -> Result<Outcome, Failure> {
    let begin = Instant::now();
    let asked = Asked::of(args, begin)?;
    let ranks = u32::try_from(gpus_at_hand(2, None)?.len()).unwrap_or(2);
    let exchanges = all_reduces(ranks, &args.exchanges)?;
    let mut gathered = Gathered::default();
    asked.exchanges(Ways { ranks, peer_access: false, one_shot: false }, &mut gathered)?;
    output::answer_json(&ThroughHost { exchanges, rows: gathered.exchanges, left: gathered.said })?;
    Ok(Outcome::Yes)
}

/// What is to be measured on GPUs.
struct Asked {
    specs: Vec<(String, ModelSpec)>,
    points: Points,
}

/// Contexts that are measured where none are asked for: caches of few tiles of keys and of many, between which kernels choose their splits anew.
const CONTEXTS: [u32; 4] = [64, 192, 512, 2048];
/// Layers of which exchanges are measured: a dense one and one of experts, in the models that begin with dense ones.
const EXCHANGE_LAYERS: usize = 2;

impl Asked {
    fn of(args: &CalibrateArgs, begin: Instant) -> Result<Self, Failure> {
        let or = |flag, given: &[u32], default: &[u32]| if given.is_empty() { default.to_vec() } else { each_once(flag, given) };
        let batches = or("--batches", &args.batches, &[1, 2, 4, 8, 12, 20, 32, 48, 60, 96]);
        let contexts = or("--contexts", &args.contexts, &CONTEXTS);
        let splits = if args.splits.is_empty() { default_splits() } else { each_once("--splits", &args.splits) };
        let names = if args.model.is_empty() { vec!["kimi-k2.5".to_owned()] } else { each_once("--model", &args.model) };
        let mut specs = Vec::new();
        for name in names {
            let spec = resolve::model("--model", &name)?.spec;
            let layers = args.layers.unwrap_or(3).min(u32::try_from(spec.layers.len()).unwrap_or(u32::MAX));
            specs.push((name, cut(spec, Some(layers))?));
        }
        let until = begin + Duration::from_secs(args.budget.unwrap_or(120));
        let points = Points { splits, batches, contexts, seed: args.seed.unwrap_or(0), until, tune: args.tune, least_ps: 1 };
        Ok(Self { specs, points })
    }
    /// Exchanges of every model's steps, and the kernels between them.
    fn exchanges(&self, ways: Ways, to: &mut Gathered) -> Result<(), Failure> {
        for (name, spec) in &self.specs {
            let mut spec = spec.clone();
            spec.layers.truncate(EXCHANGE_LAYERS);
            let open = |all_reduce, capacity| {
                CudaExecutor::open(ways.ranks, CudaOptions { all_reduce, library: true, ..CudaOptions::new(capacity, DEADLINE) })
            };
            let found = exchange_rows(&spec, &self.points, ways, &open)?;
            to.exchanges.extend(found.rows);
            to.rows.extend(found.kernels);
            to.forked.extend(found.forked);
            to.said.extend(found.left.into_iter().map(|why| format!("{name}: {why}")));
        }
        Ok(())
    }
}

/// What was measured so far.
#[derive(Default)]
struct Gathered {
    rows: Vec<OwnRow>,
    choices: Vec<Choice>,
    exchanges: Vec<OwnExchange>,
    forked: Vec<Forked>,
    eager: Vec<Eager>,
    /// What is to be said of it.
    said: Vec<String>,
}

impl Gathered {
    /// Exchanges over several GPUs, with peer access and without; the machine with collectives fitted to them.
    fn exchanges(&mut self, machine: Machine, ranks: u32, asked: &Asked, source: &str, begin: Instant) -> Result<Machine, Failure> {
        let peer_access = machine.peer_access.value;
        let direct = all_reduces(ranks, &SIZES)?;
        calibration::progress(begin, "all-reduces");
        let mut all = calibration::tables(&direct, peer_access, source);
        asked.exchanges(Ways { ranks, peer_access, one_shot: true }, self)?;
        calibration::progress(begin, "exchanges of steps");
        let names: Vec<&str> = asked.specs.iter().map(|(name, _)| name.as_str()).collect();
        match calibration::exchanges_through_host(&HOST_SIZES, &names, &asked.points) {
            Ok(host) => {
                all.extend(calibration::tables(&host.exchanges, false, source));
                self.exchanges.extend(host.rows);
                self.said.extend(host.left.into_iter().map(|why| format!("without peer access: {why}")));
            }
            Err(Failure::Running(why)) => self.said.push(why),
            Err(e) => return Err(e),
        }
        calibration::progress(begin, "the same without peer access");
        self.said.extend(calibration::skew_words(&direct));
        let (fitted, words) = with_exchanges(machine, &all);
        self.said.push(words);
        self.said.extend(all.iter().flat_map(table_words));
        Ok(fitted)
    }
    /// Kernels of every model.
    fn kernels(&mut self, asked: &Asked, begin: Instant) -> Result<(), Failure> {
        for (name, spec) in &asked.specs {
            let open = |ranks, capacity| CudaExecutor::open_alone(RankId(0), ranks, calibration::options(capacity));
            let found = kernel_rows(spec, &asked.points, &open)?;
            calibration::progress(begin, &format!("{} kernels of {name}", found.rows.len()));
            self.said.extend(found.left.into_iter().map(|why| format!("{name}: {why}")));
            self.rows.extend(found.rows);
            self.choices.extend(found.choices);
            self.forked.extend(found.forked);
            self.eager.extend(found.eager);
        }
        self.said.extend(self.choices.iter().map(|c| {
            format!(
                "{} {} {} x {} at {} rows: {} warps a tile make the step faster than the constants'",
                c.op, c.storage, c.n, c.k, c.rows, c.parts
            )
        }));
        Ok(())
    }
    /// As a machine file has it, and everything that is to be said.
    fn finish(self, machine: &Machine, source: &str, seed: u64) -> (OwnKernels, Vec<String>) {
        let Self { rows, choices, exchanges, forked, eager, mut said } = self;
        let mut own = OwnKernels { choices, exchanges: medians(exchanges), ..OwnKernels::new(source.to_owned(), rows) };
        own.joins = calibration::joins(machine, &own, &forked, seed);
        own.eager_gap_ps = calibration::eager_gap(machine, &own, &eager, seed);
        said.extend(own.eager_gap_ps.map(|ps| {
            let (us, steps) = (ps as f64 / 1e6, eager.len());
            format!("a kernel that the host launches takes the device {us:.2} us longer than as a node of a captured graph ({steps} steps)")
        }));
        said.extend(own.joins.map(|j| {
            let us = |ps: u64| ps as f64 / 1e6;
            let nccl = j.nccl_ps.map_or_else(String::new, |ps| format!(", {:.1} with NCCL's collectives in the graph", us(ps)));
            let steps = forked.len();
            format!("a command that waits for another stream costs a captured step {:.1} us{nccl} ({steps} steps)", us(j.kernels_ps))
        }));
        (own, said)
    }
}

/// Measures the GPUs here and writes the machine file.
fn on_gpus(args: &CalibrateArgs) -> Result<Outcome, Failure> {
    let begin = Instant::now();
    let file = args.out.as_deref().map(|path| NewFile::plan("--out", path)).transpose()?;
    let mut asked = Asked::of(args, begin)?;
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
    asked.points.least_ps = floor.graph_node_ps;
    let mut gathered = Gathered::default();
    if found > 1 {
        machine = gathered.exchanges(machine, u32::try_from(found).unwrap_or(2), &asked, &source, begin)?;
    }
    gathered.kernels(&asked, begin)?;
    let (own, said) = gathered.finish(&machine, &source, asked.points.seed);
    let gpu = machine.models.iter().find(|m| Some(m.name.as_str()) == gpu_by_words(&conditions.gpu)).or(machine.models.first());
    let errors = gpu.map(|gpu| own.left_out(&gpu_rates(gpu))).unwrap_or_default();
    let measured =
        report::Measured { source: &source, floors: &floor, rows: own.rows.len(), exchanges: &own.exchanges, errors: &errors, said: &said };
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
