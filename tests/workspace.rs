//! Rules about the workspace itself: who may depend on whom, where unsafe code may be, which lints every crate keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// For each crate, the crates of this workspace that it may name. `models <- kernels <- runtime <- sim <- root <- tests, fuzz`.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("models", &[]),
    ("kernels", &["models"]),
    ("runtime", &["models", "kernels"]),
    ("runtime/cuda", &["models", "kernels", "runtime"]),
    ("sim", &["models", "kernels", "runtime"]),
    ("sim/engines", &["models", "kernels", "runtime", "sim"]),
    ("tests/cases", &["models", "kernels", "runtime", "sim", "engines"]),
    ("fuzz", &["cases"]),
    (".", &["models", "kernels", "runtime", "cuda", "sim", "engines", "cases"]),
];

/// The files that may hold unsafe code, each with `#![allow(unsafe_code)]` of its own.
const UNSAFE_FILES: &[&str] = &[
    "runtime/cuda/src/cublaslt.rs",
    "runtime/cuda/src/device.rs",
    "runtime/cuda/src/doctor/lab.rs",
    "runtime/cuda/src/exec/compile.rs",
    "runtime/cuda/src/exec/driver_gpu.rs",
    "runtime/cuda/src/leave.rs",
    "runtime/cuda/src/library.rs",
    "runtime/cuda/src/nccl.rs",
    "runtime/src/weights/map.rs",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Values of a one-line or many-line string array under a key.
fn string_array(toml: &str, key: &str) -> Vec<String> {
    let start = toml.find(&format!("\n{key} = [")).unwrap_or_else(|| panic!("no {key}"));
    let body = &toml[start..];
    let body = &body[body.find('[').unwrap() + 1..body.find(']').unwrap()];
    body.split(',').map(|s| s.trim().trim_matches('"').to_owned()).filter(|s| !s.is_empty()).collect()
}

/// Names of all dependencies in a manifest, of every kind and under every target.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']').trim_matches('[');
            inside = section.ends_with("dependencies") && section != "workspace.dependencies";
            if let Some((_, name)) = section.split_once("dependencies.").filter(|(before, _)| *before != "workspace.") {
                names.insert(name.trim_matches('"').to_owned());
            }
        } else if inside
            && !line.starts_with('#')
            && let Some((name, _)) = line.split_once('=')
        {
            names.insert(name.trim().split('.').next().unwrap().trim_matches('"').to_owned());
        }
    }
    names
}

/// What a crate's manifest names against the rules.
fn wrong_dependencies(folder: &str, manifest: &str) -> Vec<String> {
    let Some((_, allowed)) = MAY_NAME.iter().find(|(f, _)| *f == folder) else {
        return vec![format!("{folder}: not in the list of crates")];
    };
    let wrong = |name: &String| match name.strip_prefix("moetwin-") {
        Some(short) => !allowed.contains(&short),
        None => name == "moetwin" || (name == "cudarc" && folder != "runtime/cuda"),
    };
    dependencies(manifest).iter().filter(|n| wrong(n)).map(|n| format!("{folder} names {n}")).collect()
}

