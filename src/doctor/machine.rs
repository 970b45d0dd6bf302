//! From what was examined to a machine file: what was measured here is marked so, the rest is a like machine's, marked as assumed.

use moetwin::cuda::doctor::topology::PciPlace;
use moetwin::cuda::doctor::{Check, Examination, Finding, GpuDetail, Measured, Outcome};
use moetwin::cuda::probe::{Gpu, Piece};
use moetwin::models::IdVec;
use moetwin::sim::machine::{
    self, CollectiveFigures, Figure, FlopRate, Format, GpuModel, LaunchCosts, Link, LinkId, LinkKind, Machine, Rate, Slot, Vertex,
    VertexId, VertexKind,
};
use moetwin::sim::time::Duration;

/// When and by what a figure was measured; the source of every measured figure.
#[derive(Clone, Debug)]
pub(crate) struct Stamp(String);

impl Stamp {
    /// The day since 1970, and the versions that the examination found.
    pub(crate) fn new(seconds_since_1970: u64, examination: &Examination) -> Self {
        let probe = &examination.description.probe;
        let version = |piece: &Piece| if let Piece::Found(f) = piece { f.version.clone() } else { "none".to_owned() };
        let (driver, nccl) = (version(&probe.driver), version(&probe.nccl));
        let module = probe.kernel_module.as_deref().map_or_else(String::new, |v| format!(" {v}"));
        let date = date(seconds_since_1970 / 86_400);
        Self(format!("moetwin doctor {}, {date}, driver{module} ({driver}), NCCL {nccl}", env!("CARGO_PKG_VERSION")))
    }
    fn figure<T>(&self, value: T) -> Figure<T> {
        Figure::measured(value, self.0.clone())
    }
}

/// The civil date of a day since 1970 (Hinnant, `civil_from_days`).
pub(crate) fn date(days: u64) -> String {
    let z = days as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    format!("{:04}-{month:02}-{day:02}", year_of_era + era * 400 + i64::from(month <= 2))
}

/// What was measured of a check's part, where its values were right.
fn measured(findings: &[Finding], check: Check, item: &[usize]) -> Option<Measured> {
    findings.iter().find(|f| f.check == check && f.item.0 == item && f.outcome == Outcome::Right).map(|f| f.measured)
}

/// The largest of some rates, as whole bytes per second.
fn best(rates: impl Iterator<Item = Option<f64>>) -> Option<u64> {
    rates.flatten().filter(|r| r.is_finite() && *r >= 1.0).max_by(f64::total_cmp).map(|r| r as u64)
}

fn picoseconds(seconds: f64) -> Duration {
    Duration::from_seconds(seconds)
}

/// The machine that was examined. Nothing where there is no GPU.
pub(crate) fn machine(examination: &Examination, stamp: &Stamp) -> Option<Machine> {
    let gpus = &examination.description.probe.gpus;
    let first = gpus.first()?;
    let known = known_model(first);
    let nvlink = examination.description.gpus.iter().any(|g| g.native_atomics.iter().filter(|n| **n).count() > 1);
    let like = like(known, nvlink)?;
    let mut models: Vec<GpuModel> = Vec::new();
    let mut model_of = Vec::new();
    for (gpu, detail) in gpus.iter().zip(&examination.description.gpus) {
        let model = model(gpu, detail, &examination.findings, stamp);
        let index = models.iter().position(|m| m.name == model.name).unwrap_or_else(|| {
            models.push(model);
            models.len() - 1
        });
        model_of.push(index);
    }
    let peer_access = peer_access(examination, stamp);
    let mut build =
        Build { examination, stamp, like: &like, models: &models, vertices: IdVec::new(), links: IdVec::new(), gpus: Vec::new() };
    build.host();
    build.gpus(&model_of);
    build.nvlinks();
    let Build { vertices, links, gpus: slots, .. } = build;
    let machine = Machine {
        name: format!("{}x-{}", gpus.len(), models[0].name.to_lowercase().replace([' ', '(', ')'], "-")),
        summary: format!("{} {}, as found by moetwin doctor", gpus.len(), first.name),
        gpus: slots,
        vertices,
        links,
        defects: Vec::new(),
        peer_access,
        launch: launch(examination, &like, stamp),
        collectives: assumed(&like.collectives, &like.name)?,
        assumptions: vec![format!("what was not measured here is that of {}", like.name)],
        kernels: None,
        models,
    };
    Some(machine)
}

