//! Vector clocks over a rank's streams: which commands are known to have finished before another starts.

use crate::program::{Command, EventId, StreamId};

/// Streams that a program has at most.
const STREAMS: usize = 2;

/// For each stream, how many of the rank's commands (by index, exclusive) on it are known to be finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    finished: [usize; STREAMS],
}

impl View {
    /// Whether command `index` on `stream` is known to be finished.
    pub(crate) fn covers(&self, stream: StreamId, index: usize) -> bool {
        self.finished.get(stream.0 as usize).is_some_and(|&n| index < n)
    }
    /// Adds what another view knows.
    pub(crate) fn join(&mut self, other: &View) {
        for (mine, &theirs) in self.finished.iter_mut().zip(&other.finished) {
            *mine = (*mine).max(theirs);
        }
    }
    fn finish(&mut self, stream: StreamId, index: usize) {
        let s = stream.0 as usize;
        self.finished[s] = self.finished[s].max(index + 1);
    }
}

/// The views of all commands issued so far.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// What is known when each command starts.
    before: Vec<View>,
    /// What is known after the last command of each stream.
    streams: Vec<View>,
    /// The command that records each event.
    recorders: Vec<(EventId, usize)>,
}

impl Clock {
    /// What is known on `stream` before a further command without waits.
    pub(crate) fn stream_view(&self, stream: StreamId) -> View {
        self.streams.get(stream.0 as usize).copied().unwrap_or_default()
    }
    /// What is known once command `index` (on `stream`) has finished.
    pub(crate) fn view_after(&self, index: usize, stream: StreamId) -> View {
        let mut v = self.before[index];
        v.finish(stream, index);
        v
    }
    /// Enters a command whose waits refer to events of earlier commands.
    pub(crate) fn issue(&mut self, index: usize, stream: StreamId, earlier: &[Command], waits: &[EventId]) {
        let mut view = self.stream_view(stream);
        for &event in waits {
            if let Some((recorder, s)) = self.recorder(event, earlier) {
                view.join(&self.view_after(recorder, s));
            }
        }
        let s = stream.0 as usize;
        if self.streams.len() <= s {
            self.streams.resize(s + 1, View::default());
        }
        self.before.push(view);
        view.finish(stream, index);
        self.streams[s] = view;
    }
    /// Whether all accesses (command, stream) happen before command `index` starts.
    pub(crate) fn all_before(&self, accesses: &[(usize, StreamId)], index: usize) -> bool {
        accesses.iter().all(|&(command, stream)| self.before[index].covers(stream, command))
    }
    /// Whether all accesses happen before whatever any of the first `streams` streams issues next.
    pub(crate) fn before_everything(&self, accesses: &[(usize, StreamId)], streams: u32) -> bool {
        self.streams.len() == streams as usize
            && self.streams.iter().all(|view| accesses.iter().all(|&(command, stream)| view.covers(stream, command)))
    }
    fn recorder(&mut self, event: EventId, earlier: &[Command]) -> Option<(usize, StreamId)> {
        let known = self.recorders.iter().find(|(e, _)| *e == event).map(|(_, c)| *c);
        let command = known.or_else(|| earlier.iter().rposition(|c| c.records == Some(event)))?;
        if known.is_none() {
            self.recorders.push((event, command));
        }
        Some((command, earlier[command].stream))
    }
}
