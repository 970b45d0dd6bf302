//! What argument parsing itself refuses: unknown and removed flags, flags without their value, values that are no numbers, words that are no
//! choices, words that belong to nothing.

use crate::command::{Command, Given, Stray, is_placeholder, nearest};
use crate::finding::{Finding, Fix, Kind, Outcome, Phase};
use crate::flags::{self, Effect, Flag, Value};
use crate::parsers;
use crate::question::Engine;
use crate::version::Version;

/// Faults and notes of the arguments themselves, in the command's order. `gpus` are those of the machine: what a missing size may have meant.
pub fn argument_findings(command: &Command, version: &Version, gpus: Option<u32>) -> Vec<Finding> {
    let mut out: Vec<(usize, Finding)> =
        command.given.iter().filter_map(|given| Some((given.span.start, one(given, version, gpus)?))).collect();
    out.extend(command.stray.iter().map(|word| (word.span.start, stray(word, command, version.engine))));
    out.sort_by_key(|(at, _)| *at);
    out.into_iter().map(|(_, finding)| finding).collect()
}

/// What is said of the model where nobody names one, and of arguments that are in a file.
pub fn model_findings(command: &Command, engine: Engine) -> Option<Finding> {
    if command.has("--config") {
        let message = "arguments in the file of --config are not read: give them in the command as well";
        return Some(
            Finding::fails(Phase::Parse, Kind::FlagConflict, "arguments_are_in_the_command", message)
                .outcome(Outcome::Note)
                .argument("--config"),
        );
    }
    // vLLM has a default; a placeholder may stand for anything.
    if engine == Engine::Vllm || !command.placeholders.is_empty() {
        return None;
    }
    let finding = Finding::fails(Phase::Parse, Kind::FlagConflict, "model_is_given", "--model-path is required, and no model is named");
    let says = "argparse: error: the following arguments are required: --model-path/--model";
    Some(finding.because(says).source("argparse").fix(Fix::words("--model-path with a name or a path")))
}

