//! nccl-tests logs: which devices took part, and how fast the fastest row was. Times are for calibration, not read here.

use super::evidence::{Evidence, GpuSeen, Told};
use super::pci::BusId;
use super::text::{Line, Source, Word};
use super::{Kind, MOST_GPUS, Place, TopologyError, names, p2p};
use crate::machine::PathClass;

/// What PCIe 5.0 x16 carries in one direction, GB/s: a faster bus bandwidth is NVLink's.
const FASTEST_PCIE_GBS: f64 = 63.0;

/// Reads a log: none at all gives nothing.
pub(super) fn read(source: &Source, lines: &[Line]) -> Result<Option<Evidence>, TopologyError> {
    let is_log = |line: &&Line| {
        let text = &line.text;
        let columns = text.contains("busbw") && (text.contains("algbw") || text.contains("time"));
        (text.contains("nThread") && text.contains("nGpus")) || columns || (text.starts_with('#') && text.contains("size_B"))
    };
    let start = lines.iter().find(is_log);
    let Some(start) = start else { return Ok(None) };
    let mut seen = Evidence::new(Kind::NcclTests, source.place(start.number, 1));
    // Ranks may use some of a machine's GPUs.
    seen.all_gpus = false;
    devices(source, lines, &mut seen)?;
    settings(source, lines, &mut seen);
    if seen.gpus.is_empty() {
        let (count, place) = count(source, lines)?;
        seen.gpus = (0..count).map(|_| GpuSeen::at(place.clone())).collect();
    }
    if seen.gpus.len() > MOST_GPUS {
        return Err(TopologyError::new(seen.place, format!("{} ranks; a machine is one box of at most {MOST_GPUS} GPUs", seen.gpus.len())));
    }
    match peak(source, lines) {
        Some((rate, place)) if rate > FASTEST_PCIE_GBS => {
            seen.remarks.push(format!("{rate} GB/s of bus bandwidth is more than PCIe 5.0 x16 carries: NVLink ({place})"));
            seen.nvlink = Some(place);
        }
        Some((rate, place)) => {
            seen.remarks.push(format!("the fastest row has {rate} GB/s of bus bandwidth, as over PCIe or host memory ({place})"))
        }
        None if has_rows(lines, start.number) => {}
        None => return Err(TopologyError::new(seen.place, "a log without a row of times: it is cut off")),
    }
    seen.hints = p2p::comments(source, lines);
    Ok(Some(seen))
}

/// `#  Rank  0 Group  0 Pid 1 on host device  0 [0x01] NVIDIA GeForce RTX 4090`.
fn devices(source: &Source, lines: &[Line], seen: &mut Evidence) -> Result<(), TopologyError> {
    for line in lines {
        let words = line.words();
        let at = |text: &str| words.iter().position(|word| word.text == text);
        let (Some(_), Some(device)) = (at("Rank"), at("device")) else { continue };
        let place = source.place(line.number, words[0].column);
        let mut gpu = GpuSeen::at(place.clone());
        gpu.bus = words.get(device + 2).and_then(|word| address(word.text));
        let name: Vec<&str> = words[(device + 3).min(words.len())..].iter().map(|word| word.text).collect();
        let name = name.join(" ");
        if !name.is_empty() {
            let value = names::gpu_by_words(&name).map_or(name, str::to_owned);
            gpu.model = Some(Told { value, place: place.clone() });
        }
        let twice = gpu.bus.and_then(|bus| seen.gpus.iter().find(|other| other.bus == Some(bus)));
        if let Some(other) = twice {
            let message = format!(
                "this rank's device has the address of that at {}: ranks of several hosts, or two on one GPU; a machine is one box",
                other.place
            );
            return Err(TopologyError::new(place, message));
        }
        seen.gpus.push(gpu);
    }
    Ok(())
}

