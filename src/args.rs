//! The flags that describe a deployment, the same in every subcommand that takes one.

use crate::error::{Failure, InputError};
use crate::kernel_folder::KernelFolder;
use crate::values::{real, whole};
use clap::{Args, ValueEnum};
use moetwin::models::{AllToAll, DType, Deployment, ModelSpec, Phase, Step};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The machine of the default scenario.
pub(crate) const DEFAULT_MACHINE: &str = "8x-rtx-pro-6000-server";
/// The model of the default scenario.
pub(crate) const DEFAULT_MODEL: &str = "kimi-k2.5";
/// Tokens already in the cache of each sequence unless told otherwise: a short conversation.
pub(crate) const DEFAULT_CONTEXT: u32 = 1024;

/// What is deployed, how it is split, and what it is asked to do.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DeploymentArgs {
    /// Machine: a name from `moetwin machine list`, or a machine file
    #[arg(
        long,
        value_name = "NAME|FILE",
        help_heading = "What runs where",
        long_help = "\
Machine: a name from `moetwin machine list`, or a machine file [default: 8x-rtx-pro-6000-server]"
    )]
    pub(crate) machine: Option<String>,
    /// Model: a name from `moetwin model list`, a hub id, a folder with config.json, or such a file
    #[arg(
        long,
        value_name = "NAME|HF-ID|DIR|FILE",
        help_heading = "What runs where",
        long_help = "\
Model: a name from `moetwin model list`, a hub id, a folder with a config.json, or such a file [default: kimi-k2.5]"
    )]
    pub(crate) model: Option<String>,

    /// Tensor-parallel ranks of a pipeline stage
    #[arg(long, value_name = "N", value_parser = ranks(), help_heading = "Split", long_help = "\
Tensor-parallel ranks of a pipeline stage [default: the larger of --ep and --dp-attention if one is given, else every GPU of the \
machine, or as many as the model can be cut over; 1 for `run`]")]
    pub(crate) tp: Option<u32>,
    /// Pipeline stages
    #[arg(long, value_name = "N", value_parser = ranks(), help_heading = "Split")]
    pub(crate) pp: Option<u32>,
    /// Data-parallel attention groups; divides --tp
    #[arg(long, value_name = "N", value_parser = ranks(), help_heading = "Split")]
    pub(crate) dp_attention: Option<u32>,
    /// Expert-parallel groups; divides --tp
    #[arg(long, value_name = "N", value_parser = ranks(), help_heading = "Split")]
    pub(crate) ep: Option<u32>,
    /// Decode context parallelism
    #[arg(long, value_name = "N", value_parser = ranks(), help_heading = "Split")]
    pub(crate) dcp: Option<u32>,
    /// Independent copies of the model
    #[arg(long, value_name = "N", value_parser = ranks(), help_heading = "Split")]
    pub(crate) replicas: Option<u32>,

    /// Sequences in the step
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=65_536), help_heading = "Step")]
    pub(crate) batch: Option<u32>,
    /// Tokens of history per sequence (prefill: tokens of the prompt)
    #[arg(long, value_name = "N", value_parser = whole::<u32>(0..=16_777_216), help_heading = "Step", long_help = "\
Tokens of history per sequence; with `--phase prefill` the tokens of the prompt [default: 1024, or fewer where the model has fewer positions]")]
    pub(crate) context: Option<u32>,
    /// What the step computes: decode, prefill or verify:N
    #[arg(long, value_name = "decode|prefill|verify:N", value_parser = parse_phase, help_heading = "Step", long_help = "\
