//! Whose collective it is, and when an engine uses its own kernel instead of NCCL.

use super::{Algorithm, CollectiveOp};
use crate::machine::{Machine, PathClass};
use crate::network::{Network, RouteError};
use serde::{Deserialize, Serialize};

/// Whose implementation carries out a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Library {
    /// NCCL.
    Nccl,
    /// vLLM: its kernel where it may run, else NCCL.
    Vllm,
    /// SGLang: its kernel where it may run, else NCCL.
    Sglang,
    /// TensorRT-LLM: its kernel where it may run, else NCCL.
    Trtllm,
    /// The one-shot and two-shot kernels whatever the topology, as the PCIe forks of the engines run them.
    OneShot,
}

impl Library {
    /// Every library.
    pub const ALL: [Library; 5] = [Library::Nccl, Library::Vllm, Library::Sglang, Library::Trtllm, Library::OneShot];

    /// Name as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Library::Nccl => "nccl",
            Library::Vllm => "vllm",
            Library::Sglang => "sglang",
            Library::Trtllm => "trtllm",
            Library::OneShot => "one-shot",
        }
    }
}

const MIB: u64 = 1 << 20;

/// The engine's kernel for an all-reduce, or why it is left to NCCL.
///
/// # Errors
/// If ranks are not connected.
pub(super) fn custom_kernel(
    library: Library,
    network: &Network<'_>,
    ranks: &[usize],
    op: CollectiveOp,
    bytes: u64,
) -> Result<Result<Algorithm, String>, RouteError> {
    let n = ranks.len();
    if library == Library::Nccl {
        return Ok(Err("NCCL was asked for".into()));
    }
    if op != CollectiveOp::AllReduce {
        return Ok(Err(format!("{library} has a kernel of its own for all-reduce only")));
    }
    if !matches!(n, 2 | 4 | 6 | 8) {
        return Ok(Err(format!("{library}'s kernel is built for 2, 4, 6 and 8 ranks, not {n}")));
    }
    if !network.machine().peer_access.value {
        return Ok(Err(format!("{library}'s kernel needs peer access")));
    }
    if !bytes.is_multiple_of(16) {
        return Ok(Err(format!("{library}'s kernel needs a multiple of 16 bytes")));
    }
    if library == Library::OneShot {
        return Ok(Ok(shots(n, bytes)));
    }
    let nvlink = all_nvlink(network, ranks)?;
    if n > 2 && !nvlink {
        return Ok(Err(format!("{library}'s kernel needs every pair of more than two GPUs on NVLink")));
    }
    let limit = size_limit(library, network.machine(), ranks, nvlink);
    if bytes >= limit {
        return Ok(Err(format!("{library}'s kernel stops at {limit} bytes here")));
    }
    Ok(Ok(shots(n, bytes)))
}

/// Whether every pair is connected by NVLink.
pub(super) fn all_nvlink(network: &Network<'_>, ranks: &[usize]) -> Result<bool, RouteError> {
    for (i, &a) in ranks.iter().enumerate() {
        for &b in &ranks[i + 1..] {
            if network.class(a, b)? != PathClass::Nvl {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Sizes from which the engine leaves an all-reduce to NCCL.
fn size_limit(library: Library, machine: &Machine, ranks: &[usize], nvlink: bool) -> u64 {
    let major = ranks.iter().filter_map(|&rank| machine.gpu(rank)).map(|gpu| gpu.sm_major).min().unwrap_or(0);
    match (library, major, ranks.len()) {
        // vLLM's symmetric-memory table bounds its kernel on Hopper and Blackwell (launch rules of vLLM 0.16, section 4).
        (Library::Vllm, 9, 6) if nvlink => MIB / 2,
        (Library::Vllm, 9, 8) if nvlink => MIB / 4,
        (Library::Vllm, 10, 2 | 4) if nvlink => 2 * MIB,
        (Library::Vllm, 10, _) if nvlink => MIB,
        _ => 8 * MIB,
    }
}

/// One shot while small, two shots beyond: two ranks always one, up to four below 512 KiB, up to eight below 256 KiB (`custom_all_reduce.cuh`).
fn shots(ranks: usize, bytes: u64) -> Algorithm {
    let one = match ranks {
        ..=2 => true,
        3..=4 => bytes < MIB / 2,
        _ => bytes < MIB / 4,
    };
    if one { Algorithm::OneShot } else { Algorithm::TwoShot }
}
