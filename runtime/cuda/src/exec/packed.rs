//! Experts' rows in buffers of fixed capacity: a rank sends every other one at most so many rows, and only those that chose its experts. Which
//! rows those are is counted on the device; too many are a fault that the host sees at the end of the pass.

use super::exchange::{Part, kernel};
use super::gpu::{Address, Call, Element, GpuError};
use moetwin_kernels::launch::Arg;

/// Threads of a block that lists rows, and of one that copies a row.
const LIST_BLOCK: u32 = 256;
const ROW_BLOCK: u32 = 128;

/// Where the device keeps what packing needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packing {
    /// Rows that a rank may send to another one.
    pub capacity: u64,
    /// Rows sent, rows received and slots of rows ([`list_bytes`]); kept from a dispatch to its combine.
    pub lists: Address,
    /// First expert of every member, and one past the last (i32).
    pub bounds: Address,
    /// Where faults are noted.
    pub fault: Address,
    /// The command that is carried out.
    pub command: u32,
}

/// Sizes of an exchange, seen by one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Ranks of the group, and this one's index.
    pub members: u64,
    pub index: u64,
    /// This rank's rows.
    pub rows: u64,
    /// Rows of each rank in the buffer that experts read.
    pub slots: u64,
    pub hidden: u64,
    pub topk: u64,
}

impl Sizes {
    /// Bytes of a row on its way: its number, ids and weights, then its values (`record_bytes` in exchange.cu).
    fn record_bytes(&self) -> u64 {
        ((4 + 8 * self.topk).next_multiple_of(16) + 2 * self.hidden).next_multiple_of(16)
    }
    /// Addresses of rows sent, rows received and slots.
    fn lists(&self, p: &Packing) -> [Address; 3] {
        let list = 4 * self.members * p.capacity;
        [p.lists, p.lists + list, p.lists + 2 * list]
    }
}

/// Bytes of the lists of an exchange.
pub(crate) fn list_bytes(s: &Sizes, capacity: u64) -> u64 {
    4 * s.members * (2 * capacity + s.rows)
}

fn int(value: u64) -> Result<(Arg, u64), GpuError> {
    i32::try_from(value).map(|v| (Arg::I32(v), value)).map_err(|e| GpuError::new("packing rows", e.to_string()))
}

/// Sends every member its part of `from` and receives its own part of everybody's in `to`, `count` elements each.
fn all_to_all(s: &Sizes, element: Element, from: Address, to: Address, count: u64) -> [Part; 2] {
    let bytes = count * element.bytes();
    let others = || (0..s.members).filter(|m| *m != s.index);
    let sends = others().map(|m| Call::Send { from: from + m * bytes, count, peer: m as u32 });
    let receives = others().map(|m| Call::Receive { to: to + m * bytes, count, peer: m as u32 });
    let own = Part::Copy { from: from + s.index * bytes, to: to + s.index * bytes, bytes };
    [own, Part::Calls(element, sends.chain(receives).collect())]
}

/// A dispatch of `[x, ids, weights]`, and the scratch bytes that it uses.
pub(crate) fn dispatch(
    s: &Sizes,
    p: &Packing,
    inputs: [Address; 3],
    outputs: [Address; 3],
    scratch: Address,
) -> Result<(Vec<Part>, u64), GpuError> {
    let [x, ids, weights] = inputs;
    let [sent, received, slots] = s.lists(p);
    let part = p.capacity * s.record_bytes();
    let (going, coming) = (scratch, scratch + s.members * part);
    let (topk, hidden, capacity) = (int(s.topk)?, int(s.hidden)?, int(p.capacity)?);
    let mut parts = Vec::new();
    for (to, byte, width) in [(outputs[0], 0, 2 * s.hidden), (outputs[1], 0xff, 4 * s.topk), (outputs[2], 0, 4 * s.topk)] {
        parts.push(Part::Fill { to, byte, bytes: s.members * s.slots * width });
    }
    let args = vec![
        (Arg::Input(1), ids),
        (Arg::Null, p.bounds),
        (Arg::Null, sent),
        (Arg::Null, slots),
        (Arg::Fault, p.fault),
        (Arg::I32(0), u64::from(p.command)),
        int(s.rows)?,
        topk.clone(),
        capacity.clone(),
    ];
    parts.push(Part::kernel(kernel("dispatch_lists", [s.members, 1], LIST_BLOCK, args)?));
    let grid = [p.capacity, s.members];
    let scratch_at = |address: Address| (Arg::Scratch { offset: address - scratch }, address);
    let args = vec![
        (Arg::Input(0), x),
        (Arg::Input(1), ids),
        (Arg::Input(2), weights),
        (Arg::Null, sent),
        scratch_at(going),
        topk.clone(),
        hidden.clone(),
        capacity.clone(),
    ];
    parts.push(Part::kernel(kernel("dispatch_pack", grid, ROW_BLOCK, args)?));
    parts.extend(all_to_all(s, Element::I32, going, coming, part / Element::I32.bytes()));
    let args = vec![
        scratch_at(coming),
        (Arg::Output(0), outputs[0]),
        (Arg::Output(1), outputs[1]),
        (Arg::Output(2), outputs[2]),
        (Arg::Null, received),
        topk,
        hidden,
        capacity,
        int(s.slots)?,
    ];
    parts.push(Part::kernel(kernel("dispatch_unpack", grid, ROW_BLOCK, args)?));
    Ok((parts, 2 * s.members * part))
}

/// The combine after a dispatch of the same sizes, and the scratch bytes that it uses.
pub(crate) fn combine(s: &Sizes, p: &Packing, from: Address, to: Address, scratch: Address) -> Result<(Vec<Part>, u64), GpuError> {
    let [_, received, slots] = s.lists(p);
    let part = (p.capacity * s.hidden).next_multiple_of(8);
    let bytes = part * Element::Bf16.bytes();
    let (going, coming) = (scratch, scratch + s.members * bytes);
    let (hidden, capacity) = (int(s.hidden)?, int(p.capacity)?);
    let stride = (Arg::U64(part), part);
    let args = vec![
        (Arg::Input(0), from),
        (Arg::Null, received),
        (Arg::Scratch { offset: 0 }, going),
        hidden.clone(),
        capacity.clone(),
        int(s.slots)?,
        stride.clone(),
    ];
    let mut parts = vec![Part::kernel(kernel("combine_pack", [p.capacity, s.members], ROW_BLOCK, args)?)];
    parts.extend(all_to_all(s, Element::Bf16, going, coming, part));
    if s.rows > 0 {
        let args = vec![
            (Arg::Scratch { offset: coming - scratch }, coming),
            (Arg::Null, slots),
            (Arg::Output(0), to),
            int(s.members)?,
            hidden,
            stride,
        ];
        parts.push(Part::kernel(kernel("combine_sum", [s.rows, 1], LIST_BLOCK, args)?));
    }
    Ok((parts, 2 * s.members * bytes))
}
