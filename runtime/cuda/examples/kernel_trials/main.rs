//! Every kernel against the CPU reference on random operands, from poisoned results; deliberately wrong kernels, which the checks must reject;
//! and times of single ops. Runs on the driver's first GPU:
//!
//! `kernel_trials [--seed N] [--cases N] [--only NAME] [--wrong] [--library] [--bench [--sweep]] [--compile ARCHITECTURE]`
//!
//! `kernel_trials --plant NAME --into FOLDER --compile ARCHITECTURE` puts the wrong kernels of a family (`--families` lists them) into a cache:
//! with `MOETWIN_CACHE=FOLDER` any program runs them, and what scores it must notice.

mod bench;
mod build;
mod cases;
mod exchange;
mod planted;
mod routers;

use build::Numbers;
use cases::{By, FAMILIES, Family};
use exchange::EXCHANGES;
use moetwin_cuda::Search;
use moetwin_cuda::exec::compile::{compile_all, compile_changed, plant_changed};
use moetwin_cuda::exec::trial::Trial;
use moetwin_kernels::launch::Tuning;
use moetwin_runtime::builtin;
use std::error::Error;
use std::io::{Write, stdout};
use std::path::Path;

/// Runs cases of a family; the first fault, or the greatest error.
fn cases(trial: &mut Trial, family: &Family, seed: u64, count: u64) -> Result<Result<f64, String>, Box<dyn Error>> {
    let mut worst: f64 = 0.0;
    trial.keep_to_portable(family.by == By::Portable);
    trial.set_tuning(if family.by == By::OneWarp { Tuning::everywhere(1) } else { Tuning::default() });
    for i in 0..count {
        let case = (family.draw)(&mut Numbers::new(seed.wrapping_add(i)));
        match case.check(trial)? {
            Ok(error) => worst = worst.max(error),
            Err(e) => return Ok(Err(format!("seed {}: {e}", seed.wrapping_add(i)))),
        }
    }
    Ok(Ok(worst))
}

/// Runs the exchanges; how many failed.
fn exchange_trials<'a>(
    search: &Search,
    architecture: &str,
    families: impl Iterator<Item = &'a exchange::ExchangeFamily>,
    seed: u64,
    count: u64,
) -> Result<u32, Box<dyn Error>> {
    let cubins = compile_all(search, architecture)?;
    let mut failed = 0;
    let mut say = |name: &str, checked: Result<(), String>| {
        failed += u32::from(checked.is_err());
        let line = checked.map_or_else(|e| format!("WRONG: {e}"), |()| "ok, equal".to_owned());
        writeln!(stdout(), "{name:<34} {count} cases from seed {seed}: {line}")
    };
    for family in families {
        say(family.name, exchange::cases(&cubins, search, family, seed, count)?)?;
        if family.name == "one-shot all-reduce" {
            say("one-shot all-reduce, nobody comes", exchange::nobody_comes(&cubins, search)?)?;
            say("one-shot all-reduce, aborted", exchange::stopped(&cubins, search)?)?;
        }
    }
    Ok(failed)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let given = |name: &str| args.iter().position(|a| a == name);
    let value = |name: &str| given(name).and_then(|i| args.get(i + 1)).map(String::as_str);
    let number = |name: &str, default: u64| value(name).map_or(Ok(default), str::parse::<u64>);
    let (seed, count, only) = (number("--seed", 1)?, number("--cases", 12)?, value("--only"));
    let search = Search::from_environment();
    if given("--families").is_some() {
        planted::changes().try_for_each(|(name, _)| writeln!(stdout(), "{name}"))?;
        return Ok(());
    }
    if let (Some(name), Some(folder), Some(architecture)) = (value("--plant"), value("--into"), value("--compile")) {
        let (_, wrong) =
            planted::changes().find(|(n, _)| *n == name).ok_or_else(|| format!("no family is named {name:?}; see --families"))?;
        plant_changed(&search, architecture, wrong.0, wrong.1, Path::new(folder))?;
        return Ok(());
    }
    if let Some(architecture) = value("--compile") {
        // Fills the cache of CUBINs where there is no GPU.
        compile_all(&search, architecture)?;
        let planted = planted::changes().map(|(_, wrong)| wrong);
        for wrong in FAMILIES.iter().map(|f| f.wrong).chain(EXCHANGES.iter().map(|f| f.wrong)).chain(planted) {
            compile_changed(&search, architecture, wrong.0, wrong.1)?;
        }
        return Ok(());
    }
    let spec = builtin::spec()?;
    let mut trial = Trial::open(&search)?;
    if given("--library").is_some() {
        trial.use_library(&search)?;
    }
    if given("--bench").is_some() {
        return bench::run(&mut trial, &spec, only, given("--sweep").is_some());
    }
    let mut failed = 0;
    let hopper = trial.is_hopper();
    let chosen = || FAMILIES.iter().filter(|f| only.is_none_or(|o| f.name.contains(o)) && (hopper || f.by != By::Hopper));
    for family in chosen() {
        let line = match cases(&mut trial, family, seed, count)? {
            Ok(worst) => format!("ok, greatest error {worst:.1e}"),
            Err(e) => {
                failed += 1;
                format!("WRONG: {e}")
            }
        };
        writeln!(stdout(), "{:<34} {count} cases from seed {seed}: {line}", family.name)?;
        trial.free_all()?;
    }
    if only.is_none() {
        bench::synthetic(&mut trial, &spec, seed)?;
        writeln!(stdout(), "drawn weights                      equal to the host's")?;
    }
    if given("--library").is_some() {
        writeln!(stdout(), "{:<34} {} products by cuBLASLt", "of these", trial.products())?;
    }
    let architecture = trial.architecture().to_owned();
    drop(trial);
    let exchanges = || EXCHANGES.iter().filter(|f| only.is_none_or(|o| f.name.contains(o)));
    failed += exchange_trials(&search, &architecture, exchanges(), seed, count)?;
    if given("--wrong").is_some() {
        for family in chosen() {
            let cubins = compile_changed(&search, &architecture, family.wrong.0, family.wrong.1)?;
            let mut trial = Trial::with(&search, &cubins)?;
            let line = match cases(&mut trial, family, seed, count)? {
                Ok(worst) => {
                    failed += 1;
                    format!("NOT NOTICED, greatest error {worst:.1e}")
                }
                Err(e) => format!("rejected: {e}"),
            };
            writeln!(stdout(), "wrong {:<28} {line}", family.name)?;
        }
        for family in exchanges() {
            let cubins = compile_changed(&search, &architecture, family.wrong.0, family.wrong.1)?;
            let line = match exchange::cases(&cubins, &search, family, seed, count)? {
                Ok(()) => {
                    failed += 1;
                    "NOT NOTICED".to_owned()
                }
                Err(e) => format!("rejected: {e}"),
            };
            writeln!(stdout(), "wrong {:<28} {line}", family.name)?;
        }
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} families failed").into()) }
}
