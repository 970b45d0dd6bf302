//! A simulation as lanes of spans for pictures: few enough to draw, and exact sums beside them.

use crate::breakdown::deciding_spans;
use crate::cost::Provenance;
use crate::exec::{SimTrace, Span, SpanId, SpanKind, Track};
use crate::time::{Duration, Time};
use moetwin_models::{Op, RankId, ids::Id, op::LinearRole};
use moetwin_runtime::{Program, StreamId};
use std::collections::BTreeMap;

/// What a picture shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Lanes by rank, the host first, then streams.
    pub lanes: Vec<Lane>,
    /// Sums of every rank, drawn or not.
    pub sums: Vec<RankSums>,
    /// Whether neighbours of one class and layer are drawn as one.
    pub merged: bool,
    /// Ranks that are not drawn at all: those from this one on.
    pub ranks_drawn: usize,
    /// From the start to the end.
    pub total: Duration,
}

/// A thread of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// Whose.
    pub rank: RankId,
    /// Which.
    pub track: Track,
    /// Spans in order of their start; they do not overlap.
    pub spans: Vec<DrawnSpan>,
}

/// A span to draw.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnSpan {
    /// When it begins.
    pub start: Time,
    /// When it ends.
    pub end: Time,
    /// Of it at its beginning: waiting for other ranks; of a host wait all of it.
    pub waits: Duration,
    /// Class of the work, `launch`, or `wait`.
    pub class: &'static str,
    /// What runs: the op's name.
    pub name: &'static str,
    /// Decoder layer.
    pub layer: Option<u16>,
    /// Spans drawn as this one.
    pub count: u32,
    /// Time they took together, without gaps between them.
    pub busy: Duration,
    /// Whether it is on the chain that decides the end.
    pub decides: bool,
    /// Where its time comes from; the weakest of those drawn as one.
    pub provenance: Provenance,
}

/// What a rank does in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankSums {
    /// Kernels, over all streams.
    pub kernels: Duration,
    /// Exchanges, from the last arrival on.
    pub transfers: Duration,
    /// In exchanges, for members that have not arrived.
    pub waits: Duration,
    /// No stream does anything.
    pub idle: Duration,
    /// Commands.
    pub commands: u64,
}

/// The lanes of a simulation in at most about `most` spans: beyond it neighbours of one class and layer are drawn as one, and beyond it still, only
/// the first ranks.
pub fn timeline(program: &Program, trace: &SimTrace, most: usize) -> Timeline {
    let mut decides = vec![false; trace.spans.len()];
    for span in deciding_spans(trace) {
        decides[span.index()] = true;
    }
    let mut lanes: BTreeMap<(RankId, Track), Vec<DrawnSpan>> = BTreeMap::new();
    for (id, span) in trace.spans.iter() {
        lanes.entry((span.rank, span.track)).or_default().push(drawn(program, trace, id, span, decides[id.index()]));
    }
    let count = |lanes: &BTreeMap<(RankId, Track), Vec<DrawnSpan>>| lanes.values().map(Vec::len).sum::<usize>();
    let merged = count(&lanes) > most;
    if merged {
        lanes.values_mut().for_each(|spans| *spans = merge(std::mem::take(spans)));
    }
    let mut left = most;
    let mut ranks_drawn = 0;
    for rank in 0..trace.costs.len() {
        let own: usize = lanes.iter().filter(|((r, _), _)| r.index() == rank).map(|(_, spans)| spans.len()).sum();
        if own > left && rank > 0 {
            break;
        }
        (left, ranks_drawn) = (left.saturating_sub(own), rank + 1);
    }
    let lanes = lanes.into_iter().filter(|((rank, _), _)| rank.index() < ranks_drawn);
    Timeline {
        lanes: lanes.map(|((rank, track), spans)| Lane { rank, track, spans }).collect(),
        sums: sums(trace),
        merged,
        ranks_drawn,
        total: trace.total,
    }
}

/// The name of a lane.
pub fn lane_name(track: Track) -> String {
    match track {
        Track::Host => "host".to_owned(),
        Track::Stream(StreamId(stream)) => format!("stream {stream}"),
    }
}

/// The op's name; of products, which one, since most commands are some product.
fn op_name(op: &Op) -> &'static str {
    let Op::Linear { role } = op else { return op.name() };
    match role {
        LinearRole::Qkv => "qkv",
        LinearRole::QaKva => "q_a and kv_a",
        LinearRole::Qb => "q_b",
        LinearRole::O => "output",
        LinearRole::Router => "router",
        LinearRole::DenseGateUp => "gate and up",
        LinearRole::DenseDown => "down",
        LinearRole::SharedGateUp => "shared gate and up",
        LinearRole::SharedDown => "shared down",
        LinearRole::SharedGate => "shared gate",
        LinearRole::LmHead => "lm_head",
        LinearRole::Other => "linear",
    }
}

