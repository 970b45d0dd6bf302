//! Where every figure that the answer rests on comes from.

use super::super::sim_json::SimJson;
use super::markup::{Column, Table, esc};
use super::sections::{provenance, taken_for_granted, words};
use crate::prediction::Prediction;
use crate::report::sim_text::percent;
use moetwin::sim::cost::KernelTables;
use moetwin::sim::machine::{Figure, Machine, Origin};
use moetwin::sim::time::Duration;
use serde::Serialize;

/// A figure of the machine, or the tables that kernel times come from.
#[derive(Serialize)]
pub(super) struct SourceJson {
    what: String,
    value: String,
    origin: &'static str,
    source: String,
}

/// Sources of kernel times, then every figure of the machine. Figures that are alike are said once.
pub(super) fn sources(p: &Prediction) -> Vec<SourceJson> {
    let machine = &p.scenario.machine;
    let mut out = Vec::new();
    for gpu in &machine.models {
        if let Some(tables) = KernelTables::with_imported(&gpu.name, p.scenario.options.kernels, p.scenario.options.tables.as_ref()) {
            for (i, source) in tables.sources().enumerate() {
                let value = if i == 0 { "asked first".to_owned() } else { format!("asked as number {}", i + 1) };
                let same = if source.same_product { "" } else { ", carried over by its rates" };
                out.push(SourceJson {
                    what: format!("kernel times of {}", gpu.name),
                    value,
                    origin: Origin::Measured.name(),
                    source: format!(
                        "{} on {}{same} (kernel tables {})",
                        source.implementation,
                        source.slug,
                        if source.imported() { "as given" } else { "of aiconfigurator-core" }
                    ),
                });
            }
        }
    }
    machine_figures(machine, &mut out);
    out
}

fn add<T>(out: &mut Vec<SourceJson>, what: String, value: String, figure: &Figure<T>) {
    let (origin, source) = (figure.origin.name(), figure.source.clone());
    if !out.iter().any(|s| s.what == what && s.value == value && s.origin == origin && s.source == source) {
        out.push(SourceJson { what, value, origin, source });
    }
}

fn machine_figures(machine: &Machine, out: &mut Vec<SourceJson>) {
    let rate = |r: u64| format!("{:.1} GB/s", r as f64 / 1e9);
    let us = |d: Duration| format!("{:.2} us", d.as_us());
    for gpu in &machine.models {
        let name = &gpu.name;
        add(out, format!("memory of {name}"), crate::table::bytes(gpu.memory_bytes.value), &gpu.memory_bytes);
        add(out, format!("memory rate of {name}"), rate(gpu.memory_bytes_per_s.value), &gpu.memory_bytes_per_s);
        if let Some(reached) = &gpu.memory_reached_bytes_per_s {
            add(out, format!("memory rate that reads reach on {name}"), rate(reached.value), reached);
        }
        for flops in &gpu.flops {
            let tera = |r: u64| format!("{:.0} T/s", r as f64 / 1e12);
            let format = format!("{:?}", flops.format).to_lowercase();
            add(out, format!("{format} operations of {name}"), tera(flops.peak_per_s.value), &flops.peak_per_s);
            if let Some(reached) = &flops.reached_per_s {
                add(out, format!("{format} operations that products reach on {name}"), tera(reached.value), reached);
            }
        }
    }
    for link in machine.links.as_slice() {
        let kind = link.kind.name();
        for r in [&link.forward, &link.backward] {
            add(out, format!("writes over {kind}"), rate(r.write_bytes_per_s.value), &r.write_bytes_per_s);
            add(out, format!("reads over {kind}"), rate(r.read_bytes_per_s.value), &r.read_bytes_per_s);
        }
        add(out, format!("latency of {kind}"), us(link.latency.value), &link.latency);
    }
    add(out, "peer access".into(), if machine.peer_access.value { "on" } else { "off" }.into(), &machine.peer_access);
    let launch = &machine.launch;
    add(out, "launch of a kernel".into(), us(launch.eager_kernel.value), &launch.eager_kernel);
    add(out, "node of a captured graph".into(), us(launch.graph_node.value), &launch.graph_node);
    add(out, "launch of a captured graph".into(), us(launch.graph_launch.value), &launch.graph_launch);
    add(out, "eager collective of an engine".into(), us(launch.eager_collective.value), &launch.eager_collective);
    let c = &machine.collectives;
    add(out, "start and end of a NCCL kernel".into(), us(c.kernel.value), &c.kernel);
    for (name, ring) in [("NVLink", &c.nvlink), ("PCIe", &c.pcie), ("host memory", &c.host)] {
        add(out, format!("step of an LL ring over {name}"), us(ring.ll_step.value), &ring.ll_step);
        add(out, format!("step of a Simple ring over {name}"), us(ring.simple_step.value), &ring.simple_step);
        add(out, format!("Simple ring over {name}"), rate(ring.simple_bytes_per_s.value), &ring.simple_bytes_per_s);
    }
    add(out, "barrier of an engine's all-reduce kernel".into(), us(c.custom.barrier.value), &c.custom.barrier);
}

/// Shares, what is taken for granted, and the tables.
pub(super) fn section(json: &SimJson<'_>, sources: &[SourceJson]) -> String {
    let mut out = String::new();
    if !json.breakdown.is_empty() {
        out.push_str(&provenance(json));
        use Column::{Number, Words};
        let columns = [("class", Words), ("ms", Number), ("measured", Number), ("interpolated", Number), ("modelled", Number)];
        let mut table = Table::new("Where each class's time comes from", &columns);
        for row in json.breakdown.iter().filter(|r| r.ms > 0.0) {
            let p = &row.provenance;
            table.row(&[
                esc(&words(row.class)),
                format!("{:.3}", row.ms),
                percent(p.measured),
                percent(p.interpolated),
                percent(p.modelled),
            ]);
        }
        out.push_str(&table.html());
        out.push_str(
            "<p class=\"note\">Measured: a row of a published table. Interpolated: between such rows, or computed from measured figures of the machine. \
             Modelled: from bytes, operations and floors. Memory is counted from the model's tensors, waiting follows from the simulation.</p>\n",
        );
    }
    out.push_str(&taken_for_granted(json));
    let columns = [("figure", Column::Words), ("value", Column::Words), ("how known", Column::Words), ("source", Column::Words)];
    let mut table = Table::new("Figures that the answer rests on", &columns);
    for s in sources {
        table.row(&[esc(&s.what), esc(&s.value), s.origin.to_owned(), esc(&s.source)]);
    }
    out.push_str(&format!("<details><summary>All {} figures with their sources</summary>{}</details>\n", sources.len(), table.html()));
    out
}
