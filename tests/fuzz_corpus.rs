//! Replays the corpus of every fuzz target, so that a crash found once stays fixed without a fuzzer.

use moetwin_cases::TARGETS;
use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())).map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_corpus_passes_its_check() {
    for (name, check) in TARGETS {
        let files = entries(&fuzz().join("corpus").join(name));
        assert!(files.len() >= 3, "{name}: a corpus needs at least an accepted, a rejected and an odd input");
        for file in files {
            let data = fs::read(&file).unwrap();
            let passed = catch_unwind(AssertUnwindSafe(|| check(&data)));
            assert!(passed.is_ok(), "{}", file.display());
        }
    }
}

#[test]
fn odd_inputs_pass_every_check() {
    // Cheap inputs that no corpus needs to hold: nothing, one byte of each kind, long runs.
    let mut inputs: Vec<Vec<u8>> = vec![Vec::new()];
    inputs.extend([0u8, 1, b' ', b'"', b'{', b'[', b'0', 0x7f, 0x80, 0xff].map(|b| vec![b]));
    inputs.extend([b'[', b'{', b'"', b'(', b'9', 0, 0xff].map(|b| vec![b; 20_000]));
    for (name, check) in TARGETS {
        for input in &inputs {
            let passed = catch_unwind(AssertUnwindSafe(|| check(input)));
            assert!(passed.is_ok(), "{name}: {} times {:?}", input.len(), input.first());
        }
    }
}

#[test]
fn targets_files_and_corpora_agree() {
    let stems = |folder: &str| -> BTreeSet<String> {
        entries(&fuzz().join(folder)).iter().map(|p| p.file_stem().unwrap().to_string_lossy().into_owned()).collect()
    };
    let names: BTreeSet<String> = TARGETS.iter().map(|(n, _)| (*n).to_owned()).collect();
    assert_eq!(stems("fuzz_targets"), names);
    assert_eq!(stems("corpus"), names);
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for name in &names {
        assert!(manifest.contains(&format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"")), "{name} has no [[bin]]");
        let target = fs::read_to_string(fuzz().join("fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(target.contains(&format!("moetwin_cases::check_{name}(data)")), "{name} calls another check");
    }
}
