//! Times of steps that thousands of requests need, from the few dozen that are simulated.
//!
//! Decode steps are simulated on a grid of batches (two an octave) and mean histories (one every two octaves) as they are asked for, and
//! read between its points: at a fixed batch a step grows linearly with the tokens that its attention reads. Prompts are simulated on a
//! grid of tokens, each once as many short sequences and once behind a long history; between the two the time is linear in the pairs of
//! tokens that attend to each other. A mixed step is the dense part of all its tokens together, its prompts' attention, and what its
//! histories add to a decode step.

use super::{decode_step, with_step};
use crate::error::Failure;
use crate::prediction::pace;
use crate::scenario::Scenario;
use moetwin::models::{Phase, Sequence, Step};
use moetwin::sim::Duration;
use moetwin::sim::exec::SimMemory;
use moetwin::sim::serving::{StepShape, StepTimes};
use std::collections::BTreeMap;

/// Tokens of a short prompt: attention within it is next to nothing.
const SHORT: u32 = 64;
/// History behind which the cost of attention is read.
const LONG: u32 = 8192;
/// The first history above 0 on the grid.
const FIRST_CONTEXT: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    Decode { batch: u32, context: u32 },
    Short { tokens: u32, captured: bool },
    Long { tokens: u32, captured: bool },
}

/// Times of steps, simulated where they must be and remembered.
pub(crate) struct Simulated<'a> {
    scenario: &'a Scenario,
    known: BTreeMap<Point, f64>,
    memory: SimMemory,
}

impl<'a> Simulated<'a> {
    /// Of a deployment.
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        Self { scenario, known: BTreeMap::new(), memory: SimMemory::default() }
    }
    /// Steps simulated so far.
    pub(crate) fn simulated(&self) -> usize {
        self.known.len()
    }
    fn positions(&self) -> u32 {
        u32::try_from(self.scenario.model.spec.max_positions).unwrap_or(u32::MAX)
    }
    /// Milliseconds of a simulated step.
    fn at(&mut self, point: Point) -> Result<f64, Failure> {
        if let Some(ms) = self.known.get(&point) {
            return Ok(*ms);
        }
        let (step, context) = match point {
            Point::Decode { batch, context } => (decode_step(self.scenario, batch, context), context),
            Point::Short { tokens, .. } => (prompts((0..tokens.div_ceil(SHORT)).map(|i| (0, (tokens - i * SHORT).min(SHORT)))), 0),
            Point::Long { tokens, .. } => (prompts([(self.long_past(tokens), tokens)]), 0),
        };
        let mut scenario = with_step(self.scenario, step, context);
        if let Point::Short { captured, .. } | Point::Long { captured, .. } = point {
            // A prompt is computed once, by the target. How it is launched its own length says, not that of the point.
            scenario.speculation = None;
            scenario.options.graphs = captured;
        }
        let program = scenario.program(&scenario.step)?;
        let (step_ms, _) = pace(&scenario, &program, &mut self.memory)?;
        self.known.insert(point, step_ms);
        Ok(step_ms)
    }
    fn long_past(&self, tokens: u32) -> u32 {
        LONG.min(self.positions().saturating_sub(tokens))
    }
    fn decode_ms(&mut self, batch: u32, context: f64) -> Result<f64, Failure> {
        let (low, high) = around(batch, next_batch);
        let below = self.decode_at(low, context)?;
        if low == batch {
            return Ok(below);
        }
        let above = self.decode_at(high, context)?;
        Ok(between(below, above, f64::from(batch - low) / f64::from(high - low)))
    }
    fn decode_at(&mut self, batch: u32, context: f64) -> Result<f64, Failure> {
        let most = self.positions().saturating_sub(self.scenario.speculation.as_ref().map_or(1, |p| p.drafted + 1));
        let (low, high) = around(context as u32, next_context);
        let (low, high) = (low.min(most), high.min(most));
        let below = self.at(Point::Decode { batch, context: low })?;
        if high == low || context <= f64::from(low) {
            return Ok(below);
        }
        let above = self.at(Point::Decode { batch, context: high })?;
        Ok(between(below, above, (context - f64::from(low)) / f64::from(high - low)))
    }
    /// Prompts of so many tokens with so many pairs.
    fn prompts_ms(&mut self, tokens: u32, pairs: f64) -> Result<f64, Failure> {
        let (low, high) = around(tokens, |n| n * 2);
        let below = self.prompts_at(low, tokens, pairs)?;
        if low == tokens {
            return Ok(below);
        }
        let above = self.prompts_at(high, tokens, pairs)?;
        Ok(between(below, above, f64::from(tokens - low) / f64::from(high - low)))
    }
    /// The same at a point of the grid, with as many pairs a token as `tokens` have.
    fn prompts_at(&mut self, grid: u32, tokens: u32, pairs: f64) -> Result<f64, Failure> {
        let pairs = pairs * f64::from(grid) / f64::from(tokens);
        let captured = self.scenario.captures_prompts(tokens);
        let short_ms = self.at(Point::Short { tokens: grid, captured })?;
        let long_ms = self.at(Point::Long { tokens: grid, captured })?;
        let (full, rest) = (f64::from(grid / SHORT), f64::from(grid % SHORT));
        let triangle = |n: f64| n * (n + 1.0) / 2.0;
        let short_pairs = full * triangle(f64::from(SHORT)) + triangle(rest);
        let long_pairs = f64::from(grid) * f64::from(self.long_past(grid)) + triangle(f64::from(grid));
        if long_pairs <= short_pairs {
            return Ok(short_ms);
        }
        Ok(short_ms + (long_ms - short_ms).max(0.0) * (pairs - short_pairs).max(0.0) / (long_pairs - short_pairs))
    }
}

