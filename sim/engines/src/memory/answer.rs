//! The memory of a launch: ledger, numbers, faults.

use super::cache::{self, Cost};
use super::sglang::{self, Reserve};
use super::transients;
use super::weights::{self, Cut, DRAFT, Held};
use super::{Line, before_load_gib, faults, vllm};
use crate::catalog::{Amount, Parts};
use crate::finding::{Finding, Numbers, Phase};
use crate::hardware::{Hardware, Interconnect};
use crate::model::Model;
use crate::question::Engine;
use crate::settings::Settings;

/// What memory says of a launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The fullest rank's memory, in order of allocation.
    pub table: Vec<Line>,
    /// What does not fit, first phase first.
    pub findings: Vec<Finding>,
    /// Figures, keys as in `check --json`.
    pub numbers: Numbers,
    /// What was taken for granted.
    pub assumptions: Vec<String>,
}

/// What the allocator's blocks add to weights where an engine reports free memory before and after (SGLang): Kimi-K2.5 and V4-Pro take 0.6 % more than
/// by counting. vLLM reports what tensors take: Qwen3-235B 54.92 GiB a rank at TP8 (54.91 by counting), gpt-oss-120b 65.97 (65.9).
const ALLOCATOR: f64 = 1.006;

/// Everything that faults are judged by, GiB a rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ledger {
    pub(super) total: f64,
    pub(super) before: f64,
    pub(super) held: Held,
    /// Target's weights with growth, towers included, host offload taken off.
    pub(super) weights: f64,
    pub(super) draft: f64,
    pub(super) workspace: f64,
    pub(super) peak: f64,
    pub(super) peak_reason: Option<String>,
    /// Weights under tensor parallelism alone.
    pub(super) plain_weights: f64,
    /// Whole checkpoint over all ranks.
    pub(super) checkpoint: f64,
    /// Fraction in effect and how it came about.
    pub(super) fraction: f64,
    pub(super) fraction_reason: Option<String>,
    pub(super) profile: vllm::Profile,
    pub(super) graphs: f64,
    /// The pool; negative where nothing is left for it.
    pub(super) pool: f64,
    /// How far the pool may be off.
    pub(super) error: f64,
    /// By how much it may be short before that is called a fault.
    pub(super) margin: f64,
    pub(super) cost: Option<Cost>,
    /// Longest request that the engine insists on.
    pub(super) length: Option<f64>,
    pub(super) exact: bool,
}

/// The memory of a launch on a machine.
pub fn answer(settings: &Settings, model: &Model, hardware: &Hardware) -> Answer {
    let mut answer = Answer::default();
    let Some(parts) = Parts::of(model) else {
        answer.assumptions.push("memory is not checked: the size of the model is not known".to_owned());
        return answer;
    };
    let cost = cache::cost(settings, model);
    if let Some(cost) = cost {
        let per_token = cost.per_token * f64::from(settings.dcp.max(1));
        answer.numbers.insert(
            "kv_bytes_per_token_per_gpu".into(),
            libm::round(per_token + cost.windowed * f64::from(u8::from(cost.per_token == 0.0))),
        );
    }
    let ledger = ledger(settings, model, hardware, &parts, cost);
    weights_numbers(settings, &ledger, &mut answer);
    if hardware.memory_gib.is_none() {
        answer.assumptions.push("whether it fits is not checked: the GPU's memory is not known".to_owned());
        answer.table = table(settings, &ledger, false);
        return answer;
    }
    pool_numbers(settings, model, &ledger, &mut answer);
    answer.findings = faults::find(settings, model, hardware, &ledger);
    answer.table = table(settings, &ledger, true);
    if !ledger.exact {
        answer.assumptions.push("weights are spread evenly over the ranks: the configuration is not known".to_owned());
    }
    if let Some(reason) = &ledger.fraction_reason {
        answer.assumptions.push(format!("the fraction was not given: {reason}"));
    }
    answer
}

