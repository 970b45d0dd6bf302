//! Carrying out passes of a program on a rank's GPU: inputs, commands issued or replayed, results.

use super::exchange::{Part, Places, parts, place_in};
use super::gpu::{Address, Call, Gpu, GpuError};
use super::progress::What;
use super::rank::{Loaded, OWN_LIMIT, PartOfResult, Rank, int_bytes};
use moetwin_kernels::launch::{Arg, Element, Launch, Launches, carried_by, element_of, launches_with};
use moetwin_models::{Axis, Graph, Node, Op, TensorId, TensorKind};
use moetwin_runtime::init::InitPhase;
use moetwin_runtime::reference::{StepInputs, first_token_of_replica, positions};
use moetwin_runtime::{Action, Command};
use std::sync::Arc;

/// A collective, or a slice, ready to be carried out.
struct Exchange {
    list: Vec<Part>,
    communicator: u32,
    /// The rank's place in the group.
    index: u32,
}

impl<G: Gpu> Rank<G> {
    /// Runs one step. The first run is eager, which also warms up the communicators; later ones replay where the program is captured.
    pub(crate) fn run(&mut self, key: usize, inputs: &StepInputs) -> Result<Vec<PartOfResult>, GpuError> {
        let mut loaded = self.programs.swap_remove(key);
        let result = self.run_loaded(&mut loaded, inputs);
        self.programs.push(loaded);
        let last = self.programs.len() - 1;
        self.programs.swap(key, last);
        result
    }

    fn run_loaded(&mut self, loaded: &mut Loaded, inputs: &StepInputs) -> Result<Vec<PartOfResult>, GpuError> {
        let phase = if loaded.capture && !loaded.warm { InitPhase::WarmUp } else { InitPhase::Serve };
        self.order = u32::MAX;
        self.begin(phase, What::Named("write inputs"), false);
        self.write_inputs(loaded, inputs)?;
        let mut eager = false;
        match loaded.captured {
            Some(graph) => {
                self.begin(phase, What::Named("replay"), false);
                self.gpu.replay(graph)?;
            }
            None if loaded.capture && loaded.warm => {
                self.begin(InitPhase::Capture, What::Named("begin capture"), false);
                self.gpu.begin_capture()?;
                self.issue(loaded, InitPhase::Capture)?;
                self.begin(InitPhase::Capture, What::Named("end capture"), false);
                let graph = self.gpu.end_capture()?;
                self.graphs.push(graph);
                loaded.captured = Some(graph);
                self.begin(phase, What::Named("replay"), false);
                self.gpu.replay(graph)?;
            }
            None => {
                eager = true;
                self.issue(loaded, phase)?;
            }
        }
        self.begin(phase, What::Named("wait for the pass"), true);
        if let Err(e) = self.gpu.synchronize(self.limits.deadline * OWN_LIMIT) {
            self.note_unfinished(loaded, phase, eager);
            return Err(e);
        }
        loaded.warm = true;
        self.begin(phase, What::Named("read results"), false);
        self.check_device(loaded, phase)?;
        self.results(loaded)
    }

    /// After a pass that did not end: notes the command where it stopped, which is known of an eager pass.
    fn note_unfinished(&mut self, loaded: &Loaded, phase: InitPhase, eager: bool) {
        let Some(mark) = eager.then(|| self.gpu.unfinished()).flatten() else { return };
        let Some(command) = loaded.program.ranks[self.rank].commands.get(mark as usize) else { return };
        self.order = mark;
        self.begin(phase, What::Command(Arc::clone(&loaded.program), command.id.node), command.action != Action::Compute);
    }

