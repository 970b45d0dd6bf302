//! One process a rank: the processes' own connection, over which they agree, exchange NCCL's ids and results, and tell each other of
//! failures. Rank 0 listens, the others connect to it; what one says to all goes through it.

mod frame;

use crate::exec::progress::Failed;
use crate::exec::rank::RankFailure;
use crate::exec::worker::Event;
use crate::launcher::Launcher;
use crate::wire::{Reader, Writer};
use frame::{Frame, read_frames, write_frame};
use moetwin_models::RankId;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What every process says first; another program, or another version, is refused.
const HELLO: &str = concat!("moetwin ", env!("CARGO_PKG_VERSION"));
/// How often a process says that it is alive.
const BEAT: Duration = Duration::from_millis(500);
/// How long a process may be silent before it counts as stopped.
const SILENCE: Duration = Duration::from_secs(10);
/// Between two attempts to reach rank 0, which may not listen yet.
const RETRY: Duration = Duration::from_millis(50);

/// Why the processes did not find together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The address cannot be used.
    #[error("rank {rank} cannot {what} {address}: {why}")]
    Address {
        /// This process's rank.
        rank: u32,
        /// Listen on, or reach.
        what: &'static str,
        /// Where.
        address: String,
        /// What the system said.
        why: String,
    },
    /// Not everybody came.
    #[error("rank {rank}: {missing} did not come to {address} within {} s", .limit.as_secs())]
    Absent {
        /// This process's rank.
        rank: u32,
        /// Who did not come.
        missing: String,
        /// Where.
        address: String,
        /// How long they had.
        limit: Duration,
    },
    /// Processes that do not belong together.
    #[error("rank {rank} does not belong to this run: {why}")]
    Stranger {
        /// Who.
        rank: u32,
        /// Why.
        why: String,
    },
}

/// A peer's connection, written to by one thread at a time.
struct Peer {
    rank: u32,
    stream: Mutex<TcpStream>,
}

struct Shared {
    peers: Vec<Peer>,
    /// Frames that carry data, with the sender.
    inbox: Mutex<Sender<(u32, Frame)>>,
    /// Where failures elsewhere are told, once somebody listens.
    events: Mutex<Option<Sender<Event>>>,
    /// Failures that came before anybody listened.
    early: Mutex<Vec<RankFailure>>,
    over: AtomicBool,
}

