//! The arithmetic of ops that exchange data: who holds which indices, and sums in rank order.
//!
//! An executor brings the group's arrays together; these functions compute what one rank is left with.

use super::array::{Array, Data};
use super::real::Real;
use moetwin_models::graph::SplitError;
use moetwin_models::{Axis, Dim, Graph, RankId, Segment, TensorId};
use std::ops::Range;

/// The index ranges along dimension `dim` of `whole` that `rank` holds of `part`, counted from what `rank` holds of `whole`.
///
/// Packed dimensions give one range a segment; every other dimension gives one range.
///
/// Errors where the deployment cannot cut one of the tensors.
pub fn held_ranges(graph: &Graph, whole: TensorId, part: TensorId, dim: u8, rank: RankId) -> Result<Vec<Range<usize>>, SplitError> {
    let tensor = &graph.tensors[part];
    if let (Some(Dim::Packed(segments)), Some(axis)) = (tensor.shape.get(usize::from(dim)), tensor.layout.shard_axis(dim)) {
        let cut = |axis: Axis| (axis, graph.deployment.axis_index(axis, rank), graph.deployment.axis_size(axis));
        let units = |s: &Segment, (axis, index, parts): (Axis, u32, u32)| {
            let fault = || SplitError { tensor: tensor.name.clone(), dim, size: u64::from(s.units), axis, parts };
            s.part(index, parts).ok_or_else(fault)
        };
        // What the rank holds of `whole` may itself be a part: heads of a decode-context group.
        let outer = graph.tensors[whole].layout.shard_axis(dim).map(cut);
        let mut first = 0;
        let ranges = segments.iter().map(|s| {
            let held = outer.map_or(Ok(0..s.units), |outer| units(s, outer))?;
            let part = units(s, cut(axis))?;
            let (start, width) = (first, s.width as usize);
            first += held.len() * width;
            let at = |unit: u32| start + unit.saturating_sub(held.start) as usize * width;
            Ok(at(part.start)..at(part.end))
        });
        return ranges.collect();
    }
    let (whole, part) = (graph.local_shape(whole, rank)?, graph.local_shape(part, rank)?);
    let (whole, part) = (whole[usize::from(dim)].clone(), part[usize::from(dim)].clone());
    let from_whole = |index: u64| index.saturating_sub(whole.start) as usize;
    Ok(one(from_whole(part.start)..from_whole(part.end)))
}

fn one(range: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(range).collect()
}

/// Elements before, along and after a dimension.
#[derive(Clone, Copy)]
struct Strides {
    outer: usize,
    size: usize,
    inner: usize,
}

impl Strides {
    fn of(sizes: &[usize], dim: u8) -> Result<Self, CollectiveError> {
        let dim = usize::from(dim);
        let size = *sizes.get(dim).ok_or_else(|| CollectiveError::NoSuchDim { dim, sizes: sizes.to_vec() })?;
        Ok(Self { outer: sizes[..dim].iter().product(), size, inner: sizes[dim + 1..].iter().product() })
    }
    /// Element ranges of one outer index for the given index ranges.
    fn runs<'a>(&self, outer: usize, ranges: &'a [Range<usize>]) -> impl Iterator<Item = Range<usize>> + 'a {
        let Self { size, inner, .. } = *self;
        ranges.iter().map(move |r| (outer * size + r.start) * inner..(outer * size + r.end) * inner)
    }
}

/// The sum over ranks, in the order given: `((p0 + p1) + p2) + ..`.
///
/// Errors where there are no parts, they differ in size, or they hold ids.
pub fn all_reduce<T: Real>(parts: &[&Array<T>], out: &mut Array<T>) -> Result<(), CollectiveError> {
    sum(parts, out, |sizes| Ok(one(0..sizes.iter().product())))
}

/// What the holder of `ranges` along `dim` keeps of the sum over ranks, in the order given.
///
/// Errors where the parts differ in size or hold ids, or the ranges leave them or do not fill `out`.
pub fn reduce_scatter<T: Real>(parts: &[&Array<T>], dim: u8, ranges: &[Range<usize>], out: &mut Array<T>) -> Result<(), CollectiveError> {
    sum(parts, out, |sizes| runs(sizes, dim, ranges))
}

/// What the holder of `ranges` along `dim` keeps of `whole`.
///
/// Errors where the ranges leave `whole` or do not fill `out`.
pub fn slice<T: Real>(whole: &Array<T>, dim: u8, ranges: &[Range<usize>], out: &mut Array<T>) -> Result<(), CollectiveError> {
    check_length(whole)?;
    let runs = runs(&whole.sizes, dim, ranges)?;
    match (&whole.data, &mut out.data) {
        (Data::Real(from), Data::Real(to)) => copy_runs(from, &runs, to),
        (Data::Int(from), Data::Int(to)) => copy_runs(from, &runs, to),
        _ => Err(CollectiveError::Kind),
    }
}

