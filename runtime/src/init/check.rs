//! A plan that was found to be well formed, with its gates evaluated.

use super::fact::{Fact, StepId};
use super::plan::{Guarded, InitPlan, InitStep};
use crate::program::GroupId;
use moetwin_models::ids::Id;
use moetwin_models::{IdVec, RankId};
use std::collections::BTreeMap;

/// Ranks a plan may have.
pub const MAX_RANKS: usize = 4096;
/// Steps one rank may have.
pub const MAX_STEPS: usize = 4096;
/// Host threads one rank may have: thread numbers are below this.
pub const MAX_THREADS: u32 = 16;

/// Something wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFault {
    /// The rank, where it is a rank's.
    pub rank: Option<RankId>,
    /// The step's id and name, where it is a step's.
    pub step: Option<(StepId, String)>,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl std::fmt::Display for PlanFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, "rank {}", rank.0)?;
            if let Some((id, name)) = &self.step {
                write!(f, ", step {} `{name}`", id.0)?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.problem)
    }
}

/// All that is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("init plan: {}", faults.iter().map(PlanFault::to_string).collect::<Vec<_>>().join("\ninit plan: "))]
pub struct PlanError {
    /// Every fault found, at least one.
    pub faults: Vec<PlanFault>,
}

/// A step that exists, with the reads and writes that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveStep {
    /// Its id.
    pub id: StepId,
    /// Its place among the rank's [`RankSteps::threads`].
    pub thread: usize,
    /// Its place in the thread.
    pub position: usize,
    /// Existing steps of other threads that must have ended.
    pub after: Vec<StepId>,
    /// What must be true when it begins.
    pub reads: Vec<Fact>,
    /// What is true once it has ended.
    pub writes: Vec<Fact>,
    /// The group it waits for, and which of the rank's synchronising steps on that group it is.
    pub sync: Option<(GroupId, usize)>,
}

/// What one rank really does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSteps {
    /// By step id; `None` where the gate is closed.
    pub steps: Vec<Option<LiveStep>>,
    /// Existing steps of each host thread, in order.
    pub threads: Vec<Vec<StepId>>,
    /// Existing synchronising steps on each group, in order.
    pub syncs: BTreeMap<GroupId, Vec<StepId>>,
}

/// A well-formed plan. Everything that runs or searches a plan takes this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPlan {
    plan: InitPlan,
    ranks: IdVec<RankId, RankSteps>,
}

impl CheckedPlan {
    /// Checks a plan and evaluates its gates.
    ///
    /// # Errors
    /// Every fault: ids that are not positions, unknown groups, steps, flags, hooks or state names, a sync on a group the rank is
    /// not in, a circle of `after`, captures or one group's syncs on more than one thread of a rank, sizes over the limits of this module.
    pub fn new(plan: InitPlan) -> Result<Self, PlanError> {
        let mut faults = Faults { list: Vec::new() };
        faults.check(&plan);
        if !faults.list.is_empty() {
            return Err(PlanError { faults: faults.list });
        }
        let ranks = plan.ranks.iter().map(|(_, steps)| evaluate(&plan, steps)).collect();
        Ok(Self { plan, ranks })
    }
    /// The plan as it was given.
    pub fn plan(&self) -> &InitPlan {
        &self.plan
    }
    /// What a rank really does.
    pub fn rank(&self, rank: RankId) -> &RankSteps {
        &self.ranks[rank]
    }
    /// All ranks in order.
    pub fn ranks(&self) -> impl DoubleEndedIterator<Item = RankId> + use<> {
        self.ranks.ids()
    }
    /// A step that exists.
    pub fn live(&self, rank: RankId, step: StepId) -> Option<&LiveStep> {
        self.ranks.get(rank)?.steps.get(step.index())?.as_ref()
    }
    /// A step as it was given. The id must be one of the plan's.
    pub fn step(&self, rank: RankId, step: StepId) -> &InitStep {
        &self.plan.ranks[rank][step.index()]
    }
    /// Members of a group.
    pub fn members(&self, group: GroupId) -> &[RankId] {
        &self.plan.groups[group].ranks
    }
    /// The steps that members of a group run together with `step`, `step` included; a member that has no such step is `None`.
    pub fn partners(&self, group: GroupId, ordinal: usize) -> impl Iterator<Item = (RankId, Option<StepId>)> {
        let step_of = move |rank: RankId| self.ranks[rank].syncs.get(&group).and_then(|steps| steps.get(ordinal)).copied();
        self.members(group).iter().map(move |&rank| (rank, step_of(rank)))
    }
}

