//! A rank's memory as the reference sees it: weights, KV pool, and the arena's buffers with the aliasing of their offsets.

use crate::program::{Buffer, BufferId, Place, RankProgram};
use moetwin_kernels::reference::{Array, Real};
use moetwin_models::{Graph, IdVec, TensorKind, WeightRef};
use std::collections::BTreeMap;

/// What outlives a step on one rank.
#[derive(Debug)]
pub(super) struct RankMemory<T> {
    /// The rank's share of every weight.
    pub(super) weights: BTreeMap<WeightRef, Array<T>>,
    /// KV pool, a cache a layer: rows of all local sequences, each with the pool's capacity.
    pub(super) caches: BTreeMap<u16, Array<T>>,
}

impl<T> Default for RankMemory<T> {
    fn default() -> Self {
        Self { weights: BTreeMap::new(), caches: BTreeMap::new() }
    }
}

/// The arena of a step. Writing a buffer poisons every other buffer that shares bytes with it, as a real write would overwrite them.
#[derive(Debug)]
pub(crate) struct StepMemory<T> {
    slots: IdVec<BufferId, Option<Array<T>>>,
}

impl<T: Real> StepMemory<T> {
    /// All buffers unwritten.
    pub(crate) fn new(program: &RankProgram) -> Self {
        Self { slots: program.buffers.iter().map(|_| None).collect() }
    }
    /// The value of a buffer, `None` where nothing was written or something else overwrote it.
    pub(crate) fn peek(&self, id: BufferId) -> Option<&Array<T>> {
        self.slots[id].as_ref()
    }
    /// Stores a value.
    pub(crate) fn write(&mut self, id: BufferId, value: Array<T>) {
        self.slots[id] = Some(value);
    }
    /// Forgets whatever shares bytes with `id`, as the command that writes `id` is about to start.
    pub(crate) fn clobber(&mut self, program: &RankProgram, id: BufferId) {
        let Place::Arena { offset } = program.buffers[id].place else { return };
        let end = offset + program.buffers[id].bytes;
        for (other, buffer) in program.buffers.iter() {
            if let Place::Arena { offset: start } = buffer.place
                && start < end
                && offset < start + buffer.bytes
            {
                self.slots[other] = None;
            }
        }
    }
}

/// An unwritten array of a buffer's sizes.
pub(crate) fn poisoned<T: Real>(graph: &Graph, buffer: &Buffer) -> Array<T> {
    let sizes: Vec<usize> = buffer.sizes.iter().map(|&n| n as usize).collect();
    Array::poisoned(&sizes, graph.tensors[buffer.tensor].dtype)
}

/// The weight that a buffer holds.
pub(crate) fn weight_of(graph: &Graph, buffer: &Buffer) -> Option<WeightRef> {
    match graph.tensors[buffer.tensor].kind {
        TensorKind::Weight(w) => Some(w),
        _ => None,
    }
}

/// The layer whose cache a buffer is.
pub(crate) fn cache_layer(graph: &Graph, buffer: &Buffer) -> Option<u16> {
    match graph.tensors[buffer.tensor].kind {
        TensorKind::Cache { layer } => Some(layer),
        _ => None,
    }
}
