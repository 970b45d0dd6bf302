//! Which communicator calls and copies carry out a collective on one rank.

use super::gpu::{Address, Call, Element, GpuError};
use super::packed::{self, Packing, Sizes};
use moetwin_kernels::launch::{Arg, Launch, element_of, launches};
use moetwin_kernels::reference::collective::held_ranges;
use moetwin_models::{Graph, Node, Op, RankId, TensorId};

/// A part of a collective, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// Calls of the group's communicator.
    Calls(Element, Vec<Call>),
    /// A copy on the device.
    Copy { from: Address, to: Address, bytes: u64 },
    /// A fill on the device.
    Fill { to: Address, byte: u8, bytes: u64 },
    /// A kernel on addresses.
    Kernel(Launch, Vec<u64>),
    /// A kernel in which the members of the group wait for each other.
    Meet(Launch, Vec<u64>),
}

impl Part {
    /// What [`kernel`] has made.
    pub(crate) fn kernel((launch, cells): (Launch, Vec<u64>)) -> Self {
        Part::Kernel(launch, cells)
    }
}

/// A kernel of exchange.cu on `grid` blocks of `block` threads, with its arguments and their values.
pub(crate) fn kernel(name: &'static str, grid: [u64; 2], block: u32, args: Vec<(Arg, u64)>) -> Result<(Launch, Vec<u64>), GpuError> {
    let blocks = |n: u64| u32::try_from(n).map_err(|e| GpuError::new(name, e.to_string()));
    let (args, cells) = args.into_iter().unzip();
    let grid = (blocks(grid[0])?, blocks(grid[1])?, 1);
    Ok((Launch { source: "exchange.cu", kernel: name, grid, block, shared_bytes: 0, args, product: None }, cells))
}

/// Where a rank's operands, results and scratch memory are.
pub(super) struct Places<'a> {
    pub inputs: &'a [Address],
    pub outputs: &'a [Address],
    pub scratch: Address,
    /// How rows of experts are packed, where they are.
    pub packing: Option<Packing>,
}

/// The place of a rank among the members of a group.
pub(super) fn place_in(rank: RankId, members: &[RankId]) -> Result<u32, GpuError> {
    let place = members.iter().position(|member| *member == rank).and_then(|place| u32::try_from(place).ok());
    place.ok_or_else(|| {
        let all: Vec<String> = members.iter().map(|member| member.0.to_string()).collect();
        let what = format!("rank {} is to take part in an exchange of ranks {}, of which it is none", rank.0, all.join(", "));
        GpuError::new("a group of the program", what)
    })
}

/// The sizes of a dispatch or combine on a rank, where `capacity` rows are fewer than a rank may have; else its rows have slots of their own
/// on every rank, and none can be missing.
pub(crate) fn packed_sizes(graph: &Graph, node: &Node, rank: RankId, members: &[RankId], capacity: u64) -> Result<Option<Sizes>, GpuError> {
    let (own, held) = match node.op {
        Op::Dispatch => (node.inputs[0], node.outputs[0]),
        Op::Combine => (node.outputs[0], node.inputs[0]),
        _ => return Ok(None),
    };
    let planner = Planner { graph, node, rank, members };
    let ids = if node.op == Op::Dispatch { node.inputs[1] } else { own };
    let received = graph.local_sizes(held, rank).map_err(split)?[0];
    let sizes = Sizes {
        members: members.len() as u64,
        index: u64::from(place_in(rank, members)?),
        rows: graph.local_sizes(own, rank).map_err(split)?[0],
        slots: received / members.len() as u64,
        hidden: planner.width(own, rank)?,
        topk: planner.width(ids, rank)?,
    };
    Ok((capacity < sizes.slots).then_some(sizes))
}

/// The first expert of every member and one past the last, for a dispatch: a table that the kernels read.
pub(crate) fn expert_bounds(graph: &Graph, dispatch: &Node, members: &[RankId]) -> Result<Vec<i32>, GpuError> {
    let wrong = |what: &str| GpuError::new("packing rows", what);
    let reads = |n: &Node| matches!(n.op, Op::Experts { .. }) && n.inputs.first() == dispatch.outputs.first();
    let (_, experts) = graph.nodes.iter().find(|(_, n)| reads(n)).ok_or_else(|| wrong("no experts read what is dispatched"))?;
    let mut bounds = Vec::with_capacity(members.len() + 1);
    for &member in members {
        let held = graph.local_shape(experts.inputs[3], member).map_err(split)?[0].clone();
        let [start, end] = [held.start, held.end].map(|e| i32::try_from(e).unwrap_or(i32::MAX));
        match bounds.last() {
            None => bounds.extend([start, end]),
            Some(&last) if last == start => bounds.push(end),
            Some(_) => return Err(wrong("experts of the group's ranks do not follow each other")),
        }
    }
    Ok(bounds)
}

