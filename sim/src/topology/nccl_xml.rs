//! NCCL's topology XML: `<system>` of `<cpu>` (a NUMA node), `<pci>` (a switch or a device), `<gpu>`, `<nvlink>`.
//!
//! NCCL leaves root ports and host bridges out: what hangs on a `<cpu>` directly may share a host bridge or not.

use super::evidence::{Evidence, GpuSeen, Part, Sign, SignKind, SwitchSeen, Told, TreeNode};
use super::pci::{self, BusId};
use super::text::Source;
use super::{Kind, MOST_GPUS, Options, Place, TopologyError, names, nccl_graph};
use crate::machine::CpuFamily;
use roxmltree::{Document, Node, ParsingOptions};
use std::collections::BTreeMap;

/// Most nodes of a document: a large server has a thousand.
const MOST_NODES: u32 = 200_000;
/// Most switches, CPUs and GPUs.
const MOST_PARTS: usize = 2048;
/// Most NVLink lanes of a GPU.
const MOST_LANES: u8 = 64;
/// Deepest nesting.
const MOST_DEPTH: usize = 64;

/// A document with its source, for places.
pub(super) struct Xml<'a> {
    pub(super) source: &'a Source,
    pub(super) document: &'a Document<'a>,
}

impl Xml<'_> {
    pub(super) fn place(&self, node: Node<'_, '_>) -> Place {
        let at = self.document.text_pos_at(node.range().start);
        self.source.place(at.row as usize, at.col as usize)
    }
    pub(super) fn error(&self, node: Node<'_, '_>, message: impl Into<String>) -> TopologyError {
        TopologyError::new(self.place(node), message)
    }
    /// A required attribute.
    pub(super) fn text<'n>(&self, node: Node<'n, '_>, name: &str) -> Result<&'n str, TopologyError> {
        node.attribute(name).ok_or_else(|| self.error(node, format!("<{}> without {name}=\"...\"", node.tag_name().name())))
    }
    /// A number, decimal or hexadecimal behind `0x`.
    pub(super) fn number(&self, node: Node<'_, '_>, name: &str) -> Result<u64, TopologyError> {
        let text = self.text(node, name)?;
        parse_number(text).ok_or_else(|| self.error(node, format!("{name}=\"{text}\" is not a number")))
    }
}

pub(super) fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reads a topology or a graph.
pub(super) fn read(source: &Source, options: &Options) -> Result<Vec<Evidence>, TopologyError> {
    let parsing = ParsingOptions { allow_dtd: false, nodes_limit: MOST_NODES, ..ParsingOptions::default() };
    let text = source.text.trim_start_matches('\u{feff}').trim_start();
    // Places count from the start of the file.
    let skipped = source.text.len() - text.len();
    let lines = source.text.get(..skipped).map_or(0, |before| before.matches('\n').count());
    let document = Document::parse_with_options(text, parsing).map_err(|error| {
        // An end that comes too early has no place of its own: it is the end.
        let ends =
            matches!(error, roxmltree::Error::UnexpectedEndOfStream | roxmltree::Error::UnclosedRootNode | roxmltree::Error::NoRootNode);
        let last = text.lines().last().unwrap_or("");
        let end = roxmltree::TextPos::new(
            u32::try_from(text.lines().count().max(1)).unwrap_or(1),
            u32::try_from(last.chars().count() + 1).unwrap_or(1),
        );
        let at = if ends { end } else { error.pos() };
        let words = error.to_string();
        let message = words.split(" at ").next().unwrap_or(&words);
        source.error(at.row as usize + lines, at.col as usize, format!("not XML, or cut off: {message}"))
    })?;
    let xml = Xml { source, document: &document };
    let root = document.root_element();
    match root.tag_name().name() {
        "system" => Ok(vec![topology(&xml, root, options)?]),
        "graphs" => Ok(vec![nccl_graph::read(&xml, root)?]),
        other => Err(xml.error(root, format!("<{other}> is not NCCL's; accepted: <system> (topology), <graphs> (graph)"))),
    }
}

/// The version that NCCL writes and accepts.
pub(super) fn check_version(xml: &Xml<'_>, root: Node<'_, '_>) -> Result<(), TopologyError> {
    match root.attribute("version") {
        Some("1") | None => Ok(()),
        Some(other) => Err(xml.error(root, format!("version=\"{other}\"; accepted: 1"))),
    }
}

