//! Start-up of the engines as init plans, searched for steps that use what was never made.
//!
//! A table says what each step reads and writes and under which gate. The plan of all ranks goes to the explorer; what it finds first is
//! taken as mended and the search is repeated, so that failures stacked behind the first come out in their order.

mod conditions;
mod plan;
mod table;
mod words;

pub use conditions::conditions;
pub use plan::{MAX_RANKS, fact, plan};
pub use table::{Item, Row, Table, TableError, table};

use crate::finding::{Finding, Kind, Phase};
use crate::rules::Launch;
use moetwin_runtime::init::{Breach, CheckedPlan, Fact, Fault, InitPhase, InitPlan, InitStep, PlanError, Worker};
use moetwin_sim::explore::{DEFAULT_MAX_STATES, End, Story, explore};

/// What the search of a start-up says.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Faults in the order in which they show, each behind those before it.
    pub findings: Vec<Finding>,
    /// States visited in the first search.
    pub states: u64,
    /// Steps of all ranks.
    pub steps: usize,
    /// Ranks in the plan.
    pub ranks: u32,
}

/// Failures behind the first that are looked for.
const MOST_STACKED: usize = 8;

/// Searches the start-up of a launch.
///
/// # Errors
/// A table that makes no plan, which is a defect of the table.
pub fn search(launch: &Launch<'_>) -> Result<Search, PlanError> {
    let rows = table(launch.settings.engine).rows_of(&launch.settings.version);
    let ranks = launch.settings.world().clamp(1, MAX_RANKS);
    let mut out = Search { ranks, ..Search::default() };
    let mut mended: Vec<Fact> = Vec::new();
    loop {
        let plan = launch_plan(launch, &rows, ranks, &mended);
        let steps = plan.ranks.iter().map(|(_, steps)| steps.len()).sum();
        let checked = CheckedPlan::new(plan)?;
        let Ok(verdict) = explore(&checked, DEFAULT_MAX_STATES) else { return Ok(out) };
        if mended.is_empty() {
            out.states = verdict.states;
            out.steps = steps;
        }
        // What shows first in time: the story that ends in the earliest step of its rank.
        let first = verdict.stories().min_by_key(|story| moment(&checked, story));
        let Some(story) = first else { return Ok(out) };
        let (finding, mend) = tell(launch, &rows, &checked, story, verdict.states);
        out.findings.push(finding);
        match mend {
            Some(fact) if !mended.contains(&fact) && out.findings.len() < MOST_STACKED => mended.push(fact),
            _ => return Ok(out),
        }
    }
}

/// When a story ends: in which step of its rank, and with which of the things that the step reads.
fn moment(plan: &CheckedPlan, story: &Story) -> (usize, usize) {
    let Some(step) = story.end.step() else { return (usize::MAX, 0) };
    let missing = if let End::Breach(Breach { fault: Fault::Missing(fact), .. }) = &story.end { Some(fact) } else { None };
    let live = plan.live(story.end.rank(), step);
    let read = missing.zip(live).and_then(|(fact, live)| live.reads.iter().position(|r| r == fact));
    (step.0 as usize, read.unwrap_or(0))
}

/// The plan in which what `mended` names is there from the beginning, and is not made again while a graph is captured.
fn launch_plan(launch: &Launch<'_>, rows: &[Row], ranks: u32, mended: &[Fact]) -> InitPlan {
    let buckets = &launch.settings.graphs.buckets;
    let ends: Vec<u32> = match (buckets.first(), buckets.last()) {
        (Some(a), Some(b)) if a != b => vec![*a, *b],
        (Some(a), _) => vec![*a],
        _ => vec![1],
    };
    let mut plan = plan(rows, conditions(launch), ranks, &ends);
    if mended.is_empty() {
        return plan;
    }
    for name in mended.iter().filter_map(|fact| if let Fact::Named(name) = fact { Some(name) } else { None }) {
        if !plan.state.contains(name) {
            plan.state.push(name.clone());
        }
    }
    for rank in plan.ranks.ids().collect::<Vec<_>>() {
        let mut steps = vec![InitStep::new("as if the earlier failures were mended", InitPhase::Open).writes_all(mended.iter().cloned())];
        steps.append(&mut plan.ranks[rank]);
        for (i, step) in steps.iter_mut().enumerate() {
            step.id = moetwin_models::ids::Id::from_index(i);
            if i > 0 && step.phase == InitPhase::Capture {
                step.writes.retain(|item| !mended.contains(&item.fact));
            }
        }
        plan.ranks[rank] = steps;
    }
    plan
}

/// The finding of a story, and the item that would mend it.
fn tell(launch: &Launch<'_>, rows: &[Row], plan: &CheckedPlan, story: &Story, states: u64) -> (Finding, Option<Fact>) {
    let phase = phase_of(story.end.phase(plan));
    let step = story.end.step().map_or_else(String::new, |step| plan.step(story.end.rank(), step).name.clone());
    let reader = rows.iter().find(|row| matches(row, &step));
    let (mut finding, mend) = match &story.end {
        End::Hang(_) => {
            (Finding::fails(phase, Kind::Hang, "ranks_meet", story.end.in_words(plan)).outcome(crate::finding::Outcome::Hangs), None)
        }
        End::Breach(breach) => match &breach.fault {
            Fault::Missing(fact) => (words::missing(launch, rows, plan, breach, fact, &step, phase, states), Some(fact.clone())),
            Fault::Conflict { subject, because: Fact::CaptureOpen(_) } => {
                (words::in_capture(launch, breach, subject, &step, phase), Some(subject.clone()))
            }
            _ => (Finding::fails(phase, Kind::MissingInit, breach.invariant.name, breach.in_words(plan)), None),
        },
    };
    finding.rank = Some(story.end.rank().0);
    if finding.source.is_empty() {
        finding.source = reader.map_or_else(|| "start-up table".to_owned(), |row| row.source.clone());
    }
    (finding, mend)
}

/// Whether a step of the plan is this row's.
fn matches(row: &Row, step: &str) -> bool {
    match row.name.split_once("{bucket}") {
        None => row.name == step,
        Some((before, after)) => step.starts_with(before) && step.ends_with(after),
    }
}

fn phase_of(phase: InitPhase) -> Phase {
    match phase {
        InitPhase::Open | InitPhase::Connect => Phase::Init,
        InitPhase::Load => Phase::Load,
        InitPhase::Allocate => Phase::KvAlloc,
        InitPhase::WarmUp => Phase::Warmup,
        InitPhase::Capture => Phase::GraphCapture,
        InitPhase::Serve | InitPhase::Close => Phase::Serve,
    }
}

/// Whether an item of the tables is the fact.
fn is(item: &Item, worker: Worker, fact: &Fact) -> bool {
    plan::fact(&item.name, worker, None) == *fact
}
