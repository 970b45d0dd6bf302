//! Logs of collective times, and manifests of them.

use crate::check_reason;
use moetwin_sim::Duration;
use moetwin_sim::import::tables::{Told, manifest, table};

/// Any bytes as a log, as a table with named columns and as a manifest: rejected with a reason, or rows whose figures mean something. Told
/// what it is, a log with rows is never refused for what it does not say.
pub fn check_nccl_log(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(e) = manifest(text) {
        check_reason(&e.to_string());
        assert!(e.line > 0 && e.column > 0);
    }
    let mut told = Told::default();
    for (key, value) in [("op", "all_reduce"), ("ranks", "8"), ("library", "sglang")] {
        told.set(key, value).unwrap_or_else(|e| panic!("{key}={value}: {e}"));
    }
    for column in [None, Some("time_us")] {
        told.column = column.map(str::to_owned);
        match table("log", text, &told, 8) {
            Err(e) => {
                check_reason(&e.to_string());
                assert!(e.line > 0 && e.column > 0 && e.line <= text.lines().count().max(1));
            }
            Ok(table) => {
                assert!(!table.rows.is_empty(), "a table without rows");
                assert!(table.rows.iter().all(|row| row.time < Duration::MAX || row.bytes > 0));
            }
        }
    }
}