/// `[0x01]` in old versions, `[0000:01:00]` in new ones.
fn address(word: &str) -> Option<BusId> {
    let inner = word.strip_prefix('[')?.strip_suffix(']')?;
    match inner.strip_prefix("0x") {
        Some(hex) => Some(BusId { domain: 0, bus: u8::from_str_radix(hex, 16).ok()?, device: 0, function: 0 }),
        None => BusId::parse(inner),
    }
}

/// Environment variables on the command line, and the transports that NCCL reports.
fn settings(source: &Source, lines: &[Line], seen: &mut Evidence) {
    for line in lines {
        let place = || source.place(line.number, 1);
        if let Some((_, rest)) = line.text.split_once("NCCL_P2P_LEVEL=") {
            let word: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
            let level = PathClass::ALL.into_iter().find(|class| class.name() == word).or((word == "PXN").then_some(PathClass::Phb));
            seen.p2p_level = seen.p2p_level.take().or(level.map(|value| Told { value, place: place() }));
        }
        let off = line.text.contains("NCCL_P2P_DISABLE=1") || line.text.contains("via SHM/direct");
        let on = line.text.contains("via P2P/");
        if (on || off) && seen.peer_access.is_none() {
            seen.peer_access = Some(Told { value: on, place: place() });
        }
    }
}

