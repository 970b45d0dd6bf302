//! What the exchanges of a model's steps take on all GPUs here, as its steps issue them: what each adds to a captured pass once the last rank has come;
//! and what the kernels between them take.

use super::{Forked, Points, inputs_of, kernels_of, step_program};
use crate::error::Failure;
use moetwin::cuda::exec::gpu::Host;
use moetwin::cuda::exec::{AllReduceBackend, Choices, CudaExecutor, RankTimes, Repetitions};
use moetwin::kernels::cost::facts;
use moetwin::kernels::routing::{Distribution, SampledRouting};
use moetwin::models::{AllToAll, Deployment, ModelSpec, NodeId, Op, Phase, RankId, Step};
use moetwin::runtime::reference::ExecuteError;
use moetwin::runtime::weights::SyntheticWeights;
use moetwin::runtime::{Action, Executor, Program};
use moetwin::sim::collective::{CollectiveOp, Library};
use moetwin::sim::cost::{OwnExchange, OwnRow};
use moetwin::sim::exec::collective_of;
use std::collections::BTreeMap;
use std::time::Instant;

/// How exchanges are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    /// Ranks, one a GPU.
    pub(crate) ranks: u32,
    /// Whether NCCL uses peer access here.
    pub(crate) peer_access: bool,
    /// Whether sums by our own kernel are measured as well.
    pub(crate) one_shot: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct ExchangeRows {
    /// The rows.
    pub(crate) rows: Vec<OwnExchange>,
    /// Kernels of the same steps.
    pub(crate) kernels: Vec<OwnRow>,
    /// What was not measured, and why.
    pub(crate) left: Vec<String>,
    /// Steps with a stream beside the first, under NCCL.
    pub(crate) forked: Vec<Forked>,
}

/// Exchanges of a model's steps at every number of sequences. `open` makes an executor of all ranks.
pub(crate) fn exchange_rows<H: Host>(
    spec: &ModelSpec,
    points: &Points,
    ways: Ways,
    open: &dyn Fn(AllReduceBackend, u32) -> Result<CudaExecutor<H>, ExecuteError>,
) -> Result<ExchangeRows, Failure> {
    let n = ways.ranks;
    let tensor = Deployment { tp: n, ..Deployment::default() };
    let experts = Deployment { dp_attention: n, ep: n, a2a: AllToAll::Nccl, ..tensor.clone() };
    let mut all = vec![(tensor.clone(), Library::Nccl, AllReduceBackend::Nccl), (experts, Library::Nccl, AllReduceBackend::Nccl)];
    if ways.one_shot {
        all.push((tensor, Library::OneShot, AllReduceBackend::OneShot));
    }
    let mut found = ExchangeRows::default();
    for (deployment, library, backend) in all {
        let what = if deployment.ep > 1 { format!("dispatch over {n} ranks") } else { format!("sums over {n} ranks, {}", library.name()) };
        match one_way(spec, points, ways, (&deployment, library), &|capacity| open(backend, capacity), &mut found) {
            Ok(true) => {}
            Ok(false) => found.left.push(format!("{what} are left out: the time is over")),
            // What a model or its GPUs do not admit is said; everything else is measured all the same.
            Err(Failure::Input(e)) => found.left.push(format!("{what} are left out: {}", e.message())),
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// One deployment; whether there was time for any of it.
fn one_way<H: Host>(
    spec: &ModelSpec,
    points: &Points,
    ways: Ways,
    (deployment, library): (&Deployment, Library),
    open: &dyn Fn(u32) -> Result<CudaExecutor<H>, ExecuteError>,
    found: &mut ExchangeRows,
) -> Result<bool, Failure> {
    let running = |e: ExecuteError| Failure::Running(e.to_string());
    let context = points.contexts.iter().min().copied().unwrap_or(1);
    let weights = SyntheticWeights::new(spec, points.seed);
    // The first program decides the size of the cache. Every replica has a sequence.
    let mut batches: Vec<u32> = points.batches.iter().map(|b| (*b).max(deployment.dp_attention)).collect();
    batches.sort_unstable_by(|a, b| b.cmp(a));
    batches.dedup();
    // Times of exchanges are smooth in their bytes: the ends and every second size between tell the rest.
    let last = batches.len().saturating_sub(1);
    let batches: Vec<u32> = batches.into_iter().enumerate().filter(|(i, _)| i % 2 == 0 || *i == last).map(|(_, batch)| batch).collect();
    let mut executor: Option<CudaExecutor<H>> = None;
    for (nth, batch) in batches.into_iter().enumerate() {
        if Instant::now() > points.until {
            return Ok(nth > 0);
        }
        let step = Step::uniform(Phase::Decode, batch, context);
        let program = step_program(spec, &step, deployment, library == Library::OneShot)?;
        let executor = match &mut executor {
            Some(executor) => executor,
            none => none.insert(open(context + 1).map_err(running)?),
        };
        program.ranks.ids().try_for_each(|rank| executor.load(&program, rank, &weights)).map_err(running)?;
        let key = executor.prepare(program.clone()).map_err(running)?;
        let often = Repetitions { replays: 8, eager: 0, windows: 12, choices: Choices::Routed };
        let times = executor.measure(key, &inputs_of(&step, spec, points), often).map_err(running)?;
        found.rows.extend(rows_of(&program, &times, ways, library, points.seed));
        found.kernels.extend(kernels_of(&program, &times, points, true));
        if library == Library::Nccl {
            found.forked.extend(Forked::of(&program, &times, true));
        }
    }
    Ok(true)
}

/// Exchanges of a measured step: of each what the member takes that takes least, since it waits for nobody.
fn rows_of(program: &Program, times: &[RankTimes], ways: Ways, library: Library, seed: u64) -> Vec<OwnExchange> {
    let routing = SampledRouting::new(Distribution::Uniform, seed);
    let mut all: BTreeMap<NodeId, (CollectiveOp, bool, u64, u64)> = BTreeMap::new();
    for t in times {
        let commands = program.ranks.get(RankId(t.rank)).map_or(&[][..], |rp| &rp.commands);
        for (command, found) in commands.iter().zip(t.commands_ps()).filter(|(c, _)| c.action != Action::Compute) {
            let node = command.id.node;
            let (Some(op), Some(ps)) = (collective_of(&program.graph.nodes[node].op), found) else { continue };
            let Ok(facts) = facts(&program.graph, node, RankId(t.rank), &routing) else { continue };
            let normed = matches!(program.graph.nodes[node].op, Op::AllReduceAddRmsNorm { .. });
            let row = all.entry(node).or_insert((op, normed, 0, u64::MAX));
            (row.2, row.3) = (row.2.max(facts.message_bytes), row.3.min(ps.max(1)));
        }
    }
    let row = |(op, normed, bytes, time_ps): (CollectiveOp, bool, u64, u64)| OwnExchange {
        op,
        library: if op == CollectiveOp::AllReduce { library } else { Library::Nccl },
        ranks: ways.ranks as usize,
        peer_access: ways.peer_access,
        bytes,
        normed,
        time_ps,
    };
    all.into_values().filter(|(_, _, bytes, _)| *bytes > 0).map(row).collect()
}
