//! `p2pBandwidthLatencyTest` of the CUDA samples, and matrices laid out like its: GPU by GPU, GB/s or microseconds.

use super::evidence::{Classes, Direction, Evidence, GpuSeen, RateMatrix, Told};
use super::matrix::ClassMatrix;
use super::pci::BusId;
use super::text::{Line, Source, Word};
use super::{Kind, MOST_GPUS, TopologyError, names};
use crate::machine::PathClass;
use std::collections::BTreeMap;

/// Pairs that reach this share of what their slower GPU reaches anywhere are as near as can be told.
const NEAR_PERMILLE: u64 = 930;
/// A copy between GPUs with peer access starts within this time; one through the host takes twice that and more.
const PEER_LATENCY_US: f64 = 5.0;

/// What a matrix holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Rate(Direction),
    Latency,
    /// 1 where peer access is possible.
    Connectivity,
}

/// A matrix as read: labels of rows and columns, values by row.
struct Matrix {
    content: Content,
    peer: Option<bool>,
    line: usize,
    labels: Vec<usize>,
    rows: BTreeMap<usize, Vec<Option<f64>>>,
}

impl Matrix {
    /// Values off the diagonal.
    fn values(&self) -> impl Iterator<Item = (usize, usize, f64)> {
        self.rows.iter().flat_map(|(row, values)| {
            self.labels
                .iter()
                .zip(values)
                .filter(move |(column, _)| *column != row)
                .filter_map(move |(column, value)| Some((*row, *column, (*value)?)))
        })
    }
}

/// The number of `GPU3`, `GPU3:` or `3`.
fn label(word: &str) -> Option<usize> {
    let digits = word.trim_end_matches(':').strip_prefix("GPU").unwrap_or(word.trim_end_matches(':'));
    if digits.is_empty() || digits.len() > 3 || !digits.bytes().all(|b| b.is_ascii_digit()) { None } else { digits.parse().ok() }
}

fn is_decoration(word: &str) -> bool {
    matches!(word, "GPU" | "CPU" | "D\\D" | "D/D" | "Device") || word.ends_with('→')
}

/// Column numbers of a header: `D\D 0 1 2`, `GPU 0 1 2`, `GPU0 GPU1`, `GPU 0 GPU 1`.
fn header(words: &[Word<'_>]) -> Option<Vec<usize>> {
    let first = words.first()?;
    if !is_decoration(first.text) && !first.text.starts_with("GPU") {
        return None;
    }
    let labels: Option<Vec<usize>> = words.iter().filter(|word| !is_decoration(word.text)).map(|word| label(word.text)).collect();
    labels.filter(|labels| labels.len() >= 2 && labels.windows(2).all(|pair| pair[1] == pair[0] + 1))
}

/// A value: a number, or a dash on the diagonal.
fn value(word: &str) -> Option<Option<f64>> {
    match word {
        "-" | "—" | "–" | "N/A" => Some(None),
        _ => word.parse::<f64>().ok().filter(|v| v.is_finite() && (0.0..1e9).contains(v)).map(Some),
    }
}

/// The row's number and its values.
fn row<'w, 'l>(words: &'w [Word<'l>]) -> Option<(usize, &'w [Word<'l>])> {
    match words {
        [first, second, rest @ ..] if first.text == "GPU" => Some((label(second.text)?, rest)),
        [first, rest @ ..] => Some((label(first.text)?, rest)),
        [] => None,
    }
}

/// Reads the matrices of a text: none at all gives nothing.
pub(super) fn read(source: &Source, lines: &[Line]) -> Result<Option<Evidence>, TopologyError> {
    let mut matrices: Vec<Matrix> = Vec::new();
    let mut remarks = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let words = lines[at].words();
        let labels = header(&words).filter(|_| rows_follow(lines, at + 1));
        let Some(labels) = labels else {
            at += 1;
            continue;
        };
        if labels.iter().any(|label| *label >= MOST_GPUS) {
            return Err(source.error(lines[at].number, 1, format!("GPU {}; at most {MOST_GPUS} GPUs are read", labels[labels.len() - 1])));
        }
        let (content, peer) = title(lines, at);
        let mut matrix = Matrix { content, peer, line: lines[at].number, labels, rows: BTreeMap::new() };
        at = fill(source, lines, at + 1, &mut matrix)?;
        check_rows(source, lines, at, &matrix, &mut remarks)?;
        matrices.push(matrix);
    }
    let Some(first) = matrices.first() else { return Ok(None) };
    let mut seen = Evidence::new(Kind::P2pTest, source.place(first.line, 1));
    seen.remarks = remarks;
    let count = gpu_count(source, &matrices)?;
    seen.gpus = (0..count).map(|_| GpuSeen::at(source.place(first.line, 1))).collect();
    device_lines(source, lines, &mut seen)?;
    seen.peer_access = peer_access(source, lines, &matrices);
    collect_rates(source, &matrices, &mut seen);
    seen.hints = comments(source, lines);
    Ok(Some(seen))
}