/// One rank's part and the index ranges that it fills along the gathered dimension.
#[derive(Clone, Debug)]
pub struct GatherPart<'a, T> {
    /// The values.
    pub array: &'a Array<T>,
    /// Where they go. Ranks that share a replicated unit name the same range.
    pub ranges: Vec<Range<usize>>,
}

/// Puts the parts together along `dim`; where ranks share an index, the first one's value is taken.
///
/// Errors where a part has another size than its ranges, ranges leave `out`, or an index of `out` belongs to no part.
pub fn all_gather<T: Real>(parts: &[GatherPart<'_, T>], dim: u8, out: &mut Array<T>) -> Result<(), CollectiveError> {
    check_length(out)?;
    let strides = Strides::of(&out.sizes, dim)?;
    let mut covered = vec![false; strides.size];
    // Later parts are written first, so that the first holder of a shared index has the last word.
    for part in parts.iter().rev() {
        check_length(part.array)?;
        let runs = runs(&out.sizes, dim, &part.ranges)?;
        for range in &part.ranges {
            covered[range.clone()].fill(true);
        }
        match (&part.array.data, &mut out.data) {
            (Data::Real(from), Data::Real(to)) => spread_runs(from, &runs, to)?,
            (Data::Int(from), Data::Int(to)) => spread_runs(from, &runs, to)?,
            _ => return Err(CollectiveError::Kind),
        }
    }
    match covered.iter().position(|c| !c) {
        Some(index) if strides.outer * strides.inner > 0 => Err(CollectiveError::Hole { dim: usize::from(dim), index }),
        _ => Ok(()),
    }
}

/// One rank's tokens before a dispatch.
#[derive(Clone, Copy, Debug)]
pub struct DispatchSource<'a, T> {
    /// `[T, H]`.
    pub x: &'a Array<T>,
    /// `[T, k]` expert slots, -1 for none.
    pub ids: &'a Array<T>,
    /// `[T, k]`.
    pub weights: &'a Array<T>,
}

