//! A crew that carries out nothing: orders take made-up, seeded virtual time, faults happen where a script says, and everything is written down.
//! It stands below the fleet, so that the fleet that is tested is the fleet that serves.

use super::crew::{Crew, Order, Report};
use crate::rank_machine::DriverError;
use moetwin_models::RankId;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;

/// What happens to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails.
    Fails,
    /// It does not end until the rank's groups are aborted, and then fails.
    HangsUntilAbort,
    /// It does not end.
    NeverEnds,
    /// Whoever carries it out dies.
    Dies,
}

/// How a [`Recording`] behaves.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Seed of the time that orders take.
    pub seed: u64,
    /// Longest time that an order takes when nothing is wrong with it.
    pub slowest: Duration,
    /// What goes wrong, by rank and order.
    pub faults: BTreeMap<(RankId, Order), Fault>,
}

/// One line of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// An order begins.
    Begins(Order),
    /// An order ends, well or not.
    Ends(Order),
    /// The rank's groups are aborted.
    Abort,
    /// The rank is abandoned.
    Abandon,
}

/// The crew. Its clock is virtual and starts at zero.
pub struct Recording {
    script: Script,
    rng: ChaCha8Rng,
    clock: Duration,
    /// Reports to come, by time and order of creation.
    queue: BTreeMap<(Duration, u64), (RankId, Order, Report)>,
    sequence: u64,
    /// Orders that end only with an abort.
    hanging: Vec<(RankId, Order)>,
    log: Vec<(Duration, RankId, Log)>,
}

/// How soon what runs returns once its groups are aborted.
const ABORT_DELAY: Duration = Duration::from_millis(1);

impl Recording {
    /// A crew that follows a script.
    pub fn new(script: Script) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(script.seed);
        Self { script, rng, clock: Duration::ZERO, queue: BTreeMap::new(), sequence: 0, hanging: Vec::new(), log: Vec::new() }
    }
    /// Everything that happened, in order.
    pub fn log(&self) -> &[(Duration, RankId, Log)] {
        &self.log
    }
    /// Changes what goes wrong from now on.
    pub fn script_mut(&mut self) -> &mut Script {
        &mut self.script
    }

    fn write(&mut self, rank: RankId, line: Log) {
        self.log.push((self.clock, rank, line));
    }
    fn answer(&mut self, after: Duration, rank: RankId, order: Order, report: Report) {
        self.queue.insert((self.clock + after, self.sequence), (rank, order, report));
        self.sequence += 1;
    }
}

fn success(order: Order) -> Report {
    match order {
        Order::Perform(step) => Report::Done { step, unwritten: Vec::new() },
        Order::Launch(launch) => Report::Launched { sequence: launch.sequence },
    }
}

fn failure(order: Order, message: &str) -> Report {
    let error = DriverError::new(message);
    match order {
        Order::Perform(step) => Report::Failed { step, error },
        Order::Launch(launch) => Report::LaunchFailed { sequence: launch.sequence, error },
    }
}

impl Crew for Recording {
    fn now(&mut self) -> Duration {
        self.clock
    }
    fn order(&mut self, rank: RankId, order: Order) {
        self.write(rank, Log::Begins(order));
        let longest = u64::try_from(self.script.slowest.as_nanos()).unwrap_or(u64::MAX).max(1);
        let takes = Duration::from_nanos(self.rng.next_u64() % longest);
        match self.script.faults.get(&(rank, order)) {
            None => self.answer(takes, rank, order, success(order)),
            Some(Fault::Fails) => self.answer(takes, rank, order, failure(order, "scripted failure")),
            Some(Fault::Dies) => self.answer(takes, rank, order, Report::Lost { message: "scripted death".to_owned() }),
            Some(Fault::HangsUntilAbort) => self.hanging.push((rank, order)),
            Some(Fault::NeverEnds) => {}
        }
    }
    fn abort(&mut self, rank: RankId) {
        self.write(rank, Log::Abort);
        // What hangs returns; of what runs, half is cut short and half goes on to its end.
        let (returns, stays) = std::mem::take(&mut self.hanging).into_iter().partition(|(hanging, _)| *hanging == rank);
        self.hanging = stays;
        let returns: Vec<(RankId, Order)> = returns;
        let soon = self.clock + ABORT_DELAY;
        let running: Vec<(Duration, u64)> =
            self.queue.iter().filter(|((at, _), (running, ..))| *running == rank && *at > soon).map(|(key, _)| *key).collect();
        let cut: Vec<_> = running.into_iter().filter(|_| self.rng.next_u32() & 1 == 0).filter_map(|key| self.queue.remove(&key)).collect();
        for (rank, order) in returns.into_iter().chain(cut.into_iter().map(|(rank, order, _)| (rank, order))) {
            self.answer(ABORT_DELAY, rank, order, failure(order, "aborted"));
        }
    }
    fn abandon(&mut self, rank: RankId) {
        self.write(rank, Log::Abandon);
        self.queue.retain(|_, (running, ..)| *running != rank);
    }
    fn renew(&mut self) {}
    fn wait(&mut self, until: Option<Duration>) -> Option<(RankId, Report)> {
        let due = self.queue.first_entry().filter(|first| until.is_none_or(|until| first.key().0 <= until));
        match due {
            Some(first) => {
                let ((at, _), (rank, order, report)) = first.remove_entry();
                self.clock = self.clock.max(at);
                self.write(rank, Log::Ends(order));
                Some((rank, report))
            }
            None => {
                self.clock = self.clock.max(until.unwrap_or_default());
                None
            }
        }
    }
}
