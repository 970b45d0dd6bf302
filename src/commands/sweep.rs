//! `moetwin sweep`.

use crate::args::{DEFAULT_MACHINE, DEFAULT_MODEL, DeploymentArgs, Speculation};
use crate::digest::digest;
use crate::error::{Failure, InputError, Outcome};
use crate::launches::{Launcher, Launches};
use crate::output::{self, NewFile, Progress};
use crate::requests::milliseconds;
use crate::resolve;
use crate::sweep::{Row, Space, pareto, run as predict_all};
use crate::table::{Table, wrap};
use crate::values::{each_once, whole};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Arguments of `moetwin sweep`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin sweep
  moetwin sweep --machine 8x-h200-sxm --model deepseek-v3 --objective throughput
  moetwin sweep --tp 8 --dp-attention 1 --batches 1,64 --slo-ms 40 --row 2

Flags that are given hold for every point; what is not given is varied: tp, pp, replicas (all GPUs are used), dp-attention, dcp, ep, all-to-all,
all-reduce, batch. Launch commands are checked on the machine, as by `moetwin check`, before they are printed. Exit code 1: no deployment starts, fits and meets the objective.")]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    deployment: DeploymentArgs,
    /// Batches to try where --batch is not given
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', default_value = "1,8,64", conflicts_with = "batch", value_parser = whole::<u32>(1..=65_536))]
    batches: Vec<u32>,
    /// Drafting to try where --spec is not given
    #[arg(long, value_name = "SPEC,SPEC,..", value_delimiter = ',', default_value = "none", conflicts_with = "spec")]
    specs: Vec<Speculation>,
    /// What the best deployment is best at
    #[arg(long, value_enum, default_value_t = Objective::Latency)]
    objective: Objective,
    /// Longest time a token, milliseconds, for a deployment to count
    #[arg(long, value_name = "MS", value_parser = milliseconds(), allow_hyphen_values = true)]
    slo_ms: Option<f64>,
    /// Rows of the report
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = whole::<u32>(1..=u32::MAX))]
    limit: u32,
    /// Row of which the report shows the launch commands (--json has them for every row)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=u32::MAX))]
    row: u32,
    /// Keep rows in this file as they come, and take those it already has from it
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Objective {
    /// Least time a token
    Latency,
    /// Most tokens a second
    Throughput,
}

/// The answer. Rows are ranked; rejected ones follow in the order they were tried.
#[derive(Serialize)]
struct SweepJson<'a> {
    schema: u32,
    seed: u64,
    model: &'a str,
    machine: &'a str,
    objective: &'static str,
    slo_ms: Option<f64>,
    points: usize,
    rows: Vec<RankedJson<'a>>,
    rejected: Vec<RejectedJson<'a>>,
}

#[derive(Serialize)]
struct RankedJson<'a> {
    #[serde(flatten)]
    row: &'a Row,
    token_ms: Option<f64>,
    pareto: bool,
    meets_slo: bool,
    #[serde(flatten)]
    launches: Launches,
}

#[derive(Serialize)]
struct RejectedJson<'a> {
    flags: &'a str,
    reason: &'a str,
}