fn one(given: &Given, version: &Version, gpus: Option<u32>) -> Option<Finding> {
    let engine = version.engine;
    let Some(flag) = flags::find(engine, &given.name).filter(|_| given.known) else {
        return Some(unknown(given, version));
    };
    if let (Effect::Gone(instead), false) = (flag.effect, flag.range.contains(version)) {
        return Some(gone(given, flag, instead, version));
    }
    if let Some(early) = early(given, flag, version).or_else(|| renamed(given, flag, version)) {
        return Some(early);
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
    let Some(value) = given.value.as_deref() else { return without_value(given, flag, gpus) };
    if is_placeholder(value) {
        return None;
    }
    match flag.value {
        Value::Int | Value::Float => number(given, flag, value, engine).or_else(|| size(given, flag, value)),
        Value::Choice(words) => choice(given, words, value, version),
        Value::Json => json(given, flag, value),
        Value::Text => parsers::refused(given, value, version),
        Value::Switch => switch(given, flag, value, version),
        Value::List | Value::Words => None,
    }
}

/// What argparse prints of a flag: every name of it.
fn argparse(flag: &Flag, says: &str) -> String {
    format!("argparse: error: argument {}: {says}", flag.names().collect::<Vec<_>>().join("/"))
}

/// The tables are read from the packages of every release.
fn table_source(engine: Engine) -> String {
    format!("flag table of {}, from its packages", engine.title())
}

/// Whether a version is a release as published: forks, images and builds between releases have flags of their own.
fn published(version: &Version) -> bool {
    version.release.is_some()
        && !version.assumed
        && !["image", "fork", "custom", "build", "dev", "main", "nightly", "patched"].iter().any(|w| version.says(w))
}

/// The first and the last release whose flags the table has.
fn tabled(engine: Engine) -> (&'static str, &'static str) {
    match engine {
        Engine::Sglang => ("0.4.1", "0.5.24"),
        Engine::Vllm => ("0.6.6", "0.34.0"),
    }
}

/// A flag of a later release: refused where a plain release is clearly older than it, mentioned where the two are close, for the release that brought a
/// flag is known to about one.
fn early(given: &Given, flag: &Flag, version: &Version) -> Option<Finding> {
    let since = flag.range.since;
    if since.is_empty() || !published(version) || flag.range.contains(version) || version.at_least(since) {
        return None;
    }
    let title = version.engine.title();
    let message = format!("{} is not a flag of {title} {} yet: it came with {since}", given.written, version.text);
    let finding = refused(given, "flag_exists_in_version", message)
        .because(format!("argparse: error: unrecognized arguments: {}", given.written))
        .source(table_source(version.engine))
        .fix(Fix::remove(&given.written))
        .fix(Fix::version(since, "the first that has the flag"));
    let month = |day: u32| day / 10_000 * 12 + day / 100 % 100;
    let apart = month(Version::parse(version.engine, since).day).saturating_sub(month(version.day));
    Some(if apart >= 2 { finding } else { finding.outcome(Outcome::Note) })
}

/// A name that argparse does not take for the flag in this version: it was an abbreviation that now fits several flags, an alias that went, or one
/// that had not come.
fn renamed(given: &Given, flag: &Flag, version: &Version) -> Option<Finding> {
    let (engine, written) = (version.engine, given.written.replace('_', "-"));
    if flag.range_of(&written).contains(version) || !flag.range.contains(version) {
        return None;
    }
    let (name, title) = (flag.name_in(version), engine.title());
    let fits: Vec<&str> = flags::flags(engine)
        .iter()
        .filter(|f| f.range.contains(version))
        .flat_map(|f| f.names().filter(|n| n.starts_with(&written) && *n != written && f.range_of(n).contains(version)))
        .collect();
    let (message, says) = if fits.len() > 1 {
        let says = format!("argparse: error: ambiguous option: {written} could match {}", fits.join(", "));
        (format!("{} is no name of a flag in {title} {}: it is the beginning of {}", given.written, version.text, fits.join(", ")), says)
    } else {
        let says = format!("argparse: error: unrecognized arguments: {}", given.written);
        (format!("{} is no name of a flag in {title} {}", given.written, version.text), says)
    };
    let mut finding = refused(given, "flag_exists_in_version", message).because(says).source(table_source(engine));
    if name != written {
        let fix = Fix::remove(&given.written);
        finding = finding.fix(match &given.value {
            Some(value) => Fix { text: format!("{name} {value}"), ..fix.and(Fix::set(name, value)) },
            None => Fix { text: name.to_owned(), ..fix.and(Fix::switch(name)) },
        });
    }
    Some(if published(version) { finding } else { finding.outcome(Outcome::Note) })
}

fn without_value(given: &Given, flag: &Flag, gpus: Option<u32>) -> Option<Finding> {
    let says = match flag.value {
        Value::Switch | Value::Words => return None,
        Value::List => "expected at least one argument",
        _ => "expected one argument",
    };
    let what = match flag.value {
        Value::Int => "an integer",
        Value::Float => "a number",
        Value::Json => "JSON",
        Value::Choice(_) => "one of its words",
        _ => "a value",
    };
    let message =
        format!("{} has no value: {what} must follow it, and the command ends there or goes on with the next flag", given.written);
    let mut finding = refused(given, "flag_has_its_value", message).because(argparse(flag, says)).source("argparse");
    if let Value::Choice(words) = flag.value {
        finding = finding.because(format!("accepted: {}", words.replace('/', ", ")));
    }
    let ranks = matches!(flag.name, "--tp-size" | "--tensor-parallel-size");
    if let Some(gpus) = gpus.filter(|_| ranks) {
        finding = finding.fix(Fix::set(&given.written, gpus));
    }
    Some(finding.fix(Fix::remove(&given.written)))
}

/// `--switch=true`: actions without arguments take none, whatever is behind the equals sign. vLLM's own boolean actions before 0.9 took one.
fn switch(given: &Given, flag: &Flag, value: &str, version: &Version) -> Option<Finding> {
    if given.written.starts_with("--no-") || version.engine == Engine::Vllm && !version.at_least("0.9.0") {
        return None;
    }
    let message = format!("{} is a switch and takes no value, not even '{value}'", given.written);
    let finding = refused(given, "switch_takes_no_value", message).because(argparse(flag, &format!("ignored explicit argument '{value}'")));
    let off = matches!(value.to_lowercase().as_str(), "false" | "0" | "no" | "off");
    let bare = Fix { text: given.written.clone(), ..Fix::remove(&given.written).and(Fix::switch(&given.written)) };
    Some(finding.source("argparse").fix(if off { Fix::remove(&given.written) } else { bare }))
}

/// A word that belongs to no flag. Behind a line end that nothing joins it is no part of the command for a shell, so it is only mentioned.
fn stray(word: &Stray, command: &Command, engine: Engine) -> Finding {
    let text = &word.text;
    let message = match &word.behind {
        Some(switch) => format!("'{text}' belongs to no flag: {switch} in front of it is a switch and takes no value"),
        None => format!("'{text}' belongs to no flag, and {} has no place for it", engine.title()),
    };
    let finding = Finding::fails(Phase::Parse, Kind::FlagConflict, "every_word_has_a_flag", message)
        .argument(text)
        .because(format!("argparse: error: unrecognized arguments: {text}"))
        .source("argparse");
    let uncertain = word.on_its_own_line || command.given.iter().any(|g| !g.known);
    if uncertain { finding.outcome(Outcome::Note) } else { finding.fix(Fix::drop_word(text)) }
}

fn refused(given: &Given, invariant: &str, message: String) -> Finding {
    Finding::fails(Phase::Parse, Kind::FlagConflict, invariant, message).argument(&given.written)
}

/// Flags with which the engines ask for the same in other words.
const SAME: &[(&str, &str)] = &[
    ("--mem-fraction-static", "--gpu-memory-utilization"),
    ("--context-length", "--max-model-len"),
    ("--max-running-requests", "--max-num-seqs"),
    ("--chunked-prefill-size", "--max-num-batched-tokens"),
    ("--disable-cuda-graph", "--enforce-eager"),
    ("--page-size", "--block-size"),
];

fn unknown(given: &Given, version: &Version) -> Finding {
    let engine = version.engine;
    let (near, title) = (nearest(engine, &given.written), engine.title());
    let other = if engine == Engine::Sglang { Engine::Vllm } else { Engine::Sglang };
    let others = flags::find(other, &given.written).map(|f| f.name);
    let (first, after) = tabled(engine);
    // The table has every flag of the releases that it was read from, so a published one of them refuses what is not in it.
    let certain = published(version) && version.at_least(first) && !version.at_least(after);
    let message = match (near.first(), others) {
        (_, Some(_)) => format!("{} is a flag of {}; {title} has none of this name", given.written, other.title()),
        (Some(name), None) => format!("{} is not a flag of {title} that any known version has; the nearest is {name}", given.written),
        // Forks have flags of their own, so one that is in no table is no certain fault of an unnamed build.
        (None, None) => format!(
            "{} is not a flag of {title} that is known here; unless this build has it, the parser ends the launch with: unrecognized arguments: {}",
            given.written, given.written
        ),
    };
    let says = format!("argparse: error: unrecognized arguments: {}", given.written);
    let finding = refused(given, "flag_is_known", message).because(says).source(table_source(engine));
    let same = SAME.iter().find_map(|(sglang, vllm)| match engine {
        Engine::Sglang => (others == Some(*vllm)).then_some(*sglang),
        Engine::Vllm => (others == Some(*sglang)).then_some(*vllm),
    });
    // One or two letters off a known flag is a slip, which argparse refuses wherever the flag is known.
    let slip = near.first().filter(|n| others.is_none() && crate::command::distance(&given.written.replace('_', "-"), n) <= 2);
    let fix = Fix::remove(&given.written);
    let finding = finding.fix(match (same.or(slip.copied()), &given.value) {
        (Some(name), Some(value)) => Fix { text: format!("{name} {value}"), ..fix.and(Fix::set(name, value)) },
        (Some(name), None) => Fix { text: name.to_owned(), ..fix.and(Fix::switch(name)) },
        (None, _) => fix,
    });
    if certain || slip.is_some() { finding } else { finding.outcome(Outcome::Note) }
}

fn gone(given: &Given, flag: &Flag, instead: &str, version: &Version) -> Finding {
    let message = format!("{} was removed in {} {}: {instead}", given.written, version.engine.title(), flag.range.until);
    let finding = refused(given, "flag_exists_in_version", message).source(table_source(version.engine));
    let finding = finding.fix(Fix::remove(&given.written));
    match instead.split_once(' ') {
        Some((name, value)) if name.starts_with("--") && !value.contains(' ') => {
            finding.fix(Fix { text: instead.to_owned(), ..Fix::remove(&given.written).and(Fix::set(name, value)) })
        }
        _ => finding,
    }
}

/// vLLM reads `32k` and `1M` in lengths and sizes (`human_readable_int`), and `auto` as the longest context that fits.
fn number(given: &Given, flag: &Flag, value: &str, engine: Engine) -> Option<Finding> {
    let readable = engine == Engine::Vllm && ["len", "tokens", "bytes", "size"].iter().any(|w| flag.name.contains(w));
    let plain = if readable { value.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G']) } else { value };
    let fits = match flag.value {
        Value::Int => {
            plain.parse::<i64>().is_ok()
                || plain.parse::<f64>().is_ok_and(|n| plain.len() < value.len() && n.is_finite())
                || value == "auto" && readable
        }
        _ => plain.parse::<f64>().is_ok_and(f64::is_finite),
    };
    if fits {
        return None;
    }
    let (what, kind) = if flag.value == Value::Int { ("an integer", "int") } else { ("a number", "float") };
    let finding = refused(given, "value_is_a_number", format!("{} takes {what}, not '{value}'", given.written));
    let finding = finding.because(argparse(flag, &format!("invalid {kind} value: '{value}'"))).source("argparse");
    // `8.0`, `8k`, `"8"`: what was meant is plain.
    let digits = value.trim_matches(['"', '\'']).to_lowercase();
    let meant = match digits.strip_suffix('k') {
        Some(thousands) => thousands.parse::<f64>().ok().map(|n| n * 1024.0),
        None => digits.parse::<f64>().ok(),
    };
    Some(match meant.filter(|n| n.fract() == 0.0 && n.abs() < 1e15) {
        Some(n) => finding.fix(Fix::set(&given.written, n as i64)),
        None => finding.fix(Fix::remove(&given.written)),
    })
}

/// Flags that count ranks, hosts or sequences.
const COUNTS: &[&str] = &[
    "--tp-size",
    "--pp-size",
    "--dp-size",
    "--ep-size",
    "--attn-dp-size",
    "--nnodes",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--decode-context-parallel-size",
    "--prefill-context-parallel-size",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--max-running-requests",
    "--block-size",
    "--page-size",
];

/// Least values of other flags: vLLM's `Field(ge=..)` as its repository had them between releases (config/cache.py, scheduler.py, model.py,
/// lora.py), where -1 stands for the longest context that fits.
const LEAST: &[(&str, i64)] = &[
    ("--max-model-len", -1),
    ("--swap-space", 0),
    ("--cpu-offload-gb", 0),
    ("--max-num-partial-prefills", 1),
    ("--max-long-partial-prefills", 1),
    ("--max-loras", 1),
];

/// argparse takes any number; the engine does not.
fn size(given: &Given, flag: &Flag, value: &str) -> Option<Finding> {
    let n: f64 = value.parse().ok()?;
    if let Some((_, least)) = LEAST.iter().find(|(name, least)| *name == flag.name && n < *least as f64) {
        let message = format!("{} is {least} at least, and it is {value}", given.written);
        let finding = refused(given, "value_is_in_range", message)
            .source("least values in vLLM's configuration classes, read in its repository between releases; of each release assumed");
        let says = format!("pydantic: Input should be greater than or equal to {least}");
        return Some(finding.because(says).fix(Fix::remove(&given.written)));
    }
    // It is given to the model as it is (`_derive_context_length`), and the worker asserts `context_len - 1 > 0` once the pool is there.
    if flag.name == "--context-length" && n < 2.0 {
        let message = format!("{} {value} leaves no room for a request: it needs a token of the prompt and one to generate", given.written);
        let finding = Finding::fails(Phase::KvAlloc, Kind::FlagConflict, "context_holds_a_request", message).argument(&given.written);
        let says = "AssertionError: Memory pool size is too small";
        return Some(finding.because(says).source("SGLang managers/tp_worker.py: max_req_len > 0").fix(Fix::remove(&given.written)));
    }
    // -1 asks for the longest context that fits; a context of nothing holds no request.
    let length = flag.name == "--max-model-len" && n == 0.0;
    if n >= 1.0 || !length && !COUNTS.contains(&flag.name) {
        return None;
    }
    let message = format!("{} counts from 1, and it is {value}", given.written);
    let finding = refused(given, "count_is_at_least_one", message).source("positive sizes of the configuration classes");
    Some(finding.because("pydantic: Input should be greater than or equal to 1").fix(Fix::remove(&given.written)))
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
    let other = if version.engine == Engine::Sglang { Engine::Vllm } else { Engine::Sglang };
    let others = flags::find(other, &given.name)
        .is_some_and(|f| matches!(f.value, Value::Choice(w) if w.split('/').any(|w| w.to_lowercase() == lower)));
    let plausible = !is_format(&given.name) || like_a_format(&lower);
    let beyond = grows && !slip && !others && (version.release.is_none() || version.at_least(read) && plausible);
    let own_build = beyond || ["fork", "custom", "image", "build", "patched", "dev"].iter().any(|w| version.says(w));
    let all: Vec<&str> = words.split('/').collect();
    let whose = if others { format!(", which is a word of {}", other.title()) } else { String::new() };
    let message = format!("{} does not accept '{value}'{whose} (accepted: {})", given.written, all.join(", "));
    let mut finding = refused(given, "value_is_a_choice", message)
        .because(parser_says(given, value, &all, version.engine))
        .source(format!("choices of {} in the flag table", given.name));
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

/// Flags whose words are number formats and ways to quantize. A new backend is often called by a new name; a new format is called after its parts.
fn is_format(name: &str) -> bool {
    name.contains("quantization") || name.contains("cache-dtype")
}

/// Whether a word has a part in common with the formats that either engine knows: `mxfp6` with `mxfp8`, `int8_per_token` with `tpu_int8`.
fn like_a_format(word: &str) -> bool {
    let parts = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_alphabetic()).filter(|part| part.len() > 1).map(str::to_lowercase).collect()
    };
    let known: Vec<String> = [Engine::Sglang, Engine::Vllm]
        .into_iter()
        .flat_map(flags::flags)
        .filter(|flag| flag.names().any(is_format))
        .filter_map(|flag| if let Value::Choice(words) = flag.value { Some(words) } else { None })
        .flat_map(parts)
        .collect();
    parts(word).iter().any(|part| known.iter().any(|k| part.starts_with(k.as_str()) || part.ends_with(k.as_str())))
}

/// What the parser prints of a word that is no choice: argparse, or the class that the value is turned into.
fn parser_says(given: &Given, value: &str, all: &[&str], engine: Engine) -> String {
    if engine == Engine::Vllm && given.name == "--attention-backend" {
        return format!(
            "pydantic: Value error, Unknown attention backend: '{}'. Valid options are: {}",
            value.to_uppercase(),
            all.join(", ")
        );
    }
    let quoted: Vec<String> = all.iter().map(|w| format!("'{w}'")).collect();
    if engine == Engine::Vllm && given.name == "--quantization" {
        return format!("ModelConfig: Unknown quantization method: {value}. Must be one of [{}]", quoted.join(", "));
    }
    format!("argparse: error: argument {}: invalid choice: '{value}' (choose from {})", given.written, quoted.join(", "))
}

fn json(given: &Given, flag: &Flag, value: &str) -> Option<Finding> {
    // `-O3` is a level; a bare word may name a file.
    let looks = value.trim_start().starts_with(['{', '[']);
    let error = serde_json::from_str::<serde_json::Value>(value).err().filter(|_| looks)?;
    let says = format!("Value {value} cannot be converted to <function loads>");
    let finding = refused(given, "value_is_json", format!("{} takes JSON, and its value is not: {error}", given.written));
    Some(finding.because(argparse(flag, &says)).source("argparse").fix(Fix::remove(&given.written)))
}
