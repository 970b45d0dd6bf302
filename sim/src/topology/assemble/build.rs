//! Vertices and links.

use super::facts::{Decided, Nvlinks, count, list};
use crate::machine::{Defect, Figure, GpuModel, Link, LinkKind, Machine, Rate, Slot, Vertex, VertexId, VertexKind};
use crate::time::Duration;
use crate::topology::evidence::{Direction, RateMatrix};
use crate::topology::kin;
use crate::topology::merge::Merged;
use crate::topology::names;
use crate::topology::shape::{Child, Numa, SwitchShape};
use crate::topology::wires::{self, GB};
use crate::topology::{Kind, Options};
use moetwin_models::IdVec;
use std::collections::BTreeMap;

/// A copy between sockets that is this much slower than inside one, in thousandths, was held up between them.
const HELD_UP_PERMILLE: u64 = 950;

/// Builds what was decided.
pub(super) fn build(merged: &Merged, options: &Options, numas: &[Numa], decided: Decided, assumptions: Vec<String>) -> Machine {
    let kin = decided.kin.clone();
    let lent = |figures| kin::lent(figures, &kin.name);
    let mut collectives = lent(&kin.collectives).unwrap_or_else(|| kin.collectives.clone());
    collectives.nccl.cpu = decided.cpu.clone();
    collectives.nccl.p2p_level = decided.p2p_level.clone();
    if !matches!(decided.nvlinks, Nvlinks::Switched(_)) {
        collectives.nvls = None;
    }
    let mut launch = kin::lent(&kin.launch, &kin.name).unwrap_or_else(|| kin.launch.clone());
    // How a log was taken is not the machine's.
    launch.loop_nccl = Figure::assumed(Duration::ZERO, "loops of many launches");
    launch.graph_nccl = Figure::assumed(Duration::ZERO, "not measured apart from the collective");
    let machine = Machine {
        name: name(merged, options),
        summary: summary(merged, &decided, numas),
        models: decided.models.clone(),
        gpus: Vec::new(),
        vertices: IdVec::new(),
        links: IdVec::new(),
        defects: Vec::new(),
        peer_access: decided.peer_access.clone(),
        launch,
        collectives,
        assumptions,
        kernels: None,
    };
    let mut builder = Builder {
        merged,
        options,
        decided: &decided,
        machine,
        gpus: BTreeMap::new(),
        switches: Vec::new(),
        assumed_links: Vec::new(),
        assumed_uplinks: 0,
        quiet_acs: 0,
    };
    builder.hosts(numas);
    builder.nvlinks();
    builder.chips();
    builder.defects();
    builder.say();
    builder.machine
}

fn name(merged: &Merged, options: &Options) -> String {
    let stem = |file: &str| {
        let file = file.rsplit('/').next().unwrap_or(file);
        file.rsplit_once('.').map_or(file, |(stem, _)| stem).to_owned()
    };
    options.name.clone().unwrap_or_else(|| merged.kinds.first().map_or("imported".into(), |(_, place)| stem(&place.file)))
}

fn summary(merged: &Merged, decided: &Decided, numas: &[Numa]) -> String {
    let mut by_model: Vec<(usize, &str)> = decided.models.iter().map(|model| (0, model.name.as_str())).collect();
    for &model in &decided.model_of {
        by_model[model].0 += 1;
    }
    let gpus: Vec<String> = by_model.iter().map(|(count, name)| format!("{count} {name}")).collect();
    fn switches(child: &Child) -> usize {
        match child {
            Child::Gpu(_) => 0,
            Child::Switch(switch) => 1 + switch.children.iter().map(switches).sum::<usize>(),
        }
    }
    let switches: usize = numas.iter().flat_map(|numa| &numa.hosts).flat_map(|host| &host.children).map(switches).sum();
    let nvlink = match &decided.nvlinks {
        Nvlinks::None => "",
        Nvlinks::Pairs(_) => ", NVLink between GPUs",
        Nvlinks::Switched(_) => ", NVLink through NVSwitch",
    };
    let mut kinds: Vec<&str> = Vec::new();
    for (kind, _) in &merged.kinds {
        if !kinds.contains(&kind.name()) {
            kinds.push(kind.name());
        }
    }
    let below =
        if switches == 0 { "on root ports".to_owned() } else { format!("below {}", count(switches, "PCIe switch", "PCIe switches")) };
    let from = if kinds == [Kind::Bus.name()] { "from its PCI devices".to_owned() } else { format!("from {}", kinds.join(", ")) };
    format!("{} {below}, {}{nvlink}; {from}", gpus.join(" and "), count(decided.sockets, "socket", "sockets"))
}

