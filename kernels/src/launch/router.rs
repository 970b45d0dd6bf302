//! Launches of routers: logits and the choice, in one kernel where the weights fit one cluster of blocks.
//!
//! A router is two nodes of the graph, so that every executor and the simulator are told the same. Where one kernel does both, the choice's
//! command launches it and the logits' command launches nothing: the kernel reads the operands of both, and logits are never stored.

use super::plan::{BLOCK, LaunchError, Plan, WARPS};
use super::storage::{Storage, storage_of};
use super::{Arg, Element, Table};
use moetwin_models::op::LinearRole;
use moetwin_models::spec::{GroupScore, RouterSpec, Scoring};
use moetwin_models::{Graph, Node, NodeId, Op, RankId, TensorId};

/// Experts of a router whose choice a thread an expert makes (`route_ranked` in route.cu).
const RANKED_EXPERTS: u64 = 512;
/// Blocks of the cluster that is a whole router, experts and token rows that it takes at most, and stages of its pipeline (`router` in route.cu).
const ROUTER_CLUSTER: u64 = 8;
const ROUTER_EXPERTS: u64 = 256;
const ROUTER_ROWS: u64 = 8;
const ROUTER_STAGES: u64 = 5;
/// Weights that eight multiprocessors read about as fast as all of them: beyond, the projection by itself spreads over the GPU.
const ROUTER_BYTES: u64 = 1 << 20;
/// Experts of a tile, and bytes of a stage of a warp.
const TILE_ROWS: u64 = 16;
const STAGE_BYTES: u64 = 2048;

/// The node that computes the logits of a choice, where one kernel does both on `rank`. The operands of that kernel's launch are those of
/// the choice and, behind them, those of this node.
///
/// Nobody else may read the logits, and the token rows must be read again later, so that their storage is not used for something else yet.
pub fn carried_by(graph: &Graph, choice: NodeId, rank: RankId) -> Option<NodeId> {
    let node = &graph.nodes[choice];
    let Op::Route { router, topk } = &node.op else { return None };
    let logits = *node.inputs.first()?;
    let producer = graph.tensors[logits].producer?;
    let linear = &graph.nodes[producer];
    if linear.op != (Op::Linear { role: LinearRole::Router }) || linear.stage != node.stage {
        return None;
    }
    let sizes = |t: TensorId| graph.local_sizes(t, rank).ok();
    let (rows, experts) = match *sizes(logits)?.as_slice() {
        [rows, experts] => (rows, experts),
        _ => return None,
    };
    let (&x, &weight) = (linear.inputs.first()?, linear.inputs.get(1)?);
    let hidden = *sizes(x)?.last()?;
    let fits = (1..=ROUTER_ROWS).contains(&rows)
        && experts <= ROUTER_EXPERTS
        && router.topk_groups >= router.groups
        && u64::from(*topk) <= experts.min(32)
        && hidden.is_multiple_of(8)
        && 2 * experts * hidden <= ROUTER_BYTES
        && storage_of(graph, weight, rank).ok() == Some(Storage::Rows(Element::Bf16));
    (fits && alone(graph, logits, choice) && read_later(graph, x, choice)).then_some(producer)
}

/// The choice whose kernel computes these logits as well, if one does.
pub fn carrier_of(graph: &Graph, logits: NodeId, rank: RankId) -> Option<NodeId> {
    let node = &graph.nodes[logits];
    if node.op != (Op::Linear { role: LinearRole::Router }) {
        return None;
    }
    let result = *node.outputs.first()?;
    let reader = behind(graph, logits).find(|(_, n)| n.inputs.contains(&result)).map(|(id, _)| id)?;
    (carried_by(graph, reader, rank) == Some(logits)).then_some(reader)
}

fn behind(graph: &Graph, node: NodeId) -> impl Iterator<Item = (NodeId, &Node)> {
    (node.0 + 1..graph.nodes.len() as u32).map(|id| (NodeId(id), &graph.nodes[NodeId(id)]))
}

/// Whether only `reader` reads a tensor.
fn alone(graph: &Graph, tensor: TensorId, reader: NodeId) -> bool {
    let named = graph.outputs.iter().any(|(_, t)| *t == tensor);
    let first = graph.tensors[tensor].producer.unwrap_or(reader);
    !named && behind(graph, first).all(|(id, n)| id == reader || !n.inputs.contains(&tensor))
}

/// Whether a node behind `node` reads a tensor.
fn read_later(graph: &Graph, tensor: TensorId, node: NodeId) -> bool {
    behind(graph, node).any(|(_, n)| n.inputs.contains(&tensor))
}

