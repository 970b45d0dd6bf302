//! What cost functions need to know of a GPU, and the physical model of a kernel that everything is compared with.

use super::table::Family;

/// Rates of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuRates {
    /// Rate that long reads of device memory reach, bytes a second.
    pub memory_bytes_per_s: f64,
    /// Capacity of the L2 cache, bytes.
    pub l2_bytes: f64,
    /// Rate at which kernels read the L2 cache, bytes a second.
    pub l2_bytes_per_s: f64,
    /// Sustained dense bf16 rate, multiply-adds counted two, a second.
    pub bf16_flops_per_s: f64,
    /// The same in fp8; the bf16 rate where the GPU has none.
    pub fp8_flops_per_s: f64,
    /// The same in fp4; the fp8 rate where the GPU has none.
    pub fp4_flops_per_s: f64,
}

impl GpuRates {
    /// Microseconds that `bytes` take from device memory.
    pub(super) fn memory_us(&self, bytes: f64) -> f64 {
        bytes / self.memory_bytes_per_s * 1e6
    }
    /// Microseconds that `flops` take with operands of `element`.
    pub(super) fn compute_us(&self, flops: f64, element: Element) -> f64 {
        flops / self.flops_per_s(element) * 1e6
    }
    fn flops_per_s(&self, element: Element) -> f64 {
        match element {
            // Weights are widened to bf16 before the multiplication.
            Element::Bf16 | Element::Int4 | Element::Mxfp4 => self.bf16_flops_per_s,
            Element::Fp8 | Element::Fp8Block | Element::Mxfp4Mxfp8 => self.fp8_flops_per_s,
            Element::Nvfp4 => self.fp4_flops_per_s,
        }
    }
    /// What a table row hides because its data stayed in L2 between repetitions: the extra microseconds of reading `bytes` from memory
    /// when the benchmark's whole working set was `working_set` bytes.
    ///
    /// A set below 0.8 of the L2 stays in it, one above 1.2 does not (on RTX PRO 6000 with 128 MiB, MoE rows of 99 MB read 2.5 TB/s
    /// and rows of 176 MB 1.3 TB/s; between the two the share that hits falls linearly).
    pub(super) fn warm_excess_us(&self, bytes: f64, working_set: f64) -> f64 {
        let hit = ((1.2 - working_set / self.l2_bytes) / 0.4).clamp(0.0, 1.0);
        (hit * (self.memory_us(bytes) - bytes / self.l2_bytes_per_s * 1e6)).max(0.0)
    }
}

/// How the weights (or cached keys) of a kernel are stored, which is also how tables name their kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// bf16.
    Bf16,
    /// fp8, one scale a tensor.
    Fp8,
    /// fp8, one scale a block.
    Fp8Block,
    /// Signed 4-bit integers with a bf16 scale every 32.
    Int4,
    /// NVIDIA fp4 with an fp8 scale every 16.
    Nvfp4,
    /// Microscaling fp4 with an 8-bit scale every 32, activations in bf16.
    Mxfp4,
    /// The same weights, activations in microscaling fp8.
    Mxfp4Mxfp8,
}

impl Element {
    /// Every element.
    pub const ALL: [Element; 7] =
        [Element::Bf16, Element::Fp8, Element::Fp8Block, Element::Int4, Element::Nvfp4, Element::Mxfp4, Element::Mxfp4Mxfp8];

    /// The word tables use.
    pub fn table_word(self) -> &'static str {
        match self {
            Element::Bf16 => "bfloat16",
            Element::Fp8 => "fp8",
            Element::Fp8Block => "fp8_block",
            Element::Int4 => "int4_wo",
            Element::Nvfp4 => "nvfp4",
            Element::Mxfp4 => "w4a16_mxfp4",
            Element::Mxfp4Mxfp8 => "w4a8_mxfp4_mxfp8",
        }
    }
    /// Bytes of one weight with its share of the scales.
    pub fn bytes(self) -> f64 {
        match self {
            Element::Bf16 => 2.0,
            Element::Fp8 | Element::Fp8Block => 1.0,
            Element::Int4 => 0.5 + 2.0 / 32.0,
            Element::Nvfp4 => 0.5 + 1.0 / 16.0,
            Element::Mxfp4 | Element::Mxfp4Mxfp8 => 0.5 + 1.0 / 32.0,
        }
    }
}

/// Microseconds of a kernel of a family that has nothing to do: launch, ramp-up and tail.
///
/// Values of the RTX PRO 6000 and H200 tables (aiconfigurator-core 0.12.0): bf16 GEMM rows of one token over bytes have an intercept
/// of 2.6 and 5.2 us, fp8 and nvfp4 more; MoE one of 17 to 30; attention cores on one row of context take 11 to 17 (MLA) and 7 to 9
/// (GQA). They only anchor quotients where a table exists, and are the floor where none does.
pub(super) fn family_floor_us(family: Family) -> f64 {
    match family {
        Family::Gemm => 4.0,
        Family::Moe => 20.0,
        Family::MlaDecode | Family::MlaDecodeModule | Family::MlaPrefill => 14.0,
        Family::GqaDecode => 8.0,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// RTX PRO 6000 Server.
    pub(in crate::cost) fn rtx() -> GpuRates {
        crate::cost::catalog::reference_rates("rtx_pro_6000_server").expect("in the catalog")
    }

    #[test]
    fn only_rows_that_fit_the_l2_are_warm() {
        let gpu = rtx();
        let mb = 1e6;
        assert_eq!(gpu.warm_excess_us(10.0 * mb, 200.0 * mb), 0.0);
        let whole = gpu.warm_excess_us(10.0 * mb, 10.0 * mb);
        assert!((whole - (10.0 / 1.505 - 10.0 / 5.7)).abs() < 0.1, "{whole}");
        let half = gpu.warm_excess_us(10.0 * mb, gpu.l2_bytes);
        assert!((half - whole / 2.0).abs() < 1e-9);
    }
}
