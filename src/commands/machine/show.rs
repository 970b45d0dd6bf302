//! What a machine is made of, for people.

use super::tree;
use crate::table::{Table, bytes};
use moetwin::sim::Duration;
use moetwin::sim::exec::gpu_rates;
use moetwin::sim::machine::{Defect, Figure, GpuModel, Machine, PathClass};
use moetwin::sim::network::Network;
use std::fmt::Write as _;

/// The whole machine.
pub(super) fn describe(machine: &Machine) -> String {
    let mut text = format!("{}\n  {}\n", machine.name, machine.summary);
    for gpu in &machine.models {
        let n = machine.gpus.iter().filter(|slot| machine.models.get(slot.model) == Some(gpu)).count();
        text.push_str(&describe_gpu(gpu, n));
    }
    text.push_str(&tree::draw(machine));
    let _ = writeln!(text, "\nPaths between GPUs (by ordinal, as `nvidia-smi topo -m` names them)\n{}", paths(machine));
    let launch = &machine.launch;
    text.push_str("Launches\n");
    let seldom = [("short loop of NCCL adds", &launch.loop_nccl), ("replay of NCCL alone adds", &launch.graph_nccl)];
    let always = [
        ("eager kernel", &launch.eager_kernel),
        ("node of a captured graph", &launch.graph_node),
        ("captured graph", &launch.graph_launch),
        ("eager collective", &launch.eager_collective),
        ("eager NCCL", &launch.eager_nccl),
    ];
    let call = launch.nccl_call.as_ref().map(|figure| ("call of NCCL, no framework", figure));
    for (name, figure) in always.into_iter().chain(call).chain(seldom.into_iter().filter(|(_, figure)| figure.value > Duration::ZERO)) {
        let _ = writeln!(text, "  {name:<26}{:>6.2} us  {}: {}", figure.value.as_us(), figure.origin.name(), figure.source);
    }
    let _ = writeln!(text, "\nPeer access  {}", known(&machine.peer_access, if machine.peer_access.value { "on" } else { "off" }));
    for defect in &machine.defects {
        let Defect::PostedWriteCollapse { switch, bytes_per_s } = defect;
        let name = machine.vertices.get(*switch).map_or("?", |vertex| vertex.name.as_str());
        let rate = known(bytes_per_s, &gigabytes_per_s(bytes_per_s.value));
        let _ = writeln!(text, "Defect       posted writes from {name} to several root complexes at once collapse to {rate}");
    }
    if !machine.assumptions.is_empty() {
        text.push_str("\nAssumed\n");
        for assumption in &machine.assumptions {
            let _ = writeln!(text, "  - {assumption}");
        }
    }
    text
}

fn describe_gpu(gpu: &GpuModel, count: usize) -> String {
    let mut text = format!("\n{count} x {} ({}, SM {}.{}, {} SMs)\n", gpu.name, gpu.chip, gpu.sm_major, gpu.sm_minor, gpu.sm_count);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<14}{value}");
    };
    line("memory", known(&gpu.memory_bytes, &bytes(gpu.memory_bytes.value)));
    line("memory rate", known(&gpu.memory_bytes_per_s, &gigabytes_per_s(gpu.memory_bytes_per_s.value)));
    if let Some(reached) = &gpu.memory_reached_bytes_per_s {
        line("reached", known(reached, &gigabytes_per_s(reached.value)));
    }
    let counted = gigabytes_per_s(gpu_rates(gpu).memory_bytes_per_s as u64);
    let why = if gpu.memory_reached_bytes_per_s.is_some() { "what is reached" } else { "a share, since nobody measured what is reached" };
    line("counted", format!("{counted}  in steps: {why}"));
    line("L2", bytes(gpu.l2_bytes));
    text
}

/// A figure with where it comes from.
fn known<T>(figure: &Figure<T>, shown: &str) -> String {
    format!("{shown}  ({}: {})", figure.origin.name(), figure.source)
}

fn gigabytes_per_s(rate: u64) -> String {
    format!("{:.1} GB/s", rate as f64 / 1e9)
}

fn paths(machine: &Machine) -> String {
    let network = Network::new(machine);
    let n = machine.gpu_count();
    let mut header = vec![String::new()];
    header.extend((0..n).map(|i| i.to_string()));
    let mut table = Table::new(header, &[]);
    for a in 0..n {
        let mut row = vec![a.to_string()];
        row.extend((0..n).map(|b| match network.class(a, b) {
            _ if a == b => "-".to_owned(),
            Ok(PathClass::Nvl) => network.nvlink_lanes(a, b).map_or("NVL".to_owned(), |lanes| format!("NV{lanes}")),
            Ok(class) => class.name().to_owned(),
            Err(_) => "?".to_owned(),
        }));
        table.row(row);
    }
    table.render()
}
