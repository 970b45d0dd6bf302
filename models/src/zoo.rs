//! Configurations of known models, built in. Their sources are named in NOTICE.

use crate::config::{self, ConfigError};
use crate::spec::ModelSpec;
use thiserror::Error;

/// A built-in configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZooModel {
    /// Name on the command line.
    pub name: &'static str,
    /// Identifier on the Hugging Face hub.
    pub hub_id: &'static str,
    /// Text of `config.json`.
    pub config: &'static str,
    /// Text of `hf_quant_config.json`, where the model has one.
    pub quantization: Option<&'static str>,
}

/// A name that the zoo does not have, or a built-in file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ZooError {
    /// No model of that name.
    #[error("{name:?} is not a built-in model (accepted: {accepted})")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// Every short name.
        accepted: String,
    },
    /// The file is faulty.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

macro_rules! model {
    ($name:literal, $org:literal, $repo:literal) => {
        model!($name, $org, $repo, None)
    };
    ($name:literal, $org:literal, $repo:literal, hf_quant_config) => {
        model!($name, $org, $repo, Some(include_str!(concat!("../data/configs/", $org, "__", $repo, ".hf_quant_config.json"))))
    };
    ($name:literal, $org:literal, $repo:literal, $quantization:expr) => {
        ZooModel {
            name: $name,
            hub_id: concat!($org, "/", $repo),
            config: include_str!(concat!("../data/configs/", $org, "__", $repo, ".json")),
            quantization: $quantization,
        }
    };
}

/// Sorted by name.
const MODELS: &[ZooModel] = &[
    model!("deepseek-r1", "deepseek-ai", "DeepSeek-R1"),
    model!("deepseek-v2-lite", "deepseek-ai", "DeepSeek-V2-Lite"),
    model!("deepseek-v3", "deepseek-ai", "DeepSeek-V3"),
    model!("deepseek-v3.2", "deepseek-ai", "DeepSeek-V3.2"),
    model!("glm-5-nvfp4", "nvidia", "GLM-5-NVFP4", hf_quant_config),
    model!("kimi-k2", "moonshotai", "Kimi-K2-Instruct"),
    model!("kimi-k2.5", "moonshotai", "Kimi-K2.5"),
    model!("kimi-k2.5-nvfp4", "nvidia", "Kimi-K2.5-NVFP4"),
];

/// Every built-in model, sorted by name.
pub fn list() -> &'static [ZooModel] {
    MODELS
}

/// The model of a short name or a hub id, whatever the case.
pub fn find(name: &str) -> Option<&'static ZooModel> {
    MODELS.iter().find(|m| m.name.eq_ignore_ascii_case(name) || m.hub_id.eq_ignore_ascii_case(name))
}

/// Reads a built-in model. Its [`ModelSpec::name`] is the hub id.
///
/// # Errors
/// A name that is not built in; the error lists those that are.
pub fn spec(name: &str) -> Result<ModelSpec, ZooError> {
    let Some(model) = find(name) else {
        let accepted = MODELS.iter().map(|m| m.name).collect::<Vec<_>>().join(", ");
        return Err(ZooError::Unknown { name: name.into(), accepted });
    };
    Ok(config::read_with_quantization(model.config, model.quantization, model.hub_id)?)
}
