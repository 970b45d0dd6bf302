//! Ranks that do the same on as much data: one is lowered, the others are copies under another name.

use super::{GroupTable, axis_of};
use crate::program::{Action, RankProgram};
use moetwin_models::graph::SplitError;
use moetwin_models::{Dim, Graph, Op, RankId, Tensor, TensorId};

/// The ranks that were lowered, each with how much it holds of what ranks may hold different amounts of.
pub(super) struct Twins<'a> {
    graph: &'a Graph,
    /// Tensors and dimensions that may be uneven.
    uneven: Vec<(TensorId, usize)>,
    lowered: Vec<(RankId, Vec<u64>)>,
}

impl<'a> Twins<'a> {
    pub(super) fn new(graph: &'a Graph) -> Self {
        let dims = |tensor: &'a Tensor| (0..tensor.shape.len()).filter(move |dim| may_be_uneven(graph, tensor, *dim));
        let uneven = graph.tensors.iter().flat_map(|(id, tensor)| dims(tensor).map(move |dim| (id, dim))).collect();
        Self { graph, uneven, lowered: Vec::new() }
    }
    /// An earlier rank of the same stage that holds as much of every tensor; without one, `rank` is to be lowered.
    pub(super) fn of(&mut self, rank: RankId) -> Result<Option<RankId>, SplitError> {
        let stage = |rank| self.graph.deployment.stage(rank);
        let mut candidates: Vec<usize> = (0..self.lowered.len()).filter(|i| stage(self.lowered[*i].0) == stage(rank)).collect();
        let mut held = Vec::with_capacity(self.uneven.len());
        for (i, (id, dim)) in self.uneven.iter().enumerate() {
            let size = self.graph.local_size(*id, *dim, rank)?;
            held.push(size);
            candidates.retain(|other| self.lowered[*other].1[i] == size);
        }
        match candidates.first() {
            Some(found) => Ok(Some(self.lowered[*found].0)),
            None => {
                self.lowered.push((rank, held));
                Ok(None)
            }
        }
    }
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
