//! One real GPU: driver calls through cudarc's raw layer, owned by one thread.
#![allow(unsafe_code)]

use super::compile::Cubins;
use super::gpu::{AbortSignal, Address, Call, Captured, Element, Gpu, GpuError, StopWord, Stream, Way};
use crate::cublaslt::{CublasLt, Products};
use crate::device::Device;
use crate::exec::ticket::Ticket;
use crate::nccl::{Communicator, Handle, Nccl};
use cudarc::driver::{DriverError, result, sys};
use moetwin_kernels::launch::{DenseProduct, Launch, SHARED_LIMIT_BYTES};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Dynamic shared memory that a kernel may have without asking for it.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;
/// Percent of a multiprocessor's memory that is shared memory, not L1, for every kernel. Left to the driver each kernel gets what it asks for,
/// and where that changes the next kernel cannot begin while the one before it ends. Steps on an H200 (2026-11-30) at 100 %, at this, and as the
/// driver chooses: Qwen3-30B-A3B 2.58, 2.62 and 2.64 ms at one token, 11.93, 11.65 and 11.95 at 16, 17.69, 17.43 and 17.69 at 64.
const SHARED_SHARE: i32 = 72;
/// Streams of a rank.
const STREAMS: usize = 2;
/// Major compute capability of Hopper.
const HOPPER: u32 = 9;
/// How long a wait looks without pause: a decode step ends within it, and a pause would add to every step.
const SPIN: Duration = Duration::from_millis(5);
/// How often a longer wait looks whether it is over.
const POLL: Duration = Duration::from_micros(100);

/// The latest operation of a stream. The next kernel may begin while a kernel ends, and while nothing else ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Latest {
    /// None since a capture began.
    Nothing,
    /// A kernel of ours.
    Kernel,
    /// Anything else.
    Other,
}

/// Handles of the communicators of a rank, by which another thread can abort them.
pub(super) type Handles = Arc<Mutex<Vec<Arc<Handle>>>>;

/// A GPU with its streams, modules, memory, communicators and graphs. Neither `Send` nor shared: the rank's thread makes and drops it.
pub struct DriverGpu {
    nccl: Option<Arc<Nccl>>,
    streams: Vec<sys::CUstream>,
    events: BTreeMap<u32, sys::CUevent>,
    modules: BTreeMap<&'static str, sys::CUmodule>,
    functions: BTreeMap<&'static str, sys::CUfunction>,
    allocations: Vec<sys::CUdeviceptr>,
    chained: [Latest; STREAMS],
    /// What stood ahead of every event that a capture recorded.
    recorded: BTreeMap<u32, Latest>,
    capturing: bool,
    communicators: BTreeMap<u32, Communicator>,
    handles: Handles,
    /// What peers may map of this GPU, and what it maps of other processes.
    published: Vec<sys::CUdeviceptr>,
    opened: Vec<sys::CUdeviceptr>,
    /// What stops waiting kernels, and where they find it, once any may wait.
    stop: Option<(Arc<StopWord>, Address)>,
    /// Products by cuBLASLt, where it is to be used.
    products: Option<Products>,
    graphs: BTreeMap<usize, (sys::CUgraph, sys::CUgraphExec)>,
    /// Events behind the commands of the latest eager run, and how many of them it recorded.
    marks: Vec<sys::CUevent>,
    marked: usize,
    /// Events that keep the time, by their number.
    stamps: BTreeMap<u32, sys::CUevent>,
    abort: AbortSignal,
    // Last: everything above belongs to its context.
    device: Option<Device>,
}

fn failed(call: impl Into<String>) -> impl FnOnce(DriverError) -> GpuError {
    let call = call.into();
    move |e| GpuError::new(call, e.to_string())
}