/// The number after a word, as in `nGpus 8` or `-g 8`.
fn after(words: &[Word<'_>], key: &str) -> Option<usize> {
    let at = words.iter().position(|word| word.text == key)?;
    words.get(at + 1)?.text.parse().ok()
}

/// How many GPUs a log without a device list ran on.
fn count(source: &Source, lines: &[Line]) -> Result<(usize, Place), TopologyError> {
    for line in lines.iter().filter(|line| line.text.contains(" nodes")) {
        let words = line.words();
        let nodes = words.windows(2).find(|pair| pair[1].text.starts_with("nodes")).and_then(|pair| pair[0].text.parse::<usize>().ok());
        if let Some(nodes) = nodes.filter(|nodes| *nodes > 1) {
            return Err(source.error(line.number, 1, format!("ranks on {nodes} nodes; a machine is one box")));
        }
    }
    let rows = compact_rows(lines).map(|(ranks, line)| (ranks, source.place(line, 1)));
    if let Some(most) = rows.max_by_key(|(ranks, place)| (*ranks, std::cmp::Reverse(place.line))) {
        return Ok(most);
    }
    for line in lines.iter().filter(|line| line.text.trim_start().starts_with('#')) {
        let words = line.words();
        let product = |gpus: &str, threads: &str| after(&words, gpus).map(|n| n.saturating_mul(after(&words, threads).unwrap_or(1)));
        let ranks = words
            .windows(2)
            .find(|pair| pair[1].text.starts_with("ranks"))
            .and_then(|pair| pair[0].text.trim_start_matches('(').parse().ok());
        let gpus = words.windows(2).find(|pair| pair[1].text == "GPUs").and_then(|pair| pair[0].text.parse().ok());
        let found = ranks.or(gpus).or(product("nGpus", "nThread")).or(product("-g", "-t")).filter(|n: &usize| *n > 1).or(times(&words));
        if let Some(found) = found {
            return Ok((found, source.place(line.number, 1)));
        }
    }
    Err(source.error(1, 1, "how many GPUs the log is of is not in it: neither a device list, nor -g, nor a column of ranks"))
}

/// `8x` or `8` before `x` in a comment.
fn times(words: &[Word<'_>]) -> Option<usize> {
    words.iter().find_map(|word| word.text.strip_suffix('x').and_then(|n| n.parse().ok()).filter(|n| (1..=MOST_GPUS).contains(n)))
}

/// The first column of rows below a header whose first word is `gpus`, with their lines.
fn compact_rows(lines: &[Line]) -> impl Iterator<Item = (usize, usize)> {
    let is_header = |line: &&Line| line.text.trim_start_matches(['#', ' ']).starts_with("gpus") && line.text.contains("busbw");
    let from = lines.iter().find(is_header).map_or(usize::MAX, |line| line.number);
    let row = |line: &Line| {
        let words = line.words();
        let ranks = words.first()?.text.parse().ok()?;
        (words.len() >= 5).then_some((ranks, line.number))
    };
    lines.iter().filter(move |line| line.number > from).filter_map(row)
}

/// Whether a text has rows of times at all.
fn has_rows(lines: &[Line], start: usize) -> bool {
    lines.iter().filter(|line| line.number > start).any(|line| {
        let words = line.words();
        words.len() >= 2 && words.iter().take(2).all(|word| word.text.parse::<f64>().is_ok())
    })
}

/// The highest bus bandwidth of a row, in GB/s.
fn peak(source: &Source, lines: &[Line]) -> Option<(f64, Place)> {
    let mut best: Option<(f64, Place)> = None;
    // Below a header of a compact table that ends with it, the last column is the bus bandwidth.
    let mut compact = false;
    for line in lines {
        let words = line.words();
        let numeric = |index: usize| words.get(index).is_some_and(|word| word.text.parse::<f64>().is_ok());
        let last = words.last().map_or("", |word| word.text);
        if line.text.starts_with('#') {
            compact = last.starts_with("busbw") && (line.text.contains("gpus") || line.text.contains("size_B"));
            continue;
        }
        // nccl-tests: size count type redop root time algbw busbw ...
        let full =
            words.len() >= 9 && numeric(0) && numeric(1) && words[2].text.starts_with(|c: char| c.is_ascii_alphabetic()) && numeric(5);
        compact &= numeric(0);
        let column = match () {
            () if full => 7,
            () if compact && words.len() >= 3 => words.len() - 1,
            () => continue,
        };
        let rate = words.get(column).and_then(|word| word.text.parse::<f64>().ok()).filter(|rate| rate.is_finite());
        if let Some(rate) = rate
            && best.as_ref().is_none_or(|(most, _)| rate > *most)
        {
            best = Some((rate, source.place(line.number, words[column].column)));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Option<Evidence>, TopologyError> {
        read(&Source { label: "log".into(), text: text.into() }, &super::super::text::lines(text))
    }

    const ROW: &str = "  1024  256  float  sum  -1  18.46  0.06  445.2  0  18.56  0.06  0.08  0\n";

    #[test]
    fn devices_settings_and_the_fastest_row_are_read() {
        let text = format!(
            "# nThread 1 nGpus 2 minBytes 8\n#  Rank  0 Pid 1 on host device  0 [0x01] NVIDIA H100 80GB HBM3\n#  Rank  1 Pid 1 on host device  1 [0000:41:00] NVIDIA H100 80GB HBM3\nNCCL_P2P_LEVEL=SYS\n{ROW}"
        );
        let seen = read_text(&text).expect("reads").expect("a log");
        assert_eq!(seen.gpus[1].bus.map(|bus| bus.to_string()).as_deref(), Some("0000:41:00.0"));
        assert_eq!(seen.gpus[0].model.as_ref().map(|m| m.value.as_str()), Some("H100 SXM 80GB"));
        assert_eq!(seen.p2p_level.map(|told| told.value), Some(PathClass::Sys));
        assert!(seen.nvlink.is_some());
    }

    #[test]
    fn counts_come_from_columns_commands_or_words() {
        let compact = "# gpus size count time algbw busbw\n 2 1024 512 5.0 0.2 0.2\n 8 1024 512 9.0 0.1 0.2\n";
        for (text, count) in [
            (compact.to_owned(), 8),
            (format!("# cmd: all_reduce_perf -b 8 -t 8 -g 1\n# time algbw busbw\n{ROW}"), 8),
            (format!("# nThread 1 nGpus 4 minBytes 8\n{ROW}"), 4),
            (format!("# machine: 2x RTX\n# time busbw\n{ROW}"), 2),
        ] {
            assert_eq!(read_text(&text).expect("reads").expect("a log").gpus.len(), count, "{text}");
        }
        assert!(read_text(&format!("# 2 nodes of 8\n# time busbw\n{ROW}")).unwrap_err().message.contains("2 nodes"));
        assert!(read_text("# time algbw busbw\n").is_err());
    }
}
