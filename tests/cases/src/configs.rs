//! Configurations: valid ones of every family, ways to spoil them, and what must hold of whatever is read.

use moetwin_models::spec::{Attention, Ffn, ModelSpec};
use moetwin_models::{DType, config};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Families with a generator.
pub const FAMILIES: &[&str] = &[
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe",
    "glm_moe_dsa",
    "gpt_oss",
    "granitemoe",
    "kimi_k2",
    "kimi_k25",
    "llama4",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
];

/// Sizes and switches from which any family's configuration is made.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Decoder layers.
    pub layers: u64,
    /// Hidden size, a multiple of 32.
    pub hidden: u64,
    /// Vocabulary.
    pub vocab: u64,
    /// Key-value heads.
    pub kv_heads: u64,
    /// Query heads for each of them.
    pub group: u64,
    /// Size of a head, a multiple of 8.
    pub head_dim: u64,
    /// Groups of experts.
    pub expert_groups: u64,
    /// Groups that take part, at most `expert_groups`.
    pub topk_groups: u64,
    /// Experts of a group, at least 2.
    pub group_size: u64,
    /// Experts of a token, at most those of the groups that take part.
    pub topk: u64,
    /// Intermediate size of dense layers, a multiple of 32.
    pub dense: u64,
    /// Intermediate size of an expert, a multiple of 32.
    pub expert: u64,
    /// Shared experts.
    pub shared: u64,
    /// Leading dense layers, at most `layers`.
    pub first_dense: u64,
    /// Rank of the query compression, 0 for none.
    pub q_lora: u64,
    /// Rank of the key-value compression.
    pub kv_lora: u64,
    /// Which of the independent switches are on.
    pub switches: u32,
}

impl Sizes {
    fn on(&self, bit: u32) -> bool {
        self.switches >> bit & 1 == 1
    }
    /// Query heads.
    pub fn heads(&self) -> u64 {
        self.kv_heads * self.group
    }
    /// Routed experts.
    pub fn experts(&self) -> u64 {
        self.expert_groups * self.group_size
    }
    /// Dialect of transformers 5 rather than the older one.
    pub fn new_dialect(&self) -> bool {
        self.on(0)
    }
}

/// Small sizes that contradict nothing.
pub fn sizes() -> impl Strategy<Value = Sizes> {
    let shapes = (1u64..=6, 1u64..=8, 1u64..=300, 1u64..=4, 1u64..=4, 1u64..=16);
    let experts = (1u64..=4, 2u64..=6, 1u64..=4, 1u64..=4, 0u64..=2);
    let latent = (0u64..=2, 1u64..=4);
    (shapes, experts, latent, any::<u32>(), any::<(u64, u64, u64)>()).prop_map(|(shapes, experts, latent, switches, picks)| {
        let (layers, hidden, vocab, kv_heads, group, head) = shapes;
        let (expert_groups, group_size, dense, expert, shared) = experts;
        let topk_groups = 1 + picks.0 % expert_groups;
        Sizes {
            layers,
            hidden: hidden * 32,
            vocab,
            kv_heads,
            group,
            head_dim: head * 8,
            expert_groups,
            topk_groups,
            group_size,
            topk: 1 + picks.1 % (topk_groups * group_size),
            dense: dense * 32,
            expert: expert * 32,
            shared,
            first_dense: picks.2 % (layers + 1),
            q_lora: latent.0 * 32,
            kv_lora: latent.1 * 32,
            switches,
        }
    })
}

/// A family and sizes for it.
pub fn cases() -> impl Strategy<Value = (&'static str, Sizes)> {
    (proptest::sample::select(FAMILIES), sizes())
}

