//! A machine's figures from its GPUs: floors, rates, exchanges, and what our kernels take on the shapes of models.

mod eager;
mod exchanges;
mod joins;
mod tune;

pub(crate) use eager::{Eager, eager_gap};
pub(crate) use exchanges::{Ways, exchange_rows};
pub(crate) use joins::{Forked, joins};

use tune::tuned;

use crate::child;
use crate::error::Failure;
use crate::measurement::chosen;
use crate::output;
use crate::scenario::{plan_failure, verified, with_sums_fused};
use moetwin::cuda::exec::calibrate::{Exchanges, Floors};
use moetwin::cuda::exec::gpu::Host;
use moetwin::cuda::exec::{Choices, CudaExecutor, CudaOptions, RankTimes, Repetitions};
use moetwin::kernels::cost::facts;
use moetwin::kernels::launch::{Choice, Tuning};
use moetwin::kernels::routing::{Distribution, RecordedRouting, SampledRouting};
use moetwin::models::{BuildOptions, Deployment, ModelSpec, Phase, RankId, Step, plan};
use moetwin::runtime::reference::{ExecuteError, StepInputs};
use moetwin::runtime::weights::SyntheticWeights;
use moetwin::runtime::{Action, Executor, Program};
use moetwin::sim::calibrate::{Table, fit};
use moetwin::sim::collective::{CollectiveOp, GraphMode, Launch, Library};
use moetwin::sim::cost::{OwnExchange, OwnRow, OwnWork};
use moetwin::sim::import::nccl_tests::Measurement;
use moetwin::sim::machine::{Figure, Machine};
use moetwin::sim::time::Duration;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// A split whose kernels are measured: `N` cuts every layer over N ranks, `epN` deals whole experts out to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    ranks: u32,
    experts: bool,
}

/// Splits that are measured where none are asked for.
pub(crate) fn default_splits() -> Vec<Split> {
    let tensor = [1, 2, 8].map(Split::tensor);
    tensor.into_iter().chain([Split { ranks: 2, experts: true }]).collect()
}

/// Most ranks of a split.
const MOST_RANKS: u32 = 64;

impl Split {
    /// Over so many ranks.
    pub(crate) fn tensor(ranks: u32) -> Self {
        Self { ranks, experts: false }
    }
    fn deployment(self) -> Deployment {
        Deployment { tp: self.ranks, ep: if self.experts { self.ranks } else { 1 }, ..Deployment::default() }
    }
}

impl std::str::FromStr for Split {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        let (experts, number) = word.strip_prefix("ep").map_or((false, word), |number| (true, number));
        let least = if experts { 2 } else { 1 };
        match number.parse() {
            Ok(ranks) if (least..=MOST_RANKS).contains(&ranks) => Ok(Self { ranks, experts }),
            _ => Err(format!("no such split\n  accepted: a number of ranks, 1 to {MOST_RANKS}, or ep2 to ep{MOST_RANKS}")),
        }
    }
}

impl std::fmt::Display for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.experts { "ep" } else { "" }, self.ranks)
    }
}

/// What kernels are measured on.
#[derive(Clone, Debug)]
pub(crate) struct Points {
    /// Splits; of each, rank 0 runs alone.
    pub(crate) splits: Vec<Split>,
    /// Sequences of a decode step.
    pub(crate) batches: Vec<u32>,
    /// Tokens in the cache of each.
    pub(crate) contexts: Vec<u32>,
    /// Seed of weights and tokens.
    pub(crate) seed: u64,
    /// When no further step is begun.
    pub(crate) until: Instant,
    /// Whether launches are chosen by measurement.
    pub(crate) tune: bool,
    /// The least that a kernel takes in a captured graph, picoseconds.
    pub(crate) least_ps: u64,
}

/// What was found of a model.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Rows of kernels.
    pub(crate) rows: Vec<OwnRow>,
    /// Launches that are faster than those of the constants.
    pub(crate) choices: Vec<Choice>,
    /// What was asked for and not measured, and why.
    pub(crate) left: Vec<String>,
    /// Steps with a stream beside the first.
    pub(crate) forked: Vec<Forked>,
    /// Steps that the host launched.
    pub(crate) eager: Vec<Eager>,
}

