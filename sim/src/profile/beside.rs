//! A planned step beside a profiled one: which part of it is slow.

use super::{KernelSum, Planned, PlannedClass, StepProfile};
use moetwin_models::OpClass;
use serde::Serialize;

/// A class that is off by less than this share of the step is as planned.
const MET: f64 = 0.02;
/// Where less of a step than this is idle, nothing is said of it.
const IDLE: f64 = 0.05;
/// Classes in which ranks wait for each other.
const EXCHANGES: [OpClass; 4] = [OpClass::AllReduce, OpClass::GatherScatter, OpClass::AllToAll, OpClass::SendRecv];

/// A class, planned and profiled. Microseconds a step and GPU, kernels of all streams added up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BesideRow {
    /// Class, or `copy` or `other`, which no plan has.
    pub class: &'static str,
    /// As planned.
    pub predicted_us: f64,
    /// As profiled.
    pub measured_us: f64,
    /// Measured less predicted.
    pub difference_us: f64,
    /// Kernels planned.
    pub predicted_calls: f64,
    /// Kernels profiled.
    pub measured_calls: f64,
    /// Of an exchange as planned: waiting for other ranks.
    pub predicted_waits_us: f64,
    /// Kernels that take most.
    pub kernels: Vec<KernelSum>,
}

/// The whole step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BesideStep {
    /// Milliseconds as planned.
    pub predicted_ms: f64,
    /// Milliseconds as profiled; of a profile without times, `None`.
    pub measured_ms: Option<f64>,
    /// Predicted over measured, less one.
    pub error: Option<f64>,
    /// Milliseconds in which a kernel runs, as planned.
    pub predicted_busy_ms: f64,
    /// The same as profiled.
    pub measured_busy_ms: Option<f64>,
}

/// A planned step beside a profiled one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// By class, most measured first.
    pub rows: Vec<BesideRow>,
    /// The step.
    pub step: BesideStep,
    /// Classes that are slower than planned, worst first.
    pub worst: Vec<&'static str>,
    /// What the differences say.
    pub findings: Vec<String>,
}

/// Puts one beside the other.
pub fn beside(planned: &Planned, profiled: &StepProfile) -> Beside {
    let mut rows: Vec<BesideRow> = profiled
        .classes
        .iter()
        .map(|m| {
            let p = planned.classes.iter().find(|(class, _)| class.name() == m.class).map(|(_, p)| *p).unwrap_or_default();
            row(m.class, p, m.us, m.calls, m.kernels.clone())
        })
        .collect();
    for (class, p) in &planned.classes {
        if !rows.iter().any(|r| r.class == class.name()) {
            rows.push(row(class.name(), *p, 0.0, 0.0, Vec::new()));
        }
    }
    rows.sort_by(|a, b| b.measured_us.total_cmp(&a.measured_us).then(b.predicted_us.total_cmp(&a.predicted_us)).then(a.class.cmp(b.class)));
    let step = BesideStep {
        predicted_ms: planned.step_us / 1e3,
        measured_ms: profiled.step_us.map(|us| us / 1e3),
        error: profiled.step_us.filter(|us| *us > 0.0).map(|us| planned.step_us / us - 1.0),
        predicted_busy_ms: planned.busy_us / 1e3,
        measured_busy_ms: profiled.busy_us.map(|us| us / 1e3),
    };
    let mut slow: Vec<&BesideRow> = rows.iter().filter(|r| r.difference_us > MET * planned.step_us).collect();
    slow.sort_by(|a, b| b.difference_us.total_cmp(&a.difference_us));
    let worst = slow.iter().map(|r| r.class).collect();
    let findings = findings(&step, &rows, &slow);
    Beside { rows, step, worst, findings }
}

fn row(class: &'static str, p: PlannedClass, us: f64, calls: f64, kernels: Vec<KernelSum>) -> BesideRow {
    BesideRow {
        class,
        predicted_us: p.us,
        measured_us: us,
        difference_us: us - p.us,
        predicted_calls: p.calls,
        measured_calls: calls,
        predicted_waits_us: p.waits_us,
        kernels,
    }
}

