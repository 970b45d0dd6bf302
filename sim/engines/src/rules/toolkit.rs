//! What a CUDA toolkit means for an architecture and a driver.

use super::{Launch, Rule};
use crate::finding::{Finding, Fix, Kind, Outcome, Phase};
use crate::version::Range;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "toolkit_compiles_for_architecture",
        engine: None,
        range: Range::ALL,
        source: "CUDA 13.0 release notes: Maxwell, Pascal and Volta are no longer compiled for",
        check: dropped,
    },
    Rule {
        name: "driver_supports_toolkit",
        engine: None,
        range: Range::ALL,
        source: "CUDA release notes, table of toolkits and driver versions",
        check: driver,
    },
    Rule {
        name: "toolkit_knows_architecture",
        engine: None,
        range: Range::ALL,
        source: "CUDA 12.8 and 12.9 release notes; CUDA programming guide: architecture-specific targets (sm_100a, sm_120a) run on no other architecture",
        check: knows,
    },
    Rule {
        name: "flashinfer_cuda_supports_architecture",
        engine: None,
        range: Range::ALL,
        source: "ptxas and NVCC: SM120 from CUDA 12.8 on, SM121 and SM103 from 12.9 on",
        check: compiles,
    },
];

/// The first toolkit that compiles for an architecture.
fn first(sm: u32) -> Option<(u32, u32)> {
    Some(match sm {
        110 => (13, 0),
        103 | 121 => (12, 9),
        100 | 101 | 120 => (12, 8),
        89 | 90 => (11, 8),
        _ => return None,
    })
}

/// What holds for an architecture under a span of toolkits: (architectures from, to; toolkits since, until; in words, source).
type Row = ((u32, u32), (u32, u32), (u32, u32), &'static str, &'static str);

const END: (u32, u32) = (99, 0);

const ROWS: &[Row] = &[
    ((50, 72), (13, 0), END, "it compiles for SM75 and later only: no kernels for this GPU", "CUDA 13.0 release notes"),
    ((50, 72), (0, 0), (13, 0), "the last major version that compiles for this GPU is 12", "CUDA 13.0 release notes"),
    ((75, 90), (12, 0), END, "12 and 13 compile for this GPU alike", "CUDA 12.8 and 13.0 release notes"),
    ((100, 100), (0, 0), (12, 8), "no code for SM100: its compiler does not know the architecture", "CUDA 12.8 release notes"),
    ((100, 100), (12, 8), (12, 9), "native code (sm_100a); no target for the family of SM10x", "CUDA 12.8 and 12.9 release notes"),
    ((100, 100), (12, 9), END, "native code, and family targets (compute_100f)", "CUDA 12.9 release notes"),
    (
        (103, 103),
        (0, 0),
        (12, 9),
        "no native code for SM103: plain sm_100 kernels run, sm_100a ones (trtllm, DeepGEMM, CUTLASS FP4) do not, and kernels built at start-up do not compile",
        "CUDA 12.9 release notes; CUDA programming guide on architecture-specific targets",
    ),
    ((103, 103), (12, 9), END, "native code for SM103, and sm_100f kernels run", "CUDA 12.9 release notes"),
    ((110, 110), (0, 0), (13, 0), "Thor is SM101 to it, and code for SM110 cannot be built", "CUDA 13.0 release notes"),
    ((110, 110), (13, 0), END, "native code for SM110", "CUDA 13.0 release notes"),
    ((120, 120), (0, 0), (12, 8), "no code for SM120: its compiler does not know the architecture", "CUDA 12.8 release notes"),
    (
        (120, 120),
        (12, 8),
        (12, 9),
        "native code (sm_120a); no family target: CUTLASS's grouped NVFP4 GEMM takes its stage count from SM100 and does not fit 99 KiB of shared memory",
        "reports of NVFP4 MoE on SM120; CUDA 12.8 release notes",
    ),
    ((120, 120), (12, 9), (13, 0), "native code and the family target compute_120f", "CUDA 12.9 release notes"),
    (
        (120, 120),
        (13, 0),
        END,
        "native code and compute_120f, with which images build the NVFP4 MoE kernels of SM120",
        "reports of NVFP4 MoE on SM120",
    ),
    (
        (121, 121),
        (0, 0),
        (12, 9),
        "no native code for SM121: sm_120 kernels run, and whatever is compiled at start-up (FlashInfer, Triton's ptxas) fails on sm_121a",
        "ptxas 12.8: sm_121a is not a known target",
    ),
    ((121, 121), (12, 9), (13, 0), "native code for SM121 (sm_121a)", "CUDA 12.9 release notes"),
    ((121, 121), (13, 0), END, "native code for SM121; DGX OS drivers are of this version", "CUDA 13.0 release notes"),
];

