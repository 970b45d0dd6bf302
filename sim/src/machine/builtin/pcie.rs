//! Shapes of PCIe machines: GPUs on root ports, and GPUs below switches.

use super::parts::{Build, Fabric, GB, Port, ns};
use crate::machine::{Figure, LinkKind, VertexId, VertexKind};

/// Rates and latencies of a PCIe machine outside its collectives.
pub(super) struct Wires {
    pub(super) port: Port,
    pub(super) fabric: Fabric,
    pub(super) bounce: Figure<u64>,
    pub(super) between: Option<(LinkKind, Figure<u64>)>,
}

impl Wires {
    /// One or two sockets with their memory.
    pub(super) fn sockets(&self, build: &mut Build, numa_nodes: u32) -> Vec<VertexId> {
        let mut sockets = vec![build.socket(0, numa_nodes, &self.bounce)];
        if let Some((kind, rate)) = &self.between {
            sockets.push(build.socket(1, numa_nodes, &self.bounce));
            build.link(sockets[0], sockets[1], *kind, rate, &Figure::assumed(ns(150), "a socket hop"));
        }
        sockets
    }

    /// Eight GPUs, each on a root port of its own; `numa` names each one's NUMA node.
    pub(super) fn direct(&self, build: &mut Build, numa_nodes: u32, numa: [u32; 8]) {
        let sockets = self.sockets(build, numa_nodes);
        for (ordinal, node) in numa.into_iter().enumerate() {
            let socket = sockets[ordinal * sockets.len() / 8];
            let root = build.root(format!("root{ordinal}"), socket, &self.fabric);
            build.gpu_below(root, node, &self.port);
        }
    }

    /// A switch of its own chip below a root complex of its own.
    pub(super) fn switch(&self, build: &mut Build, index: u32, socket: VertexId) -> VertexId {
        let root = build.root(format!("root{index}"), socket, &self.fabric);
        self.switch_below(build, index, index, root)
    }

    /// A switch, or virtual switch of a chip, below a parent.
    pub(super) fn switch_below(&self, build: &mut Build, index: u32, chip: u32, parent: VertexId) -> VertexId {
        let switch = build.vertex(format!("switch{index}"), VertexKind::PcieSwitch { chip, acs: false });
        build.uneven(parent, switch, self.port.kind, self.port.rate.clone(), &Figure::assumed(ns(100), "a switch hop"));
        switch
    }

    /// Switches spread over the sockets in order, each with `gpus` GPUs.
    pub(super) fn switched(&self, build: &mut Build, switches: u32, gpus: u32) {
        let sockets = self.sockets(build, 1);
        for index in 0..switches {
            let socket = index as usize * sockets.len() / switches as usize;
            let switch = self.switch(build, index, sockets[socket]);
            for _ in 0..gpus {
                build.gpu_below(switch, socket as u32, &self.port);
            }
        }
    }
}

/// Inside a socket with short ways, as Threadripper PRO and Intel show: 1.07 us from GPU to GPU across two switches.
pub(super) fn short_fabric() -> Fabric {
    Fabric {
        rate: Figure::assumed(200 * GB, "a socket's I/O fabric"),
        latency: Figure::measured(ns(110), "GPU ping-pong across two switches, 1.07 us, WRX90"),
    }
}

/// Inside an EPYC: 1.4 to 1.6 us from GPU to GPU across root ports.
pub(super) fn epyc_fabric() -> Fabric {
    Fabric {
        rate: Figure::assumed(200 * GB, "a socket's I/O fabric"),
        latency: Figure::measured(ns(380), "GPU latency across root ports 1.40 us, EPYC 9005"),
    }
}

/// A PCIe 5.0 x16 port of an RTX PRO 6000.
pub(super) fn gen5(rate: u64, source: &'static str) -> Port {
    Port::x16(5, Figure::measured(rate * GB / 1000, source), Figure::measured(ns(320), "half of a same-switch GPU ping-pong, 633 ns"))
}

/// A PCIe 4.0 x16 port.
pub(super) fn gen4(rate: u64, source: &'static str) -> Port {
    Port::x16(4, Figure::measured(rate * GB / 1000, source), Figure::assumed(ns(350), "as PCIe 5.0, slower by the link"))
}
