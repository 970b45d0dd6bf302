//! Time of one small all-reduce, by the way it takes.

use crate::hardware::{Hardware, Interconnect};
use crate::question::Engine;
use crate::settings::Settings;

/// Ways of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReduce {
    /// NCCL over peer access.
    Nccl,
    /// A one-shot kernel over peer access, NCCL beyond its cut-off.
    OneShot,
    /// NCCL through host memory.
    Host,
}

/// The way of a launch.
pub(super) fn of(settings: &Settings, hardware: &Hardware) -> AllReduce {
    if settings.env_on("NCCL_P2P_DISABLE") || no_peers(hardware) {
        return AllReduce::Host;
    }
    let forced = settings.env_on("VLLM_ENABLE_PCIE_ALLREDUCE") || settings.version.text.contains("b12x");
    match hardware.interconnect {
        Interconnect::Nvlink if settings.custom_all_reduce => AllReduce::OneShot,
        Interconnect::Pcie | Interconnect::NvlinkPairs
            if settings.custom_all_reduce && (settings.tp == 2 || forced) && settings.tp <= 4 =>
        {
            AllReduce::OneShot
        }
        _ => AllReduce::Nccl,
    }
}

/// GeForce boards with the stock driver have no peer access.
fn no_peers(hardware: &Hardware) -> bool {
    let geforce = crate::hardware::find(&hardware.gpu).is_some_and(|gpu| gpu.geforce);
    let patched = hardware.words.iter().any(|w| matches!(w.as_str(), "patched" | "p2p" | "forcep2p"));
    let said = hardware.words.windows(2).any(|pair| pair[0] == "p2p" && pair[1] == "off");
    said || geforce && !patched && hardware.interconnect == Interconnect::Pcie
}

/// Whether a one-shot kernel over PCIe is worth naming: 2 to 4 ranks of one host with peer access.
pub(super) fn one_shot_possible(settings: &Settings, hardware: &Hardware) -> bool {
    hardware.interconnect == Interconnect::Pcie && (2..=4).contains(&settings.tp) && hardware.nodes <= 1 && !no_peers(hardware)
}

/// Whether peer access makes a difference at all.
pub(super) fn peer_access_matters(settings: &Settings, hardware: &Hardware) -> bool {
    hardware.interconnect == Interconnect::Pcie && settings.tp > 1 && hardware.nodes <= 1
}

/// Anchors `(KiB, us)` of NCCL in a CUDA graph over PCIe (RTX PRO 6000 Server, 2, 4 and 8 GPUs; nccl-tests and SGLang's own timing).
const PCIE: [(u32, [(f64, f64); 5]); 3] = [
    (2, [(8.0, 6.8), (64.0, 9.2), (256.0, 18.5), (1024.0, 44.0), (4096.0, 129.0)]),
    (4, [(8.0, 13.5), (64.0, 16.9), (256.0, 41.0), (1024.0, 86.0), (4096.0, 245.0)]),
    (8, [(8.0, 26.7), (64.0, 34.2), (256.0, 85.0), (1024.0, 132.0), (4096.0, 346.0)]),
];
/// The same with the engines' kernels over NVLink (H200 SXM).
const NVLINK: [(f64, f64); 5] = [(8.0, 3.6), (64.0, 5.0), (256.0, 8.0), (1024.0, 13.0), (4096.0, 32.0)];
/// NCCL over NVLink (H200 SXM).
const NVLINK_NCCL: [(f64, f64); 5] = [(8.0, 17.0), (64.0, 20.0), (256.0, 21.0), (1024.0, 26.0), (4096.0, 51.0)];
/// NCCL through host memory, 8 GPUs (RTX 4090 without peer access; a little above, as the RTX PRO 6000 pair of 65 and 44 tok/s asks).
const HOST: [(f64, f64); 5] = [(8.0, 50.0), (64.0, 55.0), (256.0, 125.0), (1024.0, 223.0), (4096.0, 581.0)];

/// What ranks wait for each other before a reduction over PCIe, beyond what a benchmark's loop shows: profiles of Qwen3.5-397B at TP4 put a tenth of
/// the step into one-shot reductions of 7.7 us.
const SKEW_US: f64 = 4.0;

/// Time of an all-reduce of `bytes` over the launch's tensor-parallel ranks, us.
pub fn all_reduce_us(settings: &Settings, hardware: &Hardware, way: AllReduce, bytes: f64) -> f64 {
    let ranks = f64::from(settings.tp.max(2));
    let kib = bytes / 1024.0;
    if let Some(us) = known_bad(settings, hardware, kib) {
        return us;
    }
    // Another host's network: a round of 200 Gb/s RDMA costs about what 8 GPUs of one board do.
    let hosts = if hardware.nodes > 1 { 25.0 + kib / 20.0 } else { 0.0 };
    let scaled = |points: &[(f64, f64)], of: f64| interpolated(points, kib) * (ranks / of).clamp(0.2, 4.0);
    let skew = if hardware.interconnect == Interconnect::Nvlink { 0.0 } else { SKEW_US };
    hosts
        + skew
        + match (hardware.interconnect, way) {
            (Interconnect::Nvlink, AllReduce::OneShot) => interpolated(&NVLINK, kib),
            (Interconnect::Nvlink, _) => interpolated(&NVLINK_NCCL, kib),
            (_, AllReduce::Host) => scaled(&HOST, 8.0),
            (_, AllReduce::Nccl) => pcie(ranks, kib),
            // 7.7 us at 16 KiB and 11.8 at 64 on 4 GPUs; never slower than NCCL, since engines have a cut-off.
            (_, AllReduce::OneShot) => ((6.3 + 0.0854 * kib) * if ranks <= 2.0 { 0.65 } else { 1.0 }).min(pcie(ranks, kib)),
        }
}

/// Boards on which all-reduces were measured to be far off: two PCIe islands 292 us (8x A800), 16 ranks through the host 1.1 ms (V100), switches of
/// the PEX890xx family 90 us on top (12 to 16 ms a step of 156).
fn known_bad(settings: &Settings, hardware: &Hardware, kib: f64) -> Option<f64> {
    let says = |word: &str| hardware.words.iter().any(|w| w.starts_with(word));
    if says("islands") && settings.tp > hardware.count.unwrap_or(8) / 2 {
        return Some(292.0 + kib / 10.0);
    }
    if says("host") && says("through") && settings.tp > 8 {
        return Some(1100.0 + kib / 5.0);
    }
    if (says("pex89") || says("pex890")) && settings.tp >= 8 && settings.engine == Engine::Vllm {
        return Some(90.0 + pcie(f64::from(settings.tp), kib));
    }
    None
}

fn pcie(ranks: f64, kib: f64) -> f64 {
    let of = PCIE.iter().find(|(n, _)| f64::from(*n) >= ranks).unwrap_or(&PCIE[2]);
    interpolated(&of.1, kib) * (ranks / f64::from(of.0)).max(1.0)
}

/// Straight lines between anchors; the first holds below, the last slope beyond.
fn interpolated(points: &[(f64, f64)], x: f64) -> f64 {
    let (Some(first), [.., before, last]) = (points.first(), points) else { return 0.0 };
    if x <= first.0 {
        return first.1;
    }
    let pair = points.windows(2).find(|p| x <= p[1].0);
    let (a, b) = pair.map_or((before, last), |p| (&p[0], &p[1]));
    a.1 + (x - a.0) / (b.0 - a.0) * (b.1 - a.1)
}
