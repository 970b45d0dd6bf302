//! The machine as a picture: sockets above, GPUs below, each link as wide as it is busy during the step.

use super::super::sim_json::SimJson;
use super::super::sim_text::{calls, percent};
use super::markup::{Column, Table, esc};
use super::sections::words;
use crate::table::bytes;
use moetwin::sim::load::{DirectionLoad, LinkLoad};
use moetwin::sim::machine::{LinkKind, Machine, VertexId, VertexKind};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A link and what it carries.
#[derive(Serialize)]
pub(super) struct LinkJson {
    a: String,
    b: String,
    kind: String,
    forward: LoadJson,
    backward: LoadJson,
}

/// One direction: milliseconds a step, that as a share of the step, the largest share of an exchange's time.
#[derive(Serialize)]
struct LoadJson {
    busy_ms: f64,
    share: f64,
    peak: f64,
}

/// Every link.
pub(super) fn json(machine: &Machine, loads: &[LinkLoad]) -> Vec<LinkJson> {
    let direction = |d: &DirectionLoad| LoadJson { busy_ms: d.busy.as_us() / 1e3, share: d.share, peak: d.peak };
    let one = |load: &LinkLoad| {
        let link = &machine.links[load.link];
        let name = |v: VertexId| machine.vertices[v].name.clone();
        let (forward, backward) = (direction(&load.forward), direction(&load.backward));
        LinkJson { a: name(link.a), b: name(link.b), kind: link.kind.name(), forward, backward }
    };
    loads.iter().map(one).collect()
}

const COLUMN: f64 = 96.0;
const ROW: f64 = 84.0;
const BOX: (f64, f64) = (80.0, 30.0);

/// Where parts of the machine stand.
struct Places {
    at: BTreeMap<VertexId, (f64, f64)>,
    width: f64,
    height: f64,
}

/// Whether a link leads down from a socket to its GPUs.
fn is_branch(kind: LinkKind) -> bool {
    matches!(kind, LinkKind::Pcie { .. } | LinkKind::SocketFabric | LinkKind::C2c)
}

