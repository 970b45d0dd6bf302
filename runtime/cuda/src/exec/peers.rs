//! What a rank shares with its peers beside NCCL: windows that they map, and the record of what the device found wrong.

use super::exchange::{Part, expert_bounds, packed_sizes};
use super::gpu::{Address, Gpu, GpuError, WORKSPACE_BYTES, Way};
use super::packed::{Packing, list_bytes};
use super::progress::What;
use super::rank::{Loaded, Rank};
use super::window::{PEERS_BYTES, Window, peers_table};
use moetwin_kernels::launch::one_shot::window_bytes;
use moetwin_kernels::launch::{Arg, Launch, Table};
use moetwin_models::{NodeId, Op, RankId};
use moetwin_runtime::init::InitPhase;
use moetwin_runtime::{Action, Program};
use std::sync::Arc;

/// How often a kernel's limit of a wait for peers exceeds the run's deadline: hosts give up first, and end the kernel's wait too.
const DEVICE_LIMIT: u32 = 4;
/// Bytes of `Fault` in exchange.cu, and its kinds.
const FAULT_BYTES: usize = 16;
const LATE: u32 = 1;
const OVERFLOW: u32 = 2;

/// What a rank shares with its peers.
#[derive(Default)]
pub(super) struct Shared {
    /// By communicator: this rank's window, and the group's, once mapped.
    published: Vec<(u32, Address)>,
    windows: Vec<(u32, Window)>,
    mapped: Vec<Address>,
    /// The record of faults, once anything may write to it.
    pub(super) fault: Option<Address>,
}

impl Shared {
    pub(super) fn window(&self, communicator: u32) -> Option<&Window> {
        self.windows.iter().find(|(c, _)| *c == communicator).map(|(_, w)| w)
    }
    /// Lets go of what peers own.
    pub(super) fn unmap<G: Gpu>(&mut self, gpu: &mut G) {
        std::mem::take(&mut self.mapped).into_iter().rev().for_each(|a| gpu.unmap(a));
    }
}

impl<G: Gpu> Rank<G> {
    /// Reserves this rank's window of a communicator's group; returns its ticket.
    pub(crate) fn publish(&mut self, communicator: u32, members: usize) -> Result<Vec<u8>, GpuError> {
        self.begin(InitPhase::Connect, What::Named("publish memory for peers"), false);
        let (base, ticket) = self.gpu.publish(window_bytes(members))?;
        self.allocations.push(base);
        self.shared.published.push((communicator, base));
        self.fault_record()?;
        Ok(ticket)
    }
    /// Maps the windows of a communicator's group, in its order; why not, where this GPU cannot.
    pub(crate) fn map(&mut self, communicator: u32, index: usize, tickets: &[Vec<u8>], way: Way) -> Result<Option<String>, GpuError> {
        self.begin(InitPhase::Connect, What::Named("map peers' memory"), false);
        let own = self.shared.published.iter().find(|(c, _)| *c == communicator).map(|(_, base)| *base);
        let own = own.ok_or_else(|| GpuError::new("map peers' memory", "nothing was published"))?;
        let mut windows = Vec::with_capacity(tickets.len());
        for (member, ticket) in tickets.iter().enumerate() {
            windows.push(match member == index {
                true => own,
                false => match self.gpu.map(ticket, way)? {
                    Ok(address) => {
                        self.shared.mapped.push(address);
                        address
                    }
                    Err(why) => return Ok(Some(why)),
                },
            });
        }
        let stop = match self.gpu.stop_word()? {
            Ok(stop) => stop,
            Err(why) => return Ok(Some(why)),
        };
        let table = self.allocate(PEERS_BYTES)?;
        self.gpu.write(table, &peers_table(&windows))?;
        self.shared.windows.push((communicator, Window::new(index as u32, tickets.len() as u32, own, table, stop)));
        Ok(None)
    }
    fn fault_record(&mut self) -> Result<Address, GpuError> {
        if let Some(address) = self.shared.fault {
            return Ok(address);
        }
        let address = self.allocate(FAULT_BYTES as u64)?;
        self.gpu.write(address, &[0; FAULT_BYTES])?;
        self.shared.fault = Some(address);
        Ok(address)
    }
    /// What packing a program's exchanges needs, where `capacity` is less than a rank's rows in any of them. The tables are made here, since
    /// captured code may not allocate.
    pub(super) fn packing(&mut self, program: &Program, capacity: u64) -> Result<Option<Packing>, GpuError> {
        let mut most = None;
        for command in &program.ranks[self.rank].commands {
            let Action::Collective { group, .. } = command.action else { continue };
            let (node, members) = (&program.graph.nodes[command.id.node], &program.groups[group].ranks);
            if let Some(sizes) = packed_sizes(&program.graph, node, self.rank, members, capacity)? {
                most = most.max(Some(list_bytes(&sizes, capacity)));
                if node.op == Op::Dispatch {
                    self.table(&Table::I32(expert_bounds(&program.graph, node, members)?))?;
                }
            }
        }
        let Some(bytes) = most else { return Ok(None) };
        Ok(Some(Packing { capacity, lists: self.allocate(bytes)?, bounds: 0, fault: self.fault_record()?, command: 0 }))
    }
    /// How a command packs its rows, if it does.
    pub(super) fn packing_of(&mut self, loaded: &Loaded, node: NodeId, members: &[RankId]) -> Result<Option<Packing>, GpuError> {
        let graph = &loaded.program.graph;
        let Some(packing) = loaded.packing else { return Ok(None) };
        if packed_sizes(graph, &graph.nodes[node], self.rank, members, packing.capacity)?.is_none() {
            return Ok(None);
        }
        let bounds = match graph.nodes[node].op {
            Op::Dispatch => self.table(&Table::I32(expert_bounds(graph, &graph.nodes[node], members)?))?,
            _ => 0,
        };
        Ok(Some(Packing { bounds, command: node.0, ..packing }))
    }
    /// Puts the one-shot kernels in place of NCCL's calls that they can carry out, of a sum with its norm both.
    pub(super) fn take_one_shot(&self, communicator: u32, node: NodeId, list: &mut Vec<Part>) -> Result<(), GpuError> {
        let (Some(window), Some(fault)) = (self.shared.window(communicator), self.shared.fault) else { return Ok(()) };
        let limit = self.limits.deadline * DEVICE_LIMIT;
        if let [Part::Calls(element, calls), Part::Kernel(norm, cells)] = list.as_slice()
            && let Some(meeting) = window.one_shot_normed((*element, calls), (norm, cells), fault, node.0, limit)?
        {
            *list = vec![meeting];
        }
        for part in list {
            if let Part::Calls(element, calls) = part
                && let Some(meeting) = window.one_shot(*element, calls, fault, node.0, limit)?
            {
                *part = meeting;
            }
        }
        Ok(())
    }

