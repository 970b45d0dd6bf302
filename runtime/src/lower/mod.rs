//! Lowering: a sharded graph becomes per-rank commands, streams, events and an arena.
//!
//! Sums over ranks may be fused with the norms behind them first, on the graph: the program's graph is the one that its commands carry out.
//!
//! A rank gets the nodes of its stage in graph order, which is its launch order. Two streams: the forward pass, and what runs
//! beside it (the shared expert). An event is recorded only where a value crosses streams and nothing already orders the two
//! commands, so every wait that exists is necessary. Arena space is reused only where the last use of the old value
//! happens before the command that writes the new one.

mod arena;
mod clock;
mod twin;

use crate::program::{Action, Buffer, BufferId, Command, CommandId, EventId, Group, GroupId, Place, Program, RankProgram, StreamId};
use arena::Arena;
use clock::Clock;
use moetwin_kernels::launch::element_of;
use moetwin_kernels::launch::one_shot::fuses;
use moetwin_models::fuse::sums_into_norms;
use moetwin_models::graph::SplitError;
use moetwin_models::op::LinearRole;
use moetwin_models::{Axis, Graph, IdVec, Node, NodeId, Op, RankId, TensorId, TensorKind};
use std::collections::BTreeMap;
use twin::{Twins, renamed};

/// The stream of the forward pass.
pub const MAIN_STREAM: StreamId = StreamId(0);
/// The stream of what runs beside it.
pub const SIDE_STREAM: StreamId = StreamId(1);

/// Choices of lowering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowerOptions {
    /// Run shared experts beside the routed ones on a second stream.
    pub side_stream: bool,
    /// Fuse sums over ranks with the norms behind them, where the one-shot kernel takes both ([`fuses`]).
    pub fuse_sums: bool,
}

impl Default for LowerOptions {
    fn default() -> Self {
        Self { side_stream: true, fuse_sums: false }
    }
}

/// Lowers a verified sharded graph. Fails only where a tensor cannot be cut as its layout says.
pub fn lower(graph: Graph, options: LowerOptions) -> Result<Program, SplitError> {
    let graph = fused(graph, options)?;
    let sides = side_nodes(&graph, options);
    let last_use = last_uses(&graph);
    let (groups, group_ids) = groups(&graph);
    let mut ranks: IdVec<RankId, RankProgram> = IdVec::new();
    let mut twins = Twins::new(&graph);
    for rank in (0..graph.deployment.ranks()).map(RankId) {
        let program = match twins.of(rank)? {
            Some(other) => renamed(&graph, &ranks[other], rank, &group_ids),
            None => RankLowering::new(&graph, rank, &sides, &group_ids, &last_use).run()?,
        };
        ranks.push(program);
    }
    Ok(Program { graph, groups, ranks })
}

/// Lowers every rank by itself: the naive form of [`lower`], which makes the programs of like ranks from one.
pub fn lower_each(graph: Graph, options: LowerOptions) -> Result<Program, SplitError> {
    let graph = fused(graph, options)?;
    let sides = side_nodes(&graph, options);
    let last_use = last_uses(&graph);
    let (groups, group_ids) = groups(&graph);
    let mut ranks = IdVec::new();
    for rank in (0..graph.deployment.ranks()).map(RankId) {
        ranks.push(RankLowering::new(&graph, rank, &sides, &group_ids, &last_use).run()?);
    }
    Ok(Program { graph, groups, ranks })
}

/// The graph that is lowered: the given one, or with its sums fused.
pub fn fused(graph: Graph, options: LowerOptions) -> Result<Graph, SplitError> {
    if !options.fuse_sums {
        return Ok(graph);
    }
    sums_into_norms(&graph, |sum| fuses(sum.members as usize, sum.rows, sum.width))
}

/// Groups of the graph's collectives; each rank's group along an axis.
type GroupTable = BTreeMap<(Axis, RankId), GroupId>;

fn axis_of(op: &Op) -> Option<Axis> {
    match op {
        Op::AllReduce { axis } | Op::AllReduceAddRmsNorm { axis, .. } | Op::AllGather { axis, .. } | Op::ReduceScatter { axis, .. } => {
            Some(*axis)
        }
        Op::Dispatch | Op::Combine => Some(Axis::Ep),
        _ => None,
    }
}

fn groups(graph: &Graph) -> (IdVec<GroupId, Group>, GroupTable) {
    let mut axes: Vec<Axis> = graph.nodes.iter().filter_map(|(_, n)| axis_of(&n.op)).collect();
    axes.sort();
    axes.dedup();
    let mut groups: IdVec<GroupId, Group> = IdVec::new();
    // Axes that hold the same ranks share one group, as engines reuse the tensor-parallel communicator.
    let mut by_members: BTreeMap<Vec<RankId>, GroupId> = BTreeMap::new();
    let mut table = GroupTable::new();
    for axis in axes {
        for rank in (0..graph.deployment.ranks()).map(RankId) {
            let members = graph.deployment.group(axis, rank);
            let id = *by_members
                .entry(members)
                .or_insert_with_key(|members| groups.push(Group { name: group_name(axis, members), ranks: members.clone() }));
            table.insert((axis, rank), id);
        }
    }
    (groups, table)
}

