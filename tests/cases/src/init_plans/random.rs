//! Random small plans: a script that all ranks share, with a few differences between ranks.

use moetwin_models::RankId;
use moetwin_models::ids::Id;
use moetwin_runtime::init::{Bucket, CheckedPlan, Fact, Gate, InitPhase, InitPlan, InitStep, StepId, Worker};
use moetwin_runtime::{Group, GroupId};
use proptest::collection::vec;
use proptest::prelude::*;

/// One line of the script, in small numbers that [`small_plan`] reads.
#[derive(Clone, Debug)]
pub struct Line {
    writes: Vec<u8>,
    /// An earlier line whose first write is read, or (when the flag is set) any item.
    reads: Vec<(u8, bool)>,
    sync: Option<u8>,
    thread: bool,
    after: Option<u8>,
    gate: u8,
}

/// A difference of one rank.
#[derive(Clone, Debug)]
pub enum Change {
    /// It lacks a line.
    Drop,
    /// It does two lines the other way round.
    Swap,
    /// The line leaves nothing behind.
    CloseWrites,
    /// It writes something else.
    Rewrite(u8),
    /// It does the line on another thread.
    OtherThread,
    /// It waits for nobody in the line.
    NoSync,
    /// It calls the line something else.
    Rename,
}

fn pool() -> Vec<Fact> {
    let (world, target) = (GroupId(0), Worker::Target);
    let mut facts = vec![Fact::Context, Fact::Weights(target), Fact::KvPool(target), Fact::AllToAllBuffers, Fact::WarmedUp(target)];
    facts.extend([Fact::ExpertMetadata(target), Fact::ExpertMetadata(Worker::Draft), Fact::Named("recorder".to_owned())]);
    facts.extend([Fact::Communicator(world), Fact::CollectivesWarm(world), Fact::CommunicatorDestroyed(world), Fact::GraphsDestroyed]);
    let buckets = [Bucket::target(8), Bucket::target(4), Bucket::draft(8)];
    facts.extend(buckets.iter().flat_map(|bucket| [Fact::CaptureOpen(*bucket), Fact::Captured(*bucket), Fact::Captured(*bucket)]));
    facts
}

/// The plan of a script for up to 3 ranks. Every result is well formed.
pub fn small_plan(ranks: u32, script: &[Line], changes: &[(u8, u8, Change)]) -> CheckedPlan {
    let group = |name: &str, ranks: Vec<u32>| Group { name: name.to_owned(), ranks: ranks.into_iter().map(RankId).collect() };
    let mut plan = InitPlan { state: vec!["recorder".to_owned()], ..InitPlan::default() };
    plan.conditions.flags = [("on".to_owned(), true), ("off".to_owned(), false)].into();
    plan.groups.push(group("world", (0..ranks).collect()));
    plan.groups.push(group("first two", (0..ranks.min(2)).collect()));
    plan.groups.push(group("last two", (ranks.saturating_sub(2)..ranks).collect()));
    for rank in (0..ranks).map(RankId) {
        let mut lines: Vec<(usize, Line, bool)> = script.iter().cloned().enumerate().map(|(i, line)| (i, line, false)).collect();
        for (_, at, change) in changes.iter().filter(|(changed, _, _)| u32::from(*changed) % ranks == rank.0) {
            alter(&mut lines, *at as usize, change);
        }
        plan.ranks.push(Vec::new());
        for (number, line, renamed) in lines {
            let step = step(&plan, rank, number, &line, renamed, script);
            plan.push(rank, step);
        }
    }
    CheckedPlan::new(plan).expect("scripts make well-formed plans")
}

fn alter(lines: &mut Vec<(usize, Line, bool)>, at: usize, change: &Change) {
    if lines.is_empty() {
        return;
    }
    let at = at % lines.len();
    match change {
        Change::Drop => drop(lines.remove(at)),
        Change::Swap => {
            let other = (at + 1) % lines.len();
            lines.swap(at, other);
        }
        Change::CloseWrites => lines[at].1.gate = 3,
        Change::Rewrite(fact) => lines[at].1.writes = vec![*fact],
        Change::OtherThread => lines[at].1.thread ^= true,
        Change::NoSync => lines[at].1.sync = None,
        Change::Rename => lines[at].2 = true,
    }
}

fn step(plan: &InitPlan, rank: RankId, number: usize, line: &Line, renamed: bool, script: &[Line]) -> InitStep {
    let pool = pool();
    let item = |index: u8| pool[index as usize % pool.len()].clone();
    let name = if renamed { format!("line {number}, otherwise") } else { format!("line {number}") };
    let mut step = InitStep::new(name, InitPhase::Open);
    let write_gate = if line.gate == 3 { Gate::flag("off") } else { Gate::Always };
    step = step.writes_all(line.writes.iter().map(|write| item(*write).when(write_gate.clone())));
    for &(read, any) in &line.reads {
        let earlier = script[..number.min(script.len())].get(read as usize % number.max(1)).and_then(|line| line.writes.first());
        step = match earlier {
            Some(write) if !any => step.reads(item(*write)),
            _ if any => step.reads(item(read)),
            _ => step,
        };
    }
    step.gate = match line.gate {
        0 => Gate::negate(Gate::flag("off")),
        1 => Gate::flag("off"),
        2 => Gate::flag("on"),
        _ => Gate::Always,
    };
    step.sync = line.sync.map(|sync| GroupId(u32::from(sync % 3))).filter(|group| plan.groups[*group].ranks.contains(&rank));
    // One thread captures and one synchronises with a given group; those are fixed here so that every script makes a plan.
    let captures = step.writes.iter().any(|item| item.fact.bucket().is_some());
    step.thread = match step.sync {
        Some(GroupId(2)) if !captures => 1,
        None if !captures => u32::from(line.thread),
        _ => 0,
    };
    if step.thread == 0 && step.sync == Some(GroupId(2)) {
        step.sync = None;
    }
    let own = plan.ranks[rank].len();
    step.after = line.after.filter(|_| own > 0).map(|after| StepId::from_index(after as usize % own)).into_iter().collect();
    step
}

fn line() -> impl Strategy<Value = Line> {
    let reads = vec((any::<u8>(), prop::bool::weighted(0.06)), 0..3);
    let sync = prop::option::weighted(0.3, 0u8..4);
    let writes = prop_oneof![1 => Just(Vec::new()), 8 => vec(any::<u8>(), 1), 2 => vec(any::<u8>(), 2)];
    let gate = prop_oneof![1 => 0u8..4, 6 => Just(4u8)];
    (writes, reads, sync, prop::bool::weighted(0.2), prop::option::weighted(0.25, any::<u8>()), gate)
        .prop_map(|(writes, reads, sync, thread, after, gate)| Line { writes, reads, sync, thread, after, gate })
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Drop),
        Just(Change::Swap),
        Just(Change::CloseWrites),
        any::<u8>().prop_map(Change::Rewrite),
        Just(Change::OtherThread),
        Just(Change::NoSync),
        Just(Change::Rename),
    ]
}

/// Plans of 1 to 3 ranks with up to 6 steps each: about half go wrong.
pub fn plans() -> impl Strategy<Value = CheckedPlan> {
    let changes = prop_oneof![2 => Just(Vec::new()), 3 => vec((any::<u8>(), any::<u8>(), change()), 1..3)];
    (1u32..=3, vec(line(), 1..=6), changes).prop_map(|(ranks, script, changes)| small_plan(ranks, &script, &changes))
}
