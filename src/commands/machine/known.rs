//! What the user knows better than files: flags that replace assumptions.

use crate::error::{Failure, InputError};
use crate::values::whole;
use clap::{Args, ValueEnum};
use moetwin::sim::machine::{CpuFamily, GpuModel, PathClass, gpu_models};
use moetwin::sim::topology::{BusId, Options, gpu_by_words};

/// Flags of `machine import` and `machine detect`.
#[derive(Args)]
pub(super) struct KnownArgs {
    /// Name of the machine [default: the first file's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// GPU model: one for all, or one for each ordinal separated by commas
    #[arg(long, value_name = "MODEL,...", value_delimiter = ',')]
    gpu: Vec<String>,
    /// CPU family, which sets what NCCL assumes between sockets
    #[arg(long, value_name = "FAMILY")]
    cpu: Option<String>,
    /// CPU sockets
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=64))]
    sockets: Option<u32>,
    /// PCIe generation and lanes of links that no file states, for example 5x16
    #[arg(long, value_name = "GENxLANES")]
    pcie: Option<String>,
    /// NVLink lanes from every GPU to an NVSwitch fabric
    #[arg(long, value_name = "LANES", value_parser = whole::<u8>(1..=64))]
    nvlink: Option<u8>,
    /// Whether GPUs read and write each other's memory directly
    #[arg(long, value_enum, value_name = "on|off")]
    p2p: Option<Switch>,
    /// The farthest path over which NCCL uses peer access (NCCL_P2P_LEVEL)
    #[arg(long, value_name = "LEVEL")]
    p2p_level: Option<String>,
    /// Switches that are virtual switches of one chip, for example 0+1 or 0+1,2+3
    #[arg(long, value_name = "N+N,...", value_delimiter = ',')]
    same_chip: Vec<String>,
    /// Bus addresses of the GPUs, for files that show devices without names
    #[arg(long, value_name = "BUS,...", value_delimiter = ',')]
    gpu_at: Vec<String>,
    /// Leave out defects that a switch chip found here is known for
    #[arg(long)]
    no_known_defects: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl KnownArgs {
    /// The options, with names resolved.
    pub(super) fn options(&self) -> Result<Options, Failure> {
        Ok(Options {
            name: self.name.clone(),
            gpus: self.gpu.iter().map(|name| gpu(name)).collect::<Result<_, _>>()?,
            cpu: self.cpu.as_deref().map(cpu).transpose()?,
            sockets: self.sockets,
            pcie: self.pcie.as_deref().map(pcie).transpose()?,
            nvlink: self.nvlink,
            peer_access: self.p2p.map(|switch| switch == Switch::On),
            p2p_level: self.p2p_level.as_deref().map(level).transpose()?,
            same_chip: self.same_chip.iter().map(|group| chip(group)).collect::<Result<_, _>>()?,
            gpu_at: self.gpu_at.iter().map(|bus| address(bus)).collect::<Result<_, _>>()?,
            without_known_defects: self.no_known_defects,
        })
    }
}

fn gpu(name: &str) -> Result<GpuModel, Failure> {
    let models = gpu_models();
    let exact = models.iter().find(|model| model.name.eq_ignore_ascii_case(name));
    let by_words = || gpu_by_words(name).and_then(|found| models.iter().find(|model| model.name == found));
    exact.or_else(by_words).cloned().ok_or_else(|| {
        let names = models.iter().map(|model| model.name.clone());
        InputError::new("--gpu", "is not a known GPU model").value(name).names(names.clone()).accepted(names).into()
    })
}

fn cpu(name: &str) -> Result<CpuFamily, Failure> {
    let found = CpuFamily::ALL.into_iter().find(|family| family.name() == name);
    let names = CpuFamily::ALL.map(CpuFamily::name);
    found.ok_or_else(|| {
        InputError::new("--cpu", "is not a CPU family that NCCL tells apart").value(name).names(names).accepted(names).into()
    })
}

fn pcie(text: &str) -> Result<(u8, u8), Failure> {
    let parsed = text.split_once('x').and_then(|(generation, lanes)| Some((generation.parse::<u8>().ok()?, lanes.parse::<u8>().ok()?)));
    let valid = parsed.filter(|(generation, lanes)| (1..=7).contains(generation) && matches!(lanes, 1 | 2 | 4 | 8 | 12 | 16 | 32));
    valid.ok_or_else(|| {
        InputError::new("--pcie", "is not a PCIe generation and a width")
            .value(text)
            .accepted(["1 to 7, x, 1, 2, 4, 8, 12, 16 or 32", "for example 5x16"])
            .into()
    })
}

fn level(name: &str) -> Result<PathClass, Failure> {
    let found = PathClass::ALL.into_iter().find(|class| class.name().eq_ignore_ascii_case(name));
    let names = PathClass::ALL.map(PathClass::name);
    found.ok_or_else(|| InputError::new("--p2p-level", "is not a level").value(name).names(names).accepted(names).into())
}

fn chip(group: &str) -> Result<Vec<u32>, Failure> {
    let numbers: Option<Vec<u32>> = group.split('+').map(|n| n.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() >= 2).ok_or_else(|| {
        InputError::new("--same-chip", "is not a group of switches")
            .value(group)
            .accepted(["numbers of switches joined by +, for example 0+1"])
            .into()
    })
}

fn address(text: &str) -> Result<BusId, Failure> {
    BusId::parse(text).ok_or_else(|| {
        InputError::new("--gpu-at", "is not a bus address").value(text).accepted(["an address such as 0a:00.0 or 0000:0a:00.0"]).into()
    })
}
