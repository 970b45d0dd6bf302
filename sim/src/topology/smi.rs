//! `nvidia-smi topo -m` and `-mp`: a matrix of path classes between GPUs and network adapters.
//!
//! Columns are GPUs and adapters, then `CPU Affinity`, `NUMA Affinity`, `GPU NUMA ID` in versions that have them. Whatever stands around the
//! matrix (prompts, legends, colour, quote marks) is passed over.

use super::evidence::{Classes, Evidence, GpuSeen, Sign, SignKind, Told};
use super::matrix::{ClassMatrix, Misfit};
use super::names::gpu_by_words;
use super::text::{Line, Source, Word};
use super::{Kind, MOST_GPUS, Place, TopologyError};
use crate::machine::{Machine, PathClass};
use crate::network::Network;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Most columns that are devices.
const MOST_DEVICES: usize = 160;
/// Words that a cell may be.
const WORDS: &str = "X, NV1 to NV18, PIX, PXB, PHB, NODE, SYS (SOC in old versions)";

/// What a cell says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Itself,
    NvLink(u8),
    Pcie(PathClass),
}

impl Cell {
    fn name(self) -> String {
        match self {
            Cell::Itself => "X".to_owned(),
            Cell::NvLink(lanes) => format!("NV{lanes}"),
            Cell::Pcie(class) => class.name().to_owned(),
        }
    }
}

fn cell(word: &str) -> Option<Cell> {
    Some(match word {
        "X" => Cell::Itself,
        "PIX" => Cell::Pcie(PathClass::Pix),
        "PXB" => Cell::Pcie(PathClass::Pxb),
        "PHB" => Cell::Pcie(PathClass::Phb),
        "NODE" => Cell::Pcie(PathClass::Node),
        "SYS" | "SOC" => Cell::Pcie(PathClass::Sys),
        _ => {
            let lanes = word.strip_prefix("NV")?.parse().ok()?;
            if !(1..=64).contains(&lanes) {
                return None;
            }
            Cell::NvLink(lanes)
        }
    })
}

/// The number of a `GPU3` label.
fn gpu_label(word: &str) -> Option<u32> {
    word.strip_prefix("GPU").filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

/// A column's or row's header.
struct Row {
    label: String,
    place: Place,
    cells: Vec<(Cell, Place)>,
    /// Behind the cells.
    rest: Vec<(String, usize)>,
}

/// A matrix being read.
struct Table {
    devices: Vec<String>,
    /// `CPU Affinity` and others, in order.
    extras: Vec<&'static str>,
    place: Place,
    rows: Vec<Row>,
}

/// Words without the marks that quoting puts before a line.
fn cells_of(line: &Line) -> Vec<Word<'_>> {
    let mut words = line.words();
    words.retain(|word| !word.text.chars().all(|c| matches!(c, '>' | '|' | '│' | '*' | '`')));
    words
}

/// Reads every matrix in a text: none at all gives nothing.
pub(super) fn read(source: &Source, lines: &[Line]) -> Result<Vec<Evidence>, TopologyError> {
    let mut tables: Vec<Table> = Vec::new();
    let mut open = false;
    let mut names: BTreeMap<usize, Told<String>> = BTreeMap::new();
    for (index, line) in lines.iter().enumerate() {
        let words = cells_of(line);
        let Some(first) = words.first() else { continue };
        if let Some((gpu, name)) = listed(&line.text) {
            names.insert(gpu, Told { value: name, place: source.place(line.number, first.column) });
            continue;
        }
        // The header of one GPU without further columns is known by the row below it.
        let row_below = || lines.get(index + 1).is_some_and(|next| looks_like_cells(&cells_of(next)));
        if words.len() == 1 && gpu_label(first.text) == Some(0) && row_below() {
            tables.push(header(source, line, &words)?);
            open = true;
            continue;
        }
        let Some(second) = words.get(1) else { continue };
        let labels =
            gpu_label(first.text).is_some() || tables.last().is_some_and(|table| open && table.devices.iter().any(|d| d == first.text));
        if gpu_label(first.text) == Some(0) && (gpu_label(second.text).is_some() || is_header(&words)) {
            tables.push(header(source, line, &words)?);
            open = true;
        } else if labels && looks_like_cells(&words) {
            if !open {
                return Err(source.error(
                    line.number,
                    first.column,
                    "a row of `nvidia-smi topo -m` without the header that names its columns",
                ));
            }
            if let Some(table) = tables.last_mut() {
                row(source, line, table, &words)?;
            }
        } else if first.text.starts_with("Legend") || first.text.starts_with("NIC") && second.text.starts_with("Legend") {
            open = false;
        }
    }
    let mut all: Vec<Evidence> = tables.iter().map(|table| evidence(source, table)).collect::<Result<_, _>>()?;
    for seen in &mut all {
        for (index, gpu) in seen.gpus.iter_mut().enumerate() {
            gpu.model = names.get(&index).cloned();
        }
    }
    Ok(all)
}

