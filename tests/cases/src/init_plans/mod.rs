//! Init plans: random ones, deliberately broken ones, and the interpreter that tries every interleaving.

mod brute_force;
mod mutations;
mod origin;
mod random;

pub use brute_force::{BruteForce, brute_force};
pub use mutations::{MUTATIONS, Mutation, native_base};
pub use origin::origin_story;
pub use random::{plans, small_plan};

use moetwin_runtime::init::{Breach, Check, CheckedPlan, Event, Fact, Fault, FleetState};
use moetwin_sim::explore::{End, Story, Verdict, explore};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A cause of failure: the invariant's name (`hang` for a hang), and the missing item where one is missing.
pub type Cause = (&'static str, Option<Fact>);

/// The cause of an end.
pub fn cause(end: &End) -> Cause {
    match end {
        End::Breach(breach) => (breach.invariant.name, if let Fault::Missing(fact) = &breach.fault { Some(fact.clone()) } else { None }),
        End::Hang(_) => ("hang", None),
    }
}

/// Compares the explorer with the interpreter on a plan small enough for it, and returns what both say.
///
/// # Errors
/// The first difference, with the plan.
pub fn explorer_agrees(plan: CheckedPlan, max_states: usize) -> Result<Option<(Verdict, BruteForce)>, String> {
    let plan = Arc::new(plan);
    let Some(truth) = brute_force(&plan, max_states) else { return Ok(None) };
    let verdict = explore(&plan, u64::MAX).map_err(|error| error.to_string())?;
    let fail = |what: String| Err(format!("{what}\nexplorer: {verdict:#?}\ninterpreter: {truth:#?}\nplan: {}", plan.plan().to_json()));
    match (&verdict.story, truth.shortest()) {
        (None, None) => {}
        (Some(story), Some(length)) if story.moves.len() == length => {
            if let Err(problem) = replay(&plan, story) {
                return fail(format!("the story is not one of the plan's: {problem}"));
            }
        }
        (story, length) => return fail(format!("story lengths differ: {:?} and {length:?}", story.as_ref().map(|s| s.moves.len()))),
    }
    let causes: BTreeMap<Cause, usize> = verdict.stories().map(|story| (cause(&story.end), story.moves.len())).collect();
    if causes != truth.causes {
        return fail(format!("causes, or the lengths of their stories, differ: {causes:?} and {:?}", truth.causes));
    }
    Ok(Some((verdict, truth)))
}

/// Plays a story on the plain state: every step must be able to begin when its turn comes, none but the last may break anything, and the end must
/// be the one the story tells.
fn replay(plan: &Arc<CheckedPlan>, story: &Story) -> Result<(), String> {
    let mut state = FleetState::new(plan.clone());
    for (i, &(rank, step)) in story.moves.iter().enumerate() {
        if !state.can_start(rank, step) {
            return Err(format!("move {i}: {rank} cannot begin {step}"));
        }
        let breaches = state.breaches(rank, step);
        let last = i + 1 == story.moves.len();
        match &story.end {
            End::Breach(breach) if last && !happens(&state, breach) => return Err(format!("the last move breaks {breaches:?}")),
            End::Breach(_) if last => return Ok(()),
            _ if !breaches.is_empty() => return Err(format!("move {i} breaks {breaches:?} already")),
            _ => state.advance(rank, step),
        }
    }
    let startable = plan.ranks().any(|rank| plan.rank(rank).steps.iter().flatten().any(|live| state.can_start(rank, live.id)));
    if startable || state.is_complete() { Err("the fleet does not stand still in the end".to_owned()) } else { Ok(()) }
}

/// Whether a breach is one of the state; where it takes two ranks, with exactly the named one.
fn happens(state: &FleetState, breach: &Breach) -> bool {
    let Some(live) = breach.step.and_then(|step| state.plan().live(breach.rank, step)) else { return false };
    let (event, own) = (Event::of_step(breach.rank, live), state.rank(breach.rank));
    let fault = match (breach.invariant.check, breach.peer) {
        (Check::Own(check), None) => check(&event, own),
        (Check::Pair { check, .. }, Some(peer)) => check(&event, state.plan(), own, state.rank(peer)),
        _ => None,
    };
    fault.as_ref() == Some(&breach.fault)
}

/// Any bytes offered as a plan file: they are refused with a reason, or the plan comes back the same after writing, the explorer answers within its
/// bound, and on small plans its answer is the interpreter's.
pub fn check_init_plan(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let plan = match CheckedPlan::from_json(text) {
        Ok(plan) => plan,
        Err(error) => {
            error.faults.iter().for_each(|fault| crate::check_reason(&fault.problem));
            return crate::check_reason(&error.to_string());
        }
    };
    let again = CheckedPlan::from_json(&plan.plan().to_json()).expect("what was written can be read");
    assert_eq!(again, plan);
    let steps: usize = plan.plan().ranks.iter().map(|(_, steps)| steps.len()).sum();
    match explore(&plan, 2_000) {
        Err(error) => crate::check_reason(&error.to_string()),
        Ok(verdict) => verdict.stories().for_each(|story| crate::check_reason(&story.in_words(&plan))),
    }
    if steps <= 18
        && let Err(difference) = explorer_agrees(plan, 2_000)
    {
        panic!("{difference}");
    }
}
