//! Ranks of this process: one thread each, told what to do, waited for with a deadline. With one process a rank, what must be agreed on
//! or put together goes over the link to the other processes.

use super::driver_host::DriverHost;
use super::gpu::{AbortSignal, Host};
use super::inject::Injection;
use super::measure::{RankTimes, Repetitions};
use super::parts::{decode, encode, from_bytes};
use super::progress::{Board, Doing, Failed, What};
use super::rank::{Communicators, DRAIN, Limits, Membership, Notes, PartOfResult, RankFailure};
use super::weights::read_weight;
use super::window::AllReduceBackend;
use super::worker::{Event, Job, Start, Worker};
use crate::link::Link;
use moetwin_kernels::launch::Tuning;
use moetwin_kernels::reference::Array;
use moetwin_models::{Phase, RankId, TensorKind, WeightRef};
use moetwin_runtime::init::InitPhase;
use moetwin_runtime::reference::{ExecuteError, NamedValue, StepInputs, collect};
use moetwin_runtime::weights::WeightSource;
use moetwin_runtime::{Action, BufferId, Executor, Place, Program, ProgramKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How to run on GPUs.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// KV pool rows of each sequence.
    pub capacity: u32,
    /// Longest wait for anything.
    pub deadline: Duration,
    /// Whether decode programs are captured.
    pub graphs: bool,
    /// A fault to inject.
    pub inject: Option<Injection>,
    /// Which code sums over ranks.
    pub all_reduce: AllReduceBackend,
    /// Rows that a rank may send to another one's experts in a pass: less is packed and sent, more is an error at the end of the pass. None
    /// reserves room for all rows.
    pub expert_capacity: Option<u32>,
    /// Whether cuBLASLt computes products of many rows, where it is found.
    pub library: bool,
    /// Where choices are told that the user may want to know of.
    pub remarks: Option<Sender<String>>,
    /// Where ranks are left out: how long a collective takes that the others are no part of. What it would bring is not there, so that
    /// only times mean anything.
    pub stand_in: Option<Duration>,
}

impl CudaOptions {
    /// Everything as it is by default: captured, NCCL, our own kernels, no fault.
    pub fn new(capacity: u32, deadline: Duration) -> Self {
        Self {
            capacity,
            deadline,
            graphs: true,
            inject: None,
            all_reduce: AllReduceBackend::Nccl,
            expert_capacity: None,
            library: false,
            remarks: None,
            stand_in: None,
        }
    }
}

/// After the first sign of a failure: how long others may take to report theirs, which may be the cause.
const SETTLE: Duration = Duration::from_secs(1);
/// After an abort: how long ranks may take to say whether their GPUs have stopped.
const SAID: Duration = DRAIN.saturating_add(Duration::from_millis(500));
/// When ranks end: how long until one is aborted from outside its thread, and again until it is given up. After a failure the end of the
/// process does what they have not.
const END: Duration = Duration::from_secs(5);
const END_AFTER_FAILURE: Duration = Duration::from_millis(700);
/// How long another process may take to compile kernels or to load its weights: a terabyte from a slow disk. One that ends or stands
/// still is noticed by the link long before.
const LOAD: Duration = Duration::from_secs(3600);
/// Loads of a rank under way at a time: while one is copied the next is read.
const LOADS: u32 = 2;

/// Ranks on the GPUs of this host, all of them or this process's own.
pub struct CudaExecutor<H: Host = DriverHost> {
    pub(super) options: CudaOptions,
    host: Arc<H>,
    ranks: u32,
    workers: Vec<Worker>,
    events: Receiver<Event>,
    notes: Notes,
    link: Option<Link>,
    failed: Option<Failed>,
    loaded: BTreeSet<(RankId, WeightRef)>,
    pub(super) communicators: BTreeMap<Vec<RankId>, u32>,
    /// Groups that were asked for windows, and whether all their ranks have mapped them.
    pub(super) windows: BTreeMap<Vec<RankId>, bool>,
    /// What ranks said in answer to the latest job.
    pub(super) words: BTreeMap<RankId, Vec<u8>>,
    programs: Vec<Arc<Program>>,
    /// Passes so far, of each program and in all.
    runs: Vec<u64>,
    passes: u64,
    tuning: Arc<Tuning>,
    /// What all processes do since they last agreed: a rank's own note may still say what it did before.
    phase: InitPhase,
}

