//! A GGUF file's table of contents: header, metadata, tensor table. A split file is one whose
//! tensors lie in several.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;

use super::error::GgufError;
use super::ggml_type::GgmlType;
use super::metadata::GgufMetadata;
use super::reader::Reader;
use super::split::SplitName;
use super::value::read_value;
use crate::model::FileBytes;
use crate::model::lfs::is_lfs_pointer;

/// The most metadata entries accepted; real files have some dozens.
const MAX_ENTRIES: u64 = 1 << 16;
/// The most tensors accepted; real files have some hundreds.
const MAX_TENSORS: u64 = 1 << 16;
/// Where the tensor data must have begun. The largest vocabularies need some 20 MB, and a bound
/// here bounds the time and memory that a hostile file can take.
const MAX_CONTENTS_BYTES: usize = 256 << 20;
/// The longest key the format allows.
const MAX_KEY_BYTES: u64 = 65_535;
/// The longest tensor name accepted (GGML itself stops at 64).
const MAX_NAME_BYTES: u64 = 256;
/// GGML's limit.
const MAX_DIMENSIONS: u32 = 4;
/// The key that says of how many parts a file is one.
const COUNT: &str = "split.count";
const DEFAULT_ALIGNMENT: u32 = 32;
const MAX_ALIGNMENT: u32 = 1 << 20;

/// One tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTensor {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Its shape with the slowest dimension first: `[rows][columns]` for a matrix. (The file has
    /// it the other way round.)
    pub shape: Vec<usize>,
    /// How its elements are encoded.
    pub kind: GgmlType,
    /// Of the file that it lies in, from 0.
    part: usize,
    /// Its bytes, counted from the start of that file.
    range: Range<usize>,
}

impl GgufTensor {
    /// Number of elements; the table of contents was only accepted if this does not overflow.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An open GGUF file, or all parts of a split one, whose tables of contents have been checked
/// against their sizes.
#[derive(Debug)]
pub struct GgufFile {
    parts: Vec<Part>,
    metadata: GgufMetadata,
    tensors: Vec<GgufTensor>,
    by_name: HashMap<String, usize>,
}

/// One file.
#[derive(Debug)]
struct Part {
    bytes: FileBytes,
    data_start: usize,
}

/// What one file says.
struct Contents {
    part: Part,
    metadata: GgufMetadata,
    tensors: Vec<GgufTensor>,
}

impl GgufFile {
    /// Maps the file at `path` and parses it. Where it is one part of a split file, the others are
    /// opened too: they lie beside it.
    ///
    /// # Errors
    /// The outer error is that of opening the file, the inner one says why it is refused.
    pub fn open(path: &Path) -> io::Result<Result<Self, GgufError>> {
        let bytes = FileBytes::open(path)?;
        Ok(
            Contents::parse(bytes).and_then(|given| match split_count(&given.metadata)? {
                1 => Self::join(vec![given]),
                count => Self::join(beside(path, given, count)?),
            }),
        )
    }

    /// Parses and checks everything but the tensors' data. Time and memory are bounded by the
    /// limits of this module whatever the file says.
    ///
    /// # Errors
    /// Why the file is refused.
    pub fn parse(bytes: FileBytes) -> Result<Self, GgufError> {
        Self::join(vec![Contents::parse(bytes)?])
    }

    /// The parts of a file in their order as one: metadata of the first, tensors of all.
    fn join(contents: Vec<Contents>) -> Result<Self, GgufError> {
        check_split(&contents)?;
        let (mut parts, mut tensors) = (Vec::new(), Vec::new());
        let mut metadata = None;
        for (part, one) in contents.into_iter().enumerate() {
            parts.push(one.part);
            metadata.get_or_insert(one.metadata);
            tensors.extend(
                one.tensors
                    .into_iter()
                    .map(|tensor| GgufTensor { part, ..tensor }),
            );
        }
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            if by_name.insert(tensor.name.clone(), index).is_some() {
                let name = tensor.name.clone();
                return Err(GgufError::Duplicate {
                    what: "tensor",
                    name,
                });
            }
        }
        Ok(Self {
            parts,
            metadata: metadata.unwrap_or_default(),
            tensors,
            by_name,
        })
    }

    /// The key-value section; of a split file that of its first part.
    pub fn metadata(&self) -> &GgufMetadata {
        &self.metadata
    }

    /// Every tensor, in the file's order.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The encoded bytes of one of this file's tensors.
    pub fn data(&self, tensor: &GgufTensor) -> &[u8] {
        &self.parts[tensor.part].bytes[tensor.range.clone()]
    }

