//! Launches of the matrix kernels: dense projections and routed experts.

use super::plan::{BLOCK, LaunchError, Plan, WARPS, activation_args};
use super::storage::{Extent, Storage, extent_of, storage_of};
use super::tuning::Asked;
use super::{Arg, DenseProduct, Element, LIBRARY_ROWS, element_of};
use moetwin_models::spec::Activation;
use moetwin_models::{Axis, TensorId};

/// Rows of a tile of the tensor-core kernels, and columns of a fused tile of gate and up.
const TILE_ROWS: u64 = 16;
const FUSED_COLS: u64 = 8;
/// Tokens of a tile.
const TILE_TOKENS: u64 = 8;
/// Rows that a warp of the plain projection computes at once (`ROWS` in linear.cu).
const PLAIN_ROWS: u64 = 8;
/// The same of a dense projection's warps.
const DENSE_LEAST_STEPS: u64 = 8;
/// The same of plain rows, whose steps are longer; tiles from which four warps a tile are enough, and from which two stages a warp are: what was
/// fastest of 1 to 8 warps, 1 to 8 blocks and 2 or 3 stages on an H200 (2026-11-30, projections of Kimi-K2.5 and Qwen3-30B-A3B at 1 and 16 rows).
const PLAIN_LEAST_STEPS: u64 = 3;
const FULL_TILES: u64 = 400;
const MANY_TILES: u64 = 4096;
/// Fewest steps a warp should have when several share a tile: about twice what it keeps in flight.
const LEAST_STEPS: u64 = 6;
/// Warps from which more of them on a tile no longer pay: between the counts at which two and four, four and eight were measured equal on an
/// H200 (2026-11-30, experts of Kimi-K2.5 and Qwen3-30B-A3B at 1, 16 and 64 tokens).
const FULL_WARPS: u64 = 6000;
/// Blocks below which a projection's long rows are also split over the four blocks of a cluster: one wave of two blocks on each of 132
/// multiprocessors is 264.
const FEW_BLOCKS: u64 = 200;
/// Blocks of a cluster (`CLUSTER` in linear.cu and linear_tile.cu).
const CLUSTER: u64 = 4;
/// Outputs, tokens and columns of a tile, threads of a block and its shared memory: three stages of two bf16 tiles (linear_tile.cu).
const TILE: u64 = 64;
const TILED_BLOCK: u32 = 128;
const TILED_SHARED_BYTES: u64 = 3 * 2 * TILE * TILE * 2;
/// Threads of a warpgroup, stages of two tiles, and blocks of a cluster of Hopper's kernel (linear_hopper.cu).
const HOPPER_GROUP: u32 = 128;
const HOPPER_STAGES: u64 = 4;
const HOPPER_CLUSTER: u64 = 8;
/// Columns of token rows in a buffer of the staged experts, times tiles of tokens (`Staged` in experts_staged.cuh).
const STAGED_COLS: u64 = 512;
/// Most pairs that one block sorts in shared memory, and most experts (`ROUNDS * BLOCK` and `BLOCK` in route.cu).
const LISTED_PAIRS: u64 = 4096;
const LISTED_EXPERTS: u64 = 1024;
/// Elements of a row that a block of the experts' sum takes.
const SUM_CHUNK: u64 = 1024;

/// A batch of products of token rows with matrices of equal shape.
pub(super) struct Product {
    /// Token rows.
    pub(super) rows: u64,
    /// Outputs a row.
    pub(super) n: u64,
    /// Contracted elements.
    pub(super) k: u64,
    /// Elements from a token row to the next, and between the parts of a row that different matrices take.
    pub(super) x_strides: (u64, u64),
    /// The same of the result.
    pub(super) y_strides: (u64, u64),
    /// Matrices.
    pub(super) batch: u64,
    /// Elements from a matrix to the next.
    pub(super) w_stride: u64,
    /// Whether the token rows are cache rows.
    pub(super) cached: bool,
}

impl Product {
    /// Whether it is one product of whole rows side by side.
    fn is_whole(&self) -> bool {
        self.batch == 1 && !self.cached && (self.x_strides.0, self.y_strides.0) == (self.k, self.n)
    }
}

/// The source of the experts kernels of a format.
fn experts_source(storage: Storage) -> &'static str {
    match storage {
        Storage::Rows(_) => "experts_bf16.cu",
        Storage::Int4 { .. } => "experts_int4.cu",
        Storage::Fp8 { .. } => "experts_fp8.cu",
    }
}

