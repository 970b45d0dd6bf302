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

/// What a compiled kernel takes of a multiprocessor, as ptxas reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelResources {
    /// The kernel.
    pub kernel: String,
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of local memory that arrays with run-time indices take a thread.
    pub stack_bytes: u32,
    /// Bytes stored and loaded because registers ran out.
    pub spill_bytes: u32,
    /// Static shared memory a block.
    pub shared_bytes: u32,
}

/// Compiles every source for `sm_<architecture>`, or reads it from the cache.
pub fn compile_all(search: &Search, architecture: &str) -> Result<Cubins, GpuError> {
    compile_each(search, architecture, SOURCES, HEADERS)
}

/// Compiles every source with `from` replaced by `to` wherever it stands: deliberately wrong kernels for the checks.
///
/// Errors where no source holds `from`.
pub fn compile_changed(search: &Search, architecture: &str, from: &str, to: &str) -> Result<Cubins, GpuError> {
    if !HEADERS.iter().chain(SOURCES).any(|s| s.text.contains(from)) {
        return Err(GpuError::new("changing a kernel", format!("no source holds {from:?}")));
    }
    // A change lives as long as the program: there are a handful.
    let changed = |s: &Source| match s.text.contains(from) {
        true => Source { name: s.name, text: Box::leak(s.text.replace(from, to).into_boxed_str()) },
        false => *s,
    };
    let (sources, headers): (Vec<Source>, Vec<Source>) = (SOURCES.iter().map(changed).collect(), HEADERS.iter().map(changed).collect());
    compile_each(search, architecture, &sources, &headers)
}

/// Puts kernels with a change where the unchanged ones are looked for: what runs with `folder` as `MOETWIN_CACHE` runs the wrong kernels,
/// and a check of a whole run can be seen to notice them. As [`compile_changed`].
pub fn plant_changed(search: &Search, architecture: &str, from: &str, to: &str, folder: &Path) -> Result<(), GpuError> {
    let changed = compile_changed(search, architecture, from, to)?;
    let (version, _) = compiler(search, architecture)?;
    fs::create_dir_all(folder).map_err(|e| GpuError::new("planting kernels", format!("{}: {e}", folder.display())))?;
    for (source, (_, cubin)) in SOURCES.iter().zip(&changed.files) {
        let path = folder.join(file_name(source, &included(source, HEADERS), architecture, version));
        fs::write(&path, cubin).map_err(|e| GpuError::new("planting kernels", format!("{}: {e}", path.display())))?;
    }
    Ok(())
}

