//! From words to a machine.

use super::gpus::{find, said_sm};
use super::{Hardware, Interconnect};
use crate::question::HardwareText;
use moetwin_sim::machine::{LinkKind, Machine};
use serde_json::Value;

/// Reads the description of a machine. What it leaves open comes from the table of GPUs; assumptions say so.
pub fn read(text: &HardwareText) -> Hardware {
    let described = all_words(text);
    let gpu = find(&text.gpu).or_else(|| find(&described));
    let mut hardware = Hardware {
        gpu: text.gpu.clone(),
        sm: said_sm(&text.gpu).or(gpu.map(|g| g.sm)),
        count: text.count.or_else(|| leading_count(&text.gpu)),
        nodes: hosts(&described),
        memory_gib: text.memory_gib,
        memory_gb_s: gpu.map(|g| g.memory_gb_s),
        unified: gpu.is_some_and(|g| g.unified) || described.contains("unified memory"),
        cuda: text.cuda.as_deref().and_then(major_minor),
        driver: text.driver.clone(),
        words: described.split(|c: char| !c.is_alphanumeric() && c != '.').filter(|w| !w.is_empty()).map(str::to_owned).collect(),
        fields: text.other.iter().map(|(k, v)| (k.clone(), shown(v))).collect(),
        ..Hardware::default()
    };
    if hardware.memory_gib.is_none()
        && let Some(gpu) = gpu
    {
        hardware.memory_gib = Some(gpu.memory_gib);
        hardware.assumptions.push(format!("{} GiB of memory a GPU, as drivers report for this model", gpu.memory_gib));
    }
    hardware.assumptions.extend(not_understood(text, gpu.is_some(), hardware.sm));
    hardware.interconnect = links(&text.interconnect.to_lowercase(), hardware.count).unwrap_or_else(|| {
        let assumed = match (hardware.count, gpu) {
            (Some(1), _) => return Interconnect::Single,
            (_, Some(gpu)) if !gpu.unified => gpu.link,
            _ => Interconnect::Unknown,
        };
        if assumed != Interconnect::Unknown {
            hardware.assumptions.push(format!("the GPUs are connected by {}, as usual for this model", assumed.words()));
        }
        assumed
    });
    hardware
}

/// Fields that say something which is not understood, and so decide nothing.
fn not_understood(text: &HardwareText, known: bool, sm: Option<u32>) -> Vec<String> {
    let mut out = Vec::new();
    let gpu = text.gpu.trim();
    match (known, sm) {
        (true, _) => {}
        (false, Some(sm)) => out.push(format!("the GPU '{gpu}' is in no table: what is said of it, SM{sm}, is all that is checked")),
        (false, None) => {
            let name = if gpu.is_empty() { "no GPU is named".to_owned() } else { format!("the GPU '{gpu}' is in no table") };
            out.push(format!("{name}: rules that depend on its architecture are not checked"));
        }
    }
    if let Some(cuda) = text.cuda.as_deref().filter(|cuda| major_minor(cuda).is_none()) {
        out.push(format!("CUDA '{cuda}' is no version, and counts as not given"));
    }
    if let Some(driver) = text.driver.as_deref().filter(|driver| major_minor(driver).is_none()) {
        out.push(format!("the driver '{driver}' is no version, and counts as not given"));
    }
    let words = text.interconnect.trim();
    if !words.is_empty() && text.count != Some(1) && !says_links(words) {
        out.push(format!("the links are described as '{words}', which names none that is known"));
    }
    for name in text.other.keys().filter(|name| !FIELDS.contains(&name.as_str())) {
        out.push(format!("hardware.{name} is no field that is known: its words are read, its name is not"));
    }
    out
}

/// Fields of a machine's description beyond those of [`HardwareText`] that rules look up by name.
const FIELDS: &[&str] = &["acs", "acsctl", "bar1_mib", "vram_mib"];