/// Predicts every deployment and ranks them.
pub(crate) fn run(args: &SweepArgs) -> Result<Outcome, Failure> {
    let d = &args.deployment;
    let machine = resolve::machine("--machine", d.machine.as_deref().unwrap_or(DEFAULT_MACHINE))?;
    let name = d.model.as_deref().unwrap_or(DEFAULT_MODEL);
    let model = resolve::model("--model", name)?;
    let gpus = u32::try_from(machine.gpu_count()).unwrap_or(u32::MAX);
    let (batches, specs) = (each_once("--batches", &args.batches), each_once("--specs", &args.specs));
    let points = Space { fixed: d, batches: &batches, speculation: &specs, gpus }.points();
    if points.is_empty() {
        return Err(InputError::new("--tp", format!("no deployment of {} GPUs is left by these flags", gpus)).into());
    }
    // Rows in a file belong to the flags that hold for every point.
    let version = env!("CARGO_PKG_VERSION");
    let own = digest(&(&model.spec, machine.to_json())).map_err(|e| Failure::Running(e.to_string()))?;
    let question = format!("{} on {} {} [moetwin {version}, {own}]", model.spec.name, machine.name, d.given());
    let store = args.resume.as_deref().map(|path| Store::open(path, &question)).transpose()?;
    let known = store.as_ref().map(|s| s.known.clone()).unwrap_or_default();
    let progress = Progress::new("sweep", points.len());
    let rows = predict_all(&points, &machine, &model, &known, &|row| {
        progress.step();
        store.as_ref().map_or(Ok(()), |s| s.add(row))
    })?;
    drop(progress);
    let meets = |row: &Row| row.token_ms().is_some_and(|ms| args.slo_ms.is_none_or(|slo| ms <= slo));
    let front = pareto(&rows);
    let mut ranked: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].tokens_per_s.is_some()).collect();
    let key = |i: &usize| match args.objective {
        Objective::Latency => rows[*i].token_ms().unwrap_or(f64::INFINITY),
        Objective::Throughput => -rows[*i].tokens_per_s.unwrap_or(0.0),
    };
    ranked.sort_by(|a, b| meets(&rows[*b]).cmp(&meets(&rows[*a])).then(key(a).total_cmp(&key(b))).then(a.cmp(b)));
    let launcher = Launcher::new(name, &model, &machine, &points, &rows)?;
    // A report shows the commands of one row.
    let chosen = args.row as usize - 1;
    let shown: Vec<usize> =
        if d.json { ranked.clone() } else { ranked.get(chosen).filter(|i| meets(&rows[**i])).copied().into_iter().collect() };
    let mut launches: BTreeMap<usize, Launches> = shown.iter().copied().zip(launcher.all(&shown)).collect();
    let ranked: Vec<RankedJson<'_>> = ranked
        .iter()
        .map(|i| RankedJson {
            row: &rows[*i],
            token_ms: rows[*i].token_ms(),
            pareto: front.contains(i),
            meets_slo: meets(&rows[*i]),
            launches: launches.remove(i).unwrap_or_default(),
        })
        .collect();
    let counted = ranked.iter().filter(|r| r.meets_slo).count();
    if !d.json && counted > 0 && chosen >= counted {
        return Err(InputError::new("--row", "is behind the last row")
            .value(args.row.to_string())
            .accepted([format!("1 to {counted}")])
            .into());
    }
    let rejected = rows.iter().filter_map(|r| Some(RejectedJson { flags: &r.flags, reason: r.rejected.as_deref()? })).collect();
    let objective = if args.objective == Objective::Latency { "latency" } else { "throughput" };
    let answer = SweepJson {
        schema: 1,
        seed: d.seed,
        model: &model.spec.name,
        machine: &machine.name,
        objective,
        slo_ms: args.slo_ms,
        points: points.len(),
        rows: ranked,
        rejected,
    };
    if d.json {
        output::answer_json(&answer)?;
    } else {
        output::answer(&text(&answer, args.limit as usize, chosen))?;
    }
    Ok(if counted > 0 { Outcome::Yes } else { Outcome::No })
}

/// How the engines launch a row, or why they do not.
fn launch_text(chosen: usize, launches: &Launches) -> String {
    let row = if chosen == 0 { "The first".to_owned() } else { format!("Row {}", chosen + 1) };
    let mut out = String::new();
    for (engine, command, note) in [("SGLang", &launches.sglang, &launches.sglang_note), ("vLLM", &launches.vllm, &launches.vllm_note)] {
        let no = if command.is_some() { "" } else { ": no command" };
        let _ = writeln!(out, "\n{row} as {engine} takes it{no}");
        if let Some(command) = command {
            let _ = writeln!(out, "  {command}");
        }
        if let Some(note) = note {
            let _ = writeln!(out, "  {}", wrap(note, 2));
        }
    }
    out
}

