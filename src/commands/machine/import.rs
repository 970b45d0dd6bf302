//! `moetwin machine import`.

use super::known::KnownArgs;
use super::show;
use crate::error::{Failure, InputError};
use crate::output::{self, NewFile};
use crate::resolve;
use clap::Args;
use moetwin::sim::topology::{self, Imported, Source, TopologyError};
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

pub(super) const AFTER_HELP: &str = "\
Examples:
  moetwin machine import tests/topologies/esc8000a-topo.txt tests/topologies/esc8000a-lspci.txt
  moetwin machine import tests/topologies/rtx4090-p2p.txt --out box.json
  moetwin machine import tests/topologies/rtx3090-nccl.xml --gpu \"RTX 3090\" --json

Files are told apart by content: nvidia-smi topo -m (or -mp), NCCL topology XML (NCCL_TOPO_DUMP_FILE) and graph XML, lspci -vv, lspci -tv,
p2pBandwidthLatencyTest, nccl-tests logs. Several files refine one machine; what contradicts is an error that names both places. What no file
says is assumed, and listed; flags replace assumptions. The result is a machine file for --machine.";

/// Arguments of `moetwin machine import`.
#[derive(Args)]
pub(crate) struct ImportArgs {
    /// Files to read; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    known: KnownArgs,
    /// Write the machine file here
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the machine file instead of text
    #[arg(long)]
    json: bool,
}

/// Imports and answers.
pub(super) fn run(args: &ImportArgs) -> Result<(), Failure> {
    let options = args.known.options()?;
    let out = args.out.as_deref().map(|path| NewFile::plan("--out", path)).transpose()?;
    let sources = read_all(&args.files)?;
    let imported = topology::import(&sources, &options).map_err(wrong)?;
    answer(&imported, out, args.out.as_deref(), args.json)
}

/// The texts of files.
pub(super) fn read_all(files: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    let mut sources: Vec<Source> = Vec::with_capacity(files.len());
    for file in files {
        let label = file.to_string_lossy().into_owned();
        if sources.iter().any(|source| source.label == label) {
            return Err(InputError::new("FILE", "is given twice").value(label).into());
        }
        let text = if label == "-" { standard_input()? } else { resolve::read_text("FILE", &label, file)? };
        sources.push(Source { label, text });
    }
    Ok(sources)
}

fn standard_input() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let most = topology::MOST_BYTES as u64;
    std::io::stdin().lock().take(most + 1).read_to_end(&mut bytes).map_err(|e| Failure::Running(format!("standard input: {e}")))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        InputError::new("FILE", format!("not UTF-8 text: byte {at} is wrong")).value("-").into()
    })
}

/// A fault in a file, marked at the file's place on the command line.
pub(super) fn wrong(error: TopologyError) -> Failure {
    let place = error.place;
    InputError::new("FILE", format!("line {}, column {}: {}", place.line, place.column, error.message)).value(place.file).into()
}

/// Writes the machine file where asked, and prints it or says what was made.
pub(super) fn answer(imported: &Imported, out: Option<NewFile>, path: Option<&Path>, json: bool) -> Result<(), Failure> {
    let file = imported.machine.to_json();
    if let Some(out) = out {
        out.commit(file.as_bytes())?;
    }
    if json {
        return output::answer(&file);
    }
    let mut text = String::new();
    for (label, kinds) in &imported.sources {
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        let _ = writeln!(text, "{label}: {}", kinds.join(", "));
    }
    if !imported.hidden.is_empty() {
        text.push_str("\nThe topology may be hidden by a virtual machine:\n");
        for sign in &imported.hidden {
            let _ = writeln!(text, "  - {sign}");
        }
    }
    let _ = write!(text, "\n{}", show::describe(&imported.machine));
    if let Some(path) = path {
        let _ = writeln!(text, "\nWritten to {}: give it to --machine", path.display());
    }
    output::answer(&text)
}
