//! Machines whose GPUs are joined by NVLink.

use super::figures::{Collectives, Lent, Ring, at_receiver, default_level};
use super::fitted;
use super::parts::{Build, Fabric, GB, Port, Sourced, model, ns};
use crate::machine::{CpuFamily, Figure, GpuModel, LinkKind, Machine, Origin, VertexKind};

/// A board of GPUs on one NVSwitch fabric and its host.
struct Board {
    name: &'static str,
    summary: &'static str,
    gpu: GpuModel,
    gpus: u32,
    lanes: u8,
    nvlink: Figure<u64>,
    collectives: Collectives,
}

/// Two sockets, a PCIe switch a GPU, one NVSwitch fabric.
fn nvswitch(board: Board) -> Machine {
    let rate = match board.gpu.pcie_gen {
        5.. => Figure::measured(55 * GB, "host to device 55 GB/s on an H200"),
        _ => Figure::measured(25 * GB, "PCIe 4.0 x16 peer copies reach 25 GB/s one way"),
    };
    let port = Port::x16(board.gpu.pcie_gen, rate.clone(), Figure::assumed(ns(320), "half of a same-switch ping-pong, 633 ns"));
    let mut build = Build::new(board.name, board.summary, board.gpu, Figure::spec(true, "NVLink peers"), board.collectives);
    let fabric = Fabric { rate: Figure::assumed(200 * GB, "a socket's I/O fabric"), latency: Figure::assumed(ns(100), "inside a socket") };
    let bounce = Figure::assumed(150 * GB, "8 channels of DDR5, written and read");
    let sockets = [build.socket(0, 1, &bounce), build.socket(1, 1, &bounce)];
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
        build.link(gpu, switch, kind, &board.nvlink, &Figure::assumed(ns(200), "half of an NVLink hop"));
    }
    build.assume("host side: two sockets, one PCIe switch a GPU");
    build.finish()
}

/// Rings over PCIe and host memory, which an NVLink machine uses only with peer access off.
fn off_nvlink() -> (Ring, Ring) {
    let pcie = Ring::new([500, 700, 2000], [2000, 4], [4000, 0, 60, 1], 550);
    let host = Ring::new([655, 1358, 1747], [3000, 3], [3111, 0, 27, 1], 429);
    (pcie, host)
}

fn tables(source: &'static str) -> Sourced {
    Sourced { origin: Origin::Measured, source }
}

/// The figures of Hopper boards, which share GPU and fabric.
fn hopper(from: Sourced) -> Collectives {
    let (pcie, _) = off_nvlink();
    let from_bounce = Sourced {
        origin: Origin::Measured,
        source: "two H200, NCCL_P2P_DISABLE=1, NCCL 2.28 through torch: 20.5 us for 64 KiB, 40.5 for 256 KiB, 67 for 1 MiB, 610 for 16 MiB",
    };
    let host = Ring::new([3500, 1400, 1747], [3000, 3], [6000, 0, 32, 1], 285);
    Collectives {
        from,
        launch: [3000, 29_500, 33_000],
        cpu: Figure::assumed(CpuFamily::IntelSapphireRapids, "HGX hosts of that generation"),
        p2p_level: default_level(),
        one_process: at_receiver(),
        kernel: 3000,
        nvlink: Ring::new([500, 520, 2000], [1400, 20], [1000, 500, 2000, 1], 1000),
        pcie,
        host,
        nvls: Some([25_000, 175, 275, 46_000, 13_000, 265]),
        message: [1500, 5500, 130, 240, 650],
        custom: [900, 120, 800, 2500],
        barriers: [
            Some(Figure::assumed(ns(4400), "between vLLM's kernels on A100 and B200")),
            Some(Figure::measured(ns(900), "fitted to SGLang 0.5.14 tables of 8 H200 SXM (aiconfigurator 095f58a)")),
        ],
        loops: 0,
        lent: Lent { host_from: Some(from_bounce), ..Lent::default() },
    }
}

