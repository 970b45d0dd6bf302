//! A measured step as a trace: what it is of, and the times of its commands.

use crate::error::{Failure, InputError};
use moetwin::cuda::Search;
use moetwin::cuda::exec::gpu::Host;
use moetwin::cuda::exec::{CommandTimes, CudaExecutor, RankTimes, Repetitions};
use moetwin::cuda::{Piece, probe};
use moetwin::models::{Deployment, Phase, RankId, Sequence, Step};
use moetwin::runtime::reference::StepInputs;
use moetwin::runtime::{Executor, Program, ProgramKey};
use moetwin::sim::measured::{MeasuredCommand, MeasuredRank, measured_trace};
use moetwin::sim::time::Duration;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What a measured step is of: enough to predict the same step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Conditions {
    /// Version of moetwin.
    pub(crate) version: String,
    /// The model as `--model` took it.
    pub(crate) model: String,
    /// Its first layers only.
    pub(crate) layers: Option<u32>,
    /// Splits, as the flags of the same names.
    pub(crate) tp: u32,
    pub(crate) pp: u32,
    pub(crate) dp_attention: u32,
    pub(crate) ep: u32,
    pub(crate) dcp: u32,
    pub(crate) replicas: u32,
    /// The all-to-all backend, as `--a2a` takes it.
    pub(crate) a2a: String,
    /// Which code summed over ranks, as `--allreduce` takes it; empty where the flag was not given.
    pub(crate) allreduce: String,
    /// Whether it took norms with it, as `--fuse-allreduce` takes it; empty where the flag was not given.
    pub(crate) fuse_allreduce: String,
    /// Tokens in the cache and new ones, by sequence.
    pub(crate) sequences: Vec<(u32, u32)>,
    /// Whether it is a prefill rather than a decode step.
    pub(crate) prefill: bool,
    /// Seed of prompts and weights.
    pub(crate) seed: u64,
    /// Whether weights were drawn.
    pub(crate) synthetic: bool,
    /// The only rank that ran, and how long each collective was made to take.
    pub(crate) only_rank: Option<u32>,
    pub(crate) collective_delay_us: Option<f64>,
    /// The GPU's name, and versions.
    pub(crate) gpu: String,
    pub(crate) driver: String,
    pub(crate) nvrtc: String,
    pub(crate) nccl: String,
    /// Whether NCCL was told not to use peer access.
    pub(crate) peer_access_off: bool,
    /// The experts that tokens chose, by layer, token by token.
    pub(crate) chosen: BTreeMap<u16, Vec<i32>>,
}