/// This process's end of the connection. Closed on drop.
pub struct Link {
    rank: u32,
    size: u32,
    shared: Arc<Shared>,
    inbox: Receiver<(u32, Frame)>,
    /// Peers that were done before this process.
    left: Vec<u32>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "link of rank {} of {}", self.rank, self.size)
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Finds the other processes. `digest` says what this one is about to do; all must say the same.
    pub fn establish(launcher: &Launcher, digest: &str, limit: Duration) -> Result<Self, LinkError> {
        let end = Instant::now() + limit;
        let (rank, size) = (launcher.rank, launcher.size);
        let streams = if rank == 0 { gather(launcher, digest, end, limit)? } else { vec![(0, reach(launcher, digest, end, limit)?)] };
        let (inbox, receiver) = channel();
        let mut readers = Vec::new();
        let mut peers = Vec::new();
        for (peer, stream) in streams {
            let copy = stream.try_clone().map_err(|e| address_error(launcher, "use", &e))?;
            readers.push((peer, copy));
            peers.push(Peer { rank: peer, stream: Mutex::new(stream) });
        }
        let shared = Arc::new(Shared {
            peers,
            inbox: Mutex::new(inbox),
            events: Mutex::new(None),
            early: Mutex::new(Vec::new()),
            over: AtomicBool::new(false),
        });
        for (peer, stream) in readers {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || listen_to(&shared, peer, stream));
        }
        let beating = Arc::clone(&shared);
        std::thread::spawn(move || {
            while !beating.over.load(Ordering::Acquire) {
                beating.tell_all(&Frame::Beat, None);
                std::thread::sleep(BEAT);
            }
        });
        Ok(Self { rank, size, shared, inbox: receiver, left: Vec::new() })
    }
    /// Where failures of other processes are told from now on.
    pub(crate) fn listen(&self, events: Sender<Event>) {
        for failure in std::mem::take(&mut *lock(&self.shared.early)) {
            events.send(Event::Elsewhere(failure)).ok();
        }
        *lock(&self.shared.events) = Some(events);
    }
    /// Tells every process of a failure; `with_peers` where it is only a wait that may have another cause.
    pub fn report(&self, failed: &Failed, with_peers: bool) {
        self.shared.tell_all(&Frame::Failed { with_peers, failed: failed.clone() }, None);
    }
    /// Puts something of every process together, in the order of their ranks. All come here at the same point, named `what`.
    ///
    /// # Errors
    /// The failure of another process, or one that does not come in time.
    pub fn exchange(&mut self, what: &str, own: Vec<u8>, limit: Duration) -> Result<Vec<Vec<u8>>, Failed> {
        let end = Instant::now() + limit;
        if self.rank != 0 {
            self.shared.tell_all(&Frame::Data { what: what.to_owned(), bytes: own }, None);
            loop {
                match self.next(end) {
                    Some((_, Frame::All { what: theirs, parts })) if theirs == what && parts.len() == self.size as usize => {
                        return Ok(parts);
                    }
                    Some((_, Frame::All { what: theirs, .. })) => return Err(self.apart(0, what, &theirs)),
                    Some((_, Frame::Failed { failed, with_peers: false })) => return Err(failed),
                    Some((_, Frame::Bye)) => return Err(gone(0, what)),
                    Some(_) => {}
                    None => return Err(failure(0, what, format!("rank 0 did not come within {} s", limit.as_secs()))),
                }
            }
        }
        let mut parts: Vec<Option<Vec<u8>>> = vec![None; self.size as usize];
        parts[0] = Some(own);
        while let Some(missing) = parts.iter().position(Option::is_none) {
            if let Some(&peer) = self.left.iter().find(|p| parts[**p as usize].is_none()) {
                let failed = gone(peer, what);
                self.report(&failed, false);
                return Err(failed);
            }
            match self.next(end) {
                Some((peer, Frame::Data { what: theirs, bytes })) if theirs == what => parts[peer as usize] = Some(bytes),
                Some((peer, Frame::Data { what: theirs, .. })) => return Err(self.apart(peer, what, &theirs)),
                Some((_, Frame::Failed { failed, with_peers: false })) => return Err(failed),
                Some((peer, Frame::Bye)) => self.left.push(peer),
                Some(_) => {}
                None => return Err(failure(missing as u32, what, format!("did not come within {} s", limit.as_secs()))),
            }
        }
        let parts: Vec<Vec<u8>> = parts.into_iter().flatten().collect();
        self.shared.tell_all(&Frame::All { what: what.to_owned(), parts: parts.clone() }, None);
        Ok(parts)
    }
    fn next(&self, end: Instant) -> Option<(u32, Frame)> {
        self.inbox.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
    }
    fn apart(&self, peer: u32, here: &str, there: &str) -> Failed {
        failure(peer, here, format!("rank {peer} is at `{there}`, rank {} at `{here}`", self.rank))
    }
}

fn failure(rank: u32, command: &str, problem: String) -> Failed {
    Failed { rank: RankId(rank), phase: String::new(), command: command.to_owned(), problem }
}

/// A peer that is done while it is still needed.
fn gone(peer: u32, what: &str) -> Failed {
    failure(peer, what, "it ended before the others were done".to_owned())
}

impl Drop for Link {
    fn drop(&mut self) {
        // Without this, the others would take the end of a process that is done for a failure.
        self.shared.tell_all(&Frame::Bye, None);
        self.shared.over.store(true, Ordering::Release);
        for peer in &self.shared.peers {
            lock(&peer.stream).shutdown(std::net::Shutdown::Both).ok();
        }
    }
}

