//! The memory that holds all frames of a CPU pool.

use super::{FrameLayout, RecordPlace};
use crate::memory::HugeBuffer;

/// The arena could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// The product overflows, a frame has no bytes, or the pool has none.
    #[error("a KV pool of {frames} frames of {frame_bytes} bytes is not possible")]
    Size {
        /// Frames asked for.
        frames: u32,
        /// Bytes of each.
        frame_bytes: usize,
    },
    /// The operating system refused the memory.
    #[error("cannot allocate {bytes} bytes for the KV cache; use a smaller KV memory size")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}

/// Frames of equal size in one zeroed allocation; frame `i` starts at byte `i * frame_bytes`.
///
/// The operating system commits the memory on first touch, so an arena that is never used costs
/// address space only.
#[derive(Debug)]
pub struct KvArena {
    memory: HugeBuffer,
    frame_bytes: usize,
    frames: u32,
}

impl KvArena {
    /// Allocates `frames` zeroed frames of `layout`.
    pub fn new(layout: FrameLayout, frames: u32) -> Result<Self, ArenaError> {
        let frame_bytes = layout.frame_bytes;
        let bytes = frame_bytes
            .checked_mul(frames as usize)
            .filter(|b| *b > 0)
            .ok_or(ArenaError::Size {
                frames,
                frame_bytes,
            })?;
        let memory = HugeBuffer::zeroed(bytes).map_err(|_| ArenaError::OutOfMemory { bytes })?;
        Ok(Self {
            memory,
            frame_bytes,
            frames,
        })
    }

    /// Frames in the arena.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Bytes of a frame.
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// The bytes of one frame. Panics if `frame` is out of range.
    pub fn frame(&self, frame: u32) -> &[u8] {
        assert!(frame < self.frames, "frame {frame} of {}", self.frames);
        // SAFETY: in range, initialised (zeroed at first), and `&self` excludes writers: the crate
        // writes through `frame_ptr` only while it holds the arena mutably.
        unsafe { std::slice::from_raw_parts(self.frame_ptr(frame), self.frame_bytes) }
    }

    /// The bytes of one frame, to write. Panics if `frame` is out of range.
    pub fn frame_mut(&mut self, frame: u32) -> &mut [u8] {
        assert!(frame < self.frames, "frame {frame} of {}", self.frames);
        // SAFETY: in range, initialised, and `&mut self` excludes everyone else.
        unsafe { std::slice::from_raw_parts_mut(self.frame_ptr(frame), self.frame_bytes) }
    }

    /// Copies frame `src` over frame `dst`. Panics if either is out of range.
    pub fn copy_frame(&mut self, src: u32, dst: u32) {
        let frames = self.frames;
        assert!(
            src < frames && dst < frames,
            "copy {src} to {dst} of {frames}"
        );
        // SAFETY: both in range; `copy` allows src == dst.
        unsafe { std::ptr::copy(self.frame_ptr(src), self.frame_ptr(dst), self.frame_bytes) }
    }

    /// The bytes of a record of a shrunk block whose frames are `frames`; put together in `scratch`
    /// if it lies in two.
    ///
    /// # Safety
    /// Nothing writes the block's frames while the result lives; `place` is of a record of `bytes`
    /// bytes in it.
    pub(crate) unsafe fn record<'a>(
        &'a self,
        frames: &[u32],
        place: RecordPlace,
        bytes: usize,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let first = place.first_part as usize;
        let start = self.frame_ptr(frames[place.frame as usize]);
        let start = start.wrapping_add(place.offset as usize).cast_const();
        // SAFETY: the first part lies inside the frame; the caller excludes writers.
        let head = unsafe { std::slice::from_raw_parts(start, first) };
        if first == bytes {
            return head;
        }
        let rest = self
            .frame_ptr(frames[place.frame as usize + 1])
            .cast_const();
        // SAFETY: the second part begins the next frame and is shorter than it.
        let tail = unsafe { std::slice::from_raw_parts(rest, bytes - first) };
        scratch.clear();
        scratch.extend_from_slice(head);
        scratch.extend_from_slice(tail);
        scratch
    }

    /// Writes such a record.
    ///
    /// # Safety
    /// Nobody else reads or writes the record's bytes meanwhile.
    pub(crate) unsafe fn write_record(&self, frames: &[u32], place: RecordPlace, record: &[u8]) {
        let (head, tail) = record.split_at(place.first_part as usize);
        let start = self.frame_ptr(frames[place.frame as usize]);
        let start = start.wrapping_add(place.offset as usize);
        // SAFETY: the first part lies inside the frame, and the caller excludes everyone else.
        unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), start, head.len()) };
        if !tail.is_empty() {
            let rest = self.frame_ptr(frames[place.frame as usize + 1]);
            // SAFETY: the second part begins the next frame and is shorter than it.
            unsafe { std::ptr::copy_nonoverlapping(tail.as_ptr(), rest, tail.len()) };
        }
    }

    /// Address of a frame; the caller has checked `frame < self.frames`.
    pub(crate) fn frame_ptr(&self, frame: u32) -> *mut u8 {
        debug_assert!(frame < self.frames);
        self.memory
            .as_ptr()
            .wrapping_add(frame as usize * self.frame_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(frame_bytes: usize) -> FrameLayout {
        FrameLayout {
            frame_bytes,
            frames_per_sub_block: 1,
        }
    }

    #[test]
    fn frames_are_disjoint_zeroed_and_copied() {
        let mut arena = KvArena::new(layout(96), 5).unwrap();
        assert!((0..5).all(|f| arena.frame(f).iter().all(|b| *b == 0)));
        for f in 0..5 {
            arena.frame_mut(f).fill(f as u8 + 1);
        }
        arena.copy_frame(4, 1);
        arena.copy_frame(2, 2);
        let got: Vec<u8> = (0..5).map(|f| arena.frame(f)[95]).collect();
        assert_eq!(got, [1, 5, 3, 4, 5]);
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(matches!(
            KvArena::new(layout(96), 0),
            Err(ArenaError::Size { .. })
        ));
        assert!(matches!(
            KvArena::new(layout(usize::MAX / 2), 3),
            Err(ArenaError::Size { .. })
        ));
        assert!(matches!(
            KvArena::new(layout(1 << 40), 1 << 20),
            Err(ArenaError::OutOfMemory { .. })
        ));
    }
}