pub(super) fn h200() -> Machine {
    const TABLES: &str = "fitted to NCCL 2.29.2 and SGLang 0.5.14 tables of 8 H200 SXM (aiconfigurator 095f58a)";
    nvswitch(Board {
        name: "8x-h200-sxm",
        summary: "8 H200 SXM on one NVSwitch fabric (HGX), two sockets",
        gpu: model("H200 SXM"),
        gpus: 8,
        lanes: 18,
        nvlink: Figure::measured(400 * GB, "ring steps of NCCL 2.29 Simple; peer copies reach 389 GB/s"),
        collectives: hopper(tables(TABLES)).fitted(&fitted::HOPPER),
    })
}

pub(super) fn h100() -> Machine {
    const TABLES: &str = "fitted to NCCL 2.29.2 tables of 8 H100 SXM (aiconfigurator 095f58a)";
    nvswitch(Board {
        name: "8x-h100-sxm",
        summary: "8 H100 SXM on one NVSwitch fabric (HGX), two sockets",
        gpu: model("H100 SXM 80GB"),
        gpus: 8,
        lanes: 18,
        nvlink: Figure::measured(400 * GB, "ring steps of NCCL 2.29 Simple"),
        collectives: hopper(tables(TABLES)).fitted(&fitted::HOPPER),
    })
}

pub(super) fn h800() -> Machine {
    const TABLES: &str = "fitted to Ring and Simple tables of 8 H800 SXM, NCCL 2.12 (Panlichen/nccl-tests 2c51b1b)";
    let collectives = hopper(tables(TABLES)).fitted(&fitted::HOPPER).fitted(&fitted::H800);
    nvswitch(Board {
        name: "8x-h800-sxm",
        summary: "8 H800 SXM, NVLink cut to 8 lanes, on one NVSwitch fabric, two Sapphire Rapids sockets",
        gpu: model("H800 SXM"),
        gpus: 8,
        lanes: 8,
        nvlink: Figure::measured(183 * GB, "ring steps of NCCL Simple: 163 GB/s bus bandwidth"),
        collectives,
    })
}

pub(super) fn a100() -> Machine {
    const TABLES: &str = "fitted to NCCL 2.27.3 and vLLM 0.14.0 tables of 8 A100 SXM (aiconfigurator 095f58a)";
    let (pcie, host) = off_nvlink();
    nvswitch(Board {
        name: "8x-a100-sxm",
        summary: "8 A100 SXM 80 GB on one NVSwitch fabric (HGX), two sockets",
        gpu: model("A100 SXM 80GB"),
        gpus: 8,
        lanes: 12,
        nvlink: Figure::measured(235 * GB, "ring steps of NCCL 2.27 Simple"),
        collectives: Collectives {
            from: tables(TABLES),
            launch: [4000, 44_000, 48_000],
            cpu: Figure::assumed(CpuFamily::Amd, "DGX A100 hosts"),
            p2p_level: default_level(),
            one_process: at_receiver(),
            kernel: 6000,
            nvlink: Ring::new([700, 800, 2000], [1800, 15], [2000, 500, 2000, 1], 800),
            pcie,
            host,
            nvls: None,
            message: [6000, 9500, 100, 200, 900],
            custom: [3000, 300, 762, 2500],
            barriers: [None, Some(Figure::assumed(ns(1400), "SGLang's on H200, longer by as much as NCCL's kernel is"))],
            loops: 0,
            lent: Lent::default(),
        }
        .fitted(&fitted::A100),
    })
}

