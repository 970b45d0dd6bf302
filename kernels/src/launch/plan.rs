//! From an op and a rank's local sizes to launches.

use super::{Arg, Element, Launch, Launches, Table, element_of};
use moetwin_models::graph::SplitError;
use moetwin_models::spec::{Activation, GroupScore, RopeSpec, RouterSpec, Scoring};
use moetwin_models::{Axis, Graph, Node, NodeId, Op, RankId, TensorId};

/// Warps of a block in the projection and attention kernels (`WARPS` in attention.cu).
const WARPS: u32 = 8;
/// Threads of a block.
const BLOCK: u32 = WARPS * 32;
/// Rows that a warp of a projection computes at once (`ROWS` in linear.cu and experts.cu).
const ROWS: u64 = 8;
/// Scratch pieces start at multiples of this.
const ALIGNMENT_BYTES: u64 = 256;

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

/// The launches of `node` on `rank`; none where the rank has no rows. Communication and [`Op::Slice`] belong to the executor.
pub fn launches(graph: &Graph, node: NodeId, rank: RankId) -> Result<Launches, LaunchError> {
    let mut plan = Plan { graph, node: &graph.nodes[node], rank, out: Launches::default() };
    plan.op()?;
    Ok(plan.out)
}

struct Plan<'a> {
    graph: &'a Graph,
    node: &'a Node,
    rank: RankId,
    out: Launches,
}

