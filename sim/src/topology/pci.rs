//! PCI devices as a list, and the tree they form: what `lspci` prints and what a running machine's sysfs holds.

use super::evidence::{Evidence, GpuSeen, Part, Sign, SignKind, SwitchSeen, Told, TreeNode};
use super::names;
use super::{Kind, MOST_GPUS, Options, Place, TopologyError};
use crate::machine::CpuFamily;
use std::collections::BTreeMap;
use std::fmt;

/// Deepest chain of bridges followed.
const MOST_DEPTH: usize = 64;
/// Most devices of a list.
const MOST_DEVICES: usize = 16_384;

/// A device's address: domain, bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusId {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
    /// Function of the device.
    pub function: u8,
}

impl BusId {
    /// Reads `0000:3b:00.0`, `3b:00.0` or `3b:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let (place, function) = match text.split_once('.') {
            Some((place, function)) => (place, u8::from_str_radix(function, 16).ok()?),
            None => (text, 0),
        };
        let parts: Vec<&str> = place.split(':').collect();
        let (domain, bus, device) = match parts[..] {
            [domain, bus, device] => (u32::from_str_radix(domain, 16).ok()?, bus, device),
            [bus, device] => (0, bus, device),
            _ => return None,
        };
        let two = |text: &str| if text.len() == 2 { u8::from_str_radix(text, 16).ok() } else { None };
        let id = Self { domain, bus: two(bus)?, device: two(device)?, function };
        if id.device < 32 && id.function < 8 { Some(id) } else { None }
    }
    /// Whether both are functions of one device.
    pub fn same_device(self, other: Self) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }
}

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// What a PCI Express port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortType {
    /// Of a host bridge.
    Root,
    /// Of a switch, towards the host.
    Upstream,
    /// Of a switch, away from the host.
    Downstream,
    /// Anything else.
    Other,
}

/// A link as a device reports it: generation and lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSeen {
    /// What it is capable of.
    pub most: Option<(u8, u8)>,
    /// What it runs at now: idle GPUs fall back to the lowest generations to save power.
    pub now: Option<(u8, u8)>,
}

/// A device of a PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Address.
    pub address: BusId,
    /// Where it was listed.
    pub place: Place,
    /// Whether it is an NVIDIA GPU (its display or 3D function).
    pub is_gpu: bool,
    /// Vendor and device as words, for names.
    pub name: String,
    /// Name in the table of GPU models, where its ids or words tell.
    pub model: Option<String>,
    /// NUMA node.
    pub numa: Option<u32>,
    /// Its link towards the host.
    pub link: LinkSeen,
    /// Port type.
    pub port: Option<PortType>,
    /// Bus behind it, of a bridge.
    pub secondary: Option<u8>,
    /// Whether access control redirects requests between peers towards the root.
    pub acs: Option<bool>,
    /// Serial number of the chip.
    pub serial: Option<String>,
}

impl PciDevice {
    /// A device of which only the address is known.
    pub fn at(address: BusId, place: Place) -> Self {
        Self {
            address,
            place,
            is_gpu: false,
            name: String::new(),
            model: None,
            numa: None,
            link: LinkSeen::default(),
            port: None,
            secondary: None,
            acs: None,
            serial: None,
        }
    }
}

/// The generation of a rate in GT/s.
pub(super) fn generation(gigatransfers: &str) -> Option<u8> {
    match gigatransfers {
        "2.5" => Some(1),
        "5" | "5.0" => Some(2),
        "8" | "8.0" => Some(3),
        "16" | "16.0" => Some(4),
        "32" | "32.0" => Some(5),
        "64" | "64.0" => Some(6),
        _ => None,
    }
}

/// Lane counts that exist.
pub(super) fn is_width(lanes: u8) -> bool {
    matches!(lanes, 1 | 2 | 4 | 8 | 12 | 16 | 32)
}

