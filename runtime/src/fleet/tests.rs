use super::*;
use crate::init::{Fact, InitPlan, InitStep, LiveStep, NativeInputs};
use crate::rank_machine::{DriverError, Launch, Place, Problem};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn plan(ranks: u32, draft: bool) -> Arc<CheckedPlan> {
    Arc::new(CheckedPlan::new(InitPlan::native(&NativeInputs::uniform(ranks, true, true, draft, vec![1, 8], true))).unwrap())
}

fn limits(plan: &CheckedPlan) -> Limits {
    Limits::for_plan(plan, 400 * MS, 200 * MS, 200 * MS, 100 * MS)
}

fn fleet(ranks: u32, script: Script) -> Fleet<Closed, Recording> {
    let plan = plan(ranks, true);
    let limits = limits(&plan);
    Fleet::new(plan, Recording::new(script), limits).unwrap()
}

/// A whole life: start, two passes, end.
fn live<C: Crew>(fleet: Fleet<Closed, C>) -> Result<Fleet<Closed, C>, Failure<C>> {
    let fleet = fleet.open()?.load()?.connect()?.capture()?;
    fleet.replay(Bucket::target(8))?.replay(Bucket::draft(1))?.close()
}

/// Every order that a whole life gives to a rank, in order.
fn orders(ranks: u32, rank: RankId) -> Vec<Order> {
    let lived = live(fleet(ranks, Script { slowest: MS, ..Script::default() })).unwrap();
    let begins = |(_, of, line): &(Duration, RankId, Log)| match line {
        Log::Begins(order) if *of == rank => Some(*order),
        _ => None,
    };
    lived.crew().log().iter().filter_map(begins).collect()
}

#[test]
fn eight_ranks_start_serve_and_end_in_plan_order() {
    let script = Script { seed: 7, slowest: 20 * MS, ..Script::default() };
    let lived = live(live(fleet(8, script)).unwrap()).unwrap();
    let plan = lived.plan().clone();
    for rank in plan.ranks() {
        let steps: Vec<StepId> = (0..2).flat_map(|_| plan.rank(rank).threads[0].clone()).collect();
        let performed: Vec<StepId> = lived
            .crew()
            .log()
            .iter()
            .filter_map(|(_, of, line)| match line {
                Log::Begins(Order::Perform(step)) if *of == rank => Some(*step),
                _ => None,
            })
            .collect();
        assert_eq!(performed, steps);
    }
}

#[test]
fn synchronising_steps_begin_when_all_have_arrived() {
    let lived = live(fleet(8, Script { seed: 3, slowest: 20 * MS, ..Script::default() })).unwrap();
    let plan = lived.plan().clone();
    let mut last_end_before: BTreeMap<StepId, Duration> = BTreeMap::new();
    let mut begins: BTreeMap<StepId, Vec<Duration>> = BTreeMap::new();
    for (at, rank, line) in lived.crew().log() {
        match line {
            Log::Ends(Order::Perform(step)) => {
                let next = StepId(step.0 + 1);
                let latest = last_end_before.entry(next).or_default();
                *latest = (*latest).max(*at);
            }
            Log::Begins(Order::Perform(step)) if plan.step(*rank, *step).sync.is_some() => begins.entry(*step).or_default().push(*at),
            _ => {}
        }
    }
    assert!(begins.len() >= 5);
    for (step, times) in begins {
        assert_eq!(times, vec![times[0]; 8], "{step}");
        assert!(times[0] >= last_end_before.get(&step).copied().unwrap_or_default());
    }
}

/// Faults that the fleet must survive, and how long after the fault the last rank may take to end.
fn injected() -> impl Strategy<Value = (u32, u64, u32, prop::sample::Index, Fault)> {
    let fault = prop_oneof![Just(Fault::Fails), Just(Fault::HangsUntilAbort), Just(Fault::NeverEnds), Just(Fault::Dies)];
    (1u32..=8, any::<u64>(), any::<u32>(), any::<prop::sample::Index>(), fault)
}

