//! Whether a start-up can go wrong: all interleavings of all ranks' steps, searched for a broken invariant or a hang.
//!
//! Steps choose nothing. What a step waits for (the steps before it on its thread, its `after`, the partners of earlier
//! synchronising steps) is fixed by the plan, so the reachable states are exactly the sets of started steps that contain, with a step, everything
//! it waits for. That order is computed once, as vector clocks. Two reductions follow, both exact:
//!
//! - *partial order*: an invariant looks at the acting rank and at most one other ([`Check`](moetwin_runtime::init::Check)
//!   enforces it by its signature). Of all states in which a step can begin and those two ranks have come equally far, one is the smallest, and
//!   the others only contain more of ranks that are not looked at. Only the smallest ones are visited; hence the story is a shortest one.
//! - *symmetry*: ranks with equal steps can be exchanged, so one rank stands for its like.
//!
//! A hang needs no search: as nothing chooses, whatever can start does start, and the state in which a fleet stands still is the same in every run.

mod causal;
mod search;
mod story;
mod view;

pub use search::{DEFAULT_MAX_STATES, ExploreError, explore};
pub use story::{End, Hang, Story, Verdict, Waiting};
