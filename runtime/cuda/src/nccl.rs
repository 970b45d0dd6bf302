//! NCCL's functions, from whatever file holds them. cudarc's own loader never tries the name `libnccl.so.2`.
#![allow(unsafe_code)]

use crate::device::Device;
use crate::exec::gpu::{AbortSignal, Call, Element};
use crate::library::{Library, OpenError};
use crate::search::{NCCL, Search};
use cudarc::nccl::sys;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The table of NCCL functions.
pub struct Nccl {
    library: Library,
    version: unsafe extern "C" fn(*mut c_int) -> sys::ncclResult_t,
    functions: Functions,
}

type Comm = sys::ncclComm_t;
type Code = sys::ncclResult_t;
type Raw = *mut c_void;

/// Functions of nccl.h, with their signatures there.
struct Functions {
    unique_id: unsafe extern "C" fn(*mut sys::ncclUniqueId) -> Code,
    init_rank: unsafe extern "C" fn(*mut Comm, c_int, sys::ncclUniqueId, c_int) -> Code,
    finalize: unsafe extern "C" fn(Comm) -> Code,
    destroy: unsafe extern "C" fn(Comm) -> Code,
    abort: unsafe extern "C" fn(Comm) -> Code,
    async_error: unsafe extern "C" fn(Comm, *mut Code) -> Code,
    last_error: unsafe extern "C" fn(Comm) -> *const c_char,
    group_start: unsafe extern "C" fn() -> Code,
    group_end: unsafe extern "C" fn() -> Code,
    all_reduce: unsafe extern "C" fn(Raw, Raw, usize, sys::ncclDataType_t, sys::ncclRedOp_t, Comm, Raw) -> Code,
    broadcast: unsafe extern "C" fn(Raw, Raw, usize, sys::ncclDataType_t, c_int, Comm, Raw) -> Code,
    reduce: unsafe extern "C" fn(Raw, Raw, usize, sys::ncclDataType_t, sys::ncclRedOp_t, c_int, Comm, Raw) -> Code,
    send: unsafe extern "C" fn(Raw, usize, sys::ncclDataType_t, c_int, Comm, Raw) -> Code,
    recv: unsafe extern "C" fn(Raw, usize, sys::ncclDataType_t, c_int, Comm, Raw) -> Code,
}

impl Functions {
    fn load(library: &Library) -> Result<Self, OpenError> {
        // SAFETY: each field's type is the signature of its symbol in nccl.h 2.28.
        unsafe {
            Ok(Self {
                unique_id: library.function("ncclGetUniqueId")?,
                init_rank: library.function("ncclCommInitRank")?,
                finalize: library.function("ncclCommFinalize")?,
                destroy: library.function("ncclCommDestroy")?,
                abort: library.function("ncclCommAbort")?,
                async_error: library.function("ncclCommGetAsyncError")?,
                last_error: library.function("ncclGetLastError")?,
                group_start: library.function("ncclGroupStart")?,
                group_end: library.function("ncclGroupEnd")?,
                all_reduce: library.function("ncclAllReduce")?,
                broadcast: library.function("ncclBroadcast")?,
                reduce: library.function("ncclReduce")?,
                send: library.function("ncclSend")?,
                recv: library.function("ncclRecv")?,
            })
        }
    }
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
    /// A call failed, and NCCL said why.
    #[error("NCCL: {call} returned {code:?}: {why}")]
    Explained {
        /// The function.
        call: &'static str,
        /// What it returned.
        code: sys::ncclResult_t,
        /// NCCL's last error.
        why: String,
    },
    /// Not every member came.
    #[error("NCCL: not all {members} members joined within {seconds} s")]
    Deadline {
        /// Members of the communicator.
        members: u32,
        /// The deadline.
        seconds: u64,
    },
    /// The thread that joins could not.
    #[error("NCCL: joining: {0}")]
    Thread(String),
    /// It was aborted.
    #[error("NCCL: the communicator was aborted")]
    Ended,
    /// The run was aborted before every member came.
    #[error("NCCL: gave up joining {members} members, since the run was aborted")]
    Aborted {
        /// Members of the communicator.
        members: u32,
    },
}