#[test]
fn any_failure_ends_every_rank_in_time_and_names_the_first_cause() {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(11);
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() });
    let outcome = runner.run(&injected(), |(ranks, seed, rank, which, fault)| {
        let rank = RankId(rank % ranks);
        let orders = orders(ranks, rank);
        let order = *which.get(&orders);
        let script = Script { seed, slowest: 30 * MS, faults: [((rank, order), fault)].into() };
        let failure = live(fleet(ranks, script)).map(|_| ()).expect_err("the fault is on the way");
        check_failure(&failure, rank, order, fault)?;
        check_log(&failure, ranks, fault)?;

        let cleaned = failure.fleet.close();
        // What never returned is abandoned and so is a rank whose thread died; nothing else is.
        let lost = matches!(fault, Fault::NeverEnds | Fault::Dies);
        prop_assert_eq!(&cleaned.abandoned, &if lost { vec![rank] } else { vec![] });
        prop_assert_eq!(&cleaned.problems, &vec![]);
        let mut again = cleaned.fleet;
        again.crew_mut().script_mut().faults.clear();
        prop_assert!(live(again).is_ok(), "a cleaned-up fleet starts again");
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}\nreplay: PROPTEST_RNG_SEED={seed}");
    }
}

fn check_failure(failure: &Failure<Recording>, rank: RankId, order: Order, fault: Fault) -> Result<(), TestCaseError> {
    let Cause { rank: named, place, problem } = &*failure.cause;
    prop_assert_eq!(*named, rank);
    let right_place = match (order, place) {
        (Order::Perform(step), Place::Step { step: at, name, .. }) => step == *at && name == &failure.fleet.plan().step(rank, step).name,
        (Order::Launch(launch), Place::Launch { sequence, bucket }) => (launch.sequence, launch.bucket) == (*sequence, *bucket),
        _ => false,
    };
    prop_assert!(right_place, "{failure}");
    let right_problem = match fault {
        Fault::Fails => matches!(problem, Problem::Driver(error) if error.message == "scripted failure"),
        Fault::HangsUntilAbort | Fault::NeverEnds => matches!(problem, Problem::Deadline { .. }),
        Fault::Dies => matches!(problem, Problem::Lost(_)),
    };
    prop_assert!(right_problem, "{failure}");
    Ok(())
}

/// Every rank is aborted once, ends within the limit after the first abort, and no pass begins before every rank has captured everything.
fn check_log(failure: &Failure<Recording>, ranks: u32, fault: Fault) -> Result<(), TestCaseError> {
    let (plan, log) = (failure.fleet.plan(), failure.fleet.crew().log());
    let aborts: Vec<Duration> = log.iter().filter(|(_, _, line)| *line == Log::Abort).map(|(at, ..)| *at).collect();
    prop_assert_eq!(aborts.len(), ranks as usize);
    let first = aborts[0];
    let late = log.iter().find(|(at, _, line)| *at > first + 100 * MS || (*at >= first && matches!(line, Log::Begins(_)) && *at > first));
    prop_assert!(late.is_none(), "after the abort at {first:?}: {late:?}");
    let abandons = log.iter().filter(|(_, _, line)| *line == Log::Abandon).count();
    prop_assert_eq!(abandons, usize::from(fault == Fault::NeverEnds));

    let captures = |rank: RankId| {
        let writes =
            move |step: StepId| plan.live(rank, step).is_some_and(|live| live.writes.iter().any(|f| matches!(f, Fact::Captured(_))));
        log.iter().filter(move |(_, of, line)| *of == rank && matches!(line, Log::Ends(Order::Perform(step)) if writes(*step)))
    };
    let launch = log.iter().position(|(_, _, line)| matches!(line, Log::Begins(Order::Launch(_))));
    if let Some(position) = launch {
        let at = log[position].0;
        for rank in plan.ranks() {
            prop_assert_eq!(captures(rank).filter(|(ended, ..)| *ended <= at).count(), 4);
        }
    }
    Ok(())
}

#[test]
fn a_slow_rank_is_named_and_not_the_ranks_that_wait_for_it() {
    let load = StepId(2);
    assert_eq!(plan(8, true).step(RankId(5), load).name, "load target weights");
    let faults = [((RankId(5), Order::Perform(load)), Fault::HangsUntilAbort)].into();
    let failure = live(fleet(8, Script { seed: 1, slowest: 10 * MS, faults })).map(|_| ()).unwrap_err();
    assert_eq!(failure.to_string(), "rank 5, phase load, `load target weights`: not done within 400ms");
}

