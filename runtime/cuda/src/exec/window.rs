//! Memory that the ranks of a group map of each other, and the all-reduce over it.

use super::exchange::{Part, kernel};
use super::gpu::{Address, Call, Element, GpuError};
use moetwin_kernels::launch::Arg;
use std::time::Duration;

/// Which code sums over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllReduceBackend {
    /// NCCL.
    #[default]
    Nccl,
    /// One-shot where every GPU of a group reaches every other one's memory over NVLink, as engines choose; NCCL elsewhere: over PCIe it depends
    /// on switches which of the two is faster.
    Auto,
    /// Our own kernel over peer memory, every rank reading all others, up to [`one_shot_bytes`]; NCCL beyond, and where peers cannot be mapped.
    OneShot,
}

/// Most ranks of a group whose memory is mapped (`MAX_RANKS` in exchange.cu).
pub const MOST_RANKS: usize = 8;
/// Most blocks of the kernel, and threads of one: those of vLLM's `custom_all_reduce.cuh`.
const MOST_BLOCKS: u64 = 36;
const BLOCK: u32 = 512;
/// Elements that a thread takes at once, 16 bytes.
const AT_ONCE: u64 = 8;
/// A window's parts: `Control`, what has arrived by block and rank, two halves of staged operands (exchange.cu).
const ARRIVED_AT: u64 = 256;
const STAGED_AT: u64 = ARRIVED_AT + (MOST_BLOCKS * MOST_RANKS as u64 * 4).next_multiple_of(256);
/// Bytes of `Peers`.
pub(crate) const PEERS_BYTES: u64 = 2 * 8 * MOST_RANKS as u64;

/// The largest all-reduce among so many ranks that takes one shot: beyond it every rank reading everything costs more than the steps it saves.
/// Two ranks always take one up to the size of their buffer, four below 512 KiB, eight below 256 KiB (vLLM's `custom_all_reduce.cuh`).
pub fn one_shot_bytes(members: usize) -> u64 {
    match members {
        ..=2 => 8 << 20,
        3..=4 => (512 << 10) - 2,
        _ => (256 << 10) - 2,
    }
}

/// Elements of a half.
fn half_elements(members: usize) -> u64 {
    (one_shot_bytes(members) / Element::Bf16.bytes()).next_multiple_of(128)
}

/// Bytes of a rank's window in a group.
pub(crate) fn window_bytes(members: usize) -> u64 {
    STAGED_AT + 2 * half_elements(members) * Element::Bf16.bytes()
}

/// A rank's view of its group's windows.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// This rank's index in the group, and its members.
    index: u32,
    members: u32,
    /// This rank's window.
    base: Address,
    /// The table of everybody's (`Peers`).
    peers: Address,
    /// Elements of a half.
    half: u64,
    /// The word of the host that ends waits.
    stop: Address,
}

impl Window {
    /// The window at `base`, with the group's [`peers_table`] at `peers` and its GPU's stop word at `stop`.
    pub(crate) fn new(index: u32, members: u32, base: Address, peers: Address, stop: Address) -> Self {
        Self { index, members, base, peers, half: half_elements(members as usize), stop }
    }
    /// The same window for this rank alone, with a table of its own.
    pub(crate) fn alone(&self, peers: Address) -> Self {
        Self { index: 0, members: 1, peers, ..*self }
    }
    /// The kernel that carries calls out, where it can: one sum of bf16 that is small enough. `fault` and `command` are for what goes wrong,
    /// `bound` is the longest wait for a peer.
    pub(crate) fn one_shot(
        &self,
        element: Element,
        calls: &[Call],
        fault: Address,
        command: u32,
        bound: Duration,
    ) -> Result<Option<Part>, GpuError> {
        let &[Call::AllReduce { from, to, count }] = calls else { return Ok(None) };
        let aligned = from.is_multiple_of(16) && to.is_multiple_of(16);
        if element != Element::Bf16 || count == 0 || count * element.bytes() > one_shot_bytes(self.members as usize) || !aligned {
            return Ok(None);
        }
        let blocks = count.div_ceil(AT_ONCE).div_ceil(u64::from(BLOCK)).clamp(1, MOST_BLOCKS);
        let nanoseconds = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        let args = vec![
            (Arg::Input(0), from),
            (Arg::Output(0), to),
            (Arg::Null, self.peers),
            (Arg::Null, self.base),
            (Arg::Null, self.stop),
            (Arg::Fault, fault),
            (Arg::I32(0), u64::from(command)),
            (Arg::I32(0), u64::from(self.index)),
            (Arg::I32(0), u64::from(self.members)),
            (Arg::U64(0), count),
            (Arg::U64(0), self.half),
            (Arg::U64(0), nanoseconds),
        ];
        let (launch, cells) = kernel("all_reduce_one_shot", [blocks, 1], BLOCK, args)?;
        Ok(Some(Part::Meet(launch, cells)))
    }
}

/// `Peers` of exchange.cu: where everybody's staged operands and arrivals are, for the windows in the order of the group.
pub(crate) fn peers_table(windows: &[Address]) -> Vec<u8> {
    let column = |at: u64| {
        let known = windows.iter().map(move |w| w + at);
        known.chain(std::iter::repeat(0)).take(MOST_RANKS)
    };
    column(STAGED_AT).chain(column(ARRIVED_AT)).flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shot_takes_single_sums_of_bf16_up_to_its_size() {
        let window = Window::new(1, 4, 1 << 20, 2 << 20, 96);
        let takes = |element, calls: &[Call]| window.one_shot(element, calls, 64, 7, Duration::from_secs(1)).unwrap();
        let sum = |count| Call::AllReduce { from: 4096, to: 8192, count };
        let most = one_shot_bytes(4) / 2;
        let Some(Part::Meet(launch, cells)) = takes(Element::Bf16, &[sum(7168)]) else { panic!("a small sum") };
        assert_eq!((launch.kernel, launch.grid, cells.len()), ("all_reduce_one_shot", (2, 1, 1), launch.args.len()));
        assert_eq!(cells[4..10], [96, 64, 7, 1, 4, 7168]);
        assert!(takes(Element::Bf16, &[sum(most)]).is_some() && takes(Element::Bf16, &[sum(most + 1)]).is_none());
        assert!(takes(Element::F32, &[sum(8)]).is_none() && takes(Element::Bf16, &[sum(8), sum(8)]).is_none());
        assert!(takes(Element::Bf16, &[Call::AllReduce { from: 2, to: 8192, count: 8 }]).is_none(), "not aligned");
        // Both halves of the largest sum lie in the window.
        assert!(STAGED_AT + 2 * 2 * half_elements(4) <= window_bytes(4) && half_elements(4) >= most);
    }

    #[test]
    fn the_table_names_every_window_twice() {
        let table = peers_table(&[1000, 5000]);
        let word = |i: usize| u64::from_le_bytes(*table[8 * i..].first_chunk().unwrap());
        assert_eq!(table.len() as u64, PEERS_BYTES);
        assert_eq!([word(0), word(1), word(2)], [1000 + STAGED_AT, 5000 + STAGED_AT, 0]);
        assert_eq!([word(MOST_RANKS), word(MOST_RANKS + 1)], [1000 + ARRIVED_AT, 5000 + ARRIVED_AT]);
    }
}
