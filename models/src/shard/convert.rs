//! From one layout to another: which nodes, in which order.

use crate::deployment::{Axis, Deployment};
use crate::dim::{Layout, Placement};
use crate::op::Op;

/// Axes from the outermost cut of a dimension to the innermost: rows go to data-parallel groups first, then to ranks of a group.
const OUTER_TO_INNER: [Axis; 5] = [Axis::AttnDp, Axis::AttnTp, Axis::Ep, Axis::MoeTp, Axis::Tp];

/// One conversion and the layout after it.
pub(super) type Conversion = (Op, Layout);

/// The conversions that turn a value laid out as `from` into one laid out as `to`; empty when they are equal.
///
/// `to` may be partial only where `from` is.
pub(super) fn conversions(d: &Deployment, from: &Layout, to: &Layout) -> Vec<Conversion> {
    let mut now = from.clone();
    let mut steps = Vec::new();
    let push = |op: Op, layout: Layout, now: &mut Layout, steps: &mut Vec<Conversion>| {
        *now = layout.clone();
        steps.push((op, layout));
    };
    if let Some(axis) = from.partial_axis()
        && to.get(axis) != Some(Placement::Partial)
    {
        let summed = now.clone().without(axis);
        let (op, layout) = match scatter_axis(d, axis, to) {
            Some((over, dim)) => (Op::ReduceScatter { axis: over, dim }, summed.with(over, Placement::Shard(dim))),
            None => (Op::AllReduce { axis }, summed),
        };
        push(op, layout, &mut now, &mut steps);
    }
    for axis in OUTER_TO_INNER.into_iter().rev() {
        if let Some(Placement::Shard(dim)) = now.get(axis)
            && to.get(axis) != Some(Placement::Shard(dim))
        {
            let layout = now.clone().without(axis);
            push(Op::AllGather { axis, dim }, layout, &mut now, &mut steps);
        }
    }
    for axis in OUTER_TO_INNER {
        if let (Some(Placement::Shard(dim)), None) = (to.get(axis), now.get(axis)) {
            let layout = now.clone().with(axis, Placement::Shard(dim));
            push(Op::Slice { axis, dim }, layout, &mut now, &mut steps);
        }
    }
    steps
}

/// Where the sum over `axis` may be left cut, because `to` is cut over the same ranks.
fn scatter_axis(d: &Deployment, axis: Axis, to: &Layout) -> Option<(Axis, u8)> {
    if let Some(Placement::Shard(dim)) = to.get(axis) {
        return Some((axis, dim));
    }
    // With one rank in each attention group, the data-parallel groups are the ranks of the stage.
    match to.get(Axis::AttnDp) {
        Some(Placement::Shard(dim)) if axis == Axis::Tp && d.axis_size(Axis::AttnTp) == 1 => Some((Axis::AttnDp, dim)),
        _ => None,
    }
}

/// How many of the conversions communicate.
pub(super) fn communications(steps: &[Conversion]) -> usize {
    steps.iter().filter(|(op, _)| op.is_communication()).count()
}