/// The parts of `node`'s collective on `rank`, member number `index` of `members`; and the scratch bytes they use.
pub(super) fn parts(
    graph: &Graph,
    node: &Node,
    rank: RankId,
    members: &[RankId],
    places: &Places<'_>,
) -> Result<(Vec<Part>, u64), GpuError> {
    let planner = Planner { graph, node, rank, members };
    match node.op {
        Op::AllReduce { .. } => {
            let count = planner.elements(node.inputs[0], rank)?;
            planner.summed(count, places, |to| Ok(vec![Call::AllReduce { from: places.inputs[0], to, count }]))
        }
        Op::AllReduceAddRmsNorm { .. } => planner.sum_and_norm(places),
        Op::AllGather { dim: 0, .. } => planner.gather_rows(places.inputs[0], places.outputs[0]).map(|p| (vec![p], 0)),
        Op::AllGather { .. } => planner.gather_columns(places),
        Op::ReduceScatter { dim: 0, .. } => {
            let kept = planner.elements(node.outputs[0], rank)?;
            planner.summed(kept, places, |to| planner.reduce_rows(places.inputs[0], to))
        }
        Op::Dispatch => match places.packing {
            Some(packing) => planner.packed_dispatch(places, &packing),
            None => planner.dispatch(places).map(|p| (p, 0)),
        },
        Op::Combine if places.packing.is_some() => planner.packed_combine(places),
        Op::Combine => {
            let kept = planner.elements(node.outputs[0], rank)?;
            planner.summed(kept, places, |to| planner.combine(places, to))
        }
        Op::Slice { dim, .. } => planner.slice(dim, places).map(|p| (p, 0)),
        _ => Err(GpuError::new(node.op.name(), "has no CUDA form for this dimension")),
    }
}

struct Planner<'a> {
    graph: &'a Graph,
    node: &'a Node,
    rank: RankId,
    members: &'a [RankId],
}

fn split(e: impl ToString) -> GpuError {
    GpuError::new("cutting a tensor", e.to_string())
}

