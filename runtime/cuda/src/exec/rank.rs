//! One rank: its memory, its communicators and its programs.

use super::exchange::{Places, packed_sizes, parts};
use super::gpu::{AbortSignal, Address, Captured, Gpu, GpuError};
use super::packed::Packing;
use super::peers::Shared;
use super::progress::{Board, Doing, Failed, What};
use super::weights::WeightLoad;
use moetwin_kernels::launch::{Element, Table, Tuning, element_of, launches_with};
use moetwin_models::{IdVec, RankId, TensorKind, WeightRef};
use moetwin_runtime::init::InitPhase;
use moetwin_runtime::{Action, BufferId, Place, Program};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a `SequenceRows` in common.cuh.
const SEQUENCE_BYTES: usize = 16;
/// Streams with scratch memory of their own.
const STREAMS: usize = 2;

/// How often a rank's own limit of a wait exceeds the run's deadline: whoever watches all ranks judges first, and knows more.
pub(super) const OWN_LIMIT: u32 = 2;
/// From an abort until streams are idle: aborted collectives end at once, kernels of a step within it.
pub(super) const DRAIN: Duration = Duration::from_secs(2);

/// Where a rank notes what it does, and whether it is to give up.
#[derive(Clone)]
pub(crate) struct Notes {
    pub board: Board,
    pub abort: AbortSignal,
    /// The time, by the host's clock.
    pub now: Arc<dyn Fn() -> Duration + Send + Sync>,
}

/// A rank's failure, and what tells whether it is the cause or a consequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankFailure {
    pub failed: Failed,
    /// Whether it happened in a wait for other ranks.
    pub with_peers: bool,
    /// Whether the rank only gave up because another had failed.
    pub gave_up: bool,
    /// The command that did not end, by its place in the program; the largest number where it is not known.
    pub order: u32,
    /// Whether the GPU became idle after the abort.
    pub drained: bool,
}

/// What every rank of a run is told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// KV pool rows of each sequence.
    pub capacity: u32,
    /// Longest wait for anything.
    pub deadline: Duration,
    /// Rows that a rank may send to another one's experts, where that is not all of them.
    pub expert_capacity: Option<u32>,
}

/// A rank and its GPU.
pub(crate) struct Rank<G> {
    pub(super) gpu: G,
    pub(super) rank: RankId,
    pub(super) limits: Limits,
    pub(super) notes: Notes,
    /// What stands in for the other ranks' part of a collective, where only this one runs: so much time.
    pub(super) stand_in: Option<Duration>,
    /// Everything allocated, in order.
    pub(super) allocations: Vec<Address>,
    pub(super) shared: Shared,
    /// Workspace of each stream's products by a library, once there are any.
    pub(super) workspaces: Option<[Address; STREAMS]>,
    /// Memory that is read to empty caches before what is measured, once there is some.
    pub(super) to_read: Option<Address>,
    communicators: Vec<u32>,
    pub(super) graphs: Vec<Captured>,
    pub(super) order: u32,
    weights: BTreeMap<WeightRef, Address>,
    /// Weights since the GPU was last seen idle, in order: the n-th is behind mark n.
    loading: Vec<WeightRef>,
    caches: BTreeMap<u16, Address>,
    tables: Vec<(Table, Address)>,
    pub(super) programs: Vec<Loaded>,
}

/// A communicator that a rank is to join.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub number: u32,
    pub id: Vec<u8>,
    pub index: u32,
    pub members: u32,
}

/// A program with everything resolved to addresses.
pub(super) struct Loaded {
    pub(super) program: Arc<Program>,
    /// Communicator numbers by group, and of all ranks for pipeline sends.
    pub(super) communicators: Arc<Communicators>,
    pub(super) addresses: IdVec<BufferId, Address>,
    pub(super) scratch: [Address; STREAMS],
    pub(super) sequences: Address,
    pub(super) replica_sequences: Address,
    /// How rows of experts are packed, where they are.
    pub(super) packing: Option<Packing>,
    pub(super) capture: bool,
    /// Measured choices of launches.
    pub(super) tuning: Arc<Tuning>,
    pub(super) captured: Option<Captured>,
    pub(super) warm: bool,
}

