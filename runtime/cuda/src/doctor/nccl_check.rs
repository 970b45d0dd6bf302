//! NCCL among the GPUs of a group, one thread each: sums by value, eager and from a captured graph, and how fast they are.

use super::checks::{KERNEL_LIMIT, timed};
use super::lab::LabGpu;
use super::{Measured, Outcome};
use crate::device::Driver;
use crate::exec::gpu::{AbortSignal, Call, Element, GpuError};
use crate::nccl::{Communicator, Nccl};
use crate::search::Search;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Elements of a sum that is checked: odd, so that no algorithm's chunk divides it.
const COUNT: u64 = 100_003;
/// Bytes of a sum whose rate is measured.
const LARGE_BYTES: u64 = 64 << 20;
/// Bytes of a sum whose latency is measured: 7168 bf16, the payload of a decode step's all-reduce of one token of a large model.
const SMALL_BYTES: u64 = 14_336;
/// Sums in the captured graph whose latency is measured.
const CHAIN: u32 = 20;
/// How long members may take to find each other.
const JOIN: Duration = Duration::from_secs(12);
/// Replays of the captured sum, each with new values.
const REPLAYS: u32 = 3;

/// A member of the group, on a thread of its own.
struct Member {
    search: Search,
    nccl: Arc<Nccl>,
    cubin: Arc<Vec<u8>>,
    id: Vec<u8>,
    ordinal: usize,
    index: u32,
    members: u32,
    abort: AbortSignal,
}

fn wrong(call: &'static str) -> impl Fn(String) -> GpuError {
    move |e| GpuError::new(call, e)
}

/// Sums of a group of GPUs.
pub(super) fn nccl(search: &Search, cubin: &[u8], ordinals: &[usize]) -> Result<(Outcome, Measured), GpuError> {
    let nccl = Arc::new(Nccl::open(search).map_err(|e| wrong("NCCL")(e.to_string()))?);
    let id = nccl.unique_id().map_err(|e| wrong("NCCL")(e.to_string()))?;
    let (members, cubin, abort) = (ordinals.len() as u32, Arc::new(cubin.to_vec()), AbortSignal::default());
    let (tell, told) = channel();
    for (index, &ordinal) in (0u32..).zip(ordinals) {
        let (search, nccl, cubin, id, abort) = (search.clone(), Arc::clone(&nccl), Arc::clone(&cubin), id.clone(), abort.clone());
        let member = Member { search, nccl, cubin, id, ordinal, index, members, abort };
        let tell = tell.clone();
        // Not waited for: a member that fails leaves the others in their calls, which end with the process.
        std::thread::spawn(move || drop(tell.send(member.run())));
    }
    drop(tell);
    let mut result = (Outcome::Right, Measured::default());
    for _ in 0..members {
        match told.recv().map_err(|e| wrong("NCCL")(e.to_string()))? {
            Ok((Outcome::Right, measured)) => result.1 = measured,
            Ok((outcome, _)) => result.0 = outcome,
            Err(e) => {
                abort.raise();
                return Err(e);
            }
        }
    }
    Ok(result)
}

/// Operand of a member: whole numbers, so that sums are exact in any order.
fn operand(index: u32, salt: u32) -> Vec<f32> {
    (0..COUNT as u32).map(|i| ((i * 7 + index * 13 + salt * 29) % 251) as f32).collect()
}

impl Member {
    fn run(&self) -> Result<(Outcome, Measured), GpuError> {
        let driver = Driver::open(&self.search).map_err(|e| wrong("driver")(e.to_string()))?;
        driver.device_count().map_err(|e| wrong("driver")(e.to_string()))?;
        let gpu = LabGpu::open(&driver, self.ordinal, &self.cubin)?;
        let (place, device) = ((self.index, self.members), gpu.device().clone());
        let joined = Communicator::join(Arc::clone(&self.nccl), &self.id, place, device, JOIN, &self.abort);
        // Never destroyed: NCCL's destroy waits for every graph that was captured with it, and nothing here is freed before the process ends.
        let comm = ManuallyDrop::new(joined.map_err(|e| wrong("NCCL")(e.to_string()))?);
        let outcome = self.sums(&gpu, &comm)?;
        let measured = if outcome == Outcome::Right { self.speed(&gpu, &comm)? } else { Measured::default() };
        Ok((outcome, measured))
    }
    fn sum(&self, gpu: &LabGpu, comm: &Communicator, from: u64, to: u64, count: u64) -> Result<(), GpuError> {
        gpu.bind()?;
        let call = Call::AllReduce { from, to, count };
        comm.run(gpu.stream(), Element::F32, &[call]).map_err(|e| wrong("NCCL")(e.to_string()))
    }
    /// Once eagerly, which also makes NCCL connect, then captured and replayed with new values.
    fn sums(&self, gpu: &LabGpu, comm: &Communicator) -> Result<Outcome, GpuError> {
        let (from, to) = (gpu.allocate(COUNT * 4)?, gpu.allocate(COUNT * 4)?);
        let wrong_sums = |salt: u32| -> Result<usize, GpuError> {
            let mut got = vec![0f32; COUNT as usize];
            gpu.read(to, &mut got)?;
            let mut want = vec![0f32; COUNT as usize];
            for index in 0..self.members {
                want.iter_mut().zip(operand(index, salt)).for_each(|(w, v)| *w += v);
            }
            gpu.write(to, &vec![f32::NAN; COUNT as usize])?;
            Ok(got.iter().zip(&want).filter(|(g, w)| g != w).count())
        };
        let judge = |count: usize, how: String| match count {
            0 => None,
            _ => Some(Outcome::Wrong(format!("{how}: GPU {} has {count} of {COUNT} sums wrong", self.ordinal))),
        };
        gpu.write(from, &operand(self.index, 0))?;
        self.sum(gpu, comm, from, to, COUNT)?;
        gpu.finish(KERNEL_LIMIT)?;
        if let Some(outcome) = judge(wrong_sums(0)?, "eager".to_owned()) {
            return Ok(outcome);
        }
        let captured = gpu.capture(|| self.sum(gpu, comm, from, to, COUNT))?;
        for replay in 1..=REPLAYS {
            gpu.write(from, &operand(self.index, replay))?;
            gpu.replay(&captured)?;
            gpu.finish(KERNEL_LIMIT)?;
            if let Some(outcome) = judge(wrong_sums(replay)?, format!("captured, replay {replay}")) {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Right)
    }
    fn speed(&self, gpu: &LabGpu, comm: &Communicator) -> Result<Measured, GpuError> {
        let buffer = gpu.allocate(LARGE_BYTES)?;
        let large = timed(gpu, 10, || self.sum(gpu, comm, buffer, buffer, LARGE_BYTES / 4))?;
        let chain = gpu.capture(|| (0..CHAIN).try_for_each(|_| self.sum(gpu, comm, buffer, buffer, SMALL_BYTES / 4)))?;
        let small = timed(gpu, 10, || gpu.replay(&chain))? / f64::from(CHAIN);
        // Bus bandwidth as nccl-tests defines it: what each GPU must send at least.
        let n = f64::from(self.members);
        let bus = LARGE_BYTES as f64 / large * 2.0 * (n - 1.0) / n;
        Ok(Measured { bytes_per_s: Some(bus), latency_s: Some(small), ..Measured::default() })
    }
}
