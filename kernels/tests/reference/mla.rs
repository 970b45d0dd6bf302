use crate::gqa::{attention_oracle, rotate_oracle};
use crate::harness::*;
use moetwin_kernels::reference::{Array, CacheSlot, LocalContext, Turn};
use moetwin_models::Op;
use moetwin_models::spec::{RopeScaling, RopeSpec};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    sequences: Vec<CacheSlot>,
    heads: usize,
    nope: usize,
    rope: usize,
    v: usize,
    kv_lora: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    (any::<u64>(), sequences(), 1usize..5, 1usize..8, 0usize..4, 1usize..8, 1usize..12)
        .prop_map(|(seed, sequences, heads, nope, half, v, kv_lora)| Case { seed, sequences, heads, nope, rope: 2 * half, v, kv_lora })
}

/// Operands of both forms of attention: rotated queries, a filled cache and the expanding projection.
struct Operands {
    q: Array<f64>,
    cache: Array<f64>,
    kv_b: Array<f64>,
}

impl Case {
    fn operands(&self) -> Operands {
        let mut n = Numbers::new(self.seed);
        Operands {
            q: n.array(&[tokens(&self.sequences).len(), self.heads * (self.nope + self.rope)]),
            cache: n.array(&[cache_rows(&self.sequences), self.kv_lora + self.rope]),
            kv_b: n.array(&[self.heads * (self.nope + self.v), self.kv_lora]),
        }
    }
    fn context(&self) -> LocalContext<'_> {
        LocalContext { sequences: &self.sequences, ..LocalContext::default() }
    }
    fn absorbed(&self, o: &Operands) -> Array<f64> {
        let t = o.q.sizes[0];
        let (nope, rope_dim, v_dim) = (self.nope as u32, self.rope as u32, self.v as u32);
        let absorb = Op::MlaAbsorbQuery { nope, rope_dim, v_dim };
        let width = self.heads * (self.kv_lora + self.rope);
        let q_latent = compute(&absorb, &self.context(), &[o.q.clone(), o.kv_b.clone()], &[Result64::Real(vec![t, width])]).remove(0);
        let decode = Op::MlaDecode { kv_lora: self.kv_lora as u32, scale: SCALE, sparse_topk: None, split_context: false };
        let sizes = vec![t, self.heads * self.kv_lora];
        let o_latent = compute(&decode, &self.context(), &[q_latent, o.cache.clone()], &[Result64::Real(sizes)]).remove(0);
        let expand = Op::MlaExpandValue { nope, v_dim };
        compute(&expand, &self.context(), &[o_latent, o.kv_b.clone()], &[Result64::Real(vec![t, self.heads * self.v])]).remove(0)
    }
    fn expanded(&self, o: &Operands) -> Array<f64> {
        let rows: usize = self.sequences.iter().map(|s| (s.sequence.past + s.sequence.new) as usize).sum();
        let sizes = vec![rows, self.heads * (self.nope + self.v)];
        let kv = compute(&Op::MlaExpandKv, &self.context(), &[o.cache.clone(), o.kv_b.clone()], &[Result64::Real(sizes)]).remove(0);
        let prefill = Op::MlaPrefill { nope: self.nope as u32, v_dim: self.v as u32, scale: SCALE };
        let sizes = vec![o.q.sizes[0], self.heads * self.v];
        compute(&prefill, &self.context(), &[o.q.clone(), kv, o.cache.clone()], &[Result64::Real(sizes)]).remove(0)
    }
    /// Keys and values of each head expanded row by row, one output element at a time.
    fn oracle(&self, o: &Operands) -> Array<f64> {
        let expand = |row: usize, out: usize| (0..self.kv_lora).map(|c| at(&o.kv_b, out, c) * at(&o.cache, row, c)).sum::<f64>();
        let mut out = Vec::new();
        for (t, token) in tokens(&self.sequences).iter().enumerate() {
            let seen = token.cache_start..=token.cache_start + token.position;
            for head in 0..self.heads {
                let first = head * (self.nope + self.v);
                let q = |d: usize| at(&o.q, t, head * (self.nope + self.rope) + d);
                let score = |row: usize| {
                    let nope: f64 = (0..self.nope).map(|d| q(d) * expand(row, first + d)).sum();
                    let rope: f64 = (0..self.rope).map(|d| q(self.nope + d) * at(&o.cache, row, self.kv_lora + d)).sum();
                    SCALE * (nope + rope)
                };
                let scores: Vec<f64> = seen.clone().map(score).collect();
                for d in 0..self.v {
                    let values: Vec<f64> = seen.clone().map(|row| expand(row, first + self.nope + d)).collect();
                    out.push(attention_oracle(&scores, &values, None));
                }
            }
        }
        real(&[o.q.sizes[0], self.heads * self.v], &out)
    }
}

