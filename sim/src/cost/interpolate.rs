//! Interpolation between measured times.
//!
//! Every time is divided by what a simple physical model (floor + bytes / rate, see [`super::roofline`]) says of the same shape, and
//! the logarithm of that quotient is what gets interpolated: it varies little between neighbours, so few points suffice and a
//! query beyond the last point still follows the physics.

/// How far a query lies from what was measured. Ordered from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// A measured point.
    Exact,
    /// Between measured points.
    Inside,
    /// Beyond them.
    Outside,
}

/// What is below this share of a measured time differs by more than repeats of one row do.
pub(super) const SCATTER: f64 = 0.97;

/// A value read off a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reading {
    /// Natural logarithm of (measured / physical model).
    pub(super) ln_ratio: f64,
    /// How good it is.
    pub(super) fit: Fit,
}

/// `(x, ln ratio)` with strictly rising x.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RatioCurve {
    points: Vec<(f64, f64)>,
}

impl RatioCurve {
    /// A curve from points in any order; of equal x the first stays.
    pub(super) fn new(mut points: Vec<(f64, f64)>) -> Self {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup_by(|b, a| a.0 == b.0);
        Self { points }
    }
    /// The points.
    pub(super) fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
    /// Linear in ln x between points, constant beyond them. `None` without points.
    pub(super) fn at(&self, x: f64) -> Option<Reading> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let after = self.points.partition_point(|p| p.0 < x);
        match self.points.get(after) {
            Some(p) if p.0 == x => Some(Reading { ln_ratio: p.1, fit: Fit::Exact }),
            None => Some(Reading { ln_ratio: last.1, fit: Fit::Outside }),
            Some(_) if after == 0 => Some(Reading { ln_ratio: first.1, fit: Fit::Outside }),
            Some(high) => {
                let low = self.points[after - 1];
                let weight = libm::log(x / low.0) / libm::log(high.0 / low.0);
                Some(Reading { ln_ratio: low.1 + weight * (high.1 - low.1), fit: Fit::Inside })
            }
        }
    }
}

/// The neighbours of `x` among sorted `knots`, each with its weight (linear in the logarithm).
pub(super) fn bracket(knots: &[u64], x: f64) -> (Vec<(u64, f64)>, Fit) {
    let after = knots.partition_point(|k| (*k as f64) < x);
    match (knots.get(after), after.checked_sub(1).map(|i| knots[i])) {
        (Some(&high), _) if high as f64 == x => (vec![(high, 1.0)], Fit::Exact),
        (Some(&high), Some(low)) => {
            let weight = libm::log(x / low as f64) / libm::log(high as f64 / low as f64);
            (vec![(low, 1.0 - weight), (high, weight)], Fit::Inside)
        }
        (Some(&only), None) | (None, Some(only)) => (vec![(only, 1.0)], Fit::Outside),
        (None, None) => (Vec::new(), Fit::Outside),
    }
}

/// Mean of `(squared distance, value)` weighted by inverse squared distance, over the nearest `count` items.
/// A distance of zero wins alone. `None` without items.
pub(super) fn nearest_mean(mut items: Vec<(f64, f64)>, count: usize) -> Option<f64> {
    items.sort_by(|a, b| a.0.total_cmp(&b.0));
    items.truncate(count);
    if items.first()?.0 == 0.0 {
        return Some(items[0].1);
    }
    let weights: f64 = items.iter().map(|(d, _)| 1.0 / d).sum();
    Some(items.iter().map(|(d, v)| v / d).sum::<f64>() / weights)
}

/// A point of a plane fit: where it lies relative to the question (logarithms of the quotients of its two sizes), and its value.
pub(super) type PlanePoint = ([f64; 2], f64);

