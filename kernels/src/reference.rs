//! The CPU reference of every op: plain, fixed-order arithmetic, generic over `f32` and `f64`.

use moetwin_models::{Op, Sequence};

/// Values of a tensor on one rank, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T> {
    /// Local sizes along every dimension.
    pub sizes: Vec<usize>,
    /// Elements.
    pub data: Data<T>,
}

/// Elements of an [`Array`].
#[derive(Clone, Debug, PartialEq)]
pub enum Data<T> {
    /// Real numbers.
    Real(Vec<T>),
    /// Ids.
    Int(Vec<i32>),
}

/// What a rank knows beside the operands.
pub struct LocalContext<'a> {
    /// The sequences whose rows the operands hold, in row order.
    pub sequences: &'a [CacheSlot],
    /// First id of the vocabulary slice held here.
    pub vocab_start: usize,
    /// Whether this rank adds the bias of a row-parallel projection.
    pub adds_bias: bool,
    /// First expert slot held here (ids in `Experts` are global).
    pub expert_start: usize,
    /// Replica-wide index of the first token row held here.
    pub first_token: usize,
    /// Slots of each logical expert ([`Op::PlaceExperts`]); empty where the deployment has no placement.
    pub expert_slots: &'a [Vec<u32>],
}

/// One sequence's rows in a step and its place in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSlot {
    /// Past and new tokens.
    pub sequence: Sequence,
    /// First cache row.
    pub cache_start: usize,
}

/// Runs one op.
pub fn run<T>(op: &Op, context: &LocalContext<'_>, inputs: &[&Array<T>], outputs: &mut [Array<T>]) {
    let _ = (op, context, inputs, outputs);
}
