//! A position in one line of text.

use super::parse::ParseError;
use super::value::is_word_char;

/// Reads one line from left to right.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    line: &'a str,
    number: usize,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of line `number` (from 1).
    pub(super) fn new(line: &'a str, number: usize) -> Self {
        Self { line, number, at: 0 }
    }
    fn rest(&self) -> &'a str {
        &self.line[self.at..]
    }
    pub(super) fn mark(&self) -> usize {
        self.at
    }
    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }
    pub(super) fn skip_blanks(&mut self) {
        self.take_while(|c| c == ' ' || c == '\t');
    }
    pub(super) fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let len = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }
    /// Takes `c` if it comes next after blanks.
    pub(super) fn eat(&mut self, c: char) -> bool {
        self.skip_blanks();
        let found = self.peek() == Some(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }
    pub(super) fn expect(&mut self, c: char) -> Result<(), ParseError> {
        if self.eat(c) { Ok(()) } else { Err(self.error(format!("expected `{c}`"))) }
    }
    /// Takes `text` if it comes next after blanks, and no word goes on behind it.
    pub(super) fn eat_word(&mut self, text: &str) -> bool {
        self.skip_blanks();
        let Some(after) = self.rest().strip_prefix(text) else { return false };
        let whole = !after.starts_with(is_word_char);
        if whole {
            self.at += text.len();
        }
        whole
    }
    /// A word without quotes.
    pub(super) fn bare_word(&mut self, what: &str) -> Result<&'a str, ParseError> {
        self.skip_blanks();
        let word = self.take_while(is_word_char);
        if word.is_empty() { Err(self.error(format!("expected {what}"))) } else { Ok(word) }
    }
    /// A word, or a string in JSON quotes.
    pub(super) fn name(&mut self) -> Result<String, ParseError> {
        self.skip_blanks();
        if self.peek() != Some('"') {
            return self.bare_word("a name").map(str::to_owned);
        }
        let mut strings = serde_json::Deserializer::from_str(self.rest()).into_iter::<String>();
        match strings.next() {
            Some(Ok(name)) => {
                self.at += strings.byte_offset();
                Ok(name)
            }
            _ => Err(self.error("this string in quotes does not end or has a wrong escape")),
        }
    }
    /// An unsigned number that ends where its digits do.
    pub(super) fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, ParseError> {
        self.skip_blanks();
        let at = self.mark();
        let digits = self.take_while(|c| c.is_ascii_digit());
        digits.parse().map_err(|_| match digits {
            "" => self.error_at(at, format!("expected {what}")),
            _ => self.error_at(at, format!("{digits} is too large for {what}")),
        })
    }
    /// `prefix` directly followed by a number: `t12`, `L3`.
    pub(super) fn tagged<T: std::str::FromStr>(&mut self, prefix: char, what: &str) -> Result<T, ParseError> {
        self.skip_blanks();
        if self.peek() != Some(prefix) {
            return Err(self.error(format!("expected {what}, written {prefix} and a number")));
        }
        self.at += prefix.len_utf8();
        if !self.peek().is_some_and(|c| c.is_ascii_digit()) {
            return Err(self.error(format!("expected the number of {what}")));
        }
        self.number(what)
    }
    /// Whether nothing but blanks and a comment is left.
    pub(super) fn at_end(&mut self) -> bool {
        self.skip_blanks();
        matches!(self.peek(), None | Some('#'))
    }
    pub(super) fn end(&mut self) -> Result<(), ParseError> {
        if self.at_end() { Ok(()) } else { Err(self.error("expected the end of the line")) }
    }
    /// An error at the current position.
    pub(super) fn error(&self, message: impl Into<String>) -> ParseError {
        self.error_at(self.at, message)
    }
    /// An error at an earlier [`Self::mark`].
    pub(super) fn error_at(&self, at: usize, message: impl Into<String>) -> ParseError {
        ParseError::new(self.line, self.number, at, message.into())
    }
}
