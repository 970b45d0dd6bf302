//! Machines made from what tools print: real files, what contradicts, what is assumed, and the law that a printed matrix reads back.

use moetwin_sim::machine::{CpuFamily, Defect, LinkKind, Machine, Origin, PathClass, VertexKind, find, from_json, gpu_named};
use moetwin_sim::network::{Access, Network};
use moetwin_sim::topology::{BusId, Imported, Kind, Options, Source, TopologyError, import};
use std::fs;
use std::path::Path;

fn text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/topologies").join(file);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn source(label: &str, text: impl Into<String>) -> Source {
    Source { label: label.into(), text: text.into() }
}

fn read(files: &[&str], options: &Options) -> Result<Imported, TopologyError> {
    let sources: Vec<Source> = files.iter().map(|file| source(file, text(file))).collect();
    import(&sources, options)
}

fn made(files: &[&str]) -> Machine {
    read(files, &Options::default()).unwrap_or_else(|e| panic!("{files:?}: {e}")).machine
}

fn refused(label: &str, text: &str) -> TopologyError {
    match import(&[source(label, text)], &Options::default()) {
        Ok(imported) => panic!("{label} is taken: {}", imported.machine.summary),
        Err(error) => error,
    }
}

fn count(machine: &Machine, test: fn(VertexKind) -> bool) -> usize {
    machine.vertices.iter().filter(|(_, vertex)| test(vertex.part)).count()
}

fn switches(machine: &Machine) -> usize {
    count(machine, |part| matches!(part, VertexKind::PcieSwitch { .. }))
}

fn sockets(machine: &Machine) -> usize {
    count(machine, |part| matches!(part, VertexKind::Socket { .. }))
}

fn assumes(machine: &Machine, words: &[&str]) {
    let found = machine.assumptions.iter().any(|text| words.iter().all(|word| text.contains(word)));
    assert!(found, "no assumption with {words:?} in:\n{}", machine.assumptions.join("\n"));
}

