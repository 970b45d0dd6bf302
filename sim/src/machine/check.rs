//! What must hold of a machine before anything is computed from it.

use super::file::FileError;
use super::gpu::Format;
use super::{LinkKind, Machine, Rate, VertexKind};
use crate::network::{Access, Network};
use crate::time::Duration;
use moetwin_models::ids::Id;
use serde_json::Value;

/// No link or step takes longer.
const MOST_LATENCY: Duration = Duration::from_us(1_000_000);
/// No link or memory is faster (1 PB/s).
const MOST_RATE: u64 = 1_000_000_000_000_000;

/// Checks a machine: figures in range, GPUs numbered, the PCIe part a tree, every pair of GPUs connected.
///
/// # Errors
/// The first fault, with the path of the value as in a machine file.
pub fn check(machine: &Machine) -> Result<(), FileError> {
    check_gpus(machine)?;
    check_figures(machine)?;
    check_links(machine)?;
    check_trees(machine)?;
    check_defects(machine)?;
    check_kernels(machine)?;
    check_connected(machine)
}

fn check_gpus(machine: &Machine) -> Result<(), FileError> {
    if machine.gpus.is_empty() {
        return Err(FileError::value("gpus", "a machine has at least one GPU"));
    }
    for (index, model) in machine.models.iter().enumerate() {
        let path = |field: &str| format!("gpu_models[{index}].{field}");
        if model.sm_count == 0 {
            return Err(FileError::value(path("sm_count"), "0; a GPU has at least one multiprocessor"));
        }
        rate_in_range(path("memory_bytes"), model.memory_bytes.value)?;
        gpu_rate_in_range(path("memory_bytes_per_s"), model.memory_bytes_per_s.value, MOST_RATE)?;
        if let Some(reached) = &model.memory_reached_bytes_per_s {
            gpu_rate_in_range(path("memory_reached_bytes_per_s"), reached.value, MOST_RATE)?;
            reached_of(path("memory_reached_bytes_per_s"), reached.value, "memory_bytes_per_s", model.memory_bytes_per_s.value)?;
        }
        if !model.flops.iter().any(|rate| rate.format == Format::Bf16) {
            return Err(FileError::value(path("flops"), "no rate of bf16, in which activations are computed"));
        }
        for (i, rate) in model.flops.iter().enumerate() {
            let path = |field: &str| path(&format!("flops[{i}].{field}"));
            gpu_rate_in_range(path("peak_per_s"), rate.peak_per_s.value, MOST_FLOPS)?;
            if let Some(reached) = &rate.reached_per_s {
                gpu_rate_in_range(path("reached_per_s"), reached.value, MOST_FLOPS)?;
                reached_of(path("reached_per_s"), reached.value, "peak_per_s", rate.peak_per_s.value)?;
            }
        }
    }
    for (index, slot) in machine.gpus.iter().enumerate() {
        match machine.vertices.get(slot.vertex).map(|vertex| vertex.part) {
            Some(VertexKind::Gpu { ordinal }) if ordinal as usize == index => {}
            _ => return Err(FileError::value(format!("gpus[{index}].vertex"), format!("not the vertex of GPU {index}"))),
        }
        if slot.model >= machine.models.len() {
            return Err(FileError::value(format!("gpus[{index}].model"), "not among gpu_models"));
        }
    }
    let parts = machine.vertices.iter().filter(|(_, vertex)| matches!(vertex.part, VertexKind::Gpu { .. })).count();
    if parts != machine.gpus.len() {
        return Err(FileError::value("vertices", format!("{parts} are GPUs, but gpus has {}", machine.gpus.len())));
    }
    Ok(())
}

/// No GPU's memory or arithmetic is slower (1 GB/s, 1 GFLOP/s).
const LEAST_GPU_RATE: u64 = 1_000_000_000;
/// Most operations a second (1 EFLOP/s).
const MOST_FLOPS: u64 = 1_000_000_000_000_000_000;
/// Most thousandths of anything.
const MOST_PERMILLE: u64 = 1_000_000;

