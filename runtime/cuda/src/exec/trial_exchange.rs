//! Exchanges among ranks that share one GPU, for tests of their kernels: each rank has streams, memory and a window of its own, and what NCCL
//! would carry is copied.

use super::compile::Cubins;
use super::driver_gpu::{DriverGpu, Handles};
use super::exchange::{Part, copy_columns, kernel, round};
use super::gpu::{AbortSignal, Address, Call, Element, Gpu, GpuError};
use super::packed::{self, Packing, Sizes, list_bytes};
use super::parts::{from_bytes, to_bytes};
use super::rank::PartOfResult;
use super::trial::first_gpu;
use super::window::{PEERS_BYTES, Window, peers_table};
use crate::search::Search;
use moetwin_kernels::launch::one_shot::window_bytes;
use moetwin_kernels::launch::{Arg, Launch, row_block};
use moetwin_kernels::reference::Array;
use moetwin_runtime::BufferId;
use std::time::{Duration, Instant};

/// What results and scratch memory hold before a run: NaN, or -1.
const POISON: u8 = 0xff;
/// Longest wait for an exchange, and of a kernel for its peers where one is missing on purpose.
const DEADLINE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(2);
/// Long enough to see that a kernel waits.
const WAITING: Duration = Duration::from_millis(50);
/// Bytes of `Fault` in exchange.cu.
const FAULT_BYTES: usize = 16;
/// Marks a fault as of no command: the trials look at it.
const COMMAND: u32 = 77;

/// What the device noted as wrong: what, in which command, of which member, how many.
pub type FaultWords = [u32; 4];

/// Ranks on one GPU.
pub struct Ranks {
    ranks: Vec<OneRank>,
}

struct OneRank {
    gpu: DriverGpu,
    abort: AbortSignal,
    window: Window,
    fault: Address,
    /// Memory of the exchange under way.
    held: Vec<Address>,
}

/// A rank's rows and their choices.
pub struct Rows {
    /// `[T, H]`.
    pub x: Array<f32>,
    /// `[T, k]`, -1 for none.
    pub ids: Array<f32>,
    /// `[T, k]`.
    pub weights: Array<f32>,
}

/// A dispatch on every rank, ready for its combine.
pub struct Dispatched {
    sizes: Vec<Sizes>,
    packing: Vec<Packing>,
    /// By rank: `[received, H]`, `[received, k]`, `[received, k]`.
    pub received: Vec<[Array<f32>; 3]>,
    /// By rank.
    pub faults: Vec<FaultWords>,
}

fn array(sizes: &[usize], element: Element, bytes: Vec<u8>) -> Array<f32> {
    from_bytes(PartOfResult { buffer: BufferId(0), sizes: sizes.to_vec(), element, bytes })
}

impl OneRank {
    fn place(&mut self, bytes: &[u8]) -> Result<Address, GpuError> {
        let address = self.poisoned(bytes.len() as u64)?;
        self.gpu.write(address, bytes)?;
        Ok(address)
    }
    fn poisoned(&mut self, bytes: u64) -> Result<Address, GpuError> {
        let address = self.gpu.allocate(bytes)?;
        self.held.push(address);
        self.gpu.fill(0, address, POISON, bytes)?;
        self.gpu.synchronize(DEADLINE)?;
        Ok(address)
    }
    fn take(&mut self, from: Address, sizes: &[usize], element: Element) -> Result<Array<f32>, GpuError> {
        let mut bytes = vec![0; sizes.iter().product::<usize>() * element.bytes() as usize];
        self.gpu.read(from, &mut bytes)?;
        Ok(array(sizes, element, bytes))
    }
    fn issue(&mut self, part: &Part) -> Result<(), GpuError> {
        match part {
            Part::Calls(..) => Ok(()),
            Part::Copy { from, to, bytes } => self.gpu.copy(0, *from, *to, *bytes),
            Part::Fill { to, byte, bytes } => self.gpu.fill(0, *to, *byte, *bytes),
            Part::Kernel(launch, cells) | Part::Meet(launch, cells) => self.gpu.launch(0, launch, cells),
        }
    }
    /// What was noted, which is forgotten.
    fn fault(&mut self) -> Result<FaultWords, GpuError> {
        let mut bytes = [0; FAULT_BYTES];
        self.gpu.read(self.fault, &mut bytes)?;
        self.gpu.write(self.fault, &[0; FAULT_BYTES])?;
        let word = |i: usize| u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
        Ok([0, 1, 2, 3].map(word))
    }
    fn free(&mut self) {
        std::mem::take(&mut self.held).into_iter().for_each(|a| self.gpu.free(a));
    }
}

