//! A measured step as a trace of the same form as the simulator's: the same commands under the same names, medians for times.

use super::super::trace::Micros;
use crate::time::Duration;
use moetwin_models::RankId;
use moetwin_runtime::{Action, Command, EventId, Program};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What was measured on one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredRank {
    /// The rank.
    pub rank: u32,
    /// A replay of the captured step, each; empty where it was not captured.
    pub captured: Vec<Duration>,
    /// A replay of the step captured on one stream, each.
    pub one_stream: Vec<Duration>,
    /// The step launched command by command, each.
    pub eager: Vec<Duration>,
    /// By what measured times were multiplied to add up to the step on one stream.
    pub scale: f64,
    /// By command in launch order.
    pub commands: Vec<MeasuredCommand>,
}

/// What a command adds to a captured pass on one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeasuredCommand {
    /// The typical time, multiplied by the rank's scale.
    pub time: Duration,
    /// The shortest and the longest as measured.
    pub spread: (Duration, Duration),
    /// Of how many.
    pub samples: usize,
}

/// The median; of none, zero.
fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(Duration::from_ps(0))
}

fn us(time: Duration) -> String {
    Micros(time.as_ps()).to_string()
}

/// The trace as one JSON object of the Chrome trace-event format. `conditions` says what it is of.
///
/// A command's time is what it adds to the step on one stream, so where each lies is laid out by what it had to wait for, not measured.
pub fn measured_trace(program: &Program, ranks: &[MeasuredRank], conditions: &Value) -> String {
    let slowest = |times: fn(&MeasuredRank) -> &[Duration]| {
        let medians = ranks.iter().map(times).filter(|t| !t.is_empty()).map(median);
        medians.max()
    };
    let (captured, eager) = (slowest(|r| &r.captured), slowest(|r| &r.eager));
    let mut head = json!({"origin": "measured", "steps": 1, "captured": captured.is_some()});
    head["total_us"] = json!(us(captured.or(eager).unwrap_or(Duration::from_ps(0))));
    for (name, time) in [("eager_us", eager), ("one_stream_us", slowest(|r| &r.one_stream))] {
        if let Some(time) = time {
            head[name] = json!(us(time));
        }
    }
    let sum = ranks.iter().map(|r| r.commands.iter().map(|c| c.time).sum::<Duration>()).max();
    head["commands_us"] = json!(sum.map(us));
    head["scales"] = json!(ranks.iter().map(|r| format!("{:.4}", r.scale)).collect::<Vec<_>>());
    head["laid_out"] = json!(
        "a command's time is what it adds to the captured step on one stream, multiplied by the rank's scale so that all add up to it; where it lies is laid out by what it waits for"
    );
    head["conditions"] = conditions.clone();
    let mut out = format!("{{\"displayTimeUnit\":\"ns\",\"otherData\":{head},\"traceEvents\":[");
    let shortest = shortest_of_exchanges(program, ranks);
    let mut first = true;
    let mut line = |event: Value| {
        let _ = write!(out, "{}{event}", if std::mem::take(&mut first) { "\n" } else { ",\n" });
    };
    for measured in ranks {
        line(json!({"name": "process_name", "ph": "M", "pid": measured.rank, "args": {"name": format!("rank {}", measured.rank)}}));
        let mut layout = Layout::default();
        let commands = program.ranks.get(RankId(measured.rank)).map_or(&[][..], |rp| &rp.commands);
        for (command, found) in commands.iter().zip(&measured.commands) {
            let start = layout.place(command, found.time);
            let node = &program.graph.nodes[command.id.node];
            let mut args = json!({"command": command.id.to_string(), "from": "measured", "samples": found.samples});
            if let Some(&result) = node.outputs.first() {
                args["result"] = json!(program.graph.tensors[result].name);
            }
            (args["min_us"], args["max_us"]) = (json!(us(found.spread.0)), json!(us(found.spread.1)));
            if let Some(transfer) = shortest.get(&command.id.node) {
                // Who comes last waits for nobody: what others take longer is waiting.
                args["transfer_us"] = json!(us(*transfer));
                args["arrival_us"] = json!(us(found.time.saturating_sub(*transfer)));
            }
            line(json!({
                "name": node.op.name(), "cat": node.op.class().name(), "ph": "X", "pid": measured.rank, "tid": command.stream.0 + 1,
                "ts": start.as_us(), "dur": found.time.as_us(), "args": args,
            }));
        }
    }
    out.push_str("\n]}\n");
    out
}

/// Of every exchange, what the member takes that takes least.
fn shortest_of_exchanges(program: &Program, ranks: &[MeasuredRank]) -> BTreeMap<moetwin_models::NodeId, Duration> {
    let mut shortest = BTreeMap::new();
    for measured in ranks {
        let commands = program.ranks.get(RankId(measured.rank)).map_or(&[][..], |rp| &rp.commands);
        for (command, found) in commands.iter().zip(&measured.commands).filter(|(c, _)| c.action != Action::Compute) {
            let time = found.time;
            shortest.entry(command.id.node).and_modify(|s: &mut Duration| *s = (*s).min(time)).or_insert(time);
        }
    }
    shortest
}

/// When commands begin if each takes its time and waits for its stream and its events.
#[derive(Default)]
struct Layout {
    streams: BTreeMap<u32, Duration>,
    events: BTreeMap<EventId, Duration>,
}

impl Layout {
    fn place(&mut self, command: &Command, time: Duration) -> Duration {
        let nothing = Duration::from_ps(0);
        let own = self.streams.get(&command.stream.0).copied().unwrap_or(nothing);
        let waited = command.waits.iter().filter_map(|e| self.events.get(e).copied()).max().unwrap_or(nothing);
        let start = own.max(waited);
        self.streams.insert(command.stream.0, start + time);
        if let Some(event) = command.records {
            self.events.insert(event, start + time);
        }
        start
    }
}
