//! The tables that ship with moetwin. Text is parsed when a family is first asked for, so a run pays for what it uses.

use super::imported::ImportedTables;
use super::rates::GpuRates;
use super::table::{Family, Table};
use crate::exec::gpu_rates;
use crate::machine::gpu_named;
use std::borrow::Cow;
use std::sync::Arc;

/// A GPU that has tables.
struct MeasuredGpu {
    /// Its name in table files.
    slug: &'static str,
    /// Its name in machines.
    name: &'static str,
    /// Rates that the large rows of its tables reach, bytes and operations a second.
    memory: f64,
    /// Rate of the L2.
    l2: f64,
    bf16: f64,
    fp8: f64,
    fp4: f64,
    sets: &'static [Set],
}

/// Tables of one engine and version: family and text.
struct Set {
    engine: &'static str,
    implementation: &'static str,
    tables: &'static [(Family, &'static str)],
}

macro_rules! set {
    ($gpu:literal, $engine:literal, $version:literal, $($family:ident $file:literal),+) => {
        Set {
            engine: $engine,
            implementation: concat!($engine, "-", $version),
            tables: &[$((
                Family::$family,
                include_str!(concat!("../../data/kernels/", $gpu, "__", $engine, "-", $version, "__", $file, ".txt")),
            )),+],
        }
    };
    // SGLang, and vLLM before 0.24, were measured kernel by kernel.
    ($gpu:literal, $engine:literal, $version:literal, kernels) => {
        set!($gpu, $engine, $version, Gemm "gemm", Moe "moe", MlaDecode "mla-decode", MlaPrefill "mla-prefill", GqaDecode "gqa-decode")
    };
    // MLA as one module.
    ($gpu:literal, $engine:literal, $version:literal, module) => {
        set!($gpu, $engine, $version, Gemm "gemm", Moe "moe", MlaDecodeModule "mla-decode-module", GqaDecode "gqa-decode")
    };
}

/// Rates: published peaks (sizes) and, for sustained ones, the large rows of the same tables (aiconfigurator-core 0.12.0).
static GPUS: &[MeasuredGpu] = &[
    MeasuredGpu {
        slug: "rtx_pro_6000_server",
        name: "RTX PRO 6000 Blackwell Server Edition",
        // Large MoE rows; the vendor states 1597 GB/s for the Server Edition.
        memory: 1505e9,
        // int4 rows of two and four tokens, which stay in L2, differ by 49.5 MB and 8.6 us.
        l2: 5700e9,
        bf16: 425e12,
        fp8: 768e12,
        fp4: 1279e12,
        sets: &[set!("rtx_pro_6000_server", "sglang", "0.5.14", kernels), set!("rtx_pro_6000_server", "vllm", "0.24.0", module)],
    },
    MeasuredGpu {
        slug: "h200_sxm",
        name: "H200 SXM",
        // Large MoE rows; the vendor states 4.8 TB/s.
        memory: 4400e9,
        // No row of this GPU separates L2 from memory; 5.5 TB/s is what microbenchmarks of Hopper report.
        l2: 5500e9,
        bf16: 841e12,
        fp8: 1410e12,
        fp4: 1410e12,
        sets: &[set!("h200_sxm", "sglang", "0.5.14", kernels), set!("h200_sxm", "vllm", "0.24.0", module)],
    },
    MeasuredGpu {
        slug: "h100_sxm",
        name: "H100 SXM 80GB",
        // Large bf16 rows, MoE and GEMM alike; the vendor states 3.35 TB/s.
        memory: 3080e9,
        l2: 5500e9,
        bf16: 846e12,
        fp8: 1301e12,
        fp4: 1301e12,
        sets: &[set!("h100_sxm", "vllm", "0.24.0", module)],
    },
    MeasuredGpu {
        slug: "b200_sxm",
        name: "B200 SXM",
        // Large MoE rows; the vendor states 7.7 TB/s.
        memory: 7300e9,
        // No row separates L2 from memory here: twice its rate is a guess between Hopper's 1.25 and GB202's 3.8.
        l2: 14_600e9,
        bf16: 1704e12,
        fp8: 2959e12,
        fp4: 4298e12,
        sets: &[set!("b200_sxm", "sglang", "0.5.14", kernels), set!("b200_sxm", "vllm", "0.24.0", module)],
    },
    MeasuredGpu {
        slug: "b300_sxm",
        name: "B300 SXM",
        memory: 7250e9,
        l2: 14_600e9,
        bf16: 1853e12,
        fp8: 2793e12,
        fp4: 4447e12,
        sets: &[set!("b300_sxm", "vllm", "0.24.0", module)],
    },
    MeasuredGpu {
        slug: "l40s",
        name: "L40S",
        // Large GEMM and MoE rows; the vendor states 864 GB/s.
        memory: 740e9,
        // Twice what the fastest small rows reach with their start-up: 3.6 times memory, as GB202 with its like L2.
        l2: 2700e9,
        bf16: 260e12,
        fp8: 398e12,
        fp4: 398e12,
        sets: &[set!("l40s", "vllm", "0.24.0", module)],
    },
    MeasuredGpu {
        slug: "a100_sxm",
        name: "A100 SXM 80GB",
        // Large GEMM rows; the vendor states 2.04 TB/s.
        memory: 1660e9,
        l2: 4000e9,
        bf16: 284e12,
        fp8: 284e12,
        fp4: 284e12,
        sets: &[set!("a100_sxm", "vllm", "0.14.0", kernels)],
    },
];

