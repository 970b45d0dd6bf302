//! From a model, a step and a deployment to the verified graph that every rank runs.

use crate::build::{self, BuildError, BuildOptions};
use crate::deployment::Deployment;
use crate::graph::Graph;
use crate::shard::{ShardError, shard};
use crate::spec::ModelSpec;
use crate::step::Step;
use crate::verify::{Fault, verify};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The model or the step contradicts itself.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The deployment cannot hold the model.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The pass made a graph that breaks a rule: an error of this crate, not of the input.
    #[error("the sharded graph breaks {} rules, the first: {}", .0.len(), .0.first().map(ToString::to_string).unwrap_or_default())]
    Verify(Vec<Fault>),
}

/// Builds, shards and verifies.
pub fn plan(spec: &ModelSpec, step: &Step, deployment: &Deployment, options: &BuildOptions) -> Result<Graph, PlanError> {
    let options = BuildOptions { absorbed: options.absorbed || deployment.dcp > 1, ..*options };
    let graph = build::forward(spec, step, &options)?;
    let graph = shard(&graph, deployment)?;
    verify(&graph).map_err(PlanError::Verify)?;
    Ok(graph)
}
