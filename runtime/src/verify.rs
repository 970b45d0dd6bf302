//! The program verifier: recomputes from the commands alone that streams and events order every pair of accesses that must be ordered,
//! that all ranks issue the same collectives in the same order, that sends meet their receives, and that ranks do not wait for each other in a circle.

mod waits;

use crate::program::{Action, BufferId, Command, EventId, Place, Program, RankProgram, StreamId};
use moetwin_models::RankId;
use std::collections::BTreeMap;

/// A broken rule of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramFault {
    /// Two accesses of the same bytes, one of them a write, that nothing orders.
    #[error("{rank}: {later} may run before {earlier} has finished, and both touch {what}")]
    Unordered {
        /// The rank.
        rank: RankId,
        /// The command issued first, printed.
        earlier: String,
        /// The command issued later, printed.
        later: String,
        /// The bytes in question.
        what: String,
    },
    /// A buffer is read that nothing has written.
    #[error("{rank}: {command} reads {buffer}, which no earlier command writes")]
    NeverWritten {
        /// The rank.
        rank: RankId,
        /// The command, printed.
        command: String,
        /// The buffer, printed.
        buffer: String,
    },
    /// An event is waited for that no earlier command records.
    #[error("{rank}: {command} waits for {event}, which no earlier command records")]
    NeverRecorded {
        /// The rank.
        rank: RankId,
        /// The command, printed.
        command: String,
        /// The event.
        event: EventId,
    },
    /// Members of a group issue different collectives.
    #[error("group {group}: {first} and {other} issue different collectives: {detail}")]
    CollectiveMismatch {
        /// The group's name.
        group: String,
        /// A member.
        first: RankId,
        /// A member that differs.
        other: RankId,
        /// Where.
        detail: String,
    },
    /// A send without its receive, or the other way round.
    #[error("{from} sends to {to} what {to} does not receive in that order: {detail}")]
    SendMismatch {
        /// Sender.
        from: RankId,
        /// Receiver.
        to: RankId,
        /// Where.
        detail: String,
    },
    /// Commands of several ranks wait for each other.
    #[error("{count} commands wait for each other in a circle, so no rank finishes: {commands}")]
    Circle {
        /// The first of them, printed.
        commands: String,
        /// How many there are.
        count: usize,
    },
}

