//! All ranks of a host: one thread each, told what to do, waited for with a deadline.

use super::compile::compile_all;
use super::driver_gpu::DriverGpu;
use super::gpu::{Element, GpuError};
use super::rank::{Communicators, Membership, PartOfResult, Rank};
use super::weights::WeightLoad;
use super::weights::read_weight;
use crate::device::Driver;
use crate::nccl::Nccl;
use crate::search::Search;
use half::bf16;
use moetwin_kernels::reference::{Array, Data};
use moetwin_models::{Phase, RankId, TensorKind, WeightRef};
use moetwin_runtime::reference::{ExecuteError, NamedValue, StepInputs, collect};
use moetwin_runtime::weights::WeightSource;
use moetwin_runtime::{Action, BufferId, Executor, Place, Program, ProgramKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
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
}

/// Beyond the ranks' own deadline before a rank counts as lost: it should have answered by itself.
const GRACE: Duration = Duration::from_secs(5);

enum Job {
    Connect(Vec<Membership>),
    Load(WeightRef, WeightLoad),
    Add(Arc<Program>, Arc<Communicators>, bool),
    Run(usize, Arc<StepInputs>),
    Abort,
}

type Answer = Result<Vec<PartOfResult>, GpuError>;

struct Worker {
    jobs: Sender<Job>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

/// Ranks on the GPUs of this host, rank `r` on the driver's GPU `r`.
pub struct CudaExecutor {
    options: CudaOptions,
    nccl: Option<Arc<Nccl>>,
    workers: Vec<Worker>,
    loaded: BTreeSet<(RankId, WeightRef)>,
    communicators: BTreeMap<Vec<RankId>, u32>,
    programs: Vec<Arc<Program>>,
}

fn device(rank: RankId, e: impl std::fmt::Display) -> ExecuteError {
    ExecuteError::Device { rank, what: e.to_string() }
}

impl CudaExecutor {
    /// Opens a GPU a rank. Errors say what is missing.
    pub fn open(ranks: u32, options: CudaOptions) -> Result<Self, ExecuteError> {
        let search = Search::from_environment();
        let first = RankId(0);
        let driver = Driver::open(&search).map_err(|e| device(first, e))?;
        let count = driver.device_count().map_err(|e| device(first, e))?;
        if count < ranks as usize {
            return Err(device(first, format!("{ranks} ranks need {ranks} GPUs, the driver shows {count}")));
        }
        let (major, minor) = driver.device(0).and_then(|d| d.compute_capability()).map_err(|e| device(first, e))?;
        // The architecture-specific target, which alone has the newest matrix instructions.
        let architecture = format!("{major}{minor}{}", if major >= 9 { "a" } else { "" });
        let cubins = Arc::new(compile_all(&search, &architecture).map_err(|e| device(first, e))?);
        let nccl = if ranks > 1 { Some(Arc::new(Nccl::open(&search).map_err(|e| device(first, e))?)) } else { None };
        let mut workers = Vec::new();
        for rank in (0..ranks).map(RankId) {
            let (jobs, inbox) = channel();
            let (outbox, answers) = channel();
            let (search, cubins, nccl, options) = (search.clone(), Arc::clone(&cubins), nccl.clone(), options.clone());
            let body = move || {
                let opened = DriverGpu::open(&search, rank.0 as usize, &cubins, nccl);
                let mut state = match opened {
                    Ok(gpu) => {
                        outbox.send(Ok(Vec::new())).ok();
                        Rank::new(gpu, rank, options.capacity, options.deadline)
                    }
                    Err(e) => {
                        outbox.send(Err(e)).ok();
                        return;
                    }
                };
                serve(&mut state, &inbox, &outbox);
            };
            let thread = std::thread::Builder::new().name(format!("rank {}", rank.0)).spawn(body).map_err(|e| device(rank, e))?;
            workers.push(Worker { jobs, answers, thread: Some(thread) });
        }
        let mut executor = Self { options, nccl, workers, loaded: BTreeSet::new(), communicators: BTreeMap::new(), programs: Vec::new() };
        executor.answers("opening the GPU")?;
        Ok(executor)
    }

    fn send(&self, rank: RankId, job: Job) -> Result<(), ExecuteError> {
        self.workers[rank.0 as usize].jobs.send(job).map_err(|_| device(rank, "its thread has ended"))
    }

    /// One answer of every rank. The first failure aborts all ranks' communication, so that nobody waits for the failed one.
    fn answers(&mut self, phase: &str) -> Result<Vec<Vec<PartOfResult>>, ExecuteError> {
        let mut parts = Vec::new();
        for (rank, worker) in (0u32..).map(RankId).zip(&self.workers) {
            let failure = match worker.answers.recv_timeout(self.options.deadline + GRACE) {
                Ok(Ok(part)) => {
                    parts.push(part);
                    continue;
                }
                Ok(Err(e)) => format!("{phase}: {e}"),
                Err(RecvTimeoutError::Timeout) => format!("{phase}: no answer within {:?}", self.options.deadline + GRACE),
                Err(RecvTimeoutError::Disconnected) => format!("{phase}: its thread has ended"),
            };
            self.workers.iter().for_each(|w| drop(w.jobs.send(Job::Abort)));
            return Err(device(rank, failure));
        }
        Ok(parts)
    }

