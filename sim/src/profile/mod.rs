//! Profiles of other engines: what torch's profiler and Nsight Systems recorded of a step, by our classes of work.
//!
//! A reader a format turns a file into [`Kernel`]s: names, places, times. `steps` finds the step that repeats, `classes` says what work a
//! kernel is, from its name and from what runs around it, and [`summarize`] adds up. Nothing is matched with single commands of ours: engines fuse and
//! split differently, but attention is attention.

mod beside;
mod classes;
mod kineto;
mod nsys_csv;
mod nsys_sqlite;
mod sqlite;
mod steps;
mod summary;

#[cfg(test)]
mod tests;

pub use beside::{Beside, BesideRow, BesideStep, beside, shortened};
pub use classes::{Group, groups};
pub use steps::{Steps, find_steps};
pub use summary::{ClassSum, KernelSum, Planned, PlannedClass, StepProfile, planned, summarize};

use std::collections::BTreeMap;
use std::io::Read;

/// Longest file that is read, packed or unpacked.
pub const MOST_BYTES: usize = 2 << 30;
/// Kernels that are read at most.
const MOST_KERNELS: usize = 50_000_000;

/// What wrote a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// torch's profiler: a Chrome trace of Kineto.
    Kineto,
    /// `nsys export --type sqlite`.
    NsysSqlite,
    /// `nsys stats --report cuda_gpu_trace --format csv`.
    NsysTrace,
    /// `nsys stats --report cuda_gpu_kern_sum --format csv`: sums, no times.
    NsysSums,
}

impl Source {
    /// What wrote it, for people.
    pub fn name(self) -> &'static str {
        match self {
            Source::Kineto => "torch profiler",
            Source::NsysSqlite => "nsys, SQLite",
            Source::NsysTrace => "nsys, kernel trace",
            Source::NsysSums => "nsys, kernel sums",
        }
    }
}

/// A kernel, copy or fill that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Index into [`Profile::names`].
    pub name: u32,
    /// The GPU.
    pub device: u32,
    /// Its stream.
    pub stream: u64,
    /// When it began, picoseconds from the first.
    pub start_ps: u64,
    /// How long it took, picoseconds.
    pub duration_ps: u64,
}

impl Kernel {
    /// When it ended.
    pub fn end_ps(&self) -> u64 {
        self.start_ps.saturating_add(self.duration_ps)
    }
}

/// All runs of one kernel, where nothing else is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameSum {
    /// Index into [`Profile::names`].
    pub name: u32,
    /// Runs.
    pub count: u64,
    /// Time of all of them, picoseconds.
    pub total_ps: u64,
}

/// What is in a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Kernels with their times, by device, then start.
    Timed(Vec<Kernel>),
    /// Sums only.
    Sums(Vec<NameSum>),
}

/// A profile as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What wrote it.
    pub source: Source,
    /// GPUs, as the file names them.
    pub gpus: Vec<String>,
    /// Names of kernels.
    pub names: Vec<String>,
    /// What ran.
    pub content: Content,
}

/// Why a file is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// It is longer than anything real.
    #[error("longer than {} MiB, packed or unpacked", MOST_BYTES >> 20)]
    TooLong,
    /// It is of no known format.
    #[error("{0}; accepted: {ACCEPTED}")]
    Unknown(&'static str),
    /// It is a trace of moetwin, which is joined command by command instead.
    #[error("it is a trace of moetwin itself, not of another engine; accepted: {ACCEPTED}")]
    Ours,
    /// It ends too early.
    #[error("it ends too early: {0}; was it copied whole, and had the profiler finished writing?")]
    Truncated(String),
    /// It is of a known format, and something in it is wrong.
    #[error("{place}: {what}")]
    Wrong {
        /// Where.
        place: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// It is whole, and no kernel is in it.
    #[error("no kernel of a GPU is in it: {0}")]
    NoKernels(&'static str),
}

/// What is read.
pub const ACCEPTED: &str = "a trace of torch's profiler (.json, .json.gz), nsys export --type sqlite, the CSV of nsys stats --report \
                            cuda_gpu_trace (or cuda_gpu_kern_sum, with --steps)";

pub(crate) fn wrong(place: impl Into<String>, what: impl Into<String>) -> ProfileError {
    ProfileError::Wrong { place: place.into(), what: what.into() }
}

/// Numbers for names.
#[derive(Default)]
struct Names {
    known: BTreeMap<String, u32>,
}

impl Names {
    fn of(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.known.get(name) {
            return id;
        }
        let id = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        self.known.insert(name.to_owned(), id);
        id
    }
    fn list(self) -> Vec<String> {
        let mut all: Vec<(String, u32)> = self.known.into_iter().collect();
        all.sort_by_key(|(_, id)| *id);
        all.into_iter().map(|(name, _)| name).collect()
    }
}

/// Reads a profile of any known format, packed with gzip or not.
///
/// # Errors
/// If it is of none, ends too early, holds no kernel, or something in it is wrong: what, and where.
pub fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
    if bytes.len() > MOST_BYTES {
        return Err(ProfileError::TooLong);
    }
    let unpacked;
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        unpacked = unpack(bytes)?;
        &unpacked
    } else {
        bytes
    };
    let first = bytes.iter().find(|b| !b.is_ascii_whitespace() && !matches!(b, 0xef | 0xbb | 0xbf));
    let mut profile = match first {
        None => return Err(ProfileError::Unknown("it is empty")),
        _ if bytes.starts_with(sqlite::MAGIC) => nsys_sqlite::read(bytes)?,
        Some(b'{' | b'[') => kineto::read(bytes)?,
        _ if bytes.contains(&0) => {
            return Err(ProfileError::Unknown("it is no text and no SQLite database (an .nsys-rep report has to be exported first)"));
        }
        _ => nsys_csv::read(bytes)?,
    };
    if let Content::Timed(kernels) = &mut profile.content {
        let first = kernels.iter().map(|k| k.start_ps).min().unwrap_or(0);
        kernels.iter_mut().for_each(|k| k.start_ps -= first);
        kernels.sort_by_key(|k| (k.device, k.start_ps, k.stream, k.name));
    }
    Ok(profile)
}

fn unpack(bytes: &[u8]) -> Result<Vec<u8>, ProfileError> {
    let mut out = Vec::new();
    let read = flate2::read::MultiGzDecoder::new(bytes).take(MOST_BYTES as u64 + 1).read_to_end(&mut out);
    read.map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => ProfileError::Truncated(format!("gzip data stop after {} unpacked bytes", out.len())),
        _ => wrong("gzip", e.to_string()),
    })?;
    if out.len() > MOST_BYTES { Err(ProfileError::TooLong) } else { Ok(out) }
}

/// Nanoseconds as picoseconds.
fn of_ns(ns: i64) -> Option<u64> {
    u64::try_from(ns).ok()?.checked_mul(1000)
}
