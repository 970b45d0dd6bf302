//! A model in service on the reference: prefill a batch of prompts, then decode token by token through the KV cache.

use crate::lower::{LowerOptions, lower};
use crate::program::{Action, Program};
use crate::reference::{ExecuteError, NamedValue, Order, ReferenceExecutor, StepInputs};
use crate::verify::{ProgramFault, verify};
use crate::weights::WeightSource;
use moetwin_kernels::reference::{Array, Real};
use moetwin_models::graph::SplitError;
use moetwin_models::{BuildOptions, Deployment, LogitsRows, ModelSpec, Phase, PlanError, RankId, Sequence, Step, plan};

/// How to serve.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How the model is spread.
    pub deployment: Deployment,
    /// Order of commands.
    pub order: Order,
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
    /// Prompts that cannot be served.
    #[error("prompts: {0}")]
    Prompts(String),
}

/// A batch of sequences being served.
pub struct Session<'a, T> {
    spec: &'a ModelSpec,
    options: SessionOptions,
    weights: &'a dyn WeightSource,
    executor: ReferenceExecutor<T>,
    capacity: usize,
    lengths: Vec<u32>,
    decode: Option<Program>,
    collectives: u64,
}

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

impl<'a, T: Real + From<f32>> Session<'a, T> {
    /// Checks the deployment; `max_new` tokens will be decoded after the prompts.
    pub fn new(spec: &'a ModelSpec, weights: &'a dyn WeightSource, options: SessionOptions, longest_prompt: u32, max_new: u32) -> Self {
        let capacity = longest_prompt as usize + max_new as usize;
        let executor = ReferenceExecutor::new(options.deployment.ranks(), capacity);
        Self { spec, options, weights, executor, capacity, lengths: Vec::new(), decode: None, collectives: 0 }
    }

    /// Collectives and pipeline sends that one decode pass (or, before any, the prefill) issues on the rank that issues most.
    pub fn collectives(&self) -> u64 {
        self.collectives
    }

    /// Computes the prompts on empty caches.
    pub fn prefill(&mut self, prompts: &[Vec<i32>]) -> Result<StepOutput<T>, SessionError> {
        if let Some(i) = prompts.iter().position(Vec::is_empty) {
            return Err(SessionError::Prompts(format!("sequence {i} is empty; a prompt needs at least one token")));
        }
        let sequences: Vec<Sequence> = prompts.iter().map(|p| Sequence { past: 0, new: p.len() as u32 }).collect();
        let logits = if self.options.dump { LogitsRows::All } else { LogitsRows::Last };
        let program = self.program(Step { phase: Phase::Prefill, sequences: sequences.clone(), logits }, self.options.dump)?;
        self.prepare(&program)?;
        self.lengths = sequences.iter().map(|s| s.new).collect();
        let inputs = StepInputs { token_ids: prompts.concat(), sequences };
        Ok(StepOutput { values: self.executor.run(&program, &inputs, self.options.order)? })
    }

    /// Computes one further token of every sequence.
    pub fn decode(&mut self, tokens: &[i32]) -> Result<StepOutput<T>, SessionError> {
        let sequences: Vec<Sequence> = self.lengths.iter().map(|&past| Sequence { past, new: 1 }).collect();
        if self.decode.is_none() {
            // One program for every length: only the number of new tokens shapes its buffers.
            let past = (self.capacity - 1) as u32;
            let step = Step { phase: Phase::Decode, sequences: vec![Sequence { past, new: 1 }; sequences.len()], logits: LogitsRows::Last };
            let program = self.program(step, false)?;
            self.prepare(&program)?;
            self.decode = Some(program);
        }
        let program = self.decode.as_ref().expect("just made");
        let inputs = StepInputs { token_ids: tokens.to_vec(), sequences };
        let values = self.executor.run(program, &inputs, self.options.order)?;
        self.lengths.iter_mut().for_each(|l| *l += 1);
        Ok(StepOutput { values })
    }

    fn program(&mut self, step: Step, dump: bool) -> Result<Program, SessionError> {
        let graph = plan(self.spec, &step, &self.options.deployment, &BuildOptions { dump })?;
        let program = lower(graph, self.options.lower)?;
        verify(&program).map_err(SessionError::Program)?;
        self.collectives = collectives(&program);
        Ok(program)
    }

    fn prepare(&mut self, program: &Program) -> Result<(), SessionError> {
        for rank in (0..self.options.deployment.ranks()).map(RankId) {
            self.executor.load_rank(program, rank, self.weights)?;
            self.executor.allocate_kv(program, rank);
        }
        Ok(())
    }
}

/// Commands of a step in which ranks talk, on the rank that issues most.
pub fn collectives(program: &Program) -> u64 {
    let of_rank = |commands: &[crate::program::Command]| commands.iter().filter(|c| !matches!(c.action, Action::Compute)).count() as u64;
    program.ranks.iter().map(|(_, rp)| of_rank(&rp.commands)).max().unwrap_or(0)
}