impl DriverGpu {
    /// The open GPU of the calling thread, with the kernels loaded.
    pub(super) fn new(
        device: Device,
        cubins: &Cubins,
        nccl: Option<Arc<Nccl>>,
        handles: Handles,
        abort: AbortSignal,
    ) -> Result<Self, GpuError> {
        let mut gpu = Self {
            nccl,
            streams: Vec::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            allocations: Vec::new(),
            chained: [Latest::Other; STREAMS],
            recorded: BTreeMap::new(),
            capturing: false,
            communicators: BTreeMap::new(),
            handles,
            published: Vec::new(),
            opened: Vec::new(),
            stop: None,
            products: None,
            graphs: BTreeMap::new(),
            marks: Vec::new(),
            marked: 0,
            stamps: BTreeMap::new(),
            abort,
            device: Some(device),
        };
        for _ in 0..STREAMS {
            gpu.streams.push(result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed("cuStreamCreate"))?);
        }
        for (name, cubin) in &cubins.files {
            // SAFETY: the image is a CUBIN that NVRTC wrote for this architecture; it outlives the call.
            let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) }.map_err(failed(format!("loading {name}")))?;
            gpu.modules.insert(name, module);
        }
        Ok(gpu)
    }
    /// Lets cuBLASLt compute products of many rows.
    pub(super) fn use_library(&mut self, table: Arc<CublasLt>) -> Result<(), GpuError> {
        self.products = Some(Products::new(table)?);
        Ok(())
    }
    /// The latest operation of a stream.
    fn chain(&mut self, stream: Stream) -> &mut Latest {
        &mut self.chained[(stream as usize).min(STREAMS - 1)]
    }
    fn stream(&self, stream: Stream) -> Result<sys::CUstream, GpuError> {
        self.streams.get(stream as usize).copied().ok_or_else(|| GpuError::new("stream", format!("{stream} of {STREAMS}")))
    }
    fn function(&mut self, launch: &Launch) -> Result<sys::CUfunction, GpuError> {
        if let Some(&f) = self.functions.get(launch.kernel) {
            return Ok(f);
        }
        let module = *self.modules.get(launch.source).ok_or_else(|| GpuError::new("module", launch.source))?;
        let name = CString::new(launch.kernel).map_err(|e| GpuError::new("kernel name", e.to_string()))?;
        // SAFETY: the module is loaded and stays so as long as this GPU lives.
        let function = unsafe { result::module::get_function(module, name) }.map_err(failed(format!("kernel {}", launch.kernel)))?;
        // A multiprocessor whose kernels split its memory alike need not become idle between them.
        let carveout = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the function belongs to a loaded module of this context.
        unsafe { result::function::set_function_attribute(function, carveout, SHARED_SHARE) }
            .map_err(failed(format!("shared memory of {}", launch.kernel)))?;
        if launch.shared_bytes > DEFAULT_SHARED_BYTES {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a loaded module of this context.
            unsafe { result::function::set_function_attribute(function, attribute, launch.shared_bytes.max(SHARED_LIMIT_BYTES) as i32) }
                .map_err(failed(format!("shared memory of {}", launch.kernel)))?;
        }
        self.functions.insert(launch.kernel, function);
        Ok(function)
    }
    fn event(&mut self, event: u32) -> Result<sys::CUevent, GpuError> {
        if let Some(&e) = self.events.get(&event) {
            return Ok(e);
        }
        let made = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(failed("cuEventCreate"))?;
        self.events.insert(event, made);
        Ok(made)
    }
}

