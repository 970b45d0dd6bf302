//! What would make a step faster or slower: the same question asked again with one thing changed.

use crate::args::Engine;
use crate::prediction::pace;
use crate::scenario::Scenario;
use moetwin::models::DType;
use moetwin::runtime::Program;
use moetwin::sim::collective::Library;
use moetwin::sim::exec::SimMemory;
use moetwin::sim::machine::Machine;
use serde::Serialize;

/// Whether a change is bought, written or chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Another machine.
    Hardware,
    /// Other kernels.
    Kernels,
    /// Another flag.
    Flag,
}

/// One change and what came of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Change {
    /// What was changed.
    pub(crate) what: &'static str,
    /// How.
    pub(crate) how: String,
    /// Whether it is bought, written or chosen.
    pub(crate) kind: Kind,
    /// What it gives; `Err` says why the change is not possible.
    #[serde(flatten)]
    pub(crate) result: Changed,
}

/// What a change gives.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Changed {
    /// A step.
    Step {
        /// Its time, milliseconds.
        step_ms: f64,
        /// Tokens a second over all sequences.
        tokens_per_s: f64,
        /// By how much tokens come faster, as a share of what they did.
        faster: f64,
    },
    /// None: why.
    Impossible {
        /// Why.
        reason: String,
    },
}

/// Halved and doubled.
const TWICE: (u64, u64) = (2, 1);
const HALF: (u64, u64) = (1, 2);

/// Every change that means something for the scenario, simulated on the machine of the program that is served at `tokens_per_s`.
pub(crate) fn changes(scenario: &Scenario, program: &Program, tokens_per_s: f64) -> Vec<Change> {
    let base = Scenario { step: program.graph.step.clone(), ..scenario.clone() };
    let mut out = Vec::new();
    // Changes that leave the machine alone share its collectives.
    let mut memory = SimMemory::default();
    let mut ask = |what: &'static str, how: String, kind: Kind, changed: Scenario| {
        // A program has the deployment in it: another cache type is another program. So is one whose sums are fused with norms.
        let other = changed.deployment != base.deployment || changed.fuses_sums() != base.fuses_sums();
        let own = other.then(|| changed.program(&changed.step)).transpose();
        let answer = own.and_then(|own| pace(&changed, own.as_ref().unwrap_or(program), &mut memory));
        let result = match answer {
            Ok((step_ms, rate)) => Changed::Step { step_ms, tokens_per_s: rate, faster: rate / tokens_per_s - 1.0 },
            Err(failure) => Changed::Impossible { reason: failure.render(std::iter::empty()) },
        };
        out.push(Change { what, how, kind, result });
    };
    let machine = |change: &dyn Fn(Machine) -> Machine| Scenario { machine: change(base.machine.clone()), ..base.clone() };
    ask(
        "Faster memory",
        "device memory of twice the rate".into(),
        Kind::Hardware,
        machine(&|m| m.with_memory_rates_scaled(TWICE.0, TWICE.1)),
    );
    ask(
        "Faster arithmetic",
        "tensor cores of twice the rate".into(),
        Kind::Hardware,
        machine(&|m| m.with_flop_rates_scaled(TWICE.0, TWICE.1)),
    );
    let together = program.ranks.len() > 1;
    if together {
        ask(
            "Faster links",
            "every link of twice the rate".into(),
            Kind::Hardware,
            machine(&|m| m.with_link_rates_scaled(TWICE.0, TWICE.1)),
        );
        ask(
            "Nearer links",
            "half the latency of links and of the steps of exchanges".into(),
            Kind::Hardware,
            machine(&|m| m.with_exchange_latency_scaled(HALF.0, HALF.1)),
        );
    }
    let mut fused = machine(&|m| m.with_launch_costs_scaled(HALF.0, HALF.1));
    fused.options.kernel_latency_permille = 500;
    ask(
        "Fewer kernels",
        "half of every kernel's start and tail, and of launch costs, as fusing pairs of kernels would leave".into(),
        Kind::Kernels,
        fused,
    );
    let with = |change: &dyn Fn(&mut Scenario)| {
        let mut changed = base.clone();
        change(&mut changed);
        changed
    };
    let (graphs, name) = if base.options.graphs { (false, "Without captured graphs") } else { (true, "Captured graphs") };
    ask(name, format!("--graphs {}", if graphs { "on" } else { "off" }), Kind::Flag, with(&|s| s.options.graphs = graphs));
    if together {
        for (library, name, flag) in [
            (Library::Nccl, "All-reduce by NCCL", "--allreduce nccl"),
            (Library::OneShot, "All-reduce by a one-shot kernel", "--allreduce one-shot"),
        ] {
            if base.options.backends.all_reduce != library {
                ask(name, flag.to_owned(), Kind::Flag, with(&|s| s.options.backends.all_reduce = library));
            }
        }
        if base.engine == Engine::Native && base.options.backends.all_reduce == Library::OneShot {
            let (name, flag) = match base.fuse_allreduce {
                true => ("Norms apart from sums", "--fuse-allreduce off"),
                false => ("Norms fused with sums", "--fuse-allreduce on"),
            };
            ask(name, flag.to_owned(), Kind::Flag, with(&|s| s.fuse_allreduce = !s.fuse_allreduce));
        }
        let peers = !base.peer_access();
        let name = if peers { "Peer access" } else { "Without peer access" };
        ask(name, format!("--p2p {}", if peers { "on" } else { "off" }), Kind::Flag, with(&|s| s.options.peer_access = Some(peers)));
    }
    let kv = if base.deployment.kv_dtype == DType::Fp8 { DType::Bf16 } else { DType::Fp8 };
    let name = if kv == DType::Fp8 { "KV cache in FP8" } else { "KV cache in BF16" };
    ask(name, format!("--kv-dtype {}", kv.name()), Kind::Flag, with(&|s| s.deployment.kv_dtype = kv));
    out
}