impl Conditions {
    /// Of a deployment on this host.
    pub(crate) fn here(deployment: &Deployment) -> Self {
        let probed = probe(&Search::from_environment());
        let version = |piece: &Piece| match piece {
            Piece::Found(found) => found.version.clone(),
            Piece::Missing(_) => String::new(),
        };
        let a2a = match deployment.a2a {
            moetwin::models::AllToAll::None => "none",
            moetwin::models::AllToAll::Nccl => "nccl",
            moetwin::models::AllToAll::Flashinfer => "flashinfer",
            moetwin::models::AllToAll::Deepep => "deepep",
        };
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tp: deployment.tp,
            pp: deployment.pp,
            dp_attention: deployment.dp_attention,
            ep: deployment.ep,
            dcp: deployment.dcp,
            replicas: deployment.replicas,
            a2a: a2a.to_owned(),
            gpu: probed.gpus.first().map_or_else(String::new, |g| g.name.clone()),
            driver: probed.kernel_module.clone().unwrap_or_default(),
            nvrtc: version(&probed.nvrtc),
            nccl: version(&probed.nccl),
            peer_access_off: std::env::var("NCCL_P2P_DISABLE").is_ok_and(|v| v == "1"),
            ..Self::default()
        }
    }
    /// Reads what a trace says of itself.
    pub(crate) fn read(flag: &'static str, file: &str, value: &Value) -> Result<Self, Failure> {
        let wrong = |message: String| Failure::from(InputError::new(flag, message).value(file));
        if value.is_null() {
            return Err(wrong("does not say what it is of (otherData.conditions)".to_owned()));
        }
        let read: Self = serde_json::from_value(value.clone()).map_err(|e| wrong(format!("otherData.conditions: {e}")))?;
        if read.model.is_empty() || read.sequences.is_empty() || read.tp == 0 {
            return Err(wrong("otherData.conditions has no model, no sequences or no tp".to_owned()));
        }
        Ok(read)
    }
    /// The step.
    pub(crate) fn step(&self) -> Step {
        let sequences: Vec<Sequence> = self.sequences.iter().map(|&(past, new)| Sequence { past, new }).collect();
        let phase = if self.prefill { Phase::Prefill } else { Phase::Decode };
        Step { sequences, ..Step::uniform(phase, 1, 1) }
    }
    /// Says what was run.
    pub(crate) fn of_step(self, step: &Step, sequences: &[Sequence]) -> Self {
        let sequences = sequences.iter().map(|s| (s.past, s.new)).collect();
        Self { sequences, prefill: step.phase == Phase::Prefill, ..self }
    }
    /// Distinct experts of a layer, the mean over layers; none where nothing was routed.
    pub(crate) fn distinct_experts(&self) -> Option<f64> {
        let distinct = |ids: &Vec<i32>| {
            let mut ids: Vec<i32> = ids.iter().copied().filter(|id| *id >= 0).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.len()
        };
        let all: usize = self.chosen.values().map(distinct).sum();
        (!self.chosen.is_empty()).then(|| all as f64 / self.chosen.len() as f64)
    }
}

/// The experts that the tokens of a step chose, by layer. Ranks that compute the same tokens chose the same; those that compute others are put
/// one behind the other.
pub(crate) fn chosen(program: &Program, times: &[RankTimes]) -> BTreeMap<u16, Vec<i32>> {
    let mut layers: BTreeMap<u16, Vec<i32>> = BTreeMap::new();
    let mut seen: Vec<(u16, std::ops::Range<usize>)> = Vec::new();
    let (deployment, step) = (&program.graph.deployment, &program.graph.step);
    for rank in times {
        let Some(rp) = program.ranks.get(RankId(rank.rank)) else { continue };
        let own = deployment.attention_sequences(step, RankId(rank.rank));
        for (index, ids) in &rank.chosen {
            let Some(layer) = rp.commands.get(*index as usize).and_then(|c| program.graph.nodes[c.id.node].layer) else { continue };
            if !seen.contains(&(layer, own.clone())) {
                seen.push((layer, own.clone()));
                layers.entry(layer).or_default().extend(ids);
            }
        }
    }
    layers
}

/// The trace of a measured step.
pub(crate) fn trace(program: &Program, times: &[RankTimes], conditions: &Conditions) -> Result<String, Failure> {
    let list = |ps: &[u64]| ps.iter().map(|ps| Duration::from_ps(*ps)).collect::<Vec<_>>();
    let rank = |t: &RankTimes| MeasuredRank {
        rank: t.rank,
        captured: list(&t.captured_ps),
        one_stream: list(&t.one_stream_ps),
        eager: list(&t.eager_ps),
        scale: t.scale(),
        commands: t.commands.iter().zip(t.commands_ps()).map(command).collect(),
    };
    let conditions = serde_json::to_value(conditions).map_err(|e| Failure::Running(format!("--trace: {e}")))?;
    Ok(measured_trace(program, &times.iter().map(rank).collect::<Vec<_>>(), &conditions))
}

/// A command's times as a trace has them.
fn command((times, ps): (&CommandTimes, Option<u64>)) -> MeasuredCommand {
    let end = |ps: Option<&i64>| Duration::from_ps(ps.and_then(|ps| u64::try_from(*ps).ok()).unwrap_or(0));
    MeasuredCommand {
        time: Duration::from_ps(ps.unwrap_or(0)),
        spread: (end(times.ps.iter().min()), end(times.ps.iter().max())),
        samples: times.ps.len(),
    }
}