fn drawn(program: &Program, trace: &SimTrace, id: SpanId, span: &Span, decides: bool) -> DrawnSpan {
    let node = span.command.map(|c| &program.graph.nodes[c.node]);
    let provenance = match span.kind {
        SpanKind::Exchange(exchange) => trace.exchanges[exchange].provenance,
        SpanKind::Compute => {
            span.index.and_then(|i| trace.costs[span.rank].get(i as usize)).map_or(Provenance::Modelled, |cost| cost.provenance)
        }
        SpanKind::Launch | SpanKind::HostWait => Provenance::Modelled,
    };
    let (class, name) = match (span.kind, node) {
        (SpanKind::HostWait, _) => ("wait", "wait"),
        (SpanKind::Launch, Some(node)) => ("launch", op_name(&node.op)),
        (SpanKind::Launch, None) => ("launch", "graph"),
        (_, Some(node)) => (node.op.class().name(), op_name(&node.op)),
        (_, None) => ("launch", "command"),
    };
    let waits = match span.kind {
        SpanKind::HostWait => span.duration(),
        _ => trace.ready(id).map_or(Duration::ZERO, |ready| ready.since(span.start)),
    };
    DrawnSpan {
        start: span.start,
        end: span.end,
        waits,
        class,
        name,
        layer: node.and_then(|n| n.layer),
        count: 1,
        busy: span.duration(),
        decides,
        provenance,
    }
}

/// Neighbours of one class and layer as one; nothing is lost but the gaps between them and their names. Waits stay apart: they are drawn
/// at the beginning of a span.
fn merge(spans: Vec<DrawnSpan>) -> Vec<DrawnSpan> {
    let mut out: Vec<DrawnSpan> = Vec::new();
    for span in spans {
        match out.last_mut() {
            Some(last) if last.class == span.class && last.layer == span.layer && span.waits == Duration::ZERO => {
                last.end = last.end.max(span.end);
                last.count += span.count;
                last.busy += span.busy;
                last.decides |= span.decides;
                last.provenance = last.provenance.max(span.provenance);
            }
            _ => out.push(span),
        }
    }
    out
}

fn sums(trace: &SimTrace) -> Vec<RankSums> {
    let mut out = vec![RankSums::default(); trace.costs.len()];
    // Spans are in order of their start, so what is covered grows at its end only.
    let mut covered = vec![Time::ZERO; out.len()];
    for (id, span) in trace.spans.iter().filter(|(_, s)| s.track != Track::Host) {
        let (own, until) = (&mut out[span.rank.index()], &mut covered[span.rank.index()]);
        own.commands += 1;
        match trace.ready(id) {
            Some(ready) => {
                own.waits += ready.since(span.start);
                own.transfers += span.end.since(ready);
            }
            None => own.kernels += span.duration(),
        }
        if span.start > *until {
            own.idle += span.start.since(*until);
        }
        *until = (*until).max(span.end);
    }
    for (own, until) in out.iter_mut().zip(covered) {
        own.idle += (Time::ZERO + trace.total).since(until);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::samples::{CAPTURED, Line, compute, program, reduce, run};

    fn ranks() -> [Vec<Line>; 2] {
        let own = |ps| vec![compute(0, ps), compute(0, 5), compute(1, 30), reduce(0, 20, 0), compute(0, 9)];
        [own(10), own(70)]
    }

    fn drawn(most: usize) -> (Timeline, SimTrace) {
        let groups: &[&[u32]] = &[&[0, 1]];
        let trace = run(&ranks(), groups, CAPTURED, 1).unwrap();
        (timeline(&program(&ranks(), groups).0, &trace, most), trace)
    }

    #[test]
    fn every_span_has_its_place_and_sums_are_exact() {
        let (all, trace) = drawn(1000);
        assert!(!all.merged && all.ranks_drawn == 2);
        assert_eq!(all.lanes.iter().map(|l| l.spans.len()).sum::<usize>(), trace.spans.len());
        let names: Vec<(u32, String)> = all.lanes.iter().map(|l| (l.rank.0, lane_name(l.track))).collect();
        assert_eq!(names[..3], [(0, "host".to_owned()), (0, "stream 0".to_owned()), (0, "stream 1".to_owned())]);
        // Rank 0 waits 60 for rank 1; the graph's launch of 100 comes first.
        let sums: Vec<[u64; 4]> = all.sums.iter().map(|s| [s.kernels, s.transfers, s.waits, s.idle].map(Duration::as_ps)).collect();
        assert_eq!(sums, [[54, 20, 60, 100], [114, 20, 0, 100]]);
        let reduce = all.lanes[1].spans.iter().find(|s| s.class == "all_reduce").unwrap();
        assert_eq!((reduce.waits.as_ps(), reduce.count, reduce.busy.as_ps()), (60, 1, 80));
        // The chain goes through the late rank until the exchange.
        let deciding = |rank: u32| all.lanes.iter().filter(|l| l.rank.0 == rank).flat_map(|l| &l.spans).filter(|s| s.decides).count();
        assert!(deciding(1) >= 3, "{all:?}");
        assert_eq!(all.total, trace.total);
    }

    #[test]
    fn too_many_spans_are_drawn_as_fewer_with_the_same_sums() {
        let (all, _) = drawn(1000);
        let (fewer, _) = drawn(13);
        assert!(fewer.merged && fewer.ranks_drawn == 2);
        assert_eq!(fewer.sums, all.sums);
        for (a, b) in all.lanes.iter().zip(&fewer.lanes) {
            let sum = |l: &Lane| l.spans.iter().map(|s| s.busy.as_ps()).sum::<u64>();
            let count = |l: &Lane| l.spans.iter().map(|s| s.count).sum::<u32>();
            assert_eq!((sum(a), count(a)), (sum(b), count(b)));
            assert!(b.spans.windows(2).all(|w| w[0].end <= w[1].start));
        }
        assert_eq!(fewer.lanes[1].spans[0].count, 2);
        let (least, _) = drawn(1);
        assert_eq!((least.ranks_drawn, least.sums), (1, all.sums));
        assert!(least.lanes.iter().all(|l| l.rank.0 == 0));
    }
}
