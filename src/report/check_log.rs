//! What `check --log` says of a start-up log.

use moetwin::engines::log::{Pinned, StartUp};
use moetwin::engines::verdict::Answer;
use moetwin::engines::{Engine, Phase};
use serde::Serialize;
use std::fmt::Write as _;

/// A log beside the prediction.
#[derive(Serialize)]
pub(crate) struct LogReport {
    engine: Option<&'static str>,
    version: Option<String>,
    ready: bool,
    reached: Option<Phase>,
    died_in: Option<Phase>,
    /// The phase in which the tables had put the first fault; absent where they predict a start.
    predicted_phase: Option<Phase>,
    error: Option<String>,
    line: Option<usize>,
    function: Option<String>,
    ending: String,
    figures: Vec<Figure>,
}

/// A figure of the log.
#[derive(Serialize)]
struct Figure {
    name: &'static str,
    logged: f64,
    predicted: Option<f64>,
}

impl LogReport {
    /// What a log says, beside an answer where there was a question.
    pub(crate) fn new(start: &StartUp, pinned: &[Pinned], answer: Option<&Answer>) -> Self {
        let predicted = answer.filter(|a| !a.invariant.is_empty()).map(|a| a.phase);
        Self {
            engine: start.engine.map(Engine::title),
            version: start.version.clone(),
            ready: start.ready,
            reached: start.reached,
            died_in: start.died_in(),
            predicted_phase: predicted,
            error: start.error.as_ref().map(|e| format!("{}: {}", e.kind, e.message)),
            line: start.error.as_ref().map(|e| e.line),
            function: start.error.as_ref().and_then(|e| e.function.clone()),
            ending: start.ending(),
            figures: pinned.iter().map(|p| Figure { name: p.name, logged: p.logged, predicted: p.predicted }).collect(),
        }
    }

    /// For people.
    pub(crate) fn text(&self, asked: bool) -> String {
        let mut out = String::from("Log\n");
        let who = self.engine.unwrap_or("an engine that it does not name");
        let version = self.version.as_deref().map(|v| format!(" {v}")).unwrap_or_default();
        let _ = writeln!(out, "  written by {who}{version}; {}", self.ending);
        if asked {
            let predicted = match (self.predicted_phase, self.died_in) {
                (Some(predicted), Some(died)) if predicted == died => {
                    format!("the tables had put the first fault there: {}", predicted.name())
                }
                (Some(predicted), Some(_)) => format!("the tables had put the first fault at {}", predicted.name()),
                (Some(predicted), None) => format!("the tables had predicted a fault at {}, which the log does not show", predicted.name()),
                (None, Some(_)) => "the tables had predicted no fault that stops it".to_owned(),
                (None, None) => "the tables had predicted no fault either".to_owned(),
            };
            let _ = writeln!(out, "  {predicted}");
        }
        let width = self.figures.iter().map(|f| f.name.len()).max().unwrap_or(0);
        for figure in &self.figures {
            let beside = match figure.predicted {
                Some(p) if figure.logged != 0.0 => {
                    format!("  predicted {} ({:+.1} %)", amount(p), (p / figure.logged - 1.0) * 100.0)
                }
                Some(p) => format!("  predicted {}", amount(p)),
                None => String::new(),
            };
            let _ = writeln!(out, "  {:width$}  {:>10}{beside}", figure.name, amount(figure.logged));
        }
        out
    }
}

/// Tokens without decimals, GiB and fractions with two.
fn amount(value: f64) -> String {
    if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
