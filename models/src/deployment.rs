//! How a model is spread over ranks, and which ranks talk to each other.

use crate::dtype::DType;
use crate::ids::RankId;
use crate::step::Step;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A set of ranks inside one pipeline stage along which tensors are cut or summed.
///
/// Within a stage of `tp` ranks, rank `t` has attention coordinates `t = dp_index * attn_tp + attn_tp_index`
/// and expert coordinates `t = ep_index * moe_tp + moe_tp_index`. Decode context parallelism cuts the attention coordinate
/// again: `attn_tp_index = head_tp_index * dcp + dcp_index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// All `tp` ranks of the stage.
    Tp,
    /// Ranks that share the sequences of one data-parallel attention group.
    AttnTp,
    /// Ranks with the same attention shard and different sequences.
    AttnDp,
    /// Ranks that hold different experts.
    Ep,
    /// Ranks that hold different slices of the same experts.
    MoeTp,
    /// Ranks with the same place in their decode-context group: heads are cut over them once a query is gathered over [`Axis::Dcp`].
    HeadTp,
    /// Ranks of an attention group that hold different rows of the same KV cache.
    Dcp,
}

impl Axis {
    /// Every axis.
    pub const ALL: [Axis; 7] = [Axis::Tp, Axis::AttnTp, Axis::AttnDp, Axis::Ep, Axis::MoeTp, Axis::HeadTp, Axis::Dcp];

    /// Name as in graph text.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tp => "tp",
            Axis::AttnTp => "attn_tp",
            Axis::AttnDp => "attn_dp",
            Axis::Ep => "ep",
            Axis::MoeTp => "moe_tp",
            Axis::HeadTp => "head_tp",
            Axis::Dcp => "dcp",
        }
    }
}

/// All-to-all backend of expert dispatch and combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AllToAll {
    /// No dispatch: every rank sees every token and the sum over ranks is an all-reduce.
    #[default]
    None,
    /// NCCL all-to-all.
    Nccl,
    /// FlashInfer's one-sided all-to-all (replicates shared experts, takes a workspace).
    Flashinfer,
    /// DeepEP.
    Deepep,
}

/// Which experts a rank of the EP axis holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertPlacement {
    /// Logical expert held by each physical slot; slots are cut contiguously over the EP ranks.
    pub physical_to_logical: Vec<u32>,
}

impl ExpertPlacement {
    /// Expert `i` in slot `i`.
    pub fn contiguous(experts: u32) -> Self {
        Self { physical_to_logical: (0..experts).collect() }
    }
    /// The slots of a logical expert, in slot order. A token uses slot number `token_index % slots`.
    pub fn slots(&self, logical: u32) -> impl Iterator<Item = u32> + '_ {
        self.physical_to_logical.iter().enumerate().filter(move |(_, l)| **l == logical).map(|(slot, _)| slot as u32)
    }
    /// Slots held by EP rank `index` of `parts`.
    pub fn local(&self, index: u32, parts: u32) -> Range<u32> {
        let n = self.physical_to_logical.len() as u32 / parts;
        index * n..(index + 1) * n
    }
}

/// How a model is spread over ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// Ranks of one pipeline stage.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Data-parallel attention groups; divides `tp`.
    pub dp_attention: u32,
    /// Expert-parallel groups; divides `tp`.
    pub ep: u32,
    /// Decode context parallelism; divides `tp / dp_attention`.
    pub dcp: u32,
    /// Independent copies of the model.
    pub replicas: u32,
    /// All-to-all backend.
    pub a2a: AllToAll,
    /// Element type of the KV cache.
    pub kv_dtype: DType,
    /// Redundant or permuted experts; `None` is contiguous.
    pub placement: Option<ExpertPlacement>,
}

impl Default for Deployment {
    fn default() -> Self {
        Self { tp: 1, pp: 1, dp_attention: 1, ep: 1, dcp: 1, replicas: 1, a2a: AllToAll::None, kv_dtype: DType::Bf16, placement: None }
    }
}

