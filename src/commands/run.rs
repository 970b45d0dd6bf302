//! `moetwin run`: the program with real values.

use super::slice::Slice;
use crate::args::{AllReduceKind, DeploymentArgs, Speculation, Switch, not_yet};
use crate::error::{Failure, InputError, Outcome};
use crate::generation::{self, Generated, Job, OnGpus, generate, gpus, reference};
use crate::measurement::{ClassJson, Conditions, Measured};
use crate::output::{self, NewFile};
use crate::prompt;
use crate::resolve::{self, Place};
use crate::scenario::routing;
use clap::{Args, ValueEnum};
use moetwin::cuda::exec::inject::Injection;
use moetwin::cuda::exec::{AllReduceBackend, CudaExecutor, CudaOptions};
use moetwin::cuda::launcher::Launcher;
use moetwin::cuda::{Search, probe};
use moetwin::kernels::launch::Tuning;
use moetwin::models::{AllToAll, Deployment, ModelSpec, RankId};
use moetwin::runtime::builtin;
use moetwin::runtime::text::{Sampler, TextError, TextModel, stop_tokens};
use moetwin::runtime::weights::{CheckpointWeights, Layers, SyntheticWeights, UnroutableModel, WeightSource, first_layers};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Tokens generated per sequence unless told otherwise.
const DEFAULT_MAX_TOKENS: u32 = 64;
/// Tokens of a drawn prompt.
const DRAWN_PROMPT: u32 = 16;
/// Prompt of the shipped model.
const DEFAULT_PROMPT: &str = "ROMEO:";

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
MASTER_PORT, or Slurm's variables), each process runs one rank, so that several hosts can take part; rank 0 prints the answer.

With --trace the last pass is measured command by command, to be put beside a prediction by `moetwin compare`. With --only-rank one GPU runs
one rank of the split; what stands in for the others copies and takes --collective-delay, so only times mean anything.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    deployment: DeploymentArgs,
    /// Who executes: the CPU reference, or CUDA and NCCL
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Measure only this rank of the deployment, on one GPU; needs --backend cuda and --synthetic
    #[arg(long, value_name = "R")]
    only_rank: Option<u32>,
    /// With --only-rank: microseconds that each collective takes
    #[arg(long, value_name = "US", default_value_t = 0.0, allow_hyphen_values = true)]
    collective_delay: f64,
    /// Seeded weights (--seed) instead of a checkpoint's
    #[arg(long)]
    synthetic: bool,
    /// Only the first N layers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    layers: Option<u32>,
    /// Prompts: a safetensors file with `input_ids`, integers [sequences, tokens]
    #[arg(long, value_name = "FILE", group = "prompts")]
    input_ids: Option<PathBuf>,
    /// One prompt as token ids
    #[arg(long, value_name = "ID,ID,..", value_delimiter = ',', group = "prompts")]
    prompt_ids: Option<Vec<u32>>,
    /// One prompt as text; needs the model's tokenizer.json
    #[arg(long, value_name = "TEXT", group = "prompts")]
    prompt: Option<String>,
    /// New tokens per sequence [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    max_tokens: Option<u32>,
    /// 0 takes the likeliest token, more draws more freely (seeded by --seed)
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_hyphen_values = true)]
    temperature: f64,
    /// Draw only among the likeliest tokens that together reach this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_hyphen_values = true)]
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
    /// Longest wait for anything on GPUs, seconds
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    deadline: u64,
    /// Products of many rows, as prompts make them [default: cublaslt]
    #[arg(long, value_enum)]
    matmul: Option<Matmul>,
    /// Rows that a rank may send to another one's experts in a pass [default: all]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_048_576),
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

