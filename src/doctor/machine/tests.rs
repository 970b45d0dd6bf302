//! Machine files of boxes that were not examined: what is written must be read again, and be computed with.

use super::*;
use moetwin::cuda::doctor::{Description, Item};
use moetwin::cuda::probe::{Found, Missing, Probe};
use moetwin::sim::machine::{Origin, from_json};
use moetwin::sim::network::{Access, Network};

fn probe(name: &str, capability: &str, multiprocessors: u32, gib: u64, count: usize) -> Probe {
    let found = |version: &str| Piece::Found(Found { path: "lib.so".into(), version: version.into() });
    let gpu = |ordinal| Gpu {
        ordinal,
        name: name.into(),
        compute_capability: capability.into(),
        multiprocessors,
        memory_bytes: gib << 30,
        free_bytes: gib << 29,
    };
    Probe {
        driver: found("supports CUDA 13.0"),
        kernel_module: Some("580.0".into()),
        nvrtc: found("13.0"),
        cublaslt: Piece::Missing(Missing { why: "x".into(), remedy: "y".into() }),
        nccl: found("2.28.9"),
        gpus: (0..count).map(gpu).collect(),
        gpu_problems: Vec::new(),
    }
}

fn finding(check: Check, item: &[usize], gigabytes: f64, latency_s: f64) -> Finding {
    let measured = Measured {
        bytes_per_s: Some(gigabytes * 1e9),
        latency_s: Some(latency_s),
        eager_launch_s: Some(2.5e-6),
        graph_node_s: Some(1.25e-6),
        graph_launch_s: Some(6e-6),
    };
    Finding { check, item: Item(item.to_vec()), outcome: Outcome::Right, measured }
}

/// A box whose pairs were all right at `gigabytes` a second.
fn examined(probe: Probe, chains: &[&[&str]], nvlink: bool, gigabytes: f64) -> Examination {
    let count = probe.gpus.len();
    let gpus = (0..count).map(|g| GpuDetail {
        pci: PciPlace {
            address: chains[g].last().unwrap_or(&"").to_string(),
            chain: chains[g].iter().map(|s| (*s).to_owned()).collect(),
            numa: (chains[g].len() > 2).then_some(g as u32 / 4),
            generation: 5,
            lanes: 16,
        },
        l2_bytes: 50 << 20,
        shared_bytes: 228 << 10,
        clock_mhz: 1980,
        memory_bytes_per_s: 4_800_000_000_000,
        peer_access: vec![true; count],
        native_atomics: (0..count).map(|other| nvlink || other == g).collect(),
    });
    let mut findings: Vec<Finding> = (0..count).map(|g| finding(Check::Single, &[g], 4300.0, 0.0)).collect();
    for (a, b) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        findings.extend([Check::Copy, Check::Store, Check::Load].map(|c| finding(c, &[a, b], gigabytes, 1e-6)));
        if a < b {
            findings.push(finding(Check::Flags, &[a, b], 0.0, 8e-7));
        }
    }
    Examination { description: Description { gpus: gpus.collect(), probe }, findings, took: std::time::Duration::from_secs(9) }
}

fn written(examination: &Examination) -> Machine {
    let stamp = Stamp::new(20_786 * 86_400, examination);
    let machine = machine(examination, &stamp).unwrap();
    let read = from_json(&machine.to_json()).unwrap();
    assert_eq!(read, machine);
    read
}

