//! How tokens choose experts, for costs: which load each expert-parallel rank gets.
//!
//! A load is that of a routing drawn token by token, not an average: what a step waits for is the busiest rank, and the mean of the
//! maximum is not the maximum of the mean. Every layer gets another one of a pool of drawn routings, spread evenly from the least to
//! the most uneven, so that sums over layers are close to the expectation.

mod distribution;
mod recorded;
mod sample;

#[cfg(test)]
mod tests;

pub use distribution::{Distribution, RoutingError, RoutingHistogram};
pub use recorded::RecordedRouting;
pub use sample::{RoutingStatistics, SampledRouting};

use moetwin_models::ExpertPlacement;

/// A question about the routing of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutingQuery<'a> {
    /// Decoder layer.
    pub layer: u16,
    /// Tokens that choose, over all ranks whose choices can meet.
    pub tokens: u64,
    /// Experts a token goes to.
    pub topk: u32,
    /// Logical experts.
    pub experts: u32,
    /// Contiguous groups of experts.
    pub groups: u32,
    /// Groups a token may choose from.
    pub topk_groups: u32,
    /// Expert-parallel ranks; each holds an equal run of experts, or of slots.
    pub parts: u32,
    /// Experts in each physical slot; `None`: expert `i` in slot `i`.
    pub placement: Option<&'a ExpertPlacement>,
}

/// What one expert-parallel rank gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Distinct experts (slots) that at least one token chose.
    pub distinct: u64,
    /// Token-expert pairs.
    pub pairs: u64,
    /// Tokens with at least one expert here.
    pub rows: u64,
}

/// How tokens choose experts.
pub trait RoutingLoad {
    /// The load of expert-parallel rank `index`.
    fn load(&self, query: &RoutingQuery<'_>, index: u32) -> Load;
}
