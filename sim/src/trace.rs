//! A simulation as a Chrome trace, which Perfetto opens: one process a rank, one thread a stream and one for the host.
//!
//! Timestamps are picoseconds written as microseconds with six decimals, from integers, so equal simulations give equal bytes.

use crate::exec::{ExchangeRecord, SimTrace, Span, SpanKind, Track};
use crate::time::{Duration, Time};
use moetwin_models::{Graph, OpClass, RankId};
use moetwin_runtime::{Program, StreamId};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Thread of the host; streams follow.
const HOST_THREAD: u32 = 0;

/// The trace as one JSON object of the Chrome trace-event format.
pub fn chrome_trace(program: &Program, trace: &SimTrace) -> String {
    let mut out = Writer { text: String::with_capacity(trace.spans.len() * 256), first: true, arrows: 0 };
    let steps = trace.steps;
    let _ = write!(
        out.text,
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"origin\":\"sim\",\"steps\":{steps},\"total_us\":{}}},\"traceEvents\":[",
        Micros(trace.total.as_ps())
    );
    names(&mut out, trace);
    for span in trace.spans.as_slice() {
        span_events(&mut out, &program.graph, trace, span);
    }
    for record in trace.exchanges.as_slice() {
        flow_events(&mut out, trace, record);
    }
    out.text.push_str("\n]}\n");
    out.text
}

