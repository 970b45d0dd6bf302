//! From a request to a prediction: choose, expand, carry out, remember.

use super::builder::Builder;
use super::choose::{Choice, choose};
use super::explain::{BoundStep, Times, explain, provenance};
use super::nccl::{Candidate, NcclGraph, nccl_graph};
use super::plan::Plan;
use super::{Algorithm, CollectiveOp, CollectiveRequest, GraphMode, Launch, Protocol};
use super::{custom, point, ring, tree};
use crate::machine::{Machine, Origin};
use crate::network::{Network, RouteError, RunError, Span, run};
use crate::time::{Duration, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Largest size accepted: beyond it no buffer exists, and durations stay far from overflow.
const MOST_BYTES: u64 = 1 << 44;

/// Why a collective cannot be predicted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// The request contradicts itself or the machine.
    #[error("{0}")]
    Request(String),
    /// Nothing implements what was forced.
    #[error("{message}")]
    NoAlgorithm {
        /// Why.
        message: String,
        /// What could have been asked for instead.
        have: Vec<String>,
    },
    /// The machine does not connect the ranks.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The machine gives a transfer no rate.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// One rank's part in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankTiming {
    /// Arrival, since the first rank's.
    pub arrival: Duration,
    /// Completion, since the first rank's arrival.
    pub finish: Duration,
    /// Of its time in the collective, what it spent because another rank had not arrived.
    pub skew: Duration,
    /// The rest: the collective itself.
    pub transfer: Duration,
}

/// One transfer that was simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferSpan {
    /// Sending GPU, by ordinal.
    pub from: usize,
    /// Receiving GPU, by ordinal.
    pub to: usize,
    /// Data, without a protocol's flags.
    pub payload_bytes: u64,
    /// Step of the algorithm.
    pub step: u32,
    /// First byte leaving, since the first rank's arrival.
    pub start: Duration,
    /// Last byte leaving.
    pub end: Duration,
}

/// What a collective takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// From the first arrival to the last completion.
    pub duration: Duration,
    /// From the first arrival to the last.
    pub arrival_skew: Duration,
    /// From the last arrival to the last completion: what a late rank is not to blame for.
    pub transfer: Duration,
    /// By rank.
    pub ranks: Vec<RankTiming>,
    /// Algorithm carried out.
    pub algorithm: Algorithm,
    /// Protocol carried out.
    pub protocol: Protocol,
    /// Channels of the communicator; 0 for an engine's own kernel.
    pub channels: u32,
    /// Transfers, in order of creation; empty from [`Collectives::without_explanations`].
    pub transfers: Vec<TransferSpan>,
    /// What the time consists of, largest first; empty from [`Collectives::without_explanations`].
    pub explanation: Vec<BoundStep>,
    /// Why this algorithm and protocol.
    pub choice: String,
    /// What NCCL's cost model expected of every choice that was open, fastest first; empty where it was not asked.
    pub candidates: Vec<Candidate>,
    /// The rings NCCL builds for these ranks.
    pub graph: NcclGraph,
    /// Figures used: name, origin and source.
    pub provenance: Vec<(String, Origin, String)>,
    /// Share of each directed link (`2 * link` forward, `2 * link + 1` backward) that the transfer keeps busy, in millionths of its time.
    pub link_shares: Arc<[(u32, u64)]>,
    op: CollectiveOp,
    bytes: u64,
}

impl Prediction {
    /// Size over duration, bytes per second.
    pub fn algbw_bytes_per_s(&self) -> f64 {
        if self.duration == Duration::ZERO { 0.0 } else { self.bytes as f64 / self.duration.as_seconds() }
    }
    /// Algorithm bandwidth times nccl-tests' factor of the op, bytes per second.
    pub fn busbw_bytes_per_s(&self) -> f64 {
        let (numerator, denominator) = self.op.bus_factor(self.ranks.len());
        self.algbw_bytes_per_s() * numerator as f64 / denominator as f64
    }
}

/// Predicts one collective. For many on one machine keep a [`Collectives`], which remembers.
///
/// # Errors
/// If the request is contradictory, forces what does not exist, or the machine does not connect its ranks.
pub fn predict(machine: &Machine, request: &CollectiveRequest) -> Result<Prediction, CollectiveError> {
    let network = Network::new(machine);
    check(machine, request)?;
    let graph = nccl_graph(&network, &request.ranks, request.nccl_graph)?;
    compute(&network, request, graph, true)
}

/// Collectives of one machine; identical ones (same ranks, size and arrival offsets) are computed once.
#[derive(Debug)]
pub struct Collectives<'m> {
    network: Network<'m>,
    known: BTreeMap<CollectiveRequest, Arc<Prediction>>,
    graphs: BTreeMap<(Vec<usize>, GraphMode), NcclGraph>,
    explains: bool,
}

