//! PCI devices as Linux shows them in sysfs, below a root that can be any folder.

use moetwin::sim::topology::{BusId, LinkSeen, PciDevice, Place, PortType, gpu_by_pci_id};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// Below the root.
pub(super) const DEVICES: &str = "bus/pci/devices";
/// Most devices read.
const MOST_DEVICES: usize = 16_384;
/// A device's whole configuration space; users other than root see 64 bytes.
const CONFIG_BYTES: u64 = 4096;

/// Reads every device.
///
/// # Errors
/// If the folder cannot be read, in words.
pub(super) fn read(sys: &Path) -> Result<Vec<PciDevice>, String> {
    let folder = sys.join(DEVICES);
    let entries = fs::read_dir(&folder).map_err(|e| format!("no NVIDIA GPU can be looked for: {}: {e}", folder.display()))?;
    let mut devices = Vec::new();
    for entry in entries.flatten().take(MOST_DEVICES) {
        let name = entry.file_name();
        let Some(address) = name.to_str().and_then(BusId::parse) else { continue };
        devices.push(device(&entry.path(), address));
    }
    devices.sort_by_key(|device| device.address);
    Ok(devices)
}

/// A short text attribute.
fn attribute(folder: &Path, name: &str) -> Option<String> {
    let mut text = String::new();
    File::open(folder.join(name)).ok()?.take(256).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

/// `0x10de`.
fn hex(folder: &Path, name: &str) -> Option<u32> {
    attribute(folder, name).and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok())
}

/// Generation and lanes of `32.0 GT/s PCIe` and `16`; nothing for a link that is down.
fn link(folder: &Path, which: &str) -> Option<(u8, u8)> {
    let speed = attribute(folder, &format!("{which}_link_speed"))?;
    let generation = match speed.split_whitespace().next()? {
        "2.5" => 1,
        "5.0" | "5" => 2,
        "8.0" | "8" => 3,
        "16.0" | "16" => 4,
        "32.0" | "32" => 5,
        "64.0" | "64" => 6,
        _ => return None,
    };
    let lanes = attribute(folder, &format!("{which}_link_width"))?.parse().ok()?;
    matches!(lanes, 1 | 2 | 4 | 8 | 12 | 16 | 32).then_some((generation, lanes))
}

/// Vendors whose devices tell the CPU, or that the machine is virtual.
fn vendor(id: u32) -> &'static str {
    match id {
        0x1022 => "Advanced Micro Devices, Inc. [AMD]",
        0x8086 => "Intel Corporation",
        0x1def => "Ampere Computing",
        0x10de => "NVIDIA Corporation",
        0x1b36 => "Red Hat, Inc. (QEMU)",
        0x1af4 => "Red Hat, Inc. (Virtio)",
        0x15ad => "VMware",
        0x1414 => "Microsoft (Hyper-V)",
        0x5853 => "XenSource",
        0x1000 => "Broadcom / LSI",
        _ => "",
    }
}

fn device(folder: &Path, address: BusId) -> PciDevice {
    let place = Place { file: folder.to_string_lossy().into_owned(), line: 1, column: 1 };
    let mut device = PciDevice::at(address, place);
    let (class, vendor_id, device_id) =
        (hex(folder, "class").unwrap_or(0), hex(folder, "vendor").unwrap_or(0), hex(folder, "device").unwrap_or(0));
    let kind = match class >> 8 {
        0x0600 => "Host bridge",
        0x0604 => "PCI bridge",
        0x0300 | 0x0302 => "GPU",
        _ => "Device",
    };
    device.name = format!("{kind}: {} {vendor_id:04x}:{device_id:04x}", vendor(vendor_id));
    if vendor_id == 0x1000 && matches!(device_id, 0xc030 | 0xc034) {
        device.name.push_str(" PEX890xx");
    }
    device.is_gpu = vendor_id == 0x10de && matches!(class >> 8, 0x0300 | 0x0302);
    if device.is_gpu {
        let id = u16::try_from(device_id).ok().and_then(gpu_by_pci_id);
        device.model = Some(id.map_or_else(|| format!("10de:{device_id:04x}"), str::to_owned));
    }
    device.numa = attribute(folder, "numa_node").and_then(|text| text.parse().ok());
    device.link = LinkSeen { most: link(folder, "max"), now: link(folder, "current") };
    if class >> 8 == 0x0604 {
        device.secondary = attribute(folder, "secondary_bus_number").and_then(|text| text.parse().ok());
    }
    let mut config = Vec::new();
    if let Ok(file) = File::open(folder.join("config")) {
        file.take(CONFIG_BYTES).read_to_end(&mut config).ok();
    }
    let config = Config(config);
    device.port = config.port();
    device.acs = config.redirects();
    device.serial = config.serial();
    if kind == "PCI bridge" && device.secondary.is_none() {
        device.secondary = config.byte(0x19).filter(|bus| *bus != 0);
    }
    device
}