fn text(a: &SweepJson<'_>, limit: usize, chosen: usize) -> String {
    let mut out = format!("{} on {}: {} deployments, {} rejected\n\n", a.model, a.machine, a.points, a.rejected.len());
    let slo = a.slo_ms.map_or(String::new(), |ms| format!(", at most {ms} ms a token"));
    let _ = writeln!(out, "Best for {}{slo} (*: no other deployment is better in both figures)", a.objective);
    let mut table = Table::new(["", "ms a token", "tok/s", "GiB", "flags of moetwin sim"], &[4]);
    for r in a.rows.iter().filter(|r| r.meets_slo).take(limit) {
        table.row([
            if r.pareto { "*" } else { "" }.to_owned(),
            format!("{:.2}", r.token_ms.unwrap_or(0.0)),
            format!("{:.1}", r.row.tokens_per_s.unwrap_or(0.0)),
            format!("{:.1}", r.row.peak_gib.unwrap_or(0.0)),
            r.row.flags.clone(),
        ]);
    }
    out.push_str(&table.render());
    if let Some(row) = a.rows.iter().filter(|r| r.meets_slo).nth(chosen) {
        out.push_str(&launch_text(chosen, &row.launches));
    } else {
        out.push_str("  none starts, fits and meets the objective\n");
    }
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    a.rejected.iter().for_each(|r| *reasons.entry(r.reason).or_default() += 1);
    let mut reasons: Vec<(&str, usize)> = reasons.into_iter().collect();
    reasons.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    if !reasons.is_empty() {
        out.push_str("\nRejected\n");
        for (reason, n) in reasons.iter().take(limit) {
            let _ = writeln!(out, "  {n} x {reason}");
        }
        if reasons.len() > limit {
            let _ = writeln!(out, "  and {} further reasons (--json lists all)", reasons.len() - limit);
        }
    }
    out
}

/// Rows on disk, one a line behind a line that names the question.
struct Store {
    known: BTreeMap<String, Row>,
    file: Mutex<std::fs::File>,
    path: PathBuf,
}

#[derive(Serialize, serde::Deserialize)]
struct Heading {
    schema: u32,
    question: String,
}

impl Store {
    fn open(path: &Path, question: &str) -> Result<Self, Failure> {
        let shown = path.to_string_lossy();
        let wrong = |line: usize, why: String| {
            Failure::from(InputError::new("--resume", format!("{shown}:{line}: {why}")).value(shown.to_string()))
        };
        let mut known = BTreeMap::new();
        if path.exists() {
            let text = resolve::read_text("--resume", &shown, path)?;
            let mut lines = text.lines().enumerate();
            let heading = lines.next().map_or("", |(_, l)| l);
            let heading: Heading = serde_json::from_str(heading).map_err(|e| wrong(1, format!("no file of a sweep: {e}")))?;
            if heading.schema != 1 || heading.question != question {
                return Err(wrong(1, format!("it belongs to another question: {}; this one is: {question}", heading.question)));
            }
            let last = text.lines().count();
            for (i, line) in lines {
                match serde_json::from_str::<Row>(line) {
                    Ok(row) => drop(known.insert(row.flags.clone(), row)),
                    // What was being written when the sweep was stopped.
                    Err(_) if i + 1 == last => {}
                    Err(e) => return Err(wrong(i + 1, e.to_string())),
                }
            }
        }
        // Rewritten whole first, so that a half-written last line is gone.
        let mut content = serde_json::to_string(&Heading { schema: 1, question: question.to_owned() }).unwrap_or_default();
        content.push('\n');
        for row in known.values() {
            content.push_str(&serde_json::to_string(row).unwrap_or_default());
            content.push('\n');
        }
        NewFile::plan("--resume", path)?.commit(content.as_bytes())?;
        let file = OpenOptions::new().append(true).open(path).map_err(|e| wrong(1, e.to_string()))?;
        Ok(Self { known, file: Mutex::new(file), path: path.to_owned() })
    }
    fn add(&self, row: &Row) -> Result<(), Failure> {
        let mut line = serde_json::to_string(row).map_err(|e| Failure::Running(format!("--resume: {e}")))?;
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(|e| e.into_inner());
        file.write_all(line.as_bytes()).map_err(|e| Failure::Running(format!("--resume {}: {e}", self.path.display())))
    }
}
