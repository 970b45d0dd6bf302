//! `moetwin collective`.

use crate::args::{DEFAULT_MACHINE, Switch};
use crate::error::{Failure, InputError, Outcome};
use crate::output::{self, NewFile};
use crate::report::{collective_json, collective_text};
use crate::resolve;
use crate::values::{each_once, whole};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use moetwin::sim::Duration;
use moetwin::sim::collective::{
    Algorithm, CollectiveError, CollectiveOp, CollectiveRequest, Collectives, GraphMode, Launch, Library, Prediction, Protocol,
    chrome_trace,
};
use moetwin::sim::machine::Machine;
use std::path::PathBuf;
use std::sync::Arc;

/// Sizes asked for when none are named: those of interest to decode and prefill.
const SIZES: std::ops::RangeInclusive<u32> = 10..=27;
/// Largest size that is predicted.
const MOST_BYTES: u64 = 1 << 44;

/// Arguments of `moetwin collective`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin collective
  moetwin collective --op all_gather --ranks 4 --sizes 8K,64K,1M
  moetwin collective --machine 8x-rtx-pro-6000-dual-turin --nccl-graph tuned --explain 32K
  moetwin collective --library one-shot --machine 8x-rtx-pro-6000-3switch --json
  moetwin collective --ranks 4 --skew 0,0,0,170 --sizes 43008 --trace collective.json

Sizes are those of nccl-tests' first column: all-reduce and broadcast the buffer of a rank, all-gather the gathered result, \
reduce-scatter the input, alltoall all that a rank sends, sendrecv what a rank sends. Launch modes: node is one of many nodes of a captured graph, \
as in a decode step; graph a captured graph that holds nothing else, replayed back to back, as engines' benchmarks time it; eager includes the host's launch, loop is the mean of back-to-back launches, as nccl-tests measures.")]
pub(crate) struct CollectiveArgs {
    /// Machine: a name from `moetwin machine list`, or a machine file
    #[arg(long, value_name = "NAME|FILE", default_value = DEFAULT_MACHINE)]
    machine: String,
    /// What is communicated
    #[arg(long, value_name = "OP", default_value = "all_reduce", value_parser = named(CollectiveOp::ALL, CollectiveOp::name))]
    op: CollectiveOp,
    /// GPUs that take part, from the first [default: all of the machine]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1024))]
    ranks: Option<u32>,
    /// Sizes in bytes; K, M and G are powers of 1024 [default: 1K to 128M, doubling]
    #[arg(long, value_name = "A,B,..", value_delimiter = ',', value_parser = size)]
    sizes: Vec<u64>,
    /// Whose implementation; an engine leaves to NCCL what its own kernel may not do
    #[arg(long, value_name = "LIBRARY", default_value = "nccl", value_parser = named(Library::ALL, Library::name))]
    library: Library,
    /// How it is launched
    #[arg(long, value_name = "MODE", default_value = "node", value_parser = named(Launch::ALL, Launch::name))]
    launch: Launch,
    /// Whether GPUs read and write each other's memory directly [default: what the machine can]
    #[arg(long, value_name = "on|off")]
    p2p: Option<Switch>,
    /// Force an algorithm, as NCCL_ALGO does
    #[arg(long, value_name = "ALGORITHM", value_parser = named(Algorithm::ALL, Algorithm::name))]
    algorithm: Option<Algorithm>,
    /// Force a protocol, as NCCL_PROTO does
    #[arg(long, value_name = "PROTOCOL", value_parser = named(Protocol::ALL, Protocol::name))]
    protocol: Option<Protocol>,
    /// NCCL's rings: with the link rates it detects, or with those a graph file states
    #[arg(long, value_name = "MODE", default_value = "detected", value_parser = named(GraphMode::ALL, GraphMode::name))]
    nccl_graph: GraphMode,
    /// When each rank arrives, in microseconds; what the last one costs is reported apart
    #[arg(long, value_name = "US,US,..", value_delimiter = ',', value_parser = microseconds, allow_hyphen_values = true)]
    skew: Vec<Duration>,
    /// Say in words what bounds this size and why it is done this way
    #[arg(long, value_name = "SIZE", value_parser = size)]
    explain: Option<u64>,
    /// Write the transfers as a Chrome trace-event file, which ui.perfetto.dev opens
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// A parser that accepts the names of `all` and knows them for help and completion.
fn named<T, const N: usize>(all: [T; N], name: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.map(name))
        .try_map(move |text| all.into_iter().find(|value| name(*value) == text).ok_or("an unknown name"))
}

