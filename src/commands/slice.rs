//! `moetwin run --only-rank`: one rank of a deployment on one GPU, something standing in for the others. And `--no-prompt`: a decode step of all
//! ranks on a cache that no prompt has filled.

use crate::error::{Failure, InputError, Outcome};
use crate::measurement::{self, Conditions, chosen, median_ms};
use crate::output::{self, NewFile};
use crate::report::gib;
use crate::scenario::{plan_failure, verified, with_sums_fused};
use moetwin::cuda::exec::gpu::Host;
use moetwin::cuda::exec::{CudaExecutor, RankTimes, Repetitions};
use moetwin::models::{BuildOptions, Deployment, ModelSpec, RankId, Step, plan};
use moetwin::runtime::ledger::{Ledger, LedgerOptions, RankLedger, ledger};
use moetwin::runtime::reference::{ExecuteError, StepInputs};
use moetwin::runtime::weights::WeightSource;
use moetwin::runtime::{Executor, Program};
use serde::Serialize;

/// A decode step that is measured and answers nothing: of one rank of a deployment, or of all.
pub(super) struct Slice<'a> {
    /// The model.
    pub(super) spec: &'a ModelSpec,
    /// Its weights.
    pub(super) weights: &'a dyn WeightSource,
    /// How it is split.
    pub(super) deployment: Deployment,
    /// Whether sums over ranks are fused with the norms behind them.
    pub(super) fuse_sums: bool,
    /// What is computed.
    pub(super) step: Step,
    /// The rank that runs by itself; none where all of them do.
    pub(super) rank: Option<RankId>,
    /// Seed of the tokens.
    pub(super) seed: u64,
    /// What is said of it, but for the step.
    pub(super) conditions: Conditions,
}

/// What was found.
pub(super) struct Sliced {
    /// Times of the ranks that ran.
    pub(super) times: Vec<RankTimes>,
    /// The program of all ranks.
    pub(super) program: Program,
    /// What the rank holds, or the fullest of all.
    pub(super) ledger: RankLedger,
    /// What it is of.
    pub(super) conditions: Conditions,
}

impl Slice<'_> {
    /// The program of all ranks, and what the one holds, or the fullest.
    fn program(&self) -> Result<(Program, RankLedger), Failure> {
        let mut graph =
            plan(self.spec, &self.step, &self.deployment, &BuildOptions::default()).map_err(|e| plan_failure(&e, &self.deployment))?;
        // Nobody asks for the next tokens; logits would only be copied.
        graph.outputs.retain(|(name, _)| name != "logits");
        let program = verified(with_sums_fused(graph, self.fuse_sums)?)?;
        let options = LedgerOptions { captured_buckets: 1, channels: 0, spare_kv_bytes: 0 };
        let Ledger { ranks, .. } =
            ledger(&program, self.spec, &options).map_err(|e| Failure::from(InputError::new("--a2a", e.to_string())))?;
        let own = match self.rank {
            Some(rank) => ranks.into_iter().find(|r| r.rank == rank),
            None => ranks.into_iter().max_by_key(RankLedger::peak_bytes),
        };
        Ok((program, own.ok_or_else(|| Failure::Running("no ledger of such a rank".to_owned()))?))
    }

    /// Loads the weights of what runs and measures its step. `open` makes an executor of it.
    pub(super) fn measure<H: Host>(
        &self,
        memory_bytes: u64,
        open: impl FnOnce(u32) -> Result<CudaExecutor<H>, ExecuteError>,
    ) -> Result<Sliced, Failure> {
        let (program, ledger) = self.program()?;
        let of = ledger.rank.0;
        if ledger.peak_bytes() > memory_bytes {
            let message = format!("rank {of} needs {:.1} GiB, the GPU has {:.1}", gib(ledger.peak_bytes()), gib(memory_bytes));
            let mut error = InputError::new(if self.rank.is_some() { "--only-rank" } else { "--no-prompt" }, message);
            if self.rank.is_some() {
                error = error.value(of.to_string());
            }
            return Err(error.accepted(["fewer --layers", "more ranks"]).into());
        }
        output::note(&format!("rank {of} of {}: {:.1} GiB by the ledger", program.ranks.len(), gib(ledger.peak_bytes())));
        let running = |e: ExecuteError| Failure::Running(e.to_string());
        let longest = self.step.sequences.iter().map(|s| s.past + s.new).max().unwrap_or(1);
        let mut executor = open(longest).map_err(running)?;
        let all = program.ranks.ids().filter(|rank| self.rank.is_none_or(|own| own == *rank));
        all.into_iter().try_for_each(|rank| executor.load(&program, rank, self.weights)).map_err(running)?;
        let key = executor.prepare(program.clone()).map_err(running)?;
        let sequences = self.step.sequences.clone();
        let prompts = crate::prompt::drawn(sequences.len() as u32, sequences.first().map_or(1, |s| s.new), self.spec, self.seed);
        let inputs = StepInputs { token_ids: prompts.concat(), sequences: sequences.clone() };
        let times = executor.measure(key, &inputs, Repetitions::default()).map_err(running)?;
        let mut conditions = self.conditions.clone().of_step(&self.step, &sequences);
        conditions.only_rank = self.rank.map(|rank| rank.0);
        conditions.chosen = chosen(&program, &times);
        Ok(Sliced { times, program, ledger, conditions })
    }
}