What the step computes: `decode` one token a sequence, `prefill` the prompt, `verify:N` N drafted tokens a sequence [default: decode]")]
    pub(crate) phase: Option<Phase>,
    /// How tokens choose experts: uniform, zipf:S, same, shakespeare or a recorded histogram
    #[arg(
        long,
        value_name = "uniform|zipf:S|same|shakespeare|FILE",
        help_heading = "Step",
        long_help = "\
How tokens choose experts: `uniform`, `zipf:S` with exponent S, `same` (every token the same ones), `shakespeare` (what the model that ships \
chose on its own text), or a file with a recorded histogram (a run can record one). A run gives made-up weights a router bias that makes it so \
[default: uniform; in a run what the drawn router chooses]"
    )]
    pub(crate) routing: Option<Routing>,
    /// Speculative decoding: none, eagle3:N or mtp:N
    #[arg(
        long,
        value_name = "none|eagle3:N|mtp:N",
        help_heading = "Step",
        long_help = "\
Speculative decoding: `none`, `eagle3:N` or `mtp:N` with N drafted tokens a sequence; the step is then N draft passes and one verification of \
N + 1 tokens [default: none]"
    )]
    pub(crate) spec: Option<Speculation>,
    /// Probability that a drafted token is accepted once those before it were, by position
    #[arg(
        long,
        value_name = "P,P,..",
        value_delimiter = ',',
        value_parser = probability(),
        help_heading = "Step",
        allow_hyphen_values = true,
        long_help = "\
Probability that a drafted token is accepted once those before it were, by position; the last one holds for the rest [default: from measured \
acceptance, which the report names]"
    )]
    pub(crate) spec_accept: Option<Vec<f64>>,

    /// Whether steps are replayed from captured CUDA graphs
    #[arg(
        long,
        value_name = "on|off",
        help_heading = "How it runs",
        long_help = "\
Whether steps are replayed from captured CUDA graphs, or launched kernel by kernel [default: on]"
    )]
    pub(crate) graphs: Option<Switch>,
    /// Whether GPUs read and write each other's memory directly
    #[arg(
        long,
        value_name = "on|off",
        help_heading = "How it runs",
        long_help = "\
Whether GPUs read and write each other's memory directly, or through the host's [default: what the machine can]"
    )]
    pub(crate) p2p: Option<Switch>,
    /// Element type of the KV cache
    #[arg(long, value_name = "bf16|fp8", help_heading = "How it runs")]
    pub(crate) kv_dtype: Option<KvDtype>,
    /// All-reduce implementation
    #[arg(long, value_name = "KIND", help_heading = "How it runs")]
    pub(crate) allreduce: Option<AllReduceKind>,
    /// Whether our one-shot all-reduce also adds the residual and norms
    #[arg(
        long,
        value_name = "on|off",
        help_heading = "How it runs",
        long_help = "\
Whether our one-shot all-reduce also adds the residual and norms, in the same kernel, up to half a megabyte sent by a rank: for --allreduce one-shot [default: on]"
    )]
    pub(crate) fuse_allreduce: Option<Switch>,
    /// All-to-all backend of expert dispatch and combine
    #[arg(long, value_name = "KIND", help_heading = "How it runs")]
    pub(crate) a2a: Option<AllToAllKind>,
    /// Who serves: this program's own runtime, SGLang or vLLM
    #[arg(
        long,
        value_name = "ENGINE",
        help_heading = "How it runs",
        long_help = "\
Who serves: this program's own runtime, SGLang or vLLM. Engines launch from Python what they do not capture, and choose their own all-reduce \
kernel under their own conditions [default: native]"
    )]
    pub(crate) engine: Option<Engine>,
    /// Version of the engine
    #[arg(long, value_name = "V", help_heading = "How it runs")]
    pub(crate) engine_version: Option<String>,
    /// Kernel times of your own, asked before those that ship: a folder of aiconfigurator-core's tables as CSV
    #[arg(
        long,
        value_name = "DIR",
        value_parser = KernelFolder::read,
        help_heading = "How it runs",
        long_help = "\
Kernel times of your own, asked before those that ship: a folder of tables as aiconfigurator-core has them, in CSV (*_perf.txt, or names as \
h200_sxm__vllm-0.24.0__gemm.csv). Its Parquet files are passed over; pandas turns them into CSV: pandas.read_parquet(x).to_csv(y, index=False)"
    )]
    pub(crate) kernels: Option<KernelFolder>,
    /// NCCL's rings: as it detects them, or as tuned by hand
    #[arg(long, value_name = "detected|tuned", help_heading = "How it runs")]
    pub(crate) nccl_graph: Option<NcclGraph>,

    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>(0..=u64::MAX), allow_hyphen_values = true)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