impl Planner<'_> {
    fn elements(&self, tensor: TensorId, rank: RankId) -> Result<u64, GpuError> {
        Ok(self.graph.local_sizes(tensor, rank).map_err(split)?.iter().product())
    }
    fn width(&self, tensor: TensorId, rank: RankId) -> Result<u64, GpuError> {
        Ok(self.graph.local_sizes(tensor, rank).map_err(split)?.iter().skip(1).product())
    }
    /// Every member's rows go to their place on every member.
    fn gather_rows(&self, from: Address, to: Address) -> Result<Part, GpuError> {
        let (input, output) = (self.node.inputs[0], self.node.outputs[0]);
        let element = element_of(self.graph, input);
        let width = self.width(output, self.rank)?;
        let mut calls = Vec::new();
        for (root, &m) in (0u32..).zip(self.members) {
            for r in held_ranges(self.graph, output, input, 0, m).map_err(split)? {
                let (start, count) = (r.start as u64 * width, (r.end - r.start) as u64 * width);
                if count > 0 {
                    calls.push(Call::Broadcast { from, to: to + start * element.bytes(), count, root });
                }
            }
        }
        Ok(Part::Calls(element, calls))
    }
    /// Members' columns arrive one member after the other in scratch memory and are then laid side by side.
    fn gather_columns(&self, places: &Places<'_>) -> Result<(Vec<Part>, u64), GpuError> {
        let (input, output) = (self.node.inputs[0], self.node.outputs[0]);
        let element = element_of(self.graph, input);
        let rows = self.graph.local_sizes(output, self.rank).map_err(split)?[0];
        let whole = self.width(output, self.rank)?;
        let (mut calls, mut copies, mut offset) = (Vec::new(), Vec::new(), 0);
        for (root, &m) in (0u32..).zip(self.members) {
            let part = self.width(input, m)?;
            let at = places.scratch + offset * element.bytes();
            if rows * part > 0 {
                calls.push(Call::Broadcast { from: places.inputs[0], to: at, count: rows * part, root });
                let mut column = 0;
                for r in held_ranges(self.graph, output, input, 1, m).map_err(split)? {
                    copies.push(copy_columns(at, places.outputs[0], rows, part, whole, column, r.start as u64, (r.end - r.start) as u64)?);
                    column += (r.end - r.start) as u64;
                }
            }
            offset += rows * part;
        }
        let mut parts = vec![Part::Calls(element, calls)];
        parts.extend(copies);
        Ok((parts, offset * element.bytes()))
    }
    /// Sums of `count` elements on this rank. Partial sums are f32: where the result is bf16, they are added in f32 in scratch memory and
    /// rounded once.
    fn summed(
        &self,
        count: u64,
        places: &Places<'_>,
        calls: impl FnOnce(Address) -> Result<Vec<Call>, GpuError>,
    ) -> Result<(Vec<Part>, u64), GpuError> {
        let (from, to) = (element_of(self.graph, self.node.inputs[0]), element_of(self.graph, self.node.outputs[0]));
        if from == to {
            return Ok((vec![Part::Calls(from, calls(places.outputs[0])?)], 0));
        }
        if (from, to) != (Element::F32, Element::Bf16) {
            return Err(GpuError::new(self.node.op.name(), format!("has no CUDA form from {from:?} to {to:?}")));
        }
        let mut parts = vec![Part::Calls(from, calls(places.scratch)?)];
        if count > 0 {
            parts.push(round(places.scratch, places.outputs[0], count)?);
        }
        Ok((parts, count * from.bytes()))
    }
    /// A sum in scratch memory, then its norm.
    fn sum_and_norm(&self, places: &Places<'_>) -> Result<(Vec<Part>, u64), GpuError> {
        let failed = |e: String| GpuError::new(self.node.op.name(), e);
        let id = self.graph.tensors[self.node.outputs[0]].producer.ok_or_else(|| failed("belongs to no graph".to_owned()))?;
        let plan = launches(self.graph, id, self.rank).map_err(|e| failed(e.to_string()))?;
        let (count, element) = (self.elements(self.node.inputs[0], self.rank)?, element_of(self.graph, self.node.inputs[0]));
        let mut parts = vec![Part::Calls(element, vec![Call::AllReduce { from: places.inputs[0], to: places.scratch, count }])];
        for launch in plan.launches {
            let cell = |arg: &Arg| match *arg {
                Arg::Input(i) => Ok(places.inputs[i]),
                Arg::Output(i) => Ok(places.outputs[i]),
                Arg::Scratch { offset } => Ok(places.scratch + offset),
                Arg::I32(v) => Ok(u64::from(v as u32)),
                Arg::F32(v) => Ok(u64::from(v.to_bits())),
                ref other => Err(failed(format!("has no place for {other:?}"))),
            };
            let cells = launch.args.iter().map(cell).collect::<Result<_, _>>()?;
            parts.push(Part::Kernel(launch, cells));
        }
        Ok((parts, plan.scratch_bytes))
    }
    /// The sum of every member's rows goes to the member that keeps them.
    fn reduce_rows(&self, from: Address, to: Address) -> Result<Vec<Call>, GpuError> {
        let (input, output) = (self.node.inputs[0], self.node.outputs[0]);
        let element = element_of(self.graph, input);
        let width = self.width(input, self.rank)?;
        let mut calls = Vec::new();
        for (root, &m) in (0u32..).zip(self.members) {
            for r in held_ranges(self.graph, input, output, 0, m).map_err(split)? {
                let (start, count) = (r.start as u64 * width, (r.end - r.start) as u64 * width);
                if count > 0 {
                    calls.push(Call::Reduce { from: from + start * element.bytes(), to, count, root });
                }
            }
        }
        Ok(calls)
    }
    /// Every member's rows go to its slots on every member; slots beyond its rows have no expert. A row none of whose experts a member
    /// holds costs a transfer and no arithmetic: its ids are others'.
    fn dispatch(&self, places: &Places<'_>) -> Result<Vec<Part>, GpuError> {
        let mut parts = Vec::new();
        for (i, (&input, &output)) in self.node.inputs.iter().zip(&self.node.outputs).enumerate() {
            let element = element_of(self.graph, input);
            let sizes = self.graph.local_sizes(output, self.rank).map_err(split)?;
            let (slots, width) = (sizes[0] / self.members.len() as u64, sizes.iter().skip(1).product::<u64>());
            let byte = if element == Element::I32 { 0xff } else { 0 };
            parts.push(Part::Fill { to: places.outputs[i], byte, bytes: sizes.iter().product::<u64>() * element.bytes() });
            let mut calls = Vec::new();
            for (root, &m) in (0u32..).zip(self.members) {
                let count = self.elements(input, m)?;
                if count > 0 {
                    let start = u64::from(root) * slots * width * element.bytes();
                    calls.push(Call::Broadcast { from: places.inputs[i], to: places.outputs[i] + start, count, root });
                }
            }
            parts.push(Part::Calls(element, calls));
        }
        Ok(parts)
    }
    fn combine(&self, places: &Places<'_>, to: Address) -> Result<Vec<Call>, GpuError> {
        let (input, output) = (self.node.inputs[0], self.node.outputs[0]);
        let element = element_of(self.graph, input);
        let sizes = self.graph.local_sizes(input, self.rank).map_err(split)?;
        let (slots, width) = (sizes[0] / self.members.len() as u64, sizes.iter().skip(1).product::<u64>());
        let mut calls = Vec::new();
        for (root, &m) in (0u32..).zip(self.members) {
            let count = self.elements(output, m)?;
            if count > 0 {
                calls.push(Call::Reduce { from: places.inputs[0] + u64::from(root) * slots * width * element.bytes(), to, count, root });
            }
        }
        Ok(calls)
    }
    fn packed_sizes(&self, packing: &Packing) -> Result<Sizes, GpuError> {
        let sizes = packed_sizes(self.graph, self.node, self.rank, self.members, packing.capacity)?;
        sizes.ok_or_else(|| GpuError::new(self.node.op.name(), "nothing has to be packed"))
    }
    fn packed_dispatch(&self, places: &Places<'_>, packing: &Packing) -> Result<(Vec<Part>, u64), GpuError> {
        let elements = self.node.inputs.iter().map(|t| element_of(self.graph, *t));
        if !elements.eq([Element::Bf16, Element::I32, Element::F32]) {
            return Err(GpuError::new("dispatch", "has no packed form for these element types"));
        }
        let three = |list: &[Address]| -> Result<[Address; 3], GpuError> {
            list.try_into().map_err(|_| GpuError::new("dispatch", "has three operands and three results"))
        };
        packed::dispatch(&self.packed_sizes(packing)?, packing, three(places.inputs)?, three(places.outputs)?, places.scratch)
    }
    fn packed_combine(&self, places: &Places<'_>) -> Result<(Vec<Part>, u64), GpuError> {
        let packing = places.packing.unwrap_or_default();
        if element_of(self.graph, self.node.inputs[0]) != Element::Bf16 {
            return Err(GpuError::new("combine", "has no packed form for sums that are not bf16"));
        }
        packed::combine(&self.packed_sizes(&packing)?, &packing, places.inputs[0], places.outputs[0], places.scratch)
    }
    fn slice(&self, dim: u8, places: &Places<'_>) -> Result<Vec<Part>, GpuError> {
        let (input, output) = (self.node.inputs[0], self.node.outputs[0]);
        let element = element_of(self.graph, input);
        let ranges = held_ranges(self.graph, input, output, dim, self.rank).map_err(split)?;
        let (from_width, to_width) = (self.width(input, self.rank)?, self.width(output, self.rank)?);
        let rows = self.graph.local_sizes(output, self.rank).map_err(split)?[0];
        let mut parts = Vec::new();
        let mut at = 0;
        for r in ranges {
            let (start, n) = (r.start as u64, (r.end - r.start) as u64);
            if n == 0 || rows == 0 {
                continue;
            }
            parts.push(match dim {
                0 => Part::Copy {
                    from: places.inputs[0] + start * from_width * element.bytes(),
                    to: places.outputs[0] + at * from_width * element.bytes(),
                    bytes: n * from_width * element.bytes(),
                },
                _ => copy_columns(places.inputs[0], places.outputs[0], rows, from_width, to_width, start, at, n)?,
            });
            at += n;
        }
        Ok(parts)
    }
}

