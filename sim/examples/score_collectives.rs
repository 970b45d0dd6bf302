//! Scores predicted collective times against tables: `score_collectives MANIFEST.json [--verbose] [FILTER]`.
//!
//! The manifest lists `{file, machine, op, library, launch, ranks, column, args}`; errors are `|predicted - measured| / measured` over
//! 8 KiB to 128 MiB.

use moetwin_sim::Duration;
use moetwin_sim::collective::{CollectiveOp, CollectiveRequest, Collectives, GraphMode, Launch, Library};
use moetwin_sim::import::nccl_tests::{Measurement, read};
use moetwin_sim::machine::find;
use serde_json::Value;
use std::io::Write;
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

// The ban on reading arguments is for the simulator, not for programs that drive it.
#[allow(clippy::disallowed_methods)]
fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let manifest = Path::new(args.first().ok_or("usage: score_collectives MANIFEST.json [--verbose] [FILTER]")?);
    let verbose = args.iter().any(|arg| arg == "--verbose");
    let filter = args.iter().skip(1).find(|arg| *arg != "--verbose");
    let entries: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(manifest)?)?;
    let mut out = std::io::stdout().lock();
    let mut every = Vec::new();
    for entry in &entries {
        let text = |key: &str| entry[key].as_str();
        let name = text("file").ok_or("an entry without a file")?;
        if filter.is_some_and(|filter| !name.contains(filter.as_str()) && !text("machine").unwrap_or("").contains(filter.as_str())) {
            continue;
        }
        let Some(machine) = find(text("machine").unwrap_or("")) else {
            writeln!(out, "{name}: no machine {}", text("machine").unwrap_or(""))?;
            continue;
        };
        let flags: Vec<&str> = entry["args"].as_array().map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default();
        let flag = |name: &str| flags.iter().position(|flag| *flag == name).and_then(|at| flags.get(at + 1)).copied();
        let machine = match flag("--p2p") {
            Some(value) => machine.with_peer_access(value == "on"),
            None => machine,
        };
        let rows = read(&std::fs::read_to_string(manifest.with_file_name(name))?, text("column"))?;
        let mut collectives = Collectives::new(&machine);
        let mut errors = Vec::new();
        for row in rows.iter().filter(|row| (8192..=128 << 20).contains(&row.bytes) && row.time > Duration::ZERO) {
            let request = request(entry, row, flag)?;
            let prediction = collectives.predict(&request)?;
            let (got, want) = (prediction.duration.as_us(), row.time.as_us());
            let error = (got - want) / want;
            errors.push(error.abs());
            if verbose {
                let n = request.ranks.len();
                let what = format!("{} {}", prediction.algorithm, prediction.protocol);
                writeln!(
                    out,
                    "  n={n} {} {:>9}: measured {want:10.2} predicted {got:10.2} {:+4.0}% {what}",
                    request.launch,
                    row.bytes,
                    error * 100.0
                )?;
            }
        }
        let (mean, most) = summary(&errors);
        writeln!(out, "{mean:5.1}% max {most:5.1}% rows {:3} {name} {}", errors.len(), text("column").unwrap_or(""))?;
        every.extend(errors);
    }
    let (mean, most) = summary(&every);
    writeln!(out, "all: mean {mean:.1}% max {most:.1}% rows {}", every.len())?;
    Ok(())
}

fn summary(errors: &[f64]) -> (f64, f64) {
    let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    (mean * 100.0, errors.iter().copied().fold(0.0, f64::max) * 100.0)
}

fn request<'a>(entry: &Value, row: &Measurement, flag: impl Fn(&str) -> Option<&'a str>) -> Result<CollectiveRequest, Failure> {
    let op: CollectiveOp = entry["op"].as_str().unwrap_or("").parse()?;
    let ranks = row.ranks.or_else(|| entry["ranks"].as_u64().map(|ranks| ranks as usize)).ok_or("no rank count")?;
    let mut request = CollectiveRequest::new(op, ranks, row.bytes);
    request.library = entry["library"].as_str().unwrap_or("nccl").parse::<Library>()?;
    request.launch = match entry["launch"].as_str() {
        Some(launch) => launch.parse()?,
        None => row.launch.unwrap_or(Launch::Graph),
    };
    request.algorithm = flag("--algorithm").map(str::parse).transpose()?;
    request.protocol = flag("--protocol").map(str::parse).transpose()?;
    request.nccl_graph = flag("--nccl-graph").map(str::parse::<GraphMode>).transpose()?.unwrap_or_default();
    Ok(request)
}
