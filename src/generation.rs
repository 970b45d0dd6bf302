//! Prompts in, tokens out: a session driven pass by pass, with a clock beside it.

use crate::digest::digest;
use crate::error::{Failure, InputError};
use crate::output;
use crate::room;
use crate::scenario::plan_failure;
use moetwin::cuda::exec::inject::Injection;
use moetwin::cuda::exec::{AllReduceBackend, CudaExecutor, CudaOptions};
use moetwin::cuda::launcher::Launcher;
use moetwin::cuda::link::Link;
use moetwin::cuda::probe::Gpu;
use moetwin::kernels::launch::Tuning;
use moetwin::kernels::reference::{Array, Data};
use moetwin::kernels::routing::RoutingHistogram;
use moetwin::models::spec::Ffn;
use moetwin::models::{Deployment, ModelSpec, RankId};
use moetwin::runtime::reference::{NamedValue, Order, ReferenceExecutor, StepInputs};
use moetwin::runtime::session::{Session, SessionError, SessionOptions, StepOutput};
use moetwin::runtime::text::{Sampler, TextModel};
use moetwin::runtime::weights::{OutTensor, WeightSource, write_to};
use moetwin::runtime::{Executor, LowerOptions, ProgramKey};
use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long processes wait for each other to be started: a launcher starts hosts one after the other.
const MEETING_DEADLINE: Duration = Duration::from_secs(120);

/// What is to be generated.
pub(crate) struct Job<'a> {
    /// The model.
    pub(crate) spec: &'a ModelSpec,
    /// Its weights.
    pub(crate) weights: &'a dyn WeightSource,
    /// How it is split.
    pub(crate) deployment: Deployment,
    /// Whether sums over ranks are fused with the norms behind them.
    pub(crate) fuse_sums: bool,
    /// Prompts, none empty.
    pub(crate) prompts: &'a [Vec<i32>],
    /// New tokens per sequence, at least one.
    pub(crate) max_tokens: u32,
    /// How tokens are chosen.
    pub(crate) sampler: Sampler,
    /// Seed of the order of commands; 0 is launch order.
    pub(crate) order_seed: u64,
    /// Tokens that end a sequence; the run ends once every sequence has one.
    pub(crate) stop: &'a [u32],
    /// Whether the values of the prompts are kept.
    pub(crate) dump: bool,
    /// Decode passes that prepare the ones that are timed.
    pub(crate) warm_passes: usize,
}

impl Job<'_> {
    /// How its programs are lowered.
    pub(crate) fn lower(&self) -> LowerOptions {
        LowerOptions { fuse_sums: self.fuse_sums, ..LowerOptions::default() }
    }
}

/// What was generated.
pub(crate) struct Generated {
    /// New tokens by sequence.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// Exchanges that a pass issues, pipeline sends included.
    pub(crate) collectives: u64,
    /// The values of the prompts as a safetensors file.
    pub(crate) dump: Vec<u8>,
    /// Experts chosen for the tokens of the prompts, by layer; only where values are kept.
    chosen: BTreeMap<u16, Vec<i32>>,
    /// Time of each decode pass.
    passes: Vec<Duration>,
    /// Decode passes that come before the captured ones: one eager, one that captures. Timed only where there are no others.
    warm: usize,
}

impl Generated {
    /// Median and 99th percentile of the decode passes, milliseconds.
    pub(crate) fn step_quantiles_ms(&self) -> Option<(f64, f64)> {
        let mut sorted = self.passes.get(self.warm..).filter(|p| !p.is_empty())?.to_vec();
        sorted.sort();
        let at = |quantile: f64| {
            let index = (quantile * sorted.len() as f64).ceil() as usize;
            sorted.get(index.max(1) - 1).map(|d| d.as_secs_f64() * 1e3)
        };
        Some((at(0.5)?, at(0.99)?))
    }
    /// How often each expert was chosen for the prompts, as a file that `--routing` reads.
    pub(crate) fn routing(&self, spec: &ModelSpec) -> Result<Vec<u8>, Failure> {
        let mut layers = BTreeMap::new();
        for (&layer, ids) in &self.chosen {
            let Some(Ffn::Moe(moe)) = spec.layers.get(usize::from(layer)).map(|l| &l.ffn) else { continue };
            let mut counts = vec![0u64; moe.experts as usize];
            ids.iter().filter_map(|id| usize::try_from(*id).ok()).for_each(|id| counts[id] += 1);
            layers.insert(layer, counts);
        }
        serde_json::to_vec(&RoutingHistogram { schema: 1, layers }).map_err(|e| Failure::Running(format!("--record-routing: {e}")))
    }
    /// New tokens a second over the decode passes, summed over sequences.
    pub(crate) fn tokens_per_s(&self) -> Option<f64> {
        let passes = self.passes.get(self.warm..)?;
        let seconds = passes.iter().sum::<Duration>().as_secs_f64();
        let tokens = (self.tokens.len() * passes.len()) as f64;
        (seconds > 0.0).then(|| tokens / seconds)
    }
}

