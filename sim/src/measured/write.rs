//! A measured step as a trace of the same form as the simulator's: the same commands under the same names, medians for times.

use super::super::trace::Micros;
use crate::cost::without_gaps;
use crate::time::Duration;
use moetwin_models::RankId;
use moetwin_runtime::{Action, Command, EventId, Program};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What was measured on one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeasuredRank {
    /// The rank.
    pub rank: u32,
    /// A replay of the captured step, each; empty where it was not captured.
    pub captured: Vec<Duration>,
    /// The step launched command by command, each.
    pub eager: Vec<Duration>,
    /// By command in launch order: its times, and whether the host was late for all of them.
    pub commands: Vec<(Vec<Duration>, bool)>,
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
/// Commands were timed one by one, so where each lies is laid out by what it had to wait for, not measured.
pub fn measured_trace(program: &Program, ranks: &[MeasuredRank], conditions: &Value) -> String {
    let slowest = |times: fn(&MeasuredRank) -> &[Duration]| {
        let medians = ranks.iter().map(times).filter(|t| !t.is_empty()).map(median);
        medians.max()
    };
    let (captured, eager) = (slowest(|r| &r.captured), slowest(|r| &r.eager));
    let mut head = json!({"origin": "measured", "steps": 1, "captured": captured.is_some()});
    head["total_us"] = json!(us(captured.or(eager).unwrap_or(Duration::from_ps(0))));
    if let Some(eager) = eager {
        head["eager_us"] = json!(us(eager));
    }
    let alone = ranks.iter().map(|r| first_stream(program, r).map(|i| median(&r.commands[i].0)).sum::<Duration>()).max();
    head["commands_us"] = json!(alone.map(us));
    head["laid_out"] = json!(
        "commands were timed one by one (alone_us); what their sum exceeds the captured step by is taken off them, and each begins when what it waits for has ended"
    );
    head["conditions"] = conditions.clone();
    let mut out = format!("{{\"displayTimeUnit\":\"ns\",\"otherData\":{head},\"traceEvents\":[");
    let all: Vec<Vec<Duration>> = ranks.iter().map(|r| in_the_step(program, r)).collect();
    let shortest = shortest_of_exchanges(program, ranks, &all);
    let mut first = true;
    let mut line = |event: Value| {
        let _ = write!(out, "{}{event}", if std::mem::take(&mut first) { "\n" } else { ",\n" });
    };
    for (measured, in_step) in ranks.iter().zip(&all) {
        line(json!({"name": "process_name", "ph": "M", "pid": measured.rank, "args": {"name": format!("rank {}", measured.rank)}}));
        let mut layout = Layout::default();
        let commands = program.ranks.get(RankId(measured.rank)).map_or(&[][..], |rp| &rp.commands);
        for ((command, (times, late)), &time) in commands.iter().zip(&measured.commands).zip(in_step) {
            let start = layout.place(command, time);
            let node = &program.graph.nodes[command.id.node];
            let mut args =
                json!({"command": command.id.to_string(), "from": "measured", "samples": times.len(), "alone_us": us(median(times))});
            if let Some(&result) = node.outputs.first() {
                args["result"] = json!(program.graph.tensors[result].name);
            }
            for (name, value) in [("min_us", times.iter().min()), ("max_us", times.iter().max())] {
                args[name] = json!(value.map(|v| us(*v)));
            }
            if *late {
                args["late"] = json!(true);
            }
            if let Some(transfer) = shortest.get(&command.id.node) {
                // Who comes last waits for nobody: what others take longer is waiting.
                args["transfer_us"] = json!(us(*transfer));
                args["arrival_us"] = json!(us(time.saturating_sub(*transfer)));
            }
            line(json!({
                "name": node.op.name(), "cat": node.op.class().name(), "ph": "X", "pid": measured.rank, "tid": command.stream.0 + 1,
                "ts": start.as_us(), "dur": time.as_us(), "args": args,
            }));
        }
    }
    out.push_str("\n]}\n");
    out
}

/// The least that a command takes in a captured step: a node of a graph took 0.41 us on an H200 (2026-11-30).
const LEAST: Duration = Duration::from_ns(400);

/// Commands of a rank's first stream.
fn first_stream<'a>(program: &'a Program, measured: &'a MeasuredRank) -> impl Iterator<Item = usize> + 'a {
    let commands = program.ranks.get(RankId(measured.rank)).map_or(&[][..], |rp| &rp.commands);
    commands.iter().take(measured.commands.len()).enumerate().filter(|(_, c)| c.stream.0 == 0).map(|(i, _)| i)
}

/// What each command takes in the captured step: alone they take longer together than the step does, since in it a kernel begins while the one
/// before it ends. Where the step was not captured, what they take alone.
fn in_the_step(program: &Program, measured: &MeasuredRank) -> Vec<Duration> {
    let mut times: Vec<Duration> = measured.commands.iter().map(|(times, _)| median(times)).collect();
    if !measured.captured.is_empty() {
        let first: Vec<usize> = first_stream(program, measured).collect();
        let alone: Vec<u64> = first.iter().map(|i| times[*i].as_ps()).collect();
        let inside = without_gaps(&alone, median(&measured.captured).as_ps(), LEAST.as_ps());
        first.into_iter().zip(inside).for_each(|(i, ps)| times[i] = Duration::from_ps(ps));
    }
    times
}

/// Of every exchange, what the member takes that takes least.
fn shortest_of_exchanges(program: &Program, ranks: &[MeasuredRank], all: &[Vec<Duration>]) -> BTreeMap<moetwin_models::NodeId, Duration> {
    let mut shortest = BTreeMap::new();
    for (measured, in_step) in ranks.iter().zip(all) {
        let commands = program.ranks.get(RankId(measured.rank)).map_or(&[][..], |rp| &rp.commands);
        for (command, &time) in commands.iter().zip(in_step).filter(|(c, _)| c.action != Action::Compute) {
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
