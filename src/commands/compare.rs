//! `moetwin compare`: predicted beside measured.

use super::compare_profile;
use super::run::cut;
use crate::args::{AllReduceKind, AllToAllKind, DeploymentArgs, Switch};
use crate::error::{Failure, InputError, Outcome};
use crate::measurement::Conditions;
use crate::output;
use crate::report::compare as report;
use crate::resolve;
use crate::scenario::Scenario;
use crate::values::whole;
use clap::{Args, ValueEnum};
use moetwin::kernels::routing::{RecordedRouting, SampledRouting};
use moetwin::models::OpClass;
use moetwin::runtime::Program;
use moetwin::sim::breakdown::Breakdown;
use moetwin::sim::exec::{SimTrace, simulate};
use moetwin::sim::machine;
use moetwin::sim::measured::{self, Comparison, Origin, Trace, is_exchange};
use moetwin::sim::topology::gpu_by_words;
use moetwin::sim::trace::chrome_trace;
use std::path::{Path, PathBuf};

/// Machine of the origin story, on which a rank slice's deployment is also predicted: PCIe instead of NVLink.
const PCIE_MACHINE: &str = crate::args::DEFAULT_MACHINE;

/// Flags of a deployment that a trace of ours says itself.
const SAID_BY_THE_TRACE: [&str; 18] = [
    "model",
    "tp",
    "pp",
    "dp_attention",
    "ep",
    "dcp",
    "replicas",
    "batch",
    "context",
    "phase",
    "spec",
    "spec_accept",
    "graphs",
    "kv_dtype",
    "a2a",
    "engine",
    "engine_version",
    "nccl_graph",
];

/// Arguments of `moetwin compare`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin compare --measured measured.json
  moetwin compare --measured measured.json --machine calibrated.json --json
  moetwin compare --measured measured.json --predicted predicted.json
  moetwin compare --trace tests/fixtures/profiles/vllm.json.gz --model mixtral-8x7b --tp 2

The measured trace is one of `moetwin run --backend cuda --trace FILE`. It says what it is of, so the same step is predicted: on --machine, or
else on the built-in machine that has such GPUs, with the experts that its tokens chose. --predicted takes a trace of `moetwin sim --trace`
instead. Commands are joined by their ids. Of one rank alone (run --only-rank) the step of the whole deployment is added that follows from it.

A profile of another engine (--trace) is what torch's profiler wrote (.json, .json.gz), a SQLite export of nsys, or the CSV of its report
cuda_gpu_trace. Its kernels are grouped into classes of work by their names and by what runs around them, and the step that repeats is
put beside the step that the deployment flags describe: model, machine, split, batch and context as your engine had them.")]
pub(crate) struct CompareArgs {
    /// A trace of what `moetwin run` measured
    #[arg(long, value_name = "FILE", required_unless_present = "trace", conflicts_with_all = SAID_BY_THE_TRACE)]
    measured: Option<PathBuf>,
    /// A profile of another engine: torch's profiler, nsys
    #[arg(long, value_name = "FILE", conflicts_with_all = ["measured", "predicted", "rows"])]
    trace: Option<PathBuf>,
    /// Forward passes that the whole profile holds, where no repetition shows it
    #[arg(long, value_name = "N", requires = "trace", value_parser = whole::<u32>(1..=u32::MAX))]
    steps: Option<u32>,
    /// A trace of what was predicted, instead of predicting it now
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machine", "routing", "p2p", "allreduce"])]
    predicted: Option<PathBuf>,
    /// Commands to list, worst first
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = whole::<usize>(0..=usize::MAX))]
    rows: usize,
    #[command(flatten)]
    deployment: DeploymentArgs,
}

/// What was found.
pub(crate) struct Answer {
    /// What was measured.
    pub(crate) conditions: Option<Conditions>,
    /// What it is compared with, in words.
    pub(crate) against: String,
    /// The comparison.
    pub(crate) comparison: Comparison,
    /// Of one rank alone: what stood in for collectives, milliseconds, and the deployments that follow.
    pub(crate) slice: Option<SliceAnswer>,
    /// Rows to list.
    pub(crate) rows: usize,
}

/// What follows from one rank's measured half.
pub(crate) struct SliceAnswer {
    /// The step less what stood in for collectives, milliseconds.
    pub(crate) compute_ms: f64,
    /// What stood in for collectives, milliseconds.
    pub(crate) stand_in_ms: f64,
    /// Whole deployments.
    pub(crate) deployments: Vec<Following>,
}