fn group_name(axis: Axis, members: &[RankId]) -> String {
    let list: Vec<String> = members.iter().map(|r| r.0.to_string()).collect();
    format!("{}[{}]", axis.name(), list.join(","))
}

/// Which nodes run on the side stream: the shared expert's projections and what lies between them.
fn side_nodes(graph: &Graph, options: LowerOptions) -> Vec<bool> {
    let mut side = vec![false; graph.nodes.len()];
    if !options.side_stream {
        return side;
    }
    for (id, node) in graph.nodes.iter() {
        side[id.0 as usize] = match &node.op {
            Op::Linear { role: LinearRole::SharedGateUp | LinearRole::SharedDown | LinearRole::SharedGate } => true,
            Op::GatedActivation { .. } | Op::SigmoidScale => {
                node.inputs.iter().all(|t| graph.tensors[*t].producer.is_some_and(|p| side[p.0 as usize]))
            }
            _ => false,
        };
    }
    side
}

/// State of lowering one rank.
struct RankLowering<'a> {
    graph: &'a Graph,
    rank: RankId,
    stage: u32,
    sides: &'a [bool],
    group_ids: &'a GroupTable,
    last_use: &'a [u32],
    program: RankProgram,
    /// By tensor.
    buffer_of: Vec<Option<BufferId>>,
    /// By buffer, the command that wrote it last.
    writer: Vec<Option<usize>>,
    sequences: BTreeMap<GroupId, u32>,
    clock: Clock,
    arena: Arena,
}

impl<'a> RankLowering<'a> {
    fn new(graph: &'a Graph, rank: RankId, sides: &'a [bool], group_ids: &'a GroupTable, last_use: &'a [u32]) -> Self {
        let stage = graph.deployment.stage(rank);
        Self {
            graph,
            rank,
            stage,
            sides,
            group_ids,
            last_use,
            program: RankProgram { streams: if sides.contains(&true) { 2 } else { 1 }, ..RankProgram::default() },
            buffer_of: vec![None; graph.tensors.len()],
            writer: Vec::new(),
            sequences: BTreeMap::new(),
            clock: Clock::default(),
            arena: Arena::default(),
        }
    }

    fn run(mut self) -> Result<RankProgram, SplitError> {
        for (id, node) in self.graph.nodes.iter() {
            if let Some(action) = self.action(node) {
                self.emit(id, node, action)?;
            }
        }
        self.program.arena_bytes = self.arena.peak_bytes();
        Ok(self.program)
    }

    /// What this rank does for a node, `None` when the node is another stage's.
    fn action(&mut self, node: &Node) -> Option<Action> {
        let d = &self.graph.deployment;
        if let Op::SendRecv { from, to } = node.op {
            let (from, to) = (u32::from(from), u32::from(to));
            return match self.stage {
                s if s == from => Some(Action::Send { to: d.peer_in_stage(self.rank, to) }),
                s if s == to => Some(Action::Receive { from: d.peer_in_stage(self.rank, from) }),
                _ => None,
            };
        }
        if u32::from(node.stage) != self.stage {
            return None;
        }
        let Some(axis) = axis_of(&node.op) else { return Some(Action::Compute) };
        let group = self.group_ids[&(axis, self.rank)];
        let next = self.sequences.entry(group).or_insert(0);
        let sequence = *next;
        *next += 1;
        Some(Action::Collective { group, sequence })
    }

    fn emit(&mut self, id: NodeId, node: &Node, action: Action) -> Result<(), SplitError> {
        let stream = if self.sides[id.0 as usize] { SIDE_STREAM } else { MAIN_STREAM };
        let (takes, gives) = (!matches!(action, Action::Receive { .. }), !matches!(action, Action::Send { .. }));
        let mut reads = Vec::with_capacity(node.inputs.len());
        if takes {
            for &t in &node.inputs {
                reads.push(self.operand(t)?);
            }
        }
        let index = self.program.commands.len();
        let waits = self.waits(&reads, stream);
        self.clock.issue(index, stream, &self.program.commands, &waits);
        let mut writes = Vec::with_capacity(node.outputs.len());
        if gives {
            for &t in &node.outputs {
                let buffer = self.result(t, index)?;
                self.writer[buffer.0 as usize] = Some(index);
                writes.push(buffer);
            }
        }
        self.program.commands.push(Command {
            id: CommandId { node: id, rank: self.rank },
            stream,
            waits,
            records: None,
            reads,
            writes,
            action,
        });
        self.retire(id, node, index, takes, gives);
        Ok(())
    }

