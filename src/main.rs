//! The command line. Nothing here computes: every subcommand reads flags, calls the library and renders what it says.

mod args;
mod calibration;
mod capture;
mod child;
mod commands;
mod digest;
mod doctor;
mod error;
mod generation;
mod kernel_folder;
mod launches;
mod measurement;
mod nearest;
mod output;
mod prediction;
mod prompt;
mod report;
mod requests;
mod resolve;
mod room;
mod scenario;
mod sensitivity;
mod speculation;
mod sweep;
mod table;

use clap::{CommandFactory, FromArgMatches, Parser};
use commands::Command;
use error::{Failure, Outcome};
use std::process::ExitCode;

/// Exit codes, as `--help` documents them.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the answer is no: it will not start, or it does not fit
  2  bad input: the argument, file or line is marked and what would be accepted is named
  3  a failure while running

The answer goes to standard output, progress and errors to standard error. With --json the answer is one JSON object
(\"schema\": 1), also when it is no; with exit codes 2 and 3 standard output stays empty.";

/// Will this deployment of a Mixture-of-Experts model start, fit and be fast?
///
/// moetwin builds one dataflow graph of a forward pass, splits it over the ranks of a deployment, and either simulates it on a described
/// machine or executes it.
#[derive(Parser)]
#[command(name = "moetwin", version, after_long_help = EXIT_CODES, max_term_width = 120, propagate_version = true)]
#[command(arg_required_else_help = true, infer_subcommands = false)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = match numbers(Cli::command()).try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(e) => {
            let code = if e.use_stderr() { 2 } else { 0 };
            // A closed pipe while printing help is nobody's failure.
            e.print().ok();
            return ExitCode::from(code);
        }
    };
    match cli.command.run() {
        Ok(Outcome::Yes) => ExitCode::SUCCESS,
        Ok(Outcome::No) => ExitCode::from(1),
        Err(failure) => {
            output::note(&failure.render(std::env::args_os().skip(1)));
            match failure {
                // A rank may have been given up with its thread and its GPU at work.
                Failure::Running(_) => moetwin::cuda::leave(failure.exit_code()),
                Failure::Input(_) => ExitCode::from(failure.exit_code()),
            }
        }
    }
}

/// `-1` behind a flag is its value, so that the refusal names the flag and what it takes.
fn numbers(command: clap::Command) -> clap::Command {
    command.mut_args(|arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg }).mut_subcommands(numbers)
}
