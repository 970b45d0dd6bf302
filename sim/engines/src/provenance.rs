//! Where each row of the tables is from, and whether the releases between which it holds were read or assumed.
//!
//! A release is evidence where it was read (the lists below), where the row's source names it, or where the source names the pull request that brought
//! or ended the row. Any other release in a range is assumed, from release notes or from reports on either side, and its source must say so; an
//! answer that rests on such a row repeats it.

use crate::backends::{DEFAULTS, KERNELS};
use crate::question::Engine;
use crate::resolve;
use crate::rules;
use crate::startup;
use crate::version::Range;

/// Releases whose source was read.
const READ: &[&str] = &["0.5.8", "0.5.8.post1", "0.5.9", "0.5.10", "0.5.23", "0.16.0"];

/// The word with which a source says that it is none.
pub const ASSUMED: &str = "assumed";

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The table.
    pub table: &'static str,
    /// The row's name.
    pub name: String,
    /// Versions in which it holds.
    pub range: Range,
    /// Where it is from.
    pub source: String,
}

/// Whether both ends of a range are known from what the source names.
pub fn evidenced(range: Range, source: &str) -> bool {
    let by_pull = source.contains("pull request");
    let end = |end: &str| end.is_empty() || READ.contains(&end) || by_pull || source.contains(end);
    end(range.since) && end(range.until)
}

/// What an answer that rests on a row adds to its assumptions.
pub fn caveat(invariant: &str, source: &str) -> Option<String> {
    source.contains(ASSUMED).then(|| format!("the releases in which {invariant} holds: {source}"))
}

/// Rows of all tables that are written in code or have a source of their own.
pub fn rows() -> Vec<Row> {
    let row = |table, name: &str, range, source: &str| Row { table, name: name.to_owned(), range, source: source.to_owned() };
    let mut out: Vec<Row> = rules::rules().map(|r| row("rules", r.name, r.range, r.source)).collect();
    out.extend(DEFAULTS.iter().map(|d| row("default backends", d.name, d.range, d.source)));
    out.extend(KERNELS.iter().map(|k| row("kernels of backends", k.name, k.range, k.source)));
    for engine in [Engine::Sglang, Engine::Vllm] {
        out.extend(resolve::steps(engine).iter().map(|s| row("steps of argument processing", s.name, s.range, s.source)));
        out.extend(startup::table(engine).rows.iter().map(|r| row("start-up steps", &r.name, r.range, &r.source)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_source_and_every_assumed_release_says_so() {
        let all = rows();
        assert!(all.len() > 150, "{}", all.len());
        // A rule that looks backends up takes the source of the row that it finds.
        let wrong: Vec<&Row> = all
            .iter()
            .filter(|r| r.name != "backend_has_kernels")
            .filter(|r| r.source.trim().len() < 8 || !evidenced(r.range, &r.source) && !r.source.contains(ASSUMED))
            .collect();
        assert!(wrong.is_empty(), "{} rows without a source: {wrong:#?}", wrong.len());
    }

    #[test]
    fn evidence_is_a_release_that_was_read_or_is_named() {
        assert!(evidenced(Range::until("0.5.9"), "sglang/srt/server_args.py"));
        assert!(evidenced(Range::since("0.12.0"), "vllm pull request 29402"));
        assert!(evidenced(Range::between("0.24.0", "0.25.0"), "reports of 0.24.0, none of 0.25.0"));
        assert!(!evidenced(Range::until("0.5.7"), "sglang/srt/server_args.py (0.5.9)"));
        assert!(evidenced(Range::ALL, ""));
    }

    /// Tables of plain text name their sources at their head, and every one of their rows is read with it.
    #[test]
    fn tables_of_text_name_their_sources() {
        for (name, text) in [
            ("sglang-flags", include_str!("../data/sglang-flags.txt")),
            ("vllm-flags", include_str!("../data/vllm-flags.txt")),
            ("parsers", include_str!("../data/parsers.txt")),
            ("hooks", include_str!("../data/hooks.txt")),
            ("sglang-startup", include_str!("../data/sglang-startup.txt")),
            ("vllm-startup", include_str!("../data/vllm-startup.txt")),
        ] {
            let head: String = text.lines().take_while(|line| line.starts_with('#')).collect();
            assert!(head.contains("Sources:") && head.contains(ASSUMED), "{name}: {head}");
        }
    }
}
