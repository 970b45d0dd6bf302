//! GPUs as they are named in launch reports, and what an engine sees of them.
//!
//! Rows with a name of `moetwin_sim::machine::GPU_TABLE` take their rates from there; the others carry them here. Memory is what the CUDA
//! driver reports to a process, which is less than the marketing figure (ECC, firmware): from `torch` out-of-memory messages and start-up
//! logs quoted in public issue threads; the rest are vendors' figures, less the 1 % that such logs show missing.

use super::Interconnect;

/// A GPU model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Words that must all be in a description, lower case. The first row whose words all occur wins.
    pub words: &'static [&'static str],
    /// Name in the simulator's table, where it has one.
    pub table: Option<&'static str>,
    /// Compute capability times ten.
    pub sm: u32,
    /// Memory, GiB.
    pub memory_gib: f64,
    /// Memory rate, GB/s.
    pub memory_gb_s: f64,
    /// What connects several of them where nothing is said.
    pub link: Interconnect,
    /// One memory for CPU and GPU.
    pub unified: bool,
    /// GeForce: the stock driver offers no peer access over PCIe.
    pub geforce: bool,
}

const fn gpu(words: &'static [&'static str], table: Option<&'static str>, sm: u32, memory_gib: f64, memory_gb_s: f64) -> Gpu {
    Gpu { words, table, sm, memory_gib, memory_gb_s, link: Interconnect::Pcie, unified: false, geforce: false }
}

const fn nvlink(gpu: Gpu) -> Gpu {
    Gpu { link: Interconnect::Nvlink, ..gpu }
}

const fn geforce(gpu: Gpu) -> Gpu {
    Gpu { geforce: true, ..gpu }
}

const fn unified(gpu: Gpu) -> Gpu {
    Gpu { unified: true, ..gpu }
}

