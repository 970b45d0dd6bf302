//! The event queue: a calendar ordered by (time, sequence), so that events of one instant come out in the order they went in.

use crate::time::Time;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A queue of future events. Deterministic: equal times are served first in, first out, whatever the event type.
///
/// ```
/// use moetwin_sim::{EventQueue, Time};
/// let mut queue = EventQueue::new();
/// queue.push(Time::from_ps(20), "late");
/// queue.push(Time::from_ps(10), "first");
/// queue.push(Time::from_ps(10), "second");
/// assert_eq!(queue.pop(), Some((Time::from_ps(10), "first")));
/// assert_eq!(queue.pop(), Some((Time::from_ps(10), "second")));
/// assert_eq!(queue.now(), Time::from_ps(10));
/// ```
#[derive(Clone, Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    sequence: u64,
    now: Time,
}

#[derive(Clone, Debug)]
struct Entry<E> {
    time: Time,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// Reversed, because the standard heap serves its greatest element first. Sequence numbers are unique, so no two entries are equal.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.sequence).cmp(&(self.time, self.sequence))
    }
}

impl<E> EventQueue<E> {
    /// An empty queue at time zero.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), sequence: 0, now: Time::ZERO }
    }
    /// Schedules an event. One in the past is served now, after the events already due: time never runs backwards.
    pub fn push(&mut self, time: Time, event: E) {
        let time = time.max(self.now);
        self.heap.push(Entry { time, sequence: self.sequence, event });
        self.sequence += 1;
    }
    /// Takes the next event and moves [`now`](Self::now) to its time.
    pub fn pop(&mut self) -> Option<(Time, E)> {
        let entry = self.heap.pop()?;
        self.now = entry.time;
        Some((entry.time, entry.event))
    }
    /// Time of the event served last.
    pub fn now(&self) -> Time {
        self.now
    }
    /// Events waiting.
    pub fn len(&self) -> usize {
        self.heap.len()
    }
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The oracle: a stable sort by time.
        #[test]
        fn serves_in_order_of_time_then_of_arrival(times in prop::collection::vec(0u64..8, 0..64)) {
            let mut queue = EventQueue::new();
            let mut expected: Vec<(u64, usize)> = times.iter().copied().zip(0..).collect();
            for &(time, index) in &expected {
                queue.push(Time::from_ps(time), index);
            }
            expected.sort_by_key(|&(time, _)| time);
            let served: Vec<(u64, usize)> = std::iter::from_fn(|| queue.pop()).map(|(time, index)| (time.as_ps(), index)).collect();
            prop_assert_eq!(served, expected);
        }
    }

    #[test]
    fn an_event_in_the_past_is_served_now() {
        let mut queue = EventQueue::new();
        queue.push(Time::from_ps(5), 'a');
        queue.pop();
        queue.push(Time::from_ps(1), 'b');
        assert_eq!(queue.pop(), Some((Time::from_ps(5), 'b')));
    }
}
