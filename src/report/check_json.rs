//! The object that `check --json` prints.

use super::check_log::LogReport;
use moetwin::engines::memory::Line;
use moetwin::engines::verdict::{Answer, Behind, CheckedFix, Starts, Toolkit};
use moetwin::engines::{Kind, Numbers, Phase};
use serde::Serialize;

/// What scripts read.
#[derive(Serialize)]
pub(crate) struct CheckJson<'a> {
    schema: u32,
    engine: &'static str,
    /// The version that was answered for.
    version: &'a str,
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
    /// The fullest rank's memory, in order of allocation.
    memory: &'a [Line],
    /// The same launch with engines built with CUDA 12 and 13.
    cuda: &'a [Toolkit],
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<&'a LogReport>,
}

/// What `check --log --json` prints without a question.
#[derive(Serialize)]
pub(crate) struct LogAnswer<'a> {
    schema: u32,
    log: &'a LogReport,
}

impl<'a> LogAnswer<'a> {
    /// The report as an object of its own.
    pub(crate) fn new(log: &'a LogReport) -> Self {
        Self { schema: 1, log }
    }
}

/// The answer as one object.
pub(crate) fn json<'a>(answer: &'a Answer, log: Option<&'a LogReport>) -> CheckJson<'a> {
    CheckJson {
        schema: 1,
        engine: answer.settings.engine.title(),
        version: &answer.settings.version.text,
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
        cuda: &answer.cuda,
        log,
    }
}
