//! CUDA 12 against CUDA 13: the same launch with an image of either.

use super::answer::{Starts, starts_of};
use super::{CheckError, examine};
use crate::command::Command;
use crate::finding::{Kind, Outcome, Phase};
use crate::question::Question;
use crate::rules::toolkit::differences;
use serde::Serialize;

/// Toolkits that published images are built with today; a question's own is added.
const TOOLKITS: &[&str] = &["12.8", "13.0"];

/// What becomes of the launch with an engine that is built with a toolkit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Toolkit {
    /// Its version.
    pub cuda: String,
    /// Whether the question says that it is this one.
    pub given: bool,
    /// What becomes of the launch.
    pub starts: Starts,
    /// Part of start-up in which it is decided.
    pub phase: Phase,
    /// Sort of fault, or `ok`.
    pub kind: Kind,
    /// Name of the broken rule; empty where none is.
    pub invariant: String,
    /// What the toolkit means for this architecture and driver.
    pub says: Vec<String>,
}

/// The launch under each toolkit; nothing where the architecture is not known.
///
/// # Errors
/// A defective table.
pub(super) fn whatif(question: &Question, command: &Command, sm: Option<u32>, own: Option<(u32, u32)>) -> Result<Vec<Toolkit>, CheckError> {
    let Some(sm) = sm else { return Ok(Vec::new()) };
    let own = own.map(|(major, minor)| format!("{major}.{minor}"));
    let mut versions: Vec<String> = TOOLKITS.iter().map(|v| (*v).to_owned()).chain(own.clone()).collect();
    versions.sort();
    versions.dedup();
    let one = |cuda: String| {
        let mut question = question.clone();
        question.hardware.cuda = Some(cuda.clone());
        let examined = examine(&question, command)?;
        let first = examined.findings.first().filter(|f| f.outcome != Outcome::Note);
        Ok(Toolkit {
            given: own.as_deref() == Some(cuda.as_str()),
            starts: starts_of(first),
            phase: first.map_or(Phase::Serve, |f| f.phase),
            kind: first.map_or(Kind::Ok, |f| f.kind),
            invariant: first.map_or_else(String::new, |f| f.invariant.clone()),
            says: examined.hardware.cuda.map(|cuda| differences(sm, cuda, examined.hardware.driver.as_deref())).unwrap_or_default(),
            cuda,
        })
    };
    versions.into_iter().map(one).collect()
}
