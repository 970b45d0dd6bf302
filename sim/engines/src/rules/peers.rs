//! Peer access: what is advertised, what works, and who relies on it (NCCL, the engine's own all-reduce, symmetric memory, one-shot kernels).

use super::{Launch, Rule};
use crate::finding::{Finding, Fix, Kind, Outcome, Phase};
use crate::hardware::Interconnect;
use crate::question::Engine;
use crate::version::Range;

const SGL: Option<Engine> = Some(Engine::Sglang);
const VLLM: Option<Engine> = Some(Engine::Vllm);

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "hosts_have_a_meeting_point",
        engine: None,
        range: Range::ALL,
        source: "sglang model_runner.init_torch_distributed: tcp://127.0.0.1 without dist_init_addr; vllm ParallelConfig: master_addr is 127.0.0.1 by default",
        check: meeting_point,
    },
    Rule {
        name: "no_preloaded_shim",
        engine: None,
        range: Range::ALL,
        source: "reports: GPU-sharing libraries intercept driver calls that NCCL needs",
        check: shim,
    },
    Rule {
        name: "peer_access_is_functional",
        engine: None,
        range: Range::ALL,
        source: "PCI Express ACS: redirect bits send peer traffic to the root complex",
        check: redirected,
    },
    Rule {
        name: "peer_access_is_functional",
        engine: None,
        range: Range::ALL,
        source: "NCCL documentation, troubleshooting: IOMMU on bare metal",
        check: iommu,
    },
    Rule {
        name: "peer_access_is_functional",
        engine: None,
        range: Range::ALL,
        source: "reports: NCCL's first collective hangs over PHB although P2P is advertised",
        check: host_bridge,
    },
    Rule {
        name: "bar1_is_mapped",
        engine: None,
        range: Range::ALL,
        source: "patched P2P drivers: RMForceStaticBar1, PeerMappingOverride",
        check: bar1,
    },
    Rule {
        name: "custom_all_reduce_is_right",
        engine: None,
        range: Range::ALL,
        source: "reports: wrong data from the IPC path under patched P2P drivers",
        check: patched,
    },
    Rule { name: "custom_all_reduce_is_right", engine: None, range: Range::ALL, source: "reports by driver version", check: driver },
    Rule {
        name: "custom_all_reduce_has_peer_access",
        engine: SGL,
        range: Range::until("0.5.0"),
        source: "sglang custom_all_reduce of 0.4: peer access is enabled without asking whether it exists; that 0.5.0 asks is assumed",
        check: no_peer_access,
    },
    Rule {
        name: "communicators_find_peer_memory",
        engine: VLLM,
        range: Range::between("0.23.0", "0.25.0"),
        source: "report: custom all-reduce and symmetric memory set-up hang on PCIe L40S with 0.24.0; the releases on either side are assumed",
        check: pcie_setup,
    },
    Rule {
        name: "symmetric_memory_sees_whole_fabric",
        engine: VLLM,
        range: Range::since("0.11.0"),
        source: "vllm-project/vllm 38550: VLLM_ALLREDUCE_USE_SYMM_MEM on a subset of an NVSwitch host of B200 hangs in rendezvous, as if the whole fabric took \
                 part; nobody says so of Hopper; the first release is assumed",
        check: fabric_subset,
    },
    Rule {
        name: "graph_buffers_are_exportable",
        engine: None,
        range: Range::ALL,
        source: "custom_all_reduce.cuh: cudaIpcGetMemHandle takes cudaMalloc memory only, expandable segments are VMM ranges",
        check: expandable,
    },
    Rule {
        name: "all_reduce_without_full_nvlink",
        engine: None,
        range: Range::ALL,
        source: "custom_all_reduce.py: more than two GPUs need NVLink between all; should_custom_ar repeats the test",
        check: custom_disabled,
    },
    Rule {
        name: "nccl_algorithm_covers_collectives",
        engine: None,
        range: Range::ALL,
        source: "NCCL 2.30.7 src/graph/tuning.cc: Tree exists for all-reduce only",
        check: nccl_tree,
    },
];

/// Whether the launch has more than one rank on a host.
fn several(launch: &Launch<'_>) -> bool {
    launch.settings.world() > 1 && launch.ranks_per_host() > 1
}

