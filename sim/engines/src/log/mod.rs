//! Start-up logs of SGLang and vLLM: what was free, what weights took, how large the pool became, where it died.
//!
//! Lines are looked at one by one and whatever is not known is passed over, so logs of any version, mixed with shell output or cut off, can be
//! read. Figures of several ranks are kept by the worst: the least free memory, the most weights.

mod patterns;
mod pin;

pub use pin::{Pinned, pin};

use crate::finding::Phase;
use crate::question::Engine;
use patterns::Patterns;

/// Longest line that is looked at, and lines of a log; what is beyond is passed over.
const MAX_LINE: usize = 64 * 1024;
const MAX_LINES: usize = 2_000_000;

/// What a log says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartUp {
    /// Who wrote it, where a line gives it away.
    pub engine: Option<Engine>,
    /// Version as printed.
    pub version: Option<String>,
    /// Free before loading, GiB (engines print GiB as GB).
    pub free_before_gib: Option<f64>,
    /// Free after loading.
    pub free_after_gib: Option<f64>,
    /// Weights on a GPU.
    pub weights_gib: Option<f64>,
    /// Bytes available to the pool.
    pub kv_gib: Option<f64>,
    /// Tokens of the pool.
    pub kv_tokens: Option<f64>,
    /// What one request of the longest length needs.
    pub required_kv_gib: Option<f64>,
    /// Longest length that the engine says would fit.
    pub suggested_max_model_len: Option<f64>,
    /// Captured graphs.
    pub graphs_gib: Option<f64>,
    /// Free at the end of start-up.
    pub free_at_end_gib: Option<f64>,
    /// What an allocator could not give, and what was free: the out-of-memory line.
    pub allocation: Option<Allocation>,
    /// The fraction that the log shows.
    pub fraction: Option<f64>,
    /// Last part of start-up that left a trace.
    pub reached: Option<Phase>,
    /// It serves.
    pub ready: bool,
    /// The exception that ended it: type and message.
    pub error: Option<Fault>,
}

/// An allocation that failed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allocation {
    /// Asked for, GiB.
    pub asked_gib: f64,
    /// Free, GiB.
    pub free_gib: Option<f64>,
    /// Size of the GPU, GiB.
    pub total_gib: Option<f64>,
}

/// The end of a traceback.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// `AssertionError`.
    pub kind: String,
    /// What follows it on its line.
    pub message: String,
    /// Number of its line, from 1.
    pub line: usize,
    /// Innermost function of the traceback.
    pub function: Option<String>,
    /// Part of start-up that the traceback's functions belong to.
    pub phase: Option<Phase>,
}

/// Reads a log.
pub fn read(text: &str) -> StartUp {
    let patterns = Patterns::get();
    let mut out = StartUp::default();
    let mut trace = Trace::default();
    let mut bare: Option<Fault> = None;
    for (number, raw) in text.lines().take(MAX_LINES).enumerate() {
        let line = raw.trim_end();
        if line.len() > MAX_LINE {
            continue;
        }
        let was_ready = out.ready;
        patterns.apply(line, &mut out);
        if out.ready && !was_ready {
            // What was printed before did not stop it.
            (out.error, bare) = (None, None);
        }
        let fault = trace.line(line, number + 1);
        // The first exception is the cause; what other ranks and the parent print after it follows from it. A server that is ready survives the
        // exceptions of single requests.
        if let Some(fault) = fault.filter(|_| !out.ready || trace.fatal) {
            out.error.get_or_insert(fault);
        }
        if !out.ready && bare.is_none() {
            bare = without_traceback(line, number + 1);
        }
    }
    out.error = out.error.or(bare);
    out
}

/// Ends that come without a traceback: the command line's own, an allocator's, the system's.
fn without_traceback(line: &str, number: usize) -> Option<Fault> {
    let fault = |kind: &str, message: &str, phase| Fault {
        kind: kind.to_owned(),
        message: message.trim().to_owned(),
        line: number,
        function: None,
        phase,
    };
    if let Some((program, says)) = line.split_once(": error: ") {
        let says_argument = ["argument ", "unrecognized arguments", "the following arguments are required", "ambiguous option"];
        return (!program.contains(' ') && says_argument.iter().any(|w| says.starts_with(w)) || program.starts_with("vllm "))
            .then(|| fault("argparse", says, Some(Phase::Parse)));
    }
    if let Some((_, says)) = line.split_once("OutOfMemoryError: ") {
        return Some(fault("OutOfMemoryError", says, None));
    }
    let (_, says) = line.split_once("Watchdog caught collective operation timeout").or_else(|| line.split_once("Fatal Python error"))?;
    Some(fault(
        if line.contains("Watchdog") { "collective operation timeout" } else { "Fatal Python error" },
        says.trim_start_matches(':'),
        None,
    ))
}

impl StartUp {
    /// Part of start-up in which it died: the traceback's, else the one after the last that left a trace. `None` where it did not.
    pub fn died_in(&self) -> Option<Phase> {
        let error = self.error.as_ref()?;
        if self.ready {
            return Some(Phase::Serve);
        }
        error.phase.or(self.reached).or(Some(Phase::Init))
    }
}

impl StartUp {
    /// Whether any line is one that an engine prints, or an exception in a function of one.
    pub fn recognised(&self) -> bool {
        let known_end = self.error.as_ref().is_some_and(|e| e.phase.is_some() || e.kind == "OutOfMemoryError");
        self.engine.is_some() || self.reached.is_some() || self.allocation.is_some() || known_end
    }
}

