//! `moetwin machine import`, `show` and `detect`.

mod support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use support::{command, line, listing, moetwin, scratch};

const TOPO: &str = "tests/topologies/esc8000a-topo.txt";
const LSPCI: &str = "tests/topologies/esc8000a-lspci.txt";

#[test]
fn an_imported_machine_is_a_file_that_other_commands_read() {
    let folder = scratch("import");
    let file = folder.join("box.json");
    let out = file.to_str().unwrap();
    let run = moetwin(&["machine", "import", TOPO, LSPCI, "--same-chip", "0+1,2+3", "-o", out]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(run.out.contains("nvidia-smi topo -m") && run.out.contains("lspci -vv") && run.out.contains("Assumed"), "{}", run.out);
    assert_eq!(listing(&folder), ["box.json"]);
    // What is printed with --json is what was written, and what show prints.
    let json = moetwin(&["machine", "import", TOPO, LSPCI, "--same-chip", "0+1,2+3", "--json"]);
    assert_eq!(json.out, fs::read_to_string(&file).unwrap());
    let shown = moetwin(&["machine", "show", out, "--json"]);
    assert_eq!(shown.json(), json.json());
    let sim = moetwin(&["sim", "--machine", out, "--json"]);
    assert_eq!(sim.code, 0, "{}", sim.err);
    let assumptions = sim.json()["assumptions"].to_string();
    assert!(assumptions.contains("launch costs and protocol figures are those of"), "{assumptions}");
}

#[test]
fn every_topology_of_the_project_imports_or_says_why_not() {
    for name in listing(Path::new("tests/topologies")) {
        let file = format!("tests/topologies/{name}");
        let run = moetwin(&["machine", "import", &file, "--json"]);
        if name == "x570-lspci-t.txt" {
            run.refused(&["without -v", "--gpu-at"]);
            let named =
                moetwin(&["machine", "import", &file, "--gpu-at", "0a:00.0,0b:00.0,04:00.0", "--gpu", "rtx 5090,rtx 3080,rtx 3080"]);
            assert!(named.out.contains("1 x GeForce RTX 5090") && named.out.contains("2 x GeForce RTX 3080"), "{}{}", named.out, named.err);
            continue;
        }
        assert_eq!(run.code, 0, "{name}: {}", run.err);
        let machine = run.json();
        assert!(machine["gpus"].as_array().is_some_and(|gpus| gpus.len() >= 4), "{name}");
        assert!(!machine["assumptions"].as_array().unwrap().is_empty(), "{name}");
    }
}

#[test]
fn faults_are_marked_with_line_and_column() {
    let folder = scratch("faults");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let topo = fs::read_to_string(TOPO).unwrap();
    for (name, text, words) in [
        ("unknown", topo.replacen("PIX", "PIY", 1), &["line 2, column 10", "`PIY`", "accepted: X, NV1", "^^^"][..]),
        ("asymmetric", topo.replacen("PIX", "SYS", 1), &["line 3, column 6", "asymmetric"]),
        ("cut", topo[..topo.len() / 2].to_owned(), &["line ", "column ", "cut off"]),
        ("empty", String::new(), &["line 1, column 1", "empty", "NCCL topology"]),
        ("xml", "<system version=\"1\">\n<cpu".to_owned(), &["line 2, column ", "cut off"]),
        ("binary", "\u{0}\u{1}".to_owned(), &["not the output of a tool"]),
    ] {
        moetwin(&["machine", "import", &write(name, &text)]).refused(words);
    }
    // Two files: both places.
    let other = write("other", &topo.replacen("PIX", "NODE", 1).replacen("GPU1\tPIX", "GPU1\tNODE", 1));
    moetwin(&["machine", "import", &other, LSPCI]).refused(&["other", "line ", "esc8000a-lspci.txt: line "]);
    line("machine import no/such/file").refused(&["no/such/file"]);
    line(&format!("machine import {TOPO} {TOPO}")).refused(&["given twice"]);
    line("machine import").refused(&["<FILE>"]);
    for (flags, words) in [
        ("--gpu nope", &["--gpu", "RTX PRO 6000"][..]),
        ("--cpu pentium", &["--cpu", "intel-sapphire-rapids"]),
        ("--pcie 9x16", &["--pcie", "5x16"]),
        ("--p2p-level far", &["--p2p-level", "NODE"]),
        ("--same-chip 0", &["--same-chip", "0+1"]),
        ("--same-chip 0+99", &["--same-chip names PCIe switch 99", "there are "]),
        ("--gpu-at zz", &["--gpu-at", "0a:00.0"]),
        ("--sockets 0", &["--sockets"]),
        ("--gpu L40S,L40S", &["2 models are given for 8 GPUs"]),
    ] {
        line(&format!("machine import {TOPO} {flags}")).refused(words);
    }
    // Nothing was written beside a refusal.
    let out = folder.join("never.json");
    moetwin(&["machine", "import", "/dev/null", "-o", out.to_str().unwrap()]).refused(&["empty"]);
    assert!(!out.exists());
}

#[test]
fn hidden_topologies_are_said_to_be() {
    let run = line("machine import tests/topologies/v100-vm-topo.txt");
    assert!(run.out.contains("The topology may be hidden by a virtual machine:"), "{}", run.out);
    assert!(!line(&format!("machine import {TOPO}")).out.contains("hidden"));
}

#[test]
fn standard_input_is_read() {
    let topo = fs::File::open(TOPO).unwrap();
    let output = command(&["machine", "import", "-", "--json"]).stdin(topo).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let machine: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(machine["gpus"].as_array().unwrap().len(), 8);
}

#[test]
fn the_tree_and_the_json_agree() {
    for machine in ["8x-rtx-pro-6000-esc8000a", "8x-h100-sxm", "8x-v100-sxm2", "8x-rtx-pro-6000-wrx90-2switch", "4x-gb200"] {
        let text = line(&format!("machine show {machine}")).out;
        let json = line(&format!("machine show {machine} --json")).json();
        for vertex in json["vertices"].as_array().unwrap() {
            assert!(text.contains(vertex["name"].as_str().unwrap()), "{machine}: {vertex}");
        }
        for link in json["links"].as_array().unwrap() {
            // The line of the link holds its rates, in the tree or across it.
            let (a, b) = (link["a"].as_str().unwrap(), link["b"].as_str().unwrap());
            let rate = |way: &str, kind: &str| format!("{:.1}", link[way][kind]["value"].as_f64().unwrap() / 1e9);
            let shows = |l: &&str| {
                ["forward", "backward"]
                    .iter()
                    .all(|way| l.contains(&rate(way, "write_bytes_per_s")) && l.contains(&rate(way, "read_bytes_per_s")))
            };
            let names = |l: &&str| {
                let words: Vec<&str> = l.split([' ', '─', '├', '└', '│']).collect();
                words.contains(&a) || words.contains(&b)
            };
            assert!(text.lines().filter(names).any(|l| shows(&l)), "{machine}: {a} - {b}\n{text}");
        }
        for source in ["measured", "assumed"] {
            assert!(text.contains(&format!("] {source}: ")), "{machine}");
        }
    }
    let text = line("machine show 8x-rtx-pro-6000-esc8000a").out;
    for words in ["└─ ", "├─ ", "PCIe 5.0 x16", "switch fabric", "xGMI", "collapse to 2.7 GB/s", "reads 9.0"] {
        assert!(text.contains(words), "no {words}\n{text}");
    }
}

/// A sysfs of two GPUs below one switch and one on a root port, in a folder.
fn sysfs(folder: &Path) {
    let devices = folder.join("bus/pci/devices");
    let device = |address: &str, class: &str, ids: (&str, &str), numa: &str, secondary: Option<&str>| {
        let path = devices.join(address);
        fs::create_dir_all(&path).unwrap();
        let mut files = vec![("class", class), ("vendor", ids.0), ("device", ids.1), ("numa_node", numa)];
        files.extend([("max_link_speed", "32.0 GT/s PCIe"), ("max_link_width", "16"), ("current_link_width", "16")]);
        // The GPUs are idle.
        files.push(("current_link_speed", if class == "0x030200" { "2.5 GT/s PCIe" } else { "32.0 GT/s PCIe" }));
        files.extend(secondary.map(|bus| ("secondary_bus_number", bus)));
        for (name, text) in files {
            fs::write(path.join(name), format!("{text}\n")).unwrap();
        }
    };
    device("0000:00:00.0", "0x060000", ("0x1022", "0x153a"), "0", None);
    device("0000:00:01.1", "0x060400", ("0x1022", "0x153e"), "0", Some("1"));
    device("0000:01:00.0", "0x060400", ("0x11f8", "0x5000"), "0", Some("2"));
    device("0000:02:00.0", "0x060400", ("0x11f8", "0x5000"), "0", Some("3"));
    device("0000:02:01.0", "0x060400", ("0x11f8", "0x5000"), "0", Some("4"));
    device("0000:03:00.0", "0x030200", ("0x10de", "0x2bb5"), "0", None);
    device("0000:04:00.0", "0x030200", ("0x10de", "0x2bb5"), "0", None);
    device("0000:80:01.1", "0x060400", ("0x1022", "0x153e"), "1", Some("129"));
    device("0000:81:00.0", "0x030000", ("0x10de", "0x2b85"), "1", None);
    device("0000:81:00.1", "0x040300", ("0x10de", "0x22e8"), "1", None);
}

#[test]
fn a_running_machine_is_read_from_sysfs() {
    let folder = scratch("sysfs");
    sysfs(&folder);
    let sys = folder.to_str().unwrap();
    let run = moetwin(&["machine", "detect", "--sys", sys, "--json"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let machine = run.json();
    let models: Vec<&str> = machine["gpus"].as_array().unwrap().iter().map(|gpu| gpu["model"].as_str().unwrap()).collect();
    let server = "RTX PRO 6000 Blackwell Server Edition";
    assert_eq!(models, [server, server, "GeForce RTX 5090"]);
    assert_eq!(machine["collectives"]["nccl"]["cpu"]["value"], "amd");
    let of = |kind: &str| machine["vertices"].as_array().unwrap().iter().filter(|v| v["part"]["kind"] == kind).count();
    assert_eq!((of("pcie_switch"), of("socket"), of("root_complex")), (1, 2, 2));
    let media: Vec<(u64, u64)> = machine["links"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|l| l["medium"]["kind"] == "pcie")
        .map(|l| (l["medium"]["gen"].as_u64().unwrap(), l["medium"]["lanes"].as_u64().unwrap()))
        .collect();
    assert_eq!(media, [(5, 16); 4]);
    let text = moetwin(&["machine", "detect", "--sys", sys]).out;
    assert!(text.contains("PCI devices of the running machine") && text.contains("idle"), "{text}");
    // A matrix that says otherwise contradicts.
    let topo = folder.join("topo.txt");
    fs::write(&topo, "GPU0 GPU1 GPU2\nGPU0 X NODE SYS\nGPU1 NODE X SYS\nGPU2 SYS SYS X\n").unwrap();
    moetwin(&["machine", "detect", topo.to_str().unwrap(), "--sys", sys]).refused(&[
        "line 2, column 8",
        "NODE here, but PIX",
        "0000:04:00.0",
    ]);
}

#[test]
fn a_machine_without_gpus_is_a_failure_that_says_what_was_looked_for() {
    let folder = scratch("no-gpu");
    fs::create_dir_all(folder.join("bus/pci/devices/0000:00:00.0")).unwrap();
    let run = moetwin(&["machine", "detect", "--sys", folder.to_str().unwrap()]);
    assert_eq!((run.code, run.out.as_str()), (3, ""));
    for word in ["no NVIDIA GPU", "1 devices", "bus/pci/devices", "0x10de"] {
        assert!(run.err.contains(word), "{}", run.err);
    }
    // A folder that is not there was given wrongly; it says nothing of a machine.
    line("machine detect --sys no/such/folder --json").refused(&["--sys", "no/such/folder", "bus/pci/devices"]);
}

/// What would saturate a time is refused at its field.
#[test]
fn figures_that_no_gpu_has_are_refused_at_their_field() {
    let folder = scratch("absurd-machine");
    let shown = moetwin(&["machine", "show", "8x-h200-sxm", "--json"]).out;
    let machine: Value = serde_json::from_str(&shown).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut machine = machine.clone();
        *machine.pointer_mut(pointer).unwrap() = value;
        let path = folder.join("machine.json");
        fs::write(&path, machine.to_string()).unwrap();
        moetwin(&["sim", "--model", "qwen3-30b-a3b", "--machine", path.to_str().unwrap()])
    };
    with("/gpu_models/0/flops", Value::Array(vec![])).refused(&["gpu_models[0].flops", "bf16"]);
    with("/gpu_models/0/memory_reached_bytes_per_s/value", 1.into())
        .refused(&["gpu_models[0].memory_reached_bytes_per_s", "1000000000 to "]);
    // What steps are not computed with cannot be changed alone to no effect.
    with("/gpu_models/0/memory_bytes_per_s/value", 2_000_000_000_000_u64.into()).refused(&[
        "gpu_models[0].memory_reached_bytes_per_s",
        "more than memory_bytes_per_s, 2000000000000",
        "change both",
    ]);
    with("/gpu_models/0/flops/1/peak_per_s/value", 1_000_000_000_000_u64.into())
        .refused(&["gpu_models[0].flops[1].reached_per_s", "more than peak_per_s"]);
    with("/gpu_models/0/flops/1/peak_per_s/value", 0.into()).refused(&["gpu_models[0].flops[1].peak_per_s"]);
    with("/gpu_models/0/sm_count", 0.into()).refused(&["gpu_models[0].sm_count"]);
    assert_eq!(with("/gpu_models/0/sm_count", 132.into()).code, 0);
}