fn device(failed: &Failed) -> ExecuteError {
    let Failed { phase, command, problem, .. } = failed;
    ExecuteError::Device { rank: failed.rank, what: format!("phase {phase}, {command}: {problem}") }
}

impl CudaExecutor<DriverHost> {
    /// Opens a GPU a rank, rank `r` on the driver's GPU `r`. Errors say what is missing.
    pub fn open(ranks: u32, options: CudaOptions) -> Result<Self, ExecuteError> {
        let ordinals = (0..ranks).map(|r| (RankId(r), r as usize)).collect();
        let mut host = DriverHost::open(ordinals, ranks).map_err(|e| opening(RankId(0), &e.to_string()))?;
        find_library(&mut host, &options);
        Self::on(host, (0..ranks).map(RankId).collect(), ranks, None, options)
    }
    /// Opens one GPU for one rank of `ranks`, the others of which are not there: see [`CudaOptions::stand_in`].
    pub fn open_alone(rank: RankId, ranks: u32, options: CudaOptions) -> Result<Self, ExecuteError> {
        let mut host = DriverHost::open(BTreeMap::from([(rank, 0)]), 1).map_err(|e| opening(rank, &e.to_string()))?;
        find_library(&mut host, &options);
        Self::on(host, vec![rank], ranks, None, CudaOptions { stand_in: options.stand_in.or(Some(Duration::ZERO)), ..options })
    }
    /// Opens the GPU of this process's rank, one of `ranks`, the driver's number `ordinal`.
    pub fn open_one(rank: RankId, ordinal: usize, ranks: u32, link: Link, options: CudaOptions) -> Result<Self, ExecuteError> {
        match DriverHost::open(BTreeMap::from([(rank, ordinal)]), ranks) {
            Ok(mut host) => {
                find_library(&mut host, &options);
                Self::on(host, vec![rank], ranks, Some(link), options)
            }
            Err(e) => {
                let failed = Failed::new(rank, &Doing::opening(), e.to_string());
                link.report(&failed, false);
                Err(device(&failed))
            }
        }
    }
}

/// cuBLASLt, if it is asked for; without it our own kernels do its work, and the user is told.
fn find_library(host: &mut DriverHost, options: &CudaOptions) {
    if options.library
        && let Err(e) = host.use_library()
    {
        let text = format!("products of many rows use our own kernels, not cuBLASLt: {e}");
        options.remarks.as_ref().map(|r| r.send(text).ok());
    }
}

fn opening(rank: RankId, problem: &str) -> ExecuteError {
    device(&Failed::new(rank, &Doing::opening(), problem))
}

impl<H: Host> CudaExecutor<H> {
    /// The `local` ones of `ranks` ranks on a host; the others are in other processes, behind the link.
    pub fn on(host: H, local: Vec<RankId>, ranks: u32, link: Option<Link>, options: CudaOptions) -> Result<Self, ExecuteError> {
        let host = Arc::new(host);
        let clock = Arc::clone(&host);
        let now = Arc::new(move || clock.now());
        let notes = Notes { board: Board::new(&local, host.now()), abort: AbortSignal::default(), now };
        let (sender, events) = channel();
        if let Some(link) = &link {
            link.listen(sender.clone());
        }
        let start = Start {
            host: Arc::clone(&host),
            notes: notes.clone(),
            events: sender,
            limits: Limits { capacity: options.capacity, deadline: options.deadline, expert_capacity: options.expert_capacity },
            injection: options.inject,
            remarks: options.inject.and(options.remarks.clone()),
            stand_in: options.stand_in,
            alone: link.is_some(),
        };
        let mut workers = Vec::new();
        for &rank in &local {
            workers.push(Worker::start(rank, start.clone()).map_err(|e| opening(rank, &e.to_string()))?);
        }
        let mut executor = Self {
            options,
            host,
            ranks,
            workers,
            events,
            notes,
            link,
            failed: None,
            loaded: BTreeSet::new(),
            communicators: BTreeMap::new(),
            windows: BTreeMap::new(),
            words: BTreeMap::new(),
            programs: Vec::new(),
            runs: Vec::new(),
            passes: 0,
            tuning: Arc::default(),
            phase: InitPhase::Open,
        };
        executor.answers(0)?;
        executor.agree("open", Vec::new(), LOAD)?;
        Ok(executor)
    }

