//! What of CUDA is here, what is missing, and what to install.

use crate::device::{DeviceError, Driver, cublaslt_version, nvrtc_version};
use crate::nccl::{Nccl, version_text};
use crate::search::{CUBLASLT, DRIVER, NCCL, NVRTC, Search, Wanted};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Oldest CUDA version a driver must support: the bindings are those of 13.0, and kernels are compiled by NVRTC 13.
const DRIVER_AT_LEAST: u32 = 13_000;
/// Oldest NVRTC that compiles for sm_120a (CUDA 12.8 release notes).
const NVRTC_AT_LEAST: (u32, u32) = (12, 8);

/// A library that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// Its version.
    pub version: String,
}

/// Something that is not there, or not usable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What is wrong.
    pub why: String,
    /// What to do about it, as a sentence.
    pub remedy: String,
}

/// Whether a library is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// It is.
    Found(Found),
    /// It is not.
    Missing(Missing),
}

/// A GPU as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// The driver's index.
    pub ordinal: usize,
    /// Marketing name.
    pub name: String,
    /// Compute capability, `9.0`.
    pub compute_capability: String,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of memory free once a context exists.
    pub free_bytes: u64,
}

/// What of CUDA is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The driver's library.
    pub driver: Piece,
    /// The kernel module's version, where one is loaded.
    pub kernel_module: Option<String>,
    /// The run-time compiler.
    pub nvrtc: Piece,
    /// Dense matrix products.
    pub cublaslt: Piece,
    /// Collectives.
    pub nccl: Piece,
    /// GPUs that opened.
    pub gpus: Vec<Gpu>,
    /// GPUs that did not, or why there is none.
    pub gpu_problems: Vec<Missing>,
}

/// Looks for the driver, NVRTC, cuBLASLt and NCCL, and opens every GPU. Never panics; what is not there is said with its remedy.
pub fn probe(search: &Search) -> Probe {
    let kernel_module = fs::read_to_string("/sys/module/nvidia/version").ok().map(|s| s.trim().to_owned());
    let (driver, gpus, gpu_problems) = probe_driver(search, kernel_module.as_deref());
    let nvrtc = match nvrtc_version(search) {
        Ok((library, version)) if version < NVRTC_AT_LEAST => Piece::Missing(Missing {
            why: format!("{} is version {}.{}, which cannot compile for sm_120a", library.path().display(), version.0, version.1),
            remedy: format!("install {}", NVRTC.install),
        }),
        Ok((library, (major, minor))) => found(library.path(), format!("{major}.{minor}")),
        Err(e) => missing(&NVRTC, &e),
    };
    let cublaslt = match cublaslt_version(search) {
        // cublasLt.h codes 13.0.2 as 130002.
        Ok((library, code)) => found(library.path(), format!("{}.{}.{}", code / 10_000, code % 10_000 / 100, code % 100)),
        Err(e) => missing(&CUBLASLT, &e),
    };
    let nccl = match Nccl::open(search).and_then(|n| Ok((n.version_code()?, n))) {
        Ok((code, nccl)) => found(nccl.library().path(), version_text(code)),
        Err(e) => missing(&NCCL, &e),
    };
    Probe { driver, kernel_module, nvrtc, cublaslt, nccl, gpus, gpu_problems }
}

fn found(path: &Path, version: String) -> Piece {
    Piece::Found(Found { path: path.to_owned(), version })
}

fn missing(wanted: &Wanted, why: &impl ToString) -> Piece {
    let remedy = format!("install {}; or name the file in {}", wanted.install, wanted.variable);
    Piece::Missing(Missing { why: why.to_string(), remedy })
}

