//! `moetwin compare --trace`: a profile of the user's own engine beside what is predicted.

use super::compare::built_in_with;
use crate::args::{DEFAULT_MACHINE, DEFAULT_MODEL, DeploymentArgs, Speculation};
use crate::error::{Failure, InputError, Outcome};
use crate::output;
use crate::prediction::Served;
use crate::report::profile::{self as report, Assumed, ProfileAnswer};
use crate::resolve;
use crate::scenario::Scenario;
use moetwin::kernels::routing::SampledRouting;
use moetwin::models::Deployment;
use moetwin::sim::exec::simulate;
use moetwin::sim::measured::{self, Origin};
use moetwin::sim::profile::{self, Beside, BesideRow, BesideStep, Planned, Profile, ProfileError};
use moetwin::sim::topology::gpu_by_words;
use moetwin::sim::trace::chrome_trace;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Compares and prints.
pub(crate) fn run(file: &Path, steps: Option<u32>, args: &DeploymentArgs) -> Result<Outcome, Failure> {
    let profile = profile::read(&bytes("--trace", file)?)
        .map_err(|e| Failure::from(InputError::new("--trace", e.to_string()).value(file.to_string_lossy())))?;
    if args.spec.is_some_and(|spec| spec != Speculation::None) {
        let error =
            InputError::new("--spec", "a profile is compared with one pass of the model; of a verification, say how many tokens it checks");
        return Err(error.accepted(["--phase verify:N"]).into());
    }
    let named = match profile.gpus.as_slice() {
        [gpu] if args.machine.is_none() => built_in_with(gpu),
        _ => None,
    };
    let name = args.machine.clone().or(named).unwrap_or_else(|| DEFAULT_MACHINE.to_owned());
    let machine = resolve::machine("--machine", &name)?;
    let model = resolve::model("--model", args.model.as_deref().unwrap_or(DEFAULT_MODEL))?;
    let scenario = Scenario::of(args, machine, model)?;
    let program = scenario.program(&scenario.step)?;
    let routing = SampledRouting::new(scenario.routing.clone(), scenario.seed);
    let trace = simulate(&program, &scenario.machine, &routing, &scenario.options).map_err(|e| Failure::Running(e.to_string()))?;
    let answer = beside("--trace", file, &profile, steps, &scenario, &profile::planned(&program, &trace))?;
    let answer = ProfileAnswer { assumed: assumed(args, &scenario), ..answer };
    if args.json {
        output::answer_json(&report::json(&answer))?;
    } else {
        output::answer(&report::text(&answer))?;
    }
    Ok(Outcome::Yes)
}

/// A file that `flag` names; profiles are longer than other inputs.
fn bytes(flag: &'static str, file: &Path) -> Result<Vec<u8>, Failure> {
    let value = file.to_string_lossy();
    let wrong = |message: String| Failure::from(InputError::new(flag, message).value(value.as_ref()));
    let length = fs::metadata(file).map_err(|e| wrong(e.to_string()))?.len();
    if length > profile::MOST_BYTES as u64 {
        return Err(wrong(ProfileError::TooLong.to_string()));
    }
    fs::read(file).map_err(|e| wrong(e.to_string()))
}

/// A profile beside a plan of the scenario.
pub(crate) fn beside(
    flag: &'static str,
    file: &Path,
    profile: &Profile,
    steps: Option<u32>,
    scenario: &Scenario,
    planned: &Planned,
) -> Result<ProfileAnswer, Failure> {
    let layers = u32::try_from(scenario.model.spec.layers.len()).unwrap_or(u32::MAX) / scenario.deployment.pp.max(1);
    let Some(step) = profile::summarize(profile, steps, layers) else {
        let message = format!(
            "no step is found that repeats: its kernels are to follow each other in the same order at least twice and run the attention of {layers} layers of {}",
            scenario.model.spec.name
        );
        let error = InputError::new(flag, message).value(file.to_string_lossy());
        return Err(error.accepted(["compare --steps N, the forward passes that the whole file holds"]).into());
    };
    let mut warnings = Vec::new();
    for gpu in &profile.gpus {
        let known = gpu_by_words(gpu);
        if known.is_some_and(|known| scenario.machine.models.iter().all(|m| m.name != known)) {
            warnings.push(format!("the profile is of {gpu}, and {} has no such GPU", scenario.machine.name));
        }
    }
    let ranks = scenario.deployment.ranks() as usize;
    if step.devices > ranks {
        warnings.push(format!("the profile has {} GPUs, and {ranks} ranks are predicted", step.devices));
    }
    Ok(ProfileAnswer {
        file: file.display().to_string(),
        said: report::said(profile, &step),
        measured: report::held(profile, &step),
        beside: profile::beside(planned, &step),
        predicted: predicted(scenario),
        assumed: Vec::new(),
        warnings,
    })
}

