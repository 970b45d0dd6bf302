//! Routed-expert times. Tables are keyed by tokens under a balanced router; what a kernel pays for is distinct experts
//! (weights read) and token-expert pairs (multiplications), so the curves are turned into those variables.

use super::interpolate::{Fit, RatioCurve, log_distance, nearest_mean};
use super::rates::{Element, GpuRates, family_floor_us};
use super::table::{Curve, Family, Table};
use super::{Estimate, ExpertsShape};

/// Shapes whose mean a query takes when its own was not measured.
const NEIGHBOURS: usize = 2;

/// Bytes of an activation.
const ACTIVATION_BYTES: f64 = 2.0;

/// Times of one weight format.
#[derive(Clone, Debug)]
pub(super) struct ExpertTimes {
    shapes: Vec<Shape>,
    gpu: GpuRates,
    element: Element,
}

/// One measured shape of a rank.
#[derive(Clone, Debug)]
struct Shape {
    hidden: u64,
    intermediate: u64,
    local_experts: u64,
    /// Over distinct experts, while every expert hit has one token.
    rising: RatioCurve,
    /// Over tokens an expert, once every local expert is hit.
    growth: RatioCurve,
}

/// Distinct experts and pairs of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    distinct: f64,
    pairs: f64,
}

impl Load {
    fn tokens_per_expert(self) -> f64 {
        if self.distinct > 0.0 { (self.pairs / self.distinct).max(1.0) } else { 1.0 }
    }
}

/// Whether rows of a curve were routed within 4 of 8 groups. The rows of DeepSeek-V3 were, as that model routes: on every GPU their
/// time stops growing at the bytes of half of the experts, while all other shapes grow to the whole.
fn grouped(curve: &Curve) -> bool {
    let [hidden, intermediate, topk, experts, ..] = numbers(curve);
    (hidden, intermediate, topk, experts) == (7168, 2048, 8, 256)
}

/// What a table row of `tokens` balanced tokens computes on its rank, and whether it hits every expert that can be hit.
///
/// Rows are one rank's: with EP it holds `experts / ep` experts and receives its share of the pairs, at least one. Under
/// group-limited routing two tokens share experts; the distinct experts that the times of such rows imply are half of the pairs plus 4.
fn balanced_load(curve: &Curve, tokens: u64) -> (Load, bool) {
    let [_, _, topk, experts, _tp, ep] = numbers(curve);
    let pairs = ((tokens * topk) as f64 / ep as f64).max(1.0);
    let local = experts as f64 / ep as f64;
    let (hit, reachable) = if grouped(curve) { (pairs / 2.0 + 4.0, local / 2.0) } else { (pairs, local) };
    (Load { distinct: hit.min(reachable), pairs }, hit >= reachable)
}

fn numbers(curve: &Curve) -> [u64; 6] {
    let mut out = [1; 6];
    for (to, from) in out.iter_mut().zip(&curve.numbers) {
        *to = (*from).max(1);
    }
    out
}

fn expert_bytes(element: Element, hidden: u64, intermediate: u64) -> f64 {
    3.0 * hidden as f64 * intermediate as f64 * element.bytes()
}

/// The physical model: floor + the longer of moving weights and activations and computing.
fn physical_us(gpu: &GpuRates, element: Element, hidden: u64, intermediate: u64, load: Load) -> f64 {
    let activations = load.pairs * (2.0 * hidden as f64 + 3.0 * intermediate as f64) * ACTIVATION_BYTES;
    let bytes = load.distinct * expert_bytes(element, hidden, intermediate) + activations;
    let flops = 6.0 * load.pairs * hidden as f64 * intermediate as f64;
    family_floor_us(Family::Moe) + gpu.memory_us(bytes).max(gpu.compute_us(flops, element))
}