/// Value at the origin of the plane through the nearest `count` points, nearer ones weighing more. A slight pull towards a level plane keeps
/// points in a row from tilting it. A point at the origin wins alone. `None` without points.
pub(super) fn local_plane(points: &mut Vec<PlanePoint>, count: usize) -> Option<f64> {
    /// Squared distance at which a point weighs half of one at the origin, and the pull towards level; leaving out one shape at a time, the
    /// error hardly depends on either.
    const SOFTEN: f64 = 0.02;
    const LEVEL: f64 = 0.02;
    let distance = |at: &[f64; 2]| at[0] * at[0] + at[1] * at[1];
    points.sort_by(|a, b| distance(&a.0).total_cmp(&distance(&b.0)));
    points.truncate(count);
    let first = points.first()?;
    if first.0 == [0.0, 0.0] {
        return Some(first.1);
    }
    // Normal equations of value = c + a x + b y, eliminated by hand: three unknowns.
    let (mut w, mut x, mut y, mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    let (mut v, mut xv, mut yv) = (0.0, 0.0, 0.0);
    for (at, value) in points.iter() {
        let weight = 1.0 / (distance(at) + SOFTEN);
        let (px, py) = (at[0] * weight, at[1] * weight);
        (w, x, y) = (w + weight, x + px, y + py);
        (xx, xy, yy) = (xx + px * at[0], xy + px * at[1], yy + py * at[1]);
        (v, xv, yv) = (v + weight * value, xv + px * value, yv + py * value);
    }
    (xx, yy) = (xx + LEVEL * w, yy + LEVEL * w);
    let (cxx, cxy, cyy) = (xx - x * x / w, xy - x * y / w, yy - y * y / w);
    let (cxv, cyv) = (xv - x * v / w, yv - y * v / w);
    let determinant = cxx * cyy - cxy * cxy;
    let (a, b) = ((cxv * cyy - cyv * cxy) / determinant, (cyv * cxx - cxv * cxy) / determinant);
    Some((v - a * x - b * y) / w)
}

/// Squared distance of two shapes: the sum over their sizes of the squared logarithm of the quotient.
pub(super) fn log_distance(a: &[u64], b: &[u64]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| libm::log(a.max(1) as f64 / b.max(1) as f64)).map(|l| l * l).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_linear_in_the_logarithm_and_constant_outside() {
        let curve = RatioCurve::new(vec![(4.0, 2.0), (1.0, 0.0)]);
        assert_eq!(curve.at(1.0), Some(Reading { ln_ratio: 0.0, fit: Fit::Exact }));
        let middle = curve.at(2.0).unwrap();
        assert!((middle.ln_ratio - 1.0).abs() < 1e-12 && middle.fit == Fit::Inside);
        assert_eq!(curve.at(0.5), Some(Reading { ln_ratio: 0.0, fit: Fit::Outside }));
        assert_eq!(curve.at(9.0), Some(Reading { ln_ratio: 2.0, fit: Fit::Outside }));
        assert_eq!(RatioCurve::default().at(1.0), None);
    }

    #[test]
    fn brackets_weigh_both_neighbours() {
        let (corners, fit) = bracket(&[4, 16], 8.0);
        assert_eq!(fit, Fit::Inside);
        assert_eq!(corners.iter().map(|c| c.0).collect::<Vec<_>>(), [4, 16]);
        assert!(corners.iter().all(|c| (c.1 - 0.5).abs() < 1e-12));
        assert_eq!(bracket(&[4, 16], 4.0), (vec![(4, 1.0)], Fit::Exact));
        assert_eq!(bracket(&[4, 16], 32.0), (vec![(16, 1.0)], Fit::Outside));
        assert_eq!(bracket(&[4, 16], 1.0), (vec![(4, 1.0)], Fit::Outside));
        assert_eq!(bracket(&[], 1.0), (vec![], Fit::Outside));
    }

    #[test]
    fn a_plane_is_found_and_points_in_a_row_do_not_tilt_it_without_bounds() {
        let value = |x: f64, y: f64| 0.3 + 0.2 * x - 0.1 * y;
        let mut points: Vec<PlanePoint> =
            [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0), (0.5, 0.0)].into_iter().map(|(x, y)| ([x, y], value(x, y))).collect();
        assert!((local_plane(&mut points, 12).unwrap() - 0.3).abs() < 0.01);
        let mut row: Vec<PlanePoint> = (1..5).map(|i| ([f64::from(i), f64::from(i)], f64::from(i) * 0.1)).collect();
        assert!(local_plane(&mut row, 12).unwrap().abs() < 0.2);
        assert_eq!(local_plane(&mut vec![([0.0, 0.0], 7.0), ([0.1, 0.0], 1.0)], 12), Some(7.0));
        assert_eq!(local_plane(&mut vec![([2.0, 0.0], 7.0)], 12), Some(7.0));
        assert_eq!(local_plane(&mut Vec::new(), 12), None);
    }

    #[test]
    fn the_nearest_count_and_an_exact_match_wins() {
        assert_eq!(nearest_mean(vec![(1.0, 2.0), (0.0, 5.0)], 4), Some(5.0));
        assert_eq!(nearest_mean(vec![(1.0, 2.0), (1.0, 4.0), (9.0, 100.0)], 2), Some(3.0));
        assert_eq!(nearest_mean(vec![], 2), None);
        assert_eq!(log_distance(&[8, 8], &[8, 8]), 0.0);
    }
}