/// Words of a name: letters and digits together, `sxm4` as `sxm`.
fn words(name: &str) -> Vec<String> {
    let lower = name.to_lowercase();
    let all = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
    all.map(|w| if w.starts_with("sxm") { "sxm".to_owned() } else { w.to_owned() }).collect()
}

/// The model of the shipped table that a GPU is: of its compute capability and size, with most words of its name, and nearest in memory.
fn known_model(gpu: &Gpu) -> Option<&'static GpuModel> {
    let named = words(&gpu.name);
    let shared = |m: &GpuModel| words(&m.name).iter().filter(|w| named.contains(w)).count();
    let numbered = |m: &GpuModel| words(&m.name).iter().any(|w| w.chars().any(|c| c.is_ascii_digit()) && named.contains(w));
    let fits = |m: &&GpuModel| {
        let capability = format!("{}.{}", m.sm_major, m.sm_minor);
        capability == gpu.compute_capability && m.sm_count == gpu.multiprocessors && numbered(m)
    };
    let distance = |m: &GpuModel| m.memory_bytes.value.abs_diff(gpu.memory_bytes);
    machine::gpu_models().iter().filter(fits).max_by_key(|m| (shared(m), std::cmp::Reverse(distance(m))))
}

/// A built-in machine of the same model, or else one whose GPUs are joined in the same way.
fn like(model: Option<&GpuModel>, nvlink: bool) -> Option<Machine> {
    let same = |m: &Machine| model.is_some_and(|model| m.models.iter().any(|other| other.name == model.name));
    let joined = |m: &Machine| m.links.iter().any(|(_, l)| matches!(l.kind, LinkKind::NvLink { .. })) == nvlink;
    let all = machine::list();
    all.iter().find(|m| same(m) && joined(m)).or_else(|| all.iter().find(|m| joined(m))).cloned()
}

