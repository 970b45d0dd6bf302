//! Figures of published models, computed from their configurations.

use moetwin_models::dtype::{DType, WeightFormat};
use moetwin_models::spec::{Attention, Ffn, MlaSpec, MoeSpec, RopeScaling};
use moetwin_models::{ModelSpec, zoo};

fn spec(name: &str) -> ModelSpec {
    zoo::spec(name).unwrap_or_else(|e| panic!("{e}"))
}
fn mla(spec: &ModelSpec, layer: usize) -> &MlaSpec {
    match &spec.layers[layer].attention {
        Attention::Mla(mla) => mla,
        other => panic!("{other:?}"),
    }
}
fn moe(spec: &ModelSpec, layer: usize) -> &MoeSpec {
    match &spec.layers[layer].ffn {
        Ffn::Moe(moe) => moe,
        other => panic!("{other:?}"),
    }
}
/// Within half of the last digit of a published figure.
fn about(value: u64, published: f64, digit: f64) {
    assert!((value as f64 - published).abs() <= digit / 2.0, "{value} is not {published}");
}

#[test]
fn kimi_k2_5_has_its_published_sizes() {
    let kimi = spec("kimi-k2.5");
    about(kimi.total_parameters(), 1.026e12, 1e9);
    about(kimi.active_parameters(), 31.7e9, 0.1e9);
    about(kimi.weight_bytes(), 594.2e9, 0.1e9);
    assert_eq!(kimi.kv_bytes_per_token(DType::Bf16), 70_272);
    assert_eq!(kimi.kv_bytes_per_token(DType::Fp8), 35_136);
    assert_eq!(kimi.architecture, "KimiK25ForConditionalGeneration");
    assert_eq!((kimi.model_type.as_str(), kimi.tensor_prefix.as_str()), ("kimi_k2", "language_model."));
    assert_eq!(kimi.layers.len(), 61);
    assert!(matches!(kimi.layers[0].ffn, Ffn::Dense(_)));
    assert!(kimi.executable);
    // 27 layers of 1152 and the projector: 0.87 GiB a rank.
    let [vision] = &kimi.outside_graph[..] else { panic!("{:?}", kimi.outside_graph) };
    assert_eq!(vision.bytes_per_rank, 2 * vision_parameters());
    about(vision.bytes_per_rank, 0.875 * (1u64 << 30) as f64, 0.01 * (1u64 << 30) as f64);
    assert!(kimi.warnings.iter().any(|w| w.contains("vision tower")), "{:?}", kimi.warnings);
}

/// Kimi-K2.5's tower and projector, tensor by tensor as its modelling code declares them.
fn vision_parameters() -> u64 {
    let (d, i, h) = (1152u64, 4304, 7168);
    let linear = |rows: u64, cols: u64| rows * cols + rows;
    let layer = linear(3 * d, d) + linear(d, d) + linear(i, d) + linear(d, i) + 2 * 2 * d;
    let projector = 2 * d + linear(4 * d, 4 * d) + linear(h, 4 * d);
    linear(d, 14 * 14 * 3) + 64 * 64 * d + 27 * layer + 2 * d + projector
}

#[test]
fn kimi_k2_5_quantizes_routed_experts_only() {
    let kimi = spec("kimi-k2.5");
    let experts = moe(&kimi, 1);
    assert_eq!((experts.experts, experts.topk, experts.intermediate), (384, 8, 2048));
    assert_eq!(experts.format, WeightFormat::Int4Group { group: 32 });
    assert_eq!(experts.shared.as_ref().map(|s| (s.intermediate, s.format)), Some((2048, WeightFormat::Bf16)));
    assert_eq!(mla(&kimi, 1).format, WeightFormat::Bf16);
    let Ffn::Dense(dense) = &kimi.layers[0].ffn else { panic!() };
    assert_eq!((dense.intermediate, dense.format), (18_432, WeightFormat::Bf16));
    assert_eq!((experts.router.scale, experts.router.groups), (2.827, 1));
}

#[test]
fn deepseek_v3_has_its_published_sizes() {
    let v3 = spec("deepseek-v3");
    about(v3.total_parameters(), 671e9, 1e9);
    about(v3.active_parameters(), 37e9, 1.5e9);
    assert_eq!(v3.layers.iter().filter(|l| matches!(l.ffn, Ffn::Dense(_))).count(), 3);
    let fp8 = WeightFormat::Fp8Block { rows: 128, cols: 128 };
    let experts = moe(&v3, 3);
    assert_eq!((mla(&v3, 0).format, experts.format, v3.embedding_format), (fp8, fp8, WeightFormat::Bf16));
    let router = &experts.router;
    assert_eq!((router.groups, router.topk_groups, router.scale, router.normalize_eps), (8, 4, 2.5, 1e-20));
    assert!(v3.warnings.iter().any(|w| w.contains("1 multi-token-prediction layer left out")), "{:?}", v3.warnings);
}

#[test]
fn softmax_scales_carry_yarn_s_temperature() {
    for (name, scale) in [("kimi-k2.5", 0.1446796), ("deepseek-v3", 0.1352338), ("deepseek-r1", 0.1352338)] {
        let spec = spec(name);
        let mla = mla(&spec, 0);
        assert!((mla.softmax_scale - scale).abs() < 5e-8, "{name}: {}", mla.softmax_scale);
        assert_eq!(mla.rope.attention_factor(), 1.0, "{name}");
        assert_eq!(mla.latent_norm_eps, 1e-6, "{name}");
        assert!(mla.rope.interleaved, "{name}");
    }
    // Without mscale_all_dim the scale stays plain and cos and sin take the temperature.
    let lite = spec("deepseek-v2-lite");
    assert_eq!(mla(&lite, 0).softmax_scale, 1.0 / 192f64.sqrt());
    assert!((mla(&lite, 0).rope.attention_factor() - (0.1 * 40f64.ln() + 1.0)).abs() < 1e-12);
    assert_eq!(mla(&lite, 0).q_lora, None);
}

#[test]
fn yarn_ranges_of_the_files() {
    for (name, range) in [("kimi-k2.5", (8.0, 20.0)), ("deepseek-v3", (10.0, 23.0)), ("kimi-k2", (19.0, 20.0))] {
        let spec = spec(name);
        let rope = &mla(&spec, 0).rope;
        assert!(matches!(rope.scaling, RopeScaling::Yarn { .. }));
        assert_eq!(rope.yarn_correction_range(), Some(range), "{name}");
    }
}