/// A size in bytes, with nccl-tests' suffixes.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.chars().last() {
        Some('K' | 'k') => (&text[..text.len() - 1], 10),
        Some('M' | 'm') => (&text[..text.len() - 1], 20),
        Some('G' | 'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    match bytes {
        Some(bytes @ 1..=MOST_BYTES) => Ok(bytes),
        _ => Err(format!("no such size\n  accepted: 1 to {MOST_BYTES} bytes, as 65536 or 64K (also M, G)")),
    }
}

fn microseconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(us) if (0.0..=1e9).contains(&us) => Ok(Duration::from_seconds(us * 1e-6)),
        _ => Err("no such time\n  accepted: microseconds from 0 to 1000000000, one for each rank".to_owned()),
    }
}

/// One line of the table.
pub(crate) struct Row {
    /// What was asked.
    pub(crate) request: CollectiveRequest,
    /// What it takes.
    pub(crate) prediction: Arc<Prediction>,
}

/// A whole answer.
pub(crate) struct Answer {
    /// The machine, with peer access as asked.
    pub(crate) machine: Machine,
    /// By size.
    pub(crate) rows: Vec<Row>,
    /// The size that is explained.
    pub(crate) explained: Option<Row>,
}

/// Predicts and prints.
pub(crate) fn run(args: &CollectiveArgs) -> Result<Outcome, Failure> {
    let trace_file = args.trace.as_deref().map(|path| NewFile::plan("--trace", path)).transpose()?;
    let answer = predict(args)?;
    if let Some(file) = trace_file {
        let shown: Vec<_> = answer.rows.iter().map(|row| (row.request.clone(), &*row.prediction)).collect();
        file.commit(chrome_trace(&shown).as_bytes())?;
    }
    if args.json {
        output::answer_json(&collective_json::json(&answer))?;
    } else {
        output::answer(&collective_text::text(&answer))?;
    }
    Ok(Outcome::Yes)
}

fn predict(args: &CollectiveArgs) -> Result<Answer, Failure> {
    let mut machine = resolve::machine("--machine", &args.machine)?;
    if let Some(switch) = args.p2p {
        machine = machine.with_peer_access(switch == Switch::On);
    }
    let gpus = machine.gpu_count();
    let ranks = args.ranks.map_or(gpus, |n| n as usize);
    if ranks > gpus {
        let message = format!("{} has {gpus} GPUs", machine.name);
        return Err(InputError::new("--ranks", message).value(ranks.to_string()).accepted([format!("1 to {gpus}")]).into());
    }
    if !args.skew.is_empty() && args.skew.len() != ranks {
        let message = format!("{} arrivals for {ranks} ranks", args.skew.len());
        return Err(InputError::new("--skew", message).accepted([format!("{ranks} figures with commas between")]).into());
    }
    let mut sizes = each_once("--sizes", &args.sizes);
    if sizes.is_empty() && args.explain.is_none() {
        sizes.extend(SIZES.map(|shift| 1u64 << shift));
    }
    let mut collectives = Collectives::new(&machine);
    let mut row = |bytes: u64| -> Result<Row, Failure> {
        let request = CollectiveRequest {
            library: args.library,
            launch: args.launch,
            algorithm: args.algorithm,
            protocol: args.protocol,
            nccl_graph: args.nccl_graph,
            arrivals: args.skew.clone(),
            ..CollectiveRequest::new(args.op, ranks, bytes)
        };
        let prediction = collectives.predict(&request).map_err(|error| refused(args, &error))?;
        Ok(Row { request, prediction })
    };
    let rows = sizes.into_iter().map(&mut row).collect::<Result<Vec<Row>, Failure>>()?;
    let explained = args.explain.map(&mut row).transpose()?;
    Ok(Answer { machine, rows, explained })
}

/// A prediction that cannot be made because of what was forced is bad input; the flag that forced it is marked.
fn refused(args: &CollectiveArgs, error: &CollectiveError) -> Failure {
    let forced = match (args.algorithm, args.protocol) {
        (Some(algorithm), _) => ("--algorithm", algorithm.name()),
        (None, Some(protocol)) => ("--protocol", protocol.name()),
        (None, None) => ("--op", args.op.name()),
    };
    match error {
        CollectiveError::NoAlgorithm { have, .. } => {
            InputError::new(forced.0, error.to_string()).value(forced.1).accepted(have.iter().cloned()).into()
        }
        CollectiveError::Request(_) | CollectiveError::Route(_) | CollectiveError::Run(_) => {
            InputError::new("--machine", error.to_string()).value(args.machine.as_str()).into()
        }
    }
}
