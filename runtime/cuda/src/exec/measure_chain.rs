//! What each command adds to a captured pass.
//!
//! Commands stand in an order in which one stream can carry out all of them. A *window* is a graph of a few commands in that order; a command's
//! time is by how much a window that ends with it takes longer than the one that ends before it. Windows of neighbouring commands are replayed in
//! turn, so that clocks and heat are the same for both, and each begins with reads that leave nothing of a replay before it in the cache.
//!
//! Inside a window values are whatever memory holds, since what comes before it is left out. That changes no time but that of what follows the
//! choice of experts, so choices stay as a whole pass made them: integers have places of their own, and routers write elsewhere.

use super::gpu::{Address, Captured, Gpu, GpuError};
use super::measure::{CommandTimes, LONGEST_HOLD};
use super::progress::What;
use super::rank::{Loaded, Rank};
use moetwin_kernels::launch::{Arg, Element, Launch, element_of};
use moetwin_models::{NodeId, Op};
use moetwin_runtime::init::InitPhase;
use moetwin_runtime::{BufferId, Place, Program};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Commands ahead of the first that a window is asked about: operands are in the cache as in a pass, and a kernel has one to follow.
const AHEAD: usize = 4;
/// Commands that share their windows' beginning.
const BLOCK: usize = 8;
/// Bytes read ahead of a window: more than the L2 of any GPU of today (126 MB on GB202).
const READ_BYTES: u64 = 192 << 20;
/// Threads of a block that reads, and bytes of one's load.
const READ_BLOCK: (u32, u64) = (512, 16);
/// Blocks that read: more than any GPU has multiprocessors, so that all of them read.
const READ_BLOCKS: u32 = 512;
/// How long streams are held at first so that the host is ahead; doubled where it was late.
const HOLD: Duration = Duration::from_micros(600);

/// Places of integers while a pass is measured, and where routers write meanwhile.
pub(super) struct Pinned {
    before: Vec<(BufferId, Address)>,
    elsewhere: BTreeMap<BufferId, Address>,
}

impl Pinned {
    /// Puts everything back.
    pub(super) fn release(self, loaded: &mut Loaded) {
        self.before.into_iter().for_each(|(buffer, address)| loaded.addresses[buffer] = address);
    }
}

