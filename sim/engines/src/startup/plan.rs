//! A start-up table as an init plan of every rank.

use super::table::{Item, Row};
use moetwin_models::{IdVec, RankId};
use moetwin_runtime::init::{Bucket, Conditions, Fact, Guarded, InitPlan, InitStep, Worker};
use moetwin_runtime::{Group, GroupId};

/// Ranks of a plan at most: more are alike, and one stands for its like.
pub const MAX_RANKS: u32 = 64;

/// The plan of `ranks` ranks that capture `buckets`.
pub fn plan(rows: &[Row], conditions: Conditions, ranks: u32, buckets: &[u32]) -> InitPlan {
    let ranks = ranks.clamp(1, MAX_RANKS);
    let members: Vec<RankId> = (0..ranks).map(RankId).collect();
    let group = Group { name: format!("tp[0..{ranks}]"), ranks: members };
    let mut plan = InitPlan { conditions, groups: IdVec::from_iter([group]), state: names(rows), ranks: IdVec::default() };
    plan.ranks = (0..ranks).map(|_| Vec::new()).collect();
    for rank in (0..ranks).map(RankId) {
        for steps in runs(rows) {
            let per_bucket = steps[0].name.contains("{bucket}");
            let sizes: Vec<Option<u32>> = if per_bucket { buckets.iter().rev().map(|b| Some(*b)).collect() } else { vec![None] };
            for size in sizes {
                for row in steps {
                    plan.push(rank, step(row, size, ranks > 1));
                }
            }
        }
    }
    plan
}

/// Rows in runs: neighbouring rows of a batch size belong together, every other row stands alone.
fn runs(rows: &[Row]) -> Vec<&[Row]> {
    rows.chunk_by(|a, b| a.name.contains("{bucket}") && b.name.contains("{bucket}")).collect()
}

fn step(row: &Row, bucket: Option<u32>, together: bool) -> InitStep {
    let name = row.name.replace("{bucket}", &bucket.map_or_else(String::new, |b| format!("batch {b}")));
    let of = |items: &[Item]| items.iter().map(|item| guarded(item, row.worker, bucket)).collect::<Vec<Guarded>>();
    let sync = (row.sync && together).then_some(GroupId(0));
    InitStep::new(name, row.phase)
        .worker(row.worker)
        .gate(row.gate.clone())
        .reads_all(of(&row.reads))
        .writes_all(of(&row.writes))
        .sync_if(sync)
}

fn guarded(item: &Item, worker: Worker, bucket: Option<u32>) -> Guarded {
    fact(&item.name, worker, bucket).when(item.gate.clone())
}

/// The item of a name in a table.
pub fn fact(name: &str, worker: Worker, bucket: Option<u32>) -> Fact {
    let of_bucket = || Bucket { worker, batch: bucket.unwrap_or(1) };
    match name {
        "context" => Fact::Context,
        "process_group" => Fact::ProcessGroup,
        "communicator" => Fact::Communicator(GroupId(0)),
        "collectives_warm" => Fact::CollectivesWarm(GroupId(0)),
        "weights" => Fact::Weights(Worker::Target),
        "draft_weights" => Fact::Weights(Worker::Draft),
        "expert_metadata" => Fact::ExpertMetadata(Worker::Target),
        "draft_expert_metadata" => Fact::ExpertMetadata(Worker::Draft),
        "kv_pool" => Fact::KvPool(Worker::Target),
        "draft_kv_pool" => Fact::KvPool(Worker::Draft),
        "a2a_buffers" => Fact::AllToAllBuffers,
        "arena" => Fact::Arena,
        "warmed_up" => Fact::WarmedUp(worker),
        "capture_open" => Fact::CaptureOpen(of_bucket()),
        "captured" => Fact::Captured(of_bucket()),
        "ready" => Fact::Ready,
        other => Fact::Named(other.to_owned()),
    }
}

fn names(rows: &[Row]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for item in rows.iter().flat_map(|row| row.reads.iter().chain(&row.writes)) {
        if matches!(fact(&item.name, Worker::Target, None), Fact::Named(_)) && !out.contains(&item.name) {
            out.push(item.name.clone());
        }
    }
    out
}