/// Whether a description of links names one, or something else of the topology that rules look for.
pub fn says_links(text: &str) -> bool {
    const TOPOLOGY: &[&str] = &[
        "pix",
        "pxb",
        "phb",
        "node",
        "nodes",
        "sys",
        "host",
        "hosts",
        "p2p",
        "acs",
        "acsctl",
        "patched",
        "unified",
        "rdma",
        "roce",
        "infiniband",
        "ib",
        "xgmi",
        "ethernet",
    ];
    let lower = text.to_lowercase();
    links(&lower, None).is_some() || lower.split(|c: char| !c.is_alphanumeric()).any(|word| TOPOLOGY.contains(&word))
}

/// A described machine in the words of a question. NVLink is said where links of it are described.
pub fn of_machine(machine: &Machine) -> HardwareText {
    let gpu = machine.gpu(0);
    let nvlink = machine.links.iter().any(|(_, link)| matches!(link.kind, LinkKind::NvLink { .. }));
    HardwareText {
        gpu: gpu.map(|g| format!("{} (SM{})", g.name, g.sm())).unwrap_or_default(),
        count: u32::try_from(machine.gpu_count()).ok(),
        // What the driver reports is in the table of GPUs; a machine file's figure counts for GPUs that the table lacks.
        memory_gib: gpu.filter(|g| find(&g.name).is_none()).map(|g| g.memory_bytes.value as f64 / f64::from(1u32 << 30)),
        interconnect: if nvlink { "NVLink/NVSwitch" } else { "PCIe, no NVLink" }.to_owned(),
        ..HardwareText::default()
    }
}

impl Interconnect {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Interconnect::Single => "nothing (one GPU)",
            Interconnect::Nvlink => "NVLink between all pairs",
            Interconnect::NvlinkPairs => "NVLink between some pairs",
            Interconnect::Pcie => "PCI Express",
            Interconnect::Unknown => "links that are not described",
        }
    }
}