/// The figures of Blackwell boards.
fn blackwell(from: Sourced) -> Collectives {
    let (pcie, host) = off_nvlink();
    Collectives {
        from,
        launch: [3000, 29_500, 33_000],
        cpu: Figure::assumed(CpuFamily::IntelEmeraldRapids, "HGX hosts of that generation"),
        p2p_level: default_level(),
        one_process: at_receiver(),
        kernel: 7500,
        nvlink: Ring::new([700, 500, 2000], [1800, 30], [10_000, 400, 2000, 2], 800),
        pcie,
        host,
        nvls: Some([15_000, 400, 480, 30_000, 14_500, 335]),
        message: [2000, 8500, 100, 350, 700],
        custom: [4500, 120, 700, 2500],
        barriers: [None, Some(Figure::assumed(ns(1400), "SGLang's on H200, longer by as much as NCCL's kernel is"))],
        loops: 0,
        lent: Lent::default(),
    }
}

pub(super) fn b200() -> Machine {
    const TABLES: &str = "fitted to NCCL 2.29.2 and vLLM 0.24.0 tables of 8 B200 SXM (aiconfigurator 095f58a)";
    nvswitch(Board {
        name: "8x-b200-sxm",
        summary: "8 B200 SXM on one NVSwitch fabric (HGX), two sockets",
        gpu: model("B200 SXM"),
        gpus: 8,
        lanes: 18,
        nvlink: Figure::measured(725 * GB, "ring steps of NCCL 2.29 Simple"),
        collectives: blackwell(tables(TABLES)).fitted(&fitted::BLACKWELL),
    })
}

pub(super) fn b300() -> Machine {
    const TABLES: &str = "fitted to NCCL 2.29.2 tables of 8 B300 SXM (aiconfigurator 095f58a)";
    nvswitch(Board {
        name: "8x-b300-sxm",
        summary: "8 B300 SXM on one NVSwitch fabric (HGX), two sockets",
        gpu: model("B300 SXM"),
        gpus: 8,
        lanes: 18,
        nvlink: Figure::measured(725 * GB, "ring steps of NCCL 2.29 Simple"),
        collectives: blackwell(tables(TABLES)).fitted(&fitted::BLACKWELL),
    })
}

/// Four GPUs and two Grace CPUs of an NVL72 rack.
pub(super) fn gb200() -> Machine {
    const TABLES: &str = "fitted to NCCL 2.29.2 tables of 4 GB200 (aiconfigurator 095f58a)";
    let mut collectives = blackwell(tables(TABLES)).fitted(&fitted::BLACKWELL);
    collectives.cpu = Figure::spec(CpuFamily::Arm, "Grace");
    let name = "4x-gb200";
    let summary = "4 GB200 GPUs and two Grace CPUs of one NVL72 tray";
    let mut build = Build::new(name, summary, model("GB200 (per GPU)"), Figure::spec(true, "NVLink peers"), collectives);
    let bounce = Figure::assumed(200 * GB, "LPDDR5X of one Grace, 500 GB/s, written and read");
    let c2c = Figure::spec(450 * GB, "NVLink-C2C 900 GB/s both ways together");
    let sockets = [build.socket(0, 1, &bounce), build.socket(1, 1, &bounce)];
    build.link(
        sockets[0],
        sockets[1],
        LinkKind::C2c,
        &Figure::assumed(100 * GB, "between Grace CPUs"),
        &Figure::assumed(ns(200), "a socket hop"),
    );
    let switch = build.vertex("nvswitch".into(), VertexKind::NvSwitch);
    for ordinal in 0..4 {
        let socket = ordinal / 2;
        let gpu = build.gpu(socket);
        build.link(sockets[socket as usize], gpu, LinkKind::C2c, &c2c, &Figure::assumed(ns(200), "C2C"));
        let rate = Figure::measured(725 * GB, "ring steps of NCCL 2.29 Simple");
        build.link(gpu, switch, LinkKind::NvLink { lanes: 18 }, &rate, &Figure::assumed(ns(200), "half of an NVLink hop"));
    }
    build.finish()
}

/// NVLink lanes between the GPUs of a DGX-1V's hybrid cube mesh (`nvidia-smi topo -m` of such a node).
const CUBE: [(usize, usize, u8); 16] = [
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
];

