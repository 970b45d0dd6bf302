//! Exchanges that are under way beside each other on one machine's links.
//!
//! The rule is that of kernels on one GPU: an exchange asks for the share of each directed link that it would use alone, the time its bytes
//! keep the link busy over the time it takes. Where the shares of the exchanges on a link add up to more than one, all of them slow down by
//! that sum; an exchange goes at the pace of its fullest link. Two that wait on latency overlap freely, two that fill a link take as long
//! as one after the other, no link carries more than it can, and one more exchange never makes another faster.

use super::span::ExchangeId;
use crate::time::{Duration, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Full rate: shares are in millionths.
pub(super) const FULL: u64 = 1_000_000;

/// Shares of directed links in millionths, by link.
pub type LinkShares = Arc<[(u32, u64)]>;

/// When a member of an exchange will be done, unless traffic changes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberEnd {
    pub(super) exchange: ExchangeId,
    pub(super) member: usize,
    pub(super) generation: u32,
    pub(super) at: Time,
}

#[derive(Clone, Debug)]
struct Flight {
    shares: LinkShares,
    /// By member: time left if the exchange were alone; `None` once done.
    left: Vec<Option<Duration>>,
    /// Millionths that its fullest link is asked for, at least [`FULL`].
    slowdown: u64,
    /// When its pace last changed.
    since: Time,
    generation: u32,
}

/// What is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    flights: BTreeMap<ExchangeId, Flight>,
    asked: BTreeMap<u32, u64>,
}

impl Traffic {
    /// An exchange begins whose members would be done at `ends` if it were alone. Returns its ends, and new ones of those it slows down.
    pub(super) fn begin(&mut self, exchange: ExchangeId, shares: LinkShares, ends: &[Time], now: Time) -> Vec<MemberEnd> {
        for &(link, share) in shares.iter() {
            *self.asked.entry(link).or_default() += share;
        }
        let left = ends.iter().map(|end| Some(end.since(now))).collect();
        self.flights.insert(exchange, Flight { shares, left, slowdown: 0, since: now, generation: 0 });
        self.reschedule(now)
    }

    /// A member is done; `None` if this end does not hold any more. With the last one the exchange is over: new ends of those it had slowed
    /// down are returned.
    pub(super) fn end(&mut self, end: MemberEnd, now: Time) -> Option<Vec<MemberEnd>> {
        let flight = self.flights.get_mut(&end.exchange).filter(|flight| flight.generation == end.generation)?;
        flight.left.get_mut(end.member)?.take()?;
        if flight.left.iter().any(Option::is_some) {
            return Some(Vec::new());
        }
        let over = self.flights.remove(&end.exchange)?;
        for &(link, share) in over.shares.iter() {
            if let Some(asked) = self.asked.get_mut(&link) {
                *asked = asked.saturating_sub(share);
            }
        }
        Some(self.reschedule(now))
    }

