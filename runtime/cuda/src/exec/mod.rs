//! Programs on GPUs: one thread a rank, one graph a decode program, the same commands as every other executor.

pub mod compile;
mod driver_gpu;
mod exchange;
mod executor;
pub mod gpu;
mod rank;
pub mod trial;
mod weights;

pub use executor::{CudaExecutor, CudaOptions};
