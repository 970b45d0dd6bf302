//! Stored weight bytes to real numbers and back: one matrix `[rows, cols]` (`[out, in]`) in each storage format.
//!
//! Decoding takes any sub-rectangle, so a rank decodes its own slice of a checkpoint and nothing else. Bytes are
//! little-endian, rows follow each other, and every length is checked once, when the view is made.

mod fp4;
mod fp8;
mod quantize;

pub use fp8::{decode_e4m3, encode_e4m3};
pub use quantize::{Quantized, quantize};

use half::{bf16, f16};
use moetwin_models::WeightFormat;
use std::ops::Range;

/// Elements that share a scale in NVFP4.
const NVFP4_BLOCK: usize = 16;
/// Elements that share a scale in MXFP4 (OCP Microscaling Formats v1.0, table 1).
const MXFP4_BLOCK: usize = 32;

/// The bytes of a stored matrix.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Elements. INT4: words of eight nibbles along `in`, lowest first, rows padded to a word. FP4: two nibbles a byte, lowest first.
    pub data: &'a [u8],
    /// Scales, row-major over blocks: f32 for FP8, bf16 for INT4, e4m3 for NVFP4, e8m0 for MXFP4; empty for unquantized formats.
    pub scales: &'a [u8],
    /// NVFP4's multiplier of the whole tensor; 1 for every other format.
    pub tensor_scale: f32,
}

impl<'a> Parts<'a> {
    /// Elements without scales.
    pub fn plain(data: &'a [u8]) -> Self {
        Self { data, scales: &[], tensor_scale: 1.0 }
    }
    /// Elements and their scales.
    pub fn scaled(data: &'a [u8], scales: &'a [u8]) -> Self {
        Self { data, scales, tensor_scale: 1.0 }
    }
}

/// A view of a stored matrix whose byte lengths have been checked.
#[derive(Clone, Copy, Debug)]
pub struct StoredMatrix<'a> {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    parts: Parts<'a>,
}

/// Bytes of `(elements, scales)` of a stored matrix.
///
/// Errors where a block is empty or the sizes exceed the address space.
pub fn stored_bytes(format: WeightFormat, rows: usize, cols: usize) -> Result<(usize, usize), DequantError> {
    let large = || DequantError::TooLarge { rows, cols };
    let area = |r: usize, c: usize, bytes: usize| r.checked_mul(c).and_then(|n| n.checked_mul(bytes)).ok_or_else(large);
    match format {
        WeightFormat::Bf16 | WeightFormat::F16 => Ok((area(rows, cols, 2)?, 0)),
        WeightFormat::F32 => Ok((area(rows, cols, 4)?, 0)),
        WeightFormat::Fp8Block { rows: 0, .. } | WeightFormat::Fp8Block { cols: 0, .. } | WeightFormat::Int4Group { group: 0 } => {
            Err(DequantError::EmptyBlock { format: format.name() })
        }
        WeightFormat::Fp8Block { rows: r, cols: c } => {
            Ok((area(rows, cols, 1)?, area(rows.div_ceil(r as usize), cols.div_ceil(c as usize), 4)?))
        }
        WeightFormat::Int4Group { group } => Ok((area(rows, cols.div_ceil(8), 4)?, area(rows, cols.div_ceil(group as usize), 2)?)),
        WeightFormat::Nvfp4 => Ok((area(rows, cols.div_ceil(2), 1)?, area(rows, cols.div_ceil(NVFP4_BLOCK), 1)?)),
        WeightFormat::Mxfp4 => Ok((area(rows, cols.div_ceil(2), 1)?, area(rows, cols.div_ceil(MXFP4_BLOCK), 1)?)),
    }
}

