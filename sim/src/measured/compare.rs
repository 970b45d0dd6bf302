//! Predicted beside measured, command by command, and what the difference says.

use super::{Interval, Origin, Trace};
use moetwin_models::OpClass;
use serde::Serialize;
use std::collections::BTreeMap;

/// Differences below this share are met: what events of a GPU's stream resolve, and what repetitions differ by.
const MET: f64 = 0.10;
/// A class below this share of the measured time is not worth a sentence.
const WORTH_A_SENTENCE: f64 = 0.02;
/// Rows that are named as the worst.
const WORST: usize = 10;

/// A command in both traces. Waiting for other ranks is not in its times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommandRow {
    /// The command.
    pub command: String,
    /// Its op.
    pub op: String,
    /// The tensor that it writes.
    pub result: String,
    /// Class (see [`OpClass::name`]).
    pub class: &'static str,
    /// Microseconds predicted.
    pub predicted_us: f64,
    /// Microseconds measured.
    pub measured_us: f64,
    /// Share of all measured time of its rank.
    pub share: f64,
    /// Where the prediction comes from.
    pub from: String,
}

/// The same command of every layer and rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpRow {
    /// Its op.
    pub op: String,
    /// The tensor that it writes, without its layer.
    pub result: String,
    /// Commands.
    pub commands: u64,
    /// Microseconds predicted, the mean.
    pub predicted_us: f64,
    /// Microseconds measured, the mean.
    pub measured_us: f64,
}

/// A class of commands, mean over ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassRow {
    /// Class (see [`OpClass::name`]).
    pub class: &'static str,
    /// Commands of a rank.
    pub calls: f64,
    /// Microseconds predicted.
    pub predicted_us: f64,
    /// Microseconds measured.
    pub measured_us: f64,
    /// Share of the measured time.
    pub share: f64,
    /// Of the predicted time, microseconds of bytes over the memory rate.
    pub memory_us: f64,
    /// Median over its commands of the distance from predicted to measured, as a share of the measured time.
    pub median_error: f64,
    /// Microseconds of waiting for other ranks, predicted and measured.
    pub waiting_us: (f64, f64),
}

/// The whole step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepRow {
    /// Milliseconds predicted.
    pub predicted_ms: f64,
    /// Milliseconds measured: a replay where the step is captured.
    pub measured_ms: f64,
    /// Predicted over measured, less one.
    pub error: f64,
    /// Milliseconds of the same step launched command by command, where that was measured.
    pub eager_ms: Option<f64>,
    /// Milliseconds of the same step captured on one stream, where that was measured.
    pub one_stream_ms: Option<f64>,
    /// Milliseconds of all commands one after the other, on the rank where they take longest.
    pub commands_ms: f64,
    /// The same, predicted.
    pub predicted_commands_ms: f64,
    /// Median over the commands of the distance from predicted to measured, as a share of the measured time.
    pub median_error: f64,
    /// The same with equal commands of all layers taken together: what differs between them is what measuring them differs by.
    pub median_error_of_ops: f64,
}

/// Predicted beside measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Commands in both, worst first: by how much time they are off.
    pub rows: Vec<CommandRow>,
    /// By what they do in a layer, longest first.
    pub ops: Vec<OpRow>,
    /// By class, longest first.
    pub classes: Vec<ClassRow>,
    /// The step.
    pub step: StepRow,
    /// The commands that are off by most.
    pub worst: Vec<String>,
    /// What the differences say.
    pub findings: Vec<String>,
    /// Commands that only one of the traces has: predicted only, measured only.
    pub unmatched: (u64, u64),
}

/// A command's times of one trace, over its steps.
#[derive(Clone, Debug, Default)]
struct Side {
    steps: u32,
    own_ps: u64,
    waiting_ps: u64,
    memory_ps: u64,
}

impl Side {
    fn add(&mut self, i: &Interval, origin: Origin) {
        // What a measured command takes is by itself, so a predicted one is taken without what ran beside it.
        let duration = i.alone_ps.filter(|_| origin == Origin::Simulated).unwrap_or(i.duration_ps);
        let waiting = i.arrival_ps.unwrap_or(0).min(duration);
        self.steps += 1;
        self.own_ps += duration - waiting;
        self.waiting_ps += waiting;
        self.memory_ps += i.memory_ps.unwrap_or(0);
    }
    fn us(&self, ps: u64) -> f64 {
        ps as f64 / 1e6 / f64::from(self.steps.max(1))
    }
}