/// `GPU 0: NVIDIA H100 80GB HBM3 (UUID: ...)` of `nvidia-smi -L`, which people paste above the matrix.
fn listed(line: &str) -> Option<(usize, String)> {
    let (number, rest) = line.trim().strip_prefix("GPU ")?.split_once(": ")?;
    let name = rest.split(" (UUID").next().unwrap_or(rest).trim();
    let model = gpu_by_words(name).map_or_else(|| name.to_owned(), str::to_owned);
    Some((number.parse().ok().filter(|number| *number < MOST_GPUS)?, model)).filter(|_| name.contains(|c: char| c.is_ascii_alphabetic()))
}

/// A header of one GPU: `GPU0  CPU Affinity ...`.
fn is_header(words: &[Word<'_>]) -> bool {
    words.windows(2).any(|pair| matches!((pair[0].text, pair[1].text), ("CPU" | "NUMA", "Affinity"))) && words.iter().all(|w| w.text != "X")
}

/// A row has a class word; prose that starts with a device's name has not.
fn looks_like_cells(words: &[Word<'_>]) -> bool {
    words.get(1).is_some_and(|word| cell(word.text).is_some()) || words.iter().skip(1).any(|word| word.text == "X")
}

fn header(source: &Source, line: &Line, words: &[Word<'_>]) -> Result<Table, TopologyError> {
    let mut devices: Vec<String> = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if matches!(word.text, "CPU" | "NUMA" | "GPU") {
            break;
        }
        if devices.iter().any(|device| device == word.text) {
            return Err(source.error(line.number, word.column, format!("column {} stands twice", word.text)));
        }
        devices.push(word.text.to_owned());
        at += 1;
    }
    let gpus = devices.iter().filter(|device| gpu_label(device).is_some()).count();
    if gpus > MOST_GPUS || devices.len() > MOST_DEVICES {
        return Err(source.error(
            line.number,
            1,
            format!("{gpus} GPUs of {} columns; at most {MOST_GPUS} of {MOST_DEVICES}", devices.len()),
        ));
    }
    let mut extras = Vec::new();
    while let Some(word) = words.get(at) {
        let two = |index: usize| words.get(at + index).map_or("", |w| w.text);
        let (name, width) = match (word.text, two(1), two(2)) {
            ("CPU", "Affinity", _) => ("CPU Affinity", 2),
            ("NUMA", "Affinity", _) => ("NUMA Affinity", 2),
            ("GPU", "NUMA", "ID") => ("GPU NUMA ID", 3),
            _ => {
                return Err(source.error(
                    line.number,
                    word.column,
                    format!("unknown column `{}`; accepted: CPU Affinity, NUMA Affinity, GPU NUMA ID", word.text),
                ));
            }
        };
        extras.push(name);
        at += width;
    }
    Ok(Table { devices, extras, place: source.place(line.number, words[0].column), rows: Vec::new() })
}

fn row(source: &Source, line: &Line, table: &mut Table, words: &[Word<'_>]) -> Result<(), TopologyError> {
    let label = words[0];
    let error = |word: &Word<'_>, message: String| Err(source.error(line.number, word.column, message));
    if !table.devices.iter().any(|device| device == label.text) {
        return error(&label, format!("{} has no column; the header names {}", label.text, table.devices.join(", ")));
    }
    if let Some(earlier) = table.rows.iter().find(|row| row.label == label.text) {
        return error(&label, format!("{} has a row already: {}", label.text, earlier.place));
    }
    let mut cells = Vec::with_capacity(table.devices.len());
    for device in &table.devices {
        let Some(word) = words.get(cells.len() + 1) else {
            let end = line.text.trim_end().chars().count() + 1;
            return Err(source.error(
                line.number,
                end,
                format!("cut off: {} has {} of {} cells; {device} is missing", label.text, cells.len(), table.devices.len()),
            ));
        };
        let Some(found) = cell(word.text) else {
            return error(word, format!("unknown word `{}` for {} and {device}; accepted: {WORDS}", word.text, label.text));
        };
        if (found == Cell::Itself) != (device == label.text) {
            return error(
                word,
                format!("`{}` for {} and {device}: X stands for a device and itself, and only there", word.text, label.text),
            );
        }
        cells.push((found, source.place(line.number, word.column)));
    }
    let rest = words[table.devices.len() + 1..].iter().map(|word| (word.text.to_owned(), word.column)).collect();
    table.rows.push(Row { label: label.text.to_owned(), place: source.place(line.number, label.column), cells, rest });
    Ok(())
}

impl Table {
    fn row(&self, device: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.label == self.devices[device])
    }
    /// The cell of a pair, from whichever row is there.
    fn cell(&self, a: usize, b: usize) -> Option<&(Cell, Place)> {
        self.row(a).map(|row| &row.cells[b]).or_else(|| self.row(b).map(|row| &row.cells[a]))
    }
}

/// The two cells of a pair agree.
fn check_symmetry(table: &Table) -> Result<(), TopologyError> {
    for a in 0..table.devices.len() {
        for b in a + 1..table.devices.len() {
            let (Some(upper), Some(lower)) = (table.row(a), table.row(b)) else { continue };
            let ((one, _), (other, place)) = (&upper.cells[b], &lower.cells[a]);
            if one != other {
                let (a, b) = (&table.devices[a], &table.devices[b]);
                let message = format!(
                    "asymmetric: {b} and {a} are {} here, but {} in the row of {a} ({})",
                    other.name(),
                    one.name(),
                    upper.cells[table.devices.iter().position(|d| d == b).unwrap_or(0)].1
                );
                return Err(TopologyError::new(place.clone(), message));
            }
        }
    }
    Ok(())
}

fn evidence(source: &Source, table: &Table) -> Result<Evidence, TopologyError> {
    let gpus: Vec<usize> = (0..table.devices.len()).filter(|d| gpu_label(&table.devices[*d]).is_some()).collect();
    for &gpu in &gpus {
        if table.row(gpu).is_none() {
            let last = table.rows.last().map_or(&table.place, |row| &row.place);
            let message = format!("cut off: {} has a column ({}) but no row", table.devices[gpu], table.place);
            return Err(TopologyError::new(last.clone(), message));
        }
    }
    check_symmetry(table)?;
    let mut seen = Evidence::new(Kind::SmiTopo, table.place.clone());
    for (index, &gpu) in gpus.iter().enumerate() {
        let row = table.row(gpu).expect("every GPU has a row");
        if gpu_label(&row.label) != u32::try_from(index).ok() {
            seen.remarks.push(format!("{} is taken for GPU {index}: the labels leave gaps ({})", row.label, row.place));
        }
        seen.gpus.push(gpu_seen(source, table, row, &mut seen.hidden)?);
    }
    let classes = complete(table, &gpus)?;
    for (i, &a) in gpus.iter().enumerate() {
        for (j, &b) in gpus.iter().enumerate().skip(i + 1) {
            let Some((cell, place)) = table.cell(a, b) else { continue };
            let pair = seen.pair(i, j);
            if let Cell::NvLink(lanes) = cell {
                pair.nvlink = Some(Told { value: *lanes, place: place.clone() });
            }
            pair.classes = Some(Told { value: classes.get(a, b), place: place.clone() });
        }
    }
    Ok(seen)
}

/// PCIe classes, also of pairs that show NVLink instead, as far as adapters near them tell.
fn complete(table: &Table, gpus: &[usize]) -> Result<ClassMatrix, TopologyError> {
    let n = table.devices.len();
    let mut matrix = ClassMatrix::open(n);
    let mut alone = ClassMatrix::open(n);
    for a in 0..n {
        for b in a + 1..n {
            if let Some((Cell::Pcie(class), _)) = table.cell(a, b) {
                matrix.set(a, b, Classes::of(&[*class]));
                if gpus.contains(&a) && gpus.contains(&b) {
                    alone.set(a, b, Classes::of(&[*class]));
                }
            }
        }
    }
    // Adapters of several functions and ports do not always fit; GPUs must.
    if matrix.tighten().is_ok() {
        return Ok(matrix);
    }
    match alone.tighten() {
        Ok(()) => Ok(alone),
        Err(Misfit(a, b, k)) => {
            let name = |device: usize| table.devices[device].as_str();
            let show = |x: usize, y: usize| table.cell(x, y).map_or("?".to_owned(), |(cell, place)| format!("{} ({place})", cell.name()));
            // The cell to look at is that of the farthest pair, in its first row.
            let class = |pair: &(usize, usize)| match table.cell(pair.0, pair.1) {
                Some((Cell::Pcie(class), _)) => Some(*class),
                _ => None,
            };
            let farthest = [(a, b), (a.min(k), a.max(k)), (b.min(k), b.max(k))].into_iter().max_by_key(class).unwrap_or((a, b));
            let place = table.cell(farthest.0, farthest.1).map_or(&table.place, |(_, place)| place);
            let message = format!(
                "no tree has these three: {} and {} {}, {} and {} {}, {} and {} {}; the two farthest classes of three devices are equal",
                name(a),
                name(b),
                show(a, b),
                name(a),
                name(k),
                show(a, k),
                name(b),
                name(k),
                show(b, k)
            );
            Err(TopologyError::new(place.clone(), message))
        }
    }
}

/// A CPU list such as `0-23,48-71`.
fn is_cpu_list(word: &str) -> bool {
    !word.is_empty() && word.split(',').all(|part| part.split('-').count() <= 2 && part.split('-').all(|n| n.parse::<u32>().is_ok()))
}

fn gpu_seen(source: &Source, table: &Table, row: &Row, hidden: &mut Vec<Sign>) -> Result<GpuSeen, TopologyError> {
    let mut gpu = GpuSeen::at(row.place.clone());
    let line = row.place.line;
    let mut rest = row.rest.iter();
    // Fields may be empty, which white space does not show: a short rest is read from its first field on only if that is one of CPUs.
    let full = row.rest.len() >= table.extras.len();
    let starts = row.rest.first().is_some_and(|(word, _)| is_cpu_list(word) && (word.contains('-') || word.contains(',')));
    if !full && !starts {
        return Ok(gpu);
    }
    for extra in &table.extras {
        let Some((word, column)) = rest.next() else { break };
        let told = |value: u32| Some(Told { value, place: source.place(line, *column) });
        match *extra {
            _ if word == "N/A" => {}
            "CPU Affinity" if is_cpu_list(word) => gpu.cpus = Some(Told { value: word.clone(), place: source.place(line, *column) }),
            "NUMA Affinity" => match word.parse() {
                Ok(node) if node < 4096 => gpu.numa = told(node),
                // `0,2-17` of a superchip: its CPU's node, then those that its GPUs' memory may form.
                _ if is_cpu_list(word) && word.contains(',') => {
                    gpu.numa = word.split([',', '-']).next().and_then(|first| first.parse().ok()).and_then(told);
                }
                _ if is_cpu_list(word) => {
                    let text = format!("{} has no NUMA node of its own but {word} ({})", row.label, source.place(line, *column));
                    hidden.push(Sign::new(SignKind::NoNuma, text));
                }
                _ => return Err(source.error(line, *column, format!("NUMA Affinity `{word}`; accepted: a number, a range, N/A"))),
            },
            "CPU Affinity" => {
                return Err(source.error(line, *column, format!("CPU Affinity `{word}`; accepted: a list such as 0-23,48-71, N/A")));
            }
            _ => {}
        }
    }
    Ok(gpu)
}

/// The matrix that `nvidia-smi topo -m` would print for a machine, its GPUs only; [`super::import`] reads it back to the same classes.
pub fn print(machine: &Machine) -> String {
    let network = Network::new(machine);
    let n = machine.gpu_count();
    let mut out = String::new();
    for gpu in 0..n {
        let _ = write!(out, "\tGPU{gpu}");
    }
    out.push_str("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n");
    for a in 0..n {
        let _ = write!(out, "GPU{a}");
        for b in 0..n {
            let word = match network.class(a, b) {
                _ if a == b => " X ".to_owned(),
                Ok(PathClass::Nvl) => network.nvlink_lanes(a, b).map_or("NVL".to_owned(), |lanes| format!("NV{lanes}")),
                Ok(class) => class.name().to_owned(),
                Err(_) => "?".to_owned(),
            };
            let _ = write!(out, "\t{word}");
        }
        let _ = writeln!(out, "\tN/A\t{}\t\tN/A", machine.gpus[a].numa);
    }
    out
}