/// Columns that a step of a kernel takes (`STEP` of the streams in mma.cuh).
fn step_of(storage: Storage) -> u64 {
    match storage {
        Storage::Rows(_) => 64,
        Storage::Int4 { .. } => 128,
        Storage::Fp8 { .. } => 64,
    }
}

/// Warps that share a tile of the experts, for rows of `steps` steps and `tiles` tiles in all: as few as fill the GPU, since long rows start
/// and end less often, but not so many that a warp has less than its pipeline holds.
fn parts_of(storage: Storage, steps: u64, tiles: u64) -> u64 {
    let most = most_parts(steps, if matches!(storage, Storage::Rows(_)) { PLAIN_LEAST_STEPS } else { LEAST_STEPS });
    [1, 2, 4].into_iter().find(|p| *p < most && tiles * p >= FULL_WARPS).unwrap_or(most)
}

/// Shared memory of the staged experts for units of `tokens` tiles of tokens (`Staged` in experts_staged.cuh).
fn staged_bytes(storage: Storage, tokens: u64) -> u64 {
    let (stages, size, step, tiles): (u64, u64, u64, u64) = match storage {
        Storage::Int4 { .. } => (5, 1152, 128, tokens),
        _ => (3, 2048, 64, tokens),
    };
    let chunk = STAGED_COLS / (tiles * step);
    let buffers = (stages - 1).div_ceil(chunk) + 1;
    // For INT4 what sums begin with: four floats for every piece of 32 columns, tile and quarter of a warp.
    let offsets = if matches!(storage, Storage::Int4 { .. }) { chunk * step / 32 } else { 1 };
    u64::from(WARPS) * stages * size + buffers * TILE_TOKENS * tiles * (2 * chunk * step + 64) + offsets * tiles * 4 * 16
}

/// Warps that share a tile of a dense product: many where tiles are few, so that every multiprocessor has some, as many as leave each of them
/// enough steps.
fn dense_parts(plain: bool, steps: u64, tiles: u64) -> u64 {
    if !plain {
        return most_parts(steps, DENSE_LEAST_STEPS);
    }
    let most = most_parts(steps, PLAIN_LEAST_STEPS);
    if tiles >= FULL_TILES { most.min(4) } else { most }
}

/// Blocks of a cluster that share the tiles of `blocks` blocks: where these are too few to keep the memory busy, and rows are long.
fn dense_cluster(steps: u64, parts: u64, blocks: u64, tokens: u64) -> u64 {
    if parts < 8 {
        return 1;
    }
    if blocks < 50 && steps >= PLAIN_LEAST_STEPS * parts * CLUSTER {
        CLUSTER
    } else if tokens > 1 && blocks < FEW_BLOCKS && steps >= 2 * (PLAIN_LEAST_STEPS + 1) * parts {
        2
    } else {
        1
    }
}

/// As many warps as leave each of them `least` steps.
fn most_parts(steps: u64, least: u64) -> u64 {
    [8, 4, 2].into_iter().find(|p| steps >= p * least).unwrap_or(1)
}