/// The configuration of a family.
pub fn config_of(family: &str, s: &Sizes) -> Value {
    let mut text = common(s);
    let architecture = json!(["SomeForCausalLM"]);
    let add = |text: &mut Map<String, Value>, fields: Value| {
        if let Value::Object(fields) = fields {
            text.extend(fields);
        }
    };
    match family {
        "deepseek_v2" => {
            latent(s, &mut text);
            let method = if s.on(1) { "group_limited_greedy" } else { "greedy" };
            add(&mut text, json!({"topk_method": method, "scoring_func": "softmax", "n_routed_experts": s.experts()}));
        }
        "deepseek_v3" | "kimi_k2" | "kimi_k25" | "deepseek_v32" | "glm_moe_dsa" => {
            latent(s, &mut text);
            add(&mut text, json!({"topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_routed_experts": s.experts()}));
            if s.on(1) {
                add(&mut text, json!({"num_nextn_predict_layers": 1}));
            }
            if ["deepseek_v32", "glm_moe_dsa"].contains(&family) {
                add(&mut text, json!({"index_topk": 64, "index_n_heads": 2, "index_head_dim": 8}));
                text.entry("q_lora_rank").and_modify(|r| *r = json!(s.q_lora.max(32)));
            }
        }
        "glm4_moe" => {
            add(&mut text, json!({"n_routed_experts": s.experts(), "moe_intermediate_size": s.expert, "use_qk_norm": s.on(1)}));
            add(&mut text, json!({"attention_bias": s.on(2), "partial_rotary_factor": 0.5}));
        }
        "gpt_oss" => add(&mut text, json!({"num_local_experts": s.experts(), "intermediate_size": s.expert, "sliding_window": 16})),
        "mixtral" | "phimoe" | "granitemoe" => {
            add(&mut text, json!({"num_local_experts": s.experts(), "intermediate_size": s.expert}));
        }
        "minimax_m2" => {
            let fields = json!({"num_local_experts": s.experts(), "intermediate_size": s.expert, "rotary_dim": s.head_dim / 2});
            add(&mut text, fields);
        }
        "olmoe" => add(&mut text, json!({"num_experts": s.experts(), "intermediate_size": s.expert, "attention_bias": s.on(2)})),
        "llama4" => {
            let step = if s.on(1) { 2 } else { 1 };
            add(&mut text, json!({"num_local_experts": s.experts(), "intermediate_size": s.expert, "intermediate_size_mlp": s.dense}));
            add(&mut text, json!({"interleave_moe_layer_step": step}));
        }
        // The Qwen families.
        _ => {
            add(&mut text, json!({"num_experts": s.experts(), "moe_intermediate_size": s.expert}));
            add(
                &mut text,
                json!({"shared_expert_intermediate_size": s.shared * s.expert, "mlp_only_layers": (0..s.first_dense).collect::<Vec<_>>()}),
            );
            if family == "qwen2_moe" && s.on(1) {
                add(&mut text, json!({"use_sliding_window": true, "sliding_window": 16, "max_window_layers": s.layers}));
            }
        }
    }
    rope(family, s, &mut text);
    let quantization = quantization(s);
    let inner = match family {
        "kimi_k25" => "kimi_k2",
        "llama4" => "llama4_text",
        "qwen3_5_moe" => "qwen3_5_moe_text",
        _ => {
            text.insert("model_type".into(), json!(family));
            text.insert("architectures".into(), architecture);
            text.extend(quantization.map(|q| ("quantization_config".into(), q)));
            return Value::Object(text);
        }
    };
    text.insert("model_type".into(), json!(inner));
    let mut outer = json!({"model_type": family, "architectures": architecture, "vision_config": {"patch_size": 14}, "text_config": text});
    if let (Some(q), Value::Object(outer)) = (quantization, &mut outer) {
        outer.insert("quantization_config".into(), q);
    }
    outer
}

