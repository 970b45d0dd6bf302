//! Programs on GPUs: one thread a rank, one graph a decode program, the same commands as every other executor.

pub mod calibrate;
pub mod compile;
mod driver_gpu;
mod driver_host;
mod exchange;
mod executor;
pub mod fake;
pub mod gpu;
pub mod inject;
mod measure;
pub mod pace;
mod parts;
pub mod progress;
pub(crate) mod rank;
pub mod trial;
pub(crate) mod weights;
pub(crate) mod worker;

pub use driver_host::DriverHost;
pub use executor::{CudaExecutor, CudaOptions};
pub use measure::{CommandTimes, RankTimes, Repetitions};
