//! Figures of a whole model: parameters, weight bytes, KV bytes. They count the text decoder, not what is outside the graph.

use crate::dtype::{DType, WeightFormat};
use crate::spec::{Attention, DenseSpec, Ffn, GqaSpec, LinearAttentionSpec, MlaSpec, ModelSpec, MoeSpec, QkNorm};

/// Equal stored tensors: matrices `[rows, cols]`, or vectors as one row.
#[derive(Clone, Copy, Debug)]
struct Stored {
    format: WeightFormat,
    rows: u64,
    cols: u64,
    /// How many there are.
    copies: u64,
    /// How many of them one token multiplies with.
    active: u64,
}

impl Stored {
    fn matrix(format: WeightFormat, rows: u64, cols: u64) -> Self {
        Self { format, rows, cols, copies: 1, active: 1 }
    }
}

/// Bytes of matrices of one format.
pub(crate) fn matrix_bytes(format: WeightFormat, shapes: &[(u64, u64)]) -> u64 {
    shapes.iter().map(|&(rows, cols)| format.matrix_bytes(rows, cols)).sum()
}

impl ModelSpec {
    /// Format of weights that no scheme quantizes: norms, router, biases.
    pub fn plain_format(&self) -> WeightFormat {
        WeightFormat::plain(self.dtype)
    }

    /// Parameters of the text decoder, a tied head counted once; scales of quantized weights are not parameters.
    pub fn total_parameters(&self) -> u64 {
        self.sum(|s| s.copies * s.rows * s.cols)
    }

    /// Parameters that the forward pass of one token multiplies with: everything but the experts that were not chosen
    /// and the embedding table, which is looked up in.
    pub fn active_parameters(&self) -> u64 {
        self.sum(|s| s.active * s.rows * s.cols)
    }

    /// Stored bytes of the text decoder's weights, scales included.
    pub fn weight_bytes(&self) -> u64 {
        self.sum(|s| s.copies * s.format.matrix_bytes(s.rows, s.cols))
    }

    /// Bytes that one token adds to an unsharded KV cache with elements of `kv_dtype`. Layers with a window add theirs too, until it is full;
    /// linear attention has a state of fixed size and adds nothing.
    pub fn kv_bytes_per_token(&self, kv_dtype: DType) -> u64 {
        self.layers.iter().map(|l| l.attention.kv_elements_per_token() * kv_dtype.bytes()).sum()
    }

    fn sum(&self, f: impl Fn(Stored) -> u64) -> u64 {
        let mut total = 0u64;
        // Readers bound whole models to MAX_WEIGHT_BYTES; saturation only concerns specs built by hand.
        self.for_each_stored(&mut |s| total = total.saturating_add(f(s)));
        total
    }

    fn for_each_stored(&self, each: &mut dyn FnMut(Stored)) {
        let plain = self.plain_format();
        let table = Stored::matrix(self.embedding_format, self.vocab, self.hidden);
        if self.tied_embeddings {
            each(table);
        } else {
            each(Stored { active: 0, ..table });
            each(table);
        }
        each(Stored::matrix(plain, 1, self.hidden));
        for layer in &self.layers {
            // Norms before attention and before the feed-forward block.
            each(Stored { copies: 2, active: 2, ..Stored::matrix(plain, 1, self.hidden) });
            match &layer.attention {
                Attention::Mla(spec) => mla(spec, self.hidden, plain, each),
                Attention::Gqa(spec) => gqa(spec, self.hidden, plain, each),
                Attention::Linear(spec) => linear(spec, self.hidden, plain, each),
            }
            match &layer.ffn {
                Ffn::Dense(spec) => dense(spec, self.hidden, plain, each),
                Ffn::Moe(spec) => moe(spec, self.hidden, plain, each),
            }
        }
    }
}

impl Attention {
    /// Elements that a token adds to the cache of this layer.
    pub fn kv_elements_per_token(&self) -> u64 {
        match self {
            Attention::Mla(spec) => u64::from(spec.kv_lora) + u64::from(spec.rope_dim),
            Attention::Gqa(spec) => 2 * u64::from(spec.kv_heads) * u64::from(spec.head_dim),
            Attention::Linear(_) => 0,
        }
    }
}

fn vectors(format: WeightFormat, lengths: &[u64], each: &mut dyn FnMut(Stored)) {
    lengths.iter().for_each(|&n| each(Stored::matrix(format, 1, n)));
}