impl<'a> StoredMatrix<'a> {
    /// A view of `[rows, cols]` in `format`.
    ///
    /// Errors where a part has another length than the shape and the format imply.
    pub fn new(format: WeightFormat, rows: usize, cols: usize, parts: Parts<'a>) -> Result<Self, DequantError> {
        let (data, scales) = stored_bytes(format, rows, cols)?;
        for (part, got, expected) in [("elements", parts.data.len(), data), ("scales", parts.scales.len(), scales)] {
            if got != expected {
                return Err(DequantError::Length { format: format.name(), rows, cols, part, got, expected });
            }
        }
        Ok(Self { format, rows, cols, parts })
    }
    /// `(rows, cols)`.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }
    /// All values, row-major.
    pub fn decode_all(&self) -> Result<Vec<f32>, DequantError> {
        self.decode(0..self.rows, 0..self.cols)
    }
    /// The values of a sub-rectangle, row-major.
    pub fn decode(&self, rows: Range<usize>, cols: Range<usize>) -> Result<Vec<f32>, DequantError> {
        self.check(&rows, &cols)?;
        let mut out = vec![0.0; rows.len() * cols.len()];
        self.decode_into(rows, cols, &mut out)?;
        Ok(out)
    }
    /// Writes the values of a sub-rectangle, row-major.
    ///
    /// Errors where the rectangle leaves the matrix or `out` has another size.
    pub fn decode_into(&self, rows: Range<usize>, cols: Range<usize>, out: &mut [f32]) -> Result<(), DequantError> {
        self.check(&rows, &cols)?;
        if out.len() != rows.len() * cols.len() {
            return Err(DequantError::OutputLength { got: out.len(), expected: rows.len() * cols.len() });
        }
        if out.is_empty() {
            return Ok(());
        }
        for (row, out) in rows.zip(out.chunks_exact_mut(cols.len())) {
            self.decode_row(row, cols.clone(), out);
        }
        Ok(())
    }
    /// Appends the codes of a row's columns: INT4's nibbles (value plus 8), FP8's bytes. Other formats have none.
    ///
    /// Errors where the columns leave the matrix.
    pub fn codes(&self, row: usize, cols: Range<usize>, out: &mut Vec<u8>) -> Result<(), DequantError> {
        self.check(&(row..row + 1), &cols)?;
        let data = self.parts.data;
        match self.format {
            WeightFormat::Int4Group { .. } => {
                let first = row * self.cols.div_ceil(8) * 4;
                out.extend(cols.map(|c| data[first + c / 2] >> (4 * (c % 2)) & 0xf));
            }
            WeightFormat::Fp8Block { .. } => out.extend_from_slice(&data[row * self.cols + cols.start..row * self.cols + cols.end]),
            _ => {}
        }
        Ok(())
    }
    /// The scale of an element; 1 in formats without block scales.
    ///
    /// Errors where the element is outside.
    pub fn scale(&self, row: usize, col: usize) -> Result<f32, DequantError> {
        self.check(&(row..row + 1), &(col..col + 1))?;
        let scales = self.parts.scales;
        Ok(match self.format {
            WeightFormat::Int4Group { group } => bf16_at(scales, row * self.cols.div_ceil(group as usize) + col / group as usize).to_f32(),
            WeightFormat::Fp8Block { rows, cols } => {
                f32_at(scales, row / rows as usize * self.cols.div_ceil(cols as usize) + col / cols as usize)
            }
            _ => 1.0,
        })
    }
    fn check(&self, rows: &Range<usize>, cols: &Range<usize>) -> Result<(), DequantError> {
        for (what, range, size) in [("rows", rows, self.rows), ("columns", cols, self.cols)] {
            if range.start > range.end || range.end > size {
                return Err(DequantError::OutOfRange { what, start: range.start, end: range.end, size });
            }
        }
        Ok(())
    }
    fn decode_row(&self, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let Parts { data, scales, tensor_scale } = self.parts;
        let nibble = |row_bytes: usize, col: usize| data[row * row_bytes + col / 2] >> (4 * (col % 2)) & 0xf;
        match self.format {
            WeightFormat::Bf16 => {
                for (c, o) in cols.zip(out) {
                    *o = bf16_at(data, row * self.cols + c).to_f32();
                }
            }
            WeightFormat::F16 => {
                for (c, o) in cols.zip(out) {
                    let at = 2 * (row * self.cols + c);
                    *o = f16::from_le_bytes([data[at], data[at + 1]]).to_f32();
                }
            }
            WeightFormat::F32 => {
                for (c, o) in cols.zip(out) {
                    *o = f32_at(data, row * self.cols + c);
                }
            }
            WeightFormat::Fp8Block { rows: block_rows, cols: block_cols } => {
                let (block_rows, block_cols) = (block_rows as usize, block_cols as usize);
                let first = row / block_rows * self.cols.div_ceil(block_cols);
                for (c, o) in cols.zip(out) {
                    *o = decode_e4m3(data[row * self.cols + c]) * f32_at(scales, first + c / block_cols);
                }
            }
            WeightFormat::Int4Group { group } => {
                let first = row * self.cols.div_ceil(group as usize);
                let row_bytes = self.cols.div_ceil(8) * 4;
                for (c, o) in cols.zip(out) {
                    let integer = f32::from(nibble(row_bytes, c)) - 8.0;
                    let scale = bf16_at(scales, first + c / group as usize).to_f32();
                    // Exact: 4 bits times the 8 of a bf16 significand. The reference implementation multiplies in f32 and does not round again.
                    *o = integer * scale;
                }
            }
            WeightFormat::Nvfp4 => {
                let first = row * self.cols.div_ceil(NVFP4_BLOCK);
                for (c, o) in cols.zip(out) {
                    let scale = decode_e4m3(scales[first + c / NVFP4_BLOCK]) * tensor_scale;
                    *o = fp4::decode_e2m1(nibble(self.cols.div_ceil(2), c)) * scale;
                }
            }
            WeightFormat::Mxfp4 => {
                let first = row * self.cols.div_ceil(MXFP4_BLOCK);
                for (c, o) in cols.zip(out) {
                    let scale = fp4::decode_e8m0(scales[first + c / MXFP4_BLOCK]);
                    *o = fp4::decode_e2m1(nibble(self.cols.div_ceil(2), c)) * scale;
                }
            }
        }
    }
}