    pub(super) fn write_inputs(&mut self, loaded: &Loaded, inputs: &StepInputs) -> Result<(), GpuError> {
        let graph = &loaded.program.graph;
        let first = first_token_of_replica(graph, self.rank);
        let all_positions = positions(&inputs.sequences);
        for (id, buffer) in loaded.program.ranks[self.rank].buffers.iter() {
            let batch = match graph.tensors[buffer.tensor].kind {
                TensorKind::TokenIds => &inputs.token_ids,
                TensorKind::Positions => &all_positions,
                _ => continue,
            };
            let rows = graph.local_shape(buffer.tensor, self.rank).map_err(|e| GpuError::new("inputs", e.to_string()))?[0].clone();
            self.gpu.write(loaded.addresses[id], &int_bytes(&batch[first + rows.start as usize..first + rows.end as usize]))?;
        }
        let d = &graph.deployment;
        let own = d.attention_sequences(&graph.step, self.rank);
        let replica = d.replica_sequences(&graph.step, self.rank);
        for (address, range) in [(loaded.sequences, own.clone()), (loaded.replica_sequences, replica)] {
            let mut row = 0;
            let mut table = Vec::new();
            for i in range {
                let s = inputs.sequences[i];
                let cache_start = i.saturating_sub(own.start) as u32 * self.limits.capacity;
                table.extend([row, s.new, s.past, cache_start].map(|v| v as i32));
                row += s.new;
            }
            self.gpu.write(address, &int_bytes(&table))?;
        }
        Ok(())
    }

    pub(super) fn issue(&mut self, loaded: &Loaded, phase: InitPhase) -> Result<(), GpuError> {
        let program = Arc::clone(&loaded.program);
        for (mark, command) in (0u32..).zip(&program.ranks[self.rank].commands) {
            // NCCL connects at the first call, which waits for peers.
            self.begin(phase, What::Command(Arc::clone(&program), command.id.node), command.action != Action::Compute);
            for event in &command.waits {
                self.gpu.wait(command.stream.0, event.0)?;
            }
            self.command(loaded, command)?;
            if let Some(event) = command.records {
                self.gpu.record(command.stream.0, event.0)?;
            }
            if phase != InitPhase::Capture {
                self.gpu.mark(command.stream.0, mark)?;
            }
        }
        Ok(())
    }

    pub(super) fn command(&mut self, loaded: &Loaded, command: &Command) -> Result<(), GpuError> {
        self.command_on(loaded, command, command.stream.0)
    }

    /// Carries out a command on a stream, which need not be its own.
    pub(super) fn command_on(&mut self, loaded: &Loaded, command: &Command, stream: u32) -> Result<(), GpuError> {
        let graph = &loaded.program.graph;
        let node = &graph.nodes[command.id.node];
        let (mut inputs, outputs) = operands(loaded, command);
        match command.action {
            Action::Compute if !matches!(node.op, Op::Slice { .. }) => {
                inputs.extend(carried(loaded, command));
                let plan =
                    launches_with(graph, command.id.node, self.rank, &loaded.tuning).map_err(|e| GpuError::new("launch", e.to_string()))?;
                let places =
                    Places { inputs: &inputs, outputs: &outputs, scratch: loaded.scratch[command.stream.0 as usize], packing: None };
                self.launch_all(loaded, stream, &plan, &places, node_is_local(graph, node))
            }
            Action::Compute | Action::Collective { .. } => {
                let Exchange { list, communicator, index } = self.exchange(loaded, command, stream)?;
                self.carry_out(stream, communicator, index, list)
            }
            Action::Send { .. } | Action::Receive { .. } if self.stand_in.is_some() => self.stand_in_for(stream, &[]),
            Action::Send { to } => {
                let count =
                    graph.local_sizes(node.inputs[0], self.rank).map_err(|e| GpuError::new("send", e.to_string()))?.iter().product();
                let call = Call::Send { from: inputs[0], count, peer: to.0 };
                self.gpu.communicate(stream, loaded.communicators.world, element_of(graph, node.inputs[0]), &[call])
            }
            Action::Receive { from } => {
                let count =
                    graph.local_sizes(node.outputs[0], self.rank).map_err(|e| GpuError::new("receive", e.to_string()))?.iter().product();
                let call = Call::Receive { to: outputs[0], count, peer: from.0 };
                self.gpu.communicate(stream, loaded.communicators.world, element_of(graph, node.inputs[0]), &[call])
            }
        }
    }

