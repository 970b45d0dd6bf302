//! The reference executor: runs a program rank by rank on the CPU with real values.

mod schedule;

pub use schedule::{Deadlock, Firing, Order, Schedule};
