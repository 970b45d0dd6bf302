//! What fake GPUs write down, and what they are told to note.

use super::gpu::Address;
use moetwin_models::RankId;

/// What was asked of a rank's GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The GPU was opened.
    Open,
    /// Memory was reserved.
    Allocate(Address),
    /// A communicator was joined.
    Connect(u32),
    /// Anything that runs on a stream, or copies.
    Work(&'static str),
    /// A kernel was launched.
    Launch(&'static str),
    /// A kernel was loaded ahead of its first launch.
    Ready(&'static str),
    /// A kernel was launched in which ranks wait for each other.
    Meet(&'static str),
    /// A capture ended as this graph.
    Captured(usize),
    /// A graph was replayed.
    Replay(usize),
    /// All communication was ended.
    Abort,
    /// A peer's memory was mapped.
    Map(Address),
    /// And let go of.
    Unmap(Address),
    /// A graph was destroyed.
    Destroy(usize),
    /// A communicator was left.
    Disconnect(u32),
    /// Memory was freed.
    Free(Address),
    /// All was closed.
    Close,
    /// All was left behind.
    Abandon,
}

/// A kernel of a rank notes something as wrong: what, of which member of its group, and how many (`Fault` in exchange.cu).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeFault {
    /// The rank.
    pub rank: RankId,
    /// The kernel.
    pub kernel: &'static str,
    /// The kind of fault.
    pub what: u32,
    /// The member of the group.
    pub member: u32,
    /// How many.
    pub count: u32,
}