impl Shared {
    /// A peer that cannot be written to is noticed by the thread that listens to it.
    fn tell_all(&self, frame: &Frame, except: Option<u32>) {
        for peer in self.peers.iter().filter(|p| Some(p.rank) != except) {
            write_frame(&mut *lock(&peer.stream), frame).ok();
        }
    }
    fn failed(&self, from: u32, failed: Failed, with_peers: bool) {
        let failure = RankFailure { failed: failed.clone(), with_peers, gave_up: false, order: u32::MAX, drained: true };
        match &*lock(&self.events) {
            Some(events) => drop(events.send(Event::Elsewhere(failure))),
            None => lock(&self.early).push(failure),
        }
        lock(&self.inbox).send((from, Frame::Failed { with_peers, failed })).ok();
    }
}

/// The life of a thread that listens to one peer. Failures are passed on at once, whatever the rest of the process does.
fn listen_to(shared: &Shared, peer: u32, mut stream: TcpStream) {
    let mut done = false;
    let ended = read_frames(&mut stream, BEAT, SILENCE, |frame| match frame {
        Frame::Beat => {}
        Frame::Bye => {
            done = true;
            lock(&shared.inbox).send((peer, Frame::Bye)).ok();
        }
        Frame::Failed { with_peers, failed } => {
            shared.tell_all(&Frame::Failed { with_peers, failed: failed.clone() }, Some(peer));
            shared.failed(peer, failed, with_peers);
        }
        data => drop(lock(&shared.inbox).send((peer, data))),
    });
    if !done && !shared.over.load(Ordering::Acquire) {
        let failed = failure(peer, "its process", ended);
        shared.tell_all(&Frame::Failed { with_peers: false, failed: failed.clone() }, Some(peer));
        shared.failed(peer, failed, false);
    }
}

fn address_error(launcher: &Launcher, what: &'static str, e: &std::io::Error) -> LinkError {
    LinkError::Address { rank: launcher.rank, what, address: launcher.place(), why: e.to_string() }
}

fn hello(launcher: &Launcher, digest: &str) -> Frame {
    let mut out = Writer::default();
    out.text(HELLO).number(u64::from(launcher.rank)).number(u64::from(launcher.size)).text(digest);
    Frame::Data { what: "hello".to_owned(), bytes: out.done() }
}

/// The rank that a hello is from, if it belongs to this run; nothing where it is no hello of moetwin's.
fn accept(launcher: &Launcher, digest: &str, frame: &Frame) -> Result<Option<u32>, LinkError> {
    let Frame::Data { what, bytes } = frame else { return Ok(None) };
    let mut from = Reader::new(bytes);
    let parts = (what == "hello").then(|| Some((from.text()?, from.number()?, from.number()?, from.text()?))).flatten();
    let Some((version, rank, size, theirs)) = parts else { return Ok(None) };
    let rank = u32::try_from(rank).unwrap_or(u32::MAX);
    let wrong = |why: String| Err(LinkError::Stranger { rank, why });
    if version != HELLO {
        return wrong(format!("it is {version}, rank 0 is {HELLO}"));
    }
    if size != u64::from(launcher.size) || rank == 0 || rank >= launcher.size {
        return wrong(format!("it is rank {rank} of {size}, rank 0 expects ranks 1 to {}", launcher.size - 1));
    }
    if theirs != digest {
        return wrong(format!("it was started with other arguments, files or variables ({theirs}; rank 0: {digest})"));
    }
    Ok(Some(rank))
}

