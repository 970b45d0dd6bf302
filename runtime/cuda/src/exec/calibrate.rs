//! What a machine's figures are measured by: floors of launches, the rate of copies, and all-reduces of every size with and without a graph, and
//! with one rank late.

use super::gpu::{AbortSignal, Address, Call, Captured, Element, Gpu, GpuError, Host};
use moetwin_kernels::launch::{Arg, Launch};
use moetwin_models::RankId;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Kernels that a launch floor is the mean of.
const KERNELS: u32 = 512;
/// Bytes copied at a time for the rate of copies: far more than any cache.
const COPIED: u64 = 1 << 30;
/// Repetitions, of which the median counts.
const REPETITIONS: u32 = 7;
/// How long a stream is held so that the host is ahead.
const HOLD: Duration = Duration::from_millis(4);
/// All-reduces in a graph, or one behind the other, of which the mean is taken: so many of small messages, fewer of large ones.
const SMALL: (u64, u32) = (1 << 20, 20);
const LARGE: u32 = 4;

/// Floors and rates of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Floors {
    /// Bytes read and written a second by copies on the device.
    pub copy_bytes_per_s: f64,
    /// A kernel node of a captured graph that does nothing, picoseconds.
    pub graph_node_ps: u64,
    /// Host time of a launch, picoseconds.
    pub eager_kernel_ps: u64,
    /// Host time of the launch of a captured graph of one node, picoseconds.
    pub graph_launch_ps: u64,
}

/// All-reduces of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeTimes {
    /// Bytes of the message.
    pub bytes: u64,
    /// In a captured graph, picoseconds, of the rank that takes longest.
    pub graph_ps: u64,
    /// One behind the other as the host launches them, picoseconds.
    pub loop_ps: u64,
}

/// An all-reduce to which the last rank comes late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkewTimes {
    /// Bytes of the message.
    pub bytes: u64,
    /// How late, picoseconds.
    pub late_ps: u64,
    /// What the first rank takes from its arrival, picoseconds.
    pub early_ps: u64,
    /// What the late rank takes from its arrival, picoseconds: the transfer.
    pub transfer_ps: u64,
}

/// What all ranks found together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchanges {
    /// Ranks.
    pub ranks: u32,
    /// By size.
    pub sizes: Vec<ExchangeTimes>,
    /// By lateness.
    pub skew: Vec<SkewTimes>,
}

fn hold_launch(ns: u64) -> Launch {
    Launch { source: "measure.cu", kernel: "hold", grid: (1, 1, 1), block: 32, shared_bytes: 0, args: vec![Arg::U64(ns)], product: None }
}

