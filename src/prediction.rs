//! The answer to `moetwin sim`: the library's functions called one after the other, and what they said.

use crate::error::{Failure, InputError};
use crate::kernel_folder::KernelFolder;
use crate::scenario::Scenario;
use crate::speculation::Speculated;
use crate::table::bytes;
use moetwin::kernels::routing::SampledRouting;
use moetwin::models::{Op, RankId, Sequence, Step};
use moetwin::runtime::Program;
use moetwin::runtime::init::{CheckedPlan, InitPlan, NativeInputs};
use moetwin::runtime::ledger::{Ledger, LedgerOptions, Line, OutOfMemory, RankLedger, draft_lines, ledger};
use moetwin::sim::breakdown::Breakdown;
use moetwin::sim::collective::{CollectiveOp, CollectiveRequest, Collectives, Protocol, nccl_graph};
use moetwin::sim::cost::{KernelTables, Kernels};
use moetwin::sim::exec::{SimMemory, SimTrace, gpu_rates, simulate_with};
use moetwin::sim::explore::{DEFAULT_MAX_STATES, explore};
use moetwin::sim::network::Network;

/// Everything that is predicted of a scenario.
pub(crate) struct Prediction {
    /// What was asked.
    pub(crate) scenario: Scenario,
    /// Whether it starts.
    pub(crate) start: Start,
    /// Memory of the batch that was asked for.
    pub(crate) ledger: Ledger,
    /// Memory of the smallest GPU in use.
    pub(crate) capacity_bytes: u64,
    /// Where memory runs out with the batch that was asked for.
    pub(crate) out_of_memory: Option<OutOfMemory>,
    /// The step that is served; none where not even one sequence fits.
    pub(crate) served: Option<Served>,
}

/// What the search of the start-up says.
pub(crate) struct Start {
    /// States visited.
    pub(crate) states: u64,
    /// How it goes wrong, if it can.
    pub(crate) story: Option<String>,
}

/// A simulated step.
pub(crate) struct Served {
    /// Sequences in it: those asked for, or as many as fit.
    pub(crate) batch: usize,
    /// What ran.
    pub(crate) program: Program,
    /// When.
    pub(crate) trace: SimTrace,
    /// What the time is made of.
    pub(crate) breakdown: Breakdown,
    /// With drafted tokens: what the whole step comes to, of which the rest is the verification.
    pub(crate) speculated: Option<Speculated>,
}

impl Served {
    /// Time of a step, drafting included.
    pub(crate) fn step_ms(&self, scenario: &Scenario) -> f64 {
        match (&self.speculated, &scenario.speculation) {
            (Some(s), Some(plan)) => s.step_ms(plan),
            _ => self.breakdown.step_ms,
        }
    }
    /// Tokens a second, summed over sequences.
    pub(crate) fn tokens_per_s(&self, scenario: &Scenario) -> f64 {
        match (&self.speculated, &scenario.speculation) {
            (Some(s), Some(plan)) => s.tokens_per_s(plan),
            _ => self.breakdown.tokens_per_s,
        }
    }
}