/// Executes the program.
pub(crate) fn run(args: &RunArgs) -> Result<Outcome, Failure> {
    refuse_flags(args)?;
    let launcher = match args.backend {
        Backend::Cpu => None,
        Backend::Cuda => launcher()?,
    };
    let deployment = args.deployment.deployment(launcher.as_ref().map_or(1, |l| l.size))?;
    if let Some(rank) = args.only_rank {
        return slice_of(args, RankId(rank), deployment, launcher.as_ref());
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
    let visible = if args.backend == Backend::Cuda { gpus_at_hand(deployment.ranks(), launcher.as_ref())? } else { 0 };
    let how = OnGpus {
        deadline: Duration::from_secs(args.deadline),
        graphs: args.deployment.graphs != Some(Switch::Off),
        inject,
        all_reduce,
        expert_capacity: args.ep_capacity,
        library: args.matmul != Some(Matmul::Own),
        launcher: launcher.as_ref().filter(|l| l.size > 1),
        visible,
        tuning: tuning(args)?,
    };
    execute(args, deployment, &how)
}

/// This process's place among those that a launcher has started.
fn launcher() -> Result<Option<Launcher>, Failure> {
    Launcher::read(|name| std::env::var(name).ok()).map_err(|e| {
        let error = InputError::new(e.variable, e.message).accepted([e.accepted]);
        if let Some(value) = e.value { error.value(value).into() } else { error.into() }
    })
}

fn injection(text: &str, backend: Backend, ranks: u32) -> Result<Injection, Failure> {
    if backend == Backend::Cpu {
        return Err(InputError::new("--inject", "is for --backend cuda: the CPU reference calls no driver").value(text).into());
    }
    let injection = Injection::parse(text, ranks).map_err(|e| InputError::new("--inject", e).value(text))?;
    output::note(&format!("injecting {injection}"));
    Ok(injection)
}

/// Room in the buffers of experts, for a run that has such.
fn check_ep_capacity(args: &RunArgs, deployment: &Deployment) -> Result<(), Failure> {
    let Some(rows) = args.ep_capacity else { return Ok(()) };
    let refuse = |why: &str, accepted: &str| {
        Err(InputError::new("--ep-capacity", why)
            .value(rows.to_string())
            .accepted([accepted, "no --ep-capacity: room for all rows"])
            .into())
    };
    if args.backend == Backend::Cpu {
        return refuse("is for --backend cuda: the CPU reference has no buffers", "--backend cuda");
    }
    if deployment.a2a == AllToAll::None {
        return refuse("is for runs that send rows to experts of other ranks", "--a2a nccl with --ep of 2 or more");
    }
    Ok(())
}

/// Which code sums over the ranks of a run.
fn all_reduce(args: &RunArgs) -> Result<AllReduceBackend, Failure> {
    match args.deployment.allreduce {
        _ if args.backend == Backend::Cpu => Ok(AllReduceBackend::Nccl),
        None | Some(AllReduceKind::Auto | AllReduceKind::Nccl) => Ok(AllReduceBackend::Nccl),
        Some(AllReduceKind::OneShot) => Ok(AllReduceBackend::OneShot),
        Some(AllReduceKind::Engine) => Err(InputError::new("--allreduce", "no engine's kernels are run here; moetwin sim predicts them")
            .value("engine")
            .accepted(["auto", "nccl", "one-shot"])
            .into()),
        Some(AllReduceKind::TwoShot) => Err(not_yet("--allreduce", "two-shot", &["auto", "nccl", "one-shot"])),
    }
}

/// Flags that a run cannot obey.
fn refuse_flags(args: &RunArgs) -> Result<(), Failure> {
    let d = &args.deployment;
    for (flag, given) in [("--batch", d.batch.is_some()), ("--context", d.context.is_some()), ("--phase", d.phase.is_some())] {
        if given && (flag == "--phase" || !drawn_prompts(args)) {
            let accepted = ["--input-ids FILE", "--prompt-ids ID,ID,..", "--prompt TEXT", "--synthetic without prompts"];
            return Err(InputError::new(flag, "is not for run: the prompts decide it").accepted(accepted).into());
        }
    }
    if d.spec.is_some_and(|s| s != Speculation::None) || d.spec_accept.is_some() {
        return Err(InputError::new("--spec", "is not for run: no draft is executed; moetwin sim predicts it").accepted(["none"]).into());
    }
    if let Some(rank) = args.only_rank
        && !(drawn_prompts(args) && args.backend == Backend::Cuda)
    {
        let error =
            InputError::new("--only-rank", "measures a rank with made-up weights and tokens: what other ranks would send is not there");
        return Err(error.value(rank.to_string()).accepted(["--backend cuda --synthetic and no prompt"]).into());
    }
    let delay = args.collective_delay;
    if delay != 0.0 && (args.only_rank.is_none() || !(0.0..=1e6).contains(&delay)) {
        let error = InputError::new("--collective-delay", "is what stands in for a collective with --only-rank, in microseconds");
        return Err(error.value(delay.to_string()).accepted(["0 to 1000000, with --only-rank R"]).into());
    }
    if d.routing.is_some() && !args.synthetic {
        let error = InputError::new("--routing", "is what made-up weights are made for; of a checkpoint its router decides");
        return Err(error.accepted(["--synthetic --routing R"]).into());
    }
    if let Some(trace) = &args.trace
        && args.backend == Backend::Cpu
    {
        let error = InputError::new("--trace", "measures GPUs; times of the CPU reference say nothing about a step");
        return Err(error.value(trace.to_string_lossy()).accepted(["--backend cuda", "moetwin sim --trace, which predicts"]).into());
    }
    Ok(())
}

/// Whether prompts are drawn: made-up weights and no prompt of any kind.
fn drawn_prompts(args: &RunArgs) -> bool {
    args.synthetic && args.input_ids.is_none() && args.prompt_ids.is_none() && args.prompt.is_none()
}

/// Flags that were given and do not touch a run on this backend.
fn without_effect(args: &DeploymentArgs, backend: Backend) -> Vec<&'static str> {
    let given = [
        ("--machine", args.machine.is_some() && backend == Backend::Cpu),
        ("--graphs", args.graphs.is_some() && backend == Backend::Cpu),
        ("--p2p", args.p2p.is_some()),
        ("--allreduce", args.allreduce.is_some() && backend == Backend::Cpu),
        ("--nccl-graph", args.nccl_graph.is_some()),
        ("--kv-dtype", args.kv_dtype.is_some()),
    ];
    given.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect()
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
    let products = (args.backend == Backend::Cpu && args.matmul.is_some()).then_some("--matmul");
    for flag in without_effect(&args.deployment, args.backend).into_iter().chain(products) {
        output::note(&format!("note: {flag} has no effect on {}", args.backend.words()));
    }
    let weights = weights(args, name, &model.weights, &spec)?;
    if args.backend == Backend::Cpu {
        generation::holds(&spec, name, generation::available_bytes())?;
    }
    let job = Job {
        spec: &spec,
        weights: weights.as_ref(),
        deployment,
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
    if let Some(t) = stream {
        output::piece(t.prompt)?;
    }
    let model = stream.map(|t| &t.model);
    let mut measured = None;
    let generated = match args.backend {
        Backend::Cpu => generate(&job, |capacity| Ok(reference(&job, capacity)), model, |_, _, _| Ok(()))?,
        Backend::Cuda => generate(
            &job,
            |capacity| gpus(&job, capacity, how),
            model,
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
        ..Conditions::here(deployment)
    }
}

/// Launches as measured on the machine that is named; the constants' where none is, or none was measured.
fn tuning(args: &RunArgs) -> Result<Tuning, Failure> {
    let (Some(name), Backend::Cuda) = (&args.deployment.machine, args.backend) else { return Ok(Tuning::default()) };
    let own = resolve::machine("--machine", name)?.kernels;
    let tuning = own.as_ref().map_or_else(Tuning::default, |own| Tuning::new(own.choices.clone()));
    output::note(&match own {
        Some(own) if !tuning.is_empty() => format!("{} launches as chosen by measurement: {}", tuning.len(), own.source),
        _ => format!("note: {name} holds no measured choices of launches (moetwin calibrate --tune); constants decide"),
    });
    Ok(tuning)
}

/// One rank alone.
fn slice_of(args: &RunArgs, rank: RankId, deployment: Deployment, launcher: Option<&Launcher>) -> Result<Outcome, Failure> {
    let (ranks, given) = (deployment.ranks(), rank.0.to_string());
    let wrong = |message: String, accepted: String| InputError::new("--only-rank", message).value(given.as_str()).accepted([accepted]);
    if rank.0 >= ranks {
        return Err(wrong(format!("the flags make {ranks} ranks"), format!("0 to {}", ranks - 1)).into());
    }
    if launcher.is_some_and(|l| l.size > 1) {
        return Err(wrong("is one process by itself, and a launcher started several".to_owned(), "no launcher".to_owned()).into());
    }
    let trace = args.trace.as_deref().map(|path| NewFile::plan("--trace", path)).transpose()?;
    let name = args.deployment.model.as_deref().unwrap_or(builtin::NAME);
    let spec = cut(resolve::model("--model", name)?.spec, args.layers)?;
    let step = args.deployment.step(&spec)?;
    gpus_at_hand(1, None)?;
    let memory_bytes = probe(&Search::from_environment()).gpus.first().map_or(0, |g| g.memory_bytes);
    let options = CudaOptions {
        graphs: args.deployment.graphs != Some(Switch::Off),
        stand_in: Some(Duration::from_secs_f64(args.collective_delay / 1e6)),
        ..CudaOptions::new(0, Duration::from_secs(args.deadline))
    };
    let mut of = conditions(args, name, &deployment);
    of.collective_delay_us = Some(args.collective_delay);
    let weights = made_up(args, &spec)?;
    let slice = Slice { spec: &spec, weights: &weights, deployment, step, rank, seed: args.deployment.seed, conditions: of };
    let tuning = tuning(args)?;
    let open = |capacity| {
        let mut executor = CudaExecutor::open_alone(rank, ranks, CudaOptions { capacity, ..options })?;
        executor.set_tuning(tuning);
        Ok(executor)
    };
    slice.measure(memory_bytes, open)?.report(&spec.name, args.deployment.seed, args.deployment.json, trace)
}

/// The model with its first layers only.
pub(super) fn cut(spec: ModelSpec, layers: Option<u32>) -> Result<ModelSpec, Failure> {
    match layers {
        None => Ok(spec),
        Some(n) if n as usize > spec.layers.len() => {
            let message = format!("{} has {} layers", spec.name, spec.layers.len());
            Err(InputError::new("--layers", message).value(n.to_string()).accepted([format!("1 to {}", spec.layers.len())]).into())
        }
        Some(n) => Ok(first_layers(&spec, n as usize)),
    }
}

/// A prompt that is text.
struct TextPrompt<'a> {
    prompt: &'a str,
    model: TextModel,
    /// Tokens that end the text.
    stop: Vec<u32>,
}

/// The prompt as text; where no prompt of any kind was given, one that suits the shipped model.
fn text_prompt(args: &RunArgs) -> Option<&str> {
    let shipped = args.deployment.model.is_none() && !args.synthetic && args.input_ids.is_none() && args.prompt_ids.is_none();
    args.prompt.as_deref().or_else(|| shipped.then_some(DEFAULT_PROMPT))
}

fn open_text<'a>(prompt: &'a str, place: &Place, spec: &ModelSpec) -> Result<TextPrompt<'a>, Failure> {
    let wrong = |e: TextError| Failure::from(InputError::new("--prompt", e.to_string()));
    // Read again: what ends a text is no part of the model's graph.
    let file = |folder: &Path, name: &str| {
        let path = folder.join(name);
        path.exists().then(|| resolve::read_text("--model", &folder.to_string_lossy(), &path)).transpose()
    };
    let (model, stop) = match place {
        Place::Nowhere => return Err(InputError::new("--prompt", "needs a --model with a tokenizer.json in its folder").into()),
        Place::Shipped => (builtin::text(spec).map_err(wrong)?, stop_tokens(builtin::CONFIG, None).map_err(wrong)?),
        Place::Folder(folder) => {
            let (config, generation) = (file(folder, "config.json")?.unwrap_or_default(), file(folder, "generation_config.json")?);
            (TextModel::open(folder, spec.vocab).map_err(wrong)?, stop_tokens(&config, generation.as_deref()).map_err(wrong)?)
        }
    };
    Ok(TextPrompt { prompt, model, stop })
}

