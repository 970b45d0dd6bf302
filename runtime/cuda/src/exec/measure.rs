//! What the commands of a pass take on a rank, each by itself, and the whole pass as it is served.
//!
//! A command is timed in a twin of the pass that is not captured, between two stamps of its stream. Stamps keep a kernel from beginning while
//! the one before it ends, so the sum of commands is longer than a captured pass; both are reported. What a pair of stamps takes with nothing
//! between is taken off. A stream that waited for the host would be timed too: before every few commands a kernel holds the streams until the
//! host is ahead, and ranks meet in a small all-reduce; commands for which the host was late all the same are told apart.

use super::gpu::{Address, Call, Captured, Element, Gpu, GpuError};
use super::progress::What;
use super::rank::{Loaded, Rank};
use moetwin_kernels::launch::{Arg, Launch};
use moetwin_models::Op;
use moetwin_runtime::init::InitPhase;
use moetwin_runtime::reference::StepInputs;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// How often what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetitions {
    /// Replays of the captured pass, one behind the other.
    pub replays: u32,
    /// Passes that the host launches command by command.
    pub eager: u32,
    /// Passes with stamps around every command.
    pub twins: u32,
    /// Whether those run on one stream, so that no command shares the GPU with another.
    pub one_stream: bool,
}

impl Default for Repetitions {
    fn default() -> Self {
        Self { replays: 20, eager: 3, twins: 7, one_stream: false }
    }
}

/// Times of one command, picoseconds, one a repetition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandTimes {
    /// Those for which the host was ahead.
    pub ps: Vec<u64>,
    /// Those for which it was late: they may hold time of the host.
    pub late_ps: Vec<u64>,
}

/// Times of a pass on one rank, by the clock of its GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTimes {
    /// The rank.
    pub rank: u32,
    /// A replay of the captured pass, picoseconds, each; empty where it is not captured.
    pub captured_ps: Vec<u64>,
    /// A pass that the host launches command by command, picoseconds, each.
    pub eager_ps: Vec<u64>,
    /// What a pair of stamps takes with nothing between, picoseconds; it is taken off the commands.
    pub pair_ps: u64,
    /// By command in launch order.
    pub commands: Vec<CommandTimes>,
    /// Of commands that route tokens: their place in launch order, and the experts they chose, token by token; -1 where a slot is empty.
    pub chosen: Vec<(u32, Vec<i32>)>,
}

/// Commands between two holds. Launches that the driver queues are bounded (about a thousand), and each command is several.
const CHUNK: usize = 48;
/// How long streams are held before a chunk at first; doubled up to [`LONGEST_HOLD`] where the host was late.
const HOLD: Duration = Duration::from_millis(2);
const LONGEST_HOLD: Duration = Duration::from_millis(16);
/// Pairs of stamps with nothing between.
const PAIRS: u32 = 32;
/// Event by which the second stream is held with the first; far from those of programs.
const HELD: u32 = u32::MAX;
/// Streams of a rank.
const STREAMS: [u32; 2] = [0, 1];
/// Bytes of the operand and result of the all-reduce in which ranks meet, apart from each other.
const MEETING_BYTES: u64 = 256;

impl<G: Gpu> Rank<G> {
    /// Measures a pass; running it several times on the same inputs leaves caches as one run would.
    pub(crate) fn measure(&mut self, key: usize, inputs: &StepInputs, often: Repetitions) -> Result<RankTimes, GpuError> {
        // The first run is eager, the second captures where that is asked for.
        self.run(key, inputs)?;
        self.run(key, inputs)?;
        let mut loaded = self.programs.swap_remove(key);
        let result = self.measure_loaded(&mut loaded, inputs, often);
        self.programs.push(loaded);
        let last = self.programs.len() - 1;
        self.programs.swap(key, last);
        result
    }

    fn measure_loaded(&mut self, loaded: &mut Loaded, inputs: &StepInputs, often: Repetitions) -> Result<RankTimes, GpuError> {
        self.begin(InitPhase::Serve, What::Named("measure"), false);
        let meeting = self.allocate(2 * MEETING_BYTES)?;
        self.gpu.fill(0, meeting, 0, 2 * MEETING_BYTES)?;
        self.write_inputs(loaded, inputs)?;
        let commands = vec![CommandTimes::default(); loaded.program.ranks[self.rank].commands.len()];
        let mut times = RankTimes { rank: self.rank.0, commands, ..RankTimes::default() };
        if let Some(graph) = loaded.captured {
            times.captured_ps = self.time_replays(loaded, graph, meeting, often.replays)?;
        }
        for _ in 0..often.eager {
            times.eager_ps.push(self.time_eager(loaded)?);
        }
        times.chosen = self.chosen_experts(loaded)?;
        times.pair_ps = self.time_pairs()?;
        let mut hold = HOLD;
        for _ in 0..often.twins {
            if self.time_twin(loaded, meeting, (hold, often.one_stream), &mut times)? {
                hold = (hold * 2).min(LONGEST_HOLD);
            }
        }
        Ok(times)
    }

    /// Waits until the rank's streams are idle, with its peers.
    fn settle(&mut self) -> Result<(), GpuError> {
        self.begin(InitPhase::Serve, What::Named("wait for a measurement"), true);
        self.gpu.synchronize(self.longest_wait())
    }

    /// Keeps the first stream busy for some time.
    fn hold(&mut self, time: Duration) -> Result<(), GpuError> {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let launch = Launch {
            source: "measure.cu",
            kernel: "hold",
            grid: (1, 1, 1),
            block: 32,
            shared_bytes: 0,
            args: vec![Arg::U64(ns)],
            product: None,
        };
        self.gpu.launch(0, &launch, &[ns])
    }