/// The median; none of no times.
pub(crate) fn median_of(ps: &[u64]) -> Option<u64> {
    let mut sorted = ps.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

/// The median, milliseconds; none of no times.
pub(crate) fn median_ms(ps: &[u64]) -> Option<f64> {
    median_of(ps).map(|ps| ps as f64 / 1e9)
}

/// A sentence on what was measured, of the slowest rank.
pub(crate) fn words(times: &[RankTimes], conditions: &Conditions) -> String {
    let slowest = |of: fn(&RankTimes) -> &[u64]| times.iter().filter_map(|t| median_ms(of(t))).max_by(f64::total_cmp);
    let mut parts = Vec::new();
    if let Some(ms) = slowest(|t| &t.captured_ps) {
        parts.push(format!("captured {ms:.3} ms a step"));
    }
    if let Some(ms) = slowest(|t| &t.eager_ps) {
        parts.push(format!("launched command by command {ms:.3}"));
    }
    if let Some(ms) = slowest(|t| &t.one_stream_ps) {
        parts.push(format!("captured on one stream {ms:.3}"));
    }
    let commands = |t: &RankTimes| t.commands.iter().filter_map(CommandTimes::typical_ps).sum::<u64>() as f64 / 1e9;
    if let Some(ms) = times.iter().map(commands).max_by(f64::total_cmp) {
        parts.push(format!("its commands add up to {ms:.3}"));
    }
    if let Some(distinct) = conditions.distinct_experts() {
        parts.push(format!("{distinct:.1} distinct experts a layer"));
    }
    parts.join(", ")
}

/// A pass that was measured.
pub(crate) struct Measured {
    program: Program,
    times: Vec<RankTimes>,
    conditions: Conditions,
}

/// Measured time of a class of commands.
#[derive(Serialize)]
pub(crate) struct ClassJson {
    class: &'static str,
    ms: f64,
    share: f64,
    calls: f64,
}

impl Measured {
    /// Measures a pass that an executor has run; `conditions` say what it is of, but for the step.
    pub(crate) fn of<H: Host>(
        executor: &mut CudaExecutor<H>,
        key: ProgramKey,
        inputs: &StepInputs,
        conditions: Conditions,
    ) -> Result<Self, Failure> {
        let times = executor.measure(key, inputs, Repetitions::default()).map_err(|e| Failure::Running(e.to_string()))?;
        let program = executor.program(key).clone();
        let mut conditions = conditions.of_step(&program.graph.step, &inputs.sequences);
        conditions.chosen = chosen(&program, &times);
        Ok(Self { program, times, conditions })
    }
    /// As a trace.
    pub(crate) fn trace(&self) -> Result<String, Failure> {
        trace(&self.program, &self.times, &self.conditions)
    }
    /// In a sentence.
    pub(crate) fn words(&self) -> String {
        words(&self.times, &self.conditions)
    }
    /// By class, longest first, mean over ranks.
    pub(crate) fn by_class(&self) -> Vec<ClassJson> {
        let mut classes: BTreeMap<&'static str, (f64, f64)> = BTreeMap::new();
        let ranks = self.times.len().max(1) as f64;
        for t in &self.times {
            let commands = self.program.ranks.get(RankId(t.rank)).map_or(&[][..], |rp| &rp.commands);
            for (command, found) in commands.iter().zip(t.commands_ps()) {
                let into = classes.entry(self.program.graph.nodes[command.id.node].op.class().name()).or_default();
                into.0 += found.unwrap_or(0) as f64 / 1e9 / ranks;
                into.1 += 1.0 / ranks;
            }
        }
        let total: f64 = classes.values().map(|c| c.0).sum();
        let row = |(class, (ms, calls))| ClassJson { class, ms, share: if total > 0.0 { ms / total } else { 0.0 }, calls };
        let mut rows: Vec<ClassJson> = classes.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::{Job, generate};
    use moetwin::cuda::exec::CudaOptions;
    use moetwin::cuda::exec::fake::FakeHost;
    use moetwin::runtime::builtin;
    use moetwin::runtime::text::Sampler;
    use moetwin::runtime::weights::SyntheticWeights;
    use moetwin::sim::measured::{self, Origin, compare};

    fn options(capacity: u32) -> CudaOptions {
        CudaOptions::new(capacity, std::time::Duration::from_secs(10))
    }

    fn measured(deployment: &Deployment, max_tokens: u32) -> Measured {
        let (spec, host) = (builtin::spec().unwrap(), FakeHost::default());
        let weights = SyntheticWeights::new(&spec, 1);
        let prompts = [vec![1, 2, 3], vec![4, 5, 6]];
        let job = Job {
            spec: &spec,
            weights: &weights,
            deployment: deployment.clone(),
            fuse_sums: false,
            prompts: &prompts,
            max_tokens,
            sampler: Sampler::new(0.0, 1.0, 0).unwrap(),
            order_seed: 0,
            stop: &[],
            dump: false,
            warm_passes: 2,
        };
        let mut found = None;
        let open = |capacity| {
            let ranks = (0..deployment.ranks()).map(RankId).collect();
            CudaExecutor::on(host.clone(), ranks, deployment.ranks(), None, options(capacity)).map_err(|e| Failure::Running(e.to_string()))
        };
        let conditions = Conditions { model: builtin::NAME.to_owned(), tp: deployment.tp, ..Conditions::default() };
        let after = |executor: &mut CudaExecutor<FakeHost>, key: ProgramKey, inputs: &StepInputs| {
            found = Some(Measured::of(executor, key, inputs, conditions)?);
            Ok(())
        };
        generate(&job, open, None, after).unwrap();
        assert_eq!(host.wrong(), [""; 0]);
        found.unwrap()
    }

    #[test]
    fn a_run_is_written_as_a_trace_of_the_commands_that_are_simulated() {
        let found = measured(&Deployment { tp: 2, ..Deployment::default() }, 5);
        let text = found.trace().unwrap();
        let trace = measured::read(&text).unwrap();
        assert_eq!((trace.origin, trace.captured), (Origin::Measured, true));
        // The last of five tokens was decoded with three of the prompt and three new ones in the cache.
        let read = Conditions::read("--measured", "x", &trace.conditions).unwrap();
        assert_eq!((read.sequences.as_slice(), read.prefill), (&[(6, 1), (6, 1)][..], false));
        assert_eq!(read.step(), Step { sequences: read.step().sequences, ..found.program.graph.step.clone() });
        // Every layer routes two tokens; ranks that compute the same tokens are counted once.
        let spec = builtin::spec().unwrap();
        assert!(!read.chosen.is_empty() && read.chosen.len() <= spec.layers.len());
        let widths: Vec<usize> = read.chosen.values().map(Vec::len).collect();
        assert!(widths.iter().all(|w| *w == widths[0] && w % 2 == 0), "{widths:?}");
        assert_eq!(read.distinct_experts(), Some(1.0));
        // Against itself nothing is off, and nothing is left over.
        let same = compare(&trace, &trace);
        assert_eq!(same.unmatched, (0, 0));
        assert_eq!(same.rows.len(), found.times.iter().map(|t| t.commands.len()).sum::<usize>());
        assert!(same.rows.iter().all(|r| r.predicted_us == r.measured_us));
        let shares: f64 = found.by_class().iter().map(|c| c.share).sum();
        assert!((shares - 1.0).abs() < 1e-9 && found.words().contains("captured"), "{}", found.words());
    }

    #[test]
    fn a_run_of_one_pass_is_traced_as_the_prefill_that_it_is() {
        let found = measured(&Deployment::default(), 1);
        assert!(found.conditions.prefill && found.times[0].captured_ps.is_empty());
        let trace = measured::read(&found.trace().unwrap()).unwrap();
        assert!(!trace.captured && trace.step_ps > 0 && trace.eager_ps == Some(trace.step_ps));
    }
}
