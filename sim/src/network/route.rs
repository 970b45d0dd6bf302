//! Paths. PCIe is a tree under each socket: up from one GPU, across at the first place that allows it, down to the other.

use crate::machine::{Defect, LinkId, LinkKind, Machine, PathClass, Rate, VertexId, VertexKind};
use crate::network::share::{Demand, max_min};
use crate::time::Duration;
use moetwin_models::ids::Id;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How data is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// The sender writes into the receiver's memory.
    Write,
    /// The receiver reads the sender's memory.
    Read,
    /// The sender writes into the memory of the receiver's socket and the receiver reads from there.
    Bounce,
    /// The same through the memory of the machine's first socket.
    BounceFirst,
}

/// A way from one GPU to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// How near the two GPUs are, as `nvidia-smi topo -m` would say.
    pub class: PathClass,
    /// How the data moves.
    pub access: Access,
    /// Directed links crossed (`2 * link` forward, `2 * link + 1` backward) with the rate one flow reaches there alone.
    pub hops: Vec<(u32, u64)>,
    /// Time from the first byte leaving to its arrival; for a read, the request's way too.
    pub latency: Duration,
    /// Root complexes at which the data goes down again (where posted writes may collapse).
    pub target_root: Option<VertexId>,
    /// Its number among the routes of its network.
    id: u32,
}

impl Route {
    /// The rate one flow reaches alone.
    pub fn rate(&self) -> u64 {
        self.hops.iter().map(|hop| hop.1).min().unwrap_or(u64::MAX)
    }
}

/// Why there is no route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No such GPU.
    #[error("there is no GPU {0}: the machine has {1}")]
    NoGpu(usize, usize),
    /// The two are not connected.
    #[error("GPU {0} and GPU {1} are not connected")]
    Unconnected(usize, usize),
    /// The host memory of the receiver's socket is not described.
    #[error("GPU {0} has no host memory to copy through")]
    NoHostMemory(usize),
}

/// A machine's links, ready for finding paths and sharing rates.
#[derive(Clone, Debug)]
pub struct Network<'m> {
    machine: &'m Machine,
    /// The link towards the socket, by vertex.
    up: Vec<Option<(VertexId, LinkId)>>,
    neighbours: Vec<Vec<(VertexId, LinkId)>>,
    /// Routes and classes that were asked for.
    routes: RefCell<BTreeMap<(usize, usize, Access), Route>>,
    classes: RefCell<BTreeMap<(usize, usize), PathClass>>,
    /// Rates of flows that met, by route and cap.
    rates: RefCell<BTreeMap<Meeting, Vec<u64>>>,
}

/// Flows that share links at an instant: the number of each one's route, and its cap.
type Meeting = Vec<(u32, u64)>;

/// Meetings of flows that are remembered; later ones are solved again.
const MOST_MEETINGS: usize = 1 << 16;

impl<'m> Network<'m> {
    /// Indexes a machine.
    pub fn new(machine: &'m Machine) -> Self {
        let mut neighbours = vec![Vec::new(); machine.vertices.len()];
        for (id, link) in machine.links.iter() {
            neighbours[link.a.index()].push((link.b, id));
            neighbours[link.b.index()].push((link.a, id));
        }
        let (routes, classes, rates) = Default::default();
        let mut network = Self { machine, up: vec![None; machine.vertices.len()], neighbours, routes, classes, rates };
        network.grow_trees();
        network
    }