impl DeploymentArgs {
    /// The flags that were given, as they are typed, but for the machine's and the model's.
    pub(crate) fn given(&self) -> String {
        let numbers = [
            ("--tp", self.tp),
            ("--pp", self.pp),
            ("--dp-attention", self.dp_attention),
            ("--ep", self.ep),
            ("--dcp", self.dcp),
            ("--replicas", self.replicas),
            ("--batch", self.batch),
            ("--context", self.context),
        ];
        let list = |values: &[f64]| values.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
        let words = [
            ("--phase", self.phase.map(phase_word)),
            ("--routing", self.routing.as_ref().map(ToString::to_string)),
            ("--spec", self.spec.map(|s| s.to_string())),
            ("--spec-accept", self.spec_accept.as_deref().map(list)),
            ("--graphs", self.graphs.map(word)),
            ("--p2p", self.p2p.map(word)),
            ("--kv-dtype", self.kv_dtype.map(word)),
            ("--allreduce", self.allreduce.map(word)),
            ("--fuse-allreduce", self.fuse_allreduce.map(word)),
            ("--a2a", self.a2a.map(word)),
            ("--engine", self.engine.map(word)),
            ("--engine-version", self.engine_version.clone()),
            ("--kernels", self.kernels.as_ref().map(|k| format!("{} ({})", k.path.display(), k.digest))),
            ("--nccl-graph", self.nccl_graph.map(word)),
            ("--seed", (self.seed != 0).then(|| self.seed.to_string())),
        ];
        let numbers = numbers.into_iter().filter_map(|(flag, n)| Some(format!("{flag} {}", n?)));
        let words = words.into_iter().filter_map(|(flag, w)| Some(format!("{flag} {}", w?)));
        numbers.chain(words).collect::<Vec<_>>().join(" ")
    }
}

/// A phase as `--phase` takes it.
fn phase_word(phase: Phase) -> String {
    match phase {
        Phase::Decode => "decode".to_owned(),
        Phase::Prefill => "prefill".to_owned(),
        Phase::Verify(n) => format!("verify:{n}"),
    }
}

/// Rank counts: at least 1, and small enough that products of them stay meaningful.
fn ranks() -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    whole::<u32>(1..=4096)
}

fn probability() -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    real("probabilities from 0 to 1 with commas between", |p| (0.0..=1.0).contains(&p))
}

/// A value as the command line takes it.
pub(crate) fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// Element types of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvDtype {
    /// Two bytes an element.
    Bf16,
    /// One byte an element (e4m3).
    Fp8,
}

/// All-reduce implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AllReduceKind {
    /// As SGLang chooses (vLLM with --engine vllm): a peer kernel where every GPU reaches every other over NVLink, NCCL elsewhere.
    Auto,
    /// NCCL.
    Nccl,
    /// Peer kernel, every rank reads all others; up to the machine's cut-off size, then NCCL. Our own takes the norm behind the sum with it.
    OneShot,
    /// Peer kernel, reduce-scatter then all-gather; up to the machine's cut-off size, then NCCL.
    TwoShot,
    /// Whatever the engine chooses.
    Engine,
}

/// All-to-all backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AllToAllKind {
    /// No dispatch: every rank sees every token.
    None,
    /// NCCL.
    Nccl,
    /// FlashInfer's one-sided all-to-all.
    Flashinfer,
    /// DeepEP.
    Deepep,
}

/// Whose rules decide defaults and start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// moetwin's own runtime.
    Native,
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
}

impl Engine {
    /// Name as in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Native => "native",
            Engine::Sglang => "sglang",
            Engine::Vllm => "vllm",
        }
    }
}

/// How NCCL's channels are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NcclGraph {
    /// As NCCL finds them.
    Detected,
    /// As a hand-written graph file gives them.
    Tuned,
}

/// How tokens choose experts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Routing {
    /// Every expert is as likely.
    Uniform,
    /// Popularity falls with rank to this power.
    Zipf(f64),
    /// Every token takes the same experts.
    Same,
    /// What the model that ships chose on text of its own.
    Shakespeare,
    /// A recorded histogram.
    File(PathBuf),
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Routing::Uniform => f.write_str("uniform"),
            Routing::Zipf(exponent) => write!(f, "zipf:{exponent}"),
            Routing::Shakespeare => f.write_str("shakespeare"),
            Routing::Same => f.write_str("same"),
            Routing::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for Routing {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            _ if text == "uniform" => Ok(Routing::Uniform),
            _ if text == "same" => Ok(Routing::Same),
            _ if text == "shakespeare" => Ok(Routing::Shakespeare),
            Some(("zipf", s)) => match s.parse::<f64>() {
                Ok(s) if s.is_finite() && (0.0..=10.0).contains(&s) => Ok(Routing::Zipf(s)),
                _ => Err("no such exponent\n  accepted: zipf:S with S from 0 to 10, as in zipf:1.2".to_owned()),
            },
            _ if text == "zipf" => Err("zipf has an exponent\n  accepted: zipf:S with S from 0 to 10, as in zipf:1.2".to_owned()),
            _ => Ok(Routing::File(PathBuf::from(text))),
        }
    }
}