struct Builder<'a> {
    merged: &'a Merged,
    options: &'a Options,
    decided: &'a Decided,
    machine: Machine,
    gpus: BTreeMap<usize, VertexId>,
    /// Switches in order, with what was seen of them.
    switches: Vec<(VertexId, crate::topology::evidence::SwitchSeen)>,
    /// GPUs whose link is the model's.
    assumed_links: Vec<usize>,
    assumed_uplinks: usize,
    /// Switches of which no file says whether access control is on.
    quiet_acs: usize,
}

impl Builder<'_> {
    fn vertex(&mut self, name: String, part: VertexKind) -> VertexId {
        self.machine.vertices.push(Vertex { name, part })
    }

    fn link(&mut self, a: VertexId, b: VertexId, kind: LinkKind, rate: &Figure<u64>, latency: Figure<Duration>) {
        let rate = Rate::even(rate.clone());
        self.machine.links.push(Link { a, b, kind, forward: rate.clone(), backward: rate, latency });
    }

    fn model(&self, gpu: usize) -> &GpuModel {
        &self.decided.models[self.decided.model_of[gpu]]
    }

    /// The generation that host figures follow.
    fn generation(&self) -> u8 {
        let told = (0..self.merged.gpus.len()).map(|gpu| self.gpu_link(gpu).0.0).max();
        told.filter(|generation| *generation > 0).unwrap_or(5)
    }

    /// A GPU's link, and whether a file told it.
    fn gpu_link(&self, gpu: usize) -> ((u8, u8), bool) {
        let model = self.model(gpu);
        match &self.merged.gpus[gpu].link {
            Some(told) => (told.value, true),
            None => (self.options.pcie.unwrap_or((model.pcie_gen, model.pcie_lanes)), self.options.pcie.is_some()),
        }
    }

    /// A figure of the like machine for its links of a kind, lent.
    fn of_kin(&self, test: impl Fn(LinkKind) -> bool) -> Option<Figure<u64>> {
        let kin = &self.decided.kin;
        let figure = kin.links.iter().find(|(_, link)| test(link.kind)).map(|(_, link)| &link.forward.write_bytes_per_s)?;
        Some(Figure::assumed(figure.value, format!("as {}: {}", kin.name, figure.source)))
    }

    fn hosts(&mut self, numas: &[Numa]) {
        let kin_gen = self.decided.kin.models.first().map_or(0, |model| model.pcie_gen);
        let bounce = self
            .of_kin(|kind| kind == LinkKind::Memory)
            .filter(|_| kin_gen == self.generation())
            .unwrap_or(wires::bounce(self.generation()));
        let mut sockets = Vec::new();
        for index in 0..self.decided.sockets {
            let socket = self.vertex(format!("socket{index}"), VertexKind::Socket { numa_nodes: self.decided.numa_per_socket });
            let memory = self.vertex(format!("memory{index}"), VertexKind::HostMemory);
            self.link(socket, memory, LinkKind::Memory, &bounce, Figure::assumed(Duration::from_ns(100), "a DRAM access"));
            sockets.push(socket);
        }
        let between = self.between(numas);
        for pair in sockets.windows(2) {
            self.link(pair[0], pair[1], self.decided.between, &between, wires::socket_latency());
        }
        let fabric = Figure::assumed(200 * GB, "a socket's I/O fabric");
        let mut roots = 0;
        let mut numa_of: BTreeMap<usize, u32> = BTreeMap::new();
        for (index, numa) in numas.iter().enumerate() {
            let socket = sockets[self.decided.socket_of[index].min(sockets.len() - 1)];
            numa_of.extend(numa.gpus().into_iter().map(|gpu| (gpu, self.decided.numa_ids[index])));
            for host in &numa.hosts {
                let root = self.vertex(format!("root{roots}"), VertexKind::RootComplex);
                roots += 1;
                self.link(socket, root, LinkKind::SocketFabric, &fabric, wires::fabric_latency(self.decided.cpu.value));
                for child in &host.children {
                    match child {
                        Child::Gpu(gpu) => self.gpu(root, socket, *gpu, host.children.len() == 1),
                        Child::Switch(switch) => self.switch(root, socket, switch),
                    }
                }
            }
        }
        for gpu in 0..self.merged.gpus.len() {
            if let Some(&vertex) = self.gpus.get(&gpu) {
                let numa = numa_of.get(&gpu).copied().unwrap_or(0);
                self.machine.gpus.push(Slot { model: self.decided.model_of[gpu], vertex, numa });
            }
        }
    }

    fn gpu(&mut self, parent: VertexId, socket: VertexId, gpu: usize, alone: bool) {
        let ordinal = u32::try_from(gpu).unwrap_or(u32::MAX);
        let vertex = self.vertex(format!("gpu{gpu}"), VertexKind::Gpu { ordinal });
        self.gpus.insert(gpu, vertex);
        let (mut link, told) = self.gpu_link(gpu);
        if (link.0 == 0 || link.1 == 0) && !alone {
            // A table says that this model has no PCIe, a file that it shares a bridge: the file was there.
            link = (5, 16);
        }
        let (generation, lanes) = link;
        if generation == 0 || lanes == 0 {
            // A GPU of a superchip hangs on its CPU.
            let rate = Figure::spec(450 * GB, "NVLink-C2C 900 GB/s both ways together");
            self.link(socket, vertex, LinkKind::C2c, &rate, Figure::assumed(Duration::from_ns(200), "C2C"));
            return;
        }
        if !told {
            self.assumed_links.push(gpu);
        }
        let rate = self.measured_port(gpu, generation, lanes).unwrap_or_else(|| wires::pcie(generation, lanes));
        self.link(parent, vertex, LinkKind::Pcie { generation, lanes }, &rate, wires::port_latency(generation));
    }

    fn switch(&mut self, parent: VertexId, socket: VertexId, switch: &SwitchShape) {
        let index = self.switches.len();
        let chip = u32::try_from(index).unwrap_or(u32::MAX);
        let acs = switch.seen.acs.unwrap_or(false);
        self.quiet_acs += usize::from(switch.seen.acs.is_none());
        let vertex = self.vertex(format!("switch{index}"), VertexKind::PcieSwitch { chip, acs });
        self.switches.push((vertex, switch.seen.clone()));
        let (generation, lanes) = switch.link.unwrap_or_else(|| {
            self.assumed_uplinks += usize::from(self.options.pcie.is_none());
            let widest =
                switch.children.iter().flat_map(Child::gpus).map(|gpu| self.gpu_link(gpu).0).max().filter(|link| link.0 > 0 && link.1 > 0);
            self.options.pcie.or(widest).unwrap_or((5, 16))
        });
        let ports: Option<Vec<Figure<u64>>> =
            switch.children.iter().flat_map(Child::gpus).map(|gpu| self.measured_port(gpu, generation, lanes)).collect();
        // An uplink is a port of the same kind: what the GPUs' ports reach it reaches.
        let measured = ports
            .unwrap_or_default()
            .into_iter()
            .max_by_key(|figure| figure.value)
            .filter(|_| switch.children.iter().flat_map(Child::gpus).all(|gpu| self.gpu_link(gpu).0 == (generation, lanes)));
        let rate = measured.map_or_else(
            || wires::pcie(generation, lanes),
            |figure| Figure::assumed(figure.value, format!("as the ports below: {}", figure.source)),
        );
        self.link(parent, vertex, LinkKind::Pcie { generation, lanes }, &rate, wires::switch_latency());
        for child in &switch.children {
            match child {
                Child::Gpu(gpu) => self.gpu(vertex, socket, *gpu, false),
                Child::Switch(switch) => self.switch(vertex, socket, switch),
            }
        }
    }

    /// Matrices of copies by peer access, those of both directions at once first: links are shared that way.
    fn peer_rates(&self) -> impl Iterator<Item = &RateMatrix> {
        let of = |direction: Direction| {
            self.merged.rates.iter().filter(move |matrix| matrix.peer != Some(false) && matrix.direction == direction)
        };
        let on = self.decided.peer_access.value;
        of(Direction::Both).chain(of(Direction::One)).filter(move |_| on)
    }

    /// The best rate of a GPU with any other over PCIe, one direction of a pair.
    fn measured_port(&self, gpu: usize, generation: u8, lanes: u8) -> Option<Figure<u64>> {
        let wire = wires::pcie_wire(generation, lanes);
        self.peer_rates().find_map(|matrix| {
            let over_pcie = |other: usize| self.merged.nvlink_lanes(gpu, other).is_none();
            let own = matrix.rates.iter().filter(|((from, to), _)| (*from == gpu && over_pcie(*to)) || (*to == gpu && over_pcie(*from)));
            let best = own.map(|(_, rate)| *rate).max()?;
            let (rate, how) = match matrix.direction {
                Direction::Both => (best * 500_000, "both ways at once, halved"),
                Direction::One => (best * 1_000_000, "one way"),
            };
            // More than the wire carries was not measured on it.
            (rate > 0 && rate <= wire).then(|| Figure::measured(rate, format!("best copy of GPU {gpu}, {how} ({})", matrix.place)))
        })
    }

    /// The link between sockets: measured where copies across are held up, else as the like machine's.
    fn between(&mut self, numas: &[Numa]) -> Figure<u64> {
        let kind = self.decided.between;
        let default = self.of_kin(|other| other == kind && kind != LinkKind::C2c).unwrap_or_else(|| wires::between_rate(kind));
        let mut socket_of: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, numa) in numas.iter().enumerate() {
            socket_of.extend(numa.gpus().into_iter().map(|gpu| (gpu, self.decided.socket_of[index])));
        }
        let across = |pair: &(usize, usize)| socket_of.get(&pair.0) != socket_of.get(&pair.1);
        let best =
            |matrix: &RateMatrix, inside: bool| matrix.rates.iter().filter(|(pair, _)| across(pair) != inside).map(|(_, rate)| *rate).max();
        let found = self.peer_rates().find_map(|matrix| {
            let (cross, within) = (best(matrix, false)?, best(matrix, true)?);
            let rate = if matrix.direction == Direction::Both { cross * 500_000 } else { cross * 1_000_000 };
            Some((rate, cross * 1000 < within * HELD_UP_PERMILLE, matrix.place.clone()))
        });
        match found {
            Some((rate, true, place)) => {
                self.machine.assumptions.push(format!(
                    "between sockets {:.1} GB/s a direction, as one copy across reaches ({place}): several at once may get more",
                    rate as f64 / 1e9
                ));
                Figure::measured(rate, format!("best copy between sockets ({place})"))
            }
            Some((rate, false, place)) if rate > default.value => {
                Figure::measured(rate, format!("at least what one copy between sockets reaches ({place})"))
            }
            _ => default,
        }
    }

    fn nvlinks(&mut self) {
        let reached = |model: &GpuModel| {
            let kin = &self.decided.kin;
            let like = kin.models.first().filter(|other| other.sm_major == model.sm_major && other.sm_minor == model.sm_minor);
            let lent = like.and_then(|_| {
                kin.links.iter().find_map(|(_, link)| match link.kind {
                    LinkKind::NvLink { lanes } if lanes > 0 => {
                        Some((link.forward.write_bytes_per_s.value / u64::from(lanes), link.forward.write_bytes_per_s.source.clone()))
                    }
                    _ => None,
                })
            });
            match lent {
                Some((lane, source)) => (lane, format!("as {}: {source}", kin.name)),
                None => (wires::nvlink_lane(model) * 88 / 100, "88 % of the lanes' rate, as on Volta and Hopper".to_owned()),
            }
        };
        let rate = |model: &GpuModel, lanes: u8| {
            let (lane, source) = reached(model);
            Figure::assumed((lane * u64::from(lanes)).max(1), source)
        };
        let mut links = Vec::new();
        match &self.decided.nvlinks {
            Nvlinks::None => {}
            Nvlinks::Pairs(pairs) => {
                for &(a, b, lanes) in pairs {
                    let figure = self.measured_pair(a, b).unwrap_or_else(|| rate(self.model(a), lanes));
                    if let (Some(a), Some(b)) = (self.gpus.get(&a), self.gpus.get(&b)) {
                        links.push((*a, *b, lanes, figure, 400));
                    }
                }
            }
            Nvlinks::Switched(groups) => {
                for (index, group) in groups.iter().enumerate() {
                    let name = if groups.len() == 1 { "nvswitch".to_owned() } else { format!("nvswitch{index}") };
                    let switch = self.machine.vertices.push(Vertex { name, part: VertexKind::NvSwitch });
                    for &(gpu, lanes) in group {
                        let partner = group.iter().map(|member| member.0).find(|other| *other != gpu);
                        let figure =
                            partner.and_then(|other| self.measured_pair(gpu, other)).unwrap_or_else(|| rate(self.model(gpu), lanes));
                        if let Some(vertex) = self.gpus.get(&gpu) {
                            links.push((*vertex, switch, lanes, figure, 200));
                        }
                    }
                }
            }
        }
        for (a, b, lanes, figure, latency) in links {
            self.link(
                a,
                b,
                LinkKind::NvLink { lanes },
                &figure,
                Figure::assumed(Duration::from_ns(latency), "an NVLink hop; half of one to a switch"),
            );
        }
    }

    /// A copy over NVLink, one direction.
    fn measured_pair(&self, a: usize, b: usize) -> Option<Figure<u64>> {
        self.peer_rates().find_map(|matrix| {
            let rate = matrix.rates.get(&(a, b)).or_else(|| matrix.rates.get(&(b, a))).copied().filter(|rate| *rate > 0)?;
            let rate = if matrix.direction == Direction::Both { rate * 500_000 } else { rate * 1_000_000 };
            Some(Figure::measured(rate, format!("copy between GPU {a} and GPU {b} ({})", matrix.place)))
        })
    }

    /// Virtual switches of one chip share its number and a way inside it.
    fn chips(&mut self) {
        let n = self.switches.len();
        let same = |a: usize, b: usize| {
            let serials = (&self.switches[a].1.serial, &self.switches[b].1.serial);
            let asked =
                self.options.same_chip.iter().any(|group| [a, b].iter().all(|i| group.contains(&u32::try_from(*i).unwrap_or(u32::MAX))));
            asked || matches!(serials, (Some(x), Some(y)) if x == y)
        };
        let joined: Vec<(usize, usize)> = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).filter(|(a, b)| same(*a, *b)).collect();
        for &(a, b) in &joined {
            let (va, vb) = (self.switches[a].0, self.switches[b].0);
            let chip_of =
                |machine: &Machine, v: VertexId| if let VertexKind::PcieSwitch { chip, .. } = machine.vertices[v].part { chip } else { 0 };
            let shared = chip_of(&self.machine, va).min(chip_of(&self.machine, vb));
            for vertex in [va, vb] {
                if let VertexKind::PcieSwitch { chip, .. } = &mut self.machine.vertices[vertex].part {
                    *chip = shared;
                }
            }
            // One below the other is joined by its uplink already.
            let joined_already = self.machine.links.iter().any(|(_, link)| (link.a, link.b) == (va, vb) || (link.a, link.b) == (vb, va));
            if !joined_already {
                let rate = Figure::assumed(
                    102 * GB,
                    "two copies between virtual switches of a PEX890xx do not interfere, 53.6 GB/s each (rtx6kpro)",
                );
                self.link(va, vb, LinkKind::SwitchFabric, &rate, Figure::assumed(Duration::from_ns(20), "inside a chip"));
            }
        }
        if n > 1 && joined.is_empty() {
            self.machine.assumptions.push(
                "each PCIe switch is taken for a chip of its own: virtual switches of one chip show PHB or NODE to each other although their traffic stays inside it (--same-chip 0+1 joins switch0 and switch1)".to_owned(),
            );
        }
    }

    /// GPUs whose port is on a vertex.
    fn gpus_below(&self, vertex: VertexId) -> usize {
        let is_gpu = |v: VertexId| matches!(self.machine.vertices[v].part, VertexKind::Gpu { .. });
        self.machine.links.iter().filter(|(_, link)| link.a == vertex && is_gpu(link.b)).count()
    }

    /// Defects that a kind of switch is known for.
    fn defects(&mut self) {
        let prone: Vec<(usize, VertexId, String)> = self
            .switches
            .iter()
            .enumerate()
            // One GPU below a switch has no neighbour whose writes could go elsewhere.
            .filter(|(_, (vertex, seen))| names::collapses(&seen.name) && self.gpus_below(*vertex) > 1)
            .map(|(index, (vertex, seen))| (index, *vertex, seen.name.clone()))
            .collect();
        if prone.len() < 2 || self.options.without_known_defects {
            return;
        }
        for (_, vertex, _) in &prone {
            let rate = Figure::assumed(
                2_700_000_000,
                "two writes from one virtual switch of a PEX890xx to two roots: 2.7 GB/s together (rtx6kpro)",
            );
            self.machine.defects.push(Defect::PostedWriteCollapse { switch: *vertex, bytes_per_s: rate });
        }
        let switches: Vec<usize> = prone.iter().map(|(index, _, _)| *index).collect();
        self.machine.assumptions.push(format!("posted writes from switch {} to several root complexes collapse to 2.7 GB/s, as measured on a box with this chip ({}; --no-known-defects for a box without)", list(&switches), prone[0].2));
    }

    /// What was filled in while building.
    fn say(&mut self) {
        let mut said = Vec::new();
        if !self.assumed_links.is_empty() {
            let kinds: Vec<String> = self.assumed_links.iter().map(|gpu| self.gpu_link(*gpu).0).fold(
                Vec::new(),
                |mut kinds: Vec<String>, (generation, lanes)| {
                    let text = format!("PCIe {generation}.0 x{lanes}");
                    if !kinds.contains(&text) {
                        kinds.push(text);
                    }
                    kinds
                },
            );
            said.push(format!(
                "no file has the link of GPU {}: {}, as the model has (--pcie replaces it)",
                list(&self.assumed_links),
                kinds.join(" and ")
            ));
        }
        if self.assumed_uplinks > 0 {
            said.push(format!(
                "no file has the uplinks of {}: as wide and fast as the links of the GPUs below (--pcie replaces it)",
                count(self.assumed_uplinks, "switch", "switches")
            ));
        }
        if self.quiet_acs > 0 {
            said.push(format!(
                "no file has the access control (ACS) of {}: it is taken for off",
                count(self.quiet_acs, "switch", "switches")
            ));
        }
        let tree = self.merged.tree.is_some();
        let direct = self.machine.links.iter().any(|(_, link)| {
            self.machine.vertices[link.a].part == VertexKind::RootComplex
                && matches!(self.machine.vertices[link.b].part, VertexKind::Gpu { .. })
        });
        if direct && !tree {
            said.push(
                "a GPU that shares no switch with another stands on a root port: a switch with one GPU below it would show the same"
                    .to_owned(),
            );
        }
        if self.merged.rates.iter().any(|matrix| matrix.peer == Some(false)) && self.peer_rates().next().is_none() {
            said.push(
                "rates with peer access off are of copies through the host by the driver: no link's rate is taken from them".to_owned(),
            );
        }
        self.machine.assumptions.extend(said);
    }
}