fn ledger(settings: &Settings, model: &Model, hardware: &Hardware, parts: &Parts, cost: Option<Cost>) -> Ledger {
    let cut = Cut::of(settings, model);
    let kv_heads = model.kv_heads.unwrap_or(1);
    let scale = given_scale(model, parts, &cut);
    let slack = if scale == 1.0 && settings.engine == Engine::Sglang { ALLOCATOR } else { 1.0 };
    let growth = transients::growth(settings, model, hardware);
    let scaled = |held: Held| {
        let lines = held.lines.into_iter().map(|(n, a)| (n, Amount { params: a.params * scale, bytes: a.bytes * scale * slack }));
        Held { lines: lines.collect() }
    };
    let stages: Vec<Held> = weights::held(parts, &cut, kv_heads).into_iter().map(|h| transients::grown(scaled(h), growth)).collect();
    let weights_of_stages: Vec<f64> = stages.iter().map(Held::gib).collect();
    let heaviest = stages.into_iter().max_by(|a, b| a.gib().total_cmp(&b.gib())).unwrap_or_default();
    let plain =
        weights::held(parts, &cut.plain(), kv_heads).into_iter().map(|h| transients::grown(scaled(h), growth).gib()).fold(0.0, f64::max);
    let draft = draft_gib(settings, model, parts, &cut, kv_heads, growth) * scale;
    let (peak, peak_reason) = transients::load_peak(settings, model, hardware, parts, &cut, &heaviest);
    let final_weights = if transients::quantizes_online(settings, model) { halved(&heaviest) } else { heaviest.gib() };
    let mut ledger = Ledger {
        total: hardware.memory_gib.unwrap_or(0.0),
        before: before_load_gib(settings.world(), hardware.interconnect == Interconnect::Nvlink),
        weights: (final_weights - settings.cpu_offload_gib).max(0.0),
        draft,
        workspace: transients::all_to_all_gib(settings, model),
        peak: peak - settings.cpu_offload_gib.min(peak),
        peak_reason,
        plain_weights: plain,
        checkpoint: parts.total().bytes * scale / super::GIB,
        held: heaviest,
        cost,
        exact: parts.exact,
        ..Ledger::default()
    };
    match settings.engine {
        Engine::Sglang => sglang_pool(settings, model, hardware, &mut ledger),
        Engine::Vllm => vllm_pool(settings, model, hardware, &weights_of_stages, &mut ledger),
    }
    ledger
}

/// 16-bit projections that become 8-bit; embedding, head and norms stay.
fn halved(held: &Held) -> f64 {
    let stays = |name: &str| name.contains("embedding") || name.contains("norms") || name.contains("vision") || name.contains("absorbed");
    held.lines.iter().map(|(name, a)| if stays(name) { a.bytes } else { a.params }).sum::<f64>() / super::GIB
}

/// A checkpoint's size as the question gives it, over that of the parts.
fn given_scale(model: &Model, parts: &Parts, cut: &Cut) -> f64 {
    let mtp = parts.mtp.iter().map(|l| l.total()).fold(Amount::default(), Amount::plus).bytes;
    let own = parts.total().bytes;
    let given = |name: &str| model.given.get(name).copied().filter(|g| *g > 0.0);
    let (known, counted) = if let Some(gib) = given("weights_without_table_gib").or(given("weights_gib")) {
        (gib, own + if cut.draft { mtp } else { 0.0 })
    } else if let Some(gib) = given("checkpoint_gib") {
        (gib, own + mtp + parts.table.bytes)
    } else {
        return 1.0;
    };
    if counted > 0.0 { known * super::GIB / counted } else { 1.0 }
}

fn draft_gib(settings: &Settings, model: &Model, parts: &Parts, cut: &Cut, kv_heads: u64, growth: transients::Growth) -> f64 {
    let Some(speculative) = &settings.speculative else { return 0.0 };
    if cut.draft {
        return transients::grown(weights::draft(parts, cut, kv_heads), growth).gib();
    }
    if speculative.draft_model.is_none() {
        return 0.0;
    }
    // An EAGLE head: a projection of three hidden vectors, one dense layer of usual width, a head of 32,000 entries, in 16 bit.
    let hidden = model.hidden.unwrap_or(5120) as f64;
    (hidden * hidden * (3.0 + 4.0 + 9.0) + 32_000.0 * hidden) * 2.0 / f64::from(settings.tp.max(1)) / super::GIB
}

