//! Joining what several files say. What contradicts names both places.

use super::evidence::{Classes, Evidence, GpuSeen, PairSeen, Part, RateMatrix, Sign, Told, TreeNode};
use super::matrix::{ClassMatrix, Misfit};
use super::pci::BusId;
use super::{Kind, MOST_GPUS, Place, TopologyError, shape};
use crate::machine::{CpuFamily, PathClass};
use std::collections::BTreeMap;

/// What all files say together; GPUs by ordinal, which is their order on the bus.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) gpus: Vec<GpuSeen>,
    pub(super) pairs: BTreeMap<(usize, usize), PairSeen>,
    /// The tree of the file that shows most of it, and the kind of that file.
    pub(super) tree: Option<(Kind, Vec<TreeNode>)>,
    pub(super) rates: Vec<RateMatrix>,
    pub(super) guesses: Vec<ClassMatrix>,
    pub(super) nvlink: Option<Place>,
    pub(super) cpu: Option<Told<CpuFamily>>,
    pub(super) peer_access: Option<Told<bool>>,
    pub(super) p2p_level: Option<Told<PathClass>>,
    pub(super) hidden: Vec<Sign>,
    pub(super) remarks: Vec<String>,
    pub(super) hints: Vec<Told<String>>,
    /// The first file, for errors about the whole.
    pub(super) place: Place,
    /// Files and kinds, in order.
    pub(super) kinds: Vec<(Kind, Place)>,
}

/// How much of the tree a kind shows; the list that GPUs are matched to comes from the best.
fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Bus => 0,
        Kind::Lspci => 1,
        Kind::LspciTree => 2,
        Kind::NcclTopology => 3,
        Kind::SmiTopo => 4,
        Kind::P2pTest => 5,
        Kind::NcclGraph => 6,
        Kind::NcclTests => 7,
    }
}

fn contradiction(here: &Place, message: &str, there: &Place) -> TopologyError {
    TopologyError::new(here.clone(), format!("{message} ({there})"))
}

