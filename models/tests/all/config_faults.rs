//! What is wrong with a configuration is said with its path, its place and what would be right.

use moetwin_models::config::{ConfigError, read, read_with_quantization};
use moetwin_models::zoo;
use serde_json::{Value, json};

const V3: &str = include_str!("../../../tests/fixtures/tiny-deepseek-v3/config.json");
const V2: &str = include_str!("../../../tests/fixtures/tiny-deepseek-v2/config.json");
const INT4: &str = include_str!("../../../tests/fixtures/tiny-kimi-k2-int4/config.json");
const FP8: &str = include_str!("../../../tests/fixtures/tiny-deepseek-v3-fp8/config.json");
const YARN: &str = include_str!("../../../tests/fixtures/tiny-deepseek-v3-yarn/config.json");
const QWEN2: &str = include_str!("../../../tests/fixtures/tiny-qwen2-moe/config.json");
const QWEN3: &str = include_str!("../../../tests/fixtures/tiny-qwen3-moe/config.json");
const OLMOE: &str = include_str!("../../../tests/fixtures/tiny-olmoe/config.json");
const GLM: &str = include_str!("../../../tests/fixtures/tiny-glm4-moe/config.json");
const GPT: &str = include_str!("../../../tests/fixtures/tiny-gpt-oss/config.json");
const MIXTRAL: &str = include_str!("../../../tests/fixtures/tiny-mixtral/config.json");

/// The text with some fields replaced; a path's steps are separated by `/`.
fn with(text: &str, changes: &[(&str, Value)]) -> String {
    let mut value: Value = serde_json::from_str(text).unwrap();
    for (path, new) in changes {
        let mut place = &mut value;
        for step in path.split('/') {
            place = &mut place[step];
        }
        *place = new.clone();
    }
    serde_json::to_string_pretty(&value).unwrap()
}

fn fails(text: &str) -> ConfigError {
    read(text, "config.json").expect_err("should be rejected")
}

/// One fault, of that field, that says that, and accepts that.
#[track_caller]
fn rejected(text: &str, changes: &[(&str, Value)], path: &str, problem: &str, accepted: &str) {
    let text = with(text, changes);
    let error = fails(&text);
    let [fault] = &error.faults[..] else { panic!("{error}") };
    assert_eq!(fault.path, path, "{error}");
    assert!(fault.problem.contains(problem), "{error}");
    assert!(fault.accepted.contains(accepted), "{error}");
    // The place is where the field's last key stands in the text.
    let key = path.rsplit('.').next().unwrap().split('[').next().unwrap();
    let line = fault.position.map(|p| text.lines().nth(p.line - 1).unwrap());
    let missing = fault.problem.contains("missing");
    assert!(missing || path.contains('[') || line.is_some_and(|l| l.contains(&format!("\"{key}\""))), "{error}\n{line:?}");
}

#[test]
fn sizes_out_of_range() {
    let huge = "a whole number from 1 to 10000";
    for (value, seen) in [
        (json!(0), "is 0"),
        (json!(-4), "is -4"),
        (json!(10_001), "is 10001"),
        (json!(1.5), "is 1.5"),
        (json!("four"), "is \"four\""),
        (json!(true), "is true"),
        (json!([4]), "is a list of 1"),
        (json!(u64::MAX), "is 18446744073709551615"),
        (json!(1e300), "is 1e+300"),
    ] {
        rejected(V3, &[("num_hidden_layers", value)], "num_hidden_layers", seen, huge);
    }
    rejected(V3, &[("num_hidden_layers", Value::Null)], "num_hidden_layers", "missing", huge);
    rejected(V3, &[("n_routed_experts", json!(1 << 20))], "n_routed_experts", "is 1048576", "1 to 16384");
    rejected(V3, &[("vocab_size", json!(0))], "vocab_size", "is 0", "1 to");
    rejected(V3, &[("rms_norm_eps", json!(-1.0))], "rms_norm_eps", "is -1.0", "0.0 to 1.0");
    rejected(V3, &[("dtype", json!("int3"))], "dtype", "int3", "bfloat16, float16, float32");
    rejected(V3, &[("hidden_act", json!("gelu"))], "hidden_act", "gelu", "silu");
    // Each size may be legal and the whole absurd.
    let absurd = [
        ("num_hidden_layers", json!(10_000)),
        ("hidden_size", json!(1 << 20)),
        ("moe_intermediate_size", json!(1 << 22)),
        ("n_routed_experts", json!(16_384)),
    ];
    rejected(V3, &absurd, "num_hidden_layers", "bytes of weights", "at most");
}

