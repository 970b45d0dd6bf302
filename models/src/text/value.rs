//! Words and op parameters: numbers, words, and `{key=value, ...}` of them.

use super::cursor::Cursor;
use super::parse::ParseError;
use serde_json::{Map, Number, Value};
use std::fmt::Write;

/// Deepest nesting of parameters; ops use three levels.
const MOST_DEPTH: u32 = 8;

/// Whether a name is written without quotes.
pub(super) fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// A name, in quotes where it would not read back as one word.
pub(super) fn word(name: &str) -> String {
    if !name.is_empty() && name.chars().all(is_word_char) { name.to_owned() } else { Value::from(name).to_string() }
}

/// `{a=1, b={c=true}}`, keys in alphabetical order.
pub(super) fn print_object(text: &mut String, mut entries: Vec<(&String, &Value)>) {
    entries.sort_by_key(|(key, _)| *key);
    text.push('{');
    for (i, (key, value)) in entries.into_iter().enumerate() {
        let _ = write!(text, "{}{key}=", if i > 0 { ", " } else { "" });
        match value {
            Value::Object(map) => print_object(text, map.iter().collect()),
            Value::Null => text.push_str("null"),
            Value::String(s) if s.starts_with(|c: char| c.is_ascii_alphabetic()) && s.chars().all(is_word_char) && !is_reserved(s) => {
                text.push_str(s);
            }
            other => text.push_str(&other.to_string()),
        }
    }
    text.push('}');
}

fn is_reserved(word: &str) -> bool {
    matches!(word, "null" | "true" | "false")
}

/// Reads `{...}` if it is next.
pub(super) fn parse_object(c: &mut Cursor<'_>, depth: u32) -> Result<Map<String, Value>, ParseError> {
    let mut map = Map::new();
    if !c.eat('{') {
        return Ok(map);
    }
    if depth == MOST_DEPTH {
        return Err(c.error("parameters are nested too deeply"));
    }
    if c.eat('}') {
        return Ok(map);
    }
    loop {
        c.skip_blanks();
        let at = c.mark();
        let key = c.bare_word("a parameter name")?;
        c.expect('=')?;
        let value = parse_value(c, depth)?;
        if map.insert(key.to_owned(), value).is_some() {
            return Err(c.error_at(at, format!("parameter {key} is given twice")));
        }
        if !c.eat(',') {
            c.expect('}')?;
            return Ok(map);
        }
    }
}

fn parse_value(c: &mut Cursor<'_>, depth: u32) -> Result<Value, ParseError> {
    c.skip_blanks();
    match c.peek() {
        Some('{') => return Ok(Value::Object(parse_object(c, depth + 1)?)),
        Some('"') => return Ok(Value::String(c.name()?)),
        _ => {}
    }
    let at = c.mark();
    let word = c.take_while(|ch| is_word_char(ch) || ch == '+');
    let number = || word.parse::<u64>().map(Number::from).ok().or_else(|| Number::from_f64(word.parse().ok()?));
    match word {
        "null" => Ok(Value::Null),
        "true" => Ok(Value::Bool(true)),
        "false" => Ok(Value::Bool(false)),
        _ if word.starts_with(|ch: char| ch.is_ascii_digit() || ch == '-') => {
            number().map(Value::Number).ok_or_else(|| c.error_at(at, format!("{word} is not a number")))
        }
        "" => Err(c.error_at(at, "expected a number, a word, or {")),
        _ => Ok(Value::String(word.to_owned())),
    }
}
