//! The event loop: hosts launch, streams run their commands in order, exchanges gather their members.

use super::gpu::{Completion, Gpu};
use super::meet::{Arrival, Arrived, Key, Meetings};
use super::span::{Cause, ExchangeId, ExchangeRecord, SimTrace, Span, SpanId, SpanKind, Track};
use super::traffic::{MemberEnd, Traffic};
use super::transport::{Exchange, Transport};
use super::{HostCosts, SimError, Stuck, WaitsFor};
use crate::cost::OpCost;
use crate::events::EventQueue;
use crate::time::{Duration, Time};
use moetwin_models::{IdVec, NodeId, RankId};
use moetwin_runtime::{Action, Command, EventId, Program, StreamId};
use std::collections::BTreeMap;

/// Launches that a stream holds before the host blocks (the driver's limit of pending launches).
const LAUNCH_QUEUE: usize = 1024;

/// Stuck commands that an error lists.
const STUCK_LISTED: usize = 16;

/// What a command costs: time on the GPU, and the bytes it communicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Priced {
    pub(crate) cost: OpCost,
    pub(crate) message_bytes: u64,
}

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The host has launched the commands before `until`.
    Launched { rank: RankId, until: usize, span: SpanId },
    /// A kernel may be done.
    Kernel { rank: RankId, slot: usize, generation: u32 },
    /// A member of an exchange is done.
    Exchanged { rank: RankId, slot: usize, end: MemberEnd },
}

/// A stream of a rank.
#[derive(Clone, Debug)]
struct Stream {
    id: StreamId,
    /// Indices of its commands.
    order: Vec<usize>,
    /// Position of the next one.
    head: usize,
    /// Span of the one that runs.
    running: Option<SpanId>,
    /// Span that ended last, in this pass.
    last: Option<SpanId>,
}

/// A rank in the middle of a pass.
#[derive(Clone, Debug)]
struct Rank {
    step: u32,
    streams: Vec<Stream>,
    /// Dense stream of each command.
    slot_of: Vec<usize>,
    gpu: Gpu,
    /// Recorded events and the span that recorded them.
    recorded: BTreeMap<EventId, SpanId>,
    /// Commands launched so far, and the span that launched the last of them.
    launched: usize,
    launches: Vec<SpanId>,
    /// Commands done.
    done: usize,
    /// Set while the launch queue is full: since when the host waits.
    blocked: Option<Time>,
    /// Messages so far in this pass, by peer: sent, received.
    sent: BTreeMap<RankId, u32>,
    received: BTreeMap<RankId, u32>,
    /// End of the last launch.
    host_free: Time,
    host_last: Option<SpanId>,
}