/// Numbers of the communicators that a program uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Communicators {
    pub groups: Vec<u32>,
    /// Those whose ranks have mapped each other's windows, all of them.
    pub one_shot: Vec<u32>,
    pub world: u32,
}

/// The rank's part of a named result.
#[derive(Clone, Debug)]
pub(crate) struct PartOfResult {
    pub buffer: BufferId,
    pub sizes: Vec<usize>,
    pub element: Element,
    pub bytes: Vec<u8>,
}

impl<G: Gpu> Rank<G> {
    pub(crate) fn new(gpu: G, rank: RankId, limits: Limits, notes: Notes, stand_in: Option<Duration>) -> Self {
        Self {
            gpu,
            rank,
            limits,
            notes,
            stand_in,
            allocations: Vec::new(),
            shared: Shared::default(),
            workspaces: None,
            to_read: None,
            communicators: Vec::new(),
            graphs: Vec::new(),
            order: u32::MAX,
            weights: BTreeMap::new(),
            loading: Vec::new(),
            caches: BTreeMap::new(),
            tables: Vec::new(),
            programs: Vec::new(),
        }
    }
    /// Notes what the rank begins.
    pub(super) fn begin(&mut self, phase: InitPhase, what: What, with_peers: bool) {
        self.notes.board.set(self.rank, Doing { phase, what, with_peers, since: (self.notes.now)() });
    }
    /// Notes that a job was answered.
    pub(crate) fn rest(&mut self) {
        if let Some(doing) = self.notes.board.of(self.rank) {
            self.begin(doing.phase, What::Nothing, false);
        }
        self.notes.board.answered(self.rank);
    }
    /// What a failed call means; ends all communication of the rank.
    pub(crate) fn failure(&mut self, problem: String, with_peers: bool) -> RankFailure {
        let gave_up = self.notes.abort.is_raised();
        let doing = self.notes.board.of(self.rank);
        let doing = doing.unwrap_or_else(Doing::opening);
        // Who gives up tells whether its GPU still runs: the one that does is the one everybody waited for.
        let drained = !gave_up || {
            self.gpu.abort();
            self.gpu.drained(DRAIN)
        };
        RankFailure { failed: Failed::new(self.rank, &doing, problem), with_peers, gave_up, order: self.order, drained }
    }
    /// Ends what there is: graphs, communicators, memory, context. After a failure communicators are aborted first, so that nothing waits
    /// for a peer; where the GPU does not become idle, everything is left to the end of the process, since freeing would wait for ever.
    pub(crate) fn close(&mut self, failed: bool) {
        self.begin(InitPhase::Close, What::Named("close context"), false);
        if failed {
            self.gpu.abort();
        }
        if !self.gpu.drained(DRAIN) {
            self.gpu.abandon();
            return;
        }
        // Graphs name communicators and memory, so they go first.
        for graph in std::mem::take(&mut self.graphs).into_iter().rev() {
            self.gpu.destroy(graph);
        }
        let communicators = std::mem::take(&mut self.communicators);
        if !failed {
            communicators.into_iter().rev().for_each(|c| self.gpu.disconnect(c));
        }
        self.shared.unmap(&mut self.gpu);
        for address in std::mem::take(&mut self.allocations).into_iter().rev() {
            self.gpu.free(address);
        }
        self.gpu.close();
    }
    /// The longest wait of the rank itself.
    pub(super) fn longest_wait(&self) -> Duration {
        self.limits.deadline * OWN_LIMIT
    }
    pub(super) fn allocate(&mut self, bytes: u64) -> Result<Address, GpuError> {
        let address = self.gpu.allocate(bytes)?;
        self.allocations.push(address);
        Ok(address)
    }
    /// Memory of zeros to read, the same each time. Where there is no room for it nothing is measured: what caches still held would count as what
    /// comes from memory, and nobody would see it.
    pub(super) fn room_to_read(&mut self, bytes: u64) -> Result<Address, GpuError> {
        if let Some(room) = self.to_read {
            return Ok(room);
        }
        let mib = bytes >> 20;
        let room = self.allocate(bytes).map_err(|e| {
            let what = format!(
                "a measurement needs {mib} MiB free on each GPU, which are read between commands so that none finds its operands in the cache ({e}); \
                 fewer layers (--layers), fewer or shorter sequences or more ranks leave room"
            );
            GpuError::new("memory to empty the cache with", what)
        })?;
        self.gpu.fill(0, room, 0, bytes)?;
        self.to_read = Some(room);
        Ok(room)
    }
    /// Keeps a captured graph until it is dropped, or the rank ends.
    pub(super) fn keep(&mut self, graph: Captured) {
        self.graphs.push(graph);
    }
    /// Destroys the last graphs that were kept.
    pub(super) fn drop_graphs(&mut self, count: usize) {
        for graph in self.graphs.split_off(self.graphs.len().saturating_sub(count)).into_iter().rev() {
            self.gpu.destroy(graph);
        }
    }
    pub(crate) fn connect(&mut self, memberships: &[Membership]) -> Result<(), GpuError> {
        for m in memberships {
            self.begin(InitPhase::Connect, What::Communicator(m.number), true);
            self.gpu.connect(m.number, &m.id, m.index, m.members, self.limits.deadline * OWN_LIMIT)?;
            self.communicators.push(m.number);
        }
        Ok(())
    }
    /// Brings a weight into device memory.
    pub(crate) fn load(&mut self, weight: WeightRef, load: &WeightLoad) -> Result<(), GpuError> {
        self.begin(InitPhase::Load, What::Weight(weight), false);
        let address = self.allocate(load.bytes())?;
        let tables = if load.table_bytes() > 0 { self.allocate(load.table_bytes())? } else { 0 };
        load.place(&mut self.gpu, address, tables)?;
        self.gpu.mark(0, self.loading.len() as u32)?;
        self.loading.push(weight);
        self.weights.insert(weight, address);
        Ok(())
    }
    /// Waits for the weights that are drawn on the device, so that what goes wrong there is not blamed on a later phase.
    pub(crate) fn finish_loading(&mut self) -> Result<(), GpuError> {
        // Which weight is late is known once the wait gives up, as with a pass.
        self.begin(InitPhase::Load, What::Named("wait for the weights"), true);
        let waited = self.gpu.synchronize(self.limits.deadline * OWN_LIMIT);
        let loading = std::mem::take(&mut self.loading);
        if waited.is_err()
            && let Some(mark) = self.gpu.unfinished()
            && let Some(weight) = loading.get(mark as usize)
        {
            self.order = mark;
            self.begin(InitPhase::Load, What::Weight(*weight), false);
        }
        waited
    }
    /// Resolves a program; its weights are loaded.
    pub(crate) fn add(
        &mut self,
        program: Arc<Program>,
        communicators: Arc<Communicators>,
        capture: bool,
        tuning: Arc<Tuning>,
    ) -> Result<(), GpuError> {
        self.begin(InitPhase::Allocate, What::Named("reserve arena"), false);
        let rp = &program.ranks[self.rank];
        let arena = self.allocate(rp.arena_bytes)?;
        self.clear(arena, rp.arena_bytes)?;
        self.begin(InitPhase::Allocate, What::Named("reserve KV pool and inputs"), false);
        let graph = &program.graph;
        let mut addresses = IdVec::new();
        for (_, buffer) in rp.buffers.iter() {
            let kind = &graph.tensors[buffer.tensor].kind;
            addresses.push(match (buffer.place, kind) {
                (Place::Arena { offset }, _) => arena + offset,
                (Place::Weight, TensorKind::Weight(w)) => *self
                    .weights
                    .get(w)
                    .ok_or_else(|| GpuError::new("weights", format!("{} is not loaded", graph.tensors[buffer.tensor].name)))?,
                (Place::KvPool, TensorKind::Cache { layer }) => {
                    let rows = graph.deployment.attention_sequences(&graph.step, self.rank).len() as u64 * u64::from(self.limits.capacity);
                    let bytes = rows * buffer.sizes[1..].iter().product::<u64>() * element_of(graph, buffer.tensor).bytes();
                    match self.caches.get(layer) {
                        Some(&a) => a,
                        None => {
                            let a = self.allocate(bytes)?;
                            self.clear(a, bytes)?;
                            self.caches.insert(*layer, a);
                            a
                        }
                    }
                }
                _ => self.allocate(buffer.sizes.iter().product::<u64>() * 4)?,
            });
        }
        let count = graph.step.sequences.len() as u64;
        let sequences = self.allocate(count * SEQUENCE_BYTES as u64)?;
        let replica_sequences = self.allocate(count * SEQUENCE_BYTES as u64)?;
        let mut loaded = Loaded {
            program: Arc::clone(&program),
            communicators,
            addresses,
            scratch: [0; STREAMS],
            sequences,
            replica_sequences,
            packing: None,
            capture,
            tuning: Arc::new(Tuning::clone(&tuning).on_hopper(self.gpu.is_hopper())),
            captured: None,
            warm: false,
        };
        self.begin(InitPhase::Allocate, What::Named("reserve scratch and tables"), false);
        if let Some(capacity) = self.limits.expert_capacity {
            loaded.packing = self.packing(&program, u64::from(capacity))?;
        }
        for (stream, bytes) in scratch_bytes(&loaded, self.rank)?.into_iter().enumerate() {
            loaded.scratch[stream] = self.allocate(bytes)?;
        }
        rp.commands.iter().try_for_each(|command| self.ready(&loaded, command))?;
        self.programs.push(loaded);
        Ok(())
    }

