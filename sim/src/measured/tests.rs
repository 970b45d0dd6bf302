use super::*;
use crate::exec::samples::{CAPTURED, Line, compute, program, reduce, run};
use crate::time::Duration;
use crate::trace::chrome_trace;
use serde_json::json;

const GROUPS: &[&[u32]] = &[&[0, 1]];

fn ranks() -> [Vec<Line>; 2] {
    [vec![compute(1, 5_000_000), reduce(0, 20_000_000, 0)], vec![compute(0, 9_000_000), reduce(0, 20_000_000, 0)]]
}

fn predicted() -> Trace {
    let trace = run(&ranks(), GROUPS, CAPTURED, 1).unwrap();
    read(&chrome_trace(&program(&ranks(), GROUPS).0, &trace)).unwrap()
}

/// Commands that take so many microseconds on each rank, twice.
fn measured_text(us: [[u64; 2]; 2], captured_us: u64) -> String {
    let times = |us: u64| (vec![Duration::from_us(us); 2], false);
    let rank = |rank: u32| MeasuredRank {
        rank,
        captured: vec![Duration::from_us(captured_us); 3],
        eager: vec![Duration::from_us(4 * captured_us)],
        commands: us[rank as usize].map(times).to_vec(),
    };
    measured_trace(&program(&ranks(), GROUPS).0, &[rank(0), rank(1)], &json!({"model": "test"}))
}

#[test]
fn both_kinds_of_our_traces_are_read_alike() {
    let ours = predicted();
    assert_eq!((ours.origin, ours.captured, ours.steps, ours.intervals.len()), (Origin::Simulated, true, 1, 4));
    let text = measured_text([[5, 24], [9, 20]], 30);
    let theirs = read(&text).unwrap();
    assert_eq!(text, measured_text([[5, 24], [9, 20]], 30));
    assert_eq!((theirs.origin, theirs.step_ps, theirs.eager_ps), (Origin::Measured, 30_000_000, Some(120_000_000)));
    assert_eq!(theirs.conditions, json!({"model": "test"}));
    let key = |t: &Trace| {
        let mut all: Vec<_> = t.intervals.iter().map(|i| (i.rank, i.stream, i.command.clone(), i.name.clone(), i.class)).collect();
        all.sort();
        all
    };
    assert_eq!(key(&ours), key(&theirs));
    // Rank 1 came last: what rank 0 takes longer is waiting.
    let waits = |rank: u32| theirs.intervals.iter().find(|i| i.rank == rank && i.name == "all_reduce").unwrap().arrival_ps;
    assert_eq!((waits(0), waits(1)), (Some(4_000_000), Some(0)));
}

#[test]
fn what_is_as_predicted_is_off_by_nothing() {
    let found = compare(&predicted(), &read(&measured_text([[5, 24], [9, 20]], 30)).unwrap());
    assert_eq!(found.rows.len(), 4);
    assert!(found.rows.iter().all(|r| (r.predicted_us - r.measured_us).abs() < 1e-9), "{:?}", found.rows);
    assert_eq!(found.unmatched, (0, 0));
    assert!((found.classes.iter().map(|c| c.share).sum::<f64>() - 1.0).abs() < 1e-9);
    assert!(found.findings.iter().all(|f| !f.contains("measured,")), "{:?}", found.findings);
    // What it is launched in is said however well it is met.
    assert!(found.findings[0].starts_with("capture gain: "), "{:?}", found.findings);
}

#[test]
fn commands_take_together_what_the_captured_step_takes() {
    // One by one rank 1's commands take 29 us, the step 25: two are taken off each, and what was measured stays beside it.
    let trace = read(&measured_text([[5, 20], [9, 20]], 25)).unwrap();
    let of = |name: &str| trace.intervals.iter().find(|i| i.rank == 1 && i.name == name).unwrap().duration_ps;
    assert_eq!((of("add"), of("all_reduce"), trace.alone_ps), (7_000_000, 18_000_000, Some(29_000_000)));
    // Rank 0 has less on its first stream than the step takes, so nothing is taken off.
    assert!(trace.intervals.iter().any(|i| i.rank == 0 && i.duration_ps == 20_000_000));
}

#[test]
fn the_worst_come_first_and_what_they_are_is_said() {
    let found = compare(&predicted(), &read(&measured_text([[5, 80], [9, 70]], 89)).unwrap());
    assert_eq!((found.rows[0].op.as_str(), found.rows[0].measured_us), ("all_reduce", 70.0));
    assert_eq!(found.worst[0], found.rows[0].command);
    let said = found.findings.join("\n");
    assert!(
        said.contains("all reduce: 70.0 us measured, 20.0 predicted") && said.contains("collective skew, all reduce: 5.0 us"),
        "{said}"
    );
    assert!((found.step.measured_ms - 0.089).abs() < 1e-12);
    // The step is longer than its commands are.
    let found = compare(&predicted(), &read(&measured_text([[5, 24], [9, 20]], 90)).unwrap());
    assert!(found.findings.iter().any(|f| f.starts_with("gaps: ")), "{:?}", found.findings);
}

#[test]
fn what_is_no_trace_says_so() {
    for (text, words) in [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "of no known kind; accepted: a trace of moetwin"),
        (r#"{"traceEvents": []}"#, "of no known kind"),
        (r#"{"traceEvents": [], "otherData": {"origin": "guess", "total_us": 1}}"#, "otherData.origin"),
        (r#"{"traceEvents": [], "otherData": {"origin": "sim"}}"#, "otherData.total_us"),
        (
            r#"{"traceEvents": [{"ph": "X", "name": "add", "cat": "elementwise", "args": {"command": "n0/r0"}}], "otherData": {"origin": "sim", "total_us": "1.0"}}"#,
            "traceEvents[0]",
        ),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}
