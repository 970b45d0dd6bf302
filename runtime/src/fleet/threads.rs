//! One operating-system thread a rank: what belongs to the rank (context, streams, communicators, graphs) is made on it and never leaves it.

use super::crew::{Crew, Order, Report};
use crate::init::{CheckedPlan, Fact, InitStep, LiveStep};
use crate::rank_machine::{DriverError, Launch};
use moetwin_models::{IdVec, RankId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What carries out one rank's orders. It need not be `Send`: it is made on the rank's thread and stays there.
pub trait RankDriver {
    /// Carries out a step: brings about every item of `live.writes`, and returns those that it could not bring about without that being a failure.
    /// It waits in bounded slices and gives up once its [`AbortSignal`] is raised; what it leaves behind of a failed step it frees itself.
    ///
    /// # Errors
    /// Whatever makes the step fail.
    fn perform(&mut self, step: &InitStep, live: &LiveStep) -> Result<Vec<Fact>, DriverError>;
    /// Does the rank's part of a forward pass and waits for its end, in bounded slices as above.
    ///
    /// # Errors
    /// Whatever makes the pass fail, with the command where it is known.
    fn launch(&mut self, launch: Launch) -> Result<(), DriverError>;
}

/// Raised when a rank's groups are aborted. A driver looks at it in every wait and then aborts its communicators, which frees it.
#[derive(Clone, Debug, Default)]
pub struct AbortSignal(Arc<AtomicBool>);

impl AbortSignal {
    /// Whether to give up.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
    fn set(&self, raised: bool) {
        self.0.store(raised, Ordering::Release);
    }
}

/// A crew of threads, one a rank.
pub struct Threads {
    origin: Instant,
    hands: IdVec<RankId, Hand>,
    reports: Receiver<(RankId, Report)>,
}

struct Hand {
    /// `None` once the rank was abandoned.
    orders: Option<Sender<Order>>,
    abort: AbortSignal,
    thread: Option<JoinHandle<()>>,
}

impl Threads {
    /// Starts one thread for each rank of the plan; `make` makes the rank's driver on it. If `make` fails, so does the rank's first order.
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub fn start<D, F>(plan: &Arc<CheckedPlan>, make: F) -> std::io::Result<Self>
    where
        D: RankDriver,
        F: Fn(RankId, AbortSignal) -> Result<D, DriverError> + Send + Sync + 'static,
    {
        let make = Arc::new(make);
        let (to_fleet, reports) = channel();
        let mut hands = IdVec::new();
        for rank in plan.ranks() {
            let (orders, inbox) = channel();
            let abort = AbortSignal::default();
            let (plan, make, to_fleet, signal) = (plan.clone(), make.clone(), to_fleet.clone(), abort.clone());
            let body = move || obey(&plan, rank, || make(rank, signal), &inbox, &to_fleet);
            let thread = std::thread::Builder::new().name(format!("rank {}", rank.0)).spawn(body)?;
            hands.push(Hand { orders: Some(orders), abort, thread: Some(thread) });
        }
        Ok(Self { origin: Instant::now(), hands, reports })
    }
}

/// The life of a rank's thread. It ends when the fleet has gone, or with the first panic of the driver.
fn obey<D: RankDriver>(
    plan: &CheckedPlan,
    rank: RankId,
    make: impl FnOnce() -> Result<D, DriverError>,
    inbox: &Receiver<Order>,
    to_fleet: &Sender<(RankId, Report)>,
) {
    // A send fails only when the fleet has gone, and then nobody wants the report.
    let report = |report| drop(to_fleet.send((rank, report)));
    let lost = |panic: Box<dyn std::any::Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
        report(Report::Lost { message: format!("its driver panicked: {}", text.unwrap_or_else(|| "without a message".to_owned())) });
    };
    let mut driver = match catch_unwind(AssertUnwindSafe(make)) {
        Ok(driver) => driver,
        Err(panic) => return lost(panic),
    };
    for order in inbox {
        let carry_out = || match &mut driver {
            Ok(driver) => carry_out(plan, rank, driver, order),
            Err(error) => failed(order, error.clone()),
        };
        match catch_unwind(AssertUnwindSafe(carry_out)) {
            Ok(answer) => report(answer),
            Err(panic) => return lost(panic),
        }
    }
}

fn carry_out(plan: &CheckedPlan, rank: RankId, driver: &mut impl RankDriver, order: Order) -> Report {
    match order {
        Order::Perform(step) => match plan.live(rank, step).map(|live| driver.perform(plan.step(rank, step), live)) {
            Some(Ok(unwritten)) => Report::Done { step, unwritten },
            Some(Err(error)) => Report::Failed { step, error },
            None => Report::Failed { step, error: DriverError::new("the rank has no such step") },
        },
        Order::Launch(launch) => match driver.launch(launch) {
            Ok(()) => Report::Launched { sequence: launch.sequence },
            Err(error) => Report::LaunchFailed { sequence: launch.sequence, error },
        },
    }
}

fn failed(order: Order, error: DriverError) -> Report {
    match order {
        Order::Perform(step) => Report::Failed { step, error },
        Order::Launch(launch) => Report::LaunchFailed { sequence: launch.sequence, error },
    }
}

impl Crew for Threads {
    fn now(&mut self) -> Duration {
        self.origin.elapsed()
    }
    fn order(&mut self, rank: RankId, order: Order) {
        if let Some(orders) = &self.hands[rank].orders {
            // The thread ends early only after it reported itself lost.
            let _ = orders.send(order);
        }
    }
    fn abort(&mut self, rank: RankId) {
        self.hands[rank].abort.set(true);
    }
    fn abandon(&mut self, rank: RankId) {
        let hand = &mut self.hands[rank];
        (hand.orders, hand.thread) = (None, None);
    }
    fn renew(&mut self) {
        for (_, hand) in self.hands.iter_mut() {
            hand.abort.set(false);
        }
    }
    fn wait(&mut self, until: Option<Duration>) -> Option<(RankId, Report)> {
        match until {
            None => self.reports.recv().ok(),
            Some(until) => match self.reports.recv_timeout(until.saturating_sub(self.origin.elapsed())) {
                Ok(report) => Some(report),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    // Every thread is gone; time is all that can still pass.
                    std::thread::sleep(until.saturating_sub(self.origin.elapsed()));
                    None
                }
            },
        }
    }
}

impl Drop for Threads {
    /// Ends every thread that was not abandoned. Between moves of a fleet none is busy, so this does not wait for long.
    fn drop(&mut self) {
        for (_, hand) in self.hands.iter_mut() {
            hand.abort.set(true);
            hand.orders = None;
        }
        for thread in self.hands.iter_mut().filter_map(|(_, hand)| hand.thread.take()) {
            // A panic was reported as a loss when it happened.
            drop(thread.join());
        }
    }
}
