//! The memory ledger: every byte a rank holds, by start-up phase and by line. It sizes the real arena and the simulated one.

mod workspace;

pub use workspace::{WorkspaceError, all_to_all_workspace};

use crate::program::{Action, Command, GroupId, Place, Program, RankProgram};
use moetwin_kernels::launch::one_shot::window_bytes;
use moetwin_models::{Graph, ModelSpec, Op, RankId, TensorId, TensorKind, WeightRole};
use serde::Serialize;
use std::collections::BTreeMap;

/// A start-up phase, in order. Each phase holds what the earlier ones allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPhase {
    /// Context, communicators and weights.
    Load,
    /// The KV pool.
    KvAlloc,
    /// Arena and captured graphs.
    GraphCapture,
}

impl MemoryPhase {
    /// Every phase, in order.
    pub const ALL: [MemoryPhase; 3] = [MemoryPhase::Load, MemoryPhase::KvAlloc, MemoryPhase::GraphCapture];
}

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The phase that allocates it.
    pub phase: MemoryPhase,
    /// What it is.
    pub name: &'static str,
    /// Bytes.
    pub bytes: u64,
    /// Whether only the phase itself holds it.
    pub transient: bool,
}

/// What one rank holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankLedger {
    /// The rank.
    pub rank: RankId,
    /// Lines in allocation order.
    pub lines: Vec<Line>,
}

/// What every rank holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// One entry a rank.
    pub ranks: Vec<RankLedger>,
    /// What the figures take for granted, for people.
    pub assumptions: Vec<String>,
}

/// A rank that runs out of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {} runs out of memory in phase {phase:?}: {line} needs {need_bytes} bytes, {free_bytes} of {capacity_bytes} are left", .rank.0)]
pub struct OutOfMemory {
    /// The rank.
    pub rank: RankId,
    /// The phase.
    pub phase: MemoryPhase,
    /// The line that no longer fits.
    pub line: &'static str,
    /// Its bytes.
    pub need_bytes: u64,
    /// Bytes left before it.
    pub free_bytes: u64,
    /// Bytes of the GPU.
    pub capacity_bytes: u64,
}

/// What the ledger must know beside the program.
#[derive(Clone, Debug)]
pub struct LedgerOptions {
    /// Batch buckets captured, 0 without graphs.
    pub captured_buckets: u32,
    /// NCCL channels of a communicator on this machine.
    pub channels: u32,
    /// KV bytes reserved beyond what the step's sequences need.
    pub spare_kv_bytes: u64,
}

/// Device memory gone before the first weight is loaded: CUDA context, cuBLAS, loaded modules. The origin-story box had 94 of 95.6 GiB
/// free after its process groups came up (facts on SGLang's memory log); communicator buffers are counted apart.
const CONTEXT_BYTES: u64 = 3 << 29;
/// NCCL's buffers per channel and peer connection: Simple 4 MiB, LL 512 KiB (NCCL 2.30 defaults; LL128 shares LL's order of size and is off on PCIe).
const CONNECTION_BYTES: u64 = (4 << 20) + (512 << 10);
/// A ring sends to one peer and receives from another.
const CONNECTIONS_PER_CHANNEL: u64 = 2;
/// A captured kernel node's share of the graph pool: GLM-5.1 on 8 GPUs showed 1.2 GiB for 51 graphs of 78 layers of about 16 kernels.
const CAPTURED_NODE_BYTES: u64 = 20 << 10;

/// Builds the ledger of a program.
pub fn ledger(program: &Program, spec: &ModelSpec, options: &LedgerOptions) -> Result<Ledger, WorkspaceError> {
    let workspace_bytes = all_to_all_workspace(&program.graph, spec)?;
    let ranks = (0..program.graph.deployment.ranks()).map(RankId);
    let ranks = ranks.map(|rank| RankLedger { rank, lines: rank_lines(program, spec, options, workspace_bytes, rank) }).collect();
    let assumptions = vec![
        format!("{:.1} GiB a GPU for the CUDA context and libraries", gib(CONTEXT_BYTES)),
        format!("{} KiB of graph pool for each captured kernel", CAPTURED_NODE_BYTES >> 10),
    ];
    Ok(Ledger { ranks, assumptions })
}

