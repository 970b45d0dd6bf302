//! What answers look like: text for people, JSON for scripts. Both render the same values.

pub(crate) mod calibrate;
pub(crate) mod check_json;
pub(crate) mod check_log;
pub(crate) mod check_text;
pub(crate) mod collective_json;
pub(crate) mod collective_text;
pub(crate) mod compare;
pub(crate) mod html;
pub(crate) mod kernels;
pub(crate) mod profile;
pub(crate) mod requests;
pub(crate) mod sim_json;
pub(crate) mod sim_text;

/// Bytes as GiB.
pub(crate) fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
