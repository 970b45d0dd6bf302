//! For every invariant, a native plan with one deliberate mistake that breaks it and no other.

use moetwin_models::RankId;
use moetwin_models::ids::Id;
use moetwin_runtime::GroupId;
use moetwin_runtime::init::{Bucket, Fact, Gate, InitPhase, InitPlan, InitStep, NativeInputs, StepId, Worker};

/// A deliberate mistake.
pub struct Mutation {
    /// What is wrong with the plan.
    pub mistake: &'static str,
    /// The one invariant that it breaks.
    pub invariant: &'static str,
    /// Makes the mistake in a [`native_base`].
    pub make: fn(&mut InitPlan),
}

/// The plan that mutations start from: three ranks with experts, all-to-all, a draft worker and two buckets.
pub fn native_base() -> InitPlan {
    let mut plan = InitPlan::native(&NativeInputs::uniform(3, true, true, true, vec![8, 4], true));
    plan.conditions.hooks.insert("expert_location".to_owned(), false);
    plan
}

const WORLD: GroupId = GroupId(0);

fn position(plan: &InitPlan, rank: RankId, name: &str) -> usize {
    plan.ranks[rank].iter().position(|step| step.name == name).unwrap_or_else(|| panic!("the native plan has no step `{name}`"))
}

fn renumber(steps: &mut [InitStep]) {
    for (i, step) in steps.iter_mut().enumerate() {
        step.id = StepId::from_index(i);
    }
}

/// Puts a step right before another one.
fn move_before(plan: &mut InitPlan, rank: RankId, name: &str, other: &str) {
    let at = position(plan, rank, name);
    let step = plan.ranks[rank].remove(at);
    insert_before(plan, rank, other, step);
}

fn insert_before(plan: &mut InitPlan, rank: RankId, other: &str, step: InitStep) {
    let at = position(plan, rank, other);
    plan.ranks[rank].insert(at, step);
    renumber(&mut plan.ranks[rank]);
}

fn remove(plan: &mut InitPlan, rank: RankId, name: &str) {
    let at = position(plan, rank, name);
    plan.ranks[rank].remove(at);
    renumber(&mut plan.ranks[rank]);
}

fn step<'a>(plan: &'a mut InitPlan, rank: RankId, name: &str) -> &'a mut InitStep {
    let at = position(plan, rank, name);
    &mut plan.ranks[rank][at]
}

fn everywhere(plan: &mut InitPlan, change: impl Fn(&mut InitPlan, RankId)) {
    for rank in plan.ranks.ids() {
        change(plan, rank);
    }
}