fn tensor_parallel(launch: &Launch<'_>) -> bool {
    launch.settings.tp > 1 && launch.ranks_per_host() > 1
}

fn pcie(launch: &Launch<'_>) -> bool {
    launch.hardware.interconnect == Interconnect::Pcie
}

fn nccl_p2p_off(launch: &Launch<'_>) -> bool {
    launch.settings.env_on("NCCL_P2P_DISABLE")
        || launch.settings.env("NCCL_P2P_LEVEL").is_some_and(|l| matches!(l, "LOC" | "NVL") && pcie(launch))
}

/// Whether the engine's own peer all-reduce is really used: few ranks of one host, NVLink between more than two, not switched off.
pub(super) fn custom_all_reduce(launch: &Launch<'_>) -> bool {
    let s = launch.settings;
    let size = matches!(s.tp, 2 | 4 | 6 | 8) && launch.ranks_per_host() >= s.tp;
    let linked = s.tp == 2 || launch.hardware.interconnect == Interconnect::Nvlink;
    s.custom_all_reduce && size && linked
}

/// Hardware on which the stock driver offers no peer access over PCIe.
fn geforce(launch: &Launch<'_>) -> bool {
    let gpu = launch.hardware.gpu.to_lowercase();
    gpu.contains("rtx 4090") || gpu.contains("rtx 4080") || gpu.contains("rtx 50") || gpu.contains("rtx 3090") && pcie(launch)
}

fn patched_driver(launch: &Launch<'_>) -> bool {
    launch.described("patched") && launch.described("p2p")
}

/// A fault of all peer traffic: hang unless NCCL's use of it is off.
fn hang(phase: Phase, name: &str, message: String) -> Finding {
    Finding::fails(phase, Kind::Hang, name, message)
        .outcome(Outcome::Hangs)
        .because("`moetwin doctor` copies data between the GPUs and compares it: that would settle it")
}

fn shim(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(preload) = launch
        .settings
        .env("LD_PRELOAD")
        .filter(|p| ["vgpu", "hami", "gpushare", "cuda_hook", "gpu-manager"].iter().any(|w| p.to_lowercase().contains(w)))
    else {
        return Vec::new();
    };
    if !several(launch) {
        return Vec::new();
    }
    let off = launch.settings.env_on("CUDA_DISABLE_CONTROL");
    if off {
        let message = format!(
            "it starts, but LD_PRELOAD={preload} intercepts peer-capability queries even in pass-through mode: NVLink looks absent, custom all-reduce and symmetric memory are \
             disabled, and all-reduce falls back to NCCL over shared memory"
        );
        let finding = Finding::fails(Phase::Init, Kind::Perf, "no_preloaded_shim", message).outcome(Outcome::Degraded);
        return vec![finding.fix(Fix::unset("LD_PRELOAD"))];
    }
    let message = format!(
        "a preloaded GPU-sharing library is in the environment (LD_PRELOAD={preload}): NCCL initialization may hang; it is not a topology fault"
    );
    vec![hang(Phase::Init, "no_preloaded_shim", message).fix(Fix::env("CUDA_DISABLE_CONTROL", "true")).fix(Fix::unset("LD_PRELOAD"))]
}

/// Bits of an ACS control register that redirect or block peer traffic.
const ACS: &[(u32, &str)] =
    &[(1, "source validation"), (4, "P2P request redirect"), (8, "P2P completion redirect"), (16, "upstream forwarding")];

fn redirected(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(text) = launch.hardware.fields.get("acs").or_else(|| launch.hardware.fields.get("acsctl")) else { return Vec::new() };
    let digits = text.trim().trim_start_matches("0x");
    let value = u32::from_str_radix(digits, 16).unwrap_or(0);
    let on = text.to_lowercase().contains("on") || text.to_lowercase().contains("enabled");
    let bits: Vec<&str> = ACS.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| *name).collect();
    if !several(launch) || nccl_p2p_off(launch) || (value & 0b11100 == 0 && !on) {
        return Vec::new();
    }
    let message = format!(
        "ACS control {text} has {} set on the bridges: any collective over peer transport may hang",
        if bits.is_empty() { "redirection".to_owned() } else { bits.join(", ") }
    );
    vec![
        hang(Phase::Init, "peer_access_is_functional", message)
            .fix(Fix::words("clear ACS on the bridges (setpci, or the firmware's setting)"))
            .fix(Fix::env("NCCL_P2P_DISABLE", "1")),
    ]
}

