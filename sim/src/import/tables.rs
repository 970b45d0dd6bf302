//! From a log of collective times to a table that a machine can be fitted to: what the log says of itself, and what it has to be told.

use super::nccl_tests::{self, Measurement};
use super::{ImportError, bounded};
use crate::calibrate::Table;
use crate::collective::{Algorithm, CollectiveOp, GraphMode, Launch, Library, Protocol};
use serde_json::Value;
use std::str::FromStr;

/// What a log's rows answer. What is `None` is looked for in the log, then assumed: nccl-tests in a loop, all GPUs, peer access as the
/// machine has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// What is communicated.
    pub op: Option<CollectiveOp>,
    /// Whose implementation.
    pub library: Option<Library>,
    /// How it was launched.
    pub launch: Option<Launch>,
    /// Ranks, where rows do not say.
    pub ranks: Option<usize>,
    /// The time column of a table with a `size_B` header.
    pub column: Option<String>,
    /// Peer access, if not the machine's.
    pub peer_access: Option<bool>,
    /// Forced algorithm.
    pub algorithm: Option<Algorithm>,
    /// Forced protocol.
    pub protocol: Option<Protocol>,
    /// NCCL's view.
    pub nccl_graph: Option<GraphMode>,
}

/// Keys that [`Told::set`] knows.
pub const KEYS: [&str; 9] = ["op", "library", "launch", "ranks", "column", "p2p", "algorithm", "protocol", "nccl-graph"];

impl Told {
    /// Sets one fact by its name on the command line.
    ///
    /// # Errors
    /// If the key or the value is unknown; the message names what is accepted.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        fn read<T: FromStr<Err = String>>(value: &str) -> Result<Option<T>, String> {
            value.parse().map(Some)
        }
        match key {
            "op" => self.op = read(value)?,
            "library" => self.library = read(value)?,
            "launch" => self.launch = read(value)?,
            "algorithm" => self.algorithm = read(value)?,
            "protocol" => self.protocol = read(value)?,
            "nccl-graph" => self.nccl_graph = read(value)?,
            "column" => self.column = Some(value.to_owned()),
            "ranks" => match value.parse::<usize>() {
                Ok(ranks @ 1..=1024) => self.ranks = Some(ranks),
                _ => return Err(format!("ranks `{value}`; accepted: 1 to 1024")),
            },
            "p2p" => match value {
                "on" => self.peer_access = Some(true),
                "off" => self.peer_access = Some(false),
                _ => return Err(format!("p2p `{value}`; accepted: on, off")),
            },
            _ => return Err(format!("unknown key `{key}`; accepted: {}", KEYS.join(", "))),
        }
        Ok(())
    }
}

/// Reads a log as a table named `name`; `gpus` is the machine's GPU count.
///
/// # Errors
/// If the log has no rows, or does not say what was communicated and nobody told.
pub fn table(name: &str, text: &str, told: &Told, gpus: usize) -> Result<Table, ImportError> {
    bounded(text)?;
    let rows = nccl_tests::read(text, told.column.as_deref())?;
    let header: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    let Some(op) = told.op.or_else(|| op_of(&header)) else {
        let names: Vec<&str> = CollectiveOp::ALL.iter().map(|op| op.name()).collect();
        let message = format!("the log does not say what was communicated; tell it: op={}", names.join("|"));
        return Err(ImportError::new(1, 1, message));
    };
    let library = told.library.unwrap_or(Library::Nccl);
    let ranks = told.ranks.or_else(|| ranks_of(&header)).unwrap_or(gpus);
    Ok(Table {
        name: name.to_owned(),
        op,
        library,
        launch: told.launch.or_else(|| launch_of(text, library, &rows)),
        ranks,
        peer_access: told.peer_access.or_else(|| setting(&header, "NCCL_P2P_DISABLE").map(|value| value == "0")),
        algorithm: told.algorithm.or_else(|| setting(&header, "NCCL_ALGO").and_then(|value| value.to_lowercase().parse().ok())),
        protocol: told.protocol.or_else(|| setting(&header, "NCCL_PROTO").and_then(|value| value.to_lowercase().parse().ok())),
        nccl_graph: told.nccl_graph.unwrap_or_default(),
        rows,
    })
}

/// The op that a header names: `all_reduce_perf`, or the words of nccl-tests' banner.
fn op_of(header: &[&str]) -> Option<CollectiveOp> {
    let named = |line: &&str, op: CollectiveOp| line.contains(&format!("{}_perf", op.name()));
    CollectiveOp::ALL.into_iter().find(|op| header.iter().any(|line| named(line, *op)))
}

/// GPUs that nccl-tests lists, one a line.
fn ranks_of(header: &[&str]) -> Option<usize> {
    let listed = header.iter().filter(|line| line.trim_start_matches('#').trim_start().starts_with("Rank ")).count();
    Some(listed).filter(|count| *count > 0)
}