/// One simulation.
pub(super) struct Engine<'a> {
    program: &'a Program,
    priced: &'a IdVec<RankId, Vec<Priced>>,
    gpus: &'a [usize],
    host: HostCosts,
    steps: u32,
    transport: &'a mut dyn Transport,
    queue: EventQueue<Event>,
    ranks: Vec<Rank>,
    meetings: Meetings,
    traffic: Traffic,
    /// By exchange: rank and slot of each member, and when the last would be done alone.
    members: IdVec<ExchangeId, (Vec<(RankId, usize)>, Time)>,
    spans: IdVec<SpanId, Span>,
    exchanges: IdVec<ExchangeId, ExchangeRecord>,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        program: &'a Program,
        priced: &'a IdVec<RankId, Vec<Priced>>,
        gpus: &'a [usize],
        host: HostCosts,
        steps: u32,
        transport: &'a mut dyn Transport,
    ) -> Self {
        let ranks = program.ranks.iter().map(|(_, rp)| Rank::new(&rp.commands)).collect();
        Self {
            program,
            priced,
            gpus,
            host,
            steps,
            transport,
            queue: EventQueue::new(),
            ranks,
            meetings: Meetings::default(),
            traffic: Traffic::default(),
            members: IdVec::new(),
            spans: IdVec::new(),
            exchanges: IdVec::new(),
        }
    }

    /// Runs to the end, or to where nothing can happen any more.
    pub(super) fn run(mut self) -> Result<SimTrace, SimError> {
        if self.steps > 0 {
            for rank in self.program.ranks.ids() {
                self.begin_step(rank, Time::ZERO);
            }
        }
        while let Some((now, event)) = self.queue.pop() {
            match event {
                Event::Launched { rank, until, span } => self.launched(rank, until, span, now)?,
                Event::Kernel { rank, slot, generation } => {
                    if self.rank(rank).gpu.is_current(slot, generation) {
                        let completions = self.rank(rank).gpu.finish(slot, now);
                        self.schedule(rank, completions);
                        self.finish(rank, slot, now)?;
                    }
                }
                Event::Exchanged { rank, slot, end } => {
                    if let Some(changed) = self.traffic.end(end, now) {
                        self.schedule_exchanges(&changed);
                        self.slowed(end, now);
                        self.finish(rank, slot, now)?;
                    }
                }
            }
        }
        self.check_finished()?;
        let total = self.spans.as_slice().iter().map(|s| s.end).max().unwrap_or(Time::ZERO).since(Time::ZERO);
        let costs = self.priced.as_slice().iter().map(|list| list.iter().map(|p| p.cost).collect()).collect();
        Ok(SimTrace { spans: self.spans, exchanges: self.exchanges, costs, host: self.host, steps: self.steps, total })
    }

    fn rank(&mut self, rank: RankId) -> &mut Rank {
        &mut self.ranks[rank.0 as usize]
    }

    fn commands(&self, rank: RankId) -> &'a [Command] {
        &self.program.ranks[rank].commands
    }

    /// The host starts launching a pass.
    fn begin_step(&mut self, rank: RankId, now: Time) {
        self.rank(rank).host_free = now;
        if self.commands(rank).is_empty() {
            return;
        }
        if self.host.graphs {
            let cause = self.rank(rank).host_last.map_or(Cause::Start, Cause::Span);
            let end = now + self.host.graph_launch;
            let span = self.host_span(rank, SpanKind::Launch, None, now, end, cause);
            self.queue.push(end, Event::Launched { rank, until: self.commands(rank).len(), span });
        } else {
            self.launch_next(rank, now);
        }
    }

    /// The host launches the next command, unless its launch queue is full.
    fn launch_next(&mut self, rank: RankId, now: Time) {
        let r = &self.ranks[rank.0 as usize];
        let index = r.launched;
        let Some(command) = self.commands(rank).get(index) else { return };
        if index - r.done >= LAUNCH_QUEUE {
            self.rank(rank).blocked = Some(now);
            return;
        }
        let cost = match command.action {
            Action::Compute => self.host.eager_kernel.max(self.host.eager_call) * u64::from(self.priced[rank][index].cost.kernels),
            _ => self.host.eager_collective.max(self.host.eager_call),
        };
        let cause = r.host_last.map_or(Cause::Start, Cause::Span);
        let end = now + cost;
        let span = self.host_span(rank, SpanKind::Launch, Some(index), now, end, cause);
        self.queue.push(end, Event::Launched { rank, until: index + 1, span });
    }

    fn host_span(&mut self, rank: RankId, kind: SpanKind, index: Option<usize>, start: Time, end: Time, cause: Cause) -> SpanId {
        let command = index.map(|i| self.commands(rank)[i].id);
        let (step, index) = (self.rank(rank).step, index.map(|i| i as u32));
        let id = self.spans.push(Span { rank, track: Track::Host, kind, command, index, step, start, end, cause });
        let r = self.rank(rank);
        r.host_last = Some(id);
        r.host_free = end;
        id
    }

    fn launched(&mut self, rank: RankId, until: usize, span: SpanId, now: Time) -> Result<(), SimError> {
        let r = self.rank(rank);
        let from = r.launched;
        r.launched = until;
        r.launches.resize(until, span);
        let mut slots: Vec<usize> = r.slot_of[from..until].to_vec();
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            self.try_start(rank, slot, now)?;
        }
        self.launch_next(rank, now);
        Ok(())
    }

    /// Starts the head of a stream if everything it needs is there.
    fn try_start(&mut self, rank: RankId, slot: usize, now: Time) -> Result<(), SimError> {
        let r = &self.ranks[rank.0 as usize];
        let stream = &r.streams[slot];
        let Some(&index) = stream.order.get(stream.head) else { return Ok(()) };
        if stream.running.is_some() || index >= r.launched {
            return Ok(());
        }
        let command = &self.commands(rank)[index];
        // The latest of what it needed; of equals, the stream's own previous command, then events, then the launch.
        let mut cause = stream.last;
        for event in &command.waits {
            let Some(&recorder) = r.recorded.get(event) else { return Ok(()) };
            if cause.is_none_or(|c| self.spans[c].end < self.spans[recorder].end) {
                cause = Some(recorder);
            }
        }
        let launch = r.launches[index];
        if cause.is_none_or(|c| self.spans[c].end < self.spans[launch].end) {
            cause = Some(launch);
        }
        let (track, step) = (Track::Stream(stream.id), r.step);
        let span = Span {
            rank,
            track,
            kind: SpanKind::Compute,
            command: Some(command.id),
            index: Some(index as u32),
            step,
            start: now,
            end: now,
            cause: cause.map_or(Cause::Start, Cause::Span),
        };
        let id = self.spans.push(span);
        self.rank(rank).streams[slot].running = Some(id);
        match command.action {
            Action::Compute => self.compute(rank, slot, index, now),
            _ => self.arrive(rank, slot, index, id, now)?,
        }
        Ok(())
    }

    fn compute(&mut self, rank: RankId, slot: usize, index: usize, now: Time) {
        let cost = self.priced[rank][index].cost;
        // No node of a stream takes less than getting its kernels started.
        let mut duration = Duration::from_ps(cost.duration_ps).max(self.host.graph_node * u64::from(cost.kernels));
        if !self.host.graphs {
            duration += self.host.eager_gap * u64::from(cost.kernels);
        } else if !self.commands(rank)[index].waits.is_empty() {
            duration += self.host.join;
        }
        let completions = self.rank(rank).gpu.start(slot, &cost, duration, now);
        self.schedule(rank, completions);
    }

    fn schedule(&mut self, rank: RankId, completions: Vec<Completion>) {
        for c in completions {
            self.queue.push(c.at, Event::Kernel { rank, slot: c.slot, generation: c.generation });
        }
    }

    /// A member reaches an exchange.
    fn arrive(&mut self, rank: RankId, slot: usize, index: usize, span: SpanId, now: Time) -> Result<(), SimError> {
        let command = &self.commands(rank)[index];
        let (key, position, size) = self.meeting(rank, index);
        let r = self.rank(rank);
        match command.action {
            Action::Send { to } => *r.sent.entry(to).or_insert(0) += 1,
            Action::Receive { from } => *r.received.entry(from).or_insert(0) += 1,
            Action::Compute | Action::Collective { .. } => {}
        }
        let arrival = Arrival { rank, slot, command: command.id, index: index as u32, span, at: now };
        match self.meetings.arrive(key, position, size, arrival) {
            Arrived::Waiting => Ok(()),
            Arrived::Complete(members) => self.exchange(&members, now),
            Arrived::Twice(first) => {
                let (one, other) = (first.command, command.id);
                Err(SimError::Program(format!("{rank} issues the same collective of a group twice: {one} and {other}")))
            }
        }
    }

    /// Where a command meets others: key, own position, how many.
    fn meeting(&self, rank: RankId, index: usize) -> (Key, usize, usize) {
        let r = &self.ranks[rank.0 as usize];
        let count = |of: &BTreeMap<RankId, u32>, peer: RankId| of.get(&peer).copied().unwrap_or(0);
        match self.commands(rank)[index].action {
            Action::Collective { group, sequence } => {
                let members = &self.program.groups[group].ranks;
                let position = members.iter().position(|m| *m == rank).unwrap_or(0);
                (Key::Collective { step: r.step, group, sequence }, position, members.len())
            }
            Action::Send { to } => (Key::Message { step: r.step, from: rank, to, count: count(&r.sent, to) }, 0, 2),
            Action::Receive { from } => (Key::Message { step: r.step, from, to: rank, count: count(&r.received, from) }, 1, 2),
            // Never asked; a key nobody else has.
            Action::Compute => (Key::Message { step: r.step, from: rank, to: rank, count: u32::MAX }, 0, 1),
        }
    }

    /// All members are there.
    fn exchange(&mut self, members: &[Arrival], now: Time) -> Result<(), SimError> {
        let op_of = |node: NodeId| &self.program.graph.nodes[node].op;
        let op = op_of(members[0].command.node);
        for m in &members[1..] {
            let other = op_of(m.command.node);
            if op != other {
                let (one, two) = (members[0].command, m.command);
                return Err(SimError::Program(format!("{one} and {two} meet, but one is {op:?} and the other {other:?}")));
            }
        }
        let gpus: Vec<usize> = members.iter().map(|m| self.gpus[m.rank.0 as usize]).collect();
        let arrivals: Vec<Time> = members.iter().map(|m| m.at).collect();
        let message_bytes = members.iter().map(|m| self.priced[m.rank][m.index as usize].message_bytes).max().unwrap_or(0);
        let exchange = Exchange { op, gpus: &gpus, arrivals: &arrivals, message_bytes };
        let outcome = self.transport.carry(&exchange).map_err(|reason| SimError::Exchange { command: members[0].command, reason })?;
        if outcome.ends.len() != members.len() {
            let reason = format!("{} ends for {} members", outcome.ends.len(), members.len());
            return Err(SimError::Exchange { command: members[0].command, reason });
        }
        // Of members that arrived together, the first in group order counts as the last.
        let last = (0..members.len()).rev().max_by_key(|&i| members[i].at).unwrap_or(0);
        let alone = outcome.ends.iter().copied().max().unwrap_or(now).max(now);
        let id = self.exchanges.push(ExchangeRecord {
            spans: members.iter().map(|m| m.span).collect(),
            message_bytes,
            ready: now,
            last,
            link: outcome.link,
            alone: alone.since(now),
            shares: outcome.shares.clone(),
            how: outcome.how,
            provenance: outcome.provenance,
        });
        for m in members {
            self.spans[m.span].kind = SpanKind::Exchange(id);
        }
        self.members.push((members.iter().map(|m| (m.rank, m.slot)).collect(), alone));
        let ends = self.traffic.begin(id, outcome.shares, &outcome.ends, now);
        self.schedule_exchanges(&ends);
        Ok(())
    }

    fn schedule_exchanges(&mut self, ends: &[MemberEnd]) {
        for &end in ends {
            let (rank, slot) = self.members[end.exchange].0[end.member];
            self.queue.push(end.at, Event::Exchanged { rank, slot, end });
        }
    }

    /// What an exchange took longer than alone is time on links that it shared.
    fn slowed(&mut self, end: MemberEnd, now: Time) {
        let alone = &mut self.members[end.exchange].1;
        self.exchanges[end.exchange].link += now.since(*alone);
        *alone = (*alone).max(now);
    }

    /// The running command of a stream is done.
    fn finish(&mut self, rank: RankId, slot: usize, now: Time) -> Result<(), SimError> {
        let r = self.rank(rank);
        let stream = &mut r.streams[slot];
        let Some(span) = stream.running.take() else { return Ok(()) };
        let index = stream.order[stream.head];
        stream.head += 1;
        stream.last = Some(span);
        r.done += 1;
        self.spans[span].end = now;
        let recorded = self.commands(rank)[index].records;
        if let Some(event) = recorded {
            self.rank(rank).recorded.entry(event).or_insert(span);
        }
        self.try_start(rank, slot, now)?;
        if recorded.is_some() {
            for other in (0..self.rank(rank).streams.len()).filter(|s| *s != slot) {
                self.try_start(rank, other, now)?;
            }
        }
        if let Some(since) = self.rank(rank).blocked.take() {
            self.host_span(rank, SpanKind::HostWait, None, since, now, Cause::Span(span));
            self.launch_next(rank, now);
        }
        if self.rank(rank).done == self.commands(rank).len() {
            self.end_step(rank, span, now);
        }
        Ok(())
    }

    /// The host has waited for the results and starts the next pass.
    fn end_step(&mut self, rank: RankId, last: SpanId, now: Time) {
        let since = self.rank(rank).host_free;
        self.host_span(rank, SpanKind::HostWait, None, since, now, Cause::Span(last));
        let r = self.rank(rank);
        r.step += 1;
        if r.step < self.steps {
            self.rank(rank).reset();
            self.begin_step(rank, now);
        }
    }

    /// An error if any rank has commands left.
    fn check_finished(&self) -> Result<(), SimError> {
        let mut stuck = Vec::new();
        for (rank, r) in self.program.ranks.ids().zip(&self.ranks) {
            if r.step < self.steps && r.done < self.commands(rank).len() {
                stuck.extend(r.streams.iter().filter_map(|stream| self.stuck(rank, r, stream)));
            }
        }
        if stuck.is_empty() {
            return Ok(());
        }
        let (at, count) = (self.queue.now(), stuck.len());
        stuck.truncate(STUCK_LISTED);
        Err(SimError::Deadlock { at, count, stuck })
    }

    fn stuck(&self, rank: RankId, r: &Rank, stream: &Stream) -> Option<Stuck> {
        let &index = stream.order.get(stream.head)?;
        let command = &self.commands(rank)[index];
        let unrecorded = command.waits.iter().find(|e| !r.recorded.contains_key(e));
        let waits_for = match (command.action, unrecorded) {
            (_, Some(&event)) => WaitsFor::Event(event),
            (Action::Collective { group, .. }, None) => {
                let (key, ..) = self.meeting(rank, index);
                let members = &self.program.groups[group].ranks;
                WaitsFor::Ranks(self.meetings.missing(key).into_iter().map(|i| members[i]).collect())
            }
            (Action::Send { to: peer } | Action::Receive { from: peer }, None) => WaitsFor::Ranks(vec![peer]),
            (Action::Compute, None) => WaitsFor::Launch,
        };
        Some(Stuck { command: command.id, stream: stream.id, waits_for })
    }
}

impl Rank {
    fn new(commands: &[Command]) -> Self {
        let mut ids: Vec<StreamId> = commands.iter().map(|c| c.stream).collect();
        ids.sort_unstable();
        ids.dedup();
        let slot_of: Vec<usize> = commands.iter().map(|c| ids.binary_search(&c.stream).unwrap_or(0)).collect();
        let mut streams: Vec<Stream> = ids.iter().map(|&id| Stream { id, order: Vec::new(), head: 0, running: None, last: None }).collect();
        for (index, &slot) in slot_of.iter().enumerate() {
            streams[slot].order.push(index);
        }
        Self {
            step: 0,
            streams,
            slot_of,
            gpu: Gpu::default(),
            recorded: BTreeMap::new(),
            launched: 0,
            launches: Vec::new(),
            done: 0,
            blocked: None,
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            host_free: Time::ZERO,
            host_last: None,
        }
    }
    /// Ready for the next pass.
    fn reset(&mut self) {
        for stream in &mut self.streams {
            (stream.head, stream.last) = (0, None);
        }
        self.recorded.clear();
        (self.launched, self.done) = (0, 0);
        self.launches.clear();
        self.sent.clear();
        self.received.clear();
    }
}
