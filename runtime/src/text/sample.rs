//! The choice of the next token from logits.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// How the next token is chosen.
///
/// A draw depends on the seed, the sequence and the position only: not on the batch, nor on what was drawn before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampler {
    /// The highest logit, the lowest id among equals.
    Greedy,
    /// At random, as likely as softmax of the logits over `temperature`, among the likeliest tokens that together reach `top_p`.
    Random {
        /// Divides the logits; above 0.
        temperature: f64,
        /// Probability that is kept; above 0, at most 1.
        top_p: f64,
        /// Seed of the draws.
        seed: u64,
    },
}

/// Why there is no next token.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A temperature that is no temperature.
    #[error("temperature {0}: must be a number from 0 (greedy) up")]
    Temperature(f64),
    /// A share that is no share.
    #[error("top-p {0}: must be above 0 and at most 1")]
    TopP(f64),
    /// Logits without a number.
    #[error("no token can be chosen: none of the {0} logits is a number")]
    NoNumber(usize),
}

impl Sampler {
    /// A sampler for these settings; temperature 0 is greedy.
    pub fn new(temperature: f64, top_p: f64, seed: u64) -> Result<Self, SamplingError> {
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(SamplingError::Temperature(temperature));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SamplingError::TopP(top_p));
        }
        Ok(if temperature == 0.0 { Sampler::Greedy } else { Sampler::Random { temperature, top_p, seed } })
    }
    /// The token that follows at `position` of a sequence. Logits that are not numbers are never chosen.
    pub fn next(&self, logits: &[f32], sequence: u64, position: u64) -> Result<u32, SamplingError> {
        let none = || SamplingError::NoNumber(logits.len());
        let best = best(logits).ok_or_else(none)?;
        match *self {
            Sampler::Greedy => Ok(best),
            Sampler::Random { temperature, top_p, seed } => {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                rng.set_stream(sequence);
                // Two words a draw.
                rng.set_word_pos(u128::from(position) * 2);
                // 53 bits are what an f64 holds: uniform in [0, 1).
                let unit = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                Ok(draw(logits, logits[best as usize], temperature, top_p, unit))
            }
        }
    }
}

/// The highest logit, the lowest id among equals.
fn best(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &logit) in (0u32..).zip(logits) {
        if !logit.is_nan() && best.is_none_or(|(_, highest)| logit > highest) {
            best = Some((id, logit));
        }
    }
    best.map(|(id, _)| id)
}

/// The token where the cumulated probability of the kept ones, likeliest first, passes `unit`.
fn draw(logits: &[f32], highest: f32, temperature: f64, top_p: f64, unit: f64) -> u32 {
    // Equal infinities leave no difference to speak of.
    let difference = |logit: f32| if logit == highest { 0.0 } else { (f64::from(logit) - f64::from(highest)) / temperature };
    let mut weights: Vec<(u32, f64)> =
        (0u32..).zip(logits).filter(|(_, l)| !l.is_nan()).map(|(id, l)| (id, libm::exp(difference(*l)))).collect();
    // Stable: equal weights stay in order of ids.
    weights.sort_by(|a, b| b.1.total_cmp(&a.1));
    let total: f64 = weights.iter().map(|(_, w)| w).sum();
    let mut kept = 0.0;
    let count = weights.iter().take_while(|(_, w)| {
        let needed = kept < top_p * total;
        kept += w;
        needed
    });
    let count = count.count();
    weights.truncate(count.max(1));
    let target = unit * weights.iter().map(|(_, w)| w).sum::<f64>();
    let mut passed = 0.0;
    let chosen = weights.iter().find(|(_, w)| {
        passed += w;
        passed > target
    });
    chosen.or(weights.last()).expect("the likeliest token is always kept").0
}
