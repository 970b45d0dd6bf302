//! The probe against libraries made here: no GPU, no toolkit, no wheel.

use moetwin_cuda::search::{CUBLASLT, DRIVER, NCCL, NVRTC, Wanted};
use moetwin_cuda::{Piece, Search, probe};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a shared library with `symbols` as empty functions, and `bodies` in C. The linker driver that Rust itself needs is enough.
fn build(path: &Path, soname: &str, symbols: &[&str], bodies: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let source = path.with_extension("c");
    let defined = |s: &&&str| !bodies.contains(&format!("{s}("));
    let empty: String = symbols.iter().filter(defined).map(|s| format!("int {s}(void) {{ return 1; }}\n")).collect();
    fs::write(&source, format!("{bodies}\n{empty}")).unwrap();
    let out = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(path).arg(format!("-Wl,-soname,{soname}")).arg(&source).output();
    let out = out.expect("cc, which linking Rust needs too");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("moetwin-fake-{name}-{}", std::process::id()));
    fs::remove_dir_all(&dir).ok();
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn in_wheel(site: &Path) -> Search {
    Search { site_packages: vec![site.to_owned()], ..Search::default() }
}

fn missing(piece: &Piece) -> (&str, &str) {
    match piece {
        Piece::Missing(m) => (&m.why, &m.remedy),
        Piece::Found(f) => panic!("found {f:?}"),
    }
}

#[test]
fn nothing_anywhere_names_every_remedy() {
    let probed = probe(&Search::default());
    for ((_, piece), wanted) in probed.pieces().into_iter().zip([DRIVER, NVRTC, CUBLASLT, NCCL]) {
        let (why, install) = missing(piece);
        assert!(
            why.contains(wanted.files[0]) && install.contains(wanted.install) && install.contains(wanted.variable),
            "{why} / {install}"
        );
    }
    assert_eq!(probed.missing_for(1).iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["CUDA driver", "NVRTC"]);
    assert_eq!(probed.missing_for(2).iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["CUDA driver", "NVRTC", "NCCL"]);
}

#[test]
fn wheels_are_found_by_their_versioned_names_only() {
    let site = scratch("wheels");
    let nccl = site.join("nvidia/nccl/lib/libnccl.so.2");
    build(&nccl, "libnccl.so.2", NCCL.symbols, "int ncclGetVersion(int *v) { *v = 22809; return 0; }");
    let nvrtc = site.join("nvidia/cu13/lib/libnvrtc.so.13");
    build(&nvrtc, "libnvrtc.so.13", NVRTC.symbols, "int nvrtcVersion(int *a, int *b) { *a = 13; *b = 0; return 0; }");
    let blas = site.join("nvidia/cu13/lib/libcublasLt.so.13");
    build(&blas, "libcublasLt.so.13", CUBLASLT.symbols, "unsigned long cublasLtGetVersion(void) { return 130002; }");
    let probed = probe(&in_wheel(&site));
    for (piece, path, version) in [(&probed.nccl, nccl, "2.28.9"), (&probed.nvrtc, nvrtc, "13.0"), (&probed.cublaslt, blas, "13.0.2")] {
        match piece {
            Piece::Found(f) => assert_eq!((&f.path, f.version.as_str()), (&path, version)),
            Piece::Missing(m) => panic!("{}: {}", path.display(), m.why),
        }
    }
    fs::remove_dir_all(site).unwrap();
}

#[test]
fn wrong_files_are_told_apart() {
    let site = scratch("wrong");
    let file = site.join("nvidia/nccl/lib/libnccl.so.2");
    let with = |build_it: &dyn Fn()| {
        build_it();
        missing(&probe(&in_wheel(&site)).nccl).0.to_owned()
    };
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let text = with(&|| fs::write(&file, "not a library").unwrap());
    assert!(text.contains("invalid ELF header") || text.contains("file too short"), "{text}");
    fs::remove_file(&file).unwrap();
    let incomplete = site.join("nvidia/nccl/lib/libnccl.so");
    let text = with(&|| build(&incomplete, "libnccl-incomplete.so", &NCCL.symbols[..3], ""));
    assert!(text.contains(&format!("no symbol {}", NCCL.symbols[3])), "{text}");
    fs::remove_file(&incomplete).unwrap();
    let text = with(&|| build(&file, "libnccl-failing.so", NCCL.symbols, ""));
    assert!(text.contains("ncclGetVersion returned"), "{text}");
    fs::remove_dir_all(site).unwrap();
}

#[test]
fn an_old_nvrtc_and_an_old_driver_say_so() {
    let dir = scratch("old");
    let given = |wanted: &Wanted, file: &str| Search { given: vec![(wanted.variable, dir.join(file))], ..Search::default() };
    build(
        &dir.join("libnvrtc-old.so"),
        "libnvrtc-old.so",
        NVRTC.symbols,
        "int nvrtcVersion(int *a, int *b) { *a = 12; *b = 4; return 0; }",
    );
    let probed = probe(&given(&NVRTC, "libnvrtc-old.so"));
    assert!(missing(&probed.nvrtc).0.contains("version 12.4"), "{probed:?}");
    build(&dir.join("libcuda.so.1"), "libcuda.so.1", DRIVER.symbols, "int cuDriverGetVersion(int *v) { *v = 12080; return 0; }");
    let probed = probe(&given(&DRIVER, "libcuda.so.1"));
    let (why, install) = missing(&probed.driver);
    assert!(why.contains("supports CUDA 12.8; 13.0 is needed") && install.contains("R580"), "{why} / {install}");
    assert!(probed.gpus.is_empty());
    fs::remove_dir_all(dir).unwrap();
}
