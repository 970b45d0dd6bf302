//! The failure that started this project, in miniature: what SGLang 0.5.9 does on each rank between its process group and its first request.

use moetwin_models::RankId;
use moetwin_runtime::init::{Bucket, Conditions, Fact, Gate, InitPhase, InitPlan, InitStep, Worker};
use moetwin_runtime::{Group, GroupId};

/// Kimi-K2.5 on `ranks` GPUs. `hook`: the model class has `get_model_config_for_expert_location`, as it does from 0.5.10 on;
/// `all_to_all`: an all-to-all backend is chosen, so that the forward pass looks the metadata up; `graphs`: CUDA graphs are on.
pub fn origin_story(ranks: u32, hook: bool, all_to_all: bool, graphs: bool) -> InitPlan {
    let conditions = Conditions {
        flags: [("all_to_all".to_owned(), all_to_all), ("cuda_graph".to_owned(), graphs)].into(),
        hooks: [("get_model_config_for_expert_location".to_owned(), hook)].into(),
        model_class: "KimiK25ForConditionalGeneration".to_owned(),
        architecture: "sm_120".to_owned(),
    };
    let mut plan = InitPlan { conditions, ..InitPlan::default() };
    let tp = plan.groups.push(Group { name: "tp".to_owned(), ranks: (0..ranks).map(RankId).collect() });
    for rank in (0..ranks).map(RankId) {
        plan.ranks.push(Vec::new());
        for step in steps(tp) {
            plan.push(rank, step);
        }
    }
    plan
}

fn steps(tp: GroupId) -> Vec<InitStep> {
    let target = Worker::Target;
    let (a2a, graphs) = (Gate::flag("all_to_all"), Gate::flag("cuda_graph"));
    let metadata = Fact::ExpertMetadata(target);
    let forward = || {
        let always = [Fact::Context, Fact::Weights(target), Fact::KvPool(target), Fact::Communicator(tp)].map(Into::into);
        always.into_iter().chain([metadata.clone().when(a2a.clone()), Fact::AllToAllBuffers.when(a2a.clone())])
    };
    let bucket = Bucket::target(8);
    vec![
        InitStep::new("init_torch_distributed", InitPhase::Open).sync(tp).writes_all([
            Fact::Context,
            Fact::ProcessGroup,
            Fact::Communicator(tp),
        ]),
        // For every runner but a draft's; what it stores is None where the class lacks the hook.
        InitStep::new("set_global_expert_location_metadata", InitPhase::Open)
            .gate(Gate::NotDraft)
            .reads(Fact::ProcessGroup)
            .writes(metadata.clone().when(Gate::hook("get_model_config_for_expert_location"))),
        InitStep::new("load_model", InitPhase::Load)
            .reads(Fact::Context)
            .writes(Fact::Weights(target))
            .writes(Fact::AllToAllBuffers.when(a2a.clone())),
        InitStep::new("init_memory_pool", InitPhase::Allocate).reads(Fact::Weights(target)).writes(Fact::KvPool(target)),
        InitStep::new("run batch 8 twice", InitPhase::Capture)
            .gate(graphs.clone())
            .reads_all(forward())
            .sync(tp)
            .writes_all([Fact::WarmedUp(target), Fact::CollectivesWarm(tp)]),
        InitStep::new("capture batch 8", InitPhase::Capture)
            .gate(graphs)
            .reads(Fact::WarmedUp(target))
            .reads_all(forward())
            .writes(Fact::Captured(bucket)),
        InitStep::new("report ready", InitPhase::Serve).sync(tp).writes(Fact::Ready),
        InitStep::new("serve the warm-up request", InitPhase::Serve).reads(Fact::Ready).reads_all(forward()),
    ]
}
