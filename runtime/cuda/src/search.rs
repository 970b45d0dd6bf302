//! Where CUDA's libraries may be: a variable of ours, the loader's own path, toolkits, Python wheels.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// A library that moetwin loads at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What people call it.
    pub name: &'static str,
    /// Variable that names the file, or a folder with it.
    pub variable: &'static str,
    /// File names, preferred first. A wheel has only the versioned one.
    pub files: &'static [&'static str],
    /// Folders of the `nvidia` Python package that may hold it.
    pub wheel_folders: &'static [&'static str],
    /// Symbols that must be there before cudarc or we call them.
    pub symbols: &'static [&'static str],
    /// What to install where it is missing.
    pub install: &'static str,
}

/// The driver's library. It comes with the kernel driver and is never in a wheel.
pub const DRIVER: Wanted = Wanted {
    name: "CUDA driver",
    variable: "MOETWIN_CUDA_DRIVER",
    files: &["libcuda.so.1", "libcuda.so"],
    wheel_folders: &[],
    symbols: &[
        "cuInit",
        "cuDriverGetVersion",
        "cuDeviceGet",
        "cuDeviceGetCount",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDeviceTotalMem_v2",
        "cuDevicePrimaryCtxRetain",
        "cuDevicePrimaryCtxRelease_v2",
        "cuCtxSetCurrent",
        "cuCtxGetCurrent",
        "cuMemGetInfo_v2",
        "cuGetErrorName",
        "cuGetErrorString",
    ],
    install: "the NVIDIA driver, R580 or later (CUDA 13.0); in a container, start it with the NVIDIA runtime (`--gpus all`)",
};

/// The run-time compiler.
pub const NVRTC: Wanted = Wanted {
    name: "NVRTC",
    variable: "MOETWIN_NVRTC",
    files: &["libnvrtc.so.13", "libnvrtc.so"],
    wheel_folders: &["cu13/lib", "cuda_nvrtc/lib"],
    symbols: &["nvrtcVersion", "nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcDestroyProgram", "nvrtcGetCUBIN", "nvrtcGetCUBINSize"],
    install: "CUDA toolkit 13, or `pip install nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96`",
};

/// Dense matrix products.
pub const CUBLASLT: Wanted = Wanted {
    name: "cuBLASLt",
    variable: "MOETWIN_CUBLASLT",
    files: &["libcublasLt.so.13", "libcublasLt.so"],
    wheel_folders: &["cu13/lib", "cublas/lib"],
    symbols: &["cublasLtGetVersion", "cublasLtCreate", "cublasLtDestroy", "cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic"],
    install: "CUDA toolkit 13, or `pip install nvidia-cublas`",
};

/// Collectives.
pub const NCCL: Wanted = Wanted {
    name: "NCCL",
    variable: "MOETWIN_NCCL",
    files: &["libnccl.so.2", "libnccl.so"],
    wheel_folders: &["nccl/lib"],
    symbols: &[
        "ncclGetVersion",
        "ncclGetLastError",
        "ncclGetUniqueId",
        "ncclCommInitRank",
        "ncclCommFinalize",
        "ncclCommDestroy",
        "ncclCommAbort",
        "ncclCommGetAsyncError",
        "ncclAllReduce",
        "ncclBroadcast",
        "ncclReduce",
        "ncclSend",
        "ncclRecv",
        "ncclGroupStart",
        "ncclGroupEnd",
    ],
    install: "`apt install libnccl2`, or `pip install nvidia-nccl-cu13`",
};

/// Places to look in, read from the environment once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Values of the variables of [`Wanted::variable`], by variable.
    pub given: Vec<(&'static str, PathBuf)>,
    /// Whether the loader's own search (`LD_LIBRARY_PATH`, its cache, system folders) takes part.
    pub loader: bool,
    /// Folders that hold libraries directly.
    pub folders: Vec<PathBuf>,
    /// Folders that may hold an `nvidia` Python package.
    pub site_packages: Vec<PathBuf>,
}

