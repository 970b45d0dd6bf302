//! Leaving a process whose GPUs may still be at work.
#![allow(unsafe_code)]

use std::ffi::c_int;

// SAFETY: the C library's `_exit` takes a number and does not return; no state of ours is left for it to break.
unsafe extern "C" {
    /// Ends the process without its exit handlers.
    safe fn _exit(code: c_int) -> !;
}

/// Ends the process at once. An orderly end runs the exit handlers of the driver and of NCCL, which wait for or take down what a stuck rank's
/// thread still uses: after a failed run two H200 ended in a segmentation fault instead of the exit code. What is to be said or written must
/// have been.
pub fn leave(code: u8) -> ! {
    _exit(c_int::from(code))
}