/// Lays the machine out: a tree under each socket, GPUs in one row at its bottom, an NVSwitch fabric below them, memory above its socket.
fn places(machine: &Machine, drawn: &dyn Fn(VertexId) -> bool) -> Places {
    let mut below: BTreeMap<VertexId, Vec<VertexId>> = BTreeMap::new();
    for link in machine.links.as_slice().iter().filter(|l| is_branch(l.kind)) {
        below.entry(link.a).or_default().push(link.b);
        below.entry(link.b).or_default().push(link.a);
    }
    let mut depth: BTreeMap<VertexId, usize> = BTreeMap::new();
    let mut leaves: Vec<VertexId> = Vec::new();
    let mut parents: Vec<(VertexId, Vec<VertexId>)> = Vec::new();
    let part = |v: VertexId| machine.vertices[v].part;
    let sockets = machine.vertices.ids().filter(|v| matches!(part(*v), VertexKind::Socket { .. }));
    let others = machine.vertices.ids().filter(|v| matches!(part(*v), VertexKind::Gpu { .. }));
    let mut stack: Vec<(VertexId, usize)> = Vec::new();
    for root in sockets.chain(others) {
        stack.push((root, 0));
        while let Some((vertex, level)) = stack.pop() {
            if depth.contains_key(&vertex) {
                continue;
            }
            depth.insert(vertex, level);
            let children: Vec<VertexId> = below
                .get(&vertex)
                .into_iter()
                .flatten()
                .copied()
                .filter(|c| !depth.contains_key(c) && !matches!(part(*c), VertexKind::Socket { .. }))
                .collect();
            if children.is_empty() {
                leaves.push(vertex);
            }
            stack.extend(children.iter().rev().map(|c| (*c, level + 1)));
            parents.push((vertex, children));
        }
    }
    let lowest = depth.values().copied().max().unwrap_or(0);
    let memory = machine.vertices.ids().any(|v| matches!(part(v), VertexKind::HostMemory) && drawn(v));
    let top = 30.0 + if memory { ROW } else { 0.0 };
    let mut at: BTreeMap<VertexId, (f64, f64)> = BTreeMap::new();
    for (i, leaf) in leaves.iter().enumerate() {
        at.insert(*leaf, (COLUMN * (i as f64 + 0.5), 0.0));
    }
    // A parent comes before its children, so backwards every child has its place.
    for (vertex, children) in parents.iter().rev() {
        let xs: Vec<f64> = children.iter().filter_map(|c| at.get(c)).map(|p| p.0).collect();
        if !xs.is_empty() {
            at.insert(*vertex, (xs.iter().sum::<f64>() / xs.len() as f64, 0.0));
        }
    }
    for (vertex, place) in &mut at {
        let level = if matches!(part(*vertex), VertexKind::Gpu { .. }) { lowest } else { depth.get(vertex).copied().unwrap_or(0) };
        place.1 = top + level as f64 * ROW;
    }
    let width = COLUMN * leaves.len().max(1) as f64;
    let mut height = top + lowest as f64 * ROW + 50.0;
    if machine.links.as_slice().iter().any(|l| matches!(l.kind, LinkKind::NvLink { .. })) {
        height += ROW;
    }
    for vertex in machine.vertices.ids().filter(|v| !at.contains_key(v)).collect::<Vec<_>>() {
        let near = machine.links.as_slice().iter().find_map(|l| {
            let other = if l.a == vertex { l.b } else { l.a };
            (l.a == vertex || l.b == vertex).then(|| at.get(&other).copied()).flatten()
        });
        let place = match (part(vertex), near) {
            (VertexKind::NvSwitch, _) => (width / 2.0, height - 50.0),
            (_, Some((x, y))) => (x, y - ROW),
            (_, None) => continue,
        };
        at.insert(vertex, place);
    }
    Places { at, width, height }
}

/// Picture, exchanges, links.
pub(super) fn section(machine: &Machine, loads: &[LinkLoad], json: &SimJson<'_>) -> String {
    let busy = loads.iter().map(|l| l.busier().share).fold(0.0, f64::max);
    let mut out = String::new();
    if json.exchanges.is_empty() {
        out.push_str("<p>Ranks exchange nothing in this step, so no link is busy.</p>\n");
    } else {
        out.push_str(&exchanges(json));
    }
    out.push_str(&picture(machine, loads));
    if busy > 0.0 {
        out.push_str(&format!("<details><summary>Links that carry something, as a table</summary>{}</details>\n", table(machine, loads)));
    }
    out
}

fn exchanges(json: &SimJson<'_>) -> String {
    use Column::{Number, Words};
    let columns =
        [("exchange", Words), ("message", Number), ("count", Number), ("transfer us", Number), ("arrival skew us", Number), ("how", Words)];
    let mut table = Table::new("Exchanges of a step by kind and size", &columns);
    for e in json.exchanges {
        table.row(&[
            esc(&words(e.class)),
            bytes(e.message_bytes),
            calls(e.count),
            format!("{:.1}", e.transfer_us),
            format!("{:.1}", e.skew_us),
            esc(&e.how),
        ]);
    }
    let waits = json.waiting.map_or_else(String::new, |w| {
        let (mean, worst) = (percent(w.others_share), percent(w.others_share_worst));
        format!("<p>A rank waits for others {mean} of the step, rank {} most: {worst}.</p>\n", w.worst_rank)
    });
    format!("{waits}{}", table.html())
}

