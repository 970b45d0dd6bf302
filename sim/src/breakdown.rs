//! Where a pass spends its time, along the chain of spans that decided when it ended.
//!
//! The chain is walked backwards from the span that ended last: before a kernel comes whatever it had waited for, before a transfer the
//! member that arrived last. Nothing on it waits, so its parts add up to the pass, and a part that becomes longer makes the pass longer by as
//! much (until another chain is longer still). Waiting is reported beside it: what the ranks' streams stood idle for each other.

use crate::cost::{OpCost, Provenance};
use crate::exec::{Cause, ExchangeRecord, SimTrace, Span, SpanId, SpanKind, Track};
use crate::time::{Duration, Time};
use moetwin_models::{OpClass, Phase, Step};
use moetwin_runtime::Program;
use serde::Serialize;
use std::collections::BTreeMap;

/// Name of the row for launches that nothing hides.
const LAUNCH: &str = "launch";

/// A class of work in the breakdown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Class (see [`OpClass::name`]), or `launch`.
    pub class: &'static str,
    /// Milliseconds a pass on the chain that decides its end.
    pub ms: f64,
    /// Share of the pass.
    pub share: f64,
    /// Commands a pass on the chain.
    pub calls: f64,
    /// Milliseconds a pass of such commands that ran hidden beside it, on the rank where the chain ends.
    pub hidden_ms: f64,
    /// Standard error of `ms`.
    pub error_ms: f64,
    /// Where `ms` comes from, as shares of it.
    pub provenance: ProvenanceShares,
}

/// How far the time of a pass may be off, from the errors of what it is made of: figures of one class are off together, those of
/// different classes independently. What the model leaves out is not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Uncertainty {
    /// Standard error, as a share of the pass.
    pub relative: f64,
    /// Nine of ten such passes take longer than this.
    pub low_ms: f64,
    /// Nine of ten take less than this.
    pub high_ms: f64,
}

/// What the pass is made of, as shares that sum to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bounds {
    /// Bytes over the memory rate.
    pub memory: f64,
    /// Multiplications over the compute rate.
    pub compute: f64,
    /// Start, dependent steps and end of kernels, however fast memory and multipliers are.
    pub kernel_latency: f64,
    /// Bytes over link rates.
    pub link: f64,
    /// What exchanges take beyond their bytes.
    pub exchange_latency: f64,
    /// Getting kernels started: host launches, and nodes shorter than a launch.
    pub launch: f64,
}

/// Shares of the pass by where the figures come from; they sum to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ProvenanceShares {
    /// Measured.
    pub measured: f64,
    /// Interpolated.
    pub interpolated: f64,
    /// Modelled.
    pub modelled: f64,
}

/// What streams stood idle for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Waiting {
    /// Share of the pass that a rank waits in exchanges for members that have not arrived, mean over ranks.
    pub others_share: f64,
    /// The same of the rank that waits most.
    pub others_share_worst: f64,
    /// That rank.
    pub worst_rank: u32,
}

/// Exchanges of one class and size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExchangeRow {
    /// Class.
    pub class: &'static str,
    /// Bytes of the message.
    pub message_bytes: u64,
    /// How many a pass, over all groups.
    pub count: f64,
    /// Mean time from the last arrival to the end, microseconds.
    pub transfer_us: f64,
    /// Mean time from the first arrival to the last, microseconds.
    pub skew_us: f64,
    /// How it was carried out.
    pub how: String,
}

/// Where a pass spends its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Breakdown {
    /// Time of a pass, milliseconds.
    pub step_ms: f64,
    /// Tokens a second over all sequences. Of a verification: one token a sequence, the least it yields.
    pub tokens_per_s: f64,
    /// By class, longest first; shares sum to one.
    pub rows: Vec<Row>,
    /// By what a faster machine would shorten.
    pub bounds: Bounds,
    /// By where the figures come from.
    pub provenance: ProvenanceShares,
    /// How far the time may be off.
    pub uncertainty: Uncertainty,
    /// Waiting beside the chain.
    pub waiting: Waiting,
    /// Exchanges by class and size, longest in all first.
    pub exchanges: Vec<ExchangeRow>,
    /// What bounds the pass, in words.
    pub bound_by: String,
}

