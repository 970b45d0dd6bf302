//! What an examination says: as a machine file, and for people.

pub(crate) mod machine;
mod text;

pub(crate) use machine::{Stamp, machine};
pub(crate) use text::report;
