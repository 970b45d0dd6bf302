//! `moetwin compare`: predicted beside measured.

use super::compare_profile;
use crate::args::DeploymentArgs;
use crate::error::{Failure, Outcome};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `moetwin compare`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin compare --trace tests/fixtures/profiles/nsys.sqlite --model mixtral-8x7b --tp 2 --steps 5
  moetwin compare --trace step.json.gz --model deepseek-v3 --machine 8x-h200-sxm --batch 16 --context 8192
  moetwin compare --trace kernels.csv --steps 100 --json

A profile of an engine of yours: what torch's profiler wrote (.json, .json.gz), `nsys export --type sqlite`, or the CSV of `nsys stats --report
cuda_gpu_trace`. Its kernels are grouped into classes of work by their names and by what runs around them, and the step that repeats is put
beside the step that the other flags describe: model, machine, split, batch and context as your engine had them.")]
pub(crate) struct CompareArgs {
    /// A profile of another engine
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Forward passes that the whole profile holds, where no repetition shows it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    #[command(flatten)]
    deployment: DeploymentArgs,
}

/// Compares and prints.
pub(crate) fn run(args: &CompareArgs) -> Result<Outcome, Failure> {
    compare_profile::run(&args.trace, args.steps, &args.deployment)
}
