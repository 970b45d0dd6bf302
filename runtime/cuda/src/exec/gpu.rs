//! What a rank needs of its GPU. The real one talks to the driver and NCCL; a recording fake stands below the same code in tests.

pub use moetwin_kernels::launch::Element;
use moetwin_kernels::launch::Launch;
use std::time::Duration;

/// An address in device memory.
pub type Address = u64;

/// A stream of a rank, by its number in the program.
pub type Stream = u32;

/// A captured graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured(pub usize);

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
}

impl GpuError {
    /// An error of a call.
    pub fn new(call: impl Into<String>, what: impl Into<String>) -> Self {
        Self { call: call.into(), what: what.into() }
    }
}

/// The operations of one GPU, used by the one thread that owns it.
pub trait Gpu {
    /// Reserves memory; freed when the GPU is dropped.
    fn allocate(&mut self, bytes: u64) -> Result<Address, GpuError>;
    /// Copies from the host; finished on return.
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), GpuError>;
    /// Copies to the host; finished on return.
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), GpuError>;
    /// Fills memory with a byte.
    fn fill(&mut self, stream: Stream, to: Address, byte: u8, bytes: u64) -> Result<(), GpuError>;
    /// Copies on the device.
    fn copy(&mut self, stream: Stream, from: Address, to: Address, bytes: u64) -> Result<(), GpuError>;
    /// Launches a kernel; `args` are its arguments as 8-byte cells, addresses resolved.
    fn launch(&mut self, stream: Stream, launch: &Launch, args: &[u64]) -> Result<(), GpuError>;
    /// Records an event.
    fn record(&mut self, stream: Stream, event: u32) -> Result<(), GpuError>;
    /// Makes a stream wait for an event.
    fn wait(&mut self, stream: Stream, event: u32) -> Result<(), GpuError>;
    /// Joins a communicator: blocks until all `members` have.
    fn connect(&mut self, communicator: u32, id: &[u8], index: u32, members: u32, deadline: Duration) -> Result<(), GpuError>;
    /// Runs calls of a communicator as one group.
    fn communicate(&mut self, stream: Stream, communicator: u32, element: Element, calls: &[Call]) -> Result<(), GpuError>;
    /// Starts capturing stream 0 and whatever joins it.
    fn begin_capture(&mut self) -> Result<(), GpuError>;
    /// Ends the capture.
    fn end_capture(&mut self) -> Result<Captured, GpuError>;
    /// Replays a captured graph on stream 0.
    fn replay(&mut self, graph: Captured) -> Result<(), GpuError>;
    /// Waits until all streams are idle, at most `deadline`.
    fn synchronize(&mut self, deadline: Duration) -> Result<(), GpuError>;
    /// Ends all communication, so that no peer waits for this rank.
    fn abort(&mut self);
}