fn mla(spec: &MlaSpec, hidden: u64, plain: WeightFormat, each: &mut dyn FnMut(Stored)) {
    let heads = u64::from(spec.heads);
    let (nope, rope, v) = (u64::from(spec.nope), u64::from(spec.rope_dim), u64::from(spec.v_dim));
    let kv_lora = u64::from(spec.kv_lora);
    let query = heads * (nope + rope);
    let mut matrix = |rows, cols| each(Stored::matrix(spec.format, rows, cols));
    match spec.q_lora.map(u64::from) {
        Some(q_lora) => {
            matrix(q_lora, hidden);
            matrix(query, q_lora);
        }
        None => matrix(query, hidden),
    }
    matrix(kv_lora + rope, hidden);
    matrix(heads * (nope + v), kv_lora);
    matrix(hidden, heads * v);
    let q_lora: Vec<u64> = spec.q_lora.map(u64::from).into_iter().collect();
    vectors(plain, &q_lora, each);
    vectors(plain, &[kv_lora], each);
    if spec.bias {
        vectors(plain, &q_lora, each);
        vectors(plain, &[kv_lora + rope, hidden], each);
    }
}

fn gqa(spec: &GqaSpec, hidden: u64, plain: WeightFormat, each: &mut dyn FnMut(Stored)) {
    let head_dim = u64::from(spec.head_dim);
    let (q, kv) = (u64::from(spec.heads) * head_dim, u64::from(spec.kv_heads) * head_dim);
    // An output gate is projected with the queries and as wide.
    let projected_q = if spec.output_gate { 2 * q } else { q };
    for (rows, cols) in [(projected_q, hidden), (kv, hidden), (kv, hidden), (hidden, q)] {
        each(Stored::matrix(spec.format, rows, cols));
    }
    if spec.qkv_bias {
        vectors(plain, &[projected_q, kv, kv], each);
    }
    if spec.o_bias {
        vectors(plain, &[hidden], each);
    }
    match spec.qk_norm {
        QkNorm::None => {}
        QkNorm::PerHead => vectors(plain, &[head_dim, head_dim], each),
        QkNorm::Full => vectors(plain, &[q, kv], each),
    }
    if spec.sinks {
        vectors(plain, &[u64::from(spec.heads)], each);
    }
}

/// Projections of q, k, v, z; of beta and decay, a few rows that checkpoints leave unquantized; the convolution; the output
/// (transformers 5.17, `Qwen3NextGatedDeltaNet`). The per-head norm, decay and time step, a few hundred numbers, are left out as in the graph.
fn linear(spec: &LinearAttentionSpec, hidden: u64, plain: WeightFormat, each: &mut dyn FnMut(Stored)) {
    let (key, value) = (u64::from(spec.key_heads) * u64::from(spec.key_dim), u64::from(spec.value_heads) * u64::from(spec.value_dim));
    each(Stored::matrix(spec.format, 2 * key + 2 * value, hidden));
    each(Stored::matrix(plain, 2 * u64::from(spec.value_heads), hidden));
    each(Stored::matrix(spec.format, hidden, value));
    each(Stored::matrix(plain, 2 * key + value, u64::from(spec.conv_width)));
}

fn dense(spec: &DenseSpec, hidden: u64, plain: WeightFormat, each: &mut dyn FnMut(Stored)) {
    gated_mlp(spec.format, hidden, spec.intermediate, 1, 1, each);
    if spec.bias {
        vectors(plain, &[2 * spec.intermediate, hidden], each);
    }
}

fn gated_mlp(format: WeightFormat, hidden: u64, intermediate: u64, copies: u64, active: u64, each: &mut dyn FnMut(Stored)) {
    each(Stored { copies: 2 * copies, active: 2 * active, ..Stored::matrix(format, intermediate, hidden) });
    each(Stored { copies, active, ..Stored::matrix(format, hidden, intermediate) });
}

fn moe(spec: &MoeSpec, hidden: u64, plain: WeightFormat, each: &mut dyn FnMut(Stored)) {
    let (experts, topk) = (u64::from(spec.experts), u64::from(spec.topk));
    each(Stored::matrix(plain, experts, hidden));
    if spec.router.correction_bias {
        // Kept in single precision (transformers 5.17, `_keep_in_fp32_modules_strict`).
        vectors(WeightFormat::F32, &[experts], each);
    }
    if spec.router.logits_bias {
        vectors(plain, &[experts], each);
    }
    gated_mlp(spec.format, hidden, spec.intermediate, experts, topk, each);
    if spec.expert_bias {
        each(Stored { copies: experts, active: topk, ..Stored::matrix(plain, 1, 2 * spec.intermediate) });
        each(Stored { copies: experts, active: topk, ..Stored::matrix(plain, 1, hidden) });
    }
    if let Some(shared) = &spec.shared {
        gated_mlp(shared.format, hidden, shared.intermediate, 1, 1, each);
        if shared.bias {
            vectors(plain, &[2 * shared.intermediate, hidden], each);
        }
        if shared.gated {
            vectors(plain, &[hidden], each);
        }
    }
}
