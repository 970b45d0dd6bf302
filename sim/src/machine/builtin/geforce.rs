//! Boxes of GeForce cards, L40S and PCIe A100.

use super::figures::{Collectives, Lent, Ring, at_receiver, default_level, pulls_and_pushes};
use super::fitted;
use super::parts::{Build, GB, Sourced, model, ns};
use super::pcie::{Wires, epyc_fabric, gen4, gen5, short_fabric};
use crate::machine::{CpuFamily, Figure, LinkKind, Machine, Origin, PathClass, SharedMemory};

fn measured(source: &'static str) -> Sourced {
    Sourced { origin: Origin::Measured, source }
}

/// Stock GeForce drivers forbid peer access.
fn stock() -> Figure<bool> {
    Figure::spec(false, "GeForce drivers offer no peer access over PCIe")
}

fn figures(from: Sourced, cpu: Figure<CpuFamily>, p2p_level: Figure<PathClass>) -> Collectives {
    Collectives {
        from,
        launch: [4000, 40_000, 80_000],
        cpu,
        p2p_level,
        one_process: at_receiver(),
        kernel: 6000,
        nvlink: Ring::new([500, 520, 2000], [1400, 20], [1000, 500, 2000, 1], 1000),
        pcie: Ring::new([700, 1080, 2000], [2500, 3], [4000, 500, 60, 1], 300),
        host: Ring::new([1000, 1500, 2000], [4000, 2], [3500, 1000, 17, 1], 300),
        nvls: None,
        message: [3000, 6000, 500, 20, 900],
        custom: [1500, 200, 800, 4000],
        barriers: [None, None],
        loops: 0,
        lent: Lent::default(),
    }
}

/// Eight 4090 on two EPYC 7542 split into eight NUMA nodes; peer access with a patched driver, off with the stock one.
pub(super) fn rtx_4090_epyc() -> Machine {
    let from = measured("fitted to NCCL tables of RTX 4090 boxes with a patched driver and without (blog.chlc.cc, pptest_driver)");
    let level = Figure::assumed(PathClass::Sys, "who patches the driver sets NCCL_P2P_LEVEL=SYS");
    let collectives = figures(from, Figure::spec(CpuFamily::Amd, "EPYC 7542"), level).fitted(&fitted::RTX_4090_EPYC);
    let wires = Wires {
        port: gen4(25_500, "PCIe 4.0 x16 peer copies with a patched driver: 50 GB/s both ways"),
        fabric: epyc_fabric(),
        bounce: Figure::assumed(70 * GB, "8 channels of DDR4-3200"),
        between: Some((LinkKind::Xgmi, Figure::measured(21 * GB, "cross-socket peer copies 41 GB/s both ways"))),
    };
    let summary = "8 RTX 4090 on the root ports of two EPYC 7542, four NUMA nodes a socket";
    let mut build = Build::new("8x-rtx-4090-epyc", summary, model("GeForce RTX 4090"), stock(), collectives);
    wires.direct(&mut build, 4, [3, 2, 1, 0, 7, 6, 5, 4]);
    build.finish()
}

/// The wires of 4090 boxes whose topology is not stated.
fn rtx_4090_wires(bounce: Figure<u64>) -> Wires {
    Wires {
        port: gen4(25_500, "PCIe 4.0 x16"),
        fabric: epyc_fabric(),
        bounce,
        between: Some((LinkKind::Xgmi, Figure::assumed(40 * GB, "between sockets"))),
    }
}

pub(super) fn rtx_4090_hpc() -> Machine {
    let from = measured("fitted to Ring and Simple tables of 8 RTX 4090 on an HPC host, NCCL 2.12 (Panlichen/nccl-tests 2c51b1b)");
    let collectives =
        figures(from, Figure::assumed(CpuFamily::Amd, "bus numbers as on dual EPYC boards"), default_level()).fitted(&fitted::RTX_4090_HPC);
    let summary = "8 RTX 4090 on the root ports of two sockets (HPC host)";
    let mut build = Build::new("8x-rtx-4090-hpc", summary, model("GeForce RTX 4090"), stock(), collectives);
    build.assume("the topology is not stated: bus numbers 01 25 41 61 81 a1 c1 e1 are those of dual EPYC boards without switches");
    rtx_4090_wires(Figure::assumed(66 * GB, "8 channels of DDR4")).direct(&mut build, 1, [0, 0, 0, 0, 1, 1, 1, 1]);
    build.finish()
}

pub(super) fn rtx_4090_cloud() -> Machine {
    let from = measured("fitted to an all-gather table of 8 RTX 4090 in a cloud notebook, NCCL 2.12 (Panlichen/nccl-tests 2c51b1b)");
    let collectives =
        figures(from, Figure::assumed(CpuFamily::IntelOther, "a virtual machine"), default_level()).fitted(&fitted::RTX_4090_CLOUD);
    let summary = "8 RTX 4090 of a cloud notebook host, slow host memory";
    let mut build = Build::new("8x-rtx-4090-cloud", summary, model("GeForce RTX 4090"), stock(), collectives);
    build.assume("the topology is not stated; copies through host memory reach 2.6 GB/s a GPU, as if the host were a virtual machine without huge pages");
    rtx_4090_wires(Figure::measured(10_400_000_000, "ring all-gather of 8: 2.6 GB/s a GPU")).direct(
        &mut build,
        1,
        [0, 0, 0, 0, 1, 1, 1, 1],
    );
    build.finish()
}

