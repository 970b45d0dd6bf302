//! Files: headers, shards, writing.

use super::Folder;
use crate::weights::*;
use proptest::prelude::*;

fn open_faults(folder: &Folder) -> Vec<Fault> {
    Checkpoint::open(&folder.0).map(|_| Vec::new()).unwrap_or_else(|e| e.faults)
}

fn raw_file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..data_bytes).map(|i| i as u8));
    file
}

fn bytes_of(tensors: &[OutTensor]) -> Vec<u8> {
    let mut file = Vec::new();
    write_to(&mut file, tensors).unwrap();
    file
}

fn memory(header: &str, data_bytes: usize) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::from_bytes("memory", raw_file(header, data_bytes))
}

fn texts(outcome: Result<Checkpoint, CheckpointError>) -> Vec<String> {
    outcome.map(|_| Vec::new()).unwrap_or_else(|e| e.faults.iter().map(ToString::to_string).collect())
}

#[test]
fn tensors_are_found_by_name_with_their_bytes() {
    let c = memory(
        r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},"a":{"dtype":"I8","shape":[1,2],"data_offsets":[0,2]}}"#,
        4,
    )
    .unwrap();
    assert_eq!(c.len(), 2);
    let b = c.get("b").unwrap();
    assert_eq!((b.dtype, b.shape, b.bytes), (StoredType::U8, &[2][..], &[2, 3][..]));
    assert_eq!(c.get("a").unwrap().bytes, [0, 1]);
    assert!(c.get("c").is_none());
    assert_eq!(c.tensors().map(|t| t.name).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn one_error_lists_every_fault_of_a_file() {
    let entry =
        |name: &str, start: u64, end: u64| format!(r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}"#, end - start);
    let header = format!("{{{},{},{},{}}}", entry("a", 0, 4), entry("b", 2, 6), entry("c", 8, 10), entry("d", 30, 40));
    assert_eq!(
        texts(memory(&header, 12)),
        [
            "memory: b overlaps a",
            "memory: 2 bytes between b and c belong to no tensor",
            "memory: 20 bytes between c and d belong to no tensor",
            &format!("memory: truncated: {} bytes are declared and {} are there", 8 + header.len() + 40, 8 + header.len() + 12),
        ]
    );
    let header = format!(
        r#"{{"x":{{"dtype":"BF17","shape":[1],"data_offsets":[0,2]}},"y":{{"dtype":"F32","shape":[3],"data_offsets":[0,8]}},{},"z":{{"dtype":"F32","shape":[{big},{big}],"data_offsets":[9,3]}}}}"#,
        entry("w", 0, 1),
        big = u64::MAX
    );
    assert_eq!(
        texts(memory(&header, 1)),
        [
            r#"memory: x: unknown element type "BF17""#.to_string(),
            "memory: y: data_offsets [0, 8] do not span the 12 bytes of F32 [3]".into(),
            format!("memory: z: F32 [{big}, {big}] is not a whole number of bytes below 2^64", big = u64::MAX),
        ]
    );
}

#[test]
fn bytes_that_no_tensor_claims_are_a_fault() {
    let one = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    assert!(memory(one, 2).is_ok());
    assert_eq!(texts(memory(one, 5)), ["memory: 3 bytes at the end belong to no tensor"]);
    let late = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#;
    assert_eq!(texts(memory(late, 3)), ["memory: 1 bytes before a belong to no tensor"]);
}

#[test]
fn headers_that_are_not_headers_say_so() {
    let told = |file: Vec<u8>| texts(Checkpoint::from_bytes("memory", file)).join("|");
    assert_eq!(told(vec![1, 2, 3]), "memory: truncated: 8 bytes are declared and 3 are there");
    assert_eq!(told(100u64.to_le_bytes().to_vec()), "memory: truncated: 108 bytes are declared and 8 are there");
    assert!(
        told(u64::MAX.to_le_bytes().to_vec()).starts_with("memory: not a safetensors file: it declares a header of 18446744073709551615")
    );
    for header in [
        "[]",
        "{",
        r#"{"a":1}"#,
        r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}"#,
        "{}x",
        r#"{"__metadata__":{"a":1}}"#,
        "\u{1}",
    ] {
        assert!(told(raw_file(header, 0)).starts_with("memory: header is not what safetensors prescribes: "), "{header}");
    }
    let mut file = raw_file(r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"?":"?"}}"#, 0);
    assert!(Checkpoint::from_bytes("memory", file.clone()).is_ok(), "a member that no one reads");
    let mark = file.iter().rposition(|b| *b == b'?').unwrap();
    file[mark] = 0x9b;
    assert!(told(file).contains("invalid utf-8 sequence"));
    assert!(Checkpoint::from_bytes("memory", raw_file("{}", 0)).unwrap().is_empty());
}

