//! Obeying a program in virtual time.
//!
//! Every rank has a host thread and streams. Eagerly, the host launches one command after the other, each at a cost, and blocks only
//! where it really does: when a stream's launch queue is full, and at the end of a pass for its results. Captured, it launches one
//! graph, and then no node takes less than its kernels need to start. A stream runs its commands in order; a command starts when the
//! one before it has ended, its events are recorded and it has been launched. An exchange holds its stream on every member from the
//! moment that member arrives; data moves once the last one has. Kernels of one GPU that run at once share its memory rate.

mod check;
mod engine;
mod gpu;
mod meet;
mod network;
mod price;
mod span;
mod traffic;
mod transport;

pub use network::{Backends, SimMemory, collective_of};
pub use price::gpu_rates;
pub use span::{Cause, ExchangeId, ExchangeRecord, SimTrace, Span, SpanId, SpanKind, Track};
pub use traffic::LinkShares;
pub use transport::{Exchange, Outcome, Transport};

use crate::collective::{GraphMode, Library};
use crate::cost::{CostModel, ImportedTables, Kernels};
use crate::machine::{LaunchCosts, Machine};
use crate::time::{Duration, Time};
use moetwin_kernels::routing::RoutingLoad;
use moetwin_models::{AllToAll, IdVec, RankId};
use moetwin_runtime::{Action, CommandId, EventId, Program, RankProgram, StreamId};
use network::{MachineTransport, faster_links};
use std::sync::Arc;

/// Commands that one simulation may run, over all passes and ranks.
const MAX_COMMANDS: u64 = 1 << 27;

/// What the host charges for launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCosts {
    /// Whether the pass is one captured graph.
    pub graphs: bool,
    /// Host time of one kernel launch.
    pub eager_kernel: Duration,
    /// Host time of one call of a framework, of which a command makes one for each kernel it launches; nothing where none is used.
    pub eager_call: Duration,
    /// Host time of one collective, whatever its size.
    pub eager_collective: Duration,
    /// Device time that a kernel launched by the host takes longer than one in a captured graph.
    pub eager_gap: Duration,
    /// Host time of one launch of a captured graph.
    pub graph_launch: Duration,
    /// Device time that getting one kernel started takes: no command takes less than this for each of its kernels.
    pub graph_node: Duration,
    /// Device time that a command of a captured graph takes longer because it waits for another stream.
    pub join: Duration,
}

/// What a stuck command waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// An event that nobody recorded.
    Event(EventId),
    /// Ranks that did not come.
    Ranks(Vec<RankId>),
    /// Its launch.
    Launch,
}

/// A command at which a stream stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The command.
    pub command: CommandId,
    /// Its stream.
    pub stream: StreamId,
    /// What is missing.
    pub waits_for: WaitsFor,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {} waits for ", self.command, self.stream)?;
        match &self.waits_for {
            WaitsFor::Event(event) => write!(f, "{event}, which nobody recorded"),
            WaitsFor::Launch => f.write_str("its launch"),
            WaitsFor::Ranks(ranks) => {
                let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
                write!(f, "{}", names.join(", "))
            }
        }
    }
}

/// Why a program cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// It refers to what is not there, or contradicts itself.
    #[error("the program cannot be followed: {0}")]
    Program(String),
    /// The ranks do not fit the machine.
    #[error("{0}")]
    Placement(String),
    /// The machine cannot carry out an exchange.
    #[error("{command}: {reason}")]
    Exchange {
        /// The first member's command.
        command: CommandId,
        /// Why.
        reason: String,
    },
    /// Nothing can happen any more, and commands are left.
    #[error("hangs after {} us: {}{}", .at.as_us(), .stuck.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "), more(*.count, .stuck.len()))]
    Deadlock {
        /// When the last thing happened.
        at: Time,
        /// Streams that stand still.
        count: usize,
        /// The first of them.
        stuck: Vec<Stuck>,
    },
}

