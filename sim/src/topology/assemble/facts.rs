//! What is decided before anything is built: models, NVLink, peer access, sockets, the CPU.

use crate::machine::{CpuFamily, Figure, GpuModel, LinkKind, Machine, PathClass, gpu_models, gpu_named};
use crate::topology::evidence::Direction;
use crate::topology::kin::{self, Fabric, Traits};
use crate::topology::matrix::ClassMatrix;
use crate::topology::merge::Merged;
use crate::topology::names;
use crate::topology::shape::{Child, Numa};
use crate::topology::wires;
use crate::topology::{Options, TopologyError};
use std::collections::BTreeMap;

/// NVLinks of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Nvlinks {
    None,
    /// GPUs, the lower first, and lanes.
    Pairs(Vec<(usize, usize, u8)>),
    /// Groups of GPUs with their lanes, each on one NVSwitch fabric.
    Switched(Vec<Vec<(usize, u8)>>),
}

/// Everything that building needs.
pub(super) struct Decided {
    /// Models present, and each GPU's.
    pub(super) models: Vec<GpuModel>,
    pub(super) model_of: Vec<usize>,
    pub(super) nvlinks: Nvlinks,
    pub(super) peer_access: Figure<bool>,
    pub(super) p2p_level: Figure<PathClass>,
    pub(super) cpu: Figure<CpuFamily>,
    pub(super) between: LinkKind,
    /// Number of sockets, and the socket of each NUMA node of the shape.
    pub(super) sockets: usize,
    pub(super) socket_of: Vec<usize>,
    pub(super) numa_per_socket: u32,
    /// The number of each NUMA node of the shape.
    pub(super) numa_ids: Vec<u32>,
    pub(super) kin: Machine,
}

/// Collects sentences while deciding.
pub(super) struct Facts<'a> {
    merged: &'a Merged,
    options: &'a Options,
    assumptions: Vec<String>,
}