impl Ranks {
    /// So many ranks on the driver's first GPU.
    pub fn open(search: &Search, cubins: &Cubins, members: usize) -> Result<Self, GpuError> {
        let (device, _) = first_gpu(search)?;
        device.bind().map_err(|e| GpuError::new("device", e.to_string()))?;
        let (mut gpus, mut windows) = (Vec::new(), Vec::new());
        for _ in 0..members {
            let abort = AbortSignal::default();
            let mut gpu = DriverGpu::new(device.clone(), cubins, None, Handles::default(), abort.clone())?;
            windows.push(gpu.publish(window_bytes(members))?.0);
            gpus.push((gpu, abort));
        }
        let mut ranks = Vec::new();
        for (index, (mut gpu, abort)) in gpus.into_iter().enumerate() {
            let (peers, fault) = (gpu.allocate(PEERS_BYTES)?, gpu.allocate(FAULT_BYTES as u64)?);
            gpu.write(fault, &[0; FAULT_BYTES])?;
            // Alone first: a kernel is loaded at its first launch, which may wait for the GPU, and so for ranks that wait for each other.
            let stop = gpu.stop_word()?.map_err(|why| GpuError::new("stop word", why))?;
            let window = Window::new(index as u32, members as u32, windows[index], peers, stop);
            gpu.write(peers, &peers_table(&[windows[index]]))?;
            let data = gpu.allocate(16)?;
            launch_sum(&mut gpu, &window.alone(peers), data, data, 8, fault, DEADLINE)?;
            gpu.synchronize(DEADLINE)?;
            gpu.write(peers, &peers_table(&windows))?;
            ranks.push(OneRank { gpu, abort, window, fault, held: Vec::new() });
        }
        Ok(Self { ranks })
    }
    /// The one-shot sum of everybody's bf16 operands, as every rank has it.
    pub fn all_reduce(&mut self, operands: &[Array<f32>]) -> Result<Vec<Array<f32>>, GpuError> {
        let sizes = operands.first().map_or(Vec::new(), |o| o.sizes.clone());
        let count = sizes.iter().product::<usize>() as u64;
        let mut places = Vec::new();
        for (rank, operand) in self.ranks.iter_mut().zip(operands) {
            places.push((rank.place(&to_bytes(operand, Element::Bf16))?, rank.poisoned(2 * count)?));
        }
        for (rank, (from, to)) in self.ranks.iter_mut().zip(&places) {
            launch_sum(&mut rank.gpu, &rank.window, *from, *to, count, rank.fault, DEADLINE)?;
        }
        let mut results = Vec::new();
        for (rank, (_, to)) in self.ranks.iter_mut().zip(&places) {
            rank.gpu.synchronize(DEADLINE)?;
            results.push(rank.take(*to, &sizes, Element::Bf16)?);
        }
        self.free();
        Ok(results)
    }
    /// Everybody's operands summed, added to a residual and normed, as every rank has the results `[y, sum]`: by one kernel, and by the one-shot sum
    /// and the norm apart. All operands but the weight are matrices of the same size.
    pub fn all_reduce_normed(
        &mut self,
        operands: &[Array<f32>],
        residual: &Array<f32>,
        weight: &Array<f32>,
        eps: f32,
    ) -> Result<[Vec<[Array<f32>; 2]>; 2], GpuError> {
        let sizes = residual.sizes.clone();
        let (rows, n) = (sizes[0] as u64, sizes[1] as u64);
        let mut ready = Vec::new();
        for (rank, operand) in self.ranks.iter_mut().zip(operands) {
            let from = rank.place(&to_bytes(operand, Element::Bf16))?;
            let others = [rank.place(&to_bytes(residual, Element::Bf16))?, rank.place(&to_bytes(weight, Element::Bf16))?];
            let results = [(); 5].map(|()| rank.poisoned(2 * rows * n));
            let [scratch, y, sum, y_apart, sum_apart] = results;
            let (scratch, fused, apart) = (scratch?, [y?, sum?], [y_apart?, sum_apart?]);
            let (launch, cells) = norm_launch(rows, n, eps, scratch, others, fused)?;
            let call = [Call::AllReduce { from, to: scratch, count: rows * n }];
            let one = rank.window.one_shot_normed((Element::Bf16, &call), (&launch, &cells), rank.fault, COMMAND, DEADLINE)?;
            let Some(Part::Meet(one, one_cells)) = one else {
                return Err(GpuError::new("one-shot all-reduce with a norm", format!("does not take {rows} rows of {n}")));
            };
            rank.gpu.prepare(&one)?;
            rank.gpu.prepare(&launch)?;
            ready.push((from, scratch, others, fused, apart, one, one_cells));
        }
        for (rank, (.., one, cells)) in self.ranks.iter_mut().zip(&ready) {
            rank.gpu.launch(0, one, cells)?;
        }
        self.ranks.iter_mut().try_for_each(|r| r.gpu.synchronize(DEADLINE))?;
        for (rank, (from, scratch, ..)) in self.ranks.iter_mut().zip(&ready) {
            launch_sum(&mut rank.gpu, &rank.window, *from, *scratch, rows * n, rank.fault, DEADLINE)?;
        }
        // Norms apart from the sums: their blocks take their places ahead of time, and peers' sums need them.
        self.ranks.iter_mut().try_for_each(|r| r.gpu.synchronize(DEADLINE))?;
        for (rank, (_, scratch, others, _, apart, ..)) in self.ranks.iter_mut().zip(&ready) {
            let (launch, cells) = norm_launch(rows, n, eps, *scratch, *others, *apart)?;
            rank.gpu.launch(0, &launch, &cells)?;
        }
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for (rank, (_, _, _, fused, apart, ..)) in self.ranks.iter_mut().zip(&ready) {
            rank.gpu.synchronize(DEADLINE)?;
            one.push([rank.take(fused[0], &sizes, Element::Bf16)?, rank.take(fused[1], &sizes, Element::Bf16)?]);
            two.push([rank.take(apart[0], &sizes, Element::Bf16)?, rank.take(apart[1], &sizes, Element::Bf16)?]);
        }
        self.free();
        Ok([one, two])
    }
    /// What rank 0 notes where its peers do not come to a sum with a norm. Its window is of no use afterwards.
    pub fn all_reduce_normed_alone(&mut self) -> Result<FaultWords, GpuError> {
        let rank = &mut self.ranks[0];
        let (rows, n) = (3, 64);
        let data = [(); 5].map(|()| rank.poisoned(2 * rows * n));
        let [from, scratch, other, y, sum] = data;
        let (from, scratch, other) = (from?, scratch?, other?);
        let (launch, cells) = norm_launch(rows, n, 1e-6, scratch, [other; 2], [y?, sum?])?;
        let call = [Call::AllReduce { from, to: scratch, count: rows * n }];
        match rank.window.one_shot_normed((Element::Bf16, &call), (&launch, &cells), rank.fault, COMMAND, SHORT)? {
            Some(Part::Meet(launch, cells)) => rank.gpu.launch(0, &launch, &cells)?,
            other => return Err(GpuError::new("one-shot all-reduce with a norm", format!("is {other:?}"))),
        }
        rank.gpu.synchronize(DEADLINE)?;
        rank.fault()
    }
    /// What rank 0 notes where its peers do not come. Its window is of no use afterwards.
    pub fn all_reduce_alone(&mut self) -> Result<FaultWords, GpuError> {
        let rank = &mut self.ranks[0];
        let data = rank.poisoned(64)?;
        launch_sum(&mut rank.gpu, &rank.window, data, data, 32, rank.fault, SHORT)?;
        rank.gpu.synchronize(DEADLINE)?;
        rank.fault()
    }
    /// What rank 0 notes where its peers do not come and the run is aborted from another thread, and how long that took to end its wait.
    /// It is of no use afterwards.
    pub fn all_reduce_stopped(&mut self) -> Result<(FaultWords, Duration), GpuError> {
        let rank = &mut self.ranks[0];
        let data = rank.poisoned(64)?;
        launch_sum(&mut rank.gpu, &rank.window, data, data, 32, rank.fault, DEADLINE * 2)?;
        if rank.gpu.drained(WAITING) {
            return Err(GpuError::new("one-shot all-reduce", "did not wait for its peers"));
        }
        let (begin, abort) = (Instant::now(), rank.abort.clone());
        std::thread::spawn(move || abort.raise());
        if !rank.gpu.drained(DEADLINE) {
            return Err(GpuError::new("one-shot all-reduce", format!("still waits {DEADLINE:?} after the abort")));
        }
        Ok((rank.fault()?, begin.elapsed()))
    }
    /// Sends rows to the ranks of their experts, `bounds[r]..bounds[r + 1]`, at most `capacity` to each.
    pub fn dispatch(&mut self, rows: &[Rows], bounds: &[i32], slots: u64, capacity: u64) -> Result<Dispatched, GpuError> {
        let members = self.ranks.len() as u64;
        let (mut list, mut sizes, mut packing, mut outputs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (index, (rank, r)) in self.ranks.iter_mut().zip(rows).enumerate() {
            let (hidden, topk) = (r.x.sizes[1] as u64, r.ids.sizes[1] as u64);
            let s = Sizes { members, index: index as u64, rows: r.x.sizes[0] as u64, slots, hidden, topk };
            let bounds = rank.place(&bounds.iter().flat_map(|b| b.to_le_bytes()).collect::<Vec<_>>())?;
            let p = Packing { capacity, lists: rank.poisoned(list_bytes(&s, capacity))?, bounds, fault: rank.fault, command: COMMAND };
            let inputs = [
                rank.place(&to_bytes(&r.x, Element::Bf16))?,
                rank.place(&to_bytes(&r.ids, Element::I32))?,
                rank.place(&to_bytes(&r.weights, Element::F32))?,
            ];
            let held = members * slots;
            let to = [rank.poisoned(held * hidden * 2)?, rank.poisoned(held * topk * 4)?, rank.poisoned(held * topk * 4)?];
            let scratch = rank.poisoned(packed::dispatch(&s, &p, inputs, to, 0)?.1)?;
            list.push(packed::dispatch(&s, &p, inputs, to, scratch)?.0);
            sizes.push(s);
            packing.push(p);
            outputs.push(to);
        }
        self.carry_out(&list)?;
        let (mut received, mut faults) = (Vec::new(), Vec::new());
        for ((rank, s), to) in self.ranks.iter_mut().zip(&sizes).zip(&outputs) {
            let (held, hidden, topk) = ((members * slots) as usize, s.hidden as usize, s.topk as usize);
            received.push([
                rank.take(to[0], &[held, hidden], Element::Bf16)?,
                rank.take(to[1], &[held, topk], Element::I32)?,
                rank.take(to[2], &[held, topk], Element::F32)?,
            ]);
            faults.push(rank.fault()?);
        }
        Ok(Dispatched { sizes, packing, received, faults })
    }
    /// Sums what experts made of the rows that a dispatch has brought, `[received, H]` by rank, back where the rows are from.
    pub fn combine(&mut self, dispatched: &Dispatched, computed: &[Array<f32>]) -> Result<Vec<Array<f32>>, GpuError> {
        let (mut list, mut outputs) = (Vec::new(), Vec::new());
        for (i, rank) in self.ranks.iter_mut().enumerate() {
            let (s, p) = (&dispatched.sizes[i], &dispatched.packing[i]);
            let from = rank.place(&to_bytes(&computed[i], Element::Bf16))?;
            let to = rank.poisoned(s.rows * s.hidden * 2)?;
            let scratch = rank.poisoned(packed::combine(s, p, from, to, 0)?.1)?;
            list.push(packed::combine(s, p, from, to, scratch)?.0);
            outputs.push(to);
        }
        self.carry_out(&list)?;
        let mut results = Vec::new();
        for ((rank, s), to) in self.ranks.iter_mut().zip(&dispatched.sizes).zip(outputs) {
            results.push(rank.take(to, &[s.rows as usize, s.hidden as usize], Element::Bf16)?);
        }
        Ok(results)
    }
    /// Columns `from..from + width` of a matrix put at column `to` of one that is `wide` columns wide and else poisoned.
    pub fn columns(&mut self, matrix: &Array<f32>, from: u64, to: u64, width: u64, wide: u64) -> Result<Array<f32>, GpuError> {
        let (rows, cols) = (matrix.sizes[0] as u64, matrix.sizes[1] as u64);
        let rank = &mut self.ranks[0];
        let (operand, result) = (rank.place(&to_bytes(matrix, Element::Bf16))?, rank.poisoned(rows * wide * 2)?);
        rank.issue(&copy_columns(operand, result, rows, cols, wide, from, to, width)?)?;
        rank.gpu.synchronize(DEADLINE)?;
        let out = rank.take(result, &[rows as usize, wide as usize], Element::Bf16)?;
        rank.free();
        Ok(out)
    }
    /// f32 values rounded to bf16.
    pub fn rounded(&mut self, values: &Array<f32>) -> Result<Array<f32>, GpuError> {
        let rank = &mut self.ranks[0];
        let count = values.data.len() as u64;
        let (operand, result) = (rank.place(&to_bytes(values, Element::F32))?, rank.poisoned(2 * count)?);
        rank.issue(&round(operand, result, count)?)?;
        rank.gpu.synchronize(DEADLINE)?;
        let out = rank.take(result, &values.sizes, Element::Bf16)?;
        rank.free();
        Ok(out)
    }
    /// Frees what exchanges hold.
    pub fn free(&mut self) {
        self.ranks.iter_mut().for_each(OneRank::free);
    }

    /// Everybody's parts; between those before and those after the communicator's calls, their data is copied.
    fn carry_out(&mut self, list: &[Vec<Part>]) -> Result<(), GpuError> {
        let split: Vec<usize> = list.iter().map(|l| l.iter().position(|p| matches!(p, Part::Calls(..))).unwrap_or(l.len())).collect();
        for ((rank, parts), at) in self.ranks.iter_mut().zip(list).zip(&split) {
            parts[..*at].iter().try_for_each(|p| rank.issue(p))?;
        }
        self.ranks.iter_mut().try_for_each(|r| r.gpu.synchronize(DEADLINE))?;
        let calls = |rank: usize| match list[rank].get(split[rank]) {
            Some(Part::Calls(element, calls)) => (element.bytes(), calls.as_slice()),
            _ => (0, &[][..]),
        };
        for sender in 0..list.len() {
            let (bytes, sends) = calls(sender);
            for call in sends {
                let Call::Send { from, count, peer } = *call else { continue };
                let from_sender = |c: &Call| match *c {
                    Call::Receive { to, count: n, peer } if (peer as usize, n) == (sender, count) => Some(to),
                    _ => None,
                };
                let to = calls(peer as usize).1.iter().find_map(from_sender);
                let to = to.ok_or_else(|| GpuError::new("exchange", format!("rank {peer} does not receive what rank {sender} sends")))?;
                self.ranks[sender].gpu.copy(0, from, to, count * bytes)?;
            }
        }
        self.ranks.iter_mut().try_for_each(|r| r.gpu.synchronize(DEADLINE))?;
        for ((rank, parts), at) in self.ranks.iter_mut().zip(list).zip(&split) {
            parts[*at..].iter().try_for_each(|p| rank.issue(p))?;
        }
        self.ranks.iter_mut().try_for_each(|r| r.gpu.synchronize(DEADLINE))
    }
}

/// The norm of a sum in memory: rows of `n` of `delta`, a residual and a weight, to y and the sum.
fn norm_launch(
    rows: u64,
    n: u64,
    eps: f32,
    delta: Address,
    [residual, weight]: [Address; 2],
    [y, sum]: [Address; 2],
) -> Result<(Launch, Vec<u64>), GpuError> {
    let args = vec![
        (Arg::Scratch { offset: 0 }, delta),
        (Arg::Input(1), residual),
        (Arg::Input(2), weight),
        (Arg::Output(0), y),
        (Arg::Output(1), sum),
        (Arg::I32(0), n),
        (Arg::F32(eps), u64::from(eps.to_bits())),
    ];
    let (block, shared_bytes) = row_block(n);
    let (launch, cells) = kernel("add_rms_norm", [rows, 1], block, args)?;
    Ok((Launch { source: "elementwise.cu", shared_bytes: shared_bytes as u32, ..launch }, cells))
}

fn launch_sum(
    gpu: &mut DriverGpu,
    window: &Window,
    from: Address,
    to: Address,
    count: u64,
    fault: Address,
    bound: Duration,
) -> Result<(), GpuError> {
    let call = [Call::AllReduce { from, to, count }];
    match window.one_shot(Element::Bf16, &call, fault, COMMAND, bound)? {
        Some(Part::Meet(launch, cells)) => gpu.launch(0, &launch, &cells),
        _ => Err(GpuError::new("one-shot all-reduce", format!("does not take {count} elements"))),
    }
}
