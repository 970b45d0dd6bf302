//! Layouts, recomputed from the operands axis by axis.
//!
//! For each op a table lists what its operands may look like along one axis and what its results then look like. All operands
//! replicated gives replicated results for every op and is not listed.

use super::{Check, Rule, View};
use crate::deployment::{Axis, Deployment};
use crate::dim::{Dim, Layout, Placement};
use crate::graph::TensorKind;
use crate::op::Op;
use crate::shard::row_is_shared;

/// How a tensor looks along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Replicated.
    R,
    /// Cut along dimension 0, 1 or 2.
    D0,
    D1,
    D2,
    /// A summand.
    P,
}
use Cut::{D0, D1, D2, P, R};

impl Cut {
    fn of(placement: Option<Placement>) -> Self {
        match placement {
            None => R,
            Some(Placement::Partial) => P,
            Some(Placement::Shard(0)) => D0,
            Some(Placement::Shard(1)) => D1,
            Some(Placement::Shard(_)) => D2,
        }
    }
    fn placement(self) -> Option<Placement> {
        match self {
            R => None,
            D0 => Some(Placement::Shard(0)),
            D1 => Some(Placement::Shard(1)),
            D2 => Some(Placement::Shard(2)),
            P => Some(Placement::Partial),
        }
    }
    fn name(self) -> &'static str {
        match self {
            R => "replicated",
            D0 => "shard0",
            D1 => "shard1",
            D2 => "shard2",
            P => "partial",
        }
    }
}

/// Where a pattern is legal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Along any axis.
    Any,
    /// Rows cut by whole sequences, as caches are.
    Sequences,
    /// Rows of tokens, along any axis: not received rows, which lie where their experts are.
    Tokens,
    /// Whole experts on different ranks, all ranks see the same tokens.
    Experts,
    /// Slices of the same experts.
    ExpertSlices,
    /// Rows that an all-to-all brought to the ranks that hold their experts.
    Received,
    /// Cache rows dealt out over decode context parallelism.
    Context,
    /// Heads of a whole decode-context group.
    GatheredHeads,
    /// Heads of a rank, of which a decode-context group shares the key-value ones.
    OwnHeads,
}

/// One row of an op's table.
struct Pattern {
    when: When,
    operands: &'static [Cut],
    results: &'static [Cut],
}

const fn any(operands: &'static [Cut], results: &'static [Cut]) -> Pattern {
    Pattern { when: When::Any, operands, results }
}
const fn by(when: When, operands: &'static [Cut], results: &'static [Cut]) -> Pattern {
    Pattern { when, operands, results }
}

