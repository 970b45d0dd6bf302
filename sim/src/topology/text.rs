//! Lines and words of pasted text, with their places.

use super::{Place, TopologyError};

/// A file that somebody gave: a label for messages, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What to call it in messages: its path.
    pub label: String,
    /// Its text.
    pub text: String,
}

impl Source {
    pub(super) fn place(&self, line: usize, column: usize) -> Place {
        Place { file: self.label.clone(), line, column }
    }
    pub(super) fn error(&self, line: usize, column: usize, message: impl Into<String>) -> TopologyError {
        TopologyError::new(self.place(line, column), message)
    }
}

/// A word of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    /// From 1, in characters.
    pub(super) column: usize,
}

/// A line, from 1, without colour codes.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) text: String,
}

impl Line {
    pub(super) fn words(&self) -> Vec<Word<'_>> {
        words(&self.text)
    }
    /// Column of the byte at `at`, from 1.
    pub(super) fn column(&self, at: usize) -> usize {
        self.text.get(..at).map_or(1, |before| before.chars().count() + 1)
    }
}

/// Words between white space.
pub(super) fn words(line: &str) -> Vec<Word<'_>> {
    let mut out = Vec::new();
    let mut start: Option<(usize, usize)> = None;
    for (column, (at, c)) in line.char_indices().enumerate() {
        match (c.is_whitespace(), start) {
            (false, None) => start = Some((at, column + 1)),
            (true, Some((from, first))) => {
                out.push(Word { text: &line[from..at], column: first });
                start = None;
            }
            _ => {}
        }
    }
    if let Some((from, first)) = start {
        out.push(Word { text: &line[from..], column: first });
    }
    out
}

/// Lines with the escape sequences of a terminal blanked out: `nvidia-smi` underlines its header. Columns stay where they were.
pub(super) fn lines(text: &str) -> Vec<Line> {
    text.lines().enumerate().map(|(index, line)| Line { number: index + 1, text: blank_escapes(line) }).collect()
}

fn blank_escapes(line: &str) -> String {
    enum State {
        Text,
        Escape,
        Sequence,
    }
    let mut state = State::Text;
    let blank = |state: &State, c: char| match (state, c) {
        (State::Text, '\u{1b}') => (State::Escape, ' '),
        (State::Text, c) => (State::Text, c),
        (State::Escape, '[') => (State::Sequence, ' '),
        (State::Escape, _) => (State::Text, ' '),
        // A control sequence ends at its first byte from `@` to `~`.
        (State::Sequence, '@'..='~') => (State::Text, ' '),
        (State::Sequence, _) => (State::Sequence, ' '),
    };
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        let (next, shown) = blank(&state, c);
        state = next;
        out.push(shown);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_blank_and_columns_stay() {
        let line = &lines("\u{1b}[4m\tGPU0\u{1b}[0m \u{1b}]x\n")[0];
        assert_eq!(line.text.chars().count(), "\u{1b}[4m\tGPU0\u{1b}[0m \u{1b}]x".chars().count());
        assert_eq!(line.words(), [Word { text: "GPU0", column: 6 }, Word { text: "x", column: 17 }]);
    }
}
