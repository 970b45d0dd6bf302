//! Whether ranks can wait for each other for ever: a collective of one group behind a collective of another on one rank, and the other way round on
//! its peer, is a program that every rank finds in order and that none finishes.

use super::{ProgramFault, print_command};
use crate::program::{Action, EventId, GroupId, Program, StreamId};
use moetwin_models::RankId;
use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::BTreeMap;

/// Commands of a circle that are told.
const TOLD: usize = 4;

/// What ranks do together: a collective of a group, or the n-th message from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Meeting {
    Collective(GroupId, u32),
    Message(RankId, RankId, u32),
}

/// Reports commands that wait for each other in a circle. A rank whose commands stand in the order of their nodes waits for earlier nodes alone; where
/// all ranks do, as in every program that is lowered, there is no circle.
pub(super) fn check_waits(program: &Program, faults: &mut Vec<ProgramFault>) {
    let ascending = program.ranks.iter().all(|(_, rp)| rp.commands.windows(2).all(|pair| pair[0].id.node < pair[1].id.node));
    if !ascending {
        faults.extend(circle(program));
    }
}

/// The first circle, by what every command waits for; what ranks do together is one node.
fn circle(program: &Program) -> Option<ProgramFault> {
    let mut waits: DiGraph<(RankId, usize), ()> = DiGraph::new();
    let mut meetings: BTreeMap<Meeting, NodeIndex> = BTreeMap::new();
    for (rank, rp) in program.ranks.iter() {
        let mut messages: BTreeMap<(RankId, RankId), u32> = BTreeMap::new();
        let mut last: BTreeMap<StreamId, NodeIndex> = BTreeMap::new();
        let mut recorded: BTreeMap<EventId, NodeIndex> = BTreeMap::new();
        for (index, command) in rp.commands.iter().enumerate() {
            let mut message = |from: RankId, to: RankId| {
                let count = messages.entry((from, to)).or_default();
                *count += 1;
                Meeting::Message(from, to, *count)
            };
            let meeting = match command.action {
                Action::Compute => None,
                Action::Collective { group, sequence } => Some(Meeting::Collective(group, sequence)),
                Action::Send { to } => Some(message(rank, to)),
                Action::Receive { from } => Some(message(from, rank)),
            };
            let node = match meeting {
                Some(meeting) => *meetings.entry(meeting).or_insert_with(|| waits.add_node((rank, index))),
                None => waits.add_node((rank, index)),
            };
            let events = command.waits.iter().filter_map(|event| recorded.get(event));
            let before: Vec<NodeIndex> = events.chain(last.get(&command.stream)).copied().collect();
            before.into_iter().for_each(|earlier| {
                waits.add_edge(earlier, node, ());
            });
            last.insert(command.stream, node);
            command.records.into_iter().for_each(|event| {
                recorded.insert(event, node);
            });
        }
    }
    let found = tarjan_scc(&waits).into_iter().find(|component| component.len() > 1)?;
    let mut commands: Vec<(RankId, usize)> = found.iter().map(|node| waits[*node]).collect();
    commands.sort_unstable();
    let told = commands.iter().take(TOLD).map(|(rank, index)| print_command(program, &program.ranks[*rank], *index));
    Some(ProgramFault::Circle { commands: told.collect::<Vec<_>>().join(", "), count: commands.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;
    use crate::lower::{LowerOptions, lower};
    use moetwin_models::{BuildOptions, Deployment, Phase, Step, plan};

    fn program(deployment: &Deployment) -> Program {
        let spec = builtin::spec().expect("ships");
        let graph = plan(&spec, &Step::uniform(Phase::Decode, 4, 8), deployment, &BuildOptions::default()).expect("splits");
        lower(graph, LowerOptions::default()).expect("lowers")
    }

    #[test]
    fn what_is_lowered_has_no_circle_however_it_is_asked() {
        for deployment in [
            Deployment { tp: 2, ep: 2, ..Deployment::default() },
            Deployment { tp: 2, pp: 2, ..Deployment::default() },
            Deployment { tp: 4, dp_attention: 2, ep: 4, ..Deployment::default() },
        ] {
            let program = program(&deployment);
            let mut faults = Vec::new();
            check_waits(&program, &mut faults);
            assert_eq!((faults.len(), circle(&program)), (0, None), "{deployment:?}");
        }
    }

    #[test]
    fn groups_that_one_rank_meets_in_another_order_wait_for_ever() {
        let sound = program(&Deployment { tp: 4, dp_attention: 2, ep: 4, ..Deployment::default() });
        let meeting = |index: usize| {
            let command = &sound.ranks[RankId(0)].commands[index];
            match command.action {
                Action::Collective { group, .. } => Some((command.stream, &sound.groups[group].ranks)),
                _ => None,
            }
        };
        // Collectives of different groups that another rank is in as well, one behind the other on a stream of rank 0.
        let meetings: Vec<usize> = (0..sound.ranks[RankId(0)].commands.len()).filter(|i| meeting(*i).is_some()).collect();
        let shared = |pair: &&[usize]| {
            let (Some((stream, one)), Some((other, two))) = (meeting(pair[0]), meeting(pair[1])) else { return false };
            stream == other && one != two && one.iter().any(|rank| *rank != RankId(0) && two.contains(rank))
        };
        let pairs: Vec<&[usize]> = meetings.windows(2).filter(shared).collect();
        assert!(!pairs.is_empty());
        for pair in pairs {
            let mut program = sound.clone();
            program.ranks[RankId(0)].commands.swap(pair[0], pair[1]);
            let mut faults = Vec::new();
            check_waits(&program, &mut faults);
            let [ProgramFault::Circle { commands, count }] = faults.as_slice() else { panic!("{faults:?}") };
            assert!(*count > 1 && !commands.is_empty());
        }
    }
}
