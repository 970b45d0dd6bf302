//! What an MoE model computes, and on what split.
//!
//! `config.json` becomes a [`ModelSpec`]; a spec and a [`Step`] become a [`Graph`] of one forward pass;
//! a [`Deployment`] turns that graph into the sharded graph every rank runs (single program, many ranks).
//! Nothing here knows about GPUs, time or files other than the configuration.

pub mod build;
pub mod config;
pub mod deployment;
pub mod dim;
pub mod draft;
pub mod dtype;
pub mod fuse;
pub mod graph;
pub mod ids;
pub mod op;
pub mod plan;
pub mod render;
pub mod rope;
pub mod shard;
pub mod spec;
pub mod step;
mod summary;
pub mod text;
pub mod verify;
pub mod weight;
pub mod zoo;

pub use build::BuildOptions;
pub use deployment::{AllToAll, Axis, Deployment, ExpertPlacement};
pub use dim::{Dim, Layout, Placement, Segment};
pub use dtype::{DType, WeightFormat};
pub use graph::{Graph, Node, Tensor, TensorKind};
pub use ids::{IdVec, NodeId, RankId, TensorId};
pub use op::{Op, OpClass};
pub use plan::{PlanError, plan};
pub use shard::{ShardError, shard};
pub use spec::ModelSpec;
pub use step::{LogitsRows, Phase, Sequence, Step};
pub use verify::verify;
pub use weight::{WeightRef, WeightRole};
