//! Where and how a checkpoint stores a matrix: the tensors it takes, and how element `(row, column)` is found and decoded.

use super::checkpoint::{Checkpoint, StoredTensor};
use super::fault::Fault;
use super::stored::StoredType;
use half::{bf16, f16};
use moetwin_kernels::dequant::{Parts, StoredMatrix};
use moetwin_models::WeightFormat;
use std::borrow::Cow;
use std::ops::Range;

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
    /// FP8 e4m3 elements and a multiplier a block (`weight`, and `weight_scale_inv` in DeepSeek-V3's files, `weight_scale` in those of
    /// compressed-tensors; both are multiplied by).
    Fp8Block {
        /// The module.
        module: String,
        /// Name of the multipliers in it.
        scales: &'static str,
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
/// Name of FP8 multipliers in a module, as DeepSeek-V3 introduced it.
pub(crate) const FP8_SCALE_NAME: &str = "weight_scale_inv";
/// The name that compressed-tensors gives them.
pub(crate) const FP8_SCALE_NAME_COMPRESSED: &str = "weight_scale";
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
            WeightFormat::Fp8Block { rows, cols } if rows > 0 && cols > 0 => {
                Encoding::Fp8Block { module: module.into(), scales: FP8_SCALE_NAME, rows, cols }
            }
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
            Encoding::Fp8Block { module, scales: name, rows: r, cols: c } => {
                let scales = vec![rows.div_ceil(u64::from(*r)), cols.div_ceil(u64::from(*c))];
                vec![expected(format!("{module}.weight"), vec![rows, cols], FP8), expected(format!("{module}.{name}"), scales, FLOATS)]
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
        let tensors = self.tensors().iter().map(|e| Ok(e.find(checkpoint)?.1)).collect::<Result<Vec<_>, Fault>>()?;
        if let (Encoding::Int4Group { .. }, [_, _, shape]) = (&self.encoding, tensors.as_slice()) {
            check_shape(*shape, self.matrix)?;
        }
        let mut factors = None;
        let scales = match &self.encoding {
            Encoding::Plain { .. } => Cow::Borrowed(&[][..]),
            Encoding::Fp8Block { .. } if tensors[1].dtype != StoredType::F32 => {
                Cow::Owned(all_floats(tensors[1])?.iter().flat_map(|x| x.to_le_bytes()).collect())
            }
            // The decoder takes bf16 scales: what is stored otherwise is applied to the integers afterwards.
            Encoding::Int4Group { .. } if tensors[1].dtype != StoredType::Bf16 => {
                let scales = factors.insert(all_floats(tensors[1])?);
                Cow::Owned(bf16::ONE.to_le_bytes().repeat(scales.len()))
            }
            Encoding::Fp8Block { .. } | Encoding::Int4Group { .. } | Encoding::Mxfp4 { .. } => Cow::Borrowed(tensors[1].bytes),
        };
        Ok(OpenSource { source: self, tensors, scales, factors })
    }
}

impl Expected<'_> {
    /// The tensor and its position, or what is wrong with it.
    pub(crate) fn find<'c>(&self, checkpoint: &'c Checkpoint) -> Result<(usize, StoredTensor<'c>), Fault> {
        let tensor = || self.name.to_string();
        let Some((position, found)) = checkpoint.locate(&self.name) else {
            let hint = hint(checkpoint, &self.name);
            return Err(Fault::Missing { tensor: tensor(), shape: self.shape.to_vec(), types: self.types, hint });
        };
        if found.shape != &*self.shape {
            return Err(Fault::Misshapen { tensor: tensor(), found: found.shape.to_vec(), expected: self.shape.to_vec() });
        }
        if !self.types.contains(&found.dtype) {
            return Err(Fault::WrongType { tensor: tensor(), found: found.dtype, expected: self.types });
        }
        Ok((position, found))
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
    /// Scales as the decoder takes them; empty for unquantized matrices.
    scales: Cow<'c, [u8]>,
    /// Multipliers of INT4 groups that the decoder was given ones for, row-major.
    factors: Option<Vec<f32>>,
}

impl OpenSource<'_, '_> {
    /// Appends the values of columns `cols` of a row to `out`.
    pub(crate) fn read(&self, row: u64, cols: Range<u64>, out: &mut Vec<f32>) -> Result<(), Fault> {
        if let Encoding::Plain { view, .. } = &self.source.encoding {
            let first = view.offset + row * view.row_stride + cols.start * view.col_stride;
            return read_floats(self.tensors[0], first, view.col_stride, cols.end - cols.start, out);
        }
        let (matrix, stored_row) = self.stored(row)?;
        let cols = self.index(cols.start)?..self.index(cols.end)?;
        let start = out.len();
        out.resize(start + cols.len(), 0.0);
        matrix.decode_into(stored_row..stored_row + 1, cols.clone(), &mut out[start..]).map_err(|e| self.undecodable(e.to_string()))?;
        if self.factors.is_some() {
            cols.zip(&mut out[start..]).for_each(|(col, value)| *value *= self.factor(stored_row, col));
        }
        Ok(())
    }

