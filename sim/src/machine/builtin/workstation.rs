//! Boxes of RTX PRO 6000.

use super::figures::{Collectives, Lent, Ring, at_receiver, default_level, pulls_and_pushes};
use super::fitted;
use super::parts::{Build, GB, Sourced, model, ns};
use super::pcie::{Wires, epyc_fabric, gen5, short_fabric};
use crate::machine::{CpuFamily, Figure, LinkKind, Machine, Origin, PathClass, Rate};

const SERVER: &str = "RTX PRO 6000 Blackwell Server Edition";
const WORKSTATION: &str = "RTX PRO 6000 Blackwell Workstation Edition";
const MAX_Q: &str = "RTX PRO 6000 Blackwell Max-Q";
const SERVER_MEMORY: &str = "memory rate 1597 GB/s (Server Edition), not the Workstation's 1792";
const BOTH_WAYS: &str = "PCIe 5.0 x16 both ways at once: 101 to 103 GB/s behind a switch, RTX PRO 6000 (rtx6kpro)";

/// Rings of these figures take 10 us among four GPUs below one switch and 18 us among eight, as torch's loop shows for eight; the start-up
/// benchmark of an engine shows 32 us for the four, at any size up to 96 KiB. See docs/collectives.md.
const REPLAYS: &str =
    "graphs of one NCCL all-reduce of 4 GPUs, replayed by SGLang's start-up benchmark, take so much longer than loops (rtx6kpro)";

/// Peer access of boxes whose owners told NCCL so.
fn level_sys() -> Figure<PathClass> {
    Figure::measured(PathClass::Sys, "NCCL_P2P_LEVEL=SYS in the logs of such boxes")
}

fn peers() -> Figure<bool> {
    Figure::measured(true, "peer copies of RTX PRO 6000 boxes (rtx6kpro)")
}

/// Figures of RTX PRO 6000 rings over peer access, and of what a box does without.
fn figures(from: Sourced, cpu: Figure<CpuFamily>, p2p_level: Figure<PathClass>) -> Collectives {
    Collectives {
        from,
        launch: [2500, 18_600, 28_500],
        cpu,
        p2p_level,
        one_process: at_receiver(),
        kernel: 4600,
        nvlink: Ring::new([500, 520, 2000], [1400, 20], [1000, 500, 2000, 1], 1000),
        pcie: Ring::new([250, 600, 2000], [1500, 4], [1300, 200, 60, 1], 200),
        host: Ring::new([655, 1358, 1747], [3000, 3], [3111, 0, 27, 1], 429),
        nvls: None,
        message: [1650, 4200, 462, 40, 1000],
        custom: [2500, 200, 900, 3000],
        barriers: [None, None],
        loops: 0,
        lent: Lent::default(),
    }
}

pub(super) fn server() -> Machine {
    const TABLES: &str = "fitted to NCCL 2.29.2 and SGLang 0.5.14 tables of an 8x RTX PRO 6000 Server node (aiconfigurator 095f58a)";
    let from = Sourced { origin: Origin::Measured, source: TABLES };
    let cpu = Figure::assumed(CpuFamily::IntelSapphireRapids, "NCCL's choices by size fit a socket link of 18 to 24 GB/s");
    let mut collectives = figures(from, cpu, default_level()).fitted(&fitted::SERVER);
    collectives.barriers = pulls_and_pushes(ns(4700), ns(2000), TABLES);
    let wires = Wires {
        port: gen5(50_000, BOTH_WAYS),
        fabric: short_fabric(),
        bounce: Figure::measured(54 * GB, "rings and all-to-all through one socket's memory, 26 GB/s a GPU"),
        between: Some((LinkKind::Upi, Figure::measured(30 * GB, "all-to-all of 8 GPUs: what crosses the sockets of 18 GB/s a GPU"))),
    };
    let summary = "8 RTX PRO 6000 Blackwell Server behind four PCIe 5.0 switches of two, two sockets";
    let peer = Figure::measured(true, "SGLang's peer kernel runs on two GPUs of the node");
    let mut build = Build::new("8x-rtx-pro-6000-server", summary, model(SERVER), peer, collectives);
    build.assume(
        "its source does not state the topology: pairs below a switch and NCCL's default of no peer access beyond it explain the tables",
    );
    build.assume(SERVER_MEMORY);
    wires.switched(&mut build, 4, 2);
    build.finish()
}