fn common(s: &Sizes) -> Map<String, Value> {
    let fields = json!({
        "hidden_size": s.hidden,
        "vocab_size": s.vocab,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads(),
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "num_experts_per_tok": s.topk,
        "intermediate_size": s.dense,
        "n_group": s.expert_groups,
        "topk_group": s.topk_groups,
        "n_shared_experts": s.shared,
        "first_k_dense_replace": s.first_dense,
        "norm_topk_prob": s.on(3),
        "routed_scaling_factor": 2.5,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "tie_word_embeddings": s.on(4),
        if s.new_dialect() { "dtype" } else { "torch_dtype" }: "bfloat16",
    });
    match fields {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn latent(s: &Sizes, text: &mut Map<String, Value>) {
    let fields = json!({
        "num_key_value_heads": s.heads(),
        "q_lora_rank": if s.q_lora == 0 { Value::Null } else { json!(s.q_lora) },
        "kv_lora_rank": s.kv_lora,
        "qk_nope_head_dim": s.head_dim,
        "qk_rope_head_dim": s.head_dim,
        "v_head_dim": s.head_dim * 2,
        "moe_intermediate_size": s.expert,
        "attention_bias": s.on(2),
    });
    if let Value::Object(fields) = fields {
        text.extend(fields);
        text.remove("head_dim");
    }
}

fn rope(family: &str, s: &Sizes, text: &mut Map<String, Value>) {
    let scaling = match s.switches >> 8 & 3 {
        1 => json!({"factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0}),
        2 => json!({"factor": 2.0}),
        3 => json!({"factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
        _ => json!({}),
    };
    let kind = ["default", "yarn", "linear", "llama3"][(s.switches >> 8 & 3) as usize];
    let Value::Object(mut fields) = scaling else { return };
    if s.new_dialect() {
        fields.insert("rope_type".into(), json!(kind));
        fields.insert("rope_theta".into(), json!(10_000.0));
        // The hybrids and gpt-oss know two kinds of layers, so they may have two embeddings.
        let nested = s.on(5) && family == "gpt_oss";
        let value = if nested { json!({"full_attention": fields, "sliding_attention": fields}) } else { json!(fields) };
        text.insert("rope_parameters".into(), value);
    } else {
        fields.insert("type".into(), json!(kind));
        text.insert("rope_theta".into(), json!(10_000.0));
        text.insert("rope_scaling".into(), if kind == "default" { Value::Null } else { json!(fields) });
    }
}

fn quantization(s: &Sizes) -> Option<Value> {
    match s.switches >> 12 & 3 {
        1 => Some(json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})),
        2 => Some(json!({
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32}
            }},
            "ignore": ["lm_head", "re:.*attn.*", "re:.*shared_expert.*", r"re:.*(mlp|feed_forward)\.(gate|up|down)_proj.*"]
        })),
        _ => None,
    }
}

/// Expected KV elements of a token, from the sizes alone.
pub fn kv_elements(family: &str, s: &Sizes) -> u64 {
    let gqa = 2 * s.kv_heads * s.head_dim;
    match family {
        "deepseek_v2" | "deepseek_v3" | "deepseek_v32" | "glm_moe_dsa" | "kimi_k2" | "kimi_k25" => s.layers * (s.kv_lora + s.head_dim),
        "qwen3_next" | "qwen3_5_moe" => s.layers / 4 * gqa,
        _ => s.layers * gqa,
    }
}

/// Expected number of layers with experts, from the sizes alone.
pub fn sparse_layers(family: &str, s: &Sizes) -> u64 {
    match family {
        "gpt_oss" | "granitemoe" | "minimax_m2" | "mixtral" | "olmoe" | "phimoe" => s.layers,
        "llama4" if s.on(1) => s.layers / 2,
        "llama4" => s.layers,
        _ => s.layers - s.first_dense,
    }
}

/// Something to do to a configuration.
#[derive(Clone, Debug)]
pub enum Damage {
    /// Remove a field (by number, modulo their count).
    Remove(usize),
    /// Replace the value of a field.
    Replace(usize, Value),
    /// Cut the text.
    Truncate(usize),
    /// Replace a byte of the text.
    Byte(usize, u8),
}

/// Values that are wrong in many places.
pub fn wrong_values() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0u64..=8).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(1e300)),
        "[a-z_*.:()]{0,12}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!(["full_attention", 3])),
        Just(json!({"full_attention": null})),
    ]
}

/// One to three kinds of damage.
pub fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let one = prop_oneof![
        3 => any::<usize>().prop_map(Damage::Remove),
        6 => (any::<usize>(), wrong_values()).prop_map(|(i, v)| Damage::Replace(i, v)),
        1 => any::<usize>().prop_map(Damage::Truncate),
        1 => (any::<usize>(), any::<u8>()).prop_map(|(i, b)| Damage::Byte(i, b)),
    ];
    proptest::collection::vec(one, 1..=3)
}