fn rank_lines(program: &Program, spec: &ModelSpec, options: &LedgerOptions, workspace_bytes: u64, rank: RankId) -> Vec<Line> {
    use MemoryPhase::{GraphCapture, KvAlloc, Load};
    let rp = &program.ranks[rank];
    let mut lines = Vec::new();
    let mut add = |phase, name, bytes, transient| {
        if bytes > 0 {
            lines.push(Line { phase, name, bytes, transient });
        }
    };
    add(Load, "CUDA context and libraries", CONTEXT_BYTES, false);
    let memberships = program.groups.iter().filter(|(_, g)| g.ranks.contains(&rank)).count() as u64;
    add(Load, "communicator buffers", memberships * u64::from(options.channels) * CONNECTIONS_PER_CHANNEL * CONNECTION_BYTES, false);
    add(Load, "windows of one-shot sums", program.groups.ids().map(|group| own_window_bytes(program, group, rank)).sum(), false);
    let mut weights: BTreeMap<WeightGroup, u64> = BTreeMap::new();
    let mut largest = 0;
    for (_, buffer) in rp.buffers.iter().filter(|(_, b)| b.place == Place::Weight) {
        if let TensorKind::Weight(w) = program.graph.tensors[buffer.tensor].kind {
            *weights.entry(weight_group(w.role)).or_default() += buffer.bytes;
            largest = largest.max(buffer.bytes);
        }
    }
    for (group, bytes) in weights {
        add(Load, group.name(), bytes, false);
    }
    add(Load, "absorbed copies of kv_b", absorbed_copies_bytes(&program.graph, rp.buffers.iter().map(|(_, b)| (b.tensor, b.bytes))), false);
    for module in &spec.outside_graph {
        add(Load, "modules outside the graph (vision tower)", module.bytes_per_rank, false);
    }
    add(Load, "all-to-all workspace", workspace_bytes, false);
    add(Load, "load staging: the largest weight once more", largest, true);
    let kv: u64 = rp.buffers.iter().filter(|(_, b)| b.place == Place::KvPool).map(|(_, b)| b.bytes).sum();
    add(KvAlloc, "KV pool", kv + options.spare_kv_bytes, false);
    add(KvAlloc, "state of linear attention", state_bytes(&program.graph, rp, rank), false);
    add(GraphCapture, "activations arena", rp.arena_bytes, false);
    add(GraphCapture, "captured graphs", u64::from(options.captured_buckets) * rp.commands.len() as u64 * CAPTURED_NODE_BYTES, false);
    lines
}

/// A rank's window in a group whose sums are fused with norms: only our one-shot kernel does so, and it needs one.
fn own_window_bytes(program: &Program, group: GroupId, rank: RankId) -> u64 {
    let fused = |c: &Command| matches!(program.graph.nodes[c.id.node].op, Op::AllReduceAddRmsNorm { .. });
    let of_group = |c: &Command| matches!(c.action, Action::Collective { group: g, .. } if g == group);
    let needs = program.ranks[rank].commands.iter().any(|c| of_group(c) && fused(c));
    if needs { window_bytes(program.groups[group].ranks.len()) } else { 0 }
}

/// What a rank keeps of its sequences beside the KV pool.
fn state_bytes(graph: &Graph, rp: &RankProgram, rank: RankId) -> u64 {
    let sequences = graph.deployment.attention_sequences(&graph.step, rank).len() as u64;
    let nodes = rp.commands.iter().map(|c| c.id.node).filter(|n| matches!(graph.nodes[*n].op, Op::LinearAttention { .. }));
    // Lowering has cut every operand of the rank's commands.
    let bytes = nodes.map(|n| moetwin_kernels::cost::state_bytes(graph, n, rank).unwrap_or(0));
    bytes.fold(0u64, u64::saturating_add).saturating_mul(sequences)
}

/// What a draft model adds on each of its ranks: its own weights, its KV pool and its activations. `shared` weights are the target's.
pub fn draft_lines(program: &Program, shared: &[WeightRole], options: &LedgerOptions) -> Vec<(RankId, Vec<Line>)> {
    use MemoryPhase::{GraphCapture, KvAlloc, Load};
    let mut all = Vec::new();
    for (rank, rp) in program.ranks.iter() {
        let bytes = |place: Place| -> u64 {
            let own = |t: TensorId| !matches!(program.graph.tensors[t].kind, TensorKind::Weight(w) if shared.contains(&w.role));
            rp.buffers.iter().filter(|(_, b)| b.place == place && own(b.tensor)).map(|(_, b)| b.bytes).sum()
        };
        let graphs = u64::from(options.captured_buckets) * rp.commands.len() as u64 * CAPTURED_NODE_BYTES;
        let lines = [
            (Load, "draft: weights", bytes(Place::Weight)),
            (KvAlloc, "draft: KV pool", bytes(Place::KvPool)),
            (GraphCapture, "draft: activations and graphs", rp.arena_bytes + graphs),
        ];
        let lines = lines.into_iter().filter(|(_, _, bytes)| *bytes > 0);
        all.push((rank, lines.map(|(phase, name, bytes)| Line { phase, name, bytes, transient: false }).collect()));
    }
    all
}

