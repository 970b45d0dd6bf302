//! A checkpoint: which tensors there are, in which file, and their bytes.

use super::fault::{CheckpointError, Fault};
use super::header::{self, Entries, Entry};
use super::map::FileMap;
use super::stored::StoredType;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fs::File;
use std::path::Path;

/// File of a checkpoint that is not cut in shards.
pub const SINGLE_FILE: &str = "model.safetensors";
/// File that says which shard holds which tensor.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Most files of a checkpoint; published ones have at most a few hundred.
pub const MAX_SHARDS: usize = 1 << 14;

/// The tensors of a model's safetensors files, memory-mapped. Opening reads headers only.
#[derive(Debug)]
pub struct Checkpoint {
    place: String,
    shards: Vec<Shard>,
    /// Sorted by name.
    entries: Entries,
}

#[derive(Debug)]
struct Shard {
    name: String,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(FileMap),
    Memory(Cow<'static, [u8]>),
    /// Of a file with faults; never read.
    None,
}

/// One stored tensor.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor<'c> {
    /// Name in the checkpoint.
    pub name: &'c str,
    /// Element type.
    pub dtype: StoredType,
    /// Shape, outermost first.
    pub shape: &'c [u64],
    /// Elements, little-endian and row-major; the start need not be aligned.
    pub bytes: &'c [u8],
}

