//! A model in service: prefill a batch of prompts, then decode token by token through the KV cache.

use crate::crew::ExecutorCrew;
use crate::executor::{Executor, ProgramKey};
use crate::fleet::{Captured, Failure, Fleet};
use crate::init::{Bucket, CheckedPlan, InitPlan, NativeInputs};
use crate::lower::{LowerOptions, lower};
use crate::program::{Action, Program};
use crate::rank_machine::Limits;
use crate::reference::{ExecuteError, NamedValue, StepInputs};
use crate::verify::{ProgramFault, verify};
use crate::weights::WeightSource;
use moetwin_kernels::reference::{Array, Real};
use moetwin_models::graph::SplitError;
use moetwin_models::{BuildOptions, Deployment, LogitsRows, ModelSpec, Phase, PlanError, Sequence, Step, plan};
use std::sync::Arc;
use std::time::Duration;

/// How to serve.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How the model is spread.
    pub deployment: Deployment,
    /// Choices of lowering.
    pub lower: LowerOptions,
    /// Whether prefill reports every layer's hidden states, router choices and all logits.
    pub dump: bool,
}

/// Why a session fails.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The deployment does not fit the model.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A tensor that cannot be cut.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// A step that cannot run.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// Lowering broke its own rules: a defect of this program, not of its input.
    #[error("the lowered program is faulty: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Program(Vec<ProgramFault>),
    /// The ranks did not start, or stopped.
    #[error("{0}")]
    Start(String),
    /// Prompts that cannot be served.
    #[error("prompts: {0}")]
    Prompts(String),
}

/// A batch of sequences being served.
pub struct Session<'a, E: Executor> {
    spec: &'a ModelSpec,
    options: SessionOptions,
    weights: &'a dyn WeightSource,
    /// Until the first batch decides the decode program that start-up prepares.
    executor: Option<E>,
    fleet: Option<Fleet<Captured, ExecutorCrew<'a, E>>>,
    capacity: u32,
    lengths: Vec<u32>,
    collectives: u64,
    greedy: bool,
    /// What the latest pass ran.
    latest: Option<(ProgramKey, StepInputs)>,
}

/// What loading one rank's weights may take: a terabyte from a slow disk.
const LOAD_LIMIT: Duration = Duration::from_secs(3600);
/// What any other step of start-up, a pass, or the end after an abort may take; executors bound their own waits below it.
const STEP_LIMIT: Duration = Duration::from_secs(600);

/// The results of a step.
#[derive(Clone, Debug)]
pub struct StepOutput<T> {
    /// Named results.
    pub values: Vec<NamedValue<T>>,
}

impl<T: Real> StepOutput<T> {
    /// A named result.
    pub fn get(&self, name: &str) -> Option<&Array<T>> {
        self.values.iter().find(|v| v.name == name).map(|v| &v.value)
    }
    /// The last row of logits of each sequence, given how many rows each has.
    pub fn last_logits(&self, rows: &[u32]) -> Vec<Vec<T>> {
        let Some(logits) = self.get("logits") else { return Vec::new() };
        let (Some(data), Some(&width)) = (logits.as_real(), logits.sizes.get(1)) else { return Vec::new() };
        let mut end = 0;
        let mut last = Vec::with_capacity(rows.len());
        for &n in rows {
            end += n as usize;
            last.push(data[(end - 1) * width..end * width].to_vec());
        }
        last
    }
}

impl<'a, E: Executor> Session<'a, E> {
    /// A session on an executor whose KV pool holds `capacity` tokens a sequence.
    pub fn new(spec: &'a ModelSpec, weights: &'a dyn WeightSource, executor: E, options: SessionOptions, capacity: u32) -> Self {
        Self {
            spec,
            options,
            weights,
            executor: Some(executor),
            fleet: None,
            capacity,
            lengths: Vec::new(),
            collectives: 0,
            greedy: false,
            latest: None,
        }
    }

    /// Reports the likeliest next tokens only, not the logits they come from.
    pub fn greedy(mut self) -> Self {
        self.greedy = true;
        self
    }

    /// Collectives and pipeline sends that the latest program's pass issues on the rank that issues most.
    pub fn collectives(&self) -> u64 {
        self.collectives
    }

    /// The executor with the latest pass, for measurements beside what is served.
    pub fn latest(&mut self) -> Result<(&mut E, ProgramKey, StepInputs), SessionError> {
        let (key, inputs) = self.latest.clone().ok_or_else(not_started)?;
        Ok((self.crew()?.executor_mut(), key, inputs))
    }

