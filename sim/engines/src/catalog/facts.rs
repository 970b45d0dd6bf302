//! A question's own figures.

use crate::model::{AttentionKind, Model};
use serde_json::Value;
use std::collections::BTreeMap;

/// Largest length, count or width that is taken: products of three stay within 64 bits.
const MOST: u64 = 1_000_000;

/// Sets every figure of the question; unknown names stay in [`Model::given`].
pub(super) fn apply(model: &mut Model, facts: &BTreeMap<String, Value>) {
    for (name, value) in facts {
        if let Some(n) = value.as_f64().filter(|n| n.is_finite()) {
            model.given.insert(name.clone(), n);
        }
        if let Some(text) = value.as_str() {
            words(model, name, text);
        }
        if let (Some([rows, cols]), "quant_block" | "weight_block") = (value.as_array().map(Vec::as_slice), name.as_str()) {
            model.weights.block = rows.as_u64().zip(cols.as_u64());
        }
        let Some(n) = value.as_u64() else {
            reals(model, name, value);
            continue;
        };
        if n > MOST {
            model.assumptions.push(format!("{name} = {n} is not a length that a model can have, and is left out"));
            continue;
        }
        let field = match name.as_str() {
            "layers" => &mut model.layers,
            "hidden" => &mut model.hidden,
            "heads" => &mut model.heads,
            "kv_heads" => &mut model.kv_heads,
            "head_dim" => &mut model.head_dim,
            "kv_lora_rank" => &mut model.kv_lora,
            "rope_dim" => &mut model.rope_dim,
            "vocab" => &mut model.vocab,
            "experts" => &mut model.experts,
            "top_k" => &mut model.topk,
            "moe_intermediate" => &mut model.moe_intermediate,
            "dense_intermediate" => &mut model.dense_intermediate,
            "dense_layers" => &mut model.dense_layers,
            "sliding_window" => &mut model.sliding_window,
            "sliding_layers" => &mut model.sliding_layers,
            "bytes_per_token_layer_fp8" => &mut model.kv_bytes_per_token_layer_fp8,
            "group_size" => &mut model.weights.group,
            "weight_block" => {
                model.weights.block = Some((n, n));
                continue;
            }
            _ => {
                reals(model, name, value);
                continue;
            }
        };
        *field = Some(n);
    }
    if model.experts.is_some_and(|e| e > 0) {
        model.moe = true;
    }
    if model.kv_lora.is_some() && model.attention == AttentionKind::Gqa {
        model.attention = AttentionKind::Mla;
    }
    disagree(model, facts);
}

fn reals(model: &mut Model, name: &str, value: &Value) {
    let Some(n) = value.as_f64().filter(|n| n.is_finite() && *n > 0.0) else { return };
    match name {
        "active_b" => model.active_params_b = Some(n),
        "total_b" => model.total_params_b = Some(n),
        "checkpoint_gib" => model.checkpoint_gib = Some(n),
        _ => {}
    }
}

fn words(model: &mut Model, name: &str, text: &str) {
    if matches!(name, "quant" | "quantization")
        && let Some(scheme) = super::quantize::said(&super::names::normalized(text)).scheme
        && model.weights.method != scheme
    {
        model.weights = super::quantize::scheme(scheme, scheme == "mxfp4");
        if let Some(spec) = &mut model.spec {
            super::quantize::requantize(spec, &model.weights);
        }
    }
}

/// A built-in configuration that the question contradicts is of another model of that name: the question's figures remain.
fn disagree(model: &mut Model, facts: &BTreeMap<String, Value>) {
    let Some(spec) = &model.spec else { return };
    let differs =
        |name: &str, known: Option<u64>| facts.get(name).and_then(Value::as_u64).zip(known).is_some_and(|(said, known)| said != known);
    let layers = u64::try_from(spec.layers.len()).ok();
    if differs("layers", layers) || differs("hidden", Some(spec.hidden)) {
        model.spec = None;
        model.assumptions.push("the question's figures differ from the configuration known under this name, and outrank it".to_owned());
    }
}