/// A list of devices with the bridges between them found.
struct Devices {
    all: Vec<PciDevice>,
    /// The bridge a bus is behind.
    bridge_of: BTreeMap<(u32, u8), usize>,
}

impl Devices {
    fn new(all: Vec<PciDevice>) -> Result<Self, TopologyError> {
        let mut bridge_of = BTreeMap::new();
        let mut known: BTreeMap<BusId, usize> = BTreeMap::new();
        for (index, device) in all.iter().enumerate() {
            if let Some(&first) = known.get(&device.address) {
                let message = format!("{} is listed twice; first at {}", device.address, all[first].place);
                return Err(TopologyError::new(device.place.clone(), message));
            }
            known.insert(device.address, index);
            // Bus 0 is behind nothing: a bridge that says so was never configured.
            if let Some(bus) = device.secondary.filter(|bus| *bus != 0)
                && let Some(other) = bridge_of.insert((device.address.domain, bus), index)
            {
                let message =
                    format!("bus {bus:02x} is behind {} and behind {} ({})", device.address, all[other].address, all[other].place);
                return Err(TopologyError::new(device.place.clone(), message));
            }
        }
        Ok(Self { all, bridge_of })
    }

    fn parent(&self, device: usize) -> Option<usize> {
        let address = self.all[device].address;
        self.bridge_of.get(&(address.domain, address.bus)).copied()
    }

    /// Bridges above a device, the root's first.
    fn bridges(&self, device: usize) -> Result<Vec<usize>, TopologyError> {
        let mut out = Vec::new();
        let mut at = device;
        while let Some(parent) = self.parent(at) {
            if out.contains(&parent) || parent == device || out.len() >= MOST_DEPTH {
                let bridge = &self.all[parent];
                return Err(TopologyError::new(bridge.place.clone(), format!("a cycle: the bridge {} is behind itself", bridge.address)));
            }
            out.push(parent);
            at = parent;
        }
        out.reverse();
        Ok(out)
    }

    /// Of bridges from the root down, those that are a switch's upstream port.
    fn switches(&self, bridges: &[usize]) -> Vec<usize> {
        let depth = |position: usize| position % 2 == 1;
        let is_upstream = |(position, &bridge): (usize, &usize)| match self.all[bridge].port {
            Some(PortType::Upstream) => Some(bridge),
            Some(_) => None,
            // Root port, upstream, downstream, upstream, downstream: without port types the depth tells.
            None => depth(position).then_some(bridge),
        };
        bridges.iter().enumerate().filter_map(is_upstream).collect()
    }
}

/// A link between two ends: the lesser width, and the lesser generation they are capable of unless it runs faster than an idle one.
fn link_between(lower: &LinkSeen, upper: Option<&LinkSeen>) -> (Option<(u8, u8)>, bool) {
    let ends: Vec<&LinkSeen> = std::iter::once(lower).chain(upper).collect();
    let most = ends.iter().filter_map(|end| end.most).map(|most| most.0).min();
    let now = ends.iter().filter_map(|end| end.now).map(|now| now.0).min();
    let lanes = ends.iter().filter_map(|end| end.now.or(end.most)).map(|link| link.1).filter(|lanes| is_width(*lanes)).min();
    let idle = matches!((now, most), (Some(now), Some(most)) if now < most && now <= 2);
    let generation = if idle { most } else { now.or(most) };
    (generation.zip(lanes), idle)
}

