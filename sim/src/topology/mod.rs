//! From what tools print about a machine to a described machine.
//!
//! Each file is read by content: `nvidia-smi topo -m`, NCCL's topology and graph XML, `lspci`, `p2pBandwidthLatencyTest`, nccl-tests logs.
//! Every reader says what it saw as [`evidence`](self) with the place it saw it at. Evidence of several files is joined, and what
//! contradicts names both places. What no file says is assumed, and the machine says so.

mod assemble;
mod evidence;
mod hidden;
mod kin;
mod log;
mod lspci;
mod lspci_tree;
mod matrix;
mod merge;
mod names;
mod nccl_graph;
mod nccl_xml;
mod p2p;
mod pci;
mod shape;
mod smi;
mod text;
mod wires;

pub use names::{gpu_by_pci_id, gpu_by_words};
pub use pci::{BusId, LinkSeen, PciDevice, PortType};
pub use smi::print as print_topo;
pub use text::Source;

use crate::machine::{CpuFamily, GpuModel, Machine, PathClass};
use evidence::Evidence;
use std::fmt;

/// Longest text read: `lspci -vvv` of a large server has three megabytes.
pub const MOST_BYTES: usize = 16 << 20;
/// Most GPUs of a machine that is read: one box.
const MOST_GPUS: usize = 64;

/// Where something was said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, as it was called.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: line {}, column {}", self.file, self.line, self.column)
    }
}

/// Why files do not give a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct TopologyError {
    /// Where.
    pub place: Place,
    /// What is wrong there, and what would be right. A contradiction names the other place too.
    pub message: String,
}

impl TopologyError {
    fn new(place: Place, message: impl Into<String>) -> Self {
        Self { place, message: message.into() }
    }
}

/// The tools whose output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `nvidia-smi topo -m` or `-mp`.
    SmiTopo,
    /// NCCL's topology XML (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_FILE`).
    NcclTopology,
    /// NCCL's graph XML (`NCCL_GRAPH_DUMP_FILE`).
    NcclGraph,
    /// `lspci -vv`.
    Lspci,
    /// `lspci -tv`.
    LspciTree,
    /// `p2pBandwidthLatencyTest`, or a matrix laid out like its.
    P2pTest,
    /// nccl-tests.
    NcclTests,
    /// The running machine's PCI devices.
    Bus,
}

impl Kind {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::SmiTopo => "nvidia-smi topo -m",
            Kind::NcclTopology => "NCCL topology XML",
            Kind::NcclGraph => "NCCL graph XML",
            Kind::Lspci => "lspci -vv",
            Kind::LspciTree => "lspci -tv",
            Kind::P2pTest => "p2pBandwidthLatencyTest",
            Kind::NcclTests => "nccl-tests",
            Kind::Bus => "PCI devices of the running machine",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the user knows better than the files; each replaces an assumption.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of the machine.
    pub name: Option<String>,
    /// GPU models: one for all, or one for each ordinal.
    pub gpus: Vec<GpuModel>,
    /// CPU family.
    pub cpu: Option<CpuFamily>,
    /// CPU sockets.
    pub sockets: Option<u32>,
    /// PCIe generation and lanes of links that no file states.
    pub pcie: Option<(u8, u8)>,
    /// NVLink lanes from every GPU to an NVSwitch fabric.
    pub nvlink: Option<u8>,
    /// Whether GPUs reach each other's memory.
    pub peer_access: Option<bool>,
    /// The farthest path over which NCCL uses peer access.
    pub p2p_level: Option<PathClass>,
    /// Switches, by number, that are virtual switches of one chip.
    pub same_chip: Vec<Vec<u32>>,
    /// Bus addresses of the GPUs, where a file shows devices without names.
    pub gpu_at: Vec<BusId>,
    /// Leave out defects that switches of a kind are known for.
    pub without_known_defects: bool,
}