impl Plan<'_> {
    pub(super) fn linear(&mut self) -> Result<(), LaunchError> {
        let (rows, n) = self.matrix_out(0)?;
        let (_, k) = self.matrix(self.node.inputs[0])?;
        let weight = self.node.inputs[1];
        // Where the contracted dimension is cut, only the first rank adds the bias.
        let adds = self.graph.tensors[weight].layout.shard_axis(1).is_none_or(|a| self.graph.deployment.axis_index(a, self.rank) == 0);
        let bias = if self.node.inputs.len() > 2 && adds { Arg::Input(2) } else { Arg::Null };
        let f32_out = element_of(self.graph, self.node.outputs[0]) == Element::F32;
        let storage = storage_of(self.graph, weight, self.rank)?;
        let plain = match storage {
            Storage::Rows(Element::F32) if f32_out => Some("linear_f32_f32"),
            Storage::Rows(Element::F32) => return Err(self.no_kernel("a projection with float weights and bf16 results")),
            Storage::Rows(_) if !k.is_multiple_of(8) => Some(if f32_out { "linear_bf16_f32" } else { "linear_bf16" }),
            _ => None,
        };
        if let Some(kernel) = plain {
            let args = vec![
                Arg::Input(0),
                Arg::Input(1),
                bias,
                Arg::Output(0),
                self.int(rows, "rows")?,
                self.int(n, "columns")?,
                self.int(k, "contracted dimension")?,
            ];
            return self.rows("linear.cu", kernel, n.div_ceil(u64::from(WARPS)), rows.div_ceil(PLAIN_ROWS), 0, args);
        }
        let product = Product { rows, n, k, x_strides: (k, 0), y_strides: (n, 0), batch: 1, w_stride: 0, cached: false };
        self.product(&product, storage, [Arg::Input(0), Arg::Input(1), bias], f32_out)
    }

    /// A tensor-core product of `[x, weights, bias]`; `weights` starts at operand 1 where scales follow it.
    pub(super) fn product(&mut self, p: &Product, storage: Storage, operands: [Arg; 3], f32_out: bool) -> Result<(), LaunchError> {
        if p.rows == 0 || p.n == 0 {
            return Ok(());
        }
        let plain = matches!(storage, Storage::Rows(_));
        if plain && p.rows > 2 * TILE_TOKENS {
            // What is offered to a matrix library is neither in float nor by heads.
            if self.tuning.is_hopper() && p.rows <= TILE && !p.cached && (f32_out || p.batch > 1) {
                let split = p.n.div_ceil(TILE) * p.batch < FEW_BLOCKS && p.k >= 2 * HOPPER_CLUSTER * TILE;
                let kernel = if split { "linear_hopper_split" } else { "linear_hopper" };
                return self.hopper_product(p, kernel, operands, f32_out, &[]);
            }
            return self.tiled(p, operands, f32_out);
        }
        let steps = p.k.div_ceil(step_of(storage));
        let tiles = p.n.div_ceil(TILE_ROWS);
        let tokens = [1, 2].into_iter().find(|t| p.rows <= t * TILE_TOKENS).unwrap_or(4);
        let chosen = self.tuning.parts(&Asked { op: "linear", storage, n: p.n, k: p.k, rows: p.rows });
        let parts = chosen.unwrap_or_else(|| dense_parts(plain, steps, tiles * p.batch));
        let blocks = tiles.div_ceil(u64::from(WARPS) / parts);
        let across = p.rows.div_ceil(TILE_TOKENS * tokens);
        let cluster = if plain && chosen.is_none() { dense_cluster(steps, parts, blocks * across * p.batch, tokens) } else { 1 };
        let kernel = match (storage, tokens, cluster) {
            (Storage::Rows(_), 1, 1) if tiles >= MANY_TILES => "linear_mma_bf16_1_many",
            (Storage::Rows(_), 1, 1) => "linear_mma_bf16_1",
            (Storage::Rows(_), 1, _) => "linear_mma_bf16_1_split",
            (Storage::Rows(_), _, 1) => "linear_mma_bf16_2",
            (Storage::Rows(_), _, 2) => "linear_mma_bf16_2_pair",
            (Storage::Rows(_), ..) => "linear_mma_bf16_2_split",
            (Storage::Int4 { .. }, 1, _) => "linear_mma_int4_1",
            (Storage::Int4 { .. }, 2, _) => "linear_mma_int4_2",
            (Storage::Int4 { .. }, ..) => "linear_mma_int4_4",
            (Storage::Fp8 { .. }, 1, _) => "linear_mma_fp8_1",
            (Storage::Fp8 { .. }, 2, _) => "linear_mma_fp8_2",
            (Storage::Fp8 { .. }, ..) => "linear_mma_fp8_4",
        };
        let mut args = self.product_args(p, operands, parts, f32_out)?;
        if let Storage::Fp8 { block_rows, block_cols, .. } = storage {
            let scales = storage.scales_at(Extent { experts: 1, rows: p.n, cols: p.k });
            args.extend([Arg::InputAt { index: 1, offset: scales }, Arg::I32(block_rows as i32), Arg::I32(block_cols as i32)]);
        }
        self.grid("linear.cu", kernel, [blocks * cluster, across, p.batch], BLOCK, 0, args)
    }

    /// A product on Hopper's warpgroup products (linear_hopper.cu); `extra` follows the arguments of all products.
    pub(super) fn hopper_product(
        &mut self,
        p: &Product,
        kernel: &'static str,
        operands: [Arg; 3],
        f32_out: bool,
        extra: &[Arg],
    ) -> Result<(), LaunchError> {
        let mut args = self.product_args(p, operands, 1, f32_out)?;
        args.extend_from_slice(extra);
        let (groups, cluster) = match kernel {
            "linear_hopper_split" => (1, HOPPER_CLUSTER),
            "linear_hopper" => (1, 1),
            _ => (2, 1),
        };
        let blocks = [p.n.div_ceil(TILE * groups) * cluster, p.rows.div_ceil(TILE), p.batch];
        let shared = HOPPER_STAGES * (groups + 1) * TILE * TILE * 2;
        self.grid("linear_hopper.cu", kernel, blocks, HOPPER_GROUP * groups as u32, shared, args)
    }

    /// A product of many token rows: both operands in tiles.
    fn tiled(&mut self, p: &Product, operands: [Arg; 3], f32_out: bool) -> Result<(), LaunchError> {
        let (blocks, across) = (p.n.div_ceil(TILE), p.rows.div_ceil(TILE));
        let split = blocks * across * p.batch < FEW_BLOCKS && p.k >= 2 * CLUSTER * TILE;
        let args = self.product_args(p, operands, 1, f32_out)?;
        let (kernel, wide) = if split { ("linear_tile_bf16_split", blocks * CLUSTER) } else { ("linear_tile_bf16", blocks) };
        let biased = !matches!(args[2], Arg::Null);
        self.grid("linear_tile.cu", kernel, [wide, across, p.batch], TILED_BLOCK, TILED_SHARED_BYTES, args)?;
        if p.is_whole() && !f32_out && p.rows >= LIBRARY_ROWS {
            self.offer(DenseProduct { rows: p.rows, n: p.n, k: p.k, biased });
        }
        Ok(())
    }

    /// What every product kernel takes first (`SHAPE_PARAMS` in shape.cuh).
    fn product_args(&self, p: &Product, operands: [Arg; 3], parts: u64, f32_out: bool) -> Result<Vec<Arg>, LaunchError> {
        let [x, weights, bias] = operands;
        let mut args = vec![x, weights, bias, Arg::Output(0)];
        for (value, what) in [
            (p.rows, "rows"),
            (p.n, "columns"),
            (p.k, "contracted dimension"),
            (p.x_strides.0, "elements of a row"),
            (p.y_strides.0, "elements of a row"),
            (p.x_strides.1, "elements of a head"),
            (p.y_strides.1, "elements of a head"),
        ] {
            args.push(self.int(value, what)?);
        }
        args.extend([Arg::U64(p.w_stride), self.int(parts, "parts")?, Arg::I32(i32::from(f32_out))]);
        args.extend(if p.cached { [Arg::Sequences, self.sequences()?] } else { [Arg::Null, Arg::I32(0)] });
        Ok(args)
    }

    pub(super) fn experts(&mut self, activation: Activation) -> Result<(), LaunchError> {
        let (rows, hidden) = self.matrix_out(0)?;
        let (_, topk) = self.matrix(self.node.inputs[1])?;
        let down = self.graph.local_shape(self.node.inputs[4], self.rank)?;
        let mut e = ExpertsPlan {
            rows,
            hidden,
            topk,
            pairs: rows * topk,
            first: down[0].start,
            local: down[0].end - down[0].start,
            inter: down[2].end - down[2].start,
            biased: self.node.inputs.len() > 5,
            // Where the intermediate dimension is cut, one rank adds the bias of down.
            down_biased: self.node.inputs.len() > 5 && self.graph.deployment.axis_index(Axis::MoeTp, self.rank) == 0,
            f32_out: element_of(self.graph, self.node.outputs[0]) == Element::F32,
            least_tokens: 1,
        };
        if e.pairs == 0 {
            return Ok(());
        }
        let storages = [storage_of(self.graph, self.node.inputs[3], self.rank)?, storage_of(self.graph, self.node.inputs[4], self.rank)?];
        let h = self.scratch(2 * e.pairs * e.inter);
        let plain = |s: Storage, k: u64| matches!(s, Storage::Rows(_)) && !k.is_multiple_of(8);
        if plain(storages[0], e.hidden) || plain(storages[1], e.inter) {
            return self.experts_plain(&e, activation, h);
        }
        if rows == 1 {
            return self.experts_single(&e, activation, storages, h);
        }
        let forms = [self.up_form(&e, storages[0]), self.down_form(&e, storages[1])];
        if storages.iter().zip(forms).any(|(s, (_, staged))| staged && matches!(s, Storage::Rows(_))) {
            e.least_tokens = 2;
        }
        let offsets = self.scratch(4 * (e.local + 1));
        let active = self.scratch(4 * (e.units() + 1));
        let list = self.scratch(4 * e.pairs);
        let y = self.scratch(4 * e.pairs * e.hidden);
        let small = e.pairs <= LISTED_PAIRS && e.local <= LISTED_EXPERTS;
        let args = vec![
            Arg::Input(1),
            offsets.clone(),
            list.clone(),
            active.clone(),
            self.int(e.pairs, "pairs")?,
            self.int(e.first, "experts")?,
            self.int(e.local, "experts")?,
            self.int(e.tokens() * TILE_TOKENS, "tokens of a unit")?,
        ];
        let kernel = if small { "expert_lists" } else { "expert_lists_large" };
        self.grid("route.cu", kernel, [1, 1, 1], LISTED_EXPERTS as u32, if small { 2 * (LISTED_EXPERTS / 32) * e.local } else { 0 }, args)?;
        let lists = [offsets, list, active];
        self.gate_up(&e, activation, storages[0], Some(&lists), h.clone())?;
        let (parts, staged) = forms[1];
        let mut args = vec![h];
        args.extend(self.weights(storages[1], self.node.inputs[4], 4)?);
        args.push(if e.down_biased { Arg::Input(6) } else { Arg::Null });
        args.extend(lists);
        args.extend([
            y.clone(),
            self.int(e.hidden, "hidden")?,
            self.int(e.inter, "intermediate")?,
            self.int(e.local, "experts")?,
            self.int(parts, "parts")?,
        ]);
        let kernel = match (storages[1], e.tokens()) {
            (Storage::Rows(_), 2) if staged => "experts_down_bf16_staged_2",
            (Storage::Rows(_), _) if staged => "experts_down_bf16_staged_4",
            (Storage::Int4 { .. }, 1) if staged => "experts_down_int4_staged_1",
            (Storage::Int4 { .. }, 2) if staged => "experts_down_int4_staged_2",
            (Storage::Int4 { .. }, _) if staged => "experts_down_int4_staged_4",
            (Storage::Rows(_), 1) => "experts_down_bf16_1",
            (Storage::Rows(_), 2) => "experts_down_bf16_2",
            (Storage::Rows(_), _) => "experts_down_bf16_4",
            (Storage::Int4 { .. }, 1) => "experts_down_int4_1",
            (Storage::Int4 { .. }, 2) => "experts_down_int4_2",
            (Storage::Int4 { .. }, _) => "experts_down_int4_4",
            (Storage::Fp8 { .. }, 1) => "experts_down_fp8_1",
            (Storage::Fp8 { .. }, 2) => "experts_down_fp8_2",
            (Storage::Fp8 { .. }, _) => "experts_down_fp8_4",
        };
        let blocks = e.hidden.div_ceil(TILE_ROWS).div_ceil(u64::from(WARPS) / parts);
        let shared = if staged { staged_bytes(storages[1], e.tokens()) } else { 0 };
        self.grid(experts_source(storages[1]), kernel, [blocks, e.units(), 1], BLOCK, shared, args)?;
        self.experts_sum(&e, y)
    }

    /// Warps that share a tile of an experts' product, and whether its token rows are staged: where every warp has a tile of its own. Rows that
    /// are read at once by all of them are then read once.
    fn expert_form(&self, e: &ExpertsPlan, storage: Storage, steps: u64, tiles: u64) -> (u64, bool) {
        let measured = self.tuning.parts(&Asked { op: "experts", storage, n: e.inter, k: e.hidden, rows: e.rows });
        let many = e.rows > 1 && tiles >= FULL_WARPS;
        let parts = measured.unwrap_or_else(|| if many { 1 } else { parts_of(storage, steps, tiles) });
        let stages = matches!(storage, Storage::Rows(_) | Storage::Int4 { .. });
        (parts, parts == 1 && e.rows > 1 && stages)
    }

    fn up_form(&self, e: &ExpertsPlan, storage: Storage) -> (u64, bool) {
        let active = if e.rows > 1 { e.active() } else { e.topk };
        self.expert_form(e, storage, e.hidden.div_ceil(step_of(storage)), e.inter.div_ceil(FUSED_COLS) * active)
    }
    fn down_form(&self, e: &ExpertsPlan, storage: Storage) -> (u64, bool) {
        self.expert_form(e, storage, e.inter.div_ceil(step_of(storage)), e.hidden.div_ceil(TILE_ROWS) * e.active())
    }

    /// Gate, up and the activation of the listed pairs, or of one token's choices.
    fn gate_up(
        &mut self,
        e: &ExpertsPlan,
        activation: Activation,
        storage: Storage,
        lists: Option<&[Arg; 3]>,
        h: Arg,
    ) -> Result<(), LaunchError> {
        let (parts, staged) = self.up_form(e, storage);
        let mut args = vec![Arg::Input(0)];
        args.extend(self.weights(storage, self.node.inputs[3], 3)?);
        args.push(if e.biased { Arg::Input(5) } else { Arg::Null });
        args.push(Arg::Input(1));
        match lists {
            Some([offsets, list, active]) => args.extend([offsets.clone(), list.clone(), active.clone()]),
            None => args.extend([Arg::Null, Arg::Null, Arg::Null]),
        }
        args.push(h);
        args.extend([
            self.int(e.hidden, "hidden")?,
            self.int(e.inter, "intermediate")?,
            self.int(e.topk, "topk")?,
            self.int(e.first, "experts")?,
            self.int(e.local, "experts")?,
            self.int(parts, "parts")?,
        ]);
        args.extend(activation_args(activation));
        let tokens = if lists.is_some() { e.tokens() } else { 1 };
        let kernel = match (storage, tokens) {
            (Storage::Rows(_), 2) if staged => "experts_gate_up_bf16_staged_2",
            (Storage::Rows(_), _) if staged => "experts_gate_up_bf16_staged_4",
            (Storage::Int4 { .. }, 1) if staged => "experts_gate_up_int4_staged_1",
            (Storage::Int4 { .. }, 2) if staged => "experts_gate_up_int4_staged_2",
            (Storage::Int4 { .. }, _) if staged => "experts_gate_up_int4_staged_4",
            (Storage::Rows(_), 1) => "experts_gate_up_bf16_1",
            (Storage::Rows(_), 2) => "experts_gate_up_bf16_2",
            (Storage::Rows(_), _) => "experts_gate_up_bf16_4",
            (Storage::Int4 { .. }, 1) => "experts_gate_up_int4_1",
            (Storage::Int4 { .. }, 2) => "experts_gate_up_int4_2",
            (Storage::Int4 { .. }, _) => "experts_gate_up_int4_4",
            (Storage::Fp8 { .. }, 1) => "experts_gate_up_fp8_1",
            (Storage::Fp8 { .. }, 2) => "experts_gate_up_fp8_2",
            (Storage::Fp8 { .. }, _) => "experts_gate_up_fp8_4",
        };
        let y = if lists.is_some() { e.units() } else { e.topk };
        let blocks = e.inter.div_ceil(FUSED_COLS).div_ceil(u64::from(WARPS) / parts);
        let shared = if staged { staged_bytes(storage, tokens) } else { 0 };
        self.grid(experts_source(storage), kernel, [blocks, y, 1], BLOCK, shared, args)
    }

    /// One token: its choices are the list, and down sums them.
    fn experts_single(&mut self, e: &ExpertsPlan, activation: Activation, storages: [Storage; 2], h: Arg) -> Result<(), LaunchError> {
        self.gate_up(e, activation, storages[0], None, h.clone())?;
        let mut args = vec![h];
        args.extend(self.weights(storages[1], self.node.inputs[4], 4)?);
        args.push(if e.down_biased { Arg::Input(6) } else { Arg::Null });
        args.extend([Arg::Input(1), Arg::Input(2), Arg::Output(0)]);
        args.extend([
            self.int(e.hidden, "hidden")?,
            self.int(e.inter, "intermediate")?,
            self.int(e.topk, "topk")?,
            self.int(e.first, "experts")?,
            self.int(e.local, "experts")?,
            Arg::I32(i32::from(e.f32_out)),
        ]);
        let tiles = e.hidden.div_ceil(TILE_ROWS);
        let (kernel, cluster) = match storages[1] {
            // Too few blocks to keep the memory busy: two share a tile's columns.
            Storage::Rows(_) if tiles < FEW_BLOCKS => ("experts_down_bf16_single_pair", 2),
            Storage::Rows(_) => ("experts_down_bf16_single", 1),
            Storage::Int4 { .. } => ("experts_down_int4_single", 1),
            Storage::Fp8 { .. } => ("experts_down_fp8_single", 1),
        };
        self.rows(experts_source(storages[1]), kernel, cluster * tiles, 1, 0, args)
    }

    /// Rows whose length no tensor-core kernel takes.
    fn experts_plain(&mut self, e: &ExpertsPlan, activation: Activation, h: Arg) -> Result<(), LaunchError> {
        let packed = |s: Storage| !matches!(s, Storage::Rows(_));
        if packed(storage_of(self.graph, self.node.inputs[3], self.rank)?)
            || packed(storage_of(self.graph, self.node.inputs[4], self.rank)?)
        {
            return Err(self.no_kernel("experts whose gate and down are stored in different ways"));
        }
        let y = self.scratch(4 * e.pairs * e.hidden);
        let (hidden, inter, pairs) = (self.int(e.hidden, "hidden")?, self.int(e.inter, "intermediate")?, self.int(e.pairs, "pairs")?);
        let (first, local) = (self.int(e.first, "experts")?, self.int(e.local, "experts")?);
        let bias = |held: bool, index| if held { Arg::Input(index) } else { Arg::Null };
        let mut args = vec![Arg::Input(0), Arg::Input(3), bias(e.biased, 5), Arg::Input(1), h.clone(), hidden.clone(), inter.clone()];
        args.extend([self.int(e.topk, "topk")?, pairs.clone(), first.clone(), local.clone()]);
        args.extend(activation_args(activation));
        let across = e.pairs.min(1024);
        self.rows("experts.cu", "experts_gate_up_plain", e.inter.div_ceil(u64::from(WARPS)), across, 0, args)?;
        let args = vec![h, Arg::Input(4), bias(e.down_biased, 6), Arg::Input(1), y.clone(), hidden, inter, pairs, first, local];
        self.rows("experts.cu", "experts_down_plain", e.hidden.div_ceil(u64::from(WARPS)), across, 0, args)?;
        self.experts_sum(e, y)
    }

    fn experts_sum(&mut self, e: &ExpertsPlan, y: Arg) -> Result<(), LaunchError> {
        let args = vec![
            y,
            Arg::Input(1),
            Arg::Input(2),
            Arg::Output(0),
            self.int(e.hidden, "hidden")?,
            self.int(e.topk, "topk")?,
            self.int(e.first, "experts")?,
            self.int(e.local, "experts")?,
            Arg::I32(i32::from(e.f32_out)),
        ];
        self.rows("experts.cu", "experts_sum", e.rows, e.hidden.div_ceil(SUM_CHUNK), 0, args)
    }

    /// The weight arguments of an experts kernel.
    fn weights(&self, storage: Storage, tensor: TensorId, index: usize) -> Result<Vec<Arg>, LaunchError> {
        let mut args = vec![Arg::Input(index)];
        if let Storage::Fp8 { block_rows, block_cols, .. } = storage {
            let offset = storage.scales_at(extent_of(self.graph, tensor, self.rank)?);
            args.extend([Arg::InputAt { index, offset }, Arg::I32(block_rows as i32), Arg::I32(block_cols as i32)]);
        }
        Ok(args)
    }
}

