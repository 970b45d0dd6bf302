//! Weights of a rank: what each layout divides, and what every rank repeats.

use super::GIB;
use crate::catalog::{Amount, LayerParts, Parts};
use crate::model::Model;
use crate::question::Engine;
use crate::settings::Settings;

/// How a launch cuts a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// The engine.
    pub engine: Engine,
    /// Ranks of a stage that share embedding, head and towers.
    pub tp: f64,
    /// Ranks that share attention heads.
    pub attention_tp: f64,
    /// Ranks over which the routed experts are spread, by expert or by width.
    pub expert_ranks: f64,
    /// Ranks that share dense layers.
    pub dense_tp: f64,
    /// Ranks that share the shared experts.
    pub shared_tp: f64,
    /// Ranks that share the embedding table.
    pub embedding_tp: f64,
    /// Ranks that share towers.
    pub vision_tp: f64,
    /// Attention projections are on every rank although heads are cut.
    pub attention_whole: bool,
    /// Layers of each pipeline stage.
    pub stages: Vec<usize>,
    /// Draft layers are loaded.
    pub draft: bool,
    /// The lookup table stays on the host.
    pub table_on_host: bool,
    /// Towers are left out.
    pub language_only: bool,
    /// Slots of redundant experts per expert of the model.
    pub slots: f64,
}

impl Cut {
    /// The cut of a resolved launch.
    pub fn of(settings: &Settings, model: &Model) -> Self {
        let tp = f64::from(settings.tp.max(1));
        let attention_tp = f64::from(settings.attention_tp().max(1));
        let sglang = settings.engine == Engine::Sglang;
        let layers = usize::try_from(model.layers.unwrap_or(0).min(4096)).unwrap_or(0);
        let spread = settings.a2a_active && settings.ep > 1;
        let own_mtp = settings.speculative.as_ref().is_some_and(|s| s.draft_model.is_none() && !s.method.eq_ignore_ascii_case("ngram"));
        let experts = model.experts.unwrap_or(0).max(1) as f64;
        Self {
            engine: settings.engine,
            tp,
            attention_tp,
            expert_ranks: f64::from(settings.ep.max(1)) * f64::from(settings.moe_tp.max(1)),
            dense_tp: f64::from(settings.dense_tp.max(1)),
            // SGLang replicates shared experts under any all-to-all backend (deepseek_v2.py, 0.5.9); vLLM cuts them by its own tensor ranks.
            shared_tp: if sglang && spread { 1.0 } else { tp },
            embedding_tp: if sglang && settings.dp_attention { 1.0 } else { tp },
            // SGLang keeps towers whole; vLLM cuts them unless told to spread requests over them.
            vision_tp: if sglang || settings.flag("--mm-encoder-tp-mode") == Some("data") { 1.0 } else { tp },
            // SGLang's DeepSeek-V4 class: 125.65 GiB a rank of V4-Pro at TP8 is what whole projections give (shards would give 104).
            attention_whole: sglang && model.shape.compressed.is_some(),
            stages: stages(layers, settings.pp, settings.env("VLLM_PP_LAYER_PARTITION").or(settings.env("SGLANG_PP_LAYER_PARTITION"))),
            draft: own_mtp,
            table_on_host: model.shape.table_gib > 0.0 && (settings.env_on("VLLM_PLE_CPU_OFFLOAD") || settings.has("--ple-cpu-offload")),
            language_only: settings.language_only,
            slots: (experts + f64::from(settings.redundant_experts)) / experts,
        }
    }

    /// The same model cut by tensor parallelism alone, shared experts included.
    #[must_use]
    pub fn plain(&self) -> Self {
        Self { shared_tp: self.tp, slots: 1.0, ..self.clone() }
    }
}

/// Layers of each stage: equal, the remainder to the stages before the last (vLLM's and SGLang's `get_pp_indices`), or as given.
pub fn stages(layers: usize, pp: u32, given: Option<&str>) -> Vec<usize> {
    let pp = usize::try_from(pp.max(1)).unwrap_or(1);
    if let Some(text) = given {
        let sizes: Vec<usize> = text.split(',').filter_map(|s| s.trim().parse().ok()).collect();
        if sizes.len() == pp && sizes.iter().try_fold(0usize, |a, b| a.checked_add(*b)) == Some(layers) {
            return sizes;
        }
    }
    let mut sizes = vec![layers / pp; pp];
    let rest = layers % pp;
    for i in 0..rest {
        let at = pp.checked_sub(2 + i).unwrap_or(pp - 1);
        sizes[at] += 1;
    }
    sizes
}

/// What a rank of a stage holds, by line. Order is that of the memory table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held {
    /// Name of the line and what it holds.
    pub lines: Vec<(&'static str, Amount)>,
}

impl Held {
    fn add(&mut self, name: &'static str, amount: Amount) {
        if amount.bytes <= 0.0 {
            return;
        }
        match self.lines.iter_mut().find(|(n, _)| *n == name) {
            Some((_, held)) => *held = held.plus(amount),
            None => self.lines.push((name, amount)),
        }
    }
    /// The sum.
    pub fn total(&self) -> Amount {
        self.lines.iter().fold(Amount::default(), |sum, (_, amount)| sum.plus(*amount))
    }
    /// The sum in GiB.
    pub fn gib(&self) -> f64 {
        self.total().bytes / GIB
    }
    /// A line in GiB.
    pub fn line_gib(&self, name: &str) -> f64 {
        self.lines.iter().filter(|(n, _)| *n == name).map(|(_, a)| a.bytes).sum::<f64>() / GIB
    }
}

