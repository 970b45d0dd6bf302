//! Launches of the attention kernels.

use super::matrix::Product;
use super::plan::{BLOCK, LaunchError, Plan, SHARED_LIMIT_BYTES, WARPS, frequencies};
use super::storage::Storage;
use super::{Arg, Element};
use moetwin_models::Op;
use moetwin_models::spec::RopeSpec;

/// Query heads of a block, cache rows of a tile, padding of a row, threads (decode.cu).
const TILE_HEADS: u64 = 16;
const TILE_ROWS: u64 = 64;
const PAD: u64 = 8;
const THREADS: u32 = 256;
/// Heads of a block of the kernel for many heads of MLA, its shared memory (`Tiles` in decode_mla.cu), the token rows from which it pays, and
/// blocks that fill a GPU: one on each of 132 multiprocessors.
const WIDE_HEADS: u64 = 64;
const WIDE_SHARED_BYTES: u64 = 2 * 2 * 32 * 584 + 4 * 2 * 64 * 36 + 2 * 64 * 40 + 4 * 64 + 8 * 64;
const WIDE_ROWS: u64 = 8;
/// Cache rows from which it pays: at 128 the queries it loads cost more than the rows it saves.
const WIDE_CONTEXT: u64 = 512;
const WIDE_BLOCKS: u64 = 132;
/// Threads and shared memory of the same kernel for Hopper (`Shared` in decode_mla_hopper.cu), and cache rows that a split is worth.
const HOPPER_THREADS: u32 = 384;
const HOPPER_SHARED: u64 = 9 * 64 * 128 + 4 * 9 * 32 * 128 + 64 * 128 + 4 * 2 * 64 + 8 * 64 + 8 * (4 + 4 + 2);
const HOPPER_SPLIT_ROWS: u64 = 64;
/// Query rows (tokens times heads) below which cache rows must be many for it to pay.
const HOPPER_QUERIES: u64 = 256;
const HOPPER_CONTEXT: u64 = 512;
/// Blocks that fill a GPU: two on each of 132 multiprocessors.
const FULL_BLOCKS: u64 = 264;
/// Widest value whose tiles leave room for four blocks on a multiprocessor, blocks that fill a GPU then, and cache rows that a split is worth:
/// fewer cost more in merging (H200, 2026-11-30, 32 heads over 4 of 128, 1 to 64 tokens, 128 to 4096 rows). Where blocks are few a tile each is
/// faster, up to what merges in one round.
const SMALL_VALUE: u64 = 128;
const SMALL_BLOCKS: u64 = 512;
const SMALL_ROWS: u64 = 128;
/// Columns that a block of the absorbing kernel takes, and tokens that its second form takes.
const ABSORB_COLS: u64 = 256;
const ABSORB_TOKENS: u64 = 4;
/// Token rows above which Hopper's kernel absorbs: below, the weights are read once all the same.
const ABSORB_ROWS: u64 = 8;
/// Threads of a block that merges splits.
const COMBINE_BLOCK: u32 = 128;
/// Splits that the combining kernel's loop handles a round.
const UNROLLED_SPLITS: u64 = 4;
/// Splits of a token up to which they are the blocks of a cluster, which merges them itself (`ATTEND` in decode.cu).
const MERGED_SPLITS: u64 = 4;
/// Most elements of a head that are prepared by a thread each.
const MOST_HEAD: u64 = 1024;

/// One attention over a cache.
struct Attend {
    sinks: Arg,
    rows: u64,
    heads: u64,
    key_heads: u64,
    key_width: u64,
    value_width: u64,
    /// Elements of a cache row, and from a key to its value (0: the value is the first part of the key).
    stride: u64,
    value_offset: u64,
    window: u32,
    scale: f64,
}

