//! What a rank needs of its GPU. The real one talks to the driver and NCCL; a recording fake stands below the same code in tests.

pub use moetwin_kernels::launch::Element;

use super::progress::Board;
use moetwin_kernels::launch::{DenseProduct, Launch};
use moetwin_models::RankId;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An address in device memory.
pub type Address = u64;

/// A stream of a rank, by its number in the program.
pub type Stream = u32;

/// Workspace of products by a library: what NVIDIA advises for Hopper (cuBLAS 13.0, section on workspaces).
pub const WORKSPACE_BYTES: u64 = 32 << 20;

/// A captured graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured(pub usize);

/// Which way to a peer's memory is good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Any.
    Any,
    /// NVLink: where the driver says that atomics work natively on the peer's memory, which they do not over PCIe.
    NvLink,
}

/// One call of a communicator. A command may need several, which then run as one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Sum over all members, on every member.
    AllReduce {
        /// Operand.
        from: Address,
        /// Result.
        to: Address,
        /// Elements.
        count: u64,
    },
    /// A member's data, on every member.
    Broadcast {
        /// Operand, read by the root only.
        from: Address,
        /// Result.
        to: Address,
        /// Elements.
        count: u64,
        /// The member that sends.
        root: u32,
    },
    /// Sum over all members, on one member.
    Reduce {
        /// Operand.
        from: Address,
        /// Result, written on the root only.
        to: Address,
        /// Elements.
        count: u64,
        /// The member that receives.
        root: u32,
    },
    /// To one member.
    Send {
        /// Operand.
        from: Address,
        /// Elements.
        count: u64,
        /// The member that receives.
        peer: u32,
    },
    /// From one member.
    Receive {
        /// Result.
        to: Address,
        /// Elements.
        count: u64,
        /// The member that sends.
        peer: u32,
    },
}

/// Why a GPU operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {what}")]
pub struct GpuError {
    /// What was attempted.
    pub call: String,
    /// What was said.
    pub what: String,
    /// Whether it may be the consequence of another rank's failure: a wait for others ended without them.
    pub peers: bool,
}

impl GpuError {
    /// An error of a call.
    pub fn new(call: impl Into<String>, what: impl Into<String>) -> Self {
        Self { call: call.into(), what: what.into(), peers: false }
    }
    /// The same, of a call that waits for other ranks.
    pub fn of_peers(self) -> Self {
        Self { peers: true, ..self }
    }
}

/// A word of the host's memory that kernels look at while they wait: once it is not zero, they give up. Setting it takes no call of the
/// driver, which might itself wait for the kernel. On a page of its own, since the driver maps whole pages.
#[derive(Debug, Default)]
#[repr(align(4096))]
pub struct StopWord(AtomicU32);

impl StopWord {
    /// Ends the waits of the kernels that look here, now and later.
    pub fn set(&self) {
        self.0.store(1, Ordering::Release);
    }
    /// Whether they are to give up.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
}

/// Raised once any rank has failed. Every wait looks at it and gives up, on the host and on GPUs, so that no rank waits for one that will
/// not come.
#[derive(Clone, Debug, Default)]
pub struct AbortSignal(Arc<Signal>);

#[derive(Debug, Default)]
struct Signal {
    raised: AtomicBool,
    words: Mutex<Vec<Arc<StopWord>>>,
}

impl AbortSignal {
    /// Whether to give up.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Acquire)
    }
    /// Ends every wait. It is never lowered: ranks that were aborted are not used again.
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::Release);
        lock(&self.0.words).iter().for_each(|w| w.set());
    }
    /// Whoever raises the signal sets this word too, whatever the thread of its GPU is stuck in.
    pub fn reaches(&self, word: Arc<StopWord>) {
        let mut words = lock(&self.0.words);
        if self.is_raised() {
            word.set();
        }
        words.push(word);
    }
}

/// The list of words is whole at any time.
fn lock<T>(words: &Mutex<T>) -> MutexGuard<'_, T> {
    words.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The operations of one GPU, used by the one thread that owns it.
