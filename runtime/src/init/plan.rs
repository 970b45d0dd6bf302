//! Start-up as data: per rank a list of steps that say what they read, what they write and whom they wait for.

use super::fact::{Fact, StepId, Worker};
use super::gate::{Conditions, Gate};
use crate::program::{Group, GroupId};
use moetwin_models::{IdVec, RankId};
use serde::{Deserialize, Serialize};

/// The start-up (and the end) of a fleet of ranks.
///
/// Steps of one host thread of a rank run in list order. Threads of a rank run side by side except where `after` says
/// otherwise. Ranks run side by side except where a step has a `sync`: it ends when every member of the group has
/// begun its own step with that sync. The n-th synchronising step of one member on a group belongs with the n-th of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InitPlan {
    /// What gates are evaluated against.
    pub conditions: Conditions,
    /// Groups by id. A plan made for a program lists the program's groups first, under the same ids.
    pub groups: IdVec<GroupId, Group>,
    /// Names of the [`Fact::Named`] items that steps may use.
    pub state: Vec<String>,
    /// Steps of each rank; a step's id is its position.
    pub ranks: IdVec<RankId, Vec<InitStep>>,
}

/// Part of start-up that a step belongs to. The order is the native plan's; engines may interleave phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitPhase {
    /// Device, rendezvous.
    #[default]
    Open,
    /// Weights and what belongs to them.
    Load,
    /// Communicators.
    Connect,
    /// KV pool, arena, all-to-all buffers.
    Allocate,
    /// First eager passes.
    WarmUp,
    /// Graph capture.
    Capture,
    /// First requests.
    Serve,
    /// Orderly end.
    Close,
}

impl InitPhase {
    /// Every phase, in order.
    pub const ALL: [InitPhase; 8] = [
        InitPhase::Open,
        InitPhase::Load,
        InitPhase::Connect,
        InitPhase::Allocate,
        InitPhase::WarmUp,
        InitPhase::Capture,
        InitPhase::Serve,
        InitPhase::Close,
    ];
    /// Name as in the `phase` of `check --json`.
    pub fn name(self) -> &'static str {
        match self {
            InitPhase::Open | InitPhase::Connect => "init",
            InitPhase::Load => "load",
            InitPhase::Allocate => "kv_alloc",
            InitPhase::WarmUp => "warmup",
            InitPhase::Capture => "graph_capture",
            InitPhase::Serve => "serve",
            InitPhase::Close => "close",
        }
    }
}

impl std::fmt::Display for InitPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            InitPhase::Open => "open",
            InitPhase::Load => "load",
            InitPhase::Connect => "connect",
            InitPhase::Allocate => "allocate",
            InitPhase::WarmUp => "warm-up",
            InitPhase::Capture => "capture",
            InitPhase::Serve => "serve",
            InitPhase::Close => "close",
        })
    }
}