    /// The buffer of an operand; weights, caches and inputs get theirs at first use.
    fn operand(&mut self, tensor: TensorId) -> Result<BufferId, SplitError> {
        let storage = self.graph.storage(tensor);
        if let Some(b) = self.buffer_of[storage.0 as usize] {
            return Ok(b);
        }
        let place = match self.graph.tensors[storage].kind {
            TensorKind::Weight(_) => Place::Weight,
            TensorKind::Cache { .. } => Place::KvPool,
            // The verifier saw to it that activations are produced before they are used, on this stage.
            _ => Place::Input,
        };
        let bytes = self.graph.local_bytes(storage, self.rank)?;
        self.add_buffer(storage, place, bytes)
    }

    fn result(&mut self, tensor: TensorId, command: usize) -> Result<BufferId, SplitError> {
        let storage = self.graph.storage(tensor);
        if let Some(b) = self.buffer_of[storage.0 as usize] {
            return Ok(b);
        }
        let bytes = self.stored_bytes(storage)?;
        self.arena.forget(|accesses| self.clock.before_everything(accesses, self.program.streams));
        let offset = self.arena.allocate(bytes, |accesses| self.clock.all_before(accesses, command));
        self.add_buffer(storage, Place::Arena { offset }, bytes)
    }

    /// Bytes of an activation: GPUs keep partial sums in f32, so that they are rounded once, after the sum.
    fn stored_bytes(&self, tensor: TensorId) -> Result<u64, SplitError> {
        let elements = (0..self.graph.tensors[tensor].shape.len())
            .try_fold(1u64, |product, dim| self.graph.local_size(tensor, dim, self.rank).map(|size| product.saturating_mul(size)))?;
        Ok(self.graph.local_bytes(tensor, self.rank)?.max(elements.saturating_mul(element_of(self.graph, tensor).bytes())))
    }

    fn add_buffer(&mut self, tensor: TensorId, place: Place, bytes: u64) -> Result<BufferId, SplitError> {
        let sizes = self.graph.local_sizes(tensor, self.rank)?;
        let id = self.program.buffers.push(Buffer { tensor, sizes, bytes, place });
        self.buffer_of[tensor.0 as usize] = Some(id);
        self.writer.push(None);
        if let Place::Arena { offset } = place {
            self.arena.bind(id, offset, bytes);
        }
        Ok(id)
    }

    /// Events to wait for: the writers of the operands on other streams that nothing yet orders before this command.
    fn waits(&mut self, reads: &[BufferId], stream: StreamId) -> Vec<EventId> {
        let mut writers: Vec<usize> = reads.iter().filter_map(|b| self.writer[b.0 as usize]).collect();
        writers.sort_unstable();
        writers.dedup();
        let mut waits = Vec::new();
        let mut seen = self.clock.stream_view(stream);
        // Latest writers first: waiting for one covers everything before it.
        for &w in writers.iter().rev() {
            let writer_stream = self.program.commands[w].stream;
            if writer_stream == stream || seen.covers(writer_stream, w) {
                continue;
            }
            let event = match self.program.commands[w].records {
                Some(e) => e,
                None => {
                    let e = EventId(self.program.events);
                    self.program.events += 1;
                    self.program.commands[w].records = Some(e);
                    e
                }
            };
            seen.join(&self.clock.view_after(w, writer_stream));
            waits.push(event);
        }
        waits.sort_unstable();
        waits
    }

    /// Records the accesses of a command and frees what nobody uses later.
    fn retire(&mut self, id: NodeId, node: &Node, index: usize, takes: bool, gives: bool) {
        let sides: [(&[TensorId], bool); 2] = [(&node.inputs, takes), (&node.outputs, gives)];
        for tensors in sides.into_iter().filter(|(_, used)| *used).map(|(t, _)| t) {
            for &t in tensors {
                let storage = self.graph.storage(t);
                let Some(buffer) = self.buffer_of[storage.0 as usize] else { continue };
                self.arena.access(buffer, index, self.program.commands[index].stream);
                if self.last_use[storage.0 as usize] <= id.0 {
                    self.arena.free(buffer);
                }
            }
        }
    }
}

/// The last node that uses each tensor's storage; named results are used to the end.
fn last_uses(graph: &Graph) -> Vec<u32> {
    let mut last = vec![0; graph.tensors.len()];
    for (id, node) in graph.nodes.iter() {
        for &t in node.inputs.iter().chain(&node.outputs) {
            last[graph.storage(t).0 as usize] = id.0;
        }
    }
    for (_, t) in &graph.outputs {
        last[graph.storage(*t).0 as usize] = u32::MAX;
    }
    last
}
