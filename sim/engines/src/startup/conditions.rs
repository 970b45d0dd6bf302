//! What gates are evaluated against: the switches of a launch and the hooks of its model class.

use crate::question::Engine;
use crate::rules::Launch;
use crate::version::{Range, Version};
use moetwin_runtime::init::Conditions;
use std::collections::BTreeMap;

/// Evaluates every condition that the tables may name.
pub fn conditions(launch: &Launch<'_>) -> Conditions {
    let flags = match launch.settings.engine {
        Engine::Sglang => sglang(launch),
        Engine::Vllm => vllm(launch),
    };
    Conditions {
        flags: flags.into_iter().map(|(name, on)| (name.to_owned(), on)).collect(),
        hooks: hooks(launch.settings.engine, launch.model.class.as_deref(), &launch.settings.version),
        model_class: launch.model.class.clone().unwrap_or_default(),
        architecture: launch.hardware.sm.map_or_else(String::new, |sm| format!("sm_{sm}")),
    }
}

/// Hooks of a class. A class that is not known has every hook.
fn hooks(engine: Engine, class: Option<&str>, version: &Version) -> BTreeMap<String, bool> {
    let mut out = BTreeMap::new();
    for line in include_str!("../../data/hooks.txt").lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let mut columns = line.split(" | ").map(str::trim);
        let mut next = || columns.next().unwrap_or_default();
        let (of, hook, classes, versions) = (next(), next(), next(), next());
        if of != engine.name() {
            continue;
        }
        let (since, until) = versions.split_once("..").unwrap_or_default();
        let in_range = (Range { since, until }).contains(version);
        if let Some(lacking) = classes.strip_prefix('!') {
            let lacks = in_range && class.is_some_and(|class| lacking.split(", ").any(|prefix| class.starts_with(prefix)));
            out.insert(hook.to_owned(), !lacks);
            continue;
        }
        let named = class.is_none_or(|class| classes.split(", ").any(|prefix| class.starts_with(prefix)));
        let has = named && (class.is_none() || in_range);
        let entry = out.entry(hook.to_owned()).or_insert(false);
        *entry |= has;
    }
    out
}

fn sglang(launch: &Launch<'_>) -> Vec<(&'static str, bool)> {
    let s = launch.settings;
    let flashinfer_a2a = s.a2a == "flashinfer";
    // Only these methods tell the dispatcher how tokens are quantized on their way.
    let quantized = launch.scheme(&["nvfp4", "modelopt_fp4", "fp8", "mxfp4", "quark"]);
    let eplb = s.eplb;
    // Which group the partial sums of the experts are reduced in: 1 < ep < tp leaves a group that is neither tp nor ep.
    let moe_tp_group = s.ep > 1 && s.ep < s.tp && s.moe_tp > 1;
    let left_out = Range::between("20260322", "20260402").contains(&s.version);
    vec![
        ("moe", launch.model.moe),
        ("draft", false),
        ("graphs", s.graphs.enabled),
        ("a2a", s.a2a_active),
        ("flashinfer_a2a", flashinfer_a2a),
        ("lazy_buffers", s.a2a == "deepep_v2" && !s.version.since_day(20260920)),
        ("quantized_dispatch", quantized),
        ("dispatched_router_rows", quantized && !launch.scheme(&["int4", "awq", "gptq"])),
        ("dispatch_algorithm", eplb || s.has("--ep-dispatch-algorithm")),
        ("eplb", eplb),
        ("recorder", eplb || s.has("--expert-distribution-recorder-mode")),
        ("speculative", s.speculative.is_some()),
        ("eagle", s.speculative.as_ref().is_some_and(|d| d.method.starts_with("EAGLE"))),
        ("eagle3", s.speculative.as_ref().is_some_and(|d| d.method == "EAGLE3")),
        ("two_batch_overlap", launch.on("--enable-two-batch-overlap")),
        ("pd_decode", s.disaggregation.as_deref() == Some("decode")),
        ("custom_all_reduce", crate::rules::uses_custom_all_reduce(launch)),
        ("moe_tp_group", moe_tp_group),
        ("moe_tp_group_left_out", moe_tp_group && left_out),
        (
            "autotune",
            matches!(s.moe_backend.as_str(), "flashinfer_trtllm" | "flashinfer_mxfp4")
                && launch.sm() >= 90
                && !launch.on("--disable-flashinfer-autotune"),
        ),
        ("warmup_request", !launch.on("--skip-server-warmup")),
    ]
}

/// Draft models that are mixtures of experts of their own, with another expert count than the target.
const OWN_EXPERTS: &[&str] = &["dspark"];

fn vllm(launch: &Launch<'_>) -> Vec<(&'static str, bool)> {
    let s = launch.settings;
    let draft_moe = s.speculative.as_ref().is_some_and(|d| OWN_EXPERTS.contains(&d.method.to_lowercase().as_str()));
    vec![
        ("moe", launch.model.moe),
        ("draft", false),
        ("graphs", s.graphs.enabled),
        ("a2a", s.a2a_active),
        ("eplb", s.eplb && s.ep > 1),
        ("speculative", s.speculative.is_some()),
        ("draft_moe", draft_moe),
        ("eagle3", s.speculative.as_ref().is_some_and(|d| d.method.eq_ignore_ascii_case("eagle3"))),
        ("custom_all_reduce", crate::rules::uses_custom_all_reduce(launch)),
    ]
}
