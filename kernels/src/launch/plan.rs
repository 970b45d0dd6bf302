//! From an op and a rank's local sizes to launches.

use super::router::carrier_of;
use super::{Arg, DenseProduct, Launch, Launches, Table, Tuning};
use moetwin_models::graph::SplitError;
use moetwin_models::spec::{Activation, RopeSpec};
use moetwin_models::{Axis, Graph, Node, NodeId, Op, RankId, TensorId};

/// Warps of a block in the projection and attention kernels (`WARPS` in attention.cu, `MMA_WARPS` in mma.cuh).
pub(super) const WARPS: u32 = 8;
/// Threads of a block.
pub(super) const BLOCK: u32 = WARPS * 32;
/// Threads of a block that walks a long row alone.
const WIDE_BLOCK: u32 = 1024;
/// Shared memory that a block may have on every architecture the kernels are compiled for: 99 KB of SM120.
pub const SHARED_LIMIT_BYTES: u32 = 99 << 10;
/// The same of the kernels that only Hopper runs (CUDA C++ programming guide 13.0, compute capability 9.0: 227 KB).
pub const HOPPER_SHARED_BYTES: u32 = 227 << 10;
/// Scratch pieces start at multiples of this.
const ALIGNMENT_BYTES: u64 = 256;

/// Blocks that share a row of logits (`PARTS` in elementwise.cu).
const ARGMAX_PARTS: u64 = 8;

/// Why an op has no launches.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LaunchError {
    /// A tensor that cannot be cut.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// An op or format without a kernel.
    #[error("{node}: {what} has no CUDA kernel")]
    NoKernel {
        /// The node's first result.
        node: String,
        /// What lacks one.
        what: String,
    },
    /// A size beyond what a kernel indexes with.
    #[error("{node}: {what} is {value}, more than a kernel can index")]
    TooLarge {
        /// The node's first result.
        node: String,
        /// What is too large.
        what: &'static str,
        /// Its value.
        value: u64,
    },
}

/// The launches of `node` on `rank`; none where the rank has no rows. Communication and [`Op::Slice`] belong to the executor; of
/// [`Op::AllReduceAddRmsNorm`] this is the norm, of a sum that begins where scratch memory does.
pub fn launches(graph: &Graph, node: NodeId, rank: RankId) -> Result<Launches, LaunchError> {
    launches_with(graph, node, rank, &Tuning::default())
}

/// The same with choices that were measured, and for the architecture that they name.
pub fn launches_with(graph: &Graph, node: NodeId, rank: RankId, tuning: &Tuning) -> Result<Launches, LaunchError> {
    let mut plan = Plan { graph, id: node, node: &graph.nodes[node], rank, tuning, out: Launches::default() };
    plan.op()?;
    Ok(plan.out)
}

/// The plan of one node on one rank.
pub(super) struct Plan<'a> {
    pub(super) graph: &'a Graph,
    pub(super) id: NodeId,
    pub(super) node: &'a Node,
    pub(super) rank: RankId,
    pub(super) tuning: &'a Tuning,
    out: Launches,
}