fn iommu(launch: &Launch<'_>) -> Vec<Finding> {
    let on = launch.described("iommu")
        && ["enabled", "translated", "on"].iter().any(|w| launch.hardware.words.iter().any(|x| x == w))
        && !launch.described("off");
    if !on || !several(launch) || !pcie(launch) || nccl_p2p_off(launch) {
        return Vec::new();
    }
    let message =
        "the IOMMU is on: it translates peer addresses, and collectives over peer transport may hang or return wrong data on bare metal"
            .to_owned();
    vec![
        hang(Phase::Init, "peer_access_is_functional", message)
            .fix(Fix::words("iommu=off, or iommu=pt, on the kernel's command line"))
            .fix(Fix::env("NCCL_P2P_DISABLE", "1")),
    ]
}

fn host_bridge(launch: &Launch<'_>) -> Vec<Finding> {
    let proven = launch.described("p2p_working") || launch.described("p2p_override_effective") || launch.described("p2p_verified");
    // NODE alone both works and hangs: no reason to predict either. PHB with advertised peer access is where the reports are.
    if !several(launch) || !launch.described("phb") || !pcie(launch) || proven || launch.sm() < 100 {
        return Vec::new();
    }
    let one_shot = launch.settings.env_on("VLLM_ENABLE_PCIE_ALLREDUCE");
    let nccl = !nccl_p2p_off(launch);
    let custom = custom_all_reduce(launch);
    let mut users = Vec::new();
    let mut off: Vec<Fix> = Vec::new();
    if nccl {
        users.push("NCCL");
        off.push(Fix::env("NCCL_P2P_DISABLE", "1"));
    }
    if custom && (nccl || one_shot) && launch.settings.engine == Engine::Vllm {
        users.push("custom all-reduce");
        off.push(Fix::switch("--disable-custom-all-reduce"));
    }
    if one_shot {
        users.push("the one-shot PCIe all-reduce");
        off.push(Fix::env("VLLM_ENABLE_PCIE_ALLREDUCE", "0"));
    }
    if !nccl && !one_shot {
        return Vec::new();
    }
    let phase = if nccl { Phase::Init } else { Phase::GraphCapture };
    let message = format!(
        "peer access is advertised over PHB, but it is not proven to carry data there: the first collective may hang; its users here are {}, each with a switch of its own",
        users.join(", ")
    );
    let finding = hang(phase, "peer_access_is_functional", message)
        .because("the letter in the topology table is no proof either way: the same one works on other boards");
    let all = off.iter().cloned().reduce(Fix::and);
    let finding = if nccl && !one_shot { finding.fix(Fix::env("NCCL_P2P_DISABLE", "1")) } else { finding };
    vec![all.into_iter().fold(finding, Finding::fix).fix(Fix::words("IOMMU and ACS off"))]
}

fn bar1(launch: &Launch<'_>) -> Vec<Finding> {
    let field = |name: &str| launch.hardware.fields.get(name).and_then(|v| v.parse::<f64>().ok());
    let Some(bar1) = field("bar1_mib").filter(|_| several(launch) && pcie(launch) && !nccl_p2p_off(launch)) else { return Vec::new() };
    let vram = field("vram_mib").or(launch.hardware.memory_gib.map(|g| g * 1024.0)).unwrap_or(0.0);
    let mapped = launch.described("forcestaticbar1") || launch.described("static_bar1");
    if mapped || !(patched_driver(launch) || geforce(launch)) {
        return Vec::new();
    }
    let covers = if bar1 >= vram { "covers" } else { "does not cover" };
    let message = format!(
        "BAR1 ({bar1:.0} MiB) {covers} VRAM ({vram:.0} MiB), but a window is not a mapping: without static BAR1 in the patched driver the peer transport hangs in NCCL initialization"
    );
    vec![
        hang(Phase::Init, "bar1_is_mapped", message)
            .fix(Fix::words("driver options RMForceStaticBar1=1 and PeerMappingOverride=1"))
            .fix(Fix::env("NCCL_P2P_DISABLE", "1")),
    ]
}

