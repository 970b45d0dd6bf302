//! `moetwin model`.

use crate::error::{Failure, Outcome};
use crate::output;
use crate::resolve;
use crate::table::{Table, bytes, count};
use clap::{Args, Subcommand};
use moetwin::models::spec::{Attention, Ffn};
use moetwin::models::{DType, ModelSpec, zoo};
use serde::Serialize;
use std::fmt::Write as _;

/// Arguments of `moetwin model`.
#[derive(Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct ModelArgs {
    #[command(subcommand)]
    command: ModelCommand,
}

#[derive(Subcommand)]
enum ModelCommand {
    /// List the built-in models
    #[command(after_help = "Examples:\n  moetwin model list\n  moetwin model list --json")]
    List {
        /// Print one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Show what a model is made of
    #[command(after_help = "Examples:\n  moetwin model show kimi-k2.5\n  moetwin model show deepseek-ai/DeepSeek-V3 --json")]
    Show {
        /// A built-in name, a hub id, a folder with config.json, or such a file
        #[arg(value_name = "NAME|HF-ID|DIR|FILE")]
        model: String,
        /// Print one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
}

/// Lists or shows.
pub(crate) fn run(args: &ModelArgs) -> Result<Outcome, Failure> {
    match &args.command {
        ModelCommand::List { json } => list(*json),
        ModelCommand::Show { model, json } => show(model, *json),
    }?;
    Ok(Outcome::Yes)
}

/// A model's figures. Bytes and parameters are those of the text decoder, what is outside the graph apart.
#[derive(Serialize)]
struct Figures {
    parameters: u64,
    active_parameters: u64,
    weight_bytes: u64,
    kv_bytes_per_token_bf16: u64,
    outside_graph_bytes: u64,
}

impl Figures {
    fn of(spec: &ModelSpec) -> Self {
        Self {
            parameters: spec.total_parameters(),
            active_parameters: spec.active_parameters(),
            weight_bytes: spec.weight_bytes(),
            kv_bytes_per_token_bf16: spec.kv_bytes_per_token(DType::Bf16),
            outside_graph_bytes: spec.outside_graph.iter().map(|m| m.bytes_per_rank).sum(),
        }
    }
}

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    hub_id: &'static str,
    model_type: String,
    executable: bool,
    #[serde(flatten)]
    figures: Figures,
}

fn list(json: bool) -> Result<(), Failure> {
    let mut models = Vec::new();
    for m in zoo::list() {
        let spec = zoo::spec(m.name).map_err(|e| Failure::Running(e.to_string()))?;
        models.push(Listed {
            name: m.name,
            hub_id: m.hub_id,
            model_type: spec.model_type.clone(),
            executable: spec.executable,
            figures: Figures::of(&spec),
        });
    }
    if json {
        return output::answer_json(&serde_json::json!({ "schema": 1, "models": models }));
    }
    let mut table = Table::new(["name", "hub id", "type", "parameters", "active", "weights", "KV a token"], &[1, 2]);
    for m in &models {
        let f = &m.figures;
        let (name, id, kind) = (m.name.to_owned(), m.hub_id.to_owned(), m.model_type.clone());
        table.row([name, id, kind, billions(f.parameters), billions(f.active_parameters), gigabytes(f.weight_bytes), kv(f)]);
    }
    output::answer(&table.render())
}

fn kv(figures: &Figures) -> String {
    format!("{} B", count(figures.kv_bytes_per_token_bf16))
}

/// Parameters in billions, or in millions where there are few.
fn billions(n: u64) -> String {
    if n < 100_000_000 { format!("{:.1} M", n as f64 / 1e6) } else { format!("{:.1} B", n as f64 / 1e9) }
}

/// Decimal units, as hubs state checkpoint sizes.
fn gigabytes(n: u64) -> String {
    if n < 100_000_000 { format!("{:.1} MB", n as f64 / 1e6) } else { format!("{:.1} GB", n as f64 / 1e9) }
}

fn show(text: &str, json: bool) -> Result<(), Failure> {
    let spec = resolve::model("model", text)?.spec;
    let figures = Figures::of(&spec);
    if json {
        return output::answer_json(&serde_json::json!({ "schema": 1, "figures": figures, "model": spec }));
    }
    output::answer(&describe(&spec, &figures))
}

fn describe(spec: &ModelSpec, figures: &Figures) -> String {
    let mut text = format!("{}  ({}, {})\n\n", spec.name, spec.model_type, spec.architecture);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<20}{value}");
    };
    let moe = spec.layers.iter().filter(|l| matches!(l.ffn, Ffn::Moe(_))).count();
    line("layers", format!("{} ({moe} with experts, {} dense)", spec.layers.len(), spec.layers.len() - moe));
    line("hidden, vocabulary", format!("{}, {}", count(spec.hidden), count(spec.vocab)));
    for what in distinct(spec.layers.iter().map(|l| attention(&l.attention))) {
        line("attention", what);
    }
    for what in distinct(spec.layers.iter().map(|l| feed_forward(&l.ffn))) {
        line("feed-forward", what);
    }
    line("parameters", format!("{} total, {} active a token", billions(figures.parameters), billions(figures.active_parameters)));
    line("weights", format!("{} ({})", gigabytes(figures.weight_bytes), bytes(figures.weight_bytes)));
    line("KV cache", format!("{} a token in bf16, before any split", kv(figures)));
    line("positions", count(spec.max_positions));
    for module in &spec.outside_graph {
        line("beside the graph", format!("{}: {} on every rank", module.name, bytes(module.bytes_per_rank)));
    }
    line("executable", if spec.executable { "yes" } else { "no: modelled for cost only" }.to_owned());
    for warning in &spec.warnings {
        let _ = writeln!(text, "\n  note: {warning}");
    }
    text
}