/// f32 elements rounded to bf16.
pub(crate) fn round(from: Address, to: Address, count: u64) -> Result<Part, GpuError> {
    let args = vec![(Arg::Scratch { offset: 0 }, from), (Arg::Output(0), to), (Arg::U64(0), count)];
    Ok(Part::kernel(kernel("round_f32_bf16", [count.div_ceil(256).min(4096), 1], 256, args)?))
}

/// Columns of bf16 matrices.
#[expect(clippy::too_many_arguments, reason = "two matrices and a window, as the kernel takes them")]
pub(crate) fn copy_columns(
    from: Address,
    to: Address,
    rows: u64,
    from_width: u64,
    to_width: u64,
    from_column: u64,
    to_column: u64,
    width: u64,
) -> Result<Part, GpuError> {
    let int = |v: u64| i32::try_from(v).map(|i| (Arg::I32(i), v)).map_err(|e| GpuError::new("copy_columns", e.to_string()));
    let mut args = vec![(Arg::Input(0), from), (Arg::Output(0), to)];
    for v in [from_width, to_width, from_column, to_column, width] {
        args.push(int(v)?);
    }
    // Eight columns a thread, and no more blocks than fill a GPU a few times.
    let parts = width.div_ceil(8 * 256).clamp(1, 64);
    Ok(Part::kernel(kernel("copy_columns", [rows, parts], 256, args)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_outside_its_group_has_no_place_in_it() {
        let members = [RankId(2), RankId(5)];
        assert_eq!((place_in(RankId(2), &members).ok(), place_in(RankId(5), &members).ok()), (Some(0), Some(1)));
        let text = place_in(RankId(3), &members).unwrap_err().to_string();
        assert!(text.contains("rank 3") && text.contains("ranks 2, 5"), "{text}");
    }
}
