//! The shipped tables that apply to one GPU as a [`CostTable`]; a family is parsed when it is first asked for.

use super::attention::{AttentionTimes, Geometry, nearest_gqa};
use super::catalog::{Kernels, Source, every_source, sources};
use super::experts::ExpertTimes;
use super::gemm::GemmTimes;
use super::imported::ImportedTables;
use super::interpolate::Fit;
use super::left_out::left_out_error;
use super::query::{CacheType, Query};
use super::rates::{Element, GpuRates};
use super::table::{Family, Table};
use super::{AttentionShape, CostTable, Estimate, ExpertsShape};
use std::cell::RefCell;
use std::sync::Arc;

/// Tables that apply to one GPU.
#[derive(Debug)]
pub struct KernelTables {
    sets: Vec<SetTables>,
    kernels: Kernels,
}

/// One engine's tables of one GPU.
#[derive(Debug)]
struct SetTables {
    source: Source,
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
    /// The GPU, as table files name it.
    pub gpu: &'static str,
    /// Engine and version.
    pub implementation: String,
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
    /// All of them, rising.
    errors: Vec<f64>,
}

/// Median, and what nine of ten stay below.
fn quantiles(rising: &[f64]) -> (f64, f64) {
    let at = |share: f64| rising.get(((rising.len() as f64 * share) as usize).min(rising.len().saturating_sub(1))).copied().unwrap_or(0.0);
    (at(0.5), at(0.9))
}

/// Of a kernel family over all GPUs, engines and formats: points, median and what nine of ten stay below.
pub fn family_totals(errors: &[FamilyError]) -> Vec<(Family, usize, f64, f64)> {
    let mut out = Vec::new();
    // MLA decode was measured as a kernel or as a module.
    let of = |family| if family == Family::MlaDecodeModule { Family::MlaDecode } else { family };
    for family in Family::ALL.into_iter().filter(|f| of(*f) == *f) {
        let mut all: Vec<f64> = errors.iter().filter(|e| of(e.family) == family).flat_map(|e| e.errors.iter().copied()).collect();
        all.sort_by(f64::total_cmp);
        let (median, p90) = quantiles(&all);
        if !all.is_empty() {
            out.push((family, all.len(), median, p90));
        }
    }
    out
}

impl KernelTables {
    /// The tables for the GPU that a machine calls `name`; `None` where none apply.
    pub fn for_gpu(name: &str, kernels: Kernels) -> Option<Self> {
        Self::with_imported(name, kernels, None)
    }
    /// The same with tables that a user brought.
    pub fn with_imported(name: &str, kernels: Kernels, imported: Option<&Arc<ImportedTables>>) -> Option<Self> {
        let sets: Vec<SetTables> =
            sources(name, kernels, imported).into_iter().map(|source| SetTables { source, parsed: RefCell::default() }).collect();
        (!sets.is_empty()).then_some(Self { sets, kernels })
    }
    /// The sets, those asked first in front.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.sets.iter().map(|s| &s.source)
    }
}

/// Leave-one-out errors of every shipped table: by GPU, engine, family and weight format.
pub fn family_errors() -> Vec<FamilyError> {
    every_source().into_iter().flat_map(|(_, source)| SetTables { source, parsed: RefCell::default() }.errors()).collect()
}