/// GPUs whose tables answer for another one, nearest first: the same chip, one with the same multiprocessors, or one that runs the same kernels.
const STAND_INS: &[(&[&str], &[&str])] = &[
    (
        &[
            "RTX PRO 6000 Blackwell Server Edition",
            "RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell Max-Q",
            "GeForce RTX 5090",
        ],
        &["rtx_pro_6000_server"],
    ),
    (&["H200 SXM"], &["h200_sxm", "h100_sxm"]),
    (&["H100 SXM 80GB", "H100 PCIe 80GB", "H100 NVL 94GB", "H800 SXM"], &["h100_sxm", "h200_sxm"]),
    (&["B200 SXM", "GB200 (per GPU)"], &["b200_sxm", "b300_sxm"]),
    (&["B300 SXM"], &["b300_sxm", "b200_sxm"]),
    (&["L40S", "L20", "RTX 6000 Ada", "GeForce RTX 4090"], &["l40s"]),
    // The rows of experts on A100 are of skewed routers, which do not say how many experts they hit; the kernels are those of H100 (Triton, Marlin).
    (&["A100 SXM 80GB", "A100 PCIe 80GB", "A100 PCIe 40GB"], &["a100_sxm", "h100_sxm"]),
];

/// Whose kernels run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kernels {
    /// Nobody's in particular: vLLM's, which were measured on every GPU that has tables, then SGLang's; of MLA, a core measured by itself
    /// before one derived from a module, unless it is slower over a cache in fp8 than over one in bf16.
    #[default]
    Any,
    /// SGLang's.
    Sglang,
    /// vLLM's.
    Vllm,
}

impl Kernels {
    /// The engine's name in table files.
    fn engine(self) -> &'static str {
        match self {
            Kernels::Sglang => "sglang",
            Kernels::Any | Kernels::Vllm => "vllm",
        }
    }
}

/// One engine's tables of one GPU, as they apply to a GPU.
#[derive(Clone, Debug)]
pub struct Source {
    /// The GPU of the tables, as table files name it.
    pub slug: &'static str,
    /// Engine and version.
    pub implementation: Cow<'static, str>,
    /// Rates of the GPU of the tables.
    pub rates: GpuRates,
    /// Whether that is the GPU asked about.
    pub same_product: bool,
    /// Sources of equal standing share a number; lower ones are asked first.
    pub standing: u8,
    tables: Tables,
}

/// Where a source's tables are.
#[derive(Clone, Debug)]
enum Tables {
    /// In this program, as text.
    Shipped(&'static [(Family, &'static str)]),
    /// Among those that a user brought: which set.
    Imported(Arc<ImportedTables>, usize),
}

impl Source {
    /// The table of a family, parsed now. `None` where there is none.
    pub fn load(&self, family: Family) -> Option<Table> {
        match &self.tables {
            Tables::Shipped(tables) => {
                let (_, text) = tables.iter().find(|(f, _)| *f == family)?;
                // A test reads every embedded table, so this never hides a damaged one.
                Table::parse(text).ok()
            }
            Tables::Imported(all, set) => all.sets().get(*set)?.tables.iter().find(|t| t.family == family).cloned(),
        }
    }
    /// Whether a user brought it.
    pub fn imported(&self) -> bool {
        matches!(self.tables, Tables::Imported(..))
    }
}

/// The tables for the GPU that a machine calls `name`, those to ask first in front: the engine's own before another's, then what a user
/// brought before what ships, and then those of the GPU itself before those of its stand-ins. Empty where none apply.
pub fn sources(name: &str, kernels: Kernels, imported: Option<&Arc<ImportedTables>>) -> Vec<Source> {
    let slugs = STAND_INS.iter().find(|(names, _)| names.contains(&name)).map_or(&[][..], |(_, slugs)| slugs);
    let mut out = imported.map_or_else(Vec::new, |all| brought(name, slugs, kernels, all));
    for (distance, slug) in slugs.iter().enumerate() {
        let Some(gpu) = GPUS.iter().find(|g| g.slug == *slug) else { continue };
        for set in gpu.sets {
            let foreign = kernels.engine() != set.engine;
            out.push(Source {
                slug: gpu.slug,
                implementation: set.implementation.into(),
                rates: gpu.rates(),
                same_product: gpu.name == name,
                standing: standing(foreign, false, distance > 0),
                tables: Tables::Shipped(set.tables),
            });
        }
    }
    out.sort_by_key(|s| s.standing);
    out
}

