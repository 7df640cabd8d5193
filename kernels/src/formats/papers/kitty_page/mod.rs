//! `kitty25page`, `kitty12page`, `kitty25s32`: keys in Kitty's page of two tensors; static.
//!
//! Layout, with S rows of 16 bit in front, T = 128 - S tokens behind them and n boosted channels of
//! D: `[bf16; S D][scale, min; fp16 x 2; D][low; D T/4 bytes][high; n T/4 bytes][index; D bytes]`.
//! `low` and `high` are channel by channel, four tokens a byte, 2 bits each. The index says which
//! row of `high` a channel has, or n.

use std::ops::Range;

use half::bf16;

use crate::BLOCK_TOKENS;
use crate::formats::affine::fp16::{FP16_MAX, round_nearest, widen};
use crate::formats::codec::{HeadDims, PageFormat};
use crate::formats::kitty::{HEAD_DIMS, index_of_loudest_rows, slab_channels};
use crate::formats::{FormatError, MAX_HEAD_DIM, RecordShape};
use crate::kv::Side;

/// Keys with `SLABS` eighths of their channels at 4 bits, the rest at 2, but the first `SINK`
/// tokens as they are.
pub(crate) struct KittyPage<const SLABS: usize, const SINK: usize>;

/// The least step, as in the released code.
const SCALE_MIN: f32 = 1e-6;

impl<const SLABS: usize, const SINK: usize> KittyPage<SLABS, SINK> {
    /// Bytes of a channel's 2-bit codes.
    const CHANNEL_BYTES: usize = (BLOCK_TOKENS - SINK) / 4;

    const fn boosted(shape: RecordShape) -> usize {
        SLABS * slab_channels(shape.head_dim)
    }

    /// Where the parts of a record end: rows, metadata, low and high tensor.
    const fn ends(shape: RecordShape) -> [usize; 4] {
        let d = shape.head_dim;
        let rows = 2 * SINK * d;
        let low = rows + 4 * d + Self::CHANNEL_BYTES * d;
        let high = low + Self::CHANNEL_BYTES * Self::boosted(shape);
        [rows, rows + 4 * d, low, high]
    }
}

impl<const SLABS: usize, const SINK: usize> PageFormat for KittyPage<SLABS, SINK> {
    fn nominal_bits(&self) -> f32 {
        let share = SINK as f32 / BLOCK_TOKENS as f32;
        16.0 * share + crate::formats::kitty::nominal_bits(SLABS) * (1.0 - share)
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::K]
    }

    fn head_dims(&self) -> HeadDims {
        HEAD_DIMS
    }

    fn record_bytes(&self, shape: RecordShape) -> usize {
        Self::ends(shape)[3] + shape.head_dim
    }

    fn encode(&self, shape: RecordShape, rows: &[bf16], out: &mut [u8]) -> Result<(), FormatError> {
        let d = shape.head_dim;
        let (sink, rows) = rows.split_at(SINK * d);
        let bounds = bounds::<SINK>(d, rows)?;
        let boosted = Self::boosted(shape);
        let [sink_end, meta_end, low_end, high_end] = Self::ends(shape);
        write_rows(sink, &mut out[..sink_end]);
        out[high_end..].copy_from_slice(&index_of_loudest_rows(d, rows, boosted));
        out[meta_end..high_end].fill(0);
        for (channel, (min, max)) in bounds.into_iter().enumerate() {
            let slot = usize::from(out[high_end + channel]);
            let levels: u8 = if slot < boosted { 15 } else { 3 };
            let scale = (max - min) / f32::from(levels);
            let scale = if scale < SCALE_MIN { SCALE_MIN } else { scale };
            let meta = &mut out[sink_end + 4 * channel..][..4];
            meta[..2].copy_from_slice(&round_nearest(scale).to_le_bytes());
            meta[2..].copy_from_slice(&round_nearest(min).to_le_bytes());
            let of_channel = rows[channel..].iter().step_by(d);
            for (token, x) in of_channel.enumerate() {
                let code = ((x.to_f32() - min) / scale + 0.5) as u8;
                let code = code.min(levels);
                let (byte, shift) = (token / 4, 2 * (token % 4));
                out[meta_end + channel * Self::CHANNEL_BYTES + byte] |= (code & 3) << shift;
                if slot < boosted {
                    out[low_end + slot * Self::CHANNEL_BYTES + byte] |= (code >> 2) << shift;
                }
            }
        }
        Ok(())
    }

    fn dequantise(&self, shape: RecordShape, record: &[u8], tokens: Range<usize>, out: &mut [f32]) {
        let d = shape.head_dim;
        let boosted = Self::boosted(shape);
        let [sink_end, meta_end, low_end, high_end] = Self::ends(shape);
        let (low, high) = (&record[meta_end..low_end], &record[low_end..high_end]);
        let index = &record[high_end..];
        let (mut scale, mut min) = ([0.0; MAX_HEAD_DIM], [0.0; MAX_HEAD_DIM]);
        for (channel, meta) in record[sink_end..meta_end].chunks_exact(4).enumerate() {
            scale[channel] = widen(u16::from_le_bytes([meta[0], meta[1]]));
            min[channel] = widen(u16::from_le_bytes([meta[2], meta[3]]));
        }
        for (token, out) in tokens.zip(out.chunks_exact_mut(d)) {
            let Some(token) = token.checked_sub(SINK) else {
                read_row(&record[2 * token * d..][..2 * d], out);
                continue;
            };
            let (byte, shift) = (token / 4, 2 * (token % 4));
            let bits_of =
                |tensor: &[u8], row: usize| tensor[row * Self::CHANNEL_BYTES + byte] >> shift & 3;
            for (channel, out) in out.iter_mut().enumerate() {
                let slot = usize::from(index[channel]);
                let high = if slot < boosted {
                    bits_of(high, slot)
                } else {
                    0
                };
                let code = bits_of(low, channel) | high << 2;
                *out = f32::from(code) * scale[channel] + min[channel];
            }
        }
    }
}

/// Least and greatest value of every channel of `rows`, which are those from token `FIRST` on.
fn bounds<const FIRST: usize>(
    head_dim: usize,
    rows: &[bf16],
) -> Result<Vec<(f32, f32)>, FormatError> {
    let is_bad = |x: &bf16| !(x.is_finite() && x.to_f32().abs() <= FP16_MAX);
    if let Some(at) = rows.iter().position(is_bad) {
        let (token, channel) = (FIRST + at / head_dim, at % head_dim);
        return Err(FormatError::of_element(token, channel, rows[at]));
    }
    let mut bounds = vec![(f32::INFINITY, f32::NEG_INFINITY); head_dim];
    for row in rows.chunks_exact(head_dim) {
        for ((min, max), x) in bounds.iter_mut().zip(row) {
            *min = min.min(x.to_f32());
            *max = max.max(x.to_f32());
        }
    }
    match bounds.iter().position(|(min, max)| max - min > FP16_MAX) {
        None => Ok(bounds),
        Some(index) => Err(FormatError::RangeBeyondFp16 {
            group: "channel",
            index,
            min: bounds[index].0,
            max: bounds[index].1,
        }),
    }
}

/// 16-bit rows as they are.
pub(super) fn write_rows(rows: &[bf16], out: &mut [u8]) {
    for (x, bytes) in rows.iter().zip(out.chunks_exact_mut(2)) {
        bytes.copy_from_slice(&x.to_le_bytes());
    }
}

/// One of them.
pub(super) fn read_row(row: &[u8], out: &mut [f32]) {
    for (bytes, x) in row.chunks_exact(2).zip(out) {
        *x = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    }
}
