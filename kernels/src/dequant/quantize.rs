//! Values to stored bytes: for synthetic weights and for tests of the decoders.

use super::fp4::{decode_e8m0, encode_e2m1, scale_e8m0};
use super::fp8::E4M3_MAX;
use super::{DequantError, MXFP4_BLOCK, NVFP4_BLOCK, Parts, decode_e4m3, encode_e4m3, stored_bytes};
use half::{bf16, f16};
use moetwin_models::WeightFormat;

/// Largest magnitude of FP4 e2m1.
const E2M1_MAX: f32 = 6.0;

/// The bytes of a matrix in some format.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// Elements.
    pub data: Vec<u8>,
    /// Scales.
    pub scales: Vec<u8>,
    /// NVFP4's multiplier of the whole tensor; 1 for every other format.
    pub tensor_scale: f32,
}

impl Quantized {
    /// The bytes as [`super::StoredMatrix`] takes them.
    pub fn parts(&self) -> Parts<'_> {
        Parts { data: &self.data, scales: &self.scales, tensor_scale: self.tensor_scale }
    }
}

/// Stores `values[rows, cols]` in `format`: each scale maps the largest magnitude of its block to the largest code, values go to the
/// nearest code, ties to even.
///
/// Errors where a value is not finite or the number of values is not `rows * cols`.
pub fn quantize(format: WeightFormat, rows: usize, cols: usize, values: &[f32]) -> Result<Quantized, DequantError> {
    let (data, scales) = stored_bytes(format, rows, cols)?;
    if values.len() != rows * cols {
        return Err(DequantError::OutputLength { got: values.len(), expected: rows * cols });
    }
    if let Some(index) = values.iter().position(|v| !v.is_finite()) {
        return Err(DequantError::NotFinite { index, value: values[index].to_string() });
    }
    let mut out = Quantized { data: vec![0; data], scales: vec![0; scales], tensor_scale: 1.0 };
    let plain = |data: &mut Vec<u8>, bytes: &dyn Fn(f32) -> Vec<u8>| *data = values.iter().flat_map(|&v| bytes(v)).collect();
    let matrix = Values { rows, cols, values };
    match format {
        WeightFormat::Bf16 => plain(&mut out.data, &|v| bf16::from_f32(v).to_le_bytes().to_vec()),
        WeightFormat::F16 => plain(&mut out.data, &|v| f16::from_f32(v).to_le_bytes().to_vec()),
        WeightFormat::F32 => plain(&mut out.data, &|v| v.to_le_bytes().to_vec()),
        WeightFormat::Fp8Block { rows: r, cols: c } => matrix.fp8(r as usize, c as usize, &mut out),
        WeightFormat::Int4Group { group } => matrix.int4(group as usize, &mut out),
        WeightFormat::Nvfp4 => matrix.nvfp4(&mut out),
        WeightFormat::Mxfp4 => matrix.mxfp4(&mut out),
    }
    Ok(out)
}

struct Values<'a> {
    rows: usize,
    cols: usize,
    values: &'a [f32],
}

impl Values<'_> {
    /// Calls `visit(block, rows, cols, largest)` for every scale block, row-major.
    fn blocks(&self, rows: usize, cols: usize, mut visit: impl FnMut(usize, &[usize], f32)) {
        let mut block = 0;
        for r in (0..self.rows).step_by(rows) {
            for c in (0..self.cols).step_by(cols) {
                let indices: Vec<usize> =
                    (r..(r + rows).min(self.rows)).flat_map(|r| (c..(c + cols).min(self.cols)).map(move |c| r * self.cols + c)).collect();
                let largest = indices.iter().fold(0.0f32, |m, &i| m.max(self.values[i].abs()));
                visit(block, &indices, largest);
                block += 1;
            }
        }
    }
    fn set_nibble(&self, data: &mut [u8], row_bytes: usize, index: usize, code: u8) {
        let (row, col) = (index / self.cols, index % self.cols);
        data[row * row_bytes + col / 2] |= code << (4 * (col % 2));
    }
    fn fp8(&self, rows: usize, cols: usize, out: &mut Quantized) {
        self.blocks(rows, cols, |block, indices, largest| {
            let scale = if largest > 0.0 { (largest / E4M3_MAX).max(f32::MIN_POSITIVE) } else { 1.0 };
            out.scales[4 * block..4 * block + 4].copy_from_slice(&scale.to_le_bytes());
            for &i in indices {
                out.data[i] = encode_e4m3(self.values[i] / scale);
            }
        });
    }
    fn int4(&self, group: usize, out: &mut Quantized) {
        self.blocks(1, group, |block, indices, largest| {
            let scale = bf16::from_f32(largest / 7.0);
            out.scales[2 * block..2 * block + 2].copy_from_slice(&scale.to_le_bytes());
            let scale = scale.to_f32();
            for &i in indices {
                // A scale that rounded to zero belongs to a group of (nearly) zeros.
                let integer = if scale > 0.0 { (self.values[i] / scale).round_ties_even().clamp(-8.0, 7.0) } else { 0.0 };
                self.set_nibble(&mut out.data, self.cols.div_ceil(8) * 4, i, (integer + 8.0) as u8);
            }
        });
    }
    fn nvfp4(&self, out: &mut Quantized) {
        let largest = self.values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        out.tensor_scale = if largest > 0.0 { (largest / (E4M3_MAX * E2M1_MAX)).max(f32::MIN_POSITIVE) } else { 1.0 };
        let tensor_scale = out.tensor_scale;
        self.blocks(1, NVFP4_BLOCK, |block, indices, largest| {
            out.scales[block] = encode_e4m3(largest / E2M1_MAX / tensor_scale);
            let scale = decode_e4m3(out.scales[block]) * tensor_scale;
            self.fp4(indices, scale, &mut out.data);
        });
    }
    fn mxfp4(&self, out: &mut Quantized) {
        self.blocks(1, MXFP4_BLOCK, |block, indices, largest| {
            out.scales[block] = scale_e8m0(largest);
            self.fp4(indices, decode_e8m0(out.scales[block]), &mut out.data);
        });
    }
    fn fp4(&self, indices: &[usize], scale: f32, data: &mut [u8]) {
        for &i in indices {
            let code = if scale > 0.0 { encode_e2m1(self.values[i] / scale) } else { 0 };
            self.set_nibble(data, self.cols.div_ceil(2), i, code);
        }
    }
}