const SCALE: f64 = 0.37;

#[test]
fn absorbed_equals_expanded_at_the_shape_of_a_real_head() {
    let slot = |past, new, cache_start| CacheSlot { sequence: moetwin_models::Sequence { past, new }, cache_start, turn: Turn::WHOLE };
    let sequences = vec![slot(70, 3, 5), slot(0, 66, 100)];
    let case = Case { seed: 1, sequences, heads: 2, nope: 128, rope: 64, v: 128, kv_lora: 512 };
    let operands = case.operands();
    let (absorbed, expanded) = (case.absorbed(&operands), case.expanded(&operands));
    assert_close(&absorbed, &expanded, 1e-12);
    let largest = absorbed.as_real().unwrap().iter().fold(0.0f64, |m, x| m.max(x.abs()));
    assert!(largest > 1.0, "values too small ({largest}) for the tolerance to mean anything");
}

#[test]
fn one_row_of_cache_gives_its_value() {
    // One head, W_UK = [1], W_UV = [2]; a single visible row has weight 1, so o = 2 * latent.
    let slot = CacheSlot { sequence: moetwin_models::Sequence { past: 0, new: 1 }, cache_start: 1, turn: Turn::WHOLE };
    let case = Case { seed: 0, sequences: vec![slot], heads: 1, nope: 1, rope: 0, v: 1, kv_lora: 1 };
    let operands = Operands { q: real(&[1, 1], &[3.0]), cache: real(&[2, 1], &[100.0, 5.0]), kv_b: real(&[2, 1], &[1.0, 2.0]) };
    assert_close(&case.absorbed(&operands), &real(&[1, 1], &[10.0]), 0.0);
    assert_close(&case.expanded(&operands), &real(&[1, 1], &[10.0]), 0.0);
}

#[test]
fn sparse_selection_that_covers_the_context_is_dense() {
    let slot = CacheSlot { sequence: moetwin_models::Sequence { past: 3, new: 1 }, cache_start: 0, turn: Turn::WHOLE };
    let sequences = [slot];
    let context = LocalContext { sequences: &sequences, ..LocalContext::default() };
    let inputs = [real(&[1, 2], &[1.0, 0.5]), real(&[4, 2], &[1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0])];
    let run = |sparse_topk| {
        run_on::<f64>(
            1,
            &Op::MlaDecode { kv_lora: 1, scale: 1.0, sparse_topk, split_context: false },
            &context,
            &inputs,
            &[Result64::Real(vec![1, 1])],
        )
    };
    assert_eq!(run(None).unwrap(), run(Some(4)).unwrap());
    assert_eq!(
        run(Some(3)).unwrap_err().to_string(),
        "mla_decode: selection among 4 cache rows needs the indexer, which is modelled for cost only"
    );
}

