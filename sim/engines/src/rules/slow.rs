//! Launches that serve on a known bad path.

use super::peers::custom_all_reduce;
use super::{Launch, Rule};
use crate::finding::{Finding, Fix, Kind, Outcome, Phase};
use crate::hardware::Interconnect;
use crate::model::AttentionKind;
use crate::question::Engine;
use crate::version::Range;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "nothing_offloaded_in_vain",
        engine: None,
        range: Range::ALL,
        source: "offloaded weights cross PCIe in every step",
        check: offload,
    },
    Rule {
        name: "fp8_cache_has_a_fast_path",
        engine: Some(Engine::Sglang),
        range: Range::ALL,
        source: "measured: Kimi-K2.5 on 8x RTX PRO 6000, 16 tok/s with an FP8 cache and 90 with BF16",
        check: fp8_cache,
    },
    Rule {
        name: "peer_access_is_used",
        engine: None,
        range: Range::ALL,
        source: "measured: 44 tok/s without P2P, 65 with (8x RTX PRO 6000)",
        check: p2p_off,
    },
    Rule {
        name: "one_shot_all_reduce_is_used",
        engine: None,
        range: Range::ALL,
        source: "measured on 4x RTX PRO 6000 behind a switch: 16 KiB in 7.7 us one-shot, 14.7 us NCCL",
        check: one_shot_off,
    },
    Rule {
        name: "ranks_stay_in_one_island",
        engine: None,
        range: Range::ALL,
        source: "measured on 8x A800 PCIe in two islands: 292 us an all-reduce, 68.6 % of decode",
        check: islands,
    },
    Rule {
        name: "switch_platform_reduces_fast",
        engine: None,
        range: Range::ALL,
        source: "measured: 12 to 16 ms of waiting a step on PEX890xx switch platforms",
        check: switches,
    },
    Rule {
        name: "small_models_run_as_replicas",
        engine: None,
        range: Range::ALL,
        source: "active weights per step against two all-reduces a layer",
        check: replicas,
    },
    Rule {
        name: "all_reduce_stays_on_gpus",
        engine: None,
        range: Range::ALL,
        source: "measured on 16x V100 through the host: 1.1 ms an all-reduce",
        check: through_host,
    },
];

fn degraded(name: &str, message: String) -> Finding {
    Finding::fails(Phase::Serve, Kind::Perf, name, message).outcome(Outcome::Degraded)
}

fn pcie(launch: &Launch<'_>) -> bool {
    launch.hardware.interconnect == Interconnect::Pcie
}

/// GiB of weights on a GPU, roughly: what a rule of thumb needs, not a ledger.
fn weights_gib(launch: &Launch<'_>) -> Option<f64> {
    let bytes = match launch.model.weights.method.as_str() {
        "fp8" | "int8" => 1.03,
        "nvfp4" | "mxfp4" | "int4" | "awq" | "gptq" | "w4afp8" => 0.6,
        _ => 2.0,
    };
    let whole = launch.model.checkpoint_gib.or(launch.model.total_params_b.map(|b| b * 1e9 * bytes / f64::from(1u32 << 30)))?;
    Some(whole / f64::from(launch.settings.tp * launch.settings.pp))
}

fn offload(launch: &Launch<'_>) -> Vec<Finding> {
    let offloaded = launch.settings.cpu_offload_gib;
    let (Some(weights), Some(memory)) = (weights_gib(launch), launch.hardware.memory_gib) else { return Vec::new() };
    if offloaded <= 0.0 || launch.hardware.unified {
        return Vec::new();
    }
    let fits = weights < memory * 0.8;
    let message = format!(
        "--cpu-offload-gb {offloaded} moves {offloaded} GB per GPU over PCIe in every step{}",
        if fits { format!("; the model fits without it ({weights:.0} of {memory:.0} GiB)") } else { String::new() }
    );
    let rate = if launch.sm() >= 100 { 50e9 } else { 25e9 };
    // Experts that no token chose are read as well: the offload unit is a module.
    let step_ms = offloaded * 1e9 / rate * 1e3 / 4.0;
    let finding = degraded("nothing_offloaded_in_vain", message).argument("--cpu-offload-gb").number("step_ms_of_offload", step_ms);
    vec![if fits { finding.fix(Fix::remove("--cpu-offload-gb")) } else { finding }]
}

fn fp8_cache(launch: &Launch<'_>) -> Vec<Finding> {
    let s = launch.settings;
    let mla = launch.model.attention == AttentionKind::Mla;
    let slow = matches!(s.attention_backend.as_str(), "flashinfer" | "triton") && launch.sm() / 10 == 12;
    if !mla || !slow || !s.kv_dtype.starts_with("fp8") {
        return Vec::new();
    }
    let message = format!(
        "an FP8 cache on SM{} with attention backend {} takes a slow attention path for latent attention, about five times slower than a BF16 cache: the memory it saves is not free",
        launch.sm(),
        s.attention_backend
    );
    let finding = degraded("fp8_cache_has_a_fast_path", message).argument("--kv-cache-dtype").number("slowdown_factor", 90.0 / 16.0);
    vec![finding.fix(Fix::set("--kv-cache-dtype", "auto")).fix(Fix::remove("--kv-cache-dtype"))]
}