/// Sizes of an experts node on a rank.
struct ExpertsPlan {
    rows: u64,
    hidden: u64,
    topk: u64,
    pairs: u64,
    first: u64,
    local: u64,
    inter: u64,
    biased: bool,
    down_biased: bool,
    f32_out: bool,
    /// Fewest token tiles of a unit: two for plain rows, whose staged kernels compute only tiles with tokens.
    least_tokens: u64,
}

impl ExpertsPlan {
    /// Experts that random choices of all pairs hit, in the mean.
    fn active(&self) -> u64 {
        let (pairs, local) = (self.pairs as f64, self.local.max(1) as f64);
        (local * (1.0 - libm::pow(1.0 - 1.0 / local, pairs))) as u64
    }
    /// Most units of work (`expert_lists` in route.cu): an expert's last one may be part of one.
    fn units(&self) -> u64 {
        self.pairs.min(self.local) + self.pairs / (self.tokens() * TILE_TOKENS)
    }
    /// Token tiles of a unit of work: enough for twice the mean of tokens that an expert gets; more tokens are further units.
    fn tokens(&self) -> u64 {
        let mean = self.pairs.div_ceil(self.local.max(1));
        [1, 2].into_iter().filter(|t| *t >= self.least_tokens).find(|t| 2 * mean <= t * TILE_TOKENS).unwrap_or(4)
    }
}