fn prompts(args: &RunArgs, spec: &ModelSpec, text: Option<&TextPrompt<'_>>) -> Result<Vec<Vec<i32>>, Failure> {
    let prompts = match (&args.input_ids, &args.prompt_ids, text) {
        (Some(path), ..) => prompt::from_file("--input-ids", path, spec)?,
        (_, Some(ids), _) => vec![prompt::checked("--prompt-ids", ids.iter().map(|id| i64::from(*id)), spec)?],
        (_, _, Some(text)) => {
            let ids = text.model.encode(text.prompt).map_err(|e| InputError::new("--prompt", e.to_string()))?;
            vec![prompt::checked("--prompt", ids.iter().map(|id| i64::from(*id)), spec)?]
        }
        _ if drawn_prompts(args) => {
            let length = args.deployment.context.unwrap_or(DRAWN_PROMPT);
            prompt::drawn(args.deployment.batch.unwrap_or(1), length.max(1), spec, args.deployment.seed)
        }
        _ => {
            let accepted = ["--input-ids FILE", "--prompt-ids ID,ID,..", "--prompt TEXT"];
            return Err(InputError::new("prompt", "none was given").accepted(accepted).into());
        }
    };
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) as u64;
    let last = longest + u64::from(args.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
    if last > spec.max_positions {
        let message = format!("{longest} tokens of prompt and the new ones reach position {last}; the model allows {}", spec.max_positions);
        return Err(InputError::new("--max-tokens", message).into());
    }
    Ok(prompts)
}

