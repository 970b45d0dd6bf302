//! Weights without a checkpoint: seeded, the same for every split, and generated share by share.

use super::load::{LoadError, Share, WeightSource};
use super::routed::RouterBiases;
use half::bf16;
use moetwin_kernels::dequant::{decode_e4m3, encode_e4m3};
use moetwin_kernels::reference::{Array, Data};
use moetwin_models::{Graph, ModelSpec, RankId, TensorId, WeightFormat, WeightRole};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::ops::Range;

/// Made-up weights of a model.
///
/// Element `(row, column)` of an expert's matrix is word `row * columns + column` of a ChaCha8 stream of that weight and expert, so any share
/// is generated alone and equals the same part of the whole. Values lie on the grid of the weight's format (what a 4-bit weight can hold,
/// with one scale a matrix; bf16 otherwise). Matrices have variance 1 / columns, so activations stay near 1; norms are near 1,
/// biases near 0.
#[derive(Clone, Debug)]
pub struct SyntheticWeights {
    seed: u64,
    tied_embeddings: bool,
    biases: Option<RouterBiases>,
}

impl SyntheticWeights {
    /// Weights of a model; equal seeds give equal weights.
    pub fn new(spec: &ModelSpec, seed: u64) -> Self {
        Self { seed, tied_embeddings: spec.tied_embeddings, biases: None }
    }
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }
    pub(super) fn set_biases(&mut self, biases: RouterBiases) {
        self.biases = Some(biases);
    }
    /// Biases of a layer's router that are not drawn.
    pub(super) fn biases(&self, role: WeightRole, layer: u16) -> Option<&[f32]> {
        self.biases.as_ref()?.of(role, layer)
    }
    fn given(&self, share: &Share) -> Option<&[f32]> {
        self.biases(share.weight.role, share.weight.layer?)
    }
    fn stream(&self, share: &Share, role: WeightRole, expert: u32) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        // 16 bits of role, 16 of layer, 32 of expert: distinct streams for distinct weights.
        let layer = share.weight.layer.map_or(u64::from(u16::MAX), u64::from);
        rng.set_stream(role_number(role) << 48 | layer << 32 | u64::from(expert));
        rng
    }
}

/// How an executor draws a share itself: see [`SyntheticWeights`] for which word belongs to which element.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Key of the ChaCha8 streams.
    pub key: [u32; 8],
    /// Stream of every expert, in slot order; one for weights without experts.
    pub streams: Vec<u64>,
    /// Runs of rows held, in the whole matrix.
    pub rows: Vec<Range<u64>>,
    /// Runs of columns held.
    pub cols: Vec<Range<u64>>,
    /// Columns of the whole matrix.
    pub whole_cols: u64,
    /// How a word becomes a value.
    pub grid: Grid,
}

impl SyntheticWeights {
    /// The role whose words a weight takes: a tied head is the embedding.
    fn role(&self, share: &Share) -> WeightRole {
        match share.weight.role {
            WeightRole::Embedding if self.tied_embeddings => WeightRole::LmHead,
            role => role,
        }
    }
}