fn patched(launch: &Launch<'_>) -> Vec<Finding> {
    let bar1_said = launch.hardware.fields.contains_key("bar1_mib");
    if !tensor_parallel(launch) || !patched_driver(launch) || !pcie(launch) || !custom_all_reduce(launch) || bar1_said {
        return Vec::new();
    }
    let message = "it starts, but custom all-reduce may return wrong data under a patched P2P driver (no error, no hang): it must be verified by value on such boards; NCCL over the same P2P is right".to_owned();
    let finding = Finding::fails(Phase::Serve, Kind::P2p, "custom_all_reduce_is_right", message).outcome(Outcome::ServeFails);
    vec![
        finding.because("`moetwin doctor` sums known data over the peer path and compares").fix(Fix::switch("--disable-custom-all-reduce")),
    ]
}

/// Drivers under which the peer path of custom all-reduce gives wrong data over PCIe: first bad, first good again, GPU words.
const BAD_DRIVERS: &[([u32; 3], [u32; 3], &str)] = &[([595, 91, 0], [600, 0, 0], "a100")];

fn driver(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(text) = launch.hardware.driver.as_deref() else { return Vec::new() };
    let mut parts = text.split('.').map(|p| p.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().unwrap_or(0));
    let version = [parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0)];
    let gpu = launch.hardware.gpu.to_lowercase();
    let bad = BAD_DRIVERS.iter().any(|(first, good, word)| version >= *first && version < *good && gpu.contains(word));
    if !bad || !tensor_parallel(launch) || !pcie(launch) || !custom_all_reduce(launch) {
        return Vec::new();
    }
    let message =
        format!("driver {text} on PCIe {}: custom all-reduce gives wrong data, at a fraction of a token a second", launch.hardware.gpu);
    let finding = Finding::fails(Phase::Serve, Kind::P2p, "custom_all_reduce_is_right", message).outcome(Outcome::ServeFails);
    vec![finding.fix(Fix::switch("--disable-custom-all-reduce")).fix(Fix::words("driver 595.84"))]
}

fn no_peer_access(launch: &Launch<'_>) -> Vec<Finding> {
    let none = launch.described("no_peer_access") || (geforce(launch) && !patched_driver(launch));
    if !none || !custom_all_reduce(launch) || !pcie(launch) {
        return Vec::new();
    }
    let message = format!(
        "no peer access on {} with the stock driver: the set-up of custom all-reduce fails (peer access is not supported between these two devices)",
        launch.hardware.gpu
    );
    vec![
        Finding::fails(Phase::Init, Kind::P2p, "custom_all_reduce_has_peer_access", message)
            .fix(Fix::switch("--disable-custom-all-reduce")),
    ]
}

fn pcie_setup(launch: &Launch<'_>) -> Vec<Finding> {
    // A fault of single releases is predicted for those alone, not for a date near them.
    let named = launch.settings.version.release.is_some();
    if !named || !custom_all_reduce(launch) || !pcie(launch) || !tensor_parallel(launch) || launch.sm() / 10 != 8 || patched_driver(launch)
    {
        return Vec::new();
    }
    let message = format!(
        "two PCIe GPUs ({}): the set-up of custom all-reduce and symmetric memory may hang in this version, for it assumes peer memory that the board does not provide",
        launch.hardware.gpu
    );
    let both = Fix::switch("--disable-custom-all-reduce").and(Fix::env("VLLM_ALLREDUCE_USE_SYMM_MEM", "0"));
    vec![hang(Phase::Init, "communicators_find_peer_memory", message).fix(Fix::switch("--disable-custom-all-reduce")).fix(both)]
}

/// Every host waits at its own loopback address for the others.
fn meeting_point(launch: &Launch<'_>) -> Vec<Finding> {
    let (counts, address) = match launch.settings.engine {
        Engine::Sglang => ("--nnodes", "--dist-init-addr"),
        Engine::Vllm => ("--nnodes", "--master-addr"),
    };
    if launch.settings.nodes < 2 || !launch.command.has(counts) || launch.command.has(address) {
        return Vec::new();
    }
    let hosts = launch.settings.nodes;
    let message =
        format!("{counts} {hosts} without {address}: each host waits at 127.0.0.1 for ranks that are on the others, until a time-out");
    let words = Fix::words(format!("{address} with the first host's address, the same on all hosts"));
    let finding = Finding::fails(Phase::Init, Kind::Hang, "hosts_have_a_meeting_point", message).outcome(Outcome::Hangs);
    vec![finding.argument(counts).fix(words)]
}