/// The table of an op; collectives have their own functions.
fn patterns(op: &Op) -> &'static [Pattern] {
    match op {
        Op::Embed => const { &[any(&[D0, R], &[D0]), any(&[R, D0], &[P])] },
        Op::RmsNorm { .. } => const { &[any(&[D0, R], &[D0])] },
        Op::AddRmsNorm { .. } => const { &[any(&[D0, D0, R], &[D0, D0])] },
        Op::Add => const { &[any(&[D0, D0], &[D0]), any(&[D1, D1], &[D1]), any(&[P, P], &[P])] },
        // Columns of the weight are columns of the result; where the contracted dimension is cut, results are summands.
        Op::Linear { .. } => const { &[any(&[D0, R, R], &[D0]), any(&[R, D0, D0], &[D1]), any(&[D1, D1, R], &[P])] },
        Op::GatedActivation { .. } => const { &[any(&[D0], &[D0]), any(&[D1], &[D1])] },
        // Scaling commutes with the sum as long as every rank has the same score.
        Op::SigmoidScale => const { &[any(&[D0, D0], &[D0]), any(&[D1, D1], &[D1]), any(&[D1, R], &[D1]), any(&[P, R], &[P])] },
        Op::QkNorm { .. } | Op::MlaNorm { .. } => const { &[any(&[D0, R, R], &[D0, D0])] },
        Op::QkvPrepare { .. } => {
            const {
                &[
                    by(When::Sequences, &[D0, D0, D0, R, R], &[D0, D0]),
                    by(When::Context, &[R, R, D0, R, R], &[R, D0]),
                    any(&[D1, R, D1, R, R], &[D1, D1]),
                ]
            }
        }
        Op::GqaAttention { split_context: true, .. } => {
            const {
                &[
                    by(When::Sequences, &[D0, D0, R], &[D0, D0]),
                    by(When::GatheredHeads, &[D1, R, D0], &[D1, D1]),
                    by(When::OwnHeads, &[R, D1, R], &[R, R]),
                    by(When::Context, &[R, D0, R], &[D2, D2]),
                ]
            }
        }
        Op::GqaAttention { .. } => const { &[by(When::Sequences, &[D0, D0, R], &[D0]), any(&[D1, D1, D0], &[D1])] },
        Op::MlaRope { .. } => {
            const {
                &[
                    by(When::Sequences, &[D0, D0, D0, D0], &[D0, D0]),
                    by(When::Context, &[R, R, R, D0], &[R, D0]),
                    any(&[D1, R, R, R], &[D1, R]),
                ]
            }
        }
        Op::MlaAbsorbQuery { .. } | Op::MlaExpandValue { .. } => const { &[any(&[D0, R], &[D0]), any(&[D1, D0], &[D1])] },
        Op::MlaDecode { split_context: true, .. } => {
            const {
                &[
                    by(When::Sequences, &[D0, D0], &[D0, D0]),
                    by(When::GatheredHeads, &[D1, R], &[D1, D1]),
                    by(When::Context, &[R, D0], &[D2, D2]),
                ]
            }
        }
        // Scaling by what all ranks know leaves a summand.
        Op::MergeContext => {
            const { &[by(When::Sequences, &[D0, D0], &[D0]), by(When::GatheredHeads, &[D1, D1], &[D1]), by(When::Context, &[D2, R], &[P])] }
        }
        Op::MlaDecode { .. } => const { &[by(When::Sequences, &[D0, D0, D0], &[D0]), any(&[D1, R, R], &[D1])] },
        Op::MlaExpandKv => const { &[by(When::Sequences, &[D0, R], &[D0]), any(&[R, D0], &[D1])] },
        Op::MlaPrefill { .. } => const { &[by(When::Sequences, &[D0, D0, D0], &[D0]), any(&[D1, D1, R], &[D1])] },
        Op::SparseIndex { .. } => const { &[by(When::Sequences, &[D0, D0], &[D0])] },
        Op::LinearAttention { .. } => const { &[by(When::Sequences, &[D0, D0, R], &[D0]), any(&[D1, D1, D0], &[D1])] },
        Op::Route { .. } => const { &[any(&[D0, R], &[D0, D0])] },
        Op::PlaceExperts => const { &[any(&[D0], &[D0])] },
        Op::Experts { .. } => {
            const {
                &[
                    by(When::Tokens, &[D0, D0, D0, R, R, R, R], &[D0]),
                    by(When::Experts, &[R, R, R, D0, D0, D0, D0], &[P]),
                    by(When::ExpertSlices, &[R, R, R, D1, D2, D1, R], &[P]),
                    by(When::Received, &[D0, D0, D0, D0, D0, D0, D0], &[D0]),
                ]
            }
        }
        Op::SelectRows => const { &[by(When::Sequences, &[D0], &[D0])] },
        Op::Argmax => const { &[any(&[D0], &[D0])] },
        Op::SendRecv { .. } => const { &[any(&[D0], &[D0]), any(&[D1], &[D1])] },
        Op::Dispatch | Op::Combine | Op::AllReduce { .. } | Op::AllReduceAddRmsNorm { .. } => &[],
        Op::AllGather { .. } | Op::ReduceScatter { .. } | Op::Slice { .. } => &[],
    }
}

/// Why there are no result layouts.
struct Illegal {
    rule: Rule,
    message: String,
}

fn illegal(message: impl Into<String>) -> Illegal {
    Illegal { rule: Rule::Layout, message: message.into() }
}

