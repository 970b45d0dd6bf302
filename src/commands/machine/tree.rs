//! The tree of a machine: sockets, root complexes, switches, GPUs, each with its link upwards; links across the tree below it.

use moetwin::sim::machine::{Link, LinkId, LinkKind, Machine, Origin, VertexId, VertexKind};
use moetwin::sim::time::Duration;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Draws the tree and what crosses it. A number in brackets stands for a source that is listed below.
pub(super) fn draw(machine: &Machine) -> String {
    let mut drawing = Drawing { machine, below: BTreeMap::new(), rows: Vec::new(), sources: Vec::new(), drawn: Vec::new() };
    for (id, link) in machine.links.iter() {
        drawing.below.entry(link.a).or_default().push((link.b, id));
        drawing.below.entry(link.b).or_default().push((link.a, id));
    }
    for (id, vertex) in machine.vertices.iter() {
        if matches!(vertex.part, VertexKind::Socket { .. }) {
            drawing.vertex(id, None, "", "");
        }
    }
    let mut text = format!("\nTree (link towards the host: kind, rate, latency one way, origin and [source])\n{}", drawing.take_rows());
    for (id, link) in machine.links.iter() {
        if !drawing.drawn.contains(&id) {
            let name = |v: VertexId| machine.vertices.get(v).map_or("?", |vertex| vertex.name.as_str());
            let label = format!("{} - {}", name(link.a), name(link.b));
            let shown = drawing.link(link, link.b);
            drawing.rows.push((label, shown));
        }
    }
    if !drawing.rows.is_empty() {
        let _ = write!(text, "\nAcross the tree\n{}", drawing.take_rows());
    }
    text.push_str("\nSources of rates\n");
    for (index, (origin, source)) in drawing.sources.iter().enumerate() {
        let _ = writeln!(text, "  [{}] {}: {source}", index + 1, origin.name());
    }
    text
}

struct Drawing<'m> {
    machine: &'m Machine,
    below: BTreeMap<VertexId, Vec<(VertexId, LinkId)>>,
    rows: Vec<(String, String)>,
    sources: Vec<(Origin, &'m str)>,
    drawn: Vec<LinkId>,
}

/// Whether a link belongs to the tree: what joins sockets, switches of a chip, and NVLink crosses it.
fn is_branch(kind: LinkKind) -> bool {
    matches!(kind, LinkKind::Pcie { .. } | LinkKind::SocketFabric | LinkKind::C2c | LinkKind::Memory)
}

fn gigabytes(rate: u64) -> String {
    format!("{:.1}", rate as f64 / 1e9)
}

impl<'m> Drawing<'m> {
    fn take_rows(&mut self) -> String {
        let width = self.rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for (label, link) in std::mem::take(&mut self.rows) {
            let pad = " ".repeat(width - label.chars().count());
            let _ = writeln!(text, "  {}", format!("{label}{pad}  {link}").trim_end());
        }
        text
    }

    /// A vertex below `above`, and what is below it. `first` leads its own line, `rest` those below.
    fn vertex(&mut self, id: VertexId, above: Option<LinkId>, first: &str, rest: &str) {
        let shown = match above {
            Some(link) => {
                self.drawn.push(link);
                self.link(&self.machine.links[link], id)
            }
            None => String::new(),
        };
        self.rows.push((format!("{first}{}", self.label(id)), shown));
        let is_socket = |v: VertexId| matches!(self.machine.vertices[v].part, VertexKind::Socket { .. });
        let children: Vec<(VertexId, LinkId)> = self
            .below
            .get(&id)
            .into_iter()
            .flatten()
            .filter(|(child, link)| is_branch(self.machine.links[*link].kind) && Some(*link) != above && !is_socket(*child))
            .copied()
            .collect();
        for (index, (child, link)) in children.iter().enumerate() {
            // A faulty file could lead in a circle; each link is drawn once.
            if self.drawn.contains(link) {
                continue;
            }
            let last = index + 1 == children.len();
            let (corner, bar) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.vertex(*child, Some(*link), &format!("{rest}{corner}"), &format!("{rest}{bar}"));
        }
    }

    fn label(&self, id: VertexId) -> String {
        let vertex = &self.machine.vertices[id];
        match vertex.part {
            VertexKind::Gpu { ordinal } => {
                let model = self.machine.gpu(ordinal as usize).map_or("?", |model| model.name.as_str());
                let numa = self.machine.gpus.get(ordinal as usize).map_or(0, |slot| slot.numa);
                format!("{} {model} (NUMA {numa})", vertex.name)
            }
            VertexKind::PcieSwitch { chip, acs } => {
                format!("{} (PCIe switch, chip {chip}{})", vertex.name, if acs { ", ACS sends peers up" } else { "" })
            }
            VertexKind::RootComplex => format!("{} (root complex)", vertex.name),
            VertexKind::Socket { numa_nodes: 1 } => format!("{} (CPU socket)", vertex.name),
            VertexKind::Socket { numa_nodes } => format!("{} (CPU socket of {numa_nodes} NUMA nodes)", vertex.name),
            VertexKind::HostMemory => format!("{} (host memory)", vertex.name),
            VertexKind::NvSwitch => format!("{} (NVSwitch fabric)", vertex.name),
        }
    }

    /// `PCIe 5.0 x16  51.5 GB/s  0.32 us  measured [1]`; rates that differ by direction or access are told apart.
    fn link(&mut self, link: &'m Link, lower: VertexId) -> String {
        let (down, up) = if link.b == lower { (&link.forward, &link.backward) } else { (&link.backward, &link.forward) };
        let pair = |rate: &moetwin::sim::machine::Rate| match (rate.write_bytes_per_s.value, rate.read_bytes_per_s.value) {
            (write, read) if write == read => format!("{} GB/s", gigabytes(write)),
            (write, read) => format!("writes {} reads {} GB/s", gigabytes(write), gigabytes(read)),
        };
        let rates = if pair(down) == pair(up) { pair(down) } else { format!("down {}, up {}", pair(down), pair(up)) };
        let mut marks: Vec<String> = Vec::new();
        for figure in [&down.write_bytes_per_s, &down.read_bytes_per_s, &up.write_bytes_per_s, &up.read_bytes_per_s] {
            let mark = format!("{} [{}]", figure.origin.name(), self.source(figure.origin, &figure.source));
            if !marks.contains(&mark) {
                marks.push(mark);
            }
        }
        let latency: Duration = link.latency.value;
        format!("{:<13}  {rates:>11}  {:.2} us  {}", link.kind.name(), latency.as_us(), marks.join(", "))
    }

    fn source(&mut self, origin: Origin, source: &'m str) -> usize {
        let known = self.sources.iter().position(|(o, s)| *o == origin && *s == source);
        known.unwrap_or_else(|| {
            self.sources.push((origin, source));
            self.sources.len() - 1
        }) + 1
    }
}
