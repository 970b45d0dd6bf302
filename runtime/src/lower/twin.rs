//! Ranks that do the same on as much data: one is lowered, the others are copies under another name.

use super::{GroupTable, axis_of};
use crate::program::{Action, RankProgram};
use moetwin_models::graph::SplitError;
use moetwin_models::{Dim, Graph, Op, RankId, Tensor};

/// An earlier rank of the same stage that holds as much of every tensor, the first of its stage if any does.
pub(super) fn twin(graph: &Graph, rank: RankId) -> Result<Option<RankId>, SplitError> {
    let first = graph.deployment.peer_in_stage(RankId(0), graph.deployment.stage(rank));
    if first >= rank {
        return Ok(None);
    }
    for (id, tensor) in graph.tensors.iter() {
        for dim in 0..tensor.shape.len() {
            if may_be_uneven(graph, tensor, dim) && graph.local_size(id, dim, first)? != graph.local_size(id, dim, rank)? {
                return Ok(None);
            }
        }
    }
    Ok(Some(first))
}

/// Whether ranks may hold different amounts along a dimension: rows go by sequences and in chunks, vocabularies in chunks; heads, columns and
/// experts are cut evenly or not at all.
fn may_be_uneven(graph: &Graph, tensor: &Tensor, dim: usize) -> bool {
    let cut = u8::try_from(dim).is_ok_and(|d| tensor.layout.shard_axis(d).is_some());
    match tensor.shape[dim] {
        Dim::Tokens | Dim::LogitsRows | Dim::KvRows | Dim::Received => cut || graph.deployment.replicas > 1,
        Dim::Vocab(_) => cut,
        Dim::Fixed(_) | Dim::Packed(_) | Dim::Experts(_) => false,
    }
}

/// The program of `rank`, which differs from that of a like rank in who it is and whom it talks to.
pub(super) fn renamed(graph: &Graph, like: &RankProgram, rank: RankId, group_ids: &GroupTable) -> RankProgram {
    let d = &graph.deployment;
    let mut program = like.clone();
    for command in &mut program.commands {
        command.id.rank = rank;
        let op = &graph.nodes[command.id.node].op;
        match (&mut command.action, op) {
            (Action::Collective { group, .. }, op) => {
                if let Some(axis) = axis_of(op) {
                    *group = group_ids[&(axis, rank)];
                }
            }
            (Action::Send { to }, Op::SendRecv { to: stage, .. }) => *to = d.peer_in_stage(rank, u32::from(*stage)),
            (Action::Receive { from }, Op::SendRecv { from: stage, .. }) => *from = d.peer_in_stage(rank, u32::from(*stage)),
            _ => {}
        }
    }
    program
}
