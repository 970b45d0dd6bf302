//! `moetwin run`: the program with real values.

use crate::args::DeploymentArgs;
use crate::error::{Failure, InputError, Outcome};
use clap::{Args, ValueEnum};
use moetwin::cuda::{Search, probe};
use std::path::PathBuf;

/// Who executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The reference on the CPU, in f32.
    Cpu,
    /// CUDA and NCCL.
    Cuda,
}

/// Arguments of `moetwin run`.
#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    deployment: DeploymentArgs,
    /// Who executes: the CPU reference, or CUDA and NCCL
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Execute only this rank of the deployment
    #[arg(long, value_name = "R")]
    only_rank: Option<u32>,
    /// Seeded weights instead of a checkpoint's
    #[arg(long)]
    synthetic: bool,
    /// Only the first N layers
    #[arg(long, value_name = "N")]
    layers: Option<u32>,
    /// Token ids: a safetensors file with `input_ids`, `i64[sequences, tokens]`
    #[arg(long, value_name = "FILE")]
    input_ids: Option<PathBuf>,
    /// Where to write logits, hidden states and router choices of the prompt, as safetensors
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Text to continue
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// New tokens per sequence
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// Where to write the trace
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Executes the program.
pub(crate) fn run(args: &RunArgs) -> Result<Outcome, Failure> {
    match args.backend {
        Backend::Cpu => Err(crate::args::not_yet("--backend", "cpu", &[])),
        Backend::Cuda => Err(cuda(args)),
    }
}

/// What keeps CUDA from being used here; that this build has no executor for it, where nothing else does.
fn cuda(args: &RunArgs) -> Failure {
    let ranks = match args.deployment.deployment(1) {
        Ok(deployment) => deployment.ranks(),
        Err(failure) => return failure,
    };
    let probed = probe(&Search::from_environment());
    let missing = probed.missing_for(ranks as usize);
    if missing.is_empty() {
        let message = format!(
            "everything it needs is here, but this version of moetwin has no CUDA executor yet:\n{}",
            probed.to_string().trim_end()
        );
        return InputError::new("--backend", message).value("cuda").accepted(["cpu"]).into();
    }
    let mut text = "--backend cuda cannot run here".to_owned();
    for (name, m) in missing {
        text.push_str(&format!("\n  {name}: {}\n    {}", m.why, m.remedy));
    }
    Failure::Running(text)
}
