//! Attention cores: MLA decode and prefill, GQA decode. Curves over the context (or prompt), on a grid of heads and batch.

use super::interpolate::{Fit, RatioCurve, SCATTER, bracket, log_distance};
use super::query::CacheType;
use super::rates::{Element, GpuRates, family_floor_us};
use super::table::{Family, Table};
use super::{AttentionShape, Estimate};

/// Bytes of an activation, and of a bf16 cache element.
const ACTIVATION_BYTES: f64 = 2.0;

/// What a row of a family reads and multiplies: set by the model for MLA, by the key for GQA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Key-value heads (1 for MLA).
    pub(super) kv_heads: u64,
    /// Elements that a cached token has a key-value head.
    pub(super) cached: u64,
    /// Elements of a query or key that are multiplied.
    pub(super) key_dim: u64,
    /// Elements of a value.
    pub(super) value_dim: u64,
    /// Latest tokens that are read, 0 for all.
    pub(super) window: u64,
}

impl Geometry {
    /// Absorbed MLA as all tables measured it: rank 512 with 64 rotary elements (DeepSeek, Kimi).
    pub(super) const MLA_DECODE: Self = Self { kv_heads: 1, cached: 576, key_dim: 576, value_dim: 512, window: 0 };
    /// Expanded MLA: 128 + 64 elements a key, 128 a value.
    pub(super) const MLA_PREFILL: Self = Self { kv_heads: 1, cached: 576, key_dim: 192, value_dim: 128, window: 0 };

    /// Grouped-query attention.
    pub(super) fn gqa(kv_heads: u64, head_dim: u64, window: u64) -> Self {
        Self { kv_heads, cached: 2 * head_dim, key_dim: head_dim, value_dim: head_dim, window }
    }
}

/// Query heads that decode kernels for MLA multiply at once: the rows of a tensor-core product.
const HEAD_TILE: f64 = 16.0;

/// Times of one geometry and cache type.
#[derive(Clone, Debug)]
pub(super) struct AttentionTimes {
    family: Family,
    geometry: Geometry,
    /// The cache asked about, and the one that was measured.
    cache: CacheType,
    measured: CacheType,
    heads: Vec<u64>,
    batches: Vec<u64>,
    grid: Vec<Line>,
    gpu: GpuRates,
}

#[derive(Clone, Debug)]
struct Line {
    heads: u64,
    batch: u64,
    curve: RatioCurve,
    /// The shortest context that was measured; what the curve has below it is modelled.
    from: f64,
}

/// A line that begins beyond this context lacks its short rows: they timed the host.
const LONG_BEGINNING: f64 = 1024.0;

/// Times below the shortest measured context of a line that lacks its short rows: the floor, and what the first row takes beyond it in the
/// proportion of what is read and multiplied.
fn beginning(first: (f64, f64), physical: impl Fn(f64) -> f64, floor: f64) -> Vec<(f64, f64)> {
    let (from, us) = first;
    if from <= LONG_BEGINNING {
        return Vec::new();
    }
    let beyond = |x: f64| physical(x) - floor;
    let scale = (us - floor).max(0.0) / beyond(from).max(f64::MIN_POSITIVE);
    // Steps of four, between which a line in logarithms is close to the sum.
    let shorter = std::iter::successors(Some(from / 4.0), |x| Some(x / 4.0)).take_while(|x| *x >= 1.0);
    shorter.map(|x| (x, floor + scale * beyond(x))).collect()
}

/// Bytes that go through memory and multiply-adds (counted two). `x` is the context of a sequence, or its prompt.
fn work(family: Family, geometry: Geometry, cache_bytes: f64, heads: f64, batch: f64, x: f64) -> (f64, f64) {
    let seen = if geometry.window > 0 { x.min(geometry.window as f64) } else { x };
    let cache = batch * seen * geometry.kv_heads as f64 * geometry.cached as f64 * cache_bytes;
    let pairs = if family == Family::MlaPrefill { batch * x * (x + 1.0) / 2.0 } else { batch * seen };
    let queries = if family == Family::MlaPrefill { batch * x } else { batch };
    let head_dims = heads * (geometry.key_dim + geometry.value_dim) as f64;
    (cache + queries * head_dims * ACTIVATION_BYTES, 2.0 * pairs * head_dims)
}

/// The physical model: floor + the longer of moving and multiplying.
fn physical_us(gpu: &GpuRates, family: Family, (bytes, flops): (f64, f64)) -> f64 {
    family_floor_us(family) + gpu.memory_us(bytes).max(gpu.compute_us(flops, Element::Bf16))
}