impl WeightSource for SyntheticWeights {
    fn recipe(&self, graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Option<Recipe>, LoadError> {
        let share = Share::of(graph, tensor, rank)?;
        let role = self.role(&share);
        if self.given(&share).is_some() {
            return Ok(None);
        }
        let seed = ChaCha8Rng::seed_from_u64(self.seed).get_seed();
        let word = |i: usize| u32::from_le_bytes([seed[4 * i], seed[4 * i + 1], seed[4 * i + 2], seed[4 * i + 3]]);
        Ok(Some(Recipe {
            key: std::array::from_fn(word),
            streams: share.experts.iter().map(|&expert| self.stream(&share, role, expert).get_stream()).collect(),
            whole_cols: share.whole.cols,
            grid: Grid::of(role, share.weight.format, share.whole.cols),
            rows: share.rows,
            cols: share.cols,
        }))
    }

    fn load(&self, graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Array<f32>, LoadError> {
        let share = Share::of(graph, tensor, rank)?;
        let role = self.role(&share);
        if let Some(biases) = self.given(&share) {
            let rows = share.rows.iter().cloned().flatten().map(|row| biases.get(row as usize).copied().unwrap_or(0.0));
            return Ok(Array { data: Data::Real(rows.collect()), sizes: share.sizes });
        }
        let grid = Grid::of(role, share.weight.format, share.whole.cols);
        let mut values = Vec::with_capacity(share.len);
        for &expert in &share.experts {
            let mut rng = self.stream(&share, role, expert);
            for row in share.rows.iter().cloned().flatten() {
                for cols in &share.cols {
                    rng.set_word_pos(u128::from(row) * u128::from(share.whole.cols) + u128::from(cols.start));
                    values.extend(cols.clone().map(|_| grid.value(rng.next_u32())));
                }
            }
        }
        Ok(Array { sizes: share.sizes, data: Data::Real(values) })
    }
}

/// The first `layers` decoder layers of a model, with its embedding, final norm and head; all of it where it has no more.
pub fn first_layers(spec: &ModelSpec, layers: usize) -> ModelSpec {
    let mut cut = spec.clone();
    if layers < spec.layers.len() {
        cut.layers.truncate(layers);
        cut.name = format!("{} (first {layers} of {} layers)", spec.name, spec.layers.len());
    }
    cut
}

/// How a random word becomes a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Grid {
    /// Uniform around `mean`, rounded to bf16.
    Uniform {
        /// Middle.
        mean: f32,
        /// Distance to either end.
        half_width: f32,
    },
    /// An e4m3 element times a scale.
    Fp8 {
        /// The scale.
        scale: f32,
    },
    /// An integer of -7..=7 times a scale.
    Int4 {
        /// The scale.
        scale: f32,
    },
    /// An e2m1 element times a scale.
    Fp4 {
        /// The scale.
        scale: f32,
    },
}

/// Standard deviation of a uniform distribution, as a share of half its width: 1 / sqrt(3).
const UNIFORM_DEVIATION: f64 = 0.577_350_269_189_625_8;
/// Largest value of e4m3 (arXiv 2209.05433, table 1).
const E4M3_MAX: f32 = 448.0;
/// Magnitudes of e2m1 (OCP Microscaling Formats 1.0, table 5).
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

impl Grid {
    fn of(role: WeightRole, format: WeightFormat, cols: u64) -> Self {
        let uniform = |mean: f32, deviation: f64| Grid::Uniform { mean, half_width: (deviation / UNIFORM_DEVIATION) as f32 };
        match role {
            WeightRole::FinalNorm
            | WeightRole::InputNorm
            | WeightRole::PostAttentionNorm
            | WeightRole::QNorm
            | WeightRole::KNorm
            | WeightRole::QaNorm
            | WeightRole::KvaNorm => return uniform(1.0, 0.1),
            WeightRole::QkvBias
            | WeightRole::QaKvaBias
            | WeightRole::OBias
            | WeightRole::RouterBias
            | WeightRole::CorrectionBias
            | WeightRole::ExpertsGateUpBias
            | WeightRole::ExpertsDownBias
            | WeightRole::DenseGateUpBias
            | WeightRole::DenseDownBias
            | WeightRole::SharedGateUpBias
            | WeightRole::SharedDownBias => return uniform(0.0, 0.1),
            WeightRole::Sinks | WeightRole::Embedding => return uniform(0.0, 1.0),
            _ => {}
        }
        let deviation = 1.0 / (cols.max(1) as f64).sqrt();
        match format {
            WeightFormat::Bf16 | WeightFormat::F16 | WeightFormat::F32 => uniform(0.0, deviation),
            WeightFormat::Fp8Block { .. } => Grid::Fp8 { scale: (deviation / UNIFORM_DEVIATION) as f32 / E4M3_MAX },
            WeightFormat::Int4Group { .. } => {
                // Mean square of the integers -7..=7.
                let deviation_of_codes = (2.0 * (1..=7).map(|n| f64::from(n * n)).sum::<f64>() / 15.0).sqrt();
                Grid::Int4 { scale: power_of_two(deviation / deviation_of_codes) }
            }
            WeightFormat::Nvfp4 | WeightFormat::Mxfp4 => {
                let deviation_of_codes = (E2M1.iter().map(|v| f64::from(v * v)).sum::<f64>() / 8.0).sqrt();
                Grid::Fp4 { scale: power_of_two(deviation / deviation_of_codes) }
            }
        }
    }
    fn value(self, word: u32) -> f32 {
        // The 24 high bits, so that the conversion is exact: uniform in [-1, 1).
        let unit = || (word >> 8) as f32 / (1 << 23) as f32 - 1.0;
        match self {
            Grid::Uniform { mean, half_width } => bf16::from_f32(mean + half_width * unit()).to_f32(),
            Grid::Fp8 { scale } => decode_e4m3(encode_e4m3(unit() * E4M3_MAX)) * scale,
            Grid::Int4 { scale } => {
                let code = ((u64::from(word) * 15) >> 32) as f32 - 7.0;
                code * scale
            }
            Grid::Fp4 { scale } => {
                let magnitude = E2M1[(word >> 29) as usize] * scale;
                if word >> 28 & 1 == 0 { magnitude } else { -magnitude }
            }
        }
    }
}

/// The nearest power of two: a scale that every 4-bit format can hold, and whose products bf16 can.
fn power_of_two(scale: f64) -> f32 {
    libm::exp2(libm::log2(scale).round()) as f32
}

/// A number for each role, never to be changed: seeds must keep their weights.
fn role_number(role: WeightRole) -> u64 {
    match role {
        WeightRole::Embedding => 0,
        WeightRole::LmHead => 1,
        WeightRole::FinalNorm => 2,
        WeightRole::InputNorm => 3,
        WeightRole::PostAttentionNorm => 4,
        WeightRole::Qkv => 5,
        WeightRole::QkvBias => 6,
        WeightRole::QNorm => 7,
        WeightRole::KNorm => 8,
        WeightRole::Sinks => 9,
        WeightRole::QaKva => 10,
        WeightRole::QDirect => 11,
        WeightRole::Kva => 12,
        WeightRole::QaKvaBias => 13,
        WeightRole::QaNorm => 14,
        WeightRole::KvaNorm => 15,
        WeightRole::Qb => 16,
        WeightRole::KvB => 17,
        WeightRole::O => 18,
        WeightRole::OBias => 19,
        WeightRole::DenseGateUp => 20,
        WeightRole::DenseDown => 21,
        WeightRole::Router => 22,
        WeightRole::RouterBias => 23,
        WeightRole::CorrectionBias => 24,
        WeightRole::ExpertsGateUp => 25,
        WeightRole::ExpertsGateUpBias => 26,
        WeightRole::ExpertsDown => 27,
        WeightRole::ExpertsDownBias => 28,
        WeightRole::SharedGateUp => 29,
        WeightRole::SharedDown => 30,
        WeightRole::SharedGate => 31,
        WeightRole::Other(index) => 32 + u64::from(index),
        // Behind the last of those.
        WeightRole::DenseGateUpBias => 288,
        WeightRole::DenseDownBias => 289,
        WeightRole::SharedGateUpBias => 290,
        WeightRole::SharedDownBias => 291,
    }
}
