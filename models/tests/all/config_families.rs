//! What each family's configuration means, on the small checkpoints' files and the built-in ones.

use moetwin_models::ModelSpec;
use moetwin_models::config::{model_types, read, read_with_quantization};
use moetwin_models::dtype::{DType, WeightFormat};
use moetwin_models::spec::{
    Activation, Attention, Ffn, GqaSpec, GroupScore, LinearAttentionSpec, MlaSpec, MoeSpec, QkNorm, RopeScaling, RouterSpec, Scoring,
};
use moetwin_models::zoo;
use serde_json::{Value, json};

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../../tests/fixtures/", $name, "/config.json"))
    };
}

fn parsed(text: &str) -> ModelSpec {
    read(text, "config.json").unwrap_or_else(|e| panic!("{e}"))
}
/// The configuration with some top-level fields replaced.
fn changed(text: &str, changes: Value) -> ModelSpec {
    let mut value: Value = serde_json::from_str(text).unwrap();
    for (key, new) in changes.as_object().unwrap() {
        value[key] = new.clone();
    }
    parsed(&value.to_string())
}
fn built_in(name: &str) -> ModelSpec {
    zoo::spec(name).unwrap_or_else(|e| panic!("{e}"))
}
fn mla(spec: &ModelSpec, layer: usize) -> &MlaSpec {
    let Attention::Mla(mla) = &spec.layers[layer].attention else { panic!("{:?}", spec.layers[layer]) };
    mla
}
fn gqa(spec: &ModelSpec, layer: usize) -> &GqaSpec {
    let Attention::Gqa(gqa) = &spec.layers[layer].attention else { panic!("{:?}", spec.layers[layer]) };
    gqa
}
fn moe(spec: &ModelSpec, layer: usize) -> &MoeSpec {
    let Ffn::Moe(moe) = &spec.layers[layer].ffn else { panic!("{:?}", spec.layers[layer]) };
    moe
}
fn dense_layers(spec: &ModelSpec) -> Vec<usize> {
    (0..spec.layers.len()).filter(|&i| matches!(spec.layers[i].ffn, Ffn::Dense(_))).collect()
}
const SOFTMAX: RouterSpec = RouterSpec {
    scoring: Scoring::Softmax,
    correction_bias: false,
    groups: 1,
    topk_groups: 1,
    group_score: GroupScore::Max,
    normalize: false,
    normalize_eps: 0.0,
    scale: 1.0,
    logits_bias: false,
};

