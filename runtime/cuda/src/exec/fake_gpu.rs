//! A fake GPU: computes nothing, keeps what the driver would keep, and writes down everything that would be wrong.

use super::fabric::lock;
use super::fake::{FakeHost, POLL, Standing};
use super::fake_log::Asked;
use super::gpu::{AbortSignal, Address, Call, Captured, Element, Gpu, GpuError, Host, StopWord, Stream, WORKSPACE_BYTES, Way};
use super::pace::{COPY_PS, Clocks, EXCHANGE_PS};
use moetwin_kernels::launch::{Arg, DenseProduct, Launch};
use moetwin_models::RankId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What a capture holds: the groups of calls of its communicators, and kernels.
#[derive(Clone, Debug, Default)]
struct Recorded {
    rounds: Vec<(u32, String)>,
    kernels: u32,
    /// What a replay takes, picoseconds.
    ps: u64,
    /// Stamps, picoseconds from its beginning.
    stamps: Vec<(u32, u64)>,
}

/// A fake GPU.
pub struct FakeGpu {
    host: FakeHost,
    rank: RankId,
    abort: AbortSignal,
    next: Address,
    live: BTreeMap<Address, u64>,
    /// What it maps of peers.
    mapped: Vec<Address>,
    /// Products that were made ready.
    products: BTreeSet<DenseProduct>,
    /// The little that memory holds, else zeros.
    contents: BTreeMap<Address, Vec<u8>>,
    /// By number: the id, this member's index, the next round.
    communicators: BTreeMap<u32, (u64, u32, u64)>,
    /// Rounds that the stream has not passed yet, in order.
    pending: Vec<(u64, u64)>,
    /// Marks of the latest eager run: rounds before it, and whether the stream was stuck before it.
    marks: Vec<(usize, bool)>,
    capturing: Option<Recorded>,
    graphs: BTreeMap<usize, Recorded>,
    kernels: u32,
    clocks: Clocks,
    /// What ends waits of kernels, and where they find it.
    stop: Option<(Arc<StopWord>, Address)>,
    stuck: bool,
    aborted: bool,
    closed: bool,
}

impl FakeGpu {
    pub(super) fn new(host: FakeHost, rank: RankId, abort: AbortSignal) -> Self {
        Self {
            host,
            rank,
            abort,
            next: (u64::from(rank.0) + 1) << 40,
            live: BTreeMap::new(),
            mapped: Vec::new(),
            products: BTreeSet::new(),
            contents: BTreeMap::new(),
            communicators: BTreeMap::new(),
            pending: Vec::new(),
            marks: Vec::new(),
            capturing: None,
            graphs: BTreeMap::new(),
            kernels: 0,
            clocks: Clocks::default(),
            stop: None,
            stuck: false,
            aborted: false,
            closed: false,
        }
    }
    fn asked(&self, what: Asked) {
        lock(&self.host.state).log.push((self.rank, what));
    }
    fn wrong(&self, what: String) {
        lock(&self.host.state).wrong.push(format!("rank {}: {what}", self.rank.0));
    }
    /// Something that must not come after an abort or the end.
    fn work(&self, what: &'static str) {
        self.asked(Asked::Work(what));
        if self.aborted || self.closed {
            self.wrong(format!("{what} after the abort or the end"));
        }
    }
    /// Whether bytes lie in one living allocation.
    fn within(&self, what: &str, address: Address, bytes: u64) {
        let holds = |(start, size): (&Address, &u64)| address + bytes <= start + size;
        if !self.live.range(..=address).next_back().is_some_and(holds) {
            self.wrong(format!("{what}: {bytes} bytes at {address:#x} are not in one allocation"));
        }
    }
    fn come(&mut self, communicator: u32, calls: &str) -> Result<(), GpuError> {
        let Some((id, index, round)) = self.communicators.get_mut(&communicator) else {
            return Err(GpuError::new("NCCL", format!("communicator {communicator} is not connected")));
        };
        if !self.stuck {
            self.host.fabric.arrive(*id, *round, *index, calls);
        }
        self.pending.push((*id, *round));
        *round += 1;
        Ok(())
    }
    fn note_fault(&mut self, launch: &Launch, args: &[u64]) {
        let Some(fault) = self.host.fault.filter(|f| f.rank == self.rank && f.kernel == launch.kernel) else { return };
        let Some(at) = launch.args.iter().position(|a| *a == Arg::Fault) else { return };
        let record = [fault.what, args[at + 1] as u32, fault.member, fault.count];
        self.contents.insert(args[at], record.iter().flat_map(|w| w.to_le_bytes()).collect());
    }
    fn kernel(&mut self) {
        self.kernels += 1;
        self.stuck |= self.host.stuck_kernel == Some((self.rank, self.kernels - 1));
    }
    /// Waits until the standing ends, the deadline of the host's clock passes, or the run is aborted.
    fn stand(&self, what: &str, standing: Standing, deadline: Duration) -> Result<(), GpuError> {
        let end = self.host.now() + deadline;
        self.host.stand(self.rank, standing.clone());
        let ended = loop {
            if self.host.runs(&lock(&self.host.state), self.rank) {
                break Ok(());
            }
            if self.abort.is_raised() {
                break Err(GpuError::new(what, "gave up, since the run was aborted").of_peers());
            }
            if self.host.now() > end {
                break Err(GpuError::new(what, format!("not finished within {deadline:?}")).of_peers());
            }
            std::thread::sleep(POLL);
        };
        self.host.stand(self.rank, Standing::Free);
        ended
    }
    fn bytes_in_use(&self) -> u64 {
        self.live.values().sum()
    }
}

