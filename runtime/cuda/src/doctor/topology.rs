//! Where GPUs sit on the PCI bus, from the kernel's files.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// A GPU's place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciPlace {
    /// `0000:17:00.0`.
    pub address: String,
    /// The root bus (`pci0000:16`) and the bridges below it, outermost first, down to the GPU itself. Empty where the kernel does not say.
    pub chain: Vec<String>,
    /// NUMA node; nothing where there is only one.
    pub numa: Option<u32>,
    /// PCIe generation that the link can do, and its lanes; 0 where unknown.
    pub generation: u8,
    /// Lanes.
    pub lanes: u8,
}

/// How two GPUs are connected over PCIe; the words of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Near {
    /// Through one switch.
    Pix,
    /// Through several switches.
    Pxb,
    /// Through one root complex.
    Phb,
    /// Between root complexes of one NUMA node.
    Node,
    /// Between NUMA nodes.
    Sys,
}

impl Near {
    /// Upper-case name.
    pub fn name(self) -> &'static str {
        match self {
            Near::Pix => "PIX",
            Near::Pxb => "PXB",
            Near::Phb => "PHB",
            Near::Node => "NODE",
            Near::Sys => "SYS",
        }
    }
}

/// Reads a place under `sys` (`/sys` but in tests).
pub fn place(sys: &Path, address: &str) -> PciPlace {
    let device = sys.join("bus/pci/devices").join(address);
    let read = |name: &str| fs::read_to_string(device.join(name)).ok().map(|t| t.trim().to_owned());
    let real = fs::canonicalize(&device).unwrap_or_default();
    let numa = read("numa_node").and_then(|n| n.parse::<i32>().ok()).and_then(|n| u32::try_from(n).ok());
    let generation = read("max_link_speed").map_or(0, |speed| generation(&speed));
    let lanes = read("max_link_width").and_then(|w| w.parse().ok()).unwrap_or(0);
    PciPlace { address: address.to_owned(), chain: chain(&real), numa, generation, lanes }
}

/// The names from the root bus down: `/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0`.
fn chain(real: &Path) -> Vec<String> {
    let parts: Vec<String> = PathBuf::from(real).iter().map(|p| p.to_string_lossy().into_owned()).collect();
    match parts.iter().position(|p| p.starts_with("pci")) {
        Some(root) => parts[root..].to_vec(),
        None => Vec::new(),
    }
}

/// The generation of a rate as the kernel writes it: `32.0 GT/s PCIe` is 5.
fn generation(speed: &str) -> u8 {
    let rate: f64 = speed.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
    [2.5, 5.0, 8.0, 16.0, 32.0, 64.0].iter().position(|r| *r == rate).map_or(0, |i| i as u8 + 1)
}

/// How near two GPUs are.
pub fn near(a: &PciPlace, b: &PciPlace) -> Near {
    let far = || if a.numa == b.numa { Near::Node } else { Near::Sys };
    let common = a.chain.iter().zip(&b.chain).take_while(|(x, y)| x == y).count();
    match common {
        0 => far(),
        // The root bus alone: each hangs at a root port of its own.
        1 => Near::Phb,
        // Below a shared root port: a switch is an upstream port with downstream ports, so the nearest common bridge is an upstream port,
        // and each GPU hangs below one downstream port of it, or below further switches.
        _ if a.chain.len() - common <= 2 && b.chain.len() - common <= 2 => Near::Pix,
        _ => Near::Pxb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(chain: &[&str], numa: u32) -> PciPlace {
        PciPlace { chain: chain.iter().map(|s| (*s).to_owned()).collect(), numa: Some(numa), ..PciPlace::default() }
    }

    #[test]
    fn nearness_follows_from_shared_bridges() {
        let one = at(&["pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"], 0);
        let sibling = at(&["pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:01.0", "0000:14:00.0"], 0);
        let deeper = at(&["pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:02.0", "0000:15:00.0", "0000:16:00.0", "0000:17:00.0"], 0);
        let port = at(&["pci0000:10", "0000:10:02.0", "0000:20:00.0"], 0);
        let (node, socket) =
            (at(&["pci0000:30", "0000:30:01.0", "0000:31:00.0"], 0), at(&["pci0000:80", "0000:80:01.0", "0000:81:00.0"], 1));
        let cases = [(&sibling, Near::Pix), (&deeper, Near::Pxb), (&port, Near::Phb), (&node, Near::Node), (&socket, Near::Sys)];
        for (other, want) in cases {
            assert_eq!((near(&one, other), near(other, &one)), (want, want));
        }
    }

    #[test]
    fn places_are_read_from_the_kernels_files() {
        let sys = std::env::temp_dir().join(format!("moetwin-sys-{}", std::process::id()));
        fs::remove_dir_all(&sys).ok();
        let real = sys.join("devices/pci0000:16/0000:16:01.0/0000:17:00.0");
        fs::create_dir_all(&real).unwrap();
        fs::create_dir_all(sys.join("bus/pci/devices")).unwrap();
        for (name, text) in [("numa_node", "1\n"), ("max_link_speed", "32.0 GT/s PCIe\n"), ("max_link_width", "16\n")] {
            fs::write(real.join(name), text).unwrap();
        }
        std::os::unix::fs::symlink(&real, sys.join("bus/pci/devices/0000:17:00.0")).unwrap();
        let got = place(&sys, "0000:17:00.0");
        assert_eq!((got.numa, got.generation, got.lanes), (Some(1), 5, 16));
        assert_eq!(got.chain, ["pci0000:16", "0000:16:01.0", "0000:17:00.0"]);
        let none = place(&sys, "0000:99:00.0");
        assert_eq!((none.chain.len(), none.numa, none.generation), (0, None, 0));
        fs::remove_dir_all(sys).unwrap();
    }
}
