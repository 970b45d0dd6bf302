//! Model configurations.

use crate::check_reason;
use moetwin_models::{BuildOptions, DType, Deployment, Phase, Step, config, plan};

/// Any bytes as a `config.json`: rejected with faults that each say what is wrong and point into the text, or a model whose figures
/// are consistent and whose forward pass can be planned, whole and split in two, or is refused with a reason.
pub fn check_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match config::read(text, "input") {
        Err(e) => {
            assert!(!e.faults.is_empty(), "a rejection without a fault");
            check_reason(&e.to_string());
            for fault in &e.faults {
                check_reason(&fault.problem);
                if let Some(p) = fault.position {
                    let line = text.split('\n').nth(p.line.wrapping_sub(1)).unwrap_or_else(|| panic!("{fault}: no line {}", p.line));
                    assert!((1..=line.chars().count() + 1).contains(&p.column), "{fault}: line {} has no column {}", p.line, p.column);
                }
            }
        }
        Ok(spec) => {
            assert!(!spec.layers.is_empty() && spec.hidden > 0 && spec.vocab > 0);
            let (total, active) = (spec.total_parameters(), spec.active_parameters());
            assert!(active <= total, "{active} of {total} parameters are active");
            assert!(spec.weight_bytes() >= total / 2, "fewer than half a byte a parameter");
            assert!(spec.kv_bytes_per_token(DType::Fp8) <= spec.kv_bytes_per_token(DType::Bf16));
            // The graph grows with layers only; a few tell as much as many.
            let mut spec = spec;
            spec.layers.truncate(4);
            for (phase, tp) in [(Phase::Decode, 1), (Phase::Prefill, 1), (Phase::Decode, 2)] {
                let deployment = Deployment { tp, ..Deployment::default() };
                match plan(&spec, &Step::uniform(phase, 2, 3), &deployment, &BuildOptions::default()) {
                    Ok(graph) => assert!(graph.output("logits").is_some()),
                    Err(e) => check_reason(&e.to_string()),
                }
            }
        }
    }
}
