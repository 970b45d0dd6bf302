//! Collectives on the CPU: every member's operands in, every member's results out, sums in group order.

use moetwin_kernels::reference::collective::{
    CollectiveError, DispatchSource, GatherPart, all_gather, all_reduce, combine, dispatch, held_ranges, reduce_scatter,
};
use moetwin_kernels::reference::{Array, LocalContext, Real, ReferenceError, run};
use moetwin_models::graph::SplitError;
use moetwin_models::{Graph, Node, NodeId, Op, RankId};
use std::ops::Range;

/// One member's part in a collective.
pub(crate) struct Member<T> {
    pub(crate) rank: RankId,
    pub(crate) inputs: Vec<Array<T>>,
    /// Pre-sized and poisoned.
    pub(crate) outputs: Vec<Array<T>>,
}

/// Why a collective cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// A tensor that cannot be cut.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// Arrays that do not fit together.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The arithmetic behind a sum.
    #[error(transparent)]
    Local(#[from] ReferenceError),
    /// A dispatch whose rows no experts read.
    #[error("nothing reads what this dispatch delivers")]
    NoExperts,
}

/// Carries out a collective.
pub(crate) fn exchange<T: Real>(graph: &Graph, id: NodeId, members: &mut [Member<T>]) -> Result<(), ExchangeError> {
    let node = &graph.nodes[id];
    // Results are taken out while operands are borrowed from all members.
    let mut outputs: Vec<Vec<Array<T>>> = members.iter_mut().map(|m| std::mem::take(&mut m.outputs)).collect();
    for (i, out) in outputs.iter_mut().enumerate() {
        receive(graph, node, members, i, out)?;
    }
    members.iter_mut().zip(outputs).for_each(|(m, out)| m.outputs = out);
    Ok(())
}

/// Computes the results of member `index`.
fn receive<T: Real>(graph: &Graph, node: &Node, members: &[Member<T>], index: usize, out: &mut [Array<T>]) -> Result<(), ExchangeError> {
    let rank = members[index].rank;
    let parts: Vec<&Array<T>> = members.iter().map(|m| &m.inputs[0]).collect();
    match node.op {
        Op::AllReduce { .. } => all_reduce(&parts, &mut out[0])?,
        Op::AllReduceAddRmsNorm { eps, .. } => {
            let mut sum = members[index].inputs[0].clone();
            all_reduce(&parts, &mut sum)?;
            let [_, residual, weight] = members[index].inputs.as_slice() else { return Err(CollectiveError::NoParts.into()) };
            run(&Op::AddRmsNorm { eps }, &LocalContext::default(), &[&sum, residual, weight], out)?;
        }
        Op::ReduceScatter { dim, .. } => {
            let kept = held_ranges(graph, node.inputs[0], node.outputs[0], dim, rank)?;
            reduce_scatter(&parts, dim, &kept, &mut out[0])?;
        }
        Op::AllGather { dim, .. } => {
            let mut gathered = Vec::with_capacity(members.len());
            for m in members {
                let ranges = held_ranges(graph, node.outputs[0], node.inputs[0], dim, m.rank)?;
                gathered.push(GatherPart { array: &m.inputs[0], ranges });
            }
            all_gather(&gathered, dim, &mut out[0])?;
        }
        Op::Dispatch => {
            let held = experts_held(graph, node, rank)?;
            let sources: Vec<_> =
                members.iter().map(|m| DispatchSource { x: &m.inputs[0], ids: &m.inputs[1], weights: &m.inputs[2] }).collect();
            let results: &mut [Array<T>; 3] = out.try_into().map_err(|_| CollectiveError::NoParts)?;
            dispatch(&sources, held, results)?;
        }
        Op::Combine => combine(&parts, index, &mut out[0])?,
        _ => unreachable!("only collectives have a group"),
    }
    Ok(())
}

/// The expert slots of the rank: those of the `Experts` node that reads what this dispatch delivers.
fn experts_held(graph: &Graph, dispatch: &Node, rank: RankId) -> Result<Range<i32>, ExchangeError> {
    let reads = |n: &Node| matches!(n.op, Op::Experts { .. }) && n.inputs.first() == dispatch.outputs.first();
    let (_, experts) = graph.nodes.iter().find(|(_, n)| reads(n)).ok_or(ExchangeError::NoExperts)?;
    let slots = graph.local_shape(experts.inputs[3], rank)?[0].clone();
    Ok(i32::try_from(slots.start).unwrap_or(i32::MAX)..i32::try_from(slots.end).unwrap_or(i32::MAX))
}