/// Speculative decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speculation {
    /// None.
    None,
    /// EAGLE-3 with this many drafted tokens.
    Eagle3(u32),
    /// The model's own multi-token-prediction layers with this many drafted tokens.
    Mtp(u32),
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Speculation::None => f.write_str("none"),
            Speculation::Eagle3(n) => write!(f, "eagle3:{n}"),
            Speculation::Mtp(n) => write!(f, "mtp:{n}"),
        }
    }
}

impl FromStr for Speculation {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let tokens = |n: &str| n.parse::<u32>().ok().filter(|n| (1..=64).contains(n));
        match text.split_once(':').map(|(kind, n)| (kind, tokens(n))) {
            None if text == "none" => Ok(Speculation::None),
            Some(("eagle3", Some(n))) => Ok(Speculation::Eagle3(n)),
            Some(("mtp", Some(n))) => Ok(Speculation::Mtp(n)),
            _ => Err("no such drafting\n  accepted: none, eagle3:N, mtp:N with N from 1 to 64".to_owned()),
        }
    }
}

fn parse_phase(text: &str) -> Result<Phase, String> {
    match text.split_once(':') {
        None if text == "decode" => Ok(Phase::Decode),
        None if text == "prefill" => Ok(Phase::Prefill),
        Some(("verify", n)) => match n.parse::<u32>() {
            Ok(n @ 1..=1024) => Ok(Phase::Verify(n)),
            _ => Err("no such number of tokens\n  accepted: verify:N with N from 1 to 1024 tokens checked per sequence, as in verify:3"
                .to_owned()),
        },
        _ => Err("no such phase\n  accepted: decode, prefill, verify:N".to_owned()),
    }
}

impl DeploymentArgs {
    /// How the model is split; `gpus` is what `--tp` covers where no flag says otherwise.
    pub(crate) fn deployment(&self, gpus: u32) -> Result<Deployment, Failure> {
        let (pp, replicas) = (self.pp.unwrap_or(1), self.replicas.unwrap_or(1));
        let (ep, dp_attention, dcp) = (self.ep.unwrap_or(1), self.dp_attention.unwrap_or(1), self.dcp.unwrap_or(1));
        let named = self.ep.is_some() || self.dp_attention.is_some();
        let tp = self.tp.unwrap_or_else(|| if named { ep.max(dp_attention) } else { (gpus / (pp * replicas)).max(1) });
        let divides = |flag: &str, value: u32, whole: u32, of: &str| {
            if whole.is_multiple_of(value) {
                return Ok(());
            }
            let divisors = (1..=whole).filter(|d| whole.is_multiple_of(*d)).map(|d| d.to_string());
            let message = format!("does not divide {of} = {whole}");
            Err(InputError::new(flag, message).value(value.to_string()).accepted(divisors))
        };
        divides("--ep", ep, tp, "--tp")?;
        divides("--dp-attention", dp_attention, tp, "--tp")?;
        divides("--dcp", dcp, tp / dp_attention, "--tp / --dp-attention")?;
        let a2a = match self.a2a.unwrap_or(AllToAllKind::None) {
            AllToAllKind::None => AllToAll::None,
            AllToAllKind::Nccl => AllToAll::Nccl,
            AllToAllKind::Flashinfer => AllToAll::Flashinfer,
            AllToAllKind::Deepep => AllToAll::Deepep,
        };
        let kv_dtype = match self.kv_dtype.unwrap_or(KvDtype::Bf16) {
            KvDtype::Bf16 => DType::Bf16,
            KvDtype::Fp8 => DType::Fp8,
        };
        let deployment = Deployment { tp, pp, dp_attention, ep, dcp, replicas, a2a, kv_dtype, placement: None };
        Ok(deployment)
    }
    /// Whether a flag says how experts or heads are split; without one the widest split that the model allows is taken.
    pub(crate) fn splits_experts_or_heads(&self) -> bool {
        [self.tp, self.ep, self.dp_attention, self.dcp].iter().any(Option::is_some)
    }
    /// Tokens of history: as given, else the default, or what a model with fewer positions leaves room for.
    pub(crate) fn context(&self, spec: &ModelSpec) -> u32 {
        let new = match self.phase.unwrap_or(Phase::Decode) {
            Phase::Decode => 1,
            Phase::Verify(n) => u64::from(n),
            Phase::Prefill => 0,
        };
        let room = u32::try_from(spec.max_positions.saturating_sub(new)).unwrap_or(u32::MAX);
        self.context.unwrap_or(DEFAULT_CONTEXT.min(room))
    }
    /// What the step computes; the model limits how far a sequence may reach.
    pub(crate) fn step(&self, spec: &ModelSpec) -> Result<Step, Failure> {
        self.step_of(self.phase.unwrap_or(Phase::Decode), spec)
    }
    /// The step in another phase than the flags say.
    pub(crate) fn step_of(&self, phase: Phase, spec: &ModelSpec) -> Result<Step, Failure> {
        let (batch, context) = (self.batch.unwrap_or(1), self.context(spec));
        if phase == Phase::Prefill && context == 0 {
            return Err(InputError::new("--context", "a prefill needs at least one token").value("0").into());
        }
        let step = Step::uniform(phase, batch, context);
        let longest = step.sequences.iter().map(|s| u64::from(s.past) + u64::from(s.new)).max().unwrap_or(0);
        if longest > spec.max_positions {
            let new = longest - u64::from(if phase == Phase::Prefill { 0 } else { context });
            let most = spec.max_positions.saturating_sub(if phase == Phase::Prefill { 0 } else { new });
            let message = format!("a sequence would reach position {longest}, and {} allows {}", spec.name, spec.max_positions);
            return Err(InputError::new("--context", message).value(context.to_string()).accepted([format!("0 to {most}")]).into());
        }
        Ok(step)
    }
}

