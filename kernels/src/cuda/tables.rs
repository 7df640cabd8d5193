//! Block tables in device memory: they stay from step to step, and a step changes the words that
//! differ.

use std::sync::Arc;

use super::driver::{Device, DeviceBuffer, Kernel, Pinned, Stream};
use super::error::CudaError;
use super::params::{DevicePtr, KernelParams};
use crate::backend::{TableDelta, TableShape};

#[cfg(test)]
mod tests;

/// Changes that one launch makes. A step with more of them, which is rare, waits between launches.
const CHANGES_MAX: usize = 1 << 14;

/// Words of the device's `BlockRef`: the first of a block's frames, and where its level is.
const ENTRY_WORDS: usize = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ScatterParams {
    changes: DevicePtr,
    words: DevicePtr,
    count: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::ScatterParams` of ops/scatter.cu.
unsafe impl KernelParams for ScatterParams {}

/// Room for sequences whose shrunk blocks are read in scratch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ScratchShape {
    /// Blocks of all such sequences of a step.
    pub(super) entries: usize,
    /// Blocks in scratch at once.
    pub(super) blocks: usize,
    /// Frames of each.
    pub(super) block_frames: usize,
}

/// The tables that attention and append read: entries (where a block's frames begin), frames and
/// blocks' precision levels.
///
/// Row `slot` is at entry `slot * row_blocks`, the frames of block `id` from `id * block_frames`
/// on, and its level at `id`. Sequences whose shrunk blocks are read in scratch have entries
/// behind those, made anew for each step; the frames of scratch stand behind the others.
#[derive(Debug)]
pub(super) struct DeviceTables {
    shape: TableShape,
    /// Of all kinds.
    entries: usize,
    frames: usize,
    scratch: ScratchShape,
    /// Entries of this step's sequences in scratch.
    made: usize,
    /// The entries, the frames, the levels.
    words: DeviceBuffer<u32>,
    /// What they hold once all changes have been made.
    mirror: Vec<u32>,
    /// Words whose change has not been enqueued, each once.
    changed: Vec<u32>,
    is_changed: Vec<bool>,
    /// Written by turns: the device may still read the one while the other is written.
    hosts: [Pinned<u32>; 2],
    turn: usize,
    staged: DeviceBuffer<u32>,
    scatter: Kernel<ScatterParams>,
}

impl DeviceTables {
    /// Entries, frames, levels.
    fn sizes(shape: &TableShape) -> (usize, usize, usize) {
        (
            shape.slots * shape.row_blocks,
            shape.blocks * shape.block_frames,
            shape.blocks,
        )
    }

    /// Empty tables of the shape, with room in scratch.
    pub(super) fn new(
        device: &Arc<Device>,
        shape: TableShape,
        scratch: ScratchShape,
    ) -> Result<Self, CudaError> {
        let (entries, frames, levels) = Self::sizes(&shape);
        let entries = entries + scratch.entries;
        let frames = frames + scratch.blocks * scratch.block_frames;
        let words = ENTRY_WORDS * entries + frames + levels;
        if u32::try_from(words).is_err() {
            let what = format!("block tables of {entries} entries and {frames} frames");
            return Err(CudaError::Unsupported(what));
        }
        let staging = || Pinned::new(device, 2 * CHANGES_MAX);
        Ok(Self {
            shape,
            entries,
            frames,
            scratch,
            made: 0,
            words: DeviceBuffer::filled(device, words, 0, "block tables")?,
            mirror: vec![0; words],
            changed: Vec::new(),
            is_changed: vec![false; words],
            hosts: [staging()?, staging()?],
            turn: 0,
            staged: DeviceBuffer::filled(device, 2 * CHANGES_MAX, 0, "changes of block tables")?,
            scatter: device.kernel("scatter", 0)?,
        })
    }

    /// Bytes that `new` allocates on the device.
    pub(super) fn bytes(shape: &TableShape) -> usize {
        let (entries, frames, levels) = Self::sizes(shape);
        (ENTRY_WORDS * entries + frames + levels + 2 * CHANGES_MAX) * size_of::<u32>()
    }

    /// Bytes that it allocates beside for scratch.
    pub(super) fn scratch_bytes(scratch: &ScratchShape) -> usize {
        (ENTRY_WORDS * scratch.entries + scratch.blocks * scratch.block_frames) * size_of::<u32>()
    }

    /// Address of the entries.
    pub(super) fn entries(&self) -> DevicePtr {
        self.words.ptr()
    }

    /// Address of the frames.
    pub(super) fn frames(&self) -> DevicePtr {
        self.words.at(ENTRY_WORDS * self.entries)
    }

    /// Address of the levels.
    pub(super) fn levels(&self) -> DevicePtr {
        self.words.at(ENTRY_WORDS * self.entries + self.frames)
    }

    fn set(&mut self, word: usize, value: u32) {
        if self.mirror[word] != value {
            self.mirror[word] = value;
            if !std::mem::replace(&mut self.is_changed[word], true) {
                self.changed.push(word as u32);
            }
        }
    }

    fn set_entry(&mut self, entry: usize, first_frame: u32, block: u32) {
        self.set(ENTRY_WORDS * entry, first_frame);
        self.set(ENTRY_WORDS * entry + 1, block);
    }

    fn set_level(&mut self, block: usize, level: u16) {
        let word = ENTRY_WORDS * self.entries + self.frames + block;
        self.set(word, level.into());
    }

    fn set_frame(&mut self, index: usize, frame: u32) {
        self.set(ENTRY_WORDS * self.entries + index, frame);
    }

    /// Takes note of a delta that fits the shape.
    pub(super) fn apply(&mut self, delta: &TableDelta) {
        let TableShape {
            row_blocks,
            block_frames,
            ..
        } = self.shape;
        match *delta {
            TableDelta::Row { slot, index, block } => {
                let entry = slot as usize * row_blocks + index as usize;
                self.set_entry(entry, self.block_frames(block), block);
            }
            TableDelta::Block { block, level } => self.set_level(block as usize, level),
            TableDelta::Frame {
                block,
                index,
                frame,
            } => self.set_frame(block as usize * block_frames + index as usize, frame),
        }
    }

    /// Where the frames of a block begin.
    pub(super) fn block_frames(&self, block: u32) -> u32 {
        block * self.shape.block_frames as u32
    }

    /// Where the frames of block `index` in scratch begin.
    pub(super) fn scratch_frames(&self, index: usize) -> u32 {
        let before = (self.scratch.blocks - index) * self.scratch.block_frames;
        (self.frames - before) as u32
    }

    /// Says where scratch lies, for good: `frames_of(index)` are the frames of a block in it.
    pub(super) fn place_scratch<I: Iterator<Item = u32>>(&mut self, frames_of: impl Fn(u32) -> I) {
        for index in 0..self.scratch.blocks {
            let first = self.scratch_frames(index) as usize;
            let frames = frames_of(index as u32).take(self.scratch.block_frames);
            for (i, frame) in frames.enumerate() {
                self.set_frame(first + i, frame);
            }
        }
    }

    /// Forgets the sequences that are read in scratch.
    pub(super) fn clear_scratch(&mut self) {
        self.made = 0;
    }

    /// Makes entries of another sequence that is read in scratch, given where the frames of each of
    /// its blocks begin; the first of them.
    pub(super) fn add_to_scratch(&mut self, blocks: impl Iterator<Item = u32>) -> u32 {
        let base = self.entries - self.scratch.entries;
        let first = base + self.made;
        for first_frame in blocks {
            // Nobody asks for the level of what is 16 bit.
            self.set_entry(base + self.made, first_frame, 0);
            self.made += 1;
        }
        first as u32
    }

    /// The first frames of the block at an entry, once all changes have been made.
    pub(super) fn frames_at(&self, entry: u32, count: usize) -> &[u32] {
        let first = self.mirror[ENTRY_WORDS * entry as usize] as usize;
        &self.mirror[ENTRY_WORDS * self.entries + first..][..count]
    }

    /// Enqueues all changes. The stream must have finished with the step before the previous one,
    /// and a copy must be enqueued before the kernels that read the tables.
    pub(super) fn flush(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.turn ^= 1;
        let mut is_first = true;
        while !self.changed.is_empty() {
            if !std::mem::take(&mut is_first) {
                // The host's buffer is still being read.
                stream.synchronize()?;
            }
            let count = self.changed.len().min(CHANGES_MAX);
            let rest = self.changed.len() - count;
            let host = &mut self.hosts[self.turn];
            for (&word, pair) in self.changed[rest..].iter().zip(host.chunks_exact_mut(2)) {
                (pair[0], pair[1]) = (word, self.mirror[word as usize]);
            }
            let params = ScatterParams {
                changes: self.staged.ptr(),
                words: self.words.ptr(),
                count: count as u32,
                reserved: 0,
            };
            // SAFETY: the buffer of the host is written again when the stream has finished with the
            // step or has been waited for; every word is in range and stands once; all live as long
            // as `self`, whose owner waits for the stream before it drops them.
            unsafe {
                stream.upload(&mut self.staged, 0, &self.hosts[self.turn], 2 * count)?;
                let grid = (count.div_ceil(256) as u32, 1);
                self.scatter.launch(stream, grid, 256, &params)?;
            }
            for word in self.changed.drain(rest..) {
                self.is_changed[word as usize] = false;
            }
        }
        Ok(())
    }
}