impl Checkpoint {
    /// Opens the checkpoint of a folder: [`SINGLE_FILE`] where it exists, else the shards of [`INDEX_FILE`].
    ///
    /// The error lists every fault of every file: unreadable, malformed or truncated files, tensors that overlap, contradict themselves,
    /// are there twice, or are not where the index says.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let (checkpoint, faults) = Self::scan(dir);
        checkpoint.unless(faults)
    }
    /// A checkpoint that is already in memory as the bytes of one safetensors file. `place` names it in errors.
    pub fn from_bytes(place: &str, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self, CheckpointError> {
        let bytes = bytes.into();
        let (mut entries, mut faults) = (Entries::default(), Vec::new());
        header::read(place, 0, &mut &*bytes, bytes.len() as u64, &mut Vec::new(), &mut entries, &mut faults);
        let mut checkpoint =
            Self { place: place.to_string(), shards: vec![Shard { name: place.to_string(), bytes: Bytes::Memory(bytes) }], entries };
        checkpoint.sort_and_find_duplicates(&mut faults);
        checkpoint.unless(faults)
    }
    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.entries.list.len()
    }
    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.entries.list.is_empty()
    }
    /// The folder or file, as errors name it.
    pub fn place(&self) -> &str {
        &self.place
    }
    /// All tensors, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = StoredTensor<'_>> {
        self.entries.list.iter().map(|e| self.view(e))
    }
    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<StoredTensor<'_>> {
        self.locate(name).map(|(_, tensor)| tensor)
    }
    /// The tensor of this name and its position in [`Checkpoint::tensors`].
    pub(crate) fn locate(&self, name: &str) -> Option<(usize, StoredTensor<'_>)> {
        self.position(name).map(|i| (i, self.view(&self.entries.list[i])))
    }
    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.position(name).is_some()
    }
    fn position(&self, name: &str) -> Option<usize> {
        self.entries.list.binary_search_by(|e| (*e.name).cmp(name)).ok()
    }
    fn view<'c>(&'c self, entry: &'c Entry) -> StoredTensor<'c> {
        let whole: &[u8] = match &self.shards[entry.shard as usize].bytes {
            Bytes::Mapped(map) => map,
            Bytes::Memory(bytes) => bytes,
            Bytes::None => &[],
        };
        // Out of range only in a faulty file, whose checkpoint is never handed out.
        let range = usize::try_from(entry.start).unwrap_or(usize::MAX)..usize::try_from(entry.end).unwrap_or(usize::MAX);
        StoredTensor {
            name: &entry.name,
            dtype: entry.dtype,
            shape: self.entries.shape(entry),
            bytes: whole.get(range).unwrap_or_default(),
        }
    }
    /// The checkpoint, or an error where there are faults.
    pub(crate) fn unless(self, faults: Vec<Fault>) -> Result<Self, CheckpointError> {
        if faults.is_empty() { Ok(self) } else { Err(CheckpointError { place: self.place, faults }) }
    }

    /// Reads all headers; what could be read is there beside the faults.
    pub(crate) fn scan(dir: &Path) -> (Self, Vec<Fault>) {
        let mut faults = Vec::new();
        let mut checkpoint = Self { place: dir.display().to_string(), shards: Vec::new(), entries: Entries::default() };
        if dir.join(SINGLE_FILE).is_file() {
            checkpoint.read_shards(dir, vec![SINGLE_FILE.to_string()], &mut faults);
            checkpoint.sort_and_find_duplicates(&mut faults);
        } else if dir.join(INDEX_FILE).is_file() {
            let names = shard_names(dir, &mut faults);
            checkpoint.read_shards(dir, names, &mut faults);
            checkpoint.sort_and_find_duplicates(&mut faults);
            // Where a shard could not be read, everything it holds would be reported again.
            if faults.is_empty() {
                checkpoint.compare_with_index(dir, &mut faults);
            }
        } else {
            faults.push(Fault::Unreadable { file: checkpoint.place.clone(), reason: nothing_to_open(dir) });
        }
        (checkpoint, faults)
    }
    fn read_shards(&mut self, dir: &Path, names: Vec<String>, faults: &mut Vec<Fault>) {
        let mut buffer = Vec::new();
        for name in names {
            let before = faults.len();
            let shard = self.shards.len() as u32;
            let mut unreadable = |e: std::io::Error| faults.push(Fault::Unreadable { file: name.clone(), reason: e.to_string() });
            let opened = File::open(dir.join(&name)).and_then(|file| {
                let metadata = file.metadata()?;
                if metadata.is_file() { Ok((file, metadata.len())) } else { Err(std::io::Error::other("is not a file")) }
            });
            match opened {
                Err(e) => {
                    unreadable(e);
                    self.shards.push(Shard { name, bytes: Bytes::None });
                }
                Ok((mut file, file_bytes)) => {
                    header::read(&name, shard, &mut file, file_bytes, &mut buffer, &mut self.entries, faults);
                    let bytes = if faults.len() > before {
                        Bytes::None
                    } else {
                        match FileMap::new(&file) {
                            Ok(map) => Bytes::Mapped(map),
                            Err(e) => {
                                faults.push(Fault::Unreadable { file: name.clone(), reason: format!("cannot be mapped: {e}") });
                                Bytes::None
                            }
                        }
                    };
                    self.shards.push(Shard { name, bytes });
                }
            }
        }
    }
    fn sort_and_find_duplicates(&mut self, faults: &mut Vec<Fault>) {
        let list = &mut self.entries.list;
        list.sort_unstable_by(|a, b| (&a.name, a.shard, a.start).cmp(&(&b.name, b.shard, b.start)));
        for pair in list.windows(2).filter(|pair| pair[0].name == pair[1].name) {
            faults.push(Fault::Duplicate {
                tensor: pair[0].name.to_string(),
                first: self.shards[pair[0].shard as usize].name.clone(),
                second: self.shards[pair[1].shard as usize].name.clone(),
            });
        }
        list.dedup_by(|later, first| later.name == first.name);
        list.shrink_to_fit();
    }
    /// Every tensor must be listed, once, with the shard that holds it.
    fn compare_with_index(&self, dir: &Path, faults: &mut Vec<Fault>) {
        let mut listed = vec![false; self.entries.list.len()];
        let mut disagree = |tensor: &str, reason: String| faults.push(Fault::Index { tensor: tensor.to_string(), reason });
        let outcome = each_index_entry(dir, &mut |tensor, file| match self.position(tensor) {
            None => disagree(tensor, format!("missing: {INDEX_FILE} puts it in {file}, which does not hold it")),
            Some(i) => {
                let holder = &self.shards[self.entries.list[i].shard as usize].name;
                if holder != file {
                    disagree(tensor, format!("{INDEX_FILE} puts it in {file}, it is in {holder}"));
                }
                if std::mem::replace(&mut listed[i], true) {
                    disagree(tensor, format!("duplicate, twice in {INDEX_FILE}"));
                }
            }
        });
        faults.extend(outcome.err());
        for (entry, _) in self.entries.list.iter().zip(&listed).filter(|(_, listed)| !**listed) {
            let holder = &self.shards[entry.shard as usize].name;
            faults.push(Fault::Index { tensor: entry.name.to_string(), reason: format!("is in {holder} and not listed in {INDEX_FILE}") });
        }
    }
}

