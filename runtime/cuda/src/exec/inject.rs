//! Faults on purpose: one rank dies, stalls, hangs or runs out of memory at a chosen driver call. The same wrapper stands above the real
//! driver (`moetwin run --inject`) and above the recording fake.

use super::gpu::{AbortSignal, Address, Call, Captured, Element, Gpu, GpuError, Stream, Way};
use super::progress::{Board, Doing};
use super::rank::Notes;
use moetwin_kernels::launch::{DenseProduct, Launch};
use moetwin_kernels::splitmix::SplitMix64;
use moetwin_models::RankId;
use moetwin_runtime::init::InitPhase;
use std::fmt;
use std::str::FromStr;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// What happens to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// It ends at once: the thread of a rank, or its process where it has one of its own.
    Die,
    /// The call does not return before the run is aborted.
    Stall,
    /// The call never returns.
    Hang,
    /// The call fails as if memory had run out.
    OutOfMemory,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [FaultKind; 4] = [FaultKind::Die, FaultKind::Stall, FaultKind::Hang, FaultKind::OutOfMemory];
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Die => "die",
            FaultKind::Stall => "stall",
            FaultKind::Hang => "hang",
            FaultKind::OutOfMemory => "oom",
        }
    }
}

/// Phases in which ranks call the driver, by the order in which a run comes to them.
pub const PHASES: [InitPhase; 7] =
    [InitPhase::Open, InitPhase::Load, InitPhase::Connect, InitPhase::Allocate, InitPhase::WarmUp, InitPhase::Capture, InitPhase::Serve];

/// One fault: at the `call`-th driver call of a phase on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// The rank.
    pub rank: RankId,
    /// The phase.
    pub phase: InitPhase,
    /// The call, from 0, counted by rank and phase.
    pub call: u32,
    /// What happens.
    pub kind: FaultKind,
    /// Whether a phase with fewer calls lets it happen in the next phase instead.
    pub or_later: bool,
}

impl Injection {
    /// A fault drawn by a seed among `ranks` ranks.
    pub fn seeded(seed: u64, ranks: u32) -> Self {
        let mut numbers = SplitMix64(seed);
        let mut draw = |below: usize| numbers.below(below as u64) as usize;
        let rank = RankId(draw(ranks as usize) as u32);
        let (phase, kind) = (PHASES[draw(PHASES.len())], FaultKind::ALL[draw(FaultKind::ALL.len())]);
        Self { rank, phase, call: draw(16) as u32, kind, or_later: true }
    }
    /// `SEED`, or `rank:phase.call:kind`; the accepted form where it is neither.
    pub fn parse(text: &str, ranks: u32) -> Result<Self, String> {
        match text.parse::<u64>() {
            Ok(seed) => Ok(Self::seeded(seed, ranks)),
            Err(_) => {
                let injection: Self = text.parse()?;
                if injection.rank.0 < ranks {
                    Ok(injection)
                } else {
                    Err(format!("rank {} of {ranks}: ranks count from 0", injection.rank.0))
                }
            }
        }
    }
}

impl FromStr for Injection {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            let phases: Vec<String> = PHASES.iter().map(ToString::to_string).collect();
            let kinds = FaultKind::ALL.map(FaultKind::name);
            format!(
                "accepted: a seed, or RANK:PHASE.CALL:KIND with PHASE one of {} and KIND one of {}",
                phases.join(", "),
                kinds.join(", ")
            )
        };
        let mut parts = text.split(':');
        let (Some(rank), Some(place), Some(kind), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return Err(form());
        };
        let (phase, call) = place.rsplit_once('.').unwrap_or((place, "0"));
        let phase = PHASES.into_iter().find(|p| p.to_string() == phase).ok_or_else(form)?;
        let kind = FaultKind::ALL.into_iter().find(|k| k.name() == kind).ok_or_else(form)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| form());
        Ok(Self { rank: RankId(number(rank)?), phase, call: number(call)?, kind, or_later: false })
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}.{}:{}", self.rank.0, self.phase, self.call, self.kind.name())
    }
}

/// Waits out a stall: until the run is aborted, or for ever.
pub(super) type Stall = Box<dyn Fn(Option<&AbortSignal>)>;

/// Counts the driver calls of a rank and spoils the chosen one.
pub(super) struct Saboteur {
    rank: RankId,
    plan: Option<Injection>,
    board: Board,
    abort: AbortSignal,
    stall: Stall,
    /// Where it is told when the fault happens.
    told: Option<Sender<String>>,
    /// Whether a rank that dies takes its process with it.
    alone: bool,
    phase: InitPhase,
    calls: u32,
}

