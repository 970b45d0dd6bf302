//! Runs programs on the CPU: any legal order of commands, real values, storage that is poisoned when it is reused.

use super::exchange::{ExchangeError, Member, exchange};
use super::finite::{self, NamedResult, NotFinite};
use super::memory::{RankMemory, StepMemory, cache_layer, poisoned, weight_of};
use super::output::{self, NamedValue};
use super::schedule::{Deadlock, Firing, Order, Schedule};
use crate::executor::{Executor, ProgramKey};
use crate::program::{BufferId, Command, Place, Program};
use crate::weights::{WeightSource, load_weight};
use moetwin_kernels::reference::collective::{CollectiveError, held_ranges, slice};
use moetwin_kernels::reference::{self, Array, CacheSlot, LocalContext, Real, ReferenceError, Turn};
use moetwin_models::graph::SplitError;
use moetwin_models::{Axis, Deployment, Graph, IdVec, Node, Op, RankId, Sequence, TensorKind};

/// What the host hands over for a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepInputs {
    /// New token ids of the whole batch, sequence after sequence.
    pub token_ids: Vec<i32>,
    /// Past and new tokens of every sequence; new counts as in the program's step.
    pub sequences: Vec<Sequence>,
}

/// Why a step cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// Ranks wait for each other.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
    /// A tensor that cannot be cut.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// An op that cannot be computed.
    #[error("{command}: {source}")]
    Op {
        /// The command, printed.
        command: String,
        /// Why.
        source: ReferenceError,
    },
    /// A collective that cannot be carried out.
    #[error("{command}: {source}")]
    Exchange {
        /// The first member's command, printed.
        command: String,
        /// Why.
        source: ExchangeError,
    },
    /// A result that cannot be put together.
    #[error("result {name}: {source}")]
    Output {
        /// The result.
        name: String,
        /// Why.
        source: CollectiveError,
    },
    /// Inputs that do not belong to the program.
    #[error("step inputs: {0}")]
    Inputs(String),
    /// A rank's device failed or did not answer in time.
    #[error("rank {}: {what}", .rank.0)]
    Device {
        /// The rank.
        rank: RankId,
        /// The command or phase, and what was said.
        what: String,
    },
    /// A result that is not finite. Every result before it was, so it comes from this command or from a weight that it reads.
    #[error(
        "rank {}, {command}: the first value that is not finite: {found}; every value before it was finite, so a weight of this command is not, or it overflows",
        .rank.0
    )]
    NotFinite {
        /// The rank.
        rank: RankId,
        /// The command, printed.
        command: String,
        /// The value.
        found: NotFinite,
    },
    /// A weight that cannot be had.
    #[error("weights: {0}")]
    Weights(String),
}

/// All ranks of a deployment in one process.
#[derive(Debug)]
pub struct ReferenceExecutor<T> {
    ranks: IdVec<RankId, RankMemory<T>>,
    /// KV pool rows of each sequence.
    capacity: usize,
    order: Order,
    programs: Vec<Program>,
}

impl<T: Real> ReferenceExecutor<T> {
    /// Ranks without weights, with room for `capacity` tokens of KV a sequence.
    pub fn new(ranks: u32, capacity: u32, order: Order) -> Self {
        Self { ranks: (0..ranks).map(|_| RankMemory::default()).collect(), capacity: capacity as usize, order, programs: Vec::new() }
    }

    /// Loads the weights of one rank that a program names and that are not loaded yet; returns how many.
    pub fn load_rank(&mut self, program: &Program, rank: RankId, weights: &dyn WeightSource) -> Result<usize, ExecuteError>
    where
        T: From<f32>,
    {
        let mut loaded = 0;
        for (_, buffer) in program.ranks[rank].buffers.iter() {
            let Some(weight) = weight_of(&program.graph, buffer) else { continue };
            if !self.ranks[rank].weights.contains_key(&weight) {
                let value = load_weight(weights, &program.graph, buffer.tensor, rank).map_err(|e| ExecuteError::Weights(e.to_string()))?;
                self.ranks[rank].weights.insert(weight, value);
                loaded += 1;
            }
        }
        Ok(loaded)
    }

