//! Which model a launch names, and what is known of it: a built-in configuration, a line of a table, or what its name says.
//!
//! A name decides facts only, never a verdict: rules see [`Model`], and a question's own figures (`model_facts`) outrank the table's.

mod facts;
mod folder;
mod names;
mod quantize;
mod shape;
mod table;

pub use folder::Folder;
pub use quantize::requantize;
pub use shape::{Amount, LayerParts, Parts, Shape};

use crate::model::Model;
use moetwin_models::zoo;
use serde_json::Value;
use std::collections::BTreeMap;

/// What is known of the model that `in_command` (a path or a hub id) and `in_words` name. `facts` are the question's own figures;
/// `flag` is the launch's `--quantization`.
pub fn resolve(in_command: &str, in_words: &str, facts: &BTreeMap<String, Value>, flag: Option<&str>) -> Model {
    let mut model = names::of([in_command, in_words]);
    if model.name.is_empty() {
        model.name =
            [in_command, in_words].into_iter().find(|t| !t.trim().is_empty()).unwrap_or("a model that is not named").trim().to_owned();
    }
    // Publishers' own checkpoints are known as they are; a folder or a copy may hold anything under the same name.
    model.unquantized = zoo::find(in_command).is_some_and(|known| known.hub_id.eq_ignore_ascii_case(in_command));
    finished(model, facts, flag)
}

/// The same of a model whose folder is at hand.
pub fn of_folder(folder: &Folder, facts: &BTreeMap<String, Value>, flag: Option<&str>) -> Model {
    finished(folder::of(folder), facts, flag)
}

fn finished(mut model: Model, facts: &BTreeMap<String, Value>, flag: Option<&str>) -> Model {
    facts::apply(&mut model, facts);
    model.unquantized &= model.weights.method == "bf16";
    quantize::flag(&mut model, flag);
    model
}