impl Plan<'_> {
    pub(super) fn route(&mut self, router: &RouterSpec, topk: u32) -> Result<(), LaunchError> {
        use Arg::{I32, Input, Output};
        let (rows, experts) = self.matrix(self.node.inputs[0])?;
        let scoring = match router.scoring {
            Scoring::Sigmoid => 0,
            Scoring::Softmax => 1,
            Scoring::SoftmaxTopk => 2,
        };
        let bias = if self.node.inputs.len() > 1 { Input(1) } else { Arg::Null };
        let args = vec![
            Input(0),
            bias,
            Output(0),
            Output(1),
            self.int(experts, "experts")?,
            I32(topk as i32),
            I32(scoring),
            I32(router.groups as i32),
            I32(router.topk_groups as i32),
            I32(i32::from(router.group_score == GroupScore::TopTwoSum)),
            I32(i32::from(router.normalize)),
            Arg::F32(router.normalize_eps as f32),
            Arg::F32(router.scale as f32),
        ];
        if topk > 32 {
            return Err(self.no_kernel("a choice of more than 32 experts"));
        }
        if let Some(logits) = carried_by(self.graph, self.id, self.rank) {
            return self.whole_router(logits, args);
        }
        if router.topk_groups >= router.groups && experts <= RANKED_EXPERTS && u64::from(topk) <= experts {
            // Groups have no part in it.
            let args = args.into_iter().enumerate().filter(|(i, _)| !(7..10).contains(i)).map(|(_, a)| a).collect();
            let block = u32::try_from(experts.next_multiple_of(32)).unwrap_or(BLOCK);
            return self.grid("route.cu", "route_ranked", [rows, 1, 1], block, choice_bytes(experts, u64::from(topk)), args);
        }
        self.rows("route.cu", "route", rows, 1, 4 * (2 * experts + u64::from(router.groups)), args)
    }

    /// Logits and choice in one kernel; `choice` holds the arguments of the choice.
    fn whole_router(&mut self, logits: NodeId, choice: Vec<Arg>) -> Result<(), LaunchError> {
        let linear = &self.graph.nodes[logits];
        let (rows, experts) = self.matrix(self.node.inputs[0])?;
        let (_, hidden) = self.matrix(linear.inputs[0])?;
        let first = self.node.inputs.len();
        let tiles = experts.div_ceil(TILE_ROWS).div_ceil(ROUTER_CLUSTER).next_power_of_two();
        let bias = if linear.inputs.len() > 2 { Arg::Input(first + 2) } else { Arg::Null };
        let mut args = vec![Arg::Input(first), Arg::Input(first + 1), bias];
        // Correction bias, ids and weights; then the rule, from topk on, without groups.
        args.extend_from_slice(&choice[1..4]);
        args.extend([self.int(rows, "rows")?, self.int(experts, "experts")?, self.int(hidden, "hidden")?]);
        args.push(self.int(u64::from(WARPS) / tiles, "parts")?);
        args.extend(choice.into_iter().enumerate().filter(|(i, _)| *i > 4 && !(7..10).contains(i)).map(|(_, a)| a));
        let shared = u64::from(WARPS) * ROUTER_STAGES * STAGE_BYTES;
        self.grid("route.cu", "router", [ROUTER_CLUSTER, 1, 1], BLOCK, shared, args)
    }

    pub(super) fn place_experts(&mut self) -> Result<(), LaunchError> {
        use Arg::{Input, Output};
        let (rows, topk) = self.matrix_out(0)?;
        let first = self.graph.local_shape(self.node.inputs[0], self.rank)?[0].start;
        let Some(placement) = &self.graph.deployment.placement else { return Err(self.no_kernel("a placement op without a placement")) };
        let experts = placement.physical_to_logical.iter().max().map_or(0, |m| m + 1);
        let mut starts = vec![0];
        let mut slots = Vec::new();
        for e in 0..experts {
            slots.extend(placement.slots(e).map(|s| s as i32));
            starts.push(slots.len() as i32);
        }
        let args = vec![
            Input(0),
            Arg::Table(Table::I32(starts)),
            Arg::Table(Table::I32(slots)),
            Output(0),
            self.int(rows * topk, "pairs")?,
            self.int(topk, "topk")?,
            self.int(first, "tokens")?,
        ];
        self.rows("route.cu", "place_experts", (rows * topk).div_ceil(u64::from(BLOCK)), 1, 0, args)
    }
}

/// Shared memory of a ranked choice: a key a thread, the candidates' keys and experts, the scores of the chosen (`choose_ranked` in route.cu).
fn choice_bytes(experts: u64, topk: u64) -> u64 {
    let warps = experts.div_ceil(32);
    4 * (32 * warps + 2 * (warps * topk).next_multiple_of(4) + topk)
}