impl DriverGpu {
    /// Maps memory of another GPU of this process.
    fn enable(&self, ticket: &Ticket) -> Result<Result<Address, String>, GpuError> {
        let own = self.device.as_ref().map_or(0, Device::ordinal) as i32;
        let peer = ticket.ordinal as i32;
        let mut can: i32 = 0;
        // SAFETY: writes one int.
        let code = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, own, peer) };
        code.result().map_err(failed("cuDeviceCanAccessPeer"))?;
        if can == 0 {
            return Ok(Err(format!("GPU {own} cannot map the memory of GPU {peer}")));
        }
        // SAFETY: the context is that of a rank of this process, open until all ranks have ended.
        match unsafe { sys::cuCtxEnablePeerAccess(ticket.context as sys::CUcontext, 0) } {
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(Ok(ticket.address)),
            code => Ok(Err(format!("cuCtxEnablePeerAccess: {}", DriverError(code)))),
        }
    }
    /// Maps memory of a GPU of another process of this host.
    fn open_handle(&mut self, ticket: &Ticket) -> Result<Address, String> {
        let reserved = ticket.handle.as_slice().try_into().map_err(|_| "its memory has no handle for other processes".to_owned())?;
        let handle = sys::CUipcMemHandle { reserved };
        let mut address: sys::CUdeviceptr = 0;
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: the handle is what the driver of this host gave another process; the call writes one address.
        unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) }.result().map_err(|e| format!("cuIpcOpenMemHandle: {e}"))?;
        self.opened.push(address);
        Ok(address)
    }
    /// Whether the driver says that the way to another GPU of this process's numbering is NVLink.
    fn is_linked(&self, peer: i32) -> bool {
        let (own, mut native) = (self.device.as_ref().map_or(0, Device::ordinal) as i32, 0);
        let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        // SAFETY: writes one int.
        let code = unsafe { sys::cuDeviceGetP2PAttribute(&raw mut native, attribute, own, peer) };
        code == sys::CUresult::CUDA_SUCCESS && native != 0
    }
    /// Frees all memory; captured graphs that name it may not be replayed any more.
    pub(super) fn free_all(&mut self) {
        for address in self.allocations.clone() {
            self.free(address);
        }
    }
}

/// The GPU that memory is on, by this process's numbering.
fn gpu_of(address: sys::CUdeviceptr) -> Option<i32> {
    let mut ordinal: i32 = -1;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: this attribute is one int.
    let code = unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address) };
    (code == sys::CUresult::CUDA_SUCCESS && ordinal >= 0).then_some(ordinal)
}