#[test]
fn deepseek_v2() {
    let text = fixture!("tiny-deepseek-v2");
    let spec = parsed(text);
    assert_eq!(dense_layers(&spec), [0]);
    assert_eq!(moe(&spec, 1).router, RouterSpec { scale: 2.0, ..SOFTMAX });
    assert_eq!(moe(&spec, 1).shared.as_ref().map(|s| (s.intermediate, s.gated)), Some((64, false)));
    assert_eq!(spec.dtype, DType::F32);
    assert!(mla(&spec, 0).rope.interleaved && spec.executable);
    let grouped = changed(text, json!({"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "norm_topk_prob": true}));
    // transformers ignores norm_topk_prob here, and a warning says so.
    assert_eq!(moe(&grouped, 1).router, RouterSpec { scale: 2.0, groups: 4, topk_groups: 2, ..SOFTMAX });
    assert!(grouped.warnings.iter().any(|w| w.contains("norm_topk_prob")));
    let direct = changed(text, json!({"q_lora_rank": null, "attention_bias": true, "n_shared_experts": 0}));
    assert_eq!((mla(&direct, 0).q_lora, mla(&direct, 0).bias, &moe(&direct, 1).shared), (None, true, &None));
    // `mlp_bias` is read by this family's class alone.
    let biases = |spec: &ModelSpec| {
        let dense = spec.layers.iter().any(|l| matches!(&l.ffn, Ffn::Dense(d) if d.bias));
        let shared = spec.layers.iter().any(|l| matches!(&l.ffn, Ffn::Moe(m) if m.shared.as_ref().is_some_and(|s| s.bias)));
        (dense, shared)
    };
    assert_eq!(biases(&changed(fixture!("tiny-deepseek-v2"), json!({"mlp_bias": true}))), (true, true));
    assert_eq!(biases(&parsed(fixture!("tiny-deepseek-v2"))), (false, false));
    assert_eq!(biases(&changed(fixture!("tiny-deepseek-v3"), json!({"mlp_bias": true}))), (false, false));
}

#[test]
fn deepseek_v3() {
    let text = fixture!("tiny-deepseek-v3");
    let spec = parsed(text);
    let router = RouterSpec {
        scoring: Scoring::Sigmoid,
        correction_bias: true,
        groups: 4,
        topk_groups: 2,
        group_score: GroupScore::TopTwoSum,
        normalize: true,
        normalize_eps: 1e-20,
        scale: 2.5,
        logits_bias: false,
    };
    assert_eq!(moe(&spec, 1).router, router);
    let plain = changed(text, json!({"norm_topk_prob": false, "rope_interleave": false, "rms_norm_eps": 1e-3}));
    assert_eq!(moe(&plain, 1).router, RouterSpec { normalize: false, normalize_eps: 0.0, ..router });
    assert!(!mla(&plain, 0).rope.interleaved);
    assert_eq!((plain.norm_eps, mla(&plain, 0).latent_norm_eps), (1e-3, 1e-6));
    let every_other = changed(text, json!({"moe_layer_freq": 2}));
    assert_eq!(dense_layers(&every_other), [0, 1, 3]);
    assert!(every_other.warnings.iter().any(|w| w.starts_with("moe_layer_freq is 2")), "{:?}", every_other.warnings);
    assert!(changed(text, json!({"tie_word_embeddings": true})).tied_embeddings);
    // A wrapper's own flag counts, the decoder's where it has none.
    let kimi = zoo::find("kimi-k2.5").unwrap().config;
    assert!(changed(kimi, json!({"tie_word_embeddings": true})).tied_embeddings);
    let mut inner: Value = serde_json::from_str(kimi).unwrap();
    inner["text_config"]["tie_word_embeddings"] = json!(true);
    assert!(!changed(&inner.to_string(), json!({})).tied_embeddings);
    assert!(changed(&inner.to_string(), json!({"tie_word_embeddings": null})).tied_embeddings);
}

#[test]
fn yarn_in_both_dialects() {
    let text = fixture!("tiny-deepseek-v3-yarn");
    let new = parsed(text);
    let RopeScaling::Yarn { factor, original_positions, attention_factor, .. } = mla(&new, 0).rope.scaling else { panic!() };
    assert_eq!((factor, original_positions, attention_factor), (40.0, 64.0, 1.0));
    let m = 0.1 * 40f64.ln() + 1.0;
    assert!((mla(&new, 0).softmax_scale - m * m / 32f64.sqrt()).abs() < 1e-12);
    let mut value: Value = serde_json::from_str(text).unwrap();
    let mut rope = value.as_object_mut().unwrap().remove("rope_parameters").unwrap();
    value["rope_theta"] = rope.as_object_mut().unwrap().remove("rope_theta").unwrap();
    rope.as_object_mut().unwrap().remove("rope_type");
    value["rope_scaling"] = rope;
    assert_eq!(parsed(&value.to_string()), new);
    // Only one of the temperatures: cos and sin take the plain one, and without mscale_all_dim the scores none.
    let yarn = json!({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 0.707});
    let partial = changed(text, json!({"rope_parameters": yarn}));
    assert!((mla(&partial, 0).rope.attention_factor() - m).abs() < 1e-12);
    assert_eq!(mla(&partial, 0).softmax_scale, 1.0 / 32f64.sqrt());
    // Zero betas count as absent, and a context beside the rotary object counts before one inside it.
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": 0, "beta_slow": 0});
    let zero = changed(text, json!({"rope_parameters": yarn, "original_max_position_embeddings": 128}));
    let scaling = &mla(&zero, 0).rope.scaling;
    assert!(matches!(scaling, RopeScaling::Yarn { beta_fast: 32.0, beta_slow: 1.0, original_positions: 128.0, .. }), "{scaling:?}");
    // A null factor is the ratio of the contexts, 2560 / 64.
    let yarn = json!({"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 64, "attention_factor": 0.5});
    let ratio = changed(text, json!({"rope_parameters": yarn}));
    assert!(matches!(mla(&ratio, 0).rope.scaling, RopeScaling::Yarn { factor: 40.0, attention_factor: 0.5, .. }));
    // Below 1 where the original context is the longer one; the temperature is 1 then.
    let yarn = json!({"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 5120});
    let longer = changed(text, json!({"rope_parameters": yarn}));
    assert!(matches!(mla(&longer, 0).rope.scaling, RopeScaling::Yarn { factor: 0.5, attention_factor: 1.0, .. }));
}

/// Dynamic NTK scaling changes the base for sequences longer than the model's context only, and those are refused.
#[test]
fn dynamic_scaling_is_none_within_the_context() {
    let text = fixture!("tiny-qwen3-moe");
    let rope = |kind: &str| json!({"rope_parameters": {"rope_type": kind, "rope_theta": 5e5, "factor": 4.0}});
    let (dynamic, plain) = (changed(text, rope("dynamic")), changed(text, rope("default")));
    assert_eq!(dynamic, plain);
    assert_eq!(gqa(&dynamic, 0).rope.as_ref().unwrap().scaling, RopeScaling::None);
    assert_eq!(changed(text, json!({"rope_parameters": null, "rope_theta": 5e5, "rope_scaling": {"type": "dynamic", "factor": 4}})), plain);
}

/// Python's None counts as no; an absent flag has the default of its class.
#[test]
fn a_null_flag_is_no() {
    let text = fixture!("tiny-deepseek-v3");
    let nulls = changed(text, json!({"norm_topk_prob": null, "rope_interleave": null}));
    assert!(!moe(&nulls, 1).router.normalize && !mla(&nulls, 0).rope.interleaved);
    let mut absent: Value = serde_json::from_str(text).unwrap();
    for key in ["norm_topk_prob", "rope_interleave"] {
        absent.as_object_mut().unwrap().remove(key);
    }
    let absent = parsed(&absent.to_string());
    assert!(moe(&absent, 1).router.normalize && mla(&absent, 0).rope.interleaved);
    assert!(absent.warnings.iter().any(|w| w.contains("norm_topk_prob = true")), "{:?}", absent.warnings);
    assert!(!nulls.warnings.iter().any(|w| w.contains("norm_topk_prob")), "{:?}", nulls.warnings);
    assert!(!gqa(&changed(fixture!("tiny-qwen2-moe"), json!({"qkv_bias": null})), 0).qkv_bias);
}

#[test]
fn qwen2_moe() {
    let text = fixture!("tiny-qwen2-moe");
    let spec = parsed(text);
    let attention = gqa(&spec, 0);
    assert!(attention.qkv_bias && !attention.o_bias && attention.window.is_none());
    assert_eq!((attention.qk_norm, attention.head_dim), (QkNorm::None, 16));
    assert!(!attention.rope.as_ref().unwrap().interleaved);
    assert_eq!(moe(&spec, 0).router, RouterSpec { normalize: true, ..SOFTMAX });
    assert_eq!(moe(&spec, 0).shared.as_ref().map(|s| (s.intermediate, s.gated)), Some((64, true)));
    assert_eq!(dense_layers(&changed(text, json!({"decoder_sparse_step": 2}))), [0, 2]);
    assert_eq!(dense_layers(&changed(text, json!({"mlp_only_layers": [1]}))), [1]);
    let windows = changed(text, json!({"use_sliding_window": true, "sliding_window": 9, "layer_types": null, "max_window_layers": 2}));
    assert_eq!([0, 1, 2].map(|i| gqa(&windows, i).window), [Some(9), None, None]);
    assert!(!gqa(&changed(text, json!({"qkv_bias": false})), 0).qkv_bias);
}

#[test]
fn qwen3_moe() {
    let text = fixture!("tiny-qwen3-moe");
    let spec = parsed(text);
    let attention = gqa(&spec, 0);
    assert_eq!((attention.heads, attention.kv_heads, attention.head_dim), (8, 2, 16));
    assert_eq!((attention.qk_norm, attention.qkv_bias, attention.o_bias), (QkNorm::PerHead, false, false));
    assert_eq!(moe(&spec, 0).shared, None);
    let other = changed(
        text,
        json!({"attention_bias": true, "norm_topk_prob": false, "head_dim": null, "use_sliding_window": true, "sliding_window": 5}),
    );
    let attention = gqa(&other, 0);
    assert_eq!((attention.qkv_bias, attention.o_bias, attention.head_dim, attention.window), (true, true, 8, Some(5)));
    assert_eq!(moe(&other, 0).router, SOFTMAX);
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768, "rope_theta": 1e6});
    let long = changed(text, json!({"rope_parameters": yarn}));
    let rope = gqa(&long, 0).rope.as_ref().unwrap();
    assert!((rope.attention_factor() - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    assert_eq!(gqa(&long, 0).softmax_scale, 0.25);
}

#[test]
fn mixtral_and_olmoe() {
    let mixtral = changed(fixture!("tiny-mixtral"), json!({"sliding_window": 7}));
    assert_eq!(gqa(&mixtral, 0).window, Some(7));
    assert_eq!(moe(&mixtral, 0).router, RouterSpec { normalize: true, ..SOFTMAX });
    assert_eq!((moe(&mixtral, 0).intermediate, gqa(&mixtral, 0).head_dim), (96, 16));
    let olmoe = parsed(fixture!("tiny-olmoe"));
    assert_eq!(gqa(&olmoe, 0).qk_norm, QkNorm::Full);
    assert_eq!(moe(&olmoe, 0).router, SOFTMAX);
    assert_eq!(gqa(&olmoe, 0).clip, None);
    assert_eq!(gqa(&changed(fixture!("tiny-olmoe"), json!({"clip_qkv": 8.0})), 2).clip, Some(8.0));
    assert!(mixtral.executable && olmoe.executable);
}

#[test]
fn glm4_moe() {
    let text = fixture!("tiny-glm4-moe");
    let spec = parsed(text);
    let attention = gqa(&spec, 0);
    assert_eq!((attention.qkv_bias, attention.o_bias, attention.qk_norm), (true, false, QkNorm::PerHead));
    assert_eq!(attention.rope.as_ref().map(|r| (r.dim, r.theta)), Some((8, 1e6)));
    assert_eq!(dense_layers(&spec), [0]);
    assert_eq!((moe(&spec, 1).router.scale, moe(&spec, 1).router.group_score), (1.5, GroupScore::TopTwoSum));
    let other = changed(text, json!({"use_qk_norm": false, "attention_bias": false, "n_group": 4, "topk_group": 2}));
    assert_eq!((gqa(&other, 0).qkv_bias, gqa(&other, 0).qk_norm), (false, QkNorm::None));
    assert_eq!((moe(&other, 1).router.groups, moe(&other, 1).router.topk_groups), (4, 2));
    // Without a share in the file half of the head is rotated.
    let silent = changed(text, json!({"rope_parameters": {"rope_theta": 1e4}, "partial_rotary_factor": null}));
    assert_eq!(gqa(&silent, 0).rope.as_ref().map(|r| r.dim), Some(8));
}

#[test]
fn gpt_oss() {
    let text = fixture!("tiny-gpt-oss");
    let spec = parsed(text);
    assert_eq!([0, 1, 2].map(|i| gqa(&spec, i).window), [Some(8), None, Some(8)]);
    let attention = gqa(&spec, 0);
    assert!(attention.sinks && attention.qkv_bias && attention.o_bias);
    let rope = attention.rope.as_ref().unwrap();
    assert!(matches!(rope.scaling, RopeScaling::Yarn { truncate: false, factor: 32.0, .. }) && !rope.interleaved);
    assert!((rope.attention_factor() - (0.1 * 32f64.ln() + 1.0)).abs() < 1e-12);
    let experts = moe(&spec, 0);
    assert_eq!(experts.router, RouterSpec { scoring: Scoring::SoftmaxTopk, logits_bias: true, ..SOFTMAX });
    assert_eq!(experts.activation, Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 });
    assert!(experts.expert_bias && experts.shared.is_none());
    let newer = changed(text, json!({"swiglu_alpha": 1.5, "swiglu_limit": 10}));
    assert_eq!(moe(&newer, 0).activation, Activation::ClampedSwiglu { alpha: 1.5, limit: 10.0 });
    // The class's own rotary parameters, and one object for each kind of layer.
    assert_eq!(gqa(&changed(text, json!({"rope_parameters": null})), 0).rope, attention.rope);
    let nested = json!({"full_attention": {"rope_theta": 1e5}, "sliding_attention": {"rope_theta": 1e4}});
    let nested = changed(text, json!({"rope_parameters": nested}));
    assert_eq!([0, 1].map(|i| gqa(&nested, i).rope.as_ref().unwrap().theta), [1e4, 1e5]);
    let large = built_in("gpt-oss-120b");
    assert_eq!((moe(&large, 0).format, gqa(&large, 0).format), (WeightFormat::Mxfp4, WeightFormat::Bf16));
    assert!(large.executable);
}

#[test]
fn checkpoint_formats() {
    let int4 = parsed(fixture!("tiny-kimi-k2-int4"));
    assert_eq!((moe(&int4, 1).format, mla(&int4, 1).format), (WeightFormat::Int4Group { group: 32 }, WeightFormat::F32));
    let fp8 = parsed(fixture!("tiny-deepseek-v3-fp8"));
    let block = WeightFormat::Fp8Block { rows: 128, cols: 128 };
    let mut listed: Value = serde_json::from_str(fixture!("tiny-deepseek-v3-fp8")).unwrap();
    listed["quantization_config"]["ignored_layers"] = json!(["model.layers.1.self_attn"]);
    let listed = parsed(&listed.to_string());
    assert_eq!([0, 1].map(|i| mla(&listed, i).format), [block, WeightFormat::F32]);
    assert_eq!((moe(&fp8, 1).format, mla(&fp8, 0).format, fp8.embedding_format), (block, block, WeightFormat::F32));
    // Entries of the exception lists: whole names, last parts and globs.
    let minimax = built_in("minimax-m2.5");
    assert_eq!((moe(&minimax, 0).format, gqa(&minimax, 0).format), (block, block));
    let nvfp4 = built_in("minimax-m2.5-nvfp4");
    assert_eq!((moe(&nvfp4, 61).format, gqa(&nvfp4, 61).format), (WeightFormat::Nvfp4, WeightFormat::Bf16));
    let router = RouterSpec { scoring: Scoring::Sigmoid, correction_bias: true, normalize: true, ..SOFTMAX };
    assert_eq!((&moe(&nvfp4, 0).router, gqa(&nvfp4, 0).qk_norm), (&router, QkNorm::Full));
    assert_eq!(gqa(&nvfp4, 0).rope.as_ref().map(|r| r.dim), Some(64));
    let kimi = built_in("kimi-k2.5-nvfp4");
    let shared = moe(&kimi, 60).shared.as_ref().unwrap();
    assert_eq!(
        (shared.format, mla(&kimi, 60).format, kimi.embedding_format),
        (WeightFormat::Nvfp4, WeightFormat::Bf16, WeightFormat::Bf16)
    );
    assert!(!kimi.executable);
    // hf_quant_config.json beside a config.json without quantization.
    let glm = built_in("glm-5-nvfp4");
    assert_eq!((moe(&glm, 77).format, mla(&glm, 7).format), (WeightFormat::Nvfp4, WeightFormat::Bf16));
    let model = zoo::find("glm-5-nvfp4").unwrap();
    let plain = read_with_quantization(model.config, None, "glm").unwrap();
    assert_eq!(moe(&plain, 77).format, WeightFormat::Bf16);
}

#[test]
fn hybrids_and_sparse_attention() {
    let next = built_in("qwen3-next-80b-a3b");
    let Attention::Linear(LinearAttentionSpec { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, conv_width: 4, .. }) =
        &next.layers[0].attention
    else {
        panic!("{:?}", next.layers[0])
    };
    let full = gqa(&next, 3);
    assert!(full.output_gate && full.qk_norm == QkNorm::PerHead);
    assert_eq!(full.rope.as_ref().map(|r| r.dim), Some(64));
    assert_eq!(moe(&next, 0).shared.as_ref().map(|s| s.gated), Some(true));
    let v32 = built_in("deepseek-v3.2");
    assert_eq!(mla(&v32, 0).sparse_topk, Some(2048));
    // wq_b 8192 x 1536, wk 128 x 7168, weights_proj 64 x 7168, norm of 128 with bias; 61 layers of two bytes.
    assert_eq!(v32.outside_graph[0].bytes_per_rank, 61 * 2 * (8192 * 1536 + 128 * 7168 + 64 * 7168 + 256));
    let maverick = built_in("llama-4-maverick");
    assert_eq!(dense_layers(&maverick), (0..48).step_by(2).collect::<Vec<_>>());
    assert_eq!((gqa(&maverick, 0).window, gqa(&maverick, 3).window, &gqa(&maverick, 3).rope), (Some(8192), None, &None));
    assert!(matches!(gqa(&built_in("llama-4-scout"), 0).rope.as_ref().unwrap().scaling, RopeScaling::Llama3 { .. }));
}

#[test]
fn every_built_in_model_has_its_published_size() {
    // Billions of parameters of the text decoders, from the models' cards and reports; the last digit shown is the rounding.
    let published = [
        ("deepseek-r1", 671.0, 1.0),
        ("deepseek-v2-lite", 15.7, 0.1),
        ("deepseek-v3", 671.0, 1.0),
        ("deepseek-v3.2", 671.0, 1.0),
        ("glm-4.5-air", 107.0, 1.0),
        ("glm-5-nvfp4", 744.0, 2.0),
        ("gpt-oss-120b", 116.83, 0.01),
        ("gpt-oss-20b", 20.91, 0.01),
        ("granite-3.1-3b-a800m", 3.3, 0.1),
        ("kimi-k2", 1026.0, 1.0),
        ("kimi-k2.5", 1026.0, 1.0),
        ("kimi-k2.5-nvfp4", 1026.0, 1.0),
        ("llama-4-maverick", 400.0, 2.0),
        ("llama-4-scout", 108.0, 1.0),
        ("minimax-m2", 229.0, 1.0),
        ("minimax-m2.5", 229.0, 1.0),
        ("minimax-m2.5-nvfp4", 229.0, 1.0),
        ("mixtral-8x22b", 141.0, 1.0),
        ("mixtral-8x7b", 46.7, 0.1),
        ("olmoe-1b-7b", 6.9, 0.1),
        ("phi-3.5-moe", 41.9, 0.1),
        ("qwen1.5-moe-a2.7b", 14.3, 0.1),
        ("qwen2-57b-a14b", 57.4, 0.1),
        ("qwen3-235b-a22b", 235.0, 1.0),
        ("qwen3-235b-a22b-fp8", 235.0, 1.0),
        ("qwen3-30b-a3b", 30.5, 0.1),
        ("qwen3-30b-a3b-fp8", 30.5, 0.1),
        ("qwen3-coder-480b-a35b", 480.0, 1.0),
        ("qwen3-next-80b-a3b", 80.0, 1.0),
        ("qwen3.5-397b-a17b", 397.0, 2.0),
    ];
    assert_eq!(zoo::list().iter().map(|m| m.name).collect::<Vec<_>>(), published.map(|p| p.0));
    for (name, billions, digit) in published {
        let total = built_in(name).total_parameters() as f64 / 1e9;
        assert!((total - billions).abs() <= digit / 2.0, "{name}: {total} is not {billions}");
    }
}

#[test]
fn models_are_found_by_either_name() {
    assert_eq!(zoo::find("KIMI-K2.5"), zoo::find("moonshotai/kimi-k2.5"));
    assert!(zoo::find("kimi").is_none());
    let error = zoo::spec("kimi").unwrap_err().to_string();
    assert!(error.contains("\"kimi\"") && error.contains("kimi-k2.5, "), "{error}");
    let types = model_types();
    assert!(types.is_sorted() && types.contains(&"qwen3_moe"));
}
