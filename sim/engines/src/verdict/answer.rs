//! The answer: what becomes of the launch, told from its findings.

use super::toolkit::Toolkit;
use super::{CheckError, Examined, change, examine};
use crate::catalog;
use crate::command::{self, Command};
use crate::finding::{Change, Finding, Fix, Kind, Numbers, Outcome, Phase};
use crate::hardware::Hardware;
use crate::memory::Line;
use crate::model::Model;
use crate::provenance;
use crate::question::Question;
use crate::settings::Settings;
use serde::{Serialize, Serializer};

/// What becomes of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starts {
    /// It starts and serves.
    Yes,
    /// It does not start.
    No,
    /// It waits for ever, or may.
    Hang,
    /// It starts, and real requests fail or are answered wrongly.
    ServeFails,
    /// It serves on a known bad path.
    Degraded,
}

impl Serialize for Starts {
    /// `true`, `false`, `"hang"`, `"serve_fails"`, `"degraded"`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Starts::Yes => serializer.serialize_bool(true),
            Starts::No => serializer.serialize_bool(false),
            Starts::Hang => serializer.serialize_str("hang"),
            Starts::ServeFails => serializer.serialize_str("serve_fails"),
            Starts::Degraded => serializer.serialize_str("degraded"),
        }
    }
}

/// A failure behind the first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Behind {
    /// Part of start-up.
    pub phase: Phase,
    /// Sort of fault.
    pub kind: Kind,
    /// Name of the broken rule.
    pub invariant: String,
    /// What fails and why.
    pub message: String,
}

/// A change that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckedFix {
    /// For people.
    pub text: String,
    /// Whether the launch was checked with it, and the fault was gone. Changes outside of command, environment and version cannot be tried.
    pub verified: bool,
    /// What becomes of the launch with it, where it was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub then: Option<Starts>,
    /// The changes, as made.
    #[serde(skip)]
    pub changes: Vec<Change>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What becomes of the launch.
    pub starts: Starts,
    /// Part of start-up in which it is decided.
    pub phase: Phase,
    /// Sort of fault, or `ok`.
    pub kind: Kind,
    /// The rank on which it shows first.
    pub rank: Option<u32>,
    /// Name of the broken rule; empty where none is.
    pub invariant: String,
    /// What fails, where and why.
    pub message: String,
    /// The way there, step by step.
    pub story: Vec<String>,
    /// Failures behind the first, in order.
    pub next: Vec<Behind>,
    /// Figures.
    pub numbers: Numbers,
    /// Changes that remove the fault.
    pub fixes: Vec<CheckedFix>,
    /// Things worth knowing that decide nothing.
    pub notes: Vec<String>,
    /// What was taken for granted.
    pub assumptions: Vec<String>,
    /// Where the rule was read.
    pub source: String,
    /// Arguments that the fault is about, as written.
    pub arguments: Vec<String>,
    /// States of the start-up that were visited.
    pub states: u64,
    /// The fullest rank's memory, in order of allocation.
    pub memory: Vec<Line>,
    /// The same launch with an engine built with CUDA 12 and with CUDA 13.
    pub cuda: Vec<Toolkit>,
    /// The launch after defaults and rewrites.
    pub settings: Settings,
    /// The model.
    pub model: Model,
    /// The machine.
    pub hardware: Hardware,
}

pub(super) fn starts_of(finding: Option<&Finding>) -> Starts {
    match finding.map(|f| f.outcome) {
        None | Some(Outcome::Note) => Starts::Yes,
        Some(Outcome::Fails) => Starts::No,
        Some(Outcome::Hangs) => Starts::Hang,
        Some(Outcome::ServeFails) => Starts::ServeFails,
        Some(Outcome::Degraded) => Starts::Degraded,
    }
}

/// Fixes that are tried at most: each costs a check.
const MOST_FIXES: usize = 6;

pub(super) fn compose(question: &Question, command: &Command, examined: Examined, cuda: Vec<Toolkit>) -> Answer {
    let Examined { settings, model, hardware, findings, mut numbers, search, memory } = examined;
    let (faults, notes): (Vec<&Finding>, Vec<&Finding>) = findings.iter().partition(|f| f.outcome != Outcome::Note);
    let first = faults.first().copied();
    let starts = starts_of(first);
    for finding in findings.iter().rev() {
        numbers.extend(finding.numbers.clone());
    }
    let fixes = first.map_or_else(Vec::new, |f| tried(question, command, f));
    let behind =
        faults.iter().skip(1).map(|f| Behind { phase: f.phase, kind: f.kind, invariant: f.invariant.clone(), message: f.message.clone() });
    let mut assumptions: Vec<String> = Vec::new();
    if let Some(tag) = command.image_tag.as_deref().filter(|tag| super::says(tag)) {
        let image = command::image(tag);
        let version = image.version.map(|v| format!(" version {v}")).unwrap_or_default();
        let cuda = image.cuda.map(|v| format!(" CUDA {v}")).unwrap_or_default();
        assumptions.push(format!("the image's tag {tag} says{version}{cuda}; what is given beside the command outranks it"));
    }
    assumptions.extend(question.version.assumption());
    assumptions.extend(question.assumptions.iter().cloned());
    assumptions.extend(catalog::contradiction(command.model.as_deref().unwrap_or_default(), &question.model));
    assumptions
        .extend(model.assumptions.iter().chain(&hardware.assumptions).chain(&settings.assumptions).chain(&memory.assumptions).cloned());
    assumptions.extend(first.and_then(|f| provenance::caveat(&f.invariant, &f.source)));
    for placeholder in &command.placeholders {
        assumptions.push(format!("{placeholder} in the command is taken as the other fields give it"));
    }
    Answer {
        starts,
        phase: first.map_or(Phase::Serve, |f| f.phase),
        kind: first.map_or(Kind::Ok, |f| f.kind),
        rank: first.and_then(|f| f.rank),
        invariant: first.map_or_else(String::new, |f| f.invariant.clone()),
        message: first.map_or_else(|| healthy(&settings, &model, &hardware, &notes), |f| f.message.clone()),
        story: story(&settings, first, &search),
        next: behind.collect(),
        numbers,
        fixes,
        notes: notes.into_iter().map(|f| f.message.clone()).collect(),
        assumptions,
        source: first.map_or_else(String::new, |f| f.source.clone()),
        arguments: first.map_or_else(Vec::new, |f| f.arguments.clone()),
        states: search.states,
        memory: memory.table,
        cuda,
        settings,
        model,
        hardware,
    }
}

