//! Request traces: when requests came, how long their prompts and answers were.
//!
//! Read are tables with a heading (comma-separated) and lines of JSON objects, with the names that published traces use: our own
//! `arrival_s, prompt_tokens, output_tokens`; Azure's LLM inference traces (`TIMESTAMP, ContextTokens, GeneratedTokens`); Vidur's
//! (`arrived_at, num_prefill_tokens, num_decode_tokens`); Mooncake's (`timestamp` in milliseconds, `input_length, output_length`).

use super::{ImportError, bounded};
use crate::serving::Request;
use crate::time::Time;
use serde_json::Value;

/// Requests that one trace may have.
const MOST_REQUESTS: usize = 1 << 20;
/// The latest arrival: a month.
pub const MOST_SECONDS: f64 = 31.0 * 86_400.0;

/// How a trace writes an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    Seconds,
    Milliseconds,
    /// `2023-11-16 18:15:46.6805900`
    Date,
}

const ARRIVALS: [(&str, Clock); 5] = [
    ("arrival_s", Clock::Seconds),
    ("arrived_at", Clock::Seconds),
    ("arrival_time", Clock::Seconds),
    ("TIMESTAMP", Clock::Date),
    ("timestamp", Clock::Milliseconds),
];
const PROMPTS: [&str; 4] = ["prompt_tokens", "ContextTokens", "num_prefill_tokens", "input_length"];
const OUTPUTS: [&str; 4] = ["output_tokens", "GeneratedTokens", "num_decode_tokens", "output_length"];

/// Reads a trace. The earliest arrival is time zero, and requests come back in the order of arrival.
pub fn read(text: &str) -> Result<Vec<Request>, ImportError> {
    bounded(text)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    let mut rows = if text.trim_start().starts_with('{') { objects(lines)? } else { table(lines)? };
    if rows.is_empty() {
        return Err(ImportError::new(1, 1, "no request; a trace has at least one"));
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let first = rows[0].0;
    let request = |&(at, prompt, output): &(f64, u32, u32)| {
        let picoseconds = (at - first) * 1e12;
        Request { arrival: Time::from_ps(picoseconds as u64), prompt, output }
    };
    if rows.last().is_some_and(|last| last.0 - first > MOST_SECONDS) {
        return Err(ImportError::new(1, 1, "more than a month from the first arrival to the last"));
    }
    Ok(rows.iter().map(request).collect())
}

fn table<'a>(mut lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Vec<(f64, u32, u32)>, ImportError> {
    let (_, heading) = lines.next().ok_or_else(|| ImportError::new(1, 1, "it is empty"))?;
    let names: Vec<&str> = heading.split(',').map(|n| n.trim().trim_matches('"')).collect();
    let arrivals: Vec<&str> = ARRIVALS.iter().map(|(n, _)| *n).collect();
    for (what, wanted) in [("arrivals", &arrivals[..]), ("prompt lengths", &PROMPTS), ("output lengths", &OUTPUTS)] {
        let mut columns = names.iter().enumerate().filter(|(_, n)| wanted.contains(n));
        if let (Some((_, first)), Some((second, name))) = (columns.next(), columns.next()) {
            let column = heading.split(',').take(second).map(|c| c.chars().count() + 1).sum::<usize>() + 1;
            return Err(ImportError::new(1, column, format!("a second column of {what}: {name}, beside {first}; a trace has one")));
        }
    }
    let find = |wanted: &[&str]| names.iter().position(|n| wanted.contains(n));
    let missing = |what: &str, accepted: &[&str]| {
        ImportError::new(1, 1, format!("no column of {what}; its heading would be one of {}", accepted.join(", ")))
    };
    let arrival = ARRIVALS.iter().find_map(|(name, clock)| Some((find(&[name])?, *clock)));
    let (at, clock) = arrival.ok_or_else(|| missing("arrivals", &arrivals))?;
    let prompt = find(&PROMPTS).ok_or_else(|| missing("prompt lengths", &PROMPTS))?;
    let output = find(&OUTPUTS).ok_or_else(|| missing("output lengths", &OUTPUTS))?;
    let mut rows = Vec::new();
    for (index, line) in lines {
        let cells: Vec<&str> = line.split(',').map(|c| c.trim().trim_matches('"')).collect();
        let cell = |i: usize| {
            let message = || ImportError::new(index + 1, 1, format!("{} cells, the heading has {}", cells.len(), names.len()));
            cells.get(i).copied().ok_or_else(message)
        };
        let column = |i: usize| line.split(',').take(i).map(|c| c.chars().count() + 1).sum::<usize>() + 1;
        let wrong = |i: usize, text: &str, what: &str| ImportError::new(index + 1, column(i), format!("{text:?} is no {what}"));
        let tokens = |i: usize| {
            let text = cell(i)?;
            text.parse::<u32>().ok().filter(|n| *n > 0).ok_or_else(|| wrong(i, text, "number of tokens from 1"))
        };
        let text = cell(at)?;
        let seconds = instant(text, clock).ok_or_else(|| wrong(at, text, "time"))?;
        push(&mut rows, index, (seconds, tokens(prompt)?, tokens(output)?))?;
    }
    Ok(rows)
}

