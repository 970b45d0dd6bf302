//! NCCL's graph XML: the rings and trees it chose, each with the farthest class and the rate it counted on.

use super::evidence::{Classes, Evidence, GpuSeen, Told};
use super::matrix::ClassMatrix;
use super::nccl_xml::{Xml, check_version};
use super::{Kind, MOST_GPUS, TopologyError};
use crate::machine::PathClass;
use roxmltree::Node;

/// NCCL's pattern number of a ring (`graph/connect.h`).
const RING: u64 = 4;
/// Words of `typeintra` (`graph/topo.cc`).
const TYPES: &str = "LOC, NVL, NVB, C2C, PIX, PXB, PXN, P2C, PHB, SYS, NET, DIS";

/// Reads the graphs. The first ring with a channel tells the GPUs and how far its hops go.
pub(super) fn read(xml: &Xml<'_>, root: Node<'_, '_>) -> Result<Evidence, TopologyError> {
    check_version(xml, root)?;
    let mut seen = Evidence::new(Kind::NcclGraph, xml.place(root));
    let mut ring = None;
    for graph in root.children().filter(Node::is_element) {
        if graph.tag_name().name() != "graph" {
            return Err(xml.error(graph, format!("unknown element <{}> in <graphs>; accepted: graph", graph.tag_name().name())));
        }
        let order = channels(xml, graph)?;
        if ring.is_none() && xml.number(graph, "pattern")? == RING && !order.is_empty() {
            ring = Some((graph, order));
        }
    }
    let Some((graph, order)) = ring else {
        return Err(xml.error(root, "no ring (pattern=\"4\") with a <channel>: which GPUs there are is not told"));
    };
    let n = order.len();
    if n > MOST_GPUS {
        return Err(xml.error(graph, format!("{n} GPUs; at most {MOST_GPUS} are read")));
    }
    if let Some(missing) = (0..n).find(|dev| !order.contains(dev)) {
        return Err(xml.error(graph, format!("a ring of {n} GPUs without GPU {missing}: devices are numbered from 0 without gaps")));
    }
    let place = xml.place(graph);
    seen.gpus = (0..n).map(|_| GpuSeen::at(place.clone())).collect();
    let word = graph.attribute("typeintra").unwrap_or("SYS");
    let far = match word {
        "NVL" | "NVB" | "C2C" => {
            seen.nvlink = Some(place.clone());
            None
        }
        "LOC" if n == 1 => None,
        "PIX" => Some(PathClass::Pix),
        "PXB" => Some(PathClass::Pxb),
        "PHB" | "P2C" | "PXN" => Some(PathClass::Node),
        "SYS" | "NET" | "DIS" => Some(PathClass::Sys),
        _ => return Err(xml.error(graph, format!("typeintra=\"{word}\"; accepted: {TYPES}"))),
    };
    let channels = xml.number(graph, "nchannels")?;
    let speed = graph.attribute("speedintra").unwrap_or("?");
    seen.remarks.push(format!("NCCL chose {channels} ring channel(s) of {speed} GB/s whose farthest hop is {word} ({place})"));
    if let Some(far) = far {
        for pair in 0..n {
            let (a, b) = (order[pair], order[(pair + 1) % n]);
            if a != b {
                seen.pair(a, b).classes = Some(Told { value: Classes::range(PathClass::Pix, far), place: place.clone() });
            }
        }
        seen.guess = Some(likely(&order, far));
    }
    Ok(seen)
}

/// GPUs of the first channel, in order.
fn channels(xml: &Xml<'_>, graph: Node<'_, '_>) -> Result<Vec<usize>, TopologyError> {
    let mut first = Vec::new();
    for (index, channel) in graph.children().filter(Node::is_element).enumerate() {
        if channel.tag_name().name() != "channel" {
            return Err(xml.error(channel, format!("unknown element <{}> in <graph>; accepted: channel", channel.tag_name().name())));
        }
        let mut order: Vec<usize> = Vec::new();
        for hop in channel.children().filter(Node::is_element) {
            match hop.tag_name().name() {
                "gpu" => {
                    let dev = usize::try_from(xml.number(hop, "dev")?).unwrap_or(usize::MAX);
                    if order.contains(&dev) {
                        return Err(xml.error(hop, format!("GPU {dev} stands twice in a channel: a cycle")));
                    }
                    order.push(dev);
                }
                "net" => {}
                other => return Err(xml.error(hop, format!("unknown element <{other}> in <channel>; accepted: gpu, net"))),
            }
        }
        if index == 0 {
            first = order;
        }
    }
    Ok(first)
}

/// A machine whose ring has this farthest hop: halves on two sockets, or all GPUs as near as that hop.
fn likely(order: &[usize], far: PathClass) -> ClassMatrix {
    let n = order.len();
    let mut matrix = ClassMatrix::open(n);
    for (i, &a) in order.iter().enumerate() {
        for (j, &b) in order.iter().enumerate().skip(i + 1) {
            let near = if far == PathClass::Sys { PathClass::Node } else { far };
            let class = if far == PathClass::Sys && (i < n.div_ceil(2)) != (j < n.div_ceil(2)) { PathClass::Sys } else { near };
            matrix.set(a, b, Classes::of(&[class]));
        }
    }
    matrix
}
