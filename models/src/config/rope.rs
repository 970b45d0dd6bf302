//! Rotary embedding in both dialects: `rope_scaling` beside `rope_theta`, and `rope_parameters` (flat, or one object per layer type).
//!
//! Rules and defaults are those of transformers 5.17 (`RotaryEmbeddingConfigMixin`, `modeling_rope_utils.py`).

use super::fields::{Fields, MAX_POSITIONS};
use crate::rope::yarn_mscale;
use crate::spec::{RopeScaling, RopeSpec};

/// Largest base of the frequencies; real ones end at 1e7.
const MAX_THETA: f64 = 1e15;
const MAX_FACTOR: f64 = 1e6;
/// Scalings that are read with their exact rule.
const KNOWN: &[&str] = &["default", "linear", "dynamic", "yarn", "llama3"];
/// Layer types whose names key the nested dialect.
const LAYER_TYPES: &[&str] = &["full_attention", "sliding_attention", "chunked_attention", "linear_attention"];

/// What a family knows about its rotary embedding that the file may leave out.
pub(super) struct RopeDefaults {
    /// `default_theta` of its configuration class.
    pub(super) theta: f64,
    /// Share of the head that is rotated.
    pub(super) partial: f64,
    /// Whether the family's code honours another share.
    pub(super) partial_allowed: bool,
    /// Pairs are adjacent.
    pub(super) interleaved: bool,
    /// Scaling where the file has no rotary object at all.
    pub(super) absent: RopeScaling,
    /// A scaling without an exact rule costs the same as none: warn instead of refusing.
    pub(super) cost_only: bool,
}

/// A rotary embedding and what YaRN does to attention scores besides.
pub(super) struct Rope {
    pub(super) spec: RopeSpec,
    /// Multiplier of the softmax scale in MLA (`mscale_all_dim`), 1 where it does not apply.
    pub(super) score_factor: f64,
}

/// Reads the rotary embedding of heads of `head_dim` dimensions in layers of `layer_type`.
pub(super) fn read(text: &Fields<'_>, head_dim: u32, layer_type: &str, defaults: &RopeDefaults) -> Option<Rope> {
    let old = text.maybe_object("rope_scaling")?.filter(|o| o.keys().next().is_some());
    let (key, outer) = match old {
        Some(fields) => ("rope_scaling", Some(fields)),
        None => ("rope_parameters", text.maybe_object("rope_parameters")?),
    };
    let fields = match outer {
        Some(outer) if outer.keys().any(|k| LAYER_TYPES.contains(&k)) => match outer.maybe_object(layer_type)? {
            Some(inner) => Some(inner),
            None => {
                text.fault(key, format!("has no entry for {layer_type} layers"), format!("an object named {layer_type}"));
                return None;
            }
        },
        flat => flat,
    };
    let theta = theta(text, fields.as_ref(), defaults);
    let dim = dimension(text, fields.as_ref(), head_dim, defaults);
    let scaling = match &fields {
        Some(fields) => scaling(text, fields, defaults),
        None => Some((defaults.absent.clone(), 1.0)),
    };
    let (scaling, score_factor) = scaling?;
    Some(Rope { spec: RopeSpec { dim: dim?, theta: theta?, scaling, interleaved: defaults.interleaved }, score_factor })
}

fn theta(text: &Fields<'_>, fields: Option<&Fields<'_>>, defaults: &RopeDefaults) -> Option<f64> {
    // A base of 1 or less would make every frequency equal or growing; ln(base) divides in YaRN.
    let range = 1.001..=MAX_THETA;
    let inner = match fields {
        Some(f) => f.maybe_f64(&["rope_theta"], range.clone())?,
        None => None,
    };
    match inner {
        Some(theta) => Some(theta),
        None => text.f64_assumed(&["rope_theta"], range, defaults.theta),
    }
}

fn dimension(text: &Fields<'_>, fields: Option<&Fields<'_>>, head_dim: u32, defaults: &RopeDefaults) -> Option<u32> {
    let (place, given) = match fields.filter(|f| f.has("partial_rotary_factor")) {
        Some(f) => (f, f.maybe_f64(&["partial_rotary_factor"], 0.0..=1.0)?),
        None => (text, text.maybe_f64(&["partial_rotary_factor"], 0.0..=1.0)?),
    };
    let partial = given.unwrap_or(defaults.partial);
    if !defaults.partial_allowed && partial != 1.0 {
        place.fault("partial_rotary_factor", format!("is {partial}, but this family rotates whole heads"), "1.0, or leave it out");
        return None;
    }
    let dim = (f64::from(head_dim) * partial) as u32;
    if dim == 0 || !dim.is_multiple_of(2) {
        let problem = format!("rotary embedding needs an even number of dimensions, but {partial} of a head of {head_dim} gives {dim}");
        let accepted = "sizes that give an even number, not zero";
        match given {
            Some(_) => place.fault("partial_rotary_factor", problem, accepted),
            None => text.fault(text.which(&["qk_rope_head_dim", "head_dim"]), problem, accepted),
        }
        return None;
    }
    Some(dim)
}