    /// What a launch needs that captured code may not make: tables, the plan of a product and its workspace.
    pub(super) fn make_ready(&mut self, launch: &Launch) -> Result<(), GpuError> {
        self.gpu.prepare(launch)?;
        for arg in &launch.args {
            if let Arg::Table(table) = arg {
                self.table(table)?;
            }
        }
        if let Some(product) = &launch.product
            && self.gpu.plan_product(product)?
            && self.workspaces.is_none()
        {
            self.workspaces = Some([self.allocate(WORKSPACE_BYTES)?, self.allocate(WORKSPACE_BYTES)?]);
        }
        Ok(())
    }
    /// After a pass: what the device has noted as wrong, blamed on the command that noted it.
    pub(super) fn check_device(&mut self, loaded: &Loaded, phase: InitPhase) -> Result<(), GpuError> {
        let Some(address) = self.shared.fault else { return Ok(()) };
        let mut bytes = [0; FAULT_BYTES];
        self.gpu.read(address, &mut bytes)?;
        let word = |i: usize| u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
        let (what, node, member, count) = (word(0), NodeId(word(1)), word(2), word(3));
        if what == 0 {
            return Ok(());
        }
        let program = &loaded.program;
        let command = program.ranks[self.rank].commands.iter().find(|c| c.id.node == node);
        let peer = match command.map(|c| &c.action) {
            Some(Action::Collective { group, .. }) => program.groups[*group].ranks.get(member as usize).map_or(member, |r| r.0),
            _ => member,
        };
        self.begin(phase, What::Command(Arc::clone(program), node), what == LATE);
        let capacity = loaded.packing.map_or(0, |p| p.capacity);
        Err(match what {
            LATE => GpuError::new("one-shot all-reduce", format!("rank {peer} did not come")).of_peers(),
            OVERFLOW => {
                let room = format!("{count} rows chose experts of rank {peer}, and there is room for {capacity}");
                GpuError::new("dispatch", format!("{room}; raise --ep-capacity to {count}, or leave it out for as many as there can be"))
            }
            other => GpuError::new("the device", format!("noted fault {other}, which nobody knows")),
        })
    }
}
