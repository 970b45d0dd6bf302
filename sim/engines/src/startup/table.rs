//! Start-up tables: text, read once.

use crate::question::Engine;
use crate::version::{Range, Version};
use moetwin_runtime::init::{Gate, InitPhase, Worker};
use std::sync::OnceLock;

/// A step of a start-up table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Short name: `I5`.
    pub id: String,
    /// What it does; `{bucket}` in it makes one step a captured batch size.
    pub name: String,
    /// Part of start-up.
    pub phase: InitPhase,
    /// Whose step.
    pub worker: Worker,
    /// When it exists.
    pub gate: Gate,
    /// What must be there.
    pub reads: Vec<Item>,
    /// What it leaves behind.
    pub writes: Vec<Item>,
    /// All ranks do it together.
    pub sync: bool,
    /// Versions.
    pub range: Range,
    /// Where it was read.
    pub source: String,
}

/// An item that a step reads or writes, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Its name in the table.
    pub name: String,
    /// When.
    pub gate: Gate,
}

/// A table, or what is wrong with a line of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TableError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// A table with its definitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Steps in order.
    pub rows: Vec<Row>,
    definitions: Vec<(String, Range, Vec<Item>)>,
}

/// The table of an engine.
pub fn table(engine: Engine) -> &'static Table {
    static SGLANG: OnceLock<Table> = OnceLock::new();
    static VLLM: OnceLock<Table> = OnceLock::new();
    let read = |text| Table::read(text).expect("the built-in table is read by a test");
    match engine {
        Engine::Sglang => SGLANG.get_or_init(|| read(include_str!("../../data/sglang-startup.txt"))),
        Engine::Vllm => VLLM.get_or_init(|| read(include_str!("../../data/vllm-startup.txt"))),
    }
}

impl Table {
    /// Reads a table.
    ///
    /// # Errors
    /// The first line that is not a step, a definition, a comment or blank.
    pub fn read(text: &'static str) -> Result<Self, TableError> {
        let mut out = Table::default();
        for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.starts_with('#') && !l.trim().is_empty()) {
            let wrong = |problem: String| TableError { line: i + 1, problem };
            let columns: Vec<&str> = line.split('|').map(str::trim).collect();
            match line.strip_prefix("define ") {
                Some(_) => out.definitions.push(definition(&columns).map_err(wrong)?),
                None => out.rows.push(row(&columns).map_err(wrong)?),
            }
        }
        Ok(out)
    }
    /// The steps that a version has, definitions filled in.
    pub fn rows_of(&self, version: &Version) -> Vec<Row> {
        let holds = |row: &&Row| row.range.contains(version);
        self.rows.iter().filter(holds).map(|row| Row { reads: self.expand(&row.reads, version), ..row.clone() }).collect()
    }
    fn expand(&self, items: &[Item], version: &Version) -> Vec<Item> {
        let mut out = Vec::new();
        for item in items {
            match item.name.strip_prefix('@') {
                None => out.push(item.clone()),
                Some(name) => {
                    let found = self.definitions.iter().filter(|(n, range, _)| n == name && range.contains(version));
                    out.extend(found.flat_map(|(.., items)| items.iter().cloned()));
                }
            }
        }
        out
    }
}

fn definition(columns: &[&'static str]) -> Result<(String, Range, Vec<Item>), String> {
    let [name, versions, list] = columns else { return Err(format!("a definition has 3 columns, this has {}", columns.len())) };
    Ok((name.trim_start_matches("define ").trim().to_owned(), range(versions)?, items(list)?))
}

fn row(columns: &[&'static str]) -> Result<Row, String> {
    let [id, name, phase, worker, condition, reads, writes, sync, versions, source] = columns else {
        return Err(format!("a step has 10 columns, this has {}", columns.len()));
    };
    let phase = match *phase {
        "open" => InitPhase::Open,
        "connect" => InitPhase::Connect,
        "load" => InitPhase::Load,
        "allocate" => InitPhase::Allocate,
        "warmup" => InitPhase::WarmUp,
        "capture" => InitPhase::Capture,
        "serve" => InitPhase::Serve,
        other => return Err(format!("{other} is no phase (accepted: open, connect, load, allocate, warmup, capture, serve)")),
    };
    let worker = match *worker {
        "target" => Worker::Target,
        "draft" => Worker::Draft,
        other => return Err(format!("{other} is no worker (accepted: target, draft)")),
    };
    Ok(Row {
        id: (*id).to_owned(),
        name: (*name).to_owned(),
        phase,
        worker,
        gate: gate(condition)?,
        reads: items(reads)?,
        writes: items(writes)?,
        sync: *sync == "tp",
        range: range(versions)?,
        source: (*source).to_owned(),
    })
}

fn range(text: &'static str) -> Result<Range, String> {
    let (since, until) =
        text.split_once("..").ok_or_else(|| format!("{text} is no range of versions (accepted: since..until, either may be empty)"))?;
    Ok(Range { since, until })
}

fn items(text: &str) -> Result<Vec<Item>, String> {
    let parts = text.split(", ").map(str::trim).filter(|part| !part.is_empty());
    let one = |part: &str| match part.split_once(" if ") {
        Some((name, condition)) => Ok(Item { name: name.trim().to_owned(), gate: gate(condition)? }),
        None => Ok(Item { name: part.to_owned(), gate: Gate::Always }),
    };
    parts.map(one).collect()
}

/// `a & !b or hook:c`.
fn gate(text: &str) -> Result<Gate, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Gate::Always);
    }
    let term = |word: &str| -> Result<Gate, String> {
        let word = word.trim();
        let (negated, name) = word.strip_prefix('!').map_or((false, word), |rest| (true, rest));
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(format!("'{word}' is no condition (accepted: name, !name, hook:name, joined by ` & ` and ` or `)"));
        }
        let gate = match name.strip_prefix("hook:") {
            Some(hook) => Gate::hook(hook),
            None if name == "draft" && negated => return Ok(Gate::NotDraft),
            None => Gate::flag(name),
        };
        Ok(if negated { Gate::negate(gate) } else { gate })
    };
    let all = |part: &str| -> Result<Gate, String> {
        let mut terms = part.split(" & ").map(term).collect::<Result<Vec<_>, _>>()?;
        Ok(if terms.len() == 1 { terms.remove(0) } else { Gate::All(terms) })
    };
    let mut any = text.split(" or ").map(all).collect::<Result<Vec<_>, _>>()?;
    Ok(if any.len() == 1 { any.remove(0) } else { Gate::Any(any) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_tables_are_read() {
        for engine in [Engine::Sglang, Engine::Vllm] {
            assert!(table(engine).rows.len() > 10);
        }
    }

    #[test]
    fn wrong_lines_say_what_would_be_right() {
        let wrong = |text| Table::read(text).unwrap_err().to_string();
        assert_eq!(wrong("a | b"), "line 1: a step has 10 columns, this has 2");
        assert!(wrong("# c\n\na | b | nowhere | target | | | | | .. | s").starts_with("line 3: nowhere is no phase"));
        assert!(wrong("a | b | load | target | x y | | | | .. | s").contains("is no condition"));
        assert!(wrong("a | b | load | target | | | | | 1.0 | s").contains("is no range"));
    }
}