/// Known GPUs, special names before general ones.
pub const GPUS: &[Gpu] = &[
    gpu(&["rtx pro 6000", "server"], Some("RTX PRO 6000 Blackwell Server Edition"), 120, 95.59, 1597.0),
    gpu(&["rtx pro 6000", "max-q"], Some("RTX PRO 6000 Blackwell Max-Q"), 120, 95.59, 1792.0),
    gpu(&["rtx pro 6000"], Some("RTX PRO 6000 Blackwell Workstation Edition"), 120, 95.59, 1792.0),
    gpu(&["rtx 6000 pro"], Some("RTX PRO 6000 Blackwell Workstation Edition"), 120, 95.59, 1792.0),
    gpu(&["rtx pro 5000"], None, 120, 47.4, 1344.0),
    gpu(&["rtx pro 4500"], None, 120, 31.4, 896.0),
    gpu(&["rtx pro 4000"], None, 120, 23.4, 672.0),
    geforce(gpu(&["5090"], Some("GeForce RTX 5090"), 120, 31.37, 1792.0)),
    geforce(gpu(&["5080"], None, 120, 15.5, 960.0)),
    geforce(gpu(&["5070 ti"], None, 120, 15.5, 896.0)),
    geforce(gpu(&["5070"], None, 120, 11.5, 672.0)),
    geforce(gpu(&["5060 ti"], None, 120, 15.5, 448.0)),
    geforce(gpu(&["rtx 50"], None, 120, 31.37, 1792.0)),
    unified(gpu(&["gb10"], None, 121, 119.7, 273.0)),
    unified(gpu(&["dgx spark"], None, 121, 119.7, 273.0)),
    unified(gpu(&["thor"], None, 110, 122.8, 273.0)),
    unified(gpu(&["orin"], None, 87, 61.0, 204.8)),
    nvlink(gpu(&["gb300"], None, 103, 276.0, 8000.0)),
    nvlink(gpu(&["gb200"], Some("GB200 (per GPU)"), 100, 184.0, 8000.0)),
    nvlink(gpu(&["b300"], Some("B300 SXM"), 103, 267.7, 7750.0)),
    nvlink(gpu(&["b200"], Some("B200 SXM"), 100, 178.4, 7700.0)),
    nvlink(gpu(&["gh200", "144"], None, 90, 141.0, 4900.0)),
    nvlink(gpu(&["gh200"], None, 90, 94.5, 4000.0)),
    gpu(&["h200 nvl"], None, 90, 139.8, 4800.0),
    nvlink(gpu(&["h200"], Some("H200 SXM"), 90, 139.8, 4800.0)),
    nvlink(gpu(&["h20e"], None, 90, 139.8, 4800.0)),
    nvlink(gpu(&["h20", "141"], None, 90, 139.8, 4800.0)),
    nvlink(gpu(&["h20"], None, 90, 95.0, 4000.0)),
    nvlink(gpu(&["h800"], Some("H800 SXM"), 90, 79.2, 3350.0)),
    gpu(&["h100", "nvl"], Some("H100 NVL 94GB"), 90, 93.1, 3938.0),
    gpu(&["h100", "pcie"], Some("H100 PCIe 80GB"), 90, 79.2, 2000.0),
    nvlink(gpu(&["h100"], Some("H100 SXM 80GB"), 90, 79.2, 3350.0)),
    nvlink(gpu(&["hopper"], Some("H100 SXM 80GB"), 90, 79.2, 3350.0)),
    gpu(&["cmp 170hx"], None, 80, 63.5, 1493.0),
    gpu(&["a100", "pcie", "40"], Some("A100 PCIe 40GB"), 80, 39.4, 1555.0),
    gpu(&["a100", "pcie"], Some("A100 PCIe 80GB"), 80, 79.3, 1935.0),
    nvlink(gpu(&["a100", "40gb"], None, 80, 39.4, 1555.0)),
    nvlink(gpu(&["a100"], Some("A100 SXM 80GB"), 80, 79.3, 2039.0)),
    nvlink(gpu(&["a800", "40gb"], None, 80, 39.4, 1555.0)),
    nvlink(gpu(&["a800"], Some("A100 SXM 80GB"), 80, 79.3, 2039.0)),
    gpu(&["a30"], None, 80, 23.5, 933.0),
    gpu(&["l40s"], Some("L40S"), 89, 44.4, 864.0),
    gpu(&["l40"], None, 89, 44.4, 864.0),
    gpu(&["l20"], Some("L20"), 89, 44.5, 864.0),
    gpu(&["l4"], None, 89, 22.0, 300.0),
    gpu(&["rtx 6000 ada"], Some("RTX 6000 Ada"), 89, 47.4, 960.0),
    gpu(&["rtx 5880"], None, 89, 47.4, 960.0),
    gpu(&["rtx 5000 ada"], None, 89, 31.5, 576.0),
    gpu(&["rtx 4000 ada"], None, 89, 19.6, 360.0),
    geforce(gpu(&["4090", "48"], Some("GeForce RTX 4090"), 89, 47.4, 1008.0)),
    geforce(gpu(&["4090"], Some("GeForce RTX 4090"), 89, 23.6, 1008.0)),
    geforce(gpu(&["4080"], None, 89, 15.6, 717.0)),
    geforce(gpu(&["4070"], None, 89, 11.6, 504.0)),
    geforce(gpu(&["4060"], None, 89, 7.6, 272.0)),
    geforce(gpu(&["3090"], Some("GeForce RTX 3090"), 86, 23.6, 936.0)),
    geforce(gpu(&["3080"], None, 86, 9.6, 760.0)),
    geforce(gpu(&["3060"], None, 86, 11.6, 360.0)),
    gpu(&["a6000"], Some("RTX A6000"), 86, 47.4, 768.0),
    gpu(&["a5000"], None, 86, 23.7, 768.0),
    gpu(&["a40"], None, 86, 44.4, 696.0),
    gpu(&["a10g"], None, 86, 22.0, 600.0),
    gpu(&["a10"], None, 86, 22.0, 600.0),
    gpu(&["a16"], None, 86, 14.5, 200.0),
    gpu(&["a2"], None, 86, 14.5, 200.0),
    gpu(&["rtx 8000"], None, 75, 47.5, 672.0),
    gpu(&["2080 ti"], None, 75, 10.7, 616.0),
    gpu(&["t4"], None, 75, 14.6, 320.0),
    nvlink(gpu(&["v100", "sxm"], None, 70, 31.7, 900.0)),
    gpu(&["v100"], None, 70, 31.7, 900.0),
];

/// The row that a description names.
pub fn find(description: &str) -> Option<&'static Gpu> {
    let text = description.to_lowercase().replace(['_', ','], " ");
    GPUS.iter().find(|gpu| gpu.words.iter().all(|word| names(&text, word)))
}

