//! What is known of a GPU model.

use super::Figure;
use serde::{Deserialize, Serialize};

/// A number format that tensor cores multiply; dense rates, FP32 accumulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// FP32 on CUDA cores.
    Fp32,
    /// bfloat16 (half is the same).
    Bf16,
    /// 8-bit float.
    Fp8,
    /// 4-bit float.
    Fp4,
    /// 8-bit integer.
    Int8,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 5] = [Format::Fp32, Format::Bf16, Format::Fp8, Format::Fp4, Format::Int8];
}

/// A rate of arithmetic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlopRate {
    /// The format.
    pub format: Format,
    /// Peak, operations per second (a multiply-add is two). Steps are computed with a share of it, but where `reached_per_s` is known: then with that,
    /// which is not more.
    pub peak_per_s: Figure<u64>,
    /// Reached by large matrix products, where known.
    pub reached_per_s: Option<Figure<u64>>,
}

/// A GPU model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuModel {
    /// Marketing name.
    pub name: String,
    /// Chip.
    pub chip: String,
    /// Compute capability, major.
    pub sm_major: u32,
    /// Compute capability, minor.
    pub sm_minor: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Memory visible to a process before its context.
    pub memory_bytes: Figure<u64>,
    /// Memory rate stated by the vendor. Steps are computed with a share of it, but where `memory_reached_bytes_per_s` is known: then with that, which is
    /// not more.
    pub memory_bytes_per_s: Figure<u64>,
    /// Memory rate reached by large reads, where known.
    pub memory_reached_bytes_per_s: Option<Figure<u64>>,
    /// L2 cache.
    pub l2_bytes: u64,
    /// Shared memory a multiprocessor offers its blocks.
    pub shared_memory_bytes_per_sm: u64,
    /// Boost clock.
    pub boost_mhz: u32,
    /// Arithmetic rates.
    pub flops: Vec<FlopRate>,
    /// PCIe generation; 0 where the GPU hangs on C2C.
    pub pcie_gen: u8,
    /// PCIe lanes.
    pub pcie_lanes: u8,
    /// NVLink rate per direction; 0 without NVLink.
    pub nvlink_bytes_per_s: u64,
}

impl GpuModel {
    /// Compute capability as one number: 120 for 12.0.
    pub fn sm(&self) -> u32 {
        self.sm_major * 10 + self.sm_minor
    }
    /// Takes a measured memory rate. One above the stated rate shows that that was too low.
    pub fn set_reached_memory(&mut self, reached: Figure<u64>) {
        if reached.value > self.memory_bytes_per_s.value {
            self.memory_bytes_per_s = reached.clone();
        }
        self.memory_reached_bytes_per_s = Some(reached);
    }
    /// The memory rate large reads reach: measured where known, else the vendor's.
    pub fn reached_memory(&self) -> &Figure<u64> {
        self.memory_reached_bytes_per_s.as_ref().unwrap_or(&self.memory_bytes_per_s)
    }
}
