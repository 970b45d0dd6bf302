//! Lines that engines print while they start.

use super::{Allocation, StartUp};
use crate::finding::Phase;
use crate::question::Engine;
use regex::Regex;
use std::sync::LazyLock;

type Effect = fn(&mut StartUp, &[f64]);

/// A line's shape, what it says, and how far start-up has come when it is printed.
struct Pattern {
    regex: Regex,
    /// A word without which the expression need not run.
    hint: &'static str,
    engine: Option<Engine>,
    reached: Option<Phase>,
    effect: Effect,
}

pub(super) struct Patterns {
    all: Vec<Pattern>,
    version: [(Engine, Regex); 2],
}

const SGLANG: Option<Engine> = Some(Engine::Sglang);
const VLLM: Option<Engine> = Some(Engine::Vllm);

type Shape = (&'static str, &'static str, Option<Engine>, Option<Phase>, Effect);

/// Numbers are captured in order; engines write GB or GiB for the same unit, with or without thousands separators.
const SHAPES: &[Shape] = &[
    ("Load weight begin", r"Load weight begin\..*avail mem=([\d.]+) GB", SGLANG, Some(Phase::Load), |s, n| {
        least(&mut s.free_before_gib, n)
    }),
    ("Load weight end", r"Load weight end\..*avail mem=([\d.]+) GB(?:, mem usage=([\d.]+) GB)?", SGLANG, Some(Phase::Load), |s, n| {
        least(&mut s.free_after_gib, n);
        most(&mut s.weights_gib, n.get(1..).unwrap_or_default());
    }),
    ("KV Cache is allocated", r"KV Cache is allocated\..*#tokens: ([\d,]+)", SGLANG, Some(Phase::KvAlloc), |s, n| {
        least(&mut s.kv_tokens, n)
    }),
    ("KV Cache is allocated", r"KV size: ([\d.]+) GB", SGLANG, None, |s, n| least(&mut s.kv_gib, n)),
    ("K size", r"K size: ([\d.]+) GB, V size: ([\d.]+) GB", SGLANG, None, |s, n| least(&mut s.kv_gib, &[n.iter().sum()])),
    ("max_total_num_tokens", r"max_total_num_tokens=([\d,]+)", SGLANG, Some(Phase::KvAlloc), |s, n| least(&mut s.kv_tokens, n)),
    ("Capture cuda graph begin", r"Capture cuda graph begin", SGLANG, Some(Phase::GraphCapture), |_, _| {}),
    (
        "Capture cuda graph end",
        r"Capture cuda graph end\..*mem usage=([\d.]+) GB(?:\. avail mem=([\d.]+) GB)?",
        SGLANG,
        Some(Phase::GraphCapture),
        |s, n| {
            most(&mut s.graphs_gib, n);
            least(&mut s.free_at_end_gib, n.get(1..).unwrap_or_default());
        },
    ),
    ("mem_fraction_static", r"mem_fraction_static=([\d.]+)", SGLANG, Some(Phase::Parse), |s, n| {
        s.fraction = n.first().copied().or(s.fraction)
    }),
    ("Init torch distributed", r"Init torch distributed (?:begin|ends)", SGLANG, Some(Phase::Init), |_, _| {}),
    ("fired up and ready", r"The server is fired up and ready to roll", SGLANG, Some(Phase::Serve), |s, _| s.ready = true),
    ("nccl==", r"vLLM is using nccl==", VLLM, Some(Phase::Init), |_, _| {}),
    ("Starting to load model", r"Starting to load model", VLLM, Some(Phase::Load), |_, _| {}),
    ("odel loading took", r"odel loading took ([\d.]+) (?:GiB|GB)", VLLM, Some(Phase::Load), |s, n| most(&mut s.weights_gib, n)),
    ("Available KV cache memory", r"Available KV cache memory: (-?[\d.]+) GiB", VLLM, Some(Phase::KvAlloc), |s, n| least(&mut s.kv_gib, n)),
    ("GPU KV cache size", r"GPU KV cache size: ([\d,]+) tokens", VLLM, Some(Phase::KvAlloc), |s, n| least(&mut s.kv_tokens, n)),
    (
        "KV cache is needed",
        r"\(?([\d.]+) GiB KV cache is needed, which is larger than the available KV cache memory \(?([\d.]+) GiB",
        VLLM,
        None,
        |s, n| {
            most(&mut s.required_kv_gib, n);
            least(&mut s.kv_gib, n.get(1..).unwrap_or_default());
        },
    ),
    ("maximum model length is", r"estimated maximum model length is ([\d,]+)", VLLM, None, |s, n| least(&mut s.suggested_max_model_len, n)),
    ("Capturing", r"Capturing (?:CUDA|cudagraphs|the model for CUDA)", VLLM, Some(Phase::GraphCapture), |_, _| {}),
    ("Graph capturing finished", r"Graph capturing finished in .* took (-?[\d.]+) GiB", VLLM, Some(Phase::GraphCapture), |s, n| {
        most(&mut s.graphs_gib, n)
    }),
    ("gpu_memory_utilization", r"gpu_memory_utilization['\x22]?[=:] ?([\d.]+)", VLLM, None, |s, n| {
        s.fraction = n.first().copied().or(s.fraction)
    }),
    ("startup complete", r"Application startup complete", None, Some(Phase::Serve), |s, _| s.ready |= s.engine != SGLANG),
    // Where the functions of a traceback live.
    ("sglang/", r"File .*/sglang/(?:srt|launch_server|cli)", SGLANG, None, |_, _| {}),
    ("vllm/", r"File .*/vllm/(?:v1|engine|entrypoints|model_executor|config|worker|executor|distributed|platforms)", VLLM, None, |_, _| {}),
    ("Tried to allocate", r"Tried to allocate ([\d.]+) ([KMG])iB", None, None, |s, n| allocation(s, n)),
    ("of which", r"total capacity of ([\d.]+) GiB of which ([\d.]+) ([KMG])iB is free", None, None, |s, n| room(s, n)),
];