impl Gpu for DriverGpu {
    fn allocate(&mut self, bytes: u64) -> Result<Address, GpuError> {
        // SAFETY: plain device memory, freed on drop. Not from a pool: peers may map it.
        let address = unsafe { result::malloc_sync(bytes.max(1) as usize) }.map_err(failed(format!("allocating {bytes} bytes")))?;
        self.allocations.push(address);
        Ok(address)
    }
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), GpuError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the executor sized the destination by the same ledger; the copy is synchronous.
        unsafe { result::memcpy_htod_sync(to, bytes) }.map_err(failed("copy to device"))
    }
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), GpuError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the executor sized the source by the same ledger; the copy is synchronous.
        unsafe { result::memcpy_dtoh_sync(bytes, from) }.map_err(failed("copy to host"))
    }
    fn fill(&mut self, stream: Stream, to: Address, byte: u8, bytes: u64) -> Result<(), GpuError> {
        *self.chain(stream) = Latest::Other;
        let stream = self.stream(stream)?;
        // SAFETY: the range lies in one of this GPU's allocations.
        unsafe { result::memset_d8_async(to, byte, bytes as usize, stream) }.map_err(failed("memset"))
    }
    fn copy(&mut self, stream: Stream, from: Address, to: Address, bytes: u64) -> Result<(), GpuError> {
        *self.chain(stream) = Latest::Other;
        let stream = self.stream(stream)?;
        // SAFETY: both ranges lie in this GPU's allocations.
        unsafe { result::memcpy_dtod_async(to, from, bytes as usize, stream) }.map_err(failed("copy on device"))
    }
    fn prepare(&mut self, launch: &Launch) -> Result<(), GpuError> {
        let known = self.functions.contains_key(launch.kernel);
        let function = self.function(launch)?;
        if known {
            return Ok(());
        }
        // SAFETY: the function belongs to a loaded module of this context.
        unsafe { sys::cuFuncLoad(function) }.result().map_err(failed(format!("loading {}", launch.kernel)))
    }
    fn launch(&mut self, stream: Stream, launch: &Launch, args: &[u64]) -> Result<(), GpuError> {
        let chained = std::mem::replace(self.chain(stream), Latest::Kernel) == Latest::Kernel;
        let (function, stream) = (self.function(launch)?, self.stream(stream)?);
        let mut cells = args.to_vec();
        let mut pointers: Vec<*mut c_void> = cells.iter_mut().map(|c| std::ptr::from_mut(c).cast()).collect();
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid.0,
            gridDimY: launch.grid.1,
            gridDimZ: launch.grid.2,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(chained),
        };
        // SAFETY: the cells follow the kernel's parameter list (little-endian, so that smaller types read their low bytes) and are copied
        // by the call; addresses belong to this GPU. Every kernel waits for the ones before it before it touches what they write.
        unsafe { sys::cuLaunchKernelEx(&raw const config, function, pointers.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(failed(format!("launching {}", launch.kernel)))
    }
    fn is_hopper(&self) -> bool {
        self.device.as_ref().and_then(|d| d.compute_capability().ok()).is_some_and(|(major, _)| major == HOPPER)
    }
    fn plan_product(&mut self, product: &DenseProduct) -> Result<bool, GpuError> {
        self.products.as_mut().map_or(Ok(false), |p| p.plan(product))
    }
    fn multiply(&mut self, stream: Stream, product: &DenseProduct, places: [Address; 4], workspace: Address) -> Result<bool, GpuError> {
        let handle = self.stream(stream)?;
        let issued = self.products.as_mut().map_or(Ok(false), |p| p.run(product, places, workspace, handle))?;
        // A kernel of the library does not admit ours early, nor does it wait as ours do.
        if issued {
            *self.chain(stream) = Latest::Other;
        }
        Ok(issued)
    }
    fn record(&mut self, stream: Stream, event: u32) -> Result<(), GpuError> {
        let latest = *self.chain(stream);
        // In a capture an event is no operation but an edge.
        if self.capturing {
            self.recorded.insert(event, latest);
        } else {
            *self.chain(stream) = Latest::Other;
        }
        let (event, stream) = (self.event(event)?, self.stream(stream)?);
        // SAFETY: both are alive and of this context.
        unsafe { result::event::record(event, stream) }.map_err(failed("cuEventRecord"))
    }
    fn wait(&mut self, stream: Stream, event: u32) -> Result<(), GpuError> {
        let others = self.recorded.get(&event).copied().filter(|_| self.capturing).unwrap_or(Latest::Other);
        let own = *self.chain(stream);
        let kernels = others == Latest::Kernel && own != Latest::Other;
        *self.chain(stream) = if kernels { Latest::Kernel } else { Latest::Other };
        let (event, stream) = (self.event(event)?, self.stream(stream)?);
        // SAFETY: both are alive and of this context.
        unsafe { result::stream::wait_event(stream, event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .map_err(failed("cuStreamWaitEvent"))
    }
    fn connect(&mut self, communicator: u32, id: &[u8], index: u32, members: u32, deadline: Duration) -> Result<(), GpuError> {
        let nccl = self.nccl.clone().ok_or_else(|| GpuError::new("NCCL", "not loaded, and several ranks need it"))?;
        let device = self.device.clone().ok_or_else(|| GpuError::new("NCCL", "the GPU is closed"))?;
        let made = Communicator::join(nccl, id, (index, members), device, deadline, &self.abort);
        let made = made.map_err(|e| GpuError::new("NCCL", e.to_string()).of_peers())?;
        self.handles.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(made.handle());
        self.communicators.insert(communicator, made);
        Ok(())
    }
    fn communicate(&mut self, stream: Stream, communicator: u32, element: Element, calls: &[Call]) -> Result<(), GpuError> {
        *self.chain(stream) = Latest::Other;
        let stream = self.stream(stream)?;
        let made = self
            .communicators
            .get(&communicator)
            .ok_or_else(|| GpuError::new("NCCL", format!("communicator {communicator} is not connected")))?;
        made.run(stream, element, calls).map_err(|e| GpuError::new("NCCL", e.to_string()).of_peers())
    }
    fn publish(&mut self, bytes: u64) -> Result<(Address, Vec<u8>), GpuError> {
        let address = self.allocate(bytes)?;
        // SAFETY: allocated just now, of this size.
        unsafe { result::memset_d8_sync(address, 0, bytes as usize) }.map_err(failed("memset"))?;
        self.published.push(address);
        let mut context: sys::CUcontext = std::ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { sys::cuCtxGetCurrent(&raw mut context) }.result().map_err(failed("cuCtxGetCurrent"))?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the address is the start of an allocation of this context. Where it cannot be exported, only other processes miss it.
        let exported = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, address) } == sys::CUresult::CUDA_SUCCESS;
        let handle = if exported { handle.reserved.to_vec() } else { Vec::new() };
        let ordinal = self.device.as_ref().map_or(0, Device::ordinal) as u64;
        Ok((address, Ticket::of_this_process(context as u64, ordinal, address, handle).encode()))
    }
    fn map(&mut self, ticket: &[u8], way: Way) -> Result<Result<Address, String>, GpuError> {
        let ticket = Ticket::decode(ticket).ok_or_else(|| GpuError::new("mapping a peer's memory", "its ticket cannot be read"))?;
        let (mapped, peer) = match (ticket.is_of_this_process(), ticket.is_of_this_host()) {
            (true, _) => (self.enable(&ticket)?, Some(ticket.ordinal as i32)),
            // The other process may number GPUs otherwise; the driver knows whose memory it is.
            (false, true) => {
                let opened = self.open_handle(&ticket);
                let peer = opened.as_ref().ok().and_then(|address| gpu_of(*address));
                (opened, peer)
            }
            (false, false) => return Ok(Err("a peer's GPU is on another host".to_owned())),
        };
        if let (Ok(address), Way::NvLink) = (&mapped, way)
            && !peer.is_some_and(|peer| self.is_linked(peer))
        {
            self.unmap(*address);
            return Ok(Err("its GPU reaches a peer's memory, but not over NVLink".to_owned()));
        }
        Ok(mapped)
    }
    fn unmap(&mut self, address: Address) {
        if let Some(i) = self.opened.iter().position(|a| *a == address) {
            self.opened.remove(i);
            // SAFETY: opened by this GPU and closed once, with every stream idle.
            unsafe { sys::cuIpcCloseMemHandle(address) };
        }
    }
    fn stop_word(&mut self) -> Result<Result<Address, String>, GpuError> {
        if let Some((_, address)) = self.stop {
            return Ok(Ok(address));
        }
        let word = Arc::new(StopWord::default());
        let (at, mut address): (*mut c_void, sys::CUdeviceptr) = (Arc::as_ptr(&word).cast_mut().cast(), 0);
        let flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: one whole page, which lives until it is unregistered: this GPU holds it, and leaks it where the device may still look.
        if let Err(e) = unsafe { sys::cuMemHostRegister_v2(at, size_of::<StopWord>(), flags) }.result() {
            return Ok(Err(format!("cuMemHostRegister: {e}")));
        }
        // SAFETY: registered just now; writes one address.
        let found = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, at, 0) };
        self.stop = Some((Arc::clone(&word), address));
        found.result().map_err(failed("cuMemHostGetDevicePointer"))?;
        self.abort.reaches(word);
        Ok(Ok(address))
    }
    fn meet(&mut self, stream: Stream, _: u32, launch: &Launch, args: &[u64]) -> Result<(), GpuError> {
        self.launch(stream, launch, args)
    }
    fn begin_capture(&mut self) -> Result<(), GpuError> {
        (self.chained, self.recorded) = ([Latest::Nothing; STREAMS], BTreeMap::new());
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and idle or ordered.
        unsafe { result::stream::begin_capture(self.streams[0], mode) }.map_err(failed("begin capture"))?;
        self.capturing = true;
        Ok(())
    }
    fn end_capture(&mut self) -> Result<Captured, GpuError> {
        (self.chained, self.capturing) = ([Latest::Other; STREAMS], false);
        // SAFETY: a capture was begun on this stream by this thread.
        let graph = unsafe { result::stream::end_capture(self.streams[0]) }.map_err(failed("end capture"))?;
        // SAFETY: the graph was just captured.
        let exec =
            unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) }.map_err(failed("instantiating the graph"))?;
        let number = self.graphs.keys().next_back().map_or(0, |last| last + 1);
        self.graphs.insert(number, (graph, exec));
        Ok(Captured(number))
    }
    fn replay(&mut self, graph: Captured) -> Result<(), GpuError> {
        self.chained = [Latest::Other; STREAMS];
        let (_, exec) = *self.graphs.get(&graph.0).ok_or_else(|| GpuError::new("graph", format!("{} is not captured", graph.0)))?;
        // SAFETY: the executable graph lives until this GPU is dropped, and so does all memory it names.
        unsafe { result::graph::launch(exec, self.streams[0]) }.map_err(failed("graph launch"))
    }
    fn mark(&mut self, stream: Stream, mark: u32) -> Result<(), GpuError> {
        *self.chain(stream) = Latest::Other;
        let (index, stream) = (mark as usize, self.stream(stream)?);
        while self.marks.len() <= index {
            self.marks.push(result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(failed("cuEventCreate"))?);
        }
        self.marked = index + 1;
        // SAFETY: both are alive and of this context.
        unsafe { result::event::record(self.marks[index], stream) }.map_err(failed("cuEventRecord"))
    }
    fn unfinished(&mut self) -> Option<u32> {
        // SAFETY: every event is alive and was recorded.
        let reached = |e: &sys::CUevent| unsafe { sys::cuEventQuery(*e) } != sys::CUresult::CUDA_ERROR_NOT_READY;
        self.marks[..self.marked].iter().position(|e| !reached(e)).map(|i| i as u32)
    }
    fn stamp(&mut self, stream: Stream, stamp: u32) -> Result<(), GpuError> {
        *self.chain(stream) = Latest::Other;
        let stream = self.stream(stream)?;
        let event = match self.stamps.get(&stamp) {
            Some(&event) => event,
            None => {
                let made = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed("cuEventCreate"))?;
                self.stamps.insert(stamp, made);
                made
            }
        };
        // Without the flag a captured record is an edge of the graph, not a node that keeps the time.
        let how = if self.capturing {
            sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL
        } else {
            sys::CUevent_record_flags::CU_EVENT_RECORD_DEFAULT
        };
        // SAFETY: both are alive and of this context.
        unsafe { sys::cuEventRecordWithFlags(event, stream, how as u32) }.result().map_err(failed("cuEventRecordWithFlags"))
    }
    fn elapsed_ps(&mut self, from: u32, to: u32) -> Result<u64, GpuError> {
        let event =
            |stamp: u32| self.stamps.get(&stamp).copied().ok_or_else(|| GpuError::new("stamp", format!("{stamp} was not recorded")));
        // SAFETY: both are alive, of this context and were recorded.
        let ms = unsafe { result::event::elapsed(event(from)?, event(to)?) }.map_err(failed("cuEventElapsedTime"))?;
        // Clock steps of two streams may put the later stamp a little earlier.
        Ok((f64::from(ms) * 1e9).max(0.0) as u64)
    }
    fn synchronize(&mut self, deadline: Duration) -> Result<(), GpuError> {
        self.chained = [Latest::Other; STREAMS];
        let begin = Instant::now();
        for i in 0..self.streams.len() {
            loop {
                // SAFETY: the stream is alive.
                match unsafe { sys::cuStreamQuery(self.streams[i]) } {
                    sys::CUresult::CUDA_SUCCESS => break,
                    sys::CUresult::CUDA_ERROR_NOT_READY => {}
                    code => return Err(GpuError::new("waiting for the GPU", DriverError(code).to_string())),
                }
                let waited = begin.elapsed();
                if waited < SPIN {
                    std::hint::spin_loop();
                    continue;
                }
                for c in self.communicators.values() {
                    c.check().map_err(|e| GpuError::new("NCCL", e.to_string()).of_peers())?;
                }
                if self.abort.is_raised() {
                    return Err(GpuError::new("waiting for the GPU", "gave up, since the run was aborted").of_peers());
                }
                if waited > deadline {
                    return Err(GpuError::new("waiting for the GPU", format!("not finished within {deadline:?}")).of_peers());
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }
    fn abort(&mut self) {
        // Kernels first: NCCL's abort may wait for the GPU, and so for a kernel that waits for a peer.
        self.stop.iter().for_each(|(word, _)| word.set());
        for c in self.communicators.values_mut() {
            c.abort();
        }
    }
    fn drained(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        // SAFETY: the stream is alive. Any other answer than "not ready" means that nothing runs on it any more.
        let busy = |s: &sys::CUstream| unsafe { sys::cuStreamQuery(*s) } == sys::CUresult::CUDA_ERROR_NOT_READY;
        while self.streams.iter().any(busy) {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }
    fn destroy(&mut self, graph: Captured) {
        if let Some((graph, exec)) = self.graphs.remove(&graph.0) {
            // SAFETY: made by this GPU, destroyed once; errors on the way out have nobody to be told to.
            unsafe {
                result::graph::exec_destroy(exec).ok();
                result::graph::destroy(graph).ok();
            }
        }
    }
    fn disconnect(&mut self, communicator: u32) {
        // Its drop finalizes and destroys it.
        self.communicators.remove(&communicator);
    }
    fn free(&mut self, address: Address) {
        if let Some(i) = self.allocations.iter().rposition(|a| *a == address) {
            self.allocations.remove(i);
            self.published.retain(|p| *p != address);
            // SAFETY: allocated by this GPU and freed once, with every stream idle.
            unsafe { result::free_sync(address) }.ok();
        }
    }
    fn close(&mut self) {
        self.graphs.keys().copied().collect::<Vec<_>>().into_iter().for_each(|g| self.destroy(Captured(g)));
        self.communicators.clear();
        if let Some(products) = self.products.take() {
            products.close();
        }
        // SAFETY: each handle was made by this GPU and is destroyed once: the lists are emptied.
        unsafe {
            let stamps = std::mem::take(&mut self.stamps).into_values();
            for event in std::mem::take(&mut self.events).into_values().chain(std::mem::take(&mut self.marks)).chain(stamps) {
                result::event::destroy(event).ok();
            }
            self.functions.clear();
            for module in std::mem::take(&mut self.modules).into_values() {
                result::module::unload(module).ok();
            }
            for address in std::mem::take(&mut self.opened) {
                sys::cuIpcCloseMemHandle(address);
            }
            self.published.clear();
            for address in std::mem::take(&mut self.allocations) {
                result::free_sync(address).ok();
            }
            if let Some((word, _)) = self.stop.take() {
                sys::cuMemHostUnregister(Arc::as_ptr(&word).cast_mut().cast());
            }
            for stream in std::mem::take(&mut self.streams) {
                result::stream::destroy(stream).ok();
            }
        }
        self.device = None;
    }
    fn abandon(&mut self) {
        self.graphs.clear();
        std::mem::forget(self.products.take());
        std::mem::forget(std::mem::take(&mut self.communicators));
        (self.events, self.marks, self.modules) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        (self.allocations, self.streams, self.stamps) = (Vec::new(), Vec::new(), BTreeMap::new());
        (self.opened, self.published) = (Vec::new(), Vec::new());
        // A kernel may still look at it.
        std::mem::forget(self.stop.take());
        std::mem::forget(self.device.take());
    }
}

impl Drop for DriverGpu {
    /// What an orderly end has left, in case there was none.
    fn drop(&mut self) {
        self.close();
    }
}
