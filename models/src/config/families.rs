//! Every `model_type` that is read, with what its class in transformers 5.17 assumes where a file is silent.

use super::common::{Body, Context, Defaults};
use super::{deepseek, gpt_oss, gqa, llama4, qwen, vision};

/// A `model_type` and how it is read.
pub(super) struct Family {
    pub(super) model_type: &'static str,
    /// Class of `architectures` where the file names none.
    pub(super) architecture: &'static str,
    /// Not empty: the decoder is in `text_config`, whose `model_type` must be one of these.
    pub(super) wraps: &'static [&'static str],
    /// What precedes `model.` in the checkpoint.
    pub(super) prefix: &'static str,
    /// Costs only: the family's values are not computed.
    pub(super) cost_only: bool,
    pub(super) defaults: Defaults,
    pub(super) read: fn(&Context<'_>) -> Option<Body>,
}

type Read = fn(&Context<'_>) -> Option<Body>;

/// A family whose values are computed.
const fn valued(model_type: &'static str, architecture: &'static str, defaults: Defaults, read: Read) -> Family {
    Family { model_type, architecture, wraps: &[], prefix: "", cost_only: false, defaults, read }
}

/// A family that is modelled for cost.
const fn costed(model_type: &'static str, architecture: &'static str, defaults: Defaults, read: Read) -> Family {
    Family { cost_only: true, ..valued(model_type, architecture, defaults, read) }
}

/// The same family, its decoder nested in a wrapper.
const fn wrapping(wraps: &'static [&'static str], prefix: &'static str, family: Family) -> Family {
    Family { wraps, prefix, ..family }
}

/// `rms_norm_eps`, `max_position_embeddings`, `rope_theta`.
const fn defaults(norm_eps: f64, max_positions: u64, theta: f64) -> Defaults {
    Defaults { norm_eps, max_positions, theta }
}

const V3: Defaults = defaults(1e-6, 4096, 1e4);
const QWEN: Defaults = defaults(1e-6, 32_768, 1e4);
const LLAMA4: Defaults = defaults(1e-5, 131_072, 5e5);

/// Sorted by `model_type`.
pub(super) const FAMILIES: &[Family] = &[
    valued("deepseek_v2", "DeepseekV2ForCausalLM", defaults(1e-6, 2048, 1e4), deepseek::read_v2),
    valued("deepseek_v3", "DeepseekV3ForCausalLM", V3, deepseek::read_v3),
    costed("deepseek_v32", "DeepseekV32ForCausalLM", defaults(1e-6, 163_840, 1e4), deepseek::read_v32),
    valued("glm4_moe", "Glm4MoeForCausalLM", defaults(1e-5, 131_072, 1e4), gqa::read_glm4),
    costed("glm_moe_dsa", "GlmMoeDsaForCausalLM", defaults(1e-5, 202_752, 1e4), deepseek::read_glm_dsa),
    valued("gpt_oss", "GptOssForCausalLM", defaults(1e-5, 131_072, 1.5e5), gpt_oss::read),
    costed("granitemoe", "GraniteMoeForCausalLM", defaults(1e-6, 2048, 1e4), gqa::read_granite),
    valued("kimi_k2", "DeepseekV3ForCausalLM", V3, deepseek::read_v3),
    wrapping(&["kimi_k2", "deepseek_v3"], "language_model.", valued("kimi_k25", "KimiK25ForConditionalGeneration", V3, read_kimi_k25)),
    wrapping(&["llama4_text"], "language_model.", costed("llama4", "Llama4ForConditionalGeneration", LLAMA4, llama4::read_wrapper)),
    costed("llama4_text", "Llama4ForCausalLM", LLAMA4, llama4::read),
    costed("minimax_m2", "MiniMaxM2ForCausalLM", defaults(1e-6, 196_608, 5e6), gqa::read_minimax),
    valued("mixtral", "MixtralForCausalLM", defaults(1e-5, 131_072, 1e6), gqa::read_mixtral),
    valued("olmoe", "OlmoeForCausalLM", defaults(1e-5, 4096, 1e4), gqa::read_olmoe),
    costed("phimoe", "PhiMoEForCausalLM", defaults(1e-5, 131_072, 1e6), gqa::read_phimoe),
    valued("qwen2_moe", "Qwen2MoeForCausalLM", QWEN, qwen::read_qwen2),
    wrapping(&["qwen3_5_moe_text"], "", costed("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", QWEN, qwen::read_qwen3_5_wrapper)),
    costed("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", QWEN, qwen::read_qwen3_5),
    valued("qwen3_moe", "Qwen3MoeForCausalLM", QWEN, qwen::read_qwen3),
    costed("qwen3_next", "Qwen3NextForCausalLM", QWEN, qwen::read_next),
];

/// Kimi-K2.5: a K2 decoder and a vision tower.
fn read_kimi_k25(ctx: &Context<'_>) -> Option<Body> {
    let body = deepseek::read_v3(ctx);
    let outside = vision::kimi(ctx);
    Some(Body { outside: outside?, ..body? })
}
