//! The search, and what it may not claim.

use super::generic::generic;
use super::knobs::{Knob, knobs, scale};
use super::{CalibrateError, Fit, Residual, Table, residuals, table_errors};
use crate::collective::Launch;
use crate::machine::{Machine, Origin};

/// Most mean error over the tables that a fit may have.
pub const DEFENSIBLE_MEAN: f64 = 0.15;
/// Most mean error that a fit may have for one table.
pub const DEFENSIBLE_TABLE: f64 = 0.3;
/// Factors tried on each figure, coarse to fine.
const FACTORS: [f64; 6] = [2.0, 1.4, 1.2, 1.1, 1.05, 1.02];
/// Rounds over all figures at each factor.
const ROUNDS: usize = 3;
/// What a table must gain before a figure is moved: figures the tables do not speak of stay as they were.
const GAIN: f64 = 1e-4;
/// What a figure's move by a factor of e must gain: between fits that are as good, the one nearer to where it began is preferred.
const MOVING: f64 = 2e-3;

fn objective(machine: &Machine, tables: &[Table]) -> Result<f64, CalibrateError> {
    let residuals = residuals(machine, tables)?;
    if residuals.is_empty() {
        return Err(CalibrateError::NoRows);
    }
    let errors = table_errors(&residuals, tables.len());
    Ok(errors.iter().sum::<f64>() / errors.len() as f64)
}

/// Fits a machine's figures to tables by coordinate search on the mean error of the tables, each table weighing the same.
///
/// # Errors
/// If there is no row to fit, a table asks for what the machine cannot do, or the best fit is indefensible.
pub fn fit(machine: &Machine, tables: &[Table]) -> Result<Fit, CalibrateError> {
    let (mut best, moved) = search(machine, tables)?;
    defend(&best, tables)?;
    let source = tables.iter().map(|table| table.name.as_str()).collect::<Vec<_>>().join(", ");
    let knobs = knobs();
    for ((_, find), factor) in knobs.iter().zip(&moved) {
        if *factor == 1.0 {
            continue;
        }
        for knob in find(&mut best) {
            let (origin, text) = match knob {
                Knob::Time(figure) => (&mut figure.origin, &mut figure.source),
                Knob::Number(figure) => (&mut figure.origin, &mut figure.source),
            };
            *origin = Origin::Measured;
            *text = format!("fitted to {source}");
        }
    }
    let moved = knobs.iter().zip(moved).filter(|(_, factor)| *factor != 1.0).map(|((name, _), factor)| (*name, factor)).collect();
    let residuals = residuals(&best, tables)?;
    Ok(Fit { machine: best, moved, residuals })
}

/// The best figures found, and the factor by which each of [`knobs`] was moved.
fn search(machine: &Machine, tables: &[Table]) -> Result<(Machine, Vec<f64>), CalibrateError> {
    let knobs = knobs();
    let mut best = machine.clone();
    let mut least = objective(&best, tables)?;
    let mut moved = vec![1.0f64; knobs.len()];
    // What not even the coarsest factor changes anything by, the tables do not speak of.
    let mut spoken_of = vec![true; knobs.len()];
    for factor in FACTORS {
        for _ in 0..ROUNDS {
            let before = least;
            for (index, (_, find)) in knobs.iter().enumerate().filter(|(index, _)| spoken_of[*index]).collect::<Vec<_>>() {
                let mut changes = false;
                for factor in [factor, 1.0 / factor] {
                    let mut candidate = best.clone();
                    scale(&mut candidate, *find, factor);
                    let error = objective(&candidate, tables)?;
                    changes |= error != least;
                    let further = libm::fabs(libm::log(moved[index] * factor)) - libm::fabs(libm::log(moved[index]));
                    if error < least - GAIN - MOVING * further {
                        (best, least) = (candidate, error);
                        moved[index] *= factor;
                        break;
                    }
                }
                spoken_of[index] = changes;
            }
            if least >= before - GAIN {
                break;
            }
        }
    }
    Ok((best, moved))
}

/// Refuses a fit that is too far from its tables.
fn defend(machine: &Machine, tables: &[Table]) -> Result<(), CalibrateError> {
    let errors = table_errors(&residuals(machine, tables)?, tables.len());
    let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    let worst = errors.iter().zip(tables).max_by(|a, b| a.0.total_cmp(b.0));
    match worst {
        Some((&most, table)) if mean > DEFENSIBLE_MEAN || most > DEFENSIBLE_TABLE => {
            Err(CalibrateError::Indefensible { mean, worst: table.name.clone(), most })
        }
        _ => Ok(()),
    }
}

/// For each table: its rows as predicted by a fit to all the others.
fn predicted_by_others(machine: &Machine, tables: &[Table]) -> Result<Vec<Vec<Residual>>, CalibrateError> {
    if tables.len() < 2 {
        return Err(CalibrateError::OneTable);
    }
    let start = generic(machine);
    let mut out = Vec::new();
    for index in 0..tables.len() {
        let mut others = tables.to_vec();
        let left_out = [others.remove(index)];
        let (fitted, _) = search(&start, &others)?;
        out.push(residuals(&fitted, &left_out)?);
    }
    Ok(out)
}

/// How well a table is predicted by a fit to its machine's others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeftOut {
    /// Mean error of all its rows.
    pub error: f64,
    /// Of those that are not eager: how long the host of a box takes is in no table but its own. `None` if all are.
    pub without_eager: Option<f64>,
}

/// For each table: the mean error of a fit to all the others, which begins at figures that no table of this machine has touched. Tells
/// how far the fit reaches beyond what it has seen.
///
/// # Errors
/// As [`fit`], but for a fit that cannot be defended: how bad it is, is what is asked. Needs at least two tables.
pub fn leave_one_out(machine: &Machine, tables: &[Table]) -> Result<Vec<LeftOut>, CalibrateError> {
    let mean = |errors: Vec<f64>| (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64);
    let all = predicted_by_others(machine, tables)?;
    Ok(all
        .iter()
        .map(|rows| {
            let errors = |keep: fn(&Residual) -> bool| rows.iter().filter(|row| keep(row)).map(|row| row.error().abs()).collect();
            LeftOut { error: mean(errors(|_| true)).unwrap_or(0.0), without_eager: mean(errors(|row| row.launch != Launch::Eager)) }
        })
        .collect())
}
