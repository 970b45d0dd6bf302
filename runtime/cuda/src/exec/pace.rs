//! What things take on a fake GPU: made up, so that tests know what a measurement must find.

use super::gpu::{GpuError, Stream};
use moetwin_kernels::launch::Launch;
use std::collections::BTreeMap;

/// A stamp, picoseconds.
pub const STAMP_PS: u64 = 300_000;
/// A group of calls of a communicator, picoseconds.
pub const EXCHANGE_PS: u64 = 7_000_000;
/// A copy or a fill, picoseconds.
pub const COPY_PS: u64 = 1_500_000;
/// What lies between two launches that the host makes one by one, picoseconds.
pub const EAGER_GAP_PS: u64 = 2_000_000;

/// A kernel, picoseconds: the longer the more blocks it has.
pub fn kernel_ps(launch: &Launch) -> u64 {
    2_000_000 + 1_000 * u64::from(launch.grid.0) * u64::from(launch.grid.1) * u64::from(launch.grid.2)
}

/// How far the streams of a fake GPU have come.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    streams: [u64; 2],
    capture_began: Option<[u64; 2]>,
    /// Stamps of the capture so far, from its beginning.
    captured: Vec<(u32, u64)>,
    events: BTreeMap<u32, u64>,
    stamps: BTreeMap<u32, u64>,
    /// Whether something holds the stream, so that the host is ahead.
    held: bool,
}

impl Clocks {
    fn at(&self, stream: Stream) -> u64 {
        self.streams.get(stream as usize).copied().unwrap_or(0)
    }
    /// A stream is busy for some time.
    pub(super) fn pass(&mut self, stream: Stream, ps: u64) {
        if let Some(clock) = self.streams.get_mut(stream as usize) {
            *clock += ps;
        }
    }
    /// The same of something that is launched: where nothing holds the stream it waits for the host.
    pub(super) fn launched(&mut self, stream: Stream, ps: u64) {
        let gap = if self.held || self.capture_began.is_some() { 0 } else { EAGER_GAP_PS };
        self.pass(stream, gap + ps);
    }
    /// A kernel with its arguments.
    pub(super) fn kernel(&mut self, stream: Stream, launch: &Launch, args: &[u64]) {
        let stated = |index: usize| 1_000 * args.get(index).copied().unwrap_or(0);
        match launch.kernel {
            "hold" => {
                self.held = true;
                self.pass(stream, stated(0));
            }
            "stand_in" => self.launched(stream, kernel_ps(launch).max(stated(3))),
            _ => self.launched(stream, kernel_ps(launch)),
        }
    }
    pub(super) fn record(&mut self, stream: Stream, event: u32) {
        self.events.insert(event, self.at(stream));
    }
    pub(super) fn wait(&mut self, stream: Stream, event: u32) {
        let until = self.events.get(&event).copied().unwrap_or(0);
        self.pass(stream, until.saturating_sub(self.at(stream)));
    }
    pub(super) fn stamp(&mut self, stream: Stream, stamp: u32) {
        match self.capture_began {
            Some(began) => self.captured.push((stamp, self.at(stream) - began[0])),
            None => drop(self.stamps.insert(stamp, self.at(stream))),
        }
        self.pass(stream, STAMP_PS);
    }
    pub(super) fn elapsed_ps(&self, from: u32, to: u32) -> Result<u64, GpuError> {
        let at = |stamp: u32| self.stamps.get(&stamp).ok_or_else(|| GpuError::new("stamp", format!("{stamp} was not recorded")));
        Ok(at(to)?.saturating_sub(*at(from)?))
    }
    pub(super) fn begin_capture(&mut self) {
        self.capture_began = Some(self.streams);
    }
    /// What a replay of what was captured takes, and its stamps.
    pub(super) fn end_capture(&mut self) -> (u64, Vec<(u32, u64)>) {
        let now = self.streams[0];
        let before = self.capture_began.take().unwrap_or(self.streams);
        self.streams = before;
        (now - before[0], std::mem::take(&mut self.captured))
    }
    pub(super) fn replay(&mut self, ps: u64, stamps: &[(u32, u64)]) {
        let begin = self.at(0);
        self.stamps.extend(stamps.iter().map(|(stamp, at)| (*stamp, begin + at)));
        self.pass(0, ps);
    }
    pub(super) fn synchronize(&mut self) {
        self.held = false;
        self.streams = [self.streams[0].max(self.streams[1]); 2];
    }
}