    pub(super) fn send(&mut self, rank: RankId, job: Job) {
        if let Some(worker) = self.workers.iter_mut().find(|w| w.rank == rank) {
            worker.outstanding += 1;
            self.notes.board.tell(rank);
            // A thread that has ended said so before, and that is read with the answers.
            worker.jobs.as_ref().map(|jobs| jobs.send(job).ok());
        }
    }

    pub(super) fn local(&self) -> Vec<RankId> {
        self.workers.iter().map(|w| w.rank).collect()
    }

    /// Waits until no rank has more than `allowed` jobs unanswered. The first failure ends the run.
    pub(super) fn answers(&mut self, allowed: u32) -> Result<BTreeMap<(RankId, BufferId), PartOfResult>, ExecuteError> {
        if let Some(failed) = &self.failed {
            return Err(device(failed));
        }
        let mut parts = BTreeMap::new();
        let end = self.host.now() + self.options.deadline;
        while self.workers.iter().any(|w| w.outstanding > allowed) {
            let failure = match self.next_event(end) {
                Some(Event::Done(rank, answer)) => {
                    self.answered(rank);
                    self.words.insert(rank, answer.words);
                    parts.extend(answer.parts.into_iter().map(|p| ((rank, p.buffer), p)));
                    continue;
                }
                Some(Event::Failed(f) | Event::Elsewhere(f)) => Some(f),
                Some(Event::Ended(_)) => continue,
                None => None,
            };
            return Err(self.fail(failure));
        }
        Ok(parts)
    }

    fn answered(&mut self, rank: RankId) {
        if let Some(worker) = self.workers.iter_mut().find(|w| w.rank == rank) {
            worker.outstanding = worker.outstanding.saturating_sub(1);
        }
    }

    /// The next event, or nothing once the host's time is `end`.
    fn next_event(&self, end: Duration) -> Option<Event> {
        loop {
            let now = self.host.now();
            match self.events.recv_timeout(self.host.slice(end.saturating_sub(now))) {
                Ok(event) => return Some(event),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if now >= end => return None,
                Err(RecvTimeoutError::Timeout) => self.host.nothing_happened(&self.notes.board),
            }
        }
    }

    /// Ends the run: finds whose failure came first, and makes every wait give up. `first` is the first sign, nothing where the
    /// deadline has passed.
    fn fail(&mut self, first: Option<RankFailure>) -> ExecuteError {
        let failed = self.placed(first);
        self.notes.abort.raise();
        if let Some(link) = &self.link {
            link.report(&failed, false);
            // At once: a launcher that sees another process end first ends this one before it has closed everything.
            self.options.remarks.as_ref().map(|r| r.send(format!("{failed}; the run ends")).ok());
        }
        let error = device(&failed);
        self.failed = Some(failed);
        error
    }

    /// Blames, and says in which phase where only the end of a process is known: processes go from phase to phase together.
    fn placed(&mut self, first: Option<RankFailure>) -> Failed {
        let mut failed = self.blame(first);
        if failed.phase.is_empty() {
            failed.phase = self.phase.to_string();
        }
        failed
    }

    fn blame(&mut self, first: Option<RankFailure>) -> Failed {
        let late = format!("no answer within {:?}", self.options.deadline);
        let mut signs = Vec::new();
        match first {
            // A rank that fails in its own work is a cause; one that fails in a wait for others may be a consequence.
            Some(f) if !f.with_peers => return f.failed,
            Some(f) => signs.push(f),
            None => {
                if let Some((rank, doing)) = self.stuck_alone(&signs) {
                    return Failed::new(rank, &doing, late);
                }
            }
        }
        if let Some(link) = &self.link {
            // The processes whose ranks are stuck know which; this one only knows that its own wait.
            let waiting = signs.first().map(|f| f.failed.clone()).or_else(|| {
                let (rank, doing) = self.notes.board.all().into_iter().next()?;
                Some(Failed::new(rank, &doing, late.clone()))
            });
            waiting.iter().for_each(|failed| link.report(failed, true));
        }
        let settled = self.host.now() + SETTLE;
        let (mut aborted, mut said) = (false, settled);
        loop {
            match self.next_event(if aborted { said } else { settled }) {
                Some(Event::Failed(f) | Event::Elsewhere(f)) => {
                    if !f.with_peers && !f.gave_up {
                        return f.failed;
                    }
                    self.answered(f.failed.rank);
                    signs.push(f);
                }
                Some(Event::Done(rank, _)) => self.answered(rank),
                Some(Event::Ended(_)) => {}
                None if aborted => break,
                None => {
                    // Another process said that it waits; the rank that it waits for may be here.
                    if let Some((rank, doing)) = self.stuck_alone(&signs) {
                        return Failed::new(rank, &doing, late);
                    }
                    aborted = true;
                    said = self.host.now() + SAID;
                    self.notes.abort.raise();
                }
            }
            if aborted
                && self.link.is_none()
                && self.workers.iter().all(|w| w.outstanding == 0 || signs.iter().any(|s| s.failed.rank == w.rank))
            {
                break;
            }
        }
        self.judge(&signs, &late)
    }

