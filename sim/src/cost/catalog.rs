//! The tables that ship with moetwin. Text is parsed when a family is first asked for, so a run pays for what it uses.

use super::rates::GpuRates;
use super::table::{Family, Table};

/// A GPU that has tables.
struct MeasuredGpu {
    /// Its name in table files.
    slug: &'static str,
    /// Names under which machines list it.
    names: &'static [&'static str],
    /// GPUs of the same chip whose times follow from its own by rate.
    siblings: &'static [&'static str],
    rates: GpuRates,
    tables: &'static [Embedded],
}

/// A table of a GPU: engine, family, text.
type Embedded = (&'static str, Family, &'static str);

macro_rules! tables {
    ($gpu:literal, $implementation:literal) => {
        &[
            ($implementation, Family::Gemm, include_str!(concat!("../../data/kernels/", $gpu, "__", $implementation, "__gemm.txt"))),
            ($implementation, Family::Moe, include_str!(concat!("../../data/kernels/", $gpu, "__", $implementation, "__moe.txt"))),
            (
                $implementation,
                Family::MlaDecode,
                include_str!(concat!("../../data/kernels/", $gpu, "__", $implementation, "__mla-decode.txt")),
            ),
            (
                $implementation,
                Family::MlaPrefill,
                include_str!(concat!("../../data/kernels/", $gpu, "__", $implementation, "__mla-prefill.txt")),
            ),
            (
                $implementation,
                Family::GqaDecode,
                include_str!(concat!("../../data/kernels/", $gpu, "__", $implementation, "__gqa-decode.txt")),
            ),
        ]
    };
}

/// Rates: published peaks and, for sustained ones, the large rows of the same tables (aiconfigurator-core 0.12.0).
static GPUS: &[MeasuredGpu] = &[
    MeasuredGpu {
        slug: "rtx_pro_6000_server",
        names: &["RTX PRO 6000 Blackwell Server Edition"],
        siblings: &["RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Max-Q"],
        rates: GpuRates {
            // Large MoE rows; the vendor states 1597 GB/s for the Server Edition.
            memory_bytes_per_s: 1505e9,
            l2_bytes: 128.0 * 1024.0 * 1024.0,
            // int4 rows of two and four tokens, which stay in L2, differ by 49.5 MB and 8.6 us.
            l2_bytes_per_s: 5700e9,
            bf16_flops_per_s: 425e12,
            fp8_flops_per_s: 768e12,
            fp4_flops_per_s: 1279e12,
        },
        tables: tables!("rtx_pro_6000_server", "sglang-0.5.14"),
    },
    MeasuredGpu {
        slug: "h200_sxm",
        names: &["H200 SXM"],
        siblings: &[],
        rates: GpuRates {
            // Large MoE rows; the vendor states 4.8 TB/s.
            memory_bytes_per_s: 4400e9,
            l2_bytes: 50.0 * 1024.0 * 1024.0,
            // No row of this GPU separates L2 from memory; 5.5 TB/s is what microbenchmarks of Hopper report.
            l2_bytes_per_s: 5500e9,
            bf16_flops_per_s: 841e12,
            fp8_flops_per_s: 1410e12,
            fp4_flops_per_s: 1410e12,
        },
        tables: tables!("h200_sxm", "sglang-0.5.14"),
    },
];

/// Tables that apply to a GPU.
#[derive(Clone, Debug)]
pub struct Applicable {
    /// Their GPU's name in table files.
    pub slug: &'static str,
    /// Rates of the GPU they were taken on.
    pub rates: GpuRates,
    /// Whether that is the same product, not another one of the same chip.
    pub same_product: bool,
    tables: &'static [Embedded],
}

impl Applicable {
    /// The table of a family, parsed now. `None` where none ships.
    pub fn load(&self, family: Family) -> Option<Table> {
        let (_, _, text) = self.tables.iter().find(|(_, f, _)| *f == family)?;
        // A test reads every embedded table, so this never hides a damaged one.
        Table::parse(text).ok()
    }
}

/// The tables for the GPU that a machine calls `name`.
pub fn applicable(name: &str) -> Option<Applicable> {
    let found = GPUS.iter().find(|g| g.names.contains(&name)).or_else(|| GPUS.iter().find(|g| g.siblings.contains(&name)))?;
    Some(Applicable { slug: found.slug, rates: found.rates.clone(), same_product: found.names.contains(&name), tables: found.tables })
}

/// Rates of a GPU that has tables, by its name in table files.
#[cfg(test)]
pub(super) fn reference_rates(slug: &str) -> Option<GpuRates> {
    GPUS.iter().find(|g| g.slug == slug).map(|g| g.rates.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_table_reads_and_says_what_it_is() {
        for gpu in GPUS {
            for (implementation, family, text) in gpu.tables {
                let table = Table::parse(text).unwrap();
                assert_eq!((table.gpu.as_str(), table.implementation.as_str(), table.family), (gpu.slug, *implementation, *family));
                assert!(table.curves.len() > 10);
            }
        }
    }

    #[test]
    fn siblings_borrow_and_strangers_get_nothing() {
        assert!(applicable("H200 SXM").unwrap().same_product);
        let max_q = applicable("RTX PRO 6000 Blackwell Max-Q").unwrap();
        assert!(!max_q.same_product && max_q.slug == "rtx_pro_6000_server");
        assert!(applicable("GeForce RTX 3090").is_none());
    }
}
