//! Building blocks of the built-in machines.

use super::figures::Collectives;
use crate::machine::{Defect, Figure, GpuModel, Link, LinkKind, Machine, Origin, Rate, Slot, Vertex, VertexId, VertexKind, gpu_named};
use crate::time::Duration;
use moetwin_models::IdVec;

pub(super) const GB: u64 = 1_000_000_000;

pub(super) fn ns(value: u64) -> Duration {
    Duration::from_ns(value)
}

/// A model of the shipped table. The built-ins name only models that are in it, which a test checks.
pub(super) fn model(name: &str) -> GpuModel {
    gpu_named(name).unwrap_or_else(|| panic!("{name} is not in the GPU table")).clone()
}

/// A machine under construction.
pub(super) struct Build {
    machine: Machine,
}

impl Build {
    pub(super) fn new(name: &str, summary: &str, model: GpuModel, peer_access: Figure<bool>, collectives: Collectives) -> Self {
        let (launch, collectives) = collectives.build();
        Self {
            machine: Machine {
                name: name.into(),
                summary: summary.into(),
                models: vec![model],
                gpus: Vec::new(),
                vertices: IdVec::new(),
                links: IdVec::new(),
                defects: Vec::new(),
                peer_access,
                launch,
                collectives,
                assumptions: Vec::new(),
                kernels: None,
            },
        }
    }

    pub(super) fn finish(self) -> Machine {
        self.machine
    }

    pub(super) fn assume(&mut self, text: &str) -> &mut Self {
        self.machine.assumptions.push(text.into());
        self
    }

    pub(super) fn vertex(&mut self, name: String, part: VertexKind) -> VertexId {
        self.machine.vertices.push(Vertex { name, part })
    }

    pub(super) fn link(&mut self, a: VertexId, b: VertexId, kind: LinkKind, rate: &Figure<u64>, latency: &Figure<Duration>) {
        self.uneven(a, b, kind, Rate::even(rate.clone()), latency);
    }

    /// A link whose reads are slower or faster than its writes.
    pub(super) fn uneven(&mut self, a: VertexId, b: VertexId, kind: LinkKind, rate: Rate, latency: &Figure<Duration>) {
        self.machine.links.push(Link { a, b, kind, forward: rate.clone(), backward: rate, latency: latency.clone() });
    }

    /// The next GPU.
    pub(super) fn gpu(&mut self, numa: u32) -> VertexId {
        let ordinal = self.machine.gpus.len() as u32;
        let vertex = self.vertex(format!("gpu{ordinal}"), VertexKind::Gpu { ordinal });
        self.machine.gpus.push(Slot { model: 0, vertex, numa });
        vertex
    }

    /// A socket with its memory, through which copies between GPUs without peer access bounce.
    pub(super) fn socket(&mut self, index: u32, numa_nodes: u32, bounce: &Figure<u64>) -> VertexId {
        let socket = self.vertex(format!("socket{index}"), VertexKind::Socket { numa_nodes });
        let memory = self.vertex(format!("memory{index}"), VertexKind::HostMemory);
        self.link(socket, memory, LinkKind::Memory, bounce, &Figure::assumed(ns(100), "a DRAM access"));
        socket
    }

    /// A root complex below a socket.
    pub(super) fn root(&mut self, name: String, socket: VertexId, fabric: &Fabric) -> VertexId {
        let root = self.vertex(name, VertexKind::RootComplex);
        self.link(socket, root, LinkKind::SocketFabric, &fabric.rate, &fabric.latency);
        root
    }

    /// Marks a switch whose posted writes to several root complexes collapse.
    pub(super) fn collapse(&mut self, switch: VertexId, bytes_per_s: Figure<u64>) {
        self.machine.defects.push(Defect::PostedWriteCollapse { switch, bytes_per_s });
    }

    /// States what replaying a graph of one NCCL collective takes beyond the collective.
    pub(super) fn replays(&mut self, extra: Figure<Duration>) {
        self.machine.launch.graph_nccl = extra;
    }

    /// A GPU below a parent.
    pub(super) fn gpu_below(&mut self, parent: VertexId, numa: u32, port: &Port) -> VertexId {
        let gpu = self.gpu(numa);
        self.uneven(parent, gpu, port.kind, port.rate.clone(), &port.latency);
        gpu
    }
}

/// A root complex's place in its socket.
pub(super) struct Fabric {
    pub(super) rate: Figure<u64>,
    pub(super) latency: Figure<Duration>,
}

/// A PCIe port.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) kind: LinkKind,
    pub(super) rate: Rate,
    pub(super) latency: Figure<Duration>,
}

impl Port {
    /// An x16 port with the same rate for reads and writes.
    pub(super) fn x16(generation: u8, rate: Figure<u64>, latency: Figure<Duration>) -> Self {
        Self { kind: LinkKind::Pcie { generation, lanes: 16 }, rate: Rate::even(rate), latency }
    }
}

/// A figure whose origin and source are those of a whole group.
pub(super) struct Sourced {
    pub(super) origin: Origin,
    pub(super) source: &'static str,
}

impl Sourced {
    pub(super) fn figure<T>(&self, value: T) -> Figure<T> {
        Figure { value, origin: self.origin, source: self.source.into() }
    }
}