pub(super) fn v100() -> Machine {
    const TABLES: &str = "fitted to Ring and Simple tables of 8 V100 SXM2, NCCL 2.12 (Panlichen/nccl-tests 2c51b1b)";
    let (pcie, host) = off_nvlink();
    let collectives = Collectives {
        from: tables(TABLES),
        launch: [4000, 44_000, 48_000],
        cpu: Figure::assumed(CpuFamily::IntelOther, "hosts of 20 cores a socket"),
        p2p_level: default_level(),
        one_process: at_receiver(),
        kernel: 16_000,
        nvlink: Ring::new([800, 1000, 2000], [2000, 10], [2000, 500, 2000, 1], 200),
        pcie,
        host,
        nvls: None,
        message: [6000, 9500, 100, 40, 900],
        custom: [900, 120, 800, 2500],
        barriers: [None, None],
        loops: 0,
        lent: Lent::default(),
    }
    .fitted(&fitted::V100);
    let summary = "8 V100 SXM2 32 GB in a hybrid cube mesh of NVLink 2, two sockets, four PCIe 3.0 switches";
    let mut build = Build::new("8x-v100-sxm2", summary, v100_model(), Figure::spec(true, "NVLink and PCIe peers"), collectives);
    let fabric = Fabric { rate: Figure::assumed(60 * GB, "a socket's I/O fabric"), latency: Figure::assumed(ns(150), "inside a socket") };
    let bounce = Figure::assumed(20 * GB, "host memory copies of that generation");
    let x16 = Figure::assumed(12 * GB, "PCIe 3.0 x16 peer copies");
    let port = Port::x16(3, x16.clone(), Figure::assumed(ns(400), "half of a same-switch ping-pong"));
    let sockets = [build.socket(0, 1, &bounce), build.socket(1, 1, &bounce)];
    build.link(sockets[0], sockets[1], LinkKind::Upi, &Figure::assumed(20 * GB, "QPI"), &Figure::assumed(ns(200), "a socket hop"));
    let mut gpus = Vec::new();
    for index in 0..4u32 {
        let socket = index / 2;
        let root = build.root(format!("root{index}"), sockets[socket as usize], &fabric);
        let switch = build.vertex(format!("switch{index}"), VertexKind::PcieSwitch { chip: index, acs: false });
        build.link(root, switch, port.kind, &x16, &Figure::assumed(ns(100), "a switch hop"));
        for _ in 0..2 {
            gpus.push(build.gpu_below(switch, socket, &port));
        }
    }
    for (a, b, lanes) in CUBE {
        let rate = Figure::measured(u64::from(lanes) * 23_500_000_000, "NVLink 2 lane: 25 GB/s, about 23.5 reached by rings");
        build.link(gpus[a], gpus[b], LinkKind::NvLink { lanes }, &rate, &Figure::assumed(ns(400), "an NVLink hop"));
    }
    build.assume("the GPU's figures are public specifications: the table of models has no V100");
    build.finish()
}

fn v100_model() -> GpuModel {
    let spec = |value| Figure::spec(value, "NVIDIA V100 SXM2 32GB datasheet");
    let mut model = model("A100 SXM 80GB");
    model.name = "V100 SXM2 32GB".into();
    model.chip = "GV100".into();
    (model.sm_major, model.sm_minor, model.sm_count) = (7, 0, 80);
    model.memory_bytes = spec(32 << 30);
    model.memory_bytes_per_s = spec(900 * GB);
    model.memory_reached_bytes_per_s = None;
    model.l2_bytes = 6 << 20;
    model.shared_memory_bytes_per_sm = 96 << 10;
    model.boost_mhz = 1530;
    // FP32 on its cores; half precision on tensor cores (it has no bfloat16, which runs as half here).
    model.flops.truncate(2);
    for (rate, tera) in model.flops.iter_mut().zip([15_700, 125_000]) {
        rate.peak_per_s = spec(tera * GB);
        rate.reached_per_s = None;
    }
    (model.pcie_gen, model.pcie_lanes, model.nvlink_bytes_per_s) = (3, 16, 150 * GB);
    model
}