/// Takes a fact that may have been told before, and must then be the same.
fn agree<T: PartialEq + Clone>(
    known: &mut Option<Told<T>>,
    new: Option<Told<T>>,
    what: &str,
    show: impl Fn(&T) -> String,
) -> Result<(), TopologyError> {
    match (&known, new) {
        (Some(old), Some(new)) if old.value != new.value => {
            let message = format!("{what} is {} here, but {} elsewhere", show(&new.value), show(&old.value));
            Err(contradiction(&new.place, &message, &old.place))
        }
        (None, Some(new)) => {
            *known = Some(new);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Joins evidence of one machine.
pub(super) fn merge(all: Vec<Evidence>) -> Result<Merged, TopologyError> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    // Whole lists of GPUs first: a log may have run on some of them.
    order.sort_by_key(|&index| (!all[index].all_gpus, rank(all[index].kind)));
    let Some(&first) = order.first() else {
        return Err(TopologyError::new(Place { file: "-".into(), line: 1, column: 1 }, "no file"));
    };
    let mut merged = Merged {
        gpus: Vec::new(),
        pairs: BTreeMap::new(),
        tree: None,
        rates: Vec::new(),
        guesses: Vec::new(),
        nvlink: None,
        cpu: None,
        peer_access: None,
        p2p_level: None,
        hidden: Vec::new(),
        remarks: Vec::new(),
        hints: Vec::new(),
        place: all[first].place.clone(),
        kinds: all.iter().map(|evidence| (evidence.kind, evidence.place.clone())).collect(),
    };
    let mut all: Vec<Option<Evidence>> = all.into_iter().map(Some).collect();
    for index in order {
        if let Some(evidence) = all[index].take() {
            merged.take(evidence)?;
        }
    }
    if merged.gpus.is_empty() {
        return Err(TopologyError::new(merged.place, "no GPU is in it"));
    }
    Ok(merged)
}

impl Merged {
    fn take(&mut self, mut evidence: Evidence) -> Result<(), TopologyError> {
        let ordinals = self.match_gpus(&evidence)?;
        let n = evidence.gpus.len();
        for (index, gpu) in std::mem::take(&mut evidence.gpus).into_iter().enumerate() {
            self.take_gpu(ordinals[index], gpu, evidence.kind)?;
        }
        for ((a, b), pair) in evidence.pairs {
            self.take_pair(ordinals[a], ordinals[b], pair)?;
        }
        let mut tree = std::mem::take(&mut evidence.tree);
        for node in &mut tree {
            if let Part::Gpu(index) = &mut node.part {
                *index = ordinals[*index];
            }
        }
        if !tree.is_empty() {
            for (a, b, classes) in shape::tree_classes(&tree, evidence.kind) {
                self.take_pair(a, b, PairSeen { classes: Some(classes), nvlink: None })?;
            }
            self.tree.get_or_insert((evidence.kind, tree));
        }
        for matrix in evidence.rates {
            let rates = matrix.rates.into_iter().map(|((from, to), rate)| ((ordinals[from], ordinals[to]), rate)).collect();
            self.rates.push(RateMatrix { rates, ..matrix });
        }
        if let Some(guess) = evidence.guess.filter(|_| n == self.gpus.len()) {
            self.guesses.push(guess.renamed(&ordinals));
        }
        self.nvlink = self.nvlink.take().or(evidence.nvlink);
        agree(&mut self.cpu, evidence.cpu, "the CPU", |cpu| cpu.name().to_owned())?;
        agree(&mut self.peer_access, evidence.peer_access, "peer access", |on| if *on { "on" } else { "off" }.to_owned())?;
        agree(&mut self.p2p_level, evidence.p2p_level, "NCCL_P2P_LEVEL", |level| level.name().to_owned())?;
        self.hidden.extend(evidence.hidden);
        self.remarks.extend(evidence.remarks);
        self.hints.extend(evidence.hints);
        Ok(())
    }

    /// The ordinals of a file's GPUs: by bus address where both have one, else by order.
    fn match_gpus(&self, evidence: &Evidence) -> Result<Vec<usize>, TopologyError> {
        let n = evidence.gpus.len();
        if n > MOST_GPUS {
            return Err(TopologyError::new(evidence.place.clone(), format!("{n} GPUs; at most {MOST_GPUS} are read")));
        }
        let buses: Option<Vec<BusId>> = evidence.gpus.iter().map(|gpu| gpu.bus).collect();
        if self.gpus.is_empty() {
            // Ordinals follow the bus, as in nvidia-smi.
            return Ok(match buses {
                Some(buses) => {
                    let mut sorted: Vec<usize> = (0..n).collect();
                    sorted.sort_by_key(|index| buses[*index]);
                    let mut ordinals = vec![0; n];
                    for (ordinal, index) in sorted.into_iter().enumerate() {
                        ordinals[index] = ordinal;
                    }
                    ordinals
                }
                None => (0..n).collect(),
            });
        }
        let count = self.gpus.len();
        if (evidence.all_gpus && n != count) || n > count {
            let message = format!("{} has {n} GPUs, but {count} are shown elsewhere", evidence.kind);
            return Err(contradiction(&evidence.place, &message, &self.gpus[0].place));
        }
        match buses {
            Some(_) if self.gpus.iter().all(|gpu| gpu.bus.is_some()) => evidence.gpus.iter().map(|gpu| self.find(gpu)).collect(),
            // This file's own order may not be the bus's.
            Some(buses) if n == count => {
                let mut sorted = buses.clone();
                sorted.sort_unstable();
                Ok(buses.iter().map(|bus| sorted.iter().position(|other| other == bus).unwrap_or(0)).collect())
            }
            _ => Ok((0..n).collect()),
        }
    }

    fn find(&self, gpu: &GpuSeen) -> Result<usize, TopologyError> {
        let same = |other: &GpuSeen| gpu.bus.zip(other.bus).is_some_and(|(a, b)| a.same_device(b));
        self.gpus.iter().position(same).ok_or_else(|| {
            let bus = gpu.bus.map_or_else(String::new, |bus| bus.to_string());
            contradiction(&gpu.place, &format!("a GPU at {bus}, where no GPU is shown elsewhere"), &self.gpus[0].place)
        })
    }

    fn take_gpu(&mut self, ordinal: usize, gpu: GpuSeen, kind: Kind) -> Result<(), TopologyError> {
        while self.gpus.len() <= ordinal {
            self.gpus.push(GpuSeen::at(gpu.place.clone()));
        }
        let known = &mut self.gpus[ordinal];
        let name = format!("GPU {ordinal}");
        known.bus = known.bus.or(gpu.bus);
        agree(&mut known.model, gpu.model, &format!("the model of {name}"), Clone::clone)?;
        agree(&mut known.numa, gpu.numa, &format!("the NUMA node of {name}"), ToString::to_string)?;
        agree(&mut known.switch_lanes, gpu.switch_lanes, &format!("the NVLinks of {name} to a switch"), ToString::to_string)?;
        known.cpus = known.cpus.take().or(gpu.cpus);
        match (&known.link, gpu.link) {
            // NCCL writes what a link is capable of, lspci what it runs at.
            (Some(old), Some(new)) if old.value != new.value => {
                let shown = |(generation, lanes): (u8, u8)| format!("PCIe {generation}.0 x{lanes}");
                let text = format!(
                    "the link of {name} is {} at {}, and {} by {kind} at {}: the first is taken",
                    shown(old.value),
                    old.place,
                    shown(new.value),
                    new.place
                );
                self.remarks.push(text);
            }
            (None, Some(new)) => known.link = Some(new),
            _ => {}
        }
        Ok(())
    }

    /// Narrows what is between two GPUs.
    pub(super) fn take_pair(&mut self, a: usize, b: usize, new: PairSeen) -> Result<(), TopologyError> {
        let known = self.pairs.entry((a.min(b), a.max(b))).or_default();
        agree(&mut known.nvlink, new.nvlink, &format!("the number of NVLinks between GPU {a} and GPU {b}"), ToString::to_string)?;
        match (&known.classes, new.classes) {
            (Some(old), Some(new)) => {
                let both = old.value.and(new.value);
                if both.is_empty() {
                    let message = format!("GPU {a} and GPU {b} are {} here, but {} elsewhere", new.value.words(), old.value.words());
                    return Err(contradiction(&new.place, &message, &old.place));
                }
                // Who narrowed it is who says it.
                let place = if both == old.value { old.place.clone() } else { new.place };
                known.classes = Some(Told { value: both, place });
            }
            (None, Some(new)) => known.classes = Some(new),
            _ => {}
        }
        Ok(())
    }

    /// Lanes of NVLink between two GPUs.
    pub(super) fn nvlink_lanes(&self, a: usize, b: usize) -> Option<u8> {
        self.pairs.get(&(a.min(b), a.max(b))).and_then(|pair| pair.nvlink.as_ref()).map(|told| told.value)
    }

    /// One class for every pair, and the pairs for which it was chosen rather than told.
    pub(super) fn settle(&self) -> Result<(ClassMatrix, Vec<(usize, usize)>), TopologyError> {
        let n = self.gpus.len();
        let mut matrix = ClassMatrix::open(n);
        for (&(a, b), pair) in &self.pairs {
            matrix.set(a, b, pair.classes.as_ref().map_or(Classes::any(), |told| told.value));
        }
        let place =
            |a: usize, b: usize| self.pairs.get(&(a.min(b), a.max(b))).and_then(|pair| pair.classes.as_ref()).map(|told| &told.place);
        let chosen = matrix.settle(|a, b, open| self.choose(a, b, open));
        match chosen {
            Ok(chosen) => Ok((matrix, chosen)),
            Err(Misfit(a, b, k)) => {
                let show = |x: usize, y: usize| {
                    let classes = self.pairs.get(&(x.min(y), x.max(y))).and_then(|pair| pair.classes.as_ref());
                    format!(
                        "GPU {x} and GPU {y} {}",
                        classes.map_or("unknown".to_owned(), |told| format!("{} ({})", told.value.words(), told.place))
                    )
                };
                let at = place(a, b).or(place(a, k)).unwrap_or(&self.place).clone();
                Err(TopologyError::new(at, format!("no tree has these: {}, {}, {}", show(a, b), show(a, k), show(k, b))))
            }
        }
    }

    /// What to take for a pair that files leave open.
    fn choose(&self, a: usize, b: usize, open: Classes) -> PathClass {
        let has = |class: PathClass| open.iter().any(|other| other == class);
        let guessed = self.guesses.iter().find_map(|guess| guess.get(a, b).single().filter(|class| has(*class)));
        let numa = |gpu: usize| self.gpus[gpu].numa.as_ref().map(|told| told.value);
        let by_numa = numa(a).zip(numa(b)).map(|(x, y)| if x == y { PathClass::Node } else { PathClass::Sys });
        // A board of NVLink GPUs without a word on its host: two sockets, half of the GPUs each.
        let n = self.gpus.len();
        let halves = (n >= 4 && (self.nvlink.is_some() || self.nvlink_lanes(a, b).is_some())).then_some(if (a < n / 2) == (b < n / 2) {
            PathClass::Node
        } else {
            PathClass::Sys
        });
        let wanted = guessed.or(by_numa).or(halves).unwrap_or(PathClass::Node);
        if has(wanted) { wanted } else { open.nearest().filter(|near| *near > wanted).or(open.farthest()).unwrap_or(PathClass::Sys) }
    }
}
