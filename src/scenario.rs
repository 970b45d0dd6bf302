//! From flags to what the library needs: a model, a machine, a deployment and a step.

use crate::args::{AllReduceKind, DEFAULT_MACHINE, DEFAULT_MODEL, DeploymentArgs, Engine, NcclGraph, Routing, Switch};
use crate::capture;
use crate::error::{Failure, InputError};
use crate::kernel_folder::KernelFolder;
use crate::resolve::{self, Model};
use crate::speculation::SpeculationPlan;
use moetwin::engines::Version;
use moetwin::kernels::routing::{Distribution, RoutingHistogram};
use moetwin::models::shard::ShardFault;
use moetwin::models::spec::Ffn;
use moetwin::models::{AllToAll, Axis, BuildOptions, Deployment, Graph, ModelSpec, Phase, PlanError, Step, WeightFormat, plan};
use moetwin::runtime::builtin;
use moetwin::runtime::{LowerOptions, Program, lower, verify};
use moetwin::sim::collective::{GraphMode, Library};
use moetwin::sim::cost::Kernels;
use moetwin::sim::exec::{Backends, SimOptions};
use moetwin::sim::machine::Machine;
use std::sync::Arc;

/// What a deployment's flags mean together.
#[derive(Clone)]
pub(crate) struct Scenario {
    /// The model.
    pub(crate) model: Model,
    /// The machine.
    pub(crate) machine: Machine,
    /// How the model is split.
    pub(crate) deployment: Deployment,
    /// What is computed.
    pub(crate) step: Step,
    /// Tokens of history, or of the prompt.
    pub(crate) context: u32,
    /// How tokens choose experts.
    pub(crate) routing: Distribution,
    /// How it runs.
    pub(crate) options: SimOptions,
    /// Whether captured graphs were asked for or forbidden; `None` where the engine decides by the step.
    pub(crate) graphs_asked: Option<bool>,
    /// All-reduce implementation as `--allreduce` takes it.
    pub(crate) allreduce: &'static str,
    /// Whose choices hold where none is given, and whose kernels run.
    pub(crate) engine: Engine,
    /// Version of the engine that was asked for.
    pub(crate) engine_version: Option<String>,
    /// Kernel times that a user brought.
    pub(crate) kernel_folder: Option<KernelFolder>,
    /// Drafting, if there is any.
    pub(crate) speculation: Option<SpeculationPlan>,
    /// Seed of everything random.
    pub(crate) seed: u64,
}

