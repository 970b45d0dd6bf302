//! What does not fit, and the smallest change that would make it.

use super::answer::{Ledger, longest};
use super::{GIB, transients};
use crate::finding::{Finding, Fix, Kind, Outcome, Phase};
use crate::hardware::Hardware;
use crate::model::Model;
use crate::question::Engine;
use crate::settings::Settings;
use crate::version::Range;

/// Every fault, in the order of start-up.
pub(super) fn find(settings: &Settings, model: &Model, hardware: &Hardware, ledger: &Ledger) -> Vec<Finding> {
    let mut out = Vec::new();
    out.extend(load(settings, model, hardware, ledger));
    if !out.is_empty() {
        return out;
    }
    out.extend(encoder(settings, hardware, ledger));
    match settings.engine {
        Engine::Sglang => out.extend(sglang_pool(settings, model, ledger)),
        Engine::Vllm => {
            out.extend(outside_budget(settings, ledger));
            out.extend(vllm_pool(settings, model, ledger));
            if out.iter().all(|f| f.outcome == Outcome::Note) {
                out.extend(graphs_beside(settings, ledger));
            }
        }
    }
    out
}

/// Loading itself.
fn load(settings: &Settings, model: &Model, hardware: &Hardware, ledger: &Ledger) -> Option<Finding> {
    let room = ledger.total - 0.4;
    let need = ledger.peak.max(ledger.weights);
    let slack = if ledger.exact { 0.0 } else { 0.05 * need };
    // Unified memory also holds the system and the page cache.
    let room = if hardware.unified { room - 4.0 } else { room };
    if need - slack <= room {
        return None;
    }
    let weights = ledger.weights;
    let online = transients::quantizes_online(settings, model);
    let mut finding = if ledger.peak_reason.is_some() && weights <= room {
        let reason = ledger.peak_reason.clone().unwrap_or_default();
        let unit = if hardware.unified { "unified pool" } else { "GPU" };
        let message = format!(
            "out of memory while loading weights: {reason}, {:.1} GiB on each rank against {:.1} GiB of the {unit}, although the finished weights would take {weights:.1} GiB",
            ledger.peak, ledger.total
        );
        let invariant = if online { "load_peak_fits" } else { "repack_peak_fits" };
        let finding = Finding::fails(Phase::Load, Kind::Oom, invariant, message);
        if online {
            finding.fix(Fix::words("load a checkpoint that is quantized already, without --quantization"))
        } else {
            finding
                .fix(Fix::words("a build with native FP4 kernels for this GPU, which repacks nothing"))
                .fix(Fix::words("two hosts with --tensor-parallel-size 2"))
        }
    } else {
        let message = format!(
            "weights do not fit: the heaviest rank holds {weights:.1} GiB of {:.1} GiB ({:.0} GiB of weights over {} GPUs); context length and batch make no difference",
            ledger.total,
            ledger.checkpoint,
            settings.world()
        );
        Finding::fails(Phase::Load, Kind::Oom, "weights_fit", message).fix(more_gpus(settings, ledger))
    };
    finding = finding.number("peak_load_gib_per_gpu", ledger.peak).number("minimum_gpus", minimum_gpus(settings, ledger));
    Some(finding.source("weights of the checkpoint by layout, against the memory that the driver reports"))
}

/// The fewest GPUs, in powers of two times what is used now, on which weights and 8 % of the card fit.
fn minimum_gpus(settings: &Settings, ledger: &Ledger) -> f64 {
    let mut gpus = f64::from(settings.world().max(1));
    // What does not shrink with the ranks.
    let without_encoder = super::vllm::Profile { encoder: 0.0, encoder_outputs: 0.0, ..ledger.profile };
    let beside = 2.0_f64.max(without_encoder.total());
    let total = ledger.weights.max(if ledger.peak_reason.is_some() { ledger.peak } else { 0.0 }) * gpus;
    while gpus < 65_536.0 && total / gpus + beside > 0.92 * ledger.total {
        gpus *= 2.0;
    }
    gpus
}