fn evaluate(plan: &InitPlan, steps: &[InitStep]) -> RankSteps {
    let mut numbers: Vec<u32> = steps.iter().map(|step| step.thread).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut out = RankSteps { threads: vec![Vec::new(); numbers.len()], ..RankSteps::default() };
    let exists: Vec<bool> = steps.iter().map(|step| step.gate.holds(&plan.conditions, step.worker)).collect();
    for step in steps {
        if !exists[step.id.index()] {
            out.steps.push(None);
            continue;
        }
        let open = |items: &[Guarded]| -> Vec<Fact> {
            items.iter().filter(|item| item.gate.holds(&plan.conditions, step.worker)).map(|item| item.fact.clone()).collect()
        };
        let thread = numbers.partition_point(|&number| number < step.thread);
        let sync = step.sync.map(|group| {
            let list = out.syncs.entry(group).or_default();
            list.push(step.id);
            (group, list.len() - 1)
        });
        out.steps.push(Some(LiveStep {
            id: step.id,
            thread,
            position: out.threads[thread].len(),
            after: step.after.iter().copied().filter(|after| exists[after.index()]).collect(),
            reads: open(&step.reads),
            writes: open(&step.writes),
            sync,
        }));
        out.threads[thread].push(step.id);
    }
    out
}

struct Faults {
    list: Vec<PlanFault>,
}

impl Faults {
    fn plan(&mut self, problem: String) {
        self.list.push(PlanFault { rank: None, step: None, problem });
    }
    fn step(&mut self, rank: RankId, step: &InitStep, problem: String) {
        self.list.push(PlanFault { rank: Some(rank), step: Some((step.id, step.name.clone())), problem });
    }

    fn check(&mut self, plan: &InitPlan) {
        if plan.ranks.is_empty() || plan.ranks.len() > MAX_RANKS {
            self.plan(format!("it has {} ranks; 1 to {MAX_RANKS} are accepted", plan.ranks.len()));
            return;
        }
        self.groups(plan);
        for (rank, steps) in plan.ranks.iter() {
            if steps.len() > MAX_STEPS {
                let problem = format!("it has {} steps; at most {MAX_STEPS} are accepted", steps.len());
                self.list.push(PlanFault { rank: Some(rank), step: None, problem });
                continue;
            }
            let before = self.list.len();
            for (position, step) in steps.iter().enumerate() {
                self.one_step(plan, rank, position, step);
            }
            if self.list.len() == before {
                self.threads(plan, rank, steps);
                self.circles(rank, steps);
            }
        }
    }

    fn groups(&mut self, plan: &InitPlan) {
        for (id, group) in plan.groups.iter() {
            let mut members = group.ranks.clone();
            members.sort_unstable();
            members.dedup();
            if members.len() != group.ranks.len() || members.is_empty() {
                self.plan(format!("group {} `{}` must list at least one rank, each once", id.0, group.name));
            }
            if let Some(stranger) = group.ranks.iter().find(|rank| rank.index() >= plan.ranks.len()) {
                self.plan(format!(
                    "group {} `{}` lists rank {}, but ranks are 0 to {}",
                    id.0,
                    group.name,
                    stranger.0,
                    plan.ranks.len() - 1
                ));
            }
        }
    }

