//! What happened: spans of virtual time on the tracks of every rank.

use super::{HostCosts, LinkShares};
use crate::cost::{OpCost, Provenance};
use crate::time::{Duration, Time};
use moetwin_models::{IdVec, RankId, define_id};
use moetwin_runtime::{CommandId, StreamId};

define_id!(
    /// A span of a [`SimTrace`].
    SpanId,
    "x"
);
define_id!(
    /// An exchange of a [`SimTrace`]: one collective, or one send with its receive.
    ExchangeId,
    "c"
);

/// Where a span lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// The host thread of the rank.
    Host,
    /// A stream of the rank.
    Stream(StreamId),
}

/// What a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A kernel, or the kernels of one command.
    Compute,
    /// A collective, send or receive: from this rank's arrival to its end.
    Exchange(ExchangeId),
    /// The host launches a command, or a whole captured graph.
    Launch,
    /// The host waits: for room in the launch queue, or for the results of the step.
    HostWait,
}

/// What let a span start when it did: the latest of the things it needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The start of the simulation.
    Start,
    /// The end of another span of the same rank.
    Span(SpanId),
}

/// A span of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Whose.
    pub rank: RankId,
    /// Where.
    pub track: Track,
    /// What.
    pub kind: SpanKind,
    /// The command, `None` for whole-graph launches and host waits.
    pub command: Option<CommandId>,
    /// Its index in the rank's commands.
    pub index: Option<u32>,
    /// Forward pass, from 0.
    pub step: u32,
    /// When it began.
    pub start: Time,
    /// When it ended.
    pub end: Time,
    /// What it had waited for; of a host wait, what ended it.
    pub cause: Cause,
}

impl Span {
    /// How long it took.
    pub fn duration(&self) -> Duration {
        self.end.since(self.start)
    }
}

/// A collective, or a send with its receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeRecord {
    /// Spans of the members, in group order (sender first).
    pub spans: Vec<SpanId>,
    /// Bytes of the message (see [`moetwin_kernels::cost::CostFacts::message_bytes`]).
    pub message_bytes: u64,
    /// When the last member arrived: before it a member waits for others, after it data moves.
    pub ready: Time,
    /// The member that arrived last: position in `spans`.
    pub last: usize,
    /// Part of the transfer that is bytes over link rates.
    pub link: Duration,
    /// What it takes from `ready` to its last member's end while nothing else uses its links.
    pub alone: Duration,
    /// Share of `alone` for which its bytes keep each directed link busy.
    pub shares: LinkShares,
    /// How it was carried out, for example `ring ll`.
    pub how: String,
    /// Where its time comes from.
    pub provenance: Provenance,
}

/// Everything that happened in one simulation.
#[derive(Clone, Debug)]
pub struct SimTrace {
    /// All spans, in order of their start.
    pub spans: IdVec<SpanId, Span>,
    /// All exchanges, in the order they became ready.
    pub exchanges: IdVec<ExchangeId, ExchangeRecord>,
    /// Cost of every command, by rank and index.
    pub costs: IdVec<RankId, Vec<OpCost>>,
    /// What launches cost.
    pub host: HostCosts,
    /// Forward passes simulated.
    pub steps: u32,
    /// From the start to the last rank's end of the last pass.
    pub total: Duration,
}

impl SimTrace {
    /// Mean time of a forward pass.
    pub fn step_time(&self) -> Duration {
        Duration::from_ps(self.total.as_ps() / u64::from(self.steps.max(1)))
    }
    /// When data started to move for an exchange span: until then it waited for other members. `None` for other spans.
    pub fn ready(&self, span: SpanId) -> Option<Time> {
        match self.spans[span].kind {
            SpanKind::Exchange(exchange) => Some(self.exchanges[exchange].ready),
            _ => None,
        }
    }
}