/// Whether this machine's memory holds a model: the CPU reference keeps every parameter as an f32, at least once over all ranks.
pub(crate) fn holds(spec: &ModelSpec, name: &str, available_bytes: Option<u64>) -> Result<(), Failure> {
    let need = spec.total_parameters().saturating_mul(4);
    let Some(available) = available_bytes.filter(|free| *free < need) else { return Ok(()) };
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let message = format!(
        "the CPU reference keeps parameters as f32: {:.1} GiB of them, and {:.1} GiB of memory are free",
        gib(need),
        gib(available)
    );
    Err(InputError::new("--model", message).value(name).accepted(["fewer layers by --synthetic --layers N", "--backend cuda"]).into())
}

/// Memory that Linux would give without swapping; `None` where it does not say.
pub(crate) fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The CPU reference with room for `capacity` tokens a sequence.
pub(crate) fn reference(job: &Job<'_>, capacity: u32) -> ReferenceExecutor<f32> {
    let order = if job.order_seed == 0 { Order::Launch } else { Order::Seeded(job.order_seed) };
    ReferenceExecutor::new(job.deployment.ranks(), capacity, order)
}

/// How a job runs on GPUs.
pub(crate) struct OnGpus<'a> {
    /// Whether decode programs are captured.
    pub(crate) graphs: bool,
    /// A fault to inject.
    pub(crate) inject: Option<Injection>,
    /// Which code sums over ranks.
    pub(crate) all_reduce: AllReduceBackend,
    /// Rows that a rank may send to another one's experts.
    pub(crate) expert_capacity: Option<u32>,
    /// Whether cuBLASLt computes products of many rows.
    pub(crate) library: bool,
    /// Longest wait for any rank.
    pub(crate) deadline: Duration,
    /// This process's place, where a launcher has started one process a rank.
    pub(crate) launcher: Option<&'a Launcher>,
    /// GPUs that this process sees.
    pub(crate) gpus: Vec<Gpu>,
    /// Launches that were measured to be faster than the constants'.
    pub(crate) tuning: Tuning,
}

/// GPUs with room for `capacity` tokens a sequence.
pub(crate) fn gpus(job: &Job<'_>, capacity: u32, how: &OnGpus<'_>) -> Result<CudaExecutor, Failure> {
    let (remarks, remarked) = channel();
    // As they come: a run may end before it returns. Of several processes the first one tells, and the one whose fault is watched.
    let tells = how.launcher.is_none_or(|l| l.rank == 0 || how.inject.is_some_and(|i| i.rank.0 == l.rank));
    std::thread::spawn(move || remarked.into_iter().filter(|_| tells).for_each(|r: String| output::note(&format!("note: {r}"))));
    let options = CudaOptions {
        capacity,
        deadline: how.deadline,
        graphs: how.graphs,
        inject: how.inject,
        all_reduce: how.all_reduce,
        expert_capacity: how.expert_capacity,
        library: how.library,
        remarks: Some(remarks),
        stand_in: None,
    };
    let running = |e: String| Failure::Running(e);
    // A launcher that shows each process only its own GPU has numbered it 0.
    let ordinal = |l: &Launcher| if how.gpus.len() == 1 { 0 } else { l.local_rank as usize };
    let ranks: Vec<(RankId, usize)> = match how.launcher {
        None => (0..job.deployment.ranks()).map(|r| (RankId(r), r as usize)).collect(),
        Some(l) => vec![(RankId(l.rank), ordinal(l))],
    };
    room::check(job, capacity, &ranks, &how.gpus)?;
    let Some(launcher) = how.launcher else {
        let mut executor = CudaExecutor::open(job.deployment.ranks(), options).map_err(|e| running(e.to_string()))?;
        executor.set_tuning(how.tuning.clone());
        return Ok(executor);
    };
    let same = (
        (&job.spec, &job.deployment, job.prompts, job.max_tokens),
        (job.order_seed, format!("{:?}", job.sampler), job.stop, job.dump, how.graphs, capacity),
        (format!("{:?}", how.all_reduce), how.expert_capacity, how.library),
    );
    let digest = digest(&same).map_err(|e| running(e.to_string()))?;
    let link = Link::establish(launcher, &digest, MEETING_DEADLINE).map_err(|e| running(e.to_string()))?;
    let mut executor = CudaExecutor::open_one(RankId(launcher.rank), ordinal(launcher), launcher.size, link, options)
        .map_err(|e| running(e.to_string()))?;
    executor.set_tuning(how.tuning.clone());
    Ok(executor)
}