/// By rank and command: all of its intervals, and the first.
type Sides<'a> = BTreeMap<(u32, &'a str), (Side, &'a Interval)>;

fn by_command(trace: &Trace) -> Sides<'_> {
    let mut sides = BTreeMap::new();
    for i in &trace.intervals {
        let Some(command) = &i.command else { continue };
        sides.entry((i.rank, command.as_str())).or_insert_with(|| (Side::default(), i)).0.add(i, trace.origin);
    }
    sides
}

/// Joins a prediction with a measurement of the same program.
///
/// Of one rank alone, exchanges are stand-ins: [`Trace::without_exchanges`] of both is what can be compared.
pub fn compare(predicted: &Trace, measured: &Trace) -> Comparison {
    let (ours, theirs) = (by_command(predicted), by_command(measured));
    let mut of_rank: BTreeMap<u32, f64> = BTreeMap::new();
    theirs.iter().for_each(|((rank, _), (side, _))| *of_rank.entry(*rank).or_default() += side.us(side.own_ps));
    let ranks = of_rank.len().max(1) as f64;
    let (mut rows, mut classes) = (Vec::new(), BTreeMap::<OpClass, Class>::new());
    for (key, (found, interval)) in &theirs {
        let Some((expected, said)) = ours.get(key).filter(|(_, said)| said.name == interval.name) else { continue };
        let class = interval.class.or(said.class).unwrap_or(OpClass::Elementwise);
        let (predicted_us, measured_us) = (expected.us(expected.own_ps), found.us(found.own_ps));
        let into = classes.entry(class).or_default();
        into.calls += 1.0 / ranks;
        into.predicted_us += predicted_us / ranks;
        into.measured_us += measured_us / ranks;
        into.memory_us += expected.us(expected.memory_ps) / ranks;
        into.waiting.0 += expected.us(expected.waiting_ps) / ranks;
        into.waiting.1 += found.us(found.waiting_ps) / ranks;
        if measured_us > 0.0 {
            into.errors.push((predicted_us / measured_us - 1.0).abs());
        }
        rows.push(CommandRow {
            command: key.1.to_owned(),
            op: interval.name.clone(),
            result: interval.result.clone().or_else(|| said.result.clone()).unwrap_or_default(),
            class: class.name(),
            predicted_us,
            measured_us,
            share: measured_us / of_rank[&key.0].max(f64::MIN_POSITIVE),
            from: said.from.clone().unwrap_or_default(),
        });
    }
    let off = |r: &CommandRow| (r.predicted_us - r.measured_us).abs();
    rows.sort_by(|a, b| off(b).total_cmp(&off(a)).then_with(|| a.command.cmp(&b.command)));
    let ops = by_op(&rows);
    let step = StepRow {
        median_error_of_ops: median(
            ops.iter().filter(|o| o.measured_us > 0.0).map(|o| (o.predicted_us / o.measured_us - 1.0).abs()).collect(),
        ),
        one_stream_ms: measured.one_stream_ps.map(|ps| ps as f64 / 1e9),
        predicted_commands_ms: added_up_ms(&ours),
        median_error: median(rows.iter().filter(|r| r.measured_us > 0.0).map(|r| (r.predicted_us / r.measured_us - 1.0).abs()).collect()),
        predicted_ms: predicted.step_ps as f64 / 1e9,
        measured_ms: measured.step_ps as f64 / 1e9,
        error: predicted.step_ps as f64 / (measured.step_ps as f64).max(1.0) - 1.0,
        eager_ms: measured.eager_ps.map(|ps| ps as f64 / 1e9),
        commands_ms: measured.commands_ps.map_or_else(|| added_up_ms(&theirs), |ps| ps as f64 / 1e9),
    };
    // A program whose sums are fused with norms numbers its commands otherwise: what is not the same op is not the same command.
    let count = |a: &Sides<'_>, b: &Sides<'_>| {
        a.iter().filter(|(key, (_, one))| b.get(*key).is_none_or(|(_, other)| other.name != one.name)).count() as u64
    };
    let unmatched = (count(&ours, &theirs), count(&theirs, &ours));
    let mut findings = step_findings(&step, measured);
    findings.extend(class_findings(&classes));
    let total: f64 = classes.values().map(|c| c.measured_us).sum();
    let mut classes: Vec<ClassRow> = classes.into_iter().map(|(class, c)| c.row(class, total)).collect();
    classes.sort_by(|a, b| b.measured_us.total_cmp(&a.measured_us));
    let worst = rows.iter().take(WORST).map(|r| r.command.clone()).collect();
    Comparison { rows, ops, classes, step, worst, findings, unmatched }
}