/// Comment lines, in which people name the machine.
pub(super) fn comments(source: &Source, lines: &[Line]) -> Vec<Told<String>> {
    let is_comment = |line: &&Line| line.text.trim_start().starts_with('#');
    lines.iter().filter(is_comment).take(20).map(|line| Told { value: line.text.clone(), place: source.place(line.number, 1) }).collect()
}

/// Whether a row of numbers stands below a header: the header of `nvidia-smi topo -m` looks the same.
fn rows_follow(lines: &[Line], from: usize) -> bool {
    let next = lines[from..].iter().find(|line| !line.text.trim().is_empty());
    let Some(next) = next else { return false };
    let words = next.words();
    row(&words).is_some_and(|(_, values)| values.first().is_some_and(|word| value(word.text).is_some()))
}

/// What the words above a matrix say of it.
fn title(lines: &[Line], header: usize) -> (Content, Option<bool>) {
    let above = lines[..header]
        .iter()
        .rev()
        .take(4)
        .find(|line| ["atency", "andwidth", "onnectivity", "GB/s", "atrix"].iter().any(|word| line.text.contains(word)));
    let text = above.map_or(String::new(), |line| line.text.to_lowercase());
    let peer = match () {
        () if text.contains("p2p=enabled") => Some(true),
        () if text.contains("p2p=disabled") => Some(false),
        () => None,
    };
    let content = match () {
        () if text.contains("latency") => Content::Latency,
        () if text.contains("connectivity") => Content::Connectivity,
        () if text.contains("bidirectional") => Content::Rate(Direction::Both),
        () => Content::Rate(Direction::One),
    };
    (content, peer)
}

/// Reads rows below a header; the index of the first line that is none.
fn fill(source: &Source, lines: &[Line], from: usize, matrix: &mut Matrix) -> Result<usize, TopologyError> {
    let mut at = from;
    while let Some(line) = lines.get(at) {
        let words = line.words();
        let Some((number, values)) = row(&words) else { break };
        if !matrix.labels.contains(&number) {
            return Err(source.error(
                line.number,
                words[0].column,
                format!(
                    "row {number} has no column; the header (line {}) names {} to {}",
                    matrix.line,
                    matrix.labels[0],
                    matrix.labels[matrix.labels.len() - 1]
                ),
            ));
        }
        if matrix.rows.contains_key(&number) {
            return Err(source.error(line.number, words[0].column, format!("row {number} stands twice")));
        }
        let mut read = Vec::with_capacity(values.len());
        for word in values {
            match value(word.text) {
                Some(value) => read.push(value),
                None => return Err(source.error(line.number, word.column, format!("`{}` is not a number", word.text))),
            }
        }
        if read.len() != matrix.labels.len() {
            let end = line.text.trim_end().chars().count() + 1;
            return Err(source.error(
                line.number,
                end,
                format!("cut off or shifted: row {number} has {} values for {} columns", read.len(), matrix.labels.len()),
            ));
        }
        matrix.rows.insert(number, read);
        at += 1;
    }
    Ok(at)
}

/// A matrix without some of its rows is cut off; only an excerpt of latencies in the middle of a text is let pass.
fn check_rows(source: &Source, lines: &[Line], end: usize, matrix: &Matrix, remarks: &mut Vec<String>) -> Result<(), TopologyError> {
    let missing: Vec<String> = matrix.labels.iter().filter(|label| !matrix.rows.contains_key(label)).map(ToString::to_string).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let at_end = lines[end.min(lines.len())..].iter().all(|line| line.text.trim().is_empty());
    if matrix.content == Content::Latency && !at_end {
        remarks.push(format!("rows {} of a latency matrix are left out ({})", missing.join(", "), source.place(matrix.line, 1)));
        return Ok(());
    }
    let line = lines.get(end).or(lines.last()).map_or(matrix.line, |line| line.number);
    Err(source.error(line, 1, format!("cut off: the matrix at line {} lacks the rows {}", matrix.line, missing.join(", "))))
}

