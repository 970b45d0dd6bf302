//! From what `--model` and `--machine` name to what they mean.

use crate::error::{Failure, InputError};
use moetwin::engines::catalog::Folder;
use moetwin::models::{ModelSpec, config, zoo};
use moetwin::runtime::builtin;
use moetwin::sim::machine::{self, Machine};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest configuration or machine file that is read: published ones have a few hundred kilobytes.
const MOST_BYTES: u64 = 16 << 20;
const CONFIG: &str = "config.json";
const QUANTIZATION: &str = "hf_quant_config.json";

/// A model, and where its weights would be.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// What the configuration says.
    pub(crate) spec: ModelSpec,
    /// Where its weights are.
    pub(crate) weights: Place,
}

/// Where weights and tokenizer are.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Nowhere: it is a configuration only.
    Nowhere,
    /// In this folder.
    Folder(PathBuf),
    /// In this program.
    Shipped,
}

/// Resolves what `argument` gives as a model: a built-in name or hub id first, else a folder with `config.json`, else such a file.
pub(crate) fn model(argument: &'static str, text: &str) -> Result<Model, Failure> {
    if let Some(found) = zoo::find(text) {
        let spec = zoo::spec(found.name).map_err(|e| Failure::from(InputError::new(argument, e.to_string()).value(text)))?;
        return Ok(Model { spec, weights: Place::Nowhere });
    }
    if text == builtin::NAME {
        let spec = builtin::spec().map_err(|e| Failure::Running(format!("the shipped model is faulty: {e}")))?;
        return Ok(Model { spec, weights: Place::Shipped });
    }
    let path = Path::new(text);
    let metadata = fs::metadata(path);
    let (file, weights) = match &metadata {
        Ok(m) if m.is_dir() => (path.join(CONFIG), Place::Folder(path.to_owned())),
        Ok(_) => (path.to_owned(), Place::Nowhere),
        Err(_) => {
            let error = InputError::new(argument, "is neither a built-in model nor a folder or file that exists").value(text);
            let error = error.names(zoo::list().iter().flat_map(|m| [m.name, m.hub_id]).chain([builtin::NAME]));
            let error = error.accepted(zoo::list().iter().map(|m| m.name).chain([builtin::NAME]));
            return Err(error.accepted(["the hub id of one of these", "a folder with a config.json", "such a file"]).into());
        }
    };
    let config_text = read_text(argument, text, &file)?;
    // Beside a configuration under another name, NAME.json, the second file may carry that name too: NAME.hf_quant_config.json.
    let beside = [file.with_file_name(QUANTIZATION), file.with_extension(QUANTIZATION)];
    let quantization = match beside.iter().find(|f| f.exists()) {
        Some(found) => Some(read_text(argument, text, found)?),
        None => None,
    };
    // A folder names the model as people know it; so does the folder of a file called config.json.
    let named = if file.file_name().is_some_and(|n| n == CONFIG) { file.parent().and_then(Path::file_name) } else { file.file_stem() };
    let name = named.map_or_else(|| text.to_owned(), |n| n.to_string_lossy().into_owned());
    let spec = config::read_with_quantization(&config_text, quantization.as_deref(), &name).map_err(|mut e| {
        // People look for the file, not for the model's name.
        for fault in e.faults.iter_mut().filter(|f| f.file == name) {
            fault.file = file.display().to_string();
        }
        Failure::from(InputError::new(argument, e.to_string()).value(text))
    })?;
    Ok(Model { spec, weights })
}

/// What an engine would find in the folder that is its model, where it is here and has a configuration.
pub(crate) fn model_folder(argument: &'static str, name: &str) -> Result<Option<Folder>, Failure> {
    let at = Path::new(name);
    if !at.join(CONFIG).is_file() {
        return Ok(None);
    }
    let config = read_text(argument, name, &at.join(CONFIG))?;
    let beside = at.join(QUANTIZATION);
    let quantization = if beside.is_file() { Some(read_text(argument, name, &beside)?) } else { None };
    let files = fs::read_dir(at).into_iter().flatten().flatten();
    let mut others: Vec<String> = files.map(|f| f.file_name().to_string_lossy().into_owned()).filter(|f| f.ends_with(".json")).collect();
    others.sort_unstable();
    Ok(Some(Folder { name: name.to_owned(), config, quantization, others }))
}

/// Resolves what `argument` gives as a machine: a built-in name, else a machine file.
pub(crate) fn machine(argument: &'static str, text: &str) -> Result<Machine, Failure> {
    if let Some(found) = machine::find(text) {
        return Ok(found);
    }
    let path = Path::new(text);
    if !path.is_file() {
        let error = InputError::new(argument, "is neither a built-in machine nor a file that exists").value(text);
        return Err(error.names(machine::names()).accepted(machine::names().chain(["a machine file"])).into());
    }
    let content = read_text(argument, text, path)?;
    machine::from_json(&content).map_err(|e| InputError::new(argument, format!("{}: {e}", path.display())).value(text).into())
}

/// Reads a text file that an argument names. Files that are not text, or longer than any honest one, are refused.
pub(crate) fn read_text(argument: &'static str, value: &str, path: &Path) -> Result<String, Failure> {
    let mut bytes = read_bytes(argument, value, path)?;
    // Spreadsheets and editors of some systems mark UTF-8 with three bytes that are no part of the text.
    if bytes.starts_with("\u{feff}".as_bytes()) {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        InputError::new(argument, format!("{}: not UTF-8 text: byte {at} is wrong", path.display())).value(value).into()
    })
}

/// Reads a log that an argument names; bytes that are not text become replacement characters.
pub(crate) fn read_log(argument: &'static str, value: &str, path: &Path) -> Result<String, Failure> {
    Ok(String::from_utf8_lossy(&read_bytes(argument, value, path)?).into_owned())
}

fn read_bytes(argument: &'static str, value: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    let wrong = |message: String| Failure::from(InputError::new(argument, format!("{}: {message}", path.display())).value(value));
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|e| wrong(e.to_string()))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(wrong(format!("longer than {} MiB, which no such file is", MOST_BYTES >> 20)));
    }
    Ok(bytes)
}
