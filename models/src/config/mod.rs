//! Reads a `config.json` into a [`ModelSpec`].
//!
//! Both dialects are read: `rope_scaling`, `torch_dtype` and flat fields as older files have them, `rope_parameters` and `dtype` of
//! transformers 5, and decoders nested in the `text_config` of a multimodal wrapper. Where a file is silent, the defaults of the
//! family's class in transformers 5.17 hold; those that decide the cost are named in [`ModelSpec::warnings`].
//! Every fault is found in one read, with its JSON path, its place and what would be right.

mod common;
mod deepseek;
mod error;
mod families;
mod fields;
mod gpt_oss;
mod gqa;
mod llama4;
mod pattern;
mod position;
mod quant;
mod qwen;
mod rope;
mod router;
mod vision;

pub use error::{ConfigError, Fault, Position};

use crate::dtype::WeightFormat;
use crate::spec::{Attention, Ffn, ModelSpec};
use common::{Base, Context};
use families::{FAMILIES, Family};
use fields::{Fields, Sink, Source, describe};
use quant::{Module, Scheme};
use serde_json::{Map, Value};

/// Weights of the largest model that is read; it keeps every later byte count within `u64`.
const MAX_WEIGHT_BYTES: u128 = 1 << 60;

/// The `model_type`s that can be read, in alphabetic order.
pub fn model_types() -> Vec<&'static str> {
    FAMILIES.iter().map(|f| f.model_type).collect()
}

/// Reads the text of a `config.json`; `name` names the model in reports and the file in errors.
///
/// # Errors
/// Every fault of the file: syntax, unknown `model_type` or quantization, missing, mistyped, out of range or contradictory fields.
pub fn read(text: &str, name: &str) -> Result<ModelSpec, ConfigError> {
    read_with_quantization(text, None, name)
}

/// The same, with the text of the `hf_quant_config.json` beside it. It counts where `config.json` has no `quantization_config`.
///
/// # Errors
/// As [`read`]; faults of the second text carry its file name.
pub fn read_with_quantization(text: &str, quantization: Option<&str>, name: &str) -> Result<ModelSpec, ConfigError> {
    let config = parse(text, name, Source::Config)?;
    let separate = quantization.map(|q| parse(q, name, Source::Quantization)).transpose()?;
    let sink = Sink::default();
    for (source, text) in [(Source::Config, Some(text)), (Source::Quantization, quantization)] {
        for parts in position::duplicates(text.unwrap_or_default(), 16) {
            sink.fault(source, parts, "stands twice in one object", "one value");
        }
    }
    let root = Fields::root(&config, Source::Config, &sink);
    let separate = separate.as_ref().map(|map| Fields::root(map, Source::Quantization, &sink));
    let spec = read_root(&root, separate.as_ref(), name, &sink);
    match spec {
        Some(spec) if sink.is_clean() => Ok(spec),
        _ => Err(sink.into_error(name, text, quantization)),
    }
}

fn parse(text: &str, name: &str, source: Source) -> Result<Map<String, Value>, ConfigError> {
    let file = if source == Source::Config { name } else { fields::QUANTIZATION_FILE };
    let fault = |position, problem: String| {
        let accepted = "a JSON object".into();
        ConfigError { name: name.into(), faults: vec![Fault { file: file.into(), path: String::new(), position, problem, accepted }] }
    };
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(fault(None, format!("is {}", describe(&other)))),
        Err(e) => {
            // serde_json appends the place, which has fields of its own here.
            let said = e.to_string();
            let problem = said.rsplit_once(" at line ").map_or(said.as_str(), |(problem, _)| problem);
            Err(fault(Some(position::of_syntax_error(text, e.line(), e.column())), problem.into()))
        }
    }
}

fn read_root(root: &Fields<'_>, separate: Option<&Fields<'_>>, name: &str, sink: &Sink) -> Option<ModelSpec> {
    let family = family(root)?;
    let nested = if family.wraps.is_empty() { None } else { nested(root, family)? };
    let text = nested.as_ref().unwrap_or(root);
    let base = Base::read(root, text, &family.defaults);
    let layers = base.as_ref().map_or(1, |b| b.layers);
    let scheme = quant::read(root, text, separate, family.prefix, layers);
    let readable = scheme.is_some();
    let ctx = Context {
        root,
        text,
        sink,
        base,
        scheme: scheme.unwrap_or_else(Scheme::none),
        defaults: &family.defaults,
        cost_only: family.cost_only,
    };
    let body = (family.read)(&ctx);
    let architecture = architecture(root, family)?;
    let model_type = text.maybe_str(&["model_type"])??;
    let head = ctx.scheme.format(Module::Head, "lm_head", ctx.plain());
    let (plain, mtp_layers) = (ctx.plain(), deepseek::mtp_layers(&ctx));
    let (base, body) = (ctx.base?, body?);
    if !readable || !sink.is_clean() {
        return None;
    }
    let spec = ModelSpec {
        name: name.into(),
        model_type: model_type.into(),
        architecture,
        hidden: base.hidden,
        vocab: base.vocab,
        tied_embeddings: base.tied,
        norm_eps: base.norm_eps,
        max_positions: base.max_positions,
        dtype: base.dtype,
        embedding_format: plain,
        layers: body.layers,
        tensor_prefix: family.prefix.into(),
        outside_graph: body.outside,
        warnings: Vec::new(),
        executable: !family.cost_only,
        mtp_layers,
        fused_inputs: 0,
    };
    finish(spec, head, root, sink)
}

