//! `moetwin sim`.

use super::compare_profile::Measured;
use super::run::cut;
use crate::args::{DEFAULT_MACHINE, DEFAULT_MODEL, DeploymentArgs};
use crate::error::{Failure, InputError, Outcome};
use crate::output::{self, NewFile};
use crate::prediction::Prediction;
use crate::report::{html, sim_json, sim_text};
use crate::requests::{self, RequestArgs};
use crate::resolve;
use crate::scenario::Scenario;
use crate::values::whole;
use clap::Args;
use moetwin::sim::trace::chrome_trace;
use std::path::PathBuf;

/// Arguments of `moetwin sim`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin sim
  moetwin sim --batch 8 --context 16384
  moetwin sim --machine 8x-h200-sxm --model deepseek-v3 --dp-attention 8 --ep 8 --batch 64
  moetwin sim --graphs off --p2p off --json
  moetwin sim --phase verify:3 --trace trace.json
  moetwin sim --report report.html
  moetwin sim --requests closed:1,8,64
  moetwin sim --requests open:0.5 --prompt-tokens 512-4096 --output-tokens 64-512

Without arguments: Kimi-K2.5 with INT4 experts on 8x RTX PRO 6000 (Server) over PCIe, TP8, one stream at 1024 tokens of context.
Exit code 1 means the answer is no: it would not start, or what was asked for does not fit.")]
pub(crate) struct SimArgs {
    #[command(flatten)]
    deployment: DeploymentArgs,
    #[command(flatten)]
    requests: RequestArgs,
    /// Only the first N layers, as `run --layers`
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=65_535), conflicts_with = "requests")]
    layers: Option<u32>,
    /// Write a Chrome trace-event file, which ui.perfetto.dev opens
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write a page for people: one HTML file that needs no network
    #[arg(
        long,
        value_name = "FILE",
        long_help = "\
Write a page for people: one HTML file that needs no network, with the verdict, where the step goes, a time line, memory, links, what a change \
would buy (each simulated again) and where every number comes from"
    )]
    report: Option<PathBuf>,
    /// The real step, shown beside the predicted one in the report
    #[arg(
        long,
        value_name = "FILE",
        requires = "report",
        long_help = "\
The real step, shown beside the predicted one in the report: a trace of `moetwin run --backend cuda --trace`, or what torch's profiler or nsys \
recorded of another engine, as `moetwin compare --trace` takes it"
    )]
    measured: Option<PathBuf>,
}

/// Predicts and prints.
pub(crate) fn run(args: &SimArgs) -> Result<Outcome, Failure> {
    if let Some(source) = &args.requests.requests {
        let of_a_step = args.trace.as_ref().map(|_| "--trace").or(args.report.as_ref().map(|_| "--report"));
        if let Some(flag) = of_a_step {
            return Err(InputError::new(flag, "shows one step, and --requests serves many").into());
        }
        return requests::run(&args.deployment, &args.requests, source);
    }
    let trace_file = args.trace.as_deref().map(|path| NewFile::plan("--trace", path)).transpose()?;
    let report_file = args.report.as_deref().map(|path| NewFile::plan("--report", path)).transpose()?;
    NewFile::distinct(&[trace_file.as_ref(), report_file.as_ref()])?;
    if let (Some(file), Some(measured)) = (&report_file, &args.measured) {
        file.spares("--measured", measured)?;
    }
    if let (Some(file), Some(measured)) = (&trace_file, &args.measured) {
        file.spares("--measured", measured)?;
    }
    let measured = args.measured.as_deref().map(|path| Measured::read("--measured", path).map(|m| (path, m))).transpose()?;
    let prediction = Prediction::of(scenario(args)?)?;
    if let Some(file) = trace_file {
        match &prediction.served {
            Some(served) => file.commit(chrome_trace(&served.program, &served.trace).as_bytes())?,
            None => output::note("note: --trace: no step was simulated, so no trace is written"),
        }
    }
    if let Some(file) = report_file {
        let command = html::reproducing(std::env::args_os().skip(1));
        let measured = match (&measured, &prediction.served) {
            (Some((path, measured)), Some(served)) => Some(measured.beside("--measured", path, &prediction.scenario, served)?),
            _ => None,
        };
        file.commit(html::html(&prediction, &command, measured.as_ref())?.as_bytes())?;
    }
    if args.deployment.json {
        output::answer_json(&sim_json::json(&prediction)?)?;
    } else {
        output::answer(&sim_text::text(&prediction))?;
    }
    Ok(if prediction.is_yes() { Outcome::Yes } else { Outcome::No })
}

/// The flags' scenario, of the model's first layers where only those are asked for.
fn scenario(args: &SimArgs) -> Result<Scenario, Failure> {
    let flags = &args.deployment;
    let machine = resolve::machine("--machine", flags.machine.as_deref().unwrap_or(DEFAULT_MACHINE))?;
    let mut model = resolve::model("--model", flags.model.as_deref().unwrap_or(DEFAULT_MODEL))?;
    model.spec = cut(model.spec, args.layers)?;
    Scenario::of(flags, machine, model)
}
