//! Why a graph cannot be spread over a deployment.

use super::{context, split};
use crate::deployment::{AllToAll, Axis, Deployment};
use crate::graph::Graph;
use crate::op::Op;
use crate::{Dim, WeightFormat};
use std::fmt;

/// The most ranks of a deployment; far above any machine, and low enough that nothing derived from it overflows.
pub(super) const MOST_RANKS: u64 = 1 << 16;

/// Everything that keeps a graph from being spread over a deployment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", list(.faults))]
pub struct ShardError {
    /// The faults, the deployment's own first.
    pub faults: Vec<ShardFault>,
}

fn list(faults: &[ShardFault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardFault {
    /// A size of the deployment is zero.
    #[error("{0} is 0, the least is 1")]
    Zero(&'static str),
    /// More ranks than any table can hold.
    #[error("tp x pp x replicas makes {0} ranks, the most is {MOST_RANKS}")]
    TooManyRanks(u64),
    /// A size does not divide the ranks it shares.
    #[error("{what} {value} does not divide {of} {whole}; legal: {}", values(.legal))]
    NotADivisor {
        /// Flag.
        what: &'static str,
        /// Its value.
        value: u32,
        /// What it must divide.
        of: &'static str,
        /// Its value.
        whole: u32,
        /// The divisors.
        legal: Vec<u32>,
    },
    /// Fewer layers than stages.
    #[error("{layers} layers cannot fill {pp} pipeline stages; legal pp: 1 to {}", .layers.max(&1))]
    Stages {
        /// Layers of the graph.
        layers: u32,
        /// Stages.
        pp: u32,
    },
    /// An all-to-all sends tokens to ranks that hold whole experts.
    #[error("all-to-all {} needs every expert whole on one rank, that is ep equal to tp; ep is {ep} and tp is {tp}", a2a_name(.a2a))]
    AllToAll {
        /// Backend.
        a2a: AllToAll,
        /// Expert-parallel ranks.
        ep: u32,
        /// Ranks of a stage.
        tp: u32,
    },
    /// The expert placement is not one of this model's.
    #[error("expert placement: {0}")]
    Placement(String),
    /// Decode context parallelism needs ranks that would hold the same cache rows.
    #[error(
        "dcp {dcp} deals the cache out over ranks that hold the same key-value heads, but {heads} heads on tp / dp-attention {group} ranks \
         leave {} of them; legal dcp: {}",
        .group / .heads.max(&1),
        values(.legal)
    )]
    ContextHeads {
        /// Ranks asked for.
        dcp: u32,
        /// Key-value heads.
        heads: u32,
        /// Ranks of an attention group.
        group: u32,
        /// What would do.
        legal: Vec<u32>,
    },
    /// A form of attention that decode context parallelism does not have.
    #[error("decode context parallelism has no form of {what}; legal dcp: 1")]
    ContextForm {
        /// The form.
        what: &'static str,
    },
    /// A dimension that cannot be cut.
    #[error("{0}")]
    Split(SplitFault),
    /// What was given is no graph of one rank.
    #[error("the graph to be spread breaks a rule: {0}")]
    Graph(String),
}

/// A dimension that cannot be cut in so many parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitFault {
    /// The tensors it holds for, the first one first.
    pub tensors: Vec<String>,
    /// What the units are.
    pub subject: &'static str,
    /// Axis that cuts.
    pub axis: Axis,
    /// Ranks on it.
    pub parts: u32,
    /// Why not.
    pub reason: Reason,
    /// Storage of the tensor, if it is a weight.
    pub format: Option<WeightFormat>,
    /// Numbers of ranks that could share the dimension.
    pub legal: Vec<u32>,
}

/// Why a dimension cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The ranks do not get equally many units.
    Units {
        /// Units to share.
        units: u64,
    },
    /// A rank would hold a part of a scale block.
    ScaleBlock {
        /// Elements of the dimension.
        total: u64,
        /// Elements a rank would hold.
        local: u64,
        /// Elements that share a scale.
        block: u64,
    },
}

impl fmt::Display for SplitFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (subject, parts, flag) = (self.subject, self.parts, split::flag(self.axis));
        match self.reason {
            Reason::Units { units } => write!(f, "{units} {subject} cannot be shared by {flag} {parts}")?,
            Reason::ScaleBlock { total, local, block } => write!(
                f,
                "{total} {subject} shared by {flag} {parts} leave {local} a rank, which cuts a block of {block} that shares a scale ({})",
                split::scaled_format(self.format)
            )?,
        }
        write!(f, "; legal {flag}: {} ({}", values(&self.legal), self.tensors[0])?;
        match self.tensors.len() {
            1 => f.write_str(")"),
            n => write!(f, " and {} more)", n - 1),
        }
    }
}

