//! What start-up brings about, one item at a time.

use crate::program::GroupId;
use moetwin_models::define_id;
use serde::{Deserialize, Serialize};

define_id!(
    /// A step of one rank's start-up: its position in the rank's list.
    StepId,
    "i"
);

/// Which of a rank's two models a step belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Worker {
    /// The served model.
    #[default]
    Target,
    /// The model that drafts tokens for speculative decoding.
    Draft,
}

impl std::fmt::Display for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Worker::Target => "target",
            Worker::Draft => "draft",
        })
    }
}

/// A batch size for which a forward pass is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// Whose forward pass.
    #[serde(default)]
    pub worker: Worker,
    /// Sequences, at least 1.
    pub batch: u32,
}

impl Bucket {
    /// A batch size of the served model.
    pub fn target(batch: u32) -> Self {
        Self { worker: Worker::Target, batch }
    }
    /// A batch size of the draft model.
    pub fn draft(batch: u32) -> Self {
        Self { worker: Worker::Draft, batch }
    }
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.worker {
            Worker::Target => write!(f, "batch {}", self.batch),
            Worker::Draft => write!(f, "draft batch {}", self.batch),
        }
    }
}

/// An item of one rank's state. A step brings items about and relies on others; an item, once true, stays true
/// (what ends it is an item of its own, for example [`Fact::CommunicatorDestroyed`]).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The device context and its streams.
    Context,
    /// The rank knows its peers: rendezvous done, host-side groups exist.
    ProcessGroup,
    /// The rank's handle of a group's communicator.
    Communicator(GroupId),
    /// Weights of a worker in device memory.
    Weights(Worker),
    /// Which expert lives where, as dispatch looks it up.
    ExpertMetadata(Worker),
    /// The arena for activations and workspaces.
    Arena,
    /// The KV pool of a worker.
    KvPool(Worker),
    /// Buffers that all-to-all backends write into.
    AllToAllBuffers,
    /// A collective has run in the group: its channels and buffers exist.
    CollectivesWarm(GroupId),
    /// A worker's forward pass has run eagerly: modules are loaded, workspaces exist.
    WarmedUp(Worker),
    /// Capture of a bucket has begun; it lasts until the bucket is [`Fact::Captured`].
    CaptureOpen(Bucket),
    /// The graph of a bucket.
    Captured(Bucket),
    /// Every rank was seen to have finished start-up.
    Ready,
    /// All captured graphs of the rank are destroyed.
    GraphsDestroyed,
    /// The communicator of a group is destroyed.
    CommunicatorDestroyed(GroupId),
    /// The device context is closed.
    ContextClosed,
    /// A further item that an engine's table declares in [`InitPlan::state`](super::InitPlan::state).
    Named(String),
}

impl Fact {
    /// Whether bringing it about takes device memory.
    pub fn allocates(&self) -> bool {
        matches!(self, Fact::Context | Fact::Communicator(_) | Fact::Weights(_) | Fact::Arena | Fact::KvPool(_) | Fact::AllToAllBuffers)
    }
    /// The group that the item is about.
    pub fn group(&self) -> Option<GroupId> {
        match self {
            Fact::Communicator(group) | Fact::CollectivesWarm(group) | Fact::CommunicatorDestroyed(group) => Some(*group),
            _ => None,
        }
    }
    /// The bucket whose capture it begins or ends.
    pub fn bucket(&self) -> Option<Bucket> {
        match self {
            Fact::CaptureOpen(bucket) | Fact::Captured(bucket) => Some(*bucket),
            _ => None,
        }
    }
}

impl std::fmt::Display for Fact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fact::Context => write!(f, "the device context"),
            Fact::ProcessGroup => write!(f, "the process group"),
            Fact::Communicator(group) => write!(f, "the communicator of {group}"),
            Fact::Weights(worker) => write!(f, "the {worker} weights"),
            Fact::ExpertMetadata(worker) => write!(f, "the expert placement metadata of the {worker}"),
            Fact::Arena => write!(f, "the arena"),
            Fact::KvPool(worker) => write!(f, "the KV pool of the {worker}"),
            Fact::AllToAllBuffers => write!(f, "the all-to-all buffers"),
            Fact::CollectivesWarm(group) => write!(f, "a first collective in {group}"),
            Fact::WarmedUp(worker) => write!(f, "the warm-up of the {worker}"),
            Fact::CaptureOpen(bucket) => write!(f, "the open capture of {bucket}"),
            Fact::Captured(bucket) => write!(f, "the captured graph of {bucket}"),
            Fact::Ready => write!(f, "the fleet's readiness"),
            Fact::GraphsDestroyed => write!(f, "the end of the captured graphs"),
            Fact::CommunicatorDestroyed(group) => write!(f, "the end of the communicator of {group}"),
            Fact::ContextClosed => write!(f, "the end of the device context"),
            Fact::Named(name) => write!(f, "`{name}`"),
        }
    }
}
