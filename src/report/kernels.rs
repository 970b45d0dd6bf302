//! How well shipped kernel times predict those that are left out.

use crate::table::Table;
use moetwin::sim::cost::{FamilyError, family_totals};
use serde_json::{Value, json};

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// For a person.
pub(crate) fn text(errors: &[FamilyError]) -> String {
    let mut totals = Table::new(["family", "points", "median", "p90"], &[]);
    for (family, points, median, p90) in family_totals(errors) {
        totals.row([family.name().to_owned(), points.to_string(), percent(median), percent(p90)]);
    }
    let mut table = Table::new(["GPU", "engine", "family", "format", "points", "median", "p90"], &[1, 2, 3]);
    for e in errors {
        table.row([
            e.gpu.to_owned(),
            e.implementation.to_owned(),
            e.family.name().to_owned(),
            e.element.to_owned(),
            e.points.to_string(),
            percent(e.median),
            percent(e.p90),
        ]);
    }
    format!(
        "Errors of what the other points of a table say of one that is left out\n\nBy family, over all GPUs, engines and formats\n{}\nBy table\n{}",
        totals.render(),
        table.render()
    )
}

/// For a program.
pub(crate) fn json(errors: &[FamilyError]) -> Value {
    let totals: Vec<Value> = family_totals(errors)
        .into_iter()
        .map(|(family, points, median, p90)| json!({"family": family.name(), "points": points, "median": median, "p90": p90}))
        .collect();
    let tables: Vec<Value> = errors
        .iter()
        .map(|e| {
            json!({
                "gpu": e.gpu, "implementation": e.implementation, "family": e.family.name(), "format": e.element,
                "points": e.points, "median": e.median, "p90": e.p90,
            })
        })
        .collect();
    json!({"schema": 1, "families": totals, "tables": tables})
}
