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
    model!("glm-4.5-air", "zai-org", "GLM-4.5-Air"),
    model!("glm-5-nvfp4", "nvidia", "GLM-5-NVFP4", hf_quant_config),
    model!("gpt-oss-120b", "openai", "gpt-oss-120b"),
    model!("gpt-oss-20b", "openai", "gpt-oss-20b"),
    model!("granite-3.1-3b-a800m", "ibm-granite", "granite-3.1-3b-a800m"),
    model!("kimi-k2", "moonshotai", "Kimi-K2-Instruct"),
    model!("kimi-k2.5", "moonshotai", "Kimi-K2.5"),
    model!("kimi-k2.5-nvfp4", "nvidia", "Kimi-K2.5-NVFP4"),
    model!("llama-4-maverick", "meta-llama", "Llama-4-Maverick-17B-128E-Instruct"),
    model!("llama-4-scout", "meta-llama", "Llama-4-Scout-17B-16E-Instruct"),
    model!("minimax-m2", "MiniMaxAI", "MiniMax-M2"),
    model!("minimax-m2.5", "MiniMaxAI", "MiniMax-M2.5"),
    model!("minimax-m2.5-nvfp4", "nvidia", "MiniMax-M2.5-NVFP4", hf_quant_config),
    model!("mixtral-8x22b", "mistralai", "Mixtral-8x22B-v0.1"),
    model!("mixtral-8x7b", "mistralai", "Mixtral-8x7B-v0.1"),
    model!("olmoe-1b-7b", "allenai", "OLMoE-1B-7B-0924"),
    model!("phi-3.5-moe", "microsoft", "Phi-3.5-MoE-instruct"),
    model!("qwen1.5-moe-a2.7b", "Qwen", "Qwen1.5-MoE-A2.7B"),
    model!("qwen2-57b-a14b", "Qwen", "Qwen2-57B-A14B"),
    model!("qwen3-235b-a22b", "Qwen", "Qwen3-235B-A22B"),
    model!("qwen3-235b-a22b-fp8", "Qwen", "Qwen3-235B-A22B-FP8"),
    model!("qwen3-30b-a3b", "Qwen", "Qwen3-30B-A3B"),
    model!("qwen3-30b-a3b-fp8", "Qwen", "Qwen3-30B-A3B-FP8"),
    model!("qwen3-coder-480b-a35b", "Qwen", "Qwen3-Coder-480B-A35B-Instruct"),
    model!("qwen3-next-80b-a3b", "Qwen", "Qwen3-Next-80B-A3B-Instruct"),
    model!("qwen3.5-397b-a17b", "Qwen", "Qwen3.5-397B-A17B"),
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
