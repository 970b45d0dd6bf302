//! The step that repeats in a profile.

use super::{Group, Kernel};
use moetwin_models::OpClass;
use std::collections::BTreeMap;

/// A step repeats where at least this share of kernels are the same one period later.
const REPEATS: f64 = 0.6;
/// Candidates whose shares are this near are as good; the shortest is then the step, the others are several.
const AS_GOOD: f64 = 0.01;
/// Steps that take longer or shorter than the median by more than this share are of other batches, or hold a pause.
const STEADY: f64 = 0.25;
/// Periods that are tried at most.
const MOST_CANDIDATES: usize = 256;

/// Steps of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Begin and end of each, picoseconds, in order; alike steps only.
    pub windows: Vec<(u64, u64)>,
    /// Kernels of a step on the busiest stream.
    pub kernels: usize,
    /// Steps that were found and left out because they take another time.
    pub others: usize,
}

/// Finds the step among one GPU's kernels, which are in order of their start; `groups` says what each is. A step runs the attention of at least
/// `layers` layers, or it is a part of one. `None` where nothing repeats.
pub fn find_steps(kernels: &[Kernel], groups: &[Group], layers: u32) -> Option<Steps> {
    let mut streams: BTreeMap<u64, usize> = BTreeMap::new();
    kernels.iter().for_each(|k| *streams.entry(k.stream).or_default() += 1);
    let busiest = streams.iter().max_by_key(|(stream, n)| (**n, std::cmp::Reverse(**stream))).map(|(stream, _)| *stream)?;
    let main: Vec<(usize, &Kernel)> = kernels.iter().enumerate().filter(|(_, k)| k.stream == busiest).collect();
    let names: Vec<u32> = main.iter().map(|(_, k)| k.name).collect();
    let mut places: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    names.iter().enumerate().for_each(|(i, n)| places.entry(*n).or_default().push(i));
    let attention: Vec<u32> = main
        .iter()
        .scan(0, |seen, (i, _)| {
            *seen += u32::from(groups.get(*i) == Some(&Group::Class(OpClass::AttentionCore)));
            Some(*seen)
        })
        .collect();
    let period = period(&names, &places, |p| whole(&attention, p, layers))?;
    let (anchor, _) = anchor(&places, period)?;
    let starts: Vec<usize> = places.get(&anchor)?.clone();
    let mut windows: Vec<(u64, u64)> = starts
        .windows(2)
        .filter(|w| (w[1] - w[0]).abs_diff(period) * 50 <= period)
        .map(|w| (main[w[0]].1.start_ps, main[w[1]].1.start_ps))
        .collect();
    let all = windows.len();
    let mut times: Vec<u64> = windows.iter().map(|w| w.1 - w.0).collect();
    times.sort_unstable();
    let median = *times.get(times.len() / 2)? as f64;
    windows.retain(|w| ((w.1 - w.0) as f64 - median).abs() <= STEADY * median);
    let others = all - windows.len();
    (!windows.is_empty()).then_some(Steps { windows, kernels: period, others })
}

/// Whether a window of `period` kernels runs enough attention for a whole step, wherever it begins.
fn whole(attention: &[u32], period: usize, layers: u32) -> bool {
    let (Some(last), true) = (attention.last(), attention.len() >= period) else { return false };
    // Mean over the profile, for a period may begin anywhere in it.
    let a_period = f64::from(*last) * period as f64 / attention.len() as f64;
    // Where no attention is known by name, nothing can be said against it.
    *last == 0 || a_period >= f64::from(layers) * 0.9
}

/// The number of kernels after which the sequence is the same again.
fn period(names: &[u32], places: &BTreeMap<u32, Vec<usize>>, whole: impl Fn(usize) -> bool) -> Option<usize> {
    let mut candidates: Vec<usize> = places.values().filter_map(|p| median_gap(p)).filter(|p| *p * 2 <= names.len() + 1).collect();
    candidates.sort_unstable();
    candidates.dedup();
    candidates.retain(|p| whole(*p));
    candidates.truncate(MOST_CANDIDATES);
    let same =
        |p: usize| names.iter().zip(&names[p.min(names.len())..]).filter(|(a, b)| a == b).count() as f64 / (names.len() - p).max(1) as f64;
    let shares: Vec<(usize, f64)> = candidates.into_iter().map(|p| (p, same(p))).collect();
    let best = shares.iter().map(|s| s.1).fold(0.0, f64::max);
    if best < REPEATS {
        return None;
    }
    shares.into_iter().find(|(_, share)| *share >= best - AS_GOOD).map(|(p, _)| p)
}

fn median_gap(places: &[usize]) -> Option<usize> {
    let mut gaps: Vec<usize> = places.windows(2).map(|w| w[1] - w[0]).collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied()
}

/// A kernel that runs once a step: of those whose places are a period apart, the one with the fewest, then the earliest.
fn anchor(places: &BTreeMap<u32, Vec<usize>>, period: usize) -> Option<(u32, usize)> {
    let once = places.iter().filter(|(_, p)| median_gap(p).is_some_and(|gap| gap.abs_diff(period) * 50 <= period));
    once.min_by_key(|(_, p)| (p.len(), p[0])).map(|(name, p)| (*name, p.len()))
}