/// Text that is printed while it comes.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    /// The prompt, printed before the first token and not before the model has started: what is refused has printed nothing.
    pub(crate) prompt: &'a str,
    /// Turns tokens into text.
    pub(crate) model: &'a TextModel,
}

/// Runs the job on the executor that `open` makes for a number of tokens a sequence; with `shown`, the first sequence's text is printed as
/// it comes. `after` gets the executor with the latest pass.
pub(crate) fn generate<E: Executor<Number = f32>>(
    job: &Job<'_>,
    open: impl FnOnce(u32) -> Result<E, Failure>,
    shown: Option<Shown<'_>>,
    after: impl FnOnce(&mut E, ProgramKey, &StepInputs) -> Result<(), Failure>,
) -> Result<Generated, Failure> {
    let longest = job.prompts.iter().map(Vec::len).max().unwrap_or(0);
    let capacity = u32::try_from(longest).ok().and_then(|n| n.checked_add(job.max_tokens));
    let capacity = capacity.ok_or_else(|| Failure::from(InputError::new("--max-tokens", "the sequences would be too long")))?;
    let executor = open(capacity)?;
    let options = SessionOptions { deployment: job.deployment.clone(), lower: job.lower(), dump: job.dump };
    let session = Session::new(job.spec, job.weights, executor, options, capacity);
    let mut session = if job.sampler == Sampler::Greedy { session.greedy() } else { session };
    let failed = |e: SessionError| session_failure(e, &job.deployment);

    let prefill = session.prefill(job.prompts).map_err(failed)?;
    let rows: Vec<u32> = job.prompts.iter().map(|p| if job.dump { p.len() as u32 } else { 1 }).collect();
    let dump = if job.dump { dump(prefill.values.as_slice())? } else { Vec::new() };
    let chosen = prefill.values.iter().filter_map(chosen_experts).collect();
    let mut text = shown.map(|s| s.model.stream());
    let mut print = |token: u32| -> Result<(), Failure> {
        match text.as_mut().map(|t| t.push(token)) {
            Some(Ok(piece)) => output::piece(&piece),
            Some(Err(e)) => Err(Failure::Running(e.to_string())),
            None => Ok(()),
        }
    };
    let mut next = choose(job, &prefill, &rows, 0)?;
    let mut tokens: Vec<Vec<u32>> = next.iter().map(|t| vec![*t]).collect();
    if let Some(shown) = shown {
        output::piece(shown.prompt)?;
    }
    print(next[0])?;
    let mut passes = Vec::new();
    let one_row = vec![1; job.prompts.len()];
    let ended = |tokens: &[Vec<u32>]| tokens.iter().all(|list| list.iter().any(|t| job.stop.contains(t)));
    for position in 1..job.max_tokens {
        if ended(&tokens) {
            break;
        }
        let begin = Instant::now();
        let inputs: Vec<i32> = next.iter().map(|t| i32::try_from(*t).unwrap_or(i32::MAX)).collect();
        let out = session.decode(&inputs).map_err(failed)?;
        next = choose(job, &out, &one_row, position)?;
        passes.push(begin.elapsed());
        tokens.iter_mut().zip(&next).for_each(|(list, t)| list.push(*t));
        print(next[0])?;
    }
    if let Some(text) = text {
        output::piece(&text.finish().map_err(|e| Failure::Running(e.to_string()))?)?;
    }
    let (executor, key, inputs) = session.latest().map_err(failed)?;
    after(executor, key, &inputs)?;
    let warm = if passes.len() > job.warm_passes { job.warm_passes } else { 0 };
    Ok(Generated { tokens, collectives: session.collectives(), dump, chosen, passes, warm })
}