    /// Communicators of a program, made where they are new.
    fn connect(&mut self, program: &Program) -> Result<Communicators, ExecuteError> {
        let everyone: Vec<RankId> = program.ranks.ids().collect();
        let sends = program.ranks.iter().any(|(_, rp)| rp.commands.iter().any(|c| matches!(c.action, Action::Send { .. })));
        let mut wanted: Vec<Vec<RankId>> = program.groups.iter().map(|(_, g)| g.ranks.clone()).collect();
        if sends {
            wanted.push(everyone.clone());
        }
        for members in &wanted {
            if self.communicators.contains_key(members) {
                continue;
            }
            let number = self.communicators.len() as u32;
            let nccl = self.nccl.clone().ok_or_else(|| device(members[0], "NCCL is not loaded"))?;
            let id = nccl.unique_id().map_err(|e| device(members[0], e))?;
            for &rank in &everyone {
                let index = members.iter().position(|m| *m == rank);
                let membership = index.map(|i| Membership { number, id: id.clone(), index: i as u32, members: members.len() as u32 });
                self.send(rank, Job::Connect(membership.into_iter().collect()))?;
            }
            self.answers("connecting")?;
            self.communicators.insert(members.clone(), number);
        }
        let groups = program.groups.iter().map(|(_, g)| self.communicators[&g.ranks]).collect();
        Ok(Communicators { groups, world: self.communicators.get(&everyone).copied().unwrap_or(0) })
    }

    fn load_rank(&mut self, program: &Program, rank: RankId, weights: &dyn WeightSource) -> Result<(), ExecuteError> {
        for (_, buffer) in program.ranks[rank].buffers.iter().filter(|(_, b)| b.place == Place::Weight) {
            let TensorKind::Weight(weight) = program.graph.tensors[buffer.tensor].kind else { continue };
            if !self.loaded.insert((rank, weight)) {
                continue;
            }
            let load = read_weight(weights, &program.graph, buffer.tensor, rank).map_err(|e| ExecuteError::Weights(e.to_string()))?;
            self.send(rank, Job::Load(weight, load))?;
        }
        // Loads are answered only where they fail, by the next job's answer.
        Ok(())
    }
}

/// A rank's thread: one answer for every job but loads and aborts; a failed load is the answer of the next job.
fn serve(rank: &mut Rank<DriverGpu>, inbox: &Receiver<Job>, outbox: &Sender<Answer>) {
    let mut failed: Option<GpuError> = None;
    while let Ok(job) = inbox.recv() {
        let done = |r: Result<(), GpuError>| r.map(|()| Vec::new());
        let answer = match (job, failed.take()) {
            (Job::Abort, _) => {
                rank.abort();
                return;
            }
            (Job::Load(..), Some(e)) => {
                failed = Some(e);
                continue;
            }
            (Job::Load(weight, load), None) => {
                failed = rank.load(weight, &load).err();
                continue;
            }
            (_, Some(e)) => Err(e),
            (Job::Connect(memberships), None) => done(rank.connect(&memberships)),
            (Job::Add(program, communicators, capture), None) => done(rank.add(program, communicators, capture)),
            (Job::Run(key, inputs), None) => rank.run(key, &inputs),
        };
        if outbox.send(answer).is_err() {
            return;
        }
    }
}

impl Executor for CudaExecutor {
    type Number = f32;

    fn load(&mut self, program: &Program, rank: RankId, weights: &dyn WeightSource) -> Result<(), ExecuteError> {
        self.load_rank(program, rank, weights)
    }

    fn prepare(&mut self, program: Program) -> Result<ProgramKey, ExecuteError> {
        let communicators = Arc::new(self.connect(&program)?);
        let capture = self.options.graphs && program.graph.step.phase == Phase::Decode;
        let program = Arc::new(program);
        for rank in program.ranks.ids() {
            self.send(rank, Job::Add(Arc::clone(&program), Arc::clone(&communicators), capture))?;
        }
        self.answers("preparing the program")?;
        self.programs.push(program);
        Ok(ProgramKey(self.programs.len() - 1))
    }

    fn program(&self, key: ProgramKey) -> &Program {
        &self.programs[key.0]
    }

    fn run(&mut self, key: ProgramKey, inputs: &StepInputs) -> Result<Vec<NamedValue<f32>>, ExecuteError> {
        let program = Arc::clone(&self.programs[key.0]);
        inputs.check(&program, self.options.capacity as usize)?;
        let inputs = Arc::new(inputs.clone());
        for rank in program.ranks.ids() {
            self.send(rank, Job::Run(key.0, Arc::clone(&inputs)))?;
        }
        let mut held: BTreeMap<(RankId, BufferId), Array<f32>> = BTreeMap::new();
        for (rank, parts) in (0u32..).map(RankId).zip(self.answers("running a step")?) {
            held.extend(parts.into_iter().map(|p| ((rank, p.buffer), from_bytes(p))));
        }
        collect(&program, |rank, buffer| held.get(&(rank, buffer)))
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        // Closing the queues ends the threads; each frees what it owns.
        for worker in &mut self.workers {
            worker.jobs = channel().0;
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                thread.join().ok();
            }
        }
    }
}

pub(super) fn from_bytes(part: PartOfResult) -> Array<f32> {
    let four = |c: &[u8]| [c[0], c[1], c[2], c[3]];
    let data = match part.element {
        Element::Bf16 => Data::Real(part.bytes.chunks_exact(2).map(|c| bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect()),
        Element::F32 => Data::Real(part.bytes.chunks_exact(4).map(|c| f32::from_le_bytes(four(c))).collect()),
        Element::I32 => Data::Int(part.bytes.chunks_exact(4).map(|c| i32::from_le_bytes(four(c))).collect()),
    };
    Array { sizes: part.sizes, data }
}