/// Follows tracebacks.
#[derive(Default)]
struct Trace {
    /// A line has said that the engine itself has stopped.
    fatal: bool,
    open: bool,
    function: Option<String>,
    phase: Option<Phase>,
}

impl Trace {
    fn line(&mut self, line: &str, number: usize) -> Option<Fault> {
        let text = stripped(line);
        self.fatal |= ["Scheduler hit an exception", "encountered a fatal error", "EngineCore failed"].iter().any(|w| line.contains(w));
        if text.contains("Traceback (most recent call last)") {
            *self = Self { open: true, fatal: self.fatal, ..Self::default() };
            return None;
        }
        if !self.open {
            return None;
        }
        if let Some((_, function)) = text.rsplit_once(", in ").filter(|_| text.trim_start().starts_with("File ")) {
            let function = function.trim().to_owned();
            self.phase = phase_of(&function).or(self.phase);
            self.function = Some(function);
            return None;
        }
        let (kind, message) = exception(text)?;
        self.open = false;
        let phase = message_phase(message).or(self.phase.take());
        Some(Fault { kind: kind.to_owned(), message: message.trim().to_owned(), line: number, function: self.function.take(), phase })
    }
}

/// A line without what engines print in front: `(EngineCore_DP0 pid=1) ERROR 10-02 [core.py:708] `, `[2026-02-20 10:00:00 TP3] `.
fn stripped(line: &str) -> &str {
    let mut text = line;
    for _ in 0..4 {
        let trimmed = text.trim_start();
        let rest = match trimmed.chars().next() {
            Some('(') => trimmed.split_once(") ").map(|(_, r)| r).filter(|_| trimmed.contains("pid=")),
            Some('[') => trimmed.split_once("] ").map(|(_, r)| r),
            _ if trimmed.starts_with("ERROR ") || trimmed.starts_with("INFO ") => {
                // Day and time, then `[core.py:708]`, `engine.py:366]` or nothing.
                let behind = trimmed.splitn(4, ' ').nth(3).unwrap_or_default();
                let place = behind.split_once("] ").filter(|(place, _)| place.contains(".py:") && !place.contains(' '));
                Some(place.map_or(behind, |(_, rest)| rest))
            }
            _ => None,
        };
        match rest {
            Some(rest) => text = rest,
            None => break,
        }
    }
    text
}

/// `torch.OutOfMemoryError: CUDA out of memory. ...`: a dotted name of letters that ends as exceptions do, at the start of the line.
fn exception(text: &str) -> Option<(&str, &str)> {
    let (head, message) = text.split_once(':').unwrap_or((text, ""));
    let name = head.rsplit('.').next()?;
    let plain = !head.is_empty() && head.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_'));
    let known = ["Error", "Exception", "Interrupt", "Exit"].iter().any(|end| name.ends_with(end));
    (plain && known).then_some((name, message))
}

/// Part of start-up that a function of the engines belongs to; inner functions outrank outer ones.
fn phase_of(function: &str) -> Option<Phase> {
    const FUNCTIONS: &[(&str, Phase)] = &[
        ("__post_init__", Phase::Parse),
        ("check_server_args", Phase::Parse),
        ("create_engine_config", Phase::Parse),
        ("parse_args", Phase::Parse),
        ("init_torch_distributed", Phase::Init),
        ("init_distributed_environment", Phase::Init),
        ("initialize_model_parallel", Phase::Init),
        ("init_worker_distributed_environment", Phase::Init),
        ("init_device", Phase::Init),
        ("load_model", Phase::Load),
        ("load_weights", Phase::Load),
        ("process_weights_after_loading", Phase::Load),
        ("create_weights", Phase::Load),
        ("init_memory_pool", Phase::KvAlloc),
        ("profile_max_num_token", Phase::KvAlloc),
        ("check_enough_kv_cache_memory", Phase::KvAlloc),
        ("_check_enough_kv_cache_memory", Phase::KvAlloc),
        ("get_kv_cache_configs", Phase::KvAlloc),
        ("initialize_kv_cache", Phase::KvAlloc),
        ("initialize_from_config", Phase::KvAlloc),
        ("determine_available_memory", Phase::Warmup),
        ("profile_run", Phase::Warmup),
        ("kernel_warmup", Phase::Warmup),
        ("compile_or_warm_up_model", Phase::GraphCapture),
        ("capture_model", Phase::GraphCapture),
        ("init_device_graphs", Phase::GraphCapture),
        ("init_cuda_graphs", Phase::GraphCapture),
        ("capture_one_batch_size", Phase::GraphCapture),
        ("_execute_server_warmup", Phase::Warmup),
    ];
    FUNCTIONS.iter().find(|(name, _)| *name == function).map(|(_, phase)| *phase)
}

/// Messages that name their part themselves.
fn message_phase(message: &str) -> Option<Phase> {
    const MESSAGES: &[(&str, Phase)] = &[
        ("Capture cuda graph failed", Phase::GraphCapture),
        ("No available memory for the cache blocks", Phase::KvAlloc),
        ("KV cache is needed", Phase::KvAlloc),
        ("leave no GPU memory for the KV cache", Phase::KvAlloc),
        ("Not enough memory. Please try", Phase::KvAlloc),
        ("less than desired GPU memory utilization", Phase::Init),
    ];
    MESSAGES.iter().find(|(words, _)| message.contains(words)).map(|(_, phase)| *phase)
}

#[cfg(test)]
mod tests;