/// One piece of the chain.
struct Piece {
    span: SpanId,
    time: Duration,
}

/// Standard errors of what no table says, as shares: exchanges whose figures are all measured, those with assumed ones, and launches.
/// Of built-in machines, tables of exchanges that are left out are met within about a tenth, and figures carried over from a like machine
/// within a quarter.
const EXCHANGE_ERROR: f64 = 0.12;
const ASSUMED_EXCHANGE_ERROR: f64 = 0.25;
const LAUNCH_ERROR: f64 = 0.25;

/// One in ten of a normal distribution lies above this many standard deviations.
const ONE_IN_TEN_SIGMAS: f64 = 1.282;

/// Sums over the chain, picoseconds.
#[derive(Default)]
struct Sums {
    classes: BTreeMap<&'static str, ClassSums>,
    bounds: Bounds,
}

/// Sums of one class.
#[derive(Clone, Copy, Debug, Default)]
struct ClassSums {
    ps: u64,
    calls: u64,
    error_ps: f64,
    provenance: ProvenanceShares,
}

impl Breakdown {
    /// The breakdown of a simulated program.
    pub fn new(program: &Program, trace: &SimTrace) -> Self {
        let chain = chain(trace);
        let mut sums = Sums::default();
        for piece in &chain {
            sums.add(program, trace, piece);
        }
        let total = trace.total.as_ps().max(1) as f64;
        let steps = f64::from(trace.steps.max(1));
        let hidden = hidden(program, trace, &chain);
        let mut rows: Vec<Row> = all_classes(&sums, &hidden)
            .into_iter()
            .map(|class| {
                let of = sums.classes.get(class).copied().unwrap_or_default();
                let hidden_ps = hidden.get(class).copied().unwrap_or(0);
                let ms = |ps: f64| ps / 1e9 / steps;
                Row {
                    class,
                    ms: ms(of.ps as f64),
                    share: of.ps as f64 / total,
                    calls: of.calls as f64 / steps,
                    hidden_ms: ms(hidden_ps as f64),
                    error_ms: ms(of.error_ps),
                    provenance: of.provenance.over((of.ps as f64).max(1.0)),
                }
            })
            .collect();
        rows.sort_by(|a, b| b.ms.total_cmp(&a.ms).then(b.hidden_ms.total_cmp(&a.hidden_ms)).then(a.class.cmp(b.class)));
        let step_s = trace.total.as_seconds() / steps;
        let tokens = tokens_of(&program.graph.step) as f64;
        let exchanges = exchange_rows(program, trace);
        let mut out = Self {
            step_ms: step_s * 1e3,
            tokens_per_s: if step_s > 0.0 { tokens / step_s } else { 0.0 },
            rows,
            bounds: sums.bounds.over(total),
            provenance: sums.provenance().over(total),
            uncertainty: sums.uncertainty(step_s * 1e3, total),
            waiting: waiting(trace),
            exchanges,
            bound_by: String::new(),
        };
        out.bound_by = out.in_words();
        out
    }
    /// One or two sentences: what makes up most of the pass, with numbers.
    fn in_words(&self) -> String {
        let b = &self.bounds;
        let kinds = [
            (b.memory, "memory rate", "reading weights and caches at the rate of device memory"),
            (b.compute, "arithmetic", "multiplications at the rate of the tensor cores"),
            (
                b.kernel_latency,
                "kernel latency",
                "starts, dependent steps and tails of kernels, which neither faster memory nor more arithmetic shortens",
            ),
            (b.link, "link rate", "bytes over the links between GPUs"),
            (b.exchange_latency, "exchange latency", "steps of exchanges between GPUs, whatever their size"),
            (b.launch, "launches", "getting kernels started"),
        ];
        let mut kinds: Vec<_> = kinds.into_iter().filter(|k| k.0 > 0.0).collect();
        kinds.sort_by(|a, b| b.0.total_cmp(&a.0));
        let Some((share, name, what)) = kinds.first() else { return "nothing runs".into() };
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let mut text = format!("{name}: {} of {:.2} ms is {what}", percent(*share), self.step_ms);
        let rest: Vec<String> = kinds[1..].iter().filter(|k| k.0 >= 0.05).map(|k| format!("{} {}", k.1, percent(k.0))).collect();
        if !rest.is_empty() {
            text.push_str(&format!("; then {}", rest.join(", ")));
        }
        let top: Vec<String> =
            self.rows.iter().take(3).filter(|r| r.share >= 0.05).map(|r| format!("{} {:.2} ms", r.class, r.ms)).collect();
        if !top.is_empty() {
            text.push_str(&format!(". Longest parts: {}", top.join(", ")));
        }
        if self.waiting.others_share >= 0.05 {
            let w = &self.waiting;
            let (mean, worst) = (percent(w.others_share), percent(w.others_share_worst));
            text.push_str(&format!(". Ranks wait for each other {mean} of the time (rank {} {worst})", w.worst_rank));
        }
        text.push('.');
        text
    }
}

