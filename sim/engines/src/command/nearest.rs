//! Flags that resemble a mistyped one.

use crate::flags::{Flag, flags};
use crate::question::Engine;

/// At most three names of the engine's flags within a quarter of their length in edits, best first.
pub fn nearest(engine: Engine, written: &str) -> Vec<&'static str> {
    let written = written.replace('_', "-");
    let names = flags(engine).iter().flat_map(Flag::names);
    let mut scored: Vec<(usize, &'static str)> =
        names.map(|name| (distance(&written, name), name)).filter(|(d, name)| *d <= (name.len() / 4).max(1)).collect();
    scored.sort_by_key(|(d, _)| *d);
    scored.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Levenshtein distance in characters, on at most the first 200 of each.
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(200).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(200).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, d) in [("", "", 0), ("abc", "", 3), ("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("ab", "ba", 2)] {
            assert_eq!(distance(a, b), d, "{a} {b}");
        }
    }
}