/// `0, 1, 2` or `0 to 7`.
pub(super) fn list(numbers: &[usize]) -> String {
    match numbers {
        [first, .., last] if numbers.len() > 2 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1) => format!("{first} to {last}"),
        _ => numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// `1 socket`, `2 sockets`.
pub(super) fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

impl<'a> Facts<'a> {
    pub(super) fn new(merged: &'a Merged, options: &'a Options) -> Self {
        Self { merged, options, assumptions: merged.remarks.clone() }
    }
    pub(super) fn into_assumptions(self) -> Vec<String> {
        self.assumptions
    }
    fn assume(&mut self, text: impl Into<String>) {
        self.assumptions.push(text.into());
    }

    pub(super) fn hidden(&mut self, signs: &[String]) {
        for sign in signs {
            self.assume(format!("the topology may be hidden by a virtual machine: {sign}; what it shows is taken at its word"));
        }
    }

    /// Says which pairs' classes were chosen, by class.
    pub(super) fn chosen_classes(&mut self, matrix: &ClassMatrix, chosen: &[(usize, usize)]) {
        let mut by_class: BTreeMap<PathClass, Vec<String>> = BTreeMap::new();
        for &(a, b) in chosen {
            if let Some(class) = matrix.get(a, b).single() {
                by_class.entry(class).or_default().push(format!("{a}-{b}"));
            }
        }
        for (class, mut pairs) in by_class {
            let more = pairs.len().saturating_sub(6);
            pairs.truncate(6);
            let rest = if more > 0 { format!(" and {more} more pairs that follow") } else { String::new() };
            self.assume(format!("no file says how near by PCIe GPUs {}{rest} are: {class} is assumed", pairs.join(", ")));
        }
    }

    pub(super) fn decide(&mut self, numas: &[Numa]) -> Result<Decided, TopologyError> {
        let told_lanes = self.told_nvlinks();
        let (models, model_of) = self.models(&told_lanes)?;
        self.nvlinks_exist(&models, &model_of)?;
        let nvlinks = self.nvlinks(told_lanes, &models[model_of[0]]);
        let peer_access = self.peer_access(&models[model_of[0]], &nvlinks);
        let switched =
            numas.iter().flat_map(|numa| &numa.hosts).flat_map(|host| &host.children).any(|child| matches!(child, Child::Switch(_)));
        let (numa_ids, sockets, socket_of, numa_per_socket) = self.sockets(numas);
        let fabric = match &nvlinks {
            Nvlinks::None => Fabric::None,
            Nvlinks::Pairs(_) => Fabric::Pairs,
            Nvlinks::Switched(_) => Fabric::Switch,
        };
        let told_cpu = self.options.cpu.or(self.merged.cpu.as_ref().map(|told| told.value));
        let traits = Traits { model: &models[model_of[0]], fabric, peer_access: peer_access.value, switched, sockets, cpu: told_cpu };
        let kin = kin::nearest(&traits)
            .ok_or_else(|| TopologyError::new(self.merged.place.clone(), "there is no built-in machine to take protocol figures from"))?;
        self.assume(format!("launch costs and protocol figures are those of {}, the most like machine that is known: `moetwin calibrate` fits them to a log", kin.name));
        let cpu = self.cpu(&kin);
        let p2p_level = match (self.options.p2p_level, &self.merged.p2p_level) {
            (Some(level), _) => Figure::assumed(level, "asked for"),
            (None, Some(told)) => Figure::measured(told.value, format!("NCCL_P2P_LEVEL in a log ({})", told.place)),
            (None, None) if peer_access.value && models[model_of[0]].name.starts_with("GeForce") && nvlinks == Nvlinks::None => {
                self.assume(
                    "NCCL_P2P_LEVEL is SYS: a driver patched for peer access is of no use to NCCL without (--p2p-level replaces it)",
                );
                Figure::assumed(PathClass::Sys, "who patches the driver sets NCCL_P2P_LEVEL=SYS")
            }
            (None, None) => Figure::spec(PathClass::Pxb, "NCCL graph/paths.cc: peer access up to PXB unless NCCL_P2P_LEVEL says otherwise"),
        };
        let between = wires::between(cpu.value);
        Ok(Decided { models, model_of, nvlinks, peer_access, p2p_level, cpu, between, sockets, socket_of, numa_per_socket, numa_ids, kin })
    }

    fn cpu(&mut self, kin: &Machine) -> Figure<CpuFamily> {
        match (self.options.cpu, &self.merged.cpu) {
            (Some(cpu), _) => Figure::assumed(cpu, "asked for"),
            (None, Some(told)) => Figure::measured(told.value, format!("read at {}", told.place)),
            (None, None) => {
                let cpu = kin.collectives.nccl.cpu.value;
                self.assume(format!("no file names the CPU: {} is assumed, as in {} (--cpu replaces it)", cpu.name(), kin.name));
                Figure::assumed(cpu, format!("as {}", kin.name))
            }
        }
    }

    /// NVLinks that files state in lanes.
    fn told_nvlinks(&self) -> Nvlinks {
        let n = self.merged.gpus.len();
        if let Some(lanes) = self.options.nvlink.filter(|_| n > 1) {
            return Nvlinks::Switched(vec![(0..n).map(|gpu| (gpu, lanes)).collect()]);
        }
        let switched: Vec<(usize, u8)> = (0..n).filter_map(|gpu| Some((gpu, self.merged.gpus[gpu].switch_lanes.as_ref()?.value))).collect();
        if switched.len() > 1 {
            return Nvlinks::Switched(vec![switched]);
        }
        let pairs: Vec<(usize, usize, u8)> =
            self.merged.pairs.iter().filter_map(|(&(a, b), pair)| Some((a, b, pair.nvlink.as_ref()?.value))).collect();
        if pairs.is_empty() { Nvlinks::None } else { Nvlinks::Pairs(pairs) }
    }

    /// Refuses NVLinks of a GPU whose model has none: the files are of different machines.
    fn nvlinks_exist(&self, models: &[GpuModel], model_of: &[usize]) -> Result<(), TopologyError> {
        let pairs = self.merged.pairs.iter().filter_map(|(&(a, b), pair)| Some((a, b, &pair.nvlink.as_ref()?.place)));
        let pairs = pairs.flat_map(|(a, b, place)| [(a, place), (b, place)]);
        let switched = self.merged.gpus.iter().enumerate().filter_map(|(gpu, of)| Some((gpu, &of.switch_lanes.as_ref()?.place)));
        for (gpu, place) in pairs.chain(switched) {
            let model = &models[model_of[gpu]];
            if model.nvlink_bytes_per_s > 0 {
                continue;
            }
            let source = match (&self.merged.gpus[gpu].model, self.options.gpus.is_empty()) {
                (_, false) => "as --gpu has it".to_owned(),
                (Some(told), true) => format!("as {} has it", told.place),
                // A model that was guessed contradicts nobody.
                (None, true) => continue,
            };
            let message = format!("NVLink at GPU {gpu}, but {}, {source}, has none: not one machine", model.name);
            return Err(TopologyError::new(place.clone(), message));
        }
        Ok(())
    }

    /// Pairs of equal lanes between all GPUs, more than a GPU has, lead through NVSwitch; what is not stated in lanes is the model's.
    fn nvlinks(&mut self, told: Nvlinks, model: &GpuModel) -> Nvlinks {
        let n = self.merged.gpus.len();
        match told {
            Nvlinks::Pairs(pairs) => {
                let most = match wires::nvlink_lanes(model) {
                    0 => 18,
                    lanes => lanes,
                };
                switched_groups(&pairs, n, most).map_or(Nvlinks::Pairs(pairs), Nvlinks::Switched)
            }
            Nvlinks::None if self.merged.nvlink.is_some() && n > 1 => {
                let lanes = match wires::nvlink_lanes(model) {
                    0 => 18,
                    lanes => lanes,
                };
                // Boards of up to four before Blackwell have no NVSwitch: each pair shares the lanes.
                let share = usize::from(lanes) / (n - 1);
                if n <= 4 && model.sm_major < 10 && share > 0 && share * (n - 1) == usize::from(lanes) {
                    let share = u8::try_from(share).unwrap_or(1);
                    let place = self.merged.nvlink.as_ref().map_or(String::new(), |place| format!(" ({place})"));
                    self.assume(format!("NVLink is there{place}, but its lanes are not told: {share} between each pair of {n} GPUs, as {} has {lanes} (--nvlink for a switch)", model.name));
                    return Nvlinks::Pairs((0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b, share))).collect());
                }
                let place = self.merged.nvlink.as_ref().map_or(String::new(), |place| format!(" ({place})"));
                self.assume(format!(
                    "NVLink is there{place}, but its lanes are not told: {lanes} to an NVSwitch fabric, as {} has (--nvlink replaces it)",
                    model.name
                ));
                Nvlinks::Switched(vec![(0..n).map(|gpu| (gpu, lanes)).collect()])
            }
            other => other,
        }
    }

    /// The model of every GPU: asked for, told, or the likeliest.
    fn models(&mut self, nvlinks: &Nvlinks) -> Result<(Vec<GpuModel>, Vec<usize>), TopologyError> {
        let n = self.merged.gpus.len();
        let (mut models, mut model_of): (Vec<GpuModel>, Vec<usize>) = (Vec::new(), Vec::new());
        if !matches!(self.options.gpus.len(), 0 | 1) && self.options.gpus.len() != n {
            let message = format!("{} models are given for {n} GPUs: one for all, or one for each", self.options.gpus.len());
            return Err(TopologyError::new(self.merged.place.clone(), message));
        }
        let guess = self.likeliest(nvlinks);
        let mut guessed = Vec::new();
        for gpu in 0..n {
            let asked = self.options.gpus.get(gpu).or(self.options.gpus.first()).cloned();
            let told = self.merged.gpus[gpu].model.clone();
            let model = match (asked, told) {
                (Some(asked), Some(told)) if gpu_named(&told.value).is_some_and(|model| model.name != asked.name) => {
                    self.assume(format!("GPU {gpu} is {} as asked for, although {} says {}", asked.name, told.place, told.value));
                    asked
                }
                (Some(asked), _) => asked,
                (None, Some(told)) => match gpu_named(&told.value) {
                    Some(model) => model.clone(),
                    None => {
                        let text = format!(
                            "GPU {gpu} is `{}` ({}), which the table of models lacks: figures of {} are assumed (--gpu replaces it)",
                            told.value, told.place, guess.0.name
                        );
                        self.assume(text);
                        guess.0.clone()
                    }
                },
                (None, None) => {
                    guessed.push(gpu);
                    guess.0.clone()
                }
            };
            let index = models.iter().position(|known: &GpuModel| known.name == model.name).unwrap_or_else(|| {
                models.push(model);
                models.len() - 1
            });
            model_of.push(index);
        }
        if !guessed.is_empty() {
            self.assume(format!(
                "no file names the model of GPU {}: {} is assumed, {} (--gpu replaces it)",
                list(&guessed),
                guess.0.name,
                guess.1
            ));
        }
        Ok((models, model_of))
    }

    /// The likeliest model where nothing names one, and why.
    fn likeliest(&self, nvlinks: &Nvlinks) -> (GpuModel, String) {
        // Comments and names of files may be of another machine: a model without NVLink does not show any.
        let possible = |model: &GpuModel| *nvlinks == Nvlinks::None || model.nvlink_bytes_per_s > 0;
        let named = |name: &str| gpu_named(name).filter(|model| possible(model)).cloned();
        for hint in &self.merged.hints {
            if let Some(model) = names::gpu_by_words(&hint.value).and_then(named) {
                return (model, format!("which a comment names ({})", hint.place));
            }
        }
        for (_, place) in &self.merged.kinds {
            let file = place.file.rsplit('/').next().unwrap_or(&place.file);
            if let Some(model) = names::gpu_by_words(file).and_then(named) {
                return (model, format!("which the name of {file} has"));
            }
        }
        if let Some((model, why)) = by_nvlink(nvlinks, self.merged.nvlink.is_some()).and_then(|(name, why)| Some((named(name)?, why))) {
            return (model, why);
        }
        let generation = self.merged.gpus.iter().find_map(|gpu| gpu.link.as_ref().map(|told| told.value.0));
        let by_link = generation
            .and_then(|generation| gpu_models().iter().find(|model| model.pcie_gen == generation && model.nvlink_bytes_per_s == 0));
        match (by_link, gpu_models().first()) {
            (Some(model), _) => (model.clone(), format!("the first in the table of models with PCIe {}.0", model.pcie_gen)),
            (None, Some(first)) => (first.clone(), "the first in the table of models".to_owned()),
            (None, None) => unreachable!("the table of models is not empty, which its test checks"),
        }
    }

    fn peer_access(&mut self, model: &GpuModel, nvlinks: &Nvlinks) -> Figure<bool> {
        if let Some(on) = self.options.peer_access {
            return Figure::assumed(on, "asked for");
        }
        if let Some(told) = &self.merged.peer_access {
            return Figure::measured(told.value, format!("read at {}", told.place));
        }
        let wire = wires::pcie_wire(if model.pcie_gen == 0 { 5 } else { model.pcie_gen }, model.pcie_lanes.max(1));
        for matrix in self.merged.rates.iter().filter(|matrix| matrix.peer != Some(false)) {
            let best = matrix.rates.values().max().copied().unwrap_or(0) * 1_000_000;
            let one_way = if matrix.direction == Direction::Both { best / 2 } else { best };
            // Copies through the host share each GPU's link less well: a third of the wire both ways.
            if one_way * 100 >= wire * 55 {
                return Figure::measured(true, format!("copies at {:.1} GB/s a direction ({})", one_way as f64 / 1e9, matrix.place));
            }
        }
        let geforce = model.name.starts_with("GeForce");
        if geforce && *nvlinks == Nvlinks::None {
            self.assume("peer access is off, as stock GeForce drivers have it over PCIe (--p2p on for a patched driver)");
            return Figure::spec(false, "GeForce drivers offer no peer access over PCIe");
        }
        self.assume(format!("peer access is on, as drivers allow for {}: no file shows it at work (--p2p off)", model.name));
        Figure::assumed(true, "drivers allow it for this model")
    }

    /// Numbers of NUMA nodes, and the sockets that they are parts of.
    fn sockets(&mut self, numas: &[Numa]) -> (Vec<u32>, usize, Vec<usize>, u32) {
        let told: Vec<Option<u32>> = numas
            .iter()
            .map(|numa| numa.gpus().into_iter().find_map(|gpu| self.merged.gpus[gpu].numa.as_ref().map(|told| told.value)))
            .collect();
        let distinct = told.iter().enumerate().all(|(i, id)| id.is_some() && !told[..i].contains(id));
        let ids: Vec<u32> = match distinct {
            true => told.iter().map(|id| id.unwrap_or(0)).collect(),
            false => (0..numas.len()).map(|index| u32::try_from(index).unwrap_or(u32::MAX)).collect(),
        };
        let most = ids.iter().max().map_or(1, |last| *last as usize + 1).min(64).max(numas.len());
        // Nodes without GPUs are not shown: their number is a power of two unless all are seen.
        let nodes = if most > numas.len() { most.next_power_of_two() } else { most };
        let intel = matches!(self.options.cpu.or(self.merged.cpu.as_ref().map(|told| told.value)), Some(cpu) if !matches!(cpu, CpuFamily::Amd | CpuFamily::Arm));
        let sockets = match (self.options.sockets, nodes) {
            (Some(sockets), _) => (sockets as usize).clamp(1, nodes),
            (None, 1 | 2) => nodes,
            // Sub-NUMA clustering: AMD splits a socket into four, Intel into two.
            (None, 3 | 4) if !intel => 1,
            (None, _) => 2,
        };
        let per_socket = nodes.div_ceil(sockets);
        if nodes > 2 && self.options.sockets.is_none() {
            self.assume(format!(
                "{nodes} NUMA nodes are taken for {} of {per_socket} each (--sockets replaces it)",
                count(sockets, "socket", "sockets")
            ));
        } else if self.options.sockets.is_none() && !distinct && self.merged.tree.is_none() && self.merged.gpus.len() > 1 {
            self.assume(format!(
                "no file numbers NUMA nodes: {} (--sockets replaces it)",
                count(sockets, "socket is assumed", "sockets are assumed")
            ));
        }
        let rank = |id: u32| ids.iter().filter(|other| **other < id).count();
        let place = |id: u32| if nodes > numas.len() { id as usize } else { rank(id) };
        let socket_of = ids.iter().map(|id| (place(*id) / per_socket).min(sockets - 1)).collect();
        (ids, sockets, socket_of, u32::try_from(per_socket).unwrap_or(1))
    }
}

