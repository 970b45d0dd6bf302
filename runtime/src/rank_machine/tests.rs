use super::*;
use crate::init::{InitPlan, NativeInputs};

const S: Duration = Duration::from_secs(1);

fn machine() -> RankMachine {
    let plan = Arc::new(CheckedPlan::new(InitPlan::native(&NativeInputs::uniform(2, false, false, false, vec![8], true))).unwrap());
    let limits = Limits { load: 60 * S, step: 10 * S, launch: 2 * S, wait: 100 * S, abort: 5 * S };
    RankMachine::new(plan, RankId(1), limits)
}

fn done(step: u32) -> Input {
    Input::Done { step: StepId(step), unwritten: Vec::new() }
}

/// Answers every action as a healthy machine would until the phase is reached.
fn reach(machine: &mut RankMachine, phase: InitPhase) {
    let mut actions = machine.handle(Duration::ZERO, Input::Advance(phase));
    while let Some(action) = actions.pop() {
        match action {
            Action::Arrive { step, .. } => actions.extend(machine.handle(Duration::ZERO, Input::Released(step))),
            Action::Perform(step) => actions.extend(machine.handle(Duration::ZERO, done(step.0))),
            Action::Reached(reached) => assert_eq!(reached, phase),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(machine.stage(), Stage::Idle(Some(phase)));
}

fn launch(sequence: u64, batch: u32) -> Launch {
    Launch { sequence, bucket: Bucket::target(batch), mode: LaunchMode::Replay }
}

#[test]
fn steps_go_one_by_one_and_wait_for_peers_where_they_synchronise() {
    let mut m = machine();
    assert_eq!(m.handle(Duration::ZERO, Input::Advance(InitPhase::Open)), [Action::Perform(StepId(0))]);
    assert_eq!(m.next_deadline(), Some(10 * S));
    assert_eq!(m.handle(3 * S, done(0)), [Action::Arrive { step: StepId(1), group: GroupId(0) }]);
    assert_eq!((m.waiting(), m.is_busy(), m.next_deadline()), (Some(StepId(1)), false, Some(103 * S)));
    assert_eq!(m.handle(50 * S, Input::Released(StepId(1))), [Action::Perform(StepId(1))]);
    assert_eq!(m.next_deadline(), Some(60 * S));
    assert_eq!(m.handle(59 * S, done(1)), [Action::Reached(InitPhase::Open)]);
    assert_eq!(m.next_deadline(), None);
}

#[test]
fn a_step_that_takes_too_long_aborts_and_is_abandoned_in_the_end() {
    let mut m = machine();
    m.handle(Duration::ZERO, Input::Advance(InitPhase::Open));
    assert_eq!(m.handle(9 * S, Input::Tick), []);
    let actions = m.handle(10 * S, Input::Tick);
    let Some(Action::Report(cause)) = actions.get(1) else { panic!("{actions:?}") };
    assert_eq!((&actions[0], actions.len()), (&Action::AbortGroups, 2));
    assert_eq!(cause.to_string(), "rank 1, phase open, `open context`: not done within 10s");
    assert_eq!(m.stage(), Stage::Aborting { until: 15 * S });
    assert_eq!(m.handle(14 * S, Input::Tick), []);
    assert_eq!(m.handle(15 * S, Input::Tick), [Action::Abandon, Action::Ended]);
    assert!(m.is_abandoned());
    // What comes late changes nothing any more.
    assert_eq!(m.handle(16 * S, done(0)), []);
    assert_eq!(m.handle(17 * S, Input::CleanUp), [Action::CleanedUp]);
}

#[test]
fn absent_peers_are_a_failure_of_their_own() {
    let mut m = machine();
    m.handle(Duration::ZERO, Input::Advance(InitPhase::Open));
    m.handle(S, done(0));
    let actions = m.handle(101 * S, Input::Tick);
    assert_eq!(actions.len(), 3, "nothing runs, so it has ended at once");
    assert_eq!(m.cause().unwrap().to_string(), "rank 1, phase open, `join process group`: its peers did not come within 100s");
}

#[test]
fn a_peers_failure_aborts_without_a_report_and_the_first_cause_stays() {
    let mut m = machine();
    reach(&mut m, InitPhase::Serve);
    m.handle(S, Input::Launch(launch(0, 8)));
    let cause = |rank| Cause { rank: RankId(rank), place: Place::Idle, problem: Problem::Lost("gone".into()) };
    assert_eq!(m.handle(2 * S, Input::PeerFailed(cause(0))), [Action::AbortGroups]);
    assert_eq!(m.handle(2 * S, Input::PeerFailed(cause(7))), []);
    // The pass still runs; it returns, and only then has the rank ended.
    let error = Problem::Driver(DriverError::new("aborted"));
    assert_eq!(m.handle(3 * S, Input::LaunchFailed { sequence: 0, problem: error }), [Action::Ended]);
    assert_eq!(m.cause(), Some(&cause(0)));
}

#[test]
fn the_clean_up_ends_what_there_is_and_goes_on_after_problems() {
    let mut m = machine();
    reach(&mut m, InitPhase::Serve);
    let gone = Cause { rank: RankId(0), place: Place::Idle, problem: Problem::Cancelled };
    assert_eq!(m.handle(S, Input::PeerFailed(gone)), [Action::AbortGroups, Action::Ended]);
    let name = |m: &RankMachine, actions: &[Action]| match actions {
        [Action::Perform(step)] => m.plan.step(m.rank, *step).name.clone(),
        other => panic!("{other:?}"),
    };
    let actions = m.handle(S, Input::CleanUp);
    assert_eq!(name(&m, &actions), "destroy graphs");
    let [Action::Perform(step)] = actions[..] else { unreachable!() };
    let problem = Problem::Driver(DriverError::new("stuck graph"));
    let actions = m.handle(S, Input::Failed { step, problem });
    assert_eq!(name(&m, &actions), "destroy communicator world");
    let [Action::Perform(step)] = actions[..] else { unreachable!() };
    let actions = m.handle(S, done(step.0));
    assert_eq!(name(&m, &actions), "close context");
    // This one does not return: the limit ends the clean-up.
    assert_eq!(m.handle(6 * S, Input::Tick), [Action::Abandon, Action::CleanedUp]);
    let problems: Vec<String> = m.clean_up_problems().iter().map(Cause::to_string).collect();
    assert_eq!(
        problems,
        ["rank 1, phase close, `destroy graphs`: stuck graph", "rank 1, phase close, `close context`: not done within 5s"]
    );
}

#[test]
fn passes_are_refused_unless_start_up_is_over_and_numbers_agree() {
    let refusal = |phase: Option<InitPhase>, launch: Launch| {
        let mut m = machine();
        if let Some(phase) = phase {
            reach(&mut m, phase);
        }
        assert!(!m.handle(S, Input::Launch(launch)).contains(&Action::Launch(launch)));
        m.cause().unwrap().problem.to_string()
    };
    assert_eq!(refusal(None, launch(0, 8)), "refused: start-up is not finished on every rank");
    assert_eq!(refusal(Some(InitPhase::WarmUp), launch(0, 8)), "refused: start-up is not finished on every rank");
    assert_eq!(refusal(Some(InitPhase::Serve), launch(0, 4)), "refused: batch 4 is not captured");
    assert_eq!(refusal(Some(InitPhase::Serve), launch(3, 8)), "refused: this rank's next pass is 0");
    assert_eq!(refusal(Some(InitPhase::Close), launch(0, 8)), "refused: it cannot launch from Idle(Some(Close))");

    let mut m = machine();
    reach(&mut m, InitPhase::Serve);
    for sequence in 0..3 {
        assert_eq!(m.handle(S, Input::Launch(launch(sequence, 8))), [Action::Launch(launch(sequence, 8))]);
        assert_eq!(m.handle(S, Input::Launched { sequence }), [Action::Finished(sequence)]);
    }
    m.handle(S, Input::Launch(launch(3, 8)));
    m.handle(3 * S, Input::Tick);
    assert_eq!(m.cause().unwrap().to_string(), "rank 1, phase serve, pass 3 of batch 8: not done within 2s");
}

#[test]
fn an_item_that_was_not_brought_about_is_missed_later() {
    let mut m = machine();
    let captured = Fact::Captured(Bucket::target(8));
    let mut actions = m.handle(Duration::ZERO, Input::Advance(InitPhase::Serve));
    while let Some(action) = actions.pop() {
        match action {
            Action::Arrive { step, .. } => actions.extend(m.handle(Duration::ZERO, Input::Released(step))),
            Action::Perform(step) => {
                actions.extend(m.handle(Duration::ZERO, Input::Done { step, unwritten: vec![captured.clone()] }));
            }
            _ => {}
        }
    }
    m.handle(S, Input::Launch(launch(0, 8)));
    assert_eq!(m.cause().unwrap().problem.to_string(), "refused: batch 8 is not captured");
}