    /// Allocates one rank's KV pool for a program's batch.
    pub fn allocate_kv(&mut self, program: &Program, rank: RankId) {
        let graph = &program.graph;
        let rows = graph.deployment.attention_sequences(&graph.step, rank).len() * self.rows_a_sequence(&graph.deployment);
        for (_, buffer) in program.ranks[rank].buffers.iter() {
            if let Some(layer) = cache_layer(graph, buffer) {
                let width = buffer.sizes[1..].iter().product::<u64>() as usize;
                let dtype = graph.tensors[buffer.tensor].dtype;
                self.ranks[rank].caches.entry(layer).or_insert_with(|| Array::poisoned(&[rows, width], dtype));
            }
        }
    }

    /// Cache rows that a rank keeps for each of its sequences: a share of the capacity where contexts are dealt out.
    fn rows_a_sequence(&self, d: &Deployment) -> usize {
        self.capacity.div_ceil(d.dcp as usize)
    }

    /// Runs one step of a program in an order of choice.
    pub fn step(&mut self, program: &Program, inputs: &StepInputs, order: Order) -> Result<Vec<NamedValue<T>>, ExecuteError> {
        self.check_inputs(program, inputs)?;
        let mut run = Run { executor: self, program, inputs, steps: program.ranks.iter().map(|(_, rp)| StepMemory::new(rp)).collect() };
        let mut schedule = Schedule::new(program, order);
        while let Some(firing) = schedule.next_firing()? {
            run.fire(&firing)?;
        }
        let Run { steps, .. } = run;
        output::collect(program, |rank, buffer| steps[rank].peek(buffer))
    }

    fn check_inputs(&self, program: &Program, inputs: &StepInputs) -> Result<(), ExecuteError> {
        inputs.check(program, self.capacity)
    }
}

impl StepInputs {
    /// Whether these inputs belong to a program, on a KV pool of `capacity` tokens a sequence.
    pub fn check(&self, program: &Program, capacity: usize) -> Result<(), ExecuteError> {
        let expected: Vec<u32> = program.graph.step.sequences.iter().map(|s| s.new).collect();
        let given: Vec<u32> = self.sequences.iter().map(|s| s.new).collect();
        if expected != given {
            return Err(ExecuteError::Inputs(format!("new tokens a sequence are {given:?}, the program computes {expected:?}")));
        }
        if self.token_ids.len() as u64 != program.graph.step.tokens() {
            return Err(ExecuteError::Inputs(format!("{} token ids for {} new tokens", self.token_ids.len(), program.graph.step.tokens())));
        }
        match self.sequences.iter().position(|s| s.past as usize + s.new as usize > capacity) {
            Some(i) => Err(ExecuteError::Inputs(format!("sequence {i} needs more than the pool's {} tokens", capacity))),
            None => Ok(()),
        }
    }
}

impl<T: Real + From<f32>> Executor for ReferenceExecutor<T> {
    type Number = T;

    fn load(&mut self, program: &Program, rank: RankId, weights: &dyn WeightSource) -> Result<(), ExecuteError> {
        self.load_rank(program, rank, weights).map(|_| ())
    }

    fn prepare(&mut self, program: Program) -> Result<ProgramKey, ExecuteError> {
        for rank in program.ranks.ids() {
            self.allocate_kv(&program, rank);
        }
        self.programs.push(program);
        Ok(ProgramKey(self.programs.len() - 1))
    }

    fn program(&self, key: ProgramKey) -> &Program {
        &self.programs[key.0]
    }

    fn run(&mut self, key: ProgramKey, inputs: &StepInputs) -> Result<Vec<NamedValue<T>>, ExecuteError> {
        // The programs are set aside while the ranks' memory changes.
        let programs = std::mem::take(&mut self.programs);
        let values = self.step(&programs[key.0], inputs, self.order);
        self.programs = programs;
        values
    }
}