/// Tokens that a pass yields.
fn tokens_of(step: &Step) -> u64 {
    match step.phase {
        Phase::Prefill => step.tokens(),
        Phase::Decode | Phase::Verify(_) => step.sequences.len() as u64,
    }
}

/// The spans that decided when a simulation ended, earliest first; nothing waits between one and the next.
pub fn deciding_spans(trace: &SimTrace) -> Vec<SpanId> {
    chain(trace).iter().rev().map(|piece| piece.span).collect()
}

/// The chain of spans that decided the end, latest first, with the time each contributes.
fn chain(trace: &SimTrace) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let last = trace.spans.iter().filter(|(_, s)| s.track != Track::Host).max_by_key(|(id, s)| (s.end, std::cmp::Reverse(*id)));
    let Some((mut id, last)) = last else { return pieces };
    let mut until = last.end;
    // Causes have lower ids than what they cause, but for the jump to the member that arrived last; each step goes back in time or in ids.
    loop {
        let own = &trace.spans[id];
        let (from, cause) = match own.kind {
            SpanKind::HostWait => (until, own.cause),
            SpanKind::Exchange(exchange) => {
                let record = &trace.exchanges[exchange];
                let late = &trace.spans[record.spans[record.last]];
                (record.ready, late.cause)
            }
            SpanKind::Compute | SpanKind::Launch => (own.start, own.cause),
        };
        pieces.push(Piece { span: id, time: until.since(from) });
        match cause {
            Cause::Start => return pieces,
            Cause::Span(before) => (id, until) = (before, from),
        }
    }
}

/// Class of a span's command.
fn class_of(program: &Program, span: &Span) -> &'static str {
    let on_stream = span.track != Track::Host;
    span.command.filter(|_| on_stream).map_or(LAUNCH, |c| program.graph.nodes[c.node].op.class().name())
}

