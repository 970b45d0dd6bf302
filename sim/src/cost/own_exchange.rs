//! Times of exchanges measured on the very machine, beside those of kernels ([`super::OwnKernels`]).
//!
//! The machine's collectives are few figures for all sizes, ranks and algorithms, and so some percent off at any one size. Where one was measured
//! the model's answer is multiplied by the quotient of the two; between sizes the quotient is interpolated, since quotients change slowly and times
//! do not.

use crate::collective::{CollectiveOp, Library};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One measured time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnExchange {
    /// What was exchanged.
    pub op: CollectiveOp,
    /// Whose code was asked for.
    pub library: Library,
    /// How many ranks took part, on the first GPUs of the machine.
    pub ranks: usize,
    /// Whether peers could access each other's memory.
    pub peer_access: bool,
    /// Bytes of the message.
    pub bytes: u64,
    /// Whether the norm behind a sum was part of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub normed: bool,
    /// What it adds to a captured pass once the last rank has come, picoseconds.
    pub time_ps: u64,
}

/// Of every exchange that was measured repeatedly the median.
pub fn medians(measured: Vec<OwnExchange>) -> Vec<OwnExchange> {
    let mut all: BTreeMap<OwnExchange, Vec<u64>> = BTreeMap::new();
    for row in measured {
        all.entry(OwnExchange { time_ps: 0, ..row.clone() }).or_default().push(row.time_ps);
    }
    let median = |(row, mut times): (OwnExchange, Vec<u64>)| {
        times.sort_unstable();
        OwnExchange { time_ps: times[times.len() / 2], ..row }
    };
    all.into_iter().map(median).collect()
}

/// The quotient at a size, of quotients at others in ascending order: between two by the logarithm of the size, beyond them the nearest. Of none,
/// one.
pub fn quotient_at(points: &[(u64, f64)], bytes: u64) -> f64 {
    let log = |v: u64| libm::log2(v.max(1) as f64);
    let after = points.partition_point(|(b, _)| *b < bytes);
    match (after.checked_sub(1).and_then(|i| points.get(i)), points.get(after)) {
        (Some(&(low, a)), Some(&(high, b))) => {
            let share = (log(bytes) - log(low)) / (log(high) - log(low)).max(f64::MIN_POSITIVE);
            a + (b - a) * share
        }
        (Some(&(_, only)), None) | (None, Some(&(_, only))) => only,
        (None, None) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_lie_between_their_neighbours_and_end_with_the_last() {
        let points = [(1024, 1.0), (4096, 2.0), (65536, 0.5)];
        for (bytes, expected) in [(1, 1.0), (1024, 1.0), (2048, 1.5), (4096, 2.0), (16384, 1.25), (65536, 0.5), (1 << 30, 0.5)] {
            assert!((quotient_at(&points, bytes) - expected).abs() < 1e-12, "{bytes}: {}", quotient_at(&points, bytes));
        }
        assert_eq!(quotient_at(&[], 7), 1.0);
    }

    #[test]
    fn what_was_measured_repeatedly_is_one_row() {
        let row = |bytes, time_ps| OwnExchange {
            op: CollectiveOp::AllReduce,
            library: Library::Nccl,
            ranks: 2,
            peer_access: true,
            bytes,
            normed: false,
            time_ps,
        };
        let found = medians(vec![row(8, 30), row(4, 9), row(8, 10), row(8, 20)]);
        assert_eq!(found, [row(4, 9), row(8, 20)]);
    }
}
