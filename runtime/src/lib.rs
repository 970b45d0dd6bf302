//! How a graph becomes per-rank commands, and who obeys them.

pub mod program;

pub use program::{Action, Buffer, BufferId, Command, CommandId, EventId, Group, GroupId, Place, Program, RankProgram, StreamId};
