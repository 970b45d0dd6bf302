//! The table of models, and how a line of it becomes a [`Model`].

use super::quantize;
use super::shape::Shape;
use crate::model::{AttentionKind, Model};
use moetwin_models::config::read_with_quantization;
use moetwin_models::spec::{Attention, Ffn};
use moetwin_models::{ModelSpec, zoo};
use serde_json::Value;
use std::sync::LazyLock;

/// The table as shipped.
const TABLE: &str = include_str!("models.txt");

/// A line of the table.
#[derive(Debug)]
pub(super) struct Row {
    /// Name, normalized.
    name: &'static str,
    /// `key=value`, and words alone.
    facts: Vec<(&'static str, &'static str)>,
    source: &'static str,
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    let row = |line: &'static str| -> Option<Row> {
        let mut parts = line.split(" | ");
        let (name, facts, source) = (parts.next()?, parts.next()?, parts.next()?);
        let facts = facts.split_whitespace().map(|f| f.split_once('=').unwrap_or((f, ""))).collect();
        Some(Row { name, facts, source })
    };
    lines.map(|line| row(line).unwrap_or_else(|| panic!("the shipped table of models has a broken line: {line}"))).collect()
});

/// The row with the longest name that occurs whole in a normalized text.
pub(super) fn find(text: &str) -> Option<&'static Row> {
    let whole = |row: &&Row| {
        text.match_indices(row.name).any(|(at, _)| {
            let outside = |c: Option<char>| c.is_none_or(|c| c == '-');
            outside(text[..at].chars().next_back()) && outside(text[at + row.name.len()..].chars().next())
        })
    };
    ROWS.iter().filter(whole).max_by_key(|row| row.name.len())
}

