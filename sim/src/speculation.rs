//! What drafted tokens are worth: how many of them a verification accepts, and when that pays.

/// Share of drafted tokens that are accepted where three are drafted, EAGLE-3 on Kimi-K2.6: 0.25 to 0.66 by prompt, mostly 0.35 to 0.45
/// (community measurements on 8x RTX PRO 6000, 2026).
pub const EAGLE3_RATE: f64 = 0.40;
/// The same for the multi-token-prediction layer of GLM-5: 0.35 to 0.67, mostly 0.5 to 0.6.
pub const MTP_RATE: f64 = 0.55;
/// Drafted tokens of the measurements behind the rates.
const RATE_POSITIONS: u32 = 3;

/// How likely each drafted token is accepted once those before it were.
#[derive(Clone, Debug, PartialEq)]
pub struct Acceptance {
    per_position: Vec<f64>,
}

impl Acceptance {
    /// Of the given probabilities, the last one for every further position. Errors where there is none, or one is no probability.
    pub fn new(per_position: &[f64], drafted: u32) -> Result<Self, String> {
        let last = *per_position.last().ok_or("at least one probability is needed")?;
        if let Some(p) = per_position.iter().find(|p| !(0.0..=1.0).contains(*p)) {
            return Err(format!("{p} is no probability, which is 0 to 1"));
        }
        if per_position.len() > drafted as usize {
            return Err(format!("{} probabilities for {drafted} drafted tokens", per_position.len()));
        }
        Ok(Self { per_position: (0..drafted as usize).map(|i| per_position.get(i).copied().unwrap_or(last)).collect() })
    }
    /// The same at every position, such that of three drafted tokens the share `rate` is accepted.
    pub fn of_rate(rate: f64, drafted: u32) -> Self {
        let share = |p: f64| accepted(&[p; RATE_POSITIONS as usize]) / f64::from(RATE_POSITIONS);
        let (mut low, mut high) = (0.0, 1.0);
        // The share grows with the probability; 60 halvings leave less than any double can tell.
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if share(middle) < rate { low = middle } else { high = middle }
        }
        Self { per_position: vec![low; drafted as usize] }
    }
    /// The probabilities.
    pub fn per_position(&self) -> &[f64] {
        &self.per_position
    }
    /// Tokens that a verification yields on average: the accepted ones and the one that the target adds.
    pub fn tokens_per_step(&self) -> f64 {
        1.0 + accepted(&self.per_position)
    }
}

/// Drafted tokens accepted on average: a token counts only if all before it do.
fn accepted(per_position: &[f64]) -> f64 {
    per_position.iter().fold((0.0, 1.0), |(sum, all), p| (sum + all * p, all * p)).0
}

/// Times of a speculative step, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTimes {
    /// The target on the drafted tokens and the one before them.
    pub verify_ms: f64,
    /// The draft on what was accepted, which gives the first drafted token.
    pub draft_extend_ms: f64,
    /// The draft on one token, for each further one.
    pub draft_decode_ms: f64,
}

impl StepTimes {
    /// Everything that happens for `drafted` tokens.
    pub fn draft_ms(&self, drafted: u32) -> f64 {
        self.draft_extend_ms + f64::from(drafted.saturating_sub(1)) * self.draft_decode_ms
    }
    /// The whole step.
    pub fn step_ms(&self, drafted: u32) -> f64 {
        self.verify_ms + self.draft_ms(drafted)
    }
    /// Tokens that a step must yield to be as fast as `plain_ms` a token.
    pub fn break_even_tokens(&self, drafted: u32, plain_ms: f64) -> f64 {
        self.step_ms(drafted) / plain_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_share_accepted_of_three() {
        for rate in [0.0, 0.1, EAGLE3_RATE, MTP_RATE, 0.9] {
            let a = Acceptance::of_rate(rate, 3);
            assert!(((a.tokens_per_step() - 1.0) / 3.0 - rate).abs() < 1e-9, "{rate}");
        }
        // Length 2.2 of three drafted, between the 2.0 and 2.4 that were measured.
        assert!((Acceptance::of_rate(EAGLE3_RATE, 3).tokens_per_step() - 2.2).abs() < 1e-9);
    }

    #[test]
    fn later_tokens_need_the_earlier_ones() {
        let a = Acceptance::new(&[0.5, 0.4], 3).unwrap();
        assert_eq!(a.per_position(), [0.5, 0.4, 0.4]);
        assert!((a.tokens_per_step() - (1.0 + 0.5 + 0.2 + 0.08)).abs() < 1e-12);
        assert_eq!(Acceptance::new(&[1.0], 4).unwrap().tokens_per_step(), 5.0);
        assert!(Acceptance::new(&[], 2).is_err() && Acceptance::new(&[1.1], 2).is_err() && Acceptance::new(&[0.1; 3], 2).is_err());
        assert!(Acceptance::new(&[f64::NAN], 2).is_err());
    }

    #[test]
    fn a_step_is_a_verification_and_its_drafts() {
        let t = StepTimes { verify_ms: 30.0, draft_extend_ms: 2.0, draft_decode_ms: 1.0 };
        assert_eq!((t.step_ms(1), t.step_ms(3)), (32.0, 34.0));
        assert_eq!(t.break_even_tokens(3, 10.0), 3.4);
    }
}