    /// How a collective, or a slice, is carried out on a stream.
    fn exchange(&mut self, loaded: &Loaded, command: &Command, stream: u32) -> Result<Exchange, GpuError> {
        let graph = &loaded.program.graph;
        let node = &graph.nodes[command.id.node];
        let (inputs, outputs) = operands(loaded, command);
        let mut places = Places { inputs: &inputs, outputs: &outputs, scratch: loaded.scratch[command.stream.0 as usize], packing: None };
        let Action::Collective { group, .. } = command.action else {
            return Ok(Exchange { list: parts(graph, node, self.rank, &[], &places)?.0, communicator: 0, index: 0 });
        };
        let members = &loaded.program.groups[group].ranks;
        let communicator = loaded.communicators.groups[group.0 as usize];
        places.packing = self.packing_of(loaded, command.id.node, members)?;
        let (mut list, _) = parts(graph, node, self.rank, members, &places)?;
        // Calls of one communicator share its window, so they must be ordered: by one stream.
        if stream == 0 && loaded.communicators.one_shot.contains(&communicator) {
            self.take_one_shot(communicator, command.id.node, &mut list)?;
        }
        let index = place_in(self.rank, members)?;
        Ok(Exchange { list, communicator, index })
    }

    /// Makes ready what a command needs before any capture and any wait for peers: captured code may not allocate, and a kernel that is
    /// loaded while ranks wait for each other may wait for them.
    pub(super) fn ready(&mut self, loaded: &Loaded, command: &Command) -> Result<(), GpuError> {
        let graph = &loaded.program.graph;
        match command.action {
            Action::Compute if !matches!(graph.nodes[command.id.node].op, Op::Slice { .. }) => {
                let plan = launches_with(graph, command.id.node, self.rank, &loaded.tuning);
                plan.iter().flat_map(|p| &p.launches).try_for_each(|launch| self.make_ready(launch))
            }
            Action::Compute | Action::Collective { .. } => {
                let list = self.exchange(loaded, command, command.stream.0)?.list;
                list.iter().try_for_each(|part| match part {
                    Part::Kernel(launch, _) | Part::Meet(launch, _) => self.gpu.prepare(launch),
                    Part::Calls(..) | Part::Copy { .. } | Part::Fill { .. } => Ok(()),
                })
            }
            Action::Send { .. } | Action::Receive { .. } => Ok(()),
        }
    }

    fn carry_out(&mut self, stream: u32, communicator: u32, index: u32, list: Vec<Part>) -> Result<(), GpuError> {
        for part in list {
            match part {
                Part::Calls(_, calls) if calls.is_empty() => {}
                Part::Calls(element, calls) if self.stand_in.is_some() => self.stand_in_for(stream, &own_copies(element, &calls, index))?,
                Part::Calls(element, calls) => self.gpu.communicate(stream, communicator, element, &calls)?,
                Part::Copy { from, to, bytes } => self.gpu.copy(stream, from, to, bytes)?,
                Part::Fill { to, byte, bytes } => self.gpu.fill(stream, to, byte, bytes)?,
                Part::Kernel(launch, args) => self.gpu.launch(stream, &launch, &args)?,
                Part::Meet(launch, args) => self.gpu.meet(stream, communicator, &launch, &args)?,
            }
        }
        Ok(())
    }

    /// Copies the rank's own parts to where a collective would put them, and takes as long as was stated.
    fn stand_in_for(&mut self, stream: u32, copies: &[(Address, Address, u64)]) -> Result<(), GpuError> {
        let mut ns = self.stand_in.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        let nothing = if ns > 0 { &[(0, 0, 0)][..] } else { &[] };
        for &(from, to, bytes) in if copies.is_empty() { nothing } else { copies } {
            // 256 threads of 16 bytes a block, no more blocks than multiprocessors.
            let blocks = bytes.div_ceil(4096).clamp(1, 128) as u32;
            let args = vec![Arg::U64(from), Arg::U64(to), Arg::U64(bytes), Arg::U64(ns)];
            let launch =
                Launch { source: "measure.cu", kernel: "stand_in", grid: (blocks, 1, 1), block: 256, shared_bytes: 0, args, product: None };
            self.gpu.launch(stream, &launch, &[from, to, bytes, ns])?;
            ns = 0;
        }
        Ok(())
    }

