//! A model from the configuration in its folder.

use super::{quantize, table};
use crate::model::Model;
use moetwin_models::config::{ConfigError, read_with_quantization};
use serde_json::Value;

/// The files of a model's folder that say what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folder {
    /// The folder as the command names it.
    pub name: String,
    /// Text of `config.json`.
    pub config: String,
    /// Text of `hf_quant_config.json`, where there is one.
    pub quantization: Option<String>,
    /// Names of the other `.json` files.
    pub others: Vec<String>,
}

/// Files in which quantized checkpoints say how they are stored, where `config.json` does not.
const QUANTIZATION_FILES: &[&str] = &["quant_config.json", "quantize_config.json"];

pub(super) fn of(folder: &Folder) -> Model {
    let raw: Value = serde_json::from_str(&folder.config).unwrap_or_default();
    let separate: Value = folder.quantization.as_deref().and_then(|q| serde_json::from_str(q).ok()).unwrap_or_default();
    let text = raw.get("text_config").unwrap_or(&raw);
    let config = raw.get("quantization_config").or_else(|| text.get("quantization_config")).filter(|q| q.is_object());
    let method = config.and_then(|q| q.get("quant_method")).and_then(Value::as_str);
    let read = read_with_quantization(&folder.config, folder.quantization.as_deref(), &folder.name);
    let mut model = read.map_or_else(|error| plain(&raw, text, &error), |spec| table::of_spec(spec, &raw));
    model.name.clone_from(&folder.name);
    model.source = "config.json of the folder".to_owned();
    let said = method.and_then(|m| ["awq", "gptq", "fp8", "mxfp4"].into_iter().find(|known| *known == m)).filter(|_| model.spec.is_none());
    quantize::checkpoint(&mut model, said);
    if let Some(method) = method {
        model.weights.checkpoint_method = Some(method.to_owned());
        if matches!(method, "awq" | "gptq") {
            model.weights.method = method.to_owned();
        }
    }
    let elsewhere = separate.is_object() || folder.others.iter().any(|f| QUANTIZATION_FILES.contains(&f.as_str()));
    model.unquantized = raw.is_object() && config.is_none() && !elsewhere;
    model
}

/// The figures that every configuration has under the same names, of one that no reader here takes.
fn plain(raw: &Value, text: &Value, error: &ConfigError) -> Model {
    let count = |keys: &[&str]| keys.iter().find_map(|k| text.get(*k)).and_then(Value::as_u64).filter(|n| (1..=1_000_000).contains(n));
    let first = error.faults.first().map(|f| format!(": {} {}", f.path, f.problem)).unwrap_or_default();
    let experts = count(&["num_experts", "n_routed_experts", "num_local_experts"]);
    Model {
        class: raw.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str).map(str::to_owned),
        moe: experts.is_some_and(|n| n > 1),
        layers: count(&["num_hidden_layers"]),
        hidden: count(&["hidden_size"]),
        heads: count(&["num_attention_heads"]),
        kv_heads: count(&["num_key_value_heads", "num_attention_heads"]),
        vocab: count(&["vocab_size"]),
        experts,
        topk: count(&["num_experts_per_tok"]),
        moe_intermediate: experts.and_then(|_| count(&["moe_intermediate_size"])),
        assumptions: vec![format!("of config.json only heads, layers and experts are read{first}")],
        ..Model::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn folder(config: &Value) -> Model {
        of(&Folder { name: "./m".into(), config: config.to_string(), ..Folder::default() })
    }

    fn mixtral() -> Value {
        json!({
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 160,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "torch_dtype": "bfloat16", "tie_word_embeddings": false,
        })
    }

    #[test]
    fn a_configuration_gives_every_figure() {
        let model = folder(&mixtral());
        assert_eq!((model.heads, model.kv_heads, model.experts, model.layers), (Some(4), Some(2), Some(8), Some(2)));
        assert_eq!(model.class.as_deref(), Some("MixtralForCausalLM"));
        assert!(model.spec.is_some() && model.unquantized && model.weights.method == "bf16", "{:?}", model.assumptions);
    }

    #[test]
    fn a_configuration_that_no_reader_takes_still_gives_heads() {
        let mut config = mixtral();
        config["model_type"] = json!("of_tomorrow");
        config["quantization_config"] = json!({"quant_method": "awq", "bits": 4, "group_size": 128});
        let model = folder(&config);
        assert_eq!((model.heads, model.experts, model.spec.is_none()), (Some(4), Some(8), true));
        assert_eq!((model.weights.method.as_str(), model.unquantized), ("awq", false));
        assert!(model.assumptions.iter().any(|a| a.contains("of_tomorrow")), "{:?}", model.assumptions);
        assert!(folder(&json!("no object")).heads.is_none());
    }
}
