//! What every command of a program costs.

use super::SimError;
use super::engine::Priced;
use crate::cost::{CostModel, CostTable, GpuRates, OpCost};
use crate::machine::{Format, GpuModel};
use moetwin_kernels::cost::facts;
use moetwin_kernels::routing::RoutingLoad;
use moetwin_models::{Axis, IdVec, RankId};
use moetwin_runtime::{Action, BufferId, Command, Program, RankProgram};

/// Share of the vendor's memory rate that long reads reach where nobody measured it: the GPUs with measurements reach 0.84 to 0.95.
const UNMEASURED_MEMORY_SHARE: f64 = 0.9;

/// Share of the peak arithmetic rate that large products reach where nobody measured it: 0.72 to 0.91 on the GPUs with measurements.
const UNMEASURED_FLOP_SHARE: f64 = 0.8;

/// Rate of the L2 over that of memory: 3.6 on RTX PRO 6000, 1.25 on H200. It only corrects rows of tables, which bring their own.
const L2_OVER_MEMORY: f64 = 2.0;

/// Rates of a GPU as cost functions want them.
pub fn gpu_rates(gpu: &GpuModel) -> GpuRates {
    let memory_bytes_per_s = match &gpu.memory_reached_bytes_per_s {
        Some(reached) => reached.value as f64,
        None => gpu.memory_bytes_per_s.value as f64 * UNMEASURED_MEMORY_SHARE,
    };
    let flops = |format: Format| {
        let rate = gpu.flops.iter().find(|r| r.format == format)?;
        Some(match &rate.reached_per_s {
            Some(reached) => reached.value as f64,
            None => rate.peak_per_s.value as f64 * UNMEASURED_FLOP_SHARE,
        })
    };
    let bf16_flops_per_s = flops(Format::Bf16).or_else(|| flops(Format::Fp32)).unwrap_or(1.0);
    // GPUs that lack a format widen to the next one.
    let fp8_flops_per_s = flops(Format::Fp8).unwrap_or(bf16_flops_per_s);
    let fp4_flops_per_s = flops(Format::Fp4).unwrap_or(fp8_flops_per_s);
    GpuRates {
        memory_bytes_per_s,
        l2_bytes: gpu.l2_bytes as f64,
        l2_bytes_per_s: memory_bytes_per_s * L2_OVER_MEMORY,
        bf16_flops_per_s,
        fp8_flops_per_s,
        fp4_flops_per_s,
    }
}

/// Costs of all commands, by rank and index. `models` has one for each rank.
pub(super) fn price<T: CostTable>(
    program: &Program,
    models: &[&CostModel<T>],
    routing: &dyn RoutingLoad,
) -> Result<IdVec<RankId, Vec<Priced>>, SimError> {
    price_with(program, models, routing, &Twins::new(program))
}

/// Kernels of which only a part of the time that is neither bytes nor multiplications remains.
pub(super) fn scale_latency(priced: &mut IdVec<RankId, Vec<Priced>>, permille: u32) {
    for (_, commands) in priced.iter_mut() {
        for cost in commands.iter_mut().map(|p| &mut p.cost) {
            let longest = cost.memory_ps.max(cost.compute_ps).min(cost.duration_ps);
            let latency = u128::from(cost.duration_ps - longest) * u128::from(permille) / 1000;
            cost.duration_ps = longest.saturating_add(u64::try_from(latency).unwrap_or(u64::MAX));
        }
    }
}

fn price_with<T: CostTable>(
    program: &Program,
    models: &[&CostModel<T>],
    routing: &dyn RoutingLoad,
    twins: &Twins,
) -> Result<IdVec<RankId, Vec<Priced>>, SimError> {
    let mut out: IdVec<RankId, Vec<Priced>> = IdVec::new();
    for (rank, model) in program.ranks.ids().zip(models) {
        let twin = twins.of(rank).filter(|twin| std::ptr::eq(*model, models[twin.0 as usize]));
        let mut list = Vec::with_capacity(program.ranks[rank].commands.len());
        for (index, command) in program.ranks[rank].commands.iter().enumerate() {
            let same = twin.filter(|twin| same_work(program, rank, *twin, index));
            list.push(match same {
                Some(twin) => out[twin][index].clone(),
                None => price_one(program, rank, command, model, routing)?,
            });
        }
        out.push(list);
    }
    Ok(out)
}