fn picture(machine: &Machine, loads: &[LinkLoad]) -> String {
    let touched = |v: VertexId| {
        let ends = |l: &LinkLoad| machine.links[l.link].a == v || machine.links[l.link].b == v;
        loads.iter().any(|l| l.busier().share > 0.0 && ends(l))
    };
    let drawn = |v: VertexId| !matches!(machine.vertices[v].part, VertexKind::HostMemory) || touched(v);
    let places = places(machine, &drawn);
    let most = loads.iter().map(|l| l.busier().share).fold(0.0, f64::max);
    let busiest = loads.iter().max_by(|a, b| a.busier().share.total_cmp(&b.busier().share)).filter(|_| most > 0.0);
    let said = busiest.map_or_else(
        || "no link carries anything".to_owned(),
        |l| {
            let link = &machine.links[l.link];
            let (a, b) = (&machine.vertices[link.a].name, &machine.vertices[link.b].name);
            format!("the busiest is {} between {a} and {b}, {} of the step", link.kind.name(), percent(most))
        },
    );
    let mut svg = format!(
        "<figure><div class=\"scroll picture\" tabindex=\"0\" role=\"region\" aria-label=\"Topology\"><svg width=\"{0:.0}\" height=\"{1:.0}\" viewBox=\"0 0 {0:.0} {1:.0}\" role=\"img\" aria-label=\"{2}\">",
        places.width,
        places.height,
        esc(&format!("{}: {} parts and {} links; {said}", machine.name, machine.vertices.len(), machine.links.len()))
    );
    let mut labels = String::new();
    for load in loads {
        let link = &machine.links[load.link];
        let (Some(&a), Some(&b)) = (places.at.get(&link.a), places.at.get(&link.b)) else { continue };
        if drawn(link.a) && drawn(link.b) {
            draw_link(&mut svg, &mut labels, machine, load, (a, b), most);
        }
    }
    for (id, vertex) in machine.vertices.iter().filter(|(id, _)| drawn(*id)) {
        let Some(&(x, y)) = places.at.get(&id) else { continue };
        let width = if matches!(vertex.part, VertexKind::NvSwitch) { places.width - 16.0 } else { BOX.0 };
        let gpu = matches!(vertex.part, VertexKind::Gpu { .. });
        let _ = write!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{}\" rx=\"5\" fill=\"var(--panel)\" stroke=\"var(--{})\" stroke-width=\"{}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x - width / 2.0,
            y - BOX.1 / 2.0,
            BOX.1,
            if gpu { "accent" } else { "strong" },
            if gpu { 2 } else { 1 },
            y + 4.0,
            esc(&vertex.name)
        );
    }
    svg.push_str(&labels);
    svg.push_str(
        "</svg></div><figcaption>The width of a link, and the number beside it: the share of the step for which bytes keep its busier direction busy. \
         Where that is small, faster links do not help: exchanges then wait on latency.</figcaption></figure>\n",
    );
    svg
}