fn sglang_pool(settings: &Settings, model: &Model, hardware: &Hardware, ledger: &mut Ledger) {
    let reserve = Reserve {
        gpu_mib: hardware.memory_gib.map(|g| g * 1024.0),
        tp: settings.tp,
        pp: settings.pp,
        dp: if settings.dp_attention { settings.dp } else { 1 },
        chunk: settings.max_batched_tokens.unwrap_or(settings.max_prefill_tokens),
        graph_max_batch: settings.graphs.max_batch,
        speculative: settings.speculative.as_ref().map(|s| s.method.clone()),
        vision: model.shape.vision.filter(|_| model.multimodal && !settings.language_only),
        deepep: settings.a2a_active && settings.a2a.starts_with("deepep"),
        mla: model.kv_lora.is_some(),
    };
    match settings.fraction_given {
        Some(fraction) => ledger.fraction = fraction,
        None => {
            let (fraction, reason) = sglang::default_fraction(&reserve, &settings.version);
            ledger.fraction = fraction;
            ledger.fraction_reason = Some(format!("--mem-fraction-static is {fraction:.4}: {reason}"));
        }
    }
    let free_before = ledger.total - ledger.before;
    let mut free_after = free_before - ledger.weights - ledger.workspace;
    if sizes_after_draft(settings) {
        free_after -= ledger.draft;
    }
    ledger.pool = sglang::pool_gib(free_before, free_after, ledger.fraction);
    if model.shape.linear_value_heads.is_some() {
        // States of linear attention take 0.9 of what the keys get (--mamba-full-memory-ratio).
        ledger.pool /= 1.9;
    }
    ledger.graphs = vllm::actual_graphs_gib(settings, model);
    ledger.error = 0.3
        + if ledger.exact { 0.02 } else { 0.08 } * ledger.weights
        + if model.shape.compressed.is_some() { 0.3 * ledger.pool.abs() } else { 0.0 };
}

/// Since mid-2026 SGLang loads the draft before it sizes the pool; before, the draft came out of the remainder.
pub(super) fn sizes_after_draft(settings: &Settings) -> bool {
    settings.version.day >= 20_260_601
}

fn vllm_pool(settings: &Settings, model: &Model, hardware: &Hardware, stages: &[f64], ledger: &mut Ledger) {
    ledger.fraction = settings.fraction_given.unwrap_or(if settings.version.at_least("0.25.0") { 0.92 } else { 0.9 });
    if settings.fraction_given.is_none() {
        ledger.fraction_reason = Some(format!("--gpu-memory-utilization is {} by default", ledger.fraction));
    }
    let budget = ledger.total * ledger.fraction;
    ledger.pool = f64::INFINITY;
    let heaviest = stages.iter().copied().fold(0.0, f64::max);
    for (stage, weights) in stages.iter().enumerate() {
        let place = vllm::Place { first: stage == 0, last: stage + 1 == stages.len() };
        let profile = stage_profile(settings, model, hardware, ledger.total, place);
        // Offload and online quantization are counted for the heaviest stage.
        let saved = heaviest - ledger.weights;
        let draft = if place.last { ledger.draft } else { 0.0 };
        let pool = budget - (weights - saved) - draft - ledger.workspace - profile.total();
        if pool < ledger.pool {
            ledger.pool = pool;
            ledger.profile = profile;
        }
    }
    if let Some(bytes) = settings.kv_cache_memory_bytes {
        ledger.pool = bytes as f64 / super::GIB;
    }
    ledger.graphs = vllm::actual_graphs_gib(settings, model);
    ledger.length = settings.max_model_len.or(model.max_positions).map(|l| l as f64);
    let guess = 1.0 + if ledger.exact { 0.02 } else { 0.08 } * ledger.weights;
    let doubts = vllm_doubts(settings, model, ledger);
    ledger.error = guess + doubts;
    ledger.margin = 0.25 * guess + doubts;
}

/// What a rank of a stage loses to profiling.
fn stage_profile(settings: &Settings, model: &Model, hardware: &Hardware, memory_gib: f64, place: vllm::Place) -> vllm::Profile {
    let mut profile = vllm::profile(settings, model, hardware.sm, place);
    if vllm::estimates_graphs(settings) {
        profile.graphs = vllm::estimated_graphs_gib(settings, model, memory_gib);
    }
    if hardware.unified {
        // What the driver calls free shrinks with the host's own memory.
        profile.outside += 3.2;
    }
    if let Some(gib) = unified_encoder_gib(settings, model, hardware).filter(|_| place.first) {
        profile.encoder = gib;
    }
    profile
}

