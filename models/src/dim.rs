//! Dimensions of tensors and how they are spread over the ranks of a stage.

use crate::deployment::Axis;
use serde::{Deserialize, Serialize};

/// A run of `units` equal units of `width` elements inside a packed dimension; a split gives each rank whole units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Segment {
    /// Number of units (attention heads, columns, quantization groups).
    pub units: u32,
    /// Elements of one unit.
    pub width: u32,
    /// Whether ranks may share a unit when there are fewer units than ranks (KV heads of grouped-query attention).
    pub replicable: bool,
}

impl Segment {
    /// A segment whose units are never shared.
    pub fn new(units: u32, width: u32) -> Self {
        Self { units, width, replicable: false }
    }
    /// A segment whose units are shared when there are fewer of them than ranks.
    pub fn replicable(units: u32, width: u32) -> Self {
        Self { units, width, replicable: true }
    }
    /// Elements in all.
    pub fn elements(&self) -> u64 {
        u64::from(self.units) * u64::from(self.width)
    }
    /// The range of units that part `index` of `parts` holds, or `None` where the split is not exact.
    pub fn part(&self, index: u32, parts: u32) -> Option<std::ops::Range<u32>> {
        if self.units.is_multiple_of(parts) {
            let n = self.units / parts;
            Some(index * n..(index + 1) * n)
        } else if self.replicable && self.units > 0 && parts.is_multiple_of(self.units) {
            let unit = index / (parts / self.units);
            Some(unit..unit + 1)
        } else {
            None
        }
    }
}

/// One dimension of a tensor, in global (unsharded) terms.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dim {
    /// New tokens of the step. Sharded over [`Axis::AttnDp`] by whole sequences, over any other axis by [`crate::step::chunk`].
    Tokens,
    /// Rows that reach the head (see [`crate::LogitsRows`]); sharded over [`Axis::AttnDp`] by whole sequences.
    LogitsRows,
    /// Rows of the KV cache of all sequences of the step; sharded over [`Axis::AttnDp`] by whole sequences, over [`Axis::Dcp`] row by row
    /// (row `r` of a sequence is on rank `r % dcp`).
    KvRows,
    /// Token rows received by an all-to-all dispatch: one slot for every token of every rank of the group.
    Received,
    /// A fixed size that is never cut.
    Fixed(u64),
    /// Segments laid one after the other; a split cuts each segment in whole units (fused QKV, gate and up, heads).
    Packed(Vec<Segment>),
    /// A vocabulary: cut in equal chunks, the last one padded.
    Vocab(u64),
    /// Experts: cut by the deployment's expert placement.
    Experts(u64),
}

impl Dim {
    /// Global elements of a weight's dimension, `None` where the step decides (token rows).
    pub fn fixed_size(&self) -> Option<u64> {
        match self {
            Dim::Fixed(n) | Dim::Vocab(n) | Dim::Experts(n) => Some(*n),
            Dim::Packed(segments) => Some(segments.iter().map(Segment::elements).sum()),
            Dim::Tokens | Dim::LogitsRows | Dim::KvRows | Dim::Received => None,
        }
    }
    /// A packed dimension with one segment.
    pub fn packed(units: u64, width: u64) -> Self {
        Dim::Packed(vec![Segment::new(to_u32(units), to_u32(width))])
    }
    /// A packed dimension of two equal runs of single elements (gate and up projections fused).
    pub fn gate_up(intermediate: u64) -> Self {
        let half = Segment::new(to_u32(intermediate), 1);
        Dim::Packed(vec![half, half])
    }
}

fn to_u32(n: u64) -> u32 {
    u32::try_from(n).expect("config readers bound every dimension to u32")
}

/// What a tensor looks like along one axis of ranks. Absent means replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Dimension `0`-based index is cut over the ranks of the axis.
    Shard(u8),
    /// Every rank holds a summand; the value is the sum over the ranks of the axis.
    Partial,
}

/// How a tensor is spread: a placement for each axis where it is not replicated. Axes of size 1 are never listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Layout {
    entries: Vec<(Axis, Placement)>,
}

impl Layout {
    /// The same on every rank.
    pub fn replicated() -> Self {
        Self::default()
    }
    /// Cut along `dim` over `axis`.
    pub fn shard(axis: Axis, dim: u8) -> Self {
        Self { entries: vec![(axis, Placement::Shard(dim))] }
    }
    /// A summand on each rank of `axis`.
    pub fn partial(axis: Axis) -> Self {
        Self { entries: vec![(axis, Placement::Partial)] }
    }
    /// This layout with `axis` set to `placement` (kept sorted by axis, so equal layouts compare equal).
    #[must_use]
    pub fn with(mut self, axis: Axis, placement: Placement) -> Self {
        self.entries.retain(|(a, _)| *a != axis);
        self.entries.push((axis, placement));
        self.entries.sort_by_key(|(a, _)| *a);
        self
    }
    /// This layout with `axis` replicated.
    #[must_use]
    pub fn without(mut self, axis: Axis) -> Self {
        self.entries.retain(|(a, _)| *a != axis);
        self
    }
    /// The placement along `axis`, `None` when replicated.
    pub fn get(&self, axis: Axis) -> Option<Placement> {
        self.entries.iter().find(|(a, _)| *a == axis).map(|(_, p)| *p)
    }
    /// All non-replicated axes.
    pub fn entries(&self) -> &[(Axis, Placement)] {
        &self.entries
    }
    /// The axis over which this tensor is a sum still to be taken.
    pub fn partial_axis(&self) -> Option<Axis> {
        self.entries.iter().find(|(_, p)| *p == Placement::Partial).map(|(a, _)| *a)
    }
    /// The axis that cuts dimension `dim`.
    pub fn shard_axis(&self, dim: u8) -> Option<Axis> {
        self.entries.iter().find(|(_, p)| *p == Placement::Shard(dim)).map(|(a, _)| *a)
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.entries.is_empty() {
            return f.write_str("replicated");
        }
        for (i, (axis, placement)) in self.entries.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            match placement {
                Placement::Shard(d) => write!(f, "shard{d}@{}", axis.name())?,
                Placement::Partial => write!(f, "partial@{}", axis.name())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_split_in_whole_units_or_not_at_all() {
        let heads = Segment::new(64, 192);
        assert_eq!(heads.part(3, 8), Some(24..32));
        assert_eq!(heads.part(0, 3), None);
        let kv = Segment::replicable(4, 128);
        assert_eq!(kv.part(5, 8), Some(2..3));
        assert_eq!(kv.part(1, 2), Some(2..4));
        assert_eq!(kv.part(1, 6), None);
    }
}
