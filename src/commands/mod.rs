//! One file a subcommand.

mod completions;
mod run;

use crate::error::{Failure, Outcome};
use clap::Subcommand;

/// What moetwin can be asked.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Execute the program with real values
    Run(run::RunArgs),
}

impl Command {
    /// Carries the command out.
    pub(crate) fn run(self) -> Result<Outcome, Failure> {
        match self {
            Command::Completions(args) => completions::run(&args),
            Command::Run(args) => run::run(&args),
        }
    }
}