/// Every figure of arithmetic, launches and collectives is in the range that its name's unit has: nothing saturates, and nothing divides by
/// zero.
fn check_figures(machine: &Machine) -> Result<(), FileError> {
    let parts = [
        ("gpu_models", serde_json::to_value(&machine.models)),
        ("launch", serde_json::to_value(&machine.launch)),
        ("collectives", serde_json::to_value(&machine.collectives)),
    ];
    for (path, part) in parts {
        let part = part.map_err(|e| FileError::value(path, e.to_string()))?;
        figures_in_range(path, path, &part)?;
    }
    Ok(())
}

/// Walks a part of a machine file; `name` is the last field of `path`.
fn figures_in_range(path: &str, name: &str, part: &Value) -> Result<(), FileError> {
    match part {
        Value::Array(items) => items.iter().enumerate().try_for_each(|(i, item)| figures_in_range(&format!("{path}[{i}]"), name, item)),
        Value::Object(fields) => match fields.get("value").and_then(Value::as_u64) {
            Some(value) => figure_in_range(path, name, value),
            None => fields.iter().try_for_each(|(field, item)| figures_in_range(&format!("{path}.{field}"), field, item)),
        },
        _ => Ok(()),
    }
}

fn figure_in_range(path: &str, name: &str, value: u64) -> Result<(), FileError> {
    let (least, most) = match name {
        "link_permille" => (1, MOST_PERMILLE),
        "simple_slices" => (1, 4096),
        _ if name.ends_with("bytes_per_s") => (1, MOST_RATE),
        _ if name.ends_with("_permille") => (0, MOST_PERMILLE),
        _ if name.ends_with("_ps") => (0, MOST_LATENCY.as_ps()),
        _ => return Ok(()),
    };
    if (least..=most).contains(&value) { Ok(()) } else { Err(FileError::value(path, format!("{value}; accepted: {least} to {most}"))) }
}

/// A rate of a GPU: none is so slow that times leave their range.
fn gpu_rate_in_range(path: String, value: u64, most: u64) -> Result<(), FileError> {
    if (LEAST_GPU_RATE..=most).contains(&value) {
        Ok(())
    } else {
        Err(FileError::value(path, format!("{value}; accepted: {LEAST_GPU_RATE} to {most}")))
    }
}

/// What is reached is what steps are computed with, so a stated rate that was changed alone would change nothing: below what is reached it is refused.
fn reached_of(path: String, reached: u64, stated: &str, rate: u64) -> Result<(), FileError> {
    if reached <= rate {
        return Ok(());
    }
    let why = format!("{reached} is more than {stated}, {rate}; steps are computed with what is reached: change both, or make this null");
    Err(FileError::value(path, why))
}

fn rate_in_range(path: String, value: u64) -> Result<(), FileError> {
    if (1..=MOST_RATE).contains(&value) { Ok(()) } else { Err(FileError::value(path, format!("{value}; accepted: 1 to {MOST_RATE}"))) }
}

fn check_links(machine: &Machine) -> Result<(), FileError> {
    for (id, link) in machine.links.iter() {
        let path = |field: &str| format!("links[{}].{field}", id.index());
        if link.a == link.b || machine.vertices.get(link.a).is_none() || machine.vertices.get(link.b).is_none() {
            return Err(FileError::value(path("b"), "a link joins two different vertices"));
        }
        let check_rate = |name: &str, rate: &Rate| {
            rate_in_range(path(&format!("{name}.write_bytes_per_s")), rate.write_bytes_per_s.value)?;
            rate_in_range(path(&format!("{name}.read_bytes_per_s")), rate.read_bytes_per_s.value)
        };
        check_rate("forward", &link.forward)?;
        check_rate("backward", &link.backward)?;
        if link.latency.value > MOST_LATENCY {
            return Err(FileError::value(path("latency_ps"), format!("{}; accepted: up to {MOST_LATENCY}", link.latency.value)));
        }
        if let LinkKind::Pcie { generation, lanes } = link.kind {
            if !(1..=7).contains(&generation) {
                return Err(FileError::value(path("medium.gen"), format!("{generation}; accepted: 1 to 7")));
            }
            if !matches!(lanes, 1 | 2 | 4 | 8 | 12 | 16 | 32) {
                return Err(FileError::value(path("medium.lanes"), format!("{lanes}; accepted: 1, 2, 4, 8, 12, 16, 32")));
            }
        }
    }
    Ok(())
}

