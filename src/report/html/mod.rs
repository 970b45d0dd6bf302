//! `moetwin sim --report`: one file that holds everything that `sim --json` says, with pictures. It asks for nothing over a network, has no
//! date and no path of its own in it, and equal questions give equal bytes.

mod markup;
mod measured;
mod memory;
mod palette;
mod sections;
mod sources;
mod time;
mod topology;

use super::profile::{self, ProfileAnswer};
use super::sim_json::{self, SimJson};
use crate::error::Failure;
use crate::prediction::Prediction;
use crate::sensitivity::{Change, changes};
use markup::{esc, json_in_script};
use moetwin::sim::load::{LinkLoad, link_loads};
use moetwin::sim::timeline::{Timeline, timeline};
use serde::Serialize;
use std::ffi::OsString;

/// Spans that are drawn one by one; beyond it neighbours of one layer and class are drawn as one. At about 22 bytes each the file stays below 2 MB.
const MOST_SPANS: usize = 40_000;

/// Everything on the page; the same object is in it as JSON.
#[derive(Serialize)]
struct Facts<'a> {
    sim: &'a SimJson<'a>,
    command: &'a str,
    version: &'static str,
    timeline: Option<time::TimelineJson>,
    links: Vec<topology::LinkJson>,
    sensitivity: &'a [Change],
    sources: &'a [sources::SourceJson],
    measured: Option<serde_json::Value>,
}

/// What pictures are drawn from, where a step was simulated.
struct Drawn {
    timeline: Timeline,
    loads: Vec<LinkLoad>,
}

/// The page. `command` reproduces it; `measured` is a real step beside it.
pub(crate) fn html(p: &Prediction, command: &str, measured: Option<&ProfileAnswer>) -> Result<String, Failure> {
    let json = sim_json::json(p)?;
    let scenario = &p.scenario;
    let drawn = p.served.as_ref().map(|served| Drawn {
        timeline: timeline(&served.program, &served.trace, MOST_SPANS),
        loads: link_loads(&scenario.machine, &served.trace),
    });
    let changes = p.served.as_ref().map_or_else(Vec::new, |served| changes(scenario, &served.program, served.tokens_per_s(scenario)));
    let sources = sources::sources(p);
    let facts = Facts {
        sim: &json,
        command,
        version: env!("CARGO_PKG_VERSION"),
        timeline: drawn.as_ref().map(|d| time::json(&d.timeline)),
        links: drawn.as_ref().map_or_else(Vec::new, |d| topology::json(&scenario.machine, &d.loads)),
        sensitivity: &changes,
        sources: &sources,
        measured: measured.map(profile::json),
    };
    let facts = serde_json::to_string(&facts).map_err(|e| Failure::Running(format!("could not write JSON: {e}")))?;
    let mut parts: Vec<(&str, &str, String)> = Vec::new();
    if let Some(answer) = measured {
        parts.push(("measured", "Predicted beside measured", measured::section(answer)));
    }
    if let Some(drawn) = &drawn {
        parts.push(("where", "Where the step goes", sections::classes(&json)));
        if json.speculation.is_some() {
            parts.push(("speculation", "Drafting", sections::speculation(&json)));
        }
        parts.push(("bounds", "What bounds it", sections::bounds(&json)));
        parts.push(("time", "Time line", time::section(&drawn.timeline)));
        parts.push(("links", "Links and exchanges", topology::section(&scenario.machine, &drawn.loads, &json)));
    }
    parts.push(("memory", "Memory", memory::section(p, &json)));
    if !changes.is_empty() {
        parts.push(("changes", "What a change would buy", sections::changes(&json, &changes)));
    }
    if drawn.is_some() {
        parts.push(("certainty", "How sure this is", sections::certainty(&json)));
    }
    parts.push(("sources", "Where the numbers come from", sources::section(&json, &sources)));
    parts.push(("again", "The same again", sections::again(&json, command)));
    Ok(page(&json, &parts, &facts))
}

fn page(json: &SimJson<'_>, parts: &[(&str, &str, String)], facts: &str) -> String {
    let links: String = parts.iter().map(|(id, title, _)| format!("<li><a href=\"#{id}\">{title}</a></li>")).collect();
    let body: String = parts.iter().map(|(id, title, body)| markup::section(id, title, body)).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <style>\n{colours}{style}</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">To the content</a>\n<header>\n{head}\
         <nav aria-label=\"Sections\"><ul>{links}</ul></nav>\n</header>\n<main id=\"main\" tabindex=\"-1\">\n{body}</main>\n\
         <script type=\"application/json\" id=\"facts\">{facts}</script>\n<script>\n{script}</script>\n</body>\n</html>\n",
        title = esc(&format!("{} on {}", json.model, json.machine)),
        colours = palette::css(),
        style = include_str!("page.css"),
        head = sections::head(json),
        facts = json_in_script(facts),
        script = include_str!("page.js"),
    )
}

/// The command that gives the same page, from the arguments of this one: without what only says where output goes.
pub(crate) fn reproducing(arguments: impl Iterator<Item = OsString>) -> String {
    let mut words = vec!["moetwin".to_owned()];
    let mut skip = false;
    for word in arguments.map(|a| a.to_string_lossy().into_owned()) {
        if std::mem::take(&mut skip) || word == "--json" {
            continue;
        }
        let output = ["--report", "--trace"];
        if output.contains(&word.as_str()) {
            skip = true;
        } else if !output.iter().any(|o| word.strip_prefix(o).is_some_and(|rest| rest.starts_with('='))) {
            words.push(shell_word(&word));
        }
    }
    words.extend(["--report".to_owned(), "report.html".to_owned()]);
    words.join(" ")
}

/// A word as a shell takes it.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_the_same_wherever_its_output_goes() {
        let of = |line: &str| reproducing(line.split(' ').map(OsString::from));
        let plain = "moetwin sim --batch 8 --report report.html";
        for line in
            ["sim --report a.html --batch 8", "sim --batch 8 --report=/tmp/b.html --json", "sim --trace t.json --batch 8 --report c"]
        {
            assert_eq!(of(line), plain, "{line}");
        }
        assert_eq!(of("sim --model a'b --report c"), "moetwin sim --model 'a'\\''b' --report report.html");
    }
}
