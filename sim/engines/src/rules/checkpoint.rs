//! What a flag asks of a checkpoint that does not have it.

use super::{Launch, Rule};
use crate::finding::{Finding, Fix, Kind, Phase};
use crate::question::Engine;
use crate::version::Range;

pub(super) const RULES: &[Rule] = &[Rule {
    name: "quantization_has_its_configuration",
    engine: None,
    range: Range::ALL,
    source: "get_quant_config of vLLM's and SGLang's model_loader/weight_utils.py; reported of vLLM 0.10.2 with an unquantized Qwen2.5",
    check: quantization,
}];

/// Methods that quantize nothing themselves: they read group and bits from the checkpoint.
const STORED: &[&str] = &["awq", "awq_marlin", "gptq", "gptq_marlin"];

fn quantization(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(method) = launch.settings.flag("--quantization").filter(|m| STORED.contains(m) && launch.model.unquantized) else {
        return Vec::new();
    };
    // vLLM looks when it makes its configuration, SGLang when it loads.
    let phase = if launch.settings.engine == Engine::Vllm { Phase::Parse } else { Phase::Load };
    let message = format!(
        "--quantization {method} reads how the checkpoint was quantized, and {} has no quantization configuration: its weights are stored as they are",
        launch.model.name
    );
    let finding = Finding::fails(phase, Kind::FlagConflict, "quantization_has_its_configuration", message).argument("--quantization");
    vec![finding.because(format!("ValueError: Cannot find the config file for {method}")).fix(Fix::remove("--quantization"))]
}
