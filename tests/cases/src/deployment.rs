//! Deployments: any sizes are refused with a reason, or give a graph that verifies and a program that verifies.

use crate::check_reason;
use moetwin_models::{AllToAll, BuildOptions, DType, Deployment, ExpertPlacement, Phase, PlanError, Step, config, plan};
use moetwin_runtime::{LowerOptions, lower, verify::verify};

/// A model of each kind of attention.
const MODELS: [&str; 2] =
    [include_str!("../../fixtures/tiny-deepseek-v3/config.json"), include_str!("../../fixtures/tiny-gpt-oss/config.json")];
/// Most ranks whose program is lowered: it has a command list for each.
const MOST_LOWERED: u32 = 64;

/// Reads sizes from the bytes, one after the other; what is not there is 0.
struct Sizes<'a>(std::slice::Iter<'a, u8>);

impl Sizes<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }
    /// Mostly small numbers, sometimes any.
    fn size(&mut self) -> u32 {
        match self.byte() {
            n @ 0..=64 => u32::from(n),
            0xff => u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()]),
            n => 1 << (n % 17),
        }
    }
}

/// Checks the shard pass, the verifier and lowering on any deployment.
pub fn check_deployment(data: &[u8]) {
    let mut bytes = Sizes(data.iter());
    let spec = config::read(MODELS[usize::from(bytes.byte()) % MODELS.len()], "fuzz").expect("the fixtures are models");
    let phase = [Phase::Decode, Phase::Prefill, Phase::Verify(2)][usize::from(bytes.byte()) % 3];
    let step = Step::uniform(phase, u32::from(bytes.byte() % 5), 1 + u32::from(bytes.byte() % 9));
    let a2a = [AllToAll::None, AllToAll::Nccl, AllToAll::Flashinfer, AllToAll::Deepep][usize::from(bytes.byte()) % 4];
    let kv_dtype = [DType::Bf16, DType::Fp8][usize::from(bytes.byte()) % 2];
    let (tp, pp, dp_attention, ep) = (bytes.size(), bytes.size(), bytes.size(), bytes.size());
    let (dcp, replicas) = (bytes.size(), bytes.size());
    let slots: Vec<u32> = (0..bytes.byte() % 40).map(|_| u32::from(bytes.byte() % 20)).collect();
    let placement = (!slots.is_empty()).then_some(ExpertPlacement { physical_to_logical: slots });
    let deployment = Deployment { tp, pp, dp_attention, ep, dcp, replicas, a2a, kv_dtype, placement };
    match plan(&spec, &step, &deployment, &BuildOptions::default()) {
        Err(PlanError::Verify(faults)) => panic!("{deployment:?}: {}", faults[0]),
        Err(e) => check_reason(&e.to_string()),
        Ok(graph) if deployment.ranks() <= MOST_LOWERED => {
            for fuse_sums in [false, true] {
                let options = LowerOptions { fuse_sums, ..LowerOptions::default() };
                let program = lower(graph.clone(), options).unwrap_or_else(|e| panic!("{deployment:?}: {e}"));
                if let Err(faults) = moetwin_models::verify(&program.graph) {
                    panic!("{deployment:?}: {}", faults[0]);
                }
                if let Err(faults) = verify(&program) {
                    panic!("{deployment:?}: {}", faults[0]);
                }
            }
        }
        Ok(_) => {}
    }
}