fn all_classes(sums: &Sums, hidden: &BTreeMap<&'static str, u64>) -> Vec<&'static str> {
    let mut out: Vec<&'static str> = sums.classes.keys().chain(hidden.keys()).copied().collect();
    out.sort_unstable();
    out.dedup();
    out
}

impl Sums {
    fn add(&mut self, program: &Program, trace: &SimTrace, piece: &Piece) {
        let span = &trace.spans[piece.span];
        let ps = piece.time.as_ps();
        if span.kind == SpanKind::HostWait {
            return;
        }
        let time = ps as f64;
        let (provenance, error) = match span.kind {
            SpanKind::HostWait => return,
            SpanKind::Launch => {
                self.bounds.launch += time;
                (Provenance::Modelled, LAUNCH_ERROR)
            }
            SpanKind::Exchange(exchange) => {
                let record = &trace.exchanges[exchange];
                let link = (record.link.as_ps() as f64).min(time);
                self.bounds.link += link;
                self.bounds.exchange_latency += time - link;
                (record.provenance, if record.provenance == Provenance::Modelled { ASSUMED_EXCHANGE_ERROR } else { EXCHANGE_ERROR })
            }
            SpanKind::Compute => {
                let Some(cost) = span.index.and_then(|i| trace.costs[span.rank].get(i as usize)) else { return };
                self.kernel(trace, cost, time);
                (cost.provenance, f64::from(cost.error_permille) / 1e3)
            }
        };
        let of = self.classes.entry(class_of(program, span)).or_default();
        of.ps += ps;
        of.calls += 1;
        of.error_ps += error * time;
        of.provenance.add(provenance, time);
    }
    fn provenance(&self) -> ProvenanceShares {
        self.classes.values().fold(ProvenanceShares::default(), |sum, c| ProvenanceShares {
            measured: sum.measured + c.provenance.measured,
            interpolated: sum.interpolated + c.provenance.interpolated,
            modelled: sum.modelled + c.provenance.modelled,
        })
    }
    fn uncertainty(&self, step_ms: f64, total_ps: f64) -> Uncertainty {
        let relative = libm::sqrt(self.classes.values().map(|c| c.error_ps * c.error_ps).sum::<f64>()) / total_ps;
        let away = ONE_IN_TEN_SIGMAS * relative;
        Uncertainty { relative, low_ms: step_ms * (1.0 - away).max(0.0), high_ms: step_ms * (1.0 + away) }
    }
    /// Splits a kernel's time. What it took beyond its own duration is the launch floor, or another kernel's use of the same rate.
    fn kernel(&mut self, trace: &SimTrace, cost: &OpCost, time: f64) {
        let alone = cost.duration_ps as f64;
        let floor = (trace.host.graph_node * u64::from(cost.kernels)).as_ps() as f64;
        let launch = (floor - alone).clamp(0.0, time);
        let stretch = (time - launch - alone).max(0.0);
        let longest = (cost.memory_ps.max(cost.compute_ps) as f64).min(alone) + stretch;
        if cost.memory_ps >= cost.compute_ps {
            self.bounds.memory += longest;
        } else {
            self.bounds.compute += longest;
        }
        self.bounds.launch += launch;
        self.bounds.kernel_latency += time - launch - longest;
    }
}

impl Bounds {
    fn over(self, total: f64) -> Self {
        Self {
            memory: self.memory / total,
            compute: self.compute / total,
            kernel_latency: self.kernel_latency / total,
            link: self.link / total,
            exchange_latency: self.exchange_latency / total,
            launch: self.launch / total,
        }
    }
}

impl ProvenanceShares {
    fn add(&mut self, provenance: Provenance, time: f64) {
        match provenance {
            Provenance::Measured => self.measured += time,
            Provenance::Interpolated => self.interpolated += time,
            Provenance::Modelled => self.modelled += time,
        }
    }
    fn over(self, total: f64) -> Self {
        Self { measured: self.measured / total, interpolated: self.interpolated / total, modelled: self.modelled / total }
    }
}

/// Picoseconds by class of what the chain's last rank did off the chain, waiting excluded.
fn hidden(program: &Program, trace: &SimTrace, chain: &[Piece]) -> BTreeMap<&'static str, u64> {
    let mut out = BTreeMap::new();
    let Some(rank) = chain.first().map(|p| trace.spans[p.span].rank) else { return out };
    // An exchange is on the chain whichever member's span stands there.
    let mut on_chain = vec![false; trace.spans.len()];
    for piece in chain {
        on_chain[piece.span.0 as usize] = true;
        if let SpanKind::Exchange(exchange) = trace.spans[piece.span].kind {
            trace.exchanges[exchange].spans.iter().for_each(|s| on_chain[s.0 as usize] = true);
        }
    }
    let own = trace.spans.iter().filter(|(id, s)| s.rank == rank && s.track != Track::Host && !on_chain[id.0 as usize]);
    for (id, span) in own {
        let from = trace.ready(id).unwrap_or(span.start);
        *out.entry(class_of(program, span)).or_default() += span.end.since(from).as_ps();
    }
    out
}

