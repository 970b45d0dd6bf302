//! The checks themselves, in the process that may be killed.

use super::lab::{LabGpu, attributes};
use super::nccl_check::nccl;
use super::topology::place;
use super::{Check, Description, Finding, GpuDetail, Item, Line, Measured, Outcome, SOURCE};
use crate::device::Driver;
use crate::exec::compile::compile_one;
use crate::exec::gpu::GpuError;
use crate::probe::probe;
use crate::search::Search;
use std::path::Path;
use std::time::{Duration, Instant};

/// Words of a pattern: odd, and over a megabyte.
const WORDS: u64 = 300_007;
/// Bytes of a timed transfer.
const LARGE_BYTES: u64 = 128 << 20;
/// A kernel may take no longer; the parent's limit is longer.
pub(super) const KERNEL_LIMIT: Duration = Duration::from_secs(5);
/// Blocks and threads of a kernel over many words.
const GRID: (u32, u32) = (264, 512);
/// Times that a captured graph is replayed, each with new values.
const REPLAYS: u32 = 3;

/// The GPUs of a check, opened as they are needed, by the driver's index.
struct Lab {
    gpus: Vec<Option<LabGpu>>,
    driver: Driver,
    search: Search,
    cubin: Option<Vec<u8>>,
}

/// Carries out the items of a check and tells each line as it comes.
///
/// # Errors
/// Where nothing can be checked at all.
pub fn run_check(check: Check, items: &[Item], tell: &mut dyn FnMut(&Line)) -> Result<(), String> {
    let search = Search::from_environment();
    if check == Check::Describe {
        tell(&Line::Begin(Item(Vec::new())));
        let description = describe(&search)?;
        tell(&Line::Described(Box::new(description)));
        return Ok(());
    }
    let driver = Driver::open(&search).map_err(|e| e.to_string())?;
    let count = driver.device_count().map_err(|e| e.to_string())?;
    let mut lab = Lab { gpus: (0..count).map(|_| None).collect(), driver, search, cubin: None };
    for item in items {
        tell(&Line::Begin(item.clone()));
        let (outcome, measured) = match lab.open(&item.0).and_then(|()| lab.one(check, item)) {
            Ok(done) => done,
            Err(e) => (Outcome::Failed(e.to_string()), Measured::default()),
        };
        tell(&Line::End(Finding { check, item: item.clone(), outcome, measured }));
    }
    Ok(())
}

/// What there is. GPUs that cannot be opened are in the probe's problems.
fn describe(search: &Search) -> Result<Description, String> {
    let probed = probe(search);
    let mut gpus = Vec::new();
    if let Ok(driver) = Driver::open(search) {
        let mut lab = Lab { gpus: probed.gpus.iter().map(|_| None).collect(), driver, search: search.clone(), cubin: None };
        let all: Vec<usize> = (0..probed.gpus.len()).collect();
        let opened = all.is_empty() || lab.open(&all).map_err(|e| e.to_string()).map(|()| true)?;
        for &ordinal in all.iter().filter(|_| opened) {
            let a = attributes(ordinal).map_err(|e| e.to_string())?;
            let by_peer = |what: fn(&LabGpu, &LabGpu) -> Result<bool, GpuError>| -> Result<Vec<bool>, String> {
                let one = |&peer: &usize| {
                    if peer == ordinal { Ok(true) } else { what(lab.gpu(ordinal)?, lab.gpu(peer)?) }
                };
                all.iter().map(one).collect::<Result<_, GpuError>>().map_err(|e| e.to_string())
            };
            gpus.push(GpuDetail {
                pci: place(Path::new("/sys"), &a.pci),
                l2_bytes: a.l2_bytes,
                shared_bytes: a.shared_bytes,
                clock_mhz: a.clock_mhz,
                memory_bytes_per_s: a.memory_bytes_per_s,
                peer_access: by_peer(LabGpu::can_access)?,
                native_atomics: by_peer(LabGpu::native_atomics)?,
            });
        }
    }
    Ok(Description { probe: probed, gpus })
}

fn wrong_words(count: u32, of: u64) -> Outcome {
    if count == 0 { Outcome::Right } else { Outcome::Wrong(format!("{count} of {of} words are wrong")) }
}

