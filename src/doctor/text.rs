//! An examination for people.

use crate::table::{Table, bytes};
use moetwin::cuda::doctor::topology::near;
use moetwin::cuda::doctor::{Check, Examination, Finding, GpuDetail, Item, Outcome};
use std::fmt::Write as _;

/// What was found, as text.
pub(crate) fn report(examination: &Examination) -> String {
    let mut text = examination.description.probe.to_string();
    places(examination, &mut text);
    topology(&examination.description.gpus, &mut text);
    singles(examination, &mut text);
    pairs(examination, &mut text);
    groups(examination, &mut text);
    verdict(examination, &mut text);
    text
}

fn places(examination: &Examination, text: &mut String) {
    for (ordinal, gpu) in examination.description.gpus.iter().enumerate() {
        let port = if gpu.pci.generation > 0 { format!("PCIe {}.0 x{}", gpu.pci.generation, gpu.pci.lanes) } else { "PCIe unknown".into() };
        let numa = gpu.pci.numa.map_or("no NUMA node".to_owned(), |n| format!("NUMA node {n}"));
        let _ = writeln!(text, "GPU {ordinal}: {}, {port}, {numa}", gpu.pci.address);
    }
}

/// The matrix that `nvidia-smi topo -m` prints.
fn topology(gpus: &[GpuDetail], text: &mut String) {
    if gpus.len() < 2 {
        return;
    }
    let head = (0..gpus.len()).map(|g| format!("GPU{g}"));
    let mut table = Table::new(std::iter::once("path".to_owned()).chain(head), &[]);
    for (a, gpu) in gpus.iter().enumerate() {
        let cell = |(b, other): (usize, &GpuDetail)| match (a == b, gpu.native_atomics.get(b)) {
            (true, _) => "X".to_owned(),
            (_, Some(true)) => "NVL".to_owned(),
            _ => near(&gpu.pci, &other.pci).name().to_owned(),
        };
        table.row(std::iter::once(format!("GPU{a}")).chain(gpus.iter().enumerate().map(cell)));
    }
    text.push('\n');
    text.push_str(&table.render());
}

fn rate(bytes_per_s: Option<f64>) -> String {
    bytes_per_s.map_or_else(String::new, |r| format!("{:.1} GB/s", r / 1e9))
}

fn micros(seconds: Option<f64>) -> String {
    seconds.map_or_else(String::new, |s| format!("{:.2} us", s * 1e6))
}

/// An outcome in a cell; the rest of what there is to say comes below.
fn word(finding: Option<&Finding>) -> String {
    match finding.map(|f| &f.outcome) {
        Some(Outcome::Right) => rate(finding.and_then(|f| f.measured.bytes_per_s)),
        Some(Outcome::Unsupported(_)) => "no".into(),
        Some(Outcome::Wrong(_)) => "WRONG".into(),
        Some(Outcome::Failed(_)) => "FAILED".into(),
        Some(Outcome::Hung) => "HUNG".into(),
        Some(Outcome::NotChecked) | None => "?".into(),
    }
}

fn find<'a>(examination: &'a Examination, check: Check, item: &[usize]) -> Option<&'a Finding> {
    examination.findings.iter().find(|f| f.check == check && f.item.0 == item)
}

fn singles(examination: &Examination, text: &mut String) {
    let mut table = Table::new(["alone", "memory", "eager launch", "graph node", "graph launch"], &[]);
    for gpu in 0..examination.description.gpus.len() {
        let found = find(examination, Check::Single, &[gpu]);
        let m = found.map(|f| f.measured).unwrap_or_default();
        let costs = [m.eager_launch_s, m.graph_node_s, m.graph_launch_s].map(micros);
        table.row([format!("GPU{gpu}"), word(found)].into_iter().chain(costs));
    }
    text.push('\n');
    text.push_str(&table.render());
}

