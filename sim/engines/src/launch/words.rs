//! The words of a launch command.

use super::{AllReduce, GRAPH_FILE, Wanted};
use crate::flags;
use crate::question::Engine;
use crate::version::Version;
use moetwin_models::{AllToAll, DType, Deployment};
use std::fmt::Display;

/// A launch command in parts, so that a flag can be given another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Words {
    engine: Engine,
    env: Vec<(String, String)>,
    start: String,
    flags: Vec<(String, Option<String>)>,
}

impl Words {
    fn new(engine: Engine, start: String) -> Self {
        Self { engine, env: Vec::new(), start, flags: Vec::new() }
    }
    /// Gives a flag a value, in its place where it is there already, by the name that the newest version known takes.
    pub(super) fn set(&mut self, flag: &str, value: Option<String>) {
        let flag = flags::find(self.engine, flag).map_or(flag, |f| f.name_in(&Version::newest(self.engine)));
        match self.flags.iter_mut().find(|(name, _)| name == flag) {
            Some(found) => found.1 = value,
            None => self.flags.push((flag.to_owned(), value)),
        }
    }
    /// Gives a variable of the environment a value.
    pub(super) fn set_env(&mut self, name: &str, value: &str) {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
    }
    fn put(&mut self, flag: &str, value: impl Display) {
        self.set(flag, Some(value.to_string()));
    }
    fn put_above_one(&mut self, flag: &str, value: u32) {
        if value > 1 {
            self.put(flag, value);
        }
    }
    fn switch(&mut self, on: bool, flag: &str) {
        if on {
            self.set(flag, None);
        }
    }
    /// As a shell takes it.
    pub(super) fn text(&self) -> String {
        let env = self.env.iter().map(|(name, value)| format!("{name}={value}"));
        let flags = self.flags.iter().map(|(flag, value)| value.as_ref().map_or_else(|| flag.clone(), |v| format!("{flag} {v}")));
        env.chain([self.start.clone()]).chain(flags).collect::<Vec<_>>().join(" ")
    }
}

/// A path or hub id as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=./:,+@%".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// The command before it is known whether it starts; an error says what the engine does not have.
pub(super) fn of(engine: Engine, want: &Wanted<'_>) -> Result<Words, String> {
    let d = want.deployment;
    let title = engine.title();
    if d.placement.is_some() {
        return Err(format!("{title} takes no placement of experts from a launch command"));
    }
    if d.a2a == AllToAll::Nccl {
        return Err(format!("{title} has no all-to-all of experts over NCCL"));
    }
    let mut words = match engine {
        Engine::Sglang => sglang(d, want)?,
        Engine::Vllm => vllm(d, want)?,
    };
    if !want.peer_access {
        words.set_env("NCCL_P2P_DISABLE", "1");
    }
    if want.tuned_graph && d.ranks() > 1 {
        words.set_env("NCCL_GRAPH_FILE", GRAPH_FILE);
    }
    words.switch(d.tp > 1 && (want.all_reduce == AllReduce::Nccl || !want.peer_access), "--disable-custom-all-reduce");
    Ok(words)
}

fn sglang(d: &Deployment, want: &Wanted<'_>) -> Result<Words, String> {
    if d.dcp > 1 {
        return Err("no decode context parallelism is known of SGLang".to_owned());
    }
    if d.replicas > 1 && d.dp_attention > 1 {
        return Err("one flag of SGLang says both replicas and data-parallel attention, so they exclude each other".to_owned());
    }
    let mut words = Words::new(Engine::Sglang, format!("python -m sglang.launch_server --model-path {}", quoted(want.model)));
    words.put("--tp-size", d.tp);
    words.put_above_one("--pp-size", d.pp);
    words.put_above_one("--dp-size", d.dp_attention.max(d.replicas));
    words.switch(d.dp_attention > 1, "--enable-dp-attention");
    words.put_above_one("--ep-size", d.ep);
    match d.a2a {
        AllToAll::None | AllToAll::Nccl => {}
        AllToAll::Flashinfer => words.put("--moe-a2a-backend", "flashinfer"),
        AllToAll::Deepep => words.put("--moe-a2a-backend", "deepep"),
    }
    if d.kv_dtype == DType::Fp8 {
        words.put("--kv-cache-dtype", "fp8_e4m3");
    }
    // The engine divides the requests of all ranks by the ranks of data-parallel attention; every replica takes the whole number.
    words.put("--max-running-requests", want.sequences_a_rank() * d.dp_attention);
    if want.graphs {
        words.put("--cuda-graph-max-bs", want.sequences_a_rank());
    } else {
        words.switch(true, "--disable-cuda-graph");
    }
    if want.context.is_some() {
        words.put("--context-length", want.room());
    }
    Ok(words)
}

fn vllm(d: &Deployment, want: &Wanted<'_>) -> Result<Words, String> {
    if d.ep != 1 && d.ep != d.tp {
        return Err(format!("vLLM has whole experts on all {} ranks of a stage or on none, not in {} parts", d.tp, d.ep));
    }
    if d.replicas > 1 {
        let each = match d.tp * d.pp {
            1 => "1 GPU".to_owned(),
            n => format!("{n} GPUs"),
        };
        return Err(format!(
            "vLLM's data-parallel ranks share the experts, so whole replicas are {} servers, each with the command of --replicas 1 on {each} of its own",
            d.replicas
        ));
    }
    let mut words = Words::new(Engine::Vllm, format!("vllm serve {}", quoted(want.model)));
    words.put("--tensor-parallel-size", d.tp / d.dp_attention.max(1));
    words.put_above_one("--pipeline-parallel-size", d.pp);
    words.put_above_one("--data-parallel-size", d.dp_attention);
    words.put_above_one("--decode-context-parallel-size", d.dcp);
    words.switch(d.ep > 1, "--enable-expert-parallel");
    match d.a2a {
        AllToAll::None | AllToAll::Nccl => {}
        AllToAll::Flashinfer => words.put("--all2all-backend", "flashinfer_all2allv"),
        AllToAll::Deepep => words.put("--all2all-backend", "deepep_low_latency"),
    }
    if d.kv_dtype == DType::Fp8 {
        words.put("--kv-cache-dtype", "fp8");
    }
    // Every data-parallel rank is an engine with requests of its own.
    words.put("--max-num-seqs", want.sequences_a_rank());
    words.switch(!want.graphs, "--enforce-eager");
    if want.context.is_some() {
        words.put("--max-model-len", want.room());
    }
    Ok(words)
}