fn fabric_subset(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(visible) = launch.listed_gpus() else {
        return Vec::new();
    };
    let host = launch.hardware.count.unwrap_or(0) / launch.settings.nodes.max(1);
    let on = !launch.settings.env_off("VLLM_ALLREDUCE_USE_SYMM_MEM");
    if !on
        || launch.settings.tp < 2
        || launch.hardware.interconnect != Interconnect::Nvlink
        || visible >= host
        || host <= 4
        || launch.sm() < 100
    {
        return Vec::new();
    }
    let message = format!(
        "CUDA_VISIBLE_DEVICES shows {visible} of the {host} GPUs of an NVSwitch host while symmetric-memory all-reduce is on by default: its rendezvous may hang, as if the whole fabric \
         took part"
    );
    let both = Fix::env("VLLM_ALLREDUCE_USE_SYMM_MEM", "0").and(Fix::env("VLLM_USE_NCCL_SYMM_MEM", "0"));
    vec![hang(Phase::Init, "symmetric_memory_sees_whole_fabric", message).fix(Fix::env("VLLM_ALLREDUCE_USE_SYMM_MEM", "0")).fix(both)]
}

fn expandable(launch: &Launch<'_>) -> Vec<Finding> {
    let names = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
    let Some(name) = names
        .into_iter()
        .find(|n| launch.settings.env(n).is_some_and(|v| v.to_lowercase().replace(' ', "").contains("expandable_segments:true")))
    else {
        return Vec::new();
    };
    let unreachable = geforce(launch) && !patched_driver(launch) && pcie(launch);
    if !custom_all_reduce(launch) || !launch.settings.graphs.enabled || unreachable {
        return Vec::new();
    }
    let message = format!(
        "{name}=expandable_segments:True conflicts with the registration of graph buffers by custom all-reduce: PyTorch backs tensors with VMM ranges, and cudaIpcGetMemHandle takes \
         cudaMalloc memory only"
    );
    let finding = Finding::fails(Phase::GraphCapture, Kind::FlagConflict, "graph_buffers_are_exportable", message);
    vec![finding.fix(Fix::unset(name)).fix(Fix::switch("--disable-custom-all-reduce"))]
}

fn custom_disabled(launch: &Launch<'_>) -> Vec<Finding> {
    let s = launch.settings;
    if !s.custom_all_reduce || s.tp <= 2 || !pcie(launch) || launch.ranks_per_host() < s.tp {
        return Vec::new();
    }
    let message = format!(
        "custom all-reduce is disabled with a warning: {} GPUs without NVLink between all of them. Forcing it takes two edits (the constructor and should_custom_ar), and it loses to NCCL \
         on such boards except below about 56 KiB",
        s.tp
    );
    vec![Finding::fails(Phase::Init, Kind::Perf, "all_reduce_without_full_nvlink", message).outcome(Outcome::Note)]
}

fn nccl_tree(launch: &Launch<'_>) -> Vec<Finding> {
    let Some(algorithm) = launch.settings.env("NCCL_ALGO").filter(|a| a.trim().eq_ignore_ascii_case("tree")) else { return Vec::new() };
    if launch.settings.tp < 2 {
        return Vec::new();
    }
    let message = format!(
        "NCCL_ALGO={algorithm} leaves every other collective without an algorithm: the all-gather of the logits ends in ncclInvalidUsage. It looks like a fault of CUDA graphs, for that \
         all-gather is captured first; nothing in NCCL's selection looks at capture. One-node trees are chains, no faster than rings"
    );
    let phase = if launch.settings.graphs.enabled { Phase::GraphCapture } else { Phase::Warmup };
    let finding = Finding::fails(phase, Kind::FlagConflict, "nccl_algorithm_covers_collectives", message);
    vec![finding.fix(Fix::env("NCCL_ALGO", "allreduce:tree")).fix(Fix::unset("NCCL_ALGO"))]
}
