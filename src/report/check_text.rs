//! What `check` prints for people.

use moetwin::engines::command::{self, Command};
use moetwin::engines::question::Question;
use moetwin::engines::verdict::{Answer, Starts};
use std::fmt::Write as _;

/// The report.
pub(crate) fn text(question: &Question, answer: &Answer) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} {}: {}",
        question.engine.title(),
        answer.settings.version.text,
        in_words(answer.starts).to_owned() + if answer.starts == Starts::Yes && answer.in_the_dark() { ", as far as is known" } else { "" }
    );
    if !answer.invariant.is_empty() {
        let _ = writeln!(out, "  {} at {} ({})", answer.kind.name(), answer.phase.name(), answer.invariant);
    }
    let _ = writeln!(out, "  {}\n", answer.message);
    if let Ok(command) = command::parse(&question.command, &answer.settings.version) {
        out.push_str(&marked(&question.command, &command, &answer.arguments));
    }
    list(&mut out, "How it comes to that", &answer.story, true);
    let behind: Vec<String> = answer.next.iter().map(|n| format!("{} at {}: {}", n.kind.name(), n.phase.name(), n.message)).collect();
    list(&mut out, "Behind it, if that were mended", &behind, true);
    if !answer.numbers.is_empty() {
        let width = answer.numbers.keys().map(String::len).max().unwrap_or(0);
        out.push_str("Figures\n");
        for (name, value) in &answer.numbers {
            let _ = writeln!(out, "  {name:width$}  {}", figure(*value));
        }
        if answer.numbers.contains_key("step_ms") {
            let _ = writeln!(
                out,
                "  (pace: a first figure from rates and measured anchors; `moetwin sim` simulates the step, kernel by kernel)"
            );
        }
        out.push('\n');
    }
    memory(&mut out, answer);
    toolkits(&mut out, answer);
    let fixes: Vec<String> = answer.fixes.iter().map(|f| format!("{}{}", f.text, fixed(f.verified, f.then))).collect();
    list(&mut out, "What would remove it", &fixes, false);
    list(&mut out, "Worth knowing", &answer.notes, false);
    list(&mut out, "Assumed", &answer.assumptions, false);
    if !answer.source.is_empty() {
        let _ = writeln!(out, "Rule from: {}", answer.source);
    }
    let _ = writeln!(out, "Start-up searched: {} states", answer.states);
    out
}

fn in_words(starts: Starts) -> &'static str {
    match starts {
        Starts::Yes => "starts",
        Starts::No => "does not start",
        Starts::Hang => "may hang",
        Starts::ServeFails => "starts, and fails in service",
        Starts::Degraded => "serves, degraded",
    }
}

/// The launch under each toolkit, where they differ in anything.
fn toolkits(out: &mut String, answer: &Answer) {
    let Some(sm) = answer.hardware.sm.filter(|_| !answer.cuda.is_empty()) else { return };
    let _ = writeln!(out, "Built with another CUDA, on SM{sm}");
    for toolkit in &answer.cuda {
        let fault =
            if toolkit.invariant.is_empty() { String::new() } else { format!(" ({} at {})", toolkit.invariant, toolkit.phase.name()) };
        let given = if toolkit.given { ", as here" } else { "" };
        let _ = writeln!(out, "  CUDA {}{given}: {}{fault}; {}", toolkit.cuda, in_words(toolkit.starts), toolkit.says.join("; "));
    }
    out.push('\n');
}

/// The memory of the fullest rank: lines that stay add up, transient ones are in brackets.
fn memory(out: &mut String, answer: &Answer) {
    if answer.memory.is_empty() {
        return;
    }
    out.push_str("Memory of the fullest GPU, GiB\n");
    let width = answer.memory.iter().map(|l| l.name.len()).max().unwrap_or(0);
    let mut held = 0.0;
    for line in &answer.memory {
        let amount = if line.transient { format!("({:.2})", line.gib) } else { format!("{:.2} ", line.gib) };
        held += if line.transient { 0.0 } else { line.gib };
        let _ = writeln!(out, "  {:13} {:width$}  {amount:>8}", line.phase.name(), line.name);
    }
    let of = answer.hardware.memory_gib.map(|g| format!(" of {g:.2}")).unwrap_or_default();
    let _ = writeln!(out, "  {:13} {:width$}  {held:>7.2}{of}\n", "", "sum of what stays");
}

fn fixed(verified: bool, then: Option<Starts>) -> &'static str {
    match (verified, then) {
        (false, _) => "  (not checked)",
        (true, Some(Starts::Yes)) => "  (checked: then it starts)",
        (true, Some(Starts::Degraded)) => "  (checked: then it serves, degraded)",
        (true, _) => "  (checked: removes this fault, not those behind it)",
    }
}

fn figure(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value:.0}") } else { format!("{value:.4}") }
}

fn list(out: &mut String, title: &str, items: &[String], numbered: bool) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(out, "{title}");
    for (i, item) in items.iter().enumerate() {
        let _ = if numbered { writeln!(out, "  {}. {item}", i + 1) } else { writeln!(out, "  - {item}") };
    }
    out.push('\n');
}

/// The command, line by line, with carets under the arguments that the fault is about.
fn marked(text: &str, command: &Command, arguments: &[String]) -> String {
    let flags = command.given.iter().filter(|g| arguments.iter().any(|a| *a == g.written || *a == g.name)).map(|g| g.span.clone());
    let words = command.stray.iter().filter(|s| arguments.contains(&s.text)).map(|s| s.span.clone());
    let spans: Vec<std::ops::Range<usize>> = flags.chain(words).collect();
    let mut out = String::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let shown: String = line.trim_end_matches(['\n', '\r']).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(out, "  {shown}");
        let mut carets = String::new();
        for (i, c) in line.char_indices().filter(|(_, c)| !matches!(c, '\n' | '\r')) {
            let inside = spans.iter().any(|s| s.contains(&(at + i))) && !(c == '\\' || c.is_whitespace() && line[i..].trim().is_empty());
            carets.push(if inside { '^' } else { ' ' });
        }
        if carets.contains('^') {
            let _ = writeln!(out, "  {}", carets.trim_end());
        }
        at += line.len();
    }
    out.push('\n');
    out
}