/// Weights drawn by the seed, under which tokens choose experts as `--routing` says.
fn made_up(args: &RunArgs, spec: &ModelSpec) -> Result<SyntheticWeights, Failure> {
    let weights = SyntheticWeights::new(spec, args.deployment.seed);
    let Some(asked) = &args.deployment.routing else { return Ok(weights) };
    let distribution = routing(Some(asked), spec)?;
    let refused = |e: UnroutableModel| InputError::new("--routing", e.to_string()).accepted(["uniform", "no --routing"]).into();
    weights.with_routing(spec, &distribution).map_err(refused)
}

fn weights(args: &RunArgs, name: &str, place: &Place, spec: &ModelSpec) -> Result<Box<dyn WeightSource>, Failure> {
    if args.synthetic {
        return Ok(Box::new(made_up(args, spec)?));
    }
    let layers = if args.layers.is_some() { Layers::First } else { Layers::All };
    let opened = match place {
        Place::Folder(folder) => CheckpointWeights::open(folder, spec, layers),
        Place::Shipped => builtin::weights(spec, layers),
        Place::Nowhere => {
            let message = "has no weights here: it is a configuration only";
            let accepted = ["a folder with weights", "any model with --synthetic"];
            return Err(InputError::new("--model", message).value(name).accepted(accepted).into());
        }
    };
    Ok(Box::new(opened.map_err(|e| InputError::new("--model", e.to_string()).value(name))?))
}