/// A machine made from files.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The machine; what was assumed is in its assumptions.
    pub machine: Machine,
    /// What each file was taken for.
    pub sources: Vec<(String, Vec<Kind>)>,
    /// Signs that a virtual machine hides the topology; empty where there are none.
    pub hidden: Vec<String>,
}

/// Reads files and joins what they say to one machine.
///
/// # Errors
/// If a file is of no known kind, is cut off or contradicts itself, if two files contradict each other, or if together they do not say
/// how many GPUs there are.
pub fn import(sources: &[Source], options: &Options) -> Result<Imported, TopologyError> {
    finish(Vec::new(), Vec::new(), sources, options)
}

/// Makes a machine of PCI devices that were listed elsewhere, and of files that refine it.
///
/// # Errors
/// As [`import`]; also if no device is a GPU.
pub fn from_devices(label: &str, devices: Vec<PciDevice>, sources: &[Source], options: &Options) -> Result<Imported, TopologyError> {
    let place = Place { file: label.to_owned(), line: 1, column: 1 };
    let all = vec![pci::evidence(Kind::Bus, place, devices, options)?];
    finish(all, vec![(label.to_owned(), vec![Kind::Bus])], sources, options)
}

/// The machine of what is known already, `kinds` by label, and of files.
fn finish(
    mut all: Vec<Evidence>,
    mut kinds: Vec<(String, Vec<Kind>)>,
    sources: &[Source],
    options: &Options,
) -> Result<Imported, TopologyError> {
    for source in sources {
        let found = read(source, options)?;
        kinds.push((source.label.clone(), found.iter().map(|evidence| evidence.kind).collect()));
        all.extend(found);
    }
    let merged = merge::merge(all)?;
    let hidden = hidden::signs(&merged);
    let machine = assemble::machine(merged, &hidden, options)?;
    Ok(Imported { machine, sources: kinds, hidden })
}

/// Everything that one file says; a paste may hold the output of several tools.
fn read(source: &Source, options: &Options) -> Result<Vec<Evidence>, TopologyError> {
    let text = &source.text;
    if text.len() > MOST_BYTES {
        return Err(source.error(1, 1, format!("{} bytes; at most {MOST_BYTES} are read", text.len())));
    }
    if text.trim_start_matches('\u{feff}').trim_start().starts_with('<') {
        return nccl_xml::read(source, options);
    }
    let lines = text::lines(text);
    let mut found = Vec::new();
    found.extend(smi::read(source, &lines)?);
    found.extend(lspci::read(source, &lines, options)?);
    found.extend(lspci_tree::read(source, &lines, options)?);
    found.extend(p2p::read(source, &lines)?);
    // A log's banner may stand above any of these; alone it must be a log.
    found.extend(log::read(source, &lines)?);
    if found.is_empty() {
        return Err(unknown(source, &lines));
    }
    Ok(found)
}

/// Says what a text is not, and what it seems to be where that is known.
fn unknown(source: &Source, lines: &[text::Line]) -> TopologyError {
    const READ: &str =
        "read are: nvidia-smi topo -m, NCCL topology or graph XML, lspci -vv, lspci -tv, p2pBandwidthLatencyTest, nccl-tests logs";
    let first = lines.iter().find(|line| !line.text.trim().is_empty());
    let Some(first) = first else { return source.error(1, 1, format!("it is empty; {READ}")) };
    if first.text.trim_start().starts_with('{') {
        return source.error(first.number, 1, "JSON: a machine file is given to --machine or `machine show`, not imported");
    }
    let flows = lines.iter().find(|line| line.text.contains("GB/s") || line.text.contains("Bandwidth"));
    if let Some(line) = flows {
        let message = "rates of flows in words, but no matrix of GPU by GPU, which is what p2pBandwidthLatencyTest prints: \
                       between which GPUs each rate was measured is not told in a form that can be read";
        return source.error(line.number, 1, message);
    }
    source.error(first.number, 1, format!("not the output of a tool that is known; {READ}"))
}
