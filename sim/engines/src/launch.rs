//! From a deployment to the command that launches it.

use crate::question::Engine;
use moetwin_models::{AllToAll, DType, Deployment};

/// The command that launches `model` as `deployment` says, for `batch` sequences; `None` where the engine has no such deployment.
///
/// SGLang: `--tp` counts the ranks of a stage, data-parallel attention and expert parallelism divide it, replicas are `--dp` without data-parallel
/// attention. vLLM: data-parallel attention is `--data-parallel-size` beside `--tensor-parallel-size`, experts are either all parallel or
/// not at all, and context parallelism has a flag.
pub fn launch_command(engine: Engine, model: &str, deployment: &Deployment, batch: u32, context: Option<u32>) -> Option<String> {
    let words = match engine {
        Engine::Sglang => sglang(deployment, batch, context)?,
        Engine::Vllm => vllm(deployment, batch, context)?,
    };
    let start = match engine {
        Engine::Sglang => format!("python -m sglang.launch_server --model-path {model}"),
        Engine::Vllm => format!("vllm serve {model}"),
    };
    Some(std::iter::once(start).chain(words).collect::<Vec<_>>().join(" "))
}

/// Tokens beside the context that a server must allow for: those of a step and some to generate.
const GENERATED: u32 = 1024;

fn sglang(d: &Deployment, batch: u32, context: Option<u32>) -> Option<Vec<String>> {
    if d.dcp > 1 || d.placement.is_some() || (d.replicas > 1 && d.dp_attention > 1) {
        return None;
    }
    let mut words = vec![format!("--tp-size {}", d.tp)];
    let mut add = |given: bool, word: String| {
        if given {
            words.push(word);
        }
    };
    add(d.pp > 1, format!("--pp-size {}", d.pp));
    add(d.dp_attention > 1, format!("--dp-size {} --enable-dp-attention", d.dp_attention));
    add(d.replicas > 1, format!("--dp-size {}", d.replicas));
    add(d.ep > 1, format!("--ep-size {}", d.ep));
    match d.a2a {
        AllToAll::None => {}
        AllToAll::Flashinfer => add(true, "--moe-a2a-backend flashinfer".into()),
        AllToAll::Deepep => add(true, "--moe-a2a-backend deepep".into()),
        // The engine has no all-to-all over NCCL.
        AllToAll::Nccl => return None,
    }
    add(d.kv_dtype == DType::Fp8, "--kv-cache-dtype fp8_e4m3".into());
    add(true, format!("--cuda-graph-max-bs {batch}"));
    if let Some(context) = context {
        add(true, format!("--context-length {}", context.saturating_add(GENERATED)));
    }
    Some(words)
}

fn vllm(d: &Deployment, batch: u32, context: Option<u32>) -> Option<Vec<String>> {
    // One flag says both, and experts are parallel over all ranks or none.
    if (d.replicas > 1 && d.dp_attention > 1) || d.placement.is_some() || (d.ep != 1 && d.ep != d.tp) {
        return None;
    }
    let mut words = vec![format!("--tensor-parallel-size {}", d.tp / d.dp_attention)];
    let mut add = |given: bool, word: String| {
        if given {
            words.push(word);
        }
    };
    add(d.pp > 1, format!("--pipeline-parallel-size {}", d.pp));
    add(d.dp_attention > 1, format!("--data-parallel-size {}", d.dp_attention));
    add(d.replicas > 1, format!("--data-parallel-size {}", d.replicas));
    add(d.dcp > 1, format!("--decode-context-parallel-size {}", d.dcp));
    add(d.ep > 1, "--enable-expert-parallel".into());
    match d.a2a {
        AllToAll::None => {}
        AllToAll::Flashinfer => add(true, "--all2all-backend flashinfer_all2allv".into()),
        AllToAll::Deepep => add(true, "--all2all-backend deepep_low_latency".into()),
        AllToAll::Nccl => return None,
    }
    add(d.kv_dtype == DType::Fp8, "--kv-cache-dtype fp8".into());
    add(true, format!("--max-num-seqs {batch}"));
    if let Some(context) = context {
        add(true, format!("--max-model-len {}", context.saturating_add(GENERATED)));
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(engine: Engine, d: &Deployment) -> Option<String> {
        launch_command(engine, "org/model", d, 8, Some(1000))
    }

    #[test]
    fn sizes_become_the_engines_flags() {
        let d = Deployment { tp: 8, dp_attention: 4, ep: 8, ..Deployment::default() };
        assert_eq!(
            command(Engine::Sglang, &d).unwrap(),
            "python -m sglang.launch_server --model-path org/model --tp-size 8 --dp-size 4 --enable-dp-attention --ep-size 8 \
             --cuda-graph-max-bs 8 --context-length 2024"
        );
        assert_eq!(
            command(Engine::Vllm, &d).unwrap(),
            "vllm serve org/model --tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel --max-num-seqs 8 --max-model-len 2024"
        );
    }

    #[test]
    fn what_an_engine_does_not_have_has_no_command() {
        let dcp = Deployment { tp: 8, dcp: 2, ..Deployment::default() };
        assert!(command(Engine::Sglang, &dcp).is_none() && command(Engine::Vllm, &dcp).is_some());
        let part = Deployment { tp: 8, ep: 2, ..Deployment::default() };
        assert!(command(Engine::Vllm, &part).is_none() && command(Engine::Sglang, &part).is_some());
    }
}
