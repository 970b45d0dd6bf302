//! Numbers that a seed decides, the same everywhere.

/// SplitMix64 (Steele, Lea, Flood 2014): every bit of the seed decides every number. For inputs that have to be the same on every machine and need
/// no other quality.
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// The next number, below `n`; 0 where that is none.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n.max(1)
    }
    /// A multiple of 2^-23 from -1 up to 1, which f32 holds exactly.
    pub fn real(&mut self) -> f64 {
        (self.next_u64() >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_numbers_follow_from_the_seed() {
        // The first outputs of the authors' C program for seed 1234567.
        let mut numbers = SplitMix64(1_234_567);
        assert_eq!([numbers.next_u64(), numbers.next_u64()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert!((0..1000).all(|_| numbers.below(7) < 7 && (-1.0..1.0).contains(&numbers.real())));
        assert_eq!(numbers.below(0), 0);
    }
}
