//! The reference executor: runs a program rank by rank on the CPU with real values.

mod exchange;
mod executor;
mod finite;
mod memory;
mod output;
mod schedule;

pub use exchange::ExchangeError;
pub use executor::{ExecuteError, ReferenceExecutor, StepInputs, first_token_of_replica, positions};
pub use finite::NotFinite;
pub use output::{NamedValue, collect};
pub use schedule::{Deadlock, Firing, Order, Schedule};