impl Plan<'_> {
    fn op(&mut self) -> Result<(), LaunchError> {
        use Arg::{I32, Input, Output};
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
                self.rows("elementwise.cu", "embed", rows, 1, 0, args)
            }
            Op::RmsNorm { eps } => {
                let (rows, n) = self.matrix_out(0)?;
                let args = vec![Input(0), Input(1), Output(0), self.int(n, "columns")?, Arg::F32(*eps as f32)];
                self.rows("elementwise.cu", "rms_norm", rows, 1, 4 * n, args)
            }
            Op::AddRmsNorm { eps } => {
                let (rows, n) = self.matrix_out(0)?;
                let args = vec![Input(0), Input(1), Input(2), Output(0), Output(1), self.int(n, "columns")?, Arg::F32(*eps as f32)];
                self.rows("elementwise.cu", "add_rms_norm", rows, 1, 4 * n, args)
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
                self.rows("elementwise.cu", "gated_activation", rows, 1, 0, args)
            }
            Op::SelectRows => {
                let (rows, n) = self.matrix_out(0)?;
                let args = vec![Input(0), Arg::Sequences, Output(0), self.int(n, "columns")?];
                self.rows("elementwise.cu", "select_last", rows, 1, 0, args)
            }
            Op::Argmax => {
                let (rows, n) = self.matrix(self.node.inputs[0])?;
                let args = vec![Input(0), Output(0), self.int(n, "columns")?];
                self.rows("elementwise.cu", "argmax", rows, 1, 0, args)
            }
            Op::Linear { .. } => self.linear(),
            Op::Route { router, topk } => self.route(router, *topk),
            Op::PlaceExperts => self.place_experts(),
            Op::Experts { activation } => self.experts(*activation),
            Op::QkNorm { eps } => {
                let (rows, _) = self.matrix_out(0)?;
                let (q, k) = (self.vector(1)?, self.vector(2)?);
                let (_, all) = self.matrix_out(0)?;
                let args = vec![
                    Input(0),
                    Input(1),
                    Input(2),
                    Output(0),
                    self.int(q, "q")?,
                    self.int(k, "k")?,
                    self.int(all - q - k, "v")?,
                    Arg::F32(*eps as f32),
                ];
                self.rows("attention.cu", "qk_norm", rows, 1, 4 * q.max(k), args)
            }
            Op::QkvPrepare { head_dim, rope, qk_norm_eps } => self.qkv_prepare(*head_dim, rope.as_ref(), *qk_norm_eps),
            Op::GqaAttention { head_dim, scale, window, split_context: false } => {
                let (rows, columns) = self.matrix_out(0)?;
                let d = u64::from(*head_dim);
                let (_, cache) = self.matrix(self.node.inputs[1])?;
                let sinks = if self.node.inputs.len() > 2 { Input(2) } else { Arg::Null };
                let args = vec![
                    Input(0),
                    Input(1),
                    sinks,
                    Output(0),
                    Arg::Sequences,
                    self.sequences()?,
                    self.int(columns / d, "heads")?,
                    self.int(cache / (2 * d), "KV heads")?,
                    I32(*head_dim as i32),
                    I32(window.unwrap_or(0) as i32),
                    Arg::F32(*scale as f32),
                ];
                self.rows("attention.cu", "gqa_attention", rows, columns / d, 4 * d * u64::from(1 + WARPS), args)
            }
            Op::MlaNorm { eps, q_lora, kv_lora } => {
                let (rows, latent) = self.matrix(self.node.outputs[self.node.outputs.len() - 1])?;
                let (q, kv) = (u64::from(q_lora.unwrap_or(0)), u64::from(*kv_lora));
                let (q_weight, kv_weight, q_out, out) = match q_lora {
                    Some(_) => (Input(1), Input(2), Output(0), Output(1)),
                    None => (Arg::Null, Input(1), Arg::Null, Output(0)),
                };
                let args = vec![
                    Input(0),
                    q_weight,
                    kv_weight,
                    q_out,
                    out,
                    self.int(q, "q_lora")?,
                    self.int(kv, "kv_lora")?,
                    self.int(latent - kv, "rope")?,
                    Arg::F32(*eps as f32),
                ];
                self.rows("attention.cu", "mla_norm", rows, 1, 4 * q.max(kv), args)
            }
            Op::MlaRope { nope, rope } => {
                let (rows, columns) = self.matrix_out(0)?;
                let (_, latent) = self.matrix(self.node.inputs[1])?;
                let dim = u64::from(rope.dim);
                let heads = columns / (u64::from(*nope) + dim);
                let args = vec![
                    Input(0),
                    Input(1),
                    Input(2),
                    Output(0),
                    Output(1),
                    frequencies(rope),
                    Arg::Sequences,
                    self.sequences()?,
                    self.int(heads, "heads")?,
                    I32(*nope as i32),
                    self.int(latent - dim, "kv_lora")?,
                    I32(rope.dim as i32),
                    I32(i32::from(rope.interleaved)),
                    Arg::F32(rope.attention_factor() as f32),
                ];
                self.rows("attention.cu", "mla_rope", rows, heads + 1, 0, args)
            }
            Op::MlaAbsorbQuery { nope, rope_dim, v_dim } => {
                let (rows, columns) = self.matrix(self.node.inputs[0])?;
                let (_, kv_lora) = self.matrix(self.node.inputs[1])?;
                let heads = columns / u64::from(nope + rope_dim);
                let args = vec![
                    Input(0),
                    Input(1),
                    Output(0),
                    self.int(heads, "heads")?,
                    I32(*nope as i32),
                    I32(*rope_dim as i32),
                    I32(*v_dim as i32),
                    self.int(kv_lora, "kv_lora")?,
                ];
                self.rows("attention.cu", "mla_absorb_query", rows, heads, 0, args)
            }
            Op::MlaExpandValue { nope, v_dim } => {
                let (rows, columns) = self.matrix_out(0)?;
                let (_, kv_lora) = self.matrix(self.node.inputs[1])?;
                let heads = columns / u64::from(*v_dim);
                let args = vec![
                    Input(0),
                    Input(1),
                    Output(0),
                    self.int(heads, "heads")?,
                    I32(*nope as i32),
                    I32(*v_dim as i32),
                    self.int(kv_lora, "kv_lora")?,
                ];
                self.rows("attention.cu", "mla_expand_value", rows, heads, 0, args)
            }
            Op::MlaExpandKv => {
                let (rows, n) = self.matrix_out(0)?;
                let (_, latent) = self.matrix(self.node.inputs[0])?;
                let (_, kv_lora) = self.matrix(self.node.inputs[1])?;
                let args = vec![
                    Input(0),
                    Input(1),
                    Output(0),
                    Arg::Sequences,
                    self.sequences()?,
                    self.int(n, "columns")?,
                    self.int(kv_lora, "kv_lora")?,
                    self.int(latent - kv_lora, "rope")?,
                ];
                self.rows("attention.cu", "mla_expand_kv", n.div_ceil(u64::from(WARPS)), rows, 0, args)
            }
            Op::MlaDecode { kv_lora, scale, sparse_topk: None, split_context: false } => {
                let (rows, columns) = self.matrix_out(0)?;
                let (_, width) = self.matrix(self.node.inputs[1])?;
                let kv = u64::from(*kv_lora);
                let args = vec![
                    Input(0),
                    Input(1),
                    Output(0),
                    Arg::Sequences,
                    self.sequences()?,
                    self.int(columns / kv, "heads")?,
                    I32(*kv_lora as i32),
                    self.int(width - kv, "rope")?,
                    Arg::F32(*scale as f32),
                ];
                self.rows("attention.cu", "mla_decode", rows, columns / kv, 4 * (width + u64::from(WARPS) * kv), args)
            }
            Op::MlaPrefill { nope, v_dim, scale } => {
                let (rows, columns) = self.matrix_out(0)?;
                let (_, q) = self.matrix(self.node.inputs[0])?;
                let (_, width) = self.matrix(self.node.inputs[2])?;
                let v = u64::from(*v_dim);
                let heads = columns / v.max(1);
                let rope = (q / heads.max(1)).saturating_sub(u64::from(*nope));
                let args = vec![
                    Input(0),
                    Input(1),
                    Input(2),
                    Output(0),
                    Arg::Sequences,
                    self.sequences()?,
                    self.int(heads, "heads")?,
                    I32(*nope as i32),
                    self.int(rope, "rope")?,
                    I32(*v_dim as i32),
                    self.int(width - rope, "kv_lora")?,
                    Arg::F32(*scale as f32),
                ];
                self.rows("attention.cu", "mla_prefill", rows, heads, 4 * (u64::from(*nope) + rope + u64::from(WARPS) * v), args)
            }
            other => Err(self.no_kernel(other.name())),
        }
    }

    /// A grid of `x` by `y` blocks, nothing where either is zero.
    fn rows(
        &mut self,
        source: &'static str,
        kernel: &'static str,
        x: u64,
        y: u64,
        shared_bytes: u64,
        args: Vec<Arg>,
    ) -> Result<(), LaunchError> {
        if x == 0 || y == 0 {
            return Ok(());
        }
        let too_large = |what, value| LaunchError::TooLarge { node: self.name(), what, value };
        let grid = (
            u32::try_from(x).map_err(|_| too_large("blocks", x))?,
            u32::try_from(y).ok().filter(|y| *y < 65_536).ok_or_else(|| too_large("blocks along y", y))?,
        );
        let shared_bytes = u32::try_from(shared_bytes).map_err(|_| too_large("shared memory", shared_bytes))?;
        self.out.launches.push(Launch { source, kernel, grid, block: BLOCK, shared_bytes, args });
        Ok(())
    }

    fn linear(&mut self) -> Result<(), LaunchError> {
        use Arg::{Input, Output};
        let (rows, n) = self.matrix_out(0)?;
        let (_, k) = self.matrix(self.node.inputs[0])?;
        let kernel = if element_of(self.graph, self.node.outputs[0]) == Element::F32 { "linear_f32_f32" } else { "linear_bf16" };
        // Where the contracted dimension is cut, only the first rank adds the bias.
        let adds = self.graph.tensors[self.node.inputs[1]]
            .layout
            .shard_axis(1)
            .is_none_or(|a| self.graph.deployment.axis_index(a, self.rank) == 0);
        let bias = if self.node.inputs.len() > 2 && adds { Input(2) } else { Arg::Null };
        let args = vec![
            Input(0),
            Input(1),
            bias,
            Output(0),
            self.int(rows, "rows")?,
            self.int(n, "columns")?,
            self.int(k, "contracted dimension")?,
        ];
        self.rows("linear.cu", kernel, n.div_ceil(u64::from(WARPS)), rows.div_ceil(ROWS), 0, args)
    }

    fn route(&mut self, router: &RouterSpec, topk: u32) -> Result<(), LaunchError> {
        use Arg::{I32, Input, Output};
        let (rows, experts) = self.matrix(self.node.inputs[0])?;
        let scoring = match router.scoring {
            Scoring::Sigmoid => 0,
            Scoring::Softmax => 1,
            Scoring::SoftmaxTopk => 2,
        };
        let bias = if self.node.inputs.len() > 1 { Input(1) } else { Arg::Null };
        let args = vec![
            Input(0),
            bias,
            Output(0),
            Output(1),
            self.int(experts, "experts")?,
            I32(topk as i32),
            I32(scoring),
            I32(router.groups as i32),
            I32(router.topk_groups as i32),
            I32(i32::from(router.group_score == GroupScore::TopTwoSum)),
            I32(i32::from(router.normalize)),
            Arg::F32(router.normalize_eps as f32),
            Arg::F32(router.scale as f32),
        ];
        self.rows("route.cu", "route", rows, 1, 4 * (2 * experts + u64::from(router.groups)), args)
    }

    fn place_experts(&mut self) -> Result<(), LaunchError> {
        use Arg::{Input, Output};
        let (rows, topk) = self.matrix_out(0)?;
        let first = self.graph.local_shape(self.node.inputs[0], self.rank)?[0].start;
        let Some(placement) = &self.graph.deployment.placement else { return Err(self.no_kernel("a placement op without a placement")) };
        let experts = placement.physical_to_logical.iter().max().map_or(0, |m| m + 1);
        let mut starts = vec![0];
        let mut slots = Vec::new();
        for e in 0..experts {
            slots.extend(placement.slots(e).map(|s| s as i32));
            starts.push(slots.len() as i32);
        }
        let args = vec![
            Input(0),
            Arg::Table(Table::I32(starts)),
            Arg::Table(Table::I32(slots)),
            Output(0),
            self.int(rows * topk, "pairs")?,
            self.int(topk, "topk")?,
            self.int(first, "tokens")?,
        ];
        self.rows("route.cu", "place_experts", (rows * topk).div_ceil(u64::from(BLOCK)), 1, 0, args)
    }

    fn experts(&mut self, activation: Activation) -> Result<(), LaunchError> {
        use Arg::{Input, Output};
        let (rows, hidden) = self.matrix_out(0)?;
        let (_, topk) = self.matrix(self.node.inputs[1])?;
        let down = self.graph.local_shape(self.node.inputs[4], self.rank)?;
        let (first, local, inter) = (down[0].start, down[0].end - down[0].start, down[2].end - down[2].start);
        let pairs = rows * topk;
        if pairs == 0 {
            return Ok(());
        }
        let offsets = self.scratch(4 * (local + 1));
        let list = self.scratch(4 * pairs);
        let h = self.scratch(2 * pairs * inter);
        let y = self.scratch(4 * pairs * hidden);
        let biases = self.node.inputs.len() > 5;
        let down_bias = biases && self.graph.deployment.axis_index(Axis::MoeTp, self.rank) == 0;
        let optional = |present: bool, index| if present { Input(index) } else { Arg::Null };
        let (first, hidden_arg, inter_arg, topk_arg) =
            (self.int(first, "experts")?, self.int(hidden, "hidden")?, self.int(inter, "intermediate")?, self.int(topk, "topk")?);
        let local_arg = self.int(local, "experts")?;
        let args = vec![Input(1), offsets.clone(), list.clone(), self.int(pairs, "pairs")?, first.clone(), local_arg.clone()];
        self.rows("route.cu", "expert_lists", 1, 1, 0, args)?;
        let mut args = vec![
            Input(0),
            Input(3),
            optional(biases, 5),
            offsets.clone(),
            list.clone(),
            h.clone(),
            hidden_arg.clone(),
            inter_arg.clone(),
            topk_arg.clone(),
        ];
        args.extend(activation_args(activation));
        self.rows("experts.cu", "experts_gate_up_bf16", inter.div_ceil(u64::from(WARPS)), local, 0, args)?;
        let args = vec![h, Input(4), optional(down_bias, 6), offsets, list, y.clone(), hidden_arg.clone(), inter_arg];
        self.rows("experts.cu", "experts_down_bf16", hidden.div_ceil(u64::from(WARPS)), local, 0, args)?;
        let args = vec![y, Input(1), Input(2), Output(0), hidden_arg, topk_arg, first, local_arg];
        self.rows("experts.cu", "experts_sum", rows, 1, 0, args)
    }

    fn qkv_prepare(&mut self, head_dim: u32, rope: Option<&RopeSpec>, eps: Option<f64>) -> Result<(), LaunchError> {
        use Arg::{I32, Input, Output};
        let d = u64::from(head_dim);
        let (rows, q) = self.matrix_out(0)?;
        let (_, cache) = self.matrix(self.node.inputs[2])?;
        let (heads, kv_heads) = (q / d, cache / (2 * d));
        let norm = |index| if eps.is_some() { Input(index) } else { Arg::Null };
        let table = rope.map_or(Arg::Null, frequencies);
        let args = vec![
            Input(0),
            Input(1),
            Output(1),
            norm(3),
            norm(4),
            Output(0),
            table,
            Arg::Sequences,
            self.sequences()?,
            self.int(heads, "heads")?,
            self.int(kv_heads, "KV heads")?,
            I32(head_dim as i32),
            I32(rope.map_or(0, |r| r.dim as i32)),
            I32(i32::from(rope.is_some_and(|r| r.interleaved))),
            Arg::F32(rope.map_or(1.0, |r| r.attention_factor() as f32)),
            Arg::F32(eps.unwrap_or(0.0) as f32),
        ];
        self.rows("attention.cu", "qkv_prepare", rows, heads + 2 * kv_heads, 4 * d, args)
    }

    /// `[rows, columns]` that the rank holds of a tensor, dimensions after the first multiplied.
    fn matrix(&self, tensor: TensorId) -> Result<(u64, u64), LaunchError> {
        let sizes = self.graph.local_sizes(tensor, self.rank)?;
        Ok((sizes.first().copied().unwrap_or(1), sizes.iter().skip(1).product()))
    }
    fn matrix_out(&self, index: usize) -> Result<(u64, u64), LaunchError> {
        self.matrix(self.node.outputs[index])
    }
    fn vector(&self, input: usize) -> Result<u64, LaunchError> {
        Ok(self.graph.local_sizes(self.node.inputs[input], self.rank)?.iter().product())
    }
    /// How many sequences the rows of the first operand belong to.
    fn sequences(&self) -> Result<Arg, LaunchError> {
        let d = &self.graph.deployment;
        let cut = self.node.inputs.iter().any(|t| self.graph.tensors[*t].layout.get(Axis::AttnDp).is_some());
        let range = if cut { d.attention_sequences(&self.graph.step, self.rank) } else { d.replica_sequences(&self.graph.step, self.rank) };
        self.int(range.len() as u64, "sequences")
    }
    fn int(&self, value: u64, what: &'static str) -> Result<Arg, LaunchError> {
        i32::try_from(value).map(Arg::I32).map_err(|_| LaunchError::TooLarge { node: self.name(), what, value })
    }
    fn scratch(&mut self, bytes: u64) -> Arg {
        let offset = self.out.scratch_bytes;
        self.out.scratch_bytes = (offset + bytes).next_multiple_of(ALIGNMENT_BYTES);
        Arg::Scratch { offset }
    }
    fn name(&self) -> String {
        self.node.outputs.first().map_or_else(String::new, |t| self.graph.tensors[*t].name.clone())
    }
    fn no_kernel(&self, what: &str) -> LaunchError {
        LaunchError::NoKernel { node: self.name(), what: what.to_owned() }
    }
}

fn activation_args(activation: Activation) -> [Arg; 3] {
    match activation {
        Activation::Silu => [Arg::I32(0), Arg::F32(0.0), Arg::F32(0.0)],
        Activation::ClampedSwiglu { alpha, limit } => [Arg::I32(1), Arg::F32(alpha as f32), Arg::F32(limit as f32)],
    }
}

fn frequencies(rope: &RopeSpec) -> Arg {
    Arg::Table(Table::F64(rope.inverse_frequencies()))
}
