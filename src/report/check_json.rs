//! The object that `check --json` prints.

use moetwin::engines::log::Pinned;
use moetwin::engines::memory::Line;
use moetwin::engines::verdict::{Answer, Behind, CheckedFix, Starts};
use moetwin::engines::{Kind, Numbers, Phase};
use serde::Serialize;

/// What a start-up log says.
pub(crate) struct Logged {
    /// How it ends, in a sentence.
    pub(crate) ending: String,
    /// Part of start-up in which it died.
    pub(crate) died_in: Option<Phase>,
    /// Figures beside their predictions.
    pub(crate) figures: Vec<Pinned>,
}

/// The same for scripts.
#[derive(Serialize)]
struct LogJson<'a> {
    ending: &'a str,
    died_in: Option<Phase>,
    figures: Vec<PinnedJson>,
}

/// A figure of the log and what was predicted.
#[derive(Serialize)]
struct PinnedJson {
    name: &'static str,
    predicted: Option<f64>,
    logged: f64,
}

/// What scripts read.
#[derive(Serialize)]
pub(crate) struct CheckJson<'a> {
    schema: u32,
    starts: Starts,
    phase: Phase,
    kind: Kind,
    rank: Option<u32>,
    invariant: &'a str,
    message: &'a str,
    story: &'a [String],
    next: &'a [Behind],
    numbers: &'a Numbers,
    fixes: Vec<&'a str>,
    fixes_checked: &'a [CheckedFix],
    notes: &'a [String],
    assumptions: &'a [String],
    source: &'a str,
    states: u64,
    memory: &'a [Line],
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<LogJson<'a>>,
}

/// The answer as one object.
pub(crate) fn json<'a>(answer: &'a Answer, logged: Option<&'a Logged>) -> CheckJson<'a> {
    let pinned = |p: &Pinned| PinnedJson { name: p.name, predicted: p.predicted, logged: p.logged };
    let log = logged.map(|l| LogJson { ending: &l.ending, died_in: l.died_in, figures: l.figures.iter().map(pinned).collect() });
    CheckJson {
        schema: 1,
        starts: answer.starts,
        phase: answer.phase,
        kind: answer.kind,
        rank: answer.rank,
        invariant: &answer.invariant,
        message: &answer.message,
        story: &answer.story,
        next: &answer.next,
        numbers: &answer.numbers,
        fixes: answer.fixes.iter().map(|f| f.text.as_str()).collect(),
        fixes_checked: &answer.fixes,
        notes: &answer.notes,
        assumptions: &answer.assumptions,
        source: &answer.source,
        states: answer.states,
        memory: &answer.memory,
        log,
    }
}
