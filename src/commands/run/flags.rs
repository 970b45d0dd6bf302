//! Flags of `moetwin run`: what they mean on a backend, and which a run cannot obey.

use super::{Backend, RunArgs};
use crate::args::{AllReduceKind, AllToAllKind, DeploymentArgs, Engine, Speculation, Switch, not_yet, word};
use crate::error::{Failure, InputError};
use crate::output;
use crate::resolve;
use moetwin::cuda::exec::AllReduceBackend;
use moetwin::cuda::exec::inject::Injection;
use moetwin::cuda::launcher::Launcher;
use moetwin::cuda::probe::Gpu;
use moetwin::cuda::{Search, probe};
use moetwin::kernels::launch::Tuning;
use moetwin::models::{AllToAll, Deployment};

/// This process's place among those that a launcher has started.
pub(super) fn launcher() -> Result<Option<Launcher>, Failure> {
    Launcher::read(|name| std::env::var(name).ok()).map_err(|e| {
        let error = InputError::new(e.variable, e.message).accepted([e.accepted]);
        if let Some(value) = e.value { error.value(value).into() } else { error.into() }
    })
}

pub(super) fn injection(text: &str, backend: Backend, ranks: u32) -> Result<Injection, Failure> {
    if backend == Backend::Cpu {
        return Err(InputError::new("--inject", "is for --backend cuda: the CPU reference calls no driver").value(text).into());
    }
    let injection = Injection::parse(text, ranks).map_err(|e| InputError::new("--inject", e).value(text))?;
    output::note(&format!("injecting {injection}"));
    Ok(injection)
}

