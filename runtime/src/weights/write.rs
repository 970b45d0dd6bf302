//! Writing safetensors files: dumps of a run, and checkpoints for tests.

use super::header::MAX_HEADER_BYTES;
use super::stored::StoredType;
use crate::files::replaceable;
use std::fs::File;
use std::io::{BufWriter, Error, ErrorKind, Result, Write};
use std::path::Path;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct OutTensor {
    /// Name.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// Elements, row-major.
    pub values: OutValues,
}

/// Elements of an [`OutTensor`].
#[derive(Clone, Debug, PartialEq)]
pub enum OutValues {
    /// Stored as `F32`.
    F32(Vec<f32>),
    /// Stored as `I32`.
    I32(Vec<i32>),
    /// Stored as they are: little-endian elements of this type.
    Raw(StoredType, Vec<u8>),
}

impl OutTensor {
    /// A tensor of reals.
    pub fn f32(name: impl Into<String>, shape: Vec<u64>, values: Vec<f32>) -> Self {
        Self { name: name.into(), shape, values: OutValues::F32(values) }
    }
    /// A tensor of integers.
    pub fn i32(name: impl Into<String>, shape: Vec<u64>, values: Vec<i32>) -> Self {
        Self { name: name.into(), shape, values: OutValues::I32(values) }
    }
    fn dtype(&self) -> StoredType {
        match &self.values {
            OutValues::F32(_) => StoredType::F32,
            OutValues::I32(_) => StoredType::I32,
            OutValues::Raw(dtype, _) => *dtype,
        }
    }
    fn bytes(&self) -> u64 {
        match &self.values {
            OutValues::F32(values) => values.len() as u64 * 4,
            OutValues::I32(values) => values.len() as u64 * 4,
            OutValues::Raw(_, bytes) => bytes.len() as u64,
        }
    }
}

/// Writes tensors, in this order, to a file: first beside it under another name, then renamed, so that nothing is half written.
/// A link is followed, and what is no file (a device, a pipe) is written into.
///
/// Errors where a tensor's shape and elements disagree, a name is there twice, or the system refuses.
pub fn write_safetensors(path: &Path, tensors: &[OutTensor]) -> Result<()> {
    let Some(path) = replaceable(path)? else {
        let mut out = BufWriter::new(File::options().write(true).open(path)?);
        write_to(&mut out, tensors)?;
        return out.flush();
    };
    let name = path.file_name().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "not the name of a file"))?;
    let mut partial = std::ffi::OsString::from(".");
    partial.push(name);
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(partial);
    let written = File::create(&partial)
        .and_then(|file| {
            let mut out = BufWriter::new(file);
            write_to(&mut out, tensors)?;
            out.flush()
        })
        .and_then(|()| std::fs::rename(&partial, &path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    written
}

/// Writes tensors in safetensors format.
pub fn write_to(out: &mut dyn Write, tensors: &[OutTensor]) -> Result<()> {
    let header = header(tensors)?;
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for tensor in tensors {
        match &tensor.values {
            OutValues::F32(values) => values.iter().try_for_each(|v| out.write_all(&v.to_le_bytes()))?,
            OutValues::I32(values) => values.iter().try_for_each(|v| out.write_all(&v.to_le_bytes()))?,
            OutValues::Raw(_, bytes) => out.write_all(bytes)?,
        }
    }
    Ok(())
}

/// The JSON header, padded with spaces so that the data starts at a multiple of 8.
fn header(tensors: &[OutTensor]) -> Result<Vec<u8>> {
    let invalid = |text: String| Error::new(ErrorKind::InvalidInput, text);
    let mut entries = serde_json::Map::new();
    let mut start = 0u64;
    for tensor in tensors {
        let (dtype, bytes) = (tensor.dtype(), tensor.bytes());
        if dtype.bytes_of(&tensor.shape) != Some(bytes) {
            let shape = super::fault::shape_text(&tensor.shape);
            return Err(invalid(format!("{}: {bytes} bytes are not {dtype} {shape}", tensor.name)));
        }
        let entry = serde_json::json!({ "dtype": dtype.name(), "shape": tensor.shape, "data_offsets": [start, start + bytes] });
        if entries.insert(tensor.name.clone(), entry).is_some() {
            return Err(invalid(format!("{}: twice in one file", tensor.name)));
        }
        start += bytes;
    }
    let mut header = serde_json::to_vec(&entries)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER_BYTES {
        return Err(invalid(format!("a header of {} bytes, the format allows {MAX_HEADER_BYTES}", header.len())));
    }
    Ok(header)
}
