//! Legal orders of a program: streams run their commands in order, events order streams, collectives and sends order ranks.
//! Nothing else does, so a seeded pick among all ready commands is an order that real GPUs may take.

use crate::program::{Action, GroupId, Program};
use moetwin_models::{IdVec, RankId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// In which of the legal orders to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The lowest ready rank and stream first.
    Launch,
    /// A seeded pick among the ready commands.
    Seeded(u64),
}

/// Commands that run together: one, or one of each member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Firing {
    /// A rank's own command (its index in the rank's list).
    Compute(RankId, usize),
    /// A group's collective: each member's command, in group order.
    Collective(GroupId, Vec<(RankId, usize)>),
    /// A send and its receive.
    Transfer {
        /// Sender and its command.
        send: (RankId, usize),
        /// Receiver and its command.
        receive: (RankId, usize),
    },
}

/// No command can run, and some have not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("deadlock: no command can run; waiting: {}", waiting.join("; "))]
pub struct Deadlock {
    /// What stands at the head of each unfinished stream, printed.
    pub waiting: Vec<String>,
}

/// Picks firings until every command has run.
pub struct Schedule<'a> {
    program: &'a Program,
    queues: IdVec<RankId, RankQueues>,
    rng: Option<ChaCha8Rng>,
}

struct RankQueues {
    /// For each stream, the indices of its commands.
    streams: Vec<Vec<usize>>,
    heads: Vec<usize>,
    recorded: Vec<bool>,
}

impl RankQueues {
    fn head(&self, stream: usize) -> Option<usize> {
        self.streams[stream].get(self.heads[stream]).copied()
    }
}

impl<'a> Schedule<'a> {
    /// A schedule of the whole program.
    pub fn new(program: &'a Program, order: Order) -> Self {
        let queues = program.ranks.iter().map(|(_, rp)| {
            let mut streams = vec![Vec::new(); rp.streams as usize];
            for (i, c) in rp.commands.iter().enumerate() {
                streams[c.stream.0 as usize].push(i);
            }
            RankQueues { heads: vec![0; streams.len()], streams, recorded: vec![false; rp.events as usize] }
        });
        let rng = match order {
            Order::Launch => None,
            Order::Seeded(seed) => Some(ChaCha8Rng::seed_from_u64(seed)),
        };
        Self { program, queues: queues.collect(), rng }
    }

    /// The next firing; the caller carries it out before asking again. `None` when every command has run.
    pub fn next_firing(&mut self) -> Result<Option<Firing>, Deadlock> {
        let ready = self.ready();
        if ready.is_empty() {
            let waiting = self.waiting();
            return if waiting.is_empty() { Ok(None) } else { Err(Deadlock { waiting }) };
        }
        let pick = match &mut self.rng {
            None => 0,
            Some(rng) => (rng.next_u64() % ready.len() as u64) as usize,
        };
        let firing = ready.into_iter().nth(pick).expect("pick is below the length");
        match &firing {
            Firing::Compute(rank, index) => self.finish(*rank, *index),
            Firing::Collective(_, members) => members.iter().for_each(|&(rank, index)| self.finish(rank, index)),
            Firing::Transfer { send, receive } => [*send, *receive].into_iter().for_each(|(rank, index)| self.finish(rank, index)),
        }
        Ok(Some(firing))
    }

    fn finish(&mut self, rank: RankId, index: usize) {
        let command = &self.program.ranks[rank].commands[index];
        let queues = &mut self.queues[rank];
        queues.heads[command.stream.0 as usize] += 1;
        if let Some(event) = command.records {
            queues.recorded[event.0 as usize] = true;
        }
    }

    /// Heads whose waits are over.
    fn heads(&self) -> impl Iterator<Item = (RankId, usize)> + '_ {
        self.queues.iter().flat_map(move |(rank, q)| {
            (0..q.streams.len()).filter_map(move |s| {
                let index = q.head(s)?;
                let command = &self.program.ranks[rank].commands[index];
                command.waits.iter().all(|e| q.recorded[e.0 as usize]).then_some((rank, index))
            })
        })
    }

    fn ready(&self) -> Vec<Firing> {
        let mut ready = Vec::new();
        let mut arrived: BTreeMap<(GroupId, u32), Vec<(RankId, usize)>> = BTreeMap::new();
        let mut sends: BTreeMap<(RankId, RankId, u32), (RankId, usize)> = BTreeMap::new();
        let mut receives = Vec::new();
        for (rank, index) in self.heads() {
            let command = &self.program.ranks[rank].commands[index];
            match command.action {
                Action::Compute => ready.push(Firing::Compute(rank, index)),
                Action::Collective { group, sequence } => arrived.entry((group, sequence)).or_default().push((rank, index)),
                Action::Send { to } => {
                    sends.insert((rank, to, command.id.node.0), (rank, index));
                }
                Action::Receive { from } => receives.push(((from, rank, command.id.node.0), (rank, index))),
            }
        }
        for ((group, _), members) in arrived {
            let order = &self.program.groups[group].ranks;
            if members.len() == order.len() {
                let in_order = order.iter().filter_map(|r| members.iter().find(|(m, _)| m == r).copied()).collect();
                ready.push(Firing::Collective(group, in_order));
            }
        }
        for (key, receive) in receives {
            if let Some(&send) = sends.get(&key) {
                ready.push(Firing::Transfer { send, receive });
            }
        }
        ready
    }

    fn waiting(&self) -> Vec<String> {
        let mut waiting = Vec::new();
        for (rank, q) in self.queues.iter() {
            for s in 0..q.streams.len() {
                if let Some(index) = q.head(s) {
                    let c = &self.program.ranks[rank].commands[index];
                    let node = &self.program.graph.nodes[c.id.node];
                    let name = node.outputs.first().map_or("", |t| self.program.graph.tensors[*t].name.as_str());
                    waiting.push(format!("{rank} stream {s} at {} ({name})", c.id));
                }
            }
        }
        waiting
    }
}