fn class(machine: &Machine, a: usize, b: usize) -> PathClass {
    Network::new(machine).class(a, b).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn matrices_become_trees() {
    let machine = machine_named("esc8000a-topo.txt");
    assert_eq!((machine.gpu_count(), switches(&machine), sockets(&machine)), (8, 4, 2));
    assert_eq!((class(&machine, 0, 1), class(&machine, 0, 2), class(&machine, 0, 4)), (PathClass::Pix, PathClass::Node, PathClass::Sys));
    assumes(&machine, &["chip of its own", "--same-chip"]);
    assumes(&machine, &["names the model", "--gpu"]);
    // Leaves below root switches.
    let deep = machine_named("wrx90-3switch-topo.txt");
    assert_eq!((class(&deep, 0, 1), class(&deep, 0, 2), class(&deep, 0, 4)), (PathClass::Pix, PathClass::Pxb, PathClass::Node));
    assert_eq!((switches(&deep), sockets(&deep)), (6, 1));
}

fn machine_named(file: &str) -> Machine {
    made(&[file])
}

#[test]
fn adapters_tell_how_near_nvlink_gpus_are_by_pcie() {
    let board = machine_named("h100-8nic-topo.txt");
    // Each pair of GPUs shares a switch with two adapters.
    assert_eq!((switches(&board), sockets(&board), count(&board, |part| part == VertexKind::NvSwitch)), (4, 2, 1));
    let lanes: Vec<LinkKind> =
        board.links.iter().map(|(_, link)| link.kind).filter(|kind| matches!(kind, LinkKind::NvLink { .. })).collect();
    assert_eq!(lanes, [LinkKind::NvLink { lanes: 18 }; 8]);
    assert_eq!(class(&board, 0, 7), PathClass::Nvl);
    // Four GPUs with four lanes a pair: twelve lanes each, no switch.
    let mesh = machine_named("a100-nps4-topo.txt");
    assert_eq!(count(&mesh, |part| part == VertexKind::NvSwitch), 0);
    assert_eq!(mesh.links.iter().filter(|(_, link)| link.kind == LinkKind::NvLink { lanes: 4 }).count(), 6);
    assumes(&mesh, &["8 NUMA nodes", "2 sockets"]);
}

#[test]
fn names_above_a_matrix_and_nodes_of_superchips_are_read() {
    let paste = "GPU 0: NVIDIA GB200 (UUID: GPU-1)\nGPU 1: NVIDIA GB200 (UUID: GPU-2)\n\n\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV18\t0-71\t0,2-17\t\tN/A\nGPU1\tNV18\t X \t72-143\t1,18-33\t\tN/A\n";
    let imported = import(&[source("env", paste)], &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let machine = imported.machine;
    assert_eq!((machine.models[0].name.as_str(), machine.gpus[1].numa, imported.hidden.len()), ("GB200 (per GPU)", 1, 0));
    assert_eq!(machine.links.iter().filter(|(_, link)| link.kind == LinkKind::NvLink { lanes: 18 }).count(), 1);
    assert!(machine.links.iter().any(|(_, link)| link.kind == LinkKind::C2c));
}

#[test]
fn virtual_machines_that_hide_the_topology_are_recognised() {
    for (files, sign) in [
        (["v100-vm-topo.txt"], "has no NUMA node of its own but 0-1"),
        (["v100-vm-topo.txt"], "a board of NVLink GPUs has several"),
        (["azure-ndv5.xml"], "is of no hardware"),
        (["azure-ndv5.xml"], "alone in a PCI domain"),
    ] {
        let imported = read(&files, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
        assert!(imported.hidden.iter().any(|text| text.contains(sign)), "{sign}: {:?}", imported.hidden);
        assumes(&imported.machine, &["hidden by a virtual machine", sign]);
    }
    let bare = read(&["esc8000a-topo.txt", "esc8000a-lspci.txt"], &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(bare.hidden, Vec::<String>::new());
    let qemu = "00:00.0 Host bridge: Intel Corporation 82G33/G31/P35/P31 Express DRAM Controller\n00:01.0 Ethernet controller: Red Hat, Inc. Virtio network device\n00:05.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)\n";
    let hidden = import(&[source("lspci", qemu)], &Options::default()).unwrap_or_else(|e| panic!("{e}")).hidden;
    assert!(
        hidden.iter().any(|text| text.contains("Virtio")) && hidden.iter().any(|text| text.contains("without a root port")),
        "{hidden:?}"
    );
    let far = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-7\t0\nGPU1\tSYS\t X \t0-7\t0\n";
    let imported = import(&[source("topo", far)], &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(imported.hidden[0].contains("NUMA node 0"), "{:?}", imported.hidden);
    assert_eq!(class(&imported.machine, 0, 1), PathClass::Sys);
}

#[test]
fn nccl_files_give_links_models_and_the_cpu() {
    let pcie = machine_named("rtx3090-nccl.xml");
    assert_eq!((pcie.gpu_count(), switches(&pcie), sockets(&pcie)), (8, 2, 2));
    assert_eq!(pcie.models[0].name, "GeForce RTX 3090");
    assert_eq!(pcie.collectives.nccl.cpu.value, CpuFamily::IntelSkylake);
    assert_eq!(pcie.collectives.nccl.cpu.origin, Origin::Measured);
    let x16 = |machine: &Machine| machine.links.iter().filter(|(_, link)| link.kind == LinkKind::Pcie { generation: 4, lanes: 16 }).count();
    assert_eq!(x16(&pcie), 10);
    let board = machine_named("h800-nccl.xml");
    assert_eq!(board.models[0].name, "H800 SXM");
    assert_eq!(board.links.iter().filter(|(_, link)| link.kind == LinkKind::NvLink { lanes: 8 }).count(), 8);
    // A platform's file says nothing of NVLink; its layout does.
    let hint = machine_named("azure-ndv5.xml");
    assumes(&hint, &["NCCL_TOPO_FILE"]);
    assumes(&hint, &["InfiniBand", "assumed"]);
    // A graph alone gives the count and the farthest hop.
    let graph = machine_named("rtx3090-graph.xml");
    assert_eq!((graph.gpu_count(), class(&graph, 3, 4)), (8, PathClass::Sys));
}

#[test]
fn lspci_gives_bridges_links_and_access_control() {
    let machine = machine_named("esc8000a-lspci.txt");
    assert_eq!((machine.gpu_count(), switches(&machine), sockets(&machine)), (8, 4, 2));
    assert_eq!(machine.models[0].name, "RTX PRO 6000 Blackwell Server Edition");
    assert_eq!(machine.collectives.nccl.cpu.value, CpuFamily::Amd);
    // Idle GPUs run at 2.5 GT/s; what they can do is taken.
    assert_eq!(machine.links.iter().filter(|(_, link)| link.kind == LinkKind::Pcie { generation: 5, lanes: 16 }).count(), 12);
    assumes(&machine, &["idle"]);
    assert_eq!(machine.defects.len(), 4);
    assumes(&machine, &["collapse", "--no-known-defects"]);
    let acs = text("esc8000a-lspci.txt").replace("ReqRedir-", "ReqRedir+");
    let machine = import(&[source("lspci", acs)], &Options { without_known_defects: true, ..Options::default() })
        .unwrap_or_else(|e| panic!("{e}"))
        .machine;
    assert_eq!(count(&machine, |part| matches!(part, VertexKind::PcieSwitch { acs: true, .. })), 4);
    assert_eq!(machine.defects, Vec::<Defect>::new());
}

#[test]
fn trees_without_names_need_the_gpus_named() {
    let error = refused("x570-lspci-t.txt", &text("x570-lspci-t.txt"));
    assert!(error.message.contains("--gpu-at"), "{error}");
    let gpu_at = ["0a:00.0", "0b:00.0", "04:00.0"].map(|id| BusId::parse(id).expect("an address")).to_vec();
    let machine = read(&["x570-lspci-t.txt"], &Options { gpu_at, ..Options::default() }).unwrap_or_else(|e| panic!("{e}")).machine;
    // By address: 04 is behind the chipset's switch, 0a and 0b on root ports of the same host bridge.
    assert_eq!((machine.gpu_count(), switches(&machine)), (3, 1));
    assert_eq!((class(&machine, 0, 1), class(&machine, 1, 2)), (PathClass::Phb, PathClass::Phb));
}

#[test]
fn copies_measure_ports_sockets_and_peer_access() {
    let machine = machine_named("rtx4090-p2p.txt");
    assert!(machine.peer_access.value && machine.peer_access.origin == Origin::Measured);
    assert_eq!((machine.models[0].name.as_str(), sockets(&machine)), ("GeForce RTX 4090", 2));
    let network = Network::new(&machine);
    let rate = |a, b| network.route(a, b, Access::Write).unwrap_or_else(|e| panic!("{e}")).rate() as f64 / 1e9;
    assert!((25.0..25.4).contains(&rate(0, 1)), "{}", rate(0, 1));
    assert!((20.5..21.2).contains(&rate(0, 4)), "{}", rate(0, 4));
    assumes(&machine, &["groups"]);
    // A GeForce that copies to its peers has a patched driver, which is of no use to NCCL at its own level.
    assert_eq!(machine.collectives.nccl.p2p_level.value, PathClass::Sys);
    assumes(&machine, &["NCCL_P2P_LEVEL is SYS"]);
    // Latency through the host says that peer access is off.
    let off = "P2P=Enabled Latency Matrix (us)\nGPU 0 1\n0 1.5 14.2\n1 13.9 1.5\n";
    let machine = import(&[source("p2p", off)], &Options::default()).unwrap_or_else(|e| panic!("{e}")).machine;
    assert!(!machine.peer_access.value);
}

#[test]
fn files_refine_one_machine() {
    let options = Options { same_chip: vec![vec![0, 1], vec![2, 3]], ..Options::default() };
    let joined = read(&["esc8000a-topo.txt", "esc8000a-lspci.txt"], &options).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(joined.sources.iter().map(|(_, kinds)| kinds.clone()).collect::<Vec<_>>(), [vec![Kind::SmiTopo], vec![Kind::Lspci]]);
    let machine = joined.machine;
    assert_eq!(machine.links.iter().filter(|(_, link)| link.kind == LinkKind::SwitchFabric).count(), 2);
    // The model comes from the list of devices, the order of files does not matter.
    let turned = read(&["esc8000a-lspci.txt", "esc8000a-topo.txt"], &options).unwrap_or_else(|e| panic!("{e}")).machine;
    assert_eq!((turned.links.as_slice(), turned.vertices.as_slice()), (machine.links.as_slice(), machine.vertices.as_slice()));
    // A log names models and whether peers were used; ranks may be some of the GPUs.
    let log = machine_named("rtx4090-x4-nccl-tests.txt");
    assert_eq!((log.gpu_count(), log.models[0].name.as_str()), (4, "GeForce RTX 4090"));
    let with = made(&["rtx4090-nps4-topo.txt", "rtx4090-x4-nccl-tests.txt"]);
    assert_eq!((with.gpu_count(), with.models[0].name.as_str(), sockets(&with)), (8, "GeForce RTX 4090", 2));
    let xml = made(&["rtx3090-nccl.xml", "rtx3090-graph.xml"]);
    assert_eq!(class(&xml, 0, 1), PathClass::Pix);
}

#[test]
fn contradictions_name_both_places() {
    for (files, words) in [
        (["wrx90-3switch-topo.txt", "esc8000a-lspci.txt"], ["PXB", "esc8000a-lspci.txt: line"]),
        (["a100-nps4-topo.txt", "rtx3090-nccl.xml"], ["4 GPUs", "rtx3090-nccl.xml: line"]),
        (["h100-8nic-topo.txt", "rtx3090-graph.xml"], ["", ""]),
    ] {
        match read(&files, &Options::default()) {
            Err(error) => assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}"),
            Ok(imported) => assert_eq!(words, ["", ""], "{files:?} agree: {}", imported.machine.summary),
        }
    }
}

#[test]
fn a_gpu_without_nvlink_cannot_show_any() {
    let matrix = "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)\nGPU 1: NVIDIA GeForce RTX 4090 (UUID: GPU-2)\n\n\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n";
    let error = refused("topo", matrix);
    assert!(error.message.contains("GeForce RTX 4090") && error.message.contains("topo: line 1"), "{}", error.message);
    assert_eq!(error.place.line, 5);
    // Bridges of models that have them are believed; a comment on a model that has none is of another machine.
    let read = |text: &str| import(&[source("topo", text)], &Options::default()).unwrap_or_else(|e| panic!("{e}")).machine;
    assert_eq!(class(&read(&matrix.replace("GeForce RTX 4090", "RTX A6000").replace("NV18", "NV4")), 0, 1), PathClass::Nvl);
    let (_, bare) = matrix.split_once("\n\n").expect("names, then the matrix");
    assert!(read(&format!("# machine: 2x RTX 4090\n{bare}")).models[0].nvlink_bytes_per_s > 0);
}

#[test]
fn faults_have_a_line_and_a_column() {
    let topo = text("wrx90-3switch-topo.txt");
    let cases = [
        ("unknown word", topo.replacen("PXB", "PBX", 1), 2, 21, "accepted: X, NV1"),
        ("asymmetric", topo.replacen("PXB", "SYS", 1), 4, 9, "asymmetric"),
        ("cut row", topo[..topo.find("\nGPU1").expect("a row") + 31].to_owned(), 3, 30, "cut off"),
        ("cut table", topo.lines().take(5).collect::<Vec<_>>().join("\n"), 5, 1, "cut off"),
        ("no tree", "GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X PIX SYS\nGPU1 PIX X PIX\nGPU2 SYS PIX X\n".to_owned(), 2, 12, "no tree"),
        ("twice", topo.replacen("GPU1    PIX", "GPU0    PIX", 1), 3, 1, "row already"),
        ("cut XML", text("rtx3090-nccl.xml")[..700].to_owned(), 7, 154, "cut off"),
        ("unknown element", "<system version=\"1\">\n  <cpu numaid=\"0\">\n    <gup/>\n  </cpu>\n</system>".to_owned(), 3, 5, "<gup>"),
        ("no class", "<system version=\"1\">\n<cpu numaid=\"0\"><pci busid=\"0000:01:00.0\"/></cpu></system>".to_owned(), 2, 17, "class"),
        ("ring cycle", "<graphs version=\"1\"><graph pattern=\"4\" nchannels=\"1\"><channel>\n<gpu dev=\"0\"/><gpu dev=\"0\"/></channel></graph></graphs>".to_owned(), 2, 15, "cycle"),
        ("nothing", "hello\n".to_owned(), 1, 1, "nvidia-smi topo -m"),
        ("empty", String::new(), 1, 1, "empty"),
        ("flows", "## x\n1 pair\t56.3 GB/s\n".to_owned(), 2, 1, "no matrix"),
        ("machine file", "{}".to_owned(), 1, 1, "--machine"),
    ];
    for (name, text, line, column, words) in cases {
        let error = refused(name, &text);
        assert!(error.message.contains(words), "{name}: {error}");
        assert_eq!(error.place.line, line, "{name}: {error}");
        assert_eq!(error.place.column, column, "{name}: {error}");
    }
}

#[test]
fn flags_replace_assumptions() {
    let gpus = vec![gpu_named("L40S").expect("in the table").clone()];
    let options = Options {
        name: Some("mine".into()),
        gpus,
        cpu: Some(CpuFamily::IntelSapphireRapids),
        sockets: Some(1),
        pcie: Some((4, 8)),
        peer_access: Some(false),
        p2p_level: Some(PathClass::Sys),
        ..Options::default()
    };
    let machine = read(&["esc8000a-topo.txt"], &options).unwrap_or_else(|e| panic!("{e}")).machine;
    assert_eq!((machine.name.as_str(), machine.models[0].name.as_str(), sockets(&machine)), ("mine", "L40S", 1));
    assert_eq!(machine.links.iter().filter(|(_, link)| link.kind == LinkKind::Pcie { generation: 4, lanes: 8 }).count(), 12);
    assert!(!machine.peer_access.value && machine.collectives.nccl.p2p_level.value == PathClass::Sys);
    for word in ["--gpu", "--cpu", "--sockets", "--pcie", "--p2p"] {
        assert!(machine.assumptions.iter().all(|text| !text.contains(&format!("({word}"))), "{word}: {:?}", machine.assumptions);
    }
}

#[test]
fn imported_machines_are_files_and_lend_from_their_kin() {
    for file in ["esc8000a-topo.txt", "h100-8nic-topo.txt", "rtx3090-nccl.xml", "rtx4090-p2p.txt", "esc8000a-lspci.txt"] {
        let machine = machine_named(file);
        assert_eq!(from_json(&machine.to_json()).unwrap_or_else(|e| panic!("{file}: {e}")), machine);
        assert!(machine.collectives.kernel.source.starts_with("as 8x-"), "{file}: {}", machine.collectives.kernel.source);
    }
    // The box that a built-in describes lends itself.
    let esc = made(&["esc8000a-lspci.txt", "esc8000a-topo.txt"]);
    assumes(&esc, &["8x-rtx-pro-6000-esc8000a"]);
    // The GPU's generation counts for more than whether its NVLinks meet in a switch.
    let mesh = made(&["a100-nps4-topo.txt"]);
    assumes(&mesh, &["8x-a100-sxm"]);
    // How the other machine's logs were taken is not lent.
    assert_eq!((mesh.launch.loop_nccl.value, mesh.launch.graph_nccl.value), Default::default());
    assert!(find("8x-rtx-pro-6000-esc8000a").is_some());
}
