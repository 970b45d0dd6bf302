//! `moetwin compare --trace`: a profile of the user's own engine beside what is predicted.

use crate::args::{DEFAULT_MACHINE, DEFAULT_MODEL, DeploymentArgs, Speculation};
use crate::error::{Failure, InputError, Outcome};
use crate::output;
use crate::report::profile::{self as report, ProfileAnswer};
use crate::resolve;
use crate::scenario::Scenario;
use moetwin::kernels::routing::SampledRouting;
use moetwin::sim::exec::simulate;
use moetwin::sim::machine;
use moetwin::sim::profile::{self, Planned, Profile};
use moetwin::sim::topology::gpu_by_words;
use std::fs;
use std::path::Path;

/// Compares and prints.
pub(crate) fn run(file: &Path, steps: Option<u32>, args: &DeploymentArgs) -> Result<Outcome, Failure> {
    let profile = read("--trace", file)?;
    if args.spec.is_some_and(|spec| spec != Speculation::None) {
        let error =
            InputError::new("--spec", "a profile is compared with one pass of the model; of a verification, say how many tokens it checks");
        return Err(error.accepted(["--phase verify:N"]).into());
    }
    let named = args.machine.is_none().then(|| machine_with(&profile.gpus)).flatten();
    let name = args.machine.clone().or(named).unwrap_or_else(|| DEFAULT_MACHINE.to_owned());
    let machine = resolve::machine("--machine", &name)?;
    let model = resolve::model("--model", args.model.as_deref().unwrap_or(DEFAULT_MODEL))?;
    let scenario = Scenario::of(args, machine, model)?;
    let program = scenario.program(&scenario.step)?;
    let routing = SampledRouting::new(scenario.routing.clone(), scenario.seed);
    let trace = simulate(&program, &scenario.machine, &routing, &scenario.options).map_err(|e| Failure::Running(e.to_string()))?;
    let answer = beside("--trace", file, profile, steps, &scenario, &profile::planned(&program, &trace))?;
    if args.json {
        output::answer_json(&report::json(&answer))?;
    } else {
        output::answer(&report::text(&answer))?;
    }
    Ok(Outcome::Yes)
}

/// Reads a profile that `flag` names.
pub(crate) fn read(flag: &'static str, file: &Path) -> Result<Profile, Failure> {
    let value = file.to_string_lossy();
    let wrong = |message: String| Failure::from(InputError::new(flag, message).value(value.as_ref()));
    let length = fs::metadata(file).map_err(|e| wrong(e.to_string()))?.len();
    if length > profile::MOST_BYTES as u64 {
        return Err(wrong(profile::ProfileError::TooLong.to_string()));
    }
    let bytes = fs::read(file).map_err(|e| wrong(e.to_string()))?;
    profile::read(&bytes).map_err(|e| wrong(e.to_string()))
}

/// A profile beside a plan of the scenario.
pub(crate) fn beside(
    flag: &'static str,
    file: &Path,
    profile: Profile,
    steps: Option<u32>,
    scenario: &Scenario,
    planned: &Planned,
) -> Result<ProfileAnswer, Failure> {
    let layers = u32::try_from(scenario.model.spec.layers.len()).unwrap_or(u32::MAX) / scenario.deployment.pp.max(1);
    let Some(step) = profile::summarize(&profile, steps, layers) else {
        let message = format!(
            "no step is found that repeats: its kernels are to follow each other in the same order at least twice and run the attention of {layers} layers"
        );
        let error = InputError::new(flag, message).value(file.to_string_lossy());
        return Err(error.accepted(["--steps N, the forward passes that the whole file holds"]).into());
    };
    let beside = profile::beside(planned, &step);
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
    let d = &scenario.deployment;
    let mut split = vec![format!("tp {}", d.tp)];
    for (name, n) in [("pp", d.pp), ("dp-attention", d.dp_attention), ("ep", d.ep), ("dcp", d.dcp), ("replicas", d.replicas)] {
        if n > 1 {
            split.push(format!("{name} {n}"));
        }
    }
    let predicted = format!(
        "{} on {}, {}; {}, batch {}, context {}, graphs {}",
        scenario.model.spec.name,
        scenario.machine.name,
        split.join(", "),
        scenario.phase_text(),
        scenario.step.sequences.len(),
        scenario.context,
        if scenario.options.graphs { "on" } else { "off" }
    );
    Ok(ProfileAnswer { file: file.display().to_string(), profile, step, beside, predicted, warnings })
}

/// The built-in machine that has such GPUs, where they are all of one kind.
fn machine_with(gpus: &[String]) -> Option<String> {
    let [gpu] = gpus else { return None };
    let wanted = gpu_by_words(gpu)?;
    let has = |name: &str| machine::find(name).is_some_and(|m| m.models.iter().any(|model| model.name == wanted));
    machine::names().find(|name| has(name)).map(|name| name.to_string())
}