/// A straight line; below the GPUs a bow where NVLink joins two of them.
fn draw_link(svg: &mut String, labels: &mut String, machine: &Machine, load: &LinkLoad, (a, b): ((f64, f64), (f64, f64)), most: f64) {
    let link = &machine.links[load.link];
    let share = load.busier().share;
    let width = if share > 0.0 { 1.5 + 7.5 * share / most.max(1e-12) } else { 1.2 };
    let between_gpus = [link.a, link.b].iter().all(|v| matches!(machine.vertices[*v].part, VertexKind::Gpu { .. }));
    // Bows cross each other, so they are thinner.
    let width = if between_gpus { width * 0.45 } else { width };
    let colour = if share > 0.0 { "accent" } else { "strong" };
    let into_fabric = [link.a, link.b].iter().any(|v| matches!(machine.vertices[*v].part, VertexKind::NvSwitch));
    // A fabric is as wide as the row of GPUs: its links go straight down.
    let b = if into_fabric { (if b.1 > a.1 { a.0 } else { b.0 }, b.1) } else { b };
    let a = if into_fabric && a.1 > b.1 { (b.0, a.1) } else { a };
    let names = format!("{} - {}", machine.vertices[link.a].name, machine.vertices[link.b].name);
    let (there, back) = (percent(load.forward.share), percent(load.backward.share));
    let title = format!("{names}, {}: {there} of the step there, {back} back", link.kind.name());
    let path = if between_gpus {
        let middle = (a.0 + b.0) / 2.0;
        format!("M{:.1} {:.1}Q{middle:.1} {:.1} {:.1} {:.1}", a.0, a.1, a.1 + 30.0 + (a.0 - b.0).abs() * 0.2, b.0, b.1)
    } else {
        format!("M{:.1} {:.1}L{:.1} {:.1}", a.0, a.1, b.0, b.1)
    };
    let _ = write!(
        svg,
        "<path d=\"{path}\" fill=\"none\" stroke=\"var(--{colour})\" stroke-width=\"{width:.1}\" stroke-linecap=\"round\"><title>{}</title></path>",
        esc(&title)
    );
    if share >= 0.0005 && !between_gpus {
        // Nearer the lower end, where links stand apart.
        let (low, high) = if a.1 >= b.1 { (a, b) } else { (b, a) };
        let (x, y) = if into_fabric {
            ((a.0 + b.0) / 2.0, (a.1 + b.1) / 2.0)
        } else {
            (low.0 + (high.0 - low.0) * 0.5, low.1 + (high.1 - low.1) * 0.5)
        };
        // Beside a link, not on it; above one that lies flat.
        let flat = (a.1 - b.1).abs() < 1.0;
        let (x, y, anchor) = if flat {
            (x, y - width / 2.0 - 6.0, "middle")
        } else if high.0 > low.0 + 1.0 {
            (x - width / 2.0 - 4.0, y, "end")
        } else {
            (x + width / 2.0 + 4.0, y, "start")
        };
        let _ = write!(labels, "<text class=\"halo\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>", y + 4.0, percent(share));
    }
}

fn table(machine: &Machine, loads: &[LinkLoad]) -> String {
    use Column::{Number, Words};
    let columns = [
        ("link", Words),
        ("kind", Words),
        ("towards", Words),
        ("busy ms", Number),
        ("of the step", Number),
        ("of an exchange, at most", Number),
    ];
    let mut table = Table::new("Links that carry something, by direction", &columns);
    let mut rows: Vec<(f64, [String; 6])> = Vec::new();
    for load in loads {
        let link = &machine.links[load.link];
        let name = |v: VertexId| machine.vertices[v].name.as_str();
        for (direction, towards) in [(&load.forward, link.b), (&load.backward, link.a)] {
            if direction.share > 0.0 {
                rows.push((
                    direction.share,
                    [
                        esc(&format!("{} - {}", name(link.a), name(link.b))),
                        link.kind.name(),
                        esc(name(towards)),
                        format!("{:.3}", direction.busy.as_us() / 1e3),
                        percent(direction.share),
                        percent(direction.peak),
                    ],
                ));
            }
        }
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    rows.iter().for_each(|(_, cells)| table.row(cells));
    table.html()
}

#[cfg(test)]
mod tests {
    use super::*;
    use moetwin::models::ids::Id;
    use moetwin::sim::machine;

    #[test]
    fn every_part_of_every_machine_that_ships_has_a_place_of_its_own() {
        for machine in machine::list() {
            let places = places(&machine, &|_| true);
            let mut seen: Vec<(i64, i64)> = Vec::new();
            for id in machine.vertices.ids() {
                let (x, y) = places.at.get(&id).unwrap_or_else(|| panic!("{}: {} is nowhere", machine.name, machine.vertices[id].name));
                assert!((0.0..=places.width).contains(x) && (0.0..=places.height).contains(y), "{} {id:?}", machine.name);
                let place = (x.round() as i64, y.round() as i64);
                assert!(!seen.contains(&place), "{}: two parts at {place:?}", machine.name);
                seen.push(place);
            }
            assert_eq!(seen.len(), machine.vertices.len());
            assert!(places.at.keys().all(|v| v.index() < machine.vertices.len()));
        }
    }
}