impl<'m> Collectives<'m> {
    /// Nothing remembered yet.
    pub fn new(machine: &'m Machine) -> Self {
        Self { network: Network::new(machine), known: BTreeMap::new(), graphs: BTreeMap::new(), explains: true }
    }
    /// The same without [`Prediction::explanation`], which costs a second simulation, and without [`Prediction::transfers`], whose lists are
    /// most of what it would remember.
    pub fn without_explanations(machine: &'m Machine) -> Self {
        Self { explains: false, ..Self::new(machine) }
    }
    /// The machine.
    pub fn machine(&self) -> &'m Machine {
        self.network.machine()
    }
    /// The machine's links.
    pub fn network(&self) -> &Network<'m> {
        &self.network
    }
    /// How many different collectives are remembered.
    pub fn remembered(&self) -> usize {
        self.known.len()
    }
    /// Predicts a collective, or remembers it. Only differences between arrivals matter.
    ///
    /// # Errors
    /// As [`predict`].
    pub fn predict(&mut self, request: &CollectiveRequest) -> Result<Arc<Prediction>, CollectiveError> {
        let mut key = request.clone();
        normalise(&mut key.arrivals);
        if let Some(known) = self.known.get(&key) {
            return Ok(Arc::clone(known));
        }
        check(self.machine(), &key)?;
        let view = (key.ranks.clone(), key.nccl_graph);
        let graph = match self.graphs.get(&view) {
            Some(graph) => graph.clone(),
            None => {
                let graph = nccl_graph(&self.network, &key.ranks, key.nccl_graph)?;
                self.graphs.insert(view, graph.clone());
                graph
            }
        };
        let prediction = Arc::new(compute(&self.network, &key, graph, self.explains)?);
        self.known.insert(key, Arc::clone(&prediction));
        Ok(prediction)
    }
}

/// Arrivals since the first one; none at all if they are equal.
fn normalise(arrivals: &mut Vec<Duration>) {
    let first = arrivals.iter().copied().min().unwrap_or(Duration::ZERO);
    for arrival in arrivals.iter_mut() {
        *arrival = *arrival - first;
    }
    if arrivals.iter().all(|arrival| *arrival == Duration::ZERO) {
        arrivals.clear();
    }
}

fn check(machine: &Machine, request: &CollectiveRequest) -> Result<(), CollectiveError> {
    let fail = |message: String| Err(CollectiveError::Request(message));
    let n = request.ranks.len();
    if n == 0 {
        return fail("a collective needs at least one rank".into());
    }
    if let Some(&rank) = request.ranks.iter().find(|rank| **rank >= machine.gpu_count()) {
        return fail(format!("GPU {rank} is not in {}, which has {}", machine.name, machine.gpu_count()));
    }
    let mut sorted = request.ranks.clone();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return fail(format!("GPU {} is named twice", pair[0]));
    }
    if request.bytes > MOST_BYTES || request.matrix.iter().any(|&bytes| bytes > MOST_BYTES) {
        return fail(format!("a size of more than {MOST_BYTES} bytes"));
    }
    if !matches!(request.arrivals.len(), 0) && request.arrivals.len() != n {
        return fail(format!("{} arrivals for {n} ranks", request.arrivals.len()));
    }
    if !request.matrix.is_empty() && (request.op != CollectiveOp::AllToAll || request.matrix.len() != n * n) {
        return fail(format!("a size matrix is for alltoall and has {} entries for {n} ranks", n * n));
    }
    Ok(())
}

fn expand(builder: &Builder<'_>, choice: &Choice) -> Result<Plan, CollectiveError> {
    Ok(match choice.algorithm {
        Algorithm::Ring => ring::expand(builder, choice.protocol)?,
        Algorithm::Tree => tree::expand(builder, choice.protocol)?,
        Algorithm::Direct => point::expand(builder, choice.protocol)?,
        Algorithm::Nvls | Algorithm::Symmetric => {
            custom::expand_multicast(builder, choice.algorithm)?.ok_or_else(|| no_nvls(builder.machine()))?
        }
        Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Hierarchical => custom::expand(builder, choice.algorithm)?,
    })
}

fn no_nvls(machine: &Machine) -> CollectiveError {
    CollectiveError::NoAlgorithm { message: format!("{} has no NVLink multicast", machine.name), have: Vec::new() }
}