/// Names of the lines.
pub const EXPERTS: &str = "weights: routed experts";
/// Attention cut by heads.
pub const ATTENTION: &str = "weights: attention, sharded";
/// Attention on every rank.
pub const ATTENTION_REPLICATED: &str = "weights: attention, replicated";
/// Shared experts.
pub const SHARED: &str = "weights: shared experts";
/// Draft layers.
pub const DRAFT: &str = "weights: draft layers";

/// What each stage's ranks hold, draft layers apart (they are on the last stage).
pub fn held(parts: &Parts, cut: &Cut, kv_heads: u64) -> Vec<Held> {
    let mut out = Vec::new();
    let mut first = 0;
    for (stage, &count) in cut.stages.iter().enumerate() {
        let mut held = Held::default();
        for layer in parts.layers.iter().skip(first).take(count) {
            add_layer(&mut held, layer, cut, kv_heads);
        }
        first += count;
        if stage == 0 {
            held.add("weights: embedding and head", parts.embedding.times(1.0 / cut.embedding_tp));
            if !cut.language_only {
                held.add("weights: vision tower", parts.vision.times(1.0 / cut.vision_tp));
            }
            if !cut.table_on_host {
                held.add("weights: lookup table", parts.table);
            }
        }
        if stage + 1 == cut.stages.len() {
            held.add("weights: embedding and head", parts.head.times(1.0 / cut.tp));
        }
        let lump_share = 1.0 / (cut.stages.len() as f64 * cut.expert_ranks.max(cut.tp));
        held.add("weights: evenly spread", parts.lump.times(lump_share));
        out.push(held);
    }
    out
}

/// Draft layers as the last stage holds them.
pub fn draft(parts: &Parts, cut: &Cut, kv_heads: u64) -> Held {
    let mut held = Held::default();
    for layer in &parts.mtp {
        add_layer(&mut held, layer, cut, kv_heads);
    }
    if cut.engine == Engine::Sglang && !parts.mtp.is_empty() {
        // SGLang's draft worker loads a table and a head of its own before it shares the target's.
        held.add("weights: embedding and head", parts.embedding.times(1.0 / cut.embedding_tp).plus(parts.head.times(1.0 / cut.tp)));
    }
    held
}

fn add_layer(held: &mut Held, layer: &LayerParts, cut: &Cut, kv_heads: u64) {
    let attention = if cut.attention_whole { 1.0 } else { cut.attention_tp };
    held.add(EXPERTS, layer.experts.times(cut.slots / cut.expert_ranks));
    held.add(ATTENTION_REPLICATED, layer.attention_replicated);
    held.add(ATTENTION, layer.attention.times(1.0 / attention));
    held.add(ATTENTION, layer.kv.times(1.0 / cut.attention_tp.min(kv_heads.max(1) as f64)));
    held.add("weights: absorbed copies of kv_b", Amount { params: 0.0, ..layer.absorbed.times(1.0 / cut.attention_tp) });
    held.add(SHARED, layer.shared.times(1.0 / cut.shared_tp));
    held.add("weights: dense layers", layer.dense.times(1.0 / cut.dense_tp));
    held.add("weights: routers and norms", layer.replicated);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::resolve;
    use std::collections::BTreeMap;

    fn tp(n: u32) -> Cut {
        let n = f64::from(n);
        Cut {
            engine: Engine::Sglang,
            tp: n,
            attention_tp: n,
            expert_ranks: n,
            dense_tp: n,
            shared_tp: n,
            embedding_tp: n,
            vision_tp: 1.0,
            attention_whole: false,
            stages: vec![61],
            draft: false,
            table_on_host: false,
            language_only: false,
            slots: 1.0,
        }
    }

    /// The table of Kimi-K2.5 (INT4) on 8 GPUs, derived from the sources of SGLang 0.5.9.
    #[test]
    fn kimi_on_eight_gpus() {
        let kimi = resolve("moonshotai/Kimi-K2.5", "", &BTreeMap::new(), None);
        let parts = Parts::of(&kimi).expect("built in");
        let held = &held(&parts, &tp(8), 64)[0];
        for (name, gib) in
            [(EXPERTS, 66.45), (ATTENTION_REPLICATED, 1.72), (ATTENTION, 1.22), (SHARED, 0.615), ("weights: vision tower", 0.87)]
        {
            assert!((held.line_gib(name) - gib).abs() < 0.01 * gib + 0.01, "{name}: {}", held.line_gib(name));
        }
        assert!((held.gib() - 71.9).abs() < 0.3, "{}", held.gib());
        let spread = Cut { shared_tp: 1.0, ..tp(8) };
        let grown = super::held(&parts, &spread, 64)[0].gib() - held.gib();
        assert!((grown - 4.307).abs() < 0.01, "{grown}");
    }

    #[test]
    fn stages_follow_the_engines() {
        assert_eq!(stages(61, 4, None), [15, 15, 16, 15]);
        assert_eq!(stages(48, 4, Some("2,16,16,14")), [2, 16, 16, 14]);
        assert_eq!(stages(48, 4, Some("2,16")), [12, 12, 12, 12]);
        assert_eq!(stages(3, 1, None), [3]);
        assert_eq!(stages(5, 3, None), [2, 2, 1]);
    }
}
