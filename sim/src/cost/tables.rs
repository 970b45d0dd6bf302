//! The shipped tables of one GPU as a [`CostTable`]; a family is parsed when it is first asked for.

use super::attention::{AttentionTimes, Geometry, nearest_gqa};
use super::catalog::{Applicable, applicable};
use super::experts::ExpertTimes;
use super::gemm::GemmTimes;
use super::query::{CacheType, Query};
use super::rates::{Element, GpuRates};
use super::table::{Family, Table};
use super::{CostTable, Estimate};
use std::cell::RefCell;

/// Tables of one GPU.
#[derive(Debug)]
pub struct KernelTables {
    source: Applicable,
    parsed: RefCell<Parsed>,
}

/// What has been asked for so far; `None` inside is "asked, and there is none".
#[derive(Debug, Default)]
struct Parsed {
    tables: Vec<(Family, Option<Table>)>,
    gemm: Vec<(Element, Option<GemmTimes>)>,
    experts: Vec<(Element, Option<ExpertTimes>)>,
    attention: Vec<(AttentionKey, Option<AttentionTimes>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AttentionKey {
    family: Family,
    geometry: Geometry,
    cache: CacheType,
}

/// How well a family's points predict each other.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilyError {
    /// The family.
    pub family: Family,
    /// Weight format, or the cache's.
    pub element: &'static str,
    /// Points that were left out, one or one shape at a time.
    pub points: usize,
    /// Median relative error of what the others say of them.
    pub median: f64,
    /// The error that nine of ten points stay below.
    pub p90: f64,
}

impl KernelTables {
    /// The tables for the GPU that a machine calls `name`; `None` where none ship.
    pub fn for_gpu(name: &str) -> Option<Self> {
        applicable(name).map(|source| Self { source, parsed: RefCell::default() })
    }
    /// The GPU the times were taken on, as table files name it.
    pub fn gpu(&self) -> &'static str {
        self.source.slug
    }
    /// Leave-one-out errors of every family and weight format.
    pub fn errors(&self) -> Vec<FamilyError> {
        let mut out = Vec::new();
        let mut report = |family, element, errors: Option<Vec<f64>>| {
            if let Some(mut errors) = errors.filter(|e| !e.is_empty()) {
                errors.sort_by(f64::total_cmp);
                let at = |share: f64| errors[((errors.len() as f64 * share) as usize).min(errors.len() - 1)];
                out.push(FamilyError { family, element, points: errors.len(), median: at(0.5), p90: at(0.9) });
            }
        };
        let mut parsed = self.parsed.borrow_mut();
        for element in Element::ALL {
            report(Family::Gemm, element.table_word(), parsed.gemm(&self.source, element).map(GemmTimes::leave_one_out));
            report(Family::Moe, element.table_word(), parsed.experts(&self.source, element).map(ExpertTimes::leave_one_out));
        }
        for (family, geometry) in [(Family::MlaDecode, Geometry::MLA_DECODE), (Family::MlaPrefill, Geometry::MLA_PREFILL)] {
            let key = AttentionKey { family, geometry, cache: CacheType::Bf16 };
            report(family, "bfloat16", parsed.attention(&self.source, key).map(AttentionTimes::leave_one_out));
        }
        let gqa = AttentionKey { family: Family::GqaDecode, geometry: Geometry::gqa(8, 128, 0), cache: CacheType::Bf16 };
        report(Family::GqaDecode, "bfloat16", parsed.attention(&self.source, gqa).map(AttentionTimes::leave_one_out));
        out
    }
}

impl CostTable for KernelTables {
    fn estimate(&self, query: &Query) -> Option<Estimate> {
        let mut parsed = self.parsed.borrow_mut();
        match *query {
            Query::Gemm(shape, element) => {
                // Where block scales were not measured, one scale a tensor is the nearest kernel.
                let other = if element == Element::Fp8Block { Element::Fp8 } else { element };
                let known = parsed.gemm(&self.source, element).is_some();
                parsed.gemm(&self.source, if known { element } else { other })?.estimate(shape)
            }
            Query::Experts(shape, element) => parsed.experts(&self.source, element)?.estimate(shape),
            Query::MlaDecode(shape, cache) => {
                let key = AttentionKey { family: Family::MlaDecode, geometry: Geometry::MLA_DECODE, cache };
                parsed.attention(&self.source, key)?.estimate(shape)
            }
            Query::MlaPrefill(shape, cache) => {
                let key = AttentionKey { family: Family::MlaPrefill, geometry: Geometry::MLA_PREFILL, cache };
                parsed.attention(&self.source, key)?.estimate(shape)
            }
            Query::GqaDecode(shape, gqa, cache) => {
                let geometry = nearest_gqa(parsed.table(&self.source, Family::GqaDecode)?, gqa.geometry())?;
                let exact = geometry == gqa.geometry();
                let key = AttentionKey { family: Family::GqaDecode, geometry, cache };
                let times = parsed.attention(&self.source, key)?;
                if exact { times.estimate(shape) } else { times.estimate_for(gqa.geometry(), shape) }
            }
        }
    }
    fn rates(&self) -> &GpuRates {
        &self.source.rates
    }
    fn same_product(&self) -> bool {
        self.source.same_product
    }
}

impl Parsed {
    fn table(&mut self, source: &Applicable, family: Family) -> Option<&Table> {
        let index = find_or(&mut self.tables, family, || source.load(family));
        self.tables[index].1.as_ref()
    }
    fn gemm(&mut self, source: &Applicable, element: Element) -> Option<&GemmTimes> {
        if !self.gemm.iter().any(|(e, _)| *e == element) {
            let times = self.table(source, Family::Gemm).and_then(|t| GemmTimes::new(t, element, &source.rates));
            self.gemm.push((element, times));
        }
        self.gemm.iter().find(|(e, _)| *e == element)?.1.as_ref()
    }
    fn experts(&mut self, source: &Applicable, element: Element) -> Option<&ExpertTimes> {
        if !self.experts.iter().any(|(e, _)| *e == element) {
            let times = self.table(source, Family::Moe).and_then(|t| ExpertTimes::new(t, element, &source.rates));
            self.experts.push((element, times));
        }
        self.experts.iter().find(|(e, _)| *e == element)?.1.as_ref()
    }
    fn attention(&mut self, source: &Applicable, key: AttentionKey) -> Option<&AttentionTimes> {
        if !self.attention.iter().any(|(k, _)| *k == key) {
            let times = self.table(source, key.family).and_then(|t| attention_times(t, key, &source.rates));
            self.attention.push((key, times));
        }
        self.attention.iter().find(|(k, _)| *k == key)?.1.as_ref()
    }
}

fn find_or<K: PartialEq, V>(items: &mut Vec<(K, V)>, key: K, make: impl FnOnce() -> V) -> usize {
    items.iter().position(|(k, _)| *k == key).unwrap_or_else(|| {
        items.push((key, make()));
        items.len() - 1
    })
}

/// Times with the cache in the asked element type, or in bf16 where the table has only that.
fn attention_times(table: &Table, key: AttentionKey, gpu: &GpuRates) -> Option<AttentionTimes> {
    let bf16 = || AttentionTimes::new(table, key.geometry, "bfloat16", 2.0, gpu);
    match key.cache {
        CacheType::Fp8 => AttentionTimes::new(table, key.geometry, "fp8", 1.0, gpu).or_else(bf16),
        CacheType::Bf16 => bf16(),
    }
}