impl AttentionTimes {
    /// The times of a geometry in a table, `None` where it has none. Where the cache's element type was not measured, bf16 rows answer.
    pub(super) fn new(table: &Table, geometry: Geometry, cache: CacheType, gpu: &GpuRates) -> Option<Self> {
        let of = |measured| Self::with_rows(table, geometry, cache, measured, gpu);
        of(cache).or_else(|| if cache == CacheType::Bf16 { None } else { of(CacheType::Bf16) })
    }
    fn with_rows(table: &Table, geometry: Geometry, cache: CacheType, measured: CacheType, gpu: &GpuRates) -> Option<Self> {
        let family = table.family;
        let mut grid: Vec<Line> = Vec::new();
        for curve in table.curves.iter().filter(|c| c.words[2] == measured.table_word()) {
            // Of whole modules, those whose projections are bf16: only what the context adds is used.
            if family == Family::MlaDecodeModule && curve.words[3] != "bfloat16" {
                continue;
            }
            let (heads, batch, of) = match (family, &curve.numbers[..]) {
                (Family::MlaDecode | Family::MlaDecodeModule | Family::MlaPrefill, &[heads, batch]) => (heads, batch, geometry),
                (Family::GqaDecode, &[heads, kv_heads, dim, window, batch]) => (heads, batch, Geometry::gqa(kv_heads, dim, window)),
                _ => continue,
            };
            if of != geometry || heads == 0 || batch == 0 || grid.iter().any(|l| (l.heads, l.batch) == (heads, batch)) {
                continue;
            }
            // What a module takes beside its core does not depend on the context: the shortest one has hardly any core.
            let beside = if family == Family::MlaDecodeModule { curve.points[0].1 - family_floor_us(family) } else { 0.0 };
            let work = |x: f64| work(family, geometry, measured.bytes(), heads as f64, batch as f64, x);
            let physical = |x: f64| physical_us(gpu, family, work(x));
            let points = curve.points.iter().map(|&(x, us)| {
                // The benchmark repeats one cache, which may stay in L2: no row beats what memory allows.
                let us = (us - beside).max(family_floor_us(family) / 2.0).max(gpu.memory_us(work(x as f64).0));
                (x as f64, us)
            });
            let mut points: Vec<(f64, f64)> = points.collect();
            let from = points[0].0;
            points.extend(beginning(points[0], physical, family_floor_us(family)));
            let ratios = points.into_iter().map(|(x, us)| (x, libm::log(us / physical(x))));
            grid.push(Line { heads, batch, curve: RatioCurve::new(ratios.collect()), from });
        }
        let mut heads: Vec<u64> = grid.iter().map(|l| l.heads).collect();
        heads.sort_unstable();
        heads.dedup();
        let mut batches: Vec<u64> = grid.iter().map(|l| l.batch).collect();
        batches.sort_unstable();
        batches.dedup();
        grid.sort_by_key(|l| (l.heads, l.batch));
        (!grid.is_empty()).then(|| Self { family, geometry, cache, measured, heads, batches, grid, gpu: gpu.clone() })
    }
    /// Whether rows with this cache were measured.
    pub(super) fn measured(&self, cache: CacheType) -> bool {
        self.measured == cache
    }
    /// Time of a core of the measured geometry. Several new tokens a sequence count as that many times the heads, as absorbed kernels
    /// lay them out.
    pub(super) fn estimate(&self, shape: AttentionShape) -> Option<Estimate> {
        self.estimate_for(self.geometry, shape)
    }
    /// Time of a core of another geometry: its physical model, times what was measured beside this one's.
    pub(super) fn estimate_for(&self, geometry: Geometry, shape: AttentionShape) -> Option<Estimate> {
        let batch = shape.batch.max(1) as f64;
        let new = shape.tokens as f64 / batch;
        let prefill = self.family == Family::MlaPrefill;
        let heads = if prefill { shape.heads as f64 } else { shape.heads as f64 * new.max(1.0) };
        let x = if prefill { new } else { shape.kv_rows as f64 / batch }.max(1.0);
        if prefill && shape.kv_rows > shape.tokens {
            return self.behind_history(geometry, (heads, batch, x), (shape.kv_rows - shape.tokens) as f64 / batch);
        }
        let found = self.padded(geometry, (heads, batch, x))?;
        if found.fit == Fit::Exact {
            return Some(found);
        }
        let fewer = self.batches.iter().rev().map(|b| *b as f64).find(|b| *b < batch);
        let fewer_us = fewer.and_then(|b| self.padded(geometry, (heads, b, x))).map_or(0.0, |e| e.us);
        Some(Estimate { us: found.us.max(fewer_us), ..found })
    }
    /// Time of prompts that attend to a history too. Tables have prompts on an empty cache only: one with as many pairs of tokens says how near to
    /// what it reads and multiplies such a kernel comes.
    fn behind_history(&self, geometry: Geometry, (heads, batch, new): (f64, f64, f64), past: f64) -> Option<Estimate> {
        let empty = self.padded(geometry, (heads, batch, new))?;
        let pairs = new * past + new * (new + 1.0) / 2.0;
        let alike = (libm::sqrt(8.0 * pairs + 1.0) - 1.0) / 2.0;
        let (ratio, _) = self.ratio(heads, batch, alike)?;
        let cache = batch * (past + new) * geometry.kv_heads as f64 * geometry.cached as f64 * self.cache.bytes();
        let head_dims = heads * (geometry.key_dim + geometry.value_dim) as f64;
        let work = (cache + batch * new * head_dims * ACTIVATION_BYTES, 2.0 * batch * pairs * head_dims);
        let us = physical_us(&self.gpu, self.family, work) * libm::exp(ratio);
        Some(Estimate::new(us.max(empty.us), Fit::Outside))
    }
    /// The time of so many sequences, or of more that take less: no batch need take longer than one that contains it, whatever disturbed
    /// its row.
    fn padded(&self, geometry: Geometry, (heads, batch, x): (f64, f64, f64)) -> Option<Estimate> {
        let own = self.of_batch(geometry, (heads, batch, x))?;
        let mut best = own;
        let floor = |batch: f64| self.gpu.memory_us(work(self.family, geometry, self.cache.bytes(), heads, batch, x).0);
        for more in self.batches.iter().map(|b| *b as f64).filter(|b| *b > batch) {
            if floor(more) > best.us {
                break;
            }
            let Some(found) = self.of_batch(geometry, (heads, more, x)).filter(|e| e.us < best.us) else { continue };
            best = Estimate { fit: found.fit.max(Fit::Inside), ..found };
        }
        // A measured row is given up for what differs from it by more than repeats of it do.
        let bar = if own.fit == Fit::Exact { SCATTER } else { 1.0 };
        Some(if best.us < own.us * bar { best } else { own })
    }
    fn of_batch(&self, geometry: Geometry, (heads, batch, x): (f64, f64, f64)) -> Option<Estimate> {
        let (ratio, fit) = self.ratio(heads, batch, x)?;
        let work = |cache: CacheType| work(self.family, geometry, cache.bytes(), heads, batch, x);
        let us = physical_us(&self.gpu, self.family, work(self.measured)) * libm::exp(ratio);
        let fit = if geometry == self.geometry { fit } else { Fit::Outside };
        // Held to what memory allows, or moved to another cache: no longer the measurement.
        let held = us <= self.gpu.memory_us(work(self.measured).0) * 1.000_001;
        let moved = self.measured != self.cache;
        let us = if moved { self.smaller_cache_us(us, work(self.measured).0, work(self.cache).0, (heads, batch, x)) } else { us };
        Some(Estimate::new(us, if held || moved { fit.max(Fit::Inside) } else { fit }))
    }
    /// Time over a cache of fewer bytes, from the time over the measured one: what memory takes shrinks as far as memory was what took the
    /// time, down to what the multiplications take. Those follow from the most heads measured, which no cache element type helps: kernels
    /// work on [`HEAD_TILE`] heads at once.
    fn smaller_cache_us(&self, us: f64, measured_bytes: f64, bytes: f64, (heads, batch, x): (f64, f64, f64)) -> f64 {
        let (before, after) = (self.gpu.memory_us(measured_bytes), self.gpu.memory_us(bytes));
        // Below half of the time, memory waits for something else; above nine tenths it is all that counts.
        let bound_by_memory = ((before / us - 0.5) / 0.4).clamp(0.0, 1.0);
        let most = self.heads.last().map_or(heads, |h| *h as f64);
        let floor = family_floor_us(self.family);
        let multiplying = self.ratio(most, batch, x).map_or(0.0, |(ratio, _)| {
            let work = work(self.family, self.geometry, self.measured.bytes(), most, batch, x);
            let whole = physical_us(&self.gpu, self.family, work) * libm::exp(ratio);
            floor + (whole - floor) * (heads.max(HEAD_TILE) / most.max(HEAD_TILE)).min(1.0)
        });
        (us - bound_by_memory * (before - after)).max(multiplying.min(us))
    }
    fn ratio(&self, heads: f64, batch: f64, x: f64) -> Option<(f64, Fit)> {
        self.ratio_without(None, heads, batch, x)
    }
    /// Bilinear between heads and batches, then along the context; one line of the grid may be left out.
    fn ratio_without(&self, left_out: Option<(u64, u64)>, heads: f64, batch: f64, x: f64) -> Option<(f64, Fit)> {
        let (head_corners, mut fit) = bracket(&self.heads, heads);
        let (mut sum, mut weights) = (0.0, 0.0);
        for (head, head_weight) in head_corners {
            let lines: Vec<&Line> = self.grid.iter().filter(|l| l.heads == head && Some((l.heads, l.batch)) != left_out).collect();
            let batches: Vec<u64> = lines.iter().map(|l| l.batch).collect();
            let (corners, batch_fit) = bracket(&batches, batch);
            fit = fit.max(batch_fit);
            for (at, batch_weight) in corners {
                let Some(line) = lines.iter().find(|l| l.batch == at) else { continue };
                let reading = line.curve.at(x)?;
                fit = fit.max(if x < line.from { Fit::Outside } else { reading.fit });
                sum += head_weight * batch_weight * reading.ln_ratio;
                weights += head_weight * batch_weight;
            }
        }
        (weights > 0.0).then(|| (sum / weights, fit))
    }
    /// What the lines around say of a line at `x`: the mean of those of other batches and those of other heads, where both lie around it.
    fn said_by_others(&self, line: &Line, x: f64) -> Option<(f64, Fit)> {
        let (batches, fit) = self.ratio_without(Some((line.heads, line.batch)), line.heads as f64, line.batch as f64, x)?;
        let column: Vec<&Line> = self.grid.iter().filter(|l| l.batch == line.batch && l.heads != line.heads).collect();
        let heads: Vec<u64> = column.iter().map(|l| l.heads).collect();
        let (corners, head_fit) = bracket(&heads, line.heads as f64);
        let readings: Vec<_> =
            corners.iter().filter_map(|(h, w)| column.iter().find(|l| l.heads == *h)?.curve.at(x).map(|r| (r, *w))).collect();
        let inside = head_fit != Fit::Outside && readings.len() == corners.len() && readings.iter().all(|(r, _)| r.fit != Fit::Outside);
        let across: f64 = readings.iter().map(|(r, w)| w * r.ln_ratio).sum();
        Some((if inside { (batches + across) / 2.0 } else { batches }, fit))
    }
    /// Relative error of each point that lies between others when it is left out. Decode kernels change their split of the context along a
    /// line, and what the lines around say of a point is closer than what its own says; prompts are the other way round.
    pub(super) fn leave_one_out(&self) -> Vec<f64> {
        let mut errors = Vec::new();
        for line in &self.grid {
            let points = line.curve.points();
            for (i, &(x, ln_ratio)) in points.iter().enumerate().filter(|(_, p)| p.0 >= line.from) {
                let said = if self.family == Family::MlaPrefill {
                    let others = points.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, p)| *p).collect();
                    RatioCurve::new(others).at(x).map(|r| (r.ln_ratio, r.fit))
                } else {
                    self.said_by_others(line, x)
                };
                if let Some((ratio, Fit::Exact | Fit::Inside)) = said {
                    errors.push((libm::exp(ratio - ln_ratio) - 1.0).abs());
                }
            }
        }
        errors
    }
}

/// The measured geometry nearest to `wanted` in a GQA table: same window rule, then closest heads and sizes.
pub(super) fn nearest_gqa(table: &Table, wanted: Geometry) -> Option<Geometry> {
    let mut best: Option<(f64, Geometry)> = None;
    for curve in &table.curves {
        let &[_, kv_heads, dim, window, _] = &curve.numbers[..] else { continue };
        if (window > 0) != (wanted.window > 0) {
            continue;
        }
        let distance = log_distance(&[kv_heads, dim, window], &[wanted.kv_heads, wanted.key_dim, wanted.window]);
        if best.is_none_or(|(d, _)| distance < d) {
            best = Some((distance, Geometry::gqa(kv_heads, dim, window)));
        }
    }
    best.map(|(_, geometry)| geometry)
}