    /// Computes the prompts on empty caches.
    pub fn prefill(&mut self, prompts: &[Vec<i32>]) -> Result<StepOutput<E::Number>, SessionError> {
        if let Some(i) = prompts.iter().position(Vec::is_empty) {
            return Err(SessionError::Prompts(format!("sequence {i} is empty; a prompt needs at least one token")));
        }
        let sequences: Vec<Sequence> = prompts.iter().map(|p| Sequence { past: 0, new: p.len() as u32 }).collect();
        let logits = if self.options.dump { LogitsRows::All } else { LogitsRows::Last };
        self.start(sequences.len())?;
        let program = self.program(Step { phase: Phase::Prefill, sequences: sequences.clone(), logits }, self.options.dump)?;
        let key = self.crew()?.prepare(program)?;
        self.lengths = sequences.iter().map(|s| s.new).collect();
        self.pass(key, StepInputs { token_ids: prompts.concat(), sequences })
    }

    /// Computes one further token of every sequence.
    pub fn decode(&mut self, tokens: &[i32]) -> Result<StepOutput<E::Number>, SessionError> {
        let sequences: Vec<Sequence> = self.lengths.iter().map(|&past| Sequence { past, new: 1 }).collect();
        let key = self.crew()?.started().ok_or_else(not_started)?;
        let output = self.pass(key, StepInputs { token_ids: tokens.to_vec(), sequences })?;
        self.lengths.iter_mut().for_each(|l| *l += 1);
        Ok(output)
    }

    /// Starts the ranks by the native plan: every step is checked against the invariants before it runs.
    fn start(&mut self, batch: usize) -> Result<(), SessionError> {
        let Some(executor) = self.executor.take() else { return Ok(()) };
        // One program for every length: only the number of new tokens shapes its buffers.
        let sequences = vec![Sequence { past: self.capacity.saturating_sub(1), new: 1 }; batch];
        let program = self.program(Step { phase: Phase::Decode, sequences, logits: LogitsRows::Last }, false)?;
        let inputs = NativeInputs::from_program(&program, vec![batch as u32], false);
        let plan = CheckedPlan::new(InitPlan::native(&inputs)).map_err(|e| SessionError::Start(e.to_string()))?;
        let plan = Arc::new(plan);
        let limits = Limits::for_plan(&plan, LOAD_LIMIT, STEP_LIMIT, STEP_LIMIT, STEP_LIMIT);
        let crew = ExecutorCrew::new(executor, self.weights, Arc::clone(&plan), program);
        let fleet = Fleet::new(plan, crew, limits).map_err(|e| SessionError::Start(e.to_string()))?;
        let started = fleet.open().and_then(Fleet::load).and_then(Fleet::connect).and_then(Fleet::capture);
        self.fleet = Some(started.map_err(failed)?);
        Ok(())
    }

    fn crew(&mut self) -> Result<&mut ExecutorCrew<'a, E>, SessionError> {
        self.fleet.as_mut().map(Fleet::crew_mut).ok_or_else(not_started)
    }

    /// One pass of all ranks.
    fn pass(&mut self, key: ProgramKey, inputs: StepInputs) -> Result<StepOutput<E::Number>, SessionError> {
        let bucket = Bucket::target(inputs.sequences.len() as u32);
        self.latest = Some((key, inputs.clone()));
        self.crew()?.stage(key, inputs);
        let fleet = self.fleet.take().ok_or_else(not_started)?;
        self.fleet = Some(fleet.run_eagerly(bucket).map_err(failed)?);
        Ok(StepOutput { values: self.crew()?.take_values() })
    }

    fn program(&mut self, step: Step, dump: bool) -> Result<Program, SessionError> {
        let mut graph = plan(self.spec, &step, &self.options.deployment, &BuildOptions { dump, ..BuildOptions::default() })?;
        if self.greedy && !dump {
            graph.outputs.retain(|(name, _)| name != "logits");
        }
        let program = lower(graph, self.options.lower)?;
        verify(&program).map_err(SessionError::Program)?;
        self.collectives = collectives(&program);
        Ok(program)
    }
}

fn not_started() -> SessionError {
    SessionError::Start("no batch has been prefilled, or the ranks have failed".into())
}

/// The executor's own error where there is one, else what the fleet saw first.
fn failed<E: Executor>(mut failure: Failure<ExecutorCrew<'_, E>>) -> SessionError {
    match failure.fleet.crew_mut().take_failure() {
        Some(e) => SessionError::Execute(e),
        None => SessionError::Start(failure.cause.to_string()),
    }
}

/// Commands of a step in which ranks talk, on the rank that issues most.
pub fn collectives(program: &Program) -> u64 {
    let of_rank = |commands: &[crate::program::Command]| commands.iter().filter(|c| !matches!(c.action, Action::Compute)).count() as u64;
    program.ranks.iter().map(|(_, rp)| of_rank(&rp.commands)).max().unwrap_or(0)
}