/// Names of the known GPUs as people write them, in the order of the table: `H200`, `A100 PCIE 40`. [`find`] finds each.
pub fn gpu_names() -> Vec<String> {
    GPUS.iter().map(|gpu| gpu.words.join(" ").to_uppercase()).collect()
}

/// Whether `word` occurs in `text` and is not part of a longer word or number (`l4` in `l40s`, `a10` in `a100`, `40` in `4090`).
fn names(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let mut rest = text[at + word.len()..].chars();
        let after = rest.next();
        let starts = !before.is_some_and(char::is_alphanumeric);
        // `48GB`, `80GB`: a unit may follow a number.
        let ends = !after.is_some_and(char::is_alphanumeric)
            || word.ends_with(|c: char| c.is_ascii_digit()) && matches!((after, rest.next()), (Some('g'), Some('b' | 'i')));
        // `rtx 50` stands for a class: `RTX 50 / RTX PRO class`.
        starts && ends
    })
}

/// Shared memory that one block may use, KiB (CUDA programming guide, table of compute capabilities).
pub fn shared_memory_per_block_kib(sm: u32) -> Option<u32> {
    Some(match sm {
        70 => 96,
        75 => 64,
        80 | 87 => 163,
        86 | 89 | 120 | 121 => 99,
        90 | 100 | 101 | 103 | 110 => 227,
        _ => return None,
    })
}

/// `SM120`, `sm_121a`, `compute capability 8.9` in a description.
pub fn said_sm(description: &str) -> Option<u32> {
    let text = description.to_lowercase();
    for (at, _) in text.match_indices("sm") {
        if text[..at].chars().next_back().is_some_and(char::is_alphanumeric) {
            continue;
        }
        let digits: String = text[at + 2..].trim_start_matches(['_', ' ']).chars().take_while(char::is_ascii_digit).collect();
        if let Some(sm) = digits.parse().ok().filter(|sm| (50..200).contains(sm)) {
            return Some(sm);
        }
    }
    let (_, rest) = text.split_once("compute capability ")?;
    let (major, minor) = rest.split_once('.')?;
    let minor = minor.chars().next()?.to_digit(10)?;
    Some(major.trim().parse::<u32>().ok()?.checked_mul(10)?.checked_add(minor)?).filter(|sm| (50..200).contains(sm))
}

#[cfg(test)]
mod tests {
    use super::*;
    use moetwin_sim::machine::gpu_named;

    #[test]
    fn descriptions_name_the_right_gpu() {
        for (text, sm, memory) in [
            ("NVIDIA RTX PRO 6000 Blackwell (SM120) Server Edition", 120, 95.59),
            ("H20 96GB", 90, 95.0),
            ("H20 (141 GB class)", 90, 139.8),
            ("H20e 141GB", 90, 139.8),
            ("H200", 90, 139.8),
            ("DGX Spark GB10", 121, 119.7),
            ("A100-SXM4-80GB", 80, 79.3),
            ("A100 80GB PCIe (SM80)", 80, 79.3),
            ("A800 40GB (SM80)", 80, 39.4),
            ("2x RTX 3090", 86, 23.6),
            ("RTX 4090 48GB (SM89)", 89, 47.4),
            ("L40S 48GB (SM89)", 89, 44.4),
            ("NVIDIA L4", 89, 22.0),
            ("RTX A6000", 86, 47.4),
            ("RTX 6000 Ada 48GB", 89, 47.4),
            ("V100 (SM70)", 70, 31.7),
            ("GH200 96GB", 90, 94.5),
        ] {
            let gpu = find(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((gpu.sm, gpu.memory_gib), (sm, memory), "{text}");
        }
        assert_eq!(find("a card of some kind"), None);
        assert_eq!(said_sm("any SM100 class (B200/GB200)"), Some(100));
        assert_eq!(said_sm("sm_121a"), Some(121));
        assert_eq!(said_sm("small"), None);
    }

    #[test]
    fn every_name_on_offer_is_found() {
        for name in gpu_names() {
            assert!(find(&name).is_some(), "{name}");
        }
        assert_eq!((find("nonexist"), find("H2OO")), (None, None));
    }

    #[test]
    fn rows_agree_with_the_simulators_table() {
        for gpu in GPUS {
            let Some(name) = gpu.table else { continue };
            let row = gpu_named(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(row.sm(), gpu.sm, "{name}");
        }
    }
}