    /// A rank that has given no sign and is at work of its own, for the longest time.
    fn stuck_alone(&self, signs: &[RankFailure]) -> Option<(RankId, Doing)> {
        let all = self.notes.board.all().into_iter();
        let alone = all.filter(|(rank, doing)| {
            let busy = self.workers.iter().any(|w| w.rank == *rank && w.outstanding > 0);
            let signed = signs.iter().any(|s| s.failed.rank == *rank);
            busy && !signed && !doing.with_peers && !matches!(doing.what, What::Nothing)
        });
        alone.min_by_key(|(rank, doing)| (doing.since, *rank))
    }

    /// Who is to blame where every rank was waiting: one that does not even return from an abort, or whose GPU still runs, or else
    /// the one that came least far, a command of its own before one that waits for others.
    fn judge(&self, signs: &[RankFailure], late: &str) -> Failed {
        let silent = self.workers.iter().filter(|w| w.outstanding > 0 && !signs.iter().any(|s| s.failed.rank == w.rank));
        if let Some((rank, doing)) = silent.filter_map(|w| Some((w.rank, self.notes.board.of(w.rank)?))).next() {
            return Failed::new(rank, &doing, format!("{late}, nor after an abort"));
        }
        let worst = signs.iter().min_by_key(|s| (s.drained, s.gave_up && s.order == u32::MAX, s.with_peers, s.order, s.failed.rank));
        match worst {
            Some(s) if !s.drained => Failed { problem: format!("{late}; its GPU did not stop"), ..s.failed.clone() },
            Some(s) if s.gave_up => Failed { problem: late.to_owned(), ..s.failed.clone() },
            Some(s) => s.failed.clone(),
            None => Failed::new(RankId(0), &Doing::opening(), late),
        }
    }

    /// Puts something of every process together, in the order of their ranks; alone, it is this one's. Every process comes here at the
    /// same point, so that none goes on where another has failed.
    pub(super) fn agree(&mut self, what: &'static str, own: Vec<u8>, limit: Duration) -> Result<Vec<Vec<u8>>, ExecuteError> {
        if let Some(failed) = &self.failed {
            return Err(device(failed));
        }
        let Some(link) = &mut self.link else { return Ok(vec![own]) };
        match link.exchange(what, own, limit + SETTLE * 2) {
            Ok(all) => Ok(all),
            Err(failed) => Err(self.fail(Some(RankFailure { failed, with_peers: false, gave_up: false, order: u32::MAX, drained: true }))),
        }
    }

