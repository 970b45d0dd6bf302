//! Where and how a checkpoint stores a matrix: the tensors it takes, and how element `(row, column)` is found and decoded.

use super::checkpoint::{Checkpoint, StoredTensor};
use super::fault::Fault;
use super::stored::StoredType;
use moetwin_models::WeightFormat;
use std::borrow::Cow;

/// Rows and columns of a matrix; vectors have one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Rows (`out`).
    pub rows: u64,
    /// Columns (`in`).
    pub cols: u64,
}

/// A matrix as a checkpoint stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its size.
    pub matrix: Matrix,
    /// Its tensors.
    pub encoding: Encoding,
}

/// Where element `(row, column)` of a matrix lies in an unquantized tensor, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Shape of the whole tensor.
    pub shape: Vec<u64>,
    /// Element `(0, 0)`.
    pub offset: u64,
    /// From a row to the next.
    pub row_stride: u64,
    /// From a column to the next.
    pub col_stride: u64,
}

impl View {
    /// A vector that is the whole tensor.
    pub fn vector(len: u64) -> Self {
        Self { shape: vec![len], offset: 0, row_stride: 1, col_stride: 0 }
    }
    /// A row-major matrix that is the whole tensor.
    pub fn matrix(m: Matrix) -> Self {
        Self { shape: vec![m.rows, m.cols], offset: 0, row_stride: m.cols, col_stride: 1 }
    }
}

/// The tensors of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Floating-point elements.
    Plain {
        /// The tensor.
        tensor: String,
        /// Where its elements lie.
        view: View,
    },
    /// FP8 e4m3 elements and a multiplier a block (DeepSeek-V3: `weight`, `weight_scale_inv`).
    Fp8Block {
        /// The module.
        module: String,
        /// Rows of a block.
        rows: u32,
        /// Columns of a block.
        cols: u32,
    },
    /// Signed 4-bit integers (compressed-tensors pack-quantized: `weight_packed`, `weight_scale`, `weight_shape`).
    Int4Group {
        /// The module.
        module: String,
        /// Columns that share a scale.
        group: u32,
    },
    /// FP4 e2m1 elements, 32 a block with an e8m0 scale (gpt-oss), all experts stacked.
    Mxfp4 {
        /// Elements: `u8[experts, rows, blocks, 16]`, two to a byte.
        blocks: String,
        /// Scales: `u8[experts, rows, blocks]`.
        scales: String,
        /// Experts in the tensors.
        experts: u64,
        /// Rows of an expert.
        rows: u64,
        /// Stored row of row 0, counted over all experts.
        first_row: u64,
        /// Stored rows from a row to the next.
        row_step: u64,
    },
}

/// Element types that an unquantized tensor may have; the configuration's `dtype` does not bind the file.
pub(crate) const FLOATS: &[StoredType] = &[StoredType::Bf16, StoredType::F16, StoredType::F32];
const FP8: &[StoredType] = &[StoredType::F8E4M3];
const PACKED: &[StoredType] = &[StoredType::I32];
const SHAPE: &[StoredType] = &[StoredType::I32, StoredType::I64];
const BYTES: &[StoredType] = &[StoredType::U8];

/// Elements of an MXFP4 block (OCP Microscaling Formats 1.0).
const MX_BLOCK: u64 = 32;
/// 4-bit integers in a 32-bit word.
const INT4_PER_WORD: u64 = 8;

/// A tensor that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected<'s> {
    /// Name.
    pub name: Cow<'s, str>,
    /// Shape.
    pub shape: Cow<'s, [u64]>,
    /// Element types that would do.
    pub types: &'static [StoredType],
}

impl Source {
    /// The matrix of a module in a format, `None` in formats that have no loader.
    pub(crate) fn module(module: &str, matrix: Matrix, format: WeightFormat) -> Option<Self> {
        let encoding = match format {
            WeightFormat::Bf16 | WeightFormat::F16 | WeightFormat::F32 => {
                Encoding::Plain { tensor: format!("{module}.weight"), view: View::matrix(matrix) }
            }
            WeightFormat::Fp8Block { rows, cols } if rows > 0 && cols > 0 => Encoding::Fp8Block { module: module.into(), rows, cols },
            WeightFormat::Int4Group { group } if group > 0 => Encoding::Int4Group { module: module.into(), group },
            _ => return None,
        };
        Some(Self { matrix, encoding })
    }
    /// The tensors it takes.
    pub fn tensors(&self) -> Vec<Expected<'_>> {
        let Matrix { rows, cols } = self.matrix;
        let expected = |name: String, shape: Vec<u64>, types| Expected { name: name.into(), shape: shape.into(), types };
        match &self.encoding {
            Encoding::Plain { tensor, view } => {
                vec![Expected { name: tensor.as_str().into(), shape: view.shape.as_slice().into(), types: FLOATS }]
            }
            Encoding::Fp8Block { module, rows: r, cols: c } => {
                let scales = vec![rows.div_ceil(u64::from(*r)), cols.div_ceil(u64::from(*c))];
                vec![
                    expected(format!("{module}.weight"), vec![rows, cols], FP8),
                    expected(format!("{module}.weight_scale_inv"), scales, FLOATS),
                ]
            }
            Encoding::Int4Group { module, group } => vec![
                expected(format!("{module}.weight_packed"), vec![rows, cols.div_ceil(INT4_PER_WORD)], PACKED),
                expected(format!("{module}.weight_scale"), vec![rows, cols.div_ceil(u64::from(*group))], FLOATS),
                expected(format!("{module}.weight_shape"), vec![2], SHAPE),
            ],
            Encoding::Mxfp4 { blocks, scales, experts, rows, .. } => {
                let count = cols.div_ceil(MX_BLOCK);
                vec![
                    expected(blocks.clone(), vec![*experts, *rows, count, MX_BLOCK / 2], BYTES),
                    expected(scales.clone(), vec![*experts, *rows, count], BYTES),
                ]
            }
        }
    }
    /// The tensors of this matrix, each checked to be there with the right shape and type.
    pub(crate) fn open<'c>(&self, checkpoint: &'c Checkpoint) -> Result<OpenSource<'c, '_>, Fault> {
        let tensors = self.tensors().iter().map(|e| e.find(checkpoint)).collect::<Result<Vec<_>, _>>()?;
        if let (Encoding::Int4Group { .. }, [_, _, shape]) = (&self.encoding, tensors.as_slice()) {
            check_shape(*shape, self.matrix)?;
        }
        Ok(OpenSource { source: self, tensors })
    }
}