impl Scenario {
    /// Reads the flags; every default that holds where a flag is absent is applied here.
    pub(crate) fn new(args: &DeploymentArgs) -> Result<Self, Failure> {
        let machine = resolve::machine("--machine", args.machine.as_deref().unwrap_or(DEFAULT_MACHINE))?;
        let model = resolve::model("--model", args.model.as_deref().unwrap_or(DEFAULT_MODEL))?;
        Self::of(args, machine, model)
    }
    /// The same with machine and model at hand.
    pub(crate) fn of(args: &DeploymentArgs, machine: Machine, mut model: Model) -> Result<Self, Failure> {
        let gpus = u32::try_from(machine.gpu_count()).unwrap_or(u32::MAX);
        let mut deployment = args.deployment(gpus)?;
        if deployment.ranks() > gpus {
            return Err(too_many_ranks(args, &deployment, &machine));
        }
        released(args)?;
        let speculation = SpeculationPlan::new(args, &model.spec)?;
        let step = match &speculation {
            Some(plan) => args.step_of(Phase::Verify(plan.drafted + 1), &model.spec)?,
            None => args.step(&model.spec)?,
        };
        if !args.splits_experts_or_heads() {
            deployment = widest_split(&mut model.spec, &step, deployment);
        }
        let routing = routing(args.routing.as_ref(), &model.spec)?;
        let (options, allreduce) = sim_options(args, &deployment);
        let context = args.context(&model.spec);
        let scenario = Self {
            model,
            machine,
            deployment,
            step,
            context,
            routing,
            options,
            graphs_asked: args.graphs.map(|switch| switch == Switch::On),
            allreduce,
            engine: args.engine.unwrap_or(Engine::Native),
            engine_version: args.engine_version.clone(),
            kernel_folder: args.kernels.clone(),
            speculation,
            seed: args.seed,
        };
        Ok(scenario.launched())
    }
    /// The same, launched as its engine launches such a step.
    pub(crate) fn launched(mut self) -> Self {
        let (graphs, launcher) = capture::launched(self.engine, self.engine_version.as_deref(), self.graphs_asked, &self.step);
        (self.options.graphs, self.options.launcher) = (graphs, launcher);
        self
    }
    /// Whether so many tokens of prompts are replayed from a captured graph.
    pub(crate) fn captures_prompts(&self, tokens: u32) -> bool {
        let step = Step::uniform(Phase::Prefill, 1, tokens);
        capture::launched(self.engine, self.engine_version.as_deref(), self.graphs_asked, &step).0
    }
    /// The same computing another step.
    pub(crate) fn with_step(&self, step: Step, context: u32) -> Self {
        Self { step, context, ..self.clone() }.launched()
    }
    /// The graph of this scenario with another batch. Experts are as wide as the split makes them.
    pub(crate) fn graph(&self, step: &Step) -> Result<Graph, Failure> {
        let padded = padded(&self.model.spec, &self.deployment);
        plan(padded.as_ref().unwrap_or(&self.model.spec), step, &self.deployment, &BuildOptions::default())
            .map_err(|e| plan_failure(&e, &self.deployment))
    }
    /// What the split adds to the model, in words.
    pub(crate) fn padding_text(&self) -> Option<String> {
        let widths = |spec: &ModelSpec| spec.layers.iter().find_map(|l| if let Ffn::Moe(m) = &l.ffn { Some(m.intermediate) } else { None });
        let padded = padded(&self.model.spec, &self.deployment)?;
        let (before, after) = (widths(&self.model.spec)?, widths(&padded)?);
        let parts = self.deployment.axis_size(Axis::MoeTp);
        Some(format!(
            "experts are {after} columns wide instead of {before}: {parts} ranks hold whole scale blocks, zeros in the rest; an engine that does not pad \
             refuses such a split"
        ))
    }
    /// The verified program of this scenario with another batch.
    pub(crate) fn program(&self, step: &Step) -> Result<Program, Failure> {
        verified(self.graph(step)?)
    }
    /// Whether peers access each other's memory: as asked, else as the machine can.
    pub(crate) fn peer_access(&self) -> bool {
        self.options.peer_access.unwrap_or(self.machine.peer_access.value)
    }
    /// The phase as `--phase` takes it.
    pub(crate) fn phase_text(&self) -> String {
        match self.step.phase {
            Phase::Decode => "decode".to_owned(),
            Phase::Prefill => "prefill".to_owned(),
            Phase::Verify(n) => format!("verify:{n}"),
        }
    }
    /// The routing as `--routing` takes it; a histogram by its kind.
    pub(crate) fn routing_text(&self) -> String {
        match &self.routing {
            Distribution::Uniform => "uniform".to_owned(),
            Distribution::Same => "same".to_owned(),
            Distribution::Zipf { exponent } => format!("zipf:{exponent}"),
            Distribution::Histogram(_) => "histogram".to_owned(),
        }
    }
    /// The all-to-all backend as `--a2a` takes it.
    pub(crate) fn a2a_text(&self) -> &'static str {
        match self.deployment.a2a {
            AllToAll::None => "none",
            AllToAll::Nccl => "nccl",
            AllToAll::Flashinfer => "flashinfer",
            AllToAll::Deepep => "deepep",
        }
    }
    /// Batch sizes that are captured: powers of two up to the batch, and the batch itself; none when graphs are off.
    pub(crate) fn buckets(&self, batch: u32) -> Vec<u32> {
        if !self.options.graphs {
            return Vec::new();
        }
        let mut buckets: Vec<u32> = (0..32).map(|i| 1u32 << i).take_while(|b| *b < batch).collect();
        buckets.push(batch);
        buckets
    }
}

/// The deployment, or where it cannot cut the model the one nearest to it that can, which the model's warnings then name: as many
/// tensor-parallel ranks as possible, with whole experts on each (`--ep`) where only they cannot be cut.
fn widest_split(spec: &mut ModelSpec, step: &Step, asked: Deployment) -> Deployment {
    let cut = |d: &Deployment| plan(padded(spec, d).as_ref().unwrap_or(spec), step, d, &BuildOptions::default());
    let Err(PlanError::Shard(why)) = cut(&asked) else { return asked };
    let mut narrower = (1..=asked.tp).rev().flat_map(|tp| [1, tp].map(|ep| Deployment { tp, ep, ..asked.clone() }));
    let Some(found) = narrower.find(|d| cut(d).is_ok()) else { return asked };
    let reason = why.faults.first().map(|f| format!(" ({f})")).unwrap_or_default();
    let (tp, ep) = (found.tp, found.ep);
    spec.warnings.push(format!("tp {} cannot cut this model{reason}; no split was asked for, so tp {tp} with ep {ep} is taken", asked.tp));
    found
}

