//! Every deployment of a model on a machine, each predicted, the best ones first.

use crate::args::{AllReduceKind, AllToAllKind, DeploymentArgs, Speculation, Switch, word};
use crate::error::Failure;
use crate::prediction::{Prepared, fullest, pace};
use crate::resolve::Model;
use crate::scenario::Scenario;
use crate::table::bytes;
use moetwin::kernels::launch::one_shot::fuses;
use moetwin::models::{Deployment, Phase};
use moetwin::sim::exec::SimMemory;
use moetwin::sim::machine::Machine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A deployment to be predicted, as the flags that say it.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// All of its flags.
    pub(crate) args: DeploymentArgs,
    /// The flags that differ from point to point, as `moetwin sim` takes them: the point's name.
    pub(crate) flags: String,
}

/// What was found out about a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The flags of `moetwin sim` that say it.
    pub(crate) flags: String,
    /// Sequences.
    pub(crate) batch: u32,
    /// Time of a step, milliseconds; with drafting, of the whole step.
    pub(crate) step_ms: Option<f64>,
    /// Tokens a second, summed over sequences.
    pub(crate) tokens_per_s: Option<f64>,
    /// What the fullest rank holds, GiB.
    pub(crate) peak_gib: Option<f64>,
    /// Why it is no answer.
    pub(crate) rejected: Option<String>,
    /// How it is split.
    pub(crate) deployment: Option<Deployment>,
}

impl Row {
    /// Milliseconds from one token of a sequence to its next.
    pub(crate) fn token_ms(&self) -> Option<f64> {
        Some(f64::from(self.batch) / self.tokens_per_s? * 1e3)
    }
}

/// What is varied where the flags leave it open.
pub(crate) struct Space<'a> {
    /// Flags that hold for every point.
    pub(crate) fixed: &'a DeploymentArgs,
    /// Batches to try where none is fixed.
    pub(crate) batches: &'a [u32],
    /// Drafting to try where none is fixed.
    pub(crate) speculation: &'a [Speculation],
    /// GPUs of the machine.
    pub(crate) gpus: u32,
}

fn divisors(n: u32) -> impl Iterator<Item = u32> + Clone {
    (1..=n).filter(move |d| n.is_multiple_of(*d))
}

/// The given value alone, or all candidates.
fn choices<T: Clone>(given: Option<T>, candidates: impl IntoIterator<Item = T>) -> Vec<T> {
    given.map_or_else(|| candidates.into_iter().collect(), |v| vec![v])
}

impl Space<'_> {
    /// Every way to use all GPUs, in a fixed order.
    pub(crate) fn points(&self) -> Vec<Point> {
        let f = self.fixed;
        let mut points = Vec::new();
        for tp in choices(f.tp, divisors(self.gpus)) {
            for pp in choices(f.pp, divisors((self.gpus / tp.max(1)).max(1))) {
                for replicas in choices(f.replicas, [(self.gpus / (tp * pp).max(1)).max(1)]) {
                    for args in self.splits(tp, pp, replicas) {
                        points.extend(self.ways(&args));
                    }
                }
            }
        }
        points
    }
    /// How the ranks of a stage are used.
    fn splits(&self, tp: u32, pp: u32, replicas: u32) -> Vec<DeploymentArgs> {
        let f = self.fixed;
        let mut all = Vec::new();
        for dp in choices(f.dp_attention, divisors(tp)) {
            for dcp in choices(f.dcp, divisors(tp / dp.clamp(1, tp))) {
                for ep in choices(f.ep, divisors(tp)) {
                    let exchanges = [AllToAllKind::None, AllToAllKind::Nccl];
                    let exchanges = exchanges.into_iter().filter(|a| *a == AllToAllKind::None || (ep == tp && tp > 1));
                    for a2a in choices(f.a2a, exchanges) {
                        all.push(DeploymentArgs {
                            tp: Some(tp),
                            pp: Some(pp),
                            replicas: Some(replicas),
                            dp_attention: Some(dp),
                            dcp: Some(dcp),
                            ep: Some(ep),
                            a2a: Some(a2a),
                            ..f.clone()
                        });
                    }
                }
            }
        }
        all
    }
    /// How a split is run.
    fn ways(&self, args: &DeploymentArgs) -> Vec<Point> {
        let f = self.fixed;
        let reduces = [AllReduceKind::Auto, AllReduceKind::OneShot];
        let reduces = reduces.into_iter().filter(|a| *a == AllReduceKind::Auto || args.tp > Some(1));
        let mut points = Vec::new();
        // Whether prompts are captured is the engine's to say.
        let graphs = f.graphs.or((f.phase != Some(Phase::Prefill)).then_some(Switch::On));
        for batch in choices(f.batch, self.batches.iter().copied()) {
            for allreduce in choices(f.allreduce, reduces.clone()) {
                for spec in choices(f.spec, self.speculation.iter().copied()) {
                    let args = DeploymentArgs { batch: Some(batch), graphs, allreduce: Some(allreduce), spec: Some(spec), ..args.clone() };
                    points.push(Point { flags: flags(&args), args });
                }
            }
        }
        points
    }
}