/// The kernels of a model. `open` makes an executor of rank 0 of so many ranks.
pub(crate) fn kernel_rows<H: Host>(
    spec: &ModelSpec,
    points: &Points,
    open: &dyn Fn(u32, u32) -> Result<CudaExecutor<H>, ExecuteError>,
) -> Result<Found, Failure> {
    let running = |e: ExecuteError| Failure::Running(e.to_string());
    let capacity = points.contexts.iter().max().copied().unwrap_or(1) + 1;
    let weights = SyntheticWeights::new(spec, points.seed);
    let mut batches = points.batches.clone();
    // The first program decides the size of the cache.
    batches.sort_unstable_by(|a, b| b.cmp(a));
    let mut found = Found::default();
    for &split in &points.splits {
        let deployment = split.deployment();
        let mut late = 0;
        let mut executor: Option<CudaExecutor<H>> = None;
        'split: for &batch in &batches {
            for (nth, &context) in points.contexts.iter().enumerate() {
                if Instant::now() > points.until {
                    late += 1;
                    continue;
                }
                let step = Step::uniform(Phase::Decode, batch, context);
                let program = match step_program(spec, &step, &deployment, false) {
                    Ok(program) => program,
                    // A model with few heads has no wide split; its other splits are measured all the same.
                    Err(Failure::Input(e)) if split.ranks > 1 => {
                        found.left.push(format!("split {split} is left out: {}", e.message()));
                        break 'split;
                    }
                    Err(e) => return Err(e),
                };
                let executor = match &mut executor {
                    Some(executor) => executor,
                    none => none.insert(open(deployment.ranks(), capacity).map_err(running)?),
                };
                executor.load(&program, RankId(0), &weights).map_err(running)?;
                if points.tune && nth == 0 {
                    found.choices.extend(tuned(executor, &program, &step, spec, points).map_err(running)?);
                }
                executor.set_tuning(Tuning::new(found.choices.clone()));
                let key = executor.prepare(program.clone()).map_err(running)?;
                // How many experts are hit decides what they take, and follows from more than how many tokens there are.
                let choices = CHOICES[nth % CHOICES.len()];
                let routed = choices == Choices::Routed;
                let often = Repetitions { replays: 8, eager: if routed { EAGER } else { 0 }, windows: 12, choices };
                let times = executor.measure(key, &inputs_of(&step, spec, points), often).map_err(running)?;
                found.rows.extend(kernels_of(&program, &times, points, false));
                if routed {
                    found.forked.extend(Forked::of(&program, &times, false));
                    found.eager.extend(Eager::of(&program, &times));
                }
            }
        }
        if late > 0 {
            found.left.push(format!("{late} steps of split {split} are left out: the time is over"));
        }
    }
    Ok(found)
}

/// Choices of experts, one after the other for steps that differ in their context: as routed, and among all, a third and a ninth of them.
const CHOICES: [Choices; 4] = [Choices::Routed, Choices::Drawn(1000), Choices::Drawn(333), Choices::Drawn(111)];

/// Passes of a step that the host launches.
const EAGER: u32 = 5;

/// Drawn tokens for a step.
fn inputs_of(step: &Step, spec: &ModelSpec, points: &Points) -> StepInputs {
    let tokens = crate::prompt::drawn(step.sequences.len() as u32, 1, spec, points.seed).concat();
    StepInputs { token_ids: tokens, sequences: step.sequences.clone() }
}

fn step_program(spec: &ModelSpec, step: &Step, deployment: &Deployment, fuse_sums: bool) -> Result<Program, Failure> {
    let mut graph = plan(spec, step, deployment, &BuildOptions::default()).map_err(|e| plan_failure(&e, deployment))?;
    graph.outputs.retain(|(name, _)| name != "logits");
    verified(with_sums_fused(graph, fuse_sums)?)
}