fn more_gpus(settings: &Settings, ledger: &Ledger) -> Fix {
    let gpus = minimum_gpus(settings, ledger);
    let flag = if settings.engine == Engine::Vllm { "--tensor-parallel-size" } else { "--tp" };
    let scale = gpus / f64::from(settings.world().max(1));
    let tp = f64::from(settings.tp) * scale;
    Fix::words(format!("at least {gpus:.0} such GPUs ({flag} {tp:.0})"))
}

/// A transient before the pool exists, on memory that nobody limits.
fn encoder(settings: &Settings, hardware: &Hardware, ledger: &Ledger) -> Option<Finding> {
    let transient = ledger.profile.encoder;
    if !hardware.unified
        || settings.engine != Engine::Vllm
        || transient < 16.0
        // The system and the page cache are in the same memory.
        || ledger.weights + ledger.profile.total() < ledger.total - 12.0
    {
        return None;
    }
    let message = format!(
        "the profile run's transient, {transient:.0} GiB above {:.0} GiB of weights, exceeds the unified pool of {:.0} GiB: on unified memory nothing fails in \
         time, the host stops answering, and --gpu-memory-utilization {} is consulted only afterwards",
        ledger.weights, ledger.total, ledger.fraction
    );
    Some(
        Finding::fails(Phase::Warmup, Kind::Oom, "profile_transient_fits", message)
            .fix(Fix::set("--max-num-batched-tokens", 2048))
            .source("vLLM before PR 49760: the profile run has no limit on unified memory"),
    )
}

/// A fraction that leaves nothing beside the pool, or not even the pool.
fn sglang_share(settings: &Settings, model: &Model, ledger: &Ledger) -> Option<Finding> {
    let free_before = ledger.total - ledger.before;
    let left = free_before * (1.0 - ledger.fraction);
    // Half of what graphs, activations and libraries are estimated to take does not even start.
    let headroom = headroom_gib(settings, model);
    if ledger.fraction < 1.0 && left > 0.5 * headroom {
        return None;
    }
    let largest = 1.0 - headroom / free_before;
    let (phase, message) = if ledger.fraction >= 1.0 {
        let message = format!(
            "--mem-fraction-static is the share of the GPU for weights and cache, below 1, and it is {}: the pool would take more than is free",
            ledger.fraction
        );
        (Phase::KvAlloc, message)
    } else {
        let message = format!(
            "--mem-fraction-static {} leaves {left:.1} GiB beside weights and cache, and activations, libraries and the graphs of {} batch sizes take about {headroom:.1} GiB",
            ledger.fraction,
            settings.graphs.buckets.len(),
        );
        (if settings.graphs.enabled { Phase::GraphCapture } else { Phase::Warmup }, message)
    };
    let finding = Finding::fails(phase, Kind::Oom, "fraction_leaves_room_for_graphs", message).argument("--mem-fraction-static");
    let finding = finding.source("model_runner.init_memory_pool: graphs and activations come out of the rest");
    let minimum = super::sglang::minimum_fraction(free_before, free_before - ledger.weights - ledger.workspace);
    let fraction = libm::floor(largest * 100.0) / 100.0;
    Some(if fraction > minimum {
        finding.fix(Fix::set("--mem-fraction-static", fraction))
    } else {
        finding.fix(more_gpus(settings, ledger))
    })
}

