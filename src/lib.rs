//! moetwin: one dataflow graph of a Mixture-of-Experts forward pass, simulated on a described machine or executed on a real one.
//!
//! This crate is a facade: it gathers the workspace's crates under one name for programs that embed them, and the `moetwin`
//! binary is built on it. Nothing here computes.

pub use moetwin_cuda as cuda;
pub use moetwin_engines as engines;
pub use moetwin_kernels as kernels;
pub use moetwin_models as models;
pub use moetwin_runtime as runtime;
pub use moetwin_sim as sim;