impl Check<'_> {
    /// Every layout by itself.
    pub(super) fn well_formed_layouts(&mut self) {
        let graph = self.graph;
        for (id, tensor) in graph.tensors.iter() {
            if tensor.layout.entries().is_empty() {
                continue;
            }
            let message = misformed(&graph.deployment, &tensor.layout, &tensor.shape);
            let source = tensor.producer.is_none() && tensor.layout.partial_axis().is_some();
            if let Some(message) = message.or(source.then(|| "a source is a value, not a summand".into())) {
                self.tensor_fault(Rule::Axes, id, message);
            }
        }
    }

    /// Every node's results are laid out as its op leaves them.
    pub(super) fn layouts(&mut self) {
        let graph = self.graph;
        for (id, node) in graph.nodes.iter() {
            match results(View { graph, node }) {
                Err(fault) => self.node_fault(fault.rule, id, fault.message),
                Ok(layouts) => {
                    for (layout, &t) in layouts.iter().zip(&node.outputs) {
                        if graph.tensors[t].layout != *layout {
                            self.node_fault(Rule::Layout, id, format!("{t} must be {layout}, not {}", graph.tensors[t].layout));
                        }
                    }
                }
            }
        }
    }
}

/// What is wrong with a layout of a tensor of this shape.
fn misformed(d: &Deployment, layout: &Layout, shape: &[Dim]) -> Option<String> {
    let entries = layout.entries();
    if let Some((axis, _)) = entries.iter().find(|(a, _)| d.axis_size(*a) <= 1) {
        return Some(format!("axis {} has one rank", axis.name()));
    }
    let twice = |(i, (a, _)): (usize, &(Axis, Placement))| entries[i + 1..].iter().any(|(b, _)| !independent(d, shape, *a, *b));
    if entries.iter().enumerate().any(twice) {
        return Some(format!("{layout} names the same ranks twice"));
    }
    if entries.iter().filter(|(_, p)| *p == Placement::Partial).count() > 1 {
        return Some("only one axis can be partial".into());
    }
    let cuts = |dim: u8| entries.iter().filter(move |(_, p)| *p == Placement::Shard(dim));
    for (axis, placement) in entries {
        let Placement::Shard(index) = *placement else { continue };
        let Some(dim) = shape.get(usize::from(index)) else {
            return Some(format!("there is no dimension {index}"));
        };
        let legal = match dim {
            Dim::KvRows => matches!(axis, Axis::AttnDp | Axis::Dcp),
            Dim::LogitsRows => *axis == Axis::AttnDp,
            Dim::Received => *axis == Axis::Ep,
            Dim::Tokens => !matches!(axis, Axis::Dcp | Axis::HeadTp),
            // What each rank of a decode-context group found in its own cache rows.
            Dim::Fixed(_) if index == 2 => *axis != Axis::AttnDp,
            _ => !matches!(axis, Axis::AttnDp | Axis::Dcp),
        };
        if !legal {
            return Some(format!("dimension {index} cannot be cut over {}", axis.name()));
        }
        if cuts(index).count() > 1 && !matches!(dim, Dim::Tokens | Dim::KvRows) {
            return Some(format!("dimension {index} is cut over two axes"));
        }
    }
    None
}

/// Whether two axes number different coordinates of a rank, so that a tensor may be cut over both.
fn independent(d: &Deployment, shape: &[Dim], a: Axis, b: Axis) -> bool {
    match (a, b) {
        (Axis::AttnTp | Axis::HeadTp | Axis::Dcp, Axis::AttnDp) | (Axis::AttnDp, Axis::AttnTp | Axis::HeadTp | Axis::Dcp) => true,
        (Axis::Ep, Axis::MoeTp) | (Axis::MoeTp, Axis::Ep) | (Axis::HeadTp, Axis::Dcp) | (Axis::Dcp, Axis::HeadTp) => true,
        // Key-value heads that the ranks of a decode-context group share leave its coordinate free for rows.
        (heads @ (Axis::Tp | Axis::AttnTp), Axis::Dcp) => match shape {
            [Dim::KvRows, row] => row_is_shared(row, d.axis_size(heads), d.dcp),
            _ => false,
        },
        _ => false,
    }
}

