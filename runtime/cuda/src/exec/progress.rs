//! What every rank of this process is doing at the moment, so that a deadline can be blamed on somebody.

use moetwin_models::{NodeId, RankId, WeightRef};
use moetwin_runtime::Program;
use moetwin_runtime::init::InitPhase;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What a rank does, as finely as it can be told.
#[derive(Clone, Debug, Default)]
pub enum What {
    /// It waits to be told.
    #[default]
    Nothing,
    /// Something with a name.
    Named(&'static str),
    /// It loads a weight.
    Weight(WeightRef),
    /// It joins a communicator.
    Communicator(u32),
    /// It carries out a command.
    Command(Arc<Program>, NodeId),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Nothing => f.write_str("idle"),
            What::Named(name) => f.write_str(name),
            What::Weight(w) => write!(f, "weight {:?} of {}", w.role, w.layer.map_or("the model".to_owned(), |l| format!("layer {l}"))),
            What::Communicator(number) => write!(f, "create communicator {number}"),
            What::Command(program, node) => {
                let name = program.graph.nodes[*node].outputs.first().map_or("", |t| program.graph.tensors[*t].name.as_str());
                write!(f, "command {node} ({name})")
            }
        }
    }
}

/// What a rank does, and since when.
#[derive(Clone, Debug)]
pub struct Doing {
    /// Part of start-up, or of service.
    pub phase: InitPhase,
    /// What.
    pub what: What,
    /// Whether it waits for other ranks, or for all that its GPU was told: what is late is not known before the wait gives up.
    pub with_peers: bool,
    /// When it began, by the host's clock.
    pub since: Duration,
}

impl Doing {
    /// The first thing that any rank does.
    pub fn opening() -> Self {
        Self { phase: InitPhase::Open, what: What::Named("open context"), with_peers: false, since: Duration::ZERO }
    }
}

/// What the ranks of this process do.
#[derive(Clone, Debug)]
pub struct Board {
    ranks: Arc<Vec<Note>>,
}

#[derive(Debug)]
struct Note {
    rank: RankId,
    doing: Mutex<Doing>,
    /// Jobs that the rank was told and has not answered.
    told: AtomicU32,
    /// Whether its thread has ended, whatever it is still told.
    ended: AtomicBool,
}

impl Board {
    /// A board on which every rank opens its GPU.
    pub fn new(ranks: &[RankId], now: Duration) -> Self {
        let note = |r: &RankId| Note {
            rank: *r,
            doing: Mutex::new(Doing { since: now, ..Doing::opening() }),
            told: AtomicU32::new(1),
            ended: AtomicBool::new(false),
        };
        Self { ranks: Arc::new(ranks.iter().map(note).collect()) }
    }
    fn note(&self, rank: RankId) -> Option<&Note> {
        self.ranks.iter().find(|n| n.rank == rank)
    }
    /// What a rank does; `None` for a rank of another process.
    pub fn of(&self, rank: RankId) -> Option<Doing> {
        Some(lock(&self.note(rank)?.doing).clone())
    }
    /// All ranks of this process.
    pub fn all(&self) -> Vec<(RankId, Doing)> {
        self.ranks.iter().map(|n| (n.rank, lock(&n.doing).clone())).collect()
    }
    /// Whether a rank has answered all that it was told.
    pub fn is_idle(&self, rank: RankId) -> bool {
        self.note(rank).is_none_or(|n| n.ended.load(Ordering::Acquire) || n.told.load(Ordering::Acquire) == 0)
    }
    /// Notes what a rank begins to do.
    pub fn set(&self, rank: RankId, doing: Doing) {
        if let Some(note) = self.note(rank) {
            *lock(&note.doing) = doing;
        }
    }
    /// A rank is about to be told something.
    pub(crate) fn tell(&self, rank: RankId) {
        if let Some(note) = self.note(rank) {
            note.told.fetch_add(1, Ordering::AcqRel);
        }
    }
    /// A rank has answered a job.
    pub(crate) fn answered(&self, rank: RankId) {
        if let Some(note) = self.note(rank) {
            note.told.fetch_update(Ordering::AcqRel, Ordering::Acquire, |told| Some(told.saturating_sub(1))).ok();
        }
    }
    /// A rank's thread ends.
    pub(crate) fn ended(&self, rank: RankId) {
        if let Some(note) = self.note(rank) {
            note.ended.store(true, Ordering::Release);
        }
    }
}

/// A note is whole at any time, so one left by a thread that panicked is as good as any.
fn lock(doing: &Mutex<Doing>) -> MutexGuard<'_, Doing> {
    doing.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Why a run on GPUs ended: who, during what, and the problem. The text is what the user reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {}, phase {phase}, {command}: {problem}", .rank.0)]
pub struct Failed {
    /// The rank.
    pub rank: RankId,
    /// The phase, by its name.
    pub phase: String,
    /// What the rank was doing.
    pub command: String,
    /// What was wrong.
    pub problem: String,
}

impl Failed {
    /// A failure of what a rank is doing.
    pub fn new(rank: RankId, doing: &Doing, problem: impl Into<String>) -> Self {
        Self { rank, phase: doing.phase.to_string(), command: doing.what.to_string(), problem: problem.into() }
    }
}
