//! `moetwin run`: the program with real values.

mod answer;
mod flags;
mod inputs;

pub(super) use flags::gpus_at_hand;
pub(super) use inputs::cut;

use super::slice::Slice;
use crate::args::{DeploymentArgs, Switch, word};
use crate::error::{Failure, InputError, Outcome};
use crate::generation::{self, Job, OnGpus, Shown, generate, gpus, reference};
use crate::measurement::{Conditions, Measured};
use crate::output::{self, NewFile};
use crate::resolve;
use crate::values::{real, whole};
use answer::{json, report};
use clap::{Args, ValueEnum};
use flags::{all_reduce, check_ep_capacity, fuses_sums, injection, launcher, refuse_flags, tuning, without_effect};
use inputs::{made_up, open_text, prompts, text_prompt, weights};
use moetwin::cuda::exec::{CudaExecutor, CudaOptions};
use moetwin::cuda::launcher::Launcher;
use moetwin::models::{Deployment, RankId};
use moetwin::runtime::builtin;
use moetwin::runtime::text::Sampler;
use std::path::PathBuf;
use std::time::Duration;

/// Tokens generated per sequence unless told otherwise.
const DEFAULT_MAX_TOKENS: u32 = 64;
/// Tokens of a drawn prompt.
const DRAWN_PROMPT: u32 = 16;
/// Prompt of the shipped model.
const DEFAULT_PROMPT: &str = "ROMEO:";

/// Flags of a run that answers something, which one that only measures a step has no use for.
const ANSWERS: [&str; 5] = ["max_tokens", "dump", "record_routing", "inject", "ep_capacity"];
/// Longest wait for anything on GPUs unless told otherwise, seconds.
const DEFAULT_DEADLINE_S: u64 = 60;

fn delay() -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    real("microseconds from 0 to 1000000", |us| (0.0..=1e6).contains(&us))
}

/// Who executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The reference on the CPU, in f32.
    Cpu,
    /// CUDA and NCCL.
    Cuda,
}

/// Which code computes dense products of many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Matmul {
    /// Our own kernels.
    Own,
    /// cuBLASLt for 256 rows or more, the algorithm by its heuristic; our own kernels below, and where the library is missing.
    Cublaslt,
}

impl Backend {
    /// Name in JSON.
    fn name(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::Cuda => "cuda",
        }
    }
    /// Name in a sentence.
    fn words(self) -> &'static str {
        match self {
            Backend::Cpu => "the CPU reference",
            Backend::Cuda => "CUDA",
        }
    }
}

/// Arguments of `moetwin run`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin run
  moetwin run --prompt \"JULIET:\" --max-tokens 40 --temperature 0.8 --seed 7
  moetwin run --prompt-ids 1,2,3 --tp 2 --ep 2 --json
  moetwin run --synthetic --layers 2 --prompt-ids 5,6,7 --dump values.safetensors
  moetwin run --backend cuda --model kimi-k2.5 --synthetic --layers 8 --batch 4 --context 128
  moetwin run --backend cuda --tp 2 --allreduce one-shot
  moetwin run --backend cuda --model qwen3-30b-a3b --synthetic --batch 16 --trace measured.json
  moetwin run --backend cuda --model kimi-k2.5 --synthetic --tp 8 --only-rank 0

Without --model the small model that ships with moetwin runs: a mixture of experts with INT4 weights, trained on Shakespeare. The batch and its context come from the prompts; with --synthetic and no prompt, --batch prompts of --context tokens are drawn by --seed. The CPU reference computes in f32, in launch order; with --seed N it runs commands in
a seeded order that streams and events allow, which must not change a value.

With --backend cuda all ranks run in this process, one GPU each. Started by torchrun or srun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT, or Slurm's variables), each process runs one rank, so that several hosts can take part; rank 0 prints the answer. Sums over ranks
go by NCCL unless --allreduce says otherwise: `one-shot` is our own kernel over peer memory, `auto` takes it where every GPU of a group reaches
every other over NVLink.