impl Deployment {
    /// One rank.
    pub fn single() -> Self {
        Self::default()
    }
    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.tp * self.pp * self.replicas
    }
    /// Ranks along an axis.
    pub fn axis_size(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Tp => self.tp,
            Axis::AttnTp => self.tp / self.dp_attention,
            Axis::AttnDp => self.dp_attention,
            Axis::Ep => self.ep,
            Axis::MoeTp => self.tp / self.ep,
            Axis::HeadTp => self.tp / self.dp_attention / self.dcp,
            Axis::Dcp => self.dcp,
        }
    }
    /// Position of a rank along an axis.
    pub fn axis_index(&self, axis: Axis, rank: RankId) -> u32 {
        let t = rank.0 % self.tp;
        match axis {
            Axis::Tp => t,
            Axis::AttnTp => t % self.axis_size(Axis::AttnTp),
            Axis::AttnDp => t / self.axis_size(Axis::AttnTp),
            Axis::Ep => t / self.axis_size(Axis::MoeTp),
            Axis::MoeTp => t % self.axis_size(Axis::MoeTp),
            Axis::HeadTp => t % self.axis_size(Axis::AttnTp) / self.dcp,
            Axis::Dcp => t % self.axis_size(Axis::AttnTp) % self.dcp,
        }
    }
    /// The ranks that `rank` talks to along an axis, itself included, in axis order.
    pub fn group(&self, axis: Axis, rank: RankId) -> Vec<RankId> {
        let first = rank.0 - rank.0 % self.tp;
        let same = |other: RankId, axis: Axis| self.axis_index(axis, other) == self.axis_index(axis, rank);
        (first..first + self.tp)
            .map(RankId)
            .filter(|&other| match axis {
                Axis::Tp => true,
                Axis::AttnTp => same(other, Axis::AttnDp),
                Axis::AttnDp => same(other, Axis::AttnTp),
                Axis::Ep => same(other, Axis::MoeTp),
                Axis::MoeTp => same(other, Axis::Ep),
                Axis::HeadTp => same(other, Axis::AttnDp) && same(other, Axis::Dcp),
                Axis::Dcp => same(other, Axis::AttnDp) && same(other, Axis::HeadTp),
            })
            .collect()
    }
    /// Cache rows of a sequence that `rank` holds when the sequence has `rows` in all: row `r` is on rank `r % dcp` of its group.
    pub fn context_rows(&self, rows: u64, rank: RankId) -> u64 {
        let index = u64::from(self.axis_index(Axis::Dcp, rank));
        rows.saturating_sub(index).div_ceil(u64::from(self.dcp))
    }
    /// Pipeline stage of a rank.
    pub fn stage(&self, rank: RankId) -> u32 {
        rank.0 / self.tp % self.pp
    }
    /// Replica of a rank.
    pub fn replica(&self, rank: RankId) -> u32 {
        rank.0 / (self.tp * self.pp)
    }
    /// The rank with the same position in another stage of the same replica.
    pub fn peer_in_stage(&self, rank: RankId, stage: u32) -> RankId {
        RankId((self.replica(rank) * self.pp + stage) * self.tp + rank.0 % self.tp)
    }
    /// Sequences of the step that the replica of `rank` serves.
    pub fn replica_sequences(&self, step: &Step, rank: RankId) -> Range<usize> {
        step.partition(self.replica(rank), self.replicas)
    }
    /// Sequences whose KV cache `rank` holds (a data-parallel attention group's share of its replica's).
    pub fn attention_sequences(&self, step: &Step, rank: RankId) -> Range<usize> {
        let outer = self.replica_sequences(step, rank);
        let inner = step.slice(outer.clone()).partition(self.axis_index(Axis::AttnDp, rank), self.dp_attention);
        outer.start + inner.start..outer.start + inner.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_axis_of(d: &Deployment) {
        for axis in Axis::ALL {
            for rank in (0..d.ranks()).map(RankId) {
                let group = d.group(axis, rank);
                assert_eq!(group.len() as u32, d.axis_size(axis));
                assert_eq!(group[d.axis_index(axis, rank) as usize], rank);
            }
        }
    }

    #[test]
    fn a_context_is_dealt_out_row_by_row() {
        let d = Deployment { tp: 8, dcp: 4, ..Deployment::default() };
        for rows in 0..20u64 {
            for rank in (0..8).map(RankId) {
                let index = u64::from(d.axis_index(Axis::Dcp, rank));
                assert_eq!(d.context_rows(rows, rank), (0..rows).filter(|r| r % 4 == index).count() as u64);
            }
        }
    }

    #[test]
    fn every_axis_partitions_the_stage() {
        for dcp in [1, 2] {
            let d = Deployment { tp: 8, pp: 2, dp_attention: 2, ep: 2, dcp, replicas: 2, ..Deployment::default() };
            every_axis_of(&d);
        }
        let d = Deployment { tp: 8, pp: 2, dp_attention: 4, ep: 2, replicas: 2, ..Deployment::default() };
        assert_eq!(d.ranks(), 32);
        every_axis_of(&d);
        assert_eq!(d.group(Axis::AttnDp, RankId(9)), [9, 11, 13, 15].map(RankId));
        assert_eq!(d.stage(RankId(9)), 1);
        assert_eq!(d.peer_in_stage(RankId(9), 0), RankId(1));
    }
}
