//! Bytes per GPU and phase as each engine accounts them.
