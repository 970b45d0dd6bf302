//! What a deployment cannot be, and what the refusal says.

use crate::models::{Family, any_model_of};
use moetwin_models::shard::ShardFault;
use moetwin_models::{AllToAll, BuildOptions, Deployment, ExpertPlacement, ModelSpec, Phase, PlanError, Step, plan, spec, zoo};
use proptest::strategy::{Strategy, ValueTree};

fn refusal_of(model: &ModelSpec, deployment: &Deployment) -> Vec<ShardFault> {
    match plan(model, &Step::uniform(Phase::Decode, 1, 10), deployment, &BuildOptions::default()) {
        Err(PlanError::Shard(e)) => e.faults,
        other => panic!("{:?} is not refused: {:?}", deployment, other.map(|_| "a graph")),
    }
}

#[track_caller]
fn refused(model: &str, deployment: Deployment, says: &[&str]) {
    let faults = refusal_of(&zoo::spec(model).unwrap(), &deployment);
    let text: Vec<String> = faults.iter().map(ToString::to_string).collect();
    for part in says {
        assert!(text.iter().any(|t| t.contains(part)), "{part:?} is not in {text:#?}");
    }
    assert_eq!(text.len(), says.len(), "{text:#?}");
}

fn tp(n: u32) -> Deployment {
    Deployment { tp: n, ..Deployment::single() }
}

#[test]
fn heads_and_columns_that_do_not_divide() {
    let faults = refusal_of(&zoo::spec("kimi-k2.5").unwrap(), &tp(3));
    let text: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        text[0],
        "64 attention heads cannot be shared by tp 3; legal tp: 1, 2, 4, 8, 16, 32, 64 (layers.0.attn.q.weight and 182 more)"
    );
    assert!(
        text.iter().any(|t| t.starts_with("2048 expert intermediate columns cannot be shared by tp / ep 3; legal tp / ep: 1, 2, 4,")),
        "{text:#?}"
    );
}

#[test]
fn scale_blocks_that_would_be_cut() {
    // 2048 columns over 128 ranks are 16 each, half an INT4 group.
    let mut kimi = zoo::spec("kimi-k2.5").unwrap();
    kimi.layers.truncate(2);
    for layer in &mut kimi.layers {
        if let spec::Attention::Mla(mla) = &mut layer.attention {
            mla.heads = 128;
        }
    }
    let text = refusal_of(&kimi, &tp(128)).iter().map(ToString::to_string).collect::<Vec<_>>();
    let expected = "2048 expert intermediate columns shared by tp / ep 128 leave 16 a rank, which cuts a block of 32 that shares a scale \
                    (int4_g32); legal tp / ep: 1, 2, 4, 8, 16, 32, 64 (layers.1.moe.experts.down.weight)";
    assert_eq!(text, [expected]);
    assert!(plan(&kimi, &Step::uniform(Phase::Decode, 1, 1), &tp(64), &BuildOptions::default()).is_ok());
    // FP8 blocks are cut along rows, too.
    let v3 = refusal_of(&zoo::spec("deepseek-v3").unwrap(), &tp(32)).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(v3.contains("(fp8_128x128)") && v3.contains("layers.3.moe.experts.gate_up.weight"), "{v3}");
}

#[test]
fn sizes_that_contradict_each_other() {
    refused("kimi-k2.5", Deployment { ep: 3, ..tp(8) }, &["ep 3 does not divide tp 8; legal: 1, 2, 4, 8"]);
    refused("kimi-k2.5", Deployment { dp_attention: 5, ..tp(8) }, &["dp-attention 5 does not divide tp 8; legal: 1, 2, 4, 8"]);
    refused("kimi-k2.5", Deployment { pp: 62, ..tp(1) }, &["61 layers cannot fill 62 pipeline stages; legal pp: 1 to 61"]);
    refused("kimi-k2.5", Deployment { tp: 0, pp: 0, ..tp(1) }, &["tp is 0", "pp is 0"]);
    refused("kimi-k2.5", Deployment { tp: u32::MAX, pp: u32::MAX, replicas: u32::MAX, ..tp(1) }, &["the most is 65536"]);
    refused("kimi-k2.5", Deployment { ep: 2, a2a: AllToAll::Deepep, ..tp(8) }, &["all-to-all deepep needs every expert whole on one rank"]);
    refused(
        "kimi-k2.5",
        Deployment { ep: 5, a2a: AllToAll::Nccl, ..tp(5) },
        &["64 attention heads", "384 experts cannot be shared by ep 5; legal ep: 1, 2, 3, 4, 6, 8,", "18432 intermediate columns"],
    );
}

#[test]
fn placements_of_another_model() {
    let placed = |slots: Vec<u32>| Deployment { placement: Some(ExpertPlacement { physical_to_logical: slots }), ..tp(1) };
    refused("kimi-k2.5", placed((0..385).collect()), &["slot 384 holds expert 384, but the model's experts are 0 to 383"]);
    refused("kimi-k2.5", placed((0..383).collect()), &["383 slots are fewer than the 384 experts"]);
    refused("kimi-k2.5", placed((0..383).chain([0]).collect()), &["no slot holds expert 383"]);
    let uneven = Deployment { ep: 2, tp: 2, ..placed((0..384).chain([7]).collect()) };
    refused("kimi-k2.5", uneven, &["385 expert slots cannot be shared by ep 2; legal ep: 1, 5, 7, 11, 35, 55, 77, 385"]);
}

/// Every listed number of ranks is one that works, and the refused one is not listed.
#[test]
fn what_is_said_to_be_legal_is() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut checked = 0;
    for family in Family::ALL {
        let strategy = any_model_of(family).prop_filter("one format", |m| m.layers.len() == 1);
        let model = strategy.new_tree(&mut runner).unwrap().current();
        for n in [3, 5, 6, 7, 16, 32, 64] {
            let Err(PlanError::Shard(e)) = plan(&model, &Step::uniform(Phase::Decode, 1, 10), &tp(n), &BuildOptions::default()) else {
                continue;
            };
            let legal_for_all = |n: &u32| e.faults.iter().all(|f| matches!(f, ShardFault::Split(s) if s.legal.contains(n)));
            assert!(!legal_for_all(&n));
            for works in (1..=64).filter(legal_for_all) {
                if let Err(other) = plan(&model, &Step::uniform(Phase::Decode, 1, 10), &tp(works), &BuildOptions::default()) {
                    let same = |s: &str| e.faults.iter().any(|f| matches!(f, ShardFault::Split(f) if f.subject == s));
                    let PlanError::Shard(other) = other else { panic!("{other}") };
                    // A dimension that was no obstacle at `n` may be one at `works`, but not one that was listed.
                    assert!(
                        other.faults.iter().all(|f| matches!(f, ShardFault::Split(s) if !same(s.subject))),
                        "{model:?} tp {works}: {other}"
                    );
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 50);
}

#[test]
fn models_that_contradict_themselves() {
    let mut model = zoo::spec("kimi-k2.5").unwrap();
    for layer in &mut model.layers {
        if let spec::Ffn::Moe(moe) = &mut layer.ffn {
            moe.topk = 400;
            moe.router.groups = 5;
        }
    }
    model.vocab = 0;
    let error = plan(&model, &Step::uniform(Phase::Prefill, 2, 0), &tp(1), &BuildOptions::default()).unwrap_err().to_string();
    for part in ["vocabulary size is 0", "experts per token (400)", "groups (5) does not divide", "sequence 0: number of new tokens is 0"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(error.matches("experts per token").count(), 1, "once for all layers");
}