impl SetTables {
    fn errors(&self) -> Vec<FamilyError> {
        let mut out = Vec::new();
        let (gpu, implementation) = (self.source.slug, self.source.implementation.to_string());
        let mut report = |family, element, errors: Option<Vec<f64>>| {
            if let Some(mut errors) = errors.filter(|e| !e.is_empty()) {
                errors.sort_by(f64::total_cmp);
                let (points, (median, p90)) = (errors.len(), quantiles(&errors));
                out.push(FamilyError { gpu, implementation: implementation.clone(), family, element, points, median, p90, errors });
            }
        };
        let mut parsed = self.parsed.borrow_mut();
        for element in Element::ALL {
            report(Family::Gemm, element.table_word(), parsed.gemm(&self.source, element).map(GemmTimes::leave_one_out));
            report(Family::Moe, element.table_word(), parsed.experts(&self.source, element).map(ExpertTimes::leave_one_out));
        }
        for (family, geometry) in [
            (Family::MlaDecode, Geometry::MLA_DECODE),
            (Family::MlaDecodeModule, Geometry::MLA_DECODE),
            (Family::MlaPrefill, Geometry::MLA_PREFILL),
            (Family::GqaDecode, Geometry::gqa(8, 128, 0)),
        ] {
            for cache in [CacheType::Bf16, CacheType::Fp8] {
                let key = AttentionKey { family, geometry, cache };
                let times = parsed.attention(&self.source, key).filter(|t| t.measured(cache));
                report(family, cache.table_word(), times.map(AttentionTimes::leave_one_out));
            }
        }
        out
    }
    fn core(&self, shape: AttentionShape, cache: CacheType) -> Option<Estimate> {
        let key = AttentionKey { family: Family::MlaDecode, geometry: Geometry::MLA_DECODE, cache };
        self.parsed.borrow_mut().attention(&self.source, key)?.estimate(shape)
    }
    fn estimate(&self, query: &Query) -> Option<Estimate> {
        let mut parsed = self.parsed.borrow_mut();
        let source = &self.source;
        match *query {
            Query::Gemm(shape, element) => {
                // Where block scales were not measured, one scale a tensor is the nearest kernel.
                let other = if element == Element::Fp8Block { Element::Fp8 } else { element };
                let known = parsed.gemm(source, element).is_some();
                let mut found = parsed.gemm(source, if known { element } else { other })?.estimate(shape)?;
                if !known && other != element {
                    found.fit = Fit::Outside;
                }
                Some(found)
            }
            Query::Experts(shape, element) => parsed.experts(source, element)?.estimate(shape),
            Query::MlaDecode(shape, cache) => {
                let key = |family| AttentionKey { family, geometry: Geometry::MLA_DECODE, cache };
                if let Some(times) = parsed.attention(source, key(Family::MlaDecode)) {
                    return times.estimate(shape);
                }
                parsed.attention(source, key(Family::MlaDecodeModule))?.estimate(shape)
            }
            Query::MlaPrefill(shape, cache) => {
                let key = AttentionKey { family: Family::MlaPrefill, geometry: Geometry::MLA_PREFILL, cache };
                parsed.attention(source, key)?.estimate(shape)
            }
            Query::GqaDecode(shape, gqa, cache) => {
                let geometry = nearest_gqa(parsed.table(source, Family::GqaDecode)?, gqa.geometry())?;
                let exact = geometry == gqa.geometry();
                let key = AttentionKey { family: Family::GqaDecode, geometry, cache };
                let times = parsed.attention(source, key)?;
                if exact { times.estimate(shape) } else { times.estimate_for(gqa.geometry(), shape) }
            }
        }
    }
}

