//! Cost facts and the CPU reference of every op, and the CUDA C++ sources. No FFI.

pub mod cost;
pub mod dequant;
pub mod launch;
pub mod reference;
pub mod routing;
pub mod splitmix;
