//! Random configurations of every family, whole and damaged.

use crate::configs::{cases, check_bytes, check_reasons, check_sound, config_of, damaged, damages, kv_elements, sparse_layers};
use moetwin_models::config::read;
use moetwin_models::dtype::WeightFormat;
use moetwin_models::spec::Ffn;
use moetwin_models::{DType, zoo};
use proptest::prelude::*;

const FP8: WeightFormat = WeightFormat::Fp8Block { rows: 128, cols: 128 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_valid_configuration_is_read_as_it_was_meant((family, sizes) in cases()) {
        let text = config_of(family, &sizes).to_string();
        let spec = read(&text, "config.json").map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        check_sound(&spec);
        prop_assert_eq!((spec.layers.len() as u64, spec.hidden, spec.vocab), (sizes.layers, sizes.hidden, sizes.vocab));
        prop_assert_eq!(spec.kv_bytes_per_token(DType::Bf16), 2 * kv_elements(family, &sizes));
        let sparse: Vec<_> = spec.layers.iter().filter_map(|l| if let Ffn::Moe(moe) = &l.ffn { Some(moe) } else { None }).collect();
        prop_assert_eq!(sparse.len() as u64, sparse_layers(family, &sizes));
        for moe in sparse {
            prop_assert_eq!((u64::from(moe.experts), u64::from(moe.topk), moe.intermediate), (sizes.experts(), sizes.topk, sizes.expert));
            let shared = moe.shared.as_ref().map_or(WeightFormat::Bf16, |s| s.format);
            match sizes.switches >> 12 & 3 {
                1 => prop_assert_eq!(moe.format, FP8),
                2 => prop_assert_eq!((moe.format, shared), (WeightFormat::Int4Group { group: 32 }, WeightFormat::Bf16)),
                _ => prop_assert_eq!((moe.format, shared), (WeightFormat::Bf16, WeightFormat::Bf16)),
            }
        }
    }

    #[test]
    fn a_damaged_configuration_is_read_soundly_or_rejected_with_reasons((family, sizes) in cases(), damages in damages()) {
        check_bytes(damaged(&config_of(family, &sizes), &damages).as_bytes());
    }

    #[test]
    fn a_damaged_built_in_configuration_too(model in proptest::sample::select(zoo::list()), damages in damages()) {
        let mut bytes = damaged(&serde_json::from_str(model.config).unwrap(), &damages).into_bytes();
        if let Some(quantization) = model.quantization {
            bytes.push(0);
            bytes.extend(damaged(&serde_json::from_str(quantization).unwrap(), &damages).bytes());
        }
        check_bytes(&bytes);
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check_bytes(&bytes);
    }

    #[test]
    fn a_missing_size_is_named_with_its_place((family, sizes) in cases(), which in 0usize..4) {
        let key = ["hidden_size", "num_hidden_layers", "vocab_size", "num_experts_per_tok"][which];
        let mut value = config_of(family, &sizes);
        let nested = value.get("text_config").is_some();
        let path = if nested { format!("text_config.{key}") } else { key.to_string() };
        let map = if nested { value["text_config"].as_object_mut() } else { value.as_object_mut() };
        map.unwrap().remove(key);
        let error = read(&serde_json::to_string_pretty(&value).unwrap(), "config.json").unwrap_err();
        check_reasons(&error);
        let fault = error.faults.iter().find(|f| f.path == path);
        prop_assert!(fault.is_some_and(|f| f.problem.contains("missing") && f.position.is_some() == nested), "{}", error);
    }
}