/// nccl-tests launches in a loop; tables of engines say how each row was launched.
fn launch_of(text: &str, library: Library, rows: &[Measurement]) -> Option<Launch> {
    let says = |line: &str| line.split_whitespace().nth(1).is_some_and(|word| word.parse::<Launch>().is_ok());
    let by_row = text.lines().filter(|line| !line.starts_with('#')).any(says);
    let loops = library == Library::Nccl && !by_row && rows.iter().all(|row| row.launch != Some(Launch::Loop));
    loops.then_some(Launch::Loop)
}

/// The value of an environment variable that the header shows, unless it is a list or a pattern.
fn setting<'a>(header: &[&'a str], variable: &str) -> Option<&'a str> {
    let after = header.iter().find_map(|line| line.split_once(&format!("{variable}=")))?.1;
    let value = after.split(|c: char| c.is_whitespace() || c == ';').next()?;
    (!value.is_empty() && !value.contains([',', ':', '^'])).then_some(value)
}

/// One entry of a manifest: a file, the machine it is of, and what it has to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The log, relative to the manifest.
    pub file: String,
    /// The machine.
    pub machine: String,
    /// What the log has to be told.
    pub told: Told,
}

/// Reads a manifest: a list of `{file, machine, op, library, launch, ranks, column, args}`, `args` being flags of `moetwin collective`.
///
/// # Errors
/// If it is not JSON or an entry has no file, no machine, or a value that is not known.
pub fn manifest(text: &str) -> Result<Vec<Entry>, ImportError> {
    bounded(text)?;
    let value: Value =
        serde_json::from_str(text).map_err(|e| ImportError::new(e.line().max(1), e.column().max(1), format!("not JSON: {e}")))?;
    let Some(list) = value.as_array() else { return Err(ImportError::new(1, 1, "a manifest is a list of entries")) };
    list.iter().enumerate().map(|(index, value)| entry(value).map_err(|e| ImportError::new(1, 1, format!("entry {index}: {e}")))).collect()
}

fn entry(value: &Value) -> Result<Entry, String> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let need = |key: &str| text(key).map(str::to_owned).ok_or_else(|| format!("it has no {key}"));
    let mut told = Told::default();
    for key in ["op", "library", "launch", "column"] {
        if let Some(value) = text(key) {
            told.set(key, value)?;
        }
    }
    if let Some(ranks) = value.get("ranks") {
        told.set("ranks", &ranks.to_string())?;
    }
    let args: Vec<&str> = value.get("args").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    for pair in args.chunks(2) {
        match *pair {
            [flag, value] => told.set(flag.trim_start_matches('-'), value)?,
            _ => return Err(format!("{} has no value", pair.join(" "))),
        }
    }
    Ok(Entry { file: need("file")?, machine: need("machine")?, told })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "# cmd: NCCL_P2P_DISABLE=1 NCCL_ALGO=Ring NCCL_PROTO=Simple,LL all_gather_perf -b 8 -g 2\n\
        #  Rank  0 Group  0 Pid 1 on a device  0\n#  Rank  1 Group  0 Pid 1 on a device  1\n\
        1024 256 float none -1 18.46 0.06 0.08 0 18.56 0.06 0.08 0\n";

    #[test]
    fn a_log_says_what_it_is() {
        let read = table("log", LOG, &Told::default(), 8).expect("a log");
        assert_eq!((read.op, read.ranks, read.launch), (CollectiveOp::AllGather, 2, Some(Launch::Loop)));
        assert_eq!((read.peer_access, read.algorithm, read.protocol), (Some(false), Some(Algorithm::Ring), None));
        let mut told = Told::default();
        told.set("op", "all_reduce").expect("an op");
        told.set("ranks", "4").expect("ranks");
        let read = table("log", LOG, &told, 8).expect("a log");
        assert_eq!((read.op, read.ranks), (CollectiveOp::AllReduce, 4));
    }

    #[test]
    fn engines_tables_say_how_each_row_was_launched() {
        let mut told = Told::default();
        told.set("op", "all_reduce").expect("an op");
        told.set("library", "vllm").expect("a library");
        let read = table("t", " 2 eager 256 30.83 0.01 0.01\n", &told, 8).expect("a table");
        assert_eq!((read.launch, read.rows[0].launch), (None, Some(Launch::Eager)));
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        let error = table("t", " 2 256 128 30.83 0.01 0.01\n", &Told::default(), 8).expect_err("no op");
        assert!(error.message.contains("op=all_reduce|"), "{error}");
        let mut told = Told::default();
        for (key, value, word) in
            [("oops", "1", "nccl-graph"), ("op", "reduce", "all_reduce"), ("ranks", "0", "1 to 1024"), ("p2p", "x", "off")]
        {
            let error = told.set(key, value).expect_err("wrong");
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_manifest_lists_files_with_what_they_have_to_be_told() {
        let text = r#"[{"file": "a.txt", "machine": "m", "op": "alltoall", "ranks": 4, "args": ["--p2p", "off"]}]"#;
        let read = manifest(text).expect("a manifest");
        assert_eq!((read[0].file.as_str(), read[0].told.ranks, read[0].told.peer_access), ("a.txt", Some(4), Some(false)));
        for wrong in ["{}", "[{}]", "[1", r#"[{"file": "a", "machine": "m", "args": ["--p2p"]}]"#] {
            manifest(wrong).expect_err(wrong);
        }
    }
}
