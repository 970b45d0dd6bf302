//! Programs on GPUs: one thread a rank, one graph a decode program, the same commands as every other executor.

pub mod calibrate;
pub mod compile;
mod driver_gpu;
mod driver_host;
mod exchange;
mod executor;
mod fabric;
pub mod fake;
mod fake_gpu;
mod fake_log;
pub mod gpu;
pub mod inject;
mod measure;
mod measure_chain;
pub mod pace;
mod packed;
mod parts;
mod pass;
mod peers;
pub mod progress;
pub(crate) mod rank;
mod ticket;
pub mod trial;
pub mod trial_exchange;
pub(crate) mod weights;
pub mod window;
mod windows;
pub(crate) mod worker;

pub use driver_host::DriverHost;
pub use executor::{CudaExecutor, CudaOptions};
pub use measure::{Choices, CommandTimes, RankTimes, Repetitions};
pub use window::AllReduceBackend;
