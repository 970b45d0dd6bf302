//! What argument parsing itself refuses: unknown and removed flags, values that are no numbers, words that are no choices.

use crate::command::{Command, Given, nearest};
use crate::finding::{Finding, Fix, Kind, Outcome, Phase};
use crate::flags::{self, Effect, Flag, Value};
use crate::parsers;
use crate::question::Engine;
use crate::version::Version;

/// Faults and notes of the arguments themselves, in the command's order.
pub fn argument_findings(command: &Command, version: &Version) -> Vec<Finding> {
    command.given.iter().filter_map(|given| one(given, version)).collect()
}

fn one(given: &Given, version: &Version) -> Option<Finding> {
    let engine = version.engine;
    let Some(flag) = flags::find(engine, &given.name).filter(|_| given.known) else {
        return Some(unknown(given, engine));
    };
    if let (Effect::Gone(instead), false) = (flag.effect, flag.range.contains(version)) {
        return Some(gone(given, flag, instead, version));
    }
    if flag.effect == Effect::Inert {
        let message = format!("{} is accepted, but no code of {} reads it: it has no effect", given.written, engine.title());
        let note = Finding::fails(Phase::Parse, Kind::FlagConflict, "flag_has_a_reader", message);
        return Some(
            note.outcome(Outcome::Note)
                .argument(&given.written)
                .source(format!("{} 0.5.8 to 0.5.23: no reader of the field", engine.title())),
        );
    }
    let value = given.value.as_deref()?;
    if value.starts_with('<') {
        return None;
    }
    match flag.value {
        Value::Int | Value::Float => number(given, flag, value),
        Value::Choice(words) => choice(given, words, value, version),
        Value::Json => json(given, value),
        Value::Text => parsers::refused(given, value, version),
        _ => None,
    }
}

fn refused(given: &Given, invariant: &str, message: String) -> Finding {
    Finding::fails(Phase::Parse, Kind::FlagConflict, invariant, message).argument(&given.written)
}

fn unknown(given: &Given, engine: Engine) -> Finding {
    let near = nearest(engine, &given.written);
    let title = engine.title();
    let message = match near.first() {
        Some(name) => format!("{} is not a flag of {title} that any known version has; the nearest is {name}", given.written),
        None => format!("{} is not a flag of {title} that is known here: a later version, a fork or a plugin may have it", given.written),
    };
    let finding = refused(given, "flag_is_known", message).source(format!("flag table of {title}"));
    match near.first() {
        // One or two letters off a known flag is a slip, which argparse refuses; anything else may be a fork's own flag.
        Some(name) if crate::command::distance(&given.written.replace('_', "-"), name) <= 2 => {
            let fix = Fix::remove(&given.written);
            finding.fix(match &given.value {
                Some(value) => Fix { text: format!("{name} {value}"), ..fix.and(Fix::set(name, value)) },
                None => Fix { text: (*name).to_owned(), ..fix.and(Fix::switch(name)) },
            })
        }
        _ => finding.outcome(Outcome::Note),
    }
}

fn gone(given: &Given, flag: &Flag, instead: &str, version: &Version) -> Finding {
    let message = format!("{} was removed in {} {}: {instead}", given.written, version.engine.title(), flag.range.until);
    let finding = refused(given, "flag_exists_in_version", message).source(format!("flag table of {}", version.engine.title()));
    let finding = finding.fix(Fix::remove(&given.written));
    match instead.split_once(' ') {
        Some((name, value)) if name.starts_with("--") && !value.contains(' ') => {
            finding.fix(Fix { text: instead.to_owned(), ..Fix::remove(&given.written).and(Fix::set(name, value)) })
        }
        _ => finding,
    }
}

fn number(given: &Given, flag: &Flag, value: &str) -> Option<Finding> {
    let plain = value.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G']);
    let fits = match flag.value {
        Value::Int => {
            plain.parse::<i64>().is_ok()
                || plain.parse::<f64>().is_ok_and(|n| plain.len() < value.len() && n.is_finite())
                || value == "auto"
        }
        _ => plain.parse::<f64>().is_ok_and(f64::is_finite),
    };
    if fits {
        return None;
    }
    let what = if flag.value == Value::Int { "an integer" } else { "a number" };
    Some(refused(given, "value_is_a_number", format!("{} takes {what}, not '{value}'", given.written)).source("argparse"))
}

fn choice(given: &Given, words: &str, value: &str, version: &Version) -> Option<Finding> {
    let lower = value.to_lowercase();
    if words.split('/').any(|w| w.to_lowercase() == lower) {
        return None;
    }
    // The lists of backends grow with every release: beyond what the tables were read from, only a slip is refused.
    let read = if version.engine == Engine::Sglang { "0.5.24" } else { "0.17.0" };
    let grows = ["backend", "quantization", "cache-dtype", "algorithm", "load-format"].iter().any(|w| given.name.contains(w));
    let slip = words.split('/').any(|w| crate::command::distance(&lower, &w.to_lowercase()) <= 2);
    let beyond = grows && !slip && (version.release.is_none() || version.at_least(read));
    let own_build = beyond || ["fork", "custom", "image", "build", "patched", "dev"].iter().any(|w| version.says(w));
    let all: Vec<&str> = words.split('/').collect();
    let message = format!("{} does not accept '{value}' (accepted: {})", given.written, all.join(", "));
    let mut finding = refused(given, "value_is_a_choice", message).source(format!("choices of {} in the flag table", given.name));
    if own_build {
        return Some(finding.outcome(Outcome::Note));
    }
    let mut close: Vec<&&str> = all.iter().filter(|w| crate::command::distance(&lower, w) <= 3).collect();
    close.sort_by_key(|w| crate::command::distance(&lower, w));
    if let Some(word) = close.first() {
        finding = finding.fix(Fix::set(&given.written, word));
    }
    Some(finding.fix(Fix::remove(&given.written)))
}

fn json(given: &Given, value: &str) -> Option<Finding> {
    // `-O3` is a level; a bare word may name a file.
    let looks = value.trim_start().starts_with(['{', '[']);
    let error = serde_json::from_str::<serde_json::Value>(value).err().filter(|_| looks)?;
    Some(refused(given, "value_is_json", format!("{} takes JSON, and its value is not: {error}", given.written)).source("argparse"))
}
