//! `--kernels DIR`: kernel times that a user brings.

use crate::digest::digest;
use moetwin::sim::cost::ImportedTables;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folders below the one that is named: aiconfigurator-core's tables lie five deep.
const MOST_DEPTH: u32 = 8;
/// Files looked at.
const MOST_FILES: usize = 4096;
/// Bytes read in all.
const MOST_BYTES: u64 = 512 << 20;

/// A folder of kernel tables, read.
#[derive(Clone, Debug)]
pub(crate) struct KernelFolder {
    /// Where.
    pub(crate) path: PathBuf,
    /// What it holds.
    pub(crate) tables: Arc<ImportedTables>,
    /// A fingerprint of what was read.
    pub(crate) digest: String,
}

impl KernelFolder {
    /// Reads every table in a folder and those below it; an error names the file and the line.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let mut files = Vec::new();
        walk(&path, MOST_DEPTH, &mut files)?;
        files.sort();
        let (mut tables, mut read, mut texts) = (ImportedTables::default(), 0, Vec::new());
        for file in &files {
            let name = file.strip_prefix(&path).unwrap_or(file).to_string_lossy().into_owned();
            match file.extension().and_then(|e| e.to_str()) {
                Some("csv" | "txt") => {}
                Some("parquet") => {
                    tables.pass_over(&name, "Parquet is not read; as CSV it is");
                    continue;
                }
                _ => continue,
            }
            read += fs::metadata(file).map_or(0, |m| m.len());
            if read > MOST_BYTES {
                return Err(format!("more than {} MiB of tables", MOST_BYTES >> 20));
            }
            let bytes = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
            let text = String::from_utf8(bytes).map_err(|e| format!("{}: {e}", file.display()))?;
            tables.add(&name, &text).map_err(|e| format!("{}: {e}", file.display()))?;
            texts.push((name, text));
        }
        if tables.sets().is_empty() {
            let why = tables.passed_over().iter().take(3).map(|p| format!("; {p}")).collect::<String>();
            return Err(format!("no kernel table in CSV among {} files{why}", files.len()));
        }
        let digest = digest(&texts).map_err(|e| e.to_string())?;
        Ok(Self { path, tables: Arc::new(tables), digest })
    }
    /// What was brought, in a sentence, and what of it was not used.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let sets: Vec<String> = self
            .tables
            .sets()
            .iter()
            .map(|s| {
                let families: Vec<&str> = s.tables.iter().map(|t| t.family.name()).collect();
                format!("{} on {} ({})", s.implementation, s.gpu, families.join(", "))
            })
            .collect();
        let mut out = vec![format!("kernel times of {}, asked first: {}", self.path.display(), sets.join("; "))];
        let over = self.tables.passed_over();
        if let Some(first) = over.first() {
            let more = if over.len() > 1 { format!(" and {} more files", over.len() - 1) } else { String::new() };
            out.push(format!("kernel tables passed over: {first}{more}"));
        }
        out
    }
}

fn walk(folder: &Path, depth: u32, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
        if path.is_dir() {
            if depth > 0 {
                walk(&path, depth - 1, files)?;
            }
        } else if path.is_file() {
            files.push(path);
        }
        if files.len() > MOST_FILES {
            return Err(format!("more than {MOST_FILES} files"));
        }
    }
    Ok(())
}
