//! Words of a paste as the program behind the shell would get them.

use super::compose;
use super::words::{Unclosed, Word, split};
use std::collections::BTreeMap;

/// The words: those of a manifest, or a shell's, with scripts behind `-c` taken apart.
///
/// # Errors
/// A quote that is never closed.
pub(super) fn words(text: &str) -> Result<Vec<Word>, Unclosed> {
    let words = match compose::words(text)? {
        Some(words) => words,
        None => split(text)?,
    };
    let mut out: Vec<Word> = Vec::with_capacity(words.len());
    for word in words {
        let script = out.last().is_some_and(|before| matches!(before.text.as_str(), "-c" | "-lc" | "-ic" | "-ec"));
        let passed_on = shell_behind(&out).filter(|_| word.quoted);
        if (script || passed_on.is_some()) && word.text.contains(char::is_whitespace) {
            out.extend(inside(text, &word)?);
            // What follows the line that tmux is to type are keys, or a line of its own.
            if passed_on == Some("tmux") {
                out.push(Word { text: ";".to_owned(), span: word.span.end..word.span.end, quoted: false });
            }
        } else {
            out.push(word);
        }
    }
    Ok(out)
}

/// The program of the statement at the end of `front` that has a shell read its quoted words: ssh and pdsh on another host, tmux in a window, eval.
fn shell_behind(front: &[Word]) -> Option<&'static str> {
    let statement = front.iter().rev().take_while(|word| word.quoted || !super::ends_command(&word.text));
    let name = |word: &Word| word.text.rsplit('/').next().map(str::to_owned).unwrap_or_default();
    let names: Vec<String> = statement.filter(|word| !word.quoted).map(name).collect();
    ["ssh", "pdsh", "tmux", "eval"].into_iter().find(|known| names.iter().any(|name| name == known))
}

/// The words of a quoted script. Spans point into the paste where the script stands there as it is, else at all of it.
fn inside(text: &str, word: &Word) -> Result<Vec<Word>, Unclosed> {
    let start = word.span.start + 1;
    let same = text.get(start..start + word.text.len()) == Some(word.text.as_str());
    let words = split(&word.text).map_err(|e| Unclosed { at: if same { start + e.at } else { word.span.start }, ..e })?;
    let moved = |w: Word| {
        let span = if same { start + w.span.start..start + w.span.end } else { word.span.clone() };
        Word { span, ..w }
    };
    Ok(words.into_iter().map(moved).collect())
}

/// A shell's loop that a command stands in.
pub(super) struct Loop {
    /// The variable that runs through a list; a `while` or `until` has none, and its body is one command.
    pub(super) variable: Option<String>,
}

/// The loop that is open at the end of `front`: its `do` is there, its `done` is not.
pub(super) fn loop_around(front: &[Word]) -> Option<Loop> {
    let plain = |i: usize| front.get(i).filter(|w| !w.quoted).map_or("", |w| w.text.as_str());
    let at = (0..front.len()).rev().find(|i| matches!(plain(*i), "do" | "done")).filter(|i| plain(*i) == "do")?;
    let first = |i: &usize| *i == 0 || plain(i - 1) == ";" || matches!(plain(*i + 2), "in");
    let head = (0..at).rev().filter(first).find(|i| matches!(plain(*i), "for" | "while" | "until"))?;
    Some(Loop { variable: (plain(head) == "for").then(|| plain(head + 1).to_owned()) })
}

/// `$NAME`, `${NAME}` and `${NAME:-default}` replaced where the paste sets them; others stay.
pub(super) fn expanded(word: &Word, env: &BTreeMap<String, String>) -> Word {
    if !word.text.contains('$') {
        return word.clone();
    }
    let mut out = String::new();
    let mut rest = word.text.as_str();
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let (taken, value) = variable(&rest[at..], env);
        out.push_str(value.unwrap_or(&rest[at..at + taken]));
        rest = &rest[at + taken..];
    }
    out.push_str(rest);
    Word { text: out, ..word.clone() }
}

/// How many bytes a variable takes at the beginning of `text`, and its value where it is known.
fn variable<'a>(text: &'a str, env: &'a BTreeMap<String, String>) -> (usize, Option<&'a str>) {
    let name_end = |s: &str| s.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(s.len());
    if let Some(inner) = text.strip_prefix("${") {
        let Some(close) = inner.find('}') else { return (1, None) };
        let (name, default) = inner[..close].split_once(":-").map_or((&inner[..close], None), |(n, d)| (n, Some(d)));
        return (close + 3, env.get(name).map(String::as_str).or(default));
    }
    let end = name_end(&text[1..]);
    (1 + end, if end == 0 { None } else { env.get(&text[1..=end]).map(String::as_str) })
}
