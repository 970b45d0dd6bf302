//! What is asked: a launch command for an engine, on a machine, with an environment.

use crate::version::Version;
use serde_json::Value;
use std::collections::BTreeMap;

/// A serving engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Engine {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
}

impl Engine {
    /// Name on the command line and in case files.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Sglang => "sglang",
            Engine::Vllm => "vllm",
        }
    }
    /// Name as its authors write it.
    pub fn title(self) -> &'static str {
        match self {
            Engine::Sglang => "SGLang",
            Engine::Vllm => "vLLM",
        }
    }
}

/// A machine in words, as people and case files describe it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HardwareText {
    /// The GPU: `NVIDIA RTX PRO 6000 Blackwell (SM120)`.
    pub gpu: String,
    /// GPUs, all hosts together.
    pub count: Option<u32>,
    /// Memory of one GPU, GiB.
    pub memory_gib: Option<f64>,
    /// Links: `PCIe Gen5, no NVLink`.
    pub interconnect: String,
    /// CUDA version.
    pub cuda: Option<String>,
    /// Driver version.
    pub driver: Option<String>,
    /// Every other field as it stands.
    pub other: BTreeMap<String, Value>,
}

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The engine.
    pub engine: Engine,
    /// Its version.
    pub version: Version,
    /// The model in words, where the question names it beside the command.
    pub model: String,
    /// The machine.
    pub hardware: HardwareText,
    /// The command as pasted.
    pub command: String,
    /// The model's folder, where the command names one that is at hand.
    pub folder: Option<crate::catalog::Folder>,
    /// Environment variables beyond those in the command.
    pub env: BTreeMap<String, String>,
    /// Figures of the model, where no configuration is at hand.
    pub model_facts: BTreeMap<String, Value>,
    /// What was taken for granted, or left alone, when the question was read.
    pub assumptions: Vec<String>,
}
