//! A recording fake of the driver and of NCCL. It stands below the executor, which does not know; it computes nothing, but it keeps what
//! the driver would keep (memory, streams, captures, who has come to which collective) and writes down everything that would be wrong.

pub use super::fabric::{Fabric, LocalFabric};
pub use super::fake_log::{Asked, FakeFault};

use super::fabric::lock;
use super::fake_gpu::FakeGpu;
use super::gpu::{AbortSignal, GpuError, Host, StopWord};
use super::progress::Board;
use moetwin_models::RankId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Between two looks of a wait.
pub(super) const POLL: Duration = Duration::from_micros(100);
/// What passes of virtual time whenever every rank stands still.
const LEAP: Duration = Duration::from_secs(1);

/// Looks after which time passes although a rank seems to run: some seconds.
const MOST_LOOKS: u32 = 20_000;

/// What a rank waits for.
#[derive(Clone, Debug)]
pub(super) enum Standing {
    /// For nothing: it runs, or waits to be told.
    Free,
    /// For members to join.
    Joining(u64),
    /// For rounds to be complete; `stuck` adds that its own stream never ends.
    Rounds { rounds: Vec<(u64, u64)>, stuck: bool },
    /// It is stalled on purpose, until an abort or for ever.
    Stalled { forever: bool },
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) log: Vec<(RankId, Asked)>,
    pub(super) wrong: Vec<String>,
    pub(super) standing: BTreeMap<RankId, Standing>,
    pub(super) aborts: BTreeMap<RankId, AbortSignal>,
    pub(super) stops: BTreeMap<RankId, Arc<StopWord>>,
    pub(super) now: Duration,
    /// Looks at a standstill since time last passed.
    pub(super) looks: u32,
    pub(super) released: bool,
    pub(super) open: u32,
    pub(super) ids: u64,
}

/// A host of fake GPUs. Clones are the same host.
#[derive(Clone)]
pub struct FakeHost {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) fabric: Arc<dyn Fabric>,
    /// A rank whose stream stops for ever at its so-manieth kernel.
    pub(super) stuck_kernel: Option<(RankId, u32)>,
    /// Bytes of memory of each GPU.
    pub(super) memory_bytes: u64,
    /// A rank that cannot map what others publish.
    pub(super) apart: Option<RankId>,
    /// A rank whose GPU cannot map memory of the host.
    pub(super) unmappable: Option<RankId>,
    /// Whether GPUs reach each other's memory over PCIe only.
    pub(super) bridged: bool,
    /// Whether there is a matrix library.
    pub(super) library: bool,
    /// What a rank's kernel notes as wrong.
    pub(super) fault: Option<FakeFault>,
    /// Real time where there is a start, else virtual time, which passes only while every rank stands still.
    start: Option<Instant>,
}

impl Default for FakeHost {
    fn default() -> Self {
        Self::new(Arc::new(LocalFabric::default()))
    }
}