/// Eight GPUs on the root ports of two EPYC.
fn dual_epyc(name: &str, summary: &str, gpu: &str, xgmi: Figure<u64>, from: Sourced) -> Build {
    let cpu = Figure::spec(CpuFamily::Amd, "EPYC");
    let collectives = figures(from, cpu, level_sys()).fitted(&fitted::DUAL_TURIN);
    let wires = Wires {
        port: gen5(51_500, "PCIe 5.0 x16 both ways at once on EPYC root ports: 103 GB/s (rtx6kpro)"),
        fabric: epyc_fabric(),
        bounce: Figure::assumed(250 * GB, "12 channels of DDR5, written and read"),
        between: Some((LinkKind::Xgmi, xgmi)),
    };
    let mut build = Build::new(name, summary, model(gpu), peers(), collectives);
    wires.direct(&mut build, 1, [0, 0, 0, 0, 1, 1, 1, 1]);
    build
}

fn from_dual_turin(origin: Origin) -> Sourced {
    Sourced { origin, source: "fitted to NCCL tables of 8 RTX PRO 6000 on dual EPYC 9575F with and without a graph file (rtx6kpro)" }
}

pub(super) fn dual_turin() -> Machine {
    let xgmi = Figure::measured(99 * GB, "cross-socket copies 51 GB/s one way and 99 both ways, dual Turin (rtx6kpro)");
    let summary = "8 RTX PRO 6000 Blackwell Server on the root ports of two EPYC 9575F";
    let mut build = dual_epyc("8x-rtx-pro-6000-dual-turin", summary, SERVER, xgmi, from_dual_turin(Origin::Measured));
    build.assume(SERVER_MEMORY);
    build.finish()
}

pub(super) fn workstation() -> Machine {
    let xgmi = Figure::measured(99 * GB, "cross-socket copies 51 GB/s one way and 99 both ways, dual Turin (rtx6kpro)");
    let summary = "8 RTX PRO 6000 Blackwell Workstation on the root ports of two EPYC 9005";
    let mut build = dual_epyc("8x-rtx-pro-6000-workstation", summary, WORKSTATION, xgmi, from_dual_turin(Origin::Assumed));
    build.assume("no table of such a box: links and protocols as the dual-Turin box of Server cards");
    build.assume("memory rate 1792 GB/s (Workstation Edition)");
    build.finish()
}

pub(super) fn max_q() -> Machine {
    let xgmi = Figure::measured(39 * GB, "cross-socket copies 39 GB/s one way, 64 both ways, dual EPYC 9374F (rtx6kpro)");
    let summary = "8 RTX PRO 6000 Blackwell Max-Q on the root ports of two EPYC 9374F";
    let mut build = dual_epyc("8x-rtx-pro-6000-max-q", summary, MAX_Q, xgmi, from_dual_turin(Origin::Assumed));
    build.assume("no table of such a box: protocols as the dual-Turin box of Server cards");
    build.assume("memory rate 1792 GB/s (Max-Q)");
    build.finish()
}

/// The wires of a Threadripper PRO box with c-payne switches.
fn wrx90_wires() -> Wires {
    let mut port = gen5(50_500, BOTH_WAYS);
    let reads = Figure::measured(16_800_000_000, "4 GPUs all-to-all inside one switch: 164 GB/s by writes, 67 by reads (rtx6kpro)");
    port.rate = Rate { write_bytes_per_s: port.rate.write_bytes_per_s, read_bytes_per_s: reads };
    Wires { port, fabric: short_fabric(), bounce: Figure::assumed(150 * GB, "8 channels of DDR5, written and read"), between: None }
}

fn from_wrx90() -> Sourced {
    Sourced { origin: Origin::Measured, source: "fitted to NCCL and one-shot tables of WRX90 boxes with c-payne switches (rtx6kpro)" }
}

fn wrx90(name: &str, summary: &str) -> Build {
    let collectives = figures(from_wrx90(), Figure::spec(CpuFamily::Amd, "Threadripper PRO 7955WX"), level_sys()).fitted(&fitted::WRX90);
    let mut build = Build::new(name, summary, model(SERVER), peers(), collectives);
    build.assume(SERVER_MEMORY);
    build.assume("one pair alone reads 53 GB/s; reads are stated as all-to-all gets them, which is when engines read");
    build.replays(Figure::measured(ns(22_100), REPLAYS));
    build
}

pub(super) fn wrx90_2switch() -> Machine {
    let mut build = wrx90(
        "8x-rtx-pro-6000-wrx90-2switch",
        "8 RTX PRO 6000 Blackwell Server below two c-payne switches on two root complexes of a Threadripper PRO",
    );
    wrx90_wires().switched(&mut build, 2, 4);
    build.finish()
}