impl Prediction {
    /// Predicts a scenario.
    pub(crate) fn of(scenario: Scenario) -> Result<Self, Failure> {
        let Prepared { program, start, channels, ledger, capacity_bytes, out_of_memory } = Prepared::of(&scenario)?;
        let fitting = match &out_of_memory {
            None => Some((scenario.step.sequences.len(), program)),
            Some(_) => largest_fitting(&scenario, channels, capacity_bytes)?,
        };
        let served = fitting.map(|(batch, program)| serve(&scenario, batch, program)).transpose()?;
        Ok(Self { scenario, start, ledger, capacity_bytes, out_of_memory, served })
    }
    /// Whether the answer is yes: it starts, and what was asked for fits.
    pub(crate) fn is_yes(&self) -> bool {
        self.start.story.is_none() && self.out_of_memory.is_none()
    }
    /// What the figures take for granted.
    pub(crate) fn assumptions(&self) -> Vec<String> {
        let machine = &self.scenario.machine;
        let mut all: Vec<String> = Vec::new();
        for gpu in &machine.models {
            let rate = &gpu.memory_bytes_per_s;
            let (gb, known) = (rate.value as f64 / 1e9, rate.origin.name());
            let counted = gpu_rates(gpu).memory_bytes_per_s / 1e9;
            let how = gpu.memory_reached_bytes_per_s.as_ref().map_or("nobody measured what is reached", |reached| reached.origin.name());
            all.push(format!(
                "{}: {gb:.0} GB/s of memory ({known}), of which steps reach {counted:.0} ({how}; sources: moetwin machine show {})",
                gpu.name, machine.name
            ));
        }
        all.extend(machine.assumptions.iter().cloned());
        all.extend(self.scenario.padding_text());
        all.extend(self.kernels_text());
        all.extend(self.scenario.options.assumed_call(&machine.launch));
        all.extend(self.ledger.assumptions.iter().cloned());
        if let Some(plan) = &self.scenario.speculation {
            all.extend(plan.draft.assumptions.iter().cloned());
            all.push(format!("acceptance of drafted tokens: {}", plan.acceptance_source));
            all.push("what an engine's host does between drafting and verifying (choosing, bookkeeping) is not counted".to_owned());
        }
        all
    }
    /// Whose kernel times were used, and of which version.
    fn kernels_text(&self) -> Vec<String> {
        let s = &self.scenario;
        let mut out = s.kernel_folder.as_ref().map_or_else(Vec::new, KernelFolder::in_words);
        if let (Some(own), Kernels::Any) = (&s.machine.kernels, s.options.kernels) {
            out.push(format!("our own kernels as measured on this machine: {} ({} rows); the rest:", own.source, own.rows.len()));
        }
        for gpu in &s.machine.models {
            let Some(tables) = KernelTables::with_imported(&gpu.name, s.options.kernels, s.options.tables.as_ref()) else {
                out.push(format!("{}: no kernel was measured, times follow from rates and floors", gpu.name));
                continue;
            };
            let names: Vec<String> = tables.sources().map(|t| format!("{} on {}", t.implementation, t.slug)).collect();
            let asked =
                s.engine_version.as_ref().map_or_else(String::new, |v| format!("; {} {v} is taken to run the same", s.engine.name()));
            out.push(format!("{}: kernel times of {}, in this order of preference{asked}", gpu.name, names.join(", ")));
        }
        out
    }
    /// What a reader must know before trusting the figures.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut all = self.scenario.model.spec.warnings.clone();
        all.extend(self.served.as_ref().and_then(|served| slow_choice(&self.scenario, served)));
        all
    }
    /// The rank that holds most once everything is allocated.
    pub(crate) fn fullest(&self) -> Option<&RankLedger> {
        fullest(&self.ledger)
    }
}

/// By how much another protocol has to be faster to be worth a sentence.
const WORTH_SAYING: f64 = 0.9;

/// NCCL takes what its cost model expects to be fastest. Where the all-reduces that take most of a step are not carried out by what is, the step of a
/// larger batch, for which NCCL changes its mind, may even be shorter.
fn slow_choice(scenario: &Scenario, served: &Served) -> Option<String> {
    let exchanges = served.trace.exchanges.iter().map(|(_, e)| e);
    let reduces = exchanges.filter(|e| {
        let command = served.trace.spans[e.spans[e.last]].command;
        let reduce =
            command.is_some_and(|c| matches!(served.program.graph.nodes[c.node].op, Op::AllReduce { .. } | Op::AllReduceAddRmsNorm { .. }));
        reduce && (e.how.starts_with("ring") || e.how.starts_with("tree"))
    });
    let largest = reduces.max_by_key(|e| e.message_bytes)?;
    let ranks = largest.spans.iter().map(|span| served.trace.spans[*span].rank.0 as usize).collect();
    let machine = match scenario.options.peer_access {
        Some(on) => scenario.machine.clone().with_peer_access(on),
        None => scenario.machine.clone(),
    };
    let mut collectives = Collectives::without_explanations(&machine);
    let chosen = CollectiveRequest {
        ranks,
        nccl_graph: scenario.options.backends.nccl_graph,
        ..CollectiveRequest::new(CollectiveOp::AllReduce, 1, largest.message_bytes)
    };
    let own = collectives.predict(&chosen).ok()?;
    let other = |protocol| {
        let request = CollectiveRequest { algorithm: Some(own.algorithm), protocol: Some(protocol), ..chosen.clone() };
        Some((protocol, collectives.predict(&request).ok()?.transfer))
    };
    let (protocol, transfer) = [Protocol::Ll, Protocol::Simple].into_iter().filter_map(other).min_by_key(|(_, transfer)| *transfer)?;
    if transfer.as_us() >= own.transfer.as_us() * WORTH_SAYING {
        return None;
    }
    Some(format!(
        "NCCL's cost model picks {} {} for all-reduces of {} ({:.0} us predicted), of which {protocol} would take {:.0}: a larger batch, for which it picks \
         otherwise, may take less time; NCCL_PROTO={} changes the choice (moetwin collective --explain {})",
        own.algorithm,
        own.protocol,
        bytes(largest.message_bytes),
        own.transfer.as_us(),
        transfer.as_us(),
        if protocol == Protocol::Ll { "LL" } else { "Simple" },
        largest.message_bytes
    ))
}

