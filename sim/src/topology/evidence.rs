//! What one file says of a machine, each thing with the place that says it.

use super::matrix::ClassMatrix;
use super::pci::BusId;
use super::{Kind, Place};
use crate::machine::{CpuFamily, PathClass};
use std::collections::BTreeMap;

/// Something said, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// The PCIe path classes that two GPUs may have to each other: a file may leave several open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classes(u8);

impl Classes {
    /// PCIe classes, nearest first.
    pub(super) const PCIE: [PathClass; 5] = [PathClass::Pix, PathClass::Pxb, PathClass::Phb, PathClass::Node, PathClass::Sys];

    pub(super) fn of(classes: &[PathClass]) -> Self {
        Self(classes.iter().fold(0, |bits, class| bits | Self::bit(*class)))
    }
    pub(super) fn any() -> Self {
        Self::of(&Self::PCIE)
    }
    /// From `near` to `far`, both included.
    pub(super) fn range(near: PathClass, far: PathClass) -> Self {
        Self(Self::PCIE.iter().filter(|class| **class >= near && **class <= far).fold(0, |bits, class| bits | Self::bit(*class)))
    }
    fn bit(class: PathClass) -> u8 {
        Self::PCIE.iter().position(|other| *other == class).map_or(0, |index| 1 << index)
    }
    pub(super) fn bits(self) -> u8 {
        self.0
    }
    pub(super) fn from_bits(bits: u8) -> Self {
        Self(bits & Self::any().0)
    }
    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub(super) fn iter(self) -> impl Iterator<Item = PathClass> {
        Self::PCIE.into_iter().filter(move |class| self.0 & Self::bit(*class) != 0)
    }
    /// The only class left.
    pub(super) fn single(self) -> Option<PathClass> {
        let mut all = self.iter();
        all.next().filter(|_| all.next().is_none())
    }
    pub(super) fn nearest(self) -> Option<PathClass> {
        self.iter().next()
    }
    pub(super) fn farthest(self) -> Option<PathClass> {
        self.iter().last()
    }
    /// `PIX`, or `PHB or NODE`.
    pub(super) fn words(self) -> String {
        self.iter().map(PathClass::name).collect::<Vec<_>>().join(" or ")
    }
}

/// A GPU as a file shows it.
#[derive(Clone, Debug)]
pub(super) struct GpuSeen {
    pub(super) place: Place,
    pub(super) bus: Option<BusId>,
    /// Name in the table of models, or the words that the file has for it.
    pub(super) model: Option<Told<String>>,
    pub(super) numa: Option<Told<u32>>,
    /// CPUs near it, as listed.
    pub(super) cpus: Option<Told<String>>,
    /// PCIe generation and lanes.
    pub(super) link: Option<Told<(u8, u8)>>,
    /// NVLink lanes to an NVSwitch.
    pub(super) switch_lanes: Option<Told<u8>>,
}

impl GpuSeen {
    pub(super) fn at(place: Place) -> Self {
        Self { place, bus: None, model: None, numa: None, cpus: None, link: None, switch_lanes: None }
    }
}

/// What is between two GPUs, by index in the file's order, the lower first.
#[derive(Clone, Debug, Default)]
pub(super) struct PairSeen {
    pub(super) classes: Option<Told<Classes>>,
    pub(super) nvlink: Option<Told<u8>>,
}

/// A part of the tree that a file shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A NUMA node, where the file tells.
    Numa(Option<u32>),
    /// A host bridge: a root bus with its root ports.
    Host,
    /// A switch, or a virtual one of a chip.
    Switch(SwitchSeen),
    /// A GPU, by index.
    Gpu(usize),
}

/// A switch as a file shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SwitchSeen {
    /// The chip's name, where the file has one.
    pub(super) name: String,
    /// Serial number of the chip: virtual switches of one chip share it.
    pub(super) serial: Option<String>,
    /// Whether access control sends traffic up.
    pub(super) acs: Option<bool>,
}

/// A node of the tree; parents come first.
#[derive(Clone, Debug)]
pub(super) struct TreeNode {
    pub(super) parent: Option<usize>,
    pub(super) part: Part,
    /// Generation and lanes of the link to the parent.
    pub(super) link: Option<(u8, u8)>,
    pub(super) place: Place,
}

/// A sign that a virtual machine hides the topology; of one kind only the first is shown, with the number of the others.
#[derive(Clone, Debug)]
pub(super) struct Sign {
    pub(super) kind: SignKind,
    pub(super) text: String,
}

/// What a sign is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignKind {
    /// A bridge that no hardware has.
    MadeUpBridge,
    /// A GPU alone in a PCI domain or without a root port.
    NoBridge,
    /// A link without a rate.
    NoRate,
    /// A device of a hypervisor.
    VirtualDevice,
    /// NVLinks that lead nowhere.
    LostNvlink,
    /// A GPU near several NUMA nodes.
    NoNuma,
    /// Classes that fit no hardware.
    Classes,
}

impl Sign {
    pub(super) fn new(kind: SignKind, text: String) -> Self {
        Self { kind, text }
    }
}

/// Which way a matrix of rates was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    One,
    Both,
}

/// Rates between GPUs, by index in the file's order: from, to, 10^6 bytes per second.
#[derive(Clone, Debug)]
pub(super) struct RateMatrix {
    pub(super) place: Place,
    pub(super) direction: Direction,
    /// Whether peer access was on; `None` where the file does not say.
    pub(super) peer: Option<bool>,
    pub(super) rates: BTreeMap<(usize, usize), u64>,
}

/// Everything one tool's output says.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    pub(super) kind: Kind,
    pub(super) place: Place,
    pub(super) gpus: Vec<GpuSeen>,
    /// Whether these are all GPUs; a log may run on some.
    pub(super) all_gpus: bool,
    pub(super) pairs: BTreeMap<(usize, usize), PairSeen>,
    pub(super) tree: Vec<TreeNode>,
    pub(super) rates: Vec<RateMatrix>,
    /// Classes that are likely where nothing else says: a ring's farthest hop, clusters of like rates.
    pub(super) guess: Option<ClassMatrix>,
    /// GPUs are joined by NVLink in a way that is not shown.
    pub(super) nvlink: Option<Place>,
    pub(super) cpu: Option<Told<CpuFamily>>,
    pub(super) peer_access: Option<Told<bool>>,
    pub(super) p2p_level: Option<Told<PathClass>>,
    /// Signs that a virtual machine hides the topology.
    pub(super) hidden: Vec<Sign>,
    /// What the reader took for granted.
    pub(super) remarks: Vec<String>,
    /// Words in which a GPU's name may be found: comments.
    pub(super) hints: Vec<Told<String>>,
}

impl Evidence {
    pub(super) fn new(kind: Kind, place: Place) -> Self {
        Self {
            kind,
            place,
            gpus: Vec::new(),
            all_gpus: true,
            pairs: BTreeMap::new(),
            tree: Vec::new(),
            rates: Vec::new(),
            guess: None,
            nvlink: None,
            cpu: None,
            peer_access: None,
            p2p_level: None,
            hidden: Vec::new(),
            remarks: Vec::new(),
            hints: Vec::new(),
        }
    }
    /// The pair of two different GPUs.
    pub(super) fn pair(&mut self, a: usize, b: usize) -> &mut PairSeen {
        self.pairs.entry((a.min(b), a.max(b))).or_default()
    }
}
