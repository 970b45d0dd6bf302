//! Weights: what a checkpoint holds, what a model needs of it, and each rank's share as values.
//!
//! [`Checkpoint`] reads headers and maps files; [`Naming`] says where a checkpoint keeps a weight of the graph; [`CheckpointWeights`]
//! checks that nothing is missing or left over and hands a rank its share, reading only the bytes of that share.

mod checkpoint;
mod complete;
mod fault;
mod header;
mod load;
mod map;
pub mod naming;
mod routed;
mod shard;
pub mod source;
mod stored;
mod synthetic;
mod write;

pub use checkpoint::{Checkpoint, INDEX_FILE, MAX_SHARDS, SINGLE_FILE, StoredTensor, parse_index};
pub use complete::{Layers, faults, weights_of};
pub use fault::{CheckpointError, Fault};
pub use header::{LENGTH_BYTES, MAX_HEADER_BYTES};
pub use load::{CheckpointWeights, LoadError, WeightSource, load_weight};
pub use naming::Naming;
pub use routed::UnroutableModel;
pub use shard::held_indices;
pub use stored::StoredType;
pub use synthetic::{Grid, Recipe, SyntheticWeights, first_layers};
pub use write::{OutTensor, OutValues, write_safetensors, write_to};

#[cfg(test)]
mod tests;