fn sglang_pool(settings: &Settings, model: &Model, ledger: &Ledger) -> Option<Finding> {
    if ledger.pool > 0.0 {
        return sglang_share(settings, model, ledger);
    }
    let free_before = ledger.total - ledger.before;
    let draft = if super::answer::sizes_after_draft(settings) { ledger.draft } else { 0.0 };
    let used = ledger.weights + ledger.workspace + draft;
    let minimum = used / free_before;
    let message = format!(
        "the KV pool cannot be sized: weights and buffers take {used:.2} GiB of {free_before:.1} GiB that were free before loading, more than the share of {:.4} \
         that --mem-fraction-static leaves for weights and cache ({:.2} GiB short). The smallest fraction that starts is above {minimum:.4}",
        ledger.fraction, -ledger.pool
    );
    let mut finding = Finding::fails(Phase::KvAlloc, Kind::Oom, "kv_pool_is_positive", message)
        .source("max_total_num_tokens <= 0: model_runner.init_memory_pool; free after loading less total x (1 - fraction)")
        .number("minimum_mem_fraction", minimum)
        .number("kv_gib_per_gpu", ledger.pool);
    if let Some(reason) = &ledger.fraction_reason {
        finding = finding.because(format!("no fraction was given: {reason}"));
    }
    if ledger.pool > -0.5 {
        finding = finding.because("that is nearer than the arithmetic can tell for certain: another build may just start");
    }
    if ledger.workspace > 0.0 {
        let shared = ledger.weights - ledger.plain_weights;
        finding = finding
            .because(format!("the all-to-all backend {} takes a workspace of {:.3} GiB", settings.a2a, ledger.workspace))
            .because(format!("it makes every rank hold whole shared experts: {shared:.3} GiB more than tensor parallelism; routed experts cost the same in either layout"))
            .argument("--moe-a2a-backend");
    }
    if settings.dp_attention {
        finding = finding.because(format!(
            "attention data parallelism repeats attention weights: {:.1} GiB a rank",
            ledger.held.line_gib(super::weights::ATTENTION)
        ));
    }
    let largest = 1.0 - headroom_gib(settings, model) / free_before;
    let try_this = libm::ceil((minimum + 0.02) * 1000.0) / 1000.0;
    if try_this <= largest {
        finding = finding
            .because(format!("fractions between {minimum:.3} and about {largest:.3} leave room for a pool and for activations and graphs"))
            .fix(Fix::set("--mem-fraction-static", try_this));
    } else {
        finding = finding
            .because(format!("no fraction fits: above {minimum:.3} for the pool, below about {largest:.3} for activations and graphs"))
            .fix(more_gpus(settings, ledger));
        if minimum < 0.97 {
            finding = finding.fix(Fix::words(format!(
                "--mem-fraction-static above {minimum:.3} with graphs off and a short context, at the risk of running out while serving"
            )));
        }
    }
    Some(finding)
}

/// What must stay outside the fraction: activations of a chunk and graphs, at the least.
fn headroom_gib(settings: &Settings, model: &Model) -> f64 {
    let graphs = super::vllm::actual_graphs_gib(settings, model);
    let chunk = settings.max_batched_tokens.unwrap_or(8192) as f64;
    let activations = chunk * model.hidden.unwrap_or(5120) as f64 * 2.0 * 16.0 / GIB;
    1.0 + graphs + activations
}

/// Room outside vLLM's budget: graphs and communicators.
fn outside_budget(settings: &Settings, ledger: &Ledger) -> Option<Finding> {
    let outside = ledger.total * (1.0 - ledger.fraction);
    let described = settings.env("NCCL_GRAPH_FILE").is_some_and(|f| !f.is_empty()) && settings.world() > 1;
    let groups = 1.0 + f64::from(u8::from(settings.dcp > 1)) + f64::from(u8::from(settings.ep > 1 && settings.dp > 1));
    // A graph file may ask for every channel: about 1.5 GiB more of buffers a communicator on 8 GPUs (0.95 failed, 0.93 worked on 95.6 GiB).
    let nccl = if described { 1.5 * groups } else { 0.0 };
    let context = 0.8;
    let graphs = if super::vllm::estimates_graphs(settings) { 0.0 } else { ledger.graphs };
    let need = context + nccl + graphs;
    if need <= outside || !described {
        return None;
    }
    let fraction = libm::floor((1.0 - need / ledger.total) * 100.0) / 100.0;
    let message = format!(
        "NCCL cannot allocate its buffers: NCCL_GRAPH_FILE makes it open more channels, about {nccl:.1} GiB, and --gpu-memory-utilization {} leaves {outside:.1} GiB \
         for context, buffers and graphs together ({need:.1} GiB). Weights and cache are not the cause",
        ledger.fraction
    );
    Some(
        Finding::fails(Phase::Init, Kind::Oom, "room_outside_the_budget", message)
            .fix(Fix::set("--gpu-memory-utilization", fraction))
            .fix(Fix::unset("NCCL_GRAPH_FILE"))
            .argument("NCCL_GRAPH_FILE")
            .argument("--gpu-memory-utilization")
            .source("vLLM's budget covers neither communicators nor graphs"),
    )
}

