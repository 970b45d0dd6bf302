//! The CSV of `nsys stats`: `cuda_gpu_trace` (a line a kernel) and `cuda_gpu_kern_sum` (a line a name). Notices before the header are skipped.

use super::kineto::unique;
use super::{Content, Kernel, MOST_KERNELS, NameSum, Names, Profile, ProfileError, Source, wrong};

/// Lines before the header that are looked at.
const MOST_NOTICES: usize = 200;

/// Fields of a line; a field in quotes may hold commas and doubled quotes. `None` where a quote does not end.
fn fields(line: &str) -> Option<Vec<String>> {
    let mut out = vec![String::new()];
    let mut letters = line.chars().peekable();
    let mut quoted = false;
    while let Some(c) = letters.next() {
        let field = out.last_mut()?;
        match c {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(String::new()),
            c => field.push(c),
        }
    }
    (!quoted).then_some(out)
}

/// Picoseconds of one unit of a column, from the unit in its header: `Duration (ns)`.
fn unit(header: &str) -> Option<f64> {
    let unit = header.split_once('(')?.1.trim_end_matches(')');
    [("ns", 1e3), ("us", 1e6), ("μs", 1e6), ("ms", 1e9), ("s", 1e12)].into_iter().find(|(name, _)| *name == unit).map(|(_, ps)| ps)
}

/// Where columns are.
struct Header {
    columns: Vec<String>,
}

impl Header {
    fn at(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c == name || c.strip_prefix(name).is_some_and(|rest| rest.starts_with(" (")))
    }
    /// A column of times, and the picoseconds of its unit.
    fn time(&self, name: &str) -> Option<(usize, f64)> {
        let at = self.at(name)?;
        Some((at, unit(&self.columns[at])?))
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
    let text = std::str::from_utf8(bytes).map_err(|e| match e.error_len() {
        None => ProfileError::Truncated(format!("byte {} is the middle of a letter", e.valid_up_to())),
        Some(_) => ProfileError::Unknown("it is neither JSON, SQLite nor text"),
    })?;
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim_start_matches('\u{feff}')));
    for (_, line) in lines.by_ref().take(MOST_NOTICES) {
        let Some(columns) = fields(line) else { continue };
        let header = Header { columns: columns.into_iter().map(|c| c.trim().to_owned()).collect() };
        let Some(name) = header.at("Name") else { continue };
        if let (Some(start), Some(duration)) = (header.time("Start"), header.time("Duration")) {
            return timed(lines, &header, name, start, duration);
        }
        if let (Some(total), Some(count)) = (header.time("Total Time"), header.at("Instances")) {
            return sums(lines, &header, name, total, count);
        }
    }
    Err(ProfileError::Unknown(
        "text without a header of nsys (Start (ns),Duration (ns),...,Name or Time (%),Total Time (ns),Instances,...,Name)",
    ))
}

/// A line's fields, as many as the header has. `None`: the end of the table.
fn row(number: usize, line: &str, header: &Header) -> Result<Option<Vec<String>>, ProfileError> {
    if line.trim().is_empty() {
        return Ok(None);
    }
    let short = || ProfileError::Truncated(format!("line {number} has fewer than the {} fields of the header", header.columns.len()));
    let fields = fields(line).ok_or_else(short)?;
    if fields.len() < header.columns.len() { Err(short()) } else { Ok(Some(fields)) }
}

fn number(number: usize, what: &str, text: &str, scale: f64) -> Result<u64, ProfileError> {
    let value = text.trim().parse::<f64>().ok().map(|v| v * scale).filter(|v| (0.0..1.8e19).contains(v));
    value.map(|v| libm::rint(v) as u64).ok_or_else(|| wrong(format!("line {number}"), format!("{what} is {text:?}, expected a number")))
}

fn timed<'t>(
    lines: impl Iterator<Item = (usize, &'t str)>,
    header: &Header,
    name: usize,
    start: (usize, f64),
    duration: (usize, f64),
) -> Result<Profile, ProfileError> {
    let (device, stream) = (header.at("Device"), header.at("Strm"));
    let (mut names, mut kernels, mut gpus) = (Names::default(), Vec::new(), Vec::new());
    for (at, line) in lines {
        let Some(fields) = row(at, line, header)? else { break };
        if kernels.len() >= MOST_KERNELS {
            return Err(wrong(format!("line {at}"), format!("more than {MOST_KERNELS} kernels")));
        }
        let on = device.map_or("", |d| fields[d].as_str());
        // `NVIDIA H100 80GB HBM3 (0)`
        let (gpu, ordinal) = on.rsplit_once(" (").map_or((on, None), |(gpu, n)| (gpu, n.trim_end_matches(')').parse().ok()));
        if !gpu.is_empty() && gpus.last().is_none_or(|last| last != gpu) {
            gpus.push(gpu.to_owned());
        }
        kernels.push(Kernel {
            name: names.of(&fields[name]),
            device: ordinal.unwrap_or(0),
            stream: stream.and_then(|s| fields[s].trim().parse().ok()).unwrap_or(0),
            start_ps: number(at, "Start", &fields[start.0], start.1)?,
            duration_ps: number(at, "Duration", &fields[duration.0], duration.1)?,
        });
    }
    if kernels.is_empty() {
        return Err(ProfileError::NoKernels("the table has a header and no line"));
    }
    Ok(Profile { source: Source::NsysTrace, gpus: unique(gpus), names: names.list(), content: Content::Timed(kernels) })
}

fn sums<'t>(
    lines: impl Iterator<Item = (usize, &'t str)>,
    header: &Header,
    name: usize,
    total: (usize, f64),
    count: usize,
) -> Result<Profile, ProfileError> {
    let (mut names, mut all) = (Names::default(), Vec::new());
    for (at, line) in lines {
        let Some(fields) = row(at, line, header)? else { break };
        all.push(NameSum {
            name: names.of(&fields[name]),
            count: number(at, "Instances", &fields[count], 1.0)?,
            total_ps: number(at, "Total Time", &fields[total.0], total.1)?,
        });
    }
    if all.is_empty() {
        return Err(ProfileError::NoKernels("the table has a header and no line"));
    }
    Ok(Profile { source: Source::NsysSums, gpus: Vec::new(), names: names.list(), content: Content::Sums(all) })
}
