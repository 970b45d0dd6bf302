//! What a search returns, and how a person reads it.

use moetwin_models::RankId;
use moetwin_runtime::GroupId;
use moetwin_runtime::init::{Breach, CheckedPlan, InitPhase, StepId};

/// The answer to whether a start-up can go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// States visited; each stands for all that the reductions fold into it.
    pub states: u64,
    /// The shortest story to a broken invariant, else to a hang; `None` if the plan can only succeed.
    pub story: Option<Story>,
    /// What would go wrong next if each earlier failure were mended: of each further cause its shortest story, shortest first.
    pub next: Vec<Story>,
}

impl Verdict {
    /// Everything that can go wrong, the shortest story first.
    pub fn stories(&self) -> impl Iterator<Item = &Story> {
        self.story.iter().chain(&self.next)
    }
}

/// How the ranks get to where it goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// Steps in the order in which they begin. For a broken invariant the last one breaks it.
    pub moves: Vec<(RankId, StepId)>,
    /// What goes wrong.
    pub end: End,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A step begins that must not.
    Breach(Breach),
    /// Ranks wait for ever.
    Hang(Hang),
}

/// Ranks that wait for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hang {
    /// Every step that waits for partners that never come, at least one.
    pub waiting: Vec<Waiting>,
}

/// A step that waits for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The rank.
    pub rank: RankId,
    /// Its step.
    pub step: StepId,
    /// The group it waits for.
    pub group: GroupId,
    /// Members that never come, each with the step it would come in, if it has one.
    pub absent: Vec<(RankId, Option<StepId>)>,
}

impl End {
    /// The broken invariant, or `None` for a hang.
    pub fn invariant(&self) -> Option<&'static str> {
        match self {
            End::Breach(breach) => Some(breach.invariant.name),
            End::Hang(_) => None,
        }
    }
    /// What happens on a machine.
    pub fn why(&self) -> &'static str {
        match self {
            End::Breach(breach) => breach.invariant.why,
            End::Hang(_) => {
                "a synchronising step ends only when every member of its group has begun it; without a deadline the ranks wait for ever"
            }
        }
    }
    /// The rank that it happens on; of a hang, the first that waits.
    pub fn rank(&self) -> RankId {
        match self {
            End::Breach(breach) => breach.rank,
            End::Hang(hang) => hang.waiting.first().map_or(RankId(0), |waiting| waiting.rank),
        }
    }
    /// The step that it happens in; of a hang, the first that waits.
    pub fn step(&self) -> Option<StepId> {
        match self {
            End::Breach(breach) => breach.step,
            End::Hang(hang) => hang.waiting.first().map(|waiting| waiting.step),
        }
    }
    /// The part of start-up in which it happens.
    pub fn phase(&self, plan: &CheckedPlan) -> InitPhase {
        self.step().map_or(InitPhase::Serve, |step| plan.step(self.rank(), step).phase)
    }
    /// What happens, in a sentence.
    pub fn in_words(&self, plan: &CheckedPlan) -> String {
        match self {
            End::Breach(breach) => breach.in_words(plan),
            End::Hang(hang) => hang.in_words(plan),
        }
    }
}

impl Hang {
    fn in_words(&self, plan: &CheckedPlan) -> String {
        let one = |waiting: &Waiting| {
            let absent: Vec<String> = waiting.absent.iter().map(|(rank, step)| self.absence(plan, *rank, *step)).collect();
            let (rank, name) = (waiting.rank.0, &plan.step(waiting.rank, waiting.step).name);
            format!("rank {rank} waits in `{name}` for {}: {}", plan.plan().group_name(waiting.group), absent.join(", "))
        };
        self.waiting.iter().map(one).collect::<Vec<_>>().join("; ")
    }
    fn absence(&self, plan: &CheckedPlan, rank: RankId, step: Option<StepId>) -> String {
        let at = self.waiting.iter().find(|waiting| waiting.rank == rank).map(|waiting| &plan.step(rank, waiting.step).name);
        match (step, at) {
            (None, _) => format!("rank {} has no such step", rank.0),
            (Some(_), Some(name)) => format!("rank {} is in `{name}`", rank.0),
            (Some(step), None) => format!("rank {} never begins `{}`", rank.0, plan.step(rank, step).name),
        }
    }
}

impl Story {
    /// The story for a person: what happens, why it matters, and how the ranks get there. Several lines.
    pub fn in_words(&self, plan: &CheckedPlan) -> String {
        let name = self.end.invariant().unwrap_or("hang");
        let mut out = format!("{}\n  {name}: {}\n  {} steps lead there:\n", self.end.in_words(plan), self.end.why(), self.moves.len());
        for (ranks, steps) in self.by_progress(plan) {
            out.push_str(&format!("    {}: {}\n", rank_list(&ranks), steps.join(", ")));
        }
        out
    }

    /// Ranks that did the same in this story, with the names of their steps.
    fn by_progress<'a>(&self, plan: &'a CheckedPlan) -> Vec<(Vec<RankId>, Vec<&'a str>)> {
        let mut out: Vec<(Vec<RankId>, Vec<&str>)> = Vec::new();
        for rank in plan.ranks() {
            let own = self.moves.iter().filter(|(mover, _)| *mover == rank);
            let steps: Vec<&str> = own.map(|(_, step)| plan.step(rank, *step).name.as_str()).collect();
            match out.iter_mut().find(|(_, same)| *same == steps) {
                Some((ranks, _)) => ranks.push(rank),
                None => out.push((vec![rank], steps)),
            }
        }
        out.retain(|(_, steps)| !steps.is_empty());
        out
    }
}

/// `rank 3`, `ranks 0-2, 5`.
fn rank_list(ranks: &[RankId]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank.0 => *last = rank.0,
            _ => runs.push((rank.0, rank.0)),
        }
    }
    let runs: Vec<String> = runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, runs.join(", "))
}
