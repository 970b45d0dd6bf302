//! A model from its name.

use super::quantize::{self, Said};
use super::table;
use crate::model::Model;
use moetwin_models::spec::Ffn;

/// The model that one of the texts names; earlier texts outrank later ones.
pub(super) fn of(texts: [&str; 2]) -> Model {
    let plain = texts.map(normalized);
    let row = plain.iter().find_map(|text| table::find(text));
    let said: Vec<Said> = plain.iter().map(|text| quantize::said(text)).collect();
    let mut model = match row {
        Some(row) => pruned(row.model(), &plain),
        None => by_size(&plain, &texts),
    };
    let scheme = said.into_iter().find_map(|s| s.scheme);
    quantize::checkpoint(&mut model, scheme);
    if let Some(row) = row {
        row.refine(&mut model);
    }
    model
}

/// Checkpoints of which experts were taken out say so and how large they are: `MiniMax-M2.5-REAP-139B-A10B`. What is not an expert stays, so the
/// size says how many experts are left.
fn pruned(mut model: Model, plain: &[String; 2]) -> Model {
    let said = plain.iter().find(|text| text.split('-').any(|w| w == "reap")).and_then(|text| sizes(text));
    let (Some((billions, _)), Some(experts), Some(parts)) = (said, model.experts, super::Parts::of(&model)) else { return model };
    let routed: f64 = parts.layers.iter().map(|l| l.experts.params).sum();
    let rest = parts.total().params - routed;
    let left = libm::round((billions * 1e9 - rest) / routed * experts as f64);
    if left < model.topk.unwrap_or(1) as f64 || left >= experts as f64 {
        return model;
    }
    model.experts = Some(left as u64);
    model.total_params_b = Some(billions);
    model.checkpoint_gib = None;
    if let Some(spec) = &mut model.spec {
        for layer in &mut spec.layers {
            if let Ffn::Moe(moe) = &mut layer.ffn {
                moe.experts = left as u32;
            }
        }
    }
    model.assumptions.push(format!("{left} of {experts} experts are left in a checkpoint of {billions} billion parameters"));
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