impl Lab {
    fn open(&mut self, ordinals: &[usize]) -> Result<(), GpuError> {
        for &ordinal in ordinals {
            let there = self.gpus.len();
            let slot = self.gpus.get(ordinal).ok_or_else(|| GpuError::new("GPU", format!("{ordinal} of {there}")))?;
            if slot.is_some() {
                continue;
            }
            if self.cubin.is_none() {
                let device = self.driver.device(ordinal).map_err(|e| GpuError::new("GPU", e.to_string()))?;
                let (major, minor) = device.compute_capability().map_err(|e| GpuError::new("GPU", e.to_string()))?;
                self.cubin = Some(compile_one(&self.search, &format!("{major}{minor}"), &SOURCE)?);
            }
            let cubin = self.cubin.as_deref().unwrap_or_default();
            self.gpus[ordinal] = Some(LabGpu::open(&self.driver, ordinal, cubin)?);
        }
        Ok(())
    }
    fn gpu(&self, ordinal: usize) -> Result<&LabGpu, GpuError> {
        self.gpus.get(ordinal).and_then(Option::as_ref).ok_or_else(|| GpuError::new("GPU", format!("{ordinal} is not open")))
    }
    fn one(&self, check: Check, item: &Item) -> Result<(Outcome, Measured), GpuError> {
        if check == Check::Nccl {
            return nccl(&self.search, self.cubin.as_deref().unwrap_or_default(), &item.0);
        }
        let a = self.gpu(item.0.first().copied().unwrap_or(usize::MAX))?;
        if check == Check::Single {
            return single(a);
        }
        let b = self.gpu(item.0.get(1).copied().unwrap_or(usize::MAX))?;
        if !a.can_access(b)? {
            // A copy between GPUs without peer access goes through the host, and must be right too.
            return match check {
                Check::Copy => copy(a, b),
                _ => Ok((Outcome::Unsupported("the driver offers no peer access between them".into()), Measured::default())),
            };
        }
        a.enable(b)?;
        b.enable(a)?;
        match check {
            Check::Copy => copy(a, b),
            Check::Store => peer_kernel(a, b, true),
            Check::Load => peer_kernel(a, b, false),
            Check::Graph => graph(a, b),
            _ => flags(a, b),
        }
    }
}

/// A buffer with a seed and a count of wrong words behind it.
struct Pattern<'a> {
    gpu: &'a LabGpu,
    words: u64,
    seed: u64,
    wrong: u64,
}

impl<'a> Pattern<'a> {
    fn new(gpu: &'a LabGpu, bytes: u64, seed: u32) -> Result<Self, GpuError> {
        let pattern = Self { gpu, words: gpu.allocate(bytes)?, seed: gpu.allocate(4)?, wrong: gpu.allocate(4)? };
        gpu.write(pattern.seed, &[seed])?;
        gpu.write(pattern.wrong, &[0u32])?;
        Ok(pattern)
    }
    /// Fills memory at `to`, its own or a peer's, with its pattern.
    fn fill(&self, to: u64) -> Result<(), GpuError> {
        self.gpu.launch("check_fill", GRID.0, GRID.1, &[to, WORDS, self.seed])
    }
    /// Words at `from`, its own or a peer's, that are not its pattern.
    fn compare(&self, from: u64) -> Result<u32, GpuError> {
        self.gpu.write(self.wrong, &[0u32])?;
        self.gpu.launch("check_compare", GRID.0, GRID.1, &[from, WORDS, self.seed, self.wrong])?;
        self.gpu.finish(KERNEL_LIMIT)?;
        let mut count = [0u32];
        self.gpu.read(self.wrong, &mut count)?;
        Ok(count[0])
    }
}

/// Seconds of one of `times` runs on the GPU's stream, after one that is not counted.
pub(super) fn timed(gpu: &LabGpu, times: u32, run: impl Fn() -> Result<(), GpuError>) -> Result<f64, GpuError> {
    run()?;
    let begin = gpu.now()?;
    (0..times).try_for_each(|_| run())?;
    let end = gpu.now()?;
    gpu.finish(KERNEL_LIMIT)?;
    Ok(gpu.seconds(&begin, &end)? / f64::from(times))
}

/// From a to b: what a wrote must be what b holds.
fn copy(a: &LabGpu, b: &LabGpu) -> Result<(Outcome, Measured), GpuError> {
    let (from, to) = (Pattern::new(a, LARGE_BYTES, 7)?, Pattern::new(b, LARGE_BYTES, 7)?);
    from.fill(from.words)?;
    a.finish(KERNEL_LIMIT)?;
    b.copy_from(to.words, a, from.words, WORDS * 4)?;
    b.finish(KERNEL_LIMIT)?;
    let outcome = wrong_words(to.compare(to.words)?, WORDS);
    let large = timed(b, 5, || b.copy_from(to.words, a, from.words, LARGE_BYTES))?;
    let small = timed(b, 50, || b.copy_from(to.words, a, from.words, 4))?;
    Ok((outcome, Measured { bytes_per_s: Some(LARGE_BYTES as f64 / large), latency_s: Some(small), ..Measured::default() }))
}

/// A kernel of a writes b's memory, or reads it.
fn peer_kernel(a: &LabGpu, b: &LabGpu, store: bool) -> Result<(Outcome, Measured), GpuError> {
    let seed = if store { 11 } else { 13 };
    let (here, there) = (Pattern::new(a, LARGE_BYTES, seed)?, Pattern::new(b, LARGE_BYTES, seed)?);
    let count = if store {
        here.fill(there.words)?;
        a.finish(KERNEL_LIMIT)?;
        there.compare(there.words)?
    } else {
        there.fill(there.words)?;
        b.finish(KERNEL_LIMIT)?;
        here.compare(there.words)?
    };
    let (from, to) = if store { (here.words, there.words) } else { (there.words, here.words) };
    let large = timed(a, 5, || a.launch("check_move", GRID.0, GRID.1, &[from, to, LARGE_BYTES / 16]))?;
    Ok((wrong_words(count, WORDS), Measured { bytes_per_s: Some(LARGE_BYTES as f64 / large), ..Measured::default() }))
}