/// Values with how many layers have each, in order of first appearance.
fn distinct(values: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen: Vec<(String, usize)> = Vec::new();
    for value in values {
        match seen.iter_mut().find(|(v, _)| *v == value) {
            Some((_, n)) => *n += 1,
            None => seen.push((value, 1)),
        }
    }
    let single = seen.len() == 1;
    seen.into_iter()
        .map(|(v, n)| match n {
            _ if single => v,
            1 => format!("{v}  (1 layer)"),
            n => format!("{v}  ({n} layers)"),
        })
        .collect()
}

fn attention(a: &Attention) -> String {
    match a {
        Attention::Mla(m) => {
            let q = m.q_lora.map_or_else(|| "queries direct".to_owned(), |r| format!("q rank {r}"));
            let sparse = m.sparse_topk.map_or_else(String::new, |k| format!(", sparse top {k}"));
            format!("MLA, {} heads, {q}, kv rank {}, {} + {} dims{sparse}, {}", m.heads, m.kv_lora, m.nope, m.rope_dim, m.format.name())
        }
        Attention::Gqa(g) => {
            let window = g.window.map_or_else(String::new, |w| format!(", window {w}"));
            format!("GQA, {} heads, {} kv heads of {}{window}, {}", g.heads, g.kv_heads, g.head_dim, g.format.name())
        }
        Attention::Linear(l) => format!("gated linear, {} key and {} value heads, {}", l.key_heads, l.value_heads, l.format.name()),
    }
}

fn feed_forward(f: &Ffn) -> String {
    match f {
        Ffn::Dense(d) => format!("dense, intermediate {}, {}", count(d.intermediate), d.format.name()),
        Ffn::Moe(m) => {
            let shared = m.shared.as_ref().map_or_else(String::new, |s| format!(", shared expert of {}", count(s.intermediate)));
            format!("{} experts of {}, {} a token, {}{shared}", m.experts, count(m.intermediate), m.topk, m.format.name())
        }
    }
}
