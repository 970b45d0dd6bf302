//! How a weight gets into device memory: copied as plain rows, copied as packed tiles, or drawn there by recipe.

use super::gpu::{Address, Gpu, GpuError};
use super::parts::to_bytes;
use moetwin_kernels::launch::storage::{Extent, extent_of, to_tiles};
use moetwin_kernels::launch::{Element, Launch, Storage, storage_of};
use moetwin_models::{Graph, RankId, TensorId};
use moetwin_runtime::weights::{Grid, LoadError, Recipe, WeightSource};
use std::ops::Range;

/// Columns that a thread of the drawing kernel takes: runs of columns must start at multiples of it.
const DRAWN_COLS: u64 = 8;
/// Threads of a block of the drawing kernel, and its most blocks.
const BLOCK: u32 = 256;
const MOST_BLOCKS: u64 = 16_384;

/// A rank's share of a weight on its way to the device.
pub(crate) struct WeightLoad {
    storage: Storage,
    extent: Extent,
    content: Content,
}

enum Content {
    Bytes(Vec<u8>),
    Recipe(Recipe),
}

/// Whether the drawing kernel takes a share's columns.
fn can_draw(recipe: &Recipe) -> bool {
    let inner = recipe.cols.len().saturating_sub(1);
    recipe.cols.iter().take(inner).all(|r| (r.end - r.start).is_multiple_of(DRAWN_COLS))
}

/// Reads a rank's share of a weight in the form that the kernels expect.
pub(crate) fn read_weight(source: &dyn WeightSource, graph: &Graph, tensor: TensorId, rank: RankId) -> Result<WeightLoad, LoadError> {
    let storage = storage_of(graph, tensor, rank)?;
    let extent = extent_of(graph, tensor, rank)?;
    let content = match (source.recipe(graph, tensor, rank)?.filter(can_draw), storage) {
        (Some(recipe), _) => Content::Recipe(recipe),
        (None, Storage::Rows(element)) => Content::Bytes(to_bytes(&source.load(graph, tensor, rank)?, element)),
        (None, packed) => Content::Bytes(to_tiles(packed, &source.load_packed(graph, tensor, rank, packed.scale_cols())?)),
    };
    Ok(WeightLoad { storage, extent, content })
}

/// Runs of indices as the kernel reads them: first local index, first global index.
fn runs(list: &[Range<u64>]) -> Result<Vec<i32>, GpuError> {
    let int = |v: u64| i32::try_from(v).map_err(|e| GpuError::new("drawing weights", e.to_string()));
    let mut local = 0;
    let mut out = Vec::with_capacity(2 * list.len());
    for r in list {
        out.extend([int(local)?, int(r.start)?]);
        local += r.end - r.start;
    }
    Ok(out)
}

