//! Machines whose GPUs talk over PCIe.

use super::figures::{Collectives, Ring, default_level, launch};
use super::parts::{Build, Fabric, GB, Port, Sourced, model, ns};
use crate::machine::{CpuFamily, Figure, LinkKind, Machine, Origin, VertexKind};

pub(super) fn rtx_pro_6000_server() -> Machine {
    const NAME: &str = "8x-rtx-pro-6000-server";
    const TABLES: &str = "NCCL 2.29.2 and SGLang 0.5.14 tables of an 8x RTX PRO 6000 Server node (aiconfigurator 095f58a)";
    let collectives = Collectives {
        from: Sourced { origin: Origin::Measured, source: TABLES },
        cpu: Figure::assumed(CpuFamily::IntelSapphireRapids, "NCCL's choices by size fit a socket link of 18 to 24 GB/s"),
        p2p_level: default_level(),
        kernel: 4600,
        nvlink: Ring {
            ll_step: 500,
            ll_pass: 650,
            ll128_step: 1400,
            ll128_channel: 20,
            simple_step: 2900,
            slices: 1,
            finish_permille: 1000,
        },
        pcie: Ring { ll_step: 500, ll_pass: 700, ll128_step: 2000, ll128_channel: 4, simple_step: 4000, slices: 1, finish_permille: 550 },
        host: Ring { ll_step: 350, ll_pass: 1330, ll128_step: 3000, ll128_channel: 3, simple_step: 4000, slices: 1, finish_permille: 550 },
        nvls: None,
        message: [1500, 3500, 300, 26, 1150],
        custom: [0, 200, 810, 3000],
    };
    let summary = "8 RTX PRO 6000 Blackwell Server behind four PCIe 5.0 switches of two, two sockets";
    let peer = Figure::measured(true, "SGLang's peer kernel runs on two GPUs of the node");
    let costs = launch(2500, 18_600, "SGLang 0.5.14 eager all-reduce of two GPUs: 18.6 us whatever the size");
    let mut build = Build::new(NAME, summary, model("RTX PRO 6000 Blackwell Server Edition"), peer, costs, collectives.build());
    build.assume(
        "its source does not state the topology: pairs below a switch and NCCL's default of no peer access beyond it explain the tables",
    );
    build.assume("memory rate 1597 GB/s (Server Edition), not the Workstation's 1792");
    let bounce = Figure::measured(54 * GB, "two ring hops through one socket's memory: 27 GB/s each");
    let x16 = Figure::measured(50 * GB, "PCIe 5.0 x16 behind a switch, both ways at once: 101 to 103 GB/s, RTX PRO 6000");
    let fabric = Fabric { rate: Figure::assumed(200 * GB, "a socket's I/O fabric"), latency: Figure::assumed(ns(100), "inside a socket") };
    let port = Port::x16(5, x16.clone(), Figure::measured(ns(320), "half of a same-switch GPU ping-pong, 633 ns"));
    let mut sockets = Vec::new();
    for index in 0..2 {
        sockets.push(build.socket(index, 1, &bounce));
    }
    let upi = Figure::measured(42 * GB, "all-to-all of 8: 4/7 of 18.4 GB/s a GPU cross the sockets");
    build.link(sockets[0], sockets[1], LinkKind::Upi, &upi, &Figure::assumed(ns(150), "a socket hop"));
    for index in 0..4u32 {
        let socket = index / 2;
        let root = build.root(format!("root{index}"), sockets[socket as usize], &fabric);
        let switch = build.vertex(format!("switch{index}"), VertexKind::PcieSwitch { chip: index, acs: false });
        build.link(root, switch, port.kind, &x16, &Figure::assumed(ns(100), "a switch hop"));
        for _ in 0..2 {
            build.gpu_below(switch, socket, &port);
        }
    }
    build.finish()
}