/// Each source by the cache, or compiled: several at a time, as start-up waits for the slowest.
fn compile_each(search: &Search, architecture: &str, sources: &[Source], headers: &[Source]) -> Result<Cubins, GpuError> {
    let (version, options) = compiler(search, architecture)?;
    let options = &options;
    let one = move |source: &Source| Ok((source.name, cached(source, headers, architecture, version, options)?));
    let files = std::thread::scope(|scope| {
        let running: Vec<_> = sources.iter().map(|source| scope.spawn(move || one(source))).collect();
        let ended = |r: std::thread::ScopedJoinHandle<'_, Result<(&'static str, Vec<u8>), GpuError>>| {
            r.join().unwrap_or_else(|_| Err(GpuError::new("compiling", "a thread panicked")))
        };
        running.into_iter().map(ended).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(Cubins { files })
}

/// Compiles one source for `sm_<architecture>`, or reads it from the cache.
pub fn compile_one(search: &Search, architecture: &str, source: &Source) -> Result<Vec<u8>, GpuError> {
    let (version, options) = compiler(search, architecture)?;
    cached(source, HEADERS, architecture, version, &options)
}

fn cached(source: &Source, headers: &[Source], architecture: &str, version: (u32, u32), options: &[CString]) -> Result<Vec<u8>, GpuError> {
    let headers = included(source, headers);
    let path = cache_folder().map(|c| c.join(file_name(source, &headers, architecture, version)));
    if let Some(cubin) = path.as_ref().and_then(|p| fs::read(p).ok()) {
        return Ok(cubin);
    }
    let (cubin, _) = compile_with(source, &headers, options)?;
    if let Some(path) = &path {
        store(path, &cubin);
    }
    Ok(cubin)
}

/// Where the cache keeps what a source compiles to.
fn file_name(source: &Source, headers: &[Source], architecture: &str, version: (u32, u32)) -> String {
    format!("{}-{:016x}.cubin", source.name.trim_end_matches(".cu"), content_key(source, headers, architecture, version))
}

/// The headers that a source includes, directly or through another.
fn included(source: &Source, headers: &[Source]) -> Vec<Source> {
    let mut found: Vec<Source> = Vec::new();
    let mut texts = vec![source.text];
    while let Some(text) = texts.pop() {
        for h in headers {
            if text.contains(&format!("#include \"{}\"", h.name)) && !found.contains(h) {
                found.push(*h);
                texts.push(h.text);
            }
        }
    }
    found.sort_by_key(|h| h.name);
    found
}

/// Compiles every source for `sm_<architecture>` without the cache and returns what each kernel takes, by source.
pub fn resources(search: &Search, architecture: &str) -> Result<Vec<(&'static str, Vec<KernelResources>)>, GpuError> {
    let (_, mut options) = compiler(search, architecture)?;
    options.push(CString::from(c"--ptxas-options=-v"));
    let all = SOURCES.iter().chain([&crate::doctor::SOURCE]);
    all.map(|source| Ok((source.name, parse_resources(&compile_with(source, HEADERS, &options)?.1)))).collect()
}

/// ptxas names the kernel, then its stack and spills, then its registers and shared memory, each on a line of its own.
fn parse_resources(log: &str) -> Vec<KernelResources> {
    let number = |line: &str, before: &str| -> u32 {
        let words: Vec<&str> = line.split(before).next().unwrap_or("").split_whitespace().collect();
        if line.contains(before) { words.last().and_then(|w| w.parse().ok()).unwrap_or(0) } else { 0 }
    };
    let mut found: Vec<KernelResources> = Vec::new();
    for line in log.lines() {
        if let Some(name) = line.split("entry function '").nth(1).and_then(|rest| rest.split('\'').next()) {
            let kernel = name.to_owned();
            found.push(KernelResources { kernel, registers: 0, stack_bytes: 0, spill_bytes: 0, shared_bytes: 0 });
        }
        let Some(last) = found.last_mut() else { continue };
        last.stack_bytes += number(line, " bytes stack frame");
        last.spill_bytes += number(line, " bytes spill stores") + number(line, " bytes spill loads");
        last.registers += number(line, " registers");
        last.shared_bytes += number(line, " bytes smem");
    }
    found
}

/// The compiler's version and the options for an architecture.
fn compiler(search: &Search, architecture: &str) -> Result<((u32, u32), Vec<CString>), GpuError> {
    let (library, version) = nvrtc_version(search).map_err(|e| GpuError::new("NVRTC", e.to_string()))?;
    preload_builtins(library.path());
    let include = include_folder(search).ok_or_else(|| {
        GpuError::new(
            "CUDA headers",
            "cuda_bf16.h not found; install the CUDA toolkit or `pip install nvidia-cuda-runtime nvidia-cuda-crt`, or set CUDA_HOME",
        )
    })?;
    Ok((version, options(architecture, &include)?))
}

/// NVRTC 13.0 of a wheel has no search path of its own: the library of built-in functions beside it is found only once it is loaded.
fn preload_builtins(nvrtc: &Path) {
    let Some(entries) = nvrtc.parent().and_then(|folder| fs::read_dir(folder).ok()) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        if path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libnvrtc-builtins.so")) {
            // SAFETY: NVIDIA's library by name, beside the NVRTC that asks for it; it stays loaded. A failure shows in the compilation.
            std::mem::forget(unsafe { libloading::Library::new(path) });
        }
    }
}

fn options(architecture: &str, include: &Path) -> Result<Vec<CString>, GpuError> {
    let list = ["--std=c++17".to_owned(), format!("--gpu-architecture=sm_{architecture}"), format!("--include-path={}", include.display())];
    list.into_iter().map(|o| CString::new(o).map_err(|e| GpuError::new("NVRTC options", e.to_string()))).collect()
}

/// FNV-1a over everything that decides the result. A wrong hit would need a collision among a handful of files.
fn content_key(source: &Source, headers: &[Source], architecture: &str, version: (u32, u32)) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let version = format!("{}.{}", version.0, version.1);
    let parts = headers.iter().map(|h| h.text).chain([source.text, architecture, version.as_str()]);
    for byte in parts.flat_map(|p| p.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// The CUBIN and what the compiler said.
fn compile_with(source: &Source, headers: &[Source], options: &[CString]) -> Result<(Vec<u8>, String), GpuError> {
    let text = CString::new(source.text).map_err(|e| GpuError::new("NVRTC", e.to_string()))?;
    let name = CString::new(source.name).map_err(|e| GpuError::new("NVRTC", e.to_string()))?;
    let names: Vec<CString> = headers.iter().filter_map(|h| CString::new(h.name).ok()).collect();
    let headers: Vec<CString> = headers.iter().filter_map(|h| CString::new(h.text).ok()).collect();
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
        sys::nvrtcResult::NVRTC_SUCCESS => cubin(program, &check).map(|bytes| (bytes, log(program))),
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

#[cfg(test)]
mod tests {
    use super::{KernelResources, parse_resources};

    #[test]
    fn resources_are_read_as_ptxas_prints_them() {
        let log = "ptxas info    : Compiling entry function 'add' for 'sm_90a'\n\
                   ptxas info    : Function properties for add\n    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n\
                   ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 132 bytes smem\n\
                   ptxas info    : Compiling entry function 'argmax' for 'sm_90a'\n\
                   ptxas info    : Function properties for argmax\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
                   ptxas info    : Used 12 registers\n";
        let of = |kernel: &str, registers, stack_bytes, spill_bytes, shared_bytes| KernelResources {
            kernel: kernel.into(),
            registers,
            stack_bytes,
            spill_bytes,
            shared_bytes,
        };
        assert_eq!(parse_resources(log), [of("add", 40, 16, 12, 132), of("argmax", 12, 0, 0, 0)]);
    }
}
