//! Our own traces, of the simulator and of GPUs.

use super::{Interval, Origin, Trace, TraceError};
use moetwin_models::OpClass;
use serde_json::Value;

pub(super) fn accepts(json: &Value) -> bool {
    json["traceEvents"].is_array() && json["otherData"]["origin"].is_string()
}

fn wrong(place: impl Into<String>, what: impl Into<String>) -> TraceError {
    TraceError::Wrong { place: place.into(), what: what.into() }
}

pub(super) fn read(json: &Value) -> Result<Trace, TraceError> {
    let head = &json["otherData"];
    let origin = match head["origin"].as_str() {
        Some("sim") => Origin::Simulated,
        Some("measured") => Origin::Measured,
        other => return Err(wrong("otherData.origin", format!("{other:?}; accepted: \"sim\", \"measured\""))),
    };
    let steps = head["steps"].as_u64().and_then(|s| u32::try_from(s).ok()).filter(|s| *s > 0).unwrap_or(1);
    let total = picoseconds(&head["total_us"]).ok_or_else(|| wrong("otherData.total_us", "no time in microseconds"))?;
    let mut intervals = Vec::new();
    for (index, event) in json["traceEvents"].as_array().into_iter().flatten().enumerate() {
        let command = &event["args"]["command"];
        let kernel = event["ph"] == "X" && event["cat"] != "launch" && event["cat"] != "wait" && command.is_string();
        if kernel {
            intervals.push(interval(event).ok_or_else(|| wrong(format!("traceEvents[{index}]"), "no pid, tid, ts and dur"))?);
        }
    }
    Ok(Trace {
        origin,
        step_ps: total / u64::from(steps),
        captured: head["captured"].as_bool().unwrap_or(true),
        eager_ps: picoseconds(&head["eager_us"]),
        commands_ps: picoseconds(&head["commands_us"]),
        one_stream_ps: picoseconds(&head["one_stream_us"]),
        steps,
        conditions: head["conditions"].clone(),
        intervals,
    })
}

fn interval(event: &Value) -> Option<Interval> {
    let (args, word) = (&event["args"], |value: &Value| value.as_str().map(str::to_owned));
    let number = |value: &Value| value.as_u64().and_then(|v| u32::try_from(v).ok());
    Some(Interval {
        rank: number(&event["pid"])?,
        // Thread 0 is the host's.
        stream: number(&event["tid"])?.checked_sub(1)?,
        name: word(&event["name"])?,
        class: event["cat"].as_str().and_then(class_named),
        command: word(&args["command"]),
        result: word(&args["result"]),
        step: number(&args["step"]).unwrap_or(0),
        start_ps: picoseconds(&event["ts"])?,
        duration_ps: picoseconds(&event["dur"])?,
        arrival_ps: picoseconds(&args["arrival_us"]),
        alone_ps: picoseconds(&args["alone_us"]),
        memory_ps: picoseconds(&args["memory_us"]),
        from: word(&args["from"]),
    })
}

/// Microseconds, as a number or as text, in picoseconds.
fn picoseconds(value: &Value) -> Option<u64> {
    let us = value.as_f64().or_else(|| value.as_str().and_then(|text| text.parse().ok()))?;
    (us.is_finite() && (0.0..1e12).contains(&us)).then(|| libm::rint(us * 1e6) as u64)
}

fn class_named(name: &str) -> Option<OpClass> {
    OpClass::ALL.into_iter().find(|c| c.name() == name)
}
