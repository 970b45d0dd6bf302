//! Rotary position embedding.

use super::real::Real;
use moetwin_models::spec::RopeSpec;

/// Cosines and sines of a set of positions, computed in f64.
pub(super) struct Rotation<T> {
    half: usize,
    interleaved: bool,
    /// `[positions, cos | sin]`.
    table: Vec<T>,
}

impl<T: Real> Rotation<T> {
    pub(super) fn new(spec: &RopeSpec, positions: &[i32]) -> Self {
        let frequencies = spec.inverse_frequencies();
        let factor = spec.attention_factor();
        let mut table = Vec::with_capacity(positions.len() * frequencies.len() * 2);
        for position in positions {
            let angles = || frequencies.iter().map(|f| f64::from(*position) * f);
            table.extend(angles().map(|a| T::from_f64(libm::cos(a) * factor)));
            table.extend(angles().map(|a| T::from_f64(libm::sin(a) * factor)));
        }
        Self { half: frequencies.len(), interleaved: spec.interleaved, table }
    }
    /// Dimensions rotated, the first ones of a head.
    pub(super) fn dim(&self) -> usize {
        2 * self.half
    }
    /// Rotates the first [`Rotation::dim`] elements of `head` for position number `index` into the first ones of `out`;
    /// an interleaved head comes out as halves (evens, then odds).
    pub(super) fn rotate(&self, index: usize, head: &[T], out: &mut [T]) {
        let (cos, sin) = self.table[index * 2 * self.half..(index + 1) * 2 * self.half].split_at(self.half);
        for i in 0..self.half {
            let (a, b) = if self.interleaved { (head[2 * i], head[2 * i + 1]) } else { (head[i], head[i + self.half]) };
            out[i] = a * cos[i] - b * sin[i];
            out[i + self.half] = b * cos[i] + a * sin[i];
        }
    }
}
