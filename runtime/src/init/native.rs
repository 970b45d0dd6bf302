//! The start-up of this project's own executors, derived from what the program's commands require.

use super::fact::{Bucket, Fact, Worker};
use super::plan::{InitPhase, InitPlan, InitStep};
use crate::program::{Action, Command, Group, GroupId, Place, Program};
use moetwin_models::{IdVec, Op, RankId};
use std::collections::BTreeSet;

/// What the native start-up depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeInputs {
    /// Groups; [`GroupId`]s in the other fields refer to them.
    pub groups: IdVec<GroupId, Group>,
    /// What a forward pass of the target requires on each rank ([`requirements`] of its commands).
    pub target: IdVec<RankId, BTreeSet<Fact>>,
    /// What a forward pass of the draft requires on each rank, where there is a draft.
    pub draft: Option<IdVec<RankId, BTreeSet<Fact>>>,
    /// Batch sizes; each is captured for the target and, where there is one, the draft, large to small.
    pub buckets: Vec<u32>,
    /// Whether passes are captured.
    pub graphs: bool,
}

/// What one command requires to be true of its rank. `world` is the group of all ranks, over whose communicator pipeline stages send.
pub fn requirements(program: &Program, command: &Command, worker: Worker, world: GroupId) -> Vec<Fact> {
    let mut out = vec![Fact::Context, Fact::Arena];
    match command.action {
        Action::Collective { group, .. } => out.push(Fact::Communicator(group)),
        Action::Send { .. } | Action::Receive { .. } => out.push(Fact::Communicator(world)),
        Action::Compute => {}
    }
    match program.graph.nodes.get(command.id.node).map(|node| &node.op) {
        Some(Op::Dispatch | Op::Combine) => out.extend([Fact::ExpertMetadata(worker), Fact::AllToAllBuffers]),
        Some(Op::Experts { .. } | Op::PlaceExperts) => out.push(Fact::ExpertMetadata(worker)),
        _ => {}
    }
    let buffers = program.ranks.get(command.id.rank).map(|rank| &rank.buffers);
    for buffer in command.reads.iter().chain(&command.writes).filter_map(|id| buffers?.get(*id)) {
        match buffer.place {
            Place::Weight => out.push(Fact::Weights(worker)),
            Place::KvPool => out.push(Fact::KvPool(worker)),
            Place::Arena { .. } | Place::Input => {}
        }
    }
    out.sort();
    out.dedup();
    out
}

/// The group of all ranks, added if none of `groups` is it.
fn world_group(groups: &mut IdVec<GroupId, Group>, ranks: usize) -> GroupId {
    let is_world = |group: &Group| (0..ranks).all(|rank| group.ranks.contains(&RankId(rank as u32)));
    let found = groups.iter().find(|(_, group)| is_world(group)).map(|(id, _)| id);
    found.unwrap_or_else(|| groups.push(Group { name: "world".to_owned(), ranks: (0..ranks as u32).map(RankId).collect() }))
}

impl NativeInputs {
    /// Inputs for a lowered program, without a draft.
    pub fn from_program(program: &Program, buckets: Vec<u32>, graphs: bool) -> Self {
        let mut groups = program.groups.clone();
        let world = world_group(&mut groups, program.ranks.len());
        let target = program
            .ranks
            .iter()
            .map(|(_, rank)| rank.commands.iter().flat_map(|command| requirements(program, command, Worker::Target, world)).collect())
            .collect();
        Self { groups, target, draft: None, buckets, graphs }
    }

    /// Inputs for ranks that all do the same in one group: a plan without a program.
    pub fn uniform(ranks: u32, experts: bool, all_to_all: bool, draft: bool, buckets: Vec<u32>, graphs: bool) -> Self {
        let mut groups = IdVec::new();
        let world = world_group(&mut groups, ranks as usize);
        let forward = |worker: Worker| -> IdVec<RankId, BTreeSet<Fact>> {
            let mut facts = BTreeSet::from([Fact::Context, Fact::Arena, Fact::Weights(worker), Fact::KvPool(worker)]);
            if ranks > 1 {
                facts.insert(Fact::Communicator(world));
            }
            if experts {
                facts.insert(Fact::ExpertMetadata(worker));
            }
            if experts && all_to_all {
                facts.insert(Fact::AllToAllBuffers);
            }
            (0..ranks).map(|_| facts.clone()).collect()
        };
        Self { groups, target: forward(Worker::Target), draft: draft.then(|| forward(Worker::Draft)), buckets, graphs }
    }
}

