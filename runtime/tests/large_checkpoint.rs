//! The index of a checkpoint of Kimi-K2.5's size is read in a moment and in little memory. The files are sparse: they have their
//! headers and their length, and no data.
//!
//! The only test of its process, so that the process's peak memory is its own.

use moetwin_models::{ModelSpec, WeightRole, zoo};
use moetwin_runtime::weights::{CheckpointWeights, INDEX_FILE, Layers, Naming, StoredType, weights_of};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Files of the published checkpoint.
const SHARDS: usize = 64;

/// Tensors of one file: entries of its header, and the bytes they take.
#[derive(Default)]
struct Shard {
    header: String,
    data_bytes: u64,
}

impl Shard {
    fn add(&mut self, name: &str, dtype: StoredType, shape: &[u64]) {
        let end = self.data_bytes + dtype.bytes_of(shape).unwrap();
        let comma = if self.header.is_empty() { "{" } else { "," };
        self.header += &format!(r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{},{end}]}}"#, self.data_bytes);
        self.data_bytes = end;
    }
    fn write(self, path: &Path) -> u64 {
        let header = self.header + "}";
        let mut file = File::create(path).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        let file_bytes = 8 + header.len() as u64 + self.data_bytes;
        file.set_len(file_bytes).unwrap();
        file_bytes
    }
}

/// Writes the checkpoint that the model's naming asks for; returns the number of tensors and the bytes of all files.
fn write_checkpoint(spec: &ModelSpec, dir: &Path) -> (usize, u64) {
    let naming = Naming::detect(spec, &|_| false);
    let weights = weights_of(spec).unwrap();
    let (mut tensors, mut total_bytes) = (0, 0);
    let mut index = BufWriter::new(File::create(dir.join(INDEX_FILE)).unwrap());
    write!(index, r#"{{"metadata":{{}},"weight_map":{{"#).unwrap();
    for (number, weights) in weights.chunks(weights.len().div_ceil(SHARDS)).enumerate() {
        let (file, mut shard) = (format!("model-{:05}-of-{SHARDS:06}.safetensors", number + 1), Shard::default());
        for weight in weights {
            let experts = if matches!(weight.role, WeightRole::ExpertsGateUp | WeightRole::ExpertsDown) { 384 } else { 1 };
            for expert in 0..experts {
                for source in naming.sources(*weight, expert).unwrap() {
                    for tensor in source.tensors() {
                        let comma = if tensors == 0 { "" } else { "," };
                        write!(index, r#"{comma}"{}":"{file}""#, tensor.name).unwrap();
                        shard.add(&tensor.name, tensor.types[0], &tensor.shape);
                        tensors += 1;
                    }
                }
            }
        }
        total_bytes += shard.write(&dir.join(file));
    }
    write!(index, "}}}}").unwrap();
    index.into_inner().unwrap().sync_data().unwrap();
    (tensors, total_bytes)
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The most memory this process ever held, in KiB; `None` where the system does not say.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?.trim().split(' ').next()?.parse().ok()
}

#[test]
fn the_index_of_600_gb_is_read_in_a_second_and_100_mb() {
    let spec = zoo::spec("kimi-k2.5").unwrap();
    let folder = Folder(std::env::temp_dir().join(format!("moetwin-large-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    let (tensors, total_bytes) = write_checkpoint(&spec, &folder.0);
    assert!(tensors > 200_000 && total_bytes > 590_000_000_000, "{tensors} tensors, {total_bytes} bytes");

    let start = Instant::now();
    let weights = CheckpointWeights::open(&folder.0, &spec, Layers::All).unwrap_or_else(|e| panic!("{e}"));
    let elapsed = start.elapsed();
    assert_eq!(weights.checkpoint().len(), tensors);
    // A second is the promise of a release build on an idle machine; tests run unoptimized and side by side.
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    if let Some(kib) = peak_kib() {
        assert!(kib * 1024 < 100_000_000, "peak of {kib} KiB, writing the files included");
    }
}