    fn launch_all(
        &mut self,
        loaded: &Loaded,
        stream: u32,
        plan: &Launches,
        places: &Places<'_>,
        own_sequences: bool,
    ) -> Result<(), GpuError> {
        for launch in &plan.launches {
            let mut cells = Vec::with_capacity(launch.args.len());
            for arg in &launch.args {
                cells.push(match arg {
                    Arg::Input(i) => places.inputs[*i],
                    Arg::InputAt { index, offset } => places.inputs[*index] + offset,
                    Arg::Output(i) => places.outputs[*i],
                    Arg::Scratch { offset } => places.scratch + offset,
                    Arg::Table(table) => self.table(table)?,
                    Arg::Sequences => {
                        if own_sequences {
                            loaded.sequences
                        } else {
                            loaded.replica_sequences
                        }
                    }
                    Arg::Fault => self.shared.fault.unwrap_or(0),
                    Arg::Null => 0,
                    Arg::I32(v) => u64::from(*v as u32),
                    Arg::U64(v) => *v,
                    Arg::F32(v) => u64::from(v.to_bits()),
                });
            }
            if let (Some(product), Some(workspaces), &[x, w, bias, y, ..]) = (&launch.product, self.workspaces, cells.as_slice())
                && self.gpu.multiply(stream, product, [x, w, bias, y], workspaces[stream as usize])?
            {
                continue;
            }
            self.gpu.launch(stream, launch, &cells)?;
        }
        Ok(())
    }

    fn results(&mut self, loaded: &Loaded) -> Result<Vec<PartOfResult>, GpuError> {
        let program = &loaded.program;
        let mut results = Vec::new();
        for (_, tensor) in &program.graph.outputs {
            let Some((buffer, b)) = program.ranks[self.rank].buffers.iter().find(|(_, b)| b.tensor == *tensor) else { continue };
            let element = element_of(&program.graph, *tensor);
            let mut bytes = vec![0; (b.sizes.iter().product::<u64>() * element.bytes()) as usize];
            self.gpu.read(loaded.addresses[buffer], &mut bytes)?;
            results.push(PartOfResult { buffer, sizes: b.sizes.iter().map(|&n| n as usize).collect(), element, bytes });
        }
        Ok(results)
    }
}

/// What of a group of calls a member could do by itself: from, to and bytes.
fn own_copies(element: Element, calls: &[Call], index: u32) -> Vec<(Address, Address, u64)> {
    let own = |call: &Call| match *call {
        Call::AllReduce { from, to, count } => Some((from, to, count * element.bytes())),
        Call::Broadcast { from, to, count, root } | Call::Reduce { from, to, count, root } => {
            (root == index).then_some((from, to, count * element.bytes()))
        }
        Call::Send { .. } | Call::Receive { .. } => None,
    };
    calls.iter().filter_map(own).collect()
}

/// Whether an op's sequences are the rank's own rather than its replica's.
fn node_is_local(graph: &Graph, node: &Node) -> bool {
    let cut = |t: &TensorId| graph.tensors[*t].layout.get(Axis::AttnDp).is_some();
    graph.deployment.dp_attention == 1 || node.inputs.iter().any(cut)
}

/// Where a command's operands and results are.
fn operands(loaded: &Loaded, command: &Command) -> (Vec<Address>, Vec<Address>) {
    (command.reads.iter().map(|b| loaded.addresses[*b]).collect(), command.writes.iter().map(|b| loaded.addresses[*b]).collect())
}

/// Operands of the node that a command's kernels carry beside its own.
fn carried(loaded: &Loaded, command: &Command) -> Vec<Address> {
    let (graph, rank) = (&loaded.program.graph, command.id.rank);
    let Some(node) = carried_by(graph, command.id.node, rank) else { return Vec::new() };
    let commands = &loaded.program.ranks[rank].commands;
    let reads = commands.iter().find(|c| c.id.node == node).map(|c| c.reads.iter());
    reads.into_iter().flatten().map(|b| loaded.addresses[*b]).collect()
}