fn standing(foreign: bool, imported: bool, elsewhere: bool) -> u8 {
    u8::from(foreign) * 4 + u8::from(!imported) * 2 + u8::from(elsewhere)
}

/// What a user brought of a GPU or of those that stand in for it. Where nobody's kernels are asked for, anybody's are his choice.
fn brought(name: &str, slugs: &[&str], kernels: Kernels, all: &Arc<ImportedTables>) -> Vec<Source> {
    let sets = all.sets().iter().enumerate();
    let of = |(index, set): (usize, &super::imported::ImportedSet)| {
        let slug = slug_of_gpu(set.gpu);
        if set.gpu != name && !slugs.contains(&slug) {
            return None;
        }
        let rates = GPUS.iter().find(|g| g.name == set.gpu).map(MeasuredGpu::rates);
        Some(Source {
            slug,
            implementation: set.implementation.clone().into(),
            rates: rates.or_else(|| gpu_named(set.gpu).map(gpu_rates))?,
            same_product: set.gpu == name,
            standing: standing(kernels != Kernels::Any && kernels.engine() != set.engine, true, set.gpu != name),
            tables: Tables::Imported(Arc::clone(all), index),
        })
    };
    sets.filter_map(of).collect()
}

/// The GPU, as machines call it, that table files call `slug`.
pub(super) fn gpu_of_slug(slug: &str) -> Option<&'static str> {
    GPUS.iter().find(|g| g.slug == slug).map(|g| g.name)
}

/// What table files call a GPU; those that no shipped file is of keep their name.
pub(super) fn slug_of_gpu(name: &'static str) -> &'static str {
    GPUS.iter().find(|g| g.name == name).map_or(name, |g| g.slug)
}

/// Every shipped set of tables with the name of its GPU, for reports.
pub fn every_source() -> Vec<(&'static str, Source)> {
    let of = |g: &'static MeasuredGpu| sources(g.name, Kernels::Any, None).into_iter().filter(|s| s.same_product).map(|s| (g.name, s));
    GPUS.iter().flat_map(of).collect()
}

impl MeasuredGpu {
    fn rates(&self) -> GpuRates {
        GpuRates {
            memory_bytes_per_s: self.memory,
            l2_bytes: gpu_named(self.name).map_or(0.0, |g| g.l2_bytes as f64),
            l2_bytes_per_s: self.l2,
            bf16_flops_per_s: self.bf16,
            fp8_flops_per_s: self.fp8,
            fp4_flops_per_s: self.fp4,
        }
    }
}

/// Rates of a GPU that has tables, by its name in table files.
#[cfg(test)]
pub(super) fn reference_rates(slug: &str) -> Option<GpuRates> {
    GPUS.iter().find(|g| g.slug == slug).map(MeasuredGpu::rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_table_reads_and_says_what_it_is() {
        for gpu in GPUS {
            assert!(gpu_named(gpu.name).is_some_and(|g| g.l2_bytes > 0), "{}", gpu.name);
            for set in gpu.sets {
                for (family, text) in set.tables {
                    let table = Table::parse(text).unwrap();
                    assert_eq!((table.gpu.as_str(), table.implementation.as_str(), table.family), (gpu.slug, set.implementation, *family));
                    assert!(table.curves.len() > 10);
                }
            }
        }
    }

    #[test]
    fn stand_ins_answer_and_strangers_get_nothing() {
        let names = |gpu, kernels| {
            sources(gpu, kernels, None).iter().map(|s| format!("{} {}{}", s.slug, s.implementation, s.standing)).collect::<Vec<_>>()
        };
        assert!(sources("H200 SXM", Kernels::Any, None)[0].same_product);
        let max_q = &sources("RTX PRO 6000 Blackwell Max-Q", Kernels::Any, None)[0];
        assert!(!max_q.same_product && max_q.slug == "rtx_pro_6000_server");
        assert_eq!(names("B200 SXM", Kernels::Vllm), ["b200_sxm vllm-0.24.02", "b300_sxm vllm-0.24.03", "b200_sxm sglang-0.5.146"]);
        assert!(sources("GeForce RTX 3090", Kernels::Any, None).is_empty());
        for (names, slugs) in STAND_INS {
            assert!(names.iter().all(|n| gpu_named(n).is_some()), "{names:?}");
            assert!(slugs.iter().all(|slug| GPUS.iter().any(|g| g.slug == *slug)), "{slugs:?}");
        }
    }
}
