//! `moetwin completions`.

use crate::error::{Failure, Outcome};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Arguments of `moetwin completions`.
#[derive(Args)]
#[command(after_help = "Examples:\n  moetwin completions bash > moetwin.bash\n  moetwin completions fish | source")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &CompletionsArgs) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "moetwin", &mut script);
    crate::output::answer(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Yes)
}