fn price_one<T: CostTable>(
    program: &Program,
    rank: RankId,
    command: &Command,
    model: &CostModel<T>,
    routing: &dyn RoutingLoad,
) -> Result<Priced, SimError> {
    let graph = &program.graph;
    let facts = facts(graph, command.id.node, rank, routing).map_err(|e| SimError::Program(e.to_string()))?;
    let cost = match command.action {
        Action::Compute => model.cost(graph, command.id.node, rank, &facts),
        // Its time is the transport's to say.
        _ => OpCost::NOTHING,
    };
    Ok(Priced { cost, message_bytes: facts.message_bytes })
}

/// For every rank, an earlier one with the same sequences and the same experts: their commands cost the same wherever their
/// buffers have the same sizes.
struct Twins {
    of: Vec<Option<RankId>>,
}

impl Twins {
    fn new(program: &Program) -> Self {
        let (d, step) = (&program.graph.deployment, &program.graph.step);
        let place = |rank: RankId| {
            let sequences = (d.replica_sequences(step, rank), d.attention_sequences(step, rank));
            (d.stage(rank), d.axis_index(Axis::Ep, rank), sequences)
        };
        let places: Vec<_> = program.ranks.ids().map(place).collect();
        let first = |i: usize| places[..i].iter().position(|p| *p == places[i]).map(|j| RankId(j as u32));
        Self { of: (0..places.len()).map(first).collect() }
    }
    fn of(&self, rank: RankId) -> Option<RankId> {
        self.of[rank.0 as usize]
    }
}

/// Whether two ranks that are twins do the same work as their command `index`.
fn same_work(program: &Program, rank: RankId, twin: RankId, index: usize) -> bool {
    let (own, other) = (&program.ranks[rank], &program.ranks[twin]);
    let (a, Some(b)) = (&own.commands[index], other.commands.get(index)) else { return false };
    let kind = |action: Action| std::mem::discriminant(&action);
    a.id.node == b.id.node
        && kind(a.action) == kind(b.action)
        && same_sizes((own, &a.reads), (other, &b.reads))
        && same_sizes((own, &a.writes), (other, &b.writes))
}

