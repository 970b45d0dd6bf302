//! The object that `check --json` prints.

use moetwin::engines::verdict::{Answer, Behind, CheckedFix, Starts};
use moetwin::engines::{Kind, Numbers, Phase};
use serde::Serialize;

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
}

/// The answer as one object.
pub(crate) fn json(answer: &Answer) -> CheckJson<'_> {
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
    }
}