    /// The machine.
    pub fn machine(&self) -> &'m Machine {
        self.machine
    }

    fn kind(&self, vertex: VertexId) -> VertexKind {
        self.machine.vertices[vertex].part
    }

    /// Breadth first down from the sockets: the first way up that is found is the one used.
    fn grow_trees(&mut self) {
        let mut queue: VecDeque<VertexId> =
            self.machine.vertices.iter().filter(|(_, v)| matches!(v.part, VertexKind::Socket { .. })).map(|(id, _)| id).collect();
        let mut seen: BTreeSet<VertexId> = queue.iter().copied().collect();
        while let Some(vertex) = queue.pop_front() {
            for &(next, link) in &self.neighbours[vertex.index()] {
                let down = matches!(self.machine.links[link].kind, LinkKind::Pcie { .. } | LinkKind::SocketFabric | LinkKind::C2c);
                if down && seen.insert(next) {
                    self.up[next.index()] = Some((vertex, link));
                    queue.push_back(next);
                }
            }
        }
    }

    fn vertex(&self, ordinal: usize) -> Result<VertexId, RouteError> {
        self.machine.gpus.get(ordinal).map(|slot| slot.vertex).ok_or(RouteError::NoGpu(ordinal, self.machine.gpus.len()))
    }

    /// The vertex and all above it, up to its socket, each with the link that leads there.
    fn chain(&self, vertex: VertexId) -> Vec<(VertexId, Option<LinkId>)> {
        let mut out = vec![(vertex, None)];
        let mut at = vertex;
        while let Some((parent, link)) = self.up[at.index()] {
            out.push((parent, Some(link)));
            at = parent;
        }
        out
    }

    /// Where a GPU hangs in the tree, from its socket down: GPUs near each other compare equal for longer.
    ///
    /// # Errors
    /// If the GPU does not exist.
    pub fn place(&self, ordinal: usize) -> Result<Vec<VertexId>, RouteError> {
        let mut place: Vec<VertexId> = self.chain(self.vertex(ordinal)?).into_iter().skip(1).map(|step| step.0).collect();
        place.reverse();
        Ok(place)
    }

    /// The way from `a` to `b` with the given access.
    ///
    /// # Errors
    /// If a GPU does not exist, the two are not connected, or a bounce has no host memory.
    pub fn route(&self, a: usize, b: usize, access: Access) -> Result<Route, RouteError> {
        if let Some(known) = self.routes.borrow().get(&(a, b, access)) {
            return Ok(known.clone());
        }
        let (va, vb) = (self.vertex(a)?, self.vertex(b)?);
        let class = self.class(a, b)?;
        let path = match access {
            Access::Bounce | Access::BounceFirst => self.bounce_path(va, vb, access).ok_or(RouteError::NoHostMemory(b))?,
            Access::Write | Access::Read => match self.nvlink_path(va, vb) {
                Some(path) => path,
                None => self.pcie_path(va, vb).ok_or(RouteError::Unconnected(a, b))?.0,
            },
        };
        let mut routes = self.routes.borrow_mut();
        let route = Route { id: routes.len() as u32, ..self.finish(class, access, va, &path) };
        routes.insert((a, b, access), route.clone());
        Ok(route)
    }

    /// How near two GPUs are.
    ///
    /// # Errors
    /// If a GPU does not exist or the two are not connected.
    pub fn class(&self, a: usize, b: usize) -> Result<PathClass, RouteError> {
        if let Some(known) = self.classes.borrow().get(&(a, b)) {
            return Ok(*known);
        }
        let (va, vb) = (self.vertex(a)?, self.vertex(b)?);
        let class = if self.nvlink_path(va, vb).is_some() { PathClass::Nvl } else { self.pcie_class(a, b)? };
        self.classes.borrow_mut().insert((a, b), class);
        Ok(class)
    }

    /// How near two GPUs are by PCIe, whatever NVLinks there are.
    ///
    /// # Errors
    /// If a GPU does not exist or the two are not connected.
    pub fn pcie_class(&self, a: usize, b: usize) -> Result<PathClass, RouteError> {
        let (va, vb) = (self.vertex(a)?, self.vertex(b)?);
        let (_, turn) = self.pcie_path(va, vb).ok_or(RouteError::Unconnected(a, b))?;
        let same_numa = self.machine.gpus[a].numa == self.machine.gpus[b].numa;
        Ok(match turn {
            Turn::Switch { switches: 1 } => PathClass::Pix,
            Turn::Switch { .. } => PathClass::Pxb,
            Turn::Root => PathClass::Phb,
            // Virtual switches of one chip sit under different root ports: software sees no more.
            Turn::Chip | Turn::Socket if same_numa => PathClass::Node,
            Turn::Chip | Turn::Socket | Turn::Sockets => PathClass::Sys,
        })
    }

    /// Lanes of the NVLinks that lead from one GPU to another, directly or through NVSwitch; none if no such way does.
    pub fn nvlink_lanes(&self, a: usize, b: usize) -> Option<u8> {
        let path = self.nvlink_path(self.vertex(a).ok()?, self.vertex(b).ok()?)?;
        let lanes = |id: LinkId| if let LinkKind::NvLink { lanes } = self.machine.links[id].kind { Some(lanes) } else { None };
        path.into_iter().filter_map(lanes).min()
    }

    fn finish(&self, class: PathClass, access: Access, start: VertexId, path: &[LinkId]) -> Route {
        let mut at = start;
        let mut hops: Vec<(u32, u64)> = Vec::new();
        let mut latency = Duration::ZERO;
        let mut target_root = None;
        let mut in_memory = false;
        for &id in path {
            let link = &self.machine.links[id];
            let (next, rate, direction) = if link.a == at { (link.b, &link.forward, 0) } else { (link.a, &link.backward, 1) };
            // What slows reads is the GPU that answers them; host memory answers at the rate of its own link.
            let reading = access == Access::Read || (in_memory && link.kind == LinkKind::Memory);
            let limit = rate_of(rate, reading);
            let index = u32::try_from(id.index()).expect("link ids are u32") * 2 + direction;
            match hops.iter_mut().find(|hop| hop.0 == index) {
                // Crossed twice: each byte takes two bytes' room.
                Some(hop) => hop.1 = (hop.1 / 2).max(1),
                None => hops.push((index, limit.max(1))),
            }
            latency += link.latency.value;
            // A read's request travels first. Who polls host memory has its next request under way already.
            if access == Access::Read {
                latency += link.latency.value;
            }
            in_memory |= self.kind(next) == VertexKind::HostMemory;
            if matches!((self.kind(at), self.kind(next)), (VertexKind::Socket { .. }, VertexKind::RootComplex)) {
                target_root = Some(next);
            }
            at = next;
        }
        Route { class, access, hops, latency, target_root, id: 0 }
    }

    /// A path of NVLinks only; GPUs other than the two ends do not forward.
    fn nvlink_path(&self, a: VertexId, b: VertexId) -> Option<Vec<LinkId>> {
        let link_ok = |id: LinkId| matches!(self.machine.links[id].kind, LinkKind::NvLink { .. });
        let through = |vertex: VertexId| matches!(self.kind(vertex), VertexKind::NvSwitch);
        self.search(a, b, link_ok, through)
    }

    /// Fewest hops from `a` to `b` over links and through vertices that are allowed; ties go to the lower link.
    fn search(
        &self,
        a: VertexId,
        b: VertexId,
        link_ok: impl Fn(LinkId) -> bool,
        through: impl Fn(VertexId) -> bool,
    ) -> Option<Vec<LinkId>> {
        let mut from: BTreeMap<VertexId, (VertexId, LinkId)> = BTreeMap::new();
        let mut queue = VecDeque::from([a]);
        while let Some(at) = queue.pop_front() {
            if at == b {
                let mut path = Vec::new();
                let mut back = b;
                while back != a {
                    let (previous, link) = from[&back];
                    path.push(link);
                    back = previous;
                }
                path.reverse();
                return Some(path);
            }
            if at != a && !through(at) {
                continue;
            }
            for &(next, link) in &self.neighbours[at.index()] {
                if next != a && link_ok(link) && !from.contains_key(&next) {
                    from.insert(next, (at, link));
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// Up from `a`, across, down to `b`.
    fn pcie_path(&self, a: VertexId, b: VertexId) -> Option<(Vec<LinkId>, Turn)> {
        let (left, right) = (self.chain(a), self.chain(b));
        let links = |chain: &[(VertexId, Option<LinkId>)], to: usize| chain[1..=to].iter().filter_map(|step| step.1).collect::<Vec<_>>();
        let join = |i: usize, across: Vec<LinkId>, j: usize| {
            let mut path = links(&left, i);
            path.extend(across);
            path.extend(links(&right, j).into_iter().rev());
            path
        };
        for (i, &(x, _)) in left.iter().enumerate().skip(1) {
            let turns_here = !matches!(self.kind(x), VertexKind::PcieSwitch { acs: true, .. });
            if turns_here && let Some(j) = right.iter().position(|step| step.0 == x) {
                return Some((join(i, Vec::new(), j), self.turn_at(x, i + j - 1)));
            }
            // Across a switch chip, between its virtual switches.
            for &(y, link) in &self.neighbours[x.index()] {
                if turns_here
                    && self.machine.links[link].kind == LinkKind::SwitchFabric
                    && let Some(j) = right.iter().position(|step| step.0 == y)
                {
                    return Some((join(i, vec![link], j), Turn::Chip));
                }
            }
        }
        let (x, y) = (left.last()?.0, right.last()?.0);
        let across = self.between_sockets(x, y)?;
        Some((join(left.len() - 1, across, right.len() - 1), Turn::Sockets))
    }

    fn turn_at(&self, vertex: VertexId, switches: usize) -> Turn {
        match self.kind(vertex) {
            VertexKind::PcieSwitch { .. } => Turn::Switch { switches },
            VertexKind::RootComplex => Turn::Root,
            _ => Turn::Socket,
        }
    }

    /// To the memory of a socket, the receiver's or the first, and from there to the receiver.
    fn bounce_path(&self, a: VertexId, b: VertexId, access: Access) -> Option<Vec<LinkId>> {
        let (up, down) = (self.chain(a), self.chain(b));
        let (from, to) = (up.last()?.0, down.last()?.0);
        let home = match access {
            Access::BounceFirst => self.machine.vertices.iter().find(|(_, v)| matches!(v.part, VertexKind::Socket { .. }))?.0,
            _ => to,
        };
        let memory = self.neighbours[home.index()].iter().find(|(vertex, _)| self.kind(*vertex) == VertexKind::HostMemory)?;
        let mut path: Vec<LinkId> = up[1..].iter().filter_map(|step| step.1).collect();
        path.extend(self.between_sockets(from, home)?);
        path.extend([memory.1, memory.1]);
        path.extend(self.between_sockets(home, to)?);
        path.extend(down[1..].iter().rev().filter_map(|step| step.1));
        Some(path)
    }

    /// The way from one socket to another; none is needed to itself.
    fn between_sockets(&self, from: VertexId, to: VertexId) -> Option<Vec<LinkId>> {
        if from == to {
            return Some(Vec::new());
        }
        self.search(
            from,
            to,
            |id| matches!(self.machine.links[id].kind, LinkKind::Xgmi | LinkKind::Upi | LinkKind::C2c),
            |vertex| matches!(self.kind(vertex), VertexKind::Socket { .. }),
        )
    }

    /// Max-min fair rates of flows over routes of this network, each capped by what its sender does, with the machine's defects applied.
    pub fn rates(&self, flows: &[(&Route, u64)]) -> Vec<u64> {
        let meeting: Meeting = flows.iter().map(|(route, cap)| (route.id, *cap)).collect();
        if let Some(known) = self.rates.borrow().get(&meeting) {
            return known.clone();
        }
        let rates = self.solve(flows);
        let mut known = self.rates.borrow_mut();
        if known.len() < MOST_MEETINGS {
            known.insert(meeting, rates.clone());
        }
        rates
    }

    fn solve(&self, flows: &[(&Route, u64)]) -> Vec<u64> {
        let mut demands: Vec<Demand> = flows.iter().map(|(route, cap)| Demand { hops: route.hops.clone(), cap: *cap }).collect();
        for (index, defect) in self.machine.defects.iter().enumerate() {
            let Defect::PostedWriteCollapse { switch, bytes_per_s } = defect;
            let Some((_, uplink)) = self.up[switch.index()] else { continue };
            let up = u32::try_from(uplink.index()).expect("link ids are u32") * 2 + u32::from(self.machine.links[uplink].a != *switch);
            let hit = |route: &Route| route.access == Access::Write && route.hops.iter().any(|hop| hop.0 == up);
            let targets: BTreeSet<Option<VertexId>> = flows.iter().filter(|flow| hit(flow.0)).map(|flow| flow.0.target_root).collect();
            if targets.len() < 2 {
                continue;
            }
            // One more link that all such writes cross.
            let extra = u32::try_from(self.machine.links.len() * 2 + index).expect("link ids are u32");
            for (demand, _) in demands.iter_mut().zip(flows).filter(|(_, flow)| hit(flow.0)) {
                demand.hops.push((extra, bytes_per_s.value.max(1)));
            }
        }
        max_min(&demands)
    }
}

fn rate_of(rate: &Rate, reading: bool) -> u64 {
    if reading { rate.read_bytes_per_s.value } else { rate.write_bytes_per_s.value }
}

/// Where a PCIe path turns from up to down.
enum Turn {
    Switch { switches: usize },
    Chip,
    Root,
    Socket,
    Sockets,
}