/// Picoseconds, printed as microseconds.
pub(crate) struct Micros(pub(crate) u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

fn micros(span: Duration) -> String {
    Micros(span.as_ps()).to_string()
}

/// Writes events one a line.
struct Writer {
    text: String,
    first: bool,
    arrows: u32,
}

impl Writer {
    fn start(&mut self) {
        self.text.push_str(if self.first { "\n" } else { ",\n" });
        self.first = false;
    }
    /// A complete event: `X`. Names and categories are ours and need no escaping; `args` is JSON.
    fn complete(&mut self, name: &str, category: &str, (rank, thread): (RankId, u32), from: Time, until: Time, args: &Value) {
        self.start();
        let (ts, dur) = (Micros(from.as_ps()), Micros(until.since(from).as_ps()));
        let _ = write!(
            self.text,
            "{{\"name\":\"{name}\",\"cat\":\"{category}\",\"ph\":\"X\",\"pid\":{},\"tid\":{thread},\"ts\":{ts},\"dur\":{dur},\"args\":{args}}}",
            rank.0
        );
    }
    fn metadata(&mut self, name: &str, rank: RankId, thread: Option<u32>, args: &Value) {
        self.start();
        let thread = thread.map(|t| format!(",\"tid\":{t}")).unwrap_or_default();
        let _ = write!(self.text, "{{\"name\":\"{name}\",\"ph\":\"M\",\"pid\":{}{thread},\"args\":{args}}}", rank.0);
    }
    fn arrow(&mut self, from: (RankId, u32), to: (RankId, u32), at: Time) {
        self.arrows += 1;
        for (phase, (rank, thread)) in [("\"s\"", from), ("\"f\",\"bp\":\"e\"", to)] {
            self.start();
            let (id, ts) = (self.arrows, Micros(at.as_ps()));
            let _ = write!(
                self.text,
                "{{\"name\":\"last arrival\",\"cat\":\"exchange\",\"ph\":{phase},\"id\":{id},\"pid\":{},\"tid\":{thread},\"ts\":{ts}}}",
                rank.0
            );
        }
    }
}

fn thread_of(track: Track) -> u32 {
    match track {
        Track::Host => HOST_THREAD,
        Track::Stream(StreamId(stream)) => stream.saturating_add(1),
    }
}

/// Names of processes and threads.
fn names(out: &mut Writer, trace: &SimTrace) {
    let mut tracks: Vec<(RankId, Track)> = trace.spans.as_slice().iter().map(|s| (s.rank, s.track)).collect();
    tracks.sort_unstable();
    tracks.dedup();
    let mut named = None;
    for (rank, track) in tracks {
        if named != Some(rank) {
            named = Some(rank);
            out.metadata("process_name", rank, None, &json!({"name": format!("rank {}", rank.0)}));
            out.metadata("process_sort_index", rank, None, &json!({"sort_index": rank.0}));
        }
        let name = match track {
            Track::Host => "host".to_owned(),
            Track::Stream(stream) => format!("stream {}", stream.0),
        };
        out.metadata("thread_name", rank, Some(thread_of(track)), &json!({"name": name}));
    }
}

/// Name and class of the span's command.
fn label(graph: &Graph, span: &Span) -> (&'static str, Option<OpClass>) {
    match (span.command, span.kind) {
        (_, SpanKind::HostWait) => ("wait", None),
        (None, _) => ("launch graph", None),
        (Some(c), _) => {
            let op = &graph.nodes[c.node].op;
            (op.name(), Some(op.class()))
        }
    }
}

fn span_events(out: &mut Writer, graph: &Graph, trace: &SimTrace, span: &Span) {
    let (name, class) = label(graph, span);
    let lane = (span.rank, thread_of(span.track));
    let mut args = json!({});
    if let Some(command) = span.command {
        args["command"] = json!(command.to_string());
        let node = &graph.nodes[command.node];
        if let Some(&result) = node.outputs.first() {
            args["result"] = json!(graph.tensors[result].name);
        }
    }
    if trace.steps > 1 {
        args["step"] = json!(span.step);
    }
    match span.kind {
        SpanKind::Launch => {
            out.complete(&format!("launch {}", name.trim_start_matches("launch ")), "launch", lane, span.start, span.end, &args)
        }
        SpanKind::HostWait => out.complete(name, "wait", lane, span.start, span.end, &args),
        SpanKind::Compute => {
            if let Some(cost) = span.index.and_then(|i| trace.costs[span.rank].get(i as usize)) {
                args["alone_us"] = json!(micros(Duration::from_ps(cost.duration_ps)));
                args["memory_us"] = json!(micros(Duration::from_ps(cost.memory_ps)));
                args["from"] = json!(cost.provenance);
                args["bound"] = json!(cost.bound);
            }
            out.complete(name, class.map_or("kernel", OpClass::name), lane, span.start, span.end, &args);
        }
        SpanKind::Exchange(exchange) => {
            let record = &trace.exchanges[exchange];
            let ready = record.ready;
            args["bytes"] = json!(record.message_bytes);
            args["arrival_us"] = json!(micros(ready.since(span.start)));
            args["transfer_us"] = json!(micros(span.end.since(ready)));
            args["how"] = json!(record.how);
            args["from"] = json!(record.provenance);
            out.complete(name, class.map_or("exchange", OpClass::name), lane, span.start, span.end, &args);
            if ready > span.start {
                let late = trace.spans[record.spans[record.last]].rank;
                let args = json!({"for": format!("rank {}", late.0)});
                out.complete("wait", "wait", lane, span.start, ready, &args);
            }
        }
    }
}

/// An arrow from the member that arrived last to each that had waited for it.
fn flow_events(out: &mut Writer, trace: &SimTrace, record: &ExchangeRecord) {
    let lane = |span: &Span| (span.rank, thread_of(span.track));
    let late = lane(&trace.spans[record.spans[record.last]]);
    for span in record.spans.iter().map(|s| &trace.spans[*s]).filter(|s| s.start < record.ready) {
        out.arrow(late, lane(span), record.ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::samples::{CAPTURED, EAGER, Line, compute, program, reduce, run};

    fn traced(ranks: &[Vec<Line>], host: crate::exec::HostCosts) -> Value {
        let groups: &[&[u32]] = &[&[0, 1]];
        let trace = run(ranks, groups, host, 1).unwrap();
        let text = chrome_trace(&program(ranks, groups).0, &trace);
        assert_eq!(text, chrome_trace(&program(ranks, groups).0, &trace));
        serde_json::from_str(&text).unwrap()
    }

    fn ranks() -> [Vec<Line>; 2] {
        [vec![compute(1, 5), reduce(0, 20, 0)], vec![compute(0, 1_234_567), reduce(0, 20, 0)]]
    }

    #[test]
    fn every_span_is_an_event_on_its_own_thread() {
        let json = traced(&ranks(), CAPTURED);
        let events = json["traceEvents"].as_array().unwrap();
        let of = |pid: u64, tid: u64, name: &str| {
            events.iter().find(|e| e["ph"] == "X" && e["pid"] == pid && e["tid"] == tid && e["name"] == name)
        };
        // Times are microseconds with all digits of the picoseconds.
        assert_eq!(of(1, 1, "add").unwrap()["dur"].to_string(), "1.234567");
        assert_eq!(of(1, 1, "all_reduce").unwrap()["ts"].to_string(), "1.234667");
        assert_eq!(of(0, 2, "add").unwrap()["cat"], "elementwise");
        let reduce = &of(0, 1, "all_reduce").unwrap()["args"];
        assert_eq!((reduce["arrival_us"].as_str(), reduce["transfer_us"].as_str()), (Some("1.234567"), Some("0.000020")));
        assert_eq!(of(0, 1, "wait").unwrap()["args"]["for"], "rank 1");
        assert!(of(1, 1, "wait").is_none());
        assert!(of(0, 0, "launch graph").is_some() && of(0, 0, "wait").is_some());
        let names: Vec<&str> = events.iter().filter(|e| e["name"] == "thread_name").map(|e| e["args"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["host", "stream 0", "stream 1", "host", "stream 0"]);
        let arrows: Vec<(&str, u64)> = events
            .iter()
            .filter(|e| e["name"] == "last arrival")
            .map(|e| (e["ph"].as_str().unwrap(), e["pid"].as_u64().unwrap()))
            .collect();
        assert_eq!(arrows, [("s", 1), ("f", 0)]);
    }

    #[test]
    fn eager_launches_are_named_after_what_they_launch() {
        let json = traced(&ranks(), EAGER);
        let events = json["traceEvents"].as_array().unwrap();
        let launches = events.iter().filter(|e| e["cat"] == "launch").map(|e| e["name"].as_str().unwrap());
        assert_eq!(launches.collect::<Vec<_>>(), ["launch add", "launch add", "launch all_reduce", "launch all_reduce"]);
    }

    #[test]
    fn picoseconds_print_exactly() {
        assert_eq!(Micros(0).to_string(), "0.000000");
        assert_eq!(Micros(1_000_001).to_string(), "1.000001");
        assert_eq!(Micros(u64::MAX).to_string(), "18446744073709.551615");
    }
}