/// A flag whose effect is not built yet: it says so instead of doing nothing.
pub(crate) fn not_yet(flag: &str, value: &str, accepted: &[&str]) -> Failure {
    InputError::new(flag, "is not modelled in this version").value(value).accepted(accepted.iter().copied()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tp_follows_from_what_was_given() {
        let tp = |args: DeploymentArgs| args.deployment(8).unwrap().tp;
        let base = DeploymentArgs::default;
        assert_eq!(tp(base()), 8);
        assert_eq!(tp(DeploymentArgs { ep: Some(2), ..base() }), 2);
        assert_eq!(tp(DeploymentArgs { dp_attention: Some(4), ep: Some(2), ..base() }), 4);
        assert_eq!(tp(DeploymentArgs { pp: Some(2), ..base() }), 4);
        assert_eq!(tp(DeploymentArgs { pp: Some(2), replicas: Some(2), ..base() }), 2);
        assert_eq!(tp(DeploymentArgs { tp: Some(3), ep: Some(3), ..base() }), 3);
        for wrong in [
            DeploymentArgs { tp: Some(8), ep: Some(3), ..base() },
            DeploymentArgs { ep: Some(3), dp_attention: Some(4), ..base() },
            DeploymentArgs { dp_attention: Some(8), dcp: Some(2), ..base() },
        ] {
            assert!(matches!(wrong.deployment(8), Err(Failure::Input(_))), "{wrong:?}");
        }
    }

    #[test]
    fn words_with_numbers() {
        assert_eq!(parse_phase("verify:3"), Ok(Phase::Verify(3)));
        assert_eq!("zipf:1.2".parse(), Ok(Routing::Zipf(1.2)));
        assert_eq!("counts.json".parse(), Ok(Routing::File("counts.json".into())));
        assert_eq!("eagle3:2".parse(), Ok(Speculation::Eagle3(2)));
        for wrong in ["verify", "verify:0", "verify:x", "verify:99999", "decoding", ""] {
            assert!(parse_phase(wrong).is_err(), "{wrong}");
        }
        for wrong in ["zipf", "zipf:", "zipf:nan", "zipf:-1", "zipf:1e9"] {
            assert!(wrong.parse::<Routing>().is_err(), "{wrong}");
        }
        for wrong in ["eagle3", "eagle3:0", "eagle:2", "mtp:65"] {
            assert!(wrong.parse::<Speculation>().is_err(), "{wrong}");
        }
    }
}
