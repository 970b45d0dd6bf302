//! What each command adds to a captured pass.
//!
//! Commands stand in an order in which one stream can carry out all of them. A *window* is a graph of a few commands in that order between two
//! stamps; a command's time is by how much a window that ends with it takes longer than the one that ends before it. Windows of neighbouring commands
//! are replayed in turn, so that clocks and heat are the same for both. Ahead of its first stamp each reads more than a cache holds, so that nothing
//! of a replay before it is left there, and the ranks meet in it: whatever a graph with collectives costs once is in every window. Behind its commands
//! each has a kernel that does nothing: what keeps a kernel from beginning while the command before it ends is that command's in every window.
//! Every command is timed in several windows that begin elsewhere, since how a graph happens to be laid out is worth half a microsecond.
//!
//! Inside a window values are whatever memory holds, since what comes before it is left out. That changes no time but that of what follows the
//! choice of experts, so choices stay as a whole pass made them: integers have places of their own, and routers write elsewhere.

use super::gpu::{Address, Gpu, GpuError};
use super::measure::CommandTimes;
use super::progress::What;
use super::rank::{Loaded, Rank};
use moetwin_kernels::launch::{Arg, Element, Launch, carrier_of, element_of};
use moetwin_kernels::splitmix::SplitMix64;
use moetwin_models::{NodeId, Op};
use moetwin_runtime::init::InitPhase;
use moetwin_runtime::{BufferId, Place, Program};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Commands ahead of the first that a window is asked about: operands are in the cache as in a pass, and a kernel has one to follow.
const AHEAD: usize = 4;
/// Commands that share their windows' beginning, and by how much later blocks begin each time all commands are timed once more.
const BLOCK: usize = 8;
const SHIFTS: [usize; 3] = [0, 3, 6];
/// Least replays of a window for one more shift to be worth its graphs.
const LEAST_ROUNDS: u32 = 4;
/// Bytes read ahead of a window: more than the L2 of any GPU of today (126 MB on GB202).
const READ_BYTES: u64 = 192 << 20;
/// Threads of a block that reads, and bytes of one's load.
const READ_BLOCK: (u32, u64) = (512, 16);
/// Blocks that read: more than any GPU has multiprocessors, so that all of them read.
const READ_BLOCKS: u32 = 512;

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