fn waiting(trace: &SimTrace) -> Waiting {
    let mut waits = vec![0u64; trace.costs.len()];
    for record in trace.exchanges.as_slice() {
        for &span in &record.spans {
            let span = &trace.spans[span];
            waits[span.rank.0 as usize] += record.ready.since(span.start).as_ps();
        }
    }
    let total = trace.total.as_ps().max(1) as f64;
    let share = |ps: u64| ps as f64 / total;
    let worst = (0..waits.len()).rev().max_by_key(|&i| waits[i]).unwrap_or(0);
    Waiting {
        others_share: share(waits.iter().sum::<u64>()) / waits.len().max(1) as f64,
        others_share_worst: share(waits.get(worst).copied().unwrap_or(0)),
        worst_rank: worst as u32,
    }
}

fn exchange_rows(program: &Program, trace: &SimTrace) -> Vec<ExchangeRow> {
    type Key<'a> = (OpClass, u64, &'a str);
    let mut groups: BTreeMap<Key<'_>, Vec<&ExchangeRecord>> = BTreeMap::new();
    for record in trace.exchanges.as_slice() {
        let Some(command) = record.spans.first().and_then(|s| trace.spans[*s].command) else { continue };
        let class = program.graph.nodes[command.node].op.class();
        groups.entry((class, record.message_bytes, &record.how)).or_default().push(record);
    }
    let steps = f64::from(trace.steps.max(1));
    let mut rows: Vec<ExchangeRow> = groups
        .into_iter()
        .map(|((class, message_bytes, how), records)| {
            let mean = |of: &dyn Fn(&ExchangeRecord) -> Duration| records.iter().map(|r| of(r).as_us()).sum::<f64>() / records.len() as f64;
            let ends = |r: &ExchangeRecord| r.spans.iter().map(|s| trace.spans[*s].end).max().unwrap_or(Time::ZERO);
            let first = |r: &ExchangeRecord| r.spans.iter().map(|s| trace.spans[*s].start).min().unwrap_or(Time::ZERO);
            ExchangeRow {
                class: class.name(),
                message_bytes,
                count: records.len() as f64 / steps,
                transfer_us: mean(&|r| ends(r).since(r.ready)),
                skew_us: mean(&|r| r.ready.since(first(r))),
                how: how.to_owned(),
            }
        })
        .collect();
    rows.sort_by(|a, b| (b.count * b.transfer_us).total_cmp(&(a.count * a.transfer_us)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Bound;
    use crate::exec::samples::{CAPTURED, EAGER, Line, compute, program, reduce, run};
    use crate::exec::{HostCosts, SimError};

    fn breakdown(ranks: &[Vec<Line>], host: HostCosts, steps: u32) -> Breakdown {
        let groups: &[&[u32]] = if ranks.len() > 1 { &[&[0, 1]] } else { &[] };
        let trace = run(ranks, groups, host, steps).unwrap();
        Breakdown::new(&program(ranks, groups).0, &trace)
    }

    fn row<'a>(b: &'a Breakdown, class: &str) -> &'a Row {
        b.rows.iter().find(|r| r.class == class).unwrap()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn the_chain_goes_through_the_rank_that_others_wait_for() {
        let ranks = [vec![compute(0, 10), reduce(0, 20, 0), compute(0, 5)], vec![compute(0, 70), reduce(0, 20, 0), compute(0, 5)]];
        for steps in [1, 3] {
            let b = breakdown(&ranks, CAPTURED, steps);
            // Launch 100, the late rank's kernel 70, transfer 20, a last kernel 5.
            assert!(near(b.step_ms * 1e9, 195.0), "{b:?}");
            assert!(near(row(&b, "elementwise").ms * 1e9, 75.0) && near(row(&b, "elementwise").calls, 2.0), "{b:?}");
            assert!(near(row(&b, "all_reduce").ms * 1e9, 20.0) && near(row(&b, "all_reduce").calls, 1.0), "{b:?}");
            assert!(near(row(&b, "launch").ms * 1e9, 100.0));
            assert!(near(b.rows.iter().map(|r| r.share).sum(), 1.0));
            assert!(near(b.bounds.launch, 100.0 / 195.0) && near(b.bounds.exchange_latency, 20.0 / 195.0), "{b:?}");
            // Rank 0 waits 60 for rank 1.
            assert!(near(b.waiting.others_share, 30.0 / 195.0) && near(b.waiting.others_share_worst, 60.0 / 195.0));
            assert_eq!(b.waiting.worst_rank, 0);
            assert!(near(b.exchanges[0].skew_us * 1e6, 60.0) && near(b.exchanges[0].transfer_us * 1e6, 20.0));
            assert!(near(b.exchanges[0].count, 1.0) && b.bound_by.contains("launches: 51 %"), "{b:?}");
        }
    }

    #[test]
    fn what_runs_beside_the_chain_is_hidden() {
        let side = Line { records: Some(0), ..compute(1, 30) };
        let main = Line { waits: vec![0], ..compute(0, 5) };
        let b = breakdown(&[vec![side, compute(0, 40), main]], CAPTURED, 1);
        assert!(near(row(&b, "elementwise").ms * 1e9, 45.0) && near(row(&b, "elementwise").hidden_ms * 1e9, 30.0), "{b:?}");
    }

    #[test]
    fn eager_launches_show_where_they_are_not_hidden() {
        let b = breakdown(&[vec![compute(0, 4), compute(0, 4), compute(0, 4)]], EAGER, 1);
        assert!(near(row(&b, "launch").ms * 1e9, 21.0) && near(row(&b, "elementwise").ms * 1e9, 4.0), "{b:?}");
        assert!(near(row(&b, "launch").calls, 3.0) && near(row(&b, "elementwise").hidden_ms * 1e9, 8.0), "{b:?}");
    }

    #[test]
    fn shares_say_how_much_a_slower_memory_costs() -> Result<(), SimError> {
        let ranks = [vec![compute(0, 100), compute(0, 60)]];
        let (program, mut priced) = program(&ranks, &[]);
        let mut with = |memory: [u64; 2], durations: [u64; 2]| {
            for (i, p) in priced[moetwin_models::RankId(0)].iter_mut().enumerate() {
                let bound = Bound::Memory;
                p.cost = OpCost { duration_ps: durations[i], memory_ps: memory[i], kernels: 1, bound, ..OpCost::NOTHING };
            }
            let mut transport = crate::exec::samples::Fixed;
            crate::exec::execute(&program, &priced, &[0], CAPTURED, 1, &mut transport).map(|t| Breakdown::new(&program, &t))
        };
        let base = with([80, 30], [100, 60])?;
        let half = with([160, 60], [180, 90])?;
        assert!(near(base.bounds.memory, 110.0 / 260.0) && near(base.bounds.kernel_latency, 50.0 / 260.0), "{base:?}");
        assert!(near(half.step_ms / base.step_ms, 1.0 + base.bounds.memory));
        Ok(())
    }

    #[test]
    fn an_empty_program_is_nothing() {
        let b = breakdown(&[vec![]], CAPTURED, 1);
        assert_eq!((b.rows.len(), b.step_ms, b.tokens_per_s, b.bound_by.as_str()), (0, 0.0, 0.0, "nothing runs"));
    }
}
