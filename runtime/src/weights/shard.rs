//! Which part of a weight a rank holds, in global indices.

use moetwin_models::{Axis, Dim, Graph, RankId, TensorId, step};
use std::ops::Range;

use super::load::LoadError;

/// Global indices along every dimension of a tensor, in the order in which the rank stores them.
///
/// The number of indices along a dimension is what [`Graph::local_sizes`] says. Experts are logical ones: one run a slot.
pub fn held_indices(graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Vec<Vec<Range<u64>>>, LoadError> {
    // It refuses splits that are not exact; what follows relies on that.
    let local = graph.local_shape(tensor, rank)?;
    let t = &graph.tensors[tensor];
    let d = &graph.deployment;
    let dims = t.shape.iter().zip(local).enumerate();
    dims.map(|(i, (dim, local))| {
        let axis = t.layout.shard_axis(i as u8);
        let (part, parts) = axis.map_or((0, 1), |a: Axis| (d.axis_index(a, rank), d.axis_size(a)));
        Ok(match dim {
            Dim::Fixed(_) => vec![local],
            Dim::Vocab(n) => vec![step::chunk(*n, part, parts)],
            Dim::Packed(segments) => {
                let mut first = 0;
                let mut runs: Vec<Range<u64>> = Vec::new();
                for segment in segments {
                    let width = u64::from(segment.width);
                    let units = segment.part(part, parts).expect("local_shape refuses inexact splits");
                    push_run(&mut runs, first + u64::from(units.start) * width..first + u64::from(units.end) * width);
                    first += segment.elements();
                }
                runs
            }
            Dim::Experts(_) => match &d.placement {
                None => vec![local],
                Some(placement) => {
                    let mut runs = Vec::new();
                    for slot in local {
                        let logical = u64::from(placement.physical_to_logical[slot as usize]);
                        push_run(&mut runs, logical..logical + 1);
                    }
                    runs
                }
            },
            Dim::Tokens | Dim::LogitsRows | Dim::KvRows | Dim::Received => return Err(LoadError::NotAWeight { tensor: t.name.clone() }),
        })
    })
    .collect()
}

/// Appends a run, joined to the last one where they touch.
fn push_run(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => runs.push(run),
    }
}