/// What is wrong between the model that a command names and the one that a question names beside it, if they cannot be the same.
pub fn contradiction(in_command: &str, in_words: &str) -> Option<String> {
    let open = |text: &str| text.trim().is_empty() || crate::command::is_placeholder(text) || text.contains('<');
    if open(in_command) || open(in_words) {
        return None;
    }
    let [a, b] = [in_command, in_words].map(|text| resolve(text, "", &BTreeMap::new(), None));
    let known = |model: &Model| model.layers.is_some() && model.hidden.is_some();
    let differ = if known(&a) && known(&b) {
        (&a.class, a.layers, a.hidden, a.experts) != (&b.class, b.layers, b.hidden, b.experts)
    } else if let (Some(a), Some(b)) = (a.total_params_b, b.total_params_b) {
        (a / b - 1.0).abs() > 0.2
    } else {
        // A folder's name may be anything; two names of the hub without a word in common are two models.
        let words = |text: &str| names::normalized(text).split('-').filter(|w| w.len() > 2).map(str::to_owned).collect::<Vec<_>>();
        let hub = |text: &str| text.matches('/').count() == 1 && !text.starts_with(['/', '.', '~']) && !text.contains(' ');
        let theirs = words(in_words);
        hub(in_command) && hub(in_words) && !words(in_command).iter().any(|w| theirs.contains(w))
    };
    differ.then(|| format!("the command names the model {in_command}, the question {in_words}: they differ, and the command's is taken as far as it is known"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AttentionKind;
    use serde_json::json;

    fn named(command: &str, words: &str) -> Model {
        resolve(command, words, &BTreeMap::new(), None)
    }

    #[test]
    fn names_find_configurations_tables_and_sizes() {
        let kimi = named("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.5 (native INT4 experts)");
        assert_eq!(kimi.class.as_deref(), Some("KimiK25ForConditionalGeneration"));
        assert_eq!((kimi.weights.method.as_str(), kimi.multimodal), ("int4", true));
        assert_eq!(kimi.attention, AttentionKind::Mla);
        let coder = named("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "");
        assert_eq!((coder.weights.method.as_str(), coder.heads, coder.layers), ("fp8", Some(96), Some(62)));
        let glm = named("<community>/GLM-4.6-NVFP4", "");
        assert_eq!((glm.experts, glm.weights.method.as_str()), (Some(160), "nvfp4"));
        let small = named("<Qwen3.6-35B-A3B-NVFP4>", "");
        assert_eq!((small.layers, small.full_attention_layers, small.experts), (Some(40), Some(10), Some(256)));
        let v4 = named("deepseek-ai/DeepSeek-V4-Flash-0731", "");
        assert_eq!((v4.experts, v4.class.as_deref()), (Some(256), Some("DeepseekV4ForCausalLM")));
        let unknown = named("someone/Other-70B-A5B-AWQ", "");
        assert_eq!((unknown.total_params_b, unknown.active_params_b, unknown.weights.method.as_str()), (Some(70.0), Some(5.0), "awq"));
        assert!(!unknown.assumptions.is_empty());
        assert_eq!(named("<path>", "DeepSeek-V3/R1 class, PD decode node").experts, Some(256));
        assert_eq!(named("Qwen/Qwen3-30B-A3B-AWQ", "").weights.method, "awq");
        assert!(!named("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "").moe);
        assert!(!named("Qwen/Qwen2.5-0.5B-Instruct", "").moe);
    }

    #[test]
    fn two_models_in_one_question_are_noticed() {
        for (command, words) in
            [("Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-R1"), ("someone/Other-70B", "someone/Other-7B"), ("org/alpha", "other/beta")]
        {
            assert!(contradiction(command, words).is_some_and(|c| c.contains(command) && c.contains(words)), "{command} {words}");
        }
        for (command, words) in [
            ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3/R1 class"),
            ("<path>", "moonshotai/Kimi-K2.5"),
            ("/models/x", "Qwen/Qwen3-8B"),
            ("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.5 (native INT4 experts)"),
            ("m", ""),
        ] {
            assert_eq!(contradiction(command, words), None, "{command} {words}");
        }
    }

    #[test]
    fn figures_of_the_question_outrank_the_table() {
        let facts = [("experts".to_owned(), json!(64)), ("weights_without_table_gib".to_owned(), json!(75.94))].into_iter().collect();
        let model = resolve("deepseek-ai/DeepSeek-V3", "", &facts, None);
        assert_eq!(model.experts, Some(64));
        assert_eq!(model.given["weights_without_table_gib"], 75.94);
    }

    #[test]
    fn totals_agree_with_published_parameters() {
        for (name, total) in [
            ("deepseek-ai/DeepSeek-V3", 671.0),
            ("moonshotai/Kimi-K2.5", 1026.0),
            ("zai-org/GLM-4.6", 353.0),
            ("Qwen/Qwen3.6-35B-A3B", 35.0),
            ("deepseek-ai/DeepSeek-V4-Flash", 284.0),
            ("deepseek-ai/DeepSeek-V4-Pro", 1573.0),
            ("google/gemma-4-26B-A4B-it", 25.8),
            ("Qwen/Qwen3.6-27B", 27.0),
            ("Qwen/Qwen3.8-Flash-Next", 125.0),
            ("meta-llama/Llama-3.3-70B-Instruct", 70.6),
            ("moonshotai/Kimi-K3", 2800.0),
            ("MiniMaxAI/MiniMax-M3", 428.0),
            ("XiaomiMiMo/MiMo-V2-Flash", 309.0),
            ("stepfun-ai/Step-3.5-Flash", 198.0),
            ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6),
            ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 120.0),
            ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 550.0),
            ("mistralai/Mistral-Small-4-119B-2603", 119.0),
            ("mistralai/Mistral-Large-3-675B-Instruct-2512", 673.0),
            ("baidu/ERNIE-4.5-300B-A47B-PT", 300.0),
            ("baidu/ERNIE-4.5-21B-A3B-PT", 21.8),
            ("tencent/Hunyuan-A13B-Instruct", 80.0),
            ("rednote-hilab/dots.llm1.inst", 142.0),
            ("inclusionAI/Ling-1T", 1000.0),
            ("inclusionAI/Ring-flash-2.0", 103.0),
            ("inclusionAI/Ling-mini-2.0", 16.3),
            ("meituan-longcat/LongCat-Flash-Chat", 560.0),
            ("MiniMaxAI/MiniMax-M1-80k", 456.0),
            ("arcee-ai/Trinity-Large-Preview", 398.0),
            ("arcee-ai/Trinity-Mini", 26.0),
            ("upstage/Solar-Open-100B", 102.0),
            ("lukealonso/MiniMax-M2.5-REAP-139B-A10B-NVFP4", 139.0),
            ("cerebras/GLM-4.5-Air-REAP-82B-A12B-FP8", 82.0),
            ("google/gemma-3-27b-it", 27.4),
            ("google/gemma-3-12b-it", 12.2),
            ("meta-llama/Llama-3.2-3B-Instruct", 3.2),
            ("Qwen/Qwen3-VL-32B-Instruct", 33.4),
            ("stepfun-ai/step3-fp8", 316.0),
        ] {
            let model = named(name, "");
            let parts = Parts::of(&model).unwrap_or_else(|| panic!("{name}"));
            let got = parts.total().params / 1e9;
            assert!((got / total - 1.0).abs() < 0.05, "{name}: {got} of {total}");
        }
        // Checkpoints as loaders report them, GiB; without draft layers where those are not loaded.
        for (name, gib) in [("deepseek-ai/DeepSeek-V4-Flash", 148.66), ("deepseek-ai/DeepSeek-V4-Pro", 805.0)] {
            let parts = Parts::of(&named(name, "")).expect("known");
            let got = (parts.total().bytes + parts.mtp.iter().map(|l| l.total().bytes).sum::<f64>()) / f64::from(1 << 30);
            assert!((got / gib - 1.0).abs() < 0.03, "{name}: {got} of {gib}");
        }
    }

    proptest::proptest! {
        /// Any name and any figures give a model whose parts, if it has any, are finite.
        #[test]
        fn any_name_is_resolved(
            name in "[-a-zA-Z0-9./<>_ ]{0,40}|(deepseek-v4-flash|qwen3.6-35b-a3b|kimi-k2.5|llama-3.3-70b|x-70b-a3b)(-fp8|-nvfp4|-awq|-int4|-bf16)?",
            figures in proptest::collection::btree_map("layers|hidden|experts|kv_heads|head_dim|vocab|moe_intermediate|checkpoint_gib|quant", 0u64..1_000_000, 0..4),
        ) {
            let facts = figures.into_iter().map(|(k, v)| (k, json!(v))).collect();
            let model = resolve(&name, "", &facts, None);
            if let Some(parts) = Parts::of(&model) {
                proptest::prop_assert!(parts.total().bytes.is_finite() && parts.total().bytes >= 0.0);
            }
        }
    }
}