/// The layer of a value that holds chosen experts, and the experts.
fn chosen_experts(value: &NamedValue<f32>) -> Option<(u16, Vec<i32>)> {
    let layer = value.name.strip_prefix("router.")?.strip_suffix(".experts")?.parse().ok()?;
    match &value.value.data {
        Data::Int(ids) => Some((layer, ids.clone())),
        Data::Real(_) => None,
    }
}

/// The next token of every sequence.
fn choose(job: &Job<'_>, out: &StepOutput<f32>, rows: &[u32], position: u32) -> Result<Vec<u32>, Failure> {
    if out.get("logits").is_none()
        && let Some(ids) = out.get("next_ids").and_then(Array::as_int)
    {
        let chosen = |(sequence, id): (usize, &i32)| u32::try_from(*id).map_err(|_| not_finite(sequence, position, None));
        return ids.iter().enumerate().map(chosen).collect();
    }
    let logits = out.last_logits(rows);
    for (sequence, row) in logits.iter().enumerate() {
        if let Some(found) = row.iter().enumerate().find(|(_, l)| !l.is_finite()) {
            return Err(not_finite(sequence, position, Some(found)));
        }
    }
    let choice = |(sequence, row): (usize, &Vec<f32>)| job.sampler.next(row, sequence as u64, u64::from(position));
    let next: Result<Vec<u32>, _> = logits.iter().enumerate().map(choice).collect();
    match next {
        Ok(next) if next.len() == job.prompts.len() => Ok(next),
        Ok(next) => {
            Err(Failure::Running(format!("{} rows of logits for {} sequences, a defect of moetwin", next.len(), job.prompts.len())))
        }
        Err(e) => Err(Failure::Running(e.to_string())),
    }
}

/// What is wrong where a sequence has no next token: one of its logits is no finite number, so none of them can be trusted.
fn not_finite(sequence: usize, position: u32, found: Option<(usize, &f32)>) -> Failure {
    let what = match found {
        Some((token, logit)) => format!("the logit of token {token} is {logit}"),
        None => "a logit is NaN or infinite".to_owned(),
    };
    Failure::Running(format!(
        "sequence {sequence} has no new token {position}: {what}. A weight is not finite, or values left the range of bf16; the same run with \
         `--backend cpu` names the first command whose result is not finite"
    ))
}

/// Named results as a safetensors file; the chosen ids are the caller's to print.
fn dump(values: &[NamedValue<f32>]) -> Result<Vec<u8>, Failure> {
    let tensor = |v: &NamedValue<f32>| {
        let shape = v.value.sizes.iter().map(|s| *s as u64).collect();
        match &v.value.data {
            Data::Real(data) => OutTensor::f32(v.name.clone(), shape, data.clone()),
            Data::Int(data) => OutTensor::i32(v.name.clone(), shape, data.clone()),
        }
    };
    let tensors: Vec<OutTensor> = values.iter().filter(|v| v.name != "next_ids").map(tensor).collect();
    let mut bytes = Vec::new();
    write_to(&mut bytes, &tensors).map_err(|e| Failure::Running(format!("--dump: {e}")))?;
    Ok(bytes)
}

fn session_failure(e: SessionError, deployment: &Deployment) -> Failure {
    match e {
        SessionError::Plan(e) => plan_failure(&e, deployment),
        SessionError::Split(e) => InputError::new("--tp", e.to_string()).into(),
        SessionError::Prompts(e) => InputError::new("prompts", e).into(),
        SessionError::Execute(_) | SessionError::Program(_) | SessionError::Start(_) => Failure::Running(e.to_string()),
    }
}