With --trace the last pass is measured command by command, to be put beside a prediction by `moetwin compare`. With --only-rank one GPU runs
one rank of the split; what stands in for the others copies and takes --collective-delay, so only times mean anything. With --no-prompt all
ranks decode one step on a cache that nothing has filled.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    deployment: DeploymentArgs,
    /// Who executes: the CPU reference, or CUDA and NCCL
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Measure only this rank of the deployment, on one GPU; needs --backend cuda and --synthetic
    #[arg(long, value_name = "R", value_parser = whole::<u32>(0..=4095), conflicts_with_all = ANSWERS)]
    only_rank: Option<u32>,
    /// Measure a decode step on a cache that no prompt filled; for made-up weights on GPUs
    #[arg(long, conflicts_with_all = ANSWERS)]
    no_prompt: bool,
    /// With --only-rank: microseconds that each collective takes
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = delay(), allow_hyphen_values = true)]
    collective_delay: f64,
    /// Seeded weights (--seed) instead of a checkpoint's
    #[arg(long)]
    synthetic: bool,
    /// Only the first N layers
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=65_535))]
    layers: Option<u32>,
    /// Prompts: a safetensors file with `input_ids`, integers [sequences, tokens]
    #[arg(long, value_name = "FILE", group = "prompts")]
    input_ids: Option<PathBuf>,
    /// One prompt as token ids
    #[arg(long, value_name = "ID,ID,..", value_delimiter = ',', value_parser = whole::<u32>(0..=u32::MAX), group = "prompts")]
    prompt_ids: Option<Vec<u32>>,
    /// One prompt as text; needs the model's tokenizer.json
    #[arg(long, value_name = "TEXT", group = "prompts")]
    prompt: Option<String>,
    /// New tokens per sequence [default: 64]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1_048_576))]
    max_tokens: Option<u32>,
    /// 0 takes the likeliest token, more draws more freely (seeded by --seed)
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = real("a number of 0 or more", |t| t >= 0.0), allow_hyphen_values = true)]
    temperature: f64,
    /// Draw only among the likeliest tokens that together reach this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = real("a number above 0, at most 1", |p| p > 0.0 && p <= 1.0), allow_hyphen_values = true)]
    top_p: f64,
    /// Write logits, hidden states and router choices of the prompts, as safetensors
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Write how often each expert was chosen for the tokens of the prompts, a file for --routing
    #[arg(long, value_name = "FILE")]
    record_routing: Option<PathBuf>,
    /// Measure the last pass command by command and write it as a trace; needs --backend cuda
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Longest wait for anything on GPUs, seconds [default: 60]
    #[arg(long, value_name = "S", value_parser = whole::<u64>(1..=86_400))]
    deadline: Option<u64>,
    /// Products of many rows, as prompts make them [default: cublaslt]
    #[arg(long, value_enum)]
    matmul: Option<Matmul>,
    /// Rows that a rank may send to another one's experts in a pass [default: all]
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<u32>(1..=1_048_576),
        long_help = "\
Rows that a rank may send to another rank's experts in a pass (--a2a, --backend cuda). Less than all of them are packed and sent alone; a pass with \
more is an error that names the rank and how many there were. By default there is room for all"
    )]
    ep_capacity: Option<u32>,
    /// Make a rank fail on purpose: a seed, or RANK:PHASE.CALL:KIND as in 1:connect.0:die
    #[arg(
        long,
        value_name = "FAULT",
        long_help = "\
Make one rank fail on purpose, to see that the run ends with its name: `RANK:PHASE.CALL:KIND` with PHASE open, load, connect, allocate, \
warm-up, capture or serve, CALL the driver call of that phase from 0, and KIND die, stall, hang or oom; or a seed, which chooses all four"
    )]
    inject: Option<String>,
}

impl RunArgs {
    fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline.unwrap_or(DEFAULT_DEADLINE_S))
    }
    /// Says which flags were given and change nothing.
    fn note_without_effect(&self) {
        for (flag, on) in without_effect(self) {
            output::note(&format!("note: {flag} has no effect on {on}"));
        }
    }
}