impl Nccl {
    /// Finds and opens NCCL.
    pub fn open(search: &Search) -> Result<Self, NcclError> {
        let library = Library::open(&NCCL, search)?;
        // SAFETY: the signature is nccl.h's (`ncclResult_t ncclGetVersion(int *version)`), the same since NCCL 1.3.
        let version = unsafe { library.function("ncclGetVersion") }?;
        let functions = Functions::load(&library)?;
        Ok(Self { library, version, functions })
    }
    /// A fresh id for one communicator; every member is handed the same.
    pub fn unique_id(&self) -> Result<Vec<u8>, NcclError> {
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: the call fills the id.
        ok("ncclGetUniqueId", unsafe { (self.functions.unique_id)(&raw mut id) })?;
        Ok(id.internal.iter().map(|&c| c as u8).collect())
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

fn ok(call: &'static str, code: sys::ncclResult_t) -> Result<(), NcclError> {
    match code {
        sys::ncclResult_t::ncclSuccess => Ok(()),
        code => Err(NcclError::Call { call, code }),
    }
}

/// A communicator's handle, shared with whoever may have to abort it.
pub struct Handle {
    nccl: Arc<Nccl>,
    /// `ncclComm_t` as a number: NCCL allows any thread to abort it.
    comm: usize,
    /// Set by the one who ends it, in whatever way.
    ended: AtomicBool,
}

impl Handle {
    /// Ends pending communication of this rank at once. For the rank's own thread, or while that is stuck in a call.
    pub fn abort(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            // SAFETY: the communicator is alive, and `ended` keeps everybody from using it afterwards.
            unsafe { (self.nccl.functions.abort)(self.comm as Comm) };
        }
    }
}

/// One rank's membership of a group. Finalized and destroyed on drop, unless it was aborted.
pub struct Communicator {
    handle: Arc<Handle>,
}

/// How often a joining rank looks whether the run was aborted.
const JOIN_POLL: Duration = Duration::from_millis(2);

impl Communicator {
    /// Joins as member `place.0` of `place.1`; returns once all members have joined, when the deadline passes, or when the run is aborted.
    ///
    /// NCCL's blocking init has neither a deadline nor an abort, and a non-blocking communicator would make every later call one
    /// that must be polled. So a thread of its own joins; where that is left behind, it aborts what it got, or ends with the process.
    pub fn join(
        nccl: Arc<Nccl>,
        id: &[u8],
        place: (u32, u32),
        device: Device,
        deadline: Duration,
        abort: &AbortSignal,
    ) -> Result<Self, NcclError> {
        let (index, members) = place;
        let mut internal = [0; 128];
        internal.iter_mut().zip(id).for_each(|(to, &from)| *to = from as c_char);
        let id = sys::ncclUniqueId { internal };
        let (done, joined) = channel();
        let table = Arc::clone(&nccl);
        std::thread::spawn(move || {
            if let Err(e) = device.bind() {
                done.send(Err(NcclError::Thread(e.to_string()))).ok();
                return;
            }
            let mut comm: Comm = std::ptr::null_mut();
            // SAFETY: the id is NCCL's; the call writes one handle.
            let code = unsafe { (table.functions.init_rank)(&raw mut comm, members as c_int, id, index as c_int) };
            let made = table.explained(comm, "ncclCommInitRank", code);
            let handle = made.map(|()| Arc::new(Handle { nccl: table, comm: comm as usize, ended: AtomicBool::new(false) }));
            if let Err(std::sync::mpsc::SendError(Ok(left))) = done.send(handle) {
                left.abort();
            }
        });
        let begin = Instant::now();
        loop {
            match joined.recv_timeout(JOIN_POLL) {
                Ok(made) => return made.map(|handle| Self { handle }),
                Err(RecvTimeoutError::Disconnected) => return Err(NcclError::Thread("it ended without an answer".to_owned())),
                Err(RecvTimeoutError::Timeout) if abort.is_raised() => return Err(NcclError::Aborted { members }),
                Err(RecvTimeoutError::Timeout) if begin.elapsed() > deadline => {
                    return Err(NcclError::Deadline { members, seconds: deadline.as_secs() });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
    /// By which another thread can abort it.
    pub fn handle(&self) -> Arc<Handle> {
        Arc::clone(&self.handle)
    }
    fn alive(&self) -> Result<Comm, NcclError> {
        if self.handle.ended.load(Ordering::Acquire) { Err(NcclError::Ended) } else { Ok(self.handle.comm as Comm) }
    }
    /// Enqueues calls as one group on a stream, given as the driver's handle.
    pub(crate) fn run(&self, stream: cudarc::driver::sys::CUstream, element: Element, calls: &[Call]) -> Result<(), NcclError> {
        let stream: *mut c_void = stream.cast();
        let (comm, nccl) = (self.alive()?, &self.handle.nccl);
        let f = &nccl.functions;
        let kind = match element {
            Element::Bf16 => sys::ncclDataType_t::ncclBfloat16,
            Element::F32 => sys::ncclDataType_t::ncclFloat32,
            Element::I32 => sys::ncclDataType_t::ncclInt32,
        };
        let sum = sys::ncclRedOp_t::ncclSum;
        let raw = |address: u64| address as *mut c_void;
        // SAFETY: starts a group of this thread, ended below.
        nccl.explained(comm, "ncclGroupStart", unsafe { (f.group_start)() })?;
        for &call in calls {
            // SAFETY: addresses are device memory of this rank of at least `count` elements; the stream is this rank's.
            let (name, code) = unsafe {
                match call {
                    Call::AllReduce { from, to, count } => {
                        ("ncclAllReduce", (f.all_reduce)(raw(from), raw(to), count as usize, kind, sum, comm, stream))
                    }
                    Call::Broadcast { from, to, count, root } => {
                        ("ncclBroadcast", (f.broadcast)(raw(from), raw(to), count as usize, kind, root as c_int, comm, stream))
                    }
                    Call::Reduce { from, to, count, root } => {
                        ("ncclReduce", (f.reduce)(raw(from), raw(to), count as usize, kind, sum, root as c_int, comm, stream))
                    }
                    Call::Send { from, count, peer } => {
                        ("ncclSend", (f.send)(raw(from), count as usize, kind, peer as c_int, comm, stream))
                    }
                    Call::Receive { to, count, peer } => ("ncclRecv", (f.recv)(raw(to), count as usize, kind, peer as c_int, comm, stream)),
                }
            };
            nccl.explained(comm, name, code)?;
        }
        // SAFETY: ends the group started above.
        nccl.explained(comm, "ncclGroupEnd", unsafe { (f.group_end)() })
    }
    /// An error that a peer or the network caused since the last look.
    pub fn check(&self) -> Result<(), NcclError> {
        let (comm, nccl) = (self.alive()?, &self.handle.nccl);
        let mut code = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the communicator is alive; the call writes one code.
        ok("ncclCommGetAsyncError", unsafe { (nccl.functions.async_error)(comm, &raw mut code) })?;
        nccl.explained(comm, "an earlier call", code)
    }
    /// Ends pending communication of this rank at once.
    pub fn abort(&mut self) {
        self.handle.abort();
    }
}

impl Nccl {
    fn explained(&self, comm: Comm, call: &'static str, code: sys::ncclResult_t) -> Result<(), NcclError> {
        if matches!(code, sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress) {
            return Ok(());
        }
        // SAFETY: NCCL returns a string that lives until its next error, copied at once; it takes a null communicator too.
        let text = unsafe { (self.functions.last_error)(comm) };
        let why = if text.is_null() {
            String::new()
        } else {
            // SAFETY: not null, and null-terminated.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(NcclError::Explained { call, code, why })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.handle.ended.swap(true, Ordering::AcqRel) {
            let (comm, f) = (self.handle.comm as Comm, &self.handle.nccl.functions);
            // SAFETY: alive, finalized and destroyed once; all its streams are idle by then.
            unsafe {
                (f.finalize)(comm);
                (f.destroy)(comm);
            }
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
