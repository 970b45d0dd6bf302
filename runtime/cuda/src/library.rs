//! Opening a shared library and making sure of its symbols, without a panic.
#![allow(unsafe_code)]

use crate::search::{Search, Wanted};
use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};

/// An open library with every symbol of its [`Wanted`] entry. It is never unloaded: CUDA's libraries keep threads and handlers.
#[derive(Debug)]
pub struct Library {
    handle: &'static libloading::Library,
    path: PathBuf,
}

/// Why no candidate would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No candidate file exists, and the loader knows none.
    #[error("not found (tried {})", .tried.join("; "))]
    NotFound {
        /// What was tried, with what the loader said where the file is there.
        tried: Vec<String>,
    },
    /// A candidate opened and lacks a symbol.
    #[error("{} has no symbol {symbol}: not the expected library, or too old", .path.display())]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// The first missing symbol.
        symbol: &'static str,
    },
}

impl Library {
    /// Opens the first candidate that the loader accepts. One that lacks a symbol ends the search: a library that is half right
    /// is worth knowing about.
    pub fn open(wanted: &Wanted, search: &Search) -> Result<Self, OpenError> {
        let mut tried = Vec::new();
        for candidate in search.candidates(wanted) {
            // SAFETY: loading runs the library's initializers; the candidates are NVIDIA's libraries by name, or files the user named.
            match unsafe { libloading::Library::new(&candidate) } {
                Ok(handle) => {
                    let handle: &'static libloading::Library = Box::leak(Box::new(handle));
                    let path = if candidate.is_absolute() { candidate } else { loaded_path(&candidate).unwrap_or(candidate) };
                    let library = Self { handle, path };
                    return match wanted.symbols.iter().find(|s| !library.has(s)) {
                        Some(symbol) => Err(OpenError::Incomplete { path: library.path, symbol }),
                        None => Ok(library),
                    };
                }
                Err(e) => tried.push(message(&candidate, &e)),
            }
        }
        if tried.is_empty() {
            tried.push(format!("{} in every folder searched", wanted.files[0]));
        }
        Err(OpenError::NotFound { tried })
    }
    /// Where the loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Whether a symbol is there.
    pub fn has(&self, symbol: &str) -> bool {
        // SAFETY: the address is only compared with null inside libloading, never called or read.
        unsafe { self.handle.get::<*const c_void>(symbol) }.is_ok()
    }
    /// A function of the library.
    ///
    /// # Safety
    /// `F` must be the function pointer type of `symbol` in the library's header.
    pub unsafe fn function<F: Copy>(&self, symbol: &'static str) -> Result<F, OpenError> {
        // SAFETY: the caller vouches for the type; the library is never unloaded, so the copied pointer stays valid.
        let found = unsafe { self.handle.get::<F>(symbol) };
        found.map(|f| *f).map_err(|_| OpenError::Incomplete { path: self.path.clone(), symbol })
    }
}

/// The candidate, and what the loader said unless that is only that there is no such file.
fn message(candidate: &Path, e: &libloading::Error) -> String {
    let text = std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string);
    let text = text.replace('\n', " ");
    let name = candidate.display().to_string();
    match text.strip_prefix(&name) {
        Some(rest) if rest.starts_with(": cannot open shared object file: No such file") => name,
        Some(_) => text,
        None => format!("{name}: {text}"),
    }
}

/// The file that the loader mapped for a bare name, as the kernel lists it.
fn loaded_path(name: &Path) -> Option<PathBuf> {
    let name = name.to_str()?;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    // Symbolic links are resolved there: libnccl.so.2 shows as libnccl.so.2.28.9.
    let stem = name.split_once(".so").map_or(name, |(stem, _)| stem);
    let prefix = format!("{stem}.so");
    maps.lines().filter_map(|line| line.find('/').map(|i| &line[i..])).map(Path::new).find_map(|path| {
        let file = path.file_name()?.to_str()?;
        file.starts_with(&prefix).then(|| path.to_owned())
    })
}
