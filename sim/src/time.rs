//! Virtual time: whole picoseconds, and the one place where a rate or a float becomes a duration.
//!
//! 2^64 ps are 213 days. Arithmetic saturates instead of wrapping: a machine file may state absurd figures, and an absurd duration is
//! a better answer to them than a wrapped one.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};

const PS_PER_NS: u64 = 1_000;
const PS_PER_US: u64 = 1_000_000;
const PS_PER_S: u128 = 1_000_000_000_000;

/// A span of virtual time in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Duration(u64);

/// An instant of virtual time, in picoseconds since the start of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(u64);

impl Duration {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// The longest span.
    pub const MAX: Self = Self(u64::MAX);

    /// From picoseconds.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }
    /// From nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(PS_PER_NS))
    }
    /// From whole microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(PS_PER_US))
    }
    /// From seconds, rounded to the nearest picosecond; negative values and NaN are zero, values beyond the range are [`Duration::MAX`].
    ///
    /// The only conversion of a float to virtual time: cost functions compute in `f64` and round here, once.
    pub fn from_seconds(seconds: f64) -> Self {
        let ps = libm::rint(seconds * 1e12);
        if ps.is_nan() || ps <= 0.0 {
            return Self::ZERO;
        }
        // Float-to-integer casts saturate.
        Self(ps as u64)
    }
    /// The time `bytes` take at `bytes_per_s`, rounded up: a transfer is over when its last byte is. [`Duration::MAX`] at a rate of zero.
    pub fn of_bytes(bytes: u64, bytes_per_s: u64) -> Self {
        if bytes == 0 {
            return Self::ZERO;
        }
        if bytes_per_s == 0 {
            return Self::MAX;
        }
        let ps = (u128::from(bytes) * PS_PER_S).div_ceil(u128::from(bytes_per_s));
        Self(u64::try_from(ps).unwrap_or(u64::MAX))
    }
    /// Picoseconds.
    pub const fn as_ps(self) -> u64 {
        self.0
    }
    /// Seconds, for reports.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }
    /// Microseconds, for reports.
    pub fn as_us(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// Milliseconds, for reports.
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// The difference, or zero where `other` is longer.
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
    /// This span times `numerator / denominator`, rounded down; the denominator must not be zero.
    pub fn scaled(self, numerator: u64, denominator: u64) -> Self {
        let ps = u128::from(self.0) * u128::from(numerator) / u128::from(denominator);
        Self(u64::try_from(ps).unwrap_or(u64::MAX))
    }
}

impl Time {
    /// The start of the simulation.
    pub const ZERO: Self = Self(0);

    /// From picoseconds since the start.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }
    /// Picoseconds since the start.
    pub const fn as_ps(self) -> u64 {
        self.0
    }
    /// The span since an earlier instant; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
    /// Microseconds since the start, for reports.
    pub fn as_us(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add for Duration {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Duration {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Duration {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl Mul<u64> for Duration {
    type Output = Self;
    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl std::iter::Sum for Duration {
    fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
        spans.fold(Self::ZERO, Add::add)
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl fmt::Display for Duration {
    /// The largest unit in which the value is at least one, three decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ps = self.0;
        let (unit, name) = match ps {
            0..PS_PER_NS => return write!(f, "{ps} ps"),
            PS_PER_NS..PS_PER_US => (1e3, "ns"),
            PS_PER_US..1_000_000_000 => (1e6, "us"),
            1_000_000_000..1_000_000_000_000 => (1e9, "ms"),
            _ => (1e12, "s"),
        };
        write!(f, "{:.3} {name}", ps as f64 / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_round_once_to_the_nearest_picosecond() {
        assert_eq!(Duration::from_seconds(1.5e-6), Duration::from_ps(1_500_000));
        assert_eq!(Duration::from_seconds(0.4e-12), Duration::ZERO);
        assert_eq!(Duration::from_seconds(0.6e-12), Duration::from_ps(1));
        assert_eq!(Duration::from_seconds(-1.0), Duration::ZERO);
        assert_eq!(Duration::from_seconds(f64::NAN), Duration::ZERO);
        assert_eq!(Duration::from_seconds(f64::INFINITY), Duration::MAX);
    }

    #[test]
    fn bytes_at_a_rate_round_up() {
        assert_eq!(Duration::of_bytes(1, 1_000_000_000_000), Duration::from_ps(1));
        assert_eq!(Duration::of_bytes(1, 3_000_000_000_000), Duration::from_ps(1));
        assert_eq!(Duration::of_bytes(0, 0), Duration::ZERO);
        assert_eq!(Duration::of_bytes(1, 0), Duration::MAX);
        assert_eq!(Duration::of_bytes(u64::MAX, u64::MAX), Duration::from_us(1_000_000));
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Duration::MAX + Duration::from_ps(1), Duration::MAX);
        assert_eq!(Duration::ZERO - Duration::from_ps(1), Duration::ZERO);
        assert_eq!(Duration::MAX * 2, Duration::MAX);
        assert_eq!(Time::ZERO.since(Time::from_ps(1)), Duration::ZERO);
        assert_eq!(Duration::from_ps(10).scaled(2, 3), Duration::from_ps(6));
    }

    #[test]
    fn spans_print_in_a_readable_unit() {
        assert_eq!(Duration::from_ps(999).to_string(), "999 ps");
        assert_eq!(Duration::from_ps(27_040_000).to_string(), "27.040 us");
        assert_eq!(Duration::from_us(11_200).to_string(), "11.200 ms");
    }
}
