//! A model in service: prefill a batch of prompts, then decode token by token through the KV cache.

use crate::executor::{Executor, ProgramKey};
use crate::lower::{LowerOptions, lower};
use crate::program::{Action, Program};
use crate::reference::{ExecuteError, NamedValue, StepInputs};
use crate::verify::{ProgramFault, verify};
use crate::weights::WeightSource;
use moetwin_kernels::reference::{Array, Real};
use moetwin_models::graph::SplitError;
use moetwin_models::{BuildOptions, Deployment, LogitsRows, ModelSpec, Phase, PlanError, Sequence, Step, plan};

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
    /// Prompts that cannot be served.
    #[error("prompts: {0}")]
    Prompts(String),
}

/// A batch of sequences being served.
pub struct Session<'a, E> {
    spec: &'a ModelSpec,
    options: SessionOptions,
    weights: &'a dyn WeightSource,
    executor: E,
    capacity: u32,
    lengths: Vec<u32>,
    decode: Option<ProgramKey>,
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

impl<'a, E: Executor> Session<'a, E> {
    /// A session on an executor whose KV pool holds `capacity` tokens a sequence.
    pub fn new(spec: &'a ModelSpec, weights: &'a dyn WeightSource, executor: E, options: SessionOptions, capacity: u32) -> Self {
        Self { spec, options, weights, executor, capacity, lengths: Vec::new(), decode: None, collectives: 0 }
    }

    /// Collectives and pipeline sends that the latest program's pass issues on the rank that issues most.
    pub fn collectives(&self) -> u64 {
        self.collectives
    }

    /// Computes the prompts on empty caches.
    pub fn prefill(&mut self, prompts: &[Vec<i32>]) -> Result<StepOutput<E::Number>, SessionError> {
        if let Some(i) = prompts.iter().position(Vec::is_empty) {
            return Err(SessionError::Prompts(format!("sequence {i} is empty; a prompt needs at least one token")));
        }
        let sequences: Vec<Sequence> = prompts.iter().map(|p| Sequence { past: 0, new: p.len() as u32 }).collect();
        let logits = if self.options.dump { LogitsRows::All } else { LogitsRows::Last };
        let program = self.program(Step { phase: Phase::Prefill, sequences: sequences.clone(), logits }, self.options.dump)?;
        let key = self.executor.add(program, self.weights)?;
        self.lengths = sequences.iter().map(|s| s.new).collect();
        let inputs = StepInputs { token_ids: prompts.concat(), sequences };
        Ok(StepOutput { values: self.executor.run(key, &inputs)? })
    }

    /// Computes one further token of every sequence.
    pub fn decode(&mut self, tokens: &[i32]) -> Result<StepOutput<E::Number>, SessionError> {
        let sequences: Vec<Sequence> = self.lengths.iter().map(|&past| Sequence { past, new: 1 }).collect();
        let key = match self.decode {
            Some(key) => key,
            None => {
                // One program for every length: only the number of new tokens shapes its buffers.
                let sequences = vec![Sequence { past: self.capacity.saturating_sub(1), new: 1 }; sequences.len()];
                let program = self.program(Step { phase: Phase::Decode, sequences, logits: LogitsRows::Last }, false)?;
                let key = self.executor.add(program, self.weights)?;
                self.decode = Some(key);
                key
            }
        };
        let inputs = StepInputs { token_ids: tokens.to_vec(), sequences };
        let values = self.executor.run(key, &inputs)?;
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
}

/// Commands of a step in which ranks talk, on the rank that issues most.
pub fn collectives(program: &Program) -> u64 {
    let of_rank = |commands: &[crate::program::Command]| commands.iter().filter(|c| !matches!(c.action, Action::Compute)).count() as u64;
    program.ranks.iter().map(|(_, rp)| of_rank(&rp.commands)).max().unwrap_or(0)
}