/// One thing that one rank does while starting or ending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitStep {
    /// Position in the rank's list.
    pub id: StepId,
    /// What it does, in the imperative: `capture batch 8`.
    pub name: String,
    /// Part of start-up.
    #[serde(default)]
    pub phase: InitPhase,
    /// Whose step.
    #[serde(default)]
    pub worker: Worker,
    /// Host thread of the rank.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub thread: u32,
    /// Steps of the same rank that must have ended, beyond those before it on its thread. Steps that do not exist are not waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<StepId>,
    /// When the step exists.
    #[serde(default, skip_serializing_if = "Gate::is_always")]
    pub gate: Gate,
    /// What must be true when it begins. Reading a communicator is to run collectives on it; reading a captured graph is to replay it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<Guarded>,
    /// What is true once it has ended. A write whose gate is closed is a step that ran and left nothing behind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<Guarded>,
    /// The group whose members the step waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<GroupId>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl InitStep {
    /// A step of the served model on thread 0 that exists always; its id is set when it is added to a plan.
    pub fn new(name: impl Into<String>, phase: InitPhase) -> Self {
        Self {
            id: StepId(0),
            name: name.into(),
            phase,
            worker: Worker::Target,
            thread: 0,
            after: Vec::new(),
            gate: Gate::Always,
            reads: Vec::new(),
            writes: Vec::new(),
            sync: None,
        }
    }
    /// Adds something it reads.
    #[must_use]
    pub fn reads(mut self, item: impl Into<Guarded>) -> Self {
        self.reads.push(item.into());
        self
    }
    /// Adds all that it reads.
    #[must_use]
    pub fn reads_all<T: Into<Guarded>>(mut self, items: impl IntoIterator<Item = T>) -> Self {
        self.reads.extend(items.into_iter().map(Into::into));
        self
    }
    /// Adds something it writes.
    #[must_use]
    pub fn writes(mut self, item: impl Into<Guarded>) -> Self {
        self.writes.push(item.into());
        self
    }
    /// Adds all that it writes.
    #[must_use]
    pub fn writes_all<T: Into<Guarded>>(mut self, items: impl IntoIterator<Item = T>) -> Self {
        self.writes.extend(items.into_iter().map(Into::into));
        self
    }
    /// Makes it wait for a group.
    #[must_use]
    pub fn sync(mut self, group: GroupId) -> Self {
        self.sync = Some(group);
        self
    }
    /// Makes it wait for a group, if there is one.
    #[must_use]
    pub fn sync_if(mut self, group: Option<GroupId>) -> Self {
        self.sync = group;
        self
    }
    /// Gives it to a worker.
    #[must_use]
    pub fn worker(mut self, worker: Worker) -> Self {
        self.worker = worker;
        self
    }
    /// Sets when it exists.
    #[must_use]
    pub fn gate(mut self, gate: Gate) -> Self {
        self.gate = gate;
        self
    }
    /// Puts it on a host thread.
    #[must_use]
    pub fn thread(mut self, thread: u32) -> Self {
        self.thread = thread;
        self
    }
    /// Adds a step of the same rank that it waits for.
    #[must_use]
    pub fn after(mut self, step: StepId) -> Self {
        self.after.push(step);
        self
    }
}

/// An item that is read or written only where a gate is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// The item.
    pub fact: Fact,
    /// When it is read or written.
    pub gate: Gate,
}

impl From<Fact> for Guarded {
    fn from(fact: Fact) -> Self {
        Self { fact, gate: Gate::Always }
    }
}

impl Fact {
    /// This item, read or written only where `gate` is open.
    pub fn when(self, gate: Gate) -> Guarded {
        Guarded { fact: self, gate }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GuardedFields {
    fact: Fact,
    #[serde(default)]
    gate: Gate,
}

impl Serialize for Guarded {
    /// The item alone where the gate is open always, else `{"fact": .., "gate": ..}`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.gate {
            Gate::Always => self.fact.serialize(serializer),
            _ => GuardedFields { fact: self.fact.clone(), gate: self.gate.clone() }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Guarded {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let value = serde_json::Value::deserialize(deserializer)?;
        if value.get("fact").is_some() {
            let GuardedFields { fact, gate } = GuardedFields::deserialize(value).map_err(D::Error::custom)?;
            return Ok(Self { fact, gate });
        }
        Fact::deserialize(value).map(Self::from).map_err(D::Error::custom)
    }
}

impl InitPlan {
    /// Appends a step to a rank's list and returns its id. Ranks must have been added before.
    pub fn push(&mut self, rank: RankId, mut step: InitStep) -> StepId {
        let steps = &mut self.ranks[rank];
        step.id = moetwin_models::ids::Id::from_index(steps.len());
        steps.push(step);
        StepId(steps.len() as u32 - 1)
    }
    /// A step, if the rank has it.
    pub fn step(&self, rank: RankId, step: StepId) -> Option<&InitStep> {
        self.ranks.get(rank)?.get(step.0 as usize)
    }
    /// A group's name, or its id where the plan has no such group.
    pub fn group_name(&self, group: GroupId) -> String {
        self.groups.get(group).map_or_else(|| group.to_string(), |group| group.name.clone())
    }
    /// A fact in words, groups by name.
    pub fn fact_in_words(&self, fact: &Fact) -> String {
        match fact.group() {
            Some(group) => fact.to_string().replace(&group.to_string(), &self.group_name(group)),
            None => fact.to_string(),
        }
    }
}