/// Commands by what they do in a layer, longest first.
fn by_op(rows: &[CommandRow]) -> Vec<OpRow> {
    let mut all: BTreeMap<(&str, String), Vec<&CommandRow>> = BTreeMap::new();
    for row in rows {
        let numbered = |part: &&str| !part.bytes().all(|b| b.is_ascii_digit());
        let result: Vec<&str> = row.result.split('.').filter(numbered).collect();
        all.entry((row.op.as_str(), result.join("."))).or_default().push(row);
    }
    let one = |((op, result), of): ((&str, String), Vec<&CommandRow>)| {
        let mean = |us: fn(&CommandRow) -> f64| of.iter().map(|r| us(r)).sum::<f64>() / of.len() as f64;
        let (predicted_us, measured_us) = (mean(|r| r.predicted_us), mean(|r| r.measured_us));
        OpRow { op: op.to_owned(), result, commands: of.len() as u64, predicted_us, measured_us }
    };
    let mut ops: Vec<OpRow> = all.into_iter().map(one).collect();
    let whole = |o: &OpRow| o.measured_us * o.commands as f64;
    ops.sort_by(|a, b| whole(b).total_cmp(&whole(a)).then_with(|| a.result.cmp(&b.result)));
    ops
}

/// All commands one after the other, waits for other ranks included, on the rank where they take longest.
fn added_up_ms(sides: &BTreeMap<(u32, &str), (Side, &Interval)>) -> f64 {
    let mut of_rank: BTreeMap<u32, f64> = BTreeMap::new();
    sides.iter().for_each(|((rank, _), (side, _))| *of_rank.entry(*rank).or_default() += side.us(side.own_ps + side.waiting_ps));
    of_rank.into_values().fold(0.0, f64::max) / 1e3
}

/// The median; of nothing, nothing.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

/// Sums of a class.
#[derive(Default)]
struct Class {
    calls: f64,
    predicted_us: f64,
    measured_us: f64,
    memory_us: f64,
    waiting: (f64, f64),
    errors: Vec<f64>,
}