impl Expected<'_> {
    /// The tensor, or what is wrong with it.
    pub(crate) fn find<'c>(&self, checkpoint: &'c Checkpoint) -> Result<StoredTensor<'c>, Fault> {
        let Some(tensor) = checkpoint.get(&self.name) else {
            return Err(Fault::Missing {
                tensor: self.name.to_string(),
                shape: self.shape.to_vec(),
                types: self.types,
                hint: hint(checkpoint, &self.name),
            });
        };
        if tensor.shape != &*self.shape {
            return Err(Fault::Misshapen {
                tensor: self.name.to_string(),
                found: tensor.shape.to_vec(),
                expected: self.shape.to_vec(),
            });
        }
        if !self.types.contains(&tensor.dtype) {
            return Err(Fault::WrongType { tensor: self.name.to_string(), found: tensor.dtype, expected: self.types });
        }
        Ok(tensor)
    }
}

/// What there is in place of a missing tensor: the same module stored in another format.
fn hint(checkpoint: &Checkpoint, name: &str) -> String {
    let Some((module, _)) = name.rsplit_once('.') else { return String::new() };
    let others = ["weight", "weight_packed", "weight_scale", "weight_scale_inv"];
    let found = others.iter().filter_map(|o| checkpoint.get(&format!("{module}.{o}"))).find(|t| t.name != name);
    found.map_or_else(String::new, |t| format!(" (there is {} in {}; does the configuration's quantization match?)", t.name, t.dtype))
}

/// `weight_shape` repeats the unpacked shape.
fn check_shape(tensor: StoredTensor<'_>, matrix: Matrix) -> Result<(), Fault> {
    let size = tensor.bytes.len() / 2;
    let values: Vec<i64> = tensor
        .bytes
        .chunks_exact(size.max(1))
        .map(|b| match b {
            &[a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => b.try_into().map_or(-1, i64::from_le_bytes),
        })
        .collect();
    let expected = [matrix.rows, matrix.cols].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
    if values == expected {
        return Ok(());
    }
    let reason = format!("says {values:?}, the weight is [{}, {}]", matrix.rows, matrix.cols);
    Err(Fault::Contradicts { tensor: tensor.name.to_string(), reason })
}

/// A source whose tensors were found.
pub(crate) struct OpenSource<'c, 's> {
    source: &'s Source,
    tensors: Vec<StoredTensor<'c>>,
}

impl OpenSource<'_, '_> {
    /// Appends the values of columns `cols` of a row to `out`.
    ///
    /// Quantized values are exactly what weight-only inference multiplies with: FP8 is `element * scale` in f32; INT4 is
    /// `(nibble - 8) * scale` rounded to bf16, which is how compressed-tensors decompresses.
    pub(crate) fn read(&self, row: u64, cols: std::ops::Range<u64>, out: &mut Vec<f32>) {
        match &self.source.encoding {
            Encoding::Plain { view, .. } => {
                let first = view.offset + row * view.row_stride + cols.start * view.col_stride;
                decode_floats(self.tensors[0], first, view.col_stride, cols.end - cols.start, out);
            }
            Encoding::Fp8Block { rows, cols: width, .. } => {
                let (elements, scales) = (self.tensors[0], self.tensors[1]);
                let first = row * self.source.matrix.cols;
                let scale_row = row / u64::from(*rows) * scales.shape[1];
                for col in cols {
                    let scale = float_at(scales, scale_row + col / u64::from(*width));
                    out.push(e4m3(elements.bytes[(first + col) as usize]) * scale);
                }
            }
            Encoding::Int4Group { group, .. } => {
                let (words, scales) = (self.tensors[0], self.tensors[1]);
                let (word_row, scale_row) = (row * words.shape[1], row * scales.shape[1]);
                for col in cols {
                    // Little-endian words with the low nibble first: the byte order is the column order.
                    let byte = words.bytes[(word_row * 4 + col / 2) as usize];
                    let nibble = if col % 2 == 0 { byte & 15 } else { byte >> 4 };
                    let scale = float_at(scales, scale_row + col / u64::from(*group));
                    out.push(round_to_bf16((f32::from(nibble) - 8.0) * scale));
                }
            }
            Encoding::Mxfp4 { first_row, row_step, .. } => {
                let (blocks, scales) = (self.tensors[0], self.tensors[1]);
                let stored_row = first_row + row * row_step;
                let count = scales.shape[2];
                for col in cols {
                    let byte = blocks.bytes[(stored_row * count * (MX_BLOCK / 2) + col / 2) as usize];
                    let nibble = if col % 2 == 0 { byte & 15 } else { byte >> 4 };
                    let exponent = i32::from(scales.bytes[(stored_row * count + col / MX_BLOCK) as usize]) - 127;
                    out.push(e2m1(nibble) * (f64::from(exponent).exp2() as f32));
                }
            }
        }
    }
}
