//! Times of our own kernels, measured on the very machine: what `moetwin calibrate` writes into a machine file.
//!
//! A row is one op of one shape on so many tokens. What a row says of another number of tokens or bytes goes by the quotient of its time and
//! what bytes and flops alone would take: quotients change slowly, times do not. Rows whose op launches the same kernels are preferred, since
//! another kernel has other quotients.

use super::query::weight_format;
use super::rates::{Element, GpuRates};
use super::{OpCost, OwnExchange, Provenance, op_cost};
use moetwin_kernels::cost::{CostFacts, CostShape};
use moetwin_kernels::launch::{Choice, Launch, carried_by, launches};
use moetwin_models::{Graph, NodeId, RankId, TensorKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Measured times of our own kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnKernels {
    /// Who measured them: date, GPU, versions.
    pub source: String,
    /// The rows.
    pub rows: Vec<OwnRow>,
    /// Choices of launches that were measured to be faster than the constants', and with which the rows were measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choice>,
    /// What a command that waits for another stream costs, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joins: Option<OwnJoins>,
    /// What a kernel that the host launches takes longer on the device than as a node of a captured graph, picoseconds, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eager_gap_ps: Option<u64>,
    /// Exchanges that were measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<OwnExchange>,
}

/// What a command of a captured step that waits for another stream adds to it, beyond what it and the other stream's take side by side,
/// picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnJoins {
    /// In a graph of kernels of ours.
    pub kernels_ps: u64,
    /// In a graph with NCCL's collectives, which chains them beside the streams.
    pub nccl_ps: Option<u64>,
}

impl OwnJoins {
    /// In a graph with NCCL's collectives or without.
    pub fn of(&self, nccl: bool) -> u64 {
        self.nccl_ps.filter(|_| nccl).unwrap_or(self.kernels_ps)
    }
}

/// One measured time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnRow {
    /// What was done.
    pub work: OwnWork,
    /// Time in a captured graph, picoseconds.
    pub time_ps: u64,
}

/// What a command does, as far as its time depends on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnWork {
    /// Name of the op.
    pub op: String,
    /// What does not change with the step: widths, weights and their format.
    pub shape: String,
    /// Kernels launched, in order.
    pub kernels: Vec<String>,
    /// Blocks of all launches: what a kernel takes goes up where one more tile is begun.
    pub blocks: u64,
    /// Token rows; of experts, token-expert pairs.
    pub tokens: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Multiply-adds count two.
    pub flops: u64,
    /// Whether other ranks ran beside: between exchanges kernels of a microsecond or two add less to a step than they do on one GPU alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peers: bool,
}

/// What a kernel of no bytes takes in the model that quotients are taken of, microseconds. It keeps quotients of small kernels near one.
const FLOOR_US: f64 = 2.0;
/// Standard error of a time between rows where nothing was left out to tell.
const ERROR: f64 = 0.08;
/// What a measured time is uncertain by, microseconds: a row that takes no more than that says little by itself, and the rows around it are heard
/// as well.
const NOISE_US: f64 = 0.3;
/// How much a doubling of blocks weighs against one of tokens or bytes.
const BLOCKS_WEIGH: f64 = 2.0;
/// What peers beside a row and none beside another weigh, in doublings of tokens.
const PEERS_WEIGH: f64 = 1.0;
/// How far the nearest row may be, in doublings of tokens and bytes together, for a time to count as interpolated.
const NEAR: f64 = 3.5;