/// Rank 0: waits for everybody, and tells everybody when all are here.
fn gather(launcher: &Launcher, digest: &str, end: Instant, limit: Duration) -> Result<Vec<(u32, TcpStream)>, LinkError> {
    // Both kinds of addresses where the system has both.
    let listener = TcpListener::bind(("::", launcher.port)).or_else(|_| TcpListener::bind(("0.0.0.0", launcher.port)));
    let listener = listener.map_err(|e| address_error(launcher, "listen on", &e))?;
    listener.set_nonblocking(true).map_err(|e| address_error(launcher, "listen on", &e))?;
    let mut streams: Vec<(u32, TcpStream)> = Vec::new();
    let mut refused = None;
    while streams.len() + 1 < launcher.size as usize && refused.is_none() {
        match listener.accept() {
            Ok((stream, _)) => match greet(launcher, digest, stream, end) {
                Ok(Some((rank, _))) if streams.iter().any(|(r, _)| *r == rank) => {
                    refused = Some(LinkError::Stranger { rank, why: "another process has this rank".into() });
                }
                Ok(peer) => streams.extend(peer),
                Err(e) => refused = Some(e),
            },
            Err(_) if Instant::now() > end => {
                let missing: Vec<String> =
                    (1..launcher.size).filter(|r| !streams.iter().any(|(s, _)| s == r)).map(|r| format!("rank {r}")).collect();
                refused = Some(LinkError::Absent { rank: 0, missing: missing.join(", "), address: launcher.place(), limit });
            }
            Err(_) => std::thread::sleep(RETRY / 10),
        }
    }
    let answer = Frame::Data { what: "welcome".to_owned(), bytes: refused.as_ref().map_or_else(Vec::new, |e| e.to_string().into_bytes()) };
    for (_, stream) in &mut streams {
        write_frame(stream, &answer).ok();
    }
    streams.sort_by_key(|(rank, _)| *rank);
    refused.map_or(Ok(streams), Err)
}

/// A newcomer's rank; nothing where it is a stranger that says nothing, or nothing of ours, as port scanners do.
fn greet(launcher: &Launcher, digest: &str, mut stream: TcpStream, end: Instant) -> Result<Option<(u32, TcpStream)>, LinkError> {
    let ready = stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true));
    ready.map_err(|e| address_error(launcher, "use", &e))?;
    let Some(frame) = frame::read_one(&mut stream, end.min(Instant::now() + SILENCE)) else { return Ok(None) };
    match accept(launcher, digest, &frame) {
        Ok(rank) => Ok(rank.map(|rank| (rank, stream))),
        Err(e) => {
            write_frame(&mut stream, &Frame::Data { what: "welcome".to_owned(), bytes: e.to_string().into_bytes() }).ok();
            Err(e)
        }
    }
}

/// A connection to the first address of a name that answers.
fn dial(name: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut tried = Err(std::io::Error::other("the name has no address"));
    for address in (name, port).to_socket_addrs()? {
        tried = TcpStream::connect_timeout(&address, Duration::from_secs(2));
        if tried.is_ok() {
            break;
        }
    }
    tried.and_then(|stream| stream.set_nodelay(true).map(|()| stream))
}

/// Another rank: reaches rank 0 and waits until everybody is there.
fn reach(launcher: &Launcher, digest: &str, end: Instant, limit: Duration) -> Result<TcpStream, LinkError> {
    let mut why = String::new();
    loop {
        match dial(&launcher.address, launcher.port) {
            Ok(mut stream) => {
                if write_frame(&mut stream, &hello(launcher, digest)).is_ok() {
                    // Rank 0 answers when all have come, so it may take as long as they have.
                    match frame::read_one(&mut stream, end + SILENCE) {
                        Some(Frame::Data { what, bytes }) if what == "welcome" && bytes.is_empty() => return Ok(stream),
                        Some(Frame::Data { bytes, .. }) => {
                            let why = String::from_utf8_lossy(&bytes).into_owned();
                            return Err(LinkError::Stranger { rank: launcher.rank, why: format!("rank 0 says: {why}") });
                        }
                        _ => why = "rank 0 hung up".to_owned(),
                    }
                }
            }
            Err(e) => why = e.to_string(),
        }
        if Instant::now() > end {
            let missing = format!("rank 0 ({why})");
            return Err(LinkError::Absent { rank: launcher.rank, missing, address: launcher.place(), limit });
        }
        std::thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests;
