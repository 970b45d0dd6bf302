//! From a deployment to the command that launches it.
//!
//! A command is written, put to the same check as a pasted one, and given what the check says that it lacks: a share of the memory, a length
//! that fits, a backend. What would make it another deployment is never changed.

mod words;

use crate::catalog::Folder;
use crate::command;
use crate::finding::Change;
use crate::question::{Engine, HardwareText, Question};
use crate::rules;
use crate::verdict::{self, Answer, Starts};
use crate::version::Version;
use moetwin_models::Deployment;
use std::collections::BTreeMap;
use words::Words;

/// How ranks sum what they computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReduce {
    /// As the engine chooses.
    Own,
    /// NCCL.
    Nccl,
    /// A kernel that reads and writes the peers' memory.
    Peer,
}

/// What is to be launched.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Hub id or folder.
    pub model: &'a str,
    /// What is in that folder, where it is at hand.
    pub folder: Option<&'a Folder>,
    /// How it is split.
    pub deployment: &'a Deployment,
    /// Sequences of all ranks.
    pub batch: u32,
    /// Tokens of history a sequence, where they were asked for: the server's requests are then not longer than [`Wanted::room`].
    pub context: Option<u32>,
    /// Tokens that each sequence of the step has in the cache.
    pub tokens: u32,
    /// Positions of the model.
    pub positions: u64,
    /// How ranks sum.
    pub all_reduce: AllReduce,
    /// Whether steps are captured.
    pub graphs: bool,
    /// Whether GPUs access each other's memory.
    pub peer_access: bool,
    /// Whether NCCL's rings are those of a graph file, [`GRAPH_FILE`].
    pub tuned_graph: bool,
    /// The version of an engine that is to be launched; of others the newest known one.
    pub version: Option<(Engine, &'a str)>,
}

/// The name that a command gives NCCL's graph file.
pub const GRAPH_FILE: &str = "nccl-graph.xml";

/// Tokens beside the context that a server must allow for: those of a step and some to generate.
const GENERATED: u64 = 1024;

impl Wanted<'_> {
    /// The version of an engine that is asked about.
    fn version(&self, engine: Engine) -> Version {
        let given = self.version.filter(|(whose, _)| *whose == engine);
        given.map_or_else(|| Version::newest(engine), |(_, text)| Version::parse(engine, text))
    }
    /// Tokens that a request may have: its history and some to generate, within the model's positions.
    pub fn room(&self) -> u64 {
        (u64::from(self.tokens) + GENERATED).min(self.positions.max(1))
    }
    /// Sequences of a rank's attention.
    fn sequences_a_rank(&self) -> u32 {
        self.batch.div_ceil((self.deployment.dp_attention * self.deployment.replicas).max(1)).max(1)
    }
}

/// A command that [`verdict::check`] accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The command.
    pub command: String,
    /// What the engine does otherwise than asked, for want of a flag.
    pub differs: Option<String>,
}

/// Checks that a command is given at most.
const ROUNDS: u32 = 8;
/// Times that the share of memory is raised for a larger cache.
const RAISES: u32 = 2;
const GIB: f64 = (1u64 << 30) as f64;

