//! Which steps an engine replays from captured graphs where nobody says otherwise: decode steps, and prompts up to a size.

use crate::args::Engine;
use moetwin::engines::Version;
use moetwin::models::{Phase, Step};
use moetwin::sim::exec::Launcher;

/// New tokens up to which vLLM replays a step with prompts piece by piece: its default of `max_cudagraph_capture_size`, 512 (`CompilationConfig`).
/// Longer ones run the same compiled code, launched by the host; a kernel of it takes the host as long as one that no compiler saw
/// ([`Launcher::Framework`] has the measurement).
const VLLM_TOKENS: u64 = 512;
/// The same of SGLang: what it captures on H200 for Kimi-K2.7 (42 sizes up to 2048, sgl-project/sglang pull request 30889).
const SGLANG_TOKENS: u64 = 2048;
/// Since when SGLang does so unasked: on 17 March 2026 it was the default for models without images (sgl-project/sglang pull request 20747),
/// which the release of 23 February (0.5.9) did not have.
const SGLANG_SINCE: &str = "0.5.10";

/// How a step is launched: whether from a captured graph, and else by what.
pub(crate) fn launched(engine: Engine, version: Option<&str>, asked: Option<bool>, step: &Step) -> (bool, Launcher) {
    let framework = if engine == Engine::Native { Launcher::Native } else { Launcher::Framework };
    let new_tokens: u64 = step.sequences.iter().map(|s| u64::from(s.new)).sum();
    match (asked, step.phase, engine) {
        (Some(on), ..) => (on, framework),
        (None, Phase::Decode | Phase::Verify(_), _) | (None, _, Engine::Native) => (true, framework),
        (None, Phase::Prefill, Engine::Vllm) => (new_tokens <= VLLM_TOKENS, framework),
        (None, Phase::Prefill, Engine::Sglang) => {
            let version = Version::parse(moetwin::engines::Engine::Sglang, version.unwrap_or_default());
            (new_tokens <= SGLANG_TOKENS && version.at_least(SGLANG_SINCE), framework)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_captured_as_far_as_the_engine_captures_them() {
        let prompt = |tokens| Step::uniform(Phase::Prefill, 1, tokens);
        let captured = |engine, version, step: &Step| launched(engine, version, None, step).0;
        assert!(captured(Engine::Vllm, None, &prompt(512)) && !captured(Engine::Vllm, None, &prompt(513)));
        assert!(captured(Engine::Sglang, Some("0.5.10"), &prompt(2048)) && !captured(Engine::Sglang, None, &prompt(2049)));
        assert!(!captured(Engine::Sglang, Some("0.5.9"), &prompt(64)));
        assert!(captured(Engine::Native, None, &prompt(8192)));
        for engine in [Engine::Native, Engine::Vllm, Engine::Sglang] {
            assert!(captured(engine, Some("0.5.6"), &Step::uniform(Phase::Decode, 256, 100)));
            // What is asked for holds for every step.
            for step in [prompt(8192), Step::uniform(Phase::Decode, 1, 1)] {
                let by = |asked| launched(engine, None, Some(asked), &step);
                assert!(by(true).0 && !by(false).0);
                assert_eq!(by(false).1 == Launcher::Native, engine == Engine::Native);
            }
        }
    }
}