fn more(count: usize, listed: usize) -> String {
    if count > listed { format!("; and {} more", count - listed) } else { String::new() }
}

/// Who launches the kernels of an eager pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launcher {
    /// A compiled host thread that does nothing but launch.
    #[default]
    Native,
    /// A Python framework, in which every kernel is a call of its own: interpreter, checks, dispatch, allocation of the result, launch. What such a
    /// call takes is measured for collectives (nothing of it depends on the size); that of any other kernel is taken to cost as much.
    ///
    /// Eager steps that were published agree. Qwen3-30B-A3B, TP4 on 4 RTX 4090 D, eight sequences, vLLM: 33.9 ms for 913 calls
    /// (vllm-project/vllm issue 45709), 37 us a call, where such machines' figure is 40. DeepSeek-Coder-V2-Lite on one A100, SGLang: 31 ms for 616
    /// calls (sgl-project/sglang issue 1369), 50 us, where it is 44. Eight layers like those of a Mixture-of-Experts model in PyTorch 2.11, norms and
    /// activations by Triton, on the host of an H200 (2026-11-30): 4.89 ms for 208 kernels, 23.5 us a kernel, where such machines' figure is 30; the
    /// same compiled, 4.43 ms for 192: compiling saves kernels, hardly any time of one.
    Framework,
}

/// How a program is run on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Whether the pass is one captured graph.
    pub graphs: bool,
    /// Who launches it otherwise.
    pub launcher: Launcher,
    /// Whose kernels run.
    pub kernels: Kernels,
    /// Kernel times that are asked before those that ship.
    pub tables: Option<Arc<ImportedTables>>,
    /// Whether peers may access each other's memory; `None` as the machine says.
    pub peer_access: Option<bool>,
    /// Whose collectives.
    pub backends: Backends,
    /// GPU of each rank by ordinal; empty: rank `i` on GPU `i`.
    pub gpus: Vec<usize>,
    /// Forward passes.
    pub steps: u32,
    /// What remains of a kernel's start, dependent steps and tail (all of its time that is neither bytes nor multiplications), in thousandths:
    /// 1000 as measured, less for what-if questions.
    pub kernel_latency_permille: u32,
}

impl Default for SimOptions {
    fn default() -> Self {
        let backends = Backends { all_reduce: Library::Nccl, all_to_all: AllToAll::None, nccl_graph: GraphMode::Detected };
        Self {
            graphs: true,
            launcher: Launcher::Native,
            kernels: Kernels::Any,
            tables: None,
            peer_access: None,
            backends,
            gpus: Vec::new(),
            steps: 1,
            kernel_latency_permille: 1000,
        }
    }
}

impl SimOptions {
    /// What is taken for granted of the host's calls of NCCL, where it decides anything and this machine's was not measured.
    pub fn assumed_call(&self, launch: &LaunchCosts) -> Option<String> {
        let (call, assumed) = self.backends.native_call(launch);
        let told = assumed && !self.graphs && self.launcher == Launcher::Native;
        told.then(|| format!("a call of NCCL takes the host {:.1} us, as on a box of H200 (moetwin calibrate measures it)", call.as_us()))
    }
}

/// Runs a program on a machine in virtual time.
///
/// # Errors
/// If the program cannot be followed, its ranks do not fit the machine, an exchange cannot be carried out, or the ranks hang.
pub fn simulate(program: &Program, machine: &Machine, routing: &dyn RoutingLoad, options: &SimOptions) -> Result<SimTrace, SimError> {
    simulate_with(program, machine, routing, options, &mut SimMemory::default())
}