impl Class {
    fn row(self, class: OpClass, total: f64) -> ClassRow {
        ClassRow {
            class: class.name(),
            calls: self.calls,
            predicted_us: self.predicted_us,
            measured_us: self.measured_us,
            share: if total > 0.0 { self.measured_us / total } else { 0.0 },
            memory_us: self.memory_us,
            median_error: median(self.errors),
            waiting_us: self.waiting,
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// What the whole step's figures say together.
fn step_findings(step: &StepRow, measured: &Trace) -> Vec<String> {
    let mut out = Vec::new();
    let (whole, alone) = (step.measured_ms, step.commands_ms);
    if let Some(eager) = step.eager_ms
        && measured.captured
        && whole > 0.0
    {
        let gain = eager - whole;
        out.push(if gain > MET * eager {
            format!(
                "capture gain: launched command by command the step takes {eager:.3} ms, captured {whole:.3}: {} of the eager step was launching; \
                 without graphs it would be launch-bound",
                percent(gain / eager)
            )
        } else {
            format!("capture gains little: {eager:.3} ms launched command by command, {whole:.3} captured; kernels are long enough to hide launches")
        });
    }
    if let Some(row) = step.one_stream_ms
        && measured.captured
        && (row - whole).abs() > WORTH_A_SENTENCE * whole
    {
        out.push(format!(
            "side by side: captured on one stream the step takes {row:.3} ms, on its streams {whole:.3}; predicted {:.3} and {:.3}",
            step.predicted_commands_ms, step.predicted_ms
        ));
    }
    let row = step.one_stream_ms.filter(|_| measured.captured).unwrap_or(whole);
    if row > 0.0 && alone > row * (1.0 + MET) {
        out.push(format!(
            "its commands add up to {alone:.3} ms, the step on one stream takes {row:.3}: in it they are shorter than by themselves"
        ));
    } else if row > 0.0 && alone > 0.0 && alone < row * (1.0 - MET) {
        out.push(format!(
            "gaps: its commands add up to {alone:.3} ms, the step on one stream takes {row:.3}: {:.3} ms are between kernels, in launches or in \
             waits for other ranks",
            row - alone
        ));
    }
    out
}

/// What each class says that is off and matters.
fn class_findings(classes: &BTreeMap<OpClass, Class>) -> Vec<String> {
    let total: f64 = classes.values().map(|c| c.measured_us + c.waiting.1).sum();
    let mut ordered: Vec<_> = classes.iter().collect();
    let off = |c: &Class| (c.measured_us - c.predicted_us).abs();
    ordered.sort_by(|a, b| off(b.1).total_cmp(&off(a.1)));
    let mut out = Vec::new();
    for (class, c) in ordered {
        let name = class.name().replace('_', " ");
        if c.waiting.1 > WORTH_A_SENTENCE * total {
            out.push(format!(
                "collective skew, {name}: {:.1} us a rank are waiting for the last rank, {:.1} moving data (predicted {:.1} and {:.1})",
                c.waiting.1, c.measured_us, c.waiting.0, c.predicted_us
            ));
        }
        let matters = c.measured_us.max(c.predicted_us) > WORTH_A_SENTENCE * total && c.measured_us > 0.0;
        let error = c.predicted_us / c.measured_us.max(f64::MIN_POSITIVE) - 1.0;
        if matters && error.abs() > MET {
            out.push(why(&name, c, is_exchange(*class)));
        }
    }
    out
}

/// Whether ranks talk in it.
pub fn is_exchange(class: OpClass) -> bool {
    matches!(class, OpClass::AllReduce | OpClass::GatherScatter | OpClass::AllToAll | OpClass::SendRecv)
}

impl Trace {
    /// The trace of a step that takes `step_ps` without its exchanges.
    pub fn without_exchanges(mut self, step_ps: u64) -> Self {
        self.intervals.retain(|i| !i.class.is_some_and(is_exchange));
        Self { step_ps, eager_ps: None, ..self }
    }
}

/// Why a class is off: its bytes, or what every call takes.
fn why(name: &str, c: &Class, exchange: bool) -> String {
    let (predicted, measured) = (c.predicted_us, c.measured_us);
    let figures = format!("{name}: {measured:.1} us measured, {predicted:.1} predicted");
    let slower = measured > predicted;
    let each = |us: f64| us / c.calls.max(f64::MIN_POSITIVE);
    if exchange {
        let word = if slower { "longer" } else { "shorter" };
        return format!(
            "{figures}: {:.0} calls of {:.1} us, {word} than the {:.1} predicted; waiting is not in them",
            c.calls,
            each(measured),
            each(predicted)
        );
    }
    // What bytes alone take says whether the kernel is bound by them.
    let bytes = c.memory_us / predicted.max(f64::MIN_POSITIVE);
    if bytes >= 0.5 && slower {
        return format!(
            "{figures}: bandwidth-bound, its bytes alone take {:.1} us at the memory rate, so its kernels reach {} of it",
            c.memory_us,
            percent(c.memory_us / measured)
        );
    }
    if bytes >= 0.5 {
        let reached = c.memory_us / measured;
        let hint = if reached > 1.0 {
            "faster than memory gives them: less is read than predicted, or a part lies in the cache"
        } else {
            "closer to the memory rate than predicted"
        };
        return format!("{figures}: {hint} ({} of the rate)", percent(reached));
    }
    let word = if slower { "more" } else { "less" };
    format!(
        "{figures}: latency-bound, {:.0} calls take {:.1} us each where {:.1} were predicted; bytes account for {:.1}, so each kernel starts and \
         ends in {word} time than predicted",
        c.calls,
        each(measured),
        each(predicted),
        each(c.memory_us)
    )
}