    /// New ends of every exchange whose pace has changed.
    fn reschedule(&mut self, now: Time) -> Vec<MemberEnd> {
        let mut out = Vec::new();
        for (&exchange, flight) in &mut self.flights {
            let asked = |&(link, _): &(u32, u64)| self.asked.get(&link).copied().unwrap_or(0);
            let slowdown = flight.shares.iter().map(asked).max().unwrap_or(0).max(FULL);
            if slowdown == flight.slowdown {
                continue;
            }
            let done = now.since(flight.since).scaled(FULL, flight.slowdown.max(FULL));
            (flight.slowdown, flight.since) = (slowdown, now);
            flight.generation += 1;
            for (member, left) in flight.left.iter_mut().enumerate() {
                if let Some(left) = left {
                    *left = left.saturating_sub(done);
                    let at = now + left.scaled(slowdown, FULL);
                    out.push(MemberEnd { exchange, member, generation: flight.generation, at });
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use moetwin_models::ids::Id;
    use proptest::prelude::*;

    /// Start and duration alone in microseconds, shares of links.
    type One = (u64, u64, Vec<(u32, u64)>);

    /// Runs exchanges to their ends.
    fn run(list: &[One]) -> Vec<Time> {
        let mut traffic = Traffic::default();
        let mut ends = vec![Time::ZERO; list.len()];
        let mut queue = crate::events::EventQueue::new();
        for (index, one) in list.iter().enumerate() {
            queue.push(Time::ZERO + Duration::from_us(one.0), Err(index));
        }
        while let Some((now, event)) = queue.pop() {
            let more = match event {
                Err(index) => {
                    let (_, duration, shares): &One = &list[index];
                    traffic.begin(ExchangeId::from_index(index), shares.clone().into(), &[now + Duration::from_us(*duration)], now)
                }
                Ok(end) => {
                    let end: MemberEnd = end;
                    let Some(more) = traffic.end(end, now) else { continue };
                    ends[end.exchange.index()] = now;
                    more
                }
            };
            for end in more {
                queue.push(end.at, Ok(end));
            }
        }
        ends
    }

    #[test]
    fn two_that_fill_a_link_take_as_long_as_one_after_the_other_and_others_are_not_touched() {
        let full = |link: u32| vec![(link, FULL)];
        let ends = run(&[(0, 10, full(0)), (0, 10, full(0)), (0, 10, full(1)), (0, 10, vec![(0, 0)])]);
        let us: Vec<f64> = ends.iter().map(|end| end.as_us()).collect();
        assert_eq!(us[..3], [20.0, 20.0, 10.0]);
        // Half of a link each: no one waits.
        let half = vec![(0, FULL / 2)];
        assert_eq!(run(&[(0, 10, half.clone()), (3, 10, half)]).iter().map(|end| end.as_us()).collect::<Vec<_>>(), [10.0, 13.0]);
        // One that comes later slows down what is left.
        assert_eq!(run(&[(0, 10, full(0)), (5, 10, full(0))]).iter().map(|end| end.as_us()).collect::<Vec<_>>(), [15.0, 20.0]);
    }

    fn exchanges() -> impl Strategy<Value = Vec<One>> {
        let shares = prop::collection::btree_map(0..4u32, 0..=FULL, 1..4).prop_map(|map| map.into_iter().collect::<Vec<_>>());
        prop::collection::vec((0..50u64, 1..50u64, shares), 2..7)
    }

    proptest! {
        #[test]
        fn one_more_exchange_never_makes_another_faster(list in exchanges()) {
            let all = run(&list);
            let fewer = run(&list[..list.len() - 1]);
            for (with, without) in all.iter().zip(&fewer) {
                prop_assert!(*with + Duration::from_ns(1) >= *without, "{with:?} {without:?}");
            }
        }

        #[test]
        fn none_is_faster_than_alone_and_a_link_takes_the_sum_of_its_bytes(list in exchanges()) {
            let ends = run(&list);
            for (one, end) in list.iter().zip(&ends) {
                prop_assert!(*end >= Time::ZERO + Duration::from_us(one.0 + one.1));
            }
            for link in 0..4u32 {
                let on = |one: &One| one.2.iter().find(|share| share.0 == link).map_or(0, |share| share.1 * one.1);
                let begin = list.iter().filter(|one| on(one) > 0).map(|one| one.0).min().unwrap_or(0);
                let busy_us = list.iter().map(on).sum::<u64>() / FULL;
                let last = list.iter().zip(&ends).filter(|(one, _)| on(one) > 0).map(|(_, end)| *end).max().unwrap_or(Time::ZERO);
                prop_assert!(last + Duration::from_us(1) >= Time::ZERO + Duration::from_us(begin + busy_us));
            }
        }

        #[test]
        fn links_that_an_exchange_does_not_use_do_not_matter(list in exchanges()) {
            let alone = run(&list);
            let mut more = list.clone();
            more.push((0, 100, vec![(9, FULL)]));
            prop_assert_eq!(&run(&more)[..list.len()], &alone[..]);
        }
    }
}
