//! Read-only memory maps of files, behind a safe type.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

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

    #[test]
    fn a_directory_is_not_a_file() {
        let error = MappedFile::open(&std::env::temp_dir()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