#[test]
fn dependencies_point_one_way() {
    let members = string_array(&read("Cargo.toml"), "members");
    assert_eq!(members.iter().map(String::as_str).collect::<BTreeSet<_>>(), MAY_NAME.iter().map(|(f, _)| *f).collect());
    let wrong: Vec<String> = members.iter().flat_map(|m| wrong_dependencies(m, &read(Path::new(m).join("Cargo.toml")))).collect();
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn a_wrong_direction_would_be_seen() {
    for (folder, manifest) in [
        ("models", "[dependencies]\nmoetwin-kernels.workspace = true\n"),
        ("runtime", "[dev-dependencies]\nmoetwin-sim = { workspace = true }\n"),
        ("runtime", "[target.'cfg(unix)'.dependencies]\ncudarc = \"0.19\"\n"),
        ("sim", "[dependencies.moetwin-cuda]\nworkspace = true\n"),
        ("kernels", "[build-dependencies]\nmoetwin.workspace = true\n"),
        ("elsewhere", ""),
    ] {
        assert_eq!(wrong_dependencies(folder, manifest).len(), 1, "{folder}: {manifest}");
    }
}

#[test]
fn plain_cargo_test_runs_every_crate_but_fuzz() {
    let manifest = read("Cargo.toml");
    let mut members = string_array(&manifest, "members");
    members.retain(|m| m != "fuzz");
    assert_eq!(members, string_array(&manifest, "default-members"));
}

#[test]
fn every_crate_keeps_the_lints() {
    for (folder, _) in MAY_NAME {
        let manifest = read(Path::new(folder).join("Cargo.toml"));
        assert!(manifest.contains("\n[lints]\nworkspace = true\n"), "{folder}/Cargo.toml");
    }
    let lints = read("Cargo.toml");
    for lint in ["unsafe_code", "undocumented_unsafe_blocks", "iter_over_hash_type", "print_stdout", "print_stderr", "dbg_macro", "todo"] {
        assert!(lints.contains(&format!("\n{lint} = \"deny\"\n")), "{lint}");
    }
}

/// All Rust sources of the workspace, by path from the root.
fn sources() -> BTreeMap<String, String> {
    fn walk(folder: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.insert(path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/"), fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    let folders: BTreeSet<PathBuf> = MAY_NAME.iter().filter(|(f, _)| *f != ".").map(|(f, _)| root().join(f)).collect();
    for folder in folders.into_iter().chain(["src", "tests", "examples", "benches"].map(|f| root().join(f))).filter(|f| f.is_dir()) {
        walk(&folder, &mut found);
    }
    found
}

/// The code of a file without comments and the contents of string and character literals.
fn code_only(source: &str) -> String {
    let bytes: Vec<char> = source.chars().collect();
    let (mut code, mut i) = (String::new(), 0);
    let at = |i: usize| bytes.get(i).copied().unwrap_or('\0');
    while i < bytes.len() {
        match (at(i), at(i + 1)) {
            ('/', '/') => {
                while i < bytes.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            ('/', '*') => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= bytes.len() {
                        break;
                    }
                }
            }
            ('r', '"' | '#') if !code.ends_with(|c: char| c.is_alphanumeric() || c == '_') && raw_string(&bytes, i).is_some() => {
                i = raw_string(&bytes, i).unwrap();
            }
            ('"', _) => {
                i += 1;
                while i < bytes.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
            }
            ('\'', '\\') => {
                i += 3;
                while i < bytes.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
            }
            ('\'', _) if at(i + 2) == '\'' => i += 3,
            (c, _) => {
                code.push(c);
                i += 1;
            }
        }
    }
    code
}

/// The index behind a raw string that starts at `i` with `r`.
fn raw_string(chars: &[char], i: usize) -> Option<usize> {
    let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(i + 1 + hashes) != Some(&'"') {
        return None;
    }
    let mut end = i + 2 + hashes;
    loop {
        if end >= chars.len() {
            return Some(end);
        }
        if chars[end] == '"' && chars[end + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes {
            return Some(end + 1 + hashes);
        }
        end += 1;
    }
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_'))
}

#[test]
fn unsafe_code_is_where_the_list_says() {
    let sources = sources();
    let holding =
        |test: &dyn Fn(&str) -> bool| sources.iter().filter(|(_, s)| test(&code_only(s))).map(|(p, _)| p.as_str()).collect::<Vec<_>>();
    assert_eq!(holding(&|code| words(code).any(|w| w == "unsafe")), UNSAFE_FILES);
    // The lint lets through what an allowance above it covers, so allowances are counted too, and only whole-file ones are in use.
    assert_eq!(holding(&|code| words(code).any(|w| w == "unsafe_code")), UNSAFE_FILES);
    for file in UNSAFE_FILES {
        assert!(sources[*file].contains("\n#![allow(unsafe_code)]\n"), "{file}");
    }
}

#[test]
fn comments_and_strings_are_no_code() {
    let source = r##"// unsafe
/* unsafe /* nested */ unsafe */ let a = "unsafe \" unsafe"; let b = r#"unsafe " "#; let c = '"'; let d = '\''; let r = 'x'; real<'a>()"##;
    assert_eq!(words(&code_only(source)).filter(|w| *w == "unsafe").count(), 0);
    assert!(code_only(source).contains("real<'a>()"));
    assert_eq!(words(&code_only("let s = \"a\"; unsafe { x() } // y")).filter(|w| *w == "unsafe").count(), 1);
}

#[test]
fn allowances_of_output_lints_are_not_in_use() {
    for (path, source) in sources() {
        let code = code_only(&source);
        for lint in ["print_stdout", "print_stderr", "dbg_macro"] {
            assert!(!words(&code).any(|w| w == lint), "{path} allows {lint}");
        }
    }
}
