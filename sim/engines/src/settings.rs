//! A launch after all defaults and rewrites: what the engine really runs with.

use crate::question::Engine;
use crate::version::Version;
use std::collections::BTreeMap;

/// CUDA graphs of a launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graphs {
    /// Decode passes are captured.
    pub enabled: bool,
    /// Piecewise graphs of prefill or mixed batches are captured as well.
    pub piecewise: bool,
    /// Batch sizes that are captured, ascending.
    pub buckets: Vec<u32>,
    /// The largest as given or defaulted, before filtering.
    pub max_batch: u32,
}

/// Speculative decoding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Speculative {
    /// `EAGLE`, `EAGLE3`, `NEXTN`, `STANDALONE`, `NGRAM`; `mtp`, `eagle`, `ngram`, `draft_model`, `dspark`.
    pub method: String,
    /// Draft steps (SGLang).
    pub steps: u32,
    /// Branches per step (SGLang).
    pub topk: u32,
    /// Tokens verified in a step beyond the certain one (vLLM's `num_speculative_tokens`; SGLang's draft tokens less one).
    pub draft_tokens: u32,
    /// Path of the draft model, where one is given.
    pub draft_model: Option<String>,
}

/// A resolved launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The engine.
    pub engine: Engine,
    /// Its version.
    pub version: Version,
    /// Tensor-parallel ranks (SGLang: of a stage, attention data parallelism included).
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Data-parallel ranks: vLLM's engines, SGLang's replicas or attention groups.
    pub dp: u32,
    /// SGLang: attention is data parallel inside `tp`. vLLM: never.
    pub dp_attention: bool,
    /// Expert-parallel ranks in effect, after rewrites; 1 where experts are split by width.
    pub ep: u32,
    /// Ranks that share one expert's width.
    pub moe_tp: u32,
    /// Ranks that share the width of dense layers (SGLang's `--moe-dense-tp-size`).
    pub dense_tp: u32,
    /// Decode context parallelism.
    pub dcp: u32,
    /// Hosts.
    pub nodes: u32,
    /// All-to-all backend as given or defaulted, in the engine's word; `none` where there is none.
    pub a2a: String,
    /// Whether the all-to-all backend is really used.
    pub a2a_active: bool,
    /// `auto`, `normal` or `low_latency`.
    pub deepep_mode: String,
    /// Expert load balancing.
    pub eplb: bool,
    /// Redundant experts.
    pub redundant_experts: u32,
    /// Attention backend in effect.
    pub attention_backend: String,
    /// MoE runner (SGLang) or backend (vLLM) in effect; `auto` where the choice is unknown.
    pub moe_backend: String,
    /// Quantization in effect, in the engine's word.
    pub quantization: Option<String>,
    /// Weights are quantized while they are loaded, from 16-bit ones.
    pub online_quantization: bool,
    /// Element type of weights and activations: `bfloat16`, `float16`, `auto`.
    pub dtype: String,
    /// Element type of the KV cache in the engine's word: `auto`, `fp8_e4m3`, `fp8`, `bf16`.
    pub kv_dtype: String,
    /// Tokens of a KV page (SGLang) or block (vLLM).
    pub page_size: u32,
    /// `--mem-fraction-static` or `--gpu-memory-utilization` as given.
    pub fraction_given: Option<f64>,
    /// Longest sequence as given; `None` is the model's.
    pub max_model_len: Option<u64>,
    /// Sequences at once, given or defaulted.
    pub max_num_seqs: u32,
    /// Whether the number above was given.
    pub max_num_seqs_given: bool,
    /// vLLM's batched tokens, SGLang's chunk of a prefill (0 or less: not chunked, as `None`).
    pub max_batched_tokens: Option<u64>,
    /// SGLang's `--max-prefill-tokens`.
    pub max_prefill_tokens: u64,
    /// SGLang's `--max-total-tokens`.
    pub max_total_tokens: Option<u64>,
    /// vLLM's `--kv-cache-memory-bytes`.
    pub kv_cache_memory_bytes: Option<u64>,
    /// GiB of weights kept on the host.
    pub cpu_offload_gib: f64,
    /// CUDA graphs.
    pub graphs: Graphs,
    /// Speculative decoding.
    pub speculative: Option<Speculative>,
    /// `null`, `prefill` or `decode`.
    pub disaggregation: Option<String>,
    /// The engine's own peer all-reduce is not switched off.
    pub custom_all_reduce: bool,
    /// Shared experts are fused into the routed ones where the model allows it.
    pub shared_experts_fusion: bool,
    /// Only the language part of a multimodal model is loaded.
    pub language_only: bool,
    /// Prompts may hold no videos.
    pub without_videos: bool,
    /// Every flag as given, by its canonical name (`--tensor-parallel-size`); a switch is `true`.
    pub flags: BTreeMap<String, String>,
    /// The environment: the question's and the command's.
    pub env: BTreeMap<String, String>,
    /// What defaults and rewrites set, in order: who wrote what last.
    pub writes: Vec<Write>,
    /// What was assumed.
    pub assumptions: Vec<String>,
}

/// A value that a default or a rewrite set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The setting: `ep`, `quantization`.
    pub field: &'static str,
    /// Its new value.
    pub value: String,
    /// Who wrote it, and why.
    pub by: String,
}

impl Settings {
    /// GPUs in use: ranks of all groups.
    pub fn world(&self) -> u32 {
        match self.engine {
            Engine::Sglang if self.dp_attention => self.tp * self.pp,
            _ => self.tp * self.pp * self.dp,
        }
    }
    /// Ranks that share the attention heads.
    pub fn attention_tp(&self) -> u32 {
        if self.dp_attention { (self.tp / self.dp.max(1)).max(1) } else { self.tp }
    }
    /// A variable of the environment.
    pub fn env(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str)
    }
    /// Whether a variable is set to something that means yes.
    pub fn env_on(&self, name: &str) -> bool {
        self.env(name).is_some_and(|v| matches!(v.to_lowercase().as_str(), "1" | "true" | "yes" | "on"))
    }
    /// Whether a variable is set to something that means no.
    pub fn env_off(&self, name: &str) -> bool {
        self.env(name).is_some_and(|v| matches!(v.to_lowercase().as_str(), "0" | "false" | "no" | "off"))
    }
    /// A flag as given.
    pub fn flag(&self, name: &str) -> Option<&str> {
        self.flags.get(name).map(String::as_str)
    }
    /// Whether a flag was given.
    pub fn has(&self, name: &str) -> bool {
        self.flags.contains_key(name)
    }
    /// Records and returns the new value of a setting.
    pub fn wrote(&mut self, field: &'static str, value: impl std::fmt::Display, by: impl Into<String>) {
        self.writes.push(Write { field, value: value.to_string(), by: by.into() });
    }
}
