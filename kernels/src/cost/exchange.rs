//! Ops that exchange data: their messages.

use super::CostFacts;
use super::experts::Question;
use super::local::{Local, LocalTensor, product, total};
use crate::routing::RoutingLoad;
use moetwin_models::graph::SplitError;
use moetwin_models::{AllToAll, Axis, Op};

/// All-reduce, all-gather, reduce-scatter and pipeline sends.
pub(super) fn message(local: &Local<'_>) -> CostFacts {
    let (read_bytes, write_bytes) = (local.input(0).bytes(), local.written());
    let message_bytes = match local.node.op {
        // What a rank holds afterwards; all others hold the message beforehand.
        Op::AllGather { .. } => write_bytes,
        _ => read_bytes,
    };
    CostFacts { read_bytes, write_bytes, message_bytes, ..CostFacts::default() }
}

/// An all-reduce with a norm: the sum's message, and what the norm does to it. The sum itself is not written and read again.
pub(super) fn normed_message(local: &Local<'_>) -> CostFacts {
    CostFacts { message_bytes: local.input(0).bytes(), ..super::elementwise(local) }
}

/// Dispatch and combine.
pub(super) fn all_to_all(local: &Local<'_>, routing: &dyn RoutingLoad) -> Result<CostFacts, SplitError> {
    let deployment = &local.graph.deployment;
    let dispatch = local.node.op == Op::Dispatch;
    // Rows here, and what a row carries: its values, and with a dispatch the choices and their weights.
    let (own, carried) = if dispatch { (local.input(0), local.inputs()) } else { (local.output(0), &local.inputs()[..1]) };
    let row_bytes = total(carried.iter().map(LocalTensor::row_bytes));
    let ids = if dispatch { Some(local.node.inputs[1]) } else { choices_of_combine(local) };
    let copies = match (deployment.a2a, ids) {
        (AllToAll::Nccl | AllToAll::None, _) | (_, None) => {
            local.graph.received_slots(local.rank) * u64::from(deployment.axis_size(Axis::Ep))
        }
        (AllToAll::Flashinfer | AllToAll::Deepep, Some(ids)) => {
            let mut question = Question::of(local, ids, own.rows())?;
            if dispatch {
                question.tokens = super::experts::group_rows(local, local.node.inputs[0])?;
            }
            let query = question.query(local);
            // Rows that all ranks receive, and this rank's share of the tokens they come from.
            let received = total((0..query.parts).map(|part| routing.load(&query, part).rows));
            product(&[received, own.rows()]).div_ceil(question.tokens.max(1))
        }
    };
    let (message_bytes, own_bytes) = (product(&[copies, row_bytes]), product(&[own.rows(), row_bytes]));
    let (read_bytes, write_bytes) = if dispatch { (own_bytes, message_bytes) } else { (message_bytes, own_bytes) };
    Ok(CostFacts { read_bytes, write_bytes, message_bytes, ..CostFacts::default() })
}

/// The ids that the experts before a combine used.
fn choices_of_combine(local: &Local<'_>) -> Option<moetwin_models::TensorId> {
    let graph = local.graph;
    let mut tensor = *local.node.inputs.first()?;
    loop {
        let node = &graph.nodes[graph.tensors[tensor].producer?];
        match node.op {
            Op::Experts { .. } => return node.inputs.get(1).copied(),
            _ => tensor = *node.inputs.first()?,
        }
    }
}