/// PCIe and what joins it to sockets has no cycle: a path up is unique.
fn check_trees(machine: &Machine) -> Result<(), FileError> {
    let mut parent: Vec<usize> = (0..machine.vertices.len()).collect();
    fn root(parent: &mut [usize], mut at: usize) -> usize {
        while parent[at] != at {
            parent[at] = parent[parent[at]];
            at = parent[at];
        }
        at
    }
    for (id, link) in machine.links.iter() {
        if matches!(link.kind, LinkKind::Pcie { .. } | LinkKind::SocketFabric | LinkKind::C2c) {
            let (a, b) = (root(&mut parent, link.a.index()), root(&mut parent, link.b.index()));
            if a == b {
                let names = (&machine.vertices[link.a].name, &machine.vertices[link.b].name);
                return Err(FileError::value(
                    format!("links[{}]", id.index()),
                    format!("a second way between {} and {}: PCIe is a tree", names.0, names.1),
                ));
            }
            parent[a] = b;
        }
    }
    Ok(())
}

fn check_defects(machine: &Machine) -> Result<(), FileError> {
    for (index, defect) in machine.defects.iter().enumerate() {
        let super::Defect::PostedWriteCollapse { switch, bytes_per_s } = defect;
        if !matches!(machine.vertices.get(*switch).map(|vertex| vertex.part), Some(VertexKind::PcieSwitch { .. })) {
            return Err(FileError::value(format!("defects[{index}].switch"), "not a PCIe switch"));
        }
        rate_in_range(format!("defects[{index}].bytes_per_s"), bytes_per_s.value)?;
    }
    Ok(())
}

/// Most rows of measured kernels.
const MOST_ROWS: usize = 100_000;

fn check_kernels(machine: &Machine) -> Result<(), FileError> {
    let Some(own) = &machine.kernels else { return Ok(()) };
    if own.rows.len() > MOST_ROWS {
        return Err(FileError::value("kernels.rows", format!("{} entries; at most {MOST_ROWS} are read", own.rows.len())));
    }
    let longest = MOST_LATENCY.as_ps();
    if own.exchanges.len() > MOST_ROWS {
        return Err(FileError::value("kernels.exchanges", format!("{} entries; at most {MOST_ROWS} are read", own.exchanges.len())));
    }
    if let Some(i) = own.exchanges.iter().position(|r| r.time_ps == 0 || r.time_ps > longest || r.bytes == 0 || r.ranks < 2) {
        let what = format!("an exchange has two ranks or more, bytes, and a time of 1 to {longest} ps");
        return Err(FileError::value(format!("kernels.exchanges[{i}]"), what));
    }
    if own.joins.is_some_and(|joins| joins.kernels_ps.max(joins.of(true)) > longest) {
        return Err(FileError::value("kernels.joins", format!("at most {longest} ps")));
    }
    match own.rows.iter().position(|r| r.time_ps == 0 || r.time_ps > longest || r.work.kernels.is_empty()) {
        Some(i) => Err(FileError::value(format!("kernels.rows[{i}]"), format!("a row has kernels, and a time of 1 to {longest} ps"))),
        None => Ok(()),
    }
}

/// Every GPU reaches its neighbour by ordinal, and so every other: connection is transitive except for host memory, which each has or lacks.
fn check_connected(machine: &Machine) -> Result<(), FileError> {
    let network = Network::new(machine);
    for a in 0..machine.gpus.len() {
        let b = (a + 1) % machine.gpus.len();
        if a != b {
            let direct = network.route(a, b, Access::Write);
            let bounced = network.route(a, b, Access::Bounce);
            if let Err(error) = direct.and(bounced) {
                return Err(FileError::value("links", error.to_string()));
            }
        }
    }
    Ok(())
}