/// Nodes that any rank has a command of, in the order of launches: windows are the same on all ranks, so that each meets its peers.
fn nodes(program: &Program) -> Vec<NodeId> {
    let all = program.ranks.iter().flat_map(|(_, rp)| rp.commands.iter().map(|c| c.id.node));
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

impl<G: Gpu> Rank<G> {
    /// Gives integers places that no other value shares, and routers others to write to. A pass that runs next fills the former.
    pub(super) fn pin(&mut self, loaded: &mut Loaded) -> Result<Pinned, GpuError> {
        let program = Arc::clone(&loaded.program);
        let rp = &program.ranks[self.rank];
        let mut pinned = Pinned { before: Vec::new(), elsewhere: BTreeMap::new() };
        let routed: BTreeSet<BufferId> = rp
            .commands
            .iter()
            .filter(|c| matches!(program.graph.nodes[c.id.node].op, Op::Route { .. }))
            .flat_map(|c| c.writes.iter().copied())
            .collect();
        for (id, buffer) in rp.buffers.iter() {
            let element = element_of(&program.graph, buffer.tensor);
            let bytes = buffer.sizes.iter().product::<u64>() * element.bytes();
            let held = matches!(buffer.place, Place::Arena { .. }) && (element == Element::I32 || routed.contains(&id));
            if held && bytes > 0 {
                let place = self.allocate(bytes)?;
                pinned.before.push((id, std::mem::replace(&mut loaded.addresses[id], place)));
                if routed.contains(&id) {
                    pinned.elsewhere.insert(id, self.allocate(bytes)?);
                }
            }
        }
        Ok(pinned)
    }

    /// Issues the commands of nodes on the first stream.
    fn issue_chain(&mut self, loaded: &mut Loaded, pinned: &Pinned, of: &[NodeId]) -> Result<(), GpuError> {
        let program = Arc::clone(&loaded.program);
        let (Some(first), Some(last)) = (of.first(), of.last()) else { return Ok(()) };
        for command in program.ranks[self.rank].commands.iter().filter(|c| (*first..=*last).contains(&c.id.node)) {
            self.begin(InitPhase::Serve, What::Command(Arc::clone(&program), command.id.node), false);
            let mut moved = Vec::new();
            for buffer in &command.writes {
                if let Some(&to) = pinned.elsewhere.get(buffer) {
                    moved.push((*buffer, std::mem::replace(&mut loaded.addresses[*buffer], to)));
                }
            }
            self.command_on(loaded, command, 0)?;
            moved.into_iter().for_each(|(buffer, address)| loaded.addresses[buffer] = address);
        }
        Ok(())
    }

    /// Replays of the pass captured on one stream, picoseconds, each.
    pub(super) fn time_one_stream(
        &mut self,
        loaded: &mut Loaded,
        pinned: &Pinned,
        meeting: Address,
        replays: u32,
    ) -> Result<Vec<u64>, GpuError> {
        let all = nodes(&loaded.program);
        self.gpu.begin_capture()?;
        self.issue_chain(loaded, pinned, &all)?;
        let graph = self.gpu.end_capture()?;
        self.keep(graph);
        // The first replay also uploads the graph.
        let times = self.time_replays(loaded, graph, meeting, replays + 1)?;
        self.drop_graphs(1);
        Ok(times.into_iter().skip(1).collect())
    }

    /// Times every command.
    pub(super) fn time_windows(
        &mut self,
        loaded: &mut Loaded,
        pinned: &Pinned,
        meeting: Address,
        repetitions: u32,
        times: &mut [CommandTimes],
    ) -> Result<(), GpuError> {
        let (program, all) = (Arc::clone(&loaded.program), nodes(&loaded.program));
        // What a first launch loads cannot be loaded in a capture.
        self.read_through()?;
        self.settle()?;
        let mut hold = HOLD;
        for first in (0..all.len()).step_by(BLOCK) {
            let (begin, end) = (first.saturating_sub(AHEAD), (first + BLOCK).min(all.len()));
            let windows = first..=end;
            let count = windows.clone().count();
            let mut graphs = Vec::new();
            for until in windows {
                self.gpu.begin_capture()?;
                self.read_through()?;
                self.issue_chain(loaded, pinned, &all[begin..until])?;
                let graph = self.gpu.end_capture()?;
                self.keep(graph);
                graphs.push(graph);
            }
            let taken = self.time_in_turn(loaded, &graphs, meeting, repetitions, &mut hold)?;
            self.drop_graphs(count);
            for (i, command) in program.ranks[self.rank].commands.iter().enumerate() {
                let Some(place) = all[first..end].iter().position(|n| *n == command.id.node) else { continue };
                for (late, all) in &taken {
                    let ps = all[place + 1] as i64 - all[place] as i64;
                    if *late { &mut times[i].late_ps } else { &mut times[i].ps }.push(ps);
                }
            }
        }
        Ok(())
    }

    /// Replays graphs in turn; of every round, whether the host was late, and what each took.
    fn time_in_turn(
        &mut self,
        loaded: &Loaded,
        graphs: &[Captured],
        meeting: Address,
        repetitions: u32,
        hold: &mut Duration,
    ) -> Result<Vec<(bool, Vec<u64>)>, GpuError> {
        let mut rounds = Vec::new();
        // The first round also uploads the graphs.
        for round in 0..=repetitions {
            let begin = (self.notes.now)();
            self.hold(*hold)?;
            for (graph, stamp) in graphs.iter().zip((0u32..).step_by(2)) {
                self.meet(loaded, meeting)?;
                self.gpu.stamp(0, stamp)?;
                self.gpu.replay(*graph)?;
                self.gpu.stamp(0, stamp + 1)?;
            }
            let late = (self.notes.now)() - begin > *hold;
            self.settle()?;
            if late && round > 0 {
                *hold = (*hold * 2).min(LONGEST_HOLD);
            }
            if round > 0 {
                let stamps = (0u32..).step_by(2).take(graphs.len());
                let all = stamps.map(|s| self.gpu.elapsed_ps(s, s + 1)).collect::<Result<Vec<_>, _>>()?;
                rounds.push((late, all));
            }
        }
        Ok(rounds)
    }

    /// Reads more than a cache holds, where there is memory for it.
    fn read_through(&mut self) -> Result<(), GpuError> {
        let Some(from) = self.room_to_read(READ_BYTES) else { return Ok(()) };
        let args = vec![Arg::U64(from), Arg::U64(READ_BYTES / READ_BLOCK.1)];
        let launch = Launch {
            source: "measure.cu",
            kernel: "read_through",
            grid: (READ_BLOCKS, 1, 1),
            block: READ_BLOCK.0,
            shared_bytes: 0,
            args,
            product: None,
        };
        self.gpu.launch(0, &launch, &[from, READ_BYTES / READ_BLOCK.1])
    }
}