/// The varied flags of a point, those with a neutral value left out.
fn flags(args: &DeploymentArgs) -> String {
    let mut words = vec![format!("--tp {}", args.tp.unwrap_or(1))];
    let sizes =
        [("--pp", args.pp), ("--replicas", args.replicas), ("--dp-attention", args.dp_attention), ("--dcp", args.dcp), ("--ep", args.ep)];
    words.extend(sizes.into_iter().filter_map(|(flag, n)| Some(format!("{flag} {}", n.filter(|n| *n > 1)?))));
    let named = [
        args.a2a.filter(|a| *a != AllToAllKind::None).map(|a| format!("--a2a {}", word(a))),
        args.allreduce.filter(|a| *a != AllReduceKind::Auto).map(|a| format!("--allreduce {}", word(a))),
        args.graphs.filter(|g| *g == Switch::Off).map(|_| "--graphs off".to_owned()),
        args.spec.filter(|s| *s != Speculation::None).map(|s| format!("--spec {s}")),
    ];
    words.extend(named.into_iter().flatten());
    words.push(format!("--batch {}", args.batch.unwrap_or(1)));
    words.join(" ")
}

/// What happens to a row as soon as it is there.
type OnRow<'a> = &'a (dyn Fn(&Row) -> Result<(), Failure> + Sync);

/// Predicts every point that is not known yet, on all cores; rows are in the order of the points whoever came first.
pub(crate) fn run(
    points: &[Point],
    machine: &Machine,
    model: &Model,
    known: &BTreeMap<String, Row>,
    on_row: OnRow<'_>,
) -> Result<Vec<Row>, Failure> {
    let groups: Vec<&[Point]> = points.chunk_by(|a, b| a.same_program(b, model.spec.hidden)).collect();
    let next = AtomicUsize::new(0);
    let found: Mutex<BTreeMap<usize, Vec<Row>>> = Mutex::new(BTreeMap::new());
    let failed: Mutex<Option<Failure>> = Mutex::new(None);
    let work = || {
        let mut memory = SimMemory::default();
        while let Some((index, group)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, groups.get(i)?))) {
            match predict(group, machine, model, (known, on_row), &mut memory) {
                Ok(rows) => drop(found.lock().unwrap_or_else(|e| e.into_inner()).insert(index, rows)),
                Err(e) => {
                    failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(e);
                    next.store(groups.len(), Ordering::Relaxed);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    match failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(e) => Err(e),
        None => Ok(found.into_inner().unwrap_or_else(|e| e.into_inner()).into_values().flatten().collect()),
    }
}

/// To six decimals: what is written to a file and read back is then the same number, digit for digit.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Points with one program. What a deployment cannot be is a rejection, not a failure.
fn predict(
    group: &[Point],
    machine: &Machine,
    model: &Model,
    (known, on_row): (&BTreeMap<String, Row>, OnRow<'_>),
    memory: &mut SimMemory,
) -> Result<Vec<Row>, Failure> {
    let mut prepared: Option<Result<Prepared, String>> = None;
    let mut rows = Vec::with_capacity(group.len());
    for point in group {
        if let Some(row) = known.get(&point.flags) {
            rows.push(row.clone());
            continue;
        }
        let scenario = rejection(Scenario::of(&point.args, machine.clone(), model.clone()))?;
        let row = match scenario {
            Err(reason) => Row { rejected: Some(reason), ..point.row() },
            Ok(scenario) => {
                if prepared.is_none() {
                    prepared = Some(rejection(Prepared::of(&scenario))?);
                }
                match prepared.as_ref().expect("it was just made") {
                    Err(reason) => Row { rejected: Some(reason.clone()), ..point.row() },
                    Ok(prepared) => point.predicted(&scenario, prepared, memory)?,
                }
            }
        };
        on_row(&row)?;
        rows.push(row);
    }
    Ok(rows)
}

/// Input that cannot be is a reason; other failures stay failures.
fn rejection<T>(result: Result<T, Failure>) -> Result<Result<T, String>, Failure> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Failure::Input(e)) => Ok(Err(e.message().lines().next().unwrap_or("not legal").to_owned())),
        Err(e) => Err(e),
    }
}