impl InitPlan {
    /// The native start-up: open, load, connect, allocate, warm up, capture, serve, and the orderly end.
    pub fn native(inputs: &NativeInputs) -> Self {
        let mut groups = inputs.groups.clone();
        let world = world_group(&mut groups, inputs.target.len());
        let mut plan = InitPlan { groups, ..InitPlan::default() };
        let all = [Some(&inputs.target), inputs.draft.as_ref()].into_iter().flatten();
        let exchanges = all.flat_map(|ranks| ranks.as_slice()).any(|facts| facts.contains(&Fact::AllToAllBuffers));
        for rank in inputs.target.ids() {
            plan.ranks.push(Vec::new());
            let workers = [(Worker::Target, Some(&inputs.target)), (Worker::Draft, inputs.draft.as_ref())];
            let forwards = workers.into_iter().filter_map(|(worker, all)| Some((worker, all?.get(rank)?))).collect();
            NativeRank { plan: &mut plan, rank, forwards, world: (inputs.target.len() > 1).then_some(world), exchanges }.build(inputs);
        }
        plan
    }
}

struct NativeRank<'a> {
    plan: &'a mut InitPlan,
    rank: RankId,
    forwards: Vec<(Worker, &'a BTreeSet<Fact>)>,
    /// `None` where there is nobody to wait for.
    world: Option<GroupId>,
    /// Whether any rank needs all-to-all buffers.
    exchanges: bool,
}

