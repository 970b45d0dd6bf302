//! `lspci -t` and `-tv`: the tree drawn with dashes.
//!
//! A bus in brackets, a device as `01.1`; devices of one bus stand below each other behind `+-` and a last `\-`, so the column of that sign
//! says which bus a line goes on with.

use super::evidence::Evidence;
use super::names;
use super::pci::{self, BusId, PciDevice};
use super::text::{Line, Source};
use super::{Kind, Options, TopologyError};

/// Where a bus branches into lines.
struct Branch {
    column: usize,
    /// Domain and bus; none for the list of root buses.
    bus: Option<(u32, u8)>,
}

fn starts_tree(line: &Line) -> bool {
    let text = line.text.trim_start();
    text.starts_with("-[") || text.starts_with("-+-[")
}

/// Reads the tree in a text: none at all gives nothing.
pub(super) fn read(source: &Source, lines: &[Line], options: &Options) -> Result<Option<Evidence>, TopologyError> {
    let Some(first) = lines.iter().position(starts_tree) else { return Ok(None) };
    let mut tree = Tree { source, devices: Vec::new(), branches: Vec::new() };
    for line in &lines[first..] {
        // A blank line or a prompt ends the drawing.
        if line.text.trim().is_empty() || !line.text.starts_with([' ', '-', '|', '+', '\\']) {
            break;
        }
        tree.line(line)?;
    }
    let place = source.place(lines[first].number, 1);
    let named = tree.devices.iter().any(|device| !device.name.is_empty());
    if tree.devices.iter().all(|device| !device.is_gpu) && options.gpu_at.is_empty() {
        let message = if named {
            format!("{} devices, but no NVIDIA GPU among their names", tree.devices.len())
        } else {
            "`lspci -t` without -v draws devices without names: which of them are GPUs it does not say; run `lspci -tv`, or name them with --gpu-at BUS,..., for example --gpu-at 0a:00.0".to_owned()
        };
        return Err(TopologyError::new(place, message));
    }
    if let Some(wanted) = options.gpu_at.iter().find(|wanted| tree.devices.iter().all(|device| device.address != **wanted)) {
        return Err(TopologyError::new(place, format!("--gpu-at {wanted} is not in this tree")));
    }
    let mut seen = pci::evidence(Kind::LspciTree, place, tree.devices, options)?;
    seen.remarks.push("`lspci -tv` has no link rates and no NUMA nodes".to_owned());
    Ok(Some(seen))
}

struct Tree<'a> {
    source: &'a Source,
    devices: Vec<PciDevice>,
    branches: Vec<Branch>,
}

