//! What must hold at every step of a start-up, whoever runs it. One list: the explorer evaluates it in every reachable state, and the
//! real fleet before each step.

use super::check::{CheckedPlan, LiveStep};
use super::fact::{Bucket, Fact, StepId, Worker};
use crate::program::GroupId;
use moetwin_models::RankId;

/// State of one rank as invariants see it.
pub trait RankView {
    /// The rank.
    fn rank(&self) -> RankId;
    /// Whether an item is true of the rank.
    fn holds(&self, fact: &Fact) -> bool;
    /// Buckets whose capture the rank has begun, in order.
    fn captures(&self) -> &[Bucket];
    /// The rank's synchronising steps on a group that have begun, in order.
    fn syncs(&self, group: GroupId) -> &[StepId];
}

/// Something a rank is about to do.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Who.
    pub rank: RankId,
    /// The step, or `None` for a launch after start-up.
    pub step: Option<StepId>,
    /// What must be true.
    pub reads: &'a [Fact],
    /// What it brings about.
    pub writes: &'a [Fact],
    /// The group it waits for, and which of the rank's synchronising steps on that group it is.
    pub sync: Option<(GroupId, usize)>,
}

impl<'a> Event<'a> {
    /// A step of the plan.
    pub fn of_step(rank: RankId, live: &'a LiveStep) -> Self {
        Self { rank, step: Some(live.id), reads: &live.reads, writes: &live.writes, sync: live.sync }
    }
    /// A launch after start-up.
    pub fn launch(rank: RankId, reads: &'a [Fact]) -> Self {
        Self { rank, step: None, reads, writes: &[], sync: None }
    }
    /// Whether it begins, continues or ends a capture.
    fn captures(&self) -> Option<Bucket> {
        self.writes.iter().find_map(Fact::bucket)
    }
    /// Whether it ends a capture, that is, the captured commands are issued in it.
    fn records(&self) -> bool {
        self.writes.iter().any(|fact| matches!(fact, Fact::Captured(_)))
    }
    /// Groups whose communicators it uses.
    fn communicators(&self) -> impl Iterator<Item = GroupId> {
        self.reads.iter().filter_map(|fact| if let Fact::Communicator(group) = fact { Some(*group) } else { None })
    }
    /// Buckets whose graphs it launches.
    fn replays(&self) -> impl Iterator<Item = Bucket> {
        self.reads.iter().filter_map(|fact| if let Fact::Captured(bucket) = fact { Some(*bucket) } else { None })
    }
}

/// What breaks an invariant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// An item is read that is not true.
    Missing(Fact),
    /// An item ended what is being used, or is being brought about too early or too late.
    Conflict {
        /// The item that is used or brought about.
        subject: Fact,
        /// The item that forbids it.
        because: Fact,
    },
    /// A bucket is captured where the peer captured another, as its n-th.
    OtherBucket {
        /// Counted from 1.
        nth: usize,
        /// This rank's.
        own: Bucket,
        /// The peer's.
        theirs: Bucket,
    },
    /// The peer waits for the group in another step.
    OtherStep {
        /// The group.
        group: GroupId,
        /// The peer's step.
        theirs: StepId,
    },
}

