//! Dense GEMM times: scattered `(n, k)` shapes, each a curve over rows.

use super::interpolate::{Fit, RatioCurve, log_distance, nearest_mean};
use super::rates::{Element, GpuRates, family_floor_us};
use super::table::{Family, Table};
use super::{Estimate, GemmShape};

/// Shapes whose mean a query takes. Leaving out one shape at a time, four give the smallest error.
const NEIGHBOURS: usize = 4;

/// Copies of the weights that the benchmark rotates through: rows of up to 17 MB exceed the memory rate of a GPU with 128 MiB of L2,
/// rows of 25 MB do not, so about six copies were in use.
const ROTATED_COPIES: f64 = 6.0;

/// Bytes of an activation.
const ACTIVATION_BYTES: f64 = 2.0;

/// Times of one weight format.
#[derive(Clone, Debug)]
pub(super) struct GemmTimes {
    shapes: Vec<Shape>,
    gpu: GpuRates,
    element: Element,
}

#[derive(Clone, Debug)]
struct Shape {
    n: u64,
    k: u64,
    curve: RatioCurve,
    /// Whether the benchmark read its weights from L2.
    warm: bool,
}

/// The physical model: floor + the longer of moving and computing.
fn physical_us(gpu: &GpuRates, element: Element, shape: GemmShape) -> f64 {
    let (m, n, k) = (shape.m as f64, shape.n as f64, shape.k as f64);
    let bytes = n * k * element.bytes() + m * (n + k) * ACTIVATION_BYTES;
    family_floor_us(Family::Gemm) + gpu.memory_us(bytes).max(gpu.compute_us(2.0 * m * n * k, element))
}

impl GemmTimes {
    /// The times of `element` in a table, `None` where it has none.
    pub(super) fn new(table: &Table, element: Element, gpu: &GpuRates) -> Option<Self> {
        let mut shapes: Vec<Shape> = Vec::new();
        for curve in table.curves.iter().filter(|c| c.words[1] == element.table_word()) {
            let [n, k] = curve.numbers[..] else { continue };
            if n == 0 || k == 0 || shapes.iter().any(|s| s.n == n && s.k == k) {
                continue;
            }
            let points = curve.points.iter().map(|&(m, us)| (m as f64, libm::log(us / physical_us(gpu, element, GemmShape { m, n, k }))));
            let bytes = n as f64 * k as f64 * element.bytes();
            let warm = gpu.warm_excess_us(bytes, bytes * ROTATED_COPIES) > 0.0;
            shapes.push(Shape { n, k, curve: RatioCurve::new(points.collect()), warm });
        }
        (!shapes.is_empty()).then(|| Self { shapes, gpu: gpu.clone(), element })
    }
    /// Time of a GEMM whose weights come from memory.
    pub(super) fn estimate(&self, shape: GemmShape) -> Option<Estimate> {
        let physical = physical_us(&self.gpu, self.element, shape);
        let (all, fit) = self.ratio(shape, |_| true)?;
        let table_us = physical * libm::exp(all);
        let bytes = shape.n as f64 * shape.k as f64 * self.element.bytes();
        let excess = self.gpu.warm_excess_us(bytes, bytes * ROTATED_COPIES);
        if excess == 0.0 {
            return Some(Estimate { us: table_us, fit });
        }
        // What rows read from memory say of this shape bounds the correction: a kernel that is slow for another reason hides the misses.
        let cold_us = self.ratio(shape, |s| !s.warm).map_or(f64::INFINITY, |(ratio, _)| physical * libm::exp(ratio));
        Some(Estimate { us: table_us.max(cold_us.min(table_us + excess)), fit: fit.max(Fit::Inside) })
    }
    fn ratio(&self, shape: GemmShape, take: impl Fn(&Shape) -> bool) -> Option<(f64, Fit)> {
        let mut fit = Fit::Exact;
        let mut exact = false;
        let mut items = Vec::with_capacity(self.shapes.len());
        for s in self.shapes.iter().filter(|s| take(s)) {
            let reading = s.curve.at(shape.m as f64)?;
            let distance = log_distance(&[shape.n, shape.k], &[s.n, s.k]);
            exact |= distance == 0.0;
            fit = fit.max(reading.fit);
            items.push((distance, reading.ln_ratio));
        }
        if !exact {
            fit = fit.max(self.hull_fit(shape));
        }
        nearest_mean(items, NEIGHBOURS).map(|ratio| (ratio, fit))
    }
    /// Whether `(n, k)` lies in the box of the measured shapes.
    fn hull_fit(&self, shape: GemmShape) -> Fit {
        let inside =
            |value: u64, of: fn(&Shape) -> u64| self.shapes.iter().any(|s| of(s) <= value) && self.shapes.iter().any(|s| of(s) >= value);
        if inside(shape.n, |s| s.n) && inside(shape.k, |s| s.k) { Fit::Inside } else { Fit::Outside }
    }
    /// Relative error of each point when its whole shape is left out, for reports of how far interpolation can be trusted.
    pub(super) fn leave_one_out(&self) -> Vec<f64> {
        let mut errors = Vec::new();
        for left_out in &self.shapes {
            for &(m, ln_ratio) in left_out.curve.points() {
                let shape = GemmShape { m: m as u64, n: left_out.n, k: left_out.k };
                let others = |s: &Shape| (s.n, s.k) != (left_out.n, left_out.k);
                if let Some((ratio, _)) = self.ratio(shape, others) {
                    errors.push((libm::exp(ratio - ln_ratio) - 1.0).abs());
                }
            }
        }
        errors
    }
}