fn hold(gpu: &mut impl Gpu, time: Duration) -> Result<(), GpuError> {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    gpu.launch(0, &hold_launch(ns), &[ns])
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// Measures a GPU by itself.
pub fn floors<H: Host>(host: &H, rank: RankId, deadline: Duration) -> Result<Floors, GpuError> {
    let mut gpu = host.open(rank, AbortSignal::default())?;
    let found = floors_on(host, &mut gpu, deadline);
    end(&mut gpu, found.is_err(), &[], &[], None);
    found.map(|(floors, _)| floors)
}

/// Ends a GPU in the order that the driver needs: graphs, communicator, memory, context.
fn end(gpu: &mut impl Gpu, failed: bool, graphs: &[Captured], memory: &[Address], communicator: Option<u32>) {
    if failed {
        gpu.abort();
    }
    if !gpu.drained(Duration::from_secs(2)) {
        return gpu.abandon();
    }
    graphs.iter().rev().for_each(|g| gpu.destroy(*g));
    if let (Some(c), false) = (communicator, failed) {
        gpu.disconnect(c);
    }
    memory.iter().rev().for_each(|a| gpu.free(*a));
    gpu.close();
}

fn floors_on<H: Host>(host: &H, gpu: &mut H::Gpu, deadline: Duration) -> Result<(Floors, ()), GpuError> {
    let mut floors = Floors::default();
    // Whatever the first launch loads is not to be timed.
    hold(gpu, Duration::ZERO)?;
    gpu.synchronize(deadline)?;
    let nothing = hold_launch(0);
    let mut launches = Vec::new();
    for _ in 0..REPETITIONS {
        let begin = host.now();
        for _ in 0..KERNELS {
            gpu.launch(0, &nothing, &[0])?;
        }
        launches.push(nanoseconds(host.now() - begin) * 1000 / u64::from(KERNELS));
        gpu.synchronize(deadline)?;
    }
    floors.eager_kernel_ps = median(launches);
    let mut graphs = Vec::new();
    for count in [KERNELS, 1] {
        gpu.begin_capture()?;
        for _ in 0..count {
            gpu.launch(0, &nothing, &[0])?;
        }
        graphs.push(gpu.end_capture()?);
    }
    let many = replays(gpu, graphs[0], 1, deadline)?;
    floors.graph_node_ps = many / u64::from(KERNELS);
    let mut starts = Vec::new();
    for _ in 0..REPETITIONS {
        let begin = host.now();
        gpu.replay(graphs[1])?;
        starts.push(nanoseconds(host.now() - begin) * 1000);
        gpu.synchronize(deadline)?;
    }
    floors.graph_launch_ps = median(starts);
    let memory = [gpu.allocate(COPIED)?, gpu.allocate(COPIED)?];
    let mut copies = Vec::new();
    hold(gpu, HOLD)?;
    for i in 0..REPETITIONS {
        gpu.stamp(0, 2 * i)?;
        gpu.copy(0, memory[0], memory[1], COPIED)?;
        gpu.stamp(0, 2 * i + 1)?;
    }
    gpu.synchronize(deadline)?;
    for i in 0..REPETITIONS {
        copies.push(gpu.elapsed_ps(2 * i, 2 * i + 1)?);
    }
    floors.copy_bytes_per_s = 2.0 * COPIED as f64 / (median(copies).max(1) as f64 / 1e12);
    graphs.into_iter().rev().for_each(|g| gpu.destroy(g));
    memory.into_iter().rev().for_each(|a| gpu.free(a));
    Ok((floors, ()))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The median time of a graph's replays, over `parts` equal parts of it.
fn replays(gpu: &mut impl Gpu, graph: Captured, parts: u32, deadline: Duration) -> Result<u64, GpuError> {
    gpu.replay(graph)?;
    gpu.synchronize(deadline)?;
    hold(gpu, HOLD)?;
    gpu.stamp(0, 0)?;
    for i in 0..REPETITIONS {
        gpu.replay(graph)?;
        gpu.stamp(0, i + 1)?;
    }
    gpu.synchronize(deadline)?;
    // Between the first two the ranks come together.
    let times = (1..REPETITIONS).map(|i| gpu.elapsed_ps(i, i + 1)).collect::<Result<Vec<_>, _>>()?;
    Ok(median(times) / u64::from(parts))
}

/// Measures all-reduces of so many bytes over `ranks` GPUs, and of the first size with the last rank late by each of `late`.
pub fn exchanges<H: Host>(host: &H, ranks: u32, sizes: &[u64], late: &[Duration], deadline: Duration) -> Result<Exchanges, GpuError> {
    let (id, abort) = (host.unique_id()?, AbortSignal::default());
    let one = |index: u32| {
        let found = Member { host, id: &id, index, ranks, sizes, late, deadline }.measure(&abort);
        if found.is_err() {
            abort.raise();
        }
        found
    };
    let one = &one;
    let all: Vec<Result<Exchanges, GpuError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|index| scope.spawn(move || one(index))).collect();
        let joined = |t: std::thread::ScopedJoinHandle<'_, Result<Exchanges, GpuError>>| {
            t.join().unwrap_or_else(|_| Err(GpuError::new("measuring exchanges", "a rank's thread panicked")))
        };
        threads.into_iter().map(joined).collect()
    });
    // Who fails in a wait for others only tells that one of them did.
    if let Some(e) = all.iter().filter_map(|r| r.as_ref().err()).min_by_key(|e| e.peers) {
        return Err(e.clone());
    }
    let all: Vec<Exchanges> = all.into_iter().filter_map(Result::ok).collect();
    let mut out = all.first().cloned().unwrap_or_default();
    for other in &all {
        for (mine, theirs) in out.sizes.iter_mut().zip(&other.sizes) {
            (mine.graph_ps, mine.loop_ps) = (mine.graph_ps.max(theirs.graph_ps), mine.loop_ps.max(theirs.loop_ps));
        }
    }
    if let Some(last) = all.last() {
        for (mine, theirs) in out.skew.iter_mut().zip(&last.skew) {
            mine.transfer_ps = theirs.early_ps;
        }
    }
    Ok(out)
}