/// Configuration space, as far as it can be read.
struct Config(Vec<u8>);

impl Config {
    fn byte(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }
    fn word(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte(at)?, self.byte(at + 1)?]))
    }
    fn double(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes([self.byte(at)?, self.byte(at + 1)?, self.byte(at + 2)?, self.byte(at + 3)?]))
    }

    /// The port type in the PCI Express capability (PCI Express Base Specification, 7.5.3.2).
    fn port(&self) -> Option<PortType> {
        let mut at = usize::from(self.byte(0x34)?);
        // Each capability has four bytes at least: more steps would be a circle.
        for _ in 0..48 {
            if at < 0x40 {
                return None;
            }
            if self.byte(at)? == 0x10 {
                return Some(match self.word(at + 2)? >> 4 & 0xf {
                    4 => PortType::Root,
                    5 => PortType::Upstream,
                    6 => PortType::Downstream,
                    _ => PortType::Other,
                });
            }
            at = usize::from(self.byte(at + 1)?);
        }
        None
    }

    /// An extended capability's place.
    fn extended(&self, id: u32) -> Option<usize> {
        let mut at = 0x100;
        for _ in 0..960 {
            let header = self.double(at)?;
            if header & 0xffff == id {
                return Some(at);
            }
            at = (header >> 20) as usize;
            if at < 0x100 {
                return None;
            }
        }
        None
    }

    /// Whether access control redirects requests or completions between peers (7.7.11.3: bits 2 and 3).
    fn redirects(&self) -> Option<bool> {
        let at = self.extended(0x000d)?;
        Some(self.word(at + 6)? & 0b1100 != 0)
    }

    /// The device serial number (7.9.3).
    fn serial(&self) -> Option<String> {
        let at = self.extended(0x0003)?;
        let (low, high) = (self.double(at + 4)?, self.double(at + 8)?);
        (low != 0 || high != 0).then(|| format!("{high:08x}{low:08x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(capability: &[(usize, &[u8])]) -> Config {
        let mut bytes = vec![0u8; 4096];
        for (at, data) in capability {
            bytes[*at..*at + data.len()].copy_from_slice(data);
        }
        Config(bytes)
    }

    #[test]
    fn ports_access_control_and_serials_are_read_from_configuration_space() {
        let switch = config(&[
            (0x34, &[0x40]),
            (0x40, &[0x01, 0x68, 0, 0]),
            (0x68, &[0x10, 0x00, 0x62, 0x01]),
            (0x100, &[0x03, 0x00, 0x01, 0x20, 1, 2, 3, 4, 5, 6, 7, 8]),
            (0x200, &[0x0d, 0x00, 0x01, 0x00, 0xff, 0xff, 0x1d, 0x00]),
        ]);
        assert_eq!(switch.port(), Some(PortType::Downstream));
        assert_eq!((switch.redirects(), switch.serial().as_deref()), (Some(true), Some("0807060504030201")));
        let off = config(&[(0x100, &[0x0d, 0x00, 0x01, 0x00, 0xff, 0xff, 0x11, 0x00])]);
        assert_eq!((off.redirects(), off.port(), off.serial()), (Some(false), None, None));
        // A circle of capabilities, and what other users may read.
        assert_eq!(config(&[(0x34, &[0x40]), (0x40, &[0x01, 0x40])]).port(), None);
        assert_eq!(Config(vec![0; 64]).redirects(), None);
    }
}