/// Room in the buffers of experts, for a run that has such.
pub(super) fn check_ep_capacity(args: &RunArgs, deployment: &Deployment) -> Result<(), Failure> {
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
pub(super) fn all_reduce(args: &RunArgs) -> Result<AllReduceBackend, Failure> {
    match args.deployment.allreduce {
        _ if args.backend == Backend::Cpu => Ok(AllReduceBackend::Nccl),
        None | Some(AllReduceKind::Nccl) => Ok(AllReduceBackend::Nccl),
        Some(AllReduceKind::Auto) => Ok(AllReduceBackend::Auto),
        Some(AllReduceKind::OneShot) => Ok(AllReduceBackend::OneShot),
        Some(AllReduceKind::Engine) => Err(InputError::new("--allreduce", "no engine's kernels are run here; moetwin sim predicts them")
            .value("engine")
            .accepted(["auto", "nccl", "one-shot"])
            .into()),
        Some(AllReduceKind::TwoShot) => Err(not_yet("--allreduce", "two-shot", &["auto", "nccl", "one-shot"])),
    }
}

/// Whether sums over the ranks of a run take the norms behind them with them.
pub(super) fn fuses_sums(args: &DeploymentArgs) -> bool {
    args.allreduce == Some(AllReduceKind::OneShot) && args.fuse_allreduce != Some(Switch::Off)
}

/// Flags that a run cannot obey.
pub(super) fn refuse_flags(args: &RunArgs) -> Result<(), Failure> {
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
    refuse_engines(d)?;
    if args.no_prompt && !(drawn_prompts(args) && args.backend == Backend::Cuda) {
        let error = InputError::new(
            "--no-prompt",
            "measures a step with made-up weights and tokens, and without its prompt no other means anything",
        );
        return Err(error.accepted(["--backend cuda --synthetic and no prompt"]).into());
    }
    if let Some(rank) = args.only_rank
        && !(drawn_prompts(args) && args.backend == Backend::Cuda)
    {
        let error =
            InputError::new("--only-rank", "measures a rank with made-up weights and tokens: what other ranks would send is not there");
        return Err(error.value(rank.to_string()).accepted(["--backend cuda --synthetic and no prompt"]).into());
    }
    if args.collective_delay != 0.0 && args.only_rank.is_none() {
        let error = InputError::new("--collective-delay", "is what stands in for a collective where one rank runs alone");
        return Err(error.value(args.collective_delay.to_string()).accepted(["--only-rank R with it"]).into());
    }
    if args.deployment.routing.is_some() && !args.synthetic {
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

/// Flags of engines and of libraries that no run has: it executes this program's own code over NCCL.
fn refuse_engines(d: &DeploymentArgs) -> Result<(), Failure> {
    let foreign = |flag, value: String, accepted: &[&str]| {
        let error = InputError::new(flag, "is not for run: it executes its own code, no engine's; moetwin sim predicts engines");
        Err(error.value(value).accepted(accepted.to_vec()).into())
    };
    if let Some(engine) = d.engine.filter(|e| *e != Engine::Native) {
        return foreign("--engine", word(engine), &["native"]);
    }
    if let Some(folder) = &d.kernels {
        return foreign("--kernels", folder.path.to_string_lossy().into_owned(), &["no --kernels"]);
    }
    if let Some(version) = &d.engine_version {
        return foreign("--engine-version", version.clone(), &["no --engine-version"]);
    }
    match d.a2a {
        Some(kind @ (AllToAllKind::Flashinfer | AllToAllKind::Deepep)) => foreign("--a2a", word(kind), &["none", "nccl"]),
        None | Some(AllToAllKind::None | AllToAllKind::Nccl) => Ok(()),
    }
}

/// Whether prompts are drawn: made-up weights and no prompt of any kind.
pub(super) fn drawn_prompts(args: &RunArgs) -> bool {
    args.synthetic && args.input_ids.is_none() && args.prompt_ids.is_none() && args.prompt.is_none()
}

/// Flags that were given and do not touch a run on this backend.
pub(super) fn without_effect(run: &RunArgs) -> Vec<(&'static str, &'static str)> {
    let (args, backend) = (&run.deployment, run.backend);
    let given = [
        ("--machine", args.machine.is_some() && backend == Backend::Cpu),
        ("--graphs", args.graphs.is_some() && backend == Backend::Cpu),
        ("--p2p", args.p2p.is_some()),
        // Sums that take norms with them are another program on any backend, of the same values.
        ("--allreduce", args.allreduce.is_some() && !(fuses_sums(args) && args.tp > Some(1)) && backend == Backend::Cpu),
        ("--nccl-graph", args.nccl_graph.is_some()),
        ("--kv-dtype", args.kv_dtype.is_some()),
        ("--matmul", run.matmul.is_some() && backend == Backend::Cpu),
        ("--deadline", run.deadline.is_some() && backend == Backend::Cpu),
    ];
    let fuses = args.fuse_allreduce.is_some() && args.allreduce != Some(AllReduceKind::OneShot);
    let fuses = fuses.then_some(("--fuse-allreduce", "sums that are not by --allreduce one-shot"));
    let by_backend = given.into_iter().filter(|(_, given)| *given).map(|(flag, _)| (flag, backend.words()));
    // Nothing is drawn where the likeliest token is taken.
    let drawn = (run.top_p < 1.0 && run.temperature == 0.0).then_some(("--top-p", "--temperature 0, which takes the likeliest token"));
    let measures = run.only_rank.is_some() || run.no_prompt;
    let answers = (run.temperature > 0.0 && measures).then_some(("--temperature", "a step that is only measured: no token is chosen"));
    by_backend.chain(fuses).chain(drawn).chain(answers).collect()
}

/// Launches as measured on the machine that is named; the constants' where none is, or none was measured.
pub(super) fn tuning(args: &RunArgs) -> Result<Tuning, Failure> {
    let (Some(name), Backend::Cuda) = (&args.deployment.machine, args.backend) else { return Ok(Tuning::default()) };
    let own = resolve::machine("--machine", name)?.kernels;
    let tuning = own.as_ref().map_or_else(Tuning::default, |own| Tuning::new(own.choices.clone()));
    output::note(&match own {
        Some(own) if !tuning.is_empty() => format!("{} launches as chosen by measurement: {}", tuning.len(), own.source),
        _ => format!("note: {name} holds no measured choices of launches (moetwin calibrate --tune); constants decide"),
    });
    Ok(tuning)
}

/// Says what keeps CUDA from being used here; the GPUs there are if nothing does.
pub(in crate::commands) fn gpus_at_hand(ranks: u32, launcher: Option<&Launcher>) -> Result<Vec<Gpu>, Failure> {
    let probed = probe(&Search::from_environment());
    let mut missing = probed.missing_for(ranks as usize);
    if launcher.is_some() {
        // One rank here; that there are others is seen in NCCL being needed.
        missing.retain(|(name, _)| *name != "GPU");
        missing.extend(probed.missing_for(1).into_iter().filter(|(name, _)| *name == "GPU"));
    }
    if missing.is_empty() {
        return Ok(probed.gpus);
    }
    let mut text = "CUDA cannot be used here".to_owned();
    for (name, m) in missing {
        text.push_str(&format!("\n  {name}: {}\n    {}", m.why, m.remedy));
    }
    Err(Failure::Running(text))
}