/// The text of a configuration after the damage.
pub fn damaged(config: &Value, damages: &[Damage]) -> String {
    let mut value = config.clone();
    for damage in damages {
        match damage {
            Damage::Remove(i) => with_field(&mut value, *i, |map, key| {
                map.remove(key);
            }),
            Damage::Replace(i, new) => with_field(&mut value, *i, |map, key| {
                map.insert(key.into(), new.clone());
            }),
            Damage::Truncate(_) | Damage::Byte(..) => {}
        }
    }
    let mut bytes = value.to_string().into_bytes();
    for damage in damages {
        match damage {
            Damage::Truncate(n) => bytes.truncate(n % (bytes.len() + 1)),
            Damage::Byte(i, b) if !bytes.is_empty() => {
                let i = i % bytes.len();
                bytes[i] = *b;
            }
            _ => {}
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Applies `f` to the `index`th field, counted through all objects (modulo their number).
fn with_field(value: &mut Value, index: usize, f: impl FnOnce(&mut Map<String, Value>, &str)) {
    fn count(value: &Value) -> usize {
        value.as_object().map_or(0, |map| map.values().map(|v| 1 + count(v)).sum())
    }
    fn apply(value: &mut Value, mut index: usize, f: impl FnOnce(&mut Map<String, Value>, &str)) {
        let Value::Object(map) = value else { return };
        let keys: Vec<String> = map.keys().cloned().collect();
        for key in keys {
            if index == 0 {
                return f(map, &key);
            }
            index -= 1;
            let Some(inner) = map.get_mut(&key) else { return };
            let inside = count(inner);
            if index < inside {
                return apply(inner, index, f);
            }
            index -= inside;
        }
    }
    let fields = count(value);
    if fields > 0 {
        apply(value, index % fields, f);
    }
}

/// Reads whatever the bytes are and checks what must hold of the outcome: a sound model, or reasons.
pub fn check_bytes(bytes: &[u8]) {
    // The byte 0 separates a second text, which no JSON text contains.
    let mut texts = bytes.splitn(2, |b| *b == 0).map(String::from_utf8_lossy);
    let config = texts.next().unwrap_or_default();
    let quantization = texts.next();
    match config::read_with_quantization(&config, quantization.as_deref(), "config.json") {
        Ok(spec) => check_sound(&spec),
        Err(error) => check_reasons(&error),
    }
}

/// Every rejection has a reason, and a place where there can be one.
pub fn check_reasons(error: &config::ConfigError) {
    assert!(!error.faults.is_empty());
    for fault in &error.faults {
        assert!(!fault.problem.is_empty() && !fault.accepted.is_empty() && !fault.file.is_empty(), "{fault:?}");
        if let Some(position) = fault.position {
            assert!(position.line >= 1 && fault.to_string().contains(&format!(":{}:", position.line)), "{fault}");
        }
    }
    assert!(error.to_string().lines().count() > error.faults.len());
}

/// What every later pass relies on.
pub fn check_sound(spec: &ModelSpec) {
    assert!((1..=10_000).contains(&spec.layers.len()));
    assert!(spec.hidden > 0 && spec.vocab > 0 && spec.max_positions > 0 && spec.norm_eps.is_finite());
    assert!(spec.total_parameters() >= spec.active_parameters());
    assert!(spec.weight_bytes() <= 1 << 60);
    for layer in &spec.layers {
        match &layer.attention {
            Attention::Mla(mla) => {
                assert!(mla.softmax_scale.is_finite() && mla.softmax_scale > 0.0);
                assert_eq!(mla.rope.dim, mla.rope_dim);
                check_frequencies(&mla.rope.inverse_frequencies(), mla.rope_dim);
            }
            Attention::Gqa(gqa) => {
                assert!(gqa.heads.is_multiple_of(gqa.kv_heads) && gqa.head_dim > 0);
                assert!(gqa.window != Some(0) && gqa.softmax_scale.is_finite());
                if let Some(rope) = &gqa.rope {
                    assert!(rope.dim <= gqa.head_dim);
                    check_frequencies(&rope.inverse_frequencies(), rope.dim);
                }
            }
            Attention::Linear(linear) => assert!(linear.value_heads.is_multiple_of(linear.key_heads)),
        }
        match &layer.ffn {
            Ffn::Dense(dense) => assert!(dense.intermediate > 0),
            Ffn::Moe(moe) => {
                let router = &moe.router;
                assert!(moe.intermediate > 0 && (1..=moe.experts).contains(&moe.topk));
                assert!(moe.experts.is_multiple_of(router.groups) && (1..=router.groups).contains(&router.topk_groups));
                assert!(moe.topk <= router.topk_groups * (moe.experts / router.groups));
                assert!(router.scale.is_finite() && moe.shared.as_ref().is_none_or(|s| s.intermediate > 0));
            }
        }
    }
    let kv: u64 = spec.layers.iter().map(|l| l.attention.kv_elements_per_token()).sum();
    assert_eq!(spec.kv_bytes_per_token(DType::Bf16), 2 * kv);
}

/// Positive, and not rising from pair to pair.
fn check_frequencies(inverse: &[f64], dim: u32) {
    assert_eq!(inverse.len() as u32, dim / 2);
    assert!(inverse.iter().all(|f| f.is_finite() && *f > 0.0), "{inverse:?}");
    assert!(inverse.windows(2).all(|w| w[1] <= w[0] * (1.0 + 1e-12)), "{inverse:?}");
}