impl OwnWork {
    /// The work of a node's command on a rank. Nothing for what launches no kernel of ours.
    pub fn of(graph: &Graph, id: NodeId, rank: RankId, facts: &CostFacts) -> Option<Self> {
        let node = &graph.nodes[id];
        let plan = launches(graph, id, rank).ok()?;
        let grid = |l: &Launch| u64::from(l.grid.0) * u64::from(l.grid.1) * u64::from(l.grid.2);
        let blocks = plan.launches.iter().map(grid).sum();
        let kernels: Vec<String> = plan.launches.iter().map(|l| l.kernel.to_owned()).collect();
        if kernels.is_empty() {
            return None;
        }
        let format = weight_format(graph, node).map(|f| format!(" {}", f.name())).unwrap_or_default();
        let rows = || graph.local_sizes(*node.outputs.first()?, rank).ok()?.first().copied();
        let (shape, tokens) = match &facts.shape {
            CostShape::Gemm { m, n, k } => (format!("{n} x {k}{format}"), *m),
            CostShape::Experts { hidden, intermediate, topk, local_experts, pairs, .. } => {
                (format!("{local_experts} of {hidden} x {intermediate}, top {topk}{format}"), *pairs)
            }
            CostShape::Attention { heads, tokens, .. } => (format!("{heads} heads, {}", widths(graph, id, rank)?), *tokens),
            CostShape::Bytes => (widths(graph, id, rank)?, rows()?),
        };
        let mut bytes = facts.weight_bytes.saturating_add(facts.read_bytes).saturating_add(facts.write_bytes);
        let mut shape = shape;
        // A choice whose kernel computes the logits as well reads their weights.
        if let Some(&weight) = carried_by(graph, id, rank).and_then(|n| graph.nodes[n].inputs.get(1)) {
            let sizes = graph.local_sizes(weight, rank).ok()?;
            bytes = bytes.saturating_add(graph.local_bytes(weight, rank).ok()?);
            shape = format!("{shape}, of {}", sizes.last()?);
        }
        let peers = graph.deployment.ranks() > 1;
        Some(Self { op: node.op.name().to_owned(), shape, kernels, blocks, tokens, bytes, flops: facts.flops, peers })
    }
    /// Distance to other work of the same shape, in doublings; those of blocks count most, as they come in steps.
    fn distance(&self, other: &Self) -> f64 {
        let log = |v: u64| libm::log2(v.max(1) as f64);
        let (t, b) = (log(self.tokens) - log(other.tokens), log(self.bytes) - log(other.bytes));
        let blocks = BLOCKS_WEIGH * (log(self.blocks) - log(other.blocks));
        let peers = if self.peers == other.peers { 0.0 } else { PEERS_WEIGH };
        libm::sqrt(t * t + b * b + blocks * blocks + peers * peers)
    }
    /// What bytes, flops and a floor take, microseconds.
    fn model_us(&self, rates: &GpuRates) -> f64 {
        FLOOR_US * self.kernels.len() as f64 + rates.memory_us(self.bytes as f64).max(rates.compute_us(self.flops as f64, Element::Bf16))
    }
}

/// Widths of a node's operands and results that are no weights.
fn widths(graph: &Graph, id: NodeId, rank: RankId) -> Option<String> {
    let node = &graph.nodes[id];
    let of = |list: &[moetwin_models::TensorId]| {
        let carried = list.iter().filter(|t| !matches!(graph.tensors[**t].kind, TensorKind::Weight(_)));
        let width = |t: &moetwin_models::TensorId| Some(graph.local_sizes(*t, rank).ok()?.iter().skip(1).product::<u64>().to_string());
        Some(carried.map(width).collect::<Option<Vec<_>>>()?.join(", "))
    };
    Some(format!("{} to {}", of(&node.inputs)?, of(&node.outputs)?))
}

/// How well rows of an op are predicted by the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnError {
    /// The op.
    pub op: String,
    /// Rows that others speak of.
    pub rows: usize,
    /// Median distance, as a share.
    pub median: f64,
    /// The same that nine of ten stay below.
    pub p90: f64,
}

