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
mod values;

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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;
    use moetwin::sim::Duration;
    use std::any::TypeId;
    use std::ops::RangeInclusive;

    /// Every flag of every command, with the words that lead to it.
    fn flags(command: &clap::Command, path: &[&str], found: &mut Vec<(Vec<String>, Arg)>) {
        let path: Vec<&str> = path.iter().copied().chain([command.get_name()]).collect();
        let words: Vec<String> = path.iter().map(|word| (*word).to_owned()).collect();
        found.extend(command.get_arguments().filter(|arg| arg.get_long().is_some()).map(|arg| (words.clone(), arg.clone())));
        command.get_subcommands().for_each(|sub| flags(sub, &path, found));
    }

    /// What a flag takes: a whole number, another number, or no number.
    fn takes(arg: &Arg) -> Option<&'static [&'static str]> {
        let is = |ids: &[TypeId]| ids.iter().any(|id| arg.get_value_parser().type_id() == *id);
        let whole = [
            TypeId::of::<u8>(),
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<i64>(),
            TypeId::of::<usize>(),
            TypeId::of::<RangeInclusive<u32>>(),
        ];
        if is(&whole) {
            Some(&["x", "1.5", "", "-1"])
        } else if is(&[TypeId::of::<f32>(), TypeId::of::<f64>(), TypeId::of::<Duration>()]) {
            Some(&["x", "nan", "", "-1"])
        } else {
            None
        }
    }

    #[test]
    fn every_number_that_is_none_is_answered_with_what_would_be() {
        let mut all = Vec::new();
        flags(&Cli::command(), &[], &mut all);
        let (mut seen, mut numbers_of) = (0, Vec::new());
        for (path, arg) in &all {
            let Some(wrong) = takes(arg) else { continue };
            let flag = format!("--{}", arg.get_long().unwrap_or_default());
            for text in wrong {
                let words = path.iter().cloned().chain([flag.clone(), (*text).to_owned()]);
                let error = numbers(Cli::command()).try_get_matches_from(words).expect_err("it is no number");
                let said = error.to_string();
                assert!(error.use_stderr() && said.contains(&format!("'{flag}")), "{path:?} {flag} {text:?}: {said}");
                assert!(said.contains("\n  accepted: ") && !said.contains("invalid digit"), "{path:?} {flag} {text:?}: {said}");
                seen += 1;
            }
            numbers_of.push(flag);
        }
        assert!(seen > 300, "{seen}");
        for flag in
            ["--tp", "--seed", "--spec-accept", "--slo-ms", "--slo-ttft-ms", "--prompt-tokens", "--temperature", "--skew", "--sizes"]
        {
            assert!(numbers_of.iter().any(|n| n == flag), "{flag} takes a number and was not tried");
        }
    }
}
