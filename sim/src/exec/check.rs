//! What must hold of any program before its commands can be followed at all.

use super::SimError;
use moetwin_models::RankId;
use moetwin_runtime::{Action, Program};

/// Every reference of a command leads somewhere.
pub(super) fn check(program: &Program) -> Result<(), SimError> {
    let ranks = program.ranks.len();
    let exists = |rank: RankId| (rank.0 as usize) < ranks;
    for (group, members) in program.groups.iter() {
        if let Some(stranger) = members.ranks.iter().find(|r| !exists(**r)) {
            return Err(SimError::Program(format!("group {group} ({}) has member {stranger}, there are {ranks} ranks", members.name)));
        }
        let mut sorted = members.ranks.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0] == w[1]) || sorted.is_empty() {
            return Err(SimError::Program(format!("group {group} ({}) is empty or has a member twice", members.name)));
        }
    }
    for (rank, rp) in program.ranks.iter() {
        for (i, command) in rp.commands.iter().enumerate() {
            let fail = |what: String| Err(SimError::Program(format!("{rank}, command {i} ({}): {what}", command.id)));
            if program.graph.nodes.get(command.id.node).is_none() || command.id.rank != rank {
                return fail("its id names no node, or another rank".into());
            }
            match command.action {
                Action::Compute => {}
                Action::Collective { group, .. } => match program.groups.get(group) {
                    None => return fail(format!("{group} is no group")),
                    Some(g) if !g.ranks.contains(&rank) => return fail(format!("{rank} is no member of {group} ({})", g.name)),
                    Some(_) => {}
                },
                Action::Send { to: peer } | Action::Receive { from: peer } => {
                    if !exists(peer) || peer == rank {
                        return fail(format!("the peer {peer} is no other rank"));
                    }
                }
            }
        }
    }
    Ok(())
}
