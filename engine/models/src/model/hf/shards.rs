//! Safetensors files: one, or several under an index, memory-mapped.
//!
//! Format: <https://huggingface.co/docs/safetensors/index>, parsed and bounds-checked by the
//! `safetensors` crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::json::{parse, read_small};
use crate::model::FileBytes;
use crate::model::error::{ModelError, Refusal};
use crate::model::lfs::is_lfs_pointer;
use crate::model::look::is_file;

/// The longest header accepted. Real ones are below 1 MB; this bounds the memory of parsing one.
const MAX_HEADER_BYTES: u64 = 16 << 20;
/// The most files accepted.
const MAX_SHARDS: usize = 1024;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// One tensor and where it lies.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    shard: usize,
    /// Its bytes, from the start of the shard.
    range: Range<usize>,
}

/// A tensor's bytes, which keep their file mapped.
#[derive(Clone)]
pub(super) struct TensorBytes {
    file: FileBytes,
    range: Range<usize>,
}

impl Deref for TensorBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.file[self.range.clone()]
    }
}

impl fmt::Debug for TensorBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {:?}", self.range)
    }
}

/// A checkpoint's files.
#[derive(Clone, Debug)]
pub(super) struct Shards {
    files: Vec<(PathBuf, FileBytes)>,
    tensors: BTreeMap<String, StoredTensor>,
    /// Bytes of each file up to the tensors' data.
    headers: Vec<usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files that the weights of `dir` are, whether all of them are there or not; `None` where
/// neither model.safetensors nor its index is.
pub(in crate::model) fn weight_files(dir: &Path) -> Result<Option<Vec<String>>, ModelError> {
    if is_file(&dir.join(SINGLE))? {
        return Ok(Some(vec![SINGLE.to_owned()]));
    }
    let index_path = dir.join(INDEX);
    let Some(bytes) = read_small(&index_path)? else {
        return Ok(None);
    };
    let index: Index = parse(&bytes).map_err(|refusal| refusal.at(&index_path))?;
    let names = file_names(&index).map_err(|refusal| refusal.at(&index_path))?;
    Ok(Some(names.into_iter().map(str::to_owned).collect()))
}

impl Shards {
    /// Opens `model.safetensors`, or the files that `model.safetensors.index.json` names.
    pub(super) fn open(dir: &Path) -> Result<Self, ModelError> {
        let mut shards = Self {
            files: Vec::new(),
            tensors: BTreeMap::new(),
            headers: Vec::new(),
        };
        if is_file(&dir.join(SINGLE))? {
            shards.add(dir.join(SINGLE), |_| true)?;
            return Ok(shards);
        }
        let index_path = dir.join(INDEX);
        let Some(bytes) = read_small(&index_path)? else {
            let hint = "there is neither model.safetensors nor model.safetensors.index.json \
                        (weights in other formats, such as pytorch_model.bin, are not supported)";
            return Err(Refusal::MissingFile(hint.to_owned()).at(dir));
        };
        let index: Index = parse(&bytes).map_err(|refusal| refusal.at(&index_path))?;
        let names = file_names(&index).map_err(|refusal| refusal.at(&index_path))?;
        for name in names {
            let listed = |tensor: &str| index.weight_map.get(tensor).is_some_and(|in_| in_ == name);
            shards.add(dir.join(name), listed)?;
        }
        match index
            .weight_map
            .keys()
            .find(|tensor| !shards.tensors.contains_key(*tensor))
        {
            Some(absent) => {
                let place = &index.weight_map[absent];
                Err(Refusal::MissingTensor(absent.clone()).at(&dir.join(place)))
            }
            None => Ok(shards),
        }
    }

    /// Opens one file and takes over the tensors that are `listed`.
    fn add(&mut self, path: PathBuf, listed: impl Fn(&str) -> bool) -> Result<(), ModelError> {
        let bytes = FileBytes::open(&path).map_err(|error| ModelError::io(&path, error))?;
        if is_lfs_pointer(&bytes) {
            return Err(Refusal::LfsPointer.at(&path));
        }
        let header = header_bytes(&bytes).map_err(|refusal| refusal.at(&path))?;
        let parsed = SafeTensors::deserialize(&bytes)
            .map_err(|error| Refusal::Safetensors(error.to_string()).at(&path))?;
        let base = bytes.as_ptr().addr();
        for (name, view) in parsed.iter().filter(|(name, _)| listed(name)) {
            let start = view.data().as_ptr().addr() - base;
            let tensor = StoredTensor {
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                shard: self.files.len(),
                range: start..start + view.data().len(),
            };
            self.tensors.insert(name.to_owned(), tensor);
        }
        self.headers.push(header);
        self.files.push((path, bytes));
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(super) fn data(&self, tensor: &StoredTensor) -> &[u8] {
        &self.files[tensor.shard].1[tensor.range.clone()]
    }

    /// Lets go of the memory that holds a tensor's bytes, which can still be read.
    pub(super) fn done_reading(&self, tensor: &StoredTensor) {
        self.files[tensor.shard]
            .1
            .done_reading(tensor.range.clone());
    }

    /// A tensor's bytes by themselves.
    pub(super) fn bytes(&self, tensor: &StoredTensor) -> TensorBytes {
        TensorBytes {
            file: self.files[tensor.shard].1.clone(),
            range: tensor.range.clone(),
        }
    }

    /// Copies a tensor's bytes from `offset` on into all of `out`.
    pub(super) fn read(
        &self,
        tensor: &StoredTensor,
        offset: usize,
        out: &mut [u8],
    ) -> std::io::Result<()> {
        assert!(
            offset + out.len() <= tensor.range.len(),
            "within the tensor"
        );
        let file = &self.files[tensor.shard].1;
        file.read_at(tensor.range.start + offset, out)
    }

    /// The file a tensor lies in.
    pub(super) fn path(&self, tensor: &StoredTensor) -> &Path {
        &self.files[tensor.shard].0
    }

    /// Each file's bytes up to the tensors' data, and its length.
    pub(super) fn headers(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.files
            .iter()
            .zip(&self.headers)
            .map(|((_, bytes), len)| (&bytes[..*len], bytes.len()))
    }

    /// Each file whole.
    pub(super) fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.files.iter().map(|(_, bytes)| &**bytes)
    }
}

/// The files an index names: plain names, so that nothing outside the directory is opened.
fn file_names(index: &Index) -> Result<BTreeSet<&str>, Refusal> {
    let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    if names.is_empty() || names.len() > MAX_SHARDS {
        let expected = format!("1 to {MAX_SHARDS} files");
        return Err(Refusal::invalid(
            "weight_map",
            format!("{} files", names.len()),
            expected,
        ));
    }
    let plain = |name: &str| {
        !name.contains(['/', '\\']) && name.ends_with(".safetensors") && !name.starts_with('.')
    };
    match names.iter().find(|name| !plain(name)) {
        Some(name) => {
            let expected = "names of .safetensors files in the same directory";
            Err(Refusal::invalid(
                "weight_map",
                format!("{name:?}"),
                expected,
            ))
        }
        None => Ok(names),
    }
}

/// The length of a file's header including its own length, if acceptable.
fn header_bytes(bytes: &[u8]) -> Result<usize, Refusal> {
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Err(Refusal::Safetensors(format!(
            "it has only {} bytes",
            bytes.len()
        )));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES || length > rest.len() as u64 {
        let problem = format!(
            "its header should have {length} bytes; {} follow, and {MAX_HEADER_BYTES} is the most \
             accepted",
            rest.len()
        );
        return Err(Refusal::Safetensors(problem));
    }
    Ok(8 + length as usize)
}
