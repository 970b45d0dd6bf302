//! A collective as transfers, before it is carried out.

use crate::network::{Route, Transfer, TransferId};
use crate::time::{Duration, Time};
use std::collections::BTreeMap;

/// Transfers of one collective and what each rank waits for at its end.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) routes: Vec<Route>,
    pub(super) transfers: Vec<Transfer>,
    /// Who sends how much data to whom, by transfer: positions in the rank list and payload bytes.
    pub(super) labels: Vec<Label>,
    /// By rank: transfers after which the rank is done, and how long after each.
    pub(super) ends: Vec<Vec<(TransferId, Duration)>>,
    interned: BTreeMap<(usize, usize), u32>,
}

/// What a transfer is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) payload_bytes: u64,
    pub(super) step: u32,
}

impl Plan {
    pub(super) fn new(ranks: usize) -> Self {
        Self { ends: vec![Vec::new(); ranks], ..Self::default() }
    }

    /// The index of the route from one rank to another, found once.
    pub(super) fn route<E>(&mut self, from: usize, to: usize, find: impl FnOnce() -> Result<Route, E>) -> Result<u32, E> {
        if let Some(&index) = self.interned.get(&(from, to)) {
            return Ok(index);
        }
        let index = self.routes.len() as u32;
        self.routes.push(find()?);
        self.interned.insert((from, to), index);
        Ok(index)
    }

    pub(super) fn latency(&self, route: u32) -> Duration {
        self.routes[route as usize].latency
    }

    pub(super) fn push(&mut self, route: u32, label: Label, flow: Flow, earliest: Time, after: Vec<(TransferId, Duration)>) -> TransferId {
        let id = self.transfers.len() as TransferId;
        let after_start = Vec::new();
        self.transfers.push(Transfer { route, wire_bytes: flow.wire_bytes, cap: flow.cap, earliest, after, after_start });
        self.labels.push(label);
        id
    }
}

/// What a transfer puts on the wire, and how fast its sender can at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) wire_bytes: u64,
    pub(super) cap: u64,
}