/// First and end of every block of so many commands, for each of the first shifts.
fn blocks(commands: usize, shifts: usize) -> Vec<(usize, usize)> {
    let of = |shift: usize| {
        let begins = std::iter::once(0).chain((shift..commands).step_by(BLOCK).filter(|first| *first > 0));
        let begins: Vec<usize> = begins.collect();
        let ends: Vec<usize> = begins.iter().skip(1).copied().chain([commands]).collect();
        begins.into_iter().zip(ends)
    };
    SHIFTS.into_iter().take(shifts).flat_map(of).filter(|(first, end)| first < end).collect()
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
        let shifts = (repetitions / LEAST_ROUNDS).clamp(1, SHIFTS.len() as u32);
        let rounds = repetitions.div_ceil(shifts);
        for (first, end) in blocks(all.len(), shifts as usize) {
            let begin = first.saturating_sub(AHEAD);
            let mut graphs = Vec::new();
            for (until, stamp) in (first..=end).zip((0u32..).step_by(2)) {
                self.gpu.begin_capture()?;
                self.read_through()?;
                self.meet(loaded, meeting)?;
                self.gpu.stamp(0, stamp)?;
                self.issue_chain(loaded, pinned, &all[begin..until])?;
                self.hold(Duration::ZERO)?;
                self.gpu.stamp(0, stamp + 1)?;
                let graph = self.gpu.end_capture()?;
                self.keep(graph);
                graphs.push(graph);
            }
            // The first round also uploads the graphs.
            for round in 0..=rounds {
                graphs.iter().try_for_each(|graph| self.gpu.replay(*graph))?;
                self.settle()?;
                let stamps = (0u32..).step_by(2).take(graphs.len());
                let taken = stamps.map(|s| self.gpu.elapsed_ps(s, s + 1)).collect::<Result<Vec<_>, _>>()?;
                for (i, command) in program.ranks[self.rank].commands.iter().enumerate().filter(|_| round > 0) {
                    if let Some(place) = all[first..end].iter().position(|n| *n == command.id.node) {
                        // What another command's kernel does takes nothing, whatever a replay more or less says.
                        let nothing = carrier_of(&program.graph, command.id.node, self.rank).is_some();
                        times[i].ps.push(if nothing { 0 } else { taken[place + 1] as i64 - taken[place] as i64 });
                    }
                }
            }
            self.drop_graphs(graphs.len());
        }
        Ok(())
    }

    /// Puts drawn experts where routers have put theirs, and what follows from them.
    pub(super) fn draw_choices(
        &mut self,
        loaded: &mut Loaded,
        pinned: &Pinned,
        permille: u32,
        chosen: &mut [(u32, Vec<i32>)],
    ) -> Result<(), GpuError> {
        let program = Arc::clone(&loaded.program);
        for (index, ids) in chosen {
            let command = &program.ranks[self.rank].commands[*index as usize];
            let node = &program.graph.nodes[command.id.node];
            let (Op::Route { topk, .. }, Some(&place)) = (&node.op, command.writes.first()) else { continue };
            let sizes = program.graph.local_sizes(node.inputs[0], self.rank).map_err(|e| GpuError::new("choices", e.to_string()))?;
            let experts = sizes.last().copied().unwrap_or(1);
            *ids = drawn(ids.len(), *topk as usize, experts as u32, permille, u64::from(*index));
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            self.gpu.write(loaded.addresses[place], &bytes)?;
        }
        let all = nodes(&program);
        self.issue_chain(loaded, pinned, &all)?;
        self.settle()
    }

    /// Reads more than a cache holds.
    fn read_through(&mut self) -> Result<(), GpuError> {
        let from = self.room_to_read(READ_BYTES)?;
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

/// `topk` distinct experts for each token, drawn evenly among a share of all of them that lies spread over all ranks.
fn drawn(slots: usize, topk: usize, experts: u32, permille: u32, seed: u64) -> Vec<i32> {
    let pool = (u64::from(experts) * u64::from(permille) / 1000).clamp(topk as u64, u64::from(experts).max(topk as u64));
    // Experts of a pool lie apart by a number that shares no factor with how many there are.
    let apart = (u64::from(experts) * 5 / 13 + 1..).find(|n| gcd(*n, u64::from(experts)) == 1).unwrap_or(1);
    let mut numbers = SplitMix64(seed);
    let mut out = Vec::with_capacity(slots);
    while out.len() < slots {
        let mut token: Vec<i32> = Vec::with_capacity(topk);
        let from = numbers.below(pool);
        for nth in 0..topk as u64 {
            // What was taken already is passed over.
            let mut at = if nth == 0 { from } else { numbers.below(pool) };
            while token.contains(&((at * apart % u64::from(experts)) as i32)) {
                at = (at + 1) % pool;
            }
            token.push((at * apart % u64::from(experts)) as i32);
        }
        out.extend(token);
    }
    out.truncate(slots);
    out
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_block_of_each_shift() {
        for commands in [0, 1, 3, 7, 8, 9, 50] {
            let mut counts = vec![0; commands];
            for (first, end) in blocks(commands, SHIFTS.len()) {
                assert!(end - first <= BLOCK, "{commands}: {first} to {end}");
                (first..end).for_each(|i| counts[i] += 1);
            }
            assert!(counts.iter().all(|n| *n == SHIFTS.len()), "{commands}: {counts:?}");
        }
    }

    #[test]
    fn drawn_experts_are_distinct_for_a_token_and_as_many_as_the_pool_has() {
        for (experts, topk, permille) in [(384, 8, 1000), (384, 8, 400), (128, 8, 100), (8, 2, 1), (4, 4, 1000), (60, 6, 333)] {
            let ids = drawn(64 * topk, topk, experts, permille, 3);
            assert_eq!(ids, drawn(64 * topk, topk, experts, permille, 3));
            for token in ids.chunks(topk) {
                let distinct: BTreeSet<i32> = token.iter().copied().collect();
                assert!(distinct.len() == topk && token.iter().all(|id| (0..experts as i32).contains(id)), "{token:?}");
            }
            let hit = ids.iter().collect::<BTreeSet<_>>().len();
            let pool = (experts as usize * permille as usize / 1000).max(topk);
            assert!(hit <= pool && hit * 10 >= pool.min(64 * topk) * 6, "{hit} of {pool}");
            // Both halves of the experts are hit alike.
            let low = ids.iter().filter(|id| **id < experts as i32 / 2).count() as f64 / ids.len() as f64;
            assert!((0.2..=0.8).contains(&low), "{experts} {permille}: {low}");
        }
    }
}
