//! What devices are called: PCI ids and marketing names, and the models of the table that they mean.

use crate::machine::CpuFamily;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Vendor, device, name and kind, from the PCI ID Repository (pci-ids.ucw.cz, 2025-07-11); GPU names are those of the table of models.
const PCI_IDS: &str = include_str!("../../data/pci-ids.csv");

/// Name and kind by vendor and device.
type Ids = BTreeMap<(u16, u16), (&'static str, &'static str)>;

static IDS: LazyLock<Ids> = LazyLock::new(|| {
    let row = |line: &'static str| {
        let mut fields = line.split(',');
        let vendor = u16::from_str_radix(fields.next()?, 16).ok()?;
        let device = u16::from_str_radix(fields.next()?, 16).ok()?;
        Some(((vendor, device), (fields.next()?, fields.next()?)))
    };
    PCI_IDS.lines().skip(1).filter_map(row).collect()
});

const NVIDIA: u16 = 0x10de;

fn by_id(vendor: u16, device: u16, kind: &str) -> Option<&'static str> {
    IDS.get(&(vendor, device)).filter(|(_, k)| *k == kind).map(|(name, _)| *name)
}

/// The model, in the table of GPUs, of NVIDIA's PCI device id.
pub fn gpu_by_pci_id(device: u16) -> Option<&'static str> {
    by_id(NVIDIA, device, "gpu")
}

/// A switch chip by `0x1000:0xc030`.
pub(super) fn switch_by_pci_id(ids: &str) -> Option<&'static str> {
    let (vendor, device) = ids.split_once(':')?;
    let hex = |text: &str| u16::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    by_id(hex(vendor)?, hex(device)?, "switch")
}

/// Whether posted writes of virtual switches of this chip to several root complexes are known to collapse.
pub(super) fn collapses(switch: &str) -> bool {
    switch.contains("PEX890")
}

/// Words that name a model: each row holds if all of its words stand in a text. The first row that holds counts, so longer names come first.
const NAMES: &[(&[&str], &str)] = &[
    (&["rtxpro6000", "maxq"], "RTX PRO 6000 Blackwell Max-Q"),
    (&["rtxpro6000", "workstation"], "RTX PRO 6000 Blackwell Workstation Edition"),
    (&["rtxpro6000", "ws"], "RTX PRO 6000 Blackwell Workstation Edition"),
    (&["rtxpro6000"], "RTX PRO 6000 Blackwell Server Edition"),
    (&["6000pro", "maxq"], "RTX PRO 6000 Blackwell Max-Q"),
    (&["6000pro", "ws"], "RTX PRO 6000 Blackwell Workstation Edition"),
    (&["6000pro"], "RTX PRO 6000 Blackwell Server Edition"),
    (&["6000ada"], "RTX 6000 Ada"),
    (&["rtxa6000"], "RTX A6000"),
    (&["a6000"], "RTX A6000"),
    (&["a5000"], "RTX A5000"),
    (&["rtx5090"], "GeForce RTX 5090"),
    (&["5090"], "GeForce RTX 5090"),
    (&["rtx5080"], "GeForce RTX 5080"),
    (&["rtx5060ti"], "GeForce RTX 5060 Ti"),
    (&["rtx4090"], "GeForce RTX 4090"),
    (&["4090"], "GeForce RTX 4090"),
    (&["rtx4080"], "GeForce RTX 4080"),
    (&["rtx3090"], "GeForce RTX 3090"),
    (&["3090"], "GeForce RTX 3090"),
    (&["rtx3080"], "GeForce RTX 3080"),
    (&["3080"], "GeForce RTX 3080"),
    (&["gb200"], "GB200 (per GPU)"),
    (&["b300"], "B300 SXM"),
    (&["b200"], "B200 SXM"),
    (&["h200"], "H200 SXM"),
    (&["h800"], "H800 SXM"),
    (&["h100", "nvl"], "H100 NVL 94GB"),
    (&["h100", "pcie"], "H100 PCIe 80GB"),
    (&["h100"], "H100 SXM 80GB"),
    (&["h20"], "H20"),
    (&["a800"], "A800 SXM 80GB"),
    (&["a100", "pcie", "40gb"], "A100 PCIe 40GB"),
    (&["a100", "pcie"], "A100 PCIe 80GB"),
    (&["a100", "40gb"], "A100 SXM 40GB"),
    (&["a100"], "A100 SXM 80GB"),
    (&["v100", "pcie"], "V100 PCIe 32GB"),
    (&["v100", "16gb"], "V100 SXM2 16GB"),
    (&["v100"], "V100 SXM2 32GB"),
    (&["titanv"], "TITAN V"),
    (&["l40s"], "L40S"),
    (&["l40"], "L40"),
    (&["l20"], "L20"),
    (&["l4"], "L4"),
    (&["a40"], "A40"),
    (&["a10"], "A10"),
    (&["a10g"], "A10"),
    (&["t4"], "T4"),
];

/// A text's letters and digits in lower case, each with whether a word starts there.
fn squeeze(text: &str) -> Vec<(char, bool)> {
    let mut out: Vec<(char, bool)> = Vec::new();
    let mut starts = true;
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            out.push((c.to_ascii_lowercase(), starts));
            starts = false;
        } else {
            starts = true;
        }
    }
    out
}