/// Graphs are captured into what the budget leaves, what the profile run has given back and what was estimated for them. A rank's context is
/// outside the budget too.
fn graphs_beside(settings: &Settings, ledger: &Ledger) -> Option<Finding> {
    const CONTEXT_GIB: f64 = 0.5;
    let outside = ledger.total * (1.0 - ledger.fraction);
    let given_back = ledger.profile.peak() + ledger.profile.graphs;
    let room = outside - CONTEXT_GIB + given_back;
    let fixed = settings.kv_cache_memory_bytes.is_some();
    // A tenth and a third of a GiB: what graphs take is known no better.
    if ledger.graphs * 0.9 - 0.33 <= room || fixed || ledger.graphs == 0.0 {
        return None;
    }
    let message = format!(
        "weights and cache fit, but the graphs do not: {} sizes take about {:.1} GiB, and --gpu-memory-utilization {} leaves {outside:.1} GiB of the card, of which the context takes \
         {CONTEXT_GIB}, and {given_back:.1} GiB that the profile run has given back",
        settings.graphs.buckets.len(),
        ledger.graphs,
        ledger.fraction
    );
    let fraction = libm::floor((ledger.fraction - (ledger.graphs - room + 0.4) / ledger.total.max(1.0)) * 100.0) / 100.0;
    let largest = settings.graphs.buckets.get(settings.graphs.buckets.len() / 4).copied().unwrap_or(8);
    Some(
        Finding::fails(Phase::GraphCapture, Kind::Oom, "graphs_fit_beside_the_pool", message)
            .argument("--gpu-memory-utilization")
            .fix(Fix::set("--gpu-memory-utilization", fraction.max(0.1)))
            .fix(Fix::set("--max-cudagraph-capture-size", largest))
            .fix(Fix::switch("--enforce-eager"))
            .source("vllm/v1/worker/gpu_worker.py: capture comes after the pool and is not limited by the budget"),
    )
}

/// Stages whose cache the check counts against the memory of one. From 0.14.0 to 0.16.0 `get_kv_cache_configs` holds the groups of all layers of all
/// stages against the least memory of a rank; before and after, those of each rank against its own (`_project_kv_cache_groups_to_worker`, 0.17.0).
fn checked_stages(settings: &Settings) -> f64 {
    let all = Range::between("0.14.0", "0.17.0").contains(&settings.version);
    if all { f64::from(settings.pp.max(1)) } else { 1.0 }
}