fn pairs(examination: &Examination, text: &mut String) {
    let count = examination.description.gpus.len();
    if count < 2 {
        return;
    }
    let mut table = Table::new(["by value", "copy", "peer store", "peer load", "in a graph", "copy latency", "flag one way"], &[]);
    for (a, b) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let get = |check| find(examination, check, &[a, b]);
        let graph = match get(Check::Graph) {
            Some(f) if f.outcome == Outcome::Right => "right".to_owned(),
            other => word(other),
        };
        let flags = find(examination, Check::Flags, &[a.min(b), a.max(b)]);
        let flag = match flags {
            Some(f) if f.outcome == Outcome::Right => micros(f.measured.latency_s),
            other => word(other),
        };
        let latency = micros(get(Check::Copy).and_then(|f| f.measured.latency_s));
        let cells = [word(get(Check::Copy)), word(get(Check::Store)), word(get(Check::Load)), graph, latency, flag];
        table.row(std::iter::once(format!("{a} to {b}")).chain(cells));
    }
    text.push('\n');
    text.push_str(&table.render());
}

fn groups(examination: &Examination, text: &mut String) {
    let found: Vec<&Finding> = examination.findings.iter().filter(|f| f.check == Check::Nccl).collect();
    if found.is_empty() {
        return;
    }
    let mut table = Table::new(["NCCL all-reduce", "eager and in a graph", "bus, 64 MiB", "14 KiB in a graph"], &[]);
    for finding in found {
        let right = if finding.outcome == Outcome::Right { "right".to_owned() } else { word(Some(finding)) };
        table.row([format!("GPUs {}", finding.item), right, rate(finding.measured.bytes_per_s), micros(finding.measured.latency_s)]);
    }
    text.push('\n');
    text.push_str(&table.render());
}

/// What a fault means to whoever runs the box.
fn advice(check: Check) -> &'static str {
    match check {
        Check::Copy | Check::Store | Check::Load | Check::Graph | Check::Flags => {
            "peer access is broken here: check that ACS and the IOMMU are off (`lspci -vvv | grep ACSCtl`, iommu=off or pt), update the driver; \
             until then NCCL_P2P_DISABLE=1, and --p2p off in simulations"
        }
        Check::Nccl => "try NCCL_P2P_DISABLE=1; if that helps, peer access is at fault; NCCL_DEBUG=INFO says more",
        Check::Single | Check::Describe => "see `nvidia-smi -q` and `dmesg` for errors of this GPU",
    }
}

fn verdict(examination: &Examination, text: &mut String) {
    let faults: Vec<&Finding> = examination.findings.iter().filter(|f| f.is_fault()).collect();
    let left = examination.findings.iter().filter(|f| f.outcome == Outcome::NotChecked).count();
    text.push('\n');
    for finding in &faults {
        let what = match &finding.outcome {
            Outcome::Wrong(w) => format!("wrong values: {w}"),
            Outcome::Failed(w) => format!("failed: {w}"),
            _ => "hung; its process was ended".to_owned(),
        };
        let Item(gpus) = &finding.item;
        let who = if gpus.len() == 1 { "GPU" } else { "GPUs" };
        let _ = writeln!(text, "{} of {who} {}: {what}", finding.check.name(), finding.item);
    }
    let mut advised: Vec<&str> = Vec::new();
    for finding in &faults {
        let hint = advice(finding.check);
        if !advised.contains(&hint) {
            advised.push(hint);
            let _ = writeln!(text, "  {hint}");
        }
    }
    let unsupported = examination.findings.iter().filter(|f| matches!(f.outcome, Outcome::Unsupported(_))).count();
    if unsupported > 0 {
        let _ = writeln!(text, "{unsupported} checks need peer access that the driver does not offer: transfers go through host memory");
    }
    if left > 0 {
        let _ = writeln!(text, "{left} checks were left out for lack of time");
    }
    let done = examination.findings.len() - left;
    let memory: u64 = examination.description.probe.gpus.iter().map(|g| g.memory_bytes).sum();
    let _ = writeln!(
        text,
        "{done} checks in {:.1} s, {} faults; {} of GPU memory in all",
        examination.took.as_secs_f64(),
        faults.len(),
        bytes(memory)
    );
}
