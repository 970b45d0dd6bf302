//! What a command costs on a GPU: measured kernel times where tables have them, a roofline with floors elsewhere.
//!
//! Times are of kernels in a captured graph whose weights come from memory, not from a warm L2. Every cost says how much of it
//! shrinks with a faster memory or a faster multiplier, and where the figure comes from.

mod attention;
pub mod catalog;
mod experts;
mod gemm;
pub mod import;
pub mod imported;
mod interpolate;
mod left_out;
mod own;
mod own_exchange;
mod query;
mod rates;
pub mod table;
mod tables;

pub use catalog::Kernels;
pub use imported::{ImportedSet, ImportedTables};
pub use left_out::render_left_out;
pub use own::{OwnError, OwnJoins, OwnKernels, OwnRow, OwnWork};
pub use own_exchange::{OwnExchange, medians, quotient_at};
pub use query::{CacheType, GqaShape, Query};
pub use rates::{Element, GpuRates};
pub use tables::{FamilyError, KernelTables, family_errors, family_totals};

use interpolate::Fit;
use moetwin_kernels::cost::{CostFacts, CostShape};
use moetwin_kernels::launch::carrier_of;
use moetwin_models::{Graph, NodeId, Op, RankId};
use rates::family_floor_us;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
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
    /// Standard error of the duration, parts in a thousand.
    pub error_permille: u32,
}

impl OpCost {
    /// No kernel, no time.
    pub const NOTHING: Self = Self {
        duration_ps: 0,
        memory_ps: 0,
        compute_ps: 0,
        kernels: 0,
        provenance: Provenance::Modelled,
        bound: Bound::Launch,
        error_permille: 0,
    };
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
    /// Which of several sets of tables it is from.
    set: usize,
    /// Standard error, as a share of the time.
    error: f64,
    /// Whether the time covers the kernels beside the main one.
    whole: bool,
}

impl Estimate {
    fn new(us: f64, fit: Fit) -> Self {
        Self { us, fit, set: 0, error: 0.0, whole: false }
    }
}

/// Measured times of one GPU and implementation.
pub trait CostTable {
    /// The time of a kernel on the table's GPU; `None` where nothing comparable was measured.
    fn estimate(&self, query: &Query) -> Option<Estimate>;
    /// Rates of the GPU that an estimate's time was taken on.
    fn rates(&self, estimate: &Estimate) -> &GpuRates;
    /// Whether that is the GPU asked about, and not a stand-in.
    fn same_product(&self, estimate: &Estimate) -> bool;
}

/// A kernel that moves little: launch, a trip through L2, tail. 2.5 us is what norms and rotations take on H200 in a captured
/// graph; nodes that do nothing take 1.2 us there.
const SMALL_KERNEL_US: f64 = 2.5;

/// Costs of commands on one GPU.
#[derive(Debug)]
pub struct CostModel<T = KernelTables> {
    rates: GpuRates,
    tables: Option<T>,
    /// Times of our own kernels on this GPU, asked first.
    own: Option<OwnKernels>,
    known_own: RefCell<BTreeMap<OwnWork, Option<OpCost>>>,
    /// Layers repeat: equal questions have equal answers.
    known: RefCell<BTreeMap<Work, OpCost>>,
}

/// All that a cost depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Work {
    query: Option<Query>,
    floor: Floor,
    flops: u64,
    bytes: u64,
    kernels: u32,
}

/// What the first kernel of a command takes at least where nothing was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Floor {
    Small,
    Gemm,
    Experts,
    Mla,
    Gqa,
}

impl Floor {
    fn of(op: &Op, shape: &CostShape) -> Self {
        match (op, shape) {
            (Op::Experts { .. }, _) => Floor::Experts,
            (Op::MlaDecode { .. } | Op::MlaPrefill { .. }, _) => Floor::Mla,
            (Op::GqaAttention { .. }, _) => Floor::Gqa,
            (_, CostShape::Gemm { .. }) => Floor::Gemm,
            _ => Floor::Small,
        }
    }
    fn us(self) -> f64 {
        match self {
            Floor::Small => SMALL_KERNEL_US,
            Floor::Gemm => family_floor_us(Family::Gemm),
            Floor::Experts => family_floor_us(Family::Moe),
            Floor::Mla => family_floor_us(Family::MlaDecode),
            Floor::Gqa => family_floor_us(Family::GqaDecode),
        }
    }
    /// Kernels that a table's row, or the floor, covers together with the first.
    fn covers_all(self) -> bool {
        matches!(self, Floor::Experts | Floor::Mla | Floor::Gqa)
    }
}