impl Tree<'_> {
    fn line(&mut self, line: &Line) -> Result<(), TopologyError> {
        let chars: Vec<char> = line.text.chars().collect();
        let mut at = chars.iter().take_while(|c| matches!(c, ' ' | '|')).count();
        // The bus whose devices come next: at the start of a line, that of the sign above.
        let mut bus: Option<(u32, u8)> = None;
        let mut expects_bus = true;
        if let Some('+' | '\\') = chars.get(at) {
            self.branches.truncate(self.branches.iter().take_while(|branch| branch.column <= at).count());
            match self.branches.last() {
                Some(branch) if branch.column == at => bus = branch.bus,
                _ => return self.fail(line, at, "this line goes on with no bus above it: the drawing is cut or its columns are shifted"),
            }
            expects_bus = bus.is_none();
        }
        while let Some(&c) = chars.get(at) {
            match c {
                '-' => at += 1,
                '+' | '\\' => {
                    if self.branches.last().is_none_or(|branch| branch.column < at) {
                        self.branches.push(Branch { column: at, bus });
                    }
                    at += 1;
                }
                '[' => {
                    let (next, found) = self.bus(line, &chars, at, bus.map_or(0, |bus| bus.0))?;
                    if let (Some(device), false) = (self.devices.last_mut(), expects_bus) {
                        device.secondary = Some(found.1);
                    }
                    bus = Some(found);
                    expects_bus = false;
                    at = next;
                }
                _ if c.is_ascii_hexdigit() => at = self.device(line, &chars, at, bus)?,
                ' ' if chars[at..].iter().all(|c| *c == ' ') => break,
                _ => return self.fail(line, at, "not part of a tree as `lspci -tv` draws it"),
            }
        }
        Ok(())
    }

    fn fail<T>(&self, line: &Line, at: usize, message: &str) -> Result<T, TopologyError> {
        Err(self.source.error(line.number, at + 1, message))
    }

    /// `[0000:00]`, `[01]` or `[01-08]`: the index behind it, domain and bus.
    fn bus(&self, line: &Line, chars: &[char], at: usize, domain: u32) -> Result<(usize, (u32, u8)), TopologyError> {
        let end = chars[at..].iter().position(|c| *c == ']').map(|length| at + length);
        let Some(end) = end else { return self.fail(line, at, "cut off: a bus in brackets does not end") };
        let text: String = chars[at + 1..end].iter().collect();
        let (domain_text, rest) = text.split_once(':').map_or((None, text.as_str()), |(domain, rest)| (Some(domain), rest));
        let first = rest.split('-').next().unwrap_or("");
        let bus = if first.len() == 2 { u8::from_str_radix(first, 16).ok() } else { None };
        let domain = domain_text.map_or(Some(domain), |text| u32::from_str_radix(text, 16).ok());
        match domain.zip(bus) {
            Some(found) => Ok((end + 1, found)),
            None => self.fail(line, at + 1, "not a bus; accepted: [0000:00], [01], [01-08]"),
        }
    }

    /// `01.1`, and the name behind two spaces.
    fn device(&mut self, line: &Line, chars: &[char], at: usize, bus: Option<(u32, u8)>) -> Result<usize, TopologyError> {
        let Some((domain, bus)) = bus else { return self.fail(line, at, "a device that is on no bus") };
        let end = chars[at..].iter().position(|c| matches!(c, '-' | ' ')).map_or(chars.len(), |length| at + length);
        let text: String = chars[at..end].iter().collect();
        let Some(address) = BusId::parse(&format!("{domain:04x}:{bus:02x}:{text}")).filter(|_| text.contains('.')) else {
            return self.fail(line, at, "not a device; accepted: 01.1");
        };
        let mut device = PciDevice::at(address, self.source.place(line.number, at + 1));
        if chars.get(end) != Some(&' ') {
            self.devices.push(device);
            return Ok(end);
        }
        device.name = chars[end..].iter().collect::<String>().trim().to_owned();
        // The tree has no classes: a GPU is function 0 of NVIDIA that is not one of its other products.
        const OTHERS: [&str; 7] = ["Audio", "USB", "UCSI", "NVSwitch", "Bridge", "BlueField", "Ethernet"];
        device.is_gpu = device.name.contains("NVIDIA") && address.function == 0 && !OTHERS.iter().any(|word| device.name.contains(word));
        if device.is_gpu {
            device.model = names::gpu_by_lspci(&device.name);
        }
        self.devices.push(device);
        Ok(chars.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str, gpu_at: &[&str]) -> Result<Option<Evidence>, TopologyError> {
        let source = Source { label: "t".into(), text: text.into() };
        let options = Options { gpu_at: gpu_at.iter().map(|id| BusId::parse(id).expect("an id")).collect(), ..Options::default() };
        read(&source, &super::super::text::lines(text), &options)
    }

    const TWO_ROOTS: &str = "\
-+-[0000:80]-+-01.1-[81-85]----00.0-[82-85]--+-00.0-[83]--+-00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]
 |           |                               |            \\-00.1  NVIDIA Corporation AD102 High Definition Audio Controller
 |           |                               \\-01.0-[84]----00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]
 |           \\-02.0  Advanced Micro Devices, Inc. [AMD] Device 1482
 \\-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 1480
             \\-01.1-[01]----00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]
";

    #[test]
    fn lines_hang_below_the_sign_in_their_column() {
        let seen = read_text(TWO_ROOTS, &[]).expect("reads").expect("a tree");
        let buses: Vec<String> = seen.gpus.iter().map(|gpu| gpu.bus.expect("known").to_string()).collect();
        assert_eq!(buses, ["0000:01:00.0", "0000:83:00.0", "0000:84:00.0"]);
        let switches = seen.tree.iter().filter(|node| matches!(node.part, super::super::evidence::Part::Switch(_))).count();
        assert_eq!((switches, seen.gpus[0].model.as_ref().map(|m| m.value.as_str())), (1, Some("GeForce RTX 4090")));
    }

    #[test]
    fn without_names_the_gpus_must_be_named() {
        let bare = "-[0000:00]-+-00.0\n           \\-01.1-[01]--+-00.0\n                        \\-00.1\n";
        assert!(read_text(bare, &[]).unwrap_err().message.contains("--gpu-at"));
        assert_eq!(read_text(bare, &["01:00.0"]).expect("reads").expect("a tree").gpus.len(), 1);
        assert!(read_text(bare, &["02:00.0"]).unwrap_err().message.contains("not in this tree"));
    }

    #[test]
    fn cut_drawings_say_where() {
        for (text, line, column) in [("-[0000:00]-+-00.0\n     \\-01.0\n", 2, 6), ("-[0000:0", 1, 2), ("-[0000:00]-+-0x.0\n", 1, 14)] {
            let error = read_text(text, &[]).unwrap_err();
            assert_eq!((error.place.line, error.place.column), (line, column), "{error}");
        }
    }
}