/// The scaling, and the factor of MLA's softmax scale.
fn scaling(text: &Fields<'_>, fields: &Fields<'_>, defaults: &RopeDefaults) -> Option<(RopeScaling, f64)> {
    let key = fields.which(&["rope_type", "type"]);
    let kind = match fields.maybe_str(&["rope_type", "type"])? {
        None => "default",
        Some(kind) if KNOWN.contains(&kind) => kind,
        Some(kind) if defaults.cost_only => {
            text.sink.warn(format!("rotary scaling {kind:?} is costed like the plain rotary embedding"));
            "default"
        }
        Some(kind) => {
            fields.fault(key, format!("is {kind:?}, a rotary scaling that is not implemented"), KNOWN.join(", "));
            return None;
        }
    };
    if kind == "default" {
        return Some((RopeScaling::None, 1.0));
    }
    let factor = factor(text, fields, kind);
    let mscale_all_dim = fields.f64_or(&["mscale_all_dim"], 0.0..=MAX_FACTOR, 0.0);
    let scaling = match kind {
        "linear" => RopeScaling::Linear { factor: factor? },
        // The base grows only where a sequence is longer than max_position_embeddings, and none here may be.
        "dynamic" => factor.map(|_| RopeScaling::None)?,
        "llama3" => llama3(text, fields, factor)?,
        _ => yarn(text, fields, factor, mscale_all_dim)?,
    };
    let score = match mscale_all_dim? {
        0.0 => 1.0,
        m => yarn_mscale(factor?, m) * yarn_mscale(factor?, m),
    };
    Some((scaling, score))
}

/// `factor`; a `null` one in YaRN is the ratio of the contexts.
fn factor(text: &Fields<'_>, fields: &Fields<'_>, kind: &str) -> Option<f64> {
    let accepted = "a number from 1 to 1000000";
    match fields.maybe_f64(&["factor"], 1.0..=MAX_FACTOR)? {
        Some(factor) => Some(factor),
        None if kind == "yarn" && fields.mentions("factor") => {
            let original = original_positions(text, fields)?;
            let longest = text.maybe_u64(&["max_position_embeddings"], 1..=MAX_POSITIONS)?.map_or(original, |m| m as f64);
            // May be below 1, where the original context is the longer one.
            Some(longest / original)
        }
        None => {
            fields.fault("factor", format!("is missing, and {kind} scaling needs it"), accepted);
            None
        }
    }
}

/// Context of the original training; the whole context where the file does not say.
fn original_positions(text: &Fields<'_>, fields: &Fields<'_>) -> Option<f64> {
    let key = &["original_max_position_embeddings"];
    let range = 1.0..=MAX_POSITIONS as f64;
    // A value beside the rotary object has priority over one inside it, as in transformers.
    for place in [text, fields] {
        if let Some(positions) = place.maybe_f64(key, range.clone())? {
            return Some(positions);
        }
    }
    match text.maybe_u64(&["max_position_embeddings"], 1..=MAX_POSITIONS)? {
        Some(longest) => Some(fields.assume(&fields.path(key[0]), longest) as f64),
        None => {
            fields.fault(key[0], "is missing, and so is max_position_embeddings", "a number of positions");
            None
        }
    }
}

fn yarn(text: &Fields<'_>, fields: &Fields<'_>, factor: Option<f64>, mscale_all_dim: Option<f64>) -> Option<RopeScaling> {
    let original_positions = original_positions(text, fields);
    let mscale = fields.f64_or(&["mscale"], 0.0..=MAX_FACTOR, 0.0);
    let given = fields.maybe_f64(&["attention_factor"], 0.0..=MAX_FACTOR);
    // Zero counts as absent, as in transformers.
    let beta =
        |key: &str, default: f64| Some(fields.f64_or(&[key], 0.0..=MAX_FACTOR, default)?).map(|b| if b == 0.0 { default } else { b });
    let (beta_fast, beta_slow) = (beta("beta_fast", 32.0), beta("beta_slow", 1.0));
    let truncate = fields.bool_or(&["truncate"], true);
    if let (Some(fast), Some(slow)) = (beta_fast, beta_slow)
        && fast < slow
    {
        fields.fault("beta_fast", format!("is {fast}, less than beta_slow, which is {slow}"), "at least beta_slow");
    }
    let (factor, mscale, mscale_all_dim) = (factor?, mscale?, mscale_all_dim?);
    let attention_factor = match given? {
        Some(factor) => factor,
        None if mscale != 0.0 && mscale_all_dim != 0.0 => yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim),
        None => yarn_mscale(factor, 1.0),
    };
    Some(RopeScaling::Yarn {
        factor,
        original_positions: original_positions?,
        beta_fast: beta_fast?,
        beta_slow: beta_slow?,
        attention_factor,
        truncate: truncate?,
    })
}

fn llama3(text: &Fields<'_>, fields: &Fields<'_>, factor: Option<f64>) -> Option<RopeScaling> {
    let original_positions = original_positions(text, fields);
    let frequency = |key: &'static str| {
        let value = fields.maybe_f64(&[key], 1e-6..=MAX_FACTOR)?;
        if value.is_none() {
            fields.fault(key, "is missing, and llama3 scaling needs it", "a number above 0");
        }
        value
    };
    let (low, high) = (frequency("low_freq_factor"), frequency("high_freq_factor"));
    if let (Some(low), Some(high)) = (low, high)
        && high < low
    {
        fields.fault("high_freq_factor", format!("is {high}, less than low_freq_factor, which is {low}"), "at least low_freq_factor");
    }
    Some(RopeScaling::Llama3 { factor: factor?, original_positions: original_positions?, low_freq_factor: low?, high_freq_factor: high? })
}
