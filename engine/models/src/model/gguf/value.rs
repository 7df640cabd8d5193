//! Metadata values. Arrays stay in the file and are decoded while they are walked.

use std::fmt;
use std::ops::Range;

use super::error::GgufError;
use super::reader::Reader;
use crate::model::FileBytes;

/// The longest string accepted, in bytes. Chat templates reach some 20 kB.
const MAX_STRING_BYTES: u64 = 16 << 20;
/// The most elements accepted in an array. Vocabularies and merge lists reach half a million.
const MAX_ARRAY_LEN: u64 = 1 << 24;

/// One metadata value.
#[derive(Clone, Debug)]
pub enum GgufValue {
    /// Any of the integer types, widened.
    Int(i128),
    /// f32 or f64, widened.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// UTF-8 text.
    Text(String),
    /// A list of scalars of one type.
    Array(GgufArray),
}

impl fmt::Display for GgufValue {
    /// What an error message says of the value: itself where it is short, else its kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Text(text) if text.len() <= 80 => write!(f, "{text:?}"),
            Self::Text(text) => write!(f, "a text of {} bytes", text.len()),
            Self::Array(array) => write!(f, "an array of {} elements", array.len()),
        }
    }
}

/// An array whose elements are decoded out of the file as they are asked for.
///
/// It was walked once when the file was opened, so its extent is known to lie in the file; the
/// elements are checked again at each walk, because a mapped file can change under its reader.
#[derive(Clone, Debug)]
pub struct GgufArray {
    element: ScalarType,
    len: usize,
    bytes: FileBytes,
    range: Range<usize>,
}

impl GgufArray {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order, each decoded (and checked) on its own.
    pub fn iter(&self) -> impl Iterator<Item = Result<GgufValue, GgufError>> + '_ {
        let mut reader = Reader::new(&self.bytes[..self.range.end], self.range.start);
        (0..self.len).map(move |_| read_scalar(&mut reader, self.element))
    }
}

/// A type id of the format, arrays aside.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ScalarType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    U64,
    I64,
    F64,
}

impl ScalarType {
    fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Text,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of one element; for text, of an empty one.
    fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Text => 8,
        }
    }
}

/// The type id of arrays.
const ARRAY: u32 = 9;

/// Reads one value with its type id. `bytes` is what `reader` reads, for arrays to keep.
pub(super) fn read_value(
    reader: &mut Reader<'_>,
    bytes: &FileBytes,
    key: &str,
) -> Result<GgufValue, GgufError> {
    let unsupported = |found| GgufError::ValueType {
        key: key.to_owned(),
        found,
    };
    let id = reader.u32("a metadata value's type")?;
    if id != ARRAY {
        let kind = ScalarType::from_id(id).ok_or_else(|| unsupported(id))?;
        return read_scalar(reader, kind);
    }
    let id = reader.u32("an array's element type")?;
    let element = ScalarType::from_id(id).ok_or_else(|| unsupported(id))?;
    let len = reader.count("array elements", MAX_ARRAY_LEN, element.min_bytes())?;
    let start = reader.offset();
    if element == ScalarType::Text {
        for _ in 0..len {
            reader.string("a text in an array", MAX_STRING_BYTES)?;
        }
    } else {
        reader.take(len * element.min_bytes(), "an array")?;
    }
    // `count` bounded the length far below usize::MAX.
    let (len, range) = (len as usize, start..reader.offset());
    Ok(GgufValue::Array(GgufArray {
        element,
        len,
        bytes: bytes.clone(),
        range,
    }))
}

fn read_scalar(reader: &mut Reader<'_>, kind: ScalarType) -> Result<GgufValue, GgufError> {
    const WHAT: &str = "a metadata value";
    Ok(match kind {
        ScalarType::U8 => GgufValue::Int(reader.u8(WHAT)?.into()),
        ScalarType::I8 => GgufValue::Int((reader.u8(WHAT)? as i8).into()),
        ScalarType::U16 => GgufValue::Int(reader.u16(WHAT)?.into()),
        ScalarType::I16 => GgufValue::Int((reader.u16(WHAT)? as i16).into()),
        ScalarType::U32 => GgufValue::Int(reader.u32(WHAT)?.into()),
        ScalarType::I32 => GgufValue::Int((reader.u32(WHAT)? as i32).into()),
        ScalarType::U64 => GgufValue::Int(reader.u64(WHAT)?.into()),
        ScalarType::I64 => GgufValue::Int((reader.u64(WHAT)? as i64).into()),
        ScalarType::F32 => GgufValue::Float(f32::from_bits(reader.u32(WHAT)?).into()),
        ScalarType::F64 => GgufValue::Float(f64::from_bits(reader.u64(WHAT)?)),
        ScalarType::Bool => {
            let offset = reader.offset();
            match reader.u8(WHAT)? {
                0 => GgufValue::Bool(false),
                1 => GgufValue::Bool(true),
                found => return Err(GgufError::Boolean { offset, found }),
            }
        }
        ScalarType::Text => GgufValue::Text(reader.string(WHAT, MAX_STRING_BYTES)?.to_owned()),
    })
}
