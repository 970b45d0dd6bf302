//! A fault that a launch runs into, and what would remove it.

use serde::Serialize;
use std::collections::BTreeMap;

/// Figures of an answer by name. The unit is in the name's last word (`weights_gib_per_gpu`).
pub type Numbers = BTreeMap<String, f64>;

/// Part of an engine's start-up in which something happens. The order is SGLang's; a finding's place comes from its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Arguments are read, checked and rewritten.
    Parse,
    /// Process groups, communicators and backends are created.
    Init,
    /// Modules are built and weights loaded.
    Load,
    /// The KV pool is sized and allocated.
    KvAlloc,
    /// CUDA graphs are captured.
    GraphCapture,
    /// First forward passes: profiling, autotuning, the warm-up request.
    Warmup,
    /// Requests of users.
    Serve,
}

impl Phase {
    /// Name in `check --json`.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Parse => "parse",
            Phase::Init => "init",
            Phase::Load => "load",
            Phase::KvAlloc => "kv_alloc",
            Phase::GraphCapture => "graph_capture",
            Phase::Warmup => "warmup",
            Phase::Serve => "serve",
        }
    }
}

/// What sort of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// None.
    Ok,
    /// Memory does not suffice.
    Oom,
    /// No kernel for this GPU, CUDA or quantization.
    UnsupportedArch,
    /// Something is used that was never created.
    MissingInit,
    /// Arguments contradict each other, an implicit default or the model.
    FlagConflict,
    /// A size is not divisible by the ranks that share it.
    Divisibility,
    /// Peer access does not work as advertised.
    P2p,
    /// Ranks wait for ever.
    Hang,
    /// It serves, but slowly.
    Perf,
}

impl Kind {
    /// Name in `check --json`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ok => "ok",
            Kind::Oom => "oom",
            Kind::UnsupportedArch => "unsupported_arch",
            Kind::MissingInit => "missing_init",
            Kind::FlagConflict => "flag_conflict",
            Kind::Divisibility => "divisibility",
            Kind::P2p => "p2p",
            Kind::Hang => "hang",
            Kind::Perf => "perf",
        }
    }
}

/// What becomes of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It does not start.
    Fails,
    /// It waits for ever, or may.
    Hangs,
    /// It starts, and the first real requests fail or answer wrongly.
    ServeFails,
    /// It serves, on a known bad path.
    Degraded,
    /// Nothing is wrong; worth a note.
    Note,
}

/// A fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What becomes of the launch.
    pub outcome: Outcome,
    /// Part of start-up.
    pub phase: Phase,
    /// Sort of fault.
    pub kind: Kind,
    /// Rank on which it shows first, where that matters.
    pub rank: Option<u32>,
    /// Name of the broken rule: words joined by `_`.
    pub invariant: String,
    /// One or two sentences: what fails, where, why.
    pub message: String,
    /// What it follows from, one sentence each.
    pub evidence: Vec<String>,
    /// Where the rule was read.
    pub source: String,
    /// What would remove it, smallest first.
    pub fixes: Vec<Fix>,
    /// Flags or variables of the command that it is about, as written there (`--moe-a2a-backend`).
    pub arguments: Vec<String>,
    /// Figures that belong to it.
    pub numbers: Numbers,
}

impl Finding {
    /// A fault that stops the start.
    pub fn fails(phase: Phase, kind: Kind, invariant: &str, message: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Fails,
            phase,
            kind,
            rank: None,
            invariant: invariant.to_owned(),
            message: message.into(),
            evidence: Vec::new(),
            source: String::new(),
            fixes: Vec::new(),
            arguments: Vec::new(),
            numbers: Numbers::new(),
        }
    }
    /// Sets what becomes of the launch.
    #[must_use]
    pub fn outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }
    /// Adds what it follows from.
    #[must_use]
    pub fn because(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }
    /// Sets where the rule was read.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }
    /// Adds a change that would remove it.
    #[must_use]
    pub fn fix(mut self, fix: Fix) -> Self {
        self.fixes.push(fix);
        self
    }
    /// Adds an argument that it is about.
    #[must_use]
    pub fn argument(mut self, flag: impl Into<String>) -> Self {
        self.arguments.push(flag.into());
        self
    }
    /// Adds a figure.
    #[must_use]
    pub fn number(mut self, name: &str, value: f64) -> Self {
        self.numbers.insert(name.to_owned(), value);
        self
    }
}

/// Something that would remove a fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Fix {
    /// For people: `--disable-custom-all-reduce`.
    pub text: String,
    /// The change of the question, where it can be made by a program: the fix is then tried before it is offered.
    pub changes: Vec<Change>,
}

impl Fix {
    /// A fix in words only.
    pub fn words(text: impl Into<String>) -> Self {
        Self { text: text.into(), changes: Vec::new() }
    }
    /// Sets a flag to a value.
    pub fn set(flag: &str, value: impl std::fmt::Display) -> Self {
        Self { text: format!("{flag} {value}"), changes: vec![Change::Set(flag.to_owned(), Some(value.to_string()))] }
    }
    /// Adds a switch.
    pub fn switch(flag: &str) -> Self {
        Self { text: flag.to_owned(), changes: vec![Change::Set(flag.to_owned(), None)] }
    }
    /// Removes a flag.
    pub fn remove(flag: &str) -> Self {
        Self { text: format!("remove {flag}"), changes: vec![Change::Remove(flag.to_owned())] }
    }
    /// Leaves out a word that belongs to no flag.
    pub fn drop_word(word: &str) -> Self {
        Self { text: format!("remove '{word}'"), changes: vec![Change::Word(word.to_owned())] }
    }
    /// Sets an environment variable.
    pub fn env(name: &str, value: &str) -> Self {
        Self { text: format!("{name}={value}"), changes: vec![Change::Env(name.to_owned(), Some(value.to_owned()))] }
    }
    /// Unsets an environment variable.
    pub fn unset(name: &str) -> Self {
        Self { text: format!("unset {name}"), changes: vec![Change::Env(name.to_owned(), None)] }
    }
    /// Another version of the engine.
    pub fn version(version: &str, why: &str) -> Self {
        Self { text: format!("version {version}: {why}"), changes: vec![Change::Version(version.to_owned())] }
    }
    /// Makes a further change together with this one.
    #[must_use]
    pub fn and(mut self, other: Fix) -> Self {
        self.text = format!("{} and {}", self.text, other.text);
        self.changes.extend(other.changes);
        self
    }
}

/// A change of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A flag gets a value, or, without one, is switched on.
    Set(String, Option<String>),
    /// A flag goes.
    Remove(String),
    /// A word that belongs to no flag goes.
    Word(String),
    /// An environment variable gets a value, or goes.
    Env(String, Option<String>),
    /// The engine gets another version.
    Version(String),
}