#[test]
fn ranks_that_all_wait_are_told_apart_from_slow_ones_at_once() {
    let mut plan = InitPlan::native(&NativeInputs::uniform(2, false, false, false, vec![1], true));
    let at = plan.ranks[RankId(1)].iter().position(|step| step.name == "create communicator world").unwrap();
    plan.ranks[RankId(1)][at].sync = None;
    plan.ranks[RankId(1)][at].reads.clear();
    let plan = Arc::new(CheckedPlan::new(plan).unwrap());
    let limits = limits(&plan);
    let fleet = Fleet::new(plan, Recording::new(Script { slowest: MS, ..Script::default() }), limits).unwrap();
    let mut failure = fleet.open().unwrap().load().unwrap().connect().map(|_| ()).unwrap_err();
    // Rank 1 goes on to allocate and is done with the phase; rank 0 waits for it.
    assert_eq!(
        failure.to_string(),
        "rank 0, phase connect, `create communicator world`: every rank waits for another: rank 0 in `create communicator world` for world"
    );
    assert!(failure.fleet.crew_mut().now() < 20 * MS);
}

#[test]
fn the_fleet_refuses_a_step_that_would_break_an_invariant() {
    let mut plan = InitPlan::native(&NativeInputs::uniform(3, true, false, false, vec![4], true));
    for rank in plan.ranks.ids() {
        let set = plan.ranks[rank].iter_mut().find(|step| step.name == "set target expert metadata").unwrap();
        set.writes.clear();
    }
    let plan = Arc::new(CheckedPlan::new(plan).unwrap());
    let limits = limits(&plan);
    let fleet = Fleet::new(plan, Recording::new(Script { slowest: MS, ..Script::default() }), limits).unwrap();
    let failure = fleet.open().unwrap().load().unwrap().connect().unwrap().capture().map(|_| ()).unwrap_err();
    let Problem::Invariant { name, .. } = failure.cause.problem else { panic!("{failure}") };
    assert_eq!(name, "expert_metadata_before_dispatch");
    let ordered = failure.fleet.crew().log().iter().any(|(_, _, line)| *line == Log::Begins(Order::Perform(StepId(9))));
    assert_eq!(failure.fleet.plan().step(RankId(0), StepId(9)).name, "open capture of batch 4");
    assert!(!ordered, "nothing after the refused warm-up was ordered");
}

#[test]
fn a_bucket_that_is_not_captured_is_refused() {
    let captured =
        fleet(2, Script { slowest: MS, ..Script::default() }).open().unwrap().load().unwrap().connect().unwrap().capture().unwrap();
    let failure = captured.replay(Bucket::target(3)).map(|_| ()).unwrap_err();
    assert_eq!(failure.to_string(), "rank 0, phase serve, pass 0 of batch 3: refused: batch 3 is not captured");
}

#[test]
fn a_started_fleet_can_be_given_up_in_every_state() {
    let start = || fleet(3, Script { slowest: 5 * MS, ..Script::default() }).open().unwrap();
    let performed = |fleet: &Fleet<Closed, Recording>| {
        let name = |(_, rank, line): &(Duration, RankId, Log)| match line {
            Log::Begins(Order::Perform(step)) if *rank == RankId(1) => Some(fleet.plan().step(*rank, *step).name.clone()),
            _ => None,
        };
        fleet.crew().log().iter().filter_map(name).collect::<Vec<_>>()
    };
    let opened = start().close();
    assert_eq!(performed(&opened.fleet), ["open context", "join process group", "close context"]);
    let loaded = start().load().unwrap().close();
    assert_eq!(performed(&loaded.fleet).last().unwrap(), "close context");
    let connected = start().load().unwrap().connect().unwrap().close();
    let names = performed(&connected.fleet);
    assert_eq!(names[names.len() - 2..], ["destroy communicator world", "close context"]);
    assert!(opened.problems.is_empty() && loaded.abandoned.is_empty() && connected.problems.is_empty());
}

#[test]
fn phases_out_of_order_are_no_fleet() {
    let mut plan = InitPlan::native(&NativeInputs::uniform(1, false, false, false, vec![], false));
    plan.push(RankId(0), InitStep::new("load more", InitPhase::Load));
    let plan = Arc::new(CheckedPlan::new(plan).unwrap());
    let limits = limits(&plan);
    let error = Fleet::new(plan, Recording::new(Script::default()), limits).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("`load more`: phase load comes after phase close"), "{error}");
}

/// A driver that really runs on a thread of its own; it may hold what is not `Send`.
struct Counting {
    steps: std::rc::Rc<std::cell::Cell<u32>>,
    signal: AbortSignal,
    fail_at: Option<&'static str>,
    total: Arc<AtomicU32>,
}