/// What is known of a scenario before a step is simulated. None of it depends on the collective library or on captured graphs being faster.
pub(crate) struct Prepared {
    /// The program of the batch that was asked for.
    pub(crate) program: Program,
    /// Whether it starts.
    pub(crate) start: Start,
    channels: u32,
    /// Memory of the batch that was asked for.
    pub(crate) ledger: Ledger,
    capacity_bytes: u64,
    /// Where memory runs out.
    pub(crate) out_of_memory: Option<OutOfMemory>,
}

impl Prepared {
    /// Memory of the smallest GPU in use.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }
    /// Lowers, searches the start-up and counts memory.
    pub(crate) fn of(scenario: &Scenario) -> Result<Self, Failure> {
        let program = scenario.program(&scenario.step)?;
        let start = start(scenario, &program)?;
        let ranks = program.ranks.len();
        let capacity_bytes = (0..ranks).filter_map(|r| scenario.machine.gpu(r)).map(|g| g.memory_bytes.value).min().unwrap_or(0);
        let channels = channels(scenario, ranks)?;
        let ledger = ledger_of(scenario, &program, channels)?;
        let out_of_memory = ledger.check(capacity_bytes).err();
        Ok(Self { program, start, channels, ledger, capacity_bytes, out_of_memory })
    }
}

/// Time of a step in milliseconds and tokens a second, of a program that fits.
pub(crate) fn pace(scenario: &Scenario, program: &Program, memory: &mut SimMemory) -> Result<(f64, f64), Failure> {
    let (_, breakdown, speculated) = timed(scenario, scenario.step.sequences.len(), program, memory)?;
    Ok(match (&speculated, &scenario.speculation) {
        (Some(s), Some(plan)) => (s.step_ms(plan), s.tokens_per_s(plan)),
        _ => (breakdown.step_ms, breakdown.tokens_per_s),
    })
}

/// The rank of a ledger that holds most once everything is allocated.
pub(crate) fn fullest(ledger: &Ledger) -> Option<&RankLedger> {
    let most = ledger.ranks.iter().map(RankLedger::peak_bytes).max()?;
    ledger.ranks.iter().find(|r| r.peak_bytes() == most)
}

fn start(scenario: &Scenario, program: &Program) -> Result<Start, Failure> {
    let batch = u32::try_from(scenario.step.sequences.len()).unwrap_or(u32::MAX);
    let inputs = NativeInputs::from_program(program, scenario.buckets(batch), scenario.options.graphs);
    let defect = |e: String| Failure::Running(format!("the native start-up is faulty, a defect of moetwin: {e}"));
    let plan = CheckedPlan::new(InitPlan::native(&inputs)).map_err(|e| defect(e.to_string()))?;
    let verdict = explore(&plan, DEFAULT_MAX_STATES).map_err(|e| Failure::Running(format!("the start-up could not be searched: {e}")))?;
    Ok(Start { states: verdict.states, story: verdict.story.map(|s| s.in_words(&plan)) })
}

/// NCCL channels of a communicator over the first `ranks` GPUs.
fn channels(scenario: &Scenario, ranks: usize) -> Result<u32, Failure> {
    if ranks < 2 {
        return Ok(0);
    }
    let network = Network::new(&scenario.machine);
    let gpus: Vec<usize> = (0..ranks).collect();
    let graph = nccl_graph(&network, &gpus, scenario.options.backends.nccl_graph);
    Ok(graph.map_err(|e| Failure::from(InputError::new("--machine", e.to_string())))?.communicator_channels())
}