/// The first driver of each toolkit for Linux: (toolkit, its own, by compatibility within the major version).
const DRIVERS: &[((u32, u32), u32, u32)] = &[((13, 0), 580, 580), ((12, 9), 575, 525), ((12, 8), 570, 525), ((12, 0), 525, 525)];

fn driver_of(cuda: (u32, u32)) -> Option<(u32, u32)> {
    DRIVERS.iter().find(|(toolkit, ..)| *toolkit <= cuda).map(|(_, own, least)| (*own, *least))
}

fn major(driver: &str) -> Option<u32> {
    driver.trim().chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

/// What a toolkit means here, for people.
pub fn differences(sm: u32, cuda: (u32, u32), driver: Option<&str>) -> Vec<String> {
    let rows = ROWS.iter().filter(|(sms, since, until, ..)| (sms.0..=sms.1).contains(&sm) && *since <= cuda && cuda < *until);
    let mut out: Vec<String> = rows.map(|(.., words, _)| (*words).to_owned()).collect();
    if let Some((own, least)) = driver_of(cuda) {
        let needs =
            if own == least { format!("driver {own} or later") } else { format!("driver {own}, or {least} within CUDA {}", cuda.0) };
        let have = driver.and_then(major).map(|d| format!(" (this one is {d}: {})", if d >= least { "enough" } else { "too old" }));
        out.push(format!("needs {needs}{}", have.unwrap_or_default()));
    }
    out
}

fn unsupported(phase: Phase, name: &str, message: String) -> Finding {
    Finding::fails(phase, Kind::UnsupportedArch, name, message)
}

fn dropped(launch: &Launch<'_>) -> Vec<Finding> {
    let Some((13.., minor)) = launch.hardware.cuda.filter(|_| (1..75).contains(&launch.sm())) else { return Vec::new() };
    let message = format!(
        "CUDA 13.{minor} compiles for SM75 and later: an engine built with it has no kernels for SM{} (no kernel image is available)",
        launch.sm()
    );
    vec![unsupported(Phase::Init, "toolkit_compiles_for_architecture", message).fix(Fix::words("an image built with CUDA 12"))]
}

fn driver(launch: &Launch<'_>) -> Vec<Finding> {
    let Some((cuda, have)) = launch.hardware.cuda.zip(launch.hardware.driver.as_deref().and_then(major)) else { return Vec::new() };
    let Some((_, least)) = driver_of(cuda).filter(|(_, least)| have < *least) else { return Vec::new() };
    let message = format!(
        "an image with CUDA {}.{} needs driver {least} or later, and this one is {have}: CUDA driver version is insufficient for CUDA runtime version",
        cuda.0, cuda.1
    );
    let finding = Finding::fails(Phase::Init, Kind::UnsupportedArch, "driver_supports_toolkit", message)
        .fix(Fix::words(format!("driver {least}")))
        .fix(Fix::words(format!("an image of an earlier CUDA than {}.{}", cuda.0, cuda.1)));
    // NVIDIA's compatibility package, which images carry, serves data-centre and workstation cards.
    let gpu = launch.hardware.gpu.to_lowercase();
    let consumer = ["rtx 50", "rtx 40", "rtx 30", "5090", "4090", "3090", "geforce"].iter().any(|w| gpu.contains(w));
    let finding =
        if consumer { finding } else { finding.outcome(Outcome::Note).because("images carry a compatibility package for such cards") };
    vec![finding]
}

/// Backends whose kernels are built for one architecture alone: for SM100, and for SM120.
const SM100A: &[&str] = &[
    "deep_gemm",
    "flashinfer_trtllm",
    "flashinfer_cutedsl",
    "trtllm_mla",
    "trtllm_mha",
    "flashinfer_mla",
    "cutlass_mla",
    "flashinfer_mxfp4",
];
const SM120A: &[&str] = &["flashinfer_cutlass", "cutlass", "b12x", "flashinfer_b12x", "b12x_mla_sparse"];

/// No toolkit before 12.8 has code for Blackwell, and none before 12.9 for SM103 and SM121, on which architecture-specific kernels of their
/// relatives do not run.
fn knows(launch: &Launch<'_>) -> Vec<Finding> {
    let (sm, Some(cuda)) = (launch.sm(), launch.hardware.cuda) else { return Vec::new() };
    if (100..=121).contains(&sm) && cuda < (12, 8) {
        let message = format!("an engine built with CUDA {}.{} has no kernels for SM{sm} (no kernel image is available)", cuda.0, cuda.1);
        return vec![
            unsupported(Phase::Init, "toolkit_knows_architecture", message).fix(Fix::words("an image built with CUDA 12.9 or 13")),
        ];
    }
    let narrow = match sm {
        103 => SM100A,
        121 => SM120A,
        _ => return Vec::new(),
    };
    let s = launch.settings;
    let names = [s.moe_backend.to_lowercase(), s.attention_backend.to_lowercase()];
    // On SM121 only FP4 goes through the narrow kernels.
    let fp4 = sm != 121 || launch.expert_scheme(&["nvfp4"]) && !launch.model.weights.weight_only;
    let Some(name) = names.iter().find(|n| narrow.contains(&n.as_str())).filter(|_| cuda < (12, 9) && fp4) else { return Vec::new() };
    let message = format!(
        "the kernels of {name} are built for {} alone in an engine with CUDA {}.{}, and they do not run on SM{sm}: 12.9 is the first toolkit that compiles for it",
        if sm == 103 { "sm_100a" } else { "sm_120a" },
        cuda.0,
        cuda.1
    );
    vec![unsupported(Phase::Warmup, "toolkit_knows_architecture", message).fix(Fix::words("an image built with CUDA 12.9 or 13"))]
}

fn compiles(launch: &Launch<'_>) -> Vec<Finding> {
    let Some((cuda, needs)) = launch.hardware.cuda.zip(first(launch.sm())).filter(|(cuda, needs)| cuda < needs) else { return Vec::new() };
    // A driver reports the newest toolkit it supports, not the one the engine was built with: only a note.
    let message = format!(
        "CUDA {}.{} cannot compile for SM{}: {}.{} or later is needed for kernels built at start-up",
        cuda.0,
        cuda.1,
        launch.sm(),
        needs.0,
        needs.1
    );
    vec![unsupported(Phase::Warmup, "flashinfer_cuda_supports_architecture", message).outcome(Outcome::Note)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every architecture of the table of GPUs has exactly one line for each toolkit of today.
    #[test]
    fn every_architecture_has_a_line() {
        for gpu in crate::hardware::GPUS {
            for cuda in [(12, 4), (12, 8), (12, 9), (13, 0)] {
                let lines = differences(gpu.sm, cuda, Some("570.124"));
                assert_eq!(lines.len(), 2, "SM{} {cuda:?}: {lines:?}", gpu.sm);
            }
        }
        assert!(differences(121, (12, 8), None)[0].contains("sm_121a"));
        assert_ne!(differences(103, (12, 8), None), differences(103, (13, 0), None));
        assert!(differences(120, (13, 0), Some("570.124"))[1].contains("too old"));
    }
}
