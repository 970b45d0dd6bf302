//! Machines whose GPUs are joined by NVLink.

use super::figures::{Collectives, Ring, default_level, launch};
use super::parts::{Build, Fabric, GB, Port, Sourced, model, ns};
use crate::machine::{CpuFamily, Figure, GpuModel, LaunchCosts, LinkKind, Machine, Origin, VertexKind};

/// PCIe and sockets of a GPU board's host, which NVLink traffic does not touch.
struct Board {
    name: &'static str,
    summary: &'static str,
    gpu: GpuModel,
    gpus: u32,
    lanes: u8,
    nvlink: Figure<u64>,
    nvlink_latency: u64,
    launch: LaunchCosts,
    collectives: Collectives,
}

/// Two sockets, a switch a GPU, one NVSwitch fabric.
fn nvswitch(board: Board) -> Machine {
    let generation = board.gpu.pcie_gen.max(1);
    let rate = match generation {
        5.. => Figure::measured(55 * GB, "host to device 55 GB/s on an H200"),
        _ => Figure::measured(25 * GB, "PCIe 4.0 x16 peer copies reach 25 GB/s one way"),
    };
    let peer = Figure::spec(true, "NVLink peers");
    let mut build = Build::new(board.name, board.summary, board.gpu, peer, board.launch, board.collectives.build());
    let fabric = Fabric { rate: Figure::assumed(200 * GB, "a socket's I/O fabric"), latency: Figure::assumed(ns(100), "inside a socket") };
    let bounce = Figure::assumed(100 * GB, "host memory writes and reads of copies");
    let port = Port::x16(generation, rate.clone(), Figure::assumed(ns(320), "half of a same-switch ping-pong, 633 ns"));
    let mut sockets = Vec::new();
    for index in 0..2 {
        sockets.push(build.socket(index, 1, &bounce));
    }
    build.link(
        sockets[0],
        sockets[1],
        LinkKind::Upi,
        &Figure::assumed(60 * GB, "three UPI links"),
        &Figure::assumed(ns(150), "a socket hop"),
    );
    let switch = build.vertex("nvswitch".into(), VertexKind::NvSwitch);
    for ordinal in 0..board.gpus {
        let socket = ordinal * 2 / board.gpus;
        let root = build.root(format!("root{ordinal}"), sockets[socket as usize], &fabric);
        let pcie = build.vertex(format!("switch{ordinal}"), VertexKind::PcieSwitch { chip: ordinal, acs: false });
        build.link(root, pcie, port.kind, &rate, &Figure::assumed(ns(100), "a switch hop"));
        let gpu = build.gpu_below(pcie, socket, &port);
        let kind = LinkKind::NvLink { lanes: board.lanes };
        build.link(gpu, switch, kind, &board.nvlink, &Figure::assumed(ns(board.nvlink_latency), "half of an NVLink hop"));
    }
    build.assume("host side: two sockets, one PCIe switch a GPU");
    build.finish()
}

/// Rings over PCIe or host memory of a machine that uses NVLink: only asked for with peer access off.
fn unused(from_generation: u8) -> (Ring, Ring) {
    let pass = if from_generation >= 5 { 1000 } else { 1100 };
    let pcie = Ring { ll_step: 300, ll_pass: pass, ll128_step: 2000, ll128_channel: 4, simple_step: 2500, slices: 1, finish_permille: 550 };
    let host = Ring { ll_step: 300, ll_pass: 1300, ll128_step: 3000, ll128_channel: 3, simple_step: 4000, slices: 1, finish_permille: 550 };
    (pcie, host)
}

pub(super) fn h200() -> Machine {
    let (pcie, host) = unused(5);
    nvswitch(Board {
        name: "8x-h200-sxm",
        summary: "8 H200 SXM on one NVSwitch fabric (HGX), two sockets",
        gpu: model("H200 SXM"),
        gpus: 8,
        lanes: 18,
        nvlink: Figure::measured(400 * GB, "ring steps of NCCL 2.29 Simple, 2 to 8 H200; peer copies reach 389 GB/s"),
        nvlink_latency: 200,
        launch: launch(3000, 29_500, "SGLang 0.5.14 eager all-reduce on 8 H200: 29 to 31 us whatever the size"),
        collectives: Collectives {
            from: Sourced {
                origin: Origin::Measured,
                source: "fit to NCCL 2.29.2 and SGLang 0.5.14 tables of 8 H200 (aiconfigurator 095f58a)",
            },
            cpu: Figure::assumed(CpuFamily::IntelSapphireRapids, "HGX hosts of that generation"),
            p2p_level: default_level(),
            kernel: 3000,
            nvlink: Ring {
                ll_step: 500,
                ll_pass: 650,
                ll128_step: 1400,
                ll128_channel: 20,
                simple_step: 2900,
                slices: 1,
                finish_permille: 1000,
            },
            pcie,
            host,
            nvls: Some([25_000, 175, 275, 46_000]),
            message: [6000, 9500, 100, 330, 900],
            custom: [900, 120, 800, 2500],
        },
    })
}
