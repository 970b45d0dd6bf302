//! How a weight lies in device memory, and how stored codes and scales become that.
//!
//! Matrices that the tensor-core kernels read packed come in tiles (mma.cuh has the lanes' view): INT4 tiles of 16 rows by 128 columns, 1152
//! bytes, scales inside; FP8 tiles of 16 rows by 64 columns, 1024 bytes, scales of all blocks behind the last tile. Fused tiles of gate and up
//! hold 8 rows of each. What a tile has beyond its matrix is zero. Where shapes fill whole tiles, the bytes are those of the storage
//! format, as the memory ledger counts them.

use super::{Element, element_of};
use moetwin_models::graph::SplitError;
use moetwin_models::{Dim, Graph, RankId, TensorId, TensorKind, WeightFormat, WeightRole};

/// Columns of an INT4 tile.
const INT4_COLS: u64 = 128;
/// Columns that share a scale in an INT4 tile.
pub const INT4_SCALE_COLS: u64 = 32;
/// Bytes of an INT4 tile (`INT4_TILE_BYTES` in mma.cuh): 16 x 128 nibbles, 16 x 4 bf16 scales.
const INT4_TILE_BYTES: u64 = 1152;
/// Columns of an FP8 tile.
const FP8_COLS: u64 = 64;
/// Bytes of an FP8 tile (`FP8_TILE_BYTES` in mma.cuh).
const FP8_TILE_BYTES: u64 = 1024;
/// Scales behind FP8 tiles start at a multiple of this.
const SCALES_ALIGNMENT_BYTES: u64 = 16;

/// How a weight lies in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Rows of plain elements.
    Rows(Element),
    /// Packed 4-bit tiles.
    Int4 {
        /// Tiles of 8 rows of gate and 8 of up.
        fused: bool,
    },
    /// Packed FP8 tiles and block scales.
    Fp8 {
        /// Tiles of 8 rows of gate and 8 of up.
        fused: bool,
        /// Rows of a scale block.
        block_rows: u32,
        /// Columns of a scale block.
        block_cols: u32,
    },
}

/// One rank's share of a weight: experts (1 for weights without), rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Matrices.
    pub experts: u64,
    /// Rows of each.
    pub rows: u64,
    /// Columns of each; 1 for vectors.
    pub cols: u64,
}