fn same_sizes((own, a): (&RankProgram, &[BufferId]), (other, b): (&RankProgram, &[BufferId])) -> bool {
    let same = |a: BufferId, b: BufferId| matches!((own.buffers.get(a), other.buffers.get(b)), (Some(a), Some(b)) if a.sizes == b.sizes);
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| same(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{KernelTables, Kernels};
    use crate::machine::gpu_named;
    use moetwin_kernels::routing::{Distribution, SampledRouting};
    use moetwin_models::{AllToAll, BuildOptions, Deployment, Phase, Step, plan, zoo};
    use moetwin_runtime::{LowerOptions, lower};

    fn program(deployment: Deployment, step: &Step) -> Program {
        let mut spec = zoo::spec("kimi-k2.5").unwrap();
        spec.layers.truncate(3);
        lower(plan(&spec, step, &deployment, &BuildOptions::default()).unwrap(), LowerOptions::default()).unwrap()
    }

    #[test]
    fn twins_cost_what_they_would_cost_on_their_own() {
        let tp = Deployment { tp: 8, ..Deployment::default() };
        let ep = Deployment { ep: 4, ..tp.clone() };
        let dp = Deployment { dp_attention: 4, a2a: AllToAll::Nccl, ..Deployment { ep: 8, ..tp.clone() } };
        let pp = Deployment { tp: 4, pp: 2, replicas: 2, ..Deployment::default() };
        // Sequences of unequal length, so that ranks of one shape still differ.
        let mut uneven = Step::uniform(Phase::Decode, 5, 100);
        uneven.sequences[1].past = 5000;
        let prompt = Step::uniform(Phase::Prefill, 3, 64);
        let gpu = gpu_named("RTX PRO 6000 Blackwell Server Edition").unwrap();
        let model = CostModel::new(gpu_rates(gpu), KernelTables::for_gpu(&gpu.name, Kernels::Any));
        for step in [&uneven, &prompt] {
            for deployment in [&tp, &ep, &dp, &pp] {
                let program = program(deployment.clone(), step);
                let routing = SampledRouting::new(Distribution::Zipf { exponent: 1.0 }, 7);
                let models = vec![&model; program.ranks.len()];
                let with = price(&program, &models, &routing).unwrap();
                let nobody = Twins { of: vec![None; program.ranks.len()] };
                let without = price_with(&program, &models, &routing, &nobody).unwrap();
                assert_eq!(with, without, "{deployment:?}");
                assert!(with.iter().all(|(_, list)| list.iter().any(|p| p.cost.duration_ps > 0)));
            }
        }
    }

    /// Microseconds of every computing command of rank 0 with its op's name, a sequence of 1000 tokens each.
    fn rank_0_us(model: &CostModel, name: &str, tp: u32, batch: u32) -> Vec<(String, f64)> {
        let mut spec = zoo::spec(name).unwrap();
        spec.layers.truncate(4);
        let (step, deployment) = (Step::uniform(Phase::Decode, batch, 1000), Deployment { tp, ..Deployment::default() });
        let program = lower(plan(&spec, &step, &deployment, &BuildOptions::default()).unwrap(), LowerOptions::default()).unwrap();
        let routing = SampledRouting::new(Distribution::Uniform, 1);
        let us = |command: &Command| {
            let cost = price_one(&program, RankId(0), command, model, &routing).unwrap().cost;
            (format!("{} {}", program.graph.nodes[command.id.node].op.name(), command.id.node), cost.duration_ps as f64 / 1e6)
        };
        program.ranks[RankId(0)].commands.iter().map(us).collect()
    }

    #[test]
    fn a_larger_batch_shortens_no_op() {
        let mut names: Vec<String> = crate::machine::list().into_iter().flat_map(|m| m.models).map(|gpu| gpu.name).collect();
        names.sort_unstable();
        names.dedup();
        let mut walked = 0;
        for (name, kernels) in names.iter().flat_map(|n| [Kernels::Any, Kernels::Vllm, Kernels::Sglang].map(|k| (n, k))) {
            let gpu = gpu_named(name).unwrap();
            let Some(tables) = KernelTables::for_gpu(name, kernels) else { continue };
            // Moving a stand-in's times to a faster memory shortens those with more bytes by more.
            let tolerance = if tables.sources().any(|s| s.same_product) { 0.03 } else { 0.05 };
            let model = CostModel::new(gpu_rates(gpu), Some(tables));
            for (spec, tp) in [("deepseek-v3", 8), ("kimi-k2.5", 8), ("qwen3-30b-a3b-fp8", 1)] {
                let mut before = rank_0_us(&model, spec, tp, 1);
                for batch in 2..=16 {
                    let now = rank_0_us(&model, spec, tp, batch);
                    assert_eq!(before.len(), now.len());
                    for ((op, less), (_, more)) in before.iter().zip(&now) {
                        assert!(
                            *more >= less * (1.0 - tolerance),
                            "{name}, {kernels:?}, {spec}, batch {batch}: {op} takes {more} us, {less} of one sequence less"
                        );
                    }
                    before = now;
                    walked += 1;
                }
            }
        }
        assert!(walked >= 7 * 3 * 3 * 15, "{walked}");
    }

    #[test]
    fn no_gpu_beats_its_successor_because_its_experts_were_not_measured() {
        let experts = |gpu: &str, kernels, spec: &str, batch| {
            let model = CostModel::new(gpu_rates(gpu_named(gpu).unwrap()), KernelTables::for_gpu(gpu, kernels));
            let all = rank_0_us(&model, spec, 2, batch);
            all.iter().filter(|(op, _)| op.starts_with("experts")).map(|(_, us)| us).sum::<f64>()
        };
        // SGLang has tables of Hopper only, and of mxfp4 its kernel there is slower than vLLM's, which answers for A100.
        for kernels in [Kernels::Any, Kernels::Vllm] {
            for spec in ["gpt-oss-120b", "kimi-k2.5", "deepseek-v3", "qwen3-30b-a3b"] {
                for batch in [1, 16, 64] {
                    let (older, newer) = (experts("A100 SXM 80GB", kernels, spec, batch), experts("H100 SXM 80GB", kernels, spec, batch));
                    assert!(
                        newer > 0.0 && older >= newer * 0.98,
                        "{kernels:?}, {spec}, batch {batch}: {older} us on A100, {newer} on H100"
                    );
                }
            }
        }
    }

    #[test]
    fn rates_follow_the_machine() {
        let mut gpu = gpu_named("H200 SXM").unwrap().clone();
        let before = gpu_rates(&gpu);
        assert!(before.memory_bytes_per_s < gpu.memory_bytes_per_s.value as f64 && before.fp8_flops_per_s > before.bf16_flops_per_s);
        gpu.memory_reached_bytes_per_s = None;
        assert_eq!(gpu_rates(&gpu).memory_bytes_per_s, gpu.memory_bytes_per_s.value as f64 * UNMEASURED_MEMORY_SHARE);
        gpu.flops.clear();
        assert_eq!(gpu_rates(&gpu).fp4_flops_per_s, 1.0);
    }
}
