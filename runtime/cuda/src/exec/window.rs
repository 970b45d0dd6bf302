//! Memory that the ranks of a group map of each other, and the all-reduce over it.

use super::exchange::{Part, kernel};
use super::gpu::{Address, Call, Element, GpuError};
use moetwin_kernels::launch::one_shot::{
    ARRIVED_AT, AT_ONCE, FUSED_BLOCK, MOST_BLOCKS, MOST_RANKS, STAGED_AT, fused_parts, fuses, half_elements, one_shot_bytes,
    packet_elements, packets_at,
};
use moetwin_kernels::launch::{Arg, Launch};
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

/// Threads of a block of the sum alone: those of vLLM's `custom_all_reduce.cuh`.
const BLOCK: u32 = 512;
/// Bytes of `Peers`.
pub(crate) const PEERS_BYTES: u64 = 3 * 8 * MOST_RANKS as u64;

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
        let mut args = vec![(Arg::Input(0), from), (Arg::Output(0), to)];
        args.extend(self.meeting(fault, command));
        args.extend([(Arg::U64(0), count), (Arg::U64(0), self.half), (Arg::U64(0), nanoseconds(bound))]);
        let (launch, cells) = kernel("all_reduce_one_shot", [blocks, 1], BLOCK, args)?;
        Ok(Some(Part::Meet(launch, cells)))
    }
    /// The kernel that carries out a sum and the norm behind it, where it can. The norm is what would else be launched: `add_rms_norm` of the
    /// sum, a residual and a weight; the blocks of a row have as many threads as its block, so that both give the same bits.
    pub(crate) fn one_shot_normed(
        &self,
        sum: (Element, &[Call]),
        norm: (&Launch, &[u64]),
        fault: Address,
        command: u32,
        bound: Duration,
    ) -> Result<Option<Part>, GpuError> {
        let (Element::Bf16, &[Call::AllReduce { from, to, count }]) = sum else { return Ok(None) };
        let (Launch { kernel: "add_rms_norm", grid: (rows, 1, 1), .. }, &[delta, residual, weight, y, kept, n, eps]) = norm else {
            return Ok(None);
        };
        let (rows, aligned) = (u64::from(*rows), [from, residual, weight, y, kept].iter().all(|a| a.is_multiple_of(16)));
        if delta != to || count != rows * n || !aligned || !fuses(self.members as usize, rows, n) {
            return Ok(None);
        }
        let mut args =
            vec![(Arg::Input(0), from), (Arg::Input(1), residual), (Arg::Input(2), weight), (Arg::Output(0), y), (Arg::Output(1), kept)];
        args.extend(self.meeting(fault, command));
        let capacity = packet_elements(self.members as usize);
        args.extend([(Arg::I32(0), n), (Arg::F32(0.0), eps), (Arg::U64(0), capacity), (Arg::U64(0), nanoseconds(bound))]);
        let parts = fused_parts(n);
        let name = if parts == 1 { "all_reduce_add_rms_norm" } else { "all_reduce_add_rms_norm_wide" };
        let (launch, cells) = kernel(name, [rows * u64::from(parts), 1], FUSED_BLOCK, args)?;
        Ok(Some(Part::Meet(launch, cells)))
    }
    /// What a kernel needs to meet its twins.
    fn meeting(&self, fault: Address, command: u32) -> [(Arg, u64); 7] {
        [
            (Arg::Null, self.peers),
            (Arg::Null, self.base),
            (Arg::Null, self.stop),
            (Arg::Fault, fault),
            (Arg::I32(0), u64::from(command)),
            (Arg::I32(0), u64::from(self.index)),
            (Arg::I32(0), u64::from(self.members)),
        ]
    }
}

fn nanoseconds(bound: Duration) -> u64 {
    u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)
}

/// `Peers` of exchange.cu: where everybody's staged operands, arrivals and packets are, for the windows in the order of the group.
pub(crate) fn peers_table(windows: &[Address]) -> Vec<u8> {
    let column = |at: u64| {
        let known = windows.iter().map(move |w| w + at);
        known.chain(std::iter::repeat(0)).take(MOST_RANKS)
    };
    let parts = [STAGED_AT, ARRIVED_AT, packets_at(windows.len())];
    parts.into_iter().flat_map(column).flat_map(u64::to_le_bytes).collect()
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
    }

    #[test]
    fn a_sum_with_its_norm_is_one_kernel_where_the_norm_is_that_of_the_sum() {
        let window = Window::new(1, 4, 1 << 20, 2 << 20, 96);
        let (rows, n) = (3, 7168);
        let sum = |to| [Call::AllReduce { from: 4096, to, count: rows * n }];
        let norm = |kernel, n: u64| {
            let cells = vec![1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, n, u64::from(1e-6f32.to_bits())];
            let args = vec![Arg::Null; cells.len()];
            let grid = (rows as u32, 1, 1);
            (Launch { source: "elementwise.cu", kernel, grid, block: 1024, shared_bytes: 4 * n as u32, args, product: None }, cells)
        };
        let takes = |sum: &[Call], (launch, cells): (Launch, Vec<u64>)| {
            window.one_shot_normed((Element::Bf16, sum), (&launch, &cells), 64, 7, Duration::from_secs(1)).unwrap()
        };
        let Some(Part::Meet(launch, cells)) = takes(&sum(1 << 16), norm("add_rms_norm", n)) else { panic!("three rows") };
        assert_eq!((launch.kernel, launch.grid, launch.block), ("all_reduce_add_rms_norm_wide", (12, 1, 1), 256));
        assert_eq!((launch.shared_bytes, cells.len()), (0, launch.args.len()));
        assert_eq!(cells[..5], [4096, 1 << 17, 1 << 18, 1 << 19, 1 << 20]);
        assert_eq!(cells[5..15], [2 << 20, 1 << 20, 96, 64, 7, 1, 4, 7168, u64::from(1e-6f32.to_bits()), packet_elements(4)]);
        // A norm of something else, another kernel, rows that do not add up, more than fits.
        assert!(takes(&sum(1 << 15), norm("add_rms_norm", n)).is_none() && takes(&sum(1 << 16), norm("rms_norm", n)).is_none());
        assert!(takes(&sum(1 << 16), norm("add_rms_norm", n - 8)).is_none());
        let many = [Call::AllReduce { from: 4096, to: 1 << 16, count: 64 * n }];
        let (mut launch, cells) = norm("add_rms_norm", n);
        launch.grid.0 = 64;
        assert!(takes(&many, (launch, cells)).is_none(), "four ranks send no 64 rows");
    }

    #[test]
    fn the_table_names_every_part_of_every_window() {
        let table = peers_table(&[1000, 5000]);
        let word = |i: usize| u64::from_le_bytes(*table[8 * i..].first_chunk().unwrap());
        assert_eq!(table.len() as u64, PEERS_BYTES);
        assert_eq!([word(0), word(1), word(2)], [1000 + STAGED_AT, 5000 + STAGED_AT, 0]);
        assert_eq!([word(MOST_RANKS), word(MOST_RANKS + 1)], [1000 + ARRIVED_AT, 5000 + ARRIVED_AT]);
        assert_eq!([word(2 * MOST_RANKS), word(2 * MOST_RANKS + 1)], [1000 + packets_at(2), 5000 + packets_at(2)]);
    }
}
