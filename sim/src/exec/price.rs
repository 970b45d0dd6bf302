//! What every command of a program costs.

use super::engine::Priced;
use crate::cost::{CostModel, CostTable, OpCost};
use moetwin_kernels::cost::{CostFacts, RoutingLoad, facts};
use moetwin_models::{IdVec, RankId};
use moetwin_runtime::{Action, Program};

/// Costs of all commands, by rank and index.
pub(super) fn price<T: CostTable>(program: &Program, models: &[&CostModel<T>], routing: &dyn RoutingLoad) -> IdVec<RankId, Vec<Priced>> {
    let graph = &program.graph;
    let of = |rank: RankId| {
        let commands = &program.ranks[rank].commands;
        let model = models[rank.0 as usize];
        commands
            .iter()
            .map(|command| {
                let facts: CostFacts = facts(graph, command.id.node, rank, routing);
                let cost = match command.action {
                    Action::Compute => model.cost(graph, command.id.node, rank, &facts),
                    // Its time is the transport's to say.
                    _ => OpCost::NOTHING,
                };
                Priced::new(cost, &facts)
            })
            .collect()
    };
    program.ranks.ids().map(of).collect()
}
