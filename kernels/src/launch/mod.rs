//! Which CUDA kernels carry out an op on a rank: names, grids, arguments. Plain data, no FFI; the GPU executor fills in the addresses.

mod attention;
mod matrix;
pub mod one_shot;
mod plan;
mod router;
pub mod storage;
#[cfg(test)]
mod tests;
pub mod tuning;

pub use plan::{HOPPER_SHARED_BYTES, LaunchError, SHARED_LIMIT_BYTES, launches, launches_with, row_block};
pub use router::{carried_by, carrier_of};
pub use storage::{Storage, storage_of};
pub use tuning::{Choice, Tuning};

use moetwin_models::op::LinearRole;
use moetwin_models::{DType, Graph, Op, TensorId, TensorKind, WeightFormat, WeightRole};

/// The CUDA C++ sources, compiled at run time. Headers are included by name.
pub const SOURCES: &[Source] = &[
    Source { name: "elementwise.cu", text: include_str!("../../cuda/elementwise.cu") },
    Source { name: "linear.cu", text: include_str!("../../cuda/linear.cu") },
    Source { name: "linear_tile.cu", text: include_str!("../../cuda/linear_tile.cu") },
    Source { name: "linear_hopper.cu", text: include_str!("../../cuda/linear_hopper.cu") },
    Source { name: "attention.cu", text: include_str!("../../cuda/attention.cu") },
    Source { name: "decode.cu", text: include_str!("../../cuda/decode.cu") },
    Source { name: "decode_mla.cu", text: include_str!("../../cuda/decode_mla.cu") },
    Source { name: "decode_mla_hopper.cu", text: include_str!("../../cuda/decode_mla_hopper.cu") },
    Source { name: "route.cu", text: include_str!("../../cuda/route.cu") },
    Source { name: "experts.cu", text: include_str!("../../cuda/experts.cu") },
    Source { name: "experts_bf16.cu", text: include_str!("../../cuda/experts_bf16.cu") },
    Source { name: "experts_int4.cu", text: include_str!("../../cuda/experts_int4.cu") },
    Source { name: "experts_fp8.cu", text: include_str!("../../cuda/experts_fp8.cu") },
    Source { name: "exchange.cu", text: include_str!("../../cuda/exchange.cu") },
    Source { name: "measure.cu", text: include_str!("../../cuda/measure.cu") },
    Source { name: "synthetic.cu", text: include_str!("../../cuda/synthetic.cu") },
];

/// What the sources include, beside CUDA's own headers.
pub const HEADERS: &[Source] = &[
    Source { name: "common.cuh", text: include_str!("../../cuda/common.cuh") },
    Source { name: "activation.cuh", text: include_str!("../../cuda/activation.cuh") },
    Source { name: "experts.cuh", text: include_str!("../../cuda/experts.cuh") },
    Source { name: "experts_staged.cuh", text: include_str!("../../cuda/experts_staged.cuh") },
    Source { name: "mma.cuh", text: include_str!("../../cuda/mma.cuh") },
    Source { name: "norm.cuh", text: include_str!("../../cuda/norm.cuh") },
    Source { name: "shape.cuh", text: include_str!("../../cuda/shape.cuh") },
    Source { name: "weights.cuh", text: include_str!("../../cuda/weights.cuh") },
    Source { name: "wgmma.cuh", text: include_str!("../../cuda/wgmma.cuh") },
];

/// A file of CUDA C++.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// File name.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The source file that defines it.
    pub source: &'static str,
    /// The kernel's name.
    pub kernel: &'static str,
    /// Blocks along x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// Arguments in order.
    pub args: Vec<Arg>,
    /// What it computes, where that is a product that a matrix library may compute instead. Then the first arguments are the addresses of x, w,
    /// the bias and y.
    pub product: Option<DenseProduct>,
}

/// `y[rows, n] = x[rows, k] w[n, k]^T`, plus a bias of `n` where it has one: bf16, whole rows side by side, sums in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DenseProduct {
    /// Token rows.
    pub rows: u64,
    /// Columns of the result.
    pub n: u64,
    /// The contracted dimension.
    pub k: u64,
    /// Whether a bias is added.
    pub biased: bool,
}

/// Token rows from which a product is offered to a matrix library: a captured decode step of fewer rows keeps our kernels, which chain. At 32 and
/// 64 rows cuBLASLt took 0.6 to 0.85 of our time on an H200 (2026-11-30, projections of Kimi-K2.5 and Qwen3-30B-A3B).
pub const LIBRARY_ROWS: u64 = 17;

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// Address of the node's operand with this index; from the number of its operands on those of the node that it carries ([`carried_by`]).
    Input(usize),
    /// Address inside the node's operand with this index.
    InputAt {
        /// The operand.
        index: usize,
        /// Byte offset.
        offset: u64,
    },
    /// Address of the node's result with this index.
    Output(usize),
    /// Address in the rank's scratch memory.
    Scratch {
        /// Byte offset.
        offset: u64,
    },
    /// Address of a constant table; equal tables may share storage.
    Table(Table),
    /// Address of the sequences whose rows the operands hold.
    Sequences,
    /// Address of the rank's record of faults on the device (`Fault` in exchange.cu).
    Fault,
    /// A null address: the operand is absent.
    Null,
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    U64(u64),
    /// A float.
    F32(f32),
}

/// Constants that a kernel reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Table {
    /// Doubles (rotary frequencies).
    F64(Vec<f64>),
    /// Integers (expert slots).
    I32(Vec<i32>),
}

/// The launches of one command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Launches {
    /// In order.
    pub launches: Vec<Launch>,
    /// Scratch memory that they use.
    pub scratch_bytes: u64,
}

/// Element type in device memory. The kernels compute on bf16 whatever the checkpoint's type; what decides the routing stays f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// bfloat16.
    Bf16,
    /// 32-bit float.
    F32,
    /// 32-bit integer.
    I32,
}

impl Element {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Element::Bf16 => 2,
            Element::F32 | Element::I32 => 4,
        }
    }
}

/// The element type that a tensor has in device memory.
pub fn element_of(graph: &Graph, tensor: TensorId) -> Element {
    let t = &graph.tensors[tensor];
    if let TensorKind::Weight(w) = t.kind {
        // A router stored in bf16 loses nothing by staying so: products and sums are f32.
        let exact = w.role == WeightRole::CorrectionBias || (w.role == WeightRole::Router && w.format != WeightFormat::Bf16);
        return if exact { Element::F32 } else { Element::Bf16 };
    }
    if t.dtype == DType::I32 {
        return Element::I32;
    }
    let Some(node) = t.producer.map(|n| &graph.nodes[n]) else { return Element::Bf16 };
    match node.op {
        Op::Linear { role: LinearRole::Router } | Op::Route { .. } => Element::F32,
        Op::Dispatch if node.outputs.get(2) == Some(&tensor) => Element::F32,
        // What only moves values keeps their type.
        Op::AllGather { .. } | Op::Slice { .. } | Op::SendRecv { .. } => element_of(graph, node.inputs[0]),
        _ => Element::Bf16,
    }
}