/// Groups of GPUs whose NVLinks lead through NVSwitch: all joined by as many lanes as would not fit between pairs.
fn switched_groups(pairs: &[(usize, usize, u8)], n: usize, most: u8) -> Option<Vec<Vec<(usize, u8)>>> {
    let mut group: Vec<usize> = (0..n).collect();
    for &(a, b, _) in pairs {
        let (keep, join) = (group[a].min(group[b]), group[a].max(group[b]));
        group.iter_mut().filter(|g| **g == join).for_each(|g| *g = keep);
    }
    let mut out = Vec::new();
    for name in 0..n {
        let members: Vec<usize> = (0..n).filter(|gpu| group[*gpu] == name).collect();
        if members.len() < 2 {
            continue;
        }
        let inside: Vec<u8> = pairs.iter().filter(|pair| group[pair.0] == name).map(|pair| pair.2).collect();
        let all = inside.len() == members.len() * (members.len() - 1) / 2 && inside.windows(2).all(|two| two[0] == two[1]);
        if !all || members.len() == 2 || (members.len() - 1) * usize::from(inside[0]) <= usize::from(most) {
            return None;
        }
        out.push(members.into_iter().map(|gpu| (gpu, inside[0])).collect());
    }
    (!out.is_empty()).then_some(out)
}

