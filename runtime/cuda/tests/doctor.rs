//! Examining a box through stand-ins for the processes of the checks: some hang, some crash, some are slow; the examination ends in time.

use moetwin_cuda::doctor::topology::PciPlace;
use moetwin_cuda::doctor::{Check, Description, Examination, Finding, GpuDetail, Item, Limits, Line, Measured, Outcome, examine};
use moetwin_cuda::{Search, probe};
use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

/// A description of `count` GPUs.
fn described(count: usize) -> String {
    let gpu = |_| GpuDetail {
        pci: PciPlace::default(),
        l2_bytes: 1,
        shared_bytes: 1,
        clock_mhz: 1,
        memory_bytes_per_s: 1,
        peer_access: vec![true; count],
        native_atomics: vec![false; count],
    };
    let description = Description { probe: probe(&Search::default()), gpus: (0..count).map(gpu).collect() };
    serde_json::to_string(&Line::Described(Box::new(description))).unwrap()
}

/// What a stand-in does at an item.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    Right,
    Hang,
    Crash,
}

/// A shell that says what the process of a check would say.
fn stand_in(check: Check, items: &[Item], act: impl Fn(&Item) -> Act) -> Command {
    let mut script = String::new();
    let say = |script: &mut String, line: &Line| {
        let _ = writeln!(script, "echo '{}'", serde_json::to_string(line).unwrap());
    };
    if check == Check::Describe {
        let _ = writeln!(script, "echo '{}'", described(3));
    }
    for item in items {
        say(&mut script, &Line::Begin(item.clone()));
        script.push_str("echo 'NCCL version 2.28.9 says hello'\n");
        match act(item) {
            Act::Right => {
                let finding = Finding { check, item: item.clone(), outcome: Outcome::Right, measured: Measured::default() };
                say(&mut script, &Line::End(finding));
            }
            Act::Hang => script.push_str("exec sleep 1000\n"),
            Act::Crash => script.push_str("echo 'bus error, core dumped' >&2\nexit 77\n"),
        }
    }
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    command
}

const LIMITS: Limits = Limits { start: Duration::from_millis(400), item: Duration::from_millis(400), whole: Duration::from_secs(30) };

fn outcomes(examination: &Examination, check: Check) -> Vec<(String, Outcome)> {
    examination.findings.iter().filter(|f| f.check == check).map(|f| (f.item.to_string(), f.outcome.clone())).collect()
}

#[test]
fn every_part_of_a_sound_box_is_right() {
    let examination = examine(&|check, items| stand_in(check, items, |_| Act::Right), LIMITS).unwrap();
    assert!(examination.findings.iter().all(|f| f.outcome == Outcome::Right), "{:?}", examination.findings);
    let count = |check| outcomes(&examination, check).len();
    assert_eq!(Check::ALL.map(count), [0, 3, 6, 6, 6, 6, 3, 4]);
    assert_eq!(outcomes(&examination, Check::Nccl)[0].0, "0-1-2");
}

#[test]
fn what_hangs_or_crashes_costs_its_own_part_only() {
    let act = |check: Check, item: &Item| match (check, item.to_string().as_str()) {
        (Check::Store, "0-1" | "2-0") => Act::Hang,
        (Check::Load, "1-0") => Act::Crash,
        (Check::Nccl, "0-1-2") => Act::Hang,
        _ => Act::Right,
    };
    let examination = examine(&|check, items| stand_in(check, items, |item| act(check, item)), LIMITS).unwrap();
    for (check, faults) in [(Check::Copy, 0), (Check::Store, 2), (Check::Load, 1), (Check::Graph, 0), (Check::Nccl, 1)] {
        let all = outcomes(&examination, check);
        assert_eq!(all.iter().filter(|(_, o)| *o != Outcome::Right).count(), faults, "{all:?}");
    }
    assert!(outcomes(&examination, Check::Store).contains(&("2-0".into(), Outcome::Hung)));
    let crashed = outcomes(&examination, Check::Load).into_iter().find(|(item, _)| item == "1-0").unwrap().1;
    assert!(matches!(&crashed, Outcome::Failed(w) if w.contains("77") && w.contains("bus error")), "{crashed:?}");
}

#[test]
fn the_whole_has_a_limit_and_what_is_left_says_so() {
    let limits = Limits { whole: Duration::from_secs(2), ..LIMITS };
    let begin = Instant::now();
    let hang = |check, items: &[Item]| stand_in(check, items, |_| Act::Hang);
    let examination = examine(&hang, limits).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
    assert!(examination.findings.iter().any(|f| f.outcome == Outcome::Hung));
    assert_eq!(examination.findings.last().map(|f| &f.outcome), Some(&Outcome::NotChecked));
    assert_eq!(examination.findings.len(), 3 + 4 * 6 + 3 + 4);
}

#[test]
fn a_driver_that_hangs_is_said_to() {
    let error = examine(&|_, _| Command::new("sh"), LIMITS).unwrap_err();
    assert!(error.contains("describing the GPUs"), "{error}");
    let slow = |_: Check, _: &[Item]| {
        let mut command = Command::new("sleep");
        command.arg("1000");
        command
    };
    let error = examine(&slow, LIMITS).unwrap_err();
    assert!(error.contains("did not describe the GPUs in time"), "{error}");
}