/// All matrices of a text are of one machine: the same GPUs, or others of it.
fn gpu_count(source: &Source, matrices: &[Matrix]) -> Result<usize, TopologyError> {
    let first = &matrices[0];
    for matrix in &matrices[1..] {
        let shared = matrix.labels.iter().any(|label| first.labels.contains(label));
        if shared && matrix.labels != first.labels {
            let message = format!(
                "{} GPUs here, but {} in the matrix at line {}: not one machine",
                matrix.labels.len(),
                first.labels.len(),
                first.line
            );
            return Err(source.error(matrix.line, 1, message));
        }
    }
    Ok(matrices.iter().flat_map(|matrix| &matrix.labels).max().map_or(0, |last| last + 1))
}

/// `Device: 0, NVIDIA GeForce RTX 4090, pciBusID: 1, pciDeviceID: 0, pciDomainID:0`, in hexadecimal.
fn device_lines(source: &Source, lines: &[Line], seen: &mut Evidence) -> Result<(), TopologyError> {
    for line in lines.iter().filter(|line| line.text.trim_start().starts_with("Device: ") && line.text.contains("pciBusID")) {
        let text = line.text.trim_start();
        let field = |key: &str| text.split_once(key).map(|(_, rest)| rest.split(',').next().unwrap_or("").trim());
        let hex = |key: &str| field(key).and_then(|value| u32::from_str_radix(value, 16).ok());
        let index = field("Device: ").and_then(|n| n.parse::<usize>().ok());
        let Some(gpu) = index.and_then(|index| seen.gpus.get_mut(index)) else {
            return Err(source.error(line.number, 1, format!("a device that is in no matrix; the matrices have {} GPUs", seen.gpus.len())));
        };
        let byte = |key: &str| hex(key).and_then(|value| u8::try_from(value).ok());
        gpu.place = source.place(line.number, 1);
        gpu.bus = byte("pciBusID:").zip(byte("pciDeviceID:")).map(|(bus, device)| BusId {
            domain: hex("pciDomainID:").unwrap_or(0),
            bus,
            device,
            function: 0,
        });
        let name = text.split(',').nth(1).unwrap_or("").trim();
        if !name.is_empty() {
            let value = names::gpu_by_words(name).map_or_else(|| name.to_owned(), str::to_owned);
            gpu.model = Some(Told { value, place: gpu.place.clone() });
        }
    }
    Ok(())
}

/// Whether peer access worked: said outright, or shown by latency or by rates that peer access did not change.
fn peer_access(source: &Source, lines: &[Line], matrices: &[Matrix]) -> Option<Told<bool>> {
    let said = |word: &str| lines.iter().find(|line| line.text.contains(word) && line.text.contains("Peer Device")).map(|line| line.number);
    let told = |value: bool, line: usize| Some(Told { value, place: source.place(line, 1) });
    match (said(" CAN Access"), said(" CANNOT Access")) {
        (Some(line), None) => return told(true, line),
        (_, Some(line)) => return told(false, line),
        _ => {}
    }
    if let Some(matrix) = matrices.iter().find(|matrix| matrix.content == Content::Connectivity) {
        return told(matrix.values().all(|(_, _, value)| value > 0.0), matrix.line);
    }
    let latency = |matrix: &&Matrix| matrix.content == Content::Latency && matrix.peer != Some(false) && matrix.values().next().is_some();
    if let Some(matrix) = matrices.iter().find(latency) {
        let values: Vec<f64> = matrix.values().map(|(_, _, value)| value).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        return told(mean < PEER_LATENCY_US, matrix.line);
    }
    let with = |peer: bool, direction: Direction| {
        matrices.iter().find(|matrix| matrix.peer == Some(peer) && matrix.content == Content::Rate(direction))
    };
    [Direction::One, Direction::Both].into_iter().find_map(|direction| {
        let (on, off) = (with(true, direction)?, with(false, direction)?);
        let sum = |matrix: &Matrix| matrix.values().map(|(_, _, value)| value).sum::<f64>();
        // Without peer access the test copies through the host both times.
        told(sum(on) > 1.1 * sum(off), on.line)
    })
}