/// Checks of the whole model, and its warnings.
fn finish(mut spec: ModelSpec, head: WeightFormat, root: &Fields<'_>, sink: &Sink) -> Option<ModelSpec> {
    let bytes = summary_bound(&spec);
    if bytes > MAX_WEIGHT_BYTES {
        root.fault(
            "num_hidden_layers",
            format!("and the other sizes make {bytes} bytes of weights"),
            format!("at most {MAX_WEIGHT_BYTES} bytes"),
        );
        return None;
    }
    if head != spec.embedding_format {
        sink.warn(format!("the head is stored as {}, but modelled as {}", head.name(), spec.embedding_format.name()));
        spec.executable = false;
    }
    if formats(&spec).any(|f| f == WeightFormat::Nvfp4) {
        sink.warn("nvfp4 weights are modelled for cost only: they cannot be loaded or executed");
        spec.executable = false;
    } else if !spec.executable {
        sink.warn(format!("{} is modelled for cost only: its values are not computed", spec.model_type));
    }
    spec.warnings = sink.take_warnings();
    Some(spec)
}

/// An upper bound of the weight bytes that cannot overflow: 8 bytes cover an element and its scales in every format.
fn summary_bound(spec: &ModelSpec) -> u128 {
    let hidden = u128::from(spec.hidden);
    let layer = |layer: &crate::spec::LayerSpec| {
        let attention: u128 = match &layer.attention {
            Attention::Mla(s) => {
                let head = u128::from(s.nope) + u128::from(s.rope_dim) + u128::from(s.v_dim);
                let latent = u128::from(s.q_lora.unwrap_or(0)) + u128::from(s.kv_lora) + u128::from(s.rope_dim);
                (hidden + latent) * (u128::from(s.heads) * 2 * head + latent)
            }
            Attention::Gqa(s) => hidden * u128::from(s.head_dim) * (3 * u128::from(s.heads) + 2 * u128::from(s.kv_heads)),
            Attention::Linear(s) => {
                let (key, value) = (u128::from(s.key_heads) * u128::from(s.key_dim), u128::from(s.value_heads) * u128::from(s.value_dim));
                (hidden + u128::from(s.conv_width)) * (2 * key + 5 * value)
            }
        };
        let ffn = match &layer.ffn {
            Ffn::Dense(s) => 3 * hidden * u128::from(s.intermediate),
            Ffn::Moe(s) => {
                let shared = s.shared.as_ref().map_or(0, |x| u128::from(x.intermediate));
                3 * (hidden + 1) * (u128::from(s.experts) * (u128::from(s.intermediate) + 1) + shared)
            }
        };
        attention + ffn + 8 * hidden
    };
    8 * (2 * hidden * u128::from(spec.vocab) + spec.layers.iter().map(layer).sum::<u128>())
}

/// Formats of all blocks.
fn formats(spec: &ModelSpec) -> impl Iterator<Item = WeightFormat> {
    spec.layers.iter().flat_map(|layer| {
        let attention = match &layer.attention {
            Attention::Mla(s) => s.format,
            Attention::Gqa(s) => s.format,
            Attention::Linear(s) => s.format,
        };
        let ffn = match &layer.ffn {
            Ffn::Dense(s) => [Some(s.format), None],
            Ffn::Moe(s) => [Some(s.format), s.shared.as_ref().map(|x| x.format)],
        };
        [Some(attention)].into_iter().chain(ffn).flatten()
    })
}

fn family(root: &Fields<'_>) -> Option<&'static Family> {
    let Some(model_type) = root.maybe_str(&["model_type"])? else {
        root.fault("model_type", "is missing", model_types().join(", "));
        return None;
    };
    let found = FAMILIES.iter().find(|f| f.model_type == model_type);
    if found.is_none() {
        root.fault("model_type", format!("is {model_type:?}, which is not known"), model_types().join(", "));
    }
    found
}

/// The decoder inside a wrapper.
fn nested<'a>(root: &Fields<'a>, family: &Family) -> Option<Option<Fields<'a>>> {
    let Some(text) = root.maybe_object("text_config")? else {
        root.fault("text_config", "is missing", "the configuration of the text decoder");
        return None;
    };
    match text.maybe_str(&["model_type"])? {
        Some(inner) if family.wraps.contains(&inner) => Some(Some(text)),
        other => {
            let problem = other.map_or("is missing".into(), |o| format!("is {o:?}"));
            text.fault("model_type", problem, family.wraps.join(", "));
            None
        }
    }
}

/// First entry of `architectures`.
fn architecture(root: &Fields<'_>, family: &Family) -> Option<String> {
    let names = root.maybe_strings("architectures")?;
    Some(names.and_then(|n| n.first().map(|s| (*s).to_string())).unwrap_or_else(|| family.architecture.into()))
}
