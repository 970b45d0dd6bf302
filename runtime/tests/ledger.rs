//! The ledger against the arithmetic of Kimi-K2.5 on eight ranks, as derived from SGLang's sources and the origin story's log.

use moetwin_kernels::launch::one_shot::window_bytes;
use moetwin_models::{AllToAll, BuildOptions, Deployment, Phase, RankId, Step, TensorKind, plan, zoo};
use moetwin_runtime::ledger::{Ledger, LedgerOptions, MemoryPhase, ledger};
use moetwin_runtime::{LowerOptions, lower};

const GIB: f64 = (1u64 << 30) as f64;

fn kimi(deployment: &Deployment) -> Ledger {
    let spec = zoo::spec("kimi-k2.5").unwrap();
    let graph = plan(&spec, &Step::uniform(Phase::Decode, 1, 65_536), deployment, &BuildOptions::default()).unwrap();
    let options = LedgerOptions { captured_buckets: 4, channels: 4, spare_kv_bytes: 0 };
    ledger(&lower(graph, LowerOptions::default()).unwrap(), &spec, &options).unwrap()
}

fn tp8() -> Deployment {
    Deployment { tp: 8, ..Deployment::default() }
}

fn near(got: u64, want_gib: f64, tolerance_gib: f64) {
    let got = got as f64 / GIB;
    assert!((got - want_gib).abs() <= tolerance_gib, "{got:.3} GiB, expected {want_gib}");
}

#[test]
fn tp8_and_ep8_hold_the_same_weights() {
    let tp = kimi(&tp8());
    let ep = kimi(&Deployment { ep: 8, ..tp8() });
    for l in [&tp, &ep] {
        near(l.ranks[0].weight_bytes(), 71.9, 0.1);
        near(l.ranks[0].line_bytes("weights: routed experts"), 66.45, 0.01);
        near(l.ranks[0].line_bytes("weights: attention, replicated"), 1.72, 0.01);
        near(l.ranks[0].line_bytes("weights: attention, sharded"), 1.22, 0.01);
        near(l.ranks[0].line_bytes("absorbed copies of kv_b"), 0.12, 0.01);
        near(l.ranks[0].line_bytes("weights: shared experts"), 0.615, 0.001);
        near(l.ranks[0].line_bytes("weights: embedding and head"), 0.55, 0.01);
        near(l.ranks[0].line_bytes("modules outside the graph (vision tower)"), 0.87, 0.05);
    }
    assert_eq!(tp.ranks[0].weight_bytes(), ep.ranks[0].weight_bytes());
}

/// The origin story's gap: shared experts stop being sharded (4.307 GiB) and a workspace appears (1.125 GiB).
#[test]
fn flashinfer_all_to_all_adds_shared_experts_and_a_workspace() {
    let ep = kimi(&Deployment { ep: 8, ..tp8() });
    let a2a = kimi(&Deployment { ep: 8, a2a: AllToAll::Flashinfer, ..tp8() });
    let growth = |name| a2a.ranks[0].line_bytes(name) - ep.ranks[0].line_bytes(name);
    near(growth("weights: shared experts"), 4.307, 0.001);
    near(growth("all-to-all workspace"), 1.125, 0.001);
    near(a2a.ranks[0].weight_bytes() - ep.ranks[0].weight_bytes(), 4.307, 0.001);
}

#[test]
fn fused_sums_need_a_window_and_fewer_commands() {
    let spec = zoo::spec("kimi-k2.5").unwrap();
    let graph = plan(&spec, &Step::uniform(Phase::Decode, 1, 65_536), &tp8(), &BuildOptions::default()).unwrap();
    let options = LedgerOptions { captured_buckets: 4, channels: 4, spare_kv_bytes: 0 };
    let fused = lower(graph, LowerOptions { fuse_sums: true, ..LowerOptions::default() }).unwrap();
    let (plain, fused) = (kimi(&tp8()), ledger(&fused, &spec, &options).unwrap());
    let line = |l: &Ledger, name| l.ranks[7].line_bytes(name);
    assert_eq!((line(&plain, "windows of one-shot sums"), line(&fused, "windows of one-shot sums")), (0, window_bytes(8)));
    // Two sums a layer, each a node less in every captured graph.
    assert_eq!(line(&plain, "captured graphs") - line(&fused, "captured graphs"), 4 * 2 * 61 * (20 << 10));
    assert!(line(&fused, "activations arena") <= line(&plain, "activations arena"));
}

#[test]
fn attention_grows_only_with_dp_attention() {
    let ep = kimi(&Deployment { ep: 8, ..tp8() });
    let dp = kimi(&Deployment { ep: 8, dp_attention: 8, ..tp8() });
    let sharded = "weights: attention, sharded";
    assert_eq!(dp.ranks[0].line_bytes(sharded), 8 * ep.ranks[0].line_bytes(sharded));
}

#[test]
fn kv_takes_70272_bytes_a_token_on_every_rank() {
    for r in &kimi(&tp8()).ranks {
        assert_eq!(r.line_bytes("KV pool"), 70_272 * 65_537);
    }
}

#[test]
fn text_decoder_weights_are_594_gb_and_each_rank_keeps_its_eighth_of_the_cut_ones() {
    let spec = zoo::spec("kimi-k2.5").unwrap();
    let graph = plan(&spec, &Step::uniform(Phase::Decode, 1, 0), &Deployment::default(), &BuildOptions::default()).unwrap();
    let weights = graph.tensors.iter().filter(|(_, t)| matches!(t.kind, TensorKind::Weight(_)));
    let total: u64 = weights.map(|(id, _)| graph.local_bytes(id, RankId(0)).unwrap()).sum();
    assert_eq!(total / 1_000_000_000, 594);
}

#[test]
fn running_out_of_memory_names_phase_line_and_bytes() {
    let l = kimi(&tp8());
    l.check(96 << 30).unwrap();
    let e = l.check(60 << 30).unwrap_err();
    assert_eq!((e.rank, e.phase, e.line), (RankId(0), MemoryPhase::Load, "weights: routed experts"));
    assert_eq!(e.need_bytes, l.ranks[0].line_bytes(e.line));
    let total = l.ranks[0].phase_bytes(MemoryPhase::GraphCapture);
    let e = l.check(total - 1).unwrap_err();
    assert_eq!((e.phase, e.line), (MemoryPhase::GraphCapture, "captured graphs"));
}

/// Qwen3-Next: 36 of 48 layers keep 32 heads of 128 x 128 in f32 and three inputs of 8192 channels in bf16 of each sequence, whatever its
/// length (transformers 5.17, `Qwen3NextGatedDeltaNet`).
#[test]
fn the_state_of_linear_attention_is_held_for_each_sequence() {
    let spec = zoo::spec("qwen3-next-80b-a3b").unwrap();
    let held = |tp: u32, context: u32| {
        let deployment = Deployment { tp, ..Deployment::default() };
        let graph = plan(&spec, &Step::uniform(Phase::Decode, 5, context), &deployment, &BuildOptions::default()).unwrap();
        let options = LedgerOptions { captured_buckets: 1, channels: 4, spare_kv_bytes: 0 };
        ledger(&lower(graph, LowerOptions::default()).unwrap(), &spec, &options).unwrap().ranks[0].line_bytes("state of linear attention")
    };
    let whole = 5 * 36 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2);
    assert_eq!((held(1, 100), held(1, 5000), held(2, 100)), (whole, whole, whole / 2));
}