/// The same with exchanges and kernel costs of earlier simulations at hand; that changes how long it takes to answer, never the answer.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_with(
    program: &Program,
    machine: &Machine,
    routing: &dyn RoutingLoad,
    options: &SimOptions,
    memory: &mut SimMemory,
) -> Result<SimTrace, SimError> {
    check::check(program)?;
    let machine = match options.peer_access {
        Some(on) => machine.clone().with_peer_access(on),
        None => machine.clone(),
    };
    let gpus = placement(program, &machine, &options.gpus)?;
    memory.turn_to(&machine);
    let models = memory.cost_models(options.kernels, options.tables.as_ref());
    let of_rank: Vec<&CostModel> = gpus.iter().map(|&gpu| &models[machine.gpus[gpu].model]).collect();
    let mut priced = price::price(program, &of_rank, routing)?;
    if options.kernel_latency_permille != 1000 {
        price::scale_latency(&mut priced, options.kernel_latency_permille);
    }
    let launch = &machine.launch;
    let own = machine.kernels.as_ref().filter(|_| options.kernels == Kernels::Any);
    let joins = own.and_then(|own| own.joins);
    let host = HostCosts {
        graphs: options.graphs,
        eager_kernel: launch.eager_kernel.value,
        eager_call: match options.launcher {
            Launcher::Native => Duration::ZERO,
            Launcher::Framework => launch.eager_collective.value,
        },
        eager_collective: match options.launcher {
            Launcher::Native => options.backends.native_call(launch).0,
            Launcher::Framework => launch.eager_collective.value,
        },
        eager_gap: Duration::from_ps(own.and_then(|own| own.eager_gap_ps).unwrap_or(0)),
        graph_launch: launch.graph_launch.value,
        graph_node: launch.graph_node.value,
        join: joins.map_or(Duration::ZERO, |joins| Duration::from_ps(joins.of(chained(program, options)))),
    };
    let faster = faster_links(&machine);
    let mut transport = MachineTransport::new(&machine, &faster, options.backends, memory);
    execute(program, &priced, &gpus, host, options.steps, &mut transport)
}

/// Whether NCCL's collectives are in the graph of a pass.
fn chained(program: &Program, options: &SimOptions) -> bool {
    let collective = |rp: &RankProgram| rp.commands.iter().any(|c| c.action != Action::Compute);
    options.backends.all_reduce == Library::Nccl && program.ranks.iter().any(|(_, rp)| collective(rp))
}

/// The GPU of every rank.
fn placement(program: &Program, machine: &Machine, wanted: &[usize]) -> Result<Vec<usize>, SimError> {
    let (ranks, have) = (program.ranks.len(), machine.gpu_count());
    let gpus: Vec<usize> = if wanted.is_empty() { (0..ranks).collect() } else { wanted.to_vec() };
    let fail = |message: String| Err(SimError::Placement(message));
    if gpus.len() != ranks {
        return fail(format!("{} GPUs are named for {ranks} ranks", gpus.len()));
    }
    if let Some(gpu) = gpus.iter().find(|gpu| **gpu >= have || machine.gpu(**gpu).is_none()) {
        return fail(format!("{ranks} ranks need GPU {gpu}, {} has {have}", machine.name));
    }
    let mut sorted = gpus.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|w| w[0] == w[1]) {
        Some(w) => fail(format!("GPU {} is named for two ranks", w[0])),
        None => Ok(gpus),
    }
}

/// Runs `steps` passes of a program whose commands are priced, over a transport.
pub(crate) fn execute(
    program: &Program,
    priced: &IdVec<RankId, Vec<engine::Priced>>,
    gpus: &[usize],
    host: HostCosts,
    steps: u32,
    transport: &mut dyn Transport,
) -> Result<SimTrace, SimError> {
    check::check(program)?;
    let commands: u64 = program.ranks.iter().map(|(_, r)| r.commands.len() as u64).sum();
    if commands.saturating_mul(u64::from(steps)) > MAX_COMMANDS {
        return Err(SimError::Program(format!("{commands} commands times {steps} passes is more than {MAX_COMMANDS}")));
    }
    engine::Engine::new(program, priced, gpus, host, steps, transport).run()
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
