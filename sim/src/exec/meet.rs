//! Where ranks meet: members of an exchange arrive one by one, and the last one sets it going.

use super::span::SpanId;
use crate::time::Time;
use moetwin_models::RankId;
use moetwin_runtime::{CommandId, GroupId};
use std::collections::BTreeMap;

/// What members recognise each other by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// The `sequence`-th collective of a group in a forward pass.
    Collective { step: u32, group: GroupId, sequence: u32 },
    /// The `count`-th message from one rank to another in a forward pass.
    Message { step: u32, from: RankId, to: RankId, count: u32 },
}

/// A member that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) rank: RankId,
    /// Dense index of its stream.
    pub(super) slot: usize,
    pub(super) command: CommandId,
    pub(super) index: u32,
    pub(super) span: SpanId,
    pub(super) at: Time,
}

/// Exchanges that some members have arrived at.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    open: BTreeMap<Key, Vec<Option<Arrival>>>,
}

/// What an arrival led to.
#[derive(Debug)]
pub(super) enum Arrived {
    /// Others are missing.
    Waiting,
    /// All are there, in group order.
    Complete(Vec<Arrival>),
    /// This member was there already.
    Twice(Arrival),
}

impl Meetings {
    /// Member `position` of `size` arrives.
    pub(super) fn arrive(&mut self, key: Key, position: usize, size: usize, arrival: Arrival) -> Arrived {
        let slots = self.open.entry(key).or_insert_with(|| vec![None; size]);
        if let Some(first) = slots[position] {
            return Arrived::Twice(first);
        }
        slots[position] = Some(arrival);
        if slots.iter().any(Option::is_none) {
            return Arrived::Waiting;
        }
        let all = self.open.remove(&key).unwrap_or_default();
        Arrived::Complete(all.into_iter().flatten().collect())
    }
    /// Positions that are missing at an open exchange.
    pub(super) fn missing(&self, key: Key) -> Vec<usize> {
        let slots = self.open.get(&key).map_or(&[][..], |s| s);
        slots.iter().enumerate().filter(|(_, s)| s.is_none()).map(|(i, _)| i).collect()
    }
}