/// A deployment whose step follows from a measured half and predicted collectives.
pub(crate) struct Following {
    /// Where.
    pub(crate) machine: String,
    /// Its compute half, milliseconds: as measured, or scaled by what is predicted there and here.
    pub(crate) compute_ms: f64,
    /// What its collectives take on the chain that decides the step, predicted, milliseconds.
    pub(crate) collectives_ms: f64,
    /// The step as it would be predicted whole, milliseconds.
    pub(crate) predicted_ms: f64,
}

/// Compares and prints.
pub(crate) fn run(args: &CompareArgs) -> Result<Outcome, Failure> {
    if let Some(file) = &args.trace {
        return compare_profile::run(file, args.steps, &args.deployment);
    }
    let path = args.measured.as_deref().unwrap_or(Path::new(""));
    let measured = read("--measured", path)?;
    let file = path.to_string_lossy();
    if measured.origin != Origin::Measured {
        let error = InputError::new("--measured", "holds a prediction, not a measurement").value(file);
        return Err(error.accepted(["a trace of moetwin run --backend cuda --trace"]).into());
    }
    let answer = match &args.predicted {
        Some(path) => {
            let predicted = read("--predicted", path)?;
            let conditions = Conditions::read("--measured", &file, &measured.conditions).ok();
            Answer { against: path.display().to_string(), conditions, ..joined(args, &predicted, &measured, "--predicted")? }
        }
        None => predicted_now(args, &file, &measured)?,
    };
    if args.deployment.json {
        output::answer_json(&report::json(&answer))?;
    } else {
        output::answer(&report::text(&answer))?;
    }
    Ok(Outcome::Yes)
}

fn read(flag: &'static str, path: &Path) -> Result<Trace, Failure> {
    let name = path.to_string_lossy();
    if !path.is_file() {
        return Err(InputError::new(flag, "is not a file that exists").value(name).accepted(["a trace"]).into());
    }
    let text = resolve::read_text(flag, &name, path)?;
    measured::read(&text).map_err(|e| InputError::new(flag, format!("{name}: {e}")).value(name.as_ref()).into())
}

fn joined(args: &CompareArgs, predicted: &Trace, measured: &Trace, flag: &'static str) -> Result<Answer, Failure> {
    let comparison = measured::compare(predicted, measured);
    if comparison.rows.is_empty() {
        let message = format!(
            "no command of it was measured: {} predicted, {} measured; the traces are of different programs",
            comparison.unmatched.0, comparison.unmatched.1
        );
        return Err(InputError::new(flag, message).into());
    }
    Ok(Answer { conditions: None, against: String::new(), comparison, slice: None, rows: args.rows })
}

/// Predicts what was measured, and joins.
fn predicted_now(args: &CompareArgs, file: &str, measured: &Trace) -> Result<Answer, Failure> {
    let conditions = Conditions::read("--measured", file, &measured.conditions)?;
    let name = match &args.deployment.machine {
        Some(name) => name.clone(),
        None => machine_with(&conditions.gpu)?,
    };
    let again = Again { args, conditions: &conditions, captured: measured.captured };
    let (scenario, program, trace) = again.predict(&name, args.deployment.p2p.or(conditions.peer_access_off.then_some(Switch::Off)))?;
    let predicted = measured::read(&chrome_trace(&program, &trace)).map_err(|e| Failure::Running(format!("a defect of moetwin: {e}")))?;
    let Some(_) = conditions.only_rank else {
        let answer = joined(args, &predicted, measured, "--measured")?;
        return Ok(Answer { against: scenario.machine.name.clone(), conditions: Some(conditions), ..answer });
    };
    // Of a rank alone the compute half is compared; its exchanges are nobody's.
    let breakdown = Breakdown::new(&program, &trace);
    let ps = |ms: f64| (ms * 1e9).max(0.0) as u64;
    let half = predicted.without_exchanges(ps(compute_part(&breakdown)));
    let slice = Some(again.slice(&name, measured, breakdown)?);
    let compute_ms = slice.as_ref().map_or(0.0, |s| s.compute_ms);
    let answer = joined(args, &half, &measured.clone().without_exchanges(ps(compute_ms)), "--measured")?;
    Ok(Answer { against: scenario.machine.name.clone(), slice, conditions: Some(conditions), ..answer })
}

