//! One file a subcommand.

mod completions;
mod model;
mod run;

use crate::error::{Failure, Outcome};
use clap::Subcommand;

/// What moetwin can be asked.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Built-in models, and what any configuration says
    Model(model::ModelArgs),
    /// Execute the program with real values
    Run(Box<run::RunArgs>),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Carries the command out.
    pub(crate) fn run(self) -> Result<Outcome, Failure> {
        match self {
            Command::Model(args) => model::run(&args),
            Command::Run(args) => run::run(&args),
            Command::Completions(args) => completions::run(&args),
        }
    }
}