/// The distinct files of the index, sorted.
fn shard_names(dir: &Path, faults: &mut Vec<Fault>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut odd: Vec<Fault> = Vec::new();
    let outcome = each_index_entry(dir, &mut |tensor, file| {
        if names.len() > MAX_SHARDS {
            return;
        }
        // Only plain names: an index must not point outside its folder.
        if file.is_empty() || file == ".." || file.contains(['/', '\\', '\0']) {
            let reason = format!("{INDEX_FILE} puts it in {file:?}, which is not the name of a file beside it");
            odd.push(Fault::Index { tensor: tensor.to_string(), reason });
        } else if let Err(at) = names.binary_search_by(|n| n.as_str().cmp(file)) {
            names.insert(at, file.to_string());
        }
    });
    faults.extend(outcome.err());
    faults.append(&mut odd);
    if names.len() > MAX_SHARDS {
        faults.push(Fault::Malformed { file: INDEX_FILE.into(), reason: format!("names more than {MAX_SHARDS} files") });
        names.clear();
    }
    if names.is_empty() && faults.is_empty() {
        faults.push(Fault::Malformed { file: INDEX_FILE.into(), reason: "lists no tensor".into() });
    }
    names
}

/// Calls `each` with every tensor and file of the index. The index of a large checkpoint is tens of megabytes, so it is never held parsed.
fn each_index_entry(dir: &Path, each: &mut dyn FnMut(&str, &str)) -> Result<(), Fault> {
    let unreadable = |e: std::io::Error| Fault::Unreadable { file: INDEX_FILE.into(), reason: e.to_string() };
    let file = File::open(dir.join(INDEX_FILE)).map_err(unreadable)?;
    let malformed = |reason: String| Fault::Malformed { file: INDEX_FILE.into(), reason };
    if file.metadata().map_err(unreadable)?.len() == 0 {
        return Err(malformed("is empty".into()));
    }
    let map = FileMap::new(&file).map_err(unreadable)?;
    parse_index(&map, each).map_err(malformed)
}

/// Calls `each` with every tensor and file of the text of an [`INDEX_FILE`], in its order. Unknown members are skipped.
///
/// The error says what is not as it should be, and where; `each` has then seen what came before it.
pub fn parse_index(json: &[u8], each: &mut dyn FnMut(&str, &str)) -> Result<(), String> {
    // Members that are passed over would otherwise never be looked at.
    let text = std::str::from_utf8(json).map_err(|e| format!("is not UTF-8: {e}"))?;
    let mut parser = serde_json::Deserializer::from_str(text);
    let found = IndexFile(each).deserialize(&mut parser).map_err(|e| e.to_string())?;
    parser.end().map_err(|e| e.to_string())?;
    if found { Ok(()) } else { Err("has no weight_map".into()) }
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

struct IndexFile<'f>(&'f mut dyn FnMut(&str, &str));

impl<'de> DeserializeSeed<'de> for IndexFile<'_> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for IndexFile<'_> {
    type Value = bool;
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with a weight_map")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut found = false;
        while let Some(Text(key)) = map.next_key()? {
            if key == "weight_map" {
                map.next_value_seed(WeightMap(&mut *self.0))?;
                found = true;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

struct WeightMap<'f>(&'f mut dyn FnMut(&str, &str));

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = ();
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object of tensor names and file names")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((Text(tensor), Text(file))) = map.next_entry::<Text<'de>, Text<'de>>()? {
            (self.0)(&tensor, &file);
        }
        Ok(())
    }
}

/// What to say of a folder without a checkpoint: what would be right, and what is there that looks like one.
fn nothing_to_open(dir: &Path) -> String {
    let mut there: Vec<String> = match std::fs::read_dir(dir) {
        Err(e) => return e.to_string(),
        Ok(list) => list.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect(),
    };
    there.retain(|n| [".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json"].iter().any(|end| n.ends_with(end)));
    there.sort();
    let wanted = format!("no {SINGLE_FILE} and no {INDEX_FILE}");
    if there.is_empty() { wanted } else { format!("{wanted} (there are {}, which are not read)", there.join(", ")) }
}
