//! How a graph becomes per-rank commands, and who obeys them.

pub mod builtin;
pub mod executor;
pub mod init;
pub mod ledger;
pub mod lower;
pub mod program;
pub mod reference;
pub mod session;
pub mod text;
pub mod verify;
pub mod weights;

pub use executor::{Executor, ProgramKey};
pub use lower::{LowerOptions, lower};
pub use program::{Action, Buffer, BufferId, Command, CommandId, EventId, Group, GroupId, Place, Program, RankProgram, StreamId};
