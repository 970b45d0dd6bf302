//! `moetwin doctor`.

use crate::doctor::{Stamp, machine, report};
use crate::error::{Failure, InputError, Outcome};
use crate::output::{self, NewFile};
use clap::Args;
use moetwin::cuda::doctor::{Check, Examination, Item, Limits, Line, examine, run_check};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Arguments of `moetwin doctor`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin doctor
  moetwin doctor --json --out box.json
  moetwin sim --machine box.json --model kimi-k2.5

Every pair of GPUs is checked by value: copies, a peer kernel's stores and loads, both in a captured graph, flags, and NCCL between two and among \
all. Each check runs in a process of its own that is ended if it hangs. Takes under a minute. Exit code 1 says that a check found a fault.")]
pub(crate) struct DoctorArgs {
    /// Write what was measured as a machine file, for --machine
    #[arg(long, value_name = "FILE", default_value = "moetwin-machine.json")]
    out: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Carry out one check in this process, for the one that watches it
    #[arg(long, value_name = "CHECK", hide = true)]
    check: Option<String>,
    /// The GPUs of the check
    #[arg(long, value_name = "A-B,..", value_delimiter = ',', hide = true)]
    items: Vec<String>,
}

/// Examines the box.
pub(crate) fn run(args: &DoctorArgs) -> Result<Outcome, Failure> {
    if let Some(check) = &args.check {
        return one_check(check, &args.items);
    }
    let file = NewFile::plan("--out", &args.out)?;
    let program = std::env::current_exe().map_err(|e| Failure::Running(format!("this program's own file: {e}")))?;
    output::note("examining; this takes up to a minute");
    let start = |check: Check, items: &[Item]| command(&program, check, items);
    let examination = examine(&start, Limits::default()).map_err(Failure::Running)?;
    let missing = examination.description.probe.missing_for(1);
    if !missing.is_empty() {
        let mut text = "no GPU can be examined here".to_owned();
        for (name, m) in missing {
            text.push_str(&format!("\n  {name}: {}\n    {}", m.why, m.remedy));
        }
        return Err(Failure::Running(text));
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let found = machine(&examination, &Stamp::new(seconds, &examination));
    let found = found.ok_or_else(|| Failure::Running("no GPU was described".to_owned()))?;
    file.commit(found.to_json().as_bytes())?;
    if args.json {
        output::answer_json(&json(&examination, &args.out))?;
    } else {
        output::answer(&format!("{}machine file: {}\n", report(&examination), args.out.display()))?;
    }
    Ok(if examination.findings.iter().any(|f| f.is_fault()) { Outcome::No } else { Outcome::Yes })
}

fn json(examination: &Examination, out: &Path) -> serde_json::Value {
    serde_json::json!({
        "schema": 1,
        "description": examination.description,
        "findings": examination.findings,
        "faults": examination.findings.iter().filter(|f| f.is_fault()).count(),
        "took_s": examination.took.as_secs_f64(),
        "machine_file": out,
    })
}

fn command(program: &Path, check: Check, items: &[Item]) -> Command {
    let mut command = Command::new(program);
    command.args(["doctor", "--check", check.name()]);
    if !items.is_empty() {
        let list: Vec<String> = items.iter().map(ToString::to_string).collect();
        command.args(["--items", &list.join(",")]);
    }
    command
}

fn one_check(check: &str, items: &[String]) -> Result<Outcome, Failure> {
    let kind: Check = check.parse().map_err(|e: String| InputError::new("--check", e).value(check))?;
    let parse = |text: &String| text.parse::<Item>().map_err(|e| Failure::from(InputError::new("--items", e)));
    let items: Vec<Item> = items.iter().map(parse).collect::<Result<_, _>>()?;
    let mut broken = None;
    run_check(kind, &items, &mut |line: &Line| {
        let text = serde_json::to_string(line).map_err(|e| Failure::Running(e.to_string()));
        // Whoever watches has gone when nothing can be written.
        broken = broken.take().or(text.and_then(|t| output::piece(&format!("{t}\n"))).err());
    })
    .map_err(Failure::Running)?;
    broken.map_or(Ok(Outcome::Yes), Err)
}
