//! Rotary frequencies. Everything is f64 through `libm`, so that every platform gets the same bits.
//!
//! The rules are those of transformers 5.17 (`modeling_rope_utils.py`), which computes them in f32.

use crate::spec::{RopeScaling, RopeSpec};
use std::f64::consts::PI;

impl RopeSpec {
    /// Inverse frequency of each rotated pair, `dim / 2` of them, in radians per position: pair `i` of a token at position `p` is rotated by `p * inv[i]`.
    pub fn inverse_frequencies(&self) -> Vec<f64> {
        let pairs = self.dim / 2;
        let plain = |i: u32| 1.0 / libm::pow(self.theta, f64::from(2 * i) / f64::from(self.dim));
        match &self.scaling {
            RopeScaling::None => (0..pairs).map(plain).collect(),
            RopeScaling::Linear { factor } => (0..pairs).map(|i| plain(i) / factor).collect(),
            RopeScaling::Yarn { factor, .. } => {
                let (low, high) = self.yarn_correction_range().unwrap_or((0.0, 0.0));
                // The same nudge as the original, where both ends coincide.
                let high = if low == high { high + 0.001 } else { high };
                let blend = |i: u32| {
                    let ramp = ((f64::from(i) - low) / (high - low)).clamp(0.0, 1.0);
                    let kept = plain(i);
                    kept / factor * ramp + kept * (1.0 - ramp)
                };
                (0..pairs).map(blend).collect()
            }
            RopeScaling::Llama3 { factor, original_positions, low_freq_factor, high_freq_factor } => {
                let scale = |i: u32| {
                    let kept = plain(i);
                    let wavelength = 2.0 * PI / kept;
                    if wavelength < original_positions / high_freq_factor {
                        kept
                    } else if wavelength > original_positions / low_freq_factor || low_freq_factor == high_freq_factor {
                        kept / factor
                    } else {
                        let smooth = (original_positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * kept / factor + smooth * kept
                    }
                };
                (0..pairs).map(scale).collect()
            }
        }
    }

    /// Multiplier of cos and sin; 1 for everything but YaRN.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    /// YaRN's pairs between which a frequency goes from kept to interpolated, `None` for other scalings.
    /// Pairs up to the first keep their frequency, from the second on it is divided by the factor.
    pub fn yarn_correction_range(&self) -> Option<(f64, f64)> {
        let RopeScaling::Yarn { original_positions, beta_fast, beta_slow, truncate, .. } = self.scaling else { return None };
        let dim = f64::from(self.dim);
        let pair_of = |rotations: f64| dim * libm::log(original_positions / (rotations * 2.0 * PI)) / (2.0 * libm::log(self.theta));
        let (low, high) = (pair_of(beta_fast), pair_of(beta_slow));
        let (low, high) = if truncate { (libm::floor(low), libm::ceil(high)) } else { (low, high) };
        Some((low.max(0.0), high.min(dim - 1.0)))
    }
}

/// YaRN's temperature, `0.1 * mscale * ln(factor) + 1`, and 1 without extension.
pub fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * libm::log(factor) + 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yarn(theta: f64, factor: f64, beta_fast: f64, beta_slow: f64) -> RopeSpec {
        let scaling = RopeScaling::Yarn { factor, original_positions: 4096.0, beta_fast, beta_slow, attention_factor: 1.0, truncate: true };
        RopeSpec { dim: 64, theta, scaling, interleaved: true }
    }
    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-9 * b.abs(), "{a} is not {b}");
    }

    #[test]
    fn the_yarn_range_of_known_models() {
        // Kimi-K2.5 and DeepSeek-V3; K2-Instruct has equal betas, so its range is one pair wide.
        assert_eq!(yarn(50_000.0, 64.0, 32.0, 1.0).yarn_correction_range(), Some((8.0, 20.0)));
        assert_eq!(yarn(10_000.0, 40.0, 32.0, 1.0).yarn_correction_range(), Some((10.0, 23.0)));
        assert_eq!(yarn(50_000.0, 32.0, 1.0, 1.0).yarn_correction_range(), Some((19.0, 20.0)));
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let spec = yarn(50_000.0, 64.0, 32.0, 1.0);
        let plain = RopeSpec { scaling: RopeScaling::None, ..spec.clone() }.inverse_frequencies();
        let scaled = spec.inverse_frequencies();
        assert_eq!(scaled.len(), 32);
        close(plain[1], 50_000f64.powf(-2.0 / 64.0));
        for i in 0..32 {
            let kept = match i {
                0..=8 => 1.0,
                20.. => 0.0,
                _ => 1.0 - (i as f64 - 8.0) / 12.0,
            };
            close(scaled[i], plain[i] * (kept + (1.0 - kept) / 64.0));
        }
    }

    #[test]
    fn an_unrounded_range_and_a_coinciding_one() {
        let mut spec = yarn(150_000.0, 32.0, 32.0, 1.0);
        if let RopeScaling::Yarn { truncate, .. } = &mut spec.scaling {
            *truncate = false;
        }
        let (low, high) = spec.yarn_correction_range().unwrap();
        // gpt-oss: 32 ln(4096 / 64 pi) / ln 150000 and 32 ln(4096 / 2 pi) / ln 150000.
        close(low, 32.0 * (4096.0 / (64.0 * PI)).ln() / 150_000f64.ln());
        close(high, 32.0 * (4096.0 / (2.0 * PI)).ln() / 150_000f64.ln());
        let short = |original_positions: f64| {
            let scaling = RopeScaling::Yarn {
                factor: 4.0,
                original_positions,
                beta_fast: 32.0,
                beta_slow: 1.0,
                attention_factor: 1.0,
                truncate: true,
            };
            RopeSpec { dim: 8, theta: 10.0, scaling, interleaved: false }.inverse_frequencies()
        };
        let plain = RopeSpec { dim: 8, theta: 10.0, scaling: RopeScaling::None, interleaved: false }.inverse_frequencies();
        // Both ends at pair 0: it keeps its frequency, the others are divided. A range that ends before pair 0 keeps all,
        // one that begins after the last pair divides all.
        let coinciding = short(2.0 * PI);
        close(coinciding[0], plain[0]);
        (1..4).for_each(|i| close(coinciding[i], plain[i] / 4.0));
        (0..4).for_each(|i| close(short(1.0)[i], plain[i]));
        (0..4).for_each(|i| close(short(1e9)[i], plain[i] / 4.0));
    }

    #[test]
    fn linear_and_llama3() {
        let base = RopeSpec { dim: 8, theta: 10_000.0, scaling: RopeScaling::None, interleaved: false };
        let plain = base.inverse_frequencies();
        let linear = RopeSpec { scaling: RopeScaling::Linear { factor: 4.0 }, ..base.clone() }.inverse_frequencies();
        let scaling = RopeScaling::Llama3 { factor: 8.0, original_positions: 8192.0, low_freq_factor: 1.0, high_freq_factor: 4.0 };
        let llama = RopeSpec { scaling, ..base.clone() }.inverse_frequencies();
        for i in 0..4 {
            close(linear[i], plain[i] / 4.0);
        }
        // Wavelengths 2 pi 10^(0..3): kept below 2048, divided above 8192, between them blended by 8192 / wavelength.
        close(llama[0], plain[0]);
        close(llama[2], plain[2]);
        let smooth = (8192.0 / (2.0 * PI * 1000.0) - 1.0) / 3.0;
        close(llama[3], plain[3] * ((1.0 - smooth) / 8.0 + smooth));
        let short = RopeScaling::Llama3 { factor: 8.0, original_positions: 100.0, low_freq_factor: 1.0, high_freq_factor: 1.0 };
        let short = RopeSpec { scaling: short, ..base }.inverse_frequencies();
        close(short[1], plain[1]);
        close(short[2], plain[2] / 8.0);
    }

    #[test]
    fn temperatures() {
        close(yarn_mscale(64.0, 1.0), 1.0 + 0.1 * 64f64.ln());
        assert_eq!(yarn_mscale(1.0, 1.0), 1.0);
        assert_eq!(yarn_mscale(0.5, 1.0), 1.0);
        let plain = RopeSpec { dim: 8, theta: 10.0, scaling: RopeScaling::None, interleaved: false };
        assert_eq!(plain.attention_factor(), 1.0);
    }
}