impl Row {
    fn text(&self, key: &str) -> Option<&'static str> {
        self.facts.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }
    fn count(&self, key: &str) -> Option<u64> {
        self.text(key)?.parse().ok()
    }
    fn real(&self, key: &str) -> Option<f64> {
        self.text(key)?.parse().ok()
    }
    /// The model of this row.
    pub(super) fn model(&self) -> Model {
        let mut model = match self.text("zoo") {
            Some(base) => self.like(base),
            None => self.own(),
        };
        model.name = self.name.to_owned();
        model.source = self.source.to_owned();
        if let Some(class) = self.text("class") {
            model.class = Some(class.to_owned());
        }
        model.shape.vision_gib = self.real("vision").unwrap_or(0.0);
        model.multimodal |= model.shape.vision_gib > 0.0;
        if model.multimodal && model.shape.vision.is_none() {
            model.shape.vision = Some((24, 1024));
        }
        if self.source.starts_with("taken as") {
            model.assumptions.push(format!("{} is {}", self.name, self.source));
        }
        if let Some(scheme) = self.text("scheme") {
            self.store(&mut model, scheme);
        }
        model
    }

    /// What published checkpoints of this model in a scheme are like: `fp8=channel` has scales per output channel instead of blocks, `fp8=tensor` one a tensor,
    /// `nvfp4=w4a16` leaves activations in 16 bit.
    pub(super) fn refine(&self, model: &mut Model) {
        let scales = self.text("fp8").filter(|_| model.weights.method == "fp8");
        if let Some(whole) = scales {
            model.weights.block = None;
            model.weights.checkpoint_method = Some(if whole == "tensor" { "modelopt" } else { "compressed-tensors" }.to_owned());
        }
        if self.text("nvfp4") == Some("w4a16") && model.weights.method == "nvfp4" {
            model.weights.weight_only = true;
            // Weight-only checkpoints take attention along: two 16 GB cards hold Qwen3.6-35B with 184,141 tokens, which 16-bit attention would not leave.
            if let Some(spec) = &mut model.spec {
                quantize::requantize(spec, &model.weights);
            }
        }
    }

    fn store(&self, model: &mut Model, scheme: &str) {
        let (experts, rest) = scheme.split_once('/').unwrap_or((scheme, scheme));
        if let Some((method, group)) = scheme.split_once("-experts-") {
            model.weights = quantize::scheme(method, true);
            model.weights.group = group.parse().ok();
        } else {
            model.weights = quantize::scheme(rest, false);
            model.shape.experts_method = (experts != rest).then(|| experts.to_owned());
        }
        if let Some(spec) = &mut model.spec {
            quantize::requantize(spec, &model.weights);
        }
    }

    /// A built-in configuration, some of its keys changed.
    fn like(&self, base: &str) -> Model {
        let built_in = zoo::find(base).unwrap_or_else(|| panic!("{base} of the table of models is not built in"));
        let keys: Vec<&(&str, &str)> = self.facts.iter().filter(|(k, _)| k.contains('_') && !k.starts_with("eager")).collect();
        let config = if keys.is_empty() { built_in.config.to_owned() } else { changed(built_in.config, &keys) };
        let spec = read_with_quantization(&config, built_in.quantization, self.name)
            .unwrap_or_else(|error| panic!("{} of the table of models cannot be read: {error}", self.name));
        let raw: Value = serde_json::from_str(&config).unwrap_or_default();
        of_spec(spec, &raw)
    }

    fn own(&self) -> Model {
        let full = self.count("full");
        let kind = self.text("kind").unwrap_or("gqa");
        let experts = self.count("E");
        let width = self.count("I");
        Model {
            attention: match kind {
                "mla" => AttentionKind::Mla,
                "dsa" | "v4" => AttentionKind::SparseMla,
                "hybrid" => AttentionKind::HybridLinear,
                _ => AttentionKind::Gqa,
            },
            moe: experts.is_some(),
            layers: self.count("L"),
            hidden: self.count("H"),
            heads: self.count("heads"),
            kv_heads: self.count("kv"),
            head_dim: self.count("hd"),
            kv_lora: self.count("lora"),
            rope_dim: self.count("rope"),
            vocab: self.count("vocab"),
            experts,
            topk: self.count("k"),
            shared_experts: self.count("shared").zip(width).map(|(shared, width)| shared / width.max(1)),
            moe_intermediate: width,
            dense_intermediate: self.count("dI"),
            dense_layers: self.count("dL"),
            linear_heads: self.count("lheads"),
            full_attention_layers: full,
            sliding_window: self.count("win"),
            sliding_layers: self.count("wl"),
            max_positions: self.count("pos"),
            mtp_layers: self.count("mtp"),
            total_params_b: self.real("total"),
            active_params_b: self.real("active"),
            checkpoint_gib: self.real("checkpoint"),
            shape: self.shape(),
            ..Model::default()
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            attention_m: self.real("attnM").map(|m| (m, self.real("attnR").unwrap_or(0.0))),
            linear_m: self.real("linM"),
            linear_value_heads: self.count("lheads"),
            tied: self.text("tied").is_some(),
            table_gib: self.real("table").unwrap_or(0.0),
            compressed: self.count("c4").zip(self.count("c128")),
            indexer_dim: self.count("indexer"),
            full_heads: self.count("fullkv").zip(self.count("fullhd")),
            expert_hidden: self.count("eH"),
            ungated: self.text("ungated").is_some(),
            dense_beside_experts: self.text("both").is_some(),
            eager_vision: self.text("eager_vision").is_some(),
            widened_m: self.real("woM").unwrap_or(0.0),
            ..Shape::default()
        }
    }
}

/// A configuration with some keys changed. Lists of layer kinds are cut to the number of layers.
fn changed(config: &str, keys: &[&(&str, &str)]) -> String {
    let mut root: Value = serde_json::from_str(config).unwrap_or_default();
    let place = if root.get("text_config").is_some() { &mut root["text_config"] } else { &mut root };
    for (key, value) in keys {
        place[*key] = value.parse::<u64>().map_or_else(|_| Value::from(*value), Value::from);
    }
    if let Some(layers) = place.get("num_hidden_layers").and_then(Value::as_u64) {
        for list in ["layer_types", "mlp_layer_types"] {
            if let Some(types) = place.get_mut(list).and_then(Value::as_array_mut) {
                types.truncate(usize::try_from(layers).unwrap_or(usize::MAX));
            }
        }
    }
    root.to_string()
}

