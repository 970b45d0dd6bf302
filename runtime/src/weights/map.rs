//! Read-only memory maps of checkpoint files: one of the two places where the workspace allows unsafe code.
#![allow(unsafe_code)]

use memmap2::Mmap;
use std::fs::File;
use std::ops::Deref;

/// The bytes of a file, paged in as they are read.
#[derive(Debug)]
pub(crate) struct FileMap(Mmap);

impl FileMap {
    /// Maps a whole file. A file of no bytes cannot be mapped.
    pub(crate) fn new(file: &File) -> std::io::Result<Self> {
        // SAFETY: the map is private and read-only, and its bytes are only ever decoded as plain integers, so another process
        // that rewrites the file can change values but not break an invariant; one that shortens it ends this process with SIGBUS,
        // as with every program that maps its weights.
        unsafe { Mmap::map(file) }.map(Self)
    }
}

impl Deref for FileMap {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
