//! A model from its name.

use super::quantize::{self, Said};
use super::table;
use crate::model::Model;

/// The model that one of the texts names; earlier texts outrank later ones.
pub(super) fn of(texts: [&str; 2]) -> Model {
    let plain = texts.map(normalized);
    let row = plain.iter().find_map(|text| table::find(text));
    let said: Vec<Said> = plain.iter().map(|text| quantize::said(text)).collect();
    let mut model = match row {
        Some(row) => row.model(),
        None => by_size(&plain, &texts),
    };
    let scheme = said.into_iter().find_map(|s| s.scheme);
    quantize::checkpoint(&mut model, scheme);
    if let Some(row) = row {
        row.refine(&mut model);
    }
    model
}

/// Lower case, words joined by `-`.
pub(super) fn normalized(text: &str) -> String {
    let mut out = String::new();
    for c in text.to_lowercase().chars() {
        let keep = c.is_alphanumeric() || c == '.';
        match (keep, out.ends_with('-')) {
            (true, _) => out.push(c),
            (false, false) => out.push('-'),
            (false, true) => {}
        }
    }
    out.trim_matches('-').to_owned()
}

/// A name that only says how large it is: `235b-a22b`, `70b`, `8x7b`.
fn by_size(plain: &[String; 2], texts: &[&str; 2]) -> Model {
    let mut model = Model::default();
    let Some((i, total, active)) = plain.iter().enumerate().find_map(|(i, text)| sizes(text).map(|(t, a)| (i, t, a))) else {
        model.moe = plain.iter().any(|t| t.split('-').any(|w| w == "moe"));
        model.source = "nothing is known of the model".to_owned();
        return model;
    };
    model.name = texts[i].trim().to_owned();
    model.total_params_b = Some(total);
    model.active_params_b = Some(active.unwrap_or(total));
    model.moe = active.is_some();
    model.source = "its name".to_owned();
    model.assumptions.push(match active {
        Some(active) => format!("{total} billion parameters, {active} billion active, as the name says; the configuration is not known"),
        None => format!("{total} billion parameters, as the name says; the configuration is not known"),
    });
    model
}

fn sizes(text: &str) -> Option<(f64, Option<f64>)> {
    let words: Vec<&str> = text.split('-').collect();
    let billions = |word: &str| -> Option<f64> {
        let digits = word.strip_suffix('b')?;
        digits.parse::<f64>().ok().filter(|n| (0.05..20_000.0).contains(n))
    };
    let at = words.iter().position(|w| billions(w).is_some())?;
    let active = words.get(at + 1).and_then(|w| billions(w.strip_prefix('a')?));
    Some((billions(words[at])?, active))
}