/// Figures of another machine, for this one assumed.
fn assumed(figures: &CollectiveFigures, name: &str) -> Option<CollectiveFigures> {
    fn walk(value: &mut serde_json::Value, name: &str) {
        match value {
            serde_json::Value::Object(fields) => {
                if let (true, Some(source)) = (fields.contains_key("origin"), fields.get("source").and_then(|s| s.as_str())) {
                    let source = format!("as of {name}: {source}");
                    fields.insert("source".into(), source.into());
                    fields.insert("origin".into(), "assumed".into());
                }
                fields.values_mut().for_each(|v| walk(v, name));
            }
            serde_json::Value::Array(list) => list.iter_mut().for_each(|v| walk(v, name)),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(figures).ok()?;
    walk(&mut value, name);
    serde_json::from_value(value).ok()
}

fn model(gpu: &Gpu, detail: &GpuDetail, findings: &[Finding], stamp: &Stamp) -> GpuModel {
    let mut model = known_model(gpu).cloned().unwrap_or_else(|| unknown_model(gpu, detail));
    model.memory_bytes = stamp.figure(gpu.memory_bytes);
    model.l2_bytes = detail.l2_bytes;
    model.shared_memory_bytes_per_sm = detail.shared_bytes;
    if let Some(rate) = best([measured(findings, Check::Single, &[gpu.ordinal]).and_then(|m| m.bytes_per_s)].into_iter()) {
        model.set_reached_memory(stamp.figure(rate));
    }
    model
}

/// A GPU that the table does not have, from what the driver says of it.
fn unknown_model(gpu: &Gpu, detail: &GpuDetail) -> GpuModel {
    let (major, minor) = gpu.compute_capability.split_once('.').unwrap_or(("0", "0"));
    let (sm_major, sm_minor): (u32, u32) = (major.parse().unwrap_or(0), minor.parse().unwrap_or(0));
    // Dense operations a clock of a multiprocessor's tensor cores in bf16, from the peaks of the table's models of each architecture.
    let bf16 = match (sm_major, sm_minor) {
        (8, 0) => 2048,
        (9, _) => 4096,
        (10 | 11, _) => 8192,
        (12, _) => 1024,
        _ => 512,
    };
    let clocks = u64::from(gpu.multiprocessors) * u64::from(detail.clock_mhz) * 1_000_000;
    let rate = |format, per_clock: u64| FlopRate {
        format,
        peak_per_s: Figure::assumed((clocks * per_clock).max(1), "multiprocessors, clock and the rate of the architecture"),
        reached_per_s: None,
    };
    GpuModel {
        name: gpu.name.clone(),
        chip: "unknown".into(),
        sm_major,
        sm_minor,
        sm_count: gpu.multiprocessors.max(1),
        memory_bytes: Figure::assumed(gpu.memory_bytes.max(1), "the driver"),
        memory_bytes_per_s: Figure::assumed(detail.memory_bytes_per_s.max(1), "memory clock and width"),
        memory_reached_bytes_per_s: None,
        l2_bytes: detail.l2_bytes,
        shared_memory_bytes_per_sm: detail.shared_bytes,
        boost_mhz: detail.clock_mhz,
        flops: vec![rate(Format::Fp32, 256), rate(Format::Bf16, bf16), rate(Format::Fp8, 2 * bf16), rate(Format::Int8, 2 * bf16)],
        pcie_gen: detail.pci.generation,
        pcie_lanes: detail.pci.lanes,
        nvlink_bytes_per_s: 0,
    }
}

/// Peer access counts where stores and loads of every pair were right.
fn peer_access(examination: &Examination, stamp: &Stamp) -> Figure<bool> {
    let count = examination.description.gpus.len();
    if count < 2 {
        return Figure::assumed(true, "one GPU has no peers");
    }
    let kernels = |f: &&Finding| matches!(f.check, Check::Store | Check::Load);
    let mut checked = examination.findings.iter().filter(kernels).peekable();
    if checked.peek().is_none() {
        return Figure::assumed(false, "not checked");
    }
    stamp.figure(checked.all(|f| f.outcome == Outcome::Right))
}

fn launch(examination: &Examination, like: &Machine, stamp: &Stamp) -> LaunchCosts {
    let first = measured(&examination.findings, Check::Single, &[0]).unwrap_or_default();
    let of = |seconds: Option<f64>, other: &Figure<Duration>| match seconds {
        Some(s) => stamp.figure(picoseconds(s)),
        None => Figure::assumed(other.value, format!("as of {}: {}", like.name, other.source)),
    };
    let l = &like.launch;
    LaunchCosts {
        eager_kernel: of(first.eager_launch_s, &l.eager_kernel),
        graph_node: of(first.graph_node_s, &l.graph_node),
        graph_launch: of(first.graph_launch_s, &l.graph_launch),
        eager_collective: of(None, &l.eager_collective),
        eager_nccl: of(None, &l.eager_nccl),
        nccl_call: None,
        loop_nccl: Figure::assumed(Duration::ZERO, "loops of many launches"),
        graph_nccl: Figure::assumed(Duration::ZERO, "not measured apart from the collective"),
    }
}

struct Build<'a> {
    examination: &'a Examination,
    stamp: &'a Stamp,
    like: &'a Machine,
    models: &'a [GpuModel],
    vertices: IdVec<VertexId, Vertex>,
    links: IdVec<LinkId, Link>,
    gpus: Vec<Slot>,
}

impl Build<'_> {
    fn vertex(&mut self, name: String, part: VertexKind) -> VertexId {
        self.vertices.push(Vertex { name, part })
    }
    fn link(&mut self, a: VertexId, b: VertexId, kind: LinkKind, rate: &Rate, latency: &Figure<Duration>) {
        self.links.push(Link { a, b, kind, forward: rate.clone(), backward: rate.clone(), latency: latency.clone() });
    }
    fn named(&self, name: &str) -> Option<VertexId> {
        self.vertices.iter().find(|(_, v)| v.name == name).map(|(id, _)| id)
    }
    /// A link of the like machine of some kind, as assumed figures.
    fn borrowed(&self, wanted: impl Fn(&LinkKind) -> bool) -> Option<(LinkKind, Rate, Figure<Duration>)> {
        let (_, link) = self.like.links.iter().find(|(_, l)| wanted(&l.kind))?;
        let source = |s: &str| format!("as of {}: {s}", self.like.name);
        let rate = |f: &Figure<u64>| Figure::assumed(f.value, source(&f.source));
        let both =
            Rate { write_bytes_per_s: rate(&link.forward.write_bytes_per_s), read_bytes_per_s: rate(&link.forward.read_bytes_per_s) };
        Some((link.kind, both, Figure::assumed(link.latency.value, source(&link.latency.source))))
    }
    fn numa(place: &PciPlace) -> u32 {
        place.numa.unwrap_or(0)
    }

    /// Sockets with their memory, as many as NUMA nodes have GPUs.
    fn host(&mut self) {
        let fallback =
            |value| (Rate::even(Figure::assumed(value, "a round figure")), Figure::assumed(Duration::from_ns(100), "a round figure"));
        let (memory_rate, memory_latency) =
            self.borrowed(|k| *k == LinkKind::Memory).map_or_else(|| fallback(60_000_000_000), |(_, rate, latency)| (rate, latency));
        let between = self.borrowed(|k| matches!(k, LinkKind::Upi | LinkKind::Xgmi));
        let (kind, rate, latency) = between.unwrap_or_else(|| {
            let (rate, latency) = fallback(40_000_000_000);
            (LinkKind::Upi, rate, latency)
        });
        let mut nodes: Vec<u32> = self.examination.description.gpus.iter().map(|g| Self::numa(&g.pci)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut before = None;
        for node in nodes {
            let socket = self.vertex(format!("socket{node}"), VertexKind::Socket { numa_nodes: 1 });
            let memory = self.vertex(format!("memory{node}"), VertexKind::HostMemory);
            self.link(socket, memory, LinkKind::Memory, &memory_rate, &memory_latency);
            if let Some(before) = before.replace(socket) {
                self.link(before, socket, kind, &rate, &latency);
            }
        }
    }

    /// Every GPU below its switches and its root port.
    fn gpus(&mut self, model_of: &[usize]) {
        let details = self.examination.description.gpus.clone();
        for (ordinal, detail) in details.iter().enumerate() {
            let numa = Self::numa(&detail.pci);
            let kind = self.pcie(detail, &self.models[model_of[ordinal]]);
            let (rate, latency) = self.port(ordinal, kind);
            let mut parent = self.root(ordinal, detail, numa);
            // Below the root port come the bridges of switches, upstream and downstream by turns.
            let chain = &detail.pci.chain;
            for depth in (2..chain.len().saturating_sub(1)).step_by(2) {
                let name = format!("switch-{}", chain[depth]);
                parent = match self.named(&name) {
                    Some(there) => there,
                    None => {
                        let chip = self.vertices.len() as u32;
                        let switch = self.vertex(name, VertexKind::PcieSwitch { chip, acs: false });
                        self.link(parent, switch, kind, &rate, &Figure::assumed(Duration::from_ns(100), "a switch hop"));
                        switch
                    }
                };
            }
            let gpu = self.vertex(format!("gpu{ordinal}"), VertexKind::Gpu { ordinal: ordinal as u32 });
            self.link(parent, gpu, kind, &rate, &latency);
            self.gpus.push(Slot { model: model_of[ordinal], vertex: gpu, numa });
        }
    }
    fn pcie(&self, detail: &GpuDetail, model: &GpuModel) -> LinkKind {
        let generation = [detail.pci.generation, model.pcie_gen].into_iter().find(|g| (1..=7).contains(g)).unwrap_or(4);
        let lanes = [detail.pci.lanes, model.pcie_lanes].into_iter().find(|l| matches!(l, 1 | 2 | 4 | 8 | 12 | 16 | 32)).unwrap_or(16);
        LinkKind::Pcie { generation, lanes }
    }
    fn root(&mut self, ordinal: usize, detail: &GpuDetail, numa: u32) -> VertexId {
        // A GPU on the root bus itself is a root port of its own.
        let name = match detail.pci.chain.get(1) {
            Some(port) if detail.pci.chain.len() > 2 => format!("root-{port}"),
            _ => format!("root-of-gpu{ordinal}"),
        };
        if let Some(there) = self.named(&name) {
            return there;
        }
        let root = self.vertex(name, VertexKind::RootComplex);
        let fabric = self.borrowed(|k| *k == LinkKind::SocketFabric);
        if let Some(socket) = self.named(&format!("socket{numa}")) {
            let (rate, latency) = fabric.map_or_else(
                || {
                    (
                        Rate::even(Figure::assumed(100_000_000_000, "a round figure")),
                        Figure::assumed(Duration::from_ns(100), "a round figure"),
                    )
                },
                |(_, rate, latency)| (rate, latency),
            );
            self.link(socket, root, LinkKind::SocketFabric, &rate, &latency);
        }
        root
    }
    fn over_nvlink(&self, a: usize, b: usize) -> bool {
        a != b && self.examination.description.gpus.get(a).and_then(|g| g.native_atomics.get(b)).copied().unwrap_or(false)
    }
    /// Best one-way rates of a GPU with some of its peers: written into them and read from them, and the shortest way of a flag.
    fn peers(&self, ordinal: usize, count: impl Fn(usize) -> bool) -> (Option<u64>, Option<u64>, Option<f64>) {
        let found = &self.examination.findings;
        let others: Vec<usize> = (0..self.examination.description.gpus.len()).filter(|b| *b != ordinal && count(*b)).collect();
        let rate = |check, b: usize| measured(found, check, &[ordinal, b]).and_then(|m| m.bytes_per_s);
        let write = best(others.iter().flat_map(|&b| [rate(Check::Store, b), rate(Check::Copy, b)]));
        let read = best(others.iter().map(|&b| rate(Check::Load, b)));
        let flag = |b: usize| measured(found, Check::Flags, &[ordinal.min(b), ordinal.max(b)]).and_then(|m| m.latency_s);
        (write, read, others.iter().copied().filter_map(flag).min_by(f64::total_cmp))
    }
    /// A GPU's PCIe port: measured where peers were reached over it, else what such ports reach.
    fn port(&self, ordinal: usize, kind: LinkKind) -> (Rate, Figure<Duration>) {
        let (write, read, flag) = self.peers(ordinal, |b| !self.over_nvlink(ordinal, b));
        let (generation, lanes) = if let LinkKind::Pcie { generation, lanes } = kind { (generation, lanes) } else { (4, 16) };
        // Gigabytes a second that x16 ports of each generation reach one way, 1 to 7.
        let reached = [3, 6, 12, 25, 55, 110, 220][usize::from(generation.clamp(1, 7)) - 1] * 1_000_000_000 * u64::from(lanes) / 16;
        let rate = |value: Option<u64>| value.map_or_else(|| Figure::assumed(reached, "what such ports reach"), |v| self.stamp.figure(v));
        let latency = match flag {
            // A flag passes the port of each of the two.
            Some(s) => self.stamp.figure(picoseconds(s / 2.0)),
            None => Figure::assumed(Duration::from_ns(320), "half of a same-switch ping-pong, 633 ns"),
        };
        (Rate { write_bytes_per_s: rate(write), read_bytes_per_s: rate(read) }, latency)
    }

    /// NVLink: one switch where all reach all and the like machine has one, else a link a pair.
    fn nvlinks(&mut self) {
        let count = self.examination.description.gpus.len();
        let pairs: Vec<(usize, usize)> =
            (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))).filter(|(a, b)| self.over_nvlink(*a, *b)).collect();
        if pairs.is_empty() {
            return;
        }
        let all = pairs.len() == count * (count - 1) / 2;
        let switched = all && self.like.vertices.iter().any(|(_, v)| v.part == VertexKind::NvSwitch);
        let lanes = self.like.links.iter().find_map(|(_, l)| if let LinkKind::NvLink { lanes } = l.kind { Some(lanes) } else { None });
        let kind = LinkKind::NvLink { lanes: lanes.unwrap_or(1) };
        let spare = self.borrowed(|k| matches!(k, LinkKind::NvLink { .. }));
        let figures = |build: &Self, of: (Option<u64>, Option<u64>, Option<f64>), hops: f64| {
            let other =
                || spare.clone().map_or_else(|| Figure::assumed(25_000_000_000, "one NVLink lane"), |(_, r, _)| r.write_bytes_per_s);
            let rate = |value: Option<u64>| value.map_or_else(other, |v| build.stamp.figure(v));
            let latency = match of.2 {
                Some(s) => build.stamp.figure(picoseconds(s / hops)),
                None => Figure::assumed(Duration::from_ns(200), "half of an NVLink hop"),
            };
            (Rate { write_bytes_per_s: rate(of.0), read_bytes_per_s: rate(of.1) }, latency)
        };
        if switched {
            let switch = self.vertex("nvswitch".into(), VertexKind::NvSwitch);
            for gpu in 0..count {
                let (rate, latency) = figures(self, self.peers(gpu, |_| true), 2.0);
                self.link(self.gpus[gpu].vertex, switch, kind, &rate, &latency);
            }
            return;
        }
        for (a, b) in pairs {
            let (rate, latency) = figures(self, self.peers(a, |other| other == b), 1.0);
            self.link(self.gpus[a].vertex, self.gpus[b].vertex, kind, &rate, &latency);
        }
    }
}

#[cfg(test)]
mod tests;
