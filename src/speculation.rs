//! A scenario with drafted tokens: the draft beside the target, and what the whole step comes to.

use crate::args::{DeploymentArgs, Speculation};
use crate::error::{Failure, InputError};
use crate::scenario::{Scenario, plan_failure, verified, with_sums_fused};
use moetwin::kernels::routing::{Distribution, SampledRouting};
use moetwin::models::draft::{self, Draft};
use moetwin::models::{BuildOptions, Deployment, ModelSpec, Phase, Step, plan};
use moetwin::runtime::Program;
use moetwin::sim::breakdown::Breakdown;
use moetwin::sim::exec::{Launcher, SimMemory, SimOptions, simulate_with};
use moetwin::sim::speculation::{Acceptance, EAGLE3_RATE, MTP_RATE, StepTimes};

/// What is drafted, and how much of it is believed to be accepted.
#[derive(Clone)]
pub(crate) struct SpeculationPlan {
    /// `eagle3` or `mtp`.
    pub(crate) kind: &'static str,
    /// Drafted tokens a sequence.
    pub(crate) drafted: u32,
    /// The draft model.
    pub(crate) draft: Draft,
    /// Chances of the drafted tokens.
    pub(crate) acceptance: Acceptance,
    /// Where they come from.
    pub(crate) acceptance_source: String,
}

/// What a speculative step comes to. Milliseconds and tokens a second.
pub(crate) struct Speculated {
    /// Its parts as asked for.
    pub(crate) times: StepTimes,
    /// The verification replayed from a captured graph.
    pub(crate) captured_verify_ms: f64,
    /// The verification launched kernel by kernel from a Python framework, as engines do without a graph.
    pub(crate) eager_verify_ms: f64,
    /// A step without drafting.
    pub(crate) plain_step_ms: f64,
    /// The same replayed from a captured graph: what servers do that do not draft, and what drafting has to beat.
    pub(crate) plain_captured_ms: f64,
    /// Sequences in the step.
    pub(crate) batch: usize,
}

impl SpeculationPlan {
    /// What the flags say; `None` without drafting.
    pub(crate) fn new(args: &DeploymentArgs, target: &ModelSpec) -> Result<Option<Self>, Failure> {
        let (kind, drafted, rate) = match args.spec.unwrap_or(Speculation::None) {
            Speculation::Eagle3(n) => ("eagle3", n, EAGLE3_RATE),
            Speculation::Mtp(n) => ("mtp", n, MTP_RATE),
            Speculation::None => {
                return match &args.spec_accept {
                    None => Ok(None),
                    Some(_) => Err(InputError::new("--spec-accept", "has nothing to accept without --spec").into()),
                };
            }
        };
        if let Some(phase) = args.phase.filter(|p| *p != Phase::Decode) {
            let message = format!("drafting is part of decoding, and --phase asks for {}", phase_name(phase));
            return Err(InputError::new("--spec", message).value(format!("{kind}:{drafted}")).into());
        }
        let draft = match kind {
            "mtp" => draft::mtp(target).ok_or_else(|| {
                let message = format!("{} has no multi-token-prediction layer", target.name);
                let error = InputError::new("--spec", message).value(format!("mtp:{drafted}"));
                Failure::from(error.accepted(["none".to_owned(), format!("eagle3:{drafted}")]))
            })?,
            _ => draft::eagle3(target),
        };
        let (acceptance, acceptance_source) = match &args.spec_accept {
            Some(given) => {
                let acceptance = Acceptance::new(given, drafted).map_err(|e| {
                    let value = given.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                    Failure::from(InputError::new("--spec-accept", e).value(value))
                })?;
                (acceptance, "as given".to_owned())
            }
            None => {
                let source =
                    format!("such that {:.0} % of three drafted tokens are accepted, the middle of what was measured", rate * 100.0);
                (Acceptance::of_rate(rate, drafted), source)
            }
        };
        Ok(Some(Self { kind, drafted, draft, acceptance, acceptance_source }))
    }
    /// How the draft is split: like the target over one stage, its cache whole on every rank.
    fn deployment(&self, target: &Deployment) -> Deployment {
        Deployment { pp: 1, dcp: 1, placement: None, ..target.clone() }
    }
    /// The draft's program for a step.
    fn program(&self, scenario: &Scenario, step: &Step) -> Result<Program, Failure> {
        let deployment = self.deployment(&scenario.deployment);
        let graph = plan(&self.draft.spec, step, &deployment, &BuildOptions::default()).map_err(|e| plan_failure(&e, &deployment))?;
        verified(with_sums_fused(graph, scenario.fuses_sums())?)
    }
    /// The draft's largest pass: the tokens of a verification.
    pub(crate) fn extend_program(&self, scenario: &Scenario, batch: usize) -> Result<Program, Failure> {
        self.program(scenario, &step(scenario, Phase::Verify(self.drafted + 1), batch))
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
        Phase::Verify(_) => "verify",
    }
}