/// One mistake, or more, for every invariant.
pub static MUTATIONS: &[Mutation] = &[
    Mutation {
        mistake: "rank 2 reserves its arena only when it is about to serve",
        invariant: "state_before_use",
        make: |plan| move_before(plan, RankId(2), "reserve arena", "first pass"),
    },
    Mutation {
        mistake: "rank 1 tunes its kernels on the weights before it loads them",
        invariant: "weights_before_warmup",
        make: |plan| {
            let tune = InitStep::new("tune kernels", InitPhase::Load).reads(Fact::Weights(Worker::Target));
            insert_before(plan, RankId(1), "load target weights", tune);
        },
    },
    Mutation {
        mistake: "weights load on a second thread, and only the warm-up waits for it",
        invariant: "weights_before_kv_pool",
        make: |plan| {
            let load = step(plan, RankId(0), "load draft weights");
            load.thread = 1;
            load.after = vec![StepId(0)];
            let loaded = load.id;
            step(plan, RankId(0), "warm collectives of world").after.push(loaded);
        },
    },
    Mutation {
        mistake: "ranks agree on free memory before they have a communicator",
        invariant: "communicator_before_collective",
        make: |plan| {
            everywhere(plan, |plan, rank| {
                let agree = InitStep::new("agree on free memory", InitPhase::Open).reads(Fact::Communicator(WORLD)).sync(WORLD);
                insert_before(plan, rank, "create communicator world", agree);
            })
        },
    },
    Mutation {
        mistake: "ranks still exchange something after their communicator is gone",
        invariant: "communicator_before_collective",
        make: |plan| {
            everywhere(plan, |plan, rank| {
                let report = InitStep::new("report totals", InitPhase::Close).reads(Fact::Communicator(WORLD)).sync(WORLD);
                insert_before(plan, rank, "close context", report);
            })
        },
    },
    Mutation {
        mistake: "the metadata step runs and stores nothing, because the model class lacks a hook",
        invariant: "expert_metadata_before_dispatch",
        make: |plan| {
            everywhere(plan, |plan, rank| step(plan, rank, "set target expert metadata").writes[0].gate = Gate::hook("expert_location"))
        },
    },
    Mutation {
        mistake: "metadata is only set for workers that are not drafts",
        invariant: "draft_worker_has_own_metadata",
        make: |plan| everywhere(plan, |plan, rank| step(plan, rank, "set draft expert metadata").gate = Gate::NotDraft),
    },
    Mutation {
        mistake: "all-to-all buffers are exchanged by the first request",
        invariant: "a2a_buffers_before_capture",
        make: |plan| everywhere(plan, |plan, rank| move_before(plan, rank, "exchange all-to-all buffers", "first pass")),
    },
    Mutation {
        mistake: "rank 0 reserves its KV pool after capture",
        invariant: "kv_pool_before_capture",
        make: |plan| move_before(plan, RankId(0), "reserve target KV pool", "finish start-up"),
    },
    Mutation {
        mistake: "no collective has run before capture",
        invariant: "collectives_warm_before_capture",
        make: |plan| everywhere(plan, |plan, rank| remove(plan, rank, "warm collectives of world")),
    },
    Mutation {
        mistake: "the draft is captured without a warm-up",
        invariant: "warmup_before_capture",
        make: |plan| everywhere(plan, |plan, rank| remove(plan, rank, "warm up draft")),
    },
    Mutation {
        mistake: "rank 1 grows its arena while it captures",
        invariant: "no_allocation_in_capture",
        make: |plan| {
            let grow = InitStep::new("grow arena", InitPhase::Capture).writes(Fact::Arena);
            insert_before(plan, RankId(1), "capture batch 4", grow);
        },
    },
    Mutation {
        mistake: "a second thread of rank 2 allocates whenever it likes",
        invariant: "no_allocation_in_capture",
        make: |plan| {
            let stage = InitStep::new("stage pinned weights", InitPhase::Load).writes(Fact::Weights(Worker::Draft)).thread(1);
            plan.push(RankId(2), stage);
        },
    },
    Mutation {
        mistake: "rank 1 captures small to large",
        invariant: "same_buckets_same_order",
        make: |plan| {
            move_before(plan, RankId(1), "open capture of batch 4", "open capture of batch 8");
            move_before(plan, RankId(1), "capture batch 4", "open capture of batch 8");
        },
    },
    Mutation {
        mistake: "rank 1 reduces where the others gather",
        invariant: "same_collectives_same_order",
        make: |plan| step(plan, RankId(1), "warm up target").name = "autotune target".to_owned(),
    },
    Mutation {
        mistake: "a bucket that nobody captured is launched",
        invariant: "own_graph_before_replay",
        make: |plan| {
            let serve = step(plan, RankId(0), "first pass");
            serve.reads.push(Fact::Captured(Bucket::target(16)).into());
        },
    },
    Mutation {
        mistake: "nobody waits for the others to finish their start-up",
        invariant: "every_graph_before_replay",
        make: |plan| everywhere(plan, |plan, rank| step(plan, rank, "finish start-up").sync = None),
    },
    Mutation {
        mistake: "nobody waits for the others to stop serving",
        invariant: "every_graph_before_replay",
        make: |plan| everywhere(plan, |plan, rank| step(plan, rank, "stop serving").sync = None),
    },
    Mutation {
        mistake: "communicators go before graphs",
        invariant: "graphs_destroyed_before_communicators",
        make: |plan| everywhere(plan, |plan, rank| move_before(plan, rank, "destroy graphs", "close context")),
    },
    Mutation {
        mistake: "rank 2 closes its context before its communicator",
        invariant: "communicators_destroyed_before_context",
        make: |plan| move_before(plan, RankId(2), "close context", "destroy communicator world"),
    },
];