/// Executes the program.
pub(crate) fn run(args: &RunArgs) -> Result<Outcome, Failure> {
    refuse_flags(args)?;
    let launcher = match args.backend {
        Backend::Cpu => None,
        Backend::Cuda => launcher()?,
    };
    let deployment = args.deployment.deployment(launcher.as_ref().map_or(1, |l| l.size))?;
    if args.only_rank.is_some() || args.no_prompt {
        return slice_of(args, args.only_rank.map(RankId), deployment, launcher.as_ref());
    }
    if let Some(l) = &launcher
        && l.size != deployment.ranks()
    {
        let message =
            format!("the launcher started so many processes, and the flags make {} ranks: each process runs one", deployment.ranks());
        let accepted = [format!("{} processes", deployment.ranks()), format!("--tp {} and no other split", l.size)];
        return Err(InputError::new("WORLD_SIZE", message).value(l.size.to_string()).accepted(accepted).into());
    }
    let inject = args.inject.as_deref().map(|text| injection(text, args.backend, deployment.ranks())).transpose()?;
    check_ep_capacity(args, &deployment)?;
    let all_reduce = all_reduce(args)?;
    let gpus = if args.backend == Backend::Cuda { gpus_at_hand(deployment.ranks(), launcher.as_ref())? } else { Vec::new() };
    let how = OnGpus {
        deadline: args.deadline(),
        graphs: args.deployment.graphs != Some(Switch::Off),
        inject,
        all_reduce,
        expert_capacity: args.ep_capacity,
        library: args.matmul != Some(Matmul::Own),
        launcher: launcher.as_ref().filter(|l| l.size > 1),
        gpus,
        tuning: tuning(args)?,
    };
    execute(args, deployment, &how)
}

fn execute(args: &RunArgs, deployment: Deployment, how: &OnGpus<'_>) -> Result<Outcome, Failure> {
    // Every process computes the answer, one tells it.
    let first = how.launcher.is_none_or(|l| l.rank == 0);
    let dump = args.dump.as_deref().filter(|_| first).map(|path| NewFile::plan("--dump", path)).transpose()?;
    let trace = args.trace.as_deref().filter(|_| first).map(|path| NewFile::plan("--trace", path)).transpose()?;
    let routing = args.record_routing.as_deref().filter(|_| first).map(|path| NewFile::plan("--record-routing", path)).transpose()?;
    let name = args.deployment.model.as_deref().unwrap_or(builtin::NAME);
    let model = resolve::model("--model", name)?;
    let spec = cut(model.spec, args.layers)?;
    if !spec.executable {
        return Err(InputError::new("--model", format!("{} is modelled for cost only, its values are not computed", spec.model_type))
            .value(name)
            .into());
    }
    let sampler = Sampler::new(args.temperature, args.top_p, args.deployment.seed)
        .map_err(|e| InputError::new(if e.to_string().starts_with("top-p") { "--top-p" } else { "--temperature" }, e.to_string()))?;
    let text = text_prompt(args).map(|text| open_text(text, &model.weights, &spec)).transpose()?;
    let prompts = prompts(args, &spec, text.as_ref())?;
    args.note_without_effect();
    let weights = weights(args, name, &model.weights, &spec)?;
    if args.backend == Backend::Cpu {
        generation::holds(&spec, name, generation::available_bytes())?;
    }
    let job = Job {
        spec: &spec,
        weights: weights.as_ref(),
        deployment,
        fuse_sums: fuses_sums(&args.deployment),
        prompts: &prompts,
        max_tokens: args.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
        sampler,
        order_seed: args.deployment.seed,
        stop: text.as_ref().map_or(&[], |t| &t.stop),
        dump: args.dump.is_some() || args.record_routing.is_some(),
        // One eager pass and the one that captures.
        warm_passes: if args.backend == Backend::Cuda && args.deployment.graphs != Some(Switch::Off) { 2 } else { 0 },
    };
    let stream = text.as_ref().filter(|_| first && !args.deployment.json);
    let shown = stream.map(|t| Shown { prompt: t.prompt, model: &t.model });
    let mut measured = None;
    let generated = match args.backend {
        Backend::Cpu => generate(&job, |capacity| Ok(reference(&job, capacity)), shown, |_, _, _| Ok(()))?,
        Backend::Cuda => generate(
            &job,
            |capacity| gpus(&job, capacity, how),
            shown,
            |executor, key, inputs| {
                if args.trace.is_some() {
                    let of = conditions(args, name, &job.deployment);
                    measured = Some(Measured::of(executor, key, inputs, of)?);
                }
                Ok(())
            },
        )?,
    };
    if let (Some(file), Some(measured)) = (trace, &measured) {
        file.commit(measured.trace()?.as_bytes())?;
        output::note(&measured.words());
    }
    if let Some(file) = dump {
        file.commit(&generated.dump)?;
    }
    if let Some(file) = routing {
        file.commit(&generated.routing(&spec)?)?;
    }
    if !first {
        return Ok(Outcome::Yes);
    }
    if args.deployment.json {
        output::answer_json(&json(&spec, &job, &generated, args.backend, measured.as_ref()))?;
    } else {
        output::answer(&report(&spec, &job, &generated, stream.is_some(), args.backend))?;
    }
    Ok(Outcome::Yes)
}