impl KernelTables {
    /// Where nobody's kernels are asked for, an MLA core that was measured by itself on this GPU, before one derived from a module.
    fn measured_core(&self, query: &Query) -> Option<Estimate> {
        let Query::MlaDecode(shape, cache) = *query else { return None };
        let slug = self.sets.first().filter(|_| self.kernels == Kernels::Any)?.source.slug;
        let mut alike = self.sets.iter().enumerate().filter(|(_, s)| s.source.slug == slug);
        alike.find_map(|(set, s)| s.core(shape, cache).map(|e| Estimate { set, ..e }))
    }
    /// Where nobody's kernels are asked for, a kernel that was measured to be slower over a cache in fp8 than over the same in bf16 (FA3's
    /// MLA on Hopper takes up to seven times as long) is not the one to take: the fastest of what was measured on that GPU over fp8, and of
    /// that kernel over bf16, which does the same on more bytes.
    fn narrow_cache(&self, query: &Query, best: Estimate) -> Estimate {
        let Some(wide) = query.over_bf16().filter(|_| self.kernels == Kernels::Any) else { return best };
        let slug = self.sets[best.set].source.slug;
        let of = |set: usize, query: &Query| self.sets[set].estimate(query).map(|e| Estimate { set, ..e });
        let Some(wide) = of(best.set, &wide).filter(|w| w.us < best.us) else { return best };
        let wide = Estimate { fit: wide.fit.max(Fit::Inside), ..wide };
        let alike = (0..self.sets.len()).filter(|set| self.sets[*set].source.slug == slug);
        alike.filter_map(|set| of(set, query)).fold(wide, |fastest, e| if e.us < fastest.us { e } else { fastest })
    }
    /// Weights in mxfp4 may also be multiplied with activations in mxfp8, which every engine offers on GPUs that have the kernel, whoever
    /// measured it: the faster of the two.
    fn narrow_experts(&self, shape: ExpertsShape, wide: Option<Estimate>) -> Option<Estimate> {
        let query = Query::Experts(shape, Element::Mxfp4Mxfp8);
        let narrow = self.sets.iter().enumerate().find_map(|(set, s)| s.estimate(&query).map(|e| Estimate { set, ..e }));
        match (wide, narrow) {
            (Some(wide), Some(narrow)) => Some(if narrow.us < wide.us { narrow } else { wide }),
            (wide, narrow) => wide.or(narrow),
        }
    }
}

impl CostTable for KernelTables {
    /// Of the tables of equal standing, the fastest of those that fit best: an engine tries its kernels and keeps the best. Those of lower
    /// standing are asked where the others have nothing, or only times of other shapes.
    fn estimate(&self, query: &Query) -> Option<Estimate> {
        let mut best = self.measured_core(query);
        let mut from = 0;
        while let Some(first) = self.sets.get(from).filter(|_| best.is_none()) {
            let alike = self.sets[from..].iter().take_while(|s| s.source.standing == first.source.standing).count();
            for (index, set) in self.sets.iter().enumerate().skip(from).take(alike) {
                let Some(found) = set.estimate(query).map(|e| Estimate { set: index, ..e }) else { continue };
                let worth = |e: &Estimate| (e.fit == Fit::Outside, e.us);
                if best.as_ref().is_none_or(|b| worth(&found) < worth(b)) {
                    best = Some(found);
                }
            }
            from += alike;
        }
        if let Query::Experts(shape, Element::Mxfp4) = *query {
            best = self.narrow_experts(shape, best);
        }
        let mut best = self.narrow_cache(query, best?);
        let source = &self.sets[best.set].source;
        best.error = left_out_error(source, query, best.fit);
        Some(best)
    }
    fn rates(&self, estimate: &Estimate) -> &GpuRates {
        &self.sets[estimate.set].source.rates
    }
    fn same_product(&self, estimate: &Estimate) -> bool {
        self.sets[estimate.set].source.same_product
    }
}

impl Parsed {
    fn table(&mut self, source: &Source, family: Family) -> Option<&Table> {
        let index = find_or(&mut self.tables, family, || source.load(family));
        self.tables[index].1.as_ref()
    }
    fn gemm(&mut self, source: &Source, element: Element) -> Option<&GemmTimes> {
        if !self.gemm.iter().any(|(e, _)| *e == element) {
            let times = self.table(source, Family::Gemm).and_then(|t| GemmTimes::new(t, element, &source.rates));
            self.gemm.push((element, times));
        }
        self.gemm.iter().find(|(e, _)| *e == element)?.1.as_ref()
    }
    fn experts(&mut self, source: &Source, element: Element) -> Option<&ExpertTimes> {
        if !self.experts.iter().any(|(e, _)| *e == element) {
            let times = self.table(source, Family::Moe).and_then(|t| ExpertTimes::new(t, element, &source.rates));
            self.experts.push((element, times));
        }
        self.experts.iter().find(|(e, _)| *e == element)?.1.as_ref()
    }
    fn attention(&mut self, source: &Source, key: AttentionKey) -> Option<&AttentionTimes> {
        if !self.attention.iter().any(|(k, _)| *k == key) {
            let times = self.table(source, key.family).and_then(|t| AttentionTimes::new(t, key.geometry, key.cache, &source.rates));
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