fn step(scenario: &Scenario, phase: Phase, batch: usize) -> Step {
    Step::uniform(phase, u32::try_from(batch).unwrap_or(u32::MAX), scenario.context)
}

impl Speculated {
    /// Predicts the parts; `verify` is the target's program and its time as asked for.
    pub(crate) fn of(
        scenario: &Scenario,
        drafting: &SpeculationPlan,
        batch: usize,
        verify: (&Program, f64),
        memory: &mut SimMemory,
    ) -> Result<Self, Failure> {
        let mut time = |program: &Program, options: &SimOptions, routing: Distribution| -> Result<f64, Failure> {
            let routing = SampledRouting::new(routing, scenario.seed);
            let trace =
                simulate_with(program, &scenario.machine, &routing, options, memory).map_err(|e| Failure::Running(e.to_string()))?;
            Ok(Breakdown::new(program, &trace).step_ms)
        };
        let options = &scenario.options;
        let (program, verify_ms) = verify;
        // Engines that verify without a graph launch from Python.
        let eager = SimOptions { graphs: false, launcher: Launcher::Framework, ..options.clone() };
        let eager_verify_ms = time(program, &eager, scenario.routing.clone())?;
        let captured = SimOptions { graphs: true, ..options.clone() };
        let captured_verify_ms = time(program, &captured, scenario.routing.clone())?;
        // A histogram speaks of the target's layers.
        let draft_routing = match &scenario.routing {
            Distribution::Histogram(_) => Distribution::Uniform,
            law => law.clone(),
        };
        let one = drafting.program(scenario, &step(scenario, Phase::Decode, batch))?;
        let times = StepTimes {
            verify_ms,
            draft_extend_ms: time(&drafting.extend_program(scenario, batch)?, options, draft_routing.clone())?,
            draft_decode_ms: time(&one, options, draft_routing)?,
        };
        let plain = scenario.program(&step(scenario, Phase::Decode, batch))?;
        let plain_step_ms = time(&plain, options, scenario.routing.clone())?;
        let plain_captured_ms = time(&plain, &captured, scenario.routing.clone())?;
        Ok(Self { times, captured_verify_ms, eager_verify_ms, plain_step_ms, plain_captured_ms, batch })
    }
    /// Time of the whole step.
    pub(crate) fn step_ms(&self, plan: &SpeculationPlan) -> f64 {
        self.times.step_ms(plan.drafted)
    }
    /// Tokens a second, summed over sequences.
    pub(crate) fn tokens_per_s(&self, plan: &SpeculationPlan) -> f64 {
        self.batch as f64 * plan.acceptance.tokens_per_step() / self.step_ms(plan) * 1e3
    }
    /// The same without drafting.
    pub(crate) fn plain_tokens_per_s(&self) -> f64 {
        self.batch as f64 / self.plain_step_ms * 1e3
    }
    /// Tokens a second without drafting, decoded from a captured graph.
    pub(crate) fn plain_captured_tokens_per_s(&self) -> f64 {
        self.batch as f64 / self.plain_captured_ms * 1e3
    }
    /// Whether drafting is faster.
    pub(crate) fn wins(&self, plan: &SpeculationPlan) -> bool {
        self.tokens_per_s(plan) > self.plain_tokens_per_s()
    }
    /// Time of the whole step with another time of the verification.
    pub(crate) fn step_ms_with(&self, plan: &SpeculationPlan, verify_ms: f64) -> f64 {
        StepTimes { verify_ms, ..self.times }.step_ms(plan.drafted)
    }
}
