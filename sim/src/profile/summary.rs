//! What a step takes by class, as profiled and as planned.

use super::{Content, Group, Kernel, Profile, find_steps, groups};
use crate::exec::{SimTrace, SpanKind, Track};
use moetwin_models::{OpClass, ids::Id};
use moetwin_runtime::Program;
use serde::Serialize;
use std::collections::BTreeMap;

/// Kernels that are named in each class.
const NAMED: usize = 4;

/// A kernel in a class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelSum {
    /// Its name.
    pub name: String,
    /// Microseconds a step.
    pub us: f64,
    /// Runs a step.
    pub calls: f64,
}

/// A class of a profiled step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassSum {
    /// Class (see [`Group::name`]).
    pub class: &'static str,
    /// Microseconds a step and GPU, kernels of all streams added up.
    pub us: f64,
    /// Kernels a step and GPU.
    pub calls: f64,
    /// Those that take most.
    pub kernels: Vec<KernelSum>,
}

/// A profiled step, mean over steps and GPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepProfile {
    /// GPUs in the profile.
    pub devices: usize,
    /// Steps that were added up, of all GPUs.
    pub steps: usize,
    /// Steps that were found and left out because they take another time.
    pub steps_left_out: usize,
    /// Kernels a step.
    pub kernels: f64,
    /// Microseconds from step to step; `None` where the profile has no times.
    pub step_us: Option<f64>,
    /// Of them, microseconds in which a kernel runs.
    pub busy_us: Option<f64>,
    /// By class, longest first.
    pub classes: Vec<ClassSum>,
}

/// Sums by class and name, picoseconds and runs.
#[derive(Default)]
struct Sums {
    by_name: BTreeMap<(Group, u32), (u64, u64)>,
}

impl Sums {
    fn add(&mut self, group: Group, name: u32, ps: u64, count: u64) {
        let sum = self.by_name.entry((group, name)).or_default();
        sum.0 = sum.0.saturating_add(ps);
        sum.1 = sum.1.saturating_add(count);
    }
    fn classes(self, profile: &Profile, steps: f64) -> Vec<ClassSum> {
        let mut out: BTreeMap<Group, ClassSum> = BTreeMap::new();
        for ((group, name), (ps, count)) in self.by_name {
            let (us, calls) = (ps as f64 / 1e6 / steps, count as f64 / steps);
            let class = out.entry(group).or_insert_with(|| ClassSum { class: group.name(), us: 0.0, calls: 0.0, kernels: Vec::new() });
            class.us += us;
            class.calls += calls;
            let name = profile.names.get(name as usize).cloned().unwrap_or_default();
            class.kernels.push(KernelSum { name, us, calls });
        }
        let mut out: Vec<ClassSum> = out.into_values().collect();
        for class in &mut out {
            class.kernels.sort_by(|a, b| b.us.total_cmp(&a.us).then_with(|| a.name.cmp(&b.name)));
            class.kernels.truncate(NAMED);
        }
        out.sort_by(|a, b| b.us.total_cmp(&a.us));
        out
    }
}

/// A profile's step: `steps` of them in the whole profile where that is given, else as found by what repeats; `layers` is how many layers a GPU
/// runs. `None` where nothing repeats, or where only `steps` could say.
pub fn summarize(profile: &Profile, steps: Option<u32>, layers: u32) -> Option<StepProfile> {
    let groups = groups(profile);
    match &profile.content {
        Content::Sums(all) => {
            let steps = f64::from(steps?);
            let mut sums = Sums::default();
            all.iter().zip(&groups).for_each(|(s, g)| sums.add(*g, s.name, s.total_ps, s.count));
            let kernels = all.iter().map(|s| s.count as f64).sum::<f64>() / steps;
            let classes = sums.classes(profile, steps);
            Some(StepProfile { devices: 1, steps: steps as usize, steps_left_out: 0, kernels, step_us: None, busy_us: None, classes })
        }
        Content::Timed(kernels) => timed(profile, kernels, &groups, steps, layers),
    }
}