fn probe_driver(search: &Search, kernel_module: Option<&str>) -> (Piece, Vec<Gpu>, Vec<Missing>) {
    let driver = match Driver::open(search) {
        Ok(driver) => driver,
        Err(e) => {
            let here = gpus_on_the_bus();
            let why = match (kernel_module, here) {
                (Some(v), _) => format!("{e}; kernel module {v} is loaded, so its user-space library is what is missing"),
                (None, 0) => format!("{e}; no NVIDIA device is on the PCI bus either"),
                (None, n) => format!("{e}; {n} NVIDIA device(s) are on the PCI bus"),
            };
            return (missing(&DRIVER, &why), Vec::new(), Vec::new());
        }
    };
    let code = driver.cuda_version();
    let version = format!("{}.{}", code / 1000, code % 1000 / 10);
    if code < DRIVER_AT_LEAST {
        let why = format!("{} supports CUDA {version}; 13.0 is needed", driver.library().path().display());
        return (Piece::Missing(Missing { why, remedy: format!("install {}", DRIVER.install) }), Vec::new(), Vec::new());
    }
    let (mut gpus, mut problems) = (Vec::new(), Vec::new());
    match driver.device_count() {
        Ok(0) => problems.push(Missing {
            why: "the driver shows no GPU to this process".to_owned(),
            remedy: "check CUDA_VISIBLE_DEVICES and `nvidia-smi -L`".to_owned(),
        }),
        Ok(count) => {
            for ordinal in 0..count {
                match describe(&driver, ordinal) {
                    Ok(gpu) => gpus.push(gpu),
                    Err(e) => problems.push(Missing { why: format!("GPU {ordinal}: {e}"), remedy: "see `nvidia-smi -q`".to_owned() }),
                }
            }
        }
        Err(e) => problems.push(Missing { why: e.to_string(), remedy: "see `nvidia-smi`, and check CUDA_VISIBLE_DEVICES".to_owned() }),
    }
    (found(driver.library().path(), format!("supports CUDA {version}")), gpus, problems)
}

fn describe(driver: &Driver, ordinal: usize) -> Result<Gpu, DeviceError> {
    let device = driver.device(ordinal)?;
    let (major, minor) = device.compute_capability()?;
    let (free_bytes, memory_bytes) = device.memory_bytes()?;
    Ok(Gpu {
        ordinal,
        name: device.name()?,
        compute_capability: format!("{major}.{minor}"),
        multiprocessors: device.multiprocessors()?,
        memory_bytes,
        free_bytes,
    })
}

/// NVIDIA display controllers (vendor 10de, class 03xxxx) on the PCI bus.
fn gpus_on_the_bus() -> usize {
    let Ok(devices) = fs::read_dir("/sys/bus/pci/devices") else { return 0 };
    let reads = |path: PathBuf, prefix: &str| fs::read_to_string(path).is_ok_and(|t| t.starts_with(prefix));
    devices.flatten().filter(|d| reads(d.path().join("vendor"), "0x10de") && reads(d.path().join("class"), "0x03")).count()
}

impl Probe {
    /// Libraries in the order they are needed, with their names.
    pub fn pieces(&self) -> [(&'static str, &Piece); 4] {
        [(DRIVER.name, &self.driver), (NVRTC.name, &self.nvrtc), (CUBLASLT.name, &self.cublaslt), (NCCL.name, &self.nccl)]
    }
    /// Everything that keeps `ranks` ranks from running here, one GPU each; NCCL is needed by two or more. Without cuBLASLt our own kernels
    /// do its work.
    pub fn missing_for(&self, ranks: usize) -> Vec<(&'static str, Missing)> {
        let mut all = Vec::new();
        for (name, piece) in self.pieces() {
            if let Piece::Missing(m) = piece
                && (name != NCCL.name || ranks > 1)
                && name != CUBLASLT.name
            {
                all.push((name, m.clone()));
            }
        }
        all.extend(self.gpu_problems.iter().map(|m| ("GPU", m.clone())));
        if matches!(self.driver, Piece::Found(_)) && self.gpus.len() < ranks && self.gpu_problems.is_empty() {
            let why = format!("{ranks} ranks need {ranks} GPUs; this process sees {}", self.gpus.len());
            all.push(("GPU", Missing { why, remedy: "deploy fewer ranks, or show it more GPUs (CUDA_VISIBLE_DEVICES)".to_owned() }));
        }
        all
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, piece) in self.pieces() {
            match piece {
                Piece::Found(p) => writeln!(f, "{name}: {} ({})", p.version, p.path.display())?,
                Piece::Missing(m) => writeln!(f, "{name}: missing: {}\n  {}", m.why, m.remedy)?,
            }
        }
        if let Some(v) = &self.kernel_module {
            writeln!(f, "kernel module: {v}")?;
        }
        for gpu in &self.gpus {
            let gib = |b: u64| b as f64 / f64::from(1u32 << 30);
            let (free, total) = (gib(gpu.free_bytes), gib(gpu.memory_bytes));
            let (n, name, cc, sm) = (gpu.ordinal, &gpu.name, &gpu.compute_capability, gpu.multiprocessors);
            writeln!(f, "GPU {n}: {name}, compute capability {cc}, {sm} SMs, {free:.1} of {total:.1} GiB free")?;
        }
        for problem in &self.gpu_problems {
            writeln!(f, "GPU: {}\n  {}", problem.why, problem.remedy)?;
        }
        Ok(())
    }
}