/// Engines keep, beside `kv_b` for prefill, per-head copies of its two halves for absorbed decode.
fn absorbed_copies_bytes(graph: &Graph, buffers: impl Iterator<Item = (TensorId, u64)>) -> u64 {
    buffers
        .filter(|(t, _)| matches!(graph.tensors[*t].kind, TensorKind::Weight(w) if w.role == WeightRole::KvB))
        .map(|(_, bytes)| bytes)
        .sum()
}

/// Lines that weights are summed into.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WeightGroup {
    Experts,
    AttentionReplicated,
    AttentionSharded,
    Shared,
    Dense,
    Router,
    EmbeddingHead,
    Norms,
}

impl WeightGroup {
    fn name(self) -> &'static str {
        match self {
            WeightGroup::Experts => "weights: routed experts",
            WeightGroup::AttentionReplicated => "weights: attention, replicated",
            WeightGroup::AttentionSharded => "weights: attention, sharded",
            WeightGroup::Shared => "weights: shared experts",
            WeightGroup::Dense => "weights: dense layers",
            WeightGroup::Router => "weights: router",
            WeightGroup::EmbeddingHead => "weights: embedding and head",
            WeightGroup::Norms => "weights: norms",
        }
    }
}

fn weight_group(role: WeightRole) -> WeightGroup {
    use WeightRole as R;
    match role {
        R::Embedding | R::LmHead => WeightGroup::EmbeddingHead,
        R::FinalNorm | R::InputNorm | R::PostAttentionNorm | R::QaNorm | R::KvaNorm | R::QNorm | R::KNorm => WeightGroup::Norms,
        R::QaKva | R::Kva | R::QaKvaBias => WeightGroup::AttentionReplicated,
        R::Qkv | R::QkvBias | R::Sinks | R::QDirect | R::Qb | R::KvB | R::O | R::OBias | R::Other(_) => WeightGroup::AttentionSharded,
        R::DenseGateUp | R::DenseGateUpBias | R::DenseDown | R::DenseDownBias => WeightGroup::Dense,
        R::Router | R::RouterBias | R::CorrectionBias => WeightGroup::Router,
        R::ExpertsGateUp | R::ExpertsGateUpBias | R::ExpertsDown | R::ExpertsDownBias => WeightGroup::Experts,
        R::SharedGateUp | R::SharedGateUpBias | R::SharedDown | R::SharedDownBias | R::SharedGate => WeightGroup::Shared,
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

impl RankLedger {
    /// Bytes held at the worst moment of a phase.
    pub fn phase_bytes(&self, phase: MemoryPhase) -> u64 {
        self.held(phase).map(|l| l.bytes).sum()
    }
    /// Bytes held at the worst moment of start-up.
    pub fn peak_bytes(&self) -> u64 {
        MemoryPhase::ALL.into_iter().map(|phase| self.phase_bytes(phase)).max().unwrap_or(0)
    }
    /// Lines held in a phase.
    pub fn held(&self, phase: MemoryPhase) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |l| l.phase <= phase && (!l.transient || l.phase == phase))
    }
    /// Bytes of weights: every line that starts with `weights:`, modules outside the graph and absorbed copies.
    pub fn weight_bytes(&self) -> u64 {
        let is_weight = |name: &str| name.starts_with("weights:") || name.starts_with("modules outside") || name.starts_with("absorbed");
        self.lines.iter().filter(|l| is_weight(l.name)).map(|l| l.bytes).sum()
    }
    /// Bytes of one line.
    pub fn line_bytes(&self, name: &str) -> u64 {
        self.lines.iter().filter(|l| l.name == name).map(|l| l.bytes).sum()
    }
}

impl Ledger {
    /// The first rank and line that do not fit GPUs of `capacity_bytes`.
    pub fn check(&self, capacity_bytes: u64) -> Result<(), OutOfMemory> {
        for phase in [MemoryPhase::Load, MemoryPhase::KvAlloc, MemoryPhase::GraphCapture] {
            for r in &self.ranks {
                let mut used = 0;
                for line in r.held(phase) {
                    if used + line.bytes > capacity_bytes {
                        let free_bytes = capacity_bytes - used;
                        return Err(OutOfMemory {
                            rank: r.rank,
                            phase,
                            line: line.name,
                            need_bytes: line.bytes,
                            free_bytes,
                            capacity_bytes,
                        });
                    }
                    used += line.bytes;
                }
            }
        }
        Ok(())
    }
}
