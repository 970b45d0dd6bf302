//! One GPU, opened.
#![allow(unsafe_code)]

use crate::library::{Library, OpenError};
use crate::search::{CUBLASLT, DRIVER, NVRTC, Search};
use cudarc::driver::{CudaContext, DriverError, result, sys};
use std::ffi::c_int;
use std::sync::Arc;

/// The driver, found and initialized. Only this type calls cudarc's driver functions, and it exists only once their symbols are checked.
#[derive(Debug)]
pub struct Driver {
    library: Library,
    cuda_version: u32,
}

/// A driver call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The driver's library is not there.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A call failed.
    #[error("{call}: {what}")]
    Call {
        /// What was attempted.
        call: String,
        /// CUDA's error name and text.
        what: String,
    },
}

fn failed(call: impl Into<String>) -> impl FnOnce(DriverError) -> DeviceError {
    let call = call.into();
    move |e| {
        let text = |s: Result<&std::ffi::CStr, DriverError>| s.map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        DeviceError::Call { call, what: format!("{} ({})", text(e.error_name()), text(e.error_string())) }
    }
}

impl Driver {
    /// Finds the driver's library and initializes it.
    pub fn open(search: &Search) -> Result<Self, DeviceError> {
        let library = Library::open(&DRIVER, search)?;
        // SAFETY: signature as in cuda.h (`CUresult cuDriverGetVersion(int *)`); a result is an int-sized enum.
        let get_version: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { library.function("cuDriverGetVersion") }?;
        let mut version: c_int = 0;
        // SAFETY: `version` outlives the call, which writes one int; no initialization is needed before it.
        let code = unsafe { get_version(&raw mut version) };
        if code != 0 {
            return Err(DeviceError::Call { call: "cuDriverGetVersion".to_owned(), what: format!("returned {code}") });
        }
        // SAFETY: only opens and closes libraries by the driver's names. cudarc panics later where this is false.
        if !unsafe { sys::is_culib_present() } {
            let what = format!("{} does not call itself libcuda.so.1", library.path().display());
            return Err(DeviceError::Call { call: "loading the driver".to_owned(), what });
        }
        Ok(Self { library, cuda_version: u32::try_from(version).unwrap_or(0) })
    }
    /// The library it came from.
    pub fn library(&self) -> &Library {
        &self.library
    }
    /// Newest CUDA version that the driver supports, as CUDA codes it: 13000 is 13.0.
    pub fn cuda_version(&self) -> u32 {
        self.cuda_version
    }
    /// GPUs that the driver shows to this process.
    pub fn device_count(&self) -> Result<usize, DeviceError> {
        result::init().map_err(failed("cuInit"))?;
        let count = result::device::get_count().map_err(failed("cuDeviceGetCount"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }
    /// Opens a GPU by the driver's index.
    pub fn device(&self, ordinal: usize) -> Result<Device, DeviceError> {
        let context = CudaContext::new(ordinal).map_err(failed(format!("opening GPU {ordinal}")))?;
        // SAFETY: nothing has been allocated in this context, so no allocation relies on the tracking; from here on the program's
        // own events order every use, and tracked events would invalidate captures.
        unsafe { context.disable_event_tracking() };
        Ok(Device { context })
    }
}

/// An open GPU: its primary context is retained as long as this or a clone lives.
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<CudaContext>,
}

impl Device {
    /// Makes this GPU's context the calling thread's.
    pub fn bind(&self) -> Result<(), DeviceError> {
        self.context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))
    }
    /// The driver's index.
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }
    /// Marketing name.
    pub fn name(&self) -> Result<String, DeviceError> {
        self.context.name().map_err(failed("cuDeviceGetName"))
    }
    /// Compute capability, `(9, 0)` for Hopper.
    pub fn compute_capability(&self) -> Result<(u32, u32), DeviceError> {
        let (major, minor) = self.context.compute_capability().map_err(failed("cuDeviceGetAttribute"))?;
        Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)))
    }
    /// Streaming multiprocessors.
    pub fn multiprocessors(&self) -> Result<u32, DeviceError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let count = self.context.attribute(attribute).map_err(failed("cuDeviceGetAttribute"))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }
    /// `(free, total)` bytes of memory. The context itself is already counted as used.
    pub fn memory_bytes(&self) -> Result<(u64, u64), DeviceError> {
        let (free, total) = self.context.mem_get_info().map_err(failed("cuMemGetInfo"))?;
        Ok((free as u64, total as u64))
    }
}

/// `(major, minor)` of NVRTC, loaded so that cudarc finds the same file.
pub fn nvrtc_version(search: &Search) -> Result<(Library, (u32, u32)), DeviceError> {
    let library = Library::open(&NVRTC, search)?;
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: signature as in nvrtc.h (`nvrtcResult nvrtcVersion(int *major, int *minor)`); a result is an int-sized enum.
    let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = unsafe { library.function("nvrtcVersion") }?;
    // SAFETY: both ints outlive the call, which writes them.
    let code = unsafe { version(&raw mut major, &raw mut minor) };
    if code != 0 {
        return Err(DeviceError::Call { call: "nvrtcVersion".to_owned(), what: format!("returned {code}") });
    }
    Ok((library, (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0))))
}

/// cuBLASLt's version as it codes it: 130000 is 13.0.0.
pub fn cublaslt_version(search: &Search) -> Result<(Library, u64), DeviceError> {
    let library = Library::open(&CUBLASLT, search)?;
    // SAFETY: signature as in cublasLt.h (`size_t cublasLtGetVersion(void)`).
    let version: unsafe extern "C" fn() -> usize = unsafe { library.function("cublasLtGetVersion") }?;
    // SAFETY: takes no arguments and only returns a number.
    let code = unsafe { version() };
    Ok((library, code as u64))
}