fn ledger_of(scenario: &Scenario, program: &Program, channels: u32) -> Result<Ledger, Failure> {
    let batch = u32::try_from(program.graph.step.sequences.len()).unwrap_or(u32::MAX);
    let captured_buckets = u32::try_from(scenario.buckets(batch).len()).unwrap_or(u32::MAX);
    let options = LedgerOptions { captured_buckets, channels, spare_kv_bytes: 0 };
    let all = ledger(program, &scenario.model.spec, &options).map_err(|e| Failure::from(InputError::new("--a2a", e.to_string())))?;
    let Some(drafting) = &scenario.speculation else { return Ok(all) };
    let draft = drafting.extend_program(scenario, program.graph.step.sequences.len())?;
    Ok(with_draft(all, draft_lines(&draft, &drafting.draft.shared, &options)))
}

/// The target's ledger with what the draft adds on its ranks. A draft runs on the last stage of each replica.
fn with_draft(mut all: Ledger, added: Vec<(RankId, Vec<Line>)>) -> Ledger {
    let first = all.ranks.len().saturating_sub(added.len());
    for (own, (_, lines)) in all.ranks.iter_mut().skip(first).zip(added) {
        own.lines.extend(lines);
        own.lines.sort_by_key(|l| l.phase);
    }
    all
}

/// The largest batch below the one asked for that fits, found by halving: memory grows with the batch.
fn largest_fitting(scenario: &Scenario, channels: u32, capacity_bytes: u64) -> Result<Option<(usize, Program)>, Failure> {
    let fits = |batch: usize| -> Result<Option<Program>, Failure> {
        let program = scenario.program(&shortened(&scenario.step, batch))?;
        let fits = ledger_of(scenario, &program, channels)?.check(capacity_bytes).is_ok();
        Ok(fits.then_some(program))
    };
    let Some(program) = fits(1)? else { return Ok(None) };
    let (mut best, mut too_many) = ((1, program), scenario.step.sequences.len());
    while too_many - best.0 > 1 {
        let middle = best.0 + (too_many - best.0) / 2;
        match fits(middle)? {
            Some(program) => best = (middle, program),
            None => too_many = middle,
        }
    }
    Ok(Some(best))
}

fn shortened(step: &Step, batch: usize) -> Step {
    let sequences: Vec<Sequence> = step.sequences.iter().take(batch).copied().collect();
    Step { sequences, ..step.clone() }
}

fn serve(scenario: &Scenario, batch: usize, program: Program) -> Result<Served, Failure> {
    let (trace, breakdown, speculated) = timed(scenario, batch, &program, &mut SimMemory::default())?;
    Ok(Served { batch, program, trace, breakdown, speculated })
}

type Timed = (SimTrace, Breakdown, Option<Speculated>);

fn timed(scenario: &Scenario, batch: usize, program: &Program, memory: &mut SimMemory) -> Result<Timed, Failure> {
    let routing = SampledRouting::new(scenario.routing.clone(), scenario.seed);
    let trace = simulate_with(program, &scenario.machine, &routing, &scenario.options, memory);
    let trace = trace.map_err(|e| Failure::Running(e.to_string()))?;
    let breakdown = Breakdown::new(program, &trace);
    let verify = (program, breakdown.step_ms);
    let speculated = scenario.speculation.as_ref().map(|drafting| Speculated::of(scenario, drafting, batch, verify, memory)).transpose()?;
    Ok((trace, breakdown, speculated))
}

/// Groups of consecutive ranks with equal ledgers.
pub(crate) fn alike(ledger: &Ledger) -> Vec<Vec<RankId>> {
    let mut groups: Vec<(&RankLedger, Vec<RankId>)> = Vec::new();
    for rank in &ledger.ranks {
        match groups.iter_mut().find(|(first, _)| first.lines == rank.lines) {
            Some((_, ranks)) => ranks.push(rank.rank),
            None => groups.push((rank, vec![rank.rank])),
        }
    }
    groups.into_iter().map(|(_, ranks)| ranks).collect()
}
