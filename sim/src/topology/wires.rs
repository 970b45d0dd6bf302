//! What links carry where no file measured it: figures of like links, each with its source.

use crate::machine::{CpuFamily, Figure, GpuModel, LinkKind};
use crate::time::Duration;

pub(super) const GB: u64 = 1_000_000_000;

/// What a PCIe link carries in one direction while the other is as busy, bytes per second.
pub(super) fn pcie(generation: u8, lanes: u8) -> Figure<u64> {
    let (x16, source) = match generation {
        5 => (51_500, "PCIe 5.0 x16 both ways at once: 103 GB/s, RTX PRO 6000 boxes (rtx6kpro)"),
        4 => (25_000, "PCIe 4.0 x16 both ways at once: 50 GB/s, RTX 4090 boxes with a patched driver"),
        3 => (12_000, "PCIe 3.0 x16: about 12 GB/s of 15.75 are reached by peer copies"),
        2 => (6_000, "PCIe 2.0 x16: three quarters of 8 GB/s"),
        1 => (3_000, "PCIe 1.0 x16: three quarters of 4 GB/s"),
        6 => (103_000, "PCIe 6.0 x16: twice PCIe 5.0"),
        _ => (206_000, "PCIe 7.0 x16: four times PCIe 5.0"),
    };
    let rate = x16 * 1_000_000 * u64::from(lanes) / 16;
    Figure::assumed(rate.max(1), if lanes == 16 { source.to_owned() } else { format!("{source}, by lanes") })
}

/// What the wires of a PCIe link carry in one direction, bytes per second: after encoding, before packets.
pub(super) fn pcie_wire(generation: u8, lanes: u8) -> u64 {
    // Megabytes per second and lane: 8b/10b to generation 2, 128b/130b to 5, flits from 6 on.
    let lane: u64 = match generation {
        1 => 250,
        2 => 500,
        3 => 985,
        4 => 1_969,
        5 => 3_938,
        6 => 7_563,
        _ => 15_125,
    };
    lane * 1_000_000 * u64::from(lanes)
}

/// Half of a GPU's share in the time from GPU to GPU: its port and the flight over one link.
pub(super) fn port_latency(generation: u8) -> Figure<Duration> {
    match generation {
        5.. => Figure::assumed(Duration::from_ns(320), "half of a same-switch GPU ping-pong, 633 ns (rtx6kpro)"),
        4 => Figure::assumed(Duration::from_ns(350), "as PCIe 5.0, slower by the link"),
        _ => Figure::assumed(Duration::from_ns(400), "as PCIe 5.0, slower by the link"),
    }
}

/// A hop through a switch.
pub(super) fn switch_latency() -> Figure<Duration> {
    Figure::assumed(Duration::from_ns(100), "a switch hop")
}

/// From a host bridge to its socket's fabric.
pub(super) fn fabric_latency(cpu: CpuFamily) -> Figure<Duration> {
    match cpu {
        CpuFamily::Amd => Figure::assumed(Duration::from_ns(380), "GPU latency across root ports 1.40 us, EPYC 9005 (rtx6kpro)"),
        _ => Figure::assumed(Duration::from_ns(110), "inside a socket with short ways"),
    }
}

/// A hop between sockets.
pub(super) fn socket_latency() -> Figure<Duration> {
    Figure::assumed(Duration::from_ns(150), "a socket hop")
}

/// What joins two sockets of a family.
pub(super) fn between(cpu: CpuFamily) -> LinkKind {
    match cpu {
        CpuFamily::Amd => LinkKind::Xgmi,
        CpuFamily::Arm => LinkKind::C2c,
        _ => LinkKind::Upi,
    }
}

/// Its rate where neither a file nor a like machine has one.
pub(super) fn between_rate(kind: LinkKind) -> Figure<u64> {
    match kind {
        LinkKind::Xgmi => Figure::assumed(40 * GB, "cross-socket copies reach 39 GB/s one way on dual EPYC 9374F (rtx6kpro)"),
        LinkKind::Upi => Figure::assumed(20 * GB, "two to three UPI links"),
        _ => Figure::assumed(100 * GB, "between Grace CPUs"),
    }
}

/// What copies between GPUs through a socket's memory get together.
pub(super) fn bounce(generation: u8) -> Figure<u64> {
    match generation {
        5.. => Figure::assumed(60 * GB, "host copies; DDR5"),
        4 => Figure::assumed(50 * GB, "host copies; DDR4"),
        _ => Figure::assumed(20 * GB, "host memory copies of that generation"),
    }
}

/// NVLink's rate per lane and direction, by generation of GPU (compute capability): 25 GB/s for Volta, A100 and Hopper, 14 GB/s for the
/// bridges of GA102, 50 GB/s for Blackwell.
pub(super) fn nvlink_lane(model: &GpuModel) -> u64 {
    match (model.sm_major, model.sm_minor) {
        (8, 6) => 14 * GB,
        (10.., _) => 50 * GB,
        _ => 25 * GB,
    }
}

/// NVLink lanes that a model has; 0 without.
pub(super) fn nvlink_lanes(model: &GpuModel) -> u8 {
    u8::try_from(model.nvlink_bytes_per_s / nvlink_lane(model)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::gpu_named;

    #[test]
    fn lanes_of_models_are_those_that_tools_show() {
        for (name, lanes) in [
            ("A100 SXM 80GB", 12),
            ("H100 SXM 80GB", 18),
            ("H800 SXM", 8),
            ("V100 SXM2 32GB", 6),
            ("B200 SXM", 18),
            ("RTX A6000", 4),
            ("L40S", 0),
        ] {
            assert_eq!(nvlink_lanes(gpu_named(name).expect("in the table")), lanes, "{name}");
        }
    }

    #[test]
    fn links_reach_less_than_their_wires() {
        for generation in 1..=7 {
            for lanes in [1, 2, 4, 8, 16] {
                let (reached, wire) = (pcie(generation, lanes).value, pcie_wire(generation, lanes));
                assert!(reached < wire && reached * 10 > wire * 6, "{generation} x{lanes}: {reached} of {wire}");
            }
        }
    }
}
