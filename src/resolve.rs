//! From what `--model` names to what it means.

use crate::error::{Failure, InputError};
use moetwin::models::{ModelSpec, config, zoo};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest configuration or machine file that is read: published ones have a few hundred kilobytes.
const MOST_BYTES: u64 = 16 << 20;
const CONFIG: &str = "config.json";
const QUANTIZATION: &str = "hf_quant_config.json";

/// A model, and where its weights would be.
#[derive(Debug)]
pub(crate) struct Model {
    /// What the configuration says.
    pub(crate) spec: ModelSpec,
    /// The folder it came from, if it came from one.
    pub(crate) folder: Option<PathBuf>,
}

/// Resolves what `argument` gives as a model: a built-in name or hub id first, else a folder with `config.json`, else such a file.
pub(crate) fn model(argument: &'static str, text: &str) -> Result<Model, Failure> {
    if let Some(found) = zoo::find(text) {
        let spec = zoo::spec(found.name).map_err(|e| Failure::from(InputError::new(argument, e.to_string()).value(text)))?;
        return Ok(Model { spec, folder: None });
    }
    let path = Path::new(text);
    let metadata = fs::metadata(path);
    let (file, folder) = match &metadata {
        Ok(m) if m.is_dir() => (path.join(CONFIG), Some(path.to_owned())),
        Ok(_) => (path.to_owned(), None),
        Err(_) => {
            let error = InputError::new(argument, "is neither a built-in model nor a folder or file that exists").value(text);
            let error = error.names(zoo::list().iter().flat_map(|m| [m.name, m.hub_id])).accepted(zoo::list().iter().map(|m| m.name));
            return Err(error.accepted(["the hub id of one of these", "a folder with a config.json", "such a file"]).into());
        }
    };
    let config_text = read_text(argument, text, &file)?;
    let quantization_file = file.with_file_name(QUANTIZATION);
    let quantization = if quantization_file.exists() { Some(read_text(argument, text, &quantization_file)?) } else { None };
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
    Ok(Model { spec, folder })
}

/// Reads a text file that an argument names. Files that are not text, or longer than any honest one, are refused.
pub(crate) fn read_text(argument: &'static str, value: &str, path: &Path) -> Result<String, Failure> {
    let wrong = |message: String| Failure::from(InputError::new(argument, format!("{}: {message}", path.display())).value(value));
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|e| wrong(e.to_string()))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(wrong(format!("longer than {} MiB, which no such file is", MOST_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        wrong(format!("not UTF-8 text: byte {at} is wrong"))
    })
}
