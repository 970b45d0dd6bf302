//! Tests of weights: files, shares, and the fixtures of every family.

mod files;
mod fixtures;
mod shares;
mod synthetic;

use std::path::PathBuf;

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("moetwin-weights-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Checkpoints of the repository's `tests/fixtures`.
const FIXTURES: &[&str] = &[
    "mini-kimi-int4",
    "shakespeare-moe-int4",
    "tiny-deepseek-v2",
    "tiny-deepseek-v2-biased",
    "tiny-deepseek-v3",
    "tiny-deepseek-v3-fp8",
    "tiny-deepseek-v3-variant",
    "tiny-deepseek-v3-yarn",
    "tiny-glm4-int4",
    "tiny-glm4-moe",
    "tiny-gpt-oss",
    "tiny-gpt-oss-mxfp4",
    "tiny-kimi-k2-int4",
    "tiny-kimi-k25-nested",
    "tiny-mixtral",
    "tiny-mixtral-window",
    "tiny-olmoe",
    "tiny-olmoe-clip",
    "tiny-qwen2-moe",
    "tiny-qwen2-steps",
    "tiny-qwen3-fp8",
    "tiny-qwen3-moe",
];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn fixture_spec(name: &str) -> moetwin_models::ModelSpec {
    let text = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
    moetwin_models::config::read(&text, name).unwrap()
}