impl FakeHost {
    /// GPUs on a fabric, in virtual time.
    pub fn new(fabric: Arc<dyn Fabric>) -> Self {
        Self {
            state: Arc::default(),
            fabric,
            stuck_kernel: None,
            memory_bytes: 1 << 36,
            apart: None,
            unmappable: None,
            bridged: false,
            library: false,
            fault: None,
            start: None,
        }
    }
    /// The same in real time, for ranks in several processes.
    pub fn in_real_time(self) -> Self {
        Self { start: Some(Instant::now()), ..self }
    }
    /// A rank's stream stops for ever at its `kernel`-th launch.
    pub fn with_stuck_kernel(self, rank: RankId, kernel: u32) -> Self {
        Self { stuck_kernel: Some((rank, kernel)), ..self }
    }
    /// A rank cannot map what others publish.
    pub fn with_rank_apart(self, rank: RankId) -> Self {
        Self { apart: Some(rank), ..self }
    }
    /// A rank's GPU cannot map memory of the host.
    pub fn without_host_memory(self, rank: RankId) -> Self {
        Self { unmappable: Some(rank), ..self }
    }
    /// GPUs without NVLink.
    pub fn without_nvlink(self) -> Self {
        Self { bridged: true, ..self }
    }
    /// GPUs with a matrix library.
    pub fn with_library(self) -> Self {
        Self { library: true, ..self }
    }
    /// A rank's kernel notes something as wrong.
    pub fn with_fault(self, fault: FakeFault) -> Self {
        Self { fault: Some(fault), ..self }
    }
    /// GPUs with this much memory.
    pub fn with_memory(self, memory_bytes: u64) -> Self {
        Self { memory_bytes, ..self }
    }
    /// Everything asked, in order.
    pub fn log(&self) -> Vec<(RankId, Asked)> {
        lock(&self.state).log.clone()
    }
    /// What would have been wrong on a real driver.
    pub fn wrong(&self) -> Vec<String> {
        lock(&self.state).wrong.clone()
    }
    /// Ranks whose kernels are told to wait no more.
    pub fn stopped(&self) -> Vec<RankId> {
        lock(&self.state).stops.iter().filter(|(_, word)| word.is_set()).map(|(rank, _)| *rank).collect()
    }
    /// GPUs that are neither closed nor abandoned.
    pub fn open_gpus(&self) -> u32 {
        lock(&self.state).open
    }
    /// Lets calls return that hang.
    pub fn release(&self) {
        lock(&self.state).released = true;
    }
    pub(super) fn stand(&self, rank: RankId, standing: Standing) {
        lock(&self.state).standing.insert(rank, standing);
    }
    /// Whether a rank goes on by itself.
    pub(super) fn runs(&self, state: &State, rank: RankId) -> bool {
        match state.standing.get(&rank).unwrap_or(&Standing::Free) {
            Standing::Free => true,
            Standing::Joining(id) => self.fabric.joined(*id),
            Standing::Rounds { stuck: true, .. } | Standing::Stalled { .. } => false,
            Standing::Rounds { rounds, .. } => rounds.iter().all(|(id, round)| self.fabric.complete(*id, *round) != Ok(false)),
        }
    }
}

impl Host for FakeHost {
    type Gpu = FakeGpu;
    fn open(&self, rank: RankId, abort: AbortSignal) -> Result<FakeGpu, GpuError> {
        let mut state = lock(&self.state);
        state.open += 1;
        state.log.push((rank, Asked::Open));
        state.aborts.insert(rank, abort.clone());
        drop(state);
        Ok(FakeGpu::new(self.clone(), rank, abort))
    }
    fn unique_id(&self) -> Result<Vec<u8>, GpuError> {
        let mut state = lock(&self.state);
        state.ids += 1;
        Ok(state.ids.to_le_bytes().to_vec())
    }
    fn abort_stuck(&self, _: RankId) {}
    fn stall(&self, rank: RankId, until: Option<&AbortSignal>) {
        self.stand(rank, Standing::Stalled { forever: until.is_none() });
        while !until.is_some_and(AbortSignal::is_raised) && !lock(&self.state).released {
            std::thread::sleep(POLL);
        }
        self.stand(rank, Standing::Free);
    }
    fn now(&self) -> Duration {
        self.start.map_or_else(|| lock(&self.state).now, |s| s.elapsed())
    }
    fn slice(&self, left: Duration) -> Duration {
        if self.start.is_some() { left } else { POLL * 2 }
    }
    fn nothing_happened(&self, board: &Board) {
        let all = board.all();
        let mut state = lock(&self.state);
        let runs = |rank: RankId, idle: bool| match state.standing.get(&rank) {
            None | Some(Standing::Free) => !idle,
            Some(Standing::Stalled { forever: true }) => false,
            // After an abort every wait is about to be given up, as soon as its thread wakes.
            Some(_) => state.aborts.get(&rank).is_some_and(AbortSignal::is_raised) || self.runs(&state, rank),
        };
        let any_runs = all.iter().any(|(rank, _)| runs(*rank, board.is_idle(*rank)));
        state.looks += 1;
        // A rank that neither runs nor stands still would stop time; that is a defect, and it must fail a test, not hang it.
        if state.looks > MOST_LOOKS || !any_runs {
            (state.now, state.looks) = (state.now + LEAP, 0);
        }
    }
}