/// Whether a name stands in a text as whole words, however they are separated; a count such as `8x` may touch it.
fn holds(text: &[(char, bool)], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    (0..text.len().saturating_sub(name.len() - 1)).any(|at| {
        let same = name.iter().zip(&text[at..]).all(|(wanted, (c, _))| wanted == c);
        let starts = text[at].1 || (at >= 2 && text[at - 1].0 == 'x' && text[at - 2].0.is_ascii_digit());
        let end = text.get(at + name.len());
        same && starts && end.is_none_or(|(c, starts)| *starts || *c == 'x')
    })
}

/// Models that a text names, without repetition, in the order of the list of names.
fn all_by_words(text: &str) -> Vec<&'static str> {
    let text = squeeze(text);
    let mut found: Vec<(&'static str, &'static str)> = Vec::new();
    for (words, model) in NAMES {
        // A row whose first word another row has used says the same less exactly.
        let used = found.iter().any(|(word, _)| word.contains(words[0]) || words[0].contains(word));
        if !used && words.iter().all(|word| holds(&text, word)) {
            found.push((words[0], model));
        }
    }
    let mut models: Vec<&'static str> = Vec::new();
    for (_, model) in found {
        if !models.contains(&model) {
            models.push(model);
        }
    }
    models
}

/// The model, in the table of GPUs, that a text names: `NVIDIA A100-SXM4-80GB`, `8x rtx-4090`. Nothing if it names none or several.
pub fn gpu_by_words(text: &str) -> Option<&'static str> {
    match all_by_words(text)[..] {
        [model] => Some(model),
        _ => None,
    }
}

/// The model by `NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell Server Edition]`, `Device 2bb5` or `[10de:2bb5]`; what it says, else.
pub(super) fn gpu_by_lspci(name: &str) -> Option<String> {
    let id = |text: &str| u16::from_str_radix(text.get(..4)?, 16).ok();
    let by_number =
        name.split_once("[10de:").and_then(|(_, rest)| id(rest)).or_else(|| name.split_once("Device ").and_then(|(_, rest)| id(rest)));
    if let Some(number) = by_number {
        return Some(gpu_by_pci_id(number).map_or_else(|| format!("10de:{number:04x}"), str::to_owned));
    }
    let marketing = name.split_once('[').map_or(name, |(_, rest)| rest.split(']').next().unwrap_or(rest));
    Some(gpu_by_words(marketing).map_or_else(|| marketing.trim().to_owned(), str::to_owned))
}

/// The CPU family of a host bridge or root port by its words; `gen5` where one of its ports is PCIe 5.0.
pub(super) fn cpu_by_words(name: &str, gen5: bool) -> Option<CpuFamily> {
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    match () {
        () if has(&["Advanced Micro Devices", "AMD"]) => Some(CpuFamily::Amd),
        () if has(&["Ampere Computing", "Cavium", "Marvell", "NVIDIA"]) => Some(CpuFamily::Arm),
        () if !has(&["Intel"]) || has(&["440FX", "82G33", "82Q35", "Q35"]) => None,
        () if gen5 => Some(CpuFamily::IntelSapphireRapids),
        () if has(&["Sky Lake", "Skylake", "Cascade", "Ice Lake"]) => Some(CpuFamily::IntelSkylake),
        () => Some(CpuFamily::IntelOther),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::gpu_named;

    #[test]
    fn every_name_is_in_the_table_of_models() {
        for (vendor, device) in IDS.keys() {
            if let Some(name) = by_id(*vendor, *device, "gpu") {
                assert!(gpu_named(name).is_some(), "{name}");
            }
        }
        assert!(IDS.len() >= 50 && IDS.len() == PCI_IDS.lines().count() - 1);
        for (words, name) in NAMES {
            assert!(gpu_named(name).is_some(), "{name}");
            assert!(!words.is_empty());
        }
    }

    #[test]
    fn names_are_found_in_what_people_and_drivers_write() {
        for (text, model) in [
            ("NVIDIA GeForce RTX 4090", Some("GeForce RTX 4090")),
            ("NVIDIA A100-SXM4-40GB", Some("A100 SXM 40GB")),
            ("NVIDIA H100 80GB HBM3", Some("H100 SXM 80GB")),
            ("NVIDIA H100 PCIe", Some("H100 PCIe 80GB")),
            ("Tesla V100-SXM2-32GB", Some("V100 SXM2 32GB")),
            ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", Some("RTX PRO 6000 Blackwell Max-Q")),
            ("rtx-pro-6000-ws-x2-phb", Some("RTX PRO 6000 Blackwell Workstation Edition")),
            ("8xh200", Some("H200 SXM")),
            ("t4-x4-sys-node.txt", Some("T4")),
            ("NVIDIA L40S", Some("L40S")),
            ("client4", None),
            ("5090-2x3080", None),
            ("phb", None),
        ] {
            assert_eq!(gpu_by_words(text), model, "{text}");
        }
    }

    #[test]
    fn lspci_names_by_id_and_by_words() {
        assert_eq!(gpu_by_lspci("NVIDIA Corporation Device 2bb5 (rev a1)").as_deref(), Some("RTX PRO 6000 Blackwell Server Edition"));
        assert_eq!(gpu_by_lspci("NVIDIA Corporation AD102 [GeForce RTX 4090] [10de:2684] (rev a1)").as_deref(), Some("GeForce RTX 4090"));
        assert_eq!(gpu_by_lspci("NVIDIA Corporation AD102 [GeForce RTX 4090]").as_deref(), Some("GeForce RTX 4090"));
        assert_eq!(gpu_by_lspci("NVIDIA Corporation Device ffff").as_deref(), Some("10de:ffff"));
        assert_eq!(switch_by_pci_id("0x1000:0xc030"), Some("PEX890xx PCIe Gen 5 Switch"));
    }
}