    /// Zeroes memory where other ranks' parts will never be written: what lies there by chance may be no number.
    fn clear(&mut self, address: Address, bytes: u64) -> Result<(), GpuError> {
        if self.stand_in.is_none() || bytes == 0 {
            return Ok(());
        }
        self.gpu.fill(0, address, 0, bytes)
    }

    pub(super) fn table(&mut self, table: &Table) -> Result<Address, GpuError> {
        if let Some((_, address)) = self.tables.iter().find(|(t, _)| t == table) {
            return Ok(*address);
        }
        let bytes = match table {
            Table::F64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Table::I32(v) => int_bytes(v),
        };
        let address = self.allocate(bytes.len() as u64)?;
        self.gpu.write(address, &bytes)?;
        self.tables.push((table.clone(), address));
        Ok(address)
    }
}

/// Scratch memory that the commands of each stream need at most.
fn scratch_bytes(loaded: &Loaded, rank: RankId) -> Result<[u64; STREAMS], GpuError> {
    let graph = &loaded.program.graph;
    let mut most = [0; STREAMS];
    for command in &loaded.program.ranks[rank].commands {
        let node = &graph.nodes[command.id.node];
        let bytes = match command.action {
            Action::Compute if !matches!(node.op, moetwin_models::Op::Slice { .. }) => {
                launches_with(graph, command.id.node, rank, &loaded.tuning)
                    .map_err(|e| GpuError::new("launch", e.to_string()))?
                    .scratch_bytes
            }
            Action::Collective { group, .. } => {
                let zero: Vec<Address> = vec![0; node.inputs.len().max(node.outputs.len())];
                let members = &loaded.program.groups[group].ranks;
                let packs = |p: &Packing| Ok::<_, GpuError>(packed_sizes(graph, node, rank, members, p.capacity)?.map(|_| *p));
                let packing = loaded.packing.as_ref().map(packs).transpose()?.flatten();
                let places = Places { inputs: &zero[..node.inputs.len()], outputs: &zero[..node.outputs.len()], scratch: 0, packing };
                parts(graph, node, rank, members, &places)?.1
            }
            _ => 0,
        };
        let stream = command.stream.0 as usize;
        most[stream] = most[stream].max(bytes);
    }
    Ok(most)
}

pub(super) fn int_bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
