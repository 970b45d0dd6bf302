//! vLLM's share of memory: `gpu_memory_utilization` of the card, less weights and the peak of a profiling run; graphs come on top.

use crate::model::{AttentionKind, Model};
use crate::settings::Settings;
use crate::version::Version;

/// The profiling run's parts, GiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Profile {
    /// Outside torch: communicators and libraries that come up after the first snapshot.
    pub outside: f64,
    /// Peak of a forward pass of the largest batch of tokens.
    pub forward: f64,
    /// Peak of sampling for the largest number of sequences.
    pub sampler: f64,
    /// Peak of the multimodal encoder.
    pub encoder: f64,
    /// Workspaces that stay: the MoE backend's, the indexer's, attention's.
    pub workspace: f64,
    /// The estimate of graphs that newer releases subtract.
    pub graphs: f64,
}

impl Profile {
    /// What the budget loses. Forward pass, sampling and encoder run one after another, so the largest counts; the encoder's cache stays.
    pub fn total(&self) -> f64 {
        self.outside + self.forward.max(self.sampler) + self.encoder + self.workspace + self.graphs
    }
}

const GIB: f64 = super::GIB;

/// Bytes of sampling per sequence and vocabulary entry: logits in 16 and 32 bits, sorted values and their indices, probabilities, running sums, masks.
///
/// gpt-oss-120b on 0.11.0 with 1024 sequences loses 7.6 GiB beside weights, which is 36 B; MiniMax-M2.5 (TP4) and Kimi-K2.5 (TP8) in early 2026
/// lose 8 and 3, between which 24 B lie.
fn sampler_bytes(version: &Version) -> f64 {
    if version.at_least("0.13.0") { 24.0 } else { 36.0 }
}

/// Place of a rank in the pipeline: encoders run on the first stage, sampling on the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first stage.
    pub first: bool,
    /// The last stage.
    pub last: bool,
}

/// The profile of a launch on a rank of a stage.
pub fn profile(settings: &Settings, model: &Model, sm: Option<u32>, place: Place) -> Profile {
    let tokens = settings.max_batched_tokens.unwrap_or(8192) as f64;
    let sequences = f64::from(settings.max_num_seqs.max(1)).min(tokens);
    let vocab = model.vocab.unwrap_or(150_000) as f64;
    let hidden = model.hidden.unwrap_or(5120) as f64;
    // Data-parallel engines gather each other's tokens before the experts, unless a dispatching backend is in use.
    let gathered = if settings.dp > 1 && settings.ep > 1 { tokens * f64::from(settings.dp) } else { tokens };
    let routed = routed_bytes(settings, model, hidden);
    Profile {
        outside: outside_gib(settings),
        forward: (tokens * hidden * 2.0 * 12.0 + gathered * hidden * 2.0 * 4.0 + (gathered.min(32_768.0) * routed)) / GIB,
        sampler: if place.last { sequences * vocab * sampler_bytes(&settings.version) / GIB } else { 0.0 },
        encoder: if place.first { encoder_gib(settings, model) } else { 0.0 },
        workspace: workspace_gib(settings, model, sm, tokens, hidden),
        graphs: 0.0,
    }
}

/// Outside torch: libraries, communicators of ranks that reduce, network buffers where hosts take part, the draft's own.
fn outside_gib(settings: &Settings) -> f64 {
    let mut gib = if settings.tp * settings.dp > 1 { 0.8 } else { 0.6 };
    if settings.nodes > 1 {
        gib += 0.7;
    }
    if settings.speculative.is_some() {
        gib += 0.4;
    }
    gib
}

/// Bytes per token of expert activations: inputs permuted to `topk` rows, gate and up, their product.
fn routed_bytes(settings: &Settings, model: &Model, hidden: f64) -> f64 {
    let topk = model.topk.unwrap_or(0) as f64;
    let width = model.moe_intermediate.unwrap_or(0) as f64 / f64::from(settings.moe_tp.max(1));
    topk * (hidden + 3.0 * width) * 2.0
}

