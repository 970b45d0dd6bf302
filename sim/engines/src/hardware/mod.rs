//! What a described machine is to an engine: architecture, memory, links.

mod gpus;
mod read;

pub use gpus::{GPUS, Gpu, find, gpu_names, said_sm, shared_memory_per_block_kib};
pub use read::{major_minor, of_machine, read, says_links};

/// How the GPUs of a launch reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interconnect {
    /// One GPU.
    Single,
    /// NVLink between every pair (NVSwitch or full mesh).
    Nvlink,
    /// NVLink between some pairs only.
    NvlinkPairs,
    /// PCI Express only.
    Pcie,
    /// Not said.
    #[default]
    Unknown,
}

/// A machine as rules see it. A field is `None` where the question does not say and no table knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hardware {
    /// The GPU as it was described.
    pub gpu: String,
    /// Compute capability times ten: 120 for SM120.
    pub sm: Option<u32>,
    /// GPUs of the launch, all nodes together.
    pub count: Option<u32>,
    /// Hosts.
    pub nodes: u32,
    /// Memory of one GPU, GiB as the driver reports it.
    pub memory_gib: Option<f64>,
    /// Memory bandwidth of one GPU, GB/s.
    pub memory_gb_s: Option<f64>,
    /// Links between the GPUs of one host.
    pub interconnect: Interconnect,
    /// GPU and host share one memory.
    pub unified: bool,
    /// CUDA toolkit of the engine's build, `(major, minor)`.
    pub cuda: Option<(u32, u32)>,
    /// Driver version as given.
    pub driver: Option<String>,
    /// Further words of the description that rules look for, lower case: `phb`, `node`, `patched`, `acs`.
    pub words: Vec<String>,
    /// Further fields of the description, by name, as text: `acs`, `bar1_mib`, `p2p_advertised`.
    pub fields: std::collections::BTreeMap<String, String>,
    /// What was assumed where the question is silent.
    pub assumptions: Vec<String>,
}
