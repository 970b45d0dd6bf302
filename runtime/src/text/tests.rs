use super::*;
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::OnceLock;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/shakespeare-moe-int4")
}

/// The fixture's tokenizer: byte-level, 1024 tokens.
fn text() -> &'static TextModel {
    static TEXT: OnceLock<TextModel> = OnceLock::new();
    TEXT.get_or_init(|| TextModel::open(&folder(), 1024).unwrap())
}

fn streamed(ids: &[u32]) -> (Vec<String>, String) {
    let mut stream = text().stream();
    let mut pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    let whole = pieces.concat();
    (pieces, whole)
}

/// The recorded generation, both ways.
#[test]
fn the_recorded_tokens_are_the_recorded_text() {
    let expected: serde_json::Value = serde_json::from_slice(&std::fs::read(folder().join("expected.json")).unwrap()).unwrap();
    for (ids, greedy) in expected["greedy"].as_array().unwrap().iter().zip(expected["greedy_text"].as_array().unwrap()) {
        let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let greedy = greedy.as_str().unwrap();
        assert_eq!(text().decode(&ids).unwrap(), greedy);
        assert_eq!(streamed(&ids).1, greedy);
    }
    for prompt in expected["prompts"].as_array().unwrap() {
        let prompt = prompt.as_str().unwrap();
        assert_eq!(text().decode(&text().encode(prompt).unwrap()).unwrap(), prompt);
    }
}

/// A snowman is three bytes and three tokens here: nothing is shown before the last one.
#[test]
fn a_character_is_shown_when_it_is_whole() {
    let ids = text().encode("a☃b").unwrap();
    assert_eq!(ids.len(), 5);
    assert_eq!(streamed(&ids).0, ["a", "", "", "☃", "b", ""]);
    // Cut off inside the character, what is left is said at the end.
    assert_eq!(streamed(&ids[..3]).0, ["a", "", "", "\u{FFFD}"]);
}

#[test]
fn special_tokens_have_no_text() {
    assert_eq!(text().decode(&[0, 1]).unwrap(), "");
    assert_eq!(streamed(&[0, 36, 1]).1, text().decode(&[36]).unwrap());
    assert_eq!(text().decode(&[5000]).unwrap(), "", "an id of the model's padding");
}

#[test]
fn what_is_no_tokenizer_is_refused_with_the_place() {
    let told = |json: &[u8]| TextModel::from_bytes("t.json", json, 10).unwrap_err().to_string();
    for json in [&b""[..], b"{", b"[]", b"{}", br#"{"version":"1.0"}"#, b"\xff", br#"{"version":"1.0","model":{"type":"Nothing"}}"#] {
        assert!(told(json).starts_with("t.json: not a tokenizer.json: "), "{}", told(json));
    }
    let absent = TextModel::open(&folder().join("absent"), 10).unwrap_err();
    assert!(absent.to_string().contains("tokenizer.json: No such file"), "{absent}");
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let small = TextModel::open(&folder(), 100).unwrap();
    let error = small.encode("yonder window").unwrap_err();
    assert!(matches!(error, TextError::OutsideVocabulary { vocab: 100, .. }), "{error}");
}