/// The model with experts as wide as engines pad them where ranks would otherwise cut a block of elements that share a scale: every rank
/// gets as many whole blocks. `None` where nothing needs padding.
fn padded(spec: &ModelSpec, deployment: &Deployment) -> Option<ModelSpec> {
    let parts = u64::from(deployment.axis_size(Axis::MoeTp));
    let width = |format: WeightFormat, intermediate: u64| {
        let (rows, cols) = format.granularity();
        let (block, exact) = (rows.max(cols), intermediate.is_multiple_of(parts));
        let whole = exact && (intermediate / parts).is_multiple_of(block);
        if whole || parts == 1 { intermediate } else { intermediate.div_ceil(parts * block) * parts * block }
    };
    let mut out = None;
    for (index, layer) in spec.layers.iter().enumerate() {
        let Ffn::Moe(moe) = &layer.ffn else { continue };
        let wide = width(moe.format, moe.intermediate);
        if wide != moe.intermediate
            && let Ffn::Moe(m) = &mut out.get_or_insert_with(|| spec.clone()).layers[index].ffn
        {
            m.intermediate = wide;
        }
    }
    out
}

/// The program of a graph, verified.
pub(crate) fn verified(graph: Graph) -> Result<Program, Failure> {
    let program = lower(graph, LowerOptions::default());
    let program = program.map_err(|e| Failure::from(InputError::new("--tp", e.to_string())))?;
    let faults = verify::verify(&program).err().unwrap_or_default();
    if let Some(fault) = faults.first() {
        return Err(Failure::Running(format!("the lowered program is faulty, a defect of moetwin: {fault}")));
    }
    Ok(program)
}

/// Refuses a version that names none, or one of no engine.
fn released(args: &DeploymentArgs) -> Result<(), Failure> {
    let Some(text) = &args.engine_version else { return Ok(()) };
    let engine = match args.engine {
        Some(Engine::Sglang) => moetwin::engines::Engine::Sglang,
        Some(Engine::Vllm) => moetwin::engines::Engine::Vllm,
        Some(Engine::Native) | None => {
            let wrong = InputError::new("--engine-version", "is the version of an engine, and --engine names none").value(text);
            return Err(wrong.accepted(["--engine sglang", "--engine vllm"]).into());
        }
    };
    names_release(engine, text)
}

/// Refuses words that name no release of an engine.
pub(crate) fn names_release(engine: moetwin::engines::Engine, text: &str) -> Result<(), Failure> {
    if Version::says_which(engine, text) {
        return Ok(());
    }
    let newest = Version::newest(engine).text;
    let accepted = [newest.as_str(), "2026-03 or 2026-03-22", "main after PR 21907", "latest", "nightly"];
    Err(InputError::new("--engine-version", "names no release, day or pull request").value(text).accepted(accepted).into())
}

fn too_many_ranks(args: &DeploymentArgs, deployment: &Deployment, machine: &Machine) -> Failure {
    let gpus = machine.gpu_count();
    let (tp, pp, replicas) = (deployment.tp, deployment.pp, deployment.replicas);
    let message =
        format!("tp {tp} x pp {pp} x replicas {replicas} makes {} ranks, and {} has {gpus} GPUs", deployment.ranks(), machine.name);
    let given =
        [("--tp", args.tp), ("--ep", args.ep), ("--dp-attention", args.dp_attention), ("--pp", args.pp), ("--replicas", args.replicas)];
    let (flag, value) = given.into_iter().find_map(|(flag, value)| Some((flag, value.filter(|v| *v > 1)?))).unwrap_or(("--tp", tp));
    InputError::new(flag, message).value(value.to_string()).accepted([format!("at most {gpus} ranks")]).into()
}