/// The command with which `engine`, in the version that is wanted or its newest known one, serves what is `want`ed on a machine, checked to start there.
///
/// SGLang: `--tp-size` counts the ranks of a stage, data-parallel attention and expert parallelism divide it, replicas are `--dp-size` without
/// data-parallel attention. vLLM: data-parallel attention is `--data-parallel-size` beside `--tensor-parallel-size`, experts are either all
/// parallel or not at all, context parallelism has a flag, and replicas that share nothing are servers of their own.
///
/// # Errors
/// One sentence: the engine has no such deployment, or it does not start there and no flag beside the deployment's changes that.
pub fn launch(engine: Engine, want: &Wanted<'_>, hardware: &HardwareText) -> Result<Launch, String> {
    let mut words = words::of(engine, want)?;
    let mut accepted: Option<(Words, Answer)> = None;
    let mut raises = 0;
    for _ in 0..ROUNDS {
        let answer = checked(engine, &words, want, hardware)?;
        let now = words.clone();
        if !matches!(answer.starts, Starts::Yes | Starts::Degraded) {
            if !repair(&mut words, &answer, want) || words == now {
                return match accepted {
                    Some((words, answer)) => finished(engine, &words, &answer, want),
                    None => Err(refusal(engine, &answer)),
                };
            }
            continue;
        }
        let more = Cache::of(&answer).and_then(|cache| cache.fraction_for(engine, &answer, want));
        accepted = Some((now, answer));
        let Some(fraction) = more.filter(|_| raises < RAISES) else { break };
        raises += 1;
        words.set(fraction_flag(engine), Some(format!("{fraction:.3}")));
    }
    match accepted {
        Some((words, answer)) => finished(engine, &words, &answer, want),
        None => Err(format!("no command was found that {} starts with", engine.title())),
    }
}

fn fraction_flag(engine: Engine) -> &'static str {
    match engine {
        Engine::Sglang => "--mem-fraction-static",
        Engine::Vllm => "--gpu-memory-utilization",
    }
}

fn checked(engine: Engine, words: &Words, want: &Wanted<'_>, hardware: &HardwareText) -> Result<Answer, String> {
    let question = Question {
        engine,
        version: want.version(engine),
        model: String::new(),
        hardware: hardware.clone(),
        command: words.text(),
        folder: want.folder.cloned(),
        env: BTreeMap::new(),
        model_facts: BTreeMap::new(),
        assumptions: Vec::new(),
    };
    verdict::check(&question).map_err(|e| e.to_string())
}

/// Why a command is not offered.
fn refusal(engine: Engine, answer: &Answer) -> String {
    let becomes = match answer.starts {
        Starts::Hang => "would hang",
        Starts::ServeFails => "starts and fails in service",
        _ => "does not start",
    };
    format!("{} {becomes}: {}", engine.title(), answer.message)
}

/// Makes the first change that removes the fault and leaves the deployment as it is.
fn repair(words: &mut Words, answer: &Answer, want: &Wanted<'_>) -> bool {
    let usable = |fix: &&verdict::CheckedFix| fix.verified && fix.changes.iter().all(|change| leaves(change, want));
    let good = |fix: &&verdict::CheckedFix| matches!(fix.then, Some(Starts::Yes | Starts::Degraded));
    let fixes = || answer.fixes.iter().filter(usable);
    let Some(fix) = fixes().find(good).or_else(|| fixes().next()) else { return false };
    for change in &fix.changes {
        match change {
            Change::Set(flag, value) => words.set(flag, value.clone()),
            Change::Env(name, Some(value)) => words.set_env(name, value),
            _ => {}
        }
    }
    !fix.changes.is_empty()
}

/// Whether what is wanted is the same with a change.
fn leaves(change: &Change, want: &Wanted<'_>) -> bool {
    let (flag, value) = match change {
        Change::Set(flag, value) => (flag.as_str(), value.as_deref()),
        Change::Env(name, Some(_)) if name == "VLLM_ALLREDUCE_USE_SYMM_MEM" => return want.all_reduce != AllReduce::Peer,
        Change::Env(name, Some(_)) => return name.starts_with("VLLM_") || name.starts_with("SGLANG_"),
        _ => return false,
    };
    let least = |n: u64| value.and_then(|v| v.parse::<u64>().ok()).is_some_and(|v| v >= n);
    match flag {
        "--max-model-len" | "--context-length" => least(want.room()),
        "--cuda-graph-max-bs" | "--max-cudagraph-capture-size" => least(u64::from(want.sequences_a_rank())),
        "--max-num-batched-tokens" => least(u64::from(want.sequences_a_rank())),
        "--disable-custom-all-reduce" => want.all_reduce != AllReduce::Peer,
        "--mem-fraction-static"
        | "--gpu-memory-utilization"
        | "--chunked-prefill-size"
        | "--page-size"
        | "--block-size"
        | "--attention-backend"
        | "--moe-runner-backend"
        | "--moe-backend"
        | "--trust-remote-code"
        | "--disable-shared-experts-fusion"
        | "--enforce-disable-flashinfer-allreduce-fusion" => true,
        _ => false,
    }
}