fn topology(xml: &Xml<'_>, root: Node<'_, '_>, options: &Options) -> Result<Evidence, TopologyError> {
    check_version(xml, root)?;
    let mut seen = Evidence::new(Kind::NcclTopology, xml.place(root));
    let mut reader = Reader { xml, options, seen: &mut seen, known: BTreeMap::new(), links: Vec::new(), detected: false };
    for cpu in elements(root) {
        match cpu.tag_name().name() {
            "cpu" => reader.cpu(cpu)?,
            // Adapters that NCCL found no place for.
            "nic" | "pci" => {}
            other => return Err(xml.error(cpu, format!("unknown element <{other}> in <system>; accepted: cpu"))),
        }
    }
    let (links, detected) = (std::mem::take(&mut reader.links), reader.detected);
    if seen.gpus.is_empty() {
        return Err(xml.error(root, "no GPU: neither a <gpu> nor a <pci> of class 0x0300 or 0x0302"));
    }
    if seen.gpus.len() > MOST_GPUS {
        return Err(xml.error(root, format!("{} GPUs; at most {MOST_GPUS} are read", seen.gpus.len())));
    }
    nvlinks(&mut seen, &links)?;
    if !detected {
        let text =
            "the file holds no <gpu> and no <nvlink>: it is a platform's hint for NCCL_TOPO_FILE, which leaves NVLink to be detected";
        seen.remarks.push(format!("{text} ({})", seen.place));
        if beside_adapters(root) {
            seen.nvlink = Some(seen.place.clone());
            seen.remarks.push(
                "every GPU has an InfiniBand adapter beside it on a switch, as on HGX boards: NVLink through NVSwitch is assumed"
                    .to_owned(),
            );
        }
    }
    Ok(seen)
}

fn elements<'a, 'i>(node: Node<'a, 'i>) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(Node::is_element)
}

/// Whether every GPU of a board of four or more shares its switch with an InfiniBand adapter of its own.
fn beside_adapters(root: Node<'_, '_>) -> bool {
    let is = |node: &Node<'_, '_>, prefix: &str| node.attribute("class").is_some_and(|class| class.starts_with(prefix));
    let gpus: Vec<Node<'_, '_>> = root.descendants().filter(|node| is(node, "0x0302")).collect();
    let beside =
        |gpu: &Node<'_, '_>| gpu.parent().is_some_and(|switch| is(&switch, "0x0604") && elements(switch).any(|n| is(&n, "0x0207")));
    gpus.len() >= 4 && gpus.iter().all(beside)
}

/// A NVLink of a GPU: to a GPU or a switch at an address.
struct LinkSeen {
    gpu: usize,
    target: BusId,
    to_gpu: bool,
    lanes: u8,
    place: Place,
}

struct Reader<'a, 'x> {
    xml: &'a Xml<'x>,
    options: &'a Options,
    seen: &'a mut Evidence,
    known: BTreeMap<BusId, Place>,
    links: Vec<LinkSeen>,
    /// Whether a `<gpu>` was found: NCCL writes them, platform files do not.
    detected: bool,
}

impl Reader<'_, '_> {
    fn cpu(&mut self, cpu: Node<'_, '_>) -> Result<(), TopologyError> {
        let numa = u32::try_from(
            self.xml
                .number(cpu, "numaid")
                .or_else(|error| if cpu.attribute("numaid") == Some("-1") { Ok(u64::MAX) } else { Err(error) })?,
        )
        .ok();
        let place = self.xml.place(cpu);
        if let Some(value) = cpu_family(cpu) {
            match &self.seen.cpu {
                Some(known) if known.value != value => {
                    let message = format!("this <cpu> is {}, but that at {} is {}", value.name(), known.place, known.value.name());
                    return Err(TopologyError::new(place, message));
                }
                _ => self.seen.cpu = Some(Told { value, place: place.clone() }),
            }
        }
        if self.seen.tree.len() >= MOST_PARTS {
            return Err(TopologyError::new(place, format!("more than {MOST_PARTS} CPUs")));
        }
        self.seen.tree.push(TreeNode { parent: None, part: Part::Numa(numa), link: None, place });
        let at = self.seen.tree.len() - 1;
        self.children(cpu, at, numa, 0)
    }

    fn children(&mut self, parent: Node<'_, '_>, at: usize, numa: Option<u32>, depth: usize) -> Result<(), TopologyError> {
        if depth > MOST_DEPTH {
            return Err(self.xml.error(parent, format!("nested deeper than {MOST_DEPTH}")));
        }
        for node in elements(parent) {
            match node.tag_name().name() {
                "pci" => self.pci(node, at, numa, depth)?,
                "nic" | "net" | "pcilink" => {}
                other => {
                    let message = format!("unknown element <{other}> in <{}>; accepted: pci, gpu, nic", parent.tag_name().name());
                    return Err(self.xml.error(node, message));
                }
            }
        }
        Ok(())
    }

