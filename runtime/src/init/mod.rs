//! Init order as dataflow: what every start-up step reads and writes, under which gate it exists, and what must hold between them.

mod check;
mod fact;
mod gate;
mod invariant;
mod json;
mod native;
mod plan;
mod state;
#[cfg(test)]
mod tests;
mod words;

pub use check::{CheckedPlan, LiveStep, MAX_RANKS, MAX_STEPS, MAX_THREADS, PlanError, PlanFault, RankSteps};
pub use fact::{Bucket, Fact, StepId, Worker};
pub use gate::{Conditions, Gate};
pub use invariant::{Breach, Check, Event, Fault, INVARIANTS, Invariant, RankView, broken};
pub use json::PLAN_SCHEMA;
pub use native::{NativeInputs, requirements};
pub use plan::{Guarded, InitPhase, InitPlan, InitStep};
pub use state::{FleetState, RankState};