/// What a measured step says of the kernels in it: what each adds to the captured step on one stream. `peers`: whether the other ranks ran too; where
/// each routes tokens of its own, what all of them chose decides what an expert does.
fn kernels_of(program: &Program, times: &[RankTimes], points: &Points, peers: bool) -> Vec<OwnRow> {
    let routing = RecordedRouting::new(chosen(program, times), SampledRouting::new(Distribution::Uniform, points.seed));
    let mut rows = Vec::new();
    for of_rank in times {
        let rank = RankId(of_rank.rank);
        let commands = program.ranks.get(rank).map_or(&[][..], |rp| &rp.commands);
        for (command, found) in commands.iter().zip(of_rank.commands_ps()).filter(|(c, _)| c.action == Action::Compute) {
            let Some(time_ps) = found.map(|ps| ps.max(points.least_ps)) else { continue };
            let Ok(facts) = facts(&program.graph, command.id.node, rank, &routing) else { continue };
            let work = OwnWork::of(&program.graph, command.id.node, rank, &facts);
            rows.extend(work.map(|work| OwnRow { work: OwnWork { peers, ..work }, time_ps }));
        }
    }
    rows
}

/// Options of an executor that measures one rank, products of many rows by the library as in a run.
pub(crate) fn options(capacity: u32) -> CudaOptions {
    let stand_in = Some(std::time::Duration::ZERO);
    CudaOptions { stand_in, library: true, ..CudaOptions::new(capacity, std::time::Duration::from_secs(60)) }
}

/// The machine with floors and rates as measured.
pub(crate) fn with_floors(mut machine: Machine, floors: &Floors, gpu: &str, source: &str) -> Machine {
    let time = |ps: u64| Figure::measured(Duration::from_ps(ps.max(1)), source);
    machine.launch.eager_kernel = time(floors.eager_kernel_ps);
    machine.launch.graph_node = time(floors.graph_node_ps);
    machine.launch.graph_launch = time(floors.graph_launch_ps);
    let wanted = moetwin::sim::topology::gpu_by_words(gpu);
    for model in machine.models.iter_mut().filter(|m| Some(m.name.as_str()) == wanted) {
        model.set_reached_memory(Figure::measured((floors.copy_bytes_per_s as u64).max(1), source));
    }
    machine
}

/// Tables of all-reduces for a fit.
pub(crate) fn tables(found: &Exchanges, peer_access: bool, source: &str) -> Vec<Table> {
    let table = |what: &str, launch: Launch, time: fn(&moetwin::cuda::exec::calibrate::ExchangeTimes) -> u64| Table {
        name: format!("{source}: all-reduce {what}{}", if peer_access { "" } else { ", peer access off" }),
        op: CollectiveOp::AllReduce,
        library: Library::Nccl,
        launch: Some(launch),
        ranks: found.ranks as usize,
        peer_access: Some(peer_access),
        algorithm: None,
        protocol: None,
        nccl_graph: GraphMode::Detected,
        rows: found
            .sizes
            .iter()
            .map(|s| Measurement { ranks: None, launch: None, bytes: s.bytes, time: Duration::from_ps(time(s)) })
            .collect(),
    };
    // Many one behind the other in one graph, as in a step.
    vec![table("in a graph", Launch::Node, |s| s.graph_ps), table("in a loop", Launch::Loop, |s| s.loop_ps)]
}

/// The machine with collectives fitted to tables; as it was, with a sentence, where no fit can be defended.
pub(crate) fn with_exchanges(machine: Machine, tables: &[Table]) -> (Machine, String) {
    match fit(&machine, tables) {
        Ok(found) => {
            let moved: Vec<String> = found.moved.iter().map(|(name, factor)| format!("{name} x{factor:.2}")).collect();
            let errors: Vec<f64> = found.residuals.iter().map(|r| r.error().abs()).collect();
            let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
            (found.machine, format!("collectives fitted, {:.0} % off in the mean ({})", 100.0 * mean, moved.join(", ")))
        }
        Err(e) => (machine, format!("collectives stay as they were: {e}")),
    }
}

/// How long all-reduces without peer access may take in all: seconds on two GPUs, and every wait in the process has its own bound.
const HOST_DEADLINE: std::time::Duration = std::time::Duration::from_secs(300);

/// What a process without peer access found.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ThroughHost {
    /// All-reduces of every size.
    pub(crate) exchanges: Exchanges,
    /// Exchanges of steps.
    pub(crate) rows: Vec<OwnExchange>,
    /// What was not measured, and why.
    pub(crate) left: Vec<String>,
}