impl SplitFault {
    /// Whether it is the same fault of another tensor.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        let key = |s: &Self| (s.subject, s.axis, s.parts, s.reason, s.format);
        key(self) == key(other) && self.legal == other.legal
    }
}

fn a2a_name(a2a: &AllToAll) -> &'static str {
    match a2a {
        AllToAll::None => "none",
        AllToAll::Nccl => "nccl",
        AllToAll::Flashinfer => "flashinfer",
        AllToAll::Deepep => "deepep",
    }
}

fn values(legal: &[u32]) -> String {
    const SHOWN: usize = 16;
    let mut text = legal.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if legal.len() > SHOWN {
        text.push_str(&format!(", ... {}", legal[legal.len() - 1]));
    }
    text
}

pub(super) fn divisors(n: u32) -> Vec<u32> {
    (1..=n).filter(|d| n.is_multiple_of(*d)).collect()
}

/// Contradictions of the deployment itself, and with the graph's layers and experts.
pub(crate) fn deployment_faults(graph: &Graph, d: &Deployment) -> Vec<ShardFault> {
    let sizes = [("tp", d.tp), ("pp", d.pp), ("dp-attention", d.dp_attention), ("ep", d.ep), ("dcp", d.dcp), ("replicas", d.replicas)];
    let mut faults: Vec<ShardFault> = sizes.iter().filter(|(_, n)| *n == 0).map(|(name, _)| ShardFault::Zero(name)).collect();
    let ranks = u64::from(d.tp).saturating_mul(u64::from(d.pp)).saturating_mul(u64::from(d.replicas));
    if ranks > MOST_RANKS {
        faults.push(ShardFault::TooManyRanks(ranks));
    }
    // Everything below divides by these sizes.
    if !faults.is_empty() {
        return faults;
    }
    for (what, value) in [("dp-attention", d.dp_attention), ("ep", d.ep)] {
        if !d.tp.is_multiple_of(value) {
            faults.push(ShardFault::NotADivisor { what, value, of: "tp", whole: d.tp, legal: divisors(d.tp) });
        }
    }
    if faults.is_empty() {
        faults.extend(context::faults(graph, d));
    }
    let layers = graph.nodes.iter().filter_map(|(_, n)| n.layer).max().map_or(0, |l| u32::from(l) + 1);
    if d.pp > layers.max(1) {
        faults.push(ShardFault::Stages { layers, pp: d.pp });
    }
    let experts = expert_counts(graph);
    if !experts.is_empty() && d.a2a != AllToAll::None && d.ep != d.tp {
        faults.push(ShardFault::AllToAll { a2a: d.a2a, ep: d.ep, tp: d.tp });
    }
    for n in experts {
        faults.extend(placement_fault(d, n).map(ShardFault::Placement));
    }
    faults
}

/// Distinct numbers of routed experts in the graph.
fn expert_counts(graph: &Graph) -> Vec<u64> {
    let mut counts: Vec<u64> = graph
        .nodes
        .iter()
        .filter(|(_, n)| matches!(n.op, Op::Experts { .. }))
        .filter_map(|(_, n)| n.inputs.get(3))
        .filter_map(|t| graph.tensors.get(*t)?.shape.first())
        .filter_map(|dim| if let Dim::Experts(n) = dim { Some(*n) } else { None })
        .collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// What is wrong with the deployment's placement for a layer of `experts` experts.
fn placement_fault(d: &Deployment, experts: u64) -> Option<String> {
    let placement = d.placement.as_ref()?;
    let slots = &placement.physical_to_logical;
    if let Some((slot, l)) = slots.iter().enumerate().find(|(_, l)| u64::from(**l) >= experts) {
        return Some(format!("slot {slot} holds expert {l}, but the model's experts are 0 to {}", experts.saturating_sub(1)));
    }
    if (slots.len() as u64) < experts {
        return Some(format!("{} slots are fewer than the {experts} experts", slots.len()));
    }
    let mut held = vec![false; usize::try_from(experts).ok()?];
    for l in slots {
        held[*l as usize] = true;
    }
    held.iter().position(|h| !h).map(|missing| format!("no slot holds expert {missing}; every expert needs one"))
}
