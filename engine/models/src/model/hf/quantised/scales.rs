//! Scales, and which of them a weight has.

use ebb_kernels::weight_formats::{E4M3, e8m0};
use half::{bf16, f16};
use safetensors::Dtype;

use super::parts::{Parts, Words};
use crate::model::error::Refusal;
use crate::model::hf::shards::TensorBytes;

/// Which weights share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// All, or those of an output: the stored shape says which.
    TensorOrChannel,
    /// All.
    Tensor,
    /// Those of an output.
    Channel,
    /// So many inputs of an output.
    Group(usize),
    /// So many outputs and inputs.
    Block([usize; 2]),
}

impl Sharing {
    /// Inputs of a row of so many that share a scale.
    pub(super) fn inputs(self, columns: usize) -> usize {
        match self {
            Self::TensorOrChannel | Self::Tensor | Self::Channel => columns,
            Self::Group(size) | Self::Block([_, size]) => size,
        }
    }
}

/// Types that scales are stored in.
pub(super) const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// Numbers that weights share. A row's weights are in groups, and
/// `scale(row, group) = number[(row / rows) · row_stride + group · group_stride]`, times a factor.
#[derive(Clone, Debug)]
pub(super) struct Scales {
    bytes: TensorBytes,
    dtype: Dtype,
    /// Rows that share numbers.
    rows: usize,
    row_stride: usize,
    group_stride: usize,
    factor: Factor,
}

/// What every scale of a tensor is multiplied with, or divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Factor {
    Times(f32),
    Over(f32),
}

/// Which group an input belongs to.
#[derive(Clone, Debug)]
pub(super) enum Groups {
    /// So many inputs one behind the other; the last group may have fewer.
    InOrder(usize),
    /// The group of each input, and how many groups there are.
    Indexed { group: Vec<u32>, count: usize },
}

impl Scales {
    /// Reads the scales of a weight, `[outputs]` or `[output tiles, input tiles]`.
    pub(super) fn read(
        parts: &mut Parts<'_>,
        part: &str,
        sharing: Sharing,
        types: &[Dtype],
    ) -> Result<(Self, Groups), Refusal> {
        let [rows, columns] = parts.shape;
        let one: [&[usize]; 3] = [&[1], &[], &[1, 1]];
        let each: [&[usize]; 2] = [&[rows, 1], &[rows]];
        let all: Vec<_> = one.into_iter().chain(each).collect();
        let (tile, shapes) = match sharing {
            Sharing::TensorOrChannel => ([1, columns], all.as_slice()),
            Sharing::Tensor => ([rows, columns], one.as_slice()),
            Sharing::Channel => ([1, columns], each.as_slice()),
            Sharing::Group(size) => ([1, group_size(parts, size)?], [].as_slice()),
            Sharing::Block(tile) => (tile, [].as_slice()),
        };
        let tiles = [rows.div_ceil(tile[0]), columns.div_ceil(tile[1])];
        // With dimensions in between as ModelOpt writes them.
        let spread = [tiles[0], 1, tiles[1], 1];
        let stacked = parts.stack(&tiles);
        let tiled: [&[usize]; 3] = [&stacked, &tiles, &spread];
        let shapes = if shapes.is_empty() { &tiled } else { shapes };
        let (dtype, bytes) = parts.take_shaped(part, types, shapes)?;
        let is_one = bytes.len() * 8 == dtype.bitsize();
        let scales = Self {
            bytes,
            dtype,
            rows: tile[0],
            row_stride: if is_one { 0 } else { tiles[1] },
            group_stride: usize::from(!is_one),
            factor: Factor::Times(1.0),
        };
        Ok((scales, Groups::InOrder(tile[1])))
    }

    /// Reads scales that lie by groups, `[groups, outputs]`.
    pub(super) fn read_by_groups(
        parts: &mut Parts<'_>,
        part: &str,
        groups: usize,
    ) -> Result<Self, Refusal> {
        let rows = parts.shape[0];
        let (dtype, bytes) = parts.take_shaped(part, &FLOATS, &[&[groups, rows]])?;
        Ok(Self {
            bytes,
            dtype,
            rows: 1,
            row_stride: 1,
            group_stride: rows,
            factor: Factor::Times(1.0),
        })
    }

    /// Has every scale multiplied with a factor, or divided by it.
    pub(super) fn with_factor(self, factor: Factor) -> Self {
        Self { factor, ..self }
    }

    /// The scale of a row's group.
    pub(super) fn at(&self, row: usize, group: usize) -> f32 {
        let index = row / self.rows * self.row_stride + group * self.group_stride;
        let scale = number(self.dtype, &self.bytes, index);
        match self.factor {
            Factor::Times(factor) => scale * factor,
            Factor::Over(factor) => scale / factor,
        }
    }
}

impl Groups {
    /// These groups with inputs by an index, which may say no more than that they are in order.
    pub(super) fn by(self, group: Vec<i32>) -> Self {
        let Self::InOrder(size) = self else {
            return self;
        };
        let count = group.len().div_ceil(size);
        let group: Vec<u32> = group.into_iter().map(i32::cast_unsigned).collect();
        let in_order = |(input, group): (usize, &u32)| input / size == *group as usize;
        match group.iter().enumerate().all(in_order) {
            true => self,
            false => Self::Indexed { group, count },
        }
    }

    /// Groups of a row of so many inputs.
    pub(super) fn count(&self, columns: usize) -> usize {
        match self {
            Self::InOrder(size) => columns.div_ceil(*size),
            Self::Indexed { count, .. } => *count,
        }
    }

    /// Reads the group of each input.
    pub(super) fn indexed(
        parts: &mut Parts<'_>,
        part: &str,
        count: usize,
    ) -> Result<Vec<i32>, Refusal> {
        let columns = parts.shape[1];
        let words: Words = parts.take_words(part, &[columns])?;
        let group: Vec<i32> = words
            .all()
            .iter()
            .map(|word| i32::from_le_bytes(*word))
            .collect();
        match group
            .iter()
            .find(|group| **group < -1 || **group >= count as i32)
        {
            None => Ok(group),
            Some(outside) => {
                let name = parts.name(part);
                Err(Refusal::invalid(
                    format!("a number in {name}"),
                    outside,
                    format!("groups below {count}"),
                ))
            }
        }
    }
}

/// The number at a place of stored ones.
pub(super) fn number(dtype: Dtype, bytes: &[u8], index: usize) -> f32 {
    match dtype {
        Dtype::F32 => f32::from_le_bytes(bytes.as_chunks().0[index]),
        Dtype::F16 => f16::from_le_bytes(bytes.as_chunks().0[index]).to_f32(),
        Dtype::BF16 => bf16::from_le_bytes(bytes.as_chunks().0[index]).to_f32(),
        Dtype::F8_E4M3 => E4M3[usize::from(bytes[index])],
        Dtype::I8 => f32::from(bytes[index] as i8),
        Dtype::U8 | Dtype::F8_E8M0 => e8m0(bytes[index]),
        other => unreachable!("{other:?} is no type of scales"),
    }
}

/// The inputs of a group, which have to divide those of a row.
pub(super) fn group_size(parts: &Parts<'_>, size: usize) -> Result<usize, Refusal> {
    let columns = parts.shape[1];
    if size > 0 && columns.is_multiple_of(size) {
        return Ok(size);
    }
    let expected = format!(
        "a divisor of {columns}, the inputs of `{}`",
        parts.name("weight")
    );
    Err(Refusal::invalid("group_size", size, expected))
}