#[test]
fn contradictions() {
    rejected(V3, &[("num_experts_per_tok", json!(17))], "num_experts_per_tok", "more than the 16 experts", "1 to 16");
    rejected(V3, &[("n_group", json!(3))], "n_group", "does not divide the 16 experts", "a divisor of 16");
    rejected(V3, &[("topk_group", json!(5))], "topk_group", "more than the 4 groups", "1 to 4");
    rejected(V3, &[("num_experts_per_tok", json!(9))], "num_experts_per_tok", "2 groups of 4 hold 8", "1 to 8");
    rejected(V3, &[("n_group", json!(16))], "n_group", "1 expert a group", "at least 2");
    rejected(V3, &[("first_k_dense_replace", json!(5))], "first_k_dense_replace", "4 layers", "0 to 4");
    rejected(V3, &[("num_key_value_heads", json!(2))], "num_key_value_heads", "is 2", "4");
    rejected(V3, &[("qk_head_dim", json!(33))], "qk_head_dim", "add up to 32", "32");
    rejected(V3, &[("qk_head_dim", json!(31))], "qk_head_dim", "add up to 32", "32");
    rejected(V3, &[("scoring_func", json!("softmax"))], "scoring_func", "softmax", "sigmoid");
    rejected(V3, &[("num_local_experts", json!(8))], "num_local_experts", "n_routed_experts says otherwise", "n_routed_experts");
    rejected(V3, &[("qk_rope_head_dim", json!(15)), ("qk_head_dim", json!(31))], "qk_rope_head_dim", "even", "even");
    rejected(V2, &[("topk_method", json!("noaux_tc"))], "topk_method", "noaux_tc", "greedy, group_limited_greedy");
    let grouped = [("topk_method", json!("group_limited_greedy")), ("n_group", json!(3))];
    rejected(V2, &grouped, "n_group", "does not divide", "a divisor of 8");
    rejected(MIXTRAL, &[("num_key_value_heads", json!(3))], "num_key_value_heads", "does not divide the 4", "a divisor of 4");
    rejected(MIXTRAL, &[("num_attention_heads", json!(6))], "head_dim", "not a multiple", "size of a head");
    rejected(QWEN3, &[("mlp_only_layers", json!([0, 3]))], "mlp_only_layers[1]", "is 3", "0 to 2");
    rejected(QWEN3, &[("decoder_sparse_step", json!(0))], "decoder_sparse_step", "is 0", "1 to");
    rejected(QWEN2, &[("layer_types", json!(["full_attention"]))], "layer_types", "1 entries for 3 layers", "a list of 3");
    let sliding = json!(["full_attention", "sliding_attention", "full_attention"]);
    rejected(QWEN2, &[("layer_types", sliding)], "layer_types[1]", "use_sliding_window is false", "full_attention");
    let unknown = json!(["sliding_attention", "full_attention", "mamba"]);
    rejected(GPT, &[("layer_types", unknown)], "layer_types[2]", "mamba", "sliding_attention, full_attention");
    rejected(OLMOE, &[("clip_qkv", json!(0.0))], "clip_qkv", "is 0.0", "from 1e-6");
    let both = [("partial_rotary_factor", json!(0.1)), ("rope_parameters/partial_rotary_factor", Value::Null)];
    rejected(GLM, &both, "partial_rotary_factor", "gives 1", "even");
    rejected(QWEN3, &[("partial_rotary_factor", json!(0.5))], "partial_rotary_factor", "rotates whole heads", "1.0");
}