impl Point {
    /// Whether sums may be fused with the norms behind them: by our kernel, and where the rows that every rank has at least are not too many already for
    /// the fewest ranks.
    fn may_fuse(&self, width: u64) -> bool {
        let a = &self.args;
        let ways = a.replicas.unwrap_or(1).max(1) * a.dp_attention.unwrap_or(1).max(1);
        let rows = u64::from(a.batch.unwrap_or(1).div_ceil(ways));
        a.allreduce == Some(AllReduceKind::OneShot) && a.fuse_allreduce != Some(Switch::Off) && fuses(2, rows, width)
    }
    /// Whether another point differs only in what its program is run with, in a model of rows of this width.
    fn same_program(&self, other: &Point, width: u64) -> bool {
        let key = |p: &Point| {
            let a = &p.args;
            (
                a.tp,
                a.pp,
                a.replicas,
                a.dp_attention,
                a.dcp,
                a.ep,
                a.a2a.map(word),
                a.batch,
                a.graphs.map(word),
                (p.may_fuse(width), a.spec.map(|s| s.to_string())),
            )
        };
        key(self) == key(other)
    }
    /// A row without an answer.
    fn row(&self) -> Row {
        let (flags, batch) = (self.flags.clone(), self.args.batch.unwrap_or(1));
        Row { flags, batch, step_ms: None, tokens_per_s: None, peak_gib: None, rejected: None, deployment: None }
    }
    fn predicted(&self, scenario: &Scenario, prepared: &Prepared, memory: &mut SimMemory) -> Result<Row, Failure> {
        let mut row = self.row();
        row.deployment = Some(scenario.deployment.clone());
        row.peak_gib = fullest(&prepared.ledger).map(|rank| rounded(crate::report::gib(rank.peak_bytes())));
        if let Some(story) = &prepared.start.story {
            row.rejected = Some(format!("does not start: {}", story.lines().next().unwrap_or_default()));
        } else if let Some(e) = &prepared.out_of_memory {
            let (need, free) = (bytes(e.need_bytes), bytes(e.free_bytes));
            row.rejected = Some(format!("does not fit: {} needs {need} a rank, {free} are left", e.line));
        } else {
            let (step_ms, tokens_per_s) = pace(scenario, &prepared.program, memory)?;
            (row.step_ms, row.tokens_per_s) = (Some(rounded(step_ms)), Some(rounded(tokens_per_s)));
        }
        Ok(row)
    }
}

/// Indices of the rows that no other row beats in both time a token and tokens a second.
pub(crate) fn pareto(rows: &[Row]) -> Vec<usize> {
    let figures = |r: &Row| Some((r.token_ms()?, r.tokens_per_s?));
    let beats = |a: (f64, f64), b: (f64, f64)| a.0 <= b.0 && a.1 >= b.1 && a != b;
    let beaten = |f| rows.iter().filter_map(figures).any(|other| beats(other, f));
    (0..rows.len()).filter(|i| figures(&rows[*i]).is_some_and(|f| !beaten(f))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(batch: u32, tokens_per_s: f64) -> Row {
        Row {
            flags: String::new(),
            batch,
            step_ms: Some(1.0),
            tokens_per_s: Some(tokens_per_s),
            peak_gib: None,
            rejected: None,
            deployment: None,
        }
    }

    #[test]
    fn the_front_holds_what_nothing_beats() {
        // 10 ms at 100 tok/s; 16 ms at 500; 20 ms at 400, beaten by both figures of the second; one that was rejected.
        let rejected = Row { tokens_per_s: None, ..row(1, 1.0) };
        assert_eq!(pareto(&[row(1, 100.0), row(8, 500.0), row(8, 400.0), rejected]), [0, 1]);
        assert_eq!(pareto(&[row(1, 100.0), row(1, 100.0)]), [0, 1]);
    }

    #[test]
    fn every_point_uses_all_gpus_and_has_its_own_name() {
        let fixed = DeploymentArgs::default();
        let space = Space { fixed: &fixed, batches: &[1, 8], speculation: &[Speculation::None], gpus: 8 };
        let points = space.points();
        let names: std::collections::BTreeSet<&String> = points.iter().map(|p| &p.flags).collect();
        assert_eq!(names.len(), points.len());
        for p in &points {
            let a = &p.args;
            assert_eq!(a.tp.unwrap() * a.pp.unwrap() * a.replicas.unwrap(), 8, "{}", p.flags);
        }
        let fixed = DeploymentArgs { tp: Some(8), ep: Some(8), batch: Some(4), ..DeploymentArgs::default() };
        let space = Space { fixed: &fixed, ..space };
        assert!(space.points().iter().all(|p| p.flags.contains("--tp 8") && p.flags.contains("--ep 8") && p.flags.ends_with("--batch 4")));
    }
}