impl RankDriver for Counting {
    fn perform(&mut self, step: &InitStep, _: &LiveStep) -> Result<Vec<Fact>, DriverError> {
        self.steps.set(self.steps.get() + 1);
        self.total.fetch_add(1, Ordering::Relaxed);
        if self.fail_at == Some("hang") && step.name == "warm up target" {
            while !self.signal.is_raised() {
                std::thread::sleep(MS);
            }
            return Err(DriverError::new("aborted"));
        }
        if self.fail_at == Some("panic") && step.name == "warm up target" {
            // A panic without the hook's message on the terminal.
            std::panic::resume_unwind(Box::new("the driver broke"));
        }
        Ok(Vec::new())
    }
    fn launch(&mut self, _: Launch) -> Result<(), DriverError> {
        self.total.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Real time: limits are generous, but for the fault that runs into one.
fn threads(ranks: u32, fail: Option<(RankId, &'static str)>) -> (Fleet<Closed, Threads>, Arc<AtomicU32>) {
    let plan = plan(ranks, false);
    let total = Arc::new(AtomicU32::new(0));
    let counted = total.clone();
    let make = move |rank, signal| match fail {
        Some((failing, "make")) if failing == rank => Err(DriverError::new("no device")),
        _ => Ok(Counting {
            steps: Default::default(),
            signal,
            fail_at: fail.filter(|(failing, _)| *failing == rank).map(|(_, how)| how),
            total: counted.clone(),
        }),
    };
    let crew = Threads::start(&plan, make).unwrap();
    let step = if fail.is_some_and(|(_, how)| how == "hang") { 2_000 * MS } else { 60_000 * MS };
    let limits = Limits { step, load: 60_000 * MS, launch: 60_000 * MS, wait: 600_000 * MS, abort: 60_000 * MS };
    (Fleet::new(plan, crew, limits).unwrap(), total)
}

#[test]
fn threads_carry_out_a_whole_life() {
    let (fleet, total) = threads(4, None);
    let steps = fleet.plan().rank(RankId(0)).threads[0].len() as u32;
    let fleet = fleet.open().unwrap().load().unwrap().connect().unwrap().capture().unwrap();
    let fleet = fleet.replay(Bucket::target(8)).unwrap().run_eagerly(Bucket::target(2)).unwrap();
    drop(fleet.close().unwrap());
    assert_eq!(total.load(Ordering::Relaxed), 4 * (steps + 2));
}

#[test]
fn threads_that_hang_panic_or_never_begin_are_named() {
    let expected = [
        ("hang", "rank 2, phase warm-up, `warm up target`: not done within 2s"),
        ("panic", "rank 2, phase warm-up, `warm up target`: the rank is gone: its driver panicked: the driver broke"),
        ("make", "rank 2, phase open, `open context`: no device"),
    ];
    for (how, message) in expected {
        let (fleet, _) = threads(4, Some((RankId(2), how)));
        let failure = fleet.open().and_then(|f| f.load()?.connect()?.capture()).map(|_| ()).unwrap_err();
        assert_eq!(failure.to_string(), message);
        let cleaned = failure.fleet.close();
        assert_eq!(cleaned.abandoned, if how == "panic" { vec![RankId(2)] } else { vec![] });
    }
}

#[test]
fn orders_that_must_not_compile_have_twins_one_line_apart() {
    // What rustdoc compiles, and refuses to compile, is checked here for being a pair; only then does a refusal say which line is wrong.
    let source = include_str!("wrong_orders.rs");
    let mut blocks: Vec<(bool, Vec<&str>)> = Vec::new();
    let mut inside = false;
    for line in source.lines().filter_map(|line| line.strip_prefix("///")).map(str::trim_start) {
        match line.strip_prefix("```") {
            Some(attributes) => {
                inside = !inside;
                if inside {
                    blocks.push((attributes.starts_with("compile_fail"), Vec::new()));
                }
            }
            None if inside => blocks.last_mut().unwrap().1.push(line),
            None => {}
        }
    }
    assert!(blocks.len() >= 20);
    for pair in blocks.chunks(2) {
        let [(true, wrong), (false, right)] = pair else { panic!("a refused order and its twin: {pair:?}") };
        assert_eq!(wrong.len(), right.len());
        assert_eq!(wrong.iter().zip(right).filter(|(a, b)| a != b).count(), 1, "{wrong:?}");
    }
}