impl Saboteur {
    pub(super) fn new(
        rank: RankId,
        plan: Option<Injection>,
        notes: &Notes,
        stall: Stall,
        told: Option<Sender<String>>,
        alone: bool,
    ) -> Self {
        let plan = plan.filter(|p| p.rank == rank);
        let (board, abort) = (notes.board.clone(), notes.abort.clone());
        Self { rank, plan, board, abort, stall, told, alone, phase: InitPhase::Open, calls: 0 }
    }
    /// A driver call is about to be made.
    pub(super) fn call(&mut self, name: &str) -> Result<(), GpuError> {
        let Some(plan) = self.plan else { return Ok(()) };
        let now = self.board.of(self.rank).map_or(self.phase, |d| d.phase);
        if now != self.phase {
            (self.phase, self.calls) = (now, 0);
        }
        let call = self.calls;
        self.calls += 1;
        let here = now == plan.phase && call == plan.call;
        let later = plan.or_later && now > plan.phase && now != InitPhase::Close;
        if !here && !later {
            return Ok(());
        }
        self.plan = None;
        let what = plan.kind.name();
        self.told.as_ref().map(|t| t.send(format!("rank {}, phase {now}, `{name}`: {what}, as injected", self.rank.0)).ok());
        // A rank that is stuck here has not come to where its peers wait.
        if let Some(doing) = self.board.of(self.rank) {
            self.board.set(self.rank, Doing { with_peers: false, ..doing });
        }
        match plan.kind {
            FaultKind::OutOfMemory => Err(GpuError::new(name, "CUDA_ERROR_OUT_OF_MEMORY (injected)")),
            FaultKind::Stall => {
                (self.stall)(Some(&self.abort));
                Err(GpuError::new(name, "stalled until the run was aborted (injected)"))
            }
            FaultKind::Hang => {
                (self.stall)(None);
                Err(GpuError::new(name, "hung (injected)"))
            }
            // The exit code of a process that the kernel killed (128 + SIGKILL).
            FaultKind::Die if self.alone => crate::leave::leave(137),
            // No panic hook: the message is in the report, and a backtrace would only hide it.
            FaultKind::Die => std::panic::resume_unwind(Box::new(format!("died in `{name}` (injected)"))),
        }
    }
}

/// A GPU whose calls may be spoiled. Ending things is never spoiled: an end that fails has nobody to be told to.
pub(super) struct Injecting<G> {
    gpu: G,
    saboteur: Saboteur,
}

impl<G> Injecting<G> {
    pub(super) fn new(gpu: G, saboteur: Saboteur) -> Self {
        Self { gpu, saboteur }
    }
}