/// Layouts of a node's results.
fn results(v: View<'_>) -> Result<Vec<Layout>, Illegal> {
    let d = &v.graph.deployment;
    let layout = v.input(0).map_or(Layout::replicated(), |t| t.layout.clone());
    match v.node.op {
        Op::AllReduce { axis } => match layout.get(axis) {
            Some(Placement::Partial) => Ok(vec![layout.without(axis)]),
            _ => Err(illegal(format!("there is nothing to sum over {}: operand 0 is {layout}", axis.name()))),
        },
        Op::AllReduceAddRmsNorm { axis, .. } => sum_and_norm(v, &layout, axis),
        Op::ReduceScatter { axis: Axis::Dcp, dim: 1 } => scatter_heads(d, layout).map(|l| vec![l]),
        Op::ReduceScatter { axis, dim } => reduce_scatter(v, d, layout, axis, dim).map(|l| vec![l]),
        Op::AllGather { axis: Axis::Dcp, dim: 1 } => gather_heads(d, layout).map(|l| vec![l]),
        Op::AllGather { axis, dim } => gather(layout, axis, dim).map(|l| vec![l]),
        Op::Slice { axis, dim } => match layout.get(axis) {
            None => cut(v, d, layout, axis, dim).map(|l| vec![l]),
            Some(_) => Err(illegal(format!("operand 0 is not replicated over {}, it is {layout}", axis.name()))),
        },
        Op::Dispatch => dispatch(v, d),
        Op::Combine => match layout == Layout::shard(Axis::Ep, 0) {
            true => Ok(vec![own_rows(d)]),
            false => Err(illegal(format!("operand 0 must be shard0@ep, as an all-to-all leaves it, not {layout}"))),
        },
        Op::GqaAttention { split_context: true, .. } => by_axis(v, d).and_then(|l| same_heads(v, d).map(|()| l)),
        _ => by_axis(v, d),
    }
}

/// A sum over `axis` that is added to a residual and normed: whole rows, cut as the residual's rows are.
fn sum_and_norm(v: View<'_>, delta: &Layout, axis: Axis) -> Result<Vec<Layout>, Illegal> {
    if delta.get(axis) != Some(Placement::Partial) {
        return Err(illegal(format!("there is nothing to sum over {}: operand 0 is {delta}", axis.name())));
    }
    let summed = delta.clone().without(axis);
    if let Some((cut, placement)) = summed.entries().iter().find(|(_, p)| *p != Placement::Shard(0)) {
        return Err(illegal(format!("a norm needs whole rows, and operand 0 is {} over {}", Cut::of(Some(*placement)).name(), cut.name())));
    }
    for (i, wanted) in [(1, &summed), (2, &Layout::replicated())] {
        if let Some(t) = v.input(i).filter(|t| t.layout != *wanted) {
            return Err(illegal(format!("operand {i} must be {wanted}, not {}", t.layout)));
        }
    }
    Ok(vec![summed.clone(), summed])
}

/// Under decode context parallelism a rank's queries are those of the key-value heads that it holds.
fn same_heads(v: View<'_>, d: &Deployment) -> Result<(), Illegal> {
    let heads = head_axis(d);
    let cut = |i: usize, axis: Axis| v.input(i).is_some_and(|t| t.layout.get(axis) == Some(Placement::Shard(1)));
    let queries = cut(0, Axis::HeadTp) || d.axis_size(Axis::HeadTp) == 1;
    match queries && cut(1, heads) {
        true => Ok(()),
        false => {
            Err(illegal(format!("queries must be shard1@head_tp and the cache shard1@{}: a rank attends with its own heads", heads.name())))
        }
    }
}

/// Rows cut over all ranks of a stage: the rows that a rank sends in an all-to-all.
fn own_rows(d: &Deployment) -> Layout {
    let axes: &[Axis] = if d.dp_attention > 1 { &[Axis::AttnDp, Axis::AttnTp] } else { &[Axis::Tp] };
    axes.iter().filter(|a| d.axis_size(**a) > 1).fold(Layout::replicated(), |l, a| l.with(*a, Placement::Shard(0)))
}

