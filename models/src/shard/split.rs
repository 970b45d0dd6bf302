//! Whether a dimension of a weight or a cache can be cut, and into how many parts it could be.

use super::fault::{Reason, SplitFault};
use crate::deployment::{Axis, Deployment};
use crate::dim::{Dim, Placement};
use crate::graph::{Tensor, TensorKind};
use crate::{WeightFormat, WeightRole};

/// The largest part count that is tried when legal ones are listed.
const MOST_PARTS: u32 = 4096;

/// Faults of every cut dimension of a source tensor.
pub(crate) fn faults(d: &Deployment, tensor: &Tensor) -> Vec<SplitFault> {
    let mut faults = Vec::new();
    for (axis, placement) in tensor.layout.entries() {
        let Placement::Shard(index) = *placement else { continue };
        let Some(dim) = tensor.shape.get(usize::from(index)) else { continue };
        let parts = d.axis_size(*axis);
        let block = block(tensor, usize::from(index));
        let slots = d.placement.as_ref().map(|p| p.physical_to_logical.len() as u64);
        if let Some(reason) = reason(dim, parts, block, slots) {
            faults.push(SplitFault {
                tensors: vec![tensor.name.clone()],
                subject: subject(tensor, dim, slots.is_some()),
                axis: *axis,
                parts,
                reason,
                format: if let TensorKind::Weight(w) = tensor.kind { Some(w.format) } else { None },
                legal: (1..=MOST_PARTS.min(most(dim, slots))).filter(|&n| self::reason(dim, n, block, slots).is_none()).collect(),
            });
        }
    }
    faults
}

/// Elements of dimension `index` that share a scale.
fn block(tensor: &Tensor, index: usize) -> u64 {
    let TensorKind::Weight(w) = tensor.kind else { return 1 };
    match (tensor.shape.len(), index) {
        (n, i) if n >= 2 && i + 2 == n => w.format.granularity().0,
        (n, i) if n >= 2 && i + 1 == n => w.format.granularity().1,
        _ => 1,
    }
}

/// Why `parts` ranks cannot share a dimension, if they cannot.
fn reason(dim: &Dim, parts: u32, block: u64, slots: Option<u64>) -> Option<Reason> {
    let whole = |units: u64| (!units.is_multiple_of(u64::from(parts))).then_some(Reason::Units { units });
    let scales =
        |total: u64, local: u64| (local != total && !local.is_multiple_of(block)).then_some(Reason::ScaleBlock { total, local, block });
    match dim {
        Dim::Tokens | Dim::LogitsRows | Dim::KvRows | Dim::Received | Dim::Vocab(_) => None,
        Dim::Fixed(n) => whole(*n).or_else(|| scales(*n, n / u64::from(parts))),
        Dim::Experts(n) => whole(slots.unwrap_or(*n)),
        Dim::Packed(segments) => segments.iter().find_map(|s| match s.part(0, parts) {
            None => Some(Reason::Units { units: u64::from(s.units) }),
            Some(units) => scales(s.elements(), u64::from(units.end - units.start) * u64::from(s.width)),
        }),
    }
}

/// No more parts than this can be legal.
fn most(dim: &Dim, slots: Option<u64>) -> u32 {
    let units = match dim {
        Dim::Packed(segments) => {
            let cut = segments.iter().filter(|s| !s.replicable).map(|s| u64::from(s.units)).min();
            // More parts than these repeat units, which other tensors bound.
            cut.or_else(|| segments.iter().map(|s| u64::from(s.units)).max()).unwrap_or(1)
        }
        Dim::Experts(n) => slots.unwrap_or(*n),
        Dim::Fixed(n) => *n,
        _ => 1,
    };
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// What the units of a dimension are called.
fn subject(tensor: &Tensor, dim: &Dim, placed: bool) -> &'static str {
    match (&tensor.kind, dim) {
        (_, Dim::Experts(_)) if placed => "expert slots",
        (_, Dim::Experts(_)) => "experts",
        (TensorKind::Weight(w), _) => match w.role {
            WeightRole::Qkv | WeightRole::QkvBias => "attention heads (query or key-value)",
            WeightRole::DenseGateUp | WeightRole::DenseGateUpBias | WeightRole::DenseDown => "intermediate columns",
            WeightRole::ExpertsGateUp | WeightRole::ExpertsGateUpBias | WeightRole::ExpertsDown => "expert intermediate columns",
            WeightRole::SharedGateUp | WeightRole::SharedGateUpBias | WeightRole::SharedDown => "shared expert intermediate columns",
            _ => "attention heads",
        },
        (TensorKind::Cache { .. }, _) => "key-value heads",
        _ => "units",
    }
}

/// The command-line words for the number of ranks along an axis.
pub(super) fn flag(axis: Axis) -> &'static str {
    match axis {
        Axis::Tp => "tp",
        Axis::AttnTp => "tp / dp-attention",
        Axis::AttnDp => "dp-attention",
        Axis::Ep => "ep",
        Axis::MoeTp => "tp / ep",
        Axis::HeadTp => "tp / dp-attention / dcp",
        Axis::Dcp => "dcp",
    }
}

/// Name of a format where it has scales.
pub(super) fn scaled_format(format: Option<WeightFormat>) -> String {
    format.map_or_else(|| "element".into(), WeightFormat::name)
}
