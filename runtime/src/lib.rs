//! How a graph becomes per-rank commands, and who obeys them.

pub mod builtin;
mod crew;
pub mod executor;
pub mod files;
pub mod fleet;
pub mod init;
pub mod ledger;
pub mod lower;
pub mod program;
pub mod rank_machine;
pub mod reference;
pub mod session;
pub mod text;
pub mod verify;
pub mod weights;

pub use executor::{Executor, ProgramKey};
pub use lower::{LowerOptions, lower};
pub use program::{Action, Buffer, BufferId, Command, CommandId, EventId, Group, GroupId, Place, Program, RankProgram, StreamId};
