//! A pasted command as words, much as a shell would split it.

use std::ops::Range;

/// A word and where it stands in the pasted text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word without its quotes.
    pub text: String,
    /// Bytes of the paste.
    pub span: Range<usize>,
    /// Whether any part was quoted: `'<'` is no redirection.
    pub quoted: bool,
}

/// A quote or brace that is never closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclosed {
    /// What was opened.
    pub mark: char,
    /// Where, in bytes.
    pub at: usize,
}

/// Splits `text`. Line ends behind a backslash join lines, comments end at the line's end, `{..}` and `[..]` at a word's beginning stay whole
/// (people paste JSON without the shell's quotes), `<placeholder>` as well.
///
/// # Errors
/// A quote that is never closed.
pub fn split(text: &str) -> Result<Vec<Word>, Unclosed> {
    Lexer { text, at: 0 }.all()
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }
    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn all(mut self) -> Result<Vec<Word>, Unclosed> {
        let mut words = Vec::new();
        loop {
            self.blank();
            match self.peek() {
                None => return Ok(words),
                Some(';') if self.ends_statement() => {
                    words.push(Word { text: ";".to_owned(), span: self.at..self.at + 1, quoted: false });
                    self.at += 1;
                }
                Some('#') => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.take();
                    }
                }
                Some(_) => words.push(self.word()?),
            }
        }
    }

    /// A semicolon that a blank or the end follows: one inside a word belongs to it, as in an address that nobody quoted.
    fn ends_statement(&self) -> bool {
        self.rest().starts_with(';') && self.rest()[1..].chars().next().is_none_or(char::is_whitespace)
    }

    /// Skips white space and joined lines.
    fn blank(&mut self) {
        loop {
            let joined = ["\\\r\n", "\\\n"].iter().find(|j| self.rest().starts_with(**j)).map(|j| j.len());
            match (joined, self.peek()) {
                (Some(length), _) => self.at += length,
                (None, Some(c)) if c.is_whitespace() => {
                    self.take();
                }
                _ => return,
            }
        }
    }

    fn word(&mut self) -> Result<Word, Unclosed> {
        let start = self.at;
        let mut out = String::new();
        let mut quoted = false;
        if let Some(length) = whole(self.rest()) {
            out.push_str(&self.text[start..start + length]);
            self.at += length;
        }
        while let Some(c) = self.peek() {
            match c {
                _ if c.is_whitespace() || self.ends_statement() => break,
                '$' | '`' if substitution(self.rest()).is_some() => self.verbatim(&mut out),
                '\'' | '"' => {
                    quoted = true;
                    self.quoted(c, &mut out)?;
                }
                '\\' => {
                    self.take();
                    match self.take() {
                        Some('\n') | None => break,
                        Some(escaped) => out.push(escaped),
                    }
                }
                // `--flag={"json": 1}`: the brace opens behind an equals sign.
                '{' | '[' if out.ends_with('=') => match whole(self.rest()) {
                    Some(length) => {
                        out.push_str(&self.text[self.at..self.at + length]);
                        self.at += length;
                    }
                    None => {
                        self.take();
                        out.push(c);
                    }
                },
                _ => {
                    self.take();
                    out.push(c);
                }
            }
        }
        Ok(Word { text: out, span: start..self.at, quoted })
    }

    /// Takes what a command would print, as it stands.
    fn verbatim(&mut self, out: &mut String) {
        let length = substitution(self.rest()).unwrap_or(0);
        out.push_str(&self.text[self.at..self.at + length]);
        self.at += length;
    }

    fn quoted(&mut self, mark: char, out: &mut String) -> Result<(), Unclosed> {
        let at = self.at;
        self.take();
        loop {
            if mark == '"' && substitution(self.rest()).is_some() {
                self.verbatim(out);
                continue;
            }
            match self.take() {
                None => return Err(Unclosed { mark, at }),
                Some(c) if c == mark => return Ok(()),
                Some('\\') if mark == '"' => match self.take() {
                    Some(c @ ('"' | '\\' | '$' | '`')) => out.push(c),
                    Some('\n') => {}
                    Some(c) => out.extend(['\\', c]),
                    None => return Err(Unclosed { mark, at }),
                },
                Some(c) => out.push(c),
            }
        }
    }
}

/// Bytes of a command substitution that `text` begins with and that closes: `$(nvidia-smi -L | wc -l)`, or the same in backticks. Three backticks
/// fence a block in notes, and one that nothing closes on its line is a stray of such.
fn substitution(text: &str) -> Option<usize> {
    if let Some(inner) = text.strip_prefix('`') {
        let end = inner.find(['`', '\n']).filter(|end| *end > 0 && inner[*end..].starts_with('`'))?;
        return Some(end + 2);
    }
    let mut depth = 0u32;
    let rest = text.strip_prefix('$').filter(|rest| rest.starts_with('('))?;
    for (i, c) in rest.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(i + 2);
        }
    }
    None
}

/// Bytes of a JSON object or array, or of a placeholder, that `text` begins with and that closes on the way.
fn whole(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    if first == '<' {
        let named = text[1..].starts_with(|c: char| c.is_alphanumeric());
        let end = text.find('>').filter(|end| named && *end < 80 && !text[..*end].contains('\n'))?;
        return Some(end + 1);
    }
    if first != '{' && first != '[' {
        return None;
    }
    let (mut depth, mut in_text, mut escaped) = (0u32, false, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            '{' | '[' if !in_text => depth += 1,
            '}' | ']' if !in_text => {
                depth -= 1;
                if depth == 0 {
                    return Some(i + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        split(text).unwrap().into_iter().map(|w| w.text).collect()
    }

    #[test]
    fn words_are_split_as_people_paste_them() {
        assert_eq!(texts("a 'b c' \"d\\\"e\" f\\ g"), ["a", "b c", "d\"e", "f g"]);
        assert_eq!(texts("vllm serve m \\\n  --x 1 \\\r\n --y # why\n z"), ["vllm", "serve", "m", "--x", "1", "--y", "z"]);
        assert_eq!(texts("--c {\"a\": \"} x\", \"b\": 1} --d"), ["--c", "{\"a\": \"} x\", \"b\": 1}", "--d"]);
        assert_eq!(texts("--c={\"a\": 1} '{\"q\": 2}'"), ["--c={\"a\": 1}", "{\"q\": 2}"]);
        assert_eq!(texts("--m <MTP flags> <path>/x"), ["--m", "<MTP flags>", "<path>/x"]);
        assert_eq!(split("a 'b").unwrap_err(), Unclosed { mark: '\'', at: 2 });
        assert_eq!(texts("{never closed"), ["{never", "closed"]);
        assert_eq!(texts("A=1; x --u a;b"), ["A=1", ";", "x", "--u", "a;b"]);
        assert_eq!(texts("-tp $(a -L | wc -l) -x"), ["-tp", "$(a -L | wc -l)", "-x"]);
        assert_eq!(texts("-tp `a -L | wc -l` \"$(b (c) d)\" -x"), ["-tp", "`a -L | wc -l`", "$(b (c) d)", "-x"]);
        assert_eq!(texts("```\nvllm serve m\n```"), ["```", "vllm", "serve", "m", "```"]);
        assert_eq!(texts("$(never closed"), ["$(never", "closed"]);
    }

    #[test]
    fn spans_point_into_the_paste() {
        let text = "vllm  serve 'm x'";
        let spans: Vec<&str> = split(text).unwrap().into_iter().map(|w| &text[w.span]).collect();
        assert_eq!(spans, ["vllm", "serve", "'m x'"]);
    }
}