impl Patterns {
    pub(super) fn get() -> &'static Self {
        static ALL: LazyLock<Patterns> = LazyLock::new(|| {
            let compiled = |text: &str| Regex::new(text).unwrap_or_else(|error| panic!("a pattern of the log reader is broken: {error}"));
            let all = SHAPES
                .iter()
                .map(|&(hint, text, engine, reached, effect)| Pattern { regex: compiled(text), hint, engine, reached, effect })
                .collect();
            let version = [
                (
                    Engine::Vllm,
                    compiled(r"vLLM (?:API server )?(?:engine )?[Vv]?ersion:? ?v?(\d+\.\d+[\w.+]*)|V1 LLM engine \(v(\d+\.\d+[\w.+]*)\)"),
                ),
                (Engine::Sglang, compiled(r"sglang(?: version)?[:= ]+v?(\d+\.\d+\.\d+[\w.]*)")),
            ];
            Patterns { all, version }
        });
        &ALL
    }

    /// Takes what a line says.
    pub(super) fn apply(&self, line: &str, out: &mut StartUp) {
        for pattern in self.all.iter().filter(|p| line.contains(p.hint)) {
            let Some(found) = pattern.regex.captures(line) else { continue };
            let numbers: Vec<f64> = found.iter().skip(1).flatten().filter_map(|m| number(m.as_str())).collect();
            if let Some(engine) = pattern.engine {
                out.engine.get_or_insert(engine);
            }
            if out.reached < pattern.reached {
                out.reached = pattern.reached;
            }
            (pattern.effect)(out, &numbers);
        }
        if out.version.is_none() && (line.contains("ersion") || line.contains("V1 LLM engine") || line.contains("sglang")) {
            for (engine, regex) in &self.version {
                if let Some(found) = regex.captures(line)
                    && let Some(version) = found.iter().skip(1).flatten().next()
                {
                    out.version = Some(version.as_str().to_owned());
                    out.engine.get_or_insert(*engine);
                    return;
                }
            }
        }
    }
}

/// A number, or the factor of a unit's letter to GiB.
fn number(text: &str) -> Option<f64> {
    match text {
        "K" => Some(1.0 / (1024.0 * 1024.0)),
        "M" => Some(1.0 / 1024.0),
        "G" => Some(1.0),
        _ => text.replace(',', "").trim_end_matches('.').parse().ok().filter(|n: &f64| n.is_finite()),
    }
}

fn least(slot: &mut Option<f64>, numbers: &[f64]) {
    if let Some(&n) = numbers.first() {
        *slot = Some(slot.map_or(n, |old| old.min(n)));
    }
}

fn most(slot: &mut Option<f64>, numbers: &[f64]) {
    if let Some(&n) = numbers.first() {
        *slot = Some(slot.map_or(n, |old| old.max(n)));
    }
}

fn allocation(out: &mut StartUp, numbers: &[f64]) {
    if let [asked, unit] = numbers {
        out.allocation.get_or_insert(Allocation { asked_gib: asked * unit, free_gib: None, total_gib: None });
    }
}

fn room(out: &mut StartUp, numbers: &[f64]) {
    if let (Some(allocation), [total, free, unit]) = (&mut out.allocation, numbers)
        && allocation.total_gib.is_none()
    {
        allocation.total_gib = Some(*total);
        allocation.free_gib = Some(free * unit);
    }
}
