//! Where the ranks of fake GPUs meet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a lock guards is whole at any time, so what a thread that panicked has left is as good as any.
pub(super) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who has come to what: the part of NCCL that spans ranks. Local to this process, or somewhere that several can reach.
pub trait Fabric: Send + Sync {
    /// Member `index` of `members` joins a communicator.
    fn join(&self, id: u64, index: u32, members: u32);
    /// Whether all have joined.
    fn joined(&self, id: u64) -> bool;
    /// A member comes to its `round`-th group of calls, described without addresses.
    fn arrive(&self, id: u64, round: u64, index: u32, calls: &str);
    /// Whether all members have come to a round; an error where they came with different calls.
    fn complete(&self, id: u64, round: u64) -> Result<bool, String>;
}

/// A fabric of this process.
#[derive(Debug, Default)]
pub struct LocalFabric(Mutex<BTreeMap<u64, Club>>);

/// A communicator: its size, who has joined, and who has come to which round with what.
#[derive(Debug, Default)]
struct Club {
    members: u32,
    joined: BTreeSet<u32>,
    rounds: BTreeMap<u64, BTreeMap<u32, String>>,
}

impl Fabric for LocalFabric {
    fn join(&self, id: u64, index: u32, members: u32) {
        let mut clubs = lock(&self.0);
        let club = clubs.entry(id).or_default();
        club.members = members;
        club.joined.insert(index);
    }
    fn joined(&self, id: u64) -> bool {
        lock(&self.0).get(&id).is_some_and(|c| c.joined.len() == c.members as usize)
    }
    fn arrive(&self, id: u64, round: u64, index: u32, calls: &str) {
        lock(&self.0).entry(id).or_default().rounds.entry(round).or_default().insert(index, calls.to_owned());
    }
    fn complete(&self, id: u64, round: u64) -> Result<bool, String> {
        let clubs = lock(&self.0);
        let Some(come) = clubs.get(&id).and_then(|c| c.rounds.get(&round)) else { return Ok(false) };
        let first = come.values().next();
        if let Some(other) = come.values().find(|c| Some(*c) != first) {
            return Err(format!("round {round}: members come with {} and {other}", first.map_or("", String::as_str)));
        }
        Ok(clubs.get(&id).is_some_and(|c| come.len() == c.members as usize))
    }
}