pub trait Gpu {
    /// Whether it is of Hopper's architecture, which has kernels of its own.
    fn is_hopper(&self) -> bool {
        false
    }
    /// Reserves memory.
    fn allocate(&mut self, bytes: u64) -> Result<Address, GpuError>;
    /// Copies from the host; finished on return.
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), GpuError>;
    /// Copies to the host; finished on return.
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), GpuError>;
    /// Fills memory with a byte.
    fn fill(&mut self, stream: Stream, to: Address, byte: u8, bytes: u64) -> Result<(), GpuError>;
    /// Copies on the device.
    fn copy(&mut self, stream: Stream, from: Address, to: Address, bytes: u64) -> Result<(), GpuError>;
    /// Loads a kernel, so that its first launch does not: loading may wait for the GPU, and so for ranks that wait for each other there.
    fn prepare(&mut self, launch: &Launch) -> Result<(), GpuError>;
    /// Launches a kernel; `args` are its arguments as 8-byte cells, addresses resolved.
    fn launch(&mut self, stream: Stream, launch: &Launch, args: &[u64]) -> Result<(), GpuError>;
    /// Makes ready for a product of a matrix library, outside any capture; whether there is one that takes it.
    fn plan_product(&mut self, product: &DenseProduct) -> Result<bool, GpuError>;
    /// Computes a product by the library; `places` are x, w, the bias and y, `workspace` is the stream's own of [`WORKSPACE_BYTES`]. False
    /// where it has not been made ready: then nothing was issued.
    fn multiply(&mut self, stream: Stream, product: &DenseProduct, places: [Address; 4], workspace: Address) -> Result<bool, GpuError>;
    /// Records an event.
    fn record(&mut self, stream: Stream, event: u32) -> Result<(), GpuError>;
    /// Makes a stream wait for an event.
    fn wait(&mut self, stream: Stream, event: u32) -> Result<(), GpuError>;
    /// Marks the end of the `mark`-th command of an eager run, so that [`Gpu::unfinished`] can name the one that did not end. Marks are
    /// recorded in ascending order from 0.
    fn mark(&mut self, stream: Stream, mark: u32) -> Result<(), GpuError>;
    /// The lowest mark of the latest eager run that its stream has not reached.
    fn unfinished(&mut self) -> Option<u32>;
    /// Records the time at which a stream comes here as stamp number `stamp`; in a capture, whenever a replay comes here.
    fn stamp(&mut self, stream: Stream, stamp: u32) -> Result<(), GpuError>;
    /// Picoseconds from one stamp to another, both passed.
    fn elapsed_ps(&mut self, from: u32, to: u32) -> Result<u64, GpuError>;
    /// Joins a communicator: blocks until all `members` have, the deadline is over, or the run is aborted.
    fn connect(&mut self, communicator: u32, id: &[u8], index: u32, members: u32, deadline: Duration) -> Result<(), GpuError>;
    /// Runs calls of a communicator as one group.
    fn communicate(&mut self, stream: Stream, communicator: u32, element: Element, calls: &[Call]) -> Result<(), GpuError>;
    /// Reserves zeroed memory that peers may map, and a ticket by which they find it.
    fn publish(&mut self, bytes: u64) -> Result<(Address, Vec<u8>), GpuError>;
    /// Maps what a peer has published. Nothing is wrong where this GPU cannot, or where the way is not direct and has to be: then the
    /// reason is returned.
    fn map(&mut self, ticket: &[u8], way: Way) -> Result<Result<Address, String>, GpuError>;
    /// Lets go of what [`Gpu::map`] gave.
    fn unmap(&mut self, address: Address);
    /// Where kernels of this GPU find a [`StopWord`] that [`Gpu::abort`] and the run's [`AbortSignal`] set. Nothing is wrong where the driver
    /// does not map memory of the host: then the reason is returned, and no kernel may wait for peers.
    fn stop_word(&mut self) -> Result<Result<Address, String>, GpuError>;
    /// Launches a kernel in which all members of a communicator wait for each other.
    fn meet(&mut self, stream: Stream, communicator: u32, launch: &Launch, args: &[u64]) -> Result<(), GpuError>;
    /// Starts capturing stream 0 and whatever joins it.
    fn begin_capture(&mut self) -> Result<(), GpuError>;
    /// Ends the capture.
    fn end_capture(&mut self) -> Result<Captured, GpuError>;
    /// Replays a captured graph on stream 0.
    fn replay(&mut self, graph: Captured) -> Result<(), GpuError>;
    /// Waits until all streams are idle, at most `deadline`, or until the run is aborted.
    fn synchronize(&mut self, deadline: Duration) -> Result<(), GpuError>;
    /// Ends all communication, so that no peer waits for this rank and this rank for no peer.
    fn abort(&mut self);
    /// Whether all streams become idle within `limit`, whatever was aborted. Only then may anything be freed.
    fn drained(&mut self, limit: Duration) -> bool;
    /// Destroys a captured graph.
    fn destroy(&mut self, graph: Captured);
    /// Leaves a communicator that was not aborted.
    fn disconnect(&mut self, communicator: u32);
    /// Frees what [`Gpu::allocate`] gave.
    fn free(&mut self, address: Address);
    /// Closes streams, events, modules and the context. Nothing is called afterwards.
    fn close(&mut self);
    /// Gives up everything without touching it: something on the device never ended. The end of the process frees it.
    fn abandon(&mut self);
}

/// Where ranks' GPUs come from, and what time is there.
pub trait Host: Send + Sync + 'static {
    /// Its GPUs.
    type Gpu: Gpu;
    /// Opens the GPU of a rank, for the calling thread. Waits of the GPU end once `abort` is raised.
    fn open(&self, rank: RankId, abort: AbortSignal) -> Result<Self::Gpu, GpuError>;
    /// A fresh id for one communicator; every member is handed the same.
    fn unique_id(&self) -> Result<Vec<u8>, GpuError>;
    /// Aborts the communicators of a rank from outside its thread, which is stuck in a call.
    fn abort_stuck(&self, rank: RankId);
    /// Stands still on a rank's thread until the run is aborted, or for ever.
    fn stall(&self, _: RankId, until: Option<&AbortSignal>) {
        while !until.is_some_and(AbortSignal::is_raised) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    /// Time since some fixed instant.
    fn now(&self) -> Duration;
    /// How long to wait, in real time, before looking again, when `left` is left until a deadline.
    fn slice(&self, left: Duration) -> Duration {
        left
    }
    /// Nothing happened for a slice while ranks were doing what the board says.
    fn nothing_happened(&self, _: &Board) {}
}
