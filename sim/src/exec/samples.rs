//! Small hand-made programs for tests.

use super::engine::Priced;
use super::*;
use crate::cost::{Bound, OpCost, Provenance};
use moetwin_models::{Axis, Deployment, Graph, NodeId, Op, Phase, Step};
use moetwin_runtime::{Action, Command, Group, GroupId, RankProgram};

/// An exchange ends for everybody `message_bytes` picoseconds after the last arrival.
pub(crate) struct Fixed;

impl Transport for Fixed {
    fn carry(&mut self, exchange: &Exchange<'_>) -> Result<Outcome, String> {
        let last = exchange.arrivals.iter().copied().max().unwrap_or_default();
        let end = last + Duration::from_ps(exchange.message_bytes);
        let ends = vec![end; exchange.gpus.len()];
        Ok(Outcome { ends, link: Duration::ZERO, shares: [].into(), how: "fixed".into(), provenance: Provenance::Modelled })
    }
}

pub(crate) const ADD: NodeId = NodeId(0);
pub(crate) const ALL_REDUCE: NodeId = NodeId(1);
pub(crate) const ALL_GATHER: NodeId = NodeId(2);
pub(crate) const SEND_RECV: NodeId = NodeId(3);

pub(crate) fn graph() -> Graph {
    let mut graph = Graph::new(Step::uniform(Phase::Decode, 1, 1), Deployment::default());
    let ops = [Op::Add, Op::AllReduce { axis: Axis::Tp }, Op::AllGather { axis: Axis::Tp, dim: 0 }, Op::SendRecv { from: 0, to: 1 }];
    for op in ops {
        graph.add_node(op, None, 0, vec![], vec![]);
    }
    graph
}

/// A command of a test program: stream, cost in picoseconds (message for exchanges), kernels, waits, records, action.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) stream: u32,
    pub(crate) ps: u64,
    pub(crate) kernels: u32,
    pub(crate) waits: Vec<u32>,
    pub(crate) records: Option<u32>,
    pub(crate) action: Action,
}

pub(crate) fn compute(stream: u32, ps: u64) -> Line {
    Line { stream, ps, kernels: 1, waits: vec![], records: None, action: Action::Compute }
}

pub(crate) fn reduce(stream: u32, ps: u64, sequence: u32) -> Line {
    Line { action: Action::Collective { group: GroupId(0), sequence }, ..compute(stream, ps) }
}

pub(crate) type PricedRanks = IdVec<RankId, Vec<Priced>>;

pub(crate) fn program(ranks: &[Vec<Line>], groups: &[&[u32]]) -> (Program, PricedRanks) {
    let mut priced = PricedRanks::new();
    let mut programs = IdVec::new();
    for (rank, lines) in ranks.iter().enumerate() {
        let rank = RankId(rank as u32);
        let node = |action| match action {
            Action::Compute => ADD,
            Action::Collective { .. } => ALL_REDUCE,
            Action::Send { .. } | Action::Receive { .. } => SEND_RECV,
        };
        let commands = lines.iter().map(|l| Command {
            id: CommandId { node: node(l.action), rank },
            stream: StreamId(l.stream),
            waits: l.waits.iter().copied().map(EventId).collect(),
            records: l.records.map(EventId),
            reads: vec![],
            writes: vec![],
            action: l.action,
        });
        programs.push(RankProgram { commands: commands.collect(), streams: 4, events: 4, ..RankProgram::default() });
        let cost = |l: &Line| OpCost { duration_ps: l.ps, kernels: l.kernels, bound: Bound::Latency, ..OpCost::NOTHING };
        priced.push(lines.iter().map(|l| Priced { cost: cost(l), message_bytes: l.ps }).collect());
    }
    let group = |ranks: &&[u32]| Group { name: "test".into(), ranks: ranks.iter().copied().map(RankId).collect() };
    (Program { graph: graph(), groups: groups.iter().map(group).collect(), ranks: programs }, priced)
}

pub(crate) const CAPTURED: HostCosts = HostCosts {
    graphs: true,
    eager_kernel: Duration::from_ps(7),
    eager_gap: Duration::ZERO,
    eager_call: Duration::ZERO,
    eager_collective: Duration::from_ps(11),
    graph_launch: Duration::from_ps(100),
    graph_node: Duration::from_ps(3),
    join: Duration::ZERO,
};
pub(crate) const EAGER: HostCosts = HostCosts { graphs: false, ..CAPTURED };

pub(crate) fn run(ranks: &[Vec<Line>], groups: &[&[u32]], host: HostCosts, steps: u32) -> Result<SimTrace, SimError> {
    let (program, priced) = program(ranks, groups);
    let gpus: Vec<usize> = (0..ranks.len()).collect();
    execute(&program, &priced, &gpus, host, steps, &mut Fixed)
}
