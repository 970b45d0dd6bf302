//! One file a subcommand.

pub(crate) mod calibrate;
mod check;
pub(crate) mod collective;
pub(crate) mod compare;
pub(crate) mod compare_profile;
mod completions;
mod doctor;
mod graph;
mod machine;
mod model;
mod run;
mod sim;
mod slice;
mod sweep;

use crate::error::{Failure, Outcome};
use clap::Subcommand;

/// What moetwin can be asked.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Does it start, does it fit, how fast is a step, and what bounds it
    Sim(Box<sim::SimArgs>),
    /// Predict every deployment of a model on a machine, best first
    Sweep(Box<sweep::SweepArgs>),
    /// Will an SGLang or vLLM launch command start; if not, where, why, and which change mends it
    Check(Box<check::CheckArgs>),
    /// Print the dataflow graph that is simulated and executed
    Graph(Box<graph::GraphArgs>),
    /// Execute the program with real values
    Run(Box<run::RunArgs>),
    /// Put what was measured of a step beside what is predicted of it
    Compare(Box<compare::CompareArgs>),
    /// Measure a machine's figures on its GPUs, or fit them to logs of nccl-tests
    Calibrate(Box<calibrate::CalibrateArgs>),
    /// What a collective takes on a machine, size by size, and why
    Collective(Box<collective::CollectiveArgs>),
    /// Built-in models, and what any configuration says
    Model(model::ModelArgs),
    /// Built-in machines, and what a machine file says
    Machine(machine::MachineArgs),
    /// What the GPUs of this box can do, checked by value; writes a machine file
    Doctor(doctor::DoctorArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Carries the command out.
    pub(crate) fn run(self) -> Result<Outcome, Failure> {
        match self {
            Command::Sim(args) => sim::run(&args),
            Command::Sweep(args) => sweep::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Graph(args) => graph::run(&args),
            Command::Run(args) => run::run(&args),
            Command::Compare(args) => compare::run(&args),
            Command::Calibrate(args) => calibrate::run(&args),
            Command::Collective(args) => collective::run(&args),
            Command::Model(args) => model::run(&args),
            Command::Machine(args) => machine::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Completions(args) => completions::run(&args),
        }
    }
}