    /// Communicators of a program, made where they are new, in the same order on every rank.
    fn connect(&mut self, program: &Program) -> Result<Communicators, ExecuteError> {
        if self.options.stand_in.is_some() {
            return Ok(Communicators { groups: vec![0; program.groups.len()], ..Communicators::default() });
        }
        let everyone: Vec<RankId> = program.ranks.ids().collect();
        let sends = program.ranks.iter().any(|(_, rp)| rp.commands.iter().any(|c| matches!(c.action, Action::Send { .. })));
        let mut wanted: Vec<Vec<RankId>> = program.groups.iter().map(|(_, g)| g.ranks.clone()).collect();
        if sends {
            wanted.push(everyone.clone());
        }
        let local = self.local();
        for members in &wanted {
            if self.communicators.contains_key(members) {
                continue;
            }
            let number = self.communicators.len() as u32;
            // The process of the first member makes the id, the others are told.
            let own = if local.contains(&members[0]) { self.host.unique_id() } else { Ok(Vec::new()) };
            let own = own.map_err(|e| {
                let doing =
                    Doing { phase: InitPhase::Connect, what: What::Communicator(number), with_peers: false, since: self.host.now() };
                let failed = Failed::new(members[0], &doing, e.to_string());
                self.fail(Some(RankFailure { failed, with_peers: false, gave_up: false, order: u32::MAX, drained: true }))
            })?;
            let id = self.agree("connect", own, self.options.deadline)?.into_iter().find(|id| !id.is_empty()).unwrap_or_default();
            for &rank in &local {
                let index = members.iter().position(|m| *m == rank);
                let membership = index.map(|i| Membership { number, id: id.clone(), index: i as u32, members: members.len() as u32 });
                self.send(rank, Job::Connect(membership.into_iter().collect()));
            }
            self.answers(0)?;
            self.communicators.insert(members.clone(), number);
        }
        if self.options.all_reduce != AllReduceBackend::Nccl {
            self.open_windows(program)?;
        }
        let groups = program.groups.iter().map(|(_, g)| self.communicators[&g.ranks]).collect();
        let mapped = self.windows.iter().filter(|(_, mapped)| **mapped);
        let one_shot = mapped.map(|(members, _)| self.communicators[members]).collect();
        Ok(Communicators { groups, one_shot, world: self.communicators.get(&everyone).copied().unwrap_or(0) })
    }

    fn load_rank(&mut self, program: &Program, rank: RankId, weights: &dyn WeightSource) -> Result<(), ExecuteError> {
        if !self.local().contains(&rank) {
            return Ok(());
        }
        let mut any = false;
        self.phase = InitPhase::Load;
        for (_, buffer) in program.ranks[rank].buffers.iter().filter(|(_, b)| b.place == Place::Weight) {
            let TensorKind::Weight(weight) = program.graph.tensors[buffer.tensor].kind else { continue };
            if !self.loaded.insert((rank, weight)) {
                continue;
            }
            let load = read_weight(weights, &program.graph, buffer.tensor, rank).map_err(|e| ExecuteError::Weights(e.to_string()))?;
            self.send(rank, Job::Load(weight, load));
            self.answers(LOADS - 1)?;
            any = true;
        }
        if any {
            self.send(rank, Job::FinishLoading);
        }
        self.answers(0).map(drop)
    }

    /// Every process is about to run the same pass: the same program, the same sequences, the same tokens.
    fn agree_on_pass(&mut self, key: ProgramKey, inputs: &StepInputs) -> Result<(), ExecuteError> {
        self.passes += 1;
        let text = format!("pass {} of program {}: {:?} {:?}", self.passes, key.0, inputs.sequences, inputs.token_ids);
        let all = self.agree("agree on a pass", text.clone().into_bytes(), self.options.deadline)?;
        match all.iter().position(|other| *other != text.as_bytes()) {
            None => Ok(()),
            Some(other) => {
                let doing =
                    Doing { phase: InitPhase::Serve, what: What::Named("agree on a pass"), with_peers: false, since: self.host.now() };
                let problem = format!("it runs another pass than rank {}", self.local().first().map_or(0, |r| r.0));
                let failed = Failed::new(RankId(other as u32), &doing, problem);
                Err(self.fail(Some(RankFailure { failed, with_peers: false, gave_up: false, order: u32::MAX, drained: true })))
            }
        }
    }
}

impl<H: Host> Executor for CudaExecutor<H> {
    type Number = f32;

    fn load(&mut self, program: &Program, rank: RankId, weights: &dyn WeightSource) -> Result<(), ExecuteError> {
        self.load_rank(program, rank, weights)
    }

    fn prepare(&mut self, program: Program) -> Result<ProgramKey, ExecuteError> {
        if program.ranks.len() != self.ranks as usize {
            return Err(ExecuteError::Inputs(format!("a program of {} ranks for an executor of {}", program.ranks.len(), self.ranks)));
        }
        // Nobody connects before all have loaded: who waits for a communicator waits for nothing else.
        self.agree("load", Vec::new(), LOAD)?;
        self.phase = InitPhase::Connect;
        let communicators = Arc::new(self.connect(&program)?);
        self.phase = InitPhase::Allocate;
        let capture = self.options.graphs && program.graph.step.phase == Phase::Decode;
        let program = Arc::new(program);
        for rank in self.local() {
            self.send(rank, Job::Add(Arc::clone(&program), Arc::clone(&communicators), capture, Arc::clone(&self.tuning)));
        }
        self.answers(0)?;
        self.agree("allocate", Vec::new(), self.options.deadline)?;
        self.programs.push(program);
        self.runs.push(0);
        Ok(ProgramKey(self.programs.len() - 1))
    }