/// A captured graph of a fills its own memory anew, copies it to b, and stores to b: both must be new after every replay.
fn graph(a: &LabGpu, b: &LabGpu) -> Result<(Outcome, Measured), GpuError> {
    let (here, copied, stored) = (Pattern::new(a, WORDS * 4, 100)?, Pattern::new(b, WORDS * 4, 100)?, Pattern::new(b, WORDS * 4, 100)?);
    // Everything once before it is captured, as engines do.
    let steps = || {
        a.launch("check_next", 1, 1, &[here.seed])?;
        here.fill(here.words)?;
        a.copy_mapped(copied.words, here.words, WORDS * 4)?;
        here.fill(stored.words)
    };
    steps()?;
    a.finish(KERNEL_LIMIT)?;
    let captured = a.capture(steps)?;
    for replay in 0..REPLAYS {
        a.replay(&captured)?;
        a.finish(KERNEL_LIMIT)?;
        for (pattern, what) in [(&copied, "copied"), (&stored, "stored")] {
            b.write(pattern.seed, &[102 + replay])?;
            let count = pattern.compare(pattern.words)?;
            if count > 0 {
                let text = format!("replay {replay}: {count} of {WORDS} words that it {what} are wrong");
                return Ok((Outcome::Wrong(text), Measured::default()));
            }
        }
    }
    Ok((Outcome::Right, Measured::default()))
}

/// Flags in each other's memory, answered by turns.
fn flags(a: &LabGpu, b: &LabGpu) -> Result<(Outcome, Measured), GpuError> {
    let rounds = 1000u32;
    // A poll of one's own memory takes about half a microsecond; a second of them is far beyond any answer.
    let bound = 2_000_000u64;
    let (mine, theirs) = (Pattern::new(a, 64, 0)?, Pattern::new(b, 64, 0)?);
    a.write(mine.words, &[0u32])?;
    b.write(theirs.words, &[0u32])?;
    let ping = |start: u32, rounds: u32| -> Result<f64, GpuError> {
        let args = |own: u64, other: u64, first: u64, error: u64| [own, other, u64::from(start), first, u64::from(rounds), bound, error];
        b.launch("check_ping", 1, 1, &args(theirs.words, mine.words, 0, theirs.wrong))?;
        let begin = a.now()?;
        a.launch("check_ping", 1, 1, &args(mine.words, theirs.words, 1, mine.wrong))?;
        let end = a.now()?;
        a.finish(KERNEL_LIMIT)?;
        b.finish(KERNEL_LIMIT)?;
        a.seconds(&begin, &end)
    };
    ping(0, 10)?;
    let seconds = ping(10, rounds)?;
    for pattern in [&mine, &theirs] {
        let mut error = [0u32];
        pattern.gpu.read(pattern.wrong, &mut error)?;
        if error[0] > 0 {
            return Ok((Outcome::Wrong(format!("no answer in round {} of {rounds}", error[0])), Measured::default()));
        }
    }
    Ok((Outcome::Right, Measured { latency_s: Some(seconds / f64::from(2 * rounds)), ..Measured::default() }))
}

/// A GPU alone: its memory by value and rate, and what launches cost.
fn single(gpu: &LabGpu) -> Result<(Outcome, Measured), GpuError> {
    let bytes = 1u64 << 30;
    let (from, to) = (Pattern::new(gpu, bytes, 5)?, gpu.allocate(bytes)?);
    from.fill(from.words)?;
    gpu.launch("check_move", GRID.0, GRID.1, &[from.words, to, WORDS * 4 / 16])?;
    // The pattern's last words do not fill sixteen bytes.
    let moved = wrong_words(from.compare(from.words)?, WORDS);
    let rate = timed(gpu, 5, || gpu.launch("check_move", GRID.0, GRID.1, &[from.words, to, bytes / 16]))?;
    let (launches, nodes, replays) = (1000u32, 200u32, 20u32);
    let empty = || gpu.launch("check_nothing", 1, 32, &[]);
    timed(gpu, 10, empty)?;
    let begin = Instant::now();
    (0..launches).try_for_each(|_| empty())?;
    let eager = begin.elapsed().as_secs_f64() / f64::from(launches);
    gpu.finish(KERNEL_LIMIT)?;
    let captured = gpu.capture(|| (0..nodes).try_for_each(|_| empty()))?;
    let node = timed(gpu, replays, || gpu.replay(&captured))? / f64::from(nodes);
    let begin = Instant::now();
    gpu.replay(&captured)?;
    let graph_launch = begin.elapsed().as_secs_f64();
    gpu.finish(KERNEL_LIMIT)?;
    let measured = Measured {
        bytes_per_s: Some(2.0 * bytes as f64 / rate),
        eager_launch_s: Some(eager),
        graph_node_s: Some(node),
        graph_launch_s: Some(graph_launch),
        ..Measured::default()
    };
    Ok((moved, measured))
}