pub(super) fn rtx_4090_pair() -> Machine {
    let from = measured("fitted to Ring and Simple tables of two RTX 4090, NCCL 2.12 (Panlichen/nccl-tests 2c51b1b)");
    let collectives = figures(from, Figure::assumed(CpuFamily::Amd, "an EPYC of the kind in a published topology dump"), default_level())
        .fitted(&fitted::RTX_4090_PAIR);
    let wires = Wires {
        port: gen4(25_500, "PCIe 4.0 x16"),
        fabric: epyc_fabric(),
        bounce: Figure::measured(20 * GB, "ring steps of two: 9 to 10 GB/s each"),
        between: None,
    };
    let summary = "2 RTX 4090 on the root ports of one socket";
    let mut build = Build::new("2x-rtx-4090", summary, model("GeForce RTX 4090"), stock(), collectives);
    build.assume("the topology is not stated: root ports of one EPYC");
    let sockets = wires.sockets(&mut build, 4);
    for ordinal in 0..2 {
        let root = build.root(format!("root{ordinal}"), sockets[0], &wires.fabric);
        build.gpu_below(root, 3 - ordinal, &wires.port);
    }
    build.finish()
}

pub(super) fn rtx_5090_dual_turin() -> Machine {
    let from = measured("fitted to an NCCL 2.29 table of 8 RTX 5090 on dual EPYC 9575F with a patched driver");
    let level = Figure::measured(PathClass::Sys, "NCCL_P2P_LEVEL=SYS in the log");
    let mut collectives = figures(from, Figure::spec(CpuFamily::Amd, "EPYC 9575F"), level).fitted(&fitted::RTX_5090);
    // A PCIe 5.0 port and a launch take what they take on an RTX PRO 6000.
    collectives.host = fitted::SERVER.host.unwrap_or(collectives.host);
    collectives.launch = fitted::SERVER.launch.unwrap_or(collectives.launch);
    let wires = Wires {
        port: gen5(50_000, "PCIe 5.0 x16 both ways at once"),
        fabric: epyc_fabric(),
        bounce: Figure::assumed(250 * GB, "12 channels of DDR5, written and read"),
        between: Some((LinkKind::Xgmi, Figure::measured(99 * GB, "cross-socket copies 51 GB/s one way and 99 both ways, dual Turin"))),
    };
    let summary = "8 RTX 5090 on the root ports of two EPYC 9575F, peer access by a patched driver";
    let peer = Figure::measured(true, "patched driver 610.43.03 with peer access");
    let mut build = Build::new("8x-rtx-5090-dual-turin", summary, model("GeForce RTX 5090"), peer, collectives);
    wires.direct(&mut build, 1, [0, 0, 0, 0, 1, 1, 1, 1]);
    build.finish()
}

pub(super) fn l40s() -> Machine {
    const TABLES: &str = "fitted to NCCL 2.27.3 and SGLang 0.5.14 tables of an 8x L40S node (aiconfigurator 095f58a)";
    let cpu = Figure::assumed(CpuFamily::IntelSkylake, "NCCL's choices by size");
    let mut collectives = figures(measured(TABLES), cpu, default_level()).fitted(&fitted::L40S);
    collectives.barriers = pulls_and_pushes(ns(5200), ns(2520), TABLES);
    let wires = Wires {
        port: gen4(20_000, "PCIe 4.0 x16: 19 GB/s bus bandwidth of two GPUs"),
        fabric: short_fabric(),
        bounce: Figure::measured(9 * GB, "rings of 4 GPUs: two flows through one socket's memory, 3.6 to 4.7 GB/s each"),
        between: Some((LinkKind::Upi, Figure::measured(2_350_000_000, "rings of 8 GPUs: one flow each way between the sockets, 1.9 GB/s"))),
    };
    collectives.one_process = Figure::assumed(
        SharedMemory::FirstSocket,
        "one process of nccl-tests gets 1.2 GB/s from 8 GPUs, a process a GPU 1.9: the first crosses the sockets twice",
    );
    let summary = "8 L40S behind four PCIe 4.0 switches of two, two sockets, slow host memory";
    let peer = Figure::assumed(true, "two GPUs of the node exchange at PCIe speed");
    let mut build = Build::new("8x-l40s", summary, model("L40S"), peer, collectives);
    build.assume("its source does not state the topology: pairs below a switch, and beyond them a way through host memory that is slower than the wires");
    wires.switched(&mut build, 4, 2);
    build.finish()
}

pub(super) fn a100_pcie() -> Machine {
    let from = measured("fitted to Ring and Simple tables of 8 A100 PCIe 40GB, NCCL 2.12 (Panlichen/nccl-tests 2c51b1b)");
    let collectives = figures(from, Figure::assumed(CpuFamily::IntelSkylake, "bus numbers as on Ice Lake boards"), default_level())
        .fitted(&fitted::A100_PCIE);
    let wires = Wires {
        port: gen4(24_000, "PCIe 4.0 x16"),
        fabric: short_fabric(),
        bounce: Figure::assumed(25 * GB, "host copies"),
        between: Some((LinkKind::Upi, Figure::assumed(11_400_000_000, "rings across the sockets: 11 to 12 GB/s"))),
    };
    let summary = "8 A100 PCIe 40 GB behind two PCIe 4.0 switches of four, two sockets";
    let peer = Figure::spec(true, "A100 peers over PCIe");
    let mut build = Build::new("8x-a100-pcie-40gb", summary, model("A100 PCIe 40GB"), peer, collectives);
    build.assume("the topology is not stated: bus numbers 4f 50 53 57 and 9c 9d a0 a4 are those of two switches of four");
    wires.switched(&mut build, 2, 4);
    build.finish()
}