    /// Lets go of the memory that holds a tensor's bytes, which can still be read.
    pub(super) fn done_reading(&self, tensor: &GgufTensor) {
        self.parts[tensor.part]
            .bytes
            .done_reading(tensor.range.clone());
    }

    /// Of each part everything before the tensor data (header, metadata, tensor table), and its
    /// length in bytes.
    pub fn contents(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.parts.iter().map(|Part { bytes, data_start }| {
            let contents = &bytes[..(*data_start).min(bytes.len())];
            (contents, bytes.len())
        })
    }

    /// Each part whole.
    pub fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| &*part.bytes)
    }
}

impl Contents {
    fn parse(bytes: FileBytes) -> Result<Self, GgufError> {
        let contents = &bytes[..bytes.len().min(MAX_CONTENTS_BYTES)];
        let mut reader = Reader::new(contents, 0);
        if reader.take(4, "the magic").ok() != Some(b"GGUF") {
            return Err(match is_lfs_pointer(&bytes) {
                true => GgufError::LfsPointer,
                false => GgufError::NotGguf,
            });
        }
        let version = reader.u32("the version")?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version { found: version });
        }
        // The shortest tensor entry: name length, a name, dimension count, one dimension, type,
        // offset; the shortest metadata entry: key length, a key, type, a byte.
        let tensor_count = reader.count("tensors", MAX_TENSORS, 8 + 1 + 4 + 8 + 4 + 8)?;
        let entry_count = reader.count("metadata entries", MAX_ENTRIES, 8 + 1 + 4 + 1)?;

        let mut metadata = GgufMetadata::default();
        for _ in 0..entry_count {
            let key = reader.string("a metadata key", MAX_KEY_BYTES)?.to_owned();
            let value = read_value(&mut reader, &bytes, &key)?;
            metadata.insert(key, value)?;
        }
        let alignment = alignment(&metadata)?;

        let mut entries = Vec::new();
        for _ in 0..tensor_count {
            entries.push(read_tensor_entry(&mut reader)?);
        }
        let data_start = reader.offset().next_multiple_of(alignment);
        let tensors = place_tensors(entries, alignment, data_start, bytes.len())?;
        Ok(Self {
            part: Part { bytes, data_start },
            metadata,
            tensors,
        })
    }
}

/// `split.count`, or 1.
fn split_count(metadata: &GgufMetadata) -> Result<u32, GgufError> {
    let count = metadata.u32(COUNT)?.unwrap_or(1);
    // Some writers put 0 where nothing is split.
    Ok(count.max(1))
}

/// All parts of the file of which `given`, at `path`, is one of `count`.
fn beside(path: &Path, given: Contents, count: u32) -> Result<Vec<Contents>, GgufError> {
    let own = path.file_name().unwrap_or_default().to_string_lossy();
    let name = SplitName::parse(&own).filter(|name| name.count() == count);
    let Some(name) = name else {
        let problem = format!(
            "it is one of {count} parts, and its name does not end in -00001-of-{count:05}.gguf, \
             so that the others cannot be found; name them so, or join them by llama-gguf-split \
             --merge"
        );
        return Err(GgufError::Split { problem });
    };
    let mut given = Some(given);
    let open = |name: String| {
        if let Some(given) = given.take_if(|_| name == own) {
            return Ok(given);
        }
        let bytes = FileBytes::open(&path.with_file_name(&name)).map_err(|error| {
            let problem = match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("its part {name} is missing; download all {count} into one directory")
                }
                _ => format!("its part {name} cannot be read: {error}"),
            };
            GgufError::Split { problem }
        })?;
        Contents::parse(bytes).map_err(|reason| GgufError::Part {
            name,
            reason: Box::new(reason),
        })
    };
    name.all().into_iter().map(open).collect()
}

/// Checks that these are all parts of one file, in their order.
fn check_split(contents: &[Contents]) -> Result<(), GgufError> {
    let wrong = |number: usize, key: &str, found: u32, expected: usize| GgufError::Split {
        problem: format!(
            "`{key}` of its part {number} is {found} instead of {expected}: the parts are damaged \
             or not of one file; download all of them again"
        ),
    };
    let tensors: usize = contents.iter().map(|one| one.tensors.len()).sum();
    if tensors as u64 > MAX_TENSORS {
        return Err(GgufError::TooMany {
            what: "tensors",
            found: tensors as u64,
            limit: MAX_TENSORS,
        });
    }
    for (i, one) in contents.iter().enumerate() {
        let count = split_count(&one.metadata)?;
        if count as usize != contents.len() {
            return Err(wrong(i + 1, COUNT, count, contents.len()));
        }
        if contents.len() == 1 {
            continue;
        }
        let no = one.metadata.u32("split.no")?.unwrap_or(0);
        if no as usize != i {
            return Err(wrong(i + 1, "split.no", no, i));
        }
        let announced = one.metadata.u32("split.tensors.count")?;
        if let Some(announced) = announced.filter(|found| *found as usize != tensors) {
            return Err(wrong(i + 1, "split.tensors.count", announced, tensors));
        }
    }
    Ok(())
}