impl OwnKernels {
    /// Rows from measured times: those of equal work are one, with the median of their times.
    pub fn new(source: String, measured: Vec<OwnRow>) -> Self {
        let mut all: BTreeMap<OwnWork, Vec<u64>> = BTreeMap::new();
        measured.into_iter().for_each(|r| all.entry(r.work).or_default().push(r.time_ps));
        let median = |mut times: Vec<u64>| {
            times.sort_unstable();
            times[times.len() / 2]
        };
        let rows = all.into_iter().map(|(work, times)| OwnRow { work, time_ps: median(times) }).collect();
        Self { source, rows, ..Self::default() }
    }
    /// The time of some work, microseconds, and how it is known; nothing where no such op was measured.
    fn estimate(&self, work: &OwnWork, rates: &GpuRates, skip: Option<usize>) -> Option<(f64, Provenance)> {
        let same_op = || self.rows.iter().enumerate().filter(|(i, r)| Some(*i) != skip && r.work.op == work.op).map(|(_, r)| r);
        if let Some(exact) = same_op().find(|r| r.work == *work) {
            return Some((exact.time_ps as f64 / 1e6, Provenance::Measured));
        }
        let shaped: Vec<&OwnRow> = same_op().filter(|r| r.work.shape == work.shape).collect();
        let alike: Vec<&OwnRow> = shaped.iter().copied().filter(|r| r.work.kernels == work.kernels).collect();
        let (rows, known) = if !alike.is_empty() {
            (alike, true)
        } else if !shaped.is_empty() {
            (shaped, true)
        } else {
            let kernels: Vec<&OwnRow> = same_op().filter(|r| r.work.kernels == work.kernels).collect();
            (if kernels.is_empty() { same_op().collect() } else { kernels }, false)
        };
        let nearest = rows.iter().map(|r| work.distance(&r.work)).min_by(f64::total_cmp)?;
        let (mut weights, mut sum) = (0.0, 0.0);
        for row in rows {
            let distance = work.distance(&row.work).max(1e-3);
            let unsure = NOISE_US * 1e6 / (row.time_ps.max(1)) as f64;
            let weight = 1.0 / (distance * distance * distance + unsure * unsure);
            weights += weight;
            sum += weight * libm::log(row.time_ps as f64 / 1e6 / row.work.model_us(rates));
        }
        let us = work.model_us(rates) * libm::exp(sum / weights);
        let provenance = if known && nearest <= NEAR { Provenance::Interpolated } else { Provenance::Modelled };
        us.is_finite().then_some((us, provenance))
    }
    /// The cost of a command; nothing where no such op was measured.
    pub(super) fn cost(&self, work: &OwnWork, rates: &GpuRates) -> Option<OpCost> {
        let (us, provenance) = self.estimate(work, rates, None)?;
        let (memory, compute) = (rates.memory_us(work.bytes as f64).min(us), rates.compute_us(work.flops as f64, Element::Bf16).min(us));
        let error = if provenance == Provenance::Measured { ERROR / 2.0 } else { ERROR };
        Some(op_cost(us - memory.max(compute), memory, compute, work.kernels.len() as u32, provenance, error))
    }
    /// How well each op's rows are predicted by the others of its shape.
    pub fn left_out(&self, rates: &GpuRates) -> Vec<OwnError> {
        let mut errors: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (i, row) in self.rows.iter().enumerate() {
            if let Some((us, Provenance::Interpolated)) = self.estimate(&row.work, rates, Some(i)) {
                errors.entry(row.work.op.as_str()).or_default().push((us * 1e6 / (row.time_ps as f64).max(1.0) - 1.0).abs());
            }
        }
        let one = |(op, mut list): (&str, Vec<f64>)| {
            list.sort_by(f64::total_cmp);
            let at = |q: f64| list[((q * list.len() as f64) as usize).min(list.len() - 1)];
            OwnError { op: op.to_owned(), rows: list.len(), median: at(0.5), p90: at(0.9) }
        };
        errors.into_iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::rates::tests::rtx;

    fn work(tokens: u64, bytes: u64) -> OwnWork {
        OwnWork {
            op: "linear".into(),
            shape: "7168 x 2048 bf16".into(),
            kernels: vec!["a".into()],
            blocks: 100,
            tokens,
            bytes,
            flops: 0,
            peers: false,
        }
    }

    fn table(points: &[(u64, u64, u64)]) -> OwnKernels {
        let row = |&(tokens, bytes, time_ps): &(u64, u64, u64)| OwnRow { work: work(tokens, bytes), time_ps };
        OwnKernels::new("test".into(), points.iter().map(row).collect())
    }

    #[test]
    fn a_measured_time_is_returned_and_others_lie_between() {
        let rates = rtx();
        let own = table(&[(1, 30 << 20, 30_000_000), (64, 31 << 20, 40_000_000), (1, 30 << 20, 32_000_000), (1, 30 << 20, 31_000_000)]);
        assert_eq!(own.rows.len(), 2);
        let us = |w: OwnWork| own.estimate(&w, &rates, None).unwrap();
        assert_eq!(us(work(1, 30 << 20)), (31.0, Provenance::Measured));
        let (between, known) = us(work(8, 30 << 20));
        assert!((31.0..40.0).contains(&between) && known == Provenance::Interpolated, "{between}");
        assert_eq!(us(work(4096, 40 << 20)).1, Provenance::Modelled);
        // Another op has no row; another shape goes by the quotients of this one.
        assert!(own.estimate(&OwnWork { op: "route".into(), ..work(1, 1) }, &rates, None).is_none());
        let other = us(OwnWork { shape: "x".into(), ..work(1, 60 << 20) });
        assert!(other.1 == Provenance::Modelled && other.0 > 50.0, "{other:?}");
    }

    #[test]
    fn rows_of_the_same_kernels_speak_first() {
        let rates = rtx();
        let mut own = table(&[(16, 30 << 20, 30_000_000)]);
        own.rows.push(OwnRow { work: OwnWork { kernels: vec!["b".into()], ..work(17, 30 << 20) }, time_ps: 90_000_000 });
        let of = |kernel: &str, tokens| {
            own.estimate(&OwnWork { kernels: vec![kernel.into()], ..work(tokens, 30 << 20) }, &rates, None).unwrap().0
        };
        assert!(of("a", 15) < 31.0 && of("b", 18) > 85.0);
    }

    #[test]
    fn a_tile_more_is_a_step() {
        let rates = rtx();
        // Up to 64 tokens a kernel takes one row of tiles, beyond it two.
        let mut own = table(&[(40, 30 << 20, 30_000_000)]);
        own.rows.push(OwnRow { work: OwnWork { blocks: 200, ..work(72, 31 << 20) }, time_ps: 60_000_000 });
        let us = |blocks, tokens| own.estimate(&OwnWork { blocks, ..work(tokens, 31 << 20) }, &rates, None).unwrap().0;
        assert!(us(100, 64) < 34.0 && us(200, 66) > 55.0, "{} {}", us(100, 64), us(200, 66));
    }

    #[test]
    fn rows_with_peers_speak_first_of_a_step_with_peers() {
        let rates = rtx();
        let mut own = table(&[(16, 1 << 20, 3_000_000), (32, 1 << 20, 3_000_000)]);
        own.rows.push(OwnRow { work: OwnWork { peers: true, ..work(16, 1 << 20) }, time_ps: 1_000_000 });
        let us = |peers, tokens| own.estimate(&OwnWork { peers, ..work(tokens, 1 << 20) }, &rates, None).unwrap();
        assert_eq!((us(true, 16), us(false, 16)), ((1.0, Provenance::Measured), (3.0, Provenance::Measured)));
        // Between rows of both kinds those of its own kind weigh most; one that is much nearer is heard all the same.
        let (near, far) = (us(true, 20).0, us(true, 32).0);
        assert!(near < 1.3 && far > near && far < 3.0, "{near} {far}");
    }

    #[test]
    fn what_others_say_of_a_row_is_close_on_a_smooth_curve() {
        let rates = rtx();
        let points: Vec<(u64, u64, u64)> = (0..8).map(|i| (1 << i, (20 + i) << 20, (25 + 2 * i) * 1_000_000)).collect();
        let errors = table(&points).left_out(&rates);
        assert_eq!((errors.len(), errors[0].rows), (1, 8));
        assert!(errors[0].median < 0.05, "{errors:?}");
    }
}