#[test]
fn a_name_twice_in_a_file_is_a_fault() {
    let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    assert_eq!(texts(memory(header, 2)), ["a: duplicate, in memory and in memory"]);
}

#[test]
fn shards_and_their_index_must_agree() {
    let folder = Folder::new("index");
    let shard = |names: &[&str]| bytes_of(&names.iter().map(|n| OutTensor::f32(*n, vec![1], vec![1.0])).collect::<Vec<_>>());
    folder.file("one.safetensors", shard(&["a", "b"]));
    folder.file("two.safetensors", shard(&["c", "d"]));
    let index = |map: &str| format!(r#"{{"metadata":{{"total_size":16,"more":[1,{{}}]}},"weight_map":{{{map}}}}}"#);
    let right = r#""a":"one.safetensors","c":"two.safetensors","b":"one.safetensors","d":"two.safetensors""#;
    folder.file(INDEX_FILE, index(right));
    let c = Checkpoint::open(&folder.0).unwrap();
    assert_eq!(c.tensors().map(|t| t.name).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(c.get("d").unwrap().bytes, 1.0f32.to_le_bytes());
    let told = |map: &str| {
        folder.file(INDEX_FILE, index(map));
        open_faults(&folder).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        told(r#""a":"two.safetensors","b":"one.safetensors","b":"one.safetensors","e":"one.safetensors""#),
        [
            "a: model.safetensors.index.json puts it in two.safetensors, it is in one.safetensors",
            "b: duplicate, twice in model.safetensors.index.json",
            "e: missing: model.safetensors.index.json puts it in one.safetensors, which does not hold it",
            "c: is in two.safetensors and not listed in model.safetensors.index.json",
            "d: is in two.safetensors and not listed in model.safetensors.index.json",
        ]
    );
    assert_eq!(
        told(r#""a":"../one.safetensors","b":"three.safetensors""#),
        [
            r#"a: model.safetensors.index.json puts it in "../one.safetensors", which is not the name of a file beside it"#,
            "three.safetensors: No such file or directory (os error 2)",
        ]
    );
    assert_eq!(told(""), ["model.safetensors.index.json: lists no tensor"]);
    folder.file("two.safetensors", shard(&["b", "c", "d"]));
    assert_eq!(told(right), ["b: duplicate, in one.safetensors and in two.safetensors"]);
    folder.file("two.safetensors", &shard(&["c", "d"])[..100]);
    assert!(told(right).join("|").starts_with("two.safetensors: truncated: "));
    folder.file(INDEX_FILE, "{}");
    assert_eq!(open_faults(&folder)[0].to_string(), "model.safetensors.index.json: has no weight_map");
    folder.file(INDEX_FILE, "");
    assert_eq!(open_faults(&folder)[0].to_string(), "model.safetensors.index.json: is empty");
}

#[test]
fn a_folder_without_a_checkpoint_says_what_it_looked_for() {
    let folder = Folder::new("nothing");
    assert!(open_faults(&folder)[0].to_string().ends_with(": no model.safetensors and no model.safetensors.index.json"));
    folder.file("pytorch_model.bin", "");
    assert!(open_faults(&folder)[0].to_string().ends_with("(there are pytorch_model.bin, which are not read)"));
    assert!(Checkpoint::open(&folder.0.join("absent")).unwrap_err().to_string().contains("No such file"));
}

#[test]
fn what_is_written_is_read_back_and_nothing_is_left_beside_it() {
    let folder = Folder::new("write");
    let tensors = [
        OutTensor::f32("logits", vec![2, 2], vec![1.0, -2.5, f32::MAX, 0.0]),
        OutTensor::i32("router.1.experts", vec![3], vec![7, -1, 0]),
        OutTensor { name: "raw".into(), shape: vec![3], values: OutValues::Raw(StoredType::U8, vec![1, 2, 3]) },
    ];
    let path = folder.0.join(SINGLE_FILE);
    write_safetensors(&path, &tensors).unwrap();
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    let c = Checkpoint::open(&folder.0).unwrap();
    let logits: Vec<u8> = [1.0, -2.5, f32::MAX, 0.0].iter().flat_map(|v: &f32| v.to_le_bytes()).collect();
    assert_eq!(c.get("logits").unwrap().bytes, logits);
    let experts = c.get("router.1.experts").unwrap();
    assert_eq!((experts.dtype, experts.shape), (StoredType::I32, &[3][..]));
    assert_eq!(c.get("raw").unwrap().bytes, [1, 2, 3]);
    let theirs = std::fs::read(&path).unwrap();
    assert_eq!(safetensors::SafeTensors::deserialize(&theirs).unwrap().tensor("logits").unwrap().data(), logits);

    let wrong = OutTensor::f32("a", vec![3], vec![1.0]);
    let error = write_safetensors(&path, std::slice::from_ref(&wrong)).unwrap_err();
    assert_eq!(error.to_string(), "a: 4 bytes are not F32 [3]");
    let twice = OutTensor::f32("a", vec![1], vec![1.0]);
    assert_eq!(write_safetensors(&path, &[twice.clone(), twice]).unwrap_err().to_string(), "a: twice in one file");
    assert_eq!(std::fs::read(&path).unwrap(), theirs, "a failed write leaves the old file");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
}

/// A header with a few tensors of random offsets, most of them nearly right.
fn any_file() -> impl Strategy<Value = Vec<u8>> {
    let tensor =
        ("[ab]{1,2}|__metadata__", prop::sample::select(vec!["U8", "BF16", "F4", "I64", "X"]), prop::collection::vec(0u64..4, 0..3));
    let gap = prop_oneof![8 => Just(0i64), 1 => -3i64..4, 1 => Just(i64::MAX)];
    (prop::collection::vec((tensor, gap), 0..4), -2i64..3, any::<bool>()).prop_map(|(tensors, slack, pad)| {
        let (mut next, mut entries) = (0i64, Vec::new());
        for ((name, dtype, shape), gap) in tensors {
            let bytes = StoredType::parse(dtype).and_then(|t| t.bytes_of(&shape)).unwrap_or(1) as i64;
            let start = next.saturating_add(gap).max(0);
            next = start.saturating_add(bytes);
            entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{next}]}}"#));
        }
        let header = format!("{{{}}}{}", entries.join(","), if pad { "  " } else { "" });
        raw_file(&header, usize::try_from(next.saturating_add(slack).clamp(0, 64)).unwrap_or(0))
    })
}

proptest! {
    /// The format's own reader is the oracle: what we accept it accepts, with the same tensors; what it refuses we refuse.
    #[test]
    fn we_accept_no_file_that_the_reference_reader_refuses(file in any_file()) {
        let theirs = safetensors::SafeTensors::deserialize(&file);
        match Checkpoint::from_bytes("memory", file.clone()) {
            Ok(ours) => {
                let theirs = theirs.map_err(|e| TestCaseError::fail(e.to_string()))?;
                prop_assert_eq!(ours.len(), theirs.len());
                for t in ours.tensors() {
                    let other = theirs.tensor(t.name).map_err(|e| TestCaseError::fail(e.to_string()))?;
                    prop_assert_eq!(t.bytes, other.data());
                    prop_assert_eq!(t.dtype.name(), other.dtype().to_string());
                }
            }
            // Only a repeated name passes there (the last one wins).
            Err(e) => prop_assert!(theirs.is_err() || e.faults.iter().any(|f| matches!(f, Fault::Duplicate { .. })), "{}", e),
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(mut file in any_file(), cut in any::<prop::sample::Index>(), byte: u8, at in any::<prop::sample::Index>()) {
        let i = at.index(file.len());
        file[i] = byte;
        file.truncate(cut.index(file.len() + 1));
        if let Err(e) = Checkpoint::from_bytes("memory", file) {
            prop_assert!(!e.to_string().is_empty() && !e.faults.is_empty());
        }
    }
}
