//! What a command costs on a GPU: measured kernel times where tables have them, a roofline with floors elsewhere.
//!
//! Times are of kernels in a captured graph whose weights come from memory, not from a warm L2. Every cost says how much of it
//! shrinks with a faster memory or a faster multiplier, and where the figure comes from.

mod attention;
pub mod catalog;
mod experts;
mod gemm;
pub mod import;
mod interpolate;
mod query;
mod rates;
pub mod table;
mod tables;

pub use query::{CacheType, GqaShape, Query};
pub use rates::{Element, GpuRates};
pub use tables::{FamilyError, KernelTables};

use interpolate::Fit;
use moetwin_kernels::cost::{CostFacts, CostShape};
use moetwin_models::{Graph, NodeId, Op, RankId};
use rates::family_floor_us;
use serde::Serialize;
use table::Family;

/// Where a figure comes from, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// A measurement of this shape on this GPU.
    Measured,
    /// Between such measurements, or one of them corrected for a warm cache or another clock.
    Interpolated,
    /// Computed from rates and floors.
    Modelled,
}

/// What a cost is made of, mostly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Bytes over the memory rate.
    Memory,
    /// Multiplications over the compute rate.
    Compute,
    /// What stays however fast both were: ramp-up, dependent steps inside the kernel, tail.
    Latency,
    /// Getting kernels started.
    Launch,
}

/// The cost of one command on a GPU that does nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpCost {
    /// Time on the GPU, picoseconds.
    pub duration_ps: u64,
    /// The part of it that is bytes over the memory rate, picoseconds.
    pub memory_ps: u64,
    /// The part of it that is multiplications over the compute rate, picoseconds; it overlaps the memory part.
    pub compute_ps: u64,
    /// Kernels launched.
    pub kernels: u32,
    /// Where the figure comes from.
    pub provenance: Provenance,
    /// What it is made of, mostly.
    pub bound: Bound,
}

/// Shape of a dense GEMM, `[m, k] x [n, k]^T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GemmShape {
    /// Rows.
    pub m: u64,
    /// Weight rows.
    pub n: u64,
    /// Contracted dimension.
    pub k: u64,
}

/// What a rank's routed experts compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpertsShape {
    /// Hidden size.
    pub hidden: u64,
    /// Local intermediate size.
    pub intermediate: u64,
    /// Experts held here.
    pub local_experts: u64,
    /// Distinct ones hit.
    pub distinct: u64,
    /// Token-expert pairs computed here.
    pub pairs: u64,
}

/// What a rank's attention core computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttentionShape {
    /// Query heads held here.
    pub heads: u64,
    /// Sequences.
    pub batch: u64,
    /// New tokens.
    pub tokens: u64,
    /// Cache rows read.
    pub kv_rows: u64,
}

/// A time from a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Microseconds on the GPU the table was taken on.
    us: f64,
    fit: Fit,
}

/// Measured times of one GPU and implementation.
pub trait CostTable {
    /// The time of a kernel on the table's GPU; `None` where nothing comparable was measured.
    fn estimate(&self, query: &Query) -> Option<Estimate>;
    /// Rates of the GPU the times were taken on.
    fn rates(&self) -> &GpuRates;
    /// Whether that is the GPU asked about, and not a sibling of it.
    fn same_product(&self) -> bool;
}

/// A kernel that moves little: launch, a trip through L2, tail. 2.5 us is what norms and rotations take on H200 in a captured
/// graph; nodes that do nothing take 1.2 us there.
const SMALL_KERNEL_US: f64 = 2.5;

/// Costs of commands on one GPU.
#[derive(Debug)]
pub struct CostModel<T = KernelTables> {
    rates: GpuRates,
    tables: Option<T>,
}

