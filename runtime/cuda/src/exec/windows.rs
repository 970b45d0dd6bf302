//! Windows of the groups of a program: published, found, mapped, and agreed on by all processes.

use super::executor::CudaExecutor;
use super::gpu::{Host, Way};
use super::window::AllReduceBackend;
use super::worker::Job;
use crate::wire::{Reader, Writer};
use moetwin_kernels::launch::one_shot::{MOST_RANKS, one_shot_bytes};
use moetwin_models::{Op, RankId};
use moetwin_runtime::reference::ExecuteError;
use moetwin_runtime::{Action, Command, Program};
use std::collections::BTreeMap;
use std::sync::Arc;

impl<H: Host> CudaExecutor<H> {
    /// Windows of the groups that sum over their ranks, made where they are new. Where one rank cannot map another's, all of the group use
    /// NCCL, and the user is told.
    pub(super) fn open_windows(&mut self, program: &Program) -> Result<(), ExecuteError> {
        for (id, group) in program.groups.iter() {
            let members = &group.ranks;
            let mut commands = program.ranks[members[0]].commands.iter();
            let sums = |c: &Command| matches!(program.graph.nodes[c.id.node].op, Op::AllReduce { .. } | Op::AllReduceAddRmsNorm { .. });
            let used = commands.any(|c| sums(c) && matches!(c.action, Action::Collective { group, .. } if group == id));
            if !used || members.len() < 2 || self.windows.contains_key(members) {
                continue;
            }
            let refusal = match members.len() <= MOST_RANKS {
                true => self.open_window(members)?,
                false => Some(format!("it takes at most {MOST_RANKS} ranks")),
            };
            self.windows.insert(members.clone(), refusal.is_none());
            let text = match refusal {
                Some(why) => format!("all-reduces of {} use NCCL, not one-shot: {why}", group.name),
                None => format!("all-reduces of {} take one shot up to {} bytes, NCCL beyond", group.name, one_shot_bytes(members.len())),
            };
            self.options.remarks.as_ref().map(|r| r.send(text).ok());
        }
        Ok(())
    }

    /// The windows of one group; why not, if not.
    fn open_window(&mut self, members: &[RankId]) -> Result<Option<String>, ExecuteError> {
        let number = self.communicators[members];
        let way = if self.options.all_reduce == AllReduceBackend::Auto { Way::NvLink } else { Way::Any };
        let local: Vec<RankId> = self.local().into_iter().filter(|r| members.contains(r)).collect();
        local.iter().for_each(|rank| self.send(*rank, Job::Publish(number, members.len())));
        self.answers(0)?;
        let tickets = self.words_of(&local, "publish memory")?;
        let tickets = Arc::new(members.iter().map(|m| tickets.get(m).cloned().unwrap_or_default()).collect::<Vec<_>>());
        for (index, &rank) in members.iter().enumerate().filter(|(_, rank)| local.contains(rank)) {
            self.send(rank, Job::Map(number, index, Arc::clone(&tickets), way));
        }
        self.answers(0)?;
        let refusals = self.words_of(&local, "map memory")?;
        let first = refusals.into_iter().find(|(rank, why)| members.contains(rank) && !why.is_empty());
        Ok(first.map(|(rank, why)| format!("rank {}: {}", rank.0, String::from_utf8_lossy(&why))))
    }

    /// What ranks answered, of all processes.
    fn words_of(&mut self, local: &[RankId], what: &'static str) -> Result<BTreeMap<RankId, Vec<u8>>, ExecuteError> {
        let mut own = Writer::default();
        for rank in local {
            own.number(u64::from(rank.0)).bytes(&self.words.remove(rank).unwrap_or_default());
        }
        let mut all = BTreeMap::new();
        for bytes in self.agree(what, own.done(), self.options.deadline)? {
            let mut from = Reader::new(&bytes);
            while let (Some(rank), Some(words)) = (from.number(), from.bytes()) {
                all.insert(RankId(u32::try_from(rank).unwrap_or(u32::MAX)), words.to_vec());
            }
        }
        Ok(all)
    }
}