    /// Appends the codes of columns `cols` of a row, and the scale of every `scale_cols`-th of them.
    pub(crate) fn read_packed(
        &self,
        row: u64,
        cols: Range<u64>,
        scale_cols: u64,
        codes: &mut Vec<u8>,
        scales: &mut Vec<f32>,
    ) -> Result<(), Fault> {
        let (matrix, stored_row) = self.stored(row)?;
        let undecodable = |e: moetwin_kernels::dequant::DequantError| self.undecodable(e.to_string());
        matrix.codes(stored_row, self.index(cols.start)?..self.index(cols.end)?, codes).map_err(undecodable)?;
        for col in cols.step_by(self.index(scale_cols)?.max(1)) {
            let col = self.index(col)?;
            scales.push(matrix.scale(stored_row, col).map_err(undecodable)? * self.factor(stored_row, col));
        }
        Ok(())
    }

    /// What an element that the decoder gave is multiplied by: 1 where the decoder was given the scales.
    fn factor(&self, stored_row: usize, col: usize) -> f32 {
        match (&self.factors, &self.source.encoding) {
            (Some(factors), Encoding::Int4Group { group, .. }) => {
                let groups = self.source.matrix.cols.div_ceil(u64::from(*group)) as usize;
                factors[stored_row * groups + col / *group as usize]
            }
            _ => 1.0,
        }
    }
    fn undecodable(&self, reason: String) -> Fault {
        Fault::Contradicts { tensor: self.tensors[0].name.to_string(), reason }
    }
    fn index(&self, n: u64) -> Result<usize, Fault> {
        usize::try_from(n).map_err(|_| self.undecodable(format!("{n} exceeds this machine's address space")))
    }
    /// The quantized matrix, and the stored row of a row.
    fn stored(&self, row: u64) -> Result<(StoredMatrix<'_>, usize), Fault> {
        let tensor = self.tensors[0];
        let (format, rows, stored_row) = match &self.source.encoding {
            Encoding::Plain { .. } => return Err(self.undecodable("is not quantized".into())),
            Encoding::Fp8Block { rows, cols, .. } => (WeightFormat::Fp8Block { rows: *rows, cols: *cols }, self.source.matrix.rows, row),
            Encoding::Int4Group { group, .. } => (WeightFormat::Int4Group { group: *group }, self.source.matrix.rows, row),
            Encoding::Mxfp4 { experts, rows, first_row, row_step, .. } => (WeightFormat::Mxfp4, experts * rows, first_row + row * row_step),
        };
        let (rows, columns) = (self.index(rows)?, self.index(self.source.matrix.cols)?);
        let parts = Parts::scaled(tensor.bytes, &self.scales);
        let matrix = StoredMatrix::new(format, rows, columns, parts).map_err(|e| self.undecodable(e.to_string()))?;
        Ok((matrix, self.index(stored_row)?))
    }
}

/// All elements of a floating-point tensor. Publishers store scales in the type of the model.
fn all_floats(tensor: StoredTensor<'_>) -> Result<Vec<f32>, Fault> {
    let mut values = Vec::new();
    read_floats(tensor, 0, 1, tensor.shape.iter().product(), &mut values)?;
    Ok(values)
}

/// Appends `count` floating-point elements, `stride` apart, from element `first` on.
fn read_floats(tensor: StoredTensor<'_>, first: u64, stride: u64, count: u64, out: &mut Vec<f32>) -> Result<(), Fault> {
    let outside = || Fault::Contradicts { tensor: tensor.name.to_string(), reason: "is shorter than its shape".into() };
    let width = tensor.dtype.bits() / 8;
    let at = |i: u64| -> Option<&[u8]> {
        let start = usize::try_from((first + i * stride).checked_mul(width)?).ok()?;
        tensor.bytes.get(start..start + width as usize)
    };
    out.reserve(usize::try_from(count).map_err(|_| outside())?);
    for i in 0..count {
        out.push(match *at(i).ok_or_else(outside)? {
            [a, b] if tensor.dtype == StoredType::F16 => f16::from_le_bytes([a, b]).to_f32(),
            [a, b] => bf16::from_le_bytes([a, b]).to_f32(),
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            _ => return Err(outside()),
        });
    }
    Ok(())
}
