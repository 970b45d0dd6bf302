//! How far table times are off, from what is said of points that were left out. The figures are computed by the importer and shipped, so
//! that a run need not compute them; a test computes them again.

use super::catalog::Source;
use super::interpolate::Fit;
use super::query::Query;
use super::tables::FamilyError;

/// One line a table: `gpu implementation family element points median p90`.
const TEXT: &str = include_str!("../../data/kernels/left-out.txt");

/// Repeats of one row, and neighbours along a curve, scatter by this much.
const REPEATS: f64 = 0.02;
/// What a figure is off, beyond the spread of its table, where the shape lies outside of what was measured.
const OUTSIDE: f64 = 0.15;
/// What moving a time to another GPU of the same architecture adds.
const OTHER_GPU: f64 = 0.10;
/// Of a table that has no figure of its own.
const UNKNOWN: f64 = 0.10;
/// Nine of ten errors of a normal distribution stay below this many standard deviations.
const P90_SIGMAS: f64 = 1.645;

/// Standard error, as a share of the time, of a reading of a table.
pub(super) fn left_out_error(source: &Source, query: &Query, fit: Fit) -> f64 {
    let spread = || {
        let element = query.element_word();
        let find =
            |family: &str| TEXT.lines().find_map(|line| p90_of(line, [source.slug, source.implementation.as_ref(), family, element]));
        find(query.family().name())
            .or_else(|| find("mla-decode-module").filter(|_| matches!(query, Query::MlaDecode(..))))
            .unwrap_or(UNKNOWN * P90_SIGMAS)
            / P90_SIGMAS
    };
    let parts = match fit {
        Fit::Exact => [REPEATS, 0.0, 0.0],
        Fit::Inside => [REPEATS, spread(), 0.0],
        Fit::Outside => [REPEATS, spread(), OUTSIDE],
    };
    let other = if source.same_product { 0.0 } else { OTHER_GPU };
    libm::sqrt(parts.iter().map(|p| p * p).sum::<f64>() + other * other)
}

fn p90_of(line: &str, key: [&str; 4]) -> Option<f64> {
    let mut words = line.split_whitespace();
    for part in key {
        if words.next() != Some(part) {
            return None;
        }
    }
    words.nth(2)?.parse().ok()
}

/// The shipped text for these errors.
pub fn render_left_out(errors: &[FamilyError]) -> String {
    let mut out = String::from("# Errors of interpolation, left-out points: gpu implementation family element points median p90\n");
    for e in errors {
        let line = format!("{} {} {} {} {} {:.4} {:.4}\n", e.gpu, e.implementation, e.family.name(), e.element, e.points, e.median, e.p90);
        out.push_str(&line);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::family_errors;

    #[test]
    fn shipped_errors_are_those_of_the_shipped_tables() {
        assert_eq!(TEXT, render_left_out(&family_errors()), "run the importer again");
    }
}