/// The extent of a rank's share of a weight.
pub fn extent_of(graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Extent, SplitError> {
    let sizes = graph.local_sizes(tensor, rank)?;
    let size = |i: usize| sizes.get(i).copied().unwrap_or(1);
    let expert = matches!(graph.tensors[tensor].shape.first(), Some(Dim::Experts(_)));
    Ok(if expert { Extent { experts: size(0), rows: size(1), cols: size(2) } } else { Extent { experts: 1, rows: size(0), cols: size(1) } })
}

/// Roles whose kernels read packed tiles. The halves of `kv_b` are read by heads, and what is looked up or normed is never packed.
fn is_projection(role: WeightRole) -> bool {
    use WeightRole as R;
    matches!(
        role,
        R::Qkv
            | R::QaKva
            | R::QDirect
            | R::Kva
            | R::Qb
            | R::O
            | R::DenseGateUp
            | R::DenseDown
            | R::SharedGateUp
            | R::SharedDown
            | R::SharedGate
    )
}

/// How a rank's share of a weight lies in device memory. A share whose cut does not fall on scale blocks is stored dequantized.
pub fn storage_of(graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Storage, SplitError> {
    let t = &graph.tensors[tensor];
    let plain = Storage::Rows(element_of(graph, tensor));
    let TensorKind::Weight(weight) = t.kind else { return Ok(plain) };
    let fused = weight.role == WeightRole::ExpertsGateUp;
    if !(fused || weight.role == WeightRole::ExpertsDown || is_projection(weight.role)) {
        return Ok(plain);
    }
    let extent = extent_of(graph, tensor, rank)?;
    let axis = |from_end: usize| t.shape.len().checked_sub(from_end).and_then(|dim| t.layout.shard_axis(dim as u8));
    let (rows_cut, cols_cut) = (axis(2).is_some(), axis(1).is_some());
    Ok(match weight.format {
        WeightFormat::Int4Group { group } if u64::from(group).is_multiple_of(INT4_SCALE_COLS) => {
            if cols_cut && !extent.cols.is_multiple_of(u64::from(group)) { plain } else { Storage::Int4 { fused } }
        }
        WeightFormat::Fp8Block { rows, cols } if u64::from(cols).is_multiple_of(FP8_COLS) && rows.is_multiple_of(16) => {
            let row_blocks_hold = segment_rows(graph, tensor, rank, extent.rows)?.iter().enumerate().all(|(i, n)| {
                // The last piece of a whole matrix may end inside a block, and so may gate and up, whose blocks are counted apart.
                n.is_multiple_of(u64::from(rows)) || (!rows_cut && (fused || i + 1 == segments(graph, tensor)))
            });
            if (cols_cut && !extent.cols.is_multiple_of(u64::from(cols))) || !row_blocks_hold {
                plain
            } else {
                Storage::Fp8 { fused, block_rows: rows, block_cols: cols }
            }
        }
        _ => plain,
    })
}

fn row_dim(graph: &Graph, tensor: TensorId) -> Option<&Dim> {
    let shape = &graph.tensors[tensor].shape;
    shape.len().checked_sub(2).map(|i| &shape[i])
}

fn segments(graph: &Graph, tensor: TensorId) -> usize {
    match row_dim(graph, tensor) {
        Some(Dim::Packed(segments)) => segments.len(),
        _ => 1,
    }
}

/// Local rows of every separately stored piece of a fused matrix.
fn segment_rows(graph: &Graph, tensor: TensorId, rank: RankId, rows: u64) -> Result<Vec<u64>, SplitError> {
    let Some(Dim::Packed(list)) = row_dim(graph, tensor) else { return Ok(vec![rows]) };
    let t = &graph.tensors[tensor];
    let d = &graph.deployment;
    let (part, parts) = t.layout.shard_axis(t.shape.len() as u8 - 2).map_or((0, 1), |a| (d.axis_index(a, rank), d.axis_size(a)));
    // `local_sizes` has refused inexact splits.
    Ok(list.iter().map(|s| s.part(part, parts).map_or(0, |u| u64::from(u.end - u.start) * u64::from(s.width))).collect())
}

impl Storage {
    /// Tiles of one matrix: along its rows, along its columns.
    fn tiles(self, rows: u64, cols: u64) -> (u64, u64) {
        let along_rows = |fused: bool| if fused { (rows / 2).div_ceil(8) } else { rows.div_ceil(16) };
        match self {
            Storage::Rows(_) => (0, 0),
            Storage::Int4 { fused } => (along_rows(fused), cols.div_ceil(INT4_COLS)),
            Storage::Fp8 { fused, .. } => (along_rows(fused), cols.div_ceil(FP8_COLS)),
        }
    }
    /// Byte offset of the scales behind FP8 tiles, 0 for other storage.
    pub fn scales_at(self, extent: Extent) -> u64 {
        let (rows, cols) = self.tiles(extent.rows, extent.cols);
        match self {
            Storage::Fp8 { .. } => (extent.experts * rows * cols * FP8_TILE_BYTES).next_multiple_of(SCALES_ALIGNMENT_BYTES),
            _ => 0,
        }
    }
    /// Scales behind FP8 tiles.
    pub fn scale_count(self, extent: Extent) -> u64 {
        match self {
            Storage::Fp8 { fused, block_rows, block_cols } => {
                let parts = if fused { 2 } else { 1 };
                extent.experts * parts * (extent.rows / parts).div_ceil(u64::from(block_rows)) * extent.cols.div_ceil(u64::from(block_cols))
            }
            _ => 0,
        }
    }
    /// Bytes of a rank's share.
    pub fn bytes(self, extent: Extent) -> u64 {
        let (rows, cols) = self.tiles(extent.rows, extent.cols);
        match self {
            Storage::Rows(element) => extent.experts * extent.rows * extent.cols * element.bytes(),
            Storage::Int4 { .. } => extent.experts * rows * cols * INT4_TILE_BYTES,
            Storage::Fp8 { .. } => self.scales_at(extent) + 4 * self.scale_count(extent),
        }
    }
    /// Bytes of one matrix's tiles, or rows.
    pub fn matrix_bytes(self, extent: Extent) -> u64 {
        let (rows, cols) = self.tiles(extent.rows, extent.cols);
        match self {
            Storage::Rows(element) => extent.rows * extent.cols * element.bytes(),
            Storage::Int4 { .. } => rows * cols * INT4_TILE_BYTES,
            Storage::Fp8 { .. } => rows * cols * FP8_TILE_BYTES,
        }
    }
    /// Columns that share a scale in [`Packed::scales`].
    pub fn scale_cols(self) -> u64 {
        match self {
            Storage::Rows(_) => 1,
            Storage::Int4 { .. } => INT4_SCALE_COLS,
            Storage::Fp8 { block_cols, .. } => u64::from(block_cols),
        }
    }
    /// The tile, and the row of it, that hold a row of a matrix of `rows` rows.
    fn place(self, row: usize, rows: usize) -> (usize, usize) {
        match self {
            Storage::Int4 { fused: true } | Storage::Fp8 { fused: true, .. } => {
                let half = rows / 2;
                if row < half { (row / 8, row % 8) } else { ((row - half) / 8, (row - half) % 8 + 8) }
            }
            _ => (row / 16, row % 16),
        }
    }
}

/// A rank's share of a quantized weight as stored: one code an element, one scale for every [`Storage::scale_cols`] columns of every row.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    /// Sizes.
    pub extent: Extent,
    /// `[experts, rows, cols]`: the nibble (value plus 8) of INT4, the byte of FP8.
    pub codes: Vec<u8>,
    /// `[experts, rows, ceil(cols / scale_cols)]`.
    pub scales: Vec<f32>,
}

/// The device bytes of a packed share.
///
/// # Panics
/// If the lengths of codes and scales are not those of the extent: a defect of the caller.
pub fn to_tiles(storage: Storage, packed: &Packed) -> Vec<u8> {
    let Packed { extent, codes, scales } = packed;
    let (experts, rows, cols) = (extent.experts as usize, extent.rows as usize, extent.cols as usize);
    let groups = cols.div_ceil(storage.scale_cols() as usize);
    assert_eq!((codes.len(), scales.len()), (experts * rows * cols, experts * rows * groups), "codes and scales of {extent:?}");
    let mut out = vec![0; storage.bytes(*extent) as usize];
    let (_, tiles_across) = storage.tiles(extent.rows, extent.cols);
    let matrix_bytes = storage.matrix_bytes(*extent) as usize;
    for (i, row_codes) in codes.chunks_exact(cols).enumerate() {
        let (expert, row) = (i / rows, i % rows);
        let (tile, tile_row) = storage.place(row, rows);
        let row_scales = &scales[i * groups..(i + 1) * groups];
        let first = expert * matrix_bytes;
        match storage {
            Storage::Rows(_) => {}
            Storage::Int4 { .. } => {
                let at = first + tile * tiles_across as usize * INT4_TILE_BYTES as usize;
                int4_row(&mut out[at..], tile_row, row_codes, row_scales);
            }
            Storage::Fp8 { fused, block_rows, .. } => {
                let at = first + tile * tiles_across as usize * FP8_TILE_BYTES as usize;
                fp8_row(&mut out[at..], tile_row, row_codes);
                let parts = if fused { 2 } else { 1 };
                let part_rows = rows / parts;
                let (part, row) = (row / part_rows, row % part_rows);
                if row.is_multiple_of(block_rows as usize) {
                    let block = (expert * parts + part) * part_rows.div_ceil(block_rows as usize) + row / block_rows as usize;
                    let at = storage.scales_at(*extent) as usize + block * groups * 4;
                    for (g, scale) in row_scales.iter().enumerate() {
                        out[at + 4 * g..at + 4 * g + 4].copy_from_slice(&scale.to_le_bytes());
                    }
                }
            }
        }
    }
    out
}

/// Where lane words of row `tile_row` start in a tile: rows 0..8 in the first half, and four lanes a row.
fn lane_at(tile_row: usize, q: usize) -> usize {
    tile_row / 8 * 512 + (tile_row % 8 * 4 + q) * 16
}

fn int4_row(tiles: &mut [u8], tile_row: usize, codes: &[u8], scales: &[f32]) {
    for (word, eight) in codes.chunks(8).enumerate() {
        let (tile, group, q) = (word / 16, word % 16 / 4, word % 4);
        // Columns 2 j and 2 j + 1 in nibbles j and j + 4, so that one mask takes a pair out.
        let packed = eight.iter().enumerate().fold(0u32, |w, (j, code)| w | u32::from(code & 15) << (4 * (j / 2 + j % 2 * 4)));
        let at = tile * INT4_TILE_BYTES as usize + lane_at(tile_row, q) + group * 4;
        tiles[at..at + 4].copy_from_slice(&packed.to_le_bytes());
    }
    for (g, scale) in scales.iter().enumerate() {
        let at = g / 4 * INT4_TILE_BYTES as usize + 1024 + (tile_row * 4 + g % 4) * 2;
        tiles[at..at + 2].copy_from_slice(&half::bf16::from_f32(*scale).to_le_bytes());
    }
}

fn fp8_row(tiles: &mut [u8], tile_row: usize, codes: &[u8]) {
    for (col, code) in codes.iter().enumerate() {
        let (tile, within) = (col / FP8_COLS as usize, col % FP8_COLS as usize);
        // The middle bytes of a word are swapped, so that one mask takes a pair out.
        let byte = [0, 2, 1, 3][within % 4] + within % 16 / 4 * 4;
        tiles[tile * FP8_TILE_BYTES as usize + lane_at(tile_row, within / 16) + byte] = *code;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_tiles_take_what_the_storage_format_takes() {
        let extent = Extent { experts: 3, rows: 512, cols: 256 };
        for fused in [false, true] {
            let int4 = Storage::Int4 { fused };
            assert_eq!(int4.bytes(extent), 3 * WeightFormat::Int4Group { group: 32 }.matrix_bytes(512, 256));
            let fp8 = Storage::Fp8 { fused, block_rows: 128, block_cols: 128 };
            assert_eq!(fp8.bytes(extent), 3 * WeightFormat::Fp8Block { rows: 128, cols: 128 }.matrix_bytes(512, 256));
        }
    }

    #[test]
    fn every_code_has_a_place_of_its_own() {
        for (storage, experts, rows, cols) in [
            (Storage::Int4 { fused: false }, 2, 19, 40),
            (Storage::Int4 { fused: true }, 2, 22, 136),
            (Storage::Fp8 { fused: false, block_rows: 16, block_cols: 64 }, 1, 33, 70),
            (Storage::Fp8 { fused: true, block_rows: 16, block_cols: 64 }, 3, 24, 64),
        ] {
            let extent = Extent { experts, rows, cols };
            let (n, groups) = ((experts * rows * cols) as usize, cols.div_ceil(storage.scale_cols()));
            let scales = vec![0.0; (experts * rows * groups) as usize];
            let bits = |codes: Vec<u8>| -> u32 {
                let bytes = to_tiles(storage, &Packed { extent, codes, scales: scales.clone() });
                assert_eq!(bytes.len() as u64, storage.bytes(extent));
                bytes.iter().map(|b| b.count_ones()).sum()
            };
            let width = if matches!(storage, Storage::Int4 { .. }) { 4 } else { 8 };
            assert_eq!(bits(vec![0xff; n]), width * n as u32, "{storage:?}: two codes share a place");
            let mut one = vec![0; n];
            for i in [0, n / 2, n - 1] {
                one[i] = 0xff;
                assert_eq!(bits(one.clone()), width, "{storage:?}: code {i}");
                one[i] = 0;
            }
        }
    }
}