impl<G: Gpu> Gpu for Injecting<G> {
    fn allocate(&mut self, bytes: u64) -> Result<Address, GpuError> {
        self.saboteur.call("allocate")?;
        self.gpu.allocate(bytes)
    }
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), GpuError> {
        self.saboteur.call("copy to device")?;
        self.gpu.write(to, bytes)
    }
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.saboteur.call("copy to host")?;
        self.gpu.read(from, bytes)
    }
    fn fill(&mut self, stream: Stream, to: Address, byte: u8, bytes: u64) -> Result<(), GpuError> {
        self.saboteur.call("fill")?;
        self.gpu.fill(stream, to, byte, bytes)
    }
    fn copy(&mut self, stream: Stream, from: Address, to: Address, bytes: u64) -> Result<(), GpuError> {
        self.saboteur.call("copy on device")?;
        self.gpu.copy(stream, from, to, bytes)
    }
    fn prepare(&mut self, launch: &Launch) -> Result<(), GpuError> {
        self.gpu.prepare(launch)
    }
    fn launch(&mut self, stream: Stream, launch: &Launch, args: &[u64]) -> Result<(), GpuError> {
        self.saboteur.call("launch")?;
        self.gpu.launch(stream, launch, args)
    }
    fn is_hopper(&self) -> bool {
        self.gpu.is_hopper()
    }
    fn plan_product(&mut self, product: &DenseProduct) -> Result<bool, GpuError> {
        self.saboteur.call("plan a product")?;
        self.gpu.plan_product(product)
    }
    fn multiply(&mut self, stream: Stream, product: &DenseProduct, places: [Address; 4], workspace: Address) -> Result<bool, GpuError> {
        self.saboteur.call("launch")?;
        self.gpu.multiply(stream, product, places, workspace)
    }
    fn record(&mut self, stream: Stream, event: u32) -> Result<(), GpuError> {
        self.saboteur.call("record event")?;
        self.gpu.record(stream, event)
    }
    fn wait(&mut self, stream: Stream, event: u32) -> Result<(), GpuError> {
        self.saboteur.call("wait for event")?;
        self.gpu.wait(stream, event)
    }
    fn mark(&mut self, stream: Stream, mark: u32) -> Result<(), GpuError> {
        self.gpu.mark(stream, mark)
    }
    fn unfinished(&mut self) -> Option<u32> {
        self.gpu.unfinished()
    }
    fn stamp(&mut self, stream: Stream, stamp: u32) -> Result<(), GpuError> {
        self.saboteur.call("record stamp")?;
        self.gpu.stamp(stream, stamp)
    }
    fn elapsed_ps(&mut self, from: u32, to: u32) -> Result<u64, GpuError> {
        self.gpu.elapsed_ps(from, to)
    }
    fn connect(&mut self, communicator: u32, id: &[u8], index: u32, members: u32, deadline: Duration) -> Result<(), GpuError> {
        self.saboteur.call("join communicator")?;
        self.gpu.connect(communicator, id, index, members, deadline)
    }
    fn communicate(&mut self, stream: Stream, communicator: u32, element: Element, calls: &[Call]) -> Result<(), GpuError> {
        self.saboteur.call("communicate")?;
        self.gpu.communicate(stream, communicator, element, calls)
    }
    fn publish(&mut self, bytes: u64) -> Result<(Address, Vec<u8>), GpuError> {
        self.saboteur.call("publish memory")?;
        self.gpu.publish(bytes)
    }
    fn map(&mut self, ticket: &[u8], way: Way) -> Result<Result<Address, String>, GpuError> {
        self.saboteur.call("map a peer's memory")?;
        self.gpu.map(ticket, way)
    }
    fn unmap(&mut self, address: Address) {
        self.gpu.unmap(address);
    }
    fn stop_word(&mut self) -> Result<Result<Address, String>, GpuError> {
        self.saboteur.call("map the stop word")?;
        self.gpu.stop_word()
    }
    fn meet(&mut self, stream: Stream, communicator: u32, launch: &Launch, args: &[u64]) -> Result<(), GpuError> {
        self.saboteur.call("launch")?;
        self.gpu.meet(stream, communicator, launch, args)
    }
    fn begin_capture(&mut self) -> Result<(), GpuError> {
        self.saboteur.call("begin capture")?;
        self.gpu.begin_capture()
    }
    fn end_capture(&mut self) -> Result<Captured, GpuError> {
        self.saboteur.call("end capture")?;
        self.gpu.end_capture()
    }
    fn replay(&mut self, graph: Captured) -> Result<(), GpuError> {
        self.saboteur.call("replay")?;
        self.gpu.replay(graph)
    }
    fn synchronize(&mut self, deadline: Duration) -> Result<(), GpuError> {
        self.saboteur.call("synchronize")?;
        self.gpu.synchronize(deadline)
    }
    fn abort(&mut self) {
        self.gpu.abort();
    }
    fn drained(&mut self, limit: Duration) -> bool {
        self.gpu.drained(limit)
    }
    fn destroy(&mut self, graph: Captured) {
        self.gpu.destroy(graph);
    }
    fn disconnect(&mut self, communicator: u32) {
        self.gpu.disconnect(communicator);
    }
    fn free(&mut self, address: Address) {
        self.gpu.free(address);
    }
    fn close(&mut self) {
        self.gpu.close();
    }
    fn abandon(&mut self) {
        self.gpu.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn injections_are_read_as_they_are_printed() {
        for text in ["3:connect.0:die", "0:warm-up.17:stall", "7:serve.2:hang", "1:load.5:oom"] {
            assert_eq!(Injection::parse(text, 8).unwrap().to_string(), text);
        }
        assert_eq!(Injection::parse("2:capture:oom", 8).unwrap().call, 0);
        for wrong in
            ["", "x", "1:connect", "1:connect.0", "1:close.0:die", "1:connect.x:die", "1:connect.0:melt", "1:connect.0:die:2", "-1"]
        {
            assert!(Injection::parse(wrong, 8).unwrap_err().contains("RANK:PHASE.CALL:KIND"), "{wrong}");
        }
        assert!(Injection::parse("8:connect.0:die", 8).unwrap_err().contains("count from 0"));
    }

    #[test]
    fn seeds_reach_every_rank_phase_and_kind() {
        let drawn: Vec<_> = (0..512).map(|seed| Injection::seeded(seed, 8)).collect();
        assert_eq!(drawn, (0..512).map(|seed| Injection::seeded(seed, 8)).collect::<Vec<_>>());
        assert!((0..8).all(|r| drawn.iter().any(|i| i.rank.0 == r)));
        assert!(PHASES.iter().all(|p| drawn.iter().any(|i| i.phase == *p)));
        assert!(FaultKind::ALL.iter().all(|k| drawn.iter().any(|i| i.kind == *k)));
    }
}