#[test]
fn two_gpus_on_nvlink_in_a_small_machine() {
    let chains: [&[&str]; 2] = [&["pci0000:00", "0000:00:05.0"], &["pci0000:00", "0000:00:06.0"]];
    let examination = examined(probe("NVIDIA H200", "9.0", 132, 140, 2), &chains, true, 389.0);
    let machine = written(&examination);
    assert_eq!((machine.models.len(), machine.models[0].name.as_str(), machine.gpus.len()), (1, "H200 SXM", 2));
    let link = machine.links.iter().find(|(_, l)| matches!(l.kind, LinkKind::NvLink { .. })).unwrap().1;
    let rate = &link.forward.write_bytes_per_s;
    assert_eq!((rate.value, rate.origin), (389_000_000_000, Origin::Measured));
    assert!(
        rate.source.contains("moetwin doctor") && rate.source.contains("2026-11-29") && rate.source.contains("NCCL 2.28.9"),
        "{rate:?}"
    );
    assert_eq!(link.latency.value, Duration::from_ns(400));
    assert_eq!((machine.launch.eager_kernel.value, machine.launch.eager_kernel.origin), (Duration::from_ns(2500), Origin::Measured));
    assert_eq!((machine.launch.eager_nccl.origin, machine.collectives.kernel.origin), (Origin::Assumed, Origin::Assumed));
    assert!(machine.collectives.kernel.source.starts_with("as of 8x-h200-sxm: "));
    assert!(machine.peer_access.value && machine.peer_access.origin == Origin::Measured);
    assert!(Network::new(&machine).route(0, 1, Access::Write).is_ok());
}

#[test]
fn eight_gpus_behind_switches_of_two_sockets() {
    let chains: Vec<Vec<String>> = (0..8)
        .map(|g| {
            let socket = if g < 4 { 10 } else { 80 };
            let at = |bus: usize, device: usize| format!("0000:{bus:02}:{device:02}.0");
            vec![format!("pci0000:{socket}"), at(socket, g / 2), at(20 + g / 2, 0), at(30 + g / 2, g % 2), at(40 + g, 0)]
        })
        .collect();
    let borrowed: Vec<Vec<&str>> = chains.iter().map(|c| c.iter().map(String::as_str).collect()).collect();
    let slices: Vec<&[&str]> = borrowed.iter().map(Vec::as_slice).collect();
    let name = "NVIDIA RTX PRO 6000 Blackwell Server Edition";
    let mut examination = examined(probe(name, "12.0", 188, 95, 8), &slices, false, 50.0);
    let machine = written(&examination);
    let count = |wanted: fn(&VertexKind) -> bool| machine.vertices.iter().filter(|(_, v)| wanted(&v.part)).count();
    assert_eq!(machine.models[0].name, "RTX PRO 6000 Blackwell Server Edition");
    assert_eq!(count(|k| matches!(k, VertexKind::Socket { .. })), 2);
    assert!(count(|k| matches!(k, VertexKind::PcieSwitch { .. })) >= 2);
    assert_eq!(count(|k| matches!(k, VertexKind::NvSwitch)), 0);
    // One wrong pair, and peer access does not count.
    examination.findings.iter_mut().filter(|f| f.check == Check::Store).take(1).for_each(|f| f.outcome = Outcome::Hung);
    assert!(!written(&examination).peer_access.value);
}

#[test]
fn a_gpu_that_no_table_has() {
    let chains: [&[&str]; 1] = [&[]];
    let machine = written(&examined(probe("NVIDIA Thing 77", "13.1", 99, 48, 1), &chains, false, 1.0));
    assert_eq!((machine.models[0].name.as_str(), machine.models[0].sm()), ("NVIDIA Thing 77", 131));
    assert!(!machine.peer_access.value || machine.peer_access.origin == Origin::Assumed);
}

#[test]
fn names_are_found_in_the_table() {
    let model = |name: &str, capability: &str, sms: u32, gib: u64| {
        known_model(&probe(name, capability, sms, gib, 1).gpus[0]).map(|m| m.name.as_str())
    };
    assert_eq!(model("NVIDIA H100 80GB HBM3", "9.0", 132, 79), Some("H100 SXM 80GB"));
    assert_eq!(model("NVIDIA H100 PCIe", "9.0", 114, 79), Some("H100 PCIe 80GB"));
    assert_eq!(model("NVIDIA A100-SXM4-80GB", "8.0", 108, 79), Some("A100 SXM 80GB"));
    assert_eq!(model("NVIDIA GeForce RTX 4090", "8.9", 128, 24), Some("GeForce RTX 4090"));
    assert_eq!(model("Quadro", "7.5", 72, 48), None);
}

#[test]
fn days_have_dates() {
    for (day, want) in [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_786, "2026-11-29"), (47_540, "2100-02-28")] {
        assert_eq!(date(day), want);
    }
}