impl ExpertTimes {
    /// The times of `element` in a table, `None` where it has none.
    pub(super) fn new(table: &Table, element: Element, gpu: &GpuRates) -> Option<Self> {
        let mut shapes: Vec<Shape> = Vec::new();
        for curve in &table.curves {
            let [hidden, intermediate, _, experts, tp, ep] = numbers(curve);
            // What one rank of several receives under group-limited routing is not known.
            let unclear = grouped(curve) && ep > 1;
            if unclear || curve.words[1] != element.table_word() || curve.words.last().is_none_or(|w| w != "balanced") {
                continue;
            }
            let (intermediate, local_experts) = (intermediate / tp, experts / ep);
            let same = |s: &Shape| (s.hidden, s.intermediate, s.local_experts) == (hidden, intermediate, local_experts);
            if intermediate > 0 && local_experts > 0 && !shapes.iter().any(same) {
                shapes.push(shape(curve, element, gpu));
            }
        }
        (!shapes.is_empty()).then(|| Self { shapes, gpu: gpu.clone(), element })
    }
    /// Time of a rank's routed experts with weights from memory; `None` where nothing comparable was measured.
    pub(super) fn estimate(&self, query: ExpertsShape) -> Option<Estimate> {
        let load = Load { distinct: query.distinct as f64, pairs: query.pairs as f64 };
        let physical = physical_us(&self.gpu, self.element, query.hidden, query.intermediate, load);
        let (ratio, fit) = self.ratio(&query, load)?;
        let bytes = load.distinct * expert_bytes(self.element, query.hidden, query.intermediate);
        // Rows that the L2 served were corrected.
        let corrected = self.gpu.warm_excess_us(bytes, bytes) > 0.0;
        Some(Estimate::new(physical * libm::exp(ratio), if corrected { fit.max(Fit::Inside) } else { fit }))
    }
    fn ratio(&self, query: &ExpertsShape, load: Load) -> Option<(f64, Fit)> {
        let mut fit = Fit::Exact;
        let mut exact = false;
        let mut items = Vec::new();
        for s in &self.shapes {
            let distance =
                log_distance(&[query.hidden, query.intermediate, query.local_experts], &[s.hidden, s.intermediate, s.local_experts]);
            let Some((ratio, reading)) = s.ratio(load) else { continue };
            if distance == 0.0 {
                exact = true;
                fit = reading;
            }
            items.push((distance, ratio));
        }
        let fit = if exact {
            fit
        } else if self.within(query) {
            Fit::Inside
        } else {
            Fit::Outside
        };
        nearest_mean(items, NEIGHBOURS).map(|ratio| (ratio, fit))
    }
    /// Whether a shape lies in the box of the measured ones.
    fn within(&self, query: &ExpertsShape) -> bool {
        let inside =
            |value: u64, of: fn(&Shape) -> u64| self.shapes.iter().any(|s| of(s) <= value) && self.shapes.iter().any(|s| of(s) >= value);
        inside(query.hidden, |s| s.hidden)
            && inside(query.intermediate, |s| s.intermediate)
            && inside(query.local_experts, |s| s.local_experts)
    }
    /// Relative error of each inner point when it is left out of its own curve.
    pub(super) fn leave_one_out(&self) -> Vec<f64> {
        let mut errors = Vec::new();
        for curve in self.shapes.iter().flat_map(|s| [&s.rising, &s.growth]) {
            let points = curve.points();
            for i in 1..points.len().saturating_sub(1) {
                let others = points.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, p)| *p).collect();
                if let Some(reading) = RatioCurve::new(others).at(points[i].0) {
                    errors.push((libm::exp(reading.ln_ratio - points[i].1) - 1.0).abs());
                }
            }
        }
        errors
    }
}

impl Shape {
    /// Logarithm of the quotient at a load: what the distinct experts say, times how it grows with tokens an expert.
    fn ratio(&self, load: Load) -> Option<(f64, Fit)> {
        let rising = self.rising.at(load.distinct.max(1.0))?;
        let per_expert = load.tokens_per_expert();
        let base = self.growth.points().first().filter(|(first, _)| per_expert > *first);
        let Some((_, base)) = base else {
            // A row has one token an expert until it hits them all.
            let same = per_expert == 1.0 || self.growth.points().first().is_some_and(|(first, _)| *first == per_expert);
            return Some((rising.ln_ratio, if same { rising.fit } else { rising.fit.max(Fit::Inside) }));
        };
        let growth = self.growth.at(per_expert)?;
        let whole = load.distinct >= self.local_experts as f64;
        let fit = if whole { growth.fit } else { rising.fit.max(growth.fit).max(Fit::Inside) };
        Some((rising.ln_ratio + growth.ln_ratio - base, fit))
    }
}

/// Turns a curve over tokens into one over distinct experts and one over tokens an expert, with weights from memory.
fn shape(curve: &Curve, element: Element, gpu: &GpuRates) -> Shape {
    let [hidden, intermediate, _, experts, tp, ep] = numbers(curve);
    let (intermediate, local_experts) = (intermediate / tp, experts / ep);
    let physical = |load| physical_us(gpu, element, hidden, intermediate, load);
    let bytes = |load: Load| load.distinct * expert_bytes(element, hidden, intermediate);
    let rows: Vec<Row> = curve.points.iter().map(|&(tokens, us)| (balanced_load(curve, tokens), us)).collect();
    let line = memory_line(&rows, |load| (gpu.warm_excess_us(bytes(load), bytes(load)) == 0.0).then(|| bytes(load)));
    let (mut rising, mut growth) = (Vec::new(), Vec::new());
    for ((load, saturated), table_us) in rows {
        let excess = gpu.warm_excess_us(bytes(load), bytes(load));
        // The line through the rows read from memory bounds the correction: a kernel that is slow for another reason hides the misses.
        let on_line = line.map_or(f64::INFINITY, |(intercept, slope)| intercept + slope * bytes(load));
        let us = if excess > 0.0 { table_us.max(on_line.min(table_us + excess)) } else { table_us };
        let ratio = libm::log(us / physical(load));
        // The first row that hits every expert ends the rise and starts the growth.
        if growth.is_empty() {
            rising.push((load.distinct, ratio));
        }
        if saturated {
            growth.push((load.tokens_per_expert(), ratio));
        }
    }
    Shape { hidden, intermediate, local_experts, rising: RatioCurve::new(rising), growth: RatioCurve::new(growth) }
}

/// A table row: what it computes, whether it hits every expert, its microseconds.
type Row = ((Load, bool), f64);

/// Intercept and slope, microseconds over bytes, through the first two rows that were read from memory before every expert was hit.
fn memory_line(rows: &[Row], cold_bytes: impl Fn(Load) -> Option<f64>) -> Option<(f64, f64)> {
    let mut cold = rows.iter().filter(|((_, saturated), _)| !saturated).filter_map(|((load, _), us)| Some((cold_bytes(*load)?, *us)));
    let (first, second) = (cold.next()?, cold.next()?);
    let slope = (second.1 - first.1) / (second.0 - first.0);
    (slope > 0.0).then_some((first.1 - slope * first.0, slope))
}
