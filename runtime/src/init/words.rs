//! Breaches for people: what is missing, and why nothing brought it about.

use super::check::CheckedPlan;
use super::fact::{Fact, StepId};
use super::invariant::{Breach, Fault};
use super::plan::Guarded;
use moetwin_models::RankId;

impl Breach {
    /// One or two sentences: who does what too early or too late, and what became of what it needs.
    pub fn in_words(&self, plan: &CheckedPlan) -> String {
        let rank = self.rank.0;
        let begins = match self.step {
            Some(step) => format!("rank {rank} begins `{}`", plan.step(self.rank, step).name),
            None => format!("rank {rank} launches a graph"),
        };
        let words = |fact: &Fact| plan.plan().fact_in_words(fact);
        match (&self.fault, self.peer) {
            (Fault::Missing(fact), None) => {
                format!("{begins} before {} exists on it: {}", words(fact), why_missing(plan, self.rank, fact, self.step))
            }
            (Fault::Missing(fact), Some(peer)) => {
                format!("{begins} before {} exists on rank {}: {}", words(fact), peer.0, why_missing(plan, peer, fact, None))
            }
            (Fault::Conflict { subject, because: Fact::CaptureOpen(bucket) }, _) => {
                format!("{begins}, which allocates {}, while it captures {bucket}", words(subject))
            }
            (Fault::Conflict { subject, because }, None) => format!("{begins} ({}) in spite of {}", words(subject), words(because)),
            (Fault::Conflict { subject, because }, Some(peer)) => {
                format!("{begins} ({}) in spite of {} on rank {}", words(subject), words(because), peer.0)
            }
            (Fault::OtherBucket { nth, own, theirs }, peer) => {
                let peer = peer.map_or_else(|| "another rank".to_owned(), |peer| format!("rank {}", peer.0));
                format!("{begins}: capture number {nth} is {own} on rank {rank} and {theirs} on {peer}")
            }
            (Fault::OtherStep { group, theirs }, peer) => {
                let theirs = peer.map_or_else(String::new, |peer| format!(" rank {} is in `{}`", peer.0, plan.step(peer, *theirs).name));
                format!("{begins} and waits for {}, but there{theirs}", plan.plan().group_name(*group))
            }
        }
    }
}

/// Why an item is not true of a rank when `reader` begins.
fn why_missing(plan: &CheckedPlan, rank: RankId, fact: &Fact, reader: Option<StepId>) -> String {
    let conditions = &plan.plan().conditions;
    let mut reasons = Vec::new();
    for step in &plan.plan().ranks[rank] {
        let Some(Guarded { gate, .. }) = step.writes.iter().find(|item| item.fact == *fact) else { continue };
        let name = &step.name;
        reasons.push(match (step.gate.why_closed(conditions, step.worker), gate.why_closed(conditions, step.worker)) {
            (Some(why), _) => format!("`{name}` would bring it about but does not run, since {why}"),
            (None, Some(why)) => format!("`{name}` runs and leaves nothing behind, since {why}"),
            (None, None) if reader == Some(step.id) => format!("only `{name}` itself brings it about"),
            (None, None) => format!("`{name}` brings it about and nothing makes it come first"),
        });
    }
    if reasons.is_empty() { "no step of that rank brings it about".to_owned() } else { reasons.join("; ") }
}
