//! A program's named results, put together from the ranks that hold their parts.

use super::executor::{ExecuteError, first_token_of_replica};
use crate::program::{BufferId, Program};
use moetwin_kernels::reference::collective::{GatherPart, all_gather};
use moetwin_kernels::reference::{Array, Real};
use moetwin_models::{Dim, Graph, LogitsRows, RankId, TensorId};
use std::ops::Range;

/// A named result of a step, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedValue<T> {
    /// Name in the graph's outputs.
    pub name: String,
    /// Value over the whole batch.
    pub value: Array<T>,
}

/// Assembles every named result. `peek` gives what a rank's buffer holds; where ranks hold the same rows, the first one's are taken.
pub fn collect<'a, T: Real + 'a>(
    program: &Program,
    peek: impl Fn(RankId, BufferId) -> Option<&'a Array<T>>,
) -> Result<Vec<NamedValue<T>>, ExecuteError> {
    let graph = &program.graph;
    let mut values = Vec::with_capacity(graph.outputs.len());
    for (name, tensor) in &graph.outputs {
        let mut parts = Vec::new();
        for (rank, rp) in program.ranks.iter() {
            let buffer = rp.buffers.iter().find(|(_, b)| b.tensor == *tensor).map(|(id, _)| id);
            if let Some(array) = buffer.and_then(|b| peek(rank, b)) {
                parts.push(GatherPart { array, ranges: vec![global_rows(graph, *tensor, rank)?] });
            }
        }
        let mut value: Array<T> = Array::poisoned(&global_sizes(graph, *tensor), graph.tensors[*tensor].dtype);
        all_gather(&parts, 0, &mut value).map_err(|source| ExecuteError::Output { name: name.clone(), source })?;
        values.push(NamedValue { name: name.clone(), value });
    }
    Ok(values)
}

/// The rows of the whole batch that a rank holds of a result.
fn global_rows(graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Range<usize>, ExecuteError> {
    let rows = graph.local_shape(tensor, rank)?[0].clone();
    let first = match (&graph.tensors[tensor].shape[0], graph.step.logits) {
        (Dim::LogitsRows, LogitsRows::Last) => graph.deployment.replica_sequences(&graph.step, rank).start,
        _ => first_token_of_replica(graph, rank),
    };
    Ok(first + rows.start as usize..first + rows.end as usize)
}

fn global_sizes(graph: &Graph, tensor: TensorId) -> Vec<usize> {
    graph.tensors[tensor].shape.iter().map(|d| global_size(graph, d) as usize).collect()
}

fn global_size(graph: &Graph, dim: &Dim) -> u64 {
    match dim {
        Dim::Tokens => graph.step.tokens(),
        Dim::LogitsRows => graph.step.logits_rows(),
        Dim::KvRows => graph.step.kv_rows(),
        Dim::Received => 0,
        Dim::Fixed(n) | Dim::Vocab(n) | Dim::Experts(n) => *n,
        Dim::Packed(segments) => segments.iter().map(|s| s.elements()).sum(),
    }
}