#[test]
fn rotary_scaling() {
    let longrope = [("rope_parameters/rope_type", json!("longrope")), ("rope_parameters/type", json!("longrope"))];
    rejected(YARN, &longrope, "rope_parameters.rope_type", "longrope", "default, linear, dynamic, yarn, llama3");
    rejected(YARN, &[("rope_parameters/type", json!("linear"))], "rope_parameters.type", "rope_type says otherwise", "rope_type");
    rejected(YARN, &[("rope_parameters/factor", json!(0.5))], "rope_parameters.factor", "is 0.5", "from 1.0");
    rejected(YARN, &[("rope_parameters/beta_slow", json!(64))], "rope_parameters.beta_fast", "less than beta_slow", "at least");
    rejected(YARN, &[("rope_parameters/rope_theta", json!(1.0))], "rope_parameters.rope_theta", "is 1.0", "from 1.001");
    let text = with(YARN, &[("rope_parameters", json!({"rope_type": "yarn", "original_max_position_embeddings": 64}))]);
    let error = fails(&text);
    assert_eq!(error.faults[0].path, "rope_parameters.factor", "{error}");
    // A missing field is shown where the object stands that lacks it.
    let line = error.faults[0].position.unwrap().line;
    assert!(text.lines().nth(line - 1).unwrap().contains("rope_parameters"), "{error}");
    rejected(
        GPT,
        &[("rope_parameters", json!({"full_attention": {"rope_theta": 1e4}}))],
        "rope_parameters",
        "no entry for sliding",
        "sliding",
    );
    let dynamic = json!({"rope_type": "dynamic", "rope_theta": 1e4});
    rejected(QWEN3, &[("rope_parameters", dynamic)], "rope_parameters.factor", "dynamic scaling needs it", "from 1");
    let llama = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 64});
    rejected(QWEN3, &[("rope_parameters", llama)], "rope_parameters.high_freq_factor", "less than low", "at least");
}

#[test]
fn quantization() {
    let q = |field: &str| format!("quantization_config/{field}");
    let group = |field: &str| format!("quantization_config/config_groups/group_0/weights/{field}");
    rejected(FP8, &[(&q("quant_method"), json!("awq"))], "quantization_config.quant_method", "awq", "mxfp4");
    rejected(FP8, &[(&q("weight_block_size"), Value::Null)], "quantization_config.weight_block_size", "missing", "[128, 128]");
    rejected(FP8, &[(&q("weight_block_size"), json!([128]))], "quantization_config.weight_block_size", "1 sizes", "[128, 128]");
    rejected(FP8, &[(&q("fmt"), json!("e5m2"))], "quantization_config.fmt", "e5m2", "e4m3");
    let weights = "quantization_config.config_groups.group_0.weights";
    rejected(INT4, &[(&group("symmetric"), json!(false))], &format!("{weights}.symmetric"), "false", "true");
    rejected(INT4, &[(&group("group_size"), json!(12))], &format!("{weights}.group_size"), "is 12", "multiple of 8");
    rejected(INT4, &[(&group("strategy"), json!("channel"))], &format!("{weights}.strategy"), "channel", "group");
    rejected(INT4, &[(&group("num_bits"), json!(8))], "quantization_config.format", "8-bit int", "pack-quantized int4");
    rejected(INT4, &[(&group("group_size"), json!(48))], "quantization_config", "groups of 48", "divides every row");
    rejected(INT4, &[(&q("ignore"), json!(["lm_head", "re:("]))], "quantization_config.ignore[1]", "not an expression", "look-around");
    rejected(INT4, &[(&q("ignore"), json!(["lm_head", 3]))], "quantization_config.ignore[1]", "is 3", "a string");
    // A block whose projections differ has no format.
    let split = json!(["model.layers.1.self_attn.o_proj"]);
    rejected(FP8, &[(&q("modules_to_not_convert"), split)], "quantization_config", "gives model.layers.1.self_attn", "one format");
    // So have experts that differ; the first and the last stand for all.
    let split = json!(["model.layers.1.mlp.experts.7"]);
    rejected(FP8, &[(&q("modules_to_not_convert"), split)], "quantization_config", "model.layers.1.mlp.experts.7", "one format");
    let modelopt = json!({"quant_method": "modelopt", "quant_algo": "FP8"});
    rejected(FP8, &[("quantization_config", modelopt)], "quantization_config.quant_algo", "FP8", "NVFP4");
}

