//! GPUs opened to be examined: the few driver calls that checks need. Nothing is freed: every check runs in a process of its own.
#![allow(unsafe_code)]

use crate::device::{Device, Driver};
use crate::exec::gpu::GpuError;
use cudarc::driver::{DriverError, result, sys};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::time::{Duration, Instant};

/// An open GPU with one stream and the check kernels.
pub(crate) struct LabGpu {
    device: Device,
    module: sys::CUmodule,
    functions: RefCell<BTreeMap<&'static str, sys::CUfunction>>,
    stream: sys::CUstream,
}

/// A captured graph.
pub(crate) struct LabGraph(sys::CUgraphExec);

/// A point in a stream, with its time.
pub(crate) struct LabEvent(sys::CUevent);

fn failed(call: &'static str) -> impl FnOnce(DriverError) -> GpuError {
    move |e| GpuError::new(call, e.to_string())
}

fn check(call: &'static str, code: sys::CUresult) -> Result<(), GpuError> {
    if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(GpuError::new(call, DriverError(code).to_string())) }
}

impl LabGpu {
    /// Opens a GPU and loads the check kernels, if there are any, and makes it the thread's.
    pub(crate) fn open(driver: &Driver, ordinal: usize, cubin: &[u8]) -> Result<Self, GpuError> {
        let device = driver.device(ordinal).map_err(|e| GpuError::new("open GPU", e.to_string()))?;
        device.bind().map_err(|e| GpuError::new("open GPU", e.to_string()))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed("cuStreamCreate"))?;
        // SAFETY: the image is a CUBIN that NVRTC wrote for this architecture; it outlives the call.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) }.map_err(failed("loading the check kernels"))?;
        Ok(Self { device, module, functions: RefCell::new(BTreeMap::new()), stream })
    }
    /// Makes it the thread's.
    pub(crate) fn bind(&self) -> Result<(), GpuError> {
        self.device.bind().map_err(|e| GpuError::new("cuCtxSetCurrent", e.to_string()))
    }
    /// The device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
    /// The stream, for communicators.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }
    fn ordinal(&self) -> c_int {
        self.device.ordinal() as c_int
    }
    /// Plain device memory, which peers may map.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64, GpuError> {
        self.bind()?;
        // SAFETY: never freed before the process ends.
        unsafe { result::malloc_sync(bytes as usize) }.map_err(failed("cuMemAlloc"))
    }
    /// Writes words from the host.
    pub(crate) fn write<T: Copy>(&self, to: u64, words: &[T]) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: the caller allocated as much there.
        unsafe { result::memcpy_htod_sync(to, words) }.map_err(failed("copy to device"))
    }
    /// Reads words to the host.
    pub(crate) fn read<T: Copy>(&self, from: u64, words: &mut [T]) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: the caller allocated as much there.
        unsafe { result::memcpy_dtoh_sync(words, from) }.map_err(failed("copy to host"))
    }
    /// Launches a check kernel; arguments are 8-byte cells.
    pub(crate) fn launch(&self, kernel: &'static str, blocks: u32, threads: u32, args: &[u64]) -> Result<(), GpuError> {
        self.bind()?;
        let known = self.functions.borrow().get(kernel).copied();
        let function = match known {
            Some(f) => f,
            None => {
                let name = CString::new(kernel).map_err(|e| GpuError::new("kernel name", e.to_string()))?;
                // SAFETY: the module stays loaded.
                let f = unsafe { result::module::get_function(self.module, name) }.map_err(failed("finding a check kernel"))?;
                self.functions.borrow_mut().insert(kernel, f);
                f
            }
        };
        let mut cells = args.to_vec();
        let mut pointers: Vec<*mut c_void> = cells.iter_mut().map(|c| std::ptr::from_mut(c).cast()).collect();
        // SAFETY: the cells follow check.cu's parameter lists and are copied by the call.
        unsafe { result::launch_kernel(function, (blocks, 1, 1), (threads, 1, 1), 0, self.stream, &mut pointers) }.map_err(failed("launch"))
    }
    /// Copies from a GPU's memory to this one's, on this one's stream.
    pub(crate) fn copy_from(&self, to: u64, other: &LabGpu, from: u64, bytes: u64) -> Result<(), GpuError> {
        self.bind()?;
        let (mut here, mut there): (sys::CUcontext, sys::CUcontext) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: both contexts are open as long as the GPUs are; the ranges were allocated by the caller.
        unsafe {
            other.bind()?;
            check("cuCtxGetCurrent", sys::cuCtxGetCurrent(&raw mut there))?;
            self.bind()?;
            check("cuCtxGetCurrent", sys::cuCtxGetCurrent(&raw mut here))?;
            check("cuMemcpyPeerAsync", sys::cuMemcpyPeerAsync(to, here, from, there, bytes as usize, self.stream))
        }
    }
    /// Copies between memory that this GPU maps, its own or an enabled peer's. Unlike [`LabGpu::copy_from`] it can be captured.
    pub(crate) fn copy_mapped(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: both ranges were allocated by the caller, and peers' memory is mapped.
        unsafe { result::memcpy_dtod_async(to, from, bytes as usize, self.stream) }.map_err(failed("cuMemcpyDtoDAsync"))
    }
    /// Whether the driver says that this GPU can map a peer's memory.
    pub(crate) fn can_access(&self, peer: &LabGpu) -> Result<bool, GpuError> {
        let mut can: c_int = 0;
        // SAFETY: writes one int.
        check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.ordinal(), peer.ordinal()) })?;
        Ok(can != 0)
    }
    /// Whether the driver says that atomics reach the peer, as they do over NVLink and not over PCIe.
    pub(crate) fn native_atomics(&self, peer: &LabGpu) -> Result<bool, GpuError> {
        let mut value: c_int = 0;
        let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        // SAFETY: writes one int.
        let code = unsafe { sys::cuDeviceGetP2PAttribute(&raw mut value, attribute, self.ordinal(), peer.ordinal()) };
        check("cuDeviceGetP2PAttribute", code)?;
        Ok(value != 0)
    }
    /// Maps a peer's memory into this GPU's address space; once is enough.
    pub(crate) fn enable(&self, peer: &LabGpu) -> Result<(), GpuError> {
        let mut there: sys::CUcontext = std::ptr::null_mut();
        peer.bind()?;
        // SAFETY: writes one handle, of a context that stays open.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&raw mut there) })?;
        self.bind()?;
        // SAFETY: both contexts stay open.
        match unsafe { sys::cuCtxEnablePeerAccess(there, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => check("cuCtxEnablePeerAccess", code),
        }
    }
    /// Waits for the stream.
    pub(crate) fn finish(&self, limit: Duration) -> Result<(), GpuError> {
        self.bind()?;
        let end = Instant::now() + limit;
        loop {
            // SAFETY: the stream is alive.
            match unsafe { sys::cuStreamQuery(self.stream) } {
                sys::CUresult::CUDA_ERROR_NOT_READY if Instant::now() > end => {
                    return Err(GpuError::new("waiting for the GPU", format!("not finished within {limit:?}")));
                }
                sys::CUresult::CUDA_ERROR_NOT_READY => std::thread::sleep(Duration::from_micros(50)),
                code => return check("waiting for the GPU", code),
            }
        }
    }
    /// A point behind what the stream was told so far.
    pub(crate) fn now(&self) -> Result<LabEvent, GpuError> {
        self.bind()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed("cuEventCreate"))?;
        // SAFETY: both are alive and of this context.
        unsafe { result::event::record(event, self.stream) }.map_err(failed("cuEventRecord"))?;
        Ok(LabEvent(event))
    }
    /// Seconds between two points that the stream has passed.
    pub(crate) fn seconds(&self, from: &LabEvent, to: &LabEvent) -> Result<f64, GpuError> {
        self.bind()?;
        // SAFETY: both events were recorded and have been reached.
        let ms = unsafe { result::event::elapsed(from.0, to.0) }.map_err(failed("cuEventElapsedTime"))?;
        Ok(f64::from(ms) * 1e-3)
    }
    /// Captures what `body` tells the stream.
    pub(crate) fn capture(&self, body: impl FnOnce() -> Result<(), GpuError>) -> Result<LabGraph, GpuError> {
        self.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and idle.
        unsafe { result::stream::begin_capture(self.stream, mode) }.map_err(failed("begin capture"))?;
        let told = body();
        self.bind()?;
        // SAFETY: a capture was begun on this stream by this thread.
        let graph = unsafe { result::stream::end_capture(self.stream) }.map_err(failed("end capture"));
        told?;
        // SAFETY: the graph was just captured and is never destroyed.
        let exec = unsafe { result::graph::instantiate(graph?, sys::CUgraphInstantiate_flags(0)) };
        exec.map(LabGraph).map_err(failed("instantiating the graph"))
    }
    /// Replays a graph.
    pub(crate) fn replay(&self, graph: &LabGraph) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: the graph and all memory that it names live until the process ends.
        unsafe { result::graph::launch(graph.0, self.stream) }.map_err(failed("graph launch"))
    }
}