/// What may not be there at all: the encoder's peak, the estimate of graphs, 16-bit attention in an NVFP4 checkpoint whose exclusions are not known,
/// the padding of compressed caches.
fn vllm_doubts(settings: &Settings, model: &Model, ledger: &Ledger) -> f64 {
    let attention = ledger.held.line_gib(weights::ATTENTION) + ledger.held.line_gib(weights::ATTENTION_REPLICATED);
    let given = ["weights_without_table_gib", "weights_gib", "checkpoint_gib"].iter().any(|name| model.given.contains_key(*name));
    let covered = model.weights.method == "nvfp4"
        && !model.weights.weight_only
        && !given
        && model.spec.as_ref().is_none_or(|s| !s.name.contains("nvfp4"));
    let cache = if model.shape.compressed.is_some() { 0.3 * ledger.pool.abs() } else { 0.0 };
    let encoder = if settings.language_only { 0.0 } else { ledger.profile.encoder.min(1.0) };
    // The starts that activations were fitted to had 16,384 tokens a step at most.
    let many = settings.max_batched_tokens.is_some_and(|tokens| tokens > 16_384);
    let forward = if many { 0.3 * ledger.profile.forward } else { 0.0 };
    cache + encoder + forward + ledger.profile.graphs / 2.0 + if covered { 0.7 * attention } else { 0.0 }
}

/// The encoder's transient on unified memory before 0.24 (PR 49760): the allocator never fails there, so it keeps what it has freed. A tower whose
/// attention writes its scores out (16 heads, 32-bit, scores and softmax, 280 tokens of 3 x 3 patches an image) then holds every image's.
fn unified_encoder_gib(settings: &Settings, model: &Model, hardware: &Hardware) -> Option<f64> {
    if !(hardware.unified && model.shape.eager_vision) || settings.language_only || settings.version.at_least("0.24.0") {
        return None;
    }
    let images = libm::ceil(settings.max_batched_tokens.unwrap_or(8192) as f64 / 280.0);
    let patches = 280.0 * 9.0;
    Some(images * patches * patches * 16.0 * 4.0 * 5.0 / super::GIB)
}

fn weights_numbers(settings: &Settings, ledger: &Ledger, answer: &mut Answer) {
    let weights = ledger.weights + if settings.engine == Engine::Vllm { ledger.draft } else { 0.0 };
    let numbers = &mut answer.numbers;
    let mut put = |name: &str, value: f64| numbers.insert(name.to_owned(), value);
    put("weights_gib_per_gpu", weights);
    put("weights_gb_per_gpu", weights * super::GIB / 1e9);
    put("final_weights_gib", weights);
    put("peak_load_gib_per_gpu", ledger.peak);
    if settings.pp > 1 {
        put("heaviest_stage_weights_gib", weights);
    }
    if ledger.draft > 0.0 {
        put("draft_weights_gib_per_gpu", ledger.draft);
    }
    if ledger.workspace > 0.0 {
        put("a2a_workspace_gib_per_gpu", ledger.workspace);
    }
    if settings.ep > 1 {
        put("ep_minus_tp_gb_per_gpu", ledger.weights + ledger.workspace - ledger.plain_weights);
    }
}

fn pool_numbers(settings: &Settings, model: &Model, ledger: &Ledger, answer: &mut Answer) {
    let numbers = &mut answer.numbers;
    let mut put = |name: &str, value: f64| numbers.insert(name.to_owned(), value);
    if settings.engine == Engine::Sglang {
        put("mem_fraction_static", ledger.fraction);
        let free_before = ledger.total - ledger.before;
        let draft = if sizes_after_draft(settings) { ledger.draft } else { 0.0 };
        put("minimum_mem_fraction", sglang::minimum_fraction(free_before, free_before - ledger.weights - ledger.workspace - draft));
        put("free_after_load_gib", free_before - ledger.weights - ledger.workspace);
        put("budget_gib_per_gpu", free_before * ledger.fraction);
    } else {
        put("budget_gib_per_gpu", ledger.total * ledger.fraction);
        let outside = 1.6 + ledger.graphs;
        put("total_used_gb_per_gpu", (ledger.total * ledger.fraction + outside).min(ledger.total) * super::GIB / 1e9);
    }
    if ledger.graphs > 0.0 {
        put("graph_gib_per_gpu", ledger.graphs);
    }
    if ledger.profile.graphs > 0.0 {
        put("graph_estimate_gib", ledger.profile.graphs);
    }
    let certain = ledger.pool > 0.0 && ledger.error < 0.35 * ledger.pool;
    if ledger.pool > 0.0 {
        put("kv_gib_per_gpu", ledger.pool);
    }
    let Some(cost) = ledger.cost else { return };
    let pool = ledger.pool * super::GIB;
    let length = ledger.length.unwrap_or_else(|| model.max_positions.unwrap_or(32_768) as f64);
    if certain && let Some(tokens) = tokens(settings, &cost, pool, length) {
        put("kv_tokens", tokens);
    }
    if pool > 0.0 && cost.request(length) > 0.0 {
        // Requests of the longest length at once, as vLLM prints it.
        put("max_concurrency", pool / cost.request(length));
    }
    if settings.engine == Engine::Vllm {
        let required = cost.request(length);
        put("required_kv_gib", required / super::GIB);
        if pool > 0.0 && required > pool {
            put("suggested_max_model_len", longest(&cost, pool));
        }
    }
}