/// What a rank has after a dispatch: `(x[Received, H], ids[Received, k], weights[Received, k])`, where row `source * slots + row` belongs
/// to row `row` of rank `source`. A row that chose none of the receiver's `experts` has ids of -1 and zeros.
///
/// Errors where a source has more rows than slots or shapes do not fit together.
pub fn dispatch<T: Real>(
    sources: &[DispatchSource<'_, T>],
    experts: Range<i32>,
    outputs: &mut [Array<T>; 3],
) -> Result<(), CollectiveError> {
    let [x_out, ids_out, weights_out] = outputs;
    let (&[received, hidden], &[_, topk]) = (x_out.sizes.as_slice(), ids_out.sizes.as_slice()) else {
        return Err(CollectiveError::NoSuchDim { dim: 1, sizes: x_out.sizes.clone() });
    };
    let expected = [(&*x_out, hidden), (&*ids_out, topk), (&*weights_out, topk)];
    if sources.is_empty() || !received.is_multiple_of(sources.len()) || expected.iter().any(|(a, c)| a.sizes != [received, *c]) {
        return Err(CollectiveError::Shapes { first: vec![received, hidden], other: weights_out.sizes.clone() });
    }
    for array in [&*x_out, ids_out, weights_out] {
        check_length(array)?;
    }
    let (Data::Real(x_out), Data::Int(ids_out), Data::Real(weights_out)) = (&mut x_out.data, &mut ids_out.data, &mut weights_out.data)
    else {
        return Err(CollectiveError::Kind);
    };
    x_out.fill(T::ZERO);
    ids_out.fill(-1);
    weights_out.fill(T::ZERO);
    let slots = received / sources.len();
    for (source, tokens) in sources.iter().enumerate() {
        for array in [tokens.x, tokens.ids, tokens.weights] {
            check_length(array)?;
        }
        let rows = tokens.x.sizes.first().copied().unwrap_or(0);
        if rows > slots || tokens.x.sizes != [rows, hidden] || tokens.ids.sizes != [rows, topk] || tokens.weights.sizes != [rows, topk] {
            return Err(CollectiveError::Shapes { first: vec![slots, hidden], other: tokens.x.sizes.clone() });
        }
        let (Data::Real(x), Data::Int(ids), Data::Real(weights)) = (&tokens.x.data, &tokens.ids.data, &tokens.weights.data) else {
            return Err(CollectiveError::Kind);
        };
        for row in 0..rows {
            let chosen = &ids[row * topk..(row + 1) * topk];
            if chosen.iter().any(|id| experts.contains(id)) {
                let to = source * slots + row;
                x_out[to * hidden..(to + 1) * hidden].copy_from_slice(&x[row * hidden..(row + 1) * hidden]);
                ids_out[to * topk..(to + 1) * topk].copy_from_slice(chosen);
                weights_out[to * topk..(to + 1) * topk].copy_from_slice(&weights[row * topk..(row + 1) * topk]);
            }
        }
    }
    Ok(())
}

/// What rank number `receiver` of the group has after a combine: its rows `y[T, H]`, each the sum, in rank order, of the row's slot on
/// every rank. Slots that were not sent to hold zeros, since their ids are -1.
///
/// Errors where the parts differ in size or have too few slots for the rows of `out`.
pub fn combine<T: Real>(parts: &[&Array<T>], receiver: usize, out: &mut Array<T>) -> Result<(), CollectiveError> {
    let slots = parts.first().and_then(|p| p.sizes.first()).map_or(0, |received| received / parts.len());
    let rows = out.sizes.first().copied().unwrap_or(0);
    if rows > slots {
        return Err(CollectiveError::Shapes { first: vec![slots], other: out.sizes.clone() });
    }
    reduce_scatter(parts, 0, &one(receiver * slots..receiver * slots + rows), out)
}

/// Element ranges of the index ranges, outermost first.
fn runs(sizes: &[usize], dim: u8, ranges: &[Range<usize>]) -> Result<Vec<Range<usize>>, CollectiveError> {
    let strides = Strides::of(sizes, dim)?;
    if let Some(r) = ranges.iter().find(|r| r.start > r.end || r.end > strides.size) {
        return Err(CollectiveError::OutOfRange { start: r.start, end: r.end, size: strides.size });
    }
    Ok((0..strides.outer).flat_map(|outer| strides.runs(outer, ranges)).collect())
}

fn sum<T: Real>(
    parts: &[&Array<T>],
    out: &mut Array<T>,
    runs: impl Fn(&[usize]) -> Result<Vec<Range<usize>>, CollectiveError>,
) -> Result<(), CollectiveError> {
    let Some(first) = parts.first() else { return Err(CollectiveError::NoParts) };
    if let Some(other) = parts.iter().find(|p| p.sizes != first.sizes) {
        return Err(CollectiveError::Shapes { first: first.sizes.clone(), other: other.sizes.clone() });
    }
    let runs = runs(&first.sizes)?;
    let Data::Real(out) = &mut out.data else { return Err(CollectiveError::Kind) };
    for (i, part) in parts.iter().enumerate() {
        check_length(part)?;
        let Data::Real(part) = &part.data else { return Err(CollectiveError::Kind) };
        if i == 0 {
            copy_runs(part, &runs, out)?;
        } else {
            let values = runs.iter().flat_map(|r| &part[r.clone()]);
            out.iter_mut().zip(values).for_each(|(o, v)| *o += *v);
        }
    }
    Ok(())
}

/// `to` becomes the runs of `from`, one after the other.
fn copy_runs<E: Copy>(from: &[E], runs: &[Range<usize>], to: &mut [E]) -> Result<(), CollectiveError> {
    check_run_total(runs, to.len())?;
    let mut next = 0;
    for run in runs {
        to[next..next + run.len()].copy_from_slice(&from[run.clone()]);
        next += run.len();
    }
    Ok(())
}

/// The runs of `to` become `from`, piece after piece.
fn spread_runs<E: Copy>(from: &[E], runs: &[Range<usize>], to: &mut [E]) -> Result<(), CollectiveError> {
    check_run_total(runs, from.len())?;
    let mut next = 0;
    for run in runs {
        to[run.clone()].copy_from_slice(&from[next..next + run.len()]);
        next += run.len();
    }
    Ok(())
}

fn check_run_total(runs: &[Range<usize>], elements: usize) -> Result<(), CollectiveError> {
    let total: usize = runs.iter().map(ExactSizeIterator::len).sum();
    if total == elements { Ok(()) } else { Err(CollectiveError::Length { got: elements, expected: total }) }
}

fn check_length<T: Real>(array: &Array<T>) -> Result<(), CollectiveError> {
    let expected: usize = array.sizes.iter().product();
    if array.data.len() == expected { Ok(()) } else { Err(CollectiveError::Length { got: array.data.len(), expected }) }
}

/// Arrays that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// An empty group.
    #[error("no rank takes part")]
    NoParts,
    /// Ids where real numbers are summed, or a mixture.
    #[error("ids and real numbers cannot be combined, and ids cannot be summed")]
    Kind,
    /// Parts of different shapes.
    #[error("sizes {other:?} do not fit {first:?}")]
    Shapes {
        /// Sizes expected.
        first: Vec<usize>,
        /// Sizes found.
        other: Vec<usize>,
    },
    /// More or fewer elements than the ranges or sizes say.
    #[error("{got} elements, expected {expected}")]
    Length {
        /// Elements found.
        got: usize,
        /// Elements expected.
        expected: usize,
    },
    /// A dimension the array does not have.
    #[error("dimension {dim} of an array of sizes {sizes:?}")]
    NoSuchDim {
        /// The dimension.
        dim: usize,
        /// The array's sizes.
        sizes: Vec<usize>,
    },
    /// An index range outside the dimension.
    #[error("indices {start}..{end} of a dimension of size {size}")]
    OutOfRange {
        /// First index.
        start: usize,
        /// One past the last index.
        end: usize,
        /// Size of the dimension.
        size: usize,
    },
    /// An index that no rank holds.
    #[error("no rank holds index {index} of dimension {dim}")]
    Hole {
        /// The dimension.
        dim: usize,
        /// The index.
        index: usize,
    },
}
