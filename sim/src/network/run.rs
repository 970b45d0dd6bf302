//! Carrying out transfers: each waits for others, then shares the links it crosses until its last byte has left.

use super::route::{Network, Route};
use crate::time::{Duration, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Index of a transfer in its list.
pub type TransferId = u32;

/// A piece of data to move once others have been moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Index into the routes given to [`run`].
    pub route: u32,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// What the sender can do, bytes per second.
    pub cap: u64,
    /// Not before this.
    pub earliest: Time,
    /// Transfers of lower index that must have left, each with the time that must pass after it: none for the sender's own previous one,
    /// path latency and step overhead for one received.
    pub after: Vec<(TransferId, Duration)>,
    /// Transfers of lower index that must have started, each with the time that must pass after it: what is passed on piece by piece.
    pub after_start: Vec<(TransferId, Duration)>,
}

/// When a transfer happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Its first byte left.
    pub start: Time,
    /// Its last byte left; it arrives the path's latency later.
    pub end: Time,
}

/// A list of transfers that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A transfer waits for itself or a later one, or uses a route that is not there.
    #[error("transfer {0} waits for a transfer that does not precede it, or has no route")]
    Malformed(TransferId),
    /// A flow gets no rate at all.
    #[error("transfer {0} never ends: its path has no rate left")]
    Stuck(TransferId),
}

struct Active {
    id: TransferId,
    /// Bytes left, times 10^12: exact under a rate in bytes per second and a time in picoseconds.
    left: u128,
    rate: u64,
}

/// The flows of an instant, by route and cap: what their rates depend on.
type Pattern = Vec<(u32, u64)>;

/// Carries out transfers and says when each happened. Deterministic: instants are served in order, ties in order of index.
///
/// # Errors
/// If the list is malformed or a flow can never end.
pub fn run(network: &Network<'_>, routes: &[Route], transfers: &[Transfer]) -> Result<Vec<Span>, RunError> {
    Runner::new(network, routes, transfers)?.run()
}

struct Runner<'a> {
    network: &'a Network<'a>,
    routes: &'a [Route],
    transfers: &'a [Transfer],
    waiting: Vec<u32>,
    followers: Vec<Vec<(TransferId, Duration)>>,
    start_followers: Vec<Vec<(TransferId, Duration)>>,
    spans: Vec<Span>,
    /// Transfers whose first byte moves at a known time.
    starts: BinaryHeap<Reverse<(Time, TransferId)>>,
    active: Vec<Active>,
    solved: BTreeMap<Pattern, Vec<u64>>,
}

impl<'a> Runner<'a> {
    fn new(network: &'a Network<'a>, routes: &'a [Route], transfers: &'a [Transfer]) -> Result<Self, RunError> {
        let mut followers = vec![Vec::new(); transfers.len()];
        let mut start_followers = vec![Vec::new(); transfers.len()];
        let mut waiting = vec![0u32; transfers.len()];
        for (index, transfer) in transfers.iter().enumerate() {
            let id = TransferId::try_from(index).map_err(|_| RunError::Malformed(TransferId::MAX))?;
            if transfer.route as usize >= routes.len() {
                return Err(RunError::Malformed(id));
            }
            for (list, lists) in [(&transfer.after, &mut followers), (&transfer.after_start, &mut start_followers)] {
                for &(other, delay) in list {
                    if other >= id {
                        return Err(RunError::Malformed(id));
                    }
                    lists[other as usize].push((id, delay));
                    waiting[index] += 1;
                }
            }
        }
        Ok(Self {
            network,
            routes,
            transfers,
            waiting,
            followers,
            start_followers,
            spans: transfers.iter().map(|transfer| Span { start: transfer.earliest, end: transfer.earliest }).collect(),
            starts: BinaryHeap::new(),
            active: Vec::new(),
            solved: BTreeMap::new(),
        })
    }

