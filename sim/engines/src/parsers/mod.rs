//! Reasoning and tool-call parsers by engine.

use crate::command::{Given, distance};
use crate::finding::{Finding, Fix, Kind, Phase};
use crate::version::{Range, Version};

struct Row {
    engine: &'static str,
    kind: &'static str,
    name: &'static str,
    range: Range,
}

fn rows() -> impl Iterator<Item = Row> {
    let text = include_str!("../../data/parsers.txt");
    text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()).map(|line| {
        let mut columns = line.split(" | ").map(str::trim);
        let mut next = || columns.next().unwrap_or_default();
        let (engine, kind, name, versions) = (next(), next(), next(), next());
        let (since, until) = versions.split_once("..").unwrap_or_default();
        Row { engine, kind, name, range: Range { since, until } }
    })
}

/// The finding, if the value of `--reasoning-parser` or `--tool-call-parser` is one of the other kind, of the other engine, or nearly one
/// of this kind. Names that no list has may be newer than the lists, and pass.
pub fn refused(given: &Given, value: &str, version: &Version) -> Option<Finding> {
    let kind = match given.name.as_str() {
        "--reasoning-parser" => "reasoning",
        "--tool-call-parser" => "tool",
        _ => return None,
    };
    let engine = version.engine.name();
    let own: Vec<Row> = rows().filter(|r| r.engine == engine && r.kind == kind).collect();
    if own.iter().any(|r| r.name == value && r.range.contains(version)) {
        return None;
    }
    let title = version.engine.title();
    let plain = |name: &str| name.replace(['_', '-'], "").to_lowercase();
    let elsewhere = rows().find(|r| r.name == value && (r.engine != engine || r.kind != kind));
    let same_but_dashes = own.iter().find(|r| plain(r.name) == plain(value));
    let why = match (&elsewhere, same_but_dashes) {
        (Some(other), _) if other.engine == engine => {
            let word = if other.kind == "tool" { "tool-call" } else { other.kind };
            format!("it exists only as a {word} parser ({word}-only)")
        }
        (_, Some(row)) => format!("{title} writes it {}", row.name),
        (Some(_), None) => "it is the other engine's name".to_owned(),
        (None, None) => return None,
    };
    let word = if kind == "tool" { "tool-call" } else { kind };
    let message = format!("{} '{value}' is not a {word} parser of {title} {}: {why}", given.written, version.text);
    let finding = Finding::fails(Phase::Parse, Kind::FlagConflict, "parser_name_is_a_choice", message);
    let mut finding = finding.argument(&given.written).source("parser tables of the engines");
    // Related names begin alike: `qwen25` is not a slip for `openai`, though four edits lead there.
    let alike = |name: &str| name.chars().zip(value.chars()).take_while(|(a, b)| a == b).count() >= 3;
    let mut close: Vec<(usize, &str)> =
        own.iter().filter(|r| r.range.contains(version)).map(|r| (distance(value, r.name), r.name)).collect();
    close.retain(|(d, name)| *d <= 1 || *d <= 4 && (alike(name) || plain(name) == plain(value)));
    close.sort();
    if let Some((_, name)) = close.first() {
        finding = finding.fix(Fix::set(&given.written, name));
    }
    Some(finding.fix(Fix::remove(&given.written)))
}