fn alignment(metadata: &GgufMetadata) -> Result<usize, GgufError> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.u32(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || !(8..=MAX_ALIGNMENT).contains(&alignment) {
        return Err(GgufError::Value {
            key: KEY.to_owned(),
            found: alignment.to_string(),
            expected: "a power of two from 8 to 1048576",
        });
    }
    Ok(alignment as usize)
}

/// A tensor entry as it stands in the file, with its size worked out.
struct Entry {
    name: String,
    shape: Vec<usize>,
    kind: GgmlType,
    /// From the start of the data section.
    offset: u64,
    len: u64,
}

fn read_tensor_entry(reader: &mut Reader<'_>) -> Result<Entry, GgufError> {
    let name = reader.string("a tensor name", MAX_NAME_BYTES)?.to_owned();
    let corrupt = |problem: String| GgufError::Tensor {
        tensor: name.clone(),
        problem,
    };
    let dimensions = reader.u32("a tensor's dimension count")?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return Err(corrupt(format!(
            "has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}"
        )));
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    let mut elements: u64 = 1;
    for _ in 0..dimensions {
        let size = reader.u64("a tensor's dimension")?;
        elements = elements
            .checked_mul(size)
            .filter(|elements| *elements > 0)
            .ok_or_else(|| {
                corrupt(format!(
                    "has the dimension {size}, which makes its size 0 or overflow"
                ))
            })?;
        // Each dimension is at most the element count, which is checked against the file below.
        shape
            .push(usize::try_from(size).map_err(|_| corrupt(format!("has the dimension {size}")))?);
    }
    let id = reader.u32("a tensor's type")?;
    let kind = GgmlType::from_id(id).map_err(|found| GgufError::TensorType {
        tensor: name.clone(),
        found,
    })?;
    // Rows are encoded one by one: a row is a whole number of blocks.
    if !shape[0].is_multiple_of(kind.block_elements()) {
        let (row, block) = (shape[0], kind.block_elements());
        return Err(corrupt(format!(
            "has rows of {row} elements, not a multiple of {block}"
        )));
    }
    let len = (elements / kind.block_elements() as u64)
        .checked_mul(kind.block_bytes() as u64)
        .ok_or_else(|| corrupt(format!("has {elements} elements, too many for any file")))?;
    let offset = reader.u64("a tensor's offset")?;
    shape.reverse();
    Ok(Entry {
        name,
        shape,
        kind,
        offset,
        len,
    })
}

/// Checks that every tensor lies in the data section, aligned, and that no two overlap.
fn place_tensors(
    entries: Vec<Entry>,
    alignment: usize,
    data_start: usize,
    file_len: usize,
) -> Result<Vec<GgufTensor>, GgufError> {
    let data_len = file_len.saturating_sub(data_start) as u64;
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries {
        let Entry {
            name,
            shape,
            kind,
            offset,
            len,
        } = entry;
        let corrupt = |problem| GgufError::Tensor {
            tensor: name.clone(),
            problem,
        };
        if offset % alignment as u64 != 0 {
            return Err(corrupt(format!(
                "begins at {offset}, not a multiple of {alignment}"
            )));
        }
        if offset.checked_add(len).is_none_or(|end| end > data_len) {
            return Err(corrupt(format!(
                "takes bytes {offset} to {} of the data section, which has {data_len}",
                u128::from(offset) + u128::from(len),
            )));
        }
        // Inside the file, so both ends fit usize.
        let start = data_start + offset as usize;
        tensors.push(GgufTensor {
            name,
            shape,
            kind,
            part: 0,
            range: start..start + len as usize,
        });
    }
    let mut order: Vec<&GgufTensor> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.range.start);
    for pair in order.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            return Err(GgufError::Tensor {
                tensor: pair[1].name.clone(),
                problem: format!("overlaps tensor `{}`", pair[0].name),
            });
        }
    }
    Ok(tensors)
}
