//! Offsets in a rank's arena. First fit over the gaps between blocks that are alive, or dead but perhaps still in use by a stream.

use crate::program::{BufferId, StreamId};

/// Offsets are multiples of this, the alignment of device allocations.
const ALIGNMENT_BYTES: u64 = 256;

#[derive(Debug)]
struct Block {
    offset: u64,
    bytes: u64,
    alive: bool,
    /// The last access on each stream (command index, stream).
    accesses: Vec<(usize, StreamId)>,
}

/// Blocks in the order of their offsets.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    blocks: Vec<Block>,
    /// By buffer.
    of_buffer: Vec<Option<u64>>,
    peak: u64,
}

impl Arena {
    /// The offset of a new block of `bytes`. A dead block may be overwritten when `finished` holds for its last accesses.
    pub(crate) fn allocate(&mut self, bytes: u64, finished: impl Fn(&[(usize, StreamId)]) -> bool) -> u64 {
        // Zero-sized tensors (a rank without tokens) still get a place, so that every offset names one live block.
        let bytes = bytes.max(1);
        let mut offset = 0;
        for b in self.blocks.iter().filter(|b| b.alive || !finished(&b.accesses)) {
            if offset + bytes <= b.offset {
                break;
            }
            offset = offset.max((b.offset + b.bytes).next_multiple_of(ALIGNMENT_BYTES));
        }
        offset
    }
    /// Forgets dead blocks that no command on any stream can still race with.
    pub(crate) fn forget(&mut self, finished_everywhere: impl Fn(&[(usize, StreamId)]) -> bool) {
        self.blocks.retain(|b| b.alive || !finished_everywhere(&b.accesses));
    }
    /// Enters an allocated block under its buffer.
    pub(crate) fn bind(&mut self, buffer: BufferId, offset: u64, bytes: u64) {
        let bytes = bytes.max(1);
        let at = self.blocks.partition_point(|b| b.offset < offset);
        self.blocks.insert(at, Block { offset, bytes, alive: true, accesses: Vec::new() });
        let index = buffer.0 as usize;
        if self.of_buffer.len() <= index {
            self.of_buffer.resize(index + 1, None);
        }
        self.of_buffer[index] = Some(offset);
        self.peak = self.peak.max(offset + bytes);
    }
    /// Notes that a command touches a buffer.
    pub(crate) fn access(&mut self, buffer: BufferId, command: usize, stream: StreamId) {
        if let Some(block) = self.live_block(buffer) {
            block.accesses.retain(|(_, s)| *s != stream);
            block.accesses.push((command, stream));
        }
    }
    /// Marks a buffer as used for the last time.
    pub(crate) fn free(&mut self, buffer: BufferId) {
        if let Some(block) = self.live_block(buffer) {
            block.alive = false;
        }
    }
    /// The most bytes in use.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak.next_multiple_of(ALIGNMENT_BYTES)
    }
    fn live_block(&mut self, buffer: BufferId) -> Option<&mut Block> {
        let offset = self.of_buffer.get(buffer.0 as usize).copied().flatten()?;
        let from = self.blocks.partition_point(|b| b.offset < offset);
        self.blocks[from..].iter_mut().take_while(|b| b.offset == offset).find(|b| b.alive)
    }
}
