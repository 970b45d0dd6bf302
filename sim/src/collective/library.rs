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
    /// The one-shot kernel whatever the topology, as the PCIe forks of the engines run it.
    OneShot,
    /// The two-shot kernel whatever the topology.
    TwoShot,
}

impl Library {
    /// Every library.
    pub const ALL: [Library; 6] = [Library::Nccl, Library::Vllm, Library::Sglang, Library::Trtllm, Library::OneShot, Library::TwoShot];

    /// Name as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Library::Nccl => "nccl",
            Library::Vllm => "vllm",
            Library::Sglang => "sglang",
            Library::Trtllm => "trtllm",
            Library::OneShot => "one-shot",
            Library::TwoShot => "two-shot",
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
    match library {
        Library::OneShot => return Ok(Ok(Algorithm::OneShot)),
        Library::TwoShot => return Ok(Ok(Algorithm::TwoShot)),
        _ => {}
    }
    let nvlink = all_nvlink(network, ranks)?;
    if n > 2 && !nvlink {
        return Ok(Err(format!("{library}'s kernel needs every pair of more than two GPUs on NVLink")));
    }
    let limits = limits(library, network.machine(), ranks, nvlink);
    if (limits.symmetric.0..=limits.symmetric.1).contains(&bytes) && network.machine().collectives.nvls.is_some() {
        return Ok(Ok(Algorithm::Symmetric));
    }
    if bytes > limits.most {
        return Ok(Err(format!("{library}'s kernel stops at {} bytes here", limits.most)));
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

/// Which sizes an engine does itself.
struct Limits {
    /// The largest all-reduce of its one-shot and two-shot kernels.
    most: u64,
    /// The smallest and largest it gives to multicast on symmetric memory; nothing where the first is larger.
    symmetric: (u64, u64),
}

/// The engines' limits, as their published tables of times show them where those differ from the source of earlier versions:
/// vLLM stops strictly below its limit, SGLang at it.
fn limits(library: Library, machine: &Machine, ranks: &[usize], nvlink: bool) -> Limits {
    let major = ranks.iter().filter_map(|&rank| machine.gpu(rank)).map(|gpu| gpu.sm_major).min().unwrap_or(0);
    let none = (u64::MAX, 0);
    let below = |most: u64, symmetric| Limits { most: most - 1, symmetric };
    match (library, major, ranks.len()) {
        // 0.16 has 64, 32, 0.5 and 0.25 MiB on Hopper.
        (Library::Vllm, 9, 2) if nvlink => below(64 * MIB, none),
        (Library::Vllm, 9, 4) if nvlink => below(32 * MIB, (32 * MIB, 32 * MIB)),
        (Library::Vllm, 9, 6) if nvlink => below(MIB / 2, (MIB, 128 * MIB)),
        (Library::Vllm, 9, 8) if nvlink => below(MIB / 4, (MIB, 128 * MIB)),
        // 0.24 on 2, 4 and 8 B200: its kernel ends below 2 MiB, 512 and 256 KiB, symmetric memory begins at 2 MiB on 4 and 1 MiB on 8.
        (Library::Vllm, 10, 2) if nvlink => below(2 * MIB, none),
        (Library::Vllm, 10, 4) if nvlink => below(MIB / 2, (2 * MIB, 32 * MIB)),
        (Library::Vllm, 10, _) if nvlink => below(MIB / 4, (MIB, 128 * MIB)),
        (Library::Vllm, _, _) => below(8 * MIB, none),
        // 0.5.14 on H200: 16 MiB is its own, 32 MiB is NCCL's.
        (Library::Sglang, 9.., _) if nvlink => Limits { most: 16 * MIB, symmetric: none },
        _ => Limits { most: 8 * MIB, symmetric: none },
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
