//! A program: what every rank is told, in the order its streams run it. Plain data; simulator, reference and GPUs obey the same one.

use moetwin_models::{Graph, IdVec, NodeId, RankId, TensorId, define_id};
use serde::{Deserialize, Serialize};

define_id!(
    /// A set of ranks that communicate.
    GroupId,
    "g"
);
define_id!(
    /// A buffer of one rank's arena.
    BufferId,
    "b"
);
define_id!(
    /// An event of one rank: recorded on one stream, waited for on another.
    EventId,
    "e"
);
define_id!(
    /// A stream of one rank. Stream 0 carries the forward pass, stream 1 what runs beside it.
    StreamId,
    "s"
);

/// A command's identity, stable across runs and executors: the graph node it carries out and the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CommandId {
    /// The graph node.
    pub node: NodeId,
    /// The rank.
    pub rank: RankId,
}

impl std::fmt::Display for CommandId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.node, self.rank)
    }
}

/// Ranks that communicate with each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Name, for example `tp[0..8]`.
    pub name: String,
    /// Members in group order: sums are taken in this order.
    pub ranks: Vec<RankId>,
}

/// A forward pass as per-rank commands.
#[derive(Clone, Debug, Serialize)]
pub struct Program {
    /// The sharded graph that the commands carry out.
    pub graph: Graph,
    /// Groups, each with at least two ranks.
    pub groups: IdVec<GroupId, Group>,
    /// One list a rank, indexed by [`RankId`].
    pub ranks: IdVec<RankId, RankProgram>,
}

/// What one rank does in a step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RankProgram {
    /// Commands in launch order.
    pub commands: Vec<Command>,
    /// Buffers of the step's arena.
    pub buffers: IdVec<BufferId, Buffer>,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Streams used.
    pub streams: u32,
    /// Events used.
    pub events: u32,
}

/// A tensor's storage on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Buffer {
    /// The tensor (for caches, the storage's tensor).
    pub tensor: TensorId,
    /// Local sizes along every dimension.
    pub sizes: Vec<u64>,
    /// Bytes.
    pub bytes: u64,
    /// Where it lives.
    pub place: Place,
}

/// Where a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// At this offset of the step's arena; shared over time with other buffers.
    Arena {
        /// Byte offset.
        offset: u64,
    },
    /// Weights: written once at load.
    Weight,
    /// The KV pool.
    KvPool,
    /// Step inputs, written by the host before the step.
    Input,
}

/// One command of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Identity.
    pub id: CommandId,
    /// The stream it runs on; commands of a stream run in order.
    pub stream: StreamId,
    /// Events of other streams that must have been recorded before it runs.
    pub waits: Vec<EventId>,
    /// Event recorded once it has run.
    pub records: Option<EventId>,
    /// Operands, in the order of the node's inputs.
    pub reads: Vec<BufferId>,
    /// Results, in the order of the node's outputs.
    pub writes: Vec<BufferId>,
    /// What the rank does.
    pub action: Action,
}

/// What a rank does for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The node's op on local data.
    Compute,
    /// The node's collective with a group; `sequence` numbers the group's collectives, the same on every member.
    Collective {
        /// The group.
        group: GroupId,
        /// Position among the group's collectives of this step.
        sequence: u32,
    },
    /// Send the operand to a rank of a later stage.
    Send {
        /// Receiver.
        to: RankId,
    },
    /// Receive the result from a rank of an earlier stage.
    Receive {
        /// Sender.
        from: RankId,
    },
}