    fn pci(&mut self, node: Node<'_, '_>, at: usize, numa: Option<u32>, depth: usize) -> Result<(), TopologyError> {
        let (xml, place) = (self.xml, self.xml.place(node));
        let text = xml.text(node, "busid")?;
        let Some(bus) = BusId::parse(text) else {
            return Err(xml.error(node, format!("busid=\"{text}\"; accepted: an address such as 0000:3b:00.0")));
        };
        if let Some(first) = self.known.insert(bus, place.clone()) {
            return Err(xml.error(node, format!("{bus} stands twice; first at {first}")));
        }
        let class = xml.text(node, "class")?;
        if parse_number(class).is_none() || !class.starts_with("0x") || class.len() < 6 {
            return Err(xml.error(node, format!("class=\"{class}\"; accepted: a PCI class such as 0x030200")));
        }
        let link = self.link(node, bus)?;
        let gpu = elements(node).find(|child| child.tag_name().name() == "gpu");
        let display = class.starts_with("0x0300") || class.starts_with("0x0302");
        let of_nvidia = node.attribute("vendor").is_none_or(|vendor| vendor == "0x10de");
        if gpu.is_some() || (display && of_nvidia) || self.options.gpu_at.contains(&bus) {
            return self.gpu(node, gpu, bus, link, at, numa);
        }
        if class.starts_with("0x0604") {
            let vendor = node.attribute("vendor").unwrap_or("");
            if vendor == "0x0000" || bus.domain == 0xffff {
                let text = format!("the bridge {bus} is made up: its address or vendor is of no hardware ({place})");
                self.seen.hidden.push(Sign::new(SignKind::MadeUpBridge, text));
            }
            let name = format!("{vendor}:{}", node.attribute("device").unwrap_or(""));
            let part =
                Part::Switch(SwitchSeen { name: names::switch_by_pci_id(&name).map_or(name, str::to_owned), ..SwitchSeen::default() });
            if self.seen.tree.len() >= MOST_PARTS {
                return Err(TopologyError::new(place, format!("more than {MOST_PARTS} switches")));
            }
            self.seen.tree.push(TreeNode { parent: Some(at), part, link, place });
            let at = self.seen.tree.len() - 1;
            return self.children(node, at, numa, depth + 1);
        }
        Ok(())
    }

    fn link(&mut self, node: Node<'_, '_>, bus: BusId) -> Result<Option<(u8, u8)>, TopologyError> {
        let (speed, width) = (node.attribute("link_speed").unwrap_or(""), node.attribute("link_width").unwrap_or(""));
        let rate = speed.split_whitespace().next().unwrap_or("");
        if rate.is_empty() || rate == "Unknown" || matches!(width, "" | "0" | "255") {
            if !speed.is_empty() || !width.is_empty() {
                let text = format!("{bus} reports no link rate ({})", self.xml.place(node));
                self.seen.hidden.push(Sign::new(SignKind::NoRate, text));
            }
            return Ok(None);
        }
        let Some(generation) = pci::generation(rate) else {
            return Err(self.xml.error(node, format!("link_speed=\"{speed}\"; accepted: 2.5, 5, 8, 16, 32, 64 GT/s")));
        };
        match width.parse() {
            Ok(lanes) if pci::is_width(lanes) => Ok(Some((generation, lanes))),
            _ => Err(self.xml.error(node, format!("link_width=\"{width}\"; accepted: 1, 2, 4, 8, 12, 16, 32"))),
        }
    }