/// What was predicted for want of a flag. A profile names its GPUs at most, so nothing else follows from it.
fn assumed(args: &DeploymentArgs, scenario: &Scenario) -> Vec<Assumed> {
    let split_is_given = args.splits_experts_or_heads() || args.pp.is_some() || args.replicas.is_some();
    let all = [
        (args.model.is_none(), "model", scenario.model.spec.name.clone(), "--model"),
        (args.machine.is_none(), "machine", scenario.machine.name.clone(), "--machine"),
        (!split_is_given, "split", split(&scenario.deployment), "--tp"),
        (args.engine.is_none(), "engine", scenario.engine.name().to_owned(), "--engine"),
        (args.batch.is_none(), "batch", scenario.step.sequences.len().to_string(), "--batch"),
        (args.context.is_none(), "context", scenario.context.to_string(), "--context"),
    ];
    let open = all.into_iter().filter(|(open, ..)| *open);
    open.map(|(_, what, value, flag)| Assumed { what, value, flag }).collect()
}

/// How a model is split, in words.
fn split(d: &Deployment) -> String {
    let mut words = vec![format!("tp {}", d.tp)];
    for (name, n) in [("pp", d.pp), ("dp-attention", d.dp_attention), ("ep", d.ep), ("dcp", d.dcp), ("replicas", d.replicas)] {
        if n > 1 {
            words.push(format!("{name} {n}"));
        }
    }
    words.join(", ")
}

/// What was predicted, in words.
fn predicted(scenario: &Scenario) -> String {
    format!(
        "{} on {}, {}; {}, batch {}, context {}, graphs {}",
        scenario.model.spec.name,
        scenario.machine.name,
        split(&scenario.deployment),
        scenario.phase_text(),
        scenario.step.sequences.len(),
        scenario.context,
        if scenario.options.graphs { "on" } else { "off" }
    )
}

/// What `--measured` gives a report: a trace of `moetwin run`, or a profile of another engine.
pub(crate) enum Measured {
    /// Ours.
    Own(measured::Trace),
    /// Another engine's.
    Profile(Profile),
}

impl Measured {
    /// Reads the file.
    pub(crate) fn read(flag: &'static str, file: &Path) -> Result<Self, Failure> {
        let value = file.to_string_lossy();
        let wrong = |message: String| Failure::from(InputError::new(flag, message).value(value.as_ref()));
        let bytes = bytes(flag, file)?;
        match profile::read(&bytes) {
            Ok(profile) => Ok(Self::Profile(profile)),
            Err(ProfileError::Ours) => {
                let text = String::from_utf8(bytes).map_err(|e| wrong(e.to_string()))?;
                let trace = measured::read(&text).map_err(|e| wrong(e.to_string()))?;
                if trace.origin != Origin::Measured {
                    return Err(wrong("holds a prediction, not a measurement".to_owned()));
                }
                Ok(Self::Own(trace))
            }
            Err(e) => Err(wrong(format!("{e}; or a trace of moetwin run --trace"))),
        }
    }
    /// Beside a simulated step.
    pub(crate) fn beside(&self, flag: &'static str, file: &Path, scenario: &Scenario, served: &Served) -> Result<ProfileAnswer, Failure> {
        let planned = profile::planned(&served.program, &served.trace);
        let own = match self {
            Self::Profile(profile) => return beside(flag, file, profile, None, scenario, &planned),
            Self::Own(own) => own,
        };
        let defect = |e: measured::TraceError| Failure::Running(format!("a defect of moetwin: {e}"));
        let ours = measured::read(&chrome_trace(&served.program, &served.trace)).map_err(defect)?;
        let found = measured::compare(&ours, own);
        if found.rows.is_empty() {
            let message = "no command of it is in the predicted step: it is of another model, split or batch";
            return Err(InputError::new(flag, message).value(file.to_string_lossy()).into());
        }
        let row = |c: &measured::ClassRow| BesideRow {
            class: c.class,
            predicted_us: c.predicted_us,
            measured_us: c.measured_us,
            difference_us: c.measured_us - c.predicted_us,
            predicted_calls: c.calls,
            measured_calls: c.calls,
            predicted_waits_us: c.waiting_us.0,
            kernels: Vec::new(),
        };
        let step = BesideStep {
            predicted_ms: found.step.predicted_ms,
            measured_ms: Some(found.step.measured_ms),
            error: Some(found.step.error),
            predicted_busy_ms: planned.busy_us / 1e3,
            measured_busy_ms: None,
        };
        let ranks: BTreeSet<u32> = own.intervals.iter().map(|i| i.rank).collect();
        let rows: Vec<BesideRow> = found.classes.iter().map(row).collect();
        let mut slow: Vec<&BesideRow> = rows.iter().filter(|r| r.difference_us > 0.0).collect();
        slow.sort_by(|a, b| b.difference_us.total_cmp(&a.difference_us));
        let worst = slow.iter().map(|r| r.class).collect();
        let said = format!(
            "moetwin run: {} commands of {} ranks, each timed by itself; waiting for other ranks is not in them",
            found.rows.len(),
            ranks.len()
        );
        Ok(ProfileAnswer {
            file: file.display().to_string(),
            said,
            measured: serde_json::json!({"source": "moetwin run", "devices": ranks.len(), "conditions": own.conditions}),
            beside: Beside { worst, rows, step, findings: found.findings },
            predicted: predicted(scenario),
            assumed: Vec::new(),
            warnings: Vec::new(),
        })
    }
}