impl<T: CostTable> CostModel<T> {
    /// Costs on a GPU with these rates, from tables where there are any.
    pub fn new(rates: GpuRates, tables: Option<T>) -> Self {
        Self { rates, tables, own: None, known_own: RefCell::default(), known: RefCell::default() }
    }
    /// The same where our own kernels run and were measured.
    pub fn with_own(self, own: Option<OwnKernels>) -> Self {
        Self { own, ..self }
    }
    /// What our own kernels take, where they were measured.
    fn own_cost(&self, graph: &Graph, node: NodeId, rank: RankId, facts: &CostFacts) -> Option<OpCost> {
        let own = self.own.as_ref()?;
        // The choice's kernel computes these logits.
        if carrier_of(graph, node, rank).is_some() {
            return Some(OpCost::NOTHING);
        }
        let work = OwnWork::of(graph, node, rank, facts)?;
        if let Some(known) = self.known_own.borrow().get(&work) {
            return *known;
        }
        let cost = own.cost(&work, &self.rates);
        self.known_own.borrow_mut().insert(work, cost);
        cost
    }
    /// The tables.
    pub fn tables(&self) -> Option<&T> {
        self.tables.as_ref()
    }
    /// The cost of the command that carries out `node` on `rank`.
    pub fn cost(&self, graph: &Graph, node: NodeId, rank: RankId, facts: &CostFacts) -> OpCost {
        if facts.kernels == 0 {
            return OpCost::NOTHING;
        }
        if let Some(cost) = self.own_cost(graph, node, rank, facts) {
            return cost;
        }
        let node = &graph.nodes[node];
        let bytes = facts.weight_bytes.saturating_add(facts.read_bytes).saturating_add(facts.write_bytes);
        let work = Work {
            query: Query::of(graph, node, rank, facts),
            floor: Floor::of(&node.op, &facts.shape),
            flops: facts.flops,
            bytes,
            kernels: facts.kernels,
        };
        if let Some(&known) = self.known.borrow().get(&work) {
            return known;
        }
        let cost = self.compute(&work);
        self.known.borrow_mut().insert(work, cost);
        cost
    }
    fn compute(&self, work: &Work) -> OpCost {
        let found = work.query.and_then(|q| self.tables.as_ref().and_then(|t| Some((t, t.estimate(&q)?))));
        match found {
            Some((table, estimate)) => self.tabled(table, estimate, work),
            None => self.roofline(work),
        }
    }
    /// A measured time, its memory and compute parts moved to this GPU's rates.
    fn tabled(&self, table: &T, estimate: Estimate, work: &Work) -> OpCost {
        let (here, there) = (&self.rates, table.rates(&estimate));
        let (bytes, flops, element) = (work.bytes as f64, work.flops as f64, work.element());
        let (memory, compute) = (there.memory_us(bytes).min(estimate.us), there.compute_us(flops, element).min(estimate.us));
        let rest = estimate.us - memory.max(compute) + if estimate.whole { 0.0 } else { work.extra_us() };
        let provenance = match estimate.fit {
            Fit::Exact if table.same_product(&estimate) => Provenance::Measured,
            Fit::Exact | Fit::Inside => Provenance::Interpolated,
            Fit::Outside => Provenance::Modelled,
        };
        let memory = memory / there.memory_us(1.0) * here.memory_us(1.0);
        let compute = compute / there.compute_us(1.0, element) * here.compute_us(1.0, element);
        op_cost(rest, memory, compute, work.kernels, provenance, estimate.error)
    }
    /// Floor of the kernels + the longer of moving bytes and computing.
    fn roofline(&self, work: &Work) -> OpCost {
        let (memory, compute) = (self.rates.memory_us(work.bytes as f64), self.rates.compute_us(work.flops as f64, work.element()));
        op_cost(work.floor.us() + work.extra_us(), memory, compute, work.kernels, Provenance::Modelled, ROOFLINE_ERROR)
    }
}

impl Work {
    /// How the weights are stored; what is multiplied without weights is bf16.
    fn element(&self) -> Element {
        match self.query {
            Some(Query::Gemm(_, element) | Query::Experts(_, element)) => element,
            _ => Element::Bf16,
        }
    }
    /// Microseconds of kernels beside the main one (a quantization before a product).
    fn extra_us(&self) -> f64 {
        if self.floor.covers_all() { 0.0 } else { f64::from(self.kernels.saturating_sub(1)) * SMALL_KERNEL_US }
    }
}

/// Standard error of a time from rates and floors, as a share of it: kernels reach 0.6 to 0.95 of the memory rate, and floors vary as much.
const ROOFLINE_ERROR: f64 = 0.25;

fn op_cost(rest_us: f64, memory_us: f64, compute_us: f64, kernels: u32, provenance: Provenance, error: f64) -> OpCost {
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
    let error_permille = libm::rint(error * 1e3) as u32;
    let duration_ps = ps(rest_us + longest);
    OpCost { duration_ps, memory_ps: ps(memory_us), compute_ps: ps(compute_us), kernels, provenance, bound, error_permille }
}

#[cfg(test)]
mod tests;
