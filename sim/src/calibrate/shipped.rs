//! How well each shipped table of collectives is predicted by a fit to its machine's others. Fitting all of them takes a minute, so the
//! figures are computed by `examples/score_collectives.rs --left-out` and shipped; a test computes some of them again.

use super::LeftOut;
use std::fmt::Write as _;

/// One line a table: `machine table rows error error-without-eager`.
const TEXT: &str = include_str!("../../data/nccl-tests/left-out.txt");

/// A shipped table and what a fit to its machine's others says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ShippedTable {
    /// The machine.
    pub machine: String,
    /// The table's file.
    pub table: String,
    /// Rows that count.
    pub rows: usize,
    /// Mean errors, as shares.
    pub left_out: LeftOut,
}

/// All of them, by machine.
pub fn shipped_left_out() -> Vec<ShippedTable> {
    TEXT.lines().filter(|line| !line.starts_with('#')).filter_map(read).collect()
}

fn read(line: &str) -> Option<ShippedTable> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [machine, table, rows, error, without_eager] = words.as_slice() else { return None };
    Some(ShippedTable {
        machine: (*machine).to_owned(),
        table: (*table).to_owned(),
        rows: rows.parse().ok()?,
        left_out: LeftOut { error: error.parse().ok()?, without_eager: without_eager.parse().ok() },
    })
}

/// The shipped text of these.
pub fn render_shipped(tables: &[ShippedTable]) -> String {
    let mut out = String::from("# Errors of a fit to the machine's other tables: machine table rows error error-without-eager\n");
    for one in tables {
        let without = one.left_out.without_eager.map_or_else(|| "-".to_owned(), |error| format!("{error:.4}"));
        let _ = writeln!(out, "{} {} {} {:.4} {without}", one.machine, one.table, one.rows, one.left_out.error);
    }
    out
}