#[derive(Serialize)]
struct RunJson<'a> {
    schema: u32,
    seed: u64,
    backend: &'static str,
    model: &'a str,
    ranks: u32,
    collectives: u64,
    step_ms: Option<StepMs>,
    tokens_per_s: Option<f64>,
    breakdown: Vec<ClassJson>,
    tokens: &'a [Vec<u32>],
}

/// Times of decode passes.
#[derive(Serialize)]
struct StepMs {
    median: f64,
    p99: f64,
}

fn json<'a>(spec: &'a ModelSpec, job: &Job<'_>, generated: &'a Generated, backend: Backend, measured: Option<&Measured>) -> RunJson<'a> {
    RunJson {
        schema: 1,
        seed: job.order_seed,
        backend: backend.name(),
        model: &spec.name,
        ranks: job.deployment.ranks(),
        collectives: generated.collectives,
        step_ms: generated.step_quantiles_ms().map(|(median, p99)| StepMs { median, p99 }),
        tokens_per_s: generated.tokens_per_s(),
        // Only a measured pass is timed by class of op.
        breakdown: measured.map_or_else(Vec::new, Measured::by_class),
        tokens: &generated.tokens,
    }
}

fn report(spec: &ModelSpec, job: &Job<'_>, generated: &Generated, streamed: bool, backend: Backend) -> String {
    let mut out = String::new();
    if !streamed {
        for (i, tokens) in generated.tokens.iter().enumerate() {
            let ids: Vec<String> = tokens.iter().map(ToString::to_string).collect();
            out.push_str(&format!("sequence {i}: {}\n", ids.join(" ")));
        }
    }
    let ranks = job.deployment.ranks();
    let speed = match (generated.step_quantiles_ms(), generated.tokens_per_s()) {
        (Some((median, p99)), Some(rate)) => format!("{rate:.1} tok/s, {median:.2} ms a step (99 % under {p99:.2})"),
        _ => "one pass, nothing to time".to_owned(),
    };
    output::note(&format!(
        "{} on {}, {ranks} rank{}, {} exchanges a pass: {speed}; seed {}",
        spec.name,
        backend.words(),
        if ranks == 1 { "" } else { "s" },
        generated.collectives,
        job.order_seed
    ));
    out
}

/// Says what keeps CUDA from being used here; how many GPUs there are if nothing does.
pub(super) fn gpus_at_hand(ranks: u32, launcher: Option<&Launcher>) -> Result<usize, Failure> {
    let probed = probe(&Search::from_environment());
    let mut missing = probed.missing_for(ranks as usize);
    if launcher.is_some() {
        // One rank here; that there are others is seen in NCCL being needed.
        missing.retain(|(name, _)| *name != "GPU");
        missing.extend(probed.missing_for(1).into_iter().filter(|(name, _)| *name == "GPU"));
    }
    if missing.is_empty() {
        return Ok(probed.gpus.len());
    }
    let mut text = "CUDA cannot be used here".to_owned();
    for (name, m) in missing {
        text.push_str(&format!("\n  {name}: {}\n    {}", m.why, m.remedy));
    }
    Err(Failure::Running(text))
}
