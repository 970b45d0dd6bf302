//! `moetwin machine`.

mod detect;
mod import;
mod known;
mod show;
mod smi;
mod sysfs;
mod tree;

use crate::error::{Failure, Outcome};
use crate::output;
use crate::resolve;
use crate::table::Table;
use clap::{Args, Subcommand};
use moetwin::sim::machine::{self, Machine};

/// Arguments of `moetwin machine`.
#[derive(Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct MachineArgs {
    #[command(subcommand)]
    command: MachineCommand,
}

#[derive(Subcommand)]
enum MachineCommand {
    /// List the built-in machines
    #[command(after_help = "Examples:\n  moetwin machine list\n  moetwin machine list --json")]
    List {
        /// Print one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Show what a machine is made of
    #[command(after_help = "\
Examples:
  moetwin machine show 8x-rtx-pro-6000-server
  moetwin machine show 8x-h200-sxm --json

The JSON of --json is a machine file: save it, change figures, and give it to --machine.")]
    Show {
        /// A built-in name, or a machine file
        #[arg(value_name = "NAME|FILE")]
        machine: String,
        /// Print the machine file
        #[arg(long)]
        json: bool,
    },
    /// Make a machine from what nvidia-smi, NCCL, lspci, p2pBandwidthLatencyTest or nccl-tests print
    #[command(after_help = import::AFTER_HELP)]
    Import(Box<import::ImportArgs>),
    /// Make a machine of the one this runs on, from its PCI devices and its CUDA driver
    #[command(after_help = detect::AFTER_HELP)]
    Detect(Box<detect::DetectArgs>),
}

/// Lists, shows, imports or detects.
pub(crate) fn run(args: &MachineArgs) -> Result<Outcome, Failure> {
    match &args.command {
        MachineCommand::List { json } => list(*json),
        MachineCommand::Show { machine, json } => {
            let machine = resolve::machine("machine", machine)?;
            output::answer(&if *json { machine.to_json() } else { show::describe(&machine) })
        }
        MachineCommand::Import(args) => import::run(args),
        MachineCommand::Detect(args) => detect::run(args),
    }?;
    Ok(Outcome::Yes)
}

fn list(json: bool) -> Result<(), Failure> {
    let machines = machine::list();
    if json {
        let one = |m: &Machine| serde_json::json!({ "name": m.name, "summary": m.summary, "gpus": m.gpu_count(), "gpu": gpu_names(m) });
        return output::answer_json(&serde_json::json!({ "schema": 1, "machines": machines.iter().map(one).collect::<Vec<_>>() }));
    }
    let mut table = Table::new(["name", "GPUs", "what"], &[2]);
    for m in &machines {
        table.row([m.name.clone(), m.gpu_count().to_string(), m.summary.clone()]);
    }
    output::answer(&table.render())
}

/// Distinct GPU models, in order of first use.
fn gpu_names(machine: &Machine) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for name in machine.gpus.iter().filter_map(|slot| machine.models.get(slot.model)).map(|m| m.name.as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