impl Attend {
    /// Bytes of a block's tiles.
    fn shared_bytes(&self) -> u64 {
        let keys = self.key_width + PAD;
        let values = if self.value_offset > 0 { TILE_ROWS * (self.value_width + PAD) } else { 0 };
        let halves = TILE_HEADS * keys + TILE_ROWS * keys + values + TILE_HEADS * (TILE_ROWS + PAD);
        2 * halves + 4 * TILE_HEADS * (TILE_ROWS + 4) + 4 * TILE_HEADS
    }
    /// Whether its widths are those that the kernels for MLA's many heads are made for.
    fn is_latent(&self) -> bool {
        let mla = self.value_offset == 0 && self.key_width == 576 && self.value_width == 512 && self.stride == 576;
        mla && self.window == 0 && matches!(self.sinks, Arg::Null)
    }
    /// Whether the portable one of them takes it: cache rows enough to be worth the queries that a block loads.
    fn is_wide(&self, longest: u64) -> bool {
        self.is_latent() && self.heads > 2 * TILE_HEADS && self.rows >= WIDE_ROWS && longest >= WIDE_CONTEXT
    }
    /// Whether the tensor-core kernel takes these widths.
    fn fits(&self) -> bool {
        let wide = |n: u64| n > 0 && n.is_multiple_of(16);
        wide(self.key_width) && wide(self.value_width) && self.value_width <= 512 && self.shared_bytes() <= u64::from(SHARED_LIMIT_BYTES)
    }
}