/// What a measured step of these flags is of.
fn conditions(args: &RunArgs, model: &str, deployment: &Deployment) -> Conditions {
    Conditions {
        model: model.to_owned(),
        layers: args.layers,
        seed: args.deployment.seed,
        synthetic: args.synthetic,
        allreduce: args.deployment.allreduce.map(word).unwrap_or_default(),
        fuse_allreduce: args.deployment.fuse_allreduce.map(word).unwrap_or_default(),
        ..Conditions::here(deployment)
    }
}

/// A decode step that is measured and answers nothing: of one rank, or of all where none is named.
fn slice_of(args: &RunArgs, rank: Option<RankId>, deployment: Deployment, launcher: Option<&Launcher>) -> Result<Outcome, Failure> {
    let ranks = deployment.ranks();
    let wrong = |message: String, accepted: String| match rank {
        Some(rank) => InputError::new("--only-rank", message).value(rank.0.to_string()).accepted([accepted]),
        None => InputError::new("--no-prompt", message).accepted([accepted]),
    };
    if rank.is_some_and(|rank| rank.0 >= ranks) {
        return Err(wrong(format!("the flags make {ranks} ranks"), format!("0 to {}", ranks - 1)).into());
    }
    if launcher.is_some_and(|l| l.size > 1) {
        return Err(wrong("is one process by itself, and a launcher started several".to_owned(), "no launcher".to_owned()).into());
    }
    let trace = args.trace.as_deref().map(|path| NewFile::plan("--trace", path)).transpose()?;
    let name = args.deployment.model.as_deref().unwrap_or(builtin::NAME);
    let spec = cut(resolve::model("--model", name)?.spec, args.layers)?;
    let step = args.deployment.step(&spec)?;
    let all_reduce = all_reduce(args)?;
    args.note_without_effect();
    let at_hand = gpus_at_hand(if rank.is_some() { 1 } else { ranks }, None)?;
    let memory_bytes = at_hand.first().map_or(0, |g| g.memory_bytes);
    let options = CudaOptions {
        graphs: args.deployment.graphs != Some(Switch::Off),
        all_reduce,
        library: args.matmul != Some(Matmul::Own),
        stand_in: rank.map(|_| Duration::from_secs_f64(args.collective_delay / 1e6)),
        ..CudaOptions::new(0, args.deadline())
    };
    let mut of = conditions(args, name, &deployment);
    of.collective_delay_us = rank.map(|_| args.collective_delay);
    let weights = made_up(args, &spec)?;
    let fuse_sums = fuses_sums(&args.deployment);
    let slice = Slice { spec: &spec, weights: &weights, deployment, fuse_sums, step, rank, seed: args.deployment.seed, conditions: of };
    let tuning = tuning(args)?;
    let open = |capacity| {
        let options = CudaOptions { capacity, ..options };
        let mut executor = match rank {
            Some(rank) => CudaExecutor::open_alone(rank, ranks, options)?,
            None => CudaExecutor::open(ranks, options)?,
        };
        executor.set_tuning(tuning);
        Ok(executor)
    };
    slice.measure(memory_bytes, open)?.report(&spec.name, args.deployment.seed, args.deployment.json, trace)
}