fn collect_rates(source: &Source, matrices: &[Matrix], seen: &mut Evidence) {
    for matrix in matrices {
        let Content::Rate(direction) = matrix.content else { continue };
        // GB/s to 10^6 bytes per second.
        let rates: BTreeMap<(usize, usize), u64> =
            matrix.values().map(|(from, to, value)| ((from, to), libm::round(value * 1000.0) as u64)).collect();
        seen.rates.push(RateMatrix { place: source.place(matrix.line, 1), direction, peer: matrix.peer, rates });
    }
    let best = seen.rates.iter().filter(|matrix| matrix.peer != Some(false)).max_by_key(|matrix| matrix.direction == Direction::Both);
    if let Some(best) = best {
        seen.guess = clusters(&best.rates, seen.gpus.len());
        if let Some(guess) = &seen.guess {
            let groups: Vec<String> = guess
                .groups(&(0..seen.gpus.len()).collect::<Vec<_>>(), PathClass::Sys)
                .iter()
                .map(|group| format!("{{{}}}", group.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")))
                .collect();
            if groups.len() > 1 {
                seen.remarks.push(format!(
                    "copies among GPUs {} are faster than between these groups ({})",
                    groups.join(" and "),
                    best.place
                ));
            }
        }
    }
}

/// GPUs whose copies are slower between groups than inside them: most likely on different sockets.
fn clusters(rates: &BTreeMap<(usize, usize), u64>, n: usize) -> Option<ClassMatrix> {
    let rate = |a: usize, b: usize| rates.get(&(a, b)).into_iter().chain(rates.get(&(b, a))).min().copied();
    let best = |gpu: usize| (0..n).filter_map(|other| rate(gpu, other)).max().unwrap_or(0);
    let near = |a: usize, b: usize| rate(a, b).is_none_or(|value| value * 1000 >= NEAR_PERMILLE * best(a).min(best(b)));
    let mut group: Vec<usize> = (0..n).collect();
    for a in 0..n {
        for b in a + 1..n {
            if near(a, b) && group[a] != group[b] {
                let (keep, join) = (group[a].min(group[b]), group[a].max(group[b]));
                group.iter_mut().filter(|g| **g == join).for_each(|g| *g = keep);
            }
        }
    }
    let mut matrix = ClassMatrix::open(n);
    for a in 0..n {
        for b in a + 1..n {
            let class = if group[a] == group[b] { PathClass::Node } else { PathClass::Sys };
            matrix.set(a, b, Classes::of(&[class]));
        }
    }
    Some(matrix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Option<Evidence>, TopologyError> {
        read(&Source { label: "p2p".into(), text: text.into() }, &super::super::text::lines(text))
    }

    #[test]
    fn the_samples_output_reads() {
        let text = "\
[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA GeForce RTX 4090, pciBusID: 1, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA GeForce RTX 4090, pciBusID: c1, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1
P2P Connectivity Matrix
     D\\D     0     1
     0\t     1     1
     1\t     1     1
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 916.92  49.78
     1  50.22 920.12
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   1.54   0.45
     1   0.44   1.50
   CPU     0      1
     0   1.54   1.45
     1   1.44   1.50
";
        let seen = read_text(text).expect("reads").expect("matrices");
        assert_eq!(seen.gpus[1].bus.map(|bus| bus.to_string()).as_deref(), Some("0000:c1:00.0"));
        assert_eq!(seen.gpus[0].model.as_ref().map(|m| m.value.as_str()), Some("GeForce RTX 4090"));
        assert_eq!(seen.peer_access.map(|told| told.value), Some(true));
        assert_eq!((seen.rates.len(), seen.rates[0].rates[&(0, 1)]), (1, 49_780));
    }

    #[test]
    fn cut_matrices_say_where() {
        for (text, line, column) in [
            ("D\\D 0 1\n0 1 2\n", 2, 1),
            ("D\\D 0 1\n0 1 2\n1 3\n", 3, 4),
            ("D\\D 0 1\n0 1 2\n1 x 3\n", 3, 3),
            ("D\\D 0 1\n0 1 2\n5 2 3\n", 3, 1),
            ("D\\D 0 1\n0 1 2\n1 2 3\nD\\D 0 1 2\n0 1 2 3\n1 1 2 3\n2 1 2 3\n", 4, 1),
        ] {
            let error = read_text(text).unwrap_err();
            assert_eq!((error.place.line, error.place.column), (line, column), "{text}: {error}");
        }
    }

    #[test]
    fn slower_copies_between_groups_are_two_sockets() {
        let mut rates = BTreeMap::new();
        for a in 0..4 {
            for b in (0..4).filter(|b| *b != a) {
                rates.insert((a, b), if (a < 2) == (b < 2) { 50_000 } else { 41_000 });
            }
        }
        let guess = clusters(&rates, 4).expect("a guess");
        assert_eq!(guess.groups(&[0, 1, 2, 3], PathClass::Sys), [vec![0, 1], vec![2, 3]]);
    }
}
