//! Finds where a key stands in a JSON text. `serde_json` forgets places, and an error should show one.
//!
//! The text has been parsed before, so that nesting is bounded and syntax is sound; on anything else the scan stops early.

use super::error::Position;
use std::collections::BTreeSet;

/// A step from a JSON value to one inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A key of an object.
    Key(String),
    /// An element of an array.
    Index(usize),
}

/// The path as people write it: `a.b[3]`.
pub(super) fn path_text(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Key(key) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(key);
            }
            Part::Index(i) => text.push_str(&format!("[{i}]")),
        }
    }
    text
}

/// Place of the key (or element) at the end of the path; of its last occurrence where a key is repeated, as parsers take that one.
pub(super) fn find(text: &str, parts: &[Part]) -> Option<Position> {
    let mut scan = Scan { text, at: 0 };
    scan.descend(parts).map(|offset| position(text, offset))
}

/// The place of a byte offset.
fn position(text: &str, offset: usize) -> Position {
    let before = &text[..offset];
    let start = before.rfind('\n').map_or(0, |i| i + 1);
    Position { line: before.matches('\n').count() + 1, column: before[start..].chars().count() + 1 }
}

/// The place of a syntax error. serde_json counts columns in bytes, and from 0 where it stands before the first byte of a line.
pub(super) fn of_syntax_error(text: &str, line: usize, column: usize) -> Position {
    let line = line.max(1);
    let start = text.split_inclusive('\n').take(line - 1).map(str::len).sum::<usize>();
    let mut offset = (start + column.saturating_sub(1)).min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    position(text, offset)
}

/// Paths of keys that stand twice in one object, at most `limit` of them.
pub(super) fn duplicates(text: &str, limit: usize) -> Vec<Vec<Part>> {
    let mut found = Vec::new();
    let mut scan = Scan { text, at: 0 };
    scan.collect_duplicates(&mut Vec::new(), &mut found, limit);
    found
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Reads a string and gives it unescaped.
    fn string(&mut self) -> Option<String> {
        let start = self.at;
        self.skip_string()?;
        serde_json::from_str(self.text.get(start..self.at)?).ok()
    }

    fn skip_string(&mut self) -> Option<()> {
        self.take(b'"')?;
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
    }

    /// Skips one value of any kind without recursion.
    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    let bytes = self.text.as_bytes();
                    while bytes.get(self.at).is_some_and(|b| !b.is_ascii_whitespace() && !b",:{}[]\"".contains(b)) {
                        self.at += 1;
                    }
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Calls `each` with the offset and the part of every child of the value at hand; `each` consumes the child's value.
    fn children(&mut self, mut each: impl FnMut(&mut Self, usize, Part) -> Option<()>) -> Option<()> {
        match self.peek()? {
            b'{' => {
                self.at += 1;
                while self.peek()? != b'}' {
                    let offset = self.at;
                    let key = self.string()?;
                    self.take(b':')?;
                    each(self, offset, Part::Key(key))?;
                    if self.peek()? == b',' {
                        self.at += 1;
                    }
                }
                self.at += 1;
            }
            b'[' => {
                self.at += 1;
                let mut index = 0;
                while self.peek()? != b']' {
                    let offset = self.at;
                    each(self, offset, Part::Index(index))?;
                    index += 1;
                    if self.peek()? == b',' {
                        self.at += 1;
                    }
                }
                self.at += 1;
            }
            _ => self.skip_value()?,
        }
        Some(())
    }

    fn descend(&mut self, parts: &[Part]) -> Option<usize> {
        let (first, rest) = parts.split_first()?;
        let mut found = None;
        self.children(|scan, offset, part| {
            if part == *first {
                let start = scan.at;
                found = if rest.is_empty() { Some(offset) } else { scan.descend(rest) };
                scan.at = start;
            }
            scan.skip_value()
        });
        found
    }

    fn collect_duplicates(&mut self, path: &mut Vec<Part>, found: &mut Vec<Vec<Part>>, limit: usize) -> Option<()> {
        let mut seen = BTreeSet::new();
        self.children(|scan, _, part| {
            path.push(part.clone());
            if let Part::Key(key) = part
                && !seen.insert(key)
                && found.len() < limit
            {
                found.push(path.clone());
            }
            let result = scan.collect_duplicates(path, found, limit);
            path.pop();
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[&str]) -> Vec<Part> {
        parts.iter().map(|p| p.parse().map_or_else(|_| Part::Key((*p).to_string()), Part::Index)).collect()
    }

    #[test]
    fn syntax_errors_are_placed_in_characters_from_1() {
        for (text, line, column) in [("", 1, 1), ("{", 1, 1), ("{\"ü\": x}", 1, 7), ("{\n  \"a\": \n}", 3, 1), ("[1,\n", 2, 1)] {
            let e = serde_json::from_str::<serde_json::Value>(text).expect_err(text);
            let found = of_syntax_error(text, e.line(), e.column());
            assert_eq!((found.line, found.column), (line, column), "{text:?}: {e}");
        }
    }

    #[test]
    fn keys_and_elements_are_found_where_they_stand() {
        let text = "{\n  \"a\": {\"b\": [1, {\"c\\n\": 2}], \"ü\": 0, \"b2\": \"}\"},\n  \"a2\": 1\n}";
        let at = |parts: &[&str]| find(text, &key(parts)).map(|p| (p.line, p.column));
        assert_eq!(at(&["a"]), Some((2, 3)));
        assert_eq!(at(&["a", "b"]), Some((2, 9)));
        assert_eq!(at(&["a", "b", "1"]), Some((2, 18)));
        assert_eq!(at(&["a", "b", "1", "c\n"]), Some((2, 19)));
        assert_eq!(at(&["a", "b2"]), Some((2, 39)));
        assert_eq!(at(&["a2"]), Some((3, 3)));
        assert_eq!(at(&["b"]), None);
        assert_eq!(at(&["a", "b", "7"]), None);
        assert_eq!(at(&[]), None);
    }

    #[test]
    fn a_repeated_key_is_reported_with_its_last_place() {
        let text = r#"{"a": 1, "b": {"c": 1, "c": 2}, "a": 2}"#;
        let found = duplicates(text, 8);
        assert_eq!(found.iter().map(|p| path_text(p)).collect::<Vec<_>>(), ["b.c", "a"]);
        assert_eq!(find(text, &found[1]).map(|p| p.column), Some(33));
    }

    #[test]
    fn broken_text_ends_the_scan() {
        for text in ["", "{", "{\"a", "{\"a\"", "{\"a\":", "[1,", "]", "{\"a\\", "{1:2}", "{\"a\":}"] {
            find(text, &key(&["a", "b"]));
            duplicates(text, 8);
        }
    }
}