/// Predicts a request that was checked.
fn compute(network: &Network<'_>, request: &CollectiveRequest, graph: NcclGraph, explains: bool) -> Result<Prediction, CollectiveError> {
    let machine = network.machine();
    let n = request.ranks.len();
    let mut arrivals = request.arrivals.clone();
    normalise(&mut arrivals);
    arrivals.resize(n, Duration::ZERO);
    let choice = choose(network, request, &graph)?;
    let kernel = kernel(machine, choice.protocol);
    let begin: Vec<Time> = arrivals.iter().map(|&arrival| Time::ZERO + arrival + kernel).collect();
    let builder = Builder { network, request, graph: &graph, begin };
    let plan = if n == 1 { Plan::new(1) } else { expand(&builder, &choice)? };
    let spans = run(network, &plan.routes, &plan.transfers)?;
    let last_arrival = arrivals.iter().copied().max().unwrap_or(Duration::ZERO);
    let extra = launch_extra(request, &choice, &plan, &spans, &builder);
    let mut ranks = Vec::with_capacity(n);
    for (rank, ends) in plan.ends.iter().enumerate() {
        let end = ends.iter().map(|&(id, delay)| spans[id as usize].end + delay).max().unwrap_or(Time::ZERO);
        let finish = end.max(builder.begin[rank]).since(Time::ZERO) + extra;
        let inside = finish - arrivals[rank];
        let skew = (last_arrival - arrivals[rank]).min(inside);
        ranks.push(RankTiming { arrival: arrivals[rank], finish, skew, transfer: inside - skew });
    }
    let duration = ranks.iter().map(|rank| rank.finish).max().unwrap_or(Duration::ZERO);
    let labels = if explains { &plan.labels[..] } else { &[] };
    let transfers = labels
        .iter()
        .zip(&spans)
        .map(|(label, span)| TransferSpan {
            from: request.ranks[label.from],
            to: request.ranks[label.to],
            payload_bytes: label.payload_bytes,
            step: label.step,
            start: span.start.since(Time::ZERO),
            end: span.end.since(Time::ZERO),
        })
        .collect();
    let explanation = if explains {
        explain(&builder, choice.algorithm, choice.protocol, &plan, Times { skew: last_arrival, extra, duration })?
    } else {
        Vec::new()
    };
    let provenance = provenance(&builder, choice.algorithm, choice.protocol, &plan);
    let own_kernel = choice.protocol == Protocol::Peer;
    Ok(Prediction {
        duration,
        arrival_skew: last_arrival,
        transfer: duration - last_arrival,
        ranks,
        algorithm: choice.algorithm,
        protocol: choice.protocol,
        channels: if own_kernel { 0 } else { graph.communicator_channels() },
        transfers,
        explanation,
        choice: choice.why,
        candidates: choice.candidates,
        graph,
        provenance,
        link_shares: link_shares(&plan, duration - last_arrival),
        op: request.op,
        bytes: request.bytes,
    })
}

/// How long a plan's bytes keep each directed link busy, over the time it takes.
fn link_shares(plan: &Plan, transfer: Duration) -> Arc<[(u32, u64)]> {
    let mut busy: BTreeMap<u32, Duration> = BTreeMap::new();
    for one in &plan.transfers {
        for &(link, rate) in &plan.routes[one.route as usize].hops {
            *busy.entry(link).or_default() += Duration::of_bytes(one.wire_bytes, rate);
        }
    }
    let share = |busy: Duration| (u128::from(busy.as_ps()) * 1_000_000 / u128::from(transfer.as_ps().max(1))).min(1_000_000) as u64;
    busy.into_iter().map(|(link, busy)| (link, share(busy))).filter(|(_, share)| *share > 0).collect()
}

/// Start and end of a NCCL kernel; an engine's kernel has its own in the barrier's figure.
pub(super) fn kernel(machine: &Machine, protocol: Protocol) -> Duration {
    if protocol == Protocol::Peer { Duration::ZERO } else { machine.collectives.kernel.value }
}

/// What the launch adds to the device time: nothing inside a longer graph, the replay where the graph holds nothing else; in a loop the
/// host if it is slower, and the loop's start if it has few launches; eager the host and the copy of the result that a framework's out-of-place call makes.
fn launch_extra(request: &CollectiveRequest, choice: &Choice, plan: &Plan, spans: &[Span], builder: &Builder<'_>) -> Duration {
    let machine = builder.machine();
    let ends = plan.ends.iter().flatten().map(|&(id, delay)| spans[id as usize].end + delay);
    let device = ends.chain(builder.begin.iter().copied()).max().unwrap_or(Time::ZERO).since(Time::ZERO);
    // Kernels on symmetric memory are NCCL's too.
    let own = choice.protocol == Protocol::Peer && choice.algorithm != Algorithm::Symmetric;
    match request.launch {
        Launch::Node => Duration::ZERO,
        Launch::Graph if own => Duration::ZERO,
        Launch::Graph => machine.launch.graph_nccl.value,
        Launch::Loop if own => machine.launch.eager_kernel.value - device,
        Launch::Loop => {
            let call = machine.launch.nccl_call.as_ref().unwrap_or(&machine.launch.eager_kernel);
            (call.value - device) + machine.launch.loop_nccl.value
        }
        Launch::Eager => {
            let memory =
                request.ranks.iter().filter_map(|&rank| machine.gpu(rank)).map(|gpu| gpu.reached_memory().value).min().unwrap_or(1);
            let copy = Duration::of_bytes(request.bytes.saturating_mul(2), memory);
            let host = if own { &machine.launch.eager_collective } else { &machine.launch.eager_nccl };
            (host.value - device) + copy
        }
    }
}