fn vllm_pool(settings: &Settings, model: &Model, ledger: &Ledger) -> Option<Finding> {
    let cost = ledger.cost;
    let length = ledger.length.unwrap_or(0.0);
    let stages = checked_stages(settings);
    let required = cost.map_or(0.0, |c| c.request(length) / GIB) * stages;
    let margin = ledger.margin.min(0.25 * ledger.total);
    if ledger.pool + margin > 0.0 && required <= ledger.pool + margin {
        return (required > ledger.pool || ledger.pool <= 0.0).then(|| close_call(ledger, required));
    }
    let budget = ledger.total * ledger.fraction;
    let profile = ledger.profile.total();
    let workspace = ledger.profile.workspace;
    let weights = ledger.weights + ledger.draft + ledger.workspace;
    let asked = settings.max_model_len.map_or("the model's own length of", |_| "--max-model-len");
    let fits_without = workspace > 0.5 && required <= ledger.pool + workspace + margin && settings.moe_backend.contains("b12x");
    let (phase, message) = if fits_without {
        let message = format!(
            "out of memory in profiling: the {} MoE backend keeps a workspace of {workspace:.1} GiB; weights ({weights:.1} GiB) and cache alone would fit",
            settings.moe_backend
        );
        (Phase::Init, message)
    } else if ledger.pool <= 0.0 {
        let message = format!(
            "no memory is left for the KV cache: {weights:.1} GiB of weights and a profiled peak of {profile:.1} GiB exceed the budget of {budget:.1} GiB \
             ({} of {:.1} GiB)",
            ledger.fraction, ledger.total
        );
        (Phase::KvAlloc, message)
    } else {
        let message = format!(
            "one request of {asked} {length:.0} tokens needs {required:.2} GiB of KV cache {}, and {:.2} GiB are available (budget {budget:.1}, weights \
             {weights:.1}, profiled peak {profile:.1})",
            if stages > 1.0 { "in all stages together, which this version holds against the memory of one rank" } else { "on each rank" },
            ledger.pool
        );
        (Phase::KvAlloc, message)
    };
    let mut finding = Finding::fails(phase, Kind::Oom, "kv_cache_holds_one_request", message)
        .source("check_enough_kv_cache_memory; determine_available_memory")
        .number("required_kv_gib", required);
    if fits_without {
        return Some(finding.fix(Fix::set("--moe-backend", "marlin")).argument("--moe-backend"));
    }
    if let Some(cost) = cost
        && ledger.pool > 0.0
    {
        let length = longest(&cost, ledger.pool / stages * GIB);
        if length >= 256.0 {
            finding = finding.number("suggested_max_model_len", length).fix(Fix::set("--max-model-len", length));
        }
    }
    Some(pool_fixes(settings, model, ledger, required, finding))
}

/// Nearer than the arithmetic can tell: said, and not decided against.
fn close_call(ledger: &Ledger, required: f64) -> Finding {
    let longest = ledger.cost.filter(|_| ledger.pool > 0.0).map(|cost| longest(&cost, ledger.pool * GIB)).filter(|l| *l >= 256.0);
    let safe = longest.map_or(String::new(), |l| format!(": --max-model-len {l:.0} is safe"));
    let message = format!(
        "the KV cache is a close call: one request of full length needs {required:.2} GiB, and {:.2} GiB are predicted, which may be {:.1} GiB too few (profiled \
         peak {:.1}, estimate of graphs {:.1}){safe}",
        ledger.pool.max(0.0),
        ledger.margin.min(0.25 * ledger.total),
        ledger.profile.peak(),
        ledger.profile.graphs
    );
    Finding::fails(Phase::KvAlloc, Kind::Oom, "kv_cache_holds_one_request", message)
        .outcome(Outcome::Note)
        .argument("--max-model-len")
        .source("check_enough_kv_cache_memory; determine_available_memory")
}

fn pool_fixes(settings: &Settings, model: &Model, ledger: &Ledger, required: f64, mut finding: Finding) -> Finding {
    let short = required - ledger.pool;
    let fraction = libm::ceil((ledger.fraction + (short + 0.3) / ledger.total.max(1.0)) * 100.0) / 100.0;
    if fraction <= 0.97 && fraction > ledger.fraction {
        finding = finding.fix(Fix::set("--gpu-memory-utilization", fraction));
    }
    if !super::cache::is_fp8(&settings.kv_dtype) && ledger.pool > 0.0 && required / 2.0 <= ledger.pool && !model.sinks {
        finding = finding.fix(Fix::set("--kv-cache-dtype", "fp8"));
    }
    if ledger.pool <= 0.0 {
        finding = finding.fix(more_gpus(settings, ledger));
    } else if settings.dp > 1 && model.kv_lora.is_none() {
        finding = finding
            .fix(Fix::words(format!("--tensor-parallel-size {} instead of data parallelism, so that KV heads are cut", settings.dp)));
    } else {
        finding = finding.fix(Fix::words("more GPUs for tensor parallelism"));
    }
    finding
}