fn findings(step: &BesideStep, rows: &[BesideRow], slow: &[&BesideRow]) -> Vec<String> {
    let words = |class: &str| class.replace('_', " ");
    let mut out = Vec::new();
    if let (Some(measured), Some(busy)) = (step.measured_ms, step.measured_busy_ms) {
        let idle = (measured - busy).max(0.0);
        let planned_idle = (step.predicted_ms - step.predicted_busy_ms).max(0.0);
        if idle > IDLE * measured && idle > 1.5 * planned_idle {
            out.push(format!(
                "for {idle:.2} of {measured:.2} ms no kernel runs (predicted {planned_idle:.2}): launches or the host's work between steps, not kernels; \
                 captured graphs and overlapped scheduling shorten it"
            ));
        }
    }
    for r in slow {
        let mut text = format!("{}: {:.2} ms measured, {:.2} predicted", words(r.class), r.measured_us / 1e3, r.predicted_us / 1e3);
        if let Some(kernel) = r.kernels.first() {
            text.push_str(&format!("; most of it {} ({:.2} ms in {:.0} calls)", shortened(&kernel.name), kernel.us / 1e3, kernel.calls));
        }
        if EXCHANGES.iter().any(|c| c.name() == r.class) {
            text.push_str("; a profiler counts waiting for other ranks as part of an exchange");
        }
        out.push(text);
    }
    let fast = rows.iter().filter(|r| r.difference_us < -MET * step.predicted_ms * 1e3);
    for r in fast {
        out.push(if r.measured_us == 0.0 {
            format!(
                "{}: predicted {:.2} ms, and no kernel is known as such; it may be fused with another class",
                words(r.class),
                r.predicted_us / 1e3
            )
        } else {
            format!("{}: {:.2} ms measured, faster than the {:.2} predicted", words(r.class), r.measured_us / 1e3, r.predicted_us / 1e3)
        });
    }
    let total: f64 = rows.iter().map(|r| r.measured_us).sum();
    let unknown: f64 = rows.iter().filter(|r| r.class == "other").map(|r| r.measured_us).sum();
    if unknown > MET * total {
        out.push(format!("{:.0} % of the time of kernels is of names that belong to no class", 100.0 * unknown / total));
    }
    if out.is_empty() {
        out.push("every class takes what was predicted, within 2 % of the step".to_owned());
    }
    out
}

/// A kernel's name without its arguments, and of a bearable length.
pub fn shortened(name: &str) -> String {
    const MOST: usize = 60;
    let name = name.strip_prefix("void ").unwrap_or(name).replace("(anonymous namespace)::", "");
    // CUTLASS has one kernel for everything: its first argument says which.
    let from = name.strip_prefix("cutlass::device_kernel<").map_or(0, |rest| name.len() - rest.len());
    let end = name[from..].find(['<', '(']).map(|at| from + at).filter(|at| *at > 0).unwrap_or(name.len());
    let short: String = name[..end].chars().take(MOST).collect();
    if short.len() < end { format!("{short}...") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::ClassSum;

    fn class(class: &'static str, us: f64, calls: f64) -> ClassSum {
        ClassSum { class, us, calls, kernels: vec![KernelSum { name: format!("void {class}_kernel<int>(x)"), us, calls }] }
    }

    fn profiled(classes: Vec<ClassSum>, step_us: f64, busy_us: f64) -> StepProfile {
        StepProfile { devices: 1, steps: 3, steps_left_out: 0, kernels: 1.0, step_us: Some(step_us), busy_us: Some(busy_us), classes }
    }

    fn plan() -> Planned {
        let of = |us, calls| PlannedClass { us, calls, waits_us: 0.0 };
        let classes = [(OpClass::Experts, of(500.0, 10.0)), (OpClass::AllReduce, of(300.0, 20.0)), (OpClass::Head, of(100.0, 1.0))];
        Planned { classes: classes.into(), step_us: 1000.0, busy_us: 900.0 }
    }

    #[test]
    fn the_slow_part_comes_first() {
        let found = beside(
            &plan(),
            &profiled(vec![class("experts", 800.0, 12.0), class("all_reduce", 330.0, 20.0), class("copy", 5.0, 1.0)], 1600.0, 1140.0),
        );
        assert_eq!(found.worst, ["experts", "all_reduce"]);
        let classes: Vec<&str> = found.rows.iter().map(|r| r.class).collect();
        assert_eq!(classes, ["experts", "all_reduce", "copy", "head"]);
        assert_eq!((found.rows[0].difference_us, found.rows[3].difference_us), (300.0, -100.0));
        assert!((found.step.error.unwrap() - (1.0 / 1.6 - 1.0)).abs() < 1e-12);
        let said = found.findings.join("\n");
        for words in [
            "0.46 of 1.60 ms no kernel runs (predicted 0.10)",
            "experts: 0.80 ms measured, 0.50 predicted; most of it experts_kernel (0.80 ms in 12",
            "all reduce: 0.33",
            "waiting for other ranks",
            "head: predicted 0.10 ms, and no kernel",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }

    #[test]
    fn what_is_as_planned_is_said_to_be() {
        let found = beside(
            &plan(),
            &profiled(vec![class("experts", 505.0, 10.0), class("all_reduce", 300.0, 20.0), class("head", 99.0, 1.0)], 1005.0, 905.0),
        );
        assert!(found.worst.is_empty() && found.findings[0].starts_with("every class"), "{found:?}");
    }

    #[test]
    fn names_are_shortened() {
        assert_eq!(shortened("void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)"), "vllm::rms_norm_kernel");
        assert_eq!(shortened("void at::native::(anonymous namespace)::indexSelect<float, 2>(int)"), "at::native::indexSelect");
        let flash = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<1> > >(x)";
        assert_eq!(shortened(flash), "cutlass::device_kernel<flash::enable_sm90_or_later");
        assert_eq!(shortened("nvjet_tst_64x8_TNT"), "nvjet_tst_64x8_TNT");
        assert_eq!(shortened(&"x".repeat(100)), format!("{}...", "x".repeat(60)));
    }
}
