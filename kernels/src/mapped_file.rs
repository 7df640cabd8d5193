//! Read-only memory maps of files, behind a safe type.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

/// Bytes of the largest pages that maps of files commonly have.
const PAGE: usize = 64 << 10;

/// A file mapped into memory for reading: model weights are looked at in place, and the operating
/// system drops their pages again when memory is short.
///
/// Nobody may shorten or rewrite the file while it is mapped. Model files are written once and
/// moved into place whole, so this holds for every file that `ebb` wrote itself. If somebody
/// truncates one nevertheless, touching a page past the new end ends the process with SIGBUS (it
/// does not read foreign memory); if somebody rewrites one, the bytes read change under the
/// reader. Readers must therefore check what they read at each use, not once for all.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<memmap2::Mmap>,
}

impl MappedFile {
    /// Maps the whole file at `path` for reading.
    ///
    /// # Errors
    /// Whatever opening, inspecting or mapping the file reports; a directory or a device is
    /// [`io::ErrorKind::InvalidInput`].
    pub fn open(path: &Path) -> io::Result<Self> {
        // Looked at before it is opened: opening a named pipe would wait for a writer.
        let metadata = std::fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self { file, map: None });
        }
        // SAFETY: the map is private to this value, read-only, and lives as long as it. The bytes
        // are only handed out as `&[u8]`, for which any bit pattern is valid; what is left to the
        // caller is that nobody rewrites the file meanwhile, which the type's documentation states
        // together with what happens otherwise.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        let map = Some(map);
        Ok(Self { file, map })
    }

    /// Copies the bytes from `offset` on into all of `out`: faster than through the map, whose
    /// pages would have to be entered into the page table one by one, and a file that was shortened
    /// meanwhile is an error here.
    ///
    /// # Errors
    /// Whatever reading reports; [`io::ErrorKind::UnexpectedEof`] beyond the end.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, out, offset)
    }

    /// Lets go of the memory that holds a range of bytes, as far as it is whole pages: the bytes
    /// can still be read, from the file again. For tensors that have been packed. Beyond the end
    /// there is nothing to let go of.
    pub fn done_reading(&self, range: Range<usize>) {
        let Some(map) = &self.map else { return };
        let end = range.end.min(map.len()) / PAGE * PAGE;
        let Some(start) = range.start.checked_next_multiple_of(PAGE) else {
            return;
        };
        if start >= end {
            return;
        }
        #[cfg(target_os = "linux")]
        {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: nothing was written to this map of a file, so that pages read afterwards have
            // the same bytes; those are only handed out as shared slices.
            let advised = unsafe { map.unchecked_advise_range(advice, start, end - start) };
            // A hint: without it everything works, in more memory.
            let _ = advised;
        }
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_exactly_the_bytes_of_the_file() {
        let path = std::env::temp_dir().join(format!("ebb-mapped-file-{}", std::process::id()));
        for bytes in [&b""[..], b"x", &[7; 10_000]] {
            std::fs::write(&path, bytes).expect("write a temporary file");
            let file = MappedFile::open(&path).expect("map it");
            assert_eq!(&*file, bytes);
            let mut copy = vec![0; bytes.len() / 2];
            let offset = bytes.len() as u64 - copy.len() as u64;
            file.read_at(offset, &mut copy).expect("read it");
            assert_eq!(copy, bytes[bytes.len() - copy.len()..]);
            let error = file.read_at(offset + 1, &mut [0; 10_000]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        std::fs::remove_file(&path).expect("remove it");
        assert_eq!(
            MappedFile::open(&path).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_is_let_go_and_bytes_stay() {
        const MIB: usize = 1 << 20;
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
            let line = status.lines().find(|line| line.starts_with("RssFile:"));
            let number = line.and_then(|line| line.split_whitespace().nth(1));
            number
                .and_then(|kib| kib.parse::<usize>().ok())
                .expect("a number")
                * 1024
        };
        let path = std::env::temp_dir().join(format!("ebb-let-go-{}", std::process::id()));
        let bytes: Vec<u8> = (0..64 * MIB).map(|i| (i / 4099) as u8).collect();
        std::fs::write(&path, &bytes).expect("write a temporary file");
        let file = MappedFile::open(&path).expect("map it");
        assert!(*file == *bytes);
        let before = resident();
        file.done_reading(5..60 * MIB);
        // Other tests may map some pages meanwhile.
        let after = resident();
        assert!(after + 50 * MIB < before, "{before} {after}");
        assert!(*file == *bytes);
        // Nothing whole, nothing at all, and beyond the end.
        let ranges = [
            5..10,
            7..7,
            63 * MIB..usize::MAX,
            usize::MAX - 1..usize::MAX,
        ];
        for range in ranges {
            file.done_reading(range);
        }
        assert!(*file == *bytes);
        std::fs::write(&path, []).expect("empty it");
        MappedFile::open(&path).expect("map it").done_reading(0..10);
        std::fs::remove_file(&path).expect("remove it");
    }

    #[test]
    fn a_directory_is_not_a_file() {
        let error = MappedFile::open(&std::env::temp_dir()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
