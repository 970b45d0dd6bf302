//! From a command to what the engine runs with: implicit defaults and rewrites, in the engine's own order.
//!
//! Each engine has a list of steps. A step sees what earlier ones left behind, may change it (and records that it did), and may find a
//! fault. The order matters: a check that runs before a rewrite sees the value as given, one behind it the rewritten value.

mod arguments;
mod sglang;
mod vllm;

pub use arguments::{argument_findings, model_findings};

use crate::command::Command;
use crate::finding::Finding;
use crate::hardware::Hardware;
use crate::model::Model;
use crate::question::Engine;
use crate::settings::{Graphs, Settings};
use crate::version::{Range, Version};
use std::collections::BTreeMap;

/// What resolution works on.
pub struct Draft<'a> {
    /// The command.
    pub command: &'a Command,
    /// The model.
    pub model: &'a Model,
    /// The machine.
    pub hardware: &'a Hardware,
    /// The launch as far as it is resolved.
    pub settings: Settings,
    /// Faults found on the way.
    pub findings: Vec<Finding>,
}

/// A default, a rewrite or a check of argument processing.
#[derive(Clone, Copy)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// Versions that have it.
    pub range: Range,
    /// Where it was read.
    pub source: &'static str,
    /// What it does.
    pub run: fn(&mut Draft<'_>),
}

/// Resolves a launch. Faults are of the phase `parse`, in the order in which the engine would find them.
pub fn resolve(
    command: &Command,
    env: &BTreeMap<String, String>,
    version: &Version,
    model: &Model,
    hardware: &Hardware,
) -> (Settings, Vec<Finding>) {
    let engine = version.engine;
    let mut draft = Draft { command, model, hardware, settings: blank(version, env, command), findings: Vec::new() };
    let steps = match engine {
        Engine::Sglang => sglang::STEPS,
        Engine::Vllm => vllm::STEPS,
    };
    for step in steps.iter().filter(|step| step.range.contains(version)) {
        let before = draft.findings.len();
        (step.run)(&mut draft);
        for finding in draft.findings[before..].iter_mut().filter(|f| f.source.is_empty()) {
            finding.source = step.source.to_owned();
        }
    }
    (draft.settings, draft.findings)
}

/// Every step of an engine, for documentation and tests.
pub fn steps(engine: Engine) -> &'static [Step] {
    match engine {
        Engine::Sglang => sglang::STEPS,
        Engine::Vllm => vllm::STEPS,
    }
}

fn blank(version: &Version, env: &BTreeMap<String, String>, command: &Command) -> Settings {
    let mut all = env.clone();
    all.extend(command.env.iter().map(|(k, v)| (k.clone(), v.clone())));
    let flags = command.given.iter().map(|g| (g.name.clone(), g.value.clone().unwrap_or_else(|| "true".to_owned()))).collect();
    Settings {
        engine: version.engine,
        version: version.clone(),
        tp: 1,
        pp: 1,
        dp: 1,
        dp_attention: false,
        ep: 1,
        moe_tp: 1,
        dense_tp: 1,
        dcp: 1,
        nodes: 1,
        a2a: "none".to_owned(),
        a2a_active: false,
        deepep_mode: "auto".to_owned(),
        eplb: false,
        redundant_experts: 0,
        attention_backend: String::new(),
        moe_backend: "auto".to_owned(),
        quantization: None,
        online_quantization: false,
        dtype: "auto".to_owned(),
        kv_dtype: "auto".to_owned(),
        page_size: 1,
        fraction_given: None,
        max_model_len: None,
        max_num_seqs: 0,
        max_num_seqs_given: false,
        max_batched_tokens: None,
        max_prefill_tokens: 16384,
        max_total_tokens: None,
        kv_cache_memory_bytes: None,
        cpu_offload_gib: 0.0,
        graphs: Graphs { enabled: true, ..Graphs::default() },
        speculative: None,
        disaggregation: None,
        custom_all_reduce: true,
        shared_experts_fusion: true,
        language_only: false,
        without_videos: false,
        flags,
        env: all,
        writes: Vec::new(),
        assumptions: Vec::new(),
    }
}

impl Draft<'_> {
    /// The number after a flag; one that is not a number is a fault of [`argument_findings`], so it counts as not given here.
    pub fn number(&self, flag: &str) -> Option<f64> {
        let text = self.settings.flag(flag)?;
        // vLLM's human-readable integers: 32k, 1M.
        let (digits, unit) = match text.chars().last()? {
            'k' => (&text[..text.len() - 1], 1e3),
            'K' => (&text[..text.len() - 1], 1024.0),
            'm' => (&text[..text.len() - 1], 1e6),
            'M' => (&text[..text.len() - 1], 1024.0 * 1024.0),
            _ => (text, 1.0),
        };
        digits.trim().parse::<f64>().ok().filter(|n| n.is_finite()).map(|n| n * unit)
    }
    /// A count after a flag, at least 1.
    pub fn count(&self, flag: &str) -> Option<u32> {
        self.number(flag).filter(|n| (1.0..=1e9).contains(n)).map(|n| n as u32)
    }
    /// Ranks after a flag; where the command has a placeholder or nothing for their number, all that the machine has.
    pub fn ranks(&self, flag: &str) -> Option<u32> {
        let open = self.settings.flag(flag).is_some_and(|value| value == "true" || crate::command::is_placeholder(value));
        if open { self.command.gpus.or(self.hardware.count) } else { self.count(flag) }
    }
    /// A length after a flag, at least 1.
    pub fn length(&self, flag: &str) -> Option<u64> {
        self.number(flag).filter(|n| (1.0..=1e15).contains(n)).map(|n| n as u64)
    }
    /// Whether a switch is on.
    pub fn on(&self, flag: &str) -> bool {
        self.settings.flag(flag).is_some_and(|v| !matches!(v.to_lowercase().as_str(), "false" | "0" | "no"))
    }
    /// The word after a flag.
    pub fn word(&self, flag: &str) -> Option<&str> {
        self.settings.flag(flag)
    }
    /// The JSON value after a flag.
    pub fn json(&self, flag: &str) -> Option<serde_json::Value> {
        self.settings.flag(flag).and_then(|text| serde_json::from_str(text).ok())
    }
    /// Architecture of the GPUs.
    pub fn sm(&self) -> u32 {
        self.hardware.sm.unwrap_or(0)
    }
    /// Whether the model's class begins with one of these names.
    pub fn class_is(&self, names: &[&str]) -> bool {
        self.model.class.as_deref().is_some_and(|class| names.iter().any(|n| class.starts_with(n)))
    }
}