#[derive(Serialize)]
struct SliceJson<'a> {
    schema: u32,
    seed: u64,
    backend: &'static str,
    model: &'a str,
    ranks: u32,
    only_rank: Option<u32>,
    collective_delay_us: Option<f64>,
    collectives: u64,
    step_ms: Option<StepMs>,
    one_stream_step_ms: Option<f64>,
    eager_step_ms: Option<f64>,
    /// Of one rank, what stood in for exchanges; of all, their time on the rank where they take longest, waits included.
    collectives_ms: f64,
    compute_ms: Option<f64>,
    memory: Vec<LineJson>,
    tokens: [(); 0],
}

#[derive(Serialize)]
struct StepMs {
    median: f64,
    p99: f64,
}

#[derive(Serialize)]
struct LineJson {
    name: &'static str,
    gib: f64,
}

impl Sliced {
    /// Milliseconds of exchanges, or of what stood in for them, command by command, on the rank where they take longest.
    fn exchanges_ms(&self) -> f64 {
        let of = |times: &RankTimes| {
            let commands = self.program.ranks.get(RankId(times.rank)).map_or(&[][..], |rp| &rp.commands);
            let exchanges =
                commands.iter().zip(times.commands_ps()).filter(|(c, _)| self.program.graph.nodes[c.id.node].op.is_communication());
            exchanges.filter_map(|(_, ps)| ps).sum::<u64>() as f64 / 1e9
        };
        self.times.iter().map(of).fold(0.0, f64::max)
    }
    /// The rank whose replays take longest.
    fn slowest(&self, of: fn(&RankTimes) -> &[u64]) -> Vec<u64> {
        let mut all: Vec<Vec<u64>> = self.times.iter().map(|t| of(t).to_vec()).collect();
        all.iter_mut().for_each(|times| times.sort_unstable());
        all.into_iter().max_by_key(|times| times.get(times.len() / 2).copied()).unwrap_or_default()
    }
    /// Writes the trace where one is wanted, and the answer.
    pub(super) fn report(&self, model: &str, seed: u64, json: bool, trace: Option<NewFile>) -> Result<Outcome, Failure> {
        if let Some(file) = trace {
            file.commit(measurement::trace(&self.program, &self.times, &self.conditions)?.as_bytes())?;
        }
        let sorted = self.slowest(|t| &t.captured_ps);
        let step = median_ms(&sorted).zip(sorted.last()).map(|(median, last)| StepMs { median, p99: *last as f64 / 1e9 });
        let exchanged = self.exchanges_ms();
        if json {
            let compute_ms = step.as_ref().map(|s| s.median - exchanged);
            output::answer_json(&SliceJson {
                schema: 1,
                seed,
                backend: "cuda",
                model,
                ranks: self.program.ranks.len() as u32,
                only_rank: self.conditions.only_rank,
                collective_delay_us: self.conditions.collective_delay_us,
                collectives: moetwin::runtime::session::collectives(&self.program),
                step_ms: step,
                one_stream_step_ms: median_ms(&self.slowest(|t| &t.one_stream_ps)),
                eager_step_ms: median_ms(&self.slowest(|t| &t.eager_ps)),
                collectives_ms: exchanged,
                compute_ms,
                memory: self.ledger.lines.iter().map(|l| LineJson { name: l.name, gib: gib(l.bytes) }).collect(),
                tokens: [],
            })?;
        } else {
            let (ranks, calls) = (self.program.ranks.len(), moetwin::runtime::session::collectives(&self.program));
            let words = measurement::words(&self.times, &self.conditions);
            output::answer(&match self.conditions.only_rank {
                Some(rank) => format!(
                    "{model}, rank {rank} of {ranks} alone: {words}; {calls} collectives stand in by {:.1} us each and take {exchanged:.3} ms",
                    self.conditions.collective_delay_us.unwrap_or(0.0),
                ),
                None => format!(
                    "{model}, {ranks} ranks, no prompt in the cache: {words}; {calls} collectives take {exchanged:.3} ms, waits included"
                ),
            })?;
        }
        Ok(Outcome::Yes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use moetwin::cuda::exec::CudaOptions;
    use moetwin::cuda::exec::fake::FakeHost;
    use moetwin::models::Phase;
    use moetwin::runtime::builtin;
    use moetwin::runtime::weights::SyntheticWeights;
    use std::time::Duration;

    /// The step of the shipped model in two ranks, on the fake: of `rank` alone where one is named. With a history of so many tokens, a stand-in that
    /// takes so long, and GPUs of so much memory.
    fn sliced(rank: Option<u32>, past: u32, delay_us: u64, memory_bytes: u64) -> Result<Sliced, Failure> {
        let (spec, host) = (builtin::spec().unwrap(), FakeHost::default());
        let weights = SyntheticWeights::new(&spec, 3);
        let rank = rank.map(RankId);
        let slice = Slice {
            spec: &spec,
            weights: &weights,
            deployment: Deployment { tp: 2, ..Deployment::default() },
            fuse_sums: false,
            step: Step::uniform(Phase::Decode, 2, past),
            rank,
            seed: 3,
            conditions: Conditions { collective_delay_us: rank.map(|_| delay_us as f64), ..Conditions::default() },
        };
        let open = |capacity| {
            let stand_in = rank.map(|_| Duration::from_micros(delay_us));
            let options = CudaOptions { stand_in, ..CudaOptions::new(capacity, Duration::from_secs(10)) };
            let ranks = rank.map_or_else(|| vec![RankId(0), RankId(1)], |rank| vec![rank]);
            CudaExecutor::on(host.clone(), ranks, 2, None, options)
        };
        let found = slice.measure(memory_bytes, open);
        assert_eq!(host.wrong(), [""; 0]);
        found
    }

    #[test]
    fn a_rank_alone_holds_its_part_and_its_collectives_take_what_was_stated() {
        let (short, long) = (sliced(Some(1), 7, 10, u64::MAX).unwrap(), sliced(Some(1), 7, 60, u64::MAX).unwrap());
        let exchanges = moetwin::runtime::session::collectives(&short.program) as f64;
        assert!(exchanges > 0.0 && short.exchanges_ms() >= exchanges * 0.010);
        assert!((long.exchanges_ms() - short.exchanges_ms() - exchanges * 0.050).abs() < exchanges * 0.002);
        let step = |s: &Sliced| median_ms(&s.times[0].captured_ps).unwrap();
        assert!((step(&long) - step(&short) - exchanges * 0.050).abs() < exchanges * 0.002);
        assert_eq!((short.ledger.rank, short.conditions.only_rank), (RankId(1), Some(1)));
        assert_eq!(short.conditions.sequences, [(7, 1), (7, 1)]);
        // The ledger is the rank's: that of the whole model is larger.
        let spec = builtin::spec().unwrap();
        let whole =
            verified(plan(&spec, &Step::uniform(Phase::Decode, 2, 7), &Deployment::default(), &BuildOptions::default()).unwrap()).unwrap();
        let options = LedgerOptions { captured_buckets: 1, channels: 0, spare_kv_bytes: 0 };
        let all = ledger(&whole, &spec, &options).unwrap().ranks[0].peak_bytes();
        assert!(short.ledger.peak_bytes() < all, "{} of {all}", short.ledger.peak_bytes());
    }

    #[test]
    fn a_rank_that_does_not_fit_is_refused_before_anything_is_loaded() {
        let Err(Failure::Input(e)) = sliced(Some(0), 7, 0, 1 << 20) else { panic!("a GPU of a mebibyte held it") };
        assert!(e.message().contains("needs") && e.message().contains("GiB"), "{}", e.message());
    }

    #[test]
    fn a_step_of_all_ranks_needs_no_prompt() {
        let found = sliced(None, 4000, 0, u64::MAX).unwrap();
        assert_eq!(found.times.iter().map(|t| t.rank).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((found.conditions.only_rank, found.conditions.sequences.as_slice()), (None, &[(4000, 1), (4000, 1)][..]));
        assert!(found.exchanges_ms() > 0.0 && found.times.iter().all(|t| !t.captured_ps.is_empty() && !t.one_stream_ps.is_empty()));
        let trace = moetwin::sim::measured::read(&measurement::trace(&found.program, &found.times, &found.conditions).unwrap()).unwrap();
        assert!(trace.captured && trace.step_ps > 0 && trace.intervals.iter().any(|i| i.rank == 1));
    }
}
