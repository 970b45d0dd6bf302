//! Rules by which routers choose experts.

use super::common::Context;
use super::fields::MAX_EXPERTS;
use crate::spec::{GroupScore, RouterSpec, Scoring};

/// What DeepSeek-V3's router adds to the sum of the chosen scores (transformers 5.17, `DeepseekV3TopkRouter`).
const SIGMOID_SUM_EPS: f64 = 1e-20;

/// Softmax over all experts without groups, the weights divided by their sum or not (Qwen, Mixtral, OLMoE).
pub(super) fn softmax(normalize: bool) -> RouterSpec {
    RouterSpec {
        scoring: Scoring::Softmax,
        correction_bias: false,
        groups: 1,
        topk_groups: 1,
        group_score: GroupScore::Max,
        normalize,
        normalize_eps: 0.0,
        scale: 1.0,
        logits_bias: false,
    }
}

/// Softmax over the logits of the chosen experts (gpt-oss, Granite).
pub(super) fn softmax_topk(logits_bias: bool) -> RouterSpec {
    RouterSpec { scoring: Scoring::SoftmaxTopk, logits_bias, ..softmax(false) }
}

/// Sigmoid scores without groups or bias.
pub(super) fn sigmoid(normalize: bool) -> RouterSpec {
    RouterSpec { scoring: Scoring::Sigmoid, normalize_eps: if normalize { SIGMOID_SUM_EPS } else { 0.0 }, ..softmax(normalize) }
}

/// What the class of a grouped router assumes where the file is silent.
pub(super) struct GroupDefaults {
    pub(super) groups: u64,
    pub(super) topk_groups: u64,
    pub(super) scale: f64,
}

/// DeepSeek-V3 and GLM: sigmoid, a correction bias for the choice, groups scored by their two best experts.
pub(super) fn deepseek_v3(ctx: &Context<'_>, experts: Option<(u32, u32)>, defaults: &GroupDefaults) -> Option<RouterSpec> {
    let text = ctx.text;
    let scoring = text.maybe_choice(&["scoring_func"], &["sigmoid"]);
    let method = text.maybe_choice(&["topk_method"], &["noaux_tc"]);
    let groups = groups(ctx, experts, defaults, 2);
    let normalize = text.bool_assumed(&["norm_topk_prob"], true);
    let scale = text.f64_assumed(&["routed_scaling_factor"], 0.0..=1e6, defaults.scale);
    scoring?;
    method?;
    let (groups, topk_groups) = groups?;
    Some(RouterSpec {
        correction_bias: true,
        groups,
        topk_groups,
        group_score: GroupScore::TopTwoSum,
        scale: scale?,
        ..sigmoid(normalize?)
    })
}

/// DeepSeek-V2: softmax, with groups scored by their best expert or without groups. The weights are never divided by their sum:
/// transformers 5.17 ignores `norm_topk_prob` in this family.
pub(super) fn deepseek_v2(ctx: &Context<'_>, experts: Option<(u32, u32)>) -> Option<RouterSpec> {
    let text = ctx.text;
    let scoring = text.maybe_choice(&["scoring_func"], &["softmax"]);
    let method = text.maybe_choice(&["topk_method"], &["greedy", "group_limited_greedy"]);
    let scale = text.f64_assumed(&["routed_scaling_factor"], 0.0..=1e6, 1.0);
    if text.bool_or(&["norm_topk_prob"], false)? {
        ctx.sink.warn("norm_topk_prob is true, but transformers does not normalize the weights of deepseek_v2; neither does this model");
    }
    let (groups, topk_groups) = match method?.unwrap_or("greedy") {
        "greedy" => (1, 1),
        _ => groups(ctx, experts, &GroupDefaults { groups: 1, topk_groups: 1, scale: 1.0 }, 1)?,
    };
    scoring?;
    Some(RouterSpec { groups, topk_groups, scale: scale?, ..softmax(false) })
}

/// Number of groups and of groups that take part; a group needs at least `least` experts for its score.
fn groups(ctx: &Context<'_>, experts: Option<(u32, u32)>, defaults: &GroupDefaults, least: u32) -> Option<(u32, u32)> {
    let text = ctx.text;
    let groups = text.u64_assumed(&["n_group"], 1..=MAX_EXPERTS, defaults.groups);
    let topk_groups = text.u64_assumed(&["topk_group"], 1..=MAX_EXPERTS, defaults.topk_groups);
    let ((experts, topk), groups, topk_groups) = (experts?, groups? as u32, topk_groups? as u32);
    if !experts.is_multiple_of(groups) {
        text.fault("n_group", format!("is {groups}, which does not divide the {experts} experts"), format!("a divisor of {experts}"));
        return None;
    }
    let size = experts / groups;
    if size < least {
        text.fault("n_group", format!("is {groups}, which leaves {size} expert a group"), format!("groups of at least {least} experts"));
        return None;
    }
    if topk_groups > groups {
        text.fault("topk_group", format!("is {topk_groups}, more than the {groups} groups"), format!("a whole number from 1 to {groups}"));
        return None;
    }
    if topk > topk_groups * size {
        let problem = format!("is {topk}, but {topk_groups} groups of {size} hold {} experts", topk_groups * size);
        text.fault("num_experts_per_tok", problem, format!("a whole number from 1 to {}", topk_groups * size));
        return None;
    }
    Some((groups, topk_groups))
}