fn sim_options(args: &DeploymentArgs, deployment: &Deployment) -> (SimOptions, &'static str) {
    // SGLang's rule decides `auto`: a peer kernel where every GPU reaches every other over NVLink, NCCL elsewhere.
    let engine = args.engine.unwrap_or(Engine::Native);
    let own = if engine == Engine::Vllm { Library::Vllm } else { Library::Sglang };
    let (all_reduce, name) = match args.allreduce.unwrap_or(AllReduceKind::Auto) {
        AllReduceKind::Nccl => (Library::Nccl, "nccl"),
        AllReduceKind::OneShot => (Library::OneShot, "one-shot"),
        AllReduceKind::TwoShot => (Library::TwoShot, "two-shot"),
        AllReduceKind::Engine => (own, "engine"),
        AllReduceKind::Auto => (own, "auto"),
    };
    let nccl_graph = match args.nccl_graph.unwrap_or(NcclGraph::Detected) {
        NcclGraph::Detected => GraphMode::Detected,
        NcclGraph::Tuned => GraphMode::Tuned,
    };
    let backends = Backends { all_reduce, all_to_all: deployment.a2a, nccl_graph };
    let kernels = match engine {
        Engine::Native => Kernels::Any,
        Engine::Sglang => Kernels::Sglang,
        Engine::Vllm => Kernels::Vllm,
    };
    let peer_access = args.p2p.map(|switch| switch == Switch::On);
    let tables = args.kernels.as_ref().map(|folder| Arc::clone(&folder.tables));
    (SimOptions { kernels, tables, peer_access, backends, ..SimOptions::default() }, name)
}

/// The distribution that `--routing` means for a model.
pub(crate) fn routing(routing: Option<&Routing>, spec: &ModelSpec) -> Result<Distribution, Failure> {
    let (distribution, text) = match routing.unwrap_or(&Routing::Uniform) {
        Routing::Uniform => return Ok(Distribution::Uniform),
        Routing::Same => return Ok(Distribution::Same),
        Routing::Shakespeare => (Distribution::Histogram(builtin::routing()), "shakespeare".to_owned()),
        Routing::Zipf(exponent) => (Distribution::Zipf { exponent: *exponent }, format!("zipf:{exponent}")),
        Routing::File(path) => {
            let value = path.to_string_lossy().into_owned();
            if !path.exists() {
                let error = InputError::new("--routing", "is neither a known word nor a file that exists").value(value);
                return Err(error
                    .names(["uniform", "zipf:1.0", "same"])
                    .accepted(["uniform", "zipf:S", "same", "shakespeare", "a routing histogram"])
                    .into());
            }
            let text = resolve::read_text("--routing", &value, path)?;
            let histogram: RoutingHistogram = serde_json::from_str(&text).map_err(|e| {
                let message = format!("{}: {e}", path.display());
                Failure::from(
                    InputError::new("--routing", message).value(&value).accepted(["{\"schema\": 1, \"layers\": {\"3\": [counts]}}"]),
                )
            })?;
            (Distribution::Histogram(histogram), value)
        }
    };
    let experts = |ffn: &Ffn| if let Ffn::Moe(moe) = ffn { Some(moe.experts) } else { None };
    let layers: Vec<(u16, u32)> = spec.layers.iter().zip(0u16..).filter_map(|(l, i)| Some((i, experts(&l.ffn)?))).collect();
    distribution.check(&layers).map_err(|e| Failure::from(InputError::new("--routing", e.to_string()).value(text)))?;
    Ok(distribution)
}

/// The flag to blame for a deployment that does not fit the model, and why.
pub(crate) fn plan_failure(error: &PlanError, d: &Deployment) -> Failure {
    let (flag, value) = match error {
        PlanError::Verify(_) => return Failure::Running(format!("a defect of moetwin: {error}")),
        PlanError::Build(_) => ("--model", None),
        PlanError::Shard(e) => match e.faults.first() {
            Some(ShardFault::NotADivisor { what, value, .. }) => (flag_of(what), Some(*value)),
            Some(ShardFault::Stages { pp, .. }) => ("--pp", Some(*pp)),
            Some(ShardFault::ContextHeads { .. } | ShardFault::ContextForm { .. }) => ("--dcp", Some(d.dcp)),
            Some(ShardFault::AllToAll { .. }) => ("--a2a", None),
            Some(ShardFault::Split(fault)) => match fault.axis {
                Axis::Tp | Axis::AttnTp | Axis::MoeTp | Axis::HeadTp => ("--tp", Some(d.tp)),
                Axis::Dcp => ("--dcp", Some(d.dcp)),
                Axis::AttnDp => ("--dp-attention", Some(d.dp_attention)),
                Axis::Ep => ("--ep", Some(d.ep)),
            },
            _ => ("--tp", Some(d.tp)),
        },
    };
    let mut input = InputError::new(flag, error.to_string());
    if flag == "--tp" {
        input = input.set_by([("--dp-attention", d.dp_attention), ("--ep", d.ep), ("--dcp", d.dcp)]);
    }
    if let Some(value) = value {
        input = input.value(value.to_string());
    }
    input.into()
}

fn flag_of(name: &str) -> &'static str {
    match name {
        "ep" => "--ep",
        "dcp" => "--dcp",
        "dp-attention" => "--dp-attention",
        _ => "--tp",
    }
}
