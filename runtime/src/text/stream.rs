//! Text as it is generated: a token may end inside a character, and may change how the ones before it are written.

use super::tokenizer::{TextError, TextModel};

/// Tokens that are held back at most for the end of a character: it bounds the work a token costs. A character has at most four bytes and a
/// token at least one, so more than a few pending tokens are bytes that are no text, or replacement characters that are meant.
const MAX_PENDING_TOKENS: usize = 64;

/// Turns tokens into pieces of text, each given out as soon as its last character is whole. All pieces together are the text of all
/// tokens.
#[derive(Clone, Debug)]
pub struct TextStream<'t> {
    text: &'t TextModel,
    /// Tokens from the start of the piece given out last: what is new is what they add to it, since tokenizers write the first token of a
    /// text differently (leading spaces).
    window: Vec<u32>,
    /// Tokens of `window` that have been given out.
    given: usize,
}

impl<'t> TextStream<'t> {
    pub(super) fn new(text: &'t TextModel) -> Self {
        Self { text, window: Vec::new(), given: 0 }
    }
    /// Takes the next token and returns the text that is complete with it, often none.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.window.push(id);
        let text = self.new_text()?;
        // The replacement character stands for bytes that are no character yet.
        if text.is_empty() || text.ends_with('\u{FFFD}') && self.window.len() - self.given < MAX_PENDING_TOKENS {
            return Ok(String::new());
        }
        self.window.drain(..self.given);
        self.given = self.window.len();
        Ok(text)
    }
    /// The text of the tokens held back, at the end.
    pub fn finish(mut self) -> Result<String, TextError> {
        let text = self.new_text()?;
        self.window.clear();
        Ok(text)
    }
    fn new_text(&self) -> Result<String, TextError> {
        let before = self.text.decode(&self.window[..self.given])?;
        let all = self.text.decode(&self.window)?;
        Ok(match all.strip_prefix(&before) {
            Some(new) => new.to_string(),
            // A tokenizer that rewrites what was given out: only what goes beyond it can still be said.
            None => all.chars().skip(before.chars().count()).collect(),
        })
    }
}