impl Plan<'_> {
    fn op(&mut self) -> Result<(), LaunchError> {
        use Arg::{Input, Output};
        match &self.node.op {
            Op::Embed => {
                let (rows, hidden) = self.matrix_out(0)?;
                let start = self.graph.local_shape(self.node.inputs[1], self.rank)?[0].clone();
                let args = vec![
                    Input(0),
                    Input(1),
                    Output(0),
                    self.int(hidden, "hidden")?,
                    self.int(start.start, "vocabulary")?,
                    self.int(start.end - start.start, "vocabulary")?,
                ];
                self.grid("elementwise.cu", "embed", [rows, 1, 1], row_block(hidden).0, 0, args)
            }
            Op::RmsNorm { eps } => {
                let (rows, n) = self.matrix_out(0)?;
                let args = vec![Input(0), Input(1), Output(0), self.int(n, "columns")?, Arg::F32(*eps as f32)];
                let (block, shared) = row_block(n);
                self.grid("elementwise.cu", "rms_norm", [rows, 1, 1], block, shared, args)
            }
            Op::AddRmsNorm { eps } => {
                let (rows, n) = self.matrix_out(0)?;
                let args = vec![Input(0), Input(1), Input(2), Output(0), Output(1), self.int(n, "columns")?, Arg::F32(*eps as f32)];
                let (block, shared) = row_block(n);
                self.grid("elementwise.cu", "add_rms_norm", [rows, 1, 1], block, shared, args)
            }
            Op::AllReduceAddRmsNorm { eps, .. } => {
                let (rows, n) = self.matrix_out(0)?;
                let sum = self.scratch(2 * rows * n);
                let args = vec![sum, Input(1), Input(2), Output(0), Output(1), self.int(n, "columns")?, Arg::F32(*eps as f32)];
                let (block, shared) = row_block(n);
                self.grid("elementwise.cu", "add_rms_norm", [rows, 1, 1], block, shared, args)
            }
            Op::Add => {
                let (rows, n) = self.matrix_out(0)?;
                let blocks = (rows * n).div_ceil(u64::from(BLOCK)).min(4096);
                let args = vec![Input(0), Input(1), Output(0), Arg::U64(rows * n)];
                self.rows("elementwise.cu", "add", blocks, 1, 0, args)
            }
            Op::SigmoidScale => {
                let (rows, n) = self.matrix_out(0)?;
                let (_, width) = self.matrix(self.node.inputs[1])?;
                let args = vec![Input(0), Input(1), Output(0), self.int(n, "columns")?, self.int(width, "columns")?];
                self.rows("elementwise.cu", "sigmoid_scale", rows, 1, 0, args)
            }
            Op::GatedActivation { activation } => {
                let (rows, n) = self.matrix_out(0)?;
                let mut args = vec![Input(0), Output(0), self.int(n, "columns")?];
                args.extend(activation_args(*activation));
                self.rows("elementwise.cu", "gated_activation", rows, n.div_ceil(u64::from(BLOCK)), 0, args)
            }
            Op::SelectRows => {
                let (rows, n) = self.matrix_out(0)?;
                let args = vec![Input(0), Arg::Sequences, Output(0), self.int(n, "columns")?];
                self.rows("elementwise.cu", "select_last", rows, 1, 0, args)
            }
            Op::Argmax => {
                let (rows, n) = self.matrix(self.node.inputs[0])?;
                let args = vec![Input(0), Output(0), self.int(n, "columns")?];
                self.grid("elementwise.cu", "argmax", [ARGMAX_PARTS, rows, 1], WIDE_BLOCK, 0, args)
            }
            Op::Linear { .. } if carrier_of(self.graph, self.id, self.rank).is_some() => Ok(()),
            Op::Linear { .. } => self.linear(),
            Op::Route { router, topk } => self.route(router, *topk),
            Op::PlaceExperts => self.place_experts(),
            Op::Experts { activation } => self.experts(*activation),
            Op::QkNorm { .. }
            | Op::QkvPrepare { .. }
            | Op::GqaAttention { split_context: false, .. }
            | Op::MlaNorm { .. }
            | Op::MlaRope { .. }
            | Op::MlaAbsorbQuery { .. }
            | Op::MlaExpandValue { .. }
            | Op::MlaExpandKv
            | Op::MlaDecode { sparse_topk: None, split_context: false, .. }
            | Op::MlaPrefill { .. } => self.attention(),
            other => Err(self.no_kernel(other.name())),
        }
    }

    /// A grid of `x` by `y` blocks of the usual size, nothing where either is zero.
    pub(super) fn rows(
        &mut self,
        source: &'static str,
        kernel: &'static str,
        x: u64,
        y: u64,
        shared_bytes: u64,
        args: Vec<Arg>,
    ) -> Result<(), LaunchError> {
        self.grid(source, kernel, [x, y, 1], BLOCK, shared_bytes, args)
    }

    /// A grid of blocks of `block` threads, nothing where a dimension is zero.
    pub(super) fn grid(
        &mut self,
        source: &'static str,
        kernel: &'static str,
        blocks: [u64; 3],
        block: u32,
        shared_bytes: u64,
        args: Vec<Arg>,
    ) -> Result<(), LaunchError> {
        if blocks.contains(&0) {
            return Ok(());
        }
        let too_large = |what, value| LaunchError::TooLarge { node: self.name(), what, value };
        let below = |what, value: u64, limit: u32| u32::try_from(value).ok().filter(|v| *v <= limit).ok_or_else(|| too_large(what, value));
        let [x, y, z] = blocks;
        // Limits of the launch: CUDA C++ programming guide 13.0, table of technical specifications.
        let grid = (below("blocks", x, i32::MAX as u32)?, below("blocks along y", y, 65_535)?, below("blocks along z", z, 65_535)?);
        let limit = if self.tuning.is_hopper() { HOPPER_SHARED_BYTES } else { SHARED_LIMIT_BYTES };
        let shared_bytes = below("bytes of shared memory", shared_bytes, limit)?;
        self.out.launches.push(Launch { source, kernel, grid, block, shared_bytes, args, product: None });
        Ok(())
    }

    /// Offers the latest launch to a matrix library.
    pub(super) fn offer(&mut self, product: DenseProduct) {
        if let Some(launch) = self.out.launches.last_mut() {
            launch.product = Some(product);
        }
    }

    /// `[rows, columns]` that the rank holds of a tensor, dimensions after the first multiplied.
    pub(super) fn matrix(&self, tensor: TensorId) -> Result<(u64, u64), LaunchError> {
        let sizes = self.graph.local_sizes(tensor, self.rank)?;
        Ok((sizes.first().copied().unwrap_or(1), sizes.iter().skip(1).product()))
    }
    pub(super) fn matrix_out(&self, index: usize) -> Result<(u64, u64), LaunchError> {
        self.matrix(self.node.outputs[index])
    }
    pub(super) fn vector(&self, input: usize) -> Result<u64, LaunchError> {
        Ok(self.graph.local_sizes(self.node.inputs[input], self.rank)?.iter().product())
    }
    /// How many sequences the rows of the first operand belong to.
    pub(super) fn sequences(&self) -> Result<Arg, LaunchError> {
        let d = &self.graph.deployment;
        let cut = self.node.inputs.iter().any(|t| self.graph.tensors[*t].layout.get(Axis::AttnDp).is_some());
        let range = if cut { d.attention_sequences(&self.graph.step, self.rank) } else { d.replica_sequences(&self.graph.step, self.rank) };
        self.int(range.len() as u64, "sequences")
    }
    pub(super) fn int(&self, value: u64, what: &'static str) -> Result<Arg, LaunchError> {
        i32::try_from(value).map(Arg::I32).map_err(|_| LaunchError::TooLarge { node: self.name(), what, value })
    }
    pub(super) fn scratch(&mut self, bytes: u64) -> Arg {
        let offset = self.out.scratch_bytes;
        self.out.scratch_bytes = (offset + bytes).next_multiple_of(ALIGNMENT_BYTES);
        Arg::Scratch { offset }
    }
    pub(super) fn name(&self) -> String {
        self.node.outputs.first().map_or_else(String::new, |t| self.graph.tensors[*t].name.clone())
    }
    pub(super) fn no_kernel(&self, what: &str) -> LaunchError {
        LaunchError::NoKernel { node: self.name(), what: what.to_owned() }
    }
}

/// Threads for a row of `n` elements, eight a thread, and the shared memory that it takes: none where registers hold it (`held_by_block` in
/// elementwise.cu).
pub fn row_block(n: u64) -> (u32, u64) {
    let block = n.div_ceil(8).next_multiple_of(32).min(u64::from(WIDE_BLOCK));
    let held = n.is_multiple_of(8) && n <= 8 * block;
    (block as u32, if held { 0 } else { 4 * n })
}

pub(super) fn activation_args(activation: Activation) -> [Arg; 3] {
    match activation {
        Activation::Silu => [Arg::I32(0), Arg::F32(0.0), Arg::F32(0.0)],
        Activation::ClampedSwiglu { alpha, limit } => [Arg::I32(1), Arg::F32(alpha as f32), Arg::F32(limit as f32)],
    }
}

pub(super) fn frequencies(rope: &RopeSpec) -> Arg {
    Arg::Table(Table::F64(rope.inverse_frequencies()))
}