impl NativeRank<'_> {
    fn build(mut self, inputs: &NativeInputs) {
        let groups = self.groups();
        self.open_and_load();
        self.connect(&groups);
        self.allocate();
        self.warm_up(&groups);
        let buckets = if inputs.graphs { self.capture(&inputs.buckets) } else { Vec::new() };
        self.push(InitStep::new("finish start-up", InitPhase::Capture).sync_if(self.world).writes(Fact::Ready));
        self.serve(&buckets);
        self.close(&groups, !buckets.is_empty());
    }

    fn push(&mut self, step: InitStep) {
        self.plan.push(self.rank, step);
    }
    /// Groups whose communicators a forward pass uses, in id order: the same order on every rank, so that creation cannot deadlock.
    fn groups(&self) -> Vec<GroupId> {
        let used = |facts: &BTreeSet<Fact>| {
            facts.iter().filter_map(|f| if let Fact::Communicator(group) = f { Some(*group) } else { None }).collect::<Vec<_>>()
        };
        self.forwards.iter().flat_map(|(_, facts)| used(facts)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn open_and_load(&mut self) {
        self.push(InitStep::new("open context", InitPhase::Open).writes(Fact::Context));
        self.push(InitStep::new("join process group", InitPhase::Open).reads(Fact::Context).sync_if(self.world).writes(Fact::ProcessGroup));
        for (worker, facts) in self.forwards.clone() {
            let load = InitStep::new(format!("load {worker} weights"), InitPhase::Load).worker(worker);
            self.push(load.reads(Fact::Context).writes(Fact::Weights(worker)));
            let metadata = Fact::ExpertMetadata(worker);
            if facts.contains(&metadata) {
                let set = InitStep::new(format!("set {worker} expert metadata"), InitPhase::Load).worker(worker);
                self.push(set.reads(Fact::ProcessGroup).writes(metadata));
            }
        }
    }

    fn connect(&mut self, groups: &[GroupId]) {
        for &group in groups {
            let name = format!("create communicator {}", self.plan.group_name(group));
            let create = InitStep::new(name, InitPhase::Connect).reads(Fact::Context).reads(Fact::ProcessGroup);
            self.push(create.sync(group).writes(Fact::Communicator(group)));
        }
    }

    /// KV pools come last: they are what the rest leaves.
    fn allocate(&mut self) {
        self.push(InitStep::new("reserve arena", InitPhase::Allocate).reads(Fact::Context).writes(Fact::Arena));
        // All ranks exchange addresses, those of pipeline stages without experts too: who stays away would keep the others waiting.
        if self.exchanges {
            let exchange = InitStep::new("exchange all-to-all buffers", InitPhase::Allocate).reads(Fact::Context).reads(Fact::ProcessGroup);
            self.push(exchange.sync_if(self.world).writes(Fact::AllToAllBuffers));
        }
        let workers: Vec<Worker> = self.forwards.iter().map(|(worker, _)| *worker).collect();
        for &worker in &workers {
            let pool = InitStep::new(format!("reserve {worker} KV pool"), InitPhase::Allocate).worker(worker).reads(Fact::Context);
            self.push(pool.reads_all(workers.iter().map(|w| Fact::Weights(*w))).writes(Fact::KvPool(worker)));
        }
    }

    fn warm_up(&mut self, groups: &[GroupId]) {
        for &group in groups {
            let warm = InitStep::new(format!("warm collectives of {}", self.plan.group_name(group)), InitPhase::WarmUp);
            self.push(warm.reads(Fact::Communicator(group)).sync(group).writes(Fact::CollectivesWarm(group)));
        }
        for (worker, facts) in self.forwards.clone() {
            let warm = InitStep::new(format!("warm up {worker}"), InitPhase::WarmUp).worker(worker);
            self.push(warm.reads_all(facts.iter().cloned()).sync_if(self.world).writes(Fact::WarmedUp(worker)));
        }
    }

    fn capture(&mut self, batches: &[u32]) -> Vec<Bucket> {
        let large_to_small: BTreeSet<u32> = batches.iter().copied().collect();
        let mut out = Vec::new();
        for (worker, facts) in self.forwards.clone() {
            for &batch in large_to_small.iter().rev() {
                let bucket = Bucket { worker, batch };
                let open = InitStep::new(format!("open capture of {bucket}"), InitPhase::Capture).worker(worker);
                self.push(open.reads(Fact::WarmedUp(worker)).writes(Fact::CaptureOpen(bucket)));
                let capture = InitStep::new(format!("capture {bucket}"), InitPhase::Capture).worker(worker);
                let capture = capture.reads(Fact::CaptureOpen(bucket)).reads_all(facts.iter().cloned());
                self.push(capture.writes(Fact::Captured(bucket)));
                out.push(bucket);
            }
        }
        out
    }

    fn serve(&mut self, buckets: &[Bucket]) {
        let serve = InitStep::new("first pass", InitPhase::Serve).reads(Fact::Ready);
        let serve = if buckets.is_empty() {
            let eager: BTreeSet<Fact> = self.forwards.iter().flat_map(|(_, facts)| facts.iter().cloned()).collect();
            serve.reads_all(eager)
        } else {
            serve.reads_all(buckets.iter().map(|bucket| Fact::Captured(*bucket)))
        };
        self.push(serve);
    }

    fn close(&mut self, groups: &[GroupId], graphs: bool) {
        self.push(InitStep::new("stop serving", InitPhase::Close).sync_if(self.world));
        if graphs {
            self.push(InitStep::new("destroy graphs", InitPhase::Close).reads(Fact::Context).writes(Fact::GraphsDestroyed));
        }
        for &group in groups {
            let name = format!("destroy communicator {}", self.plan.group_name(group));
            let destroy = InitStep::new(name, InitPhase::Close).reads(Fact::Communicator(group));
            self.push(destroy.sync(group).writes(Fact::CommunicatorDestroyed(group)));
        }
        let close = InitStep::new("close context", InitPhase::Close).reads(Fact::Context);
        self.push(close.reads_all(groups.iter().map(|g| Fact::CommunicatorDestroyed(*g))).writes(Fact::ContextClosed));
    }
}