/// The tree of the GPUs among devices.
pub(super) fn evidence(kind: Kind, place: Place, devices: Vec<PciDevice>, options: &Options) -> Result<Evidence, TopologyError> {
    if devices.len() > MOST_DEVICES {
        return Err(TopologyError::new(place, format!("{} devices; at most {MOST_DEVICES} are read", devices.len())));
    }
    let mut devices = devices;
    for wanted in &options.gpu_at {
        if let Some(device) = devices.iter_mut().find(|device| device.address == *wanted) {
            device.is_gpu = true;
        }
    }
    devices.sort_by_key(|device| device.address);
    let devices = Devices::new(devices)?;
    let gpus: Vec<usize> = (0..devices.all.len()).filter(|index| devices.all[*index].is_gpu).collect();
    if gpus.len() > MOST_GPUS {
        return Err(TopologyError::new(place, format!("{} GPUs; at most {MOST_GPUS} are read", gpus.len())));
    }
    let mut seen = Evidence::new(kind, place);
    seen.cpu = cpu(&devices.all);
    let mut grower = Grower { devices: &devices, seen: &mut seen, nodes: BTreeMap::new(), idle: 0 };
    for &gpu in &gpus {
        grower.gpu(gpu)?;
    }
    let idle = grower.idle;
    if idle > 0 {
        seen.remarks
            .push(format!("{idle} GPU links are idle and run slower than they can: taken at the generation both ends are capable of"));
    }
    seen.hidden.extend(virtual_devices(&devices.all));
    Ok(seen)
}

/// What a tree node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Numa(Option<u32>),
    Root(u32, u8),
    Bridge(usize),
}

struct Grower<'a> {
    devices: &'a Devices,
    seen: &'a mut Evidence,
    nodes: BTreeMap<Key, usize>,
    idle: usize,
}

impl Grower<'_> {
    fn node(&mut self, key: Key, parent: Option<usize>, part: Part, link: Option<(u8, u8)>, place: &Place) -> usize {
        if let Some(&known) = self.nodes.get(&key) {
            return known;
        }
        self.seen.tree.push(TreeNode { parent, part, link, place: place.clone() });
        self.nodes.insert(key, self.seen.tree.len() - 1);
        self.seen.tree.len() - 1
    }

    fn link(&mut self, device: usize, above: Option<usize>) -> Option<(u8, u8)> {
        let (link, idle) = link_between(&self.devices.all[device].link, above.map(|bridge| &self.devices.all[bridge].link));
        self.idle += usize::from(idle && self.devices.all[device].is_gpu);
        link
    }

    fn gpu(&mut self, index: usize) -> Result<(), TopologyError> {
        let bridges = self.devices.bridges(index)?;
        let device = &self.devices.all[index];
        let top = &self.devices.all[bridges.first().copied().unwrap_or(index)];
        let numa = device.numa.or_else(|| bridges.iter().rev().find_map(|bridge| self.devices.all[*bridge].numa)).or(top.numa);
        let mut at = self.node(Key::Numa(numa), None, Part::Numa(numa), None, &top.place);
        at = self.node(Key::Root(top.address.domain, top.address.bus), Some(at), Part::Host, None, &top.place);
        let mut above = bridges.first().copied().filter(|first| !self.devices.switches(&bridges).contains(first));
        for switch in self.devices.switches(&bridges) {
            let link = self.link(switch, above.filter(|port| *port != switch));
            let part = Part::Switch(self.switch(switch));
            at = self.node(Key::Bridge(switch), Some(at), part, link, &self.devices.all[switch].place);
            // The port of this switch that leads on.
            above = bridges.iter().copied().find(|bridge| self.devices.parent(*bridge) == Some(switch));
        }
        let link = self.link(index, bridges.last().copied());
        let mut gpu = GpuSeen::at(device.place.clone());
        gpu.bus = Some(device.address);
        gpu.model = device.model.clone().map(|value| Told { value, place: device.place.clone() });
        gpu.numa = numa.map(|value| Told { value, place: device.place.clone() });
        gpu.link = link.map(|value| Told { value, place: device.place.clone() });
        if bridges.is_empty() && device.port != Some(PortType::Other) {
            let address = device.address;
            let text = format!("the GPU {address} sits on a root bus without a root port above it ({})", device.place);
            self.seen.hidden.push(Sign::new(SignKind::NoBridge, text));
        }
        self.seen.gpus.push(gpu);
        let part = Part::Gpu(self.seen.gpus.len() - 1);
        self.seen.tree.push(TreeNode { parent: Some(at), part, link, place: device.place.clone() });
        Ok(())
    }

    /// A switch redirects if a port of it that leads to a GPU does.
    fn switch(&self, upstream: usize) -> SwitchSeen {
        let ports = self.devices.all.iter().enumerate().filter(|(index, _)| self.devices.parent(*index) == Some(upstream));
        let acs: Vec<bool> = ports.filter(|(_, port)| self.leads_to_gpu(port)).filter_map(|(_, port)| port.acs).collect();
        let device = &self.devices.all[upstream];
        SwitchSeen {
            name: device.name.clone(),
            serial: device.serial.clone(),
            acs: if acs.is_empty() { None } else { Some(acs.contains(&true)) },
        }
    }

    fn leads_to_gpu(&self, port: &PciDevice) -> bool {
        let Some(bus) = port.secondary else { return false };
        self.devices.all.iter().any(|device| device.is_gpu && device.address.domain == port.address.domain && device.address.bus == bus)
    }
}