/// The built-in machine with such GPUs, which must be given where there is none.
pub(super) fn machine_with(gpu: &str) -> Result<String, Failure> {
    built_in_with(gpu).ok_or_else(|| {
        let error = InputError::new("--machine", format!("none was given, and no built-in machine has GPUs like {gpu:?}"));
        error.accepted(machine::names().chain(["a machine file"])).into()
    })
}

/// The first built-in machine with such GPUs.
pub(super) fn built_in_with(gpu: &str) -> Option<String> {
    let wanted = gpu_by_words(gpu)?;
    let has = |name: &&str| machine::find(name).is_some_and(|m| m.models.iter().any(|model| model.name == wanted));
    machine::names().find(has).map(str::to_owned)
}

/// A measured step, predicted again.
struct Again<'a> {
    args: &'a CompareArgs,
    conditions: &'a Conditions,
    captured: bool,
}

impl Again<'_> {
    fn predict(&self, machine: &str, p2p: Option<Switch>) -> Result<(Scenario, Program, SimTrace), Failure> {
        let c = self.conditions;
        let a2a = AllToAllKind::from_str(&c.a2a, false)
            .map_err(|e| Failure::from(InputError::new("--measured", format!("otherData.conditions.a2a: {e}")).value(c.a2a.as_str())))?;
        let flags = DeploymentArgs {
            tp: Some(c.tp),
            pp: Some(c.pp),
            dp_attention: Some(c.dp_attention),
            ep: Some(c.ep),
            dcp: Some(c.dcp),
            replicas: Some(c.replicas),
            a2a: Some(a2a),
            graphs: Some(if self.captured { Switch::On } else { Switch::Off }),
            p2p,
            allreduce: Some(self.args.deployment.allreduce.unwrap_or(AllReduceKind::Nccl)),
            routing: self.args.deployment.routing.clone(),
            kernels: self.args.deployment.kernels.clone(),
            seed: c.seed,
            ..DeploymentArgs::default()
        };
        let mut model = resolve::model("--measured", &c.model)?;
        model.spec = cut(model.spec, c.layers)?;
        let mut scenario = Scenario::of(&flags, resolve::machine("--machine", machine)?, model)?;
        scenario.step = c.step();
        let program = scenario.program(&scenario.step)?;
        let seen = if self.args.deployment.routing.is_none() { c.chosen.clone() } else { Default::default() };
        let routing = RecordedRouting::new(seen, SampledRouting::new(scenario.routing.clone(), scenario.seed));
        let trace = simulate(&program, &scenario.machine, &routing, &scenario.options).map_err(|e| Failure::Running(e.to_string()))?;
        Ok((scenario, program, trace))
    }

    /// The deployment that one rank is of: its measured half, and predicted collectives on this machine with and without peer access and on
    /// the origin story's.
    fn slice(&self, machine: &str, measured: &Trace, here: Breakdown) -> Result<SliceAnswer, Failure> {
        let exchanged: u64 = measured.intervals.iter().filter(|i| i.class.is_some_and(is_exchange)).map(|i| i.duration_ps).sum();
        let stand_in_ms = exchanged as f64 / 1e9;
        let compute_ms = (measured.step_ps as f64 / 1e9 - stand_in_ms).max(0.0);
        let predicted_here = compute_part(&here);
        let mut deployments = Vec::new();
        for (name, p2p, words) in [
            (machine, Switch::On, "peer access on"),
            (machine, Switch::Off, "through the host"),
            (PCIE_MACHINE, Switch::On, "peer access on"),
        ] {
            let (scenario, program, trace) = self.predict(name, Some(p2p))?;
            let there = Breakdown::new(&program, &trace);
            let scale = if predicted_here > 0.0 { compute_part(&there) / predicted_here } else { 1.0 };
            deployments.push(Following {
                machine: format!("{}, {words}", scenario.machine.name),
                compute_ms: compute_ms * scale,
                collectives_ms: there.step_ms - compute_part(&there),
                predicted_ms: there.step_ms,
            });
        }
        Ok(SliceAnswer { compute_ms, stand_in_ms, deployments })
    }
}

/// Milliseconds of a pass that are not exchanges, on the chain that decides it.
fn compute_part(breakdown: &Breakdown) -> f64 {
    let exchange = |class: &str| OpClass::ALL.into_iter().any(|c| c.name() == class && is_exchange(c));
    breakdown.rows.iter().filter(|r| !exchange(r.class)).map(|r| r.ms).sum()
}