/// A call without its addresses: what members must agree on. Sends and receives differ by member, so only their number counts.
fn describe(element: Element, calls: &[Call]) -> String {
    let one = |call: &Call| match *call {
        Call::AllReduce { count, .. } => format!("all-reduce {count}"),
        Call::Broadcast { count, root, .. } => format!("broadcast {count} from {root}"),
        Call::Reduce { count, root, .. } => format!("reduce {count} to {root}"),
        Call::Send { count, .. } | Call::Receive { count, .. } => format!("pass {count} on"),
    };
    format!("{element:?} {}", calls.iter().map(one).collect::<Vec<_>>().join(", "))
}

impl Gpu for FakeGpu {
    fn allocate(&mut self, bytes: u64) -> Result<Address, GpuError> {
        if self.aborted || self.closed || self.capturing.is_some() {
            self.wrong("allocates after the abort or the end, or in a capture".to_owned());
        }
        if self.bytes_in_use() + bytes > self.host.memory_bytes {
            return Err(GpuError::new(format!("allocating {bytes} bytes"), "CUDA_ERROR_OUT_OF_MEMORY"));
        }
        let address = self.next;
        // The driver's alignment.
        self.next += bytes.max(1).next_multiple_of(256);
        self.live.insert(address, bytes.max(1));
        self.asked(Asked::Allocate(address));
        Ok(address)
    }
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), GpuError> {
        self.work("copy to device");
        self.within("copy to device", to, bytes.len() as u64);
        Ok(())
    }
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.work("copy to host");
        self.within("copy to host", from, bytes.len() as u64);
        if !self.pending.is_empty() {
            self.wrong("reads results before the stream is idle".to_owned());
        }
        bytes.fill(0);
        if let Some(held) = self.contents.get(&from) {
            bytes.iter_mut().zip(held).for_each(|(to, from)| *to = *from);
        }
        Ok(())
    }
    fn fill(&mut self, stream: Stream, to: Address, _: u8, bytes: u64) -> Result<(), GpuError> {
        self.work("fill");
        self.clocks.launched(stream, COPY_PS);
        self.within("fill", to, bytes);
        Ok(())
    }
    fn copy(&mut self, stream: Stream, from: Address, to: Address, bytes: u64) -> Result<(), GpuError> {
        self.work("copy on device");
        self.clocks.launched(stream, COPY_PS);
        self.within("copy from", from, bytes);
        self.within("copy to", to, bytes);
        Ok(())
    }
    fn prepare(&mut self, launch: &Launch) -> Result<(), GpuError> {
        if self.capturing.is_some() {
            self.wrong(format!("{} is loaded in a capture", launch.kernel));
        }
        self.asked(Asked::Ready(launch.kernel));
        Ok(())
    }
    fn launch(&mut self, stream: Stream, launch: &Launch, args: &[u64]) -> Result<(), GpuError> {
        self.work("launch");
        self.asked(Asked::Launch(launch.kernel));
        self.clocks.kernel(stream, launch, args);
        for (arg, cell) in launch.args.iter().zip(args) {
            if matches!(arg, Arg::Input(_) | Arg::Output(_) | Arg::Scratch { .. } | Arg::Table(_) | Arg::Sequences | Arg::Fault) {
                self.within(launch.kernel, *cell, 0);
            }
        }
        self.note_fault(launch, args);
        match &mut self.capturing {
            Some(recorded) => recorded.kernels += 1,
            None => self.kernel(),
        }
        Ok(())
    }
    fn publish(&mut self, bytes: u64) -> Result<(Address, Vec<u8>), GpuError> {
        let address = self.allocate(bytes)?;
        Ok((address, address.to_le_bytes().to_vec()))
    }
    fn map(&mut self, ticket: &[u8], way: Way) -> Result<Result<Address, String>, GpuError> {
        self.work("map");
        if self.host.apart == Some(self.rank) {
            return Ok(Err("its GPU cannot map others' memory".to_owned()));
        }
        if self.host.bridged && way == Way::NvLink {
            return Ok(Err("no NVLink".to_owned()));
        }
        let address = ticket.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
        self.mapped.push(address);
        self.asked(Asked::Map(address));
        Ok(Ok(address))
    }
    fn unmap(&mut self, address: Address) {
        self.asked(Asked::Unmap(address));
        match self.mapped.iter().position(|a| *a == address) {
            Some(i) => drop(self.mapped.remove(i)),
            None => self.wrong(format!("{address:#x} is let go of, and was not mapped")),
        }
    }
    fn stop_word(&mut self) -> Result<Result<Address, String>, GpuError> {
        self.work("map the stop word");
        if let Some((_, address)) = self.stop {
            return Ok(Ok(address));
        }
        if self.host.unmappable == Some(self.rank) {
            return Ok(Err("the host's memory cannot be mapped".to_owned()));
        }
        let (word, address) = (Arc::new(StopWord::default()), self.next);
        self.next += size_of::<StopWord>() as u64;
        lock(&self.host.state).stops.insert(self.rank, Arc::clone(&word));
        self.abort.reaches(Arc::clone(&word));
        self.stop = Some((word, address));
        Ok(Ok(address))
    }
    fn meet(&mut self, stream: Stream, communicator: u32, launch: &Launch, args: &[u64]) -> Result<(), GpuError> {
        self.launch(stream, launch, args)?;
        if !self.stop.as_ref().is_some_and(|(_, address)| args.contains(address)) {
            self.wrong(format!("{} waits for peers, and nothing can end its wait", launch.kernel));
        }
        self.asked(Asked::Meet(launch.kernel));
        // Members must come with the same kernel, grid and numbers but for their own place.
        let numbers = launch.args.iter().zip(args).filter(|(a, _)| matches!(a, Arg::U64(_))).map(|(_, cell)| *cell);
        let text = format!("{} on {} blocks with {:?}", launch.kernel, launch.grid.0, numbers.collect::<Vec<_>>());
        match &mut self.capturing {
            Some(recorded) => {
                recorded.rounds.push((communicator, text));
                Ok(())
            }
            None => self.come(communicator, &text),
        }
    }
    fn plan_product(&mut self, product: &DenseProduct) -> Result<bool, GpuError> {
        if self.host.library {
            self.products.insert(*product);
        }
        Ok(self.host.library)
    }
    fn multiply(&mut self, stream: Stream, product: &DenseProduct, places: [Address; 4], workspace: Address) -> Result<bool, GpuError> {
        if !self.products.contains(product) {
            return Ok(false);
        }
        self.work("product");
        self.clocks.launched(stream, COPY_PS);
        let [x, w, bias, y] = places;
        let DenseProduct { rows, n, k, biased } = *product;
        for (at, elements) in [(x, rows * k), (w, n * k), (y, rows * n), (bias, n)].into_iter().take(3 + usize::from(biased)) {
            self.within("product", at, 2 * elements);
        }
        self.within("workspace", workspace, WORKSPACE_BYTES);
        match &mut self.capturing {
            Some(recorded) => recorded.kernels += 1,
            None => self.kernel(),
        }
        Ok(true)
    }
    fn record(&mut self, stream: Stream, event: u32) -> Result<(), GpuError> {
        self.work("record event");
        self.clocks.record(stream, event);
        Ok(())
    }
    fn wait(&mut self, stream: Stream, event: u32) -> Result<(), GpuError> {
        self.work("wait for event");
        self.clocks.wait(stream, event);
        Ok(())
    }
    fn stamp(&mut self, stream: Stream, stamp: u32) -> Result<(), GpuError> {
        self.work("record stamp");
        self.clocks.stamp(stream, stamp);
        Ok(())
    }
    fn elapsed_ps(&mut self, from: u32, to: u32) -> Result<u64, GpuError> {
        if !self.pending.is_empty() {
            self.wrong("reads stamps before the stream is idle".to_owned());
        }
        self.clocks.elapsed_ps(from, to)
    }
    fn mark(&mut self, _: Stream, mark: u32) -> Result<(), GpuError> {
        if self.capturing.is_some() {
            self.wrong("marks in a capture".to_owned());
        }
        self.marks.truncate(mark as usize);
        self.marks.push((self.pending.len(), self.stuck));
        Ok(())
    }
    fn unfinished(&mut self) -> Option<u32> {
        let passed = |(id, round): &(u64, u64)| self.host.fabric.complete(*id, *round) == Ok(true);
        let waits = self.pending.iter().position(|p| !passed(p)).unwrap_or(self.pending.len());
        self.marks.iter().position(|(before, stuck)| *stuck || *before > waits).map(|i| i as u32)
    }
    fn connect(&mut self, communicator: u32, id: &[u8], index: u32, members: u32, deadline: Duration) -> Result<(), GpuError> {
        self.work("join communicator");
        let id = id.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
        self.host.fabric.join(id, index, members);
        self.stand("join communicator", Standing::Joining(id), deadline)?;
        self.communicators.insert(communicator, (id, index, 0));
        self.asked(Asked::Connect(communicator));
        Ok(())
    }
    fn communicate(&mut self, stream: Stream, communicator: u32, element: Element, calls: &[Call]) -> Result<(), GpuError> {
        self.work("communicate");
        self.clocks.launched(stream, EXCHANGE_PS);
        let index = self.communicators.get(&communicator).map(|c| c.1);
        for call in calls {
            let (parts, count): (Vec<Address>, u64) = match *call {
                Call::AllReduce { from, to, count } => (vec![from, to], count),
                Call::Broadcast { from, to, count, root } if Some(root) == index => (vec![from, to], count),
                Call::Reduce { from, to, count, root } if Some(root) == index => (vec![from, to], count),
                Call::Broadcast { to, count, .. } | Call::Receive { to, count, .. } => (vec![to], count),
                Call::Reduce { from, count, .. } | Call::Send { from, count, .. } => (vec![from], count),
            };
            parts.into_iter().for_each(|p| self.within("communicate", p, count * element.bytes()));
        }
        // Two members pass something on between them, whatever the others do; where one sends and receives at once, all of them do.
        let sends = calls.iter().filter(|c| matches!(c, Call::Send { .. })).count();
        let receives = calls.iter().filter(|c| matches!(c, Call::Receive { .. })).count();
        if sends + receives > 0 && sends * receives == 0 {
            return Ok(());
        }
        let text = describe(element, calls);
        match &mut self.capturing {
            Some(recorded) => {
                recorded.rounds.push((communicator, text));
                Ok(())
            }
            None => self.come(communicator, &text),
        }
    }
    fn begin_capture(&mut self) -> Result<(), GpuError> {
        self.work("begin capture");
        self.clocks.begin_capture();
        self.capturing = Some(Recorded::default());
        Ok(())
    }
    fn end_capture(&mut self) -> Result<Captured, GpuError> {
        self.work("end capture");
        let mut recorded = self.capturing.take().ok_or_else(|| GpuError::new("end capture", "none was begun"))?;
        (recorded.ps, recorded.stamps) = self.clocks.end_capture();
        let number = self.graphs.keys().next_back().map_or(0, |last| last + 1);
        self.graphs.insert(number, recorded);
        self.asked(Asked::Captured(number));
        Ok(Captured(number))
    }
    fn replay(&mut self, graph: Captured) -> Result<(), GpuError> {
        self.work("replay");
        self.asked(Asked::Replay(graph.0));
        let recorded = self.graphs.get(&graph.0).cloned().ok_or_else(|| GpuError::new("replay", "no such graph"))?;
        (0..recorded.kernels).for_each(|_| self.kernel());
        self.clocks.replay(recorded.ps, &recorded.stamps);
        recorded.rounds.iter().try_for_each(|(communicator, text)| self.come(*communicator, text))
    }
    fn synchronize(&mut self, deadline: Duration) -> Result<(), GpuError> {
        self.work("synchronize");
        self.clocks.synchronize();
        self.stand("synchronize", Standing::Rounds { rounds: self.pending.clone(), stuck: self.stuck }, deadline)?;
        for (id, round) in std::mem::take(&mut self.pending) {
            if let Err(e) = self.host.fabric.complete(id, round) {
                self.wrong(e);
            }
        }
        Ok(())
    }
    fn abort(&mut self) {
        self.asked(Asked::Abort);
        self.stop.iter().for_each(|(word, _)| word.set());
        self.aborted = true;
        self.capturing = None;
    }
    fn drained(&mut self, _: Duration) -> bool {
        if self.aborted {
            self.pending.clear();
        }
        !self.stuck && self.pending.is_empty()
    }
    fn destroy(&mut self, graph: Captured) {
        self.asked(Asked::Destroy(graph.0));
        if self.graphs.remove(&graph.0).is_none() {
            self.wrong(format!("graph {} is destroyed twice", graph.0));
        }
    }
    fn disconnect(&mut self, communicator: u32) {
        self.asked(Asked::Disconnect(communicator));
        if !self.graphs.is_empty() || self.aborted || self.communicators.remove(&communicator).is_none() {
            self.wrong(format!("communicator {communicator} is left under a graph, after an abort, or twice"));
        }
    }
    fn free(&mut self, address: Address) {
        self.asked(Asked::Free(address));
        if self.live.remove(&address).is_none() || !self.graphs.is_empty() {
            self.wrong(format!("{address:#x} is freed twice or under a graph"));
        }
    }
    fn close(&mut self) {
        self.asked(Asked::Close);
        if !self.live.is_empty() || !self.mapped.is_empty() || !self.graphs.is_empty() || (!self.communicators.is_empty() && !self.aborted)
        {
            self.wrong("closed with memory, graphs or communicators in use".to_owned());
        }
        self.end();
    }
    fn abandon(&mut self) {
        self.asked(Asked::Abandon);
        self.end();
    }
}

impl FakeGpu {
    fn end(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            lock(&self.host.state).open -= 1;
        }
    }
}

impl Drop for FakeGpu {
    fn drop(&mut self) {
        if !self.closed {
            self.wrong("dropped without an end".to_owned());
            self.end();
        }
    }
}