fn bf16_at(bytes: &[u8], index: usize) -> bf16 {
    bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])
}

fn f32_at(bytes: &[u8], index: usize) -> f32 {
    f32::from_le_bytes([bytes[4 * index], bytes[4 * index + 1], bytes[4 * index + 2], bytes[4 * index + 3]])
}

/// Why stored bytes cannot be decoded, or values not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DequantError {
    /// A part is too short or too long.
    #[error("{format} matrix [{rows}, {cols}]: {got} bytes of {part}, expected {expected}")]
    Length {
        /// Storage format.
        format: String,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Which part.
        part: &'static str,
        /// Bytes given.
        got: usize,
        /// Bytes that the shape implies.
        expected: usize,
    },
    /// The matrix does not fit the address space.
    #[error("matrix [{rows}, {cols}] is too large for this machine")]
    TooLarge {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// A scale block without elements.
    #[error("{format}: a scale block must hold at least one element")]
    EmptyBlock {
        /// Storage format.
        format: String,
    },
    /// A rectangle outside the matrix.
    #[error("{what} {start}..{end} asked of a matrix with {size} {what}")]
    OutOfRange {
        /// `rows` or `columns`.
        what: &'static str,
        /// First asked.
        start: usize,
        /// One past the last asked.
        end: usize,
        /// How many there are.
        size: usize,
    },
    /// An output slice of another size than the rectangle.
    #[error("room for {got} values, the rectangle has {expected}")]
    OutputLength {
        /// Values there is room for.
        got: usize,
        /// Values of the rectangle.
        expected: usize,
    },
    /// A value that no storage format can hold.
    #[error("value {index} is {value}, only finite values can be stored")]
    NotFinite {
        /// Index of the value, row-major.
        index: usize,
        /// The value, printed.
        value: String,
    },
}

#[cfg(test)]
mod tests;
