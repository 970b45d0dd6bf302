//! The thread of a rank: it opens the GPU, obeys jobs one by one, and ends what it opened.

use super::gpu::{Gpu, GpuError, Host, Way};
use super::inject::{Injecting, Injection, Saboteur};
use super::measure::{RankTimes, Repetitions};
use super::progress::{Doing, Failed};
use super::rank::{Communicators, Limits, Membership, Notes, PartOfResult, Rank, RankFailure};
use super::weights::WeightLoad;
use moetwin_kernels::launch::Tuning;
use moetwin_models::{RankId, WeightRef};
use moetwin_runtime::Program;
use moetwin_runtime::reference::StepInputs;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a rank is told. Each is answered once.
pub(crate) enum Job {
    Connect(Vec<Membership>),
    /// Publish a window for a communicator's group of so many members; answered with its ticket.
    Publish(u32, usize),
    /// Map the windows of a communicator's group, as the member of this index, where the way is good enough; answered with why not, if not.
    Map(u32, usize, Arc<Vec<Vec<u8>>>, Way),
    Load(WeightRef, WeightLoad),
    FinishLoading,
    Add(Arc<Program>, Arc<Communicators>, bool, Arc<Tuning>),
    Run(usize, Arc<StepInputs>),
    /// Measures a pass and sends what it takes.
    Measure(usize, Arc<StepInputs>, Repetitions, Sender<RankTimes>),
}

/// What a job gives.
#[derive(Default)]
pub(crate) struct Answer {
    /// The rank's parts of a pass's results.
    pub parts: Vec<PartOfResult>,
    /// A ticket, or a refusal.
    pub words: Vec<u8>,
}

/// What a rank's thread, or another process, has to say.
pub(crate) enum Event {
    /// The GPU is open, or a job is done.
    Done(RankId, Answer),
    /// A rank of this process has failed; it obeys nothing more.
    Failed(RankFailure),
    /// A rank's thread has closed everything it could and ends.
    Ended(RankId),
    /// A rank of another process has failed.
    Elsewhere(RankFailure),
}

/// A rank's thread and its queue.
pub(crate) struct Worker {
    pub rank: RankId,
    pub jobs: Option<Sender<Job>>,
    pub thread: Option<JoinHandle<()>>,
    /// Jobs that are not answered yet.
    pub outstanding: u32,
}

/// What every rank's thread is started with.
pub(crate) struct Start<H> {
    pub host: Arc<H>,
    pub notes: Notes,
    pub events: Sender<Event>,
    pub limits: Limits,
    pub injection: Option<Injection>,
    /// Where it is told when the fault happens.
    pub remarks: Option<Sender<String>>,
    /// What stands in for the other ranks, where only some run.
    pub stand_in: Option<Duration>,
    /// Whether the rank has a process of its own.
    pub alone: bool,
}

impl<H> Clone for Start<H> {
    fn clone(&self) -> Self {
        let (host, notes, events, remarks) = (Arc::clone(&self.host), self.notes.clone(), self.events.clone(), self.remarks.clone());
        Self { host, notes, events, remarks, ..*self }
    }
}

impl Worker {
    pub(crate) fn start<H: Host>(rank: RankId, start: Start<H>) -> std::io::Result<Self> {
        let (jobs, inbox) = channel();
        let body = move || {
            let (events, notes) = (start.events.clone(), start.notes.clone());
            live(rank, start, &inbox);
            notes.board.ended(rank);
            // Nobody listens once the executor has gone.
            events.send(Event::Ended(rank)).ok();
        };
        let thread = std::thread::Builder::new().name(format!("rank {}", rank.0)).spawn(body)?;
        Ok(Self { rank, jobs: Some(jobs), thread: Some(thread), outstanding: 1 })
    }
}

fn live<H: Host>(rank: RankId, start: Start<H>, inbox: &Receiver<Job>) {
    let Start { host, notes, events, limits, injection, remarks, stand_in, alone } = start;
    let (stalling, abort) = (Arc::clone(&host), notes.abort.clone());
    let stall = Box::new(move |until: Option<&_>| stalling.stall(rank, until));
    let mut saboteur = Saboteur::new(rank, injection, &notes, stall, remarks, alone);
    let opened = catch_unwind(AssertUnwindSafe(|| {
        saboteur.call("open context")?;
        host.open(rank, abort)
    }));
    let failed = |problem: String| {
        let gave_up = notes.abort.is_raised();
        let failed = Failed::new(rank, &Doing::opening(), problem);
        events.send(Event::Failed(RankFailure { failed, with_peers: false, gave_up, order: u32::MAX, drained: true })).ok();
    };
    let gpu = match opened {
        Ok(Ok(gpu)) => gpu,
        Ok(Err(e)) => return failed(e.to_string()),
        Err(panic) => return failed(message(panic)),
    };
    let mut state = Rank::new(Injecting::new(gpu, saboteur), rank, limits, notes.clone(), stand_in);
    events.send(Event::Done(rank, Answer::default())).ok();
    state.rest();
    let whole = serve(&mut state, rank, inbox, &events);
    // A panic while closing leaves to the process what was not freed.
    catch_unwind(AssertUnwindSafe(|| state.close(!whole || notes.abort.is_raised()))).ok();
}

/// Obeys until the executor has gone, or the rank fails; whether it did not fail.
fn serve<G: Gpu>(rank: &mut Rank<G>, id: RankId, inbox: &Receiver<Job>, events: &Sender<Event>) -> bool {
    for job in inbox {
        let problem = match catch_unwind(AssertUnwindSafe(|| obey(rank, job))) {
            Ok(Ok(answer)) => {
                events.send(Event::Done(id, answer)).ok();
                rank.rest();
                continue;
            }
            Ok(Err(e)) => (e.to_string(), e.peers),
            Err(panic) => (message(panic), false),
        };
        events.send(Event::Failed(rank.failure(problem.0, problem.1))).ok();
        return false;
    }
    true
}

fn obey<G: Gpu>(rank: &mut Rank<G>, job: Job) -> Result<Answer, GpuError> {
    let words = |words: Vec<u8>| Answer { words, ..Answer::default() };
    match job {
        Job::Connect(memberships) => rank.connect(&memberships)?,
        Job::Publish(communicator, members) => return rank.publish(communicator, members).map(words),
        Job::Map(communicator, index, tickets, way) => {
            return rank.map(communicator, index, &tickets, way).map(|refusal| words(refusal.unwrap_or_default().into_bytes()));
        }
        Job::Load(weight, load) => rank.load(weight, &load)?,
        Job::FinishLoading => rank.finish_loading()?,
        Job::Add(program, communicators, capture, tuning) => rank.add(program, communicators, capture, tuning)?,
        Job::Run(key, inputs) => return rank.run(key, &inputs).map(|parts| Answer { parts, ..Answer::default() }),
        // Who asked waits for the answer of every rank first.
        Job::Measure(key, inputs, often, to) => to.send(rank.measure(key, &inputs, often)?).unwrap_or_default(),
    }
    Ok(Answer::default())
}

/// What a panic said.
fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|t| (*t).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("its thread ended: {}", text.unwrap_or_else(|| "it panicked without a message".to_owned()))
}
