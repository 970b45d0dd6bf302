//! A prediction beside what was logged.

use super::StartUp;
use crate::finding::{Numbers, Phase};

/// One figure: what the tables say and what the log says.
#[derive(Clone, Debug, PartialEq)]
pub struct Pinned {
    /// Key as in `check --json`.
    pub name: &'static str,
    /// As predicted, where there is a prediction.
    pub predicted: Option<f64>,
    /// As logged.
    pub logged: f64,
}

impl Pinned {
    /// Relative error of the prediction.
    pub fn error(&self) -> Option<f64> {
        self.predicted.filter(|_| self.logged != 0.0).map(|p| p / self.logged - 1.0)
    }
}

/// Sets every figure that the log has in `numbers` and returns each beside its prediction.
pub fn pin(start: &StartUp, numbers: &mut Numbers) -> Vec<Pinned> {
    let mut out = Vec::new();
    let logged = [
        ("weights_gib_per_gpu", start.weights_gib.or_else(|| start.free_before_gib.zip(start.free_after_gib).map(|(b, a)| b - a))),
        ("free_after_load_gib", start.free_after_gib),
        ("kv_gib_per_gpu", start.kv_gib),
        ("kv_tokens", start.kv_tokens),
        ("required_kv_gib", start.required_kv_gib),
        ("suggested_max_model_len", start.suggested_max_model_len),
        ("graph_gib_per_gpu", start.graphs_gib),
        ("minimum_mem_fraction", start.free_before_gib.zip(start.free_after_gib).filter(|(b, _)| *b > 0.0).map(|(b, a)| 1.0 - a / b)),
    ];
    for (name, value) in logged {
        let Some(value) = value.filter(|v| v.is_finite()) else { continue };
        let predicted = numbers.insert(name.to_owned(), value);
        out.push(Pinned { name, predicted, logged: value });
    }
    out
}

impl StartUp {
    /// Where it stopped, in a sentence.
    pub fn ending(&self) -> String {
        if self.ready && self.error.is_none() {
            return "the log ends with a server that is ready".to_owned();
        }
        let reached = self.reached.map_or("nothing that is known", Phase::name);
        match &self.error {
            Some(error) => {
                let phase = self.died_in().map_or("init", Phase::name);
                let place = error.function.as_ref().map(|f| format!(" in {f}")).unwrap_or_default();
                format!("it died in {phase}: {}{place}: {} (line {})", error.kind, shortened(&error.message), error.line)
            }
            None => format!("the log ends without an error after {reached}: cut off, still starting, or hanging"),
        }
    }
}

fn shortened(text: &str) -> String {
    let mut out: String = text.chars().take(200).collect();
    if text.chars().count() > 200 {
        out.push_str(" ...");
    }
    out
}
