//! A model that eight ranks can share, and passes over it, for tests of the executor on the fake driver.
#![allow(dead_code, reason = "each test file uses its part")]

use moetwin_cuda::exec::fake::FakeHost;
use moetwin_cuda::exec::gpu::Host;
use moetwin_cuda::exec::inject::Injection;
use moetwin_cuda::exec::{CudaExecutor, CudaOptions};
use moetwin_cuda::link::Link;
use moetwin_models::{AllToAll, BuildOptions, Deployment, LogitsRows, ModelSpec, Phase, RankId, Sequence, Step, config, plan};
use moetwin_runtime::reference::{ExecuteError, StepInputs};
use moetwin_runtime::weights::SyntheticWeights;
use moetwin_runtime::{Executor, LowerOptions, Program, ProgramKey, lower};
use std::time::Duration;

/// Two layers, the second with experts; eight heads and eight experts.
const CONFIG: &str = r#"{
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "torch_dtype": "bfloat16", "vocab_size": 64,
    "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 8, "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "routed_scaling_factor": 2.5,
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "hidden_act": "silu", "max_position_embeddings": 128, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "rope_scaling": null,
    "attention_bias": false, "tie_word_embeddings": false}"#;

/// KV rows of a sequence.
pub(crate) const CAPACITY: u32 = 16;

/// The model.
pub(crate) fn model() -> ModelSpec {
    config::read(CONFIG, "eight").unwrap()
}

/// Eight ranks with data-parallel attention and all-to-all.
pub(crate) fn exchanging() -> Deployment {
    Deployment { tp: 8, ep: 8, dp_attention: 8, a2a: AllToAll::Nccl, ..Deployment::default() }
}

/// Eight ranks in two stages.
pub(crate) fn staged() -> Deployment {
    Deployment { tp: 4, ep: 2, pp: 2, ..Deployment::default() }
}

/// The programs of a prefill and a decode of one sequence a rank.
pub(crate) fn programs(spec: &ModelSpec, deployment: &Deployment) -> (Program, Program) {
    programs_lowered(spec, deployment, LowerOptions::default())
}

/// The same with sums over ranks fused with the norms behind them.
pub(crate) fn fused_programs(spec: &ModelSpec, deployment: &Deployment) -> (Program, Program) {
    programs_lowered(spec, deployment, LowerOptions { fuse_sums: true, ..LowerOptions::default() })
}

fn programs_lowered(spec: &ModelSpec, deployment: &Deployment, options: LowerOptions) -> (Program, Program) {
    let batch = 8;
    let build = |phase, past, new| {
        let step = Step { phase, sequences: vec![Sequence { past, new }; batch], logits: LogitsRows::Last };
        lower(plan(spec, &step, deployment, &BuildOptions::default()).unwrap(), options).unwrap()
    };
    (build(Phase::Prefill, 0, 2), build(Phase::Decode, CAPACITY - 1, 1))
}

/// Options with a deadline of this many seconds.
pub(crate) fn options(seconds: u64, inject: Option<Injection>) -> CudaOptions {
    CudaOptions { inject, ..CudaOptions::new(CAPACITY, Duration::from_secs(seconds)) }
}

/// Everything a run does: open, load, prepare, prefill, and three decode passes (eager, captured, replayed).
pub(crate) fn serve<H: Host>(
    host: H,
    local: Vec<RankId>,
    link: Option<Link>,
    options: CudaOptions,
    spec: &ModelSpec,
    programs: &(Program, Program),
) -> Result<(), ExecuteError> {
    let ranks = programs.0.ranks.len() as u32;
    let mut executor = CudaExecutor::on(host, local, ranks, link, options)?;
    let weights = SyntheticWeights::new(spec, 1);
    let prepare = |executor: &mut CudaExecutor<H>, program: &Program| -> Result<ProgramKey, ExecuteError> {
        program.ranks.ids().try_for_each(|rank| executor.load(program, rank, &weights))?;
        executor.prepare(program.clone())
    };
    let decode = prepare(&mut executor, &programs.1)?;
    let prefill = prepare(&mut executor, &programs.0)?;
    let inputs = |past: u32, new: u32| StepInputs { token_ids: vec![1; 8 * new as usize], sequences: vec![Sequence { past, new }; 8] };
    executor.run(prefill, &inputs(0, 2))?;
    (2..5).try_for_each(|past| executor.run(decode, &inputs(past, 1)).map(drop))
}

/// All eight ranks in this process.
pub(crate) fn serve_here(
    host: &FakeHost,
    inject: Option<Injection>,
    spec: &ModelSpec,
    programs: &(Program, Program),
) -> Result<(), ExecuteError> {
    serve(host.clone(), (0..8).map(RankId).collect(), None, options(10, inject), spec, programs)
}

/// Eight ranks that share every product, with a sum behind each.
pub(crate) fn summing() -> Deployment {
    Deployment { tp: 8, ep: 8, ..Deployment::default() }
}
