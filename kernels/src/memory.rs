//! Large zeroed memory on huge pages where the system gives them.

use std::io;
use std::ptr::NonNull;

use memmap2::MmapMut;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Alignment of a [`HugeBuffer`]: a huge page.
const ALIGN: usize = 2 << 20;

/// Zeroed anonymous memory, aligned to 2 MiB. Weights and KV pages are read in streams of
/// megabytes; with 4 KiB pages the address translation alone would cost several percent.
///
/// The system commits pages on first touch.
#[derive(Debug)]
pub(crate) struct HugeBuffer {
    /// Owns the memory `base` points into.
    _map: MmapMut,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory; shared references hand out a raw pointer only, whose users
// state why their accesses are disjoint.
unsafe impl Send for HugeBuffer {}
// SAFETY: as above.
unsafe impl Sync for HugeBuffer {}

impl HugeBuffer {
    /// Maps `len` zeroed bytes.
    pub(crate) fn zeroed(len: usize) -> io::Result<Self> {
        let padded = len
            .max(1)
            .checked_add(ALIGN)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let mut map = MmapMut::map_anon(padded)?;
        #[cfg(target_os = "linux")]
        if len >= ALIGN {
            // A hint: without huge pages everything works, only slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let start = map.as_mut_ptr();
        let base = start.wrapping_add(start.align_offset(ALIGN));
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            _map: map,
            base,
            len,
        })
    }

    /// Start of the memory, aligned to 2 MiB.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_bounded() {
        for len in [0, 1, 4097, ALIGN, 3 * ALIGN + 5] {
            let buffer = HugeBuffer::zeroed(len).unwrap();
            assert_eq!(buffer.as_ptr() as usize % ALIGN, 0);
            assert_eq!(buffer.len(), len);
            // SAFETY: `len` bytes are mapped and nobody else has the pointer.
            let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr(), len) };
            assert!(bytes.iter().all(|b| *b == 0));
            bytes.fill(7);
        }
        assert!(HugeBuffer::zeroed(usize::MAX - 5).is_err());
        assert!(HugeBuffer::zeroed(1 << 60).is_err());
    }
}