impl Plan<'_> {
    pub(super) fn attention(&mut self) -> Result<(), LaunchError> {
        match &self.node.op {
            Op::QkNorm { eps, clip } => self.qk_norm(*eps, *clip),
            Op::QkvPrepare { head_dim, rope, qk_norm_eps } => self.qkv_prepare(*head_dim, rope.as_ref(), *qk_norm_eps),
            Op::GqaAttention { head_dim, scale, window, .. } => self.gqa_attention(u64::from(*head_dim), *scale, window.unwrap_or(0)),
            Op::MlaNorm { eps, q_lora, kv_lora } => self.mla_norm(*eps, q_lora.map(u64::from), u64::from(*kv_lora)),
            Op::MlaRope { nope, rope } => self.mla_rope(*nope, rope),
            Op::MlaAbsorbQuery { nope, rope_dim, v_dim } => self.mla_absorb_query(*nope, *rope_dim, *v_dim),
            Op::MlaExpandValue { nope, v_dim } => self.mla_expand_value(u64::from(*nope), u64::from(*v_dim)),
            Op::MlaExpandKv => self.mla_expand_kv(),
            Op::MlaDecode { kv_lora, scale, .. } => self.mla_decode(u64::from(*kv_lora), *scale),
            Op::MlaPrefill { nope, v_dim, scale } => self.mla_prefill(u64::from(*nope), u64::from(*v_dim), *scale),
            other => Err(self.no_kernel(other.name())),
        }
    }

    fn qk_norm(&mut self, eps: f64, clip: Option<f64>) -> Result<(), LaunchError> {
        let (rows, all) = self.matrix_out(0)?;
        let (q, k) = (self.vector(1)?, self.vector(2)?);
        let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Input(2), Arg::Output(0)];
        args.extend([self.int(q, "q")?, self.int(k, "k")?, self.int(all - q - k, "v")?, Arg::F32(eps as f32)]);
        args.push(Arg::F32(clip.map_or(f32::INFINITY, |c| c as f32)));
        self.rows("attention.cu", "qk_norm", rows, 1, 4 * q.max(k), args)
    }

    fn qkv_prepare(&mut self, head_dim: u32, rope: Option<&RopeSpec>, eps: Option<f64>) -> Result<(), LaunchError> {
        let d = u64::from(head_dim);
        let (rows, q) = self.matrix_out(0)?;
        let (_, cache) = self.matrix(self.node.inputs[2])?;
        let (heads, kv_heads) = (q / d, cache / (2 * d));
        let norm = |index| if eps.is_some() { Arg::Input(index) } else { Arg::Null };
        let table = rope.map_or(Arg::Null, frequencies);
        let args = vec![
            Arg::Input(0),
            Arg::Input(1),
            Arg::Output(1),
            norm(3),
            norm(4),
            Arg::Output(0),
            table,
            Arg::Sequences,
            self.sequences()?,
            self.int(heads, "heads")?,
            self.int(kv_heads, "KV heads")?,
            Arg::I32(head_dim as i32),
            Arg::I32(rope.map_or(0, |r| r.dim as i32)),
            Arg::I32(i32::from(rope.is_some_and(|r| r.interleaved))),
            Arg::F32(rope.map_or(1.0, |r| r.attention_factor() as f32)),
            Arg::F32(eps.unwrap_or(0.0) as f32),
        ];
        // A thread an element.
        if d > MOST_HEAD {
            return Err(self.no_kernel("a head of more than 1024 elements"));
        }
        let block = d.next_multiple_of(32) as u32;
        self.grid("attention.cu", "qkv_prepare", [rows, heads + 2 * kv_heads, 1], block, 4 * d, args)
    }

    fn gqa_attention(&mut self, d: u64, scale: f64, window: u32) -> Result<(), LaunchError> {
        let (rows, columns) = self.matrix_out(0)?;
        let (_, cache) = self.matrix(self.node.inputs[1])?;
        let sinks = if self.node.inputs.len() > 2 { Arg::Input(2) } else { Arg::Null };
        let (heads, key_heads) = (columns / d, cache / (2 * d));
        let attend = Attend {
            sinks,
            rows,
            heads,
            key_heads,
            key_width: d,
            value_width: d,
            stride: cache,
            value_offset: key_heads * d,
            window,
            scale,
        };
        if attend.fits() {
            return self.attend(&attend);
        }
        let args = vec![
            Arg::Input(0),
            Arg::Input(1),
            attend.sinks,
            Arg::Output(0),
            Arg::Sequences,
            self.sequences()?,
            self.int(heads, "heads")?,
            self.int(key_heads, "KV heads")?,
            self.int(d, "head dimension")?,
            Arg::I32(window as i32),
            Arg::F32(scale as f32),
        ];
        self.rows("attention.cu", "gqa_attention", rows, heads, 4 * d * u64::from(1 + WARPS), args)
    }

    fn mla_decode(&mut self, kv: u64, scale: f64) -> Result<(), LaunchError> {
        let (rows, columns) = self.matrix_out(0)?;
        let (_, width) = self.matrix(self.node.inputs[1])?;
        let attend = Attend {
            sinks: Arg::Null,
            rows,
            heads: columns / kv,
            key_heads: 1,
            key_width: width,
            value_width: kv,
            stride: width,
            value_offset: 0,
            window: 0,
            scale,
        };
        if attend.fits() {
            return self.attend(&attend);
        }
        let args = vec![
            Arg::Input(0),
            Arg::Input(1),
            Arg::Output(0),
            Arg::Sequences,
            self.sequences()?,
            self.int(columns / kv, "heads")?,
            self.int(kv, "kv_lora")?,
            self.int(width - kv, "rope")?,
            Arg::F32(scale as f32),
        ];
        self.rows("attention.cu", "mla_decode", rows, columns / kv, 4 * (width + u64::from(WARPS) * kv), args)
    }

    fn attend(&mut self, a: &Attend) -> Result<(), LaunchError> {
        let longest = self.longest();
        if self.tuning.is_hopper() && a.is_latent() && (a.rows * a.heads >= HOPPER_QUERIES || longest >= HOPPER_CONTEXT) {
            return self.attend_hopper(a);
        }
        if a.is_wide(longest) {
            return self.attend_wide(a);
        }
        let longest = if a.window > 0 { longest.min(u64::from(a.window)) } else { longest };
        let across = a.key_heads * (a.heads / a.key_heads).div_ceil(TILE_HEADS);
        let blocks = (a.rows * across).max(1);
        let splits = if a.value_width <= SMALL_VALUE {
            let long = (SMALL_BLOCKS / blocks).min(longest / SMALL_ROWS);
            let short = (FULL_BLOCKS / blocks).min(longest.div_ceil(TILE_ROWS)).min(UNROLLED_SPLITS);
            long.max(short).max(1)
        } else {
            FULL_BLOCKS.div_ceil(blocks).min(longest.div_ceil(TILE_ROWS)).max(1)
        };
        let merged = splits > 1 && splits <= MERGED_SPLITS;
        let splits = if splits > 2 && merged { MERGED_SPLITS } else { splits };
        let (partial, states) = if merged { (Arg::Null, Arg::Null) } else { self.split_scratch(a, splits) };
        let args = vec![
            Arg::Input(0),
            Arg::Input(1),
            a.sinks.clone(),
            Arg::Output(0),
            partial.clone(),
            states.clone(),
            Arg::Sequences,
            self.sequences()?,
            self.int(a.heads, "heads")?,
            self.int(a.key_heads, "KV heads")?,
            self.int(a.key_width, "key width")?,
            self.int(a.value_width, "value width")?,
            self.int(a.stride, "cache row")?,
            self.int(a.value_offset, "cache row")?,
            Arg::I32(a.window as i32),
            Arg::F32(a.scale as f32),
            self.int(splits, "splits")?,
        ];
        let kernel = match (a.value_width, if merged { splits } else { 1 }) {
            (0..=128, 1) => "attend_1",
            (0..=128, 2) => "attend_1_pair",
            (0..=128, _) => "attend_1_cluster",
            (129..=256, 1) => "attend_2",
            (129..=256, 2) => "attend_2_pair",
            (129..=256, _) => "attend_2_cluster",
            (_, 1) => "attend_4",
            (_, 2) => "attend_4_pair",
            _ => "attend_4_cluster",
        };
        self.grid("decode.cu", kernel, [a.rows, across, splits], THREADS, a.shared_bytes(), args)?;
        if merged { Ok(()) } else { self.combine(a, splits, partial, states) }
    }

    /// MLA with many heads: all of them share the rows that a block reads.
    fn attend_wide(&mut self, a: &Attend) -> Result<(), LaunchError> {
        let longest = self.longest();
        let across = a.heads.div_ceil(WIDE_HEADS);
        let splits = (WIDE_BLOCKS / (a.rows * across).max(1)).min(longest.div_ceil(TILE_ROWS)).max(1);
        let (partial, states) = self.split_scratch(a, splits);
        let mut args =
            vec![Arg::Input(0), Arg::Input(1), Arg::Output(0), partial.clone(), states.clone(), Arg::Sequences, self.sequences()?];
        args.extend([self.int(a.heads, "heads")?, Arg::F32(a.scale as f32), self.int(splits, "splits")?]);
        self.grid("decode_mla.cu", "attend_mla", [a.rows, across, splits], THREADS, WIDE_SHARED_BYTES, args)?;
        self.combine(a, splits, partial, states)
    }

    /// The same on Hopper's warpgroup products. Two splits of a token are a cluster of two blocks, which merges them.
    fn attend_hopper(&mut self, a: &Attend) -> Result<(), LaunchError> {
        let across = a.heads.div_ceil(WIDE_HEADS);
        let splits = (WIDE_BLOCKS / (a.rows * across).max(1)).min(self.longest().div_ceil(HOPPER_SPLIT_ROWS)).max(1);
        let merges = splits == 2;
        let (partial, states) = if merges { (Arg::Null, Arg::Null) } else { self.split_scratch(a, splits) };
        let mut args =
            vec![Arg::Input(0), Arg::Input(1), Arg::Output(0), partial.clone(), states.clone(), Arg::Sequences, self.sequences()?];
        args.extend([self.int(a.heads, "heads")?, Arg::F32(a.scale as f32), self.int(splits, "splits")?]);
        let kernel = if merges { "attend_mla_hopper_2" } else { "attend_mla_hopper" };
        self.grid("decode_mla_hopper.cu", kernel, [a.rows, across, splits], HOPPER_THREADS, HOPPER_SHARED, args)?;
        if merges { Ok(()) } else { self.combine(a, splits, partial, states) }
    }

    /// Cache rows of the longest sequence.
    fn longest(&self) -> u64 {
        self.graph.step.sequences.iter().map(|s| u64::from(s.past) + u64::from(s.new)).max().unwrap_or(0)
    }

    fn split_scratch(&mut self, a: &Attend, splits: u64) -> (Arg, Arg) {
        if splits == 1 {
            return (Arg::Null, Arg::Null);
        }
        (self.scratch(4 * a.rows * a.heads * splits * a.value_width), self.scratch(8 * a.rows * a.heads * splits))
    }

    fn combine(&mut self, a: &Attend, splits: u64, partial: Arg, states: Arg) -> Result<(), LaunchError> {
        if splits == 1 {
            return Ok(());
        }
        let mut args = vec![partial, states, a.sinks.clone(), Arg::Output(0)];
        args.extend([self.int(a.heads, "heads")?, self.int(a.value_width, "value width")?, self.int(splits, "splits")?]);
        // The loop over splits is unrolled by four, and its last round is read whole.
        let factors = splits.next_multiple_of(UNROLLED_SPLITS) + UNROLLED_SPLITS;
        self.grid("decode.cu", "attend_combine", [a.rows, a.heads, 1], COMBINE_BLOCK, 4 * factors, args)
    }

    fn mla_norm(&mut self, eps: f64, q_lora: Option<u64>, kv: u64) -> Result<(), LaunchError> {
        let (rows, latent) = self.matrix(self.node.outputs[self.node.outputs.len() - 1])?;
        let q = q_lora.unwrap_or(0);
        let (q_weight, kv_weight, q_out, out) = match q_lora {
            Some(_) => (Arg::Input(1), Arg::Input(2), Arg::Output(0), Arg::Output(1)),
            None => (Arg::Null, Arg::Input(1), Arg::Null, Arg::Output(0)),
        };
        let args = vec![
            Arg::Input(0),
            q_weight,
            kv_weight,
            q_out,
            out,
            self.int(q, "q_lora")?,
            self.int(kv, "kv_lora")?,
            self.int(latent - kv, "rope")?,
            Arg::F32(eps as f32),
        ];
        self.rows("attention.cu", "mla_norm", rows, 2, 4 * q.max(kv), args)
    }

    fn mla_rope(&mut self, nope: u32, rope: &RopeSpec) -> Result<(), LaunchError> {
        let (rows, columns) = self.matrix_out(0)?;
        let (_, latent) = self.matrix(self.node.inputs[1])?;
        let dim = u64::from(rope.dim);
        let heads = columns / (u64::from(nope) + dim);
        if dim > 2 * u64::from(BLOCK) {
            return Err(self.no_kernel("a rotation of more than 512 elements"));
        }
        let args = vec![
            Arg::Input(0),
            Arg::Input(1),
            Arg::Input(2),
            Arg::Output(0),
            Arg::Output(1),
            frequencies(rope),
            Arg::Sequences,
            self.sequences()?,
            self.int(heads, "heads")?,
            Arg::I32(nope as i32),
            self.int(latent - dim, "kv_lora")?,
            Arg::I32(rope.dim as i32),
            Arg::I32(i32::from(rope.interleaved)),
            Arg::F32(rope.attention_factor() as f32),
        ];
        self.rows("attention.cu", "mla_rope", rows, heads + 1, 0, args)
    }

    fn mla_absorb_query(&mut self, nope: u32, rope: u32, v_dim: u32) -> Result<(), LaunchError> {
        let (rows, columns) = self.matrix(self.node.inputs[0])?;
        let (_, kv) = self.matrix(self.node.inputs[1])?;
        self.whole_eights(kv)?;
        let heads = columns / u64::from(nope + rope);
        let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0), self.int(rows, "rows")?, self.int(heads, "heads")?];
        args.extend([Arg::I32(nope as i32), Arg::I32(rope as i32), Arg::I32(v_dim as i32), self.int(kv, "kv_lora")?]);
        if self.tuning.is_hopper() && rows > ABSORB_ROWS && (u64::from(nope)).is_multiple_of(8) {
            return self.absorb_hopper(rows, heads, [u64::from(nope), u64::from(rope), u64::from(v_dim), kv]);
        }
        let (kernel, tokens) = if rows == 1 { ("mla_absorb_query_1", 1) } else { ("mla_absorb_query_4", ABSORB_TOKENS) };
        let blocks = [heads, kv.div_ceil(ABSORB_COLS), rows.div_ceil(tokens)];
        self.grid("attention.cu", kernel, blocks, WARPS * 32, 4 * u64::from(WARPS) * ABSORB_COLS * tokens, args)
    }

    /// The same on Hopper's warpgroup products: a product a head, whose weights lie turned.
    fn absorb_hopper(&mut self, rows: u64, heads: u64, [nope, rope, v_dim, kv]: [u64; 4]) -> Result<(), LaunchError> {
        let product = Product {
            rows,
            n: kv,
            k: nope,
            x_strides: (heads * (nope + rope), nope + rope),
            y_strides: (heads * (kv + rope), kv + rope),
            batch: heads,
            w_stride: (nope + v_dim) * kv,
            cached: false,
        };
        let extra = [self.int(rope, "rope")?];
        self.hopper_product(&product, "mla_absorb_query_hopper", [Arg::Input(0), Arg::Input(1), Arg::Null], false, &extra)
    }

    fn mla_expand_value(&mut self, nope: u64, v_dim: u64) -> Result<(), LaunchError> {
        let (rows, columns) = self.matrix_out(0)?;
        let (_, kv) = self.matrix(self.node.inputs[1])?;
        self.whole_eights(kv)?;
        let heads = columns / v_dim;
        let product = Product {
            rows,
            n: v_dim,
            k: kv,
            x_strides: (heads * kv, kv),
            y_strides: (columns, v_dim),
            batch: heads,
            w_stride: (nope + v_dim) * kv,
            cached: false,
        };
        let values = Arg::InputAt { index: 1, offset: Element::Bf16.bytes() * nope * kv };
        self.product(&product, Storage::Rows(Element::Bf16), [Arg::Input(0), values, Arg::Null], false)
    }

    fn mla_expand_kv(&mut self) -> Result<(), LaunchError> {
        let (rows, n) = self.matrix_out(0)?;
        let (_, latent) = self.matrix(self.node.inputs[0])?;
        let (_, kv) = self.matrix(self.node.inputs[1])?;
        self.whole_eights(kv)?;
        self.whole_eights(latent)?;
        let product = Product { rows, n, k: kv, x_strides: (latent, 0), y_strides: (n, 0), batch: 1, w_stride: 0, cached: true };
        self.product(&product, Storage::Rows(Element::Bf16), [Arg::Input(0), Arg::Input(1), Arg::Null], false)
    }

    fn mla_prefill(&mut self, nope: u64, v: u64, scale: f64) -> Result<(), LaunchError> {
        let (rows, columns) = self.matrix_out(0)?;
        let (_, q) = self.matrix(self.node.inputs[0])?;
        let (_, width) = self.matrix(self.node.inputs[2])?;
        let heads = columns / v.max(1);
        let rope = (q / heads.max(1)).saturating_sub(nope);
        let args = vec![
            Arg::Input(0),
            Arg::Input(1),
            Arg::Input(2),
            Arg::Output(0),
            Arg::Sequences,
            self.sequences()?,
            self.int(heads, "heads")?,
            self.int(nope, "nope")?,
            self.int(rope, "rope")?,
            self.int(v, "value dimension")?,
            self.int(width - rope, "kv_lora")?,
            Arg::F32(scale as f32),
        ];
        self.rows("attention.cu", "mla_prefill", rows, heads, 4 * (nope + rope + u64::from(WARPS) * v), args)
    }

    /// The latent kernels read sixteen bytes at a time.
    fn whole_eights(&self, elements: u64) -> Result<(), LaunchError> {
        if elements.is_multiple_of(8) { Ok(()) } else { Err(self.no_kernel("a latent whose width is no multiple of 8")) }
    }
}