    fn one_step(&mut self, plan: &InitPlan, rank: RankId, position: usize, step: &InitStep) {
        if step.id.index() != position {
            self.step(rank, step, format!("its id is {} but it is number {position} of the rank's list; ids count from 0", step.id.0));
        }
        if step.thread >= MAX_THREADS {
            self.step(rank, step, format!("thread {} is not below {MAX_THREADS}", step.thread));
        }
        for after in &step.after {
            if after.index() >= plan.ranks[rank].len() {
                self.step(rank, step, format!("it runs after step {}, which the rank does not have", after.0));
            }
        }
        let items = step.reads.iter().chain(&step.writes);
        for gate in std::iter::once(&step.gate).chain(items.clone().map(|item| &item.gate)) {
            if let Some(name) = gate.unknown_name(&plan.conditions) {
                self.step(rank, step, format!("its gate names {name}, which `conditions` does not list"));
            }
        }
        if let Some(group) = step.sync {
            self.group(plan, rank, step, group, "it waits for");
        }
        for item in items {
            if let Some(group) = item.fact.group() {
                self.group(plan, rank, step, group, "it speaks of");
            }
            if item.fact.bucket().is_some_and(|bucket| bucket.batch == 0) {
                self.step(rank, step, "a bucket of batch 0 does not exist; batches count from 1".to_owned());
            }
            if let Fact::Named(name) = &item.fact
                && !plan.state.contains(name)
            {
                self.step(rank, step, format!("`{name}` is not among the plan's `state` names"));
            }
        }
    }

    fn group(&mut self, plan: &InitPlan, rank: RankId, step: &InitStep, group: GroupId, verb: &str) {
        match plan.groups.get(group) {
            None => self.step(rank, step, format!("{verb} group {}, but there are {} groups", group.0, plan.groups.len())),
            Some(g) if !g.ranks.contains(&rank) => {
                self.step(rank, step, format!("{verb} group {} `{}`, in which the rank is not a member", group.0, g.name));
            }
            Some(_) => {}
        }
    }

    /// What only one host thread of a rank may do: capture, and synchronise with a given group. Otherwise the order would be a matter of luck.
    fn threads(&mut self, plan: &InitPlan, rank: RankId, steps: &[InitStep]) {
        let mut capturing: Option<&InitStep> = None;
        let mut syncing: BTreeMap<GroupId, &InitStep> = BTreeMap::new();
        for step in steps {
            if step.writes.iter().any(|item| item.fact.bucket().is_some()) {
                let first = *capturing.get_or_insert(step);
                if first.thread != step.thread {
                    self.step(
                        rank,
                        step,
                        format!(
                            "it captures on thread {}, step {} on thread {}; one thread captures",
                            step.thread, first.id.0, first.thread
                        ),
                    );
                }
            }
            if let Some(group) = step.sync {
                let first = *syncing.entry(group).or_insert(step);
                if first.thread != step.thread {
                    let name = plan.group_name(group);
                    let problem = format!(
                        "it waits for `{name}` on thread {}, step {} on thread {}; one thread does",
                        step.thread, first.id.0, first.thread
                    );
                    self.step(rank, step, problem);
                }
            }
        }
    }

    /// A step that, through thread order and `after`, waits for itself.
    fn circles(&mut self, rank: RankId, steps: &[InitStep]) {
        let mut last_of_thread: BTreeMap<u32, usize> = BTreeMap::new();
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
        let mut waiting = vec![0usize; steps.len()];
        for (i, step) in steps.iter().enumerate() {
            let before = last_of_thread.insert(step.thread, i);
            for from in step.after.iter().map(|after| after.index()).chain(before) {
                next[from].push(i);
                waiting[i] += 1;
            }
        }
        let mut ready: Vec<usize> = (0..steps.len()).filter(|&i| waiting[i] == 0).collect();
        while let Some(i) = ready.pop() {
            for &to in &next[i] {
                waiting[to] -= 1;
                if waiting[to] == 0 {
                    ready.push(to);
                }
            }
        }
        if let Some(step) = steps.iter().zip(&waiting).find(|(_, w)| **w > 0).map(|(step, _)| step) {
            let waits_for: Vec<String> = step.after.iter().map(|after| after.0.to_string()).collect();
            let problem = format!("it can never begin: thread order and `after` [{}] form a circle", waits_for.join(", "));
            self.step(rank, step, problem);
        }
    }
}
