//! The number types the reference computes in.

use ndarray::LinalgScalar;
use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{AddAssign, DivAssign, MulAssign, Neg};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` or `f64`. Transcendental functions come from `libm`, so that results do not depend on the platform's.
pub trait Real:
    sealed::Sealed
    + LinalgScalar
    + PartialOrd
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + DivAssign
    + Sum
    + Send
    + Sync
    + Debug
    + Display
    + Default
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Not a number: the value of storage nobody has written.
    const NAN: Self;
    /// Below every number.
    const NEG_INFINITY: Self;
    /// The nearest number.
    fn from_f64(value: f64) -> Self;
    /// The exact number.
    fn to_f64(self) -> f64;
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// Exponential.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Whether this is not a number.
    fn is_nan(self) -> bool;
    /// The greater of two numbers, `other` where one is not a number.
    fn at_least(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    /// `1 / (1 + exp(-x))`.
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NAN: Self = f32::NAN;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
    fn from_f64(value: f64) -> Self {
        value as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
    fn exp(self) -> Self {
        libm::expf(self)
    }
    fn ln(self) -> Self {
        libm::logf(self)
    }
    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NAN: Self = f64::NAN;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;
    fn from_f64(value: f64) -> Self {
        value
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
    fn exp(self) -> Self {
        libm::exp(self)
    }
    fn ln(self) -> Self {
        libm::log(self)
    }
    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }
}