/// How an invariant is evaluated. The signature is the promise that the explorer's reduction rests on: a check looks at
/// the rank that acts and at no other, or at that rank and one other at a time.
#[derive(Clone, Copy)]
pub enum Check {
    /// On the acting rank.
    Own(fn(&Event<'_>, &dyn RankView) -> Option<Fault>),
    /// On the acting rank and each other rank.
    Pair {
        /// Whether the event can break it at all.
        concerns: fn(&Event<'_>) -> bool,
        /// The acting rank comes first. The plan gives names of steps.
        check: fn(&Event<'_>, &CheckedPlan, &dyn RankView, &dyn RankView) -> Option<Fault>,
    },
}

/// A rule of start-up.
#[derive(Clone, Copy)]
pub struct Invariant {
    /// Its name in verdicts and errors.
    pub name: &'static str,
    /// What goes wrong on a machine where it is broken.
    pub why: &'static str,
    /// How it is evaluated.
    pub check: Check,
}

impl std::fmt::Debug for Invariant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// An invariant that would be broken, and by what.
#[derive(Clone, Debug)]
pub struct Breach {
    /// The invariant.
    pub invariant: &'static Invariant,
    /// The acting rank.
    pub rank: RankId,
    /// The step it is about to begin; `None` for a launch after start-up.
    pub step: Option<StepId>,
    /// The other rank, where it takes two.
    pub peer: Option<RankId>,
    /// What breaks it.
    pub fault: Fault,
}

impl PartialEq for Breach {
    fn eq(&self, other: &Self) -> bool {
        let key = |b: &Self| (b.invariant.name, b.rank, b.step, b.peer, b.fault.clone());
        key(self) == key(other)
    }
}
impl Eq for Breach {}

/// The invariants that `event` breaks, in the order of [`INVARIANTS`]; of each the first fault.
pub fn broken<'a>(event: &Event<'_>, plan: &CheckedPlan, own: &dyn RankView, peers: impl Iterator<Item = &'a dyn RankView>) -> Vec<Breach> {
    let peers: Vec<&dyn RankView> = peers.collect();
    let mut out = Vec::new();
    for invariant in INVARIANTS {
        let found = match invariant.check {
            Check::Own(check) => check(event, own).map(|fault| (None, fault)),
            Check::Pair { concerns, check } if concerns(event) => {
                peers.iter().find_map(|peer| check(event, plan, own, *peer).map(|fault| (Some(peer.rank()), fault)))
            }
            Check::Pair { .. } => None,
        };
        if let Some((peer, fault)) = found {
            out.push(Breach { invariant, rank: event.rank, step: event.step, peer, fault });
        }
    }
    out
}

/// The invariant that watches over the reads of an item.
fn watcher(fact: &Fact, event: &Event<'_>) -> &'static str {
    match fact {
        Fact::Context | Fact::ProcessGroup | Fact::Arena | Fact::Ready | Fact::CaptureOpen(_) | Fact::Named(_) => "state_before_use",
        Fact::Weights(_) if event.writes.iter().any(|fact| matches!(fact, Fact::KvPool(_))) => "weights_before_kv_pool",
        Fact::Weights(_) => "weights_before_warmup",
        Fact::Communicator(_) => "communicator_before_collective",
        Fact::ExpertMetadata(Worker::Target) => "expert_metadata_before_dispatch",
        Fact::ExpertMetadata(Worker::Draft) => "draft_worker_has_own_metadata",
        Fact::AllToAllBuffers => "a2a_buffers_before_capture",
        Fact::KvPool(_) => "kv_pool_before_capture",
        Fact::CollectivesWarm(_) => "collectives_warm_before_capture",
        Fact::WarmedUp(_) => "warmup_before_capture",
        Fact::Captured(_) => "own_graph_before_replay",
        Fact::GraphsDestroyed => "graphs_destroyed_before_communicators",
        Fact::CommunicatorDestroyed(_) | Fact::ContextClosed => "communicators_destroyed_before_context",
    }
}

/// The first item that the event reads, that the invariant watches over, and that the rank lacks.
fn missing(event: &Event<'_>, own: &dyn RankView, invariant: &str) -> Option<Fault> {
    event.reads.iter().find(|fact| watcher(fact, event) == invariant && !own.holds(fact)).map(|fact| Fault::Missing(fact.clone()))
}

fn lost_graph(view: &dyn RankView, bucket: Bucket) -> Option<Fault> {
    let graph = Fact::Captured(bucket);
    if !view.holds(&graph) {
        return Some(Fault::Missing(graph));
    }
    view.holds(&Fact::GraphsDestroyed).then_some(Fault::Conflict { subject: graph, because: Fact::GraphsDestroyed })
}

/// Every invariant. A step's read is watched by exactly one of them.
pub static INVARIANTS: &[Invariant] = &[
    Invariant {
        name: "state_before_use",
        why: "a call on a context, process group, arena or engine object that does not exist fails, and in C++ it may crash instead",
        check: Check::Own(|event, own| missing(event, own, "state_before_use")),
    },
    Invariant {
        name: "weights_before_warmup",
        why: "a forward pass over weights that are not loaded computes with whatever the memory held; autotuning and capture then record it",
        check: Check::Own(|event, own| missing(event, own, "weights_before_warmup")),
    },
    Invariant {
        name: "weights_before_kv_pool",
        why: "the pool takes a share of the memory that the weights leave; sized before them it leaves them no room",
        check: Check::Own(|event, own| missing(event, own, "weights_before_kv_pool")),
    },
    Invariant {
        name: "communicator_before_collective",
        why: "a collective needs the communicator that all members of its group created together, and that none has destroyed",
        check: Check::Own(|event, own| {
            let ended = |group: &GroupId| own.holds(&Fact::CommunicatorDestroyed(*group));
            let late = event
                .communicators()
                .find(ended)
                .map(|group| Fault::Conflict { subject: Fact::Communicator(group), because: Fact::CommunicatorDestroyed(group) });
            missing(event, own, "communicator_before_collective").or(late)
        }),
    },
    Invariant {
        name: "expert_metadata_before_dispatch",
        why: "dispatch looks up which rank holds an expert; a forward pass, captured or not, fails at its first MoE layer without it",
        check: Check::Own(|event, own| missing(event, own, "expert_metadata_before_dispatch")),
    },
    Invariant {
        name: "draft_worker_has_own_metadata",
        why: "the draft model has other layers and experts than the target; the target's metadata does not describe them",
        check: Check::Own(|event, own| missing(event, own, "draft_worker_has_own_metadata")),
    },
    Invariant {
        name: "a2a_buffers_before_capture",
        why: "all-to-all kernels write into peers' buffers, whose addresses a captured graph keeps",
        check: Check::Own(|event, own| missing(event, own, "a2a_buffers_before_capture")),
    },
    Invariant {
        name: "kv_pool_before_capture",
        why: "a captured graph keeps the addresses of the KV pool",
        check: Check::Own(|event, own| missing(event, own, "kv_pool_before_capture")),
    },
    Invariant {
        name: "collectives_warm_before_capture",
        why: "a communicator connects its channels and allocates their buffers in its first collective, which capture forbids",
        check: Check::Own(|event, own| {
            let cold = |group: &GroupId| event.records() && !own.holds(&Fact::CollectivesWarm(*group));
            let captured_cold = event.communicators().find(cold).map(|group| Fault::Missing(Fact::CollectivesWarm(group)));
            missing(event, own, "collectives_warm_before_capture").or(captured_cold)
        }),
    },
    Invariant {
        name: "warmup_before_capture",
        why: "the first pass loads kernels and allocates workspaces, which capture forbids",
        check: Check::Own(|event, own| missing(event, own, "warmup_before_capture")),
    },
    Invariant {
        name: "no_allocation_in_capture",
        why: "an allocation while a stream is captured ends the capture with an error, or becomes part of the graph",
        check: Check::Own(|event, own| {
            let taken = event.writes.iter().find(|fact| fact.allocates())?;
            let open = || own.captures().iter().copied().find(|bucket| !own.holds(&Fact::Captured(*bucket)));
            let bucket = event.captures().or_else(open)?;
            Some(Fault::Conflict { subject: taken.clone(), because: Fact::CaptureOpen(bucket) })
        }),
    },
    Invariant {
        name: "same_buckets_same_order",
        why: "captured collectives pair up by order; ranks that capture different batch sizes wait for each other or mix their data",
        check: Check::Pair {
            concerns: |event| event.captures().is_some(),
            check: |event, _, own, peer| {
                let bucket = event.captures().filter(|bucket| !own.captures().contains(bucket))?;
                let before = own.captures().len();
                let theirs = *peer.captures().get(before)?;
                (theirs != bucket).then_some(Fault::OtherBucket { nth: before + 1, own: bucket, theirs })
            },
        },
    },
    Invariant {
        name: "same_collectives_same_order",
        why: "ranks that wait for one group in different steps wait for ever or exchange data of different meaning",
        check: Check::Pair {
            concerns: |event| event.sync.is_some(),
            check: |event, plan, _, peer| {
                let (group, ordinal) = event.sync?;
                let theirs = *peer.syncs(group).get(ordinal)?;
                let own_name = &plan.step(event.rank, event.step?).name;
                (*own_name != plan.step(peer.rank(), theirs).name).then_some(Fault::OtherStep { group, theirs })
            },
        },
    },
    Invariant {
        name: "own_graph_before_replay",
        why: "there is nothing to launch before the bucket is captured, and nothing any more once the graphs are destroyed",
        check: Check::Own(|event, own| event.replays().find_map(|bucket| lost_graph(own, bucket))),
    },
    Invariant {
        name: "every_graph_before_replay",
        why: "a replayed collective waits for the same graph on every rank; one that still captures, or has ended, never answers",
        check: Check::Pair {
            concerns: |event| event.replays().next().is_some(),
            check: |event, _, own, peer| {
                event.replays().filter(|bucket| lost_graph(own, *bucket).is_none()).find_map(|bucket| lost_graph(peer, bucket))
            },
        },
    },
    Invariant {
        name: "graphs_destroyed_before_communicators",
        why: "a captured graph holds on to the communicators it uses; destroying one first hangs or frees memory in use",
        check: Check::Own(|event, own| {
            let ends = |fact: &&Fact| matches!(fact, Fact::CommunicatorDestroyed(_));
            let early = || {
                let ended = event.writes.iter().find(ends)?;
                let alive = own.captures().iter().find(|bucket| own.holds(&Fact::Captured(**bucket)))?;
                let conflict = Fault::Conflict { subject: ended.clone(), because: Fact::Captured(*alive) };
                (!own.holds(&Fact::GraphsDestroyed)).then_some(conflict)
            };
            missing(event, own, "graphs_destroyed_before_communicators").or_else(early)
        }),
    },
    Invariant {
        name: "communicators_destroyed_before_context",
        why: "a communicator is destroyed through its context; closing the context first leaves its peers waiting",
        check: Check::Own(|event, own| missing(event, own, "communicators_destroyed_before_context")),
    },
];