impl Search {
    /// Reads the environment and lists the folders that exist.
    pub fn from_environment() -> Self {
        let variable = |name: &'static str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let given = [DRIVER, NVRTC, CUBLASLT, NCCL].iter().filter_map(|w| Some((w.variable, variable(w.variable)?))).collect();
        let mut folders = Vec::new();
        for root in ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"].into_iter().filter_map(variable) {
            folders.extend([root.join("lib64"), root.join("lib")]);
        }
        for root in entries(Path::new("/usr/local"), "cuda") {
            folders.push(root.join("lib64"));
        }
        for fixed in ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"] {
            folders.push(PathBuf::from(fixed));
        }
        let mut site_packages: Vec<PathBuf> =
            env::var_os("PYTHONPATH").map(|p| env::split_paths(&p).filter(|p| !p.as_os_str().is_empty()).collect()).unwrap_or_default();
        for root in ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable) {
            site_packages.extend(python_folders(&root.join("lib")));
        }
        if let Some(home) = variable("HOME") {
            site_packages.extend(python_folders(&home.join(".local/lib")));
        }
        // The interpreter that a shell would start, so that an activated or merely listed environment counts.
        for bin in env::var_os("PATH").iter().flat_map(env::split_paths).filter(|p| p.join("python3").exists()) {
            site_packages.extend(bin.parent().map(|root| python_folders(&root.join("lib"))).unwrap_or_default());
        }
        for root in ["/usr/local/lib", "/usr/lib", "/opt/conda/lib"] {
            site_packages.extend(python_folders(Path::new(root)));
        }
        folders.retain(|f| f.is_dir());
        site_packages.retain(|f| f.join("nvidia").is_dir());
        for list in [&mut folders, &mut site_packages] {
            let mut seen = Vec::new();
            list.retain(|f| {
                !seen.contains(f) && {
                    seen.push(f.clone());
                    true
                }
            });
        }
        Self { given, loader: true, folders, site_packages }
    }
    /// What to hand to the loader for `wanted`, in order: full paths of files that exist, and bare names for its own search.
    /// A variable that was given is the only place: what it names wins or fails, nothing else is tried silently.
    pub fn candidates(&self, wanted: &Wanted) -> Vec<PathBuf> {
        if let Some((_, path)) = self.given.iter().find(|(v, _)| *v == wanted.variable) {
            return if path.is_dir() { existing(path, wanted.files) } else { vec![path.clone()] };
        }
        let mut candidates = Vec::new();
        if self.loader {
            candidates.extend(wanted.files.iter().map(PathBuf::from));
        }
        for folder in &self.folders {
            candidates.extend(existing(folder, wanted.files));
        }
        for site in &self.site_packages {
            for folder in wanted.wheel_folders {
                candidates.extend(existing(&site.join("nvidia").join(folder), wanted.files));
            }
        }
        candidates
    }
}

fn existing(folder: &Path, files: &[&str]) -> Vec<PathBuf> {
    files.iter().map(|f| folder.join(f)).filter(|p| p.exists()).collect()
}

/// `python3.N/{site,dist}-packages` under a library folder.
fn python_folders(lib: &Path) -> Vec<PathBuf> {
    entries(lib, "python3").into_iter().flat_map(|p| [p.join("site-packages"), p.join("dist-packages")]).collect()
}

/// Entries of a folder whose names start with `prefix`, newest version first (by name, numbers compared as numbers).
fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = read.filter_map(|e| e.ok()?.file_name().into_string().ok()).filter(|n| n.starts_with(prefix)).collect();
    let numbers = |n: &str| n.split(|c: char| !c.is_ascii_digit()).filter_map(|d| d.parse::<u32>().ok()).collect::<Vec<_>>();
    names.sort_by(|a, b| numbers(b).cmp(&numbers(a)).then_with(|| a.cmp(b)));
    names.into_iter().map(|n| folder.join(n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = env::temp_dir().join(format!("moetwin-search-{name}-{}", std::process::id()));
        fs::remove_dir_all(&dir).ok();
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_wheel_is_found_where_only_the_versioned_name_exists() {
        let site = scratch("wheel");
        let lib = site.join("nvidia/nccl/lib");
        fs::create_dir_all(&lib).unwrap();
        fs::write(lib.join("libnccl.so.2"), b"").unwrap();
        let search = Search { site_packages: vec![site.clone()], ..Search::default() };
        assert_eq!(search.candidates(&NCCL), [lib.join("libnccl.so.2")]);
        assert!(search.candidates(&NVRTC).is_empty());
        fs::remove_dir_all(site).unwrap();
    }

    #[test]
    fn a_given_path_is_the_only_place() {
        let dir = scratch("given");
        fs::write(dir.join("libnccl.so"), b"").unwrap();
        let mut search = Search { loader: true, folders: vec![dir.clone()], ..Search::default() };
        assert_eq!(search.candidates(&NCCL), [PathBuf::from("libnccl.so.2"), PathBuf::from("libnccl.so"), dir.join("libnccl.so")]);
        search.given = vec![("MOETWIN_NCCL", dir.clone())];
        assert_eq!(search.candidates(&NCCL), [dir.join("libnccl.so")]);
        search.given = vec![("MOETWIN_NCCL", PathBuf::from("/nowhere/x.so"))];
        assert_eq!(search.candidates(&NCCL), [PathBuf::from("/nowhere/x.so")]);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn newer_versions_come_first() {
        let dir = scratch("versions");
        for v in ["cuda", "cuda-12.9", "cuda-13.0", "cuda-9.2", "other"] {
            fs::create_dir(dir.join(v)).unwrap();
        }
        let names: Vec<_> = entries(&dir, "cuda").iter().map(|p| p.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(names, ["cuda-13.0", "cuda-12.9", "cuda-9.2", "cuda"]);
        fs::remove_dir_all(dir).unwrap();
    }
}
