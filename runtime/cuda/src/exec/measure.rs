//! What the commands of a pass take on a rank, each by itself, and the whole pass as it is served.
//!
//! What a command takes is what the captured pass would get longer by it: graphs of a few commands are captured, each one command longer than the
//! one before it, and the differences of their replays are its times ([`super::measure_chain`]). So a kernel that begins while the one before it
//! ends counts from where that one ended, nothing is added by stamps between kernels, and the times of all commands add up to a pass on one stream.

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

/// How often what is measured, and on what choices of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetitions {
    /// Replays of the captured pass, one behind the other.
    pub replays: u32,
    /// Passes that the host launches command by command.
    pub eager: u32,
    /// Replays of every graph of a few commands; none where commands are not to be timed.
    pub windows: u32,
    /// Which experts tokens go to while commands are timed.
    pub choices: Choices,
}

/// Which experts tokens go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choices {
    /// Those that the routers choose.
    #[default]
    Routed,
    /// Distinct ones for each token, drawn evenly among this share of all of them, in thousandths: how many are hit does not follow from how many
    /// tokens there are.
    Drawn(u32),
}

impl Default for Repetitions {
    fn default() -> Self {
        Self { replays: 20, eager: 3, windows: 24, choices: Choices::Routed }
    }
}

/// What a command adds to the pass, picoseconds, one a repetition; a kernel that adds less than clocks differ by may come out below nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandTimes {
    /// The times.
    pub ps: Vec<i64>,
}

impl CommandTimes {
    /// What it takes, picoseconds: the mean of the middle half. None of no times.
    pub fn typical_ps(&self) -> Option<u64> {
        let mut sorted = self.ps.clone();
        sorted.sort_unstable();
        let cut = sorted.len() / 4;
        let middle = sorted.get(cut..sorted.len() - cut).filter(|m| !m.is_empty())?;
        let mean = middle.iter().map(|ps| i128::from(*ps)).sum::<i128>() / middle.len() as i128;
        Some(u64::try_from(mean).unwrap_or(0))
    }
}

/// Times of a pass on one rank, by the clock of its GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTimes {
    /// The rank.
    pub rank: u32,
    /// A replay of the captured pass, picoseconds, each; empty where it is not captured.
    pub captured_ps: Vec<u64>,
    /// A replay of the pass captured on one stream, picoseconds, each: what the times of its commands add up to.
    pub one_stream_ps: Vec<u64>,
    /// A pass that the host launches command by command, picoseconds, each.
    pub eager_ps: Vec<u64>,
    /// By command in launch order.
    pub commands: Vec<CommandTimes>,
    /// Of commands that route tokens: their place in launch order, and the experts they chose, token by token; -1 where a slot is empty.
    pub chosen: Vec<(u32, Vec<i32>)>,
}

/// How far the sum of commands may be from the pass on one stream for the difference to be spread: beyond it something else is wrong, and is to be
/// seen.
const SPREAD: std::ops::RangeInclusive<f64> = 0.9..=1.1;

impl RankTimes {
    /// By what the times of commands are multiplied so that they add up to the pass on one stream: in it every weight was last read a whole pass
    /// ago, in a graph of a few commands a moment ago, which memory's page tables remember. 1 where that is not known.
    pub fn scale(&self) -> f64 {
        let mut whole = self.one_stream_ps.clone();
        whole.sort_unstable();
        let sum: u64 = self.commands.iter().filter_map(CommandTimes::typical_ps).sum();
        match whole.get(whole.len() / 2) {
            Some(&whole) if sum > 0 && SPREAD.contains(&(whole as f64 / sum as f64)) => whole as f64 / sum as f64,
            _ => 1.0,
        }
    }
    /// What each command takes in the pass, picoseconds; none of what was not measured.
    pub fn commands_ps(&self) -> Vec<Option<u64>> {
        let scale = self.scale();
        self.commands.iter().map(|c| c.typical_ps().map(|ps| (ps as f64 * scale) as u64)).collect()
    }
}

/// How long a stream is held, so that the host is ahead with replays.
const HOLD: Duration = Duration::from_millis(2);
/// Event by which a pass ends on the first stream; far from those of programs.
const HELD: u32 = u32::MAX;
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
        if often.windows > 0 {
            let pinned = self.pin(loaded)?;
            times.chosen = self.chosen_experts(loaded)?;
            if let Choices::Drawn(permille) = often.choices {
                self.draw_choices(loaded, &pinned, permille, &mut times.chosen)?;
            }
            times.one_stream_ps = self.time_one_stream(loaded, &pinned, meeting, often.replays)?;
            self.time_windows(loaded, &pinned, meeting, often.windows, &mut times.commands)?;
            pinned.release(loaded);
        }
        Ok(times)
    }

    /// Waits until the rank's streams are idle, with its peers.
    pub(super) fn settle(&mut self) -> Result<(), GpuError> {
        self.begin(InitPhase::Serve, What::Named("wait for a measurement"), true);
        self.gpu.synchronize(self.longest_wait())
    }

    /// Keeps the first stream busy for some time.
    pub(super) fn hold(&mut self, time: Duration) -> Result<(), GpuError> {
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
    pub(super) fn meet(&mut self, loaded: &Loaded, meeting: Address) -> Result<(), GpuError> {
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
    pub(super) fn time_replays(&mut self, loaded: &Loaded, graph: Captured, meeting: Address, replays: u32) -> Result<Vec<u64>, GpuError> {
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
}