/// The CPU's family from its host bridges.
fn cpu(devices: &[PciDevice]) -> Option<Told<CpuFamily>> {
    let fast = |device: &PciDevice| device.port == Some(PortType::Root) && device.link.most.is_some_and(|most| most.0 >= 5);
    let gen5 = devices.iter().any(fast);
    // `lspci -tv` has no classes: the first function of a root bus is its host bridge.
    let first = |device: &PciDevice| (device.address.bus, device.address.device, device.address.function) == (0, 0, 0);
    let bridge = |device: &&PciDevice| {
        device.port == Some(PortType::Root)
            || first(device)
            || ["Host bridge", "Root Complex"].iter().any(|word| device.name.contains(word))
    };
    devices.iter().filter(bridge).find_map(|device| {
        let value = names::cpu_by_words(&device.name, gen5)?;
        Some(Told { value, place: device.place.clone() })
    })
}

/// Devices that only a virtual machine has.
fn virtual_devices(devices: &[PciDevice]) -> Vec<Sign> {
    const WORDS: [&str; 7] = ["QEMU", "Virtio", "Red Hat", "VMware", "Hyper-V", "XenSource", "440FX"];
    let sign = |word: &&str| devices.iter().find(|device| device.name.contains(*word));
    let text = |device: &PciDevice| format!("{} is a virtual machine's: {} ({})", device.address, device.name, device.place);
    WORDS.iter().find_map(sign).map(|device| Sign::new(SignKind::VirtualDevice, text(device))).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_and_print() {
        for (text, shown) in
            [("3b:00.0", "0000:3b:00.0"), ("0001:00:00.0", "0001:00:00.0"), ("00000000:C1:00.1", "0000:c1:00.1"), ("0a:1f", "0000:0a:1f.0")]
        {
            assert_eq!(BusId::parse(text).map(|id| id.to_string()).as_deref(), Some(shown));
        }
        for wrong in ["", "3b", "3:00.0", "3b:20.0", "3b:00.8", "zz:00.0", "a:b:c:d"] {
            assert_eq!(BusId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_idle_link_is_what_it_can_be_and_a_narrow_one_is_what_it_is() {
        let seen = |most, now| LinkSeen { most: Some(most), now: Some(now) };
        assert_eq!(link_between(&seen((5, 16), (1, 16)), Some(&seen((5, 16), (1, 16)))), (Some((5, 16)), true));
        assert_eq!(link_between(&seen((5, 16), (1, 8)), Some(&seen((4, 16), (1, 8)))), (Some((4, 8)), true));
        assert_eq!(link_between(&seen((5, 16), (3, 16)), Some(&seen((5, 16), (3, 16)))), (Some((3, 16)), false));
        assert_eq!(link_between(&LinkSeen::default(), None), (None, false));
    }
}
