//! Scores predicted collective times against tables: `score_collectives MANIFEST.json [--verbose | --fit | --left-out] [FILTER]`.
//!
//! The manifest lists `{file, machine, op, library, launch, ranks, column, args}`; errors are `|predicted - measured| / measured` over
//! 8 KiB to 128 MiB. `--fit` fits each machine to its tables and says which figures moved, `--left-out` predicts each table by a fit to
//! its machine's others and prints what `sim/data/nccl-tests/left-out.txt` holds.

use moetwin_sim::calibrate::{Residual, SIZES, ShippedTable, Table, fit, leave_one_out, render_shipped, residuals, table_errors};
use moetwin_sim::import::nccl_tests::read;
use moetwin_sim::machine::{Machine, find, names};
use serde_json::Value;
use std::io::Write;
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

// The ban on reading arguments is for the simulator, not for programs that drive it.
#[allow(clippy::disallowed_methods)]
fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let manifest = Path::new(args.first().ok_or("usage: score_collectives MANIFEST.json [--verbose | --fit | --left-out] [FILTER]")?);
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let filter = args.iter().skip(1).find(|arg| !arg.starts_with("--")).map_or("", String::as_str);
    let entries: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(manifest)?)?;
    let mut out = std::io::stdout().lock();
    let mut every = Vec::new();
    let mut shipped: Vec<ShippedTable> = Vec::new();
    // `a+b` fits the figures of a to the tables of both.
    let groups: Vec<&str> = if filter.contains('+') { vec![filter] } else { names().collect() };
    for group in groups {
        let (name, members): (&str, Vec<&str>) = (group.split('+').next().unwrap_or(group), group.split('+').collect());
        let filter = if filter.contains('+') { "" } else { filter };
        let mut tables = Vec::new();
        for entry in entries.iter().filter(|entry| members.iter().any(|member| entry["machine"] == *member)) {
            let table = table(manifest, entry)?;
            if table.name.contains(filter) || name.contains(filter) {
                tables.push(table);
            }
        }
        if tables.is_empty() {
            continue;
        }
        let mut machine = find(name).ok_or("a built-in without a constructor")?;
        if has("--left-out") {
            for (table, left_out) in tables.iter().zip(leave_one_out(&machine, &tables)?) {
                let rows = table.rows.iter().filter(|row| SIZES.contains(&row.bytes)).count();
                shipped.push(ShippedTable { machine: name.to_owned(), table: table.name.trim_end().to_owned(), rows, left_out });
            }
            continue;
        }
        if has("--fit") {
            let fitted = fit(&machine, &tables)?;
            machine = fitted.machine;
            writeln!(out, "{name}")?;
            for (figure, factor) in fitted.moved {
                writeln!(out, "  {figure} x {factor:.3}")?;
            }
            describe(&mut out, &machine)?;
        }
        let rows = residuals(&machine, &tables)?;
        for (index, (table, error)) in tables.iter().zip(table_errors(&rows, tables.len())).enumerate() {
            let own: Vec<&Residual> = rows.iter().filter(|row| row.table == index).collect();
            if has("--verbose") {
                verbose(&mut out, &own)?;
            }
            let most = own.iter().map(|row| row.error().abs()).fold(0.0, f64::max);
            writeln!(out, "{:5.1}% max {:5.1}% rows {:3} {name} {}", error * 100.0, most * 100.0, own.len(), table.name)?;
        }
        every.extend(rows.iter().map(|row| row.error().abs()));
    }
    if has("--left-out") {
        write!(out, "{}", render_shipped(&shipped))?;
        return Ok(());
    }
    writeln!(out, "all: mean {:.1}% of {}", every.iter().sum::<f64>() / every.len().max(1) as f64 * 100.0, every.len())?;
    Ok(())
}

