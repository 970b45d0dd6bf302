//! Who carries out programs: the CPU reference here, GPUs in their own crate. Both are handed the same programs and inputs.

use crate::program::Program;
use crate::reference::{ExecuteError, NamedValue};
use crate::weights::WeightSource;
use moetwin_kernels::reference::Real;
use moetwin_models::RankId;

/// A program that an executor has been handed, in the order of handing over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramKey(pub usize);

/// Carries out the steps of programs on all ranks.
pub trait Executor {
    /// The numbers that results are reported in.
    type Number: Real + From<f32>;

    /// Loads the weights that a program names on a rank and that are not loaded yet.
    fn load(&mut self, program: &Program, rank: RankId, weights: &dyn WeightSource) -> Result<(), ExecuteError>;

    /// Makes a program runnable on all ranks once its weights are loaded: communicators, caches, memory.
    fn prepare(&mut self, program: Program) -> Result<ProgramKey, ExecuteError>;

    /// The program of a key.
    fn program(&self, key: ProgramKey) -> &Program;

    /// Runs one step and returns the program's named results, whole.
    fn run(&mut self, key: ProgramKey, inputs: &crate::reference::StepInputs) -> Result<Vec<NamedValue<Self::Number>>, ExecuteError>;
}
