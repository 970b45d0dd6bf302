//! CUDA C++ to CUBIN by NVRTC, kept on disk by content: source, headers, options and compiler version.
#![allow(unsafe_code)]

use crate::device::nvrtc_version;
use crate::exec::gpu::GpuError;
use crate::search::Search;
use cudarc::nvrtc::sys;
use moetwin_kernels::launch::{HEADERS, SOURCES, Source};
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::{env, fs, ptr};

/// The compiled sources of one architecture.
pub struct Cubins {
    /// `(source name, CUBIN)`.
    pub files: Vec<(&'static str, Vec<u8>)>,
}

/// Compiles every source for `sm_<architecture>`, or reads it from the cache.
pub fn compile_all(search: &Search, architecture: &str) -> Result<Cubins, GpuError> {
    let (_library, version) = nvrtc_version(search).map_err(|e| GpuError::new("NVRTC", e.to_string()))?;
    let include = include_folder(search).ok_or_else(|| {
        GpuError::new(
            "CUDA headers",
            "cuda_bf16.h not found; install the CUDA toolkit or `pip install nvidia-cuda-runtime nvidia-cuda-crt`, or set CUDA_HOME",
        )
    })?;
    let options = options(architecture, &include)?;
    let cache = cache_folder();
    let mut files = Vec::new();
    for source in SOURCES {
        let key = content_key(source, architecture, version);
        let path = cache.as_ref().map(|c| c.join(format!("{}-{key:016x}.cubin", source.name.trim_end_matches(".cu"))));
        let cached = path.as_ref().and_then(|p| fs::read(p).ok());
        let cubin = match cached {
            Some(cubin) => cubin,
            None => {
                let cubin = compile(source, &options)?;
                if let Some(path) = &path {
                    store(path, &cubin);
                }
                cubin
            }
        };
        files.push((source.name, cubin));
    }
    Ok(Cubins { files })
}

fn options(architecture: &str, include: &Path) -> Result<Vec<CString>, GpuError> {
    let list = ["--std=c++17".to_owned(), format!("--gpu-architecture=sm_{architecture}"), format!("--include-path={}", include.display())];
    list.into_iter().map(|o| CString::new(o).map_err(|e| GpuError::new("NVRTC options", e.to_string()))).collect()
}

/// FNV-1a over everything that decides the result. A wrong hit would need a collision among a handful of files.
fn content_key(source: &Source, architecture: &str, version: (u32, u32)) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let version = format!("{}.{}", version.0, version.1);
    let parts = HEADERS.iter().map(|h| h.text).chain([source.text, architecture, version.as_str()]);
    for byte in parts.flat_map(|p| p.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

fn compile(source: &Source, options: &[CString]) -> Result<Vec<u8>, GpuError> {
    let text = CString::new(source.text).map_err(|e| GpuError::new("NVRTC", e.to_string()))?;
    let name = CString::new(source.name).map_err(|e| GpuError::new("NVRTC", e.to_string()))?;
    let headers: Vec<CString> = HEADERS.iter().filter_map(|h| CString::new(h.text).ok()).collect();
    let names: Vec<CString> = HEADERS.iter().filter_map(|h| CString::new(h.name).ok()).collect();
    let pointers = |list: &[CString]| -> Vec<*const c_char> { list.iter().map(|s| s.as_ptr()).collect() };
    let (header_pointers, name_pointers, option_pointers) = (pointers(&headers), pointers(&names), pointers(options));
    let mut program: sys::nvrtcProgram = ptr::null_mut();
    let check = |call: &str, code: sys::nvrtcResult| match code {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        code => Err(GpuError::new(format!("{call} of {}", source.name), format!("{code:?}"))),
    };
    // SAFETY: every string lives until the program is destroyed, and the counts are those of the pointer lists.
    let created = unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            text.as_ptr(),
            name.as_ptr(),
            headers.len() as i32,
            header_pointers.as_ptr(),
            name_pointers.as_ptr(),
        )
    };
    check("nvrtcCreateProgram", created)?;
    // SAFETY: the program was created above; the options outlive the call.
    let compiled = unsafe { sys::nvrtcCompileProgram(program, options.len() as i32, option_pointers.as_ptr()) };
    let result = match compiled {
        sys::nvrtcResult::NVRTC_SUCCESS => cubin(program, &check),
        code => Err(GpuError::new(format!("compiling {}", source.name), format!("{code:?}: {}", log(program)))),
    };
    // SAFETY: created above, destroyed once.
    unsafe { sys::nvrtcDestroyProgram(&raw mut program) };
    result
}

fn cubin(program: sys::nvrtcProgram, check: &impl Fn(&str, sys::nvrtcResult) -> Result<(), GpuError>) -> Result<Vec<u8>, GpuError> {
    let mut size = 0;
    // SAFETY: the program is compiled; the call writes one size.
    check("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(program, &raw mut size) })?;
    let mut bytes = vec![0u8; size];
    // SAFETY: the buffer has the size that NVRTC asked for.
    check("nvrtcGetCUBIN", unsafe { sys::nvrtcGetCUBIN(program, bytes.as_mut_ptr().cast()) })?;
    Ok(bytes)
}

fn log(program: sys::nvrtcProgram) -> String {
    let mut size = 0;
    // SAFETY: the program exists; the call writes one size.
    if unsafe { sys::nvrtcGetProgramLogSize(program, &raw mut size) } != sys::nvrtcResult::NVRTC_SUCCESS || size == 0 {
        return String::new();
    }
    let mut bytes = vec![0u8; size + 1];
    // SAFETY: the buffer is larger than NVRTC asked for and stays null-terminated.
    unsafe { sys::nvrtcGetProgramLog(program, bytes.as_mut_ptr().cast()) };
    CStr::from_bytes_until_nul(&bytes).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A folder with `cuda_bf16.h`: of the toolkit, or of the Python wheel.
fn include_folder(search: &Search) -> Option<PathBuf> {
    let toolkits = search.folders.iter().filter_map(|f| f.parent()).map(|root| root.join("include"));
    let wheels = search.site_packages.iter().flat_map(|s| ["nvidia/cu13/include", "nvidia/cuda_runtime/include"].map(|w| s.join(w)));
    toolkits.chain(wheels).find(|f| f.join("cuda_bf16.h").exists() && f.join("crt").exists())
}

/// `MOETWIN_CACHE`, or the user's cache folder.
fn cache_folder() -> Option<PathBuf> {
    let given = env::var_os("MOETWIN_CACHE").map(PathBuf::from);
    let folder = given.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/moetwin")))?;
    fs::create_dir_all(&folder).ok()?;
    Some(folder)
}

/// Writes beside the target and renames. A cache that cannot be written only costs the next start its compile time.
fn store(path: &Path, cubin: &[u8]) {
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    if fs::write(&beside, cubin).and_then(|()| fs::rename(&beside, path)).is_err() {
        fs::remove_file(&beside).ok();
    }
}
