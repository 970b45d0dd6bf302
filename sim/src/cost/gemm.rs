//! Dense GEMM times: scattered `(n, k)` shapes, each a curve over rows.

use super::interpolate::{Fit, PlanePoint, RatioCurve, SCATTER, local_plane};
use super::rates::{Element, GpuRates, family_floor_us};
use super::table::{Family, Table};
use super::{Estimate, GemmShape};

/// Shapes that a query's plane goes through. Leaving out one shape at a time, a dozen give the smallest error.
const NEIGHBOURS: usize = 12;

/// How far a curve's own deviation from the plane through the others is believed between its points: single rows scatter as much as
/// neighbours do, and half gives the smallest error when points are left out.
const OWN_CURVE: f64 = 0.5;

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
    /// Whether the rows time the quantization of the activations with the product.
    quantizes: bool,
    /// Every number of rows that some shape was measured with, rising.
    rows: Vec<u64>,
}

/// A product on the smallest shapes starts and ends within this time; rows in a scaled format that take longer include quantizing the
/// activations and laying out their scales (fp8-block rows of B200 take 13 us at least, those of Hopper and of one scale a tensor 5 to 6).
const PLAIN_PRODUCT_US: f64 = 10.0;

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
        let rows = table.curves.iter().filter(|c| c.words[1] == element.table_word()).flat_map(|c| &c.points);
        let quantizes = rows.map(|p| p.1).fold(f64::INFINITY, f64::min) > PLAIN_PRODUCT_US;
        let mut rows: Vec<u64> = shapes.iter().flat_map(|s| s.curve.points()).map(|p| p.0 as u64).collect();
        rows.sort_unstable();
        rows.dedup();
        (!shapes.is_empty()).then(|| Self { shapes, gpu: gpu.clone(), element, quantizes, rows })
    }
    /// Time of a GEMM whose weights come from memory.
    pub(super) fn estimate(&self, shape: GemmShape) -> Option<Estimate> {
        let found = self.padded(shape).map(|e| Estimate { whole: self.quantizes, ..e })?;
        if found.fit == Fit::Exact {
            return Some(found);
        }
        // What lies between rows of a shape that was measured takes no less than the one before.
        let own = self.shapes.iter().find(|s| (s.n, s.k) == (shape.n, shape.k));
        let fewer = own.and_then(|s| s.curve.points().iter().map(|p| p.0 as u64).rfind(|m| *m < shape.m));
        let fewer_us = fewer.and_then(|m| self.padded(GemmShape { m, ..shape })).map_or(0.0, |e| e.us);
        Some(Estimate { us: found.us.max(fewer_us), ..found })
    }
    /// The product with as many rows as asked, or padded with rows of zeros to more that were measured to take less: benchmarks met slow
    /// kernels of few rows (every fp8 row of one token of vLLM on B200 takes 14 us more than that of two) and rows that something
    /// disturbed, and no product need take longer than one that contains it.
    fn padded(&self, shape: GemmShape) -> Option<Estimate> {
        /// By how much no table beats the physical model: rows beyond it need not be asked.
        const BEATEN: f64 = 2.0;
        let own = self.product(shape)?;
        let mut best = own;
        for &m in self.rows.iter().skip_while(|m| **m <= shape.m) {
            let more = GemmShape { m, ..shape };
            if physical_us(&self.gpu, self.element, more) > BEATEN * best.us {
                break;
            }
            let Some(found) = self.product(more).filter(|e| e.us < best.us) else { continue };
            best = Estimate { fit: found.fit.max(Fit::Inside), ..found };
        }
        // A measured row is given up for what differs from it by more than repeats of it do.
        let bar = if own.fit == Fit::Exact { SCATTER } else { 1.0 };
        Some(if best.us < own.us * bar { best } else { own })
    }
    fn product(&self, shape: GemmShape) -> Option<Estimate> {
        let physical = physical_us(&self.gpu, self.element, shape);
        let (all, fit) = self.ratio(shape, |_| true)?;
        let table_us = physical * libm::exp(all);
        let bytes = shape.n as f64 * shape.k as f64 * self.element.bytes();
        let excess = self.gpu.warm_excess_us(bytes, bytes * ROTATED_COPIES);
        if excess == 0.0 {
            return Some(Estimate::new(table_us, fit));
        }
        // What rows read from memory say of this shape bounds the correction: a kernel that is slow for another reason hides the misses.
        let cold_us = self.ratio(shape, |s| !s.warm).map_or(f64::INFINITY, |(ratio, _)| physical * libm::exp(ratio));
        Some(Estimate::new(table_us.max(cold_us.min(table_us + excess)), fit.max(Fit::Inside)))
    }
    /// Logarithm of (time / physical model): the measured point, or the plane through the curves of the shapes around; where the shape
    /// itself was measured with other rows, moved towards its own curve.
    fn ratio(&self, shape: GemmShape, take: impl Fn(&Shape) -> bool) -> Option<(f64, Fit)> {
        let own = self.shapes.iter().find(|s| (s.n, s.k) == (shape.n, shape.k) && take(s));
        let m = shape.m as f64;
        if let Some(own) = own {
            let reading = own.curve.at(m)?;
            if reading.fit != Fit::Inside {
                return Some((reading.ln_ratio, reading.fit));
            }
        }
        let (plane, mut fit) = self.plane(shape, m, &take)?;
        let Some(own) = own else { return Some((plane, fit.max(self.hull_fit(shape)))) };
        fit = fit.max(Fit::Inside);
        Some((plane + OWN_CURVE * self.own_deviation(own, m, None, &take)?, fit))
    }
    /// What the other shapes say at `m` rows.
    fn plane(&self, shape: GemmShape, m: f64, take: &impl Fn(&Shape) -> bool) -> Option<(f64, Fit)> {
        let mut fit = Fit::Exact;
        let mut points: Vec<PlanePoint> = Vec::with_capacity(self.shapes.len());
        // Beyond the measured sizes the plane of the nearest one holds: a slope between neighbours says nothing far away.
        let (n, k) = (self.within(shape.n, |s| s.n), self.within(shape.k, |s| s.k));
        let ln = |own: u64, other: u64| libm::log(other as f64 / own as f64);
        for s in self.shapes.iter().filter(|s| (s.n, s.k) != (shape.n, shape.k) && take(s)) {
            let reading = s.curve.at(m)?;
            fit = fit.max(reading.fit);
            points.push(([ln(n, s.n), ln(k, s.k)], reading.ln_ratio));
        }
        Some((local_plane(&mut points, NEIGHBOURS)?, fit))
    }
    /// By how much a curve lies above the plane of the others at `m` rows, from its points on both sides; one point may be left out.
    fn own_deviation(&self, own: &Shape, m: f64, left_out: Option<f64>, take: &impl Fn(&Shape) -> bool) -> Option<f64> {
        let points = own.curve.points().iter().filter(|p| Some(p.0) != left_out);
        let low = points.clone().rfind(|p| p.0 <= m);
        let high = points.clone().find(|p| p.0 >= m);
        let deviation = |&(at, ratio): &(f64, f64)| {
            let shape = GemmShape { m: at as u64, n: own.n, k: own.k };
            self.plane(shape, at, take).map(|(plane, _)| ratio - plane)
        };
        match (low, high) {
            (Some(low), Some(high)) if low.0 < high.0 => {
                let weight = libm::log(m / low.0) / libm::log(high.0 / low.0);
                Some((1.0 - weight) * deviation(low)? + weight * deviation(high)?)
            }
            (Some(only), _) | (None, Some(only)) => deviation(only),
            (None, None) => Some(0.0),
        }
    }
    /// The size of the measured range nearest to `value`.
    fn within(&self, value: u64, of: fn(&Shape) -> u64) -> u64 {
        let least = self.shapes.iter().map(of).min().unwrap_or(1);
        let most = self.shapes.iter().map(of).max().unwrap_or(1);
        value.clamp(least, most)
    }
    /// Whether `(n, k)` lies in the box of the measured shapes.
    fn hull_fit(&self, shape: GemmShape) -> Fit {
        let inside =
            |value: u64, of: fn(&Shape) -> u64| self.shapes.iter().any(|s| of(s) <= value) && self.shapes.iter().any(|s| of(s) >= value);
        if inside(shape.n, |s| s.n) && inside(shape.k, |s| s.k) { Fit::Inside } else { Fit::Outside }
    }
    /// Relative error of each point when it is left out: what the other shapes, and the rest of its own curve, say of it.
    pub(super) fn leave_one_out(&self) -> Vec<f64> {
        let mut errors = Vec::new();
        for own in &self.shapes {
            for &(m, ln_ratio) in own.curve.points() {
                let shape = GemmShape { m: m as u64, n: own.n, k: own.k };
                let said = self.plane(shape, m, &|_| true).zip(self.own_deviation(own, m, Some(m), &|_| true));
                if let Some(((plane, _), deviation)) = said {
                    errors.push((libm::exp(plane + OWN_CURVE * deviation - ln_ratio) - 1.0).abs());
                }
            }
        }
        errors
    }
}