#[test]
fn stop_tokens_come_from_either_file() {
    let stops = |config: &str, generation: Option<&str>| stop_tokens(config, generation).map_err(|e| e.to_string());
    assert_eq!(stops(r#"{"eos_token_id": 7}"#, None), Ok(vec![7]));
    assert_eq!(stops(r#"{"eos_token_id": 7}"#, Some(r#"{"eos_token_id": [8, 9]}"#)), Ok(vec![8, 9]));
    assert_eq!(stops(r#"{"eos_token_id": null, "text_config": {"eos_token_id": 3}}"#, Some("{}")), Ok(vec![3]));
    assert_eq!(stops("{}", None), Ok(vec![]));
    let wrong = stops(r#"{"eos_token_id": -1}"#, None).unwrap_err();
    assert!(wrong.starts_with("config.json: eos_token_id must be a token id or a list of them: "), "{wrong}");
}

#[test]
fn greedy_takes_the_lowest_of_equal_ids_and_no_nan() {
    let next = |logits: &[f32]| Sampler::Greedy.next(logits, 0, 0);
    assert_eq!(next(&[1.0, 3.0, 3.0, 2.0]), Ok(1));
    assert_eq!(next(&[f32::NAN, f32::NEG_INFINITY, f32::NAN]), Ok(1));
    assert_eq!(next(&[-0.0, 0.0]), Ok(0));
    assert_eq!(next(&[f32::NAN; 3]), Err(SamplingError::NoNumber(3)));
    assert_eq!(next(&[]), Err(SamplingError::NoNumber(0)));
}

#[test]
fn settings_out_of_range_are_refused() {
    assert_eq!(Sampler::new(0.0, 1.0, 1), Ok(Sampler::Greedy));
    for temperature in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(Sampler::new(temperature, 1.0, 1), Err(SamplingError::Temperature(_))));
    }
    for top_p in [0.0, -0.5, 1.5, f64::NAN] {
        assert_eq!(Sampler::new(1.0, top_p, 1).unwrap_err().to_string(), format!("top-p {top_p}: must be above 0 and at most 1"));
    }
}

/// How often each token comes out of many draws.
fn shares(sampler: Sampler, logits: &[f32]) -> Vec<f64> {
    const DRAWS: u64 = 20_000;
    let mut counts = vec![0.0; logits.len()];
    for position in 0..DRAWS {
        counts[sampler.next(logits, 3, position).unwrap() as usize] += 1.0 / DRAWS as f64;
    }
    counts
}

/// Probabilities 1/2, 1/4, 1/8, 1/8 at temperature 1; their square roots, normalized, at temperature 2.
#[test]
fn draws_follow_the_distribution() {
    let logits = [0.125f32.ln(), 0.5f32.ln(), 0.125f32.ln(), 0.25f32.ln()];
    let close = |sampler: Sampler, expected: [f64; 4]| {
        for (share, expected) in shares(sampler, &logits).into_iter().zip(expected) {
            // Five standard deviations of a share of 20,000 draws are below 0.018.
            assert!((share - expected).abs() < 0.018, "{share} for {expected}");
        }
    };
    close(Sampler::new(1.0, 1.0, 9).unwrap(), [0.125, 0.5, 0.125, 0.25]);
    close(Sampler::new(2.0, 1.0, 9).unwrap(), [0.185, 0.369, 0.185, 0.261]);
    // The two likeliest reach 0.7, three are needed for 0.8: of the two equal ones the lower id.
    close(Sampler::new(1.0, 0.7, 9).unwrap(), [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]);
    close(Sampler::new(1.0, 0.8, 9).unwrap(), [1.0 / 7.0, 4.0 / 7.0, 0.0, 2.0 / 7.0]);
    close(Sampler::new(1.0, 0.01, 9).unwrap(), [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn a_draw_depends_on_seed_sequence_and_position_only() {
    let logits = [0.0f32; 1000];
    let next = |seed, sequence, position| Sampler::new(1.0, 1.0, seed).unwrap().next(&logits, sequence, position).unwrap();
    assert_eq!(next(1, 2, 3), next(1, 2, 3));
    let others = [next(2, 2, 3), next(1, 3, 3), next(1, 2, 4)];
    assert!(others.iter().all(|o| *o != next(1, 2, 3)), "{others:?}");
}

#[test]
fn infinite_logits_are_certain() {
    let sampler = Sampler::new(1.0, 1.0, 5).unwrap();
    let certain = shares(sampler, &[0.0, f32::INFINITY, f32::NAN]);
    assert!(certain[0] == 0.0 && certain[1] > 0.999 && certain[2] == 0.0, "{certain:?}");
    let even = shares(sampler, &[f32::NEG_INFINITY; 2]);
    assert!((even[0] - 0.5).abs() < 0.018, "{even:?}");
}

/// The shipped tokenizer with bytes changed, removed or cut off. The library that reads it panics on some such files; that must come out
/// as a refusal too.
fn damaged(at: prop::sample::Index, kind: u8, byte: u8) -> Vec<u8> {
    let mut bytes = std::fs::read(folder().join("tokenizer.json")).unwrap();
    let at = at.index(bytes.len());
    match kind % 3 {
        0 => bytes[at] = byte,
        1 => drop(bytes.remove(at)),
        _ => bytes.truncate(at),
    }
    bytes
}

proptest! {
    #[test]
    fn a_damaged_tokenizer_is_read_or_refused(at: prop::sample::Index, kind: u8, byte: u8) {
        match TextModel::from_bytes("damaged.json", &damaged(at, kind, byte), 1024) {
            Ok(model) => { let _ = model.encode("ROMEO: what light"); }
            Err(e) => prop_assert!(e.to_string().contains("damaged.json"), "{e}"),
        }
    }

    /// Any tokens, also such that are no text: all pieces are the whole, and no piece ends inside a character.
    #[test]
    fn pieces_are_the_whole(ids in prop::collection::vec(0u32..1030, 0..40)) {
        let (pieces, whole) = streamed(&ids);
        let decoded = text().decode(&ids).unwrap();
        prop_assert_eq!(&whole, &decoded);
        let (_, shown) = pieces.split_last().unwrap();
        let broken = |text: &str| text.contains('\u{FFFD}');
        prop_assert!(broken(&decoded) || !shown.iter().any(|p| broken(p)), "{:?}", shown);
    }

    #[test]
    fn text_survives(input in "\\PC{0,40}") {
        prop_assert_eq!(text().decode(&text().encode(&input).unwrap()).unwrap(), input.clone());
        prop_assert_eq!(streamed(&text().encode(&input).unwrap()).1, input);
    }

    #[test]
    fn a_choice_is_always_a_number_of_the_list(logits in prop::collection::vec(any::<f32>(), 0..20), t in 0.0f64..3.0, p in 0.01f64..=1.0, seed: u64) {
        let next = Sampler::new(t, p, seed).unwrap().next(&logits, 0, seed);
        match next {
            Ok(id) => prop_assert!(!logits[id as usize].is_nan()),
            Err(_) => prop_assert!(logits.iter().all(|l| l.is_nan())),
        }
    }
}

/// Found by fuzzing: the library panics on members that are no strings where it expects names.
#[test]
fn a_file_that_is_no_tokenizer_is_refused_without_a_panic() {
    for json in [
        r#"{"version": "1.0", "decoder": {1: 2}}"#,
        r#"{"version": "1.0", "model": {"type": "BPE"}, "decoder": {"type": 5}}"#,
        "[]",
        "\u{0}",
    ] {
        let error = TextModel::from_bytes("tokenizer.json", json.as_bytes(), 8).err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.contains("tokenizer.json")), "{json}");
    }
}