    /// Lets the members of every group of the rank meet, so that what follows begins on all of them at once.
    fn meet(&mut self, loaded: &Loaded, meeting: Address) -> Result<(), GpuError> {
        if self.stand_in.is_some() {
            return Ok(());
        }
        for ((_, group), communicator) in loaded.program.groups.iter().zip(&loaded.communicators.groups) {
            if group.ranks.contains(&self.rank) {
                let call = Call::AllReduce { from: meeting, to: meeting + MEETING_BYTES, count: 1 };
                self.gpu.communicate(0, *communicator, Element::F32, &[call])?;
            }
        }
        Ok(())
    }

    /// Replays one behind the other, so that the host's launch of one is hidden behind the one before it.
    fn time_replays(&mut self, loaded: &Loaded, graph: Captured, meeting: Address, replays: u32) -> Result<Vec<u64>, GpuError> {
        self.hold(HOLD)?;
        self.meet(loaded, meeting)?;
        self.gpu.stamp(0, 0)?;
        for i in 0..replays {
            self.gpu.replay(graph)?;
            self.gpu.stamp(0, i + 1)?;
        }
        self.settle()?;
        (0..replays).map(|i| self.gpu.elapsed_ps(i, i + 1)).collect()
    }

    /// One pass that the host launches command by command, as without graphs.
    fn time_eager(&mut self, loaded: &Loaded) -> Result<u64, GpuError> {
        self.settle()?;
        self.gpu.stamp(0, 0)?;
        self.issue(loaded, InitPhase::Serve)?;
        self.gpu.record(1, HELD)?;
        self.gpu.wait(0, HELD)?;
        self.gpu.stamp(0, 1)?;
        self.settle()?;
        self.gpu.elapsed_ps(0, 1)
    }

    /// One more pass that stops after every choice of experts to read it: how many distinct ones are hit decides what the pass takes.
    fn chosen_experts(&mut self, loaded: &Loaded) -> Result<Vec<(u32, Vec<i32>)>, GpuError> {
        let program = Arc::clone(&loaded.program);
        let mut chosen = Vec::new();
        for (i, command) in (0u32..).zip(&program.ranks[self.rank].commands) {
            for event in &command.waits {
                self.gpu.wait(command.stream.0, event.0)?;
            }
            self.command(loaded, command)?;
            if let Some(event) = command.records {
                self.gpu.record(command.stream.0, event.0)?;
            }
            if matches!(program.graph.nodes[command.id.node].op, Op::Route { .. })
                && let Some(&ids) = command.writes.first()
            {
                self.settle()?;
                let count = program.ranks[self.rank].buffers[ids].sizes.iter().product::<u64>();
                let mut bytes = vec![0; 4 * count as usize];
                self.gpu.read(loaded.addresses[ids], &mut bytes)?;
                let id = |c: &[u8]| i32::from_le_bytes([c[0], c[1], c[2], c[3]]);
                chosen.push((i, bytes.chunks_exact(4).map(id).collect()));
            }
        }
        self.settle()?;
        Ok(chosen)
    }

    /// The median of pairs of stamps with nothing between.
    fn time_pairs(&mut self) -> Result<u64, GpuError> {
        self.hold(HOLD)?;
        for stamp in 0..2 * PAIRS {
            self.gpu.stamp(0, stamp)?;
        }
        self.settle()?;
        let mut all = (0..PAIRS).map(|i| self.gpu.elapsed_ps(2 * i, 2 * i + 1)).collect::<Result<Vec<u64>, _>>()?;
        all.sort_unstable();
        Ok(all[all.len() / 2])
    }

    /// One pass with stamps around every command; whether the host was late anywhere.
    fn time_twin(
        &mut self,
        loaded: &Loaded,
        meeting: Address,
        (hold, one_stream): (Duration, bool),
        times: &mut RankTimes,
    ) -> Result<bool, GpuError> {
        let program = Arc::clone(&loaded.program);
        let commands = &program.ranks[self.rank].commands;
        let mut late = vec![false; commands.len()];
        for (number, chunk) in commands.chunks(CHUNK).enumerate() {
            let begin = (self.notes.now)();
            self.hold(hold)?;
            self.meet(loaded, meeting)?;
            self.gpu.record(0, HELD)?;
            self.gpu.wait(1, HELD)?;
            for (i, command) in (number * CHUNK..).zip(chunk) {
                self.begin(InitPhase::Serve, What::Command(Arc::clone(&program), command.id.node), false);
                // Commands stand in an order in which one stream can carry out all of them.
                let (stream, stamp) = (if one_stream { 0 } else { command.stream.0 }, 2 * i as u32);
                for event in command.waits.iter().filter(|_| !one_stream) {
                    self.gpu.wait(stream, event.0)?;
                }
                self.gpu.stamp(stream, stamp)?;
                self.command_on(loaded, command, stream)?;
                self.gpu.stamp(stream, stamp + 1)?;
                if let Some(event) = command.records.filter(|_| !one_stream) {
                    self.gpu.record(stream, event.0)?;
                }
            }
            late[number * CHUNK..][..chunk.len()].fill((self.notes.now)() - begin > hold);
        }
        debug_assert!(commands.iter().all(|c| STREAMS.contains(&c.stream.0)));
        self.settle()?;
        for (i, late) in late.iter().enumerate() {
            let ps = self.gpu.elapsed_ps(2 * i as u32, 2 * i as u32 + 1)?.saturating_sub(times.pair_ps);
            if *late { &mut times.commands[i].late_ps } else { &mut times.commands[i].ps }.push(ps);
        }
        Ok(late.contains(&true))
    }
}