impl<T: CostTable> CostModel<T> {
    /// Costs on a GPU with these rates, from tables where there are any.
    pub fn new(rates: GpuRates, tables: Option<T>) -> Self {
        Self { rates, tables }
    }
    /// The tables.
    pub fn tables(&self) -> Option<&T> {
        self.tables.as_ref()
    }
    /// The cost of the command that carries out `node` on `rank`.
    pub fn cost(&self, graph: &Graph, node: NodeId, rank: RankId, facts: &CostFacts) -> OpCost {
        let node = &graph.nodes[node];
        if facts.kernels == 0 {
            return OpCost {
                duration_ps: 0,
                memory_ps: 0,
                compute_ps: 0,
                kernels: 0,
                provenance: Provenance::Modelled,
                bound: Bound::Launch,
            };
        }
        let query = Query::of(graph, node, rank, facts);
        let element = match query {
            Some(Query::Gemm(_, element) | Query::Experts(_, element)) => element,
            _ => Element::Bf16,
        };
        let found = query.and_then(|q| self.tables.as_ref().and_then(|t| Some((t, t.estimate(&q)?))));
        match found {
            Some((table, estimate)) => self.tabled(table, estimate, element, facts),
            None => self.roofline(&node.op, query.map(|q| q.family()), element, facts),
        }
    }
    /// A measured time, its memory and compute parts moved to this GPU's rates.
    fn tabled(&self, table: &T, estimate: Estimate, element: Element, facts: &CostFacts) -> OpCost {
        let bytes = bytes(facts);
        let there = table.rates();
        let (memory, compute) = (there.memory_us(bytes).min(estimate.us), there.compute_us(facts.flops as f64, element).min(estimate.us));
        let rest = estimate.us - memory.max(compute);
        let provenance = match estimate.fit {
            Fit::Exact if table.same_product() => Provenance::Measured,
            Fit::Exact | Fit::Inside => Provenance::Interpolated,
            Fit::Outside => Provenance::Modelled,
        };
        let memory = memory * there.memory_us(1.0).recip() * self.rates.memory_us(1.0);
        let compute = compute * there.compute_us(1.0, element).recip() * self.rates.compute_us(1.0, element);
        op_cost(rest, memory, compute, facts.kernels, provenance)
    }
    /// Floor of the kernels + the longer of moving bytes and computing.
    fn roofline(&self, op: &Op, family: Option<Family>, element: Element, facts: &CostFacts) -> OpCost {
        let extra = f64::from(facts.kernels.saturating_sub(1)) * SMALL_KERNEL_US;
        let first = match (family, op, &facts.shape) {
            // A fused kernel's floor covers the kernels it is made of.
            (Some(Family::Moe), ..) => family_floor_us(Family::Moe).max(extra + SMALL_KERNEL_US) - extra,
            (Some(family), ..) => family_floor_us(family),
            (None, Op::GqaAttention { .. }, _) => family_floor_us(Family::GqaDecode),
            (None, Op::MlaDecode { .. } | Op::MlaPrefill { .. }, _) => family_floor_us(Family::MlaDecode),
            (None, _, CostShape::Gemm { .. }) => family_floor_us(Family::Gemm),
            (None, ..) => SMALL_KERNEL_US,
        };
        let (memory, compute) = (self.rates.memory_us(bytes(facts)), self.rates.compute_us(facts.flops as f64, element));
        op_cost(first + extra, memory, compute, facts.kernels, Provenance::Modelled)
    }
}

/// Bytes that go through device memory.
fn bytes(facts: &CostFacts) -> f64 {
    facts.weight_bytes as f64 + facts.read_bytes as f64 + facts.write_bytes as f64
}

fn op_cost(rest_us: f64, memory_us: f64, compute_us: f64, kernels: u32, provenance: Provenance) -> OpCost {
    let longest = memory_us.max(compute_us);
    let bound = if longest <= rest_us {
        Bound::Latency
    } else if memory_us >= compute_us {
        Bound::Memory
    } else {
        Bound::Compute
    };
    // Floats become picoseconds here, once; casts saturate.
    let ps = |us: f64| libm::rint(us * 1e6) as u64;
    OpCost { duration_ps: ps(rest_us + longest), memory_ps: ps(memory_us), compute_ps: ps(compute_us), kernels, provenance, bound }
}

#[cfg(test)]
mod tests;