pub(super) fn wrx90_shared_root() -> Machine {
    let mut build = wrx90(
        "8x-rtx-pro-6000-wrx90-shared-root",
        "8 RTX PRO 6000 Blackwell Server below two c-payne switches on one root complex of a Threadripper PRO",
    );
    let wires = wrx90_wires();
    let sockets = wires.sockets(&mut build, 1);
    let root = build.root("root0".into(), sockets[0], &wires.fabric);
    for index in 0..2 {
        let switch = wires.switch_below(&mut build, index, index, root);
        for _ in 0..4 {
            build.gpu_below(switch, 0, &wires.port);
        }
    }
    build.finish()
}

/// Two leaf switches below a root switch: traffic between leaves never sees the CPU.
pub(super) fn three_switch() -> Machine {
    let from = Sourced {
        origin: Origin::Measured,
        source: "fitted to NCCL and one-shot tables of 8 RTX PRO 6000 Max-Q behind three switches (rtx6kpro)",
    };
    let collectives =
        figures(from, Figure::assumed(CpuFamily::Amd, "a single-socket workstation"), level_sys()).fitted(&fitted::THREE_SWITCH);
    let summary = "8 RTX PRO 6000 Blackwell Max-Q below two leaf switches of four and a root switch, one CPU";
    let mut build = Build::new("8x-rtx-pro-6000-3switch", summary, model(MAX_Q), peers(), collectives);
    build.assume("three switches are taken for two leaves below a root switch; 138 GB/s all-to-all of four GPUs and 192 of eight agree");
    build.assume("memory rate 1792 GB/s (Max-Q)");
    let wires = Wires {
        port: gen5(53_500, "PCIe 5.0 x16 below a switch: 54 GB/s (rtx6kpro)"),
        fabric: short_fabric(),
        bounce: Figure::assumed(150 * GB, "8 channels of DDR5, written and read"),
        between: None,
    };
    let sockets = wires.sockets(&mut build, 1);
    let top = wires.switch(&mut build, 0, sockets[0]);
    for index in 1..3 {
        let leaf = wires.switch_below(&mut build, index, index, top);
        for _ in 0..4 {
            build.gpu_below(leaf, 0, &wires.port);
        }
    }
    build.finish()
}

/// Two PEX890xx chips, each split into two virtual switches with an uplink each; posted writes to two roots collapse.
pub(super) fn esc8000a() -> Machine {
    let from = Sourced { origin: Origin::Assumed, source: "protocols as the dual-Turin box of RTX PRO 6000" };
    let collectives = figures(from, Figure::spec(CpuFamily::Amd, "EPYC 9575F"), level_sys()).fitted(&fitted::DUAL_TURIN);
    let summary = "8 RTX PRO 6000 Blackwell Server in an ASUS ESC8000A-E13P: two PEX890xx chips of two virtual switches, two EPYC 9575F";
    let mut build = Build::new("8x-rtx-pro-6000-esc8000a", summary, model(SERVER), peers(), collectives);
    build.assume(SERVER_MEMORY);
    build.assume("access control (ACS) is off, as the box's measurements were taken");
    let cross = Rate {
        write_bytes_per_s: Figure::measured(38 * GB, "one copy between the chips: 36 to 40 GB/s"),
        read_bytes_per_s: Figure::measured(9 * GB, "16 reads at once between the chips: 9.0 GB/s together"),
    };
    let wires = Wires {
        port: gen5(51_500, "GPU to switch: 53.5 GB/s one way, 101 to 103 both ways"),
        fabric: epyc_fabric(),
        bounce: Figure::assumed(250 * GB, "12 channels of DDR5, written and read"),
        between: None,
    };
    let sockets = [build.socket(0, 1, &wires.bounce), build.socket(1, 1, &wires.bounce)];
    build.uneven(sockets[0], sockets[1], LinkKind::Xgmi, cross, &Figure::assumed(ns(150), "a socket hop"));
    for chip in 0..2u32 {
        let mut halves = Vec::new();
        for half in 0..2u32 {
            let index = chip * 2 + half;
            let root = build.root(format!("root{index}"), sockets[chip as usize], &wires.fabric);
            let switch = wires.switch_below(&mut build, index, chip, root);
            for _ in 0..2 {
                build.gpu_below(switch, chip, &wires.port);
            }
            build.collapse(switch, Figure::measured(2_700_000_000, "two writes from one virtual switch to two roots: 2.7 GB/s together"));
            halves.push(switch);
        }
        let fabric = Figure::measured(102 * GB, "two copies between the virtual switches of a chip: no interference, 53.6 GB/s each");
        build.link(halves[0], halves[1], LinkKind::SwitchFabric, &fabric, &Figure::assumed(ns(20), "inside a chip"));
    }
    build.finish()
}
