//! NCCL's functions, from whatever file holds them. cudarc's own loader never tries the name `libnccl.so.2`.
#![allow(unsafe_code)]

use crate::library::{Library, OpenError};
use crate::search::{NCCL, Search};
use cudarc::nccl::sys;
use std::ffi::c_int;

/// The table of NCCL functions.
pub struct Nccl {
    library: Library,
    version: unsafe extern "C" fn(*mut c_int) -> sys::ncclResult_t,
}

/// NCCL could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// It is not there.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A call failed.
    #[error("NCCL: {call} returned {code:?}")]
    Call {
        /// The function.
        call: &'static str,
        /// What it returned.
        code: sys::ncclResult_t,
    },
}

impl Nccl {
    /// Finds and opens NCCL.
    pub fn open(search: &Search) -> Result<Self, NcclError> {
        let library = Library::open(&NCCL, search)?;
        // SAFETY: the signature is nccl.h's (`ncclResult_t ncclGetVersion(int *version)`), the same since NCCL 1.3.
        let version = unsafe { library.function("ncclGetVersion") }?;
        Ok(Self { library, version })
    }
    /// The library it came from.
    pub fn library(&self) -> &Library {
        &self.library
    }
    /// Version as NCCL codes it: 22809 is 2.28.9.
    pub fn version_code(&self) -> Result<u32, NcclError> {
        let mut code: c_int = 0;
        // SAFETY: `code` outlives the call, which writes one int.
        let result = unsafe { (self.version)(&raw mut code) };
        match (result, u32::try_from(code)) {
            (sys::ncclResult_t::ncclSuccess, Ok(code)) => Ok(code),
            (code, _) => Err(NcclError::Call { call: "ncclGetVersion", code }),
        }
    }
}

/// `22809` as `2.28.9`, `2804` (before 2.9) as `2.8.4`: nccl.h's `NCCL_VERSION`.
pub fn version_text(code: u32) -> String {
    let unit = if code < 10_000 { 1_000 } else { 10_000 };
    format!("{}.{}.{}", code / unit, code % unit / 100, code % 100)
}

#[cfg(test)]
mod tests {
    #[test]
    fn version_codes() {
        assert_eq!([22_809, 23_203, 2_804].map(super::version_text), ["2.28.9", "2.32.3", "2.8.4"]);
    }
}