    fn gpu(
        &mut self,
        pci: Node<'_, '_>,
        node: Option<Node<'_, '_>>,
        bus: BusId,
        link: Option<(u8, u8)>,
        at: usize,
        numa: Option<u32>,
    ) -> Result<(), TopologyError> {
        let place = self.xml.place(pci);
        let mut gpu = GpuSeen::at(place.clone());
        gpu.bus = Some(bus);
        gpu.link = link.map(|value| Told { value, place: place.clone() });
        gpu.numa = numa.map(|value| Told { value, place: place.clone() });
        let device = pci.attribute("device").and_then(parse_number).and_then(|id| u16::try_from(id).ok());
        gpu.model = device.filter(|id| *id != 0).map(|id| Told {
            value: names::gpu_by_pci_id(id).map_or_else(|| format!("10de:{id:04x}"), str::to_owned),
            place: place.clone(),
        });
        if bus.domain != 0 && (bus.bus, bus.device, bus.function) == (0, 0, 0) {
            let text = format!("the GPU {bus} is alone in a PCI domain of its own ({place})");
            self.seen.hidden.push(Sign::new(SignKind::NoBridge, text));
        }
        self.seen.gpus.push(gpu);
        let index = self.seen.gpus.len() - 1;
        self.seen.tree.push(TreeNode { parent: Some(at), part: Part::Gpu(index), link, place });
        let Some(node) = node else { return Ok(()) };
        self.detected = true;
        for child in elements(node) {
            match child.tag_name().name() {
                "nvlink" => {
                    let text = self.xml.text(child, "target")?;
                    let Some(target) = BusId::parse(text) else {
                        return Err(self.xml.error(child, format!("target=\"{text}\"; accepted: an address such as 0000:04:00.0")));
                    };
                    let lanes = self.xml.number(child, "count")?;
                    let Some(lanes) = u8::try_from(lanes).ok().filter(|lanes| (1..=MOST_LANES).contains(lanes)) else {
                        return Err(self.xml.error(child, format!("count=\"{lanes}\"; accepted: 1 to 64 lanes")));
                    };
                    let to_gpu = child.attribute("tclass").is_some_and(|class| class.starts_with("0x03"));
                    self.links.push(LinkSeen { gpu: index, target, to_gpu, lanes, place: self.xml.place(child) });
                }
                "c2c" => {}
                other => return Err(self.xml.error(child, format!("unknown element <{other}> in <gpu>; accepted: nvlink, c2c"))),
            }
        }
        Ok(())
    }
}

/// The CPU as NCCL classes it (`graph/topo.h`): vendor, and model number for Intel.
fn cpu_family(cpu: Node<'_, '_>) -> Option<CpuFamily> {
    if cpu.attribute("arch") == Some("arm64") {
        return Some(CpuFamily::Arm);
    }
    match cpu.attribute("vendor")? {
        "AuthenticAMD" => Some(CpuFamily::Amd),
        "GenuineIntel" => Some(match cpu.attribute("modelid").and_then(parse_number).unwrap_or(0) {
            0xcf.. => CpuFamily::IntelEmeraldRapids,
            0x8f.. => CpuFamily::IntelSapphireRapids,
            0x55.. => CpuFamily::IntelSkylake,
            _ => CpuFamily::IntelOther,
        }),
        _ => None,
    }
}

fn nvlinks(seen: &mut Evidence, links: &[LinkSeen]) -> Result<(), TopologyError> {
    let mut pairs: BTreeMap<(usize, usize), (u32, Place)> = BTreeMap::new();
    for link in links {
        let own = seen.gpus[link.gpu].bus;
        if link.to_gpu && own == Some(link.target) {
            let text = format!("NVLinks of the GPU {} lead to itself: their other end is hidden ({})", link.target, link.place);
            seen.hidden.push(Sign::new(SignKind::LostNvlink, text));
            continue;
        }
        if !link.to_gpu {
            let gpu = &mut seen.gpus[link.gpu];
            let lanes = gpu.switch_lanes.as_ref().map_or(0, |told| told.value).saturating_add(link.lanes);
            if lanes > MOST_LANES {
                return Err(TopologyError::new(link.place.clone(), format!("more than {MOST_LANES} NVLink lanes of one GPU")));
            }
            gpu.switch_lanes = Some(Told { value: lanes, place: link.place.clone() });
            continue;
        }
        match seen.gpus.iter().position(|gpu| gpu.bus == Some(link.target)) {
            Some(target) => {
                let entry = pairs.entry((link.gpu, target)).or_insert((0, link.place.clone()));
                entry.0 += u32::from(link.lanes);
            }
            None => seen.remarks.push(format!("an NVLink leads to {}, which is not in the file ({})", link.target, link.place)),
        }
    }
    for (&(a, b), (lanes, place)) in &pairs {
        if let Some((other, there)) = pairs.get(&(b, a))
            && other != lanes
        {
            let message = format!("asymmetric: {lanes} NVLink lanes this way, but {other} the other way ({there})");
            return Err(TopologyError::new(place.clone(), message));
        }
        let Some(value) = u8::try_from(*lanes).ok().filter(|lanes| *lanes <= MOST_LANES) else {
            return Err(TopologyError::new(place.clone(), format!("more than {MOST_LANES} NVLink lanes between two GPUs")));
        };
        seen.pair(a, b).nvlink = Some(Told { value, place: place.clone() });
    }
    Ok(())
}