/// Rules of which a note means that the launch ends at once unless the build has what the tables lack.
const UNLESS_KNOWN: &[&str] = &["flag_is_known", "value_is_a_choice"];

/// What could not be checked for want of the model's figures.
fn unchecked(model: &Model) -> Option<String> {
    let mut parts = Vec::new();
    if model.heads.is_none() {
        parts.push("heads");
    }
    if model.heads.is_none() && model.experts.is_none() {
        parts.push("experts");
    }
    let sized = model.total_params_b.is_some() || model.checkpoint_gib.is_some();
    if parts.is_empty() {
        return None;
    }
    let known = if sized { "only its size is known" } else { "nothing is known" };
    if !sized {
        parts.push("memory");
    }
    let listed = match parts.as_slice() {
        [one] => format!("the {one} were not checked"),
        [first @ .., last] => format!("neither {} nor {last} were checked", first.join(", ")),
        [] => return None,
    };
    Some(format!("{known} of {}, so {listed}", model.name))
}

impl Answer {
    /// Whether a start is foretold without the model's figures: only what arguments and machine say was checked.
    pub fn in_the_dark(&self) -> bool {
        unchecked(&self.model).is_some()
    }
}

fn healthy(settings: &Settings, model: &Model, hardware: &Hardware, notes: &[&Finding]) -> String {
    let experts = if model.moe { format!(", experts {}", settings.moe_backend) } else { String::new() };
    let unknown = if hardware.memory_gib.is_none() { "; whether it fits is not checked, for the GPU's memory is not known" } else { "" };
    let doubtful: Vec<String> =
        notes.iter().filter(|n| UNLESS_KNOWN.contains(&n.invariant.as_str())).map(|n| n.arguments.join(" ")).collect();
    let doubt = match doubtful.as_slice() {
        [] => String::new(),
        all => format!("; WARNING: only if this build accepts {}, which no table here has (see what is worth knowing)", all.join(", ")),
    };
    let far = unchecked(model).map(|what| format!(", as far as is known: {what}; otherwise")).unwrap_or_else(|| ":".to_owned());
    format!(
        "starts{far} no rule of {} {} is broken for {} on {} ranks (attention {}{experts}){unknown}{doubt}",
        settings.engine.title(),
        settings.version.text,
        model.name,
        settings.world(),
        settings.attention_backend,
    )
}

fn story(settings: &Settings, first: Option<&Finding>, search: &crate::startup::Search) -> Vec<String> {
    let mut out: Vec<String> = settings.writes.iter().map(|w| format!("{} becomes {}: {}", w.field, w.value, w.by)).collect();
    let Some(finding) = first else {
        out.push(format!(
            "the search of {} start-up steps on {} ranks visits {} states and finds no broken invariant",
            search.steps, search.ranks, search.states
        ));
        return out;
    };
    let rank = finding.rank.map_or_else(String::new, |r| format!(" on rank {r} (all ranks alike)"));
    out.push(format!("{}{rank}: {}", finding.phase.name(), finding.message));
    out.extend(finding.evidence.iter().cloned());
    out
}

/// Tries each fix: it is offered if the fault is gone with it, or if it cannot be tried.
fn tried(question: &Question, command: &Command, finding: &Finding) -> Vec<CheckedFix> {
    let mut fixes: Vec<CheckedFix> =
        finding.fixes.iter().take(MOST_FIXES).filter_map(|fix| one(question, command, finding, fix).ok().flatten()).collect();
    // A change that only uncovers the next fault is worth offering where nothing better is known.
    let good = |fix: &CheckedFix| matches!(fix.then, None | Some(Starts::Yes | Starts::Degraded));
    if fixes.iter().any(|fix| fix.verified && good(fix)) {
        fixes.retain(good);
    }
    fixes
}

fn one(question: &Question, command: &Command, finding: &Finding, fix: &Fix) -> Result<Option<CheckedFix>, CheckError> {
    if fix.changes.is_empty() {
        return Ok(Some(CheckedFix { text: fix.text.clone(), verified: false, then: None, changes: Vec::new() }));
    }
    let text = fix.changes.iter().fold(fix.text.clone(), |text, change| match change {
        Change::Set(flag, _) => text.replace(flag.as_str(), change::spelled(question, flag)),
        _ => text,
    });
    let (question, command) = change::apply(question, command, &fix.changes);
    let again = examine(&question, &command)?;
    let same = |f: &Finding| f.invariant == finding.invariant && f.outcome == finding.outcome && f.arguments == finding.arguments;
    let remains = again.findings.iter().any(same);
    let then = starts_of(again.findings.first().filter(|f| f.outcome != Outcome::Note));
    Ok((!remains).then(|| CheckedFix { text, verified: true, then: Some(then), changes: fix.changes.clone() }))
}
