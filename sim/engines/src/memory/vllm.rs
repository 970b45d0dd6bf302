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
    /// The encoder's outputs, which stay while the decoder is profiled.
    pub encoder_outputs: f64,
    /// Workspaces that stay: the MoE backend's, the indexer's, attention's.
    pub workspace: f64,
    /// The estimate of graphs that newer releases subtract.
    pub graphs: f64,
}

impl Profile {
    /// What the budget loses. Encoder, forward pass and sampling run one after another, so the largest counts; the encoder's outputs stay.
    pub fn total(&self) -> f64 {
        self.outside + self.peak() + self.workspace + self.graphs
    }
    /// The largest of what runs one after another.
    pub fn peak(&self) -> f64 {
        self.encoder.max(self.encoder_outputs + self.forward.max(self.sampler))
    }
}

const GIB: f64 = super::GIB;

/// Bytes of sampling per sequence and vocabulary entry.
///
/// Before 0.13: logits in 16 and 32 bits, sorted values and their indices, probabilities, running sums, masks: gpt-oss-120b with 1024 sequences loses
/// 7.4 GiB beside weights on 0.10.1 and 7.6 on 0.11.0, which is 36 B; ranks that gather the logits hold them once more as gathered and once as
/// rearranged. From 0.17 on a Triton kernel masks in place (`topk_topp_sampler.py`: `logits.shape[0] >= 8`): logits in 16 and 32 bits, probabilities
/// and noise; Llama-3-8B with 1024 sequences peaks at 1.44 GiB on 0.29, which is 12 B. Between the two, MiniMax-M2.5 (TP4) lost 8 GiB and Kimi-K2.5
/// (TP8, a command that is not known to the last flag) 3: 26 B lie between.
fn sampler_bytes(version: &Version, tp: u32) -> f64 {
    match (version.at_least("0.17.0"), version.at_least("0.13.0")) {
        (true, _) => 12.0,
        (false, true) => 26.0,
        (false, false) => 36.0 + if tp > 1 { 4.0 } else { 0.0 },
    }
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
        sampler: if place.last { sequences * vocab * sampler_bytes(&settings.version, settings.tp) / GIB } else { 0.0 },
        encoder: if place.first { encoder_gib(settings, model) } else { 0.0 },
        encoder_outputs: if place.first { encoder_gib(settings, model) / 2.0 } else { 0.0 },
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

/// Encoders are profiled at their largest input. The Qwen-VL classes take an image of 16,384 tokens; before 0.13 they take a video as long as the
/// context, at most 114,688 tokens ("Encoder cache will be initialized with a budget of 114688 tokens"). A token costs its outputs (the hidden size
/// and three more of the deep stack, in 16 bits: half) and as much for the tower's activations: Qwen3-VL-235B at TP8 and 100,000 tokens lost 6.4 GiB,
/// 64 KB a token of 4096 values. Others take 4,096 tokens and less.
fn encoder_gib(settings: &Settings, model: &Model) -> f64 {
    if !model.multimodal || settings.language_only {
        return 0.0;
    }
    if !model.class.as_deref().is_some_and(|c| c.starts_with("Qwen")) {
        return 0.1;
    }
    let videos = !settings.version.at_least("0.13.0") && !settings.without_videos;
    let longest = settings.max_model_len.or(model.max_positions).unwrap_or(32_768);
    let tokens = (if videos { longest.clamp(16_384, 114_688) } else { 16_384 }) as f64;
    tokens * 64.0e3 * (model.hidden.unwrap_or(4096) as f64 / 4096.0) / GIB
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

/// Graphs that are captured: piecewise ones of every size, and full ones of the sizes that a decode step can have.
fn graphs(settings: &Settings) -> f64 {
    let buckets = &settings.graphs.buckets;
    let piecewise = if settings.graphs.piecewise { buckets.len() } else { 0 };
    let drafts = settings.speculative.as_ref().map_or(0, |s| s.draft_tokens);
    let decode = settings.max_num_seqs.saturating_mul(1 + drafts);
    let full = match (full_and_piecewise(&settings.version), settings.graphs.piecewise) {
        (true, true) => buckets.iter().filter(|size| **size <= decode).count(),
        (_, false) => buckets.len(),
        (false, true) => 0,
    };
    (piecewise + full) as f64
}

/// Whether collectives are captured with every layer: their buffers are most of what a graph holds.
fn captures_collectives(settings: &Settings) -> bool {
    settings.tp * settings.dp > 1
}

/// The estimate, extrapolated from the second graph of each kind to all of them, MiB a layer of a graph. One GPU: 0.17 (Qwen3-8B, 86 graphs of 36 layers:
/// 0.52 GiB) and less (Qwen3-Coder-Next, 90 of 48: 0.26). With collectives 1.36 at a hidden size of 6144 (GLM-5.1, 46 graphs of 78 layers: 4.77 GiB), 0.83 at
/// 3072 (MiniMax-M2.7 on two GB10, 102 of 62: 5.1 GiB), 0.35 in dense models (Qwen3.6-27B on two and four RTX 3090). More than 7.5 % of a card is rare.
pub fn estimated_graphs_gib(settings: &Settings, model: &Model, memory_gib: f64) -> f64 {
    let width = model.hidden.unwrap_or(6144) as f64 / 1024.0;
    let per_layer_mib = match (captures_collectives(settings), model.moe) {
        (false, _) => 0.15,
        (true, false) => 0.35,
        (true, true) => (0.29 + 0.175 * width).min(0.27 * width),
    };
    (graphs(settings) * layers_of_a_stage(settings, model) * per_layer_mib / 1024.0).min(0.075 * memory_gib)
}

fn layers_of_a_stage(settings: &Settings, model: &Model) -> f64 {
    model.layers.unwrap_or(60) as f64 / f64::from(settings.pp.max(1))
}

/// What capture takes, MiB a layer of a graph: 0.35 with collectives (GLM-5.1: 1.22 GiB for 46 graphs of 78 layers, Qwen3-VL-235B on 4 L40S: 3.45 for 102
/// of 94) and a quarter more with drafts (2.39 for 70 of 79), 0.09 on one GPU (Llama-3-8B: 0.23 for 86 of 32).
pub fn actual_graphs_gib(settings: &Settings, model: &Model) -> f64 {
    if !settings.graphs.enabled {
        return 0.0;
    }
    let drafts = if settings.speculative.is_some() { 1.25 } else { 1.0 };
    let per_layer_mib = if captures_collectives(settings) { 0.35 } else { 0.09 };
    graphs(settings) * layers_of_a_stage(settings, model) * per_layer_mib / 1024.0 * drafts
}

/// From 0.11.0 on, decode batches have full graphs beside piecewise ones.
pub fn full_and_piecewise(version: &Version) -> bool {
    version.at_least("0.11.0")
}