/// What the driver says of a GPU beyond its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// `0000:17:00.0`, as the kernel names it.
    pub pci: String,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Shared memory of a multiprocessor.
    pub shared_bytes: u64,
    /// Highest clock, MHz.
    pub clock_mhz: u32,
    /// Highest rate of the memory by its clock and width, bytes per second.
    pub memory_bytes_per_s: u64,
}

/// Reads them.
pub(crate) fn attributes(ordinal: usize) -> Result<Attributes, GpuError> {
    use sys::CUdevice_attribute as A;
    let mut device: sys::CUdevice = 0;
    // SAFETY: writes one handle.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, ordinal as c_int) })?;
    let mut text = [0 as c_char; 32];
    // SAFETY: writes at most the given number of characters, with the end.
    check("cuDeviceGetPCIBusId", unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int, device) })?;
    let get = |attribute: A| -> Result<u64, GpuError> {
        let mut value: c_int = 0;
        // SAFETY: writes one int.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) })?;
        Ok(u64::try_from(value).unwrap_or(0))
    };
    let pci: String = text.iter().take_while(|c| **c != 0).map(|c| (*c as u8) as char).collect();
    // Kilohertz, bits, two transfers a clock.
    let (khz, bits) = (get(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?, get(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?);
    Ok(Attributes {
        pci: pci.to_ascii_lowercase(),
        l2_bytes: get(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        shared_bytes: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        clock_mhz: u32::try_from(get(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)? / 1000).unwrap_or(0),
        memory_bytes_per_s: khz * 1000 * (bits / 8) * 2,
    })
}