    fn program(&self, key: ProgramKey) -> &Program {
        &self.programs[key.0]
    }

    fn run(&mut self, key: ProgramKey, inputs: &StepInputs) -> Result<Vec<NamedValue<f32>>, ExecuteError> {
        let program = Arc::clone(&self.programs[key.0]);
        inputs.check(&program, self.options.capacity as usize)?;
        if self.link.is_some() {
            self.agree_on_pass(key, inputs)?;
        }
        self.phase = match self.runs[key.0] {
            _ if !self.options.graphs || program.graph.step.phase != Phase::Decode => InitPhase::Serve,
            0 => InitPhase::WarmUp,
            1 => InitPhase::Capture,
            _ => InitPhase::Serve,
        };
        self.runs[key.0] += 1;
        let inputs = Arc::new(inputs.clone());
        for rank in self.local() {
            self.send(rank, Job::Run(key.0, Arc::clone(&inputs)));
        }
        let mut parts = self.answers(0)?;
        if self.link.is_some() {
            let mut all = BTreeMap::new();
            for bytes in self.agree("put results together", encode(&parts), self.options.deadline)? {
                all.extend(decode(&bytes).ok_or_else(|| ExecuteError::Inputs("another process sent results that cannot be read".into()))?);
            }
            parts = all;
        }
        let held: BTreeMap<(RankId, BufferId), Array<f32>> = parts.into_iter().map(|(at, p)| (at, from_bytes(p))).collect();
        collect(&program, |rank, buffer| held.get(&(rank, buffer)))
    }
}

impl<H: Host> CudaExecutor<H> {
    /// Measured choices for the launches of programs that are prepared from now on.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = Arc::new(tuning);
    }

    /// Measures a pass of a program on every rank, in the order of ranks.
    pub fn measure(&mut self, key: ProgramKey, inputs: &StepInputs, often: Repetitions) -> Result<Vec<RankTimes>, ExecuteError> {
        let program = Arc::clone(&self.programs[key.0]);
        inputs.check(&program, self.options.capacity as usize)?;
        if self.link.is_some() {
            self.agree_on_pass(key, inputs)?;
        }
        let inputs = Arc::new(inputs.clone());
        let (sender, times) = channel();
        for rank in self.local() {
            self.send(rank, Job::Measure(key.0, Arc::clone(&inputs), often, sender.clone()));
        }
        drop(sender);
        self.answers(0)?;
        let own: Vec<RankTimes> = times.try_iter().collect();
        let wrong = |e: serde_json::Error| ExecuteError::Inputs(format!("times of another process: {e}"));
        let own = serde_json::to_vec(&own).map_err(wrong)?;
        let mut all: Vec<RankTimes> = Vec::new();
        for bytes in self.agree("put times together", own, self.options.deadline)? {
            all.extend(serde_json::from_slice::<Vec<RankTimes>>(&bytes).map_err(wrong)?);
        }
        all.sort_by_key(|t| t.rank);
        Ok(all)
    }

    /// Closes the queues and waits for the threads to end, for a bounded time; each frees what it owns.
    fn end(&mut self, limit: Duration) {
        let end = self.host.now() + limit;
        while self.workers.iter().any(|w| w.thread.is_some()) {
            match self.next_event(end) {
                Some(Event::Ended(rank)) => {
                    let ended = self.workers.iter_mut().find(|w| w.rank == rank).and_then(|w| w.thread.take());
                    // It has nothing left to do; a panic was reported as a failure.
                    ended.map(|thread| thread.join().ok());
                }
                Some(_) => {}
                None => return,
            }
        }
    }
}

impl<H: Host> Drop for CudaExecutor<H> {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            self.notes.board.tell(worker.rank);
            worker.jobs = None;
        }
        let limit = if self.failed.is_some() { END_AFTER_FAILURE } else { END };
        self.end(limit);
        // What is stuck in a call for its peers is freed from it; what still does not end, the end of the process ends.
        self.notes.abort.raise();
        for worker in self.workers.iter().filter(|w| w.thread.is_some()) {
            self.host.abort_stuck(worker.rank);
        }
        self.end(limit);
    }
}