fn dispatch(v: View<'_>, d: &Deployment) -> Result<Vec<Layout>, Illegal> {
    if d.ep <= 1 || d.ep != d.tp {
        return Err(illegal("an all-to-all needs ep equal to tp, and more than one rank"));
    }
    let own = own_rows(d);
    match v.inputs().find(|t| t.layout != own) {
        Some(t) => Err(illegal(format!("{} must be {own}: each rank sends its own rows; it is {}", t.name, t.layout))),
        None => Ok(vec![Layout::shard(Axis::Ep, 0); 3]),
    }
}

/// A gather takes away the innermost cut of a dimension.
fn gather(layout: Layout, axis: Axis, dim: u8) -> Result<Layout, Illegal> {
    if layout.get(axis) != Some(Placement::Shard(dim)) {
        return Err(illegal(format!("operand 0 is not cut along {dim} over {}, it is {layout}", axis.name())));
    }
    let rest = layout.without(axis);
    match rest.shard_axis(dim) {
        Some(inner) if axis == Axis::AttnDp => {
            Err(illegal(format!("rows are cut over {} inside attn_dp, so that is gathered first", inner.name())))
        }
        _ => Ok(rest),
    }
}

/// The axis that cuts attention heads in a deployment.
fn head_axis(d: &Deployment) -> Axis {
    if d.dp_attention > 1 { Axis::AttnTp } else { Axis::Tp }
}

/// Heads of each rank become the heads of its decode-context group.
fn gather_heads(d: &Deployment, layout: Layout) -> Result<Layout, Illegal> {
    let heads = head_axis(d);
    if d.dcp <= 1 || layout.get(heads) != Some(Placement::Shard(1)) {
        return Err(illegal(format!("a gather of heads over dcp needs shard1@{}, operand 0 is {layout}", heads.name())));
    }
    let rest = layout.without(heads);
    Ok(if d.axis_size(Axis::HeadTp) > 1 { rest.with(Axis::HeadTp, Placement::Shard(1)) } else { rest })
}

/// Summands over a decode-context group become sums of each rank's own heads.
fn scatter_heads(d: &Deployment, layout: Layout) -> Result<Layout, Illegal> {
    let gathered = d.axis_size(Axis::HeadTp) == 1 || layout.get(Axis::HeadTp) == Some(Placement::Shard(1));
    if layout.get(Axis::Dcp) != Some(Placement::Partial) || !gathered {
        return Err(illegal(format!("operand 0 must be a summand over dcp with heads cut over head_tp, it is {layout}")));
    }
    Ok(layout.without(Axis::Dcp).without(Axis::HeadTp).with(head_axis(d), Placement::Shard(1)))
}

/// A slice or a scatter makes a new innermost cut of a dimension.
fn cut(v: View<'_>, d: &Deployment, layout: Layout, axis: Axis, dim: u8) -> Result<Layout, Illegal> {
    if let Some(outer) = layout.shard_axis(dim).filter(|a| axis == Axis::AttnDp || *a != Axis::AttnDp) {
        return Err(illegal(format!("dimension {dim} is already cut over {}", outer.name())));
    }
    let cut = layout.with(axis, Placement::Shard(dim));
    let shape = v.output(0).map_or(&[][..], |t| t.shape.as_slice());
    match misformed(d, &cut, shape) {
        Some(message) => Err(illegal(message)),
        None => Ok(cut),
    }
}

fn reduce_scatter(v: View<'_>, d: &Deployment, layout: Layout, axis: Axis, dim: u8) -> Result<Layout, Illegal> {
    let same_ranks = |a: Axis| a == axis || (a == Axis::Tp && axis == Axis::AttnDp && d.axis_size(Axis::AttnTp) == 1);
    match layout.partial_axis() {
        Some(partial) if same_ranks(partial) => cut(v, d, layout.without(partial), axis, dim),
        _ => Err(illegal(format!("there is nothing to sum over {}: operand 0 is {layout}", axis.name()))),
    }
}

