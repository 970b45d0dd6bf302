//! `moetwin sim`.

use super::compare_profile;
use crate::args::DeploymentArgs;
use crate::error::{Failure, Outcome};
use crate::output::{self, NewFile};
use crate::prediction::Prediction;
use crate::report::{html, sim_json, sim_text};
use crate::scenario::Scenario;
use clap::Args;
use moetwin::sim::profile::planned;
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

Without arguments: Kimi-K2.5 with INT4 experts on 8x RTX PRO 6000 (Server) over PCIe, TP8, one stream at 1024 tokens of context.
Exit code 1 means the answer is no: it would not start, or what was asked for does not fit.")]
pub(crate) struct SimArgs {
    #[command(flatten)]
    deployment: DeploymentArgs,
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
    /// A profile of the real step, shown beside the predicted one in the report
    #[arg(
        long,
        value_name = "FILE",
        requires = "report",
        long_help = "\
A profile of the real step, shown beside the predicted one in the report: what torch's profiler or nsys recorded of an engine, as `moetwin \
compare --trace` takes it"
    )]
    measured: Option<PathBuf>,
}

/// Predicts and prints.
pub(crate) fn run(args: &SimArgs) -> Result<Outcome, Failure> {
    let trace_file = args.trace.as_deref().map(|path| NewFile::plan("--trace", path)).transpose()?;
    let report_file = args.report.as_deref().map(|path| NewFile::plan("--report", path)).transpose()?;
    let profile = args.measured.as_deref().map(|path| compare_profile::read("--measured", path)).transpose()?;
    let prediction = Prediction::of(Scenario::new(&args.deployment)?)?;
    if let Some(file) = trace_file {
        match &prediction.served {
            Some(served) => file.commit(chrome_trace(&served.program, &served.trace).as_bytes())?,
            None => output::note("note: --trace: no step was simulated, so no trace is written"),
        }
    }
    if let Some(file) = report_file {
        let command = html::reproducing(std::env::args_os().skip(1));
        let measured = match (args.measured.as_deref(), profile, &prediction.served) {
            (Some(path), Some(profile), Some(served)) => {
                let planned = planned(&served.program, &served.trace);
                Some(compare_profile::beside("--measured", path, profile, None, &prediction.scenario, &planned)?)
            }
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