#[test]
fn a_second_file_has_its_own_name_and_places() {
    let separate = "{\"quantization\":\n {\"quant_algo\": \"W4A8\"}}";
    let error = read_with_quantization(V3, Some(separate), "dir/config.json").unwrap_err();
    assert_eq!(error.faults.len(), 1);
    let text = error.to_string();
    assert!(text.contains("hf_quant_config.json:2:3: quantization.quant_algo: is \"W4A8\""), "{text}");
    let error = read_with_quantization(V3, Some("{"), "dir/config.json").unwrap_err();
    assert!(error.to_string().contains("hf_quant_config.json:1:1: EOF"), "{error}");
    // The first file's own scheme counts.
    assert!(read_with_quantization(FP8, Some(separate), "config.json").is_ok());
}

#[test]
fn every_fault_is_found_in_one_read() {
    let kimi = zoo::find("kimi-k2.5").unwrap().config;
    let changes = [
        ("text_config/hidden_size", json!("wide")),
        ("text_config/num_experts_per_tok", json!(500)),
        ("text_config/kv_lora_rank", Value::Null),
        ("text_config/rope_scaling/factor", json!(-1)),
        ("text_config/dtype", json!(7)),
        ("text_config/quantization_config/format", json!("marlin")),
        ("vision_config/patch_size", json!(0)),
    ];
    let text = with(kimi, &changes);
    let error = fails(&text);
    let mut paths: Vec<_> = error.faults.iter().map(|f| f.path.as_str()).collect();
    paths.sort_unstable();
    let mut expected: Vec<_> = changes.iter().map(|(p, _)| p.replace('/', ".")).collect();
    expected.sort_unstable();
    assert_eq!(paths, expected, "{error}");
    let fault = error.faults.iter().find(|f| f.path.ends_with("per_tok")).unwrap();
    let position = fault.position.unwrap();
    let line = text.lines().nth(position.line - 1).unwrap();
    assert!(line[position.column - 1..].starts_with("\"num_experts_per_tok\""), "{error}");
    let expected = format!(
        "config.json:{}:{}: text_config.num_experts_per_tok: is 500, more than the 384 experts (accepted: a whole number from 1 to 384)",
        position.line, position.column
    );
    assert!(error.to_string().contains(&expected), "{error}");
}

#[test]
fn what_is_not_a_configuration() {
    for (text, problem) in [
        ("", "EOF"),
        ("{\"model_type\": \"mixtral\",}", "trailing comma"),
        ("[]", "is a list of 0"),
        ("null", "is null"),
        ("{\"hidden_size\": NaN}", "expected"),
        ("{\"hidden_size\": 1e999}", "out of range"),
    ] {
        let error = fails(text);
        assert!(error.faults[0].problem.contains(problem), "{error}");
        assert_eq!(error.faults[0].accepted, "a JSON object");
    }
    assert!(fails(&"[".repeat(100_000)).to_string().contains("recursion limit"));
    for text in ["{}", "{\"model_type\": \"mamba\"}", "{\"model_type\": 7}"] {
        let error = fails(text);
        assert_eq!(error.faults[0].path, "model_type");
    }
    let error = fails("{\"model_type\": \"mamba\"}");
    assert!(error.faults[0].accepted.contains("deepseek_v3") && error.faults[0].accepted.contains("kimi_k25"), "{error}");
    rejected(V3, &[("model_type", json!("kimi_k25"))], "text_config", "missing", "text decoder");
    let wrapped = json!({"model_type": "mixtral"});
    rejected(V3, &[("model_type", json!("kimi_k25")), ("text_config", wrapped)], "text_config.model_type", "mixtral", "kimi_k2");
}

#[test]
fn a_key_that_stands_twice() {
    let text = V3.replacen('{', "{\"n_group\": 2,", 1);
    let error = fails(&text);
    assert_eq!(error.faults[0].path, "n_group");
    assert!(error.faults[0].problem.contains("twice"), "{error}");
}