/// A member of the group that is measured.
struct Member<'a, H> {
    host: &'a H,
    id: &'a [u8],
    index: u32,
    ranks: u32,
    sizes: &'a [u64],
    late: &'a [Duration],
    deadline: Duration,
}

impl<H: Host> Member<'_, H> {
    fn measure(&self, abort: &AbortSignal) -> Result<Exchanges, GpuError> {
        let mut gpu = self.host.open(RankId(self.index), abort.clone())?;
        let (mut graphs, mut memory) = (Vec::new(), Vec::new());
        let mut connected = None;
        let found = self.measure_on(&mut gpu, &mut graphs, &mut memory, &mut connected);
        end(&mut gpu, found.is_err(), &graphs, &memory, connected);
        found
    }
    fn measure_on(
        &self,
        gpu: &mut H::Gpu,
        graphs: &mut Vec<Captured>,
        memory: &mut Vec<Address>,
        connected: &mut Option<u32>,
    ) -> Result<Exchanges, GpuError> {
        gpu.connect(0, self.id, self.index, self.ranks, self.deadline)?;
        *connected = Some(0);
        let largest = self.sizes.iter().copied().max().unwrap_or(0).max(256);
        let (from, to) = (gpu.allocate(largest)?, gpu.allocate(largest)?);
        memory.extend([from, to]);
        gpu.fill(0, from, 0, largest)?;
        let reduce = |gpu: &mut H::Gpu, bytes: u64| {
            gpu.communicate(0, 0, Element::Bf16, &[Call::AllReduce { from, to, count: bytes / Element::Bf16.bytes() }])
        };
        let mut found = Exchanges { ranks: self.ranks, ..Exchanges::default() };
        for &bytes in self.sizes {
            let count = if bytes <= SMALL.0 { SMALL.1 } else { LARGE };
            // Connections are made by the first call.
            reduce(gpu, bytes)?;
            gpu.synchronize(self.deadline)?;
            gpu.begin_capture()?;
            for _ in 0..count {
                reduce(gpu, bytes)?;
            }
            let graph = gpu.end_capture()?;
            graphs.push(graph);
            let graph_ps = replays(gpu, graph, count, self.deadline)?;
            let mut loops = Vec::new();
            for _ in 0..REPETITIONS {
                reduce(gpu, bytes)?;
                gpu.stamp(0, 0)?;
                for _ in 0..count {
                    reduce(gpu, bytes)?;
                }
                gpu.stamp(0, 1)?;
                gpu.synchronize(self.deadline)?;
                loops.push(gpu.elapsed_ps(0, 1)? / u64::from(count));
            }
            found.sizes.push(ExchangeTimes { bytes, graph_ps, loop_ps: median(loops) });
        }
        for &late in self.late {
            found.skew.push(self.skewed(gpu, late, &reduce)?);
        }
        Ok(found)
    }
    /// One all-reduce of the smallest size, to which the last rank comes late.
    fn skewed(
        &self,
        gpu: &mut H::Gpu,
        late: Duration,
        reduce: &impl Fn(&mut H::Gpu, u64) -> Result<(), GpuError>,
    ) -> Result<SkewTimes, GpuError> {
        let bytes = self.sizes.first().copied().unwrap_or(256);
        let mut times = Vec::new();
        for _ in 0..REPETITIONS {
            hold(gpu, HOLD)?;
            // The ranks meet, so that lateness is counted from the same moment.
            reduce(gpu, bytes)?;
            if self.index + 1 == self.ranks && !late.is_zero() {
                hold(gpu, late)?;
            }
            gpu.stamp(0, 0)?;
            reduce(gpu, bytes)?;
            gpu.stamp(0, 1)?;
            gpu.synchronize(self.deadline)?;
            times.push(gpu.elapsed_ps(0, 1)?);
        }
        Ok(SkewTimes { bytes, late_ps: nanoseconds(late) * 1000, early_ps: median(times), transfer_ps: 0 })
    }
}
