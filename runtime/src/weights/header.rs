//! The header of one safetensors file: read, parsed, and checked in full, so that one pass finds every fault of the file.
//!
//! Layout (<https://github.com/huggingface/safetensors>): 8 bytes little-endian header length, the header as JSON
//! (`name -> {dtype, shape, data_offsets}`, and `__metadata__`), then the tensors' bytes without gaps.

use super::fault::Fault;
use super::stored::StoredType;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::borrow::Cow;
use std::io::Read;

/// Longest header, the limit that the format's reference reader sets.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the length that precedes the header.
pub const LENGTH_BYTES: u64 = 8;

/// One tensor of a file. Offsets count from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Box<str>,
    pub(crate) shard: u32,
    pub(crate) dtype: StoredType,
    pub(crate) shape: Span,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A range of the pool of shapes: checkpoints have hundreds of thousands of tensors, and a `Vec` each would double the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    len: u32,
}

/// Entries of all files, and the pool their shapes live in.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    pub(crate) list: Vec<Entry>,
    sizes: Vec<u64>,
}

impl Entries {
    pub(crate) fn shape(&self, entry: &Entry) -> &[u64] {
        &self.sizes[entry.shape.start as usize..(entry.shape.start + entry.shape.len) as usize]
    }
    fn keep_shape(&mut self, shape: &[u64]) -> Option<Span> {
        let span = Span { start: u32::try_from(self.sizes.len()).ok()?, len: u32::try_from(shape.len()).ok()? };
        span.start.checked_add(span.len)?;
        self.sizes.extend_from_slice(shape);
        Some(span)
    }
}

/// Reads the header of one file of `file_bytes` bytes, adds its tensors to `entries` and what is wrong to `faults`.
///
/// `buffer` is scratch. Allocates no more than the header is long.
pub(crate) fn read(
    file: &str,
    shard: u32,
    reader: &mut dyn Read,
    file_bytes: u64,
    buffer: &mut Vec<u8>,
    entries: &mut Entries,
    faults: &mut Vec<Fault>,
) {
    let unreadable = |e: std::io::Error| Fault::Unreadable { file: file.to_string(), reason: e.to_string() };
    let truncated = |needed_bytes| Fault::Truncated { file: file.to_string(), needed_bytes, found_bytes: file_bytes };
    if file_bytes < LENGTH_BYTES {
        return faults.push(truncated(LENGTH_BYTES));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    if let Err(e) = reader.read_exact(&mut length) {
        return faults.push(unreadable(e));
    }
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > MAX_HEADER_BYTES {
        let reason = format!("not a safetensors file: it declares a header of {header_bytes} bytes, the format allows {MAX_HEADER_BYTES}");
        return faults.push(Fault::Malformed { file: file.to_string(), reason });
    }
    let data_start = LENGTH_BYTES + header_bytes;
    if data_start > file_bytes {
        return faults.push(truncated(data_start));
    }
    buffer.clear();
    buffer.resize(usize::try_from(header_bytes).expect("bounded above"), 0);
    if let Err(e) = reader.read_exact(buffer) {
        return faults.push(unreadable(e));
    }
    let (first, faults_before) = (entries.list.len(), faults.len());
    if let Err(reason) = parse(buffer, FilePass { file, shard, data_start, entries, faults }) {
        entries.list.truncate(first);
        let reason = format!("header is not what safetensors prescribes: {reason}");
        return faults.push(Fault::Malformed { file: file.to_string(), reason });
    }
    if faults.len() == faults_before {
        check_coverage(file, data_start, file_bytes, entries, first, faults);
    }
}

fn parse(header: &[u8], mut pass: FilePass<'_>) -> Result<(), String> {
    // The parser checks only the strings that it hands out.
    let text = std::str::from_utf8(header).map_err(|e| format!("it is not UTF-8: {e}"))?;
    let mut json = serde_json::Deserializer::from_str(text);
    json.deserialize_map(&mut pass).and_then(|()| json.end()).map_err(|e| e.to_string())
}

/// Every byte after the header must belong to exactly one tensor. (Not asked of a file with refused entries: the bytes of those would
/// be reported a second time.)
fn check_coverage(file: &str, data_start: u64, file_bytes: u64, entries: &mut Entries, first: usize, faults: &mut Vec<Fault>) {
    let list = &mut entries.list[first..];
    list.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    let mut covered = data_start;
    let mut last = "";
    for entry in list.iter() {
        if entry.start < covered {
            faults.push(Fault::Overlapping { file: file.into(), tensor: entry.name.to_string(), other: last.to_string() });
        } else if entry.start > covered {
            let place = if last.is_empty() { format!("before {}", entry.name) } else { format!("between {last} and {}", entry.name) };
            faults.push(Fault::Unclaimed { file: file.into(), place, bytes: entry.start - covered });
        }
        if entry.end > covered {
            covered = entry.end;
            last = &entry.name;
        }
    }
    if covered > file_bytes {
        faults.push(Fault::Truncated { file: file.into(), needed_bytes: covered, found_bytes: file_bytes });
    } else if covered < file_bytes {
        faults.push(Fault::Unclaimed { file: file.into(), place: "at the end".into(), bytes: file_bytes - covered });
    }
}

#[derive(Deserialize)]
struct RawEntry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

struct FilePass<'p> {
    file: &'p str,
    shard: u32,
    data_start: u64,
    entries: &'p mut Entries,
    faults: &'p mut Vec<Fault>,
}

impl FilePass<'_> {
    fn add(&mut self, name: &str, raw: &RawEntry<'_>) {
        let bad = |reason: String| Fault::BadEntry { file: self.file.to_string(), tensor: name.to_string(), reason };
        let Some(dtype) = StoredType::parse(&raw.dtype) else {
            return self.faults.push(bad(format!("unknown element type {:?}", raw.dtype)));
        };
        let (start, end) = raw.data_offsets;
        let Some(bytes) = dtype.bytes_of(&raw.shape) else {
            let shape = super::fault::shape_text(&raw.shape);
            return self.faults.push(bad(format!("{dtype} {shape} is not a whole number of bytes below 2^64")));
        };
        if end.checked_sub(start) != Some(bytes) {
            let shape = super::fault::shape_text(&raw.shape);
            return self.faults.push(bad(format!("data_offsets [{start}, {end}] do not span the {bytes} bytes of {dtype} {shape}")));
        }
        let Some(absolute_end) = end.checked_add(self.data_start) else {
            return self.faults.push(bad(format!("data_offsets [{start}, {end}] lie beyond any file")));
        };
        let Some(shape) = self.entries.keep_shape(&raw.shape) else {
            return self.faults.push(bad("more than 2^32 sizes in one checkpoint".into()));
        };
        self.entries.list.push(Entry {
            name: name.into(),
            shard: self.shard,
            dtype,
            shape,
            start: start + self.data_start,
            end: absolute_end,
        });
    }
}

impl<'de> Visitor<'de> for &mut FilePass<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(name)) = map.next_key()? {
            if name == "__metadata__" {
                // Free text for people; the format allows nothing but strings.
                map.next_value::<Metadata>()?;
            } else {
                let raw: RawEntry<'de> = map.next_value()?;
                self.add(&name, &raw);
            }
        }
        Ok(())
    }
}

/// A JSON object of strings, checked and dropped.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = Metadata;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_unit<E>(self) -> Result<Metadata, E> {
                Ok(Metadata)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                while map.next_entry::<Key<'de>, Key<'de>>()?.is_some() {}
                Ok(Metadata)
            }
        }
        deserializer.deserialize_any(Strings)
    }
}