/// Every fault of a program.
pub fn verify(program: &Program) -> Result<(), Vec<ProgramFault>> {
    let mut faults = Vec::new();
    let mut sound: Vec<&RankProgram> = Vec::new();
    for (rank, rp) in program.ranks.iter() {
        // Ranks of one stage are told the same; what was checked once need not be checked again.
        if sound.iter().any(|other| same_order(other, rp)) {
            continue;
        }
        let before = faults.len();
        RankCheck::new(program, rank, rp).run(&mut faults);
        if faults.len() == before {
            sound.push(rp);
        }
    }
    check_collectives(program, &mut faults);
    check_sends(program, &mut faults);
    waits::check_waits(program, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Whether two ranks run the same nodes in the same streams and storage, whoever they talk to.
fn same_order(a: &RankProgram, b: &RankProgram) -> bool {
    let same = |(x, y): (&Command, &Command)| {
        (x.id.node, x.stream, x.records) == (y.id.node, y.stream, y.records)
            && x.waits == y.waits
            && x.reads == y.reads
            && x.writes == y.writes
    };
    a.streams == b.streams && a.commands.len() == b.commands.len() && a.buffers == b.buffers && a.commands.iter().zip(&b.commands).all(same)
}

/// An access of a buffer by a command.
#[derive(Clone, Copy)]
struct Access {
    command: usize,
    write: bool,
}

struct RankCheck<'a> {
    program: &'a Program,
    rank: RankId,
    rp: &'a RankProgram,
    /// `known[c][s]`: commands of stream `s` with an index below this have finished when `c` starts.
    known: Vec<Vec<usize>>,
    /// The last read and the last write of each buffer on each stream: earlier ones on a stream are ordered before them.
    accesses: Vec<Vec<Access>>,
    /// Arena buffers whose accesses may still matter, with their byte range.
    arena: Vec<(BufferId, u64, u64)>,
}

impl<'a> RankCheck<'a> {
    fn new(program: &'a Program, rank: RankId, rp: &'a RankProgram) -> Self {
        Self {
            program,
            rank,
            rp,
            known: Vec::with_capacity(rp.commands.len()),
            accesses: vec![Vec::new(); rp.buffers.len()],
            arena: Vec::new(),
        }
    }

    fn run(mut self, faults: &mut Vec<ProgramFault>) {
        self.order(faults);
        for index in 0..self.rp.commands.len() {
            let command = &self.rp.commands[index];
            for &b in &command.reads {
                self.touch(b, Access { command: index, write: false }, faults);
            }
            for &b in &command.writes {
                self.touch(b, Access { command: index, write: true }, faults);
            }
        }
    }

    fn order(&mut self, faults: &mut Vec<ProgramFault>) {
        let streams = self.rp.streams as usize;
        let mut last_on: Vec<Option<usize>> = vec![None; streams];
        let mut recorder: BTreeMap<EventId, usize> = BTreeMap::new();
        for (index, command) in self.rp.commands.iter().enumerate() {
            let mut known = vec![0; streams];
            let mut learn = |from: usize, known_rows: &[Vec<usize>]| {
                for (mine, &theirs) in known.iter_mut().zip(&known_rows[from]) {
                    *mine = (*mine).max(theirs);
                }
                let s = self.rp.commands[from].stream.0 as usize;
                known[s] = known[s].max(from + 1);
            };
            let s = command.stream.0 as usize;
            if let Some(previous) = last_on[s] {
                learn(previous, &self.known);
            }
            for &event in &command.waits {
                match recorder.get(&event) {
                    Some(&r) => learn(r, &self.known),
                    None => faults.push(ProgramFault::NeverRecorded { rank: self.rank, command: self.print(index), event }),
                }
            }
            self.known.push(known);
            last_on[s] = Some(index);
            if let Some(event) = command.records {
                recorder.insert(event, index);
            }
        }
    }

    fn finished_before(&self, earlier: usize, later: usize) -> bool {
        let StreamId(s) = self.rp.commands[earlier].stream;
        earlier < self.known[later][s as usize]
    }

    fn touch(&mut self, buffer: BufferId, access: Access, faults: &mut Vec<ProgramFault>) {
        let b = &self.rp.buffers[buffer];
        let slot = buffer.0 as usize;
        let first = self.accesses[slot].is_empty();
        if first && !access.write && matches!(b.place, Place::Arena { .. }) {
            faults.push(ProgramFault::NeverWritten {
                rank: self.rank,
                command: self.print(access.command),
                buffer: self.program.graph.tensors[b.tensor].name.clone(),
            });
        }
        self.check_against(buffer, access, faults);
        if let Place::Arena { offset } = b.place {
            let (start, end) = (offset, offset + b.bytes);
            for i in 0..self.arena.len() {
                let (other, s, e) = self.arena[i];
                if other != buffer && s < end && start < e {
                    self.check_against(other, access, faults);
                }
            }
            // Whatever is ordered after a write is ordered after all that the write was ordered after.
            if access.write {
                self.arena.retain(|&(other, s, e)| other == buffer || s < start || end < e);
            }
            if first {
                self.arena.push((buffer, start, end));
            }
        }
        let stream = |c: usize| self.rp.commands[c].stream;
        let mine = stream(access.command);
        self.accesses[slot].retain(|a| a.write != access.write || self.rp.commands[a.command].stream != mine);
        self.accesses[slot].push(access);
    }

    /// Reports if an earlier access of `buffer` that conflicts with `access` is not known to be finished.
    fn check_against(&self, buffer: BufferId, access: Access, faults: &mut Vec<ProgramFault>) {
        for earlier in &self.accesses[buffer.0 as usize] {
            let conflict = earlier.write || access.write;
            if earlier.command != access.command && conflict && !self.finished_before(earlier.command, access.command) {
                let what = self.program.graph.tensors[self.rp.buffers[buffer].tensor].name.clone();
                faults.push(ProgramFault::Unordered {
                    rank: self.rank,
                    earlier: self.print(earlier.command),
                    later: self.print(access.command),
                    what,
                });
            }
        }
    }

    fn print(&self, index: usize) -> String {
        print_command(self.program, self.rp, index)
    }
}

fn print_command(program: &Program, rp: &RankProgram, index: usize) -> String {
    let id = rp.commands[index].id;
    let node = &program.graph.nodes[id.node];
    let name = node.outputs.first().map_or("", |t| program.graph.tensors[*t].name.as_str());
    format!("{id} ({name})")
}

fn check_collectives(program: &Program, faults: &mut Vec<ProgramFault>) {
    for (id, group) in program.groups.iter() {
        let issued = |rank: RankId| -> Vec<(u32, u32)> {
            let commands = program.ranks[rank].commands.iter();
            commands
                .filter_map(|c| match c.action {
                    Action::Collective { group, sequence } if group == id => Some((c.id.node.0, sequence)),
                    _ => None,
                })
                .collect()
        };
        let first = group.ranks[0];
        let expected = issued(first);
        for &other in &group.ranks[1..] {
            let got = issued(other);
            if got != expected {
                let at = expected.iter().zip(&got).position(|(a, b)| a != b).unwrap_or(expected.len().min(got.len()));
                let detail = format!("{} and {} of them, first difference at number {at}", expected.len(), got.len());
                faults.push(ProgramFault::CollectiveMismatch { group: group.name.clone(), first, other, detail });
            }
        }
    }
}

fn check_sends(program: &Program, faults: &mut Vec<ProgramFault>) {
    let mut sends: BTreeMap<(RankId, RankId), Vec<u32>> = BTreeMap::new();
    let mut receives = sends.clone();
    for (rank, rp) in program.ranks.iter() {
        for c in &rp.commands {
            match c.action {
                Action::Send { to } => sends.entry((rank, to)).or_default().push(c.id.node.0),
                Action::Receive { from } => receives.entry((from, rank)).or_default().push(c.id.node.0),
                _ => {}
            }
        }
    }
    let pairs: std::collections::BTreeSet<_> = sends.keys().chain(receives.keys()).copied().collect();
    for (from, to) in pairs {
        let (s, r) = (sends.get(&(from, to)), receives.get(&(from, to)));
        if s != r {
            let count = |v: Option<&Vec<u32>>| v.map_or(0, Vec::len);
            faults.push(ProgramFault::SendMismatch { from, to, detail: format!("{} sends, {} receives", count(s), count(r)) });
        }
    }
}