fn all_words(text: &HardwareText) -> String {
    let mut all = format!("{} {}", text.gpu, text.interconnect);
    for value in text.other.values() {
        all.push(' ');
        all.push_str(&shown(value));
    }
    all.to_lowercase()
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Links as described; `None` where nothing is said.
fn links(text: &str, count: Option<u32>) -> Option<Interconnect> {
    if count == Some(1) || text.contains("single gpu") {
        return Some(Interconnect::Single);
    }
    if let Some(at) = text.find("nvlink") {
        let before = text[..at].trim_end();
        let denied = before.ends_with("no") || before.ends_with("without") || before.ends_with("hides");
        let unused = text[at..].starts_with("nvlink used") && before.ends_with("no");
        if !denied && !unused {
            let pairs =
                ["pair", "bridge", " only", "between gpu"].iter().any(|word| text[at..].contains(word)) && !text.contains("nvswitch");
            return Some(if pairs && count != Some(2) { Interconnect::NvlinkPairs } else { Interconnect::Nvlink });
        }
        return Some(Interconnect::Pcie);
    }
    if text.contains("nvswitch") || text.contains("sxm") {
        return Some(Interconnect::Nvlink);
    }
    if text.contains("pcie") || text.contains("pci express") {
        return Some(Interconnect::Pcie);
    }
    None
}

/// `2x RTX 3090`, `8 x H200`.
fn leading_count(text: &str) -> Option<u32> {
    let digits: String = text.trim_start().chars().take_while(char::is_ascii_digit).collect();
    let rest = text.trim_start()[digits.len()..].trim_start();
    (rest.starts_with('x') || rest.starts_with('×')).then(|| digits.parse().ok()).flatten().filter(|n| (1..=4096).contains(n))
}

/// `2 nodes x 1 GPU`, `two hosts`, `inside 4 nodes x 8`.
fn hosts(text: &str) -> u32 {
    const NUMBERS: &[(&str, u32)] = &[("one", 1), ("two", 2), ("three", 3), ("four", 4), ("eight", 8)];
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
    for pair in words.windows(2) {
        if matches!(pair[1], "node" | "nodes" | "host" | "hosts" | "sparks" | "machines") {
            let said = pair[0].parse().ok().or_else(|| NUMBERS.iter().find(|(w, _)| *w == pair[0]).map(|(_, n)| *n));
            if let Some(n) = said.filter(|n| (1..=1024).contains(n)) {
                return n;
            }
        }
    }
    1
}

/// `13.0`, `12.2 (driver-reported)`, `cu129`.
pub fn major_minor(text: &str) -> Option<(u32, u32)> {
    let text = text.trim().trim_start_matches(['v', 'V']);
    if let Some(digits) = text.strip_prefix("cu") {
        let (major, minor) = digits.split_at_checked(2)?;
        return Some((major.parse().ok()?, minor.chars().next()?.to_digit(10)?));
    }
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).filter(|p| !p.is_empty());
    Some((parts.next()?.parse().ok()?, parts.next().and_then(|m| m.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(gpu: &str, count: u32, interconnect: &str) -> Hardware {
        read(&HardwareText { gpu: gpu.into(), count: Some(count), interconnect: interconnect.into(), ..HardwareText::default() })
    }

    #[test]
    fn links_and_hosts_are_read() {
        assert_eq!(of("RTX PRO 6000", 8, "PCIe Gen5, no NVLink").interconnect, Interconnect::Pcie);
        assert_eq!(of("H200", 8, "NVLink/NVSwitch").interconnect, Interconnect::Nvlink);
        assert_eq!(of("H100 NVL (SM90)", 3, "NVLink between GPU 0 and 1 only, KVM VM").interconnect, Interconnect::NvlinkPairs);
        assert_eq!(of("H200", 8, "").interconnect, Interconnect::Nvlink);
        assert_eq!(of("RTX 4090 24GB", 32, "PCIe inside 4 nodes x 8, network between nodes").nodes, 4);
        assert_eq!(of("GB10 DGX Spark (SM121)", 2, "two hosts, 200G RoCE, unified memory").nodes, 2);
        assert!(of("GB10 DGX Spark (SM121)", 1, "").unified);
        assert_eq!(of("V100 (SM70)", 16, "PCIe through the host, no NVLink used").interconnect, Interconnect::Pcie);
        assert_eq!(read(&HardwareText { gpu: "2x RTX 3090".into(), ..HardwareText::default() }).count, Some(2));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        let text = HardwareText {
            gpu: "nonexist".into(),
            count: Some(8),
            interconnect: "qux".into(),
            cuda: Some("foo".into()),
            driver: Some("bar".into()),
            other: [("memory_gb".to_owned(), Value::from(80))].into_iter().collect(),
            ..HardwareText::default()
        };
        let said = read(&text).assumptions.join("\n");
        for word in ["nonexist", "qux", "foo", "bar", "memory_gb"] {
            assert!(said.contains(word), "{word} in {said}");
        }
        let plain = HardwareText {
            gpu: "H200".into(),
            interconnect: "NVLink".into(),
            cuda: Some("13.0".into()),
            driver: Some("580.95.05".into()),
            ..text
        };
        assert!(read(&HardwareText { other: Default::default(), ..plain }).assumptions.iter().all(|a| a.contains("as drivers report")));
        assert!(says_links("topo PHB") && says_links("two hosts, 200G RoCE") && !says_links("any"));
    }

    #[test]
    fn cuda_versions_are_read() {
        assert_eq!(major_minor("12.2 (driver-reported)"), Some((12, 2)));
        assert_eq!(major_minor("cu130"), Some((13, 0)));
        assert_eq!(major_minor("13.0.1"), Some((13, 0)));
        assert_eq!(major_minor("unknown"), None);
    }

    proptest::proptest! {
        /// Any description is read, and what the table of GPUs says is within reason.
        #[test]
        fn any_description_is_read(gpu in "(?s).{0,40}|[0-9]{1,3}x? ?(H100|L4|RTX 4090|GB10)[ -]?[0-9]{0,3}(GB)?", links in "(?s).{0,60}", cuda in ".{0,8}") {
            let text = HardwareText { gpu, interconnect: links, cuda: Some(cuda), ..HardwareText::default() };
            let hardware = read(&text);
            proptest::prop_assert!(hardware.nodes >= 1);
            proptest::prop_assert!(hardware.memory_gib.is_none_or(|g| g > 1.0 && g < 1024.0));
        }
    }
}
