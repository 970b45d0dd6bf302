//! `lspci -vv` (also `-vvv`, `-nn`, `-D`): a stanza a device, indented lines below.

use super::evidence::Evidence;
use super::names;
use super::pci::{self, BusId, LinkSeen, PciDevice, PortType};
use super::text::{Line, Source};
use super::{Kind, Options, TopologyError};

/// The address and the rest of a stanza's first line.
fn stanza(line: &Line) -> Option<(BusId, &str)> {
    let (first, rest) = line.text.split_once(' ')?;
    let address = BusId::parse(first).filter(|_| first.contains('.'))?;
    // `00:00.0 Host bridge: Vendor Device`.
    if rest.contains(": ") { Some((address, rest)) } else { None }
}

/// Reads the stanzas of a text: none at all gives nothing.
pub(super) fn read(source: &Source, lines: &[Line], options: &Options) -> Result<Option<Evidence>, TopologyError> {
    let mut devices: Vec<PciDevice> = Vec::new();
    let mut open = false;
    let mut names_classes = false;
    for line in lines {
        if let Some((address, rest)) = stanza(line) {
            let mut device = PciDevice::at(address, source.place(line.number, 1));
            describe(&mut device, rest);
            names_classes |= rest.contains("bridge") || device.is_gpu;
            devices.push(device);
            open = true;
        } else if line.text.starts_with([' ', '\t']) && open {
            if let Some(device) = devices.last_mut() {
                detail(source, line, device)?;
            }
        } else {
            open = false;
        }
    }
    let Some(first) = devices.first().map(|device| device.place.clone()) else { return Ok(None) };
    if !names_classes {
        return Err(TopologyError::new(
            first,
            "device addresses, but no bridge and no GPU among them: paste the whole output of `lspci -vv`",
        ));
    }
    let is_bridge = |device: &&PciDevice| device.name.starts_with("PCI bridge");
    if let Some(bridge) = devices.iter().find(is_bridge)
        && devices.iter().filter(is_bridge).all(|device| device.secondary.is_none())
    {
        let message = format!(
            "the bridge {} has no line `Bus: primary=..., secondary=...`: this is lspci without -vv, which does not say what is behind what; run `lspci -vv` (as root for link rates), or `lspci -tv`",
            bridge.address
        );
        return Err(TopologyError::new(bridge.place.clone(), message));
    }
    if devices.iter().all(|device| !device.is_gpu) && options.gpu_at.is_empty() {
        let message = format!("{} devices, but no NVIDIA display or 3D controller among them", devices.len());
        return Err(TopologyError::new(first, message));
    }
    let mut seen = pci::evidence(Kind::Lspci, first, devices, options)?;
    if let Some(line) = lines.iter().find(|line| line.text.contains("<access denied>")) {
        seen.remarks
            .push(format!("link rates and access control are hidden from users other than root ({})", source.place(line.number, 1)));
    }
    Ok(Some(seen))
}

fn describe(device: &mut PciDevice, rest: &str) {
    let (class, name) = rest.split_once(": ").unwrap_or((rest, ""));
    device.name = format!("{}: {}", class.split(" [").next().unwrap_or(class), name);
    let display = ["VGA compatible controller", "3D controller", "Display controller"].iter().any(|word| class.starts_with(word));
    device.is_gpu = display && name.contains("NVIDIA");
    if device.is_gpu {
        device.model = names::gpu_by_lspci(name);
    }
}

/// `8GT/s` or `8.0GT/s`, and `x16`, of a LnkCap or LnkSta line.
fn link(source: &Source, line: &Line) -> Result<Option<(u8, u8)>, TopologyError> {
    let after = |key: &str| line.text.split_once(key).map(|(before, rest)| (line.column(before.len() + key.len()), rest));
    let (Some((at, speed)), Some((_, width))) = (after("Speed "), after("Width x")) else { return Ok(None) };
    if speed.starts_with("unknown") {
        return Ok(None);
    }
    let rate: String = speed.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let Some(generation) = pci::generation(&rate) else {
        return Err(source.error(line.number, at, format!("link speed `{rate}GT/s`; accepted: 2.5, 5, 8, 16, 32, 64")));
    };
    let digits: String = width.chars().take_while(char::is_ascii_digit).collect();
    // An empty slot's link has no width.
    let lanes = digits.parse().unwrap_or(0);
    Ok(pci::is_width(lanes).then_some((generation, lanes)))
}

fn detail(source: &Source, line: &Line, device: &mut PciDevice) -> Result<(), TopologyError> {
    let text = line.text.trim_start();
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().ok();
    if let Some(rest) = text.strip_prefix("NUMA node: ") {
        device.numa = number(rest);
    } else if text.starts_with("Bus: primary=") {
        let secondary = text.split_once("secondary=").map(|(_, rest)| rest.get(..2).unwrap_or(""));
        match secondary.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(bus) => device.secondary = Some(bus),
            None => {
                let end = line.text.trim_end().chars().count() + 1;
                return Err(source.error(line.number, end, format!("cut off: the bridge {} names no secondary bus", device.address)));
            }
        }
    } else if text.contains("] Express (") {
        device.port = Some(match text {
            _ if text.contains("Root Port") => PortType::Root,
            _ if text.contains("Upstream Port") => PortType::Upstream,
            _ if text.contains("Downstream Port") => PortType::Downstream,
            _ => return Ok(()),
        });
    } else if text.starts_with("LnkCap:") {
        device.link = LinkSeen { most: link(source, line)?, ..device.link };
    } else if text.starts_with("LnkSta:") {
        device.link = LinkSeen { now: link(source, line)?, ..device.link };
    } else if text.starts_with("ACSCtl:") {
        device.acs = Some(text.contains("ReqRedir+") || text.contains("CmpltRedir+"));
    } else if let Some((_, serial)) = text.split_once("Device Serial Number ") {
        // A chip without one of its own shows zeros.
        let serial = serial.trim();
        if serial.chars().any(|c| c != '0' && c != '-') {
            device.serial = Some(serial.to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Option<Evidence>, TopologyError> {
        let source = Source { label: "lspci.txt".into(), text: text.into() };
        read(&source, &super::super::text::lines(text), &Options::default())
    }

    #[test]
    fn bridges_without_buses_are_plain_lspci() {
        let error = read_text("00:01.1 PCI bridge: AMD Device 153e\n01:00.0 3D controller: NVIDIA Corporation Device 2bb5\n").unwrap_err();
        assert!(error.to_string().starts_with("lspci.txt: line 1, column 1: ") && error.message.contains("without -vv"), "{error}");
    }

    #[test]
    fn two_bridges_of_one_bus_contradict_and_cycles_are_found() {
        let twice = "00:01.0 PCI bridge: A\n\tBus: primary=00, secondary=01, subordinate=01\n00:02.0 PCI bridge: A\n\tBus: primary=00, secondary=01\n01:00.0 3D controller: NVIDIA Corporation Device 2bb5\n";
        let error = read_text(twice).unwrap_err();
        assert_eq!((error.place.line, error.message.contains("bus 01 is behind")), (3, true), "{error}");
        let cycle = "02:00.0 PCI bridge: A\n\tBus: primary=02, secondary=01\n01:01.0 PCI bridge: A\n\tBus: primary=01, secondary=02\n01:00.0 3D controller: NVIDIA Corporation Device 2bb5\n";
        assert!(read_text(cycle).unwrap_err().message.contains("a cycle"));
    }
}
