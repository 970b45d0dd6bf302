//! How well shipped tables predict what is left out of them.

use crate::table::Table;
use moetwin::sim::calibrate::ShippedTable;
use moetwin::sim::cost::{FamilyError, family_totals};
use serde_json::{Value, json};

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// For a person.
pub(crate) fn text(errors: &[FamilyError], collectives: &[ShippedTable]) -> String {
    let mut totals = Table::new(["family", "points", "median", "p90"], &[]);
    for (family, points, median, p90) in family_totals(errors) {
        totals.row([family.name().to_owned(), points.to_string(), percent(median), percent(p90)]);
    }
    let mut table = Table::new(["GPU", "engine", "family", "format", "points", "median", "p90"], &[1, 2, 3]);
    for e in errors {
        table.row([
            e.gpu.to_owned(),
            e.implementation.clone(),
            e.family.name().to_owned(),
            e.element.to_owned(),
            e.points.to_string(),
            percent(e.median),
            percent(e.p90),
        ]);
    }
    let mut shipped = Table::new(["machine", "collectives", "rows", "left out", "not eager"], &[1]);
    for one in collectives {
        let without = one.left_out.without_eager.map_or_else(|| "-".to_owned(), percent);
        shipped.row([one.machine.clone(), one.table.clone(), one.rows.to_string(), percent(one.left_out.error), without]);
    }
    format!(
        "Errors of what the other points of a table say of one that is left out\n\nBy family, over all GPUs, engines and formats\n{}\nBy table\n{}\n\
         Mean errors of tables of collectives, each predicted by a fit to its machine's others that begins at round figures\n{}",
        totals.render(),
        table.render(),
        shipped.render()
    )
}

/// For a program.
pub(crate) fn json(errors: &[FamilyError], collectives: &[ShippedTable]) -> Value {
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
    let collectives: Vec<Value> = collectives
        .iter()
        .map(|one| {
            json!({
                "machine": one.machine, "table": one.table, "rows": one.rows, "left_out_error": one.left_out.error,
                "left_out_error_without_eager": one.left_out.without_eager,
            })
        })
        .collect();
    json!({"schema": 1, "families": totals, "tables": tables, "collectives": collectives})
}
