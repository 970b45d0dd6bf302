//! `moetwin machine`.

use crate::error::{Failure, Outcome};
use crate::output;
use crate::resolve;
use crate::table::{Table, bytes};
use clap::{Args, Subcommand};
use moetwin::sim::machine::{self, Figure, GpuModel, Machine};
use moetwin::sim::network::Network;
use std::fmt::Write as _;

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
}

/// Lists or shows.
pub(crate) fn run(args: &MachineArgs) -> Result<Outcome, Failure> {
    match &args.command {
        MachineCommand::List { json } => list(*json),
        MachineCommand::Show { machine, json } => {
            let machine = resolve::machine("machine", machine)?;
            output::answer(&if *json { machine.to_json() } else { describe(&machine) })
        }
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

fn describe(machine: &Machine) -> String {
    let mut text = format!("{}\n  {}\n", machine.name, machine.summary);
    for gpu in &machine.models {
        let n = machine.gpus.iter().filter(|slot| machine.models.get(slot.model) == Some(gpu)).count();
        text.push_str(&describe_gpu(gpu, n));
    }
    let _ = writeln!(text, "\nPaths between GPUs (by ordinal, as `nvidia-smi topo -m` names them)\n{}", paths(machine));
    text.push_str("Links\n");
    let mut table = Table::new(["from", "to", "kind", "write", "read", "one way", "known"], &[1, 2, 6]);
    for (_, link) in machine.links.iter() {
        let end = |v| machine.vertices.get(v).map_or("?", |v| v.name.as_str()).to_owned();
        let f = &link.forward;
        table.row([
            end(link.a),
            end(link.b),
            link.kind.name(),
            gigabytes_per_s(f.write_bytes_per_s.value),
            gigabytes_per_s(f.read_bytes_per_s.value),
            format!("{:.2} us", link.latency.value.as_us()),
            f.write_bytes_per_s.origin.name().to_owned(),
        ]);
    }
    text.push_str(&table.render());
    let launch = &machine.launch;
    text.push_str("\nLaunches\n");
    for (name, figure) in [
        ("eager kernel", &launch.eager_kernel),
        ("node of a captured graph", &launch.graph_node),
        ("captured graph", &launch.graph_launch),
        ("eager collective", &launch.eager_collective),
    ] {
        let _ = writeln!(text, "  {name:<26}{:>6.2} us  {}: {}", figure.value.as_us(), figure.origin.name(), figure.source);
    }
    let _ = writeln!(text, "\nPeer access  {}", known(&machine.peer_access, if machine.peer_access.value { "on" } else { "off" }));
    for defect in &machine.defects {
        let _ = writeln!(text, "Defect       {defect:?}");
    }
    if !machine.assumptions.is_empty() {
        text.push_str("\nAssumed\n");
        for assumption in &machine.assumptions {
            let _ = writeln!(text, "  - {assumption}");
        }
    }
    text
}

fn describe_gpu(gpu: &GpuModel, count: usize) -> String {
    let mut text = format!("\n{count} x {} ({}, SM {}.{}, {} SMs)\n", gpu.name, gpu.chip, gpu.sm_major, gpu.sm_minor, gpu.sm_count);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<14}{value}");
    };
    line("memory", known(&gpu.memory_bytes, &bytes(gpu.memory_bytes.value)));
    line("memory rate", known(&gpu.memory_bytes_per_s, &gigabytes_per_s(gpu.memory_bytes_per_s.value)));
    if let Some(reached) = &gpu.memory_reached_bytes_per_s {
        line("reached", known(reached, &gigabytes_per_s(reached.value)));
    }
    line("L2", bytes(gpu.l2_bytes));
    text
}

/// A figure with where it comes from.
fn known<T>(figure: &Figure<T>, shown: &str) -> String {
    format!("{shown}  ({}: {})", figure.origin.name(), figure.source)
}

fn gigabytes_per_s(rate: u64) -> String {
    format!("{:.1} GB/s", rate as f64 / 1e9)
}

fn paths(machine: &Machine) -> String {
    let network = Network::new(machine);
    let n = machine.gpu_count();
    let mut header = vec![String::new()];
    header.extend((0..n).map(|i| i.to_string()));
    let mut table = Table::new(header, &[]);
    for a in 0..n {
        let mut row = vec![a.to_string()];
        row.extend((0..n).map(|b| match network.class(a, b) {
            _ if a == b => "-".to_owned(),
            Ok(class) => class.name().to_owned(),
            Err(_) => "?".to_owned(),
        }));
        table.row(row);
    }
    table.render()
}