/// The figures of a configuration.
pub(super) fn of_spec(spec: ModelSpec, raw: &Value) -> Model {
    let text = raw.get("text_config").unwrap_or(raw);
    let first = |keys: &[&str]| keys.iter().find_map(|k| text.get(*k).or_else(|| raw.get(*k)).and_then(Value::as_u64));
    let mut model = Model {
        class: Some(spec.architecture.clone()),
        multimodal: raw.get("vision_config").is_some(),
        layers: u64::try_from(spec.layers.len()).ok(),
        hidden: Some(spec.hidden),
        vocab: Some(spec.vocab),
        max_positions: Some(spec.max_positions),
        mtp_layers: first(&["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"]),
        total_params_b: Some(spec.total_parameters() as f64 / 1e9),
        active_params_b: Some(spec.active_parameters() as f64 / 1e9),
        ..Model::default()
    };
    let (mut linear, mut windowed, mut full) = (0, 0, 0);
    for layer in &spec.layers {
        match &layer.attention {
            Attention::Mla(a) => {
                full += 1;
                model.attention = if a.sparse_topk.is_some() { AttentionKind::SparseMla } else { AttentionKind::Mla };
                model.heads = Some(u64::from(a.heads));
                model.kv_heads = Some(u64::from(a.heads));
                model.kv_lora = Some(u64::from(a.kv_lora));
                model.rope_dim = Some(u64::from(a.rope_dim));
                model.shape.indexer_dim = a.sparse_topk.map(|_| first(&["index_head_dim"]).unwrap_or(128));
            }
            Attention::Gqa(a) => {
                model.heads = Some(u64::from(a.heads));
                model.kv_heads = Some(u64::from(a.kv_heads));
                model.head_dim = Some(u64::from(a.head_dim));
                model.sinks |= a.sinks;
                match a.window {
                    Some(window) => {
                        windowed += 1;
                        model.sliding_window = Some(u64::from(window));
                    }
                    None => full += 1,
                }
            }
            Attention::Linear(a) => {
                linear += 1;
                model.linear_heads = Some(u64::from(a.value_heads));
                model.shape.linear_value_heads = Some(u64::from(a.value_heads));
            }
        }
        match &layer.ffn {
            Ffn::Dense(d) => {
                model.dense_layers = Some(model.dense_layers.unwrap_or(0) + 1);
                model.dense_intermediate = Some(d.intermediate);
            }
            Ffn::Moe(m) => {
                model.moe = true;
                model.experts = Some(u64::from(m.experts));
                model.topk = Some(u64::from(m.topk));
                model.moe_intermediate = Some(m.intermediate);
                model.shared_experts = m.shared.as_ref().map(|s| s.intermediate / m.intermediate.max(1));
            }
        }
    }
    if linear > 0 {
        model.attention = AttentionKind::HybridLinear;
    }
    if linear > 0 || windowed > 0 {
        model.full_attention_layers = Some(full);
    }
    model.sliding_layers = (windowed > 0).then_some(windowed);
    model.shape.indexer_heads = model.shape.indexer_dim.and(first(&["index_n_heads"]));
    model.shape.vision = raw.get("vision_config").map(|v| vision_fields(v, &spec.architecture));
    model.router_weight_on_input = spec.model_type.starts_with("llama4");
    model.shape.tied = spec.tied_embeddings;
    model.spec = Some(spec);
    model
}

/// What SGLang reads of a vision configuration: 24 layers of 1024 where a field is missing; Kimi's class brings 27 of 1152.
fn vision_fields(config: &Value, class: &str) -> (u64, u64) {
    let (layers, width) = if class.starts_with("Kimi") { (27, 1152) } else { (24, 1024) };
    let field = |key: &str| config.get(key).and_then(Value::as_u64);
    (field("num_hidden_layers").unwrap_or(layers), field("hidden_size").unwrap_or(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_can_be_read_and_has_a_source() {
        for row in ROWS.iter() {
            let model = row.model();
            assert!(!row.source.is_empty() && model.layers.is_some_and(|l| l > 0), "{}", row.name);
            assert!(find(row.name).is_some_and(|found| found.name == row.name), "{}", row.name);
        }
    }
}
