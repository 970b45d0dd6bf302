//! Element types of activations and storage formats of weights.

use serde::{Deserialize, Serialize};

/// Element type of an activation, a state or an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// 8-bit float, 4 exponent bits (KV caches).
    Fp8,
    /// 32-bit signed integer (token and expert ids).
    I32,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::Bf16 | DType::F16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::Fp8 => 1,
        }
    }
    /// Lower-case name as in graph text.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::Fp8 => "fp8",
            DType::I32 => "i32",
        }
    }
}

/// How a weight matrix `[out, in]` is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightFormat {
    /// 2 bytes an element.
    Bf16,
    /// 2 bytes an element.
    F16,
    /// 4 bytes an element.
    F32,
    /// FP8 e4m3 with one f32 scale per `rows` x `cols` block.
    Fp8Block {
        /// Rows (`out`) of a scale block.
        rows: u32,
        /// Columns (`in`) of a scale block.
        cols: u32,
    },
    /// Signed 4-bit integers, symmetric, one bf16 scale per `group` elements along `in` (compressed-tensors pack-quantized).
    Int4Group {
        /// Elements along `in` that share a scale.
        group: u32,
    },
    /// NVIDIA FP4 e2m1 with one fp8 scale per 16 elements along `in` and one f32 scale a tensor.
    Nvfp4,
    /// Microscaling FP4 e2m1 with one e8m0 scale per 32 elements along `in`.
    Mxfp4,
}

impl WeightFormat {
    /// Format of a weight that is stored unquantized in a model of element type `dtype`.
    pub fn plain(dtype: DType) -> Self {
        match dtype {
            DType::F16 => WeightFormat::F16,
            DType::F32 => WeightFormat::F32,
            DType::Bf16 | DType::Fp8 | DType::I32 => WeightFormat::Bf16,
        }
    }
    /// Bytes of a `[rows, cols]` matrix in this format, scales included.
    ///
    /// Block and group counts round up, as the checkpoint formats do.
    pub fn matrix_bytes(self, rows: u64, cols: u64) -> u64 {
        let elements = rows * cols;
        match self {
            WeightFormat::Bf16 | WeightFormat::F16 => elements * 2,
            WeightFormat::F32 => elements * 4,
            WeightFormat::Fp8Block { rows: r, cols: c } => elements + rows.div_ceil(u64::from(r)) * cols.div_ceil(u64::from(c)) * 4,
            WeightFormat::Int4Group { group } => rows * cols.div_ceil(8) * 4 + rows * cols.div_ceil(u64::from(group)) * 2,
            WeightFormat::Nvfp4 => rows * cols.div_ceil(2) + rows * cols.div_ceil(16) + 4,
            WeightFormat::Mxfp4 => rows * cols.div_ceil(2) + rows * cols.div_ceil(32),
        }
    }
    /// The `(out, in)` granularity below which this format cannot be cut without splitting a scale block.
    pub fn granularity(self) -> (u64, u64) {
        match self {
            WeightFormat::Bf16 | WeightFormat::F16 | WeightFormat::F32 => (1, 1),
            WeightFormat::Fp8Block { rows, cols } => (u64::from(rows), u64::from(cols)),
            WeightFormat::Int4Group { group } => (1, u64::from(group)),
            WeightFormat::Nvfp4 => (1, 16),
            WeightFormat::Mxfp4 => (1, 32),
        }
    }
    /// Short name as in reports, for example `int4_g32`.
    pub fn name(self) -> String {
        match self {
            WeightFormat::Bf16 => "bf16".into(),
            WeightFormat::F16 => "f16".into(),
            WeightFormat::F32 => "f32".into(),
            WeightFormat::Fp8Block { rows, cols } => format!("fp8_{rows}x{cols}"),
            WeightFormat::Int4Group { group } => format!("int4_g{group}"),
            WeightFormat::Nvfp4 => "nvfp4".into(),
            WeightFormat::Mxfp4 => "mxfp4".into(),
        }
    }
}