/// Encoders are profiled at their largest input: 16,384 tokens in the Qwen-VL classes, 4,096 and less in others. Releases before 0.13 profile several
/// such items (Qwen3-VL-235B on 0.11.0 at TP8 lost 6.8 GiB beside weights).
fn encoder_gib(settings: &Settings, model: &Model) -> f64 {
    if !model.multimodal || settings.language_only {
        return 0.0;
    }
    match (model.class.as_deref().is_some_and(|c| c.starts_with("Qwen")), settings.version.at_least("0.13.0")) {
        (true, false) => 3.5,
        (true, true) => 0.7,
        (false, _) => 0.1,
    }
}

fn workspace_gib(settings: &Settings, model: &Model, sm: Option<u32>, tokens: f64, hidden: f64) -> f64 {
    let mut bytes = 0.0;
    if settings.moe_backend.contains("b12x") {
        // FlashInfer's SM12x MoE keeps 8 bytes for each routed row of inputs and gate-up: GLM-5.1 at TP8 (7.5 GiB beside weights, of which 3
        // remain unexplained without it) and Qwen3.6-35B on 16 GB cards (out of memory with it, fits without) agree.
        let topk = model.topk.unwrap_or(0) as f64;
        let width = 2.0 * model.moe_intermediate.unwrap_or(0) as f64 / f64::from(settings.moe_tp.max(1));
        bytes += tokens * topk * (hidden + width) * 8.0;
    }
    if model.attention == AttentionKind::SparseMla && model.shape.compressed.is_none() {
        // The indexer gathers keys of 40 requests of the longest length, and 512 MiB of scores.
        let longest = settings.max_model_len.or(model.max_positions).unwrap_or(131_072) as f64;
        bytes += longest * 40.0 * 132.0 + 512.0 * 1024.0 * 1024.0;
    }
    if sm.is_some_and(|sm| sm >= 100) && matches!(model.attention, AttentionKind::Gqa | AttentionKind::HybridLinear) {
        // FlashInfer's workspace (VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE).
        bytes += 394.0 * 1024.0 * 1024.0;
    }
    bytes / GIB
}

/// From 0.21.0 on the estimate of graph memory is subtracted; before, only where `VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS` asks for it.
pub fn estimates_graphs(settings: &Settings) -> bool {
    const NAME: &str = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS";
    settings.graphs.enabled
        && !settings.env_off(NAME)
        && (settings.version.at_least("0.21.0") || settings.env_on(NAME) && settings.version.at_least("0.17.0"))
}

/// The estimate: GLM-5.1 (78 layers of 6144, 35 sizes, piecewise and full) 4.8 GiB where capture took 1.2, and 6.0 with three draft tokens where it
/// took 2.3. It is extrapolated from the first graphs' activations, so it goes with the hidden size; more than 6 % of a card was never reported.
pub fn estimated_graphs_gib(settings: &Settings, model: &Model, memory_gib: f64) -> f64 {
    let drafts = if settings.speculative.is_some() { 1.27 / DRAFT_GRAPHS } else { 1.0 };
    let width = model.hidden.unwrap_or(6144) as f64 / 6144.0;
    (4.0 * actual_graphs_gib(settings, model) * drafts * libm::pow(width, 1.5).min(1.3)).min(0.06 * memory_gib)
}

/// Graphs with a draft over graphs without.
const DRAFT_GRAPHS: f64 = 1.9;

/// What capture takes: 1.2 GiB for 70 graphs of 78 layers (GLM-5.1, TP8), 2.3 with three draft tokens.
pub fn actual_graphs_gib(settings: &Settings, model: &Model) -> f64 {
    if !settings.graphs.enabled {
        return 0.0;
    }
    let sets = if full_and_piecewise(&settings.version) && settings.graphs.piecewise { 2.0 } else { 1.0 };
    let graphs = settings.graphs.buckets.len() as f64 * sets;
    let drafts = if settings.speculative.is_some() { DRAFT_GRAPHS } else { 1.0 };
    graphs * model.layers.unwrap_or(60) as f64 / f64::from(settings.pp.max(1)) * 0.225 / 1024.0 * drafts
}

/// From 0.11.0 on, decode batches have full graphs beside piecewise ones.
pub fn full_and_piecewise(version: &Version) -> bool {
    version.at_least("0.11.0")
}
