//! `moetwin graph`.

use crate::args::{AllReduceKind, DeploymentArgs};
use crate::error::{Failure, InputError, Outcome};
use crate::output::{self, NewFile};
use crate::scenario::Scenario;
use clap::{Args, ValueEnum};
use moetwin::models::render::{self, Layers};
use moetwin::models::text;
use std::path::{Path, PathBuf};

/// Forms of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One line a node; moetwin reads it back.
    Text,
    /// Graphviz, for `dot -Tsvg`.
    Dot,
    /// One JSON object.
    Json,
}

/// Which layers a picture shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// One layer of each kind.
    Kinds,
    /// Every layer.
    All,
}

/// Arguments of `moetwin graph`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin graph --model deepseek-v2-lite --tp 2
  moetwin graph --format dot --out kimi.dot
  moetwin graph --model kimi-k2.5 --tp 8 --phase verify:3 --format json")]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    deployment: DeploymentArgs,
    /// How it is written [default: text, or json with --json]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Layers of a `dot` picture: one of each kind, or all [default: kinds]
    #[arg(long, value_enum)]
    layers: Option<Shown>,
    /// Write it here instead of to standard output, which is -
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Prints the sharded graph of the scenario: the one that is simulated and executed.
pub(crate) fn run(args: &GraphArgs) -> Result<Outcome, Failure> {
    let format = match (args.format, args.deployment.json) {
        (Some(format @ (Format::Text | Format::Dot)), true) => {
            let given = if format == Format::Dot { "dot" } else { "text" };
            return Err(InputError::new("--format", "contradicts --json").value(given).accepted(["json"]).into());
        }
        (Some(format), _) => format,
        (None, true) => Format::Json,
        (None, false) => Format::Text,
    };
    let layers = match (args.layers, format) {
        (None | Some(Shown::Kinds), Format::Dot) => Layers::Representative,
        (None, _) | (Some(Shown::All), _) => Layers::All,
        (Some(Shown::Kinds), _) => {
            return Err(InputError::new("--layers", "only a dot picture leaves layers out").value("kinds").accepted(["all"]).into());
        }
    };
    let file = args.out.as_deref().filter(|path| *path != Path::new("-")).map(|path| NewFile::plan("--out", path)).transpose()?;
    let scenario = Scenario::new(&args.deployment)?;
    for flag in without_effect(&args.deployment, &scenario) {
        output::note(&format!("note: {flag} decides how the graph runs, not what it is; the graph is the same without it"));
    }
    let graph = scenario.graph(&scenario.step)?;
    let text = match format {
        Format::Text => text::print(&graph),
        Format::Dot => render::dot(&graph, layers),
        Format::Json => {
            let object = serde_json::json!({ "schema": 1, "model": scenario.model.spec.name, "graph": graph });
            serde_json::to_string_pretty(&object).map_err(|e| Failure::Running(format!("could not write JSON: {e}")))?
        }
    };
    match file {
        Some(file) => file.commit(text.as_bytes())?,
        None => output::answer(&text)?,
    }
    Ok(Outcome::Yes)
}

/// Flags of the deployment that were given and do not change its graph.
fn without_effect(args: &DeploymentArgs, scenario: &Scenario) -> Vec<&'static str> {
    let given = [
        ("--graphs", args.graphs.is_some()),
        ("--p2p", args.p2p.is_some()),
        ("--allreduce", args.allreduce.is_some() && !scenario.fuses_sums()),
        ("--fuse-allreduce", args.fuse_allreduce.is_some() && args.allreduce != Some(AllReduceKind::OneShot)),
        ("--nccl-graph", args.nccl_graph.is_some()),
        ("--routing", args.routing.is_some()),
        ("--kernels", args.kernels.is_some()),
    ];
    given.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect()
}
