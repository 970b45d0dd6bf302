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
    let times = |us: u64| MeasuredCommand {
        time: Duration::from_us(us),
        spread: (Duration::from_us(us - 1), Duration::from_us(us + 1)),
        samples: 2,
    };
    let rank = |rank: u32| MeasuredRank {
        rank,
        captured: vec![Duration::from_us(captured_us); 3],
        one_stream: vec![Duration::from_us(captured_us + 1); 3],
        scale: 1.0,
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
fn a_prediction_is_compared_without_what_ran_beside_it() {
    let mut ours = predicted();
    let theirs = read(&measured_text([[5, 24], [9, 20]], 30)).unwrap();
    assert_eq!((theirs.commands_ps, theirs.one_stream_ps), (Some(29_000_000), Some(31_000_000)));
    // Something beside it makes rank 1's first command last longer; what it takes by itself is as measured.
    let slowed = ours.intervals.iter_mut().find(|i| i.rank == 1 && i.name == "add").unwrap();
    assert_eq!((slowed.duration_ps, slowed.alone_ps), (9_000_000, Some(9_000_000)));
    slowed.duration_ps = 14_000_000;
    let found = compare(&ours, &theirs);
    assert!(found.rows.iter().all(|r| (r.predicted_us - r.measured_us).abs() < 1e-9), "{:?}", found.rows);
    // Rank 0 waits 9 us for rank 1 in its all-reduce, beside 5 us on its other stream.
    assert!((found.step.predicted_commands_ms - 0.034).abs() < 1e-9, "{:?}", found.step);
    assert!((found.step.commands_ms - 0.029).abs() < 1e-9, "{:?}", found.step);
    assert!(found.findings.iter().any(|f| f.starts_with("side by side: ")), "{:?}", found.findings);
}

#[test]
fn the_median_error_is_that_of_commands() {
    // Of four commands two are met, one is half off, one a quarter.
    let found = compare(&predicted(), &read(&measured_text([[10, 20], [12, 20]], 32)).unwrap());
    let mut errors: Vec<f64> = found.rows.iter().map(|r| (r.predicted_us / r.measured_us - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    assert!((errors[0] - 0.0).abs() < 1e-9 && (errors[3] - 0.5).abs() < 1e-9, "{errors:?}");
    assert_eq!(found.step.median_error, errors[2]);
    // Both ranks' commands are one op: 7 of 11 us, and 20 of 20.
    let ops: Vec<(&str, u64, f64, f64)> = found.ops.iter().map(|o| (o.op.as_str(), o.commands, o.predicted_us, o.measured_us)).collect();
    assert_eq!(ops, [("all_reduce", 2, 20.0, 20.0), ("add", 2, 7.0, 11.0)]);
    assert!((found.step.median_error_of_ops - 4.0 / 11.0).abs() < 1e-9);
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
    // The step on one stream is longer than its commands are.
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