/// The fitted figures, as the constructors of the built-in machines write them.
fn describe(out: &mut impl Write, machine: &Machine) -> Result<(), Failure> {
    let figures = &machine.collectives;
    let ns = |time: moetwin_sim::Duration| time.as_ps() / 1000;
    writeln!(out, "  kernel {}", ns(figures.kernel.value))?;
    for (name, ring) in [("nvlink", &figures.nvlink), ("pcie", &figures.pcie), ("host", &figures.host)] {
        writeln!(
            out,
            "  {name}: Ring::new([{}, {}, {}], [{}, {}], [{}, {}, {}, {}], {}),",
            ns(ring.ll_step.value),
            ns(ring.ll_pass.value),
            ring.ll_wire_permille.value,
            ns(ring.ll128_step.value),
            ring.ll128_channel_bytes_per_s.value / 1_000_000_000,
            ns(ring.simple_step.value),
            ns(ring.simple_spread.value),
            ring.simple_bytes_per_s.value as f64 / 1e9,
            ring.simple_slices.value,
            ring.finish_permille.value
        )?;
    }
    if let Some(nvls) = &figures.nvls {
        let rates = (nvls.small_bytes_per_s.value / 1_000_000_000, nvls.bytes_per_s.value / 1_000_000_000);
        let symmetric = (ns(nvls.symmetric_latency.value), nvls.symmetric_bytes_per_s.value / 1_000_000_000);
        let (latency, fill) = (ns(nvls.latency.value), ns(nvls.fill.value));
        writeln!(out, "  nvls: [{latency}, {}, {}, {fill}, {}, {}]", rates.0, rates.1, symmetric.0, symmetric.1)?;
    }
    let point = &figures.point_to_point;
    let times = [ns(point.ll_latency.value), ns(point.simple_latency.value), ns(point.per_peer.value)];
    writeln!(out, "  message: {times:?} {} {}", point.peer_bytes_per_s.value / 1_000_000_000, point.link_permille.value)?;
    let custom = &figures.custom;
    let times = [ns(custom.barrier.value), ns(custom.per_rank.value), custom.link_permille.value, ns(custom.phase.value)];
    writeln!(out, "  custom: {times:?}")?;
    let launch = &machine.launch;
    let hosts = [ns(launch.eager_kernel.value), ns(launch.eager_collective.value), ns(launch.eager_nccl.value)];
    writeln!(out, "  launch: {hosts:?}")?;
    let mut rates: Vec<(String, u64)> =
        machine.links.iter().map(|(_, link)| (link.kind.name(), link.forward.write_bytes_per_s.value)).collect();
    rates.sort();
    rates.dedup();
    writeln!(out, "  {rates:?}")?;
    let mut latencies: Vec<(String, u64)> = machine.links.iter().map(|(_, link)| (link.kind.name(), ns(link.latency.value))).collect();
    latencies.sort();
    latencies.dedup();
    writeln!(out, "  {latencies:?}")?;
    Ok(())
}

fn verbose(out: &mut impl Write, rows: &[&Residual]) -> Result<(), Failure> {
    for row in rows {
        let what = format!("{} {}", row.algorithm, row.protocol);
        let (want, got, error) = (row.measured.as_us(), row.predicted.as_us(), row.error() * 100.0);
        writeln!(out, "  n={} {} {:>9}: measured {want:10.2} predicted {got:10.2} {error:+4.0}% {what}", row.ranks, row.launch, row.bytes)?;
    }
    Ok(())
}

fn table(manifest: &Path, entry: &Value) -> Result<Table, Failure> {
    let text = |key: &str| entry[key].as_str();
    let file = text("file").ok_or("an entry without a file")?;
    let flags: Vec<&str> = entry["args"].as_array().map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default();
    let flag = |name: &str| flags.iter().position(|flag| *flag == name).and_then(|at| flags.get(at + 1)).copied();
    Ok(Table {
        name: [file, text("column").unwrap_or("")].join(" ").trim_end().into(),
        op: text("op").unwrap_or("").parse()?,
        library: text("library").unwrap_or("nccl").parse()?,
        launch: text("launch").map(str::parse).transpose()?,
        ranks: entry["ranks"].as_u64().unwrap_or(8) as usize,
        peer_access: flag("--p2p").map(|value| value == "on"),
        algorithm: flag("--algorithm").map(str::parse).transpose()?,
        protocol: flag("--protocol").map(str::parse).transpose()?,
        nccl_graph: flag("--nccl-graph").map(str::parse).transpose()?.unwrap_or_default(),
        rows: read(&std::fs::read_to_string(manifest.with_file_name(file))?, text("column"))?,
    })
}