fn objects<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Vec<(f64, u32, u32)>, ImportError> {
    let mut rows = Vec::new();
    for (index, line) in lines {
        let wrong = |message: String| ImportError::new(index + 1, 1, message);
        let object: Value =
            serde_json::from_str(line).map_err(|e| ImportError::new(index + 1, e.column().max(1), format!("not a JSON object: {e}")))?;
        let tokens = |names: &[&str]| {
            let found = names.iter().find_map(|n| Some((*n, object.get(*n)?)));
            let (name, value) = found.ok_or_else(|| wrong(format!("none of the fields {}", names.join(", "))))?;
            let number = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
            number.ok_or_else(|| wrong(format!("{name}: {value} is no number of tokens from 1")))
        };
        let found = ARRIVALS.iter().find_map(|(name, clock)| Some((*name, *clock, object.get(*name)?)));
        let accepted: Vec<&str> = ARRIVALS.iter().map(|(n, _)| *n).collect();
        let (name, clock, value) = found.ok_or_else(|| wrong(format!("none of the fields {}", accepted.join(", "))))?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let seconds = instant(&text, clock).ok_or_else(|| wrong(format!("{name}: {value} is no time")))?;
        push(&mut rows, index, (seconds, tokens(&PROMPTS)?, tokens(&OUTPUTS)?))?;
    }
    Ok(rows)
}

fn push(rows: &mut Vec<(f64, u32, u32)>, index: usize, row: (f64, u32, u32)) -> Result<(), ImportError> {
    if rows.len() == MOST_REQUESTS {
        return Err(ImportError::new(index + 1, 1, format!("more than {MOST_REQUESTS} requests")));
    }
    rows.push(row);
    Ok(())
}

/// Seconds since any fixed instant.
fn instant(text: &str, clock: Clock) -> Option<f64> {
    let number = || text.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0);
    match clock {
        Clock::Seconds => number(),
        Clock::Milliseconds => Some(number()? / 1e3),
        Clock::Date => date(text),
    }
}

/// Seconds since the year 0 of a date and a time of day, whose zone is not read: traces do not change it half-way.
fn date(text: &str) -> Option<f64> {
    let (day, time) = text.split_once([' ', 'T'])?;
    let time = time.trim_end_matches('Z').split('+').next()?;
    let mut parts = day.splitn(3, '-').map(|p| p.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let mut parts = time.splitn(3, ':');
    let (hour, minute) = (parts.next()?.parse::<u32>().ok()?, parts.next()?.parse::<u32>().ok()?);
    let second = parts.next()?.parse::<f64>().ok()?;
    let legal = (0..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !legal || hour > 23 || minute > 59 || !(0.0..61.0).contains(&second) {
        return None;
    }
    // Months are counted from March, so that a leap day is a year's last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day - 1;
    Some(days as f64 * 86_400.0 + f64::from(hour * 3600 + minute * 60) + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Vec<(f64, u32, u32)> {
        read(text).unwrap().iter().map(|r| (r.arrival.as_us() / 1e6, r.prompt, r.output)).collect()
    }

    #[test]
    fn published_forms_are_read() {
        assert_eq!(seconds("arrival_s,prompt_tokens,output_tokens\n1.5,10,2\n0.5,20,3\n"), [(0.0, 20, 3), (1.0, 10, 2)]);
        assert_eq!(seconds("\u{feff}arrival_s,prompt_tokens,output_tokens\n0,10,2\n"), [(0.0, 10, 2)]);
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-12-31 23:59:59.5000000,374,44\n2024-01-01 00:00:01.0,396,109\n";
        assert_eq!(seconds(azure), [(0.0, 374, 44), (1.5, 396, 109)]);
        let mooncake = "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46]}\n{\"timestamp\": 30535, \"input_length\": 6472, \"output_length\": 26}\n";
        assert_eq!(seconds(mooncake), [(0.0, 6955, 52), (3.053, 6472, 26)]);
    }

    #[test]
    fn leap_days_count() {
        let day = |text: &str| date(text).unwrap() / 86_400.0;
        assert_eq!(day("2024-03-01 00:00:00") - day("2024-02-28 00:00:00"), 2.0);
        assert_eq!(day("2023-03-01 00:00:00") - day("2023-02-28 00:00:00"), 1.0);
        assert_eq!(day("2026-01-01T00:00:00Z") - day("2025-01-01 00:00:00"), 365.0);
    }

    #[test]
    fn what_is_wrong_is_said_where_it_is() {
        let error = |text: &str| read(text).unwrap_err();
        let e = error("arrival_s,prompt_tokens,output_tokens\n0,10,2\n1, 0,3\n");
        assert_eq!((e.line, e.column), (3, 3));
        assert!(e.message.contains("tokens from 1"), "{e}");
        assert!(error("arrival_s,prompt_tokens\n").message.contains("output_tokens"));
        let e = error("arrival_s,prompt_tokens,output_tokens,prompt_tokens\n0,1,1,1\n");
        assert!((e.line, e.column) == (1, 39) && e.message.contains("a second column of prompt lengths"), "{e}");
        assert!(
            error("arrival_s,prompt_tokens,output_tokens,GeneratedTokens\n0,1,1,1\n")
                .message
                .contains("GeneratedTokens, beside output_tokens")
        );
        assert!(error("").message.contains("empty"));
        assert!(error("arrival_s,prompt_tokens,output_tokens\n").message.contains("no request"));
        assert_eq!(error("arrival_s,prompt_tokens,output_tokens\n0,10\n").line, 2);
        assert_eq!(error("{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 5}\n{\"timestamp\": \n").line, 2);
        assert!(error("{\"timestamp\": -1, \"input_length\": 5, \"output_length\": 5}").message.contains("no time"));
        for wrong in ["2023-13-01 00:00:00", "2023-01-01", "2023-01-01 24:00:00", "x"] {
            assert_eq!(date(wrong), None, "{wrong}");
        }
    }
}
