//! Programs on GPUs: one thread a rank, one graph a decode program, the same commands as every other executor.

pub mod compile;
mod driver_gpu;
mod driver_host;
mod exchange;
mod executor;
mod fabric;
pub mod fake;
pub mod gpu;
pub mod inject;
mod packed;
mod parts;
mod peers;
pub mod progress;
pub(crate) mod rank;
mod ticket;
pub mod trial;
pub mod trial_exchange;
pub(crate) mod weights;
pub mod window;
pub(crate) mod worker;

pub use driver_host::DriverHost;
pub use executor::{CudaExecutor, CudaOptions};
pub use window::AllReduceBackend;