    fn run(mut self) -> Result<Vec<Span>, RunError> {
        for id in 0..self.transfers.len() {
            if self.waiting[id] == 0 {
                self.starts.push(Reverse((self.transfers[id].earliest, id as TransferId)));
            }
        }
        let mut now = Time::ZERO;
        loop {
            let next_start = self.starts.peek().map(|Reverse((time, _))| *time);
            let next_end = self.next_end(now)?;
            let Some(next) = next_start.into_iter().chain(next_end).min() else { break };
            self.advance(next.since(now));
            now = next;
            let changed = self.finish_done(now) | self.start_due(now);
            if changed {
                self.share();
            }
        }
        Ok(self.spans)
    }

    fn next_end(&self, now: Time) -> Result<Option<Time>, RunError> {
        let mut next: Option<Time> = None;
        for flow in &self.active {
            if flow.rate == 0 {
                return Err(RunError::Stuck(flow.id));
            }
            let span = u64::try_from(flow.left.div_ceil(u128::from(flow.rate))).map_err(|_| RunError::Stuck(flow.id))?;
            let end = Time::from_ps(now.as_ps().checked_add(span).ok_or(RunError::Stuck(flow.id))?);
            next = Some(next.map_or(end, |time| time.min(end)));
        }
        Ok(next)
    }

    fn advance(&mut self, span: Duration) {
        for flow in &mut self.active {
            flow.left = flow.left.saturating_sub(u128::from(flow.rate) * u128::from(span.as_ps()));
        }
    }

    fn finish_done(&mut self, now: Time) -> bool {
        let done: Vec<TransferId> = self.active.iter().filter(|flow| flow.left == 0).map(|flow| flow.id).collect();
        self.active.retain(|flow| flow.left > 0);
        for &id in &done {
            self.complete(id, now);
        }
        !done.is_empty()
    }

    fn complete(&mut self, id: TransferId, now: Time) {
        self.spans[id as usize].end = now;
        for index in 0..self.followers[id as usize].len() {
            let (follower, delay) = self.followers[id as usize][index];
            self.release(follower, now + delay);
        }
    }

    /// One thing less that a transfer waits for; it may not start before `at`.
    fn release(&mut self, follower: TransferId, at: Time) {
        let span = &mut self.spans[follower as usize];
        span.start = span.start.max(at);
        self.waiting[follower as usize] -= 1;
        if self.waiting[follower as usize] == 0 {
            self.starts.push(Reverse((span.start, follower)));
        }
    }

    fn start_due(&mut self, now: Time) -> bool {
        let mut changed = false;
        while let Some(&Reverse((time, id))) = self.starts.peek() {
            if time > now {
                break;
            }
            self.starts.pop();
            for index in 0..self.start_followers[id as usize].len() {
                let (follower, delay) = self.start_followers[id as usize][index];
                self.release(follower, now + delay);
            }
            let transfer = &self.transfers[id as usize];
            if transfer.wire_bytes == 0 {
                self.complete(id, now);
            } else {
                self.active.push(Active { id, left: u128::from(transfer.wire_bytes) * 1_000_000_000_000, rate: 0 });
                changed = true;
            }
        }
        changed
    }

    /// Solves the rates of the flows there are now, unless the same pattern was solved before.
    fn share(&mut self) {
        self.active.sort_unstable_by_key(|flow| {
            let transfer = &self.transfers[flow.id as usize];
            (transfer.route, transfer.cap, flow.id)
        });
        let pattern: Pattern = self
            .active
            .iter()
            .map(|flow| {
                let transfer = &self.transfers[flow.id as usize];
                (transfer.route, transfer.cap)
            })
            .collect();
        if !self.solved.contains_key(&pattern) {
            let flows: Vec<(&Route, u64)> = pattern.iter().map(|&(route, cap)| (&self.routes[route as usize], cap)).collect();
            let rates = self.network.rates(&flows);
            self.solved.insert(pattern.clone(), rates);
        }
        for (flow, rate) in self.active.iter_mut().zip(&self.solved[&pattern]) {
            flow.rate = *rate;
        }
    }
}
