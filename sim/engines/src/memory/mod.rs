//! Bytes per GPU and phase as each engine accounts them.
//!
//! [`weights`] says what a rank holds, [`cache`] what a token costs, [`sglang`] and [`vllm`] how the engine turns the rest of the card into a
//! KV pool, [`answer`] puts them together and finds the phase in which they do not fit. Figures that were measured once and then fitted carry
//! the measurement in their comment; every estimate has an error, and a number is stated only where the error leaves it meaning something.

mod answer;
pub mod cache;
#[cfg(test)]
pub(crate) mod cases;
mod faults;
#[cfg(test)]
mod laws;
pub mod sglang;
mod transients;
pub mod vllm;
pub mod weights;

pub use answer::{Answer, answer};

use crate::finding::Phase;
use serde::Serialize;

/// Bytes of a GiB.
pub const GIB: f64 = 1_073_741_824.0;

/// A line of the memory table: what the fullest rank holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The phase that allocates it.
    pub phase: Phase,
    /// What it is.
    pub name: String,
    /// GiB.
    pub gib: f64,
    /// Only the phase itself holds it.
    pub transient: bool,
}

impl Line {
    /// A line that stays.
    pub fn new(phase: Phase, name: impl Into<String>, gib: f64) -> Self {
        Self { phase, name: name.into(), gib, transient: false }
    }
    /// A line that goes with its phase.
    pub fn transient(phase: Phase, name: impl Into<String>, gib: f64) -> Self {
        Self { transient: true, ..Self::new(phase, name, gib) }
    }
}

/// GiB that are gone before the first weight: CUDA context, libraries, communicators.
///
/// SGLang logs what is free before and after loading. 8 x H200 with NVLink: 137.9 of 140.4 (2.5); 8 x RTX PRO 6000 over PCIe: 94 of 95.6 (1.6).
pub fn before_load_gib(gpus: u32, nvlink: bool) -> f64 {
    match (gpus, nvlink) {
        (1, _) => 0.7,
        (_, true) => 1.3 + 0.15 * f64::from(gpus.min(8)),
        (_, false) => 0.8 + 0.1 * f64::from(gpus.min(8)),
    }
}
