//! Made-up requests: where nobody has a trace, arrivals without memory and lengths from a range.

use super::Request;
use crate::time::Time;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::ops::RangeInclusive;

/// What requests are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Tokens of a prompt: every number of the range is as likely.
    pub prompt: RangeInclusive<u32>,
    /// Tokens of an answer.
    pub output: RangeInclusive<u32>,
}

/// `count` requests. With a rate (a second) their arrivals are a Poisson process; without one all come at once.
pub fn made_up(count: usize, per_second: Option<f64>, lengths: &Lengths, seed: u64) -> Vec<Request> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            let gap = uniform(&mut random);
            let request = Request {
                arrival: Time::from_ps((at * 1e12) as u64),
                prompt: within(&mut random, &lengths.prompt),
                output: within(&mut random, &lengths.output),
            };
            // The gap to the next one: the first request opens the trace.
            at += per_second.map_or(0.0, |rate| -libm::log(1.0 - gap) / rate);
            request
        })
        .collect()
}

/// From 0 up to 1, 1 excluded.
fn uniform(random: &mut ChaCha8Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

fn within(random: &mut ChaCha8Rng, range: &RangeInclusive<u32>) -> u32 {
    let (from, to) = (*range.start(), *range.end());
    let width = u64::from(to.saturating_sub(from)) + 1;
    from + ((u128::from(random.next_u64()) * u128::from(width)) >> 64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_keep_their_rate_and_lengths_their_range() {
        let lengths = Lengths { prompt: 10..=20, output: 5..=5 };
        let all = made_up(20_000, Some(4.0), &lengths, 7);
        let rate = (all.len() - 1) as f64 / (all.last().unwrap().arrival.as_us() / 1e6);
        // The mean of 20,000 gaps is within 4 standard deviations, 4 / sqrt(20,000) = 2.8 %.
        assert!((rate / 4.0 - 1.0).abs() < 0.028, "{rate}");
        let mean = all.iter().map(|r| f64::from(r.prompt)).sum::<f64>() / all.len() as f64;
        assert!((mean - 15.0).abs() < 0.1, "{mean}");
        assert!(all.iter().all(|r| (10..=20).contains(&r.prompt) && r.output == 5));
        assert_eq!(all, made_up(20_000, Some(4.0), &lengths, 7));
        assert_ne!(all, made_up(20_000, Some(4.0), &lengths, 8));
        assert!(made_up(5, None, &lengths, 0).iter().all(|r| r.arrival == Time::ZERO));
    }
}