/// Exchanges without peer access, measured by a process of its own: NCCL reads its environment once.
pub(crate) fn exchanges_through_host(sizes: &[u64], models: &[&str], points: &Points) -> Result<ThroughHost, Failure> {
    let wrong = |e: String| Failure::Running(format!("exchanges without peer access: {e}"));
    let program = std::env::current_exe().map_err(|e| wrong(e.to_string()))?;
    let list = |numbers: Vec<String>| numbers.join(",");
    let left = points.until.saturating_duration_since(Instant::now()).as_secs().max(1);
    let mut command = std::process::Command::new(program);
    command.args(["calibrate", "--exchanges", &list(sizes.iter().map(ToString::to_string).collect())]);
    command.args(["--batches", &list(points.batches.iter().map(ToString::to_string).collect())]);
    command.args(["--contexts", &list(points.contexts.iter().map(ToString::to_string).collect())]);
    command.args(["--seed", &points.seed.to_string(), "--budget", &left.to_string(), "--model"]).args(models);
    command.env("NCCL_P2P_DISABLE", "1");
    let done = child::output(&mut command, HOST_DEADLINE).map_err(wrong)?;
    if !done.status.success() {
        return Err(wrong(String::from_utf8_lossy(&done.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&done.stdout).map_err(|e| wrong(e.to_string()))
}

/// Says what skew does, of an all-reduce to which one rank came late.
pub(crate) fn skew_words(found: &Exchanges) -> Vec<String> {
    let us = |ps: u64| ps as f64 / 1e6;
    let one = |s: &moetwin::cuda::exec::calibrate::SkewTimes| {
        format!(
            "{} bytes, one rank {:.0} us late: the first waits and transfers {:.1} us, the last transfers {:.1}",
            s.bytes,
            us(s.late_ps),
            us(s.early_ps),
            us(s.transfer_ps)
        )
    };
    found.skew.iter().map(one).collect()
}

/// Says how far a calibration has come.
pub(crate) fn progress(begin: Instant, what: &str) {
    output::note(&format!("[{:5.1} s] {what}", begin.elapsed().as_secs_f64()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use moetwin::cuda::exec::calibrate::{exchanges, floors};
    use moetwin::cuda::exec::fake::FakeHost;
    use moetwin::runtime::builtin;
    use moetwin::sim::cost::OwnKernels;
    use moetwin::sim::exec::{SimOptions, SpanKind, simulate};
    use moetwin::sim::machine;

    fn points() -> Points {
        let until = Instant::now() + std::time::Duration::from_secs(60);
        Points {
            splits: vec![Split::tensor(1), Split::tensor(2)],
            batches: vec![1, 3, 9],
            contexts: vec![8, 40],
            seed: 1,
            until,
            tune: false,
            least_ps: 1_000_000,
        }
    }

    fn rows(points: &Points) -> Found {
        rows_of_model(&builtin::spec().unwrap(), points)
    }

    fn rows_of_model(spec: &ModelSpec, points: &Points) -> Found {
        let host = FakeHost::default();
        let open = |ranks: u32, capacity: u32| CudaExecutor::on(host.clone(), vec![RankId(0)], ranks, None, options(capacity));
        let found = kernel_rows(spec, points, &open).unwrap();
        assert_eq!(host.wrong(), [""; 0]);
        found
    }

    #[test]
    fn a_machine_calibrated_on_the_fake_predicts_the_fake() {
        let Found { rows: found, choices, left, eager: launched, .. } = rows(&points());
        assert_eq!((choices.len(), left.len()), (0, 0));
        let mut machine = machine::find("8x-h200-sxm").unwrap();
        let mut own = OwnKernels::new("the fake".to_owned(), found);
        // Of every batch of both splits one step was launched by the host as well.
        assert_eq!(launched.len(), 6);
        own.eager_gap_ps = eager_gap(&machine, &own, &launched, 1);
        assert!(own.eager_gap_ps.is_some());
        machine.kernels = Some(own);
        let again = machine::from_json(&machine.to_json()).unwrap();
        assert_eq!(again, machine);
        // A step that was measured: every kernel of ours is priced as measured, and takes what the fake says.
        let (spec, step) = (builtin::spec().unwrap(), Step::uniform(Phase::Decode, 3, 40));
        let program = step_program(&spec, &step, &Deployment::default(), false).unwrap();
        let routing = SampledRouting::new(Distribution::Uniform, 0);
        let trace = simulate(&program, &machine, &routing, &SimOptions::default()).unwrap();
        let (mut measured, mut all) = (0, 0);
        for span in trace.spans.as_slice().iter().filter(|s| s.kind == SpanKind::Compute) {
            let cost = trace.costs[span.rank][span.index.unwrap() as usize];
            all += 1;
            measured += u32::from(cost.provenance == moetwin::sim::cost::Provenance::Measured);
        }
        // Only experts are asked about other choices than were seen.
        assert!(measured * 10 >= all * 8, "{measured} of {all}");
        // Another engine does not run our kernels.
        let other = SimOptions { kernels: moetwin::sim::cost::Kernels::Vllm, ..SimOptions::default() };
        assert_ne!(simulate(&program, &machine, &routing, &other).unwrap().total, trace.total);
    }

    fn kernel_rows_alone(host: &FakeHost, spec: &ModelSpec) -> Vec<OwnRow> {
        let open = |ranks: u32, capacity: u32| CudaExecutor::on(host.clone(), vec![RankId(0)], ranks, None, options(capacity));
        kernel_rows(spec, &Points { batches: vec![1], contexts: vec![8], ..points() }, &open).unwrap().rows
    }

    #[test]
    fn exchanges_of_steps_enter_the_machine_and_are_what_they_were_measured_to_take() {
        use moetwin::cuda::exec::AllReduceBackend;
        use moetwin::cuda::exec::pace::EXCHANGE_PS;
        use moetwin::sim::collective::{CollectiveOp, Library};
        let (spec, host) = (builtin::spec().unwrap(), FakeHost::default());
        let ways = Ways { ranks: 2, peer_access: true, one_shot: true };
        let open = |all_reduce: AllReduceBackend, capacity: u32| {
            let options = CudaOptions { all_reduce, stand_in: None, ..options(capacity) };
            CudaExecutor::on(host.clone(), vec![RankId(0), RankId(1)], 2, None, options)
        };
        let found = exchange_rows(&spec, &points(), ways, &open).unwrap();
        assert_eq!(host.wrong(), [""; 0]);
        assert!(found.left.is_empty(), "{:?}", found.left);
        let sums: Vec<&OwnExchange> = found.rows.iter().filter(|r| r.op == CollectiveOp::AllReduce).collect();
        let nccl: Vec<&&OwnExchange> = sums.iter().filter(|r| r.library == Library::Nccl).collect();
        // Kernels between exchanges are told from those of a rank alone.
        assert!(found.kernels.iter().all(|r| r.work.peers), "{:?}", found.kernels);
        let (linear, norm) =
            (found.kernels.iter().any(|r| r.work.op == "linear"), found.kernels.iter().any(|r| r.work.op.ends_with("rms_norm")));
        // On the fake all tokens choose the same experts, all on rank 0: of 9 and 2 sequences it has every pair and its peer none.
        let pairs: std::collections::BTreeSet<u64> =
            found.kernels.iter().filter(|r| r.work.op == "experts").map(|r| r.work.tokens).collect();
        assert_eq!(pairs.into_iter().collect::<Vec<_>>(), [0, 4, 2 * 4, 9 * 4]);
        assert!(linear && norm && kernel_rows_alone(&host, &spec).iter().all(|r| !r.work.peers));
        assert!(!nccl.is_empty() && nccl.iter().all(|r| r.ranks == 2 && r.time_ps.abs_diff(EXCHANGE_PS) < EXCHANGE_PS / 10), "{sums:?}");
        // The embedding's sum alone, the layers' with their norms.
        for normed in [false, true] {
            assert!(sums.iter().any(|r| r.library == Library::OneShot && r.normed == normed));
        }
        assert!(sums.iter().all(|r| r.library == Library::OneShot || !r.normed));
        assert!(found.rows.iter().any(|r| r.op == CollectiveOp::AllToAll));
        // In the machine an all-reduce of a step takes just that.
        let mut machine = machine::find("8x-h200-sxm").unwrap();
        machine.kernels = Some(OwnKernels { exchanges: moetwin::sim::cost::medians(found.rows), ..OwnKernels::default() });
        let machine = machine::from_json(&machine.to_json()).unwrap();
        let step = Step::uniform(Phase::Decode, 9, 8);
        let program = step_program(&spec, &step, &Deployment { tp: 2, ..Deployment::default() }, false).unwrap();
        let routing = SampledRouting::new(Distribution::Uniform, 0);
        let trace = simulate(&program, &machine, &routing, &SimOptions::default()).unwrap();
        let sums = trace.exchanges.as_slice().iter().filter(|e| {
            matches!(
                program.graph.nodes[program.ranks[RankId(0)].commands[trace.spans[e.spans[0]].index.unwrap() as usize].id.node].op,
                moetwin::models::Op::AllReduce { .. }
            )
        });
        let took: Vec<u64> = sums.map(|e| e.alone.as_ps()).collect();
        assert!(!took.is_empty() && took.iter().all(|ps| ps.abs_diff(EXCHANGE_PS) < EXCHANGE_PS / 10), "{took:?}");
        // A split that the model does not admit is said, not passed over.
        let open = |ranks: u32, capacity: u32| CudaExecutor::on(host.clone(), vec![RankId(0)], ranks, None, options(capacity));
        let wide = Points { splits: vec![Split::tensor(1), Split::tensor(7)], batches: vec![1], contexts: vec![8], ..points() };
        let found = kernel_rows(&spec, &wide, &open).unwrap();
        assert!(!found.rows.is_empty() && found.left.len() == 1 && found.left[0].starts_with("split 7 is left out: "), "{:?}", found.left);
    }

    #[test]
    fn steps_for_which_there_is_no_time_are_counted() {
        let none = Points { until: Instant::now() - std::time::Duration::from_secs(1), ..points() };
        let found = rows(&none);
        assert_eq!((found.rows.len(), found.left.len()), (0, 2));
        assert!(found.left[1].starts_with("6 steps of split 2 are left out"), "{:?}", found.left);
    }

    #[test]
    fn launches_are_chosen_by_what_they_were_measured_to_take() {
        // On the fake a kernel takes the longer the more blocks it has, so the fewest warps a tile win wherever the constants take more.
        let mut spec = moetwin::models::zoo::spec("qwen3-30b-a3b").unwrap();
        spec.layers.truncate(1);
        let found =
            rows_of_model(&spec, &Points { tune: true, splits: vec![Split::tensor(1)], batches: vec![1], contexts: vec![8], ..points() });
        assert!(found.choices.iter().any(|c| c.op == "experts"), "{:?}", found.choices);
        assert!(found.choices.iter().all(|c| (c.parts, c.rows) == (1, 1)), "{:?}", found.choices);
        // With them the same step takes less, and rows say so.
        let before = rows_of_model(&spec, &Points { splits: vec![Split::tensor(1)], batches: vec![1], contexts: vec![8], ..points() });
        let sum = |f: &Found| f.rows.iter().map(|r| r.time_ps).sum::<u64>();
        assert!(sum(&found) < sum(&before));
        // The machine file carries them to whoever runs.
        let mut machine = machine::find("8x-h200-sxm").unwrap();
        machine.kernels = Some(OwnKernels { choices: found.choices.clone(), ..OwnKernels::new("the fake".to_owned(), found.rows) });
        assert_eq!(machine::from_json(&machine.to_json()).unwrap().kernels.unwrap().choices, found.choices);
    }

    #[test]
    fn floors_and_exchanges_enter_the_machine_with_their_source() {
        let deadline = std::time::Duration::from_secs(10);
        let (before, host) = (machine::find("8x-h200-sxm").unwrap(), FakeHost::default());
        let found = floors(&host, RankId(0), deadline).unwrap();
        let after = with_floors(before.clone(), &found, "NVIDIA H200", "test");
        let rate = after.models[0].memory_reached_bytes_per_s.as_ref().unwrap();
        assert_eq!((rate.value, rate.source.as_str()), (found.copy_bytes_per_s as u64, "test"));
        assert_eq!(after.launch.graph_node.source, "test");
        let exchanged = exchanges(&host, 2, &[8 << 10, 1 << 20], &[std::time::Duration::from_micros(20)], deadline).unwrap();
        let tables = tables(&exchanged, true, "test");
        assert_eq!((tables.len(), tables[0].rows.len(), tables[0].ranks), (2, 2, 2));
        assert_eq!(skew_words(&exchanged).len(), 1);
        let (fitted, words) = with_exchanges(after.clone(), &tables);
        assert_eq!(fitted.launch.eager_kernel, after.launch.eager_kernel, "loops of NCCL say nothing of launches");
        assert!(words.starts_with("collectives "), "{words}");
    }
}
