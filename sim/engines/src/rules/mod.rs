//! Rules of a launch: what must hold between arguments, model and machine. One row a kind of fault, with the versions in which it exists.

mod checkpoint;
mod divisibility;
mod experts;
mod kernels;
mod peers;
mod slow;
pub mod toolkit;
mod versions;

use crate::command::Command;
use crate::finding::Finding;
use crate::hardware::Hardware;
use crate::model::Model;
use crate::question::Engine;
use crate::settings::Settings;
use crate::version::Range;

/// All that a rule may look at.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The command.
    pub command: &'a Command,
    /// The launch after defaults and rewrites.
    pub settings: &'a Settings,
    /// The model.
    pub model: &'a Model,
    /// The machine.
    pub hardware: &'a Hardware,
}

/// A rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its name, as [`Finding::invariant`] has it.
    pub name: &'static str,
    /// The engine, or both.
    pub engine: Option<Engine>,
    /// Versions in which it holds.
    pub range: Range,
    /// Where it was read or reported.
    pub source: &'static str,
    /// Finds what breaks it.
    pub check: fn(&Launch<'_>) -> Vec<Finding>,
}

/// Every rule, in the order of their files.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    [versions::RULES, toolkit::RULES, checkpoint::RULES, divisibility::RULES, experts::RULES, kernels::RULES, peers::RULES, slow::RULES]
        .into_iter()
        .flatten()
}

/// What breaks a rule in this launch.
pub fn broken(launch: &Launch<'_>) -> Vec<Finding> {
    let engine = launch.settings.engine;
    let holds = |rule: &&Rule| rule.engine.is_none_or(|e| e == engine) && rule.range.contains(&launch.settings.version);
    let mut out = Vec::new();
    for rule in rules().filter(holds) {
        for mut finding in (rule.check)(launch) {
            if finding.source.is_empty() {
                finding.source = rule.source.to_owned();
            }
            out.push(finding);
        }
    }
    out
}

/// Whether the engine's own peer all-reduce is really used in this launch.
pub fn uses_custom_all_reduce(launch: &Launch<'_>) -> bool {
    peers::custom_all_reduce(launch)
}

impl Launch<'_> {
    /// Architecture, 0 where it is not known.
    pub fn sm(&self) -> u32 {
        self.hardware.sm.unwrap_or(0)
    }
    /// Whether the model's class begins with one of these names.
    pub fn class_is(&self, names: &[&str]) -> bool {
        self.model.class.as_deref().is_some_and(|class| names.iter().any(|n| class.starts_with(n)))
    }
    /// Whether a switch is on.
    pub fn on(&self, flag: &str) -> bool {
        self.settings.flag(flag).is_some_and(|v| !matches!(v.to_lowercase().as_str(), "false" | "0" | "no"))
    }
    /// Whether the description of the machine has this word, whatever the case; `_` in it stands for any separator.
    pub fn described(&self, word: &str) -> bool {
        let text = self.hardware.words.join(" ");
        word.split('_').all(|w| text.contains(w))
    }
    /// Weights are stored in one of these schemes, or quantized to it on the way.
    pub fn scheme(&self, names: &[&str]) -> bool {
        names.contains(&self.model.weights.method.as_str()) || self.settings.quantization.as_deref().is_some_and(|q| names.contains(&q))
    }
    /// The routed experts are stored in one of these schemes, or quantized to it on the way.
    pub fn expert_scheme(&self, names: &[&str]) -> bool {
        crate::backends::moe_scheme(self.model, self.settings, names)
    }
    /// Name of the flag that sets the tensor-parallel size.
    pub fn tp_flag(&self) -> &'static str {
        match self.settings.engine {
            Engine::Sglang => "--tp-size",
            Engine::Vllm => "--tensor-parallel-size",
        }
    }
    /// Tensor-parallel sizes below the given one, and some powers of two, largest first.
    pub fn smaller_tps(&self) -> Vec<u32> {
        (1..self.settings.tp).rev().collect()
    }
    /// How many GPUs of a host `CUDA_VISIBLE_DEVICES` lists; `None` where it is not set, or stands for something that is not known.
    pub fn listed_gpus(&self) -> Option<u32> {
        let list = self.settings.env("CUDA_VISIBLE_DEVICES").filter(|list| !crate::command::is_placeholder(list))?;
        u32::try_from(list.split(',').filter(|d| !d.trim().is_empty()).count()).ok()
    }
    /// Ranks on one host.
    pub fn ranks_per_host(&self) -> u32 {
        (self.settings.world() / self.settings.nodes.max(1)).max(1)
    }
}