fn timed(profile: &Profile, kernels: &[Kernel], groups: &[Group], given: Option<u32>, layers: u32) -> Option<StepProfile> {
    let mut sums = Sums::default();
    let (mut steps, mut left_out, mut step_ps, mut busy_ps, mut count) = (0u64, 0, 0u64, 0u64, 0u64);
    let mut devices = 0;
    let mut from = 0;
    while from < kernels.len() {
        let to = from + kernels[from..].partition_point(|k| k.device == kernels[from].device);
        let (own, of) = (&kernels[from..to], &groups[from..to]);
        from = to;
        let (windows, n) = match given {
            Some(n) => {
                let end = own.iter().map(Kernel::end_ps).max()?;
                (vec![(own[0].start_ps, end)], u64::from(n.max(1)))
            }
            // A GPU that runs something else (another engine, a display) has no step.
            None => match find_steps(own, of, layers) {
                Some(found) => {
                    left_out += found.others;
                    let n = found.windows.len() as u64;
                    (found.windows, n)
                }
                None => continue,
            },
        };
        devices += 1;
        steps += n;
        for (begin, end) in windows {
            step_ps = step_ps.saturating_add(end - begin);
            let first = own.partition_point(|k| k.start_ps < begin);
            let last = own.partition_point(|k| k.start_ps < end).max(if given.is_some() { own.len() } else { 0 });
            let mut until = begin;
            for (k, group) in own[first..last].iter().zip(&of[first..last]) {
                sums.add(*group, k.name, k.duration_ps, 1);
                count += 1;
                let over = k.end_ps().min(end);
                busy_ps = busy_ps.saturating_add(over.saturating_sub(k.start_ps.max(until)));
                until = until.max(over);
            }
        }
    }
    if steps == 0 {
        return None;
    }
    let n = steps as f64;
    Some(StepProfile {
        devices,
        steps: steps as usize,
        steps_left_out: left_out,
        kernels: count as f64 / n,
        step_us: Some(step_ps as f64 / 1e6 / n),
        busy_us: Some(busy_ps as f64 / 1e6 / n),
        classes: sums.classes(profile, n),
    })
}

/// A class of a planned step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PlannedClass {
    /// Microseconds a step and rank: kernels, and exchanges from each rank's arrival on, as a profiler sees them.
    pub us: f64,
    /// Of them, microseconds of waiting for other ranks.
    pub waits_us: f64,
    /// Kernels a step and rank.
    pub calls: f64,
}

/// A planned step as a profiler would see it, mean over ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planned {
    /// By class.
    pub classes: BTreeMap<OpClass, PlannedClass>,
    /// The step, microseconds.
    pub step_us: f64,
    /// Of it, microseconds in which a kernel runs.
    pub busy_us: f64,
}

/// What a profiler would see of a simulated step.
pub fn planned(program: &Program, trace: &SimTrace) -> Planned {
    let ranks = trace.costs.len().max(1) as f64;
    let each = ranks * f64::from(trace.steps.max(1));
    let mut out = Planned { step_us: trace.step_time().as_us(), ..Planned::default() };
    let mut until = vec![0u64; trace.costs.len()];
    let mut busy_ps = 0u64;
    for (id, span) in trace.spans.iter().filter(|(_, s)| s.track != Track::Host) {
        let Some(command) = span.command else { continue };
        let class = out.classes.entry(program.graph.nodes[command.node].op.class()).or_default();
        class.us += span.duration().as_us() / each;
        class.calls += match span.kind {
            SpanKind::Compute => {
                span.index.and_then(|i| trace.costs[span.rank].get(i as usize)).map_or(1.0, |cost| f64::from(cost.kernels))
            }
            _ => 1.0,
        } / each;
        if let Some(ready) = trace.ready(id) {
            class.waits_us += ready.since(span.start).as_us() / each;
        }
        let (start, end) = (span.start.since(crate::time::Time::ZERO).as_ps(), span.end.since(crate::time::Time::ZERO).as_ps());
        let covered = &mut until[span.rank.index()];
        busy_ps += end.saturating_sub(start.max(*covered));
        *covered = (*covered).max(end);
    }
    out.busy_us = busy_ps as f64 / 1e6 / each;
    out
}