fn p2p_off(launch: &Launch<'_>) -> Vec<Finding> {
    let off = launch.settings.env_on("NCCL_P2P_DISABLE");
    if !off || launch.settings.tp < 2 || !pcie(launch) || launch.ranks_per_host() < 2 {
        return Vec::new();
    }
    let message = "NCCL_P2P_DISABLE=1 sends every all-reduce through host memory: about a third of the decode rate on PCIe boards whose peer access works".to_owned();
    // The measured pair, 65 and 44 tokens a second on eight GPUs.
    let finding = degraded("peer_access_is_used", message).number("ratio_p2p_to_no_p2p", 65.0 / 44.0);
    vec![finding.fix(Fix::unset("NCCL_P2P_DISABLE"))]
}

fn one_shot_off(launch: &Launch<'_>) -> Vec<Finding> {
    let s = launch.settings;
    let has_one_shot = ["b12x", "custom", "fork"].iter().any(|w| s.version.says(w));
    if s.custom_all_reduce || !pcie(launch) || !launch.described("p2p_working") || !(2..=4).contains(&s.tp) || !has_one_shot {
        return Vec::new();
    }
    let message = format!(
        "--disable-custom-all-reduce leaves the all-reduces of {} PCIe GPUs to NCCL, although peer access works: one-shot is about twice as fast at the 8 to 64 KiB of a decode step",
        s.tp
    );
    let finding = degraded("one_shot_all_reduce_is_used", message).argument("--disable-custom-all-reduce");
    vec![finding.fix(Fix {
        text: "one-shot all-reduce: remove --disable-custom-all-reduce".to_owned(),
        ..Fix::remove("--disable-custom-all-reduce")
    })]
}

fn islands(launch: &Launch<'_>) -> Vec<Finding> {
    let two = ["two_islands", "islands_of_four", "bridged_by_the_cpu"].iter().any(|w| launch.described(w));
    let tp = launch.settings.tp;
    let island = launch.hardware.count.unwrap_or(8) / 2;
    if !two || !pcie(launch) || tp <= island {
        return Vec::new();
    }
    let message = format!(
        "tensor parallelism over {tp} GPUs spans two PCIe islands: custom all-reduce is off (not fully connected), and every NCCL ring crosses the slow link between the islands several \
         times: the step is dominated by all-reduce"
    );
    let finding = degraded("ranks_stay_in_one_island", message);
    vec![finding.fix(Fix::set(launch.tp_flag(), island)).fix(Fix::words("an all-reduce that reduces inside each island first"))]
}

fn switches(launch: &Launch<'_>) -> Vec<Finding> {
    let platform = launch.hardware.words.iter().any(|w| w.starts_with("pex89"));
    if !platform || launch.settings.tp < 8 {
        return Vec::new();
    }
    let message = format!(
        "on platforms with PEX890xx switches the step of {} ranks is dominated by waiting in all-reduce, not by weights (SMs busy at low power is its signature); the measured latency of this \
         board must be an input for a better figure",
        launch.settings.tp
    );
    vec![degraded("switch_platform_reduces_fast", message).fix(Fix::words("measure: moetwin collective, moetwin calibrate"))]
}

fn replicas(launch: &Launch<'_>) -> Vec<Finding> {
    let (Some(active), Some(weights), Some(memory)) = (launch.model.active_params_b, weights_gib(launch), launch.hardware.memory_gib)
    else {
        return Vec::new();
    };
    let tp = launch.settings.tp;
    if !pcie(launch) || tp < 2 || active > 4.0 || weights * f64::from(tp) > memory * 0.7 || custom_all_reduce(launch) {
        return Vec::new();
    }
    let message = format!(
        "a model with {active} billion active parameters fits one card: {tp} replicas of one GPU serve more than one replica of {tp} over PCIe"
    );
    vec![degraded("small_models_run_as_replicas", message).outcome(Outcome::Note).fix(Fix::set(launch.tp_flag(), 1))]
}

fn through_host(launch: &Launch<'_>) -> Vec<Finding> {
    let host = launch.described("through_the_host") || (launch.sm() > 0 && launch.sm() < 80 && pcie(launch) && launch.settings.tp > 8);
    if !host || launch.settings.tp < 2 {
        return Vec::new();
    }
    let message = format!(
        "every all-reduce of {} ranks goes through host memory, about a millisecond each: a third of a step or more",
        launch.settings.tp
    );
    vec![degraded("all_reduce_stays_on_gpus", message).fix(Fix::words("fewer ranks, or a faster collective"))]
}