/// The model that has so many NVLinks, where nothing names one.
fn by_nvlink(nvlinks: &Nvlinks, some: bool) -> Option<(&'static str, String)> {
    let (lanes, switched) = match nvlinks {
        Nvlinks::Switched(groups) => (groups.first()?.first()?.1, true),
        Nvlinks::Pairs(pairs) => {
            let last = pairs.iter().map(|pair| pair.1).max()? + 1;
            let total = |gpu: usize| pairs.iter().filter(|pair| pair.0 == gpu || pair.1 == gpu).map(|pair| u32::from(pair.2)).sum::<u32>();
            let all = pairs.len() == last * (last - 1) / 2 && pairs.windows(2).all(|two| two[0].2 == two[1].2);
            // More lanes than any GPU has between pairs: each is one to a switch.
            let switched = all && total(0) > 18;
            (if switched { pairs[0].2 } else { u8::try_from(total(pairs[0].0)).ok()? }, switched)
        }
        Nvlinks::None if some => return Some(("H100 SXM 80GB", "the usual model with NVLink and no word of its lanes".to_owned())),
        Nvlinks::None => return None,
    };
    let name = match (lanes, switched) {
        (18, _) => "H100 SXM 80GB",
        (12, _) => "A100 SXM 80GB",
        (8, true) => "H800 SXM",
        (6, _) => "V100 SXM2 32GB",
        (4, false) => "RTX A6000",
        _ => return None,
    };
    Some((name, format!("the usual model with {lanes} NVLink lanes")))
}