impl StepTimes for Simulated<'_> {
    type Error = Failure;
    fn time(&mut self, s: &StepShape) -> Result<Duration, Failure> {
        let context = if s.decoding > 0 { s.cached_tokens as f64 / f64::from(s.decoding) } else { 0.0 };
        let ms = match (s.decoding, s.prompt_tokens) {
            (0, 0) => 0.0,
            (n, 0) => self.decode_ms(n, context)?,
            (0, tokens) => self.prompts_ms(tokens, s.prompt_pairs as f64)?,
            (n, tokens) => {
                let histories = self.decode_ms(n, context)? - self.decode_ms(n, 0.0)?;
                self.prompts_ms(tokens + n, (s.prompt_pairs + u64::from(n)) as f64)? + histories.max(0.0)
            }
        };
        Ok(Duration::from_seconds(ms / 1e3))
    }
}

fn prompts(parts: impl IntoIterator<Item = (u32, u32)>) -> Step {
    let sequences = parts.into_iter().map(|(past, new)| Sequence { past, new }).collect();
    Step { sequences, ..Step::uniform(Phase::Prefill, 1, 1) }
}

/// Points of a grid at or below a value, and the next one above it.
fn around(value: u32, next: impl Fn(u32) -> u32) -> (u32, u32) {
    let (mut low, mut high) = (0, 1);
    if next(0) > 0 {
        high = next(0);
    } else {
        low = 1;
        high = next(high);
    }
    while high <= value {
        low = high;
        high = next(high);
    }
    (low, high)
}

/// 1, 2, 3, 4, 6, 8, 12, 16, ...
fn next_batch(batch: u32) -> u32 {
    match batch {
        0 => 1,
        1 => 2,
        n if n.is_power_of_two() => n / 2 * 3,
        n => n / 3 * 4,
    }
}

/// 0, 1024, 4096, 16384, ...
fn next_context(context: u32) -> u32 {
    if context == 0 { FIRST_CONTEXT } else { context.saturating_mul(4) }
}

fn between(below: f64, above: f64, share: f64) -> f64 {
    below + (above - below) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The twin without a grid: every shape is simulated as it is.
    fn simulated_ms(scenario: &Scenario, step: Step) -> f64 {
        let context = step.sequences.iter().map(|s| s.past).max().unwrap_or(0);
        let scenario = with_step(scenario, step, context);
        let program = scenario.program(&scenario.step).unwrap();
        pace(&scenario, &program, &mut SimMemory::default()).unwrap().0
    }

    #[test]
    fn between_the_points_of_the_grid_is_what_a_simulation_says() {
        let scenario = Scenario::new(&crate::args::DeploymentArgs::default()).unwrap();
        let mut grid = Simulated::new(&scenario);
        let mut near = |shape: StepShape, step: Step| {
            let (read, exact) = (grid.time(&shape).unwrap().as_ms(), simulated_ms(&scenario, step));
            assert!((read / exact - 1.0).abs() < 0.05, "{shape:?}: {read:.2} ms between points, {exact:.2} ms simulated");
        };
        for (batch, context) in [(1, 500), (5, 2500), (20, 9000), (50, 700)] {
            let cached_tokens = u64::from(batch) * u64::from(context);
            let shape = StepShape { decoding: batch, cached_tokens, ..StepShape::default() };
            near(shape, Step::uniform(Phase::Decode, batch, context));
        }
        // The first of these are what a lone user waits for: the prompt as `--phase prefill` has it.
        for (count, past, new) in [(1, 0, 300), (1, 0, 1024), (1, 0, 3000), (1, 0, 8192), (1, 2000, 3000), (5, 100, 700)] {
            let mut shape = StepShape::default();
            (0..count).for_each(|_| shape.add_prompt(past, new));
            near(shape, prompts((0..count).map(|_| (past, new))));
        }
        assert!(grid.simulated() < 40);
    }

    #[test]
    fn grids_surround_every_value() {
        let batches: Vec<u32> = std::iter::successors(Some(1), |b| Some(next_batch(*b))).take(9).collect();
        assert_eq!(batches, [1, 2, 3, 4, 6, 8, 12, 16, 24]);
        for value in 0..5000 {
            let (low, high) = around(value, next_context);
            assert!(low <= value && value < high && next_context(low) == high, "{value}: {low}..{high}");
        }
        for value in 1..500 {
            let (low, high) = around(value, next_batch);
            assert!(low <= value && value < high && next_batch(low) == high, "{value}: {low}..{high}");
            let (low, high) = around(value, |n| n * 2);
            assert!(low <= value && value < high && low * 2 == high, "{value}: {low}..{high}");
        }
    }
}
