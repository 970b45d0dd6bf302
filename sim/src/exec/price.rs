//! What every command of a program costs.

use super::SimError;
use super::engine::Priced;
use crate::cost::{CostModel, CostTable, GpuRates, OpCost};
use crate::machine::{Format, GpuModel};
use moetwin_kernels::cost::facts;
use moetwin_kernels::routing::RoutingLoad;
use moetwin_models::{IdVec, RankId};
use moetwin_runtime::{Action, Program};

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
    let graph = &program.graph;
    let of = |rank: RankId, model: &CostModel<T>| {
        let commands = program.ranks[rank].commands.iter();
        commands
            .map(|command| {
                let facts = facts(graph, command.id.node, rank, routing).map_err(|e| SimError::Program(e.to_string()))?;
                let cost = match command.action {
                    Action::Compute => model.cost(graph, command.id.node, rank, &facts),
                    // Its time is the transport's to say.
                    _ => OpCost::NOTHING,
                };
                Ok(Priced { cost, message_bytes: facts.message_bytes })
            })
            .collect::<Result<Vec<_>, _>>()
    };
    program.ranks.ids().zip(models).map(|(rank, model)| of(rank, model)).collect()
}
