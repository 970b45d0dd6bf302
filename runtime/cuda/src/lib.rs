//! CUDA and NCCL, loaded at run time. The only crate that names cudarc.
//!
//! Everything here builds and its tests pass on a machine without a GPU and without the CUDA toolkit: no library is linked, and
//! [`probe()`] says which ones are there and what to install for those that are not. The crate holds all unsafe code that talks to
//! CUDA, in [`library`], [`device`], [`nccl`], [`exec`], [`doctor`] and [`leave()`]; a test of the workspace keeps the list.
//!
//! cudarc panics where a library or one of its symbols is missing, so nothing here calls it before [`library::Library`] has found the
//! library and checked the symbols. It also never looks for `libnccl.so.2`, the only name that wheels and distributions
//! ship: NCCL is therefore called through a table of our own ([`nccl::Nccl`]), with cudarc's types.

pub mod cublaslt;
pub mod device;
pub mod doctor;
pub mod exec;
pub mod launcher;
mod leave;
pub mod library;
pub mod link;
pub mod nccl;
pub mod probe;
pub mod search;
mod wire;

pub use device::{Device, DeviceError};
pub use leave::leave;
pub use probe::{Found, Missing, Piece, Probe, probe};
pub use search::Search;