/// A step in progress.
struct Run<'a, T> {
    executor: &'a mut ReferenceExecutor<T>,
    program: &'a Program,
    inputs: &'a StepInputs,
    steps: IdVec<RankId, StepMemory<T>>,
}

impl<T: Real> Run<'_, T> {
    fn fire(&mut self, firing: &Firing) -> Result<(), ExecuteError> {
        match firing {
            Firing::Compute(rank, index) => self.compute(*rank, *index),
            Firing::Collective(_, members) => self.collective(members),
            Firing::Transfer { send, receive } => {
                let value = self.operand(send.0, self.command(*send).reads[0])?;
                let into = self.command(*receive).writes[0];
                self.clobber(receive.0, into);
                self.steps[receive.0].write(into, value);
                Ok(())
            }
        }
    }

    fn command(&self, (rank, index): (RankId, usize)) -> &Command {
        &self.program.ranks[rank].commands[index]
    }

    fn print(&self, command: &Command) -> String {
        let graph = &self.program.graph;
        let name = graph.nodes[command.id.node].outputs.first().map_or("", |t| graph.tensors[*t].name.as_str());
        format!("{} ({name})", command.id)
    }

    /// The results of a command with their tensors' names, but for caches, most of whose rows nobody has written yet.
    fn named<'v>(&self, rank: RankId, command: &Command, results: &'v [Array<T>]) -> Vec<NamedResult<'_, 'v, T>> {
        let buffers = command.writes.iter().map(|&b| &self.program.ranks[rank].buffers[b]);
        let kept = buffers.zip(results).enumerate().filter(|(_, (buffer, _))| buffer.place != Place::KvPool);
        kept.map(|(index, (buffer, value))| NamedResult { index, tensor: &self.program.graph.tensors[buffer.tensor].name, value }).collect()
    }

    fn clobber(&mut self, rank: RankId, buffer: BufferId) {
        self.steps[rank].clobber(&self.program.ranks[rank], buffer);
    }

    fn collective(&mut self, members: &[(RankId, usize)]) -> Result<(), ExecuteError> {
        let node = self.command(members[0]).id.node;
        let mut parts = Vec::with_capacity(members.len());
        for &(rank, index) in members {
            let command = self.command((rank, index)).clone();
            command.writes.iter().for_each(|&b| self.clobber(rank, b));
            let inputs = command.reads.iter().map(|&b| self.operand(rank, b)).collect::<Result<_, _>>()?;
            let outputs = command.writes.iter().map(|&b| self.fresh(rank, b)).collect();
            parts.push(Member { rank, inputs, outputs });
        }
        let command = || self.print(self.command(members[0]));
        exchange(&self.program.graph, node, &mut parts).map_err(|source| ExecuteError::Exchange { command: command(), source })?;
        // What is wrong with a weight is nobody else's to report.
        let computed = |rank: RankId, b: &BufferId| self.program.ranks[rank].buffers[*b].place != Place::Weight;
        let finite = parts.iter().zip(members).all(|(part, &member)| {
            let reads = self.command(member).reads.iter().zip(&part.inputs);
            reads.filter(|(b, _)| computed(part.rank, b)).all(|(_, value)| finite::is_finite(value))
        });
        for (part, &(rank, index)) in parts.into_iter().zip(members) {
            let command = self.command((rank, index));
            finite::check_exchanged(rank, || self.print(command), finite, &self.named(rank, command, &part.outputs))?;
            let writes = command.writes.clone();
            writes.into_iter().zip(part.outputs).for_each(|(b, value)| self.steps[rank].write(b, value));
        }
        Ok(())
    }

    fn compute(&mut self, rank: RankId, index: usize) -> Result<(), ExecuteError> {
        let program = self.program;
        let command = &program.ranks[rank].commands[index];
        let node = &program.graph.nodes[command.id.node];
        command.writes.iter().for_each(|&b| self.clobber(rank, b));
        if let Op::Slice { dim, .. } = node.op {
            let whole = self.operand(rank, command.reads[0])?;
            let mut part = self.fresh(rank, command.writes[0]);
            let kept = held_ranges(&program.graph, node.inputs[0], node.outputs[0], dim, rank)?;
            slice(&whole, dim, &kept, &mut part)
                .map_err(|source| ExecuteError::Exchange { command: self.print(command), source: source.into() })?;
            self.steps[rank].write(command.writes[0], part);
            return Ok(());
        }
        // Caches are updated in place: their storage is handed over as the result, and is no operand at the same time.
        let mut outputs: Vec<Array<T>> = command.writes.iter().map(|&b| self.take_or_fresh(rank, b)).collect();
        let owned: Vec<Option<Array<T>>> = command.reads.iter().map(|&b| self.owned_operand(rank, b)).collect::<Result<_, _>>()?;
        let context = self.context(node, rank)?;
        let vacated = Array::default();
        let operands: Vec<&Array<T>> = command
            .reads
            .iter()
            .zip(&owned)
            .map(|(&b, own)| match own {
                Some(value) => value,
                None if command.writes.contains(&b) => &vacated,
                None => self.resident(rank, b).expect("owned_operand saw it"),
            })
            .collect();
        let context = LocalContext { sequences: &context.sequences, expert_slots: &context.expert_slots, ..context.plain };
        reference::run(&node.op, &context, &operands, &mut outputs)
            .map_err(|source| ExecuteError::Op { command: self.print(command), source })?;
        finite::check(node, rank, || self.print(command), &self.named(rank, command, &outputs))?;
        for (&b, value) in command.writes.iter().zip(outputs) {
            self.put(rank, b, value);
        }
        Ok(())
    }

    /// The value of a buffer that lives in this step's arena, a weight or a cache, without copying it.
    fn resident(&self, rank: RankId, id: BufferId) -> Option<&Array<T>> {
        let buffer = &self.program.ranks[rank].buffers[id];
        let memory = &self.executor.ranks[rank];
        match buffer.place {
            Place::Arena { .. } => self.steps[rank].peek(id),
            Place::Weight => weight_of(&self.program.graph, buffer).and_then(|w| memory.weights.get(&w)),
            Place::KvPool => cache_layer(&self.program.graph, buffer).and_then(|l| memory.caches.get(&l)),
            Place::Input => None,
        }
    }

    /// The value of a buffer that has to be made: step inputs, and the poison that an unwritten buffer holds.
    fn owned_operand(&self, rank: RankId, id: BufferId) -> Result<Option<Array<T>>, ExecuteError> {
        let buffer = &self.program.ranks[rank].buffers[id];
        if self.resident(rank, id).is_some() {
            return Ok(None);
        }
        match (&self.program.graph.tensors[buffer.tensor].kind, buffer.place) {
            (TensorKind::TokenIds, _) => Ok(Some(self.rows_of(rank, id, &self.inputs.token_ids)?)),
            (TensorKind::Positions, _) => Ok(Some(self.rows_of(rank, id, &positions(&self.inputs.sequences))?)),
            // Its storage is among the results.
            (_, Place::KvPool) => Ok(None),
            (_, Place::Weight) => {
                Err(ExecuteError::Weights(format!("{} is not loaded on rank {}", self.program.graph.tensors[buffer.tensor].name, rank.0)))
            }
            _ => Ok(Some(poisoned(&self.program.graph, buffer))),
        }
    }

    fn operand(&self, rank: RankId, id: BufferId) -> Result<Array<T>, ExecuteError> {
        match self.owned_operand(rank, id)? {
            Some(value) => Ok(value),
            None => Ok(self.resident(rank, id).cloned().unwrap_or_default()),
        }
    }

    fn fresh(&self, rank: RankId, id: BufferId) -> Array<T> {
        poisoned(&self.program.graph, &self.program.ranks[rank].buffers[id])
    }

    fn take_or_fresh(&mut self, rank: RankId, id: BufferId) -> Array<T> {
        let buffer = &self.program.ranks[rank].buffers[id];
        let cache = cache_layer(&self.program.graph, buffer).and_then(|l| self.executor.ranks[rank].caches.get_mut(&l));
        match cache {
            Some(cache) => std::mem::take(cache),
            None => self.fresh(rank, id),
        }
    }

    fn put(&mut self, rank: RankId, id: BufferId, value: Array<T>) {
        match cache_layer(&self.program.graph, &self.program.ranks[rank].buffers[id]) {
            Some(layer) => {
                self.executor.ranks[rank].caches.insert(layer, value);
            }
            None => self.steps[rank].write(id, value),
        }
    }

    /// A rank's rows of a per-token input of the whole batch.
    fn rows_of(&self, rank: RankId, id: BufferId, batch: &[i32]) -> Result<Array<T>, ExecuteError> {
        let graph = &self.program.graph;
        let rows = graph.local_shape(self.program.ranks[rank].buffers[id].tensor, rank)?[0].clone();
        let first = first_token_of_replica(graph, rank);
        let local = &batch[first + rows.start as usize..first + rows.end as usize];
        Ok(Array::int(&[local.len()], local.to_vec()))
    }

    fn context(&self, node: &Node, rank: RankId) -> Result<OwnedContext, ExecuteError> {
        let graph = &self.program.graph;
        let d = &graph.deployment;
        let first_input = node.inputs.first().copied();
        let by_attention_group = first_input.is_some_and(|t| graph.tensors[t].layout.get(Axis::AttnDp).is_some());
        let range = if by_attention_group { d.attention_sequences(&graph.step, rank) } else { d.replica_sequences(&graph.step, rank) };
        let held = d.attention_sequences(&graph.step, rank);
        let turn = Turn { index: d.axis_index(Axis::Dcp, rank) as usize, of: d.dcp as usize };
        let rows = self.executor.rows_a_sequence(d);
        let slot = |i: usize| CacheSlot { sequence: self.inputs.sequences[i], cache_start: i.saturating_sub(held.start) * rows, turn };
        let sequences = range.map(slot).collect();
        let mut plain = LocalContext { logits: graph.step.logits, turn, ..LocalContext::default() };
        let mut expert_slots = Vec::new();
        match node.op {
            Op::Embed => plain.vocab_start = graph.local_shape(node.inputs[1], rank)?[0].start as usize,
            Op::Linear { .. } => {
                plain.adds_bias = graph.tensors[node.inputs[1]].layout.shard_axis(1).is_none_or(|a| d.axis_index(a, rank) == 0)
            }
            Op::Experts { .. } => {
                plain.expert_start = graph.local_shape(node.inputs[3], rank)?[0].start as usize;
                plain.adds_bias = d.axis_index(Axis::MoeTp, rank) == 0;
            }
            Op::PlaceExperts => {
                plain.first_token = graph.local_shape(node.inputs[0], rank)?[0].start as usize;
                if let Some(p) = &d.placement {
                    let experts = p.physical_to_logical.iter().max().map_or(0, |m| m + 1);
                    expert_slots = (0..experts).map(|e| p.slots(e).collect()).collect();
                }
            }
            _ => {}
        }
        Ok(OwnedContext { sequences, expert_slots, plain })
    }
}

/// A [`LocalContext`] with the lists it borrows.
struct OwnedContext {
    sequences: Vec<CacheSlot>,
    expert_slots: Vec<Vec<u32>>,
    plain: LocalContext<'static>,
}

/// Index of a replica's first token in the whole batch.
pub fn first_token_of_replica(graph: &Graph, rank: RankId) -> usize {
    let start = graph.deployment.replica_sequences(&graph.step, rank).start;
    graph.step.slice(0..start).tokens() as usize
}

/// Position of every new token in its sequence.
pub fn positions(sequences: &[Sequence]) -> Vec<i32> {
    sequences.iter().flat_map(|s| s.past..s.past + s.new).map(|p| i32::try_from(p).unwrap_or(i32::MAX)).collect()
}