/// Results of an op with a table.
fn by_axis(v: View<'_>, d: &Deployment) -> Result<Vec<Layout>, Illegal> {
    let mut layouts = vec![Layout::replicated(); v.node.outputs.len()];
    for axis in Axis::ALL {
        let cuts: Vec<Cut> = v.inputs().map(|t| Cut::of(t.layout.get(axis))).collect();
        if cuts.iter().all(|c| *c == R) {
            continue;
        }
        let table = patterns(&v.node.op);
        let fits = |p: &&Pattern| legal_here(p.when, axis, v) && cuts.iter().zip(p.operands).all(|(a, b)| a == b);
        let Some(pattern) = table.iter().find(fits) else { return Err(no_pattern(v, axis, &cuts, table)) };
        for (layout, cut) in layouts.iter_mut().zip(pattern.results) {
            if let Some(placement) = cut.placement() {
                *layout = layout.clone().with(axis, placement);
            }
        }
    }
    for (layout, i) in layouts.iter_mut().zip(0..) {
        *layout = canonical(d, layout.clone());
        let shape = v.output(i).map_or(&[][..], |t| t.shape.as_slice());
        if let Some(message) = misformed(d, layout, shape) {
            return Err(illegal(format!("result {i} would be {layout}: {message}")));
        }
    }
    Ok(layouts)
}

fn legal_here(when: When, axis: Axis, v: View<'_>) -> bool {
    let received = v.input(0).is_some_and(|t| t.shape.first() == Some(&Dim::Received));
    match when {
        When::Any => true,
        When::Sequences => axis == Axis::AttnDp,
        When::Tokens => !received,
        When::Experts => axis == Axis::Ep && !received,
        When::ExpertSlices => axis == Axis::MoeTp && !received,
        When::Received => axis == Axis::Ep && received,
        When::Context => axis == Axis::Dcp,
        When::GatheredHeads => axis == Axis::HeadTp,
        When::OwnHeads => axis == Axis::Tp || axis == Axis::AttnTp,
    }
}

/// The fault of operands that no row of the table matches.
fn no_pattern(v: View<'_>, axis: Axis, cuts: &[Cut], table: &[Pattern]) -> Illegal {
    let summand = cuts.iter().enumerate().find(|(i, c)| **c == P && !table.iter().any(|p| p.operands.get(*i) == Some(&P)));
    if let Some((i, _)) = summand {
        let message = format!("operand {i} ({}) is a summand over {}, not the sum", v.node.inputs[i], axis.name());
        return Illegal { rule: Rule::Partial, message };
    }
    let row = |cuts: &[Cut]| cuts.iter().map(|c| c.name()).collect::<Vec<_>>().join(", ");
    let known: Vec<String> = table
        .iter()
        .filter(|p| legal_here(p.when, axis, v))
        .map(|p| format!("({})", row(&p.operands[..p.operands.len().min(cuts.len())])))
        .chain(["all replicated".into()])
        .collect();
    illegal(format!("operands over {} are ({}); legal are {}", axis.name(), row(cuts), known.join(", ")))
}

/// A sum over all expert axes is a sum over all ranks of the stage.
fn canonical(d: &Deployment, layout: Layout) -> Layout {
    let partial = |a: Axis| layout.get(a) == Some(Placement::Partial);
    let covered = |a: Axis| partial(a) || d.axis_size(a) == 1;
    if (partial(Axis::Ep) || partial(Axis::MoeTp)) && covered(Axis::Ep) && covered(Axis::MoeTp) {
        return layout.without(Axis::Ep).without(Axis::MoeTp).with(Axis::Tp, Placement::Partial);
    }
    layout
}

impl Check<'_> {
    /// Named outputs are values, not summands.
    pub(super) fn outputs(&mut self) {
        for (name, t) in &self.graph.outputs {
            let tensor = &self.graph.tensors[*t];
            if tensor.layout.partial_axis().is_some() {
                self.add(Rule::Partial, super::Entity::Output(name.clone()), format!("{t} is a summand, not the sum"));
            }
            if !matches!(tensor.kind, TensorKind::Activation) {
                self.add(Rule::Operands, super::Entity::Output(name.clone()), format!("{t} is not a computed value"));
            }
        }
    }
}