/// The cache of a rank, as the check counts it.
struct Cache {
    pool_gib: f64,
    token_gib: f64,
}

impl Cache {
    /// `None` where the model or the GPU is not known well enough.
    fn of(answer: &Answer) -> Option<Self> {
        let number = |name: &str| answer.numbers.get(name).copied();
        let ranks = f64::from(answer.settings.dcp.max(1));
        let token_gib = number("kv_bytes_per_token_per_gpu")? / ranks / GIB;
        Some(Self { pool_gib: number("kv_gib_per_gpu")?, token_gib }).filter(|c| c.token_gib > 0.0)
    }
    /// GiB that the sequences of a rank lack for `tokens` each.
    fn short_gib(&self, want: &Wanted<'_>, tokens: u64) -> f64 {
        f64::from(want.sequences_a_rank()) * tokens as f64 * self.token_gib - self.pool_gib
    }
    /// The share of memory at which all sequences have their room, where they lack it.
    fn fraction_for(&self, engine: Engine, answer: &Answer, want: &Wanted<'_>) -> Option<f64> {
        let short = self.short_gib(want, want.room());
        let budget = *answer.numbers.get("budget_gib_per_gpu")?;
        let fraction = match engine {
            Engine::Sglang => *answer.numbers.get("mem_fraction_static")?,
            Engine::Vllm => budget / answer.hardware.memory_gib?,
        };
        // States of linear attention share the pool: twice the share at the most.
        let states = if answer.model.shape.linear_value_heads.is_some() { 2.0 } else { 1.0 };
        let raised = libm::ceil((fraction + short * states * fraction / budget) * 1000.0 + 1.0) / 1000.0;
        (short > 0.0 && raised < 1.0).then_some(raised)
    }
}

/// The command, if the step that was asked for fits the cache; and what it does otherwise.
fn finished(engine: Engine, words: &Words, answer: &Answer, want: &Wanted<'_>) -> Result<Launch, String> {
    let command = words.text();
    if let Some(cache) = Cache::of(answer).filter(|c| c.short_gib(want, u64::from(want.tokens)) > 0.0) {
        let (sequences, holds) = (want.sequences_a_rank(), libm::floor(cache.pool_gib / cache.token_gib));
        return Err(format!(
            "{} starts with a cache of {holds:.0} tokens a rank at the most, and {sequences} sequences of {} tokens do not fit it: {command}",
            engine.title(),
            want.tokens
        ));
    }
    Ok(Launch { differs: differs(engine, &command, answer, want)?, command })
}

/// Neither engine has a flag that asks for a peer kernel: their own gate decides.
fn differs(engine: Engine, text: &str, answer: &Answer, want: &Wanted<'_>) -> Result<Option<String>, String> {
    if want.all_reduce != AllReduce::Peer || answer.settings.tp <= 1 {
        return Ok(None);
    }
    let command = command::parse(text, &answer.settings.version).map_err(|e| e.to_string())?;
    let looked_at = rules::Launch { command: &command, settings: &answer.settings, model: &answer.model, hardware: &answer.hardware };
    Ok((!rules::uses_custom_all_reduce(&looked_at)).then(|| {
        format!(
            "{} has no flag that asks for an all-reduce in peer memory on {} GPUs without NVLink between all of them: its own is NCCL's",
            engine.title(),
            answer.settings.tp
        )
    }))
}

#[cfg(test)]
mod tests;