impl WeightLoad {
    /// Bytes of device memory that the share takes.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Recipe(_) => self.storage.bytes(self.extent),
        }
    }
    /// Bytes of the tables that drawing needs while it runs.
    pub(crate) fn table_bytes(&self) -> u64 {
        match &self.content {
            Content::Bytes(_) => 0,
            Content::Recipe(r) => 4 * (8 + 2 * r.rows.len() as u64 + 2 * r.cols.len() as u64),
        }
    }
    /// Writes or draws the share at `to`, with tables at `tables`. Drawing is ordered on stream 0.
    pub(crate) fn place<G: Gpu>(&self, gpu: &mut G, to: Address, tables: Address) -> Result<(), GpuError> {
        match &self.content {
            Content::Bytes(bytes) => gpu.write(to, bytes),
            Content::Recipe(recipe) => self.draw(gpu, recipe, to, tables),
        }
    }

    fn draw<G: Gpu>(&self, gpu: &mut G, recipe: &Recipe, to: Address, tables: Address) -> Result<(), GpuError> {
        let (rows, cols) = (runs(&recipe.rows)?, runs(&recipe.cols)?);
        let bytes: Vec<u8> =
            recipe.key.iter().flat_map(|w| w.to_le_bytes()).chain(rows.iter().chain(&cols).flat_map(|v| v.to_le_bytes())).collect();
        gpu.write(tables, &bytes)?;
        let (row_table, col_table) = (tables + 32, tables + 32 + 4 * rows.len() as u64);
        let extent = self.extent;
        let (form, fused) = match self.storage {
            Storage::Rows(Element::F32) => (1, false),
            Storage::Rows(_) => (0, false),
            Storage::Int4 { fused } => (2, fused),
            Storage::Fp8 { fused, .. } => (3, fused),
        };
        let (grid, mean, scale) = match recipe.grid {
            Grid::Uniform { mean, half_width } => (0, mean, half_width),
            Grid::Fp8 { scale } => (1, 0.0, scale),
            Grid::Int4 { scale } => (2, 0.0, scale),
            Grid::Fp4 { scale } => (3, 0.0, scale),
        };
        if form > 1 {
            // What tiles have beyond their matrix.
            gpu.fill(0, to, 0, self.storage.bytes(extent))?;
        }
        let float = |v: f32| u64::from(v.to_bits());
        let threads = extent.rows * extent.cols.div_ceil(DRAWN_COLS);
        for (i, &stream) in recipe.streams.iter().enumerate() {
            let out = to + i as u64 * self.storage.matrix_bytes(extent);
            let args = [
                tables,
                stream,
                out,
                extent.rows,
                extent.cols,
                recipe.whole_cols,
                row_table,
                recipe.rows.len() as u64,
                col_table,
                recipe.cols.len() as u64,
                form,
                grid,
                float(mean),
                float(scale),
                u64::from(fused),
            ];
            launch(gpu, "synthesize", threads, &args)?;
        }
        if form == 3 {
            let count = self.storage.scale_count(extent);
            launch(gpu, "fill_f32", count, &[to + self.storage.scales_at(extent), float(scale), count])?;
        }
        Ok(())
    }
}

fn launch<G: Gpu>(gpu: &mut G, kernel: &'static str, threads: u64, args: &[u64]) -> Result<(), GpuError> {
    let blocks = threads.div_ceil(u64::from(BLOCK)).clamp(1, MOST_BLOCKS) as u32;
    let launch =
        Launch { source: "synthetic.cu", kernel, grid: (blocks, 1, 1), block: BLOCK, shared_bytes: 0, args: Vec::new(), product: None };
    gpu.launch(0, &launch, args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use moetwin_models::{BuildOptions, Deployment, Phase, Step, TensorKind, WeightRole, plan, zoo};

    /// Every weight takes on the device what the memory ledger counts for it, which is what the checkpoint's format takes: but for the
    /// halves of `kv_b`, read by heads in bf16, and routers and biases of f32.
    #[test]
    fn device_bytes_are_the_ledgers() {
        for (model, tp, ep) in
            [("kimi-k2.5", 1, 1), ("kimi-k2.5", 8, 1), ("kimi-k2.5", 8, 8), ("deepseek-v3", 8, 1), ("qwen3-30b-a3b", 2, 1)]
        {
            let spec = zoo::spec(model).unwrap();
            let deployment = Deployment { tp, ep, ..Deployment::single() };
            let graph = plan(&spec, &Step::uniform(Phase::Decode, 1, 128), &deployment, &BuildOptions::default()).unwrap();
            let mut packed = 0;
            for (id, tensor) in graph.tensors.iter() {
                let TensorKind::Weight(w) = tensor.kind else { continue };
                if matches!(w.role, WeightRole::KvB | WeightRole::Router | WeightRole::CorrectionBias) {
                    continue;
                }
                for rank in [RankId(0), RankId(tp - 1)] {
                    let storage = storage_of(&graph, id, rank).unwrap();
                    let bytes = storage.bytes(extent_of(&graph, id, rank).unwrap());
                    assert_eq!(bytes, graph.local_bytes(id, rank).unwrap(), "{model} tp {tp} ep {ep}: {}", tensor.name);
                    packed += u32::from(!matches!(storage, Storage::Rows(_)));
                }
            }
            assert_eq!(packed > 0, model != "qwen3-30b-a3b", "{model}");
        }
    }
}