proptest! {
    #[test]
    fn both_forms_agree_with_the_oracle(case in cases()) {
        let operands = case.operands();
        let expected = case.oracle(&operands);
        assert_close(&case.absorbed(&operands), &expected, 1e-12);
        assert_close(&case.expanded(&operands), &expected, 1e-12);
    }

    #[test]
    fn norm_and_rotation_agree_with_the_oracle(case in cases(), q_lora in prop::option::of(1usize..9), interleaved: bool, eps in 1e-6f64..1e-2) {
        let mut n = Numbers::new(case.seed);
        let (tokens, latent_width) = (tokens(&case.sequences), case.kv_lora + case.rope);
        let first = q_lora.unwrap_or(0);
        let compressed = n.array(&[tokens.len(), first + latent_width]);
        let (q_norm, kv_norm) = (n.array(&[first]), n.array(&[case.kv_lora]));
        let normed = |t: usize, first: usize, w: &Array<f64>| -> Vec<f64> {
            let w = w.as_real().unwrap();
            let row: Vec<f64> = (0..w.len()).map(|c| at(&compressed, t, first + c)).collect();
            let rms = (row.iter().map(|x| x * x).sum::<f64>() / w.len() as f64 + eps).sqrt();
            row.iter().zip(w).map(|(x, w)| x / rms * w).collect()
        };
        let latent: Vec<f64> = (0..tokens.len())
            .flat_map(|t| {
                let mut row = normed(t, first, &kv_norm);
                row.extend((case.kv_lora..latent_width).map(|c| at(&compressed, t, first + c)));
                row
            })
            .collect();
        let latent = real(&[tokens.len(), latent_width], &latent);
        let op = Op::MlaNorm { eps, q_lora: q_lora.map(|q| q as u32), kv_lora: case.kv_lora as u32 };
        let (mut inputs, mut results, mut oracle) = (vec![compressed.clone()], Vec::new(), Vec::new());
        if let Some(q_lora) = q_lora {
            inputs.push(q_norm.clone());
            results.push(Result64::Real(vec![tokens.len(), q_lora]));
            oracle.push(real(&[tokens.len(), q_lora], &(0..tokens.len()).flat_map(|t| normed(t, 0, &q_norm)).collect::<Vec<_>>()));
        }
        inputs.push(kv_norm.clone());
        results.push(Result64::Real(vec![tokens.len(), latent_width]));
        oracle.push(latent.clone());
        check(&op, &case.context(), &inputs, &results, &oracle);

        let spec = RopeSpec { dim: case.rope as u32, theta: 100.0, scaling: RopeScaling::None, interleaved };
        let (q, before) = (n.array(&[tokens.len(), case.heads * (case.nope + case.rope)]), n.array(&[cache_rows(&case.sequences), latent_width]));
        let (mut rotated, mut cache) = (Vec::new(), before.as_real().unwrap().to_vec());
        for (t, token) in tokens.iter().enumerate() {
            for head in 0..case.heads {
                let first = head * (case.nope + case.rope);
                rotated.extend((0..case.nope).map(|d| at(&q, t, first + d)));
                let part: Vec<f64> = (0..case.rope).map(|d| at(&q, t, first + case.nope + d)).collect();
                rotated.extend(rotate_oracle(&part, token.position, &spec));
            }
            let mut row: Vec<f64> = (0..case.kv_lora).map(|c| at(&latent, t, c)).collect();
            let part: Vec<f64> = (case.kv_lora..latent_width).map(|c| at(&latent, t, c)).collect();
            row.extend(rotate_oracle(&part, token.position, &spec));
            let at = (token.cache_start + token.position) * latent_width;
            cache[at..at + latent_width].copy_from_slice(&row);
        }
        let op = Op::MlaRope { nope: case.nope as u32, rope: spec };
        let inputs = [q.clone(), latent, positions(&case.sequences), Array::default()];
        let results = [Result64::Real(q.sizes.clone()), Result64::InPlace(before.clone())];
        check(&op, &case.context(), &inputs, &results, &[real(&q.sizes, &rotated), real(&before.sizes, &cache)]);
    }
}
