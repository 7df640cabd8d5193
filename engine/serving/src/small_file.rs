//! Files that people write and programs keep an eye on: keys and certificates.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Bytes of a file: a bundle of all public authorities has some 200 KiB.
const BYTES_MAX: u64 = 4 << 20;

/// A file's bytes, or a sentence that says why there are none.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("it is longer than {BYTES_MAX} bytes"));
    }
    Ok(bytes)
}