/// Tokens of the pool as the engine reports them: by requests of the longest length where some layers do not keep every token.
pub(super) fn tokens(settings: &Settings, cost: &Cost, pool: f64, length: f64) -> Option<f64> {
    let tokens =
        if cost.hybrid() && settings.engine == Engine::Vllm { pool / cost.request(length) * length } else { pool / cost.per_token };
    let page = f64::from(settings.page_size.max(1));
    let tokens = libm::floor(tokens / page) * page;
    let capped = settings.max_total_tokens.map_or(tokens, |cap| tokens.min(cap as f64));
    (capped.is_finite() && capped > 0.0).then_some(capped)
}

/// The longest request that fits, rounded down as people write it.
pub(super) fn longest(cost: &Cost, pool: f64) -> f64 {
    let length = cost.longest(pool);
    libm::floor(length / 16.0) * 16.0
}

fn table(settings: &Settings, ledger: &Ledger, known: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    if known {
        lines.push(Line::new(Phase::Init, "CUDA context, libraries, communicators", ledger.before));
    }
    lines.extend(ledger.held.lines.iter().map(|(name, amount)| Line::new(Phase::Load, *name, amount.bytes / super::GIB)));
    let mut add = |phase, name: &str, gib: f64, transient| {
        if gib > 0.0 {
            lines.push(Line { transient, ..Line::new(phase, name, gib) });
        }
    };
    add(Phase::Load, DRAFT, ledger.draft, false);
    add(Phase::Load, "all-to-all workspace", ledger.workspace, false);
    add(Phase::Load, "loading beyond the weights", ledger.peak - ledger.held.gib(), true);
    if settings.engine == Engine::Vllm && known {
        add(Phase::KvAlloc, "profiled peak of a forward pass and sampling", ledger.profile.forward.max(ledger.profile.sampler), true);
        add(Phase::KvAlloc, "profiled encoder", ledger.profile.encoder, true);
        add(Phase::KvAlloc, "workspaces of backends", ledger.profile.workspace, false);
        add(Phase::KvAlloc, "estimate of graphs", ledger.profile.graphs, true);
    }
    if known {
        add(Phase::KvAlloc, "KV pool", ledger.pool, false);
        add(Phase::GraphCapture, "captured graphs", ledger.graphs, false);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;
    use crate::finding::Outcome;

    /// Published starts: what was logged, and how near the ledger comes.
    #[test]
    fn logged_figures_are_reproduced() {
        let mut wrong = Vec::new();
        for case in cases::LOGGED {
            let answer = case.answer();
            for &(name, logged, tolerance) in case.logged {
                let got = answer.numbers.get(name).copied().unwrap_or(f64::NAN);
                if got.is_nan() || (got / logged - 1.0).abs() > tolerance {
                    wrong.push(format!("{}: {name} {got:.4} of {logged}\n{}", case.name, shown(&answer)));
                }
            }
            let phase = answer.findings.iter().find(|f| f.outcome != Outcome::Note).map(|f| f.phase);
            if phase != case.fails_at {
                wrong.push(format!(
                    "{}: fails at {phase:?}, not {:?}: {:?}\n{}",
                    case.name,
                    case.fails_at,
                    answer.findings.first(),
                    shown(&answer)
                ));
            }
        }
        assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n\n"));
    }

    fn shown(answer: &Answer) -> String {
        let lines: Vec<String> = answer
            .table
            .iter()
            .map(|l| format!("{:?} {} {:.2}{}", l.phase, l.name, l.gib, if l.transient { " (transient)" } else { "" }))
            .collect();
        format!("  {}\n  {:?}", lines.join("; "), answer.numbers)
    }
}
